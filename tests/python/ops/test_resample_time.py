"""resample_trajectories: clocks, durations and weights, rules 1 to 3."""

import numpy as np
import pytest
from reference.random_streams import EPOCH_NS, STEPS, random_times
from reference.resample_calls import check, each_clock, each_float, ramp, resample

torch = pytest.importorskip("torch")


def test_rule_2_int64_durations_are_nanoseconds(device):
    values, times = ramp(clock=np.int64)
    times = EPOCH_NS + times * 1000
    check(values, times, times[:-1] + 500, device, max_gap=999)
    check(values, times, times[:-1] + 500, device, max_gap=1000)
    _, valid = resample(values, times, times[:-1] + 500, device, max_gap=1000.0)  # a float that is a whole number
    assert valid.all()


@pytest.mark.parametrize("duration", [0, float("inf")])
def test_rule_2_zero_and_infinite_durations_are_durations(device, duration):
    values, times = ramp()
    targets = np.array([0.5, 1.0, 2.25], np.float32)
    for options in ({"max_gap": duration}, {"tolerance": duration}):
        check(values, times, targets, device, method="nearest", **options)


def test_rule_2_a_duration_is_compared_in_the_clocks_type(device):
    # float32(0.1) is above 0.1: compared in float64 the bracket would be too long.
    values, times = ramp(samples=2)
    times = times * np.float32(0.1)
    _, valid = resample(values, times, np.array([0.05], np.float32), device, max_gap=0.1)
    assert valid.all()


@pytest.mark.parametrize("method", [*STEPS, "linear"])
def test_rule_2_int64_differences_of_2_63_and_more(device, method):
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    times = np.array([low, high], np.int64)
    targets = np.array([low, low + 1, -1, 0, 1, high - 1, high], np.int64)
    values = np.array([[-1.0], [1.0]], np.float64)
    check(values, times, targets, device, method=method)
    check(values, times, targets, device, method=method, max_gap=high)
    for middle in (-5, 0, 5):
        check(values[[0, 1, 1]], np.array([low, middle, high], np.int64), targets, device, method=method)


def test_rule_2_epoch_nanoseconds_are_exact_to_the_nanosecond(device):
    times = EPOCH_NS + np.array([0, 1, 2, 3, 1000], np.int64)
    values = np.arange(5, dtype=np.float32)[:, None]
    targets = np.arange(EPOCH_NS - 2, EPOCH_NS + 1003, dtype=np.int64)
    for method in [*STEPS, "linear"]:
        check(values, times, targets, device, method=method)
    out, _ = resample(values, times, targets[2:6], device, method="previous")
    assert out[:, 0].tolist() == [0, 1, 2, 3]


@each_float
@each_clock
def test_rule_3_a_value_is_one_division_one_fma_one_rounding(rng, device, dtype, clock):
    """Many weights between few samples show a reciprocal, an epsilon or a fused difference."""
    times = random_times(rng, 4, 9, clock, duplicates=False)
    targets = (times[:, :1] + rng.uniform(0, 1, (4, 2000)) * (times[:, -1:] - times[:, :1])).astype(clock)
    values = rng.uniform(-2, 2, (4, 9, 3)).astype(dtype)
    check(values, times, targets, device)
    check(values, times, targets, device, extrapolate="linear")


def test_rule_3_the_weight_of_float32_values_on_a_float64_clock_is_divided_in_float64(device):
    # Float64 tells these targets apart, float32 would not.
    times = np.array([0.0, 3.0])
    targets = np.array([1.0, 1.0 + 2.0**-24, 1.0 - 2.0**-24, 2.0 + 2.0**-30])
    check(np.array([[0.0], [3e6]], np.float32), times, targets, device)
