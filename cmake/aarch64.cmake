# Cross-compiles for 64-bit ARM with Debian's g++-aarch64-linux-gnu. ROBOCACHE_AARCH64_ROOT is a folder with the
# unpacked arm64 packages of libjpeg-turbo, zlib and nlohmann-json.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_STRIP aarch64-linux-gnu-strip)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ROBOCACHE_AARCH64_ROOT)
set(CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES ${ROBOCACHE_AARCH64_ROOT}/usr/include/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${ROBOCACHE_AARCH64_ROOT} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)
