#include "robocache/source/resident.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "robocache/core/error.hpp"
#include "robocache/core/host_memory.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/core/time.hpp"
#include "robocache/source/living.hpp"
#include "robocache/source/read_rows.hpp"

namespace robocache {
namespace {

// Returns the offset of a row's first byte among the stream's values.
int64_t first_byte(const Stream& stream, int64_t row) {
  return stream.blob_offsets != nullptr ? stream.blob_offsets[row] : row * stream.features * dtype_size(stream.dtype);
}

void fill_episodes(const Stream& stream, const int64_t* time_ns, EpisodeRows* episodes) {
  for (size_t e = 0; e + 1 < stream.row_offsets.size(); ++e) {
    EpisodeRows entry{stream.row_offsets[e], stream.rows_of(static_cast<int64_t>(e)), 0, 0.0};
    if (entry.rows > 0) {
      const int64_t last_ns = time_ns[entry.begin + entry.rows - 1];
      entry.first_ns = time_ns[entry.begin];
      if (last_ns > entry.first_ns) {
        entry.rows_per_ns =
            static_cast<double>(entry.rows - 1) / static_cast<double>(ns_between(last_ns, entry.first_ns));
      }
    }
    episodes[e] = entry;
  }
}

// Reads the bytes [begin, begin + bytes) of the file's elements. If the file has no name any more, copies them from the
// mapping, where the elements begin at `mapped`.
void read(const StreamFile& from, const void* mapped, int64_t begin, int64_t bytes, void* to) {
  constexpr int64_t kPiece = int64_t{16} << 20;
  const FileRows file{from.file.get(), from.offset};
  parallel_for(bytes, kPiece, [&](int64_t first, int64_t end) {
    auto* const destination = static_cast<char*>(to) + first;
    const auto size = static_cast<size_t>(end - first);
    if (file.descriptor >= 0) {
      read_rows(file, begin + first, size, destination);
    } else {
      std::memcpy(destination, static_cast<const char*>(mapped) + begin + first, size);
    }
  });
}

// Fills the memory with bytes from `begin` on. Each piece is read while the previous one is copied.
void copy_to_device(const StreamFile& from, const void* mapped, int64_t begin, DeviceBuffer& to) {
  constexpr int64_t kPiece = int64_t{32} << 20;
  const Device device = to.device();
  const auto bytes = static_cast<int64_t>(to.bytes());
  struct Piece {
    PinnedBuffer memory;
    CudaEvent copied;
  } pieces[2];
  const OwnedCudaStream stream(device);
  try {
    for (int64_t offset = 0; offset < bytes; offset += kPiece) {
      Piece& piece = pieces[offset / kPiece % 2];
      const int64_t size = std::min(kPiece, bytes - offset);
      if (piece.memory.data() == nullptr) {
        piece.memory = PinnedBuffer(device, static_cast<size_t>(size));
        piece.copied = CudaEvent(device);
      }
      piece.copied.wait();
      read(from, mapped, begin + offset, size, piece.memory.data());
      check_cuda(cuda_backend().copy_from_host(device.index, static_cast<char*>(to.data()) + offset,
                                               piece.memory.data(), static_cast<size_t>(size), stream.get().handle),
                 "copying to the device");
      piece.copied.record(stream.get());
    }
  } catch (...) {
    cuda_backend().synchronize(device.index, stream.get().handle);  // copies may still be reading the pieces
    throw;
  }
  stream.wait();
}

// Adds to an OutOfMemory error what needed the memory, how much it needed, and how much is free.
template <class Make>
auto with_memory_report(const std::string& what, int64_t bytes, Device device, const Make& make) {
  try {
    return make();
  } catch (const OutOfMemory& refusal) {
    std::string free;
    if (device.is_cuda()) {
      CudaDeviceInfo info{};
      check_cuda(cuda_backend().device_info(device.index, &info), "device_info");
      free = std::to_string(info.memory_free_bytes) + " on " + device_name(device) + " and ";
    }
    throw OutOfMemory(what, ": needs ", bytes, " bytes, free are ", free, host_memory().free_bytes,
                      " of host memory: ", refusal.what());
  }
}

Living<ResidentClock>& living_clocks() {
  static Living<ResidentClock> clocks;
  return clocks;
}

Living<ResidentStream>& living_streams() {
  static Living<ResidentStream> streams;
  return streams;
}

bool is_on_host(Device device, Tier tier) { return tier != Tier::kDevice || !device.is_cuda(); }

// Gives equal choices one form: the host reads mapped files for every device, and on the CPU kPinned equals kDevice.
void canonicalise(Device& device, Tier& tier, std::optional<RowRange>& part) {
  if (tier == Tier::kMapped) {
    device = {};
    part.reset();
  }
  if (tier == Tier::kPinned && !device.is_cuda()) tier = Tier::kDevice;
}

}  // namespace

std::shared_ptr<const ResidentClock> ResidentClock::get(std::shared_ptr<const Dataset> dataset, int64_t stream,
                                                        Device device) {
  const auto host = device.is_cuda() ? get(dataset, stream, {}) : nullptr;
  const auto matches = [&](const ResidentClock& clock) { return clock.matches(*dataset, stream, device); };
  return living_clocks().get(matches, [&] {
    return with_memory_report(
        "the clock of stream '" + dataset->stream(stream).name + "'", bytes(*dataset, stream), device,
        [&] { return std::shared_ptr<const ResidentClock>(new ResidentClock(dataset, stream, device, host)); });
  });
}

bool ResidentClock::matches(const Dataset& dataset, int64_t stream, Device device) const {
  if (dataset_.get() != &dataset || device_ != device) return false;
  if (std::find(streams_.begin(), streams_.end(), stream) != streams_.end()) return true;
  if (!same_clock(dataset.stream(streams_[0]), dataset.stream(stream))) return false;
  streams_.push_back(stream);
  return true;
}

int64_t ResidentClock::bytes_present(const Dataset& dataset, int64_t stream, Device device) {
  const bool is_present =
      living_clocks().contains([&](const ResidentClock& clock) { return clock.matches(dataset, stream, device); });
  return is_present ? bytes(dataset, stream) : 0;
}

int64_t ResidentClock::bytes(const Dataset& dataset, int64_t stream) {
  return dataset.stream(stream).rows * static_cast<int64_t>(sizeof(int64_t)) +
         dataset.num_episodes() * static_cast<int64_t>(sizeof(EpisodeRows));
}

ResidentClock::ResidentClock(std::shared_ptr<const Dataset> dataset, int64_t stream, Device device,
                             std::shared_ptr<const ResidentClock> host)
    : dataset_(std::move(dataset)), device_(device), streams_{stream}, host_(std::move(host)) {
  const Stream& from = dataset_->stream(stream);
  time_memory_ = DeviceBuffer(device, static_cast<size_t>(from.rows) * sizeof(int64_t));
  episode_memory_ = DeviceBuffer(device, static_cast<size_t>(dataset_->num_episodes()) * sizeof(EpisodeRows));
  on_device_ = {static_cast<const int64_t*>(time_memory_.data()),
                static_cast<const EpisodeRows*>(episode_memory_.data())};
  if (host_ != nullptr) {
    time_memory_.fill_from_host(on_host().time_ns, time_memory_.bytes());
    episode_memory_.fill_from_host(on_host().episodes, episode_memory_.bytes());
  } else {
    read(dataset_->open_times(stream), from.time_ns, 0, static_cast<int64_t>(time_memory_.bytes()),
         time_memory_.data());
    fill_episodes(from, on_device_.time_ns, static_cast<EpisodeRows*>(episode_memory_.data()));
  }
}

std::shared_ptr<const ResidentStream> ResidentStream::get(std::shared_ptr<const Dataset> dataset, int64_t stream,
                                                          Device device, Tier tier, std::optional<RowRange> part) {
  canonicalise(device, tier, part);
  const auto matches = [&](const ResidentStream& resident) {
    return resident.matches(*dataset, stream, device, tier, part);
  };
  return living_streams().get(matches, [&] {
    return with_memory_report(
        "stream '" + dataset->stream(stream).name + "'", bytes(*dataset, stream, part), device,
        [&] { return std::shared_ptr<const ResidentStream>(new ResidentStream(dataset, stream, device, tier, part)); });
  });
}

int64_t ResidentStream::bytes(const Dataset& dataset, int64_t stream, std::optional<RowRange> part) {
  const Stream& from = dataset.stream(stream);
  return first_byte(from, part ? part->end : from.rows) - first_byte(from, part ? part->begin : 0);
}

int64_t ResidentStream::bytes_present(const Dataset& dataset, int64_t stream, Device device, Tier tier,
                                      std::optional<RowRange> part) {
  canonicalise(device, tier, part);
  const int64_t total = bytes(dataset, stream, part);
  if (tier == Tier::kMapped || total == 0) return 0;
  const auto matches = [&](const ResidentStream& resident) {
    return resident.matches(dataset, stream, device, tier, part);
  };
  if (living_streams().contains(matches)) return total;
  if (!is_on_host(device, tier) || part || local_world_size() == 1) return 0;
  return HostCopy::bytes_present(dataset.open_values(stream).identity, total);
}

bool ResidentStream::matches(const Dataset& dataset, int64_t stream, Device device, Tier tier,
                             std::optional<RowRange> part) const {
  return dataset_.get() == &dataset && stream_ == stream && device_ == device && tier_ == tier && part_ == part;
}

ResidentStream::ResidentStream(std::shared_ptr<const Dataset> dataset, int64_t stream, Device device, Tier tier,
                               std::optional<RowRange> part)
    : dataset_(std::move(dataset)), stream_(stream), device_(device), tier_(tier), part_(part) {
  clock_ = ResidentClock::get(dataset_, stream, device);
  const Stream& from = dataset_->stream(stream);
  rows_ = {clock_->on_device(), nullptr, from.features, from.dtype};
  const int64_t size = bytes(*dataset_, stream, part);
  const RowRange row_span = part.value_or(RowRange{0, from.rows});
  const int64_t begin = first_byte(from, row_span.begin);  // below, `values` begins this far before the copy
  row_bytes_ = from.features * dtype_size(from.dtype);
  if (from.blob_offsets != nullptr) {
    first_blob_ = row_span.begin;
    blob_offsets_.assign(from.blob_offsets + row_span.begin, from.blob_offsets + row_span.end + 1);
  }
  StreamFile file = dataset_->open_values(stream);
  if (tier == Tier::kMapped) {
    if (file.file.get() < 0) {
      rows_.values = from.values;
      return;
    }
    // Windows lie anywhere in the file, so reading ahead would read the wrong bytes.
    ::posix_fadvise(file.file.get(), 0, 0, POSIX_FADV_RANDOM);
    file_ = std::move(file.file);
    rows_.file = {file_.get(), file.offset};
  } else if (!is_on_host(device, tier)) {
    device_memory_ = DeviceBuffer(device, static_cast<size_t>(size));
    copy_to_device(file, from.values, begin, device_memory_);
    rows_.values = static_cast<const char*>(device_memory_.data()) - begin;
  } else {
    host_memory_ = HostCopy(device, part ? "" : file.identity, size,
                            [&](void* memory) { read(file, from.values, begin, size, memory); });
    rows_.values = static_cast<const char*>(host_memory_.on_device()) - begin;
  }
}

}  // namespace robocache
