#include "robocache/actions/convert.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "robocache/core/arguments.hpp"

namespace robocache {
namespace {

void check_features(const std::vector<int64_t>& indices, int64_t features, std::string_view argument) {
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= (i == 0 ? 0 : indices[i - 1] + 1) && indices[i] < features) continue;
    refuse(argument, ": expected ascending features below ", std::to_string(features), ", got ",
           std::to_string(indices[i]));
  }
}

bool is_relative(ActionStep step) { return step < ActionStep::kRotate; }

ActionOp op_of(const ActionConversion& conversion, int64_t features, std::string_view argument) {
  ActionOp op{};
  op.step = conversion.step;
  op.source = rotation_form(conversion.rotation, argument);
  op.target = rotation_form(conversion.target, argument);
  check_features(conversion.features, features, argument);
  check_features(conversion.angles, features, argument);
  op.count = static_cast<int32_t>(conversion.features.size());
  for (size_t i = 0; i < conversion.features.size(); ++i) {
    op.taken[i] = static_cast<uint8_t>(conversion.features[i]);
    op.is_taken[conversion.features[i]] = 1;
    op.is_angle[conversion.features[i]] = std::ranges::binary_search(conversion.angles, conversion.features[i]) ? 1 : 0;
  }
  op.has_angles = !conversion.angles.empty();
  op.normalizes = conversion.normalize;
  if (is_of_poses(op.step) && (op.count == 0 || op.count % (3 + op.source.width) != 0)) {
    refuse(argument, ": expected poses of ", std::to_string(3 + op.source.width), " features, got ",
           std::to_string(op.count), " features");
  }
  for (const double number : {conversion.scale_metres, conversion.scale_radians, conversion.from_first,
                              conversion.from_last, conversion.to_first, conversion.to_last}) {
    if (!std::isfinite(number)) refuse(argument, ": expected finite numbers, got ", number_text(number));
  }
  op.scale_metres = conversion.scale_metres;
  op.scale_radians = conversion.scale_radians;
  const bool begins_in_row = 0 <= conversion.begin && conversion.begin < features;
  const int64_t end =
      op.step == ActionStep::kRotate && begins_in_row ? conversion.begin + op.source.width : conversion.end;
  if (!is_relative(op.step) && !(begins_in_row && conversion.begin < end && end <= features)) {
    refuse(argument, ": expected a range of features below ", std::to_string(features), ", got one from ",
           std::to_string(conversion.begin));
  }
  op.begin = static_cast<int32_t>(conversion.begin);
  op.end = static_cast<int32_t>(end);
  if (conversion.from_first == conversion.from_last || conversion.to_first == conversion.to_last) {
    refuse(argument, ": expected ranges of two numbers that differ, got the same twice");
  }
  op.from = conversion.from_first;
  op.to = conversion.to_first;
  op.factor = (conversion.to_last - conversion.to_first) / (conversion.from_last - conversion.from_first);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  op.least = conversion.clip ? std::min(conversion.from_first, conversion.from_last) : -kInfinity;
  op.most = conversion.clip ? std::max(conversion.from_first, conversion.from_last) : kInfinity;
  return op;
}

}  // namespace

RotationForm rotation_form(std::string_view name, std::string_view argument) {
  struct NamedForm {
    std::string_view name;
    RotationForm form;
  };
  constexpr auto kQuaternion = RotationKind::kQuaternion;
  constexpr auto kMatrix = RotationKind::kMatrix;
  static constexpr NamedForm kForms[] = {{"quat_xyzw", {kQuaternion, 4, {0, 1, 2, 3}, {}, false}},
                                         {"quat_wxyz", {kQuaternion, 4, {3, 0, 1, 2}, {}, false}},
                                         {"matrix", {kMatrix, 9, {0, 1, 2, 3, 4, 5, 6, 7, 8}, {}, false}},
                                         {"rot6d_rows", {kMatrix, 6, {0, 1, 2, 3, 4, 5}, {}, false}},
                                         {"rot6d_columns", {kMatrix, 6, {0, 3, 6, 1, 4, 7}, {}, false}},
                                         {"rot6d_interleaved", {kMatrix, 6, {0, 1, 3, 4, 6, 7}, {}, false}},
                                         {"rotvec", {RotationKind::kVector, 3, {}, {}, false}}};
  for (const NamedForm& entry : kForms) {
    if (entry.name == name) return entry.form;
  }
  RotationForm form{RotationKind::kEuler, 3, {}, {}, false};
  constexpr std::string_view kEuler = "euler_";
  if (name.starts_with(kEuler) && name.size() == kEuler.size() + 3) {
    form.intrinsic = name[kEuler.size()] < 'a';
    bool has_axes = true;
    for (size_t i = 0; i < 3; ++i) {
      const char first = form.intrinsic ? 'X' : 'x';
      form.axes[i] = name[kEuler.size() + i] - first;
      has_axes = has_axes && 0 <= form.axes[i] && form.axes[i] < 3 && (i == 0 || form.axes[i] != form.axes[i - 1]);
    }
    if (has_axes) return form;
  }
  refuse(
      argument,
      ": expected 'quat_xyzw', 'quat_wxyz', 'matrix', 'rot6d_rows', 'rot6d_columns', 'rot6d_interleaved', 'rotvec', or "
      "'euler_' and three axes, no two neighbours the same ('euler_xyz' extrinsic, 'euler_XYZ' intrinsic), got '",
      name, "'");
}

ActionOps action_ops(const std::vector<ActionConversion>& conversions, int64_t features, std::string_view argument) {
  ActionOps result{.ops = {}, .out_features = features, .has_base = false};
  for (const ActionConversion& conversion : conversions) {
    if (result.out_features > kMostActionFeatures) break;
    if (is_relative(conversion.step) && !result.ops.empty()) {
      refuse(argument, ": expected '", name_of(conversion.step),
             "' as the first conversion, since it subtracts the state as recorded");
    }
    result.has_base = result.has_base || is_relative(conversion.step);
    result.ops.push_back(op_of(conversion, result.out_features, argument));
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
