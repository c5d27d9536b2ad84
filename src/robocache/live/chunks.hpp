// Turns a policy's action chunks into the action at a moment: by the stamps of the chunks' steps, never by counting
// calls.
//
//   Chunks chunks({.mode = ChunkMode::kEnsemble});
//   chunks.put(stamps, actions);  // [T] in ns; [T, D] in the recording's units
//   std::vector<double> action;
//   if (chunks.at(now_ns, action)) move(action);
//
// A step lasts from its stamp to the next step's; the last step lasts as long as the one before it. So steps that had
// ended before the chunk came are skipped.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "robocache/actions/rotation.hpp"
#include "robocache/core/enum_names.hpp"

namespace robocache {

enum class ChunkMode : uint8_t {
  // The action of the newest chunk that has one.
  kNewest,
  // The mean over all chunks that have one, weighted by exp(-decay i), with i = 0 for the oldest (ACT, Zhao et al.,
  // 2023).
  kEnsemble,
  // Goes from the earlier action to the newest chunk's, linearly over fade_ns from the first moment at which at() finds
  // both.
  kCrossFade,
};

template <>
inline constexpr std::string_view kNames<ChunkMode>[] = {"newest", "ensemble", "cross-fade"};

// Features that are mixed along the shorter arc, so that a mixture of rotations is a rotation.
struct ChunkTurn {
  int64_t begin = 0;
  std::optional<RotationForm> rotation = {};  // none: one feature, an angle in radians

  int64_t width() const { return rotation ? rotation->width : 1; }
};

struct ChunkOptions {
  ChunkMode mode = ChunkMode::kNewest;
  double decay = 0.01;
  double fade_ns = 1e8;
  std::vector<ChunkTurn> turns = {};  // without overlap
};

// Several threads may use it at once: the policy's thread puts chunks while the control loop reads actions.
class Chunks {
 public:
  explicit Chunks(ChunkOptions options);  // throws ArgumentError

  // Takes a chunk of T >= 1 steps: ascending stamps, and [T, D] finite numbers. Of more than kMostChunks, which only pile
  // up where at() is not called, the earliest is forgotten. Throws ArgumentError.
  static constexpr size_t kMostChunks = 1024;
  void put(std::span<const int64_t> time_ns, std::span<const double> actions);

  // Writes the action [D] at a moment. Returns false if no chunk has one; starved() counts such calls. Moments must
  // ascend: chunks that end at or before such a moment are forgotten.
  bool at(int64_t time_ns, std::vector<double>& action);

  // Returns the newest chunk's steps after a moment. Real-time chunking begins the next chunk with them.
  struct Rest {
    std::vector<int64_t> time_ns;
    std::vector<double> actions;
  };
  Rest leftover(int64_t time_ns) const;

  // Returns how many steps of the newest chunk begin at or before a moment. They are executed, whatever chunk comes
  // next.
  int64_t frozen(int64_t time_ns) const;

  std::optional<int64_t> covered_until_ns() const;  // from then on no chunk has an action
  int64_t starved() const;

 private:
  struct Chunk {
    std::vector<int64_t> time_ns;
    std::vector<double> actions;
    int64_t end_ns;                     // the last step's stamp plus a step's length
    std::optional<int64_t> fades_from;  // the first moment passed to at() at which the chunk had an action
  };

  struct Candidate {
    Chunk* chunk;
    const double* action;
  };

  // Moves the angles and rotations of `action` towards those of `target`, by `share` of the way.
  void mix_turns(std::vector<double>& action, const double* target, double share) const;

  // Returns how many steps of a chunk begin at or before a moment.
  static int64_t begun_steps(const Chunk& chunk, int64_t time_ns);

  const ChunkOptions options_;
  mutable std::mutex mutex_;           // guards all members below
  std::deque<Chunk> chunks_;           // by their first stamps, ascending
  std::vector<Candidate> candidates_;  // scratch memory of at()
  std::vector<double> mixed_turns_;    // scratch memory of at()
  int64_t features_ = 0;               // 0 before the first chunk
  int64_t starved_ = 0;
};

}  // namespace robocache
