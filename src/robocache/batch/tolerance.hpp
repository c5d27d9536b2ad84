// Checks that every target has a sample within its key's tolerance_s.
#pragma once

#include <cstddef>

#include "robocache/batch/loader_streams.hpp"
#include "robocache/batch/options.hpp"
#include "robocache/sample/anchors.hpp"

namespace robocache {

// Checks the targets of every anchor of a source that are inside the recording. Throws ArgumentError that names stream,
// episode, time and distance of the first target whose sample is too far away.
void check_tolerance(const LoaderOptions& options, const LoaderStreams& streams, size_t source,
                     const AnchorsAround& around);

}  // namespace robocache
