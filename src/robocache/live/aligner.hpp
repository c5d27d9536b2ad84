// The batches of one that a policy gets while the robot runs: what a Loader made of the same rows, bit for bit.
//
//   Aligner aligner(spec_from_json(text), {{"joint", joint_ring}, {"camera", camera_ring}});
//   std::vector<char> memory(aligner.batch_bytes());
//   if (aligner.latest(memory.data())) use(BatchLayout::view(aligner.arrays()[0], 1, memory.data(), {}));
//
// A target is settled when no row that may still come changes its value (Ring::settled_ns): for a held value as soon as the
// lateness is over, for an interpolated one when the row after it is final. The frontier is the newest moment all of whose
// targets are settled, over all keys. A Loader's batch at that moment has the same bytes. Other moments have it too, but for
// targets that are not settled: they are padding, though the recording may have a value there later (rule 53).
//
// On a CUDA device frames are copied as pixels and resized there. All else is made on the host and copied with them.
//
// The arrays are those of the Loader, of one sample: <key>, <key>_is_pad, with return_age <key>_age, and so on; "time_ns" [1], the
// moment; and "anchor_age_ns" [1], the newest stamp of all rings less the moment. Of a key that the policy puts out there is
// <key>_base alone, where its conversions have one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "robocache/batch/layout.hpp"
#include "robocache/batch/spec.hpp"
#include "robocache/core/device.hpp"
#include "robocache/source/ring.hpp"

namespace robocache {

using Rings = std::map<std::string, std::shared_ptr<const Ring>>;  // by the spec's keys

// One thread uses it; others push to the rings meanwhile.
class Aligner {
 public:
  // `outputs`: the keys that the policy puts out; they need no ring. Throws ArgumentError that names the key: another key without a
  // ring, a ring without a key, rows of another shape, dtype or codec than the spec's, a span that is shorter than the window, a
  // base in rows. Throws DeviceError, OutOfMemory for the memory of a device.
  Aligner(BatchSpec spec, const Rings& rings, const std::vector<std::string>& outputs = {}, Device device = {});
  ~Aligner();

  const BatchSpec& spec() const;
  Device device() const;
  size_t batch_bytes() const;
  const std::vector<BatchArray>& arrays() const;

  // None: a stream has no settled moment yet.
  std::optional<int64_t> frontier() const;

  // Fills `memory` (batch_bytes() of the device, 64-byte aligned) with the batch at a moment; on CUDA it queues that on `stream`.
  // Never waits for rows. Allocates only while rings grow. Returns the number of targets that are not settled. Throws
  // ArgumentError for a moment beyond +-2^62 ns. Throws StaleError if a ring has forgotten rows that the window needs: with
  // padding instead, the batch would differ from a Loader's.
  int64_t at(int64_t time_ns, void* memory, CudaStream stream = {});

  // The batch at the frontier; false where there is none.
  bool latest(void* memory, CudaStream stream = {});

  // Frames that did not decode, so far: they are black and padding.
  int64_t bad_frames() const;

  // The key whose ring's newest row is the oldest, and how far it is behind the newest of all.
  struct Stalest {
    std::string key;
    int64_t behind_ns;
  };
  std::optional<Stalest> stalest() const;  // none where a ring is empty

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace robocache
