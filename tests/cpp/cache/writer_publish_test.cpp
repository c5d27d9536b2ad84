#include "robocache/cache/writer.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/cache/files.hpp"
#include "tests/cpp/cache/writer_fixture.hpp"
#include "tests/cpp/in_a_child.hpp"

namespace robocache {
namespace {

namespace fs = std::filesystem;
using test::append;
using test::contains;
using test::message_of;
using WriterPublishTest = test::WriterFixture;

TEST_F(WriterPublishTest, AnExistingNameIsNeverTouchedByDefault) {
  write(1);
  EXPECT_TRUE(contains(message_of<FileError>([&] { Writer writer(path()); }), "cache: it exists already"));
  fs::create_directory(folder_.path() + "/photos");
  test::write_file(folder_.path() + "/photos/cat.jpg", "meow");
  EXPECT_TRUE(
      contains(message_of<FileError>([&] { Writer(folder_.path() + "/photos", WriteMode::kOverwrite).close(); }),
               "photos: expected a cache to overwrite, got something else"));
  fs::create_directory(folder_.path() + "/new.partial");
  test::write_file(folder_.path() + "/new.partial/cat.jpg", "meow");
  EXPECT_TRUE(contains(message_of<FileError>([&] { Writer(folder_.path() + "/new").close(); }),
                       "new.partial: expected an unused name or the directory of an earlier writer"));
  EXPECT_EQ(test::read_file(folder_.path() + "/photos/cat.jpg"), "meow");
  EXPECT_EQ(test::read_file(folder_.path() + "/new.partial/cat.jpg"), "meow");
  EXPECT_EQ(written(), 1);
}

TEST_F(WriterPublishTest, AFifoNamedLikeAManifestIsNoCacheAndIsNotRead) {
  ASSERT_EQ(::mkfifo((folder_.path() + "/manifest.json").c_str(), 0666), 0);
  ::alarm(30);
  write(1);
  ::alarm(0);
  EXPECT_EQ(written(), 1);
}

TEST_F(WriterPublishTest, ANameThatAppearsMeanwhileIsNotReplaced) {
  Writer writer(path());
  fs::create_directory(path());
  EXPECT_THROW(writer.close(), FileError);
  EXPECT_TRUE(fs::is_empty(path()));
  fs::remove(path());
  writer.close();  // close() may be tried again
  EXPECT_EQ(Dataset::open(path(), true)->num_episodes(), 0);
}

// The child lacks its parent's writing thread, which may have held a lock.
TEST_F(WriterPublishTest, AForkedChildDestroysItsCopyOfTheWriter) {
  const std::vector<float> many_values(size_t{1} << 22, 5.0f);
  const std::vector<int64_t> times(many_values.size(), 0);
  auto writer = std::make_unique<Writer>(path());
  writer->begin_episode();
  append(*writer, "x", times, many_values);
  const int status = test::in_a_child([&] {
    writer.reset();
    return 0;
  });
  EXPECT_EQ(status, 0);
  writer->end_episode();
  writer->close();
  EXPECT_EQ(written(), 5);
}

TEST_F(WriterPublishTest, AForkedChildDoesNotWaitForTheParentsThread) {
  const std::vector<float> many_values(size_t{1} << 18, 5.0f);
  const std::vector<int64_t> times(many_values.size(), 0);
  Writer writer(path());
  writer.begin_episode();
  std::atomic<bool> done{false};
  std::thread appender([&] {
    while (!done) append(writer, "x", times, many_values);
  });
  for (int fork = 0; fork < 40; ++fork) {
    const int status = test::in_a_child([&] {
      ::alarm(10);
      writer.abort();
      return contains(message_of<ArgumentError>([&] { writer.end_episode(); }), "in a forked child") ? 0 : 1;
    });
    EXPECT_EQ(status, 0);
    if (status != 0) break;
  }
  done = true;
  appender.join();
}

TEST_F(WriterPublishTest, PathsWithSlashesMissingParentsAndLinks) {
  {
    Writer(folder_.path() + "/a/b/cache/").close();
  }
  EXPECT_EQ(Dataset::open(folder_.path() + "/a/b/cache/")->num_episodes(), 0);
  fs::create_directory_symlink(folder_.path() + "/a/b/cache", path());
  write(6, WriteMode::kOverwrite);
  EXPECT_EQ(written(), 6);
  EXPECT_TRUE(fs::is_symlink(path()));
  EXPECT_THROW(Writer(""), ArgumentError);
  test::write_file(folder_.path() + "/file", "");
  EXPECT_THROW(Writer(folder_.path() + "/file/cache"), FileError);
}

}  // namespace
}  // namespace robocache
