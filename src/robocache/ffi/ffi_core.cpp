#include "robocache/core/backend.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/ffi/arguments.hpp"
#include "robocache/ffi/ffi.hpp"

namespace robocache::ffi {

ROBOCACHE_FFI(version, args, result) { result.set(std::string_view(ROBOCACHE_VERSION)); }

ROBOCACHE_FFI(num_threads, args, result) { result.set(static_cast<int64_t>(num_threads())); }

ROBOCACHE_FFI(set_num_threads, args, result) { set_num_threads(args.integer(0, "n")); }

// (owner, address, dtype name, ndim, shape..., strides...) -> a tensor over memory of the owner, which it keeps alive.
// It is for NumPy arrays that DLPack refuses: read-only arrays, and bfloat16.
ROBOCACHE_FFI(tensor_over, args, result) {
  TensorView view;
  view.data = reinterpret_cast<void*>(args.integer(1, "address"));
  view.dtype = dtype_from_name(args.string(2, "dtype"));
  view.ndim = static_cast<int>(args.integer(3, "ndim"));
  if (view.ndim > kMaxDims) throw ArgumentError("expected at most 8 dimensions, got ", view.ndim);
  for (int d = 0; d < view.ndim; ++d) {
    view.shape[d] = args.integer(4 + d, "shape");
    view.strides[d] = args.integer(4 + view.ndim + d, "strides");
  }
  result.set(OwnedTensor::share(view, args.owner(0)));
}

ROBOCACHE_FFI(tensor_address, args, result) { result.set(address(args.tensor(0, "tensor").data)); }

// (tensor): waits for the work that is queued on the current stream of its device.
ROBOCACHE_FFI(synchronize, args, result) {
  const Device device = args.tensor(0, "tensor").device;
  if (!device.is_cuda()) return;
  check_cuda(cuda_backend().synchronize(device.index, current_stream(device).handle), "synchronize");
}

// -> "" if CUDA can be used, else the reason why not
ROBOCACHE_FFI(cuda_unavailable_reason, args, result) { result.set(std::string_view(cuda_unavailable_reason())); }

ROBOCACHE_FFI(cuda_plugin_loaded, args, result) { result.set(cuda_backend_or_null() != nullptr); }

ROBOCACHE_FFI(cuda_device_count, args, result) { result.set(static_cast<int64_t>(cuda_device_count())); }

ROBOCACHE_FFI(cuda_runtime_version, args, result) {
  const CudaBackend* backend = cuda_backend_or_null();
  result.set(static_cast<int64_t>(backend != nullptr ? backend->runtime_version : 0));
}

ROBOCACHE_FFI(cuda_driver_version, args, result) {
  const CudaBackend* backend = cuda_backend_or_null();
  int32_t version = 0;
  if (backend != nullptr) check_cuda(backend->driver_version(&version), "reading the driver's version");
  result.set(static_cast<int64_t>(version));
}

static CudaDeviceInfo device_info(const Args& args) {
  CudaDeviceInfo info;
  check_cuda(cuda_backend().device_info(static_cast<int32_t>(args.integer(0, "device")), &info), "reading the device");
  return info;
}

ROBOCACHE_FFI(cuda_device_name, args, result) { result.set(std::string_view(device_info(args).name)); }

ROBOCACHE_FFI(cuda_device_compute_capability, args, result) {
  const CudaDeviceInfo info = device_info(args);
  result.set(static_cast<int64_t>(info.compute_major * 10 + info.compute_minor));
}

ROBOCACHE_FFI(cuda_device_memory_total, args, result) {
  result.set(static_cast<int64_t>(device_info(args).memory_total_bytes));
}

ROBOCACHE_FFI(cuda_device_memory_free, args, result) {
  result.set(static_cast<int64_t>(device_info(args).memory_free_bytes));
}

}  // namespace robocache::ffi
