#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "robocache/core/arguments.hpp"
#include "robocache/ffi/arguments.hpp"
#include "robocache/ffi/ffi.hpp"
#include "robocache/image/decode_jpeg.hpp"
#include "robocache/image/frames.hpp"

namespace robocache::ffi {
namespace {

// A dense array on the CPU of that type, as a span.
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

// -> Arrays: bytes, offsets, and what they are as the bytes of a JSON object
void set_encoded(EncodedFrames made, Result* result) {
  const nlohmann::json described = {{"codec", codec_name(made.codec)},
                                    {"shape", {made.shape.height, made.shape.width, made.shape.channels}},
                                    {"dtype", dtype_name(made.shape.dtype)},
                                    {"reencoded", made.reencoded}};
  struct Kept {
    EncodedFrames frames;
    std::string described;
  };
  const auto kept = std::make_shared<Kept>(Kept{std::move(made), described.dump()});
  Arrays arrays;
  const auto add = [&](DType dtype, auto& elements) {
    const auto count = static_cast<int64_t>(elements.size());
    arrays.arrays.push_back(OwnedTensor::share(TensorView::contiguous(elements.data(), dtype, {count}), kept));
  };
  add(DType::kUInt8, kept->frames.bytes);
  add(DType::kInt64, kept->frames.offsets);
  add(DType::kUInt8, kept->described);
  result->set_object(std::move(arrays));
}

}  // namespace

// (frames [n, H, W, C], codec, quality, subsampling) -> as set_encoded says
ROBOCACHE_FFI(encode_frames, args, result) {
  const TensorView frames = args.tensor(0, "frames");
  if (frames.ndim != 4) refuse("frames: expected [n, height, width, channels], got ", frames.describe());
  check_device(frames, "frames", Device{});
  check_dense(frames, "frames");
  const FrameShape shape{frames.shape[1], frames.shape[2], frames.shape[3], frames.dtype};
  const EncodeOptions options{static_cast<int>(args.integer(2, "quality")),
                              subsampling_from_name(args.string(3, "subsampling"))};
  set_encoded(encode_frames(codec_from_name(args.string(1, "codec")), frames.data, frames.shape[0], shape, options),
              &result);
}

// (bytes, offsets) -> as set_encoded says
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
  decode_frames(codec_from_name(args.string(0, "codec")), bytes_of(args, 1, "data"), integers_of(args, 2, "offsets"),
                {out.shape[1], out.shape[2], out.shape[3], out.dtype}, rows, out.data);
}

// (blobs, offsets, out) -> an array, or nothing where out is given
ROBOCACHE_FFI(decode_jpeg, args, result) {
  const TensorView blobs = args.tensor(0, "blobs"), offsets = args.tensor(1, "offsets");
  if (!args.is_none(2)) return decode_jpeg(blobs, offsets, args.tensor(2, "out"));
  OwnedTensor made = OwnedTensor::allocate(decode_jpeg_output(blobs, offsets));
  decode_jpeg(blobs, offsets, made.view());
  result.set(std::move(made));
}

}  // namespace robocache::ffi
