#include "robocache/image/jpeg_frames.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "robocache/core/error.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/image/frames.hpp"
#include "robocache/image/jpeg_coding.hpp"

namespace robocache {
namespace {

static_assert(std::endian::native == std::endian::little, "the bytes of words are reversed");

// A JPEG file with its header read and its entropy-coded data measured.
class JpegFile {
 public:
  explicit JpegFile(std::span<const uint8_t> blob) : blob_(blob) {
    if (blob.size() < 2 || blob[0] != 0xff || blob[1] != 0xd8) refuse_jpeg(0, "expected a JPEG file's ff d8");
    position_ = 2;
    while (read_marker()) {
    }
    const JpegPlanes planes = jpeg_planes(frame, height, width, channels);
    const int64_t mcus = int64_t{planes.mcus_across} * planes.mcus_down;
    frame.segment_mcus = restart_interval_ == 0 ? static_cast<int32_t>(mcus) : restart_interval_;
    frame.segment_count = static_cast<int32_t>((mcus + frame.segment_mcus - 1) / frame.segment_mcus);
    // A block takes at least one code of each kind, so a small file cannot demand much work.
    const int64_t blocks = mcus * (channels == 1 ? 1 : frame.luma_across * frame.luma_down + 2);
    least_scan_bytes_ = (2 * blocks + 7) / 8;
  }

  int32_t height = 0, width = 0, channels = 0;
  JpegFrame frame{};

  // Checks the markers of the entropy-coded data, and removes the markers and the stuffing. Writes whole words to
  // `words` and the offsets of the segments to `begins` [segment_count + 1]. Returns the number of bytes. With null
  // pointers it only counts.
  int64_t strip_scan(uint32_t* words, uint32_t* begins) const {
    auto* const to = reinterpret_cast<uint8_t*>(words);
    int64_t bytes = 0;
    int64_t segment_begin = 0;
    int32_t segments = 0;
    if (begins != nullptr) begins[0] = 0;
    for_each_stretch(
        blob_, scan_begin_,
        [&](const uint8_t* from, int64_t stretch) {
          if (to != nullptr) std::memcpy(to + bytes, from, static_cast<size_t>(stretch));
          bytes += stretch;
        },
        [&] {
          if (bytes == segment_begin) refuse_jpeg(scan_begin_, "segment ", segments, " is empty");
          segment_begin = bytes;
          ++segments;
          if (begins != nullptr && segments <= frame.segment_count) begins[segments] = static_cast<uint32_t>(bytes);
        });
    if (segments != frame.segment_count) {
      refuse_jpeg(scan_begin_, "expected ", frame.segment_count, " segments of ", frame.segment_mcus, " MCUs, got ",
                  segments);
    }
    if (bytes < least_scan_bytes_) {
      refuse_jpeg(scan_begin_, bytes, " bytes of entropy-coded data are too few for ", height, " x ", width, " pixels");
    }
    if (bytes > UINT32_MAX - 64) refuse_jpeg(scan_begin_, "more than 4 GB of entropy-coded data");
    for (int64_t word = 0; words != nullptr && word < (bytes + 3) / 4; ++word) {
      words[word] = __builtin_bswap32(words[word]);
    }
    return bytes;
  }

  // Returns everything that determines the JpegTables.
  std::string tables_key() const {
    std::string key;
    const auto append = [&key](const auto& values) {
      key.append(reinterpret_cast<const char*>(values.data()), sizeof(values[0]) * values.size());
    };
    for (int c = 0; c < channels; ++c) {
      append(quantisation_[components_[c].quantisation]);
      key.push_back(static_cast<char>(components_[c].dc));
      key.push_back(static_cast<char>(components_[c].ac));
    }
    for (const auto* codes : {dc_, ac_}) {
      for (int i = 0; i < 2; ++i) {
        key.push_back(codes[i].defined ? 1 : 0);
        append(codes[i].counts);
        append(codes[i].symbols);
      }
    }
    return key;
  }

  JpegTables tables(std::vector<uint16_t>& long_entries) const {
    JpegTables result{};
    for (int c = 0; c < channels; ++c) {
      std::copy(quantisation_[components_[c].quantisation].begin(), quantisation_[components_[c].quantisation].end(),
                result.quantisation[c]);
      result.dc_of[c] = components_[c].dc;
      result.ac_of[c] = components_[c].ac;
    }
    for (int i = 0; i < 2; ++i) {
      result.dc[i] = make_jpeg_huffman(dc_[i], true, long_entries);
      result.ac[i] = make_jpeg_huffman(ac_[i], false, long_entries);
    }
    return result;
  }

 private:
  struct Component {
    uint8_t id, across, down, quantisation;
    uint8_t dc = 0, ac = 0;
  };

  int byte(int64_t offset) const {
    if (offset >= static_cast<int64_t>(blob_.size())) refuse_jpeg(offset, "the file ends inside its header");
    return blob_[static_cast<size_t>(offset)];
  }
  int big_endian_16(int64_t offset) const { return byte(offset) << 8 | byte(offset + 1); }

  // Returns false if the entropy-coded data begins next.
  bool read_marker() {
    if (byte(position_) != 0xff) refuse_jpeg(position_, "expected a marker, got ", hexadecimal(byte(position_)));
    while (byte(position_) == 0xff) ++position_;
    const int marker = byte(position_);
    const int64_t begin = ++position_;  // offset of the length
    if (marker == 0x01 || (marker >= 0xd0 && marker <= 0xd9)) {
      refuse_jpeg(begin - 1, "expected a header, got marker ", hexadecimal(marker));
    }
    const int length = big_endian_16(begin);
    const int64_t end = begin + length;
    if (length < 2 || end > static_cast<int64_t>(blob_.size())) {
      refuse_jpeg(begin, "expected a header part of 2 to ", static_cast<int64_t>(blob_.size()) - begin,
                  " bytes, got one of ", length);
    }
    position_ = begin + 2;
    switch (marker) {
      case 0xc0:
      case 0xc1:
        read_frame(end);
        break;
      case 0xc4:
        while (position_ < end) read_huffman(end);
        break;
      case 0xda:
        read_scan(end);
        return false;
      case 0xdb:
        while (position_ < end) read_quantisation(end);
        break;
      case 0xdd:
        if (length != 4) refuse_jpeg(begin, "expected a restart interval of 4 bytes, got ", length);
        restart_interval_ = big_endian_16(position_);
        break;
      case 0xe0:
        is_jfif_ |= length >= 7 && std::memcmp(blob_.data() + position_, "JFIF", 5) == 0;
        break;
      case 0xee:
        if (length >= 14 && std::memcmp(blob_.data() + position_, "Adobe", 5) == 0)
          adobe_transform_ = byte(position_ + 11);
        break;
      default:
        if (marker == 0xc2) refuse_jpeg(begin - 1, "expected baseline coding, got progressive");
        if (marker > 0xc2 && marker <= 0xcf && marker != 0xc8) {
          refuse_jpeg(begin - 1, "expected baseline coding, got the coding of marker ", hexadecimal(marker));
        }
        if (marker < 0xe0 && marker != 0xdc) refuse_jpeg(begin - 1, "got unknown marker ", hexadecimal(marker));
        if (marker == 0xdc)
          refuse_jpeg(begin - 1, "expected the number of lines in the frame header, got it after the frame");
    }
    position_ = end;
    return true;
  }

  void read_frame(int64_t end) {
    if (channels != 0) refuse_jpeg(position_, "expected one frame header, got a second one");
    if (end - position_ < 6) refuse_jpeg(position_, "the frame header is too short");
    if (byte(position_) != 8) refuse_jpeg(position_, "expected 8 bits a sample, got ", byte(position_));
    height = big_endian_16(position_ + 1);
    width = big_endian_16(position_ + 3);
    if (height == 0 || width == 0)
      refuse_jpeg(position_ + 1, "expected a frame with pixels, got ", height, " x ", width);
    channels = byte(position_ + 5);
    if (channels != 1 && channels != 3) refuse_jpeg(position_ + 5, "expected 1 or 3 components, got ", channels);
    if (end - position_ != 6 + 3 * channels)
      refuse_jpeg(position_, "the frame header's length does not fit its components");
    for (int c = 0; c < channels; ++c) {
      const int64_t offset = position_ + 6 + int64_t{3} * c;
      Component& component = components_[c];
      component = {static_cast<uint8_t>(byte(offset)), static_cast<uint8_t>(byte(offset + 1) >> 4),
                   static_cast<uint8_t>(byte(offset + 1) & 15), static_cast<uint8_t>(byte(offset + 2))};
      if (component.quantisation > 3)
        refuse_jpeg(offset + 2, "there is no quantisation table ", component.quantisation);
    }
    const int across = components_[0].across, down = components_[0].down;
    const bool chroma_is_1x1 = channels == 1 || (components_[1].across == 1 && components_[1].down == 1 &&
                                                 components_[2].across == 1 && components_[2].down == 1);
    const bool is_known_sampling = (across == 1 && down == 1) || (across == 2 && (down == 1 || down == 2));
    // A scan of one component has one block per MCU, whatever its sampling.
    if (channels == 3 && !(chroma_is_1x1 && is_known_sampling)) {
      refuse_jpeg(position_ + 6, "expected sampling of 4:4:4, 4:2:2 or 4:2:0, got ", across, "x", down, ", ",
                  components_[1].across, "x", components_[1].down, ", ", components_[2].across, "x",
                  components_[2].down);
    }
    frame.luma_across = channels == 1 ? 1 : across;
    frame.luma_down = channels == 1 ? 1 : down;
  }

  void read_huffman(int64_t end) {
    if (end - position_ < 17) refuse_jpeg(position_, "a Huffman table is cut short");
    const int kind = byte(position_) >> 4, id = byte(position_) & 15;
    if (kind > 1 || id > 3) refuse_jpeg(position_, "there is no Huffman table ", hexadecimal(byte(position_)));
    HuffmanCodes codes;
    codes.defined = true;
    int symbols = 0;
    int free_codes = 1;  // of this length
    for (int length = 1; length <= 16; ++length) {
      const int count = byte(position_ + length);
      codes.counts[static_cast<size_t>(length - 1)] = static_cast<uint8_t>(count);
      symbols += count;
      free_codes = 2 * free_codes - count;
      if (free_codes < 0)
        refuse_jpeg(position_ + length, "a Huffman table has more codes of ", length, " bits than there can be");
    }
    if (symbols > 256 || symbols > end - position_ - 17) refuse_jpeg(position_, "a Huffman table is cut short");
    for (int i = 0; i < symbols; ++i) {
      codes.symbols[static_cast<size_t>(i)] = static_cast<uint8_t>(byte(position_ + 17 + i));
      if (kind == 0 && codes.symbols[static_cast<size_t>(i)] > 15) {
        refuse_jpeg(position_ + 17 + i, "expected DC coefficients of at most 15 bits, got ", byte(position_ + 17 + i));
      }
    }
    position_ += 17 + symbols;
    if (id < 2) (kind == 0 ? dc_ : ac_)[id] = codes;  // baseline coding has no other tables
  }

  void read_quantisation(int64_t end) {
    const int has_16_bits = byte(position_) >> 4, id = byte(position_) & 15;
    if (has_16_bits > 1 || id > 3)
      refuse_jpeg(position_, "there is no quantisation table ", hexadecimal(byte(position_)));
    if (end - position_ < 1 + 64 * (1 + has_16_bits)) refuse_jpeg(position_, "a quantisation table is cut short");
    for (int i = 0; i < 64; ++i) {
      const int value = has_16_bits ? big_endian_16(position_ + 1 + int64_t{2} * i) : byte(position_ + 1 + i);
      quantisation_[static_cast<size_t>(id)][static_cast<size_t>(i)] = static_cast<uint16_t>(value);
    }
    quantisation_defined_[id] = true;
    position_ += 1 + 64 * (1 + has_16_bits);
  }

  void read_scan(int64_t end) {
    if (channels == 0) refuse_jpeg(position_, "expected a frame header before the entropy-coded data, got none");
    if (byte(position_) != channels)
      refuse_jpeg(position_, "expected one scan of ", channels, " components, got ", byte(position_));
    if (end - position_ != 4 + 2 * channels)
      refuse_jpeg(position_, "the scan header's length does not fit its components");
    for (int c = 0; c < channels; ++c) {
      const int64_t offset = position_ + 1 + int64_t{2} * c;
      Component& component = components_[c];
      if (byte(offset) != component.id)
        refuse_jpeg(offset, "expected component ", component.id, ", got ", byte(offset));
      component.dc = static_cast<uint8_t>(byte(offset + 1) >> 4);
      component.ac = static_cast<uint8_t>(byte(offset + 1) & 15);
      if (component.dc > 1 || component.ac > 1 || !dc_[component.dc].defined || !ac_[component.ac].defined) {
        refuse_jpeg(offset + 1, "there are no Huffman tables ", component.dc, " and ", component.ac);
      }
      if (!quantisation_defined_[component.quantisation]) {
        refuse_jpeg(offset, "there is no quantisation table ", component.quantisation);
      }
    }
    const int64_t spectrum = position_ + 1 + int64_t{2} * channels;
    if (byte(spectrum) != 0 || byte(spectrum + 1) != 63 || byte(spectrum + 2) != 0) {
      refuse_jpeg(spectrum, "expected all coefficients in one scan");
    }
    // The rule is libjpeg's: JFIF files are YCbCr. Otherwise Adobe's marker decides, or else the components' names.
    const bool is_named_rgb = components_[0].id == 'R' && components_[1].id == 'G' && components_[2].id == 'B';
    const bool is_rgb = adobe_transform_ >= 0 ? adobe_transform_ == 0 : is_named_rgb;
    if (channels == 3 && !is_jfif_ && is_rgb) refuse_jpeg(position_, "expected YCbCr, got RGB");
    scan_begin_ = end;
  }

  std::span<const uint8_t> blob_;
  int64_t position_ = 0;
  int64_t scan_begin_ = 0;
  int64_t least_scan_bytes_ = 0;
  int32_t restart_interval_ = 0;
  bool is_jfif_ = false;
  int adobe_transform_ = -1;  // none
  Component components_[3]{};
  HuffmanCodes dc_[2], ac_[2];
  std::array<std::array<uint16_t, 64>, 4> quantisation_{};
  bool quantisation_defined_[4]{};
};

// The distinct look-up tables of all files.
class TableSet {
 public:
  // Returns the index of a file's tables. Any number of threads may call it.
  int32_t index_of(const JpegFile& file) {
    std::string key = file.tables_key();
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = indices_.try_emplace(std::move(key), static_cast<int32_t>(tables.size()));
    if (is_new) tables.push_back(file.tables(long_entries));
    return entry->second;
  }

  std::vector<JpegTables> tables;
  std::vector<uint16_t> long_entries;

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, int32_t> indices_;
};

int64_t multiple_of_16(int64_t bytes) { return (bytes + 15) / 16 * 16; }

// Returns the most segments of a frame: a segment has at least one MCU, of at least 8 x 8 pixels.
int64_t most_segments_of(const FrameShape& shape) { return ((shape.height + 7) / 8) * ((shape.width + 7) / 8); }

}  // namespace

JpegFrames prepare_jpeg_frames(std::span<const uint8_t> blobs, std::span<const int64_t> offsets,
                               std::span<const int64_t> rows, const std::function<std::string(int64_t)>& name) {
  JpegFrames result;
  const auto count = static_cast<int64_t>(rows.size());
  if (count == 0) return result;
  const auto row_name = [&](int64_t i) { return "row " + std::to_string(rows[static_cast<size_t>(i)]); };
  const auto name_of = name ? name : std::function<std::string(int64_t)>(row_name);
  const auto blob_of = [&](int64_t i) { return blob_at(blobs, offsets, rows[static_cast<size_t>(i)]); };
  for_each_frame(
      1,
      [&](int64_t i) {
        const JpegFile first(blob_of(i));
        result.height = first.height;
        result.width = first.width;
        result.channels = first.channels;
      },
      name_of);

  result.frames.resize(static_cast<size_t>(count));
  std::vector<int64_t> scan_bytes(static_cast<size_t>(count));
  TableSet tables;
  for_each_frame(
      count,
      [&](int64_t i) {
        const JpegFile file(blob_of(i));
        if (file.height != result.height || file.width != result.width || file.channels != result.channels) {
          const auto shape = [](const auto& sized) {
            return FrameShape{sized.height, sized.width, sized.channels}.describe();
          };
          throw FrameError("JPEG: expected " + shape(result) + " like " + name_of(0) + ", got " + shape(file));
        }
        JpegFrame& frame = result.frames[static_cast<size_t>(i)] = file.frame;
        scan_bytes[static_cast<size_t>(i)] = file.strip_scan(nullptr, nullptr);
        frame.tables = tables.index_of(file);
      },
      name_of);
  result.tables = std::move(tables.tables);
  result.long_entries = std::move(tables.long_entries);

  int64_t words = 0, segments = 0;
  for (int64_t i = 0; i < count; ++i) {
    JpegFrame& frame = result.frames[static_cast<size_t>(i)];
    frame.words = words;
    frame.segments = segments;
    words += multiple_of_16(scan_bytes[static_cast<size_t>(i)]) / 4;
    segments += frame.segment_count + 1;
    result.most_segments = std::max(result.most_segments, frame.segment_count);
    const int64_t bytes = jpeg_planes(frame, result.height, result.width, result.channels).bytes;
    result.plane_bytes = std::max(result.plane_bytes, (bytes + 255) / 256 * 256);
  }
  result.words.resize(static_cast<size_t>(words));
  result.segments.resize(static_cast<size_t>(segments));
  for_each_frame(count, [&](int64_t i) {
    const JpegFrame& frame = result.frames[static_cast<size_t>(i)];
    JpegFile(blob_of(i)).strip_scan(result.words.data() + frame.words, result.segments.data() + frame.segments);
  });
  return result;
}

void append_frames(JpegFrames& all, JpegFrames piece, int64_t words) {
  all.height = piece.height;
  all.width = piece.width;
  all.channels = piece.channels;
  all.most_segments = std::max(all.most_segments, piece.most_segments);
  all.plane_bytes = std::max(all.plane_bytes, piece.plane_bytes);
  // Equal tables may keep their longer codes at different offsets.
  const auto same_codes = [&](const JpegHuffman& a, const JpegHuffman& b) {
    const auto longer = a.long_end - a.long_code;
    return std::ranges::equal(a.first, b.first) && a.long_code == b.long_code && a.long_end == b.long_end &&
           std::equal(all.long_entries.begin() + a.long_begin, all.long_entries.begin() + a.long_begin + longer,
                      piece.long_entries.begin() + b.long_begin);
  };
  const auto same_tables = [&](const JpegTables& a, const JpegTables& b) {
    return std::ranges::equal(a.dc, b.dc, same_codes) && std::ranges::equal(a.ac, b.ac, same_codes) &&
           std::memcmp(a.quantisation, b.quantisation, sizeof(a.quantisation)) == 0 &&
           std::ranges::equal(a.dc_of, b.dc_of) && std::ranges::equal(a.ac_of, b.ac_of);
  };
  std::vector<int32_t> new_index;
  const auto old_count = static_cast<std::ptrdiff_t>(all.tables.size());
  const auto old_long_entries = static_cast<uint32_t>(all.long_entries.size());
  for (JpegTables& tables : piece.tables) {
    const auto end = all.tables.begin() + old_count;
    const auto same =
        std::find_if(all.tables.begin(), end, [&](const JpegTables& other) { return same_tables(other, tables); });
    new_index.push_back(static_cast<int32_t>(same == end ? all.tables.size() : same - all.tables.begin()));
    if (same != end) continue;
    for (JpegHuffman* codes : {&tables.dc[0], &tables.dc[1], &tables.ac[0], &tables.ac[1]}) {
      codes->long_begin += old_long_entries;
    }
    all.tables.push_back(tables);
  }
  if (std::ssize(all.tables) > old_count) {
    all.long_entries.insert(all.long_entries.end(), piece.long_entries.begin(), piece.long_entries.end());
  }
  for (JpegFrame& frame : piece.frames) {
    frame.words += words;
    frame.segments += std::ssize(all.segments);
    frame.tables = new_index[static_cast<size_t>(frame.tables)];
  }
  all.frames.insert(all.frames.end(), piece.frames.begin(), piece.frames.end());
  all.segments.insert(all.segments.end(), piece.segments.begin(), piece.segments.end());
}

int64_t packed_jpegs_bytes(const FrameShape& shape, int64_t count, int64_t largest) {
  // The most entries for codes longer than kJpegFirstBits in one table, which has at most 256 symbols.
  constexpr int64_t kLongEntries = 256 << (16 - kJpegFirstBits - 1);
  constexpr auto kTables = static_cast<int64_t>(sizeof(JpegTables) + 4 * kLongEntries * sizeof(uint16_t));
  const auto segments = static_cast<int64_t>((most_segments_of(shape) + 1) * sizeof(uint32_t));
  return multiple_of_16(
      count * (static_cast<int64_t>(sizeof(JpegFrame)) + multiple_of_16(largest) + segments + kTables) + 64);
}

PackedJpegs pack_jpegs(const FrameShape& shape, std::span<const int64_t> file_bytes, const ReadFile& read,
                       const RefuseFile& refuse, void* memory) {
  const auto count = static_cast<int64_t>(file_bytes.size());
  auto* const begin = static_cast<char*>(memory);
  const auto address_at = [begin](int64_t offset) { return static_cast<void*>(begin + offset); };
  auto* const frames = static_cast<JpegFrame*>(memory);
  std::fill_n(frames, count, JpegFrame{});
  PackedJpegs packed{};
  packed.words = multiple_of_16(count * static_cast<int64_t>(sizeof(JpegFrame)));
  packed.segments = packed.words;
  for (int64_t i = 0; i < count; ++i) {
    frames[i].words = (packed.segments - packed.words) / 4;
    packed.segments += multiple_of_16(file_bytes[static_cast<size_t>(i)]);
  }
  std::atomic<int64_t> segments = 0;
  std::atomic<int32_t> most_segments = 1;
  TableSet tables;
  const auto pack = [&](int64_t i, std::vector<uint8_t>& blob) {
    const JpegFile file(read(i, blob));
    if (const FrameShape actual{file.height, file.width, file.channels}; actual != shape) {
      throw FrameError("JPEG: expected " + shape.describe() + ", got " + actual.describe());
    }
    JpegFrame frame = file.frame;
    frame.words = frames[i].words;
    frame.segments = segments.fetch_add(frame.segment_count + 1);
    file.strip_scan(static_cast<uint32_t*>(address_at(packed.words)) + frame.words,
                    static_cast<uint32_t*>(address_at(packed.segments)) + frame.segments);
    frame.tables = tables.index_of(file);
    frames[i] = frame;
    // Raises most_segments to this frame's number, unless another thread has raised it further.
    int32_t most = most_segments;
    while (most < frame.segment_count && !most_segments.compare_exchange_weak(most, frame.segment_count)) {
    }
  };
  parallel_for(count, std::clamp<int64_t>(count / (int64_t{4} * num_threads()), 1, 16),
               [&](int64_t first, int64_t end) {
                 std::vector<uint8_t> blob;
                 for (int64_t i = first; i < end; ++i) {
                   if (file_bytes[static_cast<size_t>(i)] == 0) continue;
                   try {
                     pack(i, blob);
                   } catch (const FrameError& error) {
                     refuse(i, error);
                   }
                 }
               });
  const auto append = [&](int64_t offset, const auto& entries) {
    const auto bytes = static_cast<int64_t>(entries.size() * sizeof(entries[0]));
    if (bytes > 0) std::memcpy(address_at(offset), entries.data(), static_cast<size_t>(bytes));
    return multiple_of_16(offset + bytes);
  };
  packed.tables = multiple_of_16(packed.segments + segments * static_cast<int64_t>(sizeof(uint32_t)));
  packed.long_entries = append(packed.tables, tables.tables);
  packed.bytes = append(packed.long_entries, tables.long_entries);
  packed.most_segments = most_segments;
  packed.one_table = tables.tables.size() <= 1;
  return packed;
}

}  // namespace robocache
