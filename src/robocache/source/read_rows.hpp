// Reads rows from a file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "robocache/source/rows.hpp"

namespace robocache {

// Reads all `bytes` bytes from byte `begin` on; byte 0 is the first of row 0. Any number of threads may read one file.
// Throws FileError "PATH: at byte N: expected M more bytes, got the end: it was cut short" and "PATH: reading it: ...".
void read_rows(const FileRows& file, int64_t begin, size_t bytes, void* to);

// Announces that these bytes will be read soon, so that the disk gets many requests at once even if few threads read.
// It returns at once and never fails. It does nothing if recent reads found everything in the page cache.
void announce_rows(const FileRows& file, int64_t begin, int64_t bytes);

}  // namespace robocache
