"""robocache.lerobot.make_dataset, in place of LeRobot's, obeys each option of LeRobot's configuration or refuses it by name.

LeRobot is not needed, because fakes define the two names that make_dataset imports. test_lerobot_peer.py uses LeRobot itself.
"""

import json
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import robocache.lerobot
from lerobot_files import BOOKKEEPING, Episode, write_lerobot

import robocache

pytest.importorskip("av", reason="no PyAV: pip install av")

from video_files import HEIGHT, WIDTH, write_video

TOP, WRIST = "observation.images.top", "observation.images.wrist"
LENGTHS = (7, 5, 9)


@dataclass
class ImageTransforms:
    enable: bool = False
    max_num_transforms: int = 3


@dataclass
class Dataset:
    """Has the fields and defaults of LeRobot's DatasetConfig on its main branch of August 2026, and three that it may get later."""

    repo_id: str
    repo_type: str = "dataset"
    root: str | None = None
    episodes: list[int] | None = None
    exclude_episodes: list[int] | None = None
    image_transforms: ImageTransforms = field(default_factory=ImageTransforms)
    revision: str | None = None
    use_imagenet_stats: bool = True
    video_backend: str = "torchcodec"
    return_uint8: bool = False
    depth_output_unit: str = "mm"
    streaming: bool = False
    eval_split: float = 0.0
    brightness_of_the_future: float = 1.0
    thorough: bool = True
    weights: list[float] = field(default_factory=lambda: [1.0])


@pytest.fixture
def lerobot(monkeypatch):
    names = ("lerobot", "lerobot.datasets", "lerobot.datasets.factory", "lerobot.utils", "lerobot.utils.constants")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    factory = sys.modules["lerobot.datasets.factory"]
    factory.resolve_delta_timestamps = lambda policy, meta: {"action": [0.0, 1 / meta.fps]}
    sys.modules["lerobot.utils.constants"].HF_LEROBOT_HOME = "/nowhere"
    return factory


@pytest.fixture
def source(tmp_path):
    """Writes a dataset with two cameras; meta/stats.json has statistics of one of them."""
    features = {
        "action": {"dtype": "float32", "shape": [1], "names": None},
        **{name: {"dtype": "video", "shape": [HEIGHT, WIDTH, 3], "names": None} for name in (TOP, WRIST)},
        **BOOKKEEPING,
    }
    episodes = [Episode({"action": np.arange(n, dtype=np.float32)}) for n in LENGTHS]
    root = write_lerobot(tmp_path / "source", episodes, "v2.0", features=features)
    for name in (TOP, WRIST):
        for episode, n in enumerate(LENGTHS):
            write_video(root / f"videos/chunk-000/{name}/episode_{episode:06d}.mp4", range(n))
    stats = {TOP: {"mean": [[[0.13]]] * 3, "std": [[[0.03]]] * 3, "max": [[[0.9]]] * 3}}
    (root / "meta/stats.json").write_text(json.dumps(stats))
    return root


def make_dataset(source, **options):
    policy = SimpleNamespace()
    dataset = Dataset("a/b", **{"root": str(source), **options})
    cfg = {"dataset": dataset, "policy": policy, "trainable_config": policy, "rename_map": {"a": "b"}}
    return robocache.lerobot.make_dataset(SimpleNamespace(**cfg, tolerance_s=1e-4))


def test_every_camera_has_imagenets_statistics_with_the_option(source, lerobot):
    stats = make_dataset(source).meta.stats
    for name in (TOP, WRIST):
        assert stats[name]["mean"].shape == stats[name]["std"].shape == (3, 1, 1)
        np.testing.assert_allclose(np.ravel(stats[name]["mean"]), [0.485, 0.456, 0.406], rtol=1e-6)
        np.testing.assert_allclose(np.ravel(stats[name]["std"]), [0.229, 0.224, 0.225], rtol=1e-6)
    assert np.ravel(stats[TOP]["max"]).tolist() == [0.9] * 3
    own = make_dataset(source, use_imagenet_stats=False).meta.stats
    assert np.ravel(own[TOP]["mean"]).tolist() == [0.13] * 3 and WRIST not in own


def test_episodes_are_excluded_by_number_despite_gaps(lerobot, tmp_path):
    episodes = [Episode({"action": np.zeros((n, 2), np.float32)}) for n in (3, 4, 5)]
    gaps = write_lerobot(tmp_path / "gaps", episodes, "v2.1", indices=[0, 2, 5])
    assert make_dataset(gaps, exclude_episodes=[2]).episodes == [0, 5]
    with pytest.warns(UserWarning, match=r"the set has 3 episodes; there are no \[1\]"):
        assert make_dataset(gaps, exclude_episodes=[1, 5]).episodes == [0, 2]


def test_excluded_episodes(source, lerobot):
    assert make_dataset(source).episodes is None
    dataset = make_dataset(source, exclude_episodes=[1])
    assert (dataset.episodes, dataset.num_frames, dataset.num_episodes) == ([0, 2], 16, 2)
    assert {int(item["episode_index"]) for item in dataset} == {0, 2}
    assert dataset.absolute_to_relative_idx == {**{k: k for k in range(7)}, **{12 + k: 7 + k for k in range(9)}}
    assert make_dataset(source, episodes=[2, 1], exclude_episodes=[1]).episodes == [2]
    with pytest.warns(UserWarning, match=r"the set has 3 episodes; there are no \[7\]"):
        assert make_dataset(source, exclude_episodes=[0, 7]).episodes == [1, 2]
    with pytest.raises(robocache.ArgumentError, match=r"dataset\.exclude_episodes: .* all excluded"):
        make_dataset(source, episodes=[1], exclude_episodes=[1])
    for no_numbers in (["1"], "1", [True]):
        with pytest.raises(robocache.ArgumentTypeError, match=r"dataset\.exclude_episodes: expected"):
            make_dataset(source, exclude_episodes=no_numbers)


@pytest.mark.parametrize(
    "options",
    [
        {"streaming": True},
        {"eval_split": 0.1},
        {"repo_type": "bucket"},
        {"image_transforms": ImageTransforms(enable=True)},
        {"brightness_of_the_future": 0.5},
        {"thorough": False},
        {"weights": []},
    ],
    ids=lambda options: next(iter(options)),
)
def test_unsupported_options_are_refused_by_name(source, lerobot, options):
    (name,) = options
    with pytest.raises(robocache.ArgumentError, match=rf"dataset\.{name}: expected"):
        make_dataset(source, **options)


def test_an_option_unknown_to_lerobots_dataclass_is_refused(source, lerobot):
    dataset = SimpleNamespace(**vars(Dataset("a/b", root=str(source))))
    dataset.brightness_of_the_future, dataset.thorough, dataset.weights = None, False, []
    cfg = SimpleNamespace(dataset=dataset, policy=SimpleNamespace())
    assert len(robocache.lerobot.make_dataset(cfg)) == 21
    dataset.brightness_of_the_future = 0.5
    with pytest.raises(robocache.ArgumentError, match=r"dataset\.brightness_of_the_future: expected"):
        robocache.lerobot.make_dataset(cfg)


def test_options_without_effect_on_values_are_accepted(source, lerobot):
    dataset = make_dataset(source, revision="main", video_backend="pyav", return_uint8=True)
    assert dataset.meta.revision == "main" and dataset.meta.repo_id == "a/b"
    assert dataset[3]["action"].tolist() == [3.0, 4.0]


def test_depth_is_in_metres_or_refused(source, lerobot):
    for number, n in enumerate(LENGTHS):
        write_video(
            source / f"videos/chunk-000/{WRIST}/episode_{number:06d}.mp4",
            range(n),
            codec="libx265",
            pixels="gray12le",
            options={"x265-params": "log-level=none"},
        )
    info = json.loads((source / "meta/info.json").read_text())
    info["features"][WRIST]["info"] = {"is_depth_map": True}
    (source / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(robocache.ArgumentError, match=rf"depth_output_unit: .*{WRIST}.*got 'mm'"):
        make_dataset(source)
    dataset = make_dataset(source, depth_output_unit="m")
    assert dataset.meta.depth_keys == [WRIST] and WRIST not in dataset.meta.stats
    assert 0.01 < dataset[3][WRIST].max() < 10


def test_a_renaming_function_gets_the_names(source, lerobot):
    requested = []
    lerobot.resolve_delta_timestamps = lambda policy, meta, rename_map=None: requested.append(rename_map)
    assert make_dataset(source)[3]["action"].shape == ()
    assert requested == [{"a": "b"}]
