"""Naive oracle of one batch of `robocache.Loader`: a loop over streams, anchors and targets.

Times are int64 nanoseconds throughout. It gives the exact bits for linear, nearest, previous and next.
"""

import numpy as np

from .arithmetic import fma, is_floating, round_to, work_type
from .resample import only_last_of_each_time, weight

NANOSECONDS = np.dtype(np.int64)


def default_method(dtype):
    return "linear" if is_floating(dtype) else "previous"


def affine(stats, mode):
    """(scale, shift) in float64 of a normalisation: mean_std to mean 0 and std 1, min_max and q01_q99 to [-1, 1]."""
    if mode == "mean_std":
        spread, centre = np.float64(stats.std), np.float64(stats.mean)
    else:
        low, high = {"min_max": (stats.min, stats.max), "q01_q99": (stats.q01, stats.q99)}[mode]
        low, high = np.float64(low), np.float64(high)
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
    methods=None,
    max_gap_s=None,
    snap_s=1e-6,
    normalize=None,
    stats=None,
    dtype=np.float32,
):
    """One batch.

    episodes: per episode a dict stream -> (time_ns int64 [n], values [n, *shape]); a stream may be missing.
    anchors: [(index into episodes, anchor time in ns)], one a sample of the batch.
    delta_timestamps: dict stream -> offsets in seconds. dtypes, shapes: dict stream -> of the recording's values.
    normalize: dict stream -> mode, with stats: dict stream -> an object with mean, std, min, max, q01, q99.
    Returns {stream: [B, T, *shape], stream + "_is_pad": bool [B, T], "time_ns": int64 [B], "episode_index": int64 [B]}.
    """
    batch = {
        "time_ns": np.array([t for _, t in anchors], np.int64),
        "episode_index": np.array([e for e, _ in anchors], np.int64),
    }
    for stream, deltas in delta_timestamps.items():
        stored = np.dtype(dtypes[stream])
        out_type = np.dtype(dtype) if is_floating(stored) else stored
        mode = (normalize or {}).get(stream)
        out = np.zeros((len(anchors), len(deltas), *shapes[stream]), out_type)
        is_pad = np.ones((len(anchors), len(deltas)), bool)
        for row, (episode, anchor_ns) in enumerate(anchors):
            if stream not in episodes[episode] or len(episodes[episode][stream][0]) == 0:
                continue
            x, is_pad[row] = _window(
                *episodes[episode][stream],
                [int(anchor_ns) + round(delta * 1e9) for delta in deltas],
                method=(methods or {}).get(stream, default_method(stored)),
                max_gap_ns=None if max_gap_s is None else round(max_gap_s * 1e9),
                snap_ns=snap_s * 1e9,
            )
            if is_floating(stored):
                if mode is not None:
                    scale, shift = affine(stats[stream], mode)
                    scale = np.broadcast_to(scale.astype(x.dtype), x.shape)
                    shift = np.broadcast_to(shift.astype(x.dtype), x.shape)
                    x = fma(x, scale, shift, x.dtype)
                x = round_to(x, out_type)
            out[row] = x
        batch[stream], batch[stream + "_is_pad"] = out, is_pad
    return batch


def _window(time_ns, values, targets, *, method, max_gap_ns, snap_ns):
    """The targets' values in the work type (integers as stored), before any normalisation, and is_pad."""
    time_ns, values = only_last_of_each_time(np.asarray(time_ns), np.asarray(values))
    n = len(time_ns)
    work = work_type(values.dtype) if is_floating(values.dtype) else values.dtype
    samples = values.astype(work)
    out = np.zeros((len(targets), *values.shape[1:]), work)
    is_pad = np.ones(len(targets), bool)
    for k, target in enumerate(targets):
        nearest = int(np.argmin(np.abs(time_ns - target)))  # of two, the earlier
        if abs(target - int(time_ns[nearest])) < snap_ns:
            target = int(time_ns[nearest])
        right = int(np.count_nonzero(time_ns <= target))
        left = right - 1
        if time_ns[nearest] == target:
            out[k], is_pad[k] = samples[nearest], False
        elif left < 0:
            out[k] = samples[0]
        elif right == n:
            out[k] = samples[-1]
        else:
            gap = int(time_ns[right]) - int(time_ns[left])
            is_pad[k] = max_gap_ns is not None and gap > max_gap_ns
            if method == "linear":
                a, b = samples[left], samples[right]
                w = weight(target - int(time_ns[left]), gap, NANOSECONDS, work)
                with np.errstate(all="ignore"):
                    step = (b - a).astype(work)
                out[k] = fma(np.broadcast_to(w, a.shape), step, a, work)
            else:
                out[k] = samples[{"nearest": nearest, "previous": left, "next": right}[method]]
    return out, is_pad
