"""Calls and random cases of resample_trajectories by curves, rotations and angles.

The oracle is scipy in float64 (resample.py); the bounds are those of rules 8.1 and 10.1 in docs/rules.md.
"""

import numpy as np
import pytest

import robocache

from .compare import assert_same_bits, assert_within, name_of, poisoned, to_numpy, to_torch
from .random_streams import CLOCKS, EPOCH_NS, FLOATS, STEPS, random_targets
from .resample import CURVES, Expected, resample_curve
from .resample import resample as oracle

ROTATIONS = ["slerp", "pose"]
WIDTHS = {"slerp": 4, "pose": 7}


each_float = pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
each_clock = pytest.mark.parametrize("clock", CLOCKS, ids=name_of)
each_curve = pytest.mark.parametrize("method", CURVES)
each_method = pytest.mark.parametrize("method", [*CURVES, *ROTATIONS])
float32, float64 = FLOATS[1], FLOATS[0]


def resample(values, times, targets, device="cpu", **options):
    """Calls resample_trajectories through torch on `device`, into poisoned memory. Returns (out, valid) as NumPy arrays."""
    for name in ("lengths", "target_lengths"):
        if isinstance(options.get(name), np.ndarray):
            options[name] = to_torch(options[name], device)
    values, times, targets = (to_torch(x, device) for x in (values, times, targets))
    out = poisoned((*values.shape[:-2], targets.shape[-1], values.shape[-1]), values.dtype, device)
    _, valid = robocache.resample_trajectories(values, times, targets, out=out, return_valid=True, **options)
    return to_numpy(out), to_numpy(valid)


def check(values, times, targets, device="cpu", **options):
    out, valid = resample(values, times, targets, device, **options)
    expected = resample_curve(values, times, targets, **options)
    assert_same_bits(valid, expected.valid, f"valid, {options}")
    assert_within(out, expected, f"values, {options}")


def random_times(rng, batch, samples, clock, duplicates=True):
    """Returns sorted times with jitter, some repeated; multiples of 2^-17 s, so that differences are exact."""
    gaps = np.ceil(rng.uniform(0.2, 1.8, (batch, samples)) * 0.01 * 2**17) / 2**17
    if duplicates:
        gaps[rng.random((batch, samples)) < 0.2] = 0
    seconds = np.cumsum(gaps, axis=1)
    if clock == np.int64:
        return EPOCH_NS + np.round(seconds * 1e9).astype(np.int64)
    return (seconds + 3.0).astype(clock)


def random_values(rng, shape, dtype, special=True):
    """Values of many magnitudes, with plateaus and straight stretches, where slopes are decided, and some NaN."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape))
    x = np.where(rng.random(shape) < 0.3, np.round(x), x)
    is_repeated = rng.random(shape) < 0.25
    for s in range(1, shape[-2]):
        x[..., s, :] = np.where(is_repeated[..., s, :], x[..., s - 1, :], x[..., s, :])
    if special:
        extreme = np.array([np.nan, np.inf, 0.0, -0.0, 1e-41, 3e38, -3e38])
        x = np.where(rng.random(shape) < 0.02, rng.choice(extreme, shape), x)
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def random_case(rng, dtype, clock, *, method="pchip", batch=3, samples=17, targets=37, features=5, special=True):
    times = random_times(rng, batch, samples, clock)
    values = random_values(rng, (batch, samples, WIDTHS.get(method, features)), dtype, special)
    return values, times, random_targets(rng, times, targets)


def expected_by_blocks(values, times, targets, blocks, **options):
    parts = []
    for features, method in blocks:
        part = values[..., features]
        if method in (*STEPS, "linear"):
            out, valid = oracle(part, times, targets, method=method, **options)
            parts.append(Expected(out, out.astype(np.float64), np.zeros(out.shape), valid))
        else:
            parts.append(resample_curve(part, times, targets, method=method, **options))
    return Expected(*(np.concatenate([part[i] for part in parts], axis=-1) for i in range(3)), parts[0].valid)
