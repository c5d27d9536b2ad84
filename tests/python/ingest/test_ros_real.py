"""Real recordings, compared with the formats' own libraries."""

import json
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from mcap.reader import make_reader
from mcap_protobuf.decoder import DecoderFactory
from robocache.ingest import registry
from robocache.ingest.recording import SourceError, Texts
from ros_files import read
from rosbags.highlevel import AnyReader
from rosbags.typesys import Stores, get_typestore

import robocache


def get_field(msg, path):
    """Returns a field of a message of rosbags by its path."""
    for part in path.replace("]", "").replace("[", ".").split("."):
        msg = msg[int(part)] if part.isdecimal() else getattr(msg, part)
    return msg


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
def test_real_bags_equal_rosbags(name, format, real_data):
    source = Path(real_data(name))
    readout = read(source, format).only
    store = get_typestore(Stores.ROS2_HUMBLE if format == "rosbag2" else Stores.ROS1_NOETIC)
    with AnyReader([source], default_typestore=store) as reader:
        topics = {}
        for connection, time_ns, raw in reader.messages():
            topics.setdefault(connection.topic, []).append((time_ns, reader.deserialize(raw, connection.msgtype)))
    checked = set()
    for topic, messages in topics.items():
        for stream_name, stream in readout.items():
            if stream_name != topic and not stream_name.startswith(f"{topic}/"):
                continue
            path = stream_name[len(topic) + 1 :]
            if stream.attributes["clock_source"] == "header.stamp":
                stamps = [msg.header.stamp.sec * 10**9 + msg.header.stamp.nanosec for _, msg in messages]
            else:
                stamps = [time_ns for time_ns, _ in messages]
            assert stream.time_ns == stamps, stream_name
            if stream.names:
                expected = [[get_field(msg, part) for part in stream.names] for _, msg in messages]
            else:
                expected = [get_field(msg, path or "data") for _, msg in messages]
            if isinstance(stream.part, Texts):
                assert stream.rows == expected
            else:
                np.testing.assert_array_equal(stream.rows, expected)
            checked.add(stream_name)
    assert checked == set(readout)


def test_a_real_protobuf_file_equals_its_library(real_data):
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
        assert streams[topic].time_ns == [msg.timestamp.seconds * 10**9 + msg.timestamp.nanos for _, msg in messages]
        assert [row.tobytes() for row in streams[topic].rows] == [msg.value for _, msg in messages]
    assert read(source, stamp="log").only[topic].time_ns == [time_ns for time_ns, _ in messages]


def test_real_frames_of_realsense(real_data):
    source = Path(real_data("rosbag1/realsense")) / "test_rs.bag"
    readout = read(source)
    depth, colour = (readout.only[f"/device_0/sensor_{name}/image/data"] for name in ("0/Depth_0", "1/Color_0"))
    assert (len(depth.rows), depth.rows[0].shape, depth.rows[0].dtype) == (6, (480, 640, 1), np.uint16)
    assert (len(colour.rows), colour.rows[0].shape) == (5, (480, 640, 3))
    assert depth.part.unit_m == 0.001 and depth.part.intrinsics[0][0] > 300
    with AnyReader([source]) as reader:
        raws = [
            bytes(raw) for connection, _, raw in reader.messages() if connection.topic.endswith("Depth_0/image/data")
        ]
        count = reader.message_count
    for row, raw in zip(depth.rows, raws, strict=True):  # rosbags refuses them: they have 4 bytes more than their type
        assert row.tobytes() == raw[-4 - 640 * 480 * 2 : -4]
    streams = readout.only
    topics = {name.split("/image/data")[0] for name in streams}
    assert count == 375 and len(topics) > 90
    assert any("bytes after its end" in what for what in readout.left_out)


def test_a_real_json_file_beside_a_video_of_another_length(real_data):
    readout = read(Path(real_data("mcap/depthai_recording")))
    assert len(readout.only["video"].rows) == 124
    assert (
        readout.left_out["recording.mcap: recording.mp4"]
        == "a video beside recording.mcap, not read; it has 103 frames, the topics have messages: video 124"
    )
    with (Path(real_data("mcap/depthai_recording")) / "recording.mcap").open("rb") as file:
        decoded = [(raw.log_time, json.loads(raw.data)) for _, _, raw in make_reader(file).iter_messages()]
    stream = readout.only["video"]
    assert stream.time_ns == [time_ns for time_ns, _ in decoded]
    expected = [
        [reduce(lambda tree, key: tree[key], name.split("."), msg) for name in stream.names] for _, msg in decoded
    ]
    assert np.array(stream.rows).tolist() == expected


def test_a_real_file_whose_carriage_returns_git_removed(real_data):
    source = Path(real_data("mcap/keelson")) / "2024-05-15.mcap"
    with pytest.raises(SourceError, match=r"lack the CR .* line ends were converted"):
        read(source)
    assert read(Path(real_data("mcap/keelson")) / "test_303bytes.mcap").only == {}


def test_a_real_bag_with_its_own_type(real_data, tmp_path):
    """The robot's own log has the same numbers, with six digits."""
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
