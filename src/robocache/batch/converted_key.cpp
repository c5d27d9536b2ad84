// A key whose values are converted, or mirrored with the images: the plan writes its window and its base to scratch memory, and
// launch() makes of them what the batch has. actions/convert.hpp is the contract.
#include <algorithm>
#include <numeric>
#include <utility>

#include "robocache/actions/convert.hpp"
#include "robocache/batch/key.hpp"
#include "robocache/image/mirror.hpp"

namespace robocache {
namespace {

class ConvertedKey final : public BatchKey {
 public:
  ConvertedKey(const LoaderStreams& streams, size_t request)
      : BatchKey(streams, request, part_of_numbers(streams, request)),
        conversion_(key_conversion(options(), request)),
        base_part_(conversion_.base ? part_of_numbers(streams, *conversion_.base) : aligned()),
        tables_(options().device) {
    params_.features = static_cast<int32_t>(features_of(request));
    params_.out_features = static_cast<int32_t>(conversion_.ops.out_features);
    std::vector<ActionOp> ops = conversion_.ops.ops;
    if (ops.empty()) ops.emplace_back().step = ActionStep::kRescale;  // of no feature: what is mirrored alone
    params_.op_count = static_cast<int32_t>(ops.size());
    params_.ops = tables_.put(ops);
    mirror_ = mirror_params(request, params_.features);
    params_.wide = conversion_.work == DType::kFloat64;
    params_.out_dtype = spec().dtype;
    params_.steps = steps();
    params_.tolerance = conversion_.tolerance;
    make_affines();
    if (!conversion_.base) return;
    params_.base_row = static_cast<int32_t>(features_of(*conversion_.base));
    base_mirror_ = mirror_params(*conversion_.base, params_.base_row);
    std::vector<int32_t> taken(options().streams[request].base_features.begin(),
                               options().streams[request].base_features.end());
    if (taken.empty()) {
      taken.resize(static_cast<size_t>(params_.features));
      std::iota(taken.begin(), taken.end(), 0);
    }
    params_.base_features = tables_.put(taken);
  }

  void reserve(Part part, BatchLayout& layout) override {
    const int64_t value = dtype_size(conversion_.work);
    if (part == aligned()) {
      params_.out_offset = add(layout, "", spec().dtype, shape_of(std::vector<int64_t>{params_.out_features}), "");
      reserve_marks(layout);
      params_.out_pad_offset = pad_offset();
      if (conversion_.base)
        params_.base_offset = add(layout, "_base", conversion_.work, {params_.features}, "the base of ");
      params_.x_offset = layout.add_scratch(steps() * params_.features * value);
      params_.pad_offset = layout.add_scratch(steps());
      params_.age_offset = age_offset() >= 0 ? age_offset() : layout.add_scratch(steps() * 8);
      if (params_.scale != nullptr) params_.source_offset = layout.add_scratch(8);
    }
    if (conversion_.base && part == base_part_) {
      params_.base_row_offset = layout.add_scratch(params_.base_row * value);
      params_.base_pad_offset = layout.add_scratch(1);
      params_.base_age_offset = layout.add_scratch(8);
    }
  }

  void add_window(Part part, size_t source, WindowStreams& windows, DeviceTables& tables) const override {
    if (part == aligned()) {
      windows.streams.push_back(
          window_at(request_, source, params_.features, params_.x_offset, params_.pad_offset, params_.age_offset));
      if (params_.scale != nullptr) {
        const auto number = static_cast<int64_t>(source);
        const auto* const bytes = reinterpret_cast<const uint8_t*>(&number);
        windows.constants.push_back({tables.put(std::vector<uint8_t>(bytes, bytes + 8)), 8, params_.source_offset});
      }
    }
    if (conversion_.base && part == base_part_) {
      WindowStream& base =
          windows.streams.emplace_back(window_at(*conversion_.base, source, params_.base_row, params_.base_row_offset,
                                                 params_.base_pad_offset, params_.base_age_offset));
      if (base.counts_rows()) {
        base.delta_rows = {0};
      } else {
        base.delta_ns = {streams_.spec(source).keys[*conversion_.base].offset_ns};
      }
    }
  }

  int64_t launch(const BatchMemory& filled, const HostPart&, void*, const void*, CudaStream stream) const override {
    ConvertActionsParams params = params_;
    params.memory = filled.memory;
    params.samples = filled.count;
    mirror(filled, mirror_, steps(), params_.x_offset, stream);
    mirror(filled, base_mirror_, 1, params_.base_row_offset, stream);
    convert_actions(params, options().device, stream);
    return 0;
  }

 private:
  MirrorParams mirror_params(size_t request, int64_t features) {
    KeyMirror asked = key_mirror(options(), request);
    MirrorParams made{};
    if (asked.axes.empty()) return made;
    asked.axes.resize(static_cast<size_t>(features));
    made.features = features;
    made.wide = conversion_.work == DType::kFloat64;
    made.axes = tables_.put(asked.axes);
    std::ranges::copy(asked.flip, made.flip);
    return made;
  }

  // Mirrors the samples whose images are flipped: all by one launch, or each of the given anchors by its own.
  void mirror(const BatchMemory& filled, MirrorParams params, int64_t rows, int64_t offset, CudaStream stream) const {
    if (params.axes == nullptr) return;
    const int64_t value = dtype_size(conversion_.work);
    params.rows = rows;
    params.samples = filled.anchors.empty() ? filled.count : 1;
    for (int64_t sample = 0; sample < filled.count; sample += params.samples) {
      params.values = filled.memory + offset + sample * rows * params.features * value;
      params.first = filled.draw_of(sample);
      mirror_values(params, options().device, stream);
    }
  }

  const Stream* stream_of(size_t source, size_t request) const {
    const SourceRequest& from = options().sources[source];
    if (!from.streams[request]) return nullptr;
    return &from.dataset->streams()[static_cast<size_t>(*from.streams[request])];
  }

  // Of every source that has the stream.
  int64_t features_of(size_t request) const {
    for (size_t source = 0; source < options().sources.size(); ++source) {
      if (const Stream* const stream = stream_of(source, request)) return stream->features;
    }
    return 0;
  }

  void make_affines() {
    std::vector<Affine> all;
    bool is_normalised = false;
    for (size_t source = 0; source < options().sources.size(); ++source) {
      const auto& rows = spec(source).rows;
      std::vector<Affine> own = rows ? rows->affine : std::vector<Affine>{};
      is_normalised = is_normalised || !own.empty();
      own.resize(static_cast<size_t>(params_.out_features));
      all.insert(all.end(), own.begin(), own.end());
    }
    if (!is_normalised) return;
    const AffineTables affine = affine_tables(all, conversion_.work, tables_);
    params_.scale = affine.scale;
    params_.shift = affine.shift;
  }

  WindowStream window_at(size_t request, size_t source, int64_t features, int64_t out_offset, int64_t pad_offset,
                         int64_t age_offset) const {
    WindowStream window = window_of(request, source, features, conversion_.work, out_offset);
    window.pad_offset = pad_offset;
    window.age_offset = age_offset;
    if (const auto& stream = streams_.of(source, request)) {
      window.rows = stream->rows();
      window.methods = streams_.spec(source).keys[request].rows->methods;
    }
    return window;
  }

  const KeyConversion conversion_;
  const Part base_part_;
  DeviceTables tables_;
  ConvertActionsParams params_{};
  MirrorParams mirror_{}, base_mirror_{};
};

}  // namespace

std::unique_ptr<BatchKey> make_converted_key(const LoaderStreams& streams, size_t request) {
  return std::make_unique<ConvertedKey>(streams, request);
}

}  // namespace robocache
