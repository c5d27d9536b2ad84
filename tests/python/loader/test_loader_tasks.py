"""The text of each sample's task."""

import pickle

import numpy as np
import pyarrow.parquet as pq
import pytest
from loaders_by_keywords import loader_by_keywords
from recordings import write, write_texts

import robocache


def _write(path, columns, stream="joint"):
    recording = [{stream: (np.arange(5) * 10**7 + e * 10**9, np.arange(5.0))} for e in range(len(columns))]
    return write(path, recording, columns=columns)


@pytest.fixture
def kitchen(tmp_path):
    return _write(tmp_path / "kitchen", [{"task": "pick the cup"}, {}, {"task": "wipe — dry"}])


def _loader(*datasets, **options):
    source = datasets[0] if len(datasets) == 1 else [robocache.Source(dataset) for dataset in datasets]
    options = {"batch_size": 4, "delta_timestamps": {"joint": None}, "task_text": True} | options
    return loader_by_keywords(source, **options)


def test_tasks_from_a_column_of_the_episodes(kitchen, device):
    texts = ["pick the cup", None, "wipe — dry"]
    loader = _loader(kitchen, device=device)
    for batch in loader:
        assert batch["task"] == [texts[e] for e in batch["episode_index"].tolist()]
    assert loader.gather([12, 1])["task"] == ["wipe — dry", "pick the cup"]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"episode_metadata/task": "pick"}, "pick"),
        ({"episode_metadata/instruction": "pick", "episode_metadata/task": "T7"}, "pick"),
        ({"tasks": ["pick"], "episode_metadata/task": "T7"}, "pick"),
        ({"episode_metadata/tasks": ["pick", "place"]}, "pick"),
    ],
)
@pytest.mark.filterwarnings("ignore:task_text. 1 of 1 episodes")
def test_rlds_metadata_of_an_episode_has_its_task(columns, expected, tmp_path):
    dataset = _write(tmp_path / "cache", [columns])
    loader = robocache.Loader(dataset, batch_size=5, delta_timestamps={"joint": None}, task_text=True, device="cpu")
    assert next(loader)["task"] == [expected] * 5
    robocache.export(dataset, tmp_path / "set", to="lerobot")
    assert pq.read_table(tmp_path / "set/meta/tasks.parquet")["task"].to_pylist() == [expected]


def test_each_source_has_its_own_tasks(kitchen, tmp_path):
    garage = _write(tmp_path / "garage", [{"tasks": ["drill", "screw"]}, {"tasks": []}])
    texts = [["pick the cup", None, "wipe — dry"], ["drill", None]]
    with pytest.warns(robocache.LoaderWarning, match=r"task_text: 1 of 2 episodes of .*garage, the first of them"):
        loader = _loader(kitchen, garage)
    for batch in loader:
        episodes = zip(batch["dataset_index"].tolist(), batch["episode_index"].tolist(), strict=True)
        assert batch["task"] == [texts[source][e] for source, e in episodes]


def test_a_dataset_without_tasks_is_refused(kitchen, tmp_path):
    without_tasks = _write(tmp_path / "plain", [{"operator": "ann"}])
    with pytest.raises(robocache.ArgumentError, match=r"task_text: expected .* a column task or tasks"):
        _loader(without_tasks)
    with pytest.warns(robocache.LoaderWarning, match=r"task_text: expected .*plain, got .*operator; the task"):
        loader = _loader(kitchen, without_tasks)
    for batch in loader:
        sources = batch["dataset_index"].tolist()
        assert all(text is None for text, source in zip(batch["task"], sources, strict=True) if source == 1)
    clashing = _write(tmp_path / "clashing", [{"task": "x"}], stream="task")
    with pytest.raises(robocache.ArgumentError, match="task_text: the batch's key 'task'"):
        loader_by_keywords(clashing, batch_size=1, delta_timestamps={"task": None}, task_text=True)
    with pytest.raises(robocache.ArgumentTypeError, match="task_text: expected True or False, got 1"):
        loader_by_keywords(clashing, batch_size=1, delta_timestamps={"task": None}, task_text=1)
    with pytest.raises(robocache.ArgumentError, match=r"task_text: expected a stream 'joint'"):
        loader_by_keywords(kitchen, batch_size=1, delta_timestamps={"joint": None}, task_text="joint")


def test_a_single_text_in_the_column_tasks(tmp_path):
    assert next(_loader(_write(tmp_path / "one", [{"tasks": "pick"}])))["task"] == ["pick"] * 4


# ---- texts with a clock: rule 47 ----


def _write_moments(path, episodes, attributes=None, stream="said", tables=()):
    """Writes episodes, each (columns, number of rows of `joint`, [(stamp, text or index)])."""
    columns, counts, texts = zip(*episodes, strict=True)
    stream_attributes = {stream: attributes} if attributes else {}
    texts = [{stream: moments} if moments else {} for moments in texts]
    return write_texts(path, texts, counts, attributes=stream_attributes, columns=columns, tables=tables)


def _tasks_by_episode(dataset, device="cpu", **options):
    """Returns the tasks of each episode's rows."""
    texts = [[] for _ in range(len(dataset))]
    for batch in _loader(dataset, shuffle=False, device=device, **options):
        for episode, text in zip(batch["episode_index"].tolist(), batch["task"], strict=True):
            texts[episode].append(text)
    return texts


def test_rule_47_a_text_holds_from_its_stamp_to_the_next(tmp_path, device):
    # An empty text ends the previous one. Of two texts with one stamp the last one holds.
    episodes = [
        ({"task": "of the episode"}, 6, [(1, "reach"), (2.5, "lift"), (4, "")]),
        ({"task": "of the episode"}, 3, []),
        ({}, 3, [(-4, "reach"), (0, "place"), (0, "wipe"), (9, "never")]),
        ({}, 2, []),
    ]
    dataset = _write_moments(tmp_path / "cache", episodes, {"task": True})
    first_texts = [None, "reach", "reach", "lift", None, None]
    assert _tasks_by_episode(dataset, device) == [first_texts, ["of the episode"] * 3, ["wipe"] * 3, [None] * 2]
    assert _tasks_by_episode(dataset, device, task_text="said") == [first_texts, [None] * 3, ["wipe"] * 3, [None] * 2]
    loader = _loader(dataset, task_text="said", shuffle=False, device=device)
    assert loader.gather([3, 0, 1])["task"] == ["lift", None, "reach"]
    assert pickle.loads(pickle.dumps(loader)).gather([3])["task"] == ["lift"]


def test_rule_47_indices_refer_to_their_table(tmp_path):
    tables = {"mine": {"goals": {"0": "reach", "7": "lift", "5": None}}}
    moments = [(0, 7), (1, 0), (2, 3), (3, -1), (4, 5), (5, 7)]
    attributes = {"texts": "mine.goals", "task": True}
    dataset = _write_moments(tmp_path / "cache", [({}, 6, moments)], attributes, tables=tables)
    texts = ["lift", "reach", None, None, None, "lift"]
    assert _tasks_by_episode(dataset) == [texts]
    other = _write_moments(tmp_path / "other", [({"task": "x"}, 6, moments)], {"texts": "mine.goals"}, tables=tables)
    assert _tasks_by_episode(other) == [["x"] * 6]  # the stream is not declared to be the task's
    assert _tasks_by_episode(other, task_text="said") == [texts]
    with pytest.raises(robocache.ArgumentError, match=r"task_text: expected a stream 'joint' .*other, got said"):
        _tasks_by_episode(other, task_text="joint")


def test_rule_47_a_moment_snaps_to_a_stamp(tmp_path):
    """Ticks of 30 Hz are 1 ns before a text's stamp."""
    stamps = np.round(np.arange(90) * 1e9 / 30).astype(np.int64)
    texts = [f"text {row}" for row in range(0, 90, 5)]
    dataset = write(tmp_path / "cache", [{"joint": (stamps, np.arange(90.0)), "task": (stamps[::5] + 1, texts)}])
    assert _tasks_by_episode(dataset) == [[f"text {row - row % 5}" for row in range(90)]]
    assert _tasks_by_episode(dataset, snap_s=0)[0][5:7] == ["text 0", "text 5"]


@pytest.mark.parametrize(
    "name", ["task", "/task", "language_instruction", "observation/language_instruction", "log.instruction"]
)
def test_text_streams_with_names_of_tasks_are_the_tasks(name, tmp_path):
    dataset = _write_moments(tmp_path / "cache", [({"task": "x"}, 3, [(0, "a"), (2, "b")])], stream=name)
    assert _tasks_by_episode(dataset) == [["a", "a", "b"]]
    other = _write_moments(tmp_path / "other", [({"task": "x"}, 3, [(0, "a"), (2, "b")])], stream=f"{name}s/log")
    assert _tasks_by_episode(other) == [["x"] * 3]


def test_the_first_stream_with_rows_in_the_episode_counts(tmp_path):
    joint, one, two = (np.arange(2), np.zeros(2)), ([0], ["a"]), ([0], ["b"])
    recording = [{"joint": joint, "one": one}, {"joint": joint, "two": two}, {"joint": joint, "two": two, "one": one}]
    streams = {stream: {"attributes": {"task": True}} for stream in ("one", "two")}
    dataset = write(tmp_path / "cache", recording, streams=streams)
    assert _tasks_by_episode(dataset) == [["a"] * 2, ["b"] * 2, ["a"] * 2]


def test_many_texts_equal_a_linear_search(tmp_path, rng):
    episodes = []
    for _ in range(40):
        count = int(rng.integers(0, 30))
        stamps = np.sort(rng.integers(-3, 25, count))
        episodes.append(({}, int(rng.integers(1, 20)), [(int(stamp), f"{rng.integers(5)}") for stamp in stamps]))
    dataset = _write_moments(tmp_path / "cache", episodes, {"task": True})
    expected = [
        [next((text for stamp, text in reversed(texts) if stamp <= row), None) for row in range(rows)]
        for _, rows, texts in episodes
    ]
    assert _tasks_by_episode(dataset) == expected
    assert _tasks_by_episode(dataset, batch_size=64, framework="numpy") == expected
