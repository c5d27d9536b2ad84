// The plans that fill the numbers of a batch and choose the rows of its frames: one around the anchors, and one around the moments
// of each rule that keys have goals at.
//
//   const PartPlans plans(Part::kDevice, keys, draws, arrays, tables);
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

// A batch that is asked for: the samples at a position, or given anchors. The position's seed and epoch seed the random draws.
struct Wanted {
  BatchPosition position;
  int64_t count;
  std::span<const int64_t> anchors = {};       // on the host; if empty, those of the position
  std::span<const int64_t> draws = {};         // of given anchors: the numbers that random draws go by
  const int64_t* anchors_on_device = nullptr;  // the same on the loader's device
  const int64_t* draws_on_device = nullptr;
};

// The samples of a batch that `mixture` draws, at the position's epoch, without a plan and memory.
WindowBatch samples_of(const LoaderOptions& options, const Wanted& wanted, const Mixture& mixture);

// The offsets of the arrays that say what a sample's anchor is; below 0: not written.
struct AnchorArrays {
  int64_t time = -1;
  int64_t episode = -1;
  int64_t anchor = -1;
  int64_t source = -1;
};

// The same of the moments of a rule.
struct GoalArrays {
  MomentRule rule;
  int64_t moments;       // memory of the part for the drawn moments
  int64_t offset = -1;   // the first of the arrays of the rule's keys
  int64_t episode = -1;  // the same
};

// Immutable. Any number of threads may use one. Keys, streams and draws must outlive it.
class PartPlans {
 public:
  // Plans for the keys that are aligned in `part`, and for the given arrays. Throws ArgumentError, DeviceError.
  PartPlans(Part part, const BatchKeys& keys, const LoaderStreams& streams, const Draws& draws,
            const AnchorArrays& anchors, std::span<const GoalArrays> goals);

  // Fills the part's arrays; offsets count from `memory`. On CUDA this queues kernels on `stream`, and does not wait.
  void run(const Wanted& wanted, void* memory, CudaStream stream) const;

  // The bytes that are written for a sample. A number that is converted counts as the bytes that are copied in its time.
  int64_t sample_bytes() const;

 private:
  struct Plan {
    WindowPlan windows;
    bool runs;  // it has windows, or writes what the anchors are
  };
  struct GoalPlan {
    GoalArrays arrays;
    MomentBatch moments;  // without the batch
    Plan plan;
  };
  using Moment = std::optional<MomentRule>;

  Plan plan_of(const Moment& moment, const AnchorArrays& writes);
  // Whether the plan of a moment is the last that fills what a key is converted from.
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
