#include "robocache/live/topic.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/live/topic_plan.hpp"

namespace robocache {
namespace {

struct Rings {
  std::vector<std::shared_ptr<Ring>> all;

  Rings() {
    const auto add = [this](DType dtype, int64_t features) {
      all.push_back(
          std::make_shared<Ring>(RingOptions{.dtype = dtype, .shape = {features}, .span_ns = int64_t{1} << 40}));
    };
    add(DType::kFloat64, 2);
    add(DType::kFloat32, 3);
    add(DType::kFloat64, 2);
  }

  template <class T>
  std::vector<T> newest(size_t ring) const {
    RingRows rows;
    const int64_t time_ns = all[ring]->newest_ns().value();
    EXPECT_TRUE(all[ring]->copy(time_ns, time_ns, 0, rows));
    std::vector<T> values(static_cast<size_t>(all[ring]->row_bytes()) / sizeof(T));
    std::memcpy(values.data(), rows.values.data(), values.size() * sizeof(T));
    return values;
  }
};

// Writes CDR, little-endian.
class Message {
 public:
  template <class T>
  Message& add(T value) {
    while ((bytes_.size() - 4) % sizeof(T) != 0) bytes_.push_back(0);
    const auto raw = std::bit_cast<std::array<uint8_t, sizeof(T)>>(value);
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
    return *this;
  }
  Message& add(const std::string& text) {
    add(static_cast<uint32_t>(text.size() + 1));
    bytes_.insert(bytes_.end(), text.begin(), text.end());
    bytes_.push_back(0);
    return *this;
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_ = {0, 1, 0, 0};
};

std::vector<uint8_t> message(int32_t seconds, float first_covariance) {
  Message message;
  message.add(seconds).add(uint32_t{7}).add(std::string("base"));                                  // stamp, frame_id
  message.add(uint32_t{3}).add(std::string("b")).add(std::string("other")).add(std::string("a"));  // name
  message.add(uint32_t{3}).add(1.0).add(2.0).add(3.0);                                             // position
  message.add(first_covariance).add(5.0F).add(6.0F);                                               // covariance
  // notes: two records
  message.add(uint32_t{2}).add(uint32_t{1}).add(std::string("x")).add(uint32_t{2}).add(int16_t{1}).add(int16_t{2});
  message.add(uint32_t{0}).add(uint32_t{0});
  message.add(uint8_t{9});  // mode
  return message.bytes();
}

TEST(Topic, AMessageBecomesRows) {
  Rings rings;
  Topic topic(test::kPlan, rings.all);
  topic.take(message(5, 4.0F), {.arrival_ns = 6'000'000'000, .publisher = 1, .sequence = 3});
  EXPECT_EQ(topic.counts().taken, 1) << topic.refusal();
  EXPECT_EQ(rings.all[0]->newest_ns(), 5'000'000'007);
  EXPECT_EQ(rings.newest<double>(0), (std::vector<double>{3, 1}));  // joints a and b
  EXPECT_EQ(rings.newest<float>(1), (std::vector<float>{4, 5, 6}));
  EXPECT_EQ(rings.newest<double>(2), (std::vector<double>{9, 9}));  // mode, in both features
  topic.take(message(6, -1.0F), {.arrival_ns = 6'000'000'000, .publisher = 1, .sequence = 6});
  EXPECT_EQ(rings.newest<double>(2)[0], 9);
  // A first covariance of -1 says in ROS that the measurement is absent. The plan's "absent" gives this feature as NaN.
  EXPECT_TRUE(std::isnan(rings.newest<double>(2)[1]));
  EXPECT_EQ(topic.counts().lost, 2);
}

TEST(Topic, TruncatedAndDamagedMessagesAreRefused) {
  Rings rings;
  Topic topic(test::kPlan, rings.all);
  const std::vector<uint8_t> whole = message(5, 4.0F);
  std::mt19937 random(1);
  const auto take = [&](const std::vector<uint8_t>& bytes, size_t size) {
    const auto exact = std::make_unique<uint8_t[]>(size);  // so that a sanitizer sees a read past the end
    std::memcpy(exact.get(), bytes.data(), size);
    topic.take({exact.get(), size}, {.arrival_ns = 6'000'000'000});
  };
  for (size_t size = 0; size < whole.size(); ++size) take(whole, size);
  EXPECT_EQ(topic.counts().taken, 0);
  EXPECT_EQ(topic.counts().refused, static_cast<int64_t>(whole.size()));
  take(whole, whole.size());
  EXPECT_EQ(topic.counts().taken, 1);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<uint8_t> damaged = whole;
    for (uint32_t k = 1 + random() % 3; k > 0; --k) {
      constexpr uint8_t kValues[] = {0, 1, 4, 127, 255};
      damaged[random() % damaged.size()] = kValues[random() % 5];
    }
    if (damaged != whole) take(damaged, damaged.size());
  }
  const TopicCounts counts = topic.counts();
  EXPECT_EQ(counts.received, counts.taken + counts.refused);
  EXPECT_GT(counts.taken, 1);  // damage that only changes numbers
  EXPECT_GT(counts.refused, static_cast<int64_t>(whole.size()));
}

TEST(Topic, APlanThatDoesNotFitTheRingsIsRefused) {
  Rings rings;
  const std::string plan = test::kPlan;
  const auto changed_plan = [&](const std::string& from, const std::string& to) {
    std::string changed = plan;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  for (const auto& [fault, wrong] : std::vector<std::pair<const char*, std::string>>{
           {"no JSON", "{"},
           {"there is no ring 3", changed_plan("[[0, -1]]", "[[3, 0]]")},
           {"joints in a ring without names", changed_plan("[[0, -1]]", "[[1, -1]]")},
           {"three numbers from feature 1 of 3 on", changed_plan("[[1, 0]]", "[[1, 1]]")},
           {"a feature below -1", changed_plan("[[1, 0]]", "[[1, -2]]")},
           {"an absent feature 2 of 2", changed_plan("[[2, 1]]}", "[[2, 2]]}")},
           {"a number as feature 2 of 2", changed_plan("[2, 1]]}]", "[2, 2]]}]")},
           {"an array of -1 numbers", changed_plan("\"count\": 3", "\"count\": -1")},
           {"one name for two features", changed_plan("\"names\": [\"a\", \"b\"]", "\"names\": [\"a\"]")},
           {"an unknown kind", changed_plan("\"kind\": \"texts\"", "\"kind\": \"words\"")}}) {
    EXPECT_THROW(Topic(wrong, rings.all), Error) << fault;
  }
  EXPECT_THROW(Topic(plan, {rings.all[0]}), ArgumentError);
}

}  // namespace
}  // namespace robocache
