// Typed errors. Each message names the argument or file, what was expected and what came.
#pragma once

#include <stdexcept>

#include "robocache/core/concat.hpp"

namespace robocache {

// Base of all errors this library throws; catch it to catch them all.
struct Error : std::runtime_error {
  // The message is made of these texts and numbers.
  template <class... Parts>
  explicit Error(const Parts&... parts) : std::runtime_error(concat(parts...)) {}
};

// An argument has the right type but a value that cannot be used (Python: also a ValueError).
struct ArgumentError : Error {
  using Error::Error;
};

// An argument has the wrong type or dtype (Python: also a TypeError).
struct ArgumentTypeError : Error {
  using Error::Error;
};

// A file is missing, damaged or cannot be written. The message begins with its path and, if there is one, the byte
// offset or row (Python: also an OSError).
struct FileError : Error {
  using Error::Error;
};

// An encoded frame is damaged, is no frame, or has another codec or shape than expected (Python: also a ValueError).
struct FrameError : Error {
  using Error::Error;
};

// A live stream is too far behind for the batch, or has forgotten rows that the batch needs (Python: also a
// RuntimeError).
struct StaleError : Error {
  using Error::Error;
};

// The device or its driver refused: no such device, out of memory, a failed launch (Python: also a RuntimeError).
struct DeviceError : Error {
  using Error::Error;
};

// There is not enough memory on a device, or not enough pinned or shared memory on the host.
struct OutOfMemory : DeviceError {
  using DeviceError::DeviceError;
};

}  // namespace robocache
