// The checks that the operations on streams share, beyond those of core/arguments.hpp, and what of a Segment follows from
// a stream's own arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "robocache/core/arguments.hpp"
#include "robocache/core/fields.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/interpolation/blocks.hpp"
#include "robocache/interpolation/method.hpp"
#include "robocache/interpolation/segment.hpp"

namespace robocache {

template <>
struct EnumNames<InterpolationMethod> {
  static constexpr std::string_view names[] = {"linear", "nearest", "previous", "next",  "pchip",
                                               "akima",  "cubic",   "angle",    "slerp", "pose"};
};
template <>
struct EnumNames<Extrapolate> {
  static constexpr std::string_view names[] = {"clamp", "nan", "linear"};
};
template <>
struct EnumNames<Boundary> {
  static constexpr std::string_view names[] = {"not-a-knot", "natural"};
};

// How one stream is brought to the targets.
struct InterpolationOptions {
  InterpolationMethod method = InterpolationMethod::kLinear;
  std::vector<FeatureBlock> methods = {};  // features of another method; see blocks.hpp
  Extrapolate extrapolate = Extrapolate::kClamp;
  bool causal = false;
  std::optional<Duration> max_gap = {};
  std::optional<Duration> tolerance = {};   // step methods alone
  Boundary boundary = Boundary::kNotAKnot;  // cubic alone: see check_boundary

  static constexpr auto fields() {
    using I = InterpolationOptions;
    return std::tuple(Field{"method", &I::method}, Field{"methods", &I::methods}, Field{"extrapolate", &I::extrapolate},
                      Field{"causal", &I::causal}, Field{"max_gap", &I::max_gap}, Field{"tolerance", &I::tolerance},
                      Field{"bc_type", &I::boundary});
  }
};

// A clock is [N] for every row or [B, N]; `length` is the letter of its last extent.
void check_clock(const TensorView& clock, std::string_view argument, const char* length, bool batched, int64_t batch,
                 const ArgumentsOf& of = {});

// Into both forms; the clock takes the one it needs. Nothing where there is none.
void set_duration(const std::optional<Duration>& duration, std::string_view argument, DType clock, bool& has,
                  double& seconds, uint64_t& ns, const ArgumentsOf& of = {});

// The sizes of a stream: values [B, S, D] or, not `batched`, [S, D], and their times.
struct StreamShape {
  bool batched;
  int64_t batch;
  int64_t samples;
  int64_t features;
};
StreamShape stream_shape(const TensorView& values, const TensorView& times, const ArgumentsOf& of = {});

// Bytes that the slopes of the stream's cubic features take: see make_splines in spline.hpp. 0 where there are none.
int64_t stream_workspace_bytes(const TensorView& values, const InterpolationOptions& options,
                               const ArgumentsOf& of = {});

// The same for their gradient: see interpolate_backward.hpp.
int64_t stream_gradient_workspace_bytes(const TensorView& values, const InterpolationOptions& options,
                                        const ArgumentsOf& of = {});

// Refuses what is not [B, T, last] or, not `batched`, [T, last].
void check_target_shape(const TensorView& tensor, std::string_view argument, bool batched, int64_t batch,
                        int64_t targets, int64_t last, const ArgumentsOf& of = {});

// A segment of all the stream's samples and features, checked; its methods and where its results go are still to come.
Segment stream_segment(const TensorView& values, const TensorView& times, const std::optional<TensorView>& lengths,
                       const InterpolationOptions& options, const ArgumentsOf& of = {});

// Its features come out as those of `out`, [B, T, D] or [T, D], from `first` on.
void place_out(Segment& stream, const TensorView& out, int64_t first);

// That segment with the place of its results, as one for each run of features of one method. Valid and age go with the
// first.
void append_segments(const Segment& stream, const InterpolationOptions& options, std::vector<Segment>& segments);

// Refuses a bc_type of which none of the call's segments is a cubic by it: one value for several streams passes where one
// of them takes it.
void check_boundary(const InterpolationOptions& options, std::span<const Segment> segments, const ArgumentsOf& of = {});

// A call on these targets, which have been checked; its segments are still to come.
Interpolation call_on(const TensorView& target_times, const std::optional<TensorView>& target_lengths, int64_t batch);

// Where the gradient of a segment's stream, [batch, samples, features], is added to: dense, of the work type.
void* values_gradient(const TensorView& gradient, std::string_view argument, const Segment& s, int64_t batch,
                      int64_t features, Device device, const ArgumentsOf& of = {});

// Where that of a clock is, row by row: dense float64 [batch, N]; null where there is none. int64 clocks have no gradient.
double* clock_gradient(const std::optional<TensorView>& gradient, std::string_view argument, const TensorView& clock,
                       int64_t batch, const ArgumentsOf& of = {});

}  // namespace robocache
