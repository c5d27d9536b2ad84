"""A Loader's anchors, and windows by a rate."""

import collections

import numpy as np
import pyarrow.compute as pc
import pytest
from recordings import STREAMS, anchors_of, assert_same_batches, batches_of, check, small_loader, ticks_of, write

import robocache


def test_anchors_are_the_rows_of_the_named_stream(dataset, recording, device):
    for stream in STREAMS:
        assert sorted(anchors_of(small_loader(dataset, anchor=stream, device=device))) == ticks_of(recording, stream)


def test_the_default_anchor_is_the_slowest_requested_stream(dataset, recording):
    deltas = {"action": [0.0], "observation.feature": [0.0], "observation.imu": [0.0]}
    loader = small_loader(dataset, delta_timestamps=deltas)
    assert sorted(anchors_of(loader)) == ticks_of(recording, "observation.feature")


@pytest.mark.parametrize("hz", [1.0, 10, 29.97, 1000])
def test_anchors_of_a_rate(dataset, recording, device, hz):
    """Anchors are 1 / hz apart within the span that all streams cover."""
    deltas = {"action": [0.0], "observation.imu": [0.0]}
    anchors = collections.defaultdict(list)
    for episode, time_ns in anchors_of(
        small_loader(dataset, delta_timestamps=deltas, anchor_hz=hz, shuffle=False, device=device)
    ):
        anchors[episode].append(time_ns)
    assert sorted(anchors) == list(range(len(recording)))
    for episode, times in anchors.items():
        clocks = [recording[episode][name][0] for name in deltas if name in recording[episode]]
        first, last = max(int(clock[0]) for clock in clocks), min(int(clock[-1]) for clock in clocks)
        assert times[0] == first
        assert last - 1e9 / hz - 1 <= times[-1] <= last
        np.testing.assert_allclose(np.array(times) - first, np.arange(len(times)) * 1e9 / hz, atol=1)


def test_batches_at_anchors_of_a_rate_equal_the_oracles(dataset, recording, device):
    deltas = {"action": [0.0, 0.1], "mode": [0.0], "observation.imu": [-0.01, 0.0]}
    check(dataset, recording, deltas, device=device, anchor_hz=30)


# Odd episodes have task 1.
@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        ({}, {"episodes": {"task": "task 1"}}, [1, 3, 5]),
        ({}, {"episodes": pc.field("task") != "task 1"}, [0, 2, 4, 6]),
        ({"episodes": {"task": "task 1"}}, {}, [1, 3, 5]),
        ({"episodes": pc.field("episode_index") > 2}, {}, [3, 4, 5, 6]),
    ],
)
def test_a_condition_selects_episodes(dataset, recording, source, options, expected):
    drawn_from = [robocache.Source(dataset, **source)] if source else dataset
    loader = small_loader(drawn_from, delta_timestamps={"mode": [0.0]}, anchor="action", shuffle=False, **options)
    assert anchors_of(loader) == ticks_of(recording, "action", expected)


def test_a_condition_without_episodes_is_refused(dataset):
    condition = {"task": "task 9"}
    sources = [robocache.Source(dataset), robocache.Source(dataset, episodes=condition)]
    with pytest.raises(robocache.ArgumentError, match=r"^sources\[1\].episodes: no episode of .* meets"):
        small_loader(sources)
    with pytest.raises(robocache.ArgumentError, match=r"^episodes: no episode of .* meets"):
        small_loader(dataset, episodes=condition)


@pytest.mark.parametrize("rate_hz", [20, 7.5, 500])
def test_history_ends_and_horizon_starts_at_the_anchor(dataset, rate_hz):
    windows = {
        "observation.state": robocache.Window.steps(rate_hz, history=3),
        "mode": robocache.Window.steps(rate_hz, history=1),
        "action": robocache.Window.steps(rate_hz, horizon=4),
        "gripper": robocache.Window.steps(rate_hz, history=3, horizon=2),  # the anchor is one step, not two
    }
    offsets = {
        "observation.state": [-2 / rate_hz, -1 / rate_hz, 0.0],
        "mode": [0.0],
        "action": [k / rate_hz for k in range(4)],
        "gripper": [-2 / rate_hz, -1 / rate_hz, 0.0, 1 / rate_hz],
    }
    batches, expected = (batches_of(small_loader(dataset, delta_timestamps=deltas)) for deltas in (windows, offsets))
    assert_same_batches(batches, expected)


@pytest.mark.parametrize(
    ("arguments", "steps", "name"),
    [
        ((0,), {"history": 1}, "rate_hz"),
        ((float("nan"),), {"history": 1}, "rate_hz"),
        ((float("inf"),), {"horizon": 1}, "rate_hz"),
        ((10,), {}, "history, horizon"),
        ((10,), {"history": -1}, "history"),
        ((10,), {"horizon": -2}, "horizon"),
    ],
)
def test_invalid_steps_are_refused(arguments, steps, name):
    with pytest.raises(robocache.ArgumentError, match=f"^{name}: expected"):
        robocache.Window.steps(*arguments, **steps)


def test_too_many_anchors_are_refused(tmp_path):
    times = np.array([-(2**62), 2**62])
    dataset = write(tmp_path / "cache", [{"x": (times, np.zeros((2, 1), np.float32))}])
    with pytest.raises(robocache.ArgumentError, match=r"anchors.rate_hz: expected .*, got 1000000000 Hz.*episode 0"):
        small_loader(dataset, delta_timestamps={"x": [0.0]}, anchor_hz=1e9)


def slow_and_fast():
    return {
        "actions": (np.arange(40) * 50_000_000, np.zeros(40)),
        "state": (np.arange(200) * 10_000_000, np.zeros(200)),
        "intrinsics": (np.zeros(1, np.int64), np.ones((1, 4))),
    }


@pytest.mark.parametrize("order", [1, -1])
def test_rule_48_a_stream_of_one_row_is_not_the_default_anchor(tmp_path, order):
    recording = [dict(list(slow_and_fast().items())[::order]) for _ in range(4)]
    recording[2]["intrinsics"] = (np.array([0, 10**9]), np.ones((2, 4)))  # published twice
    dataset = write(tmp_path / "cache", recording)
    loader = small_loader(dataset, delta_timestamps=dict.fromkeys(recording[0]))
    assert (loader.anchor, loader.num_anchors) == ("actions", 160)
    intrinsics_loader = small_loader(dataset, delta_timestamps={"intrinsics": None})
    assert (intrinsics_loader.anchor, intrinsics_loader.num_anchors) == ("intrinsics", 5)
    assert small_loader(dataset, delta_timestamps=dict.fromkeys(recording[0]), anchor="intrinsics").num_anchors == 5


def test_rule_48_a_stream_of_repeated_stamps_is_not_the_slowest(tmp_path):
    """Its median period is 0, so it has no rate: bursts of equal stamps do not make a stream slow."""
    burst = (np.repeat(np.arange(10) * 10**8, 10), np.zeros((100, 1), np.float32))
    dataset = write(tmp_path / "cache", [{"burst": burst, "state": slow_and_fast()["state"]}])
    assert small_loader(dataset, delta_timestamps={"burst": None, "state": None}).anchor == "state"
