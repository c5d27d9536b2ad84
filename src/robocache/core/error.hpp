// Typed errors. Every refusal names the argument or file, what was expected and what came.
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

// A file is missing, damaged or cannot be written; the message starts with its path and, where there is one, the byte
// offset or row (Python: also an OSError).
class FileError : public Error {
 public:
  using Error::Error;
};

// An encoded frame is none, is damaged, or is not of the codec or shape it should be (Python: also a ValueError).
class FrameError : public Error {
 public:
  using Error::Error;
};

// The device or its driver refused: no such device, out of memory, a failed launch (Python: also a RuntimeError).
class DeviceError : public Error {
 public:
  using Error::Error;
};

// Memory does not suffice: of a device, or pinned or shared memory of the host.
class OutOfMemory : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

}  // namespace robocache
