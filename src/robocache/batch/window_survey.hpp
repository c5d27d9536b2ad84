// Surveys the windows of some anchors before the first batch, for steps that are padding, and for values that would be invented
// between the rows of a nominal clock.
#pragma once

#include <cstddef>
#include <string>

#include "robocache/batch/loader_streams.hpp"
#include "robocache/batch/options.hpp"
#include "robocache/sample/anchors.hpp"

namespace robocache {

// Surveys up to 2048 anchors of a source, spread evenly, each time the same ones, and adds to two notes for people. `padding_note` names
// the keys with more than half of all steps in padding; episodes with at most one row of the key do not count. `made_up_note` names the
// nominal streams with values between rows, by a method that nobody asked for, around anchors of a recorded clock. Throws
// ArgumentError for such values if the anchors are ticks of a rate or of a nominal clock.
void survey_windows(const LoaderOptions& options, const LoaderStreams& streams, size_t source,
                    const AnchorsAround& around, std::string& padding_note, std::string& made_up_note);

}  // namespace robocache
