"""Calls and random cases of resample_trajectories."""

import itertools

import numpy as np
import pytest

import robocache

from .compare import assert_same_bits, name_of, to_numpy, to_torch
from .random_streams import CLOCKS, FLOATS, STEPS, WHOLE, random_targets, random_times, random_values
from .resample import resample as oracle

each_float = pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
each_whole = pytest.mark.parametrize("dtype", WHOLE, ids=name_of)
each_clock = pytest.mark.parametrize("clock", CLOCKS, ids=name_of)


def resample(values, times, targets, device="cpu", **options):
    """Calls resample_trajectories through torch on `device`. Returns (out, valid) as NumPy arrays."""
    if isinstance(options.get("lengths"), np.ndarray):
        options["lengths"] = to_torch(options["lengths"], device)
    out, valid = robocache.resample_trajectories(
        to_torch(values, device), to_torch(times, device), to_torch(targets, device), return_valid=True, **options
    )
    assert out.device.type == valid.device.type == device
    return to_numpy(out), to_numpy(valid)


def check(values, times, targets, device="cpu", **options):
    """Compares values and validity with the oracle, by bits."""
    out, valid = resample(values, times, targets, device, **options)
    expected_out, expected_valid = oracle(values, times, targets, **options)
    assert_same_bits(valid, expected_valid, f"valid, {options}")
    assert_same_bits(out, expected_out, f"values, {options}")


def random_case(rng, dtype, clock, *, batch=3, samples=17, targets=37, features=5, special=True):
    times = random_times(rng, batch, samples, clock)
    return random_values(rng, (batch, samples, features), dtype, special), times, random_targets(rng, times, targets)


def ramp(samples=5, features=2, dtype=np.float32, clock=np.float32):
    """Returns values[s, d] = 10 s + d at the times 0, 1, 2, ..."""
    values = (10 * np.arange(samples)[:, None] + np.arange(features)).astype(dtype)
    return values, np.arange(samples).astype(clock)


def every_option(dtype, clock):
    """Returns every legal combination of method, extrapolate, causal, max_gap and tolerance."""
    duration = 12_000_000 if clock == np.int64 else 0.012
    for method in [*STEPS, "linear"] if dtype in FLOATS else STEPS:
        step = method != "linear"
        for extrapolate, causal, max_gap, tolerance in itertools.product(
            ["clamp", "nan"] if step else ["clamp", "nan", "linear"],
            [False] if method == "next" else [False, True],
            [None, duration],
            [None, duration // 3 if clock == np.int64 else duration / 3] if step else [None],
        ):
            if causal and extrapolate == "linear":
                continue
            rules = {"method": method, "extrapolate": extrapolate, "causal": causal}
            yield rules | {"max_gap": max_gap, "tolerance": tolerance}
