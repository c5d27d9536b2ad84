"""Naive oracle of voxelization, point by point, in exact fractions: rules 25 to 28 of docs/rules.md. It shares no arithmetic
with the library."""

import itertools
import math
from fractions import Fraction

import numpy as np

from .arithmetic import bfloat16, is_floating

MODES = ["occupancy", "occupancy_bits", "count", "sum", "mean", "min", "max", "first", "last"]
OF_FEATURES = MODES[3:]

# (digits, exponent of the least number above 0, exponent above all numbers)
_FORMATS = {
    np.dtype(np.float16): (11, -24, 16),
    np.dtype(np.float32): (24, -149, 128),
    np.dtype(np.float64): (53, -1074, 1024),
}
if bfloat16 is not None:
    _FORMATS[bfloat16] = (8, -133, 128)


def cells(points, grid_min, voxel_size, grid_size):
    """Returns the voxel [N, 3] of each point, and whether it is in the grid, computed by NumPy in the points' type."""
    points = np.asarray(points)[:, :3]
    dtype = points.dtype
    with np.errstate(all="ignore"):
        cell = np.floor((points - np.asarray(grid_min, dtype)) / np.broadcast_to(np.asarray(voxel_size, dtype), 3))
        is_inside = (np.isfinite(cell) & (cell >= 0) & (cell < np.asarray(grid_size, np.float64))).all(axis=1)
        return np.where(is_inside[:, None], cell, 0).astype(np.int64), is_inside


def exponent_above(x):
    """Returns the least e with x < 2^e, for a fraction above 0."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if x.numerator << max(-e, 0) < x.denominator << max(e, 0) else e + 1


def nearest(x, dtype):
    """Returns a fraction rounded once to a float type, ties to even."""
    digits, least, above = _FORMATS[np.dtype(dtype)]
    if x == 0:
        return np.zeros((), dtype)[()]
    unit = max(exponent_above(abs(x)) - digits, least)
    denominator = x.denominator << max(unit, 0)
    units, rest = divmod(abs(x.numerator) << max(-unit, 0), denominator)
    units += 2 * rest > denominator or (2 * rest == denominator and units % 2)
    rounded = float("inf") if units.bit_length() + unit > above else math.ldexp(units, unit)
    return np.float64(rounded if x > 0 or units == 0 else -rounded).astype(dtype)  # float64 holds it


def quantum_exponent(finite, points, dtype):
    """Rule 28: the quantum's exponent, from a voxel's finite features (float64) and the number of its points."""
    _, least, above = _FORMATS[np.dtype(dtype)]
    k = (points - 1).bit_length()
    if np.dtype(dtype) != np.float16:
        largest = np.abs(finite).max(initial=0)
        above = math.frexp(largest)[1] if largest else least
    return max(above + k - 62, least)


def sum_or_mean(features, mode, quantum=None):
    """Returns the result for one feature of one voxel."""
    dtype = features.dtype
    points = len(features)
    if not is_floating(dtype):
        total = sum(features.tolist())
        fits = -(2**63) <= total < 2**63
        if mode == "sum":
            return np.int64((total + 2**63) % 2**64 - 2**63)
        return nearest(Fraction(total, points), np.float32) if fits else np.float32(np.nan)
    as_float64 = features.astype(np.float64)
    if np.isnan(as_float64).any() or (np.isposinf(as_float64).any() and np.isneginf(as_float64).any()):
        return np.float64(np.nan).astype(dtype)
    finite = as_float64[np.isfinite(as_float64)]
    if quantum is None:
        exponent = quantum_exponent(finite, points, dtype)
    else:
        half, exponent = math.frexp(quantum)
        assert half == 0.5, "expected a power of two"
        exponent -= 1
    with np.errstate(over="ignore"):
        quanta = np.rint(np.ldexp(finite, -exponent))  # exact; smaller values are 0 quanta
    integers = [int(x) for x in quanta.tolist()] if np.isfinite(quanta).all() else [2**63]
    total = sum(integers)
    if any(not -(2**63) <= x < 2**63 for x in (*integers, total)):
        assert quantum is not None, "a voxel's own quantum cannot overflow"
        return np.float64(np.nan).astype(dtype)
    if np.isinf(as_float64).any():
        return as_float64[np.isinf(as_float64)][0].astype(dtype)
    divisor = points if mode == "mean" else 1
    return nearest(Fraction(total << max(exponent, 0), divisor << max(-exponent, 0)), dtype)


def extreme(features, sign):
    if is_floating(features.dtype):
        as_float64 = features.astype(np.float64)
        if np.isnan(as_float64).any():
            return features[np.isnan(as_float64)][0]
        order = np.lexsort((~np.signbit(as_float64), as_float64))  # -0 before +0
    else:
        order = np.argsort(features, kind="stable")
    return features[order[0 if sign < 0 else -1]]


def reduce_features(features, mode, quantum=None):
    """Reduces the features [N, F] of one voxel's points, in input order, to [F]."""
    if mode in ("first", "last"):
        return features[0 if mode == "first" else -1]
    if mode in ("min", "max"):
        return [extreme(column, -1 if mode == "min" else 1) for column in features.T]
    return [sum_or_mean(column, mode, quantum) for column in features.T]


def voxelize_one(points, features, grid_min, voxel_size, grid_size, modes, fill=0, quantum=None):
    """Returns ({mode: array}, dropped) of one cloud."""
    cell_of, is_inside = cells(points, grid_min, voxel_size, grid_size)
    rows_of = {}
    for row in np.flatnonzero(is_inside):
        rows_of.setdefault(tuple(cell_of[row]), []).append(row)
    result = {mode: _empty(mode, features, grid_size, fill) for mode in modes}
    for cell, rows in rows_of.items():
        for mode, out in result.items():
            if mode == "occupancy":
                out[cell] = True
            elif mode == "occupancy_bits":
                x, y, z = cell
                out[x, y, z // 32] |= np.uint32(1 << (z % 32))
            elif mode == "count":
                out[cell] = len(rows)
            else:
                out[cell] = reduce_features(features[rows], mode, quantum)
    return result, np.int64(np.count_nonzero(~is_inside))


def _empty(mode, features, grid_size, fill):
    x, y, z = grid_size
    if mode == "occupancy":
        return np.zeros((x, y, z), bool)
    if mode == "occupancy_bits":
        return np.zeros((x, y, -(-z // 32)), np.uint32)
    if mode == "count":
        return np.zeros((x, y, z), np.int32)
    dtype, floating = features.dtype, is_floating(features.dtype)
    shape = (x, y, z, features.shape[1])
    if mode == "sum":
        return np.zeros(shape, dtype if floating else np.int64)
    dtype = np.dtype(np.float32) if mode == "mean" and not floating else dtype
    if is_floating(dtype) and np.isfinite(fill):
        fill = nearest(Fraction(fill), dtype)
    return np.full(shape, fill, dtype)


def voxelize(points, features=None, *, mode, lengths=None, batch_offsets=None, **options):
    """Returns ({mode: array}, dropped), like robocache.voxelize_pointcloud with a list of modes."""
    points = np.asarray(points)
    if features is None and points.shape[-1] > 3:
        features = points[..., 3:]
    if batch_offsets is not None:
        clouds = [slice(a, b) for a, b in itertools.pairwise(batch_offsets)]
    elif points.ndim == 3:
        counts = [points.shape[1]] * len(points) if lengths is None else lengths
        clouds = [(b, slice(0, n)) for b, n in enumerate(counts)]
    else:
        return voxelize_one(points, features, modes=mode, **options)
    result = [voxelize_one(points[c], None if features is None else features[c], modes=mode, **options) for c in clouds]
    if result:
        stacked = {name: np.stack([result_of_cloud[name] for result_of_cloud, _ in result]) for name in mode}
    else:
        no_features = None if features is None else np.zeros((0, features.shape[-1]), features.dtype)
        grid_size, fill = options["grid_size"], options.get("fill", 0)
        stacked = {name: _empty(name, no_features, grid_size, fill)[None][:0] for name in mode}
    return stacked, np.array([dropped for _, dropped in result], np.int64)
