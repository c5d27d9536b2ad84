#pragma once

#include <cstdint>

namespace robocache {

// The rows [begin, end).
struct RowRange {
  int64_t begin;
  int64_t end;

  friend bool operator==(const RowRange&, const RowRange&) = default;
};

}  // namespace robocache
