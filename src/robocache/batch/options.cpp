#include "robocache/batch/options.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "robocache/align/window_params.hpp"
#include "robocache/core/arguments.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/core/time.hpp"

namespace robocache {
namespace {

// "delta_timestamps['action'].method", or without a field the whole window.
std::string of_stream(const StreamRequest& request, std::string_view field = "") {
  return "delta_timestamps['" + request.stream + "']" + (field.empty() ? "" : "." + std::string(field));
}

// The key that a stream of a source fills.
std::string key_of(const SourceRequest& source, const std::string& stream) {
  for (const auto& [from, to] : source.rename) {
    if (from == stream) return to;
  }
  return stream;
}

// The place of the stream that fills a key, or none.
std::optional<int64_t> stream_of(const SourceRequest& source, std::string_view key) {
  const auto streams = source.dataset->streams();
  for (size_t place = 0; place < streams.size(); ++place) {
    if (key_of(source, streams[place].name) == key) return static_cast<int64_t>(place);
  }
  return {};
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

// The keys that a source can fill, in the order of its streams.
std::vector<std::string> keys_of(const SourceRequest& source) {
  std::vector<std::string> keys;
  for (const Stream& stream : source.dataset->streams()) keys.push_back(key_of(source, stream.name));
  return keys;
}

void check_source(const LoaderOptions& options, size_t place) {
  const SourceRequest& source = options.sources[place];
  const std::string name = source_name(options, place);
  for (const auto& [stream, key] : source.rename) {
    const auto streams = source.dataset->streams();
    const bool there = std::any_of(streams.begin(), streams.end(), [&](const Stream& s) { return s.name == stream; });
    if (!there) refuse(name, "rename: no stream '", stream, "' in ", source.dataset->path());
    if (key.empty()) refuse(name, "rename['", stream, "']: expected a key, got an empty one");
  }
  std::vector<std::string> keys = keys_of(source);
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice != keys.end()) refuse(name, "rename: two streams would fill the key '", *twice, "'");
  if (!source.episodes) return;
  if (source.episodes->empty()) refuse(name, "episodes: expected at least one, got none");
  for (const int64_t episode : *source.episodes) {
    if (episode >= 0 && episode < source.dataset->num_episodes()) continue;
    refuse(name, "episodes: expected indices in [0, ", std::to_string(source.dataset->num_episodes()), "), got ",
           std::to_string(episode));
  }
}

void check_call(const LoaderOptions& options) {
  if (options.batch_size < 1 || options.batch_size > INT32_MAX) {
    refuse("batch_size: expected from 1 to 2^31 - 1, got ", std::to_string(options.batch_size));
  }
  if (!is_floating(options.dtype)) {
    refuse("default.dtype: expected float64, float32, float16 or bfloat16, got ", dtype_name(options.dtype));
  }
  if (!(options.snap_s >= 0)) refuse("snap_s: expected 0 or more, got ", number_text(options.snap_s));
  checked_ns(options.snap_s, "snap_s");
  if (options.anchor_hz) {
    if (!options.anchor.empty()) {
      refuse("anchors.stream: goes without anchors.rate_hz, got '", options.anchor, "' and ",
             number_text(*options.anchor_hz));
    }
    if (!(*options.anchor_hz >= 1e-9 && *options.anchor_hz <= 1e9)) {  // a tick in 31 years to one a ns
      refuse("anchors.rate_hz: expected a rate from 1e-9 to 1e9, got ", number_text(*options.anchor_hz));
    }
  }
  if (!(options.min_spread >= 0 && options.min_spread <= HUGE_VAL) || std::isinf(options.min_spread)) {
    refuse("normalization.min_spread: expected a finite number, 0 or more, got ", number_text(options.min_spread));
  }
  if (options.drop_n_last < 0) {
    refuse("anchors.drop_n_last: expected 0 or more, got ", std::to_string(options.drop_n_last));
  }
  if (options.world_size < 1 || options.world_size > INT32_MAX) {
    refuse("ranks.world_size: expected from 1 to 2^31 - 1, got ", std::to_string(options.world_size));
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    refuse("ranks.rank: expected in [0, ", std::to_string(options.world_size), "), got ", std::to_string(options.rank));
  }
  if (options.device.is_cuda() && options.device.index >= cuda_device_count()) {
    cuda_backend();  // throws the reason where there is none at all
    throw DeviceError("device: expected one of " + std::to_string(cuda_device_count()) + " CUDA devices, got " +
                      device_name(options.device));
  }
}

// ---- one stream --------------------------------------------------------------------------------------------------------

void check_methods(const StreamRequest& request, const Stream& stream) {
  const std::string name = of_stream(request, "method");
  const auto check = [&](InterpolationMethod method) {
    if (method == InterpolationMethod::kCubic) {
      refuse(name, ": 'cubic' looks at a whole recording, not at a window: expected another method, such as 'akima'");
    }
    if (!is_floating(stream.dtype) && !is_step(method)) {
      refuse_type(name, ": '", method_name(method), "' expects a floating stream, got ", dtype_name(stream.dtype),
                  "; use 'previous', 'nearest' or 'next'");
    }
    if (*request.causal && method == InterpolationMethod::kNext) {
      refuse(of_stream(request, "causal"), ": 'next' looks at a later sample; expected another method");
    }
    if (request.tolerance_s && !is_step(method)) {
      refuse(of_stream(request, "tolerance_s"), ": goes with 'previous', 'nearest' or 'next', got '",
             method_name(method), "'; max_gap_s is for what lies between two samples");
    }
  };
  try {
    for (const FeatureBlock& block : feature_blocks(stream.features, *request.method, request.methods)) {
      check(block.method);
    }
  } catch (const ArgumentError& error) {
    const std::string_view text = error.what();
    if (text.starts_with("methods:") || text.starts_with("method:")) refuse(name, text.substr(text.find(':')));
    throw;
  }
}

// A camera's rows are chosen, nothing is made of two of them.
void complete_camera(const LoaderOptions& options, const std::vector<const Stream*>& streams, StreamRequest& request) {
  for (const Stream* const other : streams) {
    if (other->frames) continue;
    refuse(of_stream(request), ": expected frames in all sources, got numbers in one");
  }
  const auto chooses = [](std::optional<InterpolationMethod> method) {
    return method == InterpolationMethod::kPrevious || method == InterpolationMethod::kNearest;
  };
  if (!request.method) request.method = chooses(options.method) ? options.method : InterpolationMethod::kPrevious;
  if (!chooses(request.method) || !request.methods.empty()) {
    refuse(of_stream(request, "method"), ": expected 'previous' or 'nearest' for a camera, got ",
           request.methods.empty() ? "'" + std::string(method_name(*request.method)) + "'" : "methods of slices");
  }
  if (request.normalize && *request.normalize != Normalize::kNone) {
    refuse(of_stream(request, "normalize"), ": expected none for a camera, whose mean and std stand in images=");
  }
  request.normalize = Normalize::kNone;
  if (!request.images) {
    const DType of_all = options.dtype == DType::kFloat64 ? DType::kFloat32 : options.dtype;
    request.images.emplace().dtype = request.dtype.value_or(of_all);
  }
  request.dtype = request.images->dtype;
}

// A window by no method that was asked for, of a stream that has no clock but an index, around ticks of the same clock: its
// offsets must be rows. window_survey.hpp is for all other ticks.
void check_grid(const LoaderOptions& options, const StreamRequest& request, const Stream& stream,
                const Stream& anchor) {
  const double period_ns = stream.findings.period_ns;
  if (request.rows || stream.clock != Clock::kNominal || !(period_ns > 0) || !same_clock(stream, anchor)) return;
  // A latency makes no values of streams whose steps are rows in any case.
  const bool mixes = is_floating(stream.dtype) && !stream.frames && !request.causal.value_or(options.causal);
  const double latency = mixes ? request.offset_s.value_or(options.offset_s) : 0;
  for (const double delta : request.delta_timestamps) {
    const double ns = (delta + latency) * kNsPerSecond;
    if (std::abs(ns - std::nearbyint(ns / period_ns) * period_ns) <= kOffGridNs) continue;
    refuse(of_stream(request), ": ", number_text(delta), " s",
           latency == 0 ? "" : " and the offset of " + number_text(latency) + " s", " is no multiple of the stream's ",
           number_text(period_ns / kNsPerSecond),
           " s, and its clock is nominal: nothing was recorded there; expected offsets "
           "that are, or method=, such as ",
           method_proposal(request), ", to make values between rows");
  }
}

// A window in rows takes recorded rows: nothing is made between them.
void check_rows(const StreamRequest& request) {
  for (const double rows : request.delta_timestamps) {
    if (rows == std::nearbyint(rows) && std::abs(rows) <= static_cast<double>(kMostRowOffset)) continue;
    refuse(of_stream(request), ": expected whole numbers of rows, at most 2^30, since rows=True, got ",
           number_text(rows));
  }
  const bool mixes = request.method && request.method != InterpolationMethod::kPrevious;
  if (mixes || (request.method_asked && !request.methods.empty())) {
    refuse(of_stream(request, "method"), ": expected none with rows=True, since a step is a recorded row, got ",
           request.methods.empty() ? "'" + std::string(method_name(*request.method)) + "'" : "methods of slices");
  }
  if (request.max_gap_s) {
    refuse(of_stream(request, "max_gap_s"), ": expected none with rows=True, since nothing lies between rows, got ",
           number_text(*request.max_gap_s), "; tolerance_s limits the age of the anchor's row");
  }
}

// "feature 2 is 'left_0' and 'right_0'" for the first feature whose names differ, or nothing where both have the same or one has none.
std::string first_difference(const std::vector<std::string>& names, const std::vector<std::string>& others) {
  if (names.empty() || others.empty()) return "";
  for (size_t f = 0; f < std::min(names.size(), others.size()); ++f) {
    if (names[f] != others[f]) return "feature " + std::to_string(f) + " is '" + names[f] + "' and '" + others[f] + "'";
  }
  return "";
}

bool are_reordered(std::vector<std::string> names, std::vector<std::string> others) {
  std::ranges::sort(names);
  std::ranges::sort(others);
  return names == others;
}

// Refuses a key whose sources have the same features in different orders, which its rows would mix, and notes one whose sources name
// them differently.
void check_names(const StreamRequest& request, const std::vector<const Stream*>& streams, std::string& note) {
  for (const Stream* const other : streams) {
    const std::string difference = first_difference(streams[0]->names, other->names);
    if (difference.empty()) continue;
    if (are_reordered(streams[0]->names, other->names)) {
      refuse(of_stream(request), ": expected features in one order in all sources, got ", difference,
             "; ingest one source with a mapping whose slices give each part of the row a stream of its own");
    }
    add_to_note(note, of_stream(request) + ": sources name features differently: " + difference +
                          "; if they mean other things, Source(rename=) gives each source a key of its own");
    return;
  }
}

void check_moment(const StreamRequest& request) {
  const MomentRequest& moment = *request.moment;
  const std::string name = of_stream(request, "moment");
  if (moment.kind == MomentKind::kFuture) {
    if (!(0 <= moment.low_s && moment.low_s < moment.high_s)) {
      refuse(name, ": expected 0 <= low_s < high_s, got ", number_text(moment.low_s), " and ",
             number_text(moment.high_s));
    }
    checked_ns(moment.low_s, name + ".low_s");
    if (std::isfinite(moment.high_s)) checked_ns(moment.high_s, name + ".high_s");
  }
  if (moment.kind == MomentKind::kGeometric && !(0 < moment.discount && moment.discount < 1)) {
    refuse(name, ": expected a discount between 0 and 1, got ", number_text(moment.discount));
  }
}

// Says what the request leaves out, by the first stream that fills it, and checks what it then says against all of them.
void complete(const LoaderOptions& options, const std::vector<const Stream*>& streams, StreamRequest& request) {
  const Stream& stream = *streams[0];
  const bool camera = stream.frames.has_value();
  const bool floating = is_floating(stream.dtype);
  if (request.delta_timestamps.empty()) {
    refuse(of_stream(request), ": expected at least one offset, got none");
  }
  for (const Stream* const other : streams) {
    if (other->ragged) {
      refuse(of_stream(request), ": expected rows of one size, which a batch is made of, got ",
             *other->ragged == Ragged::kText
                 ? "text; task_text='" + request.stream + "' gives the text at each anchor"
                 : "ragged rows; 'Clouds beside a batch' in docs/loader.md gathers a batch's from Dataset.streams");
    }
    if (camera) continue;
    if (other->frames) {
      refuse(of_stream(request), ": expected numbers in all sources, got frames in one");
    }
    if (other->dtype != stream.dtype && !(floating && is_floating(other->dtype))) {
      refuse_type(of_stream(request), ": expected one dtype in all sources, got ", dtype_name(stream.dtype), " and ",
                  dtype_name(other->dtype));
    }
    if (other->shape == stream.shape) continue;
    const std::string got = ", got " + shape_string(stream.shape.data(), static_cast<int>(stream.shape.size())) +
                            " and " + shape_string(other->shape.data(), static_cast<int>(other->shape.size()));
    if (!options.pad_features) {
      refuse(of_stream(request), ": expected rows of one shape in all sources, or pad_features=True", got);
    }
    if (other->shape.size() != 1 || stream.shape.size() != 1) {
      refuse(of_stream(request), ": pad_features expects rows of one axis", got);
    }
  }
  if (stream.shape.size() + 2 > static_cast<size_t>(kMaxDims)) {
    refuse(of_stream(request), ": expected rows of at most ", std::to_string(kMaxDims - 2), " dimensions, got ",
           std::to_string(stream.shape.size()));
  }

  if (request.moment) check_moment(request);
  if (request.rows) {
    check_rows(request);
    request.method = InterpolationMethod::kPrevious;
    request.methods.clear();
  }
  if (!request.max_gap_s && !request.rows) request.max_gap_s = options.max_gap_s;
  if (request.max_gap_s && !(*request.max_gap_s >= 0)) {
    refuse(of_stream(request, "max_gap_s"), ": expected 0 or more, got ", number_text(*request.max_gap_s));
  }
  if (!request.tolerance_s) request.tolerance_s = options.tolerance_s;
  if (request.tolerance_s && !(*request.tolerance_s >= 0)) {
    refuse(of_stream(request, "tolerance_s"), ": expected 0 or more, got ", number_text(*request.tolerance_s));
  }
  if (!request.offset_s) request.offset_s = options.offset_s;
  const int64_t offset_ns = checked_ns(*request.offset_s, of_stream(request, "offset_s"));
  for (const double delta : request.delta_timestamps) {
    const int64_t delta_ns = request.rows ? 0 : checked_ns(delta, of_stream(request));
    if (std::abs(delta_ns) > INT64_MAX / 2 - std::abs(offset_ns)) {
      refuse(of_stream(request, "offset_s"), ": expected less than 146 years together with delta_timestamps, got ",
             number_text(*request.offset_s));
    }
  }
  if (!request.causal) request.causal = options.causal;
  if (!request.residency) request.residency = options.residency;
  if (camera) return complete_camera(options, streams, request);
  if (request.images) refuse(of_stream(request, "images"), ": expected a camera's key, got one of numbers");
  if (!request.method) request.method = options.method;
  if (!request.method) request.method = floating ? InterpolationMethod::kLinear : InterpolationMethod::kPrevious;
  for (const Stream* const other : streams) check_methods(request, *other);

  if (!request.normalize) request.normalize = floating ? options.normalize : Normalize::kNone;
  if (!floating && *request.normalize != Normalize::kNone) {
    refuse_type(of_stream(request, "normalize"), ": expected a floating stream, got ", dtype_name(stream.dtype));
  }
  request.dtype_asked = request.dtype.has_value();
  if (!request.dtype) request.dtype = floating ? options.dtype : stream.dtype;
  if (*request.dtype != stream.dtype && !(floating && is_floating(*request.dtype))) {
    refuse_type(of_stream(request, "dtype"), ": expected ", floating ? "a floating dtype" : dtype_name(stream.dtype),
                ", got ", dtype_name(*request.dtype));
  }
}

// The stream of each request, or the first source's refusal of one that no source has.
void find_streams(LoaderOptions& options, const StreamRequest& request) {
  bool found = false;
  for (SourceRequest& source : options.sources) {
    source.streams.push_back(stream_of(source, request.rows_key()));
    found = found || source.streams.back();
  }
  if (found) return;
  const std::string where = options.sources.size() > 1 ? "any source" : options.sources[0].dataset->path();
  std::vector<std::string> keys;
  for (const SourceRequest& source : options.sources) {
    for (std::string& key : keys_of(source)) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
    }
  }
  const std::string name = request.from.empty() ? "delta_timestamps" : of_stream(request, "stream");
  refuse(name, ": no stream '", request.rows_key(), "' in ", where, "; there are ", listed(keys));
}

// The name of the stream whose ticks a source's anchors are: the one asked for, or the slowest that the batch takes.
std::string anchor_of(const LoaderOptions& options, size_t place) {
  const SourceRequest& source = options.sources[place];
  const auto streams = source.dataset->streams();
  const bool own = !source.anchor.empty();
  const std::string& asked = own ? source.anchor : options.anchor;
  if (!asked.empty()) {
    if (const auto found = stream_of(source, asked)) return streams[static_cast<size_t>(*found)].name;
    refuse(own ? source_name(options, place) : "", own ? "anchor" : "anchors.stream", ": no stream '", asked, "' in ",
           source.dataset->path(), "; there are ", listed(keys_of(source)));
  }
  // What has about one row an episode, such as a calibration, comes after all others; what has a rate of 0 though it has more,
  // since most of its stamps are repeated, is the fastest of these.
  const auto slowness = [&](const Stream& stream) {
    const int64_t episodes = source.dataset->num_episodes() - stream.findings.empty_episodes;
    const bool is_one = stream.rows < 2 * episodes || stream.rows < 2;
    return std::pair(is_one, stream.rate_hz > 0 ? stream.rate_hz : HUGE_VAL);
  };
  const Stream* slowest = nullptr;
  for (const std::optional<int64_t>& stream : source.streams) {
    if (!stream) continue;
    const Stream& candidate = streams[static_cast<size_t>(*stream)];
    if (slowest == nullptr || slowness(candidate) < slowness(*slowest)) slowest = &candidate;
  }
  if (slowest == nullptr) {
    refuse(source_name(options, place), "rename: ", source.dataset->path(), " has none of the batch's keys; there are ",
           listed(keys_of(source)));
  }
  return slowest->name;
}

// ---- episodes without rows of a stream ---------------------------------------------------------------------------------

// A stream that the drawn episodes need, and how many of them lack it.
struct Need {
  const Stream* stream;
  std::string key;
  bool is_anchor = false;
  int64_t lacking = 0;
  int64_t first = -1;  // of the episodes that lack it

  bool in(int64_t episode) const {
    const auto e = static_cast<size_t>(episode);
    return stream->row_offsets[e] < stream->row_offsets[e + 1];
  }
};

// Those that some episode of the cache lacks.
std::vector<Need> needs_of(const LoaderOptions& options, size_t place) {
  const SourceRequest& source = options.sources[place];
  std::vector<Need> needs;
  for (size_t request = 0; request < options.streams.size(); ++request) {
    if (!source.streams[request]) continue;
    const Stream& stream = source.dataset->streams()[static_cast<size_t>(*source.streams[request])];
    needs.push_back({&stream, options.streams[request].stream, stream.name == source.anchor});
  }
  const auto is_anchor = [](const Need& need) { return need.is_anchor; };
  if (!options.anchor_hz && std::none_of(needs.begin(), needs.end(), is_anchor)) {
    needs.push_back({&source.dataset->stream(source.anchor), key_of(source, source.anchor), true});
  }
  std::erase_if(needs, [](const Need& need) { return need.stream->findings.empty_episodes == 0; });
  return needs;
}

// "3 of 10 episodes have no row of 'camera', 1 none of 'lidar'".
std::string counted(const std::vector<Need>& needs, int64_t episodes) {
  std::string text;
  for (const Need& need : needs) {
    text += text.empty()
                ? std::to_string(need.lacking) + " of " + std::to_string(episodes) + " episodes have no row of '"
                : ", " + std::to_string(need.lacking) + " none of '";
    text += need.key + "'";
  }
  return text;
}

// What `where` says of episodes that have rows of all these streams.
std::string where_there(const std::vector<Need>& needs) {
  std::string text;
  for (const Need& need : needs) {
    text += (text.empty() ? "(pc.field('rows." : " & (pc.field('rows.") + need.stream->name + "') > 0)";
  }
  return text;
}

// Whether an episode has a row of any stream that the batch takes.
bool has_rows(const SourceRequest& source, int64_t episode) {
  return std::any_of(source.streams.begin(), source.streams.end(), [&](const std::optional<int64_t>& stream) {
    if (!stream) return false;
    const auto offsets = source.dataset->streams()[static_cast<size_t>(*stream)].row_offsets;
    return offsets[static_cast<size_t>(episode)] < offsets[static_cast<size_t>(episode) + 1];
  });
}

// Notes the keys that no stream of a source fills.
void note_absent(const LoaderOptions& options, size_t place, std::string& note) {
  const SourceRequest& source = options.sources[place];
  std::string keys;
  for (size_t request = 0; request < options.streams.size(); ++request) {
    if (!source.streams[request]) keys += (keys.empty() ? "'" : ", '") + options.streams[request].stream + "'";
  }
  if (keys.empty()) return;
  add_to_note(note, source_name(options, place) + "missing: no stream for " + keys + ": in all of its " +
                        std::to_string(source.episodes->size()) +
                        " episodes the values are 0 and is_pad is true; rename= names the stream that fills a key");
}

// Leaves out, refuses or notes the episodes of a source that lack a stream.
void judge_missing(LoaderOptions& options, size_t place, std::string& note) {
  note_absent(options, place, note);
  std::vector<Need> needs = needs_of(options, place);
  if (needs.empty()) return;
  const std::string name = source_name(options, place);
  std::vector<int64_t>& episodes = *options.sources[place].episodes;
  const auto asked = static_cast<int64_t>(episodes.size());
  std::vector<int64_t> whole;
  for (const int64_t episode : episodes) {
    bool all = true;
    // What has no anchors is not drawn, so that what else it lacks does not matter.
    const auto lacks = [&](const Need& need) { return !need.in(episode); };
    const bool drawn =
        std::none_of(needs.begin(), needs.end(), [&](const Need& x) { return x.is_anchor && lacks(x); }) &&
        (!options.anchor_hz || has_rows(options.sources[place], episode));
    for (Need& need : needs) {
      if (!lacks(need)) continue;
      all = false;
      if (need.is_anchor != drawn) {
        ++need.lacking;
        if (need.first < 0) need.first = episode;
      }
    }
    if (all) whole.push_back(episode);
  }
  std::erase_if(needs, [](const Need& need) { return need.lacking == 0; });
  if (needs.empty()) return;
  const std::string text = name + "missing: " + counted(needs, asked);
  if (options.missing == Missing::kError) {
    refuse(text, "; the first is episode ", std::to_string(needs[0].first),
           "; expected rows of every key in every episode that is drawn from, or missing='pad' or 'drop'");
  }
  if (options.missing == Missing::kDrop) {
    if (whole.empty()) refuse(text, "; expected an episode that has rows of all keys, got none to draw from");
    const auto left_out = asked - static_cast<int64_t>(whole.size());
    add_to_note(options.dropped, text + ": " + std::to_string(left_out) + " episodes are not drawn");
    episodes = std::move(whole);
    return;
  }
  if (options.edges == Edges::kDrop) return;  // which leaves them out
  std::vector<Need> anchors;
  std::copy_if(needs.begin(), needs.end(), std::back_inserter(anchors),
               [](const Need& need) { return need.is_anchor; });
  std::erase_if(needs, [](const Need& need) { return need.is_anchor; });
  if (!needs.empty()) {
    add_to_note(note, name + "missing: " + counted(needs, asked) +
                          ": the values are 0 there and is_pad is true; missing='drop' or episodes=" +
                          where_there(needs) + " leaves these episodes out");
  }
  if (!anchors.empty()) {
    add_to_note(note, name + "anchors: " + counted(anchors, asked) +
                          ", whose rows are the anchors: these episodes are not drawn; anchors= names another stream");
  }
}

// Which episodes' statistics normalise a source, where they are not all.
void select_statistics(SourceRequest& source) {
  std::vector<bool> is_drawn(static_cast<size_t>(source.dataset->num_episodes()));
  for (const int64_t episode : *source.episodes) is_drawn[static_cast<size_t>(episode)] = true;
  if (std::find(is_drawn.begin(), is_drawn.end(), false) != is_drawn.end()) source.selection = source.episodes;
}

// Cameras that draw together say so of each other.
void check_together(const LoaderOptions& options) {
  const auto all = [](const StreamRequest& camera) {
    std::set<std::string> keys(camera.images->together.begin(), camera.images->together.end());
    keys.insert(camera.stream);
    return keys;
  };
  for (const StreamRequest& camera : options.streams) {
    if (!is_camera(camera)) continue;
    for (const std::string& name : camera.images->together) {
      const auto other = std::find_if(options.streams.begin(), options.streams.end(),
                                      [&](const StreamRequest& request) { return request.stream == name; });
      if (other != options.streams.end() && is_camera(*other) && all(*other) == all(camera)) continue;
      refuse(of_stream(camera, "images"), ".together: expected cameras of the batch that name each other, got '", name,
             "'");
    }
  }
}

// The names of a flip of rows and of one of columns.
constexpr const char* kFlips[] = {"flip_vertical", "flip_horizontal"};

double flip_of(const StreamRequest& camera, size_t axis) {
  return axis == 0 ? camera.images->flip_vertical : camera.images->flip_horizontal;
}

const std::optional<std::vector<int64_t>>& mirror_of(const StreamRequest& request, size_t axis) {
  return axis == 0 ? request.mirror_vertical : request.mirror_horizontal;
}

// A camera that flips its images along an axis, or null.
const StreamRequest* flipped_camera(const LoaderOptions& options, size_t axis) {
  for (const StreamRequest& request : options.streams) {
    if (is_camera(request) && flip_of(request, axis) > 0) return &request;
  }
  return nullptr;
}

// A flipped image shows a mirrored world: each key of floats says what changes its sign. What does so changes it for all
// cameras.
void check_mirror(const LoaderOptions& options, size_t request, size_t axis) {
  const StreamRequest& asked = options.streams[request];
  const StreamRequest* const flipped = flipped_camera(options, axis);
  if (is_camera(asked) || flipped == nullptr) return;
  int64_t features = 0;
  bool floats = true;
  bool rows = true;
  for (const SourceRequest& source : options.sources) {
    if (!source.streams[request]) continue;
    const Stream& stream = source.dataset->streams()[static_cast<size_t>(*source.streams[request])];
    floats = floats && is_floating(stream.dtype);
    rows = rows && stream.shape.size() == 1;
    features = stream.features;
  }
  const std::string name = of_stream(asked, "mirror");
  const auto& mirrored = mirror_of(asked, axis);
  if (!mirrored) {
    if (!floats) return;
    refuse(name, ": expected the features whose signs change with ", kFlips[axis], " of '", flipped->stream,
           "', which mirrors the world ([]: none do), got none");
  }
  if (mirrored->empty()) return;
  if (!floats || !rows) refuse(name, ": expected [] for a key that is not of floats with rows of one axis");
  for (size_t i = 0; i < mirrored->size(); ++i) {
    const int64_t feature = (*mirrored)[i];
    if (feature >= (i == 0 ? 0 : (*mirrored)[i - 1] + 1) && feature < features) continue;
    refuse(name, ": expected ascending features below ", std::to_string(features), ", got ", std::to_string(feature));
  }
  for (const StreamRequest& camera : options.streams) {
    if (!is_camera(camera) || flip_of(camera, axis) == flip_of(*flipped, axis)) continue;
    refuse(of_stream(camera, "images"), ".", kFlips[axis], ": expected ", number_text(flip_of(*flipped, axis)),
           " as for '", flipped->stream, "', since '", asked.stream, "' is mirrored with all cameras, got ",
           number_text(flip_of(camera, axis)));
  }
  key_conversion(options, request);
}

// How far from 1 a quaternion's length may be, with the rounding of its type.
double length_tolerance(DType dtype) {
  constexpr double kTolerance = 1e-3;
  return kTolerance + (dtype == DType::kFloat16 ? 0x1p-11 : dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-24);
}

// Refuses a state whose features are the key's in another order, since a conversion compares them one by one.
void check_base_names(const LoaderOptions& options, size_t request, size_t base) {
  const StreamRequest& asked = options.streams[request];
  for (const SourceRequest& source : options.sources) {
    if (!source.streams[request] || !source.streams[base]) continue;
    const auto streams = source.dataset->streams();
    const std::vector<std::string>& names = streams[static_cast<size_t>(*source.streams[request])].names;
    const std::vector<std::string>& recorded = streams[static_cast<size_t>(*source.streams[base])].names;
    std::vector<std::string> taken;
    if (!recorded.empty()) {
      for (const int64_t feature : asked.base_features) taken.push_back(recorded[static_cast<size_t>(feature)]);
    }
    if (asked.base_features.empty()) taken = recorded;
    const std::string difference = first_difference(names, taken);
    if (difference.empty() || !are_reordered(names, taken)) continue;
    refuse(of_stream(asked, "base"), ": expected features of '", asked.base, "' in the order of this key's, got ",
           difference, "; base=(key, [indices]) gives their order");
  }
}

void check_conversion(const LoaderOptions& options, size_t request) {
  const StreamRequest& asked = options.streams[request];
  if (asked.convert.empty()) {
    if (!asked.base.empty()) refuse(of_stream(asked, "base"), ": goes with convert, got none");
    return;
  }
  key_conversion(options, request);
}

}  // namespace

std::string source_name(const LoaderOptions& options, size_t source) {
  return options.mixture ? "sources[" + std::to_string(source) + "]." : "";
}

bool is_camera(const StreamRequest& request) { return request.images.has_value(); }

KeyMirror key_mirror(const LoaderOptions& options, size_t request) {
  KeyMirror made{};
  for (size_t axis = 0; axis < 2; ++axis) {
    const StreamRequest* const flipped = flipped_camera(options, axis);
    const auto& mirrored = mirror_of(options.streams[request], axis);
    if (flipped == nullptr || !mirrored || mirrored->empty()) continue;
    made.flip[axis] = flip_of(*flipped, axis);
    made.axes.resize(std::max(made.axes.size(), static_cast<size_t>(mirrored->back()) + 1));
    for (const int64_t feature : *mirrored) made.axes[static_cast<size_t>(feature)] |= static_cast<uint8_t>(1 << axis);
  }
  return made;
}

std::vector<int64_t> key_shape(const LoaderOptions& options, size_t request) {
  const Stream* widest = nullptr;
  for (const SourceRequest& source : options.sources) {
    if (!source.streams[request]) continue;
    const Stream& stream = source.dataset->streams()[static_cast<size_t>(*source.streams[request])];
    if (widest == nullptr || stream.features > widest->features) widest = &stream;
  }
  if (!options.streams[request].convert.empty()) return {key_conversion(options, request).ops.out_features};
  return widest->shape;
}

KeyConversion key_conversion(const LoaderOptions& options, size_t request) {
  const StreamRequest& asked = options.streams[request];
  const std::string name = of_stream(asked, "convert");
  KeyConversion made{.ops = {}, .base = {}, .work = DType::kFloat32, .tolerance = 0};
  int64_t features = 0;
  const auto look_at = [&](size_t place, const std::string& argument, int64_t& width) {
    for (const SourceRequest& source : options.sources) {
      if (!source.streams[place]) continue;
      const Stream& stream = source.dataset->streams()[static_cast<size_t>(*source.streams[place])];
      if (stream.frames || !is_floating(stream.dtype) || stream.shape.size() != 1) {
        refuse(argument, ": expected a key of floats with rows of one axis, got '", options.streams[place].stream, "'");
      }
      if (width != 0 && stream.features != width) {
        refuse(argument, ": expected '", options.streams[place].stream, "' as wide in all sources, got ",
               std::to_string(width), " and ", std::to_string(stream.features));
      }
      width = stream.features;
      if (stream.dtype == DType::kFloat64) made.work = DType::kFloat64;
      made.tolerance = std::max(made.tolerance, length_tolerance(stream.dtype));
    }
  };
  look_at(request, name, features);
  made.ops = action_ops(asked.convert, features, name);
  if (!made.ops.has_base) {
    if (!asked.base.empty())
      refuse(of_stream(asked, "base"), ": goes with a conversion that compares with it, got none");
    return made;
  }
  for (size_t place = 0; place < options.streams.size(); ++place) {
    if (options.streams[place].stream == asked.base) made.base = place;
  }
  if (!made.base) {
    refuse(of_stream(asked, "base"), ": expected the key of the state, one of the batch's, got '", asked.base, "'");
  }
  int64_t base_row = 0;
  look_at(*made.base, of_stream(asked, "base"), base_row);
  const auto taken = static_cast<int64_t>(asked.base_features.size());
  if ((taken == 0 ? base_row : taken) != features) {
    refuse(of_stream(asked, "base"), ": expected ", std::to_string(features), " features of '", asked.base,
           "', in the order of this key's, got ", std::to_string(taken == 0 ? base_row : taken));
  }
  for (const int64_t feature : asked.base_features) {
    if (0 <= feature && feature < base_row) continue;
    refuse(of_stream(asked, "base"), ": expected features of '", asked.base, "' in [0, ", std::to_string(base_row),
           "), got ", std::to_string(feature));
  }
  check_base_names(options, request, *made.base);
  return made;
}

std::string method_proposal(const StreamRequest& request) {
  std::string text;
  for (const FeatureBlock& block : request.methods) {
    if (block.method == InterpolationMethod::kLinear) continue;
    text += (text.empty() ? "[(slice(" : ", (slice(") + std::to_string(block.begin) + ", " + std::to_string(block.end) +
            "), '" + std::string(method_name(block.method)) + "')";
  }
  return text.empty() ? "'linear'" : text + "]";
}

int64_t checked_ns(double seconds, std::string_view argument) {
  if (!(std::abs(seconds) < 0x1p62 / kNsPerSecond)) {
    refuse(argument, ": expected finite seconds, less than 146 years, got ", number_text(seconds));
  }
  return seconds_to_ns(seconds);
}

LoaderOptions complete_options(LoaderOptions options) {
  check_call(options);
  for (size_t place = 0; place < options.sources.size(); ++place) check_source(options, place);
  if (options.streams.empty()) refuse("delta_timestamps: expected at least one stream, got none");
  std::set<std::string_view> seen;
  for (const StreamRequest& request : options.streams) {
    if (!seen.insert(request.stream).second) {
      refuse("delta_timestamps: stream '", request.stream, "' is there twice");
    }
    find_streams(options, request);
  }
  std::vector<const Stream*> anchors;  // of each source
  for (size_t place = 0; place < options.sources.size(); ++place) {
    SourceRequest& source = options.sources[place];
    if (!options.anchor_hz) {
      source.anchor = anchor_of(options, place);
      anchors.push_back(&source.dataset->stream(source.anchor));
    }
    if (source.episodes) continue;
    source.episodes.emplace(static_cast<size_t>(source.dataset->num_episodes()));
    std::iota(source.episodes->begin(), source.episodes->end(), int64_t{0});
  }
  std::string names;
  for (size_t place = 0; place < options.streams.size(); ++place) {
    StreamRequest& request = options.streams[place];
    request.method_asked = request.method || options.method || (!request.methods.empty() && request.method_asked);
    std::vector<const Stream*> streams;
    for (size_t s = 0; s < options.sources.size(); ++s) {
      const SourceRequest& source = options.sources[s];
      if (!source.streams[place]) continue;
      streams.push_back(&source.dataset->streams()[static_cast<size_t>(*source.streams[place])]);
      if (!request.method_asked && !options.anchor_hz) check_grid(options, request, *streams.back(), *anchors[s]);
    }
    complete(options, streams, request);
    check_names(request, streams, names);
  }
  if (!names.empty()) options.notes.push_back(names);
  check_together(options);
  for (size_t request = 0; request < options.streams.size(); ++request) {
    check_conversion(options, request);
    for (size_t axis = 0; axis < 2; ++axis) check_mirror(options, request, axis);
  }
  std::string missing;
  for (size_t place = 0; place < options.sources.size(); ++place) judge_missing(options, place, missing);
  if (!missing.empty()) options.notes.push_back(missing);
  if (options.stats_of == StatsOf::kSelection) {
    for (SourceRequest& source : options.sources) select_statistics(source);
  }
  if (!options.mixture && !options.anchor_hz) options.anchor = options.sources[0].anchor;
  return options;
}

void add_to_note(std::string& note, const std::string& sentence) { note += (note.empty() ? "" : "; ") + sentence; }

}  // namespace robocache
