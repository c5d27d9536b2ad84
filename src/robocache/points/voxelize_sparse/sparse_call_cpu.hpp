// The steps of sparse_steps.hpp on the CPU.
#pragma once

#include "robocache/points/voxelize_sparse/sparse_call.hpp"

namespace robocache {

struct RowCell {
  SparseCell cell;
  uint32_t hash;  // hash_of(cell)
  int32_t row;    // -1: the row is in no cell
};

// Finds the cells of rows [first, first + count) of a cloud. It is built once per instruction set (core/cpu_isa.hpp).
using CellsOfRows = void(const SparseCall& call, int32_t cloud, int64_t first, int64_t count, RowCell* cells);
namespace baseline {
CellsOfRows cells_of_rows;
}
namespace v3 {
CellsOfRows cells_of_rows;
}
namespace v4 {
CellsOfRows cells_of_rows;
}

int64_t numbering_bytes_cpu(const SparseCall& call);
void number_voxels_cpu(const SparseCall& call);
SparseSizes sizes_cpu(const SparseCall& call);  // call it after number_voxels_cpu
void assign_points_cpu(const SparseCall& call);
void gather_rows_cpu(const GatherCall& call);

}  // namespace robocache
