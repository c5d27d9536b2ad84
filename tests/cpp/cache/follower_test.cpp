#include "robocache/cache/follower.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "robocache/cache/block_writer.hpp"
#include "robocache/cache/statistics.hpp"
#include "robocache/cache/write_behind.hpp"
#include "tests/cpp/cache/files.hpp"
#include "tests/cpp/temporary_cache.hpp"

namespace robocache::cache {
namespace {

constexpr int64_t kRows = FirstPass::kRows;
constexpr int64_t kRowBytes = 4;

class FollowerTest : public testing::Test {
 protected:
  std::string path() const { return folder_.path() + "/file"; }

  // A header, and rows of one float32 each.
  void write_rows(int64_t count) const {
    std::vector<float> rows;
    for (int64_t row = 0; row < count; ++row) rows.push_back(static_cast<float>(row));
    test::write_file(path(), "head" + std::string(reinterpret_cast<const char*>(rows.data()), rows.size() * kRowBytes));
  }

  test::TemporaryFolder folder_;
};

TEST_F(FollowerTest, TakesWholeStepsOfWhatWasWritten) {
  write_rows(3 * kRows);
  Follower follower(path(), 4, DType::kFloat32, 1);
  EXPECT_FALSE(follower.follow(4));
  EXPECT_FALSE(follower.follow(4 + kRows * kRowBytes - 1));
  EXPECT_FALSE(follower.follow(4 + kRows * kRowBytes));
  EXPECT_TRUE(follower.follow(4 + 3 * kRows * kRowBytes));
  const auto pass = follower.finish();
  ASSERT_NE(pass, nullptr);
  EXPECT_EQ(pass->rows(), 2 * kRows);
  EXPECT_FALSE(follower.follow(4 + 3 * kRows * kRowBytes));
  EXPECT_EQ(follower.finish(), nullptr);
}

TEST_F(FollowerTest, ForgetsWhatWasTakenBackAndKeepsWhatIsBeforeIt) {
  write_rows(3 * kRows);
  const int64_t two = 4 + 2 * kRows * kRowBytes;
  for (const int64_t cut : {two, two - 1}) {
    Follower follower(path(), 4, DType::kFloat32, 1);
    while (follower.follow(two)) {
    }
    follower.cut(cut);
    const auto pass = follower.finish();
    EXPECT_EQ(pass == nullptr, cut < two);
  }
}

TEST_F(FollowerTest, AFileThatIsNotThereOrShorterIsLookedAtNoMore) {
  Follower missing(path(), 4, DType::kFloat32, 1);
  EXPECT_FALSE(missing.follow(1 << 20));
  EXPECT_EQ(missing.finish(), nullptr);
  write_rows(kRows + 5);
  Follower shorter(path(), 4, DType::kFloat32, 1);
  EXPECT_TRUE(shorter.follow(1 << 20));
  EXPECT_FALSE(shorter.follow(1 << 20));
  EXPECT_EQ(shorter.finish(), nullptr);
}

// Of doubles a column counts half a megabyte.
TEST_F(FollowerTest, AllTogetherHoldNoMoreThanTheirShare) {
  test::write_file(path(), std::string(size_t{1} << 24, '\0'));
  std::vector<std::unique_ptr<Follower>> followers;
  const auto follow_one_more = [&] {
    followers.push_back(std::make_unique<Follower>(path(), 0, DType::kFloat64, 32));
    followers.back()->follow(1 << 24);
  };
  for (int i = 0; i < 8; ++i) follow_one_more();
  int64_t at_work = 0;
  for (const auto& follower : followers) at_work += follower->finish() != nullptr ? 1 : 0;
  EXPECT_GT(at_work, 0);
  EXPECT_LT(at_work, 4);
  followers.clear();
  follow_one_more();
  EXPECT_NE(followers.back()->finish(), nullptr);
}

TEST_F(FollowerTest, FollowsAWriterThroughWhatIsTakenBack) {
  WriteBehind behind;
  for (const int64_t kept_rows : {int64_t{0}, kRows, 40 * kRows}) {
    BlockWriter writer(path(), "head", &behind);
    writer.follow_with(std::make_unique<Follower>(path(), 4, DType::kFloat32, 1));
    std::vector<float> rows(static_cast<size_t>(kept_rows), 1);
    writer.append(rows.data(), rows.size() * kRowBytes);
    const int64_t kept = writer.size();
    std::vector<float> dropped(static_cast<size_t>(100 * kRows), -1);
    writer.append(dropped.data(), dropped.size() * kRowBytes);
    writer.truncate(kept);
    std::vector<float> more(static_cast<size_t>(64 * kRows), 2);
    writer.append(more.data(), more.size() * kRowBytes);
    writer.finish();
    rows.insert(rows.end(), more.begin(), more.end());
    const auto statistics =
        value_statistics(rows.data(), DType::kFloat32, std::ssize(rows), 1, [] {}, writer.end_following());
    EXPECT_EQ(statistics.table, value_statistics(rows.data(), DType::kFloat32, std::ssize(rows), 1).table);
    EXPECT_EQ(writer.end_following(), nullptr);
  }
}

}  // namespace
}  // namespace robocache::cache
