"""resample_trajectories: which sample a target takes, rules 4 to 7."""

import numpy as np
import pytest
from reference.compare import assert_same_bits
from reference.random_streams import STEPS, random_values
from reference.resample_calls import check, each_clock, each_whole, ramp, random_case, resample


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
def test_rule_6_integers_and_bool_take_only_step_methods(rng, device, dtype):
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
        out_without_future, _ = resample(future, times, targets, device, method=method, causal=True)
        assert_same_bits(out_without_future[row, column], out[row, column])


def test_rule_7_causal_equals_previous_outside(device):
    values, times = ramp(features=1)
    targets = np.array([-0.5, 0, 0.9, 4, 4.5], np.float32)
    for method in ("linear", "nearest", "previous"):
        out, valid = resample(values, times, targets, device, method=method, causal=True)
        assert_same_bits(out[:, 0], np.array([np.nan, 0, 0, 40, 40], np.float32))
        assert valid.tolist() == [False, True, True, True, False]
    integers, valid = resample(values.astype(np.int32), times, targets, device, method="previous", causal=True)
    assert integers[:, 0].tolist() == [0, 0, 0, 40, 40]
    assert not valid[0]


def test_rule_7_causal_max_gap_is_the_age_of_the_sample_used(device):
    values, times = ramp(features=1)
    times = times * 10
    targets = np.array([1, 2, 2.5, 10, 13], np.float32)
    _, valid = resample(values, times, targets, device, causal=True, max_gap=2)
    assert valid.tolist() == [True, True, False, True, False]
