#include "robocache/cache/dataset.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <utility>

#include "robocache/cache/block_writer.hpp"
#include "robocache/cache/crc32.hpp"
#include "robocache/cache/file.hpp"
#include "robocache/cache/manifest.hpp"
#include "robocache/cache/npy.hpp"
#include "robocache/cache/statistics.hpp"
#include "robocache/core/error.hpp"
#include "robocache/core/thread_pool.hpp"

namespace robocache {
namespace {

// Each attempt after the first means that another cache took the name in the meantime.
constexpr int kOpenTries = 100;

struct File {
  cache::MappedFile mapping;
  cache::FileRecord record;
  bool grows = false;        // may be longer than its record, and its header may give more rows
  int64_t header_bytes = 0;  // in a file that grows: the bytes without a checksum

  // Returns the bytes that belong to the opened cache.
  std::span<const std::byte> bytes() const { return mapping.bytes().first(static_cast<size_t>(record.bytes)); }
};

// A member stays empty if the stream has no such file.
struct StreamMapping {
  File times, values, blob_offsets, row_offsets, stats;
};

// Returns the bytes [begin, end) that a block's checksum covers.
std::array<int64_t, 2> block_of(const File& file, int64_t block) {
  const int64_t end = std::min((block + 1) * cache::kBlockBytes, file.record.bytes);
  return {std::min(std::max(block * cache::kBlockBytes, file.header_bytes), end), end};
}

uint32_t block_crc(const File& file, int64_t block) {
  const auto [begin, end] = block_of(file, block);
  return cache::crc32(file.bytes().data() + begin, static_cast<size_t>(end - begin));
}

bool is_intact(const File& file, int64_t block) {
  return block_crc(file, block) == file.record.crc32[static_cast<size_t>(block)];
}

[[noreturn]] void refuse_block(const File& file, int64_t block) {
  const auto [begin, end] = block_of(file, block);
  cache::refuse_bytes(file.mapping.path(), begin,
                      "CRC-32 " + cache::crc32_text(file.record.crc32[static_cast<size_t>(block)]) +
                          " of the bytes up to " + std::to_string(end),
                      cache::crc32_text(block_crc(file, block)) + ": the file is damaged");
}

void check_blocks(const File& file) {
  for (int64_t block = 0; block < std::ssize(file.record.crc32); ++block) {
    if (!is_intact(file, block)) refuse_block(file, block);
  }
}

// Checks the header of a .npy file, and returns its elements.
template <class T>
const T* elements(File& file, DType dtype, std::span<const int64_t> shape) {
  const auto check = [&] { return cache::check_npy(file.mapping.path(), file.bytes(), dtype, shape, file.grows); };
  int64_t begin = 0;
  try {
    begin = check();
  } catch (const FileError&) {
    if (!file.grows) throw;
    begin = check();  // another process may have changed its number of rows while it was read
  }
  if (file.grows) file.header_bytes = begin;
  return reinterpret_cast<const T*>(file.bytes().data() + begin);
}

// Checks that offsets begin with 0, never decrease and end with `last`. Error messages describe `last` as `what`.
void check_offsets(const File& file, std::span<const int64_t> offsets, int64_t last, const std::string& what) {
  const auto byte_of = [&](size_t i) {
    return reinterpret_cast<const std::byte*>(offsets.data() + i) - file.bytes().data();
  };
  int64_t previous = 0;
  for (size_t i = 0; i < offsets.size(); ++i) {
    const int64_t least = previous;
    const int64_t most = i == 0 ? 0 : last;
    previous = offsets[i];
    if (previous < least || previous > most) {
      cache::refuse_bytes(file.mapping.path(), byte_of(i),
                          "an offset from " + std::to_string(least) + " to " + std::to_string(most),
                          std::to_string(previous));
    }
  }
  if (previous != last) {
    cache::refuse_bytes(file.mapping.path(), byte_of(offsets.size() - 1), what + ", " + std::to_string(last),
                        std::to_string(previous));
  }
}

// Returns the offsets of the lines and of the end.
std::vector<size_t> line_offsets(const File& file, int64_t episodes) {
  const std::string_view text = file.mapping.text();
  std::vector<size_t> offsets;
  offsets.reserve(std::min(static_cast<size_t>(episodes), text.size()) + 1);
  offsets.push_back(0);
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n', end + 1)) {
    offsets.push_back(end + 1);
  }
  if (offsets.back() != text.size() || static_cast<int64_t>(offsets.size()) - 1 != episodes) {
    cache::refuse_bytes(file.mapping.path(), static_cast<int64_t>(text.size()),
                        std::to_string(episodes) + " lines, one an episode", std::to_string(offsets.size() - 1));
  }
  return offsets;
}

// Maps and checks the offsets of rows of different sizes.
void map_offsets(StreamMapping& files, Stream& stream) {
  const std::vector<int64_t> count{stream.rows + 1};
  const std::span<const int64_t> offsets{elements<int64_t>(files.blob_offsets, DType::kInt64, count),
                                         static_cast<size_t>(count[0])};
  check_blocks(files.blob_offsets);
  check_offsets(files.blob_offsets, offsets, offsets.back(), "the elements of all rows");
  files.blob_offsets.mapping.release_pages();
  stream.blob_offsets = offsets.data();
  std::vector<int64_t> shape{offsets.back()};
  if (stream.ragged) shape.insert(shape.end(), stream.shape.begin(), stream.shape.end());
  stream.values = elements<std::byte>(files.values, stream.ragged ? stream.dtype : DType::kUInt8, shape);
}

// Returns FNV-1a of the files' checksums.
uint64_t checksum_of(std::initializer_list<const File*> files) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const File* file : files) {
    for (const uint32_t crc : file->record.crc32) hash = (hash ^ crc) * 0x100000001b3;
  }
  return hash;
}

// Returns the least number of letters to insert, remove or replace that turns `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

bool same_clock(const Stream& a, const Stream& b) {
  return a.clock_checksum == b.clock_checksum && std::ranges::equal(a.row_offsets, b.row_offsets) &&
         std::equal(a.time_ns, a.time_ns + a.rows, b.time_ns);
}

struct Dataset::Impl {
  Impl(const cache::FileDescriptor& directory, std::string cache_path);

  File open_file(const cache::FileDescriptor& directory, const std::string& name, bool may_grow = false);
  void map_stream(const cache::FileDescriptor& directory, Stream& stream);
  StreamFile open_again(int64_t stream, const char* name, const File& mapped, const void* first) const;
  std::vector<int64_t> all_streams() const;
  // Throws FileError if the file is shorter than when it was opened: reading the rest of its mapping would end the
  // process (SIGBUS).
  void check_size(const File& file) const;
  void verify(std::span<const int64_t> streams, bool for_append) const;

  cache::FileDescriptor home;  // the open directory; its name may have changed
  std::string path;
  cache::Manifest manifest;
  std::string episode_columns;
  File episodes;
  std::vector<size_t> episode_lines;
  std::vector<StreamMapping> mappings;  // one per stream
  int64_t bytes = 0;
};

Dataset::Impl::Impl(const cache::FileDescriptor& directory, std::string cache_path) : path(std::move(cache_path)) {
  const cache::MappedFile text(directory, cache::kManifestFile, path + "/" + cache::kManifestFile);
  manifest = cache::parse_manifest(text.path(), text.text());
  bytes = static_cast<int64_t>(text.bytes().size());
  episode_columns = cache::episode_columns_text(manifest.episode_columns);
  episodes = open_file(directory, cache::file_in_generation(cache::kEpisodesFile, manifest.generation));
  check_blocks(episodes);
  episode_lines = line_offsets(episodes, manifest.episodes);
  episodes.mapping.release_pages();
  for (Stream& stream : manifest.streams) map_stream(directory, stream);
}

File Dataset::Impl::open_file(const cache::FileDescriptor& directory, const std::string& name, bool may_grow) {
  File file{cache::MappedFile(directory, name, path + "/" + name), manifest.files.at(name)};
  file.grows = may_grow && manifest.version >= cache::kFirstAppendableVersion;
  const auto size = static_cast<int64_t>(file.mapping.bytes().size());
  if (size < file.record.bytes || (size > file.record.bytes && !file.grows)) {
    cache::refuse_bytes(file.mapping.path(), std::min(size, file.record.bytes),
                        "a file of " + std::to_string(file.record.bytes) + " bytes" + (file.grows ? " or more" : ""),
                        std::to_string(size) + (size < file.record.bytes ? ": it is cut short" : ""));
  }
  bytes += file.record.bytes;
  return file;
}

void Dataset::Impl::map_stream(const cache::FileDescriptor& directory, Stream& stream) {
  const std::string folder = cache::stream_directory(stream.name) + "/";
  const auto open_growing = [&](const char* name) { return open_file(directory, folder + name, true); };
  const auto open_checked = [&](const char* name) {
    File file = open_file(directory, folder + cache::file_in_generation(name, manifest.generation));
    check_blocks(file);
    return file;
  };
  StreamMapping files;
  files.times = open_growing(cache::kTimeFile);
  files.values = open_growing(cache::kValuesFile);
  files.row_offsets = open_checked(cache::kRowOffsetsFile);

  stream.time_ns = elements<int64_t>(files.times, DType::kInt64, std::vector{stream.rows});
  const std::vector<int64_t> offsets{manifest.episodes + 1};
  stream.row_offsets = {elements<int64_t>(files.row_offsets, DType::kInt64, offsets), static_cast<size_t>(offsets[0])};
  check_offsets(files.row_offsets, stream.row_offsets, stream.rows, "the number of rows");
  files.row_offsets.mapping.release_pages();
  stream.clock_checksum = checksum_of({&files.times, &files.row_offsets});

  stream.values_checksum = checksum_of({&files.values});

  std::vector<int64_t> shape{stream.rows};
  shape.insert(shape.end(), stream.shape.begin(), stream.shape.end());
  if (stream.has_blob_offsets()) {
    files.blob_offsets = open_growing(cache::kBlobOffsetsFile);
    map_offsets(files, stream);
  } else {
    stream.values = elements<std::byte>(files.values, stream.dtype, shape);
  }
  if (stream.has_statistics()) {
    files.stats = open_checked(cache::kStatsFile);
    shape[0] = cache::kStatistics;
    stream.stats = cache::feature_stats(elements<double>(files.stats, DType::kFloat64, shape), stream.features);
  }
  mappings.push_back(std::move(files));
}

StreamFile Dataset::Impl::open_again(int64_t stream, const char* name, const File& mapped, const void* first) const {
  const cache::FileIdentity& identity = mapped.mapping.identity();
  const std::string name_in_cache =
      cache::stream_directory(manifest.streams[static_cast<size_t>(stream)].name) + "/" + name;
  StreamFile opened{cache::open_below(home, name_in_cache, mapped.mapping.path()),
                    static_cast<const std::byte*>(first) - mapped.bytes().data(),
                    std::to_string(identity.device) + "-" + std::to_string(identity.inode) + "-" +
                        std::to_string(checksum_of({&mapped}))};
  // The name now belongs to another file in the same directory, because the mapped file was removed.
  if (opened.file.get() >= 0 && cache::identity_of(opened.file) != identity) opened.file = {};
  return opened;
}

void Dataset::Impl::check_size(const File& file) const {
  const cache::MappedFile& mapping = file.mapping;
  if (mapping.path().empty()) return;  // the stream has no such file
  struct stat status{};
  // A file that was replaced or removed is complete: no program can find it to cut it short.
  if (::fstatat(home.get(), mapping.path().c_str() + path.size() + 1, &status, 0) != 0) return;
  const auto size = static_cast<int64_t>(status.st_size);
  if (cache::FileIdentity{status.st_dev, status.st_ino} != mapping.identity() || size >= file.record.bytes) return;
  cache::refuse_bytes(mapping.path(), size, "the " + std::to_string(file.record.bytes) + " bytes that were opened",
                      std::to_string(size) + ": it was cut short");
}

void Dataset::Impl::verify(std::span<const int64_t> streams, bool for_append) const {
  std::vector<const File*> files{&episodes};
  for (const int64_t s : streams) {
    const StreamMapping& mapping = mappings[static_cast<size_t>(s)];
    files.insert(files.end(), {&mapping.times, &mapping.blob_offsets, &mapping.row_offsets, &mapping.stats});
    if (!for_append || manifest.streams[static_cast<size_t>(s)].has_statistics()) files.push_back(&mapping.values);
  }
  for (const File* file : files) {
    check_size(*file);
    const int64_t blocks = std::ssize(file->record.crc32);
    const int64_t damaged_block = parallel_first(blocks, 1, [&](int64_t block) { return !is_intact(*file, block); });
    if (damaged_block < blocks) refuse_block(*file, damaged_block);
  }
  for (const int64_t s : streams) {
    const Stream& stream = manifest.streams[static_cast<size_t>(s)];
    const cache::MappedFile& file = mappings[static_cast<size_t>(s)].times.mapping;
    for (size_t e = 0; e + 1 < stream.row_offsets.size(); ++e) {
      for (int64_t row = stream.row_offsets[e] + 1; row < stream.row_offsets[e + 1]; ++row) {
        if (stream.time_ns[row] >= stream.time_ns[row - 1]) continue;
        const int64_t offset = reinterpret_cast<const std::byte*>(stream.time_ns + row) - file.bytes().data();
        cache::refuse_bytes(file.path(), offset,
                            "a time of at least " + std::to_string(stream.time_ns[row - 1]) + " ns in row " +
                                std::to_string(row) + " of episode " + std::to_string(e),
                            std::to_string(stream.time_ns[row]));
      }
    }
  }
}

std::vector<int64_t> Dataset::Impl::all_streams() const {
  std::vector<int64_t> streams(mappings.size());
  std::iota(streams.begin(), streams.end(), int64_t{0});
  return streams;
}

std::shared_ptr<const Dataset> Dataset::open(const std::string& path, bool verify) {
  std::shared_ptr<const Dataset> dataset;
  for (int tries_left = kOpenTries; dataset == nullptr; --tries_left) {
    cache::FileDescriptor directory = cache::open_directory(path);
    const std::string manifest_path = path + "/" + cache::kManifestFile;
    const cache::FileDescriptor manifest = cache::open_below(directory, cache::kManifestFile, manifest_path);
    try {
      dataset.reset(new Dataset(std::make_unique<Impl>(directory, path)));
      dataset->impl_->home = std::move(directory);
    } catch (const FileError&) {
      // A program that replaces the cache, or appends to it, removes old files, perhaps before they are opened here.
      const bool is_current =
          cache::is_named(directory, path) && (manifest.get() < 0 || cache::is_named(manifest, manifest_path));
      if (tries_left == 1 || is_current) throw;
    }
  }
  if (verify) dataset->verify();
  return dataset;
}

Dataset::Dataset(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Dataset::~Dataset() = default;

void Dataset::verify() const { impl_->verify(impl_->all_streams(), false); }

void Dataset::verify(std::span<const int64_t> streams) const {
  const int64_t count = std::ssize(impl_->manifest.streams);
  for (const int64_t stream : streams) {
    if (stream >= 0 && stream < count) continue;
    throw ArgumentError("streams: expected indices below ", count, ", got ", stream);
  }
  impl_->verify(streams, false);
}

void Dataset::verify_for_append() const { impl_->verify(impl_->all_streams(), true); }

const std::string& Dataset::path() const { return impl_->path; }

int64_t Dataset::num_episodes() const { return impl_->manifest.episodes; }

std::span<const Stream> Dataset::streams() const { return impl_->manifest.streams; }

int64_t Dataset::index_of(std::string_view name) const {
  const std::span<const Stream> known = streams();
  const auto entry = std::ranges::find(known, name, &Stream::name);
  if (entry != known.end()) return entry - known.begin();

  std::string message = "stream: expected one of ";
  const Stream* closest = nullptr;
  size_t least_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const Stream& stream : known) {
    message += (&stream == known.data() ? "'" : ", '") + stream.name + "'";
    const size_t distance = edit_distance(name, stream.name);
    if (distance < least_distance) {
      least_distance = distance;
      closest = &stream;
    }
  }
  if (known.empty()) message += "none: the cache has no streams";
  message += ", got '" + std::string(name) + "'";
  if (closest != nullptr) message += "; did you mean '" + closest->name + "'?";
  throw ArgumentError(message);
}

const Stream& Dataset::stream(std::string_view name) const { return stream(index_of(name)); }

StreamFile Dataset::open_values(int64_t index) const {
  return impl_->open_again(index, cache::kValuesFile, impl_->mappings.at(static_cast<size_t>(index)).values,
                           stream(index).values);
}

StreamFile Dataset::open_times(int64_t index) const {
  return impl_->open_again(index, cache::kTimeFile, impl_->mappings.at(static_cast<size_t>(index)).times,
                           stream(index).time_ns);
}

std::string_view Dataset::episode_json(int64_t episode) const {
  if (episode < 0 || episode >= num_episodes()) {
    throw ArgumentError("episode: expected 0 to ", num_episodes() - 1, ", got ", episode);
  }
  const auto e = static_cast<size_t>(episode);
  const size_t begin = impl_->episode_lines[e];
  return impl_->episodes.mapping.text().substr(begin, impl_->episode_lines[e + 1] - 1 - begin);
}

std::string_view Dataset::episodes_jsonl() const { return impl_->episodes.mapping.text(); }

const std::string& Dataset::episode_columns_json() const { return impl_->episode_columns; }

const std::string& Dataset::provenance_json() const { return impl_->manifest.provenance_json; }

int64_t Dataset::bytes() const { return impl_->bytes; }

}  // namespace robocache
