#include "robocache/batch/loader.hpp"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "robocache/batch/key_statistics.hpp"
#include "robocache/batch/option_checks.hpp"
#include "robocache/batch/window_survey.hpp"
#include "robocache/core/arguments.hpp"
#include "robocache/core/error.hpp"

namespace robocache {
namespace {

BatchKeys keys_of(const LoaderStreams& streams) {
  const LoaderOptions& options = streams.options();
  BatchKeys keys;
  for (size_t request = 0; request < options.streams.size(); ++request) {
    const bool is_filled = options.filled.empty() || std::ranges::find(options.filled, request) != options.filled.end();
    if (is_filled) keys.push_back(make_key(streams, request));
  }
  return keys;
}

// Returns the rules of the keys' goals, each once.
std::vector<MomentRule> rules_of(const BatchKeys& keys) {
  std::vector<MomentRule> rules;
  for (const auto& key : keys) {
    const auto& rule = key->spec().moment;
    if (rule && std::ranges::find(rules, *rule) == rules.end()) rules.push_back(*rule);
  }
  return rules;
}

// Adds memory for the drawn moments of each rule.
std::vector<GoalArrays> add_goals(const std::vector<MomentRule>& rules, BatchLayout& layout) {
  std::vector<GoalArrays> goals;
  for (const MomentRule& rule : rules) goals.push_back({rule, layout.add_scratch(8)});
  return goals;
}

// Adds one array for each key of a rule, side by side. Returns the offset of the first.
int64_t add_goal_arrays(const BatchKeys& keys, const MomentRule& rule, const char* suffix, BatchLayout& layout) {
  int64_t first = -1;
  for (const auto& key : keys) {
    if (key->spec().moment != rule) continue;
    const std::string& name = key->spec().key;
    const int64_t offset = layout.add(name + suffix, DType::kInt64, {}, "the goals of '" + name + "'");
    if (first < 0) first = offset;
  }
  return first;
}

}  // namespace

Loader::Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
    : Loader([&] {
        options.sources.resize(1);
        options.sources[0].dataset = std::move(dataset);
        return std::move(options);
      }()) {}

Loader::Loader(LoaderOptions options)
    : options_(complete_options(std::move(options))),
      streams_(options_),
      keys_(keys_of(streams_)),
      layout_(options_.batch_size),
      draws_(options_, streams_) {
  check_stored_rotations(options_);
  make_plans();
  add_notes();
  plan_frames();
}

// A batch is laid out as the device's part, the host's part, and the frames' files that the host only copies. One part also writes
// the arrays that describe the anchors and the moments: the device's part if it has keys, else the host's.
void Loader::make_plans() {
  const auto reserve = [&](Part part) {
    for (const auto& key : keys_) key->reserve(part, layout_);
  };
  const std::vector<MomentRule> rules = rules_of(keys_);
  const bool is_on_device = std::ranges::any_of(keys_, [](const auto& key) { return key->aligned() == Part::kDevice; });
  reserve(Part::kDevice);
  std::vector<GoalArrays> goals;
  if (is_on_device) goals = add_goals(rules, layout_);
  if (!is_on_device) host_offset_ = layout_.bytes();
  AnchorArrays anchors;
  anchors.time = layout_.add("time_ns", DType::kInt64, {}, "the anchors' times");
  anchors.episode = layout_.add("episode_index", DType::kInt64, {}, "the anchors' episodes");
  anchors.anchor = layout_.add("anchor_index", DType::kInt64, {}, "the anchors' numbers");
  if (options_.mixture) anchors.source = layout_.add("dataset_index", DType::kInt64, {}, "the samples' sources");
  std::vector<std::pair<int64_t, int64_t>> goal_arrays;  // for each rule: of _offset_ns and _episode_index
  for (const MomentRule& rule : rules) {
    const int64_t first_offset = add_goal_arrays(keys_, rule, "_offset_ns", layout_);
    const bool has_episodes = rule.kind == MomentKind::kOther;
    goal_arrays.emplace_back(first_offset, has_episodes ? add_goal_arrays(keys_, rule, "_episode_index", layout_) : -1);
  }
  if (is_on_device) host_offset_ = layout_.bytes();
  reserve(Part::kHost);
  const bool is_on_host = layout_.bytes() > host_offset_;
  std::vector<GoalArrays> goals_on_host;
  if (is_on_host) goals_on_host = add_goals(rules, layout_);
  packed_offset_ = layout_.bytes();
  reserve(Part::kPacked);
  for (size_t i = 0; i < rules.size(); ++i) {
    GoalArrays& goal = (is_on_device ? goals : goals_on_host)[i];
    std::tie(goal.offset, goal.episode) = goal_arrays[i];
  }
  if (is_on_device) on_device_.emplace(Part::kDevice, keys_, streams_, draws_, anchors, goals);
  if (host_bytes() == 0) return;
  if (is_on_device) anchors = {};
  on_host_.emplace(Part::kHost, keys_, streams_, draws_, anchors, goals_on_host);
}

void Loader::add_notes() {
  WindowNotes window_notes;
  for (size_t source = 0; source < options_.sources.size(); ++source) {
    survey_windows(streams_, draws_, source, window_notes);
  }
  std::vector<std::string> notes = unscaled_notes(options_, streams_.specs());
  if (!window_notes.gaps.empty()) {
    window_notes.gaps = "max_gap_s: windows interpolate across gaps of any length: " + window_notes.gaps +
                        "; max_gap_s= of a Window makes values in longer ones padding";
  }
  if (!window_notes.turns.empty()) {
    window_notes.turns =
        "method: 'angle' gives values in [-pi, pi) between rows, and rows as recorded: " + window_notes.turns +
        ", so that one direction has two numbers; store angles in [-pi, pi), or take 'previous'";
  }
  if (!window_notes.wraps.empty()) {
    window_notes.wraps =
        "method: values that jump by a turn, as angles do, are interpolated as numbers, through all angles between: " +
        window_notes.wraps +
        "; give these features a method, in the window or in ingest's mapping: 'angle' turns the short way between "
        "radians, 'previous' holds rotation vectors and degrees";
  }
  notes.insert(notes.begin(),
               {window_notes.made_up, window_notes.padding, window_notes.gaps, window_notes.turns, window_notes.wraps});
  notes.insert(notes.end(), {rounding_note(options_), overflow_note(options_, streams_.specs())});
  for (std::string& note : notes) {
    if (!note.empty()) options_.notes.push_back(std::move(note));
  }
}

// Reserves memory and makes plans for frames that a device decodes.
void Loader::plan_frames() {
  int64_t scratch_bytes = 0;  // the keys use it one after the other
  for (const auto& key : keys_) scratch_bytes = std::max(scratch_bytes, key->scratch_bytes());
  if (scratch_bytes == 0) return;
  scratch_ = DeviceBuffer(options_.device, static_cast<size_t>(scratch_bytes));
  scratch_used_ = CudaEvent(options_.device);
  BatchLayout files(options_.batch_size);
  for (const auto& key : keys_) key->reserve(Part::kAhead, files);
  if (files.bytes() == 0) return;
  const std::vector<GoalArrays> goals = add_goals(rules_of(keys_), files);
  ahead_.emplace(options_.device, files.bytes());
  on_device_ahead_.emplace(Part::kAhead, keys_, streams_, draws_, AnchorArrays{}, goals);
}

int64_t Loader::steps_per_epoch() const {
  const int64_t global_batch = options_.batch_size * options_.world_size;
  return options_.drop_last ? samples() / global_batch : (samples() + global_batch - 1) / global_batch;
}

int64_t Loader::samples_at(const BatchPosition& position) const {
  if (position.samples < 0 || position.samples > samples()) {
    refuse("samples: expected in [0, ", samples(), "], got ", position.samples);
  }
  const int64_t left = samples() - position.samples;
  if (left >= options_.batch_size * options_.world_size) return options_.batch_size;
  return options_.drop_last ? 0 : (left + options_.world_size - 1) / options_.world_size;
}

BatchPosition Loader::after(const BatchPosition& position) const {
  const int64_t end = position.samples + samples_at(position) * options_.world_size;
  return {position.seed, position.epoch, std::min(end, samples()), position.weights};
}

const WeightChange* Loader::change_weights(const BatchPosition& from,
                                           const std::vector<std::pair<std::string, double>>& weights) const {
  samples_at(from);  // refuses samples that no epoch has
  return draws_.change_weights(from, weights);
}

const BatchSpec& Loader::spec(size_t source) const {
  if (source >= options_.sources.size()) {
    refuse("source: expected below ", options_.sources.size(), ", got ", source);
  }
  return streams_.spec(source);
}

int64_t Loader::bad_frames_on_device() const {
  int64_t frames = 0;
  for (const auto& key : keys_) frames += key->bad_frames_on_device();
  return frames;
}

bool Loader::is_small() const {
  constexpr int64_t kSmallBytes = 64 << 10;  // filling takes about 15 microseconds, and waking a thread 5 to 50
  if (options_.device.is_cuda()) return false;
  if (options_.batch_size > kSmallBytes / (1 + on_device_->sample_bytes())) return false;
  for (size_t request = 0; request < options_.streams.size(); ++request) {
    if (streams_.camera(request) != nullptr || placements()[request].tier == Tier::kMapped) return false;
  }
  return true;
}

// ---- how a batch is filled ---------------------------------------------------------------------------------------------

// Describes a batch whose plans have run. A sample's random draws depend on its position in the order, or on its given number.
BatchMemory Loader::batch_memory(const Wanted& wanted, void* memory) const {
  const int64_t first = samples_of(options_, wanted, draws_.on_host().mixture).first_position;
  const ImageDraw draw{.seed = wanted.position.seed,
                       .epoch = static_cast<uint64_t>(wanted.position.epoch),
                       .sample = wanted.anchors.empty() ? first : 0};
  return {static_cast<char*>(memory), wanted.count, draw, wanted.draws};
}

HostPart Loader::fill_host(const Wanted& wanted, void* memory) const {
  char* const start = static_cast<char*>(memory) - host_offset_;  // offsets count from the batch's start
  on_host_->run(wanted, start, {});
  HostPart part{.copies = {{host_offset_, packed_offset_ - host_offset_}}, .packed = {}, .bad_frames = 0};
  part.packed.resize(options_.streams.size());
  const BatchMemory filled = batch_memory(wanted, start);
  for (const auto& key : keys_) {
    if (key->aligned() == Part::kHost) key->stage(filled, part);
  }
  return part;
}

HostPart Loader::fill_host(const BatchPosition& position, void* memory) const {
  return host_bytes() == 0 ? HostPart{} : fill_host({position, samples_at(position)}, memory);
}

void Loader::copy_host_part(const HostPart& part, const void* from, void* memory, CudaStream stream) const {
  for (const StagedCopy& copy : part.copies) {
    check_cuda(cuda_backend().copy_from_host(options_.device.index, static_cast<char*>(memory) + copy.offset,
                                             static_cast<const char*>(from) + copy.offset - host_offset_,
                                             static_cast<size_t>(copy.bytes), stream.handle),
               "copying a batch's part to the device");
  }
}

// Fills everything but the host's part: on the CPU the whole batch.
int64_t Loader::fill_device(const Wanted& wanted, const HostPart& part, void* memory, CudaStream stream) const {
  check_damage();  // for earlier batches
  if (on_device_) on_device_->run(wanted, memory, stream);
  const BatchMemory filled = batch_memory(wanted, memory);
  const bool uses_scratch = scratch_.bytes() > 0;
  std::unique_lock<std::mutex> lock(scratch_mutex_, std::defer_lock);
  const void* fetched = nullptr;
  if (uses_scratch) {  // one batch at a time uses it
    lock.lock();
    scratch_used_.make_wait(stream);
    if (ahead_ && wanted.anchors.empty()) fetched = ahead_->find(wanted.position, stream);
  }
  int64_t bad_frames = part.bad_frames;
  for (const auto& key : keys_) bad_frames += key->launch(filled, part, scratch_.data(), fetched, stream);
  if (uses_scratch) scratch_used_.record(stream);
  if (fetched != nullptr) ahead_->keep(fetched, stream);
  return bad_frames;
}

int64_t Loader::fill_device(const BatchPosition& position, const HostPart& part, void* memory,
                            CudaStream stream) const {
  return fill_device({position, samples_at(position)}, part, memory, stream);
}

int64_t Loader::fill(const Wanted& wanted, void* memory, CudaStream stream) const {
  HostPart part;
  if (host_bytes() > 0) {
    const PinnedBuffer staging(options_.device, host_bytes());
    part = fill_host(wanted, staging.data());
    copy_host_part(part, staging.data(), memory, stream);
    synchronize(stream, "batch");
  }
  return fill_device(wanted, part, memory, stream);
}

int64_t Loader::fill(const BatchPosition& position, void* memory, CudaStream stream) const {
  return fill({position, samples_at(position)}, memory, stream);
}

void Loader::fetch(const BatchPosition& position) const {
  const int64_t samples = samples_at(position);
  if (!ahead_ || samples == 0) return;
  const std::lock_guard<std::mutex> lock(scratch_mutex_);
  ahead_->copy(position, [&](void* memory, CudaStream stream) {
    on_device_ahead_->run({position, samples}, memory, stream);
    for (const auto& key : keys_) key->fetch(memory, samples, stream);
  });
}

void Loader::check_frames(CudaStream stream) const {
  if (scratch_.bytes() == 0) return;
  synchronize(stream, "decoding frames");
  check_damage();
}

void Loader::check_damage() const {
  for (const auto& key : keys_) key->check_damage();
}

void Loader::synchronize(CudaStream stream, const char* what) const {
  check_cuda(cuda_backend().synchronize(options_.device.index, stream.handle), what);
}

// ---- given anchors -----------------------------------------------------------------------------------------------------

void Loader::check_anchors(std::span<const int64_t> anchors) const {
  if (std::ssize(anchors) > options_.batch_size) {
    refuse("indices: expected at most batch_size, ", options_.batch_size, ", got ", anchors.size());
  }
  for (size_t i = 0; i < anchors.size(); ++i) {
    if (anchors[i] >= 0 && anchors[i] < draws_.anchors()) continue;
    refuse("indices[", i, "]: expected in [0, ", draws_.anchors(), "), got ", anchors[i]);
  }
}

int64_t Loader::gather(const BatchPosition& position, std::span<const int64_t> anchors, std::span<const int64_t> draws,
                       void* memory, CudaStream stream) const {
  check_anchors(anchors);
  if (draws.empty()) draws = anchors;
  if (draws.size() != anchors.size()) {
    refuse("draws: expected ", anchors.size(), ", one for each index, got ", draws.size());
  }
  if (anchors.empty()) return 0;
  Wanted wanted{position, std::ssize(anchors), anchors, draws, anchors.data(), draws.data()};
  DeviceTables device_copies(options_.device);
  if (options_.device.is_cuda()) {
    wanted.anchors_on_device = device_copies.put(anchors);
    wanted.draws_on_device = device_copies.put(draws);
  }
  const int64_t bad_frames = fill(wanted, memory, stream);
  if (options_.device.is_cuda()) synchronize(stream, "gather");
  check_damage();
  return bad_frames;
}

std::vector<SampleAnchor> Loader::anchors_at(const BatchPosition& position, std::span<const int64_t> anchors) const {
  check_anchors(anchors);
  const int64_t count = anchors.empty() ? samples_at(position) : std::ssize(anchors);
  WindowBatch batch = samples_of(options_, {position, count}, draws_.mixture_at(position, Device{}));
  if (!anchors.empty()) batch.anchors = anchors.data();
  std::vector<SampleAnchor> samples;
  for (int64_t i = 0; i < count; ++i) {
    const Draw draw = batch.draw(i);
    const Draws::Part& part = draws_.parts()[static_cast<size_t>(draw.source)];
    const Anchor anchor = part.anchors.index().at(draw.anchor);
    const int64_t number = anchors.empty() ? batch.position(i) : anchors[static_cast<size_t>(i)];
    samples.push_back({static_cast<int64_t>(part.source), anchor.episode, anchor.time_ns, number});
  }
  return samples;
}

std::vector<AnchoredEpisode> Loader::episodes() const {
  std::vector<AnchoredEpisode> episodes;
  for (size_t source = 0; source < options_.sources.size(); ++source) {
    const Anchors& anchors = draws_.anchors_of(source);
    const std::span<const AnchorRun> table = anchors.table();
    const auto tick_order = [](const AnchorRun& run) { return std::tuple(run.episode, run.origin, run.first_tick); };
    for (size_t i = 0; i < table.size(); ++i) {
      const int64_t end = i + 1 < table.size() ? table[i + 1].first_anchor : anchors.index().anchors;
      const int64_t count = end - table[i].first_anchor;
      // A filter can leave several runs of an episode, which are added up. An episode that is listed twice begins a new entry.
      if (i > 0 && table[i].episode == table[i - 1].episode && tick_order(table[i]) > tick_order(table[i - 1])) {
        episodes.back().anchors += count;
      } else {
        episodes.push_back({static_cast<int64_t>(source), table[i].episode, count});
      }
    }
  }
  return episodes;
}

void Loader::check_tolerance() const {
  for (size_t source = 0; source < options_.sources.size(); ++source) {
    robocache::check_tolerance(streams_, draws_, source);
  }
}

}  // namespace robocache
