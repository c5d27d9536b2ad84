"""The example that trains by lerobot-train on real recordings with two cameras."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import robocache

for package in ("av", "google_crc32c", "torch"):
    pytest.importorskip(package)

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from examples.train_lerobot import RATE_HZ, RENAMED, prepare  # noqa: E402

BRIDGE = "rlds/octo_bridge_debug"


def test_recordings_become_a_lerobot_dataset(real_data, tmp_path):
    root, train_episodes, held_out = prepare(real_data(BRIDGE), tmp_path)
    assert (len(train_episodes), len(held_out)) == (20, 5) and not set(train_episodes) & set(held_out)
    features = json.loads((root / "meta/info.json").read_text())["features"]
    assert set(RENAMED.values()) <= features.keys()
    cameras = {key for key, feature in features.items() if feature["dtype"] == "video"}
    assert cameras == {"observation.images.first", "observation.images.second"}
    recorded = robocache.open(tmp_path / "recorded")
    files = recorded.episodes["episode_metadata/file_path"].to_pylist()
    identities = list(zip(files, recorded.episodes["episode_metadata/episode_id"].to_pylist(), strict=True))
    assert not {identities[k] for k in train_episodes} & {identities[k] for k in held_out}
    loader = robocache.Loader.from_lerobot(root, cache=tmp_path / "cache", batch_size=4, shuffle=False)
    batch = next(loader)
    assert batch["action"].numpy().tolist() == recorded.episode(0)["action"][1][:4].tolist()
    assert batch["timestamp"].tolist() == pytest.approx([k / RATE_HZ for k in range(4)])


def test_both_loaders_train_a_policy_that_lerobot_loads(real_data, tmp_path):
    pytest.importorskip(
        "lerobot.scripts.lerobot_train",
        reason="NOT RUN: no LeRobot; pip install 'lerobot[dataset,training]==0.6.1'",
        exc_type=ImportError,
    )
    result = tmp_path / "result.json"
    options = ["--steps", "2", "--batch-size", "4", "--seeds", "0", "--policies", "act"]
    command = [sys.executable, "examples/train_lerobot.py", real_data(BRIDGE), "--folder", tmp_path / "out", *options]
    process = subprocess.run([*map(str, command), "--result", str(result)], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    theirs, ours = json.loads(result.read_text())["runs"]
    assert (theirs["loader"], ours["loader"]) == ("LeRobot's", "ours")
    # Both make two steps from the same weights with the same rows, but our frames were encoded as JPEG again.
    assert ours["validation_loss"] == pytest.approx(theirs["validation_loss"], rel=0.01)
