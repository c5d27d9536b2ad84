"""Naive oracle of `robocache.resample_trajectories`: a loop over rows and targets, one rule after the other.

It gives the exact bits for linear, nearest, previous and next. Times must be sorted and free of NaN; what unsorted
times give is not defined, only that nothing outside their row is read.
"""

import numpy as np

from .arithmetic import fma, is_floating, round_to, work_type

STEPS = ("nearest", "previous", "next")


def resample(
    values,
    times,
    target_times,
    *,
    method="linear",
    extrapolate="clamp",
    lengths=None,
    max_gap=None,
    causal=False,
    tolerance=None,
):
    """values [B,S,D] or [S,D], times [B,S] or [S], targets [B,T] or [T] -> out [B,T,D] or [T,D], valid without D."""
    values, times, target_times = np.asarray(values), np.asarray(times), np.asarray(target_times)
    assert times.dtype == target_times.dtype
    batched = values.ndim == 3
    rows = values if batched else values[None]
    batch, samples, features = rows.shape
    times = np.broadcast_to(times, (batch, samples))
    target_times = np.broadcast_to(target_times, (batch, target_times.shape[-1]))
    lengths = np.full(batch, samples) if lengths is None else np.broadcast_to(lengths, (batch,))

    out = np.zeros((batch, target_times.shape[1], features), values.dtype)
    valid = np.zeros((batch, target_times.shape[1]), bool)
    for row in range(batch):
        length = int(lengths[row])
        out[row], valid[row] = _resample_row(
            rows[row, :length],
            times[row, :length],
            target_times[row],
            method=method,
            extrapolate=extrapolate,
            max_gap=max_gap,
            causal=causal,
            tolerance=tolerance,
        )
    return (out, valid) if batched else (out[0], valid[0])


def only_last_of_each_time(times, values):
    """Rule 5: a row behaves as if only the last sample of each time were there."""
    keep = np.ones(len(times), bool)
    keep[:-1] = times[1:] != times[:-1]
    return times[keep], values[keep]


def difference(later, earlier, clock):
    """Rule 2: in the clock's type; int64 exactly (a Python int)."""
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
    clock = times.dtype
    times, values = only_last_of_each_time(times, values)
    n = len(times)
    floating = is_floating(values.dtype)
    work = work_type(values.dtype)
    limit = {name: _duration(d, clock) for name, d in (("max_gap", max_gap), ("tolerance", tolerance))}

    out = np.zeros((len(targets), values.shape[1]), values.dtype)
    valid = np.zeros(len(targets), bool)
    lines = []  # (target, bracket's left sample, weight): done together at the end

    def absent(k):
        if floating:
            out[k] = np.nan

    for k, t in enumerate(targets):
        if t != t or n == 0:
            absent(k)
            continue
        earlier = int(np.count_nonzero(times < t))
        left, right = earlier - 1, earlier

        if right < n and times[right] == t:
            out[k], valid[k] = values[right], True
            continue

        inside = left >= 0 and right < n
        line = None
        if causal:
            if left < 0:
                absent(k)
                continue
            used = left
            length_to_judge = difference(t, times[left], clock)
        elif inside:
            length_to_judge = difference(times[right], times[left], clock)
            to_left, to_right = difference(t, times[left], clock), difference(times[right], t, clock)
            if method == "linear":
                used, line = left, (k, left, weight(to_left, length_to_judge, clock, work))
            elif method == "nearest":
                used = right if to_right < to_left else left
            else:
                used = {"previous": left, "next": right}[method]
        else:
            used = 0 if left < 0 else n - 1
            if extrapolate == "linear" and n > 1:
                start = 0 if left < 0 else n - 2
                gap = difference(times[start + 1], times[start], clock)
                line = (k, start, weight(difference(t, times[start], clock), gap, clock, work))

        ok = inside
        if inside and limit["max_gap"] is not None:
            ok = ok and length_to_judge <= limit["max_gap"]
        if inside and limit["tolerance"] is not None:
            age = difference(t, times[used], clock) if used == left else difference(times[used], t, clock)
            ok = ok and age <= limit["tolerance"]
        valid[k] = ok

        if not ok and extrapolate == "nan":
            absent(k)
        elif line is not None:
            lines.append(line)
        else:
            out[k] = values[used]

    if lines:
        targets_of, left_of, weights = (list(column) for column in zip(*lines, strict=True))
        a = values[left_of].astype(work)
        b = values[[i + 1 for i in left_of]].astype(work)
        w = np.array(weights, work)[:, None]
        with np.errstate(all="ignore"):
            step = (b - a).astype(work)
        out[targets_of] = round_to(fma(np.broadcast_to(w, a.shape), step, a, work), values.dtype)
    return out, valid


def _duration(duration, clock):
    if duration is None:
        return None
    return int(duration) if clock.kind == "i" else clock.type(duration)
