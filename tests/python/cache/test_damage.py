"""Any damage of a cache is refused with the file's name, and nothing crashes."""

import io
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from cache_files import GROWING, append_files, header_bytes
from flat_options import flat_loader
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import rounds

import robocache


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("damage") / "cache"
    rng = np.random.default_rng(0)
    with robocache.Writer(path) as w:
        w.provenance["source"] = "test"
        for e in range(3):
            with w.episode(task=f"task {e}", tags=["a", "b"]) as ep:
                ep.append("joint/position", np.arange(50) * 10, rng.normal(size=(50, 7)))
                ep.append("camera", np.arange(2), rng.integers(0, 255, (2, 4, 4, 3), np.uint8))
                append_files(ep, "encoded", np.arange(3), [rng.bytes(40), b"", rng.bytes(9)])
                ep.append("cloud", np.arange(3), rng.normal(size=(9, 2)), offsets=[0, 4, 4, 9])
                ep.append("said", np.arange(2), [f"näher {e}", ""])
    return path


def is_longer(whole, damaged):
    """Whether the damaged file has all elements and the same header except for the number of rows."""
    begin = header_bytes(whole)
    if damaged[begin : len(whole)] != whole[begin:]:
        return False
    try:
        header, expected = (npy_header(io.BytesIO(content)) for content in (damaged, whole))
    except (ValueError, EOFError):
        return False
    return header == expected


def npy_header(file):
    """(the header's length, its fields without the number of rows)."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("a version that the test does not read")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    return file.tell(), len(shape), shape[1:], fortran_order, dtype


@pytest.fixture(scope="module")
def copy(original):
    return original.parent / "copy"


@pytest.mark.soak
@settings(max_examples=rounds(300))
@given(data=st.data())
def test_any_damage_to_any_file(original, copy, data):
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)
    files = sorted(p.relative_to(copy) for p in copy.rglob("*") if p.is_file())
    file = copy / data.draw(st.sampled_from(files), label="file")
    content = file.read_bytes()
    offset = data.draw(st.integers(0, len(content)), label="at")
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
        named = f"{copy}: no cache: " if file.name == "manifest.json" else f"{file}: "
        assert str(refused.value).startswith(named)
        return
    file.write_bytes(damaged)
    try:
        robocache.open(copy, verify=True)
    except robocache.FileError as refused:
        assert damaged != content
        assert str(refused).startswith(f"{file}: ")
    else:
        assert damaged == content or (file.name in GROWING and is_longer(content, damaged))


def test_a_future_version_names_both(original, copy):
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)
    manifest = copy / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema_version": 3', '"schema_version": 4'))
    with pytest.raises(robocache.FileError, match=r"manifest.json: at byte 47: expected a schema version from 1"):
        robocache.open(copy)


def test_damaged_values_are_found_by_verify(original, copy):
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)
    values = copy / "streams" / "camera" / "values.npy"
    values.write_bytes(values.read_bytes()[:-1] + b"\x07")
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
def test_an_export_refuses_a_damaged_stream(original, copy, tmp_path, name, to):
    """The exported file would have no checksum, or a new one that fits the damage."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)
    file = copy / "streams" / name
    content = bytearray(file.read_bytes())
    content[130] ^= 1
    file.write_bytes(content)
    with pytest.raises(robocache.FileError, match=f"{file}: at byte 128: expected CRC-32"):
        robocache.export(copy, tmp_path / "out", to=to)
    assert list(tmp_path.iterdir()) == []
    if to == "mcap":
        assert robocache.export(copy, tmp_path / "out", to=to, streams=["said"]).rows == {"said": 6}


def test_statistics_of_a_selection_refuse_a_damaged_stream(original, copy):
    """Statistics are stored with a new checksum, which would hide the damage."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)
    file = copy / "streams" / "joint%2Fposition" / "values.npy"
    content = bytearray(file.read_bytes())
    content[200] ^= 0x40
    file.write_bytes(content)
    with pytest.raises(robocache.FileError, match=f"{file}: at byte 128: expected CRC-32"):
        flat_loader(
            robocache.open(copy),
            batch_size=2,
            delta_timestamps={"joint/position": None},
            episodes=[0, 1],
            normalize={"joint/position": "mean_std"},
            device="cpu",
        )


USES = {
    "verify": "dataset.verify()",
    "export": "robocache.export(dataset, sys.argv[1] + '.mcap', to='mcap')",
    "statistics": "robocache.Loader(dataset, batch_size=4, delta_timestamps={'x': robocache.Window([0.0], normalize='mean_std')}, "
    "episodes=[1], device='cpu', framework='numpy')",
    "loader": "robocache.Loader(dataset, batch_size=4, delta_timestamps={'x': [0.0]}, device='cpu', framework='numpy')",
}


@pytest.mark.parametrize("file", ["values", "time_ns"])
@pytest.mark.parametrize("use", USES)
def test_a_file_cut_short_after_opening_is_an_error(tmp_path, use, file):
    """A read after the end of a mapped file would end the process (SIGBUS)."""
    with robocache.Writer(tmp_path / "cache") as writer:
        for _ in range(2):
            with writer.episode() as episode:
                episode.append("x", np.arange(20_000) * 10, np.ones((20_000, 3)))
    script = (
        "import sys; sys.modules['torch'] = None\nimport os, robocache\n"
        "dataset = robocache.open(sys.argv[1])\nos.truncate(sys.argv[2], os.path.getsize(sys.argv[2]) // 3)\n"
        f"try:\n    {USES[use]}\nexcept robocache.FileError as error:\n    print(error)\n"
    )
    cut = tmp_path / f"cache/streams/x/{file}.npy"
    command = [sys.executable, "-c", script, tmp_path / "cache", cut]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stdout.startswith(f"{cut}: at byte ") and "it was cut short" in done.stdout, done
