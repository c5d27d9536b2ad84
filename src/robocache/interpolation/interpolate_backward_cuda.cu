#include <cuda_runtime.h>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/interpolation/gradient.hpp"
#include "robocache/interpolation/interpolate_backward.hpp"

namespace robocache {
namespace {

constexpr int kThreads = 128;
constexpr int kWarp = 32;
constexpr int kInFlight = 4;  // loads of the gradient before the first is used
constexpr int64_t kBlocksWanted = 132 * 8;
constexpr int64_t kMostBlocks = int64_t{1} << 30;

template <class Work>
__device__ Work load(DType dtype, const void* data, int64_t offset) {
  Work x{};
  with_type(dtype, [&](auto element) { x = to_work<Work>(static_cast<const decltype(element)*>(data)[offset]); });
  return x;
}

// What target `index` of a row takes; the search begins where an even clock would have it.
template <class Work, class Clock>
__device__ Pick<Work> pick_target(const Interpolation& call, const Segment& s, const ClockRow<Clock>& times,
                                  int64_t length, int64_t batch, int64_t index) {
  const StreamTarget<Clock> target = target_on<Clock>(call, s, batch, index);
  int64_t hint = static_cast<int64_t>(static_cast<double>(index) / static_cast<double>(call.targets_count) *
                                      static_cast<double>(length));
  return pick<Work>(times, target.exists ? length : 0, target.time, rule_of<Clock>(s), hint);
}

// Sums of one feature at the two samples that a thread added to last. They leave for memory when others come, so every
// entry is summed in the order of the targets, as on the CPU.
template <class Work>
class RecentSums {
 public:
  __device__ RecentSums(Work* feature, int64_t stride) : feature_(feature), stride_(stride) {}

  __device__ void add(int64_t sample, Work x) {
    if (sample == older_) {
      older_sum_ += x;
    } else if (sample == newer_) {
      newer_sum_ += x;
    } else {
      if (older_ >= 0) feature_[older_ * stride_] = older_sum_;
      older_ = newer_;
      older_sum_ = newer_sum_;
      newer_ = sample;
      newer_sum_ = feature_[sample * stride_] + x;
    }
  }

  __device__ void write_back() {
    if (older_ >= 0) feature_[older_ * stride_] = older_sum_;
    if (newer_ >= 0) feature_[newer_ * stride_] = newer_sum_;
  }

 private:
  Work* feature_;
  int64_t stride_;
  int64_t older_ = -1;
  int64_t newer_ = -1;
  Work older_sum_{};
  Work newer_sum_{};
};

// A thread owns one feature of a range of a row's samples and goes through all the row's targets: no two threads add to
// one entry, and the order of the targets is kept.
struct Ownership {
  int64_t columns;        // features of a block, one a thread
  int64_t feature_tiles;  // blocks side by side
  int64_t ranges;         // ranges of samples of a block
  int64_t range_tiles;    // blocks below each other
  int64_t range_length;
  int64_t blocks;
};

template <class Work>
__global__ void __launch_bounds__(kThreads)
    values_gradient_kernel(const __grid_constant__ Interpolation call, const __grid_constant__ Segment s,
                           const __grid_constant__ SegmentGradient g, const __grid_constant__ Ownership own) {
  __shared__ Pick<Work> picks[kThreads];
  for (int64_t block = blockIdx.x; block < own.blocks; block += gridDim.x) {
    const int64_t range_tile = block % own.range_tiles;
    const int64_t feature_tile = block / own.range_tiles % own.feature_tiles;
    const int64_t batch = block / own.range_tiles / own.feature_tiles;
    const int64_t length = row_length(s, batch);
    const int64_t range = range_tile * own.ranges + threadIdx.x / own.columns;
    const int64_t feature = feature_tile * own.columns + threadIdx.x % own.columns;
    const bool works = threadIdx.x / own.columns < own.ranges && feature < s.features;
    const int64_t begin = works ? range * own.range_length : 0;
    const int64_t end = works ? begin + own.range_length : 0;
    const Work scale = works && s.scaled ? number_of<Work>(s.scale, s.scale_per_feature, feature) : Work(1);
    const int64_t gradient_at = batch * s.out_batch + feature * s.out_feature;
    RecentSums<Work> sums(
        static_cast<Work*>(g.values) + batch * g.values_batch + (works ? feature : 0) * g.values_feature,
        g.values_sample);
    for (int64_t first = 0; first < call.targets_count; first += kThreads) {
      const int64_t left_over = call.targets_count - first;
      const int count = static_cast<int>(left_over < kThreads ? left_over : kThreads);
      __syncthreads();  // the last tile's picks have been read
      if (threadIdx.x < count) {
        with_clock(s.clock_dtype, [&](auto clock) {
          using Clock = decltype(clock);
          const ClockRow<Clock> times{static_cast<const Clock*>(s.times) + batch * s.times_batch, s.times_sample};
          picks[threadIdx.x] = pick_target<Work>(call, s, times, length, batch, first + threadIdx.x);
        });
      }
      __syncthreads();
      for (int i = 0; i < count; i += kInFlight) {
        bool takes_left[kInFlight];
        bool takes_right[kInFlight];
        Work gradient[kInFlight];
#pragma unroll
        for (int u = 0; u < kInFlight; ++u) {
          const Pick<Work>& picked = picks[i + u < count ? i + u : i];
          const bool exists = i + u < count && picked.kind != PickKind::kAbsent;
          takes_left[u] = exists && begin <= picked.left && picked.left < end;
          takes_right[u] = exists && picked.kind == PickKind::kMix && begin <= picked.right && picked.right < end;
          if (takes_left[u] || takes_right[u]) {
            gradient[u] = load<Work>(s.out_dtype, s.out, gradient_at + (first + i + u) * s.out_target);
          }
        }
#pragma unroll
        for (int u = 0; u < kInFlight; ++u) {
          if (!takes_left[u] && !takes_right[u]) continue;
          const Pick<Work>& picked = picks[i + u];
          const Work x = s.scaled ? share_of(scale, gradient[u]) : gradient[u];
          const Work of_left = picked.kind == PickKind::kMix ? Work(1) - picked.weight : Work(1);
          if (takes_left[u]) sums.add(picked.left, share_of(of_left, x));
          if (takes_right[u]) sums.add(picked.right, share_of(picked.weight, x));
        }
      }
    }
    sums.write_back();
  }
}

// A warp a target: the sum over the features in a fixed order, the sums over targets in any.
template <class Work>
__global__ void __launch_bounds__(kThreads)
    times_gradient_kernel(const __grid_constant__ Interpolation call, const __grid_constant__ Segment s,
                          const __grid_constant__ SegmentGradient g) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (kThreads / kWarp);
  const double per_target = clock_units_per_target_unit(call, s);
  for (int64_t entry = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
       entry < call.batch * call.targets_count; entry += warps) {
    const int64_t batch = entry / call.targets_count;
    const int64_t index = entry - batch * call.targets_count;
    Bracket bracket{};
    with_clock(s.clock_dtype, [&](auto clock) {
      using Clock = decltype(clock);
      const ClockRow<Clock> times{static_cast<const Clock*>(s.times) + batch * s.times_batch, s.times_sample};
      const int64_t length = row_length(s, batch);
      const Pick<Work> picked = pick_target<Work>(call, s, times, length, batch, index);
      bracket = bracket_of(times, length, rule_of<Clock>(s), picked);
    });
    if (bracket.gap == 0) continue;
    const int64_t before = batch * s.values_batch + bracket.left * s.values_sample;
    const int64_t after = batch * s.values_batch + bracket.right * s.values_sample;
    double rise = 0;
    for (int64_t d = lane; d < s.features; d += kWarp) {
      Work x = load<Work>(s.out_dtype, s.out, batch * s.out_batch + index * s.out_target + d * s.out_feature);
      if (s.scaled) x = share_of(number_of<Work>(s.scale, s.scale_per_feature, d), x);
      const double a = static_cast<double>(load<Work>(s.value_dtype, s.values, before + d * s.values_feature));
      const double b = static_cast<double>(load<Work>(s.value_dtype, s.values, after + d * s.values_feature));
      rise += share_of(b - a, static_cast<double>(x));
    }
#pragma unroll
    for (int apart = kWarp / 2; apart > 0; apart /= 2) rise += __shfl_xor_sync(0xffffffffu, rise, apart);
    if (lane != 0) continue;
    const double slope = rise / bracket.gap;
    if (g.targets != nullptr) g.targets[entry] += slope * per_target;
    if (g.times != nullptr) {
      double* const row = g.times + batch * s.samples;
      atomicAdd(row + bracket.left, -share_of(1 - bracket.weight, slope));
      atomicAdd(row + bracket.right, -share_of(bracket.weight, slope));
    }
  }
}

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

unsigned grid(int64_t blocks) { return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks); }

template <class Work>
cudaError_t launch(const Interpolation& call, const Segment& s, const SegmentGradient& g, cudaStream_t stream) {
  if (g.values != nullptr && s.samples > 0 && s.features > 0) {
    Ownership own{};
    own.columns = s.features < kThreads ? s.features : kThreads;
    own.feature_tiles = divide_up(s.features, own.columns);
    own.ranges = kThreads / own.columns;
    // More blocks a row until every multiprocessor has some; each searches the row's targets again.
    const int64_t others = call.batch * own.feature_tiles;
    const int64_t wanted = divide_up(kBlocksWanted, others);
    const int64_t most = divide_up(s.samples, own.ranges * 16);
    own.range_tiles = wanted < most ? wanted : most;
    own.range_length = divide_up(s.samples, own.ranges * own.range_tiles);
    own.blocks = others * own.range_tiles;
    values_gradient_kernel<Work><<<grid(own.blocks), kThreads, 0, stream>>>(call, s, g, own);
    if (const cudaError_t code = cudaGetLastError(); code != cudaSuccess) return code;
  }
  const bool moves = !is_step(s.method) && !s.causal && s.samples > 0 && s.features > 0;
  if (moves && (g.times != nullptr || g.targets != nullptr)) {
    const int64_t blocks = divide_up(call.batch * call.targets_count, kThreads / kWarp);
    times_gradient_kernel<Work><<<grid(blocks), kThreads, 0, stream>>>(call, s, g);
    return cudaGetLastError();
  }
  return cudaSuccess;
}

}  // namespace
}  // namespace robocache

extern "C" __attribute__((visibility("default"))) int robocache_cuda_interpolate_backward(
    const robocache::Interpolation* call, const robocache::SegmentGradient* gradients, int32_t device,
    void* stream_handle) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  for (int32_t i = 0; i < call->segment_count; ++i) {
    const Segment& s = call->segments[i];
    const cudaError_t code = works_in_double(s) ? launch<double>(*call, s, gradients[i], stream)
                                                : launch<float>(*call, s, gradients[i], stream);
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}
