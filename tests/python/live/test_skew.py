"""Compares a policy's values with training's, on recordings with a planted delay."""

import io
import json

import numpy as np
import PIL.Image
import pytest
from robocache.cli import main

import robocache
from robocache import Window, live

MS = 1_000_000
NS = 1000 * MS
# The stamps of both streams, in ns.
JOINT = NS + np.arange(1, 1500) * 2 * MS
FRONT = NS + (np.arange(1, 91) * 1e9 / 30).astype(np.int64)
PIXELS = [np.full((8, 8, 3), i, np.uint8) for i in range(len(FRONT))]


def joints(stamps):
    return np.sin(np.outer(stamps / 1e9, [3.0, 7.0])).astype(np.float32)


def png(pixels):
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    path = tmp_path_factory.mktemp("training")
    with robocache.Writer(path / "cache") as writer, writer.episode() as episode:
        episode.append("observation.state", JOINT, joints(JOINT))
        episode.append("front", FRONT, np.stack(PIXELS), codec="png")
        episode.append("action", JOINT, joints(JOINT))
    windows = {
        "joint": Window([-0.02, 0.0], stream="observation.state", normalize="mean_std"),
        "front": Window([-0.1, 0.0], images=robocache.ImageOptions(size=(4, 4))),
        "action": Window([0.0, 0.02], convert=[robocache.actions.Relative("joints")], base="joint"),
    }
    loader = robocache.Loader(robocache.open(path / "cache"), batch_size=4, delta_timestamps=windows, device="cpu")
    loader.save_spec(path / "spec.json")
    return path / "spec.json"


def run(
    path,
    spec,
    ask,
    *,
    delay_ms,
    joint_delay_ms=0,
    is_sent=None,
    jitter_ms=1.0,
    lateness_ms=3.0,
    episodes=1,
    has_moments=True,
    ahead_ns=0,
    on_duplicate="keep",
):
    """Records a robot whose frames arrive late. Its policy asks for the moment that `ask(aligner, now)` returns."""
    rng = np.random.default_rng(0)
    for number in range(episodes):
        rings = {
            "joint": live.Ring((2,), "float32", span_s=100, lateness_s=lateness_ms / 1e3),
            "front": live.Ring((8, 8, 3), "uint8", span_s=100, codec="png", on_duplicate=on_duplicate),
        }
        aligner = live.Aligner(spec, rings, outputs=["action"], framework="numpy")
        # (now, kind, index): kind 0 is a row of the joint, 1 a frame of front, 2 a call of the policy.
        events = [
            (int(stamp + joint_delay_ms * MS + rng.uniform(0, jitter_ms * MS)), 0, i) for i, stamp in enumerate(JOINT)
        ]
        events += [(int(stamp + delay_ms * MS), 1, i) for i, stamp in enumerate(FRONT) if is_sent is None or is_sent[i]]
        events += [(int(now), 2, 0) for now in np.arange(NS + 200 * MS, JOINT[-1], 17 * MS)]
        state = joints(JOINT)
        with live.Recorder(rings, path, episode={"number": number}, append=number > 0) as recorder:
            for now, kind, i in sorted(events):
                if kind == 2 and has_moments:
                    recorder.saw(ask(aligner, now), now_ns=now + ahead_ns)
                elif kind == 0:
                    rings["joint"].push(int(JOINT[i]), state[i], arrival_ns=now)
                elif kind == 1:
                    rings["front"].push(int(FRONT[i]), png(PIXELS[i]), arrival_ns=now)


def ask_for_now(aligner, now):
    return now


def ask_for_the_frontier(aligner, now):
    return int(aligner.latest()["time_ns"][0])


@pytest.mark.parametrize("has_moments", [True, False])
def test_a_planted_delay_of_a_camera_is_named(tmp_path, spec, has_moments, capsys):
    path = tmp_path / "recorded"
    run(path, spec, ask_for_now, delay_ms=30, episodes=2, has_moments=has_moments)
    report = live.skew(path, spec)
    assert next(iter(report.keys)) == "front" and report.outputs == ["action"]
    front, joint = report.keys["front"], report.keys["joint"]
    assert front.camera and front.delay_ms == front.longest_delay_ms == 30
    assert abs(front.older_ms - 30) < 1.5 and abs(front.oldest_ms - 33.3) < 0.1
    assert report.moments == ("recorded" if has_moments else "now") and report.behind_ms == 0
    assert 0 < joint.older_ms < 1.5 and joint.delay_ms < 1
    # The expected number, from stamps: the moments at which training has a frame that had not reached the policy.
    moments = robocache.open(path)["policy.moment_ns"].values if has_moments else None
    if has_moments:
        moments = moments[moments <= min(JOINT[-2], FRONT[-1] - 1)]
        arrived = np.searchsorted(FRONT + 30 * MS, moments, "right")
        differ = (np.searchsorted(FRONT, moments, "right") != arrived).sum()
        assert front.windows == len(moments) and abs(front.differ - differ) <= differ // 50
        assert sum(span.windows for span in front.spans) == front.differ
        assert {span.episode for span in front.spans} == {0, 1}
    assert main(["skew", str(path), str(spec)]) == 0
    text = capsys.readouterr().out
    assert (
        f"camera front: what the policy saw was {front.older_ms:.1f} ms older" in text
        and "its rows come 30.0 ms after their stamps" in text
    )
    assert text.index("camera front") < text.index("stream joint")
    assert main(["skew", str(path), str(spec), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(report.to_dict()))


@pytest.mark.parametrize("on_duplicate", ["keep", "refuse"])
def test_at_the_frontier_windows_agree_and_the_delay_is_named(tmp_path, spec, on_duplicate):
    run(tmp_path / "recorded", spec, ask_for_the_frontier, delay_ms=30, on_duplicate=on_duplicate)
    report = live.skew(tmp_path / "recorded", spec)
    assert report.compared > 150 and report.left_out == 0 and 31 < report.behind_ms < 70
    moments = np.asarray(robocache.open(tmp_path / "recorded")["policy.moment_ns"].values).reshape(-1)
    assert np.isin(moments, FRONT).all() == (on_duplicate == "refuse")  # the newest frame needs no later one
    assert all(key.not_settled == 0 for key in report.keys.values())
    assert [key.differ for key in report.keys.values()] == [0, 0] and list(report.keys) == ["front", "joint"]
    assert "camera front" in str(report) and "its rows come 30.0 ms" in str(report) and "none differs" in str(report)


def test_without_a_delay_frames_equal_trainings(tmp_path, spec):
    run(tmp_path / "recorded", spec, ask_for_now, delay_ms=0)
    report = live.skew(tmp_path / "recorded", spec)
    assert report.keys["front"].differ == 0 and report.keys["front"].older_ms == 0
    assert report.keys["joint"].differ > 150 and "stream joint: what the policy saw" in str(report)


def test_stamps_ahead_of_their_rows_are_named(tmp_path, spec):
    run(tmp_path / "recorded", spec, ask_for_now, delay_ms=-30)
    report = live.skew(tmp_path / "recorded", spec)
    assert report.keys["front"].delay_ms == -30 and report.keys["front"].differ == 0
    assert (
        "its rows come 30.0 ms before their stamps: its clock is ahead of that of the arrivals (median; -30.0 ms at 99 %)"
        in str(report)
    )


def test_dropped_frames_are_no_delay(tmp_path, spec):
    """Training on the recording lacks these frames too."""
    is_sent = np.random.default_rng(1).random(len(FRONT)) < 0.6
    run(tmp_path / "recorded", spec, ask_for_now, delay_ms=0, is_sent=is_sent)
    front = live.skew(tmp_path / "recorded", spec).keys["front"]
    assert (front.differ, front.older_ms, front.delay_ms) == (0, 0, 0) and front.windows > 100


def test_two_delays_are_named(tmp_path, spec):
    run(tmp_path / "recorded", spec, ask_for_now, delay_ms=30, joint_delay_ms=50)
    report = live.skew(tmp_path / "recorded", spec)
    assert list(report.keys) == ["joint", "front"]
    assert 50 < report.keys["joint"].older_ms < 52 and abs(report.keys["front"].older_ms - 30) < 1.5
    assert abs(report.keys["joint"].delay_ms - 50.5) < 0.5 and report.keys["front"].delay_ms == 30


def test_rows_that_arrive_too_late_are_named(tmp_path, spec):
    run(tmp_path / "recorded", spec, ask_for_the_frontier, delay_ms=5, jitter_ms=9.0, lateness_ms=3.0)
    report = live.skew(tmp_path / "recorded", spec)
    assert report.keys["joint"].too_late > 100
    assert f"{report.keys['joint'].too_late} rows came later than the ring's lateness_s" in str(report)


@pytest.mark.parametrize("ahead_s", [3600, -3600])
def test_moments_of_another_clock_are_refused(tmp_path, spec, ahead_s):
    run(tmp_path / "recorded", spec, ask_for_now, delay_ms=30, ahead_ns=ahead_s * NS)
    with pytest.raises(robocache.errors.ArgumentError, match="by the clock of the arrivals, got moments at"):
        live.skew(tmp_path / "recorded", spec)


def test_recordings_that_cannot_be_compared_are_refused(tmp_path, spec):
    run(tmp_path / "recorded", spec, ask_for_now, delay_ms=5, has_moments=False)
    with robocache.Writer(tmp_path / "other") as writer, writer.episode() as episode:
        episode.append("joint", JOINT, joints(JOINT))
    with pytest.raises(robocache.ArgumentError, match=r"expected a stream 'joint\.arrival_ns'"):
        live.skew(tmp_path / "other", spec)
    with robocache.Writer(tmp_path / "none") as writer, writer.episode() as episode:
        episode.append("arm", JOINT, joints(JOINT))
    with pytest.raises(robocache.ArgumentError, match="expected streams of the spec's"):
        live.skew(tmp_path / "none", spec)
    with robocache.Writer(tmp_path / "shape") as writer, writer.episode() as episode:
        episode.append("joint", JOINT, np.zeros((len(JOINT), 3), np.float32))
        episode.append("joint.arrival_ns", JOINT, JOINT)
    with pytest.raises(robocache.ArgumentError, match=r"rings\['joint'\]: expected rows of \[2\] float32"):
        live.skew(tmp_path / "shape", spec)
    with pytest.raises(robocache.ArgumentError, match="moments: expected at least 1"):
        live.skew(tmp_path / "recorded", spec, moments=0)
    with pytest.raises(robocache.FileError):
        live.skew(tmp_path / "recorded", tmp_path / "spec.json")
