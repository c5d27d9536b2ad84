"""A damaged cache is refused with the file's name, whatever the damage, and nothing crashes."""

import shutil

import numpy as np
import pytest
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
    return path


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
    at = data.draw(st.integers(0, len(content)), label="at")
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "remove", "zeros", "swap", "delete"]), label="kind")
    if kind == "flip":
        at = min(at, len(content) - 1)
        damaged = content[:at] + bytes([content[at] ^ data.draw(st.integers(1, 255))]) + content[at + 1 :]
    elif kind == "cut":
        damaged = content[:at]
    elif kind == "insert":
        damaged = content[:at] + data.draw(st.binary(min_size=1, max_size=8)) + content[at:]
    elif kind == "remove":
        damaged = content[:at] + content[at + data.draw(st.integers(1, 8)) :]
    elif kind == "zeros":
        damaged = content[:at] + bytes(len(content) - at)
    elif kind == "swap":
        damaged = (copy / data.draw(st.sampled_from(files), label="other")).read_bytes()
    else:
        file.unlink()
        with pytest.raises(robocache.FileError) as refused:
            robocache.open(copy)
        assert str(refused.value).startswith(f"{file}: ")
        return
    file.write_bytes(damaged)
    if damaged == content:
        robocache.open(copy, verify=True)
        return
    with pytest.raises(robocache.FileError) as refused:
        robocache.open(copy, verify=True)
    assert str(refused.value).startswith(f"{file}: ")


def test_a_future_version_names_both(original, copy):
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)
    manifest = copy / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema_version": 1', '"schema_version": 2'))
    with pytest.raises(
        robocache.FileError, match=r"manifest.json: at byte 47: expected schema version 1, .* got 2: another version"
    ):
        robocache.open(copy)


def test_damaged_values_are_found_by_verify(original, copy):
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)
    values = copy / "streams" / "camera" / "values.npy"
    values.write_bytes(values.read_bytes()[:-1] + b"\x07")
    ds = robocache.open(copy)
    with pytest.raises(
        robocache.FileError, match=r"camera/values.npy: at byte 0: expected CRC-32 .* of the bytes up to"
    ):
        ds.verify()
