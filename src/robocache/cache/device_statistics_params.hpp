// The arguments of the CUDA kernels of device_statistics.hpp.
#pragma once

#include <cstdint>

namespace robocache {

// Rows are summed in blocks, and a block in lanes: row r is added to lane r % kSumLanes. Of all n rows, the last n % kSumLanes are
// added to lane 0. The CPU keeps the same order.
inline constexpr int64_t kSumBlock = 8192;
inline constexpr int64_t kSumLanes = 8;

// A pass finds this many more bits of the keys with the wanted ranks.
inline constexpr int kPassBits = 11;

// A part of the rows in a pass over all of them. Arrays [ranks, width] have an entry for each wanted rank of each column.
struct DeviceColumns {
  const void* values;  // float or double [rows, width]
  const bool* is_pad;  // [rows, width / features]
  int64_t rows;        // a multiple of kSumLanes, except in the last part
  int64_t first_row;   // the index of the part's first row among all rows
  int64_t all_rows;    // the number of all rows, below 2^32
  int32_t width;
  int32_t features;
  int32_t ranks;
  int32_t pass;         // 0 sums, 1 squares; every pass finds bits of keys
  bool is_wide;         // the values are double
  const double* means;  // [width], in pass 1
  double* sums;         // [width], of this pass
  double* lanes;        // [blocks of a part, kSumLanes, width]
  double* open_lanes;   // [2, kSumLanes, width], of a block that continues in the next part
  int64_t* counts;      // [width]: the finite numbers
  uint64_t* keys;       // [2, ranks, width]: the leading bits; a pass reads one half and writes the other
  int64_t* inside;      // [ranks, width]: the rank among the numbers with these bits
  uint32_t* bins;       // [ranks, width, 2^kPassBits]: the count of numbers for each value of the next bits
  int32_t turn;         // the half of open_lanes to read, 0 or 1
};

}  // namespace robocache
