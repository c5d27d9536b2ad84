// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <cstdint>
#include <cstring>
#include <utility>

#include "robocache/core/with_type.hpp"
#include "robocache/image/transform_cpu.hpp"
#include "robocache/image/transform_math.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

// Rows of pixels [W, C], `stride` bytes apart.
struct Rows {
  const uint8_t* first;
  int64_t stride;
};

// ---- Geometry -------------------------------------------------------------------------------------------------------

// Whether all output pixels lie within the resized frame, so that none repeats its edge.
bool lies_within(const AxisPlan& axis, int32_t out) { return axis.first >= 0 && axis.first + out <= axis.sized; }

const uint8_t* pixel_at(const TransformParams& p, const void* frame, int64_t row, int64_t column) {
  return static_cast<const uint8_t*>(frame) + (row * p.frame[1] + column) * p.channels;
}

Rows rows_in_frame(const TransformParams& p, const FramePlan& plan, const void* frame) {
  return {pixel_at(p, frame, plan.rows.from_first + resized_at(plan.rows, 0),
                   plan.columns.from_first + resized_at(plan.columns, 0)),
          int64_t{p.frame[1]} * p.channels};
}

// Makes the frame of a plan that only moves pixels.
void move(const TransformParams& p, const FramePlan& plan, const void* frame, uint8_t* bytes) {
  const AxisPlan& columns = plan.columns;
  const int32_t out = p.out[1];
  const int32_t begin = columns.first < 0 ? -columns.first : 0;
  const int32_t end = columns.sized - columns.first < out ? columns.sized - columns.first : out;
  const int64_t channels = p.channels;
  for (int32_t y = 0; y < p.out[0]; ++y, bytes += out * channels) {
    const uint8_t* const from = pixel_at(p, frame, plan.rows.from_first + resized_at(plan.rows, y), columns.from_first);
    const auto copy_pixels = [&](int32_t x, int32_t count) {
      std::memcpy(bytes + x * channels, from + resized_at(columns, x) * channels,
                  static_cast<size_t>(count * channels));
    };
    for (int32_t x = 0; x < begin && x < out; ++x) copy_pixels(x, 1);
    if (begin < end) copy_pixels(begin, end - begin);
    for (int32_t x = end > 0 ? end : 0; x < out; ++x) copy_pixels(x, 1);
  }
}

// The sums of a resize are integers below 2^53. float64 holds them exactly, so vector code may add them in any order.
struct ResizeScratch {
  int32_t* sums;     // [columns of the frame, C]: the weighted sum of rows of the frame
  double* wide;      // the same sums as float64
  double* means;     // [W, C]: weighted sums over the columns of `wide`
  double* divisors;  // [W, C]: the sums of the columns' weights
  Taps* taps;        // [W]
  double* weights;   // the weights of all columns' taps, column after column
};

ResizeScratch resize_scratch(const TransformParams& p, char* scratch) {
  const TransformScratch offsets = transform_scratch(p);
  return {reinterpret_cast<int32_t*>(scratch + offsets.sums), reinterpret_cast<double*>(scratch + offsets.wide),
          reinterpret_cast<double*>(scratch + offsets.means), reinterpret_cast<double*>(scratch + offsets.divisors),
          reinterpret_cast<Taps*>(scratch + offsets.taps),    reinterpret_cast<double*>(scratch + offsets.weights)};
}

template <class Filter>
void weigh_columns(const TransformParams& p, const AxisPlan& columns, const ResizeScratch& scratch) {
  double* weights = scratch.weights;
  for (int32_t x = 0; x < p.out[1]; ++x) {
    const int32_t r = resized_at(columns, x);
    Taps& taps = scratch.taps[x];
    taps = r < 0 ? Taps{} : Filter::taps(columns, r);
    double sum = r < 0 ? 1 : 0;  // black: sum 0 of weight 1
    for (int32_t j = taps.begin; j < taps.end; ++j) {
      *weights = Filter::weight(columns, taps, j);
      sum += *weights++;
    }
    for (int c = 0; c < p.channels; ++c) scratch.divisors[int64_t{x} * p.channels + c] = sum;
  }
}

// Adds the weighted rows that contribute to row r of the result. Returns the sum of their weights.
template <class Filter>
double add_rows(const TransformParams& p, const FramePlan& plan, const void* frame, int32_t r,
                const ResizeScratch& scratch) {
  const AxisPlan& rows = plan.rows;
  const Taps taps = Filter::taps(rows, r);
  const int64_t n = int64_t{plan.columns.from} * p.channels;
  int64_t weight = 0;
  for (int32_t j = taps.begin; j < taps.end; ++j) {
    const int32_t w = Filter::weight(rows, taps, j);
    const uint8_t* const from = pixel_at(p, frame, rows.from_first + j, plan.columns.from_first);
    if (j == taps.begin) {
      for (int64_t i = 0; i < n; ++i) scratch.sums[i] = w * from[i];
    } else {
      for (int64_t i = 0; i < n; ++i) scratch.sums[i] += w * from[i];
    }
    weight += w;
  }
  for (int64_t i = 0; i < n; ++i) scratch.wide[i] = scratch.sums[i];
  return static_cast<double>(weight);
}

// Three channels are processed as four: the fourth lane belongs to the next pixel, which overwrites it.
void add_columns(const TransformParams& p, const ResizeScratch& scratch) {
  const double* weights = scratch.weights;
  double* means = scratch.means;
  for (int32_t x = 0; x < p.out[1]; ++x, means += p.channels) {
    const Taps taps = scratch.taps[x];
    const int32_t count = taps.end - taps.begin;
    if (p.channels == 1) {
      double sum = 0;
      for (int32_t k = 0; k < count; ++k) sum += weights[k] * scratch.wide[taps.begin + k];
      *means = sum;
    } else {
      using Lanes = double __attribute__((vector_size(32)));
      Lanes sum = {};
      const double* const from = scratch.wide + int64_t{3} * taps.begin;
      for (int32_t k = 0; k < count; ++k) {
        Lanes pixel;
        std::memcpy(&pixel, from + int64_t{3} * k, sizeof pixel);
        sum += weights[k] * pixel;
      }
      std::memcpy(means, &sum, sizeof sum);
    }
    weights += count;
  }
}

template <class Filter>
void resize(const TransformParams& p, const FramePlan& plan, const void* frame, char* memory, uint8_t* bytes) {
  const ResizeScratch scratch = resize_scratch(p, memory);
  weigh_columns<Filter>(p, plan.columns, scratch);
  const int64_t n = int64_t{p.out[1]} * p.channels;
  int32_t last_row = -1;
  for (int32_t y = 0; y < p.out[0]; ++y, bytes += n) {
    const int32_t r = resized_at(plan.rows, y);
    if (r < 0) {
      std::memset(bytes, 0, static_cast<size_t>(n));
      continue;
    }
    if (r == last_row) {
      std::memcpy(bytes, bytes - n, static_cast<size_t>(n));
      continue;
    }
    last_row = r;
    const double weight = add_rows<Filter>(p, plan, frame, r, scratch);
    add_columns(p, scratch);
    for (int64_t i = 0; i < n; ++i)
      bytes[i] = rounded_mean<Filter::kOvershoots>(scratch.means[i], scratch.divisors[i] * weight);
  }
}

// ---- Flips, rotation, blur ------------------------------------------------------------------------------------------

void warp(const TransformParams& p, const Warp& warp, const uint8_t* from, uint8_t* to) {
  const int64_t n = int64_t{p.out[1]} * p.channels;
  for (int32_t y = 0; y < p.out[0]; ++y, to += n) {
    if (warp.is_rotated || warp.flipped[1]) {
      for (int32_t x = 0; x < p.out[1]; ++x) warped_pixel(p, warp, from, y, x, to + int64_t{x} * p.channels);
    } else {
      std::memcpy(to, from + (warp.flipped[0] ? p.out[0] - 1 - y : y) * n, static_cast<size_t>(n));
    }
  }
}

// Sums along rows to `sums`, then along columns. `wide`, in memory that only a resize needs, holds the sums of a
// row.
void blur(const TransformParams& p, const BlurWeights& weights, const uint8_t* from, char* scratch, uint8_t* to) {
  const TransformScratch offsets = transform_scratch(p);
  auto* const row = reinterpret_cast<uint8_t*>(scratch + offsets.row);
  auto* const sums = reinterpret_cast<int32_t*>(scratch + offsets.blurred);
  auto* const wide = reinterpret_cast<double*>(scratch + offsets.means);
  const int32_t reach = p.blur_reach;
  const int64_t channels = p.channels;
  const int64_t n = p.out[1] * channels;
  for (int32_t y = 0; y < p.out[0]; ++y) {
    for (int32_t x = -reach; x < p.out[1] + reach; ++x) {
      std::memcpy(row + (x + reach) * channels, from + y * n + reflected(x, p.out[1]) * channels,
                  static_cast<size_t>(channels));
    }
    const uint8_t* const middle = row + reach * channels;
    int32_t* const sum = sums + y * n;
    for (int64_t i = 0; i < n; ++i) sum[i] = weights.by_distance[0] * middle[i];
    for (int32_t k = 1; k <= reach; ++k) {
      const uint8_t* const before = middle - k * channels;
      const uint8_t* const after = middle + k * channels;
      for (int64_t i = 0; i < n; ++i) sum[i] += weights.by_distance[k] * (before[i] + after[i]);
    }
  }
  for (int32_t y = 0; y < p.out[0]; ++y, to += n) {
    for (int64_t i = 0; i < n; ++i) wide[i] = static_cast<double>(weights.by_distance[0]) * sums[y * n + i];
    for (int32_t k = 1; k <= reach; ++k) {
      const int32_t* const before = sums + reflected(y - k, p.out[0]) * n;
      const int32_t* const after = sums + reflected(y + k, p.out[0]) * n;
      const double weight = weights.by_distance[k];
      for (int64_t i = 0; i < n; ++i) wide[i] += weight * (static_cast<double>(before[i]) + after[i]);
    }
    for (int64_t i = 0; i < n; ++i) to[i] = blurred(weights, wide[i]);
  }
}

// ---- Colour ---------------------------------------------------------------------------------------------------------

template <class Value>
void replace(uint8_t* bytes, int64_t n, const Value& value) {
  uint8_t table[256];
  for (int i = 0; i < 256; ++i) table[i] = value(static_cast<uint8_t>(i));
  for (int64_t i = 0; i < n; ++i) bytes[i] = table[bytes[i]];
}

// The number of pixels that are processed at once, with the channels apart: enough for the compiler to make vector
// code.
constexpr int64_t kTogether = 256;
using Channels = uint8_t[3][kTogether];

void separate(const uint8_t* pixels, int64_t count, Channels channels) {
  for (int64_t i = 0; i < count; ++i) {
    for (int c = 0; c < 3; ++c) channels[c][i] = pixels[3 * i + c];
  }
}

// Options are template arguments, so that the loop has no branches.
template <bool kSaturates, bool kHues>
void recolour(const FramePlan& plan, uint8_t* bytes, int64_t pixels) {
  Channels colours = {};
  for (int64_t first = 0; first < pixels; first += kTogether, bytes += 3 * kTogether) {
    const int64_t count = pixels - first < kTogether ? pixels - first : kTogether;
    separate(bytes, count, colours);
    for (int64_t i = 0; i < kTogether; ++i) {
      uint8_t pixel[3] = {colours[0][i], colours[1][i], colours[2][i]};
      if constexpr (kSaturates) saturate(pixel, plan.saturation);
      if constexpr (kHues) turn_hue(pixel, plan.hue);
      for (int c = 0; c < 3; ++c) colours[c][i] = pixel[c];
    }
    for (int64_t i = 0; i < count; ++i) {
      for (int c = 0; c < 3; ++c) bytes[3 * i + c] = colours[c][i];
    }
  }
}

void jitter(const TransformParams& p, const FramePlan& plan, uint8_t* bytes) {
  const int64_t pixels = int64_t{p.out[0]} * p.out[1];
  const int64_t n = pixels * p.channels;
  if (p.brightens) replace(bytes, n, [&](uint8_t x) { return brightened(x, plan.brightness); });
  if (p.contrasts) {
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i += p.channels) sum += luma(bytes + i, p.channels);
    const float mean = mean_luma(sum, pixels);
    replace(bytes, n, [&](uint8_t x) { return away_from(mean, x, plan.contrast); });
  }
  if (p.saturates && p.hues) {
    recolour<true, true>(plan, bytes, pixels);
  } else if (p.saturates) {
    recolour<true, false>(plan, bytes, pixels);
  } else if (p.hues) {
    recolour<false, true>(plan, bytes, pixels);
  }
}

// ---- Values ---------------------------------------------------------------------------------------------------------

template <class Out>
void write_planes(const TransformParams& p, Rows rows, Out* out) {
  const int64_t width = p.out[1];
  const int64_t plane = width * p.out[0];
  for (int32_t y = 0; y < p.out[0]; ++y, rows.first += rows.stride, out += width) {
    if (p.channels == 1) {
      for (int64_t x = 0; x < width; ++x) out[x] = normalised<Out>(p, rows.first[x], 0);
      continue;
    }
    for (int64_t first = 0; first < width; first += kTogether) {
      const int64_t count = width - first < kTogether ? width - first : kTogether;
      Channels channels;
      separate(rows.first + 3 * first, count, channels);
      for (int c = 0; c < 3; ++c) {
        for (int64_t x = 0; x < count; ++x) out[c * plane + first + x] = normalised<Out>(p, channels[c][x], c);
      }
    }
  }
}

template <class Out>
void write_pixels(const TransformParams& p, Rows rows, Out* out) {
  const int64_t width = p.out[1];
  for (int32_t y = 0; y < p.out[0]; ++y, rows.first += rows.stride) {
    if (p.channels == 1) {
      for (int64_t x = 0; x < width; ++x) *out++ = normalised<Out>(p, rows.first[x], 0);
      continue;
    }
    for (int64_t x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c) *out++ = normalised<Out>(p, rows.first[3 * x + c], c);
    }
  }
}

template <class Out>
void erase(const TransformParams& p, const ErasedPart& part, Out* out) {
  for (int c = 0; c < p.channels; ++c) {
    const Out value = normalised<Out>(p, p.erased[c], c);
    for (int32_t y = part.first[0]; y < part.first[0] + part.size[0]; ++y) {
      for (int32_t x = part.first[1]; x < part.first[1] + part.size[1]; ++x) out[out_offset(p, y, x, c)] = value;
    }
  }
}

template <class Out>
void write_values(const TransformParams& p, const FramePlan& plan, const Augments& augments, const void* frame,
                  char* scratch, Out* out) {
  auto* bytes = reinterpret_cast<uint8_t*>(scratch);
  Rows rows{bytes, int64_t{p.out[1]} * p.channels};
  if (frame == nullptr) {
    std::memset(bytes, 0, static_cast<size_t>(rows.stride));
    rows.stride = 0;
  } else if (only_moves(plan) && !p.jitters && !p.warps && p.blur_reach == 0 && lies_within(plan.rows, p.out[0]) &&
             lies_within(plan.columns, p.out[1])) {
    rows = rows_in_frame(p, plan, frame);
  } else {
    if (only_moves(plan)) {
      move(p, plan, frame, bytes);
    } else {
      with_filter(p.interpolation, [&](auto filter) { resize<decltype(filter)>(p, plan, frame, scratch, bytes); });
    }
    auto* other = reinterpret_cast<uint8_t*>(scratch + transform_scratch(p).other);
    if (p.warps) {
      warp(p, augments.warp, bytes, other);
      std::swap(bytes, other);
    }
    if (p.blur_reach > 0) {
      blur(p, augments.blur, bytes, scratch, other);
      std::swap(bytes, other);
    }
    if (p.jitters) jitter(p, plan, bytes);
    rows.first = bytes;
  }
  if (p.layout == ImageLayout::kChw) {
    write_planes(p, rows, out);
  } else {
    write_pixels(p, rows, out);
  }
  if (p.erase > 0) erase(p, augments.erased, out);
}

template <class Out>
void write_depth(const TransformParams& p, const FramePlan& plan, const Warp& warp, const void* frame, Out* out) {
  if (frame != nullptr && p.warps) {
    for (int32_t y = 0; y < p.out[0]; ++y) {
      for (int32_t x = 0; x < p.out[1]; ++x) *out++ = warped_depth<Out>(p, plan, warp, frame, y, x);
    }
    return;
  }
  for (int32_t y = 0; y < p.out[0]; ++y) {
    const int32_t row = frame == nullptr ? -1 : resized_at(plan.rows, y);
    for (int32_t x = 0; x < p.out[1]; ++x, ++out) {
      const int32_t column = resized_at(plan.columns, x);
      *out = row < 0 || column < 0 ? Out{} : depth_at<Out>(p, frame, depth_offset(p, plan, row, column));
    }
  }
}

}  // namespace

void transform_frame(const TransformParams& p, const FramePlan& plan, const Augments& augments, const void* frame,
                     char* scratch, void* out) {
  if (p.dtype != DType::kUInt8) {
    with_floating(p.out_dtype,
                  [&](auto type) { write_depth(p, plan, augments.warp, frame, static_cast<decltype(type)*>(out)); });
  } else if (p.out_dtype == DType::kUInt8) {
    write_values(p, plan, augments, frame, scratch, static_cast<uint8_t*>(out));
  } else {
    with_floating(p.out_dtype, [&](auto type) {
      write_values(p, plan, augments, frame, scratch, static_cast<decltype(type)*>(out));
    });
  }
}

}  // namespace robocache::ROBOCACHE_ISA
