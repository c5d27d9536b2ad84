// Reads a cache on disk: maps its files and describes its streams and episodes. docs/format.md describes the format.
//
//   const auto dataset = robocache::Dataset::open("cache");
//   const robocache::Stream& joints = dataset->stream("joint.position");
//   const auto* values = static_cast<const float*>(joints.values);        // [rows, features], row-major
//   for (int64_t e = 0; e < dataset->num_episodes(); ++e) {
//     for (int64_t row = joints.row_offsets[e]; row < joints.row_offsets[e + 1]; ++row) {
//       use(joints.time_ns[row], values + row * joints.features);
//     }
//   }
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "robocache/cache/file.hpp"
#include "robocache/core/dtype.hpp"
#include "robocache/core/fields.hpp"

namespace robocache {

// The origin of a stream's stamps.
enum class Clock : uint8_t {
  kRecorded,  // read from a clock while recording
  kNominal,   // computed as index / rate: the recording's own clock is lost
};

template <>
inline constexpr std::string_view kNames<Clock>[] = {"recorded", "nominal"};

// The storage of a camera's rows.
enum class Codec : uint8_t {
  kRaw,   // pixels
  kJpeg,  // one JPEG file each
  kPng,   // one PNG file each
};

template <>
inline constexpr std::string_view kNames<Codec>[] = {"raw", "jpeg", "png"};

// The meaning of a frame's channels.
enum class ColorSpace : uint8_t {
  kRgb,    // 3 channels
  kGray,   // 1 channel
  kDepth,  // 1 channel, a distance; 0 and non-finite values mean no measurement
};

template <>
inline constexpr std::string_view kNames<ColorSpace>[] = {"rgb", "gray", "depth"};

// The frame format of a camera's stream, besides dtype and shape.
struct FrameFormat {
  Codec codec = Codec::kRaw;
  ColorSpace color_space = ColorSpace::kRgb;
  std::optional<double> unit_m;    // metres per unit of depth, if known
  std::vector<double> intrinsics;  // of the stored frames: 3x3, row-major, in pixels; empty if unknown
  std::string resized_json;        // how ingest resized the frames: a JSON object, or "" if it did not
};

// The kind of rows with different numbers of elements.
enum class Ragged : uint8_t {
  kArray,  // elements of the stream's dtype and shape, such as a cloud's points
  kText,   // UTF-8; each element is a byte, a uint8 scalar
};

template <>
inline constexpr std::string_view kNames<Ragged>[] = {"array", "text"};

// The writer's findings about a stream. A period is the time between two neighbouring rows of one episode.
struct StreamFindings {
  double period_ns = 0;  // the median period, 0 if no episode has two rows
  double jitter_ns = 0;  // root mean square of (period - period_ns) over all periods that are not gaps
  int64_t min_period_ns = 0;
  int64_t max_period_ns = 0;
  int64_t gaps = 0;            // periods longer than 1.5 * period_ns
  int64_t duplicates = 0;      // periods of 0
  int64_t empty_episodes = 0;  // episodes without a row of this stream
  int64_t nan_values = 0;
  int64_t infinite_values = 0;
  std::vector<int64_t> constant_features;  // indices of features whose finite numbers, if any, are all equal

  static constexpr auto fields() {
    using Self = StreamFindings;
    return std::tuple(Field{"period_ns", &Self::period_ns}, Field{"jitter_ns", &Self::jitter_ns},
                      Field{"min_period_ns", &Self::min_period_ns}, Field{"max_period_ns", &Self::max_period_ns},
                      Field{"gaps", &Self::gaps}, Field{"duplicates", &Self::duplicates},
                      Field{"empty_episodes", &Self::empty_episodes}, Field{"nan_values", &Self::nan_values},
                      Field{"infinite_values", &Self::infinite_values},
                      Field{"constant_features", &Self::constant_features});
  }
};

// Statistics per feature of the finite numbers in all rows; float64 [features] each. If count is 0, the others are NaN.
// std divides by count; quantiles are numpy.quantile's. Files by older writers include infinities:
// cache::stream_statistics() then computes them anew without the infinities.
struct FeatureStats {
  std::span<const double> mean, std, min, max, q01, q10, q50, q90, q99, count;
};

// One stream of an open dataset. It owns no rows: its pointers and spans live as long as the Dataset.
struct Stream {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;  // of one row's value, or of one element of ragged rows; empty for scalars
  int64_t features = 1;        // the product of shape
  int64_t rows = 0;
  // 1e9 / findings.period_ns, rounded to as few decimals as give that period back within 1 ns; 0 if there is no period.
  double rate_hz = 0;
  Clock clock = Clock::kRecorded;
  std::vector<std::string> names;      // one per feature, or empty
  std::string attributes_json = "{}";  // the other attributes that the writer got: a JSON object
  StreamFindings findings;

  // Only for a camera. Its rows are frames: dtype (uint8, uint16 or float32) and shape [height, width, channels]
  // describe one decoded frame.
  std::optional<FrameFormat> frames;

  // Only for ragged rows, which are not frames.
  std::optional<Ragged> ragged;

  bool is_encoded() const { return frames && frames->codec != Codec::kRaw; }

  // Whether rows have different sizes.
  bool has_blob_offsets() const { return is_encoded() || ragged; }

  // Whether rows are numbers of one shape. Only such streams have statistics.
  bool has_statistics() const { return !frames && !ragged; }

  const int64_t* time_ns = nullptr;  // [rows], non-decreasing within an episode; 64-byte aligned

  // [rows, features] of dtype, row-major, 64-byte aligned. For ragged rows [elements, features], row after row. For
  // encoded frames the bytes of their files, one file after another.
  const void* values = nullptr;

  // int64 [rows + 1] if rows have different sizes, else null. Row i is elements (or bytes of an encoded frame)
  // [blob_offsets[i], blob_offsets[i + 1]) of values.
  const int64_t* blob_offsets = nullptr;

  std::span<const int64_t> row_offsets;  // [episodes + 1]: episode e is rows [row_offsets[e], row_offsets[e + 1])
  FeatureStats stats;                    // empty without has_statistics()

  // An episode's number of rows, its first row, and a row's episode.
  int64_t rows_of(int64_t episode) const { return first_row(episode + 1) - first_row(episode); }
  int64_t first_row(int64_t episode) const { return row_offsets[static_cast<size_t>(episode)]; }
  int64_t episode_of(int64_t row) const { return std::ranges::upper_bound(row_offsets, row) - row_offsets.begin() - 1; }

  // A checksum of time_ns and row_offsets, from the manifest; the files are not read. Streams with the same stamps in
  // the same episodes have the same checksum. Others have the same one with a probability of up to 2^-32,
  // since it is made of 32-bit checksums.
  uint64_t clock_checksum = 0;

  // A checksum of the values, likewise from the manifest.
  uint64_t values_checksum = 0;
};

// A file of a stream, opened for pread. If another program cuts the file short, pread fails. Reading the file's mapping
// beyond the cut would end the process (SIGBUS).
struct StreamFile {
  // -1 if the file was replaced or removed since the dataset was opened. Read the mapping then: no program can find the
  // old file to cut it short.
  cache::FileDescriptor file;
  int64_t offset = 0;  // of the first element, in bytes
  // Distinguishes the file's content from that of all other files on this host: device, inode, and a checksum of the
  // file's checksums.
  std::string identity;
};

// Whether two streams of one dataset have the same stamps in the same episodes, as streams of one recorder often do.
// Reads the stamps only if the checksums are equal.
bool same_clock(const Stream& a, const Stream& b);

// Immutable; any number of threads may use one. Keep the shared_ptr while anything it returned is in use.
class Dataset {
 public:
  // Maps the cache directory `path`. It always checks the schema version, the manifest's checksum, every file's size
  // and header against the manifest, the row offsets, and the checksums of all files except times and values. With
  // `verify` it also checks those two, which reads every byte. Throws FileError "PATH: at byte N: expected ..., got
  // ...".
  //
  // If a writer replaces the cache meanwhile, the mapped files are all of the old cache or all of the new one. If
  // another program cuts a mapped file short afterwards, reading its lost part ends the process (SIGBUS).
  static std::shared_ptr<const Dataset> open(const std::string& path, bool verify = false);

  ~Dataset();
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  // Checks the checksum of every block of every file, and that times do not decrease within an episode. Throws
  // FileError. Runs on the threads of parallel_for.
  void verify() const;

  // Checks only the file of the episodes' metadata and the files of these streams (indices).
  void verify(std::span<const int64_t> streams) const;

  // Checks all files except the values of streams without statistics, which a writer that appends does not read again.
  void verify_for_append() const;

  const std::string& path() const;
  int64_t num_episodes() const;

  // Streams are in the order of their first append.
  std::span<const Stream> streams() const;

  // Returns the index of a stream in streams(). Throws ArgumentError that lists the streams.
  int64_t index_of(std::string_view name) const;
  const Stream& stream(std::string_view name) const;
  const Stream& stream(int64_t index) const { return streams()[static_cast<size_t>(index)]; }

  // Opens the file of a stream's values or times. Throws FileError.
  StreamFile open_values(int64_t stream) const;
  StreamFile open_times(int64_t stream) const;

  // Returns the metadata of an episode, one line of JSON: {"episode_index": e, "start_ns": ..., "end_ns": ..., then the
  // writer's}.
  std::string_view episode_json(int64_t episode) const;

  // Returns the metadata of all episodes: the same lines, each with its line end.
  std::string_view episodes_jsonl() const;

  // Returns the name and type of each episode column as a JSON list: [{"name": "task", "type": "string"}, ...].
  const std::string& episode_columns_json() const;

  // Returns the provenance that the writer got: a JSON object.
  const std::string& provenance_json() const;

  // Returns the size of all files together.
  int64_t bytes() const;

 private:
  struct Impl;
  explicit Dataset(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace robocache
