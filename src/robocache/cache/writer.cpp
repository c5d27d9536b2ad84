#include "robocache/cache/writer.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "robocache/cache/append.hpp"
#include "robocache/cache/block_writer.hpp"
#include "robocache/cache/check_rows.hpp"
#include "robocache/cache/directory_lock.hpp"
#include "robocache/cache/file.hpp"
#include "robocache/cache/manifest.hpp"
#include "robocache/cache/npy.hpp"
#include "robocache/cache/publish.hpp"
#include "robocache/cache/statistics.hpp"
#include "robocache/cache/stream_files.hpp"
#include "robocache/cache/write_behind.hpp"
#include "robocache/core/error.hpp"
#include "robocache/core/thread_pool.hpp"

namespace robocache {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestFileName = 255;

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

template <class Value>
using ByName = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

[[noreturn]] void refuse_names(std::string_view stream, const std::string& owner,
                               const std::vector<std::string>& expected, const std::vector<std::string>& got) {
  const auto i = static_cast<size_t>(std::ranges::mismatch(expected, got).in1 - expected.begin());
  const auto name = [i](const std::vector<std::string>& names) {
    return i < names.size() ? "'" + names[i] + "'" : "nothing";
  };
  cache::refuse_stream(stream, "expected the names that ", owner, ", or none, got names[", i, "] ", name(got), " for ",
                       name(expected),
                       "; write other features to another stream, or to another cache in a list of Sources");
}

}  // namespace

struct Writer::Impl {
  Impl(const std::string& requested_path, WriteMode write_mode);

  void abort() noexcept;

  // A forked child does not lock, because the thread that holds the lock may not exist there. Its calls are refused or
  // do nothing.
  std::unique_lock<std::mutex> locked() {
    return ::getpid() == owner ? std::unique_lock(mutex) : std::unique_lock(mutex, std::defer_lock);
  }

  void check_usable() const;
  void check_episode_open() const;
  void check_writable();
  void check_target() const;
  void restore_state(bool verify);
  const Stream* stream_before(std::string_view name) const;
  std::string in_home(const std::string& name) const { return home + "/" + name; }
  cache::Description description_of(std::string_view name) const;
  void describe(std::string_view name, cache::Description description);
  cache::StreamFiles& stream_of(std::string_view name, const TensorView& times, const cache::NewRows& rows);
  cache::StreamFiles& add_stream(std::string_view name, const cache::NewRows& rows);
  void add_rows(std::string_view name, const TensorView& times, const cache::NewRows& rows,
                std::span<const int64_t> offsets, const TensorView& values);
  // A clock, which streams may share, and its findings.
  struct FinishedClock {
    const cache::StreamFiles& files;
    StreamFindings findings;
  };

  Stream finish_stream(cache::StreamFiles& files, std::map<std::string, cache::FileRecord>& records,
                       std::vector<FinishedClock>& clocks) const;
  StreamFindings clock_findings(const cache::StreamFiles& files,
                                const std::map<std::string, cache::FileRecord>& records,
                                std::vector<FinishedClock>& clocks) const;
  cache::FileRecord write_file(const std::string& name, std::string_view header, const void* data, size_t size) const;
  void end_episode();
  void publish_all(std::optional<std::string_view> provenance_json);
  void publish(const cache::Manifest& manifest);
  void unlock();

  enum class State : uint8_t { kOpen, kClosed, kAborted };

  std::mutex mutex;
  const std::string path;                 // absolute
  WriteMode mode;                         // kAppend after a commit
  std::string home;                       // directory of all files: PATH.partial, or the existing cache when appending
  std::optional<cache::Manifest> before;  // the manifest of the existing cache when appending, with null pointers
  int64_t generation = 0;
  std::string provenance = "{}";
  const pid_t owner = ::getpid();
  State state = State::kOpen;
  std::optional<cache::DirectoryLock> lock;

  std::optional<cache::BlockWriter> episode_lines;
  std::vector<cache::EpisodeColumn> episode_columns = cache::automatic_columns();
  int64_t episodes = 0;
  std::vector<std::unique_ptr<cache::StreamFiles>> streams;
  std::unique_ptr<cache::WriteBehind> behind;  // destroyed before the streams; null if there is only one thread
  ByName<cache::StreamFiles*> by_name;
  ByName<cache::Description> descriptions;

  std::optional<cache::EpisodeMetadata> episode;  // the open one
  size_t streams_before_episode = 0;
  int64_t lines_before_episode = 0;  // bytes
  bool episode_committed = false;    // whether a part of the open episode is in the cache
  bool write_failed = false;         // the files may end with a part of the last write
  bool sync_failed = false;          // the disk lost data, which no later call would report
};

Writer::Impl::Impl(const std::string& requested_path, WriteMode write_mode)
    : path(cache::absolute_path(requested_path)),
      mode(write_mode),
      home(mode == WriteMode::kAppend ? path : path + ".partial"),
      behind(num_threads() > 1 ? std::make_unique<cache::WriteBehind>() : nullptr) {
  if (mode == WriteMode::kAppend) {
    if (!cache::is_cache(path)) throw FileError(path, ": expected a cache to append to, got none");
    lock = cache::DirectoryLock::acquire_finished(path);
  } else {
    check_target();
    std::error_code error;
    fs::create_directories(fs::path(path).parent_path(), error);
    if (error) throw FileError(path, ": creating its parent directory: ", error.message());
    lock = cache::DirectoryLock::acquire(home);
  }
  try {
    if (mode == WriteMode::kAppend) {
      restore_state(true);
    } else {
      cache::remove_contents(home);
      const std::string directory = in_home(cache::kStreamsDirectory);
      if (::mkdir(directory.c_str(), 0777) != 0) cache::refuse_errno(directory, "creating the directory");
      episode_lines.emplace(in_home(cache::kEpisodesFile));
    }
  } catch (...) {
    abort();
    throw;
  }
}

// Restores the state that the cache's writer had before its close().
void Writer::Impl::restore_state(bool verify) {
  before = cache::appendable_manifest(home);
  cache::remove_leftovers(home, before->files);
  generation = before->generation + 1;
  provenance = before->provenance_json;
  episodes = before->episodes;
  const auto dataset = Dataset::open(home);
  if (verify) {
    dataset->verify_for_append();  // else new statistics of all rows would hide damage
    episode_columns = before->episode_columns;
    cache::find_inexact(dataset->episodes_jsonl(), episode_columns);
  }
  for (const Stream& stream : dataset->streams()) {
    streams.push_back(std::make_unique<cache::StreamFiles>(stream, home, before->files, behind.get()));
    by_name.emplace(stream.name, streams.back().get());
    descriptions.emplace(stream.name,
                         cache::Description{stream.clock, stream.names, stream.attributes_json, stream.frames});
  }
  episode_lines.emplace(in_home(cache::file_in_generation(cache::kEpisodesFile, generation)));
  episode_lines->append(dataset->episodes_jsonl());
}

// Returns the stream `name` of the existing cache when appending, or null.
const Stream* Writer::Impl::stream_before(std::string_view name) const {
  if (!before) return nullptr;
  const auto entry = std::ranges::find(before->streams, name, &Stream::name);
  return entry == before->streams.end() ? nullptr : &*entry;
}

void Writer::Impl::check_usable() const {
  if (::getpid() != owner) throw ArgumentError(path, ": a writer cannot be used in a forked child");
  if (state != State::kOpen) {
    throw ArgumentError(path, ": expected an open writer, this one is ",
                        (state == State::kClosed ? "closed" : "aborted"));
  }
  if (sync_failed) throw FileError(path, ": the files could not be made durable: the writer can only be aborted");
}

void Writer::Impl::check_episode_open() const {
  check_usable();
  if (!episode) throw ArgumentError(path, ": expected an open episode, got none");
}

void Writer::Impl::check_writable() {
  check_episode_open();
  if (write_failed) throw FileError(path, ": an earlier write failed: the episode can only be aborted");
  write_failed = true;
  if (behind != nullptr) behind->check();
  write_failed = false;
}

void Writer::Impl::check_target() const { cache::check_target(path, mode == WriteMode::kOverwrite); }

void Writer::describe_stream(std::string_view name, Clock clock, std::vector<std::string> names,
                             std::string_view attributes_json) {
  const auto guard = impl_->locked();
  impl_->check_usable();
  cache::check_name("stream", name);
  for (size_t i = 0; i < names.size(); ++i) {
    cache::check_name("stream '" + std::string(name) + "': names[" + std::to_string(i) + "]", names[i]);
  }
  std::string attributes = cache::check_object("stream '" + std::string(name) + "': attributes", attributes_json);
  if (const Stream* stream = impl_->stream_before(name)) {
    if (names.empty()) names = stream->names;
    if (attributes == "{}") attributes = stream->attributes_json;
    if (stream->clock == Clock::kRecorded) clock = Clock::kRecorded;
    if (names != stream->names) refuse_names(name, "it has in " + impl_->path, stream->names, names);
    if (!cache::are_equal(attributes, stream->attributes_json)) {
      cache::refuse_stream(name, "expected the attributes that it has in " + impl_->path + ", " +
                                     stream->attributes_json + ", or none, got " + attributes);
    }
  } else if (impl_->by_name.contains(name)) {  // the appended rows would get the new description, too
    const cache::Description earlier = impl_->description_of(name);
    if (names.empty()) names = earlier.names;
    if (attributes == "{}") attributes = earlier.attributes_json;
    if (!earlier.names.empty() && names != earlier.names) {
      refuse_names(name, "its appended rows have", earlier.names, names);
    }
    if (earlier.attributes_json != "{}" && !cache::are_equal(attributes, earlier.attributes_json)) {
      cache::refuse_stream(name, "expected the attributes that its appended rows have, " + earlier.attributes_json +
                                     ", or none, got " + attributes);
    }
  }
  cache::Description description = impl_->description_of(name);
  description.clock = clock;
  description.names = std::move(names);
  description.attributes_json = std::move(attributes);
  impl_->describe(name, std::move(description));
}

void Writer::describe_frames(std::string_view name, std::optional<double> unit_m, std::vector<double> intrinsics,
                             std::string_view resized_json) {
  const auto guard = impl_->locked();
  impl_->check_usable();
  cache::check_name("stream", name);
  cache::Description description = impl_->description_of(name);
  const std::optional<FrameFormat> earlier = description.frames;
  description.frames = FrameFormat{.unit_m = unit_m, .intrinsics = std::move(intrinsics)};
  if (!resized_json.empty()) {
    description.frames->resized_json = cache::check_object("stream '" + std::string(name) + "': resized", resized_json);
  }
  const auto differs_from = [&](const FrameFormat& frames) {
    return description.frames->unit_m != frames.unit_m || description.frames->intrinsics != frames.intrinsics ||
           description.frames->resized_json != frames.resized_json;
  };
  if (const Stream* stream = impl_->stream_before(name);
      stream != nullptr && stream->frames && differs_from(*stream->frames)) {
    cache::refuse_stream(name,
                         "expected unit_m, intrinsics and resized that it has in " + impl_->path + ", got others");
  }
  // The frames of earlier episodes would get the new unit, too.
  if (earlier && impl_->by_name.contains(name) && differs_from(*earlier)) {
    cache::refuse_stream(name,
                         "expected unit_m, intrinsics and resized that its appended frames have, got others; frames of "
                         "another camera need a stream of their own");
  }
  impl_->describe(name, std::move(description));
}

cache::Description Writer::Impl::description_of(std::string_view name) const {
  const auto entry = descriptions.find(name);
  return entry == descriptions.end() ? cache::Description{} : entry->second;
}

void Writer::Impl::describe(std::string_view name, cache::Description description) {
  const auto entry = by_name.find(name);
  if (entry != by_name.end()) {
    const cache::StreamFiles& stream = *entry->second;
    cache::check_description(name, description, {0, stream.dtype, stream.shape, stream.frames, stream.ragged});
  }
  descriptions.insert_or_assign(std::string(name), std::move(description));
}

void Writer::begin_episode(std::string_view metadata_json) {
  const auto guard = impl_->locked();
  impl_->check_usable();
  if (impl_->episode) throw ArgumentError(impl_->path, ": expected the open episode to end first");
  impl_->episode = cache::check_metadata(metadata_json, impl_->episode_columns);
  impl_->streams_before_episode = impl_->streams.size();
  impl_->lines_before_episode = impl_->episode_lines->size();
  impl_->episode_committed = false;
}

// Returns the stream for these rows; creates it if it is new. Refuses rows that do not fit it.
cache::StreamFiles& Writer::Impl::stream_of(std::string_view name, const TensorView& times,
                                            const cache::NewRows& rows) {
  const auto entry = by_name.find(name);
  if (entry == by_name.end()) {
    cache::check_times(name, times, 0, 0);
    return add_stream(name, rows);
  }
  cache::StreamFiles& stream = *entry->second;
  cache::check_same_rows(stream, description_of(name), rows);
  cache::check_times(name, times, stream.episode_rows(), stream.last_ns);
  return stream;
}

cache::StreamFiles& Writer::Impl::add_stream(std::string_view name, const cache::NewRows& rows) {
  cache::check_name("stream", name);
  const std::string directory = cache::stream_directory(name);
  const size_t length = directory.size() - directory.rfind('/') - 1;
  if (length > kLongestFileName) {
    cache::refuse_stream(name,
                         "expected a name of at most 255 bytes, where a special character counts as 3 bytes, got " +
                             std::to_string(length));
  }
  cache::check_description(name, description_of(name), rows);
  const std::string full_path = in_home(directory);
  if (::mkdir(full_path.c_str(), 0777) != 0) {
    if (errno != EEXIST) cache::refuse_errno(full_path, "creating the directory");
    // The directory remains from an aborted episode, or it belongs to a stream whose name this file system treats as
    // equal, such as one in another case.
    for (const auto& other : streams) {
      std::error_code error;
      if (!fs::equivalent(full_path, in_home(cache::stream_directory(other->name)), error)) continue;
      cache::refuse_stream(name, "expected a name that this file system tells from '" + other->name + "'");
    }
  }
  streams.push_back(std::make_unique<cache::StreamFiles>(name, rows, full_path, episodes, behind.get()));
  by_name.emplace(name, streams.back().get());
  return *streams.back();
}

void Writer::append(std::string_view name, const TensorView& times, const TensorView& values) {
  const auto guard = impl_->locked();
  impl_->check_writable();
  cache::check_tensors(name, times, values);
  const std::span<const int64_t> row{values.shape.data() + 1, static_cast<size_t>(values.ndim - 1)};
  impl_->add_rows(name, times, {times.shape[0], values.dtype, row}, {}, values);
}

void Writer::append_ragged(std::string_view name, const TensorView& times, const TensorView& values,
                           const TensorView& offsets, Ragged ragged) {
  const auto guard = impl_->locked();
  impl_->check_writable();
  const std::vector<int64_t> checked = cache::check_ragged(name, times, values, offsets, ragged);
  const std::span<const int64_t> element{values.shape.data() + 1, static_cast<size_t>(values.ndim - 1)};
  impl_->add_rows(name, times, {times.shape[0], values.dtype, element, {}, ragged}, checked, values);
}

void Writer::append_frames(std::string_view name, const TensorView& times, Codec codec, ColorSpace color_space,
                           DType dtype, std::span<const int64_t> shape, std::span<const uint8_t> bytes,
                           std::span<const int64_t> offsets) {
  const auto guard = impl_->locked();
  impl_->check_writable();
  const int64_t count = times.ndim == 1 ? times.shape[0] : 0;
  const cache::NewRows rows{count, dtype, shape, FrameFormat{.codec = codec, .color_space = color_space}};
  cache::check_frames(name, times, rows, bytes, offsets);
  auto* data = const_cast<uint8_t*>(bytes.data());  // it is only read
  impl_->add_rows(name, times, rows, offsets, TensorView::contiguous(data, DType::kUInt8, {std::ssize(bytes)}));
}

// Adds rows to their stream. The rows themselves are already checked; their stream may still refuse them.
void Writer::Impl::add_rows(std::string_view name, const TensorView& times, const cache::NewRows& rows,
                            std::span<const int64_t> offsets, const TensorView& values) {
  cache::StreamFiles& stream = stream_of(name, times, rows);
  if (rows.count == 0) return;
  write_failed = true;
  stream.append(times, offsets, values);
  write_failed = false;
}

void Writer::end_episode(std::optional<std::string_view> metadata_json) {
  const auto guard = impl_->locked();
  impl_->check_writable();
  if (metadata_json) impl_->episode = cache::check_metadata(*metadata_json, impl_->episode_columns);
  impl_->end_episode();
}

void Writer::Impl::end_episode() {
  std::optional<std::pair<int64_t, int64_t>> span_ns;
  for (const auto& stream : streams) {
    if (stream->episode_rows() == 0) continue;
    if (!span_ns) span_ns.emplace(stream->first_ns, stream->last_ns);
    span_ns->first = std::min(span_ns->first, stream->first_ns);
    span_ns->second = std::max(span_ns->second, stream->last_ns);
  }
  write_failed = true;
  episode_lines->append(cache::episode_line(episodes, span_ns, episode->json));
  write_failed = false;
  for (const auto& stream : streams) stream->end_episode();
  episode_columns = std::move(episode->columns);
  episode.reset();
  ++episodes;
}

void Writer::abort_episode() {
  const auto guard = impl_->locked();
  impl_->check_episode_open();
  if (impl_->episode_committed) {
    impl_->check_writable();
    impl_->end_episode();
    return;
  }
  while (impl_->streams.size() > impl_->streams_before_episode) {
    const std::string name = impl_->streams.back()->name;
    impl_->streams.back()->forget_waiting();
    std::error_code error;
    fs::remove_all(impl_->in_home(cache::stream_directory(name)), error);
    impl_->by_name.erase(name);
    impl_->streams.pop_back();
  }
  for (const auto& stream : impl_->streams) stream->truncate();
  impl_->episode_lines->truncate(impl_->lines_before_episode);
  impl_->write_failed = false;
  impl_->episode.reset();
}

cache::FileRecord Writer::Impl::write_file(const std::string& name, std::string_view header, const void* data,
                                           size_t size) const {
  cache::BlockWriter file(in_home(name));
  file.append(header);
  file.append(data, size);
  return file.finish();
}

// Computes the findings of the stream's clock. First looks for an equal clock in `clocks`, and adds the clock if there
// is none.
StreamFindings Writer::Impl::clock_findings(const cache::StreamFiles& files,
                                            const std::map<std::string, cache::FileRecord>& records,
                                            std::vector<FinishedClock>& clocks) const {
  const cache::FileDescriptor root = cache::open_directory(home);
  const auto name_of = [](const cache::StreamFiles& stream) {
    return cache::stream_directory(stream.name) + "/" + cache::kTimeFile;
  };
  const auto map = [&](const std::string& name) { return cache::MappedFile(root, name, in_home(name)); };
  const cache::MappedFile times = map(name_of(files));
  for (const FinishedClock& clock : clocks) {
    if (clock.files.row_offsets != files.row_offsets) continue;
    if (records.at(name_of(clock.files)).crc32 != records.at(name_of(files)).crc32) continue;
    if (map(name_of(clock.files)).text() == times.text()) return clock.findings;
  }
  const auto* time_ns = reinterpret_cast<const int64_t*>(times.bytes().data() + files.times_begin);
  clocks.push_back({files, cache::clock_findings(time_ns, files.row_offsets, [&] { times.release_pages(); })});
  return clocks.back().findings;
}

// Finishes the files that grow, and computes the files stored beside them.
Stream Writer::Impl::finish_stream(cache::StreamFiles& files, std::map<std::string, cache::FileRecord>& records,
                                   std::vector<FinishedClock>& clocks) const {
  const std::string directory = cache::stream_directory(files.name) + "/";
  files.finish(
      [&](const char* name, cache::FileRecord record) { records.emplace(directory + name, std::move(record)); });

  const cache::FileDescriptor root = cache::open_directory(home);
  const auto map = [&](const std::string& name) { return cache::MappedFile(root, name, in_home(name)); };
  const auto write_array = [&](const char* name, const std::string& header, const void* data, size_t size) {
    const std::string file = directory + cache::file_in_generation(name, generation);
    records.emplace(file, write_file(file, header, data, size));
  };
  Stream stream;
  stream.name = files.name;
  stream.dtype = files.dtype;
  stream.shape = files.shape;
  stream.rows = files.rows;
  stream.findings = clock_findings(files, records, clocks);
  const cache::Description description = description_of(files.name);
  stream.clock = description.clock;
  stream.names = description.names;
  stream.attributes_json = description.attributes_json;
  stream.ragged = files.ragged;
  if (files.frames) stream.frames = description.with_codec_of(*files.frames);
  if (stream.has_statistics()) {
    const cache::MappedFile values = map(directory + cache::kValuesFile);
    const cache::ValueStatistics statistics =
        cache::value_statistics(values.bytes().data() + files.values_begin, files.dtype, files.rows, files.features,
                                [&] { values.release_pages(); });
    stream.findings.nan_values = statistics.nan_values;
    stream.findings.infinite_values = statistics.infinite_values;
    stream.findings.constant_features = statistics.constant_features;
    write_array(cache::kStatsFile, cache::npy_header(DType::kFloat64, cache::kStatistics, files.shape),
                statistics.table.data(), statistics.table.size() * sizeof(double));
  }
  const std::vector<int64_t>& offsets = files.row_offsets;
  write_array(cache::kRowOffsetsFile, cache::npy_header(DType::kInt64, std::ssize(offsets), {}), offsets.data(),
              offsets.size() * sizeof(int64_t));
  return stream;
}

void Writer::close(std::optional<std::string_view> provenance_json) {
  const auto guard = impl_->locked();
  if (impl_->state == Impl::State::kClosed) return;
  impl_->check_usable();
  if (impl_->episode) throw ArgumentError(impl_->path, ": expected the open episode to end first");
  impl_->publish_all(provenance_json);
  impl_->unlock();
}

void Writer::commit(std::optional<std::string_view> provenance_json) {
  const auto guard = impl_->locked();
  impl_->check_usable();
  std::optional<cache::EpisodeMetadata> open_episode = impl_->episode;
  std::vector<std::pair<int64_t, int64_t>> spans_ns;  // for each stream, the first and last stamp in the open episode
  if (open_episode) {
    impl_->check_writable();
    for (const auto& stream : impl_->streams) spans_ns.emplace_back(stream->first_ns, stream->last_ns);
    impl_->end_episode();
  }
  impl_->publish_all(provenance_json);
  // From now on the writer appends to that cache.
  impl_->mode = WriteMode::kAppend;
  impl_->home = impl_->path;
  impl_->by_name.clear();
  impl_->streams.clear();
  impl_->restore_state(false);
  impl_->state = Impl::State::kOpen;
  if (!open_episode) return;
  impl_->episode = std::move(open_episode);
  impl_->episode_committed = true;
  impl_->episode_lines->truncate(impl_->lines_before_episode);
  --impl_->episodes;
  for (size_t i = 0; i < spans_ns.size(); ++i) {
    impl_->streams[i]->reopen_episode(spans_ns[i].first, spans_ns[i].second);
  }
}

// Makes all files durable and publishes the cache under its name. Keeps the lock.
void Writer::Impl::publish_all(std::optional<std::string_view> provenance_json) {
  cache::Manifest manifest;
  manifest.provenance_json = cache::check_object("provenance", provenance_json.value_or(provenance));
  if (!before) check_target();
  manifest.generation = generation;
  manifest.episodes = episodes;
  manifest.episode_columns = episode_columns;
  std::vector<FinishedClock> clocks;
  for (const auto& stream : streams) manifest.streams.push_back(finish_stream(*stream, manifest.files, clocks));
  manifest.files.emplace(cache::file_in_generation(cache::kEpisodesFile, generation), episode_lines->finish());
  std::vector<std::string> paths{in_home(cache::kStreamsDirectory)};
  for (const auto& [name, record] : manifest.files) paths.push_back(in_home(name));
  for (const Stream& stream : manifest.streams) paths.push_back(in_home(cache::stream_directory(stream.name)));
  sync_failed = true;
  cache::make_durable(paths);
  sync_failed = false;
  const char* const manifest_file = before ? cache::kNewManifestFile : cache::kManifestFile;
  write_file(manifest_file, cache::manifest_text(manifest), nullptr, 0);
  cache::make_durable(in_home(manifest_file));
  cache::make_durable(home);
  publish(manifest);
}

void Writer::Impl::publish(const cache::Manifest& manifest) {
  if (before) {
    cache::replace_manifest(home);
    state = State::kClosed;
    cache::make_durable(home);
    cache::remove_leftovers(home, manifest.files);
    return;
  }
  check_target();
  cache::publish(home, path);
  state = State::kClosed;
  cache::make_durable(fs::path(path).parent_path().string());
}

void Writer::Impl::unlock() {
  ::unlink((path + "/" + cache::kLockFile).c_str());
  lock.reset();
}

void Writer::Impl::abort() noexcept {
  if (state != State::kOpen || ::getpid() != owner) return;
  state = State::kAborted;
  if (mode == WriteMode::kAppend) {
    for (const auto& stream : streams) {
      try {
        stream->restore();
      } catch (const std::exception&) {
        // The next writer that appends removes the rows.
      }
    }
    behind.reset();
    if (before) cache::remove_leftovers(home, before->files);
    ::unlink(in_home(cache::kLockFile).c_str());
  } else {
    behind.reset();
    cache::remove_directory(home);
  }
  lock.reset();
}

Writer::Writer(const std::string& path, WriteMode mode) : impl_(std::make_unique<Impl>(path, mode)) {}

Writer::~Writer() {
  impl_->abort();
  if (::getpid() == impl_->owner) return;
  // A forked child has no writer thread, locks may be held, and data may be half changed: it leaves queue and streams as they are.
  (void)impl_->behind.release();
  for (auto& stream : impl_->streams) (void)stream.release();
}

void Writer::abort() noexcept {
  const auto guard = impl_->locked();
  impl_->abort();
}

const std::string& Writer::provenance_json() const { return impl_->provenance; }

int64_t Writer::num_episodes() const {
  const auto guard = impl_->locked();
  return impl_->episodes;
}

}  // namespace robocache
