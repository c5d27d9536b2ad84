#include "robocache/batch/loader.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string_view>

#include "robocache/align/window_batch.hpp"
#include "robocache/cache/residency.hpp"
#include "robocache/core/error.hpp"
#include "robocache/core/time.hpp"
#include "robocache/sample/anchors.hpp"
#include "robocache/sample/order.hpp"

namespace robocache {
namespace {

constexpr int64_t kArrayAlignment = 256;

int64_t aligned(int64_t bytes) { return (bytes + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment; }

int64_t checked_ns(double seconds, const std::string& name) {
  // 2^62 ns are 146 years: any sum with a stamp of this century still fits.
  if (!(std::abs(seconds) < 0x1p62 / kNsPerSecond)) {
    throw ArgumentError(name + ": expected finite seconds, got " + std::to_string(seconds));
  }
  return seconds_to_ns(seconds);
}

// fma(x, scale, shift) of one feature, in float64.
struct Affine {
  double scale;
  double shift;
};

// `largest` is that of the work type.
Affine affine(const FeatureStats& stats, size_t feature, Normalize normalize, double largest) {
  if (stats.count[feature] == 0) return {1, 0};  // nothing but NaN
  double centre = stats.mean[feature];
  double spread = stats.std[feature];
  if (normalize != Normalize::kMeanStd) {
    const bool quantiles = normalize == Normalize::kQ01Q99;
    const double low = (quantiles ? stats.q01 : stats.min)[feature];
    const double high = (quantiles ? stats.q99 : stats.max)[feature];
    spread = (high - low) / 2;
    centre = low + (high - low) / 2;
  }
  double scale = 1 / spread;
  // Factors that overflow would make NaN of numbers.
  if (!(scale > 0 && scale <= largest && std::abs(centre * scale) <= largest)) scale = 1;
  const double shift = -centre * scale;
  return {scale, std::abs(shift) <= largest ? shift : 0};
}

// A table in host memory and, for CUDA, its copy on the device: at() is where a kernel finds it.
class Table {
 public:
  explicit Table(Device device) : device_(device) {}

  template <class T>
  const T* put(const std::vector<T>& entries) {
    memories_.emplace_back(device_, entries.size() * sizeof(T));
    memories_.back().fill_from_host(entries.data(), entries.size() * sizeof(T));
    return static_cast<const T*>(memories_.back().data());
  }

 private:
  Device device_;
  std::vector<DeviceBuffer> memories_;
};

template <class Work>
std::vector<Work> rounded(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

Normalize normalize_from_name(std::string_view name, std::string_view argument) {
  if (name == "mean_std") return Normalize::kMeanStd;
  if (name == "min_max") return Normalize::kMinMax;
  if (name == "q01_q99") return Normalize::kQ01Q99;
  throw ArgumentError(std::string(argument) + ": expected 'mean_std', 'min_max' or 'q01_q99', got '" +
                      std::string(name) + "'");
}

struct Loader::Impl {
  Impl(std::shared_ptr<const Dataset> from, LoaderOptions asked)
      : dataset(std::move(from)), options(std::move(asked)), tables(options.device) {
    check();
    make_anchors();
    make_segments();
  }

  void check() {
    if (options.batch_size < 1 || options.batch_size > INT32_MAX) {
      throw ArgumentError("batch_size: expected at least 1, got " + std::to_string(options.batch_size));
    }
    if (options.streams.empty()) throw ArgumentError("delta_timestamps: expected at least one stream, got none");
    if (!is_floating(options.dtype)) {
      throw ArgumentError("dtype: expected float64, float32, float16 or bfloat16, got " +
                          std::string(dtype_name(options.dtype)));
    }
    if (!(options.snap_s >= 0))
      throw ArgumentError("snap_s: expected 0 or more, got " + std::to_string(options.snap_s));
    if (options.device.is_cuda() && options.device.index >= cuda_device_count()) {
      cuda_backend();  // throws the reason where there is none at all
      throw DeviceError("device: expected one of " + std::to_string(cuda_device_count()) + " CUDA devices, got " +
                        device_name(options.device));
    }
    std::set<std::string_view> seen;
    for (const StreamRequest& request : options.streams) {
      if (!seen.insert(request.stream).second) {
        throw ArgumentError("delta_timestamps: stream '" + request.stream + "' is there twice");
      }
      check_stream(request, dataset->streams()[index_of("delta_timestamps", request.stream)]);
    }
    if (options.episodes) {
      if (options.episodes->empty()) throw ArgumentError("episodes: expected at least one, got none");
      for (const int64_t episode : *options.episodes) {
        if (episode < 0 || episode >= dataset->num_episodes()) {
          throw ArgumentError("episodes: expected indices in [0, " + std::to_string(dataset->num_episodes()) +
                              "), got " + std::to_string(episode));
        }
      }
    } else {
      options.episodes.emplace(static_cast<size_t>(dataset->num_episodes()));
      std::iota(options.episodes->begin(), options.episodes->end(), int64_t{0});
    }
  }

  // The place of a stream; an unknown one is refused in the name of the argument that asked for it.
  size_t index_of(const char* argument, std::string_view stream) const {
    try {
      return static_cast<size_t>(dataset->index_of(stream));
    } catch (const ArgumentError& error) {
      const std::string_view text = error.what();
      throw ArgumentError(argument + std::string(text.substr(std::min(text.size(), text.find(':')))));
    }
  }

  static void check_stream(const StreamRequest& request, const Stream& stream) {
    const std::string at = "['" + request.stream + "']";
    if (request.delta_timestamps.empty()) {
      throw ArgumentError("delta_timestamps" + at + ": expected at least one offset, got none");
    }
    if (stream.shape.size() + 2 > static_cast<size_t>(kMaxDims)) {
      throw ArgumentError("delta_timestamps" + at + ": expected rows of at most " + std::to_string(kMaxDims - 2) +
                          " dimensions, got " + std::to_string(stream.shape.size()));
    }
    const bool floating = is_floating(stream.dtype);
    if (request.method && *request.method != InterpolationMethod::kLinear && !is_step(*request.method)) {
      throw ArgumentError("methods" + at + ": expected 'linear', 'nearest', 'previous' or 'next', got '" +
                          std::string(method_name(*request.method)) + "'");
    }
    if (!floating && request.method == InterpolationMethod::kLinear) {
      throw ArgumentTypeError("methods" + at + ": 'linear' expects a floating stream, got " +
                              std::string(dtype_name(stream.dtype)) + "; use 'previous', 'nearest' or 'next'");
    }
    if (!floating && request.normalize != Normalize::kNone) {
      throw ArgumentTypeError("normalize" + at + ": expected a floating stream, got " +
                              std::string(dtype_name(stream.dtype)));
    }
    if (request.dtype && *request.dtype != stream.dtype && !(floating && is_floating(*request.dtype))) {
      throw ArgumentTypeError("dtype" + at + ": expected " +
                              (floating ? "a floating dtype" : std::string(dtype_name(stream.dtype))) + ", got " +
                              std::string(dtype_name(*request.dtype)));
    }
    if (request.max_gap_s && !(*request.max_gap_s >= 0)) {
      throw ArgumentError("max_gap_s" + at + ": expected 0 or more, got " + std::to_string(*request.max_gap_s));
    }
  }

  void make_anchors() {
    std::vector<int64_t> indices;
    for (const StreamRequest& request : options.streams) indices.push_back(dataset->index_of(request.stream));
    if (options.anchor_hz) {
      if (!options.anchor.empty()) throw ArgumentError("anchor: goes without anchor_hz, got both");
      if (!(*options.anchor_hz >= 1e-9 && *options.anchor_hz <= 1e9)) {  // a tick in 31 years to one a ns
        throw ArgumentError("anchor_hz: expected a rate from 1e-9 to 1e9, got " + std::to_string(*options.anchor_hz));
      }
      anchors = Anchors::of_clock(*dataset, *options.anchor_hz, indices, *options.episodes);
    } else {
      if (options.anchor.empty()) {
        const auto slower = [this](int64_t a, int64_t b) { return rate(a) < rate(b); };
        options.anchor =
            dataset->streams()[static_cast<size_t>(*std::min_element(indices.begin(), indices.end(), slower))].name;
      }
      const auto stream = static_cast<int64_t>(index_of("anchor", options.anchor));
      anchors = Anchors::of_stream(*dataset, stream, *options.episodes);
      anchor_ticks = ResidentStream::get(dataset, stream, options.device);
    }
    if (anchors.table().empty())
      throw ArgumentError("anchor: expected a tick to draw, got none in the episodes asked for");
    plan.anchors = anchors.index();
    if (options.drop_last && plan.anchors.anchors < options.batch_size) {
      throw ArgumentError("batch_size: expected at most the " + std::to_string(plan.anchors.anchors) +
                          " samples there are, since drop_last, got " + std::to_string(options.batch_size));
    }
    plan.anchors.table = tables.put(std::vector(anchors.table().begin(), anchors.table().end()));
    plan.anchors.first_of = tables.put(std::vector(anchors.first_of().begin(), anchors.first_of().end()));
    if (anchor_ticks) plan.anchors.tick_ns = anchor_ticks->time_ns();
  }

  // A stream without a rate has at most one row an episode: the slowest there is.
  double rate(int64_t stream) const { return dataset->streams()[static_cast<size_t>(stream)].rate_hz; }

  int64_t add_array(std::string name, DType dtype, std::vector<int64_t> shape) {
    const int64_t offset = bytes;
    int64_t elements = options.batch_size;
    for (const int64_t extent : shape) elements *= extent;
    bytes = aligned(bytes + elements * dtype_size(dtype));
    arrays.push_back({std::move(name), dtype, std::move(shape), offset});
    return offset;
  }

  void make_segments() {
    std::vector<WindowSegment> segments;
    std::vector<WindowGroup> groups;
    for (const StreamRequest& request : options.streams) add_stream(request, segments, groups);
    plan.time_offset = add_array("time_ns", DType::kInt64, {});
    plan.episode_offset = add_array("episode_index", DType::kInt64, {});
    plan.snap_ns = checked_ns(options.snap_s, "snap_s");
    plan.segments = tables.put(segments);
    plan.groups = tables.put(groups);
    plan.group_count = static_cast<int32_t>(groups.size());
  }

  void add_stream(const StreamRequest& request, std::vector<WindowSegment>& segments,
                  std::vector<WindowGroup>& groups) {
    const int64_t index = dataset->index_of(request.stream);
    const Stream& stream = dataset->streams()[static_cast<size_t>(index)];
    resident.push_back(ResidentStream::get(dataset, index, options.device));
    const bool floating = is_floating(stream.dtype);
    const auto steps = static_cast<int64_t>(request.delta_timestamps.size());

    WindowSegment whole{};
    whole.time_ns = resident.back()->time_ns();
    whole.values = resident.back()->values();
    whole.episodes = resident.back()->episodes();
    whole.features = stream.features;
    whole.value_dtype = stream.dtype;
    whole.out_dtype = floating ? request.dtype.value_or(options.dtype) : stream.dtype;
    whole.method = request.method.value_or(floating ? InterpolationMethod::kLinear : InterpolationMethod::kPrevious);
    whole.max_gap_ns = request.max_gap_s ? checked_ns(std::min(*request.max_gap_s, 1e9), "max_gap_s") : -1;
    whole.vector = !floating ? 1 : stream.features % 4 == 0 ? 4 : stream.features % 2 == 0 ? 2 : 1;
    if (request.normalize != Normalize::kNone) add_normalisation(stream, request.normalize, whole);

    std::vector<int64_t> deltas;
    for (const double delta : request.delta_timestamps) {
      deltas.push_back(checked_ns(delta, "delta_timestamps['" + request.stream + "']"));
    }
    const int64_t* delta_ns = tables.put(deltas);

    std::vector<int64_t> shape{steps};
    shape.insert(shape.end(), stream.shape.begin(), stream.shape.end());
    const int64_t step_bytes = stream.features * dtype_size(whole.out_dtype);
    whole.out_offset = add_array(request.stream, whole.out_dtype, shape);
    whole.out_sample = steps * step_bytes;
    whole.pad_offset = add_array(request.stream + "_is_pad", DType::kBool, {steps});
    whole.pad_sample = steps;

    // Into groups, steps by steps: what is left of the open group, then new ones.
    const int64_t vectors = stream.features / whole.vector;
    const int64_t most_steps =
        std::clamp<int64_t>((int64_t{1} << 24) / std::max<int64_t>(vectors, 1), 1, kMaxGroupPicks);
    for (int64_t step = 0; step < steps;) {
      if (groups.empty() || groups.back().picks == kMaxGroupPicks || groups.back().items >= 1 << 24 ||
          groups.back().segment_end - groups.back().segment_begin == kMaxGroupSegments) {
        const auto next = static_cast<int32_t>(segments.size());
        groups.push_back({next, next, 0, 0});
      }
      WindowGroup& group = groups.back();
      const int64_t take = std::min({steps - step, int64_t{kMaxGroupPicks - group.picks}, most_steps});
      WindowSegment segment = whole;
      segment.delta_ns = delta_ns + step;
      segment.steps = static_cast<int32_t>(take);
      segment.out_offset += step * step_bytes;
      segment.pad_offset += step;
      segment.pick_begin = group.picks;
      segment.item_begin = group.items;
      group.picks += static_cast<int32_t>(take);
      group.items += static_cast<int32_t>(take * vectors);
      ++group.segment_end;
      segments.push_back(segment);
      step += take;
    }
  }

  void add_normalisation(const Stream& stream, Normalize normalize, WindowSegment& segment) {
    const bool wide = stream.dtype == DType::kFloat64;
    const double largest = wide ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
    std::vector<double> scale;
    std::vector<double> shift;
    for (size_t feature = 0; feature < static_cast<size_t>(stream.features); ++feature) {
      const Affine y = affine(stream.stats, feature, normalize, largest);
      scale.push_back(y.scale);
      shift.push_back(y.shift);
    }
    if (wide) {
      segment.scale = tables.put(scale);
      segment.shift = tables.put(shift);
    } else {
      segment.scale = tables.put(rounded<float>(scale));
      segment.shift = tables.put(rounded<float>(shift));
    }
  }

  std::shared_ptr<const Dataset> dataset;
  LoaderOptions options;
  Table tables;
  Anchors anchors;
  std::shared_ptr<const ResidentStream> anchor_ticks;
  std::vector<std::shared_ptr<const ResidentStream>> resident;
  WindowPlan plan{};
  std::vector<BatchArray> arrays;
  int64_t bytes = 0;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
    : impl_(std::make_unique<Impl>(std::move(dataset), std::move(options))) {}
Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;

const LoaderOptions& Loader::options() const { return impl_->options; }

int64_t Loader::anchors() const { return impl_->plan.anchors.anchors; }

int64_t Loader::steps_per_epoch() const {
  const int64_t size = impl_->options.batch_size;
  return impl_->options.drop_last ? anchors() / size : (anchors() + size - 1) / size;
}

int64_t Loader::samples_at(int64_t step) const {
  return std::min(impl_->options.batch_size, anchors() - step * impl_->options.batch_size);
}

size_t Loader::batch_bytes() const { return static_cast<size_t>(impl_->bytes); }

const std::vector<BatchArray>& Loader::arrays() const { return impl_->arrays; }

void Loader::fill(const BatchPosition& position, void* memory, CudaStream stream) const {
  if (position.step < 0 || position.step >= steps_per_epoch()) {
    throw ArgumentError("step: expected in [0, " + std::to_string(steps_per_epoch()) + "), got " +
                        std::to_string(position.step));
  }
  const LoaderOptions& options = impl_->options;
  WindowBatch batch{};
  batch.plan = impl_->plan;
  batch.order = make_order(anchors(), position.seed, position.epoch, options.shuffle);
  batch.first_position = position.step * options.batch_size;
  batch.count = samples_at(position.step);
  batch.memory = memory;
  window_batch(batch, options.device, stream);
}

TensorView Loader::view(const BatchArray& array, int64_t step, void* memory) const {
  TensorView view{
      .data = static_cast<char*>(memory) + array.offset, .dtype = array.dtype, .device = impl_->options.device};
  view.ndim = static_cast<int>(array.shape.size()) + 1;
  view.shape[0] = samples_at(step);
  std::copy(array.shape.begin(), array.shape.end(), view.shape.begin() + 1);
  int64_t stride = 1;
  for (int d = view.ndim - 1; d >= 0; --d) {
    view.strides[d] = stride;
    stride *= view.shape[d];
  }
  return view;
}

}  // namespace robocache
