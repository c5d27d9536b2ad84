// Surveys the windows of some anchors before the first batch, for steps that are padding, and for values that would be
// invented between the rows of a nominal clock or in gaps. Checks tolerances of all anchors on demand.
#pragma once

#include <cstddef>
#include <string>

#include "robocache/batch/draws.hpp"
#include "robocache/batch/loader_streams.hpp"

namespace robocache {

// Notes for people about windows; "" if there is nothing to report.
struct WindowNotes {
  // Keys more than half of whose steps are padding. Episodes with at most one row do not count.
  std::string padding;
  // Nominal streams with values between rows around anchors of a recorded clock, if no method was asked for.
  std::string made_up;
  // Streams whose long gaps are interpolated, because no limit is set.
  std::string gaps;
  // Streams whose rows store angles beyond [-pi, pi); values between rows lie within it.
  std::string turns;
  // Streams whose features jump by a turn from row to row, as angles do, and are interpolated as numbers.
  std::string wraps;
};

// Surveys up to 2048 anchors of a source, one from each of as many equal parts, the same ones each time, and adds to the notes.
// Throws ArgumentError for values between the rows of a nominal stream, if no method was asked for and the anchors are ticks
// of a rate or of a nominal clock.
void survey_windows(const LoaderStreams& streams, const Draws& draws, size_t source, WindowNotes& notes);

// Checks the targets of every anchor of a source that are inside the recording. Throws ArgumentError that names stream,
// episode, time and distance of the first target whose row is farther away than its key's tolerance_s.
void check_tolerance(const LoaderStreams& streams, const Draws& draws, size_t source);

}  // namespace robocache
