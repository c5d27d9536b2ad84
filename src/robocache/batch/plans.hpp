// The plans that fill the numbers of a batch and choose the rows of its frames: one plan around the anchors, and one
// around the moments of each rule of goals.
//
//   const PartPlans plans(Part::kDevice, keys, streams, draws, anchors, goals);
//   plans.run({position, samples}, memory, stream);
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "robocache/align/moments.hpp"
#include "robocache/align/window_params.hpp"
#include "robocache/batch/draws.hpp"
#include "robocache/batch/key.hpp"
#include "robocache/core/device.hpp"
#include "robocache/core/device_tables.hpp"

namespace robocache {

using BatchKeys = std::vector<std::unique_ptr<BatchKey>>;

// The batch that a caller asks for: the samples at a position, or given anchors. The position's seed and epoch seed the
// random draws.
struct Wanted {
  BatchPosition position;
  int64_t count;
  std::span<const int64_t> anchors = {};       // given anchors, on the host; empty: those of the position
  std::span<const int64_t> draws = {};         // for given anchors: the numbers that seed their random draws
  const int64_t* anchors_on_device = nullptr;  // anchors and draws on the loader's device
  const int64_t* draws_on_device = nullptr;
};

// Returns the samples that `mixture` draws for a batch, at the position's epoch. The caller adds the plan and the memory.
WindowBatch samples_of(const LoaderOptions& options, const Wanted& wanted, const Mixture& mixture);

// The offsets of the arrays that describe a sample's anchor; below 0: not written.
struct AnchorArrays {
  int64_t time = -1;
  int64_t episode = -1;
  int64_t anchor = -1;
  int64_t source = -1;
};

// The offsets of the arrays that describe the moments of a rule; below 0: not written.
struct GoalArrays {
  MomentRule rule;
  int64_t moments;       // scratch memory for the drawn moments
  int64_t offset = -1;   // the first of the rule's "<key>_offset_ns" arrays
  int64_t episode = -1;  // the first of its "<key>_episode_index" arrays
};

// Immutable. Any number of threads may run it. Keys, streams and draws must outlive it.
class PartPlans {
 public:
  // Plans for the keys that are aligned in `part`, and for the given arrays. Throws ArgumentError, DeviceError.
  PartPlans(Part part, const BatchKeys& keys, const LoaderStreams& streams, const Draws& draws,
            const AnchorArrays& anchors, std::span<const GoalArrays> goals);

  // Fills the part's arrays in `memory`. On CUDA this queues kernels on `stream` and does not wait.
  void run(const Wanted& wanted, void* memory, CudaStream stream) const;

  // The bytes that are written for a sample. A converted number counts as the bytes that a copy writes in the time of
  // its conversion.
  int64_t sample_bytes() const;

 private:
  struct Plan {
    WindowPlan windows;
    bool runs;  // false: it has nothing to write
  };
  struct GoalPlan {
    GoalArrays arrays;
    MomentBatch moments;  // without the batch
    Plan plan;
  };
  using Moment = std::optional<MomentRule>;

  Plan plan_of(const Moment& moment, const AnchorArrays& arrays);
  // Whether the plan of this moment is the last one that fills an input of a key's conversion.
  bool converts_at(const BatchKey& key, const Moment& moment) const;
  WindowBatch batch_of(const Wanted& wanted, const Plan& plan, const Mixture& mixture, void* memory) const;

  const Part part_;
  const BatchKeys& keys_;
  const LoaderStreams& streams_;
  const Draws& draws_;
  const Device device_;
  const DrawTables& draw_tables_;
  std::vector<MomentRule> rules_;
  DeviceTables tables_;
  Plan anchors_;
  std::vector<GoalPlan> goals_;
};

}  // namespace robocache
