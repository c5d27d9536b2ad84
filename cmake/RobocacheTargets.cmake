# The compile options of every target of this project, and functions for targets that are made several times.

# Flags that change results are the same in every build: no contraction of a*b+c, no fast-math, on either compiler.
function(robocache_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    CUDA_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
      -Wno-missing-field-initializers>
    # GCC 12 warns about its own std::string operator+ (GCC bug 105651).
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
    # g++ takes sources that are compiled together for headers of one source.
    $<$<AND:$<BOOL:${CMAKE_UNITY_BUILD}>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-Wno-subobject-linkage>
    # Clang warns about code in libstdc++ 12's own std::stable_sort, and about `|` that avoids a branch.
    $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-declarations -Wno-bitwise-instead-of-logical>
    # CMake 3.25 knows no CUDA_STANDARD 20.
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --fmad=false --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-ffp-contract=off>)
  if(ROBOCACHE_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Werror>
      $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>)
  endif()
  if(ROBOCACHE_SANITIZE)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${ROBOCACHE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer>
      # Clang's check would refuse the address of a row of an absent array, which is computed but never read.
      $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=pointer-overflow>)
    target_link_options(${target} PUBLIC -fsanitize=${ROBOCACHE_SANITIZE})
  endif()
endfunction()

# Compiles SOURCES (*_cpu_kernels.cpp) into `target` once for each instruction set, each time in a namespace of its own:
# ROBOCACHE_ISA is baseline, v3 (AVX2) or v4 (AVX-512). The library chooses at run time.
function(robocache_cpu_kernels target)
  set(levels baseline)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    list(APPEND levels v3 v4)
    # Under a sanitizer each of them takes as long to compile as the rest of the library. Threads share data in the same
    # way in all of them, and no test can run AVX-512 on a processor without it.
    if(ROBOCACHE_SANITIZE STREQUAL thread)
      set(levels baseline)
    elseif(ROBOCACHE_SANITIZE)
      file(STRINGS /proc/cpuinfo avx512 REGEX avx512vl LIMIT_COUNT 1)
      if(NOT avx512)
        list(REMOVE_ITEM levels v4)
      endif()
    endif()
    if(ROBOCACHE_SANITIZE)
      list(LENGTH levels count)
      set(isa_count ROBOCACHE_ISA_COUNT=${count})
      target_compile_definitions(${target} PUBLIC ${isa_count})
    endif()
  endif()
  foreach(isa IN LISTS levels)
    set(objects ${target}_kernels_${isa})
    add_library(${objects} OBJECT ${ARGN})
    set_target_properties(${objects} PROPERTIES UNITY_BUILD OFF)  # few long files, one per target
    robocache_compile_options(${objects})
    target_include_directories(${objects} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_compile_definitions(${objects} PRIVATE ROBOCACHE_ISA=${isa} ${isa_count})
    if(NOT isa STREQUAL baseline)
      target_compile_options(${objects} PRIVATE -march=x86-64-${isa})
    endif()
    if(ROBOCACHE_SANITIZE MATCHES address)  # by calls, which compile in two thirds of the time
      target_compile_options(${objects} PRIVATE
        $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=asan-instrumentation-with-call-threshold=0>
        $<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-mllvm -asan-instrumentation-with-call-threshold=0>)
    endif()
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
endfunction()

# A shared library for other programs: it exports the names in the version script, and contains its own C++ runtime.
function(robocache_exports target version_script)
  set_target_properties(${target} PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/${version_script})
  target_link_options(${target} PRIVATE
    -Wl,--version-script=${PROJECT_SOURCE_DIR}/${version_script} -Wl,--gc-sections)
  if(NOT ROBOCACHE_ZIG)
    target_link_options(${target} PRIVATE -Wl,--exclude-libs,ALL)
    if(NOT ROBOCACHE_SANITIZE)
      target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
    endif()
  endif()
endfunction()

# Finds the C headers of apache-tvm-ffi, from the Python of the build; nothing of it is linked. The package is found but
# not imported, because importing it may import torch.
function(robocache_find_tvm_ffi_headers variable)
  find_package(Python REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import importlib.util as u; print(u.find_spec('tvm_ffi').submodule_search_locations[0] + '/include')"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT EXISTS "${found}/tvm/ffi/c_api.h")
    message(FATAL_ERROR "The headers of apache-tvm-ffi are missing: ${Python_EXECUTABLE} -m pip install apache-tvm-ffi")
  endif()
  set(${variable} ${found} PARENT_SCOPE)
endfunction()
