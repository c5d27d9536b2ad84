// How rows around a moment become a sample of a batch, as one value. It names no dataset, no file, no device, and no order of
// moments. A Loader makes its batches by it; a robot's live batches are made by the same value, read from a file, and have the same
// bytes.
//
//   const BatchSpec& spec = loader.spec();
//   const std::string text = spec_to_json(spec);
//   const BatchSpec same = spec_from_json(text);  // every number bit for bit
//
// A batch of B moments has, for each key, in the order of the keys:
//   <key>         [B, steps, shape...] of `dtype`, without the axis of steps if `one_step`
//   <key>_is_pad  [B, steps] bool; and with `return_age` <key>_age, int64
//   <key>_feature_is_pad, with `pad_features`; <key>_base, if `convert` has one; <key>_intrinsics, with `has_intrinsics`
// Step i of a moment aims at the row that is stamped moment + offsets_ns[i] + offset_ns; or it is the row offsets_rows[i] after the
// last one at or before moment + offset_ns. Its value x is made of the rows around by `methods`, goes through `convert`, and comes
// into the batch as fma(x, scale, shift), with `clip` held in [-1, 1]. Frames go through `images` instead.
//
// A later version adds fields. Readers refuse a field that they do not know and a version that is newer than theirs, since a field
// that is passed over would give other batches.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "robocache/actions/convert.hpp"
#include "robocache/align/moments.hpp"
#include "robocache/batch/normalisation.hpp"
#include "robocache/cache/dataset.hpp"
#include "robocache/core/dtype.hpp"
#include "robocache/core/fields.hpp"
#include "robocache/image/options.hpp"
#include "robocache/interpolation/blocks.hpp"

namespace robocache {

// The rows of the stream that fills a key.
struct RowsSpec {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape = {};         // of a row; of a frame [height, width, channels]
  std::vector<std::string> names = {};     // one a feature, or empty
  std::vector<FeatureBlock> methods = {};  // for all features, as feature_blocks() gives them; no cubic, no pose
  std::vector<Affine> affine = {};         // one a feature, or one a step and feature; empty: values stay as they are
  bool clip = false;                       // after the affine, values are clamped to [-1, 1]

  // Only for frames.
  std::optional<Codec> codec = {};
  std::optional<double> unit_m = {};    // the metres of one unit of depth
  std::vector<double> intrinsics = {};  // of the stored frames: 3x3, row-major; empty if unknown

  static constexpr auto fields() {
    using Self = RowsSpec;
    return std::tuple(Field{"dtype", &Self::dtype}, Field{"shape", &Self::shape}, Field{"names", &Self::names},
                      Field{"methods", &Self::methods}, Field{"affine", &Self::affine}, Field{"clip", &Self::clip},
                      Field{"codec", &Self::codec}, Field{"unit_m", &Self::unit_m},
                      Field{"intrinsics", &Self::intrinsics});
  }
};

// Converts a key's values after `methods` and before `affine` (actions/convert.hpp).
struct ConversionSpec {
  std::vector<ActionConversion> steps = {};  // in this order, at least one
  std::string base = {};                     // the key whose value at the moment the steps use, or ""
  std::vector<int64_t> base_features = {};   // of its row, in the order of this key's; empty: all
  DType dtype = DType::kFloat32;             // of the arithmetic: float32 or float64
  double tolerance = 0;                      // how far from 1 a quaternion's length may be

  static constexpr auto fields() {
    using Self = ConversionSpec;
    return std::tuple(Field{"steps", &Self::steps}, Field{"base", &Self::base},
                      Field{"base_features", &Self::base_features}, Field{"dtype", &Self::dtype},
                      Field{"tolerance", &Self::tolerance});
  }
};

struct KeySpec {
  std::string key;
  std::string stream;  // the key of the stream that fills it; its own, unless two windows are of one stream
  // For a goal: how the loader draws the moment that replaces the anchor. Outside a loader the caller gives the goal.
  std::optional<MomentRule> moment = {};
  DType dtype = DType::kFloat32;  // in the batch
  std::vector<int64_t> shape =
      {};  // of a step in the batch; for numbers a row's shape, with pad_features the widest source's
  std::vector<int64_t> offsets_ns = {};    // a step each, from the moment; none with offsets_rows
  std::vector<int64_t> offsets_rows = {};  // instead: a step each, in rows from the last one at or before the moment
  bool one_step = false;                   // a single step, and arrays have no axis of steps
  int64_t offset_ns = 0;                   // the latency: what is stamped t was taken at t - offset_ns
  bool causal = false;                     // no row later than its target is used
  std::optional<int64_t> max_gap_ns = {};
  std::optional<int64_t> tolerance_ns = {};
  std::optional<ConversionSpec> convert = {};
  // Only for a camera. Nothing is random: crops are in the centre, crop_scale is its largest share, colours and shifts are off.
  std::optional<ImageOptions> images = {};
  bool has_intrinsics = false;
  std::optional<RowsSpec> rows = {};  // none: the source has no such stream, and every step is padding

  int64_t steps() const { return std::ssize(offsets_ns) + std::ssize(offsets_rows); }
  // Each step's target stamp, relative to the moment. For a key in rows, the target of the row they count from.
  std::vector<int64_t> stamp_offsets_ns() const;

  static constexpr auto fields() {
    using Self = KeySpec;
    return std::tuple(
        Field{"key", &Self::key}, Field{"stream", &Self::stream}, Field{"moment", &Self::moment},
        Field{"dtype", &Self::dtype}, Field{"shape", &Self::shape}, Field{"offsets_ns", &Self::offsets_ns},
        Field{"offsets_rows", &Self::offsets_rows}, Field{"one_step", &Self::one_step},
        Field{"offset_ns", &Self::offset_ns}, Field{"causal", &Self::causal}, Field{"max_gap_ns", &Self::max_gap_ns},
        Field{"tolerance_ns", &Self::tolerance_ns}, Field{"convert", &Self::convert}, Field{"images", &Self::images},
        Field{"has_intrinsics", &Self::has_intrinsics}, Field{"rows", &Self::rows});
  }
};

struct BatchSpec {
  static constexpr int64_t kVersion = 1;

  int64_t version = kVersion;
  int64_t snap_ns = 0;  // a target closer than this to a row's stamp is that row
  bool return_age = false;
  bool pad_features = false;
  std::optional<int64_t> dataset_index = {};  // of a mixture: the source's
  std::vector<KeySpec> keys = {};             // at least one, each with a name of its own

  static constexpr auto fields() {
    using Self = BatchSpec;
    return std::tuple(Field{"version", &Self::version}, Field{"snap_ns", &Self::snap_ns},
                      Field{"return_age", &Self::return_age}, Field{"pad_features", &Self::pad_features},
                      Field{"dataset_index", &Self::dataset_index}, Field{"keys", &Self::keys});
  }
};

// Throws ArgumentError that names the field with a value that no Loader gives.
void check_spec(const BatchSpec& spec);

// One text for one value: two specs are equal if their texts are.
std::string spec_to_json(const BatchSpec& spec);

// The part of a key's spec, as JSON, that determines its values before normalisation, without the dtypes. Statistics are of these
// values. Two keys with equal texts make equal values of the same rows. "" without rows.
std::string values_to_json(const BatchSpec& spec, size_t key);

// The fields in which two such texts differ, for errors: "offsets_ns: expected [0], got [0,20000000]".
std::string differing_values(const std::string& expected, const std::string& got);

// Throws ArgumentError, ArgumentTypeError that name the field: a newer version, an unknown, missing or repeated field, a value that
// no Loader gives.
BatchSpec spec_from_json(std::string_view json);

}  // namespace robocache
