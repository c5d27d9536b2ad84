// Writes a cache directory, episode by episode. docs/format.md describes the format.
//
//   robocache::Writer writer("cache");
//   writer.begin_episode(R"({"task": "pick the cup", "success": true})");
//   writer.append("joint.position", times, values);  // any number of calls, each stream on its own clock
//   writer.end_episode();
//   writer.close();
//
// Until close() all files lie in PATH.partial, which is locked while the writer lives. close() makes the files durable
// and renames the directory, so PATH always names a complete cache. If the process is killed, PATH stays as it was, and
// the next writer replaces PATH.partial.
//
// A writer that appends extends a finished cache in place and locks it while it lives. A program that has the cache
// open keeps the episodes it has; a program that opens it after close() gets all of them. If the process is killed, the
// cache stays as it was, and the next writer that appends removes the leftovers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache {

// How a writer treats a cache that exists at its path.
enum class WriteMode : uint8_t {
  kNew,        // there must be none
  kOverwrite,  // close() replaces it, if there is one
  kAppend,     // it must exist, and gets more episodes
};

// Any number of threads may share a writer: their calls wait for each other. A child after fork() cannot use it.
//
// Unless num_threads() is 1, a second thread writes what was appended, up to 32 MiB behind the caller. A later call
// reports a write that failed, and each call tries it again: no row of an episode that ended is lost.
class Writer {
 public:
  // Throws FileError if something exists at `path` (kNew), or something that is no cache (kOverwrite); if another
  // writer is at work on it; if the directory cannot be created; or if there is no cache to append to, or one of
  // version 1, which cannot grow (kAppend).
  explicit Writer(const std::string& path, WriteMode mode = WriteMode::kNew);

  // Calls abort() unless the writer is closed.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Describes a stream beyond its rows. Optional, at any time before close(). `names` is empty or has one entry a
  // feature, none of them empty. `attributes_json` is an object with anything else that is known, such as units. A
  // stream without any append is left out of the cache. For a stream of a cache that is appended to, what is not given
  // stays as it is, other names or attributes are refused, and a recorded clock stays recorded. Throws ArgumentError.
  void describe_stream(std::string_view stream, Clock clock, std::vector<std::string> names = {},
                       std::string_view attributes_json = "{}");

  // Describes a camera. `unit_m` is the metres of one unit of depth; `intrinsics` is the 3x3 matrix of the stored
  // frames, row-major, or empty; `resized_json` is a JSON object that says how the frames were resized, or "". Throws
  // ArgumentError.
  void describe_frames(std::string_view stream, std::optional<double> unit_m, std::vector<double> intrinsics,
                       std::string_view resized_json);

  // `metadata_json` is an object whose values are str, int64, float, bool, null, or lists of str, int64 or float. A key
  // keeps its type in all episodes, except that any value may be null, and an int among floats becomes a float. Throws
  // ArgumentError.
  void begin_episode(std::string_view metadata_json = "{}");

  // Adds rows to the episode. `times` is int64 [n] in ns and must not decrease within a stream's episode; `values` is
  // [n, ...] on the CPU, with any strides. The first append of a stream fixes its dtype and shape; n may be 0. Copies
  // the rows; a row costs well under a microsecond. If it throws, it has added nothing: ArgumentError names the stream,
  // what was expected and what came; ArgumentTypeError if `times` is not int64.
  void append(std::string_view stream, const TensorView& times, const TensorView& values);

  // Adds ragged rows to the episode, with `times` as above. Row i is `values[offsets[i]:offsets[i + 1]]` of `values`
  // [elements, ...]; `offsets` is int64 [n + 1], from 0 to elements; both are on the CPU. The elements of text are
  // bytes (uint8), and each row is UTF-8. The first rows fix `ragged` and an element's dtype and shape. Copies, and
  // throws, as append.
  void append_ragged(std::string_view stream, const TensorView& times, const TensorView& values,
                     const TensorView& offsets, Ragged ragged);

  // Adds frames to the episode, with `times` as above. The stream's first frames fix all arguments from `codec` to
  // `shape`; `dtype` (uint8, uint16 or float32) and `shape` [height, width, channels] describe one decoded frame.
  // `bytes` holds the frames one after the other. With kRaw these are n * height * width * channels elements without
  // `offsets`; otherwise frame i is the file bytes [offsets[i], offsets[i + 1]), with offsets [n + 1]. Nothing is
  // decoded: the caller knows that each is a frame of that codec and shape. kGray is depth if the stream has a unit_m.
  // Copies, and throws, as append.
  void append_frames(std::string_view stream, const TensorView& times, Codec codec, ColorSpace color_space, DType dtype,
                     std::span<const int64_t> shape, std::span<const uint8_t> bytes, std::span<const int64_t> offsets);

  void end_episode();

  // Removes all rows of the episode, and the streams that it began. The writer stays usable.
  void abort_episode();

  // Computes statistics and findings, makes all files durable and renames PATH.partial to PATH. Without
  // `provenance_json` it takes provenance_json(). Throws ArgumentError if an episode is open or `provenance_json` is no
  // JSON object. Throws FileError if a write fails; the call may then be repeated, unless the files could not be made
  // durable: then only abort() is left. After a success another call does nothing.
  void close(std::optional<std::string_view> provenance_json = {});

  // Removes PATH.partial, or what was appended. Does nothing after close() or abort(), or in a forked child.
  void abort() noexcept;

  // The number of ended episodes, including those of a cache that is appended to.
  int64_t num_episodes() const;

  // The provenance of the cache that is appended to; "{}" for a new cache.
  const std::string& provenance_json() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace robocache
