#include "robocache/batch/layout.hpp"

#include <gtest/gtest.h>

#include <cstdint>

#include "robocache/core/error.hpp"

namespace robocache {
namespace {

TEST(BatchLayout, PutsArraysOneAfterAnother) {
  BatchLayout layout(10);
  EXPECT_EQ(layout.bytes(), 0);
  EXPECT_EQ(layout.add("a", DType::kFloat32, {3, 7}, "a"), 0);
  EXPECT_EQ(layout.bytes(), 1024);  // 840 bytes are used
  EXPECT_EQ(layout.add("b", DType::kBool, {}, "b"), 1024);
  EXPECT_EQ(layout.add("c", DType::kInt64, {0}, "c"), 1280);
  EXPECT_EQ(layout.bytes(), 1280);
}

TEST(BatchLayout, RefusesTwoArraysWithOneName) {
  BatchLayout layout(1);
  layout.add("a_is_pad", DType::kBool, {1}, "the padding of stream 'a'");
  EXPECT_THROW(layout.add("a_is_pad", DType::kFloat32, {1}, "stream 'a_is_pad'"), ArgumentError);
}

TEST(BatchLayout, RefusesMoreBytesThanThereAreAddresses) {
  constexpr int64_t kSteps = int64_t{1} << 18;
  BatchLayout layout(int64_t{1} << 30);  // 2^64 bytes, which would wrap to 0
  EXPECT_THROW(layout.add("a", DType::kFloat32, {kSteps, 1 << 14}, "a"), ArgumentError);
  EXPECT_THROW(layout.add("a", DType::kFloat64, {kSteps, int64_t{1} << 32, int64_t{1} << 11}, "a"), ArgumentError);
  EXPECT_EQ(layout.bytes(), 0);
  layout.add("a", DType::kUInt8, {1 << 26}, "a");
  EXPECT_THROW(layout.add("b", DType::kUInt8, {1}, "b"), ArgumentError);
}

}  // namespace
}  // namespace robocache
