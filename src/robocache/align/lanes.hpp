// The rules of number.hpp, applied to as many neighbouring features as a vector register holds; a lane holds one. The
// loops that use them are built once per instruction set (namespace robocache::ROBOCACHE_ISA). Results have the same
// bits as those of the scalar rules, except for NaNs.
#pragma once

#include <cstdint>
#include <type_traits>
#ifdef __x86_64__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "robocache/core/cpu_isa.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache::ROBOCACHE_ISA {

template <class T, int kCount>
struct LanesOf {
  typedef T type __attribute__((vector_size(kCount * sizeof(T))));
};

// kCount elements of T, side by side. Pass them by reference: the calling convention for vectors depends on the
// instruction set.
template <class T, int kCount>
using Lanes = typename LanesOf<T, kCount>::type;

// y = fma(x, y, z).
template <class V>
ROBOCACHE_HD void multiply_add_lanes(const V& x, V& y, const V& z) {
#ifdef __FMA__
  constexpr bool kFloat = std::is_same_v<std::remove_cvref_t<decltype(y[0])>, float>;
  if constexpr (sizeof(V) == 16 && kFloat) {
    y = _mm_fmadd_ps(x, y, z);
    return;
  } else if constexpr (sizeof(V) == 16) {
    y = _mm_fmadd_pd(x, y, z);
    return;
  } else if constexpr (sizeof(V) == 32 && kFloat) {
    y = _mm256_fmadd_ps(x, y, z);
    return;
  } else if constexpr (sizeof(V) == 32) {
    y = _mm256_fmadd_pd(x, y, z);
    return;
  }
#ifdef __AVX512F__
  if constexpr (sizeof(V) == 64 && kFloat) {
    y = _mm512_fmadd_ps(x, y, z);
    return;
  } else if constexpr (sizeof(V) == 64) {
    y = _mm512_fmadd_pd(x, y, z);
    return;
  }
#endif
#endif
  for (size_t i = 0; i < sizeof(V) / sizeof(y[0]); ++i) y[i] = multiply_add(x[i], y[i], z[i]);
}

// y = clipped(y), lane by lane.
template <class V>
ROBOCACHE_HD void clip_lanes(V& y) {
  const V one = 1 - V{};
  y = y < -one ? -one : y;
  y = y > one ? one : y;
}

// y = lerp(a, b, w), lane by lane.
template <class V>
ROBOCACHE_HD void lerp_lanes(const V& a, const V& b, const V& w, V& y) {
  y = b - a;
  multiply_add_lanes(w, y, a);
}

// Loads kCount elements and converts each by to_work().
template <int kCount, class Work, class T>
ROBOCACHE_HD void load_lanes(const T* from, Lanes<Work, kCount>& y) {
  if constexpr (std::is_same_v<T, Work>) {
    __builtin_memcpy(&y, from, sizeof(y));
  } else if constexpr (std::is_same_v<T, BFloat16> && std::is_same_v<Work, float>) {
    Lanes<uint16_t, kCount> bits;
    __builtin_memcpy(&bits, from, sizeof(bits));
    y = reinterpret_cast<Lanes<float, kCount>>(__builtin_convertvector(bits, Lanes<uint32_t, kCount>) << 16);
  } else {
#ifdef __F16C__
    if constexpr (std::is_same_v<T, Float16> && std::is_same_v<Work, float>) {
      if constexpr (kCount == 4) {
        y = _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
        return;
      } else if constexpr (kCount == 8) {
        y = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        return;
      }
#ifdef __AVX512F__
      if constexpr (kCount == 16) {
        // The mask selects all lanes. It is here and below since GCC warns of an undefined register in the intrinsics
        // without a mask.
        y = _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
        return;
      }
#endif
    }
#elif defined(__aarch64__)
    if constexpr (std::is_same_v<T, Float16> && std::is_same_v<Work, float> && kCount == 4) {
      y = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits)));
      return;
    }
#endif
    for (int i = 0; i < kCount; ++i) y[i] = to_work<Work>(from[i]);
  }
}

#ifdef __AVX512BW__
// Rounds each lane by rounded_once<BFloat16>(). The result is in the upper 16 bits of the lane; the lower 16 bits are
// arbitrary. Compilers do not find these masked instructions by themselves.
ROBOCACHE_HD __m512i rounded_to_bfloat16(const __m512& y) {
  const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fff0000));
  // 4 bits for each class of number: 0, for both kinds of NaN, selects the first argument; 1 selects the second.
  const __m512i fixup_table = _mm512_set1_epi32(0x11111100);
  const __m512i bits = _mm512_castps_si512(_mm512_fixupimm_ps(nan, y, fixup_table, 0));
  const __m512i up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  return _mm512_mask_add_epi32(up, _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000)), up, _mm512_set1_epi32(1));
}
#endif

// Rounds each lane by rounded_once().
template <int kCount, class Work, class T>
ROBOCACHE_HD void store_lanes(const Lanes<Work, kCount>& y, T* to) {
  if constexpr (std::is_same_v<T, Work>) {
    __builtin_memcpy(to, &y, sizeof(y));
  } else if constexpr (std::is_same_v<T, BFloat16> && std::is_same_v<Work, float>) {
    using Bits = Lanes<uint32_t, kCount>;
    const Bits u = reinterpret_cast<Bits>(y);
#ifdef __AVX512BW__
    if constexpr (kCount == 16) {
      const __m512i bits = _mm512_maskz_srli_epi32(0xffff, rounded_to_bfloat16(y), 16);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_maskz_cvtepi32_epi16(0xffff, bits));
      return;
    }
#endif
    const Bits rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
    const Bits with_nan = (u & 0x7fffffffU) > 0x7f800000U ? Bits{} + 0x7fffU : rounded;
    const auto bits = __builtin_convertvector(with_nan, Lanes<uint16_t, kCount>);
    __builtin_memcpy(to, &bits, sizeof(bits));
  } else {
#ifdef __F16C__
    if constexpr (std::is_same_v<T, Float16> && std::is_same_v<Work, float>) {
      if constexpr (kCount == 4) {
        _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT));
        return;
      } else if constexpr (kCount == 8) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT));
        return;
      }
#ifdef __AVX512F__
      if constexpr (kCount == 16) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                            _mm512_maskz_cvtps_ph(0xffff, y, _MM_FROUND_TO_NEAREST_INT));
        return;
      }
#endif
    }
#elif defined(__aarch64__)
    if constexpr (std::is_same_v<T, Float16> && std::is_same_v<Work, float> && kCount == 4) {
      vst1_u16(&to->bits, vreinterpret_u16_f16(vcvt_f16_f32(y)));
      return;
    }
#endif
    for (int i = 0; i < kCount; ++i) to[i] = rounded_once<T, Work>(y[i]);
  }
}

// Stores two vectors, one after the other.
template <int kCount, class Work, class T>
ROBOCACHE_HD void store_two_vectors(const Lanes<Work, kCount>& first, const Lanes<Work, kCount>& second, T* to) {
#ifdef __AVX512BW__
  if constexpr (std::is_same_v<T, BFloat16> && std::is_same_v<Work, float> && kCount == 16) {
    alignas(64) static constexpr uint16_t kUpperHalves[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                              23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                              45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    const __m512i upper_halves = _mm512_permutex2var_epi16(rounded_to_bfloat16(first), _mm512_load_si512(kUpperHalves),
                                                           rounded_to_bfloat16(second));
    _mm512_storeu_si512(to, upper_halves);
    return;
  }
#endif
  store_lanes<kCount, Work>(first, to);
  store_lanes<kCount, Work>(second, to + kCount);
}

// ---- Vectors with all lanes in memory, or only the first n ----------------------------------------------------------

// Loads and stores all lanes.
struct AllLanes {
  template <int kCount, class Work, class T>
  ROBOCACHE_HD void load(const T* from, Lanes<Work, kCount>& y) const {
    load_lanes<kCount, Work>(from, y);
  }
  template <int kCount, class Work, class T>
  ROBOCACHE_HD void store(const Lanes<Work, kCount>& y, T* to) const {
    store_lanes<kCount, Work>(y, to);
  }
  template <int kCount, class T>
  ROBOCACHE_HD void copy(const T* from, T* to) const {
    __builtin_memcpy(to, from, kCount * sizeof(T));
  }
};

#if defined(__AVX512BW__) && defined(__AVX512VL__)
inline constexpr bool kHasMaskedAccess = true;  // whether the processor loads and stores selected lanes only

// Loads the elements of kSize bytes that `mask` selects. The others become 0, and their memory is not touched.
template <int kSize, class V>
ROBOCACHE_HD void load_part(const void* from, uint32_t mask, V& y) {
  if constexpr (kSize == 2 && sizeof(V) == 32) {
    y = reinterpret_cast<V>(_mm256_maskz_loadu_epi16(static_cast<__mmask16>(mask), from));
  } else if constexpr (kSize == 4) {
    static_assert(sizeof(V) == 64);
    y = reinterpret_cast<V>(_mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask), from));
  } else {
    static_assert(kSize == 8 && sizeof(V) == 64);
    y = reinterpret_cast<V>(_mm512_maskz_loadu_epi64(static_cast<__mmask8>(mask), from));
  }
}

// Stores the elements of kSize bytes that `mask` selects. The memory of the others is not touched.
template <int kSize, class V>
ROBOCACHE_HD void store_part(const V& y, uint32_t mask, void* to) {
  if constexpr (sizeof(V) == 128) {
    constexpr int kHalf = 64 / kSize;
    Lanes<uint8_t, 64> halves[2];
    __builtin_memcpy(halves, &y, sizeof(halves));
    store_part<kSize>(halves[0], mask & ((1U << kHalf) - 1), to);
    store_part<kSize>(halves[1], mask >> kHalf, static_cast<char*>(to) + 64);
  } else if constexpr (kSize == 2 && sizeof(V) == 16) {
    _mm_mask_storeu_epi16(to, static_cast<__mmask8>(mask), reinterpret_cast<__m128i>(y));
  } else if constexpr (kSize == 2) {
    static_assert(sizeof(V) == 32);
    _mm256_mask_storeu_epi16(to, static_cast<__mmask16>(mask), reinterpret_cast<__m256i>(y));
  } else if constexpr (kSize == 4 && sizeof(V) == 32) {
    _mm256_mask_storeu_epi32(to, static_cast<__mmask8>(mask), reinterpret_cast<__m256i>(y));
  } else if constexpr (kSize == 4) {
    static_assert(sizeof(V) == 64);
    _mm512_mask_storeu_epi32(to, static_cast<__mmask16>(mask), reinterpret_cast<__m512i>(y));
  } else {
    static_assert(kSize == 8 && sizeof(V) == 64);
    _mm512_mask_storeu_epi64(to, static_cast<__mmask8>(mask), reinterpret_cast<__m512i>(y));
  }
}

// Loads and stores only the first n lanes; n is less than 32.
class FirstLanes {
 public:
  ROBOCACHE_HD explicit FirstLanes(int64_t n) : mask_((uint32_t{1} << n) - 1) {}

  template <int kCount, class Work, class T>
  ROBOCACHE_HD void load(const T* from, Lanes<Work, kCount>& y) const {
    Lanes<uint8_t, kCount * sizeof(T)> bytes_read;
    load_part<sizeof(T)>(from, mask_, bytes_read);
    T elements[kCount];
    __builtin_memcpy(elements, &bytes_read, sizeof(bytes_read));
    load_lanes<kCount, Work>(elements, y);
  }
  template <int kCount, class Work, class T>
  ROBOCACHE_HD void store(const Lanes<Work, kCount>& y, T* to) const {
    T elements[kCount];
    store_lanes<kCount, Work>(y, elements);
    Lanes<uint8_t, kCount * sizeof(T)> bytes;
    __builtin_memcpy(&bytes, elements, sizeof(bytes));
    store_part<sizeof(T)>(bytes, mask_, to);
  }
  template <int kCount, class T>
  ROBOCACHE_HD void copy(const T* from, T* to) const {
    Lanes<uint8_t, kCount * sizeof(T)> bytes_read;
    load_part<sizeof(T)>(from, mask_, bytes_read);
    store_part<sizeof(T)>(bytes_read, mask_, to);
  }

 private:
  uint32_t mask_;
};
#else
inline constexpr bool kHasMaskedAccess = false;

// Only its name is needed: without kHasMaskedAccess no code constructs it.
struct FirstLanes : AllLanes {
  explicit FirstLanes(int64_t n);
};
#endif

}  // namespace robocache::ROBOCACHE_ISA
