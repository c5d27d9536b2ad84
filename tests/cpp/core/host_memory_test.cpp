#include "robocache/core/host_memory.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "robocache/core/error.hpp"
#include "tests/cpp/expect_refused.hpp"
#include "tests/cpp/temporary_cache.hpp"

namespace robocache::test {
namespace {

constexpr const char* kMeminfo =
    "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    600 kB\nHugePages_Total: 0\n";

// /proc and /sys in a folder, with files as a kernel would show them.
class FakeHost {
 public:
  FakeHost() { write("/proc/meminfo", kMeminfo); }

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  // Control groups of version 2. The process is in `inside`; `mounted` is the group that /sys/fs/cgroup shows.
  void version2(const std::string& inside, const std::string& mounted = "/") const {
    write("/proc/self/cgroup", "0::" + inside + "\n");
    write("/proc/self/mountinfo", "22 1 0:21 / /proc rw - proc proc rw\n30 23 0:26 " + mounted +
                                      " /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  }

  // Control groups of version 1, beside a version 2 without memory, as in systemd's hybrid mode.
  void version1(const std::string& inside, const std::string& mounted = "/") const {
    write("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:" + inside + "\n0::/\n");
    write("/proc/self/mountinfo", "35 31 0:32 " + mounted +
                                      " /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
                                      "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  }

  // A group of either version: writes the files of both, since each version reads only its own.
  void group(const std::string& folder, const std::string& limit, const std::string& usage,
             const std::string& stat = "anon 5\n") const {
    write(folder + "/cgroup.procs", "1\n");
    for (const char* file : {"/memory.max", "/memory.limit_in_bytes"}) write(folder + file, limit + "\n");
    for (const char* file : {"/memory.current", "/memory.usage_in_bytes"}) write(folder + file, usage + "\n");
    write(folder + "/memory.stat", stat);
  }

  std::string root() const { return folder_.path(); }
  HostMemory memory() const { return host_memory(root()); }

 private:
  TemporaryFolder folder_;
};

TEST(HostMemory, IsPlausibleOnThisHost) {
  const HostMemory memory = host_memory();
  EXPECT_GT(memory.limit_bytes, 0);
  EXPECT_GE(memory.free_bytes, 0);
  EXPECT_LE(memory.free_bytes, memory.limit_bytes);
}

TEST(HostMemory, WithoutGroupsIsThatOfTheMachine) {
  const TemporaryFolder nothing;
  expect_refused<FileError>([&] { host_memory(nothing.path()); }, nothing.path() + "/proc/meminfo: ");
  const FakeHost host;
  EXPECT_EQ(host.memory().limit_bytes, 1000 * 1024);
  EXPECT_EQ(host.memory().free_bytes, 600 * 1024);
  EXPECT_EQ(host.memory().limited_by, "the machine");
}

TEST(HostMemory, TheTightestGroupOfVersion2Decides) {
  const FakeHost host;
  host.version2("/outer/inner");
  host.write("/sys/fs/cgroup/cgroup.procs", "1\n");
  host.group("/sys/fs/cgroup/outer", "200000", "150000");
  host.group("/sys/fs/cgroup/outer/inner", "max", "20000");
  EXPECT_EQ(host.memory().limit_bytes, 200000);
  EXPECT_EQ(host.memory().free_bytes, 50000);
  EXPECT_EQ(host.memory().limited_by, host.root() + "/sys/fs/cgroup/outer");
  // The inner group has the lower limit, the outer one less memory left.
  host.group("/sys/fs/cgroup/outer/inner", "100000", "20000");
  EXPECT_EQ(host.memory().limit_bytes, 100000);
  EXPECT_EQ(host.memory().free_bytes, 50000);
  host.write("/sys/fs/cgroup/outer/inner/memory.high", "60000\n");
  EXPECT_EQ(host.memory().limit_bytes, 60000);
  EXPECT_EQ(host.memory().free_bytes, 40000);
}

TEST(HostMemory, PagesOfFilesCountAsFree) {
  const FakeHost host;
  host.version2("/");
  host.group("/sys/fs/cgroup", "100000", "90000",
             "anon 10000\nfile 80000\nshmem 20000\ninactive_file 50000\nactive_file 10000\n");
  EXPECT_EQ(host.memory().free_bytes, 70000);
  host.version1("/");
  host.group("/sys/fs/cgroup/memory", "100000", "90000",
             "inactive_file 1\nactive_file 1\ntotal_inactive_file 30000\ntotal_active_file 20000\n");
  EXPECT_EQ(host.memory().free_bytes, 60000);
}

TEST(HostMemory, AGroupMayBeFullOrAllowMoreThanTheMachineHas) {
  const FakeHost host;
  host.version2("/");
  host.group("/sys/fs/cgroup", "1000", "2000");
  EXPECT_EQ(host.memory().free_bytes, 0);
  host.version1("/");
  host.group("/sys/fs/cgroup/memory", "9223372036854771712", "5000");  // version 1's "no limit"
  EXPECT_EQ(host.memory().limit_bytes, 1000 * 1024);
  EXPECT_EQ(host.memory().free_bytes, 600 * 1024);
  EXPECT_EQ(host.memory().limited_by, "the machine");
}

TEST(HostMemory, GroupsOfVersion1AreNestedToo) {
  const FakeHost host;
  host.version1("/a/b");
  host.group("/sys/fs/cgroup/memory", "9223372036854771712", "500000");
  host.group("/sys/fs/cgroup/memory/a", "300000", "260000");
  host.group("/sys/fs/cgroup/memory/a/b", "400000", "100000");
  EXPECT_EQ(host.memory().limit_bytes, 300000);
  EXPECT_EQ(host.memory().free_bytes, 40000);
}

// A container without its own namespace sees its path on the host, but only its own group.
TEST(HostMemory, TheMountMayBeginAtTheGroupOfTheProcess) {
  for (const std::string inside : {"/docker/0123", "/docker/0123/worker"}) {
    const FakeHost host;
    host.version1(inside, "/docker/0123");
    host.group("/sys/fs/cgroup/memory", "300000", "100000");
    host.group("/sys/fs/cgroup/memory/worker", "200000", "90000");
    EXPECT_EQ(host.memory().limit_bytes, inside.ends_with("worker") ? 200000 : 300000);
    EXPECT_EQ(host.memory().free_bytes, inside.ends_with("worker") ? 110000 : 200000);
  }
  // A process outside the root of its control group namespace has such a path.
  const FakeHost elsewhere;
  elsewhere.version2("/../other");
  elsewhere.group("/sys/fs/cgroup", "70000", "20000");
  EXPECT_EQ(elsewhere.memory().free_bytes, 50000);
}

}  // namespace
}  // namespace robocache::test
