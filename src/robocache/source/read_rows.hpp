// Reading rows that lie in a file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "robocache/source/rows.hpp"

namespace robocache {

// Reads `bytes` bytes from `begin` bytes behind row 0 on, whole. Any number of threads may read one file. Throws
// FileError "PATH: at byte N: expected M bytes, got K: it was cut short" and "PATH: reading it: ...".
void read_rows(const FileRows& file, int64_t begin, size_t bytes, void* to);

// Says that these bytes are read soon, so that the disk has many requests at a time however few threads read. A wish: returns at
// once, fails without a word, and is not told where reads have long found all they wanted in the page cache.
void expect_rows(const FileRows& file, int64_t begin, int64_t bytes);

}  // namespace robocache
