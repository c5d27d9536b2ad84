// Defines, for libraries that run on glibc 2.28, the functions that GCC 12's runtime takes from a newer glibc.

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

#include <cstdint>

extern "C" {

// glibc 2.28 has stat, lstat, fstat, fstat64, atexit and pthread_atfork in an archive. They call these of libc.so.6.
extern void* __dso_handle;
int __cxa_atexit(void (*call)(void*), void* argument, void* object);
int __register_atfork(void (*before)(), void (*parent)(), void (*child)(), void* object);
int __xstat(int version, const char* path, struct stat* result);
int __lxstat(int version, const char* path, struct stat* result);
int __fxstat(int version, int file, struct stat* result);

namespace {
#ifdef __x86_64__
constexpr int kStatVersion = 1;
#else
constexpr int kStatVersion = 0;
#endif
}  // namespace

int stat(const char* path, struct stat* result) { return __xstat(kStatVersion, path, result); }
int lstat(const char* path, struct stat* result) { return __lxstat(kStatVersion, path, result); }
int fstat(int file, struct stat* result) { return __fxstat(kStatVersion, file, result); }
// The two structs are the same on 64-bit machines.
int fstat64(int file, struct stat64* result) { return fstat(file, reinterpret_cast<struct stat*>(result)); }

int atexit(void (*call)()) { return __cxa_atexit(reinterpret_cast<void (*)(void*)>(call), nullptr, &__dso_handle); }
int pthread_atfork(void (*before)(), void (*parent)(), void (*child)()) {
  return __register_atfork(before, parent, child, &__dso_handle);
}

// When the library is unloaded, this runs the functions that it registered by atexit, as the compiler's start files do.
void __cxa_finalize(void* object);
[[gnu::destructor]] static void robocache_unloaded() { __cxa_finalize(&__dso_handle); }

// 0 means that there may be several threads, which is always correct.
char __libc_single_threaded = 0;

// The unwinder asks for the unwind table of the code at `address`. `result` carries the address to the callback.
int _dl_find_object(void* address, dl_find_object* result) {
  result->dlfo_map_start = address;
  return dl_iterate_phdr(
             [](dl_phdr_info* object, std::size_t, void* data) {
               auto& output = *static_cast<dl_find_object*>(data);
               const auto code = reinterpret_cast<std::uintptr_t>(output.dlfo_map_start);
               bool is_inside = false;
               void* table = nullptr;
               for (int i = 0; i < object->dlpi_phnum; ++i) {
                 const ElfW(Phdr)& part = object->dlpi_phdr[i];
                 const std::uintptr_t start = object->dlpi_addr + part.p_vaddr;
                 is_inside = is_inside || (part.p_type == PT_LOAD && code - start < part.p_memsz);
                 if (part.p_type == PT_GNU_EH_FRAME) table = reinterpret_cast<void*>(start);
               }
               if (!is_inside || table == nullptr) return 0;
               output.dlfo_eh_frame = table;
               return 1;
             },
             result) == 1
             ? 0
             : -1;
}

// Waits by libc's function if glibc is 2.30 or later. Else it waits by the wall clock for at most 50 ms, so that a change
// of the clock does not prolong the wait. The caller takes an early return for a spurious wakeup.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  using Wait = int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
  static Wait* const libc_wait = reinterpret_cast<Wait*>(dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  if (libc_wait != nullptr) return libc_wait(condition, mutex, clock, until);
  constexpr std::int64_t kSecondNs = 1'000'000'000;
  constexpr std::int64_t kLongestNs = 50'000'000;
  timespec now{};
  clock_gettime(clock, &now);
  const std::int64_t left_ns = (until->tv_sec - now.tv_sec) * kSecondNs + (until->tv_nsec - now.tv_nsec);
  if (left_ns <= 0) return ETIMEDOUT;
  clock_gettime(CLOCK_REALTIME, &now);
  const std::int64_t end = now.tv_nsec + (left_ns < kLongestNs ? left_ns : kLongestNs);
  const timespec wall_until{now.tv_sec + end / kSecondNs, end % kSecondNs};
  const int status = pthread_cond_timedwait(condition, mutex, &wall_until);
  return status == ETIMEDOUT && left_ns > kLongestNs ? 0 : status;
}

}  // extern "C"
