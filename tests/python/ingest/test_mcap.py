"""MCAP files: with and without an index, cut off, damaged, and with messages in JSON and protobuf."""

import json
import re
import struct
import time
import tracemalloc
from functools import partial

import lz4.frame
import numpy as np
import pytest
import zstandard
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from loaders_by_keywords import loader_by_keywords
from mcap.reader import make_reader
from mcap.writer import IndexType, Writer
from robocache.ingest.messages import bags
from robocache.ingest.messages import json as messages_in_json
from robocache.ingest.messages.json import JsonDecoder
from robocache.ingest.messages.mcap import decompress
from robocache.ingest.messages.protobuf import ProtobufDecoder
from robocache.ingest.recording import SourceError
from ros_files import (
    MS,
    ROS1,
    START,
    definition,
    imus,
    joints,
    message,
    read,
    serialize,
    strings,
    write_channel,
    write_json,
    write_mcap,
)

import robocache

Field = descriptor_pb2.FieldDescriptorProto

# ---- files ----


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"index_types": IndexType.NONE},
        {"use_chunking": False},
        {"use_statistics": False, "use_summary_offsets": False},
        {"repeat_channels": False, "repeat_schemas": False},
        {"enable_crcs": False},
    ],
)
def test_files_with_and_without_index_summary_and_chunks(options, tmp_path):
    path = write_mcap(tmp_path / "a.mcap", {"/imu": imus(30)}, chunk_size=3000, **options)
    assert read(path).only["/imu"].time_ns == [START + k * 5 * MS for k in range(30)]


def test_a_symlink_out_of_the_source_is_left_out(tmp_path):
    write_mcap(tmp_path / "b.mcap", {"/imu": imus(20)})
    (tmp_path / "logs").mkdir()
    write_mcap(tmp_path / "logs/a.mcap", {"/imu": imus(30)})
    (tmp_path / "logs/b.mcap").symlink_to(tmp_path / "b.mcap")
    report = robocache.ingest(tmp_path / "logs", tmp_path / "cache")
    assert set(report.rows.values()) == {30} and "b.mcap" in {omission.what for omission in report.left_out}
    report = robocache.ingest(tmp_path / "logs", tmp_path / "cache2", follow_links=True)
    assert set(report.rows.values()) == {50}
    (tmp_path / "link.mcap").symlink_to(tmp_path / "b.mcap")
    assert set(robocache.ingest(tmp_path / "link.mcap", tmp_path / "cache3").rows.values()) == {20}


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
    readout = read(path)
    assert set(readout.only) == {"/say"}
    assert {"a.mcap: attachment 'calib.yaml'", "a.mcap: metadata 'robot'", "a.mcap: /silent", "/other"} <= set(
        readout.left_out
    )
    assert "flatbuffer" in readout.left_out["/other"]


def test_a_cut_file_gives_its_messages(tmp_path):
    path = write_mcap(tmp_path / "a.mcap", {"/imu": imus(100)}, chunk_size=3000)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(SourceError, match=r"a.mcap: byte \d+: expected a whole record .* the file ends early"):
        read(path)
    readout = read(path, on_error="skip")
    assert 10 < len(readout.only["/imu"].rows) < 60
    (what,) = readout.skipped
    assert what.startswith("a.mcap: from byte ")


def test_counts_are_compared_with_the_statistics(tmp_path):
    path = write_mcap(tmp_path / "a.mcap", {"/imu": imus(30)}, chunk_size=3000, enable_crcs=False)
    with path.open("rb") as file:
        summary = make_reader(file).get_summary()
    chunk = summary.chunk_indexes[1]
    content = bytearray(path.read_bytes())
    content[chunk.chunk_start_offset] = 0x80  # an unknown opcode is ignored
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
    readout = read(path, on_error="skip")
    assert 60 < len(readout.only["/imu"].rows) < 100
    assert sorted(readout.skipped) == ["a.mcap: /imu: messages", f"a.mcap: chunk at byte {chunk.chunk_start_offset}"]


@pytest.mark.parametrize(("opcode", "kind"), [(6, "chunk"), (5, "message")])
@pytest.mark.parametrize("length", [7, (256 << 20) + 1])
def test_a_record_of_impossible_size_is_skipped_alone(opcode, kind, length, tmp_path):
    path = write_mcap(tmp_path / "a.mcap", {"/imu": imus(300)}, chunk_size=4000)
    content = path.read_bytes()
    chunk_ends, offset = [], 8
    while len(chunk_ends) < 3:
        if content[offset] == 6:
            chunk_ends.append(offset + 9 + struct.unpack_from("<Q", content, offset + 1)[0])
        offset += 9 + struct.unpack_from("<Q", content, offset + 1)[0]
    with path.open("wb") as file:  # a gap after the third chunk
        file.write(content[: chunk_ends[2]] + struct.pack("<BQ", opcode, length))
        file.seek(length, 1)
        file.write(content[chunk_ends[2] :])
    message_part = (
        f"byte {chunk_ends[2]}: expected a {kind} of {40 if opcode == 6 else 22} to 268435456 bytes, got {length}"
    )
    with pytest.raises(SourceError, match=message_part):
        read(path)
    readout = read(path, on_error="skip")
    assert readout.only["/imu"].time_ns == [START + k * 5 * MS for k in range(300)]
    assert (
        list(readout.skipped) == [f"a.mcap: {kind} at byte {chunk_ends[2]}"]
        and message_part in readout.skipped[f"a.mcap: {kind} at byte {chunk_ends[2]}"]
    )


def test_zeros_at_the_end_are_no_records(tmp_path):
    content = write_mcap(tmp_path / "whole.mcap", {"/imu": imus(40)}, chunk_size=4000).read_bytes()
    path = tmp_path / "a.mcap"
    path.write_bytes(content[: len(content) // 2] + bytes(8_000_000))
    readout = read(path, on_error="skip")
    ((what, _),) = readout.skipped.items()
    assert 0 < len(readout.only["/imu"].rows) < 40 and int(what.split()[-1]) < len(content)
    packed = zstandard.compress(bytes(100_000_000))
    body = struct.pack("<QQQII4sQ", START, START, 100_000_000, 0, 4, b"zstd", len(packed)) + packed
    path.write_bytes(content[:8] + struct.pack("<BQ", 6, len(body)) + body + content[-8:])
    with pytest.raises(SourceError, match="a record of kind 0, 0 bytes at 0"):
        read(path)
    with path.open("wb") as file:  # a sparse file: the zeros take no space on the disk
        file.write(content[:8] + struct.pack("<BQ", 6, 1 << 33))
        file.truncate(17 + (1 << 33))
    with pytest.raises(SourceError, match=f"byte 8: expected a chunk of 40 to {256 << 20} bytes, got {1 << 33}"):
        read(path)
    (tmp_path / "a.bag").write_bytes(b"#ROSBAG V2.0\n" + bytes(8_000_000))
    with pytest.raises(SourceError, match="its kind in op"):
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
    with pytest.raises(SourceError, match="/a: messages of std_msgs/msg/Int64, but others of std_msgs/msg/String"):
        read(path)
    readout = read(path, on_error="skip")
    assert readout.only["/a"].rows == ["x"] and list(readout.skipped) == ["a.mcap: /a: messages of std_msgs/msg/Int64"]


def test_streams_of_one_name_are_refused(tmp_path):
    topics = {"/joints": ("sensor_msgs/msg/JointState", [(START, joints(0))]), "/joints/position": strings("x")}
    path = write_mcap(tmp_path / "a.mcap", topics)
    with pytest.raises(SourceError, match="its stream /joints/position has the name of a stream of topic /joints"):
        read(path)
    readout = read(path, on_error="skip")
    assert len(readout.only["/joints/position"].rows[0]) == 3 and list(readout.skipped) == ["a.mcap: /joints/position"]


# ---- JSON and protobuf ----


def test_json_messages(tmp_path):
    stamp = {"sec": START // 10**9, "nsec": START % 10**9}
    header = {"header": {"stamp": stamp, "frame_id": "f"}}
    messages = [
        header | {"x": 1, "y": {"z": 1.5}, "on": True, "s": "a", "v": [1, 2], "big": 2**60, "odd": [[1]]},
        header | {"x": 2, "y": {"z": 2}, "on": False, "s": "b", "v": [3, 4.5], "big": 2**60 + 1, "odd": 1},
    ]
    readout = read(write_json(tmp_path / "a.mcap", messages))
    streams = readout.only
    assert streams["data"].names == ["y.z", "on"] and streams["data"].time_ns == [START] * 2
    np.testing.assert_array_equal(streams["data"].rows, [[1.5, 1], [2, 0]])
    assert np.array(streams["data/big"].rows).tolist() == [[2**60], [2**60 + 1]]
    assert np.array(streams["data/x"].rows).tolist() == [[1], [2]]
    assert streams["data/s"].rows == ["a", "b"]
    np.testing.assert_array_equal(streams["data/v"].rows, [[1, 2], [3, 4.5]])
    assert "data: odd" in readout.left_out


@pytest.mark.parametrize(
    "stamp",
    [
        lambda ns: {"sec": ns // 10**9, "nsec": ns % 10**9},
        lambda ns: {"sec": float(ns // 10**9), "nanosec": ns % 10**9},
        lambda ns: {"seconds": str(ns // 10**9), "nanos": ns % 10**9},
        lambda ns: f"{np.datetime64(ns, 'ns')}Z",
        lambda ns: f"{np.datetime64(ns + 2 * 3600 * 10**9, 'ns')}+02:00",
    ],
)
@pytest.mark.parametrize("field", ["timestamp", "header"])
def test_a_stamp_in_json_is_the_clock_in_each_of_its_forms(stamp, field, tmp_path):
    expected = [START + k * MS + 7 for k in range(3)]
    stamps = [{"timestamp": stamp(ns)} if field == "timestamp" else {"header": {"stamp": stamp(ns)}} for ns in expected]
    messages = [fields | {"x": k + 0.5} for k, fields in enumerate(stamps)]
    streams = read(write_json(tmp_path / "a.mcap", messages, step=MS)).only
    assert list(streams) == ["data"] and streams["data"].time_ns == expected


def test_a_transform_s_stamp_in_json_may_be_text(tmp_path):
    expected = [START + k * MS + 7 for k in range(3)]
    facts = {"parent_frame_id": "map", "child_frame_id": "base", "translation": {"x": 1.5, "y": 0, "z": 0}}
    facts["rotation"] = {"x": 0, "y": 0, "z": 0, "w": 1}
    messages = [{"transforms": [{"timestamp": f"{np.datetime64(ns, 'ns')}Z", **facts}]} for ns in expected]
    path = write_json(tmp_path / "a.mcap", messages, "foxglove.FrameTransforms", step=MS)
    assert [stream.time_ns for stream in read(path).only.values()] == [expected]


@pytest.mark.parametrize(
    "without", [{}, {"timestamp": None}, {"timestamp": "unset"}, {"timestamp": "2016-12-31T23:59:60Z"}]
)
def test_a_json_message_without_its_stamp_is_named(without, tmp_path):
    stamps = [START + k * MS + 7 for k in range(4)]
    messages = [{"timestamp": {"sec": ns // 10**9, "nsec": ns % 10**9}, "x": 1.5} for ns in stamps]
    messages[2] = without | {"x": 1.5}
    readout = read(write_json(tmp_path / "a.mcap", messages, step=MS))
    assert "in 1 of 4 messages; log_time is the clock" in readout.left_out["a.mcap: data: timestamp as the clock"]
    assert ("data: timestamp" in readout.left_out) == (without.get("timestamp") is not None)
    streams = readout.only
    assert streams["data"].names == ["x"] and streams["data"].time_ns == [START + k * MS for k in range(4)]
    assert np.array(streams["data/timestamp"].rows).tolist() == [*stamps[:2], 0, stamps[3]]


def test_numbers_that_json_lacks_are_nan(tmp_path):
    streams = read(write_json(tmp_path / "a.mcap", [{"x": 1.5, "k": 7}, {"k": None}, {"x": 2.5, "new": 3}])).only
    assert streams["data"].names == ["x", "k", "new"]
    np.testing.assert_array_equal(streams["data"].rows, [[1.5, 7, np.nan], [np.nan] * 3, [2.5, np.nan, 3]])


def test_each_topic_in_json_has_its_own_type(tmp_path):
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
    msg = message("geometry_msgs/msg/Vector3", ROS1, x=1.5, z=-2.0)
    raw = bytes(ROS1.serialize_ros1(msg, "geometry_msgs/msg/Vector3"))
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


def test_an_integer_that_appears_late_is_nan_before():
    decoder = JsonDecoder()
    batch, faults = decoder.decode([memoryview(b"{}"), memoryview(b'{"new": 3}')])
    assert not faults
    np.testing.assert_array_equal(batch.numbers(decoder.leaves[0]), [np.nan, 3])


def test_invalid_json_is_skipped_by_message(tmp_path):
    path = write_json(tmp_path / "a.mcap", [{"x": 1.5}, b"{", b"[1]", b"\xff", b"[" * 100_000, {"x": 2.5}])
    with pytest.raises(SourceError, match="data: message 1: thing: no JSON"):
        read(path)
    readout = read(path, on_error="skip")
    assert np.array(readout.only["data"].rows).tolist() == [[1.5], [2.5]]
    assert list(readout.skipped) == ["a.mcap: data: messages 1-4"]


def protobuf_class():
    """message Thing { Timestamp timestamp; double x; repeated float v; Inner inner; repeated Inner more; bytes blob; string s; Kind kind; }"""
    file = descriptor_pb2.FileDescriptorProto(
        name="thing.proto", package="p", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="A", number=0)
    kind.value.add(name="B", number=2)
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="n", number=1, type=Field.TYPE_INT64)
    inner.field.add(name="again", number=2, type=Field.TYPE_MESSAGE, type_name=".p.Inner")
    thing = file.message_type.add(name="Thing")
    fields = [
        ("timestamp", Field.TYPE_MESSAGE, False, ".google.protobuf.Timestamp"),
        ("x", Field.TYPE_DOUBLE, False, None),
        ("v", Field.TYPE_FLOAT, True, None),
        ("inner", Field.TYPE_MESSAGE, False, ".p.Inner"),
        ("more", Field.TYPE_MESSAGE, True, ".p.Inner"),
        ("blob", Field.TYPE_BYTES, False, None),
        ("s", Field.TYPE_STRING, False, None),
        ("kind", Field.TYPE_ENUM, False, ".p.Kind"),
    ]
    for number, (name, type, is_repeated, type_name) in enumerate(fields, 1):
        label = Field.LABEL_REPEATED if is_repeated else Field.LABEL_OPTIONAL
        thing.field.add(name=name, number=number, type=type, label=label, type_name=type_name)
    base = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(base)
    pool = DescriptorPool()
    pool.Add(base)
    pool.Add(file)
    files = descriptor_pb2.FileDescriptorSet(file=[file, base])  # a file before the one that it imports
    return GetMessageClass(pool.FindMessageTypeByName("p.Thing")), files.SerializeToString()


def test_protobuf_messages(tmp_path):
    Thing, descriptors = protobuf_class()
    messages = []
    for k in range(4):
        thing = Thing(x=k / 2, v=[k, 0.5], blob=b"\0" * k, s=f"s{k}", kind=2 * (k % 2))
        thing.timestamp.FromNanoseconds(START + k * MS)
        thing.inner.n = 2**60 + k
        for i in range(k):
            thing.more.add(n=i)
        messages.append(thing)
    payloads = [(START + k * MS + 1, thing.SerializeToString()) for k, thing in enumerate(messages)]
    readout = read(write_channel(tmp_path / "a.mcap", "protobuf", ("p.Thing", "protobuf", descriptors), payloads))
    streams = readout.only
    assert streams["data"].names == ["x", "kind"] and streams["data"].time_ns == [START + k * MS for k in range(4)]
    np.testing.assert_array_equal(streams["data"].rows, [[k / 2, 2 * (k % 2)] for k in range(4)])
    np.testing.assert_array_equal(streams["data/v"].rows, [[k, 0.5] for k in range(4)])
    assert np.array(streams["data/inner.n"].rows).tolist() == [[2**60 + k] for k in range(4)]
    assert [row.tolist() for row in streams["data/more"].rows] == [[[i] for i in range(k)] for k in range(4)]
    assert [row.tobytes() for row in streams["data/blob"].rows] == [b"\0" * k for k in range(4)]
    assert streams["data/s"].rows == ["s0", "s1", "s2", "s3"]
    assert "data: inner.again" in readout.left_out


def reading_class():
    """message Reading { double force; optional double range; optional int32 count; oneof of { Turn turn; double angle; } repeated Reading parts; }"""
    file = descriptor_pb2.FileDescriptorProto(name="reading.proto", package="p", syntax="proto3")
    turn = file.message_type.add(name="Turn")
    for number, name in enumerate("xyzw", 1):
        turn.field.add(name=name, number=number, type=Field.TYPE_DOUBLE)
    reading = file.message_type.add(name="Reading")
    for oneof in ("of", "_range", "_count"):
        reading.oneof_decl.add(name=oneof)
    reading.field.add(name="force", number=1, type=Field.TYPE_DOUBLE)
    reading.field.add(name="range", number=2, type=Field.TYPE_DOUBLE, proto3_optional=True, oneof_index=1)
    reading.field.add(name="count", number=3, type=Field.TYPE_INT32, proto3_optional=True, oneof_index=2)
    reading.field.add(name="turn", number=4, type=Field.TYPE_MESSAGE, type_name=".p.Turn", oneof_index=0)
    reading.field.add(name="angle", number=5, type=Field.TYPE_DOUBLE, oneof_index=0)
    part = file.message_type.add(name="Part")
    part.field.add(name="turn", number=1, type=Field.TYPE_MESSAGE, type_name=".p.Turn")
    reading.field.add(name="parts", number=6, type=Field.TYPE_MESSAGE, label=Field.LABEL_REPEATED, type_name=".p.Part")
    pool = DescriptorPool()
    pool.Add(file)
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    return GetMessageClass(pool.FindMessageTypeByName("p.Reading")), files.SerializeToString()


def test_missing_protobuf_fields_are_nan_if_the_type_has_presence(tmp_path):
    Reading, descriptors = reading_class()
    messages = [
        Reading(force=1, range=0, count=3, turn={"w": 1}, parts=[{"turn": {"w": 1}}]),
        Reading(angle=0.5, parts=[{}]),
        Reading(range=2, count=0, turn={}),
    ]
    payloads = [(START + k * MS, msg.SerializeToString()) for k, msg in enumerate(messages)]
    readout = read(write_channel(tmp_path / "a.mcap", "protobuf", ("p.Reading", "protobuf", descriptors), payloads))
    streams, nan = readout.only, np.nan
    columns = dict(zip(streams["data"].names, np.array(streams["data"].rows, np.float64).T, strict=True))
    for name, values in {
        "force": [1, 0, 0],
        "range": [0, nan, 2],
        "count": [3, 0, 0],
        "turn.x": [0, nan, 0],
        "turn.w": [1, nan, 0],
        "angle": [nan, 0.5, nan],
    }.items():
        np.testing.assert_array_equal(columns[name], values, err_msg=name)
    parts = streams["data/parts"].rows
    np.testing.assert_array_equal(parts[0], [[0, 0, 0, 1]])
    np.testing.assert_array_equal(parts[1], [[nan] * 4])
    absent = {name for name, reason in readout.left_out.items() if "absent" in str(reason)}
    assert absent == {f"data: {name}" for name in ("range", "count", "turn", "angle", "parts.turn")}


def test_protobuf_without_its_descriptors_is_left_out(tmp_path):
    path = write_channel(tmp_path / "a.mcap", "protobuf", ("p.Thing", "protobuf", b"\xff\xff"), [(START, b"")])
    readout = read(path)
    assert not readout.only and "descriptors cannot be read" in readout.left_out["data"]


def test_lz4_with_a_small_declared_size_takes_no_memory():
    context = lz4.frame.create_compression_context()
    begin = lz4.frame.compress_begin(context, source_size=1000)
    packed = begin + lz4.frame.compress_chunk(context, bytes(64 << 20)) + bytes(4)
    assert lz4.frame.get_frame_info(packed)["content_size"] == 1000 and len(packed) < 1 << 20
    tracemalloc.start()
    assert len(decompress("lz4", memoryview(packed), 1000, "a.mcap: byte 8")) == 1001
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def merge_chunks(count):
    """Merges consecutive chunks of a thousand small messages; the first message of each chunk is at time 0. Returns for
    each part its log times and the number of chunks read until then."""
    chunks_read = []

    def read_chunk(number):
        chunks_read.append(number)
        logs = [0, *range(number * 1000 + 1, (number + 1) * 1000)]
        return logs, [0] * 1000, logs, [memoryview(b"x")] * 1000

    chunks = [bags.Chunk(0, (number + 1) * 1000, partial(read_chunk, number)) for number in range(count)]
    return [(part.messages[0].log_ns, len(chunks_read)) for part in bags.merge(chunks, {})]


def test_the_memory_of_overlapping_chunks_includes_pythons_objects(monkeypatch):
    monkeypatch.setattr(bags, "_HELD_BYTES", 1 << 20)
    parts = merge_chunks(20)
    assert sum(len(logs) for logs, _ in parts) == 20_000
    assert parts[0][1] <= 4  # if a message counted as one byte, all chunks would be held


def test_chunks_that_begin_with_an_early_message_take_linear_time():
    started = time.process_time()
    ((logs, _),) = merge_chunks(400)
    assert logs == sorted(logs) and len(logs) == 400_000
    assert time.process_time() - started < 15  # sorting all messages for each chunk would take a minute


def test_of_many_fields_in_json_the_first_are_read(monkeypatch):
    monkeypatch.setattr(messages_in_json, "MAX_LEAVES", 3)
    decoder = JsonDecoder()
    batch, faults = decoder.decode([json.dumps({"x": k, f"id{k}": k}).encode() for k in range(5)])
    assert not faults and [leaf.path for leaf in decoder.leaves] == ["x", "id0", "id1"]
    assert batch.numbers(decoder.leaves[0]).tolist() == [0, 1, 2, 3, 4]
    assert decoder.left_out == {"other fields": "more than the first 3"}


SCHEMA = {
    "type": "object",
    "properties": {
        "x": {"type": "number"},
        "maybe": {"type": ["number", "null"]},
        "count": {"type": "integer"},
        "ranges": {"type": "array", "items": {"type": "number"}},
        "pose": {"$ref": "#/$defs/pose"},
        "points": {"type": "array", "items": {"$ref": "#/$defs/pose"}},
    },
    "$defs": {"pose": {"type": "object", "properties": {"yaw": {"type": "number"}, "id": {"type": "integer"}}}},
}


@pytest.mark.parametrize("with_schema", [True, False])
def test_numbers_in_json_have_the_schemas_type(with_schema, tmp_path):
    """Many languages write 1.0 as 1 in JSON. Without a schema, all files of a source decide together."""
    for file, factor in (("a", 1), ("b", 1.5)):
        messages = [
            {
                "x": factor * k,
                "maybe": factor * k,
                "count": k,
                "ranges": [factor * k, factor],
                "pose": {"yaw": factor * k, "id": k},
                "points": [{"yaw": factor * k, "id": k}] * 2,
            }
            for k in range(1, 4)
        ]
        write_json(tmp_path / f"bags/{file}.mcap", messages, schema=SCHEMA if with_schema else None)
        if with_schema:
            robocache.ingest(tmp_path / f"bags/{file}.mcap", tmp_path / file)
            streams = robocache.open(tmp_path / file).streams
            assert streams["data"].dtype == streams["data/ranges"].dtype == "float64"
            assert streams["data/points"].dtype == "float64"
    robocache.ingest(tmp_path / "bags", tmp_path / "cache")
    streams = robocache.open(tmp_path / "cache").streams
    numbers = streams["data"]
    rows = {name: numbers.values[:, number].tolist() for number, name in enumerate(numbers.names)}
    expected = [1, 2, 3, 1.5, 3, 4.5]
    assert rows["x"] == rows["maybe"] == rows["pose.yaw"] == expected
    assert streams["data/ranges"].values.tolist() == [
        [a, b] for a, b in zip(expected, [1] * 3 + [1.5] * 3, strict=True)
    ]
    assert streams["data/count"].dtype == streams["data/pose.id"].dtype == "int64"


@pytest.mark.parametrize(
    ("messages", "is_noted"),
    [
        ([{"t": 2**53 + 1}, {"t": 0.5}], True),
        ([{"t": 2**53 + 1}, {}], True),
        ([{"t": [2**53 + 1, 1]}, {"t": [0.5, 1]}], True),
        ([{"t": [2**53 + 1, 0.5]}], True),
        ([{"t": 2**53 + 1}, {"t": 2}], False),
        ([{"t": 2**60}, {"t": 0.5}], False),
        ([{"t": [2**53 + 1, 1]}, {"t": [5, 1]}], False),
    ],
)
def test_integers_in_json_that_float64_rounds_are_noted(messages, is_noted, tmp_path):
    readout = read(write_json(tmp_path / "a.mcap", messages))
    assert ("data: t: its last digits" in readout.left_out) == is_noted
    assert is_noted or int(np.asarray(readout.only["data"].rows[0]).reshape(-1)[0]) == np.ravel(messages[0]["t"])[0]


def test_two_fields_of_one_name_in_json_are_named(tmp_path):
    path = write_json(tmp_path / "a.mcap", [{"a.b": 1.5, "a": {"b": 2.5}}, {"a": {"b": 2.5}}])
    readout = read(path, on_error="skip")
    assert np.array(readout.only["data"].rows).tolist() == [[2.5]]
    assert "two fields have the name 'a.b'" in readout.skipped["a.mcap: data: messages 0"]


def test_half_a_pair_of_surrogates_in_json_is_escaped(tmp_path):
    """Such a half remains of an emoji that was cut."""
    path = write_json(tmp_path / "a.mcap", [b'{"\\udc00": "\\ud83d", "many": ["\\ud83d\\ude00", "\\ud83d"]}'] * 2)
    robocache.ingest(path, tmp_path / "cache")
    streams = robocache.open(tmp_path / "cache").streams
    assert list(streams["data/\\udc00"][:2]) == ["\\ud83d"] * 2
    assert [json.loads(text) for text in streams["data/many"][:2]] == [["\U0001f600", "\\ud83d"]] * 2


def test_a_deeply_nested_definition_is_refused():
    descriptors = descriptor_pb2.FileDescriptorSet()
    file = descriptors.file.add(name="a.proto", package="pkg", syntax="proto3")
    for level in range(18):
        kind = file.message_type.add(name=f"M{level}")
        for number, name in enumerate("ab" if level < 17 else (), 1):
            kind.field.add(
                name=name,
                number=number,
                label=Field.LABEL_REPEATED,
                type=Field.TYPE_MESSAGE,
                type_name=f".pkg.M{level + 1}",
            )
    with pytest.raises(robocache.Error, match="more than 20000 nested messages"):
        ProtobufDecoder("pkg.M0", descriptors.SerializeToString())


def test_rule_47_texts_by_index_and_by_stamp_round_trip(tmp_path):
    stamps = 10**18 + np.arange(6) * 10**8
    with robocache.Writer(tmp_path / "cache") as writer:
        for number in range(2):
            with writer.episode(tasks=["pick", "pour"]) as episode:
                episode.append("action", stamps, np.arange(6.0))
                episode.append("goal", stamps[number:], np.array([0, 0, 7, 3, 7, 0])[number:])
                episode.append("said", stamps[[0, 4]], ["now", ""])
        writer.stream("goal", attributes={"task": True, "texts": "lerobot.tasks"})
        writer.provenance["lerobot"] = {"tasks": {"0": "pick", "7": "pour"}}
    robocache.export(tmp_path / "cache", tmp_path / "out", to="mcap")
    robocache.ingest(tmp_path / "out", tmp_path / "again")
    robocache.ingest(tmp_path / "out", tmp_path / "shards", workers=2)
    expected = ["pick", "pick", "pour", None, "pour", "pick", None, "pick", "pour", None, "pour", "pick"]
    for cache in ("cache", "again", "shards"):
        dataset = robocache.open(tmp_path / cache)
        options = {"batch_size": 12, "delta_timestamps": {"action": None}, "shuffle": False, "device": "cpu"}
        assert next(loader_by_keywords(dataset, task_text=True, **options))["task"] == expected
        assert next(loader_by_keywords(dataset, task_text="said", **options))["task"] == (["now"] * 4 + [None] * 2) * 2

    with robocache.Writer(tmp_path / "other") as writer:
        with writer.episode() as episode:
            episode.append("goal", stamps, np.zeros(6, np.int64))
        writer.stream("goal", attributes={"task": True, "texts": "lerobot.tasks"})
        writer.provenance["lerobot"] = {"tasks": {"0": "wipe"}}
    robocache.export(tmp_path / "other", tmp_path / "out2", to="mcap")
    (tmp_path / "out2/episode_000000.mcap").rename(tmp_path / "out/other.mcap")
    with pytest.raises(robocache.FileError, match=r"other.mcap: its texts lerobot.tasks"):
        robocache.ingest(tmp_path / "out", tmp_path / "mixed")


@pytest.mark.parametrize("field", ["channel", "log time", "publish time"])
@pytest.mark.parametrize("with_chunks", [True, False])
def test_one_malformed_message_keeps_the_others_of_its_chunk(with_chunks, field, tmp_path):
    path = write_mcap(tmp_path / "a.mcap", {"/say": strings(*"abcde")}, use_chunking=with_chunks, enable_crcs=False)
    content = bytearray(path.read_bytes())
    messages = [match.start() for match in re.finditer(rb"\x05[\x1c-\x30]\0{7}..\0{4}", bytes(content), re.DOTALL)]
    assert len(messages) == 5
    offset = messages[2] + 9
    if field == "channel":
        content[offset : offset + 2] = b"\x63\0"
    else:
        content[offset + (6 if field == "log time" else 14) + 7] |= 0x80
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"channel 99|2\^63"):
        read(path)
    readout = read(path, on_error="skip")
    assert readout.only["/say"].rows == list("abde")
    assert any("channel 99" in text or "2^63" in text for text in readout.skipped.values())
