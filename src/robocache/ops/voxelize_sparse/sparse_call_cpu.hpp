// The steps of sparse_call.hpp on the CPU. The points of sparse_call.hpp's workspace are the backend's own affair.
#pragma once

#include "robocache/ops/voxelize_sparse/sparse_call.hpp"

namespace robocache {

int64_t numbering_bytes_cpu(const SparseCall& call);
void number_voxels_cpu(const SparseCall& call);
SparseSizes sizes_cpu(const SparseCall& call);  // of a numbering that is done
void place_points_cpu(const SparseCall& call);
void gather_rows_cpu(const GatherCall& call);

}  // namespace robocache
