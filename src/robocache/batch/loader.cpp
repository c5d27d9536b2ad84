#include "robocache/batch/loader.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "robocache/align/moments.hpp"
#include "robocache/align/window_batch.hpp"
#include "robocache/align/window_plan.hpp"
#include "robocache/batch/fingerprint.hpp"
#include "robocache/batch/frames_ahead.hpp"
#include "robocache/batch/key.hpp"
#include "robocache/batch/key_statistics.hpp"
#include "robocache/batch/loader_streams.hpp"
#include "robocache/batch/stored_rotations.hpp"
#include "robocache/batch/tolerance.hpp"
#include "robocache/batch/window_survey.hpp"
#include "robocache/core/arguments.hpp"
#include "robocache/core/device_tables.hpp"
#include "robocache/sample/anchor_classes.hpp"
#include "robocache/sample/anchors.hpp"
#include "robocache/sample/mixture.hpp"
#include "robocache/source/resident.hpp"

namespace robocache {
namespace {

// The anchors of one source.
struct Source {
  std::shared_ptr<const ResidentClock> ticks;  // null with anchor_hz
  Anchors anchors;
  int64_t before_filter;               // anchors
  std::optional<MomentTicks> moments;  // where a key has goals

  // What the windows of a request are around: the anchors, or every tick.
  AnchorIndex around(const StreamRequest& request) const { return request.moment ? moments->index() : anchors.index(); }
};

// Anchors that the mixture draws as one source: those of a source, or of a class of them.
struct Drawn {
  size_t source;
  Anchors anchors;
  AnchorIndex on_device;  // its tables lie on the device
};

// The windows of a batch around its anchors, or around moments of one rule, and the samples' order, where the host or the device
// reads all.
struct Aligner {
  WindowPlan plan{};
  Mixture mixture{};
  bool runs = false;                   // it has windows, or writes what the anchors are
  MomentBatch moments{};               // of a rule: all but the batch
  int64_t moments_offset = -1;         // bytes to the drawn moments,
  int64_t offset_offset = -1;          // to the first array of their offsets,
  int64_t moment_episode_offset = -1;  // and to that of their episodes; below 0: not written
};

// A batch that is asked for: the samples at a position, or given anchors, with the draws of the position's seed and epoch.
struct Wanted {
  BatchPosition position;
  int64_t count;
  std::span<const int64_t> anchors = {};  // on the host; empty: those of the position
  std::span<const int64_t> draws = {};    // of given anchors: the numbers that random draws go by
};

// The same where a plan reads them; null for those of the position.
struct GivenNumbers {
  const int64_t* anchors = nullptr;
  const int64_t* draws = nullptr;
};

}  // namespace

struct Loader::Impl {
  explicit Impl(LoaderOptions asked)
      : options(complete_options(std::move(asked))),
        episodes_of_ranks(options.shard_episodes ? cut_episodes(options) : EpisodesOfRanks{}),
        streams(options),
        layout(options.batch_size),
        tables(options.device),
        sources(options.sources.size()) {
    check_stored_rotations(options);
    for (size_t request = 0; request < options.streams.size(); ++request) {
      const bool fills = options.filled.empty() || std::ranges::find(options.filled, request) != options.filled.end();
      if (fills) keys.push_back(make_key(streams, request));
    }
    for (const auto& key : keys) {
      const auto& rule = key->spec().moment;
      if (rule && std::ranges::find(rules, *rule) == rules.end()) rules.push_back(*rule);
    }
    reserve_arrays();
    make_anchors();
    survey();
    make_mixture();
    if (aligns_on_device) on_device = aligners_of(Part::kDevice, tables, mixture, moments_on_device);
    if (host_bytes() > 0) on_host = aligners_of(Part::kHost, host_tables, host_mixture, moments_on_host);
    if (std::string note = lesser_spread_note(options, streams.specs()); !note.empty())
      options.notes.push_back(std::move(note));
    if (std::string note = rounding_note(options); !note.empty()) options.notes.push_back(std::move(note));
    int64_t scratch_bytes = 0;  // the keys use it one after the other
    for (const auto& key : keys) scratch_bytes = std::max(scratch_bytes, key->scratch_bytes());
    if (scratch_bytes == 0) return;
    scratch = DeviceBuffer(options.device, static_cast<size_t>(scratch_bytes));
    scratch_used = CudaEvent(options.device);
    BatchLayout files(options.batch_size);
    for (const auto& key : keys) key->reserve(Part::kAhead, files);
    if (files.bytes() == 0) return;
    const std::vector<int64_t> moments_ahead = reserve_moments(files);
    ahead.emplace(options.device, files.bytes());
    on_device_ahead = aligners_of(Part::kAhead, tables, mixture, moments_ahead);
  }

  // The host's part comes last, as one piece, and behind it the files that it only sends along.
  void reserve_arrays() {
    const auto reserve = [&](Part part) {
      for (const auto& key : keys) key->reserve(part, layout);
    };
    aligns_on_device = std::ranges::any_of(keys, [](const auto& key) { return key->aligned() == Part::kDevice; });
    reserve(Part::kDevice);
    if (aligns_on_device) moments_on_device = reserve_moments(layout);
    if (!aligns_on_device) host_offset = layout.bytes();
    time_offset = layout.add("time_ns", DType::kInt64, {}, "the anchors' times");
    episode_offset = layout.add("episode_index", DType::kInt64, {}, "the anchors' episodes");
    anchor_offset = layout.add("anchor_index", DType::kInt64, {}, "the anchors' numbers");
    if (options.mixture) source_offset = layout.add("dataset_index", DType::kInt64, {}, "the samples' sources");
    for (const MomentRule& rule : rules) {
      rule_arrays.push_back({add_of_goals(rule, "_offset_ns"),
                             rule.kind == MomentKind::kOther ? add_of_goals(rule, "_episode_index") : -1});
    }
    if (aligns_on_device) host_offset = layout.bytes();
    reserve(Part::kHost);
    if (layout.bytes() > host_offset) moments_on_host = reserve_moments(layout);
    packed_offset = layout.bytes();
    reserve(Part::kPacked);
  }

  // Memory for the drawn moments of each rule.
  std::vector<int64_t> reserve_moments(BatchLayout& to) const {
    std::vector<int64_t> offsets;
    for (size_t i = 0; i < rules.size(); ++i) offsets.push_back(to.add_scratch(8));
    return offsets;
  }

  // An array for each key of a rule, one behind the other. Returns the offset of the first.
  int64_t add_of_goals(const MomentRule& rule, const char* suffix) {
    int64_t first = -1;
    for (const auto& key : keys) {
      if (key->spec().moment != rule) continue;
      const std::string& name = key->spec().key;
      const int64_t offset = layout.add(name + suffix, DType::kInt64, {}, "the goals of '" + name + "'");
      if (first < 0) first = offset;
    }
    return first;
  }

  // ---- which moments ---------------------------------------------------------------------------------------------------

  void make_anchors() {
    for (size_t i = 0; i < sources.size(); ++i) {
      Source& source = sources[i];
      const SourceRequest& request = options.sources[i];
      if (!options.anchor_hz) {
        source.ticks = ResidentClock::get(request.dataset, request.dataset->index_of(request.anchor), options.device);
      }
      source.anchors = anchors_of(i, *request.episodes, &source.before_filter);
      if (source.anchors.table().empty()) refuse_without_anchors(i, options.rank);
      if (!options.shard_episodes) fingerprint.add_anchors(*request.dataset, source.anchors.index());
      const size_t first = parts.size();
      add_parts(i);
      for (size_t part = first; part < parts.size(); ++part) {
        const Anchors& anchors = parts[part].anchors;
        AnchorIndex& index = parts[part].on_device = anchors.index();
        if (!options.device.is_cuda()) continue;
        index.table = tables.put(anchors.table());
        index.first_of = tables.put(anchors.first_of());
        if (source.ticks) index.tick_ns = source.ticks->on_device().time_ns;
      }
    }
    if (!rules.empty()) make_moments();
  }

  void make_moments() {
    std::vector<int64_t> counts;
    int64_t first_tick = 0;
    for (size_t i = 0; i < sources.size(); ++i) {
      const SourceRequest& request = options.sources[i];
      std::vector<int64_t> episodes = *request.episodes;
      std::ranges::sort(episodes);
      episodes.erase(std::unique(episodes.begin(), episodes.end()), episodes.end());
      std::vector<int64_t> tasks = request.tasks;
      tasks.resize(static_cast<size_t>(request.dataset->num_episodes()), -1);
      const MomentTicks& ticks = sources[i].moments.emplace(ticks_of(i, episodes, {}), tasks);
      const int64_t* const times = sources[i].ticks ? sources[i].ticks->on_device().time_ns : nullptr;
      host_moments.push_back(ticks.on_host());
      moments.push_back(options.device.is_cuda() ? ticks.copied(tables, times) : ticks.on_host());
      host_moments.back().first_tick = moments.back().first_tick = first_tick;
      counts.push_back(ticks.index().anchors);
      first_tick += counts.back();
    }
    const MixtureTables mixed(counts, {.weights = std::vector<std::optional<double>>(counts.size()), .shuffle = false});
    moment_mixture = host_moment_mixture = mixed.mixture();
    host_moment_mixture.table = host_tables.put(mixed.table());
    moment_mixture.table = tables.put(mixed.table());
    std::vector<MomentSource> of_parts, host_of_parts;
    for (const Drawn& part : parts) {
      of_parts.push_back(moments[part.source]);
      host_of_parts.push_back(host_moments[part.source]);
    }
    host_moment_sources = host_tables.put(host_of_parts);
    moment_sources = tables.put(of_parts);
  }

  // A source whole, or by the classes of its weights.
  void add_parts(size_t i) {
    const SourceRequest& request = options.sources[i];
    const Anchors& anchors = sources[i].anchors;
    std::vector<double>& weights = weights_of_parts.emplace_back();
    if (!request.values) {
      parts.push_back({i, anchors, {}});
      return;
    }
    const std::string name = source_name(options, i) + (request.balance ? "balance" : "weight_by");
    if (options.shard_episodes) refuse(name, ": goes without ranks.shard_episodes, whose ranks draw other anchors");
    std::vector<double> values(static_cast<size_t>(anchors.index().anchors));
    anchors.look([&](std::span<const int64_t> episodes, std::span<const int64_t> times, int64_t first) {
      request.values(episodes, times, std::span(values).subspan(static_cast<size_t>(first), times.size()));
    });
    AnchorClasses classes = request.balance ? classes_by_number(values) : classes_by_weight(values);
    if (classes.weights.empty()) refuse(name, ": expected an anchor with a weight above 0, got none");
    weights = std::move(classes.weights);
    for (Anchors& part : anchors.split(classes.of, std::ssize(weights))) parts.push_back({i, std::move(part), {}});
  }

  void survey() {
    std::string padding;
    std::string made_up;
    for (size_t source = 0; source < sources.size(); ++source) {
      const auto around = [&](const StreamRequest& request) { return sources[source].around(request); };
      survey_windows(options, streams, source, around, padding, made_up);
    }
    for (std::string* const note : {&made_up, &padding}) {
      if (!note->empty()) options.notes.push_back(std::move(*note));
    }
  }

  [[noreturn]] void refuse_without_anchors(size_t source, int64_t rank) const {
    refuse(source_name(options, source), "anchor: expected a tick to draw, got none in the ",
           options.shard_episodes ? "episodes of rank " + std::to_string(rank) : "episodes asked for",
           options.edges == Edges::kDrop || options.drop_n_last > 0 || !options.sources[source].filter.keeps_all()
               ? " that edges, drop_n_last, keep, drop and where leave"
               : "");
  }

  Anchors anchors_of(size_t source, const std::vector<int64_t>& episodes, int64_t* before_filter = nullptr) const {
    Anchors every = anchors_without_filter(source, episodes);
    if (before_filter != nullptr) *before_filter = every.index().anchors;
    const AnchorFilter& filter = options.sources[source].filter;
    if (filter.keeps_all()) return every;
    return every.filtered(filter, streams.spec(source).snap_ns, source_name(options, source) + "anchors.");
  }

  Anchors anchors_without_filter(size_t source, const std::vector<int64_t>& episodes) const {
    return ticks_of(source, episodes, edges_of(source));
  }

  Anchors ticks_of(size_t source, const std::vector<int64_t>& episodes, const AnchorEdges& edges) const {
    if (const auto& ticks = sources[source].ticks) return Anchors::of_ticks(ticks->on_host(), episodes, edges);
    std::vector<StreamClock> clocks;
    for (size_t request = 0; request < options.streams.size(); ++request) {
      if (const auto& stream = streams.of(source, request)) clocks.push_back(stream->clock().on_host());
    }
    return Anchors::at_rate(*options.anchor_hz, clocks, episodes, edges);
  }

  // With shard_episodes, the anchors of the rank that has the fewest. Every rank refuses what one rank cannot draw, and has the
  // fingerprint of all ranks.
  int64_t fewest_anchors() {
    int64_t fewest = INT64_MAX;
    for (size_t rank = 0; rank < static_cast<size_t>(options.world_size); ++rank) {
      int64_t anchors = 0;
      for (size_t source = 0; source < sources.size(); ++source) {
        const Anchors of_source = anchors_of(source, episodes_of_ranks[source][rank]);
        if (of_source.table().empty()) refuse_without_anchors(source, static_cast<int64_t>(rank));
        fingerprint.add_anchors(*options.sources[source].dataset, of_source.index());
        anchors += of_source.index().anchors;
      }
      fewest = std::min(fewest, anchors);
    }
    return fewest;
  }

  AnchorEdges edges_of(size_t source) const {
    AnchorEdges edges{.whole = {}, .snap_ns = streams.spec(source).snap_ns, .drop_n_last = options.drop_n_last};
    if (options.edges == Edges::kPad) return edges;
    for (size_t request = 0; request < options.streams.size(); ++request) {
      const auto& stream = streams.of(source, request);
      if (!stream || options.streams[request].moment) continue;
      const KeySpec& key = streams.spec(source).keys[request];
      const std::vector<int64_t> delta_ns = key.stamp_offsets_ns();
      const auto [first, last] = std::ranges::minmax_element(delta_ns);
      WindowSpan& span = edges.whole.emplace_back(WindowSpan{stream->clock().on_host(), *first, *last});
      if (key.offsets_rows.empty()) continue;
      const auto [first_row, last_row] = std::ranges::minmax_element(key.offsets_rows);
      span.rows = {*first_row, *last_row};
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
    for (const Drawn& part : parts) anchors.push_back(part.anchors.index().anchors);
    mixing.parts = weights_of_parts;
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

  // The order depends on weights by the share that they give a source.
  void add_order(const MixtureTables& mixed, const MixtureOptions& mixing) {
    fingerprint.add_order(options.shuffle);
    fingerprint.add_order(mixture.weighted);
    fingerprint.add_order(options.shard_episodes ? options.world_size : 0);
    if (!mixture.weighted) return;
    for (const Drawn& part : parts) {
      if (weights_of_parts[part.source].empty()) continue;
      fingerprint.add_order(part.source);
      fingerprint.add_order(part.anchors.table().data(), part.anchors.table().size_bytes());
    }
    fingerprint.add_order(mixture.samples);
    for (const MixtureSource& source : mixed.table()) {
      // With shard_episodes a temperature weighs each rank's own anchors, so the shares differ between ranks.
      if (!options.shard_episodes || !mixing.temperature) fingerprint.add_order(source.first_slot);
    }
    fingerprint.add_order(options.shard_episodes ? mixing.temperature.value_or(0) : 0);
  }

  // ---- how a batch is filled -------------------------------------------------------------------------------------------

  // The windows of the keys that are aligned in a part: those around the anchors, then those around the moments of each rule. One
  // part also writes what the anchors and the moments are: the device's if there is one. `drawn` is where the moments lie.
  std::vector<Aligner> aligners_of(Part part, DeviceTables& to, const Mixture& mixed,
                                   const std::vector<int64_t>& drawn) {
    const bool writes_anchors = part == (aligns_on_device ? Part::kDevice : Part::kHost);
    std::vector<Aligner> aligners = {aligner_of(part, {}, to, mixed, writes_anchors)};
    for (size_t rule = 0; rule < rules.size(); ++rule) {
      const bool here = part == Part::kHost;
      Aligner& own =
          aligners.emplace_back(aligner_of(part, rules[rule], to, here ? host_moment_mixture : moment_mixture, false));
      own.moments = moment_batch(rules[rule]);
      own.moments.keys = std::ranges::count(keys, rules[rule], [](const auto& key) { return key->spec().moment; });
      own.moments.key_stride = (options.batch_size * 8 + 255) / 256 * 32;
      own.moments.sources = here ? host_moment_sources : moment_sources;
      own.moments_offset = drawn[rule];
      if (!writes_anchors) continue;
      own.offset_offset = rule_arrays[rule].first;
      own.moment_episode_offset = rule_arrays[rule].second;
    }
    return aligners;
  }

  size_t aligner_index(const std::optional<MomentRule>& rule) const {
    return rule ? static_cast<size_t>(std::ranges::find(rules, *rule) - rules.begin()) + 1 : 0;
  }

  // Whether the aligner of a rule is the last that fills what a key is converted from.
  bool converts_at(const BatchKey& key, const std::optional<MomentRule>& rule) const {
    return aligner_index(rule) == std::max(aligner_index(key.spec().moment), aligner_index(key.base_moment()));
  }

  Aligner aligner_of(Part part, const std::optional<MomentRule>& rule, DeviceTables& to, const Mixture& mixed,
                     bool writes_anchors) {
    std::vector<WindowStreams> windows;
    std::vector<size_t> planned;  // the source of each of these
    const bool writes_sources = writes_anchors && source_offset >= 0;
    const bool has_parts =
        std::ranges::any_of(weights_of_parts, [](const std::vector<double>& weights) { return !weights.empty(); });
    for (size_t source = 0; rule && source < sources.size(); ++source) {
      WindowStreams& own = windows.emplace_back();
      planned.push_back(source);
      own.anchors = (part == Part::kHost ? host_moments : moments)[source].ticks;
      for (const auto& key : keys) key->add_window(part, rule, source, own, to);
    }
    for (const Drawn& drawn : parts) {
      if (rule) break;
      planned.push_back(drawn.source);
      WindowStreams& own = windows.emplace_back();
      own.anchors = part == Part::kHost ? drawn.anchors.index() : drawn.on_device;
      for (const auto& key : keys) key->add_window(part, {}, drawn.source, own, to);
      if (!writes_sources || !has_parts) continue;  // else the plan writes it
      const auto number = std::bit_cast<std::array<uint8_t, 8>>(static_cast<int64_t>(drawn.source));
      own.constants.push_back({to.put(std::vector<uint8_t>(number.begin(), number.end())), 8, source_offset});
    }
    Aligner aligner{window_plan(windows, to), mixed};
    std::vector<ConvertActionsParams> conversions;
    for (const auto& key : keys) {
      if (converts_at(*key, rule)) key->add_conversion(part, planned, conversions, to);
    }
    aligner.plan.conversions = to.put(conversions);
    aligner.plan.conversion_count = static_cast<int32_t>(conversions.size());
    // Converting a number takes as long as copying so many bytes.
    for (const ConvertActionsParams& key : conversions) {
      aligner.plan.sample_bytes += int64_t{key.steps} * key.out_features * (key.by_feature ? 4 : 16);
    }
    aligner.runs = writes_anchors || aligner.plan.group_count > 0 || aligner.plan.has_constants || !conversions.empty();
    aligner.plan.time_offset = writes_anchors ? time_offset : -1;
    aligner.plan.episode_offset = writes_anchors ? episode_offset : -1;
    aligner.plan.source_offset = writes_sources && !has_parts ? source_offset : -1;
    aligner.plan.anchor_offset = writes_anchors ? anchor_offset : -1;
    aligner.plan.snap_ns = streams.spec(0).snap_ns;
    return aligner;
  }

  WindowBatch batch_at(const Wanted& wanted, const Aligner& by, const GivenNumbers& given, void* memory) const {
    const auto& [position, count, anchors, draws] = wanted;
    WindowBatch batch{};
    batch.plan = by.plan;
    batch.count = count;
    batch.anchors = given.anchors;
    batch.draws = given.draws;
    batch.first_position =
        options.shard_episodes ? position.samples / options.world_size : position.samples + options.rank * count;
    batch.mixture = by.mixture.at_epoch(position.seed, position.epoch);
    batch.seed = position.seed;
    batch.epoch = static_cast<uint64_t>(position.epoch);
    batch.memory = memory;
    return batch;
  }

  // Runs the plans of a part.
  void align(const std::vector<Aligner>& aligners, const Wanted& wanted, const GivenNumbers& given, void* memory,
             Device device, CudaStream stream) const {
    const WindowBatch around_anchors = batch_at(wanted, aligners[0], given, memory);
    if (aligners[0].runs) window_batch(around_anchors, device, stream);
    for (size_t i = 1; i < aligners.size(); ++i) {
      const Aligner& by = aligners[i];
      const auto array = [&](int64_t offset) {
        return offset < 0 ? nullptr : reinterpret_cast<int64_t*>(static_cast<char*>(memory) + offset);
      };
      if (!by.runs && by.offset_offset < 0) continue;
      MomentBatch drawn = by.moments;
      drawn.batch = around_anchors;
      drawn.seed = wanted.position.seed;
      drawn.epoch = static_cast<uint64_t>(wanted.position.epoch);
      drawn.moments = array(by.moments_offset);
      drawn.offset_ns = array(by.offset_offset);
      drawn.episode = array(by.moment_episode_offset);
      draw_moments(drawn, device, stream);
      if (!by.runs) continue;
      window_batch(batch_at(wanted, by, {drawn.moments, given.draws}, memory), device, stream);
    }
  }

  // A batch whose plans have run. The random draws go by the order, or by the given numbers.
  static BatchMemory filled_by(const Wanted& wanted, const WindowBatch& batch) {
    const ImageDraw first{.seed = wanted.position.seed,
                          .epoch = static_cast<uint64_t>(wanted.position.epoch),
                          .sample = wanted.anchors.empty() ? batch.first_position : 0};
    return {static_cast<char*>(batch.memory), batch.count, first, wanted.draws};
  }

  // The draws of all ranks together in an epoch.
  int64_t samples() const { return mixture.samples * (options.shard_episodes ? options.world_size : 1); }

  size_t host_bytes() const { return static_cast<size_t>(layout.bytes() - host_offset); }

  // The host's part, in `memory` of the host.
  HostPart fill_host(const Wanted& wanted, void* memory) const {
    GivenNumbers given;
    if (!wanted.anchors.empty()) given = {wanted.anchors.data(), wanted.draws.data()};
    char* const start = static_cast<char*>(memory) - host_offset;
    align(on_host, wanted, given, start, {}, {});
    HostPart part{.copies = {{host_offset, packed_offset - host_offset}}, .packed = {}, .bad_frames = 0};
    part.packed.resize(options.streams.size());
    const BatchMemory filled = filled_by(wanted, batch_at(wanted, on_host[0], given, start));
    for (const auto& key : keys) {
      if (key->aligned() == Part::kHost) key->stage(filled, part);
    }
    return part;
  }

  void copy_host_part(const HostPart& part, const void* from, void* memory, CudaStream stream) const {
    for (const StagedCopy& copy : part.copies) {
      check_cuda(cuda_backend().copy_from_host(options.device.index, static_cast<char*>(memory) + copy.offset,
                                               static_cast<const char*>(from) + copy.offset - host_offset,
                                               static_cast<size_t>(copy.bytes), stream.handle),
                 "copying a batch's part to the device");
    }
  }

  void fetch(const BatchPosition& position, int64_t count) const {
    const std::lock_guard<std::mutex> lock(scratch_mutex);
    ahead->copy(position, [&](void* memory, CudaStream stream) {
      align(on_device_ahead, {position, count}, {}, memory, options.device, stream);
      for (const auto& key : keys) key->fetch(memory, count, stream);
    });
  }

  // Everything but the host's part: on the CPU the whole batch. Returns the number of frames that did not decode, without those
  // that the device decodes.
  int64_t fill_device(const Wanted& wanted, const GivenNumbers& given, const HostPart& part, void* memory,
                      CudaStream stream) const {
    check_damage();  // for earlier batches
    if (aligns_on_device) align(on_device, wanted, given, memory, options.device, stream);
    const BatchMemory filled =
        filled_by(wanted, batch_at(wanted, aligns_on_device ? on_device[0] : Aligner{}, given, memory));
    const bool uses_scratch = scratch.bytes() > 0;
    std::unique_lock<std::mutex> lock(scratch_mutex, std::defer_lock);
    const void* fetched = nullptr;
    if (uses_scratch) {  // one batch after the other
      lock.lock();
      scratch_used.make_wait(stream);
      if (ahead && wanted.anchors.empty()) fetched = ahead->find(wanted.position, stream);
    }
    int64_t bad_frames = part.bad_frames;
    for (const auto& key : keys) bad_frames += key->launch(filled, part, scratch.data(), fetched, stream);
    if (uses_scratch) scratch_used.record(stream);
    if (fetched != nullptr) ahead->keep(fetched, stream);
    return bad_frames;
  }

  int64_t fill(const Wanted& wanted, const GivenNumbers& given, void* memory, CudaStream stream) const {
    HostPart part;
    if (host_bytes() > 0) {
      const PinnedBuffer staging(options.device, host_bytes());
      part = fill_host(wanted, staging.data());
      copy_host_part(part, staging.data(), memory, stream);
      synchronize(stream, "batch");
    }
    return fill_device(wanted, given, part, memory, stream);
  }

  void check_anchors(std::span<const int64_t> anchors) const {
    if (std::ssize(anchors) > options.batch_size) {
      refuse("indices: expected at most batch_size, ", std::to_string(options.batch_size), ", got ",
             std::to_string(anchors.size()));
    }
    for (size_t i = 0; i < anchors.size(); ++i) {
      if (anchors[i] >= 0 && anchors[i] < mixture.anchors) continue;
      refuse("indices[", std::to_string(i), "]: expected in [0, ", std::to_string(mixture.anchors), "), got ",
             std::to_string(anchors[i]));
    }
  }

  std::vector<SampleAnchor> anchors_at(const Wanted& wanted) const {
    const auto& given = wanted.anchors;
    const WindowBatch batch =
        batch_at(wanted, {{}, host_mixture}, {given.empty() ? nullptr : given.data(), nullptr}, nullptr);
    std::vector<SampleAnchor> found;
    for (int64_t i = 0; i < batch.count; ++i) {
      const Draw draw = batch.draw(i);
      const Drawn& part = parts[static_cast<size_t>(draw.source)];
      const Anchor anchor = part.anchors.index().at(draw.anchor);
      const int64_t number = given.empty() ? batch.position(i) : given[static_cast<size_t>(i)];
      found.push_back({static_cast<int64_t>(part.source), anchor.episode, anchor.time_ns, number});
    }
    return found;
  }

  void check_damage() const {
    for (const auto& key : keys) key->check_damage();
  }

  void synchronize(CudaStream stream, const char* what) const {
    check_cuda(cuda_backend().synchronize(options.device.index, stream.handle), what);
  }

  LoaderOptions options;
  EpisodesOfRanks episodes_of_ranks;  // with shard_episodes
  LoaderStreams streams;
  BatchLayout layout;
  DeviceTables tables;
  DeviceTables host_tables{Device{}};
  std::vector<std::unique_ptr<BatchKey>> keys;  // one for each request that batches hold
  std::vector<Source> sources;
  std::vector<Drawn> parts;                           // in the order of the sources
  std::vector<std::vector<double>> weights_of_parts;  // of each source; empty: it is one part
  int64_t time_offset = -1;
  int64_t episode_offset = -1;
  int64_t anchor_offset = -1;
  int64_t source_offset = -1;     // below 0: none
  int64_t host_offset = 0;        // the start of the host's part,
  int64_t packed_offset = 0;      // and in it the start of the files
  bool aligns_on_device = false;  // or on the CPU
  std::vector<Aligner> on_device, on_host, on_device_ahead;
  std::vector<MomentRule> rules;                         // of the keys' goals, each once
  std::vector<std::pair<int64_t, int64_t>> rule_arrays;  // of each: the offsets of its arrays
  std::vector<int64_t> moments_on_device, moments_on_host;
  std::vector<MomentSource> moments, host_moments;  // of each source; their tables lie on the device, on the host
  const MomentSource* moment_sources = nullptr;     // the same as a table there
  const MomentSource* host_moment_sources = nullptr;
  Mixture moment_mixture{};
  Mixture host_moment_mixture{};
  Mixture mixture{};
  Mixture host_mixture{};
  OrderFingerprint fingerprint;
  mutable std::mutex scratch_mutex;  // held while a batch that uses scratch or ahead is queued
  DeviceBuffer scratch;              // a device decodes frames here
  mutable CudaEvent scratch_used;
  mutable std::optional<FramesAhead> ahead;  // destroyed first: its queued work reads everything above
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

int64_t Loader::anchors_before_filter() const {
  int64_t anchors = 0;
  for (const Source& source : impl_->sources) anchors += source.before_filter;
  return anchors;
}

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

const BatchSpec& Loader::spec(size_t source) const {
  if (source >= impl_->sources.size()) {
    refuse("source: expected below ", std::to_string(impl_->sources.size()), ", got ", std::to_string(source));
  }
  return impl_->streams.spec(source);
}

std::string Loader::fingerprint() const { return impl_->fingerprint.text(); }

int64_t Loader::bad_frames_on_device() const {
  int64_t frames = 0;
  for (const auto& key : impl_->keys) frames += key->bad_frames_on_device();
  return frames;
}

bool Loader::is_small() const {
  constexpr int64_t kSmallBytes = 64 << 10;  // about 15 microseconds; waking a thread takes 5 to 50
  if (impl_->options.device.is_cuda()) return false;
  int64_t sample_bytes = 1;
  for (const Aligner& aligner : impl_->on_device) sample_bytes += aligner.plan.sample_bytes;
  if (impl_->options.batch_size > kSmallBytes / sample_bytes) return false;
  for (size_t request = 0; request < impl_->options.streams.size(); ++request) {
    if (impl_->streams.camera(request) != nullptr || placements()[request].tier == Tier::kMapped) return false;
  }
  return true;
}

size_t Loader::host_bytes() const { return impl_->host_bytes(); }

HostPart Loader::fill_host(const BatchPosition& position, void* memory) const {
  return host_bytes() == 0 ? HostPart{} : impl_->fill_host({position, samples_at(position)}, memory);
}

void Loader::copy_host_part(const HostPart& part, const void* from, void* memory, CudaStream stream) const {
  impl_->copy_host_part(part, from, memory, stream);
}

int64_t Loader::fill_device(const BatchPosition& position, const HostPart& part, void* memory,
                            CudaStream stream) const {
  return impl_->fill_device({position, samples_at(position)}, {}, part, memory, stream);
}

int64_t Loader::fill(const BatchPosition& position, void* memory, CudaStream stream) const {
  return impl_->fill({position, samples_at(position)}, {}, memory, stream);
}

void Loader::fetch(const BatchPosition& position) const {
  const int64_t samples = samples_at(position);
  if (impl_->ahead && samples > 0) impl_->fetch(position, samples);
}

void Loader::check_frames(CudaStream stream) const {
  if (impl_->scratch.bytes() == 0) return;
  impl_->synchronize(stream, "decoding frames");
  impl_->check_damage();
}

int64_t Loader::gather(const BatchPosition& position, std::span<const int64_t> anchors, std::span<const int64_t> draws,
                       void* memory, CudaStream stream) const {
  const Device device = impl_->options.device;
  impl_->check_anchors(anchors);
  if (draws.empty()) draws = anchors;
  if (draws.size() != anchors.size()) {
    refuse("draws: expected ", std::to_string(anchors.size()), ", one for each index, got ",
           std::to_string(draws.size()));
  }
  if (anchors.empty()) return 0;
  DeviceTables copy(device);
  const auto on_device = [&](std::span<const int64_t> all) { return device.is_cuda() ? copy.put(all) : all.data(); };
  const GivenNumbers given{on_device(anchors), on_device(draws)};
  const int64_t bad_frames = impl_->fill({position, std::ssize(anchors), anchors, draws}, given, memory, stream);
  if (device.is_cuda()) impl_->synchronize(stream, "gather");
  impl_->check_damage();
  return bad_frames;
}

std::vector<SampleAnchor> Loader::anchors_at(const BatchPosition& position, std::span<const int64_t> anchors) const {
  impl_->check_anchors(anchors);
  return impl_->anchors_at({position, anchors.empty() ? samples_at(position) : std::ssize(anchors), anchors});
}

std::vector<AnchoredEpisode> Loader::episodes() const {
  std::vector<AnchoredEpisode> found;
  for (size_t source = 0; source < impl_->sources.size(); ++source) {
    const Anchors& anchors = impl_->sources[source].anchors;
    const std::span<const AnchorRun> table = anchors.table();
    const auto ticks_of = [](const AnchorRun& run) { return std::tuple(run.episode, run.origin, run.first_tick); };
    for (size_t i = 0; i < table.size(); ++i) {
      const int64_t end = i + 1 < table.size() ? table[i + 1].first_anchor : anchors.index().anchors;
      const int64_t count = end - table[i].first_anchor;
      // A filter leaves several runs of an episode. One that is listed twice begins anew.
      if (i > 0 && table[i].episode == table[i - 1].episode && ticks_of(table[i]) > ticks_of(table[i - 1])) {
        found.back().anchors += count;
      } else {
        found.push_back({static_cast<int64_t>(source), table[i].episode, count});
      }
    }
  }
  return found;
}

TensorView Loader::view(const BatchArray& array, int64_t samples, void* memory) const {
  return BatchLayout::view(array, samples, memory, impl_->options.device);
}
void Loader::check_tolerance() const {
  for (size_t source = 0; source < impl_->sources.size(); ++source) {
    const auto around = [&](const StreamRequest& request) { return impl_->sources[source].around(request); };
    robocache::check_tolerance(impl_->options, impl_->streams, source, around);
  }
}

}  // namespace robocache
