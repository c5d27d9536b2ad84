// The inverse DCT of a JPEG block in integers: the algorithm of Loeffler, Ligtenberg and Moschytz (1989), with 12
// multiplications for eight values, constants of 13 bits, and two extra bits between columns and rows. libjpeg calls it
// "islow". Within the range of rule 40 of docs/rules.md it gives the same bits as libjpeg-turbo's C code and vector
// code. Beyond it the three differ, so segment_jpeg of codec.hpp refuses such files.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "robocache/core/host_device.hpp"

namespace robocache {

// Returns the index of a coefficient in zigzag order: diagonal after diagonal, each in the opposite direction.
constexpr int zigzag_index(int row, int column) {
  const int diagonal = row + column;
  const int diagonal_index = diagonal % 2 == 0 ? column : row;
  return diagonal < 8 ? diagonal * (diagonal + 1) / 2 + diagonal_index
                      : 64 - (15 - diagonal) * (16 - diagonal) / 2 + diagonal_index - (diagonal - 7);
}

// Packs both numbers, clamped to int16, with `low` in the lower half.
ROBOCACHE_HD uint32_t pack_int16(int32_t low, int32_t high) {
#ifdef __CUDA_ARCH__
  uint32_t packed;
  asm("cvt.pack.sat.s16.s32 %0, %1, %2;" : "=r"(packed) : "r"(high), "r"(low));
  return packed;
#else
  const auto clamped = [](int32_t x) {
    return static_cast<uint32_t>(x < -32768 ? -32768 : x > 32767 ? 32767 : x) & 0xffff;
  };
  return clamped(low) | clamped(high) << 16;
#endif
}

// Packs the four numbers, clamped to [0, 255]; `a` is the lowest byte.
ROBOCACHE_HD uint32_t pack_uint8(int32_t a, int32_t b, int32_t c, int32_t d) {
#ifdef __CUDA_ARCH__
  uint32_t upper, packed;
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, 0;" : "=r"(upper) : "r"(d), "r"(c));
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(packed) : "r"(b), "r"(a), "r"(upper));
  return packed;
#else
  const auto clamped = [](int32_t x) { return static_cast<uint32_t>(x < 0 ? 0 : x > 255 ? 255 : x); };
  return clamped(a) | clamped(b) << 8 | clamped(c) << 16 | clamped(d) << 24;
#endif
}

// Computes the inverse DCT of eight values, unscaled: the results are too large by the factor 2^13 * sqrt(8), and
// include `bias`. Int is int32_t or int64_t. The arithmetic is unsigned, because damaged data may overflow.
template <class Int>
ROBOCACHE_HD void inverse_dct_of_8(const Int (&x)[8], Int bias, Int (&out)[8]) {
  using Word = std::make_unsigned_t<Int>;
  const auto fixed = [](Int value, Word constant) { return static_cast<Word>(value) * constant; };
  // The integer factors are round(c * 2^13) for the c at the end of each line. The names z1 to z5 are libjpeg's.
  const Word z = fixed(x[2] + x[6], 4433);                              // 0.541196100
  const Word even_2 = z + fixed(x[2], 6270);                            // 0.765366865
  const Word even_3 = z - fixed(x[6], 15137);                           // 1.847759065
  const Word sum = fixed(x[0] + x[4], 8192) + static_cast<Word>(bias);  // 1
  const Word difference = fixed(x[0] - x[4], 8192) + static_cast<Word>(bias);
  const Word even[4] = {sum + even_2, difference + even_3, difference - even_3, sum - even_2};

  const Word z5 = fixed(x[1] + x[3] + x[5] + x[7], 9633);  // 1.175875602
  const Word z3 = z5 - fixed(x[3] + x[7], 16069);          // 1.961570560
  const Word z4 = z5 - fixed(x[1] + x[5], 3196);           // 0.390180644
  const Word z1 = fixed(x[1] + x[7], 7373);                // 0.899976223
  const Word z2 = fixed(x[3] + x[5], 20995);               // 2.562915447
  const Word odd[4] = {
      fixed(x[1], 12299) + z4 - z1,  // 1.501321110
      fixed(x[3], 25172) + z3 - z2,  // 3.072711026
      fixed(x[5], 16819) + z4 - z2,  // 2.053119869
      fixed(x[7], 2446) + z3 - z1,   // 0.298631336
  };
  for (int i = 0; i < 4; ++i) {
    out[i] = static_cast<Int>(even[i] + odd[i]);
    out[7 - i] = static_cast<Int>(even[i] - odd[i]);
  }
}

// Returns number kIndex of packed int16 numbers.
template <int kIndex>
ROBOCACHE_HD int32_t packed_int16(const uint32_t* packed) {
  const uint32_t word = packed[kIndex / 2];
  return kIndex % 2 == 0 ? static_cast<int16_t>(word & 0xffff) : static_cast<int32_t>(word) >> 16;
}

template <int kColumn>
ROBOCACHE_HD void inverse_dct_of_column(const uint32_t (&packed)[32], int32_t (&out)[8]) {
  const int32_t column[8] = {
      packed_int16<zigzag_index(0, kColumn)>(packed), packed_int16<zigzag_index(1, kColumn)>(packed),
      packed_int16<zigzag_index(2, kColumn)>(packed), packed_int16<zigzag_index(3, kColumn)>(packed),
      packed_int16<zigzag_index(4, kColumn)>(packed), packed_int16<zigzag_index(5, kColumn)>(packed),
      packed_int16<zigzag_index(6, kColumn)>(packed), packed_int16<zigzag_index(7, kColumn)>(packed)};
  inverse_dct_of_8(column, 1 << 10, out);
  // The values keep two bits more than samples have, and the factor sqrt(8).
  for (int row = 0; row < 8; ++row) out[row] >>= 11;
}

// Transforms columns 2 kPair and 2 kPair + 1 into `rows`, which has four words per row.
template <int kPair>
ROBOCACHE_HD void inverse_dct_of_columns(const uint32_t (&packed)[32], uint32_t (&rows)[32]) {
  int32_t left[8], right[8];
  inverse_dct_of_column<2 * kPair>(packed, left);
  inverse_dct_of_column<2 * kPair + 1>(packed, right);
  for (int row = 0; row < 8; ++row) rows[4 * row + kPair] = pack_int16(left[row], right[row]);
}

template <int kRow>
ROBOCACHE_HD void inverse_dct_of_row(const uint32_t (&rows)[32], uint32_t (&pixels)[16]) {
  const uint32_t* packed = rows + size_t{4} * kRow;
  const int32_t row[8] = {packed_int16<0>(packed), packed_int16<1>(packed), packed_int16<2>(packed),
                          packed_int16<3>(packed), packed_int16<4>(packed), packed_int16<5>(packed),
                          packed_int16<6>(packed), packed_int16<7>(packed)};
  int32_t out[8];
  inverse_dct_of_8(row, (1 << 17) + (128 << 18), out);  // samples are centred on 128
  for (int column = 0; column < 8; ++column) out[column] >>= 18;
  pixels[size_t{2} * kRow] = pack_uint8(out[0], out[1], out[2], out[3]);
  pixels[size_t{2} * kRow + 1] = pack_uint8(out[4], out[5], out[6], out[7]);
}

// `packed` holds dequantised int16 coefficients in zigzag order, two per word. `pixels` gets 8 rows of 8 samples, four
// per word.
ROBOCACHE_HD void jpeg_inverse_dct(const uint32_t (&packed)[32], uint32_t (&pixels)[16]) {
  uint32_t rows[32];
  inverse_dct_of_columns<0>(packed, rows);
  inverse_dct_of_columns<1>(packed, rows);
  inverse_dct_of_columns<2>(packed, rows);
  inverse_dct_of_columns<3>(packed, rows);
  inverse_dct_of_row<0>(rows, pixels);
  inverse_dct_of_row<1>(rows, pixels);
  inverse_dct_of_row<2>(rows, pixels);
  inverse_dct_of_row<3>(rows, pixels);
  inverse_dct_of_row<4>(rows, pixels);
  inverse_dct_of_row<5>(rows, pixels);
  inverse_dct_of_row<6>(rows, pixels);
  inverse_dct_of_row<7>(rows, pixels);
}

// `to` and `pitch` are multiples of 8.
ROBOCACHE_HD void store_jpeg_block(const uint32_t (&pixels)[16], uint8_t* to, int64_t pitch) {
  for (int row = 0; row < 8; ++row) {
    std::memcpy(__builtin_assume_aligned(to + row * pitch, 8), pixels + size_t{2} * static_cast<size_t>(row), 8);
  }
}

}  // namespace robocache
