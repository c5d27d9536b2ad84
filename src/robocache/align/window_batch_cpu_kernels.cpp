// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <cstdint>

#include "robocache/actions/convert_cpu.hpp"
#include "robocache/align/window_batch_cpu.hpp"
#include "robocache/align/window_item.hpp"
#include "robocache/align/window_math.hpp"
#include "robocache/source/read_rows.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

// The rows of different samples are far apart, so each read would wait for main memory. Therefore each stage prefetches
// memory for the next one: it draws kTogether samples while it searches for the previous kTogether, and it searches
// kSearched samples before it writes the previous kSearched.
constexpr int64_t kTogether = 4;
constexpr int64_t kSearched = 4;

bool has_files(const WindowSource& source) {
  for (int32_t g = 0; g < source.group_count; ++g) {
    const Group group(source.groups[g]);
    for (int32_t i = 0; i < group.segment_count; ++i) {
      if (group.segments[i].file.descriptor >= 0) return true;
    }
  }
  return false;
}

bool has_files(const WindowBatch& batch) {
  if (batch.plan.sources == nullptr) return has_files(batch.plan.first);
  for (int32_t source = 0; source < batch.mixture.sources; ++source) {
    if (has_files(batch.plan.sources[source])) return true;
  }
  return false;
}

// Announces the rows of files that a sample will probably read, by a guess from the times, for windows whose rows lie
// close together.
void expect_files(const WindowSource& source, const Anchor& anchor) {
  for (int32_t g = 0; g < source.group_count; ++g) {
    const Group group(source.groups[g]);
    for (int32_t i = 0; i < group.segment_count; ++i) {
      const WindowSegment& s = group.segments[i];
      const WindowClock& clock = group.clocks[s.clock];
      const EpisodeRows rows = clock.rows.rows_of(anchor.episode);
      if (s.file.descriptor < 0 || s.first_moment < 0 || rows.rows == 0) continue;
      const int64_t last_delta = group.moments[s.first_moment + s.steps - 1].delta;
      const int64_t first = guess_moment(clock, rows, s.first_delta, anchor.time_ns);
      const int64_t last = guess_moment(clock, rows, last_delta, anchor.time_ns) + 1;
      const int64_t end = last < rows.rows ? last + 1 : rows.rows;
      if ((end - first) * s.row_bytes > s.steps * (kShortGap + 2 * s.row_bytes)) continue;  // the rows are far apart
      announce_rows(s.file, (rows.begin + first) * s.row_bytes, (end - first) * s.row_bytes);
    }
  }
}

// Announces the rows of files for samples [begin, end), as far as the batch has them.
void expect_files(const WindowBatch& batch, int64_t begin, int64_t end) {
  const WindowPlan& plan = batch.plan;
  for (int64_t i = begin; i < end && i < batch.count; ++i) {
    const Draw draw = batch.draw(i);
    const WindowSource& source = plan.sources == nullptr ? plan.first : plan.sources[draw.source];
    expect_files(source, source.anchors.at(draw.anchor));
  }
}

// Writes the constants of a sample.
void write_constants(const WindowSource& source, int64_t sample, char* memory) {
  for (int32_t i = 0; i < source.constant_count; ++i) {
    const WindowConstant& constant = source.constants[i];
    __builtin_memcpy(memory + constant.out_offset + sample * constant.size, constant.bytes,
                     static_cast<size_t>(constant.size));
  }
}

// Writes the values of an item; after the last item of a sample it also converts the sample.
void finish(const WindowBatch& batch, Item& item, char* memory, Wanted& prefetches) {
  const WindowPlan& plan = batch.plan;
  write_values(item, memory, prefetches);
  if (item.group + 1 != item.source->groups + item.source->group_count) return;
  const auto source = static_cast<int32_t>(plan.sources == nullptr ? 0 : item.source - plan.sources);
  for (int32_t i = 0; i < plan.conversion_count; ++i) {
    const ConvertActionsParams& conversion = plan.conversions[i];
    const FlippedAxes flipped = flipped_axes(batch, conversion, item.sample);
    (conversion.by_feature ? convert_features : convert_steps)(conversion, memory, source, item.sample, flipped);
  }
}

}  // namespace

void window_samples(const WindowBatch& batch, Ranges& samples) {
  const WindowPlan& plan = batch.plan;
  auto* const memory = static_cast<char*>(batch.memory);
  const bool reads_files = has_files(batch);
  struct Drawn {
    const WindowSource* source;
    int64_t sample;
    Anchor anchor;
  };
  int64_t begin = 0;
  int64_t end = 0;
  int64_t announced = 0;  // the end of the samples that this thread has announced
  // Draws the next samples, at most kTogether, into `to`, and returns their number.
  const auto draw = [&](Drawn* to) {
    int64_t indices[kTogether];
    int64_t count = 0;
    for (; count < kTogether; ++count) {
      if (begin == end) {
        if (!samples.next(begin, end)) break;
        constexpr int64_t kAhead = 64;
        if (reads_files && announced < end + kAhead) {
          expect_files(batch, begin < announced ? announced : begin, end + kAhead);
          announced = end + kAhead;
        }
      }
      to[count].sample = begin++;
    }
    for (int64_t i = 0; i < count; ++i) {
      const Draw mixture_draw = batch.draw(to[i].sample);
      to[i].source = plan.sources == nullptr ? &plan.first : plan.sources + mixture_draw.source;
      const auto write = [&](int64_t offset, int64_t value) {
        if (offset >= 0) reinterpret_cast<int64_t*>(memory + offset)[to[i].sample] = value;
      };
      write(plan.source_offset, mixture_draw.source);
      if (plan.anchor_offset >= 0) write(plan.anchor_offset, batch.mixture.number_of(mixture_draw));
      indices[i] = mixture_draw.anchor;
      const AnchorIndex& anchors = to[i].source->anchors;
      prefetch(&anchors.first_of[mixture_draw.anchor >> anchors.shift]);
    }
    for (int64_t i = 0; i < count; ++i) {
      const Anchor anchor = to[i].anchor = to[i].source->anchors.at(indices[i]);
      const int64_t sample = to[i].sample;
      if (plan.time_offset >= 0) reinterpret_cast<int64_t*>(memory + plan.time_offset)[sample] = anchor.time_ns;
      if (plan.episode_offset >= 0) reinterpret_cast<int64_t*>(memory + plan.episode_offset)[sample] = anchor.episode;
      write_constants(*to[i].source, sample, memory);
    }
    for (int64_t i = 0; i < count; ++i) {
      for (int32_t g = 0; g < to[i].source->group_count; ++g) {
        prefetch_clocks(Group(to[i].source->groups[g]), to[i].anchor);
      }
    }
    return count;
  };
  Item items[2 * kSearched];  // used in turn
  int64_t searched = 0;
  int64_t written = 0;
  const auto item_at = [&](int64_t n) -> Item& { return items[n % (2 * kSearched)]; };
  Drawn drawn[2][kTogether];
  int64_t next_count = draw(drawn[0]);
  for (int turn = 0; next_count > 0; turn = 1 - turn) {
    const int64_t count = next_count;
    next_count = draw(drawn[1 - turn]);
    for (const Drawn* from = drawn[turn]; from != drawn[turn] + count; ++from) {
      for (int32_t g = 0; g < from->source->group_count; ++g) {
        Item& item = item_at(searched);
        item.source = from->source;
        item.group = from->source->groups + g;
        item.anchor = from->anchor;
        item.sample = from->sample;
        // Meanwhile prefetches what the previous item needs.
        find_rows(item, plan.snap_ns, memory, item_at(searched + 2 * kSearched - 1).wanted);
        if (++searched % kSearched != 0) continue;
        for (int64_t n = searched - kSearched; n < searched; ++n) {
          Wanted& next = item_at(n).wanted;
          if (n >= kSearched) finish(batch, item_at(written++), memory, next);
          next.prefetch_rest();
        }
      }
    }
  }
  Wanted* last = &items[0].wanted;
  for (int64_t n = written; n < searched; ++n) {
    last = &item_at(n).wanted;
    last->prefetch_rest();
  }
  while (written < searched) finish(batch, item_at(written++), memory, *last);
}

}  // namespace robocache::ROBOCACHE_ISA
