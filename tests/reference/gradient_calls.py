"""Calls and random cases for gradients."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import robocache

from .compare import to_numpy, to_torch

torch = pytest.importorskip("torch")


# For each floating type, half the distance of two neighbours around 1.
ROUNDING = {
    np.dtype(np.float64): 2.0**-53,
    np.dtype(np.float32): 2.0**-24,
    np.dtype(np.float16): 2.0**-11,
    np.dtype(ml_dtypes.bfloat16): 2.0**-8,
}
DTYPES = list(ROUNDING)
CLOCKS = [np.dtype(name) for name in ("float32", "float64", "int64")]
FLOAT_CLOCKS = CLOCKS[:2]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
each_clock = pytest.mark.parametrize("clock", CLOCKS, ids=lambda dtype: dtype.name)
# Every method with its options.
CALLS = [
    {"method": method, "extrapolate": extrapolate, "causal": causal, "max_gap": max_gap}
    for method, extrapolate, causal, max_gap in itertools.product(
        ["linear", "nearest", "previous", "next"], ["clamp", "nan", "linear"], [False, True], [None, 0.015]
    )
    if not (method == "next" and causal) and not (method != "linear" and extrapolate == "linear")
]


def jittered_clocks(rng, batch, samples, targets, clock, *, duplicates=True, hits=True):
    """Returns times around 3 s, 10 ms apart and jittered, and targets in and around them in any order. Some times repeat, unless
    `duplicates` is False; some targets are on samples, unless `hits` is False."""
    gaps = rng.uniform(0.2, 1.8, (batch, samples))
    if duplicates:
        gaps[rng.random((batch, samples)) < 0.2] = 0
    times = np.cumsum(gaps, axis=1) * 0.01 + 3
    first, last = times[:, :1], times[:, -1:]
    target_times = first + rng.uniform(-0.2, 1.2, (batch, targets)) * (last - first)
    if clock == np.int64:
        times, target_times = (np.round(x * 1e9).astype(np.int64) for x in (times, target_times))
    times, target_times = times.astype(clock), target_times.astype(clock)
    if hits:
        on_sample = np.take_along_axis(times, rng.integers(0, samples, (batch, targets)), axis=1)
        target_times = np.where(rng.random((batch, targets)) < 0.3, on_sample, target_times)
    return times, target_times


def in_clock(options, clock):
    """Returns the options with durations in the clock's unit."""
    if clock != np.int64 or options.get("max_gap") is None:
        return options
    return options | {"max_gap": round(options["max_gap"] * 1e9)}


def gradients(device, values, times, targets, out_gradient, wanted=("values", "times", "target_times"), **options):
    """Returns the gradients of the inputs `wanted`, as NumPy arrays."""
    if isinstance(options.get("lengths"), np.ndarray):
        options["lengths"] = to_torch(options["lengths"], device)
    tensors = {
        name: to_torch(array, device).requires_grad_(name in wanted)
        for name, array in (("values", values), ("times", times), ("target_times", targets))
    }
    out = robocache.resample_trajectories(**tensors, **options)
    requested = [tensors[name] for name in wanted]
    result = torch.autograd.grad(out, requested, to_torch(out_gradient, device), allow_unused=False)
    for gradient, tensor in zip(result, requested, strict=True):
        assert gradient.dtype == tensor.dtype and gradient.shape == tensor.shape and gradient.device == tensor.device
    return [to_numpy(gradient) for gradient in result]


def random_gradient(rng, shape, dtype):
    return rng.standard_normal(shape).astype(dtype)


CURVES = [
    {"method": method, "extrapolate": extrapolate}
    for method in ("pchip", "akima", "cubic", "slerp", "pose")
    for extrapolate in ("clamp", "nan", "linear")
] + [{"method": "cubic", "extrapolate": "linear", "bc_type": "natural"}]


def width(options):
    return {"slerp": 4, "pose": 7}.get(options["method"], 3)
