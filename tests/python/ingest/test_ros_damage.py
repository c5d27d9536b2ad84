"""Damaged and invalid files of messages, synthetic and real, give an error that names the file, or a result."""

from pathlib import Path

import numpy as np
import pytest
from damage import damage
from robocache.ingest.recording import SourceError
from ros_files import (
    PADDED,
    ROS1,
    START,
    cloud,
    image,
    imus,
    joints,
    message,
    random_points,
    read,
    write_bag1,
    write_database,
    write_mcap,
)
from soak import rounds

import robocache


def check_damaged(path, content, format, rng, times):
    """Asserts that reading gives a result, or an error that names the file."""
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
    ("name", "content", "message"),
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
def test_files_of_other_content(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message) as caught:
        read(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
