#include "robocache/live/aligner.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "robocache/actions/convert.hpp"
#include "robocache/align/window_batch.hpp"
#include "robocache/align/window_plan.hpp"
#include "robocache/batch/key.hpp"
#include "robocache/core/arguments.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/image/codec.hpp"
#include "robocache/image/transform.hpp"
#include "robocache/interpolation/methods.hpp"
#include "robocache/live/copy_params.hpp"

namespace robocache {
namespace {

// Returns how many rows at or after a target a key reads; 0 if it reads none later than the target. Rows with equal
// stamps count once.
int rows_after(InterpolationMethod method, const KeySpec& key) {
  if (key.causal) return 0;
  if (method == InterpolationMethod::kPrevious) return key.max_gap_ns ? 1 : 0;  // a gap ends at the next row
  return 1 + with_method(method, []<class Method>(Method) { return Method::kReach; });
}

// Removes the keys of goals, which the caller provides.
BatchSpec without_goals(BatchSpec spec) {
  std::erase_if(spec.keys, [](const KeySpec& key) { return key.moment.has_value(); });
  return spec;
}

// Returns how many rows at or before a target a method reads. Rows with equal stamps count once.
int rows_before(InterpolationMethod method, const KeySpec& key) { return std::max(1, rows_after(method, key)); }

constexpr int kMargin = 4;  // distinct stamps to copy on each side of a window: more than any method reads

}  // namespace

struct Aligner::Impl {
  struct Key {
    const KeySpec* spec;               // for a base, the spec of the base's key
    std::shared_ptr<const Ring> ring;  // null if the spec's source had no such stream
    DType dtype{};                     // of the window's values: in the batch, or for a base in scratch memory
    std::vector<int64_t> offsets_ns;   // for each step the offset of its target stamp; for a key in rows the anchor's
    int64_t first_offset_ns = 0;
    int64_t last_offset_ns = 0;
    int rows_after = 0;  // the argument of Ring::settled_ns
    // How many rows with distinct stamps the window needs at or before its first target.
    int64_t rows_needed_before = 1;
    int margin = kMargin;  // the argument of Ring::copy
    int64_t settled_ns = INT64_MIN;

    // Copies of the rows, as one episode.
    RingRows rows;
    std::unique_ptr<EpisodeRows> episode = std::make_unique<EpisodeRows>();
    std::array<const void*, 3> planned{};  // the memory that the plan points to
    AffineTables affine{};

    int64_t out_offset = 0;
    int64_t pad_offset = 0;
    int64_t age_offset = -1;
    int64_t feature_pad_offset = -1;

    // A base's row lies in scratch memory. If the batch has the base, the row's base_features are copied to
    // base_offset.
    bool is_base = false;
    std::vector<int64_t> base_features;
    int64_t base_offset = -1;

    // The conversions of a key read its window in scratch memory and write to out_offset and pad_offset.
    std::optional<ConvertActionsParams> conversion;
    std::optional<size_t> base;  // the index of the base in `keys`

    bool is_settled(int64_t moment) const { return ring == nullptr || moment + last_offset_ns <= settled_ns; }
    std::array<const void*, 3> memory() const { return {rows.time_ns.data(), rows.values.data(), numbers.data()}; }

    // For frames only:
    std::optional<ImageTransform> transform;
    FrameShape frame{};
    std::vector<int64_t> numbers;  // 1, 2, ...: for the plan, the values of the rows
    std::vector<uint8_t> pixels;   // pixels of a decoded file
    int64_t number_offset = 0;
    int64_t intrinsics_offset = -1;

    // On CUDA, the frames that the window's steps show, each once.
    std::vector<int64_t> copied;  // numbers of the frames that are copied
    PinnedBuffer decoded;         // pixels of decoded files
    DeviceBuffer on_device;
    DeviceBuffer workspace;
  };

  Impl(BatchSpec batch_spec, const Rings& rings, const std::vector<std::string>& outputs, Device to)
      : device(to), spec(without_goals(std::move(batch_spec))), layout(1), constants(Device{}) {
    check_spec(spec);
    for (const std::string& name : outputs) {
      if (std::ranges::find(spec.keys, name, &KeySpec::key) == spec.keys.end()) {
        refuse("outputs: expected keys of the spec, which has ", names_of_keys(), ", got '", name, "'");
      }
      if (rings.contains(name)) refuse("rings['", name, "']: expected none, since the policy computes that key");
    }
    for (const auto& [name, ring] : rings) {
      if (std::ranges::find(spec.keys, name, &KeySpec::key) == spec.keys.end()) {
        refuse("rings['", name, "']: expected a key of the spec, which has ", names_of_keys());
      }
    }
    keys.reserve(2 * spec.keys.size());  // each key, and its base
    for (const KeySpec& key_spec : spec.keys) {
      if (std::ranges::find(outputs, key_spec.key) == outputs.end()) {
        add(key_spec, rings);
      } else if (key_spec.convert && !key_spec.convert->base.empty()) {
        Key& base = add_base(key_spec, rings);
        base.base_offset = reserve_base(key_spec, std::ssize(base.base_features));
      }
    }
    time_offset = layout.add("time_ns", DType::kInt64, {}, "the moment");
    age_offset = layout.add("anchor_age_ns", DType::kInt64, {}, "the moment's age");
    if (spec.dataset_index) source_offset = layout.add("dataset_index", DType::kInt64, {}, "the source");
    host_bytes = layout.bytes();
    for (Key& key : keys) {  // frames are last, so that one copy takes all other arrays to a device
      if (key.transform) key.out_offset = add_array(key, "", key.spec->dtype, shape_of(*key.spec, key.spec->shape));
    }
    if (!device.is_cuda()) return;
    host_memory = PinnedBuffer(device, static_cast<size_t>(host_bytes));
    queued = CudaEvent(device);
    size_t copy_count = 1;
    for (Key& key : keys) {
      if (!key.transform) continue;
      const auto bytes = static_cast<size_t>(key.spec->steps() * key.frame.bytes());
      if (*key.spec->rows->codec == Codec::kRaw) {
        key.ring->page_lock_frames(device);
      } else {
        key.decoded = PinnedBuffer(device, bytes);
      }
      key.on_device = DeviceBuffer(device, bytes);
      key.copied.reserve(static_cast<size_t>(key.spec->steps()));
      copy_count += static_cast<size_t>(key.spec->steps());
      const int64_t workspace = key.transform->workspace_bytes(key.spec->steps());
      if (workspace > 0) key.workspace = DeviceBuffer(device, static_cast<size_t>(workspace));
    }
    copies.reserve(copy_count);
  }

  std::string names_of_keys() const {
    std::string names;
    for (const KeySpec& key : spec.keys) names += (names.empty() ? "'" : ", '") + key.key + "'";
    return names;
  }

  void add(const KeySpec& key_spec, const Rings& rings) {
    Key& key = keys.emplace_back();
    key.spec = &key_spec;
    key.dtype = key_spec.convert ? key_spec.convert->dtype : key_spec.dtype;
    key.offsets_ns = key_spec.stamp_offsets_ns();
    find_ring(key, rings);
    reserve(key);
    if (key_spec.convert) add_conversion(key, rings);
  }

  // Adds the base of a key's conversions: the recorded row of the base key at the moment.
  Key& add_base(const KeySpec& key_spec, const Rings& rings) {
    const KeySpec& base = *std::ranges::find(spec.keys, key_spec.convert->base, &KeySpec::key);
    if (!base.offsets_rows.empty()) {
      refuse("spec: key '", key_spec.key, "' has a base in rows, which an Aligner does not support");
    }
    Key& key = keys.emplace_back();
    key.spec = &base;
    key.is_base = true;
    key.dtype = key_spec.convert->dtype;
    key.offsets_ns = {base.offset_ns};
    find_ring(key, rings);
    key.affine = {};
    key.base_features = key_spec.convert->base_features;
    if (key.base_features.empty()) {
      key.base_features.resize(static_cast<size_t>(features_of(base.rows ? base.rows->shape : base.shape)));
      std::iota(key.base_features.begin(), key.base_features.end(), int64_t{0});
    }
    key.out_offset = layout.add_scratch(features_of(base.rows ? base.rows->shape : base.shape) * dtype_size(key.dtype));
    key.pad_offset = layout.add_scratch(1);
    key.age_offset = layout.add_scratch(8);
    return key;
  }

  int64_t reserve_base(const KeySpec& key_spec, int64_t features) {
    return layout.add(key_spec.key + "_base", key_spec.convert->dtype, {features},
                      "the base of '" + key_spec.key + "'");
  }

  // Does for one source, without flips, what batch/converted_key does for the Loader.
  void add_conversion(Key& key, const Rings& rings) {
    const KeySpec& key_spec = *key.spec;
    if (!key_spec.rows) {
      refuse("spec: key '", key_spec.key, "' has conversions and no stream, which an Aligner does not support");
    }
    const int64_t features = features_of(key_spec.rows->shape);
    const ActionOps ops = action_ops(key_spec.convert->steps, features, "spec");
    ConvertActionsParams& params = key.conversion.emplace(
        conversion_params(key_spec, features, ops, key_spec.convert->dtype, key_spec.convert->tolerance));
    params.ops = constants.put(ops.ops);
    const bool reads_before = ops.ops[0].step == ActionStep::kStepDelta;  // the previous step, unconverted
    params.out_offset = key.out_offset;
    params.out_pad_offset = key.pad_offset;
    params.x_offset = layout.add_scratch(key_spec.steps() * features * dtype_size(key.dtype));
    params.pad_offset = reads_before ? layout.add_scratch(key_spec.steps()) : key.pad_offset;
    params.age_offset = key.age_offset >= 0 ? key.age_offset : layout.add_scratch(key_spec.steps() * 8);
    const RowsSpec* const rows = &*key_spec.rows;
    put_affines({&rows, 1}, key.dtype, params, constants);
    if (key_spec.convert->base.empty()) return;
    key.base = keys.size();
    const Key& base = add_base(key_spec, rings);
    params.base_offset = reserve_base(key_spec, features);
    params.base_row_offset = base.out_offset;
    params.base_pad_offset = base.pad_offset;
    params.base_age_offset = base.age_offset;
    params.base_row = static_cast<int32_t>(features_of(base.spec->rows ? base.spec->rows->shape : base.spec->shape));
    params.base_features = constants.put(std::vector<int32_t>(base.base_features.begin(), base.base_features.end()));
  }

  // Finds the ring of a key, and how many rows its window needs on each side.
  void find_ring(Key& key, const Rings& rings) {
    const KeySpec& key_spec = *key.spec;
    const auto [first, last] = std::minmax_element(key.offsets_ns.begin(), key.offsets_ns.end());
    key.first_offset_ns = *first;
    key.last_offset_ns = *last;
    const auto found = rings.find(key_spec.key);
    if (key_spec.rows) {
      if (found == rings.end()) {
        refuse("rings: expected one for each key of the spec, got none for '", key_spec.key,
               "'; name a key that the policy computes in outputs=");
      }
      key.ring = found->second;
      check_ring(key);
      if (key_spec.offsets_rows.empty()) {
        for (const FeatureBlock& block : key_spec.rows->methods) {
          key.rows_after = std::max(key.rows_after, rows_after(block.method, key_spec));
          key.rows_needed_before = std::max<int64_t>(key.rows_needed_before, rows_before(block.method, key_spec));
        }
      } else {
        const auto [earliest, latest] = std::ranges::minmax(key_spec.offsets_rows);
        key.margin += static_cast<int>(std::max(-earliest, latest));
        key.rows_needed_before = std::max<int64_t>(0, -earliest) + 1;
        if (latest > 0) key.rows_after = static_cast<int>(latest) + 1;
      }
      if (!key_spec.images && !key_spec.convert)
        key.affine = affine_tables(key_spec.rows->affine, key_spec.rows->dtype, constants);
    } else if (found != rings.end()) {
      refuse("rings['", key_spec.key, "']: expected none, since the spec's source has no such stream");
    }
  }

  // Refuses a ring whose rows differ from the rows of the spec's stream.
  static void check_ring(const Key& key) {
    const RowsSpec& rows = *key.spec->rows;
    const RingOptions& ring = key.ring->options();
    const auto row_text = [](DType dtype, const std::vector<int64_t>& shape, const std::optional<Codec>& codec) {
      return shape_string(shape) + " " + std::string(dtype_name(dtype)) +
             (codec ? " " + std::string(name_of(*codec)) : "");
    };
    if (ring.dtype != rows.dtype || ring.shape != rows.shape || ring.codec != rows.codec) {
      refuse("rings['", key.spec->key, "']: expected rows of ", row_text(rows.dtype, rows.shape, rows.codec),
             " as the spec's, got ", row_text(ring.dtype, ring.shape, ring.codec));
    }
    const int64_t needed = key.last_offset_ns - key.first_offset_ns + ring.lateness_ns;
    if (ring.span_ns < needed) {
      refuse("rings['", key.spec->key, "'].span_s: expected at least ", static_cast<double>(needed) / 1e9,
             ", the window and the lateness, got ", static_cast<double>(ring.span_ns) / 1e9);
    }
  }

  // ---- Memory ----

  std::vector<int64_t> shape_of(const KeySpec& key_spec, const std::vector<int64_t>& row) const {
    std::vector<int64_t> shape;
    if (!key_spec.one_step) shape.push_back(key_spec.steps());
    shape.insert(shape.end(), row.begin(), row.end());
    return shape;
  }

  int64_t add_array(const Key& key, const char* suffix, DType dtype, const std::vector<int64_t>& shape) {
    return layout.add(key.spec->key + suffix, dtype, shape, "key '" + key.spec->key + "'");
  }

  void reserve(Key& key) {
    const KeySpec& key_spec = *key.spec;
    const auto add = [&](const char* suffix, DType dtype, const std::vector<int64_t>& shape) {
      return add_array(key, suffix, dtype, shape);
    };
    if (!key_spec.images || !key_spec.rows)
      key.out_offset = add("", key_spec.dtype, shape_of(key_spec, key_spec.shape));
    key.pad_offset = add("_is_pad", DType::kBool, shape_of(key_spec, {}));
    if (spec.return_age) key.age_offset = add("_age", DType::kInt64, shape_of(key_spec, {}));
    if (spec.pad_features && !key_spec.images && key_spec.shape.size() == 1) {
      key.feature_pad_offset = add("_feature_is_pad", DType::kBool, key_spec.shape);
    }
    if (!key_spec.images) return;
    if (key_spec.has_intrinsics) {
      const std::vector<int64_t> matrix{3, 3};
      key.intrinsics_offset =
          add("_intrinsics", DType::kFloat32, key_spec.images->per_frame ? shape_of(key_spec, matrix) : matrix);
    }
    key.number_offset = layout.add_scratch(8 * key_spec.steps());
    if (!key_spec.rows) return;
    key.frame = {key_spec.rows->shape[0], key_spec.rows->shape[1], key_spec.rows->shape[2], key_spec.rows->dtype};
    key.transform.emplace(key.frame, *key_spec.images, key_spec.key, key_spec.rows->unit_m);
    if (!device.is_cuda()) key.pixels.resize(static_cast<size_t>(key.frame.bytes()));
  }

  // ---- The plan ----

  void make_plan() {
    tables.emplace(Device{});
    WindowStreams windows{.anchors = {.anchors = 1,
                                      .runs = 1,
                                      .table = &anchor,
                                      .first_of = kFirstOf,
                                      .shift = 0,
                                      .tick_ns = nullptr,
                                      .period_ns = 1,
                                      .every = 1},
                          .streams = {},
                          .constants = {}};
    std::vector<ConvertActionsParams> conversions;
    for (Key& key : keys) {
      const KeySpec& key_spec = *key.spec;
      key.planned = key.memory();
      const bool is_raw = key.is_base || key.conversion;
      const int64_t features =
          key_spec.images ? 1 : features_of(is_raw && key_spec.rows ? key_spec.rows->shape : key_spec.shape);
      const int64_t out_offset = key_spec.images  ? key.number_offset
                                 : key.conversion ? key.conversion->x_offset
                                                  : key.out_offset;
      WindowStream& window = windows.streams.emplace_back(
          window_of(key_spec, features, key_spec.images ? DType::kInt64 : key.dtype, out_offset));
      window.pad_offset = key.conversion ? key.conversion->pad_offset : key.pad_offset;
      window.age_offset = key.conversion ? key.conversion->age_offset : key.age_offset;
      if (key.is_base) window.delta_ns = key.offsets_ns;
      if (key.conversion) conversions.push_back(*key.conversion);
      if (key.ring == nullptr) continue;
      window.rows = {.clock = {key.rows.time_ns.data(), key.episode.get()},
                     .values = key_spec.images ? static_cast<const void*>(key.numbers.data()) : key.rows.values.data(),
                     .features = key_spec.images ? 1 : features_of(key_spec.rows->shape),
                     .dtype = key_spec.images ? DType::kInt64 : key_spec.rows->dtype};
      window.methods = key_spec.rows->methods;
      window.scale = key.affine.scale;
      window.shift = key.affine.shift;
      window.scale_per_step = !is_raw && std::ssize(key_spec.rows->affine) > window.rows.features;
      window.clip = !is_raw && key_spec.rows->clip;
    }
    plan = window_plan(std::span(&windows, 1), *tables);
    plan.conversions = tables->put(conversions);
    plan.conversion_count = static_cast<int32_t>(conversions.size());
    plan.snap_ns = spec.snap_ns;
    plan.time_offset = time_offset;
    plan.episode_offset = -1;
    plan.source_offset = -1;
    plan.anchor_offset = -1;
  }

  static int64_t features_of(const std::vector<int64_t>& shape) {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }

  // ---- A batch ----

  std::optional<int64_t> frontier() const {
    std::optional<int64_t> frontier;
    for (const Key& key : keys) {
      if (key.ring == nullptr) continue;
      const auto settled = key.ring->settled_ns(key.rows_after, spec.snap_ns);
      if (!settled) return {};
      frontier = std::min(frontier.value_or(INT64_MAX), *settled - key.last_offset_ns);
    }
    return frontier;
  }

  // Throws if the ring has forgotten rows that the window needs.
  void check_not_forgotten(const Key& key, int64_t time_ns) const {
    if (!key.rows.forgotten) return;
    int64_t rows_before_window = 0;
    for (int64_t row = 0; row < key.rows.rows && rows_before_window < key.rows_needed_before; ++row) {
      const auto i = static_cast<size_t>(row);
      if (key.rows.time_ns[i] > time_ns + key.first_offset_ns) break;
      rows_before_window += row == 0 || key.rows.time_ns[i] != key.rows.time_ns[i - 1];
    }
    if (rows_before_window >= key.rows_needed_before) return;
    const auto seconds = [](int64_t ns) { return number_text(static_cast<double>(ns) / 1e9); };
    throw StaleError(
        "rings['", key.spec->key, "'].span_s: expected rows as old as the window's first step, got ",
        seconds(key.ring->options().span_ns), " while the moment is ",
        seconds(key.ring->newest_ns().value_or(time_ns) - time_ns),
        " s behind the newest row: older rows are forgotten; make span_s longer, or find the stream that lags");
  }

  int64_t at(int64_t time_ns, void* to, CudaStream stream) {
    if (time_ns < -kLatestNs || time_ns > kLatestNs) {
      refuse("time_ns: expected a moment within +-2^62 ns, got ", time_ns);
    }
    queued.wait();  // the last batch may still be reading the memory that is written now
    auto* const memory = static_cast<char*>(device.is_cuda() ? host_memory.data() : to);
    int64_t newest = INT64_MIN;
    for (Key& key : keys) {
      if (key.ring == nullptr) continue;
      newest = std::max(newest, key.ring->newest_ns().value_or(INT64_MIN));
      // Reads settled_ns before the rows: a row that comes in between is copied but not needed.
      key.settled_ns = key.ring->settled_ns(key.rows_after, spec.snap_ns).value_or(INT64_MIN);
      key.ring->copy(time_ns + key.first_offset_ns, time_ns + key.last_offset_ns, key.margin, key.rows);
      check_not_forgotten(key, time_ns);
      if (key.spec->images && key.numbers.size() < key.rows.time_ns.size()) {
        key.numbers.resize(key.rows.time_ns.size());
        std::iota(key.numbers.begin(), key.numbers.end(), int64_t{1});
      }
      const int64_t rows = key.rows.rows;
      *key.episode = {0, rows, 0, 0};
      if (rows == 0) continue;
      const int64_t first = key.rows.time_ns[0];
      const int64_t span = key.rows.time_ns[static_cast<size_t>(rows - 1)] - first;
      key.episode->first_ns = first;
      if (span > 0) key.episode->rows_per_ns = static_cast<double>(rows - 1) / static_cast<double>(span);
    }
    if (!tables || std::ranges::any_of(keys, [](const Key& key) { return key.planned != key.memory(); })) make_plan();
    copies.clear();
    anchor = {.first_anchor = 0, .episode = 0, .origin = time_ns, .first_tick = 0};
    WindowBatch batch{};
    batch.plan = plan;
    batch.mixture.anchors = 1;
    batch.mixture.samples = 1;
    batch.mixture.sources = 1;
    batch.anchors = kFirstAnchor;
    batch.count = 1;
    batch.memory = memory;
    window_batch(batch, {}, {});

    int64_t unsettled = 0;
    for (Key& key : keys) {
      if (key.is_base) {
        const int64_t size = dtype_size(key.dtype);
        for (size_t i = 0; i < key.base_features.size() && key.base_offset >= 0; ++i) {
          std::memcpy(memory + key.base_offset + static_cast<int64_t>(i) * size,
                      memory + key.out_offset + key.base_features[i] * size, static_cast<size_t>(size));
        }
        unsettled += !key.is_settled(time_ns);
        continue;
      }
      auto* const is_pad = reinterpret_cast<bool*>(memory + key.pad_offset);
      const bool has_base = !key.base || keys[*key.base].is_settled(time_ns);
      for (int64_t step = 0; key.ring != nullptr && step < key.spec->steps(); ++step) {
        const int64_t offset_ns = key.offsets_ns[key.offsets_ns.size() > 1 ? static_cast<size_t>(step) : 0];
        if (has_base && time_ns + offset_ns <= key.settled_ns) continue;
        is_pad[step] = true;
        ++unsettled;
      }
      if (key.spec->images) write_frames(key, memory);
      if (key.feature_pad_offset >= 0) {
        const int64_t features = key.ring == nullptr ? 0
                                 : key.conversion    ? key.conversion->out_features
                                                     : key.spec->rows->shape[0];
        for (int64_t i = 0; i < key.spec->shape[0]; ++i) memory[key.feature_pad_offset + i] = i >= features;
      }
    }
    const int64_t age = newest == INT64_MIN ? 0 : newest - time_ns;
    std::memcpy(memory + age_offset, &age, 8);
    if (source_offset >= 0) std::memcpy(memory + source_offset, &*spec.dataset_index, 8);
    if (device.is_cuda()) queue(static_cast<char*>(to), stream);
    return unsettled;
  }

  // Adds the copy of a frame, unless an earlier step added it. Returns the copy's number, from 1, or 0 if the frame
  // does not decode.
  int64_t copy_frame(Key& key, int64_t number) {
    const auto found = std::ranges::find(key.copied, number);
    const int64_t index = found - key.copied.begin();
    if (found != key.copied.end()) return index + 1;
    const int64_t offset = index * key.frame.bytes();
    if (pixels_of(key, number - 1, static_cast<uint8_t*>(key.decoded.data()) + offset) == nullptr) return 0;
    const void* const from = *key.spec->rows->codec == Codec::kRaw
                                 ? key.rows.frames[static_cast<size_t>(number - 1)].page_lock(device)
                                 : static_cast<const char*>(key.decoded.on_device()) + offset;
    copies.push_back({static_cast<char*>(key.on_device.data()) + offset, from, key.frame.bytes()});
    key.copied.push_back(number);
    return index + 1;
  }

  // Queues the copy of all that the host computed, and the frames that depend on it. One kernel makes all copies: the
  // driver's copies are slower, most of all for frames of some 100 kB.
  void queue(char* batch, CudaStream stream) {
    using Launch = int(const PinnedCopies*, int32_t device, void* stream);
    static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_copy_pinned"));
    copies.push_back({batch, host_memory.on_device(), host_bytes});
    for (std::span rest(copies); !rest.empty();) {
      PinnedCopies part{};
      part.count = static_cast<int32_t>(std::min<size_t>(rest.size(), PinnedCopies::kMost));
      std::copy_n(rest.begin(), part.count, part.entries);
      check_cuda(launch(&part, device.index, stream.handle), "aligner");
      rest = rest.subspan(static_cast<size_t>(part.count));
    }
    for (Key& key : keys) {
      if (!key.transform) continue;
      key.transform->run_on_device({.pixels = key.on_device.data(),
                                    .frames = std::ssize(key.copied),
                                    .rows = reinterpret_cast<const int64_t*>(batch + key.number_offset),
                                    .first_row = 1},
                                   {}, 1, key.spec->steps(), batch + key.out_offset, key.workspace.data(), device,
                                   stream);
    }
    queued.record(stream);
  }

  // Writes the frames. On CUDA it adds their copies, and replaces the frame number of each step by the number of its
  // copy.
  void write_frames(Key& key, char* memory) {
    const KeySpec& key_spec = *key.spec;
    char* const out = memory + key.out_offset;
    auto* const numbers = reinterpret_cast<int64_t*>(memory + key.number_offset);
    auto* const is_pad = reinterpret_cast<bool*>(memory + key.pad_offset);
    auto* const intrinsics = reinterpret_cast<float*>(memory + key.intrinsics_offset);
    if (!key.transform) {  // the source has no such camera: all steps are black
      std::memset(out, 0,
                  static_cast<size_t>(key_spec.steps() * features_of(key_spec.shape) * dtype_size(key_spec.dtype)));
    }
    key.copied.clear();
    for (int64_t step = 0; step < key_spec.steps(); ++step) {
      const int64_t number = key.transform ? numbers[step] : 0;
      if (key.transform && device.is_cuda()) {
        numbers[step] = number > 0 ? copy_frame(key, number) : 0;
        if (number > 0 && numbers[step] == 0) is_pad[step] = true;
      } else if (key.transform) {
        const uint8_t* const pixels = number > 0 ? pixels_of(key, number - 1, key.pixels.data()) : nullptr;
        if (number > 0 && pixels == nullptr) is_pad[step] = true;
        key.transform->run(pixels, {}, step, out + step * key.transform->bytes());
      }
      if (key.intrinsics_offset < 0 || (step > 0 && !key_spec.images->per_frame)) continue;
      double adapted[9] = {};
      if (number > 0 && key_spec.rows->intrinsics.size() == 9) {
        key.transform->intrinsics(key_spec.rows->intrinsics.data(), {}, step, adapted);
      }
      for (int i = 0; i < 9; ++i) intrinsics[9 * step + i] = static_cast<float>(adapted[i]);
    }
  }

  // Returns a frame's pixels; a file is decoded into `to`. Returns null if it does not decode.
  const uint8_t* pixels_of(Key& key, int64_t row, uint8_t* to) {
    const std::span<const uint8_t> file = key.rows.frames[static_cast<size_t>(row)].bytes();
    if (*key.spec->rows->codec == Codec::kRaw) return file.data();
    try {
      decode_frame(*key.spec->rows->codec, file, key.frame, to);
    } catch (const FrameError&) {
      ++bad_frames;
      return nullptr;
    }
    return to;
  }

  static constexpr int32_t kFirstOf[3] = {0, 0, 0};
  static constexpr int64_t kFirstAnchor[1] = {0};

  const Device device;
  const BatchSpec spec;
  BatchLayout layout;
  std::vector<Key> keys;
  DeviceTables constants;              // scales and shifts
  std::optional<DeviceTables> tables;  // the tables of the plan
  WindowPlan plan{};
  AnchorRun anchor{};
  int64_t time_offset = 0;
  int64_t age_offset = 0;
  int64_t source_offset = -1;
  int64_t host_bytes = 0;  // size of the layout without the frames
  int64_t bad_frames = 0;

  // On CUDA:
  PinnedBuffer host_memory;
  std::vector<PinnedCopy> copies;
  CudaEvent queued;  // recorded after the last batch
};

Aligner::Aligner(BatchSpec spec, const Rings& rings, const std::vector<std::string>& outputs, Device device)
    : impl_(std::make_unique<Impl>(std::move(spec), rings, outputs, device)) {}
Aligner::~Aligner() = default;

const BatchSpec& Aligner::spec() const { return impl_->spec; }
Device Aligner::device() const { return impl_->device; }
size_t Aligner::batch_bytes() const { return static_cast<size_t>(impl_->layout.bytes()); }
const std::vector<BatchArray>& Aligner::arrays() const { return impl_->layout.arrays(); }
std::optional<int64_t> Aligner::frontier() const { return impl_->frontier(); }
int64_t Aligner::at(int64_t time_ns, void* memory, CudaStream stream) { return impl_->at(time_ns, memory, stream); }
int64_t Aligner::bad_frames() const { return impl_->bad_frames; }

bool Aligner::latest(void* memory, CudaStream stream) {
  const auto frontier = impl_->frontier();
  if (frontier) impl_->at(*frontier, memory, stream);
  return frontier.has_value();
}

std::optional<Aligner::Stalest> Aligner::stalest() const {
  std::optional<Stalest> stalest;
  int64_t newest = INT64_MIN;
  for (const Impl::Key& key : impl_->keys) {
    if (key.ring == nullptr) continue;
    const auto newest_here = key.ring->newest_ns();
    if (!newest_here) return {};
    newest = std::max(newest, *newest_here);
    // Until the newest stamp of all rings is known, behind_ns is the newest stamp of the ring.
    if (!stalest || *newest_here < stalest->behind_ns) stalest = {key.spec->key, *newest_here};
  }
  if (stalest) stalest->behind_ns = newest - stalest->behind_ns;
  return stalest;
}

}  // namespace robocache
