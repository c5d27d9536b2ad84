// A CUDA plugin of another build: backend_test.cpp opens it to see it refused.
#include <cstdlib>

#include "robocache/core/backend.hpp"

extern "C" __attribute__((visibility("default"))) const char* robocache_cuda_abi() { return "0123456789abcdef"; }

// Whoever asks for the table of a plugin of another build misreads it.
extern "C" __attribute__((visibility("default"))) const robocache::CudaBackend* robocache_cuda_backend() {
  std::abort();
}
