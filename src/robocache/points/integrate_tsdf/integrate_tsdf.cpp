#include "robocache/points/integrate_tsdf/integrate_tsdf.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "robocache/core/arguments.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/points/integrate_tsdf/tsdf_bounds.hpp"
#include "robocache/points/integrate_tsdf/tsdf_cpu.hpp"
#include "robocache/points/integrate_tsdf/tsdf_math.hpp"
#include "robocache/points/integrate_tsdf/tsdf_params.hpp"
#include "robocache/points/integrate_tsdf/tsdf_sensor.hpp"

namespace robocache {
namespace {

void check_volume(const TensorView& volume, const char* name, const TensorView& grid) {
  if (volume.dtype != DType::kFloat32) refuse_type(name, ": expected float32, got ", dtype_name(volume.dtype));
  if (volume.ndim != 3) refuse(name, ": expected [X, Y, Z], got ", shape_string(volume));
  if (volume.shape != grid.shape) {
    refuse(name, ": expected ", shape_string({grid.shape.data(), 3}), " like grid, got ",
           shape_string({volume.shape.data(), 3}));
  }
  check_device(volume, name, grid.device, {}, "grid");
  for (int axis = 0; axis < 3; ++axis) {
    if (volume.shape[static_cast<size_t>(axis)] > int64_t{1} << 30) {
      refuse(name, ": expected at most 2^30 voxels along an axis, got ", shape_string({volume.shape.data(), 3}));
    }
  }
  if (volume.numel() > 0) check_elements_apart(volume, name);
}

void check_points(const TensorView& points) {
  if (points.dtype != DType::kFloat32 && points.dtype != DType::kFloat64) {
    refuse_type("points: expected float32 or float64, got ", dtype_name(points.dtype));
  }
  if ((points.ndim != 2 && points.ndim != 3) || points.shape[points.ndim - 1] != 3) {
    refuse("points: expected [N, 3] or [K, N, 3], got ", shape_string(points), "; a depth image goes with intrinsics");
  }
}

void check_depth(const TensorView& depth, const std::optional<double>& scale) {
  if (depth.dtype != DType::kFloat32 && depth.dtype != DType::kUInt16) {
    refuse_type("depth: expected float32 (metres) or uint16 (with depth_scale), got ", dtype_name(depth.dtype));
  }
  if (depth.ndim != 2 && depth.ndim != 3) {
    refuse("depth: expected [H, W] or [K, H, W], got ", shape_string(depth));
  }
  if (depth.dtype == DType::kUInt16 && !scale) {
    refuse("depth_scale: expected the metres of one unit of a uint16 depth image (0.001 for millimetres), got none");
  }
}

// Checks an array of numbers, [...] for one sensor or [K, ...] for K. `expected` describes the shape.
TsdfNumbers checked_numbers(const TensorView& numbers, const char* name, Device device, bool has_right_shape,
                            const std::string& expected) {
  if (numbers.device.is_cuda() && numbers.device != device) {
    refuse(name, ": expected on cpu", device.is_cuda() ? " or " + device_name(device) : "", " like grid, got on ",
           device_name(numbers.device));
  }
  if (numbers.dtype != DType::kFloat64 && numbers.dtype != DType::kFloat32) {
    refuse_type(name, ": expected float64 or float32, got ", dtype_name(numbers.dtype));
  }
  if (!has_right_shape) {
    refuse(name, ": expected ", expected, ", got ", shape_string(numbers));
  }
  TsdfNumbers result{};
  result.data = numbers.data;
  result.dtype = numbers.dtype;
  return result;
}

TsdfNumbers poses_of(const TensorView& poses, Device device, bool is_batched, int64_t count) {
  const int n = poses.ndim;
  const bool has_right_shape = n == (is_batched ? 3 : 2) && poses.shape[n - 1] == 4 && poses.shape[n - 2] == 4 &&
                               (!is_batched || poses.shape[0] == count);
  TsdfNumbers result = checked_numbers(poses, "T_world_sensor", device, has_right_shape,
                                       is_batched ? "[" + std::to_string(count) + ", 4, 4]" : "[4, 4]");
  result.sensor_stride = is_batched ? poses.strides[0] : 0;
  result.row_stride = poses.strides[n - 2];
  result.column_stride = poses.strides[n - 1];
  return result;
}

TsdfNumbers cameras_of(const TensorView& cameras, Device device, bool is_batched, int64_t count) {
  const int n = cameras.ndim;
  const bool has_matrices = n >= 2 && cameras.shape[n - 1] == 3 && cameras.shape[n - 2] == 3;
  const int per_sensor_ndim = has_matrices ? 3 : 2;
  const bool is_per_sensor = n == per_sensor_ndim;
  const bool has_right_shape = (has_matrices || (n >= 1 && cameras.shape[n - 1] == 4)) && n <= per_sensor_ndim &&
                               (!is_per_sensor || (is_batched && cameras.shape[0] == count));
  const std::string k = std::to_string(count);
  TsdfNumbers result =
      checked_numbers(cameras, "intrinsics", device, has_right_shape,
                      is_batched ? "[3, 3], [4], [" + k + ", 3, 3] or [" + k + ", 4]" : "[3, 3] or [4]");
  result.is_matrix = has_matrices;
  result.sensor_stride = is_per_sensor ? cameras.strides[0] : 0;
  result.row_stride = has_matrices ? cameras.strides[n - 2] : 0;
  result.column_stride = cameras.strides[n - 1];
  return result;
}

[[noreturn]] void refuse_pose(const SensorCheck& check, const TsdfNumbers& poses, int64_t sensor) {
  const auto got = [&]() -> std::string {
    switch (check.fault) {
      case SensorFault::kLastRow: {
        std::string row = "the last row ";
        for (int j = 0; j < 4; ++j) row += (j > 0 ? ", " : "") + number_text(number_at(poses, sensor, 3, j));
        return row;
      }
      case SensorFault::kColumns:
        return "columns " + std::to_string(check.i) + " and " + std::to_string(check.j) + " with a product of " +
               number_text(check.got);
      case SensorFault::kMirror:
        return "a mirror image";
      default:
        return number_text(check.got);
    }
  };
  refuse("T_world_sensor: expected a rigid transform: a rotation, a translation and the last row 0, 0, 0, 1; got ",
         got(), " at ", std::to_string(sensor));
}

[[noreturn]] void refuse_camera(const SensorCheck& check, int64_t sensor) {
  const char* const expected = check.fault == SensorFault::kSkew    ? "[fx 0 cx; 0 fy cy; 0 0 1] without skew"
                               : check.fault == SensorFault::kFocal ? "focal lengths above 0 and finite"
                                                                    : "a finite principal point";
  refuse("intrinsics: expected ", expected, ", got ", number_text(check.got), " at ", std::to_string(sensor));
}

// Checks the sensors whose numbers are on the host.
std::vector<TsdfSensor> sensors_of(const TsdfNumbers* poses, const TsdfNumbers* cameras, int64_t count) {
  std::vector<TsdfSensor> sensors(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    TsdfSensor& sensor = sensors[static_cast<size_t>(i)];
    if (poses) {
      const SensorCheck check = read_pose(*poses, i, sensor);
      if (check.fault != SensorFault::kNone) refuse_pose(check, *poses, i);
    }
    if (cameras) {
      const SensorCheck check = read_camera(*cameras, i, sensor);
      if (check.fault != SensorFault::kNone) refuse_camera(check, cameras->sensor_stride != 0 ? i : 0);
    }
  }
  return sensors;
}

// Checks that the grid's float32 can hold a length.
void check_length(double metres, const char* name) {
  if (!(metres > 0 && std::isnormal(static_cast<float>(metres)))) {
    refuse(name, ": expected metres above 0 within float32, got ", number_text(metres));
  }
}

void set_options(const TsdfOptions& options, bool is_depth, TsdfParams& p) {
  double square = 0;
  for (int axis = 0; axis < 3; ++axis) {
    const auto i = static_cast<size_t>(axis);
    check_length(options.voxel_size[i], "voxel_size");
    if (!std::isfinite(static_cast<float>(options.grid_min[i]))) {
      refuse("grid_min: expected finite numbers, got ", number_text(options.grid_min[i]));
    }
    p.grid.origin[axis] = options.grid_min[i];
    p.grid.size[axis] = options.voxel_size[i];
    square += options.voxel_size[i] * options.voxel_size[i];
  }
  p.half_diagonal = std::sqrt(square) / 2;
  check_length(options.truncation, "truncation");
  p.truncation = options.truncation;
  // A measurement has at most 2^31 quanta and there are fewer than 2^31 measurements, so sums stay below 2^62.
  int exponent = 0;
  const bool is_power_of_two = std::frexp(options.truncation, &exponent) == 0.5;
  p.quantum = std::ldexp(1, exponent - (is_power_of_two ? 1 : 0) - 31);
  p.quanta_per_metre = 1 / p.quantum;
  p.free_quanta = in_quanta(p, p.truncation);
  p.max_weight = options.max_weight.value_or(HUGE_VAL);
  if (!(p.max_weight > 0)) refuse("max_weight: expected a number above 0, got ", number_text(p.max_weight));
  p.space_carving = options.space_carving;
  if (options.depth_scale && !is_depth) refuse("depth_scale: goes with a depth image, got points");
  p.depth_scale = options.depth_scale.value_or(1);
  if (!(p.depth_scale > 0 && std::isfinite(p.depth_scale))) {
    refuse("depth_scale: expected a finite number above 0, got ", number_text(p.depth_scale));
  }
}

// `measured` is [..., rows, columns], with a leading axis for several sensors.
void set_measured(const TensorView& measured, bool is_depth, TsdfParams& p) {
  const bool is_batched = measured.ndim == 3;
  const int first = is_batched ? 1 : 0;
  p.measured = measured.data;
  p.dtype = measured.dtype;
  p.is_depth = is_depth;
  p.sensors = is_batched ? measured.shape[0] : 1;
  p.rows = measured.shape[first];
  p.columns = measured.shape[first + 1];
  p.sensor_stride = is_batched ? measured.strides[0] : 0;
  p.row_stride = measured.strides[first];
  p.column_stride = measured.strides[first + 1];
}

// Estimates how many voxels all rays together pass through, if all meet the grid. A random direction has a component of 1/2
// along each axis, on average.
double most_visits(const TsdfParams& p) {
  double band = 3;
  double across_grid = 0;
  for (int axis = 0; axis < 3; ++axis) {
    band += 2 * p.truncation / p.grid.size[axis] / 2;
    across_grid += static_cast<double>(p.grid.shape[axis]) / 2;
  }
  return static_cast<double>(p.sensors) * static_cast<double>(p.rows) *
         (p.space_carving ? across_grid : std::min(band, across_grid));
}

int64_t bytes_of_sums(const TensorView& grid, bool is_depth) {
  return is_depth ? 0 : grid.numel() * static_cast<int64_t>(sizeof(TsdfSum));
}

// Returns the bytes for the ranges of the images, or 0. The kernel finds the ranges first if that is cheap compared
// with visiting all voxels.
int64_t bytes_of_ranges(const TensorView& grid, const TensorView& measured, bool is_depth) {
  // Visits of fewer voxels, over all images, are so short that the extra launch costs more than it saves.
  constexpr int64_t kLeastVoxels = int64_t{1} << 22;
  if (!is_depth || !grid.device.is_cuda() || (measured.ndim != 2 && measured.ndim != 3) || measured.numel() == 0)
    return 0;
  const int64_t sensors = measured.ndim == 3 ? measured.shape[0] : 1;
  if (grid.numel() < std::max(measured.numel(), kLeastVoxels) / sensors) return 0;
  const auto first = static_cast<size_t>(measured.ndim - 2);
  return sensors * cell_blocks(measured.shape[first]) * cell_blocks(measured.shape[first + 1]) * kCellsInBlock *
         static_cast<int64_t>(sizeof(TsdfRange));
}

}  // namespace

int64_t tsdf_workspace_bytes(const TensorView& grid, const TensorView& measured, const TensorView& T_world_sensor,
                             const std::optional<TensorView>& intrinsics) {
  const bool is_depth = intrinsics.has_value();
  const int64_t sensors = measured.ndim == 3 ? measured.shape[0] : 1;
  const bool on_device = T_world_sensor.device.is_cuda() || (is_depth && intrinsics->device.is_cuda());
  const bool needs_sensor_memory = grid.device.is_cuda() && (on_device || sensors > kSensorsInParams);
  return bytes_of_sums(grid, is_depth) + bytes_of_ranges(grid, measured, is_depth) +
         (needs_sensor_memory ? sensors * static_cast<int64_t>(sizeof(TsdfSensor) + sizeof(TsdfView)) : 0);
}

void integrate_tsdf(const TensorView& grid, const TensorView& weights, const TensorView& measured,
                    const TensorView& T_world_sensor, const std::optional<TensorView>& intrinsics,
                    const TsdfOptions& options, CudaStream stream, const std::optional<TensorView>& workspace) {
  const bool is_depth = intrinsics.has_value();
  const char* const name = is_depth ? "depth" : "points";
  check_volume(grid, "grid", grid);
  check_volume(weights, "weights", grid);
  if (is_depth) {
    check_depth(measured, options.depth_scale);
  } else {
    check_points(measured);
  }
  check_device(measured, name, grid.device, {}, "grid");
  if (overlaps(grid, weights)) refuse("weights: overlaps grid");
  if (overlaps(grid, measured)) refuse(name, ": overlaps grid");
  if (overlaps(weights, measured)) refuse(name, ": overlaps weights");

  TsdfParams p{};
  p.distances = static_cast<float*>(grid.data);
  p.weights = static_cast<float*>(weights.data);
  for (int axis = 0; axis < 3; ++axis) {
    const auto i = static_cast<size_t>(axis);
    p.grid.shape[axis] = grid.shape[i];
    p.distance_strides[axis] = grid.strides[i];
    p.weight_strides[axis] = weights.strides[i];
  }
  set_options(options, is_depth, p);
  set_measured(measured, is_depth, p);
  constexpr int64_t kMostRays = std::numeric_limits<int32_t>::max();  // a voxel's count must hold it
  if (p.sensors > kMostRays || (!is_depth && measured.numel() / 3 > kMostRays)) {
    refuse(name, ": expected at most 2^31 - 1 ", is_depth ? "images" : "points", " a call, got ", measured.describe());
  }
  const bool is_batched = measured.ndim == 3;
  const bool has_pose_per_sensor = T_world_sensor.ndim == 3 && T_world_sensor.shape[0] == p.sensors;
  if (is_depth && is_batched && measured.shape[2] == 1 && !has_pose_per_sensor) {
    refuse("depth: expected [H, W], or [K, H, W] with K transforms, got ", shape_string(measured),
           "; pass it without its last axis, depth[..., 0]");
  }
  const TsdfNumbers poses = poses_of(T_world_sensor, grid.device, is_batched, p.sensors);
  const TsdfNumbers cameras = is_depth ? cameras_of(*intrinsics, grid.device, is_batched, p.sensors) : TsdfNumbers{};
  const bool poses_on_device = T_world_sensor.device.is_cuda();
  const bool cameras_on_device = is_depth && intrinsics->device.is_cuda();
  const std::vector<TsdfSensor> sensors =
      sensors_of(poses_on_device ? nullptr : &poses, is_depth && !cameras_on_device ? &cameras : nullptr, p.sensors);
  if (grid.numel() == 0 || measured.numel() == 0) return;

  const int64_t bytes = tsdf_workspace_bytes(grid, measured, T_world_sensor, intrinsics);
  char* const memory = static_cast<char*>(checked_workspace(workspace, bytes, 16, grid.device));
  p.sums = reinterpret_cast<TsdfSum*>(memory);
  p.clear_everywhere = most_visits(p) > static_cast<double>(grid.numel());
  const int64_t range_bytes = bytes_of_ranges(grid, measured, is_depth);
  p.ranges = range_bytes > 0 ? reinterpret_cast<TsdfRange*>(memory + bytes - range_bytes) : nullptr;
  if (!grid.device.is_cuda()) {
    integrate_tsdf_cpu(p, sensors.data());
    return;
  }
  // `poses` and `cameras` are null if `sensors` holds their numbers, on the host. The memory holds the sensors that do
  // not fit into the parameters.
  using Launch = int(const TsdfParams*, const TsdfSensor*, const TsdfNumbers* poses, const TsdfNumbers* cameras,
                     void* sensor_memory, int32_t device, void* stream);
  static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_integrate_tsdf"));
  check_cuda(launch(&p, sensors.data(), poses_on_device ? &poses : nullptr, cameras_on_device ? &cameras : nullptr,
                    memory + bytes_of_sums(grid, is_depth), grid.device.index, stream.handle),
             "integrate_tsdf");
}

}  // namespace robocache
