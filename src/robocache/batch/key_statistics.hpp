// The statistics that normalise a key of a source: those given for the source, else those given for all sources, else computed
// ones. Computed ones are of the episodes that the source selects, or of all. For a converted key they describe the values of its
// windows, for other keys the rows, whose statistics a cache has. All functions take complete options.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "robocache/batch/normalisation.hpp"
#include "robocache/batch/options.hpp"
#include "robocache/batch/spec.hpp"

namespace robocache {

// Returns an affine for each feature of the source's stream; none if the key is not normalised or the source has no such
// stream. Throws ArgumentError for statistics that do not fit or describe other values, and FileError. `spec` is the source's,
// still without affines.
std::vector<Affine> affines_of(const LoaderOptions& options, size_t source, size_t request, const BatchSpec& spec);

// Returns sentences on features that vary and are not scaled: one on features whose statistics give no scale, one on features
// with a spread below `min_spread`. `specs` has one spec for each source. Throws like affines_of.
std::vector<std::string> unscaled_notes(const LoaderOptions& options, std::span<const BatchSpec> specs);

// Returns a sentence on the float64 features that rounding to float32 changes by more than 1/4096 of their std, or "". Keys that
// are normalised or converted do not count, since they are rounded afterwards; nor do windows that name a dtype.
std::string rounding_note(const LoaderOptions& options);

// Returns a sentence on values that become infinite in the batch's dtype, or "". It knows only values with known statistics.
// `specs` has one spec for each source.
std::string overflow_note(const LoaderOptions& options, std::span<const BatchSpec> specs);

}  // namespace robocache
