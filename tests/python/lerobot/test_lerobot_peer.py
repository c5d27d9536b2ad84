"""LeRobot from PyPI gives the same items, and its trainer makes the same policy.

LeRobot is not in the extra `test`, because it has 2 GB and needs a torch of its own:

    pip install 'lerobot[dataset,training,diffusion]==0.6.1'    # Python 3.12, torch < 2.12
    pytest tests/python/lerobot/test_lerobot_peer.py
"""

import re
import sys
from pathlib import Path

import pytest
import torch
from loaders_by_keywords import lerobot_dataset
from reference.lerobot import assert_same_item
from sets import windows, write, write_as_v3, write_low_dimensional

MISSING = "LeRobot is not installed, nothing was compared with it: pip install 'lerobot[dataset,training]==0.6.1'"
lerobot_module = pytest.importorskip("lerobot.datasets.lerobot_dataset", reason=MISSING)

pytestmark = pytest.mark.filterwarnings("ignore")  # LeRobot's libraries warn


@pytest.fixture(params=["made", "lerobot_v2/gr00t_gr1_pnp_sim", "lerobot_v2/unitree_g1_real"])
def source(request, rng, tmp_path, real_data, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "huggingface"))
    if request.param == "made":
        return write(tmp_path / "source", rng)
    return write_as_v3(tmp_path / "source", real_data(request.param))


@pytest.mark.parametrize("episodes", [None, [1, 3]])
@pytest.mark.parametrize("windowed", [True, False])
def test_every_item(source, episodes, windowed):
    delta_timestamps = windows(source) if windowed else None
    peer = lerobot_module.LeRobotDataset("a/b", root=source, delta_timestamps=delta_timestamps, episodes=episodes)
    ours = lerobot_dataset(source, delta_timestamps, episodes, repo_id="a/b")
    assert (len(ours), ours.num_frames, ours.num_episodes) == (len(peer), peer.num_frames, peer.num_episodes)
    assert ours.episodes == peer.episodes
    assert ours.absolute_to_relative_idx == peer.absolute_to_relative_idx
    for index, item in enumerate(ours.__getitems__(range(len(ours)))):
        assert_same_item(item, peer[index])


def test_attributes_equal_lerobots(source):
    peer, ours = lerobot_module.LeRobotDataset("a/b", root=source).meta, lerobot_dataset(source, repo_id="a/b").meta
    for name in (
        "features",
        "fps",
        "camera_keys",
        "has_language_columns",
        "repo_id",
        "revision",
        "root",
        "names",
        "shapes",
    ):
        assert getattr(ours, name) == getattr(peer, name), name
    for name in ("robot_type", "total_episodes", "total_frames", "total_tasks"):
        assert getattr(ours, name) == getattr(peer, name), name
    assert ours.tasks.equals(peer.tasks)
    for column in ("dataset_from_index", "dataset_to_index", "tasks", "length"):
        assert list(ours.episodes[column]) == list(peer.episodes[column])


@pytest.mark.parametrize("policy", ["act", "diffusion"])
def test_lerobots_trainer_makes_the_same_policy(policy, rng, tmp_path, monkeypatch):
    """Equal batches in the same order give equal weights; a single different batch would change them."""
    pytest.importorskip("accelerate", reason=MISSING)
    if policy == "diffusion":
        pytest.importorskip("diffusers", reason=MISSING)
    import lerobot.datasets.factory
    import lerobot.scripts.lerobot_train as trainer
    import robocache.lerobot
    from safetensors.torch import load_file

    source = write_low_dimensional(tmp_path / "source", rng)
    options = {
        "act": "dim_model=32 n_heads=2 dim_feedforward=32 n_encoder_layers=1 n_vae_encoder_layers=1 chunk_size=10 "
        "n_action_steps=10",
        "diffusion": "down_dims=[16,32] diffusion_step_embed_dim=16 n_groups=4",
    }[policy]
    options = [f"--policy.{option}" for option in f"type={policy} device=cpu push_to_hub=false {options}".split()]

    def train(main, out):
        arguments = f"--dataset.root={source} --output_dir={out} --dataset.repo_id=a/b --wandb.enable=false --seed=5"
        arguments += " --steps=12 --batch_size=16 --num_workers=0 --save_freq=12 --log_freq=6"
        monkeypatch.setattr(sys, "argv", ["lerobot-train", *arguments.split(), *options])
        main()
        return load_file(next(out.rglob("model.safetensors")))

    expected = train(trainer.main, tmp_path / "lerobot_module")
    result = []
    make_dataset = robocache.lerobot.make_dataset
    monkeypatch.setattr(robocache.lerobot, "make_dataset", lambda cfg: result.append(make_dataset(cfg)) or result[0])
    # The page's program replaces this attribute, and monkeypatch restores it.
    monkeypatch.setattr(lerobot.datasets.factory, "make_dataset", None)
    page = (Path(__file__).parents[3] / "docs/coming-from-lerobot.md").read_text()
    (program,) = re.findall(r"```python\n(import lerobot.*?)```", page, re.DOTALL)
    weights = train(lambda: exec(program, {}), tmp_path / "ours")
    assert isinstance(result[0], robocache.LeRobotDataset)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
