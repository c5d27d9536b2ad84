// Identifies the order of a loader's draws. A position is valid only for loaders with the same fingerprint.
//
//   OrderFingerprint fingerprint;
//   fingerprint.add_anchors(dataset, anchors);
//   fingerprint.add_order(options.shuffle);
//   const std::string text = fingerprint.text();
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "robocache/cache/dataset.hpp"
#include "robocache/sample/anchors.hpp"

namespace robocache {

// Three checksums let a comparison say what differs. The order of the calls counts. Batch size, ranks, device, keys and
// their options do not count.
class OrderFingerprint {
 public:
  // Adds the anchors of a source, whose tables are on the host: the episodes and ticks, the times of all ticks, and some rows
  // of every stream of numbers in some of these episodes. Rows that are appended to the dataset do not change it. Tables of a
  // million episodes take milliseconds, times of a hundred million ticks about a second.
  void add_anchors(const Dataset& dataset, const AnchorIndex& anchors);

  // Adds a setting that the order of the draws depends on.
  void add_order(const void* data, size_t size);
  template <class Plain>
  void add_order(const Plain& value) {
    add_order(&value, sizeof value);
  }

  // "ANCHORS-DATA-SELECTION-ORDER": the number of anchors, and three checksums of eight hexadecimal digits.
  std::string text() const;

 private:
  int64_t anchors_ = 0;
  uint32_t data_ = 0;
  uint32_t selection_ = 0;
  uint32_t order_ = 0;
};

}  // namespace robocache
