"""resample_trajectories: errors, rule 17."""

import numpy as np
import pytest
from reference.resample_calls import check, ramp, resample

import robocache


def test_rule_17_the_error_classes():
    assert issubclass(robocache.ArgumentError, robocache.Error)
    assert issubclass(robocache.ArgumentError, ValueError)
    assert issubclass(robocache.ArgumentTypeError, robocache.Error)
    assert issubclass(robocache.ArgumentTypeError, TypeError)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"method": "cubicle"}, ["method", "cubicle", "linear", "nearest", "previous", "next"]),
        ({"extrapolate": "hold"}, ["extrapolate", "hold", "clamp", "nan", "linear"]),
        ({"method": ""}, ["method"]),
    ],
)
def test_rule_17_unknown_words_are_answered_with_the_known_ones(device, options, parts):
    values, times = ramp()
    with pytest.raises(robocache.ArgumentError) as caught:
        resample(values, times, times, device, **options)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("option", ["method", "extrapolate"])
@pytest.mark.parametrize("value", [3, None, b"linear"])
def test_rule_17_words_are_strings(option, value):
    values, times = ramp()
    with pytest.raises(robocache.ArgumentTypeError, match=option):
        robocache.resample_trajectories(values, times, times, **{option: value})


@pytest.mark.parametrize("argument", ["values", "times", "target_times"])
@pytest.mark.parametrize("value", [None, "abc", 3, object(), [[1.0], [2.0]]], ids=lambda v: type(v).__name__)
def test_rule_17_what_is_no_array_is_refused_by_name(argument, value):
    values, times = ramp()
    arguments = {"values": values, "times": times, "target_times": times} | {argument: value}
    with pytest.raises(robocache.ArgumentTypeError, match=rf"\b{argument}\b"):
        robocache.resample_trajectories(**arguments)


@pytest.mark.parametrize(
    "values",
    [np.array([["a"], ["b"]]), np.array([[None], [None]]), np.zeros((2, 1), "M8[ns]"), np.zeros((2, 1), "i4,f4")],
)
def test_rule_17_arrays_of_other_things_are_refused(values):
    times = np.arange(2.0)
    with pytest.raises(robocache.ArgumentTypeError, match="values"):
        robocache.resample_trajectories(values, times, times, method="previous")


def test_rule_17_options_are_keywords():
    values, times = ramp()
    with pytest.raises(TypeError):
        robocache.resample_trajectories(values, times, times, "linear")
    with pytest.raises(TypeError):
        robocache.resample_trajectories(values, times, times, methd="linear")


def test_rule_17_an_error_leaves_the_next_call_alone(device):
    values, times = ramp()
    for _ in range(3):
        with pytest.raises(robocache.ArgumentError):
            resample(values, times, times, device, method="cubicle")
        check(values, times, times, device)
