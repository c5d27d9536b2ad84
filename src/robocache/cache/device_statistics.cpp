#include "robocache/cache/device_statistics.hpp"

#include <algorithm>
#include <cstddef>

#include "robocache/cache/device_statistics_params.hpp"
#include "robocache/cache/statistics.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/order_key.hpp"

namespace robocache::cache {
namespace {

constexpr int64_t kMostWidth = 8192;  // with 12 ranks the bins of this many columns take 0.8 GB

using Launch = int(const DeviceColumns*, int32_t device, void* stream);

template <class T>
std::vector<T> on_host(const T* memory, size_t count, Device device, CudaStream stream) {
  std::vector<T> copy(count);
  const CudaBackend& cuda = cuda_backend();
  check_cuda(cuda.copy_to_host(device.index, copy.data(), memory, count * sizeof(T), stream.handle),
             "copying statistics");
  check_cuda(cuda.synchronize(device.index, stream.handle), "statistics");
  return copy;
}

double number_of(uint64_t key, bool is_wide) {
  float number = 0;
  double wide = 0;
  from_order_key(static_cast<uint32_t>(key), number);
  from_order_key(key, wide);
  return is_wide ? wide : static_cast<double>(number);
}

}  // namespace

bool fits_device(int64_t rows, int64_t width) { return rows <= UINT32_MAX && width <= kMostWidth; }

std::vector<double> device_statistics(const MadeOnDevice& rows, std::span<const double> quantiles, Device device,
                                      CudaStream stream) {
  static auto* const add = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_add_columns"));
  static auto* const find = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_find_columns"));
  const auto width = static_cast<size_t>(rows.width);
  const size_t ranks = 2 + 2 * quantiles.size();  // the least, the greatest, and the two beside each quantile
  std::vector<DeviceBuffer> memory;
  const auto allocate = [&]<class T>(T*& array, size_t count) {
    array = static_cast<T*>(memory.emplace_back(device, count * sizeof(T)).data());
    return memory.size() - 1;
  };
  DeviceColumns columns{.all_rows = rows.rows,
                        .width = static_cast<int32_t>(rows.width),
                        .features = static_cast<int32_t>(rows.features),
                        .ranks = static_cast<int32_t>(ranks),
                        .is_wide = rows.dtype == DType::kFloat64};
  double* means_on_device = nullptr;
  const size_t means_memory = allocate(means_on_device, width);
  columns.means = means_on_device;
  const auto blocks = static_cast<size_t>(rows.most_rows / kSumBlock + 2);
  allocate(columns.sums, width);
  allocate(columns.lanes, blocks * kSumLanes * width);
  allocate(columns.open_lanes, 2 * kSumLanes * width);
  allocate(columns.counts, width);
  allocate(columns.keys, 2 * ranks * width);
  const size_t inside_memory = allocate(columns.inside, ranks * width);
  allocate(columns.bins, (ranks * width) << kPassBits);

  std::vector<int64_t> counts;
  std::vector<double> means(width);
  std::vector<double> squares;
  std::vector<int64_t> wanted_ranks(ranks * width);
  const int passes = ((columns.is_wide ? 64 : 32) + kPassBits - 1) / kPassBits;
  for (; columns.pass < passes; ++columns.pass) {
    columns.first_row = 0;
    rows.make([&](const DeviceRows& part) {
      columns.values = part.values;
      columns.is_pad = part.is_pad;
      columns.rows = part.rows;
      check_cuda(add(&columns, device.index, stream.handle), "statistics");
      columns.first_row += part.rows;
      columns.turn = 1 - columns.turn;
    });
    if (columns.pass == 0) {
      counts = on_host(columns.counts, width, device, stream);
      means = on_host(columns.sums, width, device, stream);
      for (size_t c = 0; c < width; ++c) {
        means[c] /= static_cast<double>(counts[c]);
        std::vector<int64_t> column_ranks = quantile_ranks(counts[c], quantiles);
        column_ranks.insert(column_ranks.begin(), 0);
        column_ranks.resize(ranks, counts[c] - 1);
        for (size_t r = 0; r < ranks; ++r) wanted_ranks[r * width + c] = column_ranks[r];
      }
      memory[means_memory].fill_from_host(means.data(), width * sizeof(double));
      memory[inside_memory].fill_from_host(wanted_ranks.data(), wanted_ranks.size() * sizeof(int64_t));
    }
    if (columns.pass == 1) squares = on_host(columns.sums, width, device, stream);
    check_cuda(find(&columns, device.index, stream.handle), "statistics");
  }
  const uint64_t* const keys_on_device = columns.keys + static_cast<size_t>(passes % 2) * ranks * width;
  const std::vector<uint64_t> keys = on_host(keys_on_device, ranks * width, device, stream);
  std::vector<double> table((5 + quantiles.size()) * width);
  for (size_t c = 0; c < width; ++c) {
    const auto number_at = [&](int64_t rank) {
      size_t r = 0;
      while (wanted_ranks[r * width + c] != rank) ++r;
      return number_of(keys[r * width + c], columns.is_wide);
    };
    const std::vector<double> column = column_statistics(counts[c], means[c], squares[c], quantiles, number_at);
    for (size_t s = 0; s < column.size(); ++s) table[s * width + c] = column[s];
  }
  return table;
}

}  // namespace robocache::cache
