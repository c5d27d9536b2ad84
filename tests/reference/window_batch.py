"""Naive oracle of one batch of `robocache.Loader`: a loop over streams, anchors and targets.

Times are int64 nanoseconds. It gives the exact bits for linear, nearest, previous and next, and for curves,
angles and rotations the value and bound of `reference.resample`.
"""

import bisect
from typing import NamedTuple

import numpy as np

from .arithmetic import fma, is_floating, round_to, work_type
from .compare import assert_same_bits, assert_within, to_numpy
from .normalisation import ENDS
from .resample import Expected, only_last_of_each_time, output_rounding, resample_curve, weight

NANOSECONDS = np.dtype(np.int64)
EXACT = ("linear", "nearest", "previous", "next")


class Window(NamedTuple):
    """A stream's values in a batch: `out` bit for bit where `bound` is 0, else `exact` within `bound`, up to
    multiples of `period` if that is not 0."""

    out: np.ndarray
    exact: np.ndarray
    bound: np.ndarray
    period: np.ndarray


def assert_batch(batch, expected):
    """Asserts that a loader's batch, in any framework, equals `window_batch`, which has no anchor_index."""
    assert set(batch) == {*expected, "anchor_index"}
    for key, expected_array in expected.items():
        array = to_numpy(batch[key])
        if not isinstance(expected_array, Window):
            assert_same_bits(array, expected_array, key)
            continue
        assert array.dtype == expected_array.out.dtype
        difference = array.astype(np.float64) - expected_array.exact
        with np.errstate(all="ignore"):
            turns = np.where(expected_array.period > 0, np.round(difference / expected_array.period), 0)
        assert_within(
            array,
            Expected(
                expected_array.out, expected_array.exact + turns * expected_array.period, expected_array.bound, None
            ),
            key,
        )


def default_method(dtype):
    return "linear" if is_floating(dtype) else "previous"


def affine(stats, mode):
    """Returns (scale, shift) of a normalisation in float64: mean_std gives mean 0 and std 1, ranges give [-1, 1]."""
    if mode == "mean_std":
        spread, centre = np.float64(stats.std), np.float64(stats.mean)
    else:
        low, high = (np.float64(getattr(stats, end)) for end in ENDS[mode])
        spread, centre = (high - low) / 2, low + (high - low) / 2
    constant = spread == 0
    scale = np.where(constant, 1.0, 1.0 / np.where(constant, 1.0, spread))
    return scale, -centre * scale


def window_batch(
    episodes,
    anchors,
    delta_timestamps,
    *,
    dtypes,
    shapes,
    method=None,
    max_gap_s=None,
    offset_s=None,
    causal=None,
    tolerance_s=None,
    return_age=False,
    snap_s=1e-6,
    normalize=None,
    stats=None,
    dtype=np.float32,
):
    """Returns one batch.

    episodes: a dict stream -> (time_ns int64 [n], values [n, *shape]) for each; a stream may be missing.
    anchors: [(index into episodes, anchor time in ns)], one for each sample of the batch.
    delta_timestamps: dict stream -> offsets in seconds, or None: the value at the anchor, without a step axis.
    dtypes, shapes: dict stream -> those of the recording's values.
    method: a name, or dict stream -> a name or [(slice of row-major features, name), ...].
    max_gap_s, offset_s, tolerance_s, causal: seconds, seconds, seconds, bool; or dict stream -> them.
    normalize: dict stream -> mode, with stats: dict stream -> an object with the fields of `Stats`.
    Returns {stream: [B, T, *shape] or a Window of them, stream + "_is_pad": bool [B, T], with return_age stream + "_age":
    int64 [B, T], "time_ns": int64 [B], "episode_index": int64 [B]}.
    """
    batch = {
        "time_ns": np.array([t for _, t in anchors], np.int64),
        "episode_index": np.array([e for e, _ in anchors], np.int64),
    }
    for stream, requested in delta_timestamps.items():
        deltas = [0.0] if requested is None else requested
        stored = np.dtype(dtypes[stream])
        out_type = np.dtype(dtype) if is_floating(stored) else stored
        mode = (normalize or {}).get(stream)
        features = int(np.prod(shapes[stream], dtype=int))
        runs = _runs(_value_of(method, stream, default_method(stored)), features, default_method(stored))
        size = len(anchors), len(deltas), features
        out, is_pad = np.zeros(size, out_type), np.ones(size[:2], bool)
        exact, bound, period = np.zeros(size), np.zeros(size), np.zeros(size)
        age = np.full(size[:2], -(2**63), np.int64)
        offset, is_causal = _value_of(offset_s, stream, 0), _value_of(causal, stream, False)
        gap, tolerance = _value_of(max_gap_s, stream, None), _value_of(tolerance_s, stream, None)
        for row, (episode, anchor_ns) in enumerate(anchors):
            if stream not in episodes[episode] or len(episodes[episode][stream][0]) == 0:
                continue
            time_ns, values = episodes[episode][stream]
            values = np.asarray(values).reshape(len(time_ns), features)
            deltas_ns = [round(delta * 1e9) + round(offset * 1e9) for delta in deltas]
            targets = [min(max(int(anchor_ns) + delta, -(2**63)), 2**63 - 1) for delta in deltas_ns]
            for begin, end, run_method in runs:
                part = row, slice(None), slice(begin, end)
                x, exact[part], bound[part], pad, ages = _window(
                    np.asarray(time_ns),
                    values[:, begin:end],
                    targets,
                    method=run_method,
                    max_gap_ns=None if gap is None else round(gap * 1e9),
                    snap_ns=snap_s * 1e9,
                    causal=is_causal,
                    tolerance_ns=None if tolerance is None else round(tolerance * 1e9),
                )
                if begin == 0:
                    is_pad[row], age[row] = pad, ages
                period[part] = 2 * np.pi if run_method == "angle" else 0
                if is_floating(stored):
                    work = x.dtype
                    u = float(np.finfo(work).eps) / 2
                    if mode is not None:
                        scale, shift = (
                            np.broadcast_to(np.reshape(affine_part, -1)[begin:end].astype(work), x.shape)
                            for affine_part in affine(stats[stream], mode)
                        )
                        x = fma(x, scale, shift, work)
                        magnitude = np.abs(scale.astype(np.float64))
                        exact[part] = exact[part] * scale + shift
                        period[part] *= magnitude
                        rounding = u * (np.abs(exact[part]) + magnitude * bound[part])
                        bound[part] = np.where(bound[part] > 0, magnitude * bound[part] + rounding, 0)
                    x = round_to(x, out_type)
                    rounding = output_rounding(np.abs(exact[part]) + bound[part], out_type)
                    bound[part] = np.where(bound[part] > 0, bound[part] + rounding, 0)
                out[part] = x
        steps = size[:1] if requested is None else size[:2]
        curved = any(run_method not in EXACT for _, _, run_method in runs)
        arrays = [part.reshape(*steps, *shapes[stream]) for part in (out, exact, bound, period)]
        batch[stream] = Window(*arrays) if curved else arrays[0]
        batch[stream + "_is_pad"] = is_pad.reshape(steps)
        if return_age:
            batch[stream + "_age"] = age.reshape(steps)
    return batch


def _value_of(option, stream, otherwise):
    """Returns an option's value for a stream: one value for all, or {stream: value}."""
    value = option.get(stream) if isinstance(option, dict) else option
    return otherwise if value is None else value


def _runs(methods, features, default):
    """Returns (begin, end, method) of all features in order; a pose as its position and its rotation."""
    if isinstance(methods, str):
        methods = [(slice(0, features), methods)]
    runs, done = [], 0
    for part, method in sorted(methods, key=lambda block: block[0].indices(features)[0]):
        begin, end, _ = part.indices(features)
        if begin > done:
            runs.append((done, begin, default))
        runs += (
            [(begin, begin + 3, "linear"), (begin + 3, end, "slerp")] if method == "pose" else [(begin, end, method)]
        )
        done = end
    return runs + ([(done, features, default)] if done < features or features == 0 else [])


def _window(time_ns, values, targets, *, method, max_gap_ns, snap_ns, causal, tolerance_ns):
    """Returns the targets' values in the work type (integers as stored), before normalisation; the exact values and the bound of
    the error, 0 where the bits are known; is_pad; and the age of the sample used."""
    time_ns, values = only_last_of_each_time(time_ns, values)
    n = len(time_ns)
    work = work_type(values.dtype) if is_floating(values.dtype) else values.dtype
    samples = values.astype(work)
    times = [int(t) for t in time_ns]
    snapped = []
    for target in targets:
        after = bisect.bisect(times, target)
        nearest = min(range(max(after - 1, 0), min(after + 1, n)), key=lambda i: abs(times[i] - target))
        snapped.append(times[nearest] if abs(target - times[nearest]) < snap_ns else target)

    out = np.zeros((len(targets), values.shape[1]), work)
    is_pad = np.ones(len(targets), bool)
    age = np.full(len(targets), -(2**63), np.int64)
    for k, target in enumerate(snapped):
        right = bisect.bisect(times, target)
        left = right - 1
        used = left
        if left >= 0 and times[left] == target:
            out[k], is_pad[k] = samples[left], False
        elif causal:
            if left < 0:
                continue
            age_ns = target - times[left]
            out[k] = samples[left]
            is_pad[k] = (
                right == n
                or (max_gap_ns is not None and age_ns > max_gap_ns)
                or (tolerance_ns is not None and age_ns > tolerance_ns)
            )
        elif left < 0:
            used = 0
            out[k] = samples[0]
        elif right == n:
            out[k] = samples[-1]
        else:
            gap = times[right] - times[left]
            is_pad[k] = max_gap_ns is not None and gap > max_gap_ns
            if method == "linear":
                a, b = samples[left], samples[right]
                w = weight(target - times[left], gap, NANOSECONDS, work)
                with np.errstate(all="ignore"):
                    step = (b - a).astype(work)
                out[k] = fma(np.broadcast_to(w, a.shape), step, a, work)
            elif method in EXACT:
                nearest = left if target - times[left] <= times[right] - target else right
                used = {"nearest": nearest, "previous": left, "next": right}[method]
                out[k] = samples[used]
                if tolerance_ns is not None and abs(times[used] - target) > tolerance_ns:
                    is_pad[k] = True
        age[k] = min(max(targets[k] - times[used], -(2**63 - 1)), 2**63 - 1)
    if method not in EXACT and not causal:
        result = resample_curve(samples, time_ns, np.array(snapped, np.int64), method=method, max_gap=max_gap_ns)
        return result.out, result.exact, result.bound, ~result.valid, age
    return out, np.zeros(out.shape), np.zeros(out.shape), is_pad, age
