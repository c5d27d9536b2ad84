// Decodes the entropy-coded data of a JPEG segment. Each backend's loop over segments calls it.
#pragma once

#include <cstdint>

#include "robocache/core/host_device.hpp"
#include "robocache/image/decode_jpeg_params.hpp"
#include "robocache/image/jpeg_idct.hpp"

namespace robocache {

// Reads the bits of a segment of at least one byte. Beyond the end it repeats the last word.
class JpegBits {
 public:
  // The segment is `byte_count` bytes from byte `first_byte` (0 to 3) of words[0] on.
  ROBOCACHE_HD JpegBits(const uint32_t* words, uint32_t first_byte, uint32_t byte_count)
      : words_(words), word_count_(word_count(first_byte, byte_count)), used_(8 * first_byte) {
    high_ = load();
    low_ = load();
    ahead_ = load();
  }

  // Returns the number of words that a segment touches.
  ROBOCACHE_HD static uint32_t word_count(uint32_t first_byte, uint32_t byte_count) {
    return (first_byte + byte_count + 3) / 4;
  }

  // Returns the next 32 bits; the first is the highest.
  ROBOCACHE_HD uint32_t peek() const {
#ifdef __CUDA_ARCH__
    return __funnelshift_l(low_, high_, used_);
#else
    return static_cast<uint32_t>(((uint64_t{high_} << 32 | low_) << used_) >> 32);
#endif
  }

  // `count` is at most 31.
  ROBOCACHE_HD void skip(uint32_t count) {
    used_ += count;
    const bool crossed = used_ >= 32;
    high_ = crossed ? low_ : high_;
    low_ = crossed ? ahead_ : low_;
    used_ %= 32;
    // Loads a word ahead of its use. A branch here would wait for the word.
#ifdef __CUDA_ARCH__
    asm volatile("{ .reg .pred crossed; setp.ne.u32 crossed, %1, 0; @crossed ld.u32 %0, [%2]; }"
                 : "+r"(ahead_)
                 : "r"(static_cast<uint32_t>(crossed)), "l"(next_word()));
#else
    if (crossed) ahead_ = *next_word();
#endif
    next_ += crossed;
  }

  // Whether more bits were read than the segment has; exact to within a word.
  ROBOCACHE_HD bool has_overrun() const { return next_ > word_count_ + kHeld; }

  // Whether all bytes were read, and no bit beyond them.
  ROBOCACHE_HD bool ends_at(uint32_t first_byte, uint32_t byte_count) const {
    const uint64_t bits = uint64_t{next_ - kHeld} * 32 + used_;
    return (bits + 7) / 8 == uint64_t{first_byte} + byte_count;
  }

 private:
  static constexpr uint32_t kHeld = 3;  // words that are loaded: high_, low_, ahead_

  ROBOCACHE_HD const uint32_t* next_word() const {
    const uint32_t last = word_count_ - 1;
    return words_ + (next_ < last ? next_ : last);
  }
  ROBOCACHE_HD uint32_t load() {
    const uint32_t word = *next_word();
    ++next_;
    return word;
  }

  const uint32_t* words_;
  uint32_t word_count_;
  uint32_t next_ = 0;
  uint32_t high_, low_, ahead_;
  uint32_t used_;  // bits of high_ that were read: less than 32
};

// Returns the coefficient that follows the code in `size` bits. A leading 0 means a negative number in one's
// complement; size 0 means 0.
ROBOCACHE_HD int32_t jpeg_coefficient(uint32_t entry, uint32_t bits) {
  const uint32_t size = entry_size(entry);
  const uint32_t value = bits << (entry_bits(entry) - size);
  const uint32_t magnitude = (value >> 1) >> (31 - size);
  const uint32_t complement = value >> 31 == 0 ? (1u << size) - 1 : 0;
  return static_cast<int32_t>(magnitude - complement);
}

// Decodes and dequantises a block. Calls coefficients.set(index in zigzag order, value) for values other than 0,
// truncated to 16 bits as in libjpeg-turbo. `prediction` is the component's last DC coefficient. Returns false if a
// code does not exist or if there are more than 64 coefficients.
template <class Coefficients>
ROBOCACHE_HD bool decode_jpeg_block(JpegBits& bits, const JpegHuffman& dc, const JpegHuffman& ac,
                                    const uint16_t* long_entries, const uint16_t* quantisation, uint32_t& prediction,
                                    Coefficients& coefficients) {
  uint32_t next = bits.peek();
  uint32_t entry = jpeg_entry(dc, long_entries, next);
  if (entry == 0) return false;
  prediction += static_cast<uint32_t>(jpeg_coefficient(entry, next));
  coefficients.set(0, static_cast<int16_t>(prediction * quantisation[0]));
  bits.skip(entry_bits(entry));

  uint32_t index = 1;  // after the last coefficient
  next = bits.peek();
  entry = jpeg_entry(ac, long_entries, next);
  for (;;) {
    bits.skip(entry_bits(entry));
    index += entry_advance(entry);
    // Looks up the next code before computing this coefficient, so that neither waits for the other. After the block's
    // last code, the look-up is useless but harmless.
    const uint32_t following = bits.peek();
    const uint32_t next_entry = jpeg_entry(ac, long_entries, following);
    if (entry_size(entry) != 0 && index <= 64) {
      const uint32_t value = static_cast<uint32_t>(jpeg_coefficient(entry, next));
      coefficients.set(index - 1, static_cast<int16_t>(value * quantisation[index - 1]));
    }
    if (index >= 64 || entry == 0) break;
    next = following;
    entry = next_entry;
  }
  return entry != 0 && (index <= 64 || entry_size(entry) == 0);
}

// Decodes segment `segment` of a frame into its planes. `coefficients` is zero at first. It has set() and take(uint32_t
// (&words)[32]), which writes two coefficients per word and resets all to 0. Returns false if the data is damaged.
template <class Coefficients>
ROBOCACHE_HD bool decode_jpeg_segment(const JpegFrame& frame, const JpegPlanes& planes, const JpegTables& tables,
                                      const uint16_t* long_entries, int32_t channels, int32_t segment,
                                      const uint32_t* words, uint32_t first_byte, uint32_t byte_count,
                                      Coefficients& coefficients, uint8_t* samples) {
  JpegBits bits(words, first_byte, byte_count);
  uint32_t predictions[3] = {0, 0, 0};
  const int64_t first = int64_t{segment} * frame.segment_mcus;
  const int64_t all_mcus = int64_t{planes.mcus_across} * planes.mcus_down;
  const int32_t mcus =
      static_cast<int32_t>(all_mcus - first < frame.segment_mcus ? all_mcus - first : frame.segment_mcus);
  int32_t mcu_row = static_cast<int32_t>(first / planes.mcus_across);
  int32_t mcu_column = static_cast<int32_t>(first - int64_t{mcu_row} * planes.mcus_across);
  const int32_t luma_blocks = frame.luma_across * frame.luma_down;
  const int32_t blocks = luma_blocks + (channels == 3 ? 2 : 0);
  for (int32_t mcu = 0; mcu < mcus; ++mcu) {
    for (int32_t block = 0; block < blocks; ++block) {
      const int32_t component = block < luma_blocks ? 0 : block - luma_blocks + 1;
      // Uses comparisons, because with a variable index the compiler would keep the three in memory.
      uint32_t prediction = component == 0 ? predictions[0] : component == 1 ? predictions[1] : predictions[2];
      if (!decode_jpeg_block(bits, tables.dc[tables.dc_of[component]], tables.ac[tables.ac_of[component]], long_entries,
                             tables.quantisation[component], prediction, coefficients)) {
        return false;
      }
      if (component == 0) predictions[0] = prediction;
      if (component == 1) predictions[1] = prediction;
      if (component == 2) predictions[2] = prediction;

      uint32_t packed[32];
      coefficients.take(packed);
      uint32_t pixels[16];
      jpeg_inverse_dct(packed, pixels);
      const int32_t down = component == 0 && block >= frame.luma_across ? 1 : 0;
      const int32_t across = component == 0 ? block - down * frame.luma_across : 0;
      const int32_t row = mcu_row * (component == 0 ? frame.luma_down : 1) + down;
      const int32_t column = mcu_column * (component == 0 ? frame.luma_across : 1) + across;
      const int32_t pitch = component == 0 ? planes.luma_pitch : planes.chroma_pitch;
      uint8_t* to = samples + int64_t{row} * (8 * pitch) + 8 * column;
      if (component != 0) to += planes.chroma_begin + (component - 1) * planes.chroma_bytes;
      store_jpeg_block(pixels, to, pitch);
    }
    if (bits.has_overrun()) return false;
    if (++mcu_column == planes.mcus_across) {
      mcu_column = 0;
      ++mcu_row;
    }
  }
  return bits.ends_at(first_byte, byte_count);
}

}  // namespace robocache
