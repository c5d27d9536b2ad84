// What the adapter calls of Python's stable ABI itself. This library links no Python, the process that calls has one.
#pragma once

#include <dlfcn.h>

#include <cstddef>

namespace robocache::ffi {

using Py_ssize = ptrdiff_t;

// A function or an object of Python's, by its name.
template <class Symbol>
Symbol* python(const char* name) {
  return reinterpret_cast<Symbol*>(dlsym(RTLD_DEFAULT, name));
}

// Python's lock, whether this thread has it or not.
class PythonLock {
 public:
  PythonLock() : state_(ensure()) {}
  ~PythonLock() { release(state_); }
  PythonLock(const PythonLock&) = delete;
  PythonLock& operator=(const PythonLock&) = delete;

 private:
  static int ensure() {
    static const auto take = python<int()>("PyGILState_Ensure");
    return take();
  }
  static void release(int state) {
    static const auto give = python<void(int)>("PyGILState_Release");
    give(state);
  }

  int state_;
};

}  // namespace robocache::ffi
