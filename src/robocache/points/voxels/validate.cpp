#include "robocache/points/voxels/validate.hpp"

#include <cmath>
#include <limits>

#include "robocache/core/lengths.hpp"

namespace robocache {
namespace {

void check_columns_adjacent(const TensorView& rows, std::string_view argument) {
  const int last = rows.ndim - 1;
  if (rows.shape[last] > 1 && rows.strides[last] != 1 && rows.numel() > 0) {
    refuse(argument, ": expected adjacent columns in a row, got ", std::to_string(rows.strides[last]),
           " elements from one to the next; pass a contiguous copy");
  }
}

void check_offsets(const TensorView& offsets, int64_t rows) {
  if (offsets.dtype != DType::kInt32 && offsets.dtype != DType::kInt64) {
    refuse_type("batch_offsets: expected int32 or int64, got ", dtype_name(offsets.dtype));
  }
  if (offsets.ndim != 1 || offsets.shape[0] < (rows > 0 ? 2 : 1)) {
    refuse("batch_offsets: expected [B + 1], with B >= 1 if there are points, got ", shape_string(offsets));
  }
  check_dense(offsets, "batch_offsets");
  if (offsets.device.is_cuda()) return;  // the kernel clamps the offsets to the rows
  const int64_t last = offsets.shape[0] - 1;
  int64_t previous = 0;
  for (int64_t b = 0; b <= last; ++b) {
    const int64_t offset = integer_at(offsets.data, offsets.dtype, b);
    const int64_t least = b == last ? rows : previous;
    const int64_t most = b == 0 ? 0 : rows;
    if (offset < least || offset > most) {
      refuse("batch_offsets: expected ascending values from 0 to ", std::to_string(rows), ", got ",
             std::to_string(offset), " at ", std::to_string(b));
    }
    previous = offset;
  }
}

double rounded_to(DType points, double x) {
  return points == DType::kFloat32 ? static_cast<double>(static_cast<float>(x)) : x;
}

Features features_of(const TensorView& array, bool is_stacked, int64_t first_column) {
  Features features{};
  const int row_dim = is_stacked ? 1 : 0;
  features.count = array.shape[row_dim + 1] - first_column;
  features.dtype = array.dtype;
  features.data = static_cast<char*>(array.data) + (array.numel() > 0 ? first_column * dtype_size(array.dtype) : 0);
  features.cloud_stride = is_stacked ? array.strides[0] : 0;
  features.row_stride = array.strides[row_dim];
  return features;
}

}  // namespace

PointClouds check_points(const PointArguments& arguments) {
  const TensorView& points = arguments.points;
  if (points.dtype != DType::kFloat32 && points.dtype != DType::kFloat64) {
    refuse_type("points: expected float32 or float64, got ", dtype_name(points.dtype));
  }
  if ((points.ndim != 2 && points.ndim != 3) || points.shape[points.ndim - 1] < 3) {
    refuse("points: expected [N, 3], [B, N, 3] or more columns, got ", shape_string(points));
  }
  check_columns_adjacent(points, "points");
  PointClouds checked{};
  const bool is_stacked = points.ndim == 3;
  const int row_dim = is_stacked ? 1 : 0;
  Clouds& clouds = checked.clouds;
  clouds.points = points.data;
  clouds.dtype = points.dtype;
  clouds.count = is_stacked ? points.shape[0] : 1;
  clouds.rows = points.shape[row_dim];
  clouds.cloud_stride = is_stacked ? points.strides[0] : 0;
  clouds.row_stride = points.strides[row_dim];
  if (clouds.rows > std::numeric_limits<int32_t>::max()) {
    refuse("points: expected at most 2^31 - 1 points a cloud, got ", std::to_string(clouds.rows));
  }

  if (arguments.lengths) {
    const TensorView& lengths = *arguments.lengths;
    if (!is_stacked) refuse("lengths: goes with points [B, N, 3], got ", shape_string(points));
    check_device(lengths, "lengths", points.device, {}, "points");
    check_lengths(lengths, "lengths", clouds.count, clouds.rows);
    check_dense(lengths, "lengths");
    clouds.lengths = lengths.data;
    clouds.lengths_dtype = lengths.dtype;
  }
  if (arguments.batch_offsets) {
    const TensorView& offsets = *arguments.batch_offsets;
    if (is_stacked) refuse("batch_offsets: goes with points [N, 3], got ", shape_string(points));
    check_device(offsets, "batch_offsets", points.device, {}, "points");
    check_offsets(offsets, clouds.rows);
    clouds.offsets = offsets.data;
    clouds.offsets_dtype = offsets.dtype;
    clouds.count = offsets.shape[0] - 1;
  }
  checked.batched = is_stacked || arguments.batch_offsets.has_value();

  if (!arguments.features) {
    checked.features = features_of(points, is_stacked, 3);
    return checked;
  }
  const TensorView& features = *arguments.features;
  if (features.dtype == DType::kUInt64) {
    refuse_type("features: expected floats, bool, integers of 8 to 32 bits or int64, got uint64");
  }
  bool fits = features.ndim == points.ndim;
  for (int d = 0; fits && d <= row_dim; ++d) fits = features.shape[d] == points.shape[d];
  if (!fits) {
    std::string expected = shape_string({points.shape.data(), static_cast<size_t>(row_dim + 1)});
    expected.replace(expected.size() - 1, 1, ", F]");
    refuse("features: expected ", expected, " like points, got ", shape_string(features));
  }
  check_device(features, "features", points.device, {}, "points");
  check_columns_adjacent(features, "features");
  checked.features = features_of(features, is_stacked, 0);
  return checked;
}

void check_apart(const TensorView& out, std::string_view argument, const PointArguments& arguments) {
  if (overlaps(out, arguments.points)) refuse(argument, ": overlaps points");
  if (arguments.features && overlaps(out, *arguments.features)) refuse(argument, ": overlaps features");
  if (arguments.lengths && overlaps(out, *arguments.lengths)) refuse(argument, ": overlaps lengths");
  if (arguments.batch_offsets && overlaps(out, *arguments.batch_offsets)) refuse(argument, ": overlaps batch_offsets");
}

void check_voxel_size(const double (&size)[3], DType points) {
  for (const double edge : size) {
    const double rounded_edge = rounded_to(points, edge);
    if (!(rounded_edge > 0 && std::isfinite(rounded_edge))) {
      refuse("voxel_size: expected positive and finite in ", dtype_name(points), ", got ", number_text(edge));
    }
  }
}

void check_origin(const double (&origin)[3], std::string_view argument, DType points) {
  for (const double coordinate : origin) {
    if (!std::isfinite(rounded_to(points, coordinate))) {
      refuse(argument, ": expected finite in ", dtype_name(points), ", got ", number_text(coordinate));
    }
  }
}

}  // namespace robocache
