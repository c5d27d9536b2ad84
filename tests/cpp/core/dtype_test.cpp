#include "robocache/core/dtype.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "robocache/core/error.hpp"
#include "robocache/core/half.hpp"
#include "tests/cpp/expect_refused.hpp"

namespace robocache {
namespace {

struct Expected {
  DType dtype;
  std::string_view name;
  int64_t size;
  bool is_float;
};

constexpr Expected kExpected[] = {
    {DType::kBool, "bool", 1, false},        {DType::kInt8, "int8", 1, false},
    {DType::kUInt8, "uint8", 1, false},      {DType::kInt16, "int16", 2, false},
    {DType::kUInt16, "uint16", 2, false},    {DType::kInt32, "int32", 4, false},
    {DType::kUInt32, "uint32", 4, false},    {DType::kInt64, "int64", 8, false},
    {DType::kUInt64, "uint64", 8, false},    {DType::kFloat16, "float16", 2, true},
    {DType::kBFloat16, "bfloat16", 2, true}, {DType::kFloat32, "float32", 4, true},
    {DType::kFloat64, "float64", 8, true},
};

TEST(DType, EachHasItsNameSizeAndKind) {
  for (const Expected& expected : kExpected) {
    EXPECT_EQ(dtype_name(expected.dtype), expected.name);
    EXPECT_EQ(dtype_from_name(expected.name), expected.dtype);
    EXPECT_EQ(dtype_size(expected.dtype), expected.size) << expected.name;
    EXPECT_EQ(is_floating(expected.dtype), expected.is_float) << expected.name;
  }
  static_assert(sizeof(Float16) == 2 && sizeof(BFloat16) == 2);
}

TEST(DType, AnUnknownNameIsRefusedWithTheKnownOnes) {
  for (const char* name : {"", "float8", "float", "Float32", "float32 ", "uint"}) {
    test::expect_refused<ArgumentError>([&] { dtype_from_name(name, "batch_dtype"); },
                                        "batch_dtype: expected one of bool, int8, ",
                                        "bfloat16, float32, float64, got '" + std::string(name) + "'");
  }
}

}  // namespace
}  // namespace robocache
