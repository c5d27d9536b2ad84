#include "robocache/interpolation/interpolate_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace robocache::interpolation_cuda {
namespace {

using M = InterpolationMethod;

// One row of contiguous float32 by float64 clocks.
Segment segment(M method, int64_t features) {
  Segment s{};
  s.method = method;
  s.samples = 100;
  s.features = s.values_sample = s.out_target = features;
  s.values_feature = s.out_feature = s.times_sample = 1;
  s.value_dtype = s.out_dtype = DType::kFloat32;
  s.clock_dtype = DType::kFloat64;
  return s;
}

Interpolation call_of(const std::vector<Segment>& segments) {
  Interpolation call{};
  call.batch = 1;
  call.targets_count = 50;
  call.targets_target = 1;
  call.target_dtype = DType::kFloat64;
  call.segments = segments.data();
  call.segment_count = static_cast<int32_t>(segments.size());
  return call;
}

Way way_of_all(const std::vector<Segment>& segments) { return choose_way(call_of(segments)); }
Way way_of_one(const Segment& s) { return way_of_all({s}); }

TEST(InterpolatePlan, EachMethodHasItsWay) {
  for (const M method : {M::kLinear, M::kNearest, M::kPrevious, M::kNext}) {
    EXPECT_EQ(way_of_one(segment(method, 7)), Way::kTiles);
  }
  for (const M method : {M::kPchip, M::kAkima, M::kAngle, M::kSlerp}) {
    EXPECT_EQ(way_of_one(segment(method, 8)), Way::kCurve);
    EXPECT_EQ(way_of_one(segment(method, 6)), Way::kAny);  // rows of 24 bytes
    EXPECT_EQ(way_of_all({segment(method, 8), segment(method, 8)}), Way::kAny);
    Segment wide = segment(method, 8);
    wide.value_dtype = wide.out_dtype = DType::kFloat64;
    EXPECT_EQ(way_of_one(wide), Way::kAny);
  }
  EXPECT_EQ(way_of_one(segment(M::kCubic, 8)), Way::kAny);
}

TEST(InterpolatePlan, SegmentsOfOneTypeGoSideBySide) {
  std::vector<Segment> segments(kMostTiledCalls, segment(M::kLinear, 8));
  segments[1] = segment(M::kPrevious, 7);  // of any width
  EXPECT_EQ(way_of_all(segments), Way::kTiles);
  segments.push_back(segments[0]);
  EXPECT_EQ(way_of_all(segments), Way::kAny);
  Segment half = segment(M::kLinear, 8);
  half.value_dtype = half.out_dtype = DType::kFloat16;
  EXPECT_EQ(way_of_all({segments[0], half}), Way::kAny);
  EXPECT_EQ(way_of_all({segments[0], segment(M::kPchip, 8)}), Way::kAny);
}

TEST(InterpolatePlan, WhatTheTilesDoNotTakeGoesByTheGeneralKernel) {
  const auto spoiled = [](auto spoil) {
    Segment s = segment(M::kLinear, 8);
    spoil(s);
    return way_of_one(s);
  };
  EXPECT_EQ(spoiled([](Segment&) {}), Way::kTiles);
  EXPECT_EQ(spoiled([](Segment& s) { s.value_dtype = s.out_dtype = DType::kInt32; }), Way::kAny);
  EXPECT_EQ(spoiled([](Segment& s) { s.out_dtype = DType::kFloat16; }), Way::kAny);
  EXPECT_EQ(spoiled([](Segment& s) { s.clock_dtype = DType::kInt64; }), Way::kAny);  // not that of the targets
  EXPECT_EQ(spoiled([](Segment& s) { s.scaled = true; }), Way::kAny);
  EXPECT_EQ(spoiled([](Segment& s) { s.offset = 0.5; }), Way::kAny);
  EXPECT_EQ(spoiled([](Segment& s) { s.age = &s; }), Way::kAny);
  EXPECT_EQ(spoiled([](Segment& s) { s.times_sample = 2; }), Way::kAny);
  EXPECT_EQ(spoiled([](Segment& s) { s.values_sample = int64_t{1} << 27; }), Way::kAny);
}

TEST(InterpolatePlan, VectorsAreWhatRowsAndAddressesAreMadeOf) {
  const auto bytes_of = [](int64_t features, int64_t offset) {
    Segment s = segment(M::kLinear, features);
    s.values = reinterpret_cast<const char*>(uintptr_t{4096}) + offset;
    return vector_bytes_of(call_of({s}), s);
  };
  EXPECT_EQ(bytes_of(8, 0), 16);
  EXPECT_EQ(bytes_of(6, 0), 8);
  EXPECT_EQ(bytes_of(7, 0), 4);
  EXPECT_EQ(bytes_of(8, 8), 8);
  EXPECT_EQ(bytes_of(8, 4), 4);
}

// What a window misses is looked up in the row: where both clocks run evenly it must reach over the tile.
TEST(InterpolatePlan, AWindowReachesOverItsTileOrIsNotThere) {
  for (const int64_t samples : {1, 100, 1000, 1024, 5000, 100'000}) {
    for (const int64_t targets : {1, 50, 1000, 100'000}) {
      for (const int64_t tile : {16, 64, 256}) {
        if (tile > targets) continue;
        const Window window = window_of(samples, targets, tile, kMostTimes);
        const double even = static_cast<double>(tile) * static_cast<double>(samples) / static_cast<double>(targets);
        if (window.size == 0) {
          EXPECT_GT(even + 2 * window.margin + 1, kMostTimes);
        } else {
          EXPECT_GE(window.size, std::min(static_cast<double>(samples), even));
          EXPECT_LE(window.size, kMostTimes);
        }
      }
    }
  }
}

TEST(InterpolatePlan, RowsOfAnOddWidthAreReadInPiecesOfWholeSectors) {
  for (const int64_t vectors : {1, 7, 64, 65, 100, 255, 256, 257, 300, 768, 5000}) {
    for (const int64_t bytes : {2, 4, 8, 16}) {
      const Lanes lanes = lanes_for(vectors, bytes);
      EXPECT_GE(lanes.width, std::min(vectors, divided_up(128, bytes))) << vectors << " of " << bytes;
      EXPECT_LE(lanes.width * lanes.groups, kTileThreads);
      for (int32_t thread = 0; thread < kTileThreads; ++thread) {
        EXPECT_EQ(static_cast<uint32_t>(thread) * lanes.reciprocal >> 16, static_cast<uint32_t>(thread / lanes.width));
      }
    }
  }
}

// Blocks of a call wait for memory together: as many as run at once do as well as any number, and each wave more costs one.
TEST(InterpolatePlan, RowsOfFewFeaturesAreCutIntoAsManyBlocksAsRunAtOnce) {
  const auto blocks_of = [](int64_t batch, int64_t samples, int64_t targets, int64_t features) {
    Segment s = segment(M::kLinear, features);
    s.samples = samples;
    s.values_batch = samples * features;
    s.out_batch = targets * features;
    Interpolation call = call_of({s});
    call.batch = batch;
    call.targets_count = targets;
    const TileCall made = tile_call(call, s, 528);
    EXPECT_LE(window_bytes(made), size_t{32768 + 16});
    EXPECT_GE(1 << made.of.log2_span, made.of.window.size);
    return made.cut.tiles * divided_up(batch, made.cut.rows);
  };
  EXPECT_LE(blocks_of(256, 1000, 1000, 1), 528);
  EXPECT_LE(blocks_of(1024, 22, 26, 7), 528);
  EXPECT_LE(blocks_of(2048, 64, 32, 24), 528);
  EXPECT_LE(blocks_of(256, 3692, 616, 1), 2 * 528);
  EXPECT_LE(blocks_of(1024, 4823, 356, 2), 4 * 528);
}

}  // namespace
}  // namespace robocache::interpolation_cuda
