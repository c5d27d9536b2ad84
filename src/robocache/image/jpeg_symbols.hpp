// JPEGs cut into segments symbol by symbol: what libjpeg-turbo makes of them by way of their coefficients, to the byte, in a
// fraction of the time. A symbol says how many zeros come before a coefficient and how many bits that has. Where a file's
// Huffman codes are the standard's, a block's symbols are found and then copied all at once; else each gets its other
// code. The DC coefficients alone are coded anew, because they count from the one before, and segments begin elsewhere.
#pragma once

#include <cstdint>
#include <vector>

struct jpeg_decompress_struct;

namespace robocache {

// The file that segment_jpeg of codec.hpp makes of one whose header libjpeg has read, up to the entropy-coded data, and whose
// sampling segment_jpeg keeps. Empty where that takes libjpeg, or has it say what is wrong: several scans, progressive or
// arithmetic coding, chroma other than 1x1, coefficients beyond baseline's, anything between the data and the end of the
// image, damage of any kind.
std::vector<uint8_t> rewrite_jpeg_symbols(const jpeg_decompress_struct& header);

}  // namespace robocache
