"""Point clouds: every point of every file, bit for bit, with the clock from file names, stamps or the user."""

import resource
import struct
import sys
import time
import zipfile

import numpy as np
import pytest
from damage import damage
from robocache.ingest import registry
from yields import Yields, outcome

import robocache
from tests.soak import rounds

laspy = pytest.importorskip("laspy")

FIELDS = [("x", "f4"), ("y", "f4"), ("z", "f4"), ("intensity", "f4"), ("ring", "u2"), ("id", "i4")]
PLY = {"f4": "float", "f8": "double", "u1": "uchar", "u2": "ushort", "i4": "int"}


def make_cloud(rng, count, fields=FIELDS):
    points = np.zeros(count, fields)
    for name, kind in fields:
        numbers = rng.normal(size=count) * 50 if kind[0] == "f" else rng.integers(0, 255, count)
        points[name] = numbers
    return points


def ascii_lines(points):
    return "".join(" ".join(repr(cell.item()) for cell in point) + "\n" for point in points)


def describe_fields(points):
    """Returns (name, type) of each field."""
    return [(name, points.dtype[name].str[1:]) for name in points.dtype.names]


def write_ply(path, points, order="<", after_points=b"", extra=""):
    kind = {"<": "binary_little_endian", ">": "binary_big_endian", "": "ascii"}[order]
    properties = "".join(f"property {PLY[kind]} {name}\n" for name, kind in describe_fields(points))
    head = f"ply\nformat {kind} 1.0\ncomment x\nelement vertex {len(points)}\n{properties}{extra}end_header\n"
    body = points.astype(points.dtype.newbyteorder(order)).tobytes() if order else ascii_lines(points).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head.encode() + body + after_points)
    return path


def pack_lzf(raw):
    """Compresses in liblzf's format; takes the longest match at the last position of the same three bytes."""
    packed, literals, last, offset = bytearray(), bytearray(), {}, 0

    def flush():
        for start in range(0, len(literals), 32):
            part = literals[start : start + 32]
            packed.append(len(part) - 1)
            packed.extend(part)
        literals.clear()

    while offset < len(raw):
        key = raw[offset : offset + 3]
        before = last.get(key)
        last[key] = offset
        if len(key) == 3 and before is not None and offset - before <= 8192:
            length = 3
            while length < 264 and offset + length < len(raw) and raw[before + length] == raw[offset + length]:
                length += 1
            flush()
            back = offset - before - 1
            if length < 9:
                packed.append((length - 2) << 5 | back >> 8)
            else:
                packed.extend((7 << 5 | back >> 8, length - 9))
            packed.append(back & 255)
            offset += length
        else:
            literals.append(raw[offset])
            offset += 1
    flush()
    return bytes(packed)


def write_pcd(path, points, data="binary", width=None, height=1, viewpoint="0 0 0 1 0 0 0", names=None):
    fields = describe_fields(points)
    head = (
        "# .PCD v0.7 - Point Cloud Data file format\nVERSION 0.7\n"
        f"FIELDS {' '.join(names or [name for name, _ in fields])}\n"
        f"SIZE {' '.join(kind[1:] for _, kind in fields)}\n"
        f"TYPE {' '.join(kind[0].upper() for _, kind in fields)}\n"
        f"COUNT {' '.join('1' for _ in fields)}\n"
        f"WIDTH {len(points) if width is None else width}\nHEIGHT {height}\nVIEWPOINT {viewpoint}\n"
        f"POINTS {len(points)}\nDATA {data}\n"
    ).encode()
    if data == "ascii":
        body = ascii_lines(points).encode()
    elif data == "binary":
        body = points.tobytes()
    else:
        raw = b"".join(points[name].tobytes() for name, _ in fields)
        packed = pack_lzf(raw)
        body = struct.pack("<2I", len(packed), len(raw)) + packed
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + body)
    return path


def assert_points(streams, points, row=0):
    """Asserts that a row of the streams holds these points, whatever types the file has."""
    values = streams["points"][1][row]
    assert values.dtype == np.float32
    for column, name in enumerate(("x", "y", "z", "intensity", "ring")):
        assert np.array_equal(values[:, column], points[name], equal_nan=True)
    assert streams["points/id"][1][row].dtype == np.int32
    assert np.array_equal(streams["points/id"][1][row][:, 0], points["id"])


# ---- files ----


@pytest.mark.parametrize("order", ["<", ">", ""])
def test_ply(order, rng, tmp_path):
    points = make_cloud(rng, 9_000)
    yields = Yields("clouds", write_ply(tmp_path / "a.ply", points, order))
    assert_points(yields.only(), points)
    assert yields.only()["points"][0].tolist() == [0]
    assert yields.facts["points"]["names"] == ["x", "y", "z", "intensity", "ring"]
    assert yields.facts["points/id"]["names"] == ["id"]


def test_ply_with_faces_and_other_elements(rng, tmp_path):
    points = make_cloud(rng, 4)
    extra = "element face 1\nproperty list uchar int vertex_indices\n"
    yields = Yields("clouds", write_ply(tmp_path / "a.ply", points, extra=extra, after_points=b"\3" + bytes(12)))
    assert_points(yields.only(), points)
    assert list(yields.left_out) == ["element face"]
    file = write_ply(tmp_path / "a.ply", points)
    head, body = file.read_bytes().split(b"end_header\n")
    vertex = head[head.index(b"element") :]
    start = head[: head.index(b"element")]
    file.write_bytes(start + b"element camera 2\nproperty double f\n" + vertex + b"end_header\n" + bytes(16) + body)
    assert_points(Yields("clouds", file).only(), points)
    file.write_bytes(start + extra.encode() + vertex + b"end_header\n" + bytes(16) + body)
    assert "'face' has lists" in outcome("clouds", file)


@pytest.mark.parametrize("data", ["ascii", "binary", "binary_compressed"])
def test_pcd(data, rng, tmp_path):
    points = make_cloud(rng, 500)
    points["x"][3] = np.nan
    points["intensity"][:300] = 1.0  # a run longer than any back reference
    yields = Yields("clouds", write_pcd(tmp_path / "a.pcd", points, data))
    assert_points(yields.only(), points)


def test_pcd_with_rows_padding_a_viewpoint_and_colours(rng, tmp_path):
    fields = [("x", "f4"), ("y", "f4"), ("z", "f4"), ("pad", "u1"), ("rgb", "f4"), ("label", "u4"), ("far", "f8")]
    points = make_cloud(rng, 12, fields)
    points["rgb"] = np.full(12, 0x00112233, "<u4").view("<f4")
    names = ["x", "y", "z", "_", "rgb", "label", "far"]
    file = write_pcd(tmp_path / "a.pcd", points, width=4, height=3, viewpoint="1 0 0 1 0 0 0", names=names)
    yields = Yields("clouds", file)
    streams = yields.only()
    assert yields.facts["points"]["names"] == ["x", "y", "z"]
    assert streams["points/rgb"][1][0].tolist() == [[0x11, 0x22, 0x33, 0]] * 12
    assert yields.facts["points/rgb"]["names"] == ["r", "g", "b", "a"]
    assert streams["points/label"][1][0].dtype == np.uint32
    assert np.array_equal(streams["points/far"][1][0][:, 0], points["far"])
    assert set(yields.left_out) == {"the order of clouds in rows of 4", "viewpoints"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.pcd", "ascii"), ("a.pcd", "binary"), ("a.pcd", "binary_compressed"), ("a.ply", ""), ("a.ply", "<")],
)
@pytest.mark.parametrize("rest", ["points", "padding", ""])
def test_points_behind_the_declared_ones_are_named(name, kind, rest, rng, tmp_path):
    points = rng.normal(size=(6, 3)).astype("f4").view([("x", "f4"), ("y", "f4"), ("z", "f4")])[:, 0]
    file = (write_pcd if name == "a.pcd" else write_ply)(tmp_path / name, points, kind)
    is_text = kind in ("", "ascii")
    with file.open("ab") as opened:
        opened.write(
            {
                "points": b"1 2 3\n" if is_text else b"\0\0\x80?" * 3,
                "padding": b"\n\n" if is_text else b"\0" * 9,
                "": b"",
            }[rest]
        )
    yields = Yields("clouds", tmp_path)
    ((_, rows),) = [streams["points"] for streams in yields.episodes.values()]
    np.testing.assert_array_equal(rows[0], points.view("f4").reshape(6, 3))
    assert ("bytes behind the points" in yields.left_out) == (rest == "points")


def test_float64_points_hold_integers_of_32_bits(rng, tmp_path):
    fields = [("x", "f8"), ("y", "f8"), ("z", "f8"), ("i", "u4"), ("stamp", "u8")]
    points = make_cloud(rng, 3, fields)
    points["i"], points["stamp"] = 2**32 - 1, 2**64 - 1
    for data in ("ascii", "binary"):
        streams = Yields("clouds", write_pcd(tmp_path / "a.pcd", points, data)).only()
        values = streams["points"][1][0]
        assert values.dtype == np.float64
        for column, name in enumerate(("x", "y", "z", "i")):
            assert np.array_equal(values[:, column], points[name])
        assert streams["points/stamp"][1][0].tolist() == [[2**64 - 1]] * 3


@pytest.mark.parametrize("suffix", ["las", "laz"])
def test_las(suffix, rng, tmp_path):
    header = laspy.LasHeader(point_format=3, version="1.4")
    header.scales, header.offsets = [0.01, 0.001, 1e-7], [1e6, -2, 0.5]
    header.add_extra_dim(laspy.ExtraBytesParams("stamp", np.uint64))
    las = laspy.LasData(header)
    las.X, las.Y, las.Z = rng.integers(-(2**31), 2**31, (3, 1000), dtype=np.int32)
    las.gps_time = rng.normal(size=1000)
    las.stamp = np.full(1000, 2**64 - 1, np.uint64)
    las.write(str(tmp_path / f"a.{suffix}"))
    yields = Yields("clouds", tmp_path / f"a.{suffix}")
    values, names = yields.only()["points"][1][0], yields.facts["points"]["names"]
    assert values.dtype == np.float64
    assert np.array_equal(values[:, 0], np.array(las.X) * 0.01 + 1e6)
    assert np.array_equal(np.rint((values[:, 2] - 0.5) / 1e-7), las.Z)  # the integers can be recovered
    assert np.array_equal(values[:, names.index("gps_time")], las.gps_time)
    assert yields.only()["points/stamp"][1][0].dtype == np.uint64
    assert set(yields.only()["points/stamp"][1][0].ravel().tolist()) == {2**64 - 1}


def test_no_data_of_las_is_nan(tmp_path):
    """LAS 1.4, extra bytes record: no_data is the raw number, before scale and offset."""
    header = laspy.LasHeader(point_format=6, version="1.4")
    for name, dtype, scales in (("scaled", np.int16, [0.01]), ("raw", np.uint8, None), ("wide", np.int64, None)):
        offsets = None if scales is None else np.array([5.0])
        options = {"scales": scales and np.array(scales), "offsets": offsets, "no_data": np.array([7])}
        header.add_extra_dim(laspy.ExtraBytesParams(name, dtype, **options))
    las = laspy.LasData(header)
    las.X = las.Y = las.Z = np.arange(3)
    for name in ("scaled", "raw", "wide"):
        las.points.array[name] = [7, 8, 9]
    las.write(str(tmp_path / "a.las"))
    yields = Yields("clouds", tmp_path / "a.las")
    values, names = yields.only()["points"][1][0], yields.facts["points"]["names"]
    np.testing.assert_array_equal(values[:, names.index("scaled")], [np.nan, 5.08, 5.09])
    np.testing.assert_array_equal(values[:, names.index("raw")], [np.nan, 8, 9])
    assert {note.what for note in yields.notes.assumed} == {"scaled of points", "raw of points"}
    assert "wide of points: 7 as no measurement" in yields.left_out


def test_fields_of_a_pcd_with_count_0_are_ignored(tmp_path):
    """Some drivers write padding as a field of count 0."""
    head = "VERSION 0.7\nFIELDS x _ y z\nSIZE 4 1 4 4\nTYPE F U F F\nCOUNT 1 0 1 1\nWIDTH 1\nHEIGHT 1\nDATA binary\n"
    (tmp_path / "a.pcd").write_bytes(head.encode() + np.array([1, 2, 3], "<f4").tobytes())
    assert Yields("clouds", tmp_path / "a.pcd").only()["points"][1][0].tolist() == [[1, 2, 3]]


def test_bin_files_of_kitti_and_nuscenes(rng, tmp_path):
    numbers = rng.normal(size=(20, 5)).astype("<f4")
    (tmp_path / "velodyne").mkdir()
    for path, columns in (("velodyne/000000.bin", 4), ("a.pcd.bin", 5), ("b.bin", None)):
        (tmp_path / path).write_bytes(numbers.tobytes())
        if columns:
            values = Yields("clouds", tmp_path / path).only()["points"][1][0]
            assert np.array_equal(values, numbers.reshape(-1, columns))
    assert "say which with bin_columns" in outcome("clouds", tmp_path / "b.bin")
    yields = Yields("clouds", tmp_path / "b.bin", bin_columns=5)
    assert yields.facts["points"]["names"] == ["x", "y", "z", "intensity", "ring"]
    (tmp_path / "b.bin").write_bytes(numbers[:3].tobytes())  # 60 bytes hold points of 5 numbers, not of 4
    assert Yields("clouds", tmp_path / "b.bin").only()["points"][1][0].shape == (3, 5)
    (tmp_path / "b.bin").write_bytes(b"xyz")
    assert "neither 4 nor 5" in outcome("clouds", tmp_path / "b.bin")
    with pytest.raises(robocache.ArgumentError, match="bin_columns"):
        Yields("clouds", tmp_path / "b.bin", bin_columns=7)


def test_npy_and_npz_files(rng, tmp_path):
    numbers = rng.normal(size=(20, 4))
    np.save(tmp_path / "a.npy", numbers)
    yields = Yields("clouds", tmp_path / "a.npy")
    assert np.array_equal(yields.only()["points"][1][0], numbers)
    assert yields.facts["points"]["names"] == ["x", "y", "z", "3"]
    np.savez_compressed(tmp_path / "b.npz", points=numbers.astype("f4"), pose=np.eye(4))
    yields = Yields("clouds", tmp_path / "b.npz")
    assert np.array_equal(yields.only()["points"][1][0], numbers.astype("f4"))
    assert yields.left_out == {"pose": "not the points"}
    points = make_cloud(rng, 7)
    np.save(tmp_path / "c.npy", points)
    assert_points(Yields("clouds", tmp_path / "c.npy").only(), points)
    big_endian = make_cloud(rng, 7, [("x", ">f4"), ("y", ">f4"), ("z", ">f4"), ("rgb", ">u4"), ("id", ">u8")])
    big_endian["rgb"], big_endian["id"] = 0x04010203, 2**60 + 1
    np.save(tmp_path / "c.npy", big_endian)
    yields = Yields("clouds", tmp_path / "c.npy")
    streams = yields.only()
    assert np.array_equal(streams["points"][1][0], np.stack([big_endian[axis] for axis in "xyz"], 1))
    assert streams["points/rgb"][1][0].tolist() == [[1, 2, 3, 4]] * 7 and yields.left_out == {}
    assert streams["points/id"][1][0].tolist() == [[2**60 + 1]] * 7
    np.save(tmp_path / "d.npy", np.array([{}], object), allow_pickle=True)
    assert "objects in dtype" in outcome("clouds", tmp_path / "d.npy")
    np.save(tmp_path / "d.npy", np.zeros((3, 2)))
    assert "expected points [N, 3]" in outcome("clouds", tmp_path / "d.npy")
    for shape in ((3, 40), (4, 17), (5, 40), (7, 40), (18, 100)):
        np.save(tmp_path / "d.npy", np.zeros(shape, np.float32))
        assert "expected a row for each point" in outcome("clouds", tmp_path / "d.npy")
    np.save(tmp_path / "e.npy", np.zeros((10, 18), np.float32))  # a radar's points have 18 numbers
    assert Yields("clouds", tmp_path / "e.npy").only()["points"][1][0].shape == (10, 18)
    np.savez(tmp_path / "e.npz", a=numbers, b=numbers)
    assert "expected an array 'points'" in outcome("clouds", tmp_path / "e.npz")


# ---- folders and clocks ----


def write_clouds(path, names, rng):
    clouds = [make_cloud(rng, 2 + number) for number in range(len(names))]
    for name, points in zip(names, clouds, strict=True):
        write_ply(path / name, points)
    return clouds


def read_times(source, **options):
    yields = Yields("clouds", source, **options)
    (clock,) = set(yields.clocks.values())
    return yields.only()["points"][0].tolist(), clock, yields.facts["points"]["attributes"]["clock_source"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["1403715273262142976.ply", "1403715273312143104.ply"], [1403715273262142976, 1403715273312143104]),
        (
            ["n8__TOP__1532402927647951.ply", "n9__TOP__1532402927747951.ply"],
            [1532402927647951000, 1532402927747951000],
        ),
        (["1532402927647.ply", "1532402927747.ply"], [1532402927647000000, 1532402927747000000]),
        (["1532402927.000000001.ply", "1532402927.5.ply"], [1532402927000000001, 1532402927500000000]),
        (["1532402927_028748000.ply", "1532402927_528748000.ply"], [1532402927028748000, 1532402927528748000]),
        # Seconds and integers of nanoseconds, microseconds or milliseconds, written by "%d_%d".
        (["1532402927_28748000.ply", "1532402927_528748000.ply"], [1532402927028748000, 1532402927528748000]),
        (["1532402927.28748000.ply", "1532402927.528748000.ply"], [1532402927028748000, 1532402927528748000]),
        (["1532402927_7.ply", "1532402927_528748.ply"], [1532402927000007000, 1532402927528748000]),
        (["1532402927_28.ply", "1532402927_528.ply"], [1532402927028000000, 1532402927528000000]),
    ],
)
def test_stamps_in_names(names, expected, rng, tmp_path):
    clouds = write_clouds(tmp_path / "run", names, rng)
    assert read_times(tmp_path / "run") == (expected, "recorded", "names of files")
    streams = Yields("clouds", tmp_path / "run").only()
    for row, points in enumerate(clouds):
        assert_points(streams, points, row)


@pytest.mark.parametrize("digits", [("28748000", "52874800"), ("5", "7"), ("2874800", "52874800")])
def test_ambiguous_digits_after_seconds_are_refused(digits, rng, tmp_path):
    write_clouds(tmp_path / "run", [f"1532402927_{part}.ply" for part in digits], rng)
    message_part = "which could be a fraction or nanoseconds; write the stamps to a file timestamps.txt"
    assert message_part in outcome("clouds", tmp_path / "run")


def test_stamps_from_a_file_beside_the_clouds(rng, tmp_path):
    write_clouds(tmp_path / "velodyne_points/data", ["0000.ply", "0001.ply"], rng)
    stamps = tmp_path / "velodyne_points/timestamps.txt"
    stamps.write_text("2011-09-26 13:02:25.951199337\n2011-09-26 13:02:26\n")
    assert read_times(tmp_path) == ([1317042145951199337, 1317042146000000000], "recorded", "timestamps.txt")
    assert Yields("clouds", tmp_path).left_out == {}
    stamps.write_text("0.000000e+00\n1.036224e-01\n")
    assert read_times(tmp_path)[0] == [0, 103622400]
    for text, message_part in (
        ("1\n", "expected 2 stamps, one for each cloud, got 1"),
        ("1\nx\n", "line 2: expected a date"),
        ("1\n1e11\n", "fit int64"),
    ):
        stamps.write_text(text)
        assert message_part in outcome("clouds", tmp_path)


def test_a_rate_is_given_or_required(rng, tmp_path):
    write_clouds(tmp_path / "run", ["a_1.ply", "a_2.ply", "a_10.ply"], rng)
    assert "give the clouds a second with rate_hz" in outcome("clouds", tmp_path / "run")
    assert read_times(tmp_path / "run", rate_hz=3.0) == ([0, 333333333, 3000000000], "nominal", "rate_hz")
    (tmp_path / "run/a_1.ply").unlink()
    assert read_times(tmp_path / "run", rate_hz=10.0)[0] == [0, 800000000]
    for number in (20, 30, 60, 1000):
        write_clouds(tmp_path / "run", [f"a_{number}.ply"], rng)
    assert read_times(tmp_path / "run", rate_hz=10.0)[0] == [(k - 2) * 10**8 for k in (2, 10, 20, 30, 60, 1000)]
    report = robocache.ingest(tmp_path / "run", tmp_path / "cache", rate_hz=10.0)
    assert [note.reason for note in report.assumed] == ["the numbers in their names / rate_hz: 6 of 999 numbers exist"]


def test_folders_are_episodes_in_natural_order(rng, tmp_path):
    for number in (10, 9):
        write_clouds(tmp_path / f"run_{number}", ["a.ply"], rng)
    (tmp_path / "notes.txt").write_text("x")
    yields = Yields("clouds", tmp_path)
    assert list(yields.episodes) == ["run_9", "run_10"]
    assert yields.source_facts == {"clocks": {"none": 2}}
    assert yields.left_out == {"*.txt": "no clouds: 1 file"}


def test_a_cloud_with_other_fields_is_refused_or_named(rng, tmp_path):
    write_clouds(tmp_path, ["1.ply", "2.ply", "3.ply"], rng)
    write_ply(tmp_path / "2.ply", make_cloud(rng, 3, FIELDS[:4]))
    assert "2.ply: points of float32 x y z intensity, but others are" in outcome("clouds", tmp_path, rate_hz=10.0)
    yields = Yields("clouds", tmp_path, on_error="skip", rate_hz=10.0)
    assert yields.only()["points"][0].tolist() == [0, 200000000]
    assert len(yields.skipped) == 1


@pytest.mark.parametrize("fault", ["fields", "damaged", "empty file"])
def test_a_faulty_first_cloud_hides_no_other(fault, rng, tmp_path):
    clouds = write_clouds(tmp_path, [f"{k}.ply" for k in range(8)], rng)
    if fault == "fields":
        write_ply(tmp_path / "0.ply", make_cloud(rng, 3, FIELDS[:4]))
    else:
        (tmp_path / "0.ply").write_bytes(b"" if fault == "empty file" else b"ply\nformat ascii 1.0\n")
    assert "0.ply" in outcome("clouds", tmp_path, rate_hz=10.0)
    yields = Yields("clouds", tmp_path, on_error="skip", rate_hz=10.0)
    assert yields.only()["points"][0].tolist() == [k * 10**8 for k in range(1, 8)]
    assert list(yields.skipped) == ["0.ply"]
    for row, points in enumerate(clouds[1:]):
        assert_points(yields.only(), points, row)


def bin_points(rng, width, n):
    """Returns a scan [n, width] float32: x, y, z in metres, then numbers of other magnitudes."""
    angle = np.linspace(0, 6 * np.pi, n)
    scan = np.stack([20 * np.cos(angle), 20 * np.sin(angle), angle / 5], axis=1) + rng.normal(0, 0.1, (n, 3))
    other_fields = rng.uniform(0, 1, (n, 5)) * [255, 1, 30, 0.1, 3]
    return np.hstack([scan, other_fields])[:, :width].astype("<f4")


def write_bins(folder, files, ending=".bin"):
    folder.mkdir(parents=True)
    for k, points in enumerate(files):
        (folder / f"{k:06d}{ending}").write_bytes(points.tobytes())
    return folder


# VBR's points of 29 bytes.
RECORD = np.dtype({"names": list("xyzitrcan"), "formats": ["<f4"] * 4 + ["<u4", "<u2", "u1", "<u2", "<u4"]})


def test_bin_files_of_other_types_are_refused(rng, tmp_path):
    records = np.zeros(1024, RECORD)
    for name in RECORD.names:
        kind = RECORD[name]
        values = rng.uniform(0, 200, 1024)
        records[name] = values if kind.kind == "f" else values.astype(kind)
    labels = np.zeros(1004, [("xyz", "<f4", 3), ("label", "<u4")])
    labels["xyz"], labels["label"] = rng.normal(size=(1004, 3)), 40
    doubles = rng.normal(size=(1004, 4))
    for name, array in (("records", records), ("labels", labels), ("doubles", doubles)):
        for folder in (name, f"{name}/velodyne"):
            message = outcome("clouds", write_bins(tmp_path / folder / "run", [array] * 2), rate_hz=10.0)
            assert "expected points of float32, got numbers such as" in message, (folder, message)


@pytest.mark.parametrize("width", [3, 6, 7, 8])
def test_bin_files_of_another_width_are_refused(width, rng, tmp_path):
    """They are not read as points of four numbers, although their sizes are multiples of four numbers."""
    files = [bin_points(rng, width, 1004 + 4 * k) for k in range(2)]  # never a multiple of 5 numbers
    message = outcome("clouds", write_bins(tmp_path / "scans", files), rate_hz=10.0)
    widths = {3: "3 or 4 or 6", 6: "3 or 4 or 6", 7: "4 or 7", 8: "4 or 8"}[width]
    assert f"points of {widths} float32" in message
    odd_files = [bin_points(rng, width, 1001 + 2 * k) for k in range(4)]
    expected = "4 or 8" if width == 8 else "neither 4"
    for folder, ending, widths in (("velodyne", ".bin", expected), ("nuscenes", ".pcd.bin", "neither 5")):
        source = write_bins(tmp_path / folder, odd_files, ending)
        assert f"{widths} float32" in outcome("clouds", source, rate_hz=10.0)


@pytest.mark.parametrize("width", [4, 5])
def test_bin_files_whose_sizes_also_fit_wider_points(width, rng, tmp_path):
    n = 24 * 49 if width == 4 else 18 * 49  # the sizes also fit points of 3, 6, 7 and 8 numbers, or of 3, 6 and 7
    files = [bin_points(rng, width, n) for _ in range(2)]
    yields = Yields("clouds", write_bins(tmp_path / "scans", files), rate_hz=10.0)
    for row, points in enumerate(files):
        assert np.array_equal(yields.only()["points"][1][row], points)


def test_a_cut_bin_file_does_not_hide_the_width_of_points(rng, tmp_path):
    clouds = [rng.normal(size=(7 + k, 5)).astype(np.float32) for k in range(6)]
    for k, points in enumerate(clouds):
        content = points.tobytes()
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / f"run/{k}.bin").write_bytes(content[:-3] if k == 2 else content)
    yields = Yields("clouds", tmp_path / "run", on_error="skip", rate_hz=10.0)
    rows = [k for k in range(6) if k != 2]
    assert yields.only()["points"][0].tolist() == [k * 10**8 for k in rows] and list(yields.skipped) == ["2.bin"]
    for row, k in enumerate(rows):
        np.testing.assert_array_equal(yields.only()["points"][1][row], clouds[k])


def test_a_cloud_without_a_stamp_does_not_hide_the_clock_of_the_others(rng, tmp_path):
    stamps = [1403715273262142976 + k * 10**8 for k in range(4)]
    write_clouds(tmp_path / "run", ["map.ply", *(f"{stamp}.ply" for stamp in stamps)], rng)
    assert "map.ply: no stamp in its name" in outcome("clouds", tmp_path / "run")
    yields = Yields("clouds", tmp_path / "run", on_error="skip")
    assert yields.only()["points"][0].tolist() == stamps and list(yields.skipped) == ["map.ply"]


def test_a_line_without_a_stamp_skips_its_cloud(rng, tmp_path):
    write_clouds(tmp_path / "run", [f"{k}.ply" for k in range(4)], rng)
    (tmp_path / "run/timestamps.txt").write_text("0.0\n0.1\n?\n0.3\n")
    yields = Yields("clouds", tmp_path / "run", on_error="skip")
    assert yields.only()["points"][0].tolist() == [0, 10**8, 3 * 10**8] and list(yields.skipped) == ["2.ply"]


def test_blank_lines_of_stamps_belong_to_missing_clouds(rng, tmp_path):
    write_clouds(tmp_path / "run", ["0.ply", "1.ply", "3.ply"], rng)
    stamps = tmp_path / "run/timestamps.txt"
    stamps.write_text("0.0\n0.1\n\n0.3\n\n")
    assert read_times(tmp_path / "run")[0] == [0, 10**8, 3 * 10**8]
    stamps.write_text("0.0\n\n0.2\n0.3\n")
    assert "1.ply does not belong to line 3" in outcome("clouds", tmp_path / "run")
    stamps.write_text("0.0\n0.1\n0.3\n")  # one line for each cloud
    assert read_times(tmp_path / "run")[0] == [0, 10**8, 3 * 10**8]


def test_an_empty_cloud_is_a_row(rng, tmp_path):
    for name, write in (("a.ply", write_ply), ("a.pcd", write_pcd)):
        streams = Yields("clouds", write(tmp_path / name, make_cloud(rng, 0))).only()
        assert streams["points"][1][0].shape == (0, 5)


def test_clouds_are_recognised_by_their_names(rng, tmp_path):
    write_clouds(tmp_path / "run", ["a.ply"], rng)
    assert registry.find_format(tmp_path / "run").name == "clouds"
    np.save(tmp_path / "a.npy", np.zeros((3, 3)))  # an array may be anything
    (tmp_path / "run/a.ply").unlink()
    with pytest.raises(robocache.FileError, match="found none"):
        registry.find_format(tmp_path)


# ---- into the cache and the operations ----


def test_clouds_of_a_cache_are_voxelized(rng, tmp_path):
    clouds = write_clouds(tmp_path / "run", ["0.ply", "1.ply", "2.ply"], rng)
    report = robocache.ingest(tmp_path / "run", tmp_path / "cache", rate_hz=10.0)
    assert (report.format, report.rows) == ("clouds", {"points": 3, "points/id": 3})
    _, rows = robocache.open(tmp_path / "cache").episode(0)["points"]
    grid = {"grid_min": (-100, -100, -100), "voxel_size": 10.0, "grid_size": (20, 20, 20)}
    for row, points in enumerate(clouds):
        expected = np.zeros((20, 20, 20), bool)
        cells = np.floor((np.stack([points[axis] for axis in "xyz"], axis=1) + 100) / 10).astype(int)
        is_inside = ((cells >= 0) & (cells < 20)).all(axis=1)
        expected[tuple(cells[is_inside].T)] = True
        assert np.array_equal(robocache.voxelize_pointcloud(np.asarray(rows[row])[:, :3], **grid), expected)
    batch = robocache.voxelize_pointcloud(rows.values[:, :3], batch_offsets=rows.offsets, **grid)
    assert batch.shape == (3, 20, 20, 20)


# ---- damage ----


@pytest.mark.parametrize(
    ("name", "content", "message_part"),
    [
        ("a.ply", b"", "ends with end_header, got ''"),
        ("a.ply", b"plx\nend_header\n", "expected 'ply'"),
        ("a.ply", b"ply\nformat ascii 2.0\nend_header\n", "a PLY header, got 'format ascii 2.0'"),
        ("a.ply", b"ply\nend_header\n", "expected a format"),
        ("a.ply", b"ply\nformat ascii 1.0\nend_header\n", "expected an element vertex"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float a\nend_header\n1\n", "x, y and z, got a"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float x\nend_header\n1 1", "different names"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement vertex 99999999999999\nproperty float x\nend_header\n1\n", "claims"),
        ("a.ply", b"ply\nformat binary_little_endian 1.0\nelement vertex 9999999999\nproperty float x\nend_header\n1\n", "claims"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nend_header\n1\n2 3\n", "point 1: expected 1 numbers, got 2"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nend_header\n1111\n", "expected 2 points, got 1"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement vertex 1\nproperty uchar x\nend_header\n256\n", "beyond uint8"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nend_header\nabc\n", "could not convert"),
        ("a.pcd", b"", "ends with DATA, got ''"),
        ("a.pcd", b"VERSION 0.7\nDATA ascii\n", "no PCD: KeyError"),
        ("a.pcd", b"FIELDS x\nSIZE 3\nTYPE F\nWIDTH 1\nHEIGHT 1\nDATA ascii\n1\n", "no PCD: TypeError"),
        ("a.pcd", b"FIELDS x\nSIZE 4\nTYPE F\nWIDTH 2\nHEIGHT 1\nPOINTS 1\nDATA ascii\n1\n", "expected 2 x 1 points"),
        ("a.pcd", b"FIELDS x\nSIZE 4\nTYPE F\nCOUNT 0\nWIDTH 1\nHEIGHT 1\nDATA ascii\n1\n", "got none"),
        ("b.pcd", b"FIELDS x\nSIZE 4\nTYPE F\nCOUNT -1\nWIDTH 1\nHEIGHT 1\nDATA ascii\n1\n", "COUNTs of 0"),
        ("a.pcd", b"FIELDS x\nSIZE 4\nTYPE F\nWIDTH 1\nHEIGHT 1\nDATA zip\n1\n", "got 'zip'"),
        ("a.pcd", b"FIELDS x\nSIZE 4\nTYPE F\nWIDTH 99999999\nHEIGHT 1\nDATA binary_compressed\n\5\0\0\0\xfc\x83\xd7\x1712345", "packed in 5"),
        ("a.pcd", b"FIELDS x\nSIZE 4\nTYPE F\nWIDTH 1\nHEIGHT 1\nDATA binary_compressed\n\3\0\0\0\4\0\0\0\x40\5\5", "refers to bytes that do not exist"),
        ("a.pcd", b"FIELDS x\nSIZE 4\nTYPE F\nWIDTH 1\nHEIGHT 1\nDATA binary_compressed\n\2\0\0\0\4\0\0\0\1a", "expected 4 bytes of points, got 1"),
        ("a.las", b"LASF", "a.las"),
        ("a.laz", b"no", "a.laz"),
        ("a.npy", b"\x93NUMPY\1\0", "a.npy"),
        ("a.npz", b"PK", "a.npz"),
        ("a.ply", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused(name, content, message_part, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert message_part in outcome("clouds", tmp_path / name)


def test_huge_declared_sizes_are_refused_at_once(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 3)))
    content = (tmp_path / "a.npy").read_bytes()
    longer = content.replace(b"(3, 3), }         ", b"(3000000000, 3), }")
    assert len(longer) == len(content) and longer != content
    (tmp_path / "a.npy").write_bytes(longer)
    assert "greater than file size" in outcome("clouds", tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("points.npy", bytes(100_000_000))
    assert "claims" in outcome("clouds", tmp_path / "b.npz")
    for suffix in ("las", "laz"):
        las = laspy.LasData(laspy.LasHeader(point_format=3, version="1.2"))
        las.X = np.arange(100)
        las.write(str(tmp_path / f"c.{suffix}"))
        content = bytearray((tmp_path / f"c.{suffix}").read_bytes())
        struct.pack_into("<I", content, 107, 2**32 - 1)  # the number of points
        (tmp_path / f"c.{suffix}").write_bytes(content)
        assert "claims" in outcome("clouds", tmp_path / f"c.{suffix}")


@pytest.mark.parametrize(
    ("offset", "struct_format", "numbers", "message_part"),
    [
        (100, "<I", [2**30], "byte 94"),  # the number of records
        (94, "<H", [60000], "byte 94"),  # the size of the header, after which records begin
        (235, "<QI", [400, 2**31], "byte 235"),  # the first extended record's offset, and their number
        (0, "4s", [b"FASL"], "expected 'LASF'"),
    ],
)
def test_impossible_las_records_are_refused_at_once(offset, struct_format, numbers, message_part, tmp_path):
    las = laspy.LasData(laspy.LasHeader(point_format=6, version="1.4"))
    las.X = np.arange(100)
    las.write(str(tmp_path / "a.las"))
    content = bytearray((tmp_path / "a.las").read_bytes())
    struct.pack_into(struct_format, content, offset, *numbers)
    (tmp_path / "a.las").write_bytes(content)
    assert message_part in outcome("clouds", tmp_path / "a.las")


def test_a_wrong_table_of_chunks_is_refused(real_data, tmp_path):
    content = bytearray((real_data("lidar/laspy") / "simple.laz").read_bytes())
    (points_at,) = struct.unpack_from("<I", content, 96)
    (table,) = struct.unpack_from("<q", content, points_at)
    struct.pack_into("<I", content, table + 4, 2**32 - 1)
    (tmp_path / "a.laz").write_bytes(content)
    assert "a table of 4294967295 chunks" in outcome("clouds", tmp_path / "a.laz")


def test_damage_that_crashes_lazrs_is_an_error(real_data, tmp_path):
    """The symbols of times never end: lazrs recurses until its stack overflows."""
    content = bytearray((real_data("lidar/laspy") / "simple.laz").read_bytes())
    content[3311:7407] = bytes([255]) * 4096
    for name in ("a.laz", "b.las"):
        (tmp_path / name).write_bytes(content)
        assert f"{name}: damaged: its library died of Segmentation fault" in outcome("clouds", tmp_path / name)


def test_mutated_clouds_are_read_or_named(rng, real_data, tmp_path):
    points = make_cloud(rng, 200)
    sources = [write_ply(tmp_path / "source.ply", points, order).read_bytes() for order in ("<", "")]
    sources = [(".ply", source) for source in sources]
    for data in ("ascii", "binary", "binary_compressed"):
        sources.append((".pcd", write_pcd(tmp_path / "source.pcd", points, data).read_bytes()))
    for name in ("simple.las", "simple.laz", "extrabytes.las"):
        sources.append((name[-4:], (real_data("lidar/laspy") / name).read_bytes()))
    np.savez(tmp_path / "source.npz", points=points)
    np.save(tmp_path / "source.npy", points)
    sources += [(suffix, (tmp_path / f"source{suffix}").read_bytes()) for suffix in (".npz", ".npy")]
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(rounds(400)):
        suffix, content = sources[rng.integers(len(sources))]
        path = tmp_path / f"mutated{suffix}"
        path.write_bytes(damage(content, rng))
        started = time.process_time()
        outcome("clouds", path)
        assert time.process_time() - started < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before < 300 << 10  # KiB


# ---- real clouds ----


@pytest.mark.parametrize("name", ["simple.las", "simple.laz", "autzen_trim.laz", "extrabytes.las", "simple1_4.las", "vegetation_1_3.las", "unregistered_extra_bytes.las", "file_with_both_wkt_and_geotiff_vlrs.las"])  # fmt: skip
def test_real_las_equals_laspy(name, real_data):
    file = real_data("lidar/laspy") / name
    las, yields = laspy.read(str(file)), Yields("clouds", file)
    columns = {}
    for stream, (_, (values,)) in yields.only().items():
        columns |= {column: values[:, i] for i, column in enumerate(yields.facts[stream]["names"])}
    for column in ("x", "y", "z"):
        assert np.array_equal(columns.pop(column), getattr(las, column))
    for dimension in las.point_format.dimension_names:
        if dimension not in ("X", "Y", "Z"):
            expected = np.array(las[dimension])
            names = [dimension] if expected.ndim == 1 else [f"{dimension}[{i}]" for i in range(expected.shape[1])]
            for column, values in zip(names, expected.reshape(len(las), -1).T, strict=True):
                assert np.array_equal(columns.pop(column).astype(values.dtype), values)
    assert not columns


@pytest.mark.parametrize("name", ["source", "target"])
def test_a_real_ply(name, real_data):
    file = real_data("lidar/small_gicp") / f"{name}.ply"
    head, body = file.read_bytes().split(b"end_header\n", 1)
    points = np.frombuffer(body, "<f4").reshape(-1, 4)
    assert f"element vertex {len(points)}".encode() in head
    (values,) = Yields("clouds", file).only()["points"][1]
    assert values.tobytes() == points.tobytes()


def unpack_slowly(packed, size):
    """Decompresses the first `size` bytes in liblzf's format, byte by byte."""
    raw, offset = bytearray(), 0
    while len(raw) < size:
        control, offset = packed[offset], offset + 1
        if control < 32:
            for _ in range(control + 1):
                raw.append(packed[offset])
                offset += 1
            continue
        length = control >> 5
        if length == 7:
            length, offset = length + packed[offset], offset + 1
        back = (control & 31) << 8 | packed[offset]
        offset += 1
        for _ in range(length + 2):
            raw.append(raw[-back - 1])
    return bytes(raw[:size])


@pytest.mark.parametrize(("name", "stream", "kind"), [("pcl_mosd_kinect/learn/learn13.pcd", "points/label", "<u4"), ("pcl_terrain_als/CSite4_orig-utm.pcd", "points", "<f4")])  # fmt: skip
def test_a_real_pcd(name, stream, kind, real_data):
    file = real_data("lidar") / name
    _, body = file.read_bytes().split(b"DATA binary_compressed\n", 1)
    first = np.frombuffer(unpack_slowly(body[8:], 200_000), kind)  # each field's column is contiguous
    streams = Yields("clouds", file).only()
    assert np.array_equal(streams[stream][1][0][: len(first), 0], first)
    if "kinect" in name:
        assert streams["points"][1][0].shape == (307200, 3)
        assert np.isnan(streams["points"][1][0]).any()
        assert streams["points/rgba"][1][0].shape == (307200, 4)


def test_a_laz_without_a_decompressor_names_the_command(real_data, monkeypatch):
    monkeypatch.setitem(sys.modules, "lazrs", None)
    with pytest.raises(robocache.FileError, match=r"simple\.laz: .*pip install 'robocache\[lidar\]'"):
        Yields("clouds", real_data("lidar/laspy") / "simple.laz", rate_hz=1)
