// Which tier each key of the batch is drawn from: a pure decision, and the words that explain it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "robocache/core/device.hpp"
#include "robocache/source/resident.hpp"
#include "robocache/source/tier.hpp"

namespace robocache {

// Of one kind of memory: bytes, or a share in (0, 1] of what is free when the loader is made.
using MemoryShare = std::variant<int64_t, double>;

struct MemoryBudget {
  MemoryShare device = 0.5;
  MemoryShare host = 0.5;  // of what the control group leaves free
};

struct BudgetBytes {
  int64_t device = 0;  // of a CUDA device's memory; on the CPU nothing is asked of it
  int64_t host = 0;
};

// Reads what is free now. `present`: bytes that copies shared with other ranks already take of the host's memory, which
// count as free, since the decision counts them. Throws ArgumentError that names memory_budget for less than 0 bytes
// and a share outside (0, 1], DeviceError.
BudgetBytes budget_bytes(const MemoryBudget& asked, Device device, int64_t present);

struct ResidencyRequest {
  std::string stream;             // the key, for errors and for people
  int64_t bytes = 0;              // of all its values; 0 where an earlier one of the list has counted them
  std::optional<Tier> tier = {};  // none: auto
};

struct Residency {
  Tier tier = Tier::kDevice;
  bool automatic = false;  // may move down
  std::string why;         // a sentence
};

// A tier for each request, in their order. Asked for by name, a tier is taken first and refused with DeviceError,
// naming the stream, what it needs and what the budget leaves, where it does not fit. Of the others the largest go one
// tier down until the rest fits: device, pinned, mapped; on the CPU, where the first two are one copy in memory,
// memory, mapped. `taken`: what clocks and tables need beside the values; it goes off the budget first.
std::vector<Residency> decide_residency(std::span<const ResidencyRequest> requests, Device device, BudgetBytes budget,
                                        BudgetBytes taken);

// Brings a stream to its tier. Where memory does not suffice although the budget allowed it, an automatic one moves
// down, and `residency` says so; one asked for by name throws OutOfMemory.
std::shared_ptr<const ResidentStream> bring(const std::shared_ptr<const Dataset>& dataset, int64_t stream,
                                            Device device, Residency& residency);

}  // namespace robocache
