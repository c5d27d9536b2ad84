#include <cuda_runtime.h>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/interpolation/curve_gradient.hpp"
#include "robocache/interpolation/gradient.hpp"
#include "robocache/interpolation/interpolate_backward.hpp"
#include "robocache/interpolation/interpolate_plan.hpp"
#include "robocache/interpolation/spline_cuda.cuh"

namespace robocache::interpolation_cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarp = 32;
constexpr int64_t kBlocksWanted = 8;  // per multiprocessor
constexpr int64_t kMostBlocks = int64_t{1} << 30;

template <class Work>
__device__ Work load(DType dtype, const void* data, int64_t offset) {
  Work x{};
  with_type(dtype, [&](auto element) { x = to_work<Work>(static_cast<const decltype(element)*>(data)[offset]); });
  return x;
}

__device__ int64_t value_offset(const Segment& s, int64_t batch, int64_t row, int64_t feature) {
  return batch * s.values_batch + row * s.values_sample + feature * s.values_feature;
}

template <int kFeatures, class T>
__device__ void load_values(const Segment& s, int64_t batch, int64_t row, int64_t feature, T (&to)[kFeatures]) {
  for (int f = 0; f < kFeatures; ++f)
    to[f] = load<T>(s.value_dtype, s.values, value_offset(s, batch, row, feature + f));
}

// Loads both samples of a mixture.
template <int kFeatures, class T>
__device__ void load_pair(const Segment& s, int64_t batch, int64_t left, int64_t right, int64_t feature,
                          T (&a)[kFeatures], T (&b)[kFeatures]) {
  load_values(s, batch, left, feature, a);
  load_values(s, batch, right, feature, b);
}

// Loads the incoming gradient of kFeatures features of a target.
template <int kFeatures, class Work>
__device__ void load_gradient(const Segment& s, int64_t batch, int64_t index, int64_t feature, Work (&to)[kFeatures]) {
  const int64_t offset = batch * s.out_batch + index * s.out_target;
  for (int f = 0; f < kFeatures; ++f) {
    to[f] = with_floating(s.out_dtype, [&](auto element) {
      return to_work<Work>(static_cast<const decltype(element)*>(s.out)[offset + (feature + f) * s.out_feature]);
    });
    if (s.scaled) to[f] = share_of(number_of<Work>(s.scale, s.scale_per_feature, feature + f), to[f]);
  }
}

// ---- Kinds of methods. For a target between samples each defines:
//   Curve      the numbers of its curve at a target, or NoCurve
//   kFeatures  the number of features that belong together   kRows      the number of samples it may use
//   kSums      the number of sums over features from which the gradient of the times follows
//   kInFlight  the number of targets whose gradients are loaded before the first is used

struct NoCurve {};

struct Pairs {  // linear or angle
  using Curve = NoCurve;
  static constexpr int kFeatures = 1;
  static constexpr int kRows = 2;
  static constexpr int kSums = 1;
  static constexpr int kInFlight = 4;

  template <class Work>
  struct Entry {
    int64_t left, right;
    Work weight;
    PickKind kind;

    __device__ int64_t row(int i) const { return i == 0 ? left : right; }
  };

  template <class Work>
  __device__ static Entry<Work> entry(const Pick<Work>& picked, const NoCurve&) {
    return {picked.left, picked.right, picked.weight, picked.kind};
  }

  template <class Work>
  __device__ static void set_shares(const Segment&, int64_t, int64_t, const Entry<Work>& entry,
                                    const Work (&gradient)[1], Work (&shares)[kRows][1]) {
    shares[0][0] = share_of(Work(1) - entry.weight, gradient[0]);
    shares[1][0] = share_of(entry.weight, gradient[0]);
  }

  template <class Work>
  __device__ static void add_sums(const Segment& s, const SegmentGradient&, int64_t batch, int64_t feature,
                                  const Bracket& bracket, const NoCurve&, const Work (&gradient)[1],
                                  double (&sums)[1]) {
    Work a[1];
    Work b[1];
    load_pair(s, batch, bracket.left, bracket.right, feature, a, b);
    const double derivative = s.method == InterpolationMethod::kAngle ? Angle::weight_derivative(a[0], b[0])
                                                                      : Linear::weight_derivative(a[0], b[0]);
    sums[0] += share_of(derivative, static_cast<double>(gradient[0]));
  }
};

struct Rotations : Pairs {  // Rotations mix two samples too, but four features together.
  static constexpr int kFeatures = 4;
  static constexpr int kInFlight = 1;

  template <class Work>
  __device__ static void set_shares(const Segment& s, int64_t batch, int64_t feature, const Entry<Work>& entry,
                                    const Work (&gradient)[4], Work (&shares)[kRows][4]) {
    double a[4];
    double b[4];
    load_pair(s, batch, entry.left, entry.right, feature, a, b);
    double incoming[4];
    for (int i = 0; i < 4; ++i) incoming[i] = static_cast<double>(gradient[i]);
    double gradient_a[4];
    double gradient_b[4];
    Slerp::rows_gradient(a, b, static_cast<double>(entry.weight), incoming, gradient_a, gradient_b);
    for (int i = 0; i < 4; ++i) {
      shares[0][i] = static_cast<Work>(gradient_a[i]);
      shares[1][i] = static_cast<Work>(gradient_b[i]);
    }
  }

  template <class Work>
  __device__ static void add_sums(const Segment& s, const SegmentGradient&, int64_t batch, int64_t feature,
                                  const Bracket& bracket, const NoCurve&, const Work (&gradient)[4],
                                  double (&sums)[1]) {
    double a[4];
    double b[4];
    load_pair(s, batch, bracket.left, bracket.right, feature, a, b);
    double incoming[4];
    for (int i = 0; i < 4; ++i) incoming[i] = static_cast<double>(gradient[i]);
    sums[0] += Slerp::weight_gradient(a, b, bracket.weight, incoming);
  }
};

struct Curves {
  using Curve = CurveTarget;
  static constexpr int kFeatures = 1;
  static constexpr int kSums = kCurveWeights;
  static constexpr int kInFlight = 1;
};

struct LocalCurves : Curves {
  static constexpr int kRows = kStencilRows;

  template <class Work>
  struct Entry {
    CurveTarget curve;
    int64_t left;
    PickKind kind;

    __device__ int64_t row(int i) const {
      if (kind == PickKind::kOne) return i == 0 ? left : -1;
      const bool exists = 2 - curve.stencil.before <= i && i <= 3 + curve.stencil.after;
      return exists ? curve.stencil.rows[i] : -1;
    }
  };

  template <class Work>
  __device__ static Entry<Work> entry(const Pick<Work>& picked, const CurveTarget& curve) {
    return {curve, picked.left, picked.kind};
  }

  __device__ static void load_rows(const Segment& s, int64_t batch, int64_t feature, const CurveTarget& curve,
                                   double (&y)[kStencilRows]) {
    for (int i = 0; i < kStencilRows; ++i) {
      y[i] = load<double>(s.value_dtype, s.values, value_offset(s, batch, curve.stencil.rows[i], feature));
    }
  }

  template <class Work>
  __device__ static void set_shares(const Segment& s, int64_t batch, int64_t feature, const Entry<Work>& entry,
                                    const Work (&gradient)[1], Work (&shares)[kRows][1]) {
    for (int i = 0; i < kRows; ++i) shares[i][0] = Work(0);
    if (gradient[0] == Work(0)) return;
    double y[kStencilRows];
    double partials[kStencilRows];
    load_rows(s, batch, feature, entry.curve, y);
    partials_of_rows(s.method, entry.curve, y, partials);
    for (int i = 0; i < kRows; ++i) shares[i][0] = static_cast<Work>(partials[i] * gradient[0]);
  }

  template <class Work>
  __device__ static void add_sums(const Segment& s, const SegmentGradient&, int64_t batch, int64_t feature,
                                  const Bracket&, const CurveTarget& curve, const Work (&gradient)[1],
                                  double (&sums)[kCurveWeights]) {
    if (gradient[0] == Work(0)) return;
    double y[kStencilRows];
    double partials[kCurveWeights];
    load_rows(s, batch, feature, curve, y);
    partials_of_weights(s.method, curve, y, partials);
    for (int i = 0; i < kCurveWeights; ++i) sums[i] += partials[i] * gradient[0];
  }
};

// The slopes and their gradient are in memory, because they depend on the whole row.
struct Cubics : Curves {
  static constexpr int kRows = 2;

  template <class Work>
  struct Entry {
    Cubic::Partials shares;
    int64_t left, right;
    PickKind kind;

    __device__ int64_t row(int i) const { return i == 0 ? left : right; }
  };

  template <class Work>
  __device__ static Entry<Work> entry(const Pick<Work>& picked, const CurveTarget& curve) {
    return {Cubic::partials(curve.weights), picked.left, picked.right, picked.kind};
  }

  template <class Work>
  __device__ static void set_shares(const Segment&, int64_t, int64_t, const Entry<Work>& entry,
                                    const Work (&gradient)[1], Work (&shares)[kRows][1]) {
    const auto x = static_cast<double>(gradient[0]);
    shares[0][0] = static_cast<Work>(share_of(entry.shares.a, x));
    shares[1][0] = static_cast<Work>(share_of(entry.shares.b, x));
  }

  template <class Work>
  __device__ static void add_sums(const Segment& s, const SegmentGradient& g, int64_t batch, int64_t feature,
                                  const Bracket& bracket, const CurveTarget& curve, const Work (&gradient)[1],
                                  double (&sums)[kCurveWeights]) {
    double a[1];
    double b[1];
    load_pair(s, batch, bracket.left, bracket.right, feature, a, b);
    const double* const slopes = g.spline.slopes + batch * s.samples * s.features + feature;
    Cubic::add_weights_gradient(curve.weights, a[0], b[0], slopes[bracket.left * s.features],
                                slopes[bracket.right * s.features], static_cast<double>(gradient[0]), sums);
  }
};

// ---- A target ---------------------------------------------------------------------------------------------------------

// The samples that a target uses.
template <class Work, class Method>
struct Target {
  Pick<Work> picked;
  Bracket bracket;
  typename Method::Curve curve;  // set only for a mixture, or with on_sample also where bracket.gap is not 0
};

// Finds the samples of a target. The search begins at the index that the target would have on an even clock.
template <class Work, class Method>
__device__ Target<Work, Method> find_target(const Interpolation& call, const Segment& s, int64_t batch, int64_t index,
                                            bool on_sample) {
  Target<Work, Method> result{};
  bool has_curve = false;
  with_clock(s.clock_dtype, [&](auto clock) {
    using Clock = decltype(clock);
    const ClockRow<Clock> times{static_cast<const Clock*>(s.times) + batch * s.times_batch, s.times_sample};
    const int64_t length = row_length(s, batch);
    const StreamTarget<Clock> target = target_on<Clock>(call, s, batch, index);
    const PickRule<Clock> rule = rule_of<Clock>(s);
    int64_t hint = static_cast<int64_t>(static_cast<double>(index) / static_cast<double>(call.targets_count) *
                                        static_cast<double>(length));
    result.picked = pick<Work>(times, target.exists ? length : 0, target.time, rule, hint);
    result.bracket = bracket_of(times, length, rule, result.picked);
    if constexpr (!std::is_same_v<typename Method::Curve, NoCurve>) {
      has_curve = result.picked.kind == PickKind::kMix || (on_sample && result.bracket.gap != 0);
      if (has_curve) result.curve = curve_around(s.method, times, length, result.bracket);
    }
  });
  if constexpr (!std::is_same_v<typename Method::Curve, NoCurve>) {
    if (has_curve) result.curve.weights = curve_weights<double>(s.method, result.curve.spacing);
  }
  return result;
}

// ---- Values ---------------------------------------------------------------------------------------------------------

// Sums of one feature, for the samples to which a thread added last. A new sample evicts the oldest sum to memory. So
// every entry is summed in the order of the targets, as on the CPU.
template <int kKept, class Work>
class RecentSums {
 public:
  __device__ RecentSums(Work* feature, int64_t stride) : feature_(feature), stride_(stride) {
    for (int i = 0; i < kKept; ++i) samples_[i] = -1;
  }

  __device__ void add(int64_t sample, Work x) {
    bool was_added = false;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (samples_[i] == sample) {
        sums_[i] += x;
        was_added = true;
      }
    }
    if (was_added) return;
    if (samples_[0] >= 0) feature_[samples_[0] * stride_] = sums_[0];
#pragma unroll
    for (int i = 0; i + 1 < kKept; ++i) {
      samples_[i] = samples_[i + 1];
      sums_[i] = sums_[i + 1];
    }
    samples_[kKept - 1] = sample;
    sums_[kKept - 1] = feature_[sample * stride_] + x;
  }

  __device__ void write_back() {
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (samples_[i] >= 0) feature_[samples_[i] * stride_] = sums_[i];
    }
  }

 private:
  Work* feature_;
  int64_t stride_;
  int64_t samples_[kKept];
  Work sums_[kKept]{};
};

// A thread owns one column (a feature, or the four of a rotation) in a range of a row's samples, and visits all targets
// of the row. So no two threads add to one entry, and the order of the targets is kept.
struct Ownership {
  int64_t columns;       // columns of a block, one per thread
  int64_t column_tiles;  // blocks along the columns
  int64_t ranges;        // ranges of samples in a block
  int64_t range_tiles;   // blocks along the samples
  int64_t range_length;
  int64_t blocks;
};

template <class Work, class Method>
__global__ void __launch_bounds__(kThreads)
    values_gradient_kernel(const __grid_constant__ Interpolation call, const __grid_constant__ Segment s,
                           const __grid_constant__ SegmentGradient g, const __grid_constant__ Ownership ownership) {
  using Entry = typename Method::template Entry<Work>;
  constexpr int kFeatures = Method::kFeatures;
  constexpr int kInFlight = Method::kInFlight;
  __shared__ Entry entries[kThreads];
  for (int64_t block = blockIdx.x; block < ownership.blocks; block += gridDim.x) {
    const int64_t range_tile = block % ownership.range_tiles;
    const int64_t column_tile = block / ownership.range_tiles % ownership.column_tiles;
    const int64_t batch = block / ownership.range_tiles / ownership.column_tiles;
    const int64_t range = range_tile * ownership.ranges + threadIdx.x / ownership.columns;
    const int64_t column = column_tile * ownership.columns + threadIdx.x % ownership.columns;
    const bool has_column = threadIdx.x / ownership.columns < ownership.ranges && column * kFeatures < s.features;
    const int64_t feature = has_column ? column * kFeatures : 0;
    const int64_t begin = has_column ? range * ownership.range_length : 0;
    const int64_t end = has_column ? begin + ownership.range_length : 0;
    const auto owns = [&](int64_t row) { return begin <= row && row < end; };
    // Without a gradient for values, a cubic still needs the gradient of its slopes, for the times.
    const bool adds_values = g.values != nullptr;
    Work* const first_sum =
        adds_values ? static_cast<Work*>(g.values) + batch * g.values_batch + feature * g.values_feature : nullptr;
    // Neighbouring targets use neighbouring samples, whose sums stay in registers. Four features would need too many
    // registers.
    constexpr int kKept = Method::kRows;
    RecentSums<kKept, Work> sums(first_sum, g.values_sample);
    constexpr bool kSlopes = std::is_same_v<Method, Cubics>;
    RecentSums<kKept, double> slope_sums(
        kSlopes ? g.spline.slopes_gradient + batch * s.samples * s.features + feature : nullptr, s.features);
    for (int64_t first = 0; first < call.targets_count; first += kThreads) {
      const int64_t left_over = call.targets_count - first;
      const int count = static_cast<int>(left_over < kThreads ? left_over : kThreads);
      __syncthreads();  // all threads have read the last tile's entries
      if (static_cast<int>(threadIdx.x) < count) {
        const auto target = find_target<Work, Method>(call, s, batch, first + threadIdx.x, false);
        entries[threadIdx.x] = Method::entry(target.picked, target.curve);
      }
      __syncthreads();
      for (int i = 0; i < count; i += kInFlight) {
        bool takes[kInFlight];
        Work gradient[kInFlight][kFeatures];
#pragma unroll
        for (int u = 0; u < kInFlight; ++u) {
          const Entry& entry = entries[i + u < count ? i + u : i];
          takes[u] = false;
          if (i + u < count && entry.kind == PickKind::kOne) takes[u] = owns(entry.left);
          if (i + u < count && entry.kind == PickKind::kMix) {
            for (int r = 0; r < Method::kRows; ++r) takes[u] = takes[u] || owns(entry.row(r));
          }
          if (takes[u]) load_gradient(s, batch, first + i + u, feature, gradient[u]);
        }
#pragma unroll
        for (int u = 0; u < kInFlight; ++u) {
          if (!takes[u]) continue;
          const Entry& entry = entries[i + u];
          Work shares[Method::kRows][kFeatures];
          const bool mixes = entry.kind == PickKind::kMix;
          if (mixes) Method::set_shares(s, batch, feature, entry, gradient[u], shares);
          for (int r = 0; r < (mixes ? Method::kRows : 1); ++r) {
            const int64_t row = mixes ? entry.row(r) : entry.left;
            if (!owns(row)) continue;
            if constexpr (kSlopes) {
              const double share = r == 0 ? entry.shares.slope_a : entry.shares.slope_b;
              if (mixes) slope_sums.add(row, share_of(share, static_cast<double>(gradient[u][0])));
            }
            if constexpr (kFeatures == 1) {
              if (adds_values) sums.add(row, mixes ? shares[r][0] : gradient[u][0]);
            } else {
              for (int f = 0; f < kFeatures; ++f) {
                first_sum[row * g.values_sample + f * g.values_feature] += mixes ? shares[r][f] : gradient[u][f];
              }
            }
          }
        }
      }
    }
    if constexpr (kFeatures == 1) sums.write_back();
    if constexpr (kSlopes) slope_sums.write_back();
  }
}

// ---- Times ----------------------------------------------------------------------------------------------------------

// A warp handles a target. Sums over features have a fixed order; sums over targets do not.
template <class Work, class Method>
__global__ void __launch_bounds__(kThreads)
    times_gradient_kernel(const __grid_constant__ Interpolation call, const __grid_constant__ Segment s,
                          const __grid_constant__ SegmentGradient g) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (kThreads / kWarp);
  const double per_target = clock_units_per_target_unit(call, s);
  for (int64_t target = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
       target < call.batch * call.targets_count; target += warps) {
    const int64_t batch = target / call.targets_count;
    const int64_t index = target - batch * call.targets_count;
    const auto [picked, bracket, curve] = find_target<Work, Method>(call, s, batch, index, true);
    if (bracket.gap == 0) continue;
    double sums[Method::kSums]{};
    for (int64_t feature = lane * Method::kFeatures; feature < s.features; feature += kWarp * Method::kFeatures) {
      Work gradient[Method::kFeatures];
      load_gradient(s, batch, index, feature, gradient);
      Method::add_sums(s, g, batch, feature, bracket, curve, gradient, sums);
    }
    for (int i = 0; i < Method::kSums; ++i) {
#pragma unroll
      for (int distance = kWarp / 2; distance > 0; distance /= 2)
        sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], distance);
    }
    if (lane != 0) continue;
    double* const row = g.times == nullptr ? nullptr : g.times + batch * s.samples;
    double target_gradient = 0;
    if constexpr (Method::kSums == 1) {
      target_gradient = sums[0] / bracket.gap;
      if (row != nullptr) {
        atomicAdd(row + bracket.left, -share_of(1 - bracket.weight, target_gradient));
        atomicAdd(row + bracket.right, -share_of(bracket.weight, target_gradient));
      }
    } else {
      double times_gradient[kStencilRows];
      gradient_by_times(s.method, curve, bracket, sums, times_gradient);
      for (int i = 0; i < kStencilRows; ++i) {
        const int64_t sample = curve.time_row(s.method, i);
        if (sample < 0) continue;
        if (row != nullptr) atomicAdd(row + sample, times_gradient[i]);
        target_gradient -= times_gradient[i];
      }
    }
    if (g.targets != nullptr) g.targets[target] += target_gradient * per_target;
  }
}

// ---- Splines --------------------------------------------------------------------------------------------------------

// Slopes are computed before the kernels that visit the targets. Those kernels sum the gradient of the slopes. Then the
// kernels below pass it on to the values and the times.

// A thread handles a feature of a row.
template <class Work>
__global__ void __launch_bounds__(kThreads)
    spline_sweep_backward_kernel(const __grid_constant__ Segment s, const __grid_constant__ SegmentGradient g,
                                 int64_t rows) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < rows * s.features;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t batch = i / s.features;
    const int64_t feature = i - batch * s.features;
    const int64_t n = row_length(s, batch);
    const int64_t first = batch * s.samples * s.features + feature;
    if (n == 0) continue;
    spline_sweep_backward<1>(
        g.spline.table + batch * s.samples, n,
        [&](int64_t row, int) { return load<double>(s.value_dtype, s.values, value_offset(s, batch, row, feature)); },
        g.spline.slopes + first, g.spline.slopes_gradient + first, s.features,
        [&](int64_t row, int, double x) {
          if (g.values == nullptr) return;
          static_cast<Work*>(g.values)[batch * g.values_batch + row * g.values_sample + feature * g.values_feature] +=
              static_cast<Work>(x);
        },
        [&](int64_t entry, const SplineRowGradient& x) {
          if (g.times == nullptr) return;
          SplineRowGradient* const to = g.spline.table_gradient + batch * s.samples + entry;
          if (x.before != 0) atomicAdd(&to->before, x.before);
          if (x.after != 0) atomicAdd(&to->after, x.after);
          if (x.carry != 0) atomicAdd(&to->carry, x.carry);
          if (x.back != 0) atomicAdd(&to->back, x.back);
        });
  }
}

// A thread handles a row.
__global__ void __launch_bounds__(kThreads)
    spline_table_backward_kernel(const __grid_constant__ Segment s, const __grid_constant__ SegmentGradient g,
                                 int64_t rows) {
  for (int64_t batch = blockIdx.x * int64_t{kThreads} + threadIdx.x; batch < rows;
       batch += int64_t{gridDim.x} * kThreads) {
    const int64_t n = row_length(s, batch);
    if (n == 0) continue;
    with_clock(s.clock_dtype, [&](auto clock) {
      using Clock = decltype(clock);
      const ClockRow<Clock> times{static_cast<const Clock*>(s.times) + batch * s.times_batch, s.times_sample};
      spline_table_backward(times, n, s.boundary, g.spline.table + batch * s.samples,
                            g.spline.table_gradient + batch * s.samples,
                            [&](int64_t row, double x) { g.times[batch * s.samples + row] += x; });
    });
  }
}

template <class Work, class Method>
cudaError_t launch(const Interpolation& call, const Segment& s, const SegmentGradient& g, int device,
                   cudaStream_t stream) {
  if (s.samples == 0 || s.features == 0) return cudaSuccess;
  if (g.values != nullptr || (std::is_same_v<Method, Cubics> && g.times != nullptr)) {
    const int64_t columns = s.features / Method::kFeatures;
    Ownership ownership{};
    ownership.columns = columns < kThreads ? columns : kThreads;
    ownership.column_tiles = divided_up(columns, ownership.columns);
    ownership.ranges = kThreads / ownership.columns;
    // A row gets more blocks until every multiprocessor has some. Each block searches the row's targets again.
    const int64_t blocks_per_range_tile = call.batch * ownership.column_tiles;
    const int64_t wanted_tiles = divided_up(kBlocksWanted * multiprocessors(device), blocks_per_range_tile);
    const int64_t most_tiles = divided_up(s.samples, ownership.ranges * 16);
    ownership.range_tiles = wanted_tiles < most_tiles ? wanted_tiles : most_tiles;
    ownership.range_length = divided_up(s.samples, ownership.ranges * ownership.range_tiles);
    ownership.blocks = blocks_per_range_tile * ownership.range_tiles;
    values_gradient_kernel<Work, Method>
        <<<blocks_for(ownership.blocks, 1, kMostBlocks), kThreads, 0, stream>>>(call, s, g, ownership);
    if (const cudaError_t code = cudaGetLastError(); code != cudaSuccess) return code;
  }
  if (!is_step(s.method) && !s.causal && (g.times != nullptr || g.targets != nullptr)) {
    const unsigned blocks = blocks_for(call.batch * call.targets_count, kThreads / kWarp, kMostBlocks);
    times_gradient_kernel<Work, Method><<<blocks, kThreads, 0, stream>>>(call, s, g);
    return cudaGetLastError();
  }
  return cudaSuccess;
}

template <class Work>
cudaError_t launch_cubic(const Interpolation& call, const Segment& s, const SegmentGradient& g, int device,
                         cudaStream_t stream) {
  if (s.samples == 0 || s.features == 0) return cudaSuccess;
  const unsigned row_blocks = blocks_for(call.batch, kThreads, kMostBlocks);
  const unsigned column_blocks = blocks_for(call.batch * s.features, kThreads, kMostBlocks);
  const SplineCall spline{s, call.batch, g.spline.table, g.spline.slopes};
  if (const cudaError_t code = launch_splines(spline, true, stream); code != cudaSuccess) return code;
  // slopes_gradient and table_gradient lie side by side before table.
  const auto bytes = reinterpret_cast<char*>(g.spline.table) - reinterpret_cast<char*>(g.spline.slopes_gradient);
  if (const cudaError_t code = cudaMemsetAsync(g.spline.slopes_gradient, 0, static_cast<size_t>(bytes), stream);
      code != cudaSuccess) {
    return code;
  }
  if (const cudaError_t code = launch<Work, Cubics>(call, s, g, device, stream); code != cudaSuccess) return code;
  spline_sweep_backward_kernel<Work><<<column_blocks, kThreads, 0, stream>>>(s, g, call.batch);
  if (g.times != nullptr) spline_table_backward_kernel<<<row_blocks, kThreads, 0, stream>>>(s, g, call.batch);
  return cudaGetLastError();
}

template <class Work>
cudaError_t launch_method(const Interpolation& call, const Segment& s, const SegmentGradient& g, int device,
                          cudaStream_t stream) {
  return with_method(s.method, [&](auto method) {
    using Method = decltype(method);
    if constexpr (Method::kSlopes) {
      // A causal call never mixes.
      return s.causal ? launch<Work, Pairs>(call, s, g, device, stream)
                      : launch_cubic<Work>(call, s, g, device, stream);
    } else if constexpr (Method::kWeighs) {
      return launch<Work, LocalCurves>(call, s, g, device, stream);
    } else if constexpr (Method::kFeatures == 4) {
      return launch<Work, Rotations>(call, s, g, device, stream);
    } else {
      return launch<Work, Pairs>(call, s, g, device, stream);
    }
  });
}

}  // namespace
}  // namespace robocache::interpolation_cuda

extern "C" __attribute__((visibility("default"))) int robocache_cuda_interpolate_backward(
    const robocache::Interpolation* call, const robocache::SegmentGradient* gradients, int32_t device,
    void* stream_handle) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  for (int32_t i = 0; i < call->segment_count; ++i) {
    const Segment& s = call->segments[i];
    const cudaError_t code = works_in_double(s)
                                 ? interpolation_cuda::launch_method<double>(*call, s, gradients[i], device, stream)
                                 : interpolation_cuda::launch_method<float>(*call, s, gradients[i], device, stream);
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}
