// Describes, as one value, how rows around a moment become a sample of a batch. It names no dataset, no file, no device, and no
// order of moments. A Loader makes its batches by this value. A robot's live batches are made by the same value, read
// from a file, and have the same bytes.
//
//   const BatchSpec& spec = loader.spec();
//   const std::string text = spec_to_json(spec);
//   const BatchSpec same = spec_from_json(text);  // every number bit for bit
//
// A batch of B moments has, for each key, in the order of the keys:
//   <key>         [B, steps, shape...] of `dtype`, without the axis of steps if `one_step`
//   <key>_is_pad  [B, steps] bool; and with `return_age` <key>_age, int64
//   <key>_feature_is_pad, with `pad_features`; <key>_base, if `convert` has one; <key>_intrinsics, with `has_intrinsics`
// Step i of a moment aims at the stamp moment + offsets_ns[i] + offset_ns; or it is the row offsets_rows[i] after the
// last row at or before moment + offset_ns. `methods` compute its value x from the rows around the target, `convert`
// converts it, and the batch holds fma(x, scale, shift), with `clip` limited to [-1, 1]. Frames have `images` instead.
//
// A later version adds fields. Readers refuse a field that they do not know and a version that is newer than theirs,
// since without that field batches would differ.
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
  std::vector<int64_t> shape = {};         // of a row; for a frame [height, width, channels]
  std::vector<std::string> names = {};     // one for each feature, or empty
  std::vector<FeatureBlock> methods = {};  // for all features, as feature_blocks() gives them; no cubic, no pose
  std::vector<Affine> affine = {};  // one for each feature, or each step and feature; empty: values stay as they are
  bool clip = false;                // after `affine`, values are limited to [-1, 1]

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

// The conversion of a key's values, after `methods` and before `affine` (actions/convert.hpp).
struct ConversionSpec {
  std::vector<ActionConversion> steps = {};  // in this order, at least one
  std::string base = {};                     // the key whose value at the moment is the base, or ""
  std::vector<int64_t> base_features = {};   // of the base's row, in the order of this key's features; empty: all
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
  std::string stream;  // the key whose stream fills this key; it differs if two windows are of one stream
  // For a goal: how the loader draws the moment that replaces the anchor. Outside a loader the caller gives the moment.
  std::optional<MomentRule> moment = {};
  DType dtype = DType::kFloat32;  // in the batch
  // The shape of a step in the batch. With pad_features, rows of numbers have the shape of the widest source.
  std::vector<int64_t> shape = {};
  std::vector<int64_t> offsets_ns = {};    // of each step, from the moment; empty with offsets_rows
  std::vector<int64_t> offsets_rows = {};  // of each step, in rows from the last row at or before the moment
  bool one_step = false;                   // there is one step, and arrays have no axis of steps
  int64_t offset_ns = 0;                   // the latency: a row stamped t was taken at t - offset_ns
  bool causal = false;                     // no row later than its target is used
  std::optional<int64_t> max_gap_ns = {};
  std::optional<int64_t> tolerance_ns = {};
  std::optional<ConversionSpec> convert = {};
  // Only for a camera. Nothing is random: crops are central, crop_scale is its largest share, colours and shifts are off.
  std::optional<ImageOptions> images = {};
  bool has_intrinsics = false;
  std::optional<RowsSpec> rows = {};  // none: the source has no such stream, and every step is padding

  int64_t steps() const { return std::ssize(offsets_ns) + std::ssize(offsets_rows); }
  // Returns each step's target stamp, relative to the moment. For a key in rows: the stamp of the row that offsets count from.
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
  std::optional<int64_t> dataset_index = {};  // in a mixture: the index of the source
  std::vector<KeySpec> keys = {};             // at least one, with distinct names

  static constexpr auto fields() {
    using Self = BatchSpec;
    return std::tuple(Field{"version", &Self::version}, Field{"snap_ns", &Self::snap_ns},
                      Field{"return_age", &Self::return_age}, Field{"pad_features", &Self::pad_features},
                      Field{"dataset_index", &Self::dataset_index}, Field{"keys", &Self::keys});
  }
};

// Checks a spec. Throws ArgumentError that names a field with a value that no Loader writes.
void check_spec(const BatchSpec& spec);

// Returns JSON. Two specs are equal if their texts are equal.
std::string spec_to_json(const BatchSpec& spec);

// Returns, as JSON, the part of a key's spec that determines its values before normalisation, without the dtypes. Statistics
// are of these values. Two keys with equal texts make equal values of the same rows. Returns "" if the key has no rows.
std::string values_to_json(const BatchSpec& spec, size_t key);

// Returns the fields in which two texts of values_to_json() differ, for errors: "offsets_ns: expected [0], got [0,20000000]".
std::string differing_values(const std::string& expected, const std::string& got);

// Reads a spec. Throws ArgumentError or ArgumentTypeError that names the field: a newer version, an unknown, missing or
// repeated field, or a value that no Loader writes.
BatchSpec spec_from_json(std::string_view json);

}  // namespace robocache
