# Decides whether librobocache_cuda.so is built, and says so. check_language falls back without a word, hence the words.
set(ROBOCACHE_CUDA_ENABLED OFF)
if(ROBOCACHE_CUDA AND NOT ROBOCACHE_SANITIZE)  # AUTO is true; off, 0 and FALSE are not
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # Set before the language is enabled, or CMake writes its own default into the cache.
    set(CMAKE_CUDA_ARCHITECTURES ${ROBOCACHE_CUDA_ARCHITECTURES})
    enable_language(CUDA)
    set(ROBOCACHE_CUDA_ENABLED ON)
    message(STATUS "RoboCache: building the CUDA plugin with ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION} for "
                   "${ROBOCACHE_CUDA_ARCHITECTURES} (ROBOCACHE_CUDA=${ROBOCACHE_CUDA})")
  elseif(ROBOCACHE_CUDA MATCHES "^[Aa][Uu][Tt][Oo]$")
    message(STATUS "RoboCache: NO CUDA plugin in this build, no nvcc was found (ROBOCACHE_CUDA=AUTO). Set CUDACXX to "
                   "nvcc's path if there is one; ROBOCACHE_CUDA=ON makes its absence an error.")
  else()
    message(FATAL_ERROR "ROBOCACHE_CUDA=${ROBOCACHE_CUDA}, and no nvcc was found: install the CUDA toolkit, set CUDACXX "
                        "to nvcc's path, or build with ROBOCACHE_CUDA=OFF")
  endif()
else()
  message(STATUS "RoboCache: no CUDA plugin (ROBOCACHE_CUDA=${ROBOCACHE_CUDA})")
endif()
