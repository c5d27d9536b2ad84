// Decides the tier of each key of a batch, and explains it in words.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/core/device.hpp"
#include "robocache/source/resident.hpp"
#include "robocache/source/tier.hpp"

namespace robocache {

// An amount of one kind of memory: bytes, or a share in (0, 1] of the bytes that are free when the loader is created.
using MemoryShare = std::variant<int64_t, double>;

struct MemoryBudget {
  MemoryShare device = 0.5;
  MemoryShare host = 0.5;  // in a container, of the bytes that its limit leaves free
};

struct MemoryBytes {
  int64_t device = 0;  // on a CUDA device; 0 for the CPU, which only has host memory
  int64_t host = 0;
};

// Returns text like "1.50 GiB", for people.
std::string size_text(int64_t bytes);

// Returns a budget in bytes, by the memory that is free now. `present` counts the bytes of this loader's streams that are in
// memory already (ResidentStream::bytes_present). They count as free, since decide_residency() counts these streams again.
// Throws DeviceError, and ArgumentError that names memory.budget for fewer than 0 bytes and for a share outside (0, 1].
MemoryBytes budget_bytes(const MemoryBudget& budget, Device device, const MemoryBytes& present);

// A key of the batch. If keys have the same stream, only one of them counts its bytes.
struct ResidencyRequest {
  std::string key;                // for errors and for people
  int64_t bytes = 0;              // the values of all its sources
  std::optional<Tier> tier = {};  // none: auto
  // For a camera: the bytes of its frames as pixels, or none if they are stored as pixels; and whether stored frames
  // must stay in their files.
  std::optional<int64_t> decoded_bytes = {};
  bool stays_in_files = false;
};

struct Residency {
  Tier tier = Tier::kDevice;
  bool automatic = false;  // it may move to a lower tier
  std::string why;         // for people
};

// Returns a tier for each request, in their order. A request gets the tier that it names; DeviceError with both sizes if the
// budget does not suffice. The other requests begin on the device, and the largest of them move to the next tier until the rest
// fits: device, pinned, mapped. On the CPU the first two are one copy in memory. Decoded frames get the rest of the device's
// budget, the smallest camera first. `taken_bytes`, the bytes of clocks and tables, is subtracted from the budget first.
std::vector<Residency> decide_residency(std::span<const ResidencyRequest> requests, Device device,
                                        const MemoryBytes& budget, const MemoryBytes& taken_bytes);

struct DatasetStream {
  std::shared_ptr<const Dataset> dataset;
  int64_t stream;
  std::optional<RowRange> part = {};  // none: all rows
};

// Loads all streams of a key into its tier. If memory does not suffice although the budget did, an automatic key moves to the
// next tier, and `residency` says so; a key whose tier was named throws OutOfMemory. Throws like ResidentStream::get.
std::vector<std::shared_ptr<const ResidentStream>> load_streams(std::span<const DatasetStream> streams, Device device,
                                                                Residency& residency);

}  // namespace robocache
