#include "robocache/cache/check_rows.hpp"

#include <algorithm>
#include <cstddef>

#include "robocache/cache/manifest.hpp"
#include "robocache/core/error.hpp"

namespace robocache::cache {
namespace {

std::string kind_text(const std::optional<FrameFormat>& frames, const std::optional<Ragged>& ragged) {
  if (ragged) return *ragged == Ragged::kText ? "text" : "ragged rows";
  if (!frames) return "numbers";
  return std::string(name_of(frames->codec)) + " frames of " + std::string(name_of(frames->color_space));
}

// Returns text like "[n, 3]".
std::string rows_shape(const std::string& count, std::span<const int64_t> shape) {
  const std::string row = shape_string(shape);
  return "[" + count + (shape.empty() ? "]" : ", " + row.substr(1));
}

void check_time_dtype(std::string_view stream, const TensorView& times) {
  if (times.dtype != DType::kInt64) {
    throw ArgumentTypeError("stream '", stream, "': expected times in int64 nanoseconds, got ",
                            dtype_name(times.dtype));
  }
}

void check_text(std::string_view stream, const TensorView& bytes, std::span<const int64_t> offsets) {
  if (!bytes.is_contiguous()) refuse_stream(stream, "expected the bytes of text in one piece, got ", bytes.describe());
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::string_view text(static_cast<const char*>(bytes.data) + offsets[i],
                                static_cast<size_t>(offsets[i + 1] - offsets[i]));
    const std::string mistake = utf8_mistake(text);
    if (!mistake.empty()) refuse_stream(stream, "expected UTF-8 in row ", i, ", got ", mistake);
  }
}

}  // namespace

FrameFormat Description::with_codec_of(const FrameFormat& rows) const {
  FrameFormat description = frames.value_or(FrameFormat{});
  description.codec = rows.codec;
  const bool is_depth = rows.color_space == ColorSpace::kGray && description.unit_m;
  description.color_space = is_depth ? ColorSpace::kDepth : rows.color_space;
  return description;
}

void check_description(std::string_view stream, const Description& description, const NewRows& rows) {
  int64_t features = 1;
  for (const int64_t extent : rows.shape) features *= extent;
  const auto names = static_cast<int64_t>(description.names.size());
  if (names != 0 && names != features) {
    refuse_stream(stream, "expected ", features, " names, one per feature, got ", names);
  }
  if (description.frames && !rows.frames) {
    refuse_stream(stream, "expected frames, as it was described, got ", kind_text(rows.frames, rows.ragged));
  }
  if (!rows.frames) return;
  const std::string mistake = frame_mistake(description.with_codec_of(*rows.frames), rows.dtype, rows.shape);
  if (!mistake.empty()) refuse_stream(stream, mistake);
}

void check_tensors(std::string_view stream, const TensorView& times, const TensorView& values) {
  check_time_dtype(stream, times);
  if (times.device.is_cuda() || values.device.is_cuda()) {
    refuse_stream(stream, "expected times and values on the CPU, got ", times.describe(), " and ", values.describe());
  }
  if (times.ndim != 1 || values.ndim < 1 || values.shape[0] != times.shape[0]) {
    refuse_stream(stream, "expected times [n] and values [n, ...], got ", shape_string(times), " and ",
                  shape_string(values));
  }
}

std::vector<int64_t> check_ragged(std::string_view stream, const TensorView& times, const TensorView& values,
                                  const TensorView& offsets, Ragged ragged) {
  check_time_dtype(stream, times);
  if (offsets.dtype != DType::kInt64) {
    throw ArgumentTypeError("stream '", stream, "': expected offsets in int64, got ", dtype_name(offsets.dtype));
  }
  if (times.device.is_cuda() || values.device.is_cuda() || offsets.device.is_cuda()) {
    refuse_stream(stream, "expected times, values and offsets on the CPU, got ", times.describe(), ", ",
                  values.describe(), " and ", offsets.describe());
  }
  if (times.ndim != 1 || values.ndim < 1 || offsets.ndim != 1 || offsets.shape[0] != times.shape[0] + 1) {
    refuse_stream(stream, "expected times [n], values [elements, ...] and offsets [n + 1], got ", shape_string(times),
                  ", ", shape_string(values), " and ", shape_string(offsets));
  }
  std::vector<int64_t> checked(static_cast<size_t>(offsets.shape[0]));
  const auto* offset = static_cast<const int64_t*>(offsets.data);
  int64_t previous = 0;
  for (size_t i = 0; i < checked.size(); ++i) {
    checked[i] = offset[static_cast<int64_t>(i) * offsets.strides[0]];
    const bool is_last = i + 1 == checked.size();
    const int64_t least = is_last ? values.shape[0] : previous;
    const int64_t most = i == 0 ? 0 : values.shape[0];
    if (checked[i] < least || checked[i] > most) {
      refuse_stream(stream, "expected offsets from 0 to ", values.shape[0],
                    ", the elements of all rows, none below the previous one; got offsets[", i, "] ", checked[i]);
    }
    previous = checked[i];
  }
  const std::span<const int64_t> element{values.shape.data() + 1, static_cast<size_t>(values.ndim - 1)};
  const std::string mistake = ragged_mistake(ragged, values.dtype, element);
  if (!mistake.empty()) refuse_stream(stream, mistake);
  if (ragged == Ragged::kText) check_text(stream, values, checked);
  return checked;
}

void check_frames(std::string_view stream, const TensorView& times, const NewRows& rows, std::span<const uint8_t> bytes,
                  std::span<const int64_t> offsets) {
  check_time_dtype(stream, times);
  if (times.device.is_cuda() || times.ndim != 1) {
    refuse_stream(stream, "expected times [n] on the CPU, got ", times.describe());
  }
  const std::string mistake = frame_mistake(*rows.frames, rows.dtype, rows.shape);
  if (!mistake.empty()) refuse_stream(stream, mistake);
  const std::string count = std::to_string(rows.count) + " " + kind_text(rows.frames, {});
  const auto size = static_cast<int64_t>(bytes.size());
  if (rows.frames->codec == Codec::kRaw) {
    int64_t row_bytes = dtype_size(rows.dtype);
    for (const int64_t extent : rows.shape) row_bytes *= extent;
    if (size % row_bytes == 0 && size / row_bytes == rows.count && offsets.empty()) return;
    refuse_stream(stream, "expected ", count, " of ", row_bytes, " bytes each, and no offsets, got ", size,
                  " bytes and ", offsets.size(), " offsets");
  }
  if (std::ssize(offsets) != rows.count + 1 || offsets.front() != 0 || offsets.back() != size ||
      !std::ranges::is_sorted(offsets)) {
    refuse_stream(
        stream, "expected one offset more than the ", count, ", from 0 to ", size,
        ", the bytes of all, none below the previous one; got ", offsets.size(),
        (offsets.empty() ? "" : ", from " + std::to_string(offsets.front()) + " to " + std::to_string(offsets.back())));
  }
}

void check_same_rows(const StreamFiles& stream, const Description& description, const NewRows& rows) {
  const auto refuse_rows = [&](const std::string& expected, const std::string& got) {
    refuse_stream(stream.name, "expected ", expected, " as in its first rows, got ", got,
                  "; write rows of another kind to another stream, or to another cache in a list of Sources");
  };
  const auto kind = [&](const std::optional<FrameFormat>& frames, const std::optional<Ragged>& ragged) {
    return kind_text(frames ? description.with_codec_of(*frames) : frames, ragged);
  };
  const std::string expected_kind = kind(stream.frames, stream.ragged);
  const std::string got = kind(rows.frames, rows.ragged);
  if (got != expected_kind) refuse_rows(expected_kind, got);
  if (rows.dtype != stream.dtype) {
    refuse_rows("values of " + std::string(dtype_name(stream.dtype)), std::string(dtype_name(rows.dtype)));
  }
  if (!std::ranges::equal(rows.shape, stream.shape)) {
    refuse_rows("values of shape " + rows_shape("n", stream.shape), rows_shape(std::to_string(rows.count), rows.shape));
  }
}

void check_times(std::string_view stream, const TensorView& times, int64_t rows, int64_t last_ns) {
  const auto* time = static_cast<const int64_t*>(times.data);
  for (int64_t i = 0; i < times.shape[0]; ++i) {
    const int64_t now_ns = time[i * times.strides[0]];
    if (rows + i > 0 && now_ns < last_ns) {
      refuse_stream(stream, "expected times that do not decrease within an episode, got ", now_ns, " ns in row ",
                    rows + i, " after ", last_ns, " ns");
    }
    last_ns = now_ns;
  }
}

}  // namespace robocache::cache
