// Whose memory a call works in, one of two ways.
//
// Where the sizes follow from the arguments, the caller brings everything: the outputs, and a workspace of as many bytes as
// the operation's *_workspace_bytes says (checked_workspace in core/arguments.hpp). Nothing is allocated.
//
// Where they are known only on the way, the caller brings an Allocate, for the answer and for what is needed meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>

#include "robocache/core/tensor_view.hpp"

namespace robocache {

// Dense memory on the call's device, aligned to 256 on CUDA and to 64 on the CPU, its content free. It must stay until the
// queued work is done. What it throws is the caller's.
using Allocate = std::function<TensorView(DType dtype, std::initializer_list<int64_t> shape)>;

// A workspace; null where no bytes are needed.
inline void* allocate_bytes(const Allocate& allocate, int64_t bytes) {
  return bytes > 0 ? allocate(DType::kUInt8, {bytes}).data : nullptr;
}

}  // namespace robocache
