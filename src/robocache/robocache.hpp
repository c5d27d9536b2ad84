// Includes all that a C++ program calls: the writer and the reader of caches, a loader and the feed of its batches, and
// the operations. Each header also stands alone, and has the contracts of its declarations.
//
//   const auto dataset = robocache::Dataset::open("cache");
//   robocache::LoaderOptions options;
//   options.batch_size = 256;
//   options.streams = {{.stream = "action", .delta_timestamps = {0.0, 0.02, 0.04}}};
//   const auto loader = std::make_shared<const robocache::Loader>(dataset, options);
//   robocache::Feed feed(loader, {.prefetch = 2});
//   for (const robocache::Batch& batch : feed.epoch()) train(batch["action"], batch["action_is_pad"]);
#pragma once

#include "robocache/batch/feed.hpp"
#include "robocache/batch/loader.hpp"
#include "robocache/cache/dataset.hpp"
#include "robocache/cache/writer.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/error.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/image/decode_jpeg.hpp"
#include "robocache/image/image_batch.hpp"
#include "robocache/live/aligner.hpp"
#include "robocache/live/chunks.hpp"
#include "robocache/ops/fuse/fuse.hpp"
#include "robocache/ops/resample/resample.hpp"
#include "robocache/points/integrate_tsdf/integrate_tsdf.hpp"
#include "robocache/points/voxelize/voxelize.hpp"
#include "robocache/points/voxelize_sparse/voxel_downsample.hpp"
#include "robocache/points/voxelize_sparse/voxelize_sparse.hpp"
#include "robocache/sample/split.hpp"
