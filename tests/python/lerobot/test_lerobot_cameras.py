"""LeRobot's batches with cameras: the frame of each row, as LeRobot gives it."""

import numpy as np
import pytest
from lerobot_files import BOOKKEEPING, Episode, write_lerobot

import robocache

torch = pytest.importorskip("torch")
pytest.importorskip("av", reason="no PyAV: pip install av")

from video_files import HEIGHT, WIDTH, number_of, write_video  # noqa: E402

TOP = "observation.images.top"
LENGTHS = (7, 5, 9)


@pytest.fixture
def source(tmp_path):
    episodes = [Episode({"action": np.arange(n, dtype=np.float32)}, tasks=["stack"]) for n in LENGTHS]
    features = {
        "action": {"dtype": "float32", "shape": [1], "names": None},
        TOP: {"dtype": "video", "shape": [HEIGHT, WIDTH, 3], "names": ["height", "width", "channels"]},
        **BOOKKEEPING,
    }
    root = write_lerobot(tmp_path / "source", episodes, "v2.1", fps=30, features=features)
    for e, n in enumerate(LENGTHS):
        write_video(root / f"videos/chunk-000/{TOP}/episode_{e:06d}.mp4", [100 * e + k for k in range(n)])
    return root


def _shown(frame):
    """The number on a frame of a batch: float [3, H, W] from 0 to 1."""
    return number_of((frame.cpu().numpy().transpose(1, 2, 0) * 255).round().astype(np.uint8))


def test_a_loader_gives_each_rows_frame(source, tmp_path, device):
    loader = robocache.Loader.from_lerobot(source, cache=tmp_path / "cache", batch_size=6, device=device)
    seen = []
    for batch in loader:
        assert batch[TOP].dtype == torch.float32 and batch[TOP].shape[1:] == (3, HEIGHT, WIDTH)
        assert batch[TOP].min() >= 0 and batch[TOP].max() <= 1
        for frame, e, k in zip(batch[TOP], batch["episode_index"].tolist(), batch["frame_index"].tolist(), strict=True):
            assert _shown(frame) == 100 * e + k
            seen.append((e, k))
    assert sorted(seen) == [(e, k) for e, n in enumerate(LENGTHS) for k in range(n)]
    assert f"{TOP}_is_pad" not in batch


def test_windows_and_image_options(source, tmp_path):
    dataset = robocache.LeRobotDataset(
        source,
        {TOP: [-2 / 30, 0.0], "action": [0.0, 1 / 30]},
        cache=tmp_path / "cache",
        images=robocache.ImageOptions(size=(HEIGHT // 2, WIDTH // 2)),
        dtype="float16",
    )
    item = dataset[8]  # row 1 of episode 1
    assert item[TOP].shape == (2, 3, HEIGHT // 2, WIDTH // 2) and item[TOP].dtype == torch.float16
    assert item[f"{TOP}_is_pad"].tolist() == [True, False]
    assert [_shown(frame.float()) for frame in item[TOP]] == [100, 101]
    assert item["task"] == "stack"
    assert dataset.meta.camera_keys == dataset.meta.video_keys == [TOP] and dataset.meta.image_keys == []
    assert dataset.meta.features[TOP]["shape"] == (HEIGHT, WIDTH, 3)
    assert [_shown(dataset[k][TOP][1].float()) for k in (0, 20)] == [0, 208]


def test_cameras_may_be_left_out_and_fetched_later(source, tmp_path):
    cache = tmp_path / "cache"
    without = robocache.Loader.from_lerobot(source, cache=cache, batch_size=4, video=False)
    assert TOP not in next(without)
    with_them = robocache.Loader.from_lerobot(source, cache=cache, batch_size=4)
    assert TOP in next(with_them)
    made = cache.stat().st_mtime_ns
    again = robocache.Loader.from_lerobot(source, cache=cache, batch_size=4)
    assert TOP in next(again) and cache.stat().st_mtime_ns == made
    video = next(iter(sorted((source / "videos").rglob("*.mp4"))))
    write_video(video, [500 + k for k in range(LENGTHS[0])])
    changed = robocache.Loader.from_lerobot(source, cache=cache, batch_size=7, shuffle=False)
    assert [_shown(frame) for frame in next(changed)[TOP]] == [500 + k for k in range(7)]


def test_what_is_in_the_cache_is_left_out_where_it_is_not_wanted(source, tmp_path):
    cache = tmp_path / "cache"
    assert TOP in next(robocache.Loader.from_lerobot(source, cache=cache, batch_size=4))
    assert TOP not in next(robocache.Loader.from_lerobot(source, cache=cache, batch_size=4, video=False))
    dataset = robocache.LeRobotDataset(source, cache=cache, video=False)
    assert TOP not in dataset[0] and TOP not in dataset.meta.features and dataset.meta.camera_keys == []


@pytest.mark.parametrize("offsets", [[0.0], None])
def test_a_camera_that_is_left_out_is_no_key(offsets, source, tmp_path):
    with pytest.raises(robocache.ArgumentError, match=f"no camera with video=False, got '{TOP}'; leave it out, or ask"):
        robocache.LeRobotDataset(source, {TOP: offsets}, cache=tmp_path / "cache", video=False)


def test_a_key_that_there_is_not_is_refused_also_without_a_window(source, tmp_path):
    with pytest.raises(robocache.ArgumentError, match="no stream 'state'"):
        robocache.LeRobotDataset(source, {"state": None}, cache=tmp_path / "cache", video=False)


def test_what_ingest_was_asked_for_holds_when_the_cache_is_made_again(source, tmp_path):
    robocache.ingest(source, tmp_path / "cache", image_size="32x24", image_codec="raw", jobs=1)
    batch = next(robocache.Loader.from_lerobot(source, cache=tmp_path / "cache", batch_size=4))
    assert batch[TOP].shape == (4, 3, 24, 32)
    assert robocache.open(tmp_path / "cache").streams[TOP].frames.codec == "raw"
    assert robocache.LeRobotDataset(source, cache=tmp_path / "cache").meta.shapes[TOP] == (24, 32, 3)


def test_random_crops_of_items_are_the_epochs(source, tmp_path):
    images = robocache.ImageOptions(crop=(16, 16))
    dataset = robocache.LeRobotDataset(source, cache=tmp_path / "cache", images=images)
    first = [item[TOP].clone() for item in dataset.__getitems__(range(21))]
    again = [item[TOP].clone() for item in dataset.__getitems__(range(21))]
    assert all(map(torch.equal, first, again))
    dataset.set_epoch(1)
    assert not all(map(torch.equal, first, [item[TOP] for item in dataset.__getitems__(range(21))]))
    with pytest.raises(robocache.ArgumentError, match="task_text"):
        robocache.LeRobotDataset(source, cache=tmp_path / "cache", task_text=False)
