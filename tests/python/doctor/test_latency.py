"""The doctor finds the lag between two streams, and none where there is none."""

import numpy as np
import pytest
import robots
from hypothesis import given, settings
from hypothesis import strategies as st
from robocache.doctor import latency
from robocache.doctor.streams import Survey

import robocache


def motion(rng, features, seconds):
    """Returns a smooth movement that never repeats: a function from seconds to values ``[n, features]``."""
    grid = np.arange(-5, seconds + 5, 0.01)
    kernel = np.exp(-0.5 * (np.arange(-60, 61) * 0.01 / rng.uniform(0.08, 0.2)) ** 2)
    steps = rng.normal(size=(len(grid), features))
    speed = np.stack([np.convolve(column, kernel / kernel.sum(), "same") for column in steps.T], axis=1)
    path = np.cumsum(speed, axis=0) * 0.01
    path /= path.std(0)
    return lambda seconds: np.stack([np.interp(seconds, grid, column) for column in path.T], axis=1)


def clock(rng, rate, seconds, jitter=0.02):
    n = int(seconds * rate)
    begin = 1_700_000_000 * 10**9 + int(rng.uniform(0, 1) * 1e9 / rate)
    return begin + ((np.arange(n) + rng.uniform(-jitter, jitter, n)) * 1e9 / rate).astype(np.int64)


def seconds_of(time):
    return (time - 1_700_000_000 * 10**9) / 1e9


def make_pair(
    rng, lag_s, rates=(50, 50), names=("action", "observation.state"), seconds=12.0, episodes=6, noise=0.005, features=5
):
    """Returns recordings whose second stream is the first stream, `lag_s` later."""
    result = []
    for _ in range(episodes):
        path = motion(rng, features, seconds)
        recording = {}
        for name, rate, delay_s in zip(names, rates, (0, lag_s), strict=True):
            time = clock(rng, rate, seconds)
            values = path(seconds_of(time) - delay_s)
            recording[name] = (time, (values + rng.normal(0, noise, values.shape)).astype(np.float32))
        result.append(recording)
    return result


def latencies(path, recordings):
    return robots.findings(robots.examine(path, recordings), "latency")


@pytest.mark.parametrize(
    ("lag_s", "rates", "severity"),
    [
        (0.0, (50, 50), None),
        (0.02, (50, 50), "note"),  # one frame
        (0.08, (50, 50), "note"),
        (0.08, (100, 30), "note"),
        (0.08, (30, 200), "note"),
        (0.25, (50, 50), "warning"),
        (-0.08, (50, 50), "warning"),  # the command is later than the state
        (0.004, (50, 50), None),  # less than a frame
    ],
)
def test_a_lag_is_found(lag_s, rates, severity, rng, tmp_path):
    findings = latencies(tmp_path / "cache", make_pair(rng, lag_s, rates))
    if severity is None:
        assert findings == []
        return
    (finding,) = findings
    assert (finding.severity, finding.stream) == (severity, "observation.state" if lag_s > 0 else "action")
    assert finding.value == pytest.approx(abs(lag_s) * 1e3, abs=250 / min(rates))
    assert finding.count >= 0.8 * 6 and f"after {'action' if lag_s > 0 else 'observation.state'}: " in finding.message
    assert ("a command should come before" in finding.message) == (lag_s < 0)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_the_finding_has_the_lag(tmp_path_factory, seed):
    rng = np.random.default_rng(seed)
    lag_s, rates = rng.uniform(0.03, 0.4), rng.choice([30, 50, 100], 2)
    noise = rng.uniform(0, 0.01)
    (finding,) = latencies(tmp_path_factory.mktemp("pair") / "cache", make_pair(rng, lag_s, rates, noise=noise))
    assert finding.value == pytest.approx(lag_s * 1e3, abs=300 / min(rates))
    assert finding.severity == ("note" if finding.value <= 100 else "warning")


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_unrelated_streams_have_no_lag(tmp_path_factory, seed):
    rng = np.random.default_rng(seed)
    recordings = make_pair(
        rng, 0.0, seconds=float(rng.uniform(5, 30)), features=int(rng.integers(1, 9)), episodes=int(rng.integers(1, 9))
    )
    for recording in recordings:
        time, values = recording["observation.state"]
        other = motion(rng, values.shape[1], seconds_of(time)[-1])
        recording["observation.state"] = (time, other(seconds_of(time)).astype(np.float32))
    assert latencies(tmp_path_factory.mktemp("pair") / "cache", recordings) == []


@pytest.mark.parametrize("name", ["end_effector", "velodyne_pose", "release_level", "attempt/pose"])
def test_words_that_hold_a_derivatives_word_name_none(name, rng, tmp_path):
    (finding,) = latencies(tmp_path / "cache", make_pair(rng, 0.08, names=("action", name)))
    assert finding.value == pytest.approx(80, abs=20)


def test_similar_streams_without_a_latency(rng, tmp_path):
    """None of these has a latency: a velocity and its position under any name, periodic motion, rest with noise, only three of
    eight joints, a lag that changes."""
    positions = make_pair(rng, 0.0, names=("a", "b"))
    for recording in positions:
        time, values = recording["a"]
        recording["b"] = (time, np.gradient(values, axis=0))
    assert latencies(tmp_path / "derived", positions) == []
    assert latencies(tmp_path / "named", make_pair(rng, 0.08, names=("base_velocity", "base_pose"))) == []
    swinging = make_pair(rng, 0.0)
    for recording in swinging:
        for name, delay_s in (("action", 0), ("observation.state", 0.1)):
            time, values = recording[name]
            seconds = seconds_of(time)[:, None] - delay_s
            recording[name] = (time, np.sin(2 * np.pi * 1.3 * seconds + np.arange(values.shape[1])).astype(np.float32))
    assert latencies(tmp_path / "swinging", swinging) == []
    resting = make_pair(rng, 0.08)
    for recording in resting:
        for name in recording:
            time, values = recording[name]
            recording[name] = (time, rng.normal(size=values.shape).astype(np.float32) * 1e-3)
    assert latencies(tmp_path / "resting", resting) == []
    few = make_pair(rng, 0.08, features=8)
    for recording in few:
        time, values = recording["observation.state"]
        values[:, 3:] = motion(rng, 5, 13.0)(seconds_of(time))
    assert latencies(tmp_path / "few", few) == []
    scattered = [make_pair(rng, lag_s, episodes=1)[0] for lag_s in (0.05, 0.15, 0.25, 0.35, 0.45, 0.55)]
    assert latencies(tmp_path / "scattered", scattered) == []


def test_features_are_matched_by_name_and_still_features_are_ignored(rng, tmp_path):
    recordings = make_pair(rng, 0.08)
    for recording in recordings:
        time, values = recording["observation.state"]
        values = values[:, ::-1].copy()
        values[:, 4] = np.nan
        recording["observation.state"] = (time, values)
        recording["action"][1][:, 1] = 3.0
    joints = ["pan", "lift", "elbow", "wrist", "roll"]
    cache = robots.write(
        tmp_path / "cache",
        recordings,
        describe={"action": {"names": joints}, "observation.state": {"names": joints[::-1]}},
    )
    (finding,) = robots.findings(robocache.doctor(cache), "latency")
    assert finding.value == pytest.approx(80, abs=5)


def test_each_stream_is_compared_with_the_first_similar_one(rng, tmp_path):
    recordings = make_pair(rng, 0.08)
    for recording in recordings:
        time, values = recording["observation.state"]
        recording["copy"] = (time + 60_000_000, values)
    findings = latencies(tmp_path / "cache", recordings)
    assert sorted((f.stream, round(f.value, -1)) for f in findings) == [("copy", 140), ("observation.state", 80)]


def test_only_a_part_of_the_numbers_is_read(rng, tmp_path, monkeypatch):
    """The check reads at most a 64th of the numbers, or a small fixed number, however many streams there are."""
    sizes_read = []
    rates = latency._rates
    monkeypatch.setattr(
        latency,
        "_rates",
        lambda s, rows, f, *rest: sizes_read.append((rows.stop - rows.start) * len(f)) or rates(s, rows, f, *rest),
    )
    episodes = [
        {f"stream {k}": recording["action"] for k, recording in enumerate(make_pair(rng, 0, episodes=24, seconds=30.0))}
        for _ in range(6)
    ]
    dataset = robocache.open(robots.write(tmp_path / "cache", episodes))
    numbers = sum(stream.rows * 5 for stream in dataset.streams.values())
    assert list(latency.check_latency(Survey(dataset, {}))) == []
    assert 0 < sum(sizes_read) <= max(numbers / 64, 1 << 18)
