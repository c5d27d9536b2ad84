// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
//
// Functions that do not depend on the clock's type are not inlined. Otherwise they would be compiled once for each
// clock and work type, which takes minutes under a sanitizer.
#include <cstdint>
#include <type_traits>

#include "robocache/interpolation/curve_gradient.hpp"
#include "robocache/interpolation/gradient.hpp"
#include "robocache/interpolation/interpolate_backward.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

constexpr int64_t kPiece = 64;  // features computed at once, in the work type; whole quaternions

template <class Work>
[[gnu::noinline]] void load_piece(DType dtype, const void* data, int64_t offset, int64_t stride, int64_t n, Work* to) {
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

// One target of one row, and the sums over the pieces of its features.
template <class Work>
struct Target {
  const Segment& s;
  const SegmentGradient& g;
  int64_t batch;
  Pick<Work> picked;
  Bracket bracket;
  CurveTarget curve;                         // for methods with kWeighs
  double weights_gradient[kCurveWeights]{};  // for methods with kWeighs; other methods use [0] for the bracket's weight

  void load(int64_t row, int64_t first, int64_t n, Work* to) const {
    load_piece(s.value_dtype, s.values, batch * s.values_batch + row * s.values_sample + first * s.values_feature,
               s.values_feature, n, to);
  }
  double* slopes(double* array, int64_t row, int64_t first) const {
    return array + (batch * s.samples + row) * s.features + first;
  }
  Work* sums(int64_t row, int64_t first) const {
    return static_cast<Work*>(g.values) + batch * g.values_batch + row * g.values_sample + first * g.values_feature;
  }
};

// The next four functions add the gradient of n features from `first` on to the samples and to t.weights_gradient.
template <class Method, class Work>
[[gnu::noinline]] void pair_piece(Target<Work>& t, const Work* gradient, int64_t first, int64_t n, bool adds_values,
                                  bool adds_times) {
  if (adds_values) {
    add_share(Work(1) - t.picked.weight, gradient, n, t.sums(t.picked.left, first), t.g.values_feature);
    add_share(t.picked.weight, gradient, n, t.sums(t.picked.right, first), t.g.values_feature);
  }
  if (!adds_times) return;
  Work a[kPiece];
  Work b[kPiece];
  t.load(t.bracket.left, first, n, a);
  t.load(t.bracket.right, first, n, b);
  for (int64_t d = 0; d < n; ++d) {
    t.weights_gradient[0] += share_of(Method::weight_derivative(a[d], b[d]), static_cast<double>(gradient[d]));
  }
}

template <class Work>
[[gnu::noinline]] void curve_piece(Target<Work>& t, const Work* gradient, int64_t first, int64_t n, bool adds_values,
                                   bool adds_times) {
  const Stencil<int64_t>& stencil = t.curve.stencil;
  Work loaded[kStencilRows][kPiece];
  for (int i = 0; i < kStencilRows; ++i) t.load(stencil.rows[i], first, n, loaded[i]);
  for (int64_t d = 0; d < n; ++d) {
    if (gradient[d] == Work(0)) continue;
    double y[kStencilRows];
    for (int i = 0; i < kStencilRows; ++i) y[i] = static_cast<double>(loaded[i][d]);
    if (adds_values) {
      double partials[kStencilRows];
      partials_of_rows(t.s.method, t.curve, y, partials);
      for (int i = 2 - stencil.before; i <= 3 + stencil.after; ++i) {
        t.sums(stencil.rows[i], first)[d * t.g.values_feature] += static_cast<Work>(partials[i] * gradient[d]);
      }
    }
    if (adds_times) {
      double partials[kCurveWeights];
      partials_of_weights(t.s.method, t.curve, y, partials);
      for (int i = 0; i < kCurveWeights; ++i) t.weights_gradient[i] += partials[i] * gradient[d];
    }
  }
}

template <class Work>
[[gnu::noinline]] void rotation_piece(Target<Work>& t, const Work* gradient, int64_t first, int64_t n, bool adds_values,
                                      bool adds_times) {
  Work left[kPiece];
  Work right[kPiece];
  t.load(t.bracket.left, first, n, left);
  t.load(t.bracket.right, first, n, right);
  for (int64_t d = 0; d < n; d += 4) {
    double a[4];
    double b[4];
    double incoming[4];
    for (int i = 0; i < 4; ++i) {
      a[i] = static_cast<double>(left[d + i]);
      b[i] = static_cast<double>(right[d + i]);
      incoming[i] = static_cast<double>(gradient[d + i]);
    }
    if (adds_values) {
      double gradient_a[4];
      double gradient_b[4];
      Slerp::rows_gradient(a, b, t.bracket.weight, incoming, gradient_a, gradient_b);
      for (int i = 0; i < 4; ++i) {
        t.sums(t.bracket.left, first + d)[i * t.g.values_feature] += static_cast<Work>(gradient_a[i]);
        t.sums(t.bracket.right, first + d)[i * t.g.values_feature] += static_cast<Work>(gradient_b[i]);
      }
    }
    if (adds_times) t.weights_gradient[0] += Slerp::weight_gradient(a, b, t.bracket.weight, incoming);
  }
}

template <class Work>
[[gnu::noinline]] void cubic_piece(Target<Work>& t, const Work* gradient, int64_t first, int64_t n, bool adds_values,
                                   bool adds_times) {
  const Cubic::Partials partials = Cubic::partials(t.curve.weights);
  const int64_t left = t.bracket.left;
  const int64_t right = t.bracket.right;
  if (adds_values) {
    Work* const gradient_a = t.g.values == nullptr ? nullptr : t.sums(left, first);
    Work* const gradient_b = t.g.values == nullptr ? nullptr : t.sums(right, first);
    double* const gradient_slope_a = t.slopes(t.g.spline.slopes_gradient, left, first);
    double* const gradient_slope_b = t.slopes(t.g.spline.slopes_gradient, right, first);
    for (int64_t d = 0; d < n; ++d) {
      const auto x = static_cast<double>(gradient[d]);
      if (gradient_a != nullptr) {
        gradient_a[d * t.g.values_feature] += static_cast<Work>(share_of(partials.a, x));
        gradient_b[d * t.g.values_feature] += static_cast<Work>(share_of(partials.b, x));
      }
      gradient_slope_a[d] += share_of(partials.slope_a, x);
      gradient_slope_b[d] += share_of(partials.slope_b, x);
    }
  }
  if (!adds_times) return;
  Work a[kPiece];
  Work b[kPiece];
  t.load(left, first, n, a);
  t.load(right, first, n, b);
  const double* const slope_a = t.slopes(t.g.spline.slopes, left, first);
  const double* const slope_b = t.slopes(t.g.spline.slopes, right, first);
  for (int64_t d = 0; d < n; ++d) {
    Cubic::add_weights_gradient(t.curve.weights, static_cast<double>(a[d]), static_cast<double>(b[d]), slope_a[d],
                                slope_b[d], static_cast<double>(gradient[d]), t.weights_gradient);
  }
}

// Calls body(lanes, first feature) for eight features at a time, which share a cache line, then for single features.
template <class Body>
void for_each_lanes(int64_t features, const Body& body) {
  int64_t d = 0;
  for (; d + 8 <= features; d += 8) body(std::integral_constant<int, 8>{}, d);
  for (; d < features; ++d) body(std::integral_constant<int, 1>{}, d);
}

// Computes the slopes of a row from its table.
[[gnu::noinline]] void sweep_features(const Segment& s, const SegmentGradient& g, int64_t batch) {
  const SplineRow* const table = g.spline.table + batch * s.samples;
  const int64_t slopes_offset = batch * s.samples * s.features;
  with_floating(s.value_dtype, [&](auto element) {
    const auto* values = static_cast<const decltype(element)*>(s.values) + batch * s.values_batch;
    for_each_lanes(s.features, [&](auto lanes, int64_t d) {
      spline_sweep_row<decltype(lanes)::value>(table, values + d * s.values_feature, s.values_sample, s.values_feature,
                                               g.spline.slopes + slopes_offset + d, s.features);
    });
  });
}

// Passes the gradient of the slopes back to the values and to the table.
template <class Work>
[[gnu::noinline]] void sweep_features_backward(const Segment& s, const SegmentGradient& g, int64_t batch,
                                               int64_t length) {
  SplineRowGradient* const table_gradient = g.spline.table_gradient + batch * s.samples;
  const int64_t slopes_offset = batch * s.samples * s.features;
  with_floating(s.value_dtype, [&](auto element) {
    for_each_lanes(s.features, [&](auto lanes, int64_t d) {
      const auto* values =
          static_cast<const decltype(element)*>(s.values) + batch * s.values_batch + d * s.values_feature;
      const int64_t sums = batch * g.values_batch + d * g.values_feature;
      spline_sweep_backward<decltype(lanes)::value>(
          g.spline.table + batch * s.samples, length,
          [&](int64_t row, int lane) {
            return to_work<double>(values[row * s.values_sample + lane * s.values_feature]);
          },
          g.spline.slopes + slopes_offset + d, g.spline.slopes_gradient + slopes_offset + d, s.features,
          [&](int64_t row, int lane, double x) {
            if (g.values == nullptr) return;
            static_cast<Work*>(g.values)[sums + row * g.values_sample + lane * g.values_feature] +=
                static_cast<Work>(x);
          },
          [&](int64_t e, const SplineRowGradient& x) {
            table_gradient[e].before += x.before;
            table_gradient[e].after += x.after;
            table_gradient[e].carry += x.carry;
            table_gradient[e].back += x.back;
          });
    });
  });
}

// Runs before a row's targets. Computes the slopes, and clears the gradients by the slopes and by the table.
template <class Clock>
[[gnu::noinline]] void begin_spline(const Segment& s, const SegmentGradient& g, const ClockRow<Clock>& times,
                                    int64_t batch, int64_t length) {
  spline_table(times, length, s.boundary, g.spline.table + batch * s.samples);
  for (int64_t i = 0; i < length; ++i) g.spline.table_gradient[batch * s.samples + i] = {0, 0, 0, 0};
  const int64_t slopes_offset = batch * s.samples * s.features;
  for (int64_t i = 0; i < length * s.features; ++i) g.spline.slopes_gradient[slopes_offset + i] = 0;
  sweep_features(s, g, batch);
}

// Runs after sweep_features_backward. Passes the gradient of the table back to the times.
template <class Clock>
[[gnu::noinline]] void end_spline(const Segment& s, const SegmentGradient& g, const ClockRow<Clock>& times,
                                  int64_t batch, int64_t length) {
  spline_table_backward(times, length, s.boundary, g.spline.table + batch * s.samples,
                        g.spline.table_gradient + batch * s.samples,
                        [&](int64_t row, double x) { g.times[batch * s.samples + row] += x; });
}

[[gnu::noinline]] void set_weights(InterpolationMethod method, CurveTarget& curve) {
  curve.weights = curve_weights<double>(method, curve.spacing);
}

// Adds the gradient of a target's samples to their times. Returns the gradient of the target's own time.
template <class Work>
[[gnu::noinline]] double add_times_gradient(const Target<Work>& t, bool is_curve) {
  double* const row = t.g.times == nullptr ? nullptr : t.g.times + t.batch * t.s.samples;
  if (!is_curve) {
    const double target_gradient = t.weights_gradient[0] / t.bracket.gap;
    if (row != nullptr) {
      row[t.bracket.left] -= share_of(1 - t.bracket.weight, target_gradient);
      row[t.bracket.right] -= share_of(t.bracket.weight, target_gradient);
    }
    return target_gradient;
  }
  double times_gradient[kStencilRows];
  gradient_by_times(t.s.method, t.curve, t.bracket, t.weights_gradient, times_gradient);
  double target_gradient = 0;
  for (int i = 0; i < kStencilRows; ++i) {
    const int64_t sample = t.curve.time_row(t.s.method, i);
    if (sample < 0) continue;
    if (row != nullptr) row[sample] += times_gradient[i];
    target_gradient -= times_gradient[i];
  }
  return target_gradient;
}

template <class Work, class Clock>
void row_backward(const Interpolation& call, const Segment& s, const SegmentGradient& g, int64_t batch) {
  const PickRule<Clock> rule = rule_of<Clock>(s);
  const ClockRow<Clock> times{static_cast<const Clock*>(s.times) + batch * s.times_batch, s.times_sample};
  const int64_t length = row_length(s, batch);
  const double per_target = clock_units_per_target_unit(call, s);
  const bool is_cubic = s.method == InterpolationMethod::kCubic && !s.causal && length > 0;
  if (is_cubic) begin_spline(s, g, times, batch, length);
  Work gradient[kPiece];
  int64_t hint = 0;
  for (int64_t index = 0; index < call.targets_count; ++index) {
    const StreamTarget<Clock> target = target_on<Clock>(call, s, batch, index);
    Target<Work> t{s, g, batch};
    t.picked = pick<Work>(times, target.exists ? length : 0, target.time, rule, hint);
    if (t.picked.kind == PickKind::kAbsent) continue;
    t.bracket = bracket_of(times, length, rule, t.picked);
    const bool mixes = t.picked.kind == PickKind::kMix;
    const bool adds_times = t.bracket.gap != 0 && (g.times != nullptr || g.targets != nullptr);
    const bool is_curve = weighs(s.method) && (mixes || adds_times);
    if (is_curve) {
      t.curve = curve_around(s.method, times, length, t.bracket);
      set_weights(s.method, t.curve);
    }
    for (int64_t first = 0; first < s.features; first += kPiece) {
      const int64_t n = s.features - first < kPiece ? s.features - first : kPiece;
      load_piece(s.out_dtype, s.out, batch * s.out_batch + index * s.out_target + first * s.out_feature, s.out_feature,
                 n, gradient);
      if (s.scaled) {
        for (int64_t d = 0; d < n; ++d) {
          gradient[d] = share_of(number_of<Work>(s.scale, s.scale_per_feature, first + d), gradient[d]);
        }
      }
      if (!mixes && g.values != nullptr) {
        add_share(Work(1), gradient, n, t.sums(t.picked.left, first), g.values_feature);
      }
      if (!mixes && !adds_times) continue;
      const bool adds_values = mixes && g.values != nullptr;
      with_method(s.method, [&](auto method) {
        using Method = decltype(method);
        if constexpr (Method::kSlopes) {
          cubic_piece(t, gradient, first, n, mixes, adds_times);
        } else if constexpr (Method::kWeighs) {
          curve_piece(t, gradient, first, n, adds_values, adds_times);
        } else if constexpr (Method::kFeatures == 4) {
          rotation_piece(t, gradient, first, n, adds_values, adds_times);
        } else {
          pair_piece<Method>(t, gradient, first, n, adds_values, adds_times);
        }
      });
    }
    if (!adds_times) continue;
    const double target_gradient = add_times_gradient(t, is_curve);
    if (g.targets != nullptr) g.targets[batch * call.targets_count + index] += target_gradient * per_target;
  }
  if (is_cubic) sweep_features_backward<Work>(s, g, batch, length);
  if (is_cubic && g.times != nullptr) end_spline(s, g, times, batch, length);
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
