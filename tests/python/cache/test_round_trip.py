"""Written caches are read by RoboCache, and by NumPy and the standard library alone."""

import json
import zlib

import ml_dtypes
import numpy as np
import pytest
from cache_files import append_files, checksums
from hypothesis import given, settings
from hypothesis import strategies as st

import robocache

DTYPES = [
    np.dtype(name)
    for name in (
        "bool",
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", ml_dtypes.bfloat16),
    )
]


def bytes_of(array):
    """Returns the array's bytes, in which a NaN equals itself."""
    return np.ascontiguousarray(array).view(np.uint8)


def random_rows(rng, dtype, shape):
    """Returns random bits: NaN of every kind, infinities, subnormals. A bool is 0 or 1."""
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8).view(dtype).reshape(shape)


@settings(max_examples=30)
@given(data=st.data())
def test_any_streams_and_episodes(tmp_path_factory, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    names = data.draw(st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=4))
    streams = {
        name: (
            data.draw(st.sampled_from(DTYPES)),
            tuple(data.draw(st.lists(st.integers(0, 3), max_size=3))),
            data.draw(st.sampled_from(["recorded", "nominal"])),
        )
        for name in names
    }
    path = tmp_path_factory.mktemp("round_trip") / "cache"
    expected = []
    with robocache.Writer(path) as writer:
        for name, (_, shape, clock) in streams.items():
            features = int(np.prod(shape))
            writer.stream(name, clock=clock, names=[f"feature {i}" for i in range(features)])
        for _ in range(data.draw(st.integers(0, 4))):
            written = {}
            with writer.episode() as episode:
                for name in names:
                    if data.draw(st.booleans()):
                        continue
                    dtype, shape, _ = streams[name]
                    n = data.draw(st.integers(0, 5))
                    times = np.sort(rng.integers(-(2**63), 2**63, n, dtype=np.int64, endpoint=False))
                    values = random_rows(rng, dtype, (n, *shape))
                    cut = data.draw(st.integers(0, n))
                    episode.append(name, times[:cut], values[:cut])
                    episode.append(name, times[cut:], values[cut:])
                    written[name] = (times, values)
            expected.append(written)

    ds = robocache.open(path, verify=True)
    appended = {name for written in expected for name in written}
    assert len(ds) == len(expected)
    assert set(ds.streams) == appended
    for name in appended:
        dtype, shape, clock = streams[name]
        stream = ds.streams[name]
        assert (stream.name, stream.dtype, stream.shape, stream.clock) == (name, dtype, shape, clock)
        assert stream.names == [f"feature {i}" for i in range(int(np.prod(shape)))]
        rows = [len(written.get(name, ((),))[0]) for written in expected]
        assert stream.row_offsets.tolist() == [0, *np.cumsum(rows).tolist()]
        assert stream.rows == sum(rows) == len(stream.time_ns) == len(stream.values)
        assert stream.findings["empty_episodes"] == rows.count(0)
    for index, written in enumerate(expected):
        result = ds.episode(index)
        for name in appended:
            dtype, shape, _ = streams[name]
            times, values = written.get(name, (np.empty(0, np.int64), np.empty((0, *shape), dtype)))
            assert np.array_equal(result[name][0], times)
            assert result[name][1].dtype == values.dtype and result[name][1].shape == values.shape
            assert np.array_equal(bytes_of(result[name][1]), bytes_of(values))
        stamps = [int(t) for times, _ in written.values() for t in times]
        row = ds.episodes.slice(index, 1).to_pylist()[0]
        assert (row["start_ns"], row["end_ns"]) == ((min(stamps), max(stamps)) if stamps else (None, None))


def test_any_tool_opens_a_cache(tmp_path):
    """numpy and json read every file; zlib agrees with every checksum."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(200_000, 3)).astype(np.float32)  # three blocks
    times = np.arange(200_000) * 5_000_000
    with robocache.Writer(tmp_path / "cache") as writer:
        writer.provenance["source"] = "a test"
        with writer.episode(task="x") as episode:
            episode.append("arm/joint", times, values)
            episode.append("b", times[:3], values[:3].astype(ml_dtypes.bfloat16))
            append_files(episode, "camera", times[:3], [b"one", b"", b"three"])

    folder = tmp_path / "cache" / "streams" / "arm%2Fjoint"
    assert np.array_equal(np.load(folder / "time_ns.npy", mmap_mode="r"), times)
    assert np.array_equal(np.load(folder / "values.npy", mmap_mode="r"), values)
    assert np.load(folder / "row_offsets.npy").tolist() == [0, 200_000]
    assert np.load(folder / "stats.npy").shape == (10, 3)
    camera = tmp_path / "cache" / "streams" / "camera"
    assert np.load(camera / "values.npy").tobytes() == b"onethree"
    assert np.load(camera / "blob_offsets.npy").tolist() == [0, 3, 3, 8]
    assert not (camera / "stats.npy").exists()
    bfloats = np.load(tmp_path / "cache" / "streams" / "b" / "values.npy").view(ml_dtypes.bfloat16)
    assert np.array_equal(bytes_of(bfloats), bytes_of(values[:3].astype(ml_dtypes.bfloat16)))
    assert [json.loads(line) for line in (tmp_path / "cache" / "episodes.jsonl").read_text().splitlines()] == [
        {"episode_index": 0, "start_ns": 0, "end_ns": int(times[-1]), "task": "x"}
    ]

    text = (tmp_path / "cache" / "manifest.json").read_bytes()
    manifest = json.loads(text)
    assert manifest["provenance"] == {"source": "a test"}
    covered = text[: text.rindex(b'  "crc32"')]
    assert manifest["crc32"] == f"{zlib.crc32(covered):08x}"
    on_disk = {str(p.relative_to(tmp_path / "cache")) for p in (tmp_path / "cache").rglob("*") if p.is_file()}
    assert on_disk == {*manifest["files"], "manifest.json"}
    for name, record in manifest["files"].items():
        content = (tmp_path / "cache" / name).read_bytes()
        assert record["bytes"] == len(content)
        assert record["crc32"] == checksums(name, content)


@pytest.mark.parametrize("size", [0, 1, 2**17 - 17, 2**17 - 16, 2**17, 3 * 2**17 + 1])
def test_rows_around_the_ends_of_blocks(tmp_path, size):
    """A block has 2^20 bytes or 2^17 stamps; the first one also holds the header of 128 bytes."""
    times = np.arange(size)
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("x", times, times)
    stream = robocache.open(tmp_path / "cache", verify=True).streams["x"]
    assert np.array_equal(stream.time_ns, times) and np.array_equal(stream.values, times)
