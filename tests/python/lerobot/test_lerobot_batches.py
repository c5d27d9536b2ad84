"""Batches and items equal those of LeRobot's rules, bit for bit."""

import multiprocessing
import pickle
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from lerobot_files import Episode, declare, write_json_lines, write_lerobot
from loaders_by_keywords import from_lerobot, lerobot_dataset
from reference.lerobot import Items, assert_same_item
from robocache.lerobot import LeRobotLoader, open_cache
from sets import FPS, windows, write

import robocache

pytestmark = pytest.mark.filterwarnings("ignore:cameras without frames")


def assert_batch(batch, items, indices=None):
    """Compares each sample of the batch with an item: that at the same place of `indices`, by default the one with its `index`."""
    if indices is None:
        by_number = {row["index"]: index for index, row in enumerate(items.rows)}
        indices = [by_number[number] for number in batch["index"].tolist()]
    for sample, index in enumerate(indices):
        assert_same_item({key: values[sample] for key, values in batch.items()}, items[index])


def loader_of(source, **options):
    return from_lerobot(source, **{"batch_size": 100, "task_text": True, "on_error": "skip", "video": False} | options)


def dataset_of(source, *arguments, **options):
    return lerobot_dataset(source, *arguments, **{"on_error": "skip", "video": False} | options)


# ---- batches ----


@pytest.mark.parametrize(
    ("shuffle", "options"), [(False, {}), (True, {}), (True, {"reuse_buffers": True}), (True, {"residency": "mapped"})]
)
def test_an_epoch_of_batches(any_source, device, shuffle, options):
    items = Items(any_source, windows(any_source))
    loader = loader_of(any_source, delta_timestamps=windows(any_source), shuffle=shuffle, device=device, **options)
    seen = []
    for number, batch in enumerate(loader):
        seen += batch["index"].tolist()
        assert {values.device.type for values in batch.values() if torch.is_tensor(values)} == {device}
        if number % 7 == 0:  # `items` are slow
            assert_batch(batch, items)
    assert sorted(seen) == sorted(row["index"] for row in items.rows)
    assert (seen == sorted(seen)) is not shuffle


def test_without_windows_every_key_has_one_frame(source, device):
    items = Items(source)
    (batch,) = loader_of(source, device=device, shuffle=False)
    assert_batch(batch, items, range(len(items)))
    assert batch["observation.touch"].shape == (len(items), 2, 4)


def test_rule_47_each_frame_has_its_own_task_and_subtask(tmp_path):
    numbers, parts = [0, 2, 2, 0, 5], [1, 1, 0, -1, 0]
    columns = {"action": np.arange(5.0), "task_index": np.array(numbers), "subtask_index": np.array(parts)}
    source = write_lerobot(tmp_path / "source", [Episode(columns, tasks=["a", "b"])], "v2.1")
    tables = {"task": {0: "a", 1: "b", 2: ""}, "subtask": {0: "reach", 1: "lift"}}
    for name, texts in tables.items():
        rows = [{f"{name}_index": number, name: text} for number, text in texts.items()]
        write_json_lines(source / f"meta/{name}s.jsonl", rows)
    dataset = dataset_of(source, cache=tmp_path / "cache")
    # These are LeRobot's texts. "" also stands for an index without a text, for which LeRobot raises an error.
    assert [item["task"] for item in dataset] == ["a", "", "", "a", ""]
    assert [item["subtask"] for item in dataset] == ["lift", "lift", "reach", "", "reach"]
    collated = torch.utils.data.default_collate(list(dataset))  # default_collate refuses None
    assert collated["task"] == ["a", "", "", "a", ""]
    (batch,) = loader_of(source, cache=tmp_path / "cache", shuffle=False)
    assert batch["task"] == ["a", "", "", "a", ""] and batch["subtask"] == ["lift", "lift", "reach", "", "reach"]
    requested = {
        "task_index": robocache.Window(texts="indices"),
        "subtask_index": robocache.Window([0.0, 1 / FPS], texts="text"),
    }
    loader = loader_of(source, cache=tmp_path / "cache", delta_timestamps=requested, shuffle=False)
    (batch,) = loader
    assert loader.texts["task_index"] == ("a", "b") and batch["task_index"].tolist() == [0, -1, -1, 0, -1]
    assert batch["subtask_index"][1:4] == [["lift", "reach"], ["reach", ""], ["", "reach"]]
    assert batch["task"] == ["a", "", "", "a", ""]


@pytest.mark.parametrize("make", ["loader", "from_lerobot", "dataset", "mixture"])
@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_rows_whose_index_has_no_text_are_warned_of(version, make, tmp_path):
    episodes = [Episode({"action": np.zeros((4, 2)), "subtask_index": np.array([0, 7, 1, -1])}, tasks=["a"])]
    episodes[0].columns["task_index"] = np.array([0, 5, 9, 0])
    source = write_lerobot(tmp_path / "set", episodes, version)
    table = pa.table({"subtask_index": [0, 1], "subtask": ["reach", "lift"]})
    pq.write_table(table, source / "meta/subtasks.parquet")
    options = {"delta_timestamps": {"action": None}, "batch_size": 4, "shuffle": False, "device": "cpu"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if make == "from_lerobot":
            loader = robocache.Loader.from_lerobot(source, batch_size=4, shuffle=False, task_text=True, device="cpu")
            batch = next(loader)
            assert batch["task"] == ["a", "", "", "a"] and batch["subtask"] == ["reach", "", "lift", ""]
        elif make == "dataset":
            dataset = robocache.LeRobotDataset(source)
            assert [dataset[row]["task"] for row in range(4)] == ["a", "", "", "a"]
        else:
            cache = open_cache(source)
            sources = cache if make == "loader" else [robocache.Source(cache), robocache.Source(cache)]
            assert next(robocache.Loader(sources, task_text=True, **options))["task"][:2] == ["a", None]
    messages = [str(warning.message) for warning in caught if "have no text" in str(warning.message)]
    assert any("2 rows of task_index" in text and text.endswith("lacks 5, 9") for text in messages)
    subtask_messages = [text for text in messages if "1 rows of subtask_index" in text and text.endswith("lacks 7")]
    assert len(subtask_messages) == (1 if make in ("from_lerobot", "dataset") else 0)


def test_the_task_is_text_only_with_the_option(source):
    (batch,) = loader_of(source, task_text=False)
    assert "task" not in batch
    assert batch["task_index"].dtype == torch.int64


def test_integers_are_int64_if_they_fit(tmp_path):
    columns = {"small": np.arange(3, dtype=np.uint64), "large": np.arange(3, dtype=np.uint64) + 2**63}
    source = write_lerobot(tmp_path / "source", [Episode({"action": np.arange(3.0), **columns})], "v2.1")
    (batch,) = loader_of(source, cache=tmp_path / "cache", shuffle=False)
    items = dataset_of(source, cache=tmp_path / "cache")[0:3]
    for values in (batch, torch.utils.data.default_collate(items)):
        assert (values["small"].dtype, values["large"].dtype) == (torch.int64, torch.uint64)
        for name, column in columns.items():
            assert values[name].numpy().tolist() == column.tolist()


def test_numpy(source):
    items = Items(source, windows(source))
    (batch,) = loader_of(source, delta_timestamps=windows(source), shuffle=False, framework="numpy", device="cpu")
    assert all(isinstance(values, np.ndarray) for key, values in batch.items() if key != "task")
    tensors = {key: values if key == "task" else torch.from_numpy(values) for key, values in batch.items()}
    assert_batch(tensors, items, range(len(items)))


def test_episodes_have_lerobots_numbers(any_source):
    numbers = sorted({row["episode_index"] for row in Items(any_source).rows})
    chosen = [numbers[2], numbers[0]]
    items = Items(any_source, windows(any_source), chosen)
    loader = loader_of(any_source, delta_timestamps=windows(any_source), episodes=chosen)
    assert loader.num_samples == len(items)
    assert_batch(next(loader), items)


@pytest.mark.parametrize("indices", [(0, 2, 5, 6), (1, 2, 3, 4)])
def test_all_options_with_episodes_use_lerobots_numbers(indices, rng, tmp_path):
    episodes = [
        Episode({"action": np.full((n, 2), number, np.float32)})
        for number, n in zip(indices, (5, 4, 6, 3), strict=True)
    ]
    source = write_lerobot(tmp_path / "source", episodes, "v2.1", indices=list(indices))

    def drawn(**options):
        (batch,) = loader_of(source, batch_size=64, shuffle=False, device="cpu", **options)
        assert batch["action"][:, 0].tolist() == batch["episode_index"].tolist()
        return list(zip(batch["episode_index"].tolist(), batch["frame_index"].tolist(), strict=True))

    number = indices[1]
    rows = [{"episode": number, "start_row": 1, "end_row": 2}]
    assert drawn(anchors=robocache.Anchors(keep=rows)) == [(number, 1), (number, 2)]
    dropped = {"episode": [number], "start_s": [0], "end_s": [0]}
    assert set(drawn()) - set(drawn(anchors=robocache.Anchors(drop=dropped))) == {(number, 0)}
    where = pc.field("source_episode_index") == number
    for options in ({"anchors": robocache.Anchors(where=where)}, {"episodes": where}):
        assert {episode for episode, _ in drawn(**options)} == {number}
    for options in (
        {"anchors": robocache.Anchors(where=pc.field("episode_index") == 2)},
        {"episodes": {"episode_index": 2}},
    ):
        with pytest.raises(robocache.ArgumentError, match="expected source_episode_index"):
            drawn(**options)
    with pytest.raises(robocache.ArgumentError, match=r"anchors\.keep: episode: expected numbers of episodes .* got 9"):
        drawn(anchors=robocache.Anchors(keep=[{**rows[0], "episode": 9}]))
    goal = robocache.Window.other(stream="action")
    batch = next(loader_of(source, batch_size=64, delta_timestamps={"goal": goal}, device="cpu"))
    assert batch["goal_episode_index"].tolist() == batch["goal"][:, 0].tolist() != batch["episode_index"].tolist()


def test_the_last_frames_of_each_episode_are_left_out(source):
    """LeRobot's EpisodeAwareSampler(drop_n_last_frames=7) draws the same frames. The episodes have 23, 1, 40 and 12."""
    loader = loader_of(source, delta_timestamps=windows(source), drop_n_last=7)
    drawn = sorted(number for batch in loader for number in batch["index"].tolist())
    assert drawn == [*range(16), *range(24, 57), *range(64, 69)]


def test_a_cache_of_another_format_is_refused(tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("action", np.arange(4), np.zeros((4, 2), np.float32))
    with pytest.raises(robocache.ArgumentError, match=r"expected a result of open_cache\(\)"):
        LeRobotLoader(robocache.open(tmp_path / "cache"), batch_size=4)


def test_a_missing_episode_is_refused(source):
    for make in (loader_of, dataset_of):
        with pytest.raises(robocache.ArgumentError, match=r"episodes.*got 4"):
            make(source, episodes=[1, 4])
        with pytest.raises(robocache.ArgumentTypeError, match="episodes: expected a list of numbers, got 3"):
            make(source, episodes=3)
        result = make(source, episodes=torch.tensor([2, 0]))
        assert getattr(result, "episodes", [2, 0]) == [2, 0]


# ---- offsets ----


def test_offsets_within_lerobots_tolerance_are_frames(source):
    """At 30 Hz, 0.0333 s is 33 us before a frame. LeRobot takes that frame, so nothing may be interpolated."""
    items = Items(source, {"action": [-0.0333, 0.0, 0.0333, 0.0667]})
    offsets = [-0.0333, 0, np.float32(0.0333), 0.0667]
    for sequence in (offsets, tuple(offsets), np.array(offsets), torch.tensor(offsets, dtype=torch.float64)):
        (batch,) = loader_of(source, delta_timestamps={"action": sequence})
        assert_batch(batch, items)


@pytest.mark.parametrize("offset", [float("nan"), float("inf"), "0", None])
def test_offsets_that_are_no_finite_numbers(source, offset):
    with pytest.raises(robocache.Error, match="action"):
        loader_of(source, delta_timestamps={"action": [offset]})


@pytest.mark.parametrize("make", [loader_of, dataset_of])
def test_a_bool_is_no_offset(source, make):
    with pytest.raises(robocache.ArgumentTypeError, match=r"action'\]: expected a number, got True"):
        make(source, delta_timestamps={"action": [True]})


@pytest.mark.parametrize("make", [loader_of, dataset_of])
def test_offsets_between_frames_need_a_method(source, make):
    offsets = {"action": [0.0, 0.02]}
    with pytest.raises(robocache.ArgumentError, match="action"):
        make(source, delta_timestamps=offsets)
    first, second = (np.array(row["action"], np.float32) for row in Items(source).rows[:2])
    for methods in ("linear", {"action": "linear"}):
        result = make(source, delta_timestamps=offsets, method=methods)
        action = result[0]["action"] if make is dataset_of else result.gather([0])["action"][0]
        np.testing.assert_allclose(action[1], first + 0.02 * FPS * (second - first), rtol=1e-4)


def test_with_a_recorded_clock_windows_are_times(rng, tmp_path):
    """LeRobot takes the next row, 0.07 s later, for an offset of 0.1 s."""
    stamps, action = np.array([0.0, 0.13, 0.2, 0.3]), rng.normal(size=(4, 2)).astype(np.float32)
    source = write_lerobot(tmp_path / "source", [Episode({"action": action}, timestamp=stamps)], "v3.0", 10)
    (batch,) = loader_of(source, delta_timestamps={"action": [0.0, 0.1]}, shuffle=False)
    assert batch["timestamp"].tolist() == stamps.astype(np.float32).tolist()
    np.testing.assert_array_equal(batch["action"][:, 0], action)
    interpolated = [np.interp(stamps + 0.1, stamps, column) for column in action.T]
    np.testing.assert_allclose(batch["action"][:, 1], np.stack(interpolated, axis=1), rtol=1e-4, atol=1e-6)
    assert batch["action_is_pad"].tolist() == [[False, False]] * 3 + [[False, True]]


def test_rows_that_share_a_stamp_are_warned_of(rng, tmp_path):
    episodes = [Episode({"action": rng.normal(size=(n, 2)).astype(np.float32)}) for n in (6, 5)]
    episodes[1].timestamp = np.array([0, 1, 1, 3, 3.5]) / 30
    source = write_lerobot(tmp_path / "source", episodes, "v2.1", 30)
    with pytest.warns(robocache.LoaderWarning, match=r"timestamp: 1 rows of episodes 1 have the next row's stamp"):
        loader_of(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader_of(source, episodes=[0])


def test_an_unknown_key_is_named(source):
    with pytest.raises(robocache.ArgumentError, match=r"observation\.nothing"):
        loader_of(source, delta_timestamps={"observation.nothing": [0.0]})
    with pytest.raises(robocache.ArgumentTypeError, match="delta_timestamps"):
        loader_of(source, delta_timestamps=[0.0])


# ---- options ----


def test_default_options_do_not_change_index_columns(source):
    items = Items(source)
    (batch,) = loader_of(
        source,
        delta_timestamps={"action": [0.0]},
        shuffle=False,
        dtype="bfloat16",
        normalize="min_max",
        method="nearest",
        offset_s=0.01,
        return_age=True,
    )
    for key in ("timestamp", "frame_index", "index", "episode_index", "task_index"):
        expected = torch.stack([items[index][key] for index in range(len(items))])
        assert batch[key].dtype == expected.dtype
        assert torch.equal(batch[key], expected)
    assert batch["action"].dtype == batch["observation.state"].dtype == torch.bfloat16
    assert batch["action"].float().abs().max() <= 1
    assert [key for key in batch if key.endswith("_age")] == ["action_age"]
    # With offset_s, an episode's last moment has no later row, so each feature is padded there.
    features = {
        key for key in batch if key.startswith(("obs", "action", "next")) and not key.endswith(("_age", "_is_pad"))
    }
    masks = {key for key in batch if key.endswith("_is_pad")} - {"task_index_is_pad"}
    assert masks == {f"{key}_is_pad" for key in features}
    assert torch.equal(batch["observation.state_is_pad"], torch.roll(batch["frame_index"], -1) == 0)


def test_a_dataset_whose_cameras_have_no_files(rng, tmp_path):
    source = write(tmp_path / "source", rng)
    declare(source, {"observation.images.top": {"dtype": "video", "shape": [3, 8, 8], "names": None}})
    for make in (robocache.LeRobotDataset, lambda source: from_lerobot(source, batch_size=4)):
        with pytest.raises(robocache.FileError, match=r"of its camera observation\.images\.top .*; video=False"):
            make(source)
    dataset = lerobot_dataset(source, {"action": [0.0]}, video=False)
    assert not [key for key in dataset[0] if key.startswith("observation.images")]
    assert dataset.meta.camera_keys == []
    assert "observation.images.top" not in dataset.meta.features


def test_a_pickled_loader_keeps_its_position(source):
    deltas = {key: iter(seconds) for key, seconds in windows(source).items()}
    loader = loader_of(source, batch_size=16, delta_timestamps=deltas, episodes=iter([2, 0]), seed=3)
    next(loader)
    copy = pickle.loads(pickle.dumps(loader))
    for ours, theirs in zip(loader, copy, strict=True):
        assert ours["task"] == theirs["task"]
        assert all(ours[key].equal(theirs[key]) for key in ours if key not in ("task", "observation.state"))


# ---- the map-style dataset ----


def test_items_of_the_dataset(any_source):
    items = Items(any_source, windows(any_source))
    dataset = dataset_of(any_source, windows(any_source))
    assert len(dataset) == dataset.num_frames == len(items)
    for index in {0, 1, len(items) // 2, len(items) - 1, *range(0, len(items), 97)}:
        assert_same_item(dataset[index], items[index])
    assert_same_item(dataset[-1], items[len(items) - 1])
    for item, index in zip(dataset[5:11:2], (5, 7, 9), strict=True):
        assert_same_item(item, items[index])
    for outside in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            dataset[outside]


def test_many_items_are_in_the_requested_order(source):
    items, dataset = Items(source, windows(source)), dataset_of(source, windows(source))
    for indices in ([], [7], [3, 3, 60, 0], list(range(len(items))) * 5, np.array([5, 2])):
        result = dataset.__getitems__(indices)
        assert len(result) == len(indices)
        for item, index in zip(result, indices, strict=True):
            assert_same_item(item, items[index])


def test_an_item_keeps_the_memory_of_the_items_read_with_it_alone(source):
    dataset = dataset_of(source, windows(source))
    for count in (1, 16):
        item = dataset.__getitems__(range(count))[0]
        tensors = [value for value in item.values() if torch.is_tensor(value)]
        assert all(tensor.untyped_storage().nbytes() == count * tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("episodes", [None, [2], [3, 0]])
def test_selected_episodes(any_source, episodes):
    numbers = sorted({row["episode_index"] for row in Items(any_source).rows})
    chosen = None if episodes is None else [numbers[index] for index in episodes]
    items = Items(any_source, windows(any_source), chosen)
    dataset = dataset_of(any_source, windows(any_source), chosen)
    assert dataset.num_frames == len(items)
    assert dataset.num_episodes == (len(numbers) if episodes is None else len(episodes))
    for index in (0, len(items) - 1):
        assert_same_item(dataset[index], items[index])
    relative = {row["index"]: index for index, row in enumerate(items.rows)}
    if dataset.episodes is None:
        assert dataset.absolute_to_relative_idx is None
        assert relative == {index: index for index in range(len(items))}
    else:
        assert dataset.absolute_to_relative_idx == relative


def test_an_empty_list_of_episodes_is_refused(source):
    with pytest.raises(robocache.ArgumentError, match="episodes: expected at least one"):
        dataset_of(source, episodes=[])


@pytest.mark.parametrize(
    "workers", [None, *(method for method in ("fork", "spawn") if method in multiprocessing.get_all_start_methods())]
)
def test_in_a_dataloader(source, workers):
    items, dataset = Items(source, windows(source)), dataset_of(source, windows(source))
    dataset[0]  # starts threads here, which a forked process does not have
    batches = torch.utils.data.DataLoader(
        dataset, batch_size=16, num_workers=0 if workers is None else 2, multiprocessing_context=workers
    )
    for number, batch in enumerate(batches):
        assert_batch(batch, items, range(16 * number, min(16 * number + 16, len(items))))
    assert number == (len(items) - 1) // 16


def test_a_default_that_is_no_window_is_refused(source):
    for default in ([0.1], {}, 0):
        with pytest.raises(robocache.ArgumentTypeError, match=r"^default: expected a Window"):
            loader_of(source, default=default)
