// Whether every target has a sample as near as it was asked to be.
#pragma once

#include <cstddef>

#include "robocache/batch/loader_streams.hpp"
#include "robocache/batch/options.hpp"
#include "robocache/sample/anchors.hpp"

namespace robocache {

// Looks at every anchor of a source. Throws ArgumentError that names the stream, episode, time and distance of the first target
// within the recording whose sample is farther than its key's tolerance_s.
void check_tolerance(const LoaderOptions& options, const LoaderStreams& streams, size_t source,
                     const AnchorIndex& anchors);

}  // namespace robocache
