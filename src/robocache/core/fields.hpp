// The fields of a struct, listed once. Whoever reads, describes or compares the struct goes by this list: a field that is
// added to it is added everywhere.
//
//   struct Window {
//     double from_s = 0;
//     std::optional<int64_t> most = {};
//
//     static constexpr auto fields() {
//       return std::tuple(Field{"from_s", &Window::from_s}, Field{"most", &Window::most});
//     }
//   };
//
//   Window window;
//   for_each_field(window, [&](const char* name, auto& value) { read(source, name, value); });
//
// A field's type is its member's, its default the member's initializer. `read` is a set of overloads, one for each type;
// of a member that lists fields itself (HasFields) the body asks with for_each_field again. An enum is read and written by
// its names: specialise EnumNames for it.
#pragma once

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "robocache/core/error.hpp"

namespace robocache {

template <class Struct, class T>
struct Field {
  const char* name;
  T Struct::* member;
};

template <class T>
concept HasFields = requires { std::remove_cvref_t<T>::fields(); };

// Calls body(name, value) for each field, in the order of the list.
template <class Struct, class Body>
void for_each_field(Struct& described, const Body& body) {
  std::apply([&](const auto&... field) { (body(field.name, described.*field.member), ...); },
             std::remove_cv_t<Struct>::fields());
}

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

// The value of that name; throws ArgumentError, which names the argument and lists the names.
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
