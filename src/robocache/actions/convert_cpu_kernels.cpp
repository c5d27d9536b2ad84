#include "robocache/actions/convert_cpu.hpp"
#include "robocache/actions/convert_math.hpp"

namespace robocache::ROBOCACHE_ISA {

void convert_samples(const ConvertActionsParams& p, int64_t begin, int64_t end) {
  with_action_types(p, [&](auto work, auto out) {
    using Scalar = decltype(work);
    const ActionOp& first = p.ops[0];
    const bool has_poses = p.base_features != nullptr && is_of_poses(first.step);
    const int width = 3 + first.source.width;
    Base<Scalar> base;
    BasePose<Scalar> poses[kMostActionFeatures / 6];
    for (int64_t sample = begin; sample < end; ++sample) {
      load_base(p, sample, base);
      store_base(p, sample, base);
      for (int at = 0; has_poses && base.is_there && at < first.count; at += width) {
        poses[at / width] = base_pose(first, static_cast<Scalar>(p.tolerance), base.row, at);
      }
      for (int64_t k = 0; k < p.steps; ++k) {
        convert_step<Scalar, decltype(out)>(p, sample, k, base, has_poses ? poses : nullptr);
      }
    }
  });
}

}  // namespace robocache::ROBOCACHE_ISA
