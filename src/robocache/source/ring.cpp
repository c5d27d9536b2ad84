#include "robocache/source/ring.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <thread>

#include "robocache/core/arguments.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/time.hpp"

namespace robocache {
namespace {

constexpr int64_t kFirstCapacity = 64;
// The number of rows that are kept before the span: a window that begins with the span reads earlier rows too.
constexpr int64_t kRowsBehind = 4;

}  // namespace

// Each word is loaded with acquire and stored with release, instead of fences, which ThreadSanitizer does not know. On
// x86 this costs nothing.
struct Ring::Rows {
  Rows(int64_t capacity, int64_t row_words)
      : mask(capacity - 1),  // capacity is a power of two
        words_per_row(row_words),
        time_ns(new std::atomic<int64_t>[static_cast<size_t>(capacity)]),
        arrival_ns(new std::atomic<int64_t>[static_cast<size_t>(capacity)]),
        values(new std::atomic<uint64_t>[static_cast<size_t>(capacity * row_words)]) {}

  int64_t capacity() const { return mask + 1; }
  int64_t time(int64_t row) const { return time_ns[row & mask].load(std::memory_order_acquire); }
  int64_t arrival(int64_t row) const { return arrival_ns[row & mask].load(std::memory_order_acquire); }
  uint64_t word(int64_t row, int64_t i) const {
    return values[(row & mask) * words_per_row + i].load(std::memory_order_acquire);
  }
  void set_times(int64_t row, int64_t stamp, int64_t arrival) {
    time_ns[row & mask].store(stamp, std::memory_order_release);
    arrival_ns[row & mask].store(arrival, std::memory_order_release);
  }
  void set_word(int64_t row, int64_t i, uint64_t to) {
    values[(row & mask) * words_per_row + i].store(to, std::memory_order_release);
  }
  void copy_row(const Rows& from, int64_t from_row, int64_t to_row) {
    set_times(to_row, from.time(from_row), from.arrival(from_row));
    for (int64_t i = 0; i < words_per_row; ++i) set_word(to_row, i, from.word(from_row, i));
  }

  const int64_t mask;
  const int64_t words_per_row;
  const std::unique_ptr<std::atomic<int64_t>[]> time_ns;
  const std::unique_ptr<std::atomic<int64_t>[]> arrival_ns;
  const std::unique_ptr<std::atomic<uint64_t>[]> values;
};

struct Ring::View {
  const Rows* rows;
  int64_t begin, end;

  bool empty() const { return begin == end; }
  int64_t newest() const { return rows->time(end - 1); }

  // Returns the first row at or after a stamp; first_after returns the first row after it.
  int64_t first_from(int64_t stamp) const {
    return first([stamp](int64_t time) { return time >= stamp; });
  }
  int64_t first_after(int64_t stamp) const {
    return first([stamp](int64_t time) { return time > stamp; });
  }

 private:
  template <class Holds>
  int64_t first(const Holds& holds) const {
    int64_t low = begin;
    int64_t high = end;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (holds(rows->time(middle))) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
};

struct RingFrame::Slot {
  // Copies a frame into whole pages that no other slot uses: two slots that share a page could not both be page-locked.
  void assign(std::span<const char> frame) {
    constexpr size_t kPage = 4096;
    if (const size_t pages = (frame.size() + kPage - 1) / kPage; pages > capacity / kPage) {
      memory.reset(static_cast<uint8_t*>(std::aligned_alloc(kPage, pages * kPage)));
      capacity = memory == nullptr ? 0 : pages * kPage;
      if (memory == nullptr) throw std::bad_alloc();
    }
    bytes = {memory.get(), frame.size()};
    if (!frame.empty()) std::memcpy(memory.get(), frame.data(), frame.size());
  }

  const void* page_lock(Device device) {
    std::call_once(locked, [&] { registration = HostRegistration(device, memory.get(), capacity); });
    return registration.on_device();
  }

  static constexpr int64_t kNever = -1;  // the slot has never held a frame
  static constexpr int64_t kGone = -2;   // forgotten; the writer may reuse it once no reader holds it

  struct Free {
    void operator()(void* pages) const { std::free(pages); }
  };
  std::unique_ptr<uint8_t, Free> memory;
  size_t capacity = 0;
  std::span<uint8_t> bytes;  // bytes of the frame
  std::once_flag locked;
  HostRegistration registration;
  std::atomic<int64_t> id{kNever};
  std::atomic<int32_t> holders{0};
};

std::span<const uint8_t> RingFrame::bytes() const {
  return slot_ == nullptr ? std::span<const uint8_t>{} : slot_->bytes;
}

void RingFrame::release() {
  if (slot_ != nullptr) slot_->holders.fetch_sub(1);
  slot_ = nullptr;
}

const void* RingFrame::page_lock(Device device) { return slot_->page_lock(device); }

Ring::Ring(RingOptions options)
    : options_(std::move(options)),
      row_bytes_([&] {
        int64_t bytes = dtype_size(options_.dtype);
        for (const int64_t extent : options_.shape) {
          if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) {
            refuse("shape: expected the extents of a row, 0 or more each, got ", extent);
          }
        }
        return bytes;
      }()),
      words_(options_.codec ? 1 : (row_bytes_ + 7) / 8) {
  if (options_.span_ns <= 0) refuse("span_s: expected above 0, got ", 1e-9 * static_cast<double>(options_.span_ns));
  if (options_.lateness_ns < 0 || options_.lateness_ns >= options_.span_ns) {
    refuse("lateness_s: expected 0 or more and less than span_s, got ",
           1e-9 * static_cast<double>(options_.lateness_ns));
  }
  if (options_.most_ahead_ns < 0) {
    refuse("most_ahead_s: expected 0 or more, got ", 1e-9 * static_cast<double>(options_.most_ahead_ns));
  }
  if (options_.codec) {
    if (options_.shape.size() != 3) {
      refuse("shape: expected [height, width, channels] of a camera, got ", shape_string(options_.shape));
    }
    slots_ = std::make_unique<std::atomic<RingFrame::Slot*>[]>(static_cast<size_t>(kMostSlots));
  }
  all_rows_.push_back(std::make_unique<Rows>(kFirstCapacity, words_));
  rows_.store(all_rows_.back().get(), std::memory_order_release);
}

Ring::~Ring() {
  for (int64_t i = 0; i < slot_count_; ++i) delete slots_[static_cast<size_t>(i)].load();
}

Ring::View Ring::view() const {
  const Rows* const rows = rows_.load(std::memory_order_acquire);
  const int64_t begin = begin_.load(std::memory_order_acquire);
  const int64_t end = end_.load(std::memory_order_acquire);
  // If the writer changes rows during the read, these values may be wrong; read() then discards the result.
  return {rows, begin, std::clamp(end, begin, begin + rows->capacity())};
}

template <class Body>
auto Ring::read(const Body& body) const {
  for (int waits = 0;;) {
    const uint64_t version_before = version_.load(std::memory_order_acquire);
    if (version_before % 2 == 0) {
      const auto result = body(view());
      if (version_.load(std::memory_order_acquire) == version_before) return result;
    } else if (++waits < 16) {
      std::this_thread::yield();
    } else {  // a reader with real-time priority that interrupted the writer does not yield its core to it
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

void Ring::grow(int64_t begin, int64_t end) {
  const Rows& old = *all_rows_.back();
  auto larger = std::make_unique<Rows>(2 * old.capacity(), words_);
  for (int64_t row = begin; row < end; ++row) larger->copy_row(old, row, row);
  rows_.store(larger.get(), std::memory_order_release);
  all_rows_.push_back(std::move(larger));
}

// A frame's id is its number since the ring began times kMostSlots, plus the index of its slot.
int64_t Ring::write_frame(std::span<const char> frame) {
  int64_t index = slot_count_;
  for (size_t i = 0; i < free_.size(); ++i) {
    if (slots_[static_cast<size_t>(free_[i])].load()->holders.load() > 0) continue;
    index = std::exchange(free_[i], free_.back());
    free_.pop_back();
    break;
  }
  if (index == slot_count_) {
    if (index == kMostSlots) refuse("frame: expected at most ", kMostSlots, " frames in a ring");
    slots_[static_cast<size_t>(slot_count_++)].store(new RingFrame::Slot);
  }
  RingFrame::Slot& slot = *slots_[static_cast<size_t>(index)].load();
  slot.assign(frame);
  const int64_t id = frames_written_++ * kMostSlots + index;
  slot.id.store(id);
  if (const int32_t device = locks_on_.load(); device >= 0) {
    try {
      slot.page_lock({DeviceType::kCuda, device});
    } catch (const Error&) {  // the aligner tries again, and raises the error
    }
  }
  return id;
}

// Returns 8 bytes of a row of numbers; after the row's end they are 0.
uint64_t Ring::word_of(std::span<const char> row, int64_t i) const {
  uint64_t word = 0;
  std::memcpy(&word, row.data() + 8 * i, static_cast<size_t>(std::min<int64_t>(8, row_bytes_ - 8 * i)));
  return word;
}

// Whether a row has these bytes. It reads on only while they are equal: frames of a sensor with noise cost nothing.
bool Ring::has_bytes(const Rows& rows, int64_t row, std::span<const char> bytes) const {
  if (options_.codec) {
    const auto slot = static_cast<size_t>(rows.word(row, 0) & (kMostSlots - 1));
    const std::span<const uint8_t> frame = slots_[slot].load()->bytes;
    if (frame.size() != bytes.size()) return false;
    return frame.empty() || std::memcmp(frame.data(), bytes.data(), bytes.size()) == 0;
  }
  int64_t i = 0;
  while (i < words_ && rows.word(row, i) == word_of(bytes, i)) ++i;
  return i == words_;
}

void Ring::page_lock_frames(Device device) const {
  // Set before the slots are read, so that either the writer or this thread locks a new slot.
  locks_on_.store(device.index);
  for (int64_t i = 0; i < kMostSlots; ++i) {
    RingFrame::Slot* const slot = slots_[static_cast<size_t>(i)].load();
    if (slot == nullptr) return;
    if (slot->id.load() != RingFrame::Slot::kNever) slot->page_lock(device);
  }
}

Pushed Ring::push(int64_t time_ns, int64_t arrival_ns, std::span<const char> row) {
  if (options_.codec.value_or(Codec::kRaw) == Codec::kRaw && std::ssize(row) != row_bytes_) {
    refuse("row: expected ", row_bytes_, " bytes, got ", row.size());
  }
  const std::scoped_lock lock(write_mutex_);
  const auto counted = [this](Pushed outcome) {
    count(outcome);
    return outcome;
  };
  if (time_ns <= 0 || time_ns > kLatestNs ||
      (time_ns > arrival_ns && ns_between(time_ns, arrival_ns) > static_cast<uint64_t>(options_.most_ahead_ns))) {
    return counted(Pushed::kRefused);
  }
  const View current = view();
  const Rows* const rows = current.rows;
  int64_t begin = current.begin;
  const int64_t end = current.end;
  Pushed outcome = Pushed::kKept;
  if (begin < end) {
    const int64_t newest = rows->time(end - 1);
    if (time_ns < newest - options_.lateness_ns) {
      if (newest - time_ns <= options_.span_ns) return counted(Pushed::kTooLate);
      if (options_.rewind == Rewind::kRefuse) return counted(Pushed::kRefused);
      outcome = Pushed::kSegment;
    } else if (time_ns < newest) {
      outcome = Pushed::kReordered;
    }
    if (options_.duplicate == Duplicate::kRefuse && outcome != Pushed::kSegment && time_ns <= newest &&
        rows->time(current.first_from(time_ns)) == time_ns) {
      duplicates_.fetch_add(1, std::memory_order_relaxed);
      return counted(Pushed::kRefused);
    }
  }

  const bool is_unchanged = outcome == Pushed::kKept && begin < end && has_bytes(*rows, end - 1, row);
  if (is_unchanged && time_ns > current.newest()) repeated_.fetch_add(1, std::memory_order_relaxed);
  uint64_t id = 0;
  if (options_.codec) id = static_cast<uint64_t>(write_frame(row));
  version_.fetch_add(1);  // odd: readers wait, or read again
  const auto forget = [&](int64_t to) {
    for (int64_t forgotten_row = begin; options_.codec && forgotten_row < to; ++forgotten_row) {
      const auto frame_id = static_cast<int64_t>(rows->word(forgotten_row, 0));
      const int64_t slot = frame_id & (kMostSlots - 1);
      slots_[static_cast<size_t>(slot)].load()->id.store(RingFrame::Slot::kGone);
      free_.push_back(slot);
    }
    begin = to;
  };
  if (outcome == Pushed::kSegment) {
    forget(end);
    segment_.store(end, std::memory_order_release);
  } else if (outcome == Pushed::kKept) {
    while (end - begin > kRowsBehind && rows->time(begin + kRowsBehind) < time_ns - options_.span_ns) forget(begin + 1);
  }
  if (end - begin == rows->capacity()) grow(begin, end);
  Rows& to = *all_rows_.back();
  int64_t position = end;
  for (; position > begin && to.time(position - 1) > time_ns; --position) to.copy_row(to, position - 1, position);
  if (position > begin && to.time(position - 1) == time_ns) duplicates_.fetch_add(1, std::memory_order_relaxed);
  to.set_times(position, time_ns, arrival_ns);
  if (options_.codec) {
    to.set_word(position, 0, id);
  } else {
    for (int64_t i = 0; i < words_; ++i) to.set_word(position, i, word_of(row, i));
  }
  if (outcome != Pushed::kReordered && !is_unchanged) changed_ns_.store(time_ns, std::memory_order_release);
  if (position == end && (position == begin || to.time(position - 1) < time_ns))
    arrival_ns_.store(arrival_ns, std::memory_order_release);
  if (end == segment_.load(std::memory_order_acquire) || time_ns < oldest_ns_.load(std::memory_order_acquire)) {
    oldest_ns_.store(time_ns, std::memory_order_release);
  }
  begin_.store(begin, std::memory_order_release);
  end_.store(end + 1, std::memory_order_release);
  version_.fetch_add(1);
  count(outcome);
  return outcome;
}

RingCounts Ring::counts() const {
  const auto count_of = [this](Pushed outcome) {
    return counts_[static_cast<size_t>(outcome)].load(std::memory_order_relaxed);
  };
  RingCounts counts{.pushed = 0,
                    .kept = count_of(Pushed::kKept),
                    .reordered = count_of(Pushed::kReordered),
                    .too_late = count_of(Pushed::kTooLate),
                    .refused = count_of(Pushed::kRefused),
                    .segments = count_of(Pushed::kSegment),
                    .duplicates = duplicates_.load(std::memory_order_relaxed),
                    .repeated = repeated_.load(std::memory_order_relaxed)};
  counts.pushed = counts.kept + counts.reordered + counts.too_late + counts.refused + counts.segments;
  return counts;
}

std::optional<int64_t> Ring::newest_ns() const {
  return read([](const View& view) { return view.empty() ? std::optional<int64_t>() : view.newest(); });
}

std::optional<int64_t> Ring::arrival_ns() const {
  return read([this](const View& view) {
    return view.empty() ? std::optional<int64_t>() : arrival_ns_.load(std::memory_order_acquire);
  });
}

std::optional<int64_t> Ring::unchanged_ns() const {
  return read([this](const View& view) {
    return view.empty() ? std::optional<int64_t>() : view.newest() - changed_ns_.load(std::memory_order_acquire);
  });
}

int64_t Ring::final_end(const View& view) const {
  const int64_t earliest = view.newest() - options_.lateness_ns;  // of the stamps that may still come
  return options_.duplicate == Duplicate::kRefuse ? view.first_after(earliest) : view.first_from(earliest);
}

std::optional<int64_t> Ring::settled_ns(int rows_after, int64_t snap_ns) const {
  return read([&](const View& view) -> std::optional<int64_t> {
    int64_t row = view.empty() ? view.begin : final_end(view);
    if (row == view.begin) return {};  // a row that still comes may be the first, whose value is held before it
    int64_t stamp = view.rows->time(row - 1);
    if (rows_after == 0) {
      return std::max(stamp, view.newest() - options_.lateness_ns - std::max<int64_t>(1, snap_ns));
    }
    for (int i = 1; i < rows_after; ++i) {
      row = view.first_from(stamp);
      if (row == view.begin) return {};
      stamp = view.rows->time(row - 1);
    }
    return stamp;
  });
}

void Ring::copy_rows(const View& view, int64_t first, int64_t count, RingRows& to) const {
  to.rows = count;
  const auto rows = static_cast<size_t>(count);
  if (to.time_ns.size() < rows) to.time_ns.resize(std::bit_ceil(rows));
  const auto bytes = static_cast<size_t>(options_.codec ? int64_t{8} : row_bytes_);
  if (to.values.size() < rows * bytes) to.values.resize(std::bit_ceil(rows) * bytes);
  for (size_t i = 0; i < rows; ++i) {
    const int64_t row = first + static_cast<int64_t>(i);
    to.time_ns[i] = view.rows->time(row);
    char* const value = to.values.data() + i * bytes;
    for (int64_t word = 0; word < words_; ++word) {
      const uint64_t bits = view.rows->word(row, word);
      std::memcpy(value + 8 * word, &bits, std::min<size_t>(8, bytes - 8 * static_cast<size_t>(word)));
    }
  }
}

// Returns false if the ring has reused a frame's slot meanwhile: the caller must then read the rows again.
bool Ring::hold_frames(RingRows& to) const {
  const auto count = static_cast<size_t>(to.rows);
  if (to.frames.size() < count) to.frames.resize(std::bit_ceil(count));
  for (size_t i = 0; i < count; ++i) {
    int64_t id = 0;
    std::memcpy(&id, to.values.data() + 8 * i, 8);
    RingFrame::Slot* const slot = slots_[static_cast<size_t>(id & (kMostSlots - 1))].load();
    slot->holders.fetch_add(1);
    to.frames[i].slot_ = slot;
    if (slot->id.load() == id) continue;
    for (RingFrame& frame : to.frames) frame.release();
    return false;
  }
  return true;
}

bool Ring::copy(int64_t first_ns, int64_t last_ns, int margin, RingRows& to) const {
  for (RingFrame& frame : to.frames) frame.release();
  do {
    read([&](const View& view) {
      to.rows = 0;
      to.forgotten = false;
      if (view.empty()) return true;
      int64_t first = view.first_from(first_ns);
      int64_t last = view.first_after(last_ns);
      for (int i = 0; i < margin; ++i) {
        if (first > view.begin) first = view.first_from(view.rows->time(first - 1));
        if (last < view.end) last = view.first_after(view.rows->time(last));
      }
      if (first == last) {  // the window lies between two rows, and has no margin
        if (first > view.begin)
          --first;
        else
          ++last;
      }
      copy_rows(view, first, std::max<int64_t>(0, last - first), to);
      to.forgotten = first == view.begin && view.begin > segment_.load(std::memory_order_acquire) &&
                     last_ns >= oldest_ns_.load(std::memory_order_acquire);
      return true;
    });
  } while (options_.codec && !hold_frames(to));
  return to.rows > 0;
}

int64_t Ring::take(int64_t from, int64_t most, bool all, RingRows& to) const {
  if (most < 0) refuse("most: expected 0 or more, got ", most);
  for (RingFrame& frame : to.frames) frame.release();
  int64_t first = 0;
  do {
    first = read([&](const View& view) {
      to.rows = 0;
      const int64_t begin = std::clamp(from, view.begin, view.end);
      if (view.empty()) return begin;
      const int64_t end = all ? view.end : final_end(view);
      copy_rows(view, begin, std::clamp<int64_t>(end - begin, 0, most), to);
      const auto rows = static_cast<size_t>(to.rows);
      if (to.arrival_ns.size() < rows) to.arrival_ns.resize(to.time_ns.size());
      for (size_t i = 0; i < rows; ++i) to.arrival_ns[i] = view.rows->arrival(begin + static_cast<int64_t>(i));
      return begin;
    });
  } while (options_.codec && !hold_frames(to));
  return first;
}

}  // namespace robocache
