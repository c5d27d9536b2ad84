#include "robocache/cache/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

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
  struct stat named{};
  const FileIdentity identity = identity_of(file);
  return identity != FileIdentity() && ::stat(path.c_str(), &named) == 0 &&
         identity == FileIdentity{named.st_dev, named.st_ino};
}

void make_durable(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) refuse_errno(path, "opening it");
  if (::fsync(file.get()) == 0) return;
  const int reason = errno;
  struct stat status{};
  const bool is_directory = ::fstat(file.get(), &status) == 0 && S_ISDIR(status.st_mode);
  // Some network file systems cannot sync a directory. They keep directories durable themselves.
  if (is_directory && (reason == EINVAL || reason == EBADF)) return;
  errno = reason;
  refuse_errno(path, "making it durable");
}

void make_durable(std::span<const std::string> paths) {
  constexpr size_t kMostThreads = 16;
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    for (size_t i = next++; i < paths.size(); i = next++) {
      try {
        make_durable(paths[i]);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (failure == nullptr) failure = std::current_exception();
        next = paths.size();
      }
    }
  };
  std::vector<std::thread> threads;
  try {
    while (threads.size() + 1 < std::min(kMostThreads, paths.size())) threads.emplace_back(work);
  } catch (const std::exception&) {
    // The threads that already run do the work.
  }
  work();
  for (std::thread& thread : threads) thread.join();
  if (failure != nullptr) std::rethrow_exception(failure);
}

MappedFile::MappedFile(const FileDescriptor& directory, const std::string& name, std::string path)
    : path_(std::move(path)) {
  const FileDescriptor file = open_below(directory, name, path_);
  if (file.get() < 0) refuse_errno(path_, "opening it");
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) refuse_errno(path_, "reading its size");
  if (!S_ISREG(status.st_mode)) throw FileError(path_, ": expected a file, got something else of that name");
  identity_ = {status.st_dev, status.st_ino};
  if (status.st_size == 0) return;
  const auto size = static_cast<size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) refuse_errno(path_, "mapping it");
  data_ = {data, Unmap{size}};
}

void MappedFile::Unmap::operator()(void* data) const { ::munmap(data, size); }

void MappedFile::release_pages() const {
  // If it fails, the pages stay in memory, which is harmless.
  if (data_ != nullptr) ::madvise(data_.get(), size(), MADV_DONTNEED);
}

}  // namespace robocache::cache
