// Reads loader options from JSON, and a batch's spec from JSON and back. Structs are read and written by their list of fields.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "robocache/batch/options.hpp"
#include "robocache/batch/spec.hpp"
#include "robocache/core/arguments.hpp"

namespace robocache {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse_as(const std::string& name, const char* expected, const Json& got) {
  refuse_type(name, ": expected ", expected, ", got ", got.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string text_of(const std::string& name, const Json& json) {
  if (!json.is_string()) refuse_as(name, "text", json);
  return json.get<std::string>();
}

// ---- One overload of `read` for each type of a field -------------------------------------------------------------------

void read(const std::string& name, const Json& json, bool& value) {
  if (!json.is_boolean()) refuse_as(name, "True or False", json);
  value = json.get<bool>();
}

void read(const std::string& name, const Json& json, int64_t& value) {
  const bool too_large = json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX};
  if (!json.is_number_integer() || too_large) refuse_as(name, "a whole number of 64 bits", json);
  value = json.get<int64_t>();
}

// JSON has no infinity and no NaN: they are "inf", "-inf" and "nan".
void read(const std::string& name, const Json& json, double& value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (json.is_number()) {
    value = json.get<double>();
  } else if (json == "inf" || json == "-inf") {
    value = json == "inf" ? kInfinity : -kInfinity;
  } else if (json == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    refuse_as(name, "a number", json);
  }
}

void read(const std::string& name, const Json& json, std::string& value) { value = text_of(name, json); }

template <HasNames Enum>
void read(const std::string& name, const Json& json, Enum& value) {
  value = value_of<Enum>(text_of(name, json), name);
}

void read(const std::string& name, const Json& json, DType& value) {
  value = dtype_from_name(text_of(name, json), name);
}

void read(const std::string& name, const Json& json, ImageOptions& value) {
  value = image_options_from_json(json.dump(), name + ".");
}

// A list [begin, end, method].
void read(const std::string& name, const Json& json, FeatureBlock& value) {
  if (!json.is_array() || json.size() != 3) refuse_as(name, "[begin, end, method]", json);
  read(name, json[0], value.begin);
  read(name, json[1], value.end);
  read(name, json[2], value.method);
}

void read(const std::string& name, const Json& json, Normalize& value) {
  value = normalize_from_name(text_of(name, json), name);
}

void read(const std::string& name, const Json& json, Device& value) { value = device_from_name(text_of(name, json)); }

void read(const std::string& name, const Json& json, std::optional<Tier>& value) {
  const std::string text = text_of(name, json);
  value.reset();
  if (text == "auto") return;
  for (const Tier tier : {Tier::kDecoded, Tier::kDevice, Tier::kPinned, Tier::kMapped}) {
    if (name_of(tier) == text) return void(value = tier);
  }
  refuse(name, ": expected 'auto', 'decoded', 'device', 'pinned' or 'mapped', got '", text, "'");
}

void read(const std::string& name, const Json& json, MemoryShare& value) {
  double share = 0;
  if (json.is_number_integer()) {
    value = json.get<int64_t>();
  } else {
    read(name, json, share);
    value = share;
  }
}

void read(const std::string& name, const Json& json, MemoryBudget& value) {
  if (!json.is_object()) refuse_as(name, "an object", json);
  for (const auto& [memory, share] : json.items()) {
    if (!share.is_null()) read(name, share, memory == "device" ? value.device : value.host);
  }
}

constexpr std::pair<const char*, double Affine::*> kAffine[] = {
    {"scale", &Affine::scale}, {"shift", &Affine::shift}, {"spread", &Affine::spread}, {"centre", &Affine::centre}};

template <class T>
void read(const std::string& name, const Json& json, std::vector<T>& value);

// An object of lists, with a number for each feature; or null.
void read(const std::string& name, const Json& json, std::vector<Affine>& value) {
  if (json.is_null()) return;
  if (!json.is_object() || json.size() != std::size(kAffine)) {
    refuse_as(name, "scale, shift, spread and centre", json);
  }
  for (const auto& [part, member] : kAffine) {
    std::vector<double> numbers;
    if (!json.contains(part)) refuse(name, ".", part, ": expected this field, got none");
    read(name + "." + part, json[part], numbers);
    if (value.empty()) value.resize(numbers.size());
    if (numbers.empty() || numbers.size() != value.size()) {
      refuse(name, ".", part, ": expected a number for each feature, got ", numbers.size());
    }
    for (size_t i = 0; i < numbers.size(); ++i) value[i].*member = numbers[i];
  }
}

void read(const std::string& name, const Json& json, StreamRequest& value);
void read(const std::string& name, const Json& json, ActionConversion& value);

template <HasFields Struct>
void read(const std::string& name, const Json& json, Struct& value);

template <class T>
void read(const std::string& name, const Json& json, std::optional<T>& value) {
  if (json.is_null()) {
    value.reset();
  } else {
    read(name, json, value.emplace());
  }
}

template <class T>
void read(const std::string& name, const Json& json, std::vector<T>& value) {
  if (!json.is_array()) refuse_as(name, "a list", json);
  for (const Json& entry : json) {
    const std::string index = HasFields<T> ? "[" + std::to_string(value.size()) + "]" : "";
    read(name + index, entry, value.emplace_back());
  }
}

template <HasFields Struct>
void refuse_other_fields(const std::string& prefix, const Json& json, const Struct& value) {
  std::vector<std::string> names;
  for_each_field(value, [&](const char* field, const auto&) { names.emplace_back(field); });
  for (const auto& [field, unused] : json.items()) {
    if (std::ranges::find(names, field) == names.end()) refuse(prefix, field, ": no such field");
  }
}

// Reads every field of the struct, and refuses others by name.
template <HasFields Struct>
void read_all_fields(const std::string& prefix, const Json& json, Struct& value) {
  refuse_other_fields(prefix, json, value);
  for_each_field(value, [&](const char* field, auto& member) {
    const auto entry = json.find(field);
    if (entry == json.end()) refuse(prefix, field, ": expected this field, got none");
    read(prefix + field, *entry, member);
  });
}

template <HasFields Struct>
void read(const std::string& name, const Json& json, Struct& value) {
  if (!json.is_object()) refuse_as(name, "an object", json);
  read_all_fields(name + ".", json, value);
}

// Reads the fields that are present. Errors name them after `prefix`.
template <class Struct>
void read_fields(const std::string& prefix, const Json& json, Struct& value) {
  for_each_field(value, [&](const char* field, auto& member) {
    const auto entry = json.find(field);
    // In Python `method` also gives the methods of features, so errors about them name it.
    constexpr bool kIsBlocks = std::is_same_v<decltype(member), std::vector<FeatureBlock>&>;
    if (entry != json.end() && !entry->is_null()) read(prefix + (kIsBlocks ? "method" : field), *entry, member);
  });
}

// A conversion has only the fields that its kind needs.
void read(const std::string& name, const Json& json, ActionConversion& value) {
  if (!json.is_object()) refuse_as(name, "an object", json);
  refuse_other_fields(name + ".", json, value);
  read_fields(name + ".", json, value);
}

void read(const std::string& name, const Json& json, StreamRequest& value) {
  if (!json.is_object()) refuse_as(name, "an object", json);
  const std::string key = json.value("key", "");
  read_fields("delta_timestamps['" + key + "'].", json, value);
  const auto residency = json.find("residency");
  if (residency != json.end() && !residency->is_null()) {
    read("memory.residency['" + key + "']", *residency, value.residency.emplace());
  }
}

// ---- One overload of `json_of` for each type of a field ----------------------------------------------------------------

Json json_of(bool value) { return value; }
Json json_of(int64_t value) { return value; }
Json json_of(double value) {
  return std::isfinite(value) ? Json(value) : Json(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}
Json json_of(const std::string& value) { return value; }
Json json_of(DType value) { return dtype_name(value); }
Json json_of(const ImageOptions& value) { return Json::parse(image_options_to_json(value)); }
template <HasNames Enum>
Json json_of(Enum value) {
  return name_of(value);
}
Json json_of(const FeatureBlock& value) { return {value.begin, value.end, name_of(value.method)}; }

Json json_of(const std::vector<Affine>& value) {
  if (value.empty()) return {};
  Json object = Json::object();
  for (const auto& [part, member] : kAffine) {
    for (const Affine& affine : value) object[part].push_back(affine.*member);
  }
  return object;
}

template <HasFields Struct>
Json json_of(const Struct& value);

template <class T>
Json json_of(const std::optional<T>& value) {
  return value ? json_of(*value) : Json();
}

template <class T>
Json json_of(const std::vector<T>& value) {
  Json list = Json::array();
  for (const T& entry : value) list.push_back(json_of(entry));
  return list;
}

template <HasFields Struct>
Json json_of(const Struct& value) {
  Json object = Json::object();
  for_each_field(value, [&](const char* field, const auto& member) { object[field] = json_of(member); });
  return object;
}

// The name of a field's type, by which Python converts its value; "" if Python writes the JSON itself.
template <class T>
constexpr const char* kType =
    HasNames<T> || std::is_same_v<T, std::string> || std::is_same_v<T, Normalize> ? "text" : "";
template <>
constexpr const char* kType<bool> = "bool";
template <>
constexpr const char* kType<int64_t> = "int";
template <>
constexpr const char* kType<double> = "float";
template <>
constexpr const char* kType<DType> = "dtype";
template <>
constexpr const char* kType<Tier> = "";  // Python writes a tier for all keys, or a tier for each key
template <class T>
constexpr const char* kType<std::optional<T>> = kType<T>;

template <HasFields Struct>
Json types_of(const Struct& value) {
  Json types = Json::object();
  for_each_field(value, [&](const char* field, const auto& member) {
    types[field] = kType<std::remove_cvref_t<decltype(member)>>;
  });
  return types;
}

// Refuses an object that names a field twice; the parser alone would take the last value.
Json parsed(std::string_view json) {
  std::vector<std::set<std::string>> objects;
  std::string repeated_field;
  const Json object = Json::parse(
      json,
      [&](int, Json::parse_event_t event, Json& value) {
        if (event == Json::parse_event_t::object_start) objects.emplace_back();
        if (event == Json::parse_event_t::object_end) objects.pop_back();
        if (event == Json::parse_event_t::key && !objects.back().insert(value.get<std::string>()).second) {
          repeated_field = value.get<std::string>();
        }
        return true;
      },
      false);
  if (!object.is_object()) refuse_type("spec: expected a JSON object, got ", json.substr(0, 80));
  if (!repeated_field.empty()) refuse("spec: expected each field once, got '", repeated_field, "' twice");
  return object;
}

}  // namespace

LoaderOptions loader_options_from_json(std::string_view json, std::vector<SourceRequest> sources) {
  const Json object = Json::parse(json, nullptr, false);
  if (!object.is_object()) refuse_type("options: expected a JSON object, got ", json);
  LoaderOptions options;
  read_fields("", object, options);
  options.sources = std::move(sources);
  const Json no_sources = Json::array();
  const Json& sources_json = object.contains("sources") ? object["sources"] : no_sources;
  for (size_t i = 0; i < std::min(sources_json.size(), options.sources.size()); ++i) {
    SourceRequest& source = options.sources[i];
    const std::string name = source_name(options, i);
    read_fields(name, sources_json[i], source);
    const Json renamed = sources_json[i].value("rename", Json::object());
    for (const auto& [stream, key] : renamed.items()) source.rename.emplace_back(stream, text_of(name + "rename", key));
  }
  return options;
}

std::string loader_fields_json() {
  const Json types = {{"loader", types_of(LoaderOptions{})},
                      {"window", types_of(StreamRequest{})},
                      {"source", types_of(SourceRequest{})}};
  return types.dump();
}

std::string spec_to_json(const BatchSpec& spec) { return json_of(spec).dump(2); }

std::string values_to_json(const BatchSpec& spec, size_t index) {
  const KeySpec& key = spec.keys[index];
  if (!key.rows) return "";
  const auto without_fields = [](Json object, std::initializer_list<const char*> fields) {
    for (const char* const field : fields) object.erase(field);
    return object;
  };
  const auto values_json = [&](const KeySpec& key_spec) {
    Json object = without_fields(json_of(key_spec), {"key", "stream", "dtype", "one_step", "images", "has_intrinsics"});
    if (key_spec.convert) object["convert"] = without_fields(object["convert"], {"dtype", "tolerance"});
    if (key_spec.rows) {
      object["rows"] =
          without_fields(object["rows"], {"dtype", "names", "affine", "clip", "codec", "unit_m", "intrinsics"});
    }
    return object;
  };
  Json object = values_json(key);
  const auto base = key.convert ? std::ranges::find(spec.keys, key.convert->base, &KeySpec::key) : spec.keys.end();
  if (base != spec.keys.end())
    object["base"] = without_fields(values_json(*base), {"shape", "offsets_ns", "offsets_rows", "convert"});
  return object.dump();
}

std::string differing_values(const std::string& expected, const std::string& got) {
  constexpr size_t kMostCharacters = 120;
  const auto text = [](const Json& object, const std::string& field) {
    std::string value = object.contains(field) ? object[field].dump() : "none";
    return value.size() > kMostCharacters ? value.substr(0, kMostCharacters) + "..." : value;
  };
  const Json a = Json::parse(expected, nullptr, false);
  const Json b = Json::parse(got, nullptr, false);
  if (!a.is_object() || !b.is_object()) return "expected " + expected + ", got " + got;
  std::string differences;
  for (const auto& [object, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (const auto& [field, value] : object->items()) {
      const bool is_compared = object == &b && a.contains(field);
      if (is_compared || (other->contains(field) && (*other)[field] == value)) continue;
      differences +=
          (differences.empty() ? "" : "; ") + field + ": expected " + text(a, field) + ", got " + text(b, field);
    }
  }
  return differences;
}

BatchSpec spec_from_json(std::string_view json) {
  const Json object = parsed(json);
  BatchSpec spec;
  if (!object.contains("version")) refuse("version: expected this field, got none");
  read("version", object["version"], spec.version);
  if (spec.version < 1 || spec.version > BatchSpec::kVersion) {
    refuse("version: expected ", BatchSpec::kVersion, ", got ", spec.version,
           spec.version > BatchSpec::kVersion ? ", which a newer RoboCache wrote" : "");
  }
  read_all_fields("", object, spec);
  check_spec(spec);
  return spec;
}

}  // namespace robocache
