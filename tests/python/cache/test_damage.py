"""Any damage of a cache is refused with the file's name, and nothing crashes."""

import io
import multiprocessing
import os
import shutil

import numpy as np
import pytest
from cache_files import GROWING, append_files, header_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from loaders_by_keywords import loader_by_keywords
from soak import rounds

import robocache


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("damage") / "cache"
    rng = np.random.default_rng(0)
    with robocache.Writer(path) as writer:
        writer.provenance["source"] = "test"
        for e in range(3):
            with writer.episode(task=f"task {e}", tags=["a", "b"]) as episode:
                episode.append("joint/position", np.arange(50) * 10, rng.normal(size=(50, 7)))
                episode.append("camera", np.arange(2), rng.integers(0, 255, (2, 4, 4, 3), np.uint8))
                append_files(episode, "encoded", np.arange(3), [rng.bytes(40), b"", rng.bytes(9)])
                episode.append("cloud", np.arange(3), rng.normal(size=(9, 2)), offsets=[0, 4, 4, 9])
                episode.append("said", np.arange(2), [f"näher {e}", ""])
    return path


def keeps_all_elements(original, damaged):
    """Returns whether the damaged file has all elements and the same header except for the number of rows."""
    begin = header_bytes(original)
    try:
        header, expected = (npy_header(io.BytesIO(content)) for content in (damaged, original))
    except (ValueError, EOFError):
        return False
    return header == expected and damaged[begin : len(original)] == original[begin:]


def npy_header(file):
    """Returns the header's length, and its fields without the number of rows."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("a version that the test does not read")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    return file.tell(), len(shape), shape[1:], fortran_order, dtype


@pytest.fixture
def copy(original, tmp_path):
    """The path of a fresh copy of the cache."""
    return shutil.copytree(original, tmp_path / "copy")


def flip(file, offset, bits=1):
    """Changes bits of the byte at an offset."""
    content = bytearray(file.read_bytes())
    content[offset] ^= bits
    file.write_bytes(content)


@pytest.mark.soak
@settings(max_examples=rounds(120))
@given(data=st.data())
def test_any_damage_to_any_file(original, tmp_path_factory, data):
    copy = shutil.copytree(original, tmp_path_factory.getbasetemp() / "damaged", dirs_exist_ok=True)
    files = sorted(p.relative_to(copy) for p in copy.rglob("*") if p.is_file())
    file = copy / data.draw(st.sampled_from(files), label="file")
    content = file.read_bytes()
    offset = data.draw(st.integers(0, len(content)), label="offset")
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "remove", "zeros", "swap", "delete"]), label="kind")
    if kind == "flip":
        offset = min(offset, len(content) - 1)
        damaged = content[:offset] + bytes([content[offset] ^ data.draw(st.integers(1, 255))]) + content[offset + 1 :]
    elif kind == "cut":
        damaged = content[:offset]
    elif kind == "insert":
        damaged = content[:offset] + data.draw(st.binary(min_size=1, max_size=8)) + content[offset:]
    elif kind == "remove":
        damaged = content[:offset] + content[offset + data.draw(st.integers(1, 8)) :]
    elif kind == "zeros":
        damaged = content[:offset] + bytes(len(content) - offset)
    elif kind == "swap":
        damaged = (copy / data.draw(st.sampled_from(files), label="other")).read_bytes()
    else:
        file.unlink()
        with pytest.raises(robocache.FileError) as refused:
            robocache.open(copy)
        message_begin = f"{copy}: no cache: " if file.name == "manifest.json" else f"{file}: "
        assert str(refused.value).startswith(message_begin)
        return
    file.write_bytes(damaged)
    try:
        robocache.open(copy, verify=True)
    except robocache.FileError as refused:
        assert damaged != content
        assert str(refused).startswith(f"{file}: ")
    else:
        assert damaged == content or (file.name in GROWING and keeps_all_elements(content, damaged))


def test_an_unknown_schema_version_is_refused(copy):
    manifest = copy / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema_version": 3', '"schema_version": 4'))
    with pytest.raises(robocache.FileError, match=r"manifest.json: at byte 47: expected a schema version from 1"):
        robocache.open(copy)


def test_damaged_values_are_found_by_verify(copy):
    flip(copy / "streams" / "camera" / "values.npy", -1)
    ds = robocache.open(copy)
    damaged = r"camera/values.npy: at byte 128: expected CRC-32 .* of the bytes up to"
    with pytest.raises(robocache.FileError, match=damaged):
        ds.verify()
    with pytest.raises(robocache.FileError, match=damaged):
        ds.verify(["said", "camera"])
    ds.verify(["said", "cloud"])
    with pytest.raises(robocache.ArgumentError, match="did you mean 'camera'"):
        ds.verify(["camra"])


@pytest.mark.parametrize("name", ["camera/values.npy", "camera/time_ns.npy", "joint%2Fposition/values.npy"])
@pytest.mark.parametrize("to", ["mcap", "lerobot"])
def test_an_export_refuses_a_damaged_stream(copy, tmp_path, name, to):
    """The exported file would have no checksum, or a new one that fits the damage."""
    file = copy / "streams" / name
    flip(file, 130)
    with pytest.raises(robocache.FileError, match=f"{file}: at byte 128: expected CRC-32"):
        robocache.export(copy, tmp_path / "out", to=to)
    assert not (tmp_path / "out").exists()
    if to == "mcap":
        assert robocache.export(copy, tmp_path / "out", to=to, streams=["said"]).rows == {"said": 6}


def test_statistics_of_a_selection_refuse_a_damaged_stream(copy):
    """Statistics are stored with a new checksum, which would hide the damage."""
    file = copy / "streams" / "joint%2Fposition" / "values.npy"
    flip(file, 200, 0x40)
    with pytest.raises(robocache.FileError, match=f"{file}: at byte 128: expected CRC-32"):
        loader_by_keywords(
            robocache.open(copy),
            batch_size=2,
            delta_timestamps={"joint/position": None},
            episodes=[0, 1],
            normalize={"joint/position": "mean_std"},
            device="cpu",
        )


USES = {
    "verify": lambda dataset, path: dataset.verify(),
    "export": lambda dataset, path: robocache.export(dataset, path / "x.mcap", to="mcap"),
    "statistics": lambda dataset, path: robocache.Loader(
        dataset, **OPTIONS, delta_timestamps={"x": robocache.Window([0.0], normalize="mean_std")}, episodes=[1]
    ),
    "loader": lambda dataset, path: robocache.Loader(dataset, **OPTIONS, delta_timestamps={"x": [0.0]}),
}
OPTIONS = {"batch_size": 4, "device": "cpu", "framework": "numpy"}


def use_a_cut_file(use, path, file, queue):
    dataset = robocache.open(path / "cache")
    os.truncate(file, os.path.getsize(file) // 3)
    with pytest.raises(robocache.FileError) as refused:
        USES[use](dataset, path)
    queue.put(str(refused.value))


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("file", ["values", "time_ns"])
@pytest.mark.parametrize("use", USES)
def test_a_file_cut_short_after_opening_is_an_error(tmp_path, use, file):
    """A read after the end of a mapped file would end the process (SIGBUS)."""
    with robocache.Writer(tmp_path / "cache") as writer:
        for _ in range(2):
            with writer.episode() as episode:
                episode.append("x", np.arange(20_000) * 10, np.ones((20_000, 3)))
    fork = multiprocessing.get_context("fork")
    path, queue = tmp_path / f"cache/streams/x/{file}.npy", fork.Queue()
    process = fork.Process(target=use_a_cut_file, args=(use, tmp_path, path, queue))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    assert queue.get().startswith(f"{path}: at byte ")
