"""The demo: a simulated arm, recorded, cached, loaded, compared and drawn."""

import io

import numpy as np
import pytest
from rich.console import Console

import robocache

pytest.importorskip("mujoco", reason="the demo's simulation needs mujoco")
pytest.importorskip("matplotlib", reason="the demo's picture needs matplotlib")
pytest.importorskip("torch", reason="the demo compares with torch's DataLoader")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Returns (the result of a run, its folder, its output)."""
    from robocache import demo

    def measure(batches, seconds, measure=demo.samples_per_second):
        return measure(batches, seconds / 10)

    out, output = tmp_path_factory.mktemp("demo"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "samples_per_second", measure)
        result = demo.run(out, episodes=2, seed=3, console=Console(file=output, width=80))
    return result, out, output.getvalue()


def test_the_demo_measures_and_draws(demo):
    result, out, _ = demo
    # The values depend on the machine.
    assert min(result["samples_per_second"], result["dataloader_samples_per_second"]) > 0
    assert result["largest_difference"] < 1e-4
    assert (out / "window.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in out.iterdir()} == {"cache", "window.png"}


def test_the_output_is_short_and_ends_with_the_result(demo):
    result, out, output = demo
    lines = output.strip().splitlines()
    assert len(lines) <= 7
    assert str(out / "window.png") in lines[-4]
    assert lines[-2].startswith(f"{result['samples_per_second']:,.0f} samples/s on ")
    assert f"({result['dataloader_samples_per_second']:,.0f} with 2 workers)" in lines[-2]
    assert lines[-1].startswith("next ") and f"robocache doctor {out / 'cache'}" in lines[-1]


def test_the_camera_sees_the_arm_move(demo):
    _, out, _ = demo
    camera = robocache.open(out / "cache").streams["camera"]
    assert (camera.frames.codec, camera.shape) == ("jpeg", (96, 128, 3))
    first, last = (frames.astype(int) for frames in camera.values[[0, 200]])
    has_moved = np.abs(last - first).max(-1) > 40
    assert 0.005 < has_moved.mean() < 0.4
    is_red = first[..., 0] - first[..., 1:].max(-1) > 50
    assert 2 <= is_red.sum() <= 100  # the ball


def test_the_recording_is_as_irregular_as_a_real_one(demo):
    _, out, _ = demo
    dataset = robocache.open(out / "cache")
    assert len(dataset) == 2
    rates = {name: stream.rate_hz for name, stream in dataset.streams.items()}
    expected = {"joint.state": 500, "imu": 200, "end_effector.pose": 100, "camera": 30}
    assert rates == pytest.approx(expected, rel=0.05)
    for stream in dataset.streams.values():
        findings = stream.findings
        assert findings["jitter_ns"] > 0
        assert findings["duplicates"] == 0
    assert dataset.streams["joint.state"].findings["gaps"] > 0
    starts = {name: int(times[0]) for name, (times, _) in dataset.episode(0).items()}
    assert len(set(starts.values())) == 4


def test_the_same_seed_gives_the_same_recording(demo, tmp_path):
    from robocache.demo import _Physics, _record

    with robocache.Writer(tmp_path / "cache") as writer:
        physics = _Physics(3)
        for episode in range(2):
            _record(physics, writer, episode, np.random.default_rng([3, episode]))
    _, out, _ = demo
    repeated, first = robocache.open(tmp_path / "cache"), robocache.open(out / "cache")
    for name, stream in first.streams.items():
        np.testing.assert_array_equal(repeated.streams[name].time_ns, stream.time_ns)
        values = [np.asarray(streams[name].values) for streams in (repeated.streams, first.streams)]
        np.testing.assert_array_equal(*values)
