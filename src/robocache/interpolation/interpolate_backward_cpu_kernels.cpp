// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <cstdint>

#include "robocache/interpolation/gradient.hpp"
#include "robocache/interpolation/interpolate_backward.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

constexpr int64_t kPiece = 64;  // features at a time, in the work type

template <class Work>
void load_piece(DType dtype, const void* data, int64_t offset, int64_t stride, int64_t n, Work* to) {
  with_type(dtype, [&](auto element) {
    const auto* from = static_cast<const decltype(element)*>(data) + offset;
    for (int64_t d = 0; d < n; ++d) to[d] = to_work<Work>(from[d * stride]);
  });
}

template <class Work>
void add_share(Work factor, const Work* gradient, int64_t n, Work* to, int64_t stride) {
  if (stride == 1) {
    for (int64_t d = 0; d < n; ++d) to[d] += share_of(factor, gradient[d]);
  } else {
    for (int64_t d = 0; d < n; ++d) to[d * stride] += share_of(factor, gradient[d]);
  }
}

template <class Work, class Clock>
void row_backward(const Interpolation& call, const Segment& s, const SegmentGradient& g, int64_t batch) {
  const PickRule<Clock> rule = rule_of<Clock>(s);
  const ClockRow<Clock> times{static_cast<const Clock*>(s.times) + batch * s.times_batch, s.times_sample};
  const int64_t length = row_length(s, batch);
  const double per_target = clock_units_per_target_unit(call, s);
  const bool moves_times = g.times != nullptr || g.targets != nullptr;
  Work gradient[kPiece];
  Work before[kPiece];
  Work after[kPiece];
  int64_t hint = 0;
  for (int64_t index = 0; index < call.targets_count; ++index) {
    const StreamTarget<Clock> target = target_on<Clock>(call, s, batch, index);
    const Pick<Work> picked = pick<Work>(times, target.exists ? length : 0, target.time, rule, hint);
    if (picked.kind == PickKind::kAbsent) continue;
    const Bracket bracket = moves_times ? bracket_of(times, length, rule, picked) : Bracket{};
    double rise = 0;
    for (int64_t first = 0; first < s.features; first += kPiece) {
      const int64_t n = s.features - first < kPiece ? s.features - first : kPiece;
      load_piece(s.out_dtype, s.out, batch * s.out_batch + index * s.out_target + first * s.out_feature, s.out_feature,
                 n, gradient);
      if (s.scaled) {
        for (int64_t d = 0; d < n; ++d) {
          gradient[d] = share_of(number_of<Work>(s.scale, s.scale_per_feature, first + d), gradient[d]);
        }
      }
      if (g.values != nullptr) {
        Work* const row = static_cast<Work*>(g.values) + batch * g.values_batch + first * g.values_feature;
        if (picked.kind == PickKind::kMix) {
          add_share(Work(1) - picked.weight, gradient, n, row + picked.left * g.values_sample, g.values_feature);
          add_share(picked.weight, gradient, n, row + picked.right * g.values_sample, g.values_feature);
        } else {
          add_share(Work(1), gradient, n, row + picked.left * g.values_sample, g.values_feature);
        }
      }
      if (bracket.gap != 0) {
        const int64_t at = batch * s.values_batch + first * s.values_feature;
        load_piece(s.value_dtype, s.values, at + bracket.left * s.values_sample, s.values_feature, n, before);
        load_piece(s.value_dtype, s.values, at + bracket.right * s.values_sample, s.values_feature, n, after);
        for (int64_t d = 0; d < n; ++d) {
          rise += share_of(static_cast<double>(after[d]) - static_cast<double>(before[d]),
                           static_cast<double>(gradient[d]));
        }
      }
    }
    if (bracket.gap == 0) continue;
    const double slope = rise / bracket.gap;
    if (g.targets != nullptr) g.targets[batch * call.targets_count + index] += slope * per_target;
    if (g.times != nullptr) {
      double* const row = g.times + batch * s.samples;
      row[bracket.left] -= share_of(1 - bracket.weight, slope);
      row[bracket.right] -= share_of(bracket.weight, slope);
    }
  }
}

}  // namespace

void interpolate_rows_backward(const Interpolation& call, const SegmentGradient* gradients, int64_t begin,
                               int64_t end) {
  for (int32_t i = 0; i < call.segment_count; ++i) {
    const Segment& s = call.segments[i];
    with_clock(s.clock_dtype, [&](auto clock) {
      for (int64_t batch = begin; batch < end; ++batch) {
        if (works_in_double(s)) {
          row_backward<double, decltype(clock)>(call, s, gradients[i], batch);
        } else {
          row_backward<float, decltype(clock)>(call, s, gradients[i], batch);
        }
      }
    });
  }
}

}  // namespace robocache::ROBOCACHE_ISA
