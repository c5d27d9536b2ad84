// manifest.json and episodes.jsonl, which describe a cache. docs/format.md defines them.
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

inline constexpr int64_t kSchemaVersion = 3;           // the version that is written; older versions can be read
inline constexpr int64_t kFirstAppendableVersion = 2;  // an append refuses caches of older versions

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kNewManifestFile = "manifest.json.new";  // before it is renamed to kManifestFile
inline constexpr const char* kEpisodesFile = "episodes.jsonl";
inline constexpr const char* kStreamsDirectory = "streams";

// The files in a stream's directory.
inline constexpr const char* kTimeFile = "time_ns.npy";
inline constexpr const char* kValuesFile = "values.npy";
inline constexpr const char* kBlobOffsetsFile = "blob_offsets.npy";  // if rows have different sizes
inline constexpr const char* kRowOffsetsFile = "row_offsets.npy";
inline constexpr const char* kStatsFile = "stats.npy";  // if rows are numbers of one shape

// Returns the name of a file in a generation of the cache: "stats.npy" in generation 0, "stats.2.npy" in generation 2.
std::string file_in_generation(std::string_view file, int64_t generation);

// Maps "joint.position" to "streams/joint.position". A leading dot, and each byte outside [A-Za-z0-9._-], becomes %XX.
std::string stream_directory(std::string_view name);

struct EpisodeColumn {
  std::string name;
  std::string type;  // "bool", "int64", "float64", "string", "null" or "list<TYPE>" with any type except bool
  std::optional<int64_t> inexact = {};  // a whole number of the column that float64 does not hold; not in the manifest

  bool operator==(const EpisodeColumn&) const = default;
};

// The streams' pointers are null: they point into mapped files, and a manifest maps none.
struct Manifest {
  int64_t version = kSchemaVersion;
  int64_t generation = 0;  // number of appends to the finished cache
  int64_t episodes = 0;
  std::vector<EpisodeColumn> episode_columns;
  std::vector<Stream> streams;
  std::map<std::string, FileRecord> files;  // by path relative to the cache
  std::string provenance_json;
};

// Returns the text of manifest.json, which ends with a checksum of the text before it.
std::string manifest_text(const Manifest& manifest);

// Checks the version, the checksum and the form. Also checks that no number is negative, that columns have distinct
// names and valid types, that frames and ragged rows are possible as described, and that every file has a record with a
// checksum per block. Throws FileError that begins with `path`.
Manifest parse_manifest(const std::string& path, std::string_view text);

// Return entries of manifest.json: for all columns, and for a stream.
std::string episode_columns_text(const std::vector<EpisodeColumn>& columns);
std::string stream_text(const Stream& stream);

// Returns the columns that every episode has: episode_index, start_ns, end_ns.
std::vector<EpisodeColumn> automatic_columns();

struct EpisodeMetadata {
  std::string json;                    // an object on one line
  std::vector<EpisodeColumn> columns;  // all columns so far and this episode's columns, with their types
};

// Checks the metadata of an episode; `known` are the columns of the earlier ones. Throws ArgumentError if it is not an object of
// the allowed values, if a column changes its type, or if one of float64 gets a whole number that float64 does not hold.
EpisodeMetadata check_metadata(std::string_view metadata_json, const std::vector<EpisodeColumn>& known);

// Sets `inexact` of the columns that episodes.jsonl has.
void find_inexact(std::string_view episodes_jsonl, std::vector<EpisodeColumn>& columns);

// Returns a line of episodes.jsonl with its line end. `span_ns` holds the earliest and the latest stamp, if there is
// one.
std::string episode_line(int64_t episode, std::optional<std::pair<int64_t, int64_t>> span_ns,
                         const std::string& metadata_json);

// Returns the object in canonical form. Throws ArgumentError that begins with `argument` if it is not a JSON object.
std::string check_object(std::string_view argument, std::string_view json);

// Returns whether two objects are equal; the order of their keys does not count.
bool are_equal(std::string_view object, std::string_view other);

// Returns why no decoded frame can have this dtype and shape in this codec, or "".
std::string frame_mistake(const FrameFormat& frames, DType dtype, std::span<const int64_t> shape);

// Returns why ragged rows cannot have such elements, or "".
std::string ragged_mistake(Ragged ragged, DType dtype, std::span<const int64_t> shape);

// Returns why `text` is not UTF-8, or "".
std::string utf8_mistake(std::string_view text);

// Throws ArgumentError unless `text` is UTF-8 and not empty.
void check_name(std::string_view argument, std::string_view text);

}  // namespace robocache::cache
