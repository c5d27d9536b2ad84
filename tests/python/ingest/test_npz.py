"""Episodes as .npz files: every array equals numpy's, with the file's rate."""

import io
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from damage import damage
from outcomes import ingest_and_open
from robocache.ingest import convert, merge, npz, plan
from robocache.ingest.npz import read_npz
from soak import rounds
from yields import Yields, outcome, pixels

import robocache


def make_arrays(rng, rows=20):
    return {
        "joint_pos": rng.normal(size=(rows, 7)).astype(np.float32),
        "big": rng.normal(size=(rows, 2)).astype(">f8"),
        "fortran": np.asfortranarray(rng.normal(size=(rows, 3, 4))),
        "flag": rng.random(rows) > 0.5,
        "count": np.arange(rows, dtype=np.uint16),
        "note": np.array([f"schritt {k} \u00e4" for k in range(rows)]),
        "image": rng.integers(0, 256, (rows, 12, 16, 3), np.uint8),
        "depth": rng.integers(0, 4000, (rows, 12, 16, 1), np.uint16),
        "gender": np.array("neutral"),
        "betas": np.arange(10.0),
        "bad": np.array([np.nan]),
        "matrix": np.eye(3),
        "imaginary": np.zeros(rows, np.complex64),
        "wide": np.arange(rows, dtype=np.longdouble),
        "fps": np.array([50.0]),
    }


@pytest.mark.parametrize("in_small_parts", [True, False])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_every_array_of_every_file(save, in_small_parts, rng, tmp_path, monkeypatch):
    if in_small_parts:
        monkeypatch.setattr(npz.Npz.parts, "__defaults__", (100,))
    files = {name: make_arrays(rng, rows) for name, rows in (("run_2", 20), ("run_10", 9))}
    for name, arrays in files.items():
        save(tmp_path / f"{name}.npz", **arrays)
    (tmp_path / "notes.txt").write_text("x")
    yields = Yields(None, tmp_path, image_codec="png")
    assert list(yields.episodes) == ["run_2.npz", "run_10.npz"] and yields.notes.total == 2
    for streams, arrays in zip(yields.episodes.values(), files.values(), strict=True):
        rows = len(arrays["flag"])
        assert set(streams) == {"joint_pos", "big", "fortran", "flag", "count", "note", "image", "depth"}
        for name, (time_ns, values) in streams.items():
            assert time_ns.tolist() == [k * 20_000_000 for k in range(rows)]
            if name in ("image", "depth"):
                np.testing.assert_array_equal(pixels(values), arrays[name])
            elif name == "note":
                assert values == arrays[name].tolist()
            else:
                np.testing.assert_array_equal(values, arrays[name])
                assert values.dtype == arrays[name].dtype.newbyteorder("=")
    assert set(yields.clocks.values()) == {"nominal"}
    metadata = yields.metadata["run_2.npz"]
    assert metadata == {
        "name": "run_2", "source_file": "run_2.npz", "rate_hz": 50.0, "gender": "neutral", "betas": list(range(10)), "bad": None
    }  # fmt: skip
    assert set(yields.left_out) == {"betas: rows", "matrix", "imaginary", "wide", "*.txt"} and not yields.skipped


def test_real_motions_equal_numpys(real_data, tmp_path):
    """Files of two kinds in one folder: their keys are ordered differently, and a rate is a scalar or a list of one."""
    source = Path(real_data("motion/unitree_g1_lerobot"))
    dataset, _ = ingest_and_open(source, tmp_path / "cache")
    files = {file.name: file for file in source.glob("*.npz")}
    assert sorted(dataset.episodes["source_file"].to_pylist()) == sorted(files) and len(files) == 14
    for episode, name in enumerate(dataset.episodes["source_file"].to_pylist()):
        with np.load(files[name], allow_pickle=False) as arrays:
            streams = {key: rows for key, rows in dataset.episode(episode).items() if len(rows[0])}
            assert set(streams) == set(arrays.files) - {"fps"}
            for key, (time_ns, values) in streams.items():
                np.testing.assert_array_equal(values, arrays[key])
                assert time_ns.tolist() == [
                    round(k * 1e9 / float(arrays["fps"].reshape(-1)[0])) for k in range(len(values))
                ]


def test_one_observation_is_no_recording(real_data):
    """A policy's observation: the 224 rows of two images are no steps."""
    source = Path(real_data("npz_obs/openpi_droid_sim"))
    with pytest.raises(robocache.FileError, match="expected recordings of a known format"):
        robocache.ingest(source, "unused")
    with pytest.raises(robocache.FileError, match=r"debug_obs.npz: .*an observation of one moment is no recording"):
        Yields("npz", source, rate_hz=5)


def test_the_rate_is_declared_or_required(rng, tmp_path):
    rows = {"a": np.zeros((4, 2)), "b": np.zeros(4)}
    path = tmp_path / "a.npz"

    def read(options=None, **arrays):
        np.savez(path, **rows, **arrays)
        return Yields("npz", path, **(options or {})).only()["b"][0].tolist()

    assert (
        read(dt=np.float32(0.25))
        == read(fps=np.array([4]))
        == read({"rate_hz": 4})
        == [0, 250_000_000, 500_000_000, 750_000_000]
    )
    assert read({"rate_hz": 4}, mocap_framerate=4.0)[1] == 250_000_000
    assert read(dt=0.005, decimation=4) == read(sim_dt=np.array([0.001]), control_decimation=20) == read(dt=0.02)
    assert read(timestep=0.002, frame_skip=np.int64(5))[1] == read(control_freq=100)[1] == 10_000_000
    for options, arrays, message_part in (
        ({}, {}, r"a.npz: it has no array fps or dt .*--rate-hz"),
        ({"rate_hz": 5}, {"fps": 4}, "they contradict each other"),
        ({}, {"fps": 4, "dt": 0.5}, "they contradict each other"),
        ({}, {"dt": 20}, "in seconds, at most 1"),
        ({}, {"sim_dt": 0.005}, "no array fps"),
        ({}, {"sample_rate": 16000}, "no array fps"),
        ({}, {"dt": 0.005, "decimation": 4, "frame_skip": 5}, "they contradict each other"),
        ({}, {"fps": 0}, "fps: expected a number above 0, got 0"),
        ({}, {"fps": np.nan}, f"^{path}: fps: expected a number above 0, got nan"),
    ):
        with pytest.raises(robocache.FileError, match=message_part):
            read(options, **arrays)


def test_pickles_are_not_loaded_and_false_headers_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "touched",))

    path = tmp_path / "a.npz"
    np.savez(path, fps=50, a=np.array([Evil()], object))
    with pytest.raises(robocache.FileError, match=r"a.npz: .*expected numbers, got objects, which are pickled"):
        Yields(None, path)
    assert not (tmp_path / "touched").exists()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**40, 3)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", header.getvalue() + bytes(240))
    with pytest.raises(robocache.FileError, match=r"a.npz: .*a: expected float64 \[1099511627776, 3\], it"):
        Yields("npz", path, rate_hz=5)


def test_empty_rows_of_any_declared_number_are_left_out(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**40, 0)})
    path = tmp_path / "a.npz"
    np.savez(path, fps=50, short=np.zeros((3, 0), np.float32), rows=np.zeros((3, 2)), more=np.zeros(3))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("long.npy", header.getvalue())
    yields = Yields("npz", path)
    assert set(yields.only()) == {"rows", "more"} and set(yields.left_out) == {"short", "long"}
    assert {name: array.shape for name, array in read_npz(path).items() if not array.size} == {
        "short": (3, 0), "long": (2**40, 0)
    }  # fmt: skip


def test_a_header_that_is_too_long_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"\x93NUMPY\2\0" + (2**26).to_bytes(4, "little") + bytes(2**26))
    tracemalloc.start()
    try:
        with pytest.raises(robocache.FileError, match=r"a.npz: .*a.npy: expected a header of at most 10000"):
            Yields("npz", path, rate_hz=5)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_shards_give_the_same_bytes(rng, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for number in range(5):
        np.savez(source / f"{number}.npz", **make_arrays(rng, 5 + number))
    (source / "2.npz").write_bytes(b"none")
    robocache.ingest(source, tmp_path / "single", on_error="skip")
    planned = plan(source, tmp_path / "plan", shards=3, on_error="skip")
    for shard in range(3):
        convert(planned, shard)
    merge(planned.folder, tmp_path / "merged")
    single, merged = (
        {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        for folder in (tmp_path / "single", tmp_path / "merged")
    )
    assert single == merged and len(robocache.open(tmp_path / "merged")) == 4


@pytest.mark.soak
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_files_are_named(save, rng, tmp_path):
    save(tmp_path / "whole.npz", **make_arrays(rng))
    content = (tmp_path / "whole.npz").read_bytes()
    path = tmp_path / "a.npz"
    for _ in range(rounds(60)):
        path.write_bytes(damage(content, rng))
        outcome("npz", path, on_error="skip", rate_hz=50)
        outcome("npz", path)


ODD_HEADERS = [
    f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}{end}"
    for descr, order, shape, end in [
        *(
            (descr, "False", "(3,)", "\n")
            for descr in ("<f3", "<f1", "|f4", "<b1", "|b2", "<u1", "|O", "<V4", "<M8", "f4")
        ),
        *(
            ("<f4", "False", shape, "\n")
            for shape in ("(3)", "(,)", "(03,)", "(3,4,)", "(3,4)", "(-3,)", "(3.0,)", "3", "(1,) ")
        ),
        *(("<f4", order, "(3,)", "\n") for order in ("0", "None", "true")),
        *(("<f4", "True", "(3, 0)", end) for end in ("", "x\n", "\n\n", " \t\n", "\0\n")),
    ]
]


def test_headers_are_parsed_like_numpy():
    """NumPy's own headers, which need no parser, and others."""
    headers = []
    for descr in ("<f2", "<f4", ">f8", "|b1", "|u1", "|i1", "<i8", ">u2", "<c8", "|S3", "<U2"):
        for shape in ((), (0,), (5,), (3, 4), (0, 4), (2, 3, 4, 5)):
            for order in "CF":
                saved = io.BytesIO()
                np.save(saved, np.zeros(shape, descr, order=order))
                headers.append(saved.getvalue())
    odd_headers = [text.encode() for text in ODD_HEADERS]
    headers += [b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text for text in odd_headers]
    headers += [headers[0][:count] for count in range(8, 80, 7)]

    def read_with_numpy(stream):
        np.lib.format.read_magic(stream)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        if dtype.hasobject or min(shape, default=1) < 0:
            raise ValueError
        return npz.Entry(shape, dtype, fortran, stream.tell())

    def try_to_read(reader, header):
        try:
            return reader(io.BytesIO(header))
        except (ValueError, robocache.Error):
            return None

    expected = [try_to_read(read_with_numpy, header) for header in headers]
    assert [try_to_read(lambda stream: npz._read_header(stream, "x"), header) for header in headers] == expected
    assert sum(entry is not None for entry in expected) > 130


# Arrays of uncompressed files are mapped, and the reader checks their sums. zipfile checks those of compressed files.
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_changed_bytes_are_found_by_the_checksum(save, rng, tmp_path):
    path = tmp_path / "a.npz"
    save(path, fps=50, x=rng.normal(size=(20, 3)), y=rng.normal(size=20))
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("x.npy")
    content[info.header_offset + info.compress_size - 40] ^= 1
    path.write_bytes(content)
    with pytest.raises(robocache.FileError, match=r"a.npz: .*(Bad CRC-32|decompressing)"):
        Yields("npz", path)


def test_a_member_with_another_name_than_in_the_directory(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, fps=50, x=np.zeros((20, 3)))
    path.write_bytes(path.read_bytes().replace(b"x.npy", b"z.npy", 1))
    with pytest.raises(robocache.FileError, match=r"a.npz: .*x.npy.*differ"):
        Yields("npz", path)


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_at_any_offset(order, rng, tmp_path):
    arrays = {"x" * length: np.asarray(rng.normal(size=(9, 3)), order=order) for length in range(1, 9)}
    np.savez(tmp_path / "a.npz", **arrays)
    yields = Yields("npz", tmp_path / "a.npz", rate_hz=5).only()
    for name, (_, values) in yields.items():
        np.testing.assert_array_equal(values, arrays[name])
    for name, values in read_npz(tmp_path / "a.npz").items():
        assert values.flags.aligned
        np.testing.assert_array_equal(values, arrays[name])


@pytest.mark.parametrize("damaged_part", ["objects", "name", "header", "values", "directory"])
def test_an_unreadable_member_hides_no_other(damaged_part, tmp_path):
    path = tmp_path / "a.npz"
    values = np.array([{}] * 20) if damaged_part == "objects" else np.arange(20.0)
    np.savez(path, fps=50, m=values, x=np.arange(60.0).reshape(20, 3), y=np.arange(20.0))
    with zipfile.ZipFile(path) as archive:
        begin = archive.getinfo("m.npy").header_offset
    content = bytearray(path.read_bytes())
    if damaged_part == "name":
        content[content.rindex(b"m.npy") + 4] ^= 1
    elif damaged_part == "header":
        content[content.index(b"\x93NUMPY", begin) + 1] ^= 1
    elif damaged_part == "values":
        content[content.index(b"\x93NUMPY", begin) + 200] ^= 1
    elif damaged_part == "directory":
        content[content.rindex(b"m.npy") - 30] ^= 1  # a bit of its checksum
    path.write_bytes(content)
    with pytest.raises(robocache.FileError, match="m\\.np"):
        Yields("npz", path)
    yields = Yields("npz", path, on_error="skip")
    assert list(yields[0]) == ["x", "y"]
    np.testing.assert_array_equal(yields[0]["x"][1], np.arange(60.0).reshape(20, 3))
    assert any(what.startswith("a.npz: m") for what in yields.skipped)


def test_a_damaged_rate_skips_its_file_alone(rng, tmp_path):
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", **make_arrays(rng))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(b"fps.npy") + 150] ^= 255
    (tmp_path / "a.npz").write_bytes(content)
    yields = Yields(None, tmp_path, "skip")
    assert [omission.what for omission in yields.notes.skipped] == ["a.npz: fps.npy", "a.npz"]
    assert "joint_pos" in yields.episodes["b.npz"]


@pytest.mark.parametrize(("count", "is_noted"), [(49, True), (51, True), (48, False), (1, False)])
def test_a_list_of_almost_as_many_values_as_rows_is_noted(count, is_noted, tmp_path):
    """49 actions between 50 observations are no rows: it is unknown to which row an action belongs."""
    np.savez(
        tmp_path / "a.npz",
        q=np.zeros((50, 3)),
        v=np.zeros((50, 3)),
        torque=np.zeros((50, 3)),
        action=np.arange(count),
        fps=10,
    )
    yields = Yields("npz", tmp_path)
    assert ("action: rows" in yields.left_out) == is_noted
    assert yields.metadata["a.npz"]["action"] == (list(range(count)) if count > 1 else 0)
    assert not is_noted or f"{count} values beside 50 rows" in yields.left_out["action: rows"]


def test_a_recording_of_another_width_is_refused_with_a_hint(tmp_path):
    for number, width in enumerate((3, 2, 3)):
        joints = np.full((5, width), number + 0.5)
        np.savez(tmp_path / f"e{number}.npz", fps=10, joints=joints, action=np.full((5, 2), number))
    with pytest.raises(robocache.FileError, match=r"e1.npz: stream 'joints': .* \[n, 3\] .* got \[5, 2\]; .* list"):
        robocache.ingest(tmp_path, tmp_path / "cache", format="npz")
    report = robocache.ingest(tmp_path, tmp_path / "cache", format="npz", on_error="skip")
    assert [omission.what for omission in report.skipped] == ["e1.npz"] and report.episodes == 2
    streams = robocache.open(tmp_path / "cache").streams
    assert streams["joints"].values[:, 0].tolist() == [0.5] * 5 + [2.5] * 5
    assert streams["action"].values[:, 0].tolist() == [0] * 5 + [2] * 5
