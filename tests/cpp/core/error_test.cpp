#include "robocache/core/error.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <type_traits>

namespace robocache {
namespace {

template <class Thrown>
class EveryError : public testing::Test {};
using Errors = testing::Types<ArgumentError, ArgumentTypeError, FileError, DeviceError>;
TYPED_TEST_SUITE(EveryError, Errors);

TYPED_TEST(EveryError, IsCaughtAsErrorWithItsText) {
  try {
    throw TypeParam("values: expected this, got that");
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "values: expected this, got that");
  }
  EXPECT_THROW(throw TypeParam("text"), std::runtime_error);
}

TEST(ArgumentErrors, HaveDifferentTypes) {
  EXPECT_FALSE((std::is_base_of_v<ArgumentError, ArgumentTypeError>));
  EXPECT_FALSE((std::is_base_of_v<ArgumentTypeError, ArgumentError>));
}

}  // namespace
}  // namespace robocache
