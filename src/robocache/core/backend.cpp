#include "robocache/core/backend.hpp"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <utility>

#include "robocache/core/error.hpp"

namespace robocache {
namespace {

struct Plugin {
  void* library = nullptr;
  const CudaBackend* backend = nullptr;
  int32_t devices = 0;
  std::string reason;  // why CUDA is not available, or ""
};

// Returns the path from the environment, or "".
std::string named_path() {
  const char* const path = std::getenv("ROBOCACHE_CUDA_LIBRARY");
  return path != nullptr ? path : "";
}

std::string installed_path() {
  Dl_info info;
  // dladdr finds the file of this library by the address of one of its variables.
  static const int variable = 0;
  const auto name = "librobocache_cuda.so";
  if (dladdr(&variable, &info) == 0 || info.dli_fname == nullptr) return name;
  const auto folder = std::filesystem::path(info.dli_fname).parent_path();
  for (const auto& candidate : {folder / name, folder / "../lib" / name}) {
    if (std::filesystem::exists(candidate)) return candidate.string();
  }
  return (folder / name).string();
}

std::string cuda_version(int32_t number) {
  return "CUDA " + std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

// Returns "535.104.05 (CUDA 12.2)", or "for CUDA 12.2" if NVML does not give the driver's version.
std::string driver_text(int32_t cuda) {
  char release[80] = "";  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
  if (void* const nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    const auto init = reinterpret_cast<int (*)()>(dlsym(nvml, "nvmlInit_v2"));
    const auto version = reinterpret_cast<int (*)(char*, unsigned)>(dlsym(nvml, "nvmlSystemGetDriverVersion"));
    if (init == nullptr || version == nullptr || init() != 0 || version(release, sizeof release) != 0) release[0] = 0;
  }
  return release[0] != 0 ? std::string(release) + " (" + cuda_version(cuda) + ")" : "for " + cuda_version(cuda);
}

// Returns why the plugin's runtime finds no device, and what to do.
std::string no_device_reason(const CudaBackend& backend, int code) {
  int32_t driver = 0;
  if (backend.driver_version(&driver) == 0) {
    const std::string needed = "version 580 or later (" + cuda_version(backend.runtime_version) + ")";
    if (driver == 0) return "no NVIDIA driver; install " + needed + ", or start the container with --gpus all";
    if (driver / 1000 < backend.runtime_version / 1000)
      return "the NVIDIA driver " + driver_text(driver) + " is too old; install " + needed;
  }
  std::string reason = "no CUDA device";
  if (code != 0) reason += std::string(": ") + backend.error_text(code);
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES"))
    return reason + "; CUDA_VISIBLE_DEVICES=" + visible + " hides the devices that it does not name; unset it";
  return reason + "; make nvidia-smi list one first";
}

Plugin open_plugin() {
  Plugin plugin;
  const bool is_named = !named_path().empty();
  const std::string path = is_named ? named_path() : installed_path();
  const std::string subject = is_named ? "ROBOCACHE_CUDA_LIBRARY: " + path : path;
  const auto with_remedy = [&](const char* remedy) {
    return std::string("; ") + (is_named ? "unset it, or name the plugin that was built with this library" : remedy);
  };
  if (path.find('/') != std::string::npos && !std::filesystem::exists(path)) {
    plugin.reason = (is_named ? "" : "no CUDA plugin: ") + subject + " does not exist" +
                    with_remedy("install the wheel robocache in place of robocache-cpu, or compile where nvcc is");
    return plugin;
  }
  plugin.library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (plugin.library == nullptr) {
    plugin.reason = subject + " does not open: " + dlerror() + with_remedy("reinstall robocache");
    return plugin;
  }
  const auto abi = reinterpret_cast<const char* (*)()>(dlsym(plugin.library, "robocache_cuda_abi"));
  const auto table = reinterpret_cast<const CudaBackend* (*)()>(dlsym(plugin.library, "robocache_cuda_backend"));
  if (abi == nullptr || table == nullptr) {
    plugin.reason = subject + " is no CUDA plugin of this version of RoboCache: it exports no robocache_cuda_abi" +
                    with_remedy("reinstall robocache");
    return plugin;
  }
  if (std::strcmp(abi(), ROBOCACHE_BACKEND_ABI) != 0) {
    plugin.reason = subject + " belongs to another build of RoboCache: its interface is " + abi() +
                    ", this library's is " ROBOCACHE_BACKEND_ABI + with_remedy("build or install both together");
    return plugin;
  }
  plugin.backend = table();
  const int code = plugin.backend->device_count(&plugin.devices);
  if (code != 0) plugin.devices = 0;
  if (plugin.devices == 0) plugin.reason = no_device_reason(*plugin.backend, code);
  return plugin;
}

const Plugin& plugin() {
  static const Plugin opened = open_plugin();
  return opened;
}

// Rows are drawn at random, and huge pages make the address translation of each access cheaper.
constexpr size_t kHugePage = size_t{1} << 21;

template <size_t kAlignment>
int release_host(int32_t /*device*/, void* memory) {
  ::operator delete(memory, std::align_val_t{kAlignment});
  return 0;
}

DeviceResource allocate_host(size_t bytes) {
  constexpr size_t kCacheLine = 64;
  const bool is_huge = bytes >= kHugePage;
  void* const memory = ::operator new(bytes, std::align_val_t{is_huge ? kHugePage : kCacheLine}, std::nothrow);
  if (memory == nullptr) throw OutOfMemory("allocating ", bytes, " bytes of host memory: out of memory");
  if (is_huge) ::madvise(memory, bytes, MADV_HUGEPAGE);  // a hint, which the kernel may ignore
  return {memory, {0, is_huge ? release_host<kHugePage> : release_host<kCacheLine>}};
}

}  // namespace

const CudaBackend* cuda_backend_or_null() { return plugin().backend; }

const std::string& cuda_unavailable_reason() { return plugin().reason; }

int cuda_device_count() { return plugin().devices; }

const CudaBackend& cuda_backend() {
  if (plugin().devices == 0) throw DeviceError("CUDA is not available: ", plugin().reason);
  return *plugin().backend;
}

void check_cuda(int code, const char* what) {
  if (code == 0) return;
  const std::string text = std::string(what) + ": " + plugin().backend->error_text(code);
  if (code == plugin().backend->out_of_memory) throw OutOfMemory(text);
  throw DeviceError(text);
}

void* cuda_symbol(const char* name) {
  cuda_backend();
  void* symbol = dlsym(plugin().library, name);
  if (symbol == nullptr) throw DeviceError("the CUDA plugin has no ", name);
  return symbol;
}

DeviceBuffer::DeviceBuffer(Device device, size_t bytes) : device_(device), bytes_(bytes) {
  if (bytes == 0) return;
  if (!device.is_cuda()) {
    data_ = allocate_host(bytes);
    return;
  }
  const CudaBackend& backend = cuda_backend();
  void* data = nullptr;
  const int code = backend.allocate(device.index, bytes, &data);
  check_cuda(code, ("allocating " + std::to_string(bytes) + " bytes on " + device_name(device)).c_str());
  data_ = {data, {device.index, backend.release}};
}

void DeviceBuffer::fill_from_host(const void* from, size_t bytes) {
  if (bytes == 0) return;
  if (device_.is_cuda()) {
    check_cuda(cuda_backend().copy_from_host(device_.index, data(), from, bytes, nullptr), "copying to the device");
    check_cuda(cuda_backend().synchronize(device_.index, nullptr), "copying to the device");
  } else {
    std::memcpy(data(), from, bytes);
  }
}

PinnedBuffer::PinnedBuffer(Device device, size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  if (!device.is_cuda()) {
    data_ = allocate_host(bytes);
    on_device_ = data();
    return;
  }
  const CudaBackend& backend = cuda_backend();
  const std::string what = "pinning " + std::to_string(bytes) + " bytes of host memory";
  void* data = nullptr;
  check_cuda(backend.allocate_pinned(device.index, bytes, &data), what.c_str());
  data_ = {data, {device.index, backend.release_pinned}};
  check_cuda(backend.pinned_on_device(device.index, data, &on_device_), what.c_str());
}

HostRegistration::HostRegistration(Device device, void* memory, size_t bytes) : on_device_(memory) {
  if (!device.is_cuda() || bytes == 0) return;
  const CudaBackend& backend = cuda_backend();
  const std::string what = "pinning " + std::to_string(bytes) + " bytes of shared memory";
  check_cuda(backend.register_host(device.index, memory, bytes), what.c_str());
  memory_ = {memory, {device.index, backend.unregister_host}};
  check_cuda(backend.pinned_on_device(device.index, memory, &on_device_), what.c_str());
}

OwnedCudaStream::OwnedCudaStream(Device device) {
  if (!device.is_cuda()) return;
  void* stream = nullptr;
  check_cuda(cuda_backend().create_stream(device.index, &stream), "making a CUDA stream");
  stream_ = {stream, {device.index, cuda_backend().destroy_stream}};
}

void OwnedCudaStream::wait() const {
  if (stream_ == nullptr) return;
  check_cuda(cuda_backend().synchronize(stream_.get_deleter().device, stream_.get()), "waiting for a CUDA stream");
}

CudaEvent::CudaEvent(Device device) {
  if (!device.is_cuda()) return;
  void* event = nullptr;
  check_cuda(cuda_backend().create_event(device.index, &event), "making a CUDA event");
  event_ = {event, {device.index, cuda_backend().destroy_event}};
}

void CudaEvent::record(CudaStream stream) {
  if (event_ == nullptr) return;
  check_cuda(cuda_backend().record_event(event_.get_deleter().device, event_.get(), stream.handle),
             "recording a CUDA event");
}

void CudaEvent::make_wait(CudaStream stream) const {
  if (event_ == nullptr) return;
  check_cuda(cuda_backend().stream_wait_event(event_.get_deleter().device, stream.handle, event_.get()),
             "making a CUDA stream wait");
}

void CudaEvent::wait() const {
  if (event_ == nullptr) return;
  check_cuda(cuda_backend().synchronize_event(event_.get_deleter().device, event_.get()), "waiting for a CUDA event");
}

}  // namespace robocache
