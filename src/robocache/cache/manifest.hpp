// manifest.json and episodes.jsonl: what a cache says of itself. docs/format.md describes them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "robocache/cache/block_writer.hpp"
#include "robocache/cache/dataset.hpp"

namespace robocache::cache {

inline constexpr int64_t kSchemaVersion = 3;  // the one that is written; the ones before it are read
inline constexpr int64_t kFirstGrowingVersion = 2;

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kNewManifestFile = "manifest.json.new";  // before it is renamed over the one that is there
inline constexpr const char* kEpisodesFile = "episodes.jsonl";
inline constexpr const char* kStreamsDirectory = "streams";

// The files of a stream's directory.
inline constexpr const char* kTimeFile = "time_ns.npy";
inline constexpr const char* kValuesFile = "values.npy";
inline constexpr const char* kBlobOffsetsFile = "blob_offsets.npy";  // where rows have sizes of their own
inline constexpr const char* kRowOffsetsFile = "row_offsets.npy";
inline constexpr const char* kStatsFile = "stats.npy";  // of numbers of one shape

// What a file is called that each generation of a cache has its own of: "stats.npy", in the third "stats.2.npy".
std::string of_generation(std::string_view file, int64_t generation);

// "joint.position" -> "streams/joint.position": each byte outside [A-Za-z0-9._-], and a leading dot, as %XX.
std::string stream_directory(std::string_view name);

struct EpisodeColumn {
  std::string name;
  std::string type;  // "bool", "int64", "float64", "string", "null" or "list<TYPE>" of a type but bool

  bool operator==(const EpisodeColumn&) const = default;
};

// A Stream but its pointers, which lie in the files.
struct Manifest {
  int64_t version = kSchemaVersion;
  int64_t generation = 0;  // how often episodes were appended to a finished cache
  int64_t episodes = 0;
  std::vector<EpisodeColumn> episode_columns;
  std::vector<Stream> streams;
  std::map<std::string, FileRecord> files;  // by path relative to the cache
  std::string provenance_json;
};

// The text of manifest.json, which ends with a checksum of what is before it.
std::string manifest_text(const Manifest& manifest);

// Checks version, checksum and form, that no number is negative, that the columns have types and names of their own,
// that frames and ragged rows can be what is said of them, that there is a record of every file and a checksum of each of its blocks.
// Throws FileError that begins with `path`.
Manifest parse_manifest(const std::string& path, std::string_view text);

std::string episode_columns_text(const std::vector<EpisodeColumn>& columns);
std::string findings_text(const StreamFindings& findings);

// The columns that every episode has: episode_index, start_ns, end_ns.
std::vector<EpisodeColumn> automatic_columns();

struct EpisodeMetadata {
  std::string json;                    // an object on one line
  std::vector<EpisodeColumn> columns;  // the known ones and this episode's, their types settled
};

// Throws ArgumentError where the metadata is no object of the allowed values, or a column changes its type.
EpisodeMetadata check_metadata(std::string_view metadata_json, const std::vector<EpisodeColumn>& known);

// A line of episodes.jsonl, its line end included. `span_ns`: the earliest and the latest stamp, if there is any.
std::string episode_line(int64_t episode, std::optional<std::pair<int64_t, int64_t>> span_ns,
                         const std::string& metadata_json);

// The same object in one form. Throws ArgumentError that begins with `argument` unless it is a JSON object.
std::string check_object(std::string_view argument, std::string_view json);

// What no decoded frame can be, "" where it can: `dtype` and `shape` of one against what stores it.
std::string frame_mistake(const FrameFormat& frames, DType dtype, std::span<const int64_t> shape);

// What no ragged row's elements can be, "" where they can.
std::string ragged_mistake(Ragged ragged, DType dtype, std::span<const int64_t> shape);

// Why `text` is no UTF-8, "" where it is.
std::string utf8_mistake(std::string_view text);

// Throws ArgumentError unless `text` is UTF-8 and not empty.
void check_name(std::string_view argument, std::string_view text);

}  // namespace robocache::cache
