#include "robocache/cache/npy.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/cache/files.hpp"
#include "tests/cpp/trials.hpp"

namespace robocache::cache {
namespace {

using test::contains;
using test::message_of;

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();

// Calls check_npy on a copy of exactly these bytes, so that AddressSanitizer sees a read past the end.
int64_t check(const std::string& file, DType dtype, const std::vector<int64_t>& shape) {
  const auto copy = std::make_unique_for_overwrite<std::byte[]>(file.size());
  std::memcpy(copy.get(), file.data(), file.size());
  return check_npy("x.npy", {copy.get(), file.size()}, dtype, shape);
}

// Returns a file as another program might write it.
std::string npy(int version, const std::string& dictionary, size_t data_bytes, size_t header_multiple = 64) {
  const size_t prefix_bytes = version == 1 ? 10 : 12;
  std::string header = dictionary;
  while ((prefix_bytes + header.size() + 1) % header_multiple != 0) header += ' ';
  header += '\n';
  std::string file = std::string("\x93NUMPY") + static_cast<char>(version) + '\0';
  for (size_t i = 0; i < (version == 1 ? 2U : 4U); ++i) file += static_cast<char>((header.size() >> (8 * i)) & 0xff);
  return file + header + std::string(data_bytes, '\0');
}

TEST(Npy, HeaderEqualsNumpys) {
  const std::string header = npy_header(DType::kFloat32, 12, std::vector<int64_t>{3});
  EXPECT_EQ(header.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  EXPECT_EQ(header.size(), 128u);
  EXPECT_TRUE(contains(header, "{'descr': '<f4', 'fortran_order': False, 'shape': (12, 3), }"));
  EXPECT_EQ(header.back(), '\n');
  EXPECT_TRUE(contains(npy_header(DType::kBool, 5, {}), "'|b1', 'fortran_order': False, 'shape': (5,), }"));
}

TEST(Npy, HeaderHasOneLengthForAnyNumberOfRows) {
  for (const size_t dimensions : {0, 1, 3, 7}) {
    const std::vector<int64_t> shape(dimensions, 1234567890123);
    const size_t length = npy_header(DType::kBFloat16, 0, shape).size();
    EXPECT_EQ(length % 64, 0u);
    for (const int64_t rows : {int64_t{9}, int64_t{10}, int64_t{1} << 40, kInt64Max}) {
      EXPECT_EQ(npy_header(DType::kBFloat16, rows, shape).size(), length);
    }
  }
}

TEST(Npy, EveryDTypeIsAcceptedOnlyAsItself) {
  for (int d = 0; d <= static_cast<int>(DType::kFloat64); ++d) {
    const auto dtype = static_cast<DType>(d);
    std::string file = npy_header(dtype, 2, std::vector<int64_t>{3});
    file.resize(file.size() + static_cast<size_t>(6 * dtype_size(dtype)));
    EXPECT_EQ(check(file, dtype, {2, 3}), 128);
    const DType other = dtype == DType::kFloat32 ? DType::kInt32 : DType::kFloat32;
    EXPECT_THROW(check(file, other, {2, 3}), FileError);
  }
}

TEST(Npy, VersionsOneToThreeAndKeysInAnyOrder) {
  const std::string dictionary = "{'shape':(4,),'fortran_order':False,'descr':'<i8'}";
  for (const int version : {1, 2, 3}) EXPECT_EQ(check(npy(version, dictionary, 32), DType::kInt64, {4}), 64);
  EXPECT_TRUE(contains(message_of<FileError>([&] { check(npy(4, dictionary, 32), DType::kInt64, {4}); }),
                       "x.npy: at byte 6: expected .npy format version 1.0, 2.0 or 3.0, got 4.0"));
}

TEST(Npy, RefusalsNameTheByte) {
  const auto refusal = [](const std::string& dictionary, size_t data_bytes, size_t multiple = 64) {
    return message_of<FileError>([&] { check(npy(1, dictionary, data_bytes, multiple), DType::kInt64, {4}); });
  };
  EXPECT_TRUE(contains(refusal("{'descr': '>i8', 'fortran_order': False, 'shape': (4,)}", 32),
                       "at byte 20: expected '<i8', got '>i8'"));
  EXPECT_TRUE(contains(refusal("{'descr': '<i8', 'fortran_order': True, 'shape': (4,)}", 32),
                       "expected fortran_order False, got True"));
  EXPECT_TRUE(contains(refusal("{'descr': '<i8', 'fortran_order': False, 'shape': (4, 1)}", 32),
                       "expected shape (4,), got (4, 1)"));
  EXPECT_TRUE(contains(refusal("{'descr': '<i8', 'fortran_order': False, 'shape': (4,)}", 31),
                       "expected 32 bytes of elements, got 31"));
  EXPECT_TRUE(contains(refusal("{'descr': '<i8', 'fortran_order': False, 'shape': (4,)}", 33), "got 33"));
  EXPECT_TRUE(contains(refusal("{'descr': '<i8', 'fortran_order': False, 'shape': (4,)}", 32, 16),
                       "elements at a multiple of 64 bytes"));
  for (const char* dictionary : {"{}", "{'descr': '<i8', 'fortran_order': False}", "{'descr': '<i8', 'descr': '<i8'}",
                                 "{'descr': <i8}", "{'descr': '<i8', 'fortran_order': Maybe}", "{'descr': '<i8",
                                 "['descr']", "", "{'descr': '<i8', 'fortran_order': False, 'shape': (4,), 'more': 1}",
                                 "{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999999999999,)}",
                                 "{'descr': '<i8', 'fortran_order': False, 'shape': (-4,)}",
                                 "{'descr': '<i8', 'fortran_order': False, 'shape': (4,)} extra",
                                 "{'descr': '<i8', 'fortran_order': False, 'shape': (4,"}) {
    EXPECT_TRUE(contains(refusal(dictionary, 32), "x.npy: at byte ")) << dictionary;
  }
}

TEST(Npy, EveryTruncationIsRefused) {
  const std::string file = npy(2, "{'descr': '<i8', 'fortran_order': False, 'shape': (4,), }", 32);
  for (size_t length = 0; length < file.size(); ++length) {
    EXPECT_THROW(check(file.substr(0, length), DType::kInt64, {4}), FileError) << length;
  }
}

TEST(Npy, RandomHeadersThrowAtMost) {
  const std::string file = npy(1, "{'descr': '<i8', 'fortran_order': False, 'shape': (4,), }", 32);
  std::mt19937 random(2);
  for (int i = 0; i < test::damaged_trials(20000); ++i) {
    std::string damaged = file;
    for (int change = 0; change < 3; ++change) damaged[random() % damaged.size()] = static_cast<char>(random());
    try {
      EXPECT_EQ(check(damaged, DType::kInt64, {4}), 128);
    } catch (const FileError&) {  // expected
    }
  }
}

TEST(Npy, OverflowingProductsAreErrorsUnlessEmpty) {
  EXPECT_EQ(checked_product("f", std::vector<int64_t>{}), 1);
  EXPECT_EQ(checked_product("f", std::vector<int64_t>{2, 3, 4}), 24);
  EXPECT_EQ(checked_product("f", std::vector<int64_t>{kInt64Max, 0, kInt64Max}), 0);
  EXPECT_THROW(checked_product("f", std::vector<int64_t>{kInt64Max, 2}), FileError);
  EXPECT_THROW(checked_product("f", std::vector<int64_t>{3, -1}), FileError);
}

}  // namespace
}  // namespace robocache::cache
