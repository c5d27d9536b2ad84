"""HDF5 recordings of any layout: numbers equal h5py's, nothing outside the file is read, damage is named."""

import io
import os
import re
import resource
import struct
import subprocess
import sys
import time
from contextvars import ContextVar
from functools import partial

import h5py
import numpy as np
import pytest
from damage import damage
from hdf5_files import (
    assert_refused,
    encode_image,
    make_aloha,
    make_demo,
    make_droid,
    read_all,
    write_aloha,
    write_droid,
    write_hdf5,
    write_one_demo,
    write_robomimic,
)
from outcomes import ingest_and_open, reasons
from PIL import Image
from robocache.ingest import reader_process
from robocache.ingest.hdf5 import columns, datasets
from soak import rounds

import robocache

# ---- the content of datasets ----


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", "<i2", ">i2", ">u4", "<u8", "<f2", "<f4", ">f4", ">f8"])
@pytest.mark.parametrize("options", [{}, {"chunks": (3, 2), "compression": "gzip", "shuffle": True}])
def test_numbers_keep_their_bits(dtype, options, rng, tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "_PART_BYTES", 64)  # many parts
    values = (rng.normal(size=(50, 3)) * 100).astype(dtype)
    path = write_one_demo(
        tmp_path, lambda demo: demo.parent.create_group("demo_1").create_dataset("actions", data=values, **options)
    )
    _, (_, streams) = read_all(path)[0]
    time_ns, values_read = streams["actions"]
    assert values_read.dtype == np.dtype(dtype).newbyteorder("=") and values_read.dtype.isnative
    np.testing.assert_array_equal(values_read, values)
    assert time_ns.tolist() == [k * 100_000_000 for k in range(50)]


def test_texts_and_ragged_rows(tmp_path):
    def write(demo):
        demo["instruction"] = ["pick", "naïve", "", "place"]
        demo["fixed"] = np.array([b"a", b"bc", b"\xff", b""], "S2")
        ragged = demo.create_dataset("contacts", (4,), h5py.vlen_dtype("f4"))
        ragged[:] = [np.arange(k, dtype=np.float32) for k in (2, 0, 3, 1)]
        demo["language"] = "stack the cubes"
        demo["goal"] = ["one text"]
        demo["weight"] = 2.5

    path = write_one_demo(tmp_path, write)
    [(recording, streams)], notes = read_all(path)
    assert streams["instruction"][1] == ["pick", "naïve", "", "place"]
    assert streams["fixed"][1] == ["a", "bc", "\\xff", ""]
    assert [row.tolist() for row in streams["contacts"][1]] == [[0, 1], [], [0, 1, 2], [0]]
    facts = {key: recording.metadata[key] for key in ("language", "goal", "weight")}
    assert facts == {"language": "stack the cubes", "goal": "one text", "weight": 2.5}
    assert "fixed: bytes that are no UTF-8" in reasons(notes.left_out)
    assert robocache.ingest(path, tmp_path / "cache").rows["contacts"] == 4


def test_other_types_are_left_out_by_name(tmp_path):
    def write(demo):
        demo["compound"] = np.zeros(4, [("x", "f4"), ("y", "i4")])
        demo["complex"] = np.zeros(4, np.complex64)
        demo["opaque"] = np.zeros(4, "V5")
        demo["long"] = np.zeros(4, np.longdouble)
        demo.create_dataset("reference", (4,), h5py.ref_dtype)[:] = [demo.ref] * 4
        demo["empty"] = h5py.Empty("f4")
        demo["type"] = np.dtype("f8")
        demo["wide"] = np.zeros((4, columns._MOST_FEATURES + 1), np.float32)
        demo.create_dataset("unwritten", (4, 2), "f4")
        demo["same"] = demo["actions"]
        demo.create_dataset("swapped", (4,), h5py.vlen_dtype(">f4"))[0] = np.ones(2, np.float32)

    [(_, streams)], notes = read_all(write_one_demo(tmp_path, write))
    left_out = reasons(notes.left_out)
    assert set(streams) == {"actions"}
    names = "compound complex opaque long reference empty type wide unwritten same swapped"
    assert set(left_out) == {*names.split()}
    assert left_out["compound"] == "of type compounds of x, y" and left_out["same"] == "the same as actions"
    assert left_out["reference"] == "of type references to other objects" and "never written" in left_out["unwritten"]
    assert not notes.skipped


# ---- cameras ----


@pytest.mark.parametrize(
    ("dtype", "shape", "name", "codec", "is_channels_first"),
    [
        (np.uint8, (16, 24, 3), "obs/image", "png", False),
        (np.uint8, (3, 16, 24), "obs/channels_first", "png", True),
        (np.uint8, (16, 24, 1), "obs/mask", None, False),
        (np.uint8, (32, 40), "obs/mask", None, False),
        (np.uint16, (16, 24, 1), "obs/depth", None, False),
        (np.float32, (16, 24, 1), "obs/agentview_depth", None, False),
    ],
)
def test_pixels_are_kept(dtype, shape, name, codec, is_channels_first, rng, tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "_PART_BYTES", 5000)
    values = (rng.random((4, *shape)) * 255).astype(dtype)
    path = write_one_demo(tmp_path, lambda demo: demo.create_dataset(name, data=values))
    stream = ingest_and_open(path, tmp_path / "cache", **({"image_codec": codec} if codec else {}))[0].streams[name]
    expected = np.moveaxis(values, 1, -1) if is_channels_first else values.reshape(*values.shape[:3], -1)
    pixels = stream.values[:]
    assert pixels.dtype == dtype and stream.frames.codec == ("raw" if dtype == np.float32 else "png")
    np.testing.assert_array_equal(pixels.reshape(expected.shape), expected)


def test_confidence_beside_depth_is_no_depth(rng, tmp_path):
    values = rng.random((4, 32, 40), np.float32)
    path = write_one_demo(tmp_path, lambda demo: demo.create_dataset("obs/depth/confidence", data=values))
    stream = ingest_and_open(path, tmp_path / "cache")[0].streams["obs/depth/confidence"]
    assert stream.frames is None
    np.testing.assert_array_equal(np.asarray(stream.values[:]).reshape(values.shape), values)


def test_colour_becomes_jpeg_and_is_resized_on_request(rng, tmp_path):
    smooth = np.asarray(Image.fromarray(rng.integers(0, 256, (4, 5, 3), np.uint8)).resize((40, 32), Image.BICUBIC))
    path = write_one_demo(tmp_path, lambda demo: demo.create_dataset("obs/image", data=np.stack([smooth] * 4)))
    assert robocache.ingest(path, tmp_path / "a").cameras["obs/image"]["codec"] == "jpeg"
    pixels = robocache.open(tmp_path / "a").streams["obs/image"].values[:]
    expected_jpeg = np.asarray(Image.open(io.BytesIO(encode_image(smooth, quality=95)))).astype(int)
    assert np.abs(pixels[0] - expected_jpeg).max() <= 1
    stream = ingest_and_open(path, tmp_path / "b", image_size="20x16", image_codec="png")[0].streams["obs/image"]
    assert stream.frames.resized == {"size": [16, 20], "fit": "stretch", "from": [32, 40]}
    expected = np.asarray(Image.fromarray(smooth).resize((20, 16), Image.BILINEAR)).astype(int)
    assert np.abs(stream.values[:][0] - expected).max() <= 1


def test_a_camera_of_another_size_is_named(rng, tmp_path):
    demos = {"demo_0": make_demo(rng, 3), "demo_1": make_demo(rng, 3, (16, 16))}
    path = write_robomimic(tmp_path / "a.hdf5", demos)
    assert_refused(path, "/data/demo_1/obs/agentview_image", "16x16", "32x24")
    _, (_, streams) = read_all(path, on_error="skip")[0]
    assert "obs/agentview_image" not in streams and "actions" in streams


# ---- nothing outside the file is read, no declared size is trusted ----


def external_link(demo, secret):
    demo["obs/bad"] = h5py.ExternalLink(str(secret), "/x")


def soft_link_through_an_external_one(demo, secret):
    demo.file["way"] = h5py.ExternalLink(str(secret), "/")
    demo["obs/bad"] = h5py.SoftLink("/way/x")


def virtual_dataset(demo, secret):
    layout = h5py.VirtualLayout((4, 2), "f8")
    layout[:] = h5py.VirtualSource(str(secret), "x", (4, 2))
    demo.create_group("obs").create_virtual_dataset("bad", layout)


def external_storage(demo, secret):
    demo.create_group("obs").create_dataset("bad", (4, 2), "f8", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])


def dangling_link(demo, secret):
    demo["obs/bad"] = h5py.SoftLink("/data/nothing")


def circle_of_links(demo, secret):
    demo["obs/bad"] = h5py.SoftLink("other")
    demo["obs/other"] = h5py.SoftLink("bad")


@pytest.mark.parametrize(
    "write",
    [
        external_link,
        soft_link_through_an_external_one,
        virtual_dataset,
        external_storage,
        dangling_link,
        circle_of_links,
    ],
)
def test_links_out_of_the_file_are_not_followed(write, rng, tmp_path):
    secret = write_hdf5(tmp_path / "secret.dat", {"x": np.full((4, 2), 7.0)})
    path = write_one_demo(
        tmp_path, lambda demo: (write(demo, secret), demo.create_dataset("obs/good", data=np.zeros((4, 1))))
    )
    assert_refused(path, f"{path}: /data/demo_0/obs/", "bad")
    [(_, streams)], notes = read_all(path, on_error="skip")
    assert set(streams) == {"actions", "obs/good"}
    assert "demo_0: obs/bad" in reasons(notes.skipped)


def test_links_within_the_file_are_followed(tmp_path):
    def write(demo):
        demo.file["store/x"] = np.arange(4.0)
        demo["obs/absolute"] = h5py.SoftLink("/store/x")
        demo["obs/relative"] = h5py.SoftLink("deep/y")
        demo["obs/deep/y"] = np.arange(4.0) + 1
        demo["loop"] = demo.parent  # a hard link upwards

    [(_, streams)], notes = read_all(write_one_demo(tmp_path, write))
    assert streams["obs/absolute"][1].tolist() == [0, 1, 2, 3]
    assert ("obs/relative" in streams) != ("obs/deep/y" in streams)  # one object is read once
    assert reasons(notes.left_out).get("loop/demo_0") == "the same as itself"


def test_groups_linked_again_and_again_are_read_once(tmp_path):
    def write(demo):
        group = demo
        for _ in range(40):  # 2 ** 40 paths
            subgroup = group.create_group("a")
            group["b"] = subgroup
            group = subgroup
        group["x"] = np.arange(4.0)

    started = time.process_time()
    [(_, streams)], _ = read_all(write_one_demo(tmp_path, write))
    assert len(streams) == 2 and time.process_time() - started < 2


def test_declared_sizes_take_no_memory(tmp_path):
    def write(demo):
        demo.create_dataset("obs/huge", (10**12, 10), "f4", chunks=(1000, 10), compression="gzip")
        sparse = demo.create_dataset("obs/some", (4, 10**6), "f8", chunks=(1, 1000))
        sparse[0, :1000] = 1
        bomb = demo.create_dataset("obs/bomb", (4, 5 * 10**6), "f8", chunks=(4, 5 * 10**6), compression="gzip")
        bomb[:] = 0
        demo.create_dataset("obs/wide", (4, 2**40), "u1", chunks=(4, 1000))

    path = write_one_demo(tmp_path, write)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    [(_, streams)], notes = read_all(path, on_error="skip")
    skipped = reasons(notes.skipped)
    assert set(streams) == {"actions"}
    assert "float32 [1000000000000, 10]: neither a row a step" in reasons(notes.left_out)["obs/huge"]
    assert "1 of 4000 chunks were written" in skipped["demo_0: obs/some"]
    assert "chunks of 160000000 bytes" in skipped["demo_0: obs/bomb"]
    assert reasons(notes.left_out)["obs/wide"] == "declared, never written"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB
    assert time.process_time() - started < 2


def test_trillions_of_empty_rows_take_no_memory(tmp_path):
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        file["data/demo_0/x"] = np.zeros(1)  # makes the groups
        del file["data/demo_0/x"]
        file.create_dataset("data/demo_0/actions", (10**12, 7), "f4", chunks=(1000, 7))
    recordings, notes = read_all(path, rate_hz=10)
    assert recordings[0][1] == {} and reasons(notes.left_out) == {"actions": "declared, never written"}


@pytest.mark.parametrize("group", ["data/demo_0/obs", "/"])
def test_too_many_datasets_are_refused(group, tmp_path):
    path = write_one_demo(tmp_path, lambda demo: demo.create_group("obs"))
    with h5py.File(path, "r+") as file:
        parent = file[group].id
        for number in range(70_000):
            parent.links.create_soft(b"%d" % number, b"/data/demo_0/actions")
    started = time.process_time()
    assert_refused(path, str(path), group.strip("/"), "expected at most 65536 groups and datasets, got 7")
    assert time.process_time() - started < 2
    recordings, notes = read_all(path, on_error="skip")
    assert not recordings and len(reasons(notes.skipped)) == 1


def test_as_many_datasets_as_the_limit_are_accepted(tmp_path, monkeypatch):
    """The groups and datasets of a recording count together."""
    path = write_one_demo(tmp_path, lambda demo: [demo.create_dataset(f"obs/{k}", data=np.zeros(4)) for k in range(8)])
    monkeypatch.setattr(datasets, "check_links", partial(datasets.check_links, most=10))  # actions, obs and 8
    [(_, streams)], _ = read_all(path)
    assert len(streams) == 9
    monkeypatch.setattr(datasets, "check_links", partial(datasets.check_links, most=9))
    assert_refused(path, "data/demo_0/obs: expected at most 9 groups and datasets, got 10")


def test_a_damaged_chunk_is_named_by_its_rows(rng, tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "_PART_BYTES", 160)
    values = rng.normal(size=(4, 20))
    path = write_one_demo(
        tmp_path, lambda demo: demo.create_dataset("x", data=values, chunks=(1, 20), compression="gzip")
    )
    with h5py.File(path) as file:
        offset = file["data/demo_0/x"].id.get_chunk_info(2).byte_offset
    content = bytearray(path.read_bytes())
    content[offset : offset + 8] = b"\xff" * 8
    path.write_bytes(content)
    assert_refused(path, f"{path}: /data/demo_0/x: row 2")
    [(_, streams)], notes = read_all(path, on_error="skip")
    assert list(reasons(notes.skipped)) == ["demo_0: x: row 2"]
    assert streams["x"][0].tolist() == [0, 100_000_000, 300_000_000]
    np.testing.assert_array_equal(streams["x"][1], values[[0, 1, 3]])


def _write_text_in_a_dataset(demo):
    demo.create_dataset("note", data=[f"text {k}" for k in range(4)])


def _write_text_in_chunks(demo):
    demo.create_dataset("note", data=[f"text {k}" for k in range(4)], chunks=(2,))


def _write_text_in_an_attribute(demo):
    demo.attrs["note"] = ["text 2"] * 4


def _write_text_in_many_attributes(demo):
    """HDF5 stores many attributes in a separate heap."""
    for number in range(20):
        demo.attrs[f"note {number}"] = ["text 2"] * 4


def _write_text_in_a_virtual_dataset(demo):
    layout = h5py.VirtualLayout((4, 3), "f8")
    layout[:] = h5py.VirtualSource("text 2", "x", (4, 3))
    demo.create_virtual_dataset("x", layout)


_WRITE_IN_HEAPS = [
    _write_text_in_a_dataset,
    _write_text_in_chunks,
    _write_text_in_an_attribute,
    _write_text_in_many_attributes,
    _write_text_in_a_virtual_dataset,
]


@pytest.mark.parametrize("write", _WRITE_IN_HEAPS, ids=lambda write: write.__name__)
def test_damage_on_which_hdf5_hangs_is_an_error(write, tmp_path, monkeypatch):
    """HDF5 reads zeros within a heap forever."""
    monkeypatch.setattr(reader_process, "_CPU_S", 1)
    monkeypatch.setattr(reader_process, "_idle", ContextVar("idle", default=None))  # a process that has this limit
    write_one_demo(tmp_path, lambda demo: None).rename(tmp_path / "b.hdf5")
    path = write_one_demo(tmp_path, write)
    content = bytearray(path.read_bytes())
    offset = content.index(b"GCOL", max(0, content.index(b"text 2") - 4096))
    content[offset + 16 : offset + 4096] = bytes(4080)
    path.write_bytes(content)
    assert_refused(path, str(path), "damaged: its library did not come to an end within 1 s")
    recordings, notes = read_all(tmp_path, on_error="skip")
    assert recordings[-1][0].metadata["name"] == "demo_0"
    assert any(reason.startswith(f"{path}: ") for reason in reasons(notes.skipped).values())
    assert not [reason for reason in reasons(notes.skipped).values() if "b.hdf5" in reason]


@pytest.mark.parametrize(
    "write", [*_WRITE_IN_HEAPS[:4], "numbers"], ids=lambda write: getattr(write, "__name__", "numbers")
)
def test_lengths_beyond_the_file_are_refused(write, tmp_path):
    def write_lists(demo):
        rows = demo.create_dataset("contacts", (4,), h5py.vlen_dtype("f4"))
        rows[:] = [np.arange(6, dtype=np.float32)] * 4
        lists = np.empty(1, object)
        lists[0] = np.arange(3.0)
        demo.attrs.create("list", lists, dtype=h5py.vlen_dtype("f8"))

    path = write_one_demo(tmp_path, write_lists if write == "numbers" else write)
    content = bytearray(path.read_bytes())
    heaps = [struct.pack("<Q", match.start()) for match in re.finditer(b"GCOL", content)]
    offset = min(content.find(struct.pack("<I", 6) + heap) for heap in heaps if struct.pack("<I", 6) + heap in content)
    content[offset + 3] = 0x20  # about 500 million elements
    path.write_bytes(content)
    assert_refused(path, str(path))
    if write == "numbers":
        _, notes = read_all(path, on_error="skip")
        assert reasons(notes.left_out)["attribute list"] == "a list of any length"


# ---- layouts ----


def test_layouts_are_recognised_without_h5py(rng, tmp_path):
    write_robomimic(tmp_path / "r/episode_0.hdf5", {"demo_0": make_demo(rng, 2)})  # named like ALOHA's
    write_aloha(tmp_path / "a/run.h5", make_aloha(rng, 2))
    write_droid(tmp_path / "d/x", make_droid(rng, 2))
    (tmp_path / "r/episode_0.hdf5").rename(tmp_path / "single")  # by content alone
    code = (
        "import sys, pathlib\nsys.modules['torch'] = None\nfrom robocache.ingest import registry\n"
        f"print(*(registry.find_format(pathlib.Path({str(tmp_path)!r}, name)).name for name in ('single', 'a', 'd', 'd/x/trajectory.h5')))\n"
        "print('h5py' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out == ["robomimic", "aloha", "droid", "droid", "False"]


def test_another_layout_than_the_requested_one(rng, tmp_path):
    robomimic = write_robomimic(tmp_path / "r.hdf5", {"demo_0": make_demo(rng, 2)})
    aloha = write_aloha(tmp_path / "episode_0.hdf5", make_aloha(rng, 2))
    droid = write_droid(tmp_path / "d", make_droid(rng, 2)) / "trajectory.h5"
    assert_refused(aloha, str(aloha), "action, observations", "format='aloha'", format="robomimic")
    assert_refused(robomimic, str(robomimic), "found data", "format='robomimic'", format="aloha", rate_hz=50)
    assert_refused(robomimic, "found data", "format='robomimic'", format="droid")
    assert_refused(droid, "format='droid'", format="robomimic")
    assert_refused(tmp_path, "robomimic", "aloha", "droid", "say which with format")
    other = write_hdf5(tmp_path / "other.hdf5", {"weights/layer": [1.0]})
    assert_refused(other, "expected a group data with demos in it, found weights; robocache.Writer makes a cache")


def test_hints_name_a_format_that_reads_the_file(tmp_path):
    """The format in an error message reads the file; if no format does, the message names none."""
    layouts = {
        "observation": {"observation/head/rgb": np.zeros((6, 2)), "arm/vector": np.zeros((6, 14))},
        "data": {"data/joints": np.zeros((6, 2))},
        "observations": {"observations/qpos": np.zeros((6, 14)), "action": np.zeros((6, 14))},
        "demo": {"data/demo_0/actions": np.zeros((6, 7))},
    }
    hints = set()
    for name, contents in layouts.items():
        path = write_hdf5(tmp_path / f"{name}.hdf5", contents)
        for requested in ("robomimic", "aloha"):
            try:
                read_all(path, format=requested, rate_hz=10)
            except robocache.FileError as error:
                if hint := re.search("format='(.*)' reads that", str(error)):
                    hints.add((name, hint[1]))
                    [(_, streams)], _ = read_all(path, format=hint[1], rate_hz=10)
                    assert streams
    assert hints == {("observations", "aloha"), ("demo", "robomimic")}


@pytest.mark.parametrize(
    "content", [b"", b"\x89HDF\r\n\x1a\n", b"version https://git-lfs.github.com/spec/v1\n", b"PK\3\4" * 50]
)
@pytest.mark.parametrize("name", ["a.hdf5", "episode_0.hdf5", "trajectory.h5"])
def test_files_that_are_not_hdf5(content, name, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).write_bytes(content)
    options = {"rate_hz": 50} if name.startswith("episode") else {}
    assert_refused(tmp_path / "set", str(tmp_path / "set" / name), **options)


def test_a_user_block(rng, tmp_path):
    plain = write_robomimic(tmp_path / "plain.hdf5", {"demo_0": make_demo(rng, 2)})
    (tmp_path / "blocked").write_bytes(b"")
    with h5py.File(plain) as source, h5py.File(tmp_path / "blocked", "w", userblock_size=512) as file:
        source.copy("data", file)
    assert "actions" in read_all(tmp_path / "blocked")[0][0][1]


def test_a_read_only_file(rng, tmp_path):
    path = write_robomimic(tmp_path / "a.hdf5", {"demo_0": make_demo(rng, 2)})
    path.chmod(0o444)
    os.chmod(tmp_path, 0o555)
    try:
        assert len(read_all(path)[0]) == 1
    finally:
        os.chmod(tmp_path, 0o755)


# ---- damage ----


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["robomimic", "compressed", "aloha", "droid"])
def test_random_damage(kind, rng, tmp_path):
    options = {"rate_hz": 50} if kind == "aloha" else {}
    if kind == "aloha":
        path = write_aloha(tmp_path / "episode_0.hdf5", make_aloha(rng, 4, (16, 16)))
    elif kind == "droid":
        path = write_droid(tmp_path / "a", make_droid(rng, 4)) / "trajectory.h5"
    else:
        demos = {f"demo_{number}": make_demo(rng, 4, (16, 16)) for number in range(2)}
        compressed = {"compression": "gzip", "fletcher32": True} if kind == "compressed" else {}
        path = write_robomimic(tmp_path / "a.hdf5", demos, masks={"train": ["demo_0"]}, **compressed)
    content = path.read_bytes()
    format = "robomimic" if kind == "compressed" else kind
    for number in range(rounds(12)):
        path.write_bytes(damage(content, rng))
        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        on_error = ("stop", "skip")[number % 2]
        try:
            if number % 6 < 4:  # an ingest takes longer, so a third of the rounds are enough
                _, notes = read_all(path, format=format, on_error=on_error, **options)
                assert number % 2 or not notes.skipped
            else:
                robocache.ingest(path, tmp_path / "cache", format=format, on_error=on_error, overwrite=True, **options)
                robocache.open(tmp_path / "cache").verify()
        except robocache.Error as error:
            assert str(tmp_path) in str(error)
        assert time.process_time() - started < 2
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KB


@pytest.mark.parametrize("empty_rows", [[0], [0, 1, 2], [3], [0, 9]])
@pytest.mark.parametrize("how", ["padded", "any length", "fixed text"])
def test_an_empty_first_image_keeps_the_camera(how, empty_rows, tmp_path):
    files = [encode_image(np.full((16, 16, 3), 20 * k, np.uint8)) for k in range(10)]
    blobs = [b"" if row in empty_rows else file for row, file in enumerate(files)]
    length = max(map(len, files)) + 3
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file["action"] = np.zeros((10, 2))
        if how == "padded":
            file["observations/images/cam"] = np.stack(
                [np.frombuffer(blob.ljust(length, b"\0"), np.uint8) for blob in blobs]
            )
        elif how == "fixed text":
            file.create_dataset("observations/images/cam", data=blobs, dtype=f"S{length}")
        else:
            cam = file.create_dataset("observations/images/cam", (10,), h5py.vlen_dtype(np.uint8))
            for row, blob in enumerate(blobs):
                cam[row] = np.frombuffer(blob, np.uint8)
    [(_, streams)], notes = read_all(tmp_path / "episode_0.hdf5", rate_hz=10, on_error="skip")
    rows = [row for row in range(10) if row not in empty_rows]
    assert streams["observations/images/cam"][0].tolist() == [row * 10**8 for row in rows]
    assert len(reasons(notes.skipped)) == 1 and "observations/images/cam: rows" in next(iter(reasons(notes.skipped)))


def test_a_file_read_twice_at_once(tmp_path, recwarn):
    """One reader closes while another of the same file continues."""
    path = write_one_demo(tmp_path, lambda demo: demo.attrs.update(note="of any length"))
    first, second = datasets.open_file(path), datasets.open_file(path)
    first_file, second_file = first.__enter__(), second.__enter__()
    first.__exit__(None, None, None)
    assert list(datasets.links(second_file)) == ["data"]
    second.__exit__(None, None, None)
    assert not first_file and not datasets._processes
