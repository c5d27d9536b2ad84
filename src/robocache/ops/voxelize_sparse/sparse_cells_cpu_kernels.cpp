#include "robocache/ops/voxelize_sparse/sparse_call_cpu.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

template <class Real>
void find_cells(const SparseCall& call, int32_t cloud, int64_t first, int64_t count, FoundCell* found) {
  const Clouds& c = call.clouds;
  const int64_t place = row_place(c.rows, c.cloud_stride, c.row_stride, first);
  const Real* point = static_cast<const Real*>(c.points) + place;
  for (int64_t i = 0; i < count; ++i, point += c.row_stride) {
    FoundCell& f = found[i];
    f.cell.cloud = cloud;
    f.inside = sparse_cell(call, point, f.cell);
    if (f.inside) f.hash = hash_of(f.cell);
  }
}

}  // namespace

void cells_of_rows(const SparseCall& call, int32_t cloud, int64_t first, int64_t count, FoundCell* found) {
  return call.clouds.dtype == DType::kFloat32 ? find_cells<float>(call, cloud, first, count, found)
                                              : find_cells<double>(call, cloud, first, count, found);
}

}  // namespace robocache::ROBOCACHE_ISA
