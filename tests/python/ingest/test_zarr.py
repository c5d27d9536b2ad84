"""Zarr stores of episodes: every number equals that of the package `zarr`, in folders and zip files, in all codecs."""

import json
import lzma
import os
import stat
import struct
import threading
import tracemalloc
import zipfile
import zlib
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from damage import damage
from outcomes import assert_unread, ingest_and_open
from soak import rounds
from yields import Yields, pixels
from zarr_files import write_zarr

import robocache

zarr = pytest.importorskip("zarr", minversion="3")
numcodecs = pytest.importorskip("numcodecs")
imagecodecs = pytest.importorskip("imagecodecs")

ENDS = [3, 10, 10, 17]
NUMBERS = {"action": np.arange(34, dtype=np.float32).reshape(17, 2), "state": np.arange(17.0)}


def write_store(
    path, arrays=None, ends=ENDS, *, chunks=4, compressor="default", order="C", separator=".", attributes=None
):
    """Writes a store of zarr v2, as a zip file if `path` ends in .zip, with `arrays` and two arrays of numbers."""
    arrays = NUMBERS | (arrays or {})
    store = zarr.storage.ZipStore(path, mode="w") if path.suffix == ".zip" else zarr.storage.LocalStore(path)
    root = zarr.group(store=store, zarr_format=2, attributes=attributes or {})
    options = {} if compressor == "default" else {"compressors": compressor}
    options |= {"order": order, "chunk_key_encoding": {"name": "v2", "separator": separator}}
    options |= {"config": {"write_empty_chunks": True}}
    for name, values in {
        **{f"data/{name}": array for name, array in arrays.items()},
        "meta/episode_ends": ends,
    }.items():
        values = np.asarray(values)
        shape = (chunks, *values.shape[1:]) if isinstance(chunks, int) else chunks[: values.ndim]
        array = root.create_array(name, shape=values.shape, chunks=shape, dtype=values.dtype, **options)
        array[...] = values
    if path.suffix == ".zip":
        store.close()
    return path


def random_images(count=17, height=8, width=6):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (count, height, width, 3), np.uint8)


def write_images(path, values, encode, codec):
    """Writes a camera with one chunk for each frame, like UMI. codec: its configuration; encode: a function for a frame."""
    folder = path / "data" / "camera0_rgb"
    folder.mkdir(parents=True)
    description = {
        "zarr_format": 2, "shape": list(values.shape), "chunks": [1, *values.shape[1:]], "dtype": values.dtype.str,
        "compressor": {"id": codec}, "fill_value": 0, "order": "C", "filters": None,
    }  # fmt: skip
    (folder / ".zarray").write_text(json.dumps(description))
    for row, frame in enumerate(values):
        (folder / f"{row}.0.0.0").write_bytes(encode(frame))


def zip_tree(folder, file, prefix=""):
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                archive.write(path, prefix + path.relative_to(folder).as_posix())
    return file


assert_refused = partial(assert_unread, "zarr", rate_hz=10)


def check(yields, arrays, ends=ENDS):
    """Asserts that every episode has its rows in order."""
    starts = [0, *ends[:-1]]
    assert yields.notes.total == len(ends)
    for number, (start, stop) in enumerate(zip(starts, ends, strict=True)):
        streams = yields[number]
        for name, values in arrays.items() if stop > start else ():
            values_read = streams[name][1]
            values_read = (
                pixels(values_read)
                if isinstance(values_read, list) and not isinstance(values_read[0], str)
                else values_read
            )
            np.testing.assert_array_equal(values_read, values[start:stop])
            assert isinstance(values_read, list) or values_read.dtype == values.dtype.newbyteorder("=")
        assert (not streams) == (stop == start)


# ---- the content of arrays ----

COMPRESSORS = [
    None,
    *(numcodecs.Blosc(name, shuffle=shuffle) for name, shuffle in (("zstd", 2), ("lz4", 1), ("zlib", 0), ("blosclz", 1))),
    numcodecs.Zstd(), numcodecs.LZ4(), numcodecs.Zlib(), numcodecs.GZip(), numcodecs.BZ2(), numcodecs.LZMA(),
]  # fmt: skip


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
@pytest.mark.parametrize("kind", ["folder.zarr", "file.zarr.zip"])
def test_every_compressor(compressor, kind, tmp_path):
    yields = Yields("zarr", write_store(tmp_path / kind, compressor=compressor), rate_hz=10)
    check(yields, NUMBERS)
    assert yields[1]["state"][0].tolist() == [row * 100_000_000 for row in range(7)]
    assert set(yields.clocks.values()) == {"nominal"} and not yields.left_out and not yields.skipped


@pytest.mark.parametrize("dtype", ["<f2", ">f4", ">i2", "<u8", "|b1", "|i1"])
@pytest.mark.parametrize(
    ("chunks", "order", "separator"),
    [((4, 2, 2), "C", "."), ((5, 3, 3), "F", "/"), ((17, 1, 2), "F", "."), ((1, 3, 5), "C", "/")],
)
def test_every_layout(dtype, chunks, order, separator, tmp_path):
    values = (np.arange(17 * 3 * 5).reshape(17, 3, 5) % 120).astype(dtype)
    store = write_store(tmp_path / "a", {"x": values}, chunks=chunks, order=order, separator=separator)
    check(Yields("zarr", store, rate_hz=10), {"x": values})


@pytest.mark.parametrize("kind", ["jpegxl", "jpeg2k", "png"])
def test_images_of_imagecodecs(kind, tmp_path):
    values = random_images()
    store = write_store(tmp_path / "s")
    options = {"jpegxl": {"lossless": True}, "jpeg2k": {"level": 0}}.get(kind, {})
    encode = partial(getattr(imagecodecs, f"{kind}_encode"), **options)
    write_images(store, values, encode, f"imagecodecs_{kind}")
    first = getattr(imagecodecs, f"{kind}_decode")((store / "data" / "camera0_rgb" / "3.0.0.0").read_bytes())
    np.testing.assert_array_equal(np.asarray(first), values[3])
    zips = [zip_tree(store, tmp_path / "dataset.zarr.zip"), zip_tree(store, tmp_path / "x.zarr.zip", "a/b/")]
    for source in (store, *zips):
        check(Yields("zarr", source, rate_hz=10, image_codec="png"), {"camera0_rgb": values})


def test_streams_of_arrays(tmp_path):
    floats = random_images().astype(np.float32)
    arrays = {
        "img": floats,
        "depth": np.arange(17 * 20, dtype=np.uint16).reshape(17, 4, 5, 1) * 100,
        "rgb": random_images(),
        "mask": random_images()[..., 0],
        "prompt": np.array(["lift", "ça"] * 8 + ["x"]),
        "float": floats / 255,
    }
    store = write_store(tmp_path / "s", arrays, attributes={"robot": "ur5", "gain": np.nan})
    yields = Yields("zarr", store, rate_hz=10, image_codec="png")
    streams = yields[1]
    for name in ("img", "rgb", "depth"):
        np.testing.assert_array_equal(pixels(streams[name][1]), arrays[name][3:10])
    for name in ("mask", "float"):
        np.testing.assert_array_equal(streams[name][1], arrays[name][3:10])
    assert streams["prompt"][1] == arrays["prompt"][3:10].tolist()
    assert yields.provenance["zarr"]["attributes"] == {"robot": "ur5", "gain": None}


def test_timestamps_are_the_clock(tmp_path):
    stamps = 1.7e9 + np.arange(17)[:, None] * 0.1
    store = write_store(tmp_path / "s", {"timestamp": stamps})
    yields = Yields("zarr", store)
    expected = [round(Fraction(stamp) * 10**9) for stamp in stamps[:3, 0].tolist()]
    assert yields[0]["action"][0].tolist() == expected
    assert set(yields.clocks.values()) == {"recorded"} and "timestamp" not in yields[0]
    assert yields.left_out == {"data/timestamp": "the clock, time_ns of every stream"}
    big_endian = write_zarr(tmp_path / "b", {"action": np.zeros((17, 2)), "timestamp": stamps.astype(">f8")}, ENDS)
    assert Yields("zarr", big_endian)[0]["action"][0].tolist() == expected
    yields = Yields("zarr", store, rate_hz=10)
    assert set(yields.clocks.values()) == {"nominal"} and yields[0]["timestamp"][1].tolist() == stamps[:3].tolist()
    stamps[5] = np.nan
    assert_refused(write_store(tmp_path / "t", {"timestamp": stamps}), "data/timestamp: row 5 is nan", rate_hz=None)
    milliseconds = np.arange(17) * 33.3
    assert_refused(write_store(tmp_path / "u", {"timestamp": milliseconds}), "steps of 33.3", "--rate-hz", rate_hz=None)


@pytest.mark.parametrize(
    ("units", "is_seconds"),
    [
        ("s", True),
        ("seconds since 1970-01-01", True),
        ("ms", False),
        ("us", False),
        ("days since 2021-02-21", False),
        ("sec.", True),
    ]
    + [(units, False) for units in ("s/100", "s * 0.001", "s-1", "s^-1", "seconds / 10")],
)
def test_the_clocks_units_precede_its_name(units, is_seconds, tmp_path):
    store = write_store(tmp_path / "s", {"timestamp": np.arange(17.0) * 5})
    (store / "data/timestamp/.zattrs").write_text(json.dumps({"units": units}))
    if is_seconds:
        (assumption,) = Yields("zarr", store, rate_hz=None).notes.assumed
        assert assumption.reason == "seconds, by its units"
    else:
        assert_refused(store, "data/timestamp: attribute units: expected seconds", repr(units), rate_hz=None)
        Yields("zarr", store, rate_hz=200)


@pytest.mark.parametrize("stamps", [np.arange(17), np.arange(17, dtype=np.float32), np.zeros((17, 2))])
def test_a_rate_is_required(stamps, tmp_path):
    assert_refused(write_store(tmp_path / "s", {"timestamp": stamps}), "no data/timestamp", "--rate-hz", rate_hz=None)


def test_scale_and_missing_values_of_meta_are_applied(tmp_path):
    columns = {"mass": np.array([4, 6, 0, -9], "i2"), "grip": np.array([1.0, 2.0, 3.0, -9.0])}
    store = write_zarr(tmp_path / "s", {"state": np.arange(17.0)}, ENDS)
    for name, values in columns.items():
        write_zarr(tmp_path / name, {"x": values})
        (tmp_path / name / "data/x").rename(store / "meta" / name)
    (store / "meta/mass/.zattrs").write_text(json.dumps({"scale_factor": 0.5, "add_offset": 1.0, "maker": "x"}))
    (store / "meta/grip/.zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": ["episode"]}))
    change_description(store, "meta/mass", fill_value=None)
    change_description(store, "meta/grip", fill_value=-9)
    yields = Yields("zarr", store, rate_hz=10)
    cells = [(metadata["mass"], metadata["grip"]) for metadata in yields.metadata.values()]
    assert cells == [(3, 1), (4, 2), (1, 3), (-3.5, None)]
    assert yields.left_out["meta/mass: attributes"] == "maker"


def test_meta_becomes_columns(tmp_path):
    store = write_store(tmp_path / "s")
    meta = zarr.open_group(store, zarr_format=2)["meta"]
    meta.create_array("success", data=np.array([1, 0, 1, 1]))
    meta.create_array("score", data=np.array([0.5, np.nan, 1, 2]))
    meta.create_array("wide", data=np.zeros((4, 2)))
    yields = Yields("zarr", store, rate_hz=10)
    assert list(yields.metadata.values())[1] == {"source_episode_index": 1, "success": 0, "score": None}
    assert "meta/wide" in yields.left_out


def test_a_folder_with_one_store_and_other_things(tmp_path):
    write_store(tmp_path / "d" / "replay_buffer.zarr")
    (tmp_path / "d" / "videos").mkdir()
    (tmp_path / "d" / "videos" / "0.mp4").write_bytes(b"x")
    yields = Yields("zarr", tmp_path / "d", rate_hz=10)
    assert len(yields.episodes) == 4 and yields.left_out == {"videos": "not in the store"}
    write_store(tmp_path / "d" / "other.zarr.zip")
    assert_refused(tmp_path / "d", "replay_buffer.zarr", "other.zarr.zip", "ingest one of them")


@pytest.mark.parametrize("kind", ["replay_buffer.zarr", "dataset.zarr.zip"])
def test_a_folder_with_a_store_becomes_a_cache(kind, tmp_path):
    (tmp_path / "d").mkdir()
    write_store(
        tmp_path / "d" / kind, {"rgb": random_images(), "timestamp": np.arange(17.0), "prompt": np.array(["a"] * 17)}
    )
    report = robocache.ingest(tmp_path / "d", tmp_path / "cache", image_size="4x4")
    assert (report.format, report.episodes, report.rows["rgb"]) == ("zarr", 3, 17)
    assert [omission.what for omission in report.left_out] == ["data/timestamp", "episode 2"]  # episode 2 has no rows
    dataset = robocache.open(tmp_path / "cache", verify=True)
    assert dataset.streams["action"].clock == "recorded"
    assert dataset.episode(1)["action"][0].tolist() == [row * 10**9 for row in range(3, 10)]
    assert dataset.streams["rgb"].frames.resized == {"size": [4, 4], "fit": "stretch", "from": [8, 6]}
    assert dataset.episodes["source_episode_index"].to_pylist() == [0, 1, 3]


# ---- faults ----


def test_missing_chunks(tmp_path):
    store = write_store(tmp_path / "s", {"x": np.full((17, 2), 7.0)})
    (store / "data" / "x" / "1.0").unlink()
    assert_refused(store, "data/x/1.0: no such chunk", "--missing-chunks fill")
    yields = Yields("zarr", store, on_error="skip", rate_hz=10)
    assert [name for name, streams in yields.episodes.items() if "x" in streams] == ["episode 0", "episode 3"]
    assert len(yields[1]["state"][0]) == 7 and list(yields.skipped) == ["episode 1: x: rows 0-6"]
    filled = Yields("zarr", store, rate_hz=10, missing_chunks="fill")
    expected = zarr.open_group(store, mode="r")["data/x"][...]
    assert (expected[4:8] == 0).all()
    check(filled, {"x": expected})


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("S3", b"xyz"),
        ("S3", b"\xff"),
        ("S3", b""),
        ("U3", "xyz"),
        (">U3", "x"),
        (">i2", -7),
        ("?", True),
        ("<f4", np.nan),
        (">f2", np.inf),
        ("<u8", 2**64 - 1),
    ],
)
def test_the_fill_value_of_missing_chunks(dtype, fill, tmp_path):
    """zarr writes bytes in base64, and NaN and infinity as words."""
    store = write_zarr(tmp_path / "s", {"state": np.arange(17.0)}, ENDS)
    group = zarr.open_group(store / "data", zarr_format=2)
    group.create_array("x", shape=(17,), chunks=(4,), dtype=dtype, fill_value=fill)[8:] = np.zeros(9, dtype)
    assert not (store / "data/x/0").exists()
    values = group["x"][:3].tolist()
    _, rows = Yields("zarr", store, rate_hz=10, missing_chunks="fill")[0]["x"]
    rows = rows.tolist() if isinstance(rows, np.ndarray) else rows
    expected = [value.decode(errors="backslashreplace") if isinstance(value, bytes) else value for value in values]
    np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize(
    ("dtype", "fill"), [("<i4", 1.5), ("|u1", 300), ("|S2", "eHl6"), ("|S2", "?"), ("<U2", "xyz"), ("|b1", 2)]
)
def test_a_fill_value_that_the_array_cannot_hold_is_refused(dtype, fill, tmp_path):
    store = write_zarr(tmp_path / "s", {"state": np.arange(17.0), "x": np.zeros(17, dtype)}, ENDS)
    change_description(store, "data/x", fill_value=fill)
    check(Yields("zarr", store, rate_hz=10), {"state": np.arange(17.0)})
    assert_refused(store, "data/x/.zarray: ", rate_hz=10, missing_chunks="fill")


@pytest.mark.parametrize(
    ("dtype", "fill", "attributes", "expected"),
    [
        ("i2", -999, {}, [1, np.nan, 0, 3]),
        ("i2", -999, {"scale_factor": 0.5}, [0.5, np.nan, 0, 1.5]),
        ("f4", -999.0, {}, [1, np.nan, 0, 3]),
        ("f4", "NaN", {}, [1, -999, 0, 3]),
        ("i2", None, {}, [1, -999, 0, 3]),
        ("i2", -999, {"_FillValue": 3}, [1, -999, 0, np.nan]),
        ("i2", 0, {}, [1, -999, 0, 3]),
    ],
)
@pytest.mark.parametrize("is_of_xarray", [True, False])
def test_xarrays_missing_values_are_nan(dtype, fill, attributes, expected, is_of_xarray, tmp_path):
    """xarray, which writes _ARRAY_DIMENSIONS, has a variable's _FillValue only as zarr's fill_value."""
    stored = np.array([1, -999, 0, 3], dtype)
    dimensions = {"_ARRAY_DIMENSIONS": ["time"]} if is_of_xarray else {}
    store = write_zarr(tmp_path / "s", {"x": stored}, attributes={"data/x": attributes | dimensions})
    change_description(store, "data/x", fill_value=fill)
    yields = Yields("zarr", store, rate_hz=10)
    if not is_of_xarray and "_FillValue" not in attributes:
        expected = stored * attributes.get("scale_factor", 1)
    np.testing.assert_array_equal(yields[0]["x"][1], expected)
    names_zero = any(note.what == "the number 0 in x" for note in yields.notes.assumed)
    assert names_zero == (is_of_xarray and fill == 0)


@pytest.mark.parametrize(("separator", "name"), [(".", "1.0"), ("/", "1"), ("/", "1/0")])
def test_a_chunk_linked_from_outside_is_not_taken_as_missing(separator, name, tmp_path):
    store = write_store(tmp_path / "s", {"x": np.full((17, 2), 7.0)}, separator=separator)
    chunk = store / "data" / "x" / name
    chunk.rename(tmp_path / "out")
    chunk.symlink_to(tmp_path / "out")
    for options in ({}, {"missing_chunks": "fill"}):
        with pytest.raises(robocache.FileError, match=r"/data/x/1.*out of the source .--follow-links.$"):
            robocache.ingest(store, tmp_path / "cache", rate_hz=10, **options)
    assert (ingest_and_open(store, tmp_path / "cache", rate_hz=10, follow_links=True)[0].streams["x"].values == 7).all()


def change_description(store, key, **facts):
    file = store / key / ".zarray"
    description = json.loads(file.read_bytes())
    file.write_text(json.dumps(description | facts))


@pytest.mark.parametrize(
    ("facts", "message_part"),
    [
        ({"zarr_format": 3}, "expected zarr_format 2, got 3"),
        ({"shape": [18, 2]}, "18 rows, of which meta/episode_ends gives 17"),
        ({"shape": [16, 2]}, "expected 17 rows, by meta/episode_ends, got 16"),
        ({"shape": [17, -2]}, "expected shape and chunks"),
        ({"shape": [17]}, "expected shape and chunks"),
        ({"shape": [2**70, 2]}, "expected shape and chunks"),
        ({"shape": "17"}, "expected shape and chunks"),
        ({"chunks": [0, 2]}, "expected shape and chunks"),
        ({"chunks": [4, 2**40]}, "expected chunks of at most"),
        ({"chunks": [2**30, 2]}, "expected chunks of at most"),
        ({"shape": [17, 2**20], "chunks": [1, 1]}, "expected rows in at most 4096 chunks, got 1048576"),
        ({"chunks": [8, 2]}, "bytes in the chunk"),
        ({"dtype": "<f8"}, "bytes in the chunk"),
        ({"dtype": "what"}, "dtype"),
        ({"order": "X"}, "expected order"),
        ({"dimension_separator": "../"}, "expected order"),
        ({"compressor": {"id": "lz4"}}, "data/action/0.0"),
        ({"compressor": None}, "bytes in the chunk"),
    ],
)
def test_wrong_descriptions(facts, message_part, tmp_path):
    store = write_store(tmp_path / "s", compressor=numcodecs.Blosc())
    change_description(store, "data/action", **facts)
    assert_refused(store, "data/action", message_part)
    assert Yields("zarr", store, on_error="skip", rate_hz=10).skipped


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"dtype": "|O"}, "objects: |O"),
        ({"dtype": "<f16"}, "not numeric: <f16"),
        ({"dtype": "<M8[ns]"}, "not numeric: <M8[ns]"),
        ({"dtype": [["a", "<f4"]]}, "a structure"),
        ({"filters": [{"id": "delta", "dtype": "<f4"}]}, "filters"),
        ({"compressor": {"id": "pickle"}}, "compressor {'id': 'pickle'}"),
        ({"compressor": {"id": ["a"]}}, "compressor"),
    ],
)
def test_left_out_arrays_are_named(facts, reason, tmp_path):
    store = write_store(tmp_path / "s", compressor=numcodecs.Blosc())
    change_description(store, "data/action", **facts)
    yields = Yields("zarr", store, rate_hz=10)
    assert yields.left_out["data/action"].startswith(reason)
    assert list(yields[0]) == ["state"]


@pytest.mark.parametrize(
    ("ends", "message_part"),
    [
        ([3, 2, 17], "row 1: 2 is before"),
        ([-1, 17], "row 0"),
        (np.array([3.0, 17.0]), "expected whole numbers"),
        (np.zeros((2, 2), int), "expected whole numbers"),
        (np.zeros(0, int), "expected 1 to"),
        ([3, 18], "expected 18 rows"),
        (np.array([2**63 + 5], np.uint64), "expected numbers of rows"),
    ],
)
def test_wrong_episode_ends(ends, message_part, tmp_path):
    assert_refused(write_store(tmp_path / "s", ends=ends), message_part)


def test_zarr_v3_is_refused_by_name(tmp_path):
    root = zarr.group(store=zarr.storage.LocalStore(tmp_path / "s"), zarr_format=3)
    root.create_array("meta/episode_ends", data=np.array([3]))
    assert_refused(tmp_path / "s", "a store of zarr v3, expected v2")


@pytest.mark.parametrize(
    ("member", "message_part"),
    [
        ("/etc/x", "inside the archive"),
        ("a/../../x", "inside the archive"),
        ("a\\..\\x", "inside the archive"),
        ("other/meta/episode_ends/.zarray", "expected one meta/episode_ends"),
        (zipfile.ZipInfo("data/link"), "symlink"),
    ],
)
def test_zip_members_with_paths_outside(member, message_part, tmp_path):
    file = zip_tree(write_store(tmp_path / "s"), tmp_path / "s.zarr.zip")
    if isinstance(member, zipfile.ZipInfo):
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(member, "/etc/passwd")
    assert_refused(file, "s.zarr.zip", message_part)


def test_files_that_are_no_zip(tmp_path):
    intact = zip_tree(write_store(tmp_path / "s"), tmp_path / "s.zarr.zip").read_bytes()
    for content in (b"", intact[: len(intact) // 2], intact[:-10], b"version https://git-lfs.github.com/spec/v1\n"):
        (tmp_path / "s.zarr.zip").write_bytes(content)
        assert_refused(tmp_path / "s.zarr.zip", "s.zarr.zip")
    os.mkfifo(tmp_path / "fifo.zarr.zip")
    assert_refused(tmp_path / "fifo.zarr.zip", "expected a regular file")


def test_the_last_of_repeated_members_counts(tmp_path):
    store = write_store(tmp_path / "s", compressor=None)
    file = zip_tree(store, tmp_path / "s.zarr.zip")
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(file, "a") as archive:
        archive.writestr("data/state/0", np.full(4, 9.0).tobytes())
    yields = Yields("zarr", file, rate_hz=10)
    assert yields[0]["state"][1].tolist() == [9, 9, 9]
    assert "s.zarr.zip: 1 members" in yields.left_out


@pytest.mark.parametrize(
    "codec", [numcodecs.Blosc(), numcodecs.Zstd(), numcodecs.LZ4(), numcodecs.Zlib(), numcodecs.BZ2()], ids=str
)
def test_chunks_of_another_size(codec, tmp_path):
    """If a chunk with too few numbers were accepted, memory would stay uninitialised."""
    store = write_store(tmp_path / "s", {"x": np.zeros(17)}, compressor=codec)
    for values in (np.ones(3), np.ones(5), np.ones(0)):
        (store / "data" / "x" / "0").write_bytes(codec.encode(values))
        assert_refused(store, "data/x/0: ", "bytes in the chunk")
    content = codec.encode(np.arange(4.0))
    (store / "data" / "x" / "0").write_bytes(content[:-5])
    assert_refused(store, "data/x/0: ", "as it says" if codec.codec_id == "blosc" else "")


def test_compression_bombs_are_not_decompressed(tmp_path):
    """Chunks that decompress to more than their array, for each codec."""
    big = bytes(3 * 10**8)
    size = struct.pack("<I", 64)
    blosc = bytearray(numcodecs.Blosc().encode(big))
    zstd, lz4 = numcodecs.Zstd().encode(big), numcodecs.LZ4().encode(big)
    photo = imagecodecs.jpeg2k_encode(np.zeros((64, 64), np.uint8))
    size_offset = photo.index(b"\xff\x4f\xff\x51") + 8
    photo = photo[:size_offset] + struct.pack(">II", 40_000, 40_000) + photo[size_offset + 8 :]
    bombs = {
        "blosc": [blosc, blosc[:4] + size + blosc[8:]],
        "zstd": [zstd],
        "lz4": [lz4, size + lz4[4:]],
        "zlib": [numcodecs.Zlib().encode(big)],
        "gzip": [numcodecs.GZip().encode(big)],
        "lzma": [lzma.compress(big, preset=0)],
        "imagecodecs_jpeg2k": [photo],
    }
    del big
    store = write_store(tmp_path / "s", {"x": np.zeros(17)}, chunks=8)
    for codec, contents in bombs.items():
        change_description(store, "data/x", compressor={"id": codec})
        for content in contents:
            (store / "data" / "x" / "0").write_bytes(content)
            tracemalloc.start()
            assert_refused(store, "data/x/0")
            assert tracemalloc.get_traced_memory()[1] < 20_000_000, codec
            tracemalloc.stop()


def test_a_chunk_much_wider_than_its_rows_is_not_read_ahead(tmp_path):
    store = write_store(tmp_path / "s", {"x": np.zeros((17, 1))}, [17], compressor=numcodecs.Zlib(), chunks=4)
    change_description(store, "data/x", chunks=[4, 2**20])
    for number in range(5):
        (store / "data" / "x" / f"{number}.0").write_bytes(zlib.compress(bytes(2**25)))
    tracemalloc.start()
    _, rows = Yields("zarr", store, rate_hz=10).only()["x"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not rows.any() and peak < 3.5 * 2**25, peak


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_bad_chunk_read_by_a_thread_is_named(number, tmp_path):
    store = write_store(tmp_path / "s")
    (store / "data" / "action" / f"{number}.0").write_bytes(b"damaged")
    before = set(threading.enumerate())  # also threads of earlier tests
    assert_refused(store, f"data/action/{number}.0: expected a")
    assert set(threading.enumerate()) <= before


@pytest.mark.soak
def test_changed_bytes_are_named(tmp_path, rng):
    store = write_store(tmp_path / "s", {"rgb": random_images()}, compressor=numcodecs.Blosc("zstd", shuffle=2))
    write_images(store, random_images(), lambda frame: imagecodecs.jpeg2k_encode(frame, level=0), "imagecodecs_jpeg2k")
    file = zip_tree(store, tmp_path / "s.zarr.zip")
    content = file.read_bytes()
    sources = [path for path in store.rglob("*") if path.is_file()]
    for _ in range(rounds(60)):
        target = file if rng.random() < 0.3 else sources[rng.integers(len(sources))]
        original = content if target is file else target.read_bytes()
        target.write_bytes(damage(original, rng))
        source = file if target is file else store
        try:
            Yields("zarr", source, rate_hz=10)
        except robocache.FileError as error:
            assert source.name in str(error)
        target.write_bytes(original)


# ---- arrays without a description ----


def rename_member(file, old, new):
    """Changes bytes of an entry's name in the directory of a zip file, like damage."""
    content = bytearray(file.read_bytes())
    offset = content.rindex(old.encode())
    content[offset : offset + len(old)] = new.encode()
    file.write_bytes(content)


def test_every_changed_byte_of_a_directory_entry_is_named(tmp_path):
    """The entry is an array's description in a zip file. The array is read completely, or skipped by name."""
    intact = zip_tree(write_store(tmp_path / "s"), tmp_path / "s.zarr.zip").read_bytes()
    name = b"data/action/.zarray"
    head_bytes = 46  # before the name
    start = intact.rindex(name) - head_bytes
    for offset in range(start, start + head_bytes + len(name)):
        for flip in (1, 0x80):
            content = bytearray(intact)
            content[offset] ^= flip
            (tmp_path / "s.zarr.zip").write_bytes(content)
            try:
                yields = Yields("zarr", tmp_path / "s.zarr.zip", on_error="skip", rate_hz=10)
            except robocache.FileError:
                continue
            if "action" in yields[0]:
                np.testing.assert_array_equal(yields[0]["action"][1], np.arange(6.0).reshape(3, 2))
            else:
                assert any("data/action" in what for what in yields.skipped), (offset - start, flip)


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_an_array_without_its_description_is_named(kind, separator, tmp_path):
    source = write_store(tmp_path / "s", separator=separator)
    if kind == "folder":
        (source / "data/action/.zarray").unlink()
    else:
        source = zip_tree(source, tmp_path / "s.zarr.zip")
        rename_member(source, "data/action/.zarray", "data/action/.zarrax")
    assert_refused(source, "data/action", "no .zarray")
    yields = Yields("zarr", source, on_error="skip", rate_hz=10)
    assert list(yields[0]) == ["state"] and "data/action" in yields.skipped


def test_an_array_named_only_in_consolidated_metadata(tmp_path):
    source = write_store(tmp_path / "s")
    metadata = {"zarr_consolidated_format": 1, "metadata": {"data/gone/.zarray": {}, "data/action/.zarray": {}}}
    (source / ".zmetadata").write_text(json.dumps(metadata))
    assert_refused(source, "data/gone", ".zmetadata names it")


def test_a_chunk_with_a_damaged_name_is_named_despite_a_fill_value(tmp_path):
    source = zip_tree(write_store(tmp_path / "s"), tmp_path / "s.zarr.zip")
    rename_member(source, "data/state/1", "data/state/q")
    assert_refused(source, "data/state/1", "no such chunk")
    yields = Yields("zarr", source, rate_hz=10, missing_chunks="fill")
    assert yields.left_out["data/state: 1 file"] == "no chunk of an array by name"


def test_groups_without_a_description_are_read(tmp_path):
    source = write_store(tmp_path / "s")
    for file in source.rglob(".zgroup"):
        file.write_bytes(b"\xff")
    check(Yields("zarr", source, rate_hz=10), {"state": np.arange(17.0)})


def test_a_damaged_chunk_skips_its_array_in_its_episodes(tmp_path):
    source = write_store(tmp_path / "s")
    (source / "data/action/1.0").write_bytes(b"no chunk")
    yields = Yields("zarr", source, on_error="skip", rate_hz=10)
    assert [sorted(yields[number]) for number in (0, 1, 3)] == [["action", "state"], ["state"], ["action", "state"]]
    assert list(yields.skipped) == ["episode 1: action: rows 0-6"]


@pytest.mark.parametrize("kind", ["store.zarr", "store.zarr.zip"])
@pytest.mark.parametrize("name", [".zattrs", ".zmetadata"])
@pytest.mark.parametrize("content", [b'{"fps', b"\xff\xfe\0", b"[1]"])
def test_damaged_metadata_or_attributes_skip_nothing_else(content, name, kind, tmp_path):
    folder = write_store(tmp_path / "store.zarr")
    (folder / name).write_bytes(content)
    store = folder if kind == "store.zarr" else zip_tree(folder, tmp_path / kind)
    assert_refused(store, name, rate_hz=10)
    yields = Yields("zarr", store, "skip", rate_hz=10)
    assert [omission.what for omission in yields.notes.skipped] == [name]
    check(yields, NUMBERS)


def test_attributes_may_declare_the_rate(tmp_path):
    store = write_store(tmp_path / "store.zarr", attributes={"fps": "20 Hz"})
    yields = Yields("zarr", store)
    assert yields.episodes["episode 1"]["action"][0][:3].tolist() == [0, 50_000_000, 100_000_000]
    assert_refused(store, "attribute fps says 20 Hz, rate_hz 10", rate_hz=10)


@pytest.mark.parametrize("name", ["store.zarr", "store.zarr.zip"])
def test_attributes_of_an_array_are_named(name, tmp_path):
    """Attributes with scales or units are used, and not named."""
    source = write_store(tmp_path / "store.zarr", {"depth": np.arange(17)})
    (source / "data/depth/.zattrs").write_text('{"scale_factor": 0.001, "units": "m", "title": "z", "note": 1}')
    if name.endswith(".zip"):
        source = zip_tree(source, tmp_path / name)
    yields = Yields("zarr", source, rate_hz=10)
    assert yields.left_out["data/depth: attributes"] == "note, title"
    assert [what for what in yields.left_out if what.endswith("attributes")] == ["data/depth: attributes"]


@pytest.mark.parametrize(("fps", "is_refused"), [(10, False), (11.5, False), (30, True), (1000, True)])
def test_stamps_that_contradict_the_rate_of_an_attribute(fps, is_refused, tmp_path):
    stamps = np.arange(17) / 10
    store = write_store(tmp_path / "store.zarr", {"timestamp": stamps}, attributes={"fps": fps})
    if is_refused:
        assert_refused(
            store, f"'data/timestamp': 10 rows a second (median), though attribute fps says {fps}", rate_hz=None
        )
        return
    report = robocache.ingest(store, tmp_path / "cache")
    assert any("rows a second" in note.reason for note in report.assumed) == (fps != 10)
