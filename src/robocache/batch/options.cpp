#include "robocache/batch/options.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "robocache/batch/option_checks.hpp"
#include "robocache/core/arguments.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/time.hpp"
#include "robocache/source/resident.hpp"

namespace robocache {
namespace {

// Returns the index of the stream that fills a key, or none.
std::optional<int64_t> index_of(const SourceRequest& source, std::string_view key) {
  const auto streams = source.dataset->streams();
  for (size_t i = 0; i < streams.size(); ++i) {
    if (key_of(source, streams[i].name) == key) return static_cast<int64_t>(i);
  }
  return {};
}

std::string list_text(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

// Returns the keys that a source can fill, in the order of its streams.
std::vector<std::string> keys_of(const SourceRequest& source) {
  std::vector<std::string> keys;
  for (const Stream& stream : source.dataset->streams()) keys.push_back(key_of(source, stream.name));
  return keys;
}

void check_source(const LoaderOptions& options, size_t index) {
  const SourceRequest& source = options.sources[index];
  const std::string name = source_name(options, index);
  for (const auto& [stream, key] : source.rename) {
    const auto streams = source.dataset->streams();
    const bool exists = std::any_of(streams.begin(), streams.end(), [&](const Stream& s) { return s.name == stream; });
    if (!exists) refuse(name, "rename: no stream '", stream, "' in ", source.dataset->path());
    if (key.empty()) refuse(name, "rename['", stream, "']: expected a key, got an empty one");
  }
  std::vector<std::string> keys = keys_of(source);
  std::sort(keys.begin(), keys.end());
  const auto duplicate = std::adjacent_find(keys.begin(), keys.end());
  if (duplicate != keys.end()) refuse(name, "rename: two streams would fill the key '", *duplicate, "'");
  if (!source.episodes) return;
  if (source.episodes->empty()) refuse(name, "episodes: expected at least one, got none");
  for (const int64_t episode : *source.episodes) {
    if (episode >= 0 && episode < source.dataset->num_episodes()) continue;
    refuse(name, "episodes: expected indices in [0, ", source.dataset->num_episodes(), "), got ", episode);
  }
}

void check_call(const LoaderOptions& options) {
  if (options.batch_size < 1 || options.batch_size > INT32_MAX) {
    refuse("batch_size: expected from 1 to 2^31 - 1, got ", options.batch_size);
  }
  if (!is_floating(options.dtype)) {
    refuse("default.dtype: expected float64, float32, float16 or bfloat16, got ", dtype_name(options.dtype));
  }
  if (!(options.snap_s >= 0)) refuse("snap_s: expected 0 or more, got ", options.snap_s);
  checked_ns(options.snap_s, "snap_s");
  if (options.anchor_hz) {
    if (!options.anchor.empty()) {
      refuse("anchors.stream: goes without anchors.rate_hz, got '", options.anchor, "' and ", *options.anchor_hz);
    }
    if (!(*options.anchor_hz >= 1e-9 && *options.anchor_hz <= 1e9)) {  // a tick in 31 years to a tick each ns
      refuse("anchors.rate_hz: expected a rate from 1e-9 to 1e9, got ", *options.anchor_hz);
    }
  }
  if (!(options.min_spread >= 0 && options.min_spread <= HUGE_VAL) || std::isinf(options.min_spread)) {
    refuse("normalization.min_spread: expected a finite number, 0 or more, got ", options.min_spread);
  }
  if (options.drop_n_last < 0) {
    refuse("anchors.drop_n_last: expected 0 or more, got ", options.drop_n_last);
  }
  if (options.world_size < 1 || options.world_size > INT32_MAX) {
    refuse("ranks.world_size: expected from 1 to 2^31 - 1, got ", options.world_size);
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    refuse("ranks.rank: expected in [0, ", options.world_size, "), got ", options.rank);
  }
  if (options.device.is_cuda() && options.device.index >= cuda_device_count()) {
    cuda_backend();  // if there is no device at all, throws the reason
    throw DeviceError("device: expected one of ", cuda_device_count(), " CUDA devices, got ",
                      device_name(options.device));
  }
}

// Finds the stream of a request in each source. Refuses a request if no source has its stream.
void find_streams(LoaderOptions& options, const StreamRequest& request) {
  bool is_found = false;
  for (SourceRequest& source : options.sources) {
    source.streams.push_back(index_of(source, request.rows_key()));
    is_found = is_found || source.streams.back();
  }
  if (is_found) return;
  const std::string where = options.sources.size() > 1 ? "any source" : options.sources[0].dataset->path();
  std::vector<std::string> keys;
  for (const SourceRequest& source : options.sources) {
    for (std::string& key : keys_of(source)) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
    }
  }
  const std::string name = request.from.empty() ? "delta_timestamps" : argument_of(request, "stream");
  refuse(name, ": no stream '", request.rows_key(), "' in ", where, "; there are ", list_text(keys));
}

// Returns the name of the stream whose ticks are a source's anchors: the named one, or the slowest of the batch.
std::string anchor_of(const LoaderOptions& options, size_t index) {
  const SourceRequest& source = options.sources[index];
  const auto streams = source.dataset->streams();
  const bool is_named_by_source = !source.anchor.empty();
  const std::string& anchor_name = is_named_by_source ? source.anchor : options.anchor;
  if (!anchor_name.empty()) {
    if (const auto stream = index_of(source, anchor_name)) return streams[static_cast<size_t>(*stream)].name;
    refuse(is_named_by_source ? source_name(options, index) : "", is_named_by_source ? "anchor" : "anchors.stream",
           ": no stream '", anchor_name, "' in ", source.dataset->path(), "; there are ", list_text(keys_of(source)));
  }
  // A stream with about one row an episode, such as a calibration, comes after all others. A stream
  // with more rows but a rate of 0, which has mostly repeated stamps, counts as the fastest.
  const auto slowness = [&](const Stream& stream) {
    const int64_t episodes = source.dataset->num_episodes() - stream.findings.empty_episodes;
    const bool has_one_row_an_episode = stream.rows < 2 * episodes || stream.rows < 2;
    return std::pair(has_one_row_an_episode, stream.rate_hz > 0 ? stream.rate_hz : HUGE_VAL);
  };
  const Stream* slowest = nullptr;
  for (const std::optional<int64_t>& stream : source.streams) {
    if (!stream) continue;
    const Stream& candidate = streams[static_cast<size_t>(*stream)];
    if (slowest == nullptr || slowness(candidate) < slowness(*slowest)) slowest = &candidate;
  }
  if (slowest == nullptr) {
    refuse(source_name(options, index), "rename: ", source.dataset->path(), " has none of the batch's keys; there are ",
           list_text(keys_of(source)));
  }
  return slowest->name;
}

// Chooses the episodes whose statistics normalise a source, if not all.
void select_statistics(SourceRequest& source) {
  std::vector<bool> is_drawn(static_cast<size_t>(source.dataset->num_episodes()));
  for (const int64_t episode : *source.episodes) is_drawn[static_cast<size_t>(episode)] = true;
  if (std::find(is_drawn.begin(), is_drawn.end(), false) != is_drawn.end()) source.selection = source.episodes;
}

// Shares the episodes of a source among the ranks. Ranks get neighbouring episodes with about equally many bytes:
// an episode goes to the rank in whose share its middle byte lies.
void share_episodes(const LoaderOptions& options, SourceRequest& source) {
  const auto bytes_of = [&](int64_t episode) {
    int64_t bytes = 0;
    for (size_t request = 0; request < options.streams.size(); ++request) {
      const Stream* const stream = source.stream_of(request);
      if (stream == nullptr) continue;
      bytes += ResidentStream::bytes(*source.dataset, *source.streams[request],
                                     RowRange{stream->first_row(episode), stream->first_row(episode + 1)});
    }
    return static_cast<double>(bytes);
  };
  const auto ranks = static_cast<size_t>(options.world_size);
  source.episodes_of_ranks.resize(ranks);
  double total = 0;
  for (const int64_t episode : *source.episodes) total += bytes_of(episode);
  double bytes_before = 0;
  for (const int64_t episode : *source.episodes) {
    const double bytes = bytes_of(episode);
    const double middle = (bytes_before + bytes / 2) / std::max(total, 1.0);
    const auto rank = static_cast<size_t>(middle * static_cast<double>(ranks));
    source.episodes_of_ranks[std::min(ranks - 1, rank)].push_back(episode);
    bytes_before += bytes;
  }
  source.episodes = source.episodes_of_ranks[static_cast<size_t>(options.rank)];
}

// Checks that cameras that share their random draws name each other.
void check_together(const LoaderOptions& options) {
  const auto group_of = [](const StreamRequest& camera) {
    std::set<std::string> keys(camera.images->together.begin(), camera.images->together.end());
    keys.insert(camera.stream);
    return keys;
  };
  for (const StreamRequest& camera : options.streams) {
    if (!is_camera(camera)) continue;
    for (const std::string& name : camera.images->together) {
      const auto other = std::find_if(options.streams.begin(), options.streams.end(),
                                      [&](const StreamRequest& request) { return request.stream == name; });
      if (other != options.streams.end() && is_camera(*other) && group_of(*other) == group_of(camera)) continue;
      refuse(argument_of(camera, "images"), ".together: expected cameras of the batch that name each other, got '",
             name, "'");
    }
  }
}

}  // namespace

std::string key_of(const SourceRequest& source, const std::string& stream) {
  for (const auto& [name, key] : source.rename) {
    if (name == stream) return key;
  }
  return stream;
}

std::string source_name(const LoaderOptions& options, size_t source) {
  return options.mixture ? "sources[" + std::to_string(source) + "]." : "";
}

std::vector<const Stream*> streams_of(const LoaderOptions& options, size_t request) {
  std::vector<const Stream*> streams;
  for (const SourceRequest& source : options.sources) {
    if (const Stream* const stream = source.stream_of(request)) streams.push_back(stream);
  }
  return streams;
}

bool is_camera(const StreamRequest& request) { return request.images.has_value(); }

std::string method_proposal(const StreamRequest& request) {
  std::string text;
  for (const FeatureBlock& block : request.methods) {
    if (block.method == InterpolationMethod::kLinear) continue;
    text += (text.empty() ? "[(slice(" : ", (slice(") + std::to_string(block.begin) + ", " + std::to_string(block.end) +
            "), '" + std::string(name_of(block.method)) + "')";
  }
  return text.empty() ? "'linear'" : text + "]";
}

int64_t checked_ns(double seconds, std::string_view argument) {
  if (!(std::abs(seconds) < 0x1p62 / kNsPerSecond)) {
    refuse(argument, ": expected finite seconds, less than 146 years, got ", seconds);
  }
  return seconds_to_ns(seconds);
}

LoaderOptions complete_options(LoaderOptions options) {
  check_call(options);
  for (size_t source = 0; source < options.sources.size(); ++source) check_source(options, source);
  if (options.streams.empty()) refuse("delta_timestamps: expected at least one stream, got none");
  std::set<std::string_view> seen;
  for (const StreamRequest& request : options.streams) {
    if (!seen.insert(request.stream).second) {
      refuse("delta_timestamps: stream '", request.stream, "' is there twice");
    }
    find_streams(options, request);
  }
  for (size_t i = 0; i < options.sources.size(); ++i) {
    SourceRequest& source = options.sources[i];
    if (!options.anchor_hz) source.anchor = anchor_of(options, i);
    if (source.episodes) continue;
    source.episodes.emplace(static_cast<size_t>(source.dataset->num_episodes()));
    std::iota(source.episodes->begin(), source.episodes->end(), int64_t{0});
  }
  std::string names_note;
  for (size_t i = 0; i < options.streams.size(); ++i) {
    StreamRequest& request = options.streams[i];
    request.method_asked = request.method || options.method || (!request.methods.empty() && request.method_asked);
    if (!request.method_asked && !options.anchor_hz) check_grid(options, i);
    const std::vector<const Stream*> streams = streams_of(options, i);
    complete_request(options, streams, request);
    check_names(request, streams, names_note);
  }
  if (!names_note.empty()) options.notes.push_back(names_note);
  check_together(options);
  for (size_t request = 0; request < options.streams.size(); ++request) check_conversion(options, request);
  std::string missing_note;
  for (size_t source = 0; source < options.sources.size(); ++source) judge_missing(options, source, missing_note);
  if (!missing_note.empty()) options.notes.push_back(missing_note);
  if (options.stats_of == StatsOf::kSelection) {
    for (SourceRequest& source : options.sources) select_statistics(source);
  }
  if (options.shard_episodes) {
    for (SourceRequest& source : options.sources) share_episodes(options, source);
  }
  if (!options.mixture && !options.anchor_hz) options.anchor = options.sources[0].anchor;
  return options;
}

void add_to_note(std::string& note, const std::string& sentence) { note += (note.empty() ? "" : "; ") + sentence; }

}  // namespace robocache
