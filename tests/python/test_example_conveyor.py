"""The example of a moving belt: rows like a recorder's at 30 fps against clocks. `./dev attack` trains until clocks are better."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from example_commands import example_commands
from soak import rounds

import robocache

for package in ("mujoco", "torch", "PIL"):
    pytest.importorskip(package)

from PIL import Image  # noqa: E402

CHECKOUT = Path(__file__).parents[2]
IS_SOAK = rounds(1) > 1
EPISODES = 40 if IS_SOAK else 3


@pytest.fixture(scope="module")
def run():
    with example_commands("examples.conveyor") as run:
        yield lambda command, folder, *options: run(command, "--folder", folder, "--delays-ms", 60, *options)


@pytest.fixture(scope="module")
def recorded(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("conveyor")
    run("record", folder, "--episodes", EPISODES)
    return folder


def test_rows_have_the_newest_arrived_frame(recorded):
    assert json.loads((recorded / "recorded.json").read_text())["successes"] == EPISODES
    dataset = json.loads((recorded / "demonstrations/lerobot_60ms/meta/info.json").read_text())
    assert dataset["codebase_version"] == "v3.0" and dataset["fps"] == 30
    streams = robocache.open(recorded / "demonstrations/streams")
    rows = robocache.open(recorded / "demonstrations/rows_60ms")
    camera, ages = "observation.images.belt", []
    for number in range(len(streams.episodes)):
        stamps, frames = streams.episode(number)[camera]
        _, stored = rows.episode(number)[camera]
        commands_ns, commands = streams.episode(number)["action"]
        _, row_commands = rows.episode(number)["action"]
        row_ages = rows.episode(number)["observation.frame_age"][1].ravel()
        first_tick = 39 - len(row_ages)  # in every episode the last row is at 38/30 s
        newest = -1
        for row, age_s in enumerate(row_ages):
            row_ns = 1_000_000_000 + round((first_tick + row) * 1e9 / 30)
            frame_ns = row_ns - round(float(age_s) * 1e9)
            frame = int(np.abs(stamps - frame_ns).argmin())
            assert abs(int(stamps[frame]) - frame_ns) < 1000 and frame >= newest
            assert (np.asarray(frames[frame]) == np.asarray(stored[row])).all()
            assert (row_commands[row] == commands[np.abs(commands_ns - row_ns).argmin()]).all()
            newest = frame
        ages += row_ages[6:].tolist()
    assert 0.06 < np.mean(ages) < 0.1 and np.std(ages) > 0.02


@pytest.mark.soak
def test_clocks_are_closer_than_rows(run, recorded, tmp_path):
    arms = ("--arms", "rows", "clocks", "--seeds", 0)
    steps, rollouts = (500, 40) if IS_SOAK else (10, 2)
    run("train", recorded, *arms, "--steps", steps)
    checkpoint = (recorded / "runs/clocks-0/checkpoint.pt").read_bytes()
    run("train", recorded, *arms, "--steps", steps)
    assert (recorded / "runs/clocks-0/checkpoint.pt").read_bytes() == checkpoint  # a finished run is not trained again
    run("evaluate", recorded, *arms, "--rollouts", rollouts, "--film", tmp_path / "film")
    for file in (tmp_path / "film.png", tmp_path / "film.gif"):
        picture = Image.open(file)
        assert picture.size == (4 * 96, 4 * 96)
    assert picture.n_frames > 10
    assert (
        f"60 ms: rows above, clocks below, after {steps} steps" in Image.open(tmp_path / "film.png").info["Description"]
    )
    table = run("compare", recorded, *arms, "--out", tmp_path)
    assert "60 ms rows" in table and "60 ms clocks" in table
    rows, clocks = json.loads((tmp_path / "training-conveyor-60ms.json").read_text())["arms"]
    for arm in rows, clocks:
        assert arm["curve"][-1]["successes"] == arm["successes"] and arm["curve"][-1]["step"] == steps
    if IS_SOAK:
        assert is_closer(clocks, rows), table
        assert not is_closer(roll_out_with_arrival_stamps(recorded / "runs/clocks-0", steps, rollouts), rows)


def is_closer(clocks, rows):
    median, within_6_mm = clocks["miss_mm"]["50 %"], clocks["within_mm"]["6"]
    return median < 0.7 * rows["miss_mm"]["50 %"] and within_6_mm >= rows["within_mm"]["6"] + 6


# Prints the misses, in mm, of the policy of the arm "clocks" when frames have the stamps of their arrival.
ARRIVAL_STAMPS = """
import json, pathlib, sys
import torch
from examples.conveyor import drive, learn

class Late(drive.Robot):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.episode.stamps = self.arrivals

drive.Robot = Late
run, steps, rollouts = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:])
policy = learn.Policy()
policy.load_state_dict(torch.load(run / f"step_{steps}.pt", weights_only=True))
options = {"rollouts": rollouts, "seed": 1_000_000, "device": "cpu", "note": "stamps of arrival"}
misses, *_ = drive.roll_out(policy, run / "spec.json", "clocks", 60, **options)
print(json.dumps(misses))
"""


def roll_out_with_arrival_stamps(run, steps, rollouts):
    command = [sys.executable, "-c", ARRIVAL_STAMPS, *map(str, (run, steps, rollouts))]
    result = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    misses = np.array(json.loads(result.stdout.splitlines()[-1]))
    return {"miss_mm": {"50 %": np.median(misses)}, "within_mm": {"6": (misses < 6).sum()}}


def test_resumed_training_gives_the_same_policy(recorded, tmp_path, monkeypatch):
    import torch

    monkeypatch.syspath_prepend(CHECKOUT)
    from examples.conveyor import learn

    def train(folder):
        loader = learn.make_loader(recorded / "demonstrations", "clocks", 60, batch_size=32, seed=3, device="cpu")
        learn.train(loader, "clocks", folder, steps=9, seed=3, device="cpu", every=2)

    def stop(progress, done, note=""):
        if done == 8:
            raise KeyboardInterrupt

    train(tmp_path / "uninterrupted")
    with monkeypatch.context() as patched:
        patched.setattr(learn.Progress, "show", stop)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "stopped")
    train(tmp_path / "stopped")
    expected, resumed = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["policy"]
        for name in ("uninterrupted", "stopped")
    )
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


def test_the_help_has_the_command(monkeypatch, capsys):
    monkeypatch.syspath_prepend(CHECKOUT)
    from examples.conveyor.__main__ import main

    for command, word in ([], "record"), (["evaluate"], "--folder"):
        with pytest.raises(SystemExit) as raised:
            main([*command, "--help"])
        assert raised.value.code == 0 and word in capsys.readouterr().out
