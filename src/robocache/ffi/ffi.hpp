// The adapter to Python: decodes arguments and encodes results of the tvm-ffi C ABI, and decides nothing.
//
// A function for Python is one ROBOCACHE_FFI block:
//
//   ROBOCACHE_FFI(resample, args, result) {
//     const TensorView values = args.tensor(0, "values");
//     ...
//     result.set(output);
//   }
//
// Python calls it by that name. Exceptions become Python's: robocache::ArgumentError is robocache.ArgumentError, and so
// on; std::bad_alloc is MemoryError, anything else RuntimeError.
#pragma once

#include <tvm/ffi/c_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "robocache/core/device.hpp"
#include "robocache/core/error.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache::ffi {

// A C++ object that Python holds. tvm-ffi counts its references and knows its type by T::kTypeKey.
template <class T>
struct Boxed {
  TVMFFIObject header;
  T value;

  static int32_t type_index() {
    static const int32_t index = [] {
      const TVMFFIByteArray key{T::kTypeKey, std::char_traits<char>::length(T::kTypeKey)};
      return TVMFFITypeGetOrAllocIndex(&key, -1, 1, 0, 0, kTVMFFIObject);
    }();
    return index;
  }

  static void deleter(void* self, int flags) {
    auto* boxed = static_cast<Boxed*>(self);
    if (flags & kTVMFFIObjectDeleterFlagBitMaskStrong) boxed->value.~T();
    if (flags & kTVMFFIObjectDeleterFlagBitMaskWeak) ::operator delete(self);
  }
};

class Args {
 public:
  Args(const TVMFFIAny* args, int32_t count) : args_(args), count_(count) {}

  int count() const { return count_; }
  bool is_none(int i) const { return any(i).type_index == kTVMFFINone; }
  bool is_tensor(int i) const;

  // Each throws ArgumentTypeError that names `name` if the argument is something else.
  int64_t integer(int i, const char* name) const;
  double real(int i, const char* name) const;  // also accepts an int
  bool boolean(int i, const char* name) const;
  std::string_view string(int i, const char* name) const;  // valid during the call
  TensorView tensor(int i, const char* name) const;        // valid during the call

  // Returns a function of Python that takes ints and returns whether it succeeded. It may be called after the call too.
  // It throws Error if the function returned False or raised; Python keeps the exception.
  std::function<void(std::span<const int64_t>)> function(int i, const char* name) const;

  std::shared_ptr<const void> owner(int i) const;  // keeps an object of Python alive

  std::string description(int i) const;  // the argument as an error describes it

  bool is_integer(int i) const { return any(i).type_index == kTVMFFIInt; }

  template <class T>
  T& object(int i, const char* name) const {
    const TVMFFIAny& arg = any(i);
    if (arg.type_index != Boxed<T>::type_index()) {
      throw ArgumentTypeError(name, ": expected a ", T::kTypeKey, ", got ", description(i));
    }
    return reinterpret_cast<Boxed<T>*>(arg.v_obj)->value;
  }

 private:
  const TVMFFIAny& any(int i) const;

  const TVMFFIAny* args_;
  int32_t count_;
};

// A tensor that the adapter made. tvm-ffi counts its references. Once it is returned, it is a tensor of the caller's framework.
class OwnedTensor {
 public:
  // Allocates with the caller's allocator (`torch.empty`, on the caller's stream) if an argument was a tensor of its
  // framework, else with this library.
  static OwnedTensor allocate(DType dtype, Device device, std::initializer_list<int64_t> shape);
  static OwnedTensor allocate(TensorView dense);  // of the same dtype, device and shape

  // Returns a tensor over memory that `owner` keeps alive.
  static OwnedTensor share(const TensorView& view, std::shared_ptr<const void> owner);

  OwnedTensor(OwnedTensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  OwnedTensor& operator=(OwnedTensor&&) = delete;
  ~OwnedTensor();

  TensorView view() const;
  TVMFFIObjectHandle release() { return std::exchange(handle_, nullptr); }

 private:
  explicit OwnedTensor(TVMFFIObjectHandle handle) : handle_(handle) {}

  TVMFFIObjectHandle handle_;
};

// The arrays that lie in the memory of a batch. fill_list() makes arrays of a framework from them, for each batch: one
// allocation and one call take a third of the time that returning the arrays one by one takes.
class TensorSet {
 public:
  // Takes views without data, and the offset of each from the start of the memory, in bytes.
  TensorSet(const std::vector<TensorView>& views, const std::vector<int64_t>& offsets);

  // Puts these arrays of `memory` into a Python list; each array keeps the memory alive. `exchange` is the address of
  // the framework's DLPackExchangeAPI; `list` that of a list as long as the views. Takes Python's lock. Throws
  // PythonRaised if the framework refuses an array.
  static void fill_list(const std::shared_ptr<const TensorSet>& set, const std::shared_ptr<void>& memory,
                        int64_t exchange, int64_t list);

 private:
  struct Shared;

  std::vector<DLTensor> tensors_;
  std::vector<int64_t> extents_;  // shapes and strides of all tensors
};

class Result {
 public:
  explicit Result(TVMFFIAny* out) : out_(out) {}

  void set(int64_t value);
  void set(bool value);
  void set(std::string_view value);
  void set(OwnedTensor tensor);

  template <class T>
  void set_object(T value) {
    void* memory = ::operator new(sizeof(Boxed<T>));
    auto* boxed = new (memory) Boxed<T>{{}, std::move(value)};
    boxed->header.combined_ref_count = (uint64_t{1} << 32) | 1;  // one strong reference, which the caller gets
    boxed->header.type_index = Boxed<T>::type_index();
    boxed->header.deleter = Boxed<T>::deleter;
    out_->type_index = boxed->header.type_index;
    out_->zero_padding = 0;
    out_->v_obj = &boxed->header;
  }

 private:
  TVMFFIAny* out_;
};

// Returns the caller's current stream on a device.
CudaStream current_stream(Device device);

// Thrown if Python has already raised, such as a KeyboardInterrupt.
struct PythonRaised {};

// Throws PythonRaised if a signal's handler in Python raised.
void check_signals();

// Passes the current exception to tvm-ffi; call it in a catch block.
void raise_current_exception();

// Runs body and turns what it throws into a raised tvm-ffi error; returns 0 or -1.
template <class Body>
int guarded(const Body& body) {
  try {
    body();
    return 0;
  } catch (...) {
    raise_current_exception();
    return -1;
  }
}

}  // namespace robocache::ffi

#define ROBOCACHE_FFI(name, args, result)                                                                            \
  static void ffi_##name([[maybe_unused]] const ::robocache::ffi::Args& args,                                        \
                         [[maybe_unused]] ::robocache::ffi::Result& result);                                         \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##name(void*, const TVMFFIAny* raw, int32_t count, \
                                                                         TVMFFIAny* out) {                           \
    return ::robocache::ffi::guarded([&] {                                                                           \
      ::robocache::ffi::Result into(out);                                                                            \
      ffi_##name(::robocache::ffi::Args(raw, count), into);                                                          \
    });                                                                                                              \
  }                                                                                                                  \
  static void ffi_##name([[maybe_unused]] const ::robocache::ffi::Args& args,                                        \
                         [[maybe_unused]] ::robocache::ffi::Result& result)
