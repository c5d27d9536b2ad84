# Builds the libraries as ./dev wheel ships them: they run on any Linux with glibc 2.28 or later, and do not depend on
# the folder of the build. Zig provides stubs of glibc 2.28 and the linker; the C++ runtime is the compiler's own.

set(ROBOCACHE_ZIG "" CACHE FILEPATH "zig, to link the shared libraries for glibc 2.28; empty for this machine's glibc")
set(ROBOCACHE_GLIBC 2.28)

# robocache_portable(TARGET CUDA_SOURCE...): call it after robocache_exports.
function(robocache_portable target)
  if(NOT ROBOCACHE_ZIG)
    return()
  endif()
  target_sources(${target} PRIVATE packaging/glibc_2_28.cpp)
  add_library(${target}_linked OBJECT packaging/linked.cpp)
  robocache_compile_options(${target}_linked)
  target_compile_definitions(${target}_linked PRIVATE ROBOCACHE_ZIG_VERSION="${robocache_zig_version}")
  if(ARGN)
    target_compile_definitions(${target}_linked PRIVATE ROBOCACHE_NVCC_VERSION="${CMAKE_CUDA_COMPILER_VERSION}")
    target_include_directories(${target}_linked SYSTEM PRIVATE
      ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}/cccl)
  else()
    target_link_libraries(${target}_linked PRIVATE nlohmann_json::nlohmann_json JPEG::JPEG ZLIB::ZLIB)
  endif()
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_linked>)
  foreach(source IN LISTS ARGN)
    # Without these options nvcc puts random numbers and the source's absolute path into names.
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${source})
    set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS --compress-mode=size --frandom-seed=${name}
      -Xcudafe=--orig_src_path_name=${name} -Xcicc=--orig_src_path_name=${name})
  endforeach()
endfunction()

if(ROBOCACHE_ZIG)
  execute_process(COMMAND ${ROBOCACHE_ZIG} version OUTPUT_VARIABLE robocache_zig_version OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  # All three libraries are the compiler's: Zig's runtime would replace missing parts of libgcc.a, but with its own
  # memcpy, sin and log.
  foreach(library libstdc++.a libgcc_eh.a libgcc.a)
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${library}
                    OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    string(APPEND robocache_runtime " ${path}")
  endforeach()
  set(CMAKE_CXX_CREATE_SHARED_MODULE
      "${ROBOCACHE_ZIG} cc -target ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu.${ROBOCACHE_GLIBC} -shared <LINK_FLAGS> \
-o <TARGET> <OBJECTS> <LINK_LIBRARIES>${robocache_runtime}")
  set(CMAKE_CUDA_CREATE_SHARED_MODULE ${CMAKE_CXX_CREATE_SHARED_MODULE})
endif()
