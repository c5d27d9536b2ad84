"""Random values, clocks and targets with many edge cases."""

import ml_dtypes
import numpy as np

FLOATS = [np.dtype(name) for name in ("float64", "float32", "float16", ml_dtypes.bfloat16)]
WHOLE = [np.dtype(name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")]
CLOCKS = [np.dtype(name) for name in ("float32", "float64", "int64")]
STEPS = ["nearest", "previous", "next"]
EPOCH_NS = 1_700_000_000_123_456_789  # float64 has steps of 256 ns here


def random_values(rng, shape, dtype, special=True):
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape))
    if special:
        extreme = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-41, 6e-8, 3e38, -3e38, 65504.0])
        x = np.where(rng.random(shape) < 0.1, rng.choice(extreme, shape), x)
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def random_times(rng, batch, samples, clock, duplicates=True):
    """Returns sorted times with jitter, some repeated."""
    gaps = rng.uniform(0.2, 1.8, (batch, samples))
    if duplicates:
        gaps[rng.random((batch, samples)) < 0.2] = 0
    seconds = np.cumsum(gaps, axis=1) * 0.01
    if clock == np.int64:
        return EPOCH_NS + np.round(seconds * 1e9).astype(np.int64)
    return (seconds + 3.0).astype(clock)


def random_targets(rng, times, count):
    """Targets inside, outside, on samples, and for float clocks NaN and infinite."""
    batch, samples = times.shape
    lowest, highest = times[:, :1], times[:, -1:]
    span = (highest - lowest).astype(np.float64)
    is_inside = lowest + (rng.uniform(-0.2, 1.2, (batch, count)) * span).astype(times.dtype)
    hits = np.take_along_axis(times, rng.integers(0, samples, (batch, count)), axis=1)
    targets = np.where(rng.random((batch, count)) < 0.3, hits, is_inside).astype(times.dtype)
    if times.dtype.kind == "f":
        is_special = rng.random((batch, count)) < 0.06
        targets[is_special] = rng.choice(np.array([np.nan, np.inf, -np.inf], times.dtype), is_special.sum())
    return targets
