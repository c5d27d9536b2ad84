// Computes the statistics of a stream over some episodes, which equal those of a cache with only these episodes. They
// are computed once and kept in memory, and in the cache's folder `statistics` if it can be written.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/cache/statistics.hpp"

namespace robocache::cache {

inline constexpr const char* kSelectionsDirectory = "statistics";

// Returns [kStatistics, features] as in stats.npy, or with other quantiles [5 + quantiles, features], for a stream that
// has_statistics(). `episodes` may be in any order, and each counts once. Threads and processes may call it at the same time: a
// kept file appears only when it is complete, and a damaged one is replaced.
std::shared_ptr<const std::vector<double>> selection_statistics(const Dataset& dataset, int64_t stream,
                                                                std::span<const int64_t> episodes,
                                                                std::span<const double> quantiles = kQuantiles);

// Returns the statistics of all rows: those of stats.npy if it has the quantiles and is not of an older version, which
// counted infinities; else it computes them.
std::shared_ptr<const std::vector<double>> stream_statistics(const Dataset& dataset, int64_t stream,
                                                             std::span<const double> quantiles = kQuantiles);

// FNV-1a.
class StatisticsHash {
 public:
  void add(uint64_t number);
  void add(std::string_view text);
  std::string text() const;  // 16 hexadecimal digits

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

// Returns the table [rows, shape...] of `compute`, kept as described above under `hash`, the hash of everything that it
// depends on. Before it is computed, the values of `streams` are checked against the manifest. Throws FileError, and
// what `compute` throws.
std::shared_ptr<const std::vector<double>> kept_statistics(const Dataset& dataset, const std::string& hash,
                                                           int64_t rows, const std::vector<int64_t>& shape,
                                                           std::span<const int64_t> streams,
                                                           const std::function<std::vector<double>()>& compute);

}  // namespace robocache::cache
