"""In batches with cameras, each row has the same frame as in LeRobot."""

import itertools
import json

import loaders_by_keywords
import numpy as np
import pyarrow as pa
import pytest
from hdf5_files import encode_image
from lerobot_files import BOOKKEEPING, Episode, data_files, declare, rewrite, write_lerobot
from loaders_by_keywords import from_lerobot, lerobot_dataset

import robocache

torch = pytest.importorskip("torch")
pytest.importorskip("av", reason="no PyAV: pip install av")

from robocache.ingest import video  # noqa: E402
from robocache.ingest.video import Decoders  # noqa: E402
from video_files import HEIGHT, WIDTH, number_of, write_video  # noqa: E402

TOP = "observation.images.top"
LENGTHS = (7, 5, 9)


def _written(root, width):
    """Writes a dataset whose actions have `width` features. Frame k of episode e shows the number 100 e + k."""
    shapes = [(n, width) if width > 1 else (n,) for n in LENGTHS]
    actions = [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in shapes]
    features = {
        "action": {"dtype": "float32", "shape": [width], "names": None},
        TOP: {"dtype": "video", "shape": [HEIGHT, WIDTH, 3], "names": ["height", "width", "channels"]},
        **BOOKKEEPING,
    }
    write_lerobot(root, [Episode({"action": action}, tasks=["stack"]) for action in actions], features=features)
    for e, n in enumerate(LENGTHS):
        write_video(root / video_of(e), [100 * e + k for k in range(n)])
    return root


def video_of(episode, camera=TOP):
    return f"videos/chunk-000/{camera}/episode_{episode:06d}.mp4"


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Its video is decoded in the test's process; to start others, as the first test does, takes longer than a test."""
    monkeypatch.setattr(video, "Decoders", lambda jobs: Decoders(jobs or 1))
    return _written(tmp_path / "source", 1)


def _shown(frame):
    """Returns the number on a frame of a batch, which is float [3, H, W] from 0 to 1."""
    return number_of((frame.cpu().numpy().transpose(1, 2, 0) * 255).round().astype(np.uint8))


def _spoil(cache, row):
    """Overwrites the frame of a row in the cache."""
    offsets = robocache.open(cache).streams[TOP].values.offsets
    with open(cache / f"streams/{TOP}/values.npy", "r+b") as file:
        file.seek(int(offsets[row]) - int(offsets[-1]), 2)
        file.write(b"\0" * int(offsets[row + 1] - offsets[row]))


def _halved(images, seeds):
    return images // 2 + (seeds % 3).view(-1, *[1] * (images.ndim - 1)).to(images.dtype)


def test_flips_mirror_the_action_and_a_function_gets_bytes(tmp_path, device):
    """The options do not change LeRobot's index columns."""
    source = _written(tmp_path / "source", 2)
    images = robocache.ImageOptions(flip_horizontal=1, transform=_halved)
    windows = {TOP: robocache.Window(images=images), "action": robocache.Window(mirror=[0])}
    options = {"cache": tmp_path / "cache", "batch_size": 6, "device": device}
    flipped = next(robocache.Loader.from_lerobot(source, delta_timestamps=windows, **options))
    plain = next(robocache.Loader.from_lerobot(source, **options))
    pixels = (plain[TOP] * 255).round().to(torch.uint8)
    added = flipped[TOP] - pixels.flip(-1) // 2  # by _halved
    assert flipped[TOP].dtype == torch.uint8 and (added == added[:, :1, :1, :1]).all() and added.max() <= 2
    assert torch.equal(flipped["action"], plain["action"] * torch.tensor([-1, 1], device=plain["action"].device))
    for name in ("timestamp", "frame_index", "episode_index", "index"):
        assert torch.equal(flipped[name], plain[name])
    with pytest.raises(robocache.ArgumentError, match=r"^delta_timestamps\['action'\].mirror: "):
        robocache.Loader.from_lerobot(source, delta_timestamps={TOP: windows[TOP]}, **options)
    items = robocache.LeRobotDataset(source, cache=tmp_path / "cache", delta_timestamps=windows)
    assert items[3][TOP].dtype == torch.uint8 and items[3]["action"].tolist() == [-6, 7]


def test_a_loader_gives_each_rows_frame(source, tmp_path, device):
    loader = from_lerobot(source, cache=tmp_path / "cache", batch_size=6, device=device)
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
    images = robocache.ImageOptions(size=(HEIGHT // 2, WIDTH // 2))
    windows = {TOP: [-2 / 30, 0.0], "action": [0.0, 1 / 30]}
    dataset = lerobot_dataset(source, windows, cache=tmp_path / "cache", images=images, dtype="float16")
    item = dataset[8]  # row 1 of episode 1
    assert item[TOP].shape == (2, 3, HEIGHT // 2, WIDTH // 2) and item[TOP].dtype == torch.float16
    assert item[f"{TOP}_is_pad"].tolist() == [True, False]
    assert [_shown(frame.float()) for frame in item[TOP]] == [100, 101]
    assert item["task"] == "stack"
    assert dataset.meta.camera_keys == dataset.meta.video_keys == [TOP] and dataset.meta.image_keys == []
    assert dataset.meta.features[TOP]["shape"] == (HEIGHT, WIDTH, 3)
    assert [_shown(dataset[k][TOP][1].float()) for k in (0, 20)] == [0, 208]


def test_left_out_cameras_can_be_fetched_later(source, tmp_path):
    cache = tmp_path / "cache"
    assert TOP not in next(from_lerobot(source, cache=cache, batch_size=4, video=False))
    assert TOP in next(from_lerobot(source, cache=cache, batch_size=4))
    modified_ns = cache.stat().st_mtime_ns
    assert TOP in next(from_lerobot(source, cache=cache, batch_size=4)) and cache.stat().st_mtime_ns == modified_ns
    write_video(source / video_of(0), [500 + k for k in range(LENGTHS[0])])
    changed = from_lerobot(source, cache=cache, batch_size=7, shuffle=False)
    assert [_shown(frame) for frame in next(changed)[TOP]] == [500 + k for k in range(7)]


def test_a_left_out_camera_of_the_cache_is_no_key(source, tmp_path):
    cache = tmp_path / "cache"
    assert TOP in next(from_lerobot(source, cache=cache, batch_size=4))
    assert TOP not in next(from_lerobot(source, cache=cache, batch_size=4, video=False))
    dataset = lerobot_dataset(source, cache=cache, video=False)
    assert TOP not in dataset[0] and TOP not in dataset.meta.features and dataset.meta.camera_keys == []


@pytest.mark.parametrize("offsets", [[0.0], None])
def test_a_key_of_a_left_out_camera_is_refused(offsets, source, tmp_path):
    with pytest.raises(
        robocache.ArgumentError, match=f"no camera with video=False, got '{TOP}'; leave it out, or pass video=True"
    ):
        lerobot_dataset(source, {TOP: offsets}, cache=tmp_path / "cache", video=False)


def test_an_unknown_key_without_a_window_is_refused(source, tmp_path):
    with pytest.raises(robocache.ArgumentError, match="no stream 'state'"):
        lerobot_dataset(source, {"state": None}, cache=tmp_path / "cache", video=False)


def test_a_cache_of_robocache_ingest_keeps_its_frames(source, tmp_path):
    robocache.ingest(source, tmp_path / "cache", image_size="32x24", image_codec="raw", jobs=1, index_columns=True)
    batch = next(from_lerobot(source, cache=tmp_path / "cache", batch_size=4))
    assert batch[TOP].shape == (4, 3, 24, 32)
    assert robocache.open(tmp_path / "cache").streams[TOP].frames.codec == "raw"
    assert lerobot_dataset(source, cache=tmp_path / "cache").meta.shapes[TOP] == (24, 32, 3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"},
    ],
)
def test_random_crops_of_a_dataloader_change_every_epoch(source, tmp_path, options):
    """Crops change without a call of set_epoch, and the same seed of torch repeats them."""
    images = robocache.ImageOptions(crop=(16, 16))
    dataset = lerobot_dataset(source, cache=tmp_path / "cache", images=images)
    uncropped = lerobot_dataset(source, cache=tmp_path / "cache")

    def epochs():
        dataset.set_epoch(0)
        torch.manual_seed(5)
        loader = torch.utils.data.DataLoader(dataset, batch_size=4, **options)
        return [torch.cat([batch[TOP] for batch in loader]) for _ in range(4)]

    frames = epochs()
    again = epochs()
    for epoch, other in itertools.combinations(frames, 2):
        is_same = [torch.equal(frame, other_frame) for frame, other_frame in zip(epoch, other, strict=True)]
        assert sum(is_same) < 7  # of 21; a frame has about a hundred crops
    assert all(map(torch.equal, frames, again))
    crops = uncropped[3][TOP].unfold(1, 16, 1).unfold(2, 16, 1)  # at all positions
    assert (crops == frames[0][3][:, None, None]).all(-1).all(-1).all(0).any()  # the crop is a part of the frame


def test_errors_keep_their_type_through_workers(source, tmp_path):
    lerobot_dataset(source, cache=tmp_path / "cache")
    _spoil(tmp_path / "cache", 3)
    dataset = lerobot_dataset(source, cache=tmp_path / "cache")
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=1)
    with pytest.raises(robocache.FrameError, match=f"stream '{TOP}', episode 0, row 3"):
        list(loader)
    outside = torch.utils.data.DataLoader(dataset, batch_size=None, sampler=[0, 21], num_workers=1)
    with pytest.raises(IndexError):
        list(outside)


def test_items_are_indexed_like_a_list(source, tmp_path):
    dataset = lerobot_dataset(source, cache=tmp_path / "cache")
    assert dataset[-1]["index"] == dataset[20]["index"] == dataset[np.int64(20)]["index"] == 20
    assert [item["index"].item() for item in dataset.__getitems__([-21, torch.tensor(3), -1])] == [0, 3, 20]
    for index in (21, -22):
        with pytest.raises(IndexError):
            dataset[index]
        with pytest.raises(IndexError):
            dataset.__getitems__([0, index])


def test_keys_without_offsets_have_a_mask_if_an_option_can_pad(source, tmp_path):
    """With an offset_s of minus one row, an episode's first frame has no row."""
    options = {"cache": tmp_path / "cache", "batch_size": 21, "shuffle": False, "method": {"action": "previous"}}
    batch = next(from_lerobot(source, offset_s={"action": -1 / 30}, **options))
    assert batch["action_is_pad"].tolist() == [k == 0 for n in LENGTHS for k in range(n)]
    assert f"{TOP}_is_pad" not in batch
    batch = next(from_lerobot(source, max_gap_s=1.0, **options))
    assert batch["action_is_pad"].tolist() == batch[f"{TOP}_is_pad"].tolist() == [False] * 21
    assert "action_is_pad" not in next(from_lerobot(source, **options))


def test_a_video_that_drifts(source, tmp_path):
    """It is refused; the error names an option that accepts it. The option also applies when the cache is made again."""
    write_video(source / video_of(2), [200 + k for k in range(9)], fps=20)
    cache = tmp_path / "cache"
    with pytest.raises(robocache.FileError, match=r"drift.*frames='by-index'.*; on_error='skip'"):
        from_lerobot(source, cache=cache, batch_size=21)
    loader = from_lerobot(source, cache=cache, batch_size=21, shuffle=False, frames="by-index")
    assert [_shown(frame) for frame in next(loader)[TOP]][12:] == [200 + k for k in range(9)]
    modified_ns = cache.stat().st_mtime_ns
    assert len(lerobot_dataset(source, cache=cache)) == 21 and cache.stat().st_mtime_ns == modified_ns
    (source / "meta/info.json").touch()
    assert len(lerobot_dataset(source, cache=cache)) == 21 and cache.stat().st_mtime_ns != modified_ns
    with pytest.raises(robocache.FileError, match="drift"):
        lerobot_dataset(source, cache=cache, frames="by-time")
    with pytest.raises(robocache.ArgumentError, match="frames: expected 'by-time', 'by-index' or None, got 'first'"):
        lerobot_dataset(source, cache=cache, frames="first")
    robocache.ingest(source, tmp_path / "ingested", frames="by-index", index_columns=True)
    assert len(lerobot_dataset(source, cache=tmp_path / "ingested")) == 21
    with pytest.raises(robocache.FileError, match="it was made with frames='by-index', expected frames='by-time';"):
        lerobot_dataset(source, cache=tmp_path / "ingested", frames="by-time")


def test_random_crops_of_items_depend_on_the_epoch(source, tmp_path):
    images = robocache.ImageOptions(crop=(16, 16))
    dataset = lerobot_dataset(source, cache=tmp_path / "cache", images=images)

    def crops():
        return torch.stack([item[TOP] for item in dataset.__getitems__(range(21))])

    first, second = crops(), crops()
    assert not torch.equal(first, second)
    dataset.set_epoch(1)
    assert not torch.equal(first, crops())
    dataset.set_epoch(0)
    assert torch.equal(first, crops()) and torch.equal(second, crops())
    with pytest.raises(robocache.ArgumentError, match="task_text"):
        lerobot_dataset(source, cache=tmp_path / "cache", task_text=False)


def test_a_camera_without_files_is_left_out_with_a_warning(source, tmp_path):
    planned = "observation.images.planned"
    declare(source, {planned: {"dtype": "video", "shape": [HEIGHT, WIDTH, 3]}})
    with pytest.warns(UserWarning, match=f"in the cache are left out, all else is read: {planned}") as error:
        dataset = lerobot_dataset(source, {"action": [0.0]}, cache=tmp_path / "cache")
    assert [warning.filename for warning in error] == [loaders_by_keywords.__file__]
    assert TOP in dataset[0] and planned not in dataset[0] and dataset.meta.camera_keys == [TOP]
    with (
        pytest.warns(UserWarning),
        pytest.raises(robocache.ArgumentError, match=f"'{planned}', which has no file there"),
    ):
        lerobot_dataset(source, {planned: [0.0]}, cache=tmp_path / "cache")


def test_depth_is_in_metres(source, tmp_path):
    depth = {"dtype": "image", "shape": [8, 6, 1], "names": None}
    declare(source, {"depth": depth | {"info": {"is_depth_map": True, "depth_unit": "mm"}}})
    stats = {"depth": {"mean": [[[500.0]]], "count": [21]}}
    (source / "meta/stats.json").write_text(json.dumps(stats))
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})

    def with_depth(table):
        files = [encode_image(np.full((8, 6), 100 * index, np.uint16), "TIFF") for index in table["index"].to_pylist()]
        return table.append_column("depth", pa.array([{"bytes": file, "path": None} for file in files], kind))

    for file in data_files(source):
        rewrite(file, with_depth)
    dataset = lerobot_dataset(source, cache=tmp_path / "cache")
    assert dataset.meta.depth_keys == ["depth"] and set(dataset.meta.camera_keys) == {TOP, "depth"}
    assert dataset[13]["depth"].shape == (1, 8, 6)
    np.testing.assert_allclose(dataset[13]["depth"], 1.3, rtol=1e-6)
    np.testing.assert_allclose(dataset.meta.stats["depth"]["mean"], [[[0.5]]])
    declare(source, {"depth": depth | {"info": {"is_depth_map": True}}})
    with pytest.warns(UserWarning, match="depth has none, since info.json does not say the .*depth_unit"):
        assert "depth" not in lerobot_dataset(source, cache=tmp_path / "cache").meta.stats


# ---- rows without a frame ----


@pytest.fixture
def lacking(source):
    """Returns the dataset without the video of episode 0."""
    (source / video_of(0)).unlink()
    return source


def test_episodes_without_a_video_are_not_drawn(lacking, tmp_path, device):
    options = {"cache": tmp_path / "cache", "on_error": "skip", "batch_size": 14}
    with pytest.warns(UserWarning, match=rf"1 of 3 episodes lack .*are left out.*{TOP} has none in 1: 0;") as warned:
        loader = from_lerobot(lacking, device=device, **options)
    assert [warning.filename for warning in warned] == [loaders_by_keywords.__file__]
    (batch,) = loader
    assert set(batch["episode_index"].tolist()) == {1, 2} and f"{TOP}_is_pad" not in batch
    assert [_shown(frame) for frame in batch[TOP]] == (100 * batch["episode_index"] + batch["frame_index"]).tolist()
    without_cameras = from_lerobot(lacking, video=False, **{**options, "batch_size": 21})
    assert set(next(without_cameras)["episode_index"].tolist()) == {0, 1, 2}
    with pytest.warns(UserWarning, match="1 of 2 episodes"):
        two_episodes = from_lerobot(lacking, episodes=[2, 0], **options)
    assert two_episodes.num_samples == 9
    with pytest.raises(robocache.ArgumentError, match=rf"got none among 1: {TOP} has none in 1: 0; video=False"):
        from_lerobot(lacking, episodes=[0], **options)


@pytest.mark.filterwarnings("ignore")
def test_episodes_without_a_camera_are_padded_with_the_option(lacking, tmp_path):
    options = {"cache": tmp_path / "cache", "on_error": "skip", "missing": "pad"}
    (batch,) = from_lerobot(lacking, batch_size=21, shuffle=False, **options)
    assert batch[f"{TOP}_is_pad"].tolist() == [True] * 7 + [False] * 14
    dataset = lerobot_dataset(lacking, **options)
    assert (len(dataset), dataset.episodes) == (21, None)
    assert [dataset[index][f"{TOP}_is_pad"].item() for index in (6, 7)] == [True, False]
    with pytest.raises(robocache.ArgumentError, match="missing"):
        from_lerobot(lacking, batch_size=1, **{**options, "missing": "error"})


def test_items_are_from_episodes_with_every_camera(lacking, tmp_path):
    with pytest.warns(UserWarning, match="1 of 3 episodes lack") as warned:
        dataset = lerobot_dataset(lacking, cache=tmp_path / "cache", on_error="skip")
    assert [warning.filename for warning in warned] == [loaders_by_keywords.__file__]
    assert (len(dataset), dataset.num_frames, dataset.num_episodes, dataset.episodes) == (14, 14, 2, [1, 2])
    assert dataset.absolute_to_relative_idx == {7 + index: index for index in range(14)}
    assert dataset.meta.total_episodes == 3
    assert dataset.meta.episodes["dataset_from_index"] == [0, 7, 12]
    for index in range(14):
        item = dataset[index]
        assert dataset.absolute_to_relative_idx[item["index"].item()] == index
        assert _shown(item[TOP]) == 100 * item["episode_index"] + item["frame_index"]
    with pytest.warns(UserWarning, match="1 of 2 episodes"):
        assert lerobot_dataset(lacking, episodes=[2, 0], cache=tmp_path / "cache", on_error="skip").episodes == [2]


@pytest.mark.filterwarnings("ignore:.*have no frame")
@pytest.mark.parametrize(
    "kept", [[0, 1, 2, 3, 4, 5], [0, 1, 4, 5, 8], [3, 4, 5, 6, 7, 8]], ids=["end", "middle", "start"]
)
def test_rows_without_a_frame_are_masked(kept, source, tmp_path, device):
    """A row without a frame never has the frame of another row."""
    write_video(source / video_of(2), [200 + k for k in kept], times=[k / 30 for k in kept])
    options = {"cache": tmp_path / "cache", "on_error": "skip"}
    with pytest.warns(UserWarning, match=rf"{TOP}: {9 - len(kept)} rows of episodes 2 have no frame; {TOP}_is_pad"):
        loader = from_lerobot(source, batch_size=21, shuffle=False, device=device, **options)
    (batch,) = loader
    for index, (e, k) in enumerate(zip(batch["episode_index"].tolist(), batch["frame_index"].tolist(), strict=True)):
        assert _shown(batch[TOP][index]) == 100 * e + k or batch[f"{TOP}_is_pad"][index]
    assert batch[f"{TOP}_is_pad"].tolist() == [False] * 12 + [k not in kept for k in range(9)]
    with pytest.warns(UserWarning, match="have no frame"):
        dataset = lerobot_dataset(source, {TOP: [-1 / 30, 0.0]}, **options)
    item = dataset[12 + 4]
    assert item[f"{TOP}_is_pad"].tolist() == [3 not in kept, 4 not in kept]
    with pytest.warns(UserWarning, match="have no frame"):
        item = lerobot_dataset(source, **options)[12 + 2]
    assert item[f"{TOP}_is_pad"].item() is (2 not in kept)
    robocache.ingest(source, tmp_path / "ingested", on_error="skip")
    with pytest.warns(UserWarning, match="batches lack them"):
        ingested = from_lerobot(
            source, cache=tmp_path / "ingested", on_error="skip", batch_size=21, shuffle=False, device=device
        )
    assert next(ingested)[f"{TOP}_is_pad"].tolist() == batch[f"{TOP}_is_pad"].tolist()
    padded = lerobot_dataset(source, missing="pad", **options)
    assert len(padded) == 21 and padded[12 + 2][f"{TOP}_is_pad"].item() is (2 not in kept)
    complete = lerobot_dataset(source, episodes=[0, 1], **options)
    assert f"{TOP}_is_pad" not in complete[0]


def test_no_episode_with_all_cameras(source, tmp_path):
    """Each of two cameras has some episodes, but no episode has both cameras."""
    other = "observation.images.wrist"
    declare(source, {other: {"dtype": "video", "shape": [HEIGHT, WIDTH, 3]}})
    write_video(source / video_of(0, other), range(7))
    (source / video_of(0)).unlink()
    message = rf"got none among 3: {other} has none in 2: 1-2; {TOP} has none in 1: 0;"
    with pytest.raises(robocache.ArgumentError, match=message):
        from_lerobot(source, batch_size=1, cache=tmp_path / "cache", on_error="skip")


def test_a_frame_damaged_later_is_masked(source, tmp_path):
    options = {"cache": tmp_path / "cache", "on_bad_frame": "pad"}
    lerobot_dataset(source, cache=tmp_path / "cache")
    _spoil(tmp_path / "cache", 3)
    (batch,) = from_lerobot(source, batch_size=21, shuffle=False, **options)
    assert batch[f"{TOP}_is_pad"].tolist() == [k == 3 for k in range(21)]
    dataset = lerobot_dataset(source, **options)
    assert [dataset[k][f"{TOP}_is_pad"].item() for k in (2, 3)] == [False, True]
