// Finds stored rows that hold no valid rotation for a conversion, before a loader draws them.
#pragma once

#include "robocache/batch/options.hpp"

namespace robocache {

// Checks the rows of poses, of their bases, and of rotations whose representation changes, in the episodes of the
// sources. It reads all these rows once. `options` are complete. Throws ArgumentError that names the key's conversion,
// the stream, the episode and the row. NaN marks padding and is no error.
void check_stored_rotations(const LoaderOptions& options);

}  // namespace robocache
