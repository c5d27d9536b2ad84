// Runs one job of the library on the CPU, for bench/instructions.py to count its instructions.
//
//   instructions JOB REPETITIONS      prints the job's elements; without arguments the names of the jobs
#include <robocache/robocache.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

using robocache::CudaStream;
using robocache::DType;
using robocache::TensorView;

// A job returns a function that does it once, and the number of elements that it writes or, of points, reads.
struct Job {
  std::function<void()> run;
  int64_t elements;
};

// A tensor with memory of its own.
struct Owned {
  std::shared_ptr<std::vector<std::byte>> memory;
  TensorView view;
};

Owned make(TensorView shape) {
  const auto bytes = static_cast<size_t>(shape.numel() * robocache::dtype_size(shape.dtype));
  Owned owned{std::make_shared<std::vector<std::byte>>(bytes), shape};
  owned.view.data = owned.memory->data();
  return owned;
}

template <class T>
T* data(const Owned& owned) {
  return static_cast<T*>(owned.view.data);
}

// Numbers that are finite in every type: the bytes 0 to 59.
Owned numbers(DType dtype, std::initializer_list<int64_t> shape) {
  Owned owned = make(TensorView::contiguous(nullptr, dtype, shape));
  for (size_t i = 0; i < owned.memory->size(); ++i) (*owned.memory)[i] = static_cast<std::byte>(i * 7 % 60);
  return owned;
}

Owned clock(int64_t samples, int64_t period_ns) {
  Owned times = make(TensorView::contiguous(nullptr, DType::kInt64, {samples}));
  for (int64_t i = 0; i < samples; ++i) data<int64_t>(times)[i] = i * period_ns + i * i % 5;
  return times;
}

Job resample(DType dtype, robocache::InterpolationMethod method) {
  constexpr int64_t kFeatures = 256;
  const Owned values = numbers(dtype, {32, kFeatures});
  const Owned times = clock(32, 10'000'000);
  const Owned targets = clock(16, 17'000'001);
  const Owned out = make(TensorView::contiguous(nullptr, dtype, {16, kFeatures}));
  return {[=] {
            robocache::InterpolationOptions options;
            options.method = method;
            robocache::resample_trajectories({.values = values.view,
                                              .times = times.view,
                                              .target_times = targets.view,
                                              .options = options,
                                              .out = out.view},
                                             CudaStream{});
          },
          out.view.numel()};
}

Job fuse() {
  const Owned camera = numbers(DType::kFloat32, {10, 256}), camera_times = clock(10, 33'000'000);
  const Owned imu = numbers(DType::kFloat16, {60, 64}), imu_times = clock(60, 5'000'000);
  const Owned targets = clock(16, 17'000'001);
  const Owned out = make(TensorView::contiguous(nullptr, DType::kFloat32, {16, 320}));
  return {[=] {
            const robocache::FuseStream streams[] = {
                {.name = "camera", .values = camera.view, .times = camera_times.view, .scale = 0.5, .shift = 1.0},
                {.name = "imu", .values = imu.view, .times = imu_times.view}};
            robocache::fuse_multimodal(streams, targets.view, {&out.view, 1}, CudaStream{});
          },
          out.view.numel()};
}

Owned cloud(int64_t points) {
  Owned owned = make(TensorView::contiguous(nullptr, DType::kFloat32, {points, 3}));
  uint32_t state = 1;
  for (int64_t i = 0; i < 3 * points; ++i) {
    state = state * 1664525U + 1013904223U;
    data<float>(owned)[i] = static_cast<float>(state >> 8) * 0x1p-24F;
  }
  return owned;
}

Job voxelize(robocache::VoxelMode mode) {
  const Owned points = cloud(4096);
  robocache::VoxelizeOptions options;
  options.voxel_size = {1.0 / 16, 1.0 / 16, 1.0 / 16};
  options.grid_size = {16, 16, 16};
  options.modes = {mode};
  const bool sums = mode == robocache::VoxelMode::kMean;
  const robocache::PointArguments arguments{.points = points.view,
                                            .features = sums ? std::optional(points.view) : std::nullopt};
  const Owned out = make(robocache::voxelize_outputs(arguments, options)[0]);
  return {[=, keep = points] { robocache::voxelize_pointcloud(arguments, options, {out.view}, CudaStream{}); }, 4096};
}

Job integrate() {
  constexpr int64_t kSide = 32;
  const Owned grid = make(TensorView::contiguous(nullptr, DType::kFloat32, {kSide, kSide, kSide}));
  const Owned weights = make(grid.view);
  const Owned depth = make(TensorView::contiguous(nullptr, DType::kFloat32, {48, 64}));
  for (int64_t i = 0; i < depth.view.numel(); ++i) data<float>(depth)[i] = 0.9F;
  const Owned pose = make(TensorView::contiguous(nullptr, DType::kFloat64, {4, 4}));
  for (int i = 0; i < 4; ++i) data<double>(pose)[5 * i] = 1;
  const Owned camera = make(TensorView::contiguous(nullptr, DType::kFloat64, {3, 3}));
  const double numbers_of_camera[] = {48, 0, 32, 0, 48, 24, 0, 0, 1};
  for (int i = 0; i < 9; ++i) data<double>(camera)[i] = numbers_of_camera[i];
  const robocache::TsdfOptions options{
      .grid_min = {-0.5, -0.4, 0.3}, .voxel_size = {0.025, 0.025, 0.025}, .truncation = 0.1, .space_carving = true};
  return {[=] {
            robocache::integrate_tsdf(grid.view, weights.view, depth.view, pose.view, camera.view, options,
                                      CudaStream{});
          },
          grid.view.numel()};
}

Job images(const char* options) {
  const Owned frames = numbers(DType::kUInt8, {1, 120, 160, 3});
  const auto batch =
      std::make_shared<robocache::ImageBatch>(frames.view, std::nullopt, robocache::image_options_from_json(options));
  const Owned out = make(batch->output());
  return {[=, keep = frames] { batch->run({}, out.view, nullptr, CudaStream{}); }, out.view.numel()};
}

// 64 samples of two streams on their own clocks: 2 x 14 and 16 x 32 numbers, the second ones normalised.
Job loader(DType stored, DType dtype) {
  const auto folder = std::filesystem::temp_directory_path() / "robocache-instructions";
  {
    robocache::Writer writer(folder.string(), robocache::WriteMode::kOverwrite);
    writer.begin_episode("{}");
    writer.append("joint", clock(800, 5'000'000).view, numbers(stored, {800, 14}).view);
    writer.append("action", clock(200, 20'000'000).view, numbers(stored, {200, 32}).view);
    writer.end_episode();
    writer.close("{}");
  }
  robocache::LoaderOptions options;
  options.batch_size = 64;
  options.dtype = dtype;
  std::vector<double> steps;
  for (int k = 0; k < 16; ++k) steps.push_back(0.017 * k);
  options.streams = {{.stream = "joint", .delta_timestamps = {-0.1, 0.0}},
                     {.stream = "action", .delta_timestamps = steps, .normalize = robocache::Normalize::kMinMax}};
  const auto made = std::make_shared<const robocache::Loader>(robocache::Dataset::open(folder.string()), options);
  const auto memory = std::make_shared<robocache::DeviceBuffer>(robocache::Device{}, made->batch_bytes());
  return {[=] { made->fill({.seed = 7}, memory->data(), CudaStream{}); }, 64 * (2 * 14 + 16 * 32)};
}

using Method = robocache::InterpolationMethod;
using robocache::VoxelMode;

const std::map<std::string, std::function<Job()>> kJobs = {
    {"resample_linear_float32", [] { return resample(DType::kFloat32, Method::kLinear); }},
    {"resample_linear_float16", [] { return resample(DType::kFloat16, Method::kLinear); }},
    {"resample_linear_bfloat16", [] { return resample(DType::kBFloat16, Method::kLinear); }},
    {"resample_previous_float32", [] { return resample(DType::kFloat32, Method::kPrevious); }},
    {"resample_pchip_float32", [] { return resample(DType::kFloat32, Method::kPchip); }},
    {"fuse", fuse},
    {"voxelize_count", [] { return voxelize(VoxelMode::kCount); }},
    {"voxelize_mean", [] { return voxelize(VoxelMode::kMean); }},
    {"integrate_tsdf", integrate},
    {"image_resize_uint8", [] { return images(R"({"size": [96, 128], "dtype": "uint8"})"); }},
    {"image_resize_float32", [] { return images(R"({"size": [96, 128], "mean": "imagenet", "std": "imagenet"})"); }},
    {"image_crop_float32", [] { return images(R"({"crop": [96, 128], "mean": "imagenet", "std": "imagenet"})"); }},
    {"image_crop_float16",
     [] { return images(R"({"crop": [96, 128], "mean": "imagenet", "std": "imagenet", "dtype": "float16"})"); }},
    {"image_crop_bfloat16",
     [] { return images(R"({"crop": [96, 128], "mean": "imagenet", "std": "imagenet", "dtype": "bfloat16"})"); }},
    {"image_crop_float16_hwc", [] { return images(R"({"crop": [96, 128], "dtype": "float16", "layout": "hwc"})"); }},
    {"image_colours", [] { return images(R"({"crop": [96, 128], "saturation": 0.5, "hue": 0.1, "dtype": "uint8"})"); }},
    {"loader_float32", [] { return loader(DType::kFloat32, DType::kFloat32); }},
    {"loader_float16", [] { return loader(DType::kFloat16, DType::kFloat16); }},
    {"loader_bfloat16", [] { return loader(DType::kBFloat16, DType::kBFloat16); }},
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    for (const auto& [name, job] : kJobs) std::puts(name.c_str());
    return argc == 1 ? 0 : 2;
  }
  const Job job = kJobs.at(argv[1])();
  for (int i = std::atoi(argv[2]); i > 0; --i) job.run();
  std::printf("%lld\n", static_cast<long long>(job.elements));
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
