#include "robocache/cache/block_writer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "robocache/cache/crc32.hpp"
#include "robocache/core/error.hpp"

namespace robocache::cache {

BlockWriter::BlockWriter(std::string path) : path_(std::move(path)) {
  const FileDescriptor file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0) refuse_errno(path_, "making it");
}

void BlockWriter::append_blocks(const std::byte* data, size_t size) {
  const auto block = static_cast<size_t>(kBlockBytes);
  const FileDescriptor file = open_file();
  while (size + buffer_.size() >= block) {
    const size_t taken = block - buffer_.size();
    const std::byte* source = data;
    if (!buffer_.empty()) {
      buffer_.insert(buffer_.end(), data, data + taken);
      source = buffer_.data();
    }
    const uint32_t crc = crc32(source, block);
    write_at(file, source, block, flushed_);
    crc32_.push_back(crc);
    flushed_ += kBlockBytes;
    buffer_.clear();
    data += taken;
    size -= taken;
  }
  buffer_.insert(buffer_.end(), data, data + size);
}

void BlockWriter::truncate(int64_t size) {
  if (size >= flushed_) {
    buffer_.resize(static_cast<size_t>(size - flushed_));
    return;
  }
  const int64_t whole = size / kBlockBytes;
  const FileDescriptor file = open_file();
  buffer_.resize(static_cast<size_t>(size - whole * kBlockBytes));
  read_at(file, buffer_.data(), buffer_.size(), whole * kBlockBytes);
  if (::ftruncate(file.get(), whole * kBlockBytes) != 0) refuse_errno(path_, "taking back rows");
  flushed_ = whole * kBlockBytes;
  crc32_.resize(static_cast<size_t>(whole));
}

void BlockWriter::overwrite_start(std::string_view bytes) {
  if (flushed_ == 0) {
    std::memcpy(buffer_.data(), bytes.data(), bytes.size());
    return;
  }
  const FileDescriptor file = open_file();
  std::vector<std::byte> block(static_cast<size_t>(kBlockBytes));
  read_at(file, block.data(), block.size(), 0);
  std::memcpy(block.data(), bytes.data(), bytes.size());
  write_at(file, block.data(), bytes.size(), 0);
  crc32_[0] = crc32(block.data(), block.size());
}

FileRecord BlockWriter::finish() const {
  const FileDescriptor file = open_file();
  FileRecord record{size(), crc32_};
  if (!buffer_.empty()) {
    write_at(file, buffer_.data(), buffer_.size(), flushed_);
    record.crc32.push_back(crc32(buffer_.data(), buffer_.size()));
  }
  // What an earlier, failed write left behind the end goes.
  if (::ftruncate(file.get(), record.bytes) != 0 || ::fsync(file.get()) != 0) refuse_errno(path_, "making it durable");
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
    if (got == 0) throw FileError(path_ + ": at byte " + std::to_string(offset) + ": cut short while it was written");
    data += got;
    size -= static_cast<size_t>(got);
    offset += got;
  }
}

}  // namespace robocache::cache
