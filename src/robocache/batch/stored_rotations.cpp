// Finds stored rows that hold no valid rotation for a conversion, before a loader draws them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "robocache/actions/convert_math.hpp"
#include "robocache/batch/option_checks.hpp"
#include "robocache/core/arguments.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/core/with_type.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache {
namespace {

// A rotation in the rows of a stream.
struct StoredRotation {
  RotationForm form;
  std::vector<int64_t> features;
  double tolerance;
};

// Returns the rotations that conversions read as stored: from the key's stream or, if `base_features` is not null, from these
// features of the base's stream (empty: from all).
std::vector<StoredRotation> stored_rotations(const KeyConversion& conversion, int64_t features,
                                             const std::vector<int64_t>* base_features) {
  // For each feature of the values, the stored feature that it is; below 0 if it is computed.
  std::vector<int64_t> stored_feature(static_cast<size_t>(features));
  std::iota(stored_feature.begin(), stored_feature.end(), 0);
  if (base_features != nullptr && !base_features->empty()) stored_feature = *base_features;
  std::vector<StoredRotation> rotations;
  const auto add = [&](const ActionOp& op, const auto& feature) {
    StoredRotation rotation{
        op.source, {}, op.normalizes ? std::numeric_limits<double>::infinity() : conversion.tolerance};
    for (int i = 0; i < op.source.width; ++i)
      rotation.features.push_back(stored_feature[static_cast<size_t>(feature(i))]);
    if (std::ranges::none_of(rotation.features, [](int64_t f) { return f < 0; })) rotations.push_back(rotation);
  };
  for (const ActionOp& op : conversion.ops.ops) {
    if (is_of_poses(op.step)) {
      for (int begin = 3; begin < op.count; begin += 3 + op.source.width) {
        add(op, [&](int i) { return op.taken[begin + i]; });
      }
    }
    if (base_features != nullptr) break;  // only the first conversion has a base
    if (op.step == ActionStep::kRotate) {
      add(op, [&](int i) { return op.begin + i; });
      const auto begin = stored_feature.begin() + op.begin;
      stored_feature.insert(stored_feature.erase(begin, begin + op.source.width), static_cast<size_t>(op.target.width),
                            -1);
    } else if (op.step == ActionStep::kRescale) {
      std::fill(stored_feature.begin() + op.begin, stored_feature.begin() + op.end, -1);
    } else {
      for (int i = 0; i < op.count; ++i) stored_feature[op.taken[i]] = -1;
    }
  }
  return rotations;
}

bool is_valid(const Stream& stream, int64_t row, const StoredRotation& rotation) {
  double x[kMostRotation] = {};
  with_floating(stream.dtype, [&](auto element) {
    const auto* const values = static_cast<const decltype(element)*>(stream.values) + row * stream.features;
    for (size_t i = 0; i < rotation.features.size(); ++i) x[i] = to_work<double>(values[rotation.features[i]]);
  });
  double m[9];
  return has_nan(x, kMostRotation) || to_matrix(rotation.form, x, rotation.tolerance, m);
}

// Returns the first row of an episode without a valid rotation, or the row after its last one.
int64_t first_fault(const Stream& stream, int64_t episode, const StoredRotation& rotation) {
  int64_t row = stream.first_row(episode);
  while (row < stream.first_row(episode + 1) && is_valid(stream, row, rotation)) ++row;
  return row;
}

void check(const LoaderOptions& options, size_t request, const SourceRequest& source, size_t read_request,
           const std::vector<StoredRotation>& rotations) {
  if (!source.streams[read_request]) return;
  const Stream& stream = *source.stream_of(read_request);
  std::vector<int64_t> episodes = *source.episodes;
  std::ranges::sort(episodes);
  for (const StoredRotation& rotation : rotations) {
    constexpr int64_t kEpisodesAtOnce = 16;  // that a thread takes
    const auto has_fault = [&](int64_t i) {
      const int64_t episode = episodes[static_cast<size_t>(i)];
      return first_fault(stream, episode, rotation) < stream.first_row(episode + 1);
    };
    const auto first = static_cast<size_t>(parallel_first(std::ssize(episodes), kEpisodesAtOnce, has_fault));
    if (first == episodes.size()) continue;
    const int64_t episode = episodes[first];
    const int64_t row = first_fault(stream, episode, rotation);
    std::string expected = "a rotation";
    if (rotation.form.kind == RotationKind::kQuaternion) {
      double square = 0;
      with_floating(stream.dtype, [&](auto element) {
        const auto* const values = static_cast<const decltype(element)*>(stream.values) + row * stream.features;
        for (const int64_t f : rotation.features) square += std::pow(to_work<double>(values[f]), 2);
      });
      expected = "a quaternion of length 1, got length " + number_text(std::sqrt(square));
    } else {
      expected += ", got a matrix that is no rotation";
    }
    refuse("delta_timestamps['", options.streams[request].stream, "'].convert: expected ", expected, " in row ",
           row - stream.first_row(episode), " of '", stream.name, "' in episode ", episode, ", features ",
           rotation.features.front(), " to ", rotation.features.back(),
           "; normalize=True of the conversion accepts all but 0; episodes= leaves an episode out");
  }
}

}  // namespace

void check_stored_rotations(const LoaderOptions& options) {
  for (size_t request = 0; request < options.streams.size(); ++request) {
    const StreamRequest& key_request = options.streams[request];
    if (key_request.convert.empty()) continue;
    const KeyConversion conversion = key_conversion(options, request);
    for (const SourceRequest& source : options.sources) {
      const Stream* const stream = source.stream_of(request);
      if (stream == nullptr) continue;
      const int64_t features = stream->features;
      check(options, request, source, request, stored_rotations(conversion, features, nullptr));
      if (!conversion.base) continue;
      check(options, request, source, *conversion.base,
            stored_rotations(conversion, features, &key_request.base_features));
    }
  }
}

}  // namespace robocache
