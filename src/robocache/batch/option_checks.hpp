// The parts of complete_options (batch/options.hpp): what a key leaves out and what it asks for, episodes without rows of a key,
// and conversions. All throw ArgumentError and ArgumentTypeError that name the argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "robocache/batch/options.hpp"
#include "robocache/cache/dataset.hpp"

namespace robocache {

// "delta_timestamps['action'].method", or without a field the whole window.
std::string of_stream(const StreamRequest& request, std::string_view field = "");

// The key that a stream of a source fills.
std::string key_of(const SourceRequest& source, const std::string& stream);

// "feature 2 is 'left_0' and 'right_0'" for the first feature whose names differ, or nothing where both have the same or one has
// none.
std::string first_difference(const std::vector<std::string>& names, const std::vector<std::string>& others);
bool are_reordered(std::vector<std::string> names, std::vector<std::string> others);

// Says what the request leaves out, by the first of the streams that fill it, and checks what it then says against all of them.
void complete_request(const LoaderOptions& options, const std::vector<const Stream*>& streams, StreamRequest& request);

// Checks a window around ticks of `anchor`, by no method that was asked for, of a stream of the same clock whose stamps are an index:
// its offsets must be rows. window_survey.hpp is for all other ticks.
void check_grid(const LoaderOptions& options, const StreamRequest& request, const Stream& stream, const Stream& anchor);

// Refuses a key whose sources have the same features in different orders, which its rows would mix, and notes one whose sources
// name them differently.
void check_names(const StreamRequest& request, const std::vector<const Stream*>& streams, std::string& note);

// Leaves out, refuses or notes the episodes of a source that lack a stream, and notes keys that no stream fills.
void judge_missing(LoaderOptions& options, size_t source, std::string& note);

// Checks a key's conversion, and what flipped images mirror of it.
void check_conversion(const LoaderOptions& options, size_t request);

}  // namespace robocache
