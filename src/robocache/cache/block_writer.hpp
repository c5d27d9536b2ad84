// A file that grows at its end, written in blocks with a checksum each.
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

// Small enough to name the place of a damage and to checksum from the processor's cache; large enough that the manifest
// of a terabyte stays a few megabytes.
inline constexpr int64_t kBlockBytes = int64_t{1} << 20;

// What the manifest knows of a file.
struct FileRecord {
  int64_t bytes = 0;
  std::vector<uint32_t> crc32;  // of each block of kBlockBytes, the last one shorter
};

// Holds the last block in memory and no open file, so that a cache may have any number of streams.
//
// Whole blocks are written as they come, or, where there is one, by a WriteBehind, which outlives all but the destructor; an
// error of its thread is then thrown by a later call, of any file of it. The BlockWriter is not moved once it has blocks.
class BlockWriter {
 public:
  // Makes a file that begins with `header`, less than a block, which no checksum covers. `path` is absolute. Throws
  // FileError.
  explicit BlockWriter(std::string path, std::string_view header = {}, WriteBehind* behind = nullptr);

  // Goes on with a finished file, of whose bytes `header_bytes` are its header, at the end that `record` tells; what is
  // behind it goes. Throws FileError, also where the last block is not what the record says.
  BlockWriter(std::string path, size_t header_bytes, const FileRecord& record, WriteBehind* behind = nullptr);

  const std::string& path() const { return path_; }
  int64_t size() const { return given_ + static_cast<int64_t>(buffer_.size()); }

  // Throws FileError where the file cannot be written; truncate() to an earlier size makes it whole again.
  void append(const void* data, size_t size) {
    if (size < static_cast<size_t>(kBlockBytes) - buffer_.size()) {
      const auto* bytes = static_cast<const std::byte*>(data);
      buffer_.insert(buffer_.end(), bytes, bytes + size);
    } else {
      append_blocks(static_cast<const std::byte*>(data), size);
    }
  }
  void append(std::string_view text) { append(text.data(), text.size()); }

  // Forgets everything from `size` on, which lies behind the header; bytes before it stay where others may have mapped
  // them. Throws FileError.
  void truncate(int64_t size);

  // Writes another header of the same length over the first. Throws FileError.
  void replace_header(std::string_view header);

  // Before it goes without finish().
  void forget_waiting();

  // Writes what is left; make_durable() of the path comes after it. Throws FileError, and may then be tried again.
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
  int64_t given_ = 0;              // bytes in the file, or on their way into it: whole blocks
  std::vector<std::byte> buffer_;  // what comes next, less than a block
  // Of whoever writes: while blocks are on their way, WriteBehind's thread.
  int64_t flushed_ = 0;  // bytes in the file
  std::vector<uint32_t> crc32_;
};

}  // namespace robocache::cache
