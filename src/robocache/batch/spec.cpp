// Loader options and what a batch holds, as JSON.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "robocache/batch/options.hpp"
#include "robocache/core/arguments.hpp"

namespace robocache {
namespace {

using Json = nlohmann::json;

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
  if (!json.is_number_integer()) refuse_as(name, "a whole number", json);
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

void read(const std::string& name, const Json& json, InterpolationMethod& value) {
  value = interpolation_method_from_name(text_of(name, json), name);
}

void read(const std::string& name, const Json& json, Normalize& value) {
  value = normalize_from_name(text_of(name, json), name);
}

void read(const std::string& name, const Json& json, Constant& value) {
  value = constant_from_name(text_of(name, json), name);
}

void read(const std::string& name, const Json& json, DType& value) {
  value = dtype_from_name(text_of(name, json), name);
}

void read(const std::string& name, const Json& json, Device& value) { value = device_from_name(text_of(name, json)); }

void read(const std::string& name, const Json& json, std::optional<Tier>& value) {
  value = tier_from_name(text_of(name, json), name);
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
  for (const auto& [of, share] : json.items()) {
    if (!share.is_null()) read(name, share, of == "device" ? value.device : value.host);
  }
}

void read(const std::string& name, const Json& json, ImageOptions& value) {
  value = image_options_from_json(json.dump(), name + ".");
}

// [begin, end, method].
void read(const std::string& name, const Json& json, FeatureBlock& value) {
  if (!json.is_array() || json.size() != 3) refuse_as(name, "[begin, end, method]", json);
  read(name, json[0], value.begin);
  read(name, json[1], value.end);
  read(name, json[2], value.method);
}

void read(const std::string& name, const Json& json, StreamRequest& value);
void read(const std::string& name, const Json& json, ActionConversion& value);

template <class T>
void read(const std::string& name, const Json& json, std::optional<T>& value) {
  read(name, json, value.emplace());
}

template <class T>
void read(const std::string& name, const Json& json, std::vector<T>& value) {
  if (!json.is_array()) refuse_as(name, "a list", json);
  for (const Json& entry : json) read(name, entry, value.emplace_back());
}

// The fields that are there, named in errors behind `prefix`.
template <class Struct>
void read_fields(const std::string& prefix, const Json& json, Struct& value) {
  for_each_field(value, [&](const char* field, auto& member) {
    const auto found = json.find(field);
    constexpr bool kBlocks = std::is_same_v<decltype(member), std::vector<FeatureBlock>&>;  // of Window's `method`, too
    if (found != json.end() && !found->is_null()) read(prefix + (kBlocks ? "method" : field), *found, member);
  });
}

void read(const std::string& name, const Json& json, ActionConversion& value) {
  if (!json.is_object()) refuse_as(name, "an object", json);
  read_fields(name + ".", json, value);
}

void read(const std::string& name, const Json& json, StreamRequest& value) {
  if (!json.is_object()) refuse_as(name, "an object", json);
  const std::string key = json.value("key", "");
  read_fields("delta_timestamps['" + key + "'].", json, value);
  const auto residency = json.find("residency");
  if (residency != json.end() && !residency->is_null()) {
    read("memory.residency['" + key + "']", *residency, value.residency);
  }
}

}  // namespace

LoaderOptions loader_options_from_json(std::string_view json, std::vector<SourceRequest> sources) {
  const Json object = Json::parse(json, nullptr, false);
  if (!object.is_object()) refuse_type("options: expected a JSON object, got ", json);
  LoaderOptions options;
  read_fields("", object, options);
  options.sources = std::move(sources);
  const Json none = Json::array();
  const Json& described = object.contains("sources") ? object["sources"] : none;
  for (size_t i = 0; i < std::min(described.size(), options.sources.size()); ++i) {
    SourceRequest& source = options.sources[i];
    const std::string name = source_name(options, i);
    read_fields(name, described[i], source);
    const Json renamed = described[i].value("rename", Json::object());
    for (const auto& [stream, key] : renamed.items()) source.rename.emplace_back(stream, text_of(name + "rename", key));
  }
  return options;
}

}  // namespace robocache
