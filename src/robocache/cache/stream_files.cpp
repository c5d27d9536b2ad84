#include "robocache/cache/stream_files.hpp"

#include <algorithm>

#include "robocache/cache/manifest.hpp"
#include "robocache/cache/npy.hpp"
#include "robocache/core/error.hpp"

namespace robocache::cache {
namespace {

constexpr int64_t kGatherBytes = int64_t{1} << 20;
constexpr auto kInt64Bytes = static_cast<int64_t>(sizeof(int64_t));

// Opens a file of a finished cache, with `count` elements of `element_bytes`, to append to it. `header` is written when
// the file is finished.
BlockWriter reopen(const std::string& path, const std::string& header, int64_t count, int64_t element_bytes,
                   const FileRecord& record, WriteBehind* behind) {
  const int64_t begin = record.bytes - count * element_bytes;
  if (begin != std::ssize(header)) {
    throw FileError(path, ": expected a header of ", header.size(), " bytes to append rows, got ", begin);
  }
  return {path, header.size(), record, behind};
}

// Copies a strided view's elements in row-major order. Returns the end of the copy.
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
void append_gathered(BlockWriter& file, TensorView view, int64_t row_bytes) {
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

void append_rows(BlockWriter& file, const TensorView& view) {
  int64_t row_bytes = dtype_size(view.dtype);
  for (int d = 1; d < view.ndim; ++d) row_bytes *= view.shape[static_cast<size_t>(d)];
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

}  // namespace

StreamFiles::StreamFiles(std::string_view stream_name, const NewRows& first, const std::string& directory,
                         int64_t episode, WriteBehind* behind)
    : name(stream_name),
      dtype(first.dtype),
      shape(first.shape.begin(), first.shape.end()),
      frames(first.frames),
      ragged(first.ragged),
      times(directory + "/" + kTimeFile, npy_header(DType::kInt64, 0, {}), behind),
      values(directory + "/" + kValuesFile, values_header(0), behind),
      times_begin(times.size()),
      values_begin(values.size()),
      values_end(values.size()),
      row_offsets(static_cast<size_t>(episode + 1), 0) {
  for (const int64_t extent : shape) features *= extent;
  if (!has_blob_offsets()) return;
  blob_offsets.emplace(directory + "/" + kBlobOffsetsFile, npy_header(DType::kInt64, 0, {}), behind);
  blob_offsets_begin = blob_offsets->size();
  const int64_t first_blob = 0;
  blob_offsets->append(&first_blob, sizeof(first_blob));
}

StreamFiles::StreamFiles(const Stream& finished, const std::string& home,
                         const std::map<std::string, FileRecord>& records, WriteBehind* behind)
    : StreamFiles(finished, home + "/" + stream_directory(finished.name), behind,
                  [&](const char* file) { return records.at(stream_directory(finished.name) + "/" + file); }) {}

template <class RecordOf>
StreamFiles::StreamFiles(const Stream& finished, const std::string& directory, WriteBehind* behind,
                         const RecordOf& record_of)
    : name(finished.name),
      dtype(finished.dtype),
      shape(finished.shape),
      frames(finished.frames),
      ragged(finished.ragged),
      features(finished.features),
      times(reopen(directory + "/" + kTimeFile, npy_header(DType::kInt64, 0, {}), finished.rows, kInt64Bytes,
                   record_of(kTimeFile), behind)),
      values(reopen(directory + "/" + kValuesFile, values_header(0),
                    has_blob_offsets() ? finished.blob_offsets[finished.rows] : finished.rows, value_bytes(),
                    record_of(kValuesFile), behind)),
      times_begin(times.size() - finished.rows * kInt64Bytes),
      values_begin(std::ssize(values_header(0))),
      values_end(values.size()),
      rows(finished.rows),
      row_offsets(finished.row_offsets.begin(), finished.row_offsets.end()),
      finished_end_(Ends{values_end, rows}) {
  if (!has_blob_offsets()) return;
  blob_offsets.emplace(reopen(directory + "/" + kBlobOffsetsFile, npy_header(DType::kInt64, 0, {}), rows + 1,
                              kInt64Bytes, record_of(kBlobOffsetsFile), behind));
  blob_offsets_begin = blob_offsets->size() - (rows + 1) * kInt64Bytes;
}

int64_t StreamFiles::value_count() const {
  // A row without features takes no bytes, so the size of the file does not give the number of such rows.
  return has_blob_offsets() ? (values.size() - values_begin) / value_bytes() : rows;
}

std::string StreamFiles::values_header(int64_t count) const {
  return is_encoded() ? npy_header(DType::kUInt8, count, {}) : npy_header(dtype, count, shape);
}

void StreamFiles::append(const TensorView& times_of_rows, std::span<const int64_t> offsets,
                         const TensorView& values_of_rows) {
  append_rows(times, times_of_rows);
  if (has_blob_offsets()) {
    std::vector<int64_t> ends(offsets.begin() + 1, offsets.end());
    for (int64_t& end : ends) end += value_count();
    blob_offsets->append(ends.data(), ends.size() * sizeof(int64_t));
  }
  append_rows(values, values_of_rows);
  const auto* time = static_cast<const int64_t*>(times_of_rows.data);
  const int64_t n = times_of_rows.shape[0];
  if (episode_rows() == 0) first_ns = time[0];
  last_ns = time[(n - 1) * times_of_rows.strides[0]];
  rows += n;
}

void StreamFiles::truncate() {
  rows = row_offsets.back();
  times.truncate(times_begin + rows * kInt64Bytes);
  values.truncate(values_end);
  if (blob_offsets) blob_offsets->truncate(blob_offsets_begin + (rows + 1) * kInt64Bytes);
}

void StreamFiles::end_episode() {
  row_offsets.push_back(rows);
  values_end = values.size();
}

void StreamFiles::reopen_episode(int64_t first, int64_t last) {
  row_offsets.pop_back();
  first_ns = first;
  last_ns = last;
}

void StreamFiles::finish(const std::function<void(const char*, FileRecord)>& add) {
  times.replace_header(npy_header(DType::kInt64, rows, {}));
  values.replace_header(values_header(value_count()));
  add(kTimeFile, times.finish());
  add(kValuesFile, values.finish());
  if (!blob_offsets) return;
  blob_offsets->replace_header(npy_header(DType::kInt64, rows + 1, {}));
  add(kBlobOffsetsFile, blob_offsets->finish());
}

void StreamFiles::forget_waiting() {
  times.forget_waiting();
  values.forget_waiting();
  if (blob_offsets) blob_offsets->forget_waiting();
}

void StreamFiles::restore() {
  if (!finished_end_) return;
  row_offsets = {finished_end_->rows};
  values_end = finished_end_->values;
  truncate();
  finish([](const char*, const FileRecord&) {});
  make_durable(times.path());
  make_durable(values.path());
  if (blob_offsets) make_durable(blob_offsets->path());
}

}  // namespace robocache::cache
