#include "robocache/align/window_plan.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "tests/cpp/host_clock.hpp"

namespace robocache {
namespace {

using M = InterpolationMethod;

// A window of float32 rows that nobody reads: plans look at no value.
WindowStream window(const test::HostClock& clock, int64_t features, std::vector<int64_t> delta_ns,
                    std::vector<FeatureBlock> methods = {}) {
  WindowStream made{};
  made.rows = {clock.view(), nullptr, features, DType::kFloat32};
  made.delta_ns = std::move(delta_ns);
  made.methods = methods.empty() ? std::vector<FeatureBlock>{{0, features, M::kLinear}} : std::move(methods);
  made.out_features = features;
  made.out_dtype = DType::kFloat32;
  return made;
}

// A plan and what keeps its tables.
struct Planned {
  explicit Planned(const std::vector<WindowStream>& streams)
      : plan(window_plan(std::vector<WindowStreams>{{{}, streams, {}}}, tables)) {}

  WindowTables group(int32_t at) const { return tables_of(plan.first.groups[at]); }

  DeviceTables tables{Device{}};
  WindowPlan plan;
};

const test::HostClock kOne({{0, 10, 20}});
const test::HostClock kOther({{0, 10, 20}});

// Every step of every segment is served by one slot, of the moment that it aims at, on its clock.
void expect_every_step_once(const Planned& planned, const std::vector<WindowStream>& streams) {
  std::multiset<std::pair<const EpisodeRows*, int64_t>> aimed;
  for (int32_t g = 0; g < planned.plan.group_count; ++g) {
    const WindowGroup& group = planned.plan.first.groups[g];
    const WindowTables tables = planned.group(g);
    std::set<int64_t> picks;
    for (int32_t c = 0; c < group.clock_count; ++c) {
      for (int32_t m = tables.clocks[c].moment_begin; m < tables.clocks[c].moment_end; ++m) {
        const WindowMoment& moment = tables.moments[m];
        const bool first = m == tables.clocks[c].moment_begin;
        EXPECT_TRUE(first || tables.moments[m - 1].delta_ns < moment.delta_ns);
        EXPECT_EQ(moment.clock, c);
        EXPECT_GT(moment.slots, 0);
        for (int32_t slot = 0; slot < moment.slots; ++slot) {
          const WindowSlot& step = tables.slots[moment.slot_begin + slot];
          const WindowSegment& segment = tables.segments[step.segment];
          EXPECT_EQ(segment.clock, c);
          EXPECT_EQ(segment.pick_begin + step.step, step.pick);
          EXPECT_TRUE(picks.insert(step.pick).second);
          if (segment.pad_offset >= 0) aimed.emplace(tables.clocks[c].rows.episodes, moment.delta_ns);
        }
      }
    }
    EXPECT_EQ(static_cast<int32_t>(picks.size()), group.picks);
  }
  std::multiset<std::pair<const EpisodeRows*, int64_t>> expected;
  for (const WindowStream& stream : streams) {
    for (const int64_t delta : stream.delta_ns) expected.emplace(stream.rows.clock.episodes, delta);
  }
  EXPECT_EQ(aimed, expected);
}

TEST(WindowPlan, SearchesAClockOnceForAllThatAimAtATime) {
  const std::vector<WindowStream> streams{window(kOne, 7, {-5, 0}), window(kOne, 7, {10, 0, 5, 5}),
                                          window(kOther, 3, {0})};
  const Planned planned(streams);
  ASSERT_EQ(planned.plan.group_count, 1);
  const WindowGroup& group = planned.plan.first.groups[0];
  EXPECT_EQ(group.segment_count, 3);
  EXPECT_EQ(group.clock_count, 2);
  EXPECT_EQ(group.moment_count, 5);  // -5, 0, 5 and 10 on the one, 0 on the other
  EXPECT_EQ(group.picks, 7);
  expect_every_step_once(planned, streams);
}

TEST(WindowPlan, GivesEachRunOfFeaturesASegmentAndTheMaskToTheFirst) {
  std::vector<WindowStream> streams{
      window(kOne, 8, {0, 5}, {{0, 1, M::kLinear}, {1, 5, M::kSlerp}, {5, 7, M::kPrevious}, {7, 8, M::kAngle}})};
  streams[0].out_offset = 1024;
  streams[0].pad_offset = 4096;
  const Planned planned(streams);
  EXPECT_TRUE(planned.plan.curved);
  ASSERT_EQ(planned.plan.first.groups[0].segment_count, 4);
  EXPECT_EQ(planned.plan.first.groups[0].moment_count, 2);
  const WindowSegment* const segments = planned.group(0).segments;
  const int64_t begins[] = {0, 1, 5, 7};
  const int64_t widths[] = {1, 4, 2, 1};
  const int32_t vectors[] = {1, 4, 1, 1};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(segments[i].features, widths[i]);
    EXPECT_EQ(segments[i].row_bytes, 4 * 8);
    EXPECT_EQ(segments[i].step_bytes, 4 * 8);
    EXPECT_EQ(segments[i].vector, vectors[i]) << i;
    EXPECT_EQ(segments[i].out_offset, 1024 + 4 * begins[i]);
    EXPECT_EQ(segments[i].pad_offset, i == 0 ? 4096 : -1);
  }
  expect_every_step_once(planned, streams);
}

// Under the address sanitizer the steps of these have to be the plan's own.
TEST(WindowPlan, FillsUpWhatASourceLacksAtTheStepsOfTheOthers) {
  const std::vector<int64_t> steps{-700, 0, 5, 10, 900};
  for (const int64_t there : {1, 3}) {
    std::vector<WindowStream> streams;
    for (int i = 0; i < 3; ++i) {
      streams.push_back(window(kOne, there, steps));
      streams.back().out_features = 7;
      streams.back().out_offset = 1024 * i;
    }
    const Planned planned(streams);
    ASSERT_EQ(planned.plan.group_count, 1);
    const WindowTables tables = planned.group(0);
    int filled = 0;
    for (int32_t at = 0; at < planned.plan.first.groups[0].segment_count; ++at) {
      const WindowSegment& segment = tables.segments[at];
      if (tables.clocks[segment.clock].rows.episodes != nullptr) continue;
      ++filled;
      EXPECT_EQ(segment.features, 7 - there);
      EXPECT_EQ(segment.values, nullptr);
      EXPECT_EQ(segment.pad_offset, -1);
      ASSERT_GE(segment.first_moment, 0);
      for (size_t step = 0; step < steps.size(); ++step) {
        EXPECT_EQ(tables.moments[static_cast<size_t>(segment.first_moment) + step].delta_ns, steps[step]) << at;
      }
    }
    EXPECT_EQ(filled, 3);
  }
}

TEST(WindowPlan, SpreadsManyStepsAndStreamsOverGroups) {
  std::vector<int64_t> many(1300);
  std::iota(many.begin(), many.end(), -600);
  std::vector<WindowStream> streams{window(kOne, 4, {0}), window(kOne, 4, many), window(kOther, 1, many)};
  for (int i = 0; i < 40; ++i) streams.push_back(window(kOther, 2, {i, i + 1}));
  for (const bool curved : {false, true}) {
    if (curved) streams[0].methods = {{0, 4, M::kAkima}};
    const Planned planned(streams);
    const int32_t most = curved ? kMaxGroupCurvePicks : kMaxGroupPicks;
    for (int32_t g = 0; g < planned.plan.group_count; ++g) {
      EXPECT_LE(planned.plan.first.groups[g].picks, most);
      EXPECT_LE(planned.plan.first.groups[g].segment_count, kMaxGroupSegments);
    }
    expect_every_step_once(planned, streams);
  }
}

TEST(WindowPlan, MovesAsManyNeighboursAsDivideABlock) {
  for (const auto& [features, vector] :
       std::vector<std::pair<int64_t, int32_t>>{{1, 1}, {2, 2}, {6, 2}, {7, 1}, {64, 4}}) {
    EXPECT_EQ(Planned({window(kOne, features, {0})}).group(0).segments[0].vector, vector) << features;
  }
  EXPECT_EQ(Planned({window(kOne, 8, {0}, {{0, 2, M::kLinear}, {2, 8, M::kNext}})}).group(0).segments[1].vector, 2);
}

}  // namespace
}  // namespace robocache
