// integrate_tsdf on threads, and its loop over depth images, built once per instruction set.
#pragma once

#include <cstdint>

#include "robocache/points/integrate_tsdf/tsdf_params.hpp"

namespace robocache {

void integrate_tsdf_cpu(const TsdfParams& params, const TsdfSensor* sensors);

// Integrates all depth images into the rows [begin, end) of the grid; a row is the voxels of one x and y.
using DepthRows = void(const TsdfParams& params, const TsdfSensor* sensors, int64_t begin, int64_t end);

namespace baseline {
DepthRows integrate_rows;
}
namespace v3 {
DepthRows integrate_rows;
}
namespace v4 {
DepthRows integrate_rows;
}

}  // namespace robocache
