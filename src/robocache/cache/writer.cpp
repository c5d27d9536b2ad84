#include "robocache/cache/writer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "robocache/cache/block_writer.hpp"
#include "robocache/cache/directory_lock.hpp"
#include "robocache/cache/file.hpp"
#include "robocache/cache/manifest.hpp"
#include "robocache/cache/npy.hpp"
#include "robocache/cache/statistics.hpp"
#include "robocache/core/error.hpp"

namespace robocache {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestFileName = 255;
constexpr int64_t kGatherBytes = int64_t{1} << 20;

constexpr auto kInt64Bytes = static_cast<int64_t>(sizeof(int64_t));

// A file of `count` elements of `element_bytes` in a finished cache, with another `header` to write at the end.
cache::BlockWriter go_on(const std::string& path, const std::string& header, int64_t count, int64_t element_bytes,
                         const cache::FileRecord& record) {
  const int64_t begin = record.bytes - count * element_bytes;
  if (begin != std::ssize(header)) {
    throw FileError(path + ": expected a header of " + std::to_string(header.size()) + " bytes to append rows, got " +
                    std::to_string(begin));
  }
  return {path, header.size(), record};
}

// Rows that are to be added: how many, and what each is.
struct NewRows {
  int64_t count;
  DType dtype;
  std::span<const int64_t> shape;
  std::optional<FrameFormat> frames = {};  // its codec and colour space
  std::optional<Ragged> ragged = {};       // dtype and shape are then those of one element
};

// A stream's rows on their way to its files.
struct StreamFiles {
  StreamFiles(std::string_view stream_name, const NewRows& first, const std::string& directory, int64_t episode)
      : name(stream_name),
        dtype(first.dtype),
        shape(first.shape.begin(), first.shape.end()),
        frames(first.frames),
        ragged(first.ragged),
        times(directory + "/" + cache::kTimeFile, cache::npy_header(DType::kInt64, 0, {})),
        values(directory + "/" + cache::kValuesFile, values_header(0)),
        times_begin(times.size()),
        values_begin(values.size()),
        values_end(values.size()),
        row_offsets(static_cast<size_t>(episode + 1), 0) {
    for (const int64_t extent : shape) features *= extent;
    if (!has_offsets()) return;
    blob_offsets.emplace(directory + "/" + cache::kBlobOffsetsFile, cache::npy_header(DType::kInt64, 0, {}));
    blob_offsets_begin = blob_offsets->size();
    const int64_t first_blob = 0;
    blob_offsets->append(&first_blob, sizeof(first_blob));
  }

  // Goes on with one of a finished cache.
  StreamFiles(const Stream& finished, const std::string& home, const std::map<std::string, cache::FileRecord>& records)
      : StreamFiles(finished, home + "/" + cache::stream_directory(finished.name),
                    [&](const char* file) { return records.at(cache::stream_directory(finished.name) + "/" + file); }) {
  }

  template <class RecordOf>
  StreamFiles(const Stream& finished, const std::string& directory, const RecordOf& record_of)
      : name(finished.name),
        dtype(finished.dtype),
        shape(finished.shape),
        frames(finished.frames),
        ragged(finished.ragged),
        features(finished.features),
        times(go_on(directory + "/" + cache::kTimeFile, cache::npy_header(DType::kInt64, 0, {}), finished.rows,
                    kInt64Bytes, record_of(cache::kTimeFile))),
        values(go_on(directory + "/" + cache::kValuesFile, values_header(0),
                     has_offsets() ? finished.blob_offsets[finished.rows] : finished.rows, value_bytes(),
                     record_of(cache::kValuesFile))),
        times_begin(times.size() - finished.rows * kInt64Bytes),
        values_begin(std::ssize(values_header(0))),
        values_end(values.size()),
        rows(finished.rows),
        row_offsets(finished.row_offsets.begin(), finished.row_offsets.end()),
        finished_end(Ends{values_end, row_offsets.size()}) {
    if (!has_offsets()) return;
    blob_offsets.emplace(go_on(directory + "/" + cache::kBlobOffsetsFile, cache::npy_header(DType::kInt64, 0, {}),
                               rows + 1, kInt64Bytes, record_of(cache::kBlobOffsetsFile)));
    blob_offsets_begin = blob_offsets->size() - (rows + 1) * kInt64Bytes;
  }

  bool is_encoded() const { return frames && frames->codec != Codec::kRaw; }
  bool has_offsets() const { return is_encoded() || ragged; }
  int64_t episode_rows() const { return rows - row_offsets.back(); }

  // Of what values counts: rows, elements of ragged rows, bytes of encoded frames.
  int64_t value_bytes() const { return is_encoded() ? 1 : features * dtype_size(dtype); }
  int64_t value_count() const {
    return has_offsets() ? (values.size() - values_begin) / value_bytes() : rows;  // of no features there are rows too
  }
  std::string values_header(int64_t count) const {
    return is_encoded() ? cache::npy_header(DType::kUInt8, count, {}) : cache::npy_header(dtype, count, shape);
  }

  // Those of added rows, which begin with 0, go behind those that are there. Comes before their values.
  void append_offsets(std::span<const int64_t> added) {
    std::vector<int64_t> ends(added.begin() + 1, added.end());
    for (int64_t& end : ends) end += value_count();
    blob_offsets->append(ends.data(), ends.size() * sizeof(int64_t));
  }

  void count_rows(const TensorView& added_times) {
    const auto* time = static_cast<const int64_t*>(added_times.data);
    const int64_t n = added_times.shape[0];
    if (episode_rows() == 0) first_ns = time[0];
    last_ns = time[(n - 1) * added_times.strides[0]];
    rows += n;
  }

  // Forgets the open episode's rows.
  void truncate() {
    rows = row_offsets.back();
    times.truncate(times_begin + rows * kInt64Bytes);
    values.truncate(values_end);
    if (blob_offsets) blob_offsets->truncate(blob_offsets_begin + (rows + 1) * kInt64Bytes);
  }

  void end_episode() {
    row_offsets.push_back(rows);
    values_end = values.size();
  }

  // Puts the numbers of rows into the headers and makes the files durable; `add` is given each one's name and record.
  template <class Add>
  void finish(const Add& add) {
    times.replace_header(cache::npy_header(DType::kInt64, rows, {}));
    values.replace_header(values_header(value_count()));
    add(cache::kTimeFile, times.finish());
    add(cache::kValuesFile, values.finish());
    if (!blob_offsets) return;
    blob_offsets->replace_header(cache::npy_header(DType::kInt64, rows + 1, {}));
    add(cache::kBlobOffsetsFile, blob_offsets->finish());
  }

  // Takes back all that was appended to a stream of a finished cache.
  void put_back() {
    row_offsets.resize(finished_end->episodes_plus_one);
    values_end = finished_end->values;
    truncate();
    finish([](const char*, const cache::FileRecord&) {});
  }

  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::optional<FrameFormat> frames;
  std::optional<Ragged> ragged;
  int64_t features = 1;
  cache::BlockWriter times;
  cache::BlockWriter values;
  std::optional<cache::BlockWriter> blob_offsets;
  int64_t times_begin;  // offset of the first row in its file
  int64_t values_begin;
  int64_t blob_offsets_begin = 0;
  int64_t values_end;  // when the last episode ended
  int64_t rows = 0;
  int64_t first_ns = 0;  // of the open episode's rows
  int64_t last_ns = 0;
  std::vector<int64_t> row_offsets;  // of the episodes that have ended: one more than there are

  // Of a stream of a finished cache, where it ended.
  struct Ends {
    int64_t values;
    size_t episodes_plus_one;
  };
  std::optional<Ends> finished_end;
};

struct Description {
  Clock clock = Clock::kRecorded;
  std::vector<std::string> names;
  std::string attributes_json = "{}";
  std::optional<FrameFormat> frames;  // all but its codec and colour space

  // What it says of frames, with the codec and colour space that rows have.
  FrameFormat of(const FrameFormat& rows) const {
    FrameFormat described = frames.value_or(FrameFormat{});
    described.codec = rows.codec;
    const bool is_depth = rows.color_space == ColorSpace::kGray && described.unit_m;
    described.color_space = is_depth ? ColorSpace::kDepth : rows.color_space;
    return described;
  }
};

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

template <class Value>
using ByName = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

// ---- rows ------------------------------------------------------------------------------------------------------------

// Copies a strided view's elements in row-major order; returns the end of the copy.
template <class Element>
Element* gather(const Element* source, const TensorView& view, int dim, Element* out) {
  if (dim == view.ndim) {
    *out = *source;
    return out + 1;
  }
  const auto d = static_cast<size_t>(dim);
  for (int64_t i = 0; i < view.shape[d]; ++i) out = gather(source + i * view.strides[d], view, dim + 1, out);
  return out;
}

template <class Element>
void append_gathered(cache::BlockWriter& file, TensorView view, int64_t row_bytes) {
  const int64_t rows = view.shape[0];
  const int64_t step = std::clamp(kGatherBytes / row_bytes, int64_t{1}, rows);
  std::vector<Element> buffer(static_cast<size_t>(step * row_bytes) / sizeof(Element));
  for (int64_t row = 0; row < rows; row += step) {
    view.shape[0] = std::min(step, rows - row);
    const auto* source = static_cast<const Element*>(view.data) + row * view.strides[0];
    gather(source, view, 0, buffer.data());
    file.append(buffer.data(), static_cast<size_t>(view.shape[0] * row_bytes));
  }
}

void append_rows(cache::BlockWriter& file, const TensorView& view, int64_t row_bytes) {
  const int64_t bytes = view.shape[0] * row_bytes;
  if (bytes == 0) return;
  if (view.is_contiguous()) {
    file.append(view.data, static_cast<size_t>(bytes));
    return;
  }
  switch (dtype_size(view.dtype)) {
    case 1:
      return append_gathered<uint8_t>(file, view, row_bytes);
    case 2:
      return append_gathered<uint16_t>(file, view, row_bytes);
    case 4:
      return append_gathered<uint32_t>(file, view, row_bytes);
    default:
      return append_gathered<uint64_t>(file, view, row_bytes);
  }
}

// ---- checks of arguments ---------------------------------------------------------------------------------------------

std::string kind_text(const std::optional<FrameFormat>& frames, const std::optional<Ragged>& ragged) {
  if (ragged) return *ragged == Ragged::kText ? "text" : "ragged rows";
  if (!frames) return "numbers";
  return std::string(codec_name(frames->codec)) + " frames of " + std::string(color_space_name(frames->color_space));
}

// "[n, 3]"
std::string rows_shape(const std::string& count, std::span<const int64_t> shape) {
  const std::string row = shape_string(shape.data(), static_cast<int>(shape.size()));
  return "[" + count + (shape.empty() ? "]" : ", " + row.substr(1));
}

[[noreturn]] void refuse(std::string_view stream, const std::string& what) {
  throw ArgumentError("stream '" + std::string(stream) + "': " + what);
}

// Of a stream's rows against what was said of it.
void check_description(std::string_view stream, const Description& described, const NewRows& rows) {
  int64_t features = 1;
  for (const int64_t extent : rows.shape) features *= extent;
  const auto names = static_cast<int64_t>(described.names.size());
  if (names != 0 && names != features) {
    refuse(stream, "expected " + std::to_string(features) + " names, one a feature, got " + std::to_string(names));
  }
  if (described.frames && !rows.frames) {
    refuse(stream, "expected frames, as it was described, got " + kind_text(rows.frames, rows.ragged));
  }
  if (!rows.frames) return;
  const std::string mistake = cache::frame_mistake(described.of(*rows.frames), rows.dtype, rows.shape);
  if (!mistake.empty()) refuse(stream, mistake);
}

void check_time_dtype(std::string_view stream, const TensorView& times) {
  if (times.dtype != DType::kInt64) {
    throw ArgumentTypeError("stream '" + std::string(stream) + "': expected times in int64 nanoseconds, got " +
                            std::string(dtype_name(times.dtype)));
  }
}

void check_tensors(std::string_view stream, const TensorView& times, const TensorView& values) {
  check_time_dtype(stream, times);
  if (times.device.is_cuda() || values.device.is_cuda()) {
    refuse(stream, "expected times and values on the CPU, got " + times.describe() + " and " + values.describe());
  }
  if (times.ndim != 1 || values.ndim < 1 || values.shape[0] != times.shape[0]) {
    refuse(stream, "expected times [n] and values [n, ...], got " + shape_string(times.shape.data(), times.ndim) +
                       " and " + shape_string(values.shape.data(), values.ndim));
  }
}

// The offsets of ragged rows, in one piece.
std::vector<int64_t> check_ragged(std::string_view stream, const TensorView& times, const TensorView& values,
                                  const TensorView& offsets, Ragged ragged) {
  check_time_dtype(stream, times);
  if (offsets.dtype != DType::kInt64) {
    throw ArgumentTypeError("stream '" + std::string(stream) + "': expected offsets in int64, got " +
                            std::string(dtype_name(offsets.dtype)));
  }
  if (times.device.is_cuda() || values.device.is_cuda() || offsets.device.is_cuda()) {
    refuse(stream, "expected times, values and offsets on the CPU, got " + times.describe() + ", " + values.describe() +
                       " and " + offsets.describe());
  }
  if (times.ndim != 1 || values.ndim < 1 || offsets.ndim != 1 || offsets.shape[0] != times.shape[0] + 1) {
    refuse(stream, "expected times [n], values [elements, ...] and offsets [n + 1], got " +
                       shape_string(times.shape.data(), times.ndim) + ", " +
                       shape_string(values.shape.data(), values.ndim) + " and " +
                       shape_string(offsets.shape.data(), offsets.ndim));
  }
  std::vector<int64_t> checked(static_cast<size_t>(offsets.shape[0]));
  const auto* offset = static_cast<const int64_t*>(offsets.data);
  int64_t previous = 0;
  for (size_t i = 0; i < checked.size(); ++i) {
    checked[i] = offset[static_cast<int64_t>(i) * offsets.strides[0]];
    const bool is_last = i + 1 == checked.size();
    const int64_t least = is_last ? values.shape[0] : previous;
    const int64_t most = i == 0 ? 0 : values.shape[0];
    if (checked[i] < least || checked[i] > most) {
      refuse(stream, "expected offsets from 0 to " + std::to_string(values.shape[0]) +
                         ", the elements of all rows, none below the one before it; got offsets[" + std::to_string(i) +
                         "] " + std::to_string(checked[i]));
    }
    previous = checked[i];
  }
  const std::span<const int64_t> element{values.shape.data() + 1, static_cast<size_t>(values.ndim - 1)};
  const std::string mistake = cache::ragged_mistake(ragged, values.dtype, element);
  if (!mistake.empty()) refuse(stream, mistake);
  return checked;
}

void check_text(std::string_view stream, const TensorView& bytes, std::span<const int64_t> offsets) {
  if (!bytes.is_contiguous()) refuse(stream, "expected the bytes of text in one piece, got " + bytes.describe());
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::string_view text(static_cast<const char*>(bytes.data) + offsets[i],
                                static_cast<size_t>(offsets[i + 1] - offsets[i]));
    const std::string mistake = cache::utf8_mistake(text);
    if (!mistake.empty()) refuse(stream, "expected UTF-8 in row " + std::to_string(i) + ", got " + mistake);
  }
}

void check_frames(std::string_view stream, const TensorView& times, const NewRows& rows, std::span<const uint8_t> bytes,
                  std::span<const int64_t> offsets) {
  check_time_dtype(stream, times);
  if (times.device.is_cuda() || times.ndim != 1) {
    refuse(stream, "expected times [n] on the CPU, got " + times.describe());
  }
  const std::string mistake = cache::frame_mistake(*rows.frames, rows.dtype, rows.shape);
  if (!mistake.empty()) refuse(stream, mistake);
  const std::string count = std::to_string(rows.count) + " " + kind_text(rows.frames, {});
  const auto size = static_cast<int64_t>(bytes.size());
  if (rows.frames->codec == Codec::kRaw) {
    int64_t each = dtype_size(rows.dtype);
    for (const int64_t extent : rows.shape) each *= extent;
    if (size % each == 0 && size / each == rows.count && offsets.empty()) return;
    refuse(stream, "expected " + count + " of " + std::to_string(each) + " bytes each, and no offsets, got " +
                       std::to_string(size) + " bytes and " + std::to_string(offsets.size()) + " offsets");
  }
  if (std::ssize(offsets) != rows.count + 1 || offsets.front() != 0 || offsets.back() != size ||
      !std::ranges::is_sorted(offsets)) {
    refuse(stream, "expected offsets of " + count + ", one more, from 0 to " + std::to_string(size) +
                       ", the bytes of all, none below the one before it; got " + std::to_string(offsets.size()) +
                       (offsets.empty()
                            ? ""
                            : ", from " + std::to_string(offsets.front()) + " to " + std::to_string(offsets.back())));
  }
}

void check_same_rows(const StreamFiles& stream, const Description& described, const NewRows& rows) {
  const auto refuse_rows = [&](const std::string& expected, const std::string& got) {
    refuse(stream.name, "expected " + expected + " as in its first rows, got " + got);
  };
  const auto kind = [&](const std::optional<FrameFormat>& frames, const std::optional<Ragged>& ragged) {
    return kind_text(frames ? described.of(*frames) : frames, ragged);
  };
  const std::string known = kind(stream.frames, stream.ragged);
  const std::string got = kind(rows.frames, rows.ragged);
  if (got != known) refuse_rows(known, got);
  if (rows.dtype != stream.dtype) {
    refuse_rows("values of " + std::string(dtype_name(stream.dtype)), std::string(dtype_name(rows.dtype)));
  }
  if (!std::ranges::equal(rows.shape, stream.shape)) {
    refuse_rows("values of shape " + rows_shape("n", stream.shape), rows_shape(std::to_string(rows.count), rows.shape));
  }
}

// `rows` of this episode came before, the last one at `last_ns`.
void check_times(std::string_view stream, const TensorView& times, int64_t rows, int64_t last_ns) {
  const auto* time = static_cast<const int64_t*>(times.data);
  for (int64_t i = 0; i < times.shape[0]; ++i) {
    const int64_t now_ns = time[i * times.strides[0]];
    if (rows + i > 0 && now_ns < last_ns) {
      refuse(stream, "expected times that do not decrease within an episode, got " + std::to_string(now_ns) +
                         " ns in row " + std::to_string(rows + i) + " after " + std::to_string(last_ns) + " ns");
    }
    last_ns = now_ns;
  }
}

std::string absolute_path(const std::string& path) {
  if (path.empty()) throw ArgumentError("path: expected the name of a directory, got ''");
  std::error_code error;
  const fs::path real = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) throw FileError(path + ": " + error.message());
  return real.has_filename() ? real.string() : real.parent_path().string();
}

bool is_cache(const fs::path& path) {
  std::ifstream manifest(path / cache::kManifestFile, std::ios::binary);
  std::string start(32, '\0');
  manifest.read(start.data(), static_cast<std::streamsize>(start.size()));
  return start.find("\"format\": \"robocache\"") != std::string::npos;
}

// Whether a file is `small`, "stats.npy", of any generation.
bool is_generation_of(std::string_view small, std::string_view file) {
  const std::string_view end = small.substr(small.rfind('.'));
  small.remove_suffix(end.size());
  if (!file.starts_with(small) || !file.ends_with(end) || file.size() < small.size() + end.size()) return false;
  const std::string_view generation = file.substr(small.size(), file.size() - small.size() - end.size());
  return generation.empty() || (generation.size() > 1 && generation[0] == '.' &&
                                generation.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

// Removes files that the manifest does not name but a cache's could be: of another generation, or of an append that did
// not end. Best effort: nobody looks at what stays.
void remove_leftovers(const std::string& path, const std::map<std::string, cache::FileRecord>& named) {
  std::vector<std::string> names;
  const auto list = [&](const std::string& directory, const auto& is_ours) {
    std::error_code error;
    fs::directory_iterator entries(path + "/" + directory, error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
      const std::string name = entries->path().filename().string();
      if (is_ours(name)) names.push_back(directory + name);
    }
  };
  list("", [](const std::string& name) {
    return name == cache::kNewManifestFile || is_generation_of(cache::kEpisodesFile, name);
  });
  std::vector<std::string> directories;
  std::swap(names, directories);
  list(std::string(cache::kStreamsDirectory) + "/", [](const std::string&) { return true; });
  std::swap(names, directories);
  for (const std::string& directory : directories) {
    list(directory + "/", [](const std::string& name) {
      return name == cache::kTimeFile || name == cache::kValuesFile || name == cache::kBlobOffsetsFile ||
             is_generation_of(cache::kRowOffsetsFile, name) || is_generation_of(cache::kStatsFile, name);
    });
  }
  for (const std::string& name : names) {
    if (!named.contains(name)) ::unlink((path + "/" + name).c_str());
  }
  for (const std::string& directory : directories) ::rmdir((path + "/" + directory).c_str());  // the empty ones
}

}  // namespace

struct Writer::Impl {
  Impl(const std::string& requested_path, WriteMode write_mode);

  void describe_stream(std::string_view name, Clock clock, std::vector<std::string> names,
                       std::string_view attributes_json);
  void describe_frames(std::string_view name, std::optional<double> unit_m, std::vector<double> intrinsics,
                       std::string_view resized_json);
  void begin_episode(std::string_view metadata_json);
  void append(std::string_view name, const TensorView& times, const TensorView& values);
  void append_ragged(std::string_view name, const TensorView& times, const TensorView& values,
                     const TensorView& offsets, Ragged ragged);
  void append_frames(std::string_view name, const TensorView& times, const NewRows& rows,
                     std::span<const uint8_t> bytes, std::span<const int64_t> offsets);
  void end_episode();
  void abort_episode();
  void close(const std::optional<std::string_view>& provenance_json);
  void abort() noexcept;

  void check_usable() const;
  void check_episode_open() const;
  void check_writable() const;
  void check_target() const;
  void go_on_with_cache();
  const Stream* stream_before(std::string_view name) const;
  std::string in_home(const std::string& name) const { return home + "/" + name; }
  Description description_of(std::string_view name) const;
  void describe(std::string_view name, Description description);
  StreamFiles& stream_of(std::string_view name, const TensorView& times, const NewRows& rows);
  StreamFiles& add_stream(std::string_view name, const NewRows& rows);
  Stream finish_stream(StreamFiles& stream, std::map<std::string, cache::FileRecord>& files) const;
  cache::FileRecord write_file(const std::string& name, std::string_view header, const void* data, size_t size) const;
  void publish();
  void publish_generation(const cache::Manifest& manifest);

  enum class State : uint8_t { kOpen, kClosed, kAborted };

  std::mutex mutex;
  const std::string path;  // absolute
  const WriteMode mode;
  const std::string home;                 // where everything is written: PATH.partial, or the cache that is appended to
  std::optional<cache::Manifest> before;  // of the cache that is appended to, its pointers null
  int64_t generation = 0;
  std::string provenance = "{}";
  const pid_t owner = ::getpid();
  State state = State::kOpen;
  std::optional<cache::DirectoryLock> lock;

  std::optional<cache::BlockWriter> episode_lines;
  std::vector<cache::EpisodeColumn> episode_columns = cache::automatic_columns();
  int64_t episodes = 0;
  std::vector<std::unique_ptr<StreamFiles>> streams;
  ByName<StreamFiles*> by_name;
  ByName<Description> descriptions;

  std::optional<cache::EpisodeMetadata> episode;  // the open one
  size_t streams_before_episode = 0;
  bool write_failed = false;  // some of a failed append's rows may be in the files
};

Writer::Impl::Impl(const std::string& requested_path, WriteMode write_mode)
    : path(absolute_path(requested_path)),
      mode(write_mode),
      home(mode == WriteMode::kAppend ? path : path + ".partial") {
  if (mode == WriteMode::kAppend) {
    if (!is_cache(path)) throw FileError(path + ": expected a cache to append to, got none");
    lock = cache::DirectoryLock::acquire_finished(path);
    try {
      go_on_with_cache();
    } catch (...) {
      abort();
      throw;
    }
    return;
  }
  check_target();
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) throw FileError(path + ": making the directory it lies in: " + error.message());
  lock = cache::DirectoryLock::acquire(home);
  cache::remove_contents(home);
  const std::string directory = in_home(cache::kStreamsDirectory);
  if (::mkdir(directory.c_str(), 0777) != 0) cache::refuse_errno(directory, "making the directory");
  episode_lines.emplace(in_home(cache::kEpisodesFile));
}

// Puts the writer where the one that finished the cache was before its end.
void Writer::Impl::go_on_with_cache() {
  const std::string manifest_path = in_home(cache::kManifestFile);
  {
    const cache::MappedFile text(cache::open_directory(home), cache::kManifestFile, manifest_path);
    cache::Manifest manifest = cache::parse_manifest(manifest_path, text.text());
    if (manifest.version < cache::kFirstGrowingVersion) {
      throw FileError(manifest_path + ": expected a cache of schema version " +
                      std::to_string(cache::kFirstGrowingVersion) + " or later to append to, got " +
                      std::to_string(manifest.version) + ", which cannot grow: write it anew from its source");
    }
    if (manifest.generation == std::numeric_limits<int64_t>::max()) {
      throw FileError(manifest_path + ": in 'generation': expected one that another can follow, got " +
                      std::to_string(manifest.generation));
    }
    before = std::move(manifest);
  }
  remove_leftovers(home, before->files);
  generation = before->generation + 1;
  provenance = before->provenance_json;
  episodes = before->episodes;
  episode_columns = before->episode_columns;
  const auto dataset = Dataset::open(home);
  for (const Stream& stream : dataset->streams()) {
    streams.push_back(std::make_unique<StreamFiles>(stream, home, before->files));
    by_name.emplace(stream.name, streams.back().get());
    descriptions.emplace(stream.name, Description{stream.clock, stream.names, stream.attributes_json, stream.frames});
  }
  episode_lines.emplace(in_home(cache::of_generation(cache::kEpisodesFile, generation)));
  episode_lines->append(dataset->episodes_jsonl());
}

// What the cache that is appended to says of it.
const Stream* Writer::Impl::stream_before(std::string_view name) const {
  if (!before) return nullptr;
  const auto found = std::ranges::find(before->streams, name, &Stream::name);
  return found == before->streams.end() ? nullptr : &*found;
}

void Writer::Impl::check_usable() const {
  if (::getpid() != owner) throw ArgumentError(path + ": a writer cannot be used in a forked child");
  if (state != State::kOpen) {
    throw ArgumentError(path + ": expected an open writer, this one is " +
                        (state == State::kClosed ? "closed" : "aborted"));
  }
}

void Writer::Impl::check_episode_open() const {
  check_usable();
  if (!episode) throw ArgumentError(path + ": expected an open episode, got none");
}

void Writer::Impl::check_writable() const {
  check_episode_open();
  if (write_failed) throw FileError(path + ": an earlier write failed: the episode can only be aborted");
}

void Writer::Impl::check_target() const {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return;
  if (mode != WriteMode::kOverwrite) throw FileError(path + ": it exists already; overwrite=True replaces a cache");
  if (!is_cache(path)) throw FileError(path + ": expected a cache to overwrite, got something else; it stays as it is");
}

void Writer::Impl::describe_stream(std::string_view name, Clock clock, std::vector<std::string> names,
                                   std::string_view attributes_json) {
  check_usable();
  cache::check_name("stream", name);
  for (size_t i = 0; i < names.size(); ++i) {
    cache::check_name("stream '" + std::string(name) + "': names[" + std::to_string(i) + "]", names[i]);
  }
  std::string attributes = cache::check_object("stream '" + std::string(name) + "': attributes", attributes_json);
  if (const Stream* stream = stream_before(name)) {
    if (names.empty()) names = stream->names;
    if (attributes == "{}") attributes = stream->attributes_json;
    if (stream->clock == Clock::kRecorded) clock = Clock::kRecorded;
    if (names != stream->names) refuse(name, "expected the names that it has in " + path + ", or none, got others");
    if (attributes != stream->attributes_json) {
      refuse(name, "expected the attributes that it has in " + path + ", " + stream->attributes_json +
                       ", or none, got " + attributes);
    }
  }
  Description description = description_of(name);
  description.clock = clock;
  description.names = std::move(names);
  description.attributes_json = std::move(attributes);
  describe(name, std::move(description));
}

void Writer::Impl::describe_frames(std::string_view name, std::optional<double> unit_m, std::vector<double> intrinsics,
                                   std::string_view resized_json) {
  check_usable();
  cache::check_name("stream", name);
  Description description = description_of(name);
  description.frames = FrameFormat{.unit_m = unit_m, .intrinsics = std::move(intrinsics)};
  if (!resized_json.empty()) {
    description.frames->resized_json = cache::check_object("stream '" + std::string(name) + "': resized", resized_json);
  }
  if (const Stream* stream = stream_before(name); stream != nullptr && stream->frames) {
    const FrameFormat& frames = *stream->frames;
    if (description.frames->unit_m != frames.unit_m || description.frames->intrinsics != frames.intrinsics ||
        description.frames->resized_json != frames.resized_json) {
      refuse(name, "expected unit_m, intrinsics and resized that it has in " + path + ", got others");
    }
  }
  describe(name, std::move(description));
}

Description Writer::Impl::description_of(std::string_view name) const {
  const auto found = descriptions.find(name);
  return found == descriptions.end() ? Description{} : found->second;
}

void Writer::Impl::describe(std::string_view name, Description description) {
  const auto known = by_name.find(name);
  if (known != by_name.end()) {
    const StreamFiles& stream = *known->second;
    check_description(name, description, {0, stream.dtype, stream.shape, stream.frames, stream.ragged});
  }
  descriptions.insert_or_assign(std::string(name), std::move(description));
}

void Writer::Impl::begin_episode(std::string_view metadata_json) {
  check_usable();
  if (episode) throw ArgumentError(path + ": expected the open episode to end first");
  episode = cache::check_metadata(metadata_json, episode_columns);
  streams_before_episode = streams.size();
}

// The one that these rows go to, a new one where it has none; refuses rows that it cannot hold.
StreamFiles& Writer::Impl::stream_of(std::string_view name, const TensorView& times, const NewRows& rows) {
  const auto known = by_name.find(name);
  if (known == by_name.end()) {
    check_times(name, times, 0, 0);
    return add_stream(name, rows);
  }
  StreamFiles& stream = *known->second;
  check_same_rows(stream, description_of(name), rows);
  check_times(name, times, stream.episode_rows(), stream.last_ns);
  return stream;
}

StreamFiles& Writer::Impl::add_stream(std::string_view name, const NewRows& rows) {
  cache::check_name("stream", name);
  const std::string directory = cache::stream_directory(name);
  const size_t length = directory.size() - directory.rfind('/') - 1;
  if (length > kLongestFileName) {
    refuse(name,
           "expected a name of at most 255 bytes, special characters counted thrice, got " + std::to_string(length));
  }
  check_description(name, description_of(name), rows);
  const std::string full = in_home(directory);
  if (::mkdir(full.c_str(), 0777) != 0 && errno != EEXIST) cache::refuse_errno(full, "making the directory");
  streams.push_back(std::make_unique<StreamFiles>(name, rows, full, episodes));
  by_name.emplace(name, streams.back().get());
  return *streams.back();
}

void Writer::Impl::append(std::string_view name, const TensorView& times, const TensorView& values) {
  check_writable();
  check_tensors(name, times, values);
  const std::span<const int64_t> row{values.shape.data() + 1, static_cast<size_t>(values.ndim - 1)};
  StreamFiles& stream = stream_of(name, times, {times.shape[0], values.dtype, row});
  if (times.shape[0] == 0) return;

  write_failed = true;
  append_rows(stream.times, times, kInt64Bytes);
  append_rows(stream.values, values, stream.value_bytes());
  write_failed = false;
  stream.count_rows(times);
}

void Writer::Impl::append_ragged(std::string_view name, const TensorView& times, const TensorView& values,
                                 const TensorView& offsets, Ragged ragged) {
  check_writable();
  const std::vector<int64_t> ends = check_ragged(name, times, values, offsets, ragged);
  if (ragged == Ragged::kText) check_text(name, values, ends);
  const std::span<const int64_t> element{values.shape.data() + 1, static_cast<size_t>(values.ndim - 1)};
  StreamFiles& stream = stream_of(name, times, {times.shape[0], values.dtype, element, {}, ragged});
  if (times.shape[0] == 0) return;

  write_failed = true;
  append_rows(stream.times, times, kInt64Bytes);
  stream.append_offsets(ends);
  append_rows(stream.values, values, stream.value_bytes());
  write_failed = false;
  stream.count_rows(times);
}

void Writer::Impl::append_frames(std::string_view name, const TensorView& times, const NewRows& rows,
                                 std::span<const uint8_t> bytes, std::span<const int64_t> offsets) {
  check_writable();
  check_frames(name, times, rows, bytes, offsets);
  StreamFiles& stream = stream_of(name, times, rows);
  if (rows.count == 0) return;

  write_failed = true;
  append_rows(stream.times, times, kInt64Bytes);
  if (stream.has_offsets()) stream.append_offsets(offsets);
  stream.values.append(bytes.data(), bytes.size());
  write_failed = false;
  stream.count_rows(times);
}

void Writer::Impl::end_episode() {
  check_writable();
  std::optional<std::pair<int64_t, int64_t>> span_ns;
  for (const auto& stream : streams) {
    if (stream->episode_rows() == 0) continue;
    if (!span_ns) span_ns.emplace(stream->first_ns, stream->last_ns);
    span_ns->first = std::min(span_ns->first, stream->first_ns);
    span_ns->second = std::max(span_ns->second, stream->last_ns);
  }
  episode_lines->append(cache::episode_line(episodes, span_ns, episode->json));
  for (const auto& stream : streams) stream->end_episode();
  episode_columns = std::move(episode->columns);
  episode.reset();
  ++episodes;
}

void Writer::Impl::abort_episode() {
  check_episode_open();
  while (streams.size() > streams_before_episode) {
    const std::string name = streams.back()->name;
    std::error_code error;
    fs::remove_all(in_home(cache::stream_directory(name)), error);
    by_name.erase(name);
    streams.pop_back();
  }
  for (const auto& stream : streams) stream->truncate();
  write_failed = false;
  episode.reset();
}

cache::FileRecord Writer::Impl::write_file(const std::string& name, std::string_view header, const void* data,
                                           size_t size) const {
  cache::BlockWriter file(in_home(name));
  file.append(header);
  file.append(data, size);
  return file.finish();
}

// Ends the files that grow, and computes from them what is stored beside them.
Stream Writer::Impl::finish_stream(StreamFiles& files, std::map<std::string, cache::FileRecord>& records) const {
  const std::string directory = cache::stream_directory(files.name) + "/";
  files.finish(
      [&](const char* name, cache::FileRecord record) { records.emplace(directory + name, std::move(record)); });

  const cache::FileDescriptor root = cache::open_directory(home);
  const auto map = [&](const std::string& name) { return cache::MappedFile(root, name, in_home(name)); };
  const auto write_array = [&](const char* name, const std::string& header, const void* data, size_t size) {
    const std::string file = directory + cache::of_generation(name, generation);
    records.emplace(file, write_file(file, header, data, size));
  };
  const cache::MappedFile times = map(directory + cache::kTimeFile);
  Stream stream;
  stream.name = files.name;
  stream.dtype = files.dtype;
  stream.shape = files.shape;
  stream.rows = files.rows;
  stream.findings = cache::clock_findings(reinterpret_cast<const int64_t*>(times.bytes().data() + files.times_begin),
                                          files.row_offsets);
  const Description described = description_of(files.name);
  stream.clock = described.clock;
  stream.names = described.names;
  stream.attributes_json = described.attributes_json;
  stream.ragged = files.ragged;
  if (files.frames) stream.frames = described.of(*files.frames);
  if (stream.has_statistics()) {
    const cache::MappedFile values = map(directory + cache::kValuesFile);
    const cache::ValueStatistics statistics =
        cache::value_statistics(values.bytes().data() + files.values_begin, files.dtype, files.rows, files.features);
    stream.findings.nan_values = statistics.nan_values;
    stream.findings.infinite_values = statistics.infinite_values;
    stream.findings.constant_features = statistics.constant_features;
    write_array(cache::kStatsFile, cache::npy_header(DType::kFloat64, cache::kStatistics, files.shape),
                statistics.table.data(), statistics.table.size() * sizeof(double));
  }
  const std::vector<int64_t>& offsets = files.row_offsets;
  write_array(cache::kRowOffsetsFile, cache::npy_header(DType::kInt64, std::ssize(offsets), {}), offsets.data(),
              offsets.size() * sizeof(int64_t));
  cache::sync_directory(in_home(directory));
  return stream;
}

void Writer::Impl::close(const std::optional<std::string_view>& provenance_json) {
  if (state == State::kClosed) return;
  check_usable();
  if (episode) throw ArgumentError(path + ": expected the open episode to end first");
  cache::Manifest manifest;
  manifest.provenance_json = cache::check_object("provenance", provenance_json.value_or(provenance));
  if (!before) check_target();
  manifest.generation = generation;
  manifest.episodes = episodes;
  manifest.episode_columns = episode_columns;
  for (const auto& stream : streams) manifest.streams.push_back(finish_stream(*stream, manifest.files));
  manifest.files.emplace(cache::of_generation(cache::kEpisodesFile, generation), episode_lines->finish());
  write_file(before ? cache::kNewManifestFile : cache::kManifestFile, cache::manifest_text(manifest), nullptr, 0);
  cache::sync_directory(in_home(cache::kStreamsDirectory));
  cache::sync_directory(home);
  if (before) {
    publish_generation(manifest);
  } else {
    publish();
  }
}

// The cache is the old one or the new one at every moment, by the manifest alone.
void Writer::Impl::publish_generation(const cache::Manifest& manifest) {
  const std::string name = in_home(cache::kManifestFile);
  if (::rename(in_home(cache::kNewManifestFile).c_str(), name.c_str()) != 0) {
    cache::refuse_errno(name, "giving the manifest its name");
  }
  state = State::kClosed;
  cache::sync_directory(home);
  remove_leftovers(home, manifest.files);
  ::unlink(in_home(cache::kLockFile).c_str());
  lock.reset();
}

// What PATH names is whole at every moment: the old cache, nothing, or the new one.
void Writer::Impl::publish() {
  check_target();
  std::error_code error;
  if (!fs::exists(path, error)) {
    if (::renameat2(AT_FDCWD, home.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) != 0) {
      if (errno != EINVAL && errno != ENOSYS) cache::refuse_errno(path, "giving the finished cache its name");
      if (::rename(home.c_str(), path.c_str()) != 0) cache::refuse_errno(path, "giving the finished cache its name");
    }
  } else {
    // The old cache is locked before it takes the name that other writers look at.
    const auto old_lock = cache::DirectoryLock::acquire_finished(path);
    std::string old = home;
    if (::renameat2(AT_FDCWD, home.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) != 0) {
      if (errno != EINVAL && errno != ENOSYS) cache::refuse_errno(path, "replacing the old cache");
      // A file system that cannot exchange two names, such as NFS, has none of this name for a moment.
      old = path + ".replaced";
      if (::rename(path.c_str(), old.c_str()) != 0) cache::refuse_errno(old, "moving the old cache out of the way");
      if (::rename(home.c_str(), path.c_str()) != 0) {
        const int reason = errno;
        ::rename(old.c_str(), path.c_str());
        errno = reason;
        cache::refuse_errno(path, "replacing the old cache");
      }
    }
    cache::remove_directory(old);
  }
  state = State::kClosed;
  ::unlink((path + "/" + cache::kLockFile).c_str());
  lock.reset();
  cache::sync_directory(fs::path(path).parent_path().string());
}

void Writer::Impl::abort() noexcept {
  if (state != State::kOpen || ::getpid() != owner) return;
  state = State::kAborted;
  if (mode == WriteMode::kAppend) {
    for (const auto& stream : streams) {
      try {
        if (stream->finished_end) stream->put_back();
      } catch (const std::exception&) {
        // The next one that appends does it.
      }
    }
    if (before) remove_leftovers(home, before->files);
    ::unlink(in_home(cache::kLockFile).c_str());
  } else {
    cache::remove_directory(home);
  }
  lock.reset();
}

Writer::Writer(const std::string& path, WriteMode mode) : impl_(std::make_unique<Impl>(path, mode)) {}

Writer::~Writer() { impl_->abort(); }

void Writer::describe_stream(std::string_view stream, Clock clock, std::vector<std::string> names,
                             std::string_view attributes_json) {
  const std::lock_guard<std::mutex> guard(impl_->mutex);
  impl_->describe_stream(stream, clock, std::move(names), attributes_json);
}

void Writer::describe_frames(std::string_view stream, std::optional<double> unit_m, std::vector<double> intrinsics,
                             std::string_view resized_json) {
  const std::lock_guard<std::mutex> guard(impl_->mutex);
  impl_->describe_frames(stream, unit_m, std::move(intrinsics), resized_json);
}

void Writer::begin_episode(std::string_view metadata_json) {
  const std::lock_guard<std::mutex> guard(impl_->mutex);
  impl_->begin_episode(metadata_json);
}

void Writer::append(std::string_view stream, const TensorView& times, const TensorView& values) {
  const std::lock_guard<std::mutex> guard(impl_->mutex);
  impl_->append(stream, times, values);
}

void Writer::append_ragged(std::string_view stream, const TensorView& times, const TensorView& values,
                           const TensorView& offsets, Ragged ragged) {
  const std::lock_guard<std::mutex> guard(impl_->mutex);
  impl_->append_ragged(stream, times, values, offsets, ragged);
}

void Writer::append_frames(std::string_view stream, const TensorView& times, Codec codec, ColorSpace color_space,
                           DType dtype, std::span<const int64_t> shape, std::span<const uint8_t> bytes,
                           std::span<const int64_t> offsets) {
  const std::lock_guard<std::mutex> guard(impl_->mutex);
  const int64_t count = times.ndim == 1 ? times.shape[0] : 0;
  impl_->append_frames(stream, times, {count, dtype, shape, FrameFormat{.codec = codec, .color_space = color_space}},
                       bytes, offsets);
}

void Writer::end_episode() {
  const std::lock_guard<std::mutex> guard(impl_->mutex);
  impl_->end_episode();
}

void Writer::abort_episode() {
  const std::lock_guard<std::mutex> guard(impl_->mutex);
  impl_->abort_episode();
}

void Writer::close(std::optional<std::string_view> provenance_json) {
  const std::lock_guard<std::mutex> guard(impl_->mutex);
  impl_->close(provenance_json);
}

void Writer::abort() noexcept {
  const std::lock_guard<std::mutex> guard(impl_->mutex);
  impl_->abort();
}

const std::string& Writer::provenance_json() const { return impl_->provenance; }

int64_t Writer::num_episodes() const {
  const std::lock_guard<std::mutex> guard(impl_->mutex);
  return impl_->episodes;
}

}  // namespace robocache
