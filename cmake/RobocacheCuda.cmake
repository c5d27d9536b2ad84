# Decides whether librobocache_cuda.so is built and for which GPUs, and prints the decision, because check_language
# falls back silently.

# Resolves AUTO and ALL. AUTO means the GPUs of this machine. Without a GPU it means the code that builds fastest: PTX,
# which the driver translates at first use. PTX of sm_90, because launches overlap only in code for sm_90 and later.
function(robocache_cuda_architectures variable why)
  set(architectures ${ROBOCACHE_CUDA_ARCHITECTURES})
  set(reason "asked for")
  if(architectures STREQUAL "ALL")
    if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
      set(architectures 90-real 90-virtual 100-real 110-real 120-real)  # GH200, GB200, Jetson Thor, DGX Spark
    else()
      set(architectures 80-real 90-real 90-virtual 100-real 120-real)
    endif()
    set(reason "every supported GPU")
  elseif(architectures STREQUAL "AUTO")
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE gpus ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" architectures "${gpus}")
    list(FILTER architectures EXCLUDE REGEX "^[0-7]\\.")
    list(REMOVE_DUPLICATES architectures)
    list(TRANSFORM architectures REPLACE "\\." "")
    list(TRANSFORM architectures APPEND "-real")
    set(reason "the GPUs of this machine")
    if(NOT architectures)
      set(architectures 90-virtual)
      set(reason "this machine has no GPU from sm_80 on; the driver of any from sm_90 on translates it at first use")
    endif()
  endif()
  set(${variable} "${architectures}" PARENT_SCOPE)
  set(${why} ${reason} PARENT_SCOPE)
endfunction()

set(ROBOCACHE_CUDA_ENABLED OFF)
if(ROBOCACHE_CUDA AND NOT ROBOCACHE_SANITIZE)  # AUTO counts as true; OFF, 0 and FALSE do not
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # This is set before the language is enabled, or CMake would write its own default into the cache.
    robocache_cuda_architectures(CMAKE_CUDA_ARCHITECTURES why)
    enable_language(CUDA)
    set(ROBOCACHE_CUDA_ENABLED ON)
    message(STATUS "RoboCache: building the CUDA plugin with ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION} for "
                   "${CMAKE_CUDA_ARCHITECTURES} (${why}), about three minutes for each on two cores. "
                   "ROBOCACHE_CUDA_ARCHITECTURES chooses others: ALL for every supported GPU, or names as "
                   "90-real;120-real. ROBOCACHE_CUDA=OFF builds no plugin.")
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
