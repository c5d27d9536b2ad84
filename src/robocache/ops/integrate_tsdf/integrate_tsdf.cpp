#include "robocache/ops/integrate_tsdf/integrate_tsdf.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "robocache/core/arguments.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/ops/integrate_tsdf/tsdf_cpu.hpp"
#include "robocache/ops/integrate_tsdf/tsdf_params.hpp"

namespace robocache {
namespace {

void check_volume(const TensorView& volume, const char* name, const TensorView& grid) {
  if (volume.dtype != DType::kFloat32) refuse_type(name, ": expected float32, got ", dtype_name(volume.dtype));
  if (volume.ndim != 3) refuse(name, ": expected [X, Y, Z], got ", shape_string(volume.shape.data(), volume.ndim));
  if (volume.shape != grid.shape) {
    refuse(name, ": expected ", shape_string(grid.shape.data(), 3), " like grid, got ",
           shape_string(volume.shape.data(), 3));
  }
  check_device(volume, name, grid.device, {}, "grid");
  if (volume.numel() > 0) check_elements_apart(volume, name);
}

void check_points(const TensorView& points) {
  if (points.dtype != DType::kFloat32 && points.dtype != DType::kFloat64) {
    refuse_type("points: expected float32 or float64, got ", dtype_name(points.dtype));
  }
  if ((points.ndim != 2 && points.ndim != 3) || points.shape[points.ndim - 1] != 3) {
    refuse("points: expected [N, 3] or [K, N, 3], got ", shape_string(points.shape.data(), points.ndim),
           "; a depth image goes with intrinsics");
  }
}

void check_depth(const TensorView& depth, const std::optional<double>& scale) {
  if (depth.dtype != DType::kFloat32 && depth.dtype != DType::kUInt16) {
    refuse_type("depth: expected float32 (metres) or uint16 (with depth_scale), got ", dtype_name(depth.dtype));
  }
  if (depth.ndim != 2 && depth.ndim != 3) {
    refuse("depth: expected [H, W] or [K, H, W], got ", shape_string(depth.shape.data(), depth.ndim));
  }
  if (depth.dtype == DType::kUInt16 && !scale) {
    refuse("depth_scale: expected the metres of one unit of a uint16 depth image (0.001 for millimetres), got none");
  }
}

// An array of numbers on the CPU for each sensor, [...] or [K, ...]; `expected` says it in words.
void check_numbers(const TensorView& numbers, const char* name, bool right_shape, const std::string& expected) {
  if (numbers.device.is_cuda()) {
    refuse(name, ": expected on cpu, got on ", device_name(numbers.device),
           "; it is checked before anything is queued, and reading it there would wait for the device");
  }
  if (numbers.dtype != DType::kFloat64) {
    refuse_type(name, ": expected float64, got ", dtype_name(numbers.dtype));
  }
  if (!right_shape) {
    refuse(name, ": expected ", expected, ", got ", shape_string(numbers.shape.data(), numbers.ndim));
  }
  if (!numbers.is_contiguous()) refuse(name, ": expected a dense array");
}

// The row-major 4x4 of one sensor.
void set_pose(const double* t, int64_t place, TsdfSensor& sensor) {
  const auto wrong = [&](const std::string& got) {
    refuse("T_world_sensor: expected a rigid transform: a rotation, a translation and the last row 0, 0, 0, 1; got ",
           got, " at ", std::to_string(place));
  };
  for (int i = 0; i < 16; ++i) {
    if (!std::isfinite(t[i])) wrong(number_text(t[i]));
  }
  if (t[12] != 0 || t[13] != 0 || t[14] != 0 || t[15] != 1) {
    wrong("the last row " + number_text(t[12]) + ", " + number_text(t[13]) + ", " + number_text(t[14]) + ", " +
          number_text(t[15]));
  }
  // Poses come with few digits and in float32; a scale or a mirror is another matter.
  constexpr double kRounding = 1e-3;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      sensor.rotation[3 * i + j] = t[4 * i + j];
      const double product = t[i] * t[j] + t[4 + i] * t[4 + j] + t[8 + i] * t[8 + j];
      if (!(std::abs(product - (i == j ? 1 : 0)) <= kRounding)) {
        wrong("columns " + std::to_string(i) + " and " + std::to_string(j) + " with a product of " +
              number_text(product));
      }
    }
    sensor.origin[i] = t[4 * i + 3];
  }
  const double* r = sensor.rotation;
  if (r[0] * (r[4] * r[8] - r[5] * r[7]) - r[1] * (r[3] * r[8] - r[5] * r[6]) + r[2] * (r[3] * r[7] - r[4] * r[6]) <
      0) {
    wrong("a mirror image");
  }
}

// A 3x3 camera matrix, or fx, fy, cx, cy.
void set_camera(const double* k, bool matrix, int64_t place, TsdfSensor& sensor) {
  const auto wrong = [&](const std::string& expected, double got) {
    refuse("intrinsics: expected ", expected, ", got ", number_text(got), " at ", std::to_string(place));
  };
  if (matrix) {
    const double rest[] = {k[1], k[3], k[6], k[7], k[8] - 1};
    for (const double x : rest) {
      if (x != 0) wrong("[fx 0 cx; 0 fy cy; 0 0 1] without skew", x);
    }
  }
  sensor.fx = k[0];
  sensor.fy = matrix ? k[4] : k[1];
  sensor.cx = k[2];
  sensor.cy = matrix ? k[5] : k[3];
  for (const double focal : {sensor.fx, sensor.fy}) {
    if (!(focal > 0 && std::isfinite(focal))) wrong("focal lengths above 0 and finite", focal);
  }
  for (const double centre : {sensor.cx, sensor.cy}) {
    if (!std::isfinite(centre)) wrong("a finite principal point", centre);
  }
}

std::vector<TsdfSensor> sensors_of(const TensorView& poses, const std::optional<TensorView>& intrinsics, bool several,
                                   int64_t count) {
  const std::string k = std::to_string(count);
  check_numbers(poses, "T_world_sensor",
                poses.ndim == (several ? 3 : 2) && poses.shape[poses.ndim - 1] == 4 &&
                    poses.shape[poses.ndim - 2] == 4 && (!several || poses.shape[0] == count),
                several ? "[" + k + ", 4, 4]" : "[4, 4]");
  bool matrix = false;
  bool each = false;
  if (intrinsics) {
    const auto& shape = intrinsics->shape;
    const int ndim = intrinsics->ndim;
    matrix = ndim >= 2 && shape[ndim - 1] == 3 && shape[ndim - 2] == 3;
    each = ndim == (matrix ? 3 : 2);
    const bool right = (matrix || (ndim >= 1 && shape[ndim - 1] == 4)) && ndim <= (matrix ? 3 : 2) &&
                       (!each || (several && shape[0] == count));
    check_numbers(*intrinsics, "intrinsics", right,
                  several ? "[3, 3], [4], [" + k + ", 3, 3] or [" + k + ", 4]" : "[3, 3] or [4]");
  }
  std::vector<TsdfSensor> sensors(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    TsdfSensor& sensor = sensors[static_cast<size_t>(i)];
    set_pose(static_cast<const double*>(poses.data) + 16 * i, i, sensor);
    if (intrinsics) {
      set_camera(static_cast<const double*>(intrinsics->data) + (each ? i * (matrix ? 9 : 4) : 0), matrix, each ? i : 0,
                 sensor);
    }
  }
  return sensors;
}

// A number of metres as the float32 of the grid can hold it.
void check_length(double metres, const char* name) {
  if (!(metres > 0 && std::isnormal(static_cast<float>(metres)))) {
    refuse(name, ": expected metres above 0 within float32, got ", number_text(metres));
  }
}

void set_options(const TsdfOptions& options, bool depth, TsdfParams& p) {
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
  // Up to 2^31 quanta a measurement and fewer than 2^31 measurements: sums stay below 2^62.
  int exponent = 0;
  const bool power = std::frexp(options.truncation, &exponent) == 0.5;
  p.quantum = std::ldexp(1, exponent - (power ? 1 : 0) - 31);
  p.quanta_per_metre = 1 / p.quantum;
  p.max_weight = options.max_weight.value_or(HUGE_VAL);
  if (!(p.max_weight > 0)) refuse("max_weight: expected a number above 0, got ", number_text(p.max_weight));
  p.space_carving = options.space_carving;
  if (options.depth_scale && !depth) refuse("depth_scale: goes with a depth image, got points");
  p.depth_scale = options.depth_scale.value_or(1);
  if (!(p.depth_scale > 0 && std::isfinite(p.depth_scale))) {
    refuse("depth_scale: expected a finite number above 0, got ", number_text(p.depth_scale));
  }
}

// [..., rows, columns] without a leading extent for one sensor.
void set_measured(const TensorView& measured, bool depth, TsdfParams& p) {
  const bool several = measured.ndim == 3;
  const int first = several ? 1 : 0;
  p.measured = measured.data;
  p.dtype = measured.dtype;
  p.is_depth = depth;
  p.sensors = several ? measured.shape[0] : 1;
  p.rows = measured.shape[first];
  p.columns = measured.shape[first + 1];
  p.sensor_stride = several ? measured.strides[0] : 0;
  p.row_stride = measured.strides[first];
  p.column_stride = measured.strides[first + 1];
}

// About how many voxels all rays pass through at most.
double most_visits(const TsdfParams& p) {
  double band = 3;
  double through = 0;
  for (int axis = 0; axis < 3; ++axis) {
    band += 2 * p.truncation / p.grid.size[axis] / 2;
    through += static_cast<double>(p.grid.shape[axis]) / 2;
  }
  return static_cast<double>(p.sensors) * static_cast<double>(p.rows) *
         (p.space_carving ? through : std::min(band, through));
}

int64_t bytes_of_sums(const TensorView& grid, bool depth) {
  return depth ? 0 : grid.numel() * static_cast<int64_t>(sizeof(TsdfSum));
}

}  // namespace

int64_t tsdf_workspace_bytes(const TensorView& grid, const TensorView& measured, bool depth) {
  const int64_t sensors = measured.ndim == 3 ? measured.shape[0] : 1;
  const bool apart = grid.device.is_cuda() && sensors > kSensorsInParams;
  return bytes_of_sums(grid, depth) + (apart ? sensors * static_cast<int64_t>(sizeof(TsdfSensor)) : 0);
}

void integrate_tsdf(const TensorView& grid, const TensorView& weights, const TensorView& measured,
                    const TensorView& T_world_sensor, const std::optional<TensorView>& intrinsics,
                    const TsdfOptions& options, CudaStream stream, const std::optional<TensorView>& workspace) {
  const bool depth = intrinsics.has_value();
  const char* const name = depth ? "depth" : "points";
  check_volume(grid, "grid", grid);
  check_volume(weights, "weights", grid);
  if (depth) {
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
  set_options(options, depth, p);
  set_measured(measured, depth, p);
  constexpr int64_t kMostRays = std::numeric_limits<int32_t>::max();  // what a voxel's count holds
  if (p.sensors > kMostRays || (!depth && measured.numel() / 3 > kMostRays)) {
    refuse(name, ": expected at most 2^31 - 1 ", depth ? "images" : "points", " a call, got ", measured.describe());
  }
  const std::vector<TsdfSensor> sensors = sensors_of(T_world_sensor, intrinsics, measured.ndim == 3, p.sensors);
  if (grid.numel() == 0 || measured.numel() == 0) return;

  char* const memory =
      static_cast<char*>(checked_workspace(workspace, tsdf_workspace_bytes(grid, measured, depth), 16, grid.device));
  p.sums = reinterpret_cast<TsdfSum*>(memory);
  p.clear_everywhere = most_visits(p) > static_cast<double>(grid.numel());
  if (!grid.device.is_cuda()) {
    integrate_tsdf_cpu(p, sensors.data());
    return;
  }
  // The last: where sensors go that are too many for the parameters.
  using Launch = int(const TsdfParams*, const TsdfSensor*, void* sensor_memory, int32_t device, void* stream);
  static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_integrate_tsdf"));
  check_cuda(launch(&p, sensors.data(), memory + bytes_of_sums(grid, depth), grid.device.index, stream.handle),
             "integrate_tsdf");
}

}  // namespace robocache
