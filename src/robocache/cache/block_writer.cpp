#include "robocache/cache/block_writer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <limits>
#include <utility>

#include "robocache/cache/crc32.hpp"
#include "robocache/core/error.hpp"

namespace robocache::cache {

BlockWriter::BlockWriter(std::string path, std::string_view header, WriteBehind* behind)
    : path_(std::move(path)), header_bytes_(header.size()), behind_(behind) {
  const FileDescriptor file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0) refuse_errno(path_, "making it");
  append(header);
}

BlockWriter::BlockWriter(std::string path, size_t header_bytes, const FileRecord& record, WriteBehind* behind)
    : path_(std::move(path)),
      header_bytes_(header_bytes),
      behind_(behind),
      accepted_(record.bytes / kBlockBytes * kBlockBytes),
      buffer_(static_cast<size_t>(record.bytes - accepted_)),
      flushed_(accepted_),
      crc32_(record.crc32) {
  const FileDescriptor file = open_file();
  read_at(file, buffer_.data(), buffer_.size(), flushed_);
  if (!buffer_.empty()) {
    const uint32_t crc = checksum(buffer_.data(), buffer_.size());
    if (crc != crc32_.back()) {
      refuse_bytes(path_, flushed_ == 0 ? static_cast<int64_t>(header_bytes_) : flushed_,
                   "CRC-32 " + crc32_text(crc32_.back()) + " of the bytes up to " + std::to_string(record.bytes),
                   crc32_text(crc) + ": the file is damaged");
    }
    crc32_.pop_back();
  }
  if (::ftruncate(file.get(), record.bytes) != 0) refuse_errno(path_, "removing an interrupted append");
}

// Returns the checksum of the next block.
uint32_t BlockWriter::checksum(const std::byte* block, size_t size) const {
  const size_t begin = flushed_ == 0 ? header_bytes_ : 0;
  return crc32(block + begin, size - begin);
}

void BlockWriter::append_blocks(const std::byte* data, size_t size) {
  const auto block = static_cast<size_t>(kBlockBytes);
  while (size + buffer_.size() >= block) {
    const size_t missing = block - buffer_.size();
    if (behind_ != nullptr) {
      buffer_.reserve(block);
      buffer_.insert(buffer_.end(), data, data + missing);
      data += missing;
      size -= missing;
      behind_->add(*this, buffer_);
    } else {
      const std::byte* source = data;
      if (!buffer_.empty()) {
        buffer_.insert(buffer_.end(), data, data + missing);
        source = buffer_.data();
      }
      data += missing;
      size -= missing;
      write_block(source);
      buffer_.clear();
    }
    accepted_ += kBlockBytes;
  }
  buffer_.insert(buffer_.end(), data, data + size);
}

// Writes the next block.
void BlockWriter::write_block(const std::byte* block) {
  const FileDescriptor file = open_file();
  const uint32_t crc = checksum(block, static_cast<size_t>(kBlockBytes));
  write_at(file, block, static_cast<size_t>(kBlockBytes), flushed_);
  // The disk begins to write while the next block is computed, which shortens the wait in make_durable().
  ::sync_file_range(file.get(), flushed_, kBlockBytes, SYNC_FILE_RANGE_WRITE);
  crc32_.push_back(crc);
  flushed_ += kBlockBytes;
}

void BlockWriter::truncate(int64_t size) {
  if (size < accepted_ && behind_ != nullptr) {
    const int64_t most_removed = (accepted_ - size + kBlockBytes - 1) / kBlockBytes;
    std::deque<std::vector<std::byte>> blocks = behind_->withdraw(*this, static_cast<size_t>(most_removed));
    accepted_ -= std::ssize(blocks) * kBlockBytes;
    if (!blocks.empty()) buffer_ = std::move(blocks.front());
  }
  if (size >= accepted_) {
    buffer_.resize(static_cast<size_t>(size - accepted_));
    return;
  }
  const int64_t full_blocks = size / kBlockBytes;
  const FileDescriptor file = open_file();
  buffer_.resize(static_cast<size_t>(size - full_blocks * kBlockBytes));
  read_at(file, buffer_.data(), buffer_.size(), full_blocks * kBlockBytes);
  if (::ftruncate(file.get(), size) != 0) refuse_errno(path_, "removing rows");
  accepted_ = full_blocks * kBlockBytes;
  flushed_ = accepted_;
  crc32_.resize(static_cast<size_t>(full_blocks));
}

void BlockWriter::forget_waiting() {
  if (behind_ != nullptr) behind_->withdraw(*this, std::numeric_limits<size_t>::max());
}

void BlockWriter::replace_header(std::string_view header) {
  if (accepted_ == 0) {
    std::memcpy(buffer_.data(), header.data(), header.size());
  } else {
    if (behind_ != nullptr) behind_->settle();
    write_at(open_file(), reinterpret_cast<const std::byte*>(header.data()), header.size(), 0);
  }
}

FileRecord BlockWriter::finish() const {
  if (behind_ != nullptr) behind_->settle();
  const FileDescriptor file = open_file();
  FileRecord record{size(), crc32_};
  if (!buffer_.empty()) {
    write_at(file, buffer_.data(), buffer_.size(), flushed_);
    record.crc32.push_back(checksum(buffer_.data(), buffer_.size()));
  }
  // Removes bytes that a failed write may have left after the end.
  if (::ftruncate(file.get(), record.bytes) != 0) refuse_errno(path_, "cutting it to its size");
  return record;
}

FileDescriptor BlockWriter::open_file() const {
  FileDescriptor file(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() < 0) refuse_errno(path_, "opening it");
  return file;
}

void BlockWriter::write_at(const FileDescriptor& file, const std::byte* data, size_t size, int64_t offset) const {
  while (size > 0) {
    const ssize_t written = ::pwrite(file.get(), data, size, offset);
    if (written < 0) {
      if (errno == EINTR) continue;
      refuse_errno(path_, "writing at byte " + std::to_string(offset));
    }
    data += written;
    size -= static_cast<size_t>(written);
    offset += written;
  }
}

void BlockWriter::read_at(const FileDescriptor& file, std::byte* data, size_t size, int64_t offset) const {
  while (size > 0) {
    const ssize_t got = ::pread(file.get(), data, size, offset);
    if (got < 0) {
      if (errno == EINTR) continue;
      refuse_errno(path_, "reading at byte " + std::to_string(offset));
    }
    if (got == 0) throw FileError(path_, ": at byte ", offset, ": cut short while it was written");
    data += got;
    size -= static_cast<size_t>(got);
    offset += got;
  }
}

}  // namespace robocache::cache
