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

// A stream's window in each sample.
struct WindowStream {
  StreamRows rows;                    // on the kernel's device
  std::vector<int64_t> delta_ns;      // of each step, from the anchor; at least one
  std::vector<FeatureBlock> methods;  // of all features, as feature_blocks() gives them; no cubic
  int64_t max_gap_ns;                 // below 0: none
  DType out_dtype;                    // of rows.dtype, or both floating
  const void* scale;                  // [features] of the work type on the device, or null
  const void* shift;
  int64_t out_offset;  // bytes from the batch's start to the array [samples, steps, features] of out_dtype
  int64_t pad_offset;  // to is_pad, bool [samples, steps]
};

// The plan of these streams, all but its anchors, snap and offsets of arrays; `tables` keeps what it points to. Steps that
// are on one clock and aim at one time share a search. Throws DeviceError.
WindowPlan window_plan(std::span<const WindowStream> streams, DeviceTables& tables);

}  // namespace robocache
