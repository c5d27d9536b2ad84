"""LeRobot v2.0, v2.1 and v3.0 become caches; unreadable parts are named."""

import json
import re
import shutil
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lerobot_files import (
    LFS_POINTER,
    VERSIONS,
    Episode,
    append_column,
    arrow_column,
    data_files,
    declare,
    make_episodes,
    rewrite,
    with_column,
    write_json_lines,
    write_lerobot,
    write_table,
)
from outcomes import assert_refused, assert_skipped, ingest_and_open, reasons

import robocache

FIRST, SECOND = (f"data/chunk-000/episode_{number:06d}.parquet" for number in range(2))


def nominal_ns(frames, fps):
    """Returns round(k * 1e9 / fps) in integers."""
    return [round(Fraction(int(k) * 10**9) / Fraction(fps)) for k in frames]


def read_back(cache, episode):
    streams = robocache.open(cache).episode(episode)
    return {name: (np.asarray(times), np.asarray(values)) for name, (times, values) in streams.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_numeric_feature_becomes_a_stream(version, rng, tmp_path):
    episodes = make_episodes(rng)
    source = write_lerobot(tmp_path / "source", episodes, version)
    dataset, report = ingest_and_open(source, tmp_path / "cache")
    assert (report.format, report.episodes, len(dataset), report.skipped) == ("lerobot", 3, 3, [])
    assert set(dataset.streams) == {*episodes[0].columns, "task_index"}
    assert report.rows == dict.fromkeys(dataset.streams, 20)
    for number, episode in enumerate(episodes):
        streams = read_back(tmp_path / "cache", number)
        for name, expected in episode.columns.items():
            time_ns, values = streams[name]
            assert values.dtype == expected.dtype
            np.testing.assert_array_equal(values, expected)
            assert time_ns.tolist() == nominal_ns(range(len(episode)), 30)
    assert {omission.what for omission in report.left_out} == {"timestamp", "frame_index", "episode_index", "index"}


@pytest.mark.parametrize("version", VERSIONS)
def test_index_columns_are_streams_with_the_option(version, rng, tmp_path):
    episodes = make_episodes(rng)
    source = write_lerobot(tmp_path / "source", episodes, version)
    report = robocache.ingest(source, tmp_path / "cache", index_columns=True)
    streams = robocache.open(tmp_path / "cache").streams
    frames = np.concatenate([np.arange(len(episode)) for episode in episodes])
    expected = {"timestamp": (frames / 30).astype(np.float32), "frame_index": frames, "index": np.arange(20)}
    assert set(streams) == {*episodes[0].columns, "task_index", *expected}
    for name, values in expected.items():
        assert (streams[name].dtype, streams[name].clock) == (values.dtype, "nominal")
        np.testing.assert_array_equal(streams[name].values, values)
    assert [omission.what for omission in report.left_out] == ["episode_index"]


@pytest.mark.parametrize("version", VERSIONS)
def test_tasks_and_metadata_are_columns_of_the_episodes_table(version, rng, tmp_path):
    episodes = make_episodes(rng)
    episodes[1].tasks = ["place it", "valid"]
    for episode in episodes:
        episode.extra["nested"] = {"a": 1}
    source = write_lerobot(tmp_path / "source", episodes, version, indices=[0, 4, 5])
    report = robocache.ingest(source, tmp_path / "cache")

    table = robocache.open(tmp_path / "cache").episodes.to_pydict()
    assert table["source_episode_index"] == [0, 4, 5]
    assert table["tasks"] == [["pick the cup"], ["place it", "valid"], ["pick the cup"]]
    assert table["length"] == [7, 1, 12]
    assert table["success"] == [False, True, False]
    assert table["operator"] == ["p0", "p1", "p2"]
    assert table["weights"] == [[0.5, 0.25], [0.5, 1.25], [0.5, 2.25]]
    assert all((source / file).is_file() for file in table["source_file"])
    assert not [name for name in table if name.startswith(("stats/", "data/", "meta/", "dataset_"))]
    assert any(omission.what == "episodes.nested" for omission in report.left_out)
    provenance = robocache.open(tmp_path / "cache").provenance
    assert provenance["lerobot"]["tasks"]["0"] == "pick the cup"
    assert provenance["lerobot"]["robot_type"] == "test_arm"
    assert provenance["source"] == source.name


def test_feature_names_are_kept_if_each_feature_has_one(rng, tmp_path):
    episodes = make_episodes(rng)
    features = {
        "observation.state": {"dtype": "float32", "shape": [3], "names": {"motors": ["a", "b", "c"]}},
        "action": {"dtype": "float64", "shape": [2], "names": [["x", "y"]]},
        "observation.touch": {"dtype": "float32", "shape": [2, 4], "names": ["row", "column"]},
    }
    dataset, _ = ingest_and_open(write_lerobot(tmp_path / "source", episodes, features=features), tmp_path / "cache")
    assert list(dataset["observation.state"].names) == ["a", "b", "c"]
    assert list(dataset["action"].names) == ["x", "y"]
    assert not dataset["observation.touch"].names


# ---- texts ----


def read_texts(cache, task_text=True):
    """Returns the loader's task texts of the rows of `action`, a list for each episode."""
    dataset = robocache.open(cache)
    texts = [[] for _ in range(len(dataset))]
    stream = "action" if "action" in dataset.streams else "action.whole"
    options = {"batch_size": 9, "delta_timestamps": {stream: None}, "shuffle": False, "device": "cpu"}
    for batch in robocache.Loader(dataset, task_text=task_text, **options):
        for episode, text in zip(batch["episode_index"].tolist(), batch["task"], strict=True):
            texts[episode].append(text)
    return texts


def write_tasks(root, tables, version, numbers, **index_columns):
    """Writes episodes with these `task_index` and `index_columns`, a list each. tables: {name in meta/: {number: text}}."""
    episodes = []
    for number, task_indices in enumerate(numbers):
        n = len(task_indices)
        columns = {"action": np.arange(2.0 * n).reshape(n, 2), "task_index": np.array(task_indices)}
        columns |= {name: np.array(values[number]) for name, values in index_columns.items()}
        episodes.append(Episode(columns, tasks=list(tables["task"].values())))
    write_lerobot(root, episodes, version)
    for name, texts in tables.items():
        rows = [{f"{name}_index": number, name: text} for number, text in texts.items()]
        if version == "v3.0":
            write_table(root / f"meta/{name}s.parquet", pa.Table.from_pylist(rows))
        else:
            write_json_lines(root / f"meta/{name}s.jsonl", rows)
    return root


@pytest.mark.parametrize("version", VERSIONS)
def test_rule_47_each_row_has_its_task_under_any_mapped_name(version, tmp_path):
    tables = {"task": {0: "pick", 4: "pour", 2: "valid"}, "subtask": {0: "reach", 1: "lift"}}
    numbers, subtasks = [[0, 0, 4, 4, 0], [4, -1, 4]], [[0, 1, 1, -1, 0], [1, 1, 0]]
    validity = [[2] * 5, [2] * 3]
    source = write_tasks(
        tmp_path / "source", tables, version, numbers, subtask_index=subtasks, **{"annotation.human.validity": validity}
    )
    modality = {
        "action": {"whole": {"start": 0, "end": 2}},
        "annotation": {"human.task": {"original_key": "task_index"}, "human.again": {"original_key": "task_index"}},
    }
    mappings = {
        "none": None,
        "modality": modality,
        "own": {"streams": {"task_index": {"name": "goal"}, "subtask_index": {"name": "part"}}},
    }
    expected = [[{**tables["task"], -1: None}[k] for k in indices] for indices in numbers]
    for name, mapping in mappings.items():
        report = robocache.ingest(source, tmp_path / name, mapping=mapping)
        assert not [omission for omission in report.left_out if "texts of" in omission.what]
        assert read_texts(tmp_path / name) == expected
        assert read_texts(tmp_path / name, task_text="annotation.human.validity") == [["valid"] * 5, ["valid"] * 3]
        part = "part" if name == "own" else "subtask_index"
        expected_parts = [[{**tables["subtask"], -1: None}[k] for k in indices] for indices in subtasks]
        assert read_texts(tmp_path / name, task_text=part) == expected_parts
    provenance = robocache.open(tmp_path / "none").provenance["lerobot"]
    assert provenance["subtasks"] == {"0": "reach", "1": "lift"}
    with pytest.raises(robocache.ArgumentError, match="expected a stream 'action' of texts, or of numbers"):
        read_texts(tmp_path / "none", task_text="action")


def test_rule_47_numbers_that_the_table_lacks_are_named(tmp_path):
    numbers, annotation = [[0, 0], [1, 7, 7], [9, -1, 0]], [[5, 5], [0] * 3, [0] * 3]
    tables = {"task": {0: "pick", 1: "pour"}}
    source = write_tasks(tmp_path / "source", tables, "v2.1", numbers, annotation=annotation)
    report = robocache.ingest(source, tmp_path / "cache")
    left_out = reasons(report.left_out)
    assert left_out["task_index: texts of 7, 9"] == "the table in meta/ has no such numbers; 3 rows of episodes 1-2"
    assert read_texts(tmp_path / "cache") == [["pick"] * 2, ["pour", None, None], [None, None, "pick"]]
    findings = robocache.doctor(tmp_path / "cache", save=False).findings
    (unknown,) = [finding for finding in findings if finding.code == "unknown-task"]
    assert (unknown.severity, unknown.stream) == ("error", "task_index")
    assert (unknown.episode, unknown.row, unknown.count) == (1, 1, 3)
    assert unknown.message == "7, 9 have no text: 3 rows of 2 episodes, 1-2"
    sharded_report = robocache.ingest(source, tmp_path / "shards", workers=2)
    assert reasons(sharded_report.left_out) == left_out


def test_rule_47_language_columns_are_streams_of_text(tmp_path):
    """As in lerobot/datasets/language.py: persistent texts are in every row of the episode, with their stamps in float32."""
    episodes = [Episode({"action": np.arange(50.0)}), Episode({"action": np.arange(3.0)})]
    source = write_lerobot(tmp_path / "source", episodes, "v3.0")

    def make_text(role, content, style, camera=None, tool_calls=None, **stamp):
        texts = {"role": role, "content": content, "style": style, "camera": camera, "tool_calls": tool_calls}
        return texts | stamp

    annotations = [(0, "reach", "subtask"), (40, "lift", "subtask"), (7, "reach, then lift", "plan")]
    persistent = [
        make_text("assistant", text, style, timestamp=np.float32(row / 30)) for row, text, style in annotations
    ]
    events = [[] for _ in range(53)]
    events[5] = [make_text("user", "stop", "interjection")]
    events[6] = [
        make_text("assistant", None, None, tool_calls=["{}"]),
        make_text("user", "where?", "vqa", "top"),
        make_text("assistant", "there", "vqa", "top"),
    ]
    events[7] = [make_text("user", "and now?", "vqa", "top")]
    events[49] = [make_text("user", "go", "interjection")]
    fields = [(name, pa.string()) for name in ("role", "content", "style", "camera")]
    fields.append(("tool_calls", pa.list_(pa.string())))
    list_type = pa.list_(pa.struct([*fields, ("timestamp", pa.float32())]))
    append_column(source, "language_persistent", [persistent] * 50 + [[]] * 3, list_type)
    append_column(source, "language_events", events, pa.list_(pa.struct(fields)))
    report = robocache.ingest(source, tmp_path / "cache")
    assert not [omission for omission in report.left_out if "language" in omission.what]
    streams = robocache.open(tmp_path / "cache").episode(0)
    stream_texts = {name: list(texts) for name, (_, texts) in streams.items() if name.startswith("language")}
    assert stream_texts == {
        "language_persistent/subtask": ["reach", "lift"],
        "language_persistent/plan": ["reach, then lift"],
        "language_events/interjection": ["stop", "", "go"],
        "language_events/assistant": ['["{}"]', ""],
        "language_events/vqa/user/top": ["where?", "and now?", ""],
        "language_events/vqa/assistant/top": ["there", ""],
    }
    asked_ns = streams["language_events/vqa/user/top"][0]
    assert np.flatnonzero(np.isin(streams["action"][0], asked_ns)).tolist() == [6, 7, 8]
    interjections = read_texts(tmp_path / "cache", "language_events/interjection")[0]
    assert {row: text for row, text in enumerate(interjections) if text} == {5: "stop", 49: "go"}
    subtasks = read_texts(tmp_path / "cache", "language_persistent/subtask")
    assert subtasks == [["reach"] * 40 + ["lift"] * 10, [None] * 3]
    assert read_texts(tmp_path / "cache")[0] == ["pick the cup"] * 50


@pytest.mark.parametrize("name", ["task_index", "annotation.human.action"])
def test_text_indices_stored_as_floats(name, tmp_path):
    """pandas turns whole numbers into floats when one is missing."""
    episodes = [Episode({"action": np.arange(4.0)}, tasks=["a", "b"]), Episode({"action": np.arange(3.0)}, tasks=["a"])]
    dtypes = {"action": "float64", name: "int64"}
    features = {key: {"dtype": dtype, "shape": [1], "names": None} for key, dtype in dtypes.items()}
    source = write_lerobot(tmp_path / "source", episodes, features=features)

    def store(file, numbers):
        table = pq.read_table(file)
        other_columns = table.drop_columns([name]) if name in table.column_names else table
        pq.write_table(other_columns.append_column(name, pa.array(np.array(numbers, np.float64))), file)

    for file, numbers in zip(data_files(source), ([0, 1, np.nan, 1], [1, 0, 0]), strict=True):
        store(file, numbers)
    dataset, _ = ingest_and_open(source, tmp_path / "cache")
    assert read_texts(tmp_path / "cache", name) == [["a", "b", None, "b"], ["b", "a", "a"]]
    assert dataset[name].values.tolist() == [0, 1, -1, 1, 1, 0, 0]
    store(file, [0.5, 0, 0])
    assert_refused(source, tmp_path / "cache2", f"column {name}: row 0 is 0.5, expected the number of a text")


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_texts_of_tasks_with_another_name(version, tmp_path):
    episodes = [Episode({"action": np.arange(2.0)}, tasks=[task]) for task in "ab"]
    source = write_lerobot(tmp_path / "source", episodes, version)
    file = source / ("meta/tasks.jsonl" if version == "v2.1" else "meta/tasks.parquet")

    def write_table_of_tasks(*columns):
        rows = [{"task_index": number} | {name: texts[number] for name, texts in columns} for number in range(2)]
        write_json_lines(file, rows) if version == "v2.1" else pq.write_table(pa.Table.from_pylist(rows), file)

    write_table_of_tasks(("instruction", "ab"), ("times", [3, 4]))
    report = robocache.ingest(source, tmp_path / "cache")
    assert read_texts(tmp_path / "cache") == [["a", "a"], ["b", "b"]]
    assert reasons(report.assumed)["meta/tasks"] == "its texts are those of instruction: it has no task"
    write_table_of_tasks(("instruction", "ab"), ("other", "cd"))
    assert_refused(source, tmp_path / "cache2", "tasks: expected texts as task, got instruction, other")


def test_replaced_texts_of_a_row_are_counted(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (4,)))
    texts = [{"role": "user", "content": text, "style": "task_aug", "timestamp": 0.0} for text in ("a", "b", "c")]
    append_column(source, "language_persistent", [texts] * 4)
    report = robocache.ingest(source, tmp_path / "cache")
    assert "language_persistent/task_aug: 2 texts" in reasons(report.left_out)
    assert read_texts(tmp_path / "cache", "language_persistent/task_aug") == [["c"] * 4]


@pytest.mark.parametrize("is_category", [False, True])
def test_a_text_column_is_the_task_without_task_index(is_category, tmp_path):
    source = write_lerobot(tmp_path / "source", [Episode({"action": np.arange(4.0)}, tasks=["a", "b"])])
    (file,) = data_files(source)
    rewrite(file, lambda table: table.drop_columns(["task_index"]))
    for name, values in {"language_instruction": [None, "a", None, "b"], "gain": [2.5, None, 7.0, 2.5]}.items():
        column = pa.array(values)
        append_column(source, name, column.dictionary_encode() if is_category else column)
    dataset, _ = ingest_and_open(source, tmp_path / "cache")
    assert read_texts(tmp_path / "cache") == [[None, "a", None, "b"]]
    np.testing.assert_array_equal(dataset["gain"].values, [2.5, np.nan, 7.0, 2.5])


def test_text_columns_are_streams_of_text(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)))
    columns = {"instruction": ["pick", None, "plåce"], "steps": [["a", "b"], [], ["c"]], "never": [None] * 3}
    for number, file in enumerate(sorted((source / "data").rglob("*.parquet"))):
        table = pq.read_table(file)
        for name, texts in columns.items():
            kind = pa.list_(pa.large_string()) if name == "steps" else pa.string()
            table = table.append_column(name, pa.array([*texts, *texts[:number]], kind))
        pq.write_table(table, file)
    dataset, report = ingest_and_open(source, tmp_path / "cache")
    assert "never" not in dataset.streams
    assert not {"instruction", "steps"} & reasons(report.left_out).keys()
    for number in range(2):
        streams = dataset.episode(number)
        time_ns, texts = streams["instruction"]  # a null after a text ends it
        assert list(texts) == ["pick", "", "plåce", *["pick"] * number]
        assert time_ns.tolist() == streams["action"][0].tolist()
        assert [json.loads(text) for text in streams["steps"][1]] == [["a", "b"], [], ["c"], *[["a", "b"]] * number]
    assert dataset.streams["instruction"].clock == dataset.streams["action"].clock


# ---- clocks ----


@given(
    fps=st.one_of(st.integers(1, 1000), st.sampled_from([23.976, 29.97, 12.5])),
    length=st.integers(1, 2000),
    first=st.sampled_from([0, 1]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_frame_counts_become_the_exact_nominal_clock(fps, length, first, dtype):
    from robocache.ingest.lerobot import _read_clock

    frames = np.arange(length)
    time_ns, clock = _read_clock(frames, ((frames + first) / fps).astype(dtype), fps, "here")
    assert clock == ("nominal_from_1" if first else "nominal")
    assert np.abs(time_ns - np.array(nominal_ns(frames, fps))).max() <= (0 if isinstance(fps, int) else 1)


def test_summed_rounded_steps_are_frame_counts(rng, tmp_path):
    episodes = make_episodes(rng, (300,))
    episodes[0].timestamp = np.arange(1, 301) * 0.04999995231628418
    dataset, _ = ingest_and_open(write_lerobot(tmp_path / "source", episodes, fps=20), tmp_path / "cache")
    assert dataset["action"].clock == "nominal"
    assert dataset["action"].time_ns.tolist() == [50_000_000 * k for k in range(300)]


@pytest.mark.parametrize(
    "stamps",
    [
        *(
            (start + np.arange(40) / 30).astype(dtype)
            for dtype, start in ((np.float32, 1.7e9), (np.float32, 3e5), (np.float16, 100.0))
        ),
        np.arange(40) // 30,  # whole seconds
    ],
    ids=["since 1970", "uptime", "float16", "whole"],
)
def test_stamps_too_coarse_for_rows_become_the_nominal_clock(stamps, rng, tmp_path):
    """For example float32 seconds since 1970, with steps of 128 s."""
    episodes = make_episodes(rng, (40, 9))
    episodes[0].timestamp = stamps
    dataset, report = ingest_and_open(write_lerobot(tmp_path / "source", episodes), tmp_path / "cache")
    assert [dataset.episode(e)["action"][0].tolist() for e in (0, 1)] == [nominal_ns(range(n), 30) for n in (40, 9)]
    assert dataset.provenance["lerobot"]["episodes_by_clock"] == {"nominal_of_rounded": 1, "nominal": 1}
    assert "timestamp as recorded" in reasons(report.left_out)


def test_stamps_too_coarse_for_rows_without_frame_counts_are_refused(rng, tmp_path):
    episodes = make_episodes(rng, (40,))
    episodes[0].timestamp = (1.7e9 + np.arange(40) * 20.0).astype(np.float32)
    source = write_lerobot(tmp_path / "source", episodes)
    assert_refused(source, tmp_path / "cache", "episode 0: column timestamp: float32 of 1700000000 has steps")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_real_clock_stays_recorded(dtype, rng, tmp_path):
    episodes = make_episodes(rng, (40, 30))
    for episode in episodes:
        episode.timestamp = (np.arange(len(episode)) / 30 + rng.uniform(0, 0.01, len(episode))).astype(dtype)
    source = write_lerobot(tmp_path / "source", episodes)
    dataset, _ = ingest_and_open(source, tmp_path / "cache")
    assert {stream.clock for stream in dataset.streams.values()} == {"recorded"}
    for number, episode in enumerate(episodes):
        expected = [round(Fraction(float(t)) * 10**9) for t in episode.timestamp]
        np.testing.assert_allclose(dataset.episode(number)["action"][0], expected, rtol=0, atol=1)
    assert dataset.provenance["lerobot"]["episodes_by_clock"] == {"recorded": 2}


def test_one_recorded_episode_makes_the_stream_recorded(rng, tmp_path):
    episodes = make_episodes(rng, (10, 10))
    episodes[1].timestamp = np.arange(10) / 30 + rng.uniform(0, 0.01, 10)
    dataset, _ = ingest_and_open(write_lerobot(tmp_path / "source", episodes), tmp_path / "cache")
    assert dataset.streams["action"].clock == "recorded"
    assert dataset.episode(0)["action"][0].tolist() == nominal_ns(range(10), 30)
    assert dataset.provenance["lerobot"]["episodes_by_clock"] == {"nominal": 1, "recorded": 1}


def test_dropped_frames_leave_gaps(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (4,)))
    frames = np.array([0, 1, 5, 6])
    rewrite(source / FIRST, with_column("frame_index", frames))
    rewrite(source / FIRST, with_column("timestamp", (frames / 30).astype(np.float32)))
    dataset, _ = ingest_and_open(source, tmp_path / "cache")
    assert dataset["action"].time_ns.tolist() == nominal_ns(frames, 30)


# ---- values ----


def test_null_among_floats_is_nan(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (4,)))
    rewrite(source / FIRST, with_column("next.reward", [0.5, None, 1.5, None]))
    dataset, _ = ingest_and_open(source, tmp_path / "cache")
    np.testing.assert_array_equal(dataset["next.reward"].values, [0.5, np.nan, 1.5, np.nan])


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_null_among_integers_makes_a_float_column_with_nan(version, rng, tmp_path):
    """The stream is float in all episodes, also in an earlier one without a null. Its values are held, like integers."""
    episodes = make_episodes(rng, (4, 5))
    for episode in episodes:
        n = len(episode)
        episode.columns |= {"count": np.arange(n), "flag": np.arange(n) % 2 == 0}
    source = write_lerobot(tmp_path / "source", episodes, version, per_file=1)
    file = data_files(source)[1]
    rewrite(file, with_column("count", pa.array([0, None, 2, 3, None], pa.int64())))
    rewrite(file, with_column("flag", pa.array([True, False, None, False, True])))
    rewrite(file, with_column("task_index", pa.array([0, 0, None, 0, 0], pa.int64())))
    rewrite(file, with_column("action", [[1.0, 2.0], None, [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]))
    dataset, report = ingest_and_open(source, tmp_path / "cache")
    nan = np.nan
    for name, expected in {"count": [0, 1, 2, 3, 0, nan, 2, 3, nan], "flag": [1, 0, 1, 0, 1, 0, nan, 0, 1]}.items():
        assert dataset[name].dtype == np.float64 and dataset[name].attributes["methods"] == [[0, 1, "previous"]]
        np.testing.assert_array_equal(np.ravel(dataset[name].values), expected)
    assert np.ravel(dataset.episode(1)["task_index"][1]).tolist() == [0, 0, -1, 0, 0]
    np.testing.assert_array_equal(np.asarray(dataset.episode(1)["action"][1])[:2], [[1, 2], [nan, nan]])
    left_out = reasons(report.left_out)
    assert left_out["count: values of 2 rows"] == left_out["flag: values of 1 rows"] == "null: NaN there"
    assert left_out["action: values of 1 rows"] == "null: NaN there"
    assert left_out["task_index: values of 1 rows"] == "null: -1 there"


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int32(), 2), pa.list_(pa.int64()), pa.large_list(pa.int8()), pa.list_(pa.bool_())]
)
def test_null_in_a_list_of_integers_is_nan_there(kind, rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)), per_file=1)
    is_bool = pa.types.is_boolean(kind.value_type)
    rows = [[[1, 0], [0, 1], [1, 1]], [[0, 1], [None, 1], [1, None], None]]
    for file, values in zip((FIRST, SECOND), rows, strict=True):
        cells = [row and [cell if cell is None or not is_bool else bool(cell) for cell in row] for row in values]
        rewrite(source / file, with_column("observation.level", pa.array(cells, kind)))
    dataset, report = ingest_and_open(source, tmp_path / "cache")
    nan = np.nan
    stream = dataset["observation.level"]
    np.testing.assert_array_equal(stream.values, [[1, 0], [0, 1], [1, 1], [0, 1], [nan, 1], [1, nan], [nan, nan]])
    assert stream.dtype == np.float64 and stream.attributes["methods"] == [[0, 2, "previous"]]
    assert reasons(report.left_out)["observation.level: values of 3 rows"] == "null: NaN there"


def test_null_in_a_list_of_integers_beyond_float64_leaves_out_the_episode(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)), per_file=1)
    rewrite(source / FIRST, with_column("observation.level", [[1, 2]] * 3))
    rewrite(source / SECOND, with_column("observation.level", [[1, 2], [2**60 + 1, None], [3, None], [4, 5]]))
    dataset, report = ingest_and_open(source, tmp_path / "cache")
    assert dataset["observation.level"].values.tolist() == [[1, 2]] * 3
    reason = reasons(report.left_out)["observation.level: values of 2 rows"]
    assert reason == "null: no rows in its episode there"


def test_null_among_integers_beyond_float64_leaves_out_the_column(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)))
    rewrite(source / SECOND, with_column("observation.count", [2**60 + 1, None, 3, 4]))
    dataset, report = ingest_and_open(source, tmp_path / "cache")
    assert dataset["observation.count"].values.dtype == np.int64
    assert [len(dataset.episode(number)["observation.count"][1]) for number in range(2)] == [3, 0]
    reason = reasons(report.left_out)["observation.count: values of 1 rows"]
    assert reason == "null: no rows in its episode there"


def test_stamps_of_another_rate_than_declared_are_noted(rng, tmp_path):
    (episode,) = make_episodes(rng, (6,))
    episode.timestamp = np.arange(6) * 0.1
    report = robocache.ingest(write_lerobot(tmp_path / "source", [episode]), tmp_path / "cache")
    (assumption,) = [note.reason for note in report.assumed if note.what == "clock timestamp"]
    assert "10 rows a second (median), though meta/info.json says 30" in assumption


def test_extension_arrays_are_read_by_their_storage(rng, tmp_path):
    class Array2D(pa.ExtensionType):
        def __init__(self):
            super().__init__(pa.list_(pa.list_(pa.float32())), "robocache.test.array2d")

        def __arrow_ext_serialize__(self):
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage_type, serialized):
            return cls()

    pa.register_extension_type(Array2D())
    try:
        source = write_lerobot(tmp_path / "source", make_episodes(rng, (5,)))
        touch = rng.normal(size=(5, 3, 2)).astype(np.float32)
        stored = pa.ExtensionArray.from_storage(Array2D(), arrow_column(touch, fixed=False))
        rewrite(source / "data/chunk-000/episode_000000.parquet", with_column("observation.touch", stored))
        robocache.ingest(source, tmp_path / "cache")
    finally:
        pa.unregister_extension_type("robocache.test.array2d")
    np.testing.assert_array_equal(robocache.open(tmp_path / "cache").streams["observation.touch"].values, touch)


@pytest.mark.parametrize("version", VERSIONS)
def test_lists_of_length_0_are_left_out_alone(version, rng, tmp_path):
    """pyarrow cannot read lists of the fixed size 0, and says that the file is damaged."""
    episodes = make_episodes(rng, (7,))
    source = write_lerobot(tmp_path / "source", episodes, version)
    append_column(source, "observation.none", [[]] * 7, pa.list_(pa.float32(), 0))
    dataset, report = ingest_and_open(source, tmp_path / "cache")
    assert reasons(report.left_out)["observation.none"] == "not numeric: lists of no numbers"
    np.testing.assert_array_equal(dataset["action"].values, episodes[0].columns["action"])


def test_columns_of_other_types_are_left_out_by_name(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (2,)))
    append_column(source, "note", [b"a", b"b"])
    append_column(source, "observation.images.eye", [b"x"] * 2)
    eye, force = {"dtype": "image", "shape": [8, 8, 3]}, {"dtype": "float32", "shape": [3]}
    declare(source, {"observation.images.eye": eye, "observation.force": force})
    dataset, report = ingest_and_open(source, tmp_path / "cache")
    left_out = reasons(report.left_out)
    assert "binary" in left_out["note"]
    assert "images" in left_out["observation.images.eye"]
    assert "no data file" in left_out["observation.force"]
    assert report.skipped == []
    assert dataset.provenance["lerobot"]["cameras"]["observation.images.eye"]["dtype"] == "image"


@pytest.mark.parametrize(("version", "folder"), [("v2.1", "videos"), ("v3.0", "videos"), ("v3.0", "video")])
def test_left_out_videos_are_recorded(version, folder, rng, tmp_path):
    episodes = make_episodes(rng, (3, 3, 3))
    key = "observation.images.top"
    if version == "v3.0":
        for number, episode in enumerate(episodes):
            episode.extra = {f"videos/{key}/chunk_index": 0, f"videos/{key}/file_index": number}
    source = write_lerobot(tmp_path / "source", episodes, version)
    declare(source, {key: {"dtype": "video", "shape": [480, 640, 3]}})
    for number, content in enumerate([b"frames" * 50, LFS_POINTER.encode()]):
        name = f"chunk-000/{key}/episode_{number:06d}" if version == "v2.1" else f"{key}/chunk-000/file-{number:03d}"
        (source / folder / f"{name}.mp4").parent.mkdir(parents=True, exist_ok=True)
        (source / folder / f"{name}.mp4").write_bytes(content)
    dataset, report = ingest_and_open(source, tmp_path / "cache", video=False)
    assert reasons(report.left_out)[key] == "video; files for 1 of 3 episodes"
    camera = dataset.provenance["lerobot"]["cameras"][key]
    assert camera == {"dtype": "video", "shape": [480, 640, 3], "files": 1, "episodes_found": 1, "episodes_missing": 2}


# ---- unreadable files ----


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_missing_episodes_are_refused_or_skipped(version, rng, tmp_path):
    episodes = make_episodes(rng, (3, 4, 5, 6))
    source = write_lerobot(tmp_path / "source", episodes, version, per_file=1)
    for number in (1, 2):
        name = f"file-{number:03d}" if version == "v3.0" else f"episode_{number:06d}"
        (source / f"data/chunk-000/{name}.parquet").unlink()
    assert_refused(source, tmp_path / "cache", "2 of the 4 episodes", "1-2")
    assert_skipped(source, tmp_path / "cache", "episodes 1-2")
    dataset = robocache.open(tmp_path / "cache")
    assert dataset.episodes["source_episode_index"].to_pylist() == [0, 3]
    np.testing.assert_array_equal(dataset.episode(1)["action"][1], episodes[3].columns["action"])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_text(LFS_POINTER), "git lfs pull"),
        (lambda file: file.write_bytes(file.read_bytes()[:-20]), "not a Parquet file"),
        (lambda file: file.write_bytes(b""), "not a Parquet file"),
        (lambda file: rewrite(file, with_column("next.reward", pa.array([0.5] * 4, pa.float64()))), "next.reward"),
        (lambda file: rewrite(file, lambda table: table.drop_columns(["next.reward"])), "next.reward"),
        (lambda file: rewrite(file, with_column("timestamp", ["noon"] * 4)), "timestamp is string"),
        (lambda file: rewrite(file, lambda table: table.slice(0, 0)), "no rows"),
        (lambda file: rewrite(file, lambda table: table.append_column("action", table["action"])), "named action"),
        (lambda file: rewrite(file, lambda table: table.append_column("timestamp", table["timestamp"])), "timestamp"),
        (lambda file: rewrite(file, with_column("episode_index", [[1, 1]] * 4)), "one number a row"),
        (lambda file: rewrite(file, with_column("episode_index", [[1], [1, 1], [1], [1]])), "row 1 has 2 values"),
    ],
)
def test_a_data_file_that_cannot_be_read(damage, message, rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4, 5)))
    damage(source / SECOND)
    assert_refused(source, tmp_path / "cache", SECOND, message)
    assert_skipped(source, tmp_path / "cache", SECOND, "episodes 1")
    assert robocache.open(tmp_path / "cache").episodes["source_episode_index"].to_pylist() == [0, 2]


@pytest.mark.parametrize(
    ("column", "values", "message_parts"),
    [
        ("frame_index", [0, 1, 1, 3], ["frame_index", "row 2"]),
        ("frame_index", [0, 2, 1, 3], ["frame_index", "row 2", "1 after 2"]),
        ("frame_index", np.array([0, 2, 1, 3], np.uint64), ["frame_index", "row 2"]),
        ("timestamp", [0.0, 0.1, None, 0.3], ["timestamp", "row 2"]),
        ("timestamp", [0.0, 0.2, 0.1, 0.3], ["row", "100000000"]),
        ("timestamp", [1.7e18, 1.7e18, 1.8e18, 1.9e18], ["timestamp", "row 0", "seconds"]),
        ("action", [[1.0, 2.0], [1.0, 2.0], [1.0], [1.0, 2.0]], ["action", "row 2", "1 value"]),
        ("timestamp", [0.0, 33.33, 66.67, 100.0], ["timestamp", "look like milliseconds"]),
        ("timestamp", [0.0, 1e9 / 30, 2e9 / 30, 0.1e9], ["timestamp", "look like nanoseconds"]),
        ("timestamp", [0.0, 1.0, 2.0, 3.0], ["timestamp", "look like numbers of frames"]),
        ("action", [[1.0], [1.0], [1.0], [1.0]], ["action"]),
        ("timestamp", [[0.0, 1.0]] * 4, ["timestamp", "one number a row"]),
        ("frame_index", [[0, 1]] * 4, ["frame_index", "one number a row"]),
        ("frame_index", [0, 1, 2, 2**62], ["int64 nanoseconds"]),
    ],
)
def test_an_episode_that_cannot_be_read(column, values, message_parts, rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4, 5)))
    rewrite(source / SECOND, with_column(column, values))
    assert_refused(source, tmp_path / "cache", SECOND, *message_parts)
    assert_skipped(source, tmp_path / "cache", "episode 1")
    dataset = robocache.open(tmp_path / "cache")
    assert dataset.episodes["source_episode_index"].to_pylist() == [0, 2]
    assert len(dataset["action"].time_ns) == 8


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_metadata_of_any_name_and_invalid_numbers(version, rng, tmp_path):
    episodes = make_episodes(rng, (3, 4))
    for episode, score in zip(episodes, (float("nan"), 0.5), strict=True):
        episode.extra = {"what": "a cup", "where": "a table", "score": score, "flags": [True, False]}
    source = write_lerobot(tmp_path / "source", episodes, version, info={"quality": float("nan")})
    dataset, report = ingest_and_open(source, tmp_path / "cache")
    assert "episodes.flags" in reasons(report.left_out)
    assert dataset.episodes["what"].to_pylist() == ["a cup"] * 2
    assert dataset.episodes["where"].to_pylist() == ["a table"] * 2
    assert dataset.episodes["score"].to_pylist() == [None, 0.5]
    assert dataset.provenance["lerobot"]["quality"] is None


def test_v3_skips_only_the_broken_episode_of_a_file(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4, 5)), "v3.0", per_file=3)
    file = source / "data/chunk-000/file-000.parquet"
    rewrite(file, with_column("frame_index", [0, 1, 2, 0, 1, 1, 3, 0, 1, 2, 3, 4]))
    assert_refused(source, tmp_path / "cache", "file-000.parquet", "episode 1", "row 2")
    assert_skipped(source, tmp_path / "cache", "episode 1")
    assert robocache.open(tmp_path / "cache").episodes["length"].to_pylist() == [3, 5]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_length_that_contradicts_meta(version, rng, tmp_path):
    episodes = make_episodes(rng, (3, 4))
    episodes[1].extra["length"] = 9
    source = write_lerobot(tmp_path / "source", episodes, version)
    assert_refused(source, tmp_path / "cache", "episode 1", "4 rows", "9")
    assert assert_skipped(source, tmp_path / "cache", "episode 1").episodes == 1


def test_damage_found_when_values_are_read(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (300, 300)))
    file = source / SECOND
    metadata = pq.read_metadata(file)
    columns = map(metadata.row_group(0).column, range(metadata.num_columns))
    column = next(chunk for chunk in columns if chunk.path_in_schema.startswith("observation.state"))
    content = bytearray(file.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    file.write_bytes(content)
    assert_refused(source, tmp_path / "cache", "episode_000001.parquet", "damaged")
    assert assert_skipped(source, tmp_path / "cache", SECOND).episodes == 1


def test_meta_with_a_line_separator_in_a_text(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3,)))
    (source / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "pick\u2028place"}\n', encoding="utf-8")
    write_json_lines(source / "meta/episodes.jsonl", [{"episode_index": 0}])
    assert ingest_and_open(source, tmp_path / "cache")[0].provenance["lerobot"]["tasks"] == {"0": "pick\u2028place"}


def test_unlisted_and_repeated_episodes(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)))
    copy = source / "data/chunk-001/episode_000000.parquet"
    copy.parent.mkdir()
    shutil.copy(source / FIRST, copy)
    assert_refused(source, tmp_path / "cache", "chunk-001/episode_000000.parquet", "episode 0", "chunk-000")
    copy.unlink()
    write_json_lines(source / "meta/episodes.jsonl", [{"episode_index": 0, "tasks": [], "length": 3}])
    assert_refused(source, tmp_path / "cache", "episode 1", "not listed")
    assert assert_skipped(source, tmp_path / "cache", "episode 1").episodes == 1


def test_a_file_whose_name_and_column_disagree(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)))
    rewrite(source / SECOND, with_column("episode_index", [7] * 4))
    assert_refused(source, tmp_path / "cache", "episode_000001.parquet", "7")


def test_the_file_name_has_the_episode_without_a_column(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)))
    for file in source.glob("data/*/*.parquet"):
        rewrite(file, lambda table: table.drop_columns(["episode_index", "frame_index", "timestamp"]))
    dataset, _ = ingest_and_open(source, tmp_path / "cache")
    assert dataset.episodes["source_episode_index"].to_pylist() == [0, 1]
    assert dataset.episode(1)["action"][0].tolist() == nominal_ns(range(4), 30)


def test_existing_files_override_wrong_templates(rng, tmp_path):
    info = {"data_path": "nowhere/{episode_index}.parquet", "total_episodes": 99, "chunks_size": 1}
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)), info=info)
    (source / "data/chunk-001").mkdir()
    (source / "data/chunk-000/episode_000001.parquet").rename(source / "data/chunk-001/episode_000001.parquet")
    assert robocache.ingest(source, tmp_path / "cache").episodes == 2


@pytest.mark.parametrize(
    ("version", "name", "content", "message"),
    [
        *(
            ("v2.1", f"{name}.jsonl", content, message)
            for name in ("tasks", "episodes")
            for content, message in (
                ("", "empty"),
                (LFS_POINTER, "git lfs pull"),
                ('{"a": 1}\n', "whole number"),
                ("{}\n{", "line 2"),
                (None, "neither"),
            )
        ),
        *(
            ("v3.0", name, content, message)
            for name in ("tasks.parquet", "episodes/chunk-000/file-000.parquet")
            for content, message in (("", "not a Parquet file"), (LFS_POINTER, "git lfs pull"))
        ),
    ],
)
def test_a_table_of_meta_that_cannot_be_read(version, name, content, message, rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)), version)
    (source / "meta" / name).unlink()
    if content is not None:
        (source / "meta" / name).write_text(content)
    assert_refused(source, tmp_path / "cache", name, message)
    assert assert_skipped(source, tmp_path / "cache", f"meta/{re.match('[a-z]+', name)[0]}").episodes == 2


@pytest.mark.parametrize("on_error", ["stop", "skip"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "info.json"),
        (LFS_POINTER, "git lfs pull"),
        ("{}", "codebase_version"),
        ('{"codebase_version": "v1.6", "fps": 30, "video": true}', "'v1.6'; convert with LeRobot"),
        ('{"codebase_version": "v2.1", "features": {}}', "as fps, got None"),
        ('{"codebase_version": "v2.1", "fps": 0, "features": {}}', "fps"),
        ('{"codebase_version": "v2.1", "fps": 30, "features": []}', "features"),
    ],
)
def test_unreadable_info_is_always_refused(content, message, on_error, rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3,)))
    (source / "meta/info.json").write_text(content)
    assert_refused(source, tmp_path / "cache", message, on_error=on_error)


def test_without_readable_episodes_no_cache_is_written(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)))
    for file in data_files(source):
        file.write_text(LFS_POINTER)
    assert_refused(source, tmp_path / "cache", "git lfs pull", on_error="skip")


# ---- real data ----


def test_gr00t_simulation(real_data, tmp_path):
    source = real_data("lerobot_v2/gr00t_gr1_pnp_sim")
    dataset, report = ingest_and_open(source, tmp_path / "cache", video=False)
    assert (report.episodes, report.skipped) == (5, [])
    assert dataset.episodes["length"].to_pylist() == [416, 470, 470, 412, 328]
    assert dataset.episodes["tasks"][0].as_py()[0].startswith("pick the pear")
    for episode in range(5):
        table = pq.read_table(source / f"data/chunk-000/episode_{episode:06d}.parquet")
        streams = read_back(tmp_path / "cache", episode)
        for name in set(table.column_names) - {"timestamp", "episode_index", "index"}:
            time_ns, values = streams[name]
            np.testing.assert_array_equal(values, np.array(table[name].to_pylist()))
            assert time_ns.tolist() == [50_000_000 * k for k in range(len(table))]
    assert {stream.clock for stream in dataset.streams.values()} == {"nominal"}
    assert dataset.streams["next.done"].dtype == bool
    cameras = dataset.provenance["lerobot"]["cameras"]
    assert {key: camera["episodes_found"] for key, camera in cameras.items()} == {
        "observation.images.egoview": 0,
        "observation.images.ego_view": 5,
    }


def test_unitree_with_missing_episodes(real_data, tmp_path):
    source = real_data("lerobot_v2/unitree_g1_real")
    present = sorted(int(file.stem[-6:]) for file in source.glob("data/*/*.parquet"))
    assert_refused(source, tmp_path / "cache", f"{100 - len(present)} of the 100 episodes", "12, 14-25")
    report = robocache.ingest(source, tmp_path / "cache", on_error="skip", video=False)
    assert report.episodes == len(present)
    assert [omission.what[:9] for omission in report.skipped] == ["episodes "]
    dataset = robocache.open(tmp_path / "cache")
    assert dataset.episodes["source_episode_index"].to_pylist() == present
    for number, episode in enumerate(present):
        table = pq.read_table(source / f"data/chunk-000/episode_{episode:06d}.parquet")
        streams = read_back(tmp_path / "cache", number)
        for name in ("observation.state", "action", "task_index"):
            time_ns, values = streams[name]
            np.testing.assert_array_equal(values, np.array(table[name].to_pylist(), values.dtype))
            assert time_ns.tolist() == nominal_ns(range(len(table)), 30)
    assert dataset.provenance["lerobot"]["cameras"]["observation.images.cam_high"]["episodes_found"] == 3


def test_v3_gives_the_same_cache(real_data, tmp_path):
    source = real_data("lerobot_v2/unitree_g1_real")
    files = sorted(source.glob("data/*/*.parquet"))
    listed = {row["episode_index"]: row for row in map(json.loads, (source / "meta/episodes.jsonl").open())}
    info = json.loads((source / "meta/info.json").read_text())
    converted = tmp_path / "v3"
    first_row, rows = 0, []
    for number, file in enumerate(files):  # 5 episodes a file, 2 files a chunk
        end_row = first_row + pq.read_metadata(file).num_rows
        indices = {"data/chunk_index": number // 10, "data/file_index": number % 10 // 5}
        indices |= {"dataset_from_index": first_row, "dataset_to_index": end_row}
        rows.append(listed[int(file.stem[-6:])] | indices)
        first_row = end_row
    for start in range(0, len(files), 5):
        name = f"data/chunk-{start // 10:03d}/file-{start % 10 // 5:03d}.parquet"
        write_table(converted / name, pa.concat_tables(pq.read_table(file) for file in files[start : start + 5]))
    write_table(converted / "meta/episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(rows))
    tasks = [json.loads(line) for line in (source / "meta/tasks.jsonl").open()]
    write_table(converted / "meta/tasks.parquet", pa.Table.from_pylist(tasks))
    info.update(codebase_version="v3.0", data_path="data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet")
    (converted / "meta/info.json").write_text(json.dumps(info))

    robocache.ingest(source, tmp_path / "cache2", on_error="skip", video=False)
    report = robocache.ingest(converted, tmp_path / "cache3", video=False)
    assert (report.episodes, report.skipped) == (len(files), [])
    v2, v3 = robocache.open(tmp_path / "cache2"), robocache.open(tmp_path / "cache3")
    assert v2.streams.keys() == v3.streams.keys()
    for name in v2.streams:
        for part in ("time_ns", "values", "row_offsets"):
            np.testing.assert_array_equal(getattr(v2.streams[name], part), getattr(v3.streams[name], part))
        assert v2.streams[name].names == v3.streams[name].names
    for column in set(v2.episodes.column_names) - {"source_file"}:
        assert v2.episodes[column].to_pylist() == v3.episodes[column].to_pylist()
    assert v2.provenance["lerobot"]["tasks"] == v3.provenance["lerobot"]["tasks"]


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_a_clone_without_its_lfs_files_is_refused(on_error, real_data, tmp_path):
    source = real_data("lerobot_v2/lfs_pointers_only")
    with pytest.raises(robocache.FileError, match="git lfs pull"):
        robocache.ingest(source, tmp_path / "cache", on_error=on_error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("other_task", "is_warned"), [("open", True), ("place", False)])
def test_sources_with_different_text_indices_are_warned_about(rng, tmp_path, recwarn, other_task, is_warned):
    sources = []
    for name, tasks in (("a", ["pick", "place"]), ("b", ["pick", other_task])):
        columns = {"observation.state": rng.random((6, 3)), "action": rng.random((6, 3))}
        write_lerobot(tmp_path / name, [Episode(columns, tasks=[task]) for task in tasks], "v3.0")
        sources.append(robocache.Source(ingest_and_open(tmp_path / name, tmp_path / f"cache_{name}")[0]))

    def read_warnings(windows, **options):
        recwarn.clear()
        loader = robocache.Loader(
            sources, batch_size=4, delta_timestamps={"action": None} | windows, device="cpu", findings=None, **options
        )
        next(loader)
        return [str(warning.message) for warning in recwarn if "number texts differently" in str(warning.message)]

    messages = read_warnings({"task_index": None})
    assert len(messages) == is_warned
    assert all("1 is 'place' in one and 'open' in another" in message for message in messages)
    assert not read_warnings({"task_index": robocache.Window(texts="indices")})
    for condition, expected_count in ((pc.field("task") == "pick", False), (pc.field("task_index") == 0, is_warned)):
        messages = read_warnings({}, anchors=robocache.Anchors(where=condition))
        assert len(messages) == expected_count and all(text.startswith("anchors.where: ") for text in messages)
