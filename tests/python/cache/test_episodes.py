"""The table of episodes, select and split."""

import json
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import rounds

import robocache

# ---- the table ----

VALUES = {
    "bool": st.booleans(),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1),
    "string": st.text(),
    "null": st.none(),
}
LISTS = {f"list<{item}>": st.lists(VALUES[item], max_size=3) for item in ("int64", "float64", "string")}
LISTS["list<null>"] = st.just([])
RESERVED = {"episode_index", "start_ns", "end_ns"}


def column_value(value, kind):
    if isinstance(value, list):
        return [column_value(item, kind.removeprefix("list<").removesuffix(">")) for item in value]
    return float(value) if kind == "float64" and value is not None else value


@settings(max_examples=40)
@given(data=st.data())
def test_the_table_has_the_metadata_of_each_episode(tmp_path_factory, data):
    names = data.draw(st.lists(st.text(min_size=1).filter(lambda name: name not in RESERVED), unique=True, max_size=5))
    kinds = {name: data.draw(st.sampled_from([*VALUES, *LISTS])) for name in names}
    path = tmp_path_factory.mktemp("table") / "cache"
    with robocache.Writer(path) as writer:
        for _ in range(data.draw(st.integers(0, 4))):
            given_names = [name for name in names if data.draw(st.booleans())]
            # Passed as a dict: a name may be "self".
            row = {name: data.draw(st.none() | {**VALUES, **LISTS}[kinds[name]]) for name in given_names}
            with writer.episode(**row) as episode:
                episode.append("x", [3, 5], [0, 0])
    ds = robocache.open(path)
    columns = json.loads((path / "manifest.json").read_text())["episode_columns"]
    lines = [json.loads(line) for line in (path / "episodes.jsonl").read_bytes().splitlines()]
    assert ds.episodes.column_names == [column["name"] for column in columns]
    for column in columns:
        kind = column["type"]
        item = pa.type_for_alias(kind.removeprefix("list<").removesuffix(">"))
        assert ds.episodes.schema.field(column["name"]).type == (pa.list_(item) if kind.startswith("list<") else item)
        expected = [column_value(line.get(column["name"]), kind) for line in lines]
        assert ds.episodes[column["name"]].to_pylist() == expected


def test_lines_longer_than_the_read_buffer(tmp_path):
    texts = ["x" * length for length in (3_000_000, 5, 2**20, 2**20 - 1, 1_200_000)]
    with robocache.Writer(tmp_path / "cache") as writer:
        for text in texts:
            with writer.episode(text=text):
                pass
    assert robocache.open(tmp_path / "cache").episodes["text"].to_pylist() == texts


@pytest.mark.soak
def test_many_episodes_open_at_once(tmp_path):
    """`./dev attack` tests a million episodes."""
    episodes = rounds(25_000)
    times, values = np.array([0, 20_000_000]), np.zeros((2, 7), np.float32)
    with robocache.Writer(tmp_path / "few") as writer, writer.episode(task="t", success=True) as episode:
        episode.append("action", times, values)
    with robocache.Writer(tmp_path / "many") as writer:
        for number in range(episodes):
            task = f"pick object {number % 100} and put it into the box"
            with writer.episode(task=task, success=number % 3 == 0) as episode:
                episode.append("action", times, values)
                episode.append("observation.state", times, values)
    # In a separate process, so that only this code uses its memory.
    code = f"""
import sys, time
sys.modules["torch"] = None  # its import would take most of the time
import robocache
def memory():
    with open("/proc/self/status") as status:
        return sum(int(line.split()[1]) for line in status if line.startswith(("RssAnon", "RssFile"))) * 1024
robocache.Loader(robocache.open({str(tmp_path / "few")!r}), batch_size=1, delta_timestamps={{"action": [0.0]}}, device="cpu")
before, start = memory(), time.process_time()
ds = robocache.open({str(tmp_path / "many")!r})
open_s, bytes = time.process_time() - start, memory() - before
start = time.process_time()
loader = robocache.Loader(ds, batch_size=8, delta_timestamps={{"action": [0.0]}}, device="cpu")
assert loader.num_samples == 2 * {episodes}
loader_s = time.process_time() - start
start = time.process_time()
assert len(ds.select({{"success": True}})) == len(range(0, {episodes}, 3))
print(open_s, bytes, loader_s, time.process_time() - start)
"""
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    open_s, memory, loader_s, select_s = map(float, process.stdout.split())
    assert open_s < 2
    assert memory < 5e6 + 50 * episodes  # 5 MB, and 50 bytes for each episode
    assert loader_s < 3
    assert select_s < 10


# ---- select ----


@pytest.fixture
def ds(tmp_path):
    """Twelve episodes: episode e lasts e seconds, but episode 7 has no rows."""
    with robocache.Writer(tmp_path / "cache") as writer:
        for e in range(12):
            task = {} if e == 4 else {"task": ["pick", "place", "wipe"][e % 3]}
            with writer.episode(success=e % 2 == 0, tags=["a"] * (e % 3), **task) as episode:
                if e != 7:
                    episode.append("arm/joint", np.arange(e + 1) * 10**9 - 2**62, np.zeros(e + 1))
                    episode.append("grip", [-(2**62)], [1])
    return robocache.open(tmp_path / "cache")


def test_select_by_equal_values(ds):
    assert ds.select({"success": True}) == [0, 2, 4, 6, 8, 10]
    assert ds.select({"success": True, "task": "pick"}) == [0, 6]
    assert ds.select({"task": None}) == [4]
    assert ds.select({"episode_index": np.int64(3)}) == [3]
    assert ds.select({"task": "sweep"}) == []
    assert ds.select({}) == list(range(12))


def test_select_by_an_expression(ds):
    field = pc.field
    assert ds.select(field("success")) == [0, 2, 4, 6, 8, 10]
    assert ds.select(field("task") == "pick") == [0, 3, 6, 9]
    assert ds.select(field("task") != "pick") == [1, 2, 5, 7, 8, 10, 11]  # a null task compares as null
    assert ds.select(field("task").isin(["pick", "wipe"]) & (field("episode_index") > 5)) == [6, 8, 9, 11]
    assert ds.select(pc.list_value_length(field("tags")) == 2) == [2, 5, 8, 11]
    assert ds.select(field("duration_s") >= 9.5) == [10, 11]
    assert ds.select(field("duration_s").is_null()) == [7]
    assert ds.select((field("rows.arm/joint") == 4) | (field("rows.grip") == 0)) == [3, 7]
    assert ds.select(pc.scalar(False)) == []


def test_a_column_of_the_writer_hides_the_one_that_select_adds(tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer:
        for e in range(3):
            with writer.episode(duration_s=float(e), **{"rows.x": "few"}) as episode:
                episode.append("x", [0], [0])
    ds = robocache.open(tmp_path / "cache")
    assert ds.select(pc.field("duration_s") > 0.5) == [1, 2]
    assert ds.select({"rows.x": "few"}) == [0, 1, 2]


def test_a_difference_of_stamps_beyond_int64(tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("x", [-(2**63), 2**63 - 1], [0, 0])
    assert robocache.open(tmp_path / "cache").select(pc.field("duration_s") > 1.8e10) == [0]


def test_select_of_no_episodes(tmp_path):
    ds = write_episodes(tmp_path / "cache", 0)
    assert ds.select({}) == ds.select(pc.field("duration_s") > 0) == ds.select({"start_ns": None}) == []


def test_select_of_many_episodes_is_ascending(tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer:
        for e in range(100_000):
            with writer.episode(odd=e % 2):
                pass
    assert robocache.open(tmp_path / "cache").select({"odd": 1}) == list(range(1, 100_000, 2))


@pytest.mark.parametrize(
    ("where", "error"),
    [
        (pc.field("sucess"), robocache.ArgumentError),
        ({"tsk": "pick"}, robocache.ArgumentError),
        (pc.field("duration_s") + 1, robocache.ArgumentError),
        (pc.field("task") > 3, robocache.ArgumentError),
        ({"success": "yes"}, robocache.ArgumentError),
        ({"success": object()}, robocache.ArgumentError),
        ({"task": "\udc80"}, robocache.ArgumentError),
        ({"episode_index": 2**70}, robocache.ArgumentError),
        ({3: 1}, robocache.ArgumentTypeError),
        (lambda row: True, robocache.ArgumentTypeError),
        ("success", robocache.ArgumentTypeError),
        (None, robocache.ArgumentTypeError),
    ],
)
def test_select_refuses(ds, where, error):
    with pytest.raises(error, match=r"^where: "):
        ds.select(where)


# ---- split ----


def check_split(parts, names, episodes):
    """Asserts that the parts are ascending and disjoint; returns the episodes in no part."""
    assert list(parts) == names
    members = [e for part in parts.values() for e in part]
    assert all(part == sorted(part) and all(type(e) is int for e in part) for part in parts.values())
    assert len(set(members)) == len(members) and set(members) <= set(range(episodes))
    return sorted(set(range(episodes)) - set(members))


def write_episodes(path, episodes, **metadata):
    with robocache.Writer(path, overwrite=True) as writer:
        for e in range(episodes):
            with writer.episode(**{name: values[e] for name, values in metadata.items()}):
                pass
    return robocache.open(path)


@settings(max_examples=40)
@given(
    shares=st.lists(st.integers(0, 1000), min_size=1, max_size=4).filter(lambda shares: sum(shares) <= 1000),
    episodes=st.integers(0, 40),
    seed=st.integers(0, 2**63 - 1),
)
def test_shares_are_rounded_by_largest_remainder(shares, episodes, seed, tmp_path_factory):
    ds = write_episodes(tmp_path_factory.getbasetemp() / "split", episodes)
    names = [f"part {p}" for p in range(len(shares))]
    parts = ds.split({name: share / 1000 for name, share in zip(names, shares, strict=True)}, seed=seed)
    unassigned = check_split(parts, names, episodes)
    # Quotas with the largest remainders are rounded up, at equal remainders the earlier ones; all others are rounded down.
    quotas = [Fraction(share * episodes, 1000) for share in (*shares, 1000 - sum(shares))]
    counts = [*map(len, parts.values()), len(unassigned)]
    assert sum(counts) == episodes
    ranks = [(-(quota % 1), p) for p, quota in enumerate(quotas)]
    rounded_up = [rank for rank, count, quota in zip(ranks, counts, quotas, strict=True) if count == quota // 1 + 1]
    rounded_down = [rank for rank, count, quota in zip(ranks, counts, quotas, strict=True) if count == quota // 1]
    assert len(rounded_up) + len(rounded_down) == len(counts)
    assert not rounded_up or not rounded_down or max(rounded_up) < min(rounded_down)


def test_a_split_never_changes(tmp_path):
    # The expected split comes from another program.
    assert write_episodes(tmp_path / "cache", 10).split({"train": 0.7, "val": 0.2}) == {
        "train": [0, 1, 3, 4, 6, 8, 9],
        "val": [2, 7],
    }
    assert write_episodes(tmp_path / "cache", 10).split({"train": 7, "val": 2}, seed=1)["val"] == [0, 4]


def test_decimal_shares_are_exact(tmp_path):
    ds = write_episodes(tmp_path / "cache", 10)
    for shares in ([0.7, 0.2, 0.1], [1 / 3, 1 / 3, 1 / 3], [1 / 7] * 7, [0.1 + 0.2, 0.7], [np.float32(0.5)] * 2):
        names = [str(p) for p in range(len(shares))]
        assert check_split(ds.split(dict(zip(names, shares, strict=True))), names, 10) == []
    assert [len(part) for part in ds.split({"a": 0.7, "b": 0.2, "c": 0.1}).values()] == [7, 2, 1]
    # 2.5 each: the earlier part is rounded up.
    assert [len(part) for part in ds.split({"a": 0.25, "b": 0.25}).values()] == [3, 2]
    assert ds.split({}) == {}


def test_shares_may_be_numbers_of_episodes(tmp_path):
    ds = write_episodes(tmp_path / "cache", 10)
    parts = ds.split({"train": np.int32(6), "val": 3, "none": 0}, seed=5)
    assert [len(part) for part in parts.values()] == [6, 3, 0]
    assert len(check_split(parts, ["train", "val", "none"], 10)) == 1
    assert parts != ds.split({"train": 6, "val": 3, "none": 0}, seed=6)


def test_episodes_with_one_value_of_a_column_stay_together(tmp_path):
    tasks = [["pick", "place", None, "wipe", "fold"][e * e % 5] for e in range(60)]
    tools = [[tool] if tool else None for tool in tasks]
    ds = write_episodes(tmp_path / "cache", 60, task=tasks, tools=tools)
    parts = ds.split({"train": 0.5, "val": 0.5}, by="task", seed=2)
    assert check_split(parts, ["train", "val"], 60) == []
    tasks_by_part = [{tasks[e] for e in part} for part in parts.values()]
    assert not tasks_by_part[0] & tasks_by_part[1]
    # Only pick, place and fold occur: e * e % 5 is 0, 1 or 4.
    assert [len(part) for part in tasks_by_part] == [2, 1]
    assert ds.split({"train": 0.5, "val": 0.5}, by="tools", seed=2) == parts
    assert write_episodes(tmp_path / "none", 0, task=[]).split({"train": 1.0}, by="start_ns") == {"train": []}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shares": {"a": 0.9, "b": 0.2}}, robocache.ArgumentError, r"^shares: "),
        ({"shares": {"a": -0.1}}, robocache.ArgumentError, r"^shares\['a'\]: "),
        ({"shares": {"a": float("nan")}}, robocache.ArgumentError, r"^shares\['a'\]: "),
        ({"shares": {"a": 0.5, "b": 3}}, robocache.ArgumentError, r"^shares\['b'\]: "),
        ({"shares": {"a": 8, "b": 5}}, robocache.ArgumentError, r"^shares: "),
        ({"shares": {"a": -8}}, robocache.ArgumentError, r"^shares: "),
        ({"shares": {"a": True}}, robocache.ArgumentTypeError, r"^shares\['a'\]: "),
        ({"shares": {"a": "all"}}, robocache.ArgumentTypeError, r"^shares\['a'\]: "),
        ({"shares": {"a": 2**70}}, robocache.ArgumentError, r"^shares\['a'\]: "),
        ({"shares": [0.9, 0.1]}, robocache.ArgumentTypeError, r"^shares: "),
        ({"shares": {"a": 1.0}, "by": "tsk"}, robocache.ArgumentError, r"^by: "),
        ({"shares": {"a": 1.0}, "by": 3}, robocache.ArgumentTypeError, r"^by: "),
        ({"shares": {"a": 1.0}, "seed": 0.5}, robocache.ArgumentTypeError, "^seed: "),
    ],
)
def test_split_refuses(ds, arguments, error, message):
    with pytest.raises(error, match=message):
        ds.split(**arguments)
