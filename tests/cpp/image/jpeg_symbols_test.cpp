// segment_jpeg's fast way against libjpeg-turbo's: the same bytes, or nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "robocache/core/error.hpp"
#include "robocache/image/jpeg.hpp"
#include "robocache/image/jpeg_coding.hpp"
#include "tests/cpp/image/libjpeg.hpp"
#include "tests/cpp/trials.hpp"

namespace robocache {
namespace {

using test::jpeg;
using test::JpegOptions;
using test::marker;
using Bytes = std::vector<uint8_t>;

// What libjpeg makes of a file without its pixels: empty where it refuses it, or has to encode it anew.
Bytes by_coefficients(const Bytes& file) {
  try {
    Segmented segmented = segment_jpeg_by_coefficients(file);
    return segmented.reencoded ? Bytes{} : segmented.blob;
  } catch (const FrameError&) {
    return {};
  }
}

void expect_same(const Bytes& file) {
  const Bytes expected = by_coefficients(file);
  ASSERT_FALSE(expected.empty());
  EXPECT_TRUE(segment_jpeg_by_symbols(file) == expected);
}

void expect_left_to_libjpeg(const Bytes& file) { EXPECT_TRUE(segment_jpeg_by_symbols(file).empty()); }

Bytes with(Bytes file, size_t place, std::initializer_list<uint8_t> bytes) {
  std::copy(bytes.begin(), bytes.end(), file.begin() + static_cast<std::ptrdiff_t>(place));
  return file;
}

Bytes with_inserted(Bytes file, size_t place, const Bytes& bytes) {
  file.insert(file.begin() + static_cast<std::ptrdiff_t>(place), bytes.begin(), bytes.end());
  return file;
}

Bytes without(Bytes file, size_t place, size_t bytes) {
  const auto at = file.begin() + static_cast<std::ptrdiff_t>(place);
  file.erase(at, at + static_cast<std::ptrdiff_t>(bytes));
  return file;
}

TEST(JpegSymbols, AreLibjpegsOfAnySize) {
  for (int height = 1; height <= 40; ++height) {
    for (int width = 1; width <= 40; ++width) {
      for (const auto& [channels, across, down] : {std::array{1, 1, 1}, {1, 2, 2}, {3, 1, 1}, {3, 2, 1}, {3, 2, 2}}) {
        if (test::kSanitized && (height * 7 + width * 3 + across) % 10 != 0) continue;
        const int which = height * 41 + width;  // a bit of everything
        const JpegOptions options{.quality = 1 + which * 37 % 100,
                                  .luma_across = across,
                                  .luma_down = down,
                                  .restart_mcus = std::array{0, 0, 1, 2, 3, 5}[static_cast<size_t>(which % 6)],
                                  .optimised = which % 7 < 2};
        SCOPED_TRACE(::testing::Message()
                     << height << " x " << width << " x " << channels << ", quality " << options.quality);
        expect_same(jpeg(height, width, channels, options));
      }
    }
  }
}

TEST(JpegSymbols, AreLibjpegsOfAnyQuality) {
  for (int quality = 1; quality <= 100; quality += test::kSanitized ? 11 : 1) {
    for (const auto& [channels, across, down] : {std::array{1, 1, 1}, {3, 1, 1}, {3, 2, 1}, {3, 2, 2}}) {
      for (const bool optimised : {false, true}) {
        SCOPED_TRACE(quality);
        expect_same(jpeg(
            120, 173, channels,
            {.quality = quality, .luma_across = across, .luma_down = down, .restart_mcus = 0, .optimised = optimised}));
      }
    }
  }
}

TEST(JpegSymbols, AreLibjpegsOfPicturesWithoutDetailAndOfTheLargestCoefficients) {
  Bytes stripes;
  for (int i = 0; i < 32 * 32; ++i) {
    stripes.push_back(i % 32 < 16 ? (i / 8 % 2 == 0 ? 0 : 255) : (i % 2 == 0 ? 0 : 255));
  }
  for (const Bytes& pixels : {stripes, Bytes(1024, 0), Bytes(1024, 255), Bytes(1024, 128)}) {
    for (const int quality : {1, 50, 100}) {
      expect_same(test::encode_jpeg(pixels, 32, 32, 1, {.quality = quality, .luma_across = 1, .luma_down = 1}));
    }
  }
}

TEST(JpegSymbols, AreLibjpegsWhateverTheHeaderSays) {
  const Bytes file = jpeg(50, 70, 3, {.restart_mcus = 0});
  const size_t jfif = marker(file, 0xe0), frame = marker(file, 0xc0), scan = marker(file, 0xda);
  expect_same(with(file, jfif + 9, {1, 2, 1, 0, 72, 0, 96}));  // version 1.2, 72 x 96 dots an inch
  for (const uint8_t version : {0, 2, 3}) expect_same(with(file, jfif + 9, {version, 5}));
  expect_same(without(file, jfif, 18));
  const Bytes adobe{0xff, 0xee, 0, 14, 'A', 'd', 'o', 'b', 'e', 0, 100, 0, 0, 0, 0, 1};
  expect_same(with_inserted(without(file, jfif, 18), 2, adobe));
  expect_same(with_inserted(file, 20, {0xff, 0xfe, 0, 5, 'a', 'b', 'c'}));
  expect_same(with_inserted(file, frame, {0xff, 0xff, 0xff}));
  expect_same(with(file, frame + 1, {0xc1}));
  Bytes named = with(file, frame + 10, {7});  // the first component
  expect_same(with(named, scan + 5, {7}));
  // Chroma with luma's tables.
  expect_same(with(with(file, frame + 15, {0}), frame + 18, {0}));
  Bytes optimised = jpeg(50, 70, 3, {.restart_mcus = 0, .optimised = true});
  optimised[marker(optimised, 0xdb) + 4] = 3;  // luma's steps are table 3
  expect_same(with(optimised, marker(optimised, 0xc0) + 12, {3}));
  // Behind the end of the image may be what wants.
  Bytes longer = file;
  longer.insert(longer.end(), {0xff, 0xda, 1, 2, 3});
  expect_same(longer);
  // Fill bytes before markers.
  const Bytes cut = jpeg(50, 70, 3, {.restart_mcus = 3});
  expect_same(with_inserted(cut, marker(cut, 0xd0), {0xff, 0xff}));
  expect_same(with_inserted(cut, cut.size() - 2, {0xff}));
}

TEST(JpegSymbols, LeaveToLibjpegWhatIsNotOrdinary) {
  expect_left_to_libjpeg(jpeg(40, 40, 3, {.progressive = true}));
  expect_left_to_libjpeg(jpeg(40, 40, 3, {.interleaved = false}));
  expect_left_to_libjpeg(jpeg(40, 40, 3, {.luma_across = 1, .luma_down = 2}));
  expect_left_to_libjpeg(jpeg(40, 40, 3, {.luma_across = 4, .luma_down = 1}));
  expect_left_to_libjpeg(jpeg(40, 40, 3, {.luma_across = 1, .luma_down = 1, .stored = JCS_RGB}));
  const Bytes file = jpeg(40, 40, 3, {.restart_mcus = 2});
  const size_t end = file.size() - 2;
  for (size_t bytes = marker(file, 0xda) + 14; bytes < file.size(); bytes += test::kDamageStep) {
    expect_left_to_libjpeg(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(bytes)));
  }
  expect_left_to_libjpeg(with_inserted(file, end, {0x55}));
  expect_left_to_libjpeg(with_inserted(file, end, {0xff, 0}));
  expect_left_to_libjpeg(with_inserted(file, end, {0xff, 0xdc, 0, 4, 0, 40}));
  expect_left_to_libjpeg(with_inserted(file, end, {0xff, 0xfe, 0, 2}));
  const size_t restart = marker(file, 0xd1);
  expect_left_to_libjpeg(with(file, restart + 1, {0xd2}));
  expect_left_to_libjpeg(with_inserted(file, restart, {0x55}));
  expect_left_to_libjpeg(without(file, restart, 2));
  expect_left_to_libjpeg(with(file, marker(file, 0xdd) + 5, {3}));
  expect_left_to_libjpeg(with(file, marker(file, 0xda) + 12, {62}));
  const size_t scan = marker(file, 0xda);
  expect_left_to_libjpeg(with(file, scan + 6, {0x22}));  // there are no such tables
  expect_left_to_libjpeg(with_inserted(file, end, {0xff, 0xd4, 0x55}));
  expect_left_to_libjpeg(with(file, marker(file, 0xc4) + 5, {0, 1, 5, 1, 1, 1, 1, 2, 0}));  // a code of ones alone
}

// ---- files made symbol by symbol -------------------------------------------------------------------------------------

// Luma's table of symbols of DC (0) or AC (0x10), or chroma's (1, 0x11), as libjpeg writes it where it makes none.
HuffmanCodes standard_codes(uint8_t id) {
  static const Bytes file = jpeg(8, 8, 3, {});
  size_t table = marker(file, 0xc4);
  for (int n = 1; file[table + 4] != id; ++n) table = marker(file, 0xc4, n);
  HuffmanCodes codes;
  codes.defined = true;
  std::copy_n(file.begin() + static_cast<std::ptrdiff_t>(table + 5), 16, codes.counts.begin());
  const size_t symbols = (size_t{file[table + 2]} << 8 | file[table + 3]) - 19;
  std::copy_n(file.begin() + static_cast<std::ptrdiff_t>(table + 21), symbols, codes.symbols.begin());
  return codes;
}

class TestBits {
 public:
  void put(uint32_t bits, uint32_t count) {
    for (uint32_t i = count; i-- > 0;) {
      held_ = held_ << 1 | (bits >> i & 1);
      if (++filled_ == 8) put_byte();
    }
  }
  void restart(int number) {
    end();
    bytes.insert(bytes.end(), {0xff, static_cast<uint8_t>(0xd0 + number % 8)});
  }
  void end() {
    while (filled_ > 0) put(1, 1);
  }

  Bytes bytes;

 private:
  void put_byte() {
    bytes.push_back(static_cast<uint8_t>(held_));
    if (bytes.back() == 0xff) bytes.push_back(0);
    filled_ = held_ = 0;
  }

  uint32_t held_ = 0, filled_ = 0;
};

// Files that no encoder writes: random symbols of random tables, or of the standard's.
class RandomFile {
 public:
  explicit RandomFile(unsigned seed) : random_(seed) {}

  Bytes make() {
    const int channels = below(2) == 0 ? 1 : 3;
    const int across = channels == 1 ? 1 : 1 + below(2), down = across == 1 ? 1 : 1 + below(2);
    const int height = 1 + below(50), width = 1 + below(50), interval = below(3) == 0 ? 1 + below(6) : 0;
    // Sizes of coefficients, and symbols that writers do not write: now and then only, for all the rest to be compared.
    most_size_ = below(4) == 0 ? 12 : 1 + below(6);
    is_odd_ = below(4) == 0;
    Bytes file{0xff, 0xd8};
    const auto part = [&file](uint8_t code, const Bytes& body) {
      const size_t length = body.size() + 2;
      file.insert(file.end(), {0xff, code, static_cast<uint8_t>(length >> 8), static_cast<uint8_t>(length)});
      file.insert(file.end(), body.begin(), body.end());
    };
    Bytes steps{0};
    for (int i = 0; i < 64; ++i) steps.push_back(static_cast<uint8_t>(1 + below(255)));
    part(0xdb, steps);
    Bytes frame{8, 0, static_cast<uint8_t>(height), 0, static_cast<uint8_t>(width), static_cast<uint8_t>(channels)};
    Bytes scan{static_cast<uint8_t>(channels)};
    HuffmanCodes dc[2], ac[2];
    for (int i = 0; i < std::min(channels, 2); ++i) {
      const auto id = static_cast<uint8_t>(i);
      dc[i] = below(2) == 0 ? standard_codes(id) : random_codes(dc_symbols());
      ac[i] = below(2) == 0 ? standard_codes(0x10 | id) : random_codes(ac_symbols());
      for (const auto& [kind, codes] : {std::pair{0, &dc[i]}, {0x10, &ac[i]}}) {
        Bytes body{static_cast<uint8_t>(kind | i)};
        body.insert(body.end(), codes->counts.begin(), codes->counts.end());
        int count = 0;
        codes->for_each([&](uint32_t, uint32_t, uint32_t) { ++count; });
        body.insert(body.end(), codes->symbols.begin(), codes->symbols.begin() + count);
        part(0xc4, body);
      }
    }
    for (int c = 0; c < channels; ++c) {
      const auto name = static_cast<uint8_t>(c + 1);
      frame.insert(frame.end(), {name, static_cast<uint8_t>(c == 0 ? across << 4 | down : 0x11), 0});
      scan.insert(scan.end(), {name, static_cast<uint8_t>(c == 0 ? 0 : 0x11)});
    }
    part(0xc0, frame);
    if (interval > 0) part(0xdd, {0, static_cast<uint8_t>(interval)});
    scan.insert(scan.end(), {0, 63, 0});
    part(0xda, scan);
    const auto divide_up = [](int a, int b) { return (a + b - 1) / b; };
    const int mcus = divide_up(width, 8 * across) * divide_up(height, 8 * down);
    TestBits bits;
    std::array<int, 3> dc_values{};
    for (int mcu = 0; mcu < mcus; ++mcu) {
      if (interval > 0 && mcu > 0 && mcu % interval == 0) {
        bits.restart(mcu / interval - 1);
        dc_values = {};
      }
      for (int c = 0; c < channels; ++c) {
        const int table = std::min(c, 1);
        for (int block = 0; block < (c == 0 ? across * down : 1); ++block) {
          write_block(&bits, dc[table], ac[table], &dc_values[static_cast<size_t>(c)]);
        }
      }
    }
    bits.end();
    file.insert(file.end(), bits.bytes.begin(), bits.bytes.end());
    file.insert(file.end(), {0xff, 0xd9});
    return file;
  }

 private:
  int below(int n) { return std::uniform_int_distribution(0, n - 1)(random_); }

  std::set<uint8_t> dc_symbols() {
    std::set<uint8_t> symbols{0, 1};
    for (int i = 0; i < most_size_; ++i) symbols.insert(static_cast<uint8_t>(i));
    return symbols;
  }
  std::set<uint8_t> ac_symbols() {
    std::set<uint8_t> symbols{0x00, 0xf0, 0x01};
    const int count = 1 + below(120);
    for (int i = 0; i < count; ++i) {
      symbols.insert(static_cast<uint8_t>(below(is_odd_ ? 3 : 16) << 4 | (is_odd_ ? 0 : 1 + below(most_size_))));
    }
    return symbols;
  }

  // Lengths as they come, the longest where there is room for no other, and a code of ones alone free.
  HuffmanCodes random_codes(const std::set<uint8_t>& symbols) {
    std::vector<uint8_t> order(symbols.begin(), symbols.end());
    std::shuffle(order.begin(), order.end(), random_);
    HuffmanCodes codes;
    codes.defined = true;
    size_t next = 0;
    const int shortest = 1 + below(14);
    int room = 1;  // codes of this length
    for (int length = 1; length <= 16; ++length) {
      room *= 2;
      const int left = static_cast<int>(order.size() - next);
      // At this length so many at most that all others still find a place, if at 16 bits.
      const int64_t most = std::min<int64_t>(left, room - 1 - (left > room - 1 ? 1 : 0));
      const int64_t count = length == 16 ? left : length < shortest ? 0 : std::min<int64_t>(most, below(3 + length));
      const int64_t longest = (static_cast<int64_t>(room - count) << (16 - length)) - 1;
      const int64_t used = longest >= left - count ? count : 0;
      codes.counts[static_cast<size_t>(length - 1)] = static_cast<uint8_t>(used);
      for (int64_t i = 0; i < used; ++i, ++next) codes.symbols[next] = order[next];
      room -= static_cast<int>(used);
    }
    return codes;
  }

  void put_symbol(TestBits* to, const HuffmanCodes& codes, uint32_t symbol, uint32_t value, uint32_t size) {
    codes.for_each([&](uint32_t other, uint32_t code, uint32_t length) {
      if (other == symbol) to->put(code >> (16 - length), length);
    });
    to->put(value, size);
  }

  // Any of a table's symbols.
  uint32_t random_symbol(const HuffmanCodes& codes) {
    int count = 0;
    codes.for_each([&](uint32_t, uint32_t, uint32_t) { ++count; });
    return codes.symbols[static_cast<size_t>(below(count))];
  }

  void write_block(TestBits* to, const HuffmanCodes& dc, const HuffmanCodes& ac, int* dc_value) {
    for (;;) {
      const uint32_t size = random_symbol(dc);
      const uint32_t value = static_cast<uint32_t>(below(1 << size));
      const int difference =
          size > 0 && value < (1u << (size - 1)) ? static_cast<int>(value) - (1 << size) + 1 : static_cast<int>(value);
      // Beyond what baseline has codes for now and then only.
      if (std::abs(*dc_value + difference) > 1000 && below(200) != 0) continue;
      *dc_value += difference;
      put_symbol(to, dc, size, value, size);
      break;
    }
    const int stop = below(64);
    for (int place = 1; place < 64;) {
      uint32_t symbol = place > stop ? 0 : below(12) == 0 ? 0xf0 : random_symbol(ac);
      const auto run = static_cast<int>(symbol >> 4), size = static_cast<int>(symbol & 15);
      if (size != 0 && place + run > 63) symbol = 0;  // or it would lie behind the block
      if (symbol == 0xf0 && place + 16 > 63 && below(3) != 0) symbol = 0;
      if (size > 10 && below(20) != 0) symbol = 0;
      put_symbol(to, ac, symbol, static_cast<uint32_t>(below(1 << (symbol & 15))), symbol & 15);
      if ((symbol & 15) == 0 && symbol != 0xf0) break;
      place += static_cast<int>(symbol >> 4) + 1;
    }
  }

  std::mt19937 random_;
  int most_size_ = 10;
  bool is_odd_ = false;
};

// ROBOCACHE_SOAK times as many in `./dev soak`'s sense.
int random_files() {
  const char* factor = std::getenv("ROBOCACHE_SOAK");
  return test::damages(3000) * (factor != nullptr ? std::max(1, std::atoi(factor)) : 1);
}

TEST(JpegSymbols, AreLibjpegsWhateverTheSymbols) {
  int same = 0, left = 0, refused = 0;
  for (int round = 0; round < random_files(); ++round) {
    SCOPED_TRACE(round);
    const Bytes file = RandomFile(static_cast<unsigned>(round)).make();
    const Bytes expected = by_coefficients(file);
    const Bytes made = segment_jpeg_by_symbols(file);
    if (made.empty()) {
      (expected.empty() ? refused : left)++;
      continue;
    }
    ++same;
    ASSERT_TRUE(made == expected);
  }
  EXPECT_GT(same, random_files() / 2);
  EXPECT_LT(left, random_files() / 20);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace robocache
