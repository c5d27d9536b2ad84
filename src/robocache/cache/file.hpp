// Files of a cache: memory-mapped reading, durable writing, and errors that name the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace robocache::cache {

// Throws FileError "PATH: at byte OFFSET: expected EXPECTED, got GOT".
[[noreturn]] void refuse_bytes(const std::string& path, int64_t offset, std::string_view expected,
                               std::string_view got);

// Throws FileError "PATH: DOING: " with the text of errno. Call it before anything else can change errno.
[[noreturn]] void refuse_errno(const std::string& path, std::string_view doing);

// Owns an open file or directory; -1 is none.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();

  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// Throws FileError.
FileDescriptor open_directory(const std::string& path);

// Whether `path` still names this open file or directory.
bool is_named(const FileDescriptor& file, const std::string& path);

// Makes a file or the entries of a directory durable. Throws FileError.
void make_durable(const std::string& path);

// Makes many files durable at once, on several threads: each thread waits for the disk, and a recording may have
// thousands of small files. Throws the FileError of one of them.
void make_durable(std::span<const std::string> paths);

// Identifies a file on this host while it exists. Once it is removed, its inode may be used again.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

FileIdentity identity_of(const FileDescriptor& file);

// Opens `name` in the open `directory` for reading. Returns -1 if there is no such file. Throws FileError that names
// `path`.
FileDescriptor open_below(const FileDescriptor& directory, const std::string& name, const std::string& path);

// A whole file, mapped read-only.
class MappedFile {
 public:
  MappedFile() = default;

  // Opens `name` in the open `directory`, so that all files come from one cache, even if another cache takes its name
  // in the meantime. Throws FileError that names `path`.
  MappedFile(const FileDescriptor& directory, const std::string& name, std::string path);

  const std::string& path() const { return path_; }
  const FileIdentity& identity() const { return identity_; }
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_.get()), size()}; }
  std::string_view text() const { return {static_cast<const char*>(data_.get()), size()}; }

  // Drops the pages from this process's memory; they are read from the file again when needed.
  void release_pages() const;

 private:
  struct Unmap {
    size_t size;  // bytes
    void operator()(void* data) const;
  };
  size_t size() const { return data_.get_deleter().size; }

  std::string path_;
  FileIdentity identity_;
  std::unique_ptr<void, Unmap> data_;
};

}  // namespace robocache::cache
