// From recording to batches without Python: write a cache, open it, loop over a loader.
//
//   loader [CACHE]      the directory to write, replaced if it is there; by default loader_example
#include <robocache/batch/loader.hpp>
#include <robocache/cache/dataset.hpp>
#include <robocache/cache/writer.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

// Two sensors, each on its own clock: joint angles at 100 Hz and commanded actions at 30 Hz, 4 s an episode.
void record(const std::string& path) {
  robocache::Writer writer(path, robocache::WriteMode::kOverwrite);
  for (int episode = 0; episode < 5; ++episode) {
    writer.begin_episode(R"({"task": "wave", "success": true})");
    const auto append = [&](const char* stream, double rate_hz, int64_t features) {
      std::vector<int64_t> times;
      std::vector<float> values;
      for (int64_t i = 0; i < static_cast<int64_t>(4 * rate_hz); ++i) {
        const double seconds = static_cast<double>(i) / rate_hz;
        times.push_back(std::llrint(seconds * 1e9));
        for (int64_t d = 0; d < features; ++d) {
          values.push_back(static_cast<float>(std::sin(seconds + static_cast<double>(episode + d))));
        }
      }
      const auto rows = static_cast<int64_t>(times.size());
      using robocache::DType;
      using robocache::TensorView;
      writer.append(stream, TensorView::contiguous(times.data(), DType::kInt64, {rows}),
                    TensorView::contiguous(values.data(), DType::kFloat32, {rows, features}));
    };
    append("joint.position", 100, 7);
    append("action", 30, 7);
    writer.end_episode();
  }
  writer.close(R"({"recorder": "examples/loader.cpp"})");
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string path = argc > 1 ? argv[1] : "loader_example";
  record(path);

  const auto dataset = robocache::Dataset::open(path);
  for (const robocache::Stream& stream : dataset->streams()) {
    std::printf("%-16s %6lld rows at %.1f Hz\n", stream.name.c_str(), static_cast<long long>(stream.rows),
                stream.rate_hz);
  }

  // Each sample: the joints now and 100 ms ago, and the next 8 actions, normalised with the cache's own statistics.
  robocache::LoaderOptions options;
  options.batch_size = 64;
  options.streams = {{.stream = "joint.position", .delta_timestamps = {-0.1, 0.0}},
                     {.stream = "action",
                      .delta_timestamps = {0.0, 0.02, 0.04, 0.06, 0.08, 0.10, 0.12, 0.14},
                      .normalize = robocache::Normalize::kMeanStd}};
  options.drop_last = true;
  const robocache::Loader loader(dataset, options);

  robocache::DeviceBuffer memory(options.device, loader.batch_bytes());
  robocache::BatchPosition position{.seed = 7};
  while (const int64_t samples = loader.samples_at(position)) {
    loader.fill(position, memory.data(), {});
    for (const robocache::BatchArray& array : loader.arrays()) {
      const robocache::TensorView view = loader.view(array, samples, memory.data());
      if (position.samples == 0) std::printf("%-24s %s\n", array.name.c_str(), view.describe().c_str());
    }
    position = loader.after(position);
  }
  std::printf("%lld samples in %lld batches\n", static_cast<long long>(loader.anchors()),
              static_cast<long long>(loader.steps_per_epoch()));
  return loader.steps_per_epoch() > 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
