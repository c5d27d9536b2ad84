#include "robocache/source/resident.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

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

DeviceBuffer copied(Device device, const void* data, size_t bytes) {
  DeviceBuffer memory(device, bytes);
  memory.fill_from_host(data, bytes);
  return memory;
}

// The first of the living that `is` the one looked for, or what `make` gives.
template <class Resident, class Is, class Make>
std::shared_ptr<const Resident> living_or_made(const Is& is, const Make& make) {
  static std::mutex mutex;
  static std::vector<std::weak_ptr<const Resident>> living;
  const std::lock_guard<std::mutex> lock(mutex);
  std::erase_if(living, [](const auto& entry) { return entry.expired(); });
  for (const auto& entry : living) {
    if (auto resident = entry.lock(); resident && is(*resident)) return resident;
  }
  std::shared_ptr<const Resident> made = make();
  living.push_back(made);
  return made;
}

}  // namespace

std::shared_ptr<const ResidentClock> ResidentClock::get(std::shared_ptr<const Dataset> dataset, int64_t stream,
                                                        Device device) {
  const auto is = [&](const ResidentClock& clock) {
    if (clock.dataset_ != dataset || clock.device_ != device) return false;
    if (std::find(clock.streams_.begin(), clock.streams_.end(), stream) != clock.streams_.end()) return true;
    const auto streams = dataset->streams();
    if (!same_clock(streams[static_cast<size_t>(clock.streams_[0])], streams[static_cast<size_t>(stream)]))
      return false;
    clock.streams_.push_back(stream);
    return true;
  };
  return living_or_made<ResidentClock>(
      is, [&] { return std::shared_ptr<const ResidentClock>(new ResidentClock(dataset, stream, device)); });
}

ResidentClock::ResidentClock(std::shared_ptr<const Dataset> dataset, int64_t stream, Device device)
    : dataset_(std::move(dataset)), device_(device), streams_{stream} {
  const Stream& from = dataset_->streams()[static_cast<size_t>(stream)];
  time_ns_ = from.time_ns;
  episodes_ = episode_rows(from);
  on_device_ = on_host();
  if (device.is_cuda()) {
    time_memory_ = copied(device, time_ns_, static_cast<size_t>(from.rows) * sizeof(int64_t));
    episode_memory_ = copied(device, episodes_.data(), episodes_.size() * sizeof(EpisodeRows));
    on_device_ = {static_cast<const int64_t*>(time_memory_.data()),
                  static_cast<const EpisodeRows*>(episode_memory_.data())};
  }
}

std::shared_ptr<const ResidentStream> ResidentStream::get(std::shared_ptr<const Dataset> dataset, int64_t stream,
                                                          Device device) {
  const auto is = [&](const ResidentStream& resident) {
    return resident.dataset_ == dataset && resident.stream_ == stream && resident.device_ == device;
  };
  return living_or_made<ResidentStream>(
      is, [&] { return std::shared_ptr<const ResidentStream>(new ResidentStream(dataset, stream, device)); });
}

ResidentStream::ResidentStream(std::shared_ptr<const Dataset> dataset, int64_t stream, Device device)
    : dataset_(std::move(dataset)), stream_(stream), device_(device) {
  clock_ = ResidentClock::get(dataset_, stream, device);
  const Stream& from = dataset_->streams()[static_cast<size_t>(stream)];
  rows_ = {clock_->on_device(), from.values, from.features, from.dtype};
  if (device.is_cuda()) {
    value_memory_ =
        copied(device, from.values, static_cast<size_t>(from.rows * from.features * dtype_size(from.dtype)));
    rows_.values = value_memory_.data();
  }
}

}  // namespace robocache
