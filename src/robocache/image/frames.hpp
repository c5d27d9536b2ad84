// Converts many frames between their files and their pixels, on all threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "robocache/image/codec.hpp"

namespace robocache {

// Frames in the form that Writer::append_frames needs.
struct EncodedFrames {
  Codec codec = Codec::kRaw;
  FrameShape shape;
  std::vector<uint8_t> bytes;                // the files, one after another
  std::vector<int64_t> offsets;              // [frames + 1]: frame i is bytes [offsets[i], offsets[i + 1])
  std::map<std::string, int64_t> reencoded;  // from take_frames: each reason for encoding JPEGs again, and its number
                                             // of files
};

// Encodes `count` frames of one shape, contiguous in `pixels`, as JPEG or PNG. Throws ArgumentError as encode_frame
// does.
EncodedFrames encode_frames(Codec codec, const void* pixels, int64_t count, const FrameShape& shape,
                            const EncodeOptions& options = {});

// Returns the bytes of file `row`. Throws ArgumentError if its offsets do not fit `bytes`.
std::span<const uint8_t> blob_at(std::span<const uint8_t> bytes, std::span<const int64_t> offsets, int64_t row);

// Calls body(i) for each of `count` frames, which take `frame_bytes` each when decoded. It uses all threads, or fewer
// if the frames of all threads would fill the memory. If bodies throw FrameError, it throws the error of the first such
// frame, prefixed with "frames[7]" or with `name(i)`.
void for_each_frame(int64_t count, const std::function<void(int64_t i)>& body,
                    const std::function<std::string(int64_t i)>& name = nullptr, int64_t frame_bytes = 0);

// Checks and converts files from outside: at least one (`offsets` is [frames + 1]), all JPEG or all PNG, all of one
// shape. Reads each file completely and passes JPEGs through segment_jpeg. Throws FrameError that names the first bad
// frame: "frames[7]: ...".
EncodedFrames take_frames(std::span<const uint8_t> bytes, std::span<const int64_t> offsets);

// Decodes frame rows[i] to out[i]; each output takes shape.bytes(). For kRaw `offsets` is empty, and each frame in
// `bytes` takes shape.bytes() too. Throws ArgumentError for a row that does not exist or offsets that do not fit
// `bytes`, and FrameError that names the row of a bad frame: "row 7: ...".
void decode_frames(Codec codec, std::span<const uint8_t> bytes, std::span<const int64_t> offsets,
                   const FrameShape& shape, std::span<const int64_t> rows, void* out);

}  // namespace robocache
