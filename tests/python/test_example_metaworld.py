"""The example of metaworld's tasks records demonstrations and trains a policy, which succeeds."""

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from example_commands import example_commands

import robocache

torch = pytest.importorskip("torch")

EPISODES, STEPS, ROLLOUTS = 60, 600, 20
METAWORLD = Path(sys.prefix) / "metaworld"  # ./dev test installs metaworld here, with its MuJoCo
pytestmark = pytest.mark.skipif(
    not METAWORLD.exists() and importlib.util.find_spec("metaworld") is None,
    reason="NOT RUN: no metaworld; pip install 'robocache[examples]'",
)


@pytest.fixture(scope="module")
def run():
    path = os.pathsep.join(filter(None, [str(METAWORLD) * METAWORLD.exists(), os.environ.get("PYTHONPATH")]))
    with example_commands("examples.metaworld", PYTHONPATH=path) as run:
        yield run


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    """Recorded demonstrations, and a policy trained on them."""
    folder = tmp_path_factory.mktemp("metaworld")
    recorded = json.loads(run("record", "--episodes", EPISODES, "--folder", folder, "--json"))
    assert recorded["episodes"] == EPISODES and recorded["successes"] >= 45
    trained = run("train", "--steps", STEPS, "--folder", folder, "--checkpoints", 2, "--json")
    assert json.loads(trained)["step"] == STEPS
    return folder


def test_a_policy_learns_to_pick_and_place(run, folder):
    # Rollouts need the checkpoint and its spec, but not the dataset.
    shutil.move(folder / "pick-place-v3/demonstrations", folder / "away")
    result = json.loads(run("evaluate", "--rollouts", ROLLOUTS, "--workers", 1, "--folder", folder, "--json"))
    shutil.move(folder / "away", folder / "pick-place-v3/demonstrations")
    assert result["successes"] >= 17 and result["rollouts"] == ROLLOUTS, result
    assert result["interval"][0] <= result["successes"] / ROLLOUTS <= result["interval"][1]


def test_finished_work_is_not_repeated(run, folder):
    path = folder / "pick-place-v3"
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*.pt")}
    assert len(before) == 2
    recorded = json.loads(run("record", "--episodes", EPISODES + 2, "--folder", folder, "--json"))
    assert recorded["episodes"] == EPISODES + 2
    dataset = robocache.open(path / "demonstrations", verify=True)
    hand, tracker = (dataset.episode(EPISODES + 1)[stream][0] for stream in ("hand", "tracker"))
    assert len(hand) > 2 * len(tracker) > 20  # each stream has its own clock
    run("train", "--steps", STEPS, "--folder", folder)
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*.pt")} == before


def test_training_without_demonstrations_names_the_command(run, tmp_path):
    assert "run record first" in run("train", "--folder", tmp_path, exits=True)


def test_the_help_names_commands_and_options(run):
    assert "{record,train,evaluate,compare}" in run("--help")
    assert "--curve-rollouts" in run("compare", "--help")
