#include <vector>

#include "robocache/batch/normalisation.hpp"
#include "robocache/ffi/ffi.hpp"
#include "robocache/ffi/norm_stats.hpp"

namespace robocache::ffi {

// (names of fields, float64 [fields, any], features, dtype of the values, mode, constant, whose they are)
// -> float64 [4, features]: scale, shift, spread, centre
ROBOCACHE_FFI(normalisation_affines, args, result) {
  const NormStats stats = norm_stats(args, 0);
  const std::vector<Affine> of_features =
      affines(stats.view(), args.integer(2, "features"), dtype_from_name(args.string(3, "dtype")),
              normalize_from_name(args.string(4, "normalize")), constant_from_name(args.string(5, "constant")),
              args.string(6, "name"));
  result.set(table_of(of_features));
}

}  // namespace robocache::ffi
