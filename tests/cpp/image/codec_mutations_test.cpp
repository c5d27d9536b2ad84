// Damaged frames: each is decoded or refused with FrameError, and nothing else happens. A frame and the memory for its
// pixels both end at a page border, and the next page may not be touched: libjpeg and zlib are not built with a
// sanitizer.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>

#include "robocache/core/error.hpp"
#include "robocache/image/codec.hpp"
#include "robocache/image/jpeg.hpp"
#include "robocache/image/png.hpp"
#include "tests/cpp/image/libjpeg.hpp"
#include "tests/cpp/image/picture.hpp"
#include "tests/cpp/image/png_checksums.hpp"

namespace robocache {
namespace {

using test::picture;
using Bytes = std::vector<uint8_t>;

// Memory that ends at a page that must not be touched.
class GuardedMemory {
 public:
  explicit GuardedMemory(size_t most) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    size_ = (most + page - 1) / page * page;
    mapped_ = size_ + page;
    void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(static_cast<char*>(memory) + size_, page, PROT_NONE) != 0) std::abort();
    memory_ = static_cast<uint8_t*>(memory);
  }
  ~GuardedMemory() { munmap(memory_, mapped_); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  uint8_t* last(size_t bytes) { return memory_ + size_ - bytes; }

 private:
  uint8_t* memory_ = nullptr;
  size_t size_ = 0, mapped_ = 0;
};

struct Sample {
  Codec codec;
  FrameShape shape;
  Bytes file;
};

std::vector<Sample> samples() {
  std::vector<Sample> samples;
  const auto add_jpeg = [&](int height, int width, int channels, const test::JpegOptions& options) {
    samples.push_back({Codec::kJpeg,
                       {height, width, channels},
                       test::encode_jpeg(picture(height, width, channels), height, width, channels, options)});
  };
  add_jpeg(48, 64, 3, {});
  add_jpeg(33, 50, 3, {.restart_mcus = 0, .optimised = true});
  add_jpeg(40, 40, 3, {.luma_across = 1, .luma_down = 1, .restart_mcus = 4});
  add_jpeg(40, 40, 3, {.luma_across = 1, .luma_down = 2});
  add_jpeg(33, 40, 3, {.restart_mcus = 0, .progressive = true});
  add_jpeg(31, 31, 1, {.luma_across = 1, .luma_down = 1});
  for (const DType dtype : {DType::kUInt8, DType::kUInt16}) {
    const FrameShape shape{23, 31, dtype == DType::kUInt8 ? 3 : 1, dtype};
    const Bytes pixels = picture(shape.height, shape.width, shape.channels * dtype_size(dtype));
    samples.push_back({Codec::kPng, shape, encode_frame(Codec::kPng, pixels.data(), shape)});
  }
  return samples;
}

Bytes mutated(const Sample& sample, const std::vector<Sample>& others, std::mt19937* random) {
  const auto below = [random](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(*random); };
  Bytes file = sample.file;
  const size_t changes = 1 + below(4);
  for (size_t i = 0; i < changes && !file.empty(); ++i) {
    // Half of the changes are near the beginning, where headers and tables are.
    const size_t offset = below(below(2) == 0 ? file.size() : std::min<size_t>(file.size(), 700));
    const auto position = file.begin() + static_cast<std::ptrdiff_t>(offset);
    switch (below(7)) {
      case 0:
        *position ^= static_cast<uint8_t>(1 << below(8));
        break;
      case 1:
        *position = static_cast<uint8_t>(below(256));
        break;
      case 2:
        *position = below(2) == 0 ? 0xff : 0;
        break;
      case 3:
        file.resize(offset);
        break;
      case 4:
        file.erase(position, position + static_cast<std::ptrdiff_t>(std::min(file.size() - offset, 1 + below(40))));
        break;
      case 5: {  // any marker, or part of another frame
        const Bytes& other = others[below(others.size())].file;
        const size_t from = below(other.size());
        const Bytes marker{0xff, static_cast<uint8_t>(0xc0 + below(64))};
        const Bytes part(other.begin() + static_cast<std::ptrdiff_t>(from),
                         other.begin() + static_cast<std::ptrdiff_t>(std::min(other.size(), from + 1 + below(80))));
        const Bytes& inserted = below(2) == 0 ? marker : part;
        file.insert(position, inserted.begin(), inserted.end());
        break;
      }
      default:
        std::swap(*position, file[below(file.size())]);
    }
  }
  if (sample.codec == Codec::kPng && below(8) != 0) test::mend_checksums(&file);
  return file;
}

// Returns the fault that a call names in a PNG, or "".
template <class Call, class... More>
std::string png_fault(const Call& call, std::span<const uint8_t> blob, const FrameShape& shape, More... more) {
  try {
    call(blob, shape, more...);
    return "";
  } catch (const FrameError& error) {
    return error.what();
  }
}

// Returns the number of rounds. ROBOCACHE_SOAK, the factor of `./dev attack`, multiplies it: 40 gives 100,000.
int rounds() {
  const char* factor = std::getenv("ROBOCACHE_SOAK");
  return 2500 * (factor != nullptr ? std::max(1, std::atoi(factor)) : 1);
}

TEST(Mutations, AreDecodedOrRefused) {
  const std::vector<Sample> all = samples();
  GuardedMemory blobs(1 << 20), pixels(1 << 20);
  std::mt19937 random(20240611);
  int decoded = 0, refused = 0;
  for (int round = 0; round < rounds(); ++round) {
    const Sample& sample = all[static_cast<size_t>(round) % all.size()];
    const Bytes file = mutated(sample, all, &random);
    SCOPED_TRACE("round " + std::to_string(round));
    uint8_t* begin = blobs.last(file.size());
    std::copy(file.begin(), file.end(), begin);
    const std::span<const uint8_t> blob(begin, file.size());
    uint8_t* out = pixels.last(static_cast<size_t>(sample.shape.bytes()));
    bool is_whole = false;
    try {
      decode_frame(sample.codec, blob, sample.shape, out);
      is_whole = true;
    } catch (const FrameError&) {
    }
    (is_whole ? decoded : refused)++;
    if (sample.codec == Codec::kPng) {
      EXPECT_EQ(png_fault(decode_png_frame, blob, sample.shape, out), png_fault(check_png_frame, blob, sample.shape));
      continue;
    }
    try {
      const Segmented segmented = segment_jpeg(blob);
      const FrameShape shape = frame_shape(Codec::kJpeg, segmented.blob);
      Bytes segmented_pixels(static_cast<size_t>(shape.bytes()));
      decode_frame(Codec::kJpeg, segmented.blob, shape, segmented_pixels.data());
      // A frame kept without loss decodes to the same pixels.
      if (is_whole && !segmented.reencoded) {
        EXPECT_EQ(std::memcmp(segmented_pixels.data(), out, segmented_pixels.size()), 0);
      }
    } catch (const FrameError& error) {
      const bool beyond_range = std::string(error.what()).find("inverse DCT") != std::string::npos;
      EXPECT_TRUE(!is_whole || beyond_range) << "decodes, but is not segmented: " << error.what();
    }
  }
  EXPECT_GT(decoded, rounds() / 20);
  EXPECT_GT(refused, rounds() / 4);
}

}  // namespace
}  // namespace robocache
