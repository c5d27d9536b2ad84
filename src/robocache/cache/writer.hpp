// Writes a cache directory, episode by episode. docs/format.md is the format.
//
//   robocache::Writer writer("cache");
//   writer.begin_episode(R"({"task": "pick the cup", "success": true})");
//   writer.append("joint.position", times, values);  // any number of calls, each stream on its own clock
//   writer.end_episode();
//   writer.close();
//
// Until close() everything lies in PATH.partial, locked while the writer lives; close() makes the files durable and
// renames the directory whole, so whatever PATH names is complete. A writer that is killed leaves PATH as it was, and
// its PATH.partial is replaced by the next writer.
//
// A writer that appends goes on with a finished cache in place, locked while the writer lives. Whoever has it open keeps
// the episodes that there were; close() shows all of them to those who open it from then on. One that is killed leaves
// the cache as it was, and what it had written goes with the next one that appends.
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

// What a writer does about a cache of its name.
enum class WriteMode : uint8_t {
  kNew,        // there must be none
  kOverwrite,  // it is replaced at close(), if there is one
  kAppend,     // it is there, and gets more episodes
};

// Any number of threads may use one; calls wait for each other. A child after fork() cannot.
//
// Unless num_threads() is 1, a thread of its own writes what was appended, up to 32 MiB behind the caller. A write that
// fails is then reported by a later call, and each call tries it again: no row of an episode that ended is lost.
class Writer {
 public:
  // Throws FileError where `path` exists already (unless kNew: where it is not a cache), where another writer that lives
  // is at work on it, or where it cannot be made; with kAppend where there is none, or one that cannot grow (version 1).
  explicit Writer(const std::string& path, WriteMode mode = WriteMode::kNew);

  // abort() unless closed.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Facts of a stream that its rows do not tell; optional, at any time before close(). `names` has one entry a feature,
  // or none; none is empty. `attributes_json` is an object of whatever else is known, such as units. A stream that is
  // described but never appended to is left out of the cache. Of a stream that is in a cache that is appended to, what is
  // not told stays, other names or attributes are refused, and the clock stays recorded. Throws ArgumentError.
  void describe_stream(std::string_view stream, Clock clock, std::vector<std::string> names = {},
                       std::string_view attributes_json = "{}");

  // The same of a camera: `unit_m` metres of one unit of depth, `intrinsics` 3x3 row-major of frames as stored, or none,
  // `resized_json` what was done to the frames' size, a JSON object, or "" for nothing. Throws ArgumentError.
  void describe_frames(std::string_view stream, std::optional<double> unit_m, std::vector<double> intrinsics,
                       std::string_view resized_json);

  // `metadata_json` is an object whose values are str, int64, float, bool, null, or lists of str, int64 or float. A key
  // keeps its type in all episodes, null aside; an int beside floats becomes a float. Throws ArgumentError.
  void begin_episode(std::string_view metadata_json = "{}");

  // Adds rows to the episode: `times` int64 [n] in ns, non-decreasing over all appends of this stream in this episode,
  // `values` [n, ...] on the CPU, any strides. The first append of a stream settles its dtype and shape; n may be 0.
  // Copies; a row costs well under a microsecond. Throws ArgumentError that names the stream, what was expected and
  // what came, and then adds nothing; ArgumentTypeError where `times` is not int64.
  void append(std::string_view stream, const TensorView& times, const TensorView& values);

  // Adds ragged rows to the episode, `times` as above: row i is `values[offsets[i]:offsets[i + 1]]` of `values`
  // [elements, ...], with `offsets` int64 [n + 1] from 0 to elements, both on the CPU. Of text the elements are bytes,
  // uint8, and each row is UTF-8. The first rows settle `ragged`, dtype and shape of an element. Copies, and throws, as
  // append.
  void append_ragged(std::string_view stream, const TensorView& times, const TensorView& values,
                     const TensorView& offsets, Ragged ragged);

  // Adds frames to the episode, `times` as above; the stream's first frames settle all from `codec` to `shape`: dtype and
  // shape [height, width, channels] are those of one decoded frame, uint8, uint16 or float32. `bytes` are the frames one
  // after the other: of kRaw n * height * width * channels elements, and no `offsets`; else a file each, frame i being
  // bytes [offsets[i], offsets[i + 1]) with offsets [n + 1]. Nothing is decoded: that each is a frame of that codec and
  // shape is the caller's to know. kGray is depth where the stream has a unit_m. Copies, and throws, as append.
  void append_frames(std::string_view stream, const TensorView& times, Codec codec, ColorSpace color_space, DType dtype,
                     std::span<const int64_t> shape, std::span<const uint8_t> bytes, std::span<const int64_t> offsets);

  void end_episode();

  // Takes back every row of the episode, and streams that it was the first to hold. The writer stays usable.
  void abort_episode();

  // Computes statistics and findings, makes all files durable and renames PATH.partial to PATH. Throws ArgumentError
  // where an episode is open or `provenance_json` is no JSON object, FileError where a write fails; it may then be tried
  // again, unless the files could not be made durable: then only abort() is left. Once it has succeeded the writer is
  // done, and another call does nothing. Without provenance it is provenance_json().
  void close(std::optional<std::string_view> provenance_json = {});

  // Removes PATH.partial, or what was appended. Does nothing after close() or abort(), or in a forked child.
  void abort() noexcept;

  // Episodes ended so far, with those that a cache had that is appended to.
  int64_t num_episodes() const;

  // What a cache that is appended to tells of its data's origin; of a new one "{}".
  const std::string& provenance_json() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace robocache
