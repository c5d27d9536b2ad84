// What rows of a stream may be, against what was said of it and what it holds.
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

// What a writer was told of a stream.
struct Description {
  Clock clock = Clock::kRecorded;
  std::vector<std::string> names;
  std::string attributes_json = "{}";
  std::optional<FrameFormat> frames;  // all but its codec and colour space

  // What it says of frames, with the codec and colour space that rows have.
  FrameFormat of(const FrameFormat& rows) const;
};

// Throws ArgumentError "stream 'NAME': WHAT". So do all below, ArgumentTypeError where times or offsets are not int64.
[[noreturn]] void refuse_stream(std::string_view stream, const std::string& what);

// Rows against what was said of their stream.
void check_description(std::string_view stream, const Description& described, const NewRows& rows);

// Numbers.
void check_tensors(std::string_view stream, const TensorView& times, const TensorView& values);

// Ragged rows; returns their offsets in one piece. Of text the bytes are one piece and each row is UTF-8.
std::vector<int64_t> check_ragged(std::string_view stream, const TensorView& times, const TensorView& values,
                                  const TensorView& offsets, Ragged ragged);

void check_frames(std::string_view stream, const TensorView& times, const NewRows& rows, std::span<const uint8_t> bytes,
                  std::span<const int64_t> offsets);

// Rows against those that the stream has.
void check_same_rows(const StreamFiles& stream, const Description& described, const NewRows& rows);

// That times do not decrease; `rows` of this episode came before, the last one at `last_ns`.
void check_times(std::string_view stream, const TensorView& times, int64_t rows, int64_t last_ns);

}  // namespace robocache::cache
