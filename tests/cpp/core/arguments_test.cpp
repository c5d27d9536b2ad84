#include "robocache/core/arguments.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>

namespace robocache {
namespace {

TEST(NumberText, IsShortAndReadable) {
  EXPECT_EQ(number_text(0.1), "0.1");
  EXPECT_EQ(number_text(-0.0), "-0");
  EXPECT_EQ(number_text(100000), "100000");
  EXPECT_EQ(number_text(9007199254740993.0), "9007199254740992");
  EXPECT_EQ(number_text(1e16), "1e+16");
  EXPECT_EQ(number_text(0.0001), "0.0001");
  EXPECT_EQ(number_text(0.00001), "1e-05");
  EXPECT_EQ(number_text(-1e-9), "-1e-09");
  EXPECT_EQ(number_text(1e-50), "1e-50");
  EXPECT_EQ(number_text(5e-324), "5e-324");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(NumberText, ReadsBackAsTheNumber) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> mantissa(-10, 10);
  std::uniform_int_distribution<int> exponent(-300, 300);
  for (int i = 0; i < 10000; ++i) {
    const double number = std::ldexp(mantissa(random), exponent(random));
    EXPECT_EQ(std::strtod(number_text(number).c_str(), nullptr), number);
  }
}

}  // namespace
}  // namespace robocache
