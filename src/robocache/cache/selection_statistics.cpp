#include "robocache/cache/selection_statistics.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "robocache/cache/crc32.hpp"
#include "robocache/cache/file.hpp"
#include "robocache/cache/npy.hpp"
#include "robocache/cache/statistics.hpp"

namespace robocache::cache {
namespace {

using Table = std::vector<double>;

// Returns the row ranges of the episodes, ascending. Neighbouring episodes share a range.
std::vector<RowRange> rows_of(const Stream& stream, std::span<const int64_t> episodes) {
  std::vector<int64_t> ascending(episodes.begin(), episodes.end());
  std::sort(ascending.begin(), ascending.end());
  ascending.erase(std::unique(ascending.begin(), ascending.end()), ascending.end());
  std::vector<RowRange> ranges;
  for (const int64_t episode : ascending) {
    const auto e = static_cast<size_t>(episode);
    const RowRange rows{stream.row_offsets[e], stream.row_offsets[e + 1]};
    if (rows.begin == rows.end) continue;
    if (!ranges.empty() && ranges.back().end == rows.begin) {
      ranges.back().end = rows.end;
    } else {
      ranges.push_back(rows);
    }
  }
  return ranges;
}

// Returns a hash for the statistics: of the stream's content, by the manifest's checksums, and the selected rows.
// Appended or rewritten rows change it.
std::string hash_of(const Stream& stream, std::span<const RowRange> ranges, std::span<const double> quantiles) {
  StatisticsHash hash;
  hash.add(stream.name);
  hash.add(dtype_name(stream.dtype));
  hash.add(static_cast<uint64_t>(stream.features));
  hash.add(static_cast<uint64_t>(stream.rows));
  hash.add(stream.values_checksum);
  for (const RowRange& rows : ranges) {
    hash.add(static_cast<uint64_t>(rows.begin));
    hash.add(static_cast<uint64_t>(rows.end));
  }
  if (!std::ranges::equal(quantiles, kQuantiles)) {
    for (const double quantile : quantiles) hash.add(std::bit_cast<uint64_t>(quantile));
  }
  return hash.text();
}

// Returns the content of the file: a .npy header, the table, and the CRC-32 of both, which numpy.load ignores.
std::string file_content(const Table& table, int64_t rows, const std::vector<int64_t>& shape) {
  std::string bytes = npy_header(DType::kFloat64, rows, shape);
  bytes.append(reinterpret_cast<const char*>(table.data()), table.size() * sizeof(double));
  const uint32_t crc = crc32(bytes.data(), bytes.size());
  return bytes.append(reinterpret_cast<const char*>(&crc), sizeof crc);
}

// Whether an older version wrote this table. It counted infinities, so only its minimum or maximum can be infinite.
bool counts_infinity(std::span<const double> table, size_t numbers) {
  return std::ranges::any_of(table.subspan(2 * numbers, 2 * numbers), [](double x) { return std::isinf(x); });
}

// Returns the table of a file; null if there is no such file, or if it has another shape, is damaged, or counts infinities.
std::shared_ptr<const Table> read_table(const std::string& path, int64_t rows, const std::vector<int64_t>& shape) {
  Table table(static_cast<size_t>(std::accumulate(shape.begin(), shape.end(), rows, std::multiplies<>())));
  const size_t head = npy_header(DType::kFloat64, rows, shape).size();
  std::string bytes(head + table.size() * sizeof(double) + sizeof(uint32_t), '\0');
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return nullptr;
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got <= 0) return nullptr;
    done += static_cast<size_t>(got);
  }
  std::memcpy(table.data(), bytes.data() + head, table.size() * sizeof(double));
  if (bytes != file_content(table, rows, shape) || counts_infinity(table, table.size() / static_cast<size_t>(rows)))
    return nullptr;
  return std::make_shared<const Table>(std::move(table));
}

// Ignores errors: without the file, the statistics are only computed again.
void store(const std::string& directory, const std::string& name, const std::string& bytes) {
  static std::atomic<int64_t> count{0};
  ::mkdir(directory.c_str(), 0777);
  const std::string partial =
      directory + "/." + name + "." + std::to_string(::getpid()) + "." + std::to_string(count++) + ".partial";
  bool complete = false;
  {
    const FileDescriptor file(::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (file.get() < 0) return;
    complete = ::write(file.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  }
  if (!complete || ::rename(partial.c_str(), (directory + "/" + name).c_str()) != 0) ::unlink(partial.c_str());
}

std::shared_ptr<const Table> statistics_of_rows(const Dataset& dataset, int64_t stream_index,
                                                std::span<const RowRange> ranges, std::span<const double> quantiles) {
  const Stream& stream = dataset.stream(stream_index);
  const bool is_whole_stream = ranges.size() == 1 && ranges[0].begin == 0 && ranges[0].end == stream.rows;
  if (is_whole_stream && std::ranges::equal(quantiles, kQuantiles)) {
    const auto features = static_cast<size_t>(stream.features);
    const std::span<const double> stored(stream.stats.mean.data(), kStatistics * features);
    if (!counts_infinity(stored, features)) return std::make_shared<const Table>(stored.begin(), stored.end());
  }
  const auto rows = static_cast<int64_t>(5 + quantiles.size());
  return kept_statistics(dataset, hash_of(stream, ranges, quantiles), rows, stream.shape, {&stream_index, 1}, [&] {
    return value_statistics(stream.values, stream.dtype, ranges, stream.features, quantiles).table;
  });
}

}  // namespace

std::shared_ptr<const Table> selection_statistics(const Dataset& dataset, int64_t stream_index,
                                                  std::span<const int64_t> episodes,
                                                  std::span<const double> quantiles) {
  const Stream& stream = dataset.stream(stream_index);
  return statistics_of_rows(dataset, stream_index, rows_of(stream, episodes), quantiles);
}

std::shared_ptr<const Table> stream_statistics(const Dataset& dataset, int64_t stream_index,
                                               std::span<const double> quantiles) {
  const int64_t rows = dataset.stream(stream_index).rows;
  const RowRange all{0, rows};
  return statistics_of_rows(dataset, stream_index, {&all, rows > 0 ? size_t{1} : 0}, quantiles);
}

std::shared_ptr<const Table> kept_statistics(const Dataset& dataset, const std::string& hash, int64_t rows,
                                             const std::vector<int64_t>& shape, std::span<const int64_t> streams,
                                             const std::function<Table()>& compute) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Table>> tables;  // by file name, over all caches
  const std::string name = hash + ".npy";
  const std::string directory = dataset.path() + "/" + kSelectionsDirectory;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (const auto entry = tables.find(name); entry != tables.end()) return entry->second;
  }
  std::shared_ptr<const Table> table = read_table(directory + "/" + name, rows, shape);
  if (table == nullptr) {
    dataset.verify(streams);  // the kept file has its own checksum, which would make damaged values look intact
    table = std::make_shared<const Table>(compute());
    store(directory, name, file_content(*table, rows, shape));
  }
  const std::lock_guard<std::mutex> lock(mutex);
  return tables.emplace(name, std::move(table)).first->second;
}

void StatisticsHash::add(uint64_t number) {
  for (int byte = 0; byte < 8; ++byte) value_ = (value_ ^ (number >> (8 * byte) & 0xff)) * 0x100000001b3;
}

void StatisticsHash::add(std::string_view text) {
  for (const char c : text) value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  add(text.size());
}

std::string StatisticsHash::text() const {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value_));
  return digits;
}

}  // namespace robocache::cache
