// A fuzz target: libFuzzer calls `LLVMFuzzerTestOneInput` with bytes that it changes to reach more of the code. A target
// must not crash, read outside the bytes or throw anything but `Error`. `TARGET --seeds FOLDER` writes the initial
// inputs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "robocache/core/error.hpp"

std::vector<std::string> seeds();  // the initial inputs of the target

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);

// libFuzzer finds this function by its name.
[[gnu::used]] inline int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::strcmp((*argv)[1], "--seeds") != 0) return 0;
  const std::filesystem::path folder = (*argv)[2];
  std::filesystem::create_directories(folder);
  size_t number = 0;
  for (const std::string& seed : seeds()) {
    std::ofstream(folder / ("seed-" + std::to_string(number++)), std::ios::binary) << seed;
  }
  std::exit(0);
}

namespace robocache::fuzz {

// Aborts if two results that must agree do not.
inline void expect(bool is_so, const std::string& what) {
  if (is_so) return;
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

// Returns the error message of `body`, or "".
template <class Body>
std::string refusal(const Body& body) {
  try {
    body();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace robocache::fuzz
