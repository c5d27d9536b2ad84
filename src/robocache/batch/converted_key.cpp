// A key whose values are converted, or mirrored with the images. The plan fills its window and its base. Then it converts the
// window and writes the batch's array: in place if array and window have the same type and width. actions/convert.hpp is the
// contract.
#include <algorithm>
#include <numeric>
#include <utility>

#include "robocache/actions/convert.hpp"
#include "robocache/batch/key.hpp"

namespace robocache {
namespace {

class ConvertedKey final : public BatchKey {
 public:
  ConvertedKey(const LoaderStreams& streams, size_t request)
      : BatchKey(streams, request, part_of_numbers(streams, request)),
        conversion_(key_conversion(options(), request)),
        base_part_(conversion_.base ? part_of_numbers(streams, *conversion_.base) : aligned()) {
    if (ops().empty())
      ops().emplace_back().step = ActionStep::kRescale;  // rescales no feature: the key is only mirrored
    params_ = conversion_params(spec(), features_of(request), conversion_.ops, conversion_.work, conversion_.tolerance);
    reads_previous_step_ = ops()[0].step == ActionStep::kStepDelta;  // the kernel reads it unconverted
    in_place_ =
        !reads_previous_step_ && params_.out_dtype == conversion_.work && params_.out_features == params_.features;
    if (conversion_.base) params_.base_row = static_cast<int32_t>(features_of(*conversion_.base));
  }

  void reserve(Part part, BatchLayout& layout) override {
    const int64_t value_bytes = dtype_size(conversion_.work);
    if (part == aligned()) {
      params_.out_offset = add(layout, "", spec().dtype, shape_of(std::vector<int64_t>{params_.out_features}), "");
      reserve_marks(layout);
      params_.out_pad_offset = pad_offset();
      if (conversion_.base)
        params_.base_offset = add(layout, "_base", conversion_.work, {params_.features}, "the base of ");
      params_.x_offset = in_place_ ? params_.out_offset : layout.add_scratch(steps() * params_.features * value_bytes);
      params_.pad_offset = reads_previous_step_ ? layout.add_scratch(steps()) : params_.out_pad_offset;
      params_.shows_ages = age_offset() >= 0;
      params_.age_offset = params_.shows_ages ? age_offset() : layout.add_scratch(steps() * 8);
    }
    if (conversion_.base && part == base_part_) {
      params_.base_row_offset = layout.add_scratch(params_.base_row * value_bytes);
      params_.base_pad_offset = layout.add_scratch(1);
      params_.base_age_offset = layout.add_scratch(8);
    }
  }

  void add_window(Part part, const Moment& moment, size_t source, WindowStreams& windows,
                  DeviceTables&) const override {
    if (conversion_.base && part == base_part_ && moment == streams_.spec(source).keys[*conversion_.base].moment) {
      WindowStream& base =
          windows.streams.emplace_back(window_at(*conversion_.base, source, params_.base_row, params_.base_row_offset,
                                                 params_.base_pad_offset, params_.base_age_offset));
      if (base.counts_rows()) {
        base.delta_rows = {0};
      } else {
        base.delta_ns = {streams_.spec(source).keys[*conversion_.base].offset_ns};
      }
    }
    if (part == aligned() && moment == spec().moment) {  // the window of its base comes first
      windows.streams.push_back(
          window_at(request_, source, params_.features, params_.x_offset, params_.pad_offset, params_.age_offset));
    }
  }

  Moment base_moment() const override {
    return conversion_.base ? streams_.spec(0).keys[*conversion_.base].moment : spec().moment;
  }

  // If one plan aligns window and base, it converts. Otherwise the device's plan does, since it runs after the host's.
  void add_conversion(Part part, std::span<const size_t> sources, std::vector<ConvertActionsParams>& conversions,
                      DeviceTables& tables) const override {
    if (part != (aligned() == base_part_ ? aligned() : Part::kDevice)) return;
    ConvertActionsParams& params = conversions.emplace_back(params_);
    params.ops = tables.put(conversion_.ops.ops);
    put_mirror(request_, params.features, params.mirror, tables);
    std::vector<const RowsSpec*> rows;
    for (const size_t source : sources) rows.push_back(spec(source).rows ? &*spec(source).rows : nullptr);
    put_affines(rows, conversion_.work, params, tables);
    if (!conversion_.base) return;
    std::vector<int32_t> base_features(options().streams[request_].base_features.begin(),
                                       options().streams[request_].base_features.end());
    if (base_features.empty()) {
      base_features.resize(static_cast<size_t>(params_.features));
      std::iota(base_features.begin(), base_features.end(), 0);
    }
    params.base_features = tables.put(base_features);
    const ActionOp& op = conversion_.ops.ops[0];
    const bool is_single = !params.wide && params.op_count == 1 && key_mirror(options(), request_).axes.empty() &&
                           key_mirror(options(), *conversion_.base).axes.empty();
    params.poses_only = is_single && is_of_poses(op.step) && part == Part::kDevice && options().device.is_cuda();
    if (is_single && op.step == ActionStep::kJoints && !op.has_angles) {
      std::vector<int32_t> subtracted = base_features;
      for (size_t f = 0; f < subtracted.size(); ++f) {
        if (op.is_taken[f] == 0) subtracted[f] = ~subtracted[f];  // nothing is subtracted
      }
      params.subtracted = tables.put(subtracted);
    }
    put_mirror(*conversion_.base, params.base_row, params.base_mirror, tables);
  }

 private:
  void put_mirror(size_t request, int32_t features, ActionMirror& mirror, DeviceTables& tables) const {
    KeyMirror mirrored = key_mirror(options(), request);
    if (mirrored.axes.empty()) return;
    mirrored.axes.resize(static_cast<size_t>(features));
    mirror.axes = tables.put(mirrored.axes);
    std::ranges::copy(mirrored.flip, mirror.flip);
  }

  // Returns how many features a row has: equally many in every source that has the stream.
  int64_t features_of(size_t request) const { return streams_of(options(), request).front()->features; }

  WindowStream window_at(size_t request, size_t source, int64_t features, int64_t out_offset, int64_t pad_offset,
                         int64_t age_offset) const {
    const KeySpec& key = streams_.spec(source).keys[request];
    WindowStream window = window_of(key, features, conversion_.work, out_offset);
    window.pad_offset = pad_offset;
    window.age_offset = age_offset;
    if (!key.rows) return window;
    window.rows = streams_.stream_of(source, request)->rows();
    window.methods = key.rows->methods;
    return window;
  }

  std::vector<ActionOp>& ops() { return conversion_.ops.ops; }

  KeyConversion conversion_;
  const Part base_part_;
  bool reads_previous_step_ = false;
  bool in_place_ = false;
  ConvertActionsParams params_{};
};

}  // namespace

std::unique_ptr<BatchKey> make_converted_key(const LoaderStreams& streams, size_t request) {
  return std::make_unique<ConvertedKey>(streams, request);
}

ConvertActionsParams conversion_params(const KeySpec& key, int64_t features, const ActionOps& ops, DType work,
                                       double tolerance) {
  ConvertActionsParams params{};
  params.features = static_cast<int32_t>(features);
  params.out_features = static_cast<int32_t>(ops.out_features);
  params.op_count = static_cast<int32_t>(ops.ops.size());
  params.by_feature = std::ranges::none_of(
      ops.ops, [](const ActionOp& op) { return is_of_poses(op.step) || op.step == ActionStep::kRotate; });
  params.wide = work == DType::kFloat64;
  params.out_dtype = key.dtype;
  params.steps = static_cast<int32_t>(key.steps());
  params.tolerance = tolerance;
  return params;
}

// The table has equally many rows of affines for every source: one for each step if any source has affines for each step, else
// kTileRows equal ones, since the kernel converts kTileRows rows together.
void put_affines(std::span<const RowsSpec* const> rows, DType work, ConvertActionsParams& params,
                 DeviceTables& tables) {
  const auto has_affine_per_step = [&](const RowsSpec* source_rows) {
    return source_rows != nullptr && std::ssize(source_rows->affine) > params.out_features;
  };
  params.scale_per_step = std::ranges::any_of(rows, has_affine_per_step);
  params.scale_rows = params.scale_per_step ? params.steps : kTileRows;
  std::vector<Affine> all_affines;
  bool is_normalised = false;
  for (const RowsSpec* const source_rows : rows) {
    std::vector<Affine> affine = source_rows != nullptr ? source_rows->affine : std::vector<Affine>{};
    params.clip = params.clip || (source_rows != nullptr && source_rows->clip);
    is_normalised = is_normalised || !affine.empty();
    affine.resize(std::max(affine.size(), static_cast<size_t>(params.out_features)));
    const int repeats = has_affine_per_step(source_rows) ? 1 : params.scale_rows;
    for (int row = 0; row < repeats; ++row) all_affines.insert(all_affines.end(), affine.begin(), affine.end());
  }
  if (!is_normalised) return;
  const AffineTables affine = affine_tables(all_affines, work, tables);
  params.scale = affine.scale;
  params.shift = affine.shift;
}

}  // namespace robocache
