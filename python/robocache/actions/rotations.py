"""Converts rotations between representations, by one definition for numpy, torch, the CPU and CUDA.

The formulas use +, -, *, /, sqrt, comparisons and selections, which have the same bits everywhere in float32. Only those for
rotation vectors and Euler angles use sin, cos and atan2. No branch depends on a value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import errors
from .._check import flag
from ._arrays import cast, in_work_type, quietly, roundoff, row_text, shape_text, values_are_readable

# The components of each representation, in its order, as indices into x, y, z, w or into the matrix row by row.
_QUATERNIONS = {"quat_xyzw": (0, 1, 2, 3), "quat_wxyz": (3, 0, 1, 2)}
MATRIX_ENTRIES = {
    "matrix": (0, 1, 2, 3, 4, 5, 6, 7, 8),
    "rot6d_rows": (0, 1, 2, 3, 4, 5),
    "rot6d_columns": (0, 3, 6, 1, 4, 7),
    "rot6d_interleaved": (0, 1, 3, 4, 6, 7),
}
_EULER = re.compile(r"euler_(?!.*(.)\1)([xyz]{3}|[XYZ]{3})")
_LENGTH_TOLERANCE = 1e-3
_PARALLEL = 1e-6  # the least sine between the two vectors of a 6D rotation
_SMALL_SQUARE = 1e-8  # below this squared length, the terms that a series leaves out are below float64's rounding

Components = list[Any]


def rotation_width(argument: str, rotation: Any) -> int:
    """Returns the number of components of a representation. Raises an error for an unknown name."""
    if not isinstance(rotation, str):
        raise errors.ArgumentTypeError(f"{argument}: expected the name of a rotation, got {rotation!r}")
    if rotation in _QUATERNIONS:
        return 4
    if rotation in MATRIX_ENTRIES:
        return len(MATRIX_ENTRIES[rotation])
    if rotation == "rotvec" or _EULER.fullmatch(rotation):
        return 3
    names = ", ".join(repr(name) for name in (*_QUATERNIONS, *MATRIX_ENTRIES, "rotvec"))
    raise errors.ArgumentError(
        f"{argument}: expected {names}, or 'euler_' and three axes, no two neighbours the same ('euler_xyz' extrinsic,"
        f" 'euler_XYZ' intrinsic), got {rotation!r}"
    )


def convert_rotation(x: Any, source: str, target: str, *, normalize: bool = False) -> Any:
    """Converts rotations from one representation to another.

    Args:
        x: ``[..., n]``, float64, float32, float16 or bfloat16, numpy or torch on any device.
        source, target: ``"quat_xyzw"``, ``"quat_wxyz"`` (4); ``"matrix"`` (9, row after row); entries of the matrix r00 to r22:
            ``"rot6d_rows"`` (r00 r01 r02 r10 r11 r12), ``"rot6d_columns"`` (r00 r10 r20 r01 r11 r21) or ``"rot6d_interleaved"``
            (r00 r01 r10 r11 r20 r21); ``"rotvec"`` (3, axis times radians); ``"euler_"`` with scipy's axes (3, radians):
            ``"euler_xyz"`` about fixed axes, ``"euler_XYZ"`` about rotated axes.
        normalize: accept quaternions of any length but 0, and matrices that are not orthonormal (by Gram-Schmidt of the first
            two rows).

    Returns:
        ``[..., m]`` in x's dtype, framework and device, on torch with gradients to x. The arithmetic is in float64 for
        float64, else in float32, and is rounded once. A row with NaN gives NaN. Computed quaternions have w >= 0. Between
        ``quat_xyzw`` and ``quat_wxyz``, and from a matrix to 6D, the numbers are copied. 6D is orthonormalised by Gram-Schmidt,
        the first vector first. Rotation vectors have length [0, pi], Euler angles lie in [-pi, pi], the middle one in [-pi/2,
        pi/2], or [0, pi] for axes such as zxz. In gimbal lock the third angle is 0.

    Raises:
        ArgumentError, ArgumentTypeError: the length of a quaternion is 0, or not 1 within 1e-3 (plus the rounding of x's type);
            a matrix is not a rotation within the same tolerance, or mirrors; vectors of 6D are zero or parallel; a number is
            infinite. The message names the argument and the row. On CUDA this waits for the device. Under torch.compile,
            torch.func and in a CUDA graph, where values cannot be read, such a row is NaN instead.

    Example:
        >>> convert_rotation(np.array([0.0, 0.0, 1.0, 0.0]), "quat_xyzw", "rotvec")
        array([0.        , 0.        , 3.14159265])
    """
    width = rotation_width("source", source)
    rotation_width("target", target)
    flag("normalize", normalize)
    xp, (work,) = in_work_type(x=x)
    if x.ndim < 1 or x.shape[-1] != width:
        raise errors.ArgumentError(f"x: expected [..., {width}] for {source!r}, got {shape_text(x.shape)}")
    leading = tuple(x.shape[:-1])
    rows = work.reshape(math.prod(leading), width)
    with quietly(xp):
        parts, is_nan = check_parts(
            xp, "x", [rows[:, i] for i in range(width)], source, roundoff(x), normalize, leading
        )
        if source in _QUATERNIONS and target in _QUATERNIONS and not normalize:
            result = [parts[_QUATERNIONS[source].index(i)] for i in _QUATERNIONS[target]]
        elif source == "matrix" and target in MATRIX_ENTRIES and not normalize:
            result = [parts[i] for i in MATRIX_ENTRIES[target]]
        elif source in MATRIX_ENTRIES or target in MATRIX_ENTRIES:
            result = from_matrix(xp, to_matrix(xp, parts, source), target)
        else:
            result = _from_quaternion(xp, _to_quaternion(xp, parts, source), target)
        out = xp.stack([xp.where(is_nan, math.nan, part) for part in result], -1)
    return cast(out.reshape(*leading, len(result)), x.dtype)


def check_parts(
    xp: Any,
    argument: str,
    parts: Components,
    source: str,
    unit_roundoff: float,
    normalize: bool,
    leading: Sequence[int],
    more: Sequence[Any] = (),
) -> tuple[Components, Any]:
    """Checks the rotations. Returns their components, and the mask of rows with NaN in a component or in an array of `more`.
    These rows become the identity.

    Raises ArgumentError for rows that are no rotation. If values cannot be read, such rows count as rows with NaN.
    """
    is_nan = xp.isnan(parts[0])
    for part in (*parts[1:], *more):
        is_nan = is_nan | xp.isnan(part)
    identity = _identity(source)
    parts = [xp.where(is_nan, value, part) for part, value in zip(parts, identity, strict=True)]
    wrong, measure, text = _flaw(xp, parts, source, _LENGTH_TOLERANCE + unit_roundoff, normalize)
    if values_are_readable(xp, parts[0]):
        if bool(wrong.any()):
            index = int(np.flatnonzero(wrong if xp is np else wrong.detach().cpu().numpy())[0])
            value = float(measure.reshape(-1)[index])
            raise errors.ArgumentError(f"{argument}: {text.format(value)} at {row_text(index, leading)}")
        return parts, is_nan
    parts = [xp.where(wrong, value, part) for part, value in zip(parts, identity, strict=True)]
    return parts, is_nan | wrong


def _identity(source: str) -> list[float]:
    """Returns the components of the identity."""
    if source in _QUATERNIONS:
        return [float(i == 3) for i in _QUATERNIONS[source]]
    if source in MATRIX_ENTRIES:
        return [float(i in (0, 4, 8)) for i in MATRIX_ENTRIES[source]]
    return [0.0, 0.0, 0.0]


def _flaw(xp: Any, parts: Components, source: str, tolerance: float, normalize: bool) -> tuple[Any, Any, str]:
    """Returns the mask of rows that are no rotation, the measured number of each row, and a message with {} for that number."""
    largest = _largest(xp, parts)
    infinite = largest == math.inf
    if source in _QUATERNIONS:
        factor = _factor(xp, parts)
        length = root(xp, _dot(*[[part / factor for part in parts]] * 2)) * factor
        wrong = ~((length > 0) & (length < math.inf))
        if normalize:
            return wrong, length, "expected quaternions of a finite length above 0, got one of length {:g}"
        wrong = wrong | ~(abs(length - 1) <= tolerance)
        text = f"expected quaternions of length 1 within {tolerance:.2g}, got one of length {{:g}}; normalize=True accepts others"
        return wrong, length, text
    if source == "matrix":
        rows = [parts[0:3], parts[3:6], parts[6:9]]
        determinant = _dot(_cross(rows[0], rows[1]), rows[2])
        if normalize:
            (_, _), sine = _two_vectors(xp, rows[0], rows[1])
            wrong = infinite | ~(determinant > 0) | ~(sine > _PARALLEL)
            return wrong, determinant, "expected matrices with a determinant above 0, got one of {:g}"
        deviation = 0 * determinant
        for i in range(3):
            for j in range(i, 3):
                deviation = xp.maximum(deviation, abs(_dot(rows[i], rows[j]) - float(i == j)))
        wrong = ~(deviation <= 2 * tolerance) | ~(determinant > 0)
        measure = xp.where(determinant > 0, deviation, determinant)
        text = (
            f"expected rotation matrices (M M^T - 1 within {2 * tolerance:.2g}, determinant 1), got one with {{:g}}"
            " (below 0: its determinant); normalize=True orthonormalises"
        )
        return wrong, measure, text
    if source in MATRIX_ENTRIES:
        _, sine = _two_vectors(xp, *_vectors_of_6d(parts, source))
        wrong = infinite | ~(sine > _PARALLEL)
        return wrong, sine, "expected two finite vectors that are not parallel, got two with sine {:g} between them"
    return infinite, largest, "expected finite numbers, got {:g}"


# ---- Vectors: lists of components ----


def root(xp: Any, x: Any) -> Any:
    """Returns the square root, correctly rounded for float32; torch's own on the CPU is not."""
    if xp is not np and x.dtype == xp.float32:
        return xp.sqrt(x.double()).float()
    return xp.sqrt(x)


def _dot(a: Sequence[Any], b: Sequence[Any]) -> Any:
    total = a[0] * b[0]
    for x, y in zip(a[1:], b[1:], strict=True):
        total = total + x * y
    return total


def _cross(a: Sequence[Any], b: Sequence[Any]) -> Components:
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


def _largest(xp: Any, parts: Sequence[Any]) -> Any:
    """Returns the largest magnitude of the components, without a gradient."""
    largest = abs(parts[0])
    for part in parts[1:]:
        largest = xp.maximum(largest, abs(part))
    return largest if xp is np else largest.detach()


def _factor(xp: Any, parts: Sequence[Any]) -> Any:
    """Returns 1, or a divisor with which the components' squares neither overflow nor underflow."""
    is_float32 = parts[0].dtype == xp.float32
    largest = _largest(xp, parts)
    is_usual = (largest > (2.0**-40 if is_float32 else 2.0**-300)) & (largest < (2.0**60 if is_float32 else 2.0**500))
    return xp.where(is_usual | (largest == 0) | (largest == math.inf), 1.0, largest)


def _unit(xp: Any, parts: Sequence[Any]) -> tuple[Components, Any]:
    """Returns the vector at length 1, and whether its length was above 0. A zero vector stays zero."""
    factor = _factor(xp, parts)
    parts = [part / factor for part in parts]
    square = _dot(parts, parts)
    has_length = square > 0
    length = root(xp, xp.where(has_length, square, 1.0))
    return [part / length for part in parts], has_length


def _two_vectors(xp: Any, a: Sequence[Any], b: Sequence[Any]) -> tuple[tuple[Components, Components], Any]:
    """Gram-Schmidt: returns both vectors at length 1, the second orthogonal to the first, and the sine between the original
    vectors, which is 0 if one of them is 0.

    The second is projected twice, so that it is orthogonal to the last digit even if it was almost parallel.
    """
    first, first_has_length = _unit(xp, a)
    second, second_has_length = _unit(xp, b)
    along = _dot(first, second)
    across = [y - along * x for x, y in zip(first, second, strict=True)]
    sine = xp.where(first_has_length & second_has_length, root(xp, _dot(across, across)), 0.0)
    across, _ = _unit(xp, across)
    along = _dot(first, across)
    across, _ = _unit(xp, [y - along * x for x, y in zip(first, across, strict=True)])
    return (first, across), sine


def _vectors_of_6d(parts: Components, source: str) -> tuple[Components, Components]:
    """Returns the two vectors of a 6D rotation."""
    if source == "rot6d_interleaved":
        return parts[0::2], parts[1::2]
    return parts[0:3], parts[3:6]


# ---- To and from a matrix of 9 entries, row after row, and a unit quaternion x, y, z, w ----


def to_matrix(xp: Any, parts: Components, source: str) -> Components:
    """Returns an orthonormal matrix from valid components."""
    if source not in MATRIX_ENTRIES:
        return _matrix_of_quaternion(_to_quaternion(xp, parts, source))
    first, second = (parts[0:3], parts[3:6]) if source == "matrix" else _vectors_of_6d(parts, source)
    (a, b), _ = _two_vectors(xp, first, second)
    entries = [*a, *b, *_cross(a, b)]
    return entries if source in ("matrix", "rot6d_rows") else transposed(entries)


def from_matrix(xp: Any, entries: Components, target: str) -> Components:
    if target in MATRIX_ENTRIES:
        return [entries[i] for i in MATRIX_ENTRIES[target]]
    return _from_quaternion(xp, _quaternion_of_matrix(xp, entries), target)


def transposed(m: Components) -> Components:
    return [m[0], m[3], m[6], m[1], m[4], m[7], m[2], m[5], m[8]]


def product(a: Components, b: Components) -> Components:
    columns = [b[0::3], b[1::3], b[2::3]]
    return [_dot(a[3 * i : 3 * i + 3], columns[j]) for i in range(3) for j in range(3)]


def turned(m: Components, v: Components) -> Components:
    """Returns the product of a matrix and a vector."""
    return [_dot(m[3 * i : 3 * i + 3], v) for i in range(3)]


def _matrix_of_quaternion(q: Components) -> Components:
    x, y, z, w = q
    return [
        1 - 2 * (y * y + z * z),
        2 * (x * y - z * w),
        2 * (x * z + y * w),
        2 * (x * y + z * w),
        1 - 2 * (x * x + z * z),
        2 * (y * z - x * w),
        2 * (x * z - y * w),
        2 * (y * z + x * w),
        1 - 2 * (x * x + y * y),
    ]


def _quaternion_of_matrix(xp: Any, m: Components) -> Components:
    """Computes the largest component from the diagonal, and the others from it, so that no cancelled difference is divided by a
    small number."""
    # Four times the square of each component; the products below are four times the product of two components.
    squares = [1 + m[0] - m[4] - m[8], 1 - m[0] + m[4] - m[8], 1 - m[0] - m[4] + m[8], 1 + m[0] + m[4] + m[8]]
    xy, xz, yz = m[1] + m[3], m[2] + m[6], m[5] + m[7]
    xw, yw, zw = m[7] - m[5], m[2] - m[6], m[3] - m[1]
    by_component = [
        [squares[0], xy, xz, xw],
        [xy, squares[1], yz, yw],
        [xz, yz, squares[2], zw],
        [xw, yw, zw, squares[3]],
    ]
    q, largest = by_component[3], squares[3]
    for other, square in zip(by_component[:3], squares[:3], strict=True):
        q = [xp.where(square > largest, b, a) for b, a in zip(other, q, strict=True)]
        largest = xp.maximum(largest, square)
    q, _ = _unit(xp, q)
    return _with_positive_w(xp, q)


def _with_positive_w(xp: Any, q: Components) -> Components:
    return [xp.where(q[3] < 0, -part, part) for part in q]


def _to_quaternion(xp: Any, parts: Components, source: str) -> Components:
    if source in _QUATERNIONS:
        q, _ = _unit(xp, [parts[_QUATERNIONS[source].index(i)] for i in range(4)])
        return q
    if source == "rotvec":
        return _quaternion_of_vector(xp, parts)
    return _quaternion_of_angles(xp, parts, source)


def _from_quaternion(xp: Any, q: Components, target: str) -> Components:
    q = _with_positive_w(xp, q)
    if target in _QUATERNIONS:
        return [q[i] for i in _QUATERNIONS[target]]
    if target in MATRIX_ENTRIES:
        return from_matrix(xp, _matrix_of_quaternion(q), target)
    return _vector_of_quaternion(xp, q) if target == "rotvec" else _angles_of_quaternion(xp, q, target)


def _quaternion_of_vector(xp: Any, v: Components) -> Components:
    square = _dot(v, v)
    small = square < _SMALL_SQUARE
    angle = root(xp, xp.where(small, 1.0, square))
    factor = xp.where(small, 0.5 - square / 48, xp.sin(angle / 2) / angle)
    return [*(factor * part for part in v), xp.where(small, 1 - square / 8, xp.cos(angle / 2))]


def _vector_of_quaternion(xp: Any, q: Components) -> Components:
    *v, w = q
    square = _dot(v, v)
    small = square < _SMALL_SQUARE
    sine = root(xp, xp.where(small, 1.0, square))
    divisor = xp.where(small, w, 1.0)
    factor = xp.where(small, 2 / divisor * (1 - square / (3 * divisor * divisor)), 2 * xp.arctan2(sine, w) / sine)
    return [factor * part for part in v]


def _quaternion_of_angles(xp: Any, angles: Components, source: str) -> Components:
    """Returns the product of three rotations about axes, in the order of intrinsic axes."""
    axes, intrinsic = _axes(source)
    turns = list(zip(axes, angles, strict=True))
    if not intrinsic:
        turns.reverse()
    q: Components = []
    for axis, angle in turns:
        sine, cosine = xp.sin(angle / 2), xp.cos(angle / 2)
        if not q:
            q = [0 * sine, 0 * sine, 0 * sine, cosine]
            q[axis] = sine
            continue
        b, c = (axis + 1) % 3, (axis + 2) % 3
        x, w = q[axis], q[3]
        turned_q = list(q)
        turned_q[axis] = x * cosine + w * sine
        turned_q[b] = q[b] * cosine + q[c] * sine
        turned_q[c] = q[c] * cosine - q[b] * sine
        turned_q[3] = w * cosine - x * sine
        q = turned_q
    return q


def _angles_of_quaternion(xp: Any, q: Components, target: str) -> Components:
    """Bernardes and Viollet, "Quaternion to Euler angles conversion: a direct, general and computationally efficient
    method", 2022: half the sum and half the difference of the outer angles are angles of two pairs of components."""
    axes, intrinsic = _axes(target)
    i, j, k = reversed(axes) if intrinsic else axes
    proper = i == k
    if proper:
        k = 3 - i - j
    sign = float((i - j) * (j - k) * (k - i) // 2)
    if proper:
        a, b, c, d = q[3], q[i], q[j], q[k] * sign
    else:
        a, b, c, d = q[3] - q[j], q[i] + q[k] * sign, q[j] + q[3], q[k] * sign - q[i]
    low, high = c * c + d * d, a * a + b * b
    threshold = 2.0**-40 if q[0].dtype == xp.float32 else 2.0**-46  # a smaller square is gimbal lock
    # In gimbal lock only the sum or only the difference of the outer angles is known.
    at_low, at_high = low < threshold, high < threshold
    c, d = xp.where(at_low, 1.0, c), xp.where(at_low, 0.0, d)
    a, b = xp.where(at_high, 1.0, a), xp.where(at_high, 0.0, b)
    half_sum, half_difference = xp.arctan2(b, a), xp.arctan2(d, c)
    middle = 2 * xp.arctan2(root(xp, xp.where(at_low, 1.0, low)), root(xp, xp.where(at_high, 1.0, high)))
    middle = xp.where(at_low, 0.0, xp.where(at_high, math.pi, middle))
    first, third = half_sum - half_difference, half_sum + half_difference
    locked = at_low | at_high
    if intrinsic:  # `first` is the third angle of the result
        third = xp.where(at_low, 2 * half_sum, xp.where(at_high, 2 * half_difference, third))
        first = xp.where(locked, 0.0, first)
    else:
        first = xp.where(at_low, 2 * half_sum, xp.where(at_high, -2 * half_difference, first))
        third = xp.where(locked, 0.0, third)
    if not proper:
        third, middle = third * sign, middle - math.pi / 2
    first, third = within_half_a_turn(xp, first), within_half_a_turn(xp, third)
    return [third, middle, first] if intrinsic else [first, middle, third]


def _axes(rotation: str) -> tuple[list[int], bool]:
    """Returns the axes' numbers, and whether they are intrinsic."""
    letters = rotation.removeprefix("euler_")
    return ["xyz".index(letter) for letter in letters.lower()], letters.isupper()


def within_half_a_turn(xp: Any, x: Any) -> Any:
    """Returns the same angle in [-pi, pi): x - 2 pi rint(x / 2 pi), with 2 pi in two parts so that no digit of x is lost."""
    turns = xp.round(x / (2 * math.pi))
    if xp is not np:
        turns = turns.detach()
    y = (x - turns * 6.28125) - turns * (2 * math.pi - 6.28125)
    return xp.where(abs(y) >= math.pi, -math.pi + 0 * y, y)
