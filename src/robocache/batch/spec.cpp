#include "robocache/batch/spec.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "robocache/align/window_params.hpp"
#include "robocache/core/arguments.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/image/transform.hpp"

namespace robocache {

namespace {

using Dims = std::vector<int64_t>;

int64_t features_of(const std::string& name, const Dims& shape) {
  int64_t features = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(features, extent, &features)) {
      refuse(name, ".shape: expected a shape, got ", shape_string(shape));
    }
  }
  return features;
}

void check_conversion(const std::string& name, const BatchSpec& spec, const KeySpec& key, const RowsSpec& rows) {
  const ConversionSpec& convert = *key.convert;
  const std::string argument = "keys['" + key.key + "'].convert";
  if (convert.steps.empty()) refuse(argument, ".steps: expected at least one, got none");
  if (rows.shape.size() != 1 || !is_floating(rows.dtype)) {
    refuse(name, ".shape: expected rows of one axis of floats, which are converted, got ", shape_string(rows.shape));
  }
  const ActionOps ops = action_ops(convert.steps, rows.shape[0], argument + ".steps");
  if (key.shape != Dims{ops.out_features}) {
    refuse(argument, ".steps: expected values that become ", shape_string(key.shape), ", got ", ops.out_features);
  }
  if ((convert.dtype != DType::kFloat32 && convert.dtype != DType::kFloat64) || !(convert.tolerance >= 0)) {
    refuse(argument, ": expected float32 or float64 as dtype, and a tolerance of 0 or more, got ",
           dtype_name(convert.dtype), " and ", convert.tolerance);
  }
  const auto base = std::ranges::find(spec.keys, convert.base, &KeySpec::key);
  if (ops.has_base != (base != spec.keys.end())) {
    refuse(argument, ".base: expected ", ops.has_base ? "a key of the spec" : "none, since no step uses a base",
           ", got '", convert.base, "'");
  }
  if (!ops.has_base || !base->rows) return;
  const RowsSpec& state = *base->rows;
  if (state.shape.size() != 1 || !is_floating(state.dtype)) {
    refuse(argument, ".base: expected a key of floats with rows of one axis, got '", convert.base, "'");
  }
  const auto& base_features = convert.base_features;
  const bool fits = std::ranges::all_of(base_features, [&](int64_t i) { return 0 <= i && i < state.shape[0]; });
  if (!fits || (base_features.empty() ? state.shape[0] : std::ssize(base_features)) != rows.shape[0]) {
    refuse(argument, ".base_features: expected ", rows.shape[0], " features of '", convert.base, "'");
  }
}

void check_numbers(const std::string& name, const BatchSpec& spec, const KeySpec& key, const RowsSpec& rows) {
  const int64_t features = features_of(name, rows.shape);
  const bool floating = is_floating(rows.dtype);
  if (key.convert) check_conversion(name, spec, key, rows);
  const int64_t out_features = key.convert ? key.shape[0] : features;
  if (key.dtype != rows.dtype && !(floating && is_floating(key.dtype))) {
    refuse(name, ".dtype: expected a type that becomes ", dtype_name(key.dtype), ", got ", dtype_name(rows.dtype));
  }
  const bool is_widened =
      spec.pad_features && rows.shape.size() == 1 && key.shape.size() == 1 && key.shape[0] > features;
  if (rows.shape != key.shape && !is_widened && !key.convert) {
    refuse(name, ".shape: expected ", shape_string(key.shape), " as in the batch, got ", shape_string(rows.shape));
  }
  if (!rows.names.empty() && std::ssize(rows.names) != features) {
    refuse(name, ".names: expected one for each of ", features, " features, got ", rows.names.size());
  }
  const auto affines = std::ssize(rows.affine);
  if (affines > 0 && (!floating || (affines != out_features && affines != out_features * key.steps()))) {
    refuse(name, ".affine: expected numbers for each feature, or each step and feature, of a floating stream, got ",
           rows.affine.size(), " of ", dtype_name(rows.dtype));
  }
  for (const auto& [scale, shift, spread, centre] : rows.affine) {
    for (const double number : {scale, shift, spread, centre}) {
      if (!std::isfinite(number)) refuse(name, ".affine: expected finite numbers, got ", number);
    }
  }
  if (rows.clip && rows.affine.empty()) refuse(name, ".clip: goes with affine, got none");
  if (rows.codec || rows.unit_m || !rows.intrinsics.empty()) {
    refuse(name, ".codec: codec, unit_m and intrinsics go with images, got none");
  }
}

void check_frames(const std::string& name, const KeySpec& key, const RowsSpec& rows) {
  if (!rows.codec) refuse(name, ".codec: expected one, since the key has images, got none");
  if (rows.shape.size() != 3)
    refuse(name, ".shape: expected [height, width, channels], got ", shape_string(rows.shape));
  if (!rows.affine.empty() || rows.clip) refuse(name, ".affine: goes with numbers, got a camera's");
  if (!rows.intrinsics.empty() && (rows.intrinsics.size() != 9 || !key.has_intrinsics)) {
    refuse(name, ".intrinsics: expected 9 numbers, and has_intrinsics");
  }
  const FrameShape frame{rows.shape[0], rows.shape[1], rows.shape[2], rows.dtype};
  const ImageTransform transform(frame, *key.images, key.key, rows.unit_m);
  if (transform.shape() != key.shape || transform.dtype() != key.dtype) {
    refuse(name, ".shape: expected frames that become ", shape_string(key.shape), " of ", dtype_name(key.dtype),
           ", got ", shape_string(transform.shape()), " of ", dtype_name(transform.dtype()));
  }
}

void check_methods(const std::string& name, const KeySpec& key, const RowsSpec& rows) {
  const int64_t features = key.images ? 1 : features_of(name, rows.shape);
  int64_t end = 0;
  for (const FeatureBlock& block : rows.methods) {
    const std::string got = ", got '" + std::string(name_of(block.method)) + "' for [" + std::to_string(block.begin) +
                            ", " + std::to_string(block.end) + ")";
    const bool is_empty = block.begin == block.end && features > 0;
    if (block.begin != end || block.end < block.begin || is_empty) {
      refuse(name, ".methods: expected runs of features, one after the other", got);
    }
    end = block.end;
    const InterpolationMethod method = block.method;
    const bool takes_a_row = method == InterpolationMethod::kPrevious || method == InterpolationMethod::kNearest;
    if (method == InterpolationMethod::kCubic || method == InterpolationMethod::kPose || (key.images && !takes_a_row) ||
        (!is_floating(rows.dtype) && !is_step(method)) ||
        (method == InterpolationMethod::kSlerp && (block.end - block.begin) % 4 != 0)) {
      refuse(name, ".methods: expected methods that fit the features", got);
    }
    if (key.causal && method == InterpolationMethod::kNext) refuse(name, ".methods: 'next' is not causal");
    if (key.tolerance_ns && !is_step(method)) refuse(name, ".methods: tolerance_ns goes with steps", got);
    if (!key.offsets_rows.empty() && method != InterpolationMethod::kPrevious) {
      refuse(name, ".methods: expected 'previous', since offsets are rows", got);
    }
  }
  if (end != features || rows.methods.empty()) {
    refuse(name, ".methods: expected methods for ", features, " features, got ", end);
  }
}

void check_key(const BatchSpec& spec, const KeySpec& key) {
  const std::string name = "keys['" + key.key + "']";
  if (key.key.empty() || key.stream.empty()) refuse("keys: expected keys and streams with names, got an empty one");
  if (key.moment) {
    const MomentRule& moment = *key.moment;
    const bool is_future = moment.kind == MomentKind::kFuture;
    const bool is_geometric = moment.kind == MomentKind::kGeometric;
    const bool fits =
        is_future ? 0 <= moment.low_ns && moment.low_ns < moment.high_ns : moment.low_ns == 0 && moment.high_ns == 0;
    if (!fits || (is_geometric ? !(0 < moment.discount && moment.discount < 1) : moment.discount != 0)) {
      refuse(name,
             ".moment: expected low_ns < high_ns for 'future', a discount between 0 and 1 for 'geometric', and 0 "
             "otherwise");
    }
  }
  features_of(name, key.shape);
  if (key.steps() == 0 || (key.one_step && key.steps() != 1)) {
    refuse(name, ".offsets_ns: expected ", key.one_step ? "one offset" : "at least one offset", ", got ", key.steps());
  }
  if (!key.offsets_rows.empty() && (!key.offsets_ns.empty() || key.max_gap_ns)) {
    refuse(name, ".offsets_rows: goes without offsets_ns and max_gap_ns");
  }
  for (const int64_t rows : key.offsets_rows) {
    if (std::abs(rows) > kMostRowOffset) {
      refuse(name, ".offsets_rows: expected at most 2^30 rows, got ", rows);
    }
  }
  for (const int64_t offset : key.offsets_ns) {
    int64_t sum = 0;
    if (__builtin_add_overflow(offset, key.offset_ns, &sum)) {
      refuse(name, ".offsets_ns: expected 64 bits together with offset_ns, got ", offset);
    }
  }
  for (const auto& [field, limit] :
       {std::pair{"max_gap_ns", key.max_gap_ns}, std::pair{"tolerance_ns", key.tolerance_ns}}) {
    if (limit && *limit < 0) refuse(name, ".", field, ": expected 0 or more, got ", *limit);
  }
  if (key.has_intrinsics && !key.images) refuse(name, ".has_intrinsics: goes with images, got none");
  if (key.convert && key.images) refuse(name, ".convert: goes with numbers, got a camera's");
  if (!key.rows) return;
  check_methods(name + ".rows", key, *key.rows);
  if (key.images) {
    check_frames(name + ".rows", key, *key.rows);
  } else {
    check_numbers(name + ".rows", spec, key, *key.rows);
  }
}

}  // namespace

std::vector<int64_t> KeySpec::stamp_offsets_ns() const {
  std::vector<int64_t> stamps;
  for (const int64_t offset : offsets_ns) stamps.push_back(offset + offset_ns);
  if (!offsets_rows.empty()) stamps.push_back(offset_ns);
  return stamps;
}

void check_spec(const BatchSpec& spec) {
  if (spec.keys.empty()) refuse("keys: expected at least one, got none");
  if (spec.snap_ns < 0) refuse("snap_ns: expected 0 or more, got ", spec.snap_ns);
  std::set<std::string_view> names;
  for (const KeySpec& key : spec.keys) {
    if (!names.insert(key.key).second) refuse("keys: expected each key once, got '", key.key, "' twice");
    check_key(spec, key);
  }
}

}  // namespace robocache
