"""Keys of texts: str and indices, one of several drawn, mixtures, and refusals."""

import pickle
import time
import warnings
import zlib
from collections import Counter

import numpy as np
import pytest
from recordings import anchors_of, position_of, write, write_texts
from reference.arithmetic import mix_bits
from reference.compare import to_numpy

import robocache
from robocache import Source, Window

pytestmark = pytest.mark.filterwarnings(r"ignore:(sources\[\d\].)?missing:robocache.LoaderWarning")

STEP = 10**8  # ns between rows


def _loader(dataset, windows, **options):
    options = {"batch_size": 4, "shuffle": False, "device": "cpu"} | options
    return robocache.Loader(dataset, delta_timestamps={"joint": None, **windows}, anchors="joint", **options)


def _values(loader, key):
    """Returns the values of a key in one epoch."""
    values = []
    for batch in loader:
        values += to_numpy(batch[key]).tolist() if hasattr(batch[key], "dtype") else batch[key]
    return values


def _text_at(rows, moment):
    """Returns the text at a moment, by rule 47 and a linear search of `rows`, [(stamp, text)]."""
    texts = [text for stamp, text in rows if stamp <= moment + 1e-6]
    return texts[-1] or None if texts else None


EPISODES = [
    {"said": [(1, "reach"), (2.5, "lift"), (4, "")]},
    {"said": [(-3, "wipe"), (0, "place"), (0, "reach"), (20, "never")]},
    {},
    {"said": [(8.5, "grüße")]},
]


@pytest.fixture
def dataset(tmp_path):
    return write_texts(tmp_path / "cache", EPISODES)


OFFSETS = [-0.3, 0.0, 0.15, 2.0]


def _expected(offsets, episodes=EPISODES):
    return [
        [_text_at(texts.get("said", []), row + offset * 1e9 / STEP) for offset in offsets]
        for texts in episodes
        for row in range(10)
    ]


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_rule_47_texts_are_lists_of_str(dataset, device, framework):
    if framework == "numpy":
        device = "cpu"
    options = {"device": device, "framework": framework}
    assert _values(_loader(dataset, {"said": None}, **options), "said") == [row[0] for row in _expected([0.0])]
    assert _values(_loader(dataset, {"said": Window(OFFSETS)}, **options), "said") == _expected(OFFSETS)
    with_latency = [-0.25, 0.2]
    loader = _loader(dataset, {"said": Window([-0.35, 0.1], offset_s=0.1)}, **options)
    assert _values(loader, "said") == _expected(with_latency)
    assert loader.gather([21, 3, 10])["said"] == [_expected(with_latency)[row] for row in (21, 3, 10)]
    assert loader.gather([])["said"] == []


@pytest.mark.parametrize(("own", "latency_s"), [(None, 0.1), (0.0, 0.0), (0.05, 0.05)], ids=str)
def test_the_defaults_latency_holds_for_texts_without_their_own(dataset, own, latency_s):
    windows = {"said": Window(OFFSETS, offset_s=own)}
    loader = _loader(dataset, windows, default=Window(offset_s=0.1), task_text="said")
    assert _values(loader, "said") == _expected([offset + latency_s for offset in OFFSETS])
    assert _values(loader, "task") == [row[0] for row in _expected([0.0])]


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_indices_refer_to_a_complete_table(dataset, device, framework):
    if framework == "numpy":
        device = "cpu"
    windows = {"said": Window(OFFSETS, texts="indices")}
    loader = _loader(dataset, windows, device=device, framework=framework, episodes=[0, 1, 2, 3])
    table = loader.texts["said"]
    assert sorted(table) == ["grüße", "lift", "never", "place", "reach", "wipe"]
    # The table has the texts of all episodes, so splits share it.
    assert table == _loader(dataset, windows, episodes=[2, 3]).texts["said"]
    batch = next(loader)["said"]
    assert tuple(batch.shape) == (4, 4)
    assert str(batch.dtype).removeprefix("torch.") == "int64"
    assert framework == "numpy" or batch.device.type == device
    indices = np.array(_values(loader, "said"))
    assert [[None if i < 0 else table[i] for i in row] for row in indices.tolist()] == _expected(OFFSETS)[4:]
    assert tuple(_loader(dataset, {"said": Window(texts="indices")}).gather([11, 2])["said"].shape) == (2,)
    assert tuple(loader.gather([])["said"].shape) == (0, 4)


def test_indices_become_texts_on_request(tmp_path):
    rows = [(0, 7), (1, 0), (2, 3), (3, -1), (4, 5), (5, 7)]
    options = {"attributes": {"goal": {"texts": "mine.goals"}}}
    options["tables"] = {"mine": {"goals": {"0": "reach", "7": "lift", "5": None, "9": "lift"}}}
    dataset = write_texts(tmp_path / "cache", [{"goal": rows}], **options)
    texts = ["lift", "reach", None, None, None, *["lift"] * 5]
    assert _values(_loader(dataset, {"goal": Window(texts="text")}), "goal") == texts
    loader = _loader(dataset, {"goal": Window(texts="indices")})
    assert sorted(loader.texts["goal"]) == ["lift", "reach"]
    assert [None if i < 0 else loader.texts["goal"][i] for i in _values(loader, "goal")] == texts
    assert _values(_loader(dataset, {"goal": None}), "goal") == [7, 0, 3, -1, 5, *[7] * 5]


def test_the_task_and_a_subtask_are_two_keys(tmp_path):
    rows = {"said": [(0, "tidy up")], "step": [(0, "reach"), (5, "grasp")]}
    options = {"attributes": {"said": {"task": True}}, "columns": [{}, {"tasks": ["wipe", "dry"]}]}
    dataset = write_texts(tmp_path / "cache", [rows, {}], **options)
    with pytest.warns(robocache.LoaderWarning, match=r"delta_timestamps\['task'\]: 1 of 2 episodes .*'drawn_text'"):
        loader = _loader(dataset, {"task": Window(texts="indices"), "step": Window([0.0])})
    table = loader.texts["task"]
    assert [table[i] for i in _values(loader, "task")] == ["tidy up"] * 10 + ["wipe"] * 10
    assert _values(loader, "step") == [["reach"]] * 5 + [["grasp"]] * 5 + [[None]] * 10
    with pytest.warns(robocache.LoaderWarning, match=r"task_text: 1 of 2 episodes .*'drawn_text'"):
        loader = _loader(dataset, {"step": None}, task_text=True)
    assert _values(loader, "task") == ["tidy up"] * 10 + ["wipe"] * 10


def test_a_column_of_the_episodes_may_be_a_key(tmp_path):
    dataset = write_texts(tmp_path / "cache", [{}, {}, {}], columns=[{"hint": "slow"}, {}, {"hint": "fast"}])
    with pytest.warns(robocache.LoaderWarning, match=r"missing: 1 of 3 episodes have no text of 'hint': it is None"):
        loader = _loader(dataset, {"hint": Window(texts="text")})
    assert _values(loader, "hint") == ["slow"] * 10 + [None] * 10 + ["fast"] * 10


def test_steps_and_stamps_at_the_ends_of_int64(tmp_path):
    lowest, highest = -(2**63), 2**63 - 1
    clocks = [lowest, lowest + 5], [highest - 5, highest - 1]
    recording = [{"joint": (stamps, np.zeros(2)), "said": (stamps, ["a", "b"])} for stamps in clocks]
    years = 140 * 365 * 86400
    loader = _loader(write(tmp_path / "cache", recording), {"said": Window([-years, 0.0, years])}, snap_s=0)
    assert _values(loader, "said") == [["a", "a", "b"], ["a", "b", "b"], [None, "a", "b"], [None, "b", "b"]]


# ---- one of several texts ----


INSTRUCTIONS = ("say", "say_2", "say_3")


@pytest.fixture
def triple(tmp_path):
    episodes = [
        {"say": [(0, "a0")], "say_2": [(0, "b0")], "say_3": [(0, "c0")]},
        {"say": [(0, "")], "say_2": [(0, "b1")], "say_3": [(5, "c1")]},
        {"say_3": [(4, "c2")]},
    ]
    return Source(write_texts(tmp_path / "triple", episodes), rename=dict.fromkeys(INSTRUCTIONS, "say"))


def _alternatives(episode, row):
    return [{"a0", "b0", "c0"}, {"b1"} | ({"c1"} if row >= 5 else set()), {"c2"} if row >= 4 else {None}][episode]


def test_one_of_several_streams_is_drawn_by_the_sample(triple, device):
    window = Window([0.0, 0.05], texts="drawn_text")
    loader = _loader(triple, {"say": window}, device=device, shuffle=True, batch_size=7)
    drawn, epochs = Counter(), []
    for _ in range(60):
        epoch_texts = {}
        for batch in loader:
            rows = to_numpy(batch["joint"]).round().astype(int).tolist()
            for episode, row, texts in zip(batch["episode_index"].tolist(), rows, batch["say"], strict=True):
                assert {*texts} <= _alternatives(episode, row)
                assert texts[0] == texts[1]  # both steps share one draw
                epoch_texts[episode, row] = texts[0]
                drawn[texts[0]] += 1
        epochs.append(epoch_texts)
    assert len({tuple(sorted(map(str, counts.items()))) for counts in epochs}) == 60  # each epoch draws anew
    for text in ("a0", "b0", "c0"):
        assert 140 < drawn[text] < 260  # a third of 600, within 5 standard deviations
    assert 100 < drawn["c1"] < 200  # half of 300


def _drawn_texts(triple, epoch=1, **options):
    """Returns {(episode, moment): the drawn text}."""
    loader = _loader(triple, {"say": Window(texts="drawn_indices")}, shuffle=True, seed=5, **options)
    loader.set_epoch(epoch)
    table = [*loader.texts["say"], None]  # index -1 is no text
    return {(episode, time_ns): table[text] for text, episode, time_ns in anchors_of(loader, "say")}


def test_draws_do_not_depend_on_batch_size_rank_or_start(triple, device):
    expected = _drawn_texts(triple, batch_size=30)
    assert len(expected) == 30
    assert _drawn_texts(triple, device=device) == expected
    assert _drawn_texts(triple, framework="numpy", memory=robocache.Memory(prefetch=0)) == expected
    ranks = [_drawn_texts(triple, ranks=robocache.Ranks(rank=rank, world_size=3), batch_size=2) for rank in range(3)]
    assert {moment: text for rank_texts in ranks for moment, text in rank_texts.items()} == expected
    loader = _loader(triple, {"say": Window(texts="drawn_text")}, shuffle=True, seed=5, device=device)
    loader.set_epoch(1)
    next(loader)
    other = _loader(triple, {"say": Window(texts="drawn_text")}, seed=9, shuffle=True)
    for resumed in (pickle.loads(pickle.dumps(loader)), other):
        resumed.load_state_dict(loader.state_dict())
        for batch in resumed:
            assert [expected[anchor] for anchor in anchors_of([batch])] == batch["say"]


def test_a_draw_is_the_hash_of_the_rules(triple):
    """Splitmix64 of seed, epoch, index and the key's CRC-32, in Python's integers."""
    loader = _loader(triple, {"say": Window(texts="drawn_text")}, seed=2**62 + 3)
    loader.set_epoch(4)
    expected = []
    for number in range(10):
        state = 0
        for part in (2**62 + 3, 4, number, zlib.crc32(b"say")):
            state = mix_bits(((state ^ part) + 0x9E3779B97F4A7C15) % 2**64)
        expected.append(["a0", "b0", "c0"][(state >> 32) * 3 >> 32])
    assert _values(loader, "say")[:10] == expected
    loader.set_epoch(4)
    assert loader.gather([7, 2])["say"] == [expected[7], expected[2]]


def test_one_text_of_an_episodes_list_is_drawn_on_request(tmp_path):
    columns = [{"tasks": ["a", "b", "c"]}, {"tasks": []}, {"tasks": ["d"]}]
    dataset = write_texts(tmp_path / "cache", [{}, {}, {}], columns=columns)
    for key in ("task", "tasks"):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*several")
            loader = _loader(dataset, {key: Window(texts="drawn_text")}, shuffle=True)
        counts = Counter()
        for _ in range(20):
            for batch in loader:
                counts.update(zip(batch["episode_index"].tolist(), batch[key], strict=True))
        assert set(counts) == {(0, "a"), (0, "b"), (0, "c"), (1, None), (2, "d")}
        with pytest.warns(robocache.LoaderWarning, match=rf"delta_timestamps\['{key}'\]: 1 of 3 episodes .* several"):
            loader = _loader(dataset, {key: Window(texts="text")})
        assert _values(loader, key) == ["a"] * 10 + [None] * 10 + ["d"] * 10


# ---- mixtures, missing texts ----


def test_a_source_without_the_texts_gives_none(dataset, tmp_path, device):
    empty = write_texts(tmp_path / "without_texts", [{}, {}])
    other = write_texts(tmp_path / "other", [{"word": [(0, "lift"), (3, "new")]}])
    sources = [Source(dataset), Source(empty), Source(other, rename={"word": "said"})]
    with pytest.warns(robocache.LoaderWarning, match=r"\['said'\]: expected a stream"):
        loader = _loader(sources, {"said": Window([0.0, 0.1], texts="indices")}, device=device)
    table = loader.texts["said"]
    assert len(table) == len({*table})
    assert {*table} == {"reach", "lift", "wipe", "place", "never", "grüße", "new"}
    other_rows = [{"said": [(0, "lift"), (3, "new")]}]
    expected = _expected([0.0, 0.1]) + [[None, None]] * 20 + _expected([0.0, 0.1], other_rows)
    indices = np.array(_values(loader, "said"))
    assert [[None if i < 0 else table[i] for i in row] for row in indices.tolist()] == expected
    weighted = [Source(dataset, weight=1), Source(empty, weight=2), Source(other, weight=3, rename={"word": "said"})]
    with pytest.warns(robocache.LoaderWarning, match="said of its samples is None"):
        loader = _loader(weighted, {"said": None}, device=device, shuffle=True, batch_size=32)
    first_rows = np.cumsum([0, 40, 20])
    batch = next(loader)
    for index, text in enumerate(batch["said"]):
        source, episode = int(batch["dataset_index"][index]), int(batch["episode_index"][index])
        row = round(float(batch["joint"][index]))
        assert text == (expected[first_rows[source] + 10 * episode + row][0])


def test_rule_48_episodes_without_texts(dataset):
    with pytest.warns(robocache.LoaderWarning, match=r"missing: 1 of 4 episodes have no text of 'said': it is None"):
        loader = _loader(dataset, {"said": None})
    assert loader.num_anchors == 40
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _loader(dataset, {"said": None}, episodes=[0, 3]).num_anchors == 20
        dropped = _loader(dataset, {"said": None}, missing="drop", episodes=[3, 2, 0])
    assert next(dropped)["episode_index"].tolist() == [3] * 4
    assert dropped.num_anchors == 20
    with pytest.raises(robocache.ArgumentError, match=r"missing: 1 of 4 .*'said'; the first is episode 2"):
        _loader(dataset, {"said": None}, missing="error")
    with pytest.raises(robocache.ArgumentError, match="missing: expected an episode that has texts of all keys"):
        _loader(dataset, {"said": None}, missing="drop", episodes=[2])


# ---- other properties of a loader with texts ----


def test_texts_do_not_change_other_keys(dataset, device):
    without_texts = _loader(dataset, {}, shuffle=True, device=device)
    loader = _loader(dataset, {"said": Window([0.0], texts="indices")}, shuffle=True, device=device)
    assert loader.state_dict() == without_texts.state_dict()
    assert loader.spec == without_texts.spec
    assert [placement.key for placement in loader.explain()] == ["joint"]
    assert "said" in repr(loader)
    for expected_batch, batch in zip(without_texts, loader, strict=True):
        for key in expected_batch:
            assert np.array_equal(to_numpy(expected_batch[key]), to_numpy(batch[key]))
    assert position_of(without_texts) == position_of(loader)
    default = _loader(dataset, {"said": None}, default=Window(normalize="mean_std", dtype="float64"))
    assert default.gather([1])["said"] == ["reach"]


@pytest.mark.parametrize(
    ("windows", "options", "message"),
    [
        ({"said": Window(texts="tokens")}, {}, r"\['said'\].texts: expected one of 'text', 'indices', .* got 'tokens'"),
        ({"said": Window(normalize="mean_std")}, {}, r"\['said'\].normalize: goes with numbers or frames"),
        ({"said": Window(method="nearest")}, {}, r"\['said'\].method: goes with numbers or frames"),
        ({"said": Window(causal=True)}, {}, r"\['said'\].causal: goes with numbers or frames"),
        ({"said": Window([1], rows=True)}, {}, r"\['said'\].rows: goes with numbers or frames"),
        ({"said": Window([])}, {}, r"\['said'\]: expected at least one step"),
        ({"said": Window([float("nan")])}, {}, r"\['said'\]: expected finite offsets"),
        ({"said": Window([1e12])}, {}, r"\['said'\]: expected finite offsets"),
        ({"said": Window(["1"])}, {}, r"\['said'\]: expected a number, got '1'"),
        ({"said": Window(offset_s=float("inf"))}, {}, r"\['said'\]: expected finite offsets"),
        ({"joint": Window(texts="text")}, {}, r"\['joint'\]: expected a stream of texts.* got said"),
        ({"hint": Window(texts="text")}, {}, r"\['hint'\]: expected a stream of texts.* got said"),
        ({}, {"default": Window(texts="indices")}, r"default: expected no offsets .* no texts"),
        ({"task": Window(texts="text")}, {"task_text": "said"}, "task_text: the batch's key 'task'"),
    ],
    ids=str,
)
def test_invalid_text_keys_are_refused_by_name(dataset, windows, options, message):
    with pytest.raises(robocache.Error, match=message):
        _loader(dataset, windows, **options)


def test_texts_alone_are_refused(dataset):
    with pytest.raises(robocache.ArgumentError, match="expected a key of numbers or frames beside the texts, got said"):
        robocache.Loader(dataset, batch_size=1, delta_timestamps={"said": None}, missing="drop")


def test_two_text_streams_for_one_key_are_drawn_or_refused(triple):
    with pytest.raises(robocache.ArgumentError, match=r"rename: expected one stream for 'say', got say, say_2, say_3"):
        _loader(triple, {"say": Window(texts="text")})


def test_texts_do_not_wait_for_the_device(dataset, cuda):
    """A batch is returned while the device is still busy with earlier work."""
    import torch

    loader = _loader(dataset, {"said": Window([0.0], texts="indices")}, device=cuda, task_text="said", missing="drop")
    next(loader)
    torch.cuda.synchronize()
    torch.cuda._sleep(2 * 10**9)
    earlier_work = torch.cuda.Event()
    earlier_work.record()
    start = time.perf_counter()
    batch = next(loader)
    assert not earlier_work.query(), f"took {time.perf_counter() - start:.3f} s"
    assert batch["task"] == [row[0] for row in _expected([0.0])[4:8]]
