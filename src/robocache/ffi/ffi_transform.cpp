#include <optional>
#include <string>

#include "robocache/ffi/arguments.hpp"
#include "robocache/ffi/ffi.hpp"
#include "robocache/image/image_batch.hpp"
#include "robocache/image/options.hpp"

namespace robocache::ffi {

// (options as JSON)
ROBOCACHE_FFI(check_image_options, args, result) { image_options_from_json(args.string(0, "options")); }

// (frames, rows or None, options as JSON, seed, epoch, sample, unit_m or None, out or None) -> the batch, if out is None
ROBOCACHE_FFI(image_batch, args, result) {
  const TensorView frames = args.tensor(0, "frames");
  const ImageBatch batch(frames, optional_tensor(args, 1, "rows"), image_options_from_json(args.string(2, "options")),
                         optional_real(args, 6, "unit_m"));
  const ImageDraw draw{.seed = static_cast<uint64_t>(args.integer(3, "seed")),
                       .epoch = static_cast<uint64_t>(args.integer(4, "epoch")),
                       .sample = args.integer(5, "sample")};
  const Workspace workspace(batch.workspace_bytes(), frames.device);
  void* const memory = workspace.view ? workspace.view->data : nullptr;
  if (const auto out = optional_tensor(args, 7, "out")) {
    batch.run(draw, *out, memory, current_stream(frames.device));
  } else {
    OwnedTensor made = OwnedTensor::allocate(batch.output());
    batch.run(draw, made.view(), memory, current_stream(frames.device));
    result.set(std::move(made));
  }
}

}  // namespace robocache::ffi
