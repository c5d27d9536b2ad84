// The CPU engine and its loops, which are built once per instruction set.
#pragma once

#include <cstdint>

#include "robocache/points/voxels/reduce.hpp"

namespace robocache {

void reduce_into_voxels_cpu(const VoxelReduction& call);

// Gives the address of a row by its number. Rows have one stride; stacked clouds have two.
struct RowAddresses {
  const char* base;
  int64_t row_bytes;
  int64_t rows_per_cloud;  // 0: one stride for all rows
  int64_t cloud_bytes;

  const char* operator[](int64_t row) const {
    if (rows_per_cloud == 0) return base + row * row_bytes;
    return base + row / rows_per_cloud * cloud_bytes + row % rows_per_cloud * row_bytes;
  }
};

// Stands for the cell of a row that is in no cell. Cell is 32 bits wide if the numbers of all cells of the domain fit.
template <class Cell>
inline constexpr Cell kNoCell = static_cast<Cell>(-1);

// Finds the cells of `count` points in `grid`. Returns how many of them are in no cell.
template <class Cell>
using CellsOfPoints = int64_t(const char* points, int64_t row_bytes, DType dtype, int64_t count, const VoxelGrid& grid,
                              Cell* cells);

// Neighbouring cells with all their rows. Cell c has the rows rows[starts[c]] to rows[starts[c + 1]], ascending.
struct VoxelTile {
  int64_t first_cell;  // index in the outputs
  int64_t cells;
  const uint32_t* starts;
  const uint32_t* rows;
  RowAddresses features;
};

// Computes every output of the tile's cells that needs features: sum, mean, min, max, first and last.
using ReduceTile = void(const VoxelReduction& call, const VoxelTile& tile);

namespace baseline {
CellsOfPoints<uint32_t> cells_of_points;
CellsOfPoints<uint64_t> wide_cells_of_points;
ReduceTile reduce_tile;
}  // namespace baseline
namespace v3 {
CellsOfPoints<uint32_t> cells_of_points;
CellsOfPoints<uint64_t> wide_cells_of_points;
ReduceTile reduce_tile;
}  // namespace v3
namespace v4 {
CellsOfPoints<uint32_t> cells_of_points;
CellsOfPoints<uint64_t> wide_cells_of_points;
ReduceTile reduce_tile;
}  // namespace v4

}  // namespace robocache
