#include "robocache/batch/fingerprint.hpp"

#include <algorithm>
#include <vector>

#include "robocache/cache/crc32.hpp"
#include "robocache/core/error.hpp"
#include "robocache/source/read_rows.hpp"

namespace robocache {
namespace {

constexpr int64_t kMostEpisodesWithRow = 4;  // the most episodes of which a row is read
constexpr size_t kRowBytes = 4096;           // the most bytes of a row that are read

// Calls visit(i) for at most `count` indices below n: the first, the last, and others evenly spaced between them.
template <class Visit>
void visit_some(int64_t n, int64_t count, const Visit& visit) {
  const int64_t visited = std::min(n, count);
  for (int64_t i = 0; i < visited; ++i) visit(visited == 1 ? 0 : i * (n - 1) / (visited - 1));
}

}  // namespace

void OrderFingerprint::add_anchors(const Dataset& dataset, const AnchorIndex& anchors) {
  const auto add = [](uint32_t& sum, const auto& value) { sum = cache::crc32(&value, sizeof value, sum); };
  anchors_ += anchors.anchors;
  add(selection_, anchors.anchors);
  add(selection_, anchors.period_ns);
  if (anchors.every != 1) add(selection_, anchors.every);
  selection_ = cache::crc32(anchors.table, static_cast<size_t>(anchors.runs) * sizeof(AnchorRun), selection_);
  // The ticks of a rate follow from the table and the period.
  for (int64_t run = 0; anchors.tick_ns != nullptr && run < anchors.runs; ++run) {
    const AnchorRun& entry = anchors.table[run];
    const int64_t end = run + 1 == anchors.runs ? anchors.anchors : anchors.table[run + 1].first_anchor;
    const int64_t ticks = std::max<int64_t>(0, (end - entry.first_anchor - 1) * anchors.every + 1);
    selection_ = cache::crc32(anchors.tick_ns + entry.origin, static_cast<size_t>(ticks) * sizeof(int64_t), selection_);
  }
  std::vector<char> row;
  for (int64_t stream_index = 0; stream_index < std::ssize(dataset.streams()); ++stream_index) {
    const Stream& stream = dataset.stream(stream_index);
    if (!stream.has_statistics()) continue;
    const auto bytes = static_cast<size_t>(stream.features * dtype_size(stream.dtype));
    row.resize(std::min(bytes, kRowBytes));
    const StreamFile stream_file = dataset.open_values(stream_index);
    visit_some(anchors.runs, kMostEpisodesWithRow, [&](int64_t run) {
      const int64_t episode = anchors.table[run].episode;
      const int64_t rows = stream.rows_of(episode);
      if (rows == 0) return;
      const int64_t offset = (stream.first_row(episode) + rows / 2) * static_cast<int64_t>(bytes);
      if (stream_file.file.get() < 0) {
        data_ = cache::crc32(static_cast<const char*>(stream.values) + offset, row.size(), data_);
        return;
      }
      try {
        read_rows({stream_file.file.get(), stream_file.offset}, offset, row.size(), row.data());
        data_ = cache::crc32(row.data(), row.size(), data_);
      } catch (const FileError&) {
        // A loader that draws this row reports the error. Other loaders may ignore it.
      }
    });
  }
}

void OrderFingerprint::add_order(const void* data, size_t size) { order_ = cache::crc32(data, size, order_); }

std::string OrderFingerprint::text() const {
  return std::to_string(anchors_) + '-' + cache::crc32_text(data_) + '-' + cache::crc32_text(selection_) + '-' +
         cache::crc32_text(order_);
}

}  // namespace robocache
