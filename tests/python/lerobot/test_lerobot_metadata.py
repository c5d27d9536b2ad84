"""A dataset's `meta` has the attributes that LeRobot's trainer reads."""

import json
import pickle
import sys
import warnings
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_files import (
    BOOKKEEPING,
    Episode,
    append_column,
    data_files,
    declare,
    rewrite,
    with_column,
    write_json_lines,
    write_lerobot,
)
from loaders_by_keywords import from_lerobot, lerobot_dataset
from reference.lerobot import Items
from sets import write

import robocache
from robocache import frames

LENGTHS = (23, 1, 40, 12)


def test_meta(source):
    meta = lerobot_dataset(source, repo_id="someone/something").meta
    info = json.loads((source / "meta/info.json").read_text())
    assert (meta.fps, meta.robot_type, meta.root) == (30, "test_arm", source)
    assert (meta.repo_id, meta.revision) == ("someone/something", "v3.0")
    assert (meta.total_episodes, meta.total_frames, meta.total_tasks) == (4, sum(LENGTHS), 2)
    assert (meta.camera_keys, meta.image_keys, meta.video_keys, meta.depth_keys) == ([], [], [], [])
    assert meta.has_language_columns is False
    assert meta.features.keys() == info["features"].keys()
    assert all(
        meta.features[key] == {**info["features"][key], "shape": tuple(info["features"][key]["shape"])}
        for key in info["features"]
    )
    assert meta.shapes["observation.touch"] == (2, 4)
    assert meta.info == info


def test_attributes_of_the_dataset(source):
    dataset = lerobot_dataset(source, episodes=[0, 2])
    assert (dataset.fps, dataset.features) == (30, dataset.meta.features)
    assert repr(dataset) == (
        f"robocache.LeRobotDataset({str(source)!r}, 2 episodes, 63 frames at 30 fps, {len(dataset.features)} features)"
    )
    counts = f"{len(dataset.meta.episodes)} episodes, {dataset.meta.total_frames} frames at 30 fps"
    assert repr(dataset.meta) == f"robocache.lerobot.LeRobotMetadata({str(source)!r}, {counts})"
    assert repr(dataset.meta.episodes).startswith(
        "robocache.lerobot.LeRobotEpisodes(4 episodes: episode_index, tasks, "
    )
    assert not hasattr(dataset, "hf_dataset")
    with pytest.raises(AttributeError, match=r"frames are in a cache; dataset\[i\] gives a frame.*streams"):
        _ = dataset.hf_dataset


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_episodes(rng, tmp_path, version):
    episodes = lerobot_dataset(write(tmp_path / "source", rng, version)).meta.episodes
    assert len(episodes) == 4
    assert episodes["dataset_from_index"] == [0, 23, 24, 64]
    assert episodes["dataset_to_index"] == [23, 24, 64, 76]
    assert episodes["tasks"] == [["task 0"], ["task 1"], ["task 0"], ["task 1"]]
    bounds = {"dataset_from_index": 24, "dataset_to_index": 64}
    assert episodes[2] == {"episode_index": 2, "tasks": ["task 0"], "length": 40} | bounds
    assert [episode["length"] for episode in episodes] == list(LENGTHS)
    assert episodes.column_names == list(episodes[0])


def test_a_missing_episode_has_no_frames(source):
    (source / "data/chunk-000/file-000.parquet").unlink()  # episodes 0 and 1
    dataset = lerobot_dataset(source, on_error="skip")
    assert dataset.episodes == [2, 3]
    assert (dataset.num_episodes, dataset.num_frames) == (2, 52)
    assert dataset.meta.episodes["length"] == [0, 0, 40, 12]
    assert dataset.meta.episodes["dataset_from_index"][2:] == [24, 64]
    assert dataset.absolute_to_relative_idx == {24 + index: index for index in range(52)}
    with pytest.raises(robocache.ArgumentError, match="episodes"):
        lerobot_dataset(source, episodes=[0], on_error="skip")


def reindex(source, index_of):
    """Rewrites the column index: each row's becomes index_of(episode, frame, index)."""

    def change(table):
        rows = zip(*(table[name].to_pylist() for name in ("episode_index", "frame_index", "index")), strict=True)
        return with_column("index", pa.array([index_of(*row) for row in rows], pa.int64()))(table)

    for file in data_files(source):
        rewrite(file, change)


def test_an_index_that_does_not_count_the_rows_is_refused(source):
    """Samplers find an episode's rows by the index."""
    reindex(source, lambda episode, frame, index: frame)
    with pytest.raises(robocache.FileError, match="episodes 0 and 1: expected different values of index, got 0"):
        lerobot_dataset(source)
    reindex(source, lambda episode, frame, index: 7)
    with pytest.raises(robocache.FileError, match="episode 0: expected an index that rises by 1"):
        lerobot_dataset(source)


def test_an_index_that_does_not_begin_at_0(source):
    reindex(source, lambda episode, frame, index: index + 10 if episode < 2 else index + 20)
    dataset = lerobot_dataset(source)
    assert dataset.episodes == [0, 1, 2, 3]
    begins, ends = (dataset.meta.episodes[name] for name in ("dataset_from_index", "dataset_to_index"))
    assert (begins, ends) == ([10, 33, 44, 84], [33, 34, 84, 96])
    for number in range(4):
        for index in range(begins[number], ends[number]):
            item = dataset[dataset.absolute_to_relative_idx[index]]
            assert (item["index"], item["episode_index"]) == (index, number)


def test_stats_are_those_of_the_dataset(source):
    write_stats(
        source, {"action": {"mean": [1.0, 2.0], "std": [0.5, 0.25], "count": [76]}, "next.reward": {"mean": 3.5}}
    )
    stats = lerobot_dataset(source).meta.stats
    assert stats["action"]["mean"].tolist() == [1.0, 2.0]
    assert stats["action"]["std"].dtype == np.float64
    assert stats["next.reward"]["mean"].shape == (1,)


def write_stats(source, stats):
    (source / "meta/stats.json").write_text(json.dumps(stats))


def stats_of(rows):
    return {name: getattr(np, name)(rows, axis=0).tolist() for name in ("min", "max", "mean", "std")}


@contextmanager
def no_warning_of_stats():
    with warnings.catch_warnings():
        warnings.simplefilter("error", robocache.NormStatsWarning)
        yield


def test_stats_that_contradict_the_rows_are_warned_of(source):
    action = np.array([row["action"] for row in Items(source).rows], np.float64)
    correct = stats_of(action)
    for wrong, message in (
        ({"max": [0.0, 0.0], "min": [-1e-3, -1e-3]}, "min and max are -0.001 and 0"),
        ({"mean": (action.mean(0) + 2 * action.std(0)).tolist()}, "mean is"),
    ):
        write_stats(source, {"action": correct | wrong})
        with pytest.warns(robocache.NormStatsWarning, match=f"action: .*{message}.*compute them anew") as warned:
            assert lerobot_dataset(source).meta.stats["action"]["std"].tolist() == correct["std"]
        assert len(warned) == 1
    write_stats(source, {"action": correct, "index": {"min": [5], "max": [6]}})
    with no_warning_of_stats():
        assert lerobot_dataset(source).meta.stats["action"]["max"].tolist() == correct["max"]


def test_the_doctor_compares_stats_with_the_rows(rng, tmp_path):
    table = rng.normal(size=(20, 2)).astype(np.float32)
    root = write_lerobot(tmp_path / "set", [Episode({"action": table})], "v3.0")
    for changed, count in (({}, 0), ({"max": [100.0, 100.0]}, 1)):
        write_stats(root, {"action": stats_of(table) | changed})
        assert [finding.code for finding in robocache.doctor(root).findings].count("source-statistics") == count
    declare(root, {}, total_frames=1000, total_episodes=50)
    robocache.ingest(root, tmp_path / "part", on_error="skip")
    assert "source-statistics" not in {finding.code for finding in robocache.doctor(tmp_path / "part").findings}


def test_stats_of_the_cache(source):
    stats = lerobot_dataset(source).meta.stats
    action = np.array([row["action"] for row in Items(source).rows])
    np.testing.assert_allclose(stats["action"]["mean"], action.mean(0))
    np.testing.assert_allclose(stats["action"]["q99"], np.quantile(action, 0.99, axis=0))
    assert stats["action"]["count"].tolist() == [76]


def stats_of_episodes(rng):
    """Returns the statistics of each episode for a camera and the actions, and by key the rows of all episodes."""
    rows = [{"observation.images.top": rng.normal(size=(n, 3)), "action": rng.normal(size=(n, 2))} for n in LENGTHS]
    stats = [{key: stats_of(array) | {"count": [len(array)]} for key, array in episode.items()} for episode in rows]
    for episode in stats:
        camera = episode["observation.images.top"]
        camera.update({name: [[[number]] for number in values] for name, values in camera.items() if name != "count"})
    return stats, {key: np.concatenate([episode[key] for episode in rows]) for key in rows[0]}


def assert_stats_of(stats, rows):
    for key, array in rows.items():
        shape = (3, 1, 1) if array.shape[1] == 3 else (2,)
        for name in ("min", "max", "mean", "std"):
            np.testing.assert_allclose(stats[key][name], getattr(array, name)(0).reshape(shape), rtol=1e-9)
        assert stats[key]["count"].tolist() == [len(array)]


def test_stats_are_aggregated_over_episodes_in_version_2_1(rng, tmp_path):
    source = write(tmp_path / "source", rng, "v2.1")
    episode_stats, rows = stats_of_episodes(rng)
    lines = [{"episode_index": number, "stats": stats} for number, stats in enumerate(episode_stats)]
    earlier = {"episode_index": 1, "stats": episode_stats[0]}  # episode 1 was recorded again
    write_json_lines(source / "meta/episodes_stats.jsonl", [earlier, *lines])
    write_stats(source, {})  # version 2.1 ignores this file
    stats = lerobot_dataset(source).meta.stats
    assert_stats_of(stats, rows)
    action = np.array([row["action"] for row in Items(source).rows])
    np.testing.assert_allclose(stats["action"]["q99"], np.quantile(action, 0.99, axis=0))
    assert "q99" not in stats["observation.images.top"]
    (source / "meta/episodes_stats.jsonl").write_text("{\n")
    with pytest.raises(robocache.FileError, match=r"episodes_stats\.jsonl: line 1"):
        _ = lerobot_dataset(source).meta.stats


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_statistics_of_pixels_from_0_to_255_are_warned_of(version, tmp_path):
    """lerobot-train would normalise a batch's pixels, from 0 to 1, by these statistics."""
    png = bytes(frames.encode(np.full((1, 6, 8, 3), 99, np.uint8), codec="png").data)
    camera = {"dtype": "image", "shape": [6, 8, 3], "names": ["height", "width", "channels"]}
    features = {"action": {"dtype": "float64", "shape": [2], "names": None}, "top": camera} | BOOKKEEPING
    source = write_lerobot(tmp_path / "set", [Episode({"action": np.zeros((4, 2))})], version, features=features)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    append_column(source, "top", [{"bytes": png, "path": None}] * 4, kind)
    for most in (255, 1):
        numbers = {"min": 0, "max": most, "mean": most / 2, "std": most / 4}
        stats = {name: [[[number]]] * 3 for name, number in numbers.items()} | {"count": [4]}
        if version == "v2.1":
            write_json_lines(source / "meta/episodes_stats.jsonl", [{"episode_index": 0, "stats": {"top": stats}}])
        else:
            write_stats(source, {"top": stats})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert np.all(lerobot_dataset(source).meta.stats["top"]["max"] == most)
        messages = [str(one.message) for one in caught if issubclass(one.category, robocache.NormStatsWarning)]
        assert len(messages) == (most > 1)
        assert all("top: they go to 255, and the pixels of a batch" in message for message in messages)
        findings = [found for found in robocache.doctor(source).findings if found.code == "source-statistics"]
        assert [(finding.stream, finding.value) for finding in findings] == ([("top", 255.0)] if most > 1 else [])


def test_statistics_of_a_deleted_episode_are_warned_of(rng, tmp_path):
    """The deleted episode's statistics stay in episodes_stats.jsonl, and LeRobot includes them."""
    source = write(tmp_path / "source", rng, "v2.1")
    lines = []
    for number, file in enumerate(data_files(source)):
        action = np.array(pq.read_table(file)["action"].to_pylist())
        lines.append({"episode_index": number, "stats": {"action": stats_of(action) | {"count": [len(action)]}}})
    write_json_lines(source / "meta/episodes_stats.jsonl", [*lines, lines[0] | {"episode_index": 4}])
    with pytest.warns(robocache.NormStatsWarning, match="action: they are of 99 rows, the set has 76"):
        assert lerobot_dataset(source).meta.stats["action"]["count"].tolist() == [99]
    write_json_lines(source / "meta/episodes_stats.jsonl", lines)
    with no_warning_of_stats():
        assert lerobot_dataset(source).meta.stats["action"]["count"].tolist() == [76]


def test_stats_are_aggregated_over_episodes_in_version_3(source, rng):
    episode_stats, rows = stats_of_episodes(rng)
    file = source / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(file).to_pylist()
    for row, stats in zip(table, episode_stats, strict=True):
        row.update({f"stats/{key}/{name}": value for key, own in stats.items() for name, value in own.items()})
    pq.write_table(pa.Table.from_pylist(table), file)
    assert_stats_of(lerobot_dataset(source).meta.stats, rows)


def test_real_statistics_of_a_camera(real_data, tmp_path):
    source = real_data("lerobot_v2/unitree_g1_real")
    lines = [json.loads(line) for line in (source / "meta/episodes_stats.jsonl").read_text().splitlines()]
    episode_stats = [line["stats"]["observation.images.cam_high"] for line in lines]
    counts = np.array([own["count"][0] for own in episode_stats])
    sums = [count * np.array(own["mean"]) for count, own in zip(counts, episode_stats, strict=True)]
    mean = sum(sums) / counts.sum()
    dataset = lerobot_dataset(source, on_error="skip", video=False, cache=tmp_path / "cache")
    stats = dataset.meta.stats["observation.images.cam_high"]
    assert stats["mean"].shape == (3, 1, 1) and stats["count"].tolist() == [counts.sum()]
    np.testing.assert_allclose(stats["mean"], mean, rtol=1e-6)


def test_tasks_are_a_table_with_the_texts_as_its_index(source):
    pytest.importorskip("pandas", reason="meta.tasks is a DataFrame, as LeRobot has it")
    tasks = lerobot_dataset(source).meta.tasks
    assert tasks.loc["task 1"]["task_index"] == 1
    assert tasks.iloc[0].name == "task 0"


def test_tasks_without_pandas(source, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(robocache.Error, match=r"meta\.tasks: .*; pip install pandas"):
        _ = lerobot_dataset(source).meta.tasks


def test_meta_pickles(source):
    meta = pickle.loads(pickle.dumps(lerobot_dataset(source).meta))
    assert meta.episodes["length"] == list(LENGTHS)


def test_a_dataset_without_index_columns(source):
    for file in data_files(source):
        rewrite(file, lambda table: table.drop_columns(["index"]))
    with pytest.raises(robocache.FileError, match="column index"):
        lerobot_dataset(source)
    assert "index" not in next(from_lerobot(source, batch_size=4))
