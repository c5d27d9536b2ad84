#include "robocache/cache/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "robocache/core/error.hpp"

namespace robocache::cache {

void refuse_bytes(const std::string& path, int64_t offset, std::string_view expected, std::string_view got) {
  std::string message = path + ": at byte " + std::to_string(offset) + ": expected ";
  throw FileError(message.append(expected).append(", got ").append(got));
}

void refuse_errno(const std::string& path, std::string_view doing) {
  const std::string reason = std::system_category().message(errno);
  std::string message = path + ": ";
  throw FileError(message.append(doing).append(": ").append(reason));
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

FileDescriptor open_directory(const std::string& path) {
  FileDescriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) refuse_errno(path, "opening the directory");
  return directory;
}

FileIdentity identity_of(const FileDescriptor& file) {
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

FileDescriptor open_below(const FileDescriptor& directory, const std::string& name, const std::string& path) {
  FileDescriptor file(::openat(directory.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0 && errno != ENOENT) refuse_errno(path, "opening it");
  return file;
}

bool is_named(const FileDescriptor& file, const std::string& path) {
  struct stat open_file{};
  struct stat named_file{};
  return ::fstat(file.get(), &open_file) == 0 && ::stat(path.c_str(), &named_file) == 0 &&
         open_file.st_dev == named_file.st_dev && open_file.st_ino == named_file.st_ino;
}

void sync_directory(const std::string& path) {
  const FileDescriptor directory = open_directory(path);
  // Some network file systems cannot, and keep directories durable by themselves.
  if (::fsync(directory.get()) != 0 && errno != EINVAL && errno != EBADF) refuse_errno(path, "making it durable");
}

MappedFile::MappedFile(const FileDescriptor& directory, const std::string& name, std::string path)
    : path_(std::move(path)) {
  const FileDescriptor file = open_below(directory, name, path_);
  if (file.get() < 0) refuse_errno(path_, "opening it");
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) refuse_errno(path_, "reading its size");
  if (!S_ISREG(status.st_mode)) throw FileError(path_ + ": expected a file, got something else of that name");
  identity_ = {status.st_dev, status.st_ino};
  if (status.st_size == 0) return;
  void* data = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) refuse_errno(path_, "mapping it");
  data_ = data;
  size_ = static_cast<size_t>(status.st_size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void MappedFile::release_pages() const {
  // That they stay is no error.
  if (data_ != nullptr) ::madvise(data_, size_, MADV_DONTNEED);
}

}  // namespace robocache::cache
