#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/cache/files.hpp"
#include "tests/cpp/cache/writer_fixture.hpp"

namespace {

// Records what this process makes durable, in order, and on how many threads at once. Calls wait until `required` of
// them have come, however late a busy machine starts them. A path that contains `refused` fails.
struct Disk {
  std::mutex mutex;
  std::condition_variable arrived;
  std::vector<std::string> durable;
  std::string refused;
  int at_once = 0;
  int most_at_once = 0;
  int required = 0;
};
Disk disk;

}  // namespace

extern "C" int fsync(int file) {
  const std::string path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file)).string();
  {
    std::unique_lock<std::mutex> lock(disk.mutex);
    disk.most_at_once = std::max(disk.most_at_once, ++disk.at_once);
    disk.durable.push_back(path);
    disk.arrived.notify_all();
    const auto have_arrived = [] { return disk.most_at_once >= disk.required; };
    if (!disk.arrived.wait_for(lock, std::chrono::seconds(30), have_arrived)) disk.required = 0;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const bool refused = !disk.refused.empty() && path.find(disk.refused) != std::string::npos;
  if (!refused) syscall(SYS_fsync, file);
  const std::scoped_lock lock(disk.mutex);
  --disk.at_once;
  errno = EIO;
  return refused ? -1 : 0;
}

namespace robocache {
namespace {

class DurableTest : public test::WriterFixture {
 protected:
  DurableTest() {
    disk.durable.clear();
    disk.refused.clear();
    disk.most_at_once = 0;
    disk.required = 0;
  }

  void write_many(WriteMode mode = WriteMode::kNew) const {
    Writer writer(path(), mode);
    writer.begin_episode();
    for (int i = 0; i < 40; ++i) test::append(writer, "stream " + std::to_string(i), {0, 1}, {1, 2});
    test::append_png(writer, "top", {0, 5}, {7, 8});
    writer.end_episode();
    writer.close();
  }

  // Returns the paths of the folder and of everything below it.
  static std::set<std::string> paths_in(const std::string& folder) {
    std::set<std::string> paths{folder};
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) paths.insert(entry.path().string());
    return paths;
  }
};

TEST_F(DurableTest, AllFilesAndFoldersComeBeforeTheManifest) {
  disk.required = 5;  // calls wait for each other, and only until the first five have come
  for (const WriteMode mode : {WriteMode::kNew, WriteMode::kAppend}) {
    disk.durable.clear();
    write_many(mode);
    const bool append = mode == WriteMode::kAppend;
    const std::string written_folder = append ? path() : partial();
    const auto manifest = std::find(disk.durable.begin(), disk.durable.end(),
                                    written_folder + (append ? "/manifest.json.new" : "/manifest.json"));
    ASSERT_NE(manifest, disk.durable.end());
    const std::set<std::string> durable_before(disk.durable.begin(), manifest);
    for (const std::string& final_path : paths_in(path())) {
      const std::string written_path = written_folder + final_path.substr(path().size());
      if (written_path == written_folder || written_path == written_folder + "/manifest.json") continue;
      EXPECT_TRUE(durable_before.contains(written_path)) << written_path;
    }
    EXPECT_NE(std::find(manifest, disk.durable.end(), written_folder), disk.durable.end());
    EXPECT_EQ(disk.durable.back(), append ? path() : folder_.path());
  }
  EXPECT_GE(disk.most_at_once, 5);
}

TEST_F(DurableTest, AFailureNamesThePathAndLeavesNoCache) {
  for (const char* refused : {"stream%2017/values.npy", "/streams", "top", "manifest.json"}) {
    disk.refused = refused;
    const std::string message = test::message_of<FileError>([&] { write_many(); });
    EXPECT_TRUE(test::contains(message, refused)) << message;
    EXPECT_TRUE(test::contains(message, "making it durable: Input/output error")) << message;
    EXPECT_FALSE(std::filesystem::exists(path()));
  }
  disk.refused.clear();
  write_many();
  disk.refused = "stream%2017/values.npy";
  EXPECT_THROW(write_many(WriteMode::kAppend), FileError);
  disk.refused.clear();
  EXPECT_EQ(Dataset::open(path(), true)->num_episodes(), 1);
}

// After an fsync that lost data, the next one reports success.
TEST_F(DurableTest, AFailureStaysAFailure) {
  Writer writer(path());
  writer.begin_episode();
  test::append(writer, "a", {0, 1}, {1, 2});
  writer.end_episode();
  disk.refused = "values.npy";
  EXPECT_THROW(writer.close(), FileError);
  disk.refused.clear();
  const std::string message = test::message_of<FileError>([&] { writer.close(); });
  EXPECT_TRUE(test::contains(message, "could not be made durable")) << message;
  EXPECT_THROW(writer.begin_episode(), FileError);
  EXPECT_FALSE(std::filesystem::exists(path()));
  writer.abort();
  EXPECT_FALSE(std::filesystem::exists(partial()));
}

}  // namespace
}  // namespace robocache
