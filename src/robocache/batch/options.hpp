// The options of a loader, and their checks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "robocache/actions/convert.hpp"
#include "robocache/align/moments.hpp"
#include "robocache/batch/normalisation.hpp"
#include "robocache/batch/residency.hpp"
#include "robocache/cache/dataset.hpp"
#include "robocache/core/device.hpp"
#include "robocache/core/dtype.hpp"
#include "robocache/core/fields.hpp"
#include "robocache/image/options.hpp"
#include "robocache/interpolation/blocks.hpp"
#include "robocache/interpolation/method.hpp"
#include "robocache/sample/anchors.hpp"

namespace robocache {

// A MomentRule in seconds.
struct MomentRequest {
  MomentKind kind = MomentKind::kLast;
  double low_s = 0;
  double high_s = 0;
  double discount = 0;

  static constexpr auto fields() {
    using Self = MomentRequest;
    return std::tuple(Field{"kind", &Self::kind}, Field{"low_s", &Self::low_s}, Field{"high_s", &Self::high_s},
                      Field{"discount", &Self::discount});
  }
};

// The options of one of the batch's keys, which one stream fills in each source. An option that is not set has the
// value in LoaderOptions.
struct StreamRequest {
  std::string stream;                    // the key: a stream's name, unless its source renames it
  std::vector<double> delta_timestamps;  // seconds, or rows, from the anchor, in any order, at least one
  bool rows = false;                     // delta_timestamps counts rows of the stream, in whole numbers
  bool one_step = false;                 // delta_timestamps is one offset, and arrays have no axis of steps
  std::optional<InterpolationMethod> method = {};
  std::vector<FeatureBlock> methods = {};  // of some features of a row, counted row-major; the others have `method`
  bool method_asked = true;                // `methods` are from the caller, not from the stream's own attributes
  std::optional<Normalize> normalize = {};
  std::optional<double> max_gap_s = {};
  std::optional<double> offset_s = {};  // latency: a row stamped t was taken at t - offset_s
  std::optional<bool> causal = {};
  std::optional<double> tolerance_s = {};             // for methods that take one row: a farther row is padding
  std::optional<DType> dtype = {};                    // floats: any floating type; integers and bool: their own
  bool dtype_asked = false;                           // `dtype` is from the window itself
  std::optional<std::optional<Tier>> residency = {};  // where its rows lie; the inner none: chosen by memory_budget
  std::optional<ImageOptions> images = {};            // of a camera: how its frames become pixels of the batch
  std::vector<ActionConversion> convert = {};         // conversions of the values before they are normalised
  std::string base = {};                              // the key whose value at the anchor is the base of conversions
  std::vector<int64_t> base_features = {};            // the base's features, in the order of this key's; empty: all
  // Features whose signs change when the images are flipped, before `convert`; none: not specified.
  std::optional<std::vector<int64_t>> mirror_horizontal = {}, mirror_vertical = {};
  std::string from = {};                     // the key whose stream fills this key; empty: its own
  std::optional<MomentRequest> moment = {};  // the moment that offsets count from; none: the anchor

  // The key whose stream fills this key.
  const std::string& rows_key() const { return from.empty() ? stream : from; }

  static constexpr auto fields() {
    using Self = StreamRequest;
    return std::tuple(
        Field{"key", &Self::stream}, Field{"offsets_s", &Self::delta_timestamps}, Field{"rows", &Self::rows},
        Field{"one_step", &Self::one_step}, Field{"method", &Self::method}, Field{"methods", &Self::methods},
        Field{"method_asked", &Self::method_asked}, Field{"normalize", &Self::normalize},
        Field{"max_gap_s", &Self::max_gap_s}, Field{"offset_s", &Self::offset_s}, Field{"causal", &Self::causal},
        Field{"tolerance_s", &Self::tolerance_s}, Field{"dtype", &Self::dtype}, Field{"images", &Self::images},
        Field{"convert", &Self::convert}, Field{"base", &Self::base}, Field{"base_features", &Self::base_features},
        Field{"mirror_horizontal", &Self::mirror_horizontal}, Field{"mirror_vertical", &Self::mirror_vertical},
        Field{"stream", &Self::from}, Field{"moment", &Self::moment});
  }
};

// A source of samples: episodes of a dataset.
struct SourceRequest {
  std::shared_ptr<const Dataset> dataset;
  std::string name = {};                              // default: the name of the dataset's folder
  std::optional<double> weight = {};                  // its share of the draws; all sources have one, or none has
  std::optional<std::vector<int64_t>> episodes = {};  // to draw from; default all
  std::vector<std::pair<std::string, std::string>> rename = {};  // a stream, and the key that it fills
  std::string anchor = {};                                       // a key or stream; empty: that of LoaderOptions

  AnchorFilter filter = {};  // which anchors are drawn

  // Writes a number for each anchor, given by its episode and time: its weight within the source or, with `balance`,
  // its class. All classes have the same share of the draws.
  using Values =
      std::function<void(std::span<const int64_t> episodes, std::span<const int64_t> times, std::span<double> values)>;
  Values values = {};
  bool balance = false;

  std::map<std::string, NormStats> norm_stats = {};  // by key: replaces the dataset's statistics
  std::vector<int64_t> tasks = {};  // the number of each episode's task, below 0: none; for MomentKind::kOther

  // In complete options: the episodes whose statistics normalise; none: all. All ranks have the same, also if each rank
  // has its own episodes.
  std::optional<std::vector<int64_t>> selection = {};

  // In complete options with shard_episodes: the episodes of each rank. `episodes` has those of this rank.
  std::vector<std::vector<int64_t>> episodes_of_ranks = {};

  // In complete options: the episodes that all ranks together draw from.
  std::vector<int64_t> episodes_of_all_ranks() const {
    if (episodes_of_ranks.empty()) return *episodes;
    std::vector<int64_t> all;
    for (const auto& rank_episodes : episodes_of_ranks)
      all.insert(all.end(), rank_episodes.begin(), rank_episodes.end());
    return all;
  }

  // In complete options: the index of each request's stream, if the dataset has it.
  std::vector<std::optional<int64_t>> streams = {};

  // In complete options: the stream that fills a request, or null.
  const Stream* stream_of(size_t request) const {
    const auto& stream = streams[request];
    return stream ? &dataset->stream(*stream) : nullptr;
  }

  // The fields in JSON. Datasets, episodes and statistics come from the caller; `rename` is read separately.
  static constexpr auto fields() {
    return std::tuple(Field{"name", &SourceRequest::name}, Field{"weight", &SourceRequest::weight},
                      Field{"anchor", &SourceRequest::anchor}, Field{"filter", &SourceRequest::filter});
  }
};

// Anchors whose window extends beyond the recording.
enum class Edges : uint8_t {
  kPad,   // are drawn: steps outside are padding
  kDrop,  // are not drawn
};

template <>
inline constexpr std::string_view kNames<Edges>[] = {"pad", "drop"};

// Episodes without any row of a stream of the batch. A source that has no such stream at all does not count.
enum class Missing : uint8_t {
  kPad,    // are drawn: the values are 0 and padding, and a note says so
  kDrop,   // are not drawn
  kError,  // are refused
};

template <>
inline constexpr std::string_view kNames<Missing>[] = {"pad", "drop", "error"};

// The rows whose statistics normalise, if none are given.
enum class StatsOf : uint8_t {
  kSelection,  // of the episodes that a source draws from
  kDataset,    // of all episodes of its dataset
};

template <>
inline constexpr std::string_view kNames<StatsOf>[] = {"selection", "dataset"};

// A frame of a camera that does not decode.
enum class BadFrame : uint8_t {
  kError,  // throws
  kPad,    // is black and padding
};

template <>
inline constexpr std::string_view kNames<BadFrame>[] = {"error", "pad"};

struct LoaderOptions {
  std::vector<SourceRequest> sources;  // at least one
  bool mixture = false;                // whether dataset_index, the index of a sample's source, is in the batch

  std::vector<StreamRequest> streams;

  // For requests that do not set them:
  std::optional<InterpolationMethod> method;  // linear for floats; integers and bool: previous
  Normalize normalize = Normalize::kNone;     // of floating streams
  std::optional<double> max_gap_s;
  double offset_s = 0;
  bool causal = false;
  std::optional<double> tolerance_s;
  DType dtype = DType::kFloat32;  // of floating streams in the batch
  bool return_age = false;        // "<key>_age", int64 ns: a step's target time minus the time of the row used
  bool pad_features = false;      // rows of one axis may differ in width between sources
  std::map<std::string, NormStats> norm_stats;  // by key: replaces the caches' statistics
  StatsOf stats_of = StatsOf::kSelection;
  Constant constant = Constant::kCenter;  // how features without spread are normalised
  bool clip = false;                      // values normalised by a range are limited to [-1, 1]
  double min_spread = kMinSpread;         // a spread below it counts as none
  std::optional<Tier> residency;          // where rows lie; none: chosen by memory_budget
  MemoryBudget memory_budget;
  BadFrame on_bad_frame = BadFrame::kError;

  int64_t batch_size = 1;           // of each rank
  std::string anchor;               // a key or stream whose ticks are drawn; empty: the batch's slowest, rule 48
  std::optional<double> anchor_hz;  // instead of `anchor`: the ticks of a clock of this rate
  Edges edges = Edges::kPad;
  Missing missing = Missing::kPad;
  int64_t drop_n_last = 0;                   // anchors at an episode's end that are not drawn, after `edges`
  std::optional<double> temperature;         // weights proportional to anchors^(1 / temperature)
  std::optional<int64_t> samples_per_epoch;  // needs weights; default: the number of anchors
  double snap_s = 1e-6;                      // a target closer to a row than this counts as that row
  bool shuffle = true;
  bool drop_last = false;
  int64_t rank = 0;  // of world_size ranks, which draw different samples of the same global batch
  int64_t world_size = 1;
  bool shard_episodes = false;  // each rank has its own episodes and its own order
  Device device;

  // A field has the name of its argument in Python; errors begin with it.
  static constexpr auto fields() {
    using Self = LoaderOptions;
    return std::tuple(Field{"mixture", &Self::mixture}, Field{"windows", &Self::streams},
                      Field{"default.method", &Self::method}, Field{"default.normalize", &Self::normalize},
                      Field{"default.max_gap_s", &Self::max_gap_s}, Field{"default.offset_s", &Self::offset_s},
                      Field{"default.causal", &Self::causal}, Field{"default.tolerance_s", &Self::tolerance_s},
                      Field{"default.dtype", &Self::dtype}, Field{"return_age", &Self::return_age},
                      Field{"pad_features", &Self::pad_features}, Field{"normalization.stats_of", &Self::stats_of},
                      Field{"normalization.constant", &Self::constant},
                      Field{"normalization.min_spread", &Self::min_spread}, Field{"normalization.clip", &Self::clip},
                      Field{"memory.residency", &Self::residency}, Field{"memory.budget", &Self::memory_budget},
                      Field{"on_bad_frame", &Self::on_bad_frame}, Field{"batch_size", &Self::batch_size},
                      Field{"anchors.stream", &Self::anchor}, Field{"anchors.rate_hz", &Self::anchor_hz},
                      Field{"anchors.edges", &Self::edges}, Field{"missing", &Self::missing},
                      Field{"anchors.drop_n_last", &Self::drop_n_last}, Field{"temperature", &Self::temperature},
                      Field{"samples_per_epoch", &Self::samples_per_epoch}, Field{"snap_s", &Self::snap_s},
                      Field{"shuffle", &Self::shuffle}, Field{"drop_last", &Self::drop_last},
                      Field{"ranks.rank", &Self::rank}, Field{"ranks.world_size", &Self::world_size},
                      Field{"ranks.shard_episodes", &Self::shard_episodes}, Field{"device", &Self::device});
  }

  // The indices of the requests that batches hold; empty: all. The others only take part in the choice of anchors.
  std::vector<size_t> filled = {};

  // In complete options: the warnings before training, one text each.
  std::vector<std::string> notes = {};
};

// Completes options: sets every option of each request, and for each source its streams, its episodes and, unless anchor_hz is
// given, its anchor. Throws ArgumentError, ArgumentTypeError, and DeviceError if there is no such device.
LoaderOptions complete_options(LoaderOptions options);

// Reads options from the JSON of their fields. A field that is missing or null keeps its default. `sources` have the caller's
// datasets, episodes and statistics. Throws ArgumentError and ArgumentTypeError that name the field.
LoaderOptions loader_options_from_json(std::string_view json, std::vector<SourceRequest> sources);

// Returns JSON of the fields that loader_options_from_json reads: {"loader" | "window" | "source": {name: type}}. A
// type is bool, int, float, text, dtype, or "" for a value that is a JSON object or array.
std::string loader_fields_json();

// Whether a key is a camera's, in complete options: its rows are frames.
bool is_camera(const StreamRequest& request);

// Returns the stream that fills a request, for each source that has one. The options must be complete.
std::vector<const Stream*> streams_of(const LoaderOptions& options, size_t request);

// Returns the shape of a key's row in the batch: the widest of the sources' streams, or the shape after conversions.
// The key must not be a camera's. The options must be complete.
std::vector<int64_t> key_shape(const LoaderOptions& options, size_t request);

// The features of a key whose signs change when images are flipped, in complete options: for each feature its axes of
// ActionMirror, or no entries if none changes; and the probabilities that rows and that columns are flipped.
struct KeyMirror {
  std::vector<uint8_t> axes;
  double flip[2];
};
KeyMirror key_mirror(const LoaderOptions& options, size_t request);

// A converted key, in complete options: the conversions as kernels take them, the index of the base's request if there
// is a base, the type of the arithmetic, and how far from 1 a quaternion's length may be.
struct KeyConversion {
  ActionOps ops;
  std::optional<size_t> base;
  DType work;
  double tolerance;
};
KeyConversion key_conversion(const LoaderOptions& options, size_t request);

// A moment this close to a row of a nominal clock counts as that row.
inline constexpr double kOffGridNs = 1e5;

// Returns "sources[2]." for a source of a mixture, else "".
std::string source_name(const LoaderOptions& options, size_t source);

// Proposes a method that makes values between rows, as Python writes it: the stream's own methods if it has any.
std::string method_proposal(const StreamRequest& request);

// Converts seconds to nanoseconds. Throws ArgumentError that begins with `argument` if they are not finite or beyond 146 years.
int64_t checked_ns(double seconds, std::string_view argument);

// Adds a sentence to a note for people, after a semicolon if the note is not empty.
void add_to_note(std::string& note, const std::string& sentence);

}  // namespace robocache
