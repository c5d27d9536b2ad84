// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <cstdint>
#ifdef __F16C__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "robocache/interpolation/interpolate.hpp"
#include "robocache/interpolation/methods.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

// Writes a target that copies one sample, mixes two in a straight line, or is absent. `values` is the batch row's first
// sample, `out` the target's first feature.
template <class Work>
using RowWriter = void(const Segment& s, const Pick<Work>& picked, const char* values, char* out);

// ---- Values to the same type ----------------------------------------------------------------------------------------

// out = fma(w, b - a, a) over a row.
template <class T, class Work>
void mix_row(const T* a, const T* b, Work w, T* out, int64_t n) {
  for (int64_t d = 0; d < n; ++d) out[d] = from_work<T>(lerp(to_work<Work>(a[d]), to_work<Work>(b[d]), w));
}

// The compiler does not vectorise conversions of float16.
#ifdef __F16C__
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
#elif defined(__aarch64__)
inline float32x4_t load_four(const Float16* x) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&x->bits))); }
inline void store_four(float32x4_t y, Float16* to) { vst1_u16(&to->bits, vreinterpret_u16_f16(vcvt_f16_f32(y))); }

inline void mix_row(const Float16* a, const Float16* b, float w, Float16* out, int64_t n) {
  int64_t d = 0;
  for (; d + 4 <= n; d += 4) {
    const float32x4_t left = load_four(a + d);
    store_four(vfmaq_n_f32(left, vsubq_f32(load_four(b + d), left), w), out + d);
  }
  for (; d < n; ++d) out[d] = from_work<Float16>(lerp(to_work<float>(a[d]), to_work<float>(b[d]), w));
}
#endif

template <class T, class Work>
void write_same(const Segment& s, const Pick<Work>& picked, const char* values, char* to) {
  T* out = reinterpret_cast<T*>(to);
  if (picked.kind == PickKind::kAbsent) {
    for (int64_t d = 0; d < s.features; ++d) out[d * s.out_feature] = absent_value<T>();
    return;
  }
  const T* a = reinterpret_cast<const T*>(values) + picked.left * s.values_sample;
  const T* b = reinterpret_cast<const T*>(values) + picked.right * s.values_sample;
  if (s.values_feature != 1 || s.out_feature != 1) {
    for (int64_t d = 0; d < s.features; ++d) {
      out[d * s.out_feature] = mix(picked, a[d * s.values_feature], b[d * s.values_feature]);
    }
  } else if (picked.kind == PickKind::kOne) {
    __builtin_memcpy(out, a, static_cast<size_t>(s.features) * sizeof(T));
  } else if constexpr (!std::is_void_v<WorkType<T>>) {
    mix_row(a, b, picked.weight, out, s.features);
  }
}

template <class Work>
RowWriter<Work>* same_type_writer(DType dtype) {
  return with_type(dtype, [](auto element) -> RowWriter<Work>* {
    using T = decltype(element);
    if constexpr (std::is_void_v<WorkType<T>> || std::is_same_v<WorkType<T>, Work>) return write_same<T, Work>;
    __builtin_unreachable();
  });
}

// ---- Values scaled, or to another type: one piece of the row after another, in the work type ------------------------

constexpr int64_t kPiece = 64;

template <class Work, class T>
void load_as(const void* from, int64_t stride, int64_t n, Work* to) {
  const T* x = static_cast<const T*>(from);
  int64_t d = 0;
#ifdef __F16C__
  if constexpr (std::is_same_v<T, Float16> && std::is_same_v<Work, float>) {
    for (; stride == 1 && d + 8 <= n; d += 8) {
      _mm256_storeu_ps(to + d, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + d))));
    }
  }
#endif
  for (; d < n; ++d) to[d] = to_work<Work>(x[d * stride]);
}

template <class Work>
void load_piece(DType dtype, const char* row, int64_t first, int64_t stride, int64_t n, Work* to) {
  const void* from = row + first * stride * dtype_size(dtype);
  with_type(dtype, [&](auto element) { load_as<Work, decltype(element)>(from, stride, n, to); });
}

template <class Work, class T>
void store_as(const Work* from, int64_t n, void* to, int64_t stride) {
  T* y = static_cast<T*>(to);
  int64_t d = 0;
#ifdef __F16C__
  if constexpr (std::is_same_v<T, Float16> && std::is_same_v<Work, float>) {
    for (; stride == 1 && d + 8 <= n; d += 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y + d),
                       _mm256_cvtps_ph(_mm256_loadu_ps(from + d), _MM_FROUND_TO_NEAREST_INT));
    }
  }
#elif defined(__aarch64__)
  if constexpr (std::is_same_v<T, Float16> && std::is_same_v<Work, float>) {
    for (; stride == 1 && d + 4 <= n; d += 4) store_four(vld1q_f32(from + d), y + d);
  }
#endif
  for (; d < n; ++d) y[d * stride] = rounded_once<T>(from[d]);
}

template <class Work>
void store_piece(DType dtype, const Work* from, int64_t n, char* row, int64_t first, int64_t stride) {
  void* to = row + first * stride * dtype_size(dtype);
  with_floating(dtype, [&](auto element) { store_as<Work, decltype(element)>(from, n, to, stride); });
}

template <class Work>
void scale_piece(const Segment& s, int64_t first, int64_t n, Work* y) {
  if (!s.scaled) return;
  for (int64_t d = 0; d < n; ++d) {
    y[d] = multiply_add(y[d], number_of<Work>(s.scale, s.scale_per_feature, first + d),
                        number_of<Work>(s.shift, s.shift_per_feature, first + d));
  }
}

template <class Work>
void write_converted(const Segment& s, const Pick<Work>& picked, const char* values, char* out) {
  const char* const a = values + picked.left * s.values_sample * dtype_size(s.value_dtype);
  const char* const b = values + picked.right * s.values_sample * dtype_size(s.value_dtype);
  Work y[kPiece];
  Work right[kPiece];
  for (int64_t first = 0; first < s.features; first += kPiece) {
    const int64_t n = s.features - first < kPiece ? s.features - first : kPiece;
    if (picked.kind == PickKind::kAbsent) {
      // Integers have no NaN: an absent integer is 0, even if it would be scaled.
      for (int64_t d = 0; d < n; ++d) y[d] = is_floating(s.value_dtype) ? absent_value<Work>() : Work(0);
    } else {
      load_piece(s.value_dtype, a, first, s.values_feature, n, y);
      if (picked.kind == PickKind::kMix) {
        load_piece(s.value_dtype, b, first, s.values_feature, n, right);
        for (int64_t d = 0; d < n; ++d) y[d] = lerp(y[d], right[d], picked.weight);
      }
      scale_piece(s, first, n, y);
    }
    store_piece(s.out_dtype, y, n, out, first, s.out_feature);
  }
}

// ---- Mixtures by the other methods, one piece of the row after another ----------------------------------------------

// `values` points to the batch row's first sample.
template <class Method, class Work>
void write_mixture(const Segment& s, const Stencil<int64_t>& stencil, const CurveWeights<Work>& c, const char* values,
                   int64_t batch, char* out) {
  static_assert(kPiece % Method::kFeatures == 0);
  constexpr int kReach = Method::kReach;
  constexpr int kSamples = 2 * kReach + 2;
  Work x[kSamples][kPiece];
  Work y[kPiece];
  const Work* rows[kRowsOf<Method>];
  for (int i = 0; i < kSamples; ++i) rows[i] = x[i];
  for (int64_t first = 0; first < s.features; first += kPiece) {
    const int64_t n = s.features - first < kPiece ? s.features - first : kPiece;
    for (int i = 0; i < kSamples; ++i) {
      const int64_t row = stencil.rows[2 - kReach + i];
      load_piece(s.value_dtype, values + row * s.values_sample * dtype_size(s.value_dtype), first, s.values_feature, n,
                 x[i]);
    }
    if constexpr (Method::kSlopes) {
      const Work* const slopes = static_cast<const Work*>(s.slopes) + batch * s.samples * s.features + first;
      for (int i = 0; i < 2; ++i) rows[2 + i] = slopes + stencil.rows[2 + i] * s.features;
    }
    const auto mix = [&](int before, int after) {
      mix_features<Method>(c, before, after, rows, static_cast<int>(n), y);
    };
    // Nearly all targets have all neighbours. With constants, the compiler drops the branches for the row's ends from
    // the loop.
    const bool has_all = stencil.before == kReach && stencil.after == kReach;
    has_all ? mix(kReach, kReach) : mix(stencil.before, stencil.after);
    scale_piece(s, first, n, y);
    store_piece(s.out_dtype, y, n, out, first, s.out_feature);
  }
}

// ---- The rows -------------------------------------------------------------------------------------------------------

// Fills the entries [begin, end) of one segment's [batch, targets_count].
template <class Work, class Clock>
void segment_entries(const Interpolation& call, const Segment& s, int64_t begin, int64_t end) {
  const PickRule<Clock> rule = rule_of<Clock>(s);
  RowWriter<Work>* const write =
      s.value_dtype == s.out_dtype && !s.scaled ? same_type_writer<Work>(s.value_dtype) : write_converted<Work>;
  const int64_t value_size = dtype_size(s.value_dtype);
  const int64_t out_size = dtype_size(s.out_dtype);
  int64_t hint = 0;
  int64_t previous_batch = -1;
  int64_t length = 0;
  for (int64_t entry = begin; entry < end; ++entry) {
    const int64_t batch = entry / call.targets_count;
    const int64_t index = entry - batch * call.targets_count;
    if (batch != previous_batch) {
      previous_batch = batch;
      length = row_length(s, batch);
      hint = 0;
    }
    const ClockRow<Clock> times{static_cast<const Clock*>(s.times) + batch * s.times_batch, s.times_sample};
    const StreamTarget<Clock> target = target_on<Clock>(call, s, batch, index);
    const Pick<Work> picked = pick<Work>(times, target.exists ? length : 0, target.time, rule, hint);
    if (s.valid != nullptr) s.valid[batch * s.valid_batch + index * s.valid_target] = picked.valid;
    if (s.age != nullptr) {
      const bool exists = picked.kind != PickKind::kAbsent;
      write_age<Clock>(call, s, batch, index, exists, target.time, exists ? times[picked.left] : Clock{});
    }
    if (s.features == 0) continue;  // values and out may be null
    const char* const values = static_cast<const char*>(s.values) + batch * s.values_batch * value_size;
    char* const out = static_cast<char*>(s.out) + (batch * s.out_batch + index * s.out_target) * out_size;
    if (picked.kind != PickKind::kMix) {  // every method copies a hit
      write(s, picked, values, out);
      continue;
    }
    with_method(s.method, [&](auto method) {
      using Method = decltype(method);
      if constexpr (kIsStraight<Method>) {
        write(s, picked, values, out);
      } else {
        const auto stencil = stencil_around(times, length, picked.left, picked.right, Method::kReach);
        const auto weights = weights_around<Method>(times, length, stencil, picked.weight);
        write_mixture<Method>(s, stencil, weights, values, batch, out);
      }
    });
  }
}

}  // namespace

void interpolate_entries(const Interpolation& call, int64_t begin, int64_t end) {
  const int64_t rows = call.batch * call.targets_count;
  while (begin < end) {
    const int64_t segment = begin / rows;
    const int64_t segment_end = end < (segment + 1) * rows ? end : (segment + 1) * rows;
    const Segment& s = call.segments[segment];
    with_clock(s.clock_dtype, [&](auto clock) {
      using Clock = decltype(clock);
      if (works_in_double(s)) {
        segment_entries<double, Clock>(call, s, begin - segment * rows, segment_end - segment * rows);
      } else {
        segment_entries<float, Clock>(call, s, begin - segment * rows, segment_end - segment * rows);
      }
    });
    begin = segment_end;
  }
}

}  // namespace robocache::ROBOCACHE_ISA
