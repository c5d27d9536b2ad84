#include "robocache/batch/loader.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "robocache/align/window_batch.hpp"
#include "robocache/align/window_plan.hpp"
#include "robocache/batch/camera.hpp"
#include "robocache/batch/fingerprint.hpp"
#include "robocache/batch/frames_ahead.hpp"
#include "robocache/batch/loader_streams.hpp"
#include "robocache/batch/tolerance.hpp"
#include "robocache/batch/window_survey.hpp"
#include "robocache/cache/selection_statistics.hpp"
#include "robocache/cache/statistics.hpp"
#include "robocache/core/arguments.hpp"
#include "robocache/core/device_tables.hpp"
#include "robocache/sample/anchors.hpp"
#include "robocache/sample/mixture.hpp"
#include "robocache/source/resident.hpp"

namespace robocache {
namespace {

// Where a key's arrays lie.
struct Key {
  int64_t features = 1;
  int64_t out_offset = -1;
  int64_t pad_offset = -1;
  int64_t age_offset = -1;
  int64_t feature_pad_offset = -1;
  int64_t number_offset =
      -1;  // of a camera: the numbers of the rows that were chosen, int64, behind the batch's arrays
  int64_t intrinsics_offset = -1;
  int64_t packed_offset = -1;  // of a camera whose frames come by batch: their files, behind all others
  // Of a camera whose frames are fetched ahead: the same numbers, and the files, in a place of FramesAhead.
  int64_t ahead_number_offset = -1;
  int64_t ahead_offset = -1;
};

std::string short_text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", number);
  return text;
}

// The moments that are drawn of one source.
struct Source {
  std::shared_ptr<const ResidentClock> ticks;  // the anchors', unless they have a rate
  Anchors anchors;
  AnchorIndex index;  // whose tables lie on the device
};

}  // namespace

struct Loader::Impl {
  explicit Impl(LoaderOptions asked)
      : options(complete_options(std::move(asked))),
        episodes_of_ranks(options.shard_episodes ? cut_episodes(options) : EpisodesOfRanks{}),
        streams(options),
        layout(options.batch_size),
        tables(options.device),
        keys(options.streams.size()),
        sources(options.sources.size()) {
    if (options.device.is_cuda()) make_room_for_frames();
    // What the host makes for a device comes last, so that it is one piece, and at its end what it only sends along.
    bool all_by_host = true;
    for (size_t request = 0; request < keys.size(); ++request) {
      all_by_host = all_by_host && streams.by_host(request);
      if (!streams.by_host(request)) {
        add_values(request);
        add_marks(request);
      } else if (streams.comes_by_batch(request)) {
        add_values(request);
      }
    }
    if (all_by_host) host_offset = layout.bytes();
    time_offset = layout.add("time_ns", DType::kInt64, {}, "the anchors' times");
    episode_offset = layout.add("episode_index", DType::kInt64, {}, "the anchors' episodes");
    if (options.mixture) source_offset = layout.add("dataset_index", DType::kInt64, {}, "the samples' sources");
    if (!all_by_host) host_offset = layout.bytes();
    for (size_t request = 0; request < keys.size(); ++request) {
      if (!streams.by_host(request)) continue;
      if (!streams.comes_by_batch(request)) add_values(request);
      add_marks(request);
    }
    packed_offset = layout.bytes();
    for (size_t request = 0; request < keys.size(); ++request) {
      if (!streams.comes_by_batch(request)) continue;
      keys[request].packed_offset = layout.add_room(streams.camera(request)->packed_bytes());
    }
    aligns_on_device = !all_by_host;
    make_anchors();
    survey();
    make_mixture();
    if (aligns_on_device) plan = plan_of(false, true, tables);
    if (host_bytes() > 0) host_plan = plan_of(true, all_by_host, host_tables);
    note_lesser_spreads();
    make_places_ahead();
  }

  void make_places_ahead() {
    BatchLayout place(options.batch_size);
    for (size_t request = 0; request < keys.size(); ++request) {
      if (!streams.is_fetched(request)) continue;
      keys[request].ahead_number_offset = place.add_scratch(streams.number_bytes(request));
      keys[request].ahead_offset = place.add_room(streams.fetched_bytes(request));
    }
    if (place.bytes() == 0) return;
    ahead.emplace(options.device, place.bytes());
    ahead_plan = ahead_plan_of();
  }

  // Where the device decodes the frames of a batch.
  void make_room_for_frames() {
    int64_t bytes = 0;
    for (size_t request = 0; request < keys.size(); ++request) {
      const Camera* const camera = streams.camera(request);
      if (camera == nullptr || (streams.by_host(request) && !streams.comes_by_batch(request))) continue;
      const auto steps = static_cast<int64_t>(options.streams[request].delta_timestamps.size());
      bytes = std::max(bytes, camera->scratch_bytes(options.batch_size * steps));
      decodes_on_device = true;
    }
    frames_scratch = DeviceBuffer(options.device, static_cast<size_t>(bytes));
    frames_made = CudaEvent(options.device);
  }

  // ---- what a batch is -------------------------------------------------------------------------------------------------

  // Of a key's arrays: the axes before a row's own.
  std::vector<int64_t> steps_of(size_t place) const {
    const StreamRequest& request = options.streams[place];
    if (request.one_step) return {};
    return {static_cast<int64_t>(request.delta_timestamps.size())};
  }

  std::vector<int64_t> row_of(size_t place) const {
    return streams.camera(place) != nullptr ? streams.camera(place)->shape() : key_shape(options, place);
  }

  void add_values(size_t place) {
    const StreamRequest& request = options.streams[place];
    const std::vector<int64_t> row = row_of(place);
    std::vector<int64_t> shape = steps_of(place);
    shape.insert(shape.end(), row.begin(), row.end());
    for (const int64_t extent : row) keys[place].features *= extent;
    const DType dtype = streams.camera(place) != nullptr ? streams.camera(place)->dtype() : *request.dtype;
    keys[place].out_offset = layout.add(request.stream, dtype, shape, "stream '" + request.stream + "'");
  }

  // What goes with the values.
  void add_marks(size_t place) {
    const StreamRequest& request = options.streams[place];
    const Camera* const camera = streams.camera(place);
    const std::string name = "stream '" + request.stream + "'";
    const std::vector<int64_t> steps = steps_of(place);
    const std::vector<int64_t> row = row_of(place);
    Key& key = keys[place];
    key.pad_offset = layout.add(request.stream + "_is_pad", DType::kBool, steps, "what is padding of " + name);
    if (options.return_age) {
      key.age_offset = layout.add(request.stream + "_age", DType::kInt64, steps, "the age of " + name);
    }
    if (camera != nullptr) {
      if (camera->has_intrinsics()) {
        std::vector<int64_t> matrix = request.images->per_frame ? steps : std::vector<int64_t>{};
        matrix.insert(matrix.end(), {3, 3});
        key.intrinsics_offset =
            layout.add(request.stream + "_intrinsics", DType::kFloat32, matrix, "the intrinsics of " + name);
      }
      key.number_offset = layout.add_scratch(streams.number_bytes(place));
    } else if (options.pad_features && row.size() == 1) {
      key.feature_pad_offset =
          layout.add(request.stream + "_feature_is_pad", DType::kBool, row, "which features are padding of " + name);
    }
  }

  // ---- which moments ---------------------------------------------------------------------------------------------------

  void make_anchors() {
    for (size_t place = 0; place < sources.size(); ++place) {
      Source& source = sources[place];
      const SourceRequest& request = options.sources[place];
      if (!options.anchor_hz) {
        source.ticks = ResidentClock::get(request.dataset, request.dataset->index_of(request.anchor), options.device);
      }
      source.anchors = anchors_of(place, *request.episodes);
      if (source.anchors.table().empty()) refuse_without_anchors(place, options.rank);
      source.index = source.anchors.index();
      if (!options.shard_episodes) fingerprint.add_anchors(*request.dataset, source.index);
      if (!options.device.is_cuda()) continue;
      source.index.table = tables.put(source.anchors.table());
      source.index.first_of = tables.put(source.anchors.first_of());
      if (source.ticks) source.index.tick_ns = source.ticks->on_device().time_ns;
    }
  }

  void survey() {
    std::string padding;
    std::string made_up;
    for (size_t place = 0; place < sources.size(); ++place) {
      survey_windows(options, streams, place, sources[place].anchors.index(), padding, made_up);
    }
    for (std::string* const note : {&made_up, &padding}) {
      if (!note->empty()) options.notes.push_back(std::move(*note));
    }
  }

  [[noreturn]] void refuse_without_anchors(size_t place, int64_t rank) const {
    refuse(source_name(options, place), "anchor: expected a tick to draw, got none in the ",
           options.shard_episodes ? "episodes of rank " + std::to_string(rank) : "episodes asked for",
           options.edges == Edges::kDrop || options.drop_n_last > 0 ? " that edges and drop_n_last leave" : "");
  }

  Anchors anchors_of(size_t place, const std::vector<int64_t>& episodes) const {
    const AnchorEdges edges = edges_of(place);
    if (const auto& ticks = sources[place].ticks) return Anchors::of_ticks(ticks->on_host(), episodes, edges);
    std::vector<StreamClock> clocks;
    for (size_t request = 0; request < keys.size(); ++request) {
      if (const auto& stream = streams.of(place, request)) clocks.push_back(stream->clock().on_host());
    }
    return Anchors::at_rate(*options.anchor_hz, clocks, episodes, edges);
  }

  // The anchors of the rank that has the fewest, where each has its own. Every rank refuses what one of them cannot draw, and
  // has the fingerprint of all.
  int64_t fewest_anchors() {
    int64_t fewest = INT64_MAX;
    for (size_t rank = 0; rank < static_cast<size_t>(options.world_size); ++rank) {
      int64_t anchors = 0;
      for (size_t place = 0; place < sources.size(); ++place) {
        const Anchors of_source = anchors_of(place, episodes_of_ranks[place][rank]);
        if (of_source.table().empty()) refuse_without_anchors(place, static_cast<int64_t>(rank));
        fingerprint.add_anchors(*options.sources[place].dataset, of_source.index());
        anchors += of_source.index().anchors;
      }
      fewest = std::min(fewest, anchors);
    }
    return fewest;
  }

  AnchorEdges edges_of(size_t place) const {
    AnchorEdges edges{.whole = {}, .snap_ns = checked_ns(options.snap_s, "snap_s"), .drop_n_last = options.drop_n_last};
    if (options.edges == Edges::kPad) return edges;
    for (size_t request = 0; request < keys.size(); ++request) {
      const auto& stream = streams.of(place, request);
      if (!stream) continue;
      const std::vector<int64_t> delta_ns = offsets_ns(options.streams[request]);
      const auto [first, last] = std::minmax_element(delta_ns.begin(), delta_ns.end());
      edges.whole.push_back({stream->clock().on_host(), *first, *last});
    }
    return edges;
  }

  void make_mixture() {
    MixtureOptions mixing{.weights = {},
                          .temperature = options.temperature,
                          .samples_per_epoch = options.samples_per_epoch,
                          .shuffle = options.shuffle};
    for (const SourceRequest& source : options.sources) mixing.weights.push_back(source.weight);
    std::vector<int64_t> anchors;
    for (const Source& source : sources) anchors.push_back(source.anchors.index().anchors);
    if (options.shard_episodes && mixing.samples_per_epoch.value_or(0) > 0) {  // others are refused as ever
      mixing.samples_per_epoch = std::max<int64_t>(1, *mixing.samples_per_epoch / options.world_size);
    }
    const MixtureTables mixed(anchors, mixing);
    mixture = mixed.mixture();
    // Every rank makes as many steps.
    if (options.shard_episodes) {
      const int64_t fewest = fewest_anchors();
      if (!mixing.samples_per_epoch) mixture.samples = fewest;
    }
    add_order(mixed, mixing);
    mixture.table = tables.put(mixed.table());
    host_mixture = mixture;
    host_mixture.table = host_tables.put(mixed.table());
    if (options.drop_last && samples() < options.batch_size * options.world_size) {
      refuse("batch_size: expected at most the ", std::to_string(samples() / options.world_size), " samples there are",
             options.world_size > 1 ? " for each rank" : "", ", since drop_last, got ",
             std::to_string(options.batch_size));
    }
  }

  // Weights count by the share that they give a source.
  void add_order(const MixtureTables& mixed, const MixtureOptions& mixing) {
    fingerprint.add_order(options.shuffle);
    fingerprint.add_order(mixture.weighted);
    fingerprint.add_order(options.shard_episodes ? options.world_size : 0);
    if (!mixture.weighted) return;
    fingerprint.add_order(mixture.samples);
    for (const MixtureSource& source : mixed.table()) {
      // A temperature's shares are of each rank's own anchors.
      if (!options.shard_episodes || !mixing.temperature) fingerprint.add_order(source.first_place);
    }
    fingerprint.add_order(options.shard_episodes ? mixing.temperature.value_or(0) : 0);
  }

  // ---- how a batch is made of them -------------------------------------------------------------------------------------

  // The plan of the keys that the host makes for a device, or of the others; `anchors`: and of what the anchors are.
  WindowPlan plan_of(bool host, bool anchors, DeviceTables& to) {
    std::vector<WindowStreams> windows;
    for (size_t place = 0; place < sources.size(); ++place) {
      const Source& source = sources[place];
      WindowStreams made{.anchors = host ? source.anchors.index() : source.index, .streams = {}, .constants = {}};
      for (size_t request = 0; request < keys.size(); ++request) {
        if (streams.by_host(request) != host) continue;
        made.streams.push_back(window_of(place, request, to));
        if (const int64_t offset = keys[request].feature_pad_offset; offset >= 0) {
          std::vector<uint8_t> mask(static_cast<size_t>(keys[request].features), 1);
          const auto& stream = streams.of(place, request);
          if (stream) std::fill_n(mask.begin(), stream->rows().features, uint8_t{0});
          made.constants.push_back({to.put(mask), keys[request].features, offset});
        }
      }
      windows.push_back(std::move(made));
    }
    WindowPlan planned = window_plan(windows, to);
    planned.time_offset = anchors ? time_offset : -1;
    planned.episode_offset = anchors ? episode_offset : -1;
    planned.source_offset = anchors ? source_offset : -1;
    planned.snap_ns = checked_ns(options.snap_s, "snap_s");
    return planned;
  }

  // The plan of the frames that are fetched ahead: their numbers alone.
  WindowPlan ahead_plan_of() {
    std::vector<WindowStreams> windows;
    for (size_t place = 0; place < sources.size(); ++place) {
      WindowStreams& made =
          windows.emplace_back(WindowStreams{.anchors = sources[place].index, .streams = {}, .constants = {}});
      for (size_t request = 0; request < keys.size(); ++request) {
        if (!streams.is_fetched(request)) continue;
        WindowStream& numbers = made.streams.emplace_back(window_of(place, request, tables));
        numbers.out_offset = keys[request].ahead_number_offset;
        numbers.pad_offset = -1;
        numbers.age_offset = -1;
      }
    }
    WindowPlan planned = window_plan(windows, tables);
    planned.time_offset = -1;
    planned.episode_offset = -1;
    planned.source_offset = -1;
    planned.snap_ns = checked_ns(options.snap_s, "snap_s");
    return planned;
  }

  // Hands on what a key of a source is normalised by: statistics given for the source, else for all, else those of the
  // selection, else the cache's own; and what they are called.
  template <class By>
  auto by_statistics(size_t place, size_t of_request, const By& by) const {
    const StreamRequest& request = options.streams[of_request];
    const SourceRequest& source = options.sources[place];
    const Stream& stream = stream_of(place, of_request);
    const std::string name = "norm_stats['" + request.stream + "']";
    if (const auto given = source.norm_stats.find(request.stream); given != source.norm_stats.end()) {
      return by(given->second.view(), source_name(options, place) + name);
    }
    if (const auto given = options.norm_stats.find(request.stream); given != options.norm_stats.end()) {
      return by(given->second.view(), name);
    }
    if (!source.selection) return by(stream.stats, "stream '" + request.stream + "'");
    const auto table = cache::selection_statistics(*source.dataset, *source.streams[of_request], *source.selection);
    return by(cache::feature_stats(table->data(), stream.features), "stream '" + request.stream + "'");
  }

  const Stream& stream_of(size_t place, size_t request) const {
    const SourceRequest& source = options.sources[place];
    return source.dataset->streams()[static_cast<size_t>(*source.streams[request])];
  }

  bool normalizes(size_t place, size_t request) const {
    return options.sources[place].streams[request] && *options.streams[request].normalize != Normalize::kNone;
  }

  std::vector<Affine> affines_of(size_t place, size_t request) const {
    if (!normalizes(place, request)) return {};
    const Stream& stream = stream_of(place, request);
    return by_statistics(place, request, [&](const FeatureStats& stats, const std::string& name) {
      return robocache::affines(stats, stream.features, stream.dtype, *options.streams[request].normalize,
                                options.constant, options.min_spread, name);
    });
  }

  // Says which features are not scaled though they are not constant.
  void note_lesser_spreads() {
    constexpr int kMost = 8;  // that are named
    std::string features;
    int count = 0;
    for (size_t place = 0; place < sources.size(); ++place) {
      for (size_t request = 0; request < keys.size(); ++request) {
        if (!normalizes(place, request)) continue;
        const Stream& stream = stream_of(place, request);
        by_statistics(place, request, [&](const FeatureStats& stats, const std::string&) {
          for (size_t f = 0; f < static_cast<size_t>(stream.features); ++f) {
            const auto spread = lesser_spread(stats, f, *options.streams[request].normalize,
                                              stream.dtype == DType::kFloat64, options.constant, options.min_spread);
            if (!spread || count++ >= kMost) continue;
            features += (features.empty() ? "" : ", ") + source_name(options, place) + "'" +
                        options.streams[request].stream + "'[" + std::to_string(f) + "]" +
                        (f < stream.names.size() ? " (" + stream.names[f] + ")" : "") + " " + short_text(*spread);
          }
          return 0;
        });
      }
    }
    if (count == 0) return;
    if (count > kMost) features += " and " + std::to_string(count - kMost) + " more";
    options.notes.push_back(
        "min_spread: features that are not constant count as such and are not scaled, since their spread is "
        "below " +
        number_text(options.min_spread) + ", " + std::to_string(count) + " in all: " + features +
        "; min_spread=0 scales them");
  }

  WindowStream window_of(size_t place, size_t of_request, DeviceTables& to) const {
    const StreamRequest& request = options.streams[of_request];
    const auto& resident = streams.of(place, of_request);
    WindowStream window{};
    const Camera* const camera = streams.camera(of_request);
    window.out_features = camera != nullptr ? 1 : keys[of_request].features;
    window.out_offset = camera != nullptr ? keys[of_request].number_offset : keys[of_request].out_offset;
    window.pad_offset = keys[of_request].pad_offset;
    window.age_offset = keys[of_request].age_offset;
    window.out_dtype = camera != nullptr ? DType::kInt64 : *request.dtype;
    window.delta_ns = offsets_ns(request);
    // Longer than 31 years is none.
    if (request.max_gap_s) window.max_gap_ns = checked_ns(std::min(*request.max_gap_s, 1e9), "max_gap_s");
    if (request.tolerance_s) window.tolerance_ns = checked_ns(std::min(*request.tolerance_s, 1e9), "tolerance_s");
    window.causal = *request.causal;
    if (!resident) {
      window.rows = {.clock = {}, .values = nullptr, .features = window.out_features, .dtype = window.out_dtype};
      window.methods = {{0, window.out_features, InterpolationMethod::kPrevious}};
      return window;
    }
    if (camera != nullptr) {
      window.rows = streams.row_numbers(place, of_request);
      window.methods = {{0, 1, *request.method}};
      return window;
    }
    window.rows = resident->rows();
    window.methods = feature_blocks(window.rows.features, *request.method, request.methods);
    const AffineTables affine = affine_tables(affines_of(place, of_request), window.rows.dtype, to);
    window.scale = affine.scale;
    window.shift = affine.shift;
    return window;
  }

  WindowBatch batch_at(const BatchPosition& position, int64_t count, bool host) const {
    return batch_at(position, count, host ? host_plan : plan, host ? host_mixture : mixture);
  }

  WindowBatch batch_at(const BatchPosition& position, int64_t count, const WindowPlan& by, const Mixture& of) const {
    WindowBatch batch{};
    batch.plan = by;
    batch.count = count;
    batch.first_position =
        options.shard_episodes ? position.samples / options.world_size : position.samples + options.rank * count;
    batch.mixture = of.at_epoch(position.seed, position.epoch);
    return batch;
  }

  // That all ranks draw in an epoch.
  int64_t samples() const { return mixture.samples * (options.shard_episodes ? options.world_size : 1); }

  size_t host_bytes() const { return static_cast<size_t>(layout.bytes() - host_offset); }

  // What the host makes, in its own memory.
  HostPart run_host(WindowBatch batch, const ImageDraw& draw, void* memory,
                    std::span<const int64_t> anchors = {}) const {
    batch.memory = static_cast<char*>(memory) - host_offset;
    window_batch(batch, {}, {});
    HostPart part{.copies = {{0, host_offset, packed_offset - host_offset}}, .packed = {}, .bad_frames = 0};
    part.packed.resize(keys.size());
    for (size_t request = 0; request < keys.size(); ++request) {
      if (streams.camera(request) == nullptr || !streams.by_host(request)) continue;
      const Camera::Batch frames = frames_of(batch, request, draw, anchors);
      if (!streams.comes_by_batch(request)) {
        part.bad_frames += streams.camera(request)->fill(frames);
        continue;
      }
      const int64_t at = keys[request].packed_offset;
      const PackedJpegs& packed = part.packed[request] =
          streams.camera(request)->pack(frames, static_cast<char*>(batch.memory) + at, part.bad_frames);
      part.copies.push_back({at - host_offset, at, packed.bytes});
    }
    return part;
  }

  // `anchors`: those that were asked for, if any.
  Camera::Batch frames_of(const WindowBatch& batch, size_t request, const ImageDraw& draw,
                          std::span<const int64_t> anchors) const {
    auto* const memory = static_cast<char*>(batch.memory);
    const Key& key = keys[request];
    Camera::Batch frames{};
    frames.numbers = reinterpret_cast<int64_t*>(memory + key.number_offset);
    frames.first = draw;
    frames.samples = anchors;
    frames.count = batch.count;
    frames.steps = static_cast<int64_t>(options.streams[request].delta_timestamps.size());
    frames.out = memory + key.out_offset;
    frames.is_pad = reinterpret_cast<bool*>(memory + key.pad_offset);
    if (key.intrinsics_offset >= 0) frames.intrinsics = reinterpret_cast<float*>(memory + key.intrinsics_offset);
    return frames;
  }

  void fetch(const BatchPosition& position, int64_t count) const {
    const std::lock_guard<std::mutex> lock(frames_mutex);
    ahead->bring(position, [&](void* memory, CudaStream stream) {
      WindowBatch batch = batch_at(position, count, ahead_plan, mixture);
      batch.memory = memory;
      window_batch(batch, options.device, stream);
      for (size_t request = 0; request < keys.size(); ++request) {
        if (!streams.is_fetched(request)) continue;
        auto* const place = static_cast<char*>(memory);
        streams.camera(request)->fetch(reinterpret_cast<const int64_t*>(place + keys[request].ahead_number_offset),
                                       count * static_cast<int64_t>(options.streams[request].delta_timestamps.size()),
                                       place + keys[request].ahead_offset, stream);
      }
    });
  }

  // All but what the host makes, which `part` says. On the CPU that is all. `position`: of a batch that may have been
  // fetched. Returns how many frames did not decode, but for those that the device decodes.
  int64_t run_device(const WindowBatch& batch, const HostPart& part, const ImageDraw& draw, CudaStream stream,
                     const std::optional<BatchPosition>& position, std::span<const int64_t> anchors = {}) const {
    if (aligns_on_device) window_batch(batch, options.device, stream);
    int64_t bad_frames = part.bad_frames;
    const bool cuda = options.device.is_cuda();
    std::unique_lock<std::mutex> lock(frames_mutex, std::defer_lock);
    const void* fetched = nullptr;
    for (size_t request = 0; request < keys.size(); ++request) {
      const Camera* const camera = streams.camera(request);
      if (camera == nullptr || (streams.by_host(request) && !streams.comes_by_batch(request))) continue;
      const Camera::Batch frames = frames_of(batch, request, draw, anchors);
      if (!cuda) {
        bad_frames += camera->fill(frames);
        continue;
      }
      if (!lock.owns_lock()) {  // one batch after the other has the scratch
        lock.lock();
        frames_made.make_wait(stream);
        if (ahead && position) fetched = ahead->find(*position, stream);
      }
      const Key& key = keys[request];
      const void* brought = nullptr;
      if (streams.comes_by_batch(request)) brought = static_cast<const char*>(batch.memory) + key.packed_offset;
      if (streams.is_fetched(request) && fetched != nullptr) {
        brought = static_cast<const char*>(fetched) + key.ahead_offset;
      }
      camera->fill_on_device(frames, streams.comes_by_batch(request) ? part.packed[request] : PackedJpegs{}, brought,
                             frames_scratch.data(), stream);
    }
    if (!lock.owns_lock()) return bad_frames;
    frames_made.record(stream);
    if (fetched != nullptr) ahead->keep(fetched, stream);
    return bad_frames;
  }

  void check_damage() const {
    for (size_t request = 0; request < keys.size(); ++request) {
      if (const Camera* const camera = streams.camera(request)) camera->check_damage();
    }
  }

  // The random draws of a batch's first sample.
  static ImageDraw draw_of(const BatchPosition& position, const WindowBatch& batch) {
    return {.seed = position.seed, .epoch = static_cast<uint64_t>(position.epoch), .sample = batch.first_position};
  }

  void synchronize(CudaStream stream, const char* what) const {
    check_cuda(cuda_backend().synchronize(options.device.index, stream.handle), what);
  }

  LoaderOptions options;
  EpisodesOfRanks episodes_of_ranks;  // where each rank has its own
  LoaderStreams streams;
  BatchLayout layout;
  DeviceTables tables;
  DeviceTables host_tables{Device{}};
  std::vector<Key> keys;  // of each request
  std::vector<Source> sources;
  DeviceBuffer frames_scratch;
  mutable CudaEvent frames_made;
  mutable std::mutex frames_mutex;
  int64_t time_offset = -1;
  int64_t episode_offset = -1;
  int64_t source_offset = -1;
  int64_t host_offset = 0;        // behind this lies what the host makes,
  int64_t packed_offset = 0;      // and behind this what it sends along
  bool aligns_on_device = false;  // or, on the CPU, at all
  bool decodes_on_device = false;
  WindowPlan plan{};
  WindowPlan host_plan{};
  WindowPlan ahead_plan{};
  Mixture mixture{};
  Mixture host_mixture{};
  OrderFingerprint fingerprint;
  mutable std::optional<FramesAhead> ahead;  // destroyed first: what it has queued reads all of the above
};

Loader::Loader(LoaderOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Loader::Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
    : Loader([&] {
        options.sources.resize(1);
        options.sources[0].dataset = std::move(dataset);
        return std::move(options);
      }()) {}
Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;

const LoaderOptions& Loader::options() const { return impl_->options; }

int64_t Loader::anchors() const { return impl_->mixture.anchors; }

int64_t Loader::samples() const { return impl_->samples(); }

int64_t Loader::steps_per_epoch() const {
  const int64_t together = impl_->options.batch_size * impl_->options.world_size;
  return impl_->options.drop_last ? samples() / together : (samples() + together - 1) / together;
}

size_t Loader::batch_bytes() const { return static_cast<size_t>(impl_->layout.bytes()); }

const std::vector<BatchArray>& Loader::arrays() const { return impl_->layout.arrays(); }

int64_t Loader::samples_at(const BatchPosition& position) const {
  if (position.samples < 0 || position.samples > samples()) {
    refuse("samples: expected in [0, ", std::to_string(samples()), "], got ", std::to_string(position.samples));
  }
  const LoaderOptions& options = impl_->options;
  const int64_t left = samples() - position.samples;
  if (left >= options.batch_size * options.world_size) return options.batch_size;
  return options.drop_last ? 0 : (left + options.world_size - 1) / options.world_size;
}

BatchPosition Loader::after(const BatchPosition& position) const {
  const int64_t end = position.samples + samples_at(position) * impl_->options.world_size;
  return {position.seed, position.epoch, std::min(end, samples())};
}

const std::vector<Placement>& Loader::placements() const { return impl_->streams.placements(); }

std::vector<Affine> Loader::affines(size_t source, size_t request) const { return impl_->affines_of(source, request); }

std::string Loader::fingerprint() const { return impl_->fingerprint.text(); }

int64_t Loader::bad_frames_on_device() const {
  int64_t frames = 0;
  for (size_t request = 0; request < impl_->keys.size(); ++request) {
    if (const Camera* const camera = impl_->streams.camera(request)) frames += camera->bad_frames_on_device();
  }
  return frames;
}

bool Loader::is_small() const {
  constexpr int64_t kSmallBytes = 64 << 10;  // about 15 microseconds; waking a thread takes 5 to 50
  if (impl_->options.device.is_cuda()) return false;
  if (impl_->options.batch_size > kSmallBytes / std::max<int64_t>(1, impl_->plan.sample_bytes)) return false;
  for (size_t request = 0; request < impl_->keys.size(); ++request) {
    if (impl_->streams.camera(request) != nullptr || placements()[request].tier == Tier::kMapped) return false;
  }
  return true;
}

size_t Loader::host_bytes() const { return impl_->host_bytes(); }

Loader::HostPart Loader::fill_host(const BatchPosition& position, void* memory) const {
  if (host_bytes() == 0) return {};
  const WindowBatch batch = impl_->batch_at(position, samples_at(position), true);
  return impl_->run_host(batch, Impl::draw_of(position, batch), memory);
}

void Loader::copy_host_part(const HostPart& part, const void* from, void* memory, CudaStream stream) const {
  for (const StagedCopy& copy : part.copies) {
    check_cuda(cuda_backend().copy_from_host(impl_->options.device.index, static_cast<char*>(memory) + copy.to,
                                             static_cast<const char*>(from) + copy.from,
                                             static_cast<size_t>(copy.bytes), stream.handle),
               "copying a batch's part to the device");
  }
}

int64_t Loader::fill_device(const BatchPosition& position, const HostPart& part, void* memory,
                            CudaStream stream) const {
  WindowBatch batch = impl_->batch_at(position, samples_at(position), false);
  batch.memory = memory;
  impl_->check_damage();  // of batches before
  return impl_->run_device(batch, part, Impl::draw_of(position, batch), stream, position);
}

int64_t Loader::fill(const BatchPosition& position, void* memory, CudaStream stream) const {
  HostPart part;
  if (host_bytes() > 0) {
    const PinnedBuffer staging(impl_->options.device, host_bytes());
    part = fill_host(position, staging.data());
    copy_host_part(part, staging.data(), memory, stream);
    impl_->synchronize(stream, "batch");
  }
  return fill_device(position, part, memory, stream);
}

void Loader::fetch(const BatchPosition& position) const {
  const int64_t samples = samples_at(position);
  if (impl_->ahead && samples > 0) impl_->fetch(position, samples);
}

void Loader::check_frames(CudaStream stream) const {
  if (!impl_->decodes_on_device) return;
  impl_->synchronize(stream, "decoding frames");
  impl_->check_damage();
}

int64_t Loader::gather(const BatchPosition& position, std::span<const int64_t> anchors, void* memory,
                       CudaStream stream) const {
  const Device device = impl_->options.device;
  if (static_cast<int64_t>(anchors.size()) > impl_->options.batch_size) {
    refuse("indices: expected at most batch_size, ", std::to_string(impl_->options.batch_size), ", got ",
           std::to_string(anchors.size()));
  }
  for (size_t i = 0; i < anchors.size(); ++i) {
    if (anchors[i] >= 0 && anchors[i] < this->anchors()) continue;
    refuse("indices[", std::to_string(i), "]: expected in [0, ", std::to_string(this->anchors()), "), got ",
           std::to_string(anchors[i]));
  }
  const auto count = static_cast<int64_t>(anchors.size());
  const ImageDraw draw{.seed = position.seed, .epoch = static_cast<uint64_t>(position.epoch), .sample = 0};
  HostPart part;
  if (host_bytes() > 0) {
    const PinnedBuffer staging(device, host_bytes());
    WindowBatch batch = impl_->batch_at({}, count, true);
    batch.anchors = anchors.data();
    part = impl_->run_host(batch, draw, staging.data(), anchors);
    copy_host_part(part, staging.data(), memory, stream);
    impl_->synchronize(stream, "batch");
  }
  DeviceTables copy(device);
  WindowBatch batch = impl_->batch_at({}, count, false);
  batch.anchors = device.is_cuda() ? copy.put(anchors) : anchors.data();
  batch.memory = memory;
  const int64_t bad_frames = impl_->run_device(batch, part, draw, stream, {}, anchors);
  if (device.is_cuda()) impl_->synchronize(stream, "gather");
  impl_->check_damage();
  return bad_frames;
}

TensorView Loader::view(const BatchArray& array, int64_t samples, void* memory) const {
  return BatchLayout::view(array, samples, memory, impl_->options.device);
}
void Loader::check_tolerance() const {
  for (size_t place = 0; place < impl_->sources.size(); ++place) {
    robocache::check_tolerance(impl_->options, impl_->streams, place, impl_->sources[place].anchors.index());
  }
}

}  // namespace robocache
