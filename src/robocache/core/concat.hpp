// Makes messages of texts and numbers.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

namespace robocache {

// Prints a number as Python does: with the fewest digits that read back as the same number; "0.1", "1e-50", "100000",
// "-inf".
std::string number_text(double number);

// Returns the parts as one text.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  const auto add = [&]<class Part>(const Part& part) {
    static_assert(!std::is_same_v<Part, bool> && !std::is_same_v<Part, char>);
    if constexpr (std::is_floating_point_v<Part>) {
      text += number_text(part);
    } else if constexpr (std::is_integral_v<Part>) {
      text += std::to_string(part);
    } else {
      text += std::string_view(part);
    }
  };
  (add(parts), ...);
  return text;
}

}  // namespace robocache
