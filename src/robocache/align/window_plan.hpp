// Turns streams and offsets into the tables of window_params: the groups of steps, and the moments to search for.
//
//   DeviceTables tables(device);
//   const WindowPlan plan = window_plan(std::array{WindowStreams{anchors, {window}, {}}}, tables);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "robocache/align/window_params.hpp"
#include "robocache/core/device_tables.hpp"
#include "robocache/interpolation/blocks.hpp"
#include "robocache/source/rows.hpp"

namespace robocache {

// A stream's window in each sample of a source.
struct WindowStream {
  StreamRows rows;                    // on the kernel's device; for a missing stream a clock without episodes
  std::vector<int64_t> delta_ns;      // the time of each step, from the anchor; at least one, or none with delta_rows
  std::vector<int64_t> delta_rows;    // instead: the row of each step, from the last one at or before the anchor
  int64_t offset_ns = 0;              // with delta_rows: added to the anchor's time
  std::vector<FeatureBlock> methods;  // for all features, as feature_blocks() gives them; no cubic
  int64_t max_gap_ns = -1;            // below 0: none
  int64_t tolerance_ns = -1;          // below 0: none; else every method is a step
  bool causal = false;
  DType out_dtype;    // rows.dtype, or both are floating
  const void* scale;  // [features] of the work type on the device, or with scale_per_step [steps, features]; or null
  const void* shift;  // the same
  bool scale_per_step = false;
  bool clip = false;        // scaled values are limited to [-1, 1]
  int64_t out_features;     // in a row of the batch; features that the stream lacks are 0
  int64_t out_offset;       // bytes from the batch's start to the array [samples, steps, out_features] of out_dtype
  int64_t pad_offset;       // to is_pad, bool [samples, steps]; below 0: none
  int64_t age_offset = -1;  // to ages, int64 [samples, steps]; below 0: none

  bool counts_rows() const { return !delta_rows.empty(); }
  const std::vector<int64_t>& deltas() const { return counts_rows() ? delta_rows : delta_ns; }
};

// A source: its windows, and the bytes that all its samples have.
struct WindowStreams {
  AnchorIndex anchors;  // on the kernel's device
  std::vector<WindowStream> streams;
  std::vector<WindowConstant> constants;
};

// Returns the plan of these sources. The caller adds snap_ns and the offsets of arrays that belong to no stream. The
// plan points into `tables`, which must outlive it. Steps with one clock and one target share a search. Conversions
// that only subtract a base of their group are done by the segments, and erased from `conversions`. Throws DeviceError.
WindowPlan window_plan(std::span<const WindowStreams> sources, DeviceTables& tables,
                       std::vector<ConvertActionsParams>* conversions = nullptr);

}  // namespace robocache
