// Decodes given statistics.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "robocache/batch/normalisation.hpp"
#include "robocache/ffi/ffi.hpp"

namespace robocache::ffi {

// Reads arguments i and i + 1: the fields' names with commas between them, and a dense float64 [fields, features].
inline NormStats norm_stats(const Args& args, int i) {
  std::string_view names = args.string(i, "norm_stats");
  const TensorView table = args.tensor(i + 1, "norm_stats");
  const auto* numbers = static_cast<const double*>(table.data);
  NormStats stats;
  for (int64_t row = 0; row < table.shape[0]; ++row, numbers += table.shape[1]) {
    stats.set(names.substr(0, names.find(',')), {numbers, numbers + table.shape[1]});
    names.remove_prefix(std::min(names.size(), names.find(',') + 1));
  }
  return stats;
}

}  // namespace robocache::ffi
