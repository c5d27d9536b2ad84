#include "robocache/source/shared_memory.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/temporary_cache.hpp"

namespace robocache::test {
namespace {

constexpr size_t kBytes = 3 * 4096 + 17;

std::function<void(void*)> filled_with(char byte) {
  return [byte](void* memory) { std::memset(memory, byte, kBytes); };
}

void must_not_fill(void*) { ADD_FAILURE() << "it was filled already"; }

bool holds(const SharedMemory& memory, char byte) {
  const auto* const bytes = static_cast<const char*>(memory.data());
  return bytes != nullptr && std::string(bytes, kBytes) == std::string(kBytes, byte);
}

class SharedMemoryTest : public testing::Test {
 protected:
  SharedMemory shared(const std::string& name, const std::function<void(void*)>& fill) const {
    return {name, kBytes, fill, folder_.path()};
  }

  // Returns the files of shared memories, without the lock file, which stays.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      if (entry.path().extension() != ".lock") names.push_back(entry.path().filename().string());
    }
    return names;
  }

  std::string file_name(const std::string& name) const {
    return "robocache-" + std::to_string(geteuid()) + "-" + name + "-" + std::to_string(kBytes);
  }

  TemporaryFolder folder_;
};

TEST_F(SharedMemoryTest, TheFirstUserFillsItAndTheLastRemovesIt) {
  {
    SharedMemory first = shared("a", filled_with('x'));
    EXPECT_EQ(first.why_not(), "");
    EXPECT_TRUE(holds(first, 'x'));
    EXPECT_EQ(files(), std::vector{file_name("a")});
    const SharedMemory second = shared("a", must_not_fill);
    EXPECT_TRUE(holds(second, 'x'));
    EXPECT_NE(first.data(), second.data());
    static_cast<char*>(first.data())[4097] = 'y';
    EXPECT_EQ(static_cast<char*>(second.data())[4097], 'y');  // both map the same memory
    const SharedMemory other = shared("b", filled_with('z'));
    EXPECT_TRUE(holds(other, 'z'));
    first = SharedMemory();
    EXPECT_EQ(files().size(), 2u);
  }
  EXPECT_EQ(files(), std::vector<std::string>{});
  EXPECT_TRUE(holds(shared("a", filled_with('v')), 'v'));
}

TEST_F(SharedMemoryTest, AFillThatThrowsLeavesNothing) {
  EXPECT_THROW(shared("a", [](void*) { throw FileError("cut short"); }), FileError);
  EXPECT_EQ(files(), std::vector<std::string>{});
  EXPECT_TRUE(holds(shared("a", filled_with('x')), 'x'));
}

TEST_F(SharedMemoryTest, AFailureHasAReason) {
  const SharedMemory missing("a", kBytes, must_not_fill, folder_.path() + "/none");
  EXPECT_EQ(missing.data(), nullptr);
  EXPECT_NE(missing.why_not().find("/none/robocache-"), std::string::npos) << missing.why_not();
  EXPECT_NE(missing.why_not().find("No such file"), std::string::npos) << missing.why_not();

  const SharedMemory large("a", size_t{1} << 60, must_not_fill, folder_.path());
  EXPECT_EQ(large.data(), nullptr);
  EXPECT_TRUE(large.why_not().starts_with(folder_.path() + ": 1152921504606846976 bytes are needed, "))
      << large.why_not();
  EXPECT_EQ(files(), std::vector<std::string>{});
}

TEST_F(SharedMemoryTest, ALinkIsNotFollowed) {
  const std::string link_target = folder_.path() + "/aside";
  std::filesystem::create_symlink(link_target, folder_.path() + "/" + file_name("a"));
  const SharedMemory memory = shared("a", filled_with('x'));
  EXPECT_FALSE(std::filesystem::exists(link_target));
}

TEST_F(SharedMemoryTest, ReportsTheBytesPresent) {
  EXPECT_EQ(SharedMemory::bytes_present("a", kBytes, folder_.path()), 0);
  int64_t while_filling = 0;
  const SharedMemory memory =
      shared("a", [&](void*) { while_filling = SharedMemory::bytes_present("a", kBytes, folder_.path()); });
  EXPECT_GE(while_filling, static_cast<int64_t>(kBytes));
  EXPECT_GE(SharedMemory::bytes_present("a", kBytes, folder_.path()), static_cast<int64_t>(kBytes));
  EXPECT_EQ(SharedMemory::bytes_present("a", kBytes + 1, folder_.path()), 0);
}

#ifndef __SANITIZE_THREAD__  // ThreadSanitizer does not follow forks of a process with threads.

// Another process, which runs `body` and reports through a pipe. It is killed at the latest at the end of the test.
class Process {
 public:
  explicit Process(const std::function<void(int report)>& body) {
    EXPECT_EQ(pipe(pipe_), 0);
    id_ = fork();
    if (id_ == 0) {
      close(pipe_[0]);
      alarm(60);
      body(pipe_[1]);
      _exit(0);
    }
    close(pipe_[1]);
  }
  ~Process() {
    kill();
    close(pipe_[0]);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Returns the byte that the process reported; 0 if it ended without a report.
  char await() const {
    char report = 0;
    EXPECT_GE(read(pipe_[0], &report, 1), 0);
    return report;
  }
  void kill() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    waitpid(std::exchange(id_, -1), nullptr, 0);
  }
  // Waits until the process ends by itself. Returns its exit status, or -1.
  int status() {
    int status = -1;
    waitpid(std::exchange(id_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  int pipe_[2];
  pid_t id_ = -1;
};

void report(int report_pipe, char byte) {
  if (write(report_pipe, &byte, 1) != 1) _exit(9);
}

TEST_F(SharedMemoryTest, AFileOfAKilledFillIsNeverUsed) {
  Process other([&](int report_pipe) {
    shared("a", [&](void* memory) {
      std::memset(memory, 'o', kBytes / 2);
      report(report_pipe, 'h');
      pause();
    });
  });
  ASSERT_EQ(other.await(), 'h');
  EXPECT_EQ(files(), std::vector{file_name("a") + ".partial"});
  other.kill();
  const SharedMemory memory = shared("a", filled_with('x'));
  EXPECT_TRUE(holds(memory, 'x'));
  EXPECT_EQ(files(), std::vector{file_name("a")});
}

TEST_F(SharedMemoryTest, OtherProcessesWaitWhileOneFills) {
  Process other([&](int report_pipe) {
    const SharedMemory memory = shared("a", [&](void* bytes) {
      report(report_pipe, 'f');
      usleep(200'000);
      std::memset(bytes, 'o', kBytes);
    });
    pause();
  });
  ASSERT_EQ(other.await(), 'f');
  const SharedMemory memory = shared("a", must_not_fill);
  EXPECT_TRUE(holds(memory, 'o'));
  other.kill();
  EXPECT_TRUE(holds(memory, 'o'));
}

TEST_F(SharedMemoryTest, AMemoryOfAnotherSizeIsReplaced) {
  for (const size_t size : {size_t{0}, kBytes - 4096, kBytes + 1}) {
    {
      std::ofstream(folder_.path() + "/" + file_name("a")) << std::string(size, 'o');
    }
    const SharedMemory memory = shared("a", filled_with('x'));
    EXPECT_EQ(memory.why_not(), "");
    EXPECT_TRUE(holds(memory, 'x'));
  }
  EXPECT_EQ(files(), std::vector<std::string>{});
}

TEST_F(SharedMemoryTest, TheNextUserRemovesFilesOfKilledUsers) {
  Process other([&](int report_pipe) {
    const SharedMemory memory = shared("a", filled_with('o'));
    report(report_pipe, 'm');
    pause();
  });
  ASSERT_EQ(other.await(), 'm');
  {
    const SharedMemory memory = shared("b", filled_with('x'));
    EXPECT_EQ(files().size(), 2u);  // the other user still has its own
  }
  other.kill();
  EXPECT_EQ(files(), std::vector{file_name("a")});
  const SharedMemory memory = shared("b", filled_with('x'));
  EXPECT_EQ(files(), std::vector{file_name("b")});
}

TEST_F(SharedMemoryTest, AForkedChildKeepsTheMemoryAndDoesNotRemoveIt) {
  SharedMemory memory = shared("a", filled_with('x'));
  Process child([&](int) {
    if (!holds(memory, 'x')) _exit(1);
    memory = SharedMemory();
    _exit(files() == std::vector{file_name("a")} ? 0 : 2);
  });
  EXPECT_EQ(child.status(), 0);
  EXPECT_TRUE(holds(shared("a", must_not_fill), 'x'));
}

#endif

}  // namespace
}  // namespace robocache::test
