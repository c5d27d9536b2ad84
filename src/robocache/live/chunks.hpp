// A policy's action chunks become the action at a moment: by the stamps of their steps, never by counting calls.
//
//   Chunks chunks({.mode = ChunkMode::kEnsemble});
//   chunks.put(stamps, actions);  // [T] ns, [T, D]: the policy's, as recorded
//   std::vector<double> action;
//   if (chunks.at(now_ns, action)) move(action);
//
// A step counts from its stamp to the next one's, the last for as long as the one before it. So steps that were over when the chunk
// came are passed over by time.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "robocache/core/enum_names.hpp"
#include "robocache/interpolation/blocks.hpp"

namespace robocache {

enum class ChunkMode : uint8_t {
  kNewest,    // the action of the newest chunk that has one
  kEnsemble,  // the mean of all that have one, weighted by exp(-decay i), i = 0 for the oldest (ACT, Zhao et al., 2023)
  kCrossFade,  // from the action before to the newest chunk's, in a straight line over fade_ns from the first moment asked for then
};

template <>
struct EnumNames<ChunkMode> {
  static constexpr std::string_view names[] = {"newest", "ensemble", "cross-fade"};
};

struct ChunkOptions {
  ChunkMode mode = ChunkMode::kNewest;
  double decay = 0.01;
  double fade_ns = 1e8;
  std::vector<FeatureBlock> turns = {};  // of kAngle and kSlerp: these features are mixed the shorter way round
};

// Threads may use it at once: a policy's puts chunks while the control loop asks for actions.
class Chunks {
 public:
  explicit Chunks(ChunkOptions options);  // throws ArgumentError

  // Takes a chunk of T >= 1 steps: ascending stamps, and [T, D] finite numbers. Throws ArgumentError.
  void put(std::span<const int64_t> time_ns, std::span<const double> actions);

  // Writes the action [D] at a moment. False, which starved() counts, if no chunk has one. Moments are asked for in
  // ascending order: chunks that have no action at or after one are forgotten.
  bool at(int64_t time_ns, std::vector<double>& action);

  // Returns the newest chunk's steps behind a moment: real-time chunking begins its next chunk with them.
  struct Rest {
    std::vector<int64_t> time_ns;
    std::vector<double> actions;
  };
  Rest leftover(int64_t time_ns) const;

  // Returns how many steps of the newest chunk begin at or before a moment: they are carried out, whatever chunk comes then.
  int64_t frozen(int64_t time_ns) const;

  std::optional<int64_t> covered_until_ns() const;  // from then on no chunk has an action; none before the first chunk
  int64_t starved() const;

 private:
  struct Chunk {
    std::vector<int64_t> time_ns;
    std::vector<double> actions;
    int64_t end_ns;                     // a step's length behind the last one
    std::optional<int64_t> fades_from;  // the first moment asked for that it has an action at
  };

  struct Found {
    Chunk* chunk;
    const double* action;
  };

  // Takes the angles and rotations of an action a share of the way to another one's.
  void turn(std::vector<double>& action, const double* to, double share) const;

  static int64_t begun(const Chunk& chunk, int64_t time_ns);  // steps

  const ChunkOptions options_;
  mutable std::mutex mutex_;    // guards what follows
  std::deque<Chunk> chunks_;    // by their first stamps, the newest last
  std::vector<Found> found_;    // of at()
  std::vector<double> turned_;  // of at()
  int64_t features_ = 0;        // 0 before the first chunk
  int64_t starved_ = 0;
};

}  // namespace robocache
