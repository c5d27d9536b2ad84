// Converts rotations from one representation to another, by the formulas of python/robocache/actions/rotations.py. In
// float32 both give the same bits, except for the sines, cosines and arc tangents of rotation vectors and Euler angles.
// docs/actions.md has the conventions.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "robocache/actions/wide.hpp"
#include "robocache/core/host_device.hpp"

namespace robocache {

enum class RotationKind : int32_t { kQuaternion, kMatrix, kVector, kEuler };

// A representation of `width` numbers. Number i of a quaternion is component order[i] of x, y, z, w. Number i of a
// matrix or of 6D is entry order[i] of the matrix, counted row by row.
struct RotationForm {
  RotationKind kind;
  int32_t width;
  int32_t order[9];
  int32_t axes[3];  // of Euler angles
  bool intrinsic;   // an Euler angle turns about an axis that the earlier angles have turned
};

// Returns the form of "quat_xyzw", "quat_wxyz", "matrix", "rot6d_rows", "rot6d_columns", "rot6d_interleaved", "rotvec",
// or "euler_" and three axes. Throws ArgumentError that begins with `argument`.
RotationForm rotation_form(std::string_view name, std::string_view argument);

inline constexpr int kMostRotation = 9;  // the most numbers of a representation

inline constexpr double kPi = 3.14159265358979323846;

template <class Scalar>
ROBOCACHE_HD Scalar infinity() {
  return Scalar(static_cast<One<Scalar>>(__builtin_inff()));
}
template <class Scalar>
ROBOCACHE_HD Scalar not_a_number() {
  return Scalar(static_cast<One<Scalar>>(__builtin_nanf("")));
}

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
  Scalar largest = absolute(v[0]);
  for (int i = 1; i < n; ++i) {
    const Scalar size = absolute(v[i]);
    largest = choose(size > largest, size, largest);
  }
  return largest;
}

// Returns a divisor of the components with which their squares neither overflow nor vanish; usually 1.
template <class Scalar>
ROBOCACHE_HD Scalar divisor_of(const Scalar* v, int n) {
  constexpr bool kSingle = std::is_same_v<One<Scalar>, float>;
  const Scalar largest = largest_of(v, n);
  const auto is_usual = largest > Scalar(One<Scalar>(kSingle ? 0x1p-40 : 0x1p-300)) &&
                        largest < Scalar(One<Scalar>(kSingle ? 0x1p60 : 0x1p500));
  return choose(is_usual || largest == Scalar(0) || largest == infinity<Scalar>(), Scalar(1), largest);
}

// Scales a vector to length 1 and returns the length that it had. A zero vector stays.
template <class Scalar>
ROBOCACHE_HD Scalar make_unit(Scalar* v, int n) {
  const Scalar divisor = divisor_of(v, n);
  if (any_of(divisor != Scalar(1))) {
    for (int i = 0; i < n; ++i) v[i] = v[i] / divisor;
  }
  const Scalar square = dot_of(v, v, n);
  const auto is_nonzero = square > Scalar(0);
  const Scalar length = root_of(choose(is_nonzero, square, Scalar(1)));
  for (int i = 0; i < n; ++i) v[i] = v[i] / length;
  return choose(is_nonzero, length * divisor, Scalar(0));
}

// Gram-Schmidt: scales both vectors to length 1, and makes the second orthogonal to the first. Returns the sine of the
// angle that was between them, 0 if one is 0. It projects twice, so that almost parallel vectors become orthogonal to
// the last digit.
template <class Scalar>
ROBOCACHE_HD Scalar orthonormalise(Scalar* a, Scalar* b) {
  const auto is_nonzero = make_unit(a, 3) > Scalar(0) && make_unit(b, 3) > Scalar(0);
  Scalar projection = dot_of(a, b, 3);
  for (int i = 0; i < 3; ++i) b[i] = b[i] - projection * a[i];
  const Scalar sine = choose(is_nonzero, root_of(dot_of(b, b, 3)), Scalar(0));
  make_unit(b, 3);
  projection = dot_of(a, b, 3);
  for (int i = 0; i < 3; ++i) b[i] = b[i] - projection * a[i];
  make_unit(b, 3);
  return sine;
}

// Copies the two vectors of a 6D rotation, or the first two rows of a matrix.
template <class Scalar>
ROBOCACHE_HD void two_vectors(const RotationForm& form, const Scalar* x, Scalar* a, Scalar* b) {
  const bool is_interleaved = form.width == 6 && form.order[1] == 1 && form.order[2] == 3;
  for (int i = 0; i < 3; ++i) {
    const int first = is_interleaved ? 2 * i : i;
    const int second = is_interleaved ? 2 * i + 1 : 3 + i;
    a[i] = x[first];
    b[i] = x[second];
  }
}

// Whether the numbers are rows of the matrix one after the other, not columns.
ROBOCACHE_HD bool has_rows(const RotationForm& form) { return form.order[1] == 1 && form.order[2] == 2; }

template <class Scalar>
ROBOCACHE_HD auto has_nan(const Scalar* x, int n) {
  auto any_nan = x[0] != x[0];
  for (int i = 1; i < n; ++i) any_nan = any_nan || x[i] != x[i];
  return any_nan;
}

// Whether the rows of a matrix are orthonormal within `tolerance` and right-handed.
template <class Scalar>
ROBOCACHE_HD auto is_orthonormal(const Scalar* m, Scalar tolerance) {
  Scalar normal[3];
  cross_of(m, m + 3, normal);
  auto orthonormal = dot_of(normal, m + 6, 3) > Scalar(0);
  for (int i = 0; i < 3; ++i) {
    for (int j = i; j < 3; ++j) {
      const Scalar error = absolute(dot_of(m + 3 * i, m + 3 * j, 3) - Scalar(i == j ? 1 : 0));
      orthonormal = orthonormal && error <= Scalar(2) * tolerance;  // the square of a length 1 + t is about 1 + 2 t
    }
  }
  return orthonormal;
}

// ---- To and from a unit quaternion x, y, z, w -----------------------------------------------------------------------

template <class Scalar>
ROBOCACHE_HD void matrix_of_quaternion(const Scalar* q, Scalar* m) {
  const Scalar x = q[0], y = q[1], z = q[2], w = q[3];
  const Scalar one(1), two(2);
  m[0] = one - two * (y * y + z * z);
  m[1] = two * (x * y - z * w);
  m[2] = two * (x * z + y * w);
  m[3] = two * (x * y + z * w);
  m[4] = one - two * (x * x + z * z);
  m[5] = two * (y * z - x * w);
  m[6] = two * (x * z - y * w);
  m[7] = two * (y * z + x * w);
  m[8] = one - two * (x * x + y * y);
}

template <class Scalar>
ROBOCACHE_HD void make_w_positive(Scalar* q) {
  const auto is_negative = q[3] < Scalar(0);
  for (int i = 0; i < 4; ++i) q[i] = choose(is_negative, -q[i], q[i]);
}

// Computes the largest component from the diagonal, and the others from it, so that no difference of nearly equal
// numbers is divided by a small one.
template <class Scalar>
ROBOCACHE_HD void quaternion_of_matrix(const Scalar* m, Scalar* q) {
  const Scalar one(1);
  const Scalar squares[4] = {one + m[0] - m[4] - m[8], one - m[0] + m[4] - m[8], one - m[0] - m[4] + m[8],
                             one + m[0] + m[4] + m[8]};
  const Scalar xy = m[1] + m[3], xz = m[2] + m[6], yz = m[5] + m[7];
  const Scalar xw = m[7] - m[5], yw = m[2] - m[6], zw = m[3] - m[1];
  const Scalar by_component[4][4] = {
      {squares[0], xy, xz, xw}, {xy, squares[1], yz, yw}, {xz, yz, squares[2], zw}, {xw, yw, zw, squares[3]}};
  for (int i = 0; i < 4; ++i) q[i] = by_component[3][i];
  Scalar largest = squares[3];
  for (int c = 0; c < 3; ++c) {
    const auto is_larger = squares[c] > largest;
    for (int i = 0; i < 4; ++i) q[i] = choose(is_larger, by_component[c][i], q[i]);
    largest = choose(is_larger, squares[c], largest);
  }
  make_unit(q, 4);
  make_w_positive(q);
}

constexpr double kSmallSquare = 1e-8;  // below it, the next term of a series is less than float64's rounding

template <class Scalar>
ROBOCACHE_HD void quaternion_of_vector(const Scalar* v, Scalar* q) {
  const Scalar square = dot_of(v, v, 3);
  const auto is_small = square < Scalar(One<Scalar>(kSmallSquare));
  const Scalar angle = root_of(choose(is_small, Scalar(1), square));
  const Scalar factor = choose(is_small, Scalar(0.5F) - square / Scalar(48), sine_of(angle / Scalar(2)) / angle);
  for (int i = 0; i < 3; ++i) q[i] = factor * v[i];
  q[3] = choose(is_small, Scalar(1) - square / Scalar(8), cosine_of(angle / Scalar(2)));
}

template <class Scalar>
ROBOCACHE_HD void vector_of_quaternion(const Scalar* q, Scalar* v) {
  const Scalar square = dot_of(q, q, 3);
  const auto is_small = square < Scalar(One<Scalar>(kSmallSquare));
  const Scalar half_sine = root_of(choose(is_small, Scalar(1), square));  // sin(angle / 2)
  const Scalar w = choose(is_small, q[3], Scalar(1));
  const Scalar series = Scalar(2) / w * (Scalar(1) - square / (Scalar(3) * w * w));
  const Scalar factor = choose(is_small, series, Scalar(2) * arc_tangent_of(half_sine, q[3]) / half_sine);
  for (int i = 0; i < 3; ++i) v[i] = factor * q[i];
}

// Returns the same angle in [-pi, pi): x - 2 pi rint(x / 2 pi). It subtracts 2 pi in two parts, so that no digit of x
// is lost.
template <class Scalar>
ROBOCACHE_HD Scalar within_half_a_turn(Scalar x) {
  const auto scalar = [](double number) { return Scalar(static_cast<One<Scalar>>(number)); };
  const Scalar turns = whole_of(x / scalar(2 * kPi));
  const Scalar y = (x - turns * scalar(6.28125)) - turns * scalar(2 * kPi - 6.28125);
  return choose(absolute(y) >= scalar(kPi), scalar(-kPi), y);
}

// Multiplies three turns about axes: in their order for intrinsic angles, else in reverse.
template <class Scalar>
ROBOCACHE_HD void quaternion_of_angles(const RotationForm& form, const Scalar* angles, Scalar* q) {
  for (int turn = 0; turn < 3; ++turn) {
    const int index = form.intrinsic ? turn : 2 - turn;
    const int axis = form.axes[index];
    const Scalar s = sine_of(angles[index] / Scalar(2));
    const Scalar c = cosine_of(angles[index] / Scalar(2));
    if (turn == 0) {
      q[0] = q[1] = q[2] = Scalar(0);
      q[axis] = s;
      q[3] = c;
      continue;
    }
    const int second = (axis + 1) % 3;
    const int third = (axis + 2) % 3;
    const Scalar x = q[axis], y = q[second], z = q[third], w = q[3];
    q[axis] = x * c + w * s;
    q[second] = y * c + z * s;
    q[third] = z * c - y * s;
    q[3] = w * c - x * s;
  }
}

// Follows Bernardes and Viollet, "Quaternion to Euler angles conversion: a direct, general and computationally
// efficient method", 2022: half the sum and half the difference of the first and third angle are the angles of two
// pairs of components.
template <class Scalar>
ROBOCACHE_HD void angles_of_quaternion(const RotationForm& form, const Scalar* q, Scalar* angles) {
  const int i = form.axes[form.intrinsic ? 2 : 0];
  const int j = form.axes[1];
  int k = form.axes[form.intrinsic ? 0 : 2];
  const bool is_proper = i == k;  // the first and third axis are the same
  if (is_proper) k = 3 - i - j;
  const int order = (i - j) * (j - k) * (k - i);  // 2 or -2
  const Scalar sign(order > 0 ? 1 : -1);
  const auto scalar = [](double number) { return Scalar(static_cast<One<Scalar>>(number)); };
  Scalar a = is_proper ? q[3] : q[3] - q[j];
  Scalar b = is_proper ? q[i] : q[i] + q[k] * sign;
  Scalar c = is_proper ? q[j] : q[j] + q[3];
  Scalar d = is_proper ? q[k] * sign : q[k] * sign - q[i];
  const Scalar low = c * c + d * d;
  const Scalar high = a * a + b * b;
  const Scalar limit = scalar(std::is_same_v<One<Scalar>, float> ? 0x1p-40 : 0x1p-46);
  const auto at_low = low < limit;    // the middle angle is at its lower end: only half_sum is known
  const auto at_high = high < limit;  // at its upper end: only half_difference is known
  c = choose(at_low, Scalar(1), c);
  d = choose(at_low, Scalar(0), d);
  a = choose(at_high, Scalar(1), a);
  b = choose(at_high, Scalar(0), b);
  const Scalar half_sum = arc_tangent_of(b, a);
  const Scalar half_difference = arc_tangent_of(d, c);
  const Scalar free_middle = Scalar(2) * arc_tangent_of(root_of(low), root_of(high));
  Scalar middle = choose(at_low, Scalar(0), choose(at_high, scalar(kPi), free_middle));
  const Scalar only_angle = choose(at_low, Scalar(2) * half_sum, Scalar(form.intrinsic ? 2 : -2) * half_difference);
  const auto is_locked = at_low || at_high;
  // For intrinsic angles `first` is the third one.
  const Scalar first = choose(is_locked, form.intrinsic ? Scalar(0) : only_angle, half_sum - half_difference);
  Scalar third = choose(is_locked, form.intrinsic ? only_angle : Scalar(0), half_sum + half_difference);
  if (!is_proper) {
    third = third * sign;
    middle = middle - scalar(kPi / 2);
  }
  angles[form.intrinsic ? 2 : 0] = within_half_a_turn(first);
  angles[1] = middle;
  angles[form.intrinsic ? 0 : 2] = within_half_a_turn(third);
}

// ---- From one representation to another -----------------------------------------------------------------------------

// These functions take kMostRotation numbers `x`, of which those after form.width are 0, and return whether they are a
// rotation; if not, the result is meaningless. A quaternion must have length 1 and a matrix must be orthonormal, within
// `tolerance`; the two vectors of 6D must not be parallel; other forms must be finite. With an infinite tolerance they
// also accept quaternions of any length but 0, and matrices that Gram-Schmidt turns into rotations.

ROBOCACHE_HD bool has_w_first(const RotationForm& form) { return form.order[0] == 3; }

template <class Scalar>
ROBOCACHE_HD auto is_finite(const Scalar* x) {
  return largest_of(x, kMostRotation) < infinity<Scalar>();
}

template <class Scalar>
ROBOCACHE_HD void components_of(const RotationForm& form, const Scalar* x, Scalar* q) {
  for (int i = 0; i < 4; ++i) q[i] = has_w_first(form) ? x[(i + 1) % 4] : x[i];
}

// Writes a unit quaternion. `form` is not a matrix or 6D.
template <class Scalar>
ROBOCACHE_HD auto to_quaternion(const RotationForm& form, const Scalar* x, Scalar tolerance, Scalar* q) {
  const auto all_finite = is_finite(x);
  if (form.kind == RotationKind::kVector) {
    quaternion_of_vector(x, q);
    return all_finite;
  }
  if (form.kind == RotationKind::kEuler) {
    quaternion_of_angles(form, x, q);
    return all_finite;
  }
  components_of(form, x, q);
  const Scalar length = make_unit(q, 4);
  return all_finite && length > Scalar(0) && absolute(length - Scalar(1)) <= tolerance;
}

template <class Scalar>
ROBOCACHE_HD void from_quaternion(const RotationForm& form, Scalar* q, Scalar* y) {
  make_w_positive(q);
  if (form.kind == RotationKind::kVector) return vector_of_quaternion(q, y);
  if (form.kind == RotationKind::kEuler) return angles_of_quaternion(form, q, y);
  for (int i = 0; i < 4; ++i) y[i] = has_w_first(form) ? q[(i + 3) % 4] : q[i];
}

template <class Scalar>
ROBOCACHE_HD void swap_entries(Scalar& a, Scalar& b) {
  const Scalar old_a = a;
  a = b;
  b = old_a;
}

template <class Scalar>
ROBOCACHE_HD void transpose(Scalar* m) {
  swap_entries(m[1], m[3]);
  swap_entries(m[2], m[6]);
  swap_entries(m[5], m[7]);
}

// Writes an orthonormal matrix.
template <class Scalar>
ROBOCACHE_HD auto to_matrix(const RotationForm& form, const Scalar* x, Scalar tolerance, Scalar* m) {
  if (form.kind != RotationKind::kMatrix) {
    Scalar q[4];
    const auto is_rotation = to_quaternion(form, x, tolerance, q);
    matrix_of_quaternion(q, m);
    return is_rotation;
  }
  two_vectors(form, x, m, m + 3);
  const Scalar sine = orthonormalise(m, m + 3);
  cross_of(m, m + 3, m + 6);
  if (!has_rows(form)) transpose(m);
  return is_finite(x) && (form.width == 6 ? sine > Scalar(One<Scalar>(1e-6)) : is_orthonormal(x, tolerance));
}

// Writes all 9 entries of a matrix, or the 6 of two vectors: two rows, or two columns, interleaved or one after the
// other. Each index is a constant, so that the numbers stay in registers.
template <class Scalar>
ROBOCACHE_HD void entries_of(const RotationForm& form, const Scalar* m, Scalar* y) {
  const bool has_row_order = has_rows(form);
  const bool is_interleaved = form.order[1] == 1 && !has_row_order;
  for (int i = 0; i < 6; ++i)
    y[i] = has_row_order ? m[i] : is_interleaved ? m[3 * (i / 2) + i % 2] : m[3 * (i % 3) + i / 3];
  for (int i = 6; i < 9; ++i) y[i] = form.width == 9 ? m[i] : Scalar(0);
}

template <class Scalar>
ROBOCACHE_HD void from_matrix(const RotationForm& form, const Scalar* m, Scalar* y) {
  if (form.kind == RotationKind::kMatrix) return entries_of(form, m, y);
  Scalar q[4];
  quaternion_of_matrix(m, q);
  from_quaternion(form, q, y);
}

template <class Scalar>
ROBOCACHE_HD auto convert_rotation(const RotationForm& source, const RotationForm& target, const Scalar* x,
                                   Scalar tolerance, Scalar* y) {
  constexpr auto kMatrix = RotationKind::kMatrix;
  constexpr auto kQuaternion = RotationKind::kQuaternion;
  if (source.width == 9 && target.kind == kMatrix) {
    entries_of(target, x, y);
    return is_finite(x) && is_orthonormal(x, tolerance);
  }
  if (source.kind == kMatrix || target.kind == kMatrix) {
    Scalar m[9];
    const auto is_rotation = to_matrix(source, x, tolerance, m);
    from_matrix(target, m, y);
    return is_rotation;
  }
  Scalar q[4];
  const auto is_rotation = to_quaternion(source, x, tolerance, q);
  if (source.kind == kQuaternion && target.kind == kQuaternion) {
    components_of(source, x, q);
    for (int i = 0; i < 4; ++i) y[i] = has_w_first(target) ? q[(i + 3) % 4] : q[i];
  } else {
    from_quaternion(target, q, y);
  }
  return is_rotation;
}

}  // namespace robocache
