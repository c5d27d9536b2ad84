// Writes a stream's rows into its files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "robocache/cache/block_writer.hpp"
#include "robocache/cache/dataset.hpp"
#include "robocache/cache/write_behind.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache::cache {

// Rows to append: their number, and the dtype and shape of one row.
struct NewRows {
  int64_t count;
  DType dtype;
  std::span<const int64_t> shape;
  std::optional<FrameFormat> frames = {};  // codec and colour space only
  std::optional<Ragged> ragged = {};       // `dtype` and `shape` then describe one element
};

// The growing files of a stream: times, values and, if rows have different sizes, offsets. Every method that writes
// throws FileError.
struct StreamFiles {
  // Creates the files in `directory`. `first` describes the stream's first rows, which belong to episode `episode`.
  // `behind` as in BlockWriter.
  StreamFiles(std::string_view stream_name, const NewRows& first, const std::string& directory, int64_t episode,
              WriteBehind* behind);

  // Extends the files of a stream of the finished cache `home`.
  StreamFiles(const Stream& finished, const std::string& home, const std::map<std::string, FileRecord>& records,
              WriteBehind* behind);

  bool is_encoded() const { return frames && frames->codec != Codec::kRaw; }
  bool has_blob_offsets() const { return is_encoded() || ragged; }
  int64_t episode_rows() const { return rows - row_offsets.back(); }

  // Adds at least one row; the rows must fit the stream. If has_blob_offsets(), `offsets` begins with 0 and has one entry
  // more than there are rows, and `values_of_rows` holds the elements or bytes of all rows.
  void append(const TensorView& times_of_rows, std::span<const int64_t> offsets, const TensorView& values_of_rows);

  // Removes the open episode's rows.
  void truncate();

  void end_episode();

  // Opens the last episode again. `first` and `last` are the stamps of its first and last row.
  void reopen_episode(int64_t first, int64_t last);

  // Writes the numbers of rows into the headers and finishes the files. Calls `add` with the name and record of each
  // file.
  void finish(const std::function<void(const char*, FileRecord)>& add);

  // Drops blocks that wait to be written. Call it before the stream is destroyed without finish().
  void forget_waiting();

  // Removes everything that was appended to a stream of a finished cache. Does nothing to a new stream.
  void restore();

  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::optional<FrameFormat> frames;
  std::optional<Ragged> ragged;
  int64_t features = 1;
  BlockWriter times;
  BlockWriter values;
  std::optional<BlockWriter> blob_offsets;
  int64_t times_begin;  // offset of the first row in its file
  int64_t values_begin;
  int64_t blob_offsets_begin = 0;
  int64_t values_end;  // the size when the last episode ended
  int64_t rows = 0;
  int64_t first_ns = 0;  // the first and last stamp of the open episode
  int64_t last_ns = 0;
  std::vector<int64_t> row_offsets;  // of the ended episodes; has one entry more than episodes

 private:
  template <class RecordOf>
  StreamFiles(const Stream& finished, const std::string& directory, WriteBehind* behind, const RecordOf& record_of);

  // Returns the bytes of the unit that `values` counts: a row, an element of a ragged row, or a byte of an encoded
  // frame.
  int64_t value_bytes() const { return is_encoded() ? 1 : features * dtype_size(dtype); }
  int64_t value_count() const;
  std::string values_header(int64_t count) const;

  // The ends of a stream's files in the finished cache.
  struct Ends {
    int64_t values;
    int64_t rows;
  };
  std::optional<Ends> finished_end_;
};

}  // namespace robocache::cache
