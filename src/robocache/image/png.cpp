#include "robocache/image/png.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "robocache/core/error.hpp"

namespace robocache {
namespace {

constexpr std::array<uint8_t, 8> kSignature{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

// The kinds of a pixel, by PNG's numbers.
enum Color : uint8_t { kGray = 0, kRgb = 2, kPalette = 3, kGrayAlpha = 4, kRgba = 6 };

// The most bytes that one byte of a zlib stream can inflate to.
constexpr int64_t kMostInflation = 1032;

[[noreturn]] void refuse_png(std::span<const uint8_t> blob, const std::string& why, size_t offset) {
  throw FrameError("PNG of " + std::to_string(blob.size()) + " bytes: " + why + ", at byte " + std::to_string(offset));
}

uint32_t big_endian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

struct Chunk {
  std::string_view type;
  std::span<const uint8_t> data;
  size_t offset = 0;  // of the chunk's length, in the file

  bool is_critical() const { return (type[0] & 0x20) == 0; }
};

// Returns the chunk at this offset. Checks first that it is complete and that its checksum is right.
Chunk chunk_at(std::span<const uint8_t> blob, size_t offset) {
  if (blob.size() - offset < 12) refuse_png(blob, "truncated in the head of a chunk", offset);
  const uint8_t* head = blob.data() + offset;
  const size_t length = big_endian(head);
  const std::string_view type(reinterpret_cast<const char*>(head) + 4, 4);
  for (const char letter : type) {
    if ((letter < 'A' || letter > 'Z') && (letter < 'a' || letter > 'z')) refuse_png(blob, "no chunk", offset);
  }
  if (length > blob.size() - offset - 12) refuse_png(blob, "truncated in chunk " + std::string(type), offset);
  const auto sum = static_cast<uint32_t>(crc32(0, head + 4, static_cast<uInt>(4 + length)));
  if (sum != big_endian(head + 8 + length))
    refuse_png(blob, "the checksum of chunk " + std::string(type) + " fails", offset);
  return {type, blob.subspan(offset + 8, length), offset};
}

struct Header {
  uint32_t width = 0, height = 0;
  int depth = 0;  // bits of a sample
  Color color = kGray;
  bool is_interlaced = false;

  int samples() const { return color == kRgb ? 3 : color == kGrayAlpha ? 2 : color == kRgba ? 4 : 1; }
  int bits() const { return samples() * depth; }  // bits of a pixel
  size_t row_bytes(size_t pixels) const { return (pixels * static_cast<size_t>(bits()) + 7) / 8; }
  int channels() const { return color == kGray || color == kGrayAlpha ? 1 : 3; }
  FrameShape shape() const { return {height, width, channels(), depth == 16 ? DType::kUInt16 : DType::kUInt8}; }
};

// The pixels x0, x0 + dx, ... of the rows y0, y0 + dy, ...
struct Pass {
  uint32_t x0, y0, dx, dy;

  size_t columns(const Header& header) const { return header.width > x0 ? (header.width - x0 + dx - 1) / dx : 0; }
  size_t rows(const Header& header) const {
    return columns(header) == 0 || header.height <= y0 ? 0 : (header.height - y0 + dy - 1) / dy;
  }
  size_t bytes(const Header& header) const { return rows(header) * (1 + header.row_bytes(columns(header))); }
};

constexpr std::array<Pass, 1> kOnePass{{{0, 0, 1, 1}}};
constexpr std::array<Pass, 7> kAdam7{
    {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}}};

std::span<const Pass> passes(const Header& header) {
  return header.is_interlaced ? std::span<const Pass>(kAdam7) : std::span<const Pass>(kOnePass);
}

size_t inflated_bytes(const Header& header) {
  size_t bytes = 0;
  for (const Pass& pass : passes(header)) bytes += pass.bytes(header);
  return bytes;
}

Header read_header(std::span<const uint8_t> blob) {
  if (blob.size() < kSignature.size() || !std::equal(kSignature.begin(), kSignature.end(), blob.begin())) {
    refuse_png(blob, "no signature", 0);
  }
  const size_t offset = kSignature.size();
  const Chunk chunk = chunk_at(blob, offset);
  if (chunk.type != "IHDR" || chunk.data.size() != 13) refuse_png(blob, "expected a header of 13 bytes", offset);
  const uint8_t* data = chunk.data.data();
  const Header header{.width = big_endian(data),
                      .height = big_endian(data + 4),
                      .depth = data[8],
                      .color = static_cast<Color>(data[9]),
                      .is_interlaced = data[12] == 1};
  const bool is_known_color = data[9] <= 6 && data[9] != 1 && data[9] != 5;
  const int depth = header.depth;
  const bool is_known_depth =
      depth == 8 || (depth == 16 && header.color != kPalette) ||
      ((depth == 1 || depth == 2 || depth == 4) && (header.color == kGray || header.color == kPalette));
  if (!is_known_color || !is_known_depth || data[10] != 0 || data[11] != 0 || data[12] > 1) {
    refuse_png(blob, "its header has values that PNG does not have", offset);
  }
  if (header.width < 1 || header.height < 1 || header.width > kMaxFrameSide || header.height > kMaxFrameSide) {
    refuse_png(blob, "expected sides of 1 to " + std::to_string(kMaxFrameSide) + ", got " + header.shape().describe(),
               offset);
  }
  if (static_cast<int64_t>(inflated_bytes(header)) / kMostInflation > static_cast<int64_t>(blob.size())) {
    refuse_png(blob, "its header says " + header.shape().describe() + ", more than the file's bytes can hold", offset);
  }
  return header;
}

// The content between header and end: all filtered rows, pass after pass, and the palette.
struct Content {
  std::vector<uint8_t> rows;
  std::vector<uint8_t> palette;  // red, green and blue of each entry
};

// Inflates `data`, which must be exactly one zlib stream. It begins at `offset` of the file.
std::vector<uint8_t> inflate(std::span<const uint8_t> blob, std::span<const uint8_t> data, size_t offset,
                             size_t bytes) {
  std::vector<uint8_t> rows(bytes + 1);  // the extra byte shows whether the stream holds more
  uLongf inflated = rows.size();
  uLong consumed = data.size();
  const int code = uncompress2(rows.data(), &inflated, data.data(), &consumed);
  if (code == Z_MEM_ERROR) throw std::bad_alloc();
  if (inflated > bytes) refuse_png(blob, "it has more pixels than its header says", offset + consumed);
  if (code != Z_OK) refuse_png(blob, "its data does not inflate", offset + consumed);
  if (consumed < data.size()) refuse_png(blob, "it has bytes after the end of the data", offset + consumed);
  if (inflated != bytes) {
    refuse_png(blob, "expected " + std::to_string(bytes) + " bytes of pixels, got " + std::to_string(inflated), offset);
  }
  rows.pop_back();
  return rows;
}

Content read_content(std::span<const uint8_t> blob, const Header& header) {
  Content content;
  std::vector<uint8_t> data;    // the content of all IDAT chunks
  size_t first_data = 0;        // offset of the first one's content
  bool data_has_ended = false;  // another chunk came after the IDAT chunks
  for (size_t offset = kSignature.size() + 25;;) {
    const Chunk chunk = chunk_at(blob, offset);
    if (chunk.type == "IDAT") {
      if (header.color == kPalette && content.palette.empty())
        refuse_png(blob, "expected a palette before IDAT", offset);
      if (data_has_ended) refuse_png(blob, "it has another IDAT after other chunks", offset);
      if (first_data == 0) first_data = offset + 8;
      data.insert(data.end(), chunk.data.begin(), chunk.data.end());
    } else {
      data_has_ended = first_data != 0;
    }
    if (chunk.type == "PLTE" && header.color == kPalette) {
      if (data_has_ended || !content.palette.empty() || chunk.data.empty() || chunk.data.size() % 3 != 0 ||
          chunk.data.size() > 768) {
        refuse_png(blob, "it has a palette of " + std::to_string(chunk.data.size()) + " bytes", offset);
      }
      content.palette.assign(chunk.data.begin(), chunk.data.end());
    } else if (chunk.type == "tRNS") {
      refuse_png(blob, "expected an opaque frame, got transparent colours (tRNS)", offset);
    } else if (chunk.type == "IEND") {
      break;
    } else if (chunk.is_critical() && chunk.type != "IDAT" && chunk.type != "PLTE") {
      refuse_png(blob, "unknown critical chunk " + std::string(chunk.type), offset);
    }
    offset += 12 + chunk.data.size();
  }
  content.rows = inflate(blob, data, first_data, inflated_bytes(header));
  return content;
}

uint8_t paeth(int left, int above, int corner) {
  const int to_left = std::abs(above - corner), to_above = std::abs(left - corner);
  const int to_corner = std::abs(left + above - 2 * corner);
  if (to_left <= to_above && to_left <= to_corner) return static_cast<uint8_t>(left);
  return static_cast<uint8_t>(to_above <= to_corner ? above : corner);
}

constexpr int kLastFilter = 4;

// Reverses filter `kind` of a row of `bytes`, in place. `step` is the bytes of a pixel, at least 1. `above` is the
// previous row, or zeros. Returns false if there is no such filter.
bool unfilter(int kind, uint8_t* row, const uint8_t* above, size_t bytes, size_t step) {
  const size_t first = std::min(step, bytes);
  switch (kind) {
    case 0:
      return true;
    case 1:
      for (size_t i = step; i < bytes; ++i) row[i] = static_cast<uint8_t>(row[i] + row[i - step]);
      return true;
    case 2:
      for (size_t i = 0; i < bytes; ++i) row[i] = static_cast<uint8_t>(row[i] + above[i]);
      return true;
    case 3:
      for (size_t i = 0; i < first; ++i) row[i] = static_cast<uint8_t>(row[i] + above[i] / 2);
      for (size_t i = step; i < bytes; ++i) row[i] = static_cast<uint8_t>(row[i] + (row[i - step] + above[i]) / 2);
      return true;
    case 4:
      for (size_t i = 0; i < first; ++i) row[i] = static_cast<uint8_t>(row[i] + above[i]);
      for (size_t i = step; i < bytes; ++i) {
        row[i] = static_cast<uint8_t>(row[i] + paeth(row[i - step], above[i], above[i - step]));
      }
      return true;
    default:
      return false;
  }
}

// Writes one row's pixels to `out`, which has the header's shape; neighbouring pixels are `step` pixels apart. Returns
// the fault, or null.
const char* place_row(const Header& header, const std::vector<uint8_t>& palette, const uint8_t* row, size_t pixels,
                      uint8_t* out, size_t step) {
  const auto channels = static_cast<size_t>(header.channels());
  if (header.depth == 16) {
    const auto samples = static_cast<size_t>(header.samples());
    for (size_t i = 0; i < pixels; ++i, row += 2 * samples, out += 2 * channels * step) {
      for (size_t c = 0; c < channels; ++c) {
        const auto sample = static_cast<uint16_t>(row[2 * c] << 8 | row[2 * c + 1]);
        std::memcpy(out + 2 * c, &sample, sizeof sample);
      }
      if (samples > channels && (row[2 * channels] & row[2 * channels + 1]) != 0xff)
        return "a pixel that is not opaque";
    }
  } else if (header.color == kPalette || header.depth < 8) {
    const int depth = header.depth, mask = (1 << depth) - 1;
    for (size_t i = 0; i < pixels; ++i, out += channels * step) {
      const size_t bit = i * static_cast<size_t>(depth);
      const auto value = static_cast<size_t>(row[bit / 8] >> (8 - depth - static_cast<int>(bit % 8)) & mask);
      if (header.color == kGray) {
        *out = static_cast<uint8_t>(value * 255 / static_cast<size_t>(mask));
      } else if (3 * value < palette.size()) {
        std::memcpy(out, palette.data() + 3 * value, 3);
      } else {
        return "a colour after the palette's last";
      }
    }
  } else if (header.color == kGrayAlpha || header.color == kRgba) {
    for (size_t i = 0; i < pixels; ++i, row += channels + 1, out += channels * step) {
      std::memcpy(out, row, channels);
      if (row[channels] != 0xff) return "a pixel that is not opaque";
    }
  } else if (step == 1) {
    std::memcpy(out, row, channels * pixels);
  } else {
    for (size_t i = 0; i < pixels; ++i) std::memcpy(out + i * channels * step, row + i * channels, channels);
  }
  return nullptr;
}

// Decodes a frame to `out`, or only checks it if `out` is null.
void read_png_frame(std::span<const uint8_t> blob, const FrameShape& expected, uint8_t* out) {
  const Header header = read_header(blob);
  const FrameShape shape = header.shape();
  if (shape != expected) throw FrameError("PNG: expected " + expected.describe() + ", got " + shape.describe());
  Content content = read_content(blob, header);
  // In grey and RGB every value is a valid pixel; in the other kinds some values are refused.
  std::vector<uint8_t> discarded;
  if (out == nullptr && header.color != kGray && header.color != kRgb) {
    discarded.resize(static_cast<size_t>(shape.bytes()));
    out = discarded.data();
  }
  const auto pixel_bytes = static_cast<size_t>(shape.channels * dtype_size(shape.dtype));
  const auto filter_step = static_cast<size_t>(std::max(1, header.bits() / 8));
  const std::vector<uint8_t> zeros(header.row_bytes(header.width));
  uint8_t* row = content.rows.data();
  for (const Pass& pass : passes(header)) {
    const size_t columns = pass.columns(header), bytes = header.row_bytes(columns), rows = pass.rows(header);
    const uint8_t* above = zeros.data();
    for (size_t r = 0; r < rows; ++r, above = row + 1, row += 1 + bytes) {
      const size_t y = pass.y0 + r * pass.dy;
      const int filter = row[0];
      if (out == nullptr ? filter > kLastFilter : !unfilter(filter, row + 1, above, bytes, filter_step)) {
        throw FrameError("PNG: row " + std::to_string(y) + " has no filter " + std::to_string(filter));
      }
      if (out == nullptr) continue;
      uint8_t* first = out + (y * header.width + pass.x0) * pixel_bytes;
      if (const char* fault = place_row(header, content.palette, row + 1, columns, first, pass.dx)) {
        throw FrameError("PNG: row " + std::to_string(y) + " has " + fault);
      }
    }
  }
}

}  // namespace

FrameShape png_shape(std::span<const uint8_t> blob) { return read_header(blob).shape(); }

void decode_png_frame(std::span<const uint8_t> blob, const FrameShape& expected, void* out) {
  read_png_frame(blob, expected, static_cast<uint8_t*>(out));
}

void check_png_frame(std::span<const uint8_t> blob, const FrameShape& expected) {
  read_png_frame(blob, expected, nullptr);
}

std::vector<uint8_t> encode_png_frame(const void* pixels, const FrameShape& shape) {
  const auto rows = static_cast<size_t>(shape.height);
  const auto sample_bytes = static_cast<size_t>(dtype_size(shape.dtype));
  const size_t step = static_cast<size_t>(shape.channels) * sample_bytes;
  const size_t bytes = static_cast<size_t>(shape.width) * step;

  // Each row stores the differences from the pixels on the left (filter 1) or from the row above (filter 2), whichever
  // are smaller.
  std::vector<uint8_t> filtered(rows * (1 + bytes));
  std::vector<uint8_t> row(bytes), above(bytes), by_left(bytes), by_above(bytes);
  const auto cost = [](const std::vector<uint8_t>& differences) {
    int64_t sum = 0;
    for (const uint8_t byte : differences) sum += std::abs(static_cast<int8_t>(byte));
    return sum;
  };
  for (size_t r = 0; r < rows; ++r) {
    const uint8_t* from = static_cast<const uint8_t*>(pixels) + r * bytes;
    if (sample_bytes == 1) {
      std::memcpy(row.data(), from, bytes);
    } else {  // PNG is big-endian
      for (size_t i = 0; i < bytes; i += 2) row[i] = from[i + 1], row[i + 1] = from[i];
    }
    for (size_t i = 0; i < bytes; ++i) {
      by_left[i] = static_cast<uint8_t>(row[i] - (i < step ? 0 : row[i - step]));
      by_above[i] = static_cast<uint8_t>(row[i] - above[i]);
    }
    const bool is_by_left = cost(by_left) <= cost(by_above);
    uint8_t* to = filtered.data() + r * (1 + bytes);
    *to = is_by_left ? 1 : 2;
    std::memcpy(to + 1, (is_by_left ? by_left : by_above).data(), bytes);
    std::swap(row, above);
  }

  uLongf size = compressBound(filtered.size());
  std::vector<uint8_t> data(size);
  if (compress2(data.data(), &size, filtered.data(), filtered.size(), Z_BEST_SPEED) != Z_OK) throw std::bad_alloc();
  data.resize(size);

  std::vector<uint8_t> file(kSignature.begin(), kSignature.end());
  const auto put = [&](size_t number) {
    for (int shift = 24; shift >= 0; shift -= 8) file.push_back(static_cast<uint8_t>(number >> shift));
  };
  const auto put_chunk = [&](std::string_view type, std::span<const uint8_t> content) {
    put(content.size());
    const size_t begin = file.size();
    file.insert(file.end(), type.begin(), type.end());
    file.insert(file.end(), content.begin(), content.end());
    put(crc32(0, file.data() + begin, static_cast<uInt>(file.size() - begin)));
  };
  std::array<uint8_t, 13> header{};
  for (int i = 0; i < 4; ++i) {
    header[static_cast<size_t>(i)] = static_cast<uint8_t>(shape.width >> (24 - 8 * i));
    header[static_cast<size_t>(i + 4)] = static_cast<uint8_t>(shape.height >> (24 - 8 * i));
  }
  header[8] = static_cast<uint8_t>(8 * sample_bytes);
  header[9] = shape.channels == 1 ? kGray : kRgb;
  put_chunk("IHDR", header);
  for (std::span<const uint8_t> remaining = data; !remaining.empty();) {
    const size_t length = std::min(remaining.size(), size_t{1} << 30);
    put_chunk("IDAT", remaining.first(length));
    remaining = remaining.subspan(length);
  }
  put_chunk("IEND", {});
  return file;
}

}  // namespace robocache
