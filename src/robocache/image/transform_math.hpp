// Rules 41, 42 and 46 for one frame and one pixel. Both backends share them and give the same bits.
//
// Geometry uses integers: draws choose whole pixels, and the weights of an antialiased resize are integers. So a
// resized pixel is the exact weighted mean, rounded once, and no result depends on the order of a sum.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "robocache/core/host_device.hpp"
#include "robocache/core/mix_bits.hpp"
#include "robocache/image/transform_params.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache {

// ---- Draws: a hash of the sample, the camera and the purpose ----

enum class DrawnFor : uint64_t {
  kCropScale = 1,
  kScaledRow,
  kScaledColumn,
  kRow,
  kColumn,
  kBrightness,
  kContrast,
  kSaturation,
  kHue,
  kFlip,
  kFlipColumns,
  kRotation,
  kBlur,
  kErase,
  kEraseScale,
  kEraseRatio,
  kErasedRow,
  kErasedColumn,
};

struct FrameDraws {
  uint64_t state;

  ROBOCACHE_HD uint64_t bits(DrawnFor purpose) const {
    return mix_bits(state + static_cast<uint64_t>(purpose) * 0x9e3779b97f4a7c15u);
  }
  // Returns a number, uniform in [low, high].
  ROBOCACHE_HD double number(DrawnFor purpose, const ImageRange& range) const {
    const double part = static_cast<double>(bits(purpose) >> 11) * 0x1p-53;
    return range.low + (range.high - range.low) * part;
  }
  // Returns one of 0, ..., most, all equally likely.
  ROBOCACHE_HD int32_t integer(DrawnFor purpose, int32_t most) const {
    return static_cast<int32_t>((bits(purpose) >> 32) * (static_cast<uint64_t>(most) + 1) >> 32);
  }
};

ROBOCACHE_HD FrameDraws hashed_draws(const ImageDraw& draw, uint64_t key, uint64_t step) {
  uint64_t state = 0;
  const uint64_t parts[] = {draw.seed, draw.epoch, static_cast<uint64_t>(draw.sample), key, step};
  for (const uint64_t part : parts) state = mix_bits((state ^ part) + 0x9e3779b97f4a7c15u);
  return {state};
}

ROBOCACHE_HD FrameDraws frame_draws(const TransformParams& p, const ImageDraw& draw, int64_t step) {
  return hashed_draws(draw, p.key, p.per_frame ? static_cast<uint64_t>(step) + 1 : 0);
}

// ---- Geometry: the source of an output pixel ----

// Returns the nearest integer, ties to even, for magnitudes up to 2^51.
ROBOCACHE_HD double whole_nearest(double x) { return (x + 0x1.8p52) - 0x1.8p52; }

// The plan of rows or of columns. Pixels [from_first, from_first + from) of the frame are resized to `to` pixels. The
// first of these is pixel to_first of the resized frame. Output pixel i is pixel i + first of the resized frame,
// clamped to its edges.
struct AxisPlan {
  int32_t from_first, from, to, to_first, sized, first;
  int32_t from_terms, to_terms;  // from : to in lowest terms
};

// Returns the index of an output pixel among the `to` pixels, or -1 for black.
ROBOCACHE_HD int32_t resized_at(const AxisPlan& axis, int32_t i) {
  int32_t resized = i + axis.first;
  resized = resized < 0 ? 0 : resized < axis.sized ? resized : axis.sized - 1;
  resized -= axis.to_first;
  return resized >= 0 && resized < axis.to ? resized : -1;
}

struct FramePlan {
  AxisPlan rows, columns;
  float brightness, contrast, saturation;
  float hue;  // in sixths of a turn
};

ROBOCACHE_HD void set_lowest_terms(AxisPlan& axis) {
  int32_t a = axis.from;
  int32_t b = axis.to;
  while (b != 0) {
    const int32_t remainder = a % b;
    a = b;
    b = remainder;
  }
  axis.from_terms = axis.from / a;
  axis.to_terms = axis.to / a;
}

// Returns floor(from * to_other / from_other), at least 1: a side that keeps the frame's proportions.
ROBOCACHE_HD int32_t in_proportion(int32_t from, int32_t to_other, int32_t from_other) {
  const auto side = static_cast<int32_t>(static_cast<int64_t>(from) * to_other / from_other);
  return side > 0 ? side : 1;
}

ROBOCACHE_HD FramePlan frame_plan(const TransformParams& p, const ImageDraw& draw, int64_t step) {
  const FrameDraws draws = frame_draws(p, draw, step);
  FramePlan plan{};
  AxisPlan* const axes[] = {&plan.rows, &plan.columns};
  const double side = p.crop_scales ? std::sqrt(draws.number(DrawnFor::kCropScale, p.crop_scale)) : 1;
  for (int i = 0; i < 2; ++i) {
    AxisPlan& axis = *axes[i];
    axis.from = p.frame[i];
    if (p.crop_scales) {
      const double from = whole_nearest(side * p.frame[i]);
      axis.from = from < 1 ? 1 : static_cast<int32_t>(from);
      const int32_t spare = p.frame[i] - axis.from;
      axis.from_first =
          p.crops_at_random ? draws.integer(i == 0 ? DrawnFor::kScaledRow : DrawnFor::kScaledColumn, spare) : spare / 2;
    }
    axis.to = p.sized[i];
    axis.sized = p.sized[i];
  }
  AxisPlan& y = plan.rows;
  AxisPlan& x = plan.columns;
  if (p.fit != ImageFit::kStretch) {
    // A frame that is wider than `sized` fits in by its width, and covers it by its height.
    const bool is_wider = static_cast<int64_t>(x.from) * y.to >= static_cast<int64_t>(y.from) * x.to;
    if (is_wider == (p.fit == ImageFit::kPad)) {
      y.to = in_proportion(y.from, x.to, x.from);
    } else {
      x.to = in_proportion(x.from, y.to, y.from);
    }
  }
  for (int i = 0; i < 2; ++i) {
    AxisPlan& axis = *axes[i];
    // A fit by cropping removes half of the excess at each end.
    axis.to_first = axis.to <= axis.sized ? (axis.sized - axis.to) / 2 : -((axis.to - axis.sized) / 2);
    const DrawnFor drawn = i == 0 ? DrawnFor::kRow : DrawnFor::kColumn;
    if (p.shift > 0) {
      axis.first = draws.integer(drawn, 2 * p.shift) - p.shift;
    } else {
      const int32_t spare = p.sized[i] - p.out[i];
      axis.first = p.crops_at_random ? draws.integer(drawn, spare) : spare / 2;
    }
    set_lowest_terms(axis);
  }
  if (p.jitters) {
    plan.brightness = static_cast<float>(draws.number(DrawnFor::kBrightness, p.brightness));
    plan.contrast = static_cast<float>(draws.number(DrawnFor::kContrast, p.contrast));
    plan.saturation = static_cast<float>(draws.number(DrawnFor::kSaturation, p.saturation));
    plan.hue = static_cast<float>(6 * draws.number(DrawnFor::kHue, p.hue));
  }
  return plan;
}

// Whether all output pixels are pixels of the frame.
ROBOCACHE_HD bool only_moves(const FramePlan& plan) {
  return plan.rows.from == plan.rows.to && plan.columns.from == plan.columns.to && plan.rows.to >= plan.rows.sized &&
         plan.columns.to >= plan.columns.sized;
}

// ---- Resizing: half-pixel centres ----
//
// With a / b = from / to in lowest terms, pixel r of the result is centred at (2 r + 1) a / (2 b) and pixel j of the
// frame at (2 j + 1) / 2. Times 2 b their distance is the integer (2 j + 1) b - (2 r + 1) a. A filter gives the pixels
// that have weights for one pixel of the result. All weights are integers, so their sums are exact.

// Pixels [begin, end) of the frame's part have weights for one pixel of the result.
struct Taps {
  int32_t begin, end;
  int32_t centre;  // (2 r + 1) a; for an Area its begin, r a
};

// Returns the greatest distance of a filter that reaches `reach` pixels on each side, in pixels of the coarser grid.
ROBOCACHE_HD int32_t tap_reach(const AxisPlan& axis, int32_t reach) {
  return 2 * reach * (axis.from_terms > axis.to_terms ? axis.from_terms : axis.to_terms);
}

// Returns the distance of pixel j from the centre, times 2 b.
ROBOCACHE_HD int32_t from_centre(const AxisPlan& axis, const Taps& taps, int32_t j) {
  const int32_t distance = (2 * j + 1) * axis.to_terms - taps.centre;
  return distance < 0 ? -distance : distance;
}

ROBOCACHE_HD Taps taps_within(const AxisPlan& axis, int32_t r, int32_t reach) {
  const int32_t b = axis.to_terms;
  Taps taps;
  taps.centre = (2 * r + 1) * axis.from_terms;
  // The first j with (2 j + 1) b > centre - reach, and the first with (2 j + 1) b >= centre + reach.
  const int32_t low = taps.centre - reach - b;
  const int32_t high = taps.centre + reach - b;
  taps.begin = low < 0 ? 0 : low / (2 * b) + 1;
  taps.end = (high + 2 * b - 1) / (2 * b);
  if (taps.end > axis.from) taps.end = axis.from;
  return taps;
}

// Returns the frame's pixel that contains the centre of the result's pixel r.
ROBOCACHE_HD int32_t nearest_tap(const AxisPlan& axis, int32_t r) {
  return (2 * r + 1) * axis.from_terms / (2 * axis.to_terms);
}

// A triangle that falls to 0 at max(a / b, 1).
struct Bilinear {
  static constexpr bool kOvershoots = false;
  ROBOCACHE_HD static Taps taps(const AxisPlan& axis, int32_t r) { return taps_within(axis, r, tap_reach(axis, 1)); }
  ROBOCACHE_HD static int32_t weight(const AxisPlan& axis, const Taps& taps, int32_t j) {
    return tap_reach(axis, 1) - from_centre(axis, taps, j);
  }
};

// Keys' cubic with a = -1/2, times 2^15 and rounded. It is 0 from 2 max(a / b, 1) on.
struct Bicubic {
  static constexpr bool kOvershoots = true;
  ROBOCACHE_HD static Taps taps(const AxisPlan& axis, int32_t r) { return taps_within(axis, r, tap_reach(axis, 2)); }
  ROBOCACHE_HD static int32_t weight(const AxisPlan& axis, const Taps& taps, int32_t j) {
    // All numbers here are whole and below 2^53, so float64 holds them exactly.
    const double unit = tap_reach(axis, 1);
    const double x = from_centre(axis, taps, j);
    const double twice = x < unit ? (3 * x - 5 * unit) * x * x + 2 * (unit * unit * unit)
                                  : ((5 * unit - x) * x - 8 * (unit * unit)) * x + 4 * (unit * unit * unit);
    return static_cast<int32_t>(whole_nearest(twice * (0x1p14 / (unit * unit * unit))));
  }
};

// The mean over the area of the result's pixel. A weight is b times the length that the two pixels share.
struct Area {
  static constexpr bool kOvershoots = false;
  ROBOCACHE_HD static Taps taps(const AxisPlan& axis, int32_t r) {
    const int32_t b = axis.to_terms;
    const int32_t begin = r * axis.from_terms;
    return {begin / b, (begin + axis.from_terms + b - 1) / b, begin};
  }
  ROBOCACHE_HD static int32_t weight(const AxisPlan& axis, const Taps& taps, int32_t j) {
    const int32_t begin = taps.centre;
    const int32_t end = begin + axis.from_terms;
    const int32_t first = j * axis.to_terms;
    const int32_t last = first + axis.to_terms;
    return (end < last ? end : last) - (begin > first ? begin : first);
  }
};

struct Nearest {
  static constexpr bool kOvershoots = false;
  ROBOCACHE_HD static Taps taps(const AxisPlan& axis, int32_t r) {
    const int32_t j = nearest_tap(axis, r);
    return {j, j + 1, 0};
  }
  ROBOCACHE_HD static int32_t weight(const AxisPlan&, const Taps&, int32_t) { return 1; }
};

// Calls call(Filter{}).
template <class Call>
void with_filter(ImageInterpolation interpolation, const Call& call) {
  switch (interpolation) {
    case ImageInterpolation::kBilinear:
      return call(Bilinear{});
    case ImageInterpolation::kBicubic:
      return call(Bicubic{});
    case ImageInterpolation::kArea:
      return call(Area{});
    case ImageInterpolation::kNearest:
      return call(Nearest{});
  }
}

// Returns sum / weight, rounded, ties to even; with kClamps limited to [0, 255]. It is exact: weights are
// below 2^43, so float64 distinguishes every quotient from a tie.
template <bool kClamps = false>
ROBOCACHE_HD uint8_t rounded_mean(double sum, double weight) {
  double mean = sum / weight;
  if constexpr (kClamps) {
    mean = mean < 0 ? 0 : mean;
    mean = mean > 255 ? 255 : mean;
  }
  return static_cast<uint8_t>(static_cast<int32_t>(whole_nearest(mean)));
}

// ---- Colour: each step maps bytes to bytes, in float32 without fma, rounded to the nearest, ties to even ----

ROBOCACHE_HD uint8_t to_byte(float x) {
  x = x < 0 ? 0 : x;
  x = x > 255 ? 255 : x;
  return static_cast<uint8_t>(static_cast<int32_t>((x + 0x1.8p23f) - 0x1.8p23f));
}

// The luma of ITU-R BT.601, times 2^16.
ROBOCACHE_HD int32_t luma(const uint8_t* pixel, int channels) {
  return channels == 1 ? pixel[0] << 16 : 19595 * pixel[0] + 38470 * pixel[1] + 7471 * pixel[2];
}

// The mean luma of all pixels, from the sum of luma().
ROBOCACHE_HD float mean_luma(int64_t sum, int64_t pixels) {
  return static_cast<float>(static_cast<double>(sum) / (static_cast<double>(pixels) * 0x1p16));
}

ROBOCACHE_HD uint8_t brightened(uint8_t x, float factor) { return to_byte(factor * static_cast<float>(x)); }

// Blends a byte with a centre: for contrast the frame's mean, for saturation the pixel's luma.
ROBOCACHE_HD uint8_t away_from(float centre, uint8_t x, float factor) {
  return to_byte(factor * (static_cast<float>(x) - centre) + centre);
}

ROBOCACHE_HD void saturate(uint8_t* pixel, float factor) {
  const float grey = static_cast<float>(luma(pixel, 3)) * 0x1p-16f;
  for (int c = 0; c < 3; ++c) pixel[c] = away_from(grey, pixel[c], factor);
}

// Turns the hue by this many sixths of the circle. Value and saturation of HSV stay.
ROBOCACHE_HD void turn_hue(uint8_t* pixel, float sixths) {
  const auto red = static_cast<float>(pixel[0]);
  const auto green = static_cast<float>(pixel[1]);
  const auto blue = static_cast<float>(pixel[2]);
  const float rg_high = red > green ? red : green;
  const float rg_low = red > green ? green : red;
  const float high = rg_high > blue ? rg_high : blue;
  const float low = rg_low < blue ? rg_low : blue;
  const float chroma = high - low;
  const float divisor = chroma > 0 ? chroma : 1;
  float hue = high == red     ? (green - blue) / divisor
              : high == green ? (blue - red) / divisor + 2
                              : (red - green) / divisor + 4;
  hue += sixths;
  hue = hue < 0 ? hue + 6 : hue;
  hue = hue >= 6 ? hue - 6 : hue;
  for (int c = 0; c < 3; ++c) {
    // A channel is high - chroma * min(angle, 4 - angle), the last factor clamped to [0, 1].
    float angle = hue + static_cast<float>(5 - 2 * c);
    angle = angle >= 6 ? angle - 6 : angle;
    const float towards = angle < 4 - angle ? angle : 4 - angle;
    const float part = towards < 0 ? 0 : towards > 1 ? 1 : towards;
    pixel[c] = to_byte(high - chroma * part);
  }
}

// ---- Values ----

// Returns the output value of a byte of channel c.
template <class Out>
ROBOCACHE_HD Out normalised(const TransformParams& p, uint8_t x, int c) {
  if constexpr (std::is_same_v<Out, uint8_t>) {
    return x;
  } else {
    return rounded_once<Out>(multiply_add(static_cast<float>(x), p.scale[c], p.offset[c]));
  }
}

// Returns the offset in the frame of the pixel that gives a resized pixel of depth.
ROBOCACHE_HD int64_t depth_offset(const TransformParams& p, const FramePlan& plan, int32_t row, int32_t column) {
  const int64_t y = plan.rows.from_first + nearest_tap(plan.rows, row);
  return y * p.frame[1] + plan.columns.from_first + nearest_tap(plan.columns, column);
}

// Returns a pixel of depth in metres.
template <class Out>
ROBOCACHE_HD Out depth_at(const TransformParams& p, const void* frame, int64_t offset) {
  if (p.dtype == DType::kUInt16) {
    return rounded_once<Out>(static_cast<double>(static_cast<const uint16_t*>(frame)[offset]) * p.unit_m);
  }
  return rounded_once<Out>(static_cast<const float*>(frame)[offset]);
}

}  // namespace robocache
