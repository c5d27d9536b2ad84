// Makes the batches of one sample that a policy gets while the robot runs. They equal a Loader's batches of the same
// rows, bit for bit.
//
//   Aligner aligner(spec_from_json(text), {{"joint", joint_ring}, {"camera", camera_ring}});
//   std::vector<char> memory(aligner.batch_bytes());
//   if (aligner.latest(memory.data())) use(BatchLayout::view(aligner.arrays()[0], 1, memory.data(), {}));
//
// A target is settled when no row that may still come can change its value (Ring::settled_ns): a value that is held
// settles once the lateness is over, an interpolated value once the row after it is final. The frontier is the newest
// moment at which the targets of all keys are settled. At the frontier the batch has the same bytes as a Loader's batch
// of the recording. At a later moment, targets that are not settled are padding, even if the recording will have values
// there (rule 53). All other bytes are a Loader's.
//
// On a CUDA device frames are copied as pixels and resized on the device. The host computes everything else.
//
// The arrays are a Loader's, for one sample: <key>, <key>_is_pad, with return_age <key>_age, and so on. Two more
// follow: "time_ns" [1], the moment, and "anchor_age_ns" [1], the newest stamp of all rings minus the moment. A key in
// `outputs` has no arrays, except <key>_base if its conversions use a base.
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

// One thread at a time uses it; others push to the rings meanwhile.
class Aligner {
 public:
  // `outputs` are the keys that the policy computes: they need no ring. Throws ArgumentError that names the key if
  // another key has no ring, if a ring has no key, if a ring's rows differ from the spec's in shape, dtype or codec, if
  // a ring's span is shorter than the window, or if a base is in rows. Throws DeviceError, OutOfMemory.
  Aligner(BatchSpec spec, const Rings& rings, const std::vector<std::string>& outputs = {}, Device device = {});
  ~Aligner();

  const BatchSpec& spec() const;
  Device device() const;
  size_t batch_bytes() const;
  const std::vector<BatchArray>& arrays() const;

  // Returns the frontier, or none while a stream has no settled moment.
  std::optional<int64_t> frontier() const;

  // Fills `memory` (batch_bytes() of the device, 64-byte aligned) with the batch at a moment; on CUDA it queues the
  // work on `stream`. Never waits for rows. Allocates only while rings grow. Returns the number of targets that are not
  // settled. Throws ArgumentError for a moment beyond +-2^62 ns. Throws StaleError if a ring has forgotten rows that
  // the window needs, because a batch with padding in their place would differ from a Loader's.
  int64_t at(int64_t time_ns, void* memory, CudaStream stream = {});

  // Fills `memory` with the batch at the frontier. Returns false if there is no frontier.
  bool latest(void* memory, CudaStream stream = {});

  // Returns how many frames did not decode so far: they are black and padding.
  int64_t bad_frames() const;

  // The key whose ring's newest row is the oldest, and how far it is behind the newest row of all rings.
  struct Stalest {
    std::string key;
    int64_t behind_ns;
  };
  std::optional<Stalest> stalest() const;  // none while a ring is empty

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace robocache
