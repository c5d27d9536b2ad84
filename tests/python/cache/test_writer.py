"""Writer: accepted values, refusals, and the result of interruptions."""

import contextlib
import enum
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest

import robocache
from robocache import ArgumentError, ArgumentTypeError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache"


def write(path, value=0.0, **options):
    with robocache.Writer(path, **options) as writer, writer.episode() as episode:
        episode.append("x", [0], [value])


def read_values(path):
    return robocache.open(path, verify=True).streams["x"].values.tolist()


# ---- values that append accepts --------------------------------------------------------------------------------------


def read_only(array):
    array.flags.writeable = False
    return array


VALUES = np.arange(12, dtype=np.float32).reshape(4, 3)


def struct_column():
    """Returns a column of C structs, whose rows are 13 bytes apart."""
    rows = np.zeros(4, [("v", np.float32, 3), ("flag", np.int8)])
    rows["v"] = VALUES
    return rows["v"]


def unaligned(values):
    """Returns a copy whose elements are 12 bytes apart and begin at an odd address."""
    memory = np.zeros(12 * values.size + 1, np.uint8)[1:].view(
        [("v", values.dtype), ("rest", np.uint8, 12 - values.itemsize)]
    )
    copy = memory["v"].reshape(values.shape)
    copy[:] = values
    assert not copy.flags.aligned
    return copy


@pytest.mark.parametrize(
    "values",
    [
        VALUES,
        read_only(VALUES.copy()),
        VALUES.astype(">f4"),
        np.asfortranarray(VALUES),
        np.repeat(VALUES, 2, axis=1)[:, ::2],
        VALUES[::-1][::-1],
        struct_column(),
        unaligned(VALUES),
        VALUES.view(np.recarray),
    ],
    ids=["numpy", "read-only", "big-endian", "fortran", "strided", "negative", "record", "unaligned", "subclass"],
)
def test_arrays_of_any_layout(path, values):
    with robocache.Writer(path) as writer, writer.episode() as episode:
        episode.append("x", np.arange(4), values)
    assert np.array_equal(robocache.open(path, verify=True).streams["x"].values, VALUES)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.float16])
def test_unaligned_memory_is_copied(dtype, monkeypatch, path):
    from robocache import writer

    append = writer._writer_append

    def append_checked(handle, stream, *arrays):
        assert all(np.from_dlpack(array).flags.aligned for array in arrays)
        append(handle, stream, *arrays)

    monkeypatch.setattr(writer, "_writer_append", append_checked)
    values, times = unaligned(VALUES.astype(dtype)), np.frombuffer(b"0" + np.arange(4).tobytes(), np.int64, 4, 1)
    assert not times.flags.aligned
    with robocache.Writer(path) as w, w.episode() as episode:
        episode.append("x", times, values)
    assert np.array_equal(robocache.open(path, verify=True).streams["x"].values, VALUES)


def test_lists_memory_maps_and_torch(path, tmp_path):
    torch = pytest.importorskip("torch")
    np.save(tmp_path / "values.npy", VALUES)
    with robocache.Writer(path) as writer, writer.episode() as episode:
        episode.append("list", [0, 1], [[1, 2], [3, 4]])
        episode.append("empty", [], np.empty((0, 2)))
        episode.append("mapped", range(4), np.load(tmp_path / "values.npy", mmap_mode="r"))
        episode.append("torch", torch.arange(4), torch.from_numpy(VALUES.T.copy()).T)
        episode.append("gradient", torch.arange(4), torch.ones(4, 1, requires_grad=True))
        episode.append("bfloat16", torch.arange(2), torch.ones(2, 1, dtype=torch.bfloat16))
        episode.append("bool", [5], [True])
    streams = robocache.open(path, verify=True).streams
    assert streams["list"].values.tolist() == [[1, 2], [3, 4]]
    assert streams["list"].dtype == np.int64
    assert streams["empty"].values.shape == (0, 2)
    assert np.array_equal(streams["mapped"].values, VALUES)
    assert np.array_equal(streams["torch"].values, VALUES)
    assert streams["gradient"].values.tolist() == [[1]] * 4
    assert streams["bfloat16"].dtype == ml_dtypes.bfloat16
    assert streams["bool"].values.tolist() == [True]


@pytest.mark.parametrize(
    ("times", "values", "error", "message"),
    [
        ([0.5], [1], ArgumentTypeError, "expected times in int64 nanoseconds, got float64"),
        (np.array([0], np.int32), [1], ArgumentTypeError, "got int32"),
        ([0], np.array(["a"]), ArgumentTypeError, "values: "),
        ([0], [1j], ArgumentTypeError, "got complex128"),
        ([0], [[1], [2, 3]], ArgumentTypeError, "values: "),
        ([0], None, ArgumentTypeError, "values: "),
        (0, 1, ArgumentError, r"expected times \[n\] and values"),
        (None, [1], ArgumentTypeError, "time_ns: "),
        (np.array(0), np.array(1), ArgumentError, r"expected times \[n\] and values"),
        ([0, 1], [1], ArgumentError, r"got \[2\] and \[1\]"),
        ([[0]], [1], ArgumentError, r"got \[1, 1\] and \[1\]"),
        ([1, 0], [1, 2], ArgumentError, "got 0 ns in row 1 after 1 ns"),
        ([0], np.ma.masked_array([1.0]), ArgumentTypeError, "values: "),
        ([0, 1], [-1, 2**63 + 1], ArgumentTypeError, "values: .*got 9223372036854775809"),
        ([0, 1], [[2**53 + 1, 0.5], [0, np.nan]], ArgumentTypeError, "values: .*here float64, got 9007199254740993"),
        ([0, 1], [np.uint64(2**64 - 1), np.int64(-1)], ArgumentTypeError, "values: .*got 18446744073709551615"),
        ([0, 1], [np.uint64([2**63 + 1]), np.int64([-1])], ArgumentTypeError, "values: .*got 9223372036854775809"),
        (np.ma.masked_array([0]), [1.0], ArgumentTypeError, "time_ns: "),
        (np.arange(2), pa.array([1, None]), ArgumentTypeError, "nulls"),
    ],
)
def test_append_refuses_invalid_rows(path, times, values, error, message):
    with robocache.Writer(path) as writer, writer.episode() as episode:
        with pytest.raises(error, match="stream 'wrist/f': .*" + message):
            episode.append("wrist/f", times, values)
        episode.append("x", [0], [0.0])
    assert list(robocache.open(path).streams) == ["x"]


def test_a_stream_keeps_dtype_and_shape(path):
    with robocache.Writer(path) as writer:
        with writer.episode() as episode:
            episode.append("x", [0], np.zeros((1, 3), np.float32))
        with writer.episode() as episode:
            with pytest.raises(ArgumentError, match="'x': "):
                episode.append("x", [0], np.zeros((1, 3)))
            with pytest.raises(ArgumentError, match="'x': "):
                episode.append("x", [0], np.zeros((1, 4), np.float32))


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("", ArgumentError, "expected UTF-8 text that is not empty, got ''"),
        ("a\ud800", ArgumentError, r"expected UTF-8, got 'a\\ud800'"),
        (3, ArgumentTypeError, "expected a str"),
        (None, ArgumentTypeError, "expected a str"),
    ],
)
def test_invalid_names_of_streams_are_refused(path, name, error, message):
    with robocache.Writer(path) as writer, writer.episode() as episode:
        episode.append("x", [0], [0.0])
        with pytest.raises(error, match=f"^stream: {message}"):
            episode.append(name, [0], [0.0])
    streams = robocache.open(path).streams
    with pytest.raises(error, match=r"^stream: expected"):
        streams[name]


def test_stamps_may_start_anew_in_each_episode(path):
    with robocache.Writer(path) as writer:
        for _ in range(2):
            with writer.episode() as episode:
                episode.append("x", [5, 5, 7], [0, 1, 2])
                with pytest.raises(ArgumentError, match="got 6 ns in row 3 after 7 ns"):
                    episode.append("x", [6], [3])


def test_cuda_tensors_are_refused(path, cuda):
    import torch

    refused = pytest.raises(ArgumentError, match="expected times and values on the CPU")
    with robocache.Writer(path) as writer, writer.episode() as episode, refused:
        episode.append("x", torch.arange(2, device="cuda"), torch.zeros(2, device="cuda"))


# ---- descriptions of streams and metadata of episodes ----------------------------------------------------------------


def test_descriptions_of_streams(path):
    with robocache.Writer(path) as writer:
        writer.stream("a", clock="nominal", names=["p", "q"])
        with writer.episode() as episode:
            episode.append("a", [0], [[1, 2]])
            episode.append("b", [0], [1])
            with pytest.raises(ArgumentError, match="'b': "):
                writer.stream("b", names=["p", "q"])
        with pytest.raises(ArgumentError, match="clock: "):
            writer.stream("b", clock="moon")
        writer.stream("b", names=["r"])  # after its rows
    streams = robocache.open(path).streams
    assert (streams["a"].clock, streams["a"].names) == ("nominal", ["p", "q"])
    assert (streams["b"].clock, streams["b"].names) == ("recorded", ["r"])


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (["p", ""], ArgumentError, r"names\[1\]: "),
        (["p", "\udcff"], ArgumentError, r"names\[1\]: "),
        (["p", None], ArgumentTypeError, r"names\[1\]: "),
        ("pq", ArgumentTypeError, "names: "),
    ],
)
def test_invalid_feature_names_are_refused(path, names, error, message):
    with robocache.Writer(path) as writer, writer.episode() as episode:
        with pytest.raises(error, match=f"stream 'wrist': {message}"):
            writer.stream("wrist", names=names)
        episode.append("wrist", [0], [[1, 2]])
    assert robocache.open(path).streams["wrist"].names == []


def test_metadata_becomes_columns_with_their_types(path):
    rows = [
        {"text": 'ä\n"', "flag": True, "count": 2**62, "ratio": 1, "tags": ["a"], "ids": [], "nothing": None},
        {"text": None, "flag": False, "count": -3, "ratio": 0.1, "tags": [], "weights": [1, 2.5]},
        {"late": "x", "ids": [2**60], "self": 1},
    ]
    with robocache.Writer(path) as writer:
        for row in rows:
            with writer.episode(**row):
                pass
    table = robocache.open(path).episodes
    types = dict.fromkeys(("episode_index", "start_ns", "end_ns"), pa.int64()) | {
        "text": pa.string(),
        "flag": pa.bool_(),
        "count": pa.int64(),
        "ratio": pa.float64(),
        "tags": pa.list_(pa.string()),
        "ids": pa.list_(pa.int64()),
        "nothing": pa.null(),
        "weights": pa.list_(pa.float64()),
        "late": pa.string(),
        "self": pa.int64(),
    }
    assert {field.name: field.type for field in table.schema} == types
    assert table["episode_index"].to_pylist() == [0, 1, 2]
    for name in list(types)[3:]:
        assert table[name].to_pylist() == [row.get(name) for row in rows]


LARGE = 2**53 + 1  # float64 rounds it


@pytest.mark.parametrize(
    "values",
    [(LARGE, 0.5), (0.5, -LARGE), ([LARGE, 1], [0.5]), ([0.5], [1, LARGE]), (1, LARGE, None, 0.5), ([LARGE, 0.5],)],
)
@pytest.mark.parametrize("route", ["one writer", "appends", "commits"])
def test_whole_numbers_that_float64_rounds_are_refused_beside_floats(values, route, path):
    def write_episode(writer, value):
        with writer.episode(seed=value) as episode:
            episode.append("x", [0], [0.0])

    message = r"episode metadata 'seed': .*float64 holds.*got -?9007199254740993; a str holds its digits"
    if route == "appends":
        for number, value in enumerate(values[:-1]):
            with robocache.Writer(path, append=number > 0) as writer:
                write_episode(writer, value)
        with robocache.Writer(path, append=len(values) > 1) as writer:
            with pytest.raises(ArgumentError, match=message):
                write_episode(writer, values[-1])
            write_episode(writer, None)
    else:
        with robocache.Writer(path) as writer:
            for value in values[:-1]:
                write_episode(writer, value)
                if route == "commits":
                    writer.commit()
            with pytest.raises(ArgumentError, match=message):
                write_episode(writer, values[-1])
            write_episode(writer, None)
    assert robocache.open(path).episodes["seed"].to_pylist() == [*values[:-1], None]


@pytest.mark.parametrize("values", [(2**53, 0.5), (0.5, 2**60), (LARGE, 1), ([2**62], [0.5]), (-(2**63), 0.5)])
def test_whole_numbers_that_float64_holds_are_kept(values, path):
    with robocache.Writer(path) as writer:
        for value in values:
            with writer.episode(seed=value) as episode:
                episode.append("x", [0], [0.0])
    assert robocache.open(path).episodes["seed"].to_pylist() == list(values)


def test_appended_rows_keep_their_names_and_attributes(path):
    with robocache.Writer(path) as writer:
        writer.stream("x", names=["a"], attributes={"units": "m"})
        writer.stream("x", names=["b"], attributes={"units": "rad", "frame_id": "base"})  # no row has the other ones
        with writer.episode() as episode:
            episode.append("x", [0], [[0.0]])
            episode.append("y", [0], [[0.0]])
        for options in ({"attributes": {"units": "m"}}, {"attributes": {"units": "rad"}}, {"names": ["a"]}):
            with pytest.raises(
                ArgumentError, match=r"stream 'x': expected the (attributes|names) that its appended rows"
            ):
                writer.stream("x", **options)
        writer.stream("x", names=["b"], attributes={"frame_id": "base", "units": "rad"})
        writer.stream("x", clock="nominal")
        writer.stream("y", attributes={"units": "s"})
    streams = robocache.open(path).streams
    assert (streams["x"].names, streams["x"].clock) == (["b"], "nominal")
    assert streams["x"].attributes == {"units": "rad", "frame_id": "base"} and streams["y"].attributes == {"units": "s"}
    with robocache.Writer(path, append=True) as writer:
        writer.stream("x", attributes={"frame_id": "base", "units": "rad"})
        with pytest.raises(ArgumentError, match="expected the attributes that it has"):
            writer.stream("x", attributes={"units": "m"})


def test_metadata_of_numpy_paths_and_enums(path):
    class Gripper(enum.IntEnum):
        OPEN = 1

    class Task(str, enum.Enum):
        STACK = "stack"

    metadata = {"n": np.int32(3), "x": np.float32(0.5), "ok": np.bool_(True), "k": np.arange(2)}
    metadata |= {"source": pathlib.Path("a/b"), "gripper": Gripper.OPEN, "task": Task.STACK}
    with robocache.Writer(path) as writer, writer.episode(**metadata):
        pass
    row = robocache.open(path).episodes.to_pylist()[0]
    expected = {"n": 3, "x": 0.5, "ok": True, "k": [0, 1], "source": "a/b", "gripper": 1, "task": "stack"}
    assert {key: row[key] for key in metadata} == expected


def list_within_itself():
    items = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"x": float("nan")}, "expected finite numbers"),
        ({"x": 2**63}, "expected integers within int64"),
        ({"x": 10**5000}, "expected integers within int64"),
        ({"x": "a\ud800"}, "'x': "),
        ({"\ud800": 1}, "key: "),
        ({"x": list_within_itself()}, "'x': "),
        ({"x": {"a": 1}}, "'x': "),
        ({"x": [[1]]}, "'x': "),
        ({"x": [1, "a"]}, "'x': "),
        ({"x": object()}, "'x': "),
        ({"end_ns": 3}, "'end_ns': "),
        ({"task": 3}, "'task': "),
    ],
)
def test_metadata_without_a_column_type_is_refused(path, metadata, message):
    with robocache.Writer(path) as writer:
        with writer.episode(task="a"):
            pass
        with (
            pytest.raises((ArgumentError, ArgumentTypeError), match=f"episode metadata.*{message}"),
            writer.episode(**metadata),
        ):
            pytest.fail("the block ran")
    assert len(robocache.open(path)) == 1


def test_provenance_can_be_edited_until_close(path):
    with robocache.Writer(path) as writer:
        writer.provenance["source"] = {"path": pathlib.Path("/data"), "n": np.int64(3), "list": (1, [None])}
        writer.provenance["note"] = "ä"
        writer.provenance |= {"more": 1}
        writer.provenance["source"]["later"] = True
    source = {"path": "/data", "n": 3, "list": [1, [None]], "later": True}
    assert robocache.open(path).provenance == {"source": source, "note": "ä", "more": 1}


def nested(levels):
    value = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("bad", object(), "'bad': "),
        ("bad", {1, 2}, "'bad': "),
        ("bad", {3: "three"}, "'bad': key: expected a str, got int"),
        ("bad", [float("inf")], "'bad': "),
        ("bad", nested(70), ": expected JSON of at most 64 levels, got more"),
        ("bad", nested(5000), "'bad': "),
        ("bad", "\ud800", "'bad': "),
        (3, "three", ": key: expected a str, got int"),
    ],
    ids=["object", "set", "key", "infinite", "deep", "very deep", "surrogate", "own key"],
)
def test_invalid_provenance_is_refused_at_assignment(path, key, value, message):
    with robocache.Writer(path) as writer:
        writer.provenance["good"] = 1
        refused = pytest.raises((ArgumentError, ArgumentTypeError), match=f"^provenance ?{message}")
        with refused:
            writer.provenance[key] = value
        with refused:
            writer.provenance.update({key: value})
        with refused:
            writer.provenance.setdefault(key, value)
        with refused:
            writer.provenance |= {key: value}
        with refused:
            writer.provenance = {key: value}
        with pytest.raises(ArgumentTypeError, match=r"^provenance: "):
            writer.provenance = ["good"]
        with writer.episode() as episode:
            episode.append("x", [0], [1.0])
    assert read_values(path) == [1.0]
    assert robocache.open(path).provenance == {"good": 1}


def test_provenance_made_invalid_later_leaves_no_cache(path):
    refused = pytest.raises(ArgumentTypeError, match="provenance 'list': ")
    with refused, robocache.Writer(path) as writer:
        writer.provenance["list"] = []
        writer.provenance["list"].append(object())
    assert list(path.parent.iterdir()) == []


# ---- interruptions ---------------------------------------------------------------------------------------------------


def test_an_exception_drops_the_episode_and_the_writer_goes_on(path):
    with robocache.Writer(path) as writer:
        for i in range(4):
            try:
                with writer.episode(number=i) as episode:
                    episode.append("x", np.arange(1000), np.full((1000, 500), i))
                    if i % 2:
                        episode.append("only in dropped ones", [0], [0])
                        raise KeyError("the robot fell")
            except KeyError:
                pass
    ds = robocache.open(path, verify=True)
    assert list(ds.streams) == ["x"]
    assert ds.episodes["number"].to_pylist() == [0, 2]
    assert ds.episodes["episode_index"].to_pylist() == [0, 1]
    assert np.unique(ds.episode(1)["x"][1]).tolist() == [2]


def test_an_exception_in_the_writers_block_leaves_no_cache(path):
    with pytest.raises(KeyError), robocache.Writer(path) as writer:
        with writer.episode() as episode:
            episode.append("x", [0], [0])
        raise KeyError
    assert list(path.parent.iterdir()) == []


def test_an_episode_ends_with_its_block(path):
    with robocache.Writer(path) as writer:
        with writer.episode() as first:
            pass
        with writer.episode():
            with pytest.raises(ArgumentError, match="this episode is not open"):
                first.append("x", [0], [0])
            with pytest.raises(ArgumentError, match="expected the open episode to end first"), writer.episode():
                pass
    assert len(robocache.open(path)) == 2


@pytest.mark.parametrize(
    "values",
    [["pick", "place"], [1.0, 2.0], [True, False], [np.zeros((2, 3))] * 2],
    ids=["text", "float", "bool", "rows"],
)
def test_an_empty_list_adds_no_rows_of_any_kind(values, path):
    with robocache.Writer(path) as writer:
        for number in range(3):
            with writer.episode() as episode:
                episode.append("other", [0], [1.0])
                for times, rows in (([], []), ([0, 1], values), ([], ())):
                    if number == 1 or not times:
                        episode.append("x", times, rows)
                with pytest.raises(ArgumentError, match="'x'"):
                    episode.append("x", [5], [])
    assert np.diff(robocache.open(path)["x"].row_offsets).tolist() == [0, 2, 0]


def test_an_episode_can_end_after_an_end_that_was_refused(path):
    with robocache.Writer(path) as writer, writer.episode(task="pick") as episode:
        episode.append("x", [0], [1.0])
        with pytest.raises(ArgumentTypeError, match="'note'"):
            episode.end(note=object())
        episode.end(success=True)
    assert robocache.open(path).episodes.column_names[-2:] == ["task", "success"]


def test_close_inside_the_block(path):
    with robocache.Writer(path) as writer:
        writer.close()
        with pytest.raises(ArgumentError, match="this one is closed"), writer.episode():
            pass
        writer.close()
        writer.abort()
    assert len(robocache.open(path)) == 0


def test_abort_inside_the_block(path):
    with robocache.Writer(path) as writer:
        writer.abort()
        with pytest.raises(ArgumentError, match="this one is aborted"):
            writer.close()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("inner", ["inner", "streams/inner", "deep/er/inner", "streams/../inner", "link/inner"])
def test_a_cache_within_a_cache_is_refused(inner, path, monkeypatch):
    write(path, 1.0)
    (path.parent / "link").symlink_to(path)
    inner_path = path.parent / inner if inner.startswith("link") else path / inner
    before = sorted(path.rglob("*"))
    (path.parent / "log.csv").write_text("t [s],a\n0.0,1\n")
    monkeypatch.chdir(path / "streams")
    for use in (
        lambda: robocache.Writer(inner_path),
        lambda: robocache.Writer(inner_path, overwrite=True),
        lambda: robocache.Writer("inner"),
        lambda: robocache.ingest(path.parent / "log.csv", inner_path),
        lambda: robocache.ingest(path.parent / "log.csv", inner_path, workers=2),
    ):
        with pytest.raises(robocache.FileError, match=rf"inner: it is inside a cache, {path}; "):
            use()
    assert sorted(path.rglob("*")) == before
    write(path.parent / "cache2", 2.0)  # beside the first cache


def test_options_are_true_or_false(path):
    """Python takes the text "no" for true, so overwrite="no" would replace a cache."""
    write(path, 1.0)
    for option in ({"overwrite": "no"}, {"append": 0}):
        with pytest.raises(ArgumentTypeError, match=r"^\w+: expected True or False, got"):
            robocache.Writer(path, **option)
        with pytest.raises(ArgumentTypeError, match=r"^\w+: expected True or False, got"):
            robocache.ingest(path, path, format="csv", **option)
    with pytest.raises(ArgumentTypeError, match=r"^verify: "):
        robocache.open(path, verify="yes")
    assert read_values(path) == [1.0]


def test_a_relative_path_is_fixed_at_construction(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with robocache.Writer("cache") as writer:
        monkeypatch.chdir(tmp_path / "elsewhere")
        with writer.episode() as episode:
            episode.append("x", [0], [1.0])
    assert read_values(tmp_path / "cache") == [1.0]


# ---- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [robocache.open, robocache.Writer])
@pytest.mark.parametrize("path", [3, None, True, b"cache", "", "a\0b", "a\udc80"], ids=ascii)
def test_paths_that_are_no_valid_text_are_refused(tmp_path, monkeypatch, use, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError if isinstance(path, str) else ArgumentTypeError, match=r"^path: "):
        use(path)
    assert not os.listdir(tmp_path)


# ---- failures of the system ------------------------------------------------------------------------------------------


def test_the_next_writer_removes_a_folder_that_abort_could_not(path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    writer = robocache.Writer(path)
    with writer.episode() as episode:
        episode.append("x", np.arange(9), np.zeros((9, 3)))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # folders cannot be opened
    try:
        writer.abort()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [entry.name for entry in path.parent.iterdir()] == ["cache.partial"]
    write(path, 5.0)
    assert read_values(path) == [5.0]
    assert [entry.name for entry in path.parent.iterdir()] == ["cache"]


WITHOUT_THREADS = """
import os, resource, sys
import numpy as np
import robocache

values = np.random.default_rng(0).normal(size=(200_000, 8))
frames = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), np.uint8)

def work(path, logs):
    with robocache.Writer(path) as w:
        for e in range(2):
            with w.episode() as ep:
                ep.append("x", np.arange(200_000) * 1000, values + e)
                ep.append("camera", np.arange(4) * 10_000_000, frames, codec="jpeg")
    dataset = robocache.open(path, verify=True)
    assert (dataset.episode(1)["x"][1] == values + 1).all()
    keys = {"x": [0, 0.001], "camera": robocache.Window([0], method="nearest")}
    loader = robocache.Loader(dataset, batch_size=3, anchors="x", delta_timestamps=keys, device="cpu")
    for _ in range(3):
        batch = next(loader)
        assert batch["x"].shape == (3, 2, 8)
    robocache.ingest(logs, path + ".again")

robocache.set_num_threads(1)
work(sys.argv[1], sys.argv[2])  # imports modules that another user may not read
robocache.set_num_threads(4)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
if os.geteuid() == 0:  # the limit does not hold for root
    os.setgid(65534)
    os.setuid(65534)
work(sys.argv[1] + ".2", sys.argv[2])
try:
    print(len(robocache.open(sys.argv[1]).episodes))
except robocache.Error as error:  # pyarrow needs threads
    assert "episodes.jsonl: pyarrow" in str(error)
"""


@pytest.fixture
def open_to_all():
    """A folder that every user can write to. Pytest closes its own folders to other users."""
    with tempfile.TemporaryDirectory(prefix="open to all ") as name:
        for folder in (pathlib.Path(name), *pathlib.Path(name).parents):
            with contextlib.suppress(OSError):
                folder.chmod(folder.stat().st_mode | (0o777 if folder == pathlib.Path(name) else 0o011))
        yield pathlib.Path(name)


def test_without_threads_the_caller_does_all_work(open_to_all):
    folder = open_to_all
    logs = folder / "logs"
    logs.mkdir()
    for name in ("a", "b", "c"):  # a file is read while the rows of the previous file are written
        np.savez(logs / f"{name}.npz", a=np.zeros((5, 3)), fps=10)
    program = [sys.executable, "-c", WITHOUT_THREADS, str(folder / "cache"), str(logs)]
    process = subprocess.run(program, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr[-2000:]
