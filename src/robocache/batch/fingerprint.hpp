// Identifies the order in which a loader draws samples. A saved position is valid only for loaders with the same
// fingerprint.
//
//   OrderFingerprint fingerprint;
//   fingerprint.add_anchors(dataset, anchors);
//   fingerprint.add_order(options.shuffle);
//   const std::string text = fingerprint.text();
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "robocache/cache/dataset.hpp"
#include "robocache/sample/anchors.hpp"

namespace robocache {

// It has three checksums, so that a comparison can say what differs. It depends on the order of the calls, but not on
// the batch size, the ranks, the device, the keys or their options. Only with shard_episodes the number of ranks
// counts, since it changes the order.
class OrderFingerprint {
 public:
  // Adds the anchors of a source: the table of episodes with their anchors; the stamps between an episode's first and
  // last anchor, unless anchors are at a rate; and of each stream of numbers the middle row of up to four episodes. The
  // anchors' tables must be on the host. Rows that are appended to the dataset change nothing. A million episodes take
  // milliseconds, a hundred million stamps about a second.
  void add_anchors(const Dataset& dataset, const AnchorIndex& anchors);

  // Adds a setting that the order of the draws depends on. A double counts by its bytes: 0.0 and -0.0 are different.
  void add_order(const void* data, size_t size);
  template <class Plain>
  void add_order(const Plain& value) {
    static_assert(std::has_unique_object_representations_v<Plain> || std::is_same_v<Plain, double>,
                  "equal values must have equal bytes");
    static_assert(!std::is_pointer_v<Plain>, "an address differs in each process");
    add_order(&value, sizeof value);
  }

  // "ANCHORS-DATA-SELECTION-ORDER": the number of anchors, and three checksums of eight hexadecimal digits. DATA is of
  // the rows, SELECTION of the counts, tables and stamps of the anchors, ORDER of what add_order() adds.
  std::string text() const;

 private:
  int64_t anchors_ = 0;
  uint32_t data_ = 0;
  uint32_t selection_ = 0;
  uint32_t order_ = 0;
};

}  // namespace robocache
