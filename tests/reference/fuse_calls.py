"""Calls and random cases of fuse_multimodal."""

import ml_dtypes
import numpy as np

import robocache

from .compare import assert_same_bits, to_numpy, to_torch
from .fuse import STREAM_OPTIONS, fused_work_type
from .fuse import fuse as oracle
from .random_streams import EPOCH_NS, FLOATS, STEPS, random_targets, random_times, random_values

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INT64 = np.iinfo(np.int64)
MOST_STREAMS = 112


def on(device, value):
    return to_torch(value, device) if isinstance(value, np.ndarray) else value


def fuse(streams, targets, device="cpu", *, options=None, **shared):
    """Calls fuse_multimodal through torch on `device`. Returns (out, valid, age) as NumPy arrays.

    options: a dict for each stream, as for the oracle; the call gets a list for each option.
    """
    keywords = {name: on(device, value) for name, value in shared.items()}
    for name in (*STREAM_OPTIONS, "dtype"):
        if options and any(name in stream_options for stream_options in options):
            keywords[name] = [on(device, stream_options.get(name, shared.get(name))) for stream_options in options]
    out, valid, age = robocache.fuse_multimodal(
        [(to_torch(values, device), to_torch(times, device)) for values, times in streams],
        to_torch(targets, device),
        return_valid=True,
        return_age=True,
        **keywords,
    )
    outs = out if isinstance(out, list) else [out]
    assert {x.device.type for x in (*outs, valid, age)} == {device}
    return [to_numpy(x) for x in out] if isinstance(out, list) else to_numpy(out), to_numpy(valid), to_numpy(age)


def check(streams, targets, device="cpu", **options):
    """Compares values, validity and age with the oracle, by bits."""
    out, valid, age = fuse(streams, targets, device, **options)
    expected_out, expected_valid, expected_age = oracle(streams, targets, **options)
    assert_same_bits(valid, expected_valid, f"valid, {options}")
    assert_same_bits(age, expected_age, f"age, {options}")
    if isinstance(out, list):
        for index, (stream_out, expected) in enumerate(zip(out, expected_out, strict=True)):
            assert_same_bits(stream_out, expected, f"values of stream {index}, {options}")
    else:
        assert_same_bits(out, expected_out, f"values, {options}")


def clock_of(rng, shape, clock):
    """Times around 3 s on every clock, so that streams of different clocks overlap."""
    times = random_times(rng, *shape, clock)
    return times - EPOCH_NS + 3_000_000_000 if clock == np.int64 else times


def stream_of(rng, dtype, clock, *, batch=3, samples=17, features=5, special=True):
    return random_values(rng, (batch, samples, features), dtype, special), clock_of(rng, (batch, samples), clock)


def targets_of(rng, clock, *, batch=3, count=23):
    """Targets for a stream with this clock: inside, outside, on samples, NaN and infinite."""
    return random_targets(rng, clock_of(rng, (batch, 17), clock), count)


def random_options(rng, dtype, clock, *, batch=3, samples=17, features=5, out=None):
    """Returns random legal options of one stream."""
    method = rng.choice(["linear", *STEPS] if dtype in FLOATS else STEPS)
    causal = bool(rng.integers(2)) and method != "next"
    linear = ["linear"] if method == "linear" and not causal else []
    options = {"method": str(method), "causal": causal, "extrapolate": str(rng.choice(["clamp", "nan", *linear]))}

    def duration(most_ms):
        ns = int(rng.integers(0, most_ms * 1_000_000))
        return ns if clock == np.int64 else ns / 1e9

    if rng.integers(2):
        options["max_gap"] = duration(20)
    if rng.integers(2) and method != "linear":
        options["tolerance"] = duration(8)
    if rng.integers(2):
        options["offset"] = duration(30)
    if rng.integers(2):
        options["lengths"] = rng.integers(0, samples + 1, batch)
    if out is not None and out in FLOATS:
        work = fused_work_type(dtype)
        for name in ("scale", "shift"):
            options |= {0: {}, 1: {name: float(rng.normal())}, 2: {name: rng.normal(size=features).astype(work)}}[
                int(rng.integers(3))
            ]
    return options


def ramp(samples=5, features=1, dtype=np.float32, clock=np.float64, unit=1):
    """Returns values[s, d] = 10 s + d at the times 0, 1, 2, ... units"""
    values = (10 * np.arange(samples)[:, None] + np.arange(features)).astype(dtype)
    return values, (np.arange(samples) * unit).astype(clock)
