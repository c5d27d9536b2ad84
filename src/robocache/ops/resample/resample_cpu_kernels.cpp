// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <cstdint>
#ifdef __F16C__
#include <immintrin.h>
#endif

#include "robocache/ops/resample/resample_cpu.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

// out = fma(w, b - a, a) over a row.
template <class T, class Work>
void mix_row(const T* a, const T* b, Work w, T* out, int64_t n) {
  for (int64_t d = 0; d < n; ++d) out[d] = from_work<T>(lerp(to_work<Work>(a[d]), to_work<Work>(b[d]), w));
}

#ifdef __F16C__
// The compiler does not vectorise float16 conversions by itself.
inline void mix_row(const Float16* a, const Float16* b, float w, Float16* out, int64_t n) {
  const __m256 weight = _mm256_set1_ps(w);
  int64_t d = 0;
  for (; d + 8 <= n; d += 8) {
    const __m256 left = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + d)));
    const __m256 right = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b + d)));
    const __m256 mixed = _mm256_fmadd_ps(weight, _mm256_sub_ps(right, left), left);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + d), _mm256_cvtps_ph(mixed, _MM_FROUND_TO_NEAREST_INT));
  }
  for (; d < n; ++d) out[d] = from_work<Float16>(lerp(to_work<float>(a[d]), to_work<float>(b[d]), w));
}
#endif

template <class T, class Clock>
void rows(const ResampleParams& p, int64_t begin, int64_t end) {
  // Copied values have no arithmetic; their weight's type is never used.
  using Work = std::conditional_t<std::is_void_v<WorkType<T>>, float, WorkType<T>>;
  const PickRule<Clock> rule = rule_of<Clock>(p);
  const bool dense = p.values_feature == 1 && p.out_feature == 1;
  int64_t hint = 0;
  int64_t previous_batch = -1;
  int64_t length = 0;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t batch = row / p.targets_count;
    const int64_t target_index = row - batch * p.targets_count;
    if (batch != previous_batch) {
      previous_batch = batch;
      length = length_at(p.lengths, p.lengths_dtype, batch * p.lengths_batch, p.samples);
      hint = 0;
    }
    const ClockRow<Clock> times{static_cast<const Clock*>(p.times) + batch * p.times_batch, p.times_sample};
    const Clock target =
        static_cast<const Clock*>(p.targets)[batch * p.targets_batch + target_index * p.targets_target];
    const Pick<Work> picked = pick<Work>(times, length, target, rule, hint);
    if (p.valid != nullptr) p.valid[batch * p.valid_batch + target_index * p.valid_target] = picked.valid;
    if (p.features == 0) continue;  // values and out may be null

    T* out = static_cast<T*>(p.out) + batch * p.out_batch + target_index * p.out_target;
    if (picked.kind == PickKind::kAbsent) {
      for (int64_t d = 0; d < p.features; ++d) out[d * p.out_feature] = absent_value<T>();
      continue;
    }
    const T* values = static_cast<const T*>(p.values) + batch * p.values_batch;
    const T* a = values + picked.left * p.values_sample;
    const T* b = values + picked.right * p.values_sample;
    if (!dense) {
      for (int64_t d = 0; d < p.features; ++d) {
        out[d * p.out_feature] = mix(picked, a[d * p.values_feature], b[d * p.values_feature]);
      }
    } else if (picked.kind == PickKind::kOne) {
      __builtin_memcpy(out, a, static_cast<size_t>(p.features) * sizeof(T));
    } else if constexpr (!std::is_void_v<WorkType<T>>) {
      mix_row(a, b, picked.weight, out, p.features);
    }
  }
}

template <class T>
void rows_of_clock(const ResampleParams& p, int64_t begin, int64_t end) {
  switch (p.clock_dtype) {
    case DType::kFloat32:
      return rows<T, float>(p, begin, end);
    case DType::kFloat64:
      return rows<T, double>(p, begin, end);
    default:
      return rows<T, int64_t>(p, begin, end);
  }
}

}  // namespace

void resample_rows(const ResampleParams& p, int64_t begin, int64_t end) {
  switch (p.value_dtype) {
    case DType::kFloat64:
      return rows_of_clock<double>(p, begin, end);
    case DType::kFloat32:
      return rows_of_clock<float>(p, begin, end);
    case DType::kFloat16:
      return rows_of_clock<Float16>(p, begin, end);
    case DType::kBFloat16:
      return rows_of_clock<BFloat16>(p, begin, end);
    default:
      break;
  }
  switch (dtype_size(p.value_dtype)) {
    case 1:
      return rows_of_clock<uint8_t>(p, begin, end);
    case 2:
      return rows_of_clock<uint16_t>(p, begin, end);
    case 4:
      return rows_of_clock<uint32_t>(p, begin, end);
    default:
      return rows_of_clock<uint64_t>(p, begin, end);
  }
}

}  // namespace robocache::ROBOCACHE_ISA
