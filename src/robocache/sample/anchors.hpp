// Anchors: the times of a source that can be drawn, either the ticks of a stream's clock or those of a rate. Finding an
// anchor reads no values. Anchors lie in runs, which are consecutive ticks of one episode. A binary search by the
// anchor's number finds its run, and its index in the run gives its time. A filter only cuts runs.
//
//   const Anchors anchors = Anchors::of_ticks(clock, episodes);
//   const Anchor anchor = anchors.index().at(7);
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "robocache/core/fields.hpp"
#include "robocache/core/host_device.hpp"
#include "robocache/core/time.hpp"
#include "robocache/source/rows.hpp"

namespace robocache {

// Consecutive ticks of an episode. Without a filter one run holds all anchors of an episode.
struct AnchorRun {
  int64_t first_anchor;  // anchors [first_anchor, the next run's first_anchor)
  int64_t episode;       // in the source
  int64_t origin;        // for a clock, the row of the first anchor; for a rate, the time in ns of tick 0
  int64_t first_tick;    // for a rate, the tick of the first anchor
};

struct Anchor {
  int64_t episode;
  int64_t time_ns;
};

// A plain struct for a kernel; the tables lie on the device of the kernel.
struct AnchorIndex {
  int64_t anchors;
  int64_t runs;
  const AnchorRun* table;   // [runs]
  const int32_t* first_of;  // [(anchors >> shift) + 2]: the index of the run that holds anchor i << shift
  int32_t shift;
  const int64_t* tick_ns;  // the clock's times; null for a rate
  double period_ns;        // for a rate
  int64_t every;           // ticks from one anchor of a run to the next

  ROBOCACHE_HD Anchor at(int64_t anchor) const {
    int64_t low = first_of[anchor >> shift];
    int64_t high = static_cast<int64_t>(first_of[(anchor >> shift) + 1]) + 1;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      if (table[middle].first_anchor <= anchor) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const AnchorRun entry = table[low];
    const int64_t k = (anchor - entry.first_anchor) * every;
    if (tick_ns != nullptr) return {entry.episode, tick_ns[entry.origin + k]};
    return {entry.episode, entry.origin + clock_tick_ns(entry.first_tick + k, period_ns)};
  }
};

// The first and the last target of a stream's window, on its clock, which the host can read.
struct WindowSpan {
  StreamClock clock;
  int64_t first_delta_ns;
  int64_t last_delta_ns;
  std::optional<std::pair<int64_t, int64_t>> rows = {};  // in rows: the first and last, relative to the target's row
};

// The rules that leave out ticks at the ends of an episode.
struct AnchorEdges {
  // Windows that must be whole: their targets lie within the episode's rows on the clock. An episode without rows there
  // has no anchors.
  std::vector<WindowSpan> whole;
  int64_t snap_ns = 0;      // a target closer than this to the first or last row counts as within
  int64_t drop_n_last = 0;  // further ticks to leave out at an episode's end
};

// A range of an episode's anchors, both ends included: as times, or as rows of the clock counted from the episode's
// first.
struct AnchorRange {
  int64_t episode;
  int64_t first;
  int64_t last;
};

// Which anchors stay. The members are applied in this order.
struct AnchorFilter {
  std::optional<std::vector<AnchorRange>> keep = {};  // keeps the anchors in one of these ranges
  std::vector<AnchorRange> drop = {};                 // drops the anchors in one of these
  bool keep_rows = false;                             // whether the ranges are in rows instead of times
  bool drop_rows = false;
  // Sets `stays` to 0 for each anchor to drop; each anchor is given by its episode and its time.
  using Where =
      std::function<void(std::span<const int64_t> episodes, std::span<const int64_t> times, std::span<uint8_t> stays)>;
  Where where = {};
  std::optional<int64_t> first = {};  // keeps this many first anchors of an episode
  std::optional<int64_t> last = {};   // and this many last anchors
  int64_t every = 1;                  // then keeps the first of an episode and every n-th after it

  // Lists only the members that are numbers.
  static constexpr auto fields() {
    return std::tuple(Field{"first", &AnchorFilter::first}, Field{"last", &AnchorFilter::last},
                      Field{"every", &AnchorFilter::every});
  }

  bool keeps_all() const { return !keep && drop.empty() && !where && !first && !last && every == 1; }
};

// The tables of an AnchorIndex in host memory; index() points into this object.
class Anchors {
 public:
  // Returns an anchor at every row of the clock in the given episodes, except at the rows that `edges` leave out. The
  // host must be able to read the clock.
  static Anchors of_ticks(const StreamClock& clock, std::span<const int64_t> episodes, const AnchorEdges& edges = {});

  // Returns the ticks k / hz of each episode, rounded to the nearest ns, in the span that all `clocks` cover. A clock
  // without rows in an episode is ignored there, and an episode without rows on any clock has no anchors. Throws
  // ArgumentError that names `anchors.rate_hz` for more than 2^53 ticks, which a double cannot count, and for an
  // episode of 2^63 ns or longer.
  static Anchors at_rate(double hz, std::span<const StreamClock> clocks, std::span<const int64_t> episodes,
                         const AnchorEdges& edges = {});

  // Returns the anchors that a filter keeps. Throws ArgumentError that begins with `name`, whatever `where` throws, and
  // Error for anchors that are filtered or split already.
  Anchors filtered(const AnchorFilter& filter, int64_t snap_ns, const std::string& name) const;

  // Calls body(episodes, times, index of the first) for all anchors, many at a time.
  using Block = std::function<void(std::span<const int64_t> episodes, std::span<const int64_t> times, int64_t first)>;
  void for_each_block(const Block& body) const;

  // Returns the anchors of each part; `part` gives each anchor's part in [0, parts), or -1 for none.
  std::vector<Anchors> split(std::span<const int32_t> part, int64_t parts) const;

  // Adds a last anchor in episode -1, which has no rows.
  void add_none();

  AnchorIndex index() const;
  std::span<const AnchorRun> table() const { return table_; }
  std::span<const int32_t> first_of() const { return first_of_; }

 private:
  template <class Time>
  void add(int64_t episode, int64_t n, const AnchorEdges& edges, AnchorRun entry, const Time& time);
  // Moves the begin of a run: for a clock `origin` is a row, for a rate it is the time of tick 0.
  void advance(AnchorRun& run, int64_t ticks) const { (tick_ns_ != nullptr ? run.origin : run.first_tick) += ticks; }
  void finish();

  std::vector<AnchorRun> table_;
  std::vector<int32_t> first_of_;
  int64_t anchors_ = 0;
  int32_t shift_ = 0;
  const int64_t* tick_ns_ = nullptr;
  const EpisodeRows* rows_ = nullptr;  // of the clock; null for a rate
  double period_ns_ = 0;
  int64_t every_ = 1;
  bool is_cut_ = false;  // filtered or split: an episode may have several runs
};

}  // namespace robocache
