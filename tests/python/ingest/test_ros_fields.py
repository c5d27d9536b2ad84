"""The fields of messages: numbers, texts, sequences, joints, transforms; compared with the formats' own libraries."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.writer import Writer
from robocache.ingest.recording import Ragged, SourceError
from ros_files import (
    HEADER,
    MS,
    ROS1,
    ROS2,
    START,
    CustomType,
    definition,
    header,
    imus,
    joints,
    message,
    read,
    serialize,
    strings,
    write_bag1,
    write_channel,
    write_json,
    write_mcap,
)
from rosbags.rosbag1 import Writer as Bag1
from rosbags.typesys import get_types_from_msg

import robocache

# ---- numbers, texts, sequences ----


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_scalars_are_one_stream_and_each_array_its_own(compression, big_endian, tmp_path):
    path = write_mcap(tmp_path / "a.mcap", {"/imu": imus(50, lag=3 * MS)}, compression, big_endian, chunk_size=4000)
    readout = read(path)
    streams = readout.only
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
    expected = {"schema": "sensor_msgs/msg/Imu", "clock_source": "header.stamp"}
    assert stream.attributes == expected | {"methods": [[0, 4, "slerp"]]}
    assert streams["/imu/orientation_covariance"].attributes == expected
    assert readout.metadata["a.mcap"] == {"name": "a.mcap", "frame_ids": '{"/imu/header.frame_id": "base"}'}
    assert readout.provenance["mcap"]["clocks"] == {"/imu": "header.stamp"}


MIXED = CustomType(
    "pkg/msg/Mixed",
    "int64 wide\nfloat32 real\nuint8 small\nbool flag\nuint64 wider\nint32[3] fixed\nstring word\nstring[] words\nfloat64[] many\nFoo[] foos\nFoo[2] pair\n",
    {"pkg/Foo": "float64 a\nuint8 b\nstring s\nint16[2] c\nfloat32[] d\n"},
)


def make_mixed(k, words=("x", "yy"), many=(1.0, 2.0), foos=2, d=3):
    foo = [
        MIXED.Foo(a=k + i / 4, b=i, s=f"{k}.{i}", c=np.array([k, i], np.int16), d=np.arange(d, dtype=np.float32) + i)
        for i in range(max(foos, 2))
    ]
    return MIXED.Mixed(
        wide=2**62 + k, real=0.5 * k, small=k % 256, flag=k % 2 == 1, wider=2**63 + k, fixed=np.arange(3, dtype=np.int32) - k,
        word="w" * (k // 2), words=list(words), many=np.array(many, np.float64), foos=foo[:foos], pair=foo[:2],
    )  # fmt: skip


@pytest.mark.parametrize("big_endian", [False, True])
def test_every_kind_of_field(big_endian, tmp_path):
    messages = [make_mixed(k, words=["é"] * (k % 3), foos=k % 4) for k in range(20)]
    streams = read(MIXED.write(tmp_path / "a.mcap", messages, big_endian=big_endian)).only
    main = streams["data"]
    assert main.names == ["real", "small", "flag", "pair[0].a", "pair[0].b", "pair[1].a", "pair[1].b"]
    assert main.part.values.dtype == np.float64
    expected = [[m.real, m.small, m.flag, m.pair[0].a, m.pair[0].b, m.pair[1].a, m.pair[1].b] for m in messages]
    np.testing.assert_array_equal(main.rows, expected)
    for name, dtype in {"wide": np.int64, "wider": np.uint64}.items():
        assert streams[f"data/{name}"].part.values.dtype == dtype
        assert np.array(streams[f"data/{name}"].rows)[:, 0].tolist() == [getattr(m, name) for m in messages]
    np.testing.assert_array_equal(streams["data/fixed"].rows, [m.fixed for m in messages])
    assert streams["data/fixed"].part.values.dtype == np.int32
    assert streams["data/word"].rows == [m.word for m in messages]
    assert [json.loads(text) for text in streams["data/words"].rows] == [m.words for m in messages]
    # Always the same length: no ragged rows.
    np.testing.assert_array_equal(streams["data/many"].rows, [[1.0, 2.0]] * 20)
    assert streams["data/foos"].names == ["a", "b"]
    for row, m in zip(streams["data/foos"].rows, messages, strict=True):
        np.testing.assert_array_equal(row, np.array([[foo.a, foo.b] for foo in m.foos]).reshape(-1, 2))
    for row, m in zip(streams["data/foos.c"].rows, messages, strict=True):
        np.testing.assert_array_equal(row, np.array([foo.c for foo in m.foos]).reshape(-1, 2))
    for row, m in zip(streams["data/foos.d"].rows, messages, strict=True):
        np.testing.assert_array_equal(row, np.array([foo.d for foo in m.foos]).reshape(-1, 3))
    assert [json.loads(text) for text in streams["data/foos.s"].rows] == [[foo.s for foo in m.foos] for m in messages]


def test_sequences_of_several_lengths_are_ragged_and_in_records_left_out(tmp_path):
    messages = [make_mixed(k, many=np.arange(k % 5), d=k % 3) for k in range(30)]
    readout = read(MIXED.write(tmp_path / "a.mcap", messages))
    assert isinstance(readout.only["data/many"].part, Ragged)
    for row, m in zip(readout.only["data/many"].rows, messages, strict=True):
        np.testing.assert_array_equal(row, m.many)
    assert readout.left_out["data/foos.d"] == "sequences in records, of varying lengths"


@settings(max_examples=25)
@given(
    counts=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 600), st.integers(0, 3)), min_size=1, max_size=12
    ),
    big_endian=st.booleans(),
)
def test_messages_of_any_lengths_equal_their_library(counts, big_endian, tmp_path):
    """Messages of the same lengths share a layout, and so do large messages of other lengths; no message may be read with another's layout."""
    messages = [make_mixed(k, ["a" * w] * w, np.arange(n) + k, foos, d=1) for k, (w, foos, n, _) in enumerate(counts)]
    streams = read(MIXED.write(tmp_path / "a.mcap", messages, big_endian=big_endian)).only
    lengths = {len(m.many) for m in messages}
    if lengths != {0}:
        for row, m in zip(streams["data/many"].rows, messages, strict=True):
            np.testing.assert_array_equal(row, m.many)
    assert [json.loads(text) for text in streams["data/words"].rows] == [m.words for m in messages]
    np.testing.assert_array_equal(
        np.array(streams["data/wider"].rows)[:, 0], np.array([m.wider for m in messages], np.uint64)
    )
    np.testing.assert_array_equal(np.array(streams["data"].rows)[:, 3], [m.pair[0].a for m in messages])
    if any(m.foos for m in messages):
        for row, m in zip(streams["data/foos"].rows, messages, strict=True):
            np.testing.assert_array_equal(row[:, 0], [foo.a for foo in m.foos])


def test_the_first_bags_layout_applies_to_all(tmp_path):
    """The number of records may change; sequences of a constant length may not."""
    (tmp_path / "bags").mkdir()
    MIXED.write(tmp_path / "bags/a.mcap", [make_mixed(k, foos=2) for k in range(3)])
    MIXED.write(tmp_path / "bags/b.mcap", [make_mixed(k, foos=3) for k in range(3)])
    MIXED.write(tmp_path / "bags/c.mcap", [make_mixed(k, many=[1.0]) for k in range(3)])
    with pytest.raises(SourceError, match=r"c.mcap: data: many has 1 to 1 values a message, but 2 in each before it"):
        read(tmp_path / "bags")
    readout = read(tmp_path / "bags", on_error="skip")
    assert [len(row) for row in readout.recordings["b.mcap"]["data/foos"].rows] == [3, 3, 3]
    assert list(readout.skipped) == ["c.mcap: data"]


@pytest.mark.parametrize("big_endian", [False, True])
def test_fields_after_large_bytes_are_aligned(big_endian, tmp_path):
    """Large messages with bytes of different lengths share a layout, but only if that moves no other field."""
    text = "string word\nuint8[] data\nfloat64 after\nint32[] more\nuint16 last\n"
    custom = CustomType("pkg/msg/Blob", text)
    lengths = [5000, 5008, 5001, 5003, 5000, 4000, 9002, 5016, 10, 4097]
    blobs = [
        custom.Blob(word="w", data=np.full(n, k, np.uint8), after=k / 4, more=np.array([k] * (k % 2), np.int32), last=k)
        for k, n in enumerate(lengths)
    ]
    streams = read(custom.write(tmp_path / "a.mcap", blobs, big_endian=big_endian)).only
    assert [(len(row), set(row.tolist())) for row in streams["data/data"].rows] == [
        (n, {k}) for k, n in enumerate(lengths)
    ]
    assert np.array(streams["data"].rows).tolist() == [[k / 4, k] for k in range(len(lengths))]
    assert [row.tolist() for row in streams["data/more"].rows] == [[k] * (k % 2) for k in range(len(lengths))]


def test_a_single_field_has_the_topics_name(tmp_path):
    topics = {
        "/say": strings("open", "", "zu"),
        "/count": ("std_msgs/msg/Int64", [(START, message("std_msgs/msg/Int64", data=2**62 + 1))]),
        "/command": (
            "std_msgs/msg/Float64MultiArray",
            [(START + k, message("std_msgs/msg/Float64MultiArray", data=[k, 2.0])) for k in range(3)],
        ),
        "/empty": ("std_msgs/msg/Empty", [(START, message("std_msgs/msg/Empty"))]),
    }
    readout = read(write_mcap(tmp_path / "a.mcap", topics))
    assert readout.only["/say"].rows == ["open", "", "zu"]
    assert readout.only["/count"].rows[0].tolist() == [2**62 + 1]
    np.testing.assert_array_equal(readout.only["/command"].rows, [[0, 2], [1, 2], [2, 2]])
    assert "/command: layout" in readout.left_out and "/command: layout.data_offset" not in readout.left_out


def test_padding_before_an_array_is_named(tmp_path):
    name = "std_msgs/msg/Float64MultiArray"
    layout = message("std_msgs/msg/MultiArrayLayout", dim=[], data_offset=1)
    messages = [(START, message(name, data=[0.0, 2.0])), (START + 1, message(name, layout=layout, data=[-1.0, 2.0]))]
    readout = read(write_mcap(tmp_path / "a.mcap", {"/command": (name, messages)}))
    np.testing.assert_array_equal(readout.only["/command"].rows, [[0, 2], [-1, 2]])
    assert readout.left_out["/command: layout.data_offset"].startswith("not applied")


# ---- joints and transforms ----


def test_joints_have_the_order_of_the_first_message(tmp_path):
    orders = [("b", "a", "c"), ("b", "a", "c"), ("c", "a", "b"), ("a", "b", "c")]
    messages = [(START + k, joints(k, order, velocity=k != 1)) for k, order in enumerate(orders)]
    readout = read(write_mcap(tmp_path / "a.mcap", {"/joint_states": ("sensor_msgs/msg/JointState", messages)}))
    position = readout.only["/joint_states/position"]
    assert position.names == ["b", "a", "c"]
    assert np.array(position.rows).tolist() == [[10 * k + 1, 10 * k, 10 * k + 2] for k in range(4)]
    assert readout.only["/joint_states/velocity"].time_ns == [START, START + 2, START + 3]
    assert "/joint_states/effort" not in readout.only
    assert readout.left_out["a.mcap: /joint_states/effort"] == "always empty"
    assert readout.left_out["a.mcap: /joint_states/velocity"] == "empty in 1 messages"


def test_joints_without_all_their_numbers_are_refused(tmp_path):
    messages = [(START, joints(0)), (START + 1, joints(1, n=2)), (START + 2, joints(2))]
    messages[1][1].name = ["a", "b", "c"]
    path = write_mcap(tmp_path / "a.mcap", {"/joint_states": ("sensor_msgs/msg/JointState", messages)})
    with pytest.raises(SourceError, match="message 1: 2 of position for 3 joints"):
        read(path)
    readout = read(path, on_error="skip")
    assert readout.only["/joint_states/position"].time_ns == [START, START + 2]
    assert np.array(readout.only["/joint_states/position"].rows)[1].tolist() == [20, 21, 22]
    assert list(readout.skipped) == ["a.mcap: /joint_states: messages 1"]


@pytest.mark.parametrize("names", [[], ["", ""], ["arm", ""], ["arm", "arm"]])
def test_joints_without_unique_names_keep_their_numbers(names, tmp_path):
    states = [
        (
            START + k * MS,
            message("sensor_msgs/msg/JointState", header=header(START + k * MS), name=names, position=[k, 2.5]),
        )
        for k in range(3)
    ]
    source = write_mcap(tmp_path / "run.mcap", {"/joints": ("sensor_msgs/msg/JointState", states)})
    report = robocache.ingest(source, tmp_path / "cache")
    stream = robocache.open(tmp_path / "cache").streams["/joints/position"]
    np.testing.assert_array_equal(stream.values, [[0, 2.5], [1, 2.5], [2, 2.5]])
    assert list(stream.names or []) == (names if all(names) else [])
    assert ("/joints: names of joints" in [omission.what for omission in report.left_out]) == (not all(names or [""]))


def test_nan_and_infinity_in_json_are_floats(tmp_path):
    things = [
        {"a": 1.5, "b": "NaN", "c": ["NaN", 2, "-Infinity"], "word": "NaN", "whole": 3},
        {"a": "Infinity", "b": "NaN", "c": [1, 2, 3], "word": "go", "whole": 4},
        {"a": "-Infinity", "b": 0.5, "c": [1, "NaN", 3], "word": "NaN", "whole": "NaN"},
    ]
    streams = read(write_json(tmp_path / "a.mcap", things)).only
    inf, nan = np.inf, np.nan
    assert streams["data"].names == ["a", "b", "whole"]
    np.testing.assert_array_equal(streams["data"].rows, [[1.5, nan, 3], [inf, nan, 4], [-inf, 0.5, nan]])
    np.testing.assert_array_equal(streams["data/c"].rows, [[nan, 2, -inf], [1, 2, 3], [1, nan, 3]])
    assert streams["data/word"].rows == ["NaN", "go", "NaN"]


def test_transforms_are_a_stream_for_each_pair_of_frames(tmp_path):
    def transform(time_ns, parent, child, x):
        name = "geometry_msgs/msg/TransformStamped"
        moved = message("geometry_msgs/msg/Transform", translation=message("geometry_msgs/msg/Vector3", x=x))
        return message(name, header=header(time_ns, parent), child_frame_id=child, transform=moved)

    messages = [
        (START + k * MS, message("tf2_msgs/msg/TFMessage", transforms=[
            transform(START + k * MS - 7, "map", "base", k), *([transform(START + k * MS - 9, "base", "arm", -k)] if k % 2 else [])
        ]))
        for k in range(6)
    ]  # fmt: skip
    streams = read(write_mcap(tmp_path / "a.mcap", {"/tf": ("tf2_msgs/msg/TFMessage", messages)})).only
    assert list(streams) == ["/tf/map/base", "/tf/base/arm"]
    assert streams["/tf/map/base"].names[0] == "translation.x" and streams["/tf/map/base"].names[-1] == "rotation.w"
    assert streams["/tf/map/base"].time_ns == [START + k * MS - 7 for k in range(6)]
    assert streams["/tf/base/arm"].time_ns == [START + k * MS - 9 for k in (1, 3, 5)]
    assert np.array(streams["/tf/base/arm"].rows)[:, 0].tolist() == [-1, -3, -5]
    assert streams["/tf/base/arm"].attributes["child_frame_id"] == "arm"


def test_messages_without_fields_in_a_sequence_are_a_byte_each(tmp_path):
    text = "Nothing[] events\nuint8 behind\n" + "=" * 80 + "\nMSG: pkg/Nothing\n"
    payloads = [(START + k, b"\0\1\0\0" + struct.pack("<I", k) + bytes(k) + bytes([k])) for k in range(4)]
    streams = read(write_channel(tmp_path / "a.mcap", "cdr", ("pkg/msg/A", "ros2msg", text.encode()), payloads)).only
    assert np.array(streams["data"].rows).tolist() == [[k] for k in range(4)]
    assert [len(row) for row in streams["data/events"].rows] == [0, 1, 2, 3]


def test_a_deeply_nested_definition_is_left_out(tmp_path):
    """Each level is a sequence of two of the next, so the number of fields doubles."""
    text = "M0[] a\n"
    for level in range(18):
        inner = f"M{level + 1}[] a\nM{level + 1}[] b\n" if level < 17 else "uint8 x\n"
        text += "=" * 80 + f"\nMSG: pkg/M{level}\n{inner}"
    path = write_channel(tmp_path / "a.mcap", "cdr", ("pkg/msg/A", "ros2msg", text.encode()), [(START, bytes(8))])
    assert "more than 20000 nested messages" in read(path).left_out["data"]


@pytest.mark.parametrize(
    ("text", "payload", "reason"),
    [
        ("string word\n", "00010000 63000000 61626364", "12 bytes, but the length at byte 4 is 99"),
        ("uint8 a\nfloat64[] b\n", "00010000 01000000 02000000 00000000", "16 bytes, but the length at byte 8 is 2"),
        ("int32[4] a\n", "00010000 01000000 02000000 00000000", "16 bytes, but a field of its type ends at byte 20"),
        ("uint8 a\n", "00010000 01000000 02000000 00000000", "16 bytes, but its type ends at byte 5"),
    ],
    ids=["text", "sequence", "array", "longer"],
)
def test_the_error_for_a_message_of_another_type_has_the_byte(text, payload, reason, tmp_path):
    payloads = [(START, bytes.fromhex(payload))]
    path = write_channel(tmp_path / "a.mcap", "cdr", ("pkg/msg/A", "ros2msg", text.encode()), payloads)
    with pytest.raises(SourceError, match=f"message 0: pkg/msg/A: the message has {reason}$"):
        read(path)


# ---- several subjects on one topic ----


def test_joints_of_two_publishers_are_two_streams(tmp_path):
    """The list of most messages takes the topic's name in every bag; another order of names is the same list."""
    arm, gripper = ("c", "a", "b"), ("d",)
    first = [(START + k, joints(k, gripper if k % 3 == 0 else arm if k % 2 else arm[::-1])) for k in range(12)]
    second = [(START + k, joints(k, gripper if k % 2 else ("a", "b"))) for k in range(4)]
    name = "sensor_msgs/msg/JointState"
    (tmp_path / "bags").mkdir()
    write_mcap(tmp_path / "bags/a.mcap", {"/joints": (name, first)})
    write_mcap(tmp_path / "bags/b.mcap", {"/joints": (name, second)})
    readout = read(tmp_path / "bags")
    streams = readout.recordings["a.mcap"]
    order = list(first[1][1].name)
    assert streams["/joints/position"].names == order and streams["/joints/d/position"].names == ["d"]
    rows = [k for k in range(12) if k % 3]
    assert streams["/joints/position"].time_ns == [START + k for k in rows]
    assert np.array(streams["/joints/position"].rows).tolist() == [
        [10.0 * k + "abcdef".index(joint) for joint in order] for k in rows
    ]
    assert np.array(streams["/joints/d/velocity"].rows).tolist() == [[10.0 * k + 3] for k in (0, 3, 6, 9)]
    streams = readout.recordings["b.mcap"]
    assert set(streams) == {f"/joints/{part}" for part in ("d/position", "d/velocity", "a,b/position", "a,b/velocity")}
    assert np.array(streams["/joints/a,b/position"].rows).tolist() == [[0, 1], [20, 21]]
    assert not readout.skipped


def test_growing_lists_of_joints_are_streams_with_short_names(tmp_path):
    names = [f"a_long_name_of_joint_{i}" for i in range(8)]
    grown = [names[: 1 + k // 3] for k in range(24)]
    kind = "sensor_msgs/msg/JointState"
    messages = [
        (START + k, message(kind, header=header(START + k), name=joint_names, position=np.arange(len(joint_names)) + k))
        for k, joint_names in enumerate(grown)
    ]
    messages.insert(0, (START - 1, message(kind, header=header(START - 1))))  # an empty message
    streams = read(write_mcap(tmp_path / "a.mcap", {"/joints": (kind, messages)})).only
    assert len(streams) == 8 and all(len(name) < 80 for name in streams)
    for joint_names in {tuple(joint_names) for joint_names in grown}:
        (stream,) = [stream for stream in streams.values() if stream.names == list(joint_names)]
        rows = [k for k in range(24) if tuple(grown[k]) == joint_names]
        assert np.array(stream.rows).tolist() == [(np.arange(len(joint_names)) + k).tolist() for k in rows]


def test_trajectories_have_the_joint_order_of_the_first_message(tmp_path):
    point, kind = "trajectory_msgs/msg/JointTrajectoryPoint", "trajectory_msgs/msg/JointTrajectory"

    def command(k, names):
        values = np.array([10.0 * k + "abcdef".index(name) for name in names])
        points = [message(point, positions=values + i / 4) for i in range(len(names))]
        return START + k, message(kind, header=header(START + k), joint_names=list(names), points=points)

    orders = ["abc", "cab", "de", "ab", "cba", "abc", "ed"]
    messages = [command(k, names) for k, names in enumerate(orders)]
    streams = read(write_mcap(tmp_path / "a.mcap", {"/command": (kind, messages)})).only
    for stream, joint_order in (("/command", "abc"), ("/command/d,e", "de"), ("/command/a,b", "ab")):
        positions = streams[f"{stream}/points.positions"]
        rows = [k for k, names in enumerate(orders) if set(names) == set(joint_order)]
        assert positions.names == list(joint_order) and positions.time_ns == [START + k for k in rows]
        for row, k in zip(positions.rows, rows, strict=True):
            expected = [[10.0 * k + "abcdef".index(n) + i / 4 for n in joint_order] for i in range(len(joint_order))]
            assert row.tolist() == expected


def test_interfaces_of_dynamic_joints_are_features(tmp_path):
    custom = CustomType(
        "control_msgs/msg/DynamicJointState",
        "std_msgs/Header header\nstring[] joint_names\nInterfaceValue[] interface_values\n",
        {"control_msgs/InterfaceValue": "string[] interface_names\nfloat64[] values\n"} | HEADER,
    )
    interfaces = {"a": ["position", "velocity"], "b": ["position", "effort"], "g": ["position"]}

    def state(k, names, drop=0):
        values = [
            custom.InterfaceValue(
                interfaces[n], np.array([k * 100.0 + ord(n) + i for i in range(len(interfaces[n]) - drop)])
            )
            for n in names
        ]
        stamp = custom.Time((START + k) // 10**9, (START + k) % 10**9)
        return custom.DynamicJointState(custom.Header(stamp, ""), list(names), values)

    orders = ["ab", "ba", "g", "ab", "g", "ba"]
    states = [state(k, names, k == 3) for k, names in enumerate(orders)]
    readout = read(custom.write(tmp_path / "a.mcap", states), on_error="skip")
    names = ["a/position", "a/velocity", "b/position", "b/effort"]
    assert readout.only["data"].names == names
    assert np.array(readout.only["data"].rows).tolist() == [
        [100 * k + ord(name[0]) + i % 2 for i, name in enumerate(names)] for k in (0, 1, 5)
    ]
    assert readout.only["data/g/position"].names == ["g/position"] and len(readout.only["data/g/position"].rows) == 2
    assert list(readout.skipped) == ["a.mcap: data: messages 3"]


def test_each_frame_of_reference_is_a_stream(tmp_path):
    """Several sensors publish on one topic. The frame of most messages gets the topic's name, and keeps it in later bags."""
    kind = "sensor_msgs/msg/Range"

    def write_bag(path, frames):
        messages = [
            (START + k, message(kind, header=header(START + k, f), range=k + 0.5)) for k, f in enumerate(frames)
        ]
        return write_mcap(path, {"/sonar": (kind, messages)})

    (tmp_path / "bags").mkdir()
    write_bag(tmp_path / "bags/a.mcap", ["", "left", "/right", "left", "left", "/right"])
    write_bag(tmp_path / "bags/b.mcap", ["/right", "/right"])
    write_bag(tmp_path / "bags/c.mcap", ["other"])
    readout = read(tmp_path / "bags")
    ranges_read = {
        (bag, name): [float(row[-1]) for row in stream.rows]
        for bag, streams in readout.recordings.items()
        for name, stream in streams.items()
        if stream.names and "range" in stream.names[-1]
    }
    assert {key: [round(x - 0.5) for x in rows] for key, rows in ranges_read.items()} == {
        ("a.mcap", "/sonar"): [1, 3, 4],
        ("a.mcap", "/sonar/right"): [2, 5],
        ("a.mcap", "/sonar/unnamed"): [0],
        ("b.mcap", "/sonar/right"): [0, 1],
        ("c.mcap", "/sonar"): [0],
    }
    frames = json.loads(readout.metadata["a.mcap"]["frame_ids"])
    assert frames == {"/sonar/header.frame_id": "left", "/sonar/right/header.frame_id": "/right"}


@pytest.mark.parametrize("workers", [1, 2])
def test_frames_that_differ_between_bags_are_noted(workers, tmp_path):
    kind = "geometry_msgs/msg/PoseStamped"
    for name, frame in (("a", "map"), ("b", "odom"), ("c", "/map")):
        topics = {
            topic: (kind, [(START + k * MS, message(kind, header=header(START + k * MS, frame_of))) for k in range(3)])
            for topic, frame_of in (("/pose", frame), ("/other", "map"))
        }
        write_mcap(tmp_path / f"bags/{name}.mcap", topics)
    report = robocache.ingest(tmp_path / "bags", tmp_path / "cache", workers=workers)
    (assumption,) = report.assumed
    assert assumption.streams == ["/pose"] and assumption.reason.endswith("frame_ids says: /pose map and odom")
    robocache.ingest(tmp_path / "bags/a.mcap", tmp_path / "one")
    assert robocache.ingest(tmp_path / "bags/c.mcap", tmp_path / "one", append=True).assumed == []
    assert robocache.ingest(tmp_path / "bags/b.mcap", tmp_path / "one", append=True).assumed == [assumption]


def test_a_leading_slash_of_a_frame_is_ignored(tmp_path):
    """ROS 1's tf put a slash before a frame's name; tf2 does not."""
    frames = ["left", "/left", "right", "left", "/right", "/left"]
    ranges = [
        (START + k * MS, message("sensor_msgs/msg/Range", header=header(START + k * MS, frame), range=k))
        for k, frame in enumerate(frames)
    ]
    moved = []
    for k, (parent, child) in enumerate((("map", "a"), ("/map", "/a"), ("map", "/b"))):
        stamped = message(
            "geometry_msgs/msg/TransformStamped", header=header(START + k * MS, parent), child_frame_id=child
        )
        stamped.transform.translation.x = float(k)
        moved.append((START + k * MS, message("tf2_msgs/msg/TFMessage", transforms=[stamped])))
    topics = {"/range": ("sensor_msgs/msg/Range", ranges), "/tf": ("tf2_msgs/msg/TFMessage", moved)}
    readout = read(write_mcap(tmp_path / "a.mcap", topics)).only
    assert np.array(readout["/range"].rows)[:, -1].tolist() == [0, 1, 3, 5]
    assert np.array(readout["/range/right"].rows)[:, -1].tolist() == [2, 4]
    assert np.array(readout["/tf/map/a"].rows)[:, 0].tolist() == [0, 1]
    assert np.array(readout["/tf/map/b"].rows)[:, 0].tolist() == [2]


def test_markers_are_subjects_by_namespace_and_id(tmp_path):
    kind = "visualization_msgs/msg/Marker"

    def marker(k, ns, number):
        pose = message("geometry_msgs/msg/Pose", position=message("geometry_msgs/msg/Point", x=float(k)))
        return START + k, message(kind, header=header(START + k, "map"), ns=ns, id=number, pose=pose)

    headers = [("box", 0), ("box", 1), ("", 0), ("box", 0)]
    readout = read(write_mcap(tmp_path / "a.mcap", {"/m": (kind, [marker(k, *key) for k, key in enumerate(headers)])}))
    rows = {name: [float(row[3]) for row in readout.only[name].rows] for name in ("/m", "/m/map/box/1", "/m/map/0")}
    assert rows == {"/m": [0, 3], "/m/map/box/1": [1], "/m/map/0": [2]}


# ---- values that messages declare absent ----


def test_distances_with_limits_are_held(tmp_path):
    """sensor_msgs/LaserScan: values below range_min or above range_max are invalid, so the mean of 0 and 2 m is no distance."""

    def scan(k):
        fields = {"header": header(START + k * MS), "range_min": 0.1, "range_max": 3.0}
        return message(
            "sensor_msgs/msg/LaserScan", **fields, angle_increment=float(k), ranges=[2.0 * (k % 2), 1, np.inf]
        )

    def sonar(k):
        fields = {"header": header(START + k * MS), "min_range": 0.1, "max_range": 3.0, "field_of_view": float(k)}
        return message("sensor_msgs/msg/Range", **fields, range=2.0 * (k % 2))

    topics = {
        "/scan": ("sensor_msgs/msg/LaserScan", [(START + k * MS, scan(k)) for k in range(4)]),
        "/sonar": ("sensor_msgs/msg/Range", [(START + k * MS, sonar(k)) for k in range(4)]),
    }
    path = write_mcap(tmp_path / "a.mcap", topics)
    assert {"/scan: ranges between rows", "/sonar: range between rows"} <= read(path).left_out.keys()
    robocache.ingest(path, tmp_path / "cache")
    windows = {key: [0.0005] for key in ("/scan", "/scan/ranges", "/sonar")}
    batch = next(
        robocache.Loader(
            tmp_path / "cache", batch_size=3, delta_timestamps=windows, anchors="/sonar", shuffle=False, device="cpu"
        )
    )
    assert batch["/scan/ranges"][:, 0].tolist() == [[0, 1, np.inf], [2, 1, np.inf], [0, 1, np.inf]]
    assert batch["/sonar"][:, 0, -1].tolist() == [0, 2, 0]
    assert batch["/sonar"][:, 0, 1].tolist() == batch["/scan"][:, 0, 2].tolist() == [0.5, 1.5, 2.5]


PROVIDED = {"orientation": [0, 0, 0, 1], "angular_velocity": [1, 2, 3], "linear_acceleration": [4, 5, 6]}


def make_imu_that_lacks(k, store=ROS2):
    """Message k lacks quantity k % 4; with remainder 3 it lacks none."""
    fields = {"header": header(START + k * MS, store=store)}
    for number, (name, values) in enumerate(PROVIDED.items()):
        kind = "Quaternion" if len(values) == 4 else "Vector3"
        parts = dict(zip("xyzw", map(float, values), strict=False))
        fields[name] = message(f"geometry_msgs/msg/{kind}", store, **parts)
        fields[f"{name}_covariance"] = np.array([-1.0 if k % 4 == number else 0.0, *[0.0] * 8])
    return message("sensor_msgs/msg/Imu", store, **fields)


def expected_rows_with_gaps():
    rows = []
    for k in range(12):
        for number, values in enumerate(PROVIDED.values()):
            rows += [np.nan] * len(values) if k % 4 == number else values
    return np.reshape(rows, (12, 10))


def make_json_imu(k):
    fields = {"header": {"stamp": {"secs": START // 10**9, "nsecs": START % 10**9 + k * MS}, "frame_id": "imu"}}
    for number, (name, values) in enumerate(PROVIDED.items()):
        fields[name] = dict(zip("xyzw", map(float, values), strict=False))
        fields[f"{name}_covariance"] = [-1 if k % 4 == number else 0.5] * 9
    return fields


@pytest.mark.parametrize("route", ["ros 2", "ros 1", "json"])
def test_a_covariance_of_minus_1_means_no_orientation(route, tmp_path):
    if route == "ros 1":
        messages = [(START + k * MS, make_imu_that_lacks(k, ROS1)) for k in range(12)]
        path = write_bag1(tmp_path / "a.bag", {"data": ("sensor_msgs/msg/Imu", messages)})
    elif route == "ros 2":
        messages = [(START + k * MS, make_imu_that_lacks(k)) for k in range(12)]
        path = write_mcap(tmp_path / "a.mcap", {"data": ("sensor_msgs/msg/Imu", messages)})
    else:
        path = write_json(tmp_path / "a.mcap", map(make_json_imu, range(12)), "sensor_msgs/Imu", step=MS)
    readout = read(path)
    np.testing.assert_array_equal(np.array(readout.only["data"].rows), expected_rows_with_gaps())
    for name in PROVIDED:
        assert f"{name}_covariance begins with -1" in readout.left_out[f"data: {name}"]


def test_a_position_without_a_fix_is_nan(tmp_path):
    kind = "sensor_msgs/msg/NavSatFix"

    def fix(k):
        status = message("sensor_msgs/msg/NavSatStatus", status=-(k % 2))
        return START + k * MS, message(
            kind, header=header(START + k * MS), status=status, latitude=47.5, longitude=8.5, altitude=1.0
        )

    readout = read(write_mcap(tmp_path / "a.mcap", {"/fix": (kind, [fix(k) for k in range(6)])}))
    stream = readout.only["/fix"]
    columns = [stream.names.index(name) for name in ("latitude", "longitude", "altitude")]
    expected = [[47.5, 8.5, 1.0], [np.nan] * 3] * 3
    np.testing.assert_array_equal(np.array(stream.rows)[:, columns], expected)
    assert "status.status begins with -1" in readout.left_out["/fix: position"]


# ---- several subjects by ids ----


STEP = 10**7


def write_ranges(path, ids, field="uint8 to_id"):
    """One message for each row: its id, and 10 times its index as a float."""
    text = f"std_msgs/Header header\nuint8 from_id\n{field}\nfloat64 range\n"
    custom, name = CustomType("uwb_msgs/msg/Range", text, HEADER), field.split()[1]
    messages = [
        custom.Range(**{name: value}, header=header(START + k * STEP), from_id=7, range=10.0 * k)
        for k, value in enumerate(ids)
    ]
    return custom.write(path, messages, STEP)


def values_between_rows(path, tmp_path):
    """Returns {stream: its last feature, a quarter of a step after each row but the last}, and the report."""
    cache = tmp_path / f"cache of {path.name}"
    report = robocache.ingest(path, cache)
    dataset = robocache.open(cache)
    features = {}
    for name, stream in dataset.streams.items():
        if stream.kind != "numbers":
            continue
        loader = robocache.Loader(
            dataset,
            delta_timestamps={
                name: robocache.Window([STEP / 4e9], dtype="float64" if stream.dtype.kind == "f" else None)
            },
            anchors=name,
            batch_size=stream.rows,
            shuffle=False,
        )
        features[name] = np.asarray(next(iter(loader))[name])[: stream.rows - 1, 0, -1].tolist()
    return features, report


def test_alternating_ids_are_streams(tmp_path):
    ids = [1, 2, 3] * 20
    features, _ = values_between_rows(write_ranges(tmp_path / "a.mcap", ids), tmp_path)
    for number in (1, 2, 3):  # one row in 3 steps: 30 apart
        expected = 10.0 * np.arange(number - 1, 60, 3)[:-1] + 2.5
        np.testing.assert_allclose(features[f"data/to_id_{number}"], expected)
    assert len(features) == 3


@pytest.mark.parametrize(
    "field",
    [
        "string sensor_name",
        "string id",
        "uint32 motorId",
        "int16 idA",
        "uint8 index",
        "uint8 address_beacon",
        "uint8 channel",
    ],
)
def test_ids_with_other_names(field, tmp_path):
    values = ["left", "right"] if "string" in field else [4, 9]
    features, _ = values_between_rows(
        write_ranges(tmp_path / "a.mcap", [values[k // 2 % 2] for k in range(40)], field), tmp_path
    )
    assert sorted(features) == [f"data/{field.split()[1]}_{value}" for value in values]


@pytest.mark.parametrize("field", ["string anchor", "string key", "string kind"])
def test_strictly_alternating_texts_are_subjects_with_a_note(field, tmp_path):
    name = field.split()[1]
    features, report = values_between_rows(write_ranges(tmp_path / "a.mcap", ["pos", "volt"] * 20, field), tmp_path)
    for number, text in enumerate(["pos", "volt"]):
        np.testing.assert_allclose(features[f"data/{name}_{text}"], 10.0 * np.arange(number, 40, 2)[:-1] + 2.5)
    (assumption,) = [note for note in report.assumed if name in note.what]
    assert assumption.streams == ["data"]
    assert "take turns" in assumption.reason


@pytest.mark.parametrize("texts", [["go", "go", "stop", "stop"], ["go", "go", "stop"], ["go"] * 9 + ["stop"]])
def test_texts_of_a_state_are_no_subjects(texts, tmp_path):
    features, report = values_between_rows(
        write_ranges(tmp_path / "a.mcap", (texts * 20)[:40], "string kind"), tmp_path
    )
    np.testing.assert_allclose(features["data"], 10.0 * np.arange(39) + 2.5)
    assert report.assumed == []


@pytest.mark.parametrize(
    ("field", "ids"),
    [
        ("uint8 to_id", [4] * 40),
        ("uint32 sample_id", [k % 2 for k in range(40)]),
        ("uint32 id", list(range(40))),  # a counter
        ("uint32 id", [k // 20 for k in range(40)]),  # phases
        ("uint8 mode_id", [k % 2 for k in range(40)]),
        ("uint8 width", [k % 2 for k in range(40)]),
    ],
)
def test_other_integers_are_no_subjects(field, ids, tmp_path):
    features, report = values_between_rows(write_ranges(tmp_path / "a.mcap", ids, field), tmp_path)
    np.testing.assert_allclose(features["data"], 10.0 * np.arange(39) + 2.5)
    assert len(features) == 1
    assert not [omission for omission in report.left_out if "subjects" in omission.reason]


def test_rows_of_irregularly_repeated_ids_are_held(tmp_path):
    ids = [1] * 20 + [2] * 10 + [1] * 10
    features, report = values_between_rows(write_ranges(tmp_path / "a.mcap", ids), tmp_path)
    np.testing.assert_array_equal(features["data"], 10.0 * np.arange(39))
    assert any("to_id shows that rows belong to several subjects" in omission.reason for omission in report.left_out)


def test_robots_of_a_fleet_are_one_stream(tmp_path):
    for robot in (3, 8):
        write_ranges(tmp_path / f"fleet/{robot}.mcap", [robot] * 10)
    robocache.ingest(tmp_path / "fleet", tmp_path / "cache")
    assert {name: stream.rows for name, stream in robocache.open(tmp_path / "cache").streams.items()} == {"data": 20}


def test_ids_in_json(tmp_path):
    path = write_json(tmp_path / "a.mcap", [{"id": k % 2, "value": k + 0.5} for k in range(20)], step=STEP)
    features, _ = values_between_rows(path, tmp_path)
    np.testing.assert_allclose(features["data/id_0"], np.arange(0, 18, 2) + 0.75)
    np.testing.assert_allclose(features["data/id_1"], np.arange(1, 19, 2) + 0.75)


def test_each_child_of_a_frame_is_a_stream(tmp_path):
    kind = "geometry_msgs/msg/TransformStamped"
    messages = []
    for k in range(6):
        moved = message("geometry_msgs/msg/Transform", translation=message("geometry_msgs/msg/Vector3", x=float(k)))
        child = "base" if k % 3 else "arm"
        messages.append(
            (START + k, message(kind, header=header(START + k, "map"), child_frame_id=child, transform=moved))
        )
    streams = read(write_mcap(tmp_path / "a.mcap", {"/moved": (kind, messages)})).only
    assert np.array(streams["/moved"].rows)[:, 0].tolist() == [1, 2, 4, 5]
    assert np.array(streams["/moved/map/arm"].rows)[:, 0].tolist() == [0, 3]


def test_foxgloves_transforms_in_json(tmp_path):
    def transform(k, parent, child):
        stamp = {"sec": (START + k) // 10**9, "nsec": (START + k) % 10**9}
        moved = {"translation": {"x": k + 0.5, "y": 0, "z": 0}, "rotation": {"x": 0, "y": 0, "z": 0, "w": 1}}
        return {"timestamp": stamp, "parent_frame_id": parent, "child_frame_id": child} | moved

    things = [{"transforms": [transform(k, "map", "base"), transform(k, "base", "arm")][: 1 + k % 2]} for k in range(4)]
    streams = read(write_json(tmp_path / "a.mcap", things, "foxglove.FrameTransforms", step=99)).only
    assert streams["data/map/base"].time_ns == [START + k for k in range(4)]
    assert streams["data/base/arm"].time_ns == [START + 1, START + 3]
    assert np.array(streams["data/map/base"].rows).tolist() == [[k + 0.5, 0, 0, 0, 0, 0, 1] for k in range(4)]
    alone = [transform(k, "map", "ab"[k % 3 == 0]) for k in range(6)]
    streams = read(write_json(tmp_path / "b.mcap", alone, "foxglove.FrameTransform")).only
    assert np.array(streams["data"].rows)[:, 0].tolist() == [1.5, 2.5, 4.5, 5.5]
    assert np.array(streams["data/map/b"].rows)[:, 0].tolist() == [0.5, 3.5]


def test_transforms_of_a_trajectorys_points_are_features(tmp_path):
    """MultiDOFJointTrajectory: each point has a transform for each joint, in any order of joints."""

    def transform(x):
        vector = message("geometry_msgs/msg/Vector3", x=x, y=x + 0.25, z=x + 0.5)
        rotation = message("geometry_msgs/msg/Quaternion", z=np.sin(x), w=np.cos(x))
        return message("geometry_msgs/msg/Transform", translation=vector, rotation=rotation)

    def trajectory(k, joints, points):
        messages = [
            message(
                "trajectory_msgs/msg/MultiDOFJointTrajectoryPoint",
                transforms=[transform(k + point + 10.0 * (joint == "b")) for joint in joints],
            )
            for point in range(points)
        ]
        name = "trajectory_msgs/msg/MultiDOFJointTrajectory"
        return message(name, header=header(START + k), joint_names=list(joints), points=messages)

    name = "trajectory_msgs/msg/MultiDOFJointTrajectory"
    messages = [trajectory(0, "ab", 1), trajectory(1, "ba", 3), trajectory(2, "ab", 0)]
    path = write_mcap(tmp_path / "a.mcap", {"/plan": (name, [(START + k, msg) for k, msg in enumerate(messages)])})
    readout = read(path)
    stream = readout.only["/plan/points.transforms"]
    parts = [f"translation.{axis}" for axis in "xyz"] + [f"rotation.{axis}" for axis in "xyzw"]
    assert stream.names == [f"{joint}.{part}" for joint in "ab" for part in parts]
    assert stream.attributes["methods"] == [[3, 7, "slerp"], [10, 14, "slerp"]]
    assert [len(row) for row in stream.rows] == [1, 3, 0]
    for k, row in enumerate(stream.rows):
        for point, values in enumerate(row):
            a, b = k + point, k + point + 10.0
            assert values.tolist() == [
                *(number for x in (a, b) for number in (x, x + 0.25, x + 0.5, 0, 0, np.sin(x), np.cos(x)))
            ]
    assert "a.mcap: /plan/points.velocities" in readout.left_out
    robocache.ingest(path, tmp_path / "cache")
    assert robocache.open(tmp_path / "cache").streams["/plan/points.transforms"].shape == (14,)
    messages[1].points[0].transforms = messages[1].points[0].transforms[:1]
    path = write_mcap(tmp_path / "b.mcap", {"/plan": (name, [(START + k, msg) for k, msg in enumerate(messages)])})
    assert read(path).left_out["/plan/points.transforms"] == "lists in records, of varying lengths"


# ---- several publishers ----


def write_two_publishers_to_mcap(path, publishers, with_caller_ids):
    text = b"float64 x\nfloat64 y\nfloat64 z\n"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start("ros2")
        schema = writer.register_schema("geometry_msgs/msg/Vector3", "ros2msg", text)
        metadata = [{"callerid": f"/n{k}"} if with_caller_ids else {} for k in range(2)]
        channels = [writer.register_channel("/cmd", "cdr", schema, entries) for entries in metadata]
        for k, publisher in enumerate(publishers):
            msg = message("geometry_msgs/msg/Vector3", x=float(publisher))
            data = bytes(ROS2.serialize_cdr(msg, "geometry_msgs/msg/Vector3"))
            writer.add_message(channels[publisher], START + k * STEP, data, START + k * STEP)
        writer.finish()


def write_two_publishers_to_bag(path, publishers, with_caller_ids):
    kind = "geometry_msgs/msg/Vector3"
    with Bag1(path) as bag:
        ids = [f"/n{k}" if with_caller_ids else "/n" for k in range(2)]
        connections = [bag.add_connection("/cmd", kind, typestore=ROS1, callerid=name) for name in ids]
        for k, publisher in enumerate(publishers):
            data = ROS1.serialize_ros1(message(kind, ROS1, x=float(publisher)), kind)
            bag.write(connections[publisher], START + k * STEP, data)


@pytest.mark.parametrize(
    ("write", "name", "publishers", "with_caller_ids", "is_held"),
    [
        (write_two_publishers_to_mcap, "a.mcap", [0, 1] * 10, True, True),
        (write_two_publishers_to_mcap, "a.mcap", [0, 1] * 10, False, True),
        (write_two_publishers_to_mcap, "a.mcap", [0] * 10 + [1] * 10, True, False),  # a restarted node
        (write_two_publishers_to_bag, "a.bag", [0, 1, 1] * 7, True, True),
        (write_two_publishers_to_bag, "a.bag", [0] * 10 + [1] * 10, True, False),
    ],
)
def test_rows_of_two_simultaneous_publishers_are_held_with_a_note(
    write, name, publishers, with_caller_ids, is_held, tmp_path
):
    write(tmp_path / name, publishers, with_caller_ids)
    report = robocache.ingest(tmp_path / name, tmp_path / "cache")
    dataset = robocache.open(tmp_path / "cache")
    window = robocache.Window([STEP / 4e9])
    options = {"anchors": "/cmd", "batch_size": 100, "shuffle": False}
    batch = np.asarray(next(iter(robocache.Loader(dataset, delta_timestamps={"/cmd": window}, **options)))["/cmd"])
    x = np.array(publishers, float)
    expected = x[:-1] if is_held else x[:-1] + 0.25 * np.diff(x)
    np.testing.assert_allclose(batch[: len(x) - 1, 0, 0], expected, atol=1e-6)
    assert [note.streams for note in report.assumed] == [["/cmd"]] * is_held
    assert not is_held or "2 publishers" in report.assumed[0].reason


def test_joints_of_two_declared_publishers_are_held_and_transforms_noted(tmp_path):
    kinds = {"/joints": "sensor_msgs/msg/JointState", "/tf": "tf2_msgs/msg/TFMessage"}
    with (tmp_path / "a.mcap").open("wb") as file:
        writer = Writer(file)
        writer.start("ros2")
        channels = {}
        for topic, kind in kinds.items():
            schema = writer.register_schema(kind, "ros2msg", definition(kind).encode())
            for k in range(2):
                channels[topic, k] = writer.register_channel(topic, "cdr", schema, {"callerid": f"/n{k}"})
        for k in range(20):
            transform = message(
                "geometry_msgs/msg/TransformStamped", header=header(START + k * STEP, "map"), child_frame_id="base"
            )
            transform.transform.translation.x = float(k % 2)
            msg = {
                "/joints": joints(k, ("a",), velocity=False),
                "/tf": message(kinds["/tf"], transforms=[transform]),
            }
            for topic, kind in kinds.items():
                data = serialize(kind, msg[topic])
                writer.add_message(channels[topic, k % 2], START + k * STEP, data, START + k * STEP)
        writer.finish()
    report = robocache.ingest(tmp_path / "a.mcap", tmp_path / "cache")
    streams = robocache.open(tmp_path / "cache").streams
    assert streams["/joints/position"].attributes["methods"] == [[0, 1, "previous"]]
    assert streams["/tf/map/base"].attributes["methods"] == [[3, 7, "slerp"]]
    reasons = {note.what: note.reason for note in report.assumed}
    assert reasons["one stream of /joints"].endswith("rows are held")
    assert reasons["frames of /tf"].endswith("each pair of frames is taken to have one publisher")


@pytest.mark.parametrize(("orders", "is_held"), [("0101101", True), ("0001111", False)])
def test_joints_in_two_alternating_orders_are_held(orders, is_held, tmp_path):
    """Two nodes publish the same joints; a restarted node may also have another order."""
    lists = ("a", "b", "c"), ("c", "a", "b")
    states = [(START + k, joints(k, lists[int(order)])) for k, order in enumerate(orders)]
    write_mcap(tmp_path / "a.mcap", {"/joints": ("sensor_msgs/msg/JointState", states)})
    readout = read(tmp_path / "a.mcap")
    position = readout.only["/joints/position"]
    assert position.attributes.get("methods") == ([[0, 3, "previous"]] if is_held else None)
    assert np.array(position.rows).tolist() == [[10.0 * k, 10.0 * k + 1, 10.0 * k + 2] for k in range(len(orders))]
    assert [note.what for note in readout.notes.assumed] == (["one stream of /joints"] if is_held else [])


# ---- names beside arrays ----


def write_named(path, name, fields, messages):
    """Writes an MCAP file with one type, defined by `fields`; `messages` are dicts of values."""
    custom = CustomType(name, fields)
    return custom.write(path, [custom.store.types[name](**msg) for msg in messages], MS)


@pytest.mark.parametrize(
    "names", ["joint_names", "name", "names", "dof_names", "interface_names", "motor_name", "joints"]
)
def test_texts_name_the_elements_of_arrays_beside_them(names, tmp_path):
    """The order changes in the middle; a message with other names is another subject."""
    orders = ["abc", "abc", "cab", "bca", "de", "ed"]
    messages = [
        {
            names: list(order),
            "values": np.array([10.0 * k + ord(n) for n in order]),
            "rates": np.array([k - ord(n) for n in order] if k % 2 else [], "float32"),
            "modes": [f"{n} on" for n in order] if k % 2 else [],
            "codes": np.array([ord(n) for n in order], "uint8"),
        }
        for k, order in enumerate(orders)
    ]
    fields = f"string[] {names}\nfloat64[] values\nfloat32[] rates\nstring[] modes\nuint8[] codes\n"
    streams = read(write_named(tmp_path / "a.mcap", "pkg/msg/Named", fields, messages)).only
    for stream, elements, rows in (("data", "abc", range(4)), ("data/d,e", "de", (4, 5))):
        values, rates = streams[f"{stream}/values"], streams[f"{stream}/rates"]
        assert values.names == list(elements)
        assert [json.loads(row) for row in streams[f"{stream}/{names}"].rows] == [list(elements)] * len(rows)
        assert np.array(values.rows).tolist() == [[10.0 * k + ord(n) for n in elements] for k in rows]
        assert [row.tolist() for row in rates.rows] == [
            [float(k - ord(n)) for n in elements] if k % 2 else [] for k in rows
        ]
        assert [json.loads(row) for row in streams[f"{stream}/modes"].rows] == [
            [f"{n} on" for n in elements] if k % 2 else [] for k in rows
        ]
        assert [row.tolist() for row in streams[f"{stream}/codes"].rows] == [list(map(ord, elements))] * len(rows)


def write_models(path, names, kind, records, orders):
    """Writes lists of names or ids beside lists of messages, like gazebo_msgs/ModelStates."""
    text = f"{kind}[] {names}\npkg/Pose[] {records}\nstring label\n"
    custom = CustomType("pkg/msg/Models", text, {"pkg/Pose": "float64 x\nfloat64 y\nstring frame\n"})
    messages = [
        custom.Models(**{
            names: list(order) if kind == "string" else np.array([ord(n) for n in order], "int32"),
            records: [custom.Pose(x=10.0 * k + ord(n), y=float(ord(n)), frame=n) for n in order],
            "label": "",
        })
        for k, order in enumerate(orders)
    ]  # fmt: skip
    return custom.write(path, messages, MS)


@pytest.mark.parametrize(
    ("names", "kind", "records"),
    [
        ("name", "string", "pose"),
        ("ids", "int32", "points"),
        ("model_names", "string", "a"),
        ("joint_names", "string", "states"),
    ],
)
def test_messages_beside_names_have_the_order_of_the_first_names(names, kind, records, tmp_path):
    orders = ["abc", "cab", "bca"]
    streams = read(write_models(tmp_path / "a.mcap", names, kind, records, orders)).only
    rows = streams[f"data/{records}"].rows
    assert [row.tolist() for row in rows] == [[[10.0 * k + ord(n), ord(n)] for n in "abc"] for k in range(3)]
    assert [json.loads(row) for row in streams[f"data/{records}.frame"].rows] == [list("abc")] * 3
    if kind == "string":
        assert [json.loads(row) for row in streams[f"data/{names}"].rows] == [list("abc")] * 3


@pytest.mark.parametrize(("names", "kind", "records"), [("name", "string", "pose"), ("ids", "int32", "points")])
def test_messages_beside_other_names_keep_their_order_with_a_note(names, kind, records, tmp_path):
    path = write_models(tmp_path / "a.mcap", names, kind, records, ["ab", "ba", "abc"])
    rows = read(path).only[f"data/{records}"].rows
    assert [row[:, 1].tolist() for row in rows] == [[ord(n) for n in order] for order in ("ab", "ba", "abc")]
    report = robocache.ingest(path, tmp_path / "cache")
    (assumption,) = [note for note in report.assumed if "by their indices" in note.what]
    assert records in assumption.what and names in assumption.reason


@pytest.mark.parametrize(
    ("fields", "last", "is_held"),
    [
        ("string[] names\nfloat64[] values\n", {"names": ["b"], "values": [4.0, 3.0]}, True),  # lengths differ
        ("string[] names\nfloat64[] values\n", {"names": ["b", "b"], "values": [4.0, 3.0]}, True),  # one name twice
        ("string[] names\nfloat64[2] values\n", {"names": ["b", "b"], "values": [4.0, 3.0]}, True),
        ("string[2] names\nfloat64[2] values\n", {"names": ["b", "b"], "values": [4.0, 3.0]}, True),
        ("string[] names\nfloat64[2] values\n", {"names": [], "values": [4.0, 3.0]}, False),  # in the first message only
        ("string[] words\nfloat64[] values\n", {"words": ["b", "a"], "values": [4.0, 3.0]}, False),  # no field name for names
        ("string[] a_names\nstring[] b_names\nfloat64[] values\n",
         {"a_names": ["b", "a"], "b_names": ["a", "b"], "values": [4.0, 3.0]}, True),  # ambiguous: two lists of names
        ("int32[] ids\nfloat64[] values\n", {"ids": np.array([1, 3], "int32"), "values": [4.0, 3.0]}, True),  # other ids
        # Names that only end in the letters of "ids" and "names", and flags:
        ("bool[2] valid\nfloat64[2] values\n", {"valid": np.array([False, True]), "values": [4.0, 3.0]}, False),
        ("int32[2] grid\nfloat64[2] values\n", {"grid": np.array([1, 3], "int32"), "values": [4.0, 3.0]}, False),
        ("int32[] centroids\nfloat64[] values\n", {"centroids": np.array([1, 3], "int32"), "values": [4.0, 3.0]}, False),
        ("string[] filenames\nfloat64[] values\n", {"filenames": ["c", "d"], "values": [4.0, 3.0]}, False),
        ("bool[2] ids\nfloat64[2] values\n", {"ids": np.array([False, True]), "values": [4.0, 3.0]}, False),
        # Ids of models are names; ids of modes are not, and "mode" is a part of "model" only in letters:
        ("int32[2] model_ids\nfloat64[2] values\n", {"model_ids": np.array([1, 3], "int32"), "values": [4.0, 3.0]}, True),
        ("int32[2] mode_ids\nfloat64[2] values\n", {"mode_ids": np.array([1, 3], "int32"), "values": [4.0, 3.0]}, False),
    ],
)  # fmt: skip
def test_uncertain_names_hold_the_rows_with_a_note(fields, last, is_held, tmp_path):
    first = {
        field: np.array([1, 2], value.dtype) if isinstance(value, np.ndarray) else ["a", "b"]
        for field, value in last.items()
    } | {"values": [1.0, 2.0]}
    messages = [msg | {"values": np.array(msg["values"])} for msg in (first, last)]
    readout = read(write_named(tmp_path / "a.mcap", "pkg/msg/Named", fields, messages))
    assert readout.only["data/values"].names is None
    assert np.array(readout.only["data/values"].rows).tolist() == [[1.0, 2.0], [4.0, 3.0]]
    assert readout.only["data/values"].attributes.get("methods") == ([[0, 2, "previous"]] if is_held else None)
    assert [note.streams for note in readout.notes.assumed] == [["data"]] * is_held


def test_more_than_32_lists_of_names_hold_the_rows_with_a_note(tmp_path):
    messages = [{"names": [f"n{k}", f"m{k}"], "values": np.array([1.0 * k, 2.0 * k])} for k in range(40)]
    path = write_named(tmp_path / "a.mcap", "pkg/msg/Named", "string[] names\nfloat64[] values\n", messages)
    readout = read(path)
    assert np.array(readout.only["data/values"].rows).tolist() == [[k, 2.0 * k] for k in range(40)]
    assert readout.only["data/values"].attributes["methods"] == [[0, 2, "previous"]]
    assert "names changes" in readout.notes.assumed[0].reason


@pytest.mark.parametrize(
    "names",
    [
        *(
            "string[2] joint_names",
            "string[] joint_names",
            "string[2] names",
            "string[2] dofNames",
            "string[2] DOFNames",
        ),
        *("string[2] motor1names", "string[2] jointnames", "string[2] armJoints"),
        *("int32[2] motor_ids", "int32[2] motorIds", "int32[2] motorids", "int32[2] model_ids"),
    ],
)
def test_names_of_elements_of_fixed_length_arrays(names, tmp_path):
    field = names.split()[1]
    has_ids = names.startswith("int32")
    ids = {"a": 7, "b": 9}
    messages = [
        {
            field: np.array([ids[n] for n in order], "int32") if has_ids else list(order),
            "values": np.array([k + 100.0 * (n == "b") for n in order]),
            "matrix": np.arange(9.0),
        }
        for k, order in enumerate(["ab", "ba", "ab", "ba"])
    ]
    path = write_named(
        tmp_path / "a.mcap", "pkg/msg/Fixed", f"{names}\nfloat64[2] values\nfloat64[9] matrix\n", messages
    )
    streams = read(path).only
    assert np.array(streams["data/values"].rows).tolist() == [[k, k + 100.0] for k in range(4)]
    word = field.removesuffix("s")
    assert streams["data/values"].names == ([f"{word}_7", f"{word}_9"] if has_ids else ["a", "b"])
    assert streams["data/matrix"].names is None


def test_each_part_of_a_message_has_its_own_names(tmp_path):
    """Other names in one of the parts are another subject."""
    side_fields = "string[] joint_names\nfloat64[] positions\nfloat64[] rates\n"
    custom = CustomType("pkg/msg/Sides", "Side left\nSide right\n", {"pkg/Side": side_fields})

    def side(names, k):
        return custom.Side(
            list(names), np.array([10.0 * k + ord(n) for n in names]), np.array([-1.0 * ord(n) for n in names])
        )

    orders = [("ab", "cd"), ("ba", "cd"), ("ab", "dc"), ("ba", "ed")]
    messages = [custom.Sides(side(left, k), side(right, k)) for k, (left, right) in enumerate(orders)]
    streams = read(custom.write(tmp_path / "a.mcap", messages)).only
    for part, elements in (("left", "ab"), ("right", "cd")):
        stream = streams[f"data/{part}.positions"]
        assert stream.names == list(elements)
        assert np.array(stream.rows).tolist() == [[10.0 * k + ord(n) for n in elements] for k in range(3)]
        assert np.array(streams[f"data/{part}.rates"].rows).tolist() == [[-1.0 * ord(n) for n in elements]] * 3
    other = streams["data/a,b/d,e/right.positions"]
    assert other.names == ["e", "d"] and np.array(other.rows).tolist() == [[30.0 + ord("e"), 30.0 + ord("d")]]


def test_a_part_with_names_of_its_own_is_not_in_the_order_of_the_joints(tmp_path):
    """It has as many elements as there are joints, which change their order; a list of messages is empty at first."""
    custom = CustomType(
        "pkg/msg/Arm",
        "string[] joint_names\nfloat64[] positions\nMotor[] motors\nTool tool\n",
        {"pkg/Motor": "float64 q\n", "pkg/Tool": "string[] names\nfloat64[] forces\nstring[] modes\n"},
    )
    messages = []
    for k, (order, tools) in enumerate([("ab", "cd"), ("ab", "cd"), ("ba", "cd"), ("ba", "dc")]):
        numbers = np.array([float(ord(n)) for n in order])
        forces = np.array([float(ord(n)) for n in tools])
        motors, tool = [custom.Motor(q) for q in numbers if k], custom.Tool(list(tools), forces, list(tools))
        messages.append(custom.Arm(list(order), numbers, motors, tool))
    streams = read(custom.write(tmp_path / "a.mcap", messages)).only
    assert np.array(streams["data/positions"].rows).tolist() == [[97, 98]] * 4
    assert [row.reshape(-1).tolist() for row in streams["data/motors"].rows] == [[], *[[97, 98]] * 3]
    assert np.array(streams["data/tool.forces"].rows).tolist() == [[99, 100]] * 4
    assert streams["data/tool.forces"].names == ["c", "d"]
    assert [json.loads(row) for row in streams["data/tool.modes"].rows] == [["c", "d"]] * 4


def test_frames_and_names_together_define_subjects(tmp_path):
    """If all messages have the same names, only the frame is in a stream's name."""
    fields = "string frame_id\nstring[] names\nfloat64[] values\n"
    messages = [
        {"frame_id": frame, "names": list(order), "values": np.array([float(ord(n)) for n in order])}
        for frame, order in (("left", "ab"), ("left", "ba"), ("right", "ba"))
    ]
    streams = read(write_named(tmp_path / "a.mcap", "pkg/msg/Named", fields, messages)).only
    assert np.array(streams["data/values"].rows).tolist() == [[97, 98]] * 2
    assert np.array(streams["data/right/values"].rows).tolist() == [[98, 97]]
    assert streams["data/right/values"].names == ["b", "a"]


@pytest.mark.parametrize("name", ["string motor_name", "uint8 id", "std_msgs/Header header"])
@pytest.mark.parametrize("names_are_unique", [True, False])
def test_names_of_messages_in_an_array(name, names_are_unique, tmp_path):
    """If a message has a name twice, its rows are kept as they are."""
    motor_fields = {"pkg/Motor": f"{name}\nfloat32 q\nfloat64[2] gains\n"}
    custom = CustomType("pkg/msg/Pair", "Motor[2] motors\n", motor_fields | (HEADER if "Header" in name else {}))

    def motor(n, k):
        time = custom.Time(1, k) if "Header" in name else None
        value = custom.Header(time, n) if time else n if "string" in name else ord(n)
        return custom.Motor(value, float(k + ord(n)), np.array([ord(n), k], float))

    orders = ["ab", "ab", "ba", "ab" if names_are_unique else "aa", "ba", "ab", "ba", "ba"]
    messages = [custom.Pair([motor(n, k) for n in order]) for k, order in enumerate(orders)]
    readout = read(custom.write(tmp_path / "a.mcap", messages))
    order = ["ab"] * 8 if names_are_unique else orders
    vector = readout.only["data"]
    for index in range(2):
        column = vector.names.index(f"motors[{index}].q")
        assert [row[column] for row in vector.rows] == [k + ord(names[index]) for k, names in enumerate(order)]
        gains = np.array(readout.only[f"data/motors[{index}].gains"].rows).tolist()
        assert gains == [[ord(names[index]), k] for k, names in enumerate(order)]
    held_features = {
        feature
        for start, stop, method in vector.attributes.get("methods", ())
        if method == "previous"
        for feature in range(start, stop)
    }
    assert ({vector.names.index(f"motors[{index}].q") for index in range(2)} <= held_features) != names_are_unique
    assert len(readout.notes.assumed) == (0 if names_are_unique else 1)


@pytest.mark.parametrize("encoding", ["ros1", "json"])
def test_texts_name_elements_in_ros_1_and_json(encoding, tmp_path):
    fields, name = "string[] dof_names\nfloat64[] values\n", "pkg/msg/Dofs"
    msgs = [
        {"dof_names": list(order), "values": [k + 100.0 * (n == "b") for n in order]}
        for k, order in enumerate(["ab", "ab", "ba", "ba"])
    ]
    if encoding == "json":
        properties = {
            "dof_names": {"type": "array", "items": {"type": "string"}},
            "values": {"type": "array", "items": {"type": "number"}},
        }
        path = write_json(tmp_path / "a.mcap", msgs, schema={"type": "object", "properties": properties})
    else:
        if name not in ROS1.types:
            ROS1.register(get_types_from_msg(fields, name))
        messages = [
            (START + k, ROS1.types[name](msg["dof_names"], np.array(msg["values"]))) for k, msg in enumerate(msgs)
        ]
        path = write_bag1(tmp_path / "a.bag", {"data": (name, messages)})
    stream = read(path).only["data/values"]
    assert stream.names == ["a", "b"]
    assert np.array(stream.rows).tolist() == [[k, k + 100.0] for k in range(4)]


def test_other_names_in_a_later_bag_are_another_subject(tmp_path):
    fields = "string[] names\nfloat64[] values\n"
    for bag, order in (("a", "ab"), ("b", "cd"), ("c", "ba")):
        messages = [{"names": list(order), "values": np.array([float(ord(n)) for n in order])}] * 2
        write_named(tmp_path / f"bags/{bag}.mcap", "pkg/msg/Named", fields, messages)
    readout = read(tmp_path / "bags").recordings
    assert np.array(readout["b.mcap"]["data/c,d/values"].rows).tolist() == [[99, 100]] * 2
    for bag in "ac":
        assert np.array(readout[f"{bag}.mcap"]["data/values"].rows).tolist() == [[97, 98]] * 2
