// Serialised messages of one topic become rows of rings, by a plan that is made from the type's definition before the first message.
//
//   Topic topic(plan_json, {position_ring, velocity_ring});
//   topic.take(bytes, {.arrival_ns = now, .publisher = id, .sequence = number});  // of the thread that writes the rings
//
// The plan is JSON, and has the fields of the type in their order:
//   {"fields": [{"kind": "number" | "numbers" | "text" | "texts" | "records",
//                "dtype": of numbers, "count": of an array, "fields": of records,
//                "use": what else the field is for: "seconds", "nanoseconds" (the stamp), "joints" (their names), "frame" (the frame of
//                       reference), or of an image "height", "width", "step", "is_bigendian", "encoding", "format", "data",
//                "to": [[row, feature], ...] the row that has it, and its index there; of an array the first number's; -1: one
//                       number a joint,
//                "absent": [[row, feature], ...] NaN where the field's first number is -1}],
//    "rows": [{"names": of the joints, or []} ...] one a ring,
//    "encodings": {"rgb8": {"dtype": "uint8", "channels": 3, "kept": [0, 1, 2]}, ...} of images that are pixels,
//    "quality": of JPEGs that pixels become}
// Messages are CDR, in either byte order. A message that does not fit is refused and counted, and none of its rows is kept. Nothing
// outside its bytes is read.
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
  uint64_t publisher = 0;                 // numbers its messages by itself
  std::optional<uint64_t> sequence = {};  // the message's number, where the transport has one
};

// received = taken + refused. lost: numbers that are missing between messages of one publisher.
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

  // Takes a message: a row for each ring whose field it has. One thread calls it. Never throws.
  void take(std::span<const uint8_t> message, const Received& received) noexcept;

  // Those below are for any thread.
  TopicCounts counts() const;
  std::string refusal() const;  // why the last message was refused; "" before the first

  // From the stamp to the moment at which a reader finds the row: of the last messages, up to kLatencies, the oldest first.
  static constexpr int64_t kLatencies = 4096;
  std::vector<int64_t> latencies_ns() const;

  // What a transport that knows no C++ calls for each message: topic, bytes, their number, and what Received has; sequence: the
  // largest uint64 where there is none.
  using Sink = void (*)(void* topic, const uint8_t* bytes, size_t size, int64_t arrival_ns, uint64_t publisher,
                        uint64_t sequence);
  static Sink sink();

 private:
  struct Plan;
  void count_lost(const Received& received);

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
