// A stream's rows on their way into its files.
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

// Rows that are to be added: how many, and what each is.
struct NewRows {
  int64_t count;
  DType dtype;
  std::span<const int64_t> shape;
  std::optional<FrameFormat> frames = {};  // its codec and colour space
  std::optional<Ragged> ragged = {};       // dtype and shape are then those of one element
};

// The files of a stream that grow: times, values, and where rows have sizes of their own also where each begins. Whatever
// writes throws FileError.
struct StreamFiles {
  // Makes the files in `directory`; the rows are the first of the stream, in episode `episode`. `behind` as of BlockWriter.
  StreamFiles(std::string_view stream_name, const NewRows& first, const std::string& directory, int64_t episode,
              WriteBehind* behind);

  // Goes on with those of a stream of the finished cache `home`.
  StreamFiles(const Stream& finished, const std::string& home, const std::map<std::string, FileRecord>& records,
              WriteBehind* behind);

  bool is_encoded() const { return frames && frames->codec != Codec::kRaw; }
  bool has_offsets() const { return is_encoded() || ragged; }
  int64_t episode_rows() const { return rows - row_offsets.back(); }

  // Adds rows that can be of this stream, at least one. `offsets`, from 0, has one more than there are where
  // has_offsets(); `values` are then the elements or bytes of all.
  void append(const TensorView& times_of_rows, std::span<const int64_t> offsets, const TensorView& values_of_rows);

  // Forgets the open episode's rows.
  void truncate();

  void end_episode();

  // Puts the numbers of rows into the headers and ends the files; `add` is given each one's name and record.
  void finish(const std::function<void(const char*, FileRecord)>& add);

  // Before the stream goes without finish().
  void forget_waiting();

  // Takes back all that was appended to a stream of a finished cache; does nothing to a new one.
  void put_back();

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
  int64_t values_end;  // when the last episode ended
  int64_t rows = 0;
  int64_t first_ns = 0;  // of the open episode's rows
  int64_t last_ns = 0;
  std::vector<int64_t> row_offsets;  // of the episodes that have ended: one more than there are

 private:
  template <class RecordOf>
  StreamFiles(const Stream& finished, const std::string& directory, WriteBehind* behind, const RecordOf& record_of);

  // Of what values counts: rows, elements of ragged rows, bytes of encoded frames.
  int64_t value_bytes() const { return is_encoded() ? 1 : features * dtype_size(dtype); }
  int64_t value_count() const;
  std::string values_header(int64_t count) const;

  // Of a stream of a finished cache, where it ended.
  struct Ends {
    int64_t values;
    size_t episodes_plus_one;
  };
  std::optional<Ends> finished_end_;
};

}  // namespace robocache::cache
