#include "robocache/core/device.hpp"

#include <gtest/gtest.h>

#include <string>

#include "robocache/core/error.hpp"
#include "tests/cpp/expect_refused.hpp"

namespace robocache {
namespace {

TEST(Device, NamesAreParsedBack) {
  EXPECT_EQ(device_name({}), "cpu");
  EXPECT_EQ(device_from_name("cpu"), Device{});
  EXPECT_FALSE(device_from_name("cpu").is_cuda());
  EXPECT_EQ(device_from_name("cuda"), (Device{DeviceType::kCuda, 0}));
  EXPECT_EQ(device_from_name("cuda:3"), (Device{DeviceType::kCuda, 3}));
  EXPECT_TRUE(device_from_name("cuda:3").is_cuda());
  EXPECT_EQ(device_name(device_from_name("cuda:3")), "cuda:3");
  EXPECT_NE(device_from_name("cuda:3"), device_from_name("cuda:0"));
  EXPECT_NE(device_from_name("cuda:0"), device_from_name("cpu"));
}

TEST(Device, AnUnknownNameIsRefused) {
  for (const char* name : {"", "gpu", "CPU", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda: 1", "cuda:+1",
                           "cuda:99999999999999999999"}) {
    test::expect_refused<ArgumentError>([&] { device_from_name(name); },
                                        "device: expected 'cpu', 'cuda' or 'cuda:N', got '" + std::string(name) + "'");
  }
}

}  // namespace
}  // namespace robocache
