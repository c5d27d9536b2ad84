"""Each check: a cache with one fault gives exactly that finding at that row; a cache without a fault gives none."""

import json
import math

import numpy as np
import pytest
import robots
from cache_files import sign
from hypothesis import given, settings
from hypothesis import strategies as st
from loaders_by_keywords import loader_by_keywords
from robocache.doctor import cameras
from scipy.spatial.transform import Rotation

import robocache

SECOND = 10**9


def shift(stream, episode, row, ns):
    """Plants a delay: all rows from `row` on are `ns` later."""

    def plant(recordings):
        recordings[episode][stream][0][row:] += int(ns)

    return plant


def set_values(stream, episode, rows, features, value):
    def plant(recordings):
        recordings[episode][stream][1][rows, features] = value

    return plant


def change_stamps(stream, episode, change):
    def plant(recordings):
        time, values = recordings[episode][stream]
        recordings[episode][stream] = (change(time), values)

    return plant


def freeze(stream, episode, rows, features=slice(None)):
    def plant(recordings):
        values = recordings[episode][stream][1]
        values[rows, features] = values[rows.start, features] if values.ndim == 2 else values[rows.start]

    return plant


def delete_rows(stream, episode, rows):
    def plant(recordings):
        time, values = recordings[episode][stream]
        recordings[episode][stream] = (np.delete(time, rows), np.delete(values, rows, axis=0))

    return plant


def make_burst(time):
    bunched = time.copy()
    bunched[300:309] = bunched[308] - np.arange(9)[::-1] * 100_000
    return bunched


def drift(recordings):
    (time, states), (_, actions) = recordings[2]["observation.state"], recordings[2]["action"]
    rows = min(len(states), len(actions))
    time = time[:rows]
    recordings[2]["observation.state"] = (time, states[:rows])
    recordings[2]["action"] = (time[0] + ((time - time[0]) * 1.003).astype(np.int64), actions[:rows])


def copy_episode(recordings):
    recordings[3] = {name: (time + 5 * SECOND, values) for name, (time, values) in recordings[1].items()}


def empty_episode(recordings):
    recordings[2] = {name: (time[:0], values[:0]) for name, (time, values) in recordings[2].items()}


def black_out(recordings):
    recordings[1]["top"][1][:] = 0


def repeat_stamp(recordings):
    time, values = recordings[3]["imu"]
    recordings[3]["imu"] = (np.insert(time, 40, time[40]), np.insert(values, 40, values[40] + 0.01, axis=0))


def slow_down(time):
    return time[0] + ((time - time[0]) * 1.2).astype(np.int64)


# {fault: (the function that plants it, the expected locations or (a code, the only episode with findings))}
FAULTS = {
    "gap": (shift("imu", 1, 200, 25e6), [("gap", 1, "imu", 200)]),
    "long gap": (shift("imu", 2, 400, 100e6), [("long-gap", 2, "imu", 400)]),
    "repeated stamp": (repeat_stamp, [("repeated-stamp", 3, "imu", 41)]),
    "burst": (change_stamps("imu", 0, make_burst), [("burst", 0, "imu", 300), ("gap", 0, "imu", 300)]),
    "nan": (set_values("observation.state", 2, 7, 1, np.nan), [("nan", 2, "observation.state", 7)]),
    "infinite": (set_values("action", 1, 100, 3, -np.inf), [("infinite-value", 1, "action", 100)]),
    "spike": (set_values("observation.state", 3, 123, 2, 40.0), [("spike", 3, "observation.state", 123)]),
    "stuck": (freeze("observation.state", 1, slice(50, 130)), [("stuck", 1, "observation.state", 50)]),
    "stuck column": (freeze("imu", 2, slice(300, 700), 4), [("stuck", 2, "imu", 300)]),
    "frozen camera": (freeze("top", 1, slice(20, 40)), [("frozen-frames", 1, "top", 20)]),
    # Row 7 is the episode's first among the 24 frames that are decoded.
    "black camera": (black_out, [("blank-frames", 1, "top", 7), ("frozen-frames", 1, "top", 0)]),
    "no camera": (delete_rows("top", 2, slice(None)), [("missing-stream", 2, "top", None)]),
    "late": (delete_rows("imu", 3, slice(0, 300)), [("late-start", 3, "imu", 0)]),
    "early": (delete_rows("observation.state", 0, slice(-50, None)), ("early-end", 0)),
    "empty": (empty_episode, [("empty-episode", 2, None, None)]),
    "elsewhere in time": (shift("imu", 1, 0, 3600e9), [("no-common-time", 1, "imu", None)]),
    "copied": (copy_episode, [("repeated-episode", 1, None, None)]),
    "drift": (drift, [("clock-drift", 2, "action", None)]),
    "slow episode": (change_stamps("imu", 2, slow_down), ("rate-of-episode", 2)),
}


@pytest.fixture
def clean(rng):
    return robots.make_recordings(rng)


def test_clean_recordings_have_no_findings(clean, tmp_path):
    report = robots.examine(tmp_path / "cache", clean)
    assert robots.locations(report) == []
    assert report.summary == "no findings"
    assert [stream["true_rate_hz"] for stream in report.streams] == pytest.approx([50, 50, 200, 10], rel=2e-3)


def test_empty_and_constant_masks_are_no_findings(clean, tmp_path):
    for streams in clean:
        time, frames = streams["top"]
        masks = np.zeros((*frames.shape[:3], 1), np.uint8)
        masks[40:, 4:9, 4:9] = 1
        streams["top_mask"] = time, masks
    assert robots.locations(robots.examine(tmp_path / "cache", clean)) == []


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.floats(0, 0.05), st.integers(1, 9))
def test_random_clean_recordings_have_no_findings(tmp_path_factory, seed, episodes, jitter, features):
    recordings = robots.make_recordings(
        np.random.default_rng(seed), episodes, jitter=jitter, features=features, camera=seed % 3 == 0
    )
    report = robots.examine(tmp_path_factory.mktemp("clean") / "cache", recordings)
    assert robots.locations(report) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_gives_one_finding(fault, clean, tmp_path):
    plant, expected = FAULTS[fault]
    report = robots.examine(tmp_path / "cache", robots.with_fault(clean, plant))
    locations = robots.locations(report)
    if isinstance(expected, tuple):  # several findings follow from the fault, all in one episode
        code, episode = expected
        assert code in {code for code, *_ in locations} and {episode for _, episode, *_ in locations} == {episode}
    else:
        assert sorted(locations) == sorted(expected)
    assert all(finding.advice and finding.message for finding in report.findings)


def rate_findings(path, rates, clock, change=lambda time: time):
    rng = np.random.default_rng(0)
    times = [np.round(np.arange(100) * 1e9 / rate).astype(np.int64) for rate in rates]
    times[-1] = change(times[-1])
    episodes = [{"imu": (time, rng.normal(size=(100, 3)))} for time in times]
    report = robots.examine(path, episodes, describe={"imu": {"clock": clock}})
    return robots.findings(report, "rate-of-episode")


@pytest.mark.parametrize("clock", ["nominal", "recorded"])
@pytest.mark.parametrize("rate", [5, 10, 15, 20, 25, 60, 90, 300])
def test_an_episode_of_another_rate_is_a_warning(tmp_path, clock, rate):
    (finding,) = rate_findings(tmp_path / "cache", [30] * 19 + [rate], clock)
    assert (finding.severity, finding.episode) == ("warning", 19)
    assert (finding.value, finding.expected) == pytest.approx((rate, 30), rel=1e-6)


def test_many_episodes_of_another_rate_are_warnings_on_a_nominal_clock(tmp_path):
    findings = rate_findings(tmp_path / "cache", [30] * 6 + [10] * 3, "nominal")
    assert [(f.episode, round(f.value), round(f.expected)) for f in findings] == [(e, 10, 30) for e in (6, 7, 8)]


@pytest.mark.parametrize(
    "change",
    [
        lambda time: time // (10 * (time[1] - time[0])) * 10 * (time[1] - time[0]) + np.arange(len(time)) % 10 * 1000,
        lambda time: time + np.arange(len(time)) // 50 * 60 * SECOND,
        lambda time: np.repeat(time[::2], 2),
    ],
    ids=["bursts", "stall", "repeated stamps"],
)
def test_bursts_stalls_and_repeated_stamps_are_not_another_rate(tmp_path, change):
    assert rate_findings(tmp_path / "cache", [30] * 19 + [30.0001], "recorded", change) == []


def test_a_step_a_wrap_and_a_sign_flip(clean, tmp_path):
    clean[1]["observation.state"][1][150:, 2] += 10
    values = clean[2]["imu"][1]
    steps = np.arange(1, len(values) + 1)
    angle = 0.01 * steps + np.random.default_rng(0).normal(0, 1e-3, len(steps))
    values[:, 0] = (angle + np.pi) % (2 * np.pi) - np.pi
    values[:, 1] = 0.5 * steps % 360
    wraps = np.argmax(np.abs(np.diff(values[:, :2], axis=0)), axis=0) + 1
    report = robots.examine(tmp_path / "cache", clean)
    expected = [("step", 1, "observation.state", 150), *(("angle-wrap", 2, "imu", row) for row in wraps)]
    assert sorted(robots.locations(report)) == sorted(expected)
    wraps = robots.findings(report, "angle-wrap")
    (mapping,) = {"\n".join(line for line in f.advice.splitlines() if line.startswith("streams.")) for f in wraps}
    assert mapping == 'streams."imu".methods = [[0, 1, "angle"], [1, 2, "previous"]]'
    assert {finding.severity for finding in wraps} == {"warning"}


def test_a_wrap_of_a_declared_angle_is_no_finding(clean, tmp_path):
    angle = 0.01 * np.arange(len(clean[2]["imu"][0]))
    clean[2]["imu"][1][:, 0] = (angle + np.pi) % (2 * np.pi) - np.pi
    described = {"imu": {"attributes": {"methods": [[0, 1, "angle"]]}}}
    report = robots.examine(tmp_path / "cache", clean, describe=described)
    assert robots.locations(report) == []


@pytest.mark.parametrize("turn", [2 * math.pi, 360.0], ids=["radians", "degrees"])
@pytest.mark.parametrize("low", [-0.5, 0.0], ids=["half a turn to each side", "from 0"])
@pytest.mark.parametrize("share", [0.004, 0.02, 0.05, 0.15])
@pytest.mark.parametrize("hovers", [False, True], ids=["turns on", "hovers at the end"])
def test_an_angle_that_wraps_often(tmp_path, turn, low, share, hovers):
    """Above 1 % of the steps, the 99th percentile is itself a wrap."""
    rows = 2000
    noise = np.random.default_rng(5).normal(0, 1e-3, rows)
    angle = share * np.arange(rows) + noise
    if hovers:  # the angle passes the end of the range and returns at once
        angle = np.where(np.arange(rows) % round(2 / share) == 7, low + 0.002, low - 0.006) + noise / 2
    angle = turn * ((angle - low) % 1 + low)
    time = np.arange(rows) * 20_000_000
    values = np.stack([angle, np.cumsum(noise)], 1)
    cache = robots.write(tmp_path / "cache", [{"state": (time, values)}], describe={"state": {"names": ["yaw", "x"]}})
    (finding,) = robots.findings(robocache.doctor(cache), "angle-wrap", "spike", "step")
    assert finding.code == "angle-wrap" and finding.message.startswith("yaw")
    assert finding.count == np.count_nonzero(np.abs(np.diff(angle)) > turn / 2)
    assert ('[[0, 1, "angle"]]' if turn < 10 else '[[0, 1, "previous"]]') in finding.advice


@pytest.mark.parametrize("axis", [(1, 0.1, 0.05), (1, 1, 0.1), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("past_pi", [False, True], ids=["of length up to pi", "of length up to 2 pi"])
def test_a_rotation_vector_beyond_half_a_turn(tmp_path, axis, past_pi):
    """A gripper points down and its axis moves a little: the rotation vector changes its sign again and again."""
    rows = 600
    time = np.arange(rows) * 20_000_000
    axes = np.array(axis) + 0.02 * np.stack([np.sin(time * 1e-9), np.cos(time * 2e-9), np.sin(time * 3e-9)], 1)
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    angle = np.pi + 0.1 * np.sin(np.arange(rows) * 0.37)
    v = Rotation.from_rotvec(axes * angle[:, None]).as_rotvec()
    if past_pi:  # from a quaternion with w < 0 the angle is in (pi, 2 pi]
        v = axes * (np.pi * 0.9 + 0.2 * (np.arange(rows) % 50 > 25))[:, None]
        is_long = np.arange(rows) % 37 > 20
        v[is_long] *= 1 - 2 * np.pi / np.linalg.norm(v[is_long], axis=1, keepdims=True)
    is_flipped = np.linalg.norm(np.diff(v, axis=0), axis=1) > 5
    values = np.concatenate(
        [np.cumsum(np.random.default_rng(0).normal(0, 1e-3, (rows, 3)), 0), v, np.ones((rows, 1))], 1
    )
    names = ["x", "y", "z", "a", "b", "c", "gripper"]
    cache = robots.write(tmp_path / "cache", [{"state": (time, values)}], describe={"state": {"names": names}})
    (finding,) = robots.findings(robocache.doctor(cache), "angle-wrap", "rotation-vector-wrap", "spike")
    assert finding.code == "rotation-vector-wrap" and finding.message.startswith("a, b, c")
    assert finding.count == is_flipped.sum() and finding.row == np.argmax(is_flipped) + 1
    assert finding.advice.splitlines()[1:] == ['streams."state".methods = [[3, 6, "previous"]]']


def test_euler_angles_and_joints_are_no_rotation_vectors(tmp_path):
    rows = 600
    time = np.arange(rows) * 20_000_000
    rng = np.random.default_rng(1)
    euler = np.stack([np.pi + 0.1 * np.sin(np.arange(rows) * 0.37), np.full(rows, 0.4), np.full(rows, -1.1)], 1)
    euler = np.mod(euler + rng.normal(0, 1e-3, euler.shape) + np.pi, 2 * np.pi) - np.pi
    joints = np.repeat(rng.uniform(-3, 3, (rows // 20, 3)), 20, 0)  # targets that jump
    cache = robots.write(tmp_path / "cache", [{"state": (time, np.concatenate([euler, joints], 1))}])
    findings = [f for f in robocache.doctor(cache).findings if "wrap" in f.code]
    assert [f.code for f in findings] == ["angle-wrap"]
    assert findings[0].advice.splitlines()[1:] == ['streams."state".methods = [[0, 1, "angle"]]']


@pytest.mark.parametrize("span", [2 * math.pi, 360.0])
def test_numbers_that_span_a_turn_steadily_have_no_wraps(tmp_path, span):
    rng = np.random.default_rng(6)
    time = np.arange(2000) * 20_000_000
    columns = [
        rng.uniform(-span / 2, span / 2, 2000),
        span / 2 * np.sin(np.arange(2000) * 0.9),
        rng.normal(0, span / 8, 2000).clip(-span / 2, span / 2),
        rng.integers(0, 5, 2000) * span / 4 + rng.normal(0, 1e-3, 2000),
    ]
    cache = robots.write(tmp_path / "cache", [{"state": (time, np.stack(columns, 1))}])
    assert not robots.findings(robocache.doctor(cache), "angle-wrap", "spike", "step")


def test_jumps_in_every_episode_are_no_finding(clean, tmp_path):
    for streams in clean:
        streams["observation.state"][1][150:, 2] += 10
    assert robots.locations(robots.examine(tmp_path / "cache", clean)) == []


def test_a_sign_flip_of_a_quaternion_for_one_row_is_no_spike(tmp_path):
    half = np.linspace(0, 6, 2000)
    values = np.stack([np.sin(half), np.cos(half), np.sin(half), np.cos(half)], 1) / np.sqrt(2)
    values[300] *= -1
    time = np.arange(2000) * 20_000_000
    description = {"names": ["qx", "qy", "qz", "qw"]}
    report = robots.examine(tmp_path / "a", [{"turn": (time, values)}], describe={"turn": description})
    assert robots.findings(report, "quaternion-flip") and not robots.findings(report, "spike")
    values[900] = values[900, [1, 0, 3, 2]] * [1, -1, 1, -1]  # another rotation, of the same length
    report = robots.examine(tmp_path / "b", [{"turn": (time, values)}], describe={"turn": description})
    assert robots.findings(report, "spike")


def test_quaternions(rng, tmp_path):
    time = np.arange(400) * 20_000_000
    half = np.linspace(0, 1.5, 400)
    q = np.stack([np.zeros(400), np.zeros(400), np.sin(half), np.cos(half)], 1)
    q += rng.normal(0, 1e-5, q.shape)
    names = ["x", "y", "z", "ori_qx", "ori_qy", "ori_qz", "ori_qw"]
    values = np.concatenate([rng.normal(size=(400, 3)), q], 1)
    values[300:, 3:] *= -1
    values[123, 3:] *= 1.2
    report = robots.examine(tmp_path / "cache", [{"pose": (time, values)}], describe={"pose": {"names": names}})
    locations = [location for location in robots.locations(report) if location[0].startswith("q")]
    assert locations == [("quaternion-norm", 0, "pose", 123), ("quaternion-flip", 0, "pose", 300)]


def test_constant_and_absent_columns(clean, tmp_path):
    for streams in clean:
        streams["imu"][1][:, 2] = 9.81
        streams["observation.state"][1][:, 1] = np.nan
        streams["action"][1][:] = 0.5
    report = robots.examine(tmp_path / "cache", clean)
    assert [(f.severity, f.code, f.stream, f.count) for f in report.findings] == [
        ("warning", "constant", "action", 4),
        ("warning", "no-values", "observation.state", 1),
        ("note", "constant", "imu", 1),
    ]


def test_nan_beside_a_column_of_nothing_but_nan(tmp_path):
    values = np.arange(20.0).reshape(10, 2) ** 2
    values[:, 0] = values[5:7, 1] = np.nan
    report = robots.examine(tmp_path / "cache", [{"s": (np.arange(10) * SECOND, values)}])
    (finding,) = robots.findings(report, "nan")
    assert (finding.row, finding.count) == (5, 2)
    assert finding.message == "2 NaN values from this row on: feature 1"


def test_a_constant_column_with_nan_is_not_one_value_in_all_rows(tmp_path):
    values = np.full((10, 1), 3.0)
    values[4] = np.nan
    report = robots.examine(tmp_path / "cache", [{"s": (np.arange(10) * SECOND, values)}])
    (finding,) = robots.findings(report, "constant")
    assert finding.message == "one value in all rows where it is finite"


def test_columns_that_flicker(clean, rng, tmp_path):
    """The spread is too small for a normalisation; integers are not normalised."""
    for streams in clean:
        time, values = streams["imu"]
        values[:, 2] = 9.81 + 1e-6 * rng.normal(size=len(values))
        streams["button"] = (time, np.arange(len(time)) // (len(time) - 1))
    findings = [f for f in robots.examine(tmp_path / "cache", clean).findings if "constant" in f.code]
    assert [(f.severity, f.code, f.stream, f.count) for f in findings] == [("note", "near-constant", "imu", 1)]
    assert 0.9e-6 < findings[0].value < 1.1e-6 and "min_spread=0" in findings[0].advice


def test_a_nominal_clock_and_a_declared_rate(rng, tmp_path):
    time = np.arange(500) * 20_000_000
    values = np.cumsum(rng.normal(size=(500, 3)), 0)
    for fps, severity in ((50, None), (49, "warning"), (30, "error")):
        cache = robots.write(
            tmp_path / str(fps),
            [{"arm": (time, values)}],
            describe={"arm": {"clock": "nominal"}},
            provenance={"format": "lerobot", "lerobot": {"fps": fps}},
        )
        findings = [(f.severity, f.code, f.stream) for f in robocache.doctor(cache).findings]
        expected = [(severity, "rate-not-as-declared", "arm")] if severity else []
        assert findings == [*expected, ("note", "nominal-clock", "arm")]


@pytest.mark.parametrize(
    ("name", "rows", "expected"),
    [
        ("is_first", [0, 100], None),
        ("steps/is_first", [0, 40, 100, 130], (0, 40, 2)),
        ("is_last", [99, 149], None),
        ("is_last", [99, 120, 149], (1, 20, 1)),
        ("is_last", [], None),
        ("is_terminal", [7], None),
    ],
)
def test_an_episode_that_contains_others(name, rows, expected, rng, tmp_path):
    flags = np.zeros(150, bool)
    flags[rows] = True
    episodes = [
        {
            "arm": (np.arange(n) * 20_000_000, np.cumsum(rng.normal(size=(n, 3)), 0)),
            name: (np.arange(n) * 20_000_000, part),
        }
        for n, part in ((100, flags[:100]), (50, flags[100:]))
    ]
    report = robots.examine(tmp_path / "cache", episodes)
    inside = [(f.episode, f.row, f.count) for f in report.findings if f.code == "episode-within"]
    assert inside == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("stamps", "severity"),
    [
        (lambda k: k / 50, None),
        (lambda k: np.rint(k * 20).astype(np.int64), None),  # milliseconds
        (lambda k: k * 20_000_000 + 1_700_000_000_000_000_000, None),
        (lambda k: (k / 50)[:, None] + 1.7e9, None),
        (lambda k: k, None),  # a row counter
        (lambda k: k / 49, "warning"),
        (lambda k: np.rint(k * 1000 / 30).astype(np.int64), "error"),
        (lambda k: k / 25 + 1.7e9, "error"),
    ],
)
@pytest.mark.parametrize("name", ["obs/timestamp", "times"])
def test_stamps_beside_a_nominal_clock(stamps, severity, name, rng, tmp_path):
    k = np.arange(500)
    streams = {"arm": (k * 20_000_000, np.cumsum(rng.normal(size=(500, 3)), 0)), name: (k * 20_000_000, stamps(k))}
    cache = robots.write(tmp_path / "cache", [streams], describe={stream: {"clock": "nominal"} for stream in streams})
    findings = [(f.severity, f.code, f.stream) for f in robocache.doctor(cache).findings]
    expected = [(severity, "rate-not-as-declared", name)] if severity else []
    assert [finding for finding in findings if finding[1] not in ("nominal-clock", "stuck")] == expected


def test_stamps_beside_a_clock_that_does_not_advance(tmp_path):
    streams = {"timestamp": (np.zeros(50, np.int64), np.arange(50) / 30)}
    cache = robots.write(tmp_path / "cache", [streams], describe={"timestamp": {"clock": "nominal"}})
    assert not robots.findings(robocache.doctor(cache), "rate-not-as-declared")


def test_jitter_and_no_steady_rate(rng, tmp_path):
    n = 2000
    values = np.cumsum(rng.normal(size=(n, 3)), 0)
    jittery = (np.arange(n) * 10**7 + rng.uniform(-2e6, 2e6, n)).astype(np.int64)
    events = np.cumsum(rng.exponential(10**7, n)).astype(np.int64)
    cache = robots.write(tmp_path / "cache", [{"jittery": (jittery, values), "events": (events, values.copy() + 1)}])
    findings = {(f.severity, f.code, f.stream) for f in robocache.doctor(cache).findings}
    assert findings == {("note", "jitter", "jittery"), ("note", "no-steady-rate", "events")}


def test_frames_against_rows(rng, tmp_path):
    recordings = robots.make_recordings(rng)
    for streams in recordings:
        time, values = streams["top"]
        streams["state10"] = (time + 3_000_000, rng.normal(size=(len(time), 3)))
    time, values = recordings[2]["top"]
    recordings[2]["top"] = (np.delete(time, [20, 21, 40]), np.delete(values, [20, 21, 40], axis=0))
    locations = robots.locations(robots.examine(tmp_path / "cache", recordings))
    assert ("frame-count", 2, "top", None) in locations
    assert {code for code, *_ in locations} == {"frame-count", "gap"}


def test_a_sensor_of_nothing_but_nan_does_not_move(rng, tmp_path):
    time = np.arange(100) * SECOND // 20
    stuck = rng.normal(size=(100, 2))
    stuck[30:70] = stuck[30]
    streams = {"s": (time, stuck), "other": (time, np.full((100, 1), np.nan))}
    assert not robots.findings(robots.examine(tmp_path / "still", [streams]), "stuck")
    streams["other"] = (time, rng.normal(size=(100, 1)))
    assert robots.findings(robots.examine(tmp_path / "moving", [streams]), "stuck")


def test_splits_of_lerobot_that_share_episodes(clean, tmp_path):
    provenance = {"format": "lerobot", "lerobot": {"splits": {"train": "0:3", "val": "2:4"}}}
    metadata = [{"source_episode_index": number} for number in range(4)]
    report = robots.examine(tmp_path / "cache", clean, metadata, provenance=provenance)
    assert [(f.code, f.message) for f in report.findings] == [
        ("split-leak", "in both splits train and val: episodes 2")
    ]


def test_splits_with_equal_episodes(clean, tmp_path):
    recordings = robots.with_fault(clean, copy_episode)
    metadata = [{"split": name} for name in ("train", "train", "train", "val")]
    report = robots.examine(tmp_path / "cache", recordings, metadata)
    assert [(f.severity, f.code, f.episode) for f in report.findings] == [("error", "split-leak", 1)]
    report = robocache.doctor(tmp_path / "cache", splits={"train": [0, 1, 3], "validation": [2]})
    assert [(f.severity, f.code, f.episode) for f in report.findings] == [("warning", "repeated-episode", 1)]
    report = robocache.doctor(robots.write(tmp_path / "clean", clean), splits={"train": [0, 1], "validation": [1, 2]})
    assert [(f.severity, f.code, f.episode) for f in report.findings] == [("error", "split-leak", 1)]
    with pytest.raises(robocache.ArgumentError, match=r"splits\['train'\]: "):
        robocache.doctor(tmp_path / "clean", splits={"train": [0, 9]})


def test_episodes_that_differ_only_in_a_camera_are_no_copies(clean, tmp_path, rng):
    recordings = robots.with_fault(clean, copy_episode)
    time, values = recordings[3]["top"]
    recordings[3]["top"] = (time, rng.integers(0, 128, values.shape, np.uint8))
    assert robots.locations(robots.examine(tmp_path / "cache", recordings)) == []


def test_actions_equal_to_the_state(clean, tmp_path):
    for streams in clean:
        n = min(len(streams["action"][0]), len(streams["observation.state"][0]))
        time, values = streams["observation.state"]
        streams["observation.state"] = (time[:n], values[:n])
        streams["action"] = (time[:n], np.concatenate([values[1:n], values[n - 1 : n]]))
    report = robots.examine(tmp_path / "cache", clean)
    assert [(f.code, f.stream, f.value) for f in report.findings] == [("action-is-state", "action", 1)]


def test_an_episode_much_shorter_than_the_others(rng, tmp_path):
    recordings = [*robots.make_recordings(rng, 9, camera=False), robots.make_recording(rng, 1.0, camera=False)]
    report = robots.examine(tmp_path / "cache", recordings)
    assert [(f.code, f.episode) for f in report.findings] == [("episode-length", 9)]


STATISTICS = ("mean", "std", "min", "max", "q01", "q10", "q50", "q90", "q99", "count")  # the rows of stats.npy


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_that_contradict_the_values(name, clean, tmp_path):
    """Another program changed the values, and their checksum with them."""
    cache = robots.write(tmp_path / "cache", clean)
    path = cache / "streams" / "imu" / "stats.npy"
    stats = np.load(path)
    change = 1 if name == "count" else 0.01 * stats[STATISTICS.index("std"), 3]
    stats[STATISTICS.index(name), 3] += change
    np.save(path, stats)
    sign(cache, "streams/imu/stats.npy")
    report = robocache.doctor(cache)
    assert [(f.severity, f.code, f.stream) for f in report.findings] == [("error", "statistics", "imu")]
    assert f"stored {name} of feature 3 are not" in report.findings[0].message


@pytest.mark.parametrize("scale", [1e154, 1e200, 1e300, 1.7e308])
@pytest.mark.filterwarnings("error")
def test_statistics_of_numbers_whose_squares_overflow_are_no_finding(scale, rng, tmp_path):
    far = {"far": (np.arange(500) * 10**7, rng.uniform(-1, 1, (500, 2)) * scale)}
    assert not robots.findings(robots.examine(tmp_path / "cache", [far]), "statistics")


def test_the_lengths_of_gaps_and_bursts(clean, tmp_path):
    shift("imu", 1, 200, 25e6)(clean)
    shift("imu", 1, 600, 15e6)(clean)
    change_stamps("imu", 0, make_burst)(clean)
    time = clean[2]["imu"][0]
    time[500:504] = time[503] - np.arange(4)[::-1] * 100_000
    findings = {f.code: f for f in robots.examine(tmp_path / "cache", clean).findings}
    burst = findings["burst"]
    assert (burst.count, burst.value, burst.row, burst.end_row) == (2, 9, 300, 309)
    gaps = np.concatenate([np.diff(streams["imu"][0]) for streams in clean]) / 5e6
    assert findings["gap"].value == pytest.approx(5e6 * gaps.max())
    assert findings["gap"].count == np.count_nonzero(gaps > 1.5)


@pytest.mark.parametrize("moves", [True, False])
def test_episodes_at_rest_are_no_copies(moves, tmp_path):
    episode = {"state": (np.arange(50) * SECOND, np.arange(50.0) * moves)}
    findings = robots.examine(tmp_path / "cache", [episode, episode]).findings
    assert ("repeated-episode" in {f.code for f in findings}) == moves


def test_depth_with_nan_repeats(rng, tmp_path):
    depth = rng.random((10, 8, 8, 1)).astype(np.float32)
    depth[:, 0, 0] = np.nan
    time = np.arange(10) * SECOND
    with robocache.Writer(tmp_path / "cache") as writer:
        for _ in range(2):
            with writer.episode() as episode:
                episode.append("depth", time, depth, codec="raw")
                episode.append("state", time, np.arange(10.0) ** 2)
    assert robots.findings(robocache.doctor(tmp_path / "cache"), "repeated-episode")


@pytest.mark.parametrize("codec", ["raw", "png"])
def test_frozen_frames_are_counted_exactly(codec, rng, tmp_path, monkeypatch):
    """Ten equal frames in a row are reported; nine are not, and a run ends with its episode. The comparison reads small blocks.
    A camera that ends in black is not blank."""
    frames = rng.integers(0, 256, (200, 20, 40, 3), np.uint8)
    for rows in (slice(5, 15), slice(30, 39), slice(94, 106), slice(188, 200)):
        frames[rows] = frames[rows.start]
    frames[0, 0, 0], frames[188:] = 0, 0
    monkeypatch.setattr(cameras, "_BYTES", 1000)
    with robocache.Writer(tmp_path / "cache") as writer:
        for part in (frames[:100], frames[100:]):
            with writer.episode() as episode:
                episode.append("top", np.arange(100) * SECOND // 5, part, codec=codec)
    findings = robots.findings(robocache.doctor(tmp_path / "cache"), "frozen-frames")
    assert [(f.episode, f.row, f.end_row) for f in findings] == [(0, 5, 15), (1, 88, 100)]


def test_a_fault_in_many_episodes_names_some_and_counts_the_rest(rng, tmp_path):
    recordings = robots.make_recordings(rng, 60, camera=False)
    for streams in recordings:
        streams["imu"][1][5, 0] = np.nan
    report = robots.examine(tmp_path / "cache", recordings)
    assert (len(report.findings), report.more, report.counts["error"]) == (50, {"nan": 10}, 60)


def test_pictures_stored_as_numbers_are_a_note(rng, tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        for name, shape in {"top": (16, 20, 3), "touch": (16, 15, 1), "table": (16, 20, 4)}.items():
            episode.append(name, np.arange(30) * SECOND, rng.integers(0, 256, (30, *shape), np.uint8))
        episode.append("camera", np.arange(30) * SECOND, rng.integers(0, 256, (30, 16, 20, 3), np.uint8), codec="png")
    report = robocache.doctor(tmp_path / "cache")
    assert [(f.severity, f.code, f.stream) for f in report.findings] == [("note", "pictures-as-numbers", "top")]


def test_missing_text_in_an_episode_is_a_note(clean, tmp_path):
    for streams in clean[1:]:
        streams["note"] = (streams["imu"][0][:1], ["grasp"])
    report = robots.examine(tmp_path / "cache", clean)
    (finding,) = report.findings
    assert (finding.severity, finding.code, finding.episode, finding.stream) == ("note", "missing-stream", 0, "note")
    assert "batch" not in finding.advice


def test_a_fault_of_a_shared_clock_is_one_finding(clean, tmp_path, rng):
    shift("imu", 1, 200, 25e6)(clean)
    for streams in clean:
        streams["wrench"] = (streams["imu"][0], rng.normal(size=(len(streams["imu"][0]), 6)))
    del clean[3]["imu"], clean[3]["wrench"]
    report = robots.examine(tmp_path / "cache", clean)
    assert [(f.code, f.episode, f.stream) for f in report.findings] == [("missing-stream", 3, "imu"), ("gap", 1, "imu")]
    assert all(f.message.endswith("; wrench on the same clock") for f in report.findings)


@pytest.mark.parametrize("limits", [[-8, 8], [[-9, -8, -9, -9], 8]])
def test_out_of_limits(limits, clean, tmp_path):
    clean[2]["observation.state"][1][33:35, 1] = -8.5
    describe = {"observation.state": {"attributes": {"limits": limits}}}
    report = robots.examine(tmp_path / "cache", clean, describe=describe)
    findings = robots.findings(report, "out-of-limits")
    assert [(f.episode, f.stream, f.row, f.count, f.value) for f in findings] == [
        (2, "observation.state", 33, 2, pytest.approx(0.5))
    ]
    clean[2]["observation.state"][1][33:35, 1] = -8
    assert "out-of-limits" not in str(robots.locations(robots.examine(tmp_path / "b", clean, describe=describe)))


@pytest.mark.parametrize("limits", ["none", [[-9, -9], [9, 9]], [1, 2, 3], {"low": -9, "high": 9}, []])
def test_invalid_limits_are_a_finding(limits, clean, tmp_path):
    describe = {"observation.state": {"attributes": {"limits": limits}}}
    report = robots.examine(tmp_path / "cache", clean, describe=describe)
    (finding,) = robots.findings(report, "out-of-limits")
    assert (finding.severity, finding.stream) == ("warning", "observation.state")
    assert "a list of 4" in finding.advice


def test_declared_methods_mark_quaternions(rng, tmp_path):
    time = np.arange(400) * 20_000_000
    q = np.cumsum(rng.normal(0, 0.01, (400, 7)), 0) + 1
    q[:, 3:] /= np.linalg.norm(q[:, 3:], axis=1, keepdims=True)
    for method, values in (("pose", q), ("slerp", q[:, 3:])):
        methods = {"attributes": {"methods": [[0, values.shape[1], method]]}}
        changed = values.copy()
        changed[200] *= 0.9
        cache = robots.write(tmp_path / method, [{"tool": (time, changed)}], describe={"tool": methods})
        assert ("quaternion-norm", 0, "tool", 200) in robots.locations(robocache.doctor(cache))


def test_text_and_clouds_are_not_checked_for_delays(rng, clean, tmp_path):
    """Text may be irregular. Clouds are checked for their clock and for empty rows."""
    cache = tmp_path / "cache"
    with robocache.Writer(cache) as writer:
        for number, streams in enumerate(clean):
            with writer.episode() as episode:
                for name, (time, values) in streams.items():
                    if name != "top":
                        episode.append(name, time, values)
                time = streams["top"][0]
                episode.append("instruction", time[30:31], ["pick the cup"])
                sizes = np.full(len(time), 7)
                if number == 2:
                    sizes[20] = 0
                offsets = np.concatenate([[0], np.cumsum(sizes)])
                episode.append("cloud", time, rng.normal(size=(offsets[-1], 3)), offsets=offsets)
    assert robots.locations(robocache.doctor(cache)) == [("empty-rows", 2, "cloud", 20)]


def test_a_frame_that_does_not_decode(clean, tmp_path):
    clean[-1]["top"][1][-1] = 0  # another of the 24 frames is blank
    cache = robots.write(tmp_path / "cache", clean)
    stream = robocache.open(cache).streams["top"]
    offset = int(stream.values.offsets[0])
    path = cache / "streams" / "top" / "values.npy"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - int(stream.values.offsets[-1]) + offset + 40)
        file.write(b"\0" * 20)
    report = robocache.doctor(cache)
    undecodable, blank = report.findings
    assert (undecodable.severity, *robots.locations(report)[0]) == ("error", "undecodable-frame", 0, "top", 0)
    assert blank.message == "1 of 23 decoded frames show only black"


@pytest.mark.parametrize(("metres", "colour"), [(2.0, "one colour"), (0.0, "black")])
def test_blank_depth(metres, colour, tmp_path):
    frames = np.full((50, 16, 16), metres, np.float32)
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("depth", np.arange(50) * SECOND // 10, frames, codec="raw")
    (finding,) = robots.findings(robocache.doctor(tmp_path / "cache"), "blank-frames")
    assert finding.message == f"24 of 24 decoded frames show only {colour}"


def test_equal_rows_at_an_end_and_the_next_begin_are_no_repetition(clean, tmp_path):
    delay = clean[1]["imu"][0][-1] + 60 * SECOND - clean[2]["imu"][0][0]
    for time, _ in clean[2].values():
        time += delay
    row, frame = clean[1]["imu"][1][-1].copy(), clean[1]["top"][1][-1].copy()
    clean[1]["imu"][1][-15:], clean[2]["imu"][1][:15] = row, row
    clean[1]["top"][1][-6:], clean[2]["top"][1][:6] = frame, frame
    codes = {code for code, *_ in robots.locations(robots.examine(tmp_path / "cache", clean))}
    assert codes <= {"step"}  # the step to that row


@pytest.mark.parametrize("clock, expected", [("recorded", []), ("nominal", [("frame-count", 0, "top", None)])])
def test_one_frame_less(clock, expected, rng, tmp_path):
    """The numbers of rows may differ by one between two clocks, but not on one clock."""
    time = np.arange(60) * 10**8
    streams = {
        "state": (time, np.cumsum(rng.normal(size=(60, 3)), 0)),
        "top": (time[:-1], rng.integers(0, 256, (59, 8, 8, 3), np.uint8)),
    }
    cache = robots.write(tmp_path / "cache", [streams], describe={name: {"clock": clock} for name in streams})
    locations = robots.locations(robocache.doctor(cache))
    assert [location for location in locations if location[0] != "nominal-clock"] == expected


@pytest.mark.parametrize("declared", [False, True])
def test_rule_47_numbers_without_a_text_and_texts_without_a_time(declared, tmp_path):
    time = np.arange(4) * 10**8
    with robocache.Writer(tmp_path / "cache") as writer:
        for columns, numbers in (
            ({"tasks": ["a", "b"]}, None),
            ({"tasks": ["a"]}, [0, 1, 5, 5]),
            ({"tasks": ["a", "b"]}, [0, -1, 6, 0]),
        ):
            with writer.episode(**columns) as episode:
                episode.append("state", time, np.arange(4.0))
                if numbers:
                    episode.append("goal", time, np.array(numbers))
        writer.stream("goal", attributes={"texts": "mine", "task": declared})
        writer.provenance["mine"] = {"0": "a", "1": "b"}
    findings = {f.code: f for f in robocache.doctor(tmp_path / "cache", save=False).findings}
    unknown, ambiguous = findings["unknown-task"], findings["task-without-time"]
    severity = "error" if declared else "warning"
    assert (unknown.severity, unknown.stream, unknown.count) == (severity, "goal", 3)
    assert (unknown.episode, unknown.row) == (1, 2)
    assert unknown.message == "5-6 have no text: 3 rows of 2 episodes, 1-2"
    assert (ambiguous.severity, ambiguous.episode, ambiguous.count) == ("warning", 0, 1 if declared else 2)


# ---- the recorder's stalls -------------------------------------------------------------------------------------------


def pause(recordings, episode, at_s, seconds, streams=None):
    """Deletes the rows of `seconds` from at_s on, in all streams or in `streams`."""
    begin = min(int(time[0]) for time, _ in recordings[episode].values()) + int(at_s * SECOND)
    for name in streams or recordings[episode]:
        time, values = recordings[episode][name]
        is_outside = (time <= begin) | (time >= begin + int(seconds * SECOND))
        recordings[episode][name] = (time[is_outside], values[is_outside])


def test_a_stall_of_all_streams_is_one_finding(clean, tmp_path):
    pause(clean, 1, 2.0, 1.5)
    pause(clean, 1, 4.2, 0.4)
    pause(clean, 3, 3.0, 1.3)
    report = robots.examine(tmp_path / "cache", clean)
    assert {finding.code for finding in report.findings} == {"stall"}
    assert [(f.severity, f.episode, f.stream) for f in report.findings] == [("warning", e, None) for e in (1, 1, 3)]
    lengths = sorted(finding.value / SECOND for finding in report.findings)
    assert lengths == pytest.approx([0.4, 1.3, 1.5], abs=0.15)
    assert all("imu" in finding.message and "action" in finding.message for finding in report.findings)


def test_gaps_of_some_streams_are_findings_of_each_stream(clean, tmp_path):
    pause(clean, 1, 2.0, 1.5)
    pause(clean, 2, 2.0, 1.0, ["imu"])
    pause(clean, 3, 2.0, 0.5, ["imu", "action"])  # other streams have rows meanwhile
    findings = {
        (code, episode, stream) for code, episode, stream, _ in robots.locations(robots.examine(tmp_path / "c", clean))
    }
    assert findings == {("stall", 1, None), ("long-gap", 2, "imu"), ("long-gap", 3, "imu"), ("long-gap", 3, "action")}


def test_a_gap_of_the_only_stream_is_no_stall(clean, tmp_path):
    alone = [{"imu": streams["imu"]} for streams in clean]
    pause(alone, 1, 2.0, 1.0)
    report = robots.examine(tmp_path / "cache", alone)
    assert {finding.code for finding in report.findings} == {"long-gap"}


# ---- simulation time -------------------------------------------------------------------------------------------------


def test_simulation_time_beside_wall_time_is_one_error(clean, tmp_path):
    for streams in clean:
        for name in ("imu", "action"):
            time, values = streams[name]
            streams[name] = (time - time[0] + SECOND // 2, values)
    report = robots.examine(tmp_path / "cache", clean)
    (finding,) = report.findings
    assert (finding.severity, finding.code, finding.count) == ("error", "simulation-time", 2)
    assert "imu" in finding.message and "action" in finding.message and "use_sim_time" in finding.message


@pytest.mark.parametrize("format", ["mcap", "rosbag1", "rosbag2", "csv", None])
def test_simulation_time_alone_is_a_note_for_bags(format, clean, tmp_path):
    for streams in clean:
        begin = min(int(time[0]) for time, _ in streams.values())
        for name, (time, values) in streams.items():
            streams[name] = (time - begin, values)
    report = robocache.doctor(
        robots.write(tmp_path / "cache", clean, provenance={"format": format} if format else None)
    )
    expected = [("note", "simulation-time")] if format in ("mcap", "rosbag1", "rosbag2") else []
    assert [(f.severity, f.code) for f in report.findings] == expected


# ---- covariances, and rows that occur once ---------------------------------------------------------------------------


def test_covariances_and_single_rows_are_no_warnings(clean, rng, tmp_path):
    for number, streams in enumerate(clean):
        time, _ = streams["imu"]
        covariance = np.zeros((len(time), 9), np.float32)
        covariance[:, ::4] = 0.01
        covariance[150, ::4] = 40  # a filter was reset
        covariance[300:, ::4] = 3
        streams["/imu/orientation_covariance"] = (time, covariance)
        streams["/odom/still_covariance"] = (time, np.full((len(time), 36), 0.1))
        streams["/camera_info"] = (time[:1], np.full((1, 9), 525.0))
        if number:
            streams["/tf_static"] = (time[:1], np.tile(np.float64([0, 0, 1, 0, 0, 0, 1]), (1, 1)))
    report = robots.examine(tmp_path / "cache", clean)
    assert report.counts["error"] == report.counts["warning"] == 0, report.findings


# ---- rotations that are not declared ---------------------------------------------------------------------------------


def smooth_quaternions(rng, rows, flips=()):
    """Returns unit quaternions of a smooth motion, xyzw. All rows from each of `flips` on change their sign."""
    quaternions = Rotation.from_rotvec(np.cumsum(rng.normal(0, 0.02, (rows, 3)), axis=0)).as_quat()
    for row in flips:
        quaternions[row:] *= -1
    return quaternions


@pytest.mark.parametrize(("name", "w_is_first"), [("q{}", True), ("q[{}]", True), ("att_q_{}", True), ("v{}", False)])
def test_numbered_components_are_suggested_as_wxyz(name, w_is_first, rng, tmp_path):
    names = [name.format(k) for k in range(4)]
    described = {"turn": {"names": names}}
    time = np.arange(200) * 20_000_000
    cache = robots.write(tmp_path / "cache", [{"turn": (time, smooth_quaternions(rng, 200))}], describe=described)
    findings = robots.findings(robocache.doctor(cache), "quaternion-without-method")
    assert len(findings) == 1 and ("the first is w in most sources" in findings[0].advice) == w_is_first


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_undeclared_quaternions_are_named_with_a_mapping(dtype, rng, tmp_path):
    rows, base = 200, 1_700_000_000
    table = rng.normal(size=(rows, 15))
    table[:, 3:7] = smooth_quaternions(rng, rows, flips=(50, 120))
    table[:, 8:12] = smooth_quaternions(rng, rows)
    names = [f"v{number}" for number in range(15)]
    source = tmp_path / "logs"
    source.mkdir()
    lines = [",".join(["t_s", *names])]
    lines += [",".join([f"{base + row / 50:.9f}", *map(str, values.astype(dtype))]) for row, values in enumerate(table)]
    (source / 'odd "name".csv').write_text("\n".join(lines))
    robocache.ingest(source, tmp_path / "before")
    (finding,) = robots.findings(robocache.doctor(tmp_path / "before"), "quaternion-without-method")
    assert (finding.severity, finding.stream, finding.count, finding.value) == ("warning", 'odd "name"', 2, 2)
    assert all(part in finding.message for part in ("v3, v4, v5, v6", "v8, v9, v10, v11", "2 times"))
    _, line = finding.advice.splitlines()
    (tmp_path / "mapping.toml").write_text(line + "\n")
    robocache.ingest(source, tmp_path / "after", mapping=tmp_path / "mapping.toml")
    after = robocache.open(tmp_path / "after").streams['odd "name"']
    assert after.attributes["methods"] == [[3, 7, "slerp"], [8, 12, "slerp"]]
    assert not robots.findings(robocache.doctor(tmp_path / "after"), "quaternion-without-method")
    # Halfway between two rows the value is the rotation halfway, also where the sign changes.
    loader = loader_by_keywords(
        robocache.open(tmp_path / "after"),
        batch_size=rows - 1,
        delta_timestamps={'odd "name"': [0.01]},
        edges="drop",
        shuffle=False,
        device="cpu",
        framework="numpy",
        dtype="float64",
    )
    got = next(iter(loader))['odd "name"'][:, 0, 3:7]
    rotations = Rotation.from_quat(table[:, 3:7])
    halfway = rotations[:-1] * Rotation.from_rotvec((rotations[:-1].inv() * rotations[1:]).as_rotvec() / 2)
    assert (Rotation.from_quat(got).inv() * halfway).magnitude().max() < 1e-3


def test_unit_vectors_that_are_no_rotations(rng, tmp_path):
    rows = 100
    one_hot = np.eye(4)[rng.integers(0, 4, rows)]
    still = np.tile([0.5, 0.5, 0.5, 0.5], (rows, 1))
    nearly = smooth_quaternions(rng, rows) * 1.01
    one_off = smooth_quaternions(rng, rows)
    one_off[70] *= 1.002
    integers = one_hot.astype(np.int64)
    streams = {"one_hot": one_hot, "still": still, "nearly": nearly, "one_off": one_off, "integers": integers}
    streams |= {name: smooth_quaternions(rng, 10 if name == "few" else rows) for name in ("known", "held", "few")}
    streams["pose"] = np.hstack([rng.normal(size=(rows, 3)), smooth_quaternions(rng, rows)])
    methods = {"known": [0, 4, "slerp"], "pose": [0, 7, "pose"], "held": [0, 4, "previous"]}
    describe = {name: {"attributes": {"methods": [method]}} for name, method in methods.items()}
    episode = {name: (np.arange(len(values)) * 10**7, values) for name, values in streams.items()}
    report = robots.examine(tmp_path / "cache", [episode], describe=describe)
    assert not robots.findings(report, "quaternion-without-method")


@pytest.mark.parametrize("shape", [(3, 3), (3, 4), (4, 4), (2, 4, 4)])
def test_undeclared_matrices_are_named_with_a_mapping(shape, rng, tmp_path):
    rows = 50
    turns = rng.normal(size=(rows, *shape))
    turns[..., :3, :3] = (
        Rotation.from_rotvec(rng.normal(size=(rows * math.prod(shape[:-2]), 3)))
        .as_matrix()
        .reshape(rows, *shape[:-2], 3, 3)
    )
    one_off = turns.copy()
    one_off[30, ..., 0, 0] += 0.01
    streams = {"at": turns, "held": turns, "one_off": one_off, "still": np.broadcast_to(turns[0], turns.shape)}
    episode = {name: (np.arange(rows) * 10**7, values) for name, values in streams.items()}
    held = {"attributes": {"methods": [[0, math.prod(shape), "previous"]]}}
    report = robots.examine(tmp_path / "cache", [episode], describe={"held": held})
    findings = [f for f in report.findings if "without-method" in f.code]
    assert [(f.code, f.stream) for f in findings] == [("matrix-without-method", "at")]
    assert findings[0].advice.endswith(f'streams."at".methods = [[0, {math.prod(shape)}, "previous"]]')


def test_mirrored_matrices_are_no_rotations(rng, tmp_path):
    mirrored = Rotation.from_rotvec(rng.normal(size=(50, 3))).as_matrix() * [1, 1, -1]
    report = robots.examine(tmp_path / "cache", [{"m": (np.arange(50) * 10**7, mirrored)}])
    assert not robots.findings(report, "matrix-without-method")


def test_large_turns_are_no_changes_of_sign(tmp_path):
    half = np.radians(np.where(np.arange(50) % 2, 100, 0))  # the products of neighbours are cos(100 degrees), -0.17
    turns = np.stack([0 * half, 0 * half, np.sin(half), np.cos(half)], axis=1)
    report = robots.examine(tmp_path / "cache", [{"s": (np.arange(50) * 10**7, turns)}])
    (finding,) = robots.findings(report, "quaternion-without-method")
    assert finding.value == 0 and "sign" not in finding.message


def test_the_suggested_mapping_keeps_the_streams_other_methods(rng, tmp_path):
    poses = [
        np.hstack([rng.normal(size=(90, 3)), smooth_quaternions(rng, 90), rng.normal(size=(90, 1))]) for _ in range(2)
    ]
    methods = {"attributes": {"methods": [[0, 3, "pchip"], [7, 8, "previous"]]}}
    episodes = [{"tool": (np.arange(90) * 10**7, values)} for values in poses]
    report = robots.examine(tmp_path / "cache", episodes, describe={"tool": methods})
    (finding,) = robots.findings(report, "quaternion-without-method")
    assert finding.advice.endswith('[[0, 3, "pchip"], [3, 7, "slerp"], [7, 8, "previous"]]') and finding.value == 0


@pytest.mark.parametrize("names", [None, ["x", "y", "z", "a.x", "a.y", "a.z", "a.w", "grip"]])
def test_the_rotation_is_named_among_overlapping_unit_blocks(names, rng, tmp_path):
    """A gripper points down: w is near 0, and z too, so the features z, qx, qy, qz also have nearly unit length."""
    axis = np.array([-0.6, 0.34, -0.7]) / np.linalg.norm([-0.6, 0.34, -0.7])
    angles = np.pi + 0.03 * np.sin(np.arange(90) * 0.9)
    quaternions = np.hstack([np.sin(angles / 2)[:, None] * axis, np.cos(angles / 2)[:, None]])
    values = np.hstack([rng.normal(size=(90, 3)) * 0.005, quaternions, np.full((90, 1), 0.02)])
    episode = {"tool": (np.arange(90) * 10**7, values)}
    report = robots.examine(tmp_path / "cache", [episode], describe={"tool": {"names": names}})
    (finding,) = robots.findings(report, "quaternion-without-method")
    assert finding.advice.endswith('[[3, 7, "slerp"]]')


# ---- a source's own statistics ---------------------------------------------------------------------------------------


def statistics_findings(folder, rows, stats, episodes_stats=None):
    """Returns the findings on a cache of these rows that names a LeRobot dataset with these statistics as its source."""
    (folder / "set/meta").mkdir(parents=True)
    (folder / "set/meta/stats.json").write_text(json.dumps({"state": stats}))
    if episodes_stats is not None:
        line = {"episode_index": 0, "stats": {"state": episodes_stats}}
        (folder / "set/meta/episodes_stats.jsonl").write_text(json.dumps(line) + "\n")
    with robocache.Writer(folder / "cache") as writer:
        writer.provenance.update(source=str(folder / "set"), format="lerobot")
        with writer.episode(source_episode_index=0) as episode:
            episode.append("state", np.arange(len(rows)) * 10**7, rows)
    return robots.findings(robocache.doctor(folder / "cache"), "source-statistics")


def statistics_in_float32(rows):
    """Returns statistics summed in float32, row by row, and rounded to a few digits."""
    rows = rows.astype(np.float32)
    total, squares = (
        np.add.accumulate(x, axis=0, dtype=np.float32)[-1] / np.float32(len(rows)) for x in (rows, rows * rows)
    )
    std = np.sqrt(np.maximum(squares - total * total, 0))
    stats = {"mean": total, "std": std, "min": rows.min(0), "max": rows.max(0)}
    return {name: [float(f"{value:.6g}") for value in np.atleast_1d(values)] for name, values in stats.items()}


@pytest.mark.parametrize("value", [1.5771, -0.5, 1234.567, 1e-3, 525.3333, -3e5])
@pytest.mark.parametrize("rows", [60, 30_000])
@pytest.mark.parametrize("is_still", [True, False])
def test_rounding_in_float32_is_no_finding(value, rows, is_still, rng, tmp_path):
    table = np.full((rows, 2), value)
    if not is_still:
        table[:, 1] += rng.normal(size=rows) * abs(value) * 1e-4
    stats = statistics_in_float32(table)
    assert statistics_findings(tmp_path, table, stats, stats) == []


@pytest.mark.parametrize("key", ["mean", "std", "min", "max"])
@pytest.mark.parametrize("is_still", [True, False])
def test_statistics_of_other_rows_are_a_finding(key, is_still, rng, tmp_path):
    table = np.full((500, 2), 1.5771) + (0 if is_still else rng.normal(size=(500, 2)))
    stats = {name: getattr(np, name)(table, axis=0).tolist() for name in ("mean", "std", "min", "max")}
    wrong = stats | {key: [stats[key][0], stats[key][1] + 0.05]}
    (finding,) = statistics_findings(tmp_path / "whole", table, wrong)
    assert (finding.severity, finding.stream, finding.episode) == ("warning", "state", None)
    (finding,) = statistics_findings(tmp_path / "episode", table, stats, wrong)
    assert (finding.severity, finding.stream, finding.episode) == ("warning", "state", 0)


@pytest.mark.filterwarnings("error")
def test_statistics_that_count_infinities_are_a_finding(rng, tmp_path):
    """Statistics without the infinities are no finding."""
    table = rng.normal(size=(60, 2))
    table[7, 1], table[9, 0] = np.inf, np.nan
    finite = np.where(np.isfinite(table), table, np.nan)
    without_inf = {name: getattr(np, f"nan{name}")(finite, axis=0).tolist() for name in ("mean", "std", "min", "max")}
    assert statistics_findings(tmp_path / "out", table, without_inf, without_inf) == []
    with_inf = without_inf | {"mean": [without_inf["mean"][0], math.inf], "max": [without_inf["max"][0], math.inf]}
    for file, stored in (("stats.json", (with_inf, without_inf)), ("episodes_stats.jsonl", (without_inf, with_inf))):
        (finding,) = statistics_findings(tmp_path / file, table, *stored)
        assert f"mean of feature 1 is inf in {file}" in finding.message
        assert finding.expected == pytest.approx(without_inf["mean"][1], rel=1e-12)


@pytest.mark.parametrize("odd", [None, 5, "x", [], [[1, [2]]], {"a": 1}, [None, None], ["x", "y"], [1e999, -1e999]])
@pytest.mark.filterwarnings("error")
def test_statistics_of_another_form_are_ignored(odd, rng, tmp_path):
    statistics_findings(tmp_path, rng.normal(size=(60, 2)), {"mean": odd, "std": odd, "count": odd}, odd)
    (tmp_path / "set/meta/episodes_stats.jsonl").write_text(
        json.dumps({"episode_index": odd, "stats": odd}) + "\n[]\n5\n"
    )
    robocache.doctor(tmp_path / "cache")
