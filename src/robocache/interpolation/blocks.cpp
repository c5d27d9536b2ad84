#include "robocache/interpolation/blocks.hpp"

#include <algorithm>
#include <string>

#include "robocache/core/error.hpp"

namespace robocache {
namespace {

std::string slice_text(const FeatureBlock& block) {
  return "slice(" + std::to_string(block.begin) + ", " + std::to_string(block.end) + ")";
}

void check_width(const char* argument, const FeatureBlock& block) {
  const bool is_slerp = block.method == InterpolationMethod::kSlerp;
  if (!is_slerp && block.method != InterpolationMethod::kPose) return;
  const int64_t width = is_slerp ? 4 : 7;
  if (block.end - block.begin == width) return;
  throw ArgumentError(std::string(argument) + ": '" + std::string(name_of(block.method)) + "' expects " +
                      std::to_string(width) + " features, got " + std::to_string(block.end - block.begin) +
                      (is_slerp ? "; name each quaternion by its slice" : "; name each pose by its slice"));
}

}  // namespace

std::vector<FeatureBlock> feature_blocks(int64_t features, InterpolationMethod method,
                                         const std::vector<FeatureBlock>& named) {
  std::vector<FeatureBlock> sorted;
  for (FeatureBlock block : named) {
    if (block.end == kAllFeatures) block.end = features;
    const FeatureBlock as_given = block;
    if (block.begin < 0) block.begin += features;
    if (block.end < 0) block.end += features;
    if (block.begin < 0 || block.end > features || block.begin >= block.end) {
      throw ArgumentError("methods: expected slices of one feature or more of [0, " + std::to_string(features) +
                          "), got " + slice_text(as_given));
    }
    check_width("methods", block);
    sorted.push_back(block);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const FeatureBlock& a, const FeatureBlock& b) { return a.begin < b.begin; });

  std::vector<FeatureBlock> runs;
  const auto add = [&](int64_t begin, int64_t end, InterpolationMethod run_method) {
    if (!runs.empty() && runs.back().method == run_method) {
      runs.back().end = end;
    } else {
      runs.push_back({begin, end, run_method});
    }
  };
  const auto add_block = [&](const FeatureBlock& block) {
    if (block.method == InterpolationMethod::kPose) {
      add(block.begin, block.begin + 3, InterpolationMethod::kLinear);
      add(block.begin + 3, block.end, InterpolationMethod::kSlerp);
    } else {
      add(block.begin, block.end, block.method);
    }
  };
  int64_t covered = 0;
  const auto fill_up_to = [&](int64_t begin) {
    if (covered == begin && features > 0) return;
    const FeatureBlock rest{covered, begin, method};
    check_width("method", rest);
    add_block(rest);
  };
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i].begin < covered) {
      throw ArgumentError("methods: " + slice_text(sorted[i - 1]) + " and " + slice_text(sorted[i]) + " overlap");
    }
    fill_up_to(sorted[i].begin);
    add_block(sorted[i]);
    covered = sorted[i].end;
  }
  fill_up_to(features);
  return runs;
}

}  // namespace robocache
