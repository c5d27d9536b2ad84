// Turns the serialised messages of one topic into rows of rings, by a plan that is made from the message type's
// definition.
//
//   Topic topic(plan_json, {position_ring, velocity_ring});
//   topic.take(bytes, {.arrival_ns = now, .publisher = id, .sequence = number});
//
// The plan is JSON. It lists the fields of the type in their order:
//   {"fields": [{"kind": "number" | "numbers" | "text" | "texts" | "records",
//                "dtype": of numbers, "count": of an array, "fields": of records,
//                "use": the role of the field: "seconds" or "nanoseconds" of the stamp, "joints" (their names),
//                       "frame" (of reference); for an image "height", "width", "step", "is_bigendian", "encoding",
//                       "format" or "data",
//                "to": [[row, feature], ...] the rows that get the field, and the index of its first number there;
//                       -1: one number for each joint,
//                "absent": [[row, feature], ...] the features that are NaN if the field's first number is -1}],
//    "rows": [{"names": of the joints, or []} ...] one for each ring,
//    "encodings": {"rgb8": {"dtype": "uint8", "channels": 3, "kept": [0, 1, 2]}, ...} the encodings of raw images that
//                 the topic takes,
//    "quality": of the JPEGs that raw images are encoded as}
// Messages are CDR, in either byte order. A message that does not fit is refused and counted, and none of its rows is
// kept. No byte outside the message is read.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "robocache/source/ring.hpp"

namespace robocache {

struct Received {
  int64_t arrival_ns = 0;
  uint64_t publisher = 0;                 // each publisher counts its own messages
  std::optional<uint64_t> sequence = {};  // the message's number, if the transport gives one
};

// received = taken + refused. `lost` counts the sequence numbers that are missing between messages of one publisher.
struct TopicCounts {
  int64_t received = 0;
  int64_t taken = 0;
  int64_t refused = 0;
  int64_t lost = 0;
};

class Topic {
 public:
  // Throws ArgumentError for a plan that does not fit the rings.
  Topic(std::string_view plan, std::vector<std::shared_ptr<Ring>> rings);
  ~Topic();
  Topic(const Topic&) = delete;
  Topic& operator=(const Topic&) = delete;

  // Takes a message: pushes a row to each ring whose fields the message has. Calls from several threads run one after
  // another. Never throws.
  void take(std::span<const uint8_t> message, const Received& received) noexcept;

  TopicCounts counts() const;
  std::string refusal() const;  // why the last refused message was refused; "" before the first

  // Returns the times from a message's stamp until its rows could be read, for the last kLatencies messages, the oldest
  // first.
  static constexpr int64_t kLatencies = 4096;
  std::vector<int64_t> latencies_ns() const;

  // The C function that a transport calls for each message: the topic, the bytes and their count, and the fields of
  // Received. `sequence` is the largest uint64 if there is none.
  using Sink = void (*)(void* topic, const uint8_t* bytes, size_t size, int64_t arrival_ns, uint64_t publisher,
                        uint64_t sequence);
  static Sink sink();

 private:
  struct Plan;
  void count_lost(const Received& received);

  std::mutex take_mutex_;
  std::unique_ptr<Plan> plan_;
  std::array<std::atomic<int64_t>, 4> counts_{};
  mutable std::mutex refusal_mutex_;
  std::string refusal_;
  std::unique_ptr<std::atomic<int64_t>[]> latencies_;
  struct Publisher {
    uint64_t id;
    uint64_t last;  // the number of its last message
  };
  std::vector<Publisher> publishers_;
};

}  // namespace robocache
