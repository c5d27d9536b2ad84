// The checks that the operations on streams share, and what of a Segment follows from a stream's own arguments. Each
// refusal is an ArgumentError or ArgumentTypeError that names the argument, what was expected and what came.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "robocache/core/error.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/interpolation/blocks.hpp"
#include "robocache/interpolation/method.hpp"
#include "robocache/interpolation/segment.hpp"

namespace robocache {

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::string text;
  (text.append(parts), ...);
  throw ArgumentError(text);
}

template <class... Parts>
[[noreturn]] void refuse_type(const Parts&... parts) {
  std::string text;
  (text.append(parts), ...);
  throw ArgumentTypeError(text);
}

// Whose arguments they are, spelled out only in a refusal: "times" of a call with one stream; of several
// "streams['imu'].times" or, without a name, "streams[2].times".
struct ArgumentsOf {
  std::string_view stream = {};
  int64_t place = -1;

  std::string operator()(std::string_view argument) const;
};

// How one stream is brought to the targets.
struct InterpolationOptions {
  InterpolationMethod method = InterpolationMethod::kLinear;
  std::vector<FeatureBlock> methods = {};  // features of another method; see blocks.hpp
  Extrapolate extrapolate = Extrapolate::kClamp;
  bool causal = false;
  std::optional<Duration> max_gap = {};
  std::optional<Duration> tolerance = {};   // step methods alone
  Boundary boundary = Boundary::kNotAKnot;  // cubic alone
};

// A clock is [N] for every row or [B, N]; `length` is the letter of its last extent.
void check_clock(const TensorView& clock, std::string_view argument, const char* length, bool batched, int64_t batch,
                 const ArgumentsOf& of = {});

// `like` is the argument whose device it is.
void check_device(const TensorView& tensor, std::string_view argument, Device device, const ArgumentsOf& of = {},
                  std::string_view like = "values");

// [B] int32/int64 in [0, most]; on CUDA the values are not looked at: that would wait for the device.
void check_lengths(const TensorView& lengths, std::string_view argument, int64_t batch, int64_t most,
                   const ArgumentsOf& of = {});

// Whether two tensors reach into one another's range of addresses; never where one of them is empty.
bool overlaps(const TensorView& a, const TensorView& b);

// Refuses a tensor to write to whose elements share memory.
void check_elements_apart(const TensorView& out, std::string_view argument, const ArgumentsOf& of = {});

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

// A segment of all the stream's samples and features, checked; its methods and where its results go are still to come.
Segment stream_segment(const TensorView& values, const TensorView& times, const std::optional<TensorView>& lengths,
                       const InterpolationOptions& options, const ArgumentsOf& of = {});

// That segment with the place of its results, as one for each run of features of one method. Valid and age go with the
// first.
void append_segments(const Segment& stream, const InterpolationOptions& options, std::vector<Segment>& segments);

// A call on these targets, which have been checked; its segments are still to come.
Interpolation call_on(const TensorView& target_times, const std::optional<TensorView>& target_lengths, int64_t batch);

// Where the gradient of a segment's stream, [batch, samples, features], is added to: dense, of the work type.
void* values_gradient(const TensorView& gradient, std::string_view argument, const Segment& s, int64_t batch,
                      int64_t features, Device device, const ArgumentsOf& of = {});

// Where that of a clock is, row by row: dense float64 [batch, N]; null where there is none. int64 clocks have no gradient.
double* clock_gradient(const std::optional<TensorView>& gradient, std::string_view argument, const TensorView& clock,
                       int64_t batch, const ArgumentsOf& of = {});

}  // namespace robocache
