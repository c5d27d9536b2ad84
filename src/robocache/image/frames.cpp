#include "robocache/image/frames.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "robocache/core/arguments.hpp"
#include "robocache/core/error.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/image/png.hpp"

namespace robocache {
namespace {

// The most bytes of decoded frames that all threads together hold. Large frames use fewer threads.
constexpr int64_t kPixelsAtOnce = 256 << 20;

// Joins the files, one after another.
void join(const std::vector<std::vector<uint8_t>>& files, EncodedFrames* joined) {
  joined->offsets = {0};
  for (const auto& file : files) joined->offsets.push_back(joined->offsets.back() + static_cast<int64_t>(file.size()));
  joined->bytes.resize(static_cast<size_t>(joined->offsets.back()));
  for (size_t i = 0; i < files.size(); ++i) {
    std::memcpy(joined->bytes.data() + joined->offsets[i], files[i].data(), files[i].size());
  }
}

}  // namespace

void for_each_frame(int64_t count, const std::function<void(int64_t)>& body,
                    const std::function<std::string(int64_t)>& name, int64_t frame_bytes) {
  std::mutex mutex;
  int64_t first_bad = count;
  std::string refusal;
  const int64_t frames_at_once = std::max<int64_t>(1, kPixelsAtOnce / std::max<int64_t>(1, frame_bytes));
  const int64_t grain = std::max<int64_t>(1, (count + frames_at_once - 1) / frames_at_once);
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      try {
        body(i);
      } catch (const FrameError& error) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (i >= first_bad) continue;
        first_bad = i;
        refusal = error.what();
      }
    }
  });
  if (first_bad < count)
    throw FrameError((name ? name(first_bad) : "frames[" + std::to_string(first_bad) + "]") + ": " + refusal);
}

std::span<const uint8_t> blob_at(std::span<const uint8_t> bytes, std::span<const int64_t> offsets, int64_t row) {
  const int64_t begin = offsets[static_cast<size_t>(row)], end = offsets[static_cast<size_t>(row) + 1];
  if (begin < 0 || end < begin || end > static_cast<int64_t>(bytes.size())) {
    refuse("offsets: expected to ascend from 0 to at most ", std::to_string(bytes.size()), ", got ",
           std::to_string(begin), " and ", std::to_string(end), " for frame ", std::to_string(row));
  }
  return bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

EncodedFrames encode_frames(Codec codec, const void* pixels, int64_t count, const FrameShape& shape,
                            const EncodeOptions& options) {
  std::vector<std::vector<uint8_t>> files(static_cast<size_t>(count));
  for_each_frame(count, [&](int64_t i) {
    const uint8_t* frame = static_cast<const uint8_t*>(pixels) + i * shape.bytes();
    files[static_cast<size_t>(i)] = encode_frame(codec, frame, shape, options);
  });
  EncodedFrames encoded{.codec = codec, .shape = shape};
  join(files, &encoded);
  return encoded;
}

EncodedFrames take_frames(std::span<const uint8_t> bytes, std::span<const int64_t> offsets) {
  if (offsets.size() < 2) refuse("frames: expected at least one, got none");
  const auto count = static_cast<int64_t>(offsets.size()) - 1;
  EncodedFrames result;
  for_each_frame(1, [&](int64_t i) {
    const auto blob = blob_at(bytes, offsets, i);
    result.codec = codec_of(blob);
    result.shape = frame_shape(result.codec, blob);
  });
  std::vector<std::vector<uint8_t>> files(static_cast<size_t>(count));
  std::vector<std::string> reencoded(static_cast<size_t>(count));
  for_each_frame(
      count,
      [&](int64_t i) {
        const auto blob = blob_at(bytes, offsets, i);
        if (const Codec codec = codec_of(blob); codec != result.codec) {
          throw FrameError("expected " + std::string(name_of(result.codec)) + " like frames[0], got " +
                           std::string(name_of(codec)));
        }
        if (const FrameShape shape = frame_shape(result.codec, blob); shape != result.shape) {
          throw FrameError("expected " + result.shape.describe() + " like frames[0], got " + shape.describe());
        }
        const auto index = static_cast<size_t>(i);
        if (result.codec == Codec::kJpeg) {
          Segmented segmented = segment_jpeg(blob);
          files[index] = std::move(segmented.blob);
          reencoded[index] = std::move(segmented.why);
        } else {
          check_png_frame(blob, result.shape);
          files[index].assign(blob.begin(), blob.end());
        }
      },
      nullptr, result.shape.bytes());
  for (const std::string& why : reencoded) {
    if (!why.empty()) ++result.reencoded[why];
  }
  join(files, &result);
  return result;
}

void decode_frames(Codec codec, std::span<const uint8_t> bytes, std::span<const int64_t> offsets,
                   const FrameShape& shape, std::span<const int64_t> rows, void* out) {
  const int64_t frame_bytes = shape.bytes();
  const bool has_one_size = offsets.empty();
  if (has_one_size && (codec != Codec::kRaw || frame_bytes < 1)) {
    refuse("offsets: expected [n + 1] for ", name_of(codec), " frames of ", shape.describe(), ", got none");
  }
  const int64_t count =
      has_one_size ? static_cast<int64_t>(bytes.size()) / frame_bytes : static_cast<int64_t>(offsets.size()) - 1;
  for (const int64_t row : rows) {
    if (row < 0 || row >= count) {
      refuse("rows: expected at least 0 and less than ", std::to_string(count), ", got ", std::to_string(row));
    }
  }
  const auto name = [&](int64_t i) { return "row " + std::to_string(rows[static_cast<size_t>(i)]); };
  for_each_frame(
      static_cast<int64_t>(rows.size()),
      [&](int64_t i) {
        const int64_t row = rows[static_cast<size_t>(i)];
        const auto blob = has_one_size
                              ? bytes.subspan(static_cast<size_t>(row * frame_bytes), static_cast<size_t>(frame_bytes))
                              : blob_at(bytes, offsets, row);
        decode_frame(codec, blob, shape, static_cast<uint8_t*>(out) + i * frame_bytes);
      },
      name, frame_bytes);
}

}  // namespace robocache
