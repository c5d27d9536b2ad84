// Writes the cells without points in the outputs that take features.
#pragma once

#include <cstdint>
#include <cstring>

#include "robocache/points/voxels/cuda/rows_cuda.cuh"

namespace robocache::voxels_cuda {

struct Fills {
  struct Fill {
    char* data;
    int32_t element_bytes;
    uint64_t pattern;  // the element, repeated
  };
  int32_t count = 0;
  Fill list[kVoxelModes];
};

inline Fills fills_of(const VoxelReduction& call) {
  Fills fills;
  with_feature_type(call.features.dtype, [&](auto type) {
    using T = decltype(type);
    const auto add = [&](const VoxelOutput& output, auto element) {
      Fills::Fill& fill = fills.list[fills.count++];
      fill = {static_cast<char*>(output.data), sizeof(element), 0};
      for (size_t offset = 0; offset < 8; offset += sizeof(element)) {
        std::memcpy(reinterpret_cast<char*>(&fill.pattern) + offset, &element, sizeof(element));
      }
    };
    for (const VoxelOutput* output = call.outputs; output != call.outputs + call.output_count; ++output) {
      if (output->mode == VoxelMode::kSum) {
        add(*output, FeatureSum<T>{});
      } else if (output->mode == VoxelMode::kMean) {
        add(*output, fill_of<FeatureMean<T>>(call));
      } else if (takes_features(output->mode)) {
        add(*output, fill_of<T>(call));
      }
    }
  });
  return fills;
}

template <class Unit>
__device__ void fill_cells(const Fills::Fill& fill, int64_t line, uint32_t cells, uint32_t points, int64_t features) {
  const auto units = static_cast<uint32_t>(features * fill.element_bytes / static_cast<int64_t>(sizeof(Unit)));
  Unit unit;
  if constexpr (sizeof(Unit) == 16) {
    unit = {fill.pattern, fill.pattern};
  } else {
    unit = static_cast<Unit>(fill.pattern);
  }
  Unit* const output_units = reinterpret_cast<Unit*>(fill.data) + line * units;
  for (uint32_t i = threadIdx.x % 32; i < cells * units; i += 32) {
    if ((points >> i / units & 1) == 0) output_units[i] = unit;
  }
}

// Fills the cells [line, line + cells) except those with a bit in `points`. If `aligned`, the outputs allow writes of
// 16 bytes. A whole warp calls it.
__device__ inline void fill_line(const Fills& fills, int64_t line, uint32_t cells, uint32_t points, int64_t features,
                                 bool aligned) {
  for (int i = 0; i < fills.count; ++i) {
    const Fills::Fill& fill = fills.list[i];
    if (aligned && features * fill.element_bytes % 16 == 0) {
      fill_cells<ulonglong2>(fill, line, cells, points, features);
    } else if (fill.element_bytes == 8) {
      fill_cells<uint64_t>(fill, line, cells, points, features);
    } else if (fill.element_bytes == 4) {
      fill_cells<uint32_t>(fill, line, cells, points, features);
    } else if (fill.element_bytes == 2) {
      fill_cells<uint16_t>(fill, line, cells, points, features);
    } else {
      fill_cells<uint8_t>(fill, line, cells, points, features);
    }
  }
}

}  // namespace robocache::voxels_cuda
