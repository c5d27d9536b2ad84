#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "robocache/core/arguments.hpp"
#include "robocache/core/device.hpp"
#include "robocache/ffi/arguments.hpp"
#include "robocache/ffi/ffi.hpp"
#include "robocache/image/decode_jpeg.hpp"
#include "robocache/image/frames.hpp"
#include "robocache/image/image_batch.hpp"
#include "robocache/image/options.hpp"
#include "robocache/image/resident_jpegs.hpp"

namespace robocache::ffi {
namespace {

struct ResidentJpegsHandle {
  static constexpr const char* kTypeKey = "robocache.ResidentJpegs";
  ResidentJpegs frames;
};

// Returns a dense CPU array of this type as a span.
template <class T>
std::span<const T> span_of(const TensorView& tensor, DType dtype, const char* name) {
  if (tensor.dtype != dtype) {
    refuse_type(name, ": expected ", dtype_name(dtype), ", got ", dtype_name(tensor.dtype));
  }
  check_device(tensor, name, Device{});
  check_dense(tensor, name);
  return {static_cast<const T*>(tensor.data), static_cast<size_t>(tensor.numel())};
}

std::span<const uint8_t> bytes_of(const Args& args, int i, const char* name) {
  return span_of<uint8_t>(args.tensor(i, name), DType::kUInt8, name);
}

std::span<const int64_t> integers_of(const Args& args, int i, const char* name) {
  return span_of<int64_t>(args.tensor(i, name), DType::kInt64, name);
}

// Sets the result to Arrays: bytes, offsets, and their description as the bytes of a JSON object.
void set_encoded(EncodedFrames encoded, Result* result) {
  const nlohmann::json description = {{"codec", name_of(encoded.codec)},
                                      {"shape", {encoded.shape.height, encoded.shape.width, encoded.shape.channels}},
                                      {"dtype", dtype_name(encoded.shape.dtype)},
                                      {"reencoded", encoded.reencoded}};
  struct Kept {
    EncodedFrames frames;
    std::string description;
  };
  const auto kept = std::make_shared<Kept>(Kept{std::move(encoded), description.dump()});
  Arrays arrays;
  const auto add = [&](DType dtype, auto& elements) {
    const auto count = static_cast<int64_t>(elements.size());
    arrays.arrays.push_back(OwnedTensor::share(TensorView::contiguous(elements.data(), dtype, {count}), kept));
  };
  add(DType::kUInt8, kept->frames.bytes);
  add(DType::kInt64, kept->frames.offsets);
  add(DType::kUInt8, kept->description);
  result->set_object(std::move(arrays));
}

}  // namespace

// (frames [n, H, W, C], codec, quality, subsampling) -> the Arrays of set_encoded
ROBOCACHE_FFI(encode_frames, args, result) {
  const TensorView frames = args.tensor(0, "frames");
  if (frames.ndim != 4) refuse("frames: expected [n, height, width, channels], got ", frames.describe());
  check_device(frames, "frames", Device{});
  check_dense(frames, "frames");
  const FrameShape shape{frames.shape[1], frames.shape[2], frames.shape[3], frames.dtype};
  const EncodeOptions options{args.integer(2, "quality"),
                              value_of<Subsampling>(args.string(3, "subsampling"), "subsampling")};
  set_encoded(
      encode_frames(value_of<Codec>(args.string(1, "codec"), "codec"), frames.data, frames.shape[0], shape, options),
      &result);
}

// (bytes, offsets) -> the Arrays of set_encoded
ROBOCACHE_FFI(take_frames, args, result) {
  set_encoded(take_frames(bytes_of(args, 0, "frames"), integers_of(args, 1, "offsets")), &result);
}

// (codec, bytes, offsets, rows, out [rows, H, W, C])
ROBOCACHE_FFI(decode_frames, args, result) {
  const auto rows = integers_of(args, 3, "rows");
  const TensorView out = args.tensor(4, "out");
  if (out.ndim != 4 || out.shape[0] != static_cast<int64_t>(rows.size()) || !out.is_contiguous()) {
    refuse("out: expected [rows, height, width, channels], dense, got ", out.describe());
  }
  decode_frames(value_of<Codec>(args.string(0, "codec"), "codec"), bytes_of(args, 1, "data"),
                integers_of(args, 2, "offsets"), {out.shape[1], out.shape[2], out.shape[3], out.dtype}, rows, out.data);
}

// (blobs, offsets, out) -> an array, or nothing if out is given
ROBOCACHE_FFI(decode_jpeg, args, result) {
  const TensorView blobs = args.tensor(0, "blobs"), offsets = args.tensor(1, "offsets");
  const CudaStream stream = current_stream(blobs.device);
  if (!args.is_none(2)) return decode_jpeg(blobs, offsets, args.tensor(2, "out"), stream);
  OwnedTensor decoded = OwnedTensor::allocate(decode_jpeg_output(blobs, offsets, stream));
  decode_jpeg(blobs, offsets, decoded.view(), stream);
  result.set(std::move(decoded));
}

// (blobs, offsets, device, tier) -> the frames
ROBOCACHE_FFI(resident_jpegs, args, result) {
  const auto bytes = bytes_of(args, 0, "blobs");
  const auto offsets = integers_of(args, 1, "offsets");
  if (offsets.size() < 2) refuse("offsets: expected [N + 1] of at least one frame, got ", args.description(1));
  const Device device = device_from_name(args.string(2, "device"));
  const auto tier = value_of<Tier>(args.string(3, "tier"), "tier");
  if (!device.is_cuda()) refuse("device: expected a CUDA device, got ", device_name(device));
  if (tier == Tier::kDecoded || tier == Tier::kMapped) refuse("tier: expected device or pinned, got ", name_of(tier));
  std::vector<int64_t> rows(offsets.size() - 1);
  std::iota(rows.begin(), rows.end(), 0);
  const auto name = [](int64_t i) { return "frames[" + std::to_string(i) + "]"; };
  result.set_object(ResidentJpegsHandle{ResidentJpegs(prepare_jpeg_frames(bytes, offsets, rows, name), device, tier)});
}

// (frames, index) -> number 0 to 3 of: frames, height, width, channels
ROBOCACHE_FFI(resident_jpegs_size, args, result) {
  const ResidentJpegs& frames = args.object<ResidentJpegsHandle>(0, "frames").frames;
  const int64_t size[] = {frames.frame_count(), frames.height(), frames.width(), frames.channels()};
  result.set(size[args.integer(1, "index")]);
}

// (frames, rows, out, status)
ROBOCACHE_FFI(decode_resident_jpegs, args, result) {
  const ResidentJpegs& frames = args.object<ResidentJpegsHandle>(0, "frames").frames;
  const TensorView rows = args.tensor(1, "rows"), out = args.tensor(2, "out"), status = args.tensor(3, "status");
  if (rows.ndim != 1) refuse("rows: expected [n], got ", rows.describe());
  const Device device = frames.device();
  const int64_t count = rows.shape[0];
  const auto check = [&](const TensorView& tensor, const char* argument, DType dtype,
                         std::initializer_list<int64_t> shape) {
    check_expected(tensor, argument, TensorView::contiguous(nullptr, dtype, shape, device), {}, "frames");
    check_dense(tensor, argument);
  };
  check(rows, "rows", DType::kInt64, {count});
  check(out, "out", DType::kUInt8, {count, frames.height(), frames.width(), frames.channels()});
  check(status, "status", DType::kInt32, {count});
  if (overlaps(out, rows) || overlaps(out, status) || overlaps(status, rows)) {
    refuse("out: expected memory of its own, got some of another argument");
  }
  const Workspace workspace(frames.workspace_bytes(count), device);
  frames.decode(static_cast<const int64_t*>(rows.data), count, static_cast<uint8_t*>(out.data),
                static_cast<int32_t*>(status.data), workspace.data(), current_stream(device));
}

// (options as JSON)
ROBOCACHE_FFI(check_image_options, args, result) { image_options_from_json(args.string(0, "options")); }

// (frames, rows or None, options as JSON, seed, epoch, sample, unit_m or None, out or None) -> the batch, if out is None
ROBOCACHE_FFI(image_batch, args, result) {
  const TensorView frames = args.tensor(0, "frames");
  const ImageBatch batch(frames, optional_tensor(args, 1, "rows"), image_options_from_json(args.string(2, "options")),
                         optional_real(args, 6, "unit_m"));
  const ImageDraw draw{.seed = static_cast<uint64_t>(args.integer(3, "seed")),
                       .epoch = static_cast<uint64_t>(args.integer(4, "epoch")),
                       .sample = args.integer(5, "sample")};
  const Workspace workspace(batch.workspace_bytes(), frames.device);
  if (const auto out = optional_tensor(args, 7, "out")) {
    batch.run(draw, *out, workspace.data(), current_stream(frames.device));
  } else {
    OwnedTensor transformed = OwnedTensor::allocate(batch.output());
    batch.run(draw, transformed.view(), workspace.data(), current_stream(frames.device));
    result.set(std::move(transformed));
  }
}

}  // namespace robocache::ffi
