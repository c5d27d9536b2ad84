// Reads the input as a serialised message by two plans, or as a plan if it begins with "{".
#include <memory>
#include <string>
#include <vector>

#include "robocache/image/codec.hpp"
#include "robocache/live/topic.hpp"
#include "tests/cpp/image/picture.hpp"
#include "tests/cpp/live/topic_plan.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace robocache;

namespace {

constexpr const char* kImagePlan = R"({
  "fields": [
    {"path": "sec", "kind": "number", "dtype": "int32", "use": "seconds"},
    {"path": "nanosec", "kind": "number", "dtype": "uint32", "use": "nanoseconds"},
    {"path": "height", "kind": "number", "dtype": "uint32", "use": "height"},
    {"path": "width", "kind": "number", "dtype": "uint32", "use": "width"},
    {"path": "encoding", "kind": "text", "use": "encoding"},
    {"path": "is_bigendian", "kind": "number", "dtype": "uint8", "use": "is_bigendian"},
    {"path": "step", "kind": "number", "dtype": "uint32", "use": "step"},
    {"path": "data", "kind": "numbers", "dtype": "uint8", "use": "data", "to": [[0, 0]]}],
  "rows": [{"names": []}],
  "encodings": {"bgra8": {"dtype": "uint8", "channels": 4, "kept": [2, 1, 0]}}, "quality": 90})";

std::shared_ptr<Ring> make_ring(DType dtype, std::vector<int64_t> shape, std::optional<Codec> codec = {}) {
  return std::make_shared<Ring>(
      RingOptions{.dtype = dtype, .shape = std::move(shape), .span_ns = int64_t{1} << 40, .codec = codec});
}

void take_two_messages(const char* plan, std::vector<std::shared_ptr<Ring>> rings, std::span<const uint8_t> message) {
  Topic topic(plan, std::move(rings));
  topic.take(message, {.arrival_ns = 6'000'000'000, .publisher = 1, .sequence = 3});
  topic.take(message, {.arrival_ns = 6'100'000'000, .publisher = 1, .sequence = 5});
  const TopicCounts counts = topic.counts();
  fuzz::expect(counts.received == 2 && counts.taken + counts.refused == 2, "messages that are missing from the counts");
}

std::string cdr(const std::vector<uint32_t>& words) {
  std::string bytes{'\0', '\1', '\0', '\0'};
  for (const uint32_t word : words) bytes.append(reinterpret_cast<const char*>(&word), sizeof(word));
  return bytes;
}

}  // namespace

std::vector<std::string> seeds() {
  const uint32_t a = 'a', b = 'b';  // a letter and a NUL, padded to four bytes
  const std::string numbers = cdr(
      {5, 7, 2, a, 2, 2, a, 2, b, 2, 0, 0, 0x3ff00000, 0, 0x40000000, 0x40800000, 0, 0, 1, 1, 2, a, 2, 0x00020001, 9});
  std::string image = cdr({5, 7, 4, 4, 6, 0x61726762, 0x00000038, 16, 64});
  for (const uint8_t pixel : test::picture(4, 4, 4)) image += static_cast<char>(pixel);
  return {test::kPlan, kImagePlan, numbers, image};
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<std::shared_ptr<Ring>> rings{make_ring(DType::kFloat64, {2}), make_ring(DType::kFloat32, {3}),
                                                 make_ring(DType::kFloat64, {2})};
  if (size > 0 && data[0] == '{') {
    const std::string plan(reinterpret_cast<const char*>(data), size);
    const std::string message = seeds()[2];
    fuzz::refusal([&] {
      take_two_messages(plan.c_str(), rings, {reinterpret_cast<const uint8_t*>(message.data()), message.size()});
    });
    return 0;
  }
  take_two_messages(test::kPlan, rings, {data, size});
  for (const Codec codec : {Codec::kRaw, Codec::kJpeg})
    take_two_messages(kImagePlan, {make_ring(DType::kUInt8, {4, 4, 3}, codec)}, {data, size});
  return 0;
}
