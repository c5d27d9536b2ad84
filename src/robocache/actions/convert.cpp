#include "robocache/actions/convert.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "robocache/core/arguments.hpp"

namespace robocache {
namespace {

void check_features(const std::vector<int64_t>& asked, int64_t features, std::string_view argument) {
  for (size_t i = 0; i < asked.size(); ++i) {
    if (asked[i] >= (i == 0 ? 0 : asked[i - 1] + 1) && asked[i] < features) continue;
    refuse(argument, ": expected ascending features below ", std::to_string(features), ", got ",
           std::to_string(asked[i]));
  }
}

bool is_relative(ActionStep step) { return step < ActionStep::kRotate; }

ActionOp op_of(const ActionConversion& asked, int64_t features, std::string_view argument) {
  ActionOp op{};
  op.step = asked.step;
  op.source = rotation_form(asked.rotation, argument);
  op.target = rotation_form(asked.target, argument);
  op.begin = static_cast<int32_t>(asked.begin);
  op.end = static_cast<int32_t>(asked.end);
  check_features(asked.features, features, argument);
  check_features(asked.angles, features, argument);
  op.count = static_cast<int32_t>(asked.features.size());
  for (size_t i = 0; i < asked.features.size(); ++i) {
    op.taken[i] = static_cast<uint8_t>(asked.features[i]);
    op.is_taken[asked.features[i]] = 1;
    op.is_angle[asked.features[i]] = std::ranges::binary_search(asked.angles, asked.features[i]) ? 1 : 0;
  }
  op.has_angles = !asked.angles.empty();
  op.normalizes = asked.normalize;
  if (is_of_poses(op.step) && (op.count == 0 || op.count % (3 + op.source.width) != 0)) {
    refuse(argument, ": expected poses of ", std::to_string(3 + op.source.width), " features, got ",
           std::to_string(op.count), " features");
  }
  for (const double number :
       {asked.scale_metres, asked.scale_radians, asked.from_first, asked.from_last, asked.to_first, asked.to_last}) {
    if (!std::isfinite(number)) refuse(argument, ": expected finite numbers, got ", number_text(number));
  }
  op.scale_metres = asked.scale_metres;
  op.scale_radians = asked.scale_radians;
  if (op.step == ActionStep::kRotate) op.end = op.begin + op.source.width;
  if (!is_relative(op.step) && !(0 <= asked.begin && asked.begin < op.end && op.end <= features)) {
    refuse(argument, ": expected features within ", std::to_string(features), ", got ", std::to_string(asked.begin),
           " to ", std::to_string(op.end));
  }
  if (asked.from_first == asked.from_last || asked.to_first == asked.to_last) {
    refuse(argument, ": expected ranges of two numbers that differ, got the same twice");
  }
  op.from = asked.from_first;
  op.to = asked.to_first;
  op.factor = (asked.to_last - asked.to_first) / (asked.from_last - asked.from_first);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  op.least = asked.clip ? std::min(asked.from_first, asked.from_last) : -kInfinity;
  op.most = asked.clip ? std::max(asked.from_first, asked.from_last) : kInfinity;
  return op;
}

}  // namespace

RotationForm rotation_form(std::string_view name, std::string_view argument) {
  struct Named {
    std::string_view name;
    RotationForm form;
  };
  constexpr auto kQuaternion = RotationKind::kQuaternion;
  constexpr auto kMatrix = RotationKind::kMatrix;
  static constexpr Named kForms[] = {{"quat_xyzw", {kQuaternion, 4, {0, 1, 2, 3}, {}, false}},
                                     {"quat_wxyz", {kQuaternion, 4, {3, 0, 1, 2}, {}, false}},
                                     {"matrix", {kMatrix, 9, {0, 1, 2, 3, 4, 5, 6, 7, 8}, {}, false}},
                                     {"rot6d_rows", {kMatrix, 6, {0, 1, 2, 3, 4, 5}, {}, false}},
                                     {"rot6d_columns", {kMatrix, 6, {0, 3, 6, 1, 4, 7}, {}, false}},
                                     {"rot6d_interleaved", {kMatrix, 6, {0, 1, 3, 4, 6, 7}, {}, false}},
                                     {"rotvec", {RotationKind::kVector, 3, {}, {}, false}}};
  for (const Named& known : kForms) {
    if (known.name == name) return known.form;
  }
  RotationForm form{RotationKind::kEuler, 3, {}, {}, false};
  constexpr std::string_view kEuler = "euler_";
  if (name.starts_with(kEuler) && name.size() == kEuler.size() + 3) {
    form.intrinsic = name[kEuler.size()] < 'a';
    bool known = true;
    for (size_t i = 0; i < 3; ++i) {
      const char first = form.intrinsic ? 'X' : 'x';
      form.axes[i] = name[kEuler.size() + i] - first;
      known = known && 0 <= form.axes[i] && form.axes[i] < 3 && (i == 0 || form.axes[i] != form.axes[i - 1]);
    }
    if (known) return form;
  }
  refuse(
      argument,
      ": expected 'quat_xyzw', 'quat_wxyz', 'matrix', 'rot6d_rows', 'rot6d_columns', 'rot6d_interleaved', 'rotvec', or "
      "'euler_' and three axes, no two neighbours the same ('euler_xyz' extrinsic, 'euler_XYZ' intrinsic), got '",
      name, "'");
}

ActionOps action_ops(const std::vector<ActionConversion>& conversions, int64_t features, std::string_view argument) {
  ActionOps result{.ops = {}, .out_features = features, .has_base = false};
  for (const ActionConversion& asked : conversions) {
    if (result.out_features > kMostActionFeatures) break;
    if (is_relative(asked.step) && !result.ops.empty()) {
      refuse(argument, ": expected '", name_of(asked.step), "' first, since the state is as recorded");
    }
    result.has_base = result.has_base || is_relative(asked.step);
    result.ops.push_back(op_of(asked, result.out_features, argument));
    const ActionOp& op = result.ops.back();
    if (op.step == ActionStep::kRotate) result.out_features += op.target.width - op.source.width;
  }
  if (std::max(features, result.out_features) > kMostActionFeatures) {
    refuse(argument, ": expected at most ", std::to_string(kMostActionFeatures), " features, got ",
           std::to_string(std::max(features, result.out_features)));
  }
  return result;
}

}  // namespace robocache
