// Handles episodes that have no row of a stream of the batch.
#include <algorithm>
#include <iterator>
#include <string>

#include "robocache/batch/option_checks.hpp"
#include "robocache/core/arguments.hpp"

namespace robocache {
namespace {

// A stream that the drawn episodes need, and the number of them that lack it.
struct Need {
  const Stream* stream;
  std::string key;
  bool is_anchor = false;
  int64_t lacking = 0;
  int64_t first = -1;  // the first episode that lacks it
};

// Returns the streams that at least one episode of the cache lacks.
std::vector<Need> needs_of(const LoaderOptions& options, size_t index) {
  const SourceRequest& source = options.sources[index];
  std::vector<Need> needs;
  for (size_t request = 0; request < options.streams.size(); ++request) {
    const Stream* const stream = source.stream_of(request);
    if (stream != nullptr) needs.push_back({stream, options.streams[request].stream, stream->name == source.anchor});
  }
  const auto is_anchor = [](const Need& need) { return need.is_anchor; };
  if (!options.anchor_hz && std::none_of(needs.begin(), needs.end(), is_anchor)) {
    needs.push_back({&source.dataset->stream(source.anchor), key_of(source, source.anchor), true});
  }
  std::erase_if(needs, [](const Need& need) { return need.stream->findings.empty_episodes == 0; });
  return needs;
}

// Returns text like "3 of 10 episodes have no row of 'camera', 1 none of 'lidar'".
std::string lacking_text(const std::vector<Need>& needs, int64_t episodes) {
  std::string text;
  for (const Need& need : needs) {
    text += text.empty()
                ? std::to_string(need.lacking) + " of " + std::to_string(episodes) + " episodes have no row of '"
                : ", " + std::to_string(need.lacking) + " none of '";
    text += need.key + "'";
  }
  return text;
}

// Returns the condition on episodes that have rows of all these streams, as a user writes it.
std::string condition_text(const std::vector<Need>& needs) {
  std::string text;
  for (const Need& need : needs) {
    text += (text.empty() ? "(pc.field('rows." : " & (pc.field('rows.") + need.stream->name + "') > 0)";
  }
  return text;
}

// Whether an episode has a row of any stream that the batch takes.
bool has_rows(const SourceRequest& source, int64_t episode) {
  return std::ranges::any_of(source.streams, [&](const std::optional<int64_t>& stream) {
    return stream && source.dataset->stream(*stream).rows_of(episode) > 0;
  });
}

// Notes the keys that no stream of a source fills.
void note_absent(const LoaderOptions& options, size_t index, std::string& note) {
  const SourceRequest& source = options.sources[index];
  std::string keys;
  for (size_t request = 0; request < options.streams.size(); ++request) {
    if (!source.streams[request]) keys += (keys.empty() ? "'" : ", '") + options.streams[request].stream + "'";
  }
  if (keys.empty()) return;
  add_to_note(note, source_name(options, index) + "missing: no stream for " + keys + ": in all of its " +
                        std::to_string(source.episodes->size()) +
                        " episodes the values are 0 and is_pad is true; rename= names the stream that fills a key");
}

}  // namespace

void judge_missing(LoaderOptions& options, size_t index, std::string& note) {
  note_absent(options, index, note);
  std::vector<Need> needs = needs_of(options, index);
  if (needs.empty()) return;
  const std::string name = source_name(options, index);
  std::vector<int64_t>& episodes = *options.sources[index].episodes;
  const auto count = static_cast<int64_t>(episodes.size());
  std::vector<int64_t> complete;
  for (const int64_t episode : episodes) {
    bool has_all = true;
    // An episode without anchors is not drawn: then only the lack of anchors counts. In drawn episodes other streams count.
    const auto lacks = [&](const Need& need) { return need.stream->rows_of(episode) == 0; };
    const bool is_drawn =
        std::none_of(needs.begin(), needs.end(), [&](const Need& need) { return need.is_anchor && lacks(need); }) &&
        (!options.anchor_hz || has_rows(options.sources[index], episode));
    for (Need& need : needs) {
      if (!lacks(need)) continue;
      has_all = false;
      if (need.is_anchor != is_drawn) {
        ++need.lacking;
        if (need.first < 0) need.first = episode;
      }
    }
    if (has_all) complete.push_back(episode);
  }
  std::erase_if(needs, [](const Need& need) { return need.lacking == 0; });
  if (needs.empty()) return;
  const std::string text = name + "missing: " + lacking_text(needs, count);
  if (options.missing == Missing::kError) {
    refuse(text, "; the first is episode ", needs[0].first,
           "; expected rows of every key in every episode that is drawn from, or missing='pad' or 'drop'");
  }
  if (options.missing == Missing::kDrop) {
    if (complete.empty()) refuse(text, "; expected an episode that has rows of all keys, got none to draw from");
    episodes = std::move(complete);
    return;
  }
  if (options.edges == Edges::kDrop) return;  // edges='drop' leaves these episodes out
  std::vector<Need> anchor_needs;
  std::copy_if(needs.begin(), needs.end(), std::back_inserter(anchor_needs),
               [](const Need& need) { return need.is_anchor; });
  std::erase_if(needs, [](const Need& need) { return need.is_anchor; });
  if (!needs.empty()) {
    add_to_note(note, name + "missing: " + lacking_text(needs, count) +
                          ": the values are 0 there and is_pad is true; missing='drop' or episodes=" +
                          condition_text(needs) + " leaves these episodes out");
  }
  if (!anchor_needs.empty()) {
    add_to_note(note, name + "anchors: " + lacking_text(anchor_needs, count) +
                          ", whose rows are the anchors: these episodes are not drawn; anchors= names another stream");
  }
}

}  // namespace robocache
