// Reads the arguments of an operation by the fields of its call, and gives Python the results that it did not pass as outputs.
//
//   Reader reader(args);
//   auto call = reader.read<ResampleCall>("call");
//   Results results(args, reader);
//   call.out = results.next(outputs.out).value();
//   ...
//   results.give(result);
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "robocache/core/allocate.hpp"
#include "robocache/core/fields.hpp"
#include "robocache/ffi/ffi.hpp"
#include "robocache/interpolation/blocks.hpp"
#include "robocache/ops/fuse/fuse.hpp"

namespace robocache::ffi {

template <class T>
constexpr bool kIsOptional = false;
template <class T>
constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
constexpr bool kIsVector = false;
template <class T>
constexpr bool kIsVector<std::vector<T>> = true;
template <class T>
constexpr bool kIsArray = false;
template <class T, size_t kCount>
constexpr bool kIsArray<std::array<T, kCount>> = true;

// ---- Reading ----

// Reads arguments in order, by the type of the target. None leaves an optional target empty. An array takes an argument
// for each element; a list takes its length, then its elements; a list of streams takes such a list for each field of a stream.
class Reader {
 public:
  explicit Reader(const Args& args) : args_(args) {}

  template <class T>
  T read(const char* name) {
    T value{};
    (*this)(name, value);
    return value;
  }

  template <class T>
  void operator()(const char* name, T& value) {
    if constexpr (HasFields<T>) {
      for_each_field(value, [this](const char* field, auto& member) { (*this)(field, member); });
    } else if constexpr (kIsOptional<T>) {
      value.reset();
      if (args_.is_none(next_)) {
        ++next_;
      } else {
        (*this)(name, value.emplace());
      }
    } else if constexpr (kIsArray<T>) {
      for (auto& element : value) (*this)(name, element);
    } else if constexpr (std::same_as<T, std::vector<FuseStream>>) {
      read_columns(value, [](FuseStream& stream) -> FuseStream& { return stream; });
    } else if constexpr (kIsVector<T>) {
      value.resize(static_cast<size_t>(read<int64_t>(name)));
      for (auto& element : value) (*this)(name, element);
    } else if constexpr (HasNames<T>) {
      value = value_of<T>(args_.string(next_++, name), name);
    } else {
      take(name, value);
    }
  }

  // Skips `count` arguments that other code reads. Returns the index of the first.
  int skip(int count) { return std::exchange(next_, next_ + count); }

 private:
  // Reads each field of `part` for all streams, one field after the other. An empty list keeps the field's default.
  // Errors name the stream.
  template <class Part>
  void read_columns(std::vector<FuseStream>& streams, const Part& part) {
    using Struct = std::remove_reference_t<std::invoke_result_t<Part, FuseStream&>>;
    const auto read_column = [&](const auto& field) {
      using T = std::remove_reference_t<decltype(std::declval<Struct>().*field.member)>;
      if constexpr (HasFields<T>) {
        read_columns(streams, [&](FuseStream& stream) -> T& { return part(stream).*field.member; });
      } else {
        const int64_t count = read<int64_t>(field.name);
        if (count == 0) return;  // the default of every stream
        streams.resize(static_cast<size_t>(count));
        for (size_t i = 0; i < streams.size(); ++i) {
          const auto with_stream = [&](const char* text) {  // `text` begins with the argument's name
            return ArgumentNamer{streams[i].name, static_cast<int64_t>(i)}(text);
          };
          try {
            (*this)(field.name, part(streams[i]).*field.member);
          } catch (const ArgumentTypeError& error) {
            throw ArgumentTypeError(with_stream(error.what()));
          } catch (const ArgumentError& error) {
            throw ArgumentError(with_stream(error.what()));
          }
        }
      }
    };
    std::apply([&](const auto&... field) { (read_column(field), ...); }, Struct::fields());
  }

  void take(const char* name, TensorView& value) { value = args_.tensor(next_++, name); }
  void take(const char* name, bool& value) { value = args_.boolean(next_++, name); }
  void take(const char* name, int64_t& value) { value = args_.integer(next_++, name); }
  void take(const char* name, double& value) { value = args_.real(next_++, name); }
  void take(const char* name, std::string_view& value) {
    if (!args_.is_none(next_)) value = args_.string(next_, name);
    ++next_;
  }
  void take(const char* name, FeatureNumbers& value) {
    if (args_.is_tensor(next_)) {
      value = args_.tensor(next_++, name);
    } else {
      value = args_.real(next_++, name);
    }
  }
  void take(const char* name, DType& value) { value = dtype_from_name(args_.string(next_++, name), name); }
  void take(const char* name, std::variant<int64_t, double>& value) {
    if (args_.is_integer(next_)) {
      value = args_.integer(next_++, name);
    } else {
      value = args_.real(next_++, name);
    }
  }
  void take(const char* name, FeatureBlock& value) {
    value = {read<std::optional<int64_t>>(name).value_or(0), read<std::optional<int64_t>>(name).value_or(kAllFeatures),
             read<InterpolationMethod>(name)};
  }

  const Args& args_;
  int next_ = 0;
};

// ---- Results ----

// The results of a call. For each there is an argument: an array to write to, None for a new array, or False if it is
// not wanted. Python gets the new ones in order: nothing, an array or Arrays.
class Results {
 public:
  Results(const Args& args, Reader& reader)
      : args_(args), count_(reader.read<int64_t>("out")), next_(reader.skip(static_cast<int>(count_))) {}

  int64_t count() const { return count_; }

  // Allocates memory for an operation that learns the sizes of its results during the call. set_next() then says which
  // memory is the next result.
  Allocate allocate(Device device) {
    return [this, device](DType dtype, std::initializer_list<int64_t> shape) {
      memory_.emplace_back(OwnedTensor::allocate(dtype, device, shape));
      return memory_.back()->view();
    };
  }
  void set_next(const std::optional<TensorView>& view) {
    if (!args_.is_none(next_++)) return;
    std::optional<OwnedTensor>& created = created_.arrays.emplace_back();
    for (std::optional<OwnedTensor>& owned : memory_) {
      if (!view || !owned) continue;
      const TensorView memory = owned->view();
      if (memory.data == view->data && memory.dtype == view->dtype && memory.ndim == view->ndim &&
          memory.shape == view->shape) {
        created.emplace(*std::exchange(owned, std::nullopt));
        return;
      }
    }
  }

  std::optional<TensorView> next(const TensorView& like) {
    const int index = next_++;
    if (args_.is_tensor(index)) return args_.tensor(index, "out");
    if (!args_.is_none(index)) return std::nullopt;
    created_.arrays.emplace_back(OwnedTensor::allocate(like));
    return created_.arrays.back()->view();
  }

  void give(Result& result) {
    if (created_.arrays.size() == 1 && created_.arrays.front()) {
      result.set(*std::move(created_.arrays.front()));
    } else if (created_.arrays.size() > 1) {
      result.set_object(std::move(created_));
    }
  }

 private:
  const Args& args_;
  int64_t count_;
  int next_;
  Arrays created_;
  std::vector<std::optional<OwnedTensor>> memory_;
};

}  // namespace robocache::ffi
