// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <algorithm>
#include <cmath>
#include <limits>

#include "robocache/points/voxelize_sparse/sparse_call_cpu.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

constexpr int64_t kRowsAtOnce = 256;

// Does what sparse_cell does along one axis, for several points at a time, as vector code. It is not inlined: otherwise
// only one of the three axes becomes vector code.
template <class Real>
[[gnu::noinline]] void find_along_axis(const Real* __restrict position, Real origin, Real size, int32_t first,
                                       int32_t last, Real upper, int32_t* __restrict cell,
                                       uint32_t* __restrict axes_outside) {
  constexpr Real kEnd = 0x1p31;
  for (int64_t i = 0; i < kRowsAtOnce; ++i) {
    const Real quotient = std::floor((position[i] - origin) / size);
    const Real below = quotient < kEnd ? quotient : -kEnd;  // false for NaN too
    const Real within = below > -kEnd ? below : -kEnd;
    const auto coordinate = static_cast<int32_t>(within);
    cell[i] = coordinate;
    axes_outside[i] += static_cast<uint32_t>(within != quotient) + static_cast<uint32_t>(coordinate < first) +
                       static_cast<uint32_t>(coordinate > last) + static_cast<uint32_t>(!(position[i] < upper));
  }
}

template <class Real>
void find_cells(const SparseCall& call, int32_t cloud, int64_t row, int64_t count, RowCell* cells) {
  const Clouds& c = call.clouds;
  const Real* point = static_cast<const Real*>(c.points) + row_offset(c.rows, c.cloud_stride, c.row_stride, row);
  Real position[3][kRowsAtOnce] = {};
  for (int64_t begin = 0; begin < count; begin += kRowsAtOnce) {
    const int64_t n = std::min(kRowsAtOnce, count - begin);
    for (int64_t i = 0; i < n; ++i, point += c.row_stride) {
      for (int axis = 0; axis < 3; ++axis) position[axis][i] = point[axis];
    }
    int32_t cell[3][kRowsAtOnce];
    uint32_t axes_outside[kRowsAtOnce] = {};
    for (int axis = 0; axis < 3; ++axis) {
      const auto last = static_cast<int32_t>(std::min<int64_t>(call.grid.shape[axis] - 1, INT32_MAX));
      find_along_axis(position[axis], static_cast<Real>(call.grid.origin[axis]),
                      static_cast<Real>(call.grid.size[axis]), call.bounded ? 0 : INT32_MIN,
                      call.bounded ? last : INT32_MAX,
                      call.bounded ? static_cast<Real>(call.upper[axis]) : std::numeric_limits<Real>::infinity(),
                      cell[axis], axes_outside);
    }
    uint32_t hash[kRowsAtOnce];
    for (int64_t i = 0; i < kRowsAtOnce; ++i) {
      hash[i] = static_cast<uint32_t>(hash_of({cloud, cell[0][i], cell[1][i], cell[2][i]}));
    }
    for (int64_t i = 0; i < n; ++i, ++row) {
      cells[begin + i] = {
          {cloud, cell[0][i], cell[1][i], cell[2][i]}, hash[i], axes_outside[i] == 0 ? static_cast<int32_t>(row) : -1};
    }
  }
}

}  // namespace

void cells_of_rows(const SparseCall& call, int32_t cloud, int64_t first, int64_t count, RowCell* cells) {
  if (call.wide) {  // rare, so one point at a time is fast enough
    for (int64_t i = 0; i < count; ++i) {
      SparseCell cell{cloud, 0, 0, 0};
      const bool inside = cell_of_row(call, first + i, cell);
      cells[i] = {cell, static_cast<uint32_t>(hash_of(cell)), inside ? static_cast<int32_t>(first + i) : -1};
    }
    return;
  }
  return call.clouds.dtype == DType::kFloat32 ? find_cells<float>(call, cloud, first, count, cells)
                                              : find_cells<double>(call, cloud, first, count, cells);
}

}  // namespace robocache::ROBOCACHE_ISA
