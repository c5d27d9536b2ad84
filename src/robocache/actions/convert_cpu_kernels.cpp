#include "robocache/actions/convert_cpu.hpp"
#include "robocache/actions/convert_math.hpp"
#include "robocache/core/cpu_isa.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

// Converts the steps [begin, end) of a sample together, at most as many as a Wide holds.
template <class Scalar>
void convert_together(const ConvertActionsParams& p, char* memory, int32_t source, int64_t sample, int64_t begin,
                      int64_t end, const FlippedAxes& flipped, const BaseRow<Scalar>& base,
                      const BasePose<Scalar>* poses) {
  constexpr int kCount = kRegisterBytes / static_cast<int>(sizeof(Scalar));
  using Rows = Wide<Scalar, kCount>;
  const auto count = static_cast<int>(end - begin);
  const int64_t first = sample * p.steps + begin;
  const auto* const recorded = reinterpret_cast<const Scalar*>(memory + p.x_offset) + first * p.features;
  Rows x[kMostActionFeatures];
  Scalar numbers[kCount] = {};
  const auto numbers_as_rows = [&] {
    Rows rows;
    __builtin_memcpy(&rows, numbers, sizeof(rows));
    return rows;
  };
  for (int f = 0; f < p.features; ++f) {
    for (int i = 0; i < count; ++i) numbers[i] = recorded[i * p.features + f];
    x[f] = mirrored(p.mirror, flipped.x, f, numbers_as_rows());
  }
  const auto previous = [&](int f) {
    for (int i = 0; i < count; ++i) {
      numbers[i] = begin + i == 0 ? base[f] : mirrored(p.mirror, flipped.x, f, recorded[(i - 1) * p.features + f]);
    }
    return numbers_as_rows();
  };
  const auto valid = convert_row(p, x, previous, base, poses);
  bool is_there[kCount];
  // Goes backwards, since the padding may be overwritten and depends on the step before.
  for (int i = count - 1; i >= 0; --i) {
    is_there[i] = base.is_there && valid.bits[i] != 0 && has_row(p, memory, first + i);
    store_pad(p, memory, first + i, begin + i, base, is_there[i]);
  }
  const int64_t source_offset = (int64_t{source} * p.scale_rows + (p.scale_per_step ? begin : 0)) * p.out_features;
  const auto* const scale = static_cast<const Scalar*>(p.scale) + source_offset;
  const auto* const shift = static_cast<const Scalar*>(p.shift) + source_offset;
  with_floating(p.out_dtype, [&](auto out) {
    using Out = decltype(out);
    Out* const to = reinterpret_cast<Out*>(memory + p.out_offset) + first * p.out_features;
    for (int f = 0; f < p.out_features; ++f) {
      const auto row_numbers = [&](const Scalar* table) {
        if (!p.scale_per_step) return Rows(table[f]);
        for (int i = 0; i < count; ++i) numbers[i] = table[i * p.out_features + f];
        return numbers_as_rows();
      };
      const Rows y = p.scale != nullptr ? multiply_add(x[f], row_numbers(scale), row_numbers(shift)) : x[f];
      __builtin_memcpy(numbers, &y, sizeof(y));
      for (int i = 0; p.clip && i < count; ++i) numbers[i] = clipped(numbers[i]);
      for (int i = 0; i < count; ++i) {
        to[i * p.out_features + f] = rounded_once<Out>(is_there[i] ? numbers[i] : Scalar(0));
      }
    }
  });
}

template <class Scalar>
void convert_all(const ConvertActionsParams& p, char* memory, int32_t source, int64_t sample,
                 const FlippedAxes& flipped) {
  const ActionOp& first_op = p.ops[0];
  const BaseRow<Scalar> base = base_of<Scalar>(p, memory, sample, flipped);
  store_base(p, memory, sample, base);
  const bool has_poses = p.base_features != nullptr && is_of_poses(first_op.step);
  const int width = 3 + first_op.source.width;
  BasePose<Scalar> poses[kMostActionFeatures / 6];  // a pose has at least 6 numbers
  for (int begin = 0; has_poses && begin < first_op.count; begin += width) {
    poses[begin / width] = base_pose(first_op, tolerance_of<Scalar>(p, first_op), base, begin);
  }
  constexpr int kCount = kRegisterBytes / static_cast<int>(sizeof(Scalar));
  for (int64_t begin = 0; begin < p.steps; begin += kCount) {
    const int64_t end = p.steps - begin < kCount ? p.steps : begin + kCount;
    convert_together(p, memory, source, sample, begin, end, flipped, base, poses);
  }
}

}  // namespace

void convert_steps(const ConvertActionsParams& p, char* memory, int32_t source, int64_t sample,
                   const FlippedAxes& flipped) {
  p.wide ? convert_all<double>(p, memory, source, sample, flipped)
         : convert_all<float>(p, memory, source, sample, flipped);
}

}  // namespace robocache::ROBOCACHE_ISA
