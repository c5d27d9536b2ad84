// One key of a batch, with a class for each kind: its arrays, its windows in the plans, and the work on frames, which
// plans do not do. Marks are the arrays <key>_is_pad and <key>_age.
//
//   for (auto& key : keys) key->reserve(Part::kDevice, layout);
//   for (auto& key : keys) key->add_window(Part::kDevice, moment, source, windows, tables);
//   for (auto& key : keys) key->add_conversion(Part::kDevice, sources, conversions, tables);
//   ...
//   window_batch(batch, device, stream);  // one launch: fills numbers, converts them, and chooses the rows of frames
//   for (auto& key : keys) bad_frames += key->launch(filled, part, scratch, ahead, stream);  // fills the frames
//
// | kind              | aligned by | reserves                                | stage()           | launch()               |
// | numbers           | either     | values and marks where it is aligned    |                   |                        |
// | converted numbers | either     | values, marks and a base, and scratch   |                   |                        |
// | frames, host      | either     | values and marks where it is aligned    | decodes for CUDA  | decodes on the CPU     |
// | frames, packed    | the host   | values on the device, marks on the host | packs their files | decodes the files      |
// | frames, resident  | the device | values and marks on the device          |                   | decodes resident files |
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "robocache/align/window_plan.hpp"
#include "robocache/batch/layout.hpp"
#include "robocache/batch/loader_streams.hpp"
#include "robocache/core/device.hpp"
#include "robocache/core/device_tables.hpp"
#include "robocache/image/jpeg_frames.hpp"
#include "robocache/image/transform.hpp"

namespace robocache {

// A part of the memory that keys reserve. A batch has the first three in this order.
enum class Part : uint8_t {
  kDevice,  // filled by the loader's device; on the CPU it has everything
  kHost,    // filled by the host for a CUDA device, and copied there
  kPacked,  // files of frames that the host copies for a CUDA device to decode
  kAhead,   // beside the batch, on a CUDA device: the files of the next batch's frames, copied from pinned memory
};

// The host's part of a batch for a CUDA device.
struct HostPart {
  std::vector<StagedCopy> copies;   // from host memory into the batch
  std::vector<PackedJpegs> packed;  // one for each request; used by packed frames
  int64_t bad_frames = 0;           // frames that did not decode and are padding
};

// A batch while it is filled.
struct BatchMemory {
  char* memory;  // the start that offsets count from
  int64_t count;
  ImageDraw first;                   // the random draw of sample 0
  std::span<const int64_t> numbers;  // each sample's number, which seeds its draw; empty: first.sample, + 1, ...

  ImageDraw draw_of(int64_t sample) const {
    ImageDraw draw = first;
    draw.sample = numbers.empty() ? draw.sample + sample : numbers[static_cast<size_t>(sample)];
    return draw;
  }

  // Calls run(sample, count, draw) for each group of samples that one launch can draw for. Without `numbers` that is
  // one group. With them, the numbers in a group are all equal, or each is one more than the previous one.
  template <class Run>
  void for_draws(const Run& run) const {
    if (numbers.empty()) return run(int64_t{0}, count, draw_of(0));
    for (int64_t begin = 0, end = 0; begin < count; begin = end) {
      ImageDraw draw = draw_of(begin);
      draw.stride = begin + 1 < count && draw_of(begin + 1).sample == draw.sample ? 0 : 1;
      do ++end;
      while (end < count && draw_of(end).sample == draw.sample + draw.stride * (end - begin));
      run(begin, end - begin, draw);
    }
  }
};

// Immutable after the last reserve(): then any number of threads may use one. The LoaderStreams must outlive it.
class BatchKey {
 public:
  BatchKey(const LoaderStreams& streams, size_t request, Part aligned);
  virtual ~BatchKey() = default;
  BatchKey(const BatchKey&) = delete;
  BatchKey& operator=(const BatchKey&) = delete;

  // The spec of this key. Sources differ only in fields about their rows.
  const KeySpec& spec(size_t source = 0) const { return streams_.spec(source).keys[request_]; }

  // The part whose plan has the key's window: kDevice or kHost.
  Part aligned() const { return aligned_; }

  // Adds the arrays that lie in `part` to its layout. Throws ArgumentError.
  virtual void reserve(Part part, BatchLayout& layout) = 0;

  // Adds the key's window in each sample of a source to the plan of `part`. The plan's windows are around `moment`, or around
  // the anchor if it is none. Throws ArgumentError, DeviceError.
  using Moment = std::optional<MomentRule>;
  virtual void add_window(Part part, const Moment& moment, size_t source, WindowStreams& windows,
                          DeviceTables& tables) const = 0;

  // Adds the conversion of the key's windows to the plan of `part`, for these sources.
  virtual void add_conversion(Part, std::span<const size_t> /*sources*/, std::vector<ConvertActionsParams>&,
                              DeviceTables&) const {}

  // Returns the moment of the conversion's base, or of this key if there is no base.
  virtual Moment base_moment() const { return spec().moment; }

  // Does the host's work on frames for a CUDA loader, after the host's plan has run. Throws FrameError, FileError.
  virtual void stage(const BatchMemory&, HostPart&) const {}

  // Fills the frames after all plans have run; on CUDA it queues the work on `stream`. `scratch` has scratch_bytes(). `ahead` is
  // the memory that fetch() filled for this batch, or null. Returns the number of frames that did not decode and are padding,
  // without those that a device decodes: bad_frames_on_device() counts them. Throws FrameError, FileError, DeviceError.
  virtual int64_t launch(const BatchMemory&, const HostPart&, void* /*scratch*/, const void* /*ahead*/,
                         CudaStream) const {
    return 0;
  }
  virtual int64_t scratch_bytes() const { return 0; }  // on the device

  // Queues the copies of kAhead, whose plan has run. Throws DeviceError.
  virtual void fetch(void* /*ahead*/, int64_t /*count*/, CudaStream) const {}

  // Throws a FrameError if a device found damaged frames since the last call, unless they may be padding.
  virtual void check_damage() const {}
  virtual int64_t bad_frames_on_device() const { return 0; }

 protected:
  const LoaderOptions& options() const { return streams_.options(); }
  int64_t steps() const { return spec().steps(); }
  std::vector<int64_t> shape_of(std::span<const int64_t> row) const;  // the shape of a sample's array of such rows
  // Adds the array `key` + suffix, which errors call `what` + "stream 'key'". Returns its offset.
  int64_t add(BatchLayout& layout, const char* suffix, DType dtype, std::vector<int64_t> shape, const char* what) const;
  void reserve_marks(BatchLayout& layout);
  int64_t pad_offset() const { return pad_offset_; }
  // Returns the key's window in a source, with marks.
  WindowStream window(size_t source, int64_t features, DType dtype, int64_t out_offset) const;
  int64_t age_offset() const { return age_offset_; }

  const LoaderStreams& streams_;
  const size_t request_;

 private:
  const Part aligned_;
  int64_t pad_offset_ = 0;
  int64_t age_offset_ = -1;  // below 0: none
};

// Makes the key of a request, of the kind for its tier and the loader's device. Throws DeviceError, OutOfMemory.
std::unique_ptr<BatchKey> make_key(const LoaderStreams& streams, size_t request);
std::unique_ptr<BatchKey> make_frames_key(const LoaderStreams& streams, size_t request);  // for a camera's request
// With `convert`, or mirrored.
std::unique_ptr<BatchKey> make_converted_key(const LoaderStreams& streams, size_t request);

// Returns the part whose plan reads a request's numbers.
Part part_of_numbers(const LoaderStreams& streams, size_t request);

// ---- For the Aligner too (live/aligner.hpp) ----

// Returns the window of a key, without marks and rows. It writes rows of `features` values at `out_offset`. If the key's source
// has no such stream, everything is padding.
WindowStream window_of(const KeySpec& key, int64_t features, DType dtype, int64_t out_offset);

// Returns the conversion of a key's windows of rows with `features` values, without offsets and tables.
ConvertActionsParams conversion_params(const KeySpec& key, int64_t features, const ActionOps& ops, DType work,
                                       double tolerance);

// Adds the normalisation of the results, by the rows of each source of a plan; they are null for a source without the stream.
void put_affines(std::span<const RowsSpec* const> rows, DType work, ConvertActionsParams& params, DeviceTables& tables);

}  // namespace robocache
