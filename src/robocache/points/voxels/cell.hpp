// The voxel of a point: the scalar rule that both backends share (rule 25 of docs/rules.md).
#pragma once

#include <cmath>
#include <cstdint>

#include "robocache/core/host_device.hpp"

namespace robocache {

// `origin` and `size` are x, y, z in the unit of the clouds. Sizes are positive and finite. The grid is row-major, so z
// varies fastest.
struct VoxelGrid {
  double origin[3];
  double size[3];
  int64_t shape[3];  // voxels along x, y, z; may be 0
};

// Sets coordinate to floor((p - origin) / size) by true division in Real, the dtype of the points: for float32 points
// origin and size are rounded to float32. Returns false if p is not finite or the quotient exceeds 2^62.
template <class Real>
ROBOCACHE_HD bool voxel_coordinate(Real p, Real origin, Real size, int64_t& coordinate) {
  const Real quotient = std::floor((p - origin) / size);
  if (!(quotient >= Real(-0x1p62) && quotient <= Real(0x1p62))) return false;  // also for NaN
  coordinate = static_cast<int64_t>(quotient);
  return true;
}

// Returns the voxel's index in one cloud's grid, (x * Y + y) * Z + z, or -1 for a point that is outside or not finite.
template <class Real>
ROBOCACHE_HD int64_t voxel_cell(const Real p[3], const VoxelGrid& grid) {
  int64_t cell = 0;
  for (int axis = 0; axis < 3; ++axis) {
    int64_t coordinate = 0;
    const bool is_in_range =
        voxel_coordinate(p[axis], static_cast<Real>(grid.origin[axis]), static_cast<Real>(grid.size[axis]), coordinate);
    if (!is_in_range || coordinate < 0 || coordinate >= grid.shape[axis]) return -1;
    cell = cell * grid.shape[axis] + coordinate;
  }
  return cell;
}

}  // namespace robocache
