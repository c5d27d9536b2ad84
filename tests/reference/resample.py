"""Naive oracle of `robocache.resample_trajectories`: a loop over rows and targets, one rule after the other.

`resample` gives the exact bits for linear, nearest, previous and next. `resample_curve` gives pchip, akima, cubic and
slerp by scipy in float64, with the bounds of docs/rules.md. Times must be sorted and free of NaN. Results of unsorted
times are undefined, but nothing outside their row is read.
"""

from typing import NamedTuple

import numpy as np

from .angle import angles_between
from .arithmetic import bfloat16, fma, is_floating, round_to, work_type

STEPS = ("nearest", "previous", "next")
CURVES = ("pchip", "akima", "cubic")


def resample(
    values,
    times,
    target_times,
    *,
    method="linear",
    extrapolate="clamp",
    lengths=None,
    target_lengths=None,
    max_gap=None,
    causal=False,
    tolerance=None,
):
    """values [B,S,D] or [S,D], times [B,S] or [S], targets [B,T] or [T] -> out [B,T,D] or [T,D], valid without D."""
    options = {"method": method, "extrapolate": extrapolate, "max_gap": max_gap, "causal": causal}

    def one_row(values, times, targets):
        out, valid, brackets = _resample_row(values, times, targets, tolerance=tolerance, **options)
        if brackets:
            _mix(out, *only_last_of_each_time(times, values), brackets)
        return out, valid

    return _by_row(one_row, values, times, target_times, lengths, target_lengths)


class Expected(NamedTuple):
    """The expected result of a curve: `out` bit for bit where `bound` is 0, else `exact` within `bound`; NaN equals NaN."""

    out: np.ndarray
    exact: np.ndarray
    bound: np.ndarray
    valid: np.ndarray


def resample_curve(
    values,
    times,
    target_times,
    *,
    method,
    extrapolate="clamp",
    lengths=None,
    target_lengths=None,
    max_gap=None,
    causal=False,
    bc_type="not-a-knot",
):
    """Like `resample`, for pchip, akima, cubic, angle, slerp (4 features) and pose (7 features)."""
    options = {"extrapolate": extrapolate, "lengths": lengths, "target_lengths": target_lengths}
    options |= {"max_gap": max_gap, "causal": causal}
    if method == "pose":
        position, valid = resample(values[..., :3], times, target_times, **options)
        rotation = resample_curve(values[..., 3:], times, target_times, method="slerp", **options)
        exact = position.astype(np.float64)
        parts = zip((position, exact, np.zeros_like(exact)), rotation[:3], strict=True)
        return Expected(*(np.concatenate(pair, axis=-1) for pair in parts), valid)

    def one_row(values, times, targets):
        rules = {"method": method, "extrapolate": extrapolate, "max_gap": max_gap, "causal": causal}
        out, valid, brackets = _resample_row(values, times, targets, tolerance=None, **rules)
        exact, bound = out.astype(np.float64), np.zeros(out.shape)
        if brackets and values.shape[1]:
            indices = [k for k, _, _ in brackets]
            exact[indices], bound[indices] = _curve(
                *only_last_of_each_time(times, values), targets, brackets, method, bc_type
            )
        return out, exact, bound, valid

    return Expected(*_by_row(one_row, values, times, target_times, lengths, target_lengths))


def _by_row(one_row, values, times, target_times, lengths, target_lengths):
    """Stacks the results of `one_row` for every row. By rule 13, targets after `target_lengths` have no samples."""
    values, times, target_times = np.asarray(values), np.asarray(times), np.asarray(target_times)
    assert times.dtype == target_times.dtype
    batched = values.ndim == 3
    rows = values if batched else values[None]
    batch, samples, features = rows.shape
    count = target_times.shape[-1]
    times = np.broadcast_to(times, (batch, samples))
    target_times = np.broadcast_to(target_times, (batch, count))
    lengths = np.broadcast_to(samples if lengths is None else lengths, (batch,))
    target_lengths = np.broadcast_to(count if target_lengths is None else target_lengths, (batch,))

    nothing = np.zeros((0, features), values.dtype), np.zeros(0, times.dtype)
    results = []
    for row in range(batch):
        length, targets = int(lengths[row]), int(target_lengths[row])
        present = one_row(rows[row, :length], times[row, :length], target_times[row, :targets])
        if targets < count:
            missing = one_row(*nothing, target_times[row, targets:])
            present = tuple(np.concatenate(pair) for pair in zip(present, missing, strict=True))
        results.append(present)
    if not results:
        return tuple(part[None][:0] for part in one_row(*nothing, np.zeros(count, times.dtype)))
    stacked = tuple(np.stack(parts) for parts in zip(*results, strict=True))
    return stacked if batched else tuple(part[0] for part in stacked)


def only_last_of_each_time(times, values):
    """Rule 5: only the last sample of each time counts."""
    keep = np.ones(len(times), bool)
    keep[:-1] = times[1:] != times[:-1]
    return times[keep], values[keep]


def difference(later, earlier, clock):
    """Rule 2: the difference in the clock's type; for int64 exact, as a Python int."""
    if clock.kind == "i":
        return int(later) - int(earlier)
    with np.errstate(all="ignore"):
        return clock.type(clock.type(later) - clock.type(earlier))


def weight(dt, gap, clock, work):
    """Rule 3: one division in the wider of clock and work type, then one rounding to the work type."""
    wide = np.float32 if clock == np.float32 and work == np.float32 else np.float64
    with np.errstate(all="ignore"):
        return work.type(wide(dt) / wide(gap))


def _resample_row(values, times, targets, *, method, extrapolate, max_gap, causal, tolerance):
    """Returns (out, valid, brackets). brackets: (target, left sample among the last of each time, weight) of targets to interpolate."""
    clock = times.dtype
    times, values = only_last_of_each_time(times, values)
    n = len(times)
    floating = is_floating(values.dtype)
    work = work_type(values.dtype)
    limit = {name: _duration(d, clock) for name, d in (("max_gap", max_gap), ("tolerance", tolerance))}

    out = np.zeros((len(targets), values.shape[1]), values.dtype)
    valid = np.zeros(len(targets), bool)
    brackets = []

    def set_absent(k):
        if floating:
            out[k] = np.nan

    for k, t in enumerate(targets):
        if t != t or n == 0:
            set_absent(k)
            continue
        earlier = int(np.count_nonzero(times < t))
        left, right = earlier - 1, earlier

        if right < n and times[right] == t:
            out[k], valid[k] = values[right], True
            continue

        is_inside = left >= 0 and right < n
        bracket = None
        if causal:
            if left < 0:
                set_absent(k)
                continue
            used = left
            judged_length = difference(t, times[left], clock)
        elif is_inside:
            judged_length = difference(times[right], times[left], clock)
            to_left, to_right = difference(t, times[left], clock), difference(times[right], t, clock)
            if method not in STEPS:
                used, bracket = left, (k, left, weight(to_left, judged_length, clock, work))
            elif method == "nearest":
                used = right if to_right < to_left else left
            else:
                used = {"previous": left, "next": right}[method]
        else:
            used = 0 if left < 0 else n - 1
            if extrapolate == "linear" and n > 1:
                start = 0 if left < 0 else n - 2
                gap = difference(times[start + 1], times[start], clock)
                bracket = (k, start, weight(difference(t, times[start], clock), gap, clock, work))

        is_valid = is_inside
        if is_inside and limit["max_gap"] is not None:
            is_valid = is_valid and judged_length <= limit["max_gap"]
        if is_inside and limit["tolerance"] is not None:
            age = difference(t, times[used], clock) if used == left else difference(times[used], t, clock)
            is_valid = is_valid and age <= limit["tolerance"]
        valid[k] = is_valid

        if not is_valid and extrapolate == "nan":
            set_absent(k)
        elif bracket is not None:
            brackets.append(bracket)
        else:
            out[k] = values[used]

    return out, valid, brackets


def _mix(out, times, values, brackets):
    """Rule 3: one fma in the work type, one rounding."""
    work = work_type(values.dtype)
    target_indices, left_indices, weights = (list(column) for column in zip(*brackets, strict=True))
    a = values[left_indices].astype(work)
    b = values[[i + 1 for i in left_indices]].astype(work)
    w = np.array(weights, work)[:, None]
    with np.errstate(all="ignore"):
        step = (b - a).astype(work)
    out[target_indices] = round_to(fma(np.broadcast_to(w, a.shape), step, a, work), values.dtype)


def _duration(duration, clock):
    if duration is None:
        return None
    return int(duration) if clock.kind == "i" else clock.type(duration)


# ---- Curves and rotations: scipy in float64, and the work type's error (docs/rules.md, rules 8.1 and 10.1) ----


def _curve(times, values, targets, brackets, method, bc_type):
    """Returns (exact, bound) [len(brackets), D] of targets between samples or extrapolated."""
    indices = [k for k, _, _ in brackets]
    left = np.array([i for _, i, _ in brackets])
    origin = times[0]
    if times.dtype.kind == "i":
        x = np.array([float(int(t) - int(origin)) for t in times])
        assert (x < 2**53).all(), "choose times whose differences float64 holds"
        t = np.array([float(int(t) - int(origin)) for t in targets[indices]])
    else:
        x = times.astype(np.float64) - np.float64(origin)
        t = targets[indices].astype(np.float64) - np.float64(origin)
        assert (x + np.float64(origin) == times).all(), "choose times whose differences float64 holds"
    w = (t - x[left]) / (x[left + 1] - x[left])
    work = work_type(values.dtype)
    u = float(np.finfo(work).eps) / 2
    with np.errstate(all="ignore"):
        if method == "angle":
            exact, bound = angles_between(values[left], values[left + 1], w, u)
        elif method == "slerp":
            exact, bound = _slerp(values.astype(np.float64), left, w[:, None], u)
        else:
            columns = [_one_curve(x, y, t, left, w, method, bc_type, u) for y in values.astype(np.float64).T]
            exact, bound = (np.stack(part, axis=1) for part in zip(*columns, strict=True))
        bound = np.where(np.isfinite(w)[:, None], bound, np.inf)
        smallest = float(np.finfo(work).smallest_normal)
        bound = bound + 64 * smallest + 2 * u * bound
        return exact, bound + output_rounding(np.abs(exact) + bound, values.dtype)


def output_rounding(magnitude, dtype):
    """Returns half a unit in the last place of `dtype`; infinite where it may overflow."""
    if dtype == bfloat16:
        digits, smallest, largest = 8, 2.0**-133, float(2**127 * (2 - 2**-7))
    else:
        info = np.finfo(dtype)
        digits, smallest, largest = info.nmant + 1, float(info.smallest_subnormal), float(info.max)
    return np.where(magnitude < largest, magnitude * 2.0**-digits + smallest, np.inf)


def _one_curve(x, y, t, left, w, method, bc_type, u):
    from scipy.interpolate import Akima1DInterpolator, CubicSpline, PchipInterpolator

    finite = np.isfinite(y)
    filled = np.where(finite, y, 0.0)
    n = len(x)
    if method == "pchip":
        curve = PchipInterpolator(x, filled)
    elif method == "akima":
        curve = Akima1DInterpolator(x, filled, extrapolate=True)
    else:
        curve = CubicSpline(x, filled, bc_type=bc_type)
    is_inside = (w >= 0) & (w <= 1)
    h = x[left + 1] - x[left]
    end = np.where(w < 0, 0, n - 1)
    straight = filled[end] + curve(x[end], 1) * (t - x[end])
    exact = np.where(is_inside, curve(t), straight)

    # Slopes times the bracket's length, with Akima's two virtual ones at each end.
    m = np.diff(filled) / np.diff(x)
    if n == 2:
        m = np.repeat(m, 5)
    else:
        m = np.concatenate([[3 * m[0] - 2 * m[1], 2 * m[0] - m[1]], m, [2 * m[-1] - m[-2], 3 * m[-1] - 2 * m[-2]]])
    slopes_around = m[left[:, None] + np.arange(5)] * h[:, None]
    reach = {"pchip": 1, "akima": 2, "cubic": 0}[method]
    step = np.abs(slopes_around[:, 2])
    if method == "akima":
        virtual = (left < 2) | (left > n - 4)
        size = np.abs(slopes_around).max(axis=1)
        slope_differences = np.abs(np.diff(slopes_around, axis=1))
        slope_m = np.abs(np.diff(m))
        sums = slope_m[2:] + slope_m[:-2]  # scipy treats sums below 1e-9 of the largest as 0
        off = np.where(virtual, 30, 3)
        errors = []
        for side, turn in ((0, slope_differences[:, 1]), (1, slope_differences[:, 2])):
            total = slope_differences[:, side] + slope_differences[:, side + 2]
            unsure = np.where(total > 0, (4 * off + 6) * u * size / total + 8 * u, 1)
            unsure = np.where(sums[left + side] <= 1.001e-9 * sums.max(), 1, unsure)
            errors.append(np.minimum(unsure, 1) * turn + np.where(unsure >= 1, total, 0) + (2 * off + 2) * u * size)
        error_before, error_after = errors
    elif method == "pchip":
        # Three roundings give a slope an error of 3 u. The harmonic mean of two slopes of one sign adds 23 u of at most 3 |d|, the
        # parabola at a row's end 26 u M, and the two subtractions the rest.
        size = np.maximum(step, np.abs(slopes_around[:, [1, 3]]).max(axis=1))
        error_before = error_after = 31 * u * size
    else:
        slopes = curve(x, 1)
        error = _spline_error(x, np.abs(slopes), bc_type, u)
        size = np.maximum(step, h * np.maximum(np.abs(slopes[left]), np.abs(slopes[left + 1])))
        error_before = h * error[left] + 5 * u * size
        error_after = h * error[left + 1] + 5 * u * size
    rest = 1 - w
    factor_before = np.where(is_inside, w * rest * rest, np.where(w < 0, -w, 0))
    factor_after = np.where(is_inside, w * w * rest, np.where(w > 1, -rest, 0))
    bound = (
        factor_before * error_before
        + factor_after * error_after
        + u * (4 * np.abs(filled[left]) + 32 * (1 + np.abs(w)) * size)
    )

    # Rule 10; no bound where float32 or float64 overflows or an infinity is near.
    rows = np.clip(left[:, None] + np.arange(-reach, reach + 2), 0, n - 1) if reach else np.arange(n)[None]
    values_near = y[rows]
    exact = np.where(np.isnan(values_near).any(axis=1), np.nan, exact)
    largest = 2.0**125 if u > 2.0**-30 else 2.0**1021
    is_unbounded = np.isinf(values_near).any(axis=1) | (np.abs(exact) > largest) | (size > largest)
    if method == "cubic":
        is_unbounded = is_unbounded | (
            4 * np.abs(slopes).max() * (x[-1] - x[0]) > largest
        )  # slopes are stored as value per span
    return exact, np.where(is_unbounded, np.inf, bound)


def _spline_error(x, s, bc_type, u):
    """Returns the error of the slopes. Only the forward pass is stored in the work type; all else is float64.

    An equation passes at most half of its error to the next; the first equation of a not-a-knot row passes all of it.
    """
    n, h = len(x), np.diff(x)
    if n == 2:
        return 4 * u * s
    first, last = (h[0] + h[1]) / h[1], (h[-1] + h[-2]) / h[-2]  # an end's factor of its neighbour's error
    if bc_type == "natural" or n == 3:
        first = last = 1.0
    forward_error = np.zeros(n)
    for i in range(n - 2, 0, -1):
        forward_error[i] = s[i] + s[i + 1] + (1 if i == 1 else 0.5) * (forward_error[i + 1] if i < n - 2 else 0)
    forward_error[0] = s[0] + first * (s[1] + forward_error[1])
    forward_error[-1] = s[-1] + last * (s[-2] + forward_error[-2])
    norm = max(2, first, last)  # the norm of the system's inverse
    # The error of scipy, which pivots; an equation has the size of its gaps.
    uneven = np.max(h[1:] / h[:-1] + h[:-1] / h[1:])
    solver_error = np.full(n, norm * uneven * s.max())
    solver_error[0] *= 1 + first
    solver_error[-1] *= 1 + last
    return u * (forward_error + s) + 128 * 2.0**-53 * solver_error


def _slerp(q, left, w, u):
    """q [S, 4] as x, y, z, w. Like scipy: the first rotation times the share `w` of the rotation to the second."""
    from scipy.spatial.transform import Rotation

    length = np.linalg.norm(np.nan_to_num(q / np.abs(q).max(axis=1, keepdims=True)), axis=1) * np.abs(q).max(axis=1)
    present = np.isfinite(q).all(axis=1) & (length > 0)
    unit = np.where(present[:, None], q / np.abs(q).max(axis=1, keepdims=True), [0, 0, 0, 1.0])
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    a, b = unit[left], unit[left + 1]
    rotation_vector = (Rotation.from_quat(a).inv() * Rotation.from_quat(b)).as_rotvec()
    angle = np.linalg.norm(rotation_vector, axis=1, keepdims=True) * w / 2
    axis = rotation_vector / np.maximum(np.linalg.norm(rotation_vector, axis=1, keepdims=True), 1e-300)
    exact = np.cos(angle) * a + np.sin(angle) * _times(a, axis)
    exact = np.where((present[left] & present[left + 1])[:, None], exact, np.nan)
    zero = (q == 0).all(axis=1)
    exact[zero[left] & zero[left + 1]] = 0
    # Normalising has an error of 6 u in each component (four squares, a root, a product), so a - b and a + b have 13 u, the
    # angle 26 u. A coefficient sin(w angle) / sin(angle) has at most 0.4 of that between samples, |w| beyond. The sines,
    # the tangent and the reciprocal root add 15 u, the sum of two products 8 u.
    bound = np.broadcast_to((64 * u + 32 * 2.0**-53) * (1 + np.abs(w)), exact.shape)
    # A half turn has two shortest arcs.
    return exact, np.where(np.abs((a * b).sum(axis=1, keepdims=True)) < 64 * u, 2.0, bound)


def _times(q, v):
    """Returns the quaternion product of q and (v, 0)."""
    vector = q[:, 3:] * v + np.cross(q[:, :3], v)
    return np.concatenate([vector, -(q[:, :3] * v).sum(axis=1, keepdims=True)], axis=1)
