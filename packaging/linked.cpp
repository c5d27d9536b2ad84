// The text has the versions of the components linked into this library, from their headers and the compiler. finish_wheel.py
// writes the SBOM from this text, and the gates compare the two.

#include <cstddef>

#define ROBOCACHE_TEXT_OF(x) #x
#define ROBOCACHE_TEXT(x) ROBOCACHE_TEXT_OF(x)

#ifdef ROBOCACHE_NVCC_VERSION
#include <cuda_runtime_api.h>

#include <cuda/version>
#define ROBOCACHE_LINKED \
  "nvcc=" ROBOCACHE_NVCC_VERSION ";cudart=" ROBOCACHE_TEXT(CUDART_VERSION) ";cccl=" ROBOCACHE_TEXT(CCCL_VERSION) ";"
#else
#include <cstdio>
// <cstdio> comes before jpeglib.h, which uses FILE.
#include <jpeglib.h>
#include <zlib.h>

#include <nlohmann/json.hpp>
#define ROBOCACHE_LINKED                                                                                       \
  "libjpeg-turbo=" ROBOCACHE_TEXT(                                                                             \
      LIBJPEG_TURBO_VERSION) ";zlib=" ZLIB_VERSION                                                             \
                             ";nlohmann-json=" ROBOCACHE_TEXT(NLOHMANN_JSON_VERSION_MAJOR) "." ROBOCACHE_TEXT( \
                                 NLOHMANN_JSON_VERSION_MINOR) "." ROBOCACHE_TEXT(NLOHMANN_JSON_VERSION_PATCH) ";"
#endif

// `retain` keeps the text if the linker drops unused data.
[[gnu::used, gnu::retain]] extern const char robocache_linked[] =
    "robocache-linked:" ROBOCACHE_LINKED "libstdc++=" ROBOCACHE_TEXT(__GNUC__) "." ROBOCACHE_TEXT(
        __GNUC_MINOR__) "." ROBOCACHE_TEXT(__GNUC_PATCHLEVEL__) ";zig=" ROBOCACHE_ZIG_VERSION ";";
