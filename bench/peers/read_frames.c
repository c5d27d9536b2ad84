// Reads pieces of a file, in any order, one after the other.
#define _GNU_SOURCE
#include <stdint.h>
#include <unistd.h>

// Reads the pieces of rows[first, end): bytes [offsets[row], offsets[row + 1]) after `header`, to `out`, which has room for 64
// pieces of size `largest`: the 65th piece overwrites the first. Returns the number of bytes.
int64_t read_frames(int descriptor, int64_t header, const int64_t* offsets, const int64_t* rows, int64_t first,
                    int64_t end, int64_t largest, uint8_t* out) {
  int64_t bytes = 0;
  for (int64_t i = first; i < end; ++i) {
    const int64_t begin = offsets[rows[i]];
    const size_t size = (size_t)(offsets[rows[i] + 1] - begin);
    const ssize_t read_bytes = pread(descriptor, out + i % 64 * largest, size, header + begin);
    if (read_bytes < 0) return -1;
    bytes += read_bytes;
  }
  return bytes;
}
