// The host memory that this process may use.
#pragma once

#include <cstdint>
#include <string>

namespace robocache {

// The limit of the tightest control group of the process, including all outer groups (version 1 or 2), or the machine's
// memory if none is tighter.
struct HostMemory {
  int64_t limit_bytes = 0;
  int64_t free_bytes = 0;  // the part of the limit that is free or holds only page cache
  std::string limited_by;  // the control group's folder, or "the machine"
};

// Reads /proc and the control groups' files each time. Throws FileError if there is no /proc/meminfo. `root` is the
// folder of /proc and /sys.
HostMemory host_memory(const std::string& root = "");

}  // namespace robocache
