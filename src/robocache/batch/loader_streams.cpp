#include "robocache/batch/loader_streams.hpp"

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>
#include <set>
#include <utility>

#include "robocache/batch/frames_ahead.hpp"
#include "robocache/batch/key_statistics.hpp"
#include "robocache/core/arguments.hpp"

namespace robocache {
namespace {

MomentRule rule_of(const MomentRequest& moment) {
  MomentRule rule{.kind = moment.kind};
  if (moment.kind == MomentKind::kFuture) {
    rule.low_ns = checked_ns(moment.low_s, "low_s");
    rule.high_ns = std::isinf(moment.high_s) ? INT64_MAX : checked_ns(moment.high_s, "high_s");
  }
  if (moment.kind == MomentKind::kGeometric) rule.discount = moment.discount;
  return rule;
}

}  // namespace

LoaderStreams::LoaderStreams(const LoaderOptions& options) : options_(options), tables_(options_.device) {
  make_cameras();
  for (size_t source = 0; source < options_.sources.size(); ++source) specs_.push_back(spec_of(source));
  std::vector<Residency> decided = decide();
  const std::vector<std::shared_ptr<const ResidentStream>> no_streams(options_.streams.size());
  streams_.resize(options_.sources.size(), no_streams);
  frame_clocks_.resize(options_.sources.size(), std::vector<std::shared_ptr<const ResidentClock>>(no_streams.size()));
  for (size_t request = 0; request < decided.size(); ++request) {
    if (cameras_[request] != nullptr) {
      load_frames(request, decided[request]);
    } else {
      load(request, decided[request]);
    }
    placements_[request].tier = decided[request].tier;
    placements_[request].why = decided[request].why;
  }
}

void LoaderStreams::make_cameras() {
  cameras_.resize(options_.streams.size());
  is_copied_ahead_.resize(options_.streams.size());
  int64_t most_numbers = 0;
  for (size_t request = 0; request < options_.streams.size(); ++request) {
    if (!is_camera(options_.streams[request])) continue;
    std::vector<std::optional<Camera::Frames>> frames;
    for (size_t source = 0; source < options_.sources.size(); ++source) {
      const std::optional<int64_t> stream = options_.sources[source].streams[request];
      std::optional<Camera::Frames>& camera_frames = frames.emplace_back();
      if (stream) camera_frames.emplace(options_.sources[source].dataset, *stream, nullptr, part_of(source, *stream));
    }
    const StreamRequest& key_request = options_.streams[request];
    cameras_[request] = std::make_unique<Camera>(key_request.stream, frames, *key_request.images,
                                                 options_.on_bad_frame == BadFrame::kPad);
    most_numbers = std::max(most_numbers, cameras_[request]->numbers());
  }
  // The rows of cameras are aligned by their numbers, as values 1, 2, ...
  row_numbers_.resize(static_cast<size_t>(most_numbers));
  std::iota(row_numbers_.begin(), row_numbers_.end(), int64_t{1});
}

BatchSpec LoaderStreams::spec_of(size_t source) const {
  // No gap exceeds 31 years (1e9 s), which int64 ns can hold: longer durations mean the same.
  const auto duration = [](const std::optional<double>& seconds, const char* name) -> std::optional<int64_t> {
    if (!seconds) return {};
    return checked_ns(std::min(*seconds, 1e9), name);
  };
  BatchSpec spec{.snap_ns = checked_ns(options_.snap_s, "snap_s"),
                 .return_age = options_.return_age,
                 .pad_features = options_.pad_features};
  if (options_.mixture) spec.dataset_index = static_cast<int64_t>(source);
  for (size_t request = 0; request < options_.streams.size(); ++request) {
    const StreamRequest& key_request = options_.streams[request];
    const Camera* const camera = cameras_[request].get();
    KeySpec& key = spec.keys.emplace_back(KeySpec{.key = key_request.stream,
                                                  .stream = key_request.rows_key(),
                                                  .dtype = *key_request.dtype,
                                                  .one_step = key_request.one_step,
                                                  .offset_ns = checked_ns(*key_request.offset_s, "offset_s"),
                                                  .causal = *key_request.causal,
                                                  .max_gap_ns = duration(key_request.max_gap_s, "max_gap_s"),
                                                  .tolerance_ns = duration(key_request.tolerance_s, "tolerance_s")});
    if (key_request.moment) key.moment = rule_of(*key_request.moment);
    key.shape = camera != nullptr ? camera->shape() : key_shape(options_, request);
    for (const double delta : key_request.delta_timestamps) {
      if (key_request.rows) {
        key.offsets_rows.push_back(static_cast<int64_t>(delta));
      } else {
        key.offsets_ns.push_back(checked_ns(delta, "delta_timestamps"));
      }
    }
    if (!key_request.convert.empty()) {
      const KeyConversion conversion = key_conversion(options_, request);
      key.convert = {key_request.convert, key_request.base, key_request.base_features, conversion.work,
                     conversion.tolerance};
    }
    if (camera != nullptr) {
      key.images = without_augmentation(*key_request.images);
      key.has_intrinsics = camera->has_intrinsics();
    }
    const Stream* const stream = options_.sources[source].stream_of(request);
    if (stream == nullptr) continue;
    RowsSpec& rows = key.rows.emplace(RowsSpec{.dtype = stream->dtype, .shape = stream->shape, .names = stream->names});
    rows.methods = feature_blocks(camera != nullptr ? 1 : stream->features, *key_request.method, key_request.methods);
    if (!stream->frames) continue;
    rows.codec = stream->frames->codec;
    rows.unit_m = stream->frames->unit_m;
    rows.intrinsics = stream->frames->intrinsics;
  }
  for (size_t request = 0; request < spec.keys.size(); ++request) {
    auto& rows = spec.keys[request].rows;
    if (!rows) continue;
    rows->affine = affines_of(options_, source, request, spec);
    rows->clip = options_.clip && !rows->affine.empty() && options_.streams[request].normalize->has_ends();
  }
  return spec;
}

// With shard_episodes, returns the span of rows from this rank's first episode to its last, with those of all episodes between
// them, also if this rank does not draw from these. Else none, which means all rows.
std::optional<RowRange> LoaderStreams::part_of(size_t source, int64_t stream) const {
  const std::vector<int64_t>& episodes = *options_.sources[source].episodes;
  if (!options_.shard_episodes || episodes.empty()) return {};
  const auto [first, last] = std::minmax_element(episodes.begin(), episodes.end());
  const auto offsets = dataset(source).stream(stream).row_offsets;
  return RowRange{offsets[static_cast<size_t>(*first)], offsets[static_cast<size_t>(*last) + 1]};
}

// Returns the tier that the caller wants for a key, and the bytes that it needs, without those of streams in `counted`, to which
// it adds the key's own. Appends the key's placement. Throws ArgumentError if a camera cannot be in that tier.
ResidencyRequest LoaderStreams::residency_of(size_t request, std::set<std::pair<const Dataset*, int64_t>>& counted) {
  ResidencyRequest wanted{
      .key = options_.streams[request].stream, .bytes = 0, .tier = *options_.streams[request].residency};
  if (const Camera* const camera = cameras_[request].get()) {
    const std::string why = options_.device.is_cuda() ? camera->not_for_device() : "";
    if (!why.empty() && (wanted.tier == Tier::kDevice || wanted.tier == Tier::kPinned)) {
      refuse("memory.residency['", wanted.key, "']: expected 'decoded', 'mapped' or 'auto' for this camera, since ",
             why, ", got '", name_of(*wanted.tier), "'");
    }
    wanted.stays_in_files = !why.empty();
    wanted.decoded_bytes = camera->bytes(options_.device, Tier::kDecoded);
  }
  // Frames that are stored as pixels have no decoded copy: kDecoded means kDevice for them.
  if (wanted.tier == Tier::kDecoded && !wanted.decoded_bytes) wanted.tier = Tier::kDevice;
  int64_t total = 0;
  for (size_t source = 0; source < options_.sources.size(); ++source) {
    const std::optional<int64_t> stream = options_.sources[source].streams[request];
    if (!stream) continue;
    const int64_t bytes = ResidentStream::bytes(dataset(source), *stream, part_of(source, *stream));
    total += bytes;
    if (counted.emplace(&dataset(source), *stream).second) wanted.bytes += bytes;
  }
  placements_.push_back({wanted.key, Tier::kDevice, total, ""});
  return wanted;
}

// Returns the bytes of the streams' clocks. With `present`, it counts only clocks that are in memory already.
MemoryBytes LoaderStreams::clock_bytes(bool present) const {
  MemoryBytes sum;
  std::set<std::pair<const Dataset*, uint64_t>> counted;
  for (size_t source = 0; source < options_.sources.size(); ++source) {
    for (const std::optional<int64_t> stream : options_.sources[source].streams) {
      if (!stream) continue;
      const Stream& dataset_stream = dataset(source).stream(*stream);
      if (!counted.emplace(&dataset(source), dataset_stream.clock_checksum).second) continue;
      const auto bytes = [&](Device device) {
        return present ? ResidentClock::bytes_present(dataset(source), *stream, device)
                       : ResidentClock::bytes(dataset(source), *stream);
      };
      sum.host += bytes({});
      if (options_.device.is_cuda()) sum.device += bytes(options_.device);
    }
  }
  return sum;
}

// Returns the bytes of this loader's streams that are in memory already.
MemoryBytes LoaderStreams::bytes_present() const {
  const Device device = options_.device;
  MemoryBytes sum = clock_bytes(true);
  std::set<std::pair<const Dataset*, int64_t>> counted;
  for (size_t request = 0; request < options_.streams.size(); ++request) {
    const Camera* const camera = cameras_[request].get();
    if (camera != nullptr && device.is_cuda()) {
      sum.host += camera->bytes_present(device, Tier::kPinned);
      for (const Tier tier : {Tier::kDevice, Tier::kDecoded}) sum.device += camera->bytes_present(device, tier);
    } else if (camera != nullptr) {
      sum.host += camera->bytes_present({}, Tier::kDecoded);
    }
    for (size_t source = 0; source < options_.sources.size(); ++source) {
      const std::optional<int64_t> stream = options_.sources[source].streams[request];
      if (!stream || !counted.emplace(&dataset(source), *stream).second) continue;
      if (camera != nullptr && device.is_cuda()) continue;
      const auto bytes_in_tier = [&](Tier tier) {
        return ResidentStream::bytes_present(dataset(source), *stream, device, tier, part_of(source, *stream));
      };
      sum.host += bytes_in_tier(Tier::kPinned);
      if (device.is_cuda()) sum.device += bytes_in_tier(Tier::kDevice);
    }
  }
  // Frames will take this memory, which the system still counts as free.
  sum.host -= ResidentFrames::bytes_promised();
  return sum;
}

std::vector<Residency> LoaderStreams::decide() {
  std::vector<ResidencyRequest> wanted;
  std::set<std::pair<const Dataset*, int64_t>> counted;
  for (size_t request = 0; request < options_.streams.size(); ++request) {
    wanted.push_back(residency_of(request, counted));
  }
  const MemoryBytes clock_memory = clock_bytes(false);
  const MemoryBytes budget = budget_bytes(options_.memory_budget, options_.device, bytes_present());
  std::vector<Residency> decided = decide_residency(wanted, options_.device, budget, clock_memory);
  device_bytes_left_ = budget.device - clock_memory.device;
  for (size_t request = 0; request < decided.size(); ++request) {
    if (decided[request].tier == Tier::kDevice) device_bytes_left_ -= wanted[request].bytes;
    if (decided[request].tier == Tier::kDecoded) device_bytes_left_ -= *wanted[request].decoded_bytes;
  }
  return decided;
}

void LoaderStreams::load(size_t request, Residency& residency) {
  std::vector<DatasetStream> wanted;
  std::vector<size_t> sources;
  for (size_t source = 0; source < streams_.size(); ++source) {
    const std::optional<int64_t> stream = options_.sources[source].streams[request];
    if (!stream) continue;
    wanted.push_back({options_.sources[source].dataset, *stream, part_of(source, *stream)});
    sources.push_back(source);
  }
  const auto loaded = load_streams(wanted, options_.device, residency);
  if (options_.shard_episodes) residency.why += "; from this rank's first episode to its last";
  for (size_t i = 0; i < loaded.size(); ++i) {
    streams_[sources[i]][request] = loaded[i];
    if (cameras_[request] != nullptr) cameras_[request]->set_files(sources[i], loaded[i]);
    const std::string& note = loaded[i]->note();
    if (!note.empty() && residency.why.find(note) == std::string::npos) residency.why += "; " + note;
  }
}

// Decides whether the next batches' JPEGs are copied from pinned memory ahead of time: if the budget has the memory of all
// slots, each with a batch's JPEGs and their numbers.
void LoaderStreams::decide_copying_ahead(size_t request, Residency& residency) {
  const int64_t bytes = FramesAhead::kSlots * (fetched_bytes(request) + options_.batch_size * number_bytes(request));
  is_copied_ahead_[request] = bytes <= device_bytes_left_;
  if (is_copied_ahead_[request]) device_bytes_left_ -= bytes;
  const std::string memory = size_text(bytes) + " of the device's memory";
  residency.why += is_copied_ahead_[request]
                       ? "; copied a batch ahead, in " + memory
                       : "; read across the link: copying ahead would take " + memory + ", more than the budget leaves";
}

// Called in a catch. Rethrows if the caller named the tier; else frames go to a tier that needs less memory.
void LoaderStreams::leave_tier(size_t request, Residency& residency, const std::string& why) const {
  if (!residency.automatic) throw;
  const bool keeps_encoded =
      residency.tier == Tier::kDecoded && (!options_.device.is_cuda() || cameras_[request]->not_for_device().empty());
  residency.tier = keeps_encoded ? Tier::kDevice : Tier::kMapped;  // on the CPU kDevice is a copy in host memory
  residency.why = why + (keeps_encoded ? "; so kept as stored, in memory" : "; so read ahead from its files");
}

// Loads the frames into their tier. Every tier reads from the mapped files. Only on the CPU, below kDecoded, load() at the end
// chooses between mapping and copying.
void LoaderStreams::load_frames(size_t request, Residency& residency) {
  const bool cuda = options_.device.is_cuda();
  Camera& camera = *cameras_[request];
  if (cuda || residency.tier == Tier::kDecoded) {
    Residency files{.tier = Tier::kMapped};
    load(request, files);
  }
  while (residency.tier == Tier::kDecoded || (cuda && residency.tier != Tier::kMapped)) {
    try {
      camera.load(options_.device, residency.tier);
      break;
    } catch (const OutOfMemory& error) {
      leave_tier(request, residency, error.what());
    } catch (const FrameError& error) {
      leave_tier(request, residency, error.what());
    } catch (const std::bad_alloc&) {
      leave_tier(request, residency, "host memory does not suffice");
    }
  }
  if (residency.tier == Tier::kDecoded) placements_[request].bytes = *camera.bytes(options_.device, Tier::kDecoded);
  if (!cuda && residency.tier != Tier::kDecoded) return load(request, residency);
  if (residency.tier == Tier::kMapped) {
    const std::string why = camera.why_not_packed();
    residency.why += why.empty() ? ", decoded by the device" : ", decoded by the host: " + why;
  }
  if (options_.shard_episodes) residency.why += "; from this rank's first episode to its last";
  if (residency.tier == Tier::kMapped) return;
  if (!camera.note().empty()) residency.why += "; " + camera.note();
  if (!cuda) return;
  if (camera.fetched_stride() > 0) decide_copying_ahead(request, residency);
  for (size_t source = 0; source < streams_.size(); ++source) {
    const std::optional<int64_t> stream = options_.sources[source].streams[request];
    if (!stream) continue;
    frame_clocks_[source][request] = ResidentClock::get(options_.sources[source].dataset, *stream, options_.device);
  }
  if (row_numbers_on_device_ == nullptr) row_numbers_on_device_ = tables_.put(row_numbers_);
}

StreamRows LoaderStreams::row_numbers(size_t source, size_t request) const {
  const auto& device_clock = frame_clocks_[source][request];
  return {.clock = device_clock == nullptr ? streams_[source][request]->rows().clock : device_clock->on_device(),
          .values = (device_clock == nullptr ? row_numbers_.data() : row_numbers_on_device_) +
                    cameras_[request]->first_number(source) - 1,  // numbers begin at 1
          .features = 1,
          .dtype = DType::kInt64};
}

}  // namespace robocache
