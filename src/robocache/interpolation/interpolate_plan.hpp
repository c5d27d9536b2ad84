// Chooses the CUDA kernel for a call of interpolate, and divides the targets among blocks. The host decides in plain
// C++, so a test can check which kernel a call takes. No result depends on the choice.
#pragma once

#include <algorithm>
#include <cstdint>

#include "robocache/interpolation/methods.hpp"
#include "robocache/interpolation/segment.hpp"

namespace robocache::interpolation_cuda {

inline int64_t divided_up(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }

// ---- The window of a row's clock ------------------------------------------------------------------------------------

// A block copies a part of a row's clock to shared memory, the window. It is the part that would hold a tile's samples
// if samples and targets were evenly spaced. A target outside the window is searched for in the row itself.
constexpr int32_t kLog2MostTimes = 10;
constexpr int32_t kMostTimes = 1 << kLog2MostTimes;  // for kAny
constexpr int32_t kMostTiledTimes = 4 * kMostTimes;  // for kTiles: 32 KB

struct Window {
  float samples_per_target;
  int32_t size;    // samples; 0 if the window does not fit: every target is then searched for in the row itself
  int32_t margin;  // how many of these samples are before the expected index of the tile's first target
};

// Returns the window for a tile. On each side it is longer than the expected samples, by more than most clocks deviate.
inline Window window_of(int64_t samples, int64_t targets, int64_t tile, int64_t most) {
  Window result{};
  result.samples_per_target = static_cast<float>(samples) / static_cast<float>(targets);
  result.margin = static_cast<int32_t>(std::min<int64_t>(32 + samples / 32, 256));
  const auto expected_samples = static_cast<int64_t>(static_cast<float>(tile) * result.samples_per_target);
  const int64_t size = std::min(samples, expected_samples + 2 * result.margin);
  result.size = size <= most ? static_cast<int32_t>(size) : 0;
  return result;
}

// ---- The choice of a kernel -----------------------------------------------------------------------------------------

// kTiles and kCurve compute the usual calls, kAny every call.
enum class Way : uint8_t {
  kTiles,  // linear and the steps
  kCurve,  // one segment of another method without slopes, with rows of whole vectors of 16 bytes
  kAny
};

// Whether kTiles or kCurve can compute a segment, whatever its method. They need floats that keep their type, two
// clocks of one type, and strides that one instruction can multiply.
inline bool is_tiled(const Interpolation& call, const Segment& s) {
  const auto is_small = [](int64_t stride) { return stride >= -(int64_t{1} << 26) && stride <= int64_t{1} << 26; };
  return call.targets_count < int64_t{1} << 31 && is_floating(s.value_dtype) && s.value_dtype == s.out_dtype &&
         !s.scaled && s.clock_dtype == call.target_dtype && s.offset == 0 && s.offset_ns == 0 && s.age == nullptr &&
         call.target_lengths == nullptr && s.samples > 0 && s.features > 0 && s.times_sample == 1 &&
         is_small(s.values_sample) && is_small(s.values_feature) && is_small(s.out_target) && is_small(s.out_feature) &&
         is_small(call.targets_target);
}

// Returns the widest vector, in bytes, that divides the rows and the output of a segment.
inline int32_t vector_bytes_of(const Interpolation& call, const Segment& s) {
  const int64_t size = dtype_size(s.value_dtype);
  if (s.values_feature != 1 || s.out_feature != 1) return static_cast<int32_t>(size);
  // Divisible by a power of two if all these numbers are.
  const int64_t element_bits =
      s.features | s.values_sample | s.out_target | (call.batch > 1 ? s.values_batch | s.out_batch : 0);
  const auto all_bits = static_cast<uint64_t>(element_bits * size) | reinterpret_cast<uintptr_t>(s.values) |
                        reinterpret_cast<uintptr_t>(s.out);
  for (int32_t bytes = 16; bytes > size; bytes /= 2) {
    if (all_bits % static_cast<uint64_t>(bytes) == 0) return bytes;
  }
  return static_cast<int32_t>(size);
}

constexpr int32_t kMostTiledSegments = 32;  // the most segments in one launch

// Returns the kernel for a segment that is alone in its call.
inline Way way_of(const Interpolation& call, const Segment& s) {
  return with_method(s.method, [&](auto method) {
    using Method = decltype(method);
    if (kIsStraight<Method>) return Way::kTiles;
    return !Method::kSlopes && vector_bytes_of(call, s) == 16 && !works_in_double(s) ? Way::kCurve : Way::kAny;
  });
}

// Returns the kernel for a call. launch_tiles still passes a call of 2^31 blocks or more to kAny.
inline Way choose_way(const Interpolation& call) {
  if (call.segment_count > kMostTiledSegments) return Way::kAny;
  for (int32_t i = 0; i < call.segment_count; ++i) {
    const Segment& s = call.segments[i];
    if (!is_tiled(call, s) || s.value_dtype != call.segments[0].value_dtype) return Way::kAny;
    const Way way = way_of(call, s);
    if (way != Way::kTiles) return call.segment_count == 1 ? way : Way::kAny;
  }
  return Way::kTiles;
}

// ---- Tiles of targets, one per block, for kTiles and kCurve ---------------------------------------------------------

constexpr int kTileThreads = 256;
constexpr int kTimesPerThread = kMostTimes / kTileThreads;
constexpr int kMaxTile = 2 * kTileThreads;       // targets
constexpr int64_t kBlocksAtOnce = 4;             // per multiprocessor
constexpr int64_t kMostWork = kTileThreads * 8;  // vectors of 16 bytes per tile; tiles of equal work end together
constexpr int64_t kLeastWork = kTileThreads * 2;
// Targets per tile, also in narrow rows: idle multiprocessors cost more than idle threads.
constexpr int64_t kLeastTile = 64;

// A segment in the form that kTiles and kCurve need. The fields that every block reads come first.
struct TiledSegment {
  const void* times;
  const void* values;
  void* out;
  const void* lengths;
  bool* valid;
  int64_t times_batch, values_batch, out_batch;
  Window window;
  int32_t samples;
  int32_t log2_span;                   // the window of a row's clock has 2^log2_span times
  int32_t vector_bytes;                // the widest vector that divides rows and output
  int32_t vectors;                     // vectors in a row
  int32_t value_sample, value_vector;  // strides in bytes
  int32_t out_target, out_vector;
  bool only_mix;  // a target between two samples is always their mixture: no step, not causal, no max_gap
  Segment segment;
};

// The division of a call's targets into tiles.
struct Tiling {
  const void* targets;
  int64_t targets_batch;
  int64_t batch;
  int32_t targets_count;
  int32_t target_stride;  // in bytes
  int32_t tile;           // targets in a tile
  int32_t tiles;          // tiles in a row
  int32_t rows;           // rows per block: a block handles several short rows in sequence
};

// The threads of a block: `width` threads together handle a row, and each of `groups` groups has a row of its own.
struct Lanes {
  int32_t width;
  int32_t groups;
  uint32_t reciprocal;  // 2^16 / width, rounded up
};

// Returns the lanes for rows of `vectors` vectors. A wide row takes several passes, so that few threads stay idle. A
// pass has at least 128 bytes, because neighbouring passes both read the sectors at their border.
inline Lanes lanes_for(int64_t vectors, int64_t vector_bytes) {
  int64_t best_width = std::min<int64_t>(std::max<int64_t>(vectors, 1), kTileThreads);
  if (best_width > kTileThreads / 4) {
    double best_busy_share = 0;
    for (int64_t passes = divided_up(vectors, kTileThreads), last = passes + 4; passes <= last; ++passes) {
      const int64_t width = divided_up(vectors, passes);
      if (best_busy_share > 0 && width * vector_bytes < 128) break;
      const double busy_share =
          static_cast<double>(vectors * (kTileThreads / width)) / static_cast<double>(passes * kTileThreads);
      if (busy_share <= best_busy_share) continue;
      best_width = width;
      best_busy_share = busy_share;
    }
  }
  const auto width = static_cast<int32_t>(best_width);
  return {width, kTileThreads / width, (65536u + static_cast<uint32_t>(width) - 1) / static_cast<uint32_t>(width)};
}

inline TiledSegment tiled_segment(const Interpolation& call, const Segment& s) {
  const int64_t size = dtype_size(s.value_dtype);
  const int32_t vector_bytes = vector_bytes_of(call, s);
  TiledSegment result{};
  result.times = s.times;
  result.values = s.values;
  result.out = s.out;
  result.lengths = s.lengths;
  result.valid = s.valid;
  result.times_batch = s.times_batch;
  result.values_batch = s.values_batch;
  result.out_batch = s.out_batch;
  result.samples = static_cast<int32_t>(s.samples);
  result.log2_span = kLog2MostTimes;
  result.vector_bytes = vector_bytes;
  result.vectors = static_cast<int32_t>(s.features * size / vector_bytes);
  result.value_sample = static_cast<int32_t>(s.values_sample * size);
  result.value_vector = static_cast<int32_t>(s.values_feature * vector_bytes);
  result.out_target = static_cast<int32_t>(s.out_target * size);
  result.out_vector = static_cast<int32_t>(s.out_feature * vector_bytes);
  result.only_mix = !is_step(s.method) && !s.causal && !s.has_max_gap;
  result.segment = s;
  return result;
}

// Returns the cost of copying a target's features, in vectors of 16 bytes.
inline int64_t work_of(const Segment& s) { return std::max<int64_t>(1, s.features * dtype_size(s.value_dtype) / 16); }

// Divides a call's rows into tiles for blocks that can hold `most_targets` targets. There are enough tiles to run all
// of `blocks` at once, if each tile then has min(kLeastTile, `worthwhile`) targets; `worthwhile` targets are enough
// work for a block. Tiles are smaller if the clock's window would not fit otherwise. A block handles several
// consecutive short rows if they fit, until about as many blocks are left as can run at once.
inline Tiling tiling_of(const Interpolation& call, TiledSegment& tiled, int64_t most_targets, int64_t worthwhile,
                        int64_t blocks, int64_t most_times) {
  const Segment& s = tiled.segment;
  const int64_t targets = call.targets_count;
  Tiling result{};
  result.targets = call.targets;
  result.targets_batch = call.targets_batch;
  result.targets_count = static_cast<int32_t>(targets);
  result.batch = call.batch;
  result.target_stride = static_cast<int32_t>(call.targets_target * dtype_size(call.target_dtype));
  result.rows = 1;
  const int64_t least_tiles = divided_up(targets, most_targets);
  const int64_t most_tiles = std::max(least_tiles, divided_up(targets, std::min(worthwhile, kLeastTile)));
  int64_t tiles = std::min(targets, std::clamp(blocks / call.batch, least_tiles, most_tiles));
  // For a tile with few targets, searching the row itself is faster, so such tiles stay large.
  if (window_of(s.samples, targets, 16, kMostTimes).size > 0) {
    while (window_of(s.samples, targets, divided_up(targets, tiles), most_times).size == 0) {
      tiles = std::min(targets, 2 * tiles);
    }
  }
  result.tile = static_cast<int32_t>(divided_up(targets, tiles));
  result.tiles = static_cast<int32_t>(divided_up(targets, result.tile));
  tiled.window = window_of(s.samples, targets, result.tile, most_times);
  while (1 << tiled.log2_span < tiled.window.size) ++tiled.log2_span;
  const bool rows_are_contiguous = result.tiles == 1 && tiled.window.size == s.samples && s.lengths == nullptr &&
                                   s.values_batch == s.samples * s.values_sample &&
                                   s.out_batch == targets * s.out_target;
  while (rows_are_contiguous && 2 * result.rows * result.tile <= most_targets &&
         result.rows * result.tile < worthwhile && s.samples <= 1 << (tiled.log2_span - 1) &&
         2 * call.batch > 3 * blocks * result.rows) {
    result.rows *= 2;
    --tiled.log2_span;
  }
  return result;
}

// A segment's part of a launch.
struct TileCall {
  Tiling tiling;  // of the call's targets
  Lanes lanes;
  TiledSegment tiled;
};

// Returns the bytes of shared memory for a block's windows, and for two times after them that are read but not used.
inline size_t window_bytes(const TileCall& call) {
  return static_cast<size_t>((call.tiling.rows << call.tiled.log2_span) + 2) *
         dtype_size(call.tiled.segment.clock_dtype);
}

// Whether a block's windows hold more than kMostTimes, or its tile has more targets than threads. Long tiles pay off if
// there are few blocks.
inline bool is_long(const TileCall& call) {
  return call.tiled.log2_span > kLog2MostTimes || call.tiling.rows * call.tiling.tile > kTileThreads;
}

// Returns a segment's part of a launch. `blocks` is the number of its blocks that can run at once; `most_targets` is
// the number of targets that a block can hold.
inline TileCall tile_call(const Interpolation& call, const Segment& s, int64_t blocks,
                          int64_t most_targets = kMaxTile) {
  TileCall result{};
  result.tiled = tiled_segment(call, s);
  result.lanes = lanes_for(result.tiled.vectors, result.tiled.vector_bytes);
  const int64_t work = work_of(s);
  if (call.batch * divided_up(call.targets_count, most_targets) > 2 * blocks) most_targets = kTileThreads;
  const bool uses_tiles = way_of(call, s) == Way::kTiles;
  result.tiling = tiling_of(call, result.tiled, std::clamp<int64_t>(kMostWork / work, 1, most_targets),
                            divided_up(kLeastWork, work), blocks, uses_tiles ? kMostTiledTimes : kMostTimes);
  return result;
}

}  // namespace robocache::interpolation_cuda
