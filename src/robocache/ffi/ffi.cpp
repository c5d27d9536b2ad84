#include "robocache/ffi/ffi.hpp"

#include <dlfcn.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <array>
#include <atomic>
#include <new>
#include <optional>
#include <string_view>
#include <vector>

#include "robocache/core/arguments.hpp"
#include "robocache/core/backend.hpp"

namespace robocache::ffi {
namespace {

constexpr DLDataType to_dl(DType dtype) {
  const auto bits = static_cast<uint8_t>(dtype_size(dtype) * 8);
  switch (dtype) {
    case DType::kBool:
      return {kDLBool, bits, 1};
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
      return {kDLUInt, bits, 1};
    case DType::kBFloat16:
      return {kDLBfloat, bits, 1};
    case DType::kFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
      return {kDLFloat, bits, 1};
    default:
      return {kDLInt, bits, 1};
  }
}

constexpr size_t kCodes = kDLBool + 1;
constexpr size_t kMostBytes = 8;

// The DType for each DLPack code and size in bytes; -1: none.
constexpr auto kDTypes = [] {
  std::array<std::array<int8_t, kMostBytes + 1>, kCodes> dtypes{};
  for (auto& by_size : dtypes) by_size.fill(-1);
  for (int8_t i = 0; i <= static_cast<int8_t>(DType::kFloat64); ++i) {
    const DLDataType dl = to_dl(static_cast<DType>(i));
    dtypes[dl.code][dl.bits / 8] = i;
  }
  return dtypes;
}();

DType from_dl(DLDataType dl, const char* name) {
  if (dl.code < kCodes && dl.bits % 8 == 0 && dl.bits / 8 <= kMostBytes && dl.lanes == 1) {
    if (const int8_t dtype = kDTypes[dl.code][dl.bits / 8]; dtype >= 0) return static_cast<DType>(dtype);
  }
  throw ArgumentTypeError(name,
                          ": expected bool, int8..int64, uint8..uint64, float16, bfloat16, float32 or float64, got ",
                          (dl.code == kDLComplex ? "complex" : "DLPack code " + std::to_string(dl.code) + " of "),
                          dl.bits, (dl.code == kDLComplex ? "" : " bits"));
}

DLDevice to_dl(Device device) { return {device.is_cuda() ? kDLCUDA : kDLCPU, device.index}; }

Device from_dl(DLDevice device, const char* name) {
  switch (device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
      return {};
    case kDLCUDA:
    case kDLCUDAManaged:
      return {DeviceType::kCuda, device.device_id};
    default:
      throw ArgumentError(name, ": expected a tensor on the CPU or a CUDA device, got DLPack device type ",
                          static_cast<int>(device.device_type));
  }
}

TensorView from_dl(const DLTensor& dl, const char* name) {
  if (dl.ndim > kMaxDims) {
    throw ArgumentError(name, ": expected at most ", kMaxDims, " dimensions, got ", dl.ndim);
  }
  TensorView view;
  view.data = static_cast<char*>(dl.data) + dl.byte_offset;
  view.dtype = from_dl(dl.dtype, name);
  view.device = from_dl(dl.device, name);
  view.ndim = dl.ndim;
  int64_t stride = 1;
  for (int d = dl.ndim - 1; d >= 0; --d) {
    view.shape[d] = dl.shape[d];
    view.strides[d] = dl.strides != nullptr ? dl.strides[d] : stride;
    stride *= dl.shape[d];
  }
  return view;
}

const DLTensor* dl_tensor(const TVMFFIAny& arg) {
  if (arg.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(arg.v_ptr);
  if (arg.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(arg.v_obj);
  return nullptr;
}

std::optional<std::string_view> text_of(const TVMFFIAny& arg) {
  switch (arg.type_index) {
    case kTVMFFIRawStr:
      return arg.v_c_str;
    case kTVMFFISmallStr:
      return std::string_view(arg.v_bytes, arg.small_str_len);
    case kTVMFFIStr: {
      const TVMFFIByteArray* bytes = TVMFFIBytesGetByteArrayPtr(arg.v_obj);
      return std::string_view(bytes->data, bytes->size);
    }
    default:
      return std::nullopt;
  }
}

void check(int code) {
  if (code != 0) throw Error("tvm-ffi refused a tensor");
}

// Returns Python's repr of an object; `_lib.py` registers the function.
std::string repr(const TVMFFIAny& object) {
  static const TVMFFIObjectHandle function = [] {
    const TVMFFIByteArray name{"robocache.repr", 14};
    TVMFFIObjectHandle handle = nullptr;
    check(TVMFFIFunctionGetGlobal(&name, &handle));
    return handle;
  }();
  TVMFFIAny argument = object, text{};
  TVMFFIObjectHandle to_release = nullptr;
  std::string printed = "an object that does not print";
  if (TVMFFIFunctionCall(function, &argument, 1, &text) != 0) {
    TVMFFIErrorMoveFromRaised(&to_release);
  } else {
    if (const auto read = text_of(text)) printed = *read;
    if (text.type_index >= kTVMFFIStaticObjectBegin) to_release = text.v_obj;
  }
  if (to_release != nullptr) TVMFFIObjectDecRef(to_release);
  return printed;
}

// Returns an argument as errors show it.
std::string argument_text(const TVMFFIAny& arg) {
  if (const DLTensor* dl = dl_tensor(arg))
    return "an array " + shape_string({dl->shape, static_cast<size_t>(dl->ndim)});
  switch (arg.type_index) {
    case kTVMFFINone:
      return "None";
    case kTVMFFIBool:
      return arg.v_int64 != 0 ? "True" : "False";
    case kTVMFFIInt:
      return std::to_string(arg.v_int64);
    case kTVMFFIFloat:
      return number_text(arg.v_float64);
    case kTVMFFIOpaquePyObject:
      return repr(arg);
    default:
      break;
  }
  if (const auto text = text_of(arg)) return "'" + std::string(*text) + "'";
  const TVMFFIByteArray& key = TVMFFIGetTypeInfo(arg.type_index)->type_key;
  const std::string_view type(key.data, key.size);
  return type == "ffi.BigInt" ? "an int beyond 64 bits" : "an object of type " + std::string(type);
}

// Throws the error for an argument of another type than expected.
[[noreturn]] void refuse_argument(const char* name, const char* expected, const TVMFFIAny& actual) {
  throw ArgumentTypeError(name, ": expected ", expected, ", got ", argument_text(actual));
}

std::shared_ptr<void> shared_object(TVMFFIObjectHandle object) {
  TVMFFIObjectIncRef(object);
  return {object, [](void* pointer) { TVMFFIObjectDecRef(pointer); }};
}

// A DLPack tensor whose memory `owner` keeps alive; Managed is DLManagedTensor or DLManagedTensorVersioned.
template <class Managed>
struct SharedTensor {
  Managed managed{};
  std::array<int64_t, kMaxDims> shape{};
  std::array<int64_t, kMaxDims> strides{};
  std::shared_ptr<const void> owner;

  SharedTensor(const TensorView& view, std::shared_ptr<const void> memory_owner)
      : shape(view.shape), strides(view.strides), owner(std::move(memory_owner)) {
    DLTensor& dl = managed.dl_tensor;
    dl.data = view.data;
    dl.device = to_dl(view.device);
    dl.ndim = view.ndim;
    dl.dtype = to_dl(view.dtype);
    dl.shape = shape.data();
    dl.strides = strides.data();
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { delete static_cast<SharedTensor*>(self->manager_ctx); };
  }
};

// Returns a function of Python's C API. This library does not link Python, but the calling process has it.
template <class Function>
Function* python_function(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// Holds Python's lock, even if this thread had it already.
class PythonLock {
 public:
  PythonLock() : state_(ensure()) {}
  ~PythonLock() { release(state_); }
  PythonLock(const PythonLock&) = delete;
  PythonLock& operator=(const PythonLock&) = delete;

 private:
  static int ensure() {
    static const auto take = python_function<int()>("PyGILState_Ensure");
    return take();
  }
  static void release(int state) {
    static const auto give = python_function<void(int)>("PyGILState_Release");
    give(state);
  }

  int state_;
};

// Raises an error without a C++ backtrace, since making one takes most of a second the first time.
void set_raised(std::string_view kind, std::string_view message) {
  const TVMFFIByteArray kind_bytes{kind.data(), kind.size()};
  const TVMFFIByteArray message_bytes{message.data(), message.size()};
  const TVMFFIByteArray no_trace{"", 0};
  TVMFFIObjectHandle error = nullptr;
  if (TVMFFIErrorCreate(&kind_bytes, &message_bytes, &no_trace, &error) != 0) return;
  TVMFFIErrorSetRaised(error);
  TVMFFIObjectDecRef(error);
}

}  // namespace

const TVMFFIAny& Args::any(int i) const {
  if (i >= count_) throw ArgumentTypeError("expected more than ", count_, " arguments");
  return args_[i];
}

bool Args::is_tensor(int i) const { return dl_tensor(any(i)) != nullptr; }

std::string Args::description(int i) const { return argument_text(any(i)); }

int64_t Args::integer(int i, const char* name) const {
  if (any(i).type_index != kTVMFFIInt) refuse_argument(name, "an int", any(i));
  return any(i).v_int64;
}

double Args::real(int i, const char* name) const {
  if (any(i).type_index == kTVMFFIInt) return static_cast<double>(any(i).v_int64);
  if (any(i).type_index != kTVMFFIFloat) refuse_argument(name, "a number", any(i));
  return any(i).v_float64;
}

bool Args::boolean(int i, const char* name) const {
  if (any(i).type_index != kTVMFFIBool) refuse_argument(name, "True or False", any(i));
  return any(i).v_int64 != 0;
}

std::string_view Args::string(int i, const char* name) const {
  const auto text = text_of(any(i));
  if (!text) refuse_argument(name, "a str", any(i));
  return *text;
}

TensorView Args::tensor(int i, const char* name) const {
  const DLTensor* dl = dl_tensor(any(i));
  if (dl == nullptr) refuse_argument(name, "a tensor", any(i));
  const TensorView view = from_dl(*dl, name);
  if (view.data == nullptr && view.numel() > 0) {
    throw ArgumentError(name, ": expected an array with memory, got a shape alone");
  }
  return view;
}

std::function<void(std::span<const int64_t>)> Args::function(int i, const char* name) const {
  if (any(i).type_index != kTVMFFIFunction) refuse_argument(name, "a function", any(i));
  return [function = shared_object(any(i).v_obj)](std::span<const int64_t> numbers) {
    std::vector<TVMFFIAny> arguments(numbers.size());
    for (size_t k = 0; k < numbers.size(); ++k) {
      arguments[k].type_index = kTVMFFIInt;
      arguments[k].v_int64 = numbers[k];
    }
    TVMFFIAny result{};
    const int code =
        TVMFFIFunctionCall(function.get(), arguments.data(), static_cast<int32_t>(arguments.size()), &result);
    if (code == 0 && result.type_index == kTVMFFIBool && result.v_int64 != 0) return;
    TVMFFIObjectHandle raised = nullptr;
    if (code != 0) TVMFFIErrorMoveFromRaised(&raised);
    if (raised != nullptr) TVMFFIObjectDecRef(raised);
    throw Error("a function of Python raised");
  };
}

std::shared_ptr<const void> Args::owner(int i) const {
  if (any(i).type_index != kTVMFFIOpaquePyObject) refuse_argument("owner", "an object", any(i));
  return shared_object(any(i).v_obj);
}

OwnedTensor OwnedTensor::allocate(DType dtype, Device device, std::initializer_list<int64_t> shape) {
  return allocate(TensorView::contiguous(nullptr, dtype, shape, device));
}

OwnedTensor OwnedTensor::allocate(TensorView view) {
  if (TVMFFIEnvGetDLPackManagedTensorAllocator() != nullptr) {
    DLTensor prototype{};
    prototype.device = to_dl(view.device);
    prototype.dtype = to_dl(view.dtype);
    prototype.ndim = view.ndim;
    prototype.shape = view.shape.data();
    TVMFFIObjectHandle handle = nullptr;
    if (TVMFFIEnvTensorAlloc(&prototype, &handle) != 0) {
      throw DeviceError("the framework could not allocate ", view.describe());
    }
    return OwnedTensor(handle);
  }
  try {
    const int64_t bytes = view.numel() * dtype_size(view.dtype);
    auto buffer = std::make_shared<DeviceBuffer>(view.device, static_cast<size_t>(bytes));
    view.data = buffer->data();
    return share(view, std::move(buffer));
  } catch (const std::bad_alloc&) {
    throw DeviceError("could not allocate ", view.describe());
  }
}

OwnedTensor OwnedTensor::share(const TensorView& view, std::shared_ptr<const void> owner) {
  auto shared = std::make_unique<SharedTensor<DLManagedTensor>>(view, std::move(owner));
  TVMFFIObjectHandle handle = nullptr;
  check(TVMFFITensorFromDLPack(&shared->managed, 0, 0, &handle));
  shared.release();  // the tensor's deleter frees it from here on
  return OwnedTensor(handle);
}

// The state that the tensors of one memory share, until the last of them is gone.
struct TensorSet::Shared {
  std::shared_ptr<const TensorSet> set;
  std::shared_ptr<void> memory;
  std::vector<DLManagedTensorVersioned> managed;
  std::atomic<size_t> tensors_alive;

  Shared(std::shared_ptr<const TensorSet> tensor_set, std::shared_ptr<void> batch_memory)
      : set(std::move(tensor_set)),
        memory(std::move(batch_memory)),
        managed(set->tensors_.size()),
        tensors_alive(managed.size()) {
    for (size_t i = 0; i < managed.size(); ++i) {
      managed[i].version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
      managed[i].manager_ctx = this;
      managed[i].deleter = [](DLManagedTensorVersioned* self) { static_cast<Shared*>(self->manager_ctx)->drop(1); };
      DLTensor& tensor = managed[i].dl_tensor = set->tensors_[i];
      tensor.data = static_cast<char*>(memory.get()) + std::exchange(tensor.byte_offset, 0);
    }
  }

  void drop(size_t tensors) {
    if (tensors_alive.fetch_sub(tensors, std::memory_order_acq_rel) == tensors) delete this;
  }
};

TensorSet::TensorSet(const std::vector<TensorView>& views, const std::vector<int64_t>& offsets)
    : tensors_(views.size()) {
  extents_.reserve(views.size() * 2 * kMaxDims);  // so that the addresses of entries stay valid
  for (size_t i = 0; i < views.size(); ++i) {
    const TensorView& view = views[i];
    const auto put = [&](const std::array<int64_t, kMaxDims>& extents) {
      extents_.insert(extents_.end(), extents.begin(), extents.begin() + view.ndim);
      return extents_.data() + extents_.size() - view.ndim;
    };
    DLTensor& tensor = tensors_[i];
    tensor.byte_offset = static_cast<uint64_t>(offsets[i]);
    tensor.device = to_dl(view.device);
    tensor.ndim = view.ndim;
    tensor.dtype = to_dl(view.dtype);
    tensor.shape = put(view.shape);
    tensor.strides = put(view.strides);
  }
}

void TensorSet::fill_list(const std::shared_ptr<const TensorSet>& set, const std::shared_ptr<void>& memory,
                          int64_t exchange, int64_t list) {
  static const auto set_item =
      python_function<int(void*, ptrdiff_t, void*)>("PyList_SetItem");  // takes over the reference
  const auto* api = reinterpret_cast<const DLPackExchangeAPI*>(exchange);
  const PythonLock lock;
  auto* const shared = new Shared(set, memory);
  const size_t count = shared->managed.size();
  for (size_t i = 0; i < count; ++i) {
    void* object = nullptr;
    if (api->managed_tensor_to_py_object_no_sync(&shared->managed[i], &object) != 0) {
      shared->drop(count - i);
      throw PythonRaised();
    }
    if (set_item(reinterpret_cast<void*>(list), static_cast<ptrdiff_t>(i), object) != 0) {
      if (i + 1 < count) shared->drop(count - i - 1);
      throw PythonRaised();
    }
  }
}

OwnedTensor::~OwnedTensor() {
  if (handle_ != nullptr) TVMFFIObjectDecRef(handle_);
}

TensorView OwnedTensor::view() const { return from_dl(*TVMFFITensorGetDLTensorPtr(handle_), "out"); }

void Result::set(int64_t value) {
  out_->type_index = kTVMFFIInt;
  out_->zero_padding = 0;
  out_->v_int64 = value;
}

void Result::set(bool value) {
  set(static_cast<int64_t>(value));
  out_->type_index = kTVMFFIBool;
}

void Result::set(std::string_view value) {
  const TVMFFIByteArray bytes{value.data(), value.size()};
  check(TVMFFIStringFromByteArray(&bytes, out_));
}

void Result::set(OwnedTensor tensor) {
  out_->type_index = kTVMFFITensor;
  out_->zero_padding = 0;
  out_->v_ptr = tensor.release();
}

CudaStream current_stream(Device device) {
  return {device.is_cuda() ? TVMFFIEnvGetStream(kDLCUDA, device.index) : nullptr};
}

void check_signals() {
  if (TVMFFIEnvCheckSignals() != 0) throw PythonRaised();
}

void raise_current_exception() {
  try {
    throw;
  } catch (const PythonRaised&) {
    set_raised("EnvErrorAlreadySet", "");  // tvm-ffi's kind for an exception that Python already has
  } catch (const ArgumentError& error) {
    set_raised("robocache.ArgumentError", error.what());
  } catch (const ArgumentTypeError& error) {
    set_raised("robocache.ArgumentTypeError", error.what());
  } catch (const FileError& error) {
    set_raised("robocache.FileError", error.what());
  } catch (const FrameError& error) {
    set_raised("robocache.FrameError", error.what());
  } catch (const StaleError& error) {
    set_raised("robocache.StaleError", error.what());
  } catch (const DeviceError& error) {
    set_raised("robocache.DeviceError", error.what());
  } catch (const Error& error) {
    set_raised("robocache.Error", error.what());
  } catch (const std::bad_alloc&) {
    set_raised("MemoryError", "out of memory");
  } catch (const std::exception& error) {
    set_raised("RuntimeError", error.what());
  }
}

}  // namespace robocache::ffi
