#include "robocache/batch/window_survey.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <optional>
#include <vector>

#include "robocache/align/window_math.hpp"
#include "robocache/batch/option_checks.hpp"
#include "robocache/cache/wraps.hpp"
#include "robocache/core/arguments.hpp"
#include "robocache/core/mix_bits.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/core/time.hpp"
#include "robocache/interpolation/blocks.hpp"

namespace robocache {
namespace {

constexpr int64_t kMostAnchors = 2048;
constexpr int64_t kFewestAnchors = 64;
constexpr int64_t kMostTargets = 65536;    // for a key
constexpr int64_t kMostNumbers = 1 << 24;  // that are read of a stream

// A gap is reported if it is this many times the median period, and this long.
constexpr double kNamedGapPeriods = 10;
constexpr double kNamedGapNs = 5e8;

// Counts over the surveyed steps of a key.
struct Survey {
  int64_t anchors = 0;
  int64_t steps = 0;
  int64_t padding = 0;
  int64_t outside = 0;  // padding outside the recording
  int64_t valid = 0;
  int64_t between_rows = 0;                // valid steps between two rows
  std::vector<int64_t> half_durations_ns;  // of the anchors' episodes, halved to fit int64
  Anchor anchor{};                         // the first anchor that has a step between rows
  size_t step = 0;                         // its first such step
  int64_t row_distance_ns = 0;             // the distance of these rows
};

// Returns an anchor at a random index of a part. Evenly spaced anchors could miss events that repeat with their period.
int64_t anchor_of_part(int64_t anchors, int64_t part, int64_t parts) {
  const auto edge = [&](int64_t i) {
    return static_cast<int64_t>(static_cast<double>(anchors) * static_cast<double>(i) / static_cast<double>(parts));
  };
  const int64_t begin = edge(part);
  const int64_t end = std::min(std::max(begin + 1, edge(part + 1)), anchors);
  const uint64_t hash = mix_bits(static_cast<uint64_t>(part) + 1);
  return begin + static_cast<int64_t>(hash % static_cast<uint64_t>(end - begin));
}

// Returns the rule of a key's steps, without limits.
WindowSegment rule_of(const KeySpec& key, InterpolationMethod method) {
  WindowSegment rule{};
  rule.method = method;
  rule.max_gap_ns = -1;
  rule.tolerance_ns = -1;
  rule.causal = key.causal;
  return rule;
}

Survey survey_key(const KeySpec& key, InterpolationMethod method, int64_t snap_ns, const StreamClock& clock,
                  const AnchorIndex& anchors) {
  const std::vector<int64_t> stamps_ns = key.stamp_offsets_ns();
  const bool counts_rows = !key.offsets_rows.empty();
  WindowSegment rule = rule_of(key, method);
  rule.max_gap_ns = key.max_gap_ns.value_or(-1);
  rule.tolerance_ns = key.tolerance_ns.value_or(-1);
  const int64_t width = key.steps();
  const int64_t parts = std::min(anchors.anchors, std::clamp(kMostTargets / width, kFewestAnchors, kMostAnchors));
  Survey survey;
  for (int64_t part = 0; part < parts; ++part) {
    const Anchor anchor = anchors.at(anchor_of_part(anchors.anchors, part, parts));
    const EpisodeRows rows = clock.rows_of(anchor.episode);
    if (rows.rows < 2) continue;  // other checks count episodes without rows; a single row fills every step
    ++survey.anchors;
    const ClockRow<int64_t> times{clock.time_ns + rows.begin, 1};
    const int64_t last_ns = times[rows.rows - 1];
    survey.half_durations_ns.push_back(static_cast<int64_t>(ns_between(last_ns, rows.first_ns) >> 1U));
    for (size_t step = 0; step < static_cast<size_t>(width); ++step) {
      const int64_t target_ns = saturating_add(anchor.time_ns, stamps_ns[counts_rows ? 0 : step]);
      int64_t hint = guess_row(rows, target_ns);
      const WindowTarget<> target = find_target(times, rows.rows, target_ns, snap_ns, hint);
      const Pick<double> picked = counts_rows ? row_at(times, 0, rows.rows, target, key.offsets_rows[step], rule)
                                              : pick_at(times, rows.rows, target, rule);
      ++survey.steps;
      if (!picked.valid) {
        ++survey.padding;
        const int64_t row = counts_rows ? target.before + key.offsets_rows[step] : 0;
        const bool is_inside =
            counts_rows ? 0 <= row && row < rows.rows : rows.first_ns <= target.time_ns && target.time_ns <= last_ns;
        if (!is_inside) ++survey.outside;
        continue;
      }
      ++survey.valid;
      if (picked.kind != PickKind::kMix) continue;
      const uint64_t off_row_ns =
          std::min(ns_between(target.time_ns, times[picked.left]), ns_between(times[picked.right], target.time_ns));
      if (static_cast<double>(off_row_ns) <= kOffGridNs) continue;
      if (survey.between_rows++ == 0) {
        survey.anchor = anchor;
        survey.step = step;
        survey.row_distance_ns = static_cast<int64_t>(ns_between(times[picked.right], times[picked.left]));
      }
    }
  }
  return survey;
}

std::string percent_text(int64_t part, int64_t all) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g%%", 100 * static_cast<double>(part) / static_cast<double>(all));
  return text;
}

std::string seconds_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g s", value);
  return text;
}

std::string padding_text(const StreamRequest& key_request, const Stream& stream, Survey survey) {
  const auto middle = survey.half_durations_ns.begin() + std::ssize(survey.half_durations_ns) / 2;
  std::nth_element(survey.half_durations_ns.begin(), middle, survey.half_durations_ns.end());
  const auto [first, last] =
      std::minmax_element(key_request.delta_timestamps.begin(), key_request.delta_timestamps.end());
  std::string text = "delta_timestamps['" + key_request.stream + "']: " + percent_text(survey.padding, survey.steps) +
                     " of the steps are padding, in windows of " + std::to_string(survey.anchors) + " anchors";
  if (2 * survey.outside >= survey.padding) {
    const auto offset = [&](double value) { return key_request.rows ? number_text(value) : seconds_text(value); };
    text += ": the offsets are " + offset(*first) + " to " + offset(*last) + (key_request.rows ? " rows" : "") +
            " and the episodes last " + seconds_text(2 * static_cast<double>(*middle) / kNsPerSecond) + " (median)";
    if (stream.findings.period_ns > 0) text += ", a row " + seconds_text(stream.findings.period_ns / kNsPerSecond);
    return text + (key_request.rows ? "" : "; offsets are seconds, not rows, which Window(..., rows=True) counts") +
           "; edges='drop' draws only anchors whose windows lie in the recording";
  }
  return text + ": " + percent_text(survey.padding - survey.outside, survey.steps) +
         " because of max_gap_s, tolerance_s or causal; larger limits or another method fill more steps";
}

// Returns the gaps of a stream if windows interpolate across them, else "". It reads the findings, but no row.
std::string gaps_text(const StreamRequest& key_request, const KeySpec& key, const Stream& stream) {
  const StreamFindings& findings = stream.findings;
  const auto longest_ns = static_cast<double>(findings.max_period_ns);
  if (!is_floating(stream.dtype) || key.causal || key.max_gap_ns || !key.offsets_rows.empty()) return "";
  if (findings.gaps == 0 || longest_ns < kNamedGapNs || longest_ns < kNamedGapPeriods * findings.period_ns) return "";
  const std::vector<FeatureBlock> blocks = feature_blocks(stream.features, *key_request.method, key_request.methods);
  if (std::ranges::all_of(blocks, [](const FeatureBlock& block) { return is_step(block.method); })) return "";
  return "'" + key_request.stream + "' has " + std::to_string(findings.gaps) + (findings.gaps == 1 ? " gap" : " gaps") +
         " of up to " + seconds_text(longest_ns / kNsPerSecond) + " between rows that are " +
         seconds_text(findings.period_ns / kNsPerSecond) + " apart";
}

// Returns the first feature of method 'angle' with rows beyond [-pi, pi), else "". Values between rows are always within.
std::string turns_text(const StreamRequest& key_request, const Stream& stream) {
  if (!stream.has_statistics() || stream.stats.min.empty()) return "";
  constexpr double kRounding = 0.01;  // covers the rounding of float16
  for (const FeatureBlock& block : feature_blocks(stream.features, *key_request.method, key_request.methods)) {
    if (block.method != InterpolationMethod::kAngle) continue;
    for (int64_t f = block.begin; f < block.end; ++f) {
      const double low = stream.stats.min[static_cast<size_t>(f)];
      const double high = stream.stats.max[static_cast<size_t>(f)];
      if (low >= -std::numbers::pi - kRounding && high <= std::numbers::pi + kRounding) continue;
      if (std::isnan(low) || std::isnan(high)) continue;
      char text[96];
      std::snprintf(text, sizeof text, "' has %.4g to %.4g in feature ", low, high);
      return "'" + key_request.stream + text + std::to_string(f);
    }
  }
  return "";
}

// Returns the first feature that jumps by a turn between rows and is interpolated as a number; "" if there is none.
std::string wraps_text(const StreamRequest& key_request, const Stream& stream, const std::vector<int64_t>& episodes) {
  const std::vector<FeatureBlock> blocks = feature_blocks(stream.features, *key_request.method, key_request.methods);
  for (const cache::Wraps& wraps :
       cache::find_wraps(stream, episodes, 1 + kMostNumbers / std::max<int64_t>(1, stream.features))) {
    const auto block = std::ranges::find_if(blocks, [&](const FeatureBlock& b) { return wraps.feature < b.end; });
    if (is_step(block->method) || block->method == InterpolationMethod::kAngle ||
        block->method == InterpolationMethod::kSlerp) {
      continue;
    }
    char text[96];
    std::snprintf(text, sizeof text, " goes from %.4g to %.4g", wraps.from, wraps.to);
    const bool is_named = !stream.names.empty();
    return "'" + key_request.stream + "' feature " + std::to_string(wraps.feature) +
           (is_named ? " (" + stream.names[static_cast<size_t>(wraps.feature)] + ")" : "") + text + " at row " +
           std::to_string(wraps.row) + " of episode " + std::to_string(wraps.episode) +
           (wraps.turn == 360 ? " (degrees: 'previous')" : "");
  }
  return "";
}

}  // namespace

void survey_windows(const LoaderStreams& streams, const Draws& draws, size_t source, WindowNotes& notes) {
  const LoaderOptions& options = streams.options();
  const SourceRequest& source_request = options.sources[source];
  const std::string name = source_name(options, source);
  for (size_t request = 0; request < options.streams.size(); ++request) {
    const StreamRequest& key_request = options.streams[request];
    const auto& resident = streams.stream_of(source, request);
    if (!resident) continue;
    const Stream& stream = *source_request.stream_of(request);
    const BatchSpec& spec = streams.spec(source);
    const Survey survey = survey_key(spec.keys[request], *key_request.method, spec.snap_ns, resident->clock().on_host(),
                                     draws.around(source, key_request));
    // Goals are drawn later: their ticks are not known here.
    if (2 * survey.padding > survey.steps && !key_request.moment) {
      add_to_note(notes.padding, name + padding_text(key_request, stream, survey));
    }
    if (survey.between_rows > 0) {
      if (const std::string gaps = gaps_text(key_request, spec.keys[request], stream); !gaps.empty()) {
        add_to_note(notes.gaps, name + gaps);
      }
      if (const std::string wraps = wraps_text(key_request, stream, *source_request.episodes); !wraps.empty()) {
        add_to_note(notes.wraps, name + wraps);
      }
      if (const std::string turns = turns_text(key_request, stream); !turns.empty())
        add_to_note(notes.turns, name + turns);
    }
    if (survey.between_rows == 0 || key_request.method_asked || stream.clock != Clock::kNominal) continue;
    const double period_ns = period_ns_of(stream, survey.anchor.episode);
    const Stream* const anchors = options.anchor_hz ? nullptr : &source_request.dataset->stream(source_request.anchor);
    if (anchors != nullptr && anchors->clock != Clock::kNominal) {
      add_to_note(notes.made_up, name + "delta_timestamps['" + key_request.stream +
                                     "'].method: " + percent_text(survey.between_rows, survey.valid) +
                                     " of the values are made between rows, " + period_text(period_ns) +
                                     " apart, of a clock that is nominal, for anchors of the recorded clock of '" +
                                     source_request.anchor +
                                     "'; method= says which values are wanted, and ends this warning");
      continue;
    }
    refuse(name, anchors == nullptr ? "anchors.rate_hz: " : "anchors.stream: ",
           anchors == nullptr ? "ticks of " + number_text(*options.anchor_hz) + " Hz"
                              : "the rows of '" + source_request.anchor + "', " +
                                    period_text(period_ns_of(*anchors, survey.anchor.episode)) + " apart,",
           " are not on the rows of '", stream.name, "', ", period_text(period_ns),
           " apart, whose clock is nominal: nothing was recorded between them (such as ",
           seconds_text(key_request.delta_timestamps[survey.step]), " from the anchor of episode ",
           survey.anchor.episode, " at ", survey.anchor.time_ns, " ns",
           static_cast<double>(survey.row_distance_ns) > 1.5 * period_ns
               ? ", between rows that are " + seconds_text(static_cast<double>(survey.row_distance_ns) / kNsPerSecond) +
                     " apart"
               : "",
           "); expected ticks and offsets on its rows, or method=, such as 'previous' or ",
           method_proposal(key_request), ", to say which values");
  }
}

void check_tolerance(const LoaderStreams& streams, const Draws& draws, size_t source) {
  const LoaderOptions& options = streams.options();
  for (size_t request = 0; request < options.streams.size(); ++request) {
    const StreamRequest& key_request = options.streams[request];
    const auto& stream = streams.stream_of(source, request);
    if (!key_request.tolerance_s || !stream) continue;
    const StreamClock clock = stream->clock().on_host();
    const AnchorIndex anchors = draws.around(source, key_request);
    const KeySpec& key = streams.spec(source).keys[request];
    const std::vector<int64_t> delta_ns = key.stamp_offsets_ns();
    const WindowSegment rule = rule_of(key, *key_request.method);
    struct Miss {
      int64_t episode;
      int64_t target_ns;
      uint64_t distance;
    };
    // Returns the first target of an anchor that lies in the recording and whose row is too far away.
    const auto find_miss = [&](int64_t i) -> std::optional<Miss> {
      const Anchor anchor = anchors.at(i);
      const EpisodeRows rows = clock.rows_of(anchor.episode);
      if (rows.rows == 0) return {};
      const ClockRow<int64_t> times{clock.time_ns + rows.begin, 1};
      for (const int64_t delta : delta_ns) {
        const int64_t target_ns = saturating_add(anchor.time_ns, delta);
        int64_t hint = guess_row(rows, target_ns);
        const WindowTarget<> target = find_target(times, rows.rows, target_ns, streams.spec(source).snap_ns, hint);
        const Pick<double> picked = pick_at(times, rows.rows, target, rule);
        if (!picked.valid) continue;
        const int64_t row_ns = times[picked.left];
        const uint64_t distance =
            row_ns > target.time_ns ? ns_between(row_ns, target.time_ns) : ns_between(target.time_ns, row_ns);
        if (distance > static_cast<uint64_t>(*key.tolerance_ns)) return Miss{anchor.episode, target_ns, distance};
      }
      return {};
    };
    const int64_t first = parallel_first(anchors.anchors, 4096, [&](int64_t i) { return find_miss(i).has_value(); });
    if (first == anchors.anchors) continue;
    const auto [episode, target_ns, distance] = *find_miss(first);
    refuse(source_name(options, source), "delta_timestamps['", key_request.stream,
           "'].tolerance_s: expected a sample within ", *key_request.tolerance_s,
           " s of every target in the recording, got one ", static_cast<double>(distance) / kNsPerSecond,
           " s away in episode ", episode, " at ", target_ns, " ns");
  }
}

}  // namespace robocache
