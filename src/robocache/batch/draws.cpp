#include "robocache/batch/draws.hpp"

#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>

#include "robocache/core/arguments.hpp"
#include "robocache/sample/anchor_classes.hpp"

namespace robocache {
namespace {

bool is_before(const BatchPosition& a, const BatchPosition& b) {
  return std::pair(a.epoch, a.samples) < std::pair(b.epoch, b.samples);
}

}  // namespace

Draws::Draws(const LoaderOptions& options, const LoaderStreams& streams)
    : options_(options),
      streams_(streams),
      device_tables_(options.device),
      sources_(options.sources.size()),
      change_tables_(options.device) {
  const bool has_goals =
      std::ranges::any_of(options.streams, [](const StreamRequest& request) { return request.moment.has_value(); });
  for (size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    const SourceRequest& request = options.sources[i];
    if (!options.anchor_hz) {
      source.ticks = ResidentClock::get(request.dataset, request.dataset->index_of(request.anchor), options.device);
    }
    const Anchors all_ticks = ticks_of(i, *request.episodes, edges_of(i));
    source.before_filter = all_ticks.index().anchors;
    source.anchors = filtered(i, all_ticks);
    if (source.anchors.table().empty()) refuse_without_anchors(i, options.rank);
    if (!options.shard_episodes) fingerprint_.add_anchors(*request.dataset, source.anchors.index());
    add_parts(i);
    if (has_goals) source.moments = moment_ticks_of(i);
  }
  mix();
  if (has_goals) add_moments(on_host_, host_tables_, false);
  if (has_goals && options.device.is_cuda()) add_moments(on_device_, device_tables_, true);
}

// Adds a source as one part, or as one part for each class of its weights.
void Draws::add_parts(size_t i) {
  const SourceRequest& request = options_.sources[i];
  const Anchors& anchors = sources_[i].anchors;
  if (!request.values) {
    parts_.push_back({i, anchors});
    return;
  }
  const std::string name = source_name(options_, i) + (request.balance ? "balance" : "weight_by");
  if (options_.shard_episodes) refuse(name, ": goes without ranks.shard_episodes, whose ranks draw other anchors");
  std::vector<double> values(static_cast<size_t>(anchors.index().anchors));
  anchors.for_each_block([&](std::span<const int64_t> episodes, std::span<const int64_t> times, int64_t first) {
    request.values(episodes, times, std::span(values).subspan(static_cast<size_t>(first), times.size()));
  });
  AnchorClasses classes = request.balance ? classes_by_number(values) : classes_by_weight(values);
  if (classes.weights.empty()) refuse(name, ": expected an anchor with a weight above 0, got none");
  for (Anchors& part : anchors.split(classes.class_of, std::ssize(classes.weights)))
    parts_.push_back({i, std::move(part)});
  sources_[i].part_weights = std::move(classes.weights);
}

std::vector<int64_t> Draws::anchors_of_parts() const {
  std::vector<int64_t> anchors;
  for (const Part& part : parts_) anchors.push_back(part.anchors.index().anchors);
  return anchors;
}

AnchorEdges Draws::edges_of(size_t source) const {
  const BatchSpec& spec = streams_.spec(source);
  AnchorEdges edges{.whole = {}, .snap_ns = spec.snap_ns, .drop_n_last = options_.drop_n_last};
  if (options_.edges == Edges::kPad) return edges;
  for (size_t request = 0; request < options_.streams.size(); ++request) {
    const auto& stream = streams_.stream_of(source, request);
    if (!stream || options_.streams[request].moment) continue;
    const KeySpec& key = spec.keys[request];
    const std::vector<int64_t> delta_ns = key.stamp_offsets_ns();
    const auto [first, last] = std::ranges::minmax_element(delta_ns);
    WindowSpan& span = edges.whole.emplace_back(WindowSpan{stream->clock().on_host(), *first, *last});
    if (key.offsets_rows.empty()) continue;
    const auto [first_row, last_row] = std::ranges::minmax_element(key.offsets_rows);
    span.rows = {*first_row, *last_row};
  }
  return edges;
}

Anchors Draws::ticks_of(size_t source, const std::vector<int64_t>& episodes, const AnchorEdges& edges) const {
  if (const auto& ticks = sources_[source].ticks) return Anchors::of_ticks(ticks->on_host(), episodes, edges);
  std::vector<StreamClock> clocks;
  for (size_t request = 0; request < options_.streams.size(); ++request) {
    if (const auto& stream = streams_.stream_of(source, request)) clocks.push_back(stream->clock().on_host());
  }
  return Anchors::at_rate(*options_.anchor_hz, clocks, episodes, edges);
}

Anchors Draws::filtered(size_t source, const Anchors& all_ticks) const {
  const AnchorFilter& filter = options_.sources[source].filter;
  if (filter.keeps_all()) return all_ticks;
  return all_ticks.filtered(filter, streams_.spec(source).snap_ns, source_name(options_, source) + "anchors.");
}

MomentTicks Draws::moment_ticks_of(size_t source) const {
  const SourceRequest& request = options_.sources[source];
  std::vector<int64_t> episodes = *request.episodes;
  std::ranges::sort(episodes);
  episodes.erase(std::unique(episodes.begin(), episodes.end()), episodes.end());
  std::vector<int64_t> tasks = request.tasks;
  tasks.resize(static_cast<size_t>(request.dataset->num_episodes()), -1);
  return MomentTicks(ticks_of(source, episodes, {}), tasks);
}

// Returns the number of anchors of the rank that has the fewest. Every rank checks and fingerprints the anchors of all ranks, so
// that all ranks fail together and have the same fingerprint.
int64_t Draws::fewest_anchors() {
  int64_t fewest = INT64_MAX;
  for (size_t rank = 0; rank < static_cast<size_t>(options_.world_size); ++rank) {
    int64_t anchors = 0;
    for (size_t source = 0; source < sources_.size(); ++source) {
      const std::vector<int64_t>& episodes = options_.sources[source].episodes_of_ranks[rank];
      const Anchors anchors_of_rank = filtered(source, ticks_of(source, episodes, edges_of(source)));
      if (anchors_of_rank.table().empty()) refuse_without_anchors(source, static_cast<int64_t>(rank));
      fingerprint_.add_anchors(*options_.sources[source].dataset, anchors_of_rank.index());
      anchors += anchors_of_rank.index().anchors;
    }
    fewest = std::min(fewest, anchors);
  }
  return fewest;
}

void Draws::mix() {
  MixtureOptions mixing{.weights = {},
                        .temperature = options_.temperature,
                        .samples_per_epoch = options_.samples_per_epoch,
                        .shuffle = options_.shuffle};
  for (const SourceRequest& source : options_.sources) mixing.weights.push_back(source.weight);
  for (const Source& source : sources_) mixing.parts.push_back(source.part_weights);
  if (options_.shard_episodes && mixing.samples_per_epoch.value_or(0) > 0) {  // MixtureTables refuses 0 and less
    mixing.samples_per_epoch = std::max<int64_t>(1, *mixing.samples_per_epoch / options_.world_size);
  }
  const MixtureTables mixed(anchors_of_parts(), mixing);
  Mixture& mixture = on_host_.mixture = mixed.mixture();
  if (options_.shard_episodes) {
    const int64_t fewest = fewest_anchors();
    if (!mixing.samples_per_epoch) mixture.samples = fewest;  // every rank makes the same number of steps
  }
  add_order(mixed, mixing);
  mixture.table = host_tables_.put(mixed.table());
  for (const Part& part : parts_) on_host_.parts.push_back(part.anchors.index());
  if (options_.drop_last && samples() < options_.batch_size * options_.world_size) {
    refuse("batch_size: expected at most the ", samples() / options_.world_size, " samples there are",
           options_.world_size > 1 ? " for each rank" : "", ", since drop_last, got ", options_.batch_size);
  }
  if (!options_.device.is_cuda()) return;
  on_device_ = on_host_;
  on_device_.mixture.table = device_tables_.put(mixed.table());
  for (size_t i = 0; i < parts_.size(); ++i) {
    AnchorIndex& index = on_device_.parts[i];
    index.table = device_tables_.put(parts_[i].anchors.table());
    index.first_of = device_tables_.put(parts_[i].anchors.first_of());
    if (const auto& ticks = sources_[parts_[i].source].ticks) index.tick_ns = ticks->on_device().time_ns;
  }
}

// Returns the index of each source by its name.
std::map<std::string, size_t> Draws::sources_by_name() const {
  std::map<std::string, size_t> names;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const SourceRequest& source = options_.sources[i];
    auto folder = std::filesystem::absolute(source.dataset->path()).lexically_normal();
    if (!folder.has_filename()) folder = folder.parent_path();
    const std::string name = source.name.empty() ? folder.filename().string() : source.name;
    if (names.emplace(name, i).second) continue;
    refuse("sources[", i, "].name: expected one that no other source has, since weights go by names, got '", name, "'");
  }
  return names;
}

const WeightChange* Draws::change_weights(const BatchPosition& from,
                                          const std::vector<std::pair<std::string, double>>& weights) const {
  if (from.epoch < 0) refuse("epoch: expected at least 0, got ", from.epoch);
  if (from.weights != nullptr && is_before(from, from.weights->from)) {
    refuse("weights: expected changes in the order of their epochs and samples");
  }
  if (!is_weighted()) refuse("weights: expected a loader whose sources have weights or a temperature");
  const std::map<std::string, size_t> sources = sources_by_name();
  std::string expected = "weights: expected one for each of ";
  for (const auto& source : sources) expected += (source == *sources.begin() ? "'" : ", '") + source.first + "'";
  MixtureOptions mixing{.weights = std::vector<std::optional<double>>(sources.size()),
                        .temperature = {},
                        .samples_per_epoch = {},
                        .shuffle = options_.shuffle,
                        .changed = std::vector<std::string>(sources.size())};
  for (const Source& source : sources_) mixing.parts.push_back(source.part_weights);
  for (const auto& [name, weight] : weights) {
    const auto source = sources.find(name);
    if (source == sources.end()) refuse(expected, ", got one for '", name, "'");
    if (mixing.weights[source->second]) refuse(expected, ", got two for '", name, "'");
    mixing.weights[source->second] = weight;
    mixing.changed[source->second] = "weights['" + name + "']";
  }
  for (const auto& [name, source] : sources) {
    if (!mixing.weights[source]) refuse(expected, ", got none for '", name, "'");
  }
  const Mixture previous_mixture = mixture_at(from, Device{});
  const int64_t samples_before = options_.shard_episodes ? from.samples / options_.world_size : from.samples;
  auto change = std::make_unique<WeightChange>(WeightChange{from, MixtureTables(anchors_of_parts(), mixing)});
  change->mixed.continue_from(previous_mixture, previous_mixture.first_draw + static_cast<uint64_t>(samples_before));
  const std::lock_guard<std::mutex> lock(changes_mutex_);
  if (options_.device.is_cuda()) change->on_device = change_tables_.put(change->mixed.table());
  changes_.push_back(std::move(change));
  return changes_.back().get();
}

Mixture Draws::mixture_at(const BatchPosition& position, Device device) const {
  Mixture mixture = (device.is_cuda() ? on_device_ : on_host_).mixture.at_epoch(position.seed, position.epoch);
  const WeightChange* change = position.weights;
  if (change == nullptr) return mixture;
  if (change->from.seed != position.seed) {
    refuse("seed: expected ", change->from.seed, ", for which the weights changed, got ", position.seed);
  }
  while (change != nullptr && is_before(position, change->from)) change = change->from.weights;
  if (change != nullptr) mixture.table = device.is_cuda() ? change->on_device : change->mixed.table().data();
  return mixture;
}

// Adds the sources' shares instead of their weights, because different weights with equal shares give the same order.
void Draws::add_order(const MixtureTables& mixed, const MixtureOptions& mixing) {
  const Mixture& mixture = on_host_.mixture;
  fingerprint_.add_order(options_.shuffle);
  fingerprint_.add_order(mixture.weighted);
  fingerprint_.add_order(options_.shard_episodes ? options_.world_size : 0);
  if (!mixture.weighted) return;
  for (const Part& part : parts_) {
    if (sources_[part.source].part_weights.empty()) continue;
    fingerprint_.add_order(part.source);
    fingerprint_.add_order(part.anchors.table().data(), part.anchors.table().size_bytes());
  }
  fingerprint_.add_order(mixture.samples);
  for (const MixtureSource& source : mixed.table()) {
    // With shard_episodes a temperature weighs each rank's own anchors, so the shares differ between ranks.
    if (!options_.shard_episodes || !mixing.temperature) fingerprint_.add_order(source.first_slot);
  }
  fingerprint_.add_order(options_.shard_episodes ? mixing.temperature.value_or(0) : 0);
}

void Draws::add_moments(DrawTables& draw_tables, DeviceTables& tables, bool on_device) const {
  std::vector<int64_t> counts;
  int64_t first_tick = 0;
  for (const Source& source : sources_) {
    const int64_t* const times = source.ticks ? source.ticks->on_device().time_ns : nullptr;
    draw_tables.moments.push_back(on_device ? source.moments->copied(tables, times) : source.moments->on_host());
    draw_tables.moments.back().first_tick = first_tick;
    counts.push_back(source.moments->index().anchors);
    first_tick += counts.back();
  }
  const MixtureTables mixed(counts, {.weights = std::vector<std::optional<double>>(counts.size()), .shuffle = false});
  draw_tables.moment_mixture = mixed.mixture();
  draw_tables.moment_mixture.table = tables.put(mixed.table());
  std::vector<MomentSource> moments_of_parts;
  for (const Part& part : parts_) moments_of_parts.push_back(draw_tables.moments[part.source]);
  draw_tables.moments_of_parts = tables.put(moments_of_parts);
}

void Draws::refuse_without_anchors(size_t source, int64_t rank) const {
  refuse(source_name(options_, source), "anchor: expected a tick to draw, got none in the ",
         options_.shard_episodes ? "episodes of rank " + std::to_string(rank) : "episodes asked for",
         options_.edges == Edges::kDrop || options_.drop_n_last > 0 || !options_.sources[source].filter.keeps_all()
             ? " that is left after edges, drop_n_last, keep, drop and where"
             : "");
}

bool Draws::has_weighted_parts() const {
  return std::ranges::any_of(sources_, [](const Source& source) { return !source.part_weights.empty(); });
}

int64_t Draws::anchors_before_filter() const {
  int64_t anchors = 0;
  for (const Source& source : sources_) anchors += source.before_filter;
  return anchors;
}

int64_t Draws::samples() const {
  return on_host_.mixture.samples * (options_.shard_episodes ? options_.world_size : 1);
}

AnchorIndex Draws::around(size_t source, const StreamRequest& request) const {
  return request.moment ? sources_[source].moments->index() : sources_[source].anchors.index();
}

}  // namespace robocache
