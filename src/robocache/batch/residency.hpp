// Which tier each key of the batch is drawn from: a pure decision, and the words that explain it.
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

// Of one kind of memory: bytes, or a share in (0, 1] of what is free when the loader is made.
using MemoryShare = std::variant<int64_t, double>;

struct MemoryBudget {
  MemoryShare device = 0.5;
  MemoryShare host = 0.5;  // what is free of it is what the control group leaves
};

struct MemoryBytes {
  int64_t device = 0;  // a CUDA device's; nothing is ever taken of the CPU's, whose memory is the host's
  int64_t host = 0;
};

// "1.50 GiB", for people.
std::string size_text(int64_t bytes);

// Reads what is free now. `present`: what is in memory already of what will be asked for
// (ResidentStream::bytes_present); it counts as free, since the decision counts it. Throws DeviceError, and
// ArgumentError that names memory_budget for fewer than 0 bytes and for a share outside (0, 1].
MemoryBytes budget_bytes(const MemoryBudget& asked, Device device, const MemoryBytes& present);

// A key of the batch, or several that draw from the same streams: then they go together, and their bytes count once.
struct ResidencyRequest {
  std::string key;                // for errors and for people
  int64_t bytes = 0;              // of all values that it draws from
  std::optional<Tier> tier = {};  // none: auto
  // Of a camera: of its frames as pixels, none where they are that already; and whether as they are stored they must stay in
  // their files.
  std::optional<int64_t> decoded_bytes = {};
  bool stays_in_files = false;
};

struct Residency {
  Tier tier = Tier::kDevice;
  bool automatic = false;  // so it may still move down
  std::string why;         // for people
};

// A tier for each request, in their order. One that was asked for by name gets it, or DeviceError where the budget has
// no room for it, with both sizes. Of the others the largest move a tier down until the rest fits, and then on: device,
// pinned, mapped; on the CPU, where the first two are one copy in memory, device, mapped. In what is left of the device's
// budget frames lie decoded, the smallest first. `taken`: what clocks and tables need; it goes off the budget first.
std::vector<Residency> decide_residency(std::span<const ResidencyRequest> requests, Device device,
                                        const MemoryBytes& budget, const MemoryBytes& taken);

struct DatasetStream {
  std::shared_ptr<const Dataset> dataset;
  int64_t stream;
  std::optional<RowSpan> part = {};  // none: all rows
};

// Brings all that a key draws from to its tier. Where memory does not suffice although the budget said so, an automatic
// key moves down, and `residency` says so; one that was asked for by name throws OutOfMemory. Throws as
// ResidentStream::get.
std::vector<std::shared_ptr<const ResidentStream>> bring(std::span<const DatasetStream> streams, Device device,
                                                         Residency& residency);

}  // namespace robocache
