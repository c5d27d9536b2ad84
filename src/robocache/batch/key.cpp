#include "robocache/batch/key.hpp"

#include <algorithm>
#include <utility>

namespace robocache {

BatchKey::BatchKey(const LoaderStreams& streams, size_t request, Part aligned)
    : streams_(streams), request_(request), aligned_(aligned) {}

std::vector<int64_t> BatchKey::shape_of(std::span<const int64_t> row) const {
  std::vector<int64_t> shape;
  if (!spec().one_step) shape.push_back(steps());
  shape.insert(shape.end(), row.begin(), row.end());
  return shape;
}

int64_t BatchKey::add(BatchLayout& layout, const char* suffix, DType dtype, std::vector<int64_t> shape,
                      const char* what) const {
  return layout.add(spec().key + suffix, dtype, std::move(shape), std::string(what) + "stream '" + spec().key + "'");
}

void BatchKey::reserve_marks(BatchLayout& layout) {
  pad_offset_ = add(layout, "_is_pad", DType::kBool, shape_of({}), "the padding of ");
  if (streams_.spec(0).return_age) age_offset_ = add(layout, "_age", DType::kInt64, shape_of({}), "the age of ");
}

WindowStream BatchKey::window(size_t source, int64_t features, DType dtype, int64_t out_offset) const {
  WindowStream window = window_of(spec(source), features, dtype, out_offset);
  window.pad_offset = pad_offset_;
  window.age_offset = age_offset_;
  return window;
}

WindowStream window_of(const KeySpec& key, int64_t features, DType dtype, int64_t out_offset) {
  WindowStream window{};
  window.out_features = features;
  window.out_dtype = dtype;
  window.out_offset = out_offset;
  window.pad_offset = -1;
  window.delta_rows = key.offsets_rows;
  if (window.counts_rows()) {
    window.offset_ns = key.offset_ns;
  } else {
    window.delta_ns = key.stamp_offsets_ns();
  }
  window.max_gap_ns = key.max_gap_ns.value_or(-1);
  window.tolerance_ns = key.tolerance_ns.value_or(-1);
  window.causal = key.causal;
  if (!key.rows) {
    window.rows = {.clock = {}, .values = nullptr, .features = features, .dtype = dtype};
    window.methods = {{0, features, InterpolationMethod::kPrevious}};
  }
  return window;
}

namespace {

class NumbersKey final : public BatchKey {
 public:
  using BatchKey::BatchKey;

  void reserve(Part part, BatchLayout& layout) override {
    if (part != aligned()) return;
    const std::vector<int64_t>& row = spec().shape;
    for (const int64_t extent : row) features_ *= extent;
    out_offset_ = add(layout, "", spec().dtype, shape_of(row), "");
    reserve_marks(layout);
    if (!streams_.spec(0).pad_features || row.size() != 1) return;
    feature_pad_offset_ = add(layout, "_feature_is_pad", DType::kBool, row, "the features' padding of ");
  }

  void add_window(Part part, const Moment& moment, size_t source, WindowStreams& windows,
                  DeviceTables& tables) const override {
    if (part != aligned() || moment != spec().moment) return;
    WindowStream& window_stream = windows.streams.emplace_back(window(source, features_, spec().dtype, out_offset_));
    const auto& stream = streams_.stream_of(source, request_);
    if (stream) {
      window_stream.rows = stream->rows();
      window_stream.methods = spec(source).rows->methods;
      const AffineTables affine = affine_tables(spec(source).rows->affine, window_stream.rows.dtype, tables);
      window_stream.scale = affine.scale;
      window_stream.shift = affine.shift;
      window_stream.scale_per_step = std::ssize(spec(source).rows->affine) > window_stream.rows.features;
      window_stream.clip = spec(source).rows->clip;
    }
    if (feature_pad_offset_ < 0) return;
    std::vector<uint8_t> mask(static_cast<size_t>(features_), 1);
    if (stream) std::fill_n(mask.begin(), stream->rows().features, uint8_t{0});
    windows.constants.push_back({tables.put(mask), features_, feature_pad_offset_});
  }

 private:
  int64_t features_ = 1;
  int64_t out_offset_ = 0;
  int64_t feature_pad_offset_ = -1;  // below 0: none
};

}  // namespace

std::unique_ptr<BatchKey> make_key(const LoaderStreams& streams, size_t request) {
  if (streams.camera(request) != nullptr) return make_frames_key(streams, request);
  const bool is_converted = !streams.options().streams[request].convert.empty();
  if (is_converted || !key_mirror(streams.options(), request).axes.empty()) return make_converted_key(streams, request);
  return std::make_unique<NumbersKey>(streams, request, part_of_numbers(streams, request));
}

Part part_of_numbers(const LoaderStreams& streams, size_t request) {
  const bool by_host = streams.options().device.is_cuda() && streams.placements()[request].tier == Tier::kMapped;
  return by_host ? Part::kHost : Part::kDevice;
}

}  // namespace robocache
