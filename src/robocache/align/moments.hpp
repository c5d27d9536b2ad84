// Draws the moments beside the anchors of a batch at which goals are taken (moments_params.hpp has the rule). A moment is a
// pure function of the rule, the seed, the epoch, and the sample's number in the order, or with given anchors the anchor's.
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
struct EnumNames<MomentKind> {
  static constexpr std::string_view names[] = {"future", "last", "geometric", "other"};
};

struct MomentRule {
  MomentKind kind = MomentKind::kLast;
  int64_t low_ns = 0;   // of kFuture
  int64_t high_ns = 0;  // the same; the greatest int64: up to the episode's end
  double discount = 0;  // of kGeometric

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
  // The ticks of episodes, each of which is there once; and the task of each episode of the dataset, below 0: none.
  MomentTicks(Anchors ticks, std::span<const int64_t> tasks);

  AnchorIndex index() const { return ticks_.index(); }  // with none
  MomentSource on_host() const;
  // The same with its tables where `tables` puts them, and with the clock's times there.
  MomentSource copied(DeviceTables& tables, const int64_t* tick_ns) const;

 private:
  Anchors ticks_;
  std::vector<int32_t> entry_of_;
  std::vector<MomentPeers> peers_;
  std::vector<int32_t> members_;
};

// A batch of a rule, without sources, samples and arrays.
MomentBatch moment_batch(const MomentRule& rule);

// Fills the arrays. On CUDA one kernel is queued on `stream`, and not waited for; on the CPU the arrays are there on return.
// Throws DeviceError.
void draw_moments(const MomentBatch& batch, Device device, CudaStream stream);

}  // namespace robocache
