#include "robocache/cache/dataset.hpp"

#include <algorithm>
#include <atomic>
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

// Each try again means that another cache took the name in between.
constexpr int kOpenTries = 100;

struct File {
  cache::MappedFile mapping;
  cache::FileRecord record;

  std::span<const std::byte> bytes() const { return mapping.bytes(); }
};

struct StreamMapping {
  File times, values, row_offsets, stats;
};

std::span<const std::byte> block_of(const File& file, int64_t block) {
  const auto begin = static_cast<size_t>(block * cache::kBlockBytes);
  return file.bytes().subspan(begin, std::min(file.bytes().size() - begin, static_cast<size_t>(cache::kBlockBytes)));
}

uint32_t block_crc(const File& file, int64_t block) {
  const std::span<const std::byte> bytes = block_of(file, block);
  return cache::crc32(bytes.data(), bytes.size());
}

bool block_is_whole(const File& file, int64_t block) {
  return block_crc(file, block) == file.record.crc32[static_cast<size_t>(block)];
}

[[noreturn]] void refuse_block(const File& file, int64_t block) {
  const int64_t begin = block * cache::kBlockBytes;
  const int64_t end = begin + static_cast<int64_t>(block_of(file, block).size());
  cache::refuse_bytes(file.mapping.path(), begin,
                      "CRC-32 " + cache::crc32_text(file.record.crc32[static_cast<size_t>(block)]) +
                          " of the bytes up to " + std::to_string(end),
                      cache::crc32_text(block_crc(file, block)) + ": the file is damaged");
}

void check_blocks(const File& file) {
  for (int64_t block = 0; block < static_cast<int64_t>(file.record.crc32.size()); ++block) {
    if (!block_is_whole(file, block)) refuse_block(file, block);
  }
}

template <class T>
const T* elements(const File& file, DType dtype, std::span<const int64_t> shape) {
  const int64_t begin = cache::check_npy(file.mapping.path(), file.bytes(), dtype, shape);
  return reinterpret_cast<const T*>(file.bytes().data() + begin);
}

void check_row_offsets(const File& file, std::span<const int64_t> row_offsets, int64_t rows) {
  const auto at = [&](size_t i) {
    return reinterpret_cast<const std::byte*>(row_offsets.data() + i) - file.bytes().data();
  };
  int64_t previous = 0;
  for (size_t i = 0; i < row_offsets.size(); ++i) {
    const int64_t least = previous;
    const int64_t most = i == 0 ? 0 : rows;
    previous = row_offsets[i];
    if (previous < least || previous > most) {
      cache::refuse_bytes(file.mapping.path(), at(i),
                          "a row offset from " + std::to_string(least) + " to " + std::to_string(most),
                          std::to_string(previous));
    }
  }
  if (previous != rows) {
    cache::refuse_bytes(file.mapping.path(), at(row_offsets.size() - 1), "the number of rows, " + std::to_string(rows),
                        std::to_string(previous));
  }
}

// Offsets of the lines and of the end.
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

// FNV-1a over the files' checksums.
uint64_t checksum_of(std::initializer_list<const File*> files) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const File* file : files) {
    for (const uint32_t crc : file->record.crc32) hash = (hash ^ crc) * 0x100000001b3;
  }
  return hash;
}

// How many letters to insert, remove or replace.
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

std::string_view clock_name(Clock clock) { return clock == Clock::kRecorded ? "recorded" : "nominal"; }

Clock clock_from_name(std::string_view name) {
  for (const Clock clock : {Clock::kRecorded, Clock::kNominal}) {
    if (clock_name(clock) == name) return clock;
  }
  throw ArgumentError("clock: expected 'recorded' or 'nominal', got '" + std::string(name) + "'");
}

bool same_clock(const Stream& a, const Stream& b) {
  return a.clock_checksum == b.clock_checksum && std::ranges::equal(a.row_offsets, b.row_offsets) &&
         std::equal(a.time_ns, a.time_ns + a.rows, b.time_ns);
}

struct Dataset::Impl {
  Impl(const cache::FileDescriptor& directory, std::string cache_path);

  File open_file(const cache::FileDescriptor& directory, const std::string& name);
  void map_stream(const cache::FileDescriptor& directory, Stream& stream);
  StreamFile open_again(int64_t stream, const char* name, const File& mapped, const void* first) const;
  void verify() const;

  cache::FileDescriptor home;  // the directory, whatever it is called by now
  std::string path;
  cache::Manifest manifest;
  std::string episode_columns;
  std::vector<std::string> findings;
  File episodes;
  std::vector<size_t> episode_lines;
  std::vector<StreamMapping> mappings;  // one a stream
  int64_t bytes = 0;
};

Dataset::Impl::Impl(const cache::FileDescriptor& directory, std::string cache_path) : path(std::move(cache_path)) {
  const cache::MappedFile text(directory, cache::kManifestFile, path + "/" + cache::kManifestFile);
  manifest = cache::parse_manifest(text.path(), text.text());
  bytes = static_cast<int64_t>(text.bytes().size());
  episode_columns = cache::episode_columns_text(manifest.episode_columns);
  episodes = open_file(directory, cache::kEpisodesFile);
  check_blocks(episodes);
  episode_lines = line_offsets(episodes, manifest.episodes);
  episodes.mapping.release_pages();
  for (Stream& stream : manifest.streams) {
    map_stream(directory, stream);
    findings.push_back(cache::findings_text(stream.findings));
  }
}

File Dataset::Impl::open_file(const cache::FileDescriptor& directory, const std::string& name) {
  File file{cache::MappedFile(directory, name, path + "/" + name), manifest.files.at(name)};
  const auto size = static_cast<int64_t>(file.bytes().size());
  if (size != file.record.bytes) {
    cache::refuse_bytes(file.mapping.path(), std::min(size, file.record.bytes),
                        "a file of " + std::to_string(file.record.bytes) + " bytes",
                        std::to_string(size) + (size < file.record.bytes ? ": it is cut short" : ""));
  }
  bytes += size;
  return file;
}

void Dataset::Impl::map_stream(const cache::FileDescriptor& directory, Stream& stream) {
  const auto open = [&](const char* name) {
    return open_file(directory, cache::stream_directory(stream.name) + "/" + name);
  };
  StreamMapping files{open(cache::kTimeFile), open(cache::kValuesFile), open(cache::kRowOffsetsFile),
                      open(cache::kStatsFile)};
  check_blocks(files.row_offsets);
  check_blocks(files.stats);

  stream.time_ns = elements<int64_t>(files.times, DType::kInt64, std::vector{stream.rows});
  std::vector<int64_t> shape{stream.rows};
  shape.insert(shape.end(), stream.shape.begin(), stream.shape.end());
  stream.values = elements<std::byte>(files.values, stream.dtype, shape);
  const std::vector<int64_t> offsets{manifest.episodes + 1};
  stream.row_offsets = {elements<int64_t>(files.row_offsets, DType::kInt64, offsets), static_cast<size_t>(offsets[0])};
  check_row_offsets(files.row_offsets, stream.row_offsets, stream.rows);
  files.row_offsets.mapping.release_pages();
  stream.clock_checksum = checksum_of({&files.times, &files.row_offsets});

  shape[0] = cache::kStatistics;
  const auto* table = elements<double>(files.stats, DType::kFloat64, shape);
  FeatureStats& stats = stream.stats;
  for (std::span<const double>* row : {&stats.mean, &stats.std, &stats.min, &stats.max, &stats.q01, &stats.q10,
                                       &stats.q50, &stats.q90, &stats.q99, &stats.count}) {
    *row = {table, static_cast<size_t>(stream.features)};
    table += stream.features;
  }
  mappings.push_back(std::move(files));
}

StreamFile Dataset::Impl::open_again(int64_t stream, const char* name, const File& mapped, const void* first) const {
  const cache::FileIdentity& identity = mapped.mapping.identity();
  const std::string inside = cache::stream_directory(manifest.streams[static_cast<size_t>(stream)].name) + "/" + name;
  StreamFile opened{cache::open_below(home, inside, mapped.mapping.path()),
                    static_cast<const std::byte*>(first) - mapped.bytes().data(),
                    std::to_string(identity.device) + "-" + std::to_string(identity.inode) + "-" +
                        std::to_string(checksum_of({&mapped}))};
  // Another file of that name, in the folder of the cache that was opened: the mapped one was removed.
  if (opened.file.get() >= 0 && cache::identity_of(opened.file) != identity) opened.file = {};
  return opened;
}

void Dataset::Impl::verify() const {
  std::vector<const File*> files{&episodes};
  for (const StreamMapping& mapping : mappings) {
    files.insert(files.end(), {&mapping.times, &mapping.values, &mapping.row_offsets, &mapping.stats});
  }
  for (const File* file : files) {
    const auto blocks = static_cast<int64_t>(file->record.crc32.size());
    std::atomic<int64_t> first_bad{blocks};
    parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        if (block >= first_bad.load(std::memory_order_relaxed) || block_is_whole(*file, block)) continue;
        int64_t known = first_bad.load();
        while (block < known && !first_bad.compare_exchange_weak(known, block)) {
        }
      }
    });
    if (first_bad < blocks) refuse_block(*file, first_bad);
  }
  for (size_t s = 0; s < mappings.size(); ++s) {
    const Stream& stream = manifest.streams[s];
    const cache::MappedFile& file = mappings[s].times.mapping;
    for (size_t e = 0; e + 1 < stream.row_offsets.size(); ++e) {
      for (int64_t row = stream.row_offsets[e] + 1; row < stream.row_offsets[e + 1]; ++row) {
        if (stream.time_ns[row] >= stream.time_ns[row - 1]) continue;
        const int64_t at = reinterpret_cast<const std::byte*>(stream.time_ns + row) - file.bytes().data();
        cache::refuse_bytes(file.path(), at,
                            "a time of at least " + std::to_string(stream.time_ns[row - 1]) + " ns in row " +
                                std::to_string(row) + " of episode " + std::to_string(e),
                            std::to_string(stream.time_ns[row]));
      }
    }
  }
}

std::shared_ptr<const Dataset> Dataset::open(const std::string& path, bool verify) {
  std::shared_ptr<const Dataset> dataset;
  for (int tries_left = kOpenTries; dataset == nullptr; --tries_left) {
    cache::FileDescriptor directory = cache::open_directory(path);
    try {
      dataset.reset(new Dataset(std::make_unique<Impl>(directory, path)));
      dataset->impl_->home = std::move(directory);
    } catch (const FileError&) {
      // Whoever replaces a cache removes the old one's files, and some may not have been opened yet.
      if (tries_left == 1 || cache::is_named(directory, path)) throw;
    }
  }
  if (verify) dataset->verify();
  return dataset;
}

Dataset::Dataset(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Dataset::~Dataset() = default;

void Dataset::verify() const { impl_->verify(); }

const std::string& Dataset::path() const { return impl_->path; }

int64_t Dataset::num_episodes() const { return impl_->manifest.episodes; }

std::span<const Stream> Dataset::streams() const { return impl_->manifest.streams; }

int64_t Dataset::index_of(std::string_view name) const {
  const std::span<const Stream> known = streams();
  const auto found = std::ranges::find(known, name, &Stream::name);
  if (found != known.end()) return found - known.begin();

  std::string message = "stream: expected one of ";
  const Stream* closest = nullptr;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  for (const Stream& stream : known) {
    message += (&stream == known.data() ? "'" : ", '") + stream.name + "'";
    const size_t distance = edit_distance(name, stream.name);
    if (distance < least) {
      least = distance;
      closest = &stream;
    }
  }
  if (known.empty()) message += "none: the cache has no streams";
  message += ", got '" + std::string(name) + "'";
  if (closest != nullptr) message += "; did you mean '" + closest->name + "'?";
  throw ArgumentError(message);
}

const Stream& Dataset::stream(std::string_view name) const { return streams()[static_cast<size_t>(index_of(name))]; }

StreamFile Dataset::open_values(int64_t stream) const {
  return impl_->open_again(stream, cache::kValuesFile, impl_->mappings.at(static_cast<size_t>(stream)).values,
                           streams()[static_cast<size_t>(stream)].values);
}

StreamFile Dataset::open_times(int64_t stream) const {
  return impl_->open_again(stream, cache::kTimeFile, impl_->mappings.at(static_cast<size_t>(stream)).times,
                           streams()[static_cast<size_t>(stream)].time_ns);
}

std::string_view Dataset::episode_json(int64_t episode) const {
  if (episode < 0 || episode >= num_episodes()) {
    throw ArgumentError("episode: expected 0 to " + std::to_string(num_episodes() - 1) + ", got " +
                        std::to_string(episode));
  }
  const auto e = static_cast<size_t>(episode);
  const size_t begin = impl_->episode_lines[e];
  return impl_->episodes.mapping.text().substr(begin, impl_->episode_lines[e + 1] - 1 - begin);
}

std::string_view Dataset::episodes_jsonl() const { return impl_->episodes.mapping.text(); }

const std::string& Dataset::episode_columns_json() const { return impl_->episode_columns; }

const std::string& Dataset::provenance_json() const { return impl_->manifest.provenance_json; }

const std::string& Dataset::findings_json(int64_t stream) const {
  return impl_->findings.at(static_cast<size_t>(stream));
}

int64_t Dataset::bytes() const { return impl_->bytes; }

}  // namespace robocache
