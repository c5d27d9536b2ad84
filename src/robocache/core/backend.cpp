#include "robocache/core/backend.hpp"

#include <dlfcn.h>

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
  std::string reason;
};

std::string plugin_path() {
  if (const char* path = std::getenv("ROBOCACHE_CUDA_LIBRARY")) return path;
  Dl_info info;
  // The address of a variable of this library tells which file it was loaded from.
  static const int anchor = 0;
  const auto name = "librobocache_cuda.so";
  if (dladdr(&anchor, &info) == 0 || info.dli_fname == nullptr) return name;
  const auto folder = std::filesystem::path(info.dli_fname).parent_path();
  for (const auto& candidate : {folder / name, folder / "../lib" / name}) {
    if (std::filesystem::exists(candidate)) return candidate.string();
  }
  return (folder / name).string();
}

Plugin open_plugin() {
  Plugin plugin;
  const std::string path = plugin_path();
  if (path.find('/') != std::string::npos && !std::filesystem::exists(path)) {
    plugin.reason = "no CUDA plugin: " + path + " does not exist (this build has no CUDA)";
    return plugin;
  }
  plugin.library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (plugin.library == nullptr) {
    plugin.reason = std::string("the CUDA plugin does not open: ") + dlerror();
    return plugin;
  }
  const auto abi = reinterpret_cast<const char* (*)()>(dlsym(plugin.library, "robocache_cuda_abi"));
  const auto table = reinterpret_cast<const CudaBackend* (*)()>(dlsym(plugin.library, "robocache_cuda_backend"));
  if (abi == nullptr || table == nullptr) {
    plugin.reason = path + " is no CUDA plugin of this version of RoboCache: it exports no robocache_cuda_abi";
    return plugin;
  }
  if (std::strcmp(abi(), ROBOCACHE_BACKEND_ABI) != 0) {
    plugin.reason = path + " belongs to another build of RoboCache: its interface is " + abi() +
                    ", this library's is " ROBOCACHE_BACKEND_ABI "; build or install both together";
    return plugin;
  }
  plugin.backend = table();
  const int code = plugin.backend->device_count(&plugin.devices);
  if (code != 0) {
    plugin.devices = 0;
    plugin.reason = std::string("no CUDA device: ") + plugin.backend->error_text(code);
  } else if (plugin.devices == 0) {
    plugin.reason = "no CUDA device";
  }
  return plugin;
}

const Plugin& plugin() {
  static const Plugin opened = open_plugin();
  return opened;
}

}  // namespace

const CudaBackend* cuda_backend_or_null() { return plugin().backend; }

const std::string& cuda_unavailable_reason() { return plugin().reason; }

int cuda_device_count() { return plugin().devices; }

const CudaBackend& cuda_backend() {
  if (plugin().devices == 0) throw DeviceError("CUDA is not available: " + plugin().reason);
  return *plugin().backend;
}

void check_cuda(int code, const char* what) {
  if (code != 0) throw DeviceError(std::string(what) + ": " + plugin().backend->error_text(code));
}

void* cuda_symbol(const char* name) {
  cuda_backend();
  void* symbol = dlsym(plugin().library, name);
  if (symbol == nullptr) throw DeviceError(std::string("the CUDA plugin has no ") + name);
  return symbol;
}

DeviceBuffer::DeviceBuffer(Device device, size_t bytes) : device_(device), bytes_(bytes) {
  if (bytes == 0) return;
  if (device.is_cuda()) {
    const int code = cuda_backend().allocate(device.index, bytes, &data_);
    check_cuda(code, ("allocating " + std::to_string(bytes) + " bytes on " + device_name(device)).c_str());
  } else {
    data_ = ::operator new(bytes, std::align_val_t{64});
  }
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(bytes_, other.bytes_);
  std::swap(data_, other.data_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  if (device_.is_cuda()) {
    plugin().backend->release(device_.index, data_);
  } else {
    ::operator delete(data_, std::align_val_t{64});
  }
}

void DeviceBuffer::fill_from_host(const void* from, size_t bytes) {
  if (bytes == 0) return;
  if (device_.is_cuda()) {
    check_cuda(cuda_backend().copy_from_host(device_.index, data_, from, bytes, nullptr), "copying to the device");
    check_cuda(cuda_backend().synchronize(device_.index, nullptr), "copying to the device");
  } else {
    std::memcpy(data_, from, bytes);
  }
}

}  // namespace robocache
