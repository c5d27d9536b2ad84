// The checks common to operations on streams, besides those of core/arguments.hpp, and functions that turn a stream's
// arguments into Segments. `full_name` gives an argument's name in errors.
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

// How to compute one stream at the targets.
struct InterpolationOptions {
  InterpolationMethod method = InterpolationMethod::kLinear;
  std::vector<FeatureBlock> methods = {};  // features of another method; see blocks.hpp
  Extrapolate extrapolate = Extrapolate::kClamp;
  bool causal = false;
  std::optional<Duration> max_gap = {};
  std::optional<Duration> tolerance = {};   // for step methods only
  Boundary boundary = Boundary::kNotAKnot;  // for cubic only: see check_boundary

  static constexpr auto fields() {
    using I = InterpolationOptions;
    return std::tuple(Field{"method", &I::method}, Field{"methods", &I::methods}, Field{"extrapolate", &I::extrapolate},
                      Field{"causal", &I::causal}, Field{"max_gap", &I::max_gap}, Field{"tolerance", &I::tolerance},
                      Field{"bc_type", &I::boundary});
  }
};

// Refuses a clock unless its shape is [N], shared by the batch, or [B, N], and its dtype float32, float64 or int64.
// `length` is the letter that errors use for N. If not `batched`, only [N] is accepted.
void check_clock(const TensorView& clock, std::string_view argument, const char* length, bool batched, int64_t batch,
                 const ArgumentNamer& full_name = {});

// Sets `has` to whether a duration is given. If it is, sets `seconds` to it, and for an int64 clock also `ns`.
void set_duration(const std::optional<Duration>& duration, std::string_view argument, DType clock, bool& has,
                  double& seconds, uint64_t& ns, const ArgumentNamer& full_name = {});

// The sizes of a stream and its times: values are [B, S, D] or, if not `batched`, [S, D].
struct StreamShape {
  bool batched;
  int64_t batch;
  int64_t samples;
  int64_t features;
};
StreamShape stream_shape(const TensorView& values, const TensorView& times, const ArgumentNamer& full_name = {});

// Returns the bytes for the slopes of the stream's cubic features: see make_splines in spline.hpp. It is 0 without
// cubic features.
int64_t stream_workspace_bytes(const TensorView& values, const InterpolationOptions& options,
                               const ArgumentNamer& full_name = {});

// Returns the bytes for the gradient of the slopes of the stream's cubic features: see interpolate_backward.hpp.
int64_t stream_gradient_workspace_bytes(const TensorView& values, const InterpolationOptions& options,
                                        const ArgumentNamer& full_name = {});

// Refuses anything except [B, T, last] or, if not `batched`, [T, last].
void check_target_shape(const TensorView& tensor, std::string_view argument, bool batched, int64_t batch,
                        int64_t targets, int64_t last, const ArgumentNamer& full_name = {});

// Checks the arguments and returns a segment of all samples and features of the stream, still without method and output:
// see append_segments() and place_out().
Segment stream_segment(const TensorView& values, const TensorView& times, const std::optional<TensorView>& lengths,
                       const InterpolationOptions& options, const ArgumentNamer& full_name = {});

// Sets the stream's output to the features of `out`, [B, T, D] or [T, D], from `first` on.
void place_out(Segment& stream, const TensorView& out, int64_t first);

// Appends a segment for each run of neighbouring features with one method. Only the first of them writes `valid` and
// `age`.
void append_segments(const Segment& stream, const InterpolationOptions& options, std::vector<Segment>& segments);

// Refuses a bc_type other than the default unless a cubic segment of the call, of any stream, uses it.
void check_boundary(const InterpolationOptions& options, std::span<const Segment> segments,
                    const ArgumentNamer& full_name = {});

// Returns an interpolation at these targets, which the caller has checked. The caller adds the segments.
Interpolation make_interpolation(const TensorView& target_times, const std::optional<TensorView>& target_lengths,
                                 int64_t batch);

// Checks the array for the gradient of a segment's values, and returns its memory. The array is [batch, samples,
// features], dense, of the work type.
void* values_gradient(const TensorView& gradient, std::string_view argument, const Segment& s, int64_t batch,
                      int64_t features, Device device, const ArgumentNamer& full_name = {});

// Checks the array for the gradient of a clock, and returns its memory, or null without an array. The array is dense
// float64 [batch, N], also for a clock that the batch shares. An int64 clock has no gradient; an array for it is
// refused.
double* clock_gradient(const std::optional<TensorView>& gradient, std::string_view argument, const TensorView& clock,
                       int64_t batch, const ArgumentNamer& full_name = {});

}  // namespace robocache
