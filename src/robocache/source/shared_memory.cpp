#include "robocache/source/shared_memory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace robocache {
namespace {

namespace fs = std::filesystem;
using cache::FileDescriptor;

constexpr const char* kPartial = ".partial";

std::string user_prefix(const std::string& folder) { return folder + "/robocache-" + std::to_string(::geteuid()); }

std::string path_of(const std::string& folder, const std::string& name, size_t bytes) {
  return user_prefix(folder) + "-" + name + "-" + std::to_string(bytes);
}

std::string failure_text(const std::string& path, const char* doing, int code = errno) {
  return path + ": " + doing + ": " + std::system_category().message(code);
}

// Everyone may write to /dev/shm, so links and files of other users are not trusted.
FileDescriptor open_trusted(const std::string& path, int flags) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600));
  struct stat status{};
  if (file.get() >= 0 && (::fstat(file.get(), &status) != 0 || status.st_uid != ::geteuid())) {
    errno = EPERM;
    return {};
  }
  return file;
}

bool lock(const FileDescriptor& file, int operation) {
  int code = 0;
  do {
    code = ::flock(file.get(), operation);
  } while (code != 0 && errno == EINTR);
  return code == 0;
}

// Whether the whole file can be mapped. A read beyond the end of a shorter file would kill the process (SIGBUS).
bool has_size(const FileDescriptor& file, size_t bytes) {
  struct stat status{};
  return ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) && static_cast<size_t>(status.st_size) == bytes;
}

// Removes the file unless another process holds it.
void remove_unused(const FileDescriptor& file, const std::string& path) {
  if (lock(file, LOCK_EX | LOCK_NB) && cache::is_named(file, path)) ::unlink(path.c_str());
}

// Removes this user's files that killed processes left. The caller holds the lock of all files, so no process is
// filling one.
void remove_leftovers(const std::string& folder, const std::string& wanted_path) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string path = entry->path().string();
    if (!path.starts_with(user_prefix(folder) + "-") || path == wanted_path) continue;
    if (path.ends_with(kPartial)) {
      ::unlink(path.c_str());
    } else if (const FileDescriptor file = open_trusted(path, 0); file.get() >= 0) {
      remove_unused(file, path);
    }
  }
}

}  // namespace

SharedMemory::SharedMemory(const std::string& name, size_t bytes, const std::function<void(void* memory)>& fill,
                           const std::string& folder)
    : path_(path_of(folder, name, bytes)), bytes_(bytes), process_(::getpid()) {
  // The lock is held until the memory is filled. It is released if this process dies.
  const std::string lock_path = user_prefix(folder) + ".lock";
  const FileDescriptor lock_file = open_trusted(lock_path, O_CREAT);
  if (lock_file.get() < 0 || !lock(lock_file, LOCK_EX)) {
    why_not_ = failure_text(lock_path, "locking it");
    return;
  }
  remove_leftovers(folder, path_);
  file_ = open_trusted(path_, 0);
  // Another process may remove the file before this one gets the lock; the file then has no name any more.
  if (file_.get() >= 0 && lock(file_, LOCK_SH) && cache::is_named(file_, path_)) {
    if (has_size(file_, bytes)) {
      map();
      return;
    }
    ::unlink(path_.c_str());  // the name includes the size, so this file is not ours
  }

  struct statvfs space{};
  if (::statvfs(folder.c_str(), &space) == 0 && space.f_bavail * space.f_frsize < bytes) {
    why_not_ = folder + ": " + std::to_string(bytes) + " bytes are needed, " +
               std::to_string(space.f_bavail * space.f_frsize) + " are free";
    return;
  }
  const std::string partial_path = path_ + kPartial;
  file_ = open_trusted(partial_path, O_CREAT | O_EXCL);
  if (file_.get() < 0) {
    why_not_ = failure_text(partial_path, "making it");
    return;
  }
  try {
    // Reserves all pages now: a page that is missing later would kill the process.
    if (const int code = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(bytes)); code != 0) {
      why_not_ = failure_text(partial_path, "reserving its bytes", code);
    } else if (map()) {
      fill(data_);
      if (!lock(file_, LOCK_SH) || ::rename(partial_path.c_str(), path_.c_str()) != 0) {
        why_not_ = failure_text(partial_path, "giving it its name");
      }
    }
  } catch (...) {
    ::unlink(partial_path.c_str());
    if (data_ != nullptr) ::munmap(data_, bytes_);
    throw;
  }
  if (why_not_.empty()) return;
  ::unlink(partial_path.c_str());
  if (data_ != nullptr) ::munmap(std::exchange(data_, nullptr), bytes_);
}

bool SharedMemory::map() {
  void* const data = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (data == MAP_FAILED) {
    why_not_ = failure_text(path_, "mapping it");
    return false;
  }
  ::madvise(data, bytes_, MADV_HUGEPAGE);  // best effort
  data_ = data;
  return true;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(data_, other.data_);
  std::swap(process_, other.process_);
  std::swap(why_not_, other.why_not_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ == nullptr) return;
  ::munmap(data_, bytes_);
  if (process_ == ::getpid()) remove_unused(file_, path_);
}

int64_t SharedMemory::bytes_present(const std::string& name, size_t bytes, const std::string& folder) {
  const std::string path = path_of(folder, name, bytes);
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0 && ::stat((path + kPartial).c_str(), &status) != 0) return 0;
  return int64_t{status.st_blocks} * 512;
}

}  // namespace robocache
