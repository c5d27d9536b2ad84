// The fields of a struct, listed once. Code that reads, describes or compares the struct uses this list, so a field
// that is added to the list is added everywhere.
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
// A field has the type of its member, and the member's initializer as its default. `read` is a set of overloads, one
// for each type. For a member that lists fields itself (HasFields) the body calls for_each_field again. An enum is read
// and written by its names: specialise kNames for it.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "robocache/core/enum_names.hpp"

namespace robocache {

template <class Struct, class T>
using MemberOf = T Struct::*;

template <class Struct, class T>
struct Field {
  const char* name;
  MemberOf<Struct, T> member;
};

template <class T>
concept HasFields = requires { std::remove_cvref_t<T>::fields(); };

// Calls body(name, value) for each field, in the order of the list.
template <class Struct, class Body>
void for_each_field(Struct& described, const Body& body) {
  std::apply([&](const auto&... field) { (body(field.name, described.*field.member), ...); },
             std::remove_cv_t<Struct>::fields());
}

}  // namespace robocache
