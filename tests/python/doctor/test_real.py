"""Findings in real recordings, each checked by hand."""

from collections import Counter

import numpy as np
import pytest
import robots

import robocache


def examine(source, tmp_path, **options):
    report = robocache.doctor(source, work=tmp_path, **options)
    assert report.html()
    return report


def codes(report):
    return dict(Counter((f.severity, f.code) for f in report.findings))


def test_gr00t(real_data, tmp_path):
    """A simulated humanoid at an exact rate; joints that the task does not use are constant."""
    report = examine(real_data("lerobot_v2/gr00t_gr1_pnp_sim"), tmp_path)
    assert codes(report) == {("note", "constant"): 3, ("note", "left-out"): 1, ("note", "nominal-clock"): 1}


def test_unitree_g1(real_data, tmp_path):
    """The folder has 22 of 100 episodes and 3 of their videos; the arms follow their commands late."""
    report = examine(real_data("lerobot_v2/unitree_g1_real"), tmp_path)
    assert codes(report) == {
        ("warning", "latency"): 1,
        ("warning", "missing-file"): 2,
        ("warning", "missing-stream"): 1,
        ("note", "constant"): 1,
        ("note", "left-out"): 1,
        ("note", "nominal-clock"): 1,
    }
    assert sorted(f.count for f in robots.findings(report, "missing-file")) == [1, 19]
    assert [f.count for f in robots.findings(report, "missing-stream")] == [19]
    (latency,) = robots.findings(report, "latency")
    assert (latency.stream, latency.count) == ("observation.state", 22)
    assert 3 * 1000 / 30 < latency.value < 4 * 1000 / 30
    # The oracle in numpy: the lag in whole rows at which changes of the action and of the arms' state agree best.
    robocache.ingest(real_data("lerobot_v2/unitree_g1_real"), tmp_path / "cache", on_error="skip", video=False)
    dataset = robocache.open(tmp_path / "cache")
    changes = {
        name: [np.diff(dataset.episode(e)[name][1][:, :12].astype(np.float64), axis=0) for e in range(22)]
        for name in ("observation.state", "action")
    }
    correlations = []
    for lag in range(8):
        later = np.concatenate([episode[lag:] for episode in changes["observation.state"]])
        earlier = np.concatenate([episode[: len(episode) - lag] for episode in changes["action"]])
        correlations.append(np.corrcoef(later.ravel(), earlier.ravel())[0, 1])
    assert sorted(np.argsort(correlations)[-2:].tolist()) == [3, 4]


def test_pointers_only(real_data, tmp_path):
    report = examine(real_data("lerobot_v2/lfs_pointers_only"), tmp_path)
    assert [(f.severity, f.code) for f in report.findings] == [("error", "not-downloaded")]


def test_so100(real_data, tmp_path):
    """A policy's log pauses every 100 steps; the log of the teleoperation is even."""
    report = examine(real_data("logs_csv/lerobot_so100_inference"), tmp_path)
    assert codes(report) == {
        ("warning", "early-end"): 2,
        ("warning", "gap"): 2,
        ("warning", "long-gap"): 2,
        ("note", "assumed"): 1,
        ("note", "constant"): 4,
        ("note", "jitter"): 2,
        ("note", "late-start"): 2,
        ("note", "near-constant"): 2,
    }
    source = real_data("logs_csv/lerobot_so100_inference")
    for finding in report.findings:
        if finding.code == "long-gap":
            path = source / (finding.stream + ".csv")
            seconds = np.genfromtxt(path, delimiter=",", skip_header=1, usecols=0)
            assert np.diff(seconds).max() == pytest.approx(finding.value / 1e9, abs=1e-6)
            assert int(np.argmax(np.diff(seconds))) + 1 == finding.row


def test_quadruped(real_data, tmp_path):
    """Rows are stamped on arrival: repeated stamps, bursts, gaps; the accelerations have an impact."""
    source = real_data("logs_csv/gtsam")
    report = examine(source, tmp_path)
    assert codes(report) == {
        ("error", "unreadable"): 1,
        ("warning", "burst"): 1,
        ("warning", "gap"): 1,
        ("warning", "jitter"): 1,
        ("warning", "long-gap"): 1,
        ("warning", "repeated-stamp"): 1,
        ("warning", "spike"): 3,
        ("note", "assumed"): 1,
        ("note", "constant"): 1,
        ("note", "left-out"): 1,
        ("note", "step"): 1,
    }
    stamps = np.array(
        [int(line.split(",")[0]) for line in (source / "quadraped_imu_data.csv").read_text().split("\n")[1:] if line]
    )
    periods = np.diff(stamps)
    findings = {f.code: f for f in report.findings}
    assert findings["repeated-stamp"].count == np.count_nonzero(periods == 0)
    assert findings["repeated-stamp"].row == np.argmax(periods == 0) + 1
    assert findings["gap"].count == np.count_nonzero(
        (periods > 1.5 * np.median(periods)) & (periods <= 10 * np.median(periods))
    )
    assert findings["long-gap"].row == np.argmax(periods) + 1


def test_go2(real_data, tmp_path):
    """A robot's log at 500 and 50 Hz, and a motion capture's log at 305 Hz that begins 4 to 9 s earlier."""
    report = examine(real_data("rosbag2/unitree_go2"), tmp_path, format="csv")
    assert codes(report) == {
        ("warning", "early-end"): 2,
        ("warning", "late-start"): 2,
        ("warning", "long-gap"): 3,
        ("warning", "missing-stream"): 1,
        ("warning", "quaternion-without-method"): 2,
        ("warning", "spike"): 3,
        ("note", "assumed"): 1,
        ("note", "burst"): 2,
        ("note", "constant"): 1,
        ("note", "early-end"): 3,
        ("note", "gap"): 3,
        ("note", "jitter"): 2,
        ("note", "late-start"): 4,
        ("note", "left-out"): 1,
    }


def test_euroc(real_data, tmp_path):
    """An IMU at 200 Hz without a fault."""
    report = examine(real_data("logs_csv/euroc_micro") / "mav0" / "imu0", tmp_path, format="csv")
    assert [(f.severity, f.code) for f in report.findings if f.code != "left-out"] == []


def test_bridge(real_data, tmp_path):
    """The splits have the same 25 episodes, and one camera has only a placeholder."""
    source = real_data("rlds/octo_bridge_debug")
    report = examine(source, tmp_path, format="rlds", rate_hz=5)
    leaks = robots.findings(report, "split-leak", "repeated-episode")
    assert len(leaks) == 25
    assert "blank-frames" in {f.code for f in report.findings}
