// Writes a cache directory, episode by episode. docs/format.md describes the format.
//
//   robocache::Writer writer("cache");
//   writer.begin_episode(R"({"task": "pick the cup", "success": true})");
//   writer.append("joint.position", times, values);  // any number of calls, each stream on its own clock
//   writer.end_episode();
//   writer.close();
//
// Until close(), all files are in PATH.partial, which is locked while the writer lives. close() makes the files durable
// and renames the directory, so PATH always names a complete cache. If the process is killed, PATH stays as it was, and
// the next writer replaces PATH.partial.
//
// commit() does the same, and then the writer appends to the cache.
//
// A writer that appends extends a finished cache in place and locks it while it lives. Programs that have the cache
// open keep the episodes they have; programs that open it after close() get all of them. If the process is killed, the
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

// The treatment of a cache that already exists at the path.
enum class WriteMode : uint8_t {
  kNew,        // refuses it
  kOverwrite,  // close() replaces it, if it exists
  kAppend,     // adds episodes to it; it must exist
};

// Any number of threads may share a writer; their calls wait for each other. A forked child cannot use it.
//
// Unless num_threads() is 1, a second thread writes appended rows, up to 32 MiB behind the caller. If a write fails, a
// later call reports it, and each call tries it again. No row of an ended episode is lost.
class Writer {
 public:
  // Throws FileError if `path` exists (kNew), or exists but is not a cache (kOverwrite); if another writer is using it;
  // if the directory cannot be created; or if there is no cache to append to, or one of version 1, which cannot grow
  // (kAppend).
  explicit Writer(const std::string& path, WriteMode mode = WriteMode::kNew);

  // Calls abort() unless the writer is closed.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Describes a stream beyond its rows. Optional, at any time before close(). `names` is empty or has one non-empty
  // entry per feature. `attributes_json` is an object with anything else that is known, such as units. A stream without
  // any append is left out of the cache. In a cache that is appended to, omitted arguments keep their values, other
  // names or attributes are refused, and a recorded clock stays recorded. Throws ArgumentError.
  void describe_stream(std::string_view stream, Clock clock, std::vector<std::string> names = {},
                       std::string_view attributes_json = "{}");

  // Describes a camera. `unit_m` is the metres per unit of depth. `intrinsics` is the 3x3 matrix of the stored frames,
  // row-major, or empty. `resized_json` is a JSON object that describes how the frames were resized, or "". Once frames
  // are appended, other values are refused. Throws ArgumentError.
  void describe_frames(std::string_view stream, std::optional<double> unit_m, std::vector<double> intrinsics,
                       std::string_view resized_json);

  // Begins an episode. `metadata_json` is an object whose values are str, int64, float, bool, null, or lists of str,
  // int64 or float. A key keeps its type in all episodes, except that any value may be null, and an int among floats
  // becomes a float. Throws ArgumentError.
  void begin_episode(std::string_view metadata_json = "{}");

  // Adds rows to the episode. `times` is int64 [n] in ns and must not decrease within an episode of a stream. `values`
  // is [n, ...] on the CPU, with any strides. The first append of a stream fixes its dtype and shape; n may be 0. The
  // rows are copied; a row takes well under a microsecond. If it throws, no row is added: ArgumentError names the
  // stream, what was expected and what came; ArgumentTypeError if `times` is not int64.
  void append(std::string_view stream, const TensorView& times, const TensorView& values);

  // Adds ragged rows to the episode, with `times` as above. Row i is values[offsets[i]:offsets[i + 1]] of `values`
  // [elements, ...]. `offsets` is int64 [n + 1], from 0 to elements. Both are on the CPU. The elements of text are
  // bytes (uint8), and each row is UTF-8. The first rows fix `ragged` and an element's dtype and shape. Copies and
  // throws like append.
  void append_ragged(std::string_view stream, const TensorView& times, const TensorView& values,
                     const TensorView& offsets, Ragged ragged);

  // Adds frames to the episode, with `times` as above. The stream's first frames fix all arguments from `codec` to
  // `shape`. `dtype` (uint8, uint16 or float32) and `shape` [height, width, channels] describe one decoded frame.
  // `bytes` holds the frames one after another. With kRaw these are n * height * width * channels elements without
  // `offsets`. Otherwise frame i is the file in the bytes [offsets[i], offsets[i + 1]), with offsets [n + 1]. Nothing
  // is decoded: the caller ensures that each is a frame of that codec and shape. kGray means depth if the stream has a
  // unit_m. Copies and throws like append.
  void append_frames(std::string_view stream, const TensorView& times, Codec codec, ColorSpace color_space, DType dtype,
                     std::span<const int64_t> shape, std::span<const uint8_t> bytes, std::span<const int64_t> offsets);

  // Ends the episode. Metadata given here replaces that of begin_episode.
  void end_episode(std::optional<std::string_view> metadata_json = {});

  // Removes all rows of the open episode, and the streams that began in it. The writer stays usable. After a commit()
  // within the episode nothing is removed: the episode ends with all its rows.
  void abort_episode();

  // Computes statistics and findings, makes all files durable and renames PATH.partial to PATH. `provenance_json`
  // defaults to provenance_json(). Throws ArgumentError if an episode is open or `provenance_json` is not a JSON
  // object. Throws FileError if a write fails. The call may then be repeated, unless the files could not be made
  // durable: then only abort() is possible. After a success, another call does nothing.
  void close(std::optional<std::string_view> provenance_json = {});

  // Publishes the cache as close() does, and keeps the writer open: from now on it appends. An open episode is published
  // with its rows so far and stays open; the next commit() or close() publishes the rest. If commit() throws, the episode
  // has ended, and the writer can only be closed or aborted.
  void commit(std::optional<std::string_view> provenance_json = {});

  // Removes PATH.partial, or the rows since the last commit(). Does nothing after close() or abort(), or in a forked child.
  void abort() noexcept;

  // Returns the number of ended episodes, including those of the existing cache when appending.
  int64_t num_episodes() const;

  // Returns the provenance of the existing cache when appending, or "{}" for a new cache.
  const std::string& provenance_json() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace robocache
