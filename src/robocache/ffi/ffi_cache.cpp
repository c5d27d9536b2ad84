#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/cache/manifest.hpp"
#include "robocache/cache/scan.hpp"
#include "robocache/cache/scan_clock.hpp"
#include "robocache/cache/selection_statistics.hpp"
#include "robocache/cache/statistics.hpp"
#include "robocache/cache/wraps.hpp"
#include "robocache/cache/writer.hpp"
#include "robocache/ffi/arguments.hpp"
#include "robocache/ffi/ffi.hpp"
#include "robocache/sample/split.hpp"

namespace robocache::ffi {
namespace {

using json = nlohmann::ordered_json;

struct WriterHandle {
  static constexpr const char* kTypeKey = "robocache.Writer";
  std::unique_ptr<Writer> writer;
};

Writer& writer_of(const Args& args) { return *args.object<WriterHandle>(0, "writer").writer; }

const Dataset& dataset_of(const Args& args) { return *args.object<DatasetHandle>(0, "dataset").dataset; }

struct ScanHandle {
  static constexpr const char* kTypeKey = "robocache.ValueScan";
  // Allocated once, since the scan keeps addresses of these members.
  struct Owned {
    std::shared_ptr<const Dataset> dataset;
    std::shared_ptr<const std::vector<double>> stats;
    std::vector<double> limits;
    std::vector<int64_t> quaternions;
    std::optional<cache::ValueScan> scan;
  };
  std::unique_ptr<Owned> owned;
};

// Returns the cells of a row of a float64 table.
template <class... Numbers>
std::array<double, sizeof...(Numbers)> cells(Numbers... numbers) {
  return {static_cast<double>(numbers)...};
}

}  // namespace

// Refuses a provenance that Writer::close would refuse, before rows are written.
ROBOCACHE_FFI(writer_check_provenance, args, result) {
  cache::check_object("provenance", args.string(0, "provenance"));
}

ROBOCACHE_FFI(writer_open, args, result) {
  const WriteMode mode = args.boolean(1, "overwrite") ? WriteMode::kOverwrite
                         : args.boolean(2, "append")  ? WriteMode::kAppend
                                                      : WriteMode::kNew;
  result.set_object(WriterHandle{std::make_unique<Writer>(std::string(args.string(0, "path")), mode)});
}

ROBOCACHE_FFI(writer_describe_stream, args, result) {
  writer_of(args).describe_stream(args.string(1, "stream"), value_of<Clock>(args.string(2, "clock"), "clock"),
                                  json::parse(args.string(3, "names")).get<std::vector<std::string>>(),
                                  args.string(4, "attributes"));
}

// (writer, stream, metres of a unit or None, intrinsics as a JSON list, resized as JSON or "")
ROBOCACHE_FFI(writer_describe_frames, args, result) {
  writer_of(args).describe_frames(args.string(1, "stream"), optional_real(args, 2, "unit_m"),
                                  json::parse(args.string(3, "intrinsics")).get<std::vector<double>>(),
                                  args.string(4, "resized"));
}

ROBOCACHE_FFI(writer_begin_episode, args, result) { writer_of(args).begin_episode(args.string(1, "metadata")); }

ROBOCACHE_FFI(writer_append, args, result) {
  writer_of(args).append(args.string(1, "stream"), args.tensor(2, "times"), args.tensor(3, "values"));
}

// (writer, stream, times, values, offsets, "array" or "text")
ROBOCACHE_FFI(writer_append_ragged, args, result) {
  writer_of(args).append_ragged(args.string(1, "stream"), args.tensor(2, "times"), args.tensor(3, "values"),
                                args.tensor(4, "offsets"), value_of<Ragged>(args.string(5, "ragged"), "ragged"));
}

// (writer, stream, times, codec, color_space, dtype, shape as a JSON list, uint8 [bytes], int64 [n + 1] or [0])
ROBOCACHE_FFI(writer_append_frames, args, result) {
  const auto shape = json::parse(args.string(6, "shape")).get<std::vector<int64_t>>();
  writer_of(args).append_frames(
      args.string(1, "stream"), args.tensor(2, "times"), value_of<Codec>(args.string(3, "codec"), "codec"),
      value_of<ColorSpace>(args.string(4, "color_space"), "color_space"), dtype_from_name(args.string(5, "dtype")),
      shape, numbers<uint8_t>(args, 7, "data"), numbers<int64_t>(args, 8, "offsets"));
}

// (writer, metadata as JSON, or None)
ROBOCACHE_FFI(writer_end_episode, args, result) {
  writer_of(args).end_episode(args.is_none(1) ? std::nullopt : std::optional(args.string(1, "metadata")));
}

ROBOCACHE_FFI(writer_abort_episode, args, result) { writer_of(args).abort_episode(); }

ROBOCACHE_FFI(writer_close, args, result) { writer_of(args).close(args.string(1, "provenance")); }

ROBOCACHE_FFI(writer_commit, args, result) { writer_of(args).commit(args.string(1, "provenance")); }

// (writer) -> JSON: the provenance of the cache that is appended to
ROBOCACHE_FFI(writer_provenance, args, result) { result.set(std::string_view(writer_of(args).provenance_json())); }

ROBOCACHE_FFI(writer_abort, args, result) { writer_of(args).abort(); }

ROBOCACHE_FFI(dataset_open, args, result) {
  result.set_object(DatasetHandle{Dataset::open(std::string(args.string(0, "path")), args.boolean(1, "verify"))});
}

// (dataset, JSON list of the indices of streams, or "" for all): checks every byte
ROBOCACHE_FFI(dataset_verify, args, result) {
  const auto streams = args.string(1, "streams");
  if (streams.empty()) return dataset_of(args).verify();
  dataset_of(args).verify(json::parse(streams).get<std::vector<int64_t>>());
}

// (dataset, stream's index, int64 episodes, float64 quantiles) -> float64 [5 + quantiles, features]: statistics of the rows of
// these episodes
ROBOCACHE_FFI(dataset_statistics, args, result) {
  const Dataset& dataset = dataset_of(args);
  const int64_t stream = args.integer(1, "stream");
  const auto quantiles = numbers<double>(args, 3, "quantiles");
  const auto table = cache::selection_statistics(dataset, stream, numbers<int64_t>(args, 2, "episodes"), quantiles);
  result.set(new_array<double>(*table, {5 + std::ssize(quantiles), dataset.stream(stream).features}));
}

ROBOCACHE_FFI(dataset_index_of, args, result) { result.set(dataset_of(args).index_of(args.string(1, "stream"))); }

// (dataset) -> JSON: its description. Arrays are given by address, valid as long as the dataset.
ROBOCACHE_FFI(dataset_describe, args, result) {
  const Dataset& dataset = dataset_of(args);
  json streams = json::array();
  for (const Stream& stream : dataset.streams()) {
    json& stream_json = streams.emplace_back(json::parse(cache::stream_text(stream)));
    stream_json["rate_hz"] = stream.rate_hz;
    stream_json["time_ns"] = address(stream.time_ns);
    stream_json["values"] = address(stream.values);
    stream_json["blob_offsets"] = address(stream.blob_offsets);
    stream_json["row_offsets"] = address(stream.row_offsets.data());
    stream_json["stats"] = address(stream.stats.mean.data());
  }
  const json description = {{"episodes", dataset.num_episodes()},
                            {"episode_columns", json::parse(dataset.episode_columns_json())},
                            {"streams", std::move(streams)},
                            {"bytes", dataset.bytes()}};
  result.set(std::string_view(description.dump()));
}

// (dataset) -> JSON: the address of episodes.jsonl, valid as long as the dataset; its length; the length of its longest
// line with the line end
ROBOCACHE_FFI(dataset_episodes, args, result) {
  const Dataset& dataset = dataset_of(args);
  size_t longest = 0;
  for (int64_t episode = 0; episode < dataset.num_episodes(); ++episode) {
    longest = std::max(longest, dataset.episode_json(episode).size() + 1);
  }
  const std::string_view lines = dataset.episodes_jsonl();
  result.set(std::string_view(json::array({address(lines.data()), lines.size(), longest}).dump()));
}

// (dataset, stream's index, float64 [2 * features] limits or None, int64 [n] first features of quaternions)
ROBOCACHE_FFI(scan_open, args, result) {
  auto owned = std::make_unique<ScanHandle::Owned>();
  owned->dataset = args.object<DatasetHandle>(0, "dataset").dataset;
  const int64_t index = args.integer(1, "stream");
  const Stream& stream = owned->dataset->stream(index);
  owned->stats = cache::stream_statistics(*owned->dataset, index);
  std::ranges::copy(numbers<double>(args, 2, "limits"), std::back_inserter(owned->limits));
  std::ranges::copy(numbers<int64_t>(args, 3, "quaternions"), std::back_inserter(owned->quaternions));
  const std::span<const double> limits = owned->limits;
  owned->scan.emplace(
      stream.values, stream.dtype, stream.rows, stream.features, stream.row_offsets,
      cache::ValueScan::Reference{cache::feature_stats(owned->stats->data(), stream.features),
                                  limits.first(limits.size() / 2), limits.last(limits.size() / 2), owned->quaternions});
  result.set_object(ScanHandle{std::move(owned)});
}

// (scan, bytes) -> the number of rows scanned so far
ROBOCACHE_FFI(scan_add, args, result) {
  result.set(args.object<ScanHandle>(0, "scan").owned->scan->add(args.integer(1, "bytes")));
}

// (scan) -> Arrays of float64, which doctor/values.py reads. Their rows are features, runs, jumps, parts of episodes
// that are not finite, and numbers beyond a bound.
ROBOCACHE_FFI(scan_found, args, result) {
  const cache::ValueScan& scan = *args.object<ScanHandle>(0, "scan").owned->scan;
  using cache::kScanQuantiles;
  Arrays tables;
  tables.arrays.push_back(new_table(scan.columns(), [](const cache::ColumnScan& column) {
    std::array<double, 6 + 2 * kScanQuantiles> row{};
    std::ranges::copy(cells(column.count, column.sum, column.squares, column.least, column.greatest, column.still),
                      row.begin());
    for (size_t q = 0; q < kScanQuantiles; ++q) {
      row[6 + q] = static_cast<double>(column.below[q]);
      row[6 + kScanQuantiles + q] = static_cast<double>(column.below[q] + column.equal[q]);
    }
    return row;
  }));
  tables.arrays.push_back(
      new_table(scan.runs(), [](const cache::StuckRun& run) { return cells(run.feature, run.begin, run.end); }));
  tables.arrays.push_back(new_table(
      scan.jumps(), [](const cache::Jump& jump) { return cells(jump.feature, jump.row, jump.kind, jump.step); }));
  tables.arrays.push_back(new_table(scan.not_finite(), [](const cache::NotFinite& part) {
    return cells(part.feature, part.episode, part.is_nan, part.count, part.first_row);
  }));
  tables.arrays.push_back(new_table(scan.beyond(), [](const cache::Beyond& part) {
    return cells(part.feature, part.kind, part.count, part.first_row, part.worst);
  }));
  result.set_object(std::move(tables));
}

// (dataset, stream's index) -> float64 rows: feature, count, episode, row, from, to, turn
ROBOCACHE_FFI(find_wraps, args, result) {
  const Dataset& dataset = dataset_of(args);
  const Stream& stream = dataset.stream(args.integer(1, "stream"));
  std::vector<int64_t> episodes(static_cast<size_t>(dataset.num_episodes()));
  std::iota(episodes.begin(), episodes.end(), 0);
  Arrays tables;
  tables.arrays.push_back(new_table(cache::find_wraps(stream, episodes, stream.rows), [](const cache::Wraps& wraps) {
    return cells(wraps.feature, wraps.count, wraps.episode, wraps.row, wraps.from, wraps.to, wraps.turn);
  }));
  result.set_object(std::move(tables));
}

// (dataset, stream's index, float64 [n] edges of a histogram) -> Arrays of float64, which doctor/streams.py reads: one row on
// the whole clock, a row an episode, a row a part of the picture, the histogram, the rows after long gaps
ROBOCACHE_FFI(scan_clock, args, result) {
  const Stream& stream = dataset_of(args).stream(args.integer(1, "stream"));
  const auto edges = numbers<double>(args, 2, "edges");
  const cache::ClockScan scan = cache::scan_clock(stream.time_ns, stream.row_offsets, stream.findings.period_ns, edges);
  const auto cell = [](int64_t number) { return cells(number); };
  Arrays tables;
  tables.arrays.push_back(new_table(std::span(&scan, 1), [](const cache::ClockScan& clock) {
    return cells(clock.moving, clock.lost_ns, clock.zeros, clock.first_zero_row, clock.bursts, clock.burst_periods,
                 clock.longest_burst, clock.longest_burst_row);
  }));
  tables.arrays.push_back(new_table(
      scan.episodes, [](const cache::EpisodePeriods& episode) { return cells(episode.regular, episode.regular_ns); }));
  tables.arrays.push_back(new_table(scan.parts, [](const cache::PicturePart& part) {
    return cells(part.count, part.least_ns, part.greatest_ns, part.sum_ns);
  }));
  tables.arrays.push_back(new_table(scan.histogram, cell));
  tables.arrays.push_back(new_table(scan.long_gap_rows, cell));
  result.set_object(std::move(tables));
}

// (n, int64 shares, seed) -> int64 [n]: the part of each item
ROBOCACHE_FFI(split, args, result) {
  result.set(new_array(split(args.integer(0, "n"), numbers<int64_t>(args, 1, "shares"),
                             static_cast<uint64_t>(args.integer(2, "seed")))));
}

ROBOCACHE_FFI(dataset_provenance, args, result) { result.set(std::string_view(dataset_of(args).provenance_json())); }

}  // namespace robocache::ffi
