"""Rows of unequal size in a cache: arrays such as clouds of points, and text; and the attributes of streams."""

import io
import json
import pickle

import numpy as np
import pytest
from cache_files import checksums, header_bytes, write_manifest
from rich.console import Console
from robocache.dataset import RaggedRows

import robocache
from robocache import cli, picture, view


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache"


def clouds(rng, lengths, features=4):
    """Returns (values [sum of lengths, features], offsets)."""
    offsets = np.cumsum([0, *lengths])
    return rng.normal(size=(offsets[-1], features)).astype(np.float32), offsets


def write(path, rng):
    """Writes two episodes of clouds, text and numbers. Returns the dataset and all points."""
    with robocache.Writer(path) as writer:
        writer.stream("lidar", names=["x", "y", "z", "intensity"], attributes={"units": "m", "frame_id": "base"})
        writer.stream("joint", attributes={"units": ["rad", "rad", "m"]})
        parts = []
        for number, lengths in enumerate([(5, 0, 700), (3,)]):
            values, offsets = clouds(rng, lengths)
            parts.append(values)
            with writer.episode() as episode:
                episode.append("lidar", np.arange(len(lengths)) * 100, values, offsets=offsets)
                episode.append("said", [0, 7], [f"näher {number} $x^$", ""])
                episode.append("joint", np.arange(30), rng.normal(size=(30, 3)))
    return robocache.open(path, verify=True), np.concatenate(parts)


# ---- round trips -----------------------------------------------------------------------------------------------------


def test_rows_are_read_back_as_appended(path, rng):
    ds, values = write(path, rng)
    lidar = ds.streams["lidar"]
    assert (lidar.ragged, lidar.kind, lidar.rows, lidar.shape, lidar.dtype) == ("array", "arrays", 4, (4,), np.float32)
    assert np.array_equal(lidar.values, values) and not lidar.values.flags.writeable
    assert lidar.offsets.dtype == np.int64 and lidar.offsets.tolist() == [0, 5, 5, 705, 708]
    for row in range(-4, 4):
        begin, end = lidar.offsets[row % 4 : row % 4 + 2]
        assert np.array_equal(lidar[row], values[begin:end])
        assert np.shares_memory(lidar[row], lidar.values) or begin == end
    assert [len(row) for row in lidar[::-1]] == [3, 700, 0, 5]
    assert [len(row) for row in lidar[np.array([True, False, True, False])]] == [5, 700]
    assert [len(row) for row in lidar[[1, 0]]] == [0, 5]
    for row in (4, -5):
        with pytest.raises(IndexError):
            lidar[row]
    assert lidar.attributes == {"units": "m", "frame_id": "base"}
    assert "lidar" not in ds.stats and list(ds.stats) == ["joint"]
    with pytest.raises(robocache.ArgumentError, match="text and ragged rows have no statistics"):
        ds.stats["lidar"]
    with pytest.raises(robocache.ArgumentError, match="stream 'lidar': "):
        lidar.frame(0)
    assert repr(lidar) == "Stream('lidar', 4 x [n, 4] float32, 1e+07 Hz)"


def test_an_episode_has_only_its_own_rows(path, rng):
    ds, values = write(path, rng)
    time_ns, rows = ds.episode(1)["lidar"]
    assert time_ns.tolist() == [0] and isinstance(rows, RaggedRows) and len(rows) == 1
    assert np.array_equal(rows[0], values[705:]) and np.array_equal(rows.values, values[705:])
    assert rows.offsets.tolist() == [0, 3]
    assert [len(row) for row in ds.episode(0)["lidar"][1]] == [5, 0, 700]
    time_ns, texts = ds.episode(1)["said"]
    assert time_ns.tolist() == [0, 7] and list(texts) == ["näher 1 $x^$", ""]
    assert repr(texts) == "RaggedRows(2 rows of text, 'said')"


def test_text_is_str(path, rng):
    ds, _ = write(path, rng)
    stream = ds.streams["said"]
    assert (stream.ragged, stream.kind, stream.dtype, stream.shape, stream.rows) == ("text", "text", np.uint8, (), 4)
    assert stream[0] == "näher 0 $x^$" and stream[1:3] == ["", "näher 1 $x^$"] and stream[-1] == ""
    assert stream.values.tobytes().decode() == "näher 0 $x^$näher 1 $x^$"
    assert repr(stream) == "Stream('said', [4] text, 1.42857e+08 Hz)"


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_elements_of_any_dtype_and_shape(path, rng, dtype, shape):
    values = rng.integers(0, 2, (9, *shape)).astype(dtype)
    with robocache.Writer(path) as writer, writer.episode() as episode:
        episode.append("x", [1, 2], values[:6], offsets=[0, 6, 6])
        episode.append("x", [3], values[6:], offsets=np.array([0, 3]))
    stream = robocache.open(path, verify=True).streams["x"]
    assert stream.values.dtype == dtype and np.array_equal(stream.values, values)
    assert stream.offsets.tolist() == [0, 6, 6, 9]


def test_columns_of_a_larger_array_are_accepted(path, rng):
    values = rng.normal(size=(50, 6))
    with robocache.Writer(path) as writer, writer.episode() as episode:
        episode.append("x", [1, 2], values[::2, :3], offsets=np.array([0, -1, 5, -1, 25])[::2])
    stream = robocache.open(path).streams["x"]
    assert np.array_equal(stream[1], values[10::2, :3])


def test_no_rows_and_no_elements(path):
    with robocache.Writer(path) as writer:
        with writer.episode() as episode:
            episode.append("x", [], np.empty((0, 3), np.float32), offsets=[0])
        with writer.episode() as episode:
            episode.append("x", [5], np.empty((0, 3), np.float32), offsets=[0, 0])
            episode.append("said", [5], [""])
    ds = robocache.open(path, verify=True)
    assert ds.streams["x"].values.shape == (0, 3) and ds.streams["x"][0].shape == (0, 3)
    assert len(ds.episode(0)["x"][1]) == 0 and ds.episode(0)["said"][1][:] == []
    assert ds.streams["said"][:] == [""]


def test_numpy_alone_reads_ragged_rows(path, rng):
    _, values = write(path, rng)
    assert np.array_equal(np.load(path / "streams/lidar/values.npy"), values)
    assert np.load(path / "streams/lidar/blob_offsets.npy").tolist() == [0, 5, 5, 705, 708]
    assert not (path / "streams/lidar/stats.npy").exists()


def test_clouds_are_voxelized_without_a_copy(path, rng):
    ds, _ = write(path, rng)
    lidar = ds.streams["lidar"]
    options = {"grid_min": (-2, -2, -2), "voxel_size": 0.5, "grid_size": (8, 8, 8), "mode": ["count", "mean"]}
    first_row, end_row = 1, 4
    begin, end = lidar.offsets[[first_row, end_row]]
    points, offsets = lidar.values[begin:end], lidar.offsets[first_row : end_row + 1] - begin
    grids = robocache.voxelize_pointcloud(points[:, :3], points[:, 3:], batch_offsets=offsets, **options)
    assert grids["count"].shape == (3, 8, 8, 8) and grids["count"][1].sum() > 400
    for cloud in range(3):
        grid = robocache.voxelize_pointcloud(lidar[first_row + cloud], **options)
        assert np.array_equal(grids["count"][cloud], grid["count"])
        assert np.array_equal(grids["mean"][cloud], grid["mean"])
    rows = ds.episode(0)["lidar"][1]
    episode_grids = robocache.voxelize_pointcloud(rows.values, batch_offsets=rows.offsets, **options)
    assert np.array_equal(episode_grids["count"][2], grids["count"][1])


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (np.zeros((4, 3)), {"offsets": [0, 5, 4]}, r"got offsets\[1\] 5"),
        (np.zeros((4, 3)), {"offsets": [0, 1, 3]}, r"expected offsets from 0 to 4.*got offsets\[2\] 3"),
        (np.zeros((4, 3)), {"offsets": [0, 4]}, r"expected times .* and offsets \[n \+ 1\]"),
        (np.zeros((4, 3)), {"offsets": [0.0, 1, 4]}, "expected offsets in int64, got float64"),
        (np.zeros((4, 0)), {"offsets": [0, 1, 4]}, "elements of ragged rows that have features"),
        (np.zeros((4, 3)), {"offsets": [0, 1, 4], "codec": "png"}, "codec: "),
        (["a", "b"], {"offsets": [0, 1, 2]}, "offsets: expected none with text, got them"),
        (["a", "b"], {"codec": "jpeg"}, "codec: "),
        (["a", 3], {}, r"values\[1\]: expected"),
        (["a", "\ud800"], {}, r"values\[1\]: expected"),
        (["a"], {}, "expected times"),
        (np.zeros((2, 3)), {}, "expected ragged rows as in its first rows, got numbers"),
        (np.zeros((4, 2)), {"offsets": [0, 1, 4]}, r"expected values of shape \[n, 3\] as in its first rows"),
        (np.zeros((4, 3), np.int8), {"offsets": [0, 1, 4]}, "expected values of float64 as in its first rows"),
        (["a", "b"], {}, "expected ragged rows as in its first rows, got text"),
    ],
)
def test_invalid_rows_are_refused_and_add_nothing(path, values, options, message):
    with robocache.Writer(path) as writer, writer.episode() as episode:
        episode.append("x", [0], np.zeros((2, 3)), offsets=[0, 2])
        with pytest.raises(robocache.Error, match=f"stream 'x': .*{message}"):
            episode.append("x", [1, 2], values, **options)
    assert robocache.open(path, verify=True).streams["x"].offsets.tolist() == [0, 2]


def test_invalid_utf8_is_refused_with_its_row(path):
    with robocache.Writer(path) as writer, writer.episode() as episode:
        episode.append("said", [0, 1], ["ok", "näher"])
    values = path / "streams/said/values.npy"
    content = values.read_bytes()
    values.write_bytes(content[:-5] + b"\xff" + content[-4:])
    texts = robocache.open(path).streams["said"]
    assert texts[0] == "ok"
    with pytest.raises(robocache.FileError, match=r"stream 'said': row 1: .*codec can't decode byte 0xff"):
        texts[1]
    with pytest.raises(robocache.FileError, match="CRC-32"):
        robocache.open(path, verify=True)


@pytest.mark.parametrize("stream", ["lidar", "said"])
@pytest.mark.parametrize(
    ("row", "shift", "message"),
    [
        (0, 1, "blob_offsets.npy: at byte 128: expected an offset from 0 to 0, got 1"),
        (1, -(2**40), "blob_offsets.npy: at byte 136: expected an offset from 0 to"),
        (2, 2**40, "blob_offsets.npy: at byte 144: expected an offset from"),
        (4, 1, r"values.npy: at byte \d+: expected \d+ bytes of elements"),
        (4, -1, r"(values|blob_offsets).npy: at byte \d+: expected"),
        (4, 2**62, r"values.npy: "),
    ],
)
def test_forged_offsets_with_right_checksums(path, rng, stream, row, shift, message):
    write(path, rng)
    name = f"streams/{stream}/blob_offsets.npy"
    content = bytearray((path / name).read_bytes())
    np.frombuffer(content, np.int64, offset=header_bytes(content))[row] += shift
    (path / name).write_bytes(content)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][name]["crc32"] = checksums(name, content)
    write_manifest(path, manifest)
    with pytest.raises(robocache.FileError, match=message):
        robocache.open(path)


# ---- attributes ------------------------------------------------------------------------------------------------------


def test_every_kind_of_stream_keeps_its_attributes(path, rng):
    attributes = {"units": ["m", "rad"], "nested": {"ü": [None, 1.5, True, {"deep": []}]}, "n": 2**62}
    with robocache.Writer(path) as writer:
        for name in ("x", "cam", "cloud", "text", "never appended to"):
            writer.stream(name, attributes={**attributes, "name": name})
        with writer.episode() as episode:
            episode.append("x", [0], [[1.0, 2.0]])
            episode.append("cam", [0], np.zeros((1, 8, 8), np.uint8), codec="png")
            episode.append("cloud", [0], [[1.0]], offsets=[0, 1])
            episode.append("text", [0], ["a"])
            episode.append("late", [0], [1])
            episode.append("nothing", [0], [1])
        writer.stream("late", attributes={"units": "after"})
    streams = robocache.open(path, verify=True).streams
    for name in ("x", "cam", "cloud", "text"):
        assert streams[name].attributes == {**attributes, "name": name}
    assert streams["late"].attributes == {"units": "after"} and streams["nothing"].attributes == {}
    assert pickle.loads(pickle.dumps(robocache.open(path))).streams["x"].attributes["n"] == 2**62


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("m", "attributes: "),
        ([("units", "m")], "attributes: "),
        ({"units": {1, 2}}, "attributes 'units': expected str, int, .* got set"),
        ({"x": float("nan")}, "attributes 'x': expected finite numbers"),
        ({"x": [2**63]}, "attributes 'x': expected integers within int64"),
        ({3: 4}, "attributes: key: expected"),
    ],
)
def test_invalid_attributes_are_refused(path, attributes, message):
    writer = robocache.Writer(path)
    with pytest.raises(robocache.Error, match=f"stream 'x': {message}"):
        writer.stream("x", attributes=attributes)
    writer.abort()


@pytest.mark.parametrize("rows", [[np.zeros((2, 3)), np.zeros((4, 3))], [np.zeros(2), np.zeros(3)]])
def test_lists_of_unequal_rows_are_refused(path, rows):
    writer = robocache.Writer(path)
    episode = writer.episode()
    with episode as ep, pytest.raises(robocache.ArgumentTypeError, match="'x': "):
        ep.append("x", [0, 1], rows)
    writer.abort()


# ---- inspect and bench -----------------------------------------------------------------------------------------------


def test_inspect_shows_ragged_streams(path, rng, tmp_path):
    ds, _ = write(path, rng)
    console = Console(file=io.StringIO(), width=150)
    view.show(ds, console)
    output = console.file.getvalue()
    assert "ragged float32 [4], mean 177 a row" in output and "text, mean 6.5 bytes" in output
    assert "units" in output and "rad, m" in output
    report = json.loads(json.dumps(view.describe(ds)))["streams"]
    assert report["lidar"]["ragged"] == "array" and report["lidar"]["elements"] == 708
    assert report["lidar"]["attributes"] == {"units": "m", "frame_id": "base"}
    assert report["said"]["ragged"] == "text" and report["said"]["stats"] is None
    assert report["joint"]["ragged"] is None and report["joint"]["elements"] is None
    picture.plot(ds, tmp_path / "picture.png")
    picture.plot(ds, tmp_path / "picture.png", episode=1)


def test_bench_skips_ragged_streams(path, rng, capsys):
    write(path, rng)
    assert cli.main(["bench", str(path), "--seconds", "0.01", "--batch-size", "4", "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["streams"] == ["joint"]


def test_bench_of_ragged_streams_alone_is_refused(path, capsys):
    with robocache.Writer(path) as writer, writer.episode() as episode:
        episode.append("said", [0], ["a"])
    assert cli.main(["bench", str(path)]) == 1
    assert "expected a cache with streams of numbers or frames" in capsys.readouterr().err
