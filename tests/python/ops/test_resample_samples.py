"""resample_trajectories: which sample a target takes, rules 4 to 7."""

import itertools

import numpy as np
import pytest
from reference.compare import assert_same_bits, name_of
from reference.random_streams import FLOATS, STEPS, random_values
from reference.resample_calls import check, each_clock, each_whole, ramp, random_case, resample


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("method", [*STEPS, "linear"])
@each_clock
def test_rule_4_a_hit_returns_its_sample_beside_nan(device, dtype, method, clock):
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, 3.0], np.float64)
    with np.errstate(over="ignore"):
        values = np.array(list(itertools.product(special, special, special)), np.float64).T.astype(dtype)
    times = np.array([5, 6, 9]).astype(clock)
    out, valid = resample(values, times, times, device, method=method, max_gap=0)
    assert valid.all()
    assert_same_bits(out, values)


@pytest.mark.parametrize("method", [*STEPS, "linear"])
def test_rule_4_minus_zero_hits_zero(device, method):
    values, times = ramp()
    out, valid = resample(values, times, np.array([-0.0], np.float32), device, method=method, extrapolate="nan")
    assert valid.all()
    assert_same_bits(out, values[:1])


def test_rule_5_only_the_last_sample_of_each_time_counts(device):
    values = np.array([[1], [2], [3], [4], [5], [6]], np.float32)
    times = np.array([0, 0, 1, 1, 1, 2], np.float32)
    targets = np.array([-1, 0, 0.5, 1, 1.5, 2, 3], np.float32)
    out, _ = resample(values, times, targets, device)
    assert out[:, 0].tolist() == [2, 2, 3.5, 5, 5.5, 6, 6]
    out, _ = resample(values, times, targets, device, method="next")
    assert out[:, 0].tolist() == [2, 2, 5, 5, 6, 6, 6]
    out, _ = resample(values, times, targets, device, extrapolate="linear")
    assert out[:, 0].tolist() == [-1, 2, 3.5, 5, 5.5, 6, 7]


@pytest.mark.parametrize("method", [*STEPS, "linear"])
@each_clock
def test_rule_5_removing_the_duplicates_changes_nothing(rng, device, method, clock):
    values, times, targets = random_case(rng, np.dtype(np.float64), clock, batch=1, samples=60, special=False)
    last = np.append(times[0, 1:] != times[0, :-1], True)
    for extrapolate in ("clamp", "nan") if method in STEPS else ("clamp", "nan", "linear"):
        options = {"method": method, "extrapolate": extrapolate}
        with_duplicates = resample(values, times, targets, device, **options)
        without = resample(values[:, last], times[:, last], targets, device, **options)
        for one, other in zip(with_duplicates, without, strict=True):
            assert_same_bits(one, other)


@pytest.mark.parametrize("method", [*STEPS, "linear"])
@pytest.mark.parametrize("extrapolate", ["clamp", "nan", "linear"])
def test_rule_5_a_row_of_one_time_is_a_row_of_one_sample(device, method, extrapolate):
    if method in STEPS and extrapolate == "linear":
        return
    values = np.array([[1], [2], [3]], np.float32)
    check(
        values,
        np.full(3, 7, np.float32),
        np.array([6, 7, 8], np.float32),
        device,
        method=method,
        extrapolate=extrapolate,
    )


def test_rule_6_midway_nearest_takes_the_earlier_sample(device):
    values, times = ramp(features=1)
    targets = np.array([0.5, np.nextafter(np.float32(0.5), np.float32(1)), 1.5, 3.5], np.float32)
    out, _ = resample(values, times, targets, device, method="nearest")
    assert out[:, 0].tolist() == [0, 10, 10, 30]


def test_rule_6_previous_is_at_or_before_and_next_at_or_after(device):
    values, times = ramp(features=1)
    targets = np.array([0.0, 0.01, 0.99, 1.0, 3.999], np.float32)
    assert resample(values, times, targets, device, method="previous")[0][:, 0].tolist() == [0, 0, 0, 10, 30]
    assert resample(values, times, targets, device, method="next")[0][:, 0].tolist() == [0, 10, 10, 10, 40]


@each_whole
def test_rule_6_integers_and_bool_take_step_methods_alone(rng, device, dtype):
    values = random_values(rng, (4, 3), dtype)
    times = np.arange(4, dtype=np.float32)
    for step in STEPS:
        check(values, times, np.array([-1, 0.4, 0.5, 0.6, 2, 9], np.float32), device, method=step)


@pytest.mark.parametrize("method", ["linear", "nearest", "previous"])
@each_clock
def test_rule_7_causal_never_looks_ahead(rng, device, method, clock):
    values, times, targets = random_case(rng, np.dtype(np.float32), clock, special=False)
    out, _ = resample(values, times, targets, device, method=method, causal=True)
    for row, column in np.ndindex(targets.shape):
        future = values.copy()
        future[row, times[row] > targets[row, column]] = np.nan
        later, _ = resample(future, times, targets, device, method=method, causal=True)
        assert_same_bits(later[row, column], out[row, column])


def test_rule_7_causal_equals_previous_outside(device):
    values, times = ramp(features=1)
    targets = np.array([-0.5, 0, 0.9, 4, 4.5], np.float32)
    for method in ("linear", "nearest", "previous"):
        out, valid = resample(values, times, targets, device, method=method, causal=True)
        assert_same_bits(out[:, 0], np.array([np.nan, 0, 0, 40, 40], np.float32))
        assert valid.tolist() == [False, True, True, True, False]
    whole, valid = resample(values.astype(np.int32), times, targets, device, method="previous", causal=True)
    assert whole[:, 0].tolist() == [0, 0, 0, 40, 40]
    assert not valid[0]


def test_rule_7_causal_max_gap_is_the_age_of_the_sample_used(device):
    values, times = ramp(features=1)
    times = times * 10
    targets = np.array([1, 2, 2.5, 10, 13], np.float32)
    _, valid = resample(values, times, targets, device, causal=True, max_gap=2)
    assert valid.tolist() == [True, True, False, True, False]
