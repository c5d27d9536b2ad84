#include "robocache/image/jpeg.hpp"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <new>
#include <string>

#include <jpeglib.h>  // needs FILE and size_t from the headers before it

#include <jerror.h>

#include "robocache/core/error.hpp"
#include "robocache/image/jpeg_idct.hpp"

#ifndef LIBJPEG_TURBO_VERSION
#error "this libjpeg is not libjpeg-turbo: other implementations decode to other pixels"
#endif

namespace robocache {
namespace {

// libjpeg's messages, repeated here. The archive's jerror.o has them too, but it refers to stderr, so it links only
// into executables.
constexpr const char* kMessages[] = {
#define JVERSION ""  // from jversion.h, which is not installed; only two messages use it, and they are no errors
#define JCOPYRIGHT_SHORT ""
#define JMESSAGE(code, text) text,
#include <jerror.h>
};

// A progressive file may have any number of scans, each of a few bytes, and each makes the decoder visit every
// coefficient. Real files have about ten.
constexpr int kMaxScans = 100;

// A block of 8 x 8 pixels takes at least two bits, in a progressive file one bit per scan. Arithmetic coding of one
// flat colour may take less.
constexpr int64_t kMaxBlocksPerByte = 16;

constexpr int kReencodeQuality = 95;

// The return point after a failed call of libjpeg, and the reason. libjpeg uses the first member.
struct Failure {
  jpeg_error_mgr manager{};
  std::jmp_buf return_point;
  const char* why = nullptr;  // if null, manager.msg_code and manager.msg_parm hold the reason

  Failure() {
    manager.error_exit = [](j_common_ptr info) { jump(info); };
    manager.emit_message = [](j_common_ptr info, int level) {
      const int code = info->err->msg_code;
      const bool is_harmless = level >= 0 || code == JWRN_JFIF_MAJOR || code == JWRN_ADOBE_XFORM;
      if (!is_harmless) jump(info);
    };
    manager.output_message = [](j_common_ptr) {};
    manager.format_message = [](j_common_ptr, char*) {};
    manager.reset_error_mgr = [](j_common_ptr) {};
  }
  Failure(const Failure&) = delete;
  Failure& operator=(const Failure&) = delete;

  [[noreturn]] static void jump(j_common_ptr info) {
    std::longjmp(reinterpret_cast<Failure*>(info->err)->return_point, 1);
  }

  // Runs `calls` and returns whether it finished. `calls` must not own anything, because a longjmp may leave it.
  template <class Calls>
  bool passes(const Calls& calls) {
    if (setjmp(return_point) != 0) return false;
    calls();
    return true;
  }

  // Throws std::bad_alloc if libjpeg ran out of memory.
  std::string text() const {
    if (why != nullptr) return why;
    if (manager.msg_code == JERR_OUT_OF_MEMORY) throw std::bad_alloc();
    const auto code = static_cast<size_t>(manager.msg_code);
    if (code >= std::size(kMessages)) return "libjpeg's error " + std::to_string(code);
    const char* format = kMessages[code];
    char text[JMSG_LENGTH_MAX];
    const std::string_view view = format;
    const size_t percent = view.find('%');
    if (percent != std::string_view::npos && view.substr(percent, 2) == "%s") {
      std::snprintf(text, sizeof text, format, manager.msg_parm.s);
    } else {
      const int* i = manager.msg_parm.i;
      std::snprintf(text, sizeof text, format, i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7]);
    }
    return text;
  }
};
static_assert(offsetof(Failure, manager) == 0);

// A file that libjpeg reads.
class Source {
 public:
  explicit Source(std::span<const uint8_t> blob) : size_(blob.size()) {
    info.err = &failure_.manager;
    scans_.progress_monitor = [](j_common_ptr common) {
      if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number <= kMaxScans) return;
      reinterpret_cast<Failure*>(common->err)->why = "more than 100 scans";
      Failure::jump(common);
    };
    run([&] {
      jpeg_create_decompress(&info);
      info.progress = &scans_;
      jpeg_mem_src(&info, blob.data(), blob.size());
      jpeg_read_header(&info, TRUE);
    });
    check_header();
  }

  // Runs calls of libjpeg on `info`. Throws the error that libjpeg reports.
  template <class Calls>
  void run(const Calls& calls) {
    if (!failure_.passes(calls)) refuse(failure_.text());
  }

  FrameShape shape() const {
    return {info.image_height, info.image_width, info.jpeg_color_space == JCS_GRAYSCALE ? 1 : 3, DType::kUInt8};
  }

  // Call it after all scans: libjpeg returns zeros for a component without a scan.
  void check_components() const {
    for (int i = 0; i < info.num_components; ++i) {
      if (info.comp_info[i].quant_table == nullptr) refuse("component " + std::to_string(i) + " has no data");
    }
  }

 private:
  struct Decompressor {
    jpeg_decompress_struct info{};
    ~Decompressor() { jpeg_destroy_decompress(&info); }
  };

  [[noreturn]] void refuse(const std::string& why) const {
    const size_t remaining = info.src != nullptr ? info.src->bytes_in_buffer : 0;
    throw FrameError("JPEG of " + std::to_string(size_) + " bytes: " + why + ", near byte " +
                     std::to_string(size_ - std::min(remaining, size_)));
  }

  void check_header() const {
    if (info.data_precision != 8) {  // libjpeg-turbo 3 would read it into samples of 16 bits
      refuse("expected a data precision of 8 bits, got " + std::to_string(info.data_precision));
    }
    const J_COLOR_SPACE color = info.jpeg_color_space;
    if (color != JCS_GRAYSCALE && color != JCS_YCbCr && color != JCS_RGB) {
      const std::string actual = color == JCS_CMYK   ? "CMYK"
                                 : color == JCS_YCCK ? "YCCK"
                                                     : std::to_string(info.num_components) + " unknown components";
      refuse("expected grey, YCbCr or RGB, got " + actual);
    }
    int64_t blocks = 0;
    for (int i = 0; i < info.num_components; ++i) {
      blocks += int64_t{info.comp_info[i].width_in_blocks} * info.comp_info[i].height_in_blocks;
    }
    if (blocks / kMaxBlocksPerByte > static_cast<int64_t>(size_)) {
      refuse("its header says " + shape().describe() + ", more than the file's bytes can hold");
    }
  }

  Failure failure_;
  jpeg_progress_mgr scans_{};
  size_t size_;
  Decompressor decompressor_;

 public:
  jpeg_decompress_struct& info = decompressor_.info;
};

// A file that libjpeg writes.
class Sink {
 public:
  Sink() {
    info.err = &failure_.manager;
    destination_.sink = this;
    destination_.manager.init_destination = [](j_compress_ptr compress) { grow(compress); };
    destination_.manager.empty_output_buffer = [](j_compress_ptr compress) -> boolean {
      grow(compress);
      return TRUE;
    };
    destination_.manager.term_destination = [](j_compress_ptr) {};
  }
  ~Sink() {
    jpeg_destroy_compress(&info);
    std::free(bytes_);
  }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  // Creates `info` and runs `calls`, which write the whole file. Returns whether all calls succeeded.
  template <class Calls>
  bool writes(const Calls& calls) {
    return failure_.passes([&] {
      jpeg_create_compress(&info);
      info.dest = &destination_.manager;
      calls();
      jpeg_finish_compress(&info);
    });
  }

  std::string complaint() const { return failure_.text(); }

  std::vector<uint8_t> bytes() const { return {bytes_, bytes_ + size_ - destination_.manager.free_in_buffer}; }

  jpeg_compress_struct info{};

 private:
  // libjpeg uses the first member.
  struct Destination {
    jpeg_destination_mgr manager{};
    Sink* sink = nullptr;
  };

  // Doubles the full buffer. It reports a failure to libjpeg, because no C++ exception may pass through libjpeg.
  static void grow(j_compress_ptr compress) {
    Sink& sink = *reinterpret_cast<Destination*>(compress->dest)->sink;
    const size_t size = sink.size_ == 0 ? size_t{32} << 10 : 2 * sink.size_;
    void* bytes = std::realloc(sink.bytes_, size);
    if (bytes == nullptr) ERREXIT1(compress, JERR_OUT_OF_MEMORY, 0);
    sink.bytes_ = static_cast<uint8_t*>(bytes);
    compress->dest->next_output_byte = sink.bytes_ + sink.size_;
    compress->dest->free_in_buffer = size - sink.size_;
    sink.size_ = size;
  }

  Failure failure_;
  Destination destination_;
  uint8_t* bytes_ = nullptr;
  size_t size_ = 0;
};

// Whether there are one or two luma samples per chroma sample in this direction.
bool is_one_or_two(int luma, int chroma) { return luma == chroma || luma == 2 * chroma; }

// Returns why the header prevents keeping the coefficients, or "".
std::string obstacle(const jpeg_decompress_struct& info) {
  if (info.jpeg_color_space == JCS_GRAYSCALE) return "";
  if (info.jpeg_color_space == JCS_RGB) return "it stores RGB, not YCbCr";
  const jpeg_component_info& luma = info.comp_info[0];
  const jpeg_component_info& blue = info.comp_info[1];
  const jpeg_component_info& red = info.comp_info[2];
  const bool chroma_is_alike = blue.h_samp_factor == red.h_samp_factor && blue.v_samp_factor == red.v_samp_factor;
  const bool factors_fit =
      is_one_or_two(luma.h_samp_factor, blue.h_samp_factor) && is_one_or_two(luma.v_samp_factor, blue.v_samp_factor);
  const bool only_down = luma.h_samp_factor == blue.h_samp_factor && luma.v_samp_factor != blue.v_samp_factor;
  if (chroma_is_alike && factors_fit && !only_down) return "";
  std::string text = "its sampling is ";
  for (int i = 0; i < 3; ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(info.comp_info[i].h_samp_factor) + "x" +
            std::to_string(info.comp_info[i].v_samp_factor);
  }
  return text + ", neither 4:4:4 nor 4:2:2 nor 4:2:0";
}

// Whether the values of one pass of the inverse DCT, and the sums that vector code computes first, fit in 16 bits.
bool fits_16_bits(const int64_t (&x)[8]) {
  const int64_t sums[] = {x[0] + x[4], x[0] - x[4], x[7] + x[3], x[5] + x[1]};
  const auto fits = [](int64_t value) { return value >= -32768 && value <= 32767; };
  return std::all_of(std::begin(x), std::end(x), fits) && std::all_of(std::begin(sums), std::end(sums), fits);
}

// Whether libjpeg's C code, its vector code and ours decode the block to the same samples.
bool decodes_alike(const JBLOCK& block, const UINT16 (&steps)[DCTSIZE2]) {
  int64_t sum = 0;
  int64_t values[8][8];  // row by row
  for (int k = 0; k < DCTSIZE2; ++k) {
    values[k / 8][k % 8] = int64_t{block[k]} * steps[k];
    sum += std::abs(values[k / 8][k % 8]);
  }
  if (sum <= 2040) return true;  // a coefficient adds at most a quarter of its value to a sample
  // The shifts and roundings are those of jpeg_idct.hpp.
  for (int column = 0; column < 8; ++column) {
    int64_t in[8], out[8];
    for (int row = 0; row < 8; ++row) in[row] = values[row][column];
    if (!fits_16_bits(in)) return false;
    inverse_dct_of_8(in, int64_t{1} << 10, out);
    for (int row = 0; row < 8; ++row) values[row][column] = out[row] >> 11;
  }
  for (const auto& row : values) {
    if (!fits_16_bits(row)) return false;
    int64_t samples[8];
    inverse_dct_of_8(row, int64_t{1} << 17, samples);
    for (const int64_t sample : samples) {
      if (sample >> 18 < -512 || sample >> 18 > 511) return false;
    }
  }
  return true;
}

// Whether baseline JPEG has codes for the coefficients of these blocks.
bool have_codes(std::span<const JBLOCK> blocks) {
  std::array<JCOEF, DCTSIZE2> smallest{};
  std::array<JCOEF, DCTSIZE2> largest{};
  for (const JBLOCK& block : blocks) {
    for (size_t k = 0; k < DCTSIZE2; ++k) {
      const JCOEF coefficient = block[k];
      smallest[k] = coefficient < smallest[k] ? coefficient : smallest[k];
      largest[k] = coefficient > largest[k] ? coefficient : largest[k];
    }
  }
  // The first coefficient of a block is coded as its difference from the previous block's.
  return smallest[0] >= -1024 && largest[0] <= 1023 &&
         *std::min_element(smallest.begin() + 1, smallest.end()) >= -1023 &&
         *std::max_element(largest.begin() + 1, largest.end()) <= 1023;
}

// Returns why the coefficients cannot be kept, or "". The coefficients must have been read. Throws FrameError if
// decoders give different pixels for them.
std::string obstacle_in_coefficients(Source* source, jvirt_barray_ptr* coefficients) {
  jpeg_decompress_struct& info = source->info;
  for (int i = 0; i < info.num_components; ++i) {
    for (const UINT16 step : info.comp_info[i].quant_table->quantval) {
      if (step > 255) return "its quantisation steps have 16 bits";
    }
    // libjpeg smooths blocks whose coefficients are incomplete.
    for (int k = 0; info.coef_bits != nullptr && k < DCTSIZE2; ++k) {
      if (info.coef_bits[i][k] != 0) return "its last progressive scans are missing";
    }
  }
  // libjpeg-turbo's Huffman encoder does not check this: for coefficients without a code it writes wrong data.
  bool has_codes = true;
  bool all_alike = true;
  source->run([&] {
    for (int i = 0; i < info.num_components; ++i) {
      const jpeg_component_info& component = info.comp_info[i];
      for (JDIMENSION row = 0; row < component.height_in_blocks; ++row) {
        auto* common = reinterpret_cast<j_common_ptr>(&info);
        const JBLOCKROW blocks = (*info.mem->access_virt_barray)(common, coefficients[i], row, 1, FALSE)[0];
        const std::span<const JBLOCK> row_blocks(blocks, component.width_in_blocks);
        has_codes = has_codes && have_codes(row_blocks);
        all_alike = all_alike && std::all_of(row_blocks.begin(), row_blocks.end(), [&](const JBLOCK& block) {
                      return decodes_alike(block, component.quant_table->quantval);
                    });
      }
    }
  });
  if (!all_alike) {
    throw FrameError(
        "JPEG: expected blocks within the range of the inverse DCT, got one whose pixels differ from decoder to "
        "decoder (rule 40 of docs/rules.md); its quantisation tables or its data may be damaged");
  }
  return has_codes ? "" : "its coefficients are larger than baseline's";
}

// Copies the sampling factors divided by their common factor, which keeps their meaning.
void copy_sampling(const jpeg_decompress_struct& from, jpeg_compress_struct* to) {
  const jpeg_component_info& finest = from.comp_info[0];
  const jpeg_component_info& coarsest = from.comp_info[from.num_components - 1];
  for (int i = 0; i < to->num_components; ++i) {
    to->comp_info[i].h_samp_factor = i == 0 ? finest.h_samp_factor / coarsest.h_samp_factor : 1;
    to->comp_info[i].v_samp_factor = i == 0 ? finest.v_samp_factor / coarsest.v_samp_factor : 1;
  }
}

void set_restart_interval(jpeg_compress_struct* info) {
  const jpeg_component_info& finest = info->comp_info[0];
  info->restart_interval = static_cast<unsigned>(restart_mcus(64 * finest.h_samp_factor * finest.v_samp_factor));
}

}  // namespace

FrameShape jpeg_shape(std::span<const uint8_t> blob) { return Source(blob).shape(); }

void decode_jpeg_frame(std::span<const uint8_t> blob, const FrameShape& expected, uint8_t* out) {
  Source source(blob);
  if (source.shape() != expected) {
    throw FrameError("JPEG: expected " + expected.describe() + ", got " + source.shape().describe());
  }
  jpeg_decompress_struct& info = source.info;
  const int64_t row_bytes = expected.width * expected.channels;
  source.run([&] {
    info.out_color_space = expected.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    info.dct_method = JDCT_ISLOW;
    info.do_fancy_upsampling = TRUE;
    jpeg_start_decompress(&info);
    while (info.output_scanline < info.output_height) {
      JSAMPROW rows[4];
      for (int i = 0; i < 4; ++i) {
        const auto row = std::min<int64_t>(int64_t{info.output_scanline} + i, expected.height - 1);
        rows[i] = out + row * row_bytes;
      }
      jpeg_read_scanlines(&info, rows, std::min<JDIMENSION>(4, info.output_height - info.output_scanline));
    }
  });
  source.check_components();
  source.run([&] { jpeg_finish_decompress(&info); });
}

std::vector<uint8_t> encode_jpeg_frame(const uint8_t* pixels, const FrameShape& shape, const EncodeOptions& options) {
  Sink sink;
  jpeg_compress_struct& info = sink.info;
  const int64_t row_bytes = shape.width * shape.channels;
  const bool written = sink.writes([&] {
    info.image_width = static_cast<JDIMENSION>(shape.width);
    info.image_height = static_cast<JDIMENSION>(shape.height);
    info.input_components = static_cast<int>(shape.channels);
    info.in_color_space = shape.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, static_cast<int>(options.quality), TRUE);
    if (options.subsampling == Subsampling::k444) info.comp_info[0].h_samp_factor = info.comp_info[0].v_samp_factor = 1;
    set_restart_interval(&info);
    info.dct_method = JDCT_ISLOW;
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < info.image_height) {
      auto* row = const_cast<JSAMPROW>(pixels + info.next_scanline * row_bytes);  // libjpeg only reads it
      jpeg_write_scanlines(&info, &row, 1);
    }
  });
  if (!written) throw FrameError("JPEG: " + sink.complaint());
  return sink.bytes();
}

Segmented segment_jpeg(std::span<const uint8_t> blob) {
  Source source(blob);
  std::string why = obstacle(source.info);
  if (why.empty()) {
    jvirt_barray_ptr* coefficients = nullptr;
    source.run([&] { coefficients = jpeg_read_coefficients(&source.info); });
    source.check_components();
    why = obstacle_in_coefficients(&source, coefficients);
    Sink sink;
    if (why.empty()) {
      const bool written = sink.writes([&] {
        jpeg_copy_critical_parameters(&source.info, &sink.info);
        copy_sampling(source.info, &sink.info);
        set_restart_interval(&sink.info);
        jpeg_write_coefficients(&sink.info, coefficients);
      });
      if (written) return {.blob = sink.bytes(), .why = ""};
      why = sink.complaint();
    }
  }
  const FrameShape shape = source.shape();
  std::vector<uint8_t> pixels(static_cast<size_t>(shape.bytes()));
  decode_jpeg_frame(blob, shape, pixels.data());
  const bool has_full_chroma = shape.channels == 1 || source.info.jpeg_color_space == JCS_RGB;
  const EncodeOptions options{kReencodeQuality, has_full_chroma ? Subsampling::k444 : Subsampling::k420};
  return {encode_jpeg_frame(pixels.data(), shape, options), true, std::move(why)};
}

}  // namespace robocache
