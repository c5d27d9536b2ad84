// Compares a ring with a sorted list of the rows that were pushed, and runs readers beside the writer.
#include "robocache/source/ring.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/expect_refused.hpp"

namespace robocache {
namespace {

struct Row {
  int64_t stamp;
  std::array<int64_t, 3> values;
};

std::span<const char> bytes_of(const std::array<int64_t, 3>& values) {
  return {reinterpret_cast<const char*>(values.data()), sizeof(values)};
}

TEST(Ring, KeepsTheRowsOfASortedList) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    const int64_t span = 400;
    const int64_t lateness = static_cast<int64_t>(random() % 60);
    const bool refuses = seed % 2 == 1;  // a stamp that a row has
    Ring ring({.dtype = DType::kInt64,
               .shape = {3},
               .span_ns = span,
               .lateness_ns = lateness,
               .duplicate = refuses ? Duplicate::kRefuse : Duplicate::kKeep});
    std::vector<Row> list;  // kept rows, sorted by stamp; rows with equal stamps stay in order
    std::vector<int64_t> arrivals;
    int64_t now = 1000;
    RingCounts expected;
    RingRows copied;
    RingRows taken;
    int64_t next_row = 0;
    size_t rows_taken = 0;
    for (int i = 0; i < 3000; ++i) {
      now += static_cast<int64_t>(random() % 4);
      const int64_t stamp = now - static_cast<int64_t>(random() % 3 == 0 ? random() % 80 : 0);
      const Row row{stamp, {stamp, i, -i}};
      const int64_t newest = list.empty() ? INT64_MIN : list.back().stamp;
      ++expected.pushed;
      arrivals.push_back(now);
      const Pushed outcome = ring.push(stamp, now, bytes_of(row.values));
      if (!list.empty() && stamp < newest - lateness) {
        ++expected.too_late;
        EXPECT_EQ(outcome, Pushed::kTooLate);
      } else {
        const auto position = std::ranges::upper_bound(list, stamp, {}, &Row::stamp);
        const bool is_duplicate = position != list.begin() && (position - 1)->stamp == stamp;
        expected.duplicates += is_duplicate;
        if (is_duplicate && refuses) {
          ++expected.refused;
          EXPECT_EQ(outcome, Pushed::kRefused);
        } else {
          ++(stamp < newest ? expected.reordered : expected.kept);
          EXPECT_EQ(outcome, stamp < newest ? Pushed::kReordered : Pushed::kKept);
          list.insert(position, row);
        }
      }
      if (i % 37 != 0) continue;
      // A window within the span, with one more distinct stamp on each side.
      const int64_t last = list.back().stamp - static_cast<int64_t>(random() % 100);
      const int64_t first = last - static_cast<int64_t>(random() % 200);
      ASSERT_TRUE(ring.copy(first, last, 1, copied));
      auto begin = std::ranges::lower_bound(list, first, {}, &Row::stamp);
      auto end = std::ranges::upper_bound(list, last, {}, &Row::stamp);
      if (begin != list.begin()) begin = std::ranges::lower_bound(list, (begin - 1)->stamp, {}, &Row::stamp);
      if (end != list.end()) end = std::ranges::upper_bound(list, end->stamp, {}, &Row::stamp);
      ASSERT_EQ(copied.rows, end - begin);
      for (int64_t k = 0; k < copied.rows; ++k) {
        EXPECT_EQ(copied.time_ns[static_cast<size_t>(k)], begin[k].stamp);
        EXPECT_EQ(std::memcmp(copied.values.data() + 24 * k, begin[k].values.data(), 24), 0);
      }
      // take() returns the rows of the list, each once and only when it is final.
      const auto most = static_cast<int64_t>(random() % 90);
      EXPECT_EQ(ring.take(next_row, most, false, taken), next_row);
      next_row += taken.rows;
      for (int64_t k = 0; k < taken.rows; ++k, ++rows_taken) {
        ASSERT_LT(list[rows_taken].stamp, list.back().stamp - lateness + refuses);
        EXPECT_EQ(taken.time_ns[static_cast<size_t>(k)], list[rows_taken].stamp);
        EXPECT_EQ(taken.arrival_ns[static_cast<size_t>(k)], arrivals[static_cast<size_t>(list[rows_taken].values[1])]);
        EXPECT_EQ(std::memcmp(taken.values.data() + 24 * k, list[rows_taken].values.data(), 24), 0);
      }
    }
    EXPECT_GT(rows_taken, 500);
    EXPECT_EQ(ring.take(next_row, INT64_MAX, true, taken), next_row);  // the rest, final or not
    EXPECT_EQ(taken.rows, std::ssize(list) - next_row);
    EXPECT_EQ(ring.take(INT64_MAX, 1, true, taken), std::ssize(list));
    EXPECT_EQ(taken.rows, 0);
    EXPECT_GT(ring.take(0, 1, false, taken), 0);  // earlier rows were forgotten
    const RingCounts counts = ring.counts();
    EXPECT_EQ(counts.pushed, expected.pushed);
    EXPECT_EQ(counts.kept, expected.kept);
    EXPECT_EQ(counts.reordered, expected.reordered);
    EXPECT_EQ(counts.too_late, expected.too_late);
    EXPECT_EQ(counts.refused, expected.refused);
    EXPECT_EQ(counts.duplicates, expected.duplicates);
    EXPECT_GT(counts.duplicates, 100);
    EXPECT_EQ(ring.newest_ns(), list.back().stamp);
  }
}

// Returns the rows that decide the value at a moment, by the rules: the nearest row closer than `snap` itself, else the
// row held (rows_after 0), or rows_after rows on each side; -1 for each that is absent. `rows` has the last row of each
// stamp.
std::array<int64_t, 6> deciding(const std::map<int64_t, int64_t>& rows, int64_t moment, int rows_after, int64_t snap) {
  std::array<int64_t, 6> found;
  found.fill(-2);  // not asked for
  const auto after = rows.lower_bound(moment);
  const bool is_before = after == rows.begin();
  const bool is_past = after == rows.end();
  const bool is_earlier_nearer = is_past || (!is_before && moment - std::prev(after)->first <= after->first - moment);
  const auto nearest = is_earlier_nearer ? std::prev(after) : after;
  const int64_t distance = std::abs(nearest->first - moment);
  if (distance == 0 || distance < snap) {
    found[0] = nearest->second;
  } else if (is_before || is_past) {
    found[0] = nearest->second;
    found[1] = -1;
  } else if (rows_after == 0) {
    found[0] = std::prev(after)->second;
  } else {
    auto* next = found.data();
    auto later = after;
    for (int i = 0; i < rows_after; ++i) *next++ = later == rows.end() ? -1 : (later++)->second;
    auto earlier = after;
    for (int i = 0; i < rows_after; ++i) *next++ = earlier == rows.begin() ? -1 : (--earlier)->second;
  }
  return found;
}

// Compares settled_ns() with its definition: tries each push that the ring would still take. Stamps are even, so that
// between two rows another may come.
TEST(Ring, NoRowThatStillComesChangesASettledValue) {
  int at_newest = 0;
  for (unsigned seed = 0; seed < 24; ++seed) {
    std::mt19937_64 random(seed);
    const auto lateness = static_cast<int64_t>(seed % 3 == 0 ? 0 : random() % 7);
    const bool refuses = seed % 2 == 1;
    Ring ring({.dtype = DType::kInt64,
               .shape = {3},
               .span_ns = 1'000'000,
               .lateness_ns = lateness,
               .duplicate = refuses ? Duplicate::kRefuse : Duplicate::kKeep});
    std::map<int64_t, int64_t> rows;  // the number of the last row of each stamp
    int64_t now = 100;
    for (int64_t i = 0; i < 25; ++i) {
      now += 2 * static_cast<int64_t>(random() % 3);
      const Row row{now - 2 * static_cast<int64_t>(random() % 3 == 0 ? random() % 4 : 0), {0, i, 0}};
      const Pushed outcome = ring.push(row.stamp, now, bytes_of(row.values));
      if (!rows.empty() && row.stamp < rows.rbegin()->first - lateness) continue;
      const bool is_kept = !(refuses && rows.contains(row.stamp));
      ASSERT_EQ(is_kept, outcome != Pushed::kRefused);
      if (is_kept) rows[row.stamp] = i;
      const int64_t newest = rows.rbegin()->first;
      std::vector<std::map<int64_t, int64_t>> possible;  // the rows after each push that may still come
      for (int64_t stamp = newest - lateness; stamp <= newest + 9; ++stamp) {
        if (refuses && rows.contains(stamp)) continue;
        possible.push_back(rows);
        possible.back()[stamp] = 1000;
      }
      for (const int rows_after : {0, 1, 2, 3}) {
        for (const int64_t snap : {0, 1, 3}) {
          const auto is_settled = [&](int64_t moment) {
            const auto value = deciding(rows, moment, rows_after, snap);
            return std::ranges::all_of(
                possible, [&](const auto& later) { return deciding(later, moment, rows_after, snap) == value; });
          };
          std::optional<int64_t> settled;
          for (int64_t moment = rows.begin()->first - 10; is_settled(moment); ++moment) settled = moment;
          const auto actual = ring.settled_ns(rows_after, snap);
          // A moment that snaps to a final row, or is on one, is settled before the rows of its method are there.
          const bool is_exact = rows_after < 2 && snap < 2;
          ASSERT_TRUE(is_exact ? actual == settled : actual <= settled)
              << actual.value_or(-1) << " instead of " << settled.value_or(-1) << ": " << rows_after << " rows, snap "
              << snap;
          at_newest += actual == newest;
        }
      }
    }
  }
  EXPECT_GT(at_newest, 500);
}

// Compares with a list of the rows that were the newest one after another: numbers, pixels and files.
TEST(Ring, CountsRowsThatRepeatTheNewest) {
  using Shape = std::vector<int64_t>;
  for (const auto& [shape, codec] :
       {std::pair(Shape{9}, std::optional<Codec>()), {Shape{3, 3, 1}, Codec::kRaw}, {Shape{3, 3, 1}, Codec::kJpeg}}) {
    Ring ring({.dtype = DType::kUInt8,
               .shape = shape,
               .span_ns = 30,
               .lateness_ns = 6,
               .codec = codec,
               .rewind = Rewind::kSegment});
    EXPECT_FALSE(ring.unchanged_ns());
    std::mt19937_64 random(5);
    std::vector<std::pair<int64_t, std::vector<char>>> newest;
    int64_t now = 1000;
    int64_t repeated = 0;
    for (int i = 0; i < 5000; ++i) {
      now += static_cast<int64_t>(random() % 4);
      if (random() % 64 == 0) now = std::max<int64_t>(1, now - 100);
      const int64_t stamp = std::max<int64_t>(1, now - static_cast<int64_t>(random() % 4 == 0 ? random() % 9 : 0));
      std::vector<char> bytes(codec == Codec::kJpeg && random() % 4 == 0 ? 8 : 9, 'a');
      if (random() % 4 == 0) bytes.back() = 'b';  // in the second word
      const Pushed outcome = ring.push(stamp, now, bytes);
      if (outcome == Pushed::kSegment) newest.clear();
      if (outcome == Pushed::kKept || outcome == Pushed::kSegment) newest.emplace_back(stamp, bytes);
      auto first = newest.end() - 1;
      while (first != newest.begin() && (first - 1)->second == first->second) --first;
      EXPECT_EQ(ring.unchanged_ns(), newest.back().first - first->first);
      repeated += outcome == Pushed::kKept && newest.size() > 1 && newest.rbegin()[1].second == bytes &&
                  newest.rbegin()[1].first < stamp;
      EXPECT_EQ(ring.counts().repeated, repeated);
    }
    EXPECT_GT(repeated, 500);
    EXPECT_GT(ring.counts().segments, 10);
    EXPECT_GT(ring.counts().reordered, 100);
  }
}

TEST(Ring, RefusesImpossibleStamps) {
  const std::array<int64_t, 3> row{};
  Ring refusing({.dtype = DType::kInt64, .shape = {3}, .span_ns = 100, .most_ahead_ns = 50});
  EXPECT_EQ(refusing.push(0, 1000, bytes_of(row)), Pushed::kRefused);
  EXPECT_EQ(refusing.push(-5, 1000, bytes_of(row)), Pushed::kRefused);
  EXPECT_EQ(refusing.push(1051, 1000, bytes_of(row)), Pushed::kRefused);
  EXPECT_EQ(refusing.push(1050, 1000, bytes_of(row)), Pushed::kKept);
  EXPECT_EQ(refusing.push(950, 1001, bytes_of(row)), Pushed::kTooLate);
  EXPECT_EQ(refusing.push(949, 1001, bytes_of(row)), Pushed::kRefused);
  EXPECT_EQ(refusing.newest_ns(), 1050);
  EXPECT_EQ(refusing.counts().refused, 4);

  Ring segmenting({.dtype = DType::kInt64, .shape = {3}, .span_ns = 100, .rewind = Rewind::kSegment});
  segmenting.push(1000, 1000, bytes_of(row));
  EXPECT_EQ(segmenting.push(10, 1001, bytes_of(row)), Pushed::kSegment);
  RingRows rows;
  ASSERT_TRUE(segmenting.copy(0, 2000, 4, rows));
  EXPECT_EQ(rows.rows, 1);  // no window crosses the jump
  EXPECT_EQ(segmenting.newest_ns(), 10);
}

TEST(Ring, RefusesImpossibleOptions) {
  test::expect_refused<ArgumentError>([] { Ring({.span_ns = 0}); }, "span_s: expected above 0, got 0");
  test::expect_refused<ArgumentError>([] { Ring({.span_ns = 5, .lateness_ns = 5}); },
                                      "lateness_s: expected 0 or more and less");
  test::expect_refused<ArgumentError>([] { Ring({.span_ns = 5, .most_ahead_ns = -1}); },
                                      "most_ahead_s: expected 0 or more, got -1e-09");
  test::expect_refused<ArgumentError>([] { Ring({.shape = {-1}, .span_ns = 5}); },
                                      "shape: expected the extents of a row");
  Ring ring({.dtype = DType::kInt64, .shape = {3}, .span_ns = 5});
  test::expect_refused<ArgumentError>([&] { ring.push(1, 1, {}); }, "row: expected 24 bytes, got 0");
}

TEST(Ring, TakesRowsOfSeveralThreads) {
  constexpr int64_t kRowsPerThread = 1000;
  Ring ring({.dtype = DType::kInt64, .shape = {3}, .span_ns = 100'000, .lateness_ns = 99'999});
  std::vector<std::thread> writers;
  std::atomic<int> begun = 0;
  for (int64_t offset = 0; offset < 2; ++offset) {
    writers.emplace_back([&ring, &begun, offset] {
      for (++begun; begun < 2;) std::this_thread::yield();
      for (int64_t k = 0; k < kRowsPerThread; ++k) {
        const int64_t stamp = 2 * k + offset + 1;
        ring.push(stamp, stamp, bytes_of({stamp, -stamp, offset}));
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  RingRows taken;
  EXPECT_EQ(ring.take(0, 3 * kRowsPerThread, true, taken), 0);
  ASSERT_EQ(taken.rows, 2 * kRowsPerThread);
  for (int64_t i = 0; i < taken.rows; ++i) {
    std::array<int64_t, 3> row{};
    std::memcpy(row.data(), taken.values.data() + 24 * i, 24);
    ASSERT_EQ(row, (std::array<int64_t, 3>{i + 1, -(i + 1), i % 2}));
  }
  EXPECT_EQ(ring.counts().pushed, 2 * kRowsPerThread);
}

// Two readers copy windows and one takes rows while the writer pushes rows on time, late, too far ahead and impossible.
// Each row they see must be whole. A row's stamp alone decides its outcome, so the counts do not depend on the readers.
// The test takes ROBOCACHE_SOAK seconds, or one.
TEST(Ring, ReadersSeeWholeRowsAndEachIsCountedOnce) {
  const char* const soak = std::getenv("ROBOCACHE_SOAK");
  const double seconds = soak == nullptr ? 1 : std::atof(soak);
  const int64_t span = 2000;
  const int64_t lateness = 60;
  for (const auto& [frames, rewind] :
       {std::pair{false, Rewind::kRefuse}, {false, Rewind::kSegment}, {true, Rewind::kSegment}}) {
    Ring ring({.dtype = frames ? DType::kUInt8 : DType::kInt64,
               .shape = frames ? std::vector<int64_t>{1, 24, 1} : std::vector<int64_t>{3},
               .span_ns = span,
               .lateness_ns = lateness,
               .codec = frames ? std::optional(Codec::kRaw) : std::nullopt,
               .rewind = rewind,
               .most_ahead_ns = 50});
    std::atomic<bool> done{false};
    std::atomic<int64_t> windows{0};
    std::vector<std::thread> readers;
    for (const bool takes_rows : {false, false, true}) {
      readers.emplace_back([&, takes_rows] {
        RingRows copied;
        int64_t next = 0;
        while (!done) {
          const auto newest = ring.newest_ns();
          if (takes_rows) {
            const int64_t first = ring.take(next, 500, false, copied);
            ASSERT_GE(first, next);
            next = first + copied.rows;
          } else if (!newest || !ring.copy(*newest - 500, *newest, 2, copied)) {
            continue;
          } else {
            ++windows;
          }
          for (int64_t i = 0; i < copied.rows; ++i) {
            const int64_t stamp = copied.time_ns[static_cast<size_t>(i)];
            if (i > 0) ASSERT_LE(copied.time_ns[static_cast<size_t>(i - 1)], stamp);
            if (takes_rows) ASSERT_GE(copied.arrival_ns[static_cast<size_t>(i)], stamp - 50);
            std::array<int64_t, 3> row{};
            const void* const bytes =
                frames ? static_cast<const void*>(copied.frames[static_cast<size_t>(i)].bytes().data())
                       : copied.values.data() + 24 * i;
            std::memcpy(row.data(), bytes, 24);
            ASSERT_EQ(row, (std::array<int64_t, 3>{stamp, -stamp, 7 * stamp}));
          }
          ASSERT_NE(ring.settled_ns(1, 0).value_or(0), -1);
          const RingCounts counts = ring.counts();
          ASSERT_EQ(counts.pushed, counts.kept + counts.reordered + counts.too_late + counts.refused + counts.segments);
        }
      });
    }
    std::mt19937_64 random(7);
    RingCounts expected;
    std::array<int64_t, 5> outcomes{};
    std::vector<int64_t> stamps;  // stamps of kept rows, sorted: a duplicate is among the last ones
    int64_t now = 1'000'000;
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds / 3);
    for (; expected.pushed % 1024 != 0 || std::chrono::steady_clock::now() < end || windows < 200; ++expected.pushed) {
      now += static_cast<int64_t>(random() % 4);
      int64_t stamp = now;
      const auto kind = random() % 16;
      if (kind < 3) {
        stamp -= static_cast<int64_t>(random() % 120);  // late, or too late
      } else if (kind == 3) {
        stamp += 40 + static_cast<int64_t>(random() % 20);  // ahead, sometimes too far
      } else if (kind == 4 && random() % 64 == 0) {
        stamp = static_cast<int64_t>(random() % 3) - 1;  // an impossible stamp, except for 1
      } else if (kind == 5 && random() % 256 == 0) {
        stamp -= 3 * span;  // the clock is set back
      }
      const int64_t newest = stamps.empty() ? stamp : stamps.back();
      Pushed outcome = Pushed::kKept;
      if (stamp <= 0 || stamp > now + 50) {
        outcome = Pushed::kRefused;
      } else if (stamp < newest - span) {
        outcome = rewind == Rewind::kRefuse ? Pushed::kRefused : Pushed::kSegment;
      } else if (stamp < newest - lateness) {
        outcome = Pushed::kTooLate;
      } else if (stamp < newest) {
        outcome = Pushed::kReordered;
      }
      ASSERT_EQ(ring.push(stamp, now, bytes_of({stamp, -stamp, 7 * stamp})), outcome);
      ++outcomes[static_cast<size_t>(outcome)];
      if (outcome == Pushed::kSegment) {
        stamps.clear();
        now = stamp;
      }
      if (outcome == Pushed::kRefused || outcome == Pushed::kTooLate) continue;
      const auto position = std::ranges::upper_bound(stamps, stamp);
      expected.duplicates += position != stamps.begin() && *(position - 1) == stamp;
      stamps.insert(position, stamp);
      if (stamps.size() > 4096) stamps.erase(stamps.begin(), stamps.end() - 1024);
    }
    done = true;
    for (std::thread& reader : readers) reader.join();
    const RingCounts counts = ring.counts();
    EXPECT_EQ(counts.pushed, expected.pushed);
    EXPECT_EQ(counts.duplicates, expected.duplicates);
    for (const auto& [outcome, count] :
         std::initializer_list<std::pair<Pushed, int64_t>>{{Pushed::kKept, counts.kept},
                                                           {Pushed::kReordered, counts.reordered},
                                                           {Pushed::kTooLate, counts.too_late},
                                                           {Pushed::kRefused, counts.refused},
                                                           {Pushed::kSegment, counts.segments}}) {
      EXPECT_EQ(count, outcomes[static_cast<size_t>(outcome)]);
      EXPECT_EQ(count > 0, outcome != Pushed::kSegment || rewind == Rewind::kSegment);
    }
  }
}

int64_t now_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

// The reader interrupts the writer on the same core, often in the middle of a row.
TEST(Ring, ARealTimeReaderLetsTheWriterFinish) {
  Ring ring({.shape = {1 << 14}, .span_ns = 1000});
  const std::vector<char> row(static_cast<size_t>(ring.row_bytes()));
  ring.push(1, 1, row);
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(static_cast<size_t>(sched_getcpu()), &core);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    pthread_setaffinity_np(pthread_self(), sizeof core, &core);
    for (int64_t stamp = 2; !done; ++stamp) {
      ring.push(stamp, stamp, row);
      std::this_thread::sleep_for(std::chrono::microseconds(10));
    }
  });
  int error = 0;
  int64_t cpu_ns = 0;
  int64_t wall_ns = 0;
  std::thread reader([&] {
    const sched_param priority{.sched_priority = 1};
    error = pthread_setaffinity_np(pthread_self(), sizeof core, &core);
    if (error == 0) error = pthread_setschedparam(pthread_self(), SCHED_FIFO, &priority);
    for (int i = 0; i < 500 && error == 0 && wall_ns < 300'000'000; ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      const int64_t wall_began = now_ns(CLOCK_MONOTONIC);
      const int64_t cpu_began = now_ns(CLOCK_THREAD_CPUTIME_ID);
      ring.newest_ns();
      cpu_ns += now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_began;
      wall_ns += now_ns(CLOCK_MONOTONIC) - wall_began;
    }
    done = true;
  });
  reader.join();
  writer.join();
  if (error != 0) GTEST_SKIP() << "no real-time priority here: " << std::strerror(error);
  EXPECT_LT(cpu_ns, wall_ns / 2);  // it sleeps, so that the writer can run, instead of trying again and again
}

}  // namespace
}  // namespace robocache
