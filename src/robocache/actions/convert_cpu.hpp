// The conversions of a sample on one thread, compiled once per instruction set.
#pragma once

#include <cstdint>

#include "robocache/actions/convert_params.hpp"

namespace robocache {

// Converts the steps of one sample. `batch` is the start of the batch, `source` the index of the sample's source.
using ConvertSample = void(const ConvertActionsParams& params, char* batch, int32_t source, int64_t sample,
                           const FlippedAxes& flipped);

namespace baseline {
ConvertSample convert_steps;     // step by step, for all conversions
ConvertSample convert_features;  // feature by feature, which is faster; only if no conversion mixes features
}  // namespace baseline
namespace v3 {
ConvertSample convert_steps;
ConvertSample convert_features;
}  // namespace v3
namespace v4 {
ConvertSample convert_steps;
ConvertSample convert_features;
}  // namespace v4

}  // namespace robocache
