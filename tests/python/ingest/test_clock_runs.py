"""`repair="split"` in the formats themselves: where a recorder's clock was reset an episode begins, and no column of theirs is lost."""

import struct

import numpy as np
import pytest
from ros_files import ROS1, ROS2, START, header, message, write_bag1, write_database, write_mcap
from test_calvin import write_calvin
from test_rlds import toy_example, write_toy
from test_ulog import announce, form
from test_ulog import header as ulog_header
from test_ulog import message as ulog_message

import robocache

MS = 1_000_000
# Milliseconds behind START: the clock is reset in the third row and in the fifth.
STAMPS = [100, 110, 50, 60, 0, 0, 10]
RUNS = [[0, 1], [2, 3], [4, 5, 6]]


def imus(store, phase):
    """Rows that are logged in order, while their headers' clock is reset."""
    rows = [
        message(
            "sensor_msgs/msg/Imu",
            store,
            header=header(START + (at + phase) * MS, store=store),
            angular_velocity=message("geometry_msgs/msg/Vector3", store, x=float(row)),
        )
        for row, at in enumerate(STAMPS)
    ]
    return "sensor_msgs/msg/Imu", [(START + row * 10 * MS, made) for row, made in enumerate(rows)]


def write_mcap_bag(folder):
    return write_mcap(folder / "bag.mcap", {name: imus(ROS2, phase) for name, phase in (("/a", 0), ("/b", 3))})


def write_ros2_bag(folder):
    return write_database(folder / "bag.db3", {name: imus(ROS2, phase) for name, phase in (("/a", 0), ("/b", 3))})


def write_ros1_bag(folder):
    return write_bag1(folder / "bag.bag", {name: imus(ROS1, phase) for name, phase in (("/a", 0), ("/b", 3))})


def write_ulog(folder):
    fields = "uint64_t timestamp;float[3] angular_velocity;"
    rows = [
        ulog_message("D", struct.pack("<HQ3f", topic, (START + (at + phase) * MS) // 1000, row, 0, 0))
        for row, at in enumerate(STAMPS)
        for topic, phase in ((0, 0), (1, 3))
    ]
    made = [ulog_header(), form(f"/a:{fields}"), form(f"/b:{fields}"), announce(0, "/a"), announce(1, "/b"), *rows]
    path = folder / "log.ulg"
    path.write_bytes(b"".join(made))
    return path


@pytest.mark.parametrize("write", [write_mcap_bag, write_ros2_bag, write_ros1_bag, write_ulog])
def test_a_reset_clock_begins_an_episode(write, tmp_path):
    source = write(tmp_path)
    with pytest.raises(robocache.FileError, match=r"stream '/a': row 2 is at \d+ ns.* a step back of 0.06 s"):
        robocache.ingest(source, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    report = robocache.ingest(source, tmp_path / "cache", repair="split")
    assert report.episodes == 3 and report.repaired["/a"] == {"backward_steps": 2, "episodes": 3}
    cache = robocache.open(tmp_path / "cache")
    assert cache.episodes["clock_run"].to_pylist() == [0, 1, 2]
    for name, phase in (("/a", 0), ("/b", 3)):
        stream = cache.streams[name]
        column = next(i for i, feature in enumerate(stream.names) if feature.startswith("angular_velocity"))
        for episode, rows in enumerate(RUNS):
            found = slice(*stream.row_offsets[episode : episode + 2])
            wanted = [(START + (STAMPS[row] + phase) * MS) // 1000 for row in rows]
            assert (stream.time_ns[found] // 1000).tolist() == wanted
            assert stream.values[found][:, column].tolist() == rows


def test_a_column_split_of_the_source_stays(tmp_path):
    """RLDS and CALVIN have one; clocks of row numbers never step back."""
    robocache.ingest(
        write_toy(tmp_path / "toy", toy_example(1), toy_example(2)), tmp_path / "a", repair="split", rate_hz=5
    )
    write_calvin(tmp_path / "calvin" / "training", [[0, 2], [7, 9]])
    robocache.ingest(tmp_path / "calvin", tmp_path / "b", repair="split")
    for cache, split in (("a", "train"), ("b", "training")):
        episodes = robocache.open(tmp_path / cache).episodes
        assert (episodes["split"].to_pylist(), episodes["clock_run"].to_pylist()) == ([split] * 2, [0, 0])


def test_a_column_of_that_name_is_refused_and_can_be_renamed(toy, tmp_path):
    from robocache.ingest.recording import Recording, Rows

    def read(options, notes):
        rows = Rows(np.array([1, 2, 0]), np.zeros(3))
        yield Recording("one", "FILE", {"clock_run": "mine"}, [("imu", rows)])

    with pytest.raises(robocache.FileError, match="'clock_run', which the metadata have; a mapping renames theirs"):
        toy(read, repair="split")
    toy(read, repair="split", mapping={"episodes": {"rename": {"clock_run": "run"}}})
    episodes = robocache.open(tmp_path / "cache").episodes
    assert (episodes["run"].to_pylist(), episodes["clock_run"].to_pylist()) == (["mine"] * 2, [0, 1])
