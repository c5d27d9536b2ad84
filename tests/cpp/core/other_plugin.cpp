// A CUDA plugin of another build. backend_test.cpp opens it and expects a refusal.
#include <cstdlib>

#include "robocache/core/backend.hpp"

extern "C" __attribute__((visibility("default"))) const char* robocache_cuda_abi() { return "0123456789abcdef"; }

// The table of another build must not be read, so nobody may ask for it.
extern "C" __attribute__((visibility("default"))) const robocache::CudaBackend* robocache_cuda_backend() {
  std::abort();
}
