"""The oracles against NumPy, SciPy and exact rational arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import voxelize
from reference.arithmetic import bfloat16, fma, round_to
from reference.resample import resample
from reference.window_batch import window_batch


def nearest_of(exact, dtype):
    """The `dtype` value nearest to an exact rational, ties to even."""
    dtype = np.dtype(dtype)
    digits, lowest, highest = {"float64": (53, -1074, 1024), "float32": (24, -149, 128), "bfloat16": (8, -133, 128)}[
        dtype.name
    ]
    if exact == 0:
        return 0.0
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    quantum = Fraction(2) ** max(exponent - digits + 1, lowest)
    rounded = round(magnitude / quantum) * quantum
    return math.copysign(math.inf if rounded >= Fraction(2) ** highest else float(rounded), int(exact > 0) - 0.5)


@given(*[st.floats(allow_nan=False, allow_infinity=False)] * 3)
def test_fma_rounds_the_exact_float64_value_once(x, y, z):
    got = float(fma(np.float64(x), np.float64(y), np.float64(z), np.float64))
    assert got == nearest_of(Fraction(x) * Fraction(y) + Fraction(z), "float64")


@given(*[st.floats(width=32, allow_nan=False, allow_infinity=False)] * 3)
def test_fma_rounds_the_exact_float32_value_once(x, y, z):
    got = float(fma(np.float32(x), np.float32(y), np.float32(z), np.float32))
    assert got == nearest_of(Fraction(x) * Fraction(y) + Fraction(z), "float32")


@pytest.mark.skipif(bfloat16 is None, reason="ml_dtypes is not installed")
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_float64_goes_to_bfloat16_in_one_rounding(x):
    assert float(round_to(np.float64(x), bfloat16)) == nearest_of(Fraction(x), bfloat16)


@pytest.mark.skipif(bfloat16 is None, reason="ml_dtypes is not installed")
def test_two_roundings_to_bfloat16_would_differ_here():
    # Just above the middle of two bfloat16 values: float32 drops the difference, and ties to even.
    x = 1.0 + 2.0**-8 + 2.0**-40
    assert float(round_to(np.float64(x), bfloat16)) == 1.0 + 2.0**-7
    assert float(np.float32(x).astype(bfloat16)) == 1.0


def random_row(rng, samples=40, targets=200):
    times = np.sort(rng.uniform(0, 10, samples))
    return rng.standard_normal((samples, 3)), times, rng.uniform(-1, 11, targets)


def test_linear_agrees_with_numpy_interp(rng):
    values, times, targets = random_row(rng)
    out, valid = resample(values, times, targets)
    for d in range(3):
        np.testing.assert_allclose(out[:, d], np.interp(targets, times, values[:, d]), rtol=0, atol=1e-14)
    np.testing.assert_array_equal(valid, (targets >= times[0]) & (targets <= times[-1]))


@pytest.mark.parametrize("method", ["nearest", "previous", "next"])
def test_steps_agree_with_scipy(rng, method):
    interpolate = pytest.importorskip("scipy.interpolate")
    values, times, targets = random_row(rng)
    inside = targets[(targets >= times[0]) & (targets <= times[-1])]
    out, valid = resample(values, times, inside, method=method)
    np.testing.assert_array_equal(out, interpolate.interp1d(times, values, kind=method, axis=0)(inside))
    assert valid.all()


def test_linear_extrapolation_agrees_with_scipy(rng):
    interpolate = pytest.importorskip("scipy.interpolate")
    values, times, targets = random_row(rng)
    out, _ = resample(values, times, targets, extrapolate="linear")
    expected = interpolate.interp1d(times, values, axis=0, fill_value="extrapolate")(targets)
    # The end bracket may be short: its slope magnifies rounding errors.
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-10)


def test_a_window_equals_its_stream_resampled_and_normalised(rng):
    class Stats:
        mean, std = np.array([1.0, -2.0]), np.array([0.5, 4.0])

    time_ns = np.sort(rng.integers(0, 10**9, 50))
    values = rng.standard_normal((50, 2))
    anchors = [(0, int(t)) for t in time_ns[10:40:7]]
    deltas = [-0.11, 0.0, 0.0503]
    batch = window_batch(
        [{"joint": (time_ns, values)}],
        anchors,
        {"joint": deltas},
        dtypes={"joint": values.dtype},
        shapes={"joint": (2,)},
        normalize={"joint": "mean_std"},
        stats={"joint": Stats},
        snap_s=0,
        dtype=np.float64,
    )
    for row, (_, anchor) in enumerate(anchors):
        targets = np.array([anchor + round(delta * 1e9) for delta in deltas])
        out, valid = resample(values, time_ns, targets)
        np.testing.assert_allclose(batch["joint"][row], (out - Stats.mean) / Stats.std, rtol=1e-13, atol=1e-13)
        np.testing.assert_array_equal(batch["joint_is_pad"][row], ~valid)


@given(
    x=st.floats(allow_nan=False, allow_infinity=False),
    dtype=st.sampled_from(["float64", "float32", "float16", bfloat16]),
)
def test_the_oracle_of_voxels_rounds_like_numpy(x, dtype):
    with np.errstate(over="ignore"):
        expected = round_to(np.float64(x), dtype)
    result = voxelize.nearest(Fraction(x), dtype)
    assert result.dtype == expected.dtype
    assert result == expected  # a fraction has no -0


def test_the_oracle_of_voxels_on_a_small_cloud():
    points = np.array([[0.5, 0, 0], [1.5, 0, 0], [0.25, 0.75, 0], [2, 0, 0], [np.nan, 0, 0]], np.float32)
    features = np.array([[1.0], [4.0], [-3.0], [9.0], [9.0]], np.float32)
    out, dropped = voxelize.voxelize(
        points, features, mode=voxelize.MODES, grid_min=(0, 0, 0), voxel_size=1, grid_size=(2, 1, 1), fill=7
    )
    expected = {"occupancy": [1, 1], "occupancy_bits": [1, 1], "count": [2, 1], "sum": [-2, 4], "mean": [-1, 4]}
    expected |= {"min": [-3, 4], "max": [1, 4], "first": [1, 4], "last": [-3, 4]}
    assert {name: array.ravel().tolist() for name, array in out.items()} == expected
    assert dropped == 2
