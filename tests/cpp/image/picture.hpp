// Pictures with structure at every scale. Pictures that compress well would hardly test a codec.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace robocache::test {

// Returns [height, width, channels]: waves, an edge and noise; the same for the same seed.
inline std::vector<uint8_t> picture(int64_t height, int64_t width, int64_t channels, unsigned seed = 0) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> noise(-20, 20), phase(0, 6);
  const double first_phase = phase(random), second_phase = phase(random);
  std::vector<uint8_t> pixels;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        const double wave = 60 * std::sin(0.11 * static_cast<double>(x + 2 * c) + first_phase) +
                            50 * std::cos(0.07 * static_cast<double>(y * (c + 1)) + second_phase);
        const double value = 120 + wave + (3 * x + y > 2 * width ? 60 : 0) + noise(random);
        pixels.push_back(static_cast<uint8_t>(std::clamp(value, 0.0, 255.0)));
      }
    }
  }
  return pixels;
}

}  // namespace robocache::test
