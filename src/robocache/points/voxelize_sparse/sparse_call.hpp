// The arguments that voxelize_sparse and voxel_downsample pass to a backend: validated plain C structs.
// sparse_steps.hpp lists the steps of a call.
#pragma once

#include <cstdint>

#include "robocache/core/host_device.hpp"
#include "robocache/core/mix_bits.hpp"
#include "robocache/points/voxels/cell.hpp"
#include "robocache/points/voxels/clouds.hpp"

namespace robocache {

enum class VoxelOrder : uint8_t { kFirst, kLinear, kMorton };
enum class CoordOrder : uint8_t { kXyz, kZyx };

inline constexpr int64_t kUnlimited = INT64_MAX;

struct SparseSizes {
  int64_t voxels;         // of all clouds, after max_voxels
  int64_t largest_count;  // points of the fullest voxel, if requested
  bool beyond;            // whether a point lies in a cell beyond int32; false if the call is bounded or wide
};

struct SparseCall {
  Clouds clouds;
  VoxelGrid grid;
  bool bounded;        // by grid.shape and upper; otherwise cells are those that int32 can number
  bool wide;           // unbounded, with int64 cell numbers: SparseCell then holds their low 32 bits
  double upper[3];     // if bounded: a point at or beyond it along an axis is in no cell
  bool batched;        // coords begin with the index of the cloud
  bool largest_count;  // whether SparseSizes::largest_count is requested
  VoxelOrder order;
  CoordOrder coord_order;
  int64_t max_voxels;  // per cloud, or kUnlimited
  void* numbering;     // numbering_bytes of memory; number_voxels fills it for assign_points

  // For assign_points and later steps:
  void* workspace;           // assign_bytes of memory
  int64_t voxels;            // capacity of the arrays below; voxels inserted after that many are left out
  int64_t points_per_voxel;  // P, the most points kept per voxel; kUnlimited keeps all, and rows_of_voxel is then null
  bool random;               // keeps the row with the least sample_priority instead of the first; P is then 1
  uint64_t seed;
  int32_t* coords;          // [voxels, 3 or 4], or null
  int32_t* counts;          // [voxels] points kept, or null; only with a limit P
  int32_t* point_to_voxel;  // [rows]
  int32_t* kept;            // [rows] point_to_voxel for rows that are kept, -1 for others; or null, only with a limit P
  int32_t* rows_of_voxel;   // [voxels, P] rows that are kept, ascending, then -1; or null
  int64_t* dropped;         // [clouds]; may be null
  int64_t* num_voxels;      // may be null
};

// Copies rows of an array with `columns` elements per row into [count, columns]; row -1 gives zeros. Row r of cloud b
// has the index b * rows + r as in clouds.hpp, and its offset is b * cloud_stride + r * row_stride elements.
struct GatherCall {
  const void* data;
  int64_t element_bytes;
  int64_t columns;
  int64_t rows;  // per cloud; for ragged clouds or one cloud, all rows
  int64_t cloud_stride;
  int64_t row_stride;
  const int32_t* row;  // [count]
  int64_t count;
  void* out;
};

// `random` takes the point of a voxel with the least priority. The upper half of a priority is splitmix64's hash of
// (seed, row) and the lower half is the row, so no two are equal.
ROBOCACHE_HD uint64_t sample_priority(uint64_t seed, int64_t row) {
  const uint64_t hash =
      mix_bits(mix_bits(seed + 0x9e3779b97f4a7c15u) + 0x9e3779b97f4a7c15u * static_cast<uint64_t>(row));
  return (hash & 0xffffffff00000000u) | static_cast<uint64_t>(row);
}

// A cell of a cloud in int32. In a wide call it holds the low halves of x, y, z, and same_cell compares the high
// halves.
struct SparseCell {
  int32_t cloud, x, y, z;
};

ROBOCACHE_HD bool operator==(const SparseCell& a, const SparseCell& b) {
  return a.x == b.x && a.y == b.y && a.z == b.z && a.cloud == b.cloud;
}

// Finds the cell along each axis in int64. Returns false if voxel_coordinate refuses the point along an axis.
template <class Real>
ROBOCACHE_HD bool wide_cell(const SparseCall& call, const Real* p, int64_t (&cell)[3]) {
  for (int axis = 0; axis < 3; ++axis) {
    if (!voxel_coordinate(p[axis], static_cast<Real>(call.grid.origin[axis]), static_cast<Real>(call.grid.size[axis]),
                          cell[axis])) {
      return false;
    }
  }
  return true;
}

// Finds the cell of a point. Returns false for a point that is in no cell.
template <class Real>
ROBOCACHE_HD bool sparse_cell(const SparseCall& call, const Real* p, SparseCell& cell) {
  int64_t wide_coordinates[3];
  if (!wide_cell(call, p, wide_coordinates)) return false;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t c = wide_coordinates[axis];
    if (call.bounded) {
      if (c < 0 || c >= call.grid.shape[axis] || !(p[axis] < static_cast<Real>(call.upper[axis]))) return false;
    } else if (!call.wide && (c < INT32_MIN || c > INT32_MAX)) {
      return false;
    }
  }
  cell.x = static_cast<int32_t>(wide_coordinates[0]);
  cell.y = static_cast<int32_t>(wide_coordinates[1]);
  cell.z = static_cast<int32_t>(wide_coordinates[2]);
  return true;
}

// Returns the offset of a row in elements. There are fewer than 2^31 rows.
ROBOCACHE_HD int64_t row_offset(int64_t rows, int64_t cloud_stride, int64_t row_stride, int64_t row) {
  if (row < rows) return row * row_stride;  // a row of a single cloud, or of a ragged batch
  const auto cloud = static_cast<int64_t>(static_cast<uint32_t>(row) / static_cast<uint32_t>(rows));
  return cloud * cloud_stride + (row - cloud * rows) * row_stride;
}

// Sets x, y, z of the row's cell; returns false if the row is in no cell.
ROBOCACHE_HD bool cell_of_row(const SparseCall& call, int64_t row, SparseCell& cell) {
  const Clouds& c = call.clouds;
  const int64_t offset = row_offset(c.rows, c.cloud_stride, c.row_stride, row);
  return c.dtype == DType::kFloat32 ? sparse_cell(call, static_cast<const float*>(c.points) + offset, cell)
                                    : sparse_cell(call, static_cast<const double*>(c.points) + offset, cell);
}

// Does what wide_cell does, for a row.
ROBOCACHE_HD bool wide_cell_of_row(const SparseCall& call, int64_t row, int64_t (&cell)[3]) {
  const Clouds& c = call.clouds;
  const int64_t offset = row_offset(c.rows, c.cloud_stride, c.row_stride, row);
  return c.dtype == DType::kFloat32 ? wide_cell(call, static_cast<const float*>(c.points) + offset, cell)
                                    : wide_cell(call, static_cast<const double*>(c.points) + offset, cell);
}

// Whether two rows lie in one cell. `a` and `b` are the rows' SparseCells.
ROBOCACHE_HD bool same_cell(const SparseCall& call, const SparseCell& a, int64_t row_a, const SparseCell& b,
                            int64_t row_b) {
  if (!(a == b) || !call.wide) return a == b;
  int64_t wide_a[3] = {};
  int64_t wide_b[3] = {};
  wide_cell_of_row(call, row_a, wide_a);
  wide_cell_of_row(call, row_b, wide_b);
  return wide_a[0] == wide_b[0] && wide_a[1] == wide_b[1] && wide_a[2] == wide_b[2];
}

// Writes a row of call.coords, if coords are requested.
ROBOCACHE_HD void write_coords(const SparseCall& call, int64_t voxel, const SparseCell& cell) {
  if (call.coords == nullptr) return;
  int32_t* coords = call.coords + voxel * (call.batched ? 4 : 3);
  if (call.batched) *coords++ = cell.cloud;
  const bool is_xyz = call.coord_order == CoordOrder::kXyz;
  coords[0] = is_xyz ? cell.x : cell.z;
  coords[1] = cell.y;
  coords[2] = is_xyz ? cell.z : cell.x;
}

ROBOCACHE_HD uint64_t hash_of(const SparseCell& cell) {
  uint64_t h = (static_cast<uint64_t>(static_cast<uint32_t>(cell.x)) << 32 | static_cast<uint32_t>(cell.y)) *
               0x9e3779b97f4a7c15u;
  h ^= h >> 32;
  h += static_cast<uint64_t>(static_cast<uint32_t>(cell.z)) << 32 | static_cast<uint32_t>(cell.cloud);
  h *= 0xd6e8feb86659fd93u;
  h ^= h >> 32;
  h *= 0xd6e8feb86659fd93u;
  return h ^ (h >> 32);
}

// Moves bit k of the low 21 bits to bit 3 k.
ROBOCACHE_HD uint64_t spread_bits(uint64_t x) {
  x &= 0x1fffff;
  x = (x | x << 32) & 0x001f00000000ffff;
  x = (x | x << 16) & 0x001f0000ff0000ff;
  x = (x | x << 8) & 0x100f00f00f00f00f;
  x = (x | x << 4) & 0x10c30c30c30c30c3;
  return (x | x << 2) & 0x1249249249249249;
}

// A key that compares by `high`, then by `low`, in the order that the call requests.
struct SparseKey {
  uint64_t high, low;
};

ROBOCACHE_HD SparseKey sort_key(VoxelOrder order, const SparseCell& cell) {
  const auto ascending = [](int32_t c) { return static_cast<uint64_t>(static_cast<uint32_t>(c) ^ 0x80000000u); };
  const uint64_t x = ascending(cell.x);
  const uint64_t y = ascending(cell.y);
  const uint64_t z = ascending(cell.z);
  const auto cloud = static_cast<uint64_t>(cell.cloud);
  if (order == VoxelOrder::kLinear) return {cloud << 32 | x, y << 32 | z};
  // The code has 96 bits: 63 from the lower 21 bits of each axis, 33 from the upper 11.
  const auto code = [](uint64_t a, uint64_t b, uint64_t c) {
    return spread_bits(a) | spread_bits(b) << 1 | spread_bits(c) << 2;
  };
  const uint64_t low = code(x, y, z);
  const uint64_t high = code(x >> 21, y >> 21, z >> 21);
  return {cloud << 33 | high, low};
}

}  // namespace robocache
