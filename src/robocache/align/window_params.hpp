// What the loader hands to either backend for a batch: validated, plain C, every pointer on the kernel's device.
#pragma once

#include <cstdint>

#include "robocache/cache/residency.hpp"
#include "robocache/core/dtype.hpp"
#include "robocache/interpolation/method.hpp"
#include "robocache/sample/anchors.hpp"
#include "robocache/sample/order.hpp"

namespace robocache {

// Some steps of one stream's window. A stream of many steps is several segments, so that a group of segments always
// fits a block's shared memory.
struct WindowSegment {
  const int64_t* time_ns;
  const void* values;
  const EpisodeRows* episodes;
  const int64_t* delta_ns;  // [steps]
  const void* scale;        // [features] of the work type, or null: y = fma(x, scale, shift)
  const void* shift;
  int64_t features;
  int64_t max_gap_ns;  // below 0: none
  int64_t out_offset;  // bytes from the batch's start to sample 0's first value of this segment
  int64_t out_sample;  // bytes from a sample to the next
  int64_t pad_offset;  // the same for is_pad
  int64_t pad_sample;
  int32_t steps;
  int32_t vector;      // elements handled at once: 1, 2 or 4; divides features
  int32_t pick_begin;  // place of the first step among its group's picks
  int32_t item_begin;  // place of the first vector among its group's vectors; so the next segment's tells the end
  DType value_dtype;
  DType out_dtype;
  InterpolationMethod method;
};

// A group has at most this many picks (steps of all segments) and segments; a segment of very many features has few
// steps, so that items count in 32 bits.
inline constexpr int32_t kMaxGroupPicks = 512;
inline constexpr int32_t kMaxGroupSegments = 32;

struct WindowGroup {
  int32_t segment_begin;
  int32_t segment_end;
  int32_t picks;
  int32_t items;
};

// Constant over a loader's life.
struct WindowPlan {
  AnchorIndex anchors;
  const WindowSegment* segments;
  const WindowGroup* groups;
  int32_t group_count;
  int64_t snap_ns;         // a target closer than this to a sample is that sample; 0: only on it
  int64_t time_offset;     // bytes from the batch's start to its time_ns, int64 [batch]
  int64_t episode_offset;  // to its episode_index, int64 [batch]
};

// One batch: samples [first_position, first_position + count) of the order.
struct WindowBatch {
  WindowPlan plan;
  Order order;
  int64_t first_position;
  int64_t count;
  void* memory;
};

}  // namespace robocache
