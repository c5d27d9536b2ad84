// How much of the host's memory this process may take.
#pragma once

#include <cstdint>
#include <string>

namespace robocache {

// Of the tightest of the control groups that the process is in (version 1 or 2, each with all those around it), or of
// the machine where none is tighter.
struct HostMemory {
  int64_t limit_bytes = 0;
  int64_t free_bytes = 0;  // of the limit, what nothing holds but the page cache, which gives way
  std::string limited_by;  // the control group's folder, or "the machine"

  int64_t used_bytes() const { return limit_bytes - free_bytes; }
};

// Reads /proc and the control groups' files anew. Throws FileError where there is no /proc/meminfo. `root`: where /proc
// and /sys are looked for.
HostMemory host_memory(const std::string& root = "");

}  // namespace robocache
