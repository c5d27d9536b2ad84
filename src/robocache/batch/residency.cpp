#include "robocache/batch/residency.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <utility>

#include "robocache/core/arguments.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/error.hpp"
#include "robocache/core/host_memory.hpp"

namespace robocache {
namespace {

int64_t share_of(const MemoryShare& amount, int64_t free_bytes) {
  if (const auto* bytes = std::get_if<int64_t>(&amount)) {
    if (*bytes < 0) {
      throw ArgumentError("memory.budget: expected at least 0 bytes, got ", *bytes);
    }
    return *bytes;
  }
  const double share = std::get<double>(amount);
  if (!(share > 0 && share <= 1)) {
    throw ArgumentError("memory.budget: expected bytes, an int, or a share in (0, 1], got ", share);
  }
  return static_cast<int64_t>(share * static_cast<double>(free_bytes));
}

// Returns the tiers that differ on a device, the fastest first.
std::vector<Tier> tiers_of(Device device) {
  if (device.is_cuda()) return {Tier::kDevice, Tier::kPinned, Tier::kMapped};
  return {Tier::kDevice, Tier::kMapped};
}

// One kind of memory.
struct Memory {
  std::string name;
  int64_t budget;
  int64_t left;
};

class Memories {
 public:
  Memories(Device device, const MemoryBytes& budget, const MemoryBytes& taken_bytes)
      : cuda_(device.is_cuda()),
        device_{device_name(device), budget.device, std::max<int64_t>(0, budget.device - taken_bytes.device)},
        host_{"host memory", budget.host, std::max<int64_t>(0, budget.host - taken_bytes.host)} {}

  // Returns the memory of a tier, or null if it takes none.
  Memory* of(Tier tier) {
    if (tier == Tier::kMapped) return nullptr;
    return tier != Tier::kPinned && cuda_ ? &device_ : &host_;
  }

 private:
  bool cuda_;
  Memory device_;
  Memory host_;
};

// Returns a tier in words.
std::string tier_text(Tier tier, Device device) {
  if (tier == Tier::kMapped) return "its files, read ahead";
  if (tier == Tier::kDecoded) {
    return device.is_cuda() ? "pixels in the device's memory" : "pixels in memory, decoded when first drawn";
  }
  if (!device.is_cuda()) return "a copy in memory";
  return tier == Tier::kDevice ? "a copy in the device's memory" : "a copy in pinned host memory";
}

}  // namespace

std::string size_text(int64_t bytes) {
  constexpr std::array kUnits{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto size = static_cast<double>(bytes);
  size_t unit = 0;
  for (; size >= 1024 && unit + 1 < kUnits.size(); ++unit) size /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.2f %s", size, kUnits[unit]);
  return text;
}

MemoryBytes budget_bytes(const MemoryBudget& budget, Device device, const MemoryBytes& present) {
  MemoryBytes bytes;
  if (device.is_cuda()) {
    CudaDeviceInfo info{};
    check_cuda(cuda_backend().device_info(device.index, &info), "device_info");
    bytes.device = share_of(budget.device, static_cast<int64_t>(info.memory_free_bytes) + present.device);
  }
  bytes.host = share_of(budget.host, host_memory().free_bytes + present.host);
  return bytes;
}

std::vector<Residency> decide_residency(std::span<const ResidencyRequest> requests, Device device,
                                        const MemoryBytes& budget, const MemoryBytes& taken_bytes) {
  Memories memories(device, budget, taken_bytes);
  std::vector<Residency> decided(requests.size());
  std::vector<size_t> undecided;  // indices of requests, the smallest first
  for (size_t i = 0; i < requests.size(); ++i) {
    const ResidencyRequest& request = requests[i];
    if (!request.tier && request.stays_in_files) {
      decided[i] = {Tier::kMapped, true, tier_text(Tier::kMapped, device)};
      continue;
    }
    if (!request.tier) {
      undecided.push_back(i);
      continue;
    }
    const int64_t bytes = *request.tier == Tier::kDecoded ? *request.decoded_bytes : request.bytes;
    if (Memory* memory = memories.of(*request.tier)) {
      if (bytes > memory->left) {
        throw DeviceError("memory.residency: '", request.key, "' as '", name_of(*request.tier), "' needs ", bytes,
                          " bytes of ", memory->name, ", the memory budget of ", memory->budget, " has ", memory->left,
                          " left; raise memory.budget or pass residency='auto'");
      }
      memory->left -= bytes;
    }
    decided[i] = {*request.tier, false, "asked for: " + tier_text(*request.tier, device)};
  }
  std::stable_sort(undecided.begin(), undecided.end(),
                   [&](size_t a, size_t b) { return requests[a].bytes < requests[b].bytes; });
  std::string exceeded_budgets;  // the budgets that did not suffice for the requests in `undecided`
  for (const Tier tier : tiers_of(device)) {
    Memory* const memory = memories.of(tier);
    size_t fitting = 0;
    for (; fitting < undecided.size(); ++fitting) {
      const int64_t bytes = requests[undecided[fitting]].bytes;
      if (memory != nullptr) {
        if (bytes > memory->left) break;
        memory->left -= bytes;
      }
      const std::string prefix = exceeded_budgets.empty() ? "" : "over budget (" + exceeded_budgets + "): ";
      decided[undecided[fitting]] = {tier, true, prefix + tier_text(tier, device)};
    }
    undecided.erase(undecided.begin(), undecided.begin() + static_cast<std::ptrdiff_t>(fitting));
    if (memory != nullptr) {
      exceeded_budgets += (exceeded_budgets.empty() ? "" : ", ") + size_text(memory->budget) + " of " + memory->name;
    }
  }
  std::vector<size_t> cameras;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!requests[i].tier && requests[i].decoded_bytes) cameras.push_back(i);
  }
  std::stable_sort(cameras.begin(), cameras.end(),
                   [&](size_t a, size_t b) { return *requests[a].decoded_bytes < *requests[b].decoded_bytes; });
  Memory& pixel_memory = *memories.of(Tier::kDecoded);
  for (const size_t i : cameras) {
    const int64_t extra_bytes = *requests[i].decoded_bytes - (decided[i].tier == Tier::kDevice ? requests[i].bytes : 0);
    if (extra_bytes > pixel_memory.left) {
      decided[i].why += "; pixels, " + size_text(*requests[i].decoded_bytes) + ", over budget (" +
                        size_text(pixel_memory.budget) + " of " + pixel_memory.name + ")";
      continue;
    }
    pixel_memory.left -= extra_bytes;
    decided[i] = {Tier::kDecoded, true, tier_text(Tier::kDecoded, device)};
  }
  return decided;
}

std::vector<std::shared_ptr<const ResidentStream>> load_streams(std::span<const DatasetStream> streams, Device device,
                                                                Residency& residency) {
  for (;;) {
    try {
      std::vector<std::shared_ptr<const ResidentStream>> loaded;
      for (const DatasetStream& stream : streams) {
        loaded.push_back(ResidentStream::get(stream.dataset, stream.stream, device, residency.tier, stream.part));
      }
      return loaded;
    } catch (const OutOfMemory& error) {
      const std::vector<Tier> tiers = tiers_of(device);
      const auto next = std::upper_bound(tiers.begin(), tiers.end(), residency.tier);
      if (!residency.automatic || next == tiers.end()) throw;
      residency.tier = *next;
      residency.why = std::string(error.what()) + ": " + tier_text(*next, device);
    }
  }
}

}  // namespace robocache
