// Flips, rotation, blur and erasing (rule 41 of docs/rules.md), for one frame and one pixel. Both backends share them
// and give the same bits: positions and weights are integers, and sines and powers of e are computed from sums and
// products alone.
#pragma once

#include <cmath>
#include <cstdint>

#include "robocache/core/host_device.hpp"
#include "robocache/image/transform_math.hpp"
#include "robocache/image/transform_params.hpp"

namespace robocache {

// ---- Flips and rotation ----

// Whether the order of a sample's rows (axis 0) or columns (axis 1) is reversed. All cameras and frames of a sample
// share the draw, because a flip mirrors the world.
ROBOCACHE_HD bool is_flipped(const ImageDraw& draw, int axis, double probability) {
  if (!(probability > 0)) return false;
  const DrawnFor purpose = axis == 0 ? DrawnFor::kFlip : DrawnFor::kFlipColumns;
  return hashed_draws(draw, 0, 0).number(purpose, {0, 1}) < probability;
}

// Computes the sine and the cosine of an angle. They are exact at quarter turns.
ROBOCACHE_HD void sine_and_cosine(double degrees, double& sine, double& cosine) {
  const double quarters = whole_nearest(degrees / 90);
  const double x = (degrees - 90 * quarters) * 0x1.1df46a2529d39p-6;  // pi / 180
  const double square = x * x;
  double s = 0;
  double c = 0;
  for (int n = 18; n > 0; n -= 2) {  // Taylor's series; the rest of it is below 2^-60
    s = (1 - s) * square / (n * (n + 1));
    c = (1 - c) * square / (n * (n - 1));
  }
  s = x * (1 - s);
  c = 1 - c;
  const int turn = (static_cast<int>(quarters) + 4) % 4;
  sine = turn == 0 ? s : turn == 1 ? c : turn == 2 ? -s : -c;
  cosine = turn == 0 ? c : turn == 1 ? -s : turn == 2 ? -c : s;
}

struct Warp {
  bool flipped[2];  // rows, columns
  bool is_rotated;
  int64_t sine, cosine;  // of a counter-clockwise rotation about the centre, times 2^30
};

ROBOCACHE_HD Warp frame_warp(const TransformParams& p, const ImageDraw& draw, int64_t step) {
  Warp warp{};
  for (int i = 0; i < 2; ++i) warp.flipped[i] = is_flipped(draw, i, p.flip[i]);
  warp.is_rotated = p.rotates;
  if (!p.rotates) return warp;
  double sine = 0;
  double cosine = 0;
  sine_and_cosine(frame_draws(p, draw, step).number(DrawnFor::kRotation, p.rotation), sine, cosine);
  warp.sine = static_cast<int64_t>(whole_nearest(sine * 0x1p30));
  warp.cosine = static_cast<int64_t>(whole_nearest(cosine * 0x1p30));
  return warp;
}

// A position in the frame before the rotation, times 2^31.
struct WarpedFrom {
  int64_t row, column;
};

ROBOCACHE_HD WarpedFrom warped_from(const TransformParams& p, const Warp& warp, int32_t y, int32_t x) {
  const int64_t last_row = p.out[0] - 1;
  const int64_t last_column = p.out[1] - 1;
  const int64_t down = 2 * int64_t{y} - last_row;  // from the centre, in half pixels
  const int64_t right = 2 * int64_t{x} - last_column;
  return {warp.sine * right + warp.cosine * down + (last_row << 30),
          warp.cosine * right - warp.sine * down + (last_column << 30)};
}

// Returns the offset in pixels before flips and rotation, or -1 outside the frame.
ROBOCACHE_HD int64_t unwarped_offset(const TransformParams& p, const Warp& warp, int64_t row, int64_t column) {
  if (row < 0 || row >= p.out[0] || column < 0 || column >= p.out[1]) return -1;
  if (warp.flipped[0]) row = p.out[0] - 1 - row;
  if (warp.flipped[1]) column = p.out[1] - 1 - column;
  return row * p.out[1] + column;
}

// Returns the same offset for the pixel that contains the position from which (y, x) comes.
ROBOCACHE_HD int64_t nearest_unwarped_offset(const TransformParams& p, const Warp& warp, int32_t y, int32_t x) {
  if (!warp.is_rotated) return unwarped_offset(p, warp, y, x);
  const WarpedFrom from = warped_from(p, warp, y, x);
  constexpr int64_t kHalf = int64_t{1} << 30;
  return unwarped_offset(p, warp, (from.row + kHalf) >> 31, (from.column + kHalf) >> 31);
}

// Computes pixel (y, x) of the warped frame from `image` [H, W, C]: bilinear, with positions in steps of 2^-16 of a
// pixel, and black outside the frame.
ROBOCACHE_HD void warped_pixel(const TransformParams& p, const Warp& warp, const uint8_t* image, int32_t y, int32_t x,
                               uint8_t* pixel) {
  if (!warp.is_rotated || p.interpolation == ImageInterpolation::kNearest) {
    const int64_t offset = nearest_unwarped_offset(p, warp, y, x);
    for (int c = 0; c < p.channels; ++c) pixel[c] = offset < 0 ? uint8_t{0} : image[offset * p.channels + c];
    return;
  }
  const WarpedFrom from = warped_from(p, warp, y, x);
  const int64_t weights[2][2] = {{65536 - (from.row >> 15 & 0xffff), from.row >> 15 & 0xffff},
                                 {65536 - (from.column >> 15 & 0xffff), from.column >> 15 & 0xffff}};
  int64_t sums[3] = {};
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < 2; ++k) {
      const int64_t offset = unwarped_offset(p, warp, (from.row >> 31) + i, (from.column >> 31) + k);
      if (offset < 0) continue;
      for (int c = 0; c < p.channels; ++c) sums[c] += weights[0][i] * weights[1][k] * image[offset * p.channels + c];
    }
  }
  for (int c = 0; c < p.channels; ++c) pixel[c] = rounded_mean(static_cast<double>(sums[c]), 0x1p32);
}

// Adapts a camera's 3x3 row-major matrix from the input frame to the output frame. Pixel centres are at whole numbers,
// edges are half a pixel away, and edges map to edges. A flipped frame shows the mirrored world, whose x or y is
// reversed too: focal lengths keep their signs.
ROBOCACHE_HD void planned_intrinsics(const TransformParams& p, const FramePlan& plan, const Warp& warp,
                                     const double* in, double* out) {
  const AxisPlan* const axes[] = {&plan.columns, &plan.rows};  // columns are x, the matrix's first row
  for (int row = 0; row < 2; ++row) {
    const AxisPlan& axis = *axes[row];
    const double scale = static_cast<double>(axis.to) / axis.from;
    const double shift = (0.5 - axis.from_first) * scale - 0.5 + axis.to_first - axis.first;
    for (int i = 0; i < 3; ++i) out[3 * row + i] = scale * in[3 * row + i] + shift * in[6 + i];
  }
  for (int i = 6; i < 9; ++i) out[i] = in[i];
  for (int axis = 0; axis < 2; ++axis) {
    if (!warp.flipped[axis]) continue;
    double* const row = out + (axis == 0 ? 3 : 0);
    for (int i = 0; i < 3; ++i) row[i] = (p.out[axis] - 1) * out[6 + i] - row[i];
    for (int i = 0; i < 3; ++i) out[3 * i + 1 - axis] = 0 - out[3 * i + 1 - axis];
  }
  if (!warp.is_rotated) return;
  const double sine = static_cast<double>(warp.sine) * 0x1p-30;
  const double cosine = static_cast<double>(warp.cosine) * 0x1p-30;
  const double right = 0.5 * (p.out[1] - 1);  // the centre
  const double down = 0.5 * (p.out[0] - 1);
  for (int i = 0; i < 3; ++i) {
    const double x = out[i] - right * out[6 + i];
    const double y = out[3 + i] - down * out[6 + i];
    out[i] = cosine * x + sine * y + right * out[6 + i];
    out[3 + i] = cosine * y - sine * x + down * out[6 + i];
  }
}

// Returns pixel (y, x) of warped depth in metres, 0 outside the frame.
template <class Out>
ROBOCACHE_HD Out warped_depth(const TransformParams& p, const FramePlan& plan, const Warp& warp, const void* frame,
                              int32_t y, int32_t x) {
  const int64_t offset = nearest_unwarped_offset(p, warp, y, x);
  const int32_t row = offset < 0 ? -1 : resized_at(plan.rows, static_cast<int32_t>(offset / p.out[1]));
  const int32_t column = offset < 0 ? -1 : resized_at(plan.columns, static_cast<int32_t>(offset % p.out[1]));
  return row < 0 || column < 0 ? Out{} : depth_at<Out>(p, frame, depth_offset(p, plan, row, column));
}

// ---- Blur ----

inline constexpr int32_t kMostBlurReach = 31;

// Returns e to the power of x.
ROBOCACHE_HD double exponential(double x) {
  if (x < -700) return 0;
  const double halvings = whole_nearest(x * 0x1.71547652b82fep0);  // x / log(2)
  const double remainder = x - halvings * 0x1.62e42fefa39efp-1;
  double sum = 1;
  for (int n = 16; n > 0; --n) sum = 1 + sum * remainder / n;  // Taylor's series
  return std::ldexp(sum, static_cast<int>(halvings));
}

// A Gaussian times 2^15, rounded.
struct BlurWeights {
  int32_t by_distance[kMostBlurReach + 1];
  int32_t sum;  // of all weights, on both sides
};

ROBOCACHE_HD BlurWeights blur_weights(const TransformParams& p, const ImageDraw& draw, int64_t step) {
  BlurWeights weights{};
  if (p.blur_reach == 0) return weights;
  const double sigma = frame_draws(p, draw, step).number(DrawnFor::kBlur, p.blur);
  for (int32_t i = 0; i <= p.blur_reach; ++i) {
    const double x = i / sigma;
    weights.by_distance[i] = static_cast<int32_t>(whole_nearest(0x1p15 * exponential(-0.5 * (x * x))));
    weights.sum += (i == 0 ? 1 : 2) * weights.by_distance[i];
  }
  return weights;
}

// Mirrors an index outside [0, count): i pixels outside an end become i pixels inside it.
ROBOCACHE_HD int32_t reflected(int32_t i, int32_t count) { return i < 0 ? -i : i < count ? i : 2 * count - 2 - i; }

// Returns a blurred value from the weighted sum of its neighbours, a whole number below 2^53.
ROBOCACHE_HD uint8_t blurred(const BlurWeights& weights, double sum) {
  return rounded_mean(sum, static_cast<double>(weights.sum) * weights.sum);
}

// ---- Erasing ----

struct ErasedPart {
  int32_t first[2], size[2];  // in rows and columns; a size of 0 erases nothing
};

// Draws up to ten rectangles, as torchvision's RandomErasing, and returns the first that is smaller than the frame.
ROBOCACHE_HD ErasedPart erased_part(const TransformParams& p, const ImageDraw& draw, int64_t step) {
  const FrameDraws draws = frame_draws(p, draw, step);
  if (!(p.erase > 0) || draws.number(DrawnFor::kErase, {0, 1}) >= p.erase) return {};
  for (uint64_t attempt = 0; attempt < 10; ++attempt) {
    const FrameDraws attempt_draws{mix_bits(draws.state + attempt)};
    const double area = attempt_draws.number(DrawnFor::kEraseScale, p.erase_scale) * p.out[0] * p.out[1];
    const double ratio = exponential(attempt_draws.number(DrawnFor::kEraseRatio, p.erase_log_ratio));
    const double rows = whole_nearest(std::sqrt(area * ratio));
    const double columns = whole_nearest(std::sqrt(area / ratio));
    if (rows >= p.out[0] || columns >= p.out[1]) continue;
    ErasedPart part{};
    part.size[0] = static_cast<int32_t>(rows);
    part.size[1] = static_cast<int32_t>(columns);
    part.first[0] = attempt_draws.integer(DrawnFor::kErasedRow, p.out[0] - part.size[0]);
    part.first[1] = attempt_draws.integer(DrawnFor::kErasedColumn, p.out[1] - part.size[1]);
    return part;
  }
  return {};
}

// Returns the offset of channel c of a pixel in an output frame.
ROBOCACHE_HD int64_t out_offset(const TransformParams& p, int32_t y, int32_t x, int c) {
  const int64_t pixel = int64_t{y} * p.out[1] + x;
  return p.layout == ImageLayout::kChw ? c * (int64_t{p.out[0]} * p.out[1]) + pixel : pixel * p.channels + c;
}

// The changes of a frame after it is cropped and resized.
struct Augments {
  Warp warp;
  BlurWeights blur;
  ErasedPart erased;
};

ROBOCACHE_HD Augments frame_augments(const TransformParams& p, const ImageDraw& draw, int64_t step) {
  return {frame_warp(p, draw, step), blur_weights(p, draw, step), erased_part(p, draw, step)};
}

}  // namespace robocache
