// Draws the moments of a batch's goals, one for each anchor, by the rule of moments_params.hpp. A moment is a pure
// function of the rule, the seed, the epoch, and a number: the sample's position, or the number of a given anchor.
//
//   const MomentTicks ticks(std::move(every_tick), tasks);
//   MomentBatch batch = moment_batch(rule);
//   ...  // its sources, samples and arrays
//   draw_moments(batch, device, stream);
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "robocache/align/moments_params.hpp"
#include "robocache/core/device.hpp"
#include "robocache/core/device_tables.hpp"
#include "robocache/core/enum_names.hpp"
#include "robocache/core/fields.hpp"

namespace robocache {

template <>
inline constexpr std::string_view kNames<MomentKind>[] = {"future", "last", "geometric", "other"};

struct MomentRule {
  MomentKind kind = MomentKind::kLast;
  int64_t low_ns = 0;   // for kFuture
  int64_t high_ns = 0;  // for kFuture; the greatest int64: up to the episode's end
  double discount = 0;  // for kGeometric

  bool operator==(const MomentRule&) const = default;

  static constexpr auto fields() {
    using Self = MomentRule;
    return std::tuple(Field{"kind", &Self::kind}, Field{"low_ns", &Self::low_ns}, Field{"high_ns", &Self::high_ns},
                      Field{"discount", &Self::discount});
  }
};

// The tables of a MomentSource in host memory.
class MomentTicks {
 public:
  // Takes the ticks of episodes, each episode once, and the task of each episode of the dataset; below 0: none.
  MomentTicks(Anchors ticks, std::span<const int64_t> tasks);

  AnchorIndex index() const { return ticks_.index(); }  // its last tick means that there is no moment
  MomentSource on_host() const;
  // Returns the same with copies of its tables in `tables`. `tick_ns` has the clock's times in that memory.
  MomentSource copied(DeviceTables& tables, const int64_t* tick_ns) const;

 private:
  Anchors ticks_;
  std::vector<int32_t> entry_of_;
  std::vector<MomentPeers> peers_;
  std::vector<int32_t> members_;
};

// Returns a batch of a rule. The caller adds sources, samples and arrays.
MomentBatch moment_batch(const MomentRule& rule);

// Fills the arrays. On CUDA it queues one kernel on `stream` and does not wait; on the CPU the arrays are full on
// return. Throws DeviceError.
void draw_moments(const MomentBatch& batch, Device device, CudaStream stream);

}  // namespace robocache
