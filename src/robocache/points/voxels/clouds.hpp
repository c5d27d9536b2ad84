// The points of a call, as plain C. Both backends and every operation on points read them.
#pragma once

#include <cstdint>

#include "robocache/core/dtype.hpp"
#include "robocache/core/host_device.hpp"
#include "robocache/core/lengths.hpp"
#include "robocache/core/row_range.hpp"

namespace robocache {

// `count` clouds. Row r of cloud b is at points + b * cloud_stride + r * row_stride. In a ragged batch, cloud b has the
// rows [offsets[b], offsets[b + 1]) of one array. Strides count elements; x, y, z of a row are adjacent.
struct Clouds {
  const void* points;
  DType dtype;  // float32 or float64
  int64_t count;
  int64_t rows;  // per cloud: N of [B, N, 3]; for ragged clouds or one cloud, all rows
  int64_t cloud_stride;
  int64_t row_stride;
  const void* lengths;  // [count] int32/int64: the number of points of each cloud, or null; clamped to [0, rows]
  DType lengths_dtype;
  const void* offsets;  // [count + 1] int32/int64, ascending from 0 to rows, or null. If they are wrong on CUDA, rows
                        // go to some cloud or to none
  DType offsets_dtype;
};

// Returns the number of rows of all clouds. Row r of cloud b has the index b * rows + r; in a ragged batch, its index in
// the array.
ROBOCACHE_HD int64_t row_count(const Clouds& clouds) {
  return clouds.offsets ? clouds.rows : clouds.count * clouds.rows;
}

// Returns the rows of cloud b that are points, as indices in the cloud; in a ragged batch, in the array. Only the CPU
// calls this, because lengths and offsets must have been checked.
inline RowRange points_of_cloud(const Clouds& clouds, int64_t b) {
  if (clouds.offsets != nullptr) {
    return {integer_at(clouds.offsets, clouds.offsets_dtype, b),
            integer_at(clouds.offsets, clouds.offsets_dtype, b + 1)};
  }
  return {0, length_at(clouds.lengths, clouds.lengths_dtype, b, clouds.rows)};
}

// The features of the points, one row for each point.
struct Features {
  const void* data;
  DType dtype;
  int64_t count;  // F, at least 0
  int64_t cloud_stride;
  int64_t row_stride;  // elements; the features of a row are adjacent
};

}  // namespace robocache
