#include "robocache/image/jpeg_symbols.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include <jpeglib.h>  // takes FILE and size_t from the headers before it

#include "robocache/core/error.hpp"
#include "robocache/image/codec.hpp"
#include "robocache/image/decode_jpeg_params.hpp"
#include "robocache/image/jpeg_coding.hpp"
#include "robocache/image/jpeg_idct.hpp"

namespace robocache {
namespace {

// ITU-T T.81, K.3: luma's tables, and chroma's.
constexpr HuffmanCodes kStandardDc[2] = {
    {{0, 1, 5, 1, 1, 1, 1, 1, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, true},
    {{0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, true},
};
constexpr HuffmanCodes kStandardAc[2] = {
    {{0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 125},
     {0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61, 0x07, 0x22, 0x71,
      0x14, 0x32, 0x81, 0x91, 0xa1, 0x08, 0x23, 0x42, 0xb1, 0xc1, 0x15, 0x52, 0xd1, 0xf0, 0x24, 0x33, 0x62, 0x72,
      0x82, 0x09, 0x0a, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x34, 0x35, 0x36, 0x37,
      0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59,
      0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x83,
      0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a, 0xa2, 0xa3,
      0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3,
      0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe1, 0xe2,
      0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa},
     true},
    {{0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 119},
     {0x00, 0x01, 0x02, 0x03, 0x11, 0x04, 0x05, 0x21, 0x31, 0x06, 0x12, 0x41, 0x51, 0x07, 0x61, 0x71, 0x13, 0x22,
      0x32, 0x81, 0x08, 0x14, 0x42, 0x91, 0xa1, 0xb1, 0xc1, 0x09, 0x23, 0x33, 0x52, 0xf0, 0x15, 0x62, 0x72, 0xd1,
      0x0a, 0x16, 0x24, 0x34, 0xe1, 0x25, 0xf1, 0x17, 0x18, 0x19, 0x1a, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x35, 0x36,
      0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58,
      0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a,
      0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a,
      0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba,
      0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda,
      0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa},
     true},
};

constexpr uint32_t kEndOfBlock = 0x00, kZeros16 = 0xf0;  // symbols of AC coefficients

struct Code {
  uint16_t bits = 0;
  uint16_t length = 0;  // 0: the symbol has none
};

std::array<Code, 256> codes_of(const HuffmanCodes& codes) {
  std::array<Code, 256> made;
  codes.for_each([&](uint32_t symbol, uint32_t code, uint32_t length) {
    made[symbol] = {static_cast<uint16_t>(code >> (16 - length)), static_cast<uint16_t>(length)};
  });
  return made;
}

// What bits are read by.
struct LookUp {
  LookUp(const HuffmanCodes& codes, bool dc) : table(make_jpeg_huffman(codes, dc, long_entries)) {}
  uint32_t entry(uint32_t bits) const { return jpeg_entry(table, long_entries.data(), bits); }

  std::vector<uint16_t> long_entries;
  JpegHuffman table;
};

// As many symbols of AC coefficients as have their codes, if not the last one's coefficient, in the next 12 bits, or one with a
// code of up to 16: how many bits they take, and kPlace for each place in the block by which they go on. Sums of them are
// sums of both. The end of the block is kEnded; kNone, which no bits are: there is no such code, or it stands for 16 zeros,
// behind which one must look.
class Leaps {
 public:
  static constexpr uint32_t kPlace = 1 << 12, kBlock = 64 * kPlace, kEnded = 2 * kBlock, kNone = kBlock;

  explicit Leaps(const LookUp& ac) {
    for (uint32_t next_16 = 0; next_16 < 1 << 16; next_16 += next_16 < kLong ? 1 << (16 - kBits) : 1) {
      const uint32_t given = next_16 < kLong ? kBits : 16;  // bits of the index
      uint32_t used = 0, leap = 0;
      while (used < given && leap < kEnded) {
        const uint32_t entry = ac.entry(next_16 << 16 << used);
        const uint32_t size = entry_size(entry);
        const bool ends = size == 0 && entry_advance(entry) == 64;
        if (entry == 0 || used + entry_bits(entry) - size > given) break;
        if ((size == 0 && !ends) || used + entry_bits(entry) > kMostBits) break;
        used += entry_bits(entry);
        leap += entry_bits(entry) + (ends ? kEnded : entry_advance(entry) * kPlace);
      }
      leaps_[index(next_16)] = used == 0 ? kNone : leap;
    }
  }
  uint32_t operator()(uint64_t bits) const { return leaps_[index(static_cast<uint32_t>(bits >> 48))]; }

  // How many bits must be there for so many leaps.
  static constexpr uint32_t bits_for(uint32_t leaps) { return (leaps - 1) * kMostBits + 16; }

 private:
  static constexpr uint32_t kBits = 12;
  static constexpr uint32_t kMostBits = 20;  // three leaps then need no more than one look at the bits
  // The standard's codes that are longer begin with nine ones.
  static constexpr uint32_t kLong = 0xff80;

  static uint32_t index(uint32_t next_16) {
    return next_16 < kLong ? next_16 >> (16 - kBits) : (kLong >> (16 - kBits)) + (next_16 - kLong);
  }

  std::array<uint32_t, (kLong >> (16 - kBits)) + (1 << 16) - kLong> leaps_;
};

// The standard's tables: luma's, and chroma's.
struct Standard {
  std::array<Code, 256> dc_codes[2] = {codes_of(kStandardDc[0]), codes_of(kStandardDc[1])};
  std::array<Code, 256> ac_codes[2] = {codes_of(kStandardAc[0]), codes_of(kStandardAc[1])};
  LookUp dc[2] = {{kStandardDc[0], true}, {kStandardDc[1], true}};
  LookUp ac[2] = {{kStandardAc[0], false}, {kStandardAc[1], false}};
  Leaps leaps[2] = {Leaps(ac[0]), Leaps(ac[1])};
};

const Standard& standard() {
  static const Standard tables;
  return tables;
}

// The codes of a table of libjpeg's, where it is one that libjpeg takes for a scan.
bool read_codes(const JHUFF_TBL* table, bool dc, HuffmanCodes* codes) {
  if (table == nullptr) return false;
  size_t symbols = 0;
  int room = 1;  // codes of this length that are free: one stays so, all ones
  for (size_t length = 1; length <= 16; ++length) {
    codes->counts[length - 1] = table->bits[length];
    symbols += table->bits[length];
    room = 2 * room - table->bits[length];
    if (room < 1) return false;
  }
  if (symbols > codes->symbols.size()) return false;
  std::copy_n(table->huffval, symbols, codes->symbols.begin());
  codes->defined = true;
  return !dc || std::all_of(codes->symbols.begin(), codes->symbols.end(), [](uint8_t size) { return size <= 15; });
}

// The most that a block takes: 64 coefficients, each of 16 bits and a code of 16.
constexpr size_t kMostBlockBytes = 64 * 32 / 8;
// Of a segment as it is written, at most of two MCUs of 4:2:2, that of the bits alone.
constexpr size_t kMostSegmentBytes = 8 * kMostBlockBytes;

uint64_t big_endian(uint64_t bits) {
  return std::endian::native == std::endian::little ? __builtin_bswap64(bits) : bits;
}

// Both are copied to be kept in registers: what is written by a pointer to bytes might be they themselves.
struct BitReader {
  const uint8_t* bytes;
  size_t place = 0;  // in bits

  // The bits from `from` on, 57 of them at least, the first one the highest.
  uint64_t peek(size_t from) const {
    uint64_t bits;
    std::memcpy(&bits, bytes + from / 8, sizeof(bits));
    return big_endian(bits) << (from % 8);
  }
};

struct BitWriter {
  uint8_t* at;        // where the next whole byte goes; seven more are written
  uint64_t held = 0;  // what is no whole byte yet, from the highest bit on
  uint32_t filled = 0;

  // `count` bits, 1 to 56, no others of `bits` set.
  void put(uint64_t bits, uint32_t count) {
    filled += count;
    held |= bits << (64 - filled);
    const uint64_t bytes = big_endian(held);
    std::memcpy(at, &bytes, sizeof(bytes));
    at += filled / 8;
    held <<= filled / 8 * 8;
    filled %= 8;
  }
  void put(Code code) { put(code.bits, code.length); }
};

// The entropy-coded bits of a scan, without stuffing and markers.
class ScanBits {
 public:
  // Throws FrameError as for_each_stretch does.
  explicit ScanBits(std::span<const uint8_t> data)
      : bytes_(std::make_unique_for_overwrite<uint8_t[]>(data.size() + kBehind)) {
    size_t bytes = 0;
    for_each_stretch(
        data, 0,
        [&](const uint8_t* from, int64_t count) {
          std::memcpy(bytes_.get() + bytes, from, static_cast<size_t>(count));
          bytes += static_cast<size_t>(count);
        },
        [&] { ends_.push_back(8 * bytes); });
    std::memset(bytes_.get() + bytes, 0, kBehind);
  }

  BitReader reader() const { return {bytes_.get()}; }

  // The segment at hand ends where `place` is, but for what fills its last byte.
  bool ends_at(size_t place) const { return place <= end_ && end_ - place < 8; }
  // It ended before. Asked after each block: behind the last segment is room for one.
  bool ended_before(size_t place) const { return place > end_; }
  bool is_last() const { return next_ == ends_.size(); }

  // Makes the next segment the one at hand, and returns where it begins. There is one.
  size_t next_segment() { return std::exchange(end_, ends_[next_++]); }

 private:
  static constexpr size_t kBehind = kMostBlockBytes + 16;

  std::unique_ptr<uint8_t[]> bytes_;
  std::vector<size_t> ends_;  // of the segments, in bits
  size_t next_ = 0;
  size_t end_ = 0;  // of the segment at hand: of none yet, 0
};

// The coefficients of a component, block by block.
class ComponentSymbols {
 public:
  // False where it has no tables that libjpeg takes.
  bool set_tables(const JHUFF_TBL* dc, const JHUFF_TBL* ac, int output) {
    const auto table = static_cast<size_t>(output);
    HuffmanCodes codes;
    if (!read_codes(dc, true, &codes)) return false;
    dc_ = codes == kStandardDc[table] ? &standard().dc[table] : (own_dc_ = std::make_unique<LookUp>(codes, true)).get();
    codes = {};
    if (!read_codes(ac, false, &codes)) return false;
    const bool is_standard = codes == kStandardAc[table];
    ac_ = is_standard ? &standard().ac[table] : (own_ac_ = std::make_unique<LookUp>(codes, false)).get();
    leaps_ = is_standard ? &standard().leaps[table] : nullptr;
    dc_codes_ = standard().dc_codes[table].data();
    ac_codes_ = standard().ac_codes[table].data();
    return true;
  }

  void begin_segment_of_input() { last_read_ = 0; }
  void begin_segment_of_output() { last_written_ = 0; }

  // The next block, from one to the other. One that lies outside the picture libjpeg replaces by one of its own, like the one
  // before and without detail. False where it is not what baseline's writers write.
  bool take_block(bool is_outside, BitReader& from, BitWriter& to) {
    const uint64_t bits = from.peek(from.place);
    const uint32_t entry = dc_->entry(static_cast<uint32_t>(bits >> 32));
    last_read_ += coefficient(entry, bits);
    from.place += entry_bits(entry);
    // Baseline has codes for no others.
    if (entry == 0 || last_read_ < -1024 || last_read_ > 1023) return false;

    const int32_t difference = is_outside ? 0 : last_read_ - last_written_;
    last_written_ += difference;
    const auto magnitude = static_cast<uint32_t>(std::abs(difference));
    const auto size = static_cast<uint32_t>(std::bit_width(2 * magnitude | 1)) - 1;
    const uint32_t value = static_cast<uint32_t>(difference + (difference >> 31)) & ((1U << size) - 1);
    const Code code = dc_codes_[size];
    to.put(uint64_t{code.bits} << size | value, code.length + size);

    if (!is_outside && copy_ac(bits << entry_bits(entry), 57 - entry_bits(entry), from, to)) return true;
    // By copies, or those of the caller would not stay in registers.
    BitReader coded = from;
    BitWriter recoded = to;
    if (!recode_ac(&coded, &recoded)) return false;
    from = coded;
    if (is_outside) {
      to.put(ac_codes_[kEndOfBlock]);
    } else {
      to = recoded;
    }
    return true;
  }

 private:
  // As jpeg_coefficient, without a branch by its sign, which nobody foresees.
  static int32_t coefficient(uint32_t entry, uint64_t bits) {
    const uint32_t size = entry_size(entry);
    const uint64_t value = bits << (entry_bits(entry) - size);
    const auto is_negative = static_cast<int32_t>(value >> 63) - 1;
    return static_cast<int32_t>(value >> 1 >> (63 - size)) - (is_negative & ((1 << size) - 1));
  }

  // Copies the AC coefficients of a block in the standard's codes, which begin with `bits`, so many of them. False, and nothing
  // is done, where others are to be written.
  bool copy_ac(uint64_t bits, uint32_t count, BitReader& from, BitWriter& to) const {
    if (leaps_ == nullptr) return false;
    const size_t begin = from.place;
    uint32_t sum = Leaps::kPlace;  // the first place is the DC coefficient's
    for (bool is_first = true; sum < Leaps::kBlock; is_first = false) {
      if (!is_first || count < Leaps::bits_for(2)) bits = from.peek(begin + sum % Leaps::kPlace);
      // Behind the end of the block leaps are none: a branch that nobody foresees would cost more.
      uint32_t leaps[3]{};
      const auto leap = [&](int i) {
        leaps[i] = (*leaps_)(bits) & (sum < Leaps::kBlock ? ~0U : 0U);
        bits <<= leaps[i] % 64;
        sum += leaps[i];
      };
      leap(0);
      leap(1);
      if (!is_first) leap(2);
      if (sum < Leaps::kBlock + Leaps::kPlace) continue;
      if (sum >= Leaps::kEnded && sum < Leaps::kEnded + Leaps::kBlock) break;
      // It leapt over the end of the block, or did not leap: a step from there.
      sum -= leaps[2] > 0 ? leaps[2] : leaps[1] > 0 ? leaps[1] : leaps[0];
      const auto entry_here = [&] {
        return ac_->entry(static_cast<uint32_t>(from.peek(begin + sum % Leaps::kPlace) >> 32));
      };
      const uint32_t entry = entry_here();
      sum += entry_advance(entry) * Leaps::kPlace + entry_bits(entry);
      if (entry == 0 || sum >= Leaps::kBlock + Leaps::kPlace) return false;
      if (entry_size(entry) > 0) continue;
      // 16 zeros are written only before another coefficient.
      const uint32_t next = entry_here();
      if (sum >= Leaps::kBlock || (entry_size(next) == 0 && entry_advance(next) != 16)) return false;
    }
    const size_t end = from.place = begin + sum % Leaps::kPlace;
    size_t next = begin;
    for (; end - next > 56; next += 56) to.put(from.peek(next) >> 8, 56);
    const auto rest = static_cast<uint32_t>(end - next);
    to.put(from.peek(next) >> (64 - rest), rest);
    return true;
  }

  // Gives each AC coefficient of a block its code. False where it has none.
  bool recode_ac(BitReader* from, BitWriter* to) const {
    uint32_t place = 1, zeros = 0;
    while (place < 64) {
      const uint64_t bits = from->peek(from->place);
      const uint32_t entry = ac_->entry(static_cast<uint32_t>(bits >> 32));
      if (entry == 0) return false;
      const uint32_t size = entry_size(entry), advance = entry_advance(entry);
      from->place += entry_bits(entry);
      place += advance;
      zeros += advance - 1;
      if (size == 0) {
        ++zeros;
        continue;
      }
      if (place > 64) return false;
      for (; zeros > 15; zeros -= 16) to->put(ac_codes_[kZeros16]);
      const Code code = ac_codes_[zeros << 4 | size];
      if (code.length == 0) return false;
      const uint64_t value = bits << (entry_bits(entry) - size) >> (64 - size);
      to->put(uint64_t{code.bits} << size | value, code.length + size);
      zeros = 0;
    }
    if (zeros > 0) to->put(ac_codes_[kEndOfBlock]);
    return true;
  }

  const LookUp* dc_ = nullptr;
  const LookUp* ac_ = nullptr;
  const Leaps* leaps_ = nullptr;  // null: other codes than the standard's
  const Code* dc_codes_ = nullptr;
  const Code* ac_codes_ = nullptr;
  int32_t last_read_ = 0, last_written_ = 0;
  std::unique_ptr<LookUp> own_dc_, own_ac_;
};

// A JPEG file as it is written.
class FileWriter {
 public:
  explicit FileWriter(size_t expected) { bytes_.resize(expected); }

  template <class... Bytes>
  void put(Bytes... bytes) {
    const std::array<uint8_t, sizeof...(bytes)> each{static_cast<uint8_t>(bytes)...};
    put_all(each);
  }
  void put_16(unsigned value) { put(value >> 8, value); }
  void put_all(std::span<const uint8_t> bytes) {
    if (bytes_.size() - end_ < bytes.size()) bytes_.resize(end_ + bytes.size());
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(end_));
    end_ += bytes.size();
  }
  // A marker, and the length of what follows it.
  void put_part(int marker, size_t length) {
    put(0xff, marker);
    put_16(static_cast<unsigned>(2 + length));
  }
  // Bits, filled up with ones to whole bytes, of which each 0xff is followed by a 0.
  void put_segment(const uint8_t* begin, BitWriter bits) {
    if (bits.filled > 0) bits.put(0xff >> bits.filled, 8 - bits.filled);
    if (bytes_.size() - end_ < 2 * kMostSegmentBytes + 8)
      bytes_.resize(bytes_.size() * 3 / 2 + 2 * kMostSegmentBytes + 8);
    uint8_t* out = bytes_.data() + end_;
    for (const uint8_t* from = begin; from < bits.at; from += 8) {
      uint64_t eight;
      std::memcpy(&eight, from, sizeof(eight));
      const auto count = std::min<std::ptrdiff_t>(8, bits.at - from);
      constexpr uint64_t kOnes = 0x0101010101010101;
      if (((~eight - kOnes) & eight & (kOnes << 7)) == 0) {  // none of them is 0xff
        std::memcpy(out, &eight, sizeof(eight));
        out += count;
        continue;
      }
      for (std::ptrdiff_t i = 0; i < count; ++i) {
        out[0] = from[i];
        out[1] = 0;
        out += from[i] == 0xff ? 2 : 1;
      }
    }
    end_ = static_cast<size_t>(out - bytes_.data());
  }

  std::vector<uint8_t> take() {
    bytes_.resize(end_);
    return std::move(bytes_);
  }

 private:
  std::vector<uint8_t> bytes_;
  size_t end_ = 0;
};

// Everything before the entropy-coded data, as libjpeg writes it.
void write_header(const jpeg_decompress_struct& header, int luma_across, int luma_down, int restart_interval,
                  FileWriter* to) {
  const std::span<const jpeg_component_info> components(header.comp_info, static_cast<size_t>(header.num_components));
  to->put(0xff, 0xd8);
  to->put_part(0xe0, 14);
  to->put('J', 'F', 'I', 'F', 0);
  const bool says_version = header.saw_JFIF_marker && header.JFIF_major_version == 1;
  to->put(1, says_version ? header.JFIF_minor_version : 1);
  to->put(header.saw_JFIF_marker ? header.density_unit : 0);
  to->put_16(header.saw_JFIF_marker ? header.X_density : 1);
  to->put_16(header.saw_JFIF_marker ? header.Y_density : 1);
  to->put(0, 0);
  bool is_written[NUM_QUANT_TBLS]{};
  for (const jpeg_component_info& component : components) {
    if (std::exchange(is_written[component.quant_tbl_no], true)) continue;
    std::array<uint8_t, 64> steps;
    for (int i = 0; i < 64; ++i) {
      const UINT16 step = header.quant_tbl_ptrs[component.quant_tbl_no]->quantval[i];
      steps[static_cast<size_t>(zigzag_place(i / 8, i % 8))] = static_cast<uint8_t>(step);
    }
    to->put_part(0xdb, 65);
    to->put(component.quant_tbl_no);
    to->put_all(steps);
  }
  to->put_part(0xc0, 6 + 3 * components.size());
  to->put(8);
  to->put_16(header.image_height);
  to->put_16(header.image_width);
  to->put(components.size());
  for (const jpeg_component_info& component : components) {
    const bool is_luma = &component == components.data();
    to->put(component.component_id, is_luma ? luma_across << 4 | luma_down : 0x11, component.quant_tbl_no);
  }
  const auto put_codes = [to](size_t id, const HuffmanCodes& codes) {
    const auto symbols = std::accumulate(codes.counts.begin(), codes.counts.end(), size_t{0});
    to->put_part(0xc4, 1 + codes.counts.size() + symbols);
    to->put(id);
    to->put_all(codes.counts);
    to->put_all(std::span(codes.symbols).first(symbols));
  };
  for (size_t table = 0; table < std::min<size_t>(components.size(), 2); ++table) {
    put_codes(table, kStandardDc[table]);
    put_codes(0x10 | table, kStandardAc[table]);
  }
  to->put_part(0xdd, 2);
  to->put_16(static_cast<unsigned>(restart_interval));
  to->put_part(0xda, 4 + 2 * components.size());
  to->put(components.size());
  for (const jpeg_component_info& component : components) {
    to->put(component.component_id, &component == components.data() ? 0x00 : 0x11);
  }
  to->put(0, 63, 0);
}

// What of a header's file can be told of its header: that all is in one scan of a known kind, and the steps of a byte.
bool is_ordinary(const jpeg_decompress_struct& header) {
  if (header.progressive_mode || header.arith_code || header.comps_in_scan != header.num_components) return false;
  if (header.Ss != 0 || header.Se != 63 || header.Ah != 0 || header.Al != 0) return false;
  for (int c = 0; c < header.num_components; ++c) {
    const jpeg_component_info& component = header.comp_info[c];
    if (header.cur_comp_info[c] != &component) return false;
    if (c > 0 && (component.h_samp_factor != 1 || component.v_samp_factor != 1)) return false;
    const int number = component.quant_tbl_no;
    const JQUANT_TBL* steps = number >= 0 && number < NUM_QUANT_TBLS ? header.quant_tbl_ptrs[number] : nullptr;
    if (steps == nullptr || *std::max_element(steps->quantval, steps->quantval + 64) > 255) return false;
  }
  return true;
}

const JHUFF_TBL* table_of(JHUFF_TBL* const (&tables)[NUM_HUFF_TBLS], int number) {
  return number >= 0 && number < NUM_HUFF_TBLS ? tables[number] : nullptr;
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::vector<uint8_t> rewrite_jpeg_symbols(const jpeg_decompress_struct& header) {
  if (!is_ordinary(header)) return {};
  const int channels = header.num_components;
  std::array<ComponentSymbols, 3> components;
  for (int c = 0; c < channels; ++c) {
    const jpeg_component_info& component = header.comp_info[c];
    if (!components[static_cast<size_t>(c)].set_tables(table_of(header.dc_huff_tbl_ptrs, component.dc_tbl_no),
                                                       table_of(header.ac_huff_tbl_ptrs, component.ac_tbl_no),
                                                       c > 0 ? 1 : 0)) {
      return {};
    }
  }
  std::optional<ScanBits> bits;
  try {
    bits.emplace(std::span(header.src->next_input_byte, header.src->bytes_in_buffer));
  } catch (const FrameError&) {
    return {};
  }

  // A scan of one component has one block an MCU, whatever its sampling.
  const int across = channels == 1 ? 1 : header.comp_info[0].h_samp_factor;
  const int down = channels == 1 ? 1 : header.comp_info[0].v_samp_factor;
  const int64_t blocks_across = divide_up(header.image_width, 8), blocks_down = divide_up(header.image_height, 8);
  const int64_t mcus_across = divide_up(blocks_across, across), mcus_down = divide_up(blocks_down, down);
  const int64_t mcus = mcus_across * mcus_down;
  const int64_t read_interval = header.restart_interval > 0 ? header.restart_interval : mcus;
  const int written_interval = restart_mcus(64 * across * down);
  FileWriter file(header.src->bytes_in_buffer + header.src->bytes_in_buffer / 8 + 1024);
  write_header(header, across, down, written_interval, &file);
  struct Block {
    ComponentSymbols* component;
    int64_t x, y;
  };
  std::vector<Block> blocks;  // of an MCU
  for (int i = 0; i < across * down; ++i) blocks.push_back({&components[0], i % across, i / across});
  for (int c = 1; c < channels; ++c) blocks.push_back({&components[static_cast<size_t>(c)], 0, 0});

  std::array<uint8_t, kMostSegmentBytes + 16> segment{};
  BitReader from = bits->reader();
  BitWriter to{segment.data()};
  int64_t row = 0, column = 0;
  for (int64_t mcu = 0; mcu < mcus; ++mcu) {
    if (mcu % read_interval == 0) {
      if (!bits->ends_at(from.place) || bits->is_last()) return {};
      from.place = bits->next_segment();
      for (ComponentSymbols& component : components) component.begin_segment_of_input();
    }
    if (mcu % written_interval == 0) {
      if (mcu > 0) {
        file.put_segment(segment.data(), to);
        file.put(0xff, 0xd0 + (mcu / written_interval - 1) % 8);
        to = {segment.data()};
      }
      for (ComponentSymbols& component : components) component.begin_segment_of_output();
    }
    const bool is_edge = column == mcus_across - 1 || row == mcus_down - 1;
    for (const Block& block : blocks) {
      const bool is_outside =
          is_edge && (column * across + block.x >= blocks_across || row * down + block.y >= blocks_down);
      if (!block.component->take_block(is_outside, from, to) || bits->ended_before(from.place)) return {};
    }
    if (++column == mcus_across) {
      column = 0;
      ++row;
    }
  }
  if (!bits->ends_at(from.place) || !bits->is_last()) return {};
  file.put_segment(segment.data(), to);
  file.put(0xff, 0xd9);
  return file.take();
}

}  // namespace robocache
