// Finds the numbers with given ranks in sorted order. It reads all numbers a few times, and its memory does not grow
// with their count.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "robocache/cache/columns_cpu.hpp"
#include "robocache/core/order_key.hpp"

namespace robocache::cache {

// The numbers are of type C and never NaN; -0 is below +0. In each pass the caller adds all numbers, in blocks of any
// size, and then calls find().
//
// The first pass counts numbers by the leading bits of their order keys. Later passes count only in the intervals of
// keys that contain wanted ranks, and divide these intervals further. Once few numbers remain, they are kept and
// selected from.
template <class C>
class OrderStatistics {
 public:
  // `most` is at least the count of numbers that a pass adds. With `wide_bins` two passes are enough for keys of 32
  // bits, and the memory is up to 0.5 MB for each rank.
  explicit OrderStatistics(int64_t most, bool wide_bins = false)
      : keeps_(most <= kMostSelected),
        first_shift_(wide_bins ? std::max(0, kKeyBits - 16) : kFirstShift),
        later_bits_(wide_bins ? 16 : kLaterBits),
        intervals_(1) {
    intervals_[0].shift = first_shift_;
    if (!keeps_) intervals_[0].counts.resize(size_t{1} << (kKeyBits - first_shift_));
  }

  void add(std::span<const C> numbers) {
    std::array<Key, kKeysAtOnce> keys;
    for (size_t begin = 0; begin < numbers.size(); begin += keys.size()) {
      const std::span<const C> block = numbers.subspan(begin, std::min(keys.size(), numbers.size() - begin));
      make_keys(block, keys.data());
      add_keys({keys.data(), block.size()});
    }
  }

  // Ends a pass. Returns whether the number of each rank is known. `ranks` are ascending, below the count of numbers,
  // and the same in every pass.
  bool find(std::span<const int64_t> ranks) {
    if (passes_++ == 0) {
      least_ = intervals_[0].least;
      greatest_ = intervals_[0].greatest;
    }
    std::vector<Interval> narrower;
    auto interval = intervals_.begin();
    int64_t passed = 0;  // numbers of the interval that precede the rank in sorted order
    size_t bin = 0;
    for (const int64_t rank : ranks) {
      if (known_.contains(rank)) continue;
      for (; rank >= interval->below + interval->count; ++interval) {
        passed = 0;
        bin = 0;
      }
      const int64_t rank_in_interval = rank - interval->below;
      if (keeps_) {
        const auto kept = interval->kept.begin();
        std::nth_element(kept + passed, kept + rank_in_interval, interval->kept.end());
        known_.emplace(rank, kept[rank_in_interval]);
        passed = rank_in_interval + 1;
        continue;
      }
      while (rank_in_interval >= passed + interval->counts[bin]) passed += interval->counts[bin++];
      const Interval bin_interval = interval_of_bin(*interval, bin, passed);
      if (bin_interval.low == bin_interval.high) {
        known_.emplace(rank, bin_interval.low);
      } else if (narrower.empty() || narrower.back().low != bin_interval.low) {
        narrower.push_back(bin_interval);
      }
    }
    intervals_ = std::move(narrower);
    prepare_pass();
    return intervals_.empty();
  }

  // The extremes. They are known after the first pass.
  C least() const { return number_of(least_); }
  C greatest() const { return number_of(greatest_); }

  // Returns the number with a rank. find() must have returned true.
  C at(int64_t rank) const { return number_of(known_.at(rank)); }

 private:
  using Wide = std::conditional_t<(sizeof(C) < sizeof(int32_t)), int32_t, C>;
  using Key = decltype(order_key(Wide{}));

  static constexpr size_t kKeysAtOnce = 1024;
  static constexpr int kKeyBits = 8 * static_cast<int>(sizeof(C));
  static constexpr int kFirstBits = kKeyBits == 32 ? 14 : std::min(16, kKeyBits);  // 128 or 512 KB of counts
  static constexpr int kFirstShift = kKeyBits - kFirstBits;
  static constexpr int kLaterBits = 11;
  static constexpr Key kGreatestKey = static_cast<Key>(~Key{0}) >> (8 * static_cast<int>(sizeof(Key)) - kKeyBits);
  // Up to this count, selecting is faster than counting and takes no more memory.
  static constexpr int64_t kMostSelected = std::min(int64_t{8192}, int64_t{1} << kFirstBits);
  static constexpr int64_t kMostKept = kKeyBits <= 32 ? 262144 : 65536;  // keys; at most 1 MB

  // The keys [low, high], and the counts of the numbers with such keys.
  struct Interval {
    Key low = 0;
    Key high = kGreatestKey;
    int shift = kFirstShift;   // (key - low) >> shift is the index in counts
    int64_t below = 0;         // numbers below the interval
    int64_t count = 0;         // numbers in the interval
    Key least = kGreatestKey;  // of the keys counted in this pass
    Key greatest = 0;
    std::vector<int64_t> counts = {};
    std::vector<Key> kept = {};
  };

  // Keys start from 0, so that the keys of a small type differ in their leading bits.
  static Key key_of(C number) {
    if constexpr (std::is_integral_v<C>) {
      return order_key(Wide{number}) - order_key(Wide{std::numeric_limits<C>::lowest()});
    } else {
      return order_key(number);
    }
  }

  static C number_of(Key key) {
    Wide number;
    if constexpr (std::is_integral_v<C>) key += order_key(Wide{std::numeric_limits<C>::lowest()});
    from_order_key(key, number);
    return static_cast<C>(number);
  }

  // In the first pass it also finds the least and the greatest key.
  void make_keys(std::span<const C> numbers, Key* keys) {
    Interval& whole_range = intervals_[0];
    Key ignored = 0;
    Key& least = passes_ == 0 ? whole_range.least : ignored;
    Key& greatest = passes_ == 0 ? whole_range.greatest : ignored;
    if constexpr (std::is_floating_point_v<C>) {
      column_kernels<C>().make_keys(numbers.data(), std::ssize(numbers), keys, least, greatest);
    } else {
      for (const C number : numbers) {
        const Key key = key_of(number);
        *keys++ = key;
        least = std::min(least, key);
        greatest = std::max(greatest, key);
      }
    }
  }

  void add_keys(std::span<Key> keys) {
    if (passes_ == 0) {
      Interval& whole_range = intervals_[0];
      whole_range.count += std::ssize(keys);
      if (keeps_) {
        whole_range.kept.insert(whole_range.kept.end(), keys.begin(), keys.end());
      } else {
        int64_t* const counts = whole_range.counts.data();
        for (const Key key : keys) ++counts[static_cast<size_t>(key >> first_shift_)];
      }
      return;
    }
    const auto& kernels = column_kernels<C>();
    const int64_t count =
        kernels.keep_within(keys.data(), std::ssize(keys), lows_.data(), spans_.data(), std::ssize(lows_));
    for (const Key key : keys.first(static_cast<size_t>(count))) {
      size_t i = 0;
      while (key > intervals_[i].high) ++i;
      Interval& interval = intervals_[i];
      if (keeps_) {
        interval.kept.push_back(key);
        continue;
      }
      if (key < interval.least) interval.least = key;
      if (key > interval.greatest) interval.greatest = key;
      ++interval.counts[static_cast<size_t>((key - interval.low) >> interval.shift)];
    }
  }

  // Returns the part of `interval` that one of its bins covers. `passed` numbers of the interval are below the bin.
  static Interval interval_of_bin(const Interval& interval, size_t bin, int64_t passed) {
    const Key low = interval.low + (static_cast<Key>(bin) << interval.shift);
    const Key widest = (Key{1} << interval.shift) - 1;
    Interval bin_interval;
    bin_interval.high = std::min(interval.greatest, interval.high - low < widest ? interval.high : low + widest);
    bin_interval.low = std::max(interval.least, low);
    bin_interval.below = interval.below + passed;
    bin_interval.count = interval.counts[bin];
    return bin_interval;
  }

  void prepare_pass() {
    int64_t numbers_left = 0;
    for (const Interval& interval : intervals_) numbers_left += interval.count;
    keeps_ = numbers_left <= kMostKept;
    lows_.clear();
    spans_.clear();
    for (Interval& interval : intervals_) {
      lows_.push_back(interval.low);
      spans_.push_back(interval.high - interval.low);
      if (keeps_) {
        interval.kept.reserve(static_cast<size_t>(interval.count));
      } else {
        const Key span = interval.high - interval.low;
        interval.shift = std::max(0, static_cast<int>(std::bit_width(span)) - later_bits_);
        interval.counts.resize(static_cast<size_t>(span >> interval.shift) + 1);
      }
    }
  }

  bool keeps_;  // all numbers that are left, instead of counting them
  int first_shift_;
  int later_bits_;
  int passes_ = 0;
  std::vector<Interval> intervals_;  // ascending, without overlap
  std::vector<Key> lows_;            // of the intervals, after the first pass
  std::vector<Key> spans_;
  std::map<int64_t, Key> known_;  // by rank
  Key least_ = 0;
  Key greatest_ = 0;
};

}  // namespace robocache::cache
