#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "robocache/core/arguments.hpp"
#include "robocache/ffi/arguments.hpp"
#include "robocache/ffi/ffi.hpp"
#include "robocache/image/codec.hpp"
#include "robocache/live/aligner.hpp"
#include "robocache/live/chunks.hpp"
#include "robocache/live/topic.hpp"
#include "robocache/source/ring.hpp"

namespace robocache::ffi {
namespace {

struct RingHandle {
  static constexpr const char* kTypeKey = "robocache.live.Ring";
  std::shared_ptr<Ring> ring;
};

struct AlignerHandle {
  static constexpr const char* kTypeKey = "robocache.live.Aligner";
  std::shared_ptr<Aligner> aligner;
};

struct TopicHandle {
  static constexpr const char* kTypeKey = "robocache.live.Topic";
  std::shared_ptr<Topic> topic;
};

struct ChunksHandle {
  static constexpr const char* kTypeKey = "robocache.live.Chunks";
  std::shared_ptr<Chunks> chunks;
};

Ring& ring_of(const Args& args) { return *args.object<RingHandle>(0, "ring").ring; }
Topic& topic_of(const Args& args) { return *args.object<TopicHandle>(0, "topic").topic; }
Chunks& chunks_of(const Args& args) { return *args.object<ChunksHandle>(0, "chunks").chunks; }
Aligner& aligner_of(const Args& args) { return *args.object<AlignerHandle>(0, "aligner").aligner; }

void* batch_memory(const Aligner& aligner, const Args& args) {
  const TensorView memory = args.tensor(1, "memory");
  if (memory.device != aligner.device() ||
      memory.numel() * dtype_size(memory.dtype) < static_cast<int64_t>(aligner.batch_bytes())) {
    refuse("memory: expected ", aligner.batch_bytes(), " bytes on ", device_name(aligner.device()));
  }
  return memory.data;
}

// Refuses a file whose codec or shape is not the ring's. A file with a damaged header passes: its frame becomes padding.
void check_frame(const RingOptions& ring, std::span<const uint8_t> file) {
  if (ring.codec.value_or(Codec::kRaw) == Codec::kRaw) return;
  Codec codec{};
  FrameShape shape{};
  try {
    codec = codec_of(file);
    shape = frame_shape(codec, file);
  } catch (const FrameError&) {
    return;
  }
  const FrameShape expected{ring.shape[0], ring.shape[1], ring.shape[2], ring.dtype};
  if (codec == *ring.codec && shape == expected) return;
  refuse("row: expected ", name_of(*ring.codec), " of ", expected.describe(), ", got ", name_of(codec), " of ",
         shape.describe());
}

void set(Result& result, const std::optional<int64_t>& value) {
  if (value) result.set(*value);
}

}  // namespace

// (dtype, codec or None, span_ns, lateness_ns, most_ahead_ns, on_rewind, on_duplicate, the extents of a row) -> ring
ROBOCACHE_FFI(ring_open, args, result) {
  RingOptions options{.dtype = dtype_from_name(args.string(0, "dtype"), "dtype")};
  if (!args.is_none(1)) options.codec = value_of<Codec>(args.string(1, "codec"), "codec");
  options.span_ns = args.integer(2, "span_s");
  options.lateness_ns = args.integer(3, "lateness_s");
  options.most_ahead_ns = args.integer(4, "most_ahead_s");
  options.rewind = value_of<Rewind>(args.string(5, "on_rewind"), "on_rewind");
  options.duplicate = value_of<Duplicate>(args.string(6, "on_duplicate"), "on_duplicate");
  for (int i = 7; i < args.count(); ++i) options.shape.push_back(args.integer(i, "shape"));
  result.set_object(RingHandle{std::make_shared<Ring>(std::move(options))});
}

// (ring, time_ns, arrival_ns, the row's bytes, a dense array) -> the name of the outcome
ROBOCACHE_FFI(ring_push, args, result) {
  const TensorView row = args.tensor(3, "row");
  check_dense(row, "row");
  const auto bytes = static_cast<size_t>(row.numel() * dtype_size(row.dtype));
  Ring& ring = ring_of(args);
  check_frame(ring.options(), {static_cast<const uint8_t*>(row.data), bytes});
  result.set(name_of(ring.push(args.integer(1, "time_ns"), args.integer(2, "arrival_ns"),
                               {static_cast<const char*>(row.data), bytes})));
}

// (ring) -> JSON of its counts
ROBOCACHE_FFI(ring_counts, args, result) {
  const RingCounts counts = ring_of(args).counts();
  const nlohmann::ordered_json counts_json = {{"pushed", counts.pushed},         {"kept", counts.kept},
                                              {"reordered", counts.reordered},   {"too_late", counts.too_late},
                                              {"refused", counts.refused},       {"segments", counts.segments},
                                              {"duplicates", counts.duplicates}, {"repeated", counts.repeated}};
  result.set(std::string_view(counts_json.dump()));
}

// (ring, from, most, whether to include rows that are not final) -> int64 [1] the first row's number; stamps and arrivals,
// int64 [n]; values, uint8 [bytes]; for a camera also offsets, int64 [n + 1]
ROBOCACHE_FFI(ring_take, args, result) {
  const Ring& ring = ring_of(args);
  RingRows rows;
  const int64_t first = ring.take(args.integer(1, "from"), args.integer(2, "most"), args.boolean(3, "all"), rows);
  Arrays arrays;
  const auto add = [&]<class T>(const T* numbers, int64_t count) {
    arrays.arrays.emplace_back(new_array(std::span(numbers, static_cast<size_t>(count)), {count}));
  };
  add(&first, 1);
  add(rows.time_ns.data(), rows.rows);
  add(rows.arrival_ns.data(), rows.rows);
  if (!ring.options().codec) {
    add(rows.values.data(), rows.rows * ring.row_bytes());
  } else {
    std::vector<int64_t> offsets{0};
    for (const RingFrame& frame : std::span(rows.frames).first(static_cast<size_t>(rows.rows))) {
      offsets.push_back(offsets.back() + std::ssize(frame.bytes()));
    }
    OwnedTensor& files = *arrays.arrays.emplace_back(OwnedTensor::allocate(DType::kUInt8, {}, {offsets.back()}));
    auto* end = static_cast<uint8_t*>(files.view().data);
    for (size_t i = 0; i + 1 < offsets.size(); ++i) end = std::ranges::copy(rows.frames[i].bytes(), end).out;
    add(offsets.data(), std::ssize(offsets));
  }
  result.set_object(std::move(arrays));
}

ROBOCACHE_FFI(ring_newest_ns, args, result) { set(result, ring_of(args).newest_ns()); }
ROBOCACHE_FFI(ring_arrival_ns, args, result) { set(result, ring_of(args).arrival_ns()); }
ROBOCACHE_FFI(ring_unchanged_ns, args, result) { set(result, ring_of(args).unchanged_ns()); }

// (JSON of a plan; then a ring for each of its rows) -> topic
ROBOCACHE_FFI(topic_open, args, result) {
  std::vector<std::shared_ptr<Ring>> rings;
  for (int i = 1; i < args.count(); ++i) rings.push_back(args.object<RingHandle>(i, "rings").ring);
  result.set_object(TopicHandle{std::make_shared<Topic>(args.string(0, "plan"), std::move(rings))});
}

// (topic, the message's bytes, arrival_ns, the publisher, the message's number; below 0: none)
ROBOCACHE_FFI(topic_take, args, result) {
  const TensorView message = args.tensor(1, "message");
  check_dense(message, "message");
  Received received{.arrival_ns = args.integer(2, "arrival_ns"),
                    .publisher = static_cast<uint64_t>(args.integer(3, "publisher"))};
  if (const int64_t sequence = args.integer(4, "sequence"); sequence >= 0)
    received.sequence = static_cast<uint64_t>(sequence);
  topic_of(args).take({static_cast<const uint8_t*>(message.data), static_cast<size_t>(message.numel())}, received);
  result.set(int64_t{0});
}

// (topic) -> JSON of its counts
ROBOCACHE_FFI(topic_counts, args, result) {
  const TopicCounts counts = topic_of(args).counts();
  const nlohmann::ordered_json counts_json = {
      {"received", counts.received}, {"taken", counts.taken}, {"refused", counts.refused}, {"lost", counts.lost}};
  result.set(std::string_view(counts_json.dump()));
}

// (topic) -> the reason why it last refused a message
ROBOCACHE_FFI(topic_refusal, args, result) { result.set(std::string_view(topic_of(args).refusal())); }

// (topic) -> JSON of its latencies
ROBOCACHE_FFI(topic_latencies_ns, args, result) {
  result.set(std::string_view(nlohmann::json(topic_of(args).latencies_ns()).dump()));
}

// (topic) -> JSON of the addresses of Topic::sink and of the topic, for a transport's C library
ROBOCACHE_FFI(topic_sink, args, result) {
  const auto sink = reinterpret_cast<intptr_t>(Topic::sink());
  result.set(std::string_view(nlohmann::json{sink, address(&topic_of(args))}.dump()));
}

// (JSON of a spec, device; then for each ring its key and the ring, for each output its key and None) -> aligner
ROBOCACHE_FFI(aligner_open, args, result) {
  Rings rings;
  std::vector<std::string> outputs;
  for (int i = 2; i < args.count(); i += 2) {
    std::string key(args.string(i, "rings"));
    if (args.is_none(i + 1)) {
      outputs.push_back(std::move(key));
    } else {
      rings[std::move(key)] = args.object<RingHandle>(i + 1, "rings").ring;
    }
  }
  result.set_object(AlignerHandle{std::make_shared<Aligner>(spec_from_json(args.string(0, "spec")), rings, outputs,
                                                            device_from_name(args.string(1, "device")))});
}

// (aligner) -> JSON of its memory's bytes and arrays
ROBOCACHE_FFI(aligner_describe, args, result) {
  const Aligner& aligner = aligner_of(args);
  auto arrays = nlohmann::json::array();
  for (const BatchArray& array : aligner.arrays()) {
    arrays.push_back({{"name", array.name},
                      {"dtype", std::string(dtype_name(array.dtype))},
                      {"shape", array.shape},
                      {"offset", array.offset}});
  }
  result.set(std::string_view(nlohmann::json{{"bytes", aligner.batch_bytes()}, {"arrays", arrays}}.dump()));
}

ROBOCACHE_FFI(aligner_frontier, args, result) { set(result, aligner_of(args).frontier()); }

// (aligner, memory of the batch, time_ns) -> the number of targets that are not settled
ROBOCACHE_FFI(aligner_at, args, result) {
  Aligner& aligner = aligner_of(args);
  void* const memory = batch_memory(aligner, args);
  result.set(aligner.at(args.integer(2, "time_ns"), memory, current_stream(aligner.device())));
}

// (aligner, memory of the batch) -> whether there is a frontier
ROBOCACHE_FFI(aligner_latest, args, result) {
  Aligner& aligner = aligner_of(args);
  void* const memory = batch_memory(aligner, args);
  result.set(aligner.latest(memory, current_stream(aligner.device())));
}

// (aligner) -> JSON of the key that is farthest behind, and by how much; nothing if a ring is empty
ROBOCACHE_FFI(aligner_stalest, args, result) {
  const auto stalest = aligner_of(args).stalest();
  if (stalest) {
    result.set(std::string_view(nlohmann::json{{"key", stalest->key}, {"behind_ns", stalest->behind_ns}}.dump()));
  }
}

// (mode, decay, fade_s, [begin, "angle" or the form of a rotation] ...) -> chunks
ROBOCACHE_FFI(chunks_open, args, result) {
  ChunkOptions options{.mode = value_of<ChunkMode>(args.string(0, "mode"), "mode"),
                       .decay = args.real(1, "decay"),
                       .fade_ns = 1e9 * args.real(2, "fade_s")};
  for (int i = 3; i < args.count(); i += 2) {
    ChunkTurn& turn = options.turns.emplace_back(ChunkTurn{.begin = args.integer(i, "turns")});
    const std::string_view form = args.string(i + 1, "turns");
    if (form != "angle") turn.rotation = rotation_form(form, "turns");
  }
  result.set_object(ChunksHandle{std::make_shared<Chunks>(std::move(options))});
}

// (chunks, int64 [T] stamps, float64 [T, D] actions)
ROBOCACHE_FFI(chunks_put, args, result) {
  chunks_of(args).put(numbers<int64_t>(args, 1, "time_ns"), numbers<double>(args, 2, "actions"));
  result.set(int64_t{0});
}

// (chunks, time_ns) -> the action, float64 [D]; nothing if no chunk has one
ROBOCACHE_FFI(chunks_at, args, result) {
  std::vector<double> action;
  if (chunks_of(args).at(args.integer(1, "time_ns"), action)) result.set(new_array(action));
}

// (chunks, time_ns) -> Arrays of the rest of the newest chunk: int64 [n] stamps, float64 [n * D] actions
ROBOCACHE_FFI(chunks_leftover, args, result) {
  const Chunks::Rest rest = chunks_of(args).leftover(args.integer(1, "time_ns"));
  Arrays arrays;
  arrays.arrays.emplace_back(new_array(rest.time_ns));
  arrays.arrays.emplace_back(new_array(rest.actions));
  result.set_object(std::move(arrays));
}

ROBOCACHE_FFI(chunks_frozen, args, result) { result.set(chunks_of(args).frozen(args.integer(1, "time_ns"))); }
ROBOCACHE_FFI(chunks_covered_until_ns, args, result) { set(result, chunks_of(args).covered_until_ns()); }
ROBOCACHE_FFI(chunks_starved, args, result) { result.set(chunks_of(args).starved()); }

ROBOCACHE_FFI(aligner_bad_frames, args, result) { result.set(aligner_of(args).bad_frames()); }

}  // namespace robocache::ffi
