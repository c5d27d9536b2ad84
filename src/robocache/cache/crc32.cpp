#include "robocache/cache/crc32.hpp"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace robocache::cache {
namespace {

constexpr uint32_t kPolynomial = 0xedb88320u;  // reflected
constexpr size_t kSlices = 16;

using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

// kTables[s][b]: what byte b adds to the checksum when s bytes follow it.
constexpr Tables kTables = [] {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? kPolynomial : 0u);
    tables[0][b] = crc;
  }
  for (size_t s = 1; s < kSlices; ++s) {
    for (size_t b = 0; b < 256; ++b) tables[s][b] = (tables[s - 1][b] >> 8) ^ tables[0][tables[s - 1][b] & 0xffu];
  }
  return tables;
}();

// The checksum's register after more bytes.
uint32_t by_tables(const unsigned char* bytes, size_t size, uint32_t crc) {
  static_assert(std::endian::native == std::endian::little);
  while (size >= kSlices) {
    std::array<uint32_t, 4> words;
    std::memcpy(words.data(), bytes, kSlices);
    words[0] ^= crc;
    crc = 0;
    for (size_t w = 0; w < 4; ++w) {
      const size_t slice = kSlices - 1 - 4 * w;
      crc ^= kTables[slice][words[w] & 0xffu] ^ kTables[slice - 1][(words[w] >> 8) & 0xffu] ^
             kTables[slice - 2][(words[w] >> 16) & 0xffu] ^ kTables[slice - 3][words[w] >> 24];
    }
    bytes += kSlices;
    size -= kSlices;
  }
  for (; size > 0; --size) crc = (crc >> 8) ^ kTables[0][(crc ^ *bytes++) & 0xffu];
  return crc;
}

#if defined(__x86_64__)

#define ROBOCACHE_CARRYLESS __attribute__((target("pclmul,sse2")))

// x^n modulo the polynomial, as the factor of a carry-less product of reflected numbers.
constexpr int64_t power(int n) {
  uint32_t remainder = 0x80000000u;
  for (int i = 0; i < n; ++i) remainder = (remainder >> 1) ^ ((remainder & 1u) != 0 ? kPolynomial : 0u);
  return int64_t{remainder} << 1;
}

// What 16 bytes come to `Bits` bits later, added to the bytes there.
template <int Bits>
ROBOCACHE_CARRYLESS inline __m128i fold(__m128i bytes, __m128i there) {
  constexpr int64_t kHigh = power(Bits - 32), kLow = power(Bits + 32);  // at compile time, under a sanitizer too
  const __m128i factors = _mm_set_epi64x(kHigh, kLow);
  const __m128i low = _mm_clmulepi64_si128(bytes, factors, 0x00);
  const __m128i high = _mm_clmulepi64_si128(bytes, factors, 0x11);
  return _mm_xor_si128(there, _mm_xor_si128(low, high));
}

ROBOCACHE_CARRYLESS inline __m128i load(const unsigned char* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

constexpr size_t kFolded = 64;

// As by_tables, of kFolded bytes or more: folds them to the last 16, four times 16 at once.
ROBOCACHE_CARRYLESS uint32_t by_folding(const unsigned char* bytes, size_t size, uint32_t crc) {
  __m128i a = _mm_xor_si128(load(bytes), _mm_cvtsi32_si128(static_cast<int>(crc)));
  __m128i b = load(bytes + 16);
  __m128i c = load(bytes + 32);
  __m128i d = load(bytes + 48);
  for (bytes += kFolded, size -= kFolded; size >= kFolded; bytes += kFolded, size -= kFolded) {
    a = fold<512>(a, load(bytes));
    b = fold<512>(b, load(bytes + 16));
    c = fold<512>(c, load(bytes + 32));
    d = fold<512>(d, load(bytes + 48));
  }
  std::array<unsigned char, 16> folded;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(folded.data()), fold<128>(fold<128>(fold<128>(a, b), c), d));
  return by_tables(bytes, size, by_tables(folded.data(), folded.size(), 0));
}

#endif

}  // namespace

uint32_t crc32(const void* data, size_t size, uint32_t seed) {
  const auto* bytes = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  static const bool can_fold = __builtin_cpu_supports("pclmul") != 0;
  if (can_fold && size >= kFolded) return ~by_folding(bytes, size, ~seed);
#endif
  return ~by_tables(bytes, size, ~seed);
}

std::string crc32_text(uint32_t crc) {
  std::string text(8, '0');
  for (size_t i = 0; i < 8; ++i) text[i] = "0123456789abcdef"[(crc >> (28 - 4 * i)) & 0xfu];
  return text;
}

}  // namespace robocache::cache
