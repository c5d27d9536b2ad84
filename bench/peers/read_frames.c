// Reading alone: pieces of a file, wherever they lie, one after the other.
#define _GNU_SOURCE
#include <stdint.h>
#include <unistd.h>

// Pieces [first, end) of `rows`: bytes [offsets[row], offsets[row + 1]) behind `header`, to `out`, which has room for 64 of
// the `largest` and is written over. How many bytes came.
int64_t read_frames(int descriptor, int64_t header, const int64_t* offsets, const int64_t* rows, int64_t first,
                    int64_t end, int64_t largest, uint8_t* out) {
  int64_t bytes = 0;
  for (int64_t i = first; i < end; ++i) {
    const int64_t begin = offsets[rows[i]];
    const size_t size = (size_t)(offsets[rows[i] + 1] - begin);
    const ssize_t got = pread(descriptor, out + i % 64 * largest, size, header + begin);
    if (got < 0) return -1;
    bytes += got;
  }
  return bytes;
}
