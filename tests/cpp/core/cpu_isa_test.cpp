#include "robocache/core/cpu_isa.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace robocache {
namespace {

CpuIsa newest_supported() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("x86-64-v4")) return CpuIsa::kV4;
  if (__builtin_cpu_supports("x86-64-v3")) return CpuIsa::kV3;
#endif
  return CpuIsa::kBaseline;
}

const char* name_of(CpuIsa isa) { return isa == CpuIsa::kV4 ? "v4" : isa == CpuIsa::kV3 ? "v3" : "baseline"; }

// A process chooses once, so each test needs its own process.
class CpuIsaDeathTest : public testing::Test {
 protected:
  static void expect_choice(const char* cap, CpuIsa expected) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(
        {
          if (cap == nullptr) {
            unsetenv("ROBOCACHE_CPU_ISA");
          } else {
            setenv("ROBOCACHE_CPU_ISA", cap, 1);
          }
          exit(static_cast<int>(cpu_isa()));
        },
        testing::ExitedWithCode(static_cast<int>(expected)), "")
        << (cap == nullptr ? "not set" : cap) << ", expected " << name_of(expected);
  }
};

TEST_F(CpuIsaDeathTest, IsTheNewestThatRunsHere) { expect_choice(nullptr, newest_supported()); }

TEST_F(CpuIsaDeathTest, TheEnvironmentCapsIt) {
  expect_choice("baseline", CpuIsa::kBaseline);
  expect_choice("v3", std::min(CpuIsa::kV3, newest_supported()));
  expect_choice("v4", newest_supported());
}

}  // namespace
}  // namespace robocache
