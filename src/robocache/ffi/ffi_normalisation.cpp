#include <cstdint>
#include <span>
#include <vector>

#include "robocache/batch/normalisation.hpp"
#include "robocache/ffi/ffi.hpp"
#include "robocache/ffi/normalisation.hpp"

namespace robocache::ffi {
namespace {

// Returns float64 [4, features]: scale, shift, spread and centre. Features after the last affine stay as they are.
OwnedTensor affine_table(std::span<const Affine> affines, int64_t features) {
  OwnedTensor table = OwnedTensor::allocate(DType::kFloat64, Device{}, {4, features});
  auto* number = static_cast<double*>(table.view().data);
  for (const auto part : {&Affine::scale, &Affine::shift, &Affine::spread, &Affine::centre}) {
    for (size_t feature = 0; feature < static_cast<size_t>(features); ++feature) {
      *number++ = (feature < affines.size() ? affines[feature] : Affine{}).*part;
    }
  }
  return table;
}

}  // namespace

// (names of fields, float64 [fields, any], features, dtype of the values, mode, constant, min_spread, a name for errors)
// -> float64 [4, features]: scale, shift, spread, centre
ROBOCACHE_FFI(normalisation_affines, args, result) {
  const NormStats stats = norm_stats(args, 0);
  const int64_t features = args.integer(2, "features");
  const Normalize normalize = normalize_from_name(args.string(4, "normalize"), "normalize");
  refuse_infinite(stats, normalize, args.string(7, "name"));
  result.set(affine_table(affines(stats, features, 1, dtype_from_name(args.string(3, "dtype")), normalize,
                                  value_of<Constant>(args.string(5, "constant"), "constant"),
                                  args.real(6, "min_spread"), args.string(7, "name")),
                          features));
}

}  // namespace robocache::ffi
