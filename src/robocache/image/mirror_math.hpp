// Mirrors one sample, for the CPU loop and the CUDA kernel.
#pragma once

#include <cstdint>

#include "robocache/core/host_device.hpp"
#include "robocache/image/augment_math.hpp"
#include "robocache/image/mirror.hpp"

namespace robocache {

// The axes along which a sample is flipped, as in MirrorParams::axes.
ROBOCACHE_HD uint8_t flipped_axes(const MirrorParams& p, int64_t sample) {
  ImageDraw draw = p.first;
  draw.sample += sample;
  return static_cast<uint8_t>((is_flipped(draw, 0, p.flip[0]) ? 1 : 0) | (is_flipped(draw, 1, p.flip[1]) ? 2 : 0));
}

// Number i of a sample's. A zero stays without a sign.
template <class Scalar>
ROBOCACHE_HD void mirror_number(const MirrorParams& p, uint8_t flipped, int64_t sample, int64_t i) {
  const uint8_t axes = p.axes[i % p.features] & flipped;
  if (axes != 1 && axes != 2) return;  // of both axes a sign is reversed twice
  Scalar& x = static_cast<Scalar*>(p.values)[sample * p.rows * p.features + i];
  x = Scalar(0) - x;
}

}  // namespace robocache
