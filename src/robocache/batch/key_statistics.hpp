// The statistics that normalise a key of a source: given for the source, else given for all sources, else of the episodes that
// the source draws from, else the cache's own. All functions take complete options.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "robocache/batch/normalisation.hpp"
#include "robocache/batch/options.hpp"

namespace robocache {

// For each feature of the source's stream; empty if the key is not normalised or the source has no such stream. Throws
// ArgumentError for statistics that do not fit, FileError.
std::vector<Affine> affines_of(const LoaderOptions& options, size_t source, size_t request);

// A sentence on the features that are not scaled although they are not constant, or "". Throws as affines_of.
std::string lesser_spread_note(const LoaderOptions& options);

}  // namespace robocache
