"""MCAP files, ROS 2 and ROS 1 bags, against what the formats' own libraries read."""

import io
import json
import sqlite3
import struct
import tracemalloc
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
import zstandard
from damage import damage
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.reader import make_reader
from mcap.writer import IndexType, Writer
from mcap_protobuf.decoder import DecoderFactory
from PIL import Image
from robocache.ingest import convert, load_plan, merge, plan, registry
from robocache.ingest.messages import passes
from robocache.ingest.messages.json import JsonDecoder
from robocache.ingest.options import make_options
from robocache.ingest.recording import Frames, Notes, Ragged, SourceError, Texts
from ros_files import (
    ROS1,
    START,
    definition,
    header,
    message,
    serialize,
    write_bag1,
    write_channel,
    write_database,
    write_mcap,
    write_metadata,
)
from rosbags.highlevel import AnyReader
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from soak import rounds
from yields import Yields, pixels

import robocache

MS = 1_000_000


@dataclass
class Stream:
    """All parts of a stream of one recording together; rows of ragged ones as a list of arrays, of cameras as pixels."""

    time_ns: list
    rows: list
    names: list | None
    attributes: dict
    part: object


@dataclass
class Readout:
    recordings: dict
    metadata: dict
    notes: Notes
    provenance: dict

    @property
    def only(self):
        ((_, streams),) = self.recordings.items()
        return streams

    @property
    def left_out(self):
        return {omission.what: omission.reason for omission in self.notes.left_out}

    @property
    def skipped(self):
        return {omission.what: omission.reason for omission in self.notes.skipped}


def read(source, format=None, on_error="stop", **options):
    """What the reader yields, without a cache."""
    found = Yields(format, source, on_error, **options)
    recordings = {
        what: {
            name: Stream(
                time_ns.tolist(),
                list(pixels(rows) if isinstance(found.first[name], Frames) else rows),
                found.facts[name].get("names"),
                found.facts[name]["attributes"],
                found.first[name],
            )
            for name, (time_ns, rows) in streams.items()
        }
        for what, streams in found.episodes.items()
    }
    return Readout(recordings, found.metadata, found.notes, found.provenance)


def imu(time_ns, k, **more):
    vector = message("geometry_msgs/msg/Vector3", x=k + 0.25, y=-1.0 * k, z=np.nan)
    return message(
        "sensor_msgs/msg/Imu",
        header=header(time_ns, **more),
        angular_velocity=vector,
        orientation_covariance=np.arange(9) + k,
    )


def imus(n, lag=0, step=5 * MS, **more):
    return "sensor_msgs/msg/Imu", [(START + k * step + lag, imu(START + k * step, k, **more)) for k in range(n)]


def strings(*texts):
    return "std_msgs/msg/String", [
        (START + k, message("std_msgs/msg/String", data=text)) for k, text in enumerate(texts)
    ]


# ---- numbers, texts, sequences ----


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_numbers_of_a_message_are_one_stream_and_each_array_its_own(compression, big, tmp_path):
    path = write_mcap(tmp_path / "a.mcap", {"/imu": imus(50, lag=3 * MS)}, compression, big, chunk_size=4000)
    got = read(path)
    streams = got.only
    assert list(streams) == [
        "/imu",
        *(f"/imu/{name}_covariance" for name in ("orientation", "angular_velocity", "linear_acceleration")),
    ]
    stream = streams["/imu"]
    assert stream.names[:5] == [
        "orientation.x",
        "orientation.y",
        "orientation.z",
        "orientation.w",
        "angular_velocity.x",
    ]
    assert len(stream.names) == 10 and stream.part.values.dtype == np.float64
    assert stream.time_ns == [START + k * 5 * MS for k in range(50)]
    rows = np.array(stream.rows)
    np.testing.assert_array_equal(rows[:, 4:7], [[k + 0.25, -k, np.nan] for k in range(50)])
    assert np.array(streams["/imu/orientation_covariance"].rows)[7].tolist() == list(range(7, 16))
    assert stream.attributes == {"schema": "sensor_msgs/msg/Imu", "clock_source": "header.stamp"}
    assert got.metadata["a.mcap"] == {"name": "a.mcap", "frame_ids": '{"/imu/header.frame_id": "base"}'}
    assert got.provenance["mcap"]["clocks"] == {"/imu": "header.stamp"}


MIXED = (
    "int64 wide\nfloat32 real\nuint8 small\nbool flag\nuint64 wider\nint32[3] fixed\nstring word\nstring[] words\nfloat64[] many\nFoo[] foos\nFoo[2] pair\n"
    + "=" * 80
    + "\nMSG: pkg/Foo\nfloat64 a\nuint8 b\nstring s\nint16[2] c\nfloat32[] d\n"
)


def mixed_store():
    store = get_typestore(Stores.EMPTY)
    store.register(get_types_from_msg(MIXED, "pkg/msg/Mixed"))
    return store


def write_mixed(path, messages, big=False):
    store = mixed_store()
    payloads = [
        (START + k, bytes(store.serialize_cdr(made, "pkg/msg/Mixed", little_endian=not big)))
        for k, made in enumerate(messages)
    ]
    return write_channel(path, "cdr", ("pkg/msg/Mixed", "ros2msg", MIXED.encode()), payloads)


def mixed(k, words=("x", "yy"), many=(1.0, 2.0), foos=2, d=3):
    store = mixed_store()
    foo = [
        store.types["pkg/msg/Foo"](
            a=k + i / 4, b=i, s=f"{k}.{i}", c=np.array([k, i], np.int16), d=np.arange(d, dtype=np.float32) + i
        )
        for i in range(max(foos, 2))
    ]
    return store.types["pkg/msg/Mixed"](
        wide=2**62 + k, real=0.5 * k, small=k % 256, flag=k % 2 == 1, wider=2**63 + k, fixed=np.arange(3, dtype=np.int32) - k,
        word="w" * (k % 4), words=list(words), many=np.array(many, np.float64), foos=foo[:foos], pair=foo[:2],
    )  # fmt: skip


@pytest.mark.parametrize("big", [False, True])
def test_every_kind_of_field(big, tmp_path):
    made = [mixed(k, words=["é"] * (k % 3), foos=k % 4) for k in range(20)]
    streams = read(write_mixed(tmp_path / "a.mcap", made, big)).only
    main = streams["data"]
    assert main.names == ["real", "small", "flag", "pair[0].a", "pair[0].b", "pair[1].a", "pair[1].b"]
    assert main.part.values.dtype == np.float64
    expected = [[m.real, m.small, m.flag, m.pair[0].a, m.pair[0].b, m.pair[1].a, m.pair[1].b] for m in made]
    np.testing.assert_array_equal(main.rows, expected)
    for name, dtype in {"wide": np.int64, "wider": np.uint64}.items():
        assert streams[f"data/{name}"].part.values.dtype == dtype
        assert np.array(streams[f"data/{name}"].rows)[:, 0].tolist() == [getattr(m, name) for m in made]
    np.testing.assert_array_equal(streams["data/fixed"].rows, [m.fixed for m in made])
    assert streams["data/fixed"].part.values.dtype == np.int32
    assert streams["data/word"].rows == [m.word for m in made]
    assert [json.loads(text) for text in streams["data/words"].rows] == [m.words for m in made]
    np.testing.assert_array_equal(streams["data/many"].rows, [[1.0, 2.0]] * 20)  # always as many: no ragged rows
    assert streams["data/foos"].names == ["a", "b"]
    for row, m in zip(streams["data/foos"].rows, made, strict=True):
        np.testing.assert_array_equal(row, np.array([[foo.a, foo.b] for foo in m.foos]).reshape(-1, 2))
    for row, m in zip(streams["data/foos.c"].rows, made, strict=True):
        np.testing.assert_array_equal(row, np.array([foo.c for foo in m.foos]).reshape(-1, 2))
    for row, m in zip(streams["data/foos.d"].rows, made, strict=True):
        np.testing.assert_array_equal(row, np.array([foo.d for foo in m.foos]).reshape(-1, 3))
    assert [json.loads(text) for text in streams["data/foos.s"].rows] == [[foo.s for foo in m.foos] for m in made]


def test_sequences_of_several_lengths_are_ragged_and_in_records_left_out(tmp_path):
    made = [mixed(k, many=np.arange(k % 5), d=k % 3) for k in range(30)]
    got = read(write_mixed(tmp_path / "a.mcap", made))
    assert isinstance(got.only["data/many"].part, Ragged)
    for row, m in zip(got.only["data/many"].rows, made, strict=True):
        np.testing.assert_array_equal(row, m.many)
    assert got.left_out["data/foos.d"] == "sequences of several lengths in records"


@settings(max_examples=25)
@given(
    counts=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 600), st.integers(0, 3)), min_size=1, max_size=12
    ),
    big=st.booleans(),
)
def test_messages_of_any_lengths_are_as_their_library_reads_them(counts, big, tmp_path):
    """Layouts are shared among messages of the same lengths, and large messages of other lengths: none may be mixed up."""
    made = [mixed(k, ["a" * w] * w, np.arange(n) + k, foos, d=1) for k, (w, foos, n, _) in enumerate(counts)]
    streams = read(write_mixed(tmp_path / "a.mcap", made, big)).only
    lengths = {len(m.many) for m in made}
    if lengths != {0}:
        for row, m in zip(streams["data/many"].rows, made, strict=True):
            np.testing.assert_array_equal(row, m.many)
    assert [json.loads(text) for text in streams["data/words"].rows] == [m.words for m in made]
    np.testing.assert_array_equal(
        np.array(streams["data/wider"].rows)[:, 0], np.array([m.wider for m in made], np.uint64)
    )
    np.testing.assert_array_equal(np.array(streams["data"].rows)[:, 3], [m.pair[0].a for m in made])
    if any(m.foos for m in made):
        for row, m in zip(streams["data/foos"].rows, made, strict=True):
            np.testing.assert_array_equal(row[:, 0], [foo.a for foo in m.foos])


def test_what_holds_in_the_first_bag_holds_in_all(tmp_path):
    """Records may be as many as they like, sequences that were always as long may not."""
    (tmp_path / "bags").mkdir()
    write_mixed(tmp_path / "bags/a.mcap", [mixed(k, foos=2) for k in range(3)])
    write_mixed(tmp_path / "bags/b.mcap", [mixed(k, foos=3) for k in range(3)])
    write_mixed(tmp_path / "bags/c.mcap", [mixed(k, many=[1.0]) for k in range(3)])
    with pytest.raises(SourceError, match=r"c.mcap: data: many has 1 to 1 values a message, but 2 in each before it"):
        read(tmp_path / "bags")
    got = read(tmp_path / "bags", on_error="skip")
    assert [len(row) for row in got.recordings["b.mcap"]["data/foos"].rows] == [3, 3, 3]
    assert list(got.skipped) == ["c.mcap: data"]


@pytest.mark.parametrize("big", [False, True])
def test_what_lies_behind_large_bytes_is_aligned_as_they_end(big, tmp_path):
    """Large messages share a layout though their bytes are of other lengths, but only where that moves nothing."""
    text = "string word\nuint8[] data\nfloat64 behind\nint32[] more\nuint16 last\n"
    store = get_typestore(Stores.EMPTY)
    store.register(get_types_from_msg(text, "pkg/msg/Blob"))
    lengths = [5000, 5008, 5001, 5003, 5000, 4000, 9002, 5016, 10, 4097]
    payloads = []
    for k, n in enumerate(lengths):
        blob = store.types["pkg/msg/Blob"](
            word="w", data=np.full(n, k, np.uint8), behind=k / 4, more=np.array([k] * (k % 2), np.int32), last=k
        )
        payloads.append((START + k, bytes(store.serialize_cdr(blob, "pkg/msg/Blob", little_endian=not big))))
    streams = read(write_channel(tmp_path / "a.mcap", "cdr", ("pkg/msg/Blob", "ros2msg", text.encode()), payloads)).only
    assert [(len(row), set(row.tolist())) for row in streams["data/data"].rows] == [
        (n, {k}) for k, n in enumerate(lengths)
    ]
    assert np.array(streams["data"].rows).tolist() == [[k / 4, k] for k in range(len(lengths))]
    assert [row.tolist() for row in streams["data/more"].rows] == [[k] * (k % 2) for k in range(len(lengths))]


def test_a_single_field_has_the_topic_s_name(tmp_path):
    topics = {
        "/say": strings("open", "", "zu"),
        "/count": ("std_msgs/msg/Int64", [(START, message("std_msgs/msg/Int64", data=2**62 + 1))]),
        "/command": (
            "std_msgs/msg/Float64MultiArray",
            [(START + k, message("std_msgs/msg/Float64MultiArray", data=[k, 2.0])) for k in range(3)],
        ),
        "/empty": ("std_msgs/msg/Empty", [(START, message("std_msgs/msg/Empty"))]),
    }
    got = read(write_mcap(tmp_path / "a.mcap", topics))
    assert got.only["/say"].rows == ["open", "", "zu"]
    assert got.only["/count"].rows[0].tolist() == [2**62 + 1]
    np.testing.assert_array_equal(got.only["/command"].rows, [[0, 2], [1, 2], [2, 2]])
    assert "/command: layout" in got.left_out


# ---- joints and transforms ----


def joints(k, names=("a", "b", "c"), velocity=True, n=None):
    values = [10.0 * k + "abcdef".index(name) for name in names[: n or len(names)]]
    name = "sensor_msgs/msg/JointState"
    return message(
        name, header=header(START + k), name=list(names), position=values, velocity=values if velocity else []
    )


def test_joints_are_in_the_order_of_the_first_names(tmp_path):
    orders = [("b", "a", "c"), ("b", "a", "c"), ("c", "a", "b"), ("a", "b", "c")]
    made = [(START + k, joints(k, order, velocity=k != 1)) for k, order in enumerate(orders)]
    got = read(write_mcap(tmp_path / "a.mcap", {"/joint_states": ("sensor_msgs/msg/JointState", made)}))
    position = got.only["/joint_states/position"]
    assert position.names == ["b", "a", "c"]
    assert np.array(position.rows).tolist() == [[10 * k + 1, 10 * k, 10 * k + 2] for k in range(4)]
    assert got.only["/joint_states/velocity"].time_ns == [START, START + 2, START + 3]
    assert "/joint_states/effort" not in got.only
    assert got.left_out["a.mcap: /joint_states/effort"] == "always empty"
    assert got.left_out["a.mcap: /joint_states/velocity"] == "empty in 1 messages"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (joints(1, ("a", "b", "d")), r"message 1: joints \['a', 'b', 'd'\], but \['a', 'b', 'c'\] before it"),
        (joints(1, ("a", "b")), r"message 1: joints \['a', 'b'\]"),
        (joints(1, n=2), "message 1: 2 of position for 3 joints"),
    ],
)
def test_joints_that_change_are_refused(made, words, tmp_path):
    messages = [(START, joints(0)), (START + 1, made), (START + 2, joints(2))]
    path = write_mcap(tmp_path / "a.mcap", {"/joint_states": ("sensor_msgs/msg/JointState", messages)})
    with pytest.raises(SourceError, match=words):
        read(path)
    got = read(path, on_error="skip")
    assert got.only["/joint_states/position"].time_ns == [START, START + 2]
    assert np.array(got.only["/joint_states/position"].rows)[1].tolist() == [20, 21, 22]
    assert list(got.skipped) == ["a.mcap: /joint_states: messages 1"]


def test_transforms_are_a_stream_a_pair_of_frames(tmp_path):
    def transform(time_ns, parent, child, x):
        name = "geometry_msgs/msg/TransformStamped"
        moved = message("geometry_msgs/msg/Transform", translation=message("geometry_msgs/msg/Vector3", x=x))
        return message(name, header=header(time_ns, parent), child_frame_id=child, transform=moved)

    made = [
        (START + k * MS, message("tf2_msgs/msg/TFMessage", transforms=[
            transform(START + k * MS - 7, "map", "base", k), *([transform(START + k * MS - 9, "base", "arm", -k)] if k % 2 else [])
        ]))
        for k in range(6)
    ]  # fmt: skip
    streams = read(write_mcap(tmp_path / "a.mcap", {"/tf": ("tf2_msgs/msg/TFMessage", made)})).only
    assert list(streams) == ["/tf/map/base", "/tf/base/arm"]
    assert streams["/tf/map/base"].names[0] == "translation.x" and streams["/tf/map/base"].names[-1] == "rotation.w"
    assert streams["/tf/map/base"].time_ns == [START + k * MS - 7 for k in range(6)]
    assert streams["/tf/base/arm"].time_ns == [START + k * MS - 9 for k in (1, 3, 5)]
    assert np.array(streams["/tf/base/arm"].rows)[:, 0].tolist() == [-1, -3, -5]
    assert streams["/tf/base/arm"].attributes["child_frame_id"] == "arm"


# ---- clouds ----


def cloud(points, height=1, row_padding=0, big=False, time_ns=START):
    """points: a structured array [n]."""
    order = ">" if big else "<"
    points = points.astype(points.dtype.newbyteorder(order))
    numbers = {"int8": 1, "uint8": 2, "int16": 3, "uint16": 4, "int32": 5, "uint32": 6, "float32": 7, "float64": 8}
    fields = [
        message(
            "sensor_msgs/msg/PointField",
            name=name, offset=points.dtype.fields[name][1], datatype=numbers[points.dtype[name].base.name],
            count=int(np.prod(points.dtype[name].shape)),
        )
        for name in points.dtype.names
    ]  # fmt: skip
    width, step = len(points) // height, points.dtype.itemsize
    rows = points.view(np.uint8).reshape(height, width * step)
    data = np.pad(rows, ((0, 0), (0, row_padding)), constant_values=99).reshape(-1)
    return message(
        "sensor_msgs/msg/PointCloud2",
        header=header(time_ns), height=height, width=width, fields=fields, is_bigendian=big, point_step=step,
        row_step=width * step + row_padding, data=data,
    )  # fmt: skip


PADDED = np.dtype(
    {
        "names": ["z", "y", "x", "ring", "t", "intensity"],
        "formats": ["f4", "f4", "f4", "u2", "f8", "f4"],
        "offsets": [8, 4, 0, 20, 24, 16],
        "itemsize": 32,
    }
)
PLAIN = np.dtype([("x", "f4"), ("y", "f4"), ("z", "f4"), ("intensity", "f4")])
ODD = np.dtype([("x", "f4"), ("y", "f4"), ("z", "f4"), ("tag", "u1"), ("normal", "f4", (3,))])


def random_points(rng, dtype, n):
    raw = np.frombuffer(rng.bytes(n * dtype.itemsize), np.uint8).copy()
    points = raw.view(dtype)
    if n:
        points["x"][0] = np.nan
    return points


@pytest.mark.parametrize("dtype", [PADDED, PLAIN, ODD], ids=["padded", "plain", "odd"])
@pytest.mark.parametrize("big", [False, True])
def test_clouds_of_every_layout(dtype, big, rng, tmp_path):
    counts = [6, 0, 600, 600, 12, 602, 3000]
    all_points = [random_points(rng, dtype, n) for n in counts]
    made = [
        (
            START + k,
            cloud(points, height=2 if k == 4 else 1, row_padding=8 if k == 4 else 0, big=big, time_ns=START + k),
        )
        for k, points in enumerate(all_points)
    ]
    streams = read(write_mcap(tmp_path / "a.mcap", {"/points": ("sensor_msgs/msg/PointCloud2", made)})).only
    names = {
        PADDED: ["x", "y", "z", "intensity"],
        PLAIN: ["x", "y", "z", "intensity"],
        ODD: ["x", "y", "z", "normal[0]", "normal[1]", "normal[2]"],
    }
    assert streams["/points"].names == names[dtype]
    for row, points in zip(streams["/points"].rows, all_points, strict=True):
        columns = [
            points[name.split("[")[0]] if "[" not in name else points["normal"][:, int(name[-2])]
            for name in names[dtype]
        ]
        assert row.dtype == np.float32
        assert row.tobytes() == np.stack(columns, axis=1).tobytes()  # NaN payloads too
    others = {PADDED: ["t", "ring"], PLAIN: [], ODD: ["tag"]}[dtype]
    assert set(streams) == {"/points", *(f"/points/{name}" for name in others)}
    for name in others:
        for row, points in zip(streams[f"/points/{name}"].rows, all_points, strict=True):
            assert row.dtype == points[name].dtype and row.tobytes() == points[name].tobytes()


def test_clouds_that_do_not_hold_what_they_say_are_skipped_by_message(rng, tmp_path):
    made = [(START + k, cloud(random_points(rng, PLAIN, 10), time_ns=START + k)) for k in range(5)]
    made[1][1].width = 11
    made[2][1].fields[0].offset = 14
    made[3][1].fields[0].name = "w"
    path = write_mcap(tmp_path / "a.mcap", {"/points": ("sensor_msgs/msg/PointCloud2", made)})
    with pytest.raises(SourceError, match=r"a.mcap: /points: message 1: expected 1x11 points of 16 bytes"):
        read(path)
    got = read(path, on_error="skip")
    assert got.only["/points"].time_ns == [START, START + 4]
    assert list(got.skipped) == ["a.mcap: /points: messages 1-3"]


# ---- images ----


def image(pixels, encoding, padding=0, big=False, time_ns=START):
    height, width = pixels.shape[:2]
    rows = pixels.astype(pixels.dtype.newbyteorder(">" if big else "<")).reshape(height, -1).view(np.uint8)
    data = np.pad(rows, ((0, 0), (0, padding)), constant_values=7)
    return message(
        "sensor_msgs/msg/Image", header=header(time_ns, "cam"), height=height, width=width, encoding=encoding, is_bigendian=int(big),
        step=data.shape[1], data=data.reshape(-1),
    )  # fmt: skip


@pytest.mark.parametrize("padding", [0, 12])
@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize(
    ("encoding", "dtype", "channels", "kept", "unit"),
    [
        ("rgb8", np.uint8, 3, [0, 1, 2], None),
        ("bgr8", np.uint8, 3, [2, 1, 0], None),
        ("bgra8", np.uint8, 4, [2, 1, 0], None),
        ("mono8", np.uint8, 1, [0], None),
        ("16UC1", np.uint16, 1, [0], 0.001),
        ("32FC1", np.float32, 1, [0], 1.0),
    ],
)
def test_images_keep_their_pixels(encoding, dtype, channels, kept, unit, big, padding, rng, tmp_path):
    pictures = [rng.integers(0, 255, (6, 10, channels)).astype(dtype) for _ in range(5)]
    made = [(START + k, image(picture, encoding, padding, big, START + k)) for k, picture in enumerate(pictures)]
    matrix = [500.0, 0, 5, 0, 501, 3, 0, 0, 1]
    info = message("sensor_msgs/msg/CameraInfo", header=header(START), height=6, width=10, k=matrix)
    topics = {
        "/cam/image_raw": ("sensor_msgs/msg/Image", made),
        "/cam/camera_info": ("sensor_msgs/msg/CameraInfo", [(START, info)]),
    }
    streams = read(write_mcap(tmp_path / "a.mcap", topics), image_codec="raw").only
    stream = streams["/cam/image_raw"]
    np.testing.assert_array_equal(stream.rows, np.array(pictures)[..., kept])
    assert stream.rows[0].dtype == dtype and stream.time_ns == [START + k for k in range(5)]
    assert stream.part.unit_m == unit
    assert stream.part.intrinsics == [matrix[:3], matrix[3:6], matrix[6:]]
    np.testing.assert_array_equal(streams["/cam/camera_info/k"].rows, [matrix])


def test_intrinsics_of_other_frames_are_left_out(rng, tmp_path):
    picture = rng.integers(0, 255, (6, 10, 3)).astype(np.uint8)
    info = message("sensor_msgs/msg/CameraInfo", header=header(START), height=12, width=20, k=np.eye(3).reshape(-1))
    topics = {
        "/cam/image_raw": ("sensor_msgs/msg/Image", [(START, image(picture, "rgb8"))]),
        "/cam/camera_info": ("sensor_msgs/msg/CameraInfo", [(START, info)]),
    }
    got = read(write_mcap(tmp_path / "a.mcap", topics))
    assert got.only["/cam/image_raw"].part.intrinsics is None
    assert got.left_out["/cam/image_raw: intrinsics"] == "those of /cam/camera_info are of 20x12, frames of 10x6"


def test_images_that_are_not_read_are_named(rng, tmp_path):
    picture = rng.integers(0, 255, (6, 10, 1)).astype(np.uint8)
    short = image(picture, "mono8")
    short.height = 7
    topics = {
        "/bayer": ("sensor_msgs/msg/Image", [(START, image(picture, "bayer_rggb8"))]),
        "/short": ("sensor_msgs/msg/Image", [(START, image(picture, "mono8")), (START + 1, short)]),
    }
    path = write_mcap(tmp_path / "a.mcap", topics)
    with pytest.raises(SourceError, match="/short: message 1: expected 10x7 mono8 in rows of 10 bytes, got 60 bytes"):
        read(path)
    got = read(path, on_error="skip")
    assert "bayer_rggb8" in got.left_out["/bayer"]
    assert len(got.only["/short"].rows) == 1 and list(got.skipped) == ["a.mcap: /short: messages 1"]


def compressed(picture, format, kind, prefix=b""):
    file = io.BytesIO()
    Image.fromarray(picture).save(file, kind)
    data = np.frombuffer(prefix + file.getvalue(), np.uint8)
    return message("sensor_msgs/msg/CompressedImage", header=header(START), format=format, data=data)


def test_jpeg_and_png_stay_what_they_are(rng, tmp_path):
    picture = rng.integers(0, 255, (16, 24, 3)).astype(np.uint8)
    depth = rng.integers(0, 65535, (16, 24)).astype(np.uint16)
    name = "sensor_msgs/msg/CompressedImage"
    topics = {
        "/a/compressed": (
            name,
            [(START + k, compressed(picture, "rgb8; jpeg compressed bgr8", "jpeg")) for k in range(2)],
        ),
        "/b/compressed": (name, [(START, compressed(picture, "png", "png"))]),
        "/c/compressedDepth": (name, [(START, compressed(depth, "16UC1; compressedDepth png", "png", bytes(12)))]),
        "/d/compressed": (name, [(START, message(name, header=header(START), format="h264", data=[0, 0, 0, 1, 9, 9]))]),
    }
    got = read(write_mcap(tmp_path / "a.mcap", topics))
    jpeg = np.array(Image.open(io.BytesIO(bytes(topics["/a/compressed"][1][0][1].data))))
    np.testing.assert_array_equal(got.only["/a/compressed"].rows, [jpeg] * 2)
    np.testing.assert_array_equal(got.only["/b/compressed"].rows, [picture])
    np.testing.assert_array_equal(got.only["/c/compressedDepth"].rows[0][..., 0], depth)
    assert got.only["/c/compressedDepth"].part.unit_m == 0.001
    assert "h264" in got.left_out["/d/compressed"]


# ---- clocks ----


def stamped(*pairs):
    return "sensor_msgs/msg/Imu", [(log, imu(stamp, 0)) for log, stamp in pairs]


@pytest.mark.parametrize(
    ("stamps", "clock", "words"),
    [
        ([0, 1, 2], "header.stamp", None),
        ([-9 * 10**9, 0, 9 * 10**9], "header.stamp", None),
        ([0, None, 2], "log_time", "zero in 1 of 3 messages"),
        ([0, 11 * 10**9, 2], "log_time", "more than 10 s from the log time in 1, by 0 to 11 s of 3 messages"),
    ],
)
def test_the_header_s_stamp_is_the_clock_where_it_is_sane(stamps, clock, words, tmp_path):
    logs = [START + k for k in range(3)]
    pairs = [(log, 0 if stamp is None else log + stamp) for log, stamp in zip(logs, stamps, strict=True)]
    path = write_mcap(tmp_path / "a.mcap", {"/imu": stamped(*pairs)})
    got = read(path)
    assert got.only["/imu"].attributes["clock_source"] == clock
    assert got.only["/imu"].time_ns == [stamp if clock == "header.stamp" else log for log, stamp in pairs]
    told = [reason for what, reason in got.left_out.items() if "as the clock" in what]
    assert (told == []) if words is None else words in told[0]
    if clock == "log_time":  # nothing is lost
        assert np.array(got.only["/imu/header.stamp"].rows).tolist() == [stamp for _, stamp in pairs]
    assert read(path, stamp="header").only["/imu"].time_ns == [stamp for _, stamp in pairs]
    assert read(path, stamp="log").only["/imu"].time_ns == logs
    assert read(path, stamp="publish").only["/imu"].time_ns == [log - 5 for log in logs]
    assert read(path, stamp="publish").only["/imu"].attributes["clock_source"] == "publish_time"


def test_a_topic_has_one_clock_in_all_recordings(tmp_path):
    sane, insane = stamped((START, START), (START + 1, START + 1)), stamped((START, 0), (START + 1, START + 1))
    for name, topics in {"a": sane, "b": insane, "c": sane}.items():
        write_mcap(tmp_path / f"bags/{name}.mcap", {"/imu": topics})
    with pytest.raises(SourceError, match=r"b.mcap: /imu: header.stamp is no clock here, .* stamp='log'"):
        read(tmp_path / "bags")
    got = read(tmp_path / "bags", on_error="skip")
    assert [len(streams) for streams in got.recordings.values()] == [4, 0, 4]
    assert list(got.skipped) == ["b.mcap: /imu"]
    (tmp_path / "bags/a.mcap").unlink()
    got = read(tmp_path / "bags")
    assert {streams["/imu"].attributes["clock_source"] for streams in got.recordings.values()} == {"log_time"}
    assert np.array(got.recordings["c.mcap"]["/imu/header.stamp"].rows).tolist() == [START, START + 1]


def test_stamps_and_frames_are_kept_beside_what_is_no_vector(rng, tmp_path):
    picture = rng.integers(0, 255, (6, 10, 1)).astype(np.uint8)
    made = [(START + k, image(picture, "mono8", time_ns=0)) for k in range(2)]
    made[1][1].header.frame_id = "other"
    streams = read(write_mcap(tmp_path / "a.mcap", {"/cam": ("sensor_msgs/msg/Image", made)})).only
    assert np.array(streams["/cam/header.stamp"].rows).tolist() == [0, 0]
    assert streams["/cam/header.frame_id"].rows == ["cam", "other"]
    assert streams["/cam"].time_ns == [START, START + 1]


def test_a_frame_that_changes_is_a_stream_of_text(tmp_path):
    made = [(START + k, imu(START + k, k, frame="ab"[k % 2])) for k in range(4)]
    streams = read(write_mcap(tmp_path / "a.mcap", {"/imu": ("sensor_msgs/msg/Imu", made)})).only
    assert streams["/imu/header.frame_id"].rows == ["a", "b", "a", "b"]


def write_unlike(folder, second):
    """Two bags with /imu, the second as it is given; each with a topic of its own."""
    write_mcap(folder / "a.mcap", {"/imu": imus(4, frame="a"), "/first": strings("x")})
    write_mcap(folder / "b.mcap", {"/imu": second, "/second": strings("y")})
    return folder


def in_shards(source, folder, **options):
    made = plan(source, folder / "plan", shards=2, **options)
    for shard in range(2):
        convert(load_plan(made.folder), shard)
    return merge(made.folder, folder / "merged")


def test_what_differs_between_bags_is_told_of_each_whatever_the_shards(tmp_path):
    source = write_unlike(tmp_path / "bags", imus(4, frame="b"))
    robocache.ingest(source, tmp_path / "one")
    in_shards(source, tmp_path)
    one, two = robocache.open(tmp_path / "one"), robocache.open(tmp_path / "merged")
    frames = [json.loads(column) for column in one.episodes["frame_ids"].to_pylist()]
    assert frames == [{"/imu/header.frame_id": "a"}, {"/imu/header.frame_id": "b"}]
    assert two.episodes.equals(one.episodes)
    assert two.provenance["mcap"] == one.provenance["mcap"]
    assert one.provenance["mcap"]["clocks"].keys() == {"/imu", "/first", "/second"}


@pytest.mark.parametrize(("lag", "clock"), [(0, "header.stamp"), (-60 * 10**9, "log_time")])
def test_shards_of_which_each_chose_another_clock_are_not_merged(lag, clock, tmp_path):
    other = ({"header.stamp", "log_time"} - {clock}).pop()
    write_mcap(tmp_path / "bags/a.mcap", {"/imu": imus(4, lag=lag)})
    write_mcap(tmp_path / "bags/b.mcap", {"/imu": imus(4, lag=-60 * 10**9 - lag)})
    with pytest.raises(robocache.FileError, match=f"clocks '/imu' is {other}, but before it {clock}"):
        in_shards(tmp_path / "bags", tmp_path)
    assert in_shards(tmp_path / "bags", tmp_path / "log", stamp="log").episodes == 2


def test_shards_whose_lengths_differ_are_not_merged(tmp_path):
    def arrays(count):
        name = "std_msgs/msg/Float64MultiArray"
        return name, [(START + k, message(name, data=np.arange(count + 0.0))) for k in range(3)]

    write_mcap(tmp_path / "bags/a.mcap", {"/a": arrays(3)})
    write_mcap(tmp_path / "bags/b.mcap", {"/a": arrays(4)})
    with pytest.raises(
        robocache.FileError, match=r"b.mcap: /a: data has 4 to 4 values a message, but 3 in each before"
    ):
        robocache.ingest(tmp_path / "bags", tmp_path / "cache")
    with pytest.raises(robocache.FileError, match=r"not of one kind with the shards before it: .*/a"):
        in_shards(tmp_path / "bags", tmp_path)


@settings(max_examples=15)
@given(order=st.permutations(range(40)))
def test_messages_come_in_the_order_of_log_time(order, tmp_path):
    """Whatever their order in the file: chunks overlap."""
    topics = {"/a": strings(*map(str, range(20))), "/b": strings(*map(str, range(20)))}
    path = write_mcap(tmp_path / "a.mcap", topics, chunk_size=150, order=order)
    streams = read(path).only
    assert streams["/a"].rows == streams["/b"].rows == list(map(str, range(20)))
    assert streams["/a"].time_ns == [START + k for k in range(20)]


# ---- MCAP files as they are ----


def ragged_options():
    return [
        {},
        {"index_types": IndexType.NONE},
        {"use_chunking": False},
        {"use_statistics": False, "use_summary_offsets": False},
        {"repeat_channels": False, "repeat_schemas": False},
        {"enable_crcs": False},
    ]


@pytest.mark.parametrize("number", range(6))
def test_files_with_and_without_index_summary_and_chunks(number, tmp_path):
    path = write_mcap(tmp_path / "a.mcap", {"/imu": imus(30)}, chunk_size=3000, **ragged_options()[number])
    assert read(path).only["/imu"].time_ns == [START + k * 5 * MS for k in range(30)]


def test_attachments_metadata_and_topics_without_messages_are_named(tmp_path):
    path = tmp_path / "a.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("std_msgs/msg/String", "ros2msg", definition("std_msgs/msg/String").encode())
        channel = writer.register_channel("/say", "cdr", schema)
        writer.register_channel("/silent", "cdr", schema)
        other = writer.register_channel("/other", "flatbuffer", schema)
        writer.add_message(
            channel, START, serialize("std_msgs/msg/String", message("std_msgs/msg/String", data="x")), START
        )
        writer.add_message(other, START, b"", START)
        writer.add_attachment(START, START, "calib.yaml", "text/yaml", b"k: 1")
        writer.add_metadata("robot", {"name": "r2"})
        writer.finish()
    got = read(path)
    assert set(got.only) == {"/say"}
    assert {"a.mcap: attachment 'calib.yaml'", "a.mcap: metadata 'robot'", "a.mcap: /silent", "/other"} <= set(
        got.left_out
    )
    assert "flatbuffer" in got.left_out["/other"]


def test_a_file_that_is_cut_off_gives_what_is_there(tmp_path):
    path = write_mcap(tmp_path / "a.mcap", {"/imu": imus(100)}, chunk_size=3000)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(SourceError, match=r"a.mcap: byte \d+: expected a whole record .* cut off without an end"):
        read(path)
    got = read(path, on_error="skip")
    assert 10 < len(got.only["/imu"].rows) < 60
    (what,) = got.skipped
    assert what.startswith("a.mcap: from byte ")


def test_counts_are_held_against_the_statistics(tmp_path):
    path = write_mcap(tmp_path / "a.mcap", {"/imu": imus(30)}, chunk_size=3000, enable_crcs=False)
    with path.open("rb") as file:
        summary = make_reader(file).get_summary()
    chunk = summary.chunk_indexes[1]
    content = bytearray(path.read_bytes())
    content[chunk.chunk_start_offset] = 0x80  # an opcode of nobody, which is passed over
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"a.mcap: /imu: 2\d messages, but its statistics count 30"):
        read(path)
    assert list(read(path, on_error="skip").skipped) == ["a.mcap: /imu: messages"]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_damaged_chunk_is_named(compression, tmp_path):
    path = write_mcap(tmp_path / "a.mcap", {"/imu": imus(100)}, compression, chunk_size=6000)
    with path.open("rb") as file:
        chunk = make_reader(file).get_summary().chunk_indexes[2]
    content = bytearray(path.read_bytes())
    content[chunk.chunk_start_offset + chunk.chunk_length - 40] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(SourceError, match=rf"a.mcap: byte {chunk.chunk_start_offset}: "):
        read(path)
    got = read(path, on_error="skip")
    assert 60 < len(got.only["/imu"].rows) < 100
    assert sorted(got.skipped) == ["a.mcap: /imu: messages", f"a.mcap: chunk at byte {chunk.chunk_start_offset}"]


def test_zeros_that_a_file_system_left_are_no_records(tmp_path):
    whole = write_mcap(tmp_path / "whole.mcap", {"/imu": imus(40)}, chunk_size=4000).read_bytes()
    path = tmp_path / "a.mcap"
    path.write_bytes(whole[: len(whole) // 2] + bytes(8_000_000))
    got = read(path, on_error="skip")
    ((what, _),) = got.skipped.items()
    assert 0 < len(got.only["/imu"].rows) < 40 and int(what.split()[-1]) < len(whole)
    packed = zstandard.compress(bytes(100_000_000))
    body = struct.pack("<QQQII4sQ", START, START, 100_000_000, 0, 4, b"zstd", len(packed)) + packed
    path.write_bytes(whole[:8] + struct.pack("<BQ", 6, len(body)) + body + whole[-8:])
    with pytest.raises(SourceError, match="a record of kind 0, 0 bytes at 0"):
        read(path)
    with path.open("wb") as file:  # of which nothing takes room on the disk
        file.write(whole[:8] + struct.pack("<BQ", 6, 1 << 33))
        file.truncate(17 + (1 << 33))
    with pytest.raises(SourceError, match=f"byte 8: a chunk of {1 << 33} bytes"):
        read(path)
    (tmp_path / "a.bag").write_bytes(b"#ROSBAG V2.0\n" + bytes(8_000_000))
    with pytest.raises(SourceError, match="says its kind in op"):
        read(tmp_path / "a.bag")


def test_two_types_on_one_topic_are_refused(tmp_path):
    path = tmp_path / "a.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        for name, value in (("std_msgs/msg/String", "x"), ("std_msgs/msg/Int64", 3)):
            schema = writer.register_schema(name, "ros2msg", definition(name).encode())
            channel = writer.register_channel("/a", "cdr", schema)
            writer.add_message(channel, START, serialize(name, message(name, data=value)), START)
        writer.finish()
    with pytest.raises(
        SourceError, match="/a: messages of std_msgs/msg/Int64, but others of std_msgs/msg/String on the same"
    ):
        read(path)
    got = read(path, on_error="skip")
    assert got.only["/a"].rows == ["x"] and list(got.skipped) == ["a.mcap: /a: messages of std_msgs/msg/Int64"]


def test_streams_of_one_name_are_refused(tmp_path):
    topics = {"/joints": ("sensor_msgs/msg/JointState", [(START, joints(0))]), "/joints/position": strings("x")}
    path = write_mcap(tmp_path / "a.mcap", topics)
    with pytest.raises(SourceError, match="its stream /joints/position has the name of one of topic /joints"):
        read(path)
    got = read(path, on_error="skip")
    assert len(got.only["/joints/position"].rows[0]) == 3 and list(got.skipped) == ["a.mcap: /joints/position"]


# ---- JSON and protobuf ----


def write_json(path, *objects):
    schema = ("thing", "jsonschema", b"{}")
    payloads = [
        (START + k, thing if isinstance(thing, bytes) else json.dumps(thing).encode())
        for k, thing in enumerate(objects)
    ]
    return write_channel(path, "json", schema, payloads)


def test_json_messages(tmp_path):
    stamp = {"sec": START // 10**9, "nsec": START % 10**9}
    got = read(
        write_json(
            tmp_path / "a.mcap",
            {
                "header": {"stamp": stamp, "frame_id": "f"},
                "x": 1,
                "y": {"z": 1.5},
                "on": True,
                "s": "a",
                "v": [1, 2],
                "big": 2**60,
                "odd": [[1]],
            },
            {
                "header": {"stamp": stamp, "frame_id": "f"},
                "x": 2,
                "y": {"z": 2},
                "on": False,
                "s": "b",
                "v": [3, 4.5],
                "big": 2**60 + 1,
                "odd": 1,
            },
        )
    )
    streams = got.only
    assert streams["data"].names == ["y.z", "on"] and streams["data"].time_ns == [START] * 2
    np.testing.assert_array_equal(streams["data"].rows, [[1.5, 1], [2, 0]])
    assert np.array(streams["data/big"].rows).tolist() == [[2**60], [2**60 + 1]]
    assert np.array(streams["data/x"].rows).tolist() == [[1], [2]]
    assert streams["data/s"].rows == ["a", "b"]
    np.testing.assert_array_equal(streams["data/v"].rows, [[1, 2], [3, 4.5]])
    assert "data: odd" in got.left_out


def test_numbers_that_json_lacks_are_nan(tmp_path):
    streams = read(write_json(tmp_path / "a.mcap", {"x": 1.5, "k": 7}, {"k": None}, {"x": 2.5, "new": 3})).only
    assert streams["data"].names == ["x", "k", "new"]
    np.testing.assert_array_equal(streams["data"].rows, [[1.5, 7, np.nan], [np.nan] * 3, [2.5, np.nan, 3]])


def test_topics_in_json_are_each_of_a_type_of_its_own(tmp_path):
    path = tmp_path / "a.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("", "jsonschema", b"")
        for topic, thing in (("a", {"x": 1.5}), ("b", {"y": 2}), ("a", {"x": 2.5})):
            channel = writer.register_channel(topic, "json", schema)
            writer.add_message(channel, START, json.dumps(thing).encode(), START)
        writer.finish()
    streams = read(path).only
    assert (streams["a"].names, streams["b"].names) == (["x"], ["y"])
    assert np.array(streams["a"].rows).tolist() == [[1.5], [2.5]] and streams["b"].rows[0].dtype == np.int64


def test_ros_1_and_idl_in_mcap(tmp_path):
    made = message("geometry_msgs/msg/Vector3", ROS1, x=1.5, z=-2.0)
    raw = bytes(ROS1.serialize_ros1(made, "geometry_msgs/msg/Vector3"))
    schema = ("geometry_msgs/Vector3", "ros1msg", definition("geometry_msgs/msg/Vector3", ros=1).encode())
    assert np.array(
        read(write_channel(tmp_path / "a.mcap", "ros1", schema, [(START, raw)])).only["data"].rows
    ).tolist() == [[1.5, 0, -2]]
    line = "=" * 80
    text = f"Foo[] foos\nuint16 last\n{line}\nMSG: p/Foo\nuint8 b\nfloat64 a\n"
    raw = struct.pack("<I", 3) + b"".join(struct.pack("<Bd", k, k / 2) for k in range(3)) + struct.pack("<H", 9)
    streams = read(
        write_channel(tmp_path / "c.mcap", "ros1", ("p/Bar", "ros1msg", text.encode()), [(START, raw)] * 2)
    ).only
    assert [row.tolist() for row in streams["data/foos"].rows] == [[[0, 0], [1, 0.5], [2, 1]]] * 2
    assert np.array(streams["data"].rows).tolist() == [[9], [9]]
    text = (
        f"{line}\nIDL: p/msg/Pair\nmodule p {{ module msg {{ struct Pair {{ p::msg::One one; sequence<long> more; string s; }}; }}; }};\n"
        f"{line}\nIDL: p/msg/One\nmodule p {{ module msg {{ struct One {{ float x; double y; }}; }}; }};\n"
    )
    raw = b"\0\1\0\0" + struct.pack("<f4xdIiiI3s", 1.5, 2.5, 2, 7, 8, 3, b"hi\0")
    streams = read(
        write_channel(tmp_path / "b.mcap", "cdr", ("p/msg/Pair", "ros2idl", text.encode()), [(START, raw)])
    ).only
    assert streams["data"].names == ["one.x", "one.y"] and streams["data"].rows[0].tolist() == [1.5, 2.5]
    assert streams["data/more"].rows[0].tolist() == [7, 8] and streams["data/s"].rows == ["hi"]


def test_a_whole_number_that_comes_late_is_nan_before():
    decoder = JsonDecoder()
    batch, bad = decoder.decode([memoryview(b"{}"), memoryview(b'{"new": 3}')])
    assert not bad
    np.testing.assert_array_equal(batch.numbers(decoder.leaves[0]), [np.nan, 3])


def test_what_is_no_json_is_skipped_by_message(tmp_path):
    path = write_json(tmp_path / "a.mcap", {"x": 1.5}, b"{", b"[1]", b"\xff", b"[" * 100_000, {"x": 2.5})
    with pytest.raises(SourceError, match="data: message 1: thing: no JSON"):
        read(path)
    got = read(path, on_error="skip")
    assert np.array(got.only["data"].rows).tolist() == [[1.5], [2.5]]
    assert list(got.skipped) == ["a.mcap: data: messages 1-4"]


def protobuf_class():
    """message Thing { Timestamp timestamp; double x; repeated float v; Inner inner; repeated Inner more; bytes blob; string s; Kind kind; }"""
    file = descriptor_pb2.FileDescriptorProto(
        name="thing.proto", package="p", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="A", number=0)
    kind.value.add(name="B", number=2)
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="n", number=1, type=3, label=1)
    inner.field.add(name="again", number=2, type=11, label=1, type_name=".p.Inner")
    thing = file.message_type.add(name="Thing")
    stamp = ".google.protobuf.Timestamp"
    for number, (name, type, label, kind) in enumerate(
        [("timestamp", 11, 1, stamp), ("x", 1, 1, ""), ("v", 2, 3, ""), ("inner", 11, 1, ".p.Inner"), ("more", 11, 3, ".p.Inner"),
         ("blob", 12, 1, ""), ("s", 9, 1, ""), ("kind", 14, 1, ".p.Kind")], 1
    ):  # fmt: skip
        thing.field.add(name=name, number=number, type=type, label=label, type_name=kind or None)
    base = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(base)
    pool = DescriptorPool()
    pool.Add(base)
    pool.Add(file)
    files = descriptor_pb2.FileDescriptorSet(file=[file, base])  # in no order
    return GetMessageClass(pool.FindMessageTypeByName("p.Thing")), files.SerializeToString()


def test_protobuf_messages(tmp_path):
    kind, descriptors = protobuf_class()
    made = []
    for k in range(4):
        thing = kind(x=k / 2, v=[k, 0.5], blob=b"\0" * k, s=f"s{k}", kind=2 * (k % 2))
        thing.timestamp.FromNanoseconds(START + k * MS)
        thing.inner.n = 2**60 + k
        for i in range(k):
            thing.more.add(n=i)
        made.append(thing)
    payloads = [(START + k * MS + 1, thing.SerializeToString()) for k, thing in enumerate(made)]
    got = read(write_channel(tmp_path / "a.mcap", "protobuf", ("p.Thing", "protobuf", descriptors), payloads))
    streams = got.only
    assert streams["data"].names == ["x", "kind"] and streams["data"].time_ns == [START + k * MS for k in range(4)]
    np.testing.assert_array_equal(streams["data"].rows, [[k / 2, 2 * (k % 2)] for k in range(4)])
    np.testing.assert_array_equal(streams["data/v"].rows, [[k, 0.5] for k in range(4)])
    assert np.array(streams["data/inner.n"].rows).tolist() == [[2**60 + k] for k in range(4)]
    assert [row.tolist() for row in streams["data/more"].rows] == [[[i] for i in range(k)] for k in range(4)]
    assert [row.tobytes() for row in streams["data/blob"].rows] == [b"\0" * k for k in range(4)]
    assert streams["data/s"].rows == ["s0", "s1", "s2", "s3"]
    assert "data: inner.again" in got.left_out


def test_protobuf_without_its_descriptors_is_left_out(tmp_path):
    path = write_channel(tmp_path / "a.mcap", "protobuf", ("p.Thing", "protobuf", b"\xff\xff"), [(START, b"")])
    got = read(path)
    assert not got.only and "descriptors cannot be read" in got.left_out["data"]


# ---- bags ----


def test_a_folder_of_bags_is_a_recording_each(tmp_path):
    """A split bag, one of MCAP, a bare database and a bare MCAP file."""
    name, made = imus(30)
    for part in range(3):
        write_database(tmp_path / f"bags/split/part_{part}.db3", {"/imu": (name, made[part * 10 : part * 10 + 10])})
    write_metadata(
        tmp_path / "bags/split", [f"split/part_{part}.db3" for part in range(3)], {"/imu": 30}
    )  # as old versions did
    write_mcap(tmp_path / "bags/whole/whole_0.mcap", {"/imu": (name, made[:4])})
    write_metadata(tmp_path / "bags/whole", ["whole_0.mcap"], {"/imu": 4})
    write_database(tmp_path / "bags/bare.db3", {"/imu": (name, made[:5])}, definitions=False)
    write_mcap(tmp_path / "bags/x.mcap", {"/imu": (name, made[:6])})
    (tmp_path / "bags/bare.db3-shm").write_bytes(bytes(32768))
    (tmp_path / "bags/bare.db3-wal").touch()
    got = read(tmp_path / "bags")
    assert {what: len(streams["/imu"].rows) for what, streams in got.recordings.items()} == {
        "bare.db3": 5,
        "split": 30,
        "whole": 4,
        "x.mcap": 6,
    }
    assert got.recordings["split"]["/imu"].time_ns == [START + k * 5 * MS for k in range(30)]
    assert sorted(path.name for path in (tmp_path / "bags").iterdir()) == [
        "bare.db3",
        "bare.db3-shm",
        "bare.db3-wal",
        "split",
        "whole",
        "x.mcap",
    ]


def test_messages_that_metadata_count_and_are_not_there_are_named(tmp_path):
    write_database(tmp_path / "bag/a.db3", {"/imu": imus(5)})
    write_metadata(tmp_path / "bag", ["a.db3", "b.db3"], {"/imu": 9})
    write_database(tmp_path / "bag/c.db3", {"/imu": imus(5)})
    with pytest.raises(SourceError, match=r"metadata.yaml: b.db3 is not there"):
        read(tmp_path / "bag")
    got = read(tmp_path / "bag", on_error="skip")
    assert len(got.only["/imu"].rows) == 5
    assert set(got.skipped) == {"bag: b.db3", "bag: /imu: messages"}
    assert "5 messages, but metadata.yaml counts 9" in got.skipped["bag: /imu: messages"]
    assert got.left_out["bag: c.db3"] == "metadata.yaml does not name it"


@pytest.mark.parametrize("name", ["/etc/passwd", "../other.db3", "a/../../b.db3"])
def test_metadata_name_no_file_elsewhere(name, tmp_path):
    write_database(tmp_path / "other.db3", {"/imu": imus(5)})
    (tmp_path / "bag").mkdir()
    write_metadata(tmp_path / "bag", [name], {})
    with pytest.raises(SourceError, match="expected files beside it"):
        read(tmp_path / "bag", on_error="stop")


def test_rows_in_a_log_that_was_never_merged_are_told(tmp_path):
    path = write_database(tmp_path / "a.db3", {"/imu": imus(5)})
    (tmp_path / "a.db3-wal").write_bytes(b"x" * 100)
    with pytest.raises(SourceError, match=r"a.db3-wal: 100 bytes of rows .*wal_checkpoint"):
        read(path)
    assert len(read(path, on_error="skip").only["/imu"].rows) == 5


def test_messages_that_are_compressed_one_by_one(tmp_path):
    path = write_database(tmp_path / "bag/a.db3", {"/imu": imus(5)})
    with sqlite3.connect(path) as database:
        for number, data in database.execute("SELECT id, data FROM messages").fetchall():
            database.execute("UPDATE messages SET data = ? WHERE id = ?", (zstandard.compress(data), number))
    database.close()
    write_metadata(tmp_path / "bag", ["a.db3"], {"/imu": 5}, mode="MESSAGE")
    assert read(tmp_path / "bag").only["/imu"].time_ns == [START + k * 5 * MS for k in range(5)]
    write_metadata(tmp_path / "bag", ["a.db3"], {"/imu": 5}, mode="FILE")
    with pytest.raises(SourceError, match="compressed as a whole; `zstd -d`"):
        read(tmp_path / "bag")


def test_types_that_the_bag_does_not_describe_come_from_a_folder(tmp_path):
    path = write_database(tmp_path / "bag/a.db3", {"/imu": imus(5)}, definitions=False)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE topics SET type = 'mine/msg/Imu2'")
    database.close()
    got = read(path)
    assert not got.only and "no definition of mine/msg/Imu2" in got.left_out["/imu"]
    (tmp_path / "mine/msg").mkdir(parents=True)
    (tmp_path / "mine/msg/Imu2.msg").write_text(definition("sensor_msgs/msg/Imu").split("=====")[0])
    with pytest.raises(robocache.ArgumentError, match="definitions: expected a folder"):
        read(path, definitions=str(tmp_path / "none"))
    got = read(path, definitions=str(tmp_path))
    assert len(got.only["/imu"].rows) == 5
    assert got.only["/imu"].attributes["schema"] == "mine/msg/Imu2"


@pytest.mark.parametrize("compression", [None, "bz2", "lz4"])
def test_bags_of_ros_1(compression, tmp_path):
    def imu1(k):
        vector = message("geometry_msgs/msg/Vector3", ROS1, x=k + 0.25)
        head = message("std_msgs/msg/Header", ROS1, seq=k, stamp=header(START + k, store=ROS1).stamp, frame_id="base")
        return message("sensor_msgs/msg/Imu", ROS1, header=head, angular_velocity=vector)

    def tf(k):
        return message("std_msgs/msg/String", ROS1, data="x" * k)

    topics = {
        "/imu": ("sensor_msgs/msg/Imu", [(START + k + 7, imu1(k)) for k in range(30)]),
        "/say": ("std_msgs/msg/String", [(START + k, tf(k)) for k in range(30)]),
    }
    path = write_bag1(tmp_path / "a.bag", topics, compression)
    got = read(path)
    assert got.only["/imu"].time_ns == [START + k for k in range(30)]
    assert np.array(got.only["/imu"].rows)[:, 4].tolist() == [k + 0.25 for k in range(30)]
    assert got.only["/say"].rows == ["x" * k for k in range(30)]
    content = path.read_bytes()
    (tmp_path / "cut.bag").write_bytes(content[:-60])
    with pytest.raises(SourceError, match=r"cut.bag: byte \d+: "):
        read(tmp_path / "cut.bag")
    got = read(tmp_path / "cut.bag", on_error="skip")
    assert len(got.only["/say"].rows) == 30 and got.skipped


# ---- through the cache ----


def test_a_cache_holds_it_all(rng, tmp_path):
    points = [random_points(rng, PLAIN, n) for n in (5, 0, 9)]
    topics = {
        "/imu": imus(20),
        "/say": strings("a", "b"),
        "/points": (
            "sensor_msgs/msg/PointCloud2",
            [(START + k, cloud(some, time_ns=START + k)) for k, some in enumerate(points)],
        ),
        "/cam": (
            "sensor_msgs/msg/Image",
            [(START + k, image(np.full((8, 8, 3), k, np.uint8), "bgr8", time_ns=START + k)) for k in range(3)],
        ),
    }
    for name in ("a", "b"):
        write_mcap(tmp_path / f"bags/{name}.mcap", topics)
    report = robocache.ingest(tmp_path / "bags", tmp_path / "cache")
    assert (report.format, report.episodes) == ("mcap", 2)
    assert (
        report.rows["/imu"] == 40
        and report.rows["/points"] == 6
        and report.rows["/say"] == 4
        and report.rows["/cam"] == 6
    )
    dataset = robocache.open(tmp_path / "cache")
    dataset.verify()
    assert dataset.streams["/imu"].attributes["clock_source"] == "header.stamp"
    assert dataset.episodes["name"].to_pylist() == ["a.mcap", "b.mcap"]


# ---- memory ----


def test_a_file_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "_AT_ONCE", 1 << 20)
    monkeypatch.setattr(passes, "_SMALL", 1 << 20)
    picture = np.zeros((200, 200, 3), np.uint8)
    made = [(START + k, image(picture, "rgb8", time_ns=START + k)) for k in range(200)]
    path = write_mcap(tmp_path / "a.mcap", {"/cam": ("sensor_msgs/msg/Image", made)}, chunk_size=1 << 20)
    del made
    entry = registry.FORMATS["mcap"]
    notes = Notes("mcap", {}, "stop")
    reader = entry.load()
    rows = 0
    tracemalloc.start()
    for recording in reader.read(path, make_options(entry.options, "mcap", {"image_codec": "raw"}), notes):
        for _, samples in recording.streams:
            rows += sum(len(time_ns) for time_ns, _ in samples.chunks)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows == 200
    assert peak < 12 << 20 < path.stat().st_size


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_small_file_that_claims_to_be_large_takes_no_memory(compression, tmp_path):
    path = write_mcap(tmp_path / "a.mcap", {"/say": strings("x")}, compression)
    with path.open("rb") as file:
        chunk = make_reader(file).get_summary().chunk_indexes[0]
    content = path.read_bytes()
    at = chunk.chunk_start_offset + 9 + 16
    for size in (1 << 62, 1 << 40, 200 << 20):
        path.write_bytes(content[:at] + struct.pack("<Q", size) + content[at + 8 :])
        tracemalloc.start()
        with pytest.raises(SourceError, match=r"chunk|expected"):
            read(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 250 << 20


# ---- faults ----


def check_damaged(path, content, format, rng, times):
    """Nothing but errors that name the file, or a result."""
    for _ in range(times):
        path.write_bytes(damage(content, rng))
        for on_error in ("stop", "skip"):
            try:
                read(path, format, on_error=on_error, image_codec="raw")
            except robocache.Error as error:
                assert str(path.parent) in str(error), error


def test_damaged_files_of_every_format(rng, tmp_path):
    topics = {
        "/imu": imus(20),
        "/joints": ("sensor_msgs/msg/JointState", [(START + k, joints(k)) for k in range(5)]),
        "/points": ("sensor_msgs/msg/PointCloud2", [(START, cloud(random_points(rng, PADDED, 30)))]),
        "/cam": ("sensor_msgs/msg/Image", [(START, image(np.zeros((8, 8, 3), np.uint8), "bgr8"))]),
    }
    files = [
        (write_mcap(tmp_path / "a.mcap", topics, chunk_size=2000, enable_crcs=False), "mcap"),
        (write_mcap(tmp_path / "b.mcap", topics, use_chunking=False), "mcap"),
        (write_mcap(tmp_path / "c.mcap", topics, "zstd"), "mcap"),
        (write_database(tmp_path / "d.db3", topics), "rosbag2"),
        (
            write_bag1(
                tmp_path / "e.bag",
                {"/say": ("std_msgs/msg/String", [(START, message("std_msgs/msg/String", ROS1, data="x"))])},
            ),
            "rosbag1",
        ),
    ]
    for path, format in files:
        check_damaged(path, path.read_bytes(), format, rng, 10)


@pytest.mark.soak
def test_damaged_real_files(real_data, rng, tmp_path):
    for name, format in {
        "mcap/keelson/test.mcap": "mcap",
        "mcap/depthai_recording/recording.mcap": "mcap",
        "rosbag2/ros2_wbag_split_mcap/wbag_0.mcap": "mcap",
        "rosbag2/plotjuggler/rosbag2_test_0.db3": "rosbag2",
        "rosbag1/robot_localization/test2.bag": "rosbag1",
    }.items():
        source = Path(real_data(name))
        check_damaged(tmp_path / source.name, source.read_bytes(), format, rng, rounds(1))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.mcap", b"", "expected MCAP"),
        ("a.mcap", b"\x89MCAP0\n\x01", "lack the CR"),
        ("a.mcap", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        ("a.db3", b"", "SQLite"),
        ("a.db3", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        ("a.bag", b"#ROSBAG V1.2\n", "another version"),
        ("a.bag", b"", "expected a bag"),
    ],
)
def test_files_that_are_none(name, content, words, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=words) as caught:
        read(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))


# ---- real data, against the formats' own libraries ----


def get(made, path):
    """A field of a message of rosbags, by its path."""
    for part in path.replace("]", "").replace("[", ".").split("."):
        made = made[int(part)] if part.isdecimal() else getattr(made, part)
    return made


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("rosbag2/plotjuggler", "rosbag2"),
        ("rosbag2/ros2_wbag_split_sqlite", "rosbag2"),
        ("rosbag2/ros2_wbag_split_mcap", "rosbag2"),
        ("rosbag1/robot_localization/test1.bag", "rosbag1"),
        ("rosbag1/robot_localization/test2.bag", "rosbag1"),
    ],
)
def test_real_bags_are_as_rosbags_reads_them(name, format, real_data):
    source = Path(real_data(name))
    got = read(source, format).only
    store = get_typestore(Stores.ROS2_HUMBLE if format == "rosbag2" else Stores.ROS1_NOETIC)
    with AnyReader([source], default_typestore=store) as reader:
        topics = {}
        for connection, time_ns, raw in reader.messages():
            topics.setdefault(connection.topic, []).append((time_ns, reader.deserialize(raw, connection.msgtype)))
    checked = set()
    for topic, messages in topics.items():
        for stream_name, stream in got.items():
            if stream_name != topic and not stream_name.startswith(f"{topic}/"):
                continue
            path = stream_name[len(topic) + 1 :]
            if stream.attributes["clock_source"] == "header.stamp":
                stamps = [made.header.stamp.sec * 10**9 + made.header.stamp.nanosec for _, made in messages]
            else:
                stamps = [time_ns for time_ns, _ in messages]
            assert stream.time_ns == stamps, stream_name
            if stream.names:
                expected = [[get(made, part) for part in stream.names] for _, made in messages]
            else:
                expected = [get(made, path or "data") for _, made in messages]
            if isinstance(stream.part, Texts):
                assert stream.rows == expected
            else:
                np.testing.assert_array_equal(stream.rows, expected)
            checked.add(stream_name)
    assert checked == set(got)


def test_a_real_protobuf_file_is_as_its_library_reads_it(real_data):
    source = Path(real_data("mcap/keelson")) / "test.mcap"
    streams = read(source).only
    with source.open("rb") as file:
        expected = {}
        backward, last = 0, 0
        for _, channel, raw, decoded in make_reader(file, decoder_factories=[DecoderFactory()]).iter_decoded_messages():
            expected.setdefault(channel.topic, []).append((raw.log_time, decoded))
            backward += raw.log_time < last
            last = raw.log_time
    assert backward == 0 and len(expected) == len(streams) == 649
    for topic, messages in expected.items():
        assert streams[topic].attributes["clock_source"] == "timestamp"
        assert streams[topic].time_ns == [made.timestamp.seconds * 10**9 + made.timestamp.nanos for _, made in messages]
        assert [row.tobytes() for row in streams[topic].rows] == [made.value for _, made in messages]
    assert read(source, stamp="log").only[topic].time_ns == [time_ns for time_ns, _ in messages]


def test_real_frames_of_realsense(real_data):
    source = Path(real_data("rosbag1/realsense")) / "test_rs.bag"
    got = read(source)
    depth, colour = (got.only[f"/device_0/sensor_{name}/image/data"] for name in ("0/Depth_0", "1/Color_0"))
    assert (len(depth.rows), depth.rows[0].shape, depth.rows[0].dtype) == (6, (480, 640, 1), np.uint16)
    assert (len(colour.rows), colour.rows[0].shape) == (5, (480, 640, 3))
    assert depth.part.unit_m == 0.001 and depth.part.intrinsics[0][0] > 300
    with AnyReader([source]) as reader:
        raws = [
            bytes(raw) for connection, _, raw in reader.messages() if connection.topic.endswith("Depth_0/image/data")
        ]
        count = reader.message_count
    for row, raw in zip(depth.rows, raws, strict=True):  # rosbags refuses them: 4 bytes more than their type has
        assert row.tobytes() == raw[-4 - 640 * 480 * 2 : -4]
    streams = got.only
    topics = {name.split("/image/data")[0] for name in streams}
    assert count == 375 and len(topics) > 90
    assert any("bytes behind its end" in what for what in got.left_out)


def test_a_real_json_file_beside_a_video_of_other_length(real_data):
    got = read(Path(real_data("mcap/depthai_recording")))
    assert len(got.only["video"].rows) == 124
    assert (
        got.left_out["recording.mcap: recording.mp4"]
        == "a video beside recording.mcap, not read; it has 103 frames, the topics have messages: video 124"
    )
    with (Path(real_data("mcap/depthai_recording")) / "recording.mcap").open("rb") as file:
        decoded = [(raw.log_time, json.loads(raw.data)) for _, _, raw in make_reader(file).iter_messages()]
    stream = got.only["video"]
    assert stream.time_ns == [time_ns for time_ns, _ in decoded]
    expected = [
        [reduce(lambda tree, key: tree[key], name.split("."), made) for name in stream.names] for _, made in decoded
    ]
    assert np.array(stream.rows).tolist() == expected


def test_a_real_file_of_which_git_took_the_carriage_returns(real_data):
    source = Path(real_data("mcap/keelson")) / "2024-05-15.mcap"
    with pytest.raises(SourceError, match=r"lack the CR .* line ends were converted"):
        read(source)
    assert read(Path(real_data("mcap/keelson")) / "test_303bytes.mcap").only == {}


def test_a_real_bag_of_a_type_of_its_own(real_data, tmp_path):
    """The robot's own log beside it has the same numbers, of six digits."""
    folder = Path(real_data("rosbag2/unitree_go2")) / "test_6"
    (tmp_path / "vicon_receiver/msg").mkdir(parents=True)
    numbers = "".join(f"float32 {name}\n" for name in ("x_trans", "y_trans", "z_trans", "x_rot", "y_rot", "z_rot", "w"))
    text = f"std_msgs/Header header\n{numbers}string segment_name\nstring subject_name\nint32 frame_number\nstring translation_type\n"
    (tmp_path / "vicon_receiver/msg/Position.msg").write_text(text)
    with pytest.raises(robocache.FileError, match=r"rosbag2 .* and csv"):
        registry.find_format(folder)
    streams = read(folder / "vicon_bag", definitions=str(tmp_path)).only
    topic = "/vicon/UnitreeGo2/UnitreeGo2"
    stream = streams[topic]
    assert stream.names == ["x_trans", "y_trans", "z_trans", "x_rot", "y_rot", "z_rot", "w", "frame_number"]
    logged = np.loadtxt(folder / "vicon_history.csv", delimiter=",", usecols=range(1, 8))[:100]
    rows = np.array(stream.rows)
    first = int(np.argmin(np.abs(rows[:50, :3] - logged[0, :3]).sum(axis=1)))
    np.testing.assert_allclose(rows[first : first + 100, :3], logged[:, :3], rtol=2e-5)
    assert streams[f"{topic}/translation_type"].rows == ["Global"] * 7396
