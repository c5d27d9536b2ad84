#include "robocache/batch/loader.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "robocache/align/window_batch.hpp"
#include "robocache/align/window_plan.hpp"
#include "robocache/core/arguments.hpp"
#include "robocache/core/device_tables.hpp"
#include "robocache/sample/anchors.hpp"
#include "robocache/sample/order.hpp"
#include "robocache/source/resident.hpp"

namespace robocache {

struct Loader::Impl {
  Impl(std::shared_ptr<const Dataset> from, LoaderOptions asked)
      : dataset(std::move(from)),
        options(complete_options(*dataset, std::move(asked))),
        layout(options.batch_size),
        tables(options.device) {
    std::vector<WindowStream> windows;
    for (const StreamRequest& request : options.streams) windows.push_back(window_of(request));
    plan = window_plan(windows, tables);
    plan.time_offset = layout.add("time_ns", DType::kInt64, {}, "the anchors' times");
    plan.episode_offset = layout.add("episode_index", DType::kInt64, {}, "the anchors' episodes");
    plan.snap_ns = checked_ns(options.snap_s, "snap_s");
    make_anchors();
  }

  WindowStream window_of(const StreamRequest& request) {
    const int64_t index = dataset->index_of(request.stream);
    const Stream& stream = dataset->streams()[static_cast<size_t>(index)];
    const auto steps = static_cast<int64_t>(request.delta_timestamps.size());
    std::vector<int64_t> shape{steps};
    shape.insert(shape.end(), stream.shape.begin(), stream.shape.end());

    WindowStream window{};
    const std::string name = "stream '" + request.stream + "'";
    window.out_offset = layout.add(request.stream, *request.dtype, shape, name);
    window.pad_offset = layout.add(request.stream + "_is_pad", DType::kBool, {steps}, "what is padding of " + name);
    window.out_dtype = *request.dtype;
    for (const double delta : request.delta_timestamps) {
      window.delta_ns.push_back(checked_ns(delta, "delta_timestamps"));
    }
    window.methods = feature_blocks(stream.features, *request.method, request.methods);
    // Longer than 31 years is none.
    window.max_gap_ns = request.max_gap_s ? checked_ns(std::min(*request.max_gap_s, 1e9), "max_gap_s") : -1;
    const AffineTables affine = affine_tables(stream, *request.normalize, tables);
    window.scale = affine.scale;
    window.shift = affine.shift;
    resident.push_back(ResidentStream::get(dataset, index, options.device, Tier::kDevice));
    window.rows = resident.back()->rows();
    return window;
  }

  void make_anchors() {
    if (options.anchor_hz) {
      std::vector<StreamClock> clocks;
      for (const auto& stream : resident) clocks.push_back(stream->clock().on_host());
      anchors = Anchors::at_rate(*options.anchor_hz, clocks, *options.episodes);
    } else {
      ticks = ResidentClock::get(dataset, dataset->index_of(options.anchor), options.device);
      anchors = Anchors::of_ticks(ticks->on_host(), *options.episodes);
    }
    if (anchors.table().empty()) refuse("anchor: expected a tick to draw, got none in the episodes asked for");
    plan.anchors = anchors.index();
    if (options.drop_last && plan.anchors.anchors < options.batch_size) {
      refuse("batch_size: expected at most the ", std::to_string(plan.anchors.anchors),
             " samples there are, since drop_last, got ", std::to_string(options.batch_size));
    }
    plan.anchors.table = tables.put(anchors.table());
    plan.anchors.first_of = tables.put(anchors.first_of());
    if (ticks) plan.anchors.tick_ns = ticks->on_device().time_ns;
  }

  std::shared_ptr<const Dataset> dataset;
  LoaderOptions options;
  BatchLayout layout;
  DeviceTables tables;
  std::vector<std::shared_ptr<const ResidentStream>> resident;
  std::shared_ptr<const ResidentClock> ticks;  // those of the anchors
  Anchors anchors;
  WindowPlan plan{};
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

size_t Loader::batch_bytes() const { return static_cast<size_t>(impl_->layout.bytes()); }

const std::vector<BatchArray>& Loader::arrays() const { return impl_->layout.arrays(); }

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
  return BatchLayout::view(array, samples_at(step), memory, impl_->options.device);
}

}  // namespace robocache
