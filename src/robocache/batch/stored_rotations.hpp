// Looks for stored rows that hold no valid rotation for a conversion, before a loader draws them.
#pragma once

#include "robocache/batch/options.hpp"

namespace robocache {

// Checks poses, their bases and representations that change, in the episodes that are drawn from; `options` are complete. Throws
// ArgumentError that names the key's conversion, the stream, the episode and the row. NaN marks padding and is no error. Reads
// all of their rows once.
void check_stored_rotations(const LoaderOptions& options);

}  // namespace robocache
