// Checks rows against the description of their stream, and against the stream's earlier rows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/cache/stream_files.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache::cache {

// A stream's description, as the caller gave it to the writer.
struct Description {
  Clock clock = Clock::kRecorded;
  std::vector<std::string> names;
  std::string attributes_json = "{}";
  std::optional<FrameFormat> frames;  // without codec and colour space

  // Returns the description of the frames, with the codec and colour space of the rows.
  FrameFormat with_codec_of(const FrameFormat& rows) const;
};

// Throws ArgumentError "stream 'NAME': WHAT". So do the functions below; they throw ArgumentTypeError if times or
// offsets are not int64.
template <class... Parts>
[[noreturn]] void refuse_stream(std::string_view stream, const Parts&... parts) {
  throw ArgumentError("stream '", stream, "': ", parts...);
}

// Checks rows against the description of their stream.
void check_description(std::string_view stream, const Description& description, const NewRows& rows);

// Checks rows of numbers.
void check_tensors(std::string_view stream, const TensorView& times, const TensorView& values);

// Checks ragged rows and returns their offsets, contiguous. The bytes of text must be contiguous and each row must be
// UTF-8.
std::vector<int64_t> check_ragged(std::string_view stream, const TensorView& times, const TensorView& values,
                                  const TensorView& offsets, Ragged ragged);

// Checks frames: their format, the size of raw ones, and the offsets of encoded ones in `bytes`.
void check_frames(std::string_view stream, const TensorView& times, const NewRows& rows, std::span<const uint8_t> bytes,
                  std::span<const int64_t> offsets);

// Checks rows against the stream's earlier rows.
void check_same_rows(const StreamFiles& stream, const Description& description, const NewRows& rows);

// Checks that times do not decrease. The episode already has `rows` rows; the last one has the stamp `last_ns`.
void check_times(std::string_view stream, const TensorView& times, int64_t rows, int64_t last_ns);

}  // namespace robocache::cache
