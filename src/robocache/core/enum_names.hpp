// The names of an enum's values, listed once.
#pragma once

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include "robocache/core/error.hpp"

namespace robocache {

// The names of an enum's values, in the values' order from 0 on:
//   template <> struct EnumNames<Edges> { static constexpr std::string_view names[] = {"pad", "drop"}; };
template <class Enum>
struct EnumNames;

template <class Enum>
concept HasNames = requires { EnumNames<Enum>::names; };

template <HasNames Enum>
constexpr std::string_view name_of(Enum value) {
  return EnumNames<Enum>::names[static_cast<size_t>(value)];
}

// Returns the value with that name. Throws ArgumentError that names the argument and lists the names.
template <HasNames Enum>
Enum value_of(std::string_view name, std::string_view argument) {
  constexpr size_t kCount = std::size(EnumNames<Enum>::names);
  std::string names;
  for (size_t value = 0; value < kCount; ++value) {
    const std::string_view known = EnumNames<Enum>::names[value];
    if (known == name) return static_cast<Enum>(value);
    names.append(value == 0 ? "'" : value + 1 < kCount ? ", '" : " or '").append(known).append("'");
  }
  throw ArgumentError(std::string(argument) + ": expected " + names + ", got '" + std::string(name) + "'");
}

}  // namespace robocache
