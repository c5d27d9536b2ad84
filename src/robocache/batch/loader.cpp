#include "robocache/batch/loader.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "robocache/align/window_batch.hpp"
#include "robocache/align/window_math.hpp"
#include "robocache/align/window_plan.hpp"
#include "robocache/batch/camera.hpp"
#include "robocache/core/arguments.hpp"
#include "robocache/core/device_tables.hpp"
#include "robocache/core/thread_pool.hpp"
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
};

// One source, brought to where it is drawn from.
struct Source {
  std::vector<std::shared_ptr<const ResidentStream>> streams;      // of each request; null where there is none
  std::vector<std::shared_ptr<const ResidentClock>> frame_clocks;  // the same, of frames that the device decodes
  std::shared_ptr<const ResidentClock> ticks;                      // those of the anchors, unless they have a rate
  Anchors anchors;
};

}  // namespace

struct Loader::Impl {
  explicit Impl(LoaderOptions asked)
      : options(complete_options(std::move(asked))),
        layout(options.batch_size),
        tables(options.device),
        keys(options.streams.size()) {
    if (options.shard_episodes) cut_episodes();
    make_cameras();
    bring_streams();
    if (options.device.is_cuda()) make_room_for_frames();
    // What the host makes for a device comes last, so that it is one piece, and at its end what it only sends along.
    bool all_by_host = true;
    for (size_t request = 0; request < keys.size(); ++request) {
      all_by_host = all_by_host && by_host(request);
      if (!by_host(request)) {
        add_values(request);
        add_marks(request);
      } else if (comes_by_batch(request)) {
        add_values(request);
      }
    }
    if (all_by_host) host_offset = layout.bytes();
    time_offset = layout.add("time_ns", DType::kInt64, {}, "the anchors' times");
    episode_offset = layout.add("episode_index", DType::kInt64, {}, "the anchors' episodes");
    if (options.mixture) index_offset = layout.add("dataset_index", DType::kInt64, {}, "the samples' sources");
    if (!all_by_host) host_offset = layout.bytes();
    for (size_t request = 0; request < keys.size(); ++request) {
      if (!by_host(request)) continue;
      if (!comes_by_batch(request)) add_values(request);
      add_marks(request);
    }
    packed_offset = layout.bytes();
    for (size_t request = 0; request < keys.size(); ++request) {
      if (comes_by_batch(request)) keys[request].packed_offset = layout.add_room(cameras[request]->packed_bytes());
    }
    aligns_on_device = !all_by_host;
    make_anchors();
    make_mixture();
    if (aligns_on_device) plan = plan_of(false, true, tables);
    if (host_bytes() > 0) host_plan = plan_of(true, all_by_host, host_tables);
  }

  // ---- where rows lie --------------------------------------------------------------------------------------------------

  const Dataset& dataset(size_t source) const { return *options.sources[source].dataset; }

  // Gives each rank neighbouring episodes of every source, about as many bytes as any other has, and keeps this rank's.
  void cut_episodes() {
    const auto ranks = static_cast<size_t>(options.world_size);
    for (SourceRequest& source : options.sources) {
      std::vector<std::vector<int64_t>>& of_ranks = episodes_of_ranks.emplace_back(ranks);
      const auto bytes_of = [&](int64_t episode) {
        int64_t bytes = 0;
        for (const std::optional<int64_t>& stream : source.streams) {
          if (!stream) continue;
          const Stream& from = source.dataset->streams()[static_cast<size_t>(*stream)];
          const auto e = static_cast<size_t>(episode);
          bytes +=
              ResidentStream::bytes(*source.dataset, *stream, RowSpan{from.row_offsets[e], from.row_offsets[e + 1]});
        }
        return static_cast<double>(bytes);
      };
      double whole = 0;
      for (const int64_t episode : *source.episodes) whole += bytes_of(episode);
      double before = 0;
      for (const int64_t episode : *source.episodes) {
        const double bytes = bytes_of(episode);
        const double middle = (before + bytes / 2) / std::max(whole, 1.0);
        of_ranks[std::min(ranks - 1, static_cast<size_t>(middle * static_cast<double>(ranks)))].push_back(episode);
        before += bytes;
      }
      source.episodes = of_ranks[static_cast<size_t>(options.rank)];
    }
  }

  // What a rank with episodes of its own needs of a stream.
  std::optional<RowSpan> part_of(size_t source, int64_t stream) const {
    const std::vector<int64_t>& episodes = *options.sources[source].episodes;
    if (!options.shard_episodes || episodes.empty()) return {};
    const auto [first, last] = std::minmax_element(episodes.begin(), episodes.end());
    const auto offsets = dataset(source).streams()[static_cast<size_t>(stream)].row_offsets;
    return RowSpan{offsets[static_cast<size_t>(*first)], offsets[static_cast<size_t>(*last) + 1]};
  }

  void bring_streams() {
    std::vector<ResidencyRequest> requests;
    std::set<std::pair<const Dataset*, int64_t>> counted;
    std::set<std::pair<const Dataset*, uint64_t>> clocks;
    MemoryBytes taken;
    MemoryBytes present;
    const bool cuda = options.device.is_cuda();
    const auto take_clock = [&](size_t source, int64_t stream) {
      const Stream& on = dataset(source).streams()[static_cast<size_t>(stream)];
      if (!clocks.emplace(&dataset(source), on.clock_checksum).second) return;
      const int64_t bytes = ResidentClock::bytes(dataset(source), stream);
      taken.host += bytes;
      present.host += ResidentClock::bytes_present(dataset(source), stream, {});
      if (!cuda) return;
      taken.device += bytes;
      present.device += ResidentClock::bytes_present(dataset(source), stream, options.device);
    };
    for (size_t request = 0; request < keys.size(); ++request) {
      ResidencyRequest asked{
          .key = options.streams[request].stream, .bytes = 0, .tier = *options.streams[request].residency};
      const std::string why = why_files(request);
      if (!why.empty()) {
        if (asked.tier.value_or(Tier::kMapped) != Tier::kMapped) {
          refuse("residency['", asked.key, "']: expected 'mapped' or 'auto' for this camera, since ", why, ", got '",
                 tier_name(*asked.tier), "'");
        }
        asked.tier = Tier::kMapped;
      }
      int64_t whole = 0;
      for (size_t source = 0; source < options.sources.size(); ++source) {
        const std::optional<int64_t> stream = options.sources[source].streams[request];
        if (!stream) continue;
        const int64_t bytes = ResidentStream::bytes(dataset(source), *stream, part_of(source, *stream));
        whole += bytes;
        take_clock(source, *stream);
        if (!counted.emplace(&dataset(source), *stream).second) continue;
        asked.bytes += bytes;
        const auto in_memory = [&](Tier tier) {
          return ResidentStream::bytes_present(dataset(source), *stream, options.device, tier,
                                               part_of(source, *stream));
        };
        present.host += in_memory(Tier::kPinned);
        if (cuda) present.device += in_memory(Tier::kDevice);
      }
      requests.push_back(asked);
      placements.push_back({asked.key, Tier::kDevice, whole, ""});
    }
    std::vector<Residency> decided =
        decide_residency(requests, options.device, budget_bytes(options.memory_budget, options.device, present), taken);
    sources.resize(options.sources.size());
    for (Source& source : sources) {
      source.streams.resize(keys.size());
      source.frame_clocks.resize(keys.size());
    }
    for (size_t request = 0; request < keys.size(); ++request) {
      if (cameras[request] != nullptr && cuda) {
        bring_frames(request, decided[request]);
      } else {
        bring(request, decided[request]);
      }
      placements[request].tier = decided[request].tier;
      placements[request].why = decided[request].why;
    }
  }

  void bring(size_t request, Residency& residency) {
    std::vector<DatasetStream> wanted;
    std::vector<size_t> of_source;
    for (size_t source = 0; source < sources.size(); ++source) {
      const std::optional<int64_t> stream = options.sources[source].streams[request];
      if (!stream) continue;
      wanted.push_back({options.sources[source].dataset, *stream, part_of(source, *stream)});
      of_source.push_back(source);
    }
    const auto brought = robocache::bring(wanted, options.device, residency);
    if (options.shard_episodes) residency.why += "; of this rank's episodes alone";
    for (size_t i = 0; i < brought.size(); ++i) {
      sources[of_source[i]].streams[request] = brought[i];
      if (cameras[request] != nullptr) cameras[request]->set_resident(of_source[i], brought[i]);
      const std::string& note = brought[i]->note();
      if (!note.empty() && residency.why.find(note) == std::string::npos) residency.why += "; " + note;
    }
  }

  // Why a camera's frames stay in their files whatever memory a CUDA device has; empty where they need not, on the CPU, and of
  // numbers.
  std::string why_files(size_t request) const {
    if (cameras[request] == nullptr || !options.device.is_cuda()) return "";
    return options.shard_episodes ? "the ranks have episodes of their own" : cameras[request]->not_for_device();
  }

  // A camera's frames are read by the host, whatever becomes of them.
  void bring_frames(size_t request, Residency& residency) {
    Residency files{.tier = Tier::kMapped};
    bring(request, files);
    if (const std::string why = why_files(request); !why.empty()) residency.why += "; " + why;
    if (residency.tier != Tier::kMapped) {
      try {
        cameras[request]->bring_to(options.device, residency.tier);
      } catch (const OutOfMemory& refusal) {
        leave_in_files(residency, refusal.what());
      } catch (const FrameError& refusal) {
        leave_in_files(residency, refusal.what());
      } catch (const std::bad_alloc&) {
        leave_in_files(residency, "host memory does not suffice");
      }
    }
    if (residency.tier == Tier::kMapped) {
      const int64_t frames =
          options.batch_size * static_cast<int64_t>(options.streams[request].delta_timestamps.size());
      const std::string why = cameras[request]->bring_by_batch(options.device, frames);
      residency.why += why.empty() ? ", decoded by the device" : ", decoded by the host: " + why;
      return;
    }
    for (size_t source = 0; source < sources.size(); ++source) {
      const std::optional<int64_t> stream = options.sources[source].streams[request];
      if (!stream) continue;
      sources[source].frame_clocks[request] =
          ResidentClock::get(options.sources[source].dataset, *stream, options.device);
    }
  }

  // In a catch: what was asked for by name is refused as it was.
  static void leave_in_files(Residency& residency, const std::string& why) {
    if (!residency.automatic) throw;
    residency.tier = Tier::kMapped;
    residency.why = why + ": its files, read ahead";
  }

  // Whether what is read from files for a device is decoded there.
  bool comes_by_batch(size_t request) const {
    return by_host(request) && cameras[request] != nullptr && cameras[request]->comes_by_batch();
  }

  // Whether the host aligns it, and makes its arrays unless it comes by batch.
  bool by_host(size_t request) const { return options.device.is_cuda() && placements[request].tier == Tier::kMapped; }

  void make_cameras() {
    cameras.resize(keys.size());
    int64_t numbers = 0;
    for (size_t request = 0; request < keys.size(); ++request) {
      if (!is_camera(options.streams[request])) continue;
      std::vector<std::optional<Camera::Frames>> frames;
      for (size_t source = 0; source < options.sources.size(); ++source) {
        const std::optional<int64_t> stream = options.sources[source].streams[request];
        std::optional<Camera::Frames>& from = frames.emplace_back();
        if (stream) from.emplace(options.sources[source].dataset, *stream, nullptr);
      }
      const StreamRequest& asked = options.streams[request];
      cameras[request] = std::make_unique<Camera>(asked.stream, frames, *asked.images, options.pad_bad_frames);
      numbers = std::max(numbers, cameras[request]->numbers());
    }
    row_numbers.resize(static_cast<size_t>(numbers));
    std::iota(row_numbers.begin(), row_numbers.end(), int64_t{1});
  }

  // What the device needs to decode: the rows' numbers there, and room for the frames of a batch.
  void make_room_for_frames() {
    int64_t bytes = 0;
    for (size_t request = 0; request < keys.size(); ++request) {
      if (cameras[request] == nullptr || (by_host(request) && !comes_by_batch(request))) continue;
      const auto steps = static_cast<int64_t>(options.streams[request].delta_timestamps.size());
      bytes = std::max(bytes, cameras[request]->scratch_bytes(options.batch_size * steps));
      decodes_on_device = true;
      if (by_host(request)) continue;
      if (row_numbers_on_device == nullptr) row_numbers_on_device = tables.put(row_numbers);
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
    return cameras[place] != nullptr ? cameras[place]->shape() : key_shape(options, place);
  }

  void add_values(size_t place) {
    const StreamRequest& request = options.streams[place];
    const std::vector<int64_t> row = row_of(place);
    std::vector<int64_t> shape = steps_of(place);
    shape.insert(shape.end(), row.begin(), row.end());
    for (const int64_t extent : row) keys[place].features *= extent;
    const DType dtype = cameras[place] != nullptr ? cameras[place]->dtype() : *request.dtype;
    keys[place].out_offset = layout.add(request.stream, dtype, shape, "stream '" + request.stream + "'");
  }

  // What goes with the values.
  void add_marks(size_t place) {
    const StreamRequest& request = options.streams[place];
    const Camera* const camera = cameras[place].get();
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
      key.number_offset = layout.add_scratch(static_cast<int64_t>(request.delta_timestamps.size() * sizeof(int64_t)));
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
        source.ticks = ResidentClock::get(request.dataset, dataset(place).index_of(request.anchor), options.device);
      }
      source.anchors = anchors_of(source, *request.episodes);
      if (source.anchors.table().empty()) refuse_without_anchors(place, options.rank);
    }
  }

  [[noreturn]] void refuse_without_anchors(size_t place, int64_t rank) const {
    refuse(source_name(options, place), "anchor: expected a tick to draw, got none in the ",
           options.shard_episodes ? "episodes of rank " + std::to_string(rank) : "episodes asked for",
           options.edges == Edges::kDrop || options.drop_n_last > 0 ? " that edges and drop_n_last leave" : "");
  }

  Anchors anchors_of(const Source& source, const std::vector<int64_t>& episodes) const {
    const AnchorEdges edges = edges_of(source);
    if (source.ticks) return Anchors::of_ticks(source.ticks->on_host(), episodes, edges);
    std::vector<StreamClock> clocks;
    for (const auto& stream : source.streams) {
      if (stream) clocks.push_back(stream->clock().on_host());
    }
    return Anchors::at_rate(*options.anchor_hz, clocks, episodes, edges);
  }

  // The anchors of the rank that has the fewest, where each has its own. Every rank refuses what one of them cannot draw.
  int64_t fewest_anchors() const {
    int64_t fewest = INT64_MAX;
    for (size_t rank = 0; rank < static_cast<size_t>(options.world_size); ++rank) {
      int64_t anchors = 0;
      for (size_t place = 0; place < sources.size(); ++place) {
        const int64_t of_source = anchors_of(sources[place], episodes_of_ranks[place][rank]).index().anchors;
        if (of_source == 0) refuse_without_anchors(place, static_cast<int64_t>(rank));
        anchors += of_source;
      }
      fewest = std::min(fewest, anchors);
    }
    return fewest;
  }

  AnchorEdges edges_of(const Source& source) const {
    AnchorEdges edges{.whole = {}, .snap_ns = checked_ns(options.snap_s, "snap_s"), .drop_n_last = options.drop_n_last};
    if (options.edges == Edges::kPad) return edges;
    for (size_t place = 0; place < keys.size(); ++place) {
      if (!source.streams[place]) continue;
      const std::vector<int64_t> delta_ns = offsets(options.streams[place]);
      const auto [first, last] = std::minmax_element(delta_ns.begin(), delta_ns.end());
      edges.whole.push_back({source.streams[place]->clock().on_host(), *first, *last});
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
    mixture.table = tables.put(mixed.table());
    host_mixture = mixture;
    host_mixture.table = host_tables.put(mixed.table());
    if (options.drop_last && samples() < options.batch_size * options.world_size) {
      refuse("batch_size: expected at most the ", std::to_string(samples() / options.world_size), " samples there are",
             options.world_size > 1 ? " for each rank" : "", ", since drop_last, got ",
             std::to_string(options.batch_size));
    }
  }

  // ---- how a batch is made of them -------------------------------------------------------------------------------------

  // From the anchor to what a stream stamps with the moments that are asked for.
  static std::vector<int64_t> offsets(const StreamRequest& request) {
    std::vector<int64_t> delta_ns;
    for (const double delta : request.delta_timestamps) {
      delta_ns.push_back(checked_ns(delta, "delta_timestamps") + checked_ns(*request.offset_s, "offset"));
    }
    return delta_ns;
  }

  // The plan of the keys that the host makes for a device, or of the others; `anchors`: and of what the anchors are.
  WindowPlan plan_of(bool host, bool anchors, DeviceTables& to) {
    std::vector<WindowStreams> windows;
    for (size_t place = 0; place < sources.size(); ++place) {
      const Source& source = sources[place];
      WindowStreams made{.anchors = source.anchors.index(), .streams = {}, .constants = {}};
      if (!host && options.device.is_cuda()) {
        made.anchors.table = to.put(source.anchors.table());
        made.anchors.first_of = to.put(source.anchors.first_of());
        if (source.ticks) made.anchors.tick_ns = source.ticks->on_device().time_ns;
      }
      for (size_t request = 0; request < keys.size(); ++request) {
        if (by_host(request) != host) continue;
        made.streams.push_back(window_of(place, request, to));
        if (const int64_t offset = keys[request].feature_pad_offset; offset >= 0) {
          std::vector<uint8_t> mask(static_cast<size_t>(keys[request].features), 1);
          const auto& stream = source.streams[request];
          if (stream) std::fill_n(mask.begin(), stream->rows().features, uint8_t{0});
          made.constants.push_back({to.put(mask), keys[request].features, offset});
        }
      }
      if (options.mixture && anchors) {
        const std::vector<int64_t> index{static_cast<int64_t>(place)};
        made.constants.push_back({to.put(index), 8, index_offset});
      }
      windows.push_back(std::move(made));
    }
    WindowPlan planned = window_plan(windows, to);
    planned.time_offset = anchors ? time_offset : -1;
    planned.episode_offset = anchors ? episode_offset : -1;
    planned.snap_ns = checked_ns(options.snap_s, "snap_s");
    return planned;
  }

  // How a key of a source is normalised: by statistics given for the source, else for all, else by the cache's own.
  std::vector<Affine> affines_of(size_t place, size_t of_request) const {
    const StreamRequest& request = options.streams[of_request];
    const SourceRequest& source = options.sources[place];
    if (!source.streams[of_request]) return {};
    const Stream& stream = dataset(place).streams()[static_cast<size_t>(*source.streams[of_request])];
    const auto by = [&](const FeatureStats& stats, const std::string& name) {
      return robocache::affines(stats, stream.features, stream.dtype, *request.normalize, options.constant, name);
    };
    const std::string name = "norm_stats['" + request.stream + "']";
    if (const auto given = source.norm_stats.find(request.stream); given != source.norm_stats.end()) {
      return by(given->second.view(), source_name(options, place) + name);
    }
    if (const auto given = options.norm_stats.find(request.stream); given != options.norm_stats.end()) {
      return by(given->second.view(), name);
    }
    return by(stream.stats, "stream '" + request.stream + "'");
  }

  WindowStream window_of(size_t place, size_t of_request, DeviceTables& to) const {
    const StreamRequest& request = options.streams[of_request];
    const auto& resident = sources[place].streams[of_request];
    WindowStream window{};
    const Camera* const camera = cameras[of_request].get();
    window.out_features = camera != nullptr ? 1 : keys[of_request].features;
    window.out_offset = camera != nullptr ? keys[of_request].number_offset : keys[of_request].out_offset;
    window.pad_offset = keys[of_request].pad_offset;
    window.age_offset = keys[of_request].age_offset;
    window.out_dtype = camera != nullptr ? DType::kInt64 : *request.dtype;
    window.delta_ns = offsets(request);
    // Longer than 31 years is none.
    if (request.max_gap_s) window.max_gap_ns = checked_ns(std::min(*request.max_gap_s, 1e9), "max_gap_s");
    if (request.tolerance_s) window.tolerance_ns = checked_ns(std::min(*request.tolerance_s, 1e9), "tolerance_s");
    window.causal = *request.causal;
    if (!resident) {
      window.rows = {.clock = {}, .values = nullptr, .features = window.out_features, .dtype = window.out_dtype};
      window.methods = {{0, window.out_features, InterpolationMethod::kPrevious}};
      return window;
    }
    window.rows = resident->rows();
    if (camera != nullptr) {  // the alignment chooses among the rows' numbers
      const auto& on_device = sources[place].frame_clocks[of_request];
      const int64_t* const numbers = on_device == nullptr ? row_numbers.data() : row_numbers_on_device;
      window.rows = {.clock = on_device == nullptr ? window.rows.clock : on_device->on_device(),
                     .values = numbers + camera->first_number(place) - 1,
                     .features = 1,
                     .dtype = DType::kInt64};
      window.methods = {{0, 1, *request.method}};
      return window;
    }
    window.methods = feature_blocks(window.rows.features, *request.method, request.methods);
    const AffineTables affine = affine_tables(affines_of(place, of_request), window.rows.dtype, to);
    window.scale = affine.scale;
    window.shift = affine.shift;
    return window;
  }

  WindowBatch batch_at(const BatchPosition& position, int64_t count, bool host) const {
    WindowBatch batch{};
    batch.plan = host ? host_plan : plan;
    batch.count = count;
    batch.first_position =
        options.shard_episodes ? position.samples / options.world_size : position.samples + options.rank * count;
    batch.mixture = (host ? host_mixture : mixture).at_epoch(position.seed, position.epoch, batch.first_position);
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
    HostPart part{.copies = {{0, host_offset, packed_offset - host_offset}}, .packed = {}};
    part.packed.resize(keys.size());
    for (size_t request = 0; request < keys.size(); ++request) {
      if (cameras[request] == nullptr || !by_host(request)) continue;
      const Camera::Batch frames = frames_of(batch, request, draw, anchors);
      if (!comes_by_batch(request)) {
        cameras[request]->fill(frames);
        continue;
      }
      const int64_t at = keys[request].packed_offset;
      const PackedJpegs& packed = part.packed[request] =
          cameras[request]->pack(frames, static_cast<char*>(batch.memory) + at);
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

  // All but what the host makes, which `part` says. On the CPU that is all.
  void run_device(const WindowBatch& batch, const HostPart& part, const ImageDraw& draw, CudaStream stream,
                  std::span<const int64_t> anchors = {}) const {
    if (aligns_on_device) window_batch(batch, options.device, stream);
    const bool cuda = options.device.is_cuda();
    std::unique_lock<std::mutex> lock(frames_mutex, std::defer_lock);
    for (size_t request = 0; request < keys.size(); ++request) {
      if (cameras[request] == nullptr || (by_host(request) && !comes_by_batch(request))) continue;
      const Camera::Batch frames = frames_of(batch, request, draw, anchors);
      if (!cuda) {
        cameras[request]->fill(frames);
        continue;
      }
      if (!lock.owns_lock()) {  // one batch after the other has the scratch
        lock.lock();
        frames_made.make_wait(stream);
      }
      const bool by_batch = comes_by_batch(request);
      cameras[request]->fill_on_device(
          frames, by_batch ? part.packed[request] : PackedJpegs{},
          by_batch ? static_cast<const char*>(batch.memory) + keys[request].packed_offset : nullptr,
          frames_scratch.data(), stream);
    }
    if (lock.owns_lock()) frames_made.record(stream);
  }

  void check_damage() const {
    for (const auto& camera : cameras) {
      if (camera != nullptr) camera->check_damage();
    }
  }

  // The random draws of a batch's first sample.
  static ImageDraw draw_of(const BatchPosition& position, const WindowBatch& batch) {
    return {.seed = position.seed, .epoch = static_cast<uint64_t>(position.epoch), .sample = batch.first_position};
  }

  // From host memory to its place in the batch; waited for.
  void copy_host_part(const HostPart& part, const void* from, void* memory, CudaStream stream) const {
    const int32_t device = options.device.index;
    for (const StagedCopy& copy : part.copies) {
      check_cuda(cuda_backend().copy_from_host(device, static_cast<char*>(memory) + copy.to,
                                               static_cast<const char*>(from) + copy.from,
                                               static_cast<size_t>(copy.bytes), stream.handle),
                 "batch");
    }
    check_cuda(cuda_backend().synchronize(device, stream.handle), "batch");
  }

  LoaderOptions options;
  BatchLayout layout;
  DeviceTables tables;
  DeviceTables host_tables{Device{}};
  std::vector<Key> keys;  // of each request
  std::vector<Placement> placements;
  std::vector<Source> sources;
  std::vector<std::unique_ptr<Camera>> cameras;  // of each request; null where it is of numbers
  std::vector<int64_t> row_numbers;              // 1, 2, ... as many as a camera has
  const int64_t* row_numbers_on_device = nullptr;
  DeviceBuffer frames_scratch;
  mutable CudaEvent frames_made;
  mutable std::mutex frames_mutex;
  std::vector<std::vector<std::vector<int64_t>>> episodes_of_ranks;  // of each source; where each rank has its own
  int64_t time_offset = -1;
  int64_t episode_offset = -1;
  int64_t index_offset = -1;
  int64_t host_offset = 0;        // behind this lies what the host makes,
  int64_t packed_offset = 0;      // and behind this what it sends along
  bool aligns_on_device = false;  // or, on the CPU, at all
  bool decodes_on_device = false;
  WindowPlan plan{};
  WindowPlan host_plan{};
  Mixture mixture{};
  Mixture host_mixture{};
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

const std::vector<Placement>& Loader::placements() const { return impl_->placements; }

std::vector<Affine> Loader::affines(size_t source, size_t request) const { return impl_->affines_of(source, request); }

int64_t Loader::bad_frames() const {
  int64_t frames = 0;
  for (const auto& camera : impl_->cameras) frames += camera != nullptr ? camera->bad_frames() : 0;
  return frames;
}

size_t Loader::host_bytes() const { return impl_->host_bytes(); }

Loader::HostPart Loader::fill_host(const BatchPosition& position, void* memory) const {
  if (host_bytes() == 0) return {};
  const WindowBatch batch = impl_->batch_at(position, samples_at(position), true);
  return impl_->run_host(batch, Impl::draw_of(position, batch), memory);
}

void Loader::fill_device(const BatchPosition& position, const HostPart& part, void* memory, CudaStream stream) const {
  WindowBatch batch = impl_->batch_at(position, samples_at(position), false);
  batch.memory = memory;
  impl_->check_damage();  // of batches before
  impl_->run_device(batch, part, Impl::draw_of(position, batch), stream);
}

void Loader::fill(const BatchPosition& position, void* memory, CudaStream stream) const {
  HostPart part;
  if (host_bytes() > 0) {
    const PinnedBuffer staging(impl_->options.device, host_bytes());
    part = fill_host(position, staging.data());
    impl_->copy_host_part(part, staging.data(), memory, stream);
  }
  fill_device(position, part, memory, stream);
}

void Loader::check_frames(CudaStream stream) const {
  if (!impl_->decodes_on_device) return;
  check_cuda(cuda_backend().synchronize(impl_->options.device.index, stream.handle), "decoding frames");
  impl_->check_damage();
}

void Loader::gather(const BatchPosition& position, std::span<const int64_t> anchors, void* memory,
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
    impl_->copy_host_part(part, staging.data(), memory, stream);
  }
  DeviceTables copy(device);
  WindowBatch batch = impl_->batch_at({}, count, false);
  batch.anchors = device.is_cuda() ? copy.put(anchors) : anchors.data();
  batch.memory = memory;
  impl_->run_device(batch, part, draw, stream, anchors);
  if (device.is_cuda()) check_cuda(cuda_backend().synchronize(device.index, stream.handle), "gather");
  impl_->check_damage();
}

TensorView Loader::view(const BatchArray& array, int64_t samples, void* memory) const {
  return BatchLayout::view(array, samples, memory, impl_->options.device);
}

void Loader::check_tolerance() const {
  const LoaderOptions& options = impl_->options;
  for (size_t place = 0; place < impl_->sources.size(); ++place) {
    const Source& source = impl_->sources[place];
    const AnchorIndex anchors = source.anchors.index();
    for (size_t request = 0; request < options.streams.size(); ++request) {
      const StreamRequest& asked = options.streams[request];
      if (!asked.tolerance_s || !source.streams[request]) continue;
      const StreamClock clock = source.streams[request]->clock().on_host();
      const auto tolerance_ns = static_cast<uint64_t>(checked_ns(std::min(*asked.tolerance_s, 1e9), "tolerance_s"));
      const std::vector<int64_t> delta_ns = Impl::offsets(asked);
      const int64_t snap_ns = checked_ns(options.snap_s, "snap_s");
      WindowSegment rule{};
      rule.method = *asked.method;
      rule.max_gap_ns = -1;
      rule.tolerance_ns = -1;
      rule.causal = *asked.causal;
      // Calls found(target, distance) where an anchor's target is within the recording and its sample too far away.
      const auto visit = [&](int64_t i, const auto& found) {
        const Anchor anchor = anchors.at(i);
        const EpisodeRows rows = clock.rows_of(anchor.episode);
        if (rows.rows == 0) return;
        const ClockRow<int64_t> times{clock.time_ns + rows.begin, 1};
        for (const int64_t delta : delta_ns) {
          const int64_t target = saturating_add(anchor.time_ns, delta);
          int64_t hint = guess_row(rows, target);
          const WindowPlace<> at = find_place(times, rows.rows, target, snap_ns, hint);
          const Pick<double> picked = pick_at(times, rows.rows, at, rule);
          if (!picked.valid) continue;
          const int64_t used = times[picked.left];
          const uint64_t distance = used > at.target ? ns_between(used, at.target) : ns_between(at.target, used);
          if (distance > tolerance_ns) return found(anchor.episode, target, distance);
        }
      };
      std::atomic<int64_t> first = anchors.anchors;
      parallel_for(anchors.anchors, 4096, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < std::min(end, first.load()); ++i) {
          visit(i, [&](int64_t, int64_t, uint64_t) {
            int64_t known = first;
            while (i < known && !first.compare_exchange_weak(known, i)) {
            }
          });
        }
      });
      if (first == anchors.anchors) continue;
      visit(first, [&](int64_t episode, int64_t target, uint64_t distance) {
        refuse(source_name(options, place), "tolerance_s['", asked.stream, "']: expected a sample within ",
               number_text(*asked.tolerance_s), " s of every target in the recording, got one ",
               number_text(static_cast<double>(distance) / kNsPerSecond), " s away in episode ",
               std::to_string(episode), " at ", std::to_string(target), " ns");
      });
    }
  }
}

}  // namespace robocache
