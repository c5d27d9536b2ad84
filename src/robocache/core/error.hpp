// Typed errors. Each message names the argument or file, what was expected and what came.
#pragma once

#include <stdexcept>
#include <string>

namespace robocache {

// Base of all errors this library throws; catch it to catch them all.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An argument has the right type but a value that cannot be used (Python: also a ValueError).
class ArgumentError : public Error {
 public:
  using Error::Error;
};

// An argument has the wrong type or dtype (Python: also a TypeError).
class ArgumentTypeError : public Error {
 public:
  using Error::Error;
};

// A file is missing, damaged or cannot be written. The message begins with its path and, if there is one, the byte
// offset or row (Python: also an OSError).
class FileError : public Error {
 public:
  using Error::Error;
};

// An encoded frame is damaged, is no frame, or has another codec or shape than expected (Python: also a ValueError).
class FrameError : public Error {
 public:
  using Error::Error;
};

// A live stream is too far behind for the batch, or has forgotten rows that the batch needs (Python: also a RuntimeError).
class StaleError : public Error {
 public:
  using Error::Error;
};

// The device or its driver refused: no such device, out of memory, a failed launch (Python: also a RuntimeError).
class DeviceError : public Error {
 public:
  using Error::Error;
};

// There is not enough memory on a device, or not enough pinned or shared memory on the host.
class OutOfMemory : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

}  // namespace robocache
