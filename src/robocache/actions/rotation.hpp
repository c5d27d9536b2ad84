// Rotations from one representation to another, by the formulas of python/robocache/actions/rotations.py: the same bits in
// float32, but for the sines, cosines and arc tangents of rotation vectors and Euler angles. docs/actions.md has the
// conventions.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "robocache/core/host_device.hpp"

namespace robocache {

enum class RotationKind : int32_t { kQuaternion, kMatrix, kVector, kEuler };

// A representation: `width` numbers. Those of a quaternion are the components order[0], ... of x, y, z, w; those of a matrix or
// of 6D its entries order[0], ..., counted row after row.
struct RotationForm {
  RotationKind kind;
  int32_t width;
  int32_t order[9];
  int32_t axes[3];  // of Euler angles
  bool intrinsic;
};

// "quat_xyzw", "quat_wxyz", "matrix", "rot6d_rows", "rot6d_columns", "rot6d_interleaved", "rotvec", "euler_" and three axes.
// Throws ArgumentError that begins with `argument`.
RotationForm rotation_form(std::string_view name, std::string_view argument);

inline constexpr double kPi = 3.14159265358979323846;

template <class Scalar>
ROBOCACHE_HD Scalar dot_of(const Scalar* a, const Scalar* b, int n) {
  Scalar total = a[0] * b[0];
  for (int i = 1; i < n; ++i) total = total + a[i] * b[i];
  return total;
}

template <class Scalar>
ROBOCACHE_HD void cross_of(const Scalar* a, const Scalar* b, Scalar* y) {
  y[0] = a[1] * b[2] - a[2] * b[1];
  y[1] = a[2] * b[0] - a[0] * b[2];
  y[2] = a[0] * b[1] - a[1] * b[0];
}

template <class Scalar>
ROBOCACHE_HD Scalar largest_of(const Scalar* v, int n) {
  Scalar largest = std::fabs(v[0]);
  for (int i = 1; i < n; ++i) largest = std::fabs(v[i]) > largest ? std::fabs(v[i]) : largest;
  return largest;
}

// 1, or what the components are divided by so that their squares neither overflow nor vanish.
template <class Scalar>
ROBOCACHE_HD Scalar factor_of(const Scalar* v, int n) {
  constexpr bool kSingle = std::is_same_v<Scalar, float>;
  const Scalar largest = largest_of(v, n);
  const bool usual = largest > Scalar(kSingle ? 0x1p-40 : 0x1p-300) && largest < Scalar(kSingle ? 0x1p60 : 0x1p500);
  return usual || largest == Scalar(0) || std::isinf(largest) ? Scalar(1) : largest;
}

// To length 1; false for a zero vector, which stays.
template <class Scalar>
ROBOCACHE_HD bool make_unit(Scalar* v, int n) {
  const Scalar factor = factor_of(v, n);
  for (int i = 0; i < n; ++i) v[i] = v[i] / factor;
  const Scalar square = dot_of(v, v, n);
  const bool some = square > Scalar(0);
  const Scalar length = std::sqrt(some ? square : Scalar(1));
  for (int i = 0; i < n; ++i) v[i] = v[i] / length;
  return some;
}

// Gram-Schmidt: both at length 1, the second across the first. Returns the sine between them, 0 where one is 0. The second is
// projected twice, which makes it orthogonal to the last digit when it was almost parallel.
template <class Scalar>
ROBOCACHE_HD Scalar orthonormalise(Scalar* a, Scalar* b) {
  const bool some = make_unit(a, 3);
  const bool also = make_unit(b, 3);
  Scalar along = dot_of(a, b, 3);
  for (int i = 0; i < 3; ++i) b[i] = b[i] - along * a[i];
  const Scalar sine = some && also ? std::sqrt(dot_of(b, b, 3)) : Scalar(0);
  make_unit(b, 3);
  along = dot_of(a, b, 3);
  for (int i = 0; i < 3; ++i) b[i] = b[i] - along * a[i];
  make_unit(b, 3);
  return sine;
}

// The two vectors of a 6D rotation, or the first two rows of a matrix.
template <class Scalar>
ROBOCACHE_HD void two_vectors(const RotationForm& form, const Scalar* x, Scalar* a, Scalar* b) {
  const bool interleaved = form.width == 6 && form.order[1] == 1 && form.order[2] == 3;
  for (int i = 0; i < 3; ++i) {
    a[i] = x[interleaved ? 2 * i : i];
    b[i] = x[interleaved ? 2 * i + 1 : 3 + i];
  }
}

ROBOCACHE_HD bool has_rows(const RotationForm& form) { return form.order[1] == 1 && form.order[2] == 2; }

template <class Scalar>
ROBOCACHE_HD bool has_nan(const Scalar* x, int n) {
  bool found = false;
  for (int i = 0; i < n; ++i) found = found || x[i] != x[i];
  return found;
}

// Whether numbers without NaN are a rotation: a quaternion of length 1, a rotation matrix, each within `tolerance`, 6D of two
// vectors apart, finite numbers.
template <class Scalar>
ROBOCACHE_HD bool is_rotation(const RotationForm& form, const Scalar* x, Scalar tolerance) {
  if (std::isinf(largest_of(x, form.width))) return false;
  if (form.kind == RotationKind::kQuaternion) {
    const Scalar factor = factor_of(x, 4);
    Scalar q[4];
    for (int i = 0; i < 4; ++i) q[i] = x[i] / factor;
    return std::fabs(std::sqrt(dot_of(q, q, 4)) * factor - Scalar(1)) <= tolerance;
  }
  if (form.kind != RotationKind::kMatrix) return true;
  if (form.width == 6) {
    Scalar a[3];
    Scalar b[3];
    two_vectors(form, x, a, b);
    return orthonormalise(a, b) > Scalar(1e-6);
  }
  Scalar normal[3];
  cross_of(x, x + 3, normal);
  bool orthonormal = dot_of(normal, x + 6, 3) > Scalar(0);
  for (int i = 0; i < 3; ++i) {
    for (int j = i; j < 3; ++j) {
      const Scalar off = std::fabs(dot_of(x + 3 * i, x + 3 * j, 3) - Scalar(i == j));
      orthonormal = orthonormal && off <= 2 * tolerance;
    }
  }
  return orthonormal;
}

// ---- To and from a unit quaternion x, y, z, w --------------------------------------------------------------------------

template <class Scalar>
ROBOCACHE_HD void matrix_of_quaternion(const Scalar* q, Scalar* m) {
  const Scalar x = q[0], y = q[1], z = q[2], w = q[3];
  m[0] = 1 - 2 * (y * y + z * z);
  m[1] = 2 * (x * y - z * w);
  m[2] = 2 * (x * z + y * w);
  m[3] = 2 * (x * y + z * w);
  m[4] = 1 - 2 * (x * x + z * z);
  m[5] = 2 * (y * z - x * w);
  m[6] = 2 * (x * z - y * w);
  m[7] = 2 * (y * z + x * w);
  m[8] = 1 - 2 * (x * x + y * y);
}

template <class Scalar>
ROBOCACHE_HD void make_w_positive(Scalar* q) {
  if (q[3] < Scalar(0)) {
    for (int i = 0; i < 4; ++i) q[i] = -q[i];
  }
}

// The largest component by the diagonal, the others by it: no difference of near numbers is divided by a small one.
template <class Scalar>
ROBOCACHE_HD void quaternion_of_matrix(const Scalar* m, Scalar* q) {
  const Scalar squares[4] = {1 + m[0] - m[4] - m[8], 1 - m[0] + m[4] - m[8], 1 - m[0] - m[4] + m[8],
                             1 + m[0] + m[4] + m[8]};
  const Scalar xy = m[1] + m[3], xz = m[2] + m[6], yz = m[5] + m[7];
  const Scalar xw = m[7] - m[5], yw = m[2] - m[6], zw = m[3] - m[1];
  const Scalar by_component[4][4] = {
      {squares[0], xy, xz, xw}, {xy, squares[1], yz, yw}, {xz, yz, squares[2], zw}, {xw, yw, zw, squares[3]}};
  for (int i = 0; i < 4; ++i) q[i] = by_component[3][i];
  Scalar most = squares[3];
  for (int c = 0; c < 3; ++c) {
    if (!(squares[c] > most)) continue;
    for (int i = 0; i < 4; ++i) q[i] = by_component[c][i];
    most = squares[c];
  }
  make_unit(q, 4);
  make_w_positive(q);
}

constexpr double kSmallSquare = 1e-8;  // of a length below which a series' next term is less than float64's rounding

template <class Scalar>
ROBOCACHE_HD void quaternion_of_vector(const Scalar* v, Scalar* q) {
  const Scalar square = dot_of(v, v, 3);
  const bool small = square < Scalar(kSmallSquare);
  const Scalar angle = std::sqrt(small ? Scalar(1) : square);
  const Scalar factor = small ? Scalar(0.5) - square / 48 : std::sin(angle / 2) / angle;
  for (int i = 0; i < 3; ++i) q[i] = factor * v[i];
  q[3] = small ? 1 - square / 8 : std::cos(angle / 2);
}

template <class Scalar>
ROBOCACHE_HD void vector_of_quaternion(const Scalar* q, Scalar* v) {
  const Scalar square = dot_of(q, q, 3);
  const bool small = square < Scalar(kSmallSquare);
  const Scalar sine = std::sqrt(small ? Scalar(1) : square);
  const Scalar near = small ? q[3] : Scalar(1);
  const Scalar factor = small ? 2 / near * (1 - square / (3 * near * near)) : 2 * std::atan2(sine, q[3]) / sine;
  for (int i = 0; i < 3; ++i) v[i] = factor * q[i];
}

// The same angle in [-pi, pi): x - 2 pi rint(x / 2 pi), with 2 pi in two parts so that no digit of x is lost.
template <class Scalar>
ROBOCACHE_HD Scalar within_half_a_turn(Scalar x) {
  const Scalar turns = std::rint(x / Scalar(2 * kPi));
  const Scalar y = (x - turns * Scalar(6.28125)) - turns * Scalar(2 * kPi - 6.28125);
  return std::fabs(y) >= Scalar(kPi) ? Scalar(-kPi) : y;
}

// A product of three turns about axes, from the left as they act on turned axes.
template <class Scalar>
ROBOCACHE_HD void quaternion_of_angles(const RotationForm& form, const Scalar* angles, Scalar* q) {
  for (int turn = 0; turn < 3; ++turn) {
    const int at = form.intrinsic ? turn : 2 - turn;
    const int axis = form.axes[at];
    const Scalar sine = std::sin(angles[at] / 2);
    const Scalar cosine = std::cos(angles[at] / 2);
    if (turn == 0) {
      q[0] = q[1] = q[2] = 0;
      q[axis] = sine;
      q[3] = cosine;
      continue;
    }
    const int b = (axis + 1) % 3;
    const int c = (axis + 2) % 3;
    const Scalar x = q[axis], y = q[b], z = q[c], w = q[3];
    q[axis] = x * cosine + w * sine;
    q[b] = y * cosine + z * sine;
    q[c] = z * cosine - y * sine;
    q[3] = w * cosine - x * sine;
  }
}

// Bernardes and Viollet, "Quaternion to Euler angles conversion: a direct, general and computationally efficient method", 2022:
// half the sum and half the difference of the outer angles are angles of two pairs of components.
template <class Scalar>
ROBOCACHE_HD void angles_of_quaternion(const RotationForm& form, const Scalar* q, Scalar* angles) {
  const int i = form.axes[form.intrinsic ? 2 : 0];
  const int j = form.axes[1];
  int k = form.axes[form.intrinsic ? 0 : 2];
  const bool proper = i == k;
  if (proper) k = 3 - i - j;
  const int order = (i - j) * (j - k) * (k - i);  // 2 or -2
  const Scalar sign = order > 0 ? Scalar(1) : Scalar(-1);
  Scalar a = proper ? q[3] : q[3] - q[j];
  Scalar b = proper ? q[i] : q[i] + q[k] * sign;
  Scalar c = proper ? q[j] : q[j] + q[3];
  Scalar d = proper ? q[k] * sign : q[k] * sign - q[i];
  const Scalar low = c * c + d * d;
  const Scalar high = a * a + b * b;
  const Scalar least = Scalar(std::is_same_v<Scalar, float> ? 0x1p-40 : 0x1p-46);
  const bool at_low = low < least;  // the middle angle's ends, where only one of both halves is known
  const bool at_high = high < least;
  if (at_low) c = 1, d = 0;
  if (at_high) a = 1, b = 0;
  const Scalar half_sum = std::atan2(b, a);
  const Scalar half_difference = std::atan2(d, c);
  Scalar middle = at_low ? Scalar(0) : at_high ? Scalar(kPi) : 2 * std::atan2(std::sqrt(low), std::sqrt(high));
  Scalar first = half_sum - half_difference;
  Scalar third = half_sum + half_difference;
  if (at_low || at_high) {
    const Scalar known = at_low ? 2 * half_sum : (form.intrinsic ? 2 : -2) * half_difference;
    first = form.intrinsic ? Scalar(0) : known;  // what is `first` here is the third angle of turned axes
    third = form.intrinsic ? known : Scalar(0);
  }
  if (!proper) {
    third = third * sign;
    middle = middle - Scalar(kPi / 2);
  }
  angles[form.intrinsic ? 2 : 0] = within_half_a_turn(first);
  angles[1] = middle;
  angles[form.intrinsic ? 0 : 2] = within_half_a_turn(third);
}

// ---- Forms without NaN that are rotations ------------------------------------------------------------------------------

template <class Scalar>
ROBOCACHE_HD void to_quaternion(const RotationForm& form, const Scalar* x, Scalar* q) {
  if (form.kind == RotationKind::kVector) return quaternion_of_vector(x, q);
  if (form.kind == RotationKind::kEuler) return quaternion_of_angles(form, x, q);
  for (int i = 0; i < 4; ++i) q[form.order[i]] = x[i];
  make_unit(q, 4);
}

template <class Scalar>
ROBOCACHE_HD void from_quaternion(const RotationForm& form, Scalar* q, Scalar* y) {
  make_w_positive(q);
  if (form.kind == RotationKind::kVector) return vector_of_quaternion(q, y);
  if (form.kind == RotationKind::kEuler) return angles_of_quaternion(form, q, y);
  for (int i = 0; i < 4; ++i) y[i] = q[form.order[i]];
}

template <class Scalar>
ROBOCACHE_HD void swap_entries(Scalar& a, Scalar& b) {
  const Scalar kept = a;
  a = b;
  b = kept;
}

template <class Scalar>
ROBOCACHE_HD void transpose(Scalar* m) {
  swap_entries(m[1], m[3]);
  swap_entries(m[2], m[6]);
  swap_entries(m[5], m[7]);
}

// An orthonormal matrix.
template <class Scalar>
ROBOCACHE_HD void to_matrix(const RotationForm& form, const Scalar* x, Scalar* m) {
  if (form.kind != RotationKind::kMatrix) {
    Scalar q[4];
    to_quaternion(form, x, q);
    return matrix_of_quaternion(q, m);
  }
  two_vectors(form, x, m, m + 3);
  orthonormalise(m, m + 3);
  cross_of(m, m + 3, m + 6);
  if (!has_rows(form)) transpose(m);
}

template <class Scalar>
ROBOCACHE_HD void from_matrix(const RotationForm& form, const Scalar* m, Scalar* y) {
  if (form.kind == RotationKind::kMatrix) {
    for (int i = 0; i < form.width; ++i) y[i] = m[form.order[i]];
    return;
  }
  Scalar q[4];
  quaternion_of_matrix(m, q);
  from_quaternion(form, q, y);
}

template <class Scalar>
ROBOCACHE_HD void convert_rotation(const RotationForm& source, const RotationForm& target, const Scalar* x, Scalar* y) {
  constexpr auto kMatrix = RotationKind::kMatrix;
  if (source.kind == RotationKind::kQuaternion && target.kind == RotationKind::kQuaternion) {
    Scalar q[4];
    for (int i = 0; i < 4; ++i) q[source.order[i]] = x[i];
    for (int i = 0; i < 4; ++i) y[i] = q[target.order[i]];
  } else if (source.width == 9 && target.kind == kMatrix) {
    for (int i = 0; i < target.width; ++i) y[i] = x[target.order[i]];
  } else if (source.kind == kMatrix || target.kind == kMatrix) {
    Scalar m[9];
    to_matrix(source, x, m);
    from_matrix(target, m, y);
  } else {
    Scalar q[4];
    to_quaternion(source, x, q);
    from_quaternion(target, q, y);
  }
}

}  // namespace robocache
