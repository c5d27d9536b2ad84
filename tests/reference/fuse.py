"""Naive oracle of `robocache.fuse_multimodal`: a loop over streams, rows and targets, one rule after the other.

It gives the exact bits for linear, nearest, previous and next. The resample oracle, run on the samples' indices, gives
the sample of each target; the rest is done here.
"""

import numpy as np

from .arithmetic import fma, is_floating, round_to, work_type
from .resample import only_last_of_each_time, resample

NS_ENDS = np.iinfo(np.int64)
STREAM_OPTIONS = ("method", "extrapolate", "causal", "max_gap", "tolerance", "lengths", "offset", "scale", "shift")


def fuse(streams, target_times, *, target_lengths=None, dtype=None, output="concat", options=None, **shared):
    """streams: [(values, times)]; options: a dict for each stream, which overrides `shared`.

    Returns (out [B,T,sum D] or a list of [B,T,D], valid [B,T,N], age [B,T,N]); without B for values [S, D].
    """
    target_times = np.asarray(target_times)
    outs, valids, ages = [], [], []
    for index, (values, times) in enumerate(streams):
        rules = {"dtype": dtype, **shared, **(options[index] if options else {})}
        out, valid, age = _stream(np.asarray(values), np.asarray(times), target_times, target_lengths, **rules)
        outs.append(out), valids.append(valid), ages.append(age)
    out = np.concatenate(outs, -1) if output == "concat" else outs
    return out, np.stack(valids, -1), np.stack(ages, -1)


def fused_work_type(dtype):
    """Returns the type of rule 3; for integers that become floats, float64 if they have 32 or 64 bits, else float32."""
    dtype = np.dtype(dtype)
    if not is_floating(dtype):
        return np.dtype(np.float64) if dtype.itemsize >= 4 else np.dtype(np.float32)
    return work_type(dtype)


def _clip_ns(ns):
    return max(NS_ENDS.min, min(NS_ENDS.max, ns))


def nearest_ns(seconds):
    """Returns float64 seconds as int64 nanoseconds: float64(s * 1e9) rounded to nearest, ties to even; saturates."""
    with np.errstate(all="ignore"):
        product = np.float64(seconds) * np.float64(1e9)
    if np.isinf(product):
        return NS_ENDS.max if product > 0 else NS_ENDS.min
    return _clip_ns(round(float(product)))


def convert_to_clock(target, clock, offset):
    """Rules 1 and 22: a target in a stream's clock type, plus the stream's offset; None for NaN."""
    if target != target:
        return None
    if clock == np.int64:
        ns = int(target) if target.dtype == np.int64 else nearest_ns(np.float64(target))
        return np.int64(_clip_ns(ns + _clip_ns(int(min(offset or 0, 2.0**64)))))
    with np.errstate(all="ignore"):
        if target.dtype == np.int64:
            target = np.float64(target) / np.float64(1e9)
        shifted = clock.type(clock.type(target) + clock.type(offset)) if offset else clock.type(target)
    return shifted if shifted == shifted else None


def compute_age(target, used, dtype):
    """Rule 23: target minus the sample used, both on the stream's clock, in the unit and type of the targets."""
    if target.dtype == np.int64:
        ns = max(-NS_ENDS.max, _clip_ns(int(target) - int(used)))
        return dtype.type(ns) if dtype == np.int64 else dtype.type(np.float64(ns) / 1e9)
    with np.errstate(all="ignore"):
        seconds = np.float64(0 if target == used else target - used)
    return dtype.type(max(-NS_ENDS.max, nearest_ns(seconds))) if dtype == np.int64 else dtype.type(seconds)


def _stream(
    values, times, targets, target_lengths, dtype, *, lengths=None, offset=None, scale=None, shift=None, **rules
):
    batched = values.ndim == 3
    rows = values if batched else values[None]
    batch, samples, features = rows.shape
    count = targets.shape[-1]
    times = np.broadcast_to(times, (batch, samples))
    targets = np.broadcast_to(targets, (batch, count))
    lengths = np.full(batch, samples) if lengths is None else np.broadcast_to(lengths, (batch,))
    target_lengths = np.full(batch, count) if target_lengths is None else np.broadcast_to(target_lengths, (batch,))
    floating = is_floating(values.dtype)
    dtype = values.dtype if dtype is None else np.dtype(dtype)
    work = fused_work_type(values.dtype)
    absent_age = NS_ENDS.min if targets.dtype == np.int64 else np.nan

    out = np.full((batch, count, features), np.nan if floating else 0).astype(dtype)
    valid = np.zeros((batch, count), bool)
    age = np.full((batch, count), absent_age, targets.dtype)
    for b in range(batch):
        row_times, row = only_last_of_each_time(times[b, : lengths[b]], rows[b, : lengths[b]])
        on_stream_clock = [convert_to_clock(t, times.dtype, offset) for t in targets[b, : target_lengths[b]]]
        requested = [k for k, t in enumerate(on_stream_clock) if t is not None]
        if not requested or len(row_times) == 0:
            continue
        shifted = np.array([on_stream_clock[k] for k in requested], times.dtype)
        # Rules 3 to 12 in the work type. A NaN sample is a value, so absence is known from the samples' indices.
        used, is_valid = _used(row_times, shifted, rules)
        x = row.astype(work) if floating else None
        if floating:
            x, _ = resample(x, row_times, shifted, **rules)
        for i, k in enumerate(requested):
            valid[b, k] = is_valid[i]
            if used[i] is None:
                continue
            age[b, k] = compute_age(shifted[i], row_times[used[i]], targets.dtype)
            y = x[i] if floating else row[used[i]]
            if scale is not None or shift is not None:
                factor = np.broadcast_to(np.asarray(1 if scale is None else scale).astype(work), y.shape)
                addend = np.broadcast_to(np.asarray(0 if shift is None else shift).astype(work), y.shape)
                y = fma(y.astype(work), factor, addend, work)
            out[b, k] = y if y.dtype == dtype else round_to(y.astype(work), dtype)
    return (out, valid, age) if batched else (out[0], valid[0], age[0])


def _used(times, targets, rules):
    """Returns for each target the index of the sample used, or None, and whether the target is valid.

    The resample oracle runs on the numbers 1, 2, ... of samples; a step method gives the number itself. Linear uses the
    last sample at or before the target; outside the samples, the first of the end bracket.
    """
    n = len(times)
    numbers = np.arange(1.0, n + 1)[:, None]
    values, valid = resample(numbers, times, targets, **rules)
    used = []
    for target, value in zip(targets, values[:, 0], strict=True):
        if np.isnan(value):
            used.append(None)
        elif rules.get("method", "linear") != "linear" or rules.get("causal"):
            used.append(int(value) - 1)
        else:
            before = int(np.count_nonzero(times <= target)) - 1
            is_after_end = before == n - 1 and n > 1 and rules.get("extrapolate") == "linear" and times[-1] != target
            used.append(n - 2 if is_after_end else max(before, 0))
    return used, valid
