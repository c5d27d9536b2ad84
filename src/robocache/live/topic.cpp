#include "robocache/live/topic.hpp"

#include <algorithm>
#include <bit>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "robocache/core/arguments.hpp"
#include "robocache/core/with_type.hpp"
#include "robocache/image/codec.hpp"
#include "robocache/image/frames.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache {
namespace {

using nlohmann::json;

enum class Kind : uint8_t { kNumber, kNumbers, kText, kTexts, kRecords };

// The role of a field, the "use" of the plan.
enum class Use : uint8_t {
  kNone,
  kSeconds,
  kNanoseconds,
  kHeight,
  kWidth,
  kStep,
  kIsBigendian,
  kJoints,
  kFrame,
  kEncoding,
  kFormat,
  kData,
};
constexpr size_t kNumberUses = 7;  // the first uses, from kNone on: a field of such a use is a single number

}  // namespace

template <>
inline constexpr std::string_view kNames<Kind>[] = {"number", "numbers", "text", "texts", "records"};

template <>
inline constexpr std::string_view kNames<Use>[] = {"",      "seconds",  "nanoseconds",  "height",
                                                   "width", "step",     "is_bigendian", "joints",
                                                   "frame", "encoding", "format",       "data"};

namespace {

// A message that is refused: the text says why.
struct Unfit : Error {
  using Error::Error;
};

struct Target {
  size_t row;
  int64_t feature;  // the index of the first number in the row; -1: one number for each joint
};

struct PlanField {
  std::string path;
  Kind kind = Kind::kNumber;
  Use use = Use::kNone;
  DType dtype = DType::kUInt8;
  std::optional<int64_t> count;
  std::vector<PlanField> fields;
  std::vector<Target> to;
  std::vector<Target> absent;
};

struct Encoding {
  DType dtype;
  int64_t channels;
  std::vector<int64_t> kept;  // the channels of the row's pixels, in order
};

std::string list_of(const std::vector<std::string_view>& names) {
  std::string text = "[";
  for (const std::string_view name : names)
    text.append(text.size() > 1 ? ", " : "").append("'").append(name).append("'");
  return text + "]";
}

// Reads one message from its start to its end. Every read is checked against the end.
class MessageReader {
 public:
  explicit MessageReader(std::span<const uint8_t> message) : bytes_(message) {
    if (message.size() < 4 || message[0] != 0 || message[1] > 1)
      throw Unfit("expected CDR, which begins with 00 00 or 00 01");
    is_swapped_ = (message[1] == 1) != (std::endian::native == std::endian::little);
    position_ = kHead;
  }

  size_t position() const { return position_; }
  std::span<const uint8_t> from(size_t start) const { return bytes_.subspan(start, position_ - start); }

  // Returns the next `count` numbers of `size` bytes.
  std::span<const uint8_t> numbers(int64_t count, int64_t size) {
    if (count == 0) return {};
    const auto number_size = static_cast<size_t>(size);
    position_ += (number_size - (position_ - kHead) % number_size) % number_size;
    return skip(static_cast<size_t>(count) * number_size);
  }

  // Reads the length of a sequence; each element takes at least `smallest` bytes.
  int64_t count(size_t smallest) {
    const auto length = load<uint32_t>(numbers(1, 4).data());
    if (length > (bytes_.size() - position_) / smallest) {
      throw Unfit(bytes_.size(), " bytes, but at ", position_ - 4, " a length of ", length);
    }
    return length;
  }

  std::string_view text() {
    const auto length = static_cast<size_t>(count(1));
    const auto bytes = skip(length);
    return {reinterpret_cast<const char*>(bytes.data()), length == 0 ? 0 : length - 1};  // without its NUL
  }

  // Refuses bytes after the last field. CDR may pad up to 3.
  void end() const {
    if (bytes_.size() - position_ > 3) {
      throw Unfit(bytes_.size(), " bytes, but its type ends at ", position_);
    }
  }

  template <class T>
  T load(const uint8_t* from) const {
    std::array<uint8_t, sizeof(T)> bytes;
    std::memcpy(bytes.data(), from, sizeof(T));
    if (is_swapped_) std::reverse(bytes.begin(), bytes.end());
    return std::bit_cast<T>(bytes);
  }

  // Returns a number as float64: exactly, or the nearest float64 for integers of 64 bits.
  double load(const uint8_t* from, DType dtype) const {
    if (dtype == DType::kBool) return *from != 0;
    return with_type(dtype, [&]<class T>(T) { return to_work<double>(load<T>(from)); });
  }

  // Writes a number in another dtype, which must hold it.
  void convert(const uint8_t* from, DType dtype, uint8_t* to, DType to_dtype) const {
    if (dtype == to_dtype && dtype != DType::kBool) {
      const auto size = static_cast<size_t>(dtype_size(dtype));
      for (size_t i = 0; i < size; ++i) to[i] = from[is_swapped_ ? size - 1 - i : i];
      return;
    }
    store(load(from, dtype), to, to_dtype);
  }

  static void store(double value, uint8_t* to, DType dtype) {
    with_type(dtype, [&]<class T>(T) {
      const T number = from_work<T>(value);
      std::memcpy(to, &number, sizeof(number));
    });
  }

 private:
  static constexpr size_t kHead = 4;

  std::span<const uint8_t> skip(size_t size) {
    if (position_ > bytes_.size() || size > bytes_.size() - position_) {
      throw Unfit(bytes_.size(), " bytes, but a field that ends at ", position_ + size);
    }
    const auto part = bytes_.subspan(position_, size);
    position_ += size;
    return part;
  }

  std::span<const uint8_t> bytes_;
  size_t position_ = 0;
  bool is_swapped_ = false;
};

// The parts of a message that describe its rows: its stamp, and the size and format of its image.
struct Description {
  std::array<std::optional<int64_t>, kNumberUses> numbers;
  std::string_view encoding, format;
  std::span<const uint8_t> data;

  int64_t number(Use use) const { return numbers[static_cast<size_t>(use)].value_or(0); }
};

struct Row {
  std::shared_ptr<Ring> ring;
  std::vector<std::string> names;  // names of the row's joints; empty without joints
  std::vector<uint8_t> bytes;
  bool is_present = false;
  std::vector<int64_t> order;  // for each joint of the row, its index among the message's joints

  DType dtype() const { return ring->options().dtype; }
  int64_t features() const { return ring->row_bytes() / dtype_size(dtype()); }
  uint8_t* feature(int64_t i) { return bytes.data() + i * dtype_size(dtype()); }
};

}  // namespace

struct Topic::Plan {
  std::vector<PlanField> fields;
  std::vector<Row> rows;
  std::map<std::string, Encoding, std::less<>> encodings;
  EncodeOptions encode;

  std::vector<uint8_t> last_joint_bytes;  // the bytes of the joints' names in the last message
  size_t joints_at = 0;                   // where these bytes begin in it
  int64_t joints = 0;
  std::vector<std::string> frames;  // the frames of reference in the first message
  bool has_frames = false;

  Description description;
  size_t frame = 0;             // the index of the message's next frame of reference
  std::vector<Target> missing;  // the features that the message marks as absent
  std::vector<uint8_t> pixels;

  // ---- The plan ----

  Plan(std::string_view text, std::vector<std::shared_ptr<Ring>> rings) {
    try {
      const json plan = json::parse(text);
      for (const json& row : plan.at("rows")) {
        const size_t index = rows.size();
        if (index == rings.size() || rings[index] == nullptr) refuse("plan: expected a ring for each row");
        rows.push_back({.ring = rings[index], .names = row.at("names").get<std::vector<std::string>>()});
        const RingOptions& ring = rings[index]->options();
        if (!ring.codec) rows.back().bytes.resize(static_cast<size_t>(rings[index]->row_bytes()));
        if (ring.codec && ring.shape.size() != 3)
          refuse("plan: expected a ring of [height, width, channels] for a camera");
      }
      if (rows.size() != rings.size()) refuse("plan: expected a row for each ring");
      for (const json& field : plan.at("fields")) fields.push_back(parse(field));
      for (const auto& [name, entry] : plan.at("encodings").items()) {
        Encoding& encoding = encodings[name];
        encoding = {dtype_from_name(entry.at("dtype").get<std::string>()), entry.at("channels"), entry.at("kept")};
        for (const int64_t kept : encoding.kept) {
          if (kept < 0 || kept >= encoding.channels) refuse("plan: expected channels of the encoding ", name);
        }
      }
      encode.quality = plan.at("quality");
    } catch (const json::exception& error) {
      refuse("plan: ", error.what());
    }
  }

  PlanField parse(const json& entry) const {
    PlanField field{.path = entry.at("path"), .kind = value_of<Kind>(entry.at("kind").get<std::string>(), "kind")};
    field.use = value_of<Use>(entry.value("use", ""), "use");
    if (field.kind == Kind::kNumber || field.kind == Kind::kNumbers) {
      field.dtype = dtype_from_name(entry.at("dtype").get<std::string>());
      if (field.kind == Kind::kNumber) field.count = entry.value("count", int64_t{1});
      if (field.count && (*field.count < 0 || *field.count > (1 << 30))) refuse("plan: expected a count of numbers");
    }
    for (const json& inner : entry.value("fields", json::array())) field.fields.push_back(parse(inner));
    if (field.kind == Kind::kRecords && field.fields.empty()) refuse("plan: expected fields of records");
    for (const bool is_absent : {false, true}) {
      for (const json& pair : entry.value(is_absent ? "absent" : "to", json::array())) {
        const Target target{pair.at(0), pair.at(1)};
        if (target.row >= rows.size()) refuse("plan: expected one of its rows");
        const Row& row = rows[target.row];
        const int64_t count = is_absent ? 1 : field.count.value_or(1);
        const int64_t last_feature = row.ring->options().codec ? 0 : row.features() - count;
        const bool is_of_joints = !is_absent && target.feature == -1;
        const bool fits = is_of_joints ? std::ssize(row.names) == row.features()
                                       : target.feature >= 0 && target.feature <= last_feature;
        if (!fits) refuse("plan: expected a feature of its row for ", field.path);
        (is_absent ? field.absent : field.to).push_back(target);
      }
    }
    return field;
  }

  // ---- A message ----

  void read(std::span<const uint8_t> message) {
    description = {};
    frame = 0;
    missing.clear();
    for (Row& row : rows) row.is_present = false;
    MessageReader reader(message);
    for (const PlanField& field : fields) read(field, reader);
    reader.end();
    has_frames = true;
    for (const Target& target : missing) {
      Row& row = rows[target.row];
      MessageReader::store(std::numeric_limits<double>::quiet_NaN(), row.feature(target.feature), row.dtype());
    }
  }

  void read(const PlanField& field, MessageReader& reader) {
    switch (field.kind) {
      case Kind::kNumber:
      case Kind::kNumbers:
        return read_numbers(field, reader);
      case Kind::kText: {
        const std::string_view text = reader.text();
        if (field.use == Use::kEncoding) description.encoding = text;
        if (field.use == Use::kFormat) description.format = text;
        if (field.use == Use::kFrame) check_frame(field, text);
        return;
      }
      case Kind::kTexts: {
        if (field.use == Use::kJoints) return read_joints(reader);
        const int64_t count = reader.count(4);
        for (int64_t i = 0; i < count; ++i) reader.text();
        return;
      }
      case Kind::kRecords: {
        const int64_t count = reader.count(1);
        for (int64_t i = 0; i < count; ++i) {
          for (const PlanField& inner : field.fields) read(inner, reader);
        }
        return;
      }
    }
  }

  void read_numbers(const PlanField& field, MessageReader& reader) {
    const int64_t size = dtype_size(field.dtype);
    const int64_t count = field.count ? *field.count : reader.count(static_cast<size_t>(size));
    const auto numbers = reader.numbers(count, size);
    if (count == 0) return;
    if (field.use == Use::kData) {
      description.data = numbers;
    } else if (const auto use = static_cast<size_t>(field.use); 0 < use && use < kNumberUses) {
      description.numbers[use] = static_cast<int64_t>(reader.load(numbers.data(), field.dtype));
    }
    if (!field.absent.empty() && reader.load(numbers.data(), field.dtype) == -1) {
      missing.insert(missing.end(), field.absent.begin(), field.absent.end());
    }
    for (const Target& target : field.to) {
      Row& row = rows[target.row];
      row.is_present = true;
      if (target.feature == -1) {
        if (count != joints) {
          throw Unfit(field.path, ": expected a number for each of ", joints, " joints, got ", count);
        }
        for (int64_t i = 0; i < row.features(); ++i) {
          reader.convert(numbers.data() + row.order[static_cast<size_t>(i)] * size, field.dtype, row.feature(i),
                         row.dtype());
        }
        continue;
      }
      if (!field.count && count != row.features()) {
        throw Unfit(field.path, ": expected ", row.features(), " numbers, got ", count);
      }
      for (int64_t i = 0; i < count; ++i) {
        reader.convert(numbers.data() + i * size, field.dtype, row.feature(target.feature + i), row.dtype());
      }
    }
  }

  // Finds the joints of every row among the message's joints. Most messages repeat the names of the last message, so
  // the bytes are compared first.
  void read_joints(MessageReader& reader) {
    const size_t start = reader.position();
    joints = reader.count(4);
    std::vector<std::string_view> names;
    const auto name_bytes = [&] { return reader.from(start); };
    for (int64_t i = 0; i < joints; ++i) names.push_back(reader.text());
    if (joints_at == start && std::ranges::equal(name_bytes(), last_joint_bytes)) return;
    last_joint_bytes.clear();
    for (Row& row : rows) {
      std::vector<std::string_view> missing_names;
      row.order.clear();
      for (const std::string& name : row.names) {
        const auto found = std::ranges::find(names, name);
        if (found == names.end()) missing_names.push_back(name);
        row.order.push_back(found - names.begin());
        if (std::ranges::count(names, name) > 1)
          throw Unfit("joints ", list_of(names), ": '", name, "' is there twice");
      }
      if (!missing_names.empty()) throw Unfit("joints ", list_of(names), ", without ", list_of(missing_names));
    }
    joints_at = start;
    last_joint_bytes.assign(name_bytes().begin(), name_bytes().end());
  }

  void check_frame(const PlanField& field, std::string_view name) {
    while (name.starts_with('/')) name.remove_prefix(1);
    while (name.ends_with('/')) name.remove_suffix(1);
    if (!has_frames) {
      if (frame == frames.size()) frames.emplace_back();
      frames[frame] = name;
    } else if (frames[frame] != name) {
      throw Unfit(field.path, ": '", name, "', but '", frames[frame],
                  "' in the first message: two sensors on one topic?");
    }
    ++frame;
  }

  // ---- Frames ----

  // Pushes an image to the ring of its topic.
  void push_image(Row& row, int64_t time_ns, int64_t arrival_ns) {
    const RingOptions& ring = row.ring->options();
    const FrameShape shape{ring.shape[0], ring.shape[1], ring.shape[2], ring.dtype};
    if (encodings.empty()) return push_file(row, shape, time_ns, arrival_ns);
    const auto found = encodings.find(description.encoding);
    if (found == encodings.end()) {
      std::vector<std::string_view> names;
      for (const auto& [name, _] : encodings) names.push_back(name);
      throw Unfit("encoding: expected one of ", list_of(names), ", got '", description.encoding, "'");
    }
    const Encoding& encoding = found->second;
    const int64_t height = description.number(Use::kHeight);
    const int64_t width = description.number(Use::kWidth);
    const int64_t channels = std::ssize(encoding.kept);
    const FrameShape actual{height, width, channels, encoding.dtype};
    if (actual != shape) {
      throw Unfit("expected images of ", shape.describe(), ", got ", actual.describe(), " (", description.encoding,
                  ")");
    }
    const int64_t size = dtype_size(encoding.dtype);
    const int64_t row_bytes = width * encoding.channels * size;
    const int64_t data_bytes = std::ssize(description.data);
    // If the pixels alone fill the data, rows have no padding, whatever the step says. The last row never needs
    // padding.
    const int64_t given_step = description.number(Use::kStep);
    const int64_t step = data_bytes == height * row_bytes || height == 1 ? row_bytes : given_step;
    if (height < 1 || row_bytes < 1 || step < row_bytes || data_bytes < (height - 1) * step + row_bytes) {
      throw Unfit("expected ", width, "x", height, " ", description.encoding, " in rows of ", given_step,
                  " bytes, got ", data_bytes, " bytes");
    }
    pixels.resize(static_cast<size_t>(shape.bytes()));
    const bool is_bigendian = description.number(Use::kIsBigendian) != 0;
    const bool is_swapped = is_bigendian != (std::endian::native == std::endian::big);
    uint8_t* out = pixels.data();
    for (int64_t y = 0; y < height; ++y) {
      const uint8_t* in = description.data.data() + y * step;
      if (channels == encoding.channels && std::ranges::is_sorted(encoding.kept) && (size == 1 || !is_swapped)) {
        std::memcpy(out, in, static_cast<size_t>(row_bytes));
        out += row_bytes;
        continue;
      }
      for (int64_t x = 0; x < width; ++x, in += encoding.channels * size) {
        for (const int64_t kept : encoding.kept) {
          for (int64_t i = 0; i < size; ++i) *out++ = in[kept * size + (is_swapped ? size - 1 - i : i)];
        }
      }
    }
    if (*ring.codec == Codec::kRaw) return push(row, pixels, time_ns, arrival_ns);
    push(row, encode_frame(*ring.codec, pixels.data(), shape, encode), time_ns, arrival_ns);
  }

  // Pushes an image that is a file. The row gets the file in the form that a cache stores.
  void push_file(Row& row, const FrameShape& shape, int64_t time_ns, int64_t arrival_ns) {
    // Formats of compressed_image_transport. In its files red and blue are exchanged, unless it compressed "bgr".
    std::string format(description.format);
    std::ranges::transform(format, format.begin(), [](unsigned char c) { return std::tolower(c); });
    const bool is_rgb = format.starts_with("rgb") || format.starts_with("bgr");
    if (is_rgb && format.find("compressed bgr") == std::string::npos && shape.channels == 3) {
      throw Unfit("format: expected 'jpeg', 'png' or one with 'compressed bgr', got '", description.format,
                  "', in whose files red and blue are exchanged");
    }
    const std::array<int64_t, 2> offsets{0, std::ssize(description.data)};
    const EncodedFrames taken = take_frames(description.data, offsets);
    const Codec codec = *row.ring->options().codec;
    if (taken.codec != codec || taken.shape != shape) {
      throw Unfit("expected ", name_of(codec), " of ", shape.describe(), ", got ", name_of(taken.codec), " of ",
                  taken.shape.describe());
    }
    push(row, taken.bytes, time_ns, arrival_ns);
  }

  static void push(Row& row, std::span<const uint8_t> bytes, int64_t time_ns, int64_t arrival_ns) {
    row.ring->push(time_ns, arrival_ns, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }

  // Pushes the rows of the message. Returns their stamp.
  int64_t push_all(int64_t arrival_ns) {
    const int64_t time_ns = stamp_ns().value_or(arrival_ns);
    for (Row& row : rows) {
      if (row.ring->options().codec) {
        push_image(row, time_ns, arrival_ns);
      } else if (row.is_present) {
        push(row, row.bytes, time_ns, arrival_ns);
      }
    }
    return time_ns;
  }

  // Returns the message's own stamp, or none if the plan takes no stamp. Returns 0 for a stamp beyond int64
  // nanoseconds: a ring refuses 0.
  std::optional<int64_t> stamp_ns() const {
    constexpr int64_t kSecondNs = 1'000'000'000;
    const auto seconds = description.numbers[static_cast<size_t>(Use::kSeconds)];
    const auto nanoseconds = description.numbers[static_cast<size_t>(Use::kNanoseconds)];
    if (!seconds || !nanoseconds) return std::nullopt;
    const bool fits =
        *seconds >= 0 && *seconds < 9'000'000'000 && *nanoseconds > -kSecondNs && *nanoseconds <= kSecondNs;
    return fits ? *seconds * kSecondNs + *nanoseconds : 0;
  }
};

namespace {

enum Count : uint8_t { kReceived, kTaken, kRefused, kLost };

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Topic::Topic(std::string_view plan, std::vector<std::shared_ptr<Ring>> rings)
    : plan_(std::make_unique<Plan>(plan, std::move(rings))),
      latencies_(std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(kLatencies))) {}

Topic::~Topic() = default;

void Topic::take(std::span<const uint8_t> message, const Received& received) noexcept {
  counts_[kReceived].fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(take_mutex_);
  try {
    count_lost(received);
    plan_->read(message);
    const int64_t stamp_ns = plan_->push_all(received.arrival_ns);
    const int64_t taken = counts_[kTaken].load(std::memory_order_relaxed);
    latencies_[static_cast<size_t>(taken % kLatencies)] = now_ns() - stamp_ns;
    counts_[kTaken].store(taken + 1, std::memory_order_release);
  } catch (const std::exception& error) {
    counts_[kRefused].fetch_add(1, std::memory_order_relaxed);
    // A message may hold any bytes, so the reason keeps 500 of them, and only printable ASCII.
    std::string why(error.what(), strnlen(error.what(), 500));
    std::ranges::replace_if(why, [](char letter) { return letter < ' ' || letter > '~'; }, '?');
    const std::lock_guard refusal_lock(refusal_mutex_);
    refusal_ = std::move(why);
  }
}

// A publisher counts its messages by ones. A number that is smaller than the last one starts a new count.
void Topic::count_lost(const Received& received) {
  if (!received.sequence) return;
  const auto found = std::ranges::find(publishers_, received.publisher, &Publisher::id);
  if (found == publishers_.end()) {
    publishers_.push_back({received.publisher, *received.sequence});
    return;
  }
  if (*received.sequence > found->last + 1) {
    counts_[kLost].fetch_add(static_cast<int64_t>(*received.sequence - found->last - 1), std::memory_order_relaxed);
  }
  found->last = *received.sequence;
}

TopicCounts Topic::counts() const {
  const auto count = [this](Count counter) { return counts_[counter].load(std::memory_order_acquire); };
  return {count(kReceived), count(kTaken), count(kRefused), count(kLost)};
}

std::string Topic::refusal() const {
  const std::lock_guard lock(refusal_mutex_);
  return refusal_;
}

std::vector<int64_t> Topic::latencies_ns() const {
  const int64_t taken = counts().taken;
  std::vector<int64_t> latencies;
  for (int64_t i = std::max<int64_t>(0, taken - kLatencies); i < taken; ++i) {
    latencies.push_back(latencies_[static_cast<size_t>(i % kLatencies)]);
  }
  return latencies;
}

Topic::Sink Topic::sink() {
  return [](void* topic, const uint8_t* bytes, size_t size, int64_t arrival_ns, uint64_t publisher, uint64_t sequence) {
    Received received{.arrival_ns = arrival_ns, .publisher = publisher};
    if (sequence != std::numeric_limits<uint64_t>::max()) received.sequence = sequence;
    static_cast<Topic*>(topic)->take({bytes, size}, received);
  };
}

}  // namespace robocache
