#include "robocache/image/resident_jpegs.hpp"

#include <cstring>
#include <string>
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

// Of one call, in its workspace.
void place(DecodeJpegParams& params, WorkspaceParts& workspace) {
  workspace.take(params.planes, params.count * params.plane_bytes);
  workspace.take(params.damage, params.count * params.most_segments);
}

}  // namespace

ResidentJpegs::ResidentJpegs(const JpegFrames& frames, Device device, Tier tier) : device_(device) {
  if (!device.is_cuda() || tier == Tier::kMapped) {
    throw ArgumentError("resident JPEGs: expected a CUDA device and tier device or pinned, got " + device_name(device) +
                        " and " + std::string(tier_name(tier)));
  }
  if (tier == Tier::kPinned) {
    pinned_words_ = PinnedBuffer(device, static_cast<size_t>(bytes(frames)));
    if (!frames.words.empty()) std::memcpy(pinned_words_.data(), frames.words.data(), pinned_words_.bytes());
    params_.words = static_cast<const uint32_t*>(pinned_words_.on_device());
  } else {
    device_words_ = on_device(device, frames.words, params_.words);
  }
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
}

int64_t ResidentJpegs::table_bytes(const JpegFrames& frames) {
  return static_cast<int64_t>(frames.segments.size() * sizeof(uint32_t) + frames.frames.size() * sizeof(JpegFrame) +
                              frames.tables.size() * sizeof(JpegTables) +
                              frames.long_entries.size() * sizeof(uint16_t));
}

int64_t ResidentJpegs::workspace_bytes(int64_t count) const {
  DecodeJpegParams params = params_;
  params.count = count;
  WorkspaceParts counted(nullptr);
  place(params, counted);
  return counted.bytes();
}

void ResidentJpegs::decode(const int64_t* rows, int64_t count, uint8_t* out, int32_t* status, void* workspace,
                           CudaStream stream, const Marks& marks) const {
  if (count == 0) return;
  DecodeJpegParams params = params_;
  params.rows = rows;
  params.count = count;
  params.out = out;
  params.status = status;
  params.first_row = marks.first_row;
  params.is_pad = marks.is_pad;
  params.found = marks.found;
  WorkspaceParts parts(workspace);
  place(params, parts);
  using Launch = int(const DecodeJpegParams*, int32_t, void*);
  static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_decode_jpeg"));
  check_cuda(launch(&params, device_.index, stream.handle), "decode_jpeg");
}

}  // namespace robocache
