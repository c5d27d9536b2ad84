// The conversions of samples on one thread, compiled once per instruction set.
#pragma once

#include <cstdint>

#include "robocache/actions/convert_params.hpp"

namespace robocache {

using ConvertSamples = void(const ConvertActionsParams& params, int64_t begin, int64_t end);

namespace baseline {
ConvertSamples convert_samples;
}
namespace v3 {
ConvertSamples convert_samples;
}
namespace v4 {
ConvertSamples convert_samples;
}

}  // namespace robocache
