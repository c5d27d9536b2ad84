// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "robocache/points/voxels/cell.hpp"
#include "robocache/points/voxels/reduce_cpu.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

// Whole numbers up to this are exact in Real and in int32, so a coordinate can be compared before its conversion to an
// integer.
template <class Real>
inline constexpr int64_t kExactIntegers = sizeof(Real) == 4 ? int64_t{1} << 24 : int64_t{1} << 30;

constexpr int64_t kPointsAtOnce = 256;

template <class Real>
void add_axis(const Real* __restrict position, Real origin, Real size, uint32_t extent, uint32_t* __restrict cell,
              uint32_t* __restrict axes_outside) {
  const Real shape = static_cast<Real>(extent);
  for (int64_t i = 0; i < kPointsAtOnce; ++i) {
    const Real quotient = std::floor((position[i] - origin) / size);
    const Real below = quotient < shape ? quotient : shape;  // false for NaN too
    const Real within = below > Real{-1} ? below : Real{-1};
    const auto coordinate = static_cast<uint32_t>(static_cast<int32_t>(within));
    axes_outside[i] += static_cast<uint32_t>(coordinate >= extent);
    cell[i] = cell[i] * extent + coordinate;
  }
}

// Does what voxel_cell does, for grids of fewer than 2^32 cells and at most kExactIntegers along each axis. For a few
// points at a time it handles one axis after the other, so that the loops become vector code.
template <class Real, class Row>
int64_t cells_together(const Row& row_of, int64_t count, const VoxelGrid& grid, uint32_t* cells) {
  Real position[3][kPointsAtOnce] = {};
  int64_t inside_count = 0;
  for (int64_t begin = 0; begin < count; begin += kPointsAtOnce) {
    const int64_t n = std::min(kPointsAtOnce, count - begin);
    for (int64_t i = 0; i < n; ++i) {
      const Real* const row = row_of(begin + i);
      position[0][i] = row[0];
      position[1][i] = row[1];
      position[2][i] = row[2];
    }
    uint32_t cell[kPointsAtOnce] = {};
    uint32_t axes_outside[kPointsAtOnce] = {};
    for (int axis = 0; axis < 3; ++axis) {
      add_axis(position[axis], static_cast<Real>(grid.origin[axis]), static_cast<Real>(grid.size[axis]),
               static_cast<uint32_t>(grid.shape[axis]), cell, axes_outside);
    }
    uint32_t inside = 0;
    for (int64_t i = 0; i < n; ++i) {
      const auto is_inside = static_cast<uint32_t>(axes_outside[i] == 0);
      cells[begin + i] = cell[i] | (is_inside - 1);  // outside: all bits 1, which is kNoCell
      inside += is_inside;
    }
    inside_count += inside;
  }
  return count - inside_count;
}

template <class Real, class Cell, class Row>
int64_t cells_one_by_one(const Row& row_of, int64_t count, const VoxelGrid& grid, Cell* cells) {
  int64_t dropped = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t cell = voxel_cell<Real>(row_of(i), grid);
    cells[i] = static_cast<Cell>(cell);  // -1 is kNoCell
    dropped += cell < 0;
  }
  return dropped;
}

template <class Real, class Cell>
int64_t cells_of(const char* points, int64_t row_bytes, int64_t count, const VoxelGrid& grid, Cell* cells) {
  const auto row_of = [=](int64_t i) { return reinterpret_cast<const Real*>(points + i * row_bytes); };
  if constexpr (sizeof(Cell) == 4) {
    const int64_t longest = std::max({grid.shape[0], grid.shape[1], grid.shape[2]});
    if (longest <= kExactIntegers<Real>) {
      if (row_bytes == 3 * sizeof(Real)) {
        const auto packed = [=](int64_t i) { return reinterpret_cast<const Real*>(points) + 3 * i; };
        return cells_together<Real>(packed, count, grid, cells);
      }
      return cells_together<Real>(row_of, count, grid, cells);
    }
  }
  return cells_one_by_one<Real>(row_of, count, grid, cells);
}

}  // namespace

int64_t cells_of_points(const char* points, int64_t row_bytes, DType dtype, int64_t count, const VoxelGrid& grid,
                        uint32_t* cells) {
  return dtype == DType::kFloat32 ? cells_of<float>(points, row_bytes, count, grid, cells)
                                  : cells_of<double>(points, row_bytes, count, grid, cells);
}

int64_t wide_cells_of_points(const char* points, int64_t row_bytes, DType dtype, int64_t count, const VoxelGrid& grid,
                             uint64_t* cells) {
  return dtype == DType::kFloat32 ? cells_of<float>(points, row_bytes, count, grid, cells)
                                  : cells_of<double>(points, row_bytes, count, grid, cells);
}

}  // namespace robocache::ROBOCACHE_ISA
