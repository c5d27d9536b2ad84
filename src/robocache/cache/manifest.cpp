#include "robocache/cache/manifest.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "robocache/cache/crc32.hpp"
#include "robocache/cache/npy.hpp"
#include "robocache/core/error.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache::cache {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;                     // of JSON arguments
constexpr int kMaxManifestDepth = kMaxDepth + 8;  // the manifest contains them, a few levels deeper
constexpr uint64_t kLargestInt64 = std::numeric_limits<int64_t>::max();
constexpr size_t kLineWidth = 100;

// The file begins with these bytes in every version, so each version can recognise any other.
constexpr std::string_view kStart = "{\n  \"format\": \"robocache\",\n  \"schema_version\": ";
constexpr std::string_view kBeforeCrc = "  \"crc32\": \"";
constexpr std::string_view kAfterCrc = "\"\n}\n";
constexpr size_t kTrailerBytes = kBeforeCrc.size() + 8 + kAfterCrc.size();

// ---- JSON text -------------------------------------------------------------------------------------------------------

bool has_plain_items(const Json& json) {
  return std::none_of(json.begin(), json.end(), [](const Json& item) { return item.is_structured(); });
}

std::string one_line(const Json& json) {
  if (!json.is_structured()) return json.dump();
  std::string text;
  for (auto item = json.begin(); item != json.end(); ++item) {
    if (!text.empty()) text += ", ";
    if (json.is_object()) text += Json(item.key()).dump() + ": ";
    text += one_line(*item);
  }
  return json.is_object() ? "{" + text + "}" : "[" + text + "]";
}

// Writes lists of plain values, and any value that fits, on one line. Indents everything else.
std::string pretty(const Json& json, const std::string& indent) {
  if (!json.is_structured() || json.empty() || (json.is_array() && has_plain_items(json))) return one_line(json);
  const std::string inner = indent + "  ";
  std::string text;
  for (auto item = json.begin(); item != json.end(); ++item) {
    std::string value = one_line(*item);
    if (value.size() + inner.size() > kLineWidth) value = pretty(*item, inner);
    text += text.empty() ? "\n" : ",\n";
    text += inner + (json.is_object() ? Json(item.key()).dump() + ": " : "") + value;
  }
  text += "\n" + indent;
  return json.is_object() ? "{" + text + "}" : "[" + text + "]";
}

// Throws Json::exception. Throws ArgumentError if the text is nested so deeply that processing it could exhaust the
// stack.
Json parse(std::string_view text, int most_levels) {
  return Json::parse(text.begin(), text.end(), [most_levels](int depth, Json::parse_event_t, Json&) {
    if (depth > most_levels) throw ArgumentError("expected JSON of at most ", most_levels, " levels, got more");
    return true;
  });
}

Json parse_argument(std::string_view argument, std::string_view text) {
  const auto refuse = [&](const std::string& got) {
    throw ArgumentError(argument, ": expected a JSON object, got ", got);
  };
  Json json;
  try {
    json = parse(text, kMaxDepth);
  } catch (const Json::exception& error) {
    refuse(error.what());
  } catch (const ArgumentError& error) {
    throw ArgumentError(argument, ": ", error.what());
  }
  if (!json.is_object()) refuse(json.type_name());
  return json;
}

// ---- manifest.json ---------------------------------------------------------------------------------------------------

Json findings_json(const StreamFindings& findings) {
  Json json;
  for_each_field(findings, [&](const char* name, const auto& value) { json[name] = value; });
  return json;
}

Json columns_json(const std::vector<EpisodeColumn>& columns) {
  Json json = Json::array();
  for (const EpisodeColumn& column : columns) json.push_back({{"name", column.name}, {"type", column.type}});
  return json;
}

Json frames_json(const FrameFormat& frames) {
  return {{"codec", std::string(name_of(frames.codec))},
          {"color_space", std::string(name_of(frames.color_space))},
          {"unit_m", frames.unit_m ? Json(*frames.unit_m) : Json()},
          {"intrinsics", frames.intrinsics.empty() ? Json() : Json(frames.intrinsics)},
          {"resized", frames.resized_json.empty() ? Json() : Json::parse(frames.resized_json)}};
}

Json stream_json(const Stream& stream) {
  return {{"name", stream.name},
          {"dtype", std::string(dtype_name(stream.dtype))},
          {"shape", stream.shape},
          {"rows", stream.rows},
          {"clock", std::string(name_of(stream.clock))},
          {"names", stream.names},
          {"frames", stream.frames ? frames_json(*stream.frames) : Json()},
          {"ragged", stream.ragged ? Json(std::string(name_of(*stream.ragged))) : Json()},
          {"attributes", Json::parse(stream.attributes_json)},
          {"findings", findings_json(stream.findings)}};
}

// A value of the manifest with its name, which errors mention.
class Node {
 public:
  Node(const std::string& path, std::string name, const Json& json)
      : path_(path), name_(std::move(name)), json_(json) {}

  Node operator[](const char* key) const {
    if (!json_.is_object()) refuse("an object", json_.type_name());
    const auto entry = json_.find(key);
    std::string name = name_.empty() ? std::string(key) : name_ + "." + key;
    if (entry == json_.end()) Node(path_, std::move(name), json_).refuse("a value", "none");
    return {path_, std::move(name), *entry};
  }

  std::vector<Node> items() const {
    if (!json_.is_array()) refuse("a list", json_.type_name());
    std::vector<Node> nodes;
    for (const Json& item : json_) {
      nodes.emplace_back(path_, name_ + "[" + std::to_string(nodes.size()) + "]", item);
    }
    return nodes;
  }

  int64_t count() const {
    if (!json_.is_number_unsigned() || json_.get<uint64_t>() > kLargestInt64) {
      refuse("an integer of at least 0", one_line(json_));
    }
    return json_.get<int64_t>();
  }

  double number() const {
    if (!json_.is_number()) refuse("a number", json_.type_name());
    return json_.get<double>();
  }

  std::string string() const {
    if (!json_.is_string()) refuse("a string", json_.type_name());
    return json_.get<std::string>();
  }

  uint32_t crc() const {
    const std::string text = string();
    uint32_t crc = 0;
    for (const char c : text) {
      const auto digit = std::string_view("0123456789abcdef").find(c);
      if (digit == std::string_view::npos || text.size() != 8) refuse("8 hexadecimal digits", one_line(json_));
      crc = crc << 4 | static_cast<uint32_t>(digit);
    }
    return crc;
  }

  template <class Read>
  auto list(const Read& read) const {
    std::vector<decltype(read(*this))> values;
    for (const Node& item : items()) values.push_back(read(item));
    return values;
  }

  // Returns an object on one line.
  std::string object() const {
    if (!json_.is_object()) refuse("an object", json_.type_name());
    return one_line(json_);
  }

  bool is_null() const { return json_.is_null(); }

  [[noreturn]] void refuse(const std::string& expected, const std::string& got) const {
    throw FileError(path_, ": in '", name_, "': expected ", expected, ", got ", got);
  }

 private:
  const std::string& path_;
  std::string name_;
  const Json& json_;
};

StreamFindings read_findings(const Node& node) {
  StreamFindings findings;
  for_each_field(findings, [&]<class T>(const char* name, T& value) {
    if constexpr (std::same_as<T, double>) {
      value = node[name].number();
    } else if constexpr (std::same_as<T, int64_t>) {
      value = node[name].count();
    } else {
      value = node[name].list([](const Node& item) { return item.count(); });
    }
  });
  return findings;
}

// Returns the rate for a period. Stamps are rounded to whole nanoseconds: 30 Hz gives periods of 33333333 or 33333334
// ns, so 30 is as exact as 30.0000003.
double rate_of(double period_ns) {
  if (period_ns <= 0) return 0;
  const double rate_hz = 1e9 / period_ns;
  for (double scale = 1; scale < 1e18; scale *= 10) {
    const double rounded = std::round(rate_hz * scale) / scale;
    if (rounded > 0 && std::abs(1e9 / rounded - period_ns) < 1) return rounded;
  }
  return rate_hz;
}

FrameFormat read_frames(const Node& node) {
  FrameFormat frames;
  frames.codec = value_of<Codec>(node["codec"].string(), "codec");
  frames.color_space = value_of<ColorSpace>(node["color_space"].string(), "color_space");
  if (const Node unit = node["unit_m"]; !unit.is_null()) frames.unit_m = unit.number();
  if (const Node matrix = node["intrinsics"]; !matrix.is_null()) {
    frames.intrinsics = matrix.list([](const Node& item) { return item.number(); });
  }
  if (const Node resized = node["resized"]; !resized.is_null()) frames.resized_json = resized.object();
  return frames;
}

Stream read_stream(const std::string& path, const Node& node, int64_t version) {
  Stream stream;
  stream.name = node["name"].string();
  try {
    stream.dtype = dtype_from_name(node["dtype"].string());
    stream.clock = value_of<Clock>(node["clock"].string(), "clock");
    if (version > 1 && !node["frames"].is_null()) stream.frames = read_frames(node["frames"]);
    if (version > 2 && !node["ragged"].is_null()) stream.ragged = value_of<Ragged>(node["ragged"].string(), "ragged");
  } catch (const ArgumentError& error) {
    throw FileError(path, ": in stream '", stream.name, "': ", error.what());
  }
  stream.shape = node["shape"].list([](const Node& item) { return item.count(); });
  if (stream.shape.size() >= kMaxDims) {
    node["shape"].refuse("at most " + std::to_string(kMaxDims - 1) + " lengths", std::to_string(stream.shape.size()));
  }
  stream.features = checked_product(path, stream.shape);
  std::string mistake;
  if (stream.frames) mistake = frame_mistake(*stream.frames, stream.dtype, stream.shape);
  if (stream.ragged) mistake = ragged_mistake(*stream.ragged, stream.dtype, stream.shape);
  if (stream.frames && stream.ragged) mistake = "expected frames or ragged rows, got both";
  if (!mistake.empty()) throw FileError(path, ": in stream '", stream.name, "': ", mistake);
  stream.rows = node["rows"].count();
  stream.names = node["names"].list([](const Node& item) { return item.string(); });
  if (!stream.names.empty() && static_cast<int64_t>(stream.names.size()) != stream.features) {
    node["names"].refuse("none or " + std::to_string(stream.features), std::to_string(stream.names.size()));
  }
  stream.attributes_json = version > 2 ? node["attributes"].object() : "{}";
  stream.findings = read_findings(node["findings"]);
  stream.rate_hz = rate_of(stream.findings.period_ns);
  return stream;
}

FileRecord read_record(const Node& node) {
  FileRecord record{node["bytes"].count(), node["crc32"].list([](const Node& item) { return item.crc(); })};
  const int64_t blocks = record.bytes / kBlockBytes + (record.bytes % kBlockBytes != 0 ? 1 : 0);
  if (static_cast<int64_t>(record.crc32.size()) != blocks) {
    node["crc32"].refuse(std::to_string(blocks) + " checksums", std::to_string(record.crc32.size()));
  }
  return record;
}

std::vector<EpisodeColumn> read_columns(const Node& node) {
  constexpr std::array kTypes{"bool",        "int64",         "float64",      "string",    "null",
                              "list<int64>", "list<float64>", "list<string>", "list<null>"};
  std::vector<EpisodeColumn> columns;
  std::set<std::string> names;
  for (const Node& item : node.items()) {
    columns.push_back({item["name"].string(), item["type"].string()});
    const EpisodeColumn& column = columns.back();
    if (!names.insert(column.name).second) node.refuse("one column of each name", "two '" + column.name + "'");
    if (std::ranges::find(kTypes, column.type) == kTypes.end()) {
      item["type"].refuse("the type of a column", "'" + column.type + "'");
    }
  }
  const auto automatic = automatic_columns();
  if (std::ranges::mismatch(columns, automatic).in2 != automatic.end()) {
    node.refuse("episode_index, start_ns and end_ns first, of int64", "others");
  }
  return columns;
}

// Checks the version first, because other versions may have another form.
int64_t read_version(const std::string& path, std::string_view text) {
  const auto mismatch = std::ranges::mismatch(kStart, text).in1 - kStart.begin();
  if (static_cast<size_t>(mismatch) < kStart.size()) {
    refuse_bytes(path, mismatch, "a manifest that begins with " + Json(kStart).dump(),
                 text.empty() ? "an empty file" : "something else");
  }
  const std::string_view rest = text.substr(kStart.size());
  const std::string digits(rest.substr(0, std::min<size_t>(rest.find_first_not_of("0123456789"), 20)));
  for (int64_t version = 1; version <= kSchemaVersion; ++version) {
    if (digits == std::to_string(version)) return version;
  }
  refuse_bytes(path, static_cast<int64_t>(kStart.size()),
               "a schema version from 1 to " + std::to_string(kSchemaVersion) +
                   ", those that robocache " ROBOCACHE_VERSION " reads",
               digits.empty() ? "no number" : digits + ": another version of robocache wrote this cache");
}

void check_checksum(const std::string& path, std::string_view text) {
  const auto size = static_cast<int64_t>(text.size());
  const std::string expected_form = "the manifest's end, " + Json(kBeforeCrc).dump() + " and 8 digits";
  if (text.size() < kTrailerBytes) refuse_bytes(path, size, expected_form, "the end of the file");
  const std::string_view trailer = text.substr(text.size() - kTrailerBytes);
  const int64_t trailer_offset = size - static_cast<int64_t>(kTrailerBytes);
  if (!trailer.starts_with(kBeforeCrc) || !trailer.ends_with(kAfterCrc)) {
    refuse_bytes(path, trailer_offset, expected_form, "something else: the file is damaged or cut short");
  }
  const std::string crc = crc32_text(crc32(text.data(), text.size() - kTrailerBytes));
  const std::string_view recorded = trailer.substr(kBeforeCrc.size(), 8);
  if (recorded != crc) {
    refuse_bytes(
        path, 0, "CRC-32 " + crc + " at the end, as of the bytes before it",
        Json(std::string(recorded)).dump(-1, ' ', true, Json::error_handler_t::replace) + ": the file is damaged");
  }
}

// Returns all files of a cache except the manifest, each once.
std::set<std::string> files_of(const Manifest& manifest, const Node& root) {
  std::set<std::string> files{file_in_generation(kEpisodesFile, manifest.generation)};
  for (const Stream& stream : manifest.streams) {
    const std::string directory = stream_directory(stream.name) + "/";
    if (!files.insert(directory + kTimeFile).second) {
      root["streams"].refuse("one stream of each name", "two '" + stream.name + "'");
    }
    files.insert({directory + kValuesFile, directory + file_in_generation(kRowOffsetsFile, manifest.generation)});
    if (stream.has_blob_offsets()) files.insert(directory + kBlobOffsetsFile);
    if (stream.has_statistics()) files.insert(directory + file_in_generation(kStatsFile, manifest.generation));
  }
  return files;
}

// ---- episode metadata ------------------------------------------------------------------------------------------------

std::string scalar_type(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "bool";
  if (value.is_string()) return "string";
  if (value.is_number_float()) return "float64";
  if (value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= kLargestInt64)) {
    return "int64";
  }
  return "";
}

// Returns the type that can hold values of both types, or "" if there is none.
std::string common_type(const std::string& a, const std::string& b) {
  if (a == b || b == "null") return a;
  if (a == "null") return b;
  if ((a == "int64" && b == "float64") || (a == "float64" && b == "int64")) return "float64";
  constexpr std::string_view kList = "list<";
  if (a.starts_with(kList) && b.starts_with(kList)) {
    const auto item = [&](const std::string& list) {
      return list.substr(kList.size(), list.size() - kList.size() - 1);
    };
    const std::string common = common_type(item(a), item(b));
    if (!common.empty()) return std::string(kList) + common + ">";
  }
  return "";
}

std::string column_type(const std::string& name, const Json& value) {
  const auto refuse = [&] {
    throw ArgumentError(
        "episode metadata '", name,
        "': expected a str, int64, float, bool, None, or a list of str, int64 or float of one type, got ",
        one_line(value).substr(0, 80));
  };
  if (!value.is_array()) {
    const std::string type = scalar_type(value);
    if (type.empty()) refuse();
    return type;
  }
  std::string item_type = "null";
  for (const Json& item : value) {
    const std::string type = scalar_type(item);
    item_type = type.empty() || type == "null" || type == "bool" ? "" : common_type(item_type, type);
    if (item_type.empty()) refuse();
  }
  return "list<" + item_type + ">";
}

// Returns a whole number among a value or its items that float64 does not hold.
std::optional<int64_t> inexact_number(const Json& value) {
  if (value.is_array()) {
    for (const Json& item : value) {
      if (const auto number = inexact_number(item)) return number;
    }
    return std::nullopt;
  }
  if (!value.is_number_integer()) return std::nullopt;
  const auto number = value.get<int64_t>();
  const auto rounded = static_cast<double>(number);
  const bool is_exact = rounded < 0x1p63 && static_cast<int64_t>(rounded) == number;
  return is_exact ? std::nullopt : std::optional(number);
}

void check_exact(const EpisodeColumn& column) {
  if (column.inexact && column.type.find("float64") != std::string::npos) {
    throw ArgumentError("episode metadata '", column.name,
                        "': expected whole numbers that float64 holds, as the column has fractions too, got ",
                        *column.inexact, "; a str holds its digits");
  }
}

}  // namespace

std::string stream_directory(std::string_view name) {
  std::string directory = std::string(kStreamsDirectory) + "/";
  for (size_t i = 0; i < name.size(); ++i) {
    const auto c = static_cast<unsigned char>(name[i]);
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                          c == '-' || (c == '.' && i > 0);
    if (is_plain) {
      directory += static_cast<char>(c);
    } else {
      directory += {'%', "0123456789ABCDEF"[c >> 4], "0123456789ABCDEF"[c & 15]};
    }
  }
  return directory;
}

std::string file_in_generation(std::string_view file, int64_t generation) {
  std::string name(file);
  if (generation > 0) name.insert(name.rfind('.'), "." + std::to_string(generation));
  return name;
}

std::string manifest_text(const Manifest& manifest) {
  Json streams = Json::array();
  for (const Stream& stream : manifest.streams) streams.push_back(stream_json(stream));
  Json files = Json::object();
  for (const auto& [name, record] : manifest.files) {
    Json crcs = Json::array();
    for (const uint32_t crc : record.crc32) crcs.push_back(crc32_text(crc));
    files[name] = {{"bytes", record.bytes}, {"crc32", std::move(crcs)}};
  }
  const Json json = {{"format", "robocache"},
                     {"schema_version", manifest.version},
                     {"robocache_version", ROBOCACHE_VERSION},
                     {"generation", manifest.generation},
                     {"episodes", manifest.episodes},
                     {"episode_columns", columns_json(manifest.episode_columns)},
                     {"streams", std::move(streams)},
                     {"block_bytes", kBlockBytes},
                     {"files", std::move(files)},
                     {"provenance", Json::parse(manifest.provenance_json)}};
  std::string text = pretty(json, "");
  text.replace(text.size() - 2, 2, ",\n");  // the closing brace comes after the checksum
  text += std::string(kBeforeCrc) + crc32_text(crc32(text.data(), text.size())) + std::string(kAfterCrc);
  return text;
}

Manifest parse_manifest(const std::string& path, std::string_view text) {
  Manifest manifest;
  manifest.version = read_version(path, text);
  check_checksum(path, text);
  Json json;
  try {
    json = parse(text, kMaxManifestDepth);
  } catch (const Json::parse_error& error) {
    refuse_bytes(path, static_cast<int64_t>(error.byte), "JSON", error.what());
  } catch (const std::exception& error) {
    throw FileError(path, ": ", error.what());
  }
  const Node root(path, "", json);
  if (root["block_bytes"].count() != kBlockBytes) {
    root["block_bytes"].refuse(std::to_string(kBlockBytes), std::to_string(root["block_bytes"].count()));
  }
  if (manifest.version > 1) manifest.generation = root["generation"].count();
  manifest.episodes = root["episodes"].count();
  manifest.episode_columns = read_columns(root["episode_columns"]);
  manifest.streams = root["streams"].list([&](const Node& item) { return read_stream(path, item, manifest.version); });
  const Node files = root["files"];
  for (const std::string& name : files_of(manifest, root)) {
    manifest.files.emplace(name, read_record(files[name.c_str()]));
  }
  manifest.provenance_json = root["provenance"].object();
  return manifest;
}

std::string episode_columns_text(const std::vector<EpisodeColumn>& columns) { return one_line(columns_json(columns)); }

std::string stream_text(const Stream& stream) { return stream_json(stream).dump(); }

std::vector<EpisodeColumn> automatic_columns() {
  return {{"episode_index", "int64"}, {"start_ns", "int64"}, {"end_ns", "int64"}};
}

EpisodeMetadata check_metadata(std::string_view metadata_json, const std::vector<EpisodeColumn>& known) {
  const Json json = parse_argument("episode metadata", metadata_json);
  const auto automatic = automatic_columns();
  EpisodeMetadata metadata{one_line(json), known};
  for (auto item = json.begin(); item != json.end(); ++item) {
    const std::string& name = item.key();
    if (std::ranges::any_of(automatic, [&](const EpisodeColumn& column) { return column.name == name; })) {
      throw ArgumentError("episode metadata '", name,
                          "': expected another name, this column is filled in by the writer");
    }
    const std::string type = column_type(name, *item);
    const auto column = std::ranges::find(metadata.columns, name, &EpisodeColumn::name);
    if (column == metadata.columns.end()) {
      metadata.columns.push_back({name, type, inexact_number(*item)});
      check_exact(metadata.columns.back());
      continue;
    }
    const std::string common = common_type(column->type, type);
    if (common.empty()) {
      throw ArgumentError("episode metadata '", name, "': expected ", column->type, " as in the episodes before, got ",
                          type, " ", one_line(*item).substr(0, 80));
    }
    column->type = common;
    if (!column->inexact) column->inexact = inexact_number(*item);
    check_exact(*column);
  }
  return metadata;
}

void find_inexact(std::string_view episodes_jsonl, std::vector<EpisodeColumn>& columns) {
  const auto may_be = [](const EpisodeColumn& column) { return column.type.find("int64") != std::string::npos; };
  const auto first = columns.begin() + std::ssize(automatic_columns());
  if (std::none_of(first, columns.end(), may_be)) return;
  for (size_t begin = 0, end = 0; (end = episodes_jsonl.find('\n', begin)) != std::string_view::npos; begin = end + 1) {
    const Json line = Json::parse(episodes_jsonl.substr(begin, end - begin), nullptr, false);
    for (auto column = first; column != columns.end(); ++column) {
      const auto value = line.find(column->name);
      if (!column->inexact && may_be(*column) && value != line.end()) column->inexact = inexact_number(*value);
    }
  }
}

std::string episode_line(int64_t episode, std::optional<std::pair<int64_t, int64_t>> span_ns,
                         const std::string& metadata_json) {
  const std::string start = span_ns ? std::to_string(span_ns->first) : "null";
  const std::string end = span_ns ? std::to_string(span_ns->second) : "null";
  const std::string rest = metadata_json.substr(1);  // "}" or "\"task\": ..."
  return "{\"episode_index\": " + std::to_string(episode) + ", \"start_ns\": " + start + ", \"end_ns\": " + end +
         (rest == "}" ? "" : ", ") + rest + "\n";
}

std::string check_object(std::string_view argument, std::string_view json) {
  return one_line(parse_argument(argument, json));
}

bool are_equal(std::string_view object, std::string_view other) {
  return nlohmann::json::parse(object) == nlohmann::json::parse(other);
}

std::string frame_mistake(const FrameFormat& frames, DType dtype, std::span<const int64_t> shape) {
  const std::string color_space(name_of(frames.color_space));
  std::vector<DType> dtypes{DType::kUInt8};
  if (frames.codec != Codec::kJpeg) dtypes.push_back(DType::kUInt16);
  if (frames.codec == Codec::kRaw) dtypes.push_back(DType::kFloat32);
  if (std::ranges::find(dtypes, dtype) == dtypes.end()) {
    std::string expected;
    for (const DType known : dtypes) expected += (expected.empty() ? "" : " or ") + std::string(dtype_name(known));
    return "expected " + std::string(name_of(frames.codec)) + " frames of " + expected + ", got " +
           std::string(dtype_name(dtype));
  }
  const int64_t channels = frames.color_space == ColorSpace::kRgb ? 3 : 1;
  if (shape.size() != 3 || shape[0] < 1 || shape[1] < 1 || shape[2] != channels) {
    return "expected " + color_space + " frames of shape [height, width, " + std::to_string(channels) + "], got " +
           shape_string(shape);
  }
  int64_t bytes = dtype_size(dtype);
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return "expected a size of frames within int64, got more";
  }
  if (frames.unit_m && frames.color_space != ColorSpace::kDepth) {
    return "expected unit_m only for depth frames, got it for " + color_space + " frames";
  }
  if (frames.unit_m && !(std::isfinite(*frames.unit_m) && *frames.unit_m > 0)) {
    return "expected a unit_m above 0, got " + Json(*frames.unit_m).dump();
  }
  const std::vector<double>& matrix = frames.intrinsics;
  const bool is_finite = std::ranges::all_of(matrix, [](double number) { return std::isfinite(number); });
  if (!is_finite || (!matrix.empty() && matrix.size() != 9)) {
    return "expected 9 finite numbers of intrinsics, row by row, or none, got " + Json(matrix).dump();
  }
  return "";
}

std::string ragged_mistake(Ragged ragged, DType dtype, std::span<const int64_t> shape) {
  const std::string got = ", got " + std::string(dtype_name(dtype)) + " " + shape_string(shape);
  if (ragged == Ragged::kText && (dtype != DType::kUInt8 || !shape.empty())) {
    return "expected text as bytes, uint8 []" + got;
  }
  // The size of the file must show the number of elements.
  if (std::ranges::count(shape, 0) > 0) return "expected elements of ragged rows that have features" + got;
  return "";
}

std::string utf8_mistake(std::string_view text) {
  try {
    static_cast<void>(Json(text).dump());
    return "";
  } catch (const Json::exception& error) {
    return error.what();
  }
}

void check_name(std::string_view argument, std::string_view text) {
  const std::string mistake = text.empty() ? "''" : utf8_mistake(text);
  if (mistake.empty()) return;
  throw ArgumentError(argument, ": expected UTF-8 text that is not empty, got ", mistake);
}

}  // namespace robocache::cache
