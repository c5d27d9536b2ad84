// The structs of a batch that the loader passes to either backend: validated, plain C, with every pointer on the
// kernel's device. align/window_plan builds them.
#pragma once

#include <cstdint>

#include "robocache/actions/convert_params.hpp"
#include "robocache/core/dtype.hpp"
#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/method.hpp"
#include "robocache/sample/anchors.hpp"
#include "robocache/sample/mixture.hpp"
#include "robocache/source/rows.hpp"

namespace robocache {

// Some steps of some features of one stream's window, with one method. A stream with many steps has several segments,
// so that a group of segments fits a block's shared memory. A stream with several methods has a segment for each run of
// features.
struct WindowSegment {
  const void* values;  // the segment's first feature in the first row; null: the rows are in `file`
  // y = fma(x, scale, shift), from the segment's first step and feature on, in the work type; or null.
  const void* scale;
  const void* shift;
  int64_t scale_step;  // numbers from a step's scale to the next; 0: all steps have the same
  int64_t features;
  int64_t row_bytes;     // from a row of values to the next
  int64_t step_bytes;    // from a step of the batch to the next
  int64_t first_delta;   // the delta of the first step, as in WindowMoment
  int64_t max_gap_ns;    // below 0: none
  int64_t tolerance_ns;  // below 0: none
  int64_t out_offset;    // bytes from the batch's start to sample 0's first value of this segment
  int64_t out_sample;    // bytes from a sample to the next
  int64_t pad_offset;  // the same for is_pad, [samples, mask_steps]; below 0: another segment of these steps writes it
  int64_t age_offset;  // the same for ages, int64; below 0: none
  int64_t mask_steps;
  FileRows file;  // for the CPU alone; its offset is that of the segment's first feature
  // For values that become relative to a base, which is an earlier segment of the group, with one step:
  const int32_t* subtracted;  // for each feature: f, the base's feature to subtract, or ~f for none; null: no base
  // On CUDA: the conversion, which makes the steps' poses relative to the base; else null.
  const ConvertActionsParams* poses;
  int64_t base_offset;  // bytes from the batch's start to sample 0's base, float32
  int64_t base_sample;  // bytes from a sample's base to the next
  int32_t steps;
  int32_t vector;       // elements handled at once: 1, 2 or 4; divides features
  int32_t vectors;      // in a step
  int32_t lanes;        // the number of a step's vectors that lie side by side in a tile
  int32_t lane_share;   // 65536 / lanes, rounded up: lane * lane_share / 65536 is the lane's step in the tile
  int32_t tile_steps;   // the number of steps in a tile
  int32_t columns;      // tiles across the features
  int32_t pick_begin;   // index of the first step among its group's picks
  int32_t strip_begin;  // index of the first strip among its group's; the strips end where the next segment's begin
  int32_t base_pick;    // index of the base among the group's picks
  int16_t base;         // index of the base among the group's segments
  int16_t clock;        // index among its group's clocks
  // The index of the first step's moment in the group, if the steps have consecutive moments; else -1.
  int16_t first_moment;
  DType value_dtype;
  DType out_dtype;
  DType base_dtype;
  InterpolationMethod method;
  bool causal;
  bool clip;  // scaled values are limited to [-1, 1]
};

// How warps share a segment. A tile has a vector for each lane of a warp: as many whole steps as fit, or a part of one
// step. A strip is kStripTiles tiles of steps that follow each other, and one warp writes it.
inline constexpr int32_t kTileVectors = 32;
inline constexpr int32_t kStripTiles = 4;

// A time to search a clock for, relative to the anchor, or a row relative to the anchor's. It is searched once for all
// steps of the group with this target.
struct alignas(16) WindowMoment {
  int64_t delta;       // in ns; on a clock that counts rows, in rows
  int32_t slot_begin;  // the steps are slots [slot_begin, slot_begin + slots) of the group
  int16_t slots;
  int16_t clock;  // index among the group's clocks
};

// The indices of a segment in its group, of a step in its segment, and of a pick in its group.
struct WindowSlot {
  uint16_t segment;
  uint16_t step;
  uint16_t pick;
};

// The most rows from an anchor's row to a step's. CUDA counts rows from the anchor's in 32 bits.
inline constexpr int64_t kMostRowOffset = int64_t{1} << 30;

// A clock of a group, and its ascending moments: [moment_begin, moment_end) of the group's moments. A clock is listed
// twice if it has steps in ns and steps in rows.
struct WindowClock {
  StreamClock rows;
  int64_t offset_ns;  // if it counts rows: the anchor's row is the last one at or before the anchor + offset_ns
  int32_t moment_begin;
  int32_t moment_end;
  bool counts_rows;
  // Whether every segment on the clock has a first_moment and, if the clock counts rows, its steps are consecutive rows
  // without a tolerance.
  bool in_order;
};

// The most picks (steps of all segments) and segments, and so clocks, per group. A segment with very many features has
// few steps, so that strips can be counted in 32 bits. Picks of a plan with curves are larger, so there are fewer.
inline constexpr int32_t kMaxGroupPicks = 512;
inline constexpr int32_t kMaxGroupCurvePicks = 256;
inline constexpr int32_t kMaxGroupSegments = 32;

// Segments that a block computes together.
struct alignas(16) WindowGroup {
  const void* tables;  // those of WindowTables, one after the other
  int32_t segment_count;
  int32_t clock_count;
  int32_t moment_count;
  int32_t picks;  // the number of picks, and of slots
  int32_t strips;
};

struct WindowTables {
  const WindowMoment* moments;
  const WindowSegment* segments;
  const WindowClock* clocks;
  const WindowSlot* slots;
};

ROBOCACHE_HD WindowTables tables_of(const WindowGroup& group) {
  WindowTables tables{};
  tables.moments = static_cast<const WindowMoment*>(group.tables);
  tables.segments = reinterpret_cast<const WindowSegment*>(tables.moments + group.moment_count);
  tables.clocks = reinterpret_cast<const WindowClock*>(tables.segments + group.segment_count);
  tables.slots = reinterpret_cast<const WindowSlot*>(tables.clocks + group.clock_count);
  return tables;
}

// Bytes that are the same in every sample of a source.
struct WindowConstant {
  const void* bytes;
  int64_t size;
  int64_t out_offset;  // bytes from the batch's start to sample 0's
};

// A source: its anchors, and the groups that turn its streams into a sample.
struct WindowSource {
  AnchorIndex anchors;
  const WindowGroup* groups;
  const WindowConstant* constants;
  int32_t group_count;
  int32_t constant_count;
};

// The plan of a loader's batches. It never changes.
struct WindowPlan {
  WindowSource first;                       // the only source, or the first of `sources`
  const WindowSource* sources;              // null if there is only one
  const ConvertActionsParams* conversions;  // run on a sample when its windows are filled
  int32_t conversion_count;
  int32_t group_count;     // of the source with the most groups
  int32_t most_picks;      // of the group with the most picks
  int32_t most_moments;    // of the group with the most moments
  int64_t sample_bytes;    // the most bytes of a sample's windows in any source
  bool curved;             // whether a segment is_curved()
  bool subtracts;          // whether a segment has numbers to subtract
  bool has_poses;          // whether a segment has poses to convert
  bool special;            // whether a step counts rows, has a scale of its own, or is clipped
  bool has_constants;      // whether a source has constants
  int64_t snap_ns;         // a target closer than this to a sample is that sample; 0: only if equal
  int64_t time_offset;     // bytes from the batch's start to its time_ns, int64 [batch]; below 0: not written
  int64_t episode_offset;  // to its episode_index, int64 [batch]; below 0: not written
  int64_t source_offset;   // to the numbers of its sources, int64 [batch]; below 0: not written
  int64_t anchor_offset;   // to its anchors, counted over all sources, int64 [batch]; below 0: not written
};

// One batch: the samples [first_position, first_position + count) of the epoch. After the last sample, the first ones
// follow again.
struct WindowBatch {
  WindowPlan plan;
  Mixture mixture;
  // [count], on the plan's device: given anchors, counted over all sources, instead of positions; or null.
  const int64_t* anchors;
  const int64_t* draws;  // [count]: the numbers that seed random draws; null: the positions
  int64_t first_position;
  int64_t count;
  uint64_t seed;  // of the images' random draws
  uint64_t epoch;
  void* memory;

  ROBOCACHE_HD Draw draw(int64_t sample) const {
    return anchors != nullptr ? mixture.draw_of(anchors[sample]) : mixture.at(position(sample));
  }

  // Returns the number that seeds the sample's random draws.
  ROBOCACHE_HD int64_t number(int64_t sample) const {
    return draws != nullptr ? draws[sample] : first_position + sample;
  }

  ROBOCACHE_HD int64_t position(int64_t sample) const {
    const int64_t unwrapped = first_position + sample;
    return unwrapped < mixture.samples ? unwrapped : unwrapped % mixture.samples;
  }
};

}  // namespace robocache
