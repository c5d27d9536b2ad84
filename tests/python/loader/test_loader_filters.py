"""Filters of a Loader's anchors by conditions on rows, ranges, ends and steps, against numpy and plain Python."""

import collections
import itertools
import pickle
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import anchors_of, assert_same_batches, batches_of, write

import robocache
from robocache import Anchors

START = 1_700_000_000_000_000_000
SUBTASKS = ["reach", "grasp", "lift", "\u00fcber"]


def record(rng, episodes=9):
    """Returns episodes with jittered clocks and repeated stamps. `grip` and `subtask` begin late; episode 4 has neither."""
    recording = []
    for number in range(episodes):
        start = START + 10**11 * number
        times = {
            name: start + late + np.sort(rng.integers(0, 2 * 10**9, count))
            for name, count, late in [("arm", 40 + number, 0), ("grip", 15, 4 * 10**8), ("subtask", 6, 10**8)]
        }
        times["arm"][[3, 10]] = times["arm"][[2, 11]]
        streams = {
            "arm": (times["arm"], rng.normal(size=(40 + number, 3)).astype(np.float32)),
            "grip": (times["grip"], rng.integers(0, 5, 15)),
            "subtask": (times["subtask"], rng.choice(SUBTASKS, 6).tolist()),
        }
        for name in ("grip", "subtask") if number == 4 else ():
            del streams[name]
        recording.append(streams)
    return recording


@pytest.fixture(scope="module")
def recording():
    return record(np.random.default_rng(7))


@pytest.fixture(scope="module")
def dataset(recording, tmp_path_factory):
    return write(tmp_path_factory.mktemp("filters") / "cache", recording)


def loader_of(dataset, anchors, **options):
    options = {"batch_size": 16, "delta_timestamps": {"arm": None}, "device": "cpu"} | options
    return robocache.Loader(dataset, anchors=anchors, **options)


def last_row(recording, episode, stream, time_ns, snap_ns=1000):
    """Returns the last row of a stream with a stamp before time + snap; -1 if it has none."""
    times, _ = recording[episode].get(stream, ([], []))
    return sum(stamp < time_ns + snap_ns for stamp in times) - 1


def value_at(recording, episode, stream, time_ns):
    row = last_row(recording, episode, stream, time_ns)
    return None if row < 0 else recording[episode][stream][1][row]


def speed(recording, episode, time_ns):
    row, (times, values) = last_row(recording, episode, "arm", time_ns), recording[episode]["arm"]
    if row < 1:
        return None
    seconds = (int(times[row]) - int(times[row - 1])) / 1e9
    if seconds == 0:
        return None
    return float(np.linalg.norm(values[row].astype(float) - values[row - 1].astype(float))) / seconds


def expected_anchors(recording, ticks, *, condition=None, keep=None, drop=None, first=None, last=None, every=1):
    """Returns the anchors that a loader should draw.

    ticks: for each episode a list of (row, time). Ranges are (episode, kind, start, end).
    """

    def is_inside(ranges, episode, row, time_ns):
        begin = min(int(times[0]) for times, _ in recording[episode].values())
        position = {"row": row, "ns": time_ns, "s": time_ns - begin}
        tolerance = {"row": 0, "ns": 999, "s": 999}  # times count as inside if less than 1 us beyond an end
        scale = {"row": 1, "ns": 1, "s": 10**9}
        return any(
            e == episode
            and round(start * scale[kind]) - tolerance[kind]
            <= position[kind]
            <= round(end * scale[kind]) + tolerance[kind]
            for e, kind, start, end in ranges
        )

    anchors = []
    for episode, moments in ticks.items():
        remaining = [
            time_ns
            for row, time_ns in moments
            if (keep is None or is_inside(keep, episode, row, time_ns))
            and not (drop and is_inside(drop, episode, row, time_ns))
            and (condition is None or condition(episode, time_ns))
        ]
        if first is not None or last is not None:
            n = len(remaining)
            kept_indices = {*range(min(first or 0, n)), *range(max(n - (last or 0), 0), n)}
            remaining = [time_ns for index, time_ns in enumerate(remaining) if index in kept_indices]
        anchors += [(episode, time_ns) for time_ns in remaining[::every]]
    return anchors


def ticks_of(recording, episodes=None, drop_n_last=0):
    chosen = range(len(recording)) if episodes is None else episodes
    ticks = {e: list(enumerate(recording[e]["arm"][0].tolist())) for e in chosen}
    return {e: rows[: len(rows) - drop_n_last] for e, rows in ticks.items()}


# name: the condition for pyarrow, and for the oracle as a function of (recording, episode, time)
CONDITIONS = {
    "a feature of a stream": (
        pc.field("arm[1]") > 0.25,
        lambda r, e, t: value_at(r, e, "arm", t)[1] > 0.25,
    ),
    "single feature": (pc.field("grip") >= 3, lambda r, e, t: (v := value_at(r, e, "grip", t)) is not None and v >= 3),
    "null": (pc.field("grip").is_null(), lambda r, e, t: value_at(r, e, "grip", t) is None),
    "not": (~(pc.field("grip") >= 3), lambda r, e, t: (v := value_at(r, e, "grip", t)) is not None and v < 3),
    "speed": (pc.field("speed(arm)") > 30, lambda r, e, t: (v := speed(r, e, t)) is not None and v > 30),
    "text": (pc.field("subtask").isin(SUBTASKS[2:]), lambda r, e, t: value_at(r, e, "subtask", t) in SUBTASKS[2:]),
    "mapping": (
        {"subtask": "grasp", "task": "task 1"},
        lambda r, e, t: value_at(r, e, "subtask", t) == "grasp" and e % 2 == 1,
    ),
    "streams and episodes": (
        (pc.field("arm[0]") < pc.field("grip")) & (pc.field("episode_index") != 5),
        lambda r, e, t: (v := value_at(r, e, "grip", t)) is not None and value_at(r, e, "arm", t)[0] < v and e != 5,
    ),
}


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("rate_hz", [None, 23.0])
def test_rule_24_12_conditions_equal_the_oracle(dataset, recording, device, condition, rate_hz):
    where, holds = CONDITIONS[condition]
    clock = {"stream": "arm"} if rate_hz is None else {"rate_hz": rate_hz}
    anchors = Anchors(where=where, **clock)
    unfiltered = anchors_of(loader_of(dataset, Anchors(**clock), shuffle=False, device=device))
    expected = [(e, t) for e, t in unfiltered if holds(recording, e, t)]
    assert 0 < len(expected) < len(unfiltered)
    loader = loader_of(dataset, anchors, shuffle=False, device=device)
    assert anchors_of(loader) == expected
    assert loader.num_anchors == len(expected)
    shuffled = loader_of(dataset, anchors, seed=3, device=device)
    for _ in range(2):
        assert sorted(anchors_of(shuffled)) == sorted(expected)


KINDS = {"row": ("start_row", "end_row"), "ns": ("start_ns", "end_ns"), "s": ("start_s", "end_s")}


@st.composite
def ranges(draw, recording):
    """Returns ranges of one kind for the oracle, and a table of them for the loader."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    chosen = []
    for _ in range(draw(st.integers(1, 5))):
        episode = draw(st.integers(0, len(recording) - 1))
        rows = len(recording[episode]["arm"][0])
        a, b = sorted(draw(st.tuples(st.integers(0, rows - 1), st.integers(0, rows - 1))))
        if kind != "row":
            a, b = (int(recording[episode]["arm"][0][row]) for row in (a, b))
            if kind == "s":
                begin = min(int(times[0]) for times, _ in recording[episode].values())
                a, b = (a - begin) / 1e9, (b - begin) / 1e9
        chosen.append((episode, kind, a, b))
    columns = {"episode": [x[0] for x in chosen]} | {
        name: [x[2 + i] for x in chosen] for i, name in enumerate(KINDS[kind])
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return chosen, draw(st.sampled_from([columns, pa.table(columns), rows]))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rule_24_12_all_options_together_equal_the_oracle(dataset, recording, data):
    options, oracle = {}, {}
    for name in ("keep", "drop"):
        if data.draw(st.booleans(), name):
            oracle[name], options[name] = data.draw(ranges(recording))
    for name in ("first", "last", "every"):
        if data.draw(st.booleans(), name):
            oracle[name] = options[name] = data.draw(st.integers(1, 9))
    if data.draw(st.booleans(), "where"):
        options["where"], holds = CONDITIONS[data.draw(st.sampled_from(sorted(CONDITIONS)))]
        oracle["condition"] = lambda e, t: holds(recording, e, t)
    drop_n_last = options["drop_n_last"] = data.draw(st.integers(0, 3))
    episodes = data.draw(st.lists(st.integers(0, len(recording) - 1), min_size=1, unique=True))
    expected = expected_anchors(recording, ticks_of(recording, episodes, drop_n_last), **oracle)
    anchors = Anchors(stream="arm", **options)
    if not expected:
        with pytest.raises(robocache.ArgumentError, match=r"^anchor: expected a tick to draw"):
            loader_of(dataset, anchors, episodes=episodes)
        return
    loader = loader_of(dataset, anchors, episodes=episodes, shuffle=False, batch_size=len(expected))
    batch = next(loader)
    assert anchors_of([batch]) == expected
    for episode, time_ns, row in zip(batch["episode_index"], batch["time_ns"], batch["arm"].numpy(), strict=True):
        times, values = recording[int(episode)]["arm"]
        assert any((row == values[k]).all() for k in np.flatnonzero(times == int(time_ns)))


def test_only_first_rows_and_annotated_windows(dataset, recording, device):
    starts = anchors_of(loader_of(dataset, Anchors(stream="arm", first=1), shuffle=False, device=device))
    assert starts == [(e, int(rows["arm"][0][0])) for e, rows in enumerate(recording)]
    # A window includes its first and last frame, as in CALVIN.
    windows = {"episode": [2, 2, 6], "start_row": [5, 20, 0], "end_row": [9, 20, 3]}
    rows = anchors_of(loader_of(dataset, Anchors(stream="arm", keep=windows), shuffle=False, device=device))
    expected = [(2, r) for r in (*range(5, 10), 20)] + [(6, r) for r in range(4)]
    assert rows == [(e, int(recording[e]["arm"][0][row])) for e, row in expected]


def test_ranks_share_filtered_anchors_and_resume(dataset, device):
    options = {"anchors": Anchors(stream="arm", where=pc.field("arm[0]") > 0, every=2), "seed": 5, "device": device}
    expected = anchors_of(loader_of(dataset, batch_size=8, **options))
    ranks = [loader_of(dataset, batch_size=4, ranks=robocache.Ranks(rank=r, world_size=2), **options) for r in range(2)]
    assert anchors_of(itertools.chain(*zip(*ranks, strict=True)))[: len(expected)] == expected
    first = loader_of(dataset, batch_size=8, **options)
    for _ in range(3):
        next(first)
    resumed = loader_of(dataset, batch_size=5, **options)
    resumed.load_state_dict(first.state_dict())
    assert anchors_of(resumed) == expected[24:]
    copy = pickle.loads(pickle.dumps(first))
    assert anchors_of(copy) == expected[24:]
    assert copy.num_anchors == first.num_anchors
    for anchors in (
        Anchors(stream="arm"),
        Anchors(stream="arm", where=pc.field("arm[0]") > 0),
        Anchors(stream="arm", where=pc.field("arm[0]") > 0.3, every=2),
    ):
        with pytest.raises(robocache.ArgumentError, match=r"^state: expected one of this dataset, selection"):
            loader_of(dataset, anchors).load_state_dict(first.state_dict())


def test_shards_and_mixtures_are_filtered_source_by_source(dataset, recording, device):
    anchors = Anchors(stream="arm", where=pc.field("arm[0]") > 0)
    all_anchors = anchors_of(loader_of(dataset, Anchors(stream="arm"), shuffle=False))
    positive = [(e, t) for e, t in all_anchors if value_at(recording, e, "arm", t)[0] > 0]
    expected = [(0, *anchor) for anchor in positive]
    expected += [(1, e, t) for e, t in all_anchors if e == 1]
    expected += [(2, e, t) for e, t in positive if e in (3, 4)]
    sources = [
        robocache.Source(dataset),
        robocache.Source(dataset, anchors=Anchors(keep={"episode": [1], "start_row": [0], "end_row": [40]})),
        robocache.Source(dataset, episodes=[3, 4]),
    ]
    loader = loader_of(sources, anchors, device=device)
    unfiltered = sum(len(recording[e]["arm"][0]) for episodes in (range(9), range(9), (3, 4)) for e in episodes)
    assert sorted(anchors_of(loader, "dataset_index")) == expected
    assert "anchors=" in repr(sources[1])
    line = f"anchors: {loader.num_anchors} of {unfiltered}; where=(arm[0] > 0); sources[1]: keep=1 ranges"
    assert str(loader.explain()).endswith(line)
    shards = [
        loader_of(dataset, anchors, ranks=robocache.Ranks(rank=r, world_size=2, shard_episodes=True)) for r in range(2)
    ]
    assert collections.Counter(anchors_of(itertools.chain(*shards))) <= collections.Counter(positive)


def test_gather_takes_indices_of_filtered_anchors(dataset, device):
    loader = loader_of(dataset, Anchors(stream="arm", where=pc.field("grip") == 2, every=3), device=device)
    for batch in itertools.islice(loader, 3):
        assert_same_batches(batches_of([batch]), batches_of([loader.gather(batch["anchor_index"])]))
    with pytest.raises(robocache.ArgumentError, match=r"^indices\[0\]"):
        loader.gather([loader.num_anchors])


def test_more_anchors_than_are_filtered_at_once(tmp_path):
    """The library filters at most 2**18 anchors at once."""
    rows = 600_000
    values = np.arange(rows) % 7
    dataset = write(
        tmp_path / "cache", [{"arm": (np.arange(rows) * 1000, values)}, {"arm": (np.arange(9), np.zeros(9, int))}]
    )
    loader = loader_of(dataset, Anchors(where=pc.field("arm") == 6), shuffle=False, snap_s=0, batch_size=100_000)
    assert next(loader)["time_ns"].tolist() == (np.flatnonzero(values == 6) * 1000).tolist()


def test_conditions_by_feature_names_and_texts(tmp_path):
    times = np.arange(6) * 10**8
    rows = {"state": (times, np.arange(12.0).reshape(6, 2)), "subtask_index": (times, np.array([0, 0, 1, 1, 0, 7]))}
    streams = {"state": {"names": ["x", "gripper.pos"]}, "subtask_index": {"attributes": {"texts": "table"}}}
    tables = {"table": {"0": "pick", "1": "place"}}
    dataset = write(tmp_path / "cache", [rows], streams=streams, provenance=tables)
    for where, rows in [
        (pc.field("state.gripper.pos") > 6, [3, 4, 5]),
        (pc.field("state[0]") == 4, [2]),
        ({"subtask": "place"}, [2, 3]),
        ({"subtask": None}, [5]),
        ({"subtask_index": 0}, [0, 1, 4]),
        (pc.scalar(True), [*range(6)]),
    ]:
        loader = loader_of(dataset, Anchors(where=where), delta_timestamps={"state": None}, shuffle=False)
        assert (next(loader)["time_ns"] // 10**8).tolist() == rows


@pytest.mark.parametrize(
    ("anchors", "match"),
    [
        ({"where": pc.field("nope") > 1}, r"^anchors.where: .*nope.*arm\[0\].*grip.*subtask.*task.*speed"),
        ({"where": pc.field("speed(subtask)") > 1}, r"^anchors.where: .*speed\(subtask\)"),
        ({"where": pc.field("grip") + 1}, "^anchors.where: .*bool"),
        ({"where": {"grip": "x"}}, "^anchors.where: "),
        ({"where": "grip > 1"}, "^anchors.where: .*expression.*str"),
        ({"where": {1: 2}}, "^anchors.where: "),
        ({"first": 0}, "^anchors.first: .*at least 1.*0"),
        ({"last": -1}, "^anchors.last: .*-1"),
        ({"every": 0}, "^anchors.every: .*0"),
        ({"every": None}, "^anchors.every: .*None"),
        ({"every": True}, "^anchors.every: .*True"),
        ({"first": 1.5}, "^anchors.first: .*1.5"),
        ({"keep": 3}, "^anchors.keep: .*table.*3"),
        ({"keep": {"episode": [0]}}, "^anchors.keep: .*start_s.*start_row"),
        ({"drop": {"episode": [0], "start_s": [0], "end_s": [1], "name": ["x"]}}, "^anchors.drop: .*name"),
        ({"keep": {"episode": [0, 9], "start_s": [0, 0], "end_s": [1, 1]}}, "^anchors.keep: row 1: episode.*9"),
        ({"keep": {"episode": [0], "start_s": [2], "end_s": [1]}}, "^anchors.keep: row 0: .*start_s.*2.*1"),
        ({"keep": {"episode": [0], "start_s": [float("nan")], "end_s": [1]}}, "^anchors.keep: row 0: .*nan"),
        (
            {"keep": {"episode": [0], "start_s": [0], "end_s": [1e10]}},
            r"expected seconds between -2\^33 and 2\^33, got 0",
        ),
        ({"keep": {"episode": [0], "start_s": [None], "end_s": [1]}}, "^anchors.keep: row 0: .*None"),
        ({"keep": {"episode": [0, 1], "start_row": [0], "end_row": [1]}}, "^anchors.keep: .*length"),
        ({"drop": [{"episode": 2, "start_row": 4, "end_row": 60}]}, "^anchors.drop: .*episode 2.*42.*60"),
        ({"drop": [{"episode": 2, "start_row": -4, "end_row": 6}]}, "^anchors.drop: row 0: .*-4"),
        ({"drop": [{"episode": 2}, 3]}, "^anchors.drop: row 1: .*3"),
        ({"keep": {"episode": 0, "start_s": 0, "end_s": 1}}, "^anchors.keep: expected a list of values in each column"),
        ({"keep": []}, "^anchor: expected a tick to draw"),
        ({"where": pc.field("arm[0]") > 1e9}, "^anchor: expected a tick to draw.*where"),
        (
            {"stream": None, "rate_hz": 5, "keep": [{"episode": 2, "start_row": 4, "end_row": 6}]},
            "^anchors.keep: .*rate_hz",
        ),
    ],
    ids=str,
)
def test_invalid_filters_are_refused_by_name(dataset, anchors, match):
    with pytest.raises((robocache.ArgumentError, robocache.ArgumentTypeError), match=match):
        loader_of(dataset, Anchors(**{"stream": "arm"} | anchors))


def test_invalid_filters_of_a_mixture_are_refused_by_name(dataset):
    keep = {"episode": [0], "start_row": [0], "end_row": [1]}
    for sources, anchors, start in [
        ([robocache.Source(dataset)], Anchors(keep=keep), "anchors.keep: "),
        ([robocache.Source(dataset, anchors=Anchors(edges="drop"))], None, "sources[0].anchors.edges: "),
        ([robocache.Source(dataset, anchors=Anchors(stream="arm"))], None, "sources[0].anchors.stream: "),
        ([robocache.Source(dataset, anchors=Anchors(where={"x": 1}))], None, "sources[0].anchors.where: "),
        ([robocache.Source(dataset, anchors="arm")], None, "sources[0].anchors: "),
        ([robocache.Source(dataset, anchors=Anchors(first=0))], None, "sources[0].anchors.first: "),
    ]:
        with pytest.raises(robocache.Error, match="^" + re.escape(start)):
            loader_of(sources, anchors)


def test_later_changes_of_arguments_have_no_effect(dataset):
    keep = {"episode": [0], "start_row": [0], "end_row": [1]}
    anchors = Anchors(stream="arm", keep=keep)
    loader = loader_of(dataset, anchors)
    keep["episode"][0] = 3
    keep["start_row"] = [1]
    assert anchors_of(pickle.loads(pickle.dumps(loader))) == anchors_of(loader)
    assert_same_batches(batches_of(loader_of(dataset, anchors)), batches_of(loader))


def test_a_condition_must_mean_the_same_in_all_sources(tmp_path):
    def write_cache(name, names, units):
        times = np.arange(4) * 10**8
        rows = {"arm": (times, np.arange(8.0).reshape(4, 2)), "a": (times, np.arange(4.0)[:, None])}
        return write(tmp_path / name, [rows], streams={"arm": {"names": names, "attributes": {"units": units}}})

    first = write_cache("first", ["x", "y"], "m")
    swapped = write_cache("swapped", ["y", "x"], "metres")
    in_millimetres = write_cache("small", ["x", "y"], ["mm", "m"])

    def count(condition, *datasets, source_condition=None):
        source_anchors = None if source_condition is None else Anchors(where=source_condition)
        sources = [robocache.Source(dataset, anchors=source_anchors) for dataset in datasets]
        return loader_of(sources, Anchors(stream="a", where=condition), delta_timestamps={"a": None}).num_anchors

    for condition, other, message in (
        (pc.field("arm[0]") > 1, swapped, r"'arm\[0\]' of 'x' in sources\[0\] .* and of 'y' in"),
        (pc.field("arm.x") > 1, in_millimetres, r"'arm.x' of 'm' in sources\[0\] .* and of 'mm' in"),
        ((pc.field("a") > 0) & (pc.field("speed(arm)") > 1), in_millimetres, r"'speed\(arm\)' of 'm' in"),
    ):
        with pytest.raises(robocache.ArgumentError, match=rf"anchors\.where: expected columns .* got {message}"):
            count(condition, first, other)
        assert count(condition, first) > 0
    # Columns that the condition does not use may differ; so may columns when each source has its own condition.
    assert count(pc.field("arm.x") > 1, first, swapped) == 3 + 3
    assert count(pc.field("arm[1]") > 1, first, in_millimetres) == count(pc.field("a") > 0, first, swapped) == 6
    assert count(None, first, in_millimetres, source_condition=pc.field("arm.x") > 1) == 6
