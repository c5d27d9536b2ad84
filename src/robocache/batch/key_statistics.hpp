// The statistics that normalise a key of a source: given for the source, else given for all sources; else of the episodes that
// the source draws from, or of all: of a converted key those of what its windows give, of any other those of the rows, which a
// cache has. All functions take complete options.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "robocache/batch/normalisation.hpp"
#include "robocache/batch/options.hpp"
#include "robocache/batch/spec.hpp"

namespace robocache {

// For each feature of the source's stream; empty if the key is not normalised or the source has no such stream. Throws
// ArgumentError for statistics that do not fit or are of other values, FileError. `spec` is the source's, but for its affines.
std::vector<Affine> affines_of(const LoaderOptions& options, size_t source, size_t request, const BatchSpec& spec);

// Returns sentences on features that vary and are not scaled: one on those whose statistics give no scale, one on those with a
// spread below `min_spread`. `specs` has one spec a source. Throws as affines_of.
std::vector<std::string> unscaled_notes(const LoaderOptions& options, std::span<const BatchSpec> specs);

// A sentence on the float64 keys that the batch's dtype rounds by a share of their std that matters, or "". Those that are normalised
// or converted are rounded behind that, and a window's own dtype is what was asked for.
std::string rounding_note(const LoaderOptions& options);

// Returns a sentence on the values that the batch's dtype makes infinite, or "". It sees only values with known statistics. `specs`
// has one spec a source.
std::string overflow_note(const LoaderOptions& options, std::span<const BatchSpec> specs);

}  // namespace robocache
