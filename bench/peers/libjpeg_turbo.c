// Decodes JPEG files to RGB by libjpeg-turbo, on the calling thread.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

// Decodes frames [begin, end) to `out`, uint8 [.., height, width, 3]. Returns the number of frames with this size.
int64_t decode(const uint8_t* blobs, const int64_t* offsets, int64_t begin, int64_t end, int32_t height, int32_t width,
               uint8_t* out) {
  struct jpeg_error_mgr errors;
  struct jpeg_decompress_struct file;
  file.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&file);
  int64_t decoded = 0;
  for (int64_t i = begin; i < end; ++i) {
    jpeg_mem_src(&file, (uint8_t*)blobs + offsets[i], (unsigned long)(offsets[i + 1] - offsets[i]));
    jpeg_read_header(&file, TRUE);
    file.out_color_space = JCS_RGB;
    jpeg_start_decompress(&file);
    if ((int32_t)file.output_height != height || (int32_t)file.output_width != width) break;
    const size_t pitch = (size_t)width * 3;
    uint8_t* const frame = out + (size_t)i * pitch * (size_t)height;
    while (file.output_scanline < file.output_height) {
      JSAMPROW rows[8];
      for (int k = 0; k < 8; ++k) rows[k] = frame + pitch * (file.output_scanline + (size_t)k);
      const JDIMENSION remaining = file.output_height - file.output_scanline;
      jpeg_read_scanlines(&file, rows, remaining < 8 ? remaining : 8);
    }
    jpeg_finish_decompress(&file);
    ++decoded;
  }
  jpeg_destroy_decompress(&file);
  return decoded;
}
