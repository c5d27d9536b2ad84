#include "robocache/image/resident_jpegs.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "robocache/core/error.hpp"
#include "robocache/core/workspace_parts.hpp"

namespace robocache {
namespace {

template <class T>
DeviceBuffer on_device(Device device, const std::vector<T>& entries, const T*& pointer) {
  DeviceBuffer buffer(device, entries.size() * sizeof(T));
  buffer.fill_from_host(entries.data(), buffer.bytes());
  pointer = static_cast<const T*>(buffer.data());
  return buffer;
}

// Lays out the workspace of one call.
void lay_out(DecodeJpegParams& params, WorkspaceParts& workspace) {
  workspace.take(params.planes, params.count * params.plane_bytes);
  workspace.take(params.damage, params.count * params.most_segments);
}

int64_t layout_bytes(DecodeJpegParams params) {
  WorkspaceParts counted(nullptr);
  lay_out(params, counted);
  return counted.bytes();
}

void launch(DecodeJpegParams params, const JpegMarks& marks, void* workspace, Device device, CudaStream stream) {
  params.first_row = marks.first_row;
  params.leaves_others = marks.leaves_others;
  params.is_pad = marks.is_pad;
  params.damage_report = marks.damage_report;
  if (marks.fetched != nullptr) {
    params.words = static_cast<const uint32_t*>(marks.fetched);
    params.words_stride = marks.fetched_stride / 4;
  }
  WorkspaceParts parts(workspace);
  lay_out(params, parts);
  using Launch = int(const DecodeJpegParams*, int32_t, void*);
  static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_decode_jpeg"));
  check_cuda(launch(&params, device.index, stream.handle), "decode_jpeg");
}

// Returns the arguments for frames of a shape. Their sizes suffice for every chroma sampling.
DecodeJpegParams params_of(const FrameShape& shape, int64_t count) {
  DecodeJpegParams params{};
  params.height = static_cast<int32_t>(shape.height);
  params.width = static_cast<int32_t>(shape.width);
  params.channels = static_cast<int32_t>(shape.channels);
  params.count = count;
  for (const auto& [across, down] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
    JpegFrame frame{};
    frame.luma_across = across;
    frame.luma_down = down;
    const JpegPlanes planes = jpeg_planes(frame, params.height, params.width, params.channels);
    params.plane_bytes = std::max(params.plane_bytes, (planes.bytes + 255) / 256 * 256);
    params.most_segments = std::max(params.most_segments, planes.mcus_across * planes.mcus_down);
  }
  return params;
}

}  // namespace

ResidentJpegs::ResidentJpegs(const JpegFrames& frames, Device device, Tier tier)
    : ResidentJpegs(frames, nullptr, device) {
  if (!device.is_cuda() || (tier != Tier::kDevice && tier != Tier::kPinned)) {
    throw ArgumentError("resident JPEGs: expected a CUDA device and tier device or pinned, got " + device_name(device) +
                        " and " + std::string(name_of(tier)));
  }
  if (tier == Tier::kPinned) {
    pinned_words_ = PinnedBuffer(device, static_cast<size_t>(bytes(frames)));
    if (!frames.words.empty()) std::memcpy(pinned_words_.data(), frames.words.data(), pinned_words_.bytes());
    params_.words = static_cast<const uint32_t*>(pinned_words_.on_device());
  } else {
    device_words_ = on_device(device, frames.words, params_.words);
  }
}

ResidentJpegs::ResidentJpegs(const JpegFrames& frames, const uint32_t* words, Device device) : device_(device) {
  params_.words = words;
  segments_ = on_device(device, frames.segments, params_.segments);
  frames_ = on_device(device, frames.frames, params_.frames);
  tables_ = on_device(device, frames.tables, params_.tables);
  long_entries_ = on_device(device, frames.long_entries, params_.long_entries);
  params_.frame_count = static_cast<int64_t>(frames.frames.size());
  params_.height = frames.height;
  params_.width = frames.width;
  params_.channels = frames.channels;
  params_.most_segments = frames.most_segments;
  params_.one_table = frames.tables.size() <= 1;
  params_.plane_bytes = frames.plane_bytes;
  for (const JpegFrame& frame : frames.frames) {
    const int64_t bytes = frames.segments[static_cast<size_t>(frame.segments + frame.segment_count)];
    largest_data_bytes_ = std::max(largest_data_bytes_, (bytes + 15) / 16 * 16);
  }
}

int64_t ResidentJpegs::workspace_bytes(int64_t count) const {
  DecodeJpegParams params = params_;
  params.count = count;
  return layout_bytes(params);
}

void ResidentJpegs::fetch(const int64_t* rows, int64_t count, int64_t first_row, void* to, int64_t stride,
                          CudaStream stream) const {
  if (count == 0) return;
  DecodeJpegParams params = params_;
  params.rows = rows;
  params.count = count;
  params.first_row = first_row;
  params.fetched = static_cast<uint32_t*>(to);
  params.words_stride = stride / 4;
  using Launch = int(const DecodeJpegParams*, int32_t, void*);
  static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_fetch_jpegs"));
  check_cuda(launch(&params, device_.index, stream.handle), "fetch_jpegs");
}

void ResidentJpegs::decode(const int64_t* rows, int64_t count, uint8_t* out, int32_t* status, void* workspace,
                           CudaStream stream, const JpegMarks& marks) const {
  if (count == 0) return;
  DecodeJpegParams params = params_;
  params.rows = rows;
  params.count = count;
  params.out = out;
  params.status = status;
  launch(params, marks, workspace, device_, stream);
}

int64_t packed_jpegs_workspace_bytes(const FrameShape& shape, int64_t count) {
  return layout_bytes(params_of(shape, count));
}

void decode_packed_jpegs(const PackedJpegs& packed, const void* memory, const FrameShape& shape, const int64_t* rows,
                         int64_t count, uint8_t* out, void* workspace, Device device, CudaStream stream,
                         const JpegMarks& marks) {
  const auto* const begin = static_cast<const char*>(memory);
  DecodeJpegParams params = params_of(shape, count);
  params.words = reinterpret_cast<const uint32_t*>(begin + packed.words);
  params.segments = reinterpret_cast<const uint32_t*>(begin + packed.segments);
  params.frames = reinterpret_cast<const JpegFrame*>(begin);
  params.tables = reinterpret_cast<const JpegTables*>(begin + packed.tables);
  params.long_entries = reinterpret_cast<const uint16_t*>(begin + packed.long_entries);
  params.frame_count = count;
  params.most_segments = packed.most_segments;
  params.one_table = packed.one_table;
  params.rows = rows;
  params.in_order = true;
  params.out = out;
  launch(params, marks, workspace, device, stream);
}

}  // namespace robocache
