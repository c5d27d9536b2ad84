// Arguments that several adapters decode, and the arrays that they return.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/ffi/ffi.hpp"

namespace robocache::ffi {

// A dataset as Python holds it.
struct DatasetHandle {
  static constexpr const char* kTypeKey = "robocache.Dataset";
  std::shared_ptr<const Dataset> dataset;
};

inline std::optional<TensorView> optional_tensor(const Args& args, int i, const char* name) {
  return args.is_none(i) ? std::nullopt : std::optional(args.tensor(i, name));
}

inline std::optional<double> optional_real(const Args& args, int i, const char* name) {
  return args.is_none(i) ? std::nullopt : std::optional(args.real(i, name));
}

// Returns the elements of a dense array that Python made for the call: numbers, or structs of numbers. None gives an
// empty span.
template <class T>
std::span<const T> numbers(const Args& args, int i, const char* name) {
  if (args.is_none(i)) return {};
  const TensorView array = args.tensor(i, name);
  return {static_cast<const T*>(array.data), static_cast<size_t>(array.numel() * dtype_size(array.dtype)) / sizeof(T)};
}

inline int64_t address(const void* memory) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(memory)); }

// Memory that lives as long as a call, from the caller's allocator; none if no bytes are needed.
struct Workspace {
  Workspace(int64_t bytes, Device device) {
    if (bytes == 0) return;
    memory.emplace(OwnedTensor::allocate(DType::kUInt8, device, {bytes}));
    view = memory->view();
  }
  void* data() const { return view ? view->data : nullptr; }

  std::optional<OwnedTensor> memory;
  std::optional<TensorView> view;
};

// The results of a call, if there are several or may be none. Python takes them one by one (array_of).
struct Arrays {
  static constexpr const char* kTypeKey = "robocache.Arrays";
  std::vector<std::optional<OwnedTensor>> arrays;
};

// Returns a new array on the CPU, of bytes, int64 or float64.
template <class T>
OwnedTensor new_array(std::span<const T> numbers, std::initializer_list<int64_t> shape) {
  constexpr DType kDType = sizeof(T) == 1 ? DType::kUInt8 : std::same_as<T, int64_t> ? DType::kInt64 : DType::kFloat64;
  static_assert(sizeof(T) == 1 || std::same_as<T, int64_t> || std::same_as<T, double>);
  OwnedTensor array = OwnedTensor::allocate(kDType, {}, shape);
  std::ranges::copy(numbers, static_cast<T*>(array.view().data));
  return array;
}
template <class T>
OwnedTensor new_array(const std::vector<T>& numbers) {
  return new_array(std::span<const T>(numbers), {std::ssize(numbers)});
}

// Returns a new array [rows.size(), N] on the CPU, with the N cells of each row: cells(row), a std::array of int64 or float64.
template <class Rows, class Cells>
OwnedTensor new_table(const Rows& rows, const Cells& cells) {
  using RowCells = decltype(cells(rows[0]));
  std::vector<typename RowCells::value_type> table_cells;
  for (const auto& row : rows) {
    const RowCells row_cells = cells(row);
    table_cells.insert(table_cells.end(), row_cells.begin(), row_cells.end());
  }
  return new_array(std::span<const typename RowCells::value_type>(table_cells),
                   {std::ssize(rows), static_cast<int64_t>(std::tuple_size_v<RowCells>)});
}

}  // namespace robocache::ffi
