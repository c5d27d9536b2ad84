// A file that grows at its end. It is written in blocks, each with a checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "robocache/cache/file.hpp"
#include "robocache/cache/write_behind.hpp"

namespace robocache::cache {

// Small enough to locate damage and to compute a checksum from the processor's cache; large enough to keep the manifest
// of a terabyte within a few megabytes.
inline constexpr int64_t kBlockBytes = int64_t{1} << 20;

// The manifest's record of a file.
struct FileRecord {
  int64_t bytes = 0;
  std::vector<uint32_t> crc32;  // of each block of kBlockBytes; the last block may be shorter
};

// Keeps the last block in memory and no file open, so a cache may have any number of streams.
//
// Writes whole blocks at once, or passes them to `behind`. A later call on any file of `behind` throws its errors.
// `behind` must live until the BlockWriter is destroyed. A BlockWriter must not move once it has blocks.
class BlockWriter {
 public:
  // Creates a file that begins with `header`, which is shorter than a block; no checksum covers it. `path` is absolute.
  // Throws FileError.
  explicit BlockWriter(std::string path, std::string_view header = {}, WriteBehind* behind = nullptr);

  // Extends a finished file. Its first `header_bytes` bytes are its header. Removes bytes after the end that `record`
  // gives. Throws FileError, also if the last block does not match its checksum.
  BlockWriter(std::string path, size_t header_bytes, const FileRecord& record, WriteBehind* behind = nullptr);

  const std::string& path() const { return path_; }
  int64_t size() const { return accepted_ + static_cast<int64_t>(buffer_.size()); }

  // Throws FileError if the file cannot be written; truncate() to an earlier size then repairs the file.
  void append(const void* data, size_t size) {
    if (size < static_cast<size_t>(kBlockBytes) - buffer_.size()) {
      const auto* bytes = static_cast<const std::byte*>(data);
      buffer_.insert(buffer_.end(), bytes, bytes + size);
    } else {
      append_blocks(static_cast<const std::byte*>(data), size);
    }
  }
  void append(std::string_view text) { append(text.data(), text.size()); }

  // Removes everything from `size` on; `size` is not inside the header. Bytes before `size` are not rewritten, because
  // another program may have mapped them. Throws FileError.
  void truncate(int64_t size);

  // Overwrites the header with another one of the same length. Throws FileError.
  void replace_header(std::string_view header);

  // Drops waiting blocks. Call it before the BlockWriter is destroyed without finish().
  void forget_waiting();

  // Writes the rest. Call make_durable() with the path afterwards. Throws FileError; the call may then be repeated.
  FileRecord finish() const;

 private:
  friend class WriteBehind;

  void append_blocks(const std::byte* data, size_t size);
  void write_block(const std::byte* block);
  uint32_t checksum(const std::byte* block, size_t size) const;
  FileDescriptor open_file() const;
  void write_at(const FileDescriptor& file, const std::byte* data, size_t size, int64_t offset) const;
  void read_at(const FileDescriptor& file, std::byte* data, size_t size, int64_t offset) const;

  std::string path_;
  size_t header_bytes_;
  WriteBehind* behind_;
  int64_t accepted_ = 0;           // bytes of whole blocks that are in the file or waiting to be written
  std::vector<std::byte> buffer_;  // the bytes after them; less than a block
  // Owned by the thread that writes: WriteBehind's thread while blocks wait.
  int64_t flushed_ = 0;  // bytes in the file
  std::vector<uint32_t> crc32_;
};

}  // namespace robocache::cache
