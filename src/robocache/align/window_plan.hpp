// From streams and offsets to the tables of window_params: which steps go together, and which moments are searched.
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
  StreamRows rows;                    // on the kernel's device; of a stream that is not there a clock without episodes
  std::vector<int64_t> delta_ns;      // of each step, from the anchor; at least one
  std::vector<FeatureBlock> methods;  // of all features, as feature_blocks() gives them; no cubic
  int64_t max_gap_ns = -1;            // below 0: none
  int64_t tolerance_ns = -1;          // below 0: none; else steps alone
  bool causal = false;
  DType out_dtype;          // of rows.dtype, or both floating
  const void* scale;        // [features] of the work type on the device, or null
  const void* shift;        // the same
  int64_t out_features;     // of a row in the batch: 0 behind those of the stream
  int64_t out_offset;       // bytes from the batch's start to the array [samples, steps, out_features] of out_dtype
  int64_t pad_offset;       // to is_pad, bool [samples, steps]; below 0: none
  int64_t age_offset = -1;  // to ages, int64 [samples, steps]; below 0: none
};

// A source: its windows, and what all its samples have.
struct WindowStreams {
  AnchorIndex anchors;  // on the kernel's device
  std::vector<WindowStream> streams;
  std::vector<WindowConstant> constants;
};

// The plan of these sources, all but its snap and the offsets of arrays that belong to no stream; `tables` keeps what it
// points to. Steps that are on one clock and aim at one time share a search. Throws DeviceError.
WindowPlan window_plan(std::span<const WindowStreams> sources, DeviceTables& tables);

}  // namespace robocache
