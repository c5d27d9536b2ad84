"""resample_trajectories: outside, gaps, no samples, bad times; rules 11 to 14."""

import numpy as np
import pytest
from reference.compare import assert_same_bits, to_torch
from reference.random_streams import CLOCKS, STEPS, random_targets, random_times, random_values
from reference.resample_calls import check, each_clock, ramp, resample

import robocache


def test_rule_11_outside_is_never_valid(device):
    values, times = ramp(features=1)
    targets = np.array([-1, -1e-6, 0, 4, 4.000001, 5], np.float32)
    for extrapolate, expected in {
        "clamp": [0, 0, 0, 40, 40, 40],
        "nan": [np.nan, np.nan, 0, 40, np.nan, np.nan],
    }.items():
        for method in [*STEPS, "linear"]:
            out, valid = resample(values, times, targets, device, method=method, extrapolate=extrapolate)
            assert_same_bits(out[:, 0], np.array(expected, np.float32))
            assert valid.tolist() == [False, False, True, True, False, False]


def test_rule_11_linear_extrapolates_the_end_bracket(device):
    values = np.array([[0], [1], [10], [30]], np.float64)
    times = np.array([0, 1, 2, 3], np.float64)
    out, valid = resample(values, times, np.array([-2, -1, 4, 4.5]), device, extrapolate="linear")
    assert out[:, 0].tolist() == [-2, -1, 50, 60]
    assert not valid.any()


@pytest.mark.parametrize("method", [*STEPS, "linear"])
def test_rule_12_a_longer_bracket_is_invalid_and_an_equal_one_valid(device, method):
    values = np.array([[0], [1], [2], [3]], np.float32)
    times = np.array([0, 1, 3, 3.5], np.float32)
    targets = np.array([0.25, 1, 1.25, 3, 3.25], np.float32)
    for max_gap, expected in {
        2: [True] * 5,
        1.999: [True, True, False, True, True],
        0.5: [False, True, False, True, True],
        0.25: [False, True, False, True, False],
        0: [False, True, False, True, False],
    }.items():
        out, valid = resample(values, times, targets, device, method=method, max_gap=max_gap)
        assert valid.tolist() == expected
        unlimited, _ = resample(values, times, targets, device, method=method)
        assert_same_bits(out, unlimited)  # with clamp the value is still interpolated
        out, _ = resample(values, times, targets, device, method=method, max_gap=max_gap, extrapolate="nan")
        assert np.isnan(out[:, 0]).tolist() == [not v for v in expected]


@pytest.mark.parametrize(
    ("step", "expected"),
    [("previous", [True, True, False, False]), ("next", [False, True, True, True]), ("nearest", [True] * 4)],
)
def test_rule_12_tolerance_is_the_distance_to_the_sample_used(device, step, expected):
    values, times = ramp(features=1)
    targets = np.array([1.25, 2, 2.75, 3.875], np.float32)
    out, valid = resample(values, times, targets, device, method=step, tolerance=0.25)
    assert valid.tolist() == expected
    out, _ = resample(values, times, targets, device, method=step, tolerance=0.25, extrapolate="nan")
    assert np.isnan(out[:, 0]).tolist() == [not v for v in expected]


@pytest.mark.parametrize("method", [*STEPS, "linear"])
@pytest.mark.parametrize("extrapolate", ["clamp", "nan"])
@each_clock
def test_rule_13_without_samples_values_are_absent(rng, device, method, extrapolate, clock):
    times = random_times(rng, 3, 6, clock)
    targets = random_targets(rng, times, 8)
    for lengths in (np.array([0, 6, 1]), np.array([0, 0, 0])):
        for dtype in (np.dtype(np.float16), *([np.dtype(np.int16), np.dtype(bool)] if method in STEPS else [])):
            values = random_values(rng, (3, 6, 4), dtype, special=False)
            check(values, times, targets, device, method=method, extrapolate=extrapolate, lengths=lengths)
            out, valid = resample(values, times, targets, device, method=method, lengths=lengths)
            assert not valid[0].any()
            assert np.isnan(out[0]).all() if dtype == np.float16 else not out[0].any()


@pytest.mark.parametrize("clock", [np.float32, np.float64])
def test_rule_13_a_nan_target_has_no_value(device, clock):
    values, times = ramp(clock=clock)
    targets = np.array([np.nan, 1, np.nan], clock)
    out, valid = resample(values, times, targets, device)
    assert valid.tolist() == [False, True, False]
    assert np.isnan(out[[0, 2]]).all()
    out, valid = resample(values.astype(np.uint8), times, targets, device, method="next")
    assert not out[[0, 2]].any()


@pytest.mark.parametrize("method", [*STEPS, "linear"])
@pytest.mark.parametrize("disorder", ["reversed", "shuffled", "nan", "all_nan", "infinite"])
@pytest.mark.parametrize("samples", [50, 5000])
def test_rule_14_bad_times_stay_within_their_row(rng, device, method, disorder, samples):
    """The result is NaN or within the row's values; values of other rows are far away."""
    batch, count = 6, 300
    times = random_times(rng, batch, samples, np.dtype(np.float64))
    if disorder == "reversed":
        times = times[:, ::-1].copy()
    elif disorder == "shuffled":
        times = rng.permuted(times, axis=1)
    elif disorder == "nan":
        times[rng.random(times.shape) < 0.3] = np.nan
    elif disorder == "all_nan":
        times[:] = np.nan
    else:
        times[:, : samples // 3], times[:, -samples // 3 :] = -np.inf, np.inf
    values = (
        rng.uniform(0, 1, (batch, samples, 4)).astype(np.float32)
        + 10 * np.arange(batch, dtype=np.float32)[:, None, None]
    )
    targets = rng.uniform(2, 4 + 0.01 * samples, (batch, count))
    out, _ = resample(values, times, targets, device, method=method)
    if method == "linear" and disorder == "shuffled":
        return  # a weight beyond [0, 1] extrapolates beyond the row's values: the call must only end
    inside = (out >= values.min((1, 2), keepdims=True) - 1e-5) & (out <= values.max((1, 2), keepdims=True) + 1e-5)
    assert (inside | np.isnan(out)).all()


def test_rule_14_check_times_accepts_sorted_times(rng, device):
    for clock in CLOCKS:
        times = random_times(rng, 3, 20, clock)
        robocache.check_times(to_torch(times, device))
        robocache.check_times(to_torch(times[0], device))
        robocache.check_times(to_torch(times[:, :0], device))
        robocache.check_times(times)


@each_clock
def test_rule_14_check_times_names_row_and_index_of_the_first_bad_time(device, clock):
    times = np.tile(np.arange(100, dtype=clock), (300, 1))
    times[123, 45] = 43
    times[123, 77] = 0
    times[200, 1] = -1
    with pytest.raises(robocache.ArgumentError, match=r"(?s)(?=.*times)(?=.*row 123\b)(?=.*\b45\b)"):
        robocache.check_times(to_torch(times, device))


@pytest.mark.parametrize("clock", [np.float32, np.float64])
@pytest.mark.parametrize("index", [0, 1, 99])
def test_rule_14_check_times_finds_nan(device, clock, index):
    times = np.tile(np.arange(100, dtype=clock), (3, 1))
    times[2, index] = np.nan
    with pytest.raises(robocache.ArgumentError, match=rf"(?si)(?=.*nan)(?=.*row 2\b)(?=.*\b{index}\b)"):
        robocache.check_times(to_torch(times, device))


def test_rule_14_check_times_respects_lengths(device):
    times = np.tile(np.arange(10, dtype=np.float32), (2, 1))
    times[1, 6:] = 0
    robocache.check_times(to_torch(times, device), lengths=to_torch(np.array([10, 6]), device))
    with pytest.raises(robocache.ArgumentError, match=r"(?s)(?=.*row 1\b)(?=.*\b6\b)"):
        robocache.check_times(to_torch(times, device), lengths=to_torch(np.array([10, 7]), device))
