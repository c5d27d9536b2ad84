// The names of an enum's values, listed once.
#pragma once

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include "robocache/core/error.hpp"

namespace robocache {

// The names of an enum's values, in the values' order from 0 on:
//   template <>
//   inline constexpr std::string_view kNames<Edges>[] = {"pad", "drop"};
template <class Enum>
inline constexpr std::nullptr_t kNames = nullptr;

template <class Enum>
concept HasNames = requires { std::size(kNames<Enum>); };

template <HasNames Enum>
constexpr std::string_view name_of(Enum value) {
  return kNames<Enum>[static_cast<size_t>(value)];
}

// Returns the value with that name. Throws ArgumentError that names the argument and lists the names.
template <HasNames Enum>
Enum value_of(std::string_view name, std::string_view argument) {
  constexpr size_t kCount = std::size(kNames<Enum>);
  std::string names;
  for (size_t value = 0; value < kCount; ++value) {
    const std::string_view known = kNames<Enum>[value];
    if (known == name) return static_cast<Enum>(value);
    names.append(value == 0 ? "'" : value + 1 < kCount ? ", '" : " or '").append(known).append("'");
  }
  throw ArgumentError(argument, ": expected ", names, ", got '", name, "'");
}

}  // namespace robocache
