#include "robocache/core/fields.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <type_traits>

namespace robocache {

enum class Gait : uint8_t { kWalk, kTrot, kGallop };
template <>
struct EnumNames<Gait> {
  static constexpr std::string_view names[] = {"walk", "trot", "gallop"};
};

namespace {

struct Legs {
  int count = 4;
  std::optional<double> length_m = {};

  static constexpr auto fields() {
    return std::tuple(Field{"count", &Legs::count}, Field{"length_m", &Legs::length_m});
  }
};

struct Robot {
  Gait gait = Gait::kTrot;
  Legs legs = {};

  static constexpr auto fields() { return std::tuple(Field{"gait", &Robot::gait}, Field{"legs", &Robot::legs}); }
};

struct Describe {
  std::string& text;

  template <class T>
  void operator()(const char* name, const T& value) const {
    text += name;
    if constexpr (HasFields<T>) {
      text += "(";
      for_each_field(value, *this);
      text += ")";
    } else if constexpr (HasNames<T>) {
      text += "=" + std::string(name_of(value)) + " ";
    } else if constexpr (std::is_same_v<T, int>) {
      text += "=" + std::to_string(value) + " ";
    } else {
      text += value ? "=given " : "=none ";
    }
  }
};

TEST(Fields, AreListedInOrderWithDefaults) {
  std::string text;
  const Robot robot;
  for_each_field(robot, Describe{text});
  EXPECT_EQ(text, "gait=trot legs(count=4 length_m=none )");
}

TEST(Fields, AreWritten) {
  Legs legs;
  for_each_field(legs, [](const char*, auto& value) { value = 6; });
  EXPECT_EQ(legs.count, 6);
  EXPECT_EQ(legs.length_m, 6.0);
}

TEST(EnumNames, AreReadBack) {
  EXPECT_EQ(value_of<Gait>("gallop", "gait"), Gait::kGallop);
  try {
    value_of<Gait>("run", "gait");
    FAIL();
  } catch (const ArgumentError& error) {
    EXPECT_STREQ(error.what(), "gait: expected 'walk', 'trot' or 'gallop', got 'run'");
  }
}

}  // namespace
}  // namespace robocache
