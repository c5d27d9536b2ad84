#include "robocache/cache/residency.hpp"

#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "robocache/core/time.hpp"

namespace robocache {
namespace {

std::vector<EpisodeRows> episode_rows(const Stream& stream) {
  std::vector<EpisodeRows> episodes;
  episodes.reserve(stream.row_offsets.size() - 1);
  for (size_t e = 0; e + 1 < stream.row_offsets.size(); ++e) {
    EpisodeRows entry{stream.row_offsets[e], stream.row_offsets[e + 1] - stream.row_offsets[e], 0, 0.0};
    if (entry.rows > 0) {
      const int64_t last_ns = stream.time_ns[entry.begin + entry.rows - 1];
      entry.first_ns = stream.time_ns[entry.begin];
      if (last_ns > entry.first_ns) {
        entry.rows_per_ns =
            static_cast<double>(entry.rows - 1) / static_cast<double>(ns_between(last_ns, entry.first_ns));
      }
    }
    episodes.push_back(entry);
  }
  return episodes;
}

}  // namespace

std::shared_ptr<const ResidentStream> ResidentStream::get(std::shared_ptr<const Dataset> dataset, int64_t stream,
                                                          Device device) {
  using Key = std::tuple<const Dataset*, int64_t, DeviceType, int32_t>;
  static std::mutex mutex;
  static std::map<Key, std::weak_ptr<const ResidentStream>> living;
  const std::lock_guard<std::mutex> lock(mutex);
  std::erase_if(living, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = living[Key{dataset.get(), stream, device.type, device.index}];
  if (auto resident = entry.lock()) return resident;
  std::shared_ptr<const ResidentStream> made(new ResidentStream(std::move(dataset), stream, device));
  entry = made;
  return made;
}

ResidentStream::ResidentStream(std::shared_ptr<const Dataset> dataset, int64_t stream, Device device)
    : dataset_(std::move(dataset)) {
  const Stream& from = dataset_->streams()[static_cast<size_t>(stream)];
  const std::vector<EpisodeRows> episodes = episode_rows(from);
  const auto upload = [device](const void* data, size_t bytes) {
    DeviceBuffer memory(device, bytes);
    memory.fill_from_host(data, bytes);
    return memory;
  };
  episode_memory_ = upload(episodes.data(), episodes.size() * sizeof(EpisodeRows));
  episodes_ = static_cast<const EpisodeRows*>(episode_memory_.data());
  time_ns_ = from.time_ns;
  values_ = from.values;
  if (device.is_cuda()) {
    const auto rows = static_cast<size_t>(from.rows);
    time_memory_ = upload(from.time_ns, rows * sizeof(int64_t));
    value_memory_ = upload(from.values, rows * static_cast<size_t>(from.features * dtype_size(from.dtype)));
    time_ns_ = static_cast<const int64_t*>(time_memory_.data());
    values_ = value_memory_.data();
  }
}

}  // namespace robocache
