// The last rows of one live stream. Rows are pushed as they come, while readers copy windows of them.
//
//   Ring ring({.dtype = DType::kFloat32, .shape = {7}, .span_ns = 5'000'000'000, .lateness_ns = 6'000'000});
//   ring.push(stamp_ns, arrival_ns, row);  // on the writer's thread
//   RingRows rows;
//   if (ring.copy(first_ns, last_ns, 1, rows)) use(rows.time_ns, rows.values);  // on any thread
//
// Rows are kept in the order of their stamps; rows with equal stamps stay in the order in which they came. A row that
// is up to `lateness_ns` older than the newest is inserted at its own index; an older one is dropped and counted. So
// the rows before newest - lateness_ns never change: they are final. A row at newest - lateness_ns is final only with
// Duplicate::kRefuse: otherwise a row with the same stamp may follow, and of the two the last counts (rule 5).
//
// One thread writes at a time; others wait. Readers never wait for a lock: they copy rows, and copy again if the writer
// changed rows meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/core/device.hpp"
#include "robocache/core/dtype.hpp"
#include "robocache/core/enum_names.hpp"

namespace robocache {

// The latest stamp, in the year 2116. The sum with an offset does not overflow.
inline constexpr int64_t kLatestNs = int64_t{1} << 62;

// How the ring treats a stamp that is older than the newest by more than the span: the clock was set back, or the
// source began anew.
enum class Rewind : uint8_t {
  kRefuse,   // drops the row
  kSegment,  // forgets the earlier rows, so that no window crosses the jump
};

template <>
inline constexpr std::string_view kNames<Rewind>[] = {"refuse", "segment"};

// How the ring treats a stamp that a row already has.
enum class Duplicate : uint8_t {
  kKeep,    // keeps both rows
  kRefuse,  // drops the row, so that without lateness the newest row is final at once
};

template <>
inline constexpr std::string_view kNames<Duplicate>[] = {"keep", "refuse"};

struct RingOptions {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape = {};  // of a row; for a frame [height, width, channels]
  int64_t span_ns = 0;              // how much older than the newest row a kept row may be; above 0
  int64_t lateness_ns = 0;          // less than span_ns
  std::optional<Codec> codec = {};  // for a camera: its rows are files, or pixels with kRaw
  Rewind rewind = Rewind::kRefuse;
  Duplicate duplicate = Duplicate::kKeep;
  int64_t most_ahead_ns = 1'000'000'000;  // a stamp may be at most this far ahead of its arrival
};

// The outcome of a push.
enum class Pushed : uint8_t {
  kKept,       // as the newest row
  kReordered,  // inserted at its own index, since it came late
  kTooLate,    // dropped: older than the newest by more than the lateness
  kRefused,    // dropped: stamp at or below 0, ahead of its arrival, set back, or another row's (Duplicate::kRefuse)
  kSegment,    // kept as the first row of a new segment
};

template <>
inline constexpr std::string_view kNames<Pushed>[] = {"kept", "reordered", "too_late", "refused", "segment"};

// pushed = kept + reordered + too_late + refused + segments.
struct RingCounts {
  int64_t pushed = 0;
  int64_t kept = 0;
  int64_t reordered = 0;
  int64_t too_late = 0;
  int64_t refused = 0;
  int64_t segments = 0;    // begun after the first one
  int64_t duplicates = 0;  // rows whose stamp another row had: kept or reordered, or refused with Duplicate::kRefuse
  int64_t repeated = 0;    // kept rows with the bytes of the newest row before them, and a later stamp
};

class Ring;

// A frame that a reader holds. The writer does not reuse its memory until the reader releases it. The ring must outlive
// it.
class RingFrame {
 public:
  RingFrame() = default;
  RingFrame(RingFrame&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
  RingFrame& operator=(RingFrame&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~RingFrame() { release(); }

  std::span<const uint8_t> bytes() const;
  void release();

  // Page-locks the frame's memory and returns its address for the kernels of a CUDA device. Only for kRaw: there a slot
  // keeps its memory, so later frames in the slot are page-locked too. Throws DeviceError, OutOfMemory.
  const void* page_lock(Device device);

 private:
  friend class Ring;
  struct Slot;
  Slot* slot_ = nullptr;
};

// A copy of some rows. A reader reuses one object, which allocates only when it gets more rows than ever before.
struct RingRows {
  int64_t rows = 0;  // the number of rows; the vectors may be longer
  // Set by copy(): the copy begins with the oldest row of the ring, and the segment had earlier rows at or before
  // last_ns, which the ring has forgotten.
  bool forgotten = false;
  std::vector<int64_t> time_ns;
  std::vector<int64_t> arrival_ns;  // set by take()
  std::vector<char> values;         // numbers, row after row
  std::vector<RingFrame> frames;    // frames of a camera
};

class Ring {
 public:
  // Throws ArgumentError for an impossible span, lateness, most_ahead_ns or shape.
  explicit Ring(RingOptions options);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  const RingOptions& options() const { return options_; }
  int64_t row_bytes() const { return row_bytes_; }

  // Takes a row of row_bytes() bytes, or a frame's file of any length. Allocates only while the ring grows.
  Pushed push(int64_t time_ns, int64_t arrival_ns, std::span<const char> row);

  RingCounts counts() const;
  std::optional<int64_t> newest_ns() const;   // the largest stamp
  std::optional<int64_t> arrival_ns() const;  // when that row first came: a sensor may send one frame again and again

  // Returns how long the newest row's bytes have not changed: the newest stamp minus that of the first row with them,
  // counting back from the newest row without rows that came late. A camera whose driver sends its last buffer again
  // and again has new stamps, but unchanged bytes.
  std::optional<int64_t> unchanged_ns() const;

  // Returns the latest moment whose value is settled: rows that may still come change neither it nor the value of an
  // earlier moment. `rows_after`: how many final rows with distinct stamps the value needs at or after the moment, such
  // as 1 for linear. With 0 it needs no later row, and only takes one that is the nearest and closer than snap_ns: the
  // moment is then the last final row's stamp or, if later, newest - lateness_ns - max(1, snap_ns). Returns none if
  // there is no such moment, as for a stream without a final row.
  std::optional<int64_t> settled_ns(int rows_after, int64_t snap_ns) const;

  // Copies the rows with stamps in [first_ns, last_ns], and the rows of `margin` more distinct stamps on each side.
  // Returns false if there are no rows.
  bool copy(int64_t first_ns, int64_t last_ns, int margin, RingRows& to) const;

  // Page-locks the memory of all frames of kRaw, which takes a millisecond each. From then on the writer locks new
  // memory, so that readers never wait for it. Throws DeviceError, OutOfMemory.
  void page_lock_frames(Device device) const;

  // Copies up to `most` final rows, in the order of their stamps, from the row with the number `from` on. A row's
  // number counts the rows before it since the ring began, and a final row keeps its number. With `all` it also copies
  // rows that are not final. Returns the first row's number, which is above `from` if the ring has forgotten rows.
  // Throws ArgumentError for a negative `most`.
  int64_t take(int64_t from, int64_t most, bool all, RingRows& to) const;

 private:
  struct Rows;  // the arrays of one capacity
  struct View;  // the rows as a reader or the writer sees them
  View view() const;
  int64_t final_end(const View& view) const;  // the first row that is not final
  void copy_rows(const View& view, int64_t first, int64_t count, RingRows& to) const;
  bool hold_frames(RingRows& to) const;
  void grow(int64_t begin, int64_t end);
  int64_t write_frame(std::span<const char> frame);
  uint64_t word_of(std::span<const char> row, int64_t i) const;
  bool has_bytes(const Rows& rows, int64_t row, std::span<const char> bytes) const;
  void count(Pushed outcome) { counts_[static_cast<size_t>(outcome)].fetch_add(1, std::memory_order_relaxed); }

  // Returns the result of body(view) for rows that the writer did not change meanwhile.
  template <class Body>
  auto read(const Body& body) const;

  const RingOptions options_;
  std::mutex write_mutex_;
  const int64_t row_bytes_;
  const int64_t words_;               // 8-byte words in a row; for frames only the id
  std::atomic<uint64_t> version_{0};  // odd while the writer changes rows
  std::atomic<Rows*> rows_{nullptr};
  std::vector<std::unique_ptr<Rows>> all_rows_;  // outgrown ones too, because readers may still read them
  std::atomic<int64_t> begin_{0};                // rows [begin, end), counted since the ring began
  std::atomic<int64_t> end_{0};
  std::atomic<int64_t> segment_{0};    // the first row of the segment
  std::atomic<int64_t> oldest_ns_{0};  // the smallest stamp of the segment, forgotten rows included
  std::atomic<int64_t> arrival_ns_{0};
  std::atomic<int64_t> changed_ns_{0};            // stamp of the first row with the newest row's bytes
  std::array<std::atomic<int64_t>, 5> counts_{};  // for each Pushed
  std::atomic<int64_t> duplicates_{0};
  std::atomic<int64_t> repeated_{0};

  // Slots of frames are made when they are first needed, and stay.
  static constexpr int64_t kMostSlots = 1 << 16;
  std::unique_ptr<std::atomic<RingFrame::Slot*>[]> slots_;
  mutable std::atomic<int32_t> locks_on_{-1};  // the CUDA device for which frames are page-locked; -1: none
  int64_t slot_count_ = 0;
  int64_t frames_written_ = 0;
  std::vector<int64_t> free_;  // slots of forgotten rows
};

}  // namespace robocache
