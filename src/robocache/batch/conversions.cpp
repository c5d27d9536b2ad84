// The conversions of keys, and the features that change their signs with flipped images.
#include <algorithm>
#include <string>
#include <utility>

#include "robocache/batch/option_checks.hpp"
#include "robocache/core/arguments.hpp"

namespace robocache {
namespace {

// By axis of an image: the option that flips it.
constexpr const char* kFlips[] = {"flip_vertical", "flip_horizontal"};

double flip_probability(const StreamRequest& camera, size_t axis) {
  return axis == 0 ? camera.images->flip_vertical : camera.images->flip_horizontal;
}

const std::optional<std::vector<int64_t>>& mirror_of(const StreamRequest& request, size_t axis) {
  return axis == 0 ? request.mirror_vertical : request.mirror_horizontal;
}

// Returns a camera that flips its images along an axis, or null.
const StreamRequest* flipped_camera(const LoaderOptions& options, size_t axis) {
  for (const StreamRequest& request : options.streams) {
    if (is_camera(request) && flip_probability(request, axis) > 0) return &request;
  }
  return nullptr;
}

// A flipped image shows a mirrored world, so each key of floats must say which features change their signs. All cameras must
// then flip with the same probability, since a mirrored key is mirrored for all of them.
void check_mirror(const LoaderOptions& options, size_t request, size_t axis) {
  const StreamRequest& key_request = options.streams[request];
  const StreamRequest* const flipped = flipped_camera(options, axis);
  if (is_camera(key_request) || flipped == nullptr) return;
  int64_t features = 0;
  bool has_floats = true;
  bool has_one_axis = true;
  for (const Stream* const stream : streams_of(options, request)) {
    has_floats = has_floats && is_floating(stream->dtype);
    has_one_axis = has_one_axis && stream->shape.size() == 1;
    features = stream->features;
  }
  const std::string name = argument_of(key_request, "mirror");
  const auto& mirrored = mirror_of(key_request, axis);
  if (!mirrored) {
    if (!has_floats) return;
    refuse(name, ": expected the features whose signs change with ", kFlips[axis], " of '", flipped->stream,
           "', which mirrors the world ([]: none do), got none");
  }
  if (mirrored->empty()) return;
  if (!has_floats || !has_one_axis) refuse(name, ": expected [] for a key that is not of floats with rows of one axis");
  for (size_t i = 0; i < mirrored->size(); ++i) {
    const int64_t feature = (*mirrored)[i];
    if (feature >= (i == 0 ? 0 : (*mirrored)[i - 1] + 1) && feature < features) continue;
    refuse(name, ": expected ascending features below ", features, ", got ", feature);
  }
  for (const StreamRequest& camera : options.streams) {
    if (!is_camera(camera) || flip_probability(camera, axis) == flip_probability(*flipped, axis)) continue;
    refuse(argument_of(camera, "images"), ".", kFlips[axis], ": expected ", flip_probability(*flipped, axis),
           " as for '", flipped->stream, "', since '", key_request.stream, "' is mirrored with all cameras, got ",
           flip_probability(camera, axis));
  }
  key_conversion(options, request);  // for its checks
}

// Returns how far a quaternion's length may be from 1, including the rounding of its type.
double length_tolerance(DType dtype) {
  constexpr double kTolerance = 1e-3;
  return kTolerance + (dtype == DType::kFloat16 ? 0x1p-11 : dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-24);
}

// Refuses a base that has the names of the key's features in another order, since a conversion takes features by index.
void check_base_names(const LoaderOptions& options, size_t request, size_t base) {
  const StreamRequest& key_request = options.streams[request];
  for (const SourceRequest& source : options.sources) {
    if (!source.streams[request] || !source.streams[base]) continue;
    const std::vector<std::string>& names = source.stream_of(request)->names;
    const std::vector<std::string>& stream_names = source.stream_of(base)->names;
    std::vector<std::string> base_names;
    if (!stream_names.empty()) {
      for (const int64_t feature : key_request.base_features)
        base_names.push_back(stream_names[static_cast<size_t>(feature)]);
    }
    if (key_request.base_features.empty()) base_names = stream_names;
    const std::string difference = first_difference(names, base_names);
    if (difference.empty() || !are_reordered(names, base_names)) continue;
    refuse(argument_of(key_request, "base"), ": expected features of '", key_request.base,
           "' in the order of this key's, got ", difference, "; base=(key, [indices]) gives their order");
  }
}

}  // namespace

KeyMirror key_mirror(const LoaderOptions& options, size_t request) {
  KeyMirror mirror{};
  for (size_t axis = 0; axis < 2; ++axis) {
    const StreamRequest* const flipped = flipped_camera(options, axis);
    const auto& mirrored = mirror_of(options.streams[request], axis);
    if (flipped == nullptr || !mirrored || mirrored->empty()) continue;
    mirror.flip[axis] = flip_probability(*flipped, axis);
    mirror.axes.resize(std::max(mirror.axes.size(), static_cast<size_t>(mirrored->back()) + 1));
    for (const int64_t feature : *mirrored)
      mirror.axes[static_cast<size_t>(feature)] |= static_cast<uint8_t>(1 << axis);
  }
  return mirror;
}

std::vector<int64_t> key_shape(const LoaderOptions& options, size_t request) {
  if (!options.streams[request].convert.empty()) return {key_conversion(options, request).ops.out_features};
  const std::vector<const Stream*> streams = streams_of(options, request);
  return (*std::ranges::max_element(streams, {}, &Stream::features))->shape;
}

KeyConversion key_conversion(const LoaderOptions& options, size_t request) {
  const StreamRequest& key_request = options.streams[request];
  const std::string name = argument_of(key_request, "convert");
  KeyConversion conversion{.ops = {}, .base = {}, .work = DType::kFloat32, .tolerance = 0};
  int64_t features = 0;
  const auto read_streams = [&](size_t key, const std::string& argument, int64_t& width) {
    for (const Stream* const stream : streams_of(options, key)) {
      if (stream->frames || !is_floating(stream->dtype) || stream->shape.size() != 1) {
        refuse(argument, ": expected a key of floats with rows of one axis, got '", options.streams[key].stream, "'");
      }
      if (width != 0 && stream->features != width) {
        refuse(argument, ": expected '", options.streams[key].stream, "' as wide in all sources, got ", width, " and ",
               stream->features);
      }
      width = stream->features;
      if (stream->dtype == DType::kFloat64) conversion.work = DType::kFloat64;
      conversion.tolerance = std::max(conversion.tolerance, length_tolerance(stream->dtype));
    }
  };
  read_streams(request, name, features);
  conversion.ops = action_ops(key_request.convert, features, name);
  if (!conversion.ops.has_base) {
    if (!key_request.base.empty())
      refuse(argument_of(key_request, "base"), ": goes with a conversion that compares with a base, got none");
    return conversion;
  }
  for (size_t key = 0; key < options.streams.size(); ++key) {
    if (options.streams[key].stream == key_request.base) conversion.base = key;
  }
  if (!conversion.base) {
    refuse(argument_of(key_request, "base"), ": expected the key of the state, one of the batch's keys, got '",
           key_request.base, "'");
  }
  int64_t base_width = 0;
  read_streams(*conversion.base, argument_of(key_request, "base"), base_width);
  const auto base_features = static_cast<int64_t>(key_request.base_features.size());
  if ((base_features == 0 ? base_width : base_features) != features) {
    refuse(argument_of(key_request, "base"), ": expected ", features, " features of '", key_request.base,
           "', in the order of this key's, got ", std::to_string(base_features == 0 ? base_width : base_features));
  }
  for (const int64_t feature : key_request.base_features) {
    if (0 <= feature && feature < base_width) continue;
    refuse(argument_of(key_request, "base"), ": expected features of '", key_request.base, "' in [0, ", base_width,
           "), got ", feature);
  }
  check_base_names(options, request, *conversion.base);
  return conversion;
}

void check_conversion(const LoaderOptions& options, size_t request) {
  const StreamRequest& key_request = options.streams[request];
  if (!key_request.convert.empty()) {
    key_conversion(options, request);  // for its checks
  } else if (!key_request.base.empty()) {
    refuse(argument_of(key_request, "base"), ": goes with convert, got none");
  }
  for (size_t axis = 0; axis < 2; ++axis) check_mirror(options, request, axis);
}

}  // namespace robocache
