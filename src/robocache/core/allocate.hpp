// A call gets its working memory in one of two ways.
//
// If the sizes follow from the arguments, the caller provides the outputs and a workspace of the size that the
// operation's *_workspace_bytes returns (checked_workspace in core/arguments.hpp). Nothing is allocated.
//
// If the sizes are only known during the call, the caller provides an Allocate, for the results and for temporary
// memory.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>

#include "robocache/core/tensor_view.hpp"

namespace robocache {

// Returns contiguous memory on the call's device, aligned to 256 on CUDA and to 64 on the CPU, with any content. The
// memory must stay until the queued work is done. The operation passes its exceptions on to the caller.
using Allocate = std::function<TensorView(DType dtype, std::initializer_list<int64_t> shape)>;

// Returns a workspace, or null if no bytes are needed.
inline void* allocate_bytes(const Allocate& allocate, int64_t bytes) {
  return bytes > 0 ? allocate(DType::kUInt8, {bytes}).data : nullptr;
}

}  // namespace robocache
