// Converts features that do not mix, in whole vectors across the rows of a sample, by the rules of convert_feature().
#include <cstring>
#include <type_traits>

#include "robocache/actions/convert_cpu.hpp"
#include "robocache/actions/convert_math.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

// Calls body(first, count) for the numbers of kTileRows rows at a time.
template <class Body>
void for_each_tile(const ConvertActionsParams& p, const Body& body) {
  const int64_t numbers = int64_t{p.steps} * p.features;
  const int64_t tile = int64_t{kTileRows} * p.features;
  for (int64_t first = 0; first < numbers; first += tile) body(first, numbers - first < tile ? numbers - first : tile);
}

template <class Scalar>
void subtract(const ConvertActionsParams& p, const ActionOp& op, const BaseRow<Scalar>& base, Scalar* x) {
  const int features = p.features;
  if (op.step == ActionStep::kStepDelta) {
    for (int64_t i = int64_t{p.steps} * features - 1; i >= 0; --i) {
      const auto f = static_cast<int>(i % features);
      if (op.is_taken[f] != 0) x[i] = x[i] - (i < features ? base[f] : x[i - features]);
    }
  } else {
    Scalar subtrahends[kTileRows * kMostActionFeatures];  // the numbers that a tile subtracts; 0 for features that stay
    for (int f = 0; f < features; ++f) subtrahends[f] = op.is_taken[f] != 0 ? base[f] : Scalar(0);
    const int64_t tile = int64_t{kTileRows < p.steps ? kTileRows : p.steps} * features;
    for (int64_t filled = features; filled < tile; filled *= 2) {  // repeats the first row
      std::memcpy(subtrahends + filled, subtrahends,
                  static_cast<size_t>(tile - filled < filled ? tile - filled : filled) * sizeof(Scalar));
    }
    for_each_tile(p, [&](int64_t first, int64_t count) {
      for (int64_t i = 0; i < count; ++i) x[first + i] = x[first + i] - subtrahends[i];
    });
  }
  for (int i = 0; op.has_angles && i < op.count; ++i) {
    if (op.is_angle[op.taken[i]] == 0) continue;
    for (int64_t k = 0; k < p.steps; ++k) {
      Scalar& angle = x[k * features + op.taken[i]];
      angle = within_half_a_turn(angle);
    }
  }
}

template <class Scalar>
void convert_all(const ConvertActionsParams& p, char* memory, int32_t source, int64_t sample,
                 const FlippedAxes& flipped) {
  const BaseRow<Scalar> base = base_of<Scalar>(p, memory, sample, flipped);
  store_base(p, memory, sample, base);
  auto* const x = reinterpret_cast<Scalar*>(memory + p.x_offset) + sample * p.steps * p.features;
  for (int f = 0; flipped.x != 0 && f < p.features; ++f) {
    for (int64_t k = 0; k < p.steps; ++k) {
      Scalar& number = x[k * p.features + f];
      number = mirrored(p.mirror, flipped.x, f, number);
    }
  }
  for (int32_t op_index = 0; op_index < p.op_count; ++op_index) {
    const ActionOp& op = p.ops[op_index];
    if (op.step != ActionStep::kRescale) {
      subtract(p, op, base, x);
      continue;
    }
    for (int64_t k = 0; k < p.steps; ++k) {
      for (int f = op.begin; f < op.end; ++f) x[k * p.features + f] = rescaled(op, x[k * p.features + f]);
    }
  }
  if (p.scale != nullptr) {
    const int64_t source_offset = int64_t{source} * p.scale_rows * p.out_features;
    const Scalar* const __restrict__ scale = static_cast<const Scalar*>(p.scale) + source_offset;
    const Scalar* const __restrict__ shift = static_cast<const Scalar*>(p.shift) + source_offset;
    for_each_tile(p, [&](int64_t first, int64_t count) {
      const int64_t offset = p.scale_per_step ? first : 0;
      for (int64_t i = 0; i < count; ++i)
        x[first + i] = multiply_add(x[first + i], scale[offset + i], shift[offset + i]);
      for (int64_t i = 0; p.clip && i < count; ++i) x[first + i] = clipped(x[first + i]);
    });
  }
  with_floating(p.out_dtype, [&](auto out) {
    using Out = decltype(out);
    auto* const to = reinterpret_cast<Out*>(memory + p.out_offset) + sample * p.steps * p.features;
    if (p.x_offset != p.out_offset) {
      for (int64_t i = 0; i < int64_t{p.steps} * p.features; ++i) to[i] = rounded_once<Out>(x[i]);
    }
    for (int64_t k = p.steps - 1; k >= 0; --k) {
      const int64_t row = sample * p.steps + k;
      const bool is_there = base.is_there && has_row(p, memory, row);
      store_pad(p, memory, row, k, base, is_there);
      for (int f = 0; !is_there && f < p.features; ++f) to[k * p.features + f] = rounded_once<Out>(Scalar(0));
    }
  });
}

}  // namespace

void convert_features(const ConvertActionsParams& p, char* memory, int32_t source, int64_t sample,
                      const FlippedAxes& flipped) {
  p.wide ? convert_all<double>(p, memory, source, sample, flipped)
         : convert_all<float>(p, memory, source, sample, flipped);
}

}  // namespace robocache::ROBOCACHE_ISA
