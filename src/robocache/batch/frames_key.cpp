// The kinds of keys that hold frames.
#include <algorithm>
#include <atomic>
#include <utility>

#include "robocache/batch/camera.hpp"
#include "robocache/batch/key.hpp"
#include "robocache/core/error.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/image/resident_jpegs.hpp"

namespace robocache {
namespace {

int64_t aligned_to_256(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// The plan writes the number of the frame's row for each step (see Camera::source_of), and which steps are padding.
class FramesKey : public BatchKey {
 public:
  FramesKey(const LoaderStreams& streams, size_t request, Part aligned)
      : BatchKey(streams, request, aligned), camera_(*streams.camera(request)) {}

  void reserve(Part part, BatchLayout& layout) override {
    if (part != aligned()) return;
    reserve_values(layout);
    reserve_frame_marks(layout);
  }

  void add_window(Part part, const Moment& moment, size_t source, WindowStreams& windows,
                  DeviceTables&) const override {
    if (part == aligned() && moment == spec().moment) windows.streams.push_back(number_window(source, number_offset_));
  }

 protected:
  void reserve_values(BatchLayout& layout) { out_offset_ = add(layout, "", spec().dtype, shape_of(spec().shape), ""); }

  void reserve_frame_marks(BatchLayout& layout) {
    reserve_marks(layout);
    if (spec().has_intrinsics) {
      const std::vector<int64_t> matrix{3, 3};
      intrinsics_offset_ = add(layout, "_intrinsics", DType::kFloat32,
                               spec().images->per_frame ? shape_of(matrix) : matrix, "the intrinsics of ");
    }
    number_offset_ = layout.add_scratch(streams_.number_bytes(request_));
  }

  WindowStream number_window(size_t source, int64_t out_offset) const {
    WindowStream numbers = window(source, 1, DType::kInt64, out_offset);
    if (!streams_.stream_of(source, request_)) return numbers;
    numbers.rows = streams_.row_numbers(source, request_);
    numbers.methods = spec(source).rows->methods;
    return numbers;
  }

  int64_t frames(const BatchMemory& batch) const { return batch.count * steps(); }
  // Pointers into a batch.
  int64_t* numbers(const BatchMemory& batch) const { return reinterpret_cast<int64_t*>(batch.memory + number_offset_); }
  bool* is_pad(const BatchMemory& batch) const { return reinterpret_cast<bool*>(batch.memory + pad_offset()); }
  char* out(const BatchMemory& batch) const { return batch.memory + out_offset_; }
  // Returns where a step writes its matrix, or, without per_frame, where step 0 writes that of its sample; null if none is written.
  float* intrinsics(const BatchMemory& batch, int64_t sample, int64_t step) const {
    const bool per_frame = spec().images->per_frame;
    if (intrinsics_offset_ < 0 || (step > 0 && !per_frame)) return nullptr;
    auto* const first = reinterpret_cast<float*>(batch.memory + intrinsics_offset_);
    return first + 9 * (per_frame ? sample * steps() + step : sample);
  }

  const Camera& camera_;

 private:
  int64_t out_offset_ = 0;
  int64_t number_offset_ = 0;
  int64_t intrinsics_offset_ = -1;  // below 0: none
};

// The host decodes the frames: in stage() for a CUDA device, in launch() on the CPU.
class HostFramesKey final : public FramesKey {
 public:
  using FramesKey::FramesKey;

  void stage(const BatchMemory& batch, HostPart& part) const override { part.bad_frames += decode(batch); }

  int64_t launch(const BatchMemory& batch, const HostPart&, void*, const void*, CudaStream) const override {
    return aligned() == Part::kDevice ? decode(batch) : 0;
  }

 private:
  int64_t decode(const BatchMemory& batch) const {
    std::atomic<int64_t> bad_frames{0};
    const int64_t count = frames(batch);
    const int64_t grain = std::clamp<int64_t>(count / (int64_t{4} * num_threads()), 1, 16);
    parallel_for(count, grain, [&](int64_t begin, int64_t end) {
      FrameMemory memory;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t sample = i / steps();
        const int64_t step = i % steps();
        const ImageDraw draw = batch.draw_of(sample);
        const int64_t number = numbers(batch)[i];
        const Camera::Source* const source = camera_.source_of(number);
        const uint8_t* const frame =
            source != nullptr ? camera_.pixels_of(*source, number - source->first_number, memory) : nullptr;
        if (source != nullptr && frame == nullptr) {
          is_pad(batch)[i] = true;
          ++bad_frames;
        }
        const ImageTransform& transform = (source != nullptr ? *source : camera_.any()).to_batch();
        transform.run(frame, draw, step, out(batch) + i * transform.bytes());
        if (float* const matrix = intrinsics(batch, sample, step)) {
          Camera::write_intrinsics(source, draw, step, matrix);
        }
      }
    });
    return bad_frames;
  }
};

// A CUDA device decodes the frames, and says which JPEGs are damaged.
class DeviceFramesKey : public FramesKey {
 public:
  DeviceFramesKey(const LoaderStreams& streams, size_t request, Part aligned)
      : FramesKey(streams, request, aligned), damage_(device(), sizeof(JpegDamage)) {
    *static_cast<JpegDamage*>(damage_.data()) = {};
  }

  void check_damage() const override {
    if (options().on_bad_frame == BadFrame::kPad) return;
    const int64_t damaged = bad_frames_on_device();
    if (damage_reported_.exchange(damaged) == damaged) return;
    const int64_t number = static_cast<const volatile JpegDamage*>(damage_.data())->row;
    const Camera::Source* const source = camera_.source_of(number);
    throw camera_.bad_frame(*source, number - source->first_number, "JPEG: its entropy-coded data is damaged");
  }

  // The scratch memory begins with the decoded frames and what decoding needs; the workspace of the transform follows.
  int64_t scratch_bytes() const override {
    return decoding_bytes() + camera_.any().transform.workspace_bytes(options().batch_size * steps());
  }

  int64_t bad_frames_on_device() const override {
    return static_cast<const volatile JpegDamage*>(damage_.data())->frames;
  }

 protected:
  virtual int64_t decoding_bytes() const = 0;
  Device device() const { return options().device; }

  JpegMarks marks(const BatchMemory& batch) const {
    return {.first_row = 1,
            .is_pad = options().on_bad_frame == BadFrame::kPad ? is_pad(batch) : nullptr,
            .damage_report = static_cast<JpegDamage*>(damage_.on_device())};
  }

  // Transforms the frames of one source. The call for camera_.any() also writes the steps that have no source.
  void transform(const Camera::Source& source, const BatchMemory& batch, const FrameChoice& batch_choice, void* scratch,
                 CudaStream stream) const {
    void* const workspace = static_cast<char*>(scratch) + decoding_bytes();
    const ImageTransform& transform = source.to_batch();
    const auto& [rows, columns] = transform.params().frame;
    const int64_t frame_bytes = int64_t{rows} * columns * source.shape.channels * dtype_size(source.shape.dtype);
    batch.for_draws([&](int64_t sample, int64_t count, const ImageDraw& draw) {
      const int64_t first = sample * steps();
      FrameChoice choice = batch_choice;
      if (batch_choice.rows != nullptr) choice.rows += first;
      if (batch_choice.rows == nullptr || batch_choice.in_order) {  // frame i of `pixels` is step i of the batch
        choice.pixels = static_cast<const char*>(batch_choice.pixels) + first * frame_bytes;
        choice.frames -= first;
      }
      transform.run_on_device(choice, draw, count, steps(), out(batch) + first * transform.bytes(), workspace, device(),
                              stream);
    });
  }

 private:
  PinnedBuffer damage_;  // a JpegDamage
  mutable std::atomic<int64_t> damage_reported_{0};
};

// The host reads the stored files of a batch's frames and copies them to the device, which decodes them. All sources' frames
// have one codec and shape.
class PackedFramesKey final : public DeviceFramesKey {
 public:
  PackedFramesKey(const LoaderStreams& streams, size_t request) : DeviceFramesKey(streams, request, Part::kHost) {}

  void reserve(Part part, BatchLayout& layout) override {
    if (part == Part::kDevice) reserve_values(layout);
    if (part == Part::kHost) reserve_frame_marks(layout);
    if (part != Part::kPacked) return;
    packed_offset_ =
        layout.add_room(is_jpeg() ? packed_jpegs_bytes(shape(), most_frames(), camera_.largest_file_bytes())
                                  : most_frames() * shape().bytes());
  }

  void stage(const BatchMemory& batch, HostPart& part) const override {
    struct File {
      const Camera::Source* source = nullptr;
      int64_t row = 0;
    };
    std::vector<File> files(static_cast<size_t>(frames(batch)));
    std::vector<int64_t> bytes(files.size());
    for (size_t i = 0; i < files.size(); ++i) {
      const int64_t number = numbers(batch)[i];
      const int64_t sample = static_cast<int64_t>(i) / steps();
      const int64_t step = static_cast<int64_t>(i) % steps();
      const Camera::Source* const source = camera_.source_of(number);
      if (float* const matrix = intrinsics(batch, sample, step)) {
        Camera::write_intrinsics(source, batch.draw_of(sample), step, matrix);
      }
      if (source == nullptr) continue;
      files[i] = {source, number - source->first_number};
      const auto [begin, end] = source->frames.files->bytes_of(files[i].row);
      bytes[i] = std::max<int64_t>(1, end - begin);  // 0 means no file, and an empty file is damaged
    }
    const auto read = [&](int64_t i, std::vector<uint8_t>& file_bytes) {
      const File& file = files[static_cast<size_t>(i)];
      return frame_file(*file.source->frames.files, file.row, file_bytes);
    };
    char* const packed = batch.memory + packed_offset_;
    if (is_jpeg()) {
      std::atomic<int64_t> refused{0};
      const auto refuse = [&](int64_t i, const FrameError& error) {
        const File& file = files[static_cast<size_t>(i)];
        if (options().on_bad_frame == BadFrame::kError) throw camera_.bad_frame(*file.source, file.row, error.what());
        ++refused;
        numbers(batch)[i] = 0;
        is_pad(batch)[i] = true;
      };
      part.packed[request_] = pack_jpegs(shape(), bytes, read, refuse, packed);
      part.bad_frames += refused;
    } else {
      parallel_for(frames(batch), 1, [&](int64_t begin, int64_t end) {
        std::vector<uint8_t> pixels;
        for (int64_t i = begin; i < end; ++i) {
          const bool exists = bytes[static_cast<size_t>(i)] > 0;
          numbers(batch)[i] = exists ? i : -1;  // from here on, the index of the packed frame
          if (exists) std::ranges::copy(read(i, pixels), packed + i * shape().bytes());
        }
      });
      part.packed[request_].bytes = frames(batch) * shape().bytes();
    }
    part.copies.push_back({packed_offset_, part.packed[request_].bytes});
  }

  int64_t launch(const BatchMemory& batch, const HostPart& part, void* scratch, const void*,
                 CudaStream stream) const override {
    const char* const packed = batch.memory + packed_offset_;
    FrameChoice choice{.pixels = packed, .frames = frames(batch), .rows = numbers(batch)};
    if (is_jpeg()) {
      auto* const decoded = static_cast<uint8_t*>(scratch);
      decode_packed_jpegs(part.packed[request_], packed, shape(), numbers(batch), frames(batch), decoded,
                          decoded + aligned_to_256(frames(batch) * shape().bytes()), device(), stream, marks(batch));
      choice = {.pixels = decoded, .frames = frames(batch)};
    }
    transform(camera_.any(), batch, choice, scratch, stream);
    return 0;
  }

  int64_t decoding_bytes() const override {
    if (!is_jpeg()) return 0;
    return aligned_to_256(most_frames() * shape().bytes()) +
           aligned_to_256(packed_jpegs_workspace_bytes(shape(), most_frames()));
  }

 private:
  bool is_jpeg() const { return camera_.any().stream().frames->codec == Codec::kJpeg; }
  const FrameShape& shape() const { return camera_.any().shape; }
  int64_t most_frames() const { return options().batch_size * steps(); }

  int64_t packed_offset_ = 0;
};

// The frames lie in the device's memory, decoded or not, or in pinned memory, and may be copied from there a batch ahead.
class ResidentFramesKey final : public DeviceFramesKey {
 public:
  ResidentFramesKey(const LoaderStreams& streams, size_t request) : DeviceFramesKey(streams, request, Part::kDevice) {}

  void reserve(Part part, BatchLayout& layout) override {
    FramesKey::reserve(part, layout);
    if (part != Part::kAhead || !streams_.is_copied_ahead(request_)) return;
    ahead_number_offset_ = layout.add_scratch(streams_.number_bytes(request_));
    ahead_offset_ = layout.add_room(streams_.fetched_bytes(request_));
  }

  void add_window(Part part, const Moment& moment, size_t source, WindowStreams& windows,
                  DeviceTables& tables) const override {
    FramesKey::add_window(part, moment, source, windows, tables);
    if (part != Part::kAhead || moment != spec().moment || !streams_.is_copied_ahead(request_)) return;
    WindowStream& numbers = windows.streams.emplace_back(number_window(source, ahead_number_offset_));
    numbers.pad_offset = -1;
    numbers.age_offset = -1;
  }

  void fetch(void* ahead, int64_t count, CudaStream stream) const override {
    if (!streams_.is_copied_ahead(request_)) return;
    auto* const memory = static_cast<char*>(ahead);
    const auto* const numbers = reinterpret_cast<const int64_t*>(memory + ahead_number_offset_);
    for (const Camera::Source* const source : camera_.distinct()) {
      if (const ResidentJpegs* const jpegs = source->resident->jpegs()) {
        jpegs->fetch(numbers, count * steps(), first_resident_number(*source), memory + ahead_offset_,
                     camera_.fetched_stride(), stream);
      }
    }
  }

  int64_t launch(const BatchMemory& batch, const HostPart&, void* scratch, const void* ahead,
                 CudaStream stream) const override {
    const int64_t count = frames(batch);
    auto* const decoded = static_cast<uint8_t*>(scratch);
    for (const Camera::Source* const source : camera_.distinct()) {
      const ResidentFrames& resident = *source->resident;
      FrameChoice choice{.pixels = resident.pixels(),
                         .frames = resident.rows(),
                         .rows = numbers(batch),
                         .first_row = first_resident_number(*source)};
      if (source != &camera_.any()) choice.begin = source->first_number;  // any() also writes number 0
      choice.end = source->first_number + source->stream().rows;
      if (const ResidentJpegs* const jpegs = resident.jpegs()) {
        JpegMarks jpeg_marks = marks(batch);
        jpeg_marks.first_row = choice.first_row;
        jpeg_marks.leaves_others = true;
        if (ahead != nullptr && streams_.is_copied_ahead(request_)) {
          jpeg_marks.fetched = static_cast<const char*>(ahead) + ahead_offset_;
        }
        jpeg_marks.fetched_stride = camera_.fetched_stride();
        jpegs->decode(numbers(batch), count, decoded, nullptr, decoded + aligned_to_256(count * source->shape.bytes()),
                      stream, jpeg_marks);
        choice.pixels = decoded;
        choice.frames = count;
        choice.in_order = true;
      }
      transform(*source, batch, choice, scratch, stream);
      if (intrinsics(batch, 0, 0) == nullptr) continue;
      batch.for_draws([&](int64_t sample, int64_t samples, const ImageDraw& draw) {
        source->transform.intrinsics_on_device(source->stream().frames->intrinsics, numbers(batch) + sample * steps(),
                                               choice.begin, choice.end, draw, samples, steps(),
                                               intrinsics(batch, sample, 0), device(), stream);
      });
    }
    return 0;
  }

  int64_t decoding_bytes() const override {
    const int64_t most_frames = options().batch_size * steps();
    int64_t bytes = 0;
    for (const Camera::Source* const source : camera_.distinct()) {
      const ResidentJpegs* const jpegs = source->resident->jpegs();
      if (jpegs == nullptr) continue;
      bytes = std::max(bytes, aligned_to_256(most_frames * source->shape.bytes()) +
                                  aligned_to_256(jpegs->workspace_bytes(most_frames)));
    }
    return bytes;
  }

 private:
  static int64_t first_resident_number(const Camera::Source& source) {
    return source.first_number + source.resident->first_row();
  }

  int64_t ahead_number_offset_ = 0;
  int64_t ahead_offset_ = 0;
};

}  // namespace

std::unique_ptr<BatchKey> make_frames_key(const LoaderStreams& streams, size_t request) {
  if (!streams.options().device.is_cuda()) return std::make_unique<HostFramesKey>(streams, request, Part::kDevice);
  if (streams.placements()[request].tier != Tier::kMapped) return std::make_unique<ResidentFramesKey>(streams, request);
  if (streams.camera(request)->why_not_packed().empty()) return std::make_unique<PackedFramesKey>(streams, request);
  return std::make_unique<HostFramesKey>(streams, request, Part::kHost);
}

}  // namespace robocache
