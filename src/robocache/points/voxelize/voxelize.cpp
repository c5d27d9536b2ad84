#include "robocache/points/voxelize/voxelize.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "robocache/points/voxels/fixed_point.hpp"
#include "robocache/points/voxels/reduce_backward.hpp"

namespace robocache {
namespace {

bool takes_fill(VoxelMode mode) { return mode >= VoxelMode::kMean; }

// Lists the requested modes for an error message, like "'count' and 'sum'".
std::string modes_text(const VoxelizeOptions& options) {
  std::string text;
  for (const VoxelMode mode : options.modes) {
    text.append(text.empty() ? "'" : " and '").append(name_of(mode)).append("'");
  }
  return text;
}

bool is_sum(VoxelMode mode) { return mode == VoxelMode::kSum || mode == VoxelMode::kMean; }

// Returns the product of the factors; refuses a product that int64 cannot hold.
int64_t product(std::initializer_list<int64_t> factors) {
  int64_t result = 1;
  for (const int64_t factor : factors) {
    if (factor == 0) return 0;
  }
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) {
      refuse("grid_size: expected a grid of fewer than 2^63 bytes");
    }
  }
  return result;
}

void set_grid(const VoxelizeOptions& options, const PointClouds& points, VoxelReduction& call) {
  for (size_t axis = 0; axis < 3; ++axis) {
    if (options.grid_size[axis] < 0) {
      refuse("grid_size: expected 0 or more, got ", std::to_string(options.grid_size[axis]));
    }
    call.grid.origin[axis] = options.grid_min[axis];
    call.grid.size[axis] = options.voxel_size[axis];
    call.grid.shape[axis] = options.grid_size[axis];
  }
  check_origin(call.grid.origin, "grid_min", points.clouds.dtype);
  check_voxel_size(call.grid.size, points.clouds.dtype);
  const auto [x, y, z] = options.grid_size;
  call.cells = product({x, y, z});
  const int64_t clouds = points.clouds.count;
  product({clouds, x, y, z, std::max<int64_t>(points.features.count, 1), int64_t{sizeof(int64_t)}});
}

void set_modes(const PointArguments& arguments, const VoxelizeOptions& options, const PointClouds& points,
               VoxelReduction& call) {
  if (options.modes.empty()) refuse("mode: expected one or more, got none");
  std::optional<DType> features;
  if (arguments.features || points.features.count > 0) features = points.features.dtype;
  uint32_t seen_modes = 0;
  for (const VoxelMode mode : options.modes) {
    const uint32_t bit = 1u << static_cast<int32_t>(mode);
    if (seen_modes & bit) refuse("mode: expected each once, got '", name_of(mode), "' twice");
    seen_modes |= bit;
    call.outputs[call.output_count++] = {mode, voxel_mode_dtype(mode, features), nullptr};
  }
}

// Returns the fill rounded to the dtype, so that writing it does not round it again.
double rounded_fill(double fill, DType dtype) {
  if (!std::isfinite(fill) || dtype == DType::kFloat64) return fill;
  if (dtype == DType::kFloat32 || !is_floating(dtype)) return static_cast<double>(static_cast<float>(fill));
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(fill), &exponent);
  const auto magnitude = static_cast<uint64_t>(std::ldexp(fraction, 53));
  return static_cast<double>(dtype == DType::kFloat16
                                 ? to_float(round_to<Float16>(fill < 0, magnitude, exponent - 53, false))
                                 : to_float(round_to<BFloat16>(fill < 0, magnitude, exponent - 53, false)));
}

void set_fill(const VoxelizeOptions& options, DType features, VoxelReduction& call) {
  const bool is_integer = std::holds_alternative<int64_t>(options.fill);
  const double fill =
      is_integer ? static_cast<double>(std::get<int64_t>(options.fill)) : std::get<double>(options.fill);
  if (!any_output(call, takes_fill) && fill != 0) {
    refuse("fill: goes with 'mean', 'min', 'max', 'first' and 'last', since the others hold 0, got ", number_text(fill),
           " with ", modes_text(options));
  }
  call.fill = rounded_fill(fill, features);
  const bool fills_integers =
      any_output(call, [&](VoxelMode mode) { return takes_fill(mode) && !is_floating(reduced_dtype(mode, features)); });
  if (!fills_integers) return;
  const int64_t bits = features == DType::kBool ? 1 : 8 * dtype_size(features);
  const bool is_signed =
      features == DType::kInt8 || features == DType::kInt16 || features == DType::kInt32 || features == DType::kInt64;
  const double end = std::ldexp(1.0, static_cast<int>(is_signed ? bits - 1 : bits));
  // An int64 is below 2^63, even if its float64 is rounded to 2^63.
  const bool in_range = (fill < end || (is_integer && features == DType::kInt64)) && fill >= (is_signed ? -end : 0.0);
  if (!in_range || fill != std::floor(fill)) {
    refuse("fill: expected a whole number that ", dtype_name(features), " holds, got ",
           is_integer ? std::to_string(std::get<int64_t>(options.fill)) : number_text(fill));
  }
  call.fill_integer = is_integer ? std::get<int64_t>(options.fill) : static_cast<int64_t>(fill);
}

void set_quantum(const VoxelizeOptions& options, DType features, VoxelReduction& call) {
  call.quantum_exponent = kOwnQuantum;
  if (!options.quantum) return;
  const bool has_sums = any_output(call, is_sum);
  if (!has_sums || !is_floating(features)) {
    refuse("quantum: goes with 'sum' and 'mean' of floats, got ", number_text(*options.quantum), " with ",
           modes_text(options), has_sums ? " of " : "", has_sums ? dtype_name(features) : "");
  }
  int exponent = 0;
  const double fraction = std::frexp(*options.quantum, &exponent);
  --exponent;
  const int32_t greatest = features == DType::kFloat64 ? 1023 : features == DType::kFloat16 ? 15 : 127;
  if (fraction != 0.5 || exponent < least_exponent(features) || exponent > greatest) {
    refuse("quantum: expected a power of two that ", dtype_name(features), " holds, got ",
           number_text(*options.quantum));
  }
  call.quantum_exponent = exponent;
}

struct VoxelizeCall {
  PointClouds points;
  VoxelReduction reduction{};
};

// Checks everything except the outputs.
VoxelizeCall prepare(const PointArguments& arguments, const VoxelizeOptions& options) {
  VoxelizeCall call;
  call.points = check_points(arguments);
  VoxelReduction& reduction = call.reduction;
  reduction.by_grid = true;
  set_grid(options, call.points, reduction);
  set_modes(arguments, options, call.points, reduction);
  set_fill(options, call.points.features.dtype, reduction);
  set_quantum(options, call.points.features.dtype, reduction);
  reduction.clouds = call.points.clouds;
  reduction.features = call.points.features;
  reduction.cells *= call.points.clouds.count;
  return call;
}

TensorView output_of(const VoxelizeCall& call, const VoxelOutput& output, Device device) {
  const auto& shape = call.reduction.grid.shape;
  TensorView view{.dtype = output.dtype, .device = device};
  const auto append = [&](int64_t extent) { view.shape[static_cast<size_t>(view.ndim++)] = extent; };
  if (call.points.batched) append(call.points.clouds.count);
  append(shape[0]);
  append(shape[1]);
  append(output.mode == VoxelMode::kOccupancyBits ? shape[2] / 32 + (shape[2] % 32 != 0) : shape[2]);
  if (takes_features(output.mode)) append(call.points.features.count);
  int64_t stride = 1;
  for (int d = view.ndim - 1; d >= 0; --d) {
    view.strides[d] = stride;
    stride *= view.shape[d];
  }
  return view;
}

TensorView dropped_of(const PointClouds& points, Device device) {
  if (!points.batched) return TensorView::contiguous(nullptr, DType::kInt64, {}, device);
  return TensorView::contiguous(nullptr, DType::kInt64, {points.clouds.count}, device);
}

void check_result(const TensorView& out, std::string_view argument, const TensorView& expected) {
  check_expected(out, argument, expected, {}, "points");
  check_dense(out, argument);
}

// Checks a call with exactly one mode.
VoxelizeCall prepare_backward(const PointArguments& arguments, const VoxelizeOptions& options) {
  VoxelizeCall call = prepare(arguments, options);
  if (call.reduction.output_count != 1 || !takes_features(options.modes[0])) {
    refuse("mode: expected one of sum, mean, min, max, first and last");
  }
  if (!arguments.features) refuse("features: expected an array, got none");
  if (!is_floating(call.points.features.dtype)) {
    refuse_type("features: integers have no gradient, got ", dtype_name(call.points.features.dtype));
  }
  return call;
}

// Returns the bytes for the chosen row of each voxel and feature.
int64_t chosen_bytes(const VoxelReduction& reduction) {
  if (!goes_to_one(reduction.outputs[0].mode)) return 0;
  return reduction.cells * reduction.features.count * int64_t{sizeof(int32_t)};
}

}  // namespace

DType voxel_mode_dtype(VoxelMode mode, std::optional<DType> features) {
  if (takes_features(mode) && !features) {
    refuse("features: mode '", name_of(mode), "' needs them, or points of more columns than 3");
  }
  if (takes_features(mode)) return reduced_dtype(mode, *features);
  return mode == VoxelMode::kOccupancy ? DType::kBool : mode == VoxelMode::kCount ? DType::kInt32 : DType::kUInt32;
}

std::vector<TensorView> voxelize_outputs(const PointArguments& arguments, const VoxelizeOptions& options) {
  const VoxelizeCall call = prepare(arguments, options);
  std::vector<TensorView> outputs;
  for (int32_t i = 0; i < call.reduction.output_count; ++i) {
    outputs.push_back(output_of(call, call.reduction.outputs[i], arguments.points.device));
  }
  return outputs;
}

TensorView voxelize_dropped(const PointArguments& arguments) {
  return dropped_of(check_points(arguments), arguments.points.device);
}

int64_t voxelize_workspace_bytes(const PointArguments& arguments, const VoxelizeOptions& options) {
  return reduce_workspace_bytes(prepare(arguments, options).reduction, arguments.points.device);
}

VoxelReduction voxelize_reduction(const PointArguments& arguments, const VoxelizeOptions& options,
                                  const std::vector<TensorView>& outs, const std::optional<TensorView>& dropped,
                                  const std::optional<TensorView>& workspace) {
  VoxelizeCall call = prepare(arguments, options);
  VoxelReduction& reduction = call.reduction;
  const Device device = arguments.points.device;
  const auto count = static_cast<size_t>(reduction.output_count);
  if (outs.size() != count) {
    refuse("out: expected one for each mode, ", std::to_string(count), ", got ", std::to_string(outs.size()));
  }
  for (size_t i = 0; i < count; ++i) {
    VoxelOutput& output = reduction.outputs[i];
    std::string name = "out";
    if (count > 1) name.append("['").append(name_of(output.mode)).append("']");
    check_result(outs[i], name, output_of(call, output, device));
    check_apart(outs[i], name, arguments);
    for (size_t j = 0; j < i; ++j) {
      if (overlaps(outs[i], outs[j])) {
        refuse(name, ": overlaps out['", name_of(reduction.outputs[j].mode), "']");
      }
    }
    output.data = outs[i].data;
  }
  if (dropped) {
    check_result(*dropped, "dropped", dropped_of(call.points, device));
    check_apart(*dropped, "dropped", arguments);
    for (const TensorView& out : outs) {
      if (overlaps(*dropped, out)) refuse("dropped: overlaps out");
    }
    reduction.dropped = static_cast<int64_t*>(dropped->data);
  }
  reduction.workspace_bytes = reduce_workspace_bytes(reduction, device);
  reduction.workspace = checked_workspace(workspace, reduction.workspace_bytes, 256, device);
  return reduction;
}

void voxelize_pointcloud(const PointArguments& arguments, const VoxelizeOptions& options,
                         const std::vector<TensorView>& outs, CudaStream stream,
                         const std::optional<TensorView>& dropped, const std::optional<TensorView>& workspace) {
  reduce_into_voxels(voxelize_reduction(arguments, options, outs, dropped, workspace), arguments.points.device, stream);
}

int64_t voxelize_gradient_workspace_bytes(const PointArguments& arguments, const VoxelizeOptions& options) {
  return chosen_bytes(prepare_backward(arguments, options).reduction);
}

void voxelize_pointcloud_backward(const PointArguments& arguments, const VoxelizeOptions& options,
                                  const TensorView& out_gradient, const std::optional<TensorView>& forward,
                                  const TensorView& features_gradient, CudaStream stream,
                                  const std::optional<TensorView>& workspace) {
  const VoxelizeCall call = prepare_backward(arguments, options);
  const VoxelReduction& reduction = call.reduction;
  const Device device = arguments.points.device;
  VoxelGradient gradient{.clouds = reduction.clouds,
                         .features = reduction.features,
                         .grid = reduction.grid,
                         .cells = reduction.cells,
                         .mode = options.modes[0]};
  check_result(out_gradient, "out_gradient", output_of(call, reduction.outputs[0], device));
  gradient.out_gradient = out_gradient.data;
  if (gradient.mode == VoxelMode::kMean || gradient.mode == VoxelMode::kMin || gradient.mode == VoxelMode::kMax) {
    if (!forward) refuse("forward: mode '", name_of(gradient.mode), "' needs the result of the forward call");
    VoxelOutput output = reduction.outputs[0];
    if (gradient.mode == VoxelMode::kMean) output = {VoxelMode::kCount, DType::kInt32, nullptr};
    check_result(*forward, "forward", output_of(call, output, device));
    gradient.result = forward->data;
  }
  TensorView expected = *arguments.features;
  expected.dtype = expected.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  check_result(features_gradient, "features_gradient", expected);
  gradient.features_gradient = features_gradient.data;
  gradient.chosen =
      static_cast<int32_t*>(checked_workspace(workspace, chosen_bytes(reduction), sizeof(int32_t), device));
  reduce_into_voxels_backward(gradient, device, stream);
}

}  // namespace robocache
