// Every operation by the fields of its call: the arguments are read, the results that Python did not give are allocated, and
// the call is run on the caller's stream. What an argument must be, the operation itself checks.
#include <array>
#include <concepts>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "robocache/core/fields.hpp"
#include "robocache/ffi/arguments.hpp"
#include "robocache/ffi/ffi.hpp"
#include "robocache/ops/resample/resample.hpp"

namespace robocache::ffi {
namespace {

using json = nlohmann::ordered_json;

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

// Reads arguments one after the other, by the type of what they go to. None leaves an optional one empty; an array is as
// many arguments, a list its length and its elements.
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
      for_each_field(value, [this](const char* field, auto& of) { (*this)(field, of); });
    } else if constexpr (kIsOptional<T>) {
      if (args_.is_none(at_)) {
        ++at_;
      } else {
        (*this)(name, value.emplace());
      }
    } else if constexpr (kIsArray<T>) {
      for (auto& element : value) (*this)(name, element);
    } else if constexpr (kIsVector<T>) {
      value.resize(static_cast<size_t>(read<int64_t>(name)));
      for (auto& element : value) (*this)(name, element);
    } else if constexpr (HasNames<T>) {
      value = value_of<T>(args_.string(at_++, name), name);
    } else {
      take(name, value);
    }
  }

  // The first of `count` arguments that somebody else reads.
  int skip(int count) { return std::exchange(at_, at_ + count); }

 private:
  void take(const char* name, TensorView& value) { value = args_.tensor(at_++, name); }
  void take(const char* name, bool& value) { value = args_.boolean(at_++, name); }
  void take(const char* name, int64_t& value) { value = args_.integer(at_++, name); }
  void take(const char* name, double& value) { value = args_.real(at_++, name); }
  void take(const char* name, DType& value) { value = dtype_from_name(args_.string(at_++, name), name); }
  void take(const char* name, std::variant<int64_t, double>& value) {
    if (args_.is_integer(at_)) {
      value = args_.integer(at_++, name);
    } else {
      value = args_.real(at_++, name);
    }
  }
  void take(const char* name, FeatureBlock& value) {
    value = {read<std::optional<int64_t>>(name).value_or(0), read<std::optional<int64_t>>(name).value_or(kAllFeatures),
             read<InterpolationMethod>(name)};
  }

  const Args& args_;
  int at_ = 0;
};

// ---- Results ----

// What a call writes to. For each result came an array, None where one is to be made, or False where it is not asked for.
// Python gets the made ones, in their order: nothing, an array or Arrays.
class Results {
 public:
  Results(const Args& args, Reader& reader)
      : args_(args), count_(reader.read<int64_t>("out")), at_(reader.skip(static_cast<int>(count_))) {}

  int64_t count() const { return count_; }

  std::optional<TensorView> next(const TensorView& as) {
    const int at = at_++;
    if (args_.is_tensor(at)) return args_.tensor(at, "out");
    if (!args_.is_none(at)) return std::nullopt;
    made_.arrays.emplace_back(OwnedTensor::allocate(as));
    return made_.arrays.back()->view();
  }

  void give(Result& result) {
    if (made_.arrays.size() == 1) result.set(*std::move(made_.arrays.front()));
    if (made_.arrays.size() > 1) result.set_object(std::move(made_));
  }

 private:
  const Args& args_;
  int64_t count_;
  int at_;
  Arrays made_;
};

// ---- Description ----

template <class T>
std::string type_word() {
  if constexpr (kIsOptional<T>) {
    return type_word<typename T::value_type>() + "?";
  } else if constexpr (kIsVector<T>) {
    return type_word<typename T::value_type>() + "[]";
  } else if constexpr (kIsArray<T>) {
    return type_word<typename T::value_type>() + "[" + std::to_string(std::tuple_size_v<T>) + "]";
  } else if constexpr (HasNames<T> || std::same_as<T, DType>) {
    return "str";
  } else if constexpr (std::same_as<T, TensorView>) {
    return "tensor";
  } else if constexpr (std::same_as<T, bool>) {
    return "bool";
  } else if constexpr (std::same_as<T, int64_t>) {
    return "int";
  } else if constexpr (std::same_as<T, double>) {
    return "float";
  } else if constexpr (std::same_as<T, std::variant<int64_t, double>>) {
    return "number";
  } else {
    static_assert(std::same_as<T, FeatureBlock>);
    return "block";
  }
}

template <class T>
json default_of(const T& value) {
  if constexpr (kIsOptional<T>) {
    return value ? default_of(*value) : json();
  } else if constexpr (kIsVector<T> || kIsArray<T>) {
    json all = json::array();
    for (const auto& element : value) all.push_back(default_of(element));
    return all;
  } else if constexpr (HasNames<T>) {
    return std::string(name_of(value));
  } else if constexpr (std::is_arithmetic_v<T>) {
    return value;
  } else if constexpr (std::same_as<T, std::variant<int64_t, double>>) {
    return std::visit([](auto number) { return json(number); }, value);
  } else {
    return nullptr;  // of a type without a default
  }
}

struct Describe {
  json& fields;

  template <class T>
  void operator()(const char* name, const T& value) const {
    if constexpr (HasFields<T>) {
      for_each_field(value, *this);
    } else {
      fields.push_back({name, type_word<T>(), default_of(value)});
    }
  }
};

template <class Call>
std::string described() {
  json fields = json::array();
  const Call call;
  for_each_field(call, Describe{fields});
  return fields.dump();
}

}  // namespace

// (operation) -> JSON: [name, type, default] of each of its arguments, in the order in which they come
ROBOCACHE_FFI(fields_of, args, result) {
  const std::string_view operation = args.string(0, "operation");
  std::string fields;
  if (operation == "resample_trajectories") fields = described<ResampleCall>();
  if (fields.empty())
    throw ArgumentError("operation: expected one of the library's, got '" + std::string(operation) + "'");
  result.set(std::string_view(fields));
}

// ---- Operations ----
// (the fields of the call, how many results there are, each result or None); of a gradient (the fields of the call, those of
// its gradients), which are added to.

ROBOCACHE_FFI(resample_trajectories, args, result) {
  Reader reader(args);
  auto call = reader.read<ResampleCall>("call");
  Results results(args, reader);
  const ResampleOutputs outputs = resample_outputs(call);
  call.out = results.next(outputs.out).value();
  call.valid = results.next(outputs.valid);
  const Workspace workspace(stream_workspace_bytes(call.values, call.options), call.values.device);
  call.workspace = workspace.view;
  resample_trajectories(call, current_stream(call.values.device));
  results.give(result);
}

ROBOCACHE_FFI(resample_trajectories_backward, args, result) {
  Reader reader(args);
  auto call = reader.read<ResampleCall>("call");
  const auto out_gradients = reader.read<std::vector<TensorView>>("out_gradient");
  const auto gradients = reader.read<std::vector<std::optional<TensorView>>>("gradients");
  const Workspace workspace(stream_gradient_workspace_bytes(call.values, call.options), call.values.device);
  call.workspace = workspace.view;
  resample_trajectories_backward(call, {out_gradients.at(0), gradients.at(0), gradients.at(1), gradients.at(2)},
                                 current_stream(call.values.device));
}

// (times, lengths)
ROBOCACHE_FFI(check_times, args, result) {
  const TensorView times = args.tensor(0, "times");
  check_times(times, current_stream(times.device), optional_tensor(args, 1, "lengths"));
}

}  // namespace robocache::ffi
