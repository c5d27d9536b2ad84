#include "robocache/cache/writer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/cache/files.hpp"
#include "tests/cpp/cache/writer_fixture.hpp"
#include "tests/cpp/threads.hpp"

namespace robocache {
namespace {

namespace fs = std::filesystem;
using test::append;
using test::append_png;
using test::contains;
using test::FileSizeLimit;
using test::message_of;
using test::values_of;
using WriterTest = test::WriterFixture;

TEST_F(WriterTest, StridedRowsLongerAndWiderThanAPiece) {
  constexpr int64_t kRows = 5;
  constexpr int64_t kColumns = 140000;
  std::vector<double> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  std::vector<int64_t> times(kRows);
  {
    Writer writer(path());
    writer.begin_episode();
    TensorView rows = TensorView::contiguous(values.data(), DType::kFloat64, {kRows, kColumns / 2});
    rows.strides = {kColumns, 2};
    writer.append("x", TensorView::contiguous(times.data(), DType::kInt64, {kRows}), rows);
    writer.end_episode();
    writer.close();
  }
  const auto dataset = Dataset::open(path(), true);
  std::vector<double> expected_values(static_cast<size_t>(kRows * kColumns / 2));
  for (size_t i = 0; i < expected_values.size(); ++i) expected_values[i] = values[2 * i];
  const Stream& stream = dataset->stream("x");
  ASSERT_EQ(stream.rows, kRows);
  ASSERT_EQ(stream.shape, (std::vector<int64_t>{kColumns / 2}));
  EXPECT_EQ(std::memcmp(stream.values, expected_values.data(), expected_values.size() * sizeof(double)), 0);
}

TEST_F(WriterTest, AcceptedJsonOfAnyDepthIsReadBack) {
  int accepted = 0;
  for (int levels = 55; levels < 70; ++levels) {
    std::string json = "1";
    for (int level = 0; level < levels; ++level) json = R"({"a": )" + json + "}";
    try {
      Writer writer(path(), WriteMode::kOverwrite);
      writer.describe_frames("camera", {}, {}, json);
      writer.begin_episode();
      append_png(writer, "camera", {1}, {'a'});
      writer.end_episode();
      writer.close(json);
    } catch (const ArgumentError&) {
      continue;
    }
    const auto dataset = Dataset::open(path());
    EXPECT_EQ(dataset->provenance_json(), json);
    EXPECT_EQ(dataset->stream("camera").frames->resized_json, json);
    ++accepted;
  }
  EXPECT_GT(accepted, 5);
  EXPECT_LT(accepted, 15);
}

// The link stands for a file system that ignores case, such as FAT or SMB.
TEST_F(WriterTest, TwoStreamsWithOneFolderAreRefused) {
  Writer writer(path());
  writer.begin_episode();
  append(writer, "a", {1}, {2});
  fs::create_directory_symlink("a", partial() + "/streams/A");
  EXPECT_TRUE(contains(message_of<ArgumentError>([&] { append(writer, "A", {1}, {3}); }),
                       "stream 'A': expected a name that this file system tells from 'a'"));
  fs::create_directory(partial() + "/streams/b");
  append(writer, "b", {1}, {4});
  writer.end_episode();
  fs::remove(partial() + "/streams/A");
  writer.close();
  EXPECT_EQ(Dataset::open(path(), true)->streams().size(), 2);
}

// Without a writing thread the failing append throws; with one, a later append may throw.
TEST_F(WriterTest, AFailedWriteCostsOneEpisode) {
  const std::vector<float> many_values(size_t{1} << 20, 7.0f);
  const std::vector<int64_t> times(many_values.size(), 100);
  for (const int n : {1, 2}) {
    const test::Threads threads(n);
    Writer writer(path(), WriteMode::kOverwrite);
    writer.begin_episode();
    append(writer, "x", {1, 2}, {1, 2});
    writer.end_episode();
    writer.begin_episode();
    append(writer, "x", {3}, {3});
    {
      const FileSizeLimit limit(3'500'000);
      const std::string message = message_of<FileError>([&] {
        append(writer, "x", times, many_values);
        for (int tries = 0; tries < 60'000; ++tries) {
          append(writer, "x", {100}, {7});
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      });
      EXPECT_EQ(message, partial() + "/streams/x/time_ns.npy: writing at byte 3500000: File too large");
      EXPECT_THROW(append(writer, "x", {200}, {4}), FileError);
      EXPECT_THROW(writer.end_episode(), FileError);
      writer.abort_episode();
    }
    writer.begin_episode();
    append(writer, "x", times, many_values);
    writer.end_episode();
    {
      const FileSizeLimit limit(100'000);
      EXPECT_THROW(writer.close(), FileError);
    }
    writer.close();  // close() may be tried again
    const auto dataset = Dataset::open(path(), true);
    EXPECT_EQ(values_of(dataset->stream("x"), 0), (std::vector<float>{1, 2}));
    EXPECT_EQ(values_of(dataset->stream("x"), 1), many_values);
  }
}

// The append that throws is a later one, whose own rows would fit.
TEST_F(WriterTest, TheNextAppendReportsAFailedWrite) {
  const test::Threads threads(2);
  Writer writer(path());
  writer.begin_episode();
  const FileSizeLimit limit(500'000);
  append(writer, "x", std::vector<int64_t>(200'000, 100), std::vector<float>(200'000, 7));
  const std::string message = message_of<FileError>([&] {
    for (int tries = 0; tries < 60'000; ++tries) {
      append(writer, "x", {100}, {7});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  EXPECT_EQ(message, partial() + "/streams/x/time_ns.npy: writing at byte 500000: File too large");
}

TEST_F(WriterTest, AnEpisodeWhoseLineCannotBeWrittenLeavesNothing) {
  Writer writer(path(), WriteMode::kNew);
  const auto begin_episode = [&](const std::string& note) {
    writer.begin_episode("{\"note\": \"" + note + "\"}");
    append(writer, "x", {1}, {1});
  };
  begin_episode("first");
  writer.end_episode();
  begin_episode(std::string(size_t{2} << 20, 'x'));
  {
    const FileSizeLimit limit(100'000);
    EXPECT_EQ(message_of<FileError>([&] { writer.end_episode(); }),
              partial() + "/episodes.jsonl: writing at byte 100000: File too large");
  }
  EXPECT_THROW(writer.end_episode(), FileError);
  writer.abort_episode();
  begin_episode("last");
  writer.end_episode();
  writer.close();
  const std::string lines(Dataset::open(path(), true)->episodes_jsonl());
  EXPECT_EQ(std::ranges::count(lines, '\n'), 2);
  EXPECT_LT(lines.size(), 1000u);
  EXPECT_TRUE(contains(lines, "\"first\"") && contains(lines, "\"last\""));
}

TEST_F(WriterTest, ThreadsMayAppendAtOnce) {
  constexpr int64_t kRows = 20000;
  {
    Writer writer(path());
    writer.begin_episode();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&writer, t] {
        for (int64_t row = 0; row < kRows; ++row) {
          append(writer, "stream " + std::to_string(t), {row}, {static_cast<float>(t), static_cast<float>(row)});
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    writer.end_episode();
    writer.close();
  }
  const auto dataset = Dataset::open(path(), true);
  for (int t = 0; t < 4; ++t) {
    const Stream& stream = dataset->stream("stream " + std::to_string(t));
    EXPECT_EQ(stream.rows, kRows);
    EXPECT_EQ(stream.stats.min[0], t);
    EXPECT_EQ(stream.stats.max[0], t);
    EXPECT_EQ(stream.stats.max[1], kRows - 1);
  }
}

// The writing thread also reads values, while the caller makes the next ones.
TEST_F(WriterTest, ThreadsChangeNoByteOfTheManifest) {
  constexpr int64_t kRows = 60'000;
  std::vector<int64_t> times;
  std::vector<float> values;
  for (int64_t i = 0; i < kRows; ++i) {
    times.push_back(i * 1000 + i % 7);
    for (int64_t f = 0; f < 20; ++f) values.push_back(static_cast<float>((i * 7919 + f * 104729) % 99991) - 5e4f);
  }
  std::vector<std::string> manifests;
  for (const int n : {1, 2}) {
    const test::Threads threads(n);
    Writer writer(path(), WriteMode::kOverwrite);
    for (int episode = 0; episode < 6; ++episode) {
      writer.begin_episode();
      append(writer, "wide", times, values);
      append(writer, "narrow", times, std::vector<float>(times.begin(), times.end()));
      if (episode % 3 == 1) {
        writer.abort_episode();
      } else {
        writer.end_episode();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    writer.close();
    manifests.push_back(test::read_file(path() + "/manifest.json") +
                        test::read_file(path() + "/streams/wide/stats.npy"));
  }
  EXPECT_EQ(manifests[0], manifests[1]);
}

// Streams with equal clocks are checked once.
TEST_F(WriterTest, FindingsAreOfEachStreamsOwnClock) {
  {
    Writer writer(path());
    const auto episode = [&](std::vector<std::pair<std::string, std::vector<int64_t>>> rows) {
      writer.begin_episode();
      for (const auto& [name, times] : rows) append(writer, name, times, std::vector<float>(times.size()));
      writer.end_episode();
    };
    episode({{"first", {0, 10}}, {"cut otherwise", {0, 10, 20}}, {"other stamps", {0, 10}}, {"same", {0, 10}}});
    episode({{"first", {20, 40}}, {"cut otherwise", {40}}, {"other stamps", {20, 50}}, {"same", {20, 40}}});
    writer.close();
  }
  const auto dataset = Dataset::open(path(), true);
  EXPECT_EQ(dataset->stream("first").findings.max_period_ns, 20);
  EXPECT_EQ(dataset->stream("cut otherwise").findings.max_period_ns, 10);
  EXPECT_EQ(dataset->stream("other stamps").findings.max_period_ns, 30);
  EXPECT_EQ(dataset->stream("same").findings.max_period_ns, 20);
}

TEST_F(WriterTest, CallsOutOfOrderAreRefused) {
  Writer writer(path());
  EXPECT_TRUE(contains(message_of<ArgumentError>([&] { append(writer, "x", {1}, {1}); }), "expected an open episode"));
  EXPECT_THROW(writer.end_episode(), ArgumentError);
  EXPECT_THROW(writer.abort_episode(), ArgumentError);
  writer.begin_episode();
  EXPECT_THROW(writer.begin_episode(), ArgumentError);
  EXPECT_THROW(writer.close(), ArgumentError);
  writer.end_episode();
  EXPECT_THROW(writer.close("[]"), ArgumentError);
  EXPECT_THROW(writer.close("{"), ArgumentError);
  writer.close();
  EXPECT_TRUE(contains(message_of<ArgumentError>([&] { writer.begin_episode(); }), "this one is closed"));
  writer.close();
  writer.abort();
  EXPECT_TRUE(fs::exists(path()));
}

}  // namespace
}  // namespace robocache
