// libjpeg-turbo as an encoder and decoder: the oracle of our JPEG decoders.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <jpeglib.h>  // needs FILE and size_t from the headers before it

#include "tests/cpp/image/picture.hpp"

namespace robocache::test {

struct JpegOptions {
  int quality = 95;
  int luma_across = 2, luma_down = 2;
  int restart_mcus = 2;
  bool optimised = false;  // Huffman tables made for this picture
  bool progressive = false;
  bool interleaved = true;           // otherwise three channels have a scan each
  J_COLOR_SPACE stored = JCS_YCbCr;  // for three or four channels
};

// Encodes `pixels` [height, width, channels] as a JPEG file.
inline std::vector<uint8_t> encode_jpeg(const std::vector<uint8_t>& pixels, int height, int width, int channels,
                                        const JpegOptions& options) {
  jpeg_compress_struct jpeg;
  jpeg_error_mgr errors;
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&jpeg, &memory, &bytes);
  jpeg.image_width = static_cast<JDIMENSION>(width);
  jpeg.image_height = static_cast<JDIMENSION>(height);
  jpeg.input_components = channels;
  jpeg.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&jpeg);
  if (channels == 3) jpeg_set_colorspace(&jpeg, options.stored);
  jpeg_set_quality(&jpeg, options.quality, TRUE);
  jpeg.comp_info[0].h_samp_factor = options.luma_across;
  jpeg.comp_info[0].v_samp_factor = options.luma_down;
  jpeg.restart_interval = static_cast<unsigned>(options.restart_mcus);
  jpeg.optimize_coding = options.optimised ? TRUE : FALSE;
  if (options.progressive) jpeg_simple_progression(&jpeg);
  const jpeg_scan_info scans[3] = {{1, {0}, 0, 63, 0, 0}, {1, {1}, 0, 63, 0, 0}, {1, {2}, 0, 63, 0, 0}};
  if (!options.interleaved) {
    jpeg.scan_info = scans;
    jpeg.num_scans = 3;
  }
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < jpeg.image_height) {
    auto* row = const_cast<uint8_t*>(pixels.data()) + jpeg.next_scanline * static_cast<size_t>(width * channels);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  std::vector<uint8_t> file(memory, memory + bytes);
  jpeg_destroy_compress(&jpeg);
  std::free(memory);
  return file;
}

// Encodes a picture as a JPEG file.
inline std::vector<uint8_t> jpeg(int height, int width, int channels, const JpegOptions& options) {
  return encode_jpeg(picture(height, width, channels), height, width, channels, options);
}

// Returns the offset of the n-th marker `code`, or the file's size.
inline size_t marker(const std::vector<uint8_t>& file, uint8_t code, int n = 0) {
  for (size_t i = 0; i + 1 < file.size(); ++i) {
    if (file[i] == 0xff && file[i + 1] == code && n-- == 0) return i;
  }
  return file.size();
}

struct DecodedJpeg {
  int height, width, channels;
  std::vector<uint8_t> pixels;
};

// Decodes a file that is not damaged.
inline DecodedJpeg decode_by_libjpeg(const uint8_t* file, size_t bytes) {
  jpeg_decompress_struct jpeg;
  jpeg_error_mgr errors;
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, file, static_cast<unsigned long>(bytes));
  jpeg_read_header(&jpeg, TRUE);
  jpeg_start_decompress(&jpeg);
  DecodedJpeg decoded{
      static_cast<int>(jpeg.output_height), static_cast<int>(jpeg.output_width), jpeg.output_components, {}};
  const size_t pitch = size_t{jpeg.output_width} * static_cast<size_t>(jpeg.output_components);
  decoded.pixels.resize(jpeg.output_height * pitch);
  while (jpeg.output_scanline < jpeg.output_height) {
    uint8_t* row = decoded.pixels.data() + jpeg.output_scanline * pitch;
    jpeg_read_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_decompress(&jpeg);
  jpeg_destroy_decompress(&jpeg);
  return decoded;
}

}  // namespace robocache::test
