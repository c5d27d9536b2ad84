// The parts of complete_options (batch/options.hpp). They complete and check a key, look for episodes without rows of a
// key, and check conversions. All throw ArgumentError and ArgumentTypeError that name the argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "robocache/batch/options.hpp"
#include "robocache/cache/dataset.hpp"

namespace robocache {

// Returns how errors name a window, or a field of it: "delta_timestamps['action'].method".
std::string argument_of(const StreamRequest& request, std::string_view field = "");

// Returns the key that a stream of a source fills.
std::string key_of(const SourceRequest& source, const std::string& stream);

// Returns "feature 2 is 'left_0' and 'right_0'" for the first feature whose names differ, or "" if none do or a list is empty.
std::string first_difference(const std::vector<std::string>& names, const std::vector<std::string>& other_names);
bool are_reordered(std::vector<std::string> names, std::vector<std::string> other_names);

// Fills in the defaults of a request, by its first stream, and checks the result against all its streams.
void complete_request(const LoaderOptions& options, const std::vector<const Stream*>& streams, StreamRequest& request);

// Checks a window that names no method, if the anchors share the nominal clock of a source's stream: each offset must
// be a multiple of the period of each drawn episode. window_survey.hpp checks all other windows.
void check_grid(const LoaderOptions& options, size_t request);

// Returns the period of an episode's rows on a nominal clock. Rows may be missing. Returns 0 for fewer than two rows.
double period_ns_of(const Stream& stream, int64_t episode);

// Returns a period as "0.05 s (20 Hz)".
std::string period_text(double period_ns);

// Refuses a key whose sources have the same features in different orders, since a batch would mix them. Notes a key whose sources
// name the features differently.
void check_names(const StreamRequest& request, const std::vector<const Stream*>& streams, std::string& note);

// Drops, refuses or notes the episodes of a source that lack a stream, and notes keys that no stream fills.
void judge_missing(LoaderOptions& options, size_t source, std::string& note);

// Checks a key's conversion, and which of its features change their signs with flipped images.
void check_conversion(const LoaderOptions& options, size_t request);

// Checks all stored rotations that conversions read in the episodes of the sources: of poses, of their bases, and of rotations
// whose representation changes. NaN marks padding and is no error. The loader calls this after complete_options(), because it
// reads all these rows.
void check_stored_rotations(const LoaderOptions& options);

}  // namespace robocache
