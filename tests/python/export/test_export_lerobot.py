"""Exports to LeRobot v3.0: pyarrow reads them as documented, and an ingest gives the same rows again."""

import io
import json
import re
import warnings
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loaders_by_keywords import loader_by_keywords
from PIL import Image
from robocache.cli import main

import robocache


def write_cache(path, rng, rate_hz=30, counts=(7, 5), start=10**18):
    with robocache.Writer(path) as writer:
        for number, count in enumerate(counts):
            with writer.episode(task=f"task {number % 2}", success=bool(number)) as episode:
                t = start + np.array([round(k * 1e9 / rate_hz) for k in range(count)])
                episode.append("observation/state", t, rng.normal(size=(count, 3)).astype(np.float32))
                episode.append("action", t, rng.normal(size=(count, 2)))
                episode.append("reward", t, rng.integers(-(2**62), 2**62, count))
                episode.append("touch", t, rng.normal(size=(count, 2, 3)).astype(np.float32))
                episode.append("done", t, np.arange(count) == count - 1)
                episode.append("top", t, rng.integers(0, 255, (count, 6, 8, 3)).astype(np.uint8), codec="jpeg")
                episode.append("wrist", t, rng.integers(0, 255, (count, 6, 8, 1)).astype(np.uint8), codec="raw")
        writer.stream("action", names=["a", "b"])
    return path


def write_stream(path, name, times, values, **options):
    with robocache.Writer(path) as writer, writer.episode() as episode:
        episode.append(name, times, values, **options)
    return path


to_lerobot = partial(robocache.export, to="lerobot")


def table(folder):
    return pq.read_table(folder / "data/chunk-000/file-000.parquet")


def column_values(column):
    return np.array(column.to_pylist())


def as_written(stream):
    """Returns a stream's values as the export has them: float32 in place of float64."""
    values = np.asarray(stream.values)
    return values.astype(np.float32) if values.dtype == np.float64 else values


def test_the_dataset_is_as_documented(rng, tmp_path):
    cache = robocache.open(write_cache(tmp_path / "cache", rng))
    to_lerobot(cache, tmp_path / "out")
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    expected = {"codebase_version": "v3.0", "fps": 30, "total_episodes": 2, "total_frames": 12, "total_tasks": 2}
    assert expected.items() <= info.items()
    assert info["features"]["observation.state"] == {"dtype": "float32", "shape": [3], "names": None}
    assert info["features"]["action"] == {"dtype": "float32", "shape": [2], "names": ["a", "b"]}
    assert info["features"]["reward"] == {"dtype": "int64", "shape": [1], "names": None}
    assert info["features"]["touch"]["shape"] == [2, 3]
    assert info["features"]["top"] == {"dtype": "image", "shape": [6, 8, 3], "names": ["height", "width", "channels"]}
    assert info["features"].keys() == set(table(tmp_path / "out").column_names)
    rows = table(tmp_path / "out")
    assert rows.schema.field("timestamp").type == pa.float32()
    assert rows["index"].to_pylist() == list(range(12))
    assert rows["frame_index"].to_pylist() == [*range(7), *range(5)]
    assert rows["episode_index"].to_pylist() == [0] * 7 + [1] * 5
    assert rows["task_index"].to_pylist() == [0] * 7 + [1] * 5
    assert np.array_equal(
        column_values(rows["timestamp"]).astype("f4"), (column_values(rows["frame_index"]) / 30).astype("f4")
    )
    tasks = pq.read_table(tmp_path / "out/meta/tasks.parquet")
    assert tasks.to_pylist() == [{"task_index": 0, "task": "task 0"}, {"task_index": 1, "task": "task 1"}]
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    episodes = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [row["tasks"] for row in episodes] == [["task 0"], ["task 1"]]
    assert [(row["dataset_from_index"], row["dataset_to_index"], row["length"]) for row in episodes] == [
        (0, 7, 7),
        (7, 12, 5),
    ]
    assert [row["first_stamp_ns"] for row in episodes] == [10**18] * 2
    assert [row["success"] for row in episodes] == [False, True]


def test_float64_beyond_float32_is_refused(tmp_path):
    values = np.array([[1.0, 1e300], [-1e39, np.inf], [np.nan, 2.0]])
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("action", np.arange(3) * 10**8, values)
        episode.append(
            "state", np.arange(3) * 10**8, np.where(np.isfinite(values) & (abs(values) > 10), np.inf, values)
        )
    with pytest.raises(robocache.FileError, match=r"episode 0: action: .* got 2 beyond it, up to 1e\+300; .*--streams"):
        to_lerobot(tmp_path / "cache", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_lerobot(tmp_path / "cache", tmp_path / "out", streams=["state"])
    expected = [[1, np.inf], [np.inf, np.inf], [np.nan, 2]]
    assert np.array_equal(table(tmp_path / "out")["state"].to_pylist(), expected, equal_nan=True)


def test_numbers_and_frames_equal_the_caches(rng, tmp_path):
    cache = robocache.open(write_cache(tmp_path / "cache", rng))
    report = to_lerobot(cache, tmp_path / "out")
    rows = table(tmp_path / "out")
    for name in ("observation/state", "action", "reward", "touch", "done"):
        recorded = as_written(cache.streams[name])
        assert np.array_equal(column_values(rows[name.replace("/", ".")]).astype(recorded.dtype), recorded)
    jpegs = [cell["bytes"] for cell in rows["top"].to_pylist()]
    assert jpegs == [cache.streams["top"].values.file(row).tobytes() for row in range(12)]
    for row, cell in enumerate(rows["wrist"].to_pylist()):
        assert np.array_equal(
            np.array(Image.open(io.BytesIO(cell["bytes"]))), cache.streams["wrist"].values[row][..., 0]
        )
    reasons = {omission.what: omission.reason for omission in report.left_out}
    assert reasons.keys() == {"stamps", "attributes, findings and provenance", "action: float64"}
    action = cache.streams["action"].values
    assert reasons["action: float64"].endswith(f"off by up to {np.abs(action - action.astype(np.float32)).max():.3g}")
    ingested = robocache.ingest(tmp_path / "out", tmp_path / "again")
    assert ingested.rows == {"observation.state": 12, "action": 12, "reward": 12, "touch": 12, "done": 12, "task_index": 12, "top": 12, "wrist": 12}  # fmt: skip
    second = robocache.open(tmp_path / "again")
    for name, stream in second.streams.items():
        if name != "task_index":
            first = cache.streams["observation/state" if name == "observation.state" else name]
            assert np.array_equal(np.asarray(stream.values), as_written(first))
            assert np.array_equal(stream.time_ns, first.time_ns - 10**18)
    to_lerobot(second, tmp_path / "third")
    for file in ("data/chunk-000/file-000.parquet", "meta/tasks.parquet"):
        exported, exported_again = (pq.read_table(tmp_path / folder / file) for folder in ("out", "third"))
        assert exported.equals(exported_again.select(exported.column_names))


def test_lerobots_own_reader_reads_it(rng, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    lerobot = pytest.importorskip("lerobot.datasets.lerobot_dataset")
    cache = robocache.open(write_cache(tmp_path / "cache", rng))
    to_lerobot(cache, tmp_path / "out")
    dataset = lerobot.LeRobotDataset("robocache/export", root=tmp_path / "out")
    assert (len(dataset), dataset.num_episodes, dataset.fps) == (12, 2, 30)
    for row in range(12):
        item = dataset[row]
        assert item["task"] == f"task {row // 7}"
        for name in ("observation/state", "action", "reward", "touch", "done"):
            expected = np.asarray(cache.streams[name].values[row])
            number = item[name.replace("/", ".")].numpy()
            assert np.array_equal(number, expected.astype(number.dtype))
        for name in ("top", "wrist"):
            pixels = np.rint(item[name].numpy().transpose(1, 2, 0) * 255)
            assert np.array_equal(pixels, cache.streams[name].frame(row))
    assert np.allclose(dataset.meta.stats["action"]["mean"], cache.streams["action"].values.mean(axis=0))


def test_lerobots_own_reader_reads_videos(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    lerobot = pytest.importorskip("lerobot.datasets.lerobot_dataset")
    pytest.importorskip("av")
    lengths = [9, 1, 6]
    shades = [20 * row + 10 * number for number, rows in enumerate(lengths) for row in range(rows)]
    with robocache.Writer(tmp_path / "cache") as writer:
        for number, rows in enumerate(lengths):
            frames = np.array(shades[sum(lengths[:number]) :][:rows], np.uint8)[:, None, None, None]
            with writer.episode() as episode:
                frames = np.broadcast_to(frames, (rows, 32, 48, 3)).copy()
                episode.append("top", np.arange(rows) * 40_000_000, frames, codec="png")
    to_lerobot(tmp_path / "cache", tmp_path / "out", video=True)
    dataset = lerobot.LeRobotDataset("robocache/export", root=tmp_path / "out", video_backend="pyav")
    assert np.allclose([255 * dataset[row]["top"].mean().item() for row in range(len(dataset))], shades, atol=3)


def test_statistics_equal_those_of_the_rows(rng, tmp_path):
    cache = robocache.open(write_cache(tmp_path / "cache", rng))
    to_lerobot(cache, tmp_path / "out")
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())
    state = cache.streams["observation/state"].values.astype(float)
    assert np.allclose(stats["observation.state"]["mean"], state.mean(axis=0), rtol=1e-12)
    assert np.allclose(stats["observation.state"]["std"], state.std(axis=0), rtol=1e-12)
    assert np.allclose(stats["observation.state"]["q10"], np.quantile(state, 0.1, axis=0), rtol=1e-12)
    assert stats["observation.state"]["count"] == [12]
    assert np.shape(stats["touch"]["max"]) == (2, 3)
    assert np.shape(stats["top"]["mean"]) == (3, 1, 1) and 0.4 < np.mean(stats["top"]["mean"]) < 0.6
    episodes = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert np.allclose(episodes[1]["stats/observation.state/min"], state[7:].min(axis=0))


def write_mixed(path, rng):
    """Writes a fast stream, a slow stream and a camera; each begins and ends at another time."""
    with robocache.Writer(path) as writer, writer.episode() as episode:
        fast, slow = np.arange(500) * 2_000_000, 5_000_000 + np.arange(90) * 10_000_000
        pictures = np.arange(31) * 33_333_333
        turns = rng.normal(size=(500, 4))
        episode.append("pose", fast, np.concatenate([rng.normal(size=(500, 3)), turns], axis=1))
        episode.append("mode", slow, rng.integers(0, 9, 90))
        episode.append("top", pictures, rng.integers(0, 255, (31, 4, 4, 3)).astype(np.uint8), codec="png")
        episode.append("words", slow, ["x"] * 90)
        writer.stream("pose", attributes={"methods": [[3, 7, "slerp"]]})
    return path


def test_different_clocks_are_refused_or_resampled(rng, tmp_path):
    cache = robocache.open(write_mixed(tmp_path / "cache", rng))
    with pytest.raises(robocache.ArgumentError, match=r"'mode' \(100 Hz, 90 rows\)|'pose' \(500 Hz, 500 rows\)"):
        to_lerobot(cache, tmp_path / "out")
    with pytest.raises(robocache.ArgumentError, match=r"the stamps of top .* with methods .--method.,"):
        to_lerobot(cache, tmp_path / "out", fps=20)
    methods = {"mode": "previous", "top": "nearest"}  # the stream of poses declares its own method
    report = to_lerobot(cache, tmp_path / "out", fps=20, methods=methods)
    assert "words" in {omission.what for omission in report.left_out}
    rows = table(tmp_path / "out")
    targets = 5_000_000 + np.arange((895_000_000 - 5_000_000) // 50_000_000 + 1) * 50_000_000
    assert len(rows) == len(targets) == 18
    (fast, pose), (slow, mode), (pictures, top) = (cache.episode(0)[name] for name in ("pose", "mode", "top"))
    for axis in range(3):
        assert np.allclose(column_values(rows["pose"])[:, axis], np.interp(targets, fast, pose[:, axis]), rtol=1e-6)
    assert np.allclose(np.linalg.norm(column_values(rows["pose"])[:, 3:], axis=1), 1)  # slerp, not linear
    assert rows["mode"].to_pylist() == mode[np.searchsorted(slow, targets, side="right") - 1].tolist()
    nearest = np.abs(pictures[None] - targets[:, None]).argmin(axis=1)
    assert [cell["bytes"] for cell in rows["top"].to_pylist()] == [top.file(row).tobytes() for row in nearest]
    for options, message in (
        ({"methods": methods | {"mode": "linear"}}, "mode"),
        ({"methods": "linear", "streams": ["pose", "top"]}, "expected previous or nearest for a camera"),
        ({"methods": {"nose": "linear"}}, "no stream nose"),
        # "mode" needs no method.
        ({"streams": ["mode"], "methods": "nearst", "fps": None}, "'mode': expected one of linear, .*, got 'nearst'"),
    ):
        with pytest.raises(robocache.ArgumentError, match=message):
            to_lerobot(cache, tmp_path / "b", **{"fps": 20} | options)
    for fps in (0, 2.5, True):
        with pytest.raises(robocache.ArgumentError, match="fps"):
            to_lerobot(cache, tmp_path / "b", fps=fps, methods=methods)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("method", ["previous", "next", "nearest"])
@pytest.mark.parametrize(("begin", "end"), [(1, 20), (2, 24), (0, 20)])
def test_rows_within_rounding_of_the_grid_are_copied(method, begin, end, tmp_path):
    """The grid adds multiples of 1/30 s to the first stamp, so a row's stamp and its time on the grid differ by up to 1 ns."""
    stamps = np.array([round(k * 1e9 / 30) for k in range(begin, end)])
    fast = np.array([round(k * 1e9 / 120) for k in range(4 * end)])
    shades = np.repeat(np.arange(begin, end, dtype=np.uint8), 32 * 32).reshape(-1, 32, 32, 1)
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("action", stamps, np.arange(begin, end, dtype=np.float32))
        episode.append("done", stamps, np.arange(begin, end) == end - 1)
        episode.append("state", fast, (np.arange(len(fast)) / 4).astype(np.float32))
        episode.append("camera", stamps, shades, codec="png")
    methods = dict.fromkeys(("state", "action", "done"), method) | {"camera": "nearest" if method == "next" else method}
    report = to_lerobot(tmp_path / "cache", tmp_path / "out", fps=30, methods=methods)
    written = table(tmp_path / "out")
    for key in ("action", "state"):
        assert column_values(written[key]).tolist() == list(range(begin, end)), key
    assert np.flatnonzero(column_values(written["done"])).tolist() == [end - begin - 1]
    grey_levels = [Image.open(io.BytesIO(image["bytes"])).getpixel((0, 0)) for image in written["camera"].to_pylist()]
    assert grey_levels == list(range(begin, end)) and report.rows["camera"] == end - begin


def test_the_error_names_each_stream_without_rows_once(tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer:
        for number in range(6):
            with writer.episode() as episode:
                for name, present in (("a", True), ("b", number != 2), ("c", number in (0, 5)), ("d", False)):
                    rows = 3 if present or (name == "d" and number == 0) else 0
                    episode.append(name, np.arange(rows) * 10**8, np.zeros(rows))
    for fps in (10, None):
        with pytest.raises(robocache.FileError) as error:
            to_lerobot(tmp_path / "cache", tmp_path / "out", fps=fps)
        text = str(error.value)
        assert "b: no rows in 1 of 6 episodes (2)" in text and "d: no rows in 5 of 6 episodes (1-5)" in text
        assert "c: no rows in 4 of 6 episodes (1-4)" in text and text.count("no rows") == 3
    assert to_lerobot(tmp_path / "cache", tmp_path / "out", streams=["a"]).rows == {"a": 18}


def test_unfit_streams_are_refused_by_name(tmp_path):
    with robocache.Writer(tmp_path / "uneven") as writer, writer.episode() as episode:
        episode.append("a/b", [0, 100_000_000, 150_000_000], [1.0, 2.0, 3.0])
        episode.append("a.b", [0, 100_000_000, 150_000_000], [1.0, 2.0, 3.0])
        episode.append("t", [0], ["x"])
    for streams, message in (
        (None, "would both become"),
        (["a/b"], "not those of a whole number of rows a second"),
        (["t"], "streams: expected"),
    ):
        with pytest.raises(robocache.ArgumentError, match=message):
            to_lerobot(tmp_path / "uneven", tmp_path / "b", streams=streams)


def test_columns_with_the_name_of_a_lerobot_column_are_left_out_by_name(tmp_path):
    times, values = np.arange(6) * 10**8, np.arange(6.0)
    with robocache.Writer(tmp_path / "cache") as writer:
        for fields in ({"tasks": ["reach", "lift"], "length": 6}, {"tasks": None, "length": 9}, {"tasks": ["lift"]}):
            with writer.episode(**fields, site="lab") as episode:
                episode.append("state", times, values)
                episode.append("task_index", times, np.arange(6))
    report = to_lerobot(tmp_path / "cache", tmp_path / "dataset")
    reasons = {omission.what: omission.reason for omission in report.left_out}
    assert reasons["episodes.tasks"] == reasons["episodes.length"] == "LeRobot's own column has that name"
    assert reasons["task_index"] == "the cache has no texts for its numbers"
    assert len(reasons) == 5  # stamps and attributes are never kept
    (episodes,) = (pq.read_table(path).to_pylist() for path in (tmp_path / "dataset/meta/episodes").rglob("*.parquet"))
    assert [(row["tasks"], row["length"], row["site"]) for row in episodes] == [
        (["reach"], 6, "lab"),
        ([""], 6, "lab"),
        (["lift"], 6, "lab"),
    ]


def test_an_impossible_span_is_refused_before_resampling(tmp_path):
    cache = write_stream(tmp_path / "cache", "joint", np.array([0, 1, 2**62]), np.zeros((3, 2)))
    with pytest.raises(robocache.FileError, match=r"episode 0: 30 rows a second .* expected at most 1000 for each"):
        to_lerobot(cache, tmp_path / "out", fps=30, methods="previous")
    slow = write_stream(tmp_path / "slow", "joint", np.arange(3) * 10**9, np.zeros((3, 2)))
    to_lerobot(slow, tmp_path / "fast", fps=1000, methods="previous")
    assert table(tmp_path / "fast").num_rows == 2001


def test_arguments_of_a_wrong_type_are_refused_and_leave_no_files(rng, tmp_path):
    cache = write_cache(tmp_path / "cache", rng)
    for arguments, message in (
        ({"methods": ["linear"], "fps": 30}, "methods: expected"),
        ({"streams": "action"}, "streams: expected a list"),
        ({"streams": 3}, "streams: expected a list of names, got 3"),
        ({"streams": [3]}, "streams: expected a str"),
        ({"video": "no"}, "video: expected True or False, got 'no'"),
        ({"to": 3}, "to: expected a str"),
    ):
        with pytest.raises(robocache.ArgumentTypeError, match=message):
            to_lerobot(cache, tmp_path / "out", **arguments)
    with pytest.raises(robocache.ArgumentError, match="methods: no stream 5 among"):
        to_lerobot(cache, tmp_path / "out", fps=30, methods={5: "linear"})
    frames = np.zeros((3, 6, 8, 3), np.uint8)
    for name in ("a\0b", ".."):
        odd = write_stream(tmp_path / f"odd{len(name)}", name, np.arange(3) * 10**8, frames, codec="png")
        with pytest.raises(robocache.ArgumentError, match="video: expected cameras whose names"):
            to_lerobot(odd, tmp_path / "out", video=True)
    text = write_stream(tmp_path / "text", "notes", [0], ["text"])
    with pytest.raises(robocache.ArgumentError, match="LeRobot can hold, got none; notes: text"):
        to_lerobot(text, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "odd2", "odd3", "text"]


def test_streams_left_out_are_named_in_order(rng, tmp_path):
    cache = write_cache(tmp_path / "cache", rng)
    report = to_lerobot(cache, tmp_path / "out", streams=iter(["action"]), fps=np.int64(30))
    not_requested = [omission.what for omission in report.left_out if "not among" in omission.reason]
    assert not_requested == ["observation/state", "reward", "touch", "done", "top", "wrist"]


@pytest.mark.parametrize("to", ["lerobot", "mcap"])
def test_an_export_into_the_cache_is_refused(to, rng, tmp_path):
    cache = write_cache(tmp_path / "cache", rng)
    (tmp_path / "link").symlink_to(cache)
    for folder in (
        cache / "out",
        cache / "deep" / "out",
        tmp_path / "link" / "out",
        tmp_path / "x" / ".." / "cache" / "o",
    ):
        with pytest.raises(robocache.ArgumentError, match="destination: expected a folder outside the cache"):
            robocache.export(tmp_path / "link", folder, to=to)
    assert not list(cache.glob("*ut")) and not (cache / "deep").exists()


@pytest.mark.filterwarnings("error")
def test_statistics_of_features_with_only_nan_give_no_warning(tmp_path):
    cache = write_stream(tmp_path / "cache", "joint", np.arange(3) * 10**8, np.full((3, 2), np.nan))
    to_lerobot(cache, tmp_path / "out")
    assert np.isnan(column_values(table(tmp_path / "out")["joint"])).all()


def test_the_nearest_of_frames_with_one_stamp_is_the_last(tmp_path):
    stamps = np.array([0, 90, 90, 200]) * 10**6
    shades = np.array([10, 20, 30, 40], np.uint8)
    frames = np.broadcast_to(shades[:, None, None, None], (4, 6, 8, 3)).copy()
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("top", stamps, frames, codec="raw")
        episode.append("shade", stamps, shades)
    to_lerobot(tmp_path / "cache", tmp_path / "out", fps=20, methods="nearest")
    rows = table(tmp_path / "out").to_pydict()
    exported = [np.asarray(Image.open(io.BytesIO(frame["bytes"])))[0, 0, 0] for frame in rows["top"]]
    assert exported == rows["shade"] == [10, 30, 30, 40, 40]


def test_a_destination_of_the_longest_name(tmp_path):
    cache = write_stream(tmp_path / "cache", "state", np.arange(3) * 10**8, np.zeros((3, 2)))
    to_lerobot(cache, tmp_path / ("n" * 255))
    assert (tmp_path / ("n" * 255) / "meta/info.json").exists()


def test_cameras_as_video(rng, tmp_path):
    av = pytest.importorskip("av")
    with robocache.Writer(tmp_path / "cache") as writer:
        for count in (9, 6):
            with writer.episode() as episode:
                t = np.array([round(k * 1e9 / 25) for k in range(count)])
                shades = np.arange(count, dtype=np.uint8)[:, None, None, None] * 20 + 10
                episode.append("state", t, rng.normal(size=(count, 2)))
                episode.append("top", t, np.broadcast_to(shades, (count, 32, 48, 3)).copy(), codec="png")
                episode.append("grey", t, np.broadcast_to(shades, (count, 32, 48, 1)).copy(), codec="raw")
    report = to_lerobot(tmp_path / "cache", tmp_path / "out", video=True)
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())
    assert np.shape(stats["grey"]["mean"]) == (3, 1, 1) and stats["grey"]["mean"] == stats["top"]["mean"]
    with pytest.raises(robocache.ArgumentError, match=r"video: expected cameras whose names .* got '\.\.'"):
        to_lerobot(tmp_path / "cache", tmp_path / "b", video=True, rename={"top": ".."})
    assert "frames as they are stored" in {omission.what for omission in report.left_out}
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert info["features"]["grey"]["dtype"] == "video" and info["features"]["grey"]["shape"] == [32, 48, 3]
    assert "top" not in table(tmp_path / "out").column_names
    row = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet").to_pylist()[1]
    assert [row[f"videos/top/{key}"] for key in ("chunk_index", "file_index", "from_timestamp", "to_timestamp")] == [
        0,
        1,
        0,
        6 / 25,
    ]
    for camera in ("top", "grey"):
        with av.open(str(tmp_path / f"out/videos/{camera}/chunk-000/file-000.mp4")) as container:
            decoded = [
                (float(frame.pts * frame.time_base), frame.to_ndarray(format="rgb24").mean())
                for frame in container.decode(video=0)
            ]
        assert np.allclose([time for time, _ in decoded], np.arange(9) / 25)
        assert np.allclose([shade for _, shade in decoded], np.arange(9) * 20 + 10, atol=3)
    ingested = robocache.ingest(tmp_path / "out", tmp_path / "again", image_codec="raw")
    assert ingested.rows == {"state": 15, "top": 15, "grey": 15, "task_index": 15}
    first, second = robocache.open(tmp_path / "cache"), robocache.open(tmp_path / "again")
    difference = np.asarray(first.streams["top"].values).astype(int) - np.asarray(second.streams["top"].values)
    assert np.abs(difference).max() <= 4
    odd = write_stream(tmp_path / "odd.cache", "top", [0, 10**8], np.zeros((2, 5, 4, 3), np.uint8), codec="png")
    with pytest.raises(robocache.ArgumentError, match=r"even height and width, .* got 5x4"):
        to_lerobot(odd, tmp_path / "b", video=True)
    labels = write_stream(
        tmp_path / "labels.cache", "top_mask", [0, 10**8], np.zeros((2, 6, 4, 1), np.uint8), codec="png"
    )
    with pytest.raises(robocache.ArgumentError, match="video: top_mask: its pixels are labels"):
        to_lerobot(labels, tmp_path / "b", video=True)


def test_on_the_command_line(rng, tmp_path, capsys):
    cache = write_mixed(tmp_path / "cache", rng)
    command = ["export", str(cache), str(tmp_path / "out"), "--to", "lerobot"]
    assert main(command) == 2
    output = capsys.readouterr().err
    assert re.search(r"give the rows per second with fps \(--fps\), such as \d+; \(2\)", output)
    assert output.endswith(
        "give their methods for resampling with methods (--method), such as mode=previous, top=nearest\n"
    )
    assert main([*command, "--fps", "20"]) == 2
    assert "with methods (--method), such as top=nearest\n" in capsys.readouterr().err
    assert main([*command, "--fps", "20", "--method", "previous", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == {"pose": 18, "mode": 18, "top": 18}
    assert main(["export", str(cache), str(tmp_path / "mcap"), "--to", "mcap", "--streams", "pose", "mode"]) == 0
    assert "590 rows" in capsys.readouterr().out
    assert main([*command, "--method", "a=linear", "--method", "linear"]) == 2
    renamed = ["export", str(cache), str(tmp_path / "c"), "--to", "lerobot", "--fps", "20", "--method", "previous"]
    assert main([*renamed, "--rename", "pose=observation.state", "--rename", "mode=action", "top=images.top"]) == 0
    assert set(table(tmp_path / "c").column_names) > {"observation.state", "action", "images.top"}
    capsys.readouterr()
    for argument, message in (
        ("pose", "expected STREAM=FEATURE, got 'pose'"),
        ("=x", "got 'x'"),
        ("a=b a=c", "each stream once"),
    ):
        assert main([*command, "--rename", *argument.split()]) == 2
        assert message in capsys.readouterr().err


# ---- features of other names ----


def write_arm(path, rng, count=8):
    """Writes a robot whose joints are in several streams of several types, at 10 Hz."""
    with robocache.Writer(path) as writer:
        for _ in range(2):
            with writer.episode() as episode:
                t = np.arange(count) * 10**8
                episode.append("arm.position", t, rng.normal(size=(count, 3)))
                episode.append("gripper/width", t, rng.normal(size=count).astype(np.float32))
                episode.append("contact", t, np.arange(count) % 2 == 0)
                episode.append("ticks", t, np.arange(count) + 2**40)
                episode.append("arm.command", t, rng.normal(size=(count, 2, 2)).astype(np.float16))
                episode.append("top", t, rng.integers(0, 255, (count, 6, 8, 3)).astype(np.uint8), codec="png")
        writer.stream("arm.position", names=["x", "y", "z"])
    return robocache.open(path)


def test_streams_are_renamed_and_concatenated(rng, tmp_path):
    cache = write_arm(tmp_path / "cache", rng)
    rename = {
        "gripper/width": "observation.state",
        "arm.position": "observation.state",
        "contact": "observation.state",
        "arm.command": "action",
        "top": "observation.images.top",
    }
    report = to_lerobot(cache, tmp_path / "out", rename=rename)
    assert report.rows == {**dict.fromkeys(cache.streams, 16)}
    info = json.loads((tmp_path / "out/meta/info.json").read_text())["features"]
    names = ["gripper/width", "arm.position.x", "arm.position.y", "arm.position.z", "contact"]
    assert info["observation.state"] == {"dtype": "float32", "shape": [5], "names": names}
    assert info["action"] == {"dtype": "float32", "shape": [2, 2], "names": None}
    rows = table(tmp_path / "out")
    parts = [cache.streams[name].values for name in ("gripper/width", "arm.position", "contact")]
    expected = np.concatenate([np.asarray(x).reshape(16, -1).astype(np.float32) for x in parts], axis=1)
    np.testing.assert_array_equal(column_values(rows["observation.state"]).astype(np.float32), expected)
    assert rows["ticks"].to_pylist() == cache.streams["ticks"].values.tolist()
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())
    np.testing.assert_allclose(stats["observation.state"]["mean"], expected.astype(np.float64).mean(0), rtol=1e-6)
    ingested = robocache.ingest(tmp_path / "out", tmp_path / "again")
    assert set(ingested.rows) == {"observation.state", "action", "ticks", "observation.images.top", "task_index"}
    second = robocache.open(tmp_path / "again").streams
    np.testing.assert_array_equal(second["observation.state"].values, expected)
    assert second["observation.state"].names == names
    np.testing.assert_array_equal(second["action"].values, np.asarray(cache.streams["arm.command"].values, np.float32))
    np.testing.assert_array_equal(second["observation.images.top"].values[:], cache.streams["top"].values[:])


def test_statistics_ignore_nan_and_infinity(tmp_path, rng):
    values = rng.normal(size=(20, 3)).astype(np.float32)
    values[3, 0], values[4, 0], values[5, 0], values[:, 2] = np.inf, -np.inf, np.nan, np.inf
    to_lerobot(write_stream(tmp_path / "cache", "action", np.arange(20) * 10**8, values), tmp_path / "out")
    set_stats = json.loads((tmp_path / "out/meta/stats.json").read_text())["action"]
    (episode_stats,) = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    finite = np.where(np.isfinite(values), values, np.nan).astype(np.float64)[:, :2]
    for key, reduce in (("mean", np.nanmean), ("std", np.nanstd), ("min", np.nanmin), ("max", np.nanmax)):
        for stats in (set_stats[key], episode_stats[f"stats/action/{key}"]):
            np.testing.assert_allclose(stats, [*reduce(finite, axis=0), np.nan], rtol=1e-12)
    np.testing.assert_allclose(set_stats["q90"][:2], np.nanquantile(finite, 0.9, axis=0), rtol=1e-12)


def test_concatenated_streams_of_one_type_keep_it(rng, tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        fast, slow = np.arange(100) * 10**7, np.arange(34) * 3 * 10**7
        turns = np.stack([np.cos(fast / 1e9), *np.zeros((2, 100)), np.sin(fast / 1e9)], axis=1)
        episode.append("turn", fast, np.where(np.arange(100)[:, None] % 2, -turns, turns))  # q and -q
        episode.append("left", fast, np.arange(100, dtype=np.int16))
        episode.append("right", slow, np.arange(34, dtype=np.int16))
        writer.stream("turn", attributes={"methods": [[0, 4, "slerp"]]})
    rename = {"right": "code", "left": "code", "turn": "observation.state"}
    methods = {"left": "previous", "right": "previous"}
    to_lerobot(tmp_path / "cache", tmp_path / "out", fps=40, methods=methods, rename=rename)
    rows = table(tmp_path / "out")
    targets = np.arange(len(rows)) * 25 * 10**6
    assert str(rows.schema.field("code").type.value_type) == "int16"
    assert column_values(rows["code"]).tolist() == np.stack([targets // (3 * 10**7), targets // 10**7], axis=1).tolist()
    state = column_values(rows["observation.state"])
    np.testing.assert_allclose(np.linalg.norm(state, axis=1), 1, rtol=1e-6)
    angles = np.unwrap(2 * np.arctan2(state[:, 3], state[:, 0]), period=2 * np.pi)
    np.testing.assert_allclose(angles, 2 * targets / 1e9, atol=1e-5)


def test_invalid_renames_are_refused(rng, tmp_path):
    cache = write_arm(tmp_path / "cache", rng)

    def check_refused(message, rename, **options):
        with pytest.raises(robocache.ArgumentError, match=message):
            robocache.export(cache, tmp_path / "out", **{"to": "lerobot", "rename": rename, **options})
        assert not (tmp_path / "out").exists()

    check_refused("rename: expected streams that are exported, .*, got 'leg'", {"leg": "action"})
    check_refused("got 'top'", {"top": "action"}, streams=["contact"])
    for feature in ("timestamp", "", "a/b"):
        check_refused("rename: expected a name", {"top": feature})
    check_refused("'ticks' and 'contact' would both become 'ticks'; give", {"contact": "ticks"})
    check_refused(
        "rename: expected each camera as a feature by itself, got 'top' in 'action'",
        {"top": "action", "contact": "action"},
    )
    check_refused("'action' would be float32, .* every int64 of 'ticks'", {"ticks": "action", "contact": "action"})
    check_refused("only for LeRobot", {"top": "action"}, to="mcap")
    for rename in ("top=action", {"top": 3}, [("top", "action")]):
        with pytest.raises(robocache.ArgumentTypeError, match="rename"):
            to_lerobot(cache, tmp_path / "out", rename=rename)


def test_one_error_lists_everything_missing(tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer:
        for number in range(2):
            with writer.episode() as episode:
                episode.append("arm", np.arange(50) * 10**7, np.zeros((50, 3)))
                episode.append("imu", np.arange(90) * 5 * 10**6, np.zeros(90))
                episode.append("mode", np.arange(50) * 10**7, np.zeros(50, np.int8))
                episode.append("top", np.arange(15) * 33 * 10**6, np.zeros((15, 5, 8, 3), np.uint8), codec="png")
                if number == 0:
                    episode.append("reward", np.arange(50) * 10**7, np.zeros(50))
    with pytest.raises(robocache.ArgumentError) as error:
        to_lerobot(tmp_path / "cache", tmp_path / "out", video=True, rename={"top": "action", "arm": "action"})
    for message in (
        "(1) rename: expected each camera as a feature by itself, got 'top'",
        "have different stamps; give the rows per second with fps (--fps), such as 30",
        "arm=linear, imu=linear, mode=previous, top=nearest, reward=linear",
        "video: top: expected frames of even height and width, which H.264 needs, got 5x8",
        "(5) reward: no rows in 1 of 2 episodes (1)",
    ):
        assert message in str(error.value), message
    with pytest.raises(robocache.ArgumentError) as error:
        to_lerobot(tmp_path / "cache", tmp_path / "out", fps=30, methods="linear", streams=["arm", "mode", "top"])
    assert "mode: expected previous or next or nearest for int8, got 'linear'" in str(error.value)
    assert "top: expected previous or nearest for a camera, got 'linear'" in str(error.value)


@pytest.mark.parametrize("largest", [2**63 - 1, 2**63])
def test_uint64_beyond_int64_is_left_out_by_name(largest, tmp_path):
    """LeRobot's tensors would turn larger numbers into negative ones."""
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode(task="a") as episode:
        t = np.arange(3) * 10**8
        episode.append("count", t, np.array([0, largest, 1], np.uint64))
        episode.append("x", t, np.ones((3, 1), np.float32))
    report = to_lerobot(robocache.open(tmp_path / "cache"), tmp_path / "out")
    left_out = {omission.what: omission.reason for omission in report.left_out}
    if largest < 2**63:
        assert "count" not in left_out and table(tmp_path / "out")["count"].to_pylist() == [0, largest, 1]
    else:
        assert "2^63" in left_out["count"] and "count" not in table(tmp_path / "out").column_names


def test_real_robots_round_trip(real_data, tmp_path):
    for folder, video in (("unitree_g1_real", True), ("gr00t_gr1_pnp_sim", False)):
        source = real_data("lerobot_v2") / folder
        options = {"on_error": "skip", "video": video, "image_size": "64x48"} if video else {"video": False}
        robocache.ingest(source, tmp_path / f"{folder}.cache", **options)
        first = robocache.open(tmp_path / f"{folder}.cache")
        streams = [
            name
            for name, stream in first.streams.items()
            if np.all(np.diff(stream.row_offsets)) and stream.frames is None
        ]
        to_lerobot(first, tmp_path / folder, streams=streams)
        robocache.ingest(tmp_path / folder, tmp_path / f"{folder}.again")
        second = robocache.open(tmp_path / f"{folder}.again")
        assert len(second) == len(first)
        for stream in streams:
            assert np.array_equal(second.streams[stream].values, as_written(first.streams[stream]))
            assert np.array_equal(second.streams[stream].time_ns, first.streams[stream].time_ns)
        # Tasks keep their indices, because GR00T's columns of annotations refer to them.
        assert second.provenance["lerobot"]["tasks"] == first.provenance["lerobot"]["tasks"]


# ---- tasks ----


def write_moments(path, with_table):
    """Writes episodes at 10 Hz. Some rows have no text; one text begins between two rows, one before all rows."""
    episodes = [
        ({"task": "of the episode"}, 6, [(0, "reach", 0), (25, "lift", 7), (40, "", -1)]),
        ({"task": "of the episode"}, 3, []),
        ({}, 4, [(-10, "lift", 7), (10, "reach", 0), (30, "lift", 7)]),
        ({}, 2, []),
    ]
    with robocache.Writer(path) as writer:
        for columns, count, texts in episodes:
            with writer.episode(**columns) as episode:
                t = 5 * 10**9 + np.arange(count) * 10**8
                episode.append("action", t, np.arange(2.0 * count).reshape(count, 2))
                if texts:
                    stamps = 5 * 10**9 + np.array([stamp for stamp, *_ in texts]) * 10**7
                    episode.append(
                        "goal", stamps, np.array([n for *_, n in texts]) if with_table else [s for _, s, _ in texts]
                    )
        writer.stream("goal", attributes={"task": True} | ({"texts": "goals"} if with_table else {}))
        writer.provenance["goals"] = {"0": "reach", "7": "lift"}
    return robocache.open(path)


EXPECTED = [
    ["reach"] * 3 + ["lift", None, None],
    ["of the episode"] * 3,
    ["lift", "reach", "reach", "lift"],
    [None] * 2,
]


def task_texts(dataset, **options):
    texts = [[] for _ in range(len(dataset))]
    for batch in loader_by_keywords(
        dataset, batch_size=4, delta_timestamps={"action": None}, task_text=True, shuffle=False, device="cpu", **options
    ):
        for episode, text in zip(batch["episode_index"].tolist(), batch["task"], strict=True):
            texts[episode].append(text)
    return texts


@pytest.mark.parametrize("with_table", [False, True])
def test_rule_47_rows_have_the_current_text(with_table, tmp_path):
    dataset = write_moments(tmp_path / "cache", with_table)
    assert task_texts(dataset) == EXPECTED
    to_lerobot(dataset, tmp_path / "out", streams=["action"])
    rows = pq.read_table(tmp_path / "out/data/chunk-000/file-000.parquet").to_pydict()
    tasks = pq.read_table(tmp_path / "out/meta/tasks.parquet").to_pylist()
    assert [row["task_index"] for row in tasks] == list(range(len(tasks)))
    flat = [text or "" for texts in EXPECTED for text in texts]
    assert [tasks[number]["task"] for number in rows["task_index"]] == flat
    listed = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet")["tasks"].to_pylist()
    assert listed == [list(dict.fromkeys(text or "" for text in texts)) for texts in EXPECTED]
    assert json.loads((tmp_path / "out/meta/info.json").read_text())["total_tasks"] == len(tasks)

    robocache.ingest(tmp_path / "out", tmp_path / "again")
    assert task_texts(robocache.open(tmp_path / "again")) == EXPECTED
    to_lerobot(tmp_path / "again", tmp_path / "twice")
    for file in ("data/chunk-000/file-000.parquet", "meta/tasks.parquet"):
        assert pq.read_table(tmp_path / "twice" / file).equals(pq.read_table(tmp_path / "out" / file))


def test_rule_47_texts_at_another_rate(tmp_path):
    dataset = write_moments(tmp_path / "cache", with_table=False)
    to_lerobot(dataset, tmp_path / "out", streams=["action"], fps=30, methods="linear")
    rows = pq.read_table(tmp_path / "out/data/chunk-000/file-000.parquet").to_pydict()
    tasks = pq.read_table(tmp_path / "out/meta/tasks.parquet")["task"].to_pylist()
    first = [
        tasks[number] for number, episode in zip(rows["task_index"], rows["episode_index"], strict=True) if episode == 0
    ]
    assert first == ["reach"] * 8 + ["lift"] * 4 + [""] * 4


def test_subtasks_and_text_indices_without_a_table(tmp_path):
    t = np.arange(4) * 10**8
    with robocache.Writer(tmp_path / "cache") as writer:
        with writer.episode() as episode:
            episode.append("action", t, np.arange(4.0))
            episode.append("task_index", t, np.array([1, 1, 0, 0]))
            for name in ("subtask_index", "annotation.same", "annotation.gaps"):
                episode.append(name, t, np.array([0, 1, 1, 0]))
        writer.stream("task_index", attributes={"texts": "lerobot.tasks", "task": True})
        writer.stream("subtask_index", attributes={"texts": "lerobot.subtasks"})
        writer.stream("annotation.same", attributes={"texts": "lerobot.tasks"})
        writer.stream("annotation.gaps", attributes={"texts": "others"})
        writer.provenance["lerobot"] = {"tasks": {"0": "pick", "1": "pour"}, "subtasks": {"0": "reach", "1": "lift"}}
        writer.provenance["others"] = {"0": "yes", "7": "no"}
    report = to_lerobot(tmp_path / "cache", tmp_path / "out")
    # A reader of the dataset would look up these indices in the table of tasks.
    assert [omission.what for omission in report.left_out if "texts" in omission.reason] == ["annotation.gaps"]
    assert "annotation.gaps" not in json.loads((tmp_path / "out/meta/info.json").read_text())["features"]
    subtasks = pq.read_table(tmp_path / "out/meta/subtasks.parquet")
    assert subtasks.to_pylist() == [{"subtask_index": 0, "subtask": "reach"}, {"subtask_index": 1, "subtask": "lift"}]
    assert json.loads(subtasks.schema.metadata[b"pandas"])["index_columns"] == ["subtask"]
    renamed = {"subtask_index": "part", "annotation.same": "subtask_index"}
    to_lerobot(tmp_path / "cache", tmp_path / "renamed", rename=renamed)
    subtasks = pq.read_table(tmp_path / "renamed/meta/subtasks.parquet")["subtask"].to_pylist()
    assert subtasks == ["pick", "pour"]
    with pytest.raises(
        robocache.ArgumentError, match=r"rename: subtask_index: LeRobot's table of tasks has other texts"
    ):
        to_lerobot(tmp_path / "cache", tmp_path / "annotated", rename={"subtask_index": "annotation.part"})
    robocache.ingest(tmp_path / "out", tmp_path / "again")
    again = robocache.open(tmp_path / "again")
    for name, texts in {
        "task_index": ["pour", "pour", "pick", "pick"],
        "subtask_index": ["reach", "lift", "lift", "reach"],
        "annotation.same": ["pick", "pour", "pour", "pick"],
    }.items():
        loader = robocache.Loader(
            again, batch_size=4, delta_timestamps={"action": None}, task_text=name, shuffle=False, device="cpu"
        )
        assert next(loader)["task"] == texts


def test_rows_in_gaps_are_counted(tmp_path):
    with_gap = np.concatenate([np.arange(50), np.arange(50) + 650]) * 10**8
    with robocache.Writer(tmp_path / "cache") as writer:
        for _ in range(2):
            with writer.episode() as episode:
                episode.append("state", with_gap, np.arange(100.0)[:, None])
                episode.append("whole", np.arange(700) * 10**8, np.arange(700.0)[:, None])
    report = to_lerobot(tmp_path / "cache", tmp_path / "set", fps=10, methods="linear")
    reasons = {note.what: note.reason for note in report.left_out if "recorded values" in note.what}
    assert list(reasons) == ["state: recorded values of 1200 of 1400 rows"]
    assert "gaps of up to 60.1 s" in reasons["state: recorded values of 1200 of 1400 rows"]
