// Calls on torch's own tensors, as most are: without what tvm-ffi does for every kind of argument and every framework, which
// takes longer than all else that a small call does.
#include <tvm/ffi/extra/c_env_api.h>

#include <array>
#include <cstring>
#include <deque>
#include <string>

#include "robocache/ffi/arguments.hpp"
#include "robocache/ffi/ffi.hpp"
#include "robocache/ffi/python.hpp"

namespace robocache::ffi {
namespace {

constexpr Py_ssize kMostArguments = 96;
constexpr size_t kMostTensors = 32;

// A reference to an object of Python's, or to none.
class Owned {
 public:
  explicit Owned(void* object) : object_(object) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    static const auto drop = python<void(void*)>("Py_DecRef");
    drop(object_);
  }

  void* get() const { return object_; }

 private:
  void* object_;
};

// A new reference to it.
void* kept(void* object) {
  static const auto keep = python<void(void*)>("Py_IncRef");
  keep(object);
  return object;
}

template <class... Arguments>
void* called(void* function, Arguments... arguments) {
  static const auto call = python<void*(void*, ...)>("PyObject_CallFunctionObjArgs");
  return call(function, arguments..., static_cast<void*>(nullptr));
}

void* attribute(void* object, void* name) {
  static const auto get = python<void*(void*, void*)>("PyObject_GetAttr");
  return get(object, name);
}

void* item(void* tuple, Py_ssize place) {
  static const auto get = python<void*(void*, Py_ssize)>("PyTuple_GetItem");
  return get(tuple, place);
}

bool is_true(void* object) {
  static void* const yes = python<void>("_Py_TrueStruct");
  return object == yes;
}

bool is_false(void* object) {
  static void* const no = python<void>("_Py_FalseStruct");
  return object == no;
}

// What a call asks of torch; null where there is none, or none whose tensors C can take. `find`: of Python, gives a tuple of
// these or None.
struct Torch {
  void* tensor;
  void* is_neg;
  void* requires_grad;  // the attribute's name
  void* is_grad_enabled;
  void* forward_ad;
  void* current_level;  // the attribute's name
  const DLPackExchangeAPI* api;

  static const Torch* found(void* find) {
    static Torch torch{};
    if (torch.api != nullptr) return &torch;
    static void* const none = python<void>("_Py_NoneStruct");
    static const auto pointer = python<void*(void*)>("PyLong_AsVoidPtr");
    void* const parts = called(find);  // for good, where it is something
    if (parts == nullptr || parts == none) return nullptr;
    const auto* const api = static_cast<const DLPackExchangeAPI*>(pointer(item(parts, 6)));
    if (api->dltensor_from_py_object_no_sync == nullptr || api->current_work_stream == nullptr) return nullptr;
    torch = {item(parts, 0), item(parts, 1), item(parts, 2), item(parts, 3), item(parts, 4), item(parts, 5), api};
    return &torch;
  }

  // Whether forward-mode differentiation is at work.
  bool has_tangents() const {
    static const auto number = python<long(void*)>("PyLong_AsLong");
    const Owned level(attribute(forward_ad, current_level));
    return level.get() == nullptr || number(level.get()) >= 0;
  }

  // Whether the library may have the tensor: its sign is applied, and no gradient of it is recorded. Those of whole numbers
  // have neither to ask for, and bfloat16 is no part of a complex number whose sign could wait.
  bool leaves(void* object, DLDataType dtype) const {
    if (dtype.code != kDLFloat && dtype.code != kDLBfloat && dtype.code != kDLComplex) return true;
    if (dtype.code != kDLBfloat && !is_false(Owned(called(is_neg, object)).get())) return false;
    const Owned records(attribute(object, requires_grad));
    return is_false(records.get()) || (is_true(records.get()) && is_false(Owned(called(is_grad_enabled)).get()));
  }
};

// The arguments of a call as tvm-ffi has them: views, valid as long as Python's are.
class DirectCall {
 public:
  explicit DirectCall(const Torch& torch) : torch_(torch) {}

  // Whether the next argument is one that goes directly. Python may have an error to forget where not.
  bool take(void* object) {
    static void* const none = python<void>("_Py_NoneStruct");
    static void* const of_int = python<void>("PyLong_Type");
    static void* const of_float = python<void>("PyFloat_Type");
    static void* const of_str = python<void>("PyUnicode_Type");
    static const auto type_of = python<void*(void*)>("PyObject_Type");
    static const auto whole = python<long long(void*, int*)>("PyLong_AsLongLongAndOverflow");
    static const auto real = python<double(void*)>("PyFloat_AsDouble");
    static const auto utf8 = python<const char*(void*, Py_ssize*)>("PyUnicode_AsUTF8AndSize");
    TVMFFIAny& into = arguments_[static_cast<size_t>(count_++)];
    into = {};
    if (object == none) return true;
    if (is_true(object) || is_false(object)) {
      into.type_index = kTVMFFIBool;
      into.v_int64 = is_true(object) ? 1 : 0;
      return true;
    }
    const Owned type(type_of(object));
    if (type.get() == torch_.tensor) return take_tensor(object, into);
    if (type.get() == of_int) {
      int overflow = 0;
      into.type_index = kTVMFFIInt;
      into.v_int64 = whole(object, &overflow);
      return overflow == 0;
    }
    if (type.get() == of_float) {
      into.type_index = kTVMFFIFloat;
      into.v_float64 = real(object);
      return true;
    }
    if (type.get() != of_str) return false;
    Py_ssize size = 0;
    into.type_index = kTVMFFIRawStr;
    into.v_c_str = utf8(object, &size);
    return into.v_c_str != nullptr && std::strlen(into.v_c_str) == static_cast<size_t>(size);
  }

  // Whether a tensor is among them; finds out which stream is the caller's. Python may have an error to forget where not.
  bool is_torch() {
    if (tensor_count_ == 0) return false;
    return !on_device() || torch_.api->current_work_stream(device_.device_type, device_.device_id, &stream_) == 0;
  }

  // Without Python's lock, on the caller's stream and with its allocator, as tvm-ffi calls; what `function` returns.
  int run(TVMFFISafeCallType function, TVMFFIAny* result) {
    static const auto give_lock = python<void*()>("PyEval_SaveThread");
    static const auto take_lock = python<void(void*)>("PyEval_RestoreThread");
    TVMFFIStreamHandle stream_before = nullptr;
    DLPackManagedTensorAllocator allocator_before = nullptr;
    if (on_device()) TVMFFIEnvSetStream(device_.device_type, device_.device_id, stream_, &stream_before);
    TVMFFIEnvSetDLPackManagedTensorAllocator(torch_.api->managed_tensor_allocator, 0, &allocator_before);
    void* const thread = give_lock();
    const int code = function(nullptr, arguments_.data(), count_, result);
    take_lock(thread);
    TVMFFIEnvSetDLPackManagedTensorAllocator(allocator_before, 0, nullptr);
    if (on_device()) TVMFFIEnvSetStream(device_.device_type, device_.device_id, stream_before, nullptr);
    return code;
  }

 private:
  bool take_tensor(void* object, TVMFFIAny& into) {
    if (tensor_count_ == kMostTensors) return false;
    DLTensor& tensor = tensors_[tensor_count_++];
    if (torch_.api->dltensor_from_py_object_no_sync(object, &tensor) != 0) return false;
    if (!torch_.leaves(object, tensor.dtype)) return false;
    if (!on_device()) device_ = tensor.device;
    into.type_index = kTVMFFIDLTensorPtr;
    into.v_ptr = &tensor;
    return true;
  }

  bool on_device() const { return device_.device_type != kDLCPU; }

  const Torch& torch_;
  int32_t count_ = 0;
  size_t tensor_count_ = 0;
  DLDevice device_{kDLCPU, 0};
  void* stream_ = nullptr;
  std::array<TVMFFIAny, kMostArguments> arguments_;
  std::array<DLTensor, kMostTensors> tensors_;
};

// A new reference to torch's tensor of it, whose reference it takes; null where Python has raised.
void* as_torch(const Torch& torch, TVMFFIObjectHandle tensor) {
  DLManagedTensorVersioned* managed = nullptr;
  const int code = TVMFFITensorToDLPackVersioned(tensor, &managed);
  TVMFFIObjectDecRef(tensor);
  void* object = nullptr;
  if (code != 0 || torch.api->managed_tensor_to_py_object_no_sync(managed, &object) != 0) return nullptr;
  return object;
}

// None, a tensor, or a list of tensors and Nones of Arrays; null where Python has raised.
void* as_python(const Torch& torch, const TVMFFIAny& result) {
  static void* const none = python<void>("_Py_NoneStruct");
  static const auto list_of = python<void*(Py_ssize)>("PyList_New");
  static const auto put = python<int(void*, Py_ssize, void*)>("PyList_SetItem");
  if (result.type_index == kTVMFFITensor) return as_torch(torch, result.v_obj);
  if (result.type_index != Boxed<Arrays>::type_index()) return kept(none);
  auto& arrays = reinterpret_cast<Boxed<Arrays>*>(result.v_obj)->value.arrays;
  void* const list = list_of(static_cast<Py_ssize>(arrays.size()));
  bool whole = list != nullptr;
  for (size_t i = 0; whole && i < arrays.size(); ++i) {
    void* const object = arrays[i] ? as_torch(torch, arrays[i]->release()) : kept(none);
    whole = object != nullptr && put(list, static_cast<Py_ssize>(i), object) == 0;
  }
  TVMFFIObjectDecRef(result.v_obj);
  if (whole) return list;
  const Owned drop(list);
  return nullptr;
}

struct Method {  // Python's PyMethodDef
  const char* name;
  void* (*call)(void*, void* const*, Py_ssize);
  int flags;
  const char* text;
};

// What a direct function is made of.
struct Direct {
  std::string name;
  TVMFFISafeCallType function;
  void* raise_again;
  void* find_torch;
  Method method{};
};

void* call_directly(void* self, void* const* arguments, Py_ssize count) {
  static void* const not_implemented = python<void>("_Py_NotImplementedStruct");
  static const auto pointer = python<void*(void*)>("PyLong_AsVoidPtr");
  static const auto clear_error = python<void()>("PyErr_Clear");
  const auto& direct = *static_cast<const Direct*>(pointer(self));
  const Torch* const torch = Torch::found(direct.find_torch);
  const auto take_all = [&](DirectCall& call) {
    for (Py_ssize i = 0; i < count; ++i) {
      if (!call.take(arguments[i])) return false;
    }
    return call.is_torch();
  };
  if (torch != nullptr && count <= kMostArguments && !torch->has_tangents()) {
    DirectCall call(*torch);
    if (take_all(call)) {
      TVMFFIAny result{};
      return call.run(direct.function, &result) == 0 ? as_python(*torch, result) : called(direct.raise_again);
    }
  }
  clear_error();
  return kept(not_implemented);
}

}  // namespace

// The error of the call before.
ROBOCACHE_FFI(raise_again, args, result) { throw RaisedBefore(); }

// A function of Python's, which is the caller's, around one of the library's that gives nothing, an array or Arrays. It takes
// None, True, False, int, float, str and torch.Tensor, not what is derived of them, and gives NotImplemented, having done
// nothing, where something else came, torch records a gradient or tangents of a tensor or has not applied its sign. To
// those who call with Python's lock. `raise_again` and `find_torch` (Torch::found) are Python's.
extern "C" __attribute__((visibility("default"))) void* robocache_direct(const char* name, TVMFFISafeCallType function,
                                                                         void* raise_again, void* find_torch) {
  constexpr int kFastCall = 0x0080;  // METH_FASTCALL
  static std::deque<Direct> all;     // for good, where they are
  static const auto make = python<void*(Method*, void*, void*)>("PyCFunction_NewEx");
  static const auto number = python<void*(void*)>("PyLong_FromVoidPtr");
  Direct& direct = all.emplace_back(Direct{name, function, kept(raise_again), kept(find_torch)});
  direct.method = {direct.name.c_str(), call_directly, kFastCall, nullptr};
  const Owned self(number(&direct));
  return make(&direct.method, self.get(), nullptr);
}

}  // namespace robocache::ffi
