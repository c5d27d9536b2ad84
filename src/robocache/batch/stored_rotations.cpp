#include "robocache/batch/stored_rotations.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "robocache/actions/convert_math.hpp"
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

// Returns the rotations that conversions read as stored: from the key's stream, or with `taken` from these base
// features.
std::vector<StoredRotation> stored_rotations(const KeyConversion& conversion, int64_t features,
                                             const std::vector<int64_t>* taken) {
  std::vector<int64_t> origin(static_cast<size_t>(features));  // the stored feature of each, or below 0: it is computed
  std::iota(origin.begin(), origin.end(), 0);
  if (taken != nullptr && !taken->empty()) origin = *taken;
  std::vector<StoredRotation> found;
  const auto add = [&](const ActionOp& op, const auto& feature) {
    StoredRotation rotation{
        op.source, {}, op.normalizes ? std::numeric_limits<double>::infinity() : conversion.tolerance};
    for (int i = 0; i < op.source.width; ++i) rotation.features.push_back(origin[static_cast<size_t>(feature(i))]);
    if (std::ranges::none_of(rotation.features, [](int64_t f) { return f < 0; })) found.push_back(rotation);
  };
  for (const ActionOp& op : conversion.ops.ops) {
    if (is_of_poses(op.step)) {
      for (int begin = 3; begin < op.count; begin += 3 + op.source.width) {
        add(op, [&](int i) { return op.taken[begin + i]; });
      }
    }
    if (taken != nullptr) break;  // only the first conversion has a base
    if (op.step == ActionStep::kRotate) {
      add(op, [&](int i) { return op.begin + i; });
      const auto begin = origin.begin() + op.begin;
      origin.insert(origin.erase(begin, begin + op.source.width), static_cast<size_t>(op.target.width), -1);
    } else if (op.step == ActionStep::kRescale) {
      std::fill(origin.begin() + op.begin, origin.begin() + op.end, -1);
    } else {
      for (int i = 0; i < op.count; ++i) origin[op.taken[i]] = -1;
    }
  }
  return found;
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

// Returns the first row of these episodes without a valid rotation, or INT64_MAX.
int64_t first_fault(const Stream& stream, const std::vector<int64_t>& episodes, const StoredRotation& rotation) {
  std::atomic<int64_t> first = INT64_MAX;
  constexpr int64_t kEpisodes = 16;
  parallel_for(std::ssize(episodes), kEpisodes, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto episode = static_cast<size_t>(episodes[static_cast<size_t>(i)]);
      for (int64_t row = stream.row_offsets[episode]; row < stream.row_offsets[episode + 1]; ++row) {
        if (is_valid(stream, row, rotation)) continue;
        int64_t known = first;
        while (row < known && !first.compare_exchange_weak(known, row)) {
        }
        break;
      }
    }
  });
  return first;
}

void check(const LoaderOptions& options, size_t request, const SourceRequest& source, size_t request_read,
           const std::vector<StoredRotation>& rotations) {
  if (!source.streams[request_read]) return;
  const Stream& stream = source.dataset->streams()[static_cast<size_t>(*source.streams[request_read])];
  for (const StoredRotation& rotation : rotations) {
    const int64_t row = first_fault(stream, *source.episodes, rotation);
    if (row == INT64_MAX) continue;
    const auto after = std::ranges::upper_bound(stream.row_offsets, row);
    const int64_t episode = after - stream.row_offsets.begin() - 1;
    std::string what = "a rotation";
    if (rotation.form.kind == RotationKind::kQuaternion) {
      double square = 0;
      with_floating(stream.dtype, [&](auto element) {
        const auto* const values = static_cast<const decltype(element)*>(stream.values) + row * stream.features;
        for (const int64_t f : rotation.features) square += std::pow(to_work<double>(values[f]), 2);
      });
      what = "a quaternion of length 1, got length " + number_text(std::sqrt(square));
    } else {
      what += ", got a matrix that is no rotation";
    }
    refuse("delta_timestamps['", options.streams[request].stream, "'].convert: expected ", what, " in row ",
           std::to_string(row - stream.row_offsets[static_cast<size_t>(episode)]), " of '", stream.name,
           "' in episode ", std::to_string(episode), ", features ", std::to_string(rotation.features.front()), " to ",
           std::to_string(rotation.features.back()),
           "; normalize=True of the conversion accepts all but 0; episodes= leaves an episode out");
  }
}

}  // namespace

void check_stored_rotations(const LoaderOptions& options) {
  for (size_t request = 0; request < options.streams.size(); ++request) {
    const StreamRequest& asked = options.streams[request];
    if (asked.convert.empty()) continue;
    const KeyConversion conversion = key_conversion(options, request);
    for (const SourceRequest& source : options.sources) {
      const Stream* const stream = source.stream_of(request);
      if (stream == nullptr) continue;
      const int64_t features = stream->features;
      check(options, request, source, request, stored_rotations(conversion, features, nullptr));
      if (!conversion.base) continue;
      check(options, request, source, *conversion.base, stored_rotations(conversion, features, &asked.base_features));
    }
  }
}

}  // namespace robocache
