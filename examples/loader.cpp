// Makes batches of a recording without Python: writes a cache, opens it, and loops over a loader.
//
//   loader [CACHE]      CACHE is the directory to write, by default loader_example; it is replaced if it exists
#include <robocache/robocache.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace {

// Records two streams, each with a clock of its own: joint angles at 100 Hz and commanded actions at 30 Hz, for 4 s per episode.
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

  // A sample has the joints now and 100 ms ago, and 8 actions from now on, normalised by the cache's statistics.
  robocache::LoaderOptions options;
  options.batch_size = 64;
  options.streams = {{.stream = "joint.position", .delta_timestamps = {-0.1, 0.0}},
                     {.stream = "action",
                      .delta_timestamps = {0.0, 0.02, 0.04, 0.06, 0.08, 0.10, 0.12, 0.14},
                      .normalize = robocache::Normalize::kMeanStd}};
  options.drop_last = true;
  const auto loader = std::make_shared<const robocache::Loader>(dataset, options);

  // A thread makes the next two batches while a batch is used.
  robocache::Feed feed(loader, {.prefetch = 2});
  int64_t batches = 0;
  double sum = 0;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    for (const robocache::Batch& batch : feed.epoch({.seed = 7, .epoch = epoch})) {
      const robocache::TensorView action = batch["action"];  // [64, 8, 7] float32
      const auto* const first = static_cast<const float*>(action.data);
      for (int64_t i = 0; i < action.numel(); ++i) sum += first[i];
      if (batches++ > 0) continue;
      for (const robocache::BatchArray& array : loader->arrays()) {
        std::printf("%-24s %s\n", array.name.c_str(), batch[array.name].describe().c_str());
      }
    }
  }
  std::printf("%lld samples, two epochs in %lld batches, mean action %.3f\n", static_cast<long long>(loader->anchors()),
              static_cast<long long>(batches), sum / static_cast<double>(batches * 64 * 8 * 7));
  return batches == 2 * loader->steps_per_epoch() && batches > 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
