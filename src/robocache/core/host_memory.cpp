#include "robocache/core/host_memory.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "robocache/core/error.hpp"

namespace robocache {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Returns the number in a file; nothing if the file says "max" or is missing.
std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// Reads lines such as "name 123" and "name: 123 kB".
std::map<std::string, int64_t> numbers_in(const std::string& path) {
  std::map<std::string, int64_t> numbers;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    std::string unit;
    int64_t value = 0;
    if (!(fields >> name >> value)) continue;
    if (name.ends_with(':')) name.pop_back();
    numbers[name] = fields >> unit && unit == "kB" ? value * 1024 : value;
  }
  return numbers;
}

// The names of the files in a control group's folder, which differ between versions 1 and 2.
struct VersionFiles {
  std::vector<const char*> limits;
  const char* usage;
  std::vector<const char*> page_cache;  // entries of memory.stat: pages of files, which the kernel can drop
};

const VersionFiles kVersion1{
    {"memory.limit_in_bytes"}, "memory.usage_in_bytes", {"total_active_file", "total_inactive_file"}};
const VersionFiles kVersion2{{"memory.max", "memory.high"}, "memory.current", {"active_file", "inactive_file"}};

// The mount point of a version's control groups, and the group that is mounted there: in a container often an inner
// one.
struct Mount {
  std::string point;
  std::string group;
};

// Finds the version's line of mountinfo, such as "31 23 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory".
std::optional<Mount> find_mount(const std::string& mountinfo, bool version1) {
  std::ifstream file(mountinfo);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string skipped;
    std::string type;
    std::string options;
    Mount mount;
    fields >> skipped >> skipped >> skipped >> mount.group >> mount.point;
    while (fields >> skipped && skipped != "-") {
    }
    fields >> type >> skipped >> options;
    if (!version1 && type == "cgroup2") return mount;
    if (version1 && type == "cgroup" && ("," + options + ",").find(",memory,") != std::string::npos) return mount;
  }
  return std::nullopt;
}

struct Group {
  const VersionFiles* version;
  std::string top;     // folder of the outermost visible group
  std::string inside;  // path from there to the process's group: "" or "/a/b"
};

// Finds the group in /proc/self/cgroup. Lines are "4:memory:/a/b" in version 1, where the line that lists memory
// applies, or "0::/a/b" in version 2.
std::optional<Group> group_of_process(const std::string& root) {
  std::optional<std::string> paths[2];
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers.find(",memory,") != std::string::npos) paths[0] = line.substr(second + 1);
    if (line.starts_with("0::")) paths[1] = line.substr(second + 1);
  }
  for (const bool version1 : {true, false}) {
    std::optional<std::string>& path = paths[version1 ? 0 : 1];
    const std::optional<Mount> mount = find_mount(root + "/proc/self/mountinfo", version1);
    if (!path || !mount) continue;
    // The process's path may begin outside the mounted part.
    if (mount->group != "/" && (*path + "/").starts_with(mount->group + "/")) path->erase(0, mount->group.size());
    Group group{version1 ? &kVersion1 : &kVersion2, root + mount->point, *path == "/" ? "" : *path};
    // The path may be one of the host, where the container shows only its own group.
    if (!std::ifstream(group.top + group.inside + "/cgroup.procs")) group.inside = "";
    return group;
  }
  return std::nullopt;
}

}  // namespace

HostMemory host_memory(const std::string& root) {
  std::map<std::string, int64_t> machine = numbers_in(root + "/proc/meminfo");
  if (machine["MemTotal"] <= 0) throw FileError(root, "/proc/meminfo: expected a line of MemTotal, got none");
  HostMemory memory{machine["MemTotal"], machine["MemAvailable"], "the machine"};
  const std::optional<Group> group = group_of_process(root);
  if (!group) return memory;
  for (std::string inside = group->inside;; inside.erase(inside.rfind('/'))) {
    const std::string folder = group->top + inside;
    int64_t limit = kUnlimited;
    for (const char* name : group->version->limits) {
      limit = std::min(limit, number_in(folder + "/" + name).value_or(kUnlimited));
    }
    if (limit < memory.limit_bytes) {
      memory.limit_bytes = limit;
      memory.limited_by = folder;
    }
    if (limit != kUnlimited) {
      std::map<std::string, int64_t> pages = numbers_in(folder + "/memory.stat");
      int64_t used = number_in(folder + "/" + group->version->usage).value_or(0);
      for (const char* name : group->version->page_cache) used -= pages[name];
      memory.free_bytes = std::min(memory.free_bytes, std::max<int64_t>(0, limit - std::max<int64_t>(0, used)));
    }
    if (inside.empty()) break;
  }
  return memory;
}

}  // namespace robocache
