// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
// Computes the values of a sample's steps from the rows that they use.
#include <cstdint>
#include <type_traits>

#include "robocache/align/lanes.hpp"
#include "robocache/align/window_batch_cpu.hpp"
#include "robocache/align/window_item.hpp"
#include "robocache/align/window_math.hpp"
#include "robocache/core/row_range.hpp"
#include "robocache/interpolation/methods.hpp"
#include "robocache/source/read_rows.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

// ---- One row, or a straight mixture of two --------------------------------------------------------------------------

// Computes the features [begin, begin + kColumns * kCount) of the steps; `part` is AllLanes, or FirstLanes for the end
// of a row. No step is curved, and each has a row. `first` is the first step's index in the segment. Steps come one
// after another, so that scale and shift are loaded once if all steps share them.
template <int kColumns, int kCount, bool kScaled, bool kRelative, class In, class Out, class Part>
void write_column(const WindowSegment& s, const char* values, const Picks& picks, int64_t first, int64_t count,
                  int64_t begin, Part part, const float* base, char* out, Wanted& prefetches) {
  using Work = WorkType<In>;
  using Column = Lanes<Work, kCount>;
  Column scale[kColumns];
  Column shift[kColumns];
  const auto load_affine = [&](int64_t step) {
    for (int c = 0; c < kColumns; ++c) {
      const int64_t offset = step * s.scale_step + begin + int64_t{c} * kCount;
      part.template load<kCount, Work>(static_cast<const Work*>(s.scale) + offset, scale[c]);
      part.template load<kCount, Work>(static_cast<const Work*>(s.shift) + offset, shift[c]);
    }
  };
  if constexpr (kScaled) load_affine(first);
  Column subtracted[kColumns];
  if constexpr (kRelative) {
    for (int c = 0; c < kColumns; ++c) {
      part.template load<kCount, Work>(base + begin + int64_t{c} * kCount, subtracted[c]);
    }
  }
  const char* const column = values + begin * static_cast<int64_t>(sizeof(In));
  auto* to = reinterpret_cast<Out*>(out) + begin;
  const auto next_step = [&](Out* step) {
    return reinterpret_cast<Out*>(reinterpret_cast<char*>(step) + s.step_bytes);
  };
  for (int64_t k = 0; k < count; ++k) {
    prefetches.prefetch_next();
    const auto* const a = reinterpret_cast<const In*>(column + picks.left[k] * s.row_bytes);
    Column y[kColumns]{};
    if (picks.is_mixed(k)) {
      const auto* const b = reinterpret_cast<const In*>(column + picks.right[k] * s.row_bytes);
      const Column weight = static_cast<Work>(picks.weight[k]) - Column{};
      for (int c = 0; c < kColumns; ++c) {
        Column left;
        Column right;
        part.template load<kCount, Work>(a + c * kCount, left);
        part.template load<kCount, Work>(b + c * kCount, right);
        lerp_lanes(left, right, weight, y[c]);
      }
    } else if constexpr (std::is_same_v<In, Out> && !kScaled && !kRelative) {
      for (int c = 0; c < kColumns; ++c) {
        part.template copy<kCount>(a + c * kCount, to + c * kCount);  // keeps every bit
      }
      to = next_step(to);
      continue;
    } else {
      for (int c = 0; c < kColumns; ++c) part.template load<kCount, Work>(a + c * kCount, y[c]);
    }
    if constexpr (kRelative) {
      for (int c = 0; c < kColumns; ++c) y[c] = y[c] - subtracted[c];
    }
    if constexpr (kScaled) {
      if (s.scale_step != 0) load_affine(first + k);
      for (int c = 0; c < kColumns; ++c) multiply_add_lanes(scale[c], y[c], shift[c]);
      if (s.clip) {
        for (int c = 0; c < kColumns; ++c) clip_lanes(y[c]);
      }
    }
    if constexpr (kColumns % 2 == 0) {
      for (int c = 0; c < kColumns; c += 2) store_two_vectors<kCount, Work>(y[c], y[c + 1], to + c * kCount);
    } else {
      for (int c = 0; c < kColumns; ++c) part.template store<kCount, Work>(y[c], to + c * kCount);
    }
    to = next_step(to);
  }
}

// Goes through columns of kCount features, four at once while there are four. The last column may be partial. If the
// processor has no partial loads and stores, that column overlaps values that are already written.
template <int kCount, bool kScaled, bool kRelative, class In, class Out>
void write_columns(const WindowSegment& s, const char* values, const Picks& picks, int64_t first, int64_t count,
                   const float* base, char* out, Wanted& prefetches) {
  constexpr int64_t kFour = int64_t{4} * kCount;
  int64_t d = 0;
  for (; d + kFour <= s.features; d += kFour) {
    write_column<4, kCount, kScaled, kRelative, In, Out>(s, values, picks, first, count, d, AllLanes{}, base, out,
                                                         prefetches);
  }
  const auto write = [&](int64_t begin, auto part) {
    write_column<1, kCount, kScaled, kRelative, In, Out>(s, values, picks, first, count, begin, part, base, out,
                                                         prefetches);
  };
  for (; d + kCount <= s.features; d += kCount) write(d, AllLanes{});
  if (d == s.features) return;
  if constexpr (kHasMaskedAccess) {
    write(d, FirstLanes(s.features - d));
  } else if constexpr (kCount > 1) {
    if (d > 0) return write(s.features - kCount, AllLanes{});
    write_columns<kCount / 2, kScaled, kRelative, In, Out>(s, values, picks, first, count, base, out, prefetches);
  }
}

// Writes steps of floats that copy a row or mix two, less the base of each feature if there is one.
void write_rows(const WindowSegment& s, const char* values, const Picks& picks, int64_t first, int64_t count,
                const float* base, char* out, Wanted& prefetches) {
  with_floating(s.value_dtype, [&](auto in) {
    with_floating(s.out_dtype, [&](auto element) {
      using In = decltype(in);
      using Out = decltype(element);
      constexpr int kCount = kRegisterBytes / static_cast<int>(sizeof(WorkType<In>));
      const auto write = [&](auto scaled, auto relative) {
        write_columns<kCount, scaled.value, relative.value, In, Out>(s, values, picks, first, count, base, out,
                                                                     prefetches);
      };
      const auto write_any = [&](auto relative) {
        s.scale == nullptr ? write(std::false_type{}, relative) : write(std::true_type{}, relative);
      };
      if constexpr (std::is_same_v<WorkType<In>, float>) {
        if (base != nullptr) return write_any(std::true_type{});
      }
      write_any(std::false_type{});
    });
  });
}

// ---- Mixtures by the other methods, a piece of the features at a time -----------------------------------------------

template <class Work>
void load_piece(const WindowSegment& s, const char* row, int64_t first, int64_t n, Work* to) {
  with_floating(s.value_dtype, [&](auto element) {
    const auto* from = reinterpret_cast<const decltype(element)*>(row) + first;
    for (int64_t d = 0; d < n; ++d) to[d] = to_work<Work>(from[d]);
  });
}

template <class Method, class Work>
void write_mixture(const WindowSegment& s, const EpisodeRows& rows, const char* values, const int64_t* times,
                   const Pick<double>& picked, int64_t step, char* out) {
  constexpr int64_t kPiece = 64;
  static_assert(kPiece % Method::kFeatures == 0);
  constexpr int kReach = Method::kReach;
  Work x[kRowsOf<Method>][kPiece];
  Work y[kPiece];
  const auto w = static_cast<Work>(picked.weight);
  const ClockRow<int64_t> clock{times, 1};
  const auto stencil = stencil_around(clock, rows.rows, picked.left, picked.right, kReach);
  const auto c = weights_around<Method>(clock, rows.rows, stencil, w);
  for (int64_t first = 0; first < s.features; first += kPiece) {
    const int64_t n = s.features - first < kPiece ? s.features - first : kPiece;
    for (int i = 0; i < kRowsOf<Method>; ++i) {
      load_piece(s, values + stencil.rows[2 - kReach + i] * s.row_bytes, first, n, x[i]);
    }
    mix_features<Method>(c, stencil.before, stencil.after, x, static_cast<int>(n), y);
    if (s.scale != nullptr) {
      const Work* const scale = static_cast<const Work*>(s.scale) + step * s.scale_step + first;
      const Work* const shift = static_cast<const Work*>(s.shift) + step * s.scale_step + first;
      for (int64_t d = 0; d < n; ++d) y[d] = multiply_add(y[d], scale[d], shift[d]);
      for (int64_t d = 0; s.clip && d < n; ++d) y[d] = clipped(y[d]);
    }
    with_floating(s.out_dtype, [&](auto element) {
      auto* const to = reinterpret_cast<decltype(element)*>(out) + first;
      for (int64_t d = 0; d < n; ++d) to[d] = rounded_once<decltype(element)>(y[d]);
    });
  }
}

void write_curve(const WindowSegment& s, const EpisodeRows& rows, const char* values, const int64_t* times,
                 const Pick<double>& picked, int64_t step, char* out) {
  with_method(s.method, [&](auto method) {
    using Method = decltype(method);
    if constexpr (kIsStraight<Method> || Method::kSlopes) {
      __builtin_trap();  // not curved, or refused by the Loader
    } else if (s.value_dtype == DType::kFloat64) {
      write_mixture<Method, double>(s, rows, values, times, picked, step, out);
    } else {
      write_mixture<Method, float>(s, rows, values, times, picked, step, out);
    }
  });
}

// ---- Rows as they are -----------------------------------------------------------------------------------------------

// Copies `count` steps that use consecutive rows.
void copy_run(const WindowSegment& s, const char* row, int64_t count, char* out) {
  const int64_t bytes = s.features * dtype_size(s.value_dtype);
  if (s.row_bytes == bytes && s.step_bytes == bytes) {
    __builtin_memcpy(out, row, static_cast<size_t>(count * bytes));
    return;
  }
  for (int64_t k = 0; k < count; ++k) {
    __builtin_memcpy(out + k * s.step_bytes, row + k * s.row_bytes, static_cast<size_t>(bytes));
  }
}

// ---- Steps ----------------------------------------------------------------------------------------------------------

// Whether a step copies a row or mixes two on a straight line.
bool is_straight(const Picks& picks, int64_t step, bool curved) {
  return !picks.is_absent(step) && !(curved && picks.is_mixed(step));
}

// Writes steps; `picks` and `out` belong to the first of them, the segment's step `first`.
void write_steps(const WindowSegment& s, const EpisodeRows& rows, const char* values, const int64_t* times,
                 const Picks& picks, int64_t first, int64_t count, const float* base, char* out, Wanted& prefetches) {
  const bool curved = is_curved(s.method);
  for (int64_t k = 0; k < count;) {
    char* const to = out + k * s.step_bytes;
    if (picks.is_absent(k)) {
      __builtin_memset(to, 0, static_cast<size_t>(s.features * dtype_size(s.out_dtype)));
      ++k;
    } else if (!is_floating(s.value_dtype)) {
      __builtin_memcpy(to, values + picks.left[k] * s.row_bytes,
                       static_cast<size_t>(s.features * dtype_size(s.value_dtype)));
      ++k;
    } else if (is_straight(picks, k, curved)) {
      int64_t end = k + 1;
      while (end < count && is_straight(picks, end, curved)) ++end;
      write_rows(s, values, picks.from(k), first + k, end - k, base, to, prefetches);
      k = end;
    } else {
      write_curve(s, rows, values, times, picks[k], first + k, to);
      ++k;
    }
  }
}

// The rows of an episode that steps use, with the rows around them that their curves read.
RowRange rows_of(const WindowSegment& s, const EpisodeRows& rows, const int64_t* times, const Pick<double>& picked) {
  if (picked.kind == PickKind::kAbsent) return {0, 0};
  const int reach = picked.kind == PickKind::kMix ? reach_of(s.method) : 0;
  if (reach == 0) return {picked.left, picked.right + 1};
  const ClockRow<int64_t> clock{times, 1};
  const Stencil<int64_t> stencil = stencil_around(clock, rows.rows, picked.left, picked.right, reach);
  return {stencil.rows[2 - reach], stencil.rows[3 + reach] + 1};
}

// Writes steps whose rows are in a file, which is read in runs of neighbouring rows.
void write_from_file(const WindowSegment& s, const EpisodeRows& rows, const int64_t* times, const Picks& picks,
                     const float* base, char* out, Wanted& prefetches) {
  for (int32_t k = 0; k < s.steps;) {
    RowRange run = rows_of(s, rows, times, picks[k]);
    int32_t end = k + 1;
    for (; end < s.steps; ++end) {
      const RowRange next = rows_of(s, rows, times, picks[end]);
      if (next.begin == next.end) continue;
      if (run.begin == run.end) run = next;
      const int64_t gap = next.begin > run.end ? next.begin - run.end : next.end < run.begin ? run.begin - next.end : 0;
      if (gap * s.row_bytes > kShortGap) break;
      run.begin = next.begin < run.begin ? next.begin : run.begin;
      run.end = next.end > run.end ? next.end : run.end;
    }
    // The file ends with the features of its last row. A whole row from this segment's first feature on would reach
    // beyond it.
    const int64_t bytes =
        run.begin == run.end ? 0 : (run.end - run.begin - 1) * s.row_bytes + s.features * dtype_size(s.value_dtype);
    char* const scratch = window_scratch(static_cast<size_t>(bytes));
    read_rows(s.file, (rows.begin + run.begin) * s.row_bytes, static_cast<size_t>(bytes), scratch);
    const char* const values = scratch - run.begin * s.row_bytes;
    write_steps(s, rows, values, times, picks.from(k), k, end - k, base, out + k * s.step_bytes, prefetches);
    k = end;
  }
}

// Loads the numbers that a segment subtracts, and writes its base to the batch. If the base is padding, so are all
// steps. Returns whether the base has a value.
bool load_base(const WindowSegment& s, const WindowSegment& base, int64_t sample, char* memory, float* subtracted) {
  const auto* const state = reinterpret_cast<const float*>(memory + base.out_offset + sample * base.out_sample);
  auto* const out_base = reinterpret_cast<float*>(memory + s.base_offset + sample * s.base_sample);
  for (int64_t f = 0; f < s.features; ++f) {
    const int32_t feature = s.subtracted[f];
    out_base[f] = state[feature < 0 ? ~feature : feature];
    subtracted[f] = feature < 0 ? 0.0F : out_base[f];
  }
  if (s.pad_offset >= 0 && memory[base.pad_offset + sample] != 0) {
    __builtin_memset(memory + s.pad_offset + sample * s.mask_steps, 1, static_cast<size_t>(s.steps));
  }
  return reinterpret_cast<const int64_t*>(memory + base.age_offset)[sample] != INT64_MIN;
}

// Whether the rows of a segment are contiguous, its steps too, and both are too short to fill vectors one by one.
bool is_dense(const WindowSegment& s) {
  return s.value_dtype != DType::kFloat64 && s.features <= kRegisterBytes &&
         s.row_bytes == s.features * dtype_size(s.value_dtype) && s.step_bytes == s.features * dtype_size(s.out_dtype);
}

// Writes n numbers of contiguous rows, less a base. `step` is the first row's step in the segment.
template <class In, class Out>
void write_relative(const WindowSegment& s, const In* x, const float* base, int64_t step, int64_t n, Out* out) {
  constexpr int kCount = kRegisterBytes / static_cast<int>(sizeof(float));
  using Column = Lanes<float, kCount>;
  const bool has_scale = s.scale != nullptr;
  const auto* const scale = static_cast<const float*>(s.scale) + (has_scale ? step * s.scale_step : 0);
  const auto* const shift = static_cast<const float*>(s.shift) + (has_scale ? step * s.scale_step : 0);
  int64_t i = 0;
  for (; i + kCount <= n; i += kCount) {
    Column y;
    Column operand;
    load_lanes<kCount, float>(x + i, y);
    load_lanes<kCount, float>(base + i, operand);
    y = y - operand;
    if (has_scale) {
      Column addend;
      load_lanes<kCount, float>(scale + i, operand);
      load_lanes<kCount, float>(shift + i, addend);
      multiply_add_lanes(operand, y, addend);
      if (s.clip) clip_lanes(y);
    }
    store_lanes<kCount, float>(y, out + i);
  }
  for (; i < n; ++i) {
    float y = to_work<float>(x[i]) - base[i];
    if (has_scale) y = multiply_add(y, scale[i], shift[i]);
    if (has_scale && s.clip) y = clipped(y);
    out[i] = rounded_once<Out>(y);
  }
}

// Writes the steps of a run, less a base, kTileRows at once. `base` has room for kTileRows rows. scale and shift
// already have that many (ConvertActionsParams).
void write_run(const WindowSegment& s, const char* values, const Run& run, float* base, char* out) {
  for (int64_t filled = 1; filled < kTileRows && filled < run.end - run.begin; filled *= 2) {
    __builtin_memcpy(base + filled * s.features, base, static_cast<size_t>(filled * s.features) * sizeof(float));
  }
  with_floating(s.value_dtype, [&](auto in) {
    with_floating(s.out_dtype, [&](auto element) {
      using In = decltype(in);
      if constexpr (std::is_same_v<WorkType<In>, float>) {
        for (int64_t step = run.begin; step < run.end; step += kTileRows) {
          const int64_t count = run.end - step < kTileRows ? run.end - step : kTileRows;
          write_relative(s, reinterpret_cast<const In*>(values) + (run.row + step - run.begin) * s.features, base, step,
                         count * s.features, reinterpret_cast<decltype(element)*>(out) + step * s.features);
        }
      }
    });
  });
}

}  // namespace

void write_values(Item& item, char* memory, Wanted& prefetches) {
  const Group group(*item.group);
  for (int32_t i = 0; i < group.segment_count; ++i) {
    const WindowSegment& s = group.segments[i];
    const StreamClock& clock = group.clocks[s.clock].rows;
    const EpisodeRows rows = clock.rows_of(item.anchor.episode);
    const int64_t* const times = clock.time_ns + rows.begin;
    const Picks picks = item.picks().from(s.pick_begin);
    char* const out = memory + s.out_offset + item.sample * s.out_sample;
    float subtracted[kTileRows * kMostActionFeatures];
    float* base = nullptr;
    if (s.subtracted != nullptr) {
      base = subtracted;
      if (!load_base(s, group.segments[s.base], item.sample, memory, subtracted)) {
        const auto bytes = static_cast<size_t>(s.features * dtype_size(s.out_dtype));
        for (int32_t k = 0; k < s.steps; ++k) __builtin_memset(out + k * s.step_bytes, 0, bytes);
        continue;
      }
    }
    if (s.file.descriptor >= 0) {
      write_from_file(s, rows, times, picks, base, out, prefetches);
      continue;
    }
    const char* const values = values_of(s, rows);
    const Run run = item.runs[i];
    const auto write = [&](int64_t begin, int64_t end) {
      write_steps(s, rows, values, times, picks.from(begin), begin, end - begin, base, out + begin * s.step_bytes,
                  prefetches);
    };
    write(0, run.begin);
    if (copies_rows(s) && run.begin < run.end) {
      copy_run(s, values + run.row * s.row_bytes, run.end - run.begin, out + run.begin * s.step_bytes);
    } else if (base != nullptr && is_dense(s)) {
      write_run(s, values, run, base, out);
    } else {
      write(run.begin, run.end);
    }
    write(run.end, s.steps);
  }
}

}  // namespace robocache::ROBOCACHE_ISA
