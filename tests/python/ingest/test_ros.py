"""Bags of ROS 2 and ROS 1: folders, metadata, databases, and their caches."""

import sqlite3
import struct
import tracemalloc

import numpy as np
import pytest
import zstandard
from loaders_by_keywords import loader_by_keywords
from mcap.reader import make_reader
from outcomes import reasons
from robocache.ingest import registry
from robocache.ingest.messages import passes
from robocache.ingest.options import make_options
from robocache.ingest.recording import Notes, SourceError
from ros_files import (
    MS,
    PLAIN,
    ROS1,
    START,
    cloud,
    definition,
    header,
    image,
    imus,
    message,
    random_points,
    read,
    strings,
    write_bag1,
    write_database,
    write_mcap,
    write_metadata,
)

import robocache

# ---- bags ----


def test_each_bag_of_a_folder_is_a_recording(tmp_path):
    """A split bag, one of MCAP, a bare database and a bare MCAP file."""
    name, messages = imus(30)
    for part in range(3):
        write_database(tmp_path / f"bags/split/part_{part}.db3", {"/imu": (name, messages[part * 10 : part * 10 + 10])})
    # Old versions wrote such paths.
    write_metadata(tmp_path / "bags/split", [f"split/part_{part}.db3" for part in range(3)], {"/imu": 30})
    write_mcap(tmp_path / "bags/whole/whole_0.mcap", {"/imu": (name, messages[:4])})
    write_metadata(tmp_path / "bags/whole", ["whole_0.mcap"], {"/imu": 4})
    write_database(tmp_path / "bags/bare.db3", {"/imu": (name, messages[:5])}, definitions=False)
    write_mcap(tmp_path / "bags/x.mcap", {"/imu": (name, messages[:6])})
    (tmp_path / "bags/bare.db3-shm").write_bytes(bytes(32768))
    (tmp_path / "bags/bare.db3-wal").touch()
    readout = read(tmp_path / "bags")
    assert {recording: len(streams["/imu"].rows) for recording, streams in readout.recordings.items()} == {
        "bare.db3": 5,
        "split": 30,
        "whole": 4,
        "x.mcap": 6,
    }
    assert readout.recordings["split"]["/imu"].time_ns == [START + k * 5 * MS for k in range(30)]
    assert sorted(path.name for path in (tmp_path / "bags").iterdir()) == [
        "bare.db3",
        "bare.db3-shm",
        "bare.db3-wal",
        "split",
        "whole",
        "x.mcap",
    ]


@pytest.mark.parametrize("kind", ["mcap", "db3", "bag", "parts"])
def test_run_2_is_before_run_10(kind, tmp_path):
    """Names in this order give the order of recordings, and of a bag's files if its metadata cannot be read."""
    name, messages = imus(12)
    for k in range(12):
        path, topics = tmp_path / f"bags/run_{k}.{kind}", {"/imu": (name, messages[k : k + 1])}
        if kind == "mcap":
            write_mcap(path, topics)
        elif kind == "bag":
            write_bag1(
                path, {"/imu": ("std_msgs/msg/Float64", [(START + k, message("std_msgs/msg/Float64", ROS1, data=k))])}
            )
        else:
            write_database(path.with_suffix(".db3"), topics)
    if kind == "parts":
        (tmp_path / "bags/metadata.yaml").write_text("rosbag2_bagfile_information: [")
    report = robocache.ingest(tmp_path / "bags", tmp_path / "cache", on_error="skip")
    names = robocache.open(tmp_path / "cache").episodes["name"].to_pylist()
    assert names == (["bags"] if kind == "parts" else [f"run_{k}.{kind}" for k in range(12)])
    assert sum(report.rows.values()) >= 12 and not report.skipped[kind == "parts" :]


def test_missing_messages_by_the_metadata_are_named(tmp_path):
    write_database(tmp_path / "bag/a.db3", {"/imu": imus(5)})
    write_metadata(tmp_path / "bag", ["a.db3", "b.db3"], {"/imu": 9})
    write_database(tmp_path / "bag/c.db3", {"/imu": imus(5)})
    with pytest.raises(SourceError, match=r"metadata.yaml: b.db3 does not exist"):
        read(tmp_path / "bag")
    readout = read(tmp_path / "bag", on_error="skip")
    assert len(readout.only["/imu"].rows) == 5
    assert set(readout.skipped) == {"bag: b.db3", "bag: /imu: messages"}
    assert "5 messages, but metadata.yaml counts 9" in readout.skipped["bag: /imu: messages"]
    assert readout.left_out["bag: c.db3"] == "metadata.yaml does not name it"


@pytest.mark.parametrize("name", ["/etc/passwd", "../other.db3", "a/../../b.db3"])
def test_metadata_may_not_name_files_elsewhere(name, tmp_path):
    write_database(tmp_path / "other.db3", {"/imu": imus(5)})
    (tmp_path / "bag").mkdir()
    write_metadata(tmp_path / "bag", [name], {})
    with pytest.raises(SourceError, match="expected files beside it"):
        read(tmp_path / "bag", on_error="stop")


def test_rows_in_an_unmerged_write_ahead_log_are_noted(tmp_path):
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


def test_missing_definitions_are_read_from_a_folder(tmp_path):
    path = write_database(tmp_path / "bag/a.db3", {"/imu": imus(5)}, definitions=False)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE topics SET type = 'mine/msg/Imu2'")
    database.close()
    readout = read(path)
    assert not readout.only and "no definition of mine/msg/Imu2" in readout.left_out["/imu"]
    (tmp_path / "mine/msg").mkdir(parents=True)
    (tmp_path / "mine/msg/Imu2.msg").write_text(definition("sensor_msgs/msg/Imu").split("=====")[0])
    with pytest.raises(robocache.ArgumentError, match="definitions: expected a folder"):
        read(path, definitions=str(tmp_path / "none"))
    readout = read(path, definitions=str(tmp_path))
    assert len(readout.only["/imu"].rows) == 5
    assert readout.only["/imu"].attributes["schema"] == "mine/msg/Imu2"


@pytest.mark.parametrize("compression", [None, "bz2", "lz4"])
def test_bags_of_ros_1(compression, tmp_path):
    def imu1(k):
        vector = message("geometry_msgs/msg/Vector3", ROS1, x=k + 0.25)
        head = message("std_msgs/msg/Header", ROS1, seq=k, stamp=header(START + k, store=ROS1).stamp, frame_id="base")
        return message("sensor_msgs/msg/Imu", ROS1, header=head, angular_velocity=vector)

    def say(k):
        return message("std_msgs/msg/String", ROS1, data="x" * k)

    topics = {
        "/imu": ("sensor_msgs/msg/Imu", [(START + k + 7, imu1(k)) for k in range(30)]),
        "/say": ("std_msgs/msg/String", [(START + k, say(k)) for k in range(30)]),
    }
    path = write_bag1(tmp_path / "a.bag", topics, compression)
    readout = read(path)
    assert readout.only["/imu"].time_ns == [START + k for k in range(30)]
    assert np.array(readout.only["/imu"].rows)[:, 4].tolist() == [k + 0.25 for k in range(30)]
    assert readout.only["/say"].rows == ["x" * k for k in range(30)]
    content = path.read_bytes()
    (tmp_path / "cut.bag").write_bytes(content[:-60])
    with pytest.raises(SourceError, match=r"cut.bag: byte \d+: "):
        read(tmp_path / "cut.bag")
    readout = read(tmp_path / "cut.bag", on_error="skip")
    assert len(readout.only["/say"].rows) == 30 and readout.skipped


def test_copies_that_rosbag_compress_keeps_are_no_episodes(tmp_path):
    topics = {
        "/say": ("std_msgs/msg/String", [(START + k, message("std_msgs/msg/String", ROS1, data="x")) for k in (0, 1)])
    }
    for name in ("run_1.bag", "run_1.orig.bag", "alone.orig.bag"):
        write_bag1(tmp_path / "bags" / name, topics, "lz4" if name == "run_1.bag" else None)
    report = robocache.ingest(tmp_path / "bags", tmp_path / "cache")
    names = robocache.open(tmp_path / "cache").episodes["name"].to_pylist()
    assert names == ["alone.orig.bag", "run_1.bag"]
    assert reasons(report.left_out)["run_1.orig.bag"].startswith("rosbag's copy of run_1.bag")
    report = robocache.ingest(tmp_path / "bags/run_1.orig.bag", tmp_path / "copy")
    assert report.episodes == 1


# ---- the cache ----


def test_topics_of_all_kinds_become_a_cache(rng, tmp_path):
    points = [random_points(rng, PLAIN, n) for n in (5, 0, 9)]
    topics = {
        "/imu": imus(20),
        "/say": strings("a", "b"),
        "/points": (
            "sensor_msgs/msg/PointCloud2",
            [(START + k, cloud(cloud_points, time_ns=START + k)) for k, cloud_points in enumerate(points)],
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
    assert {topic: report.rows[topic] for topic in topics} == {"/imu": 40, "/say": 4, "/points": 6, "/cam": 6}
    dataset = robocache.open(tmp_path / "cache")
    dataset.verify()
    assert dataset.streams["/imu"].attributes["clock_source"] == "header.stamp"
    assert dataset.episodes["name"].to_pylist() == ["a.mcap", "b.mcap"]


# ---- memory ----


def test_a_file_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "_AT_ONCE", 1 << 20)
    monkeypatch.setattr(passes, "_SMALL", 1 << 20)
    picture = np.zeros((200, 200, 3), np.uint8)
    messages = [(START + k, image(picture, "rgb8", time_ns=START + k)) for k in range(200)]
    path = write_mcap(tmp_path / "a.mcap", {"/cam": ("sensor_msgs/msg/Image", messages)}, chunk_size=1 << 20)
    del messages
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
def test_a_small_file_with_a_large_declared_size_takes_no_memory(compression, tmp_path):
    path = write_mcap(tmp_path / "a.mcap", {"/say": strings("x")}, compression)
    with path.open("rb") as file:
        chunk = make_reader(file).get_summary().chunk_indexes[0]
    content = path.read_bytes()
    offset = chunk.chunk_start_offset + 9 + 16
    for size in (1 << 62, 1 << 40, 200 << 20):
        path.write_bytes(content[:offset] + struct.pack("<Q", size) + content[offset + 8 :])
        tracemalloc.start()
        with pytest.raises(SourceError, match=r"chunk|expected"):
            read(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 250 << 20


@pytest.mark.parametrize(
    ("topic", "entry"),
    [
        ("/operator", {"name": "task"}),
        ("/operator", {"attributes": {"task": True}}),
        ("/task", None),
        ("/operator/instruction", None),
        ("/operator", None),
    ],
)
def test_rule_47_a_topic_named_as_the_task(topic, entry, tmp_path):
    kind = "std_msgs/msg/String"
    texts = [(START + k * 5 * MS, message(kind, data=text)) for k, text in ((-1, "reach"), (2, "lift"), (3, ""))]
    write_mcap(tmp_path / "a.mcap", {"/imu": imus(5), topic: (kind, texts)})
    mapping = {"streams": {topic: entry}} if entry else None
    robocache.ingest(tmp_path / "a.mcap", tmp_path / "cache", mapping=mapping)
    options = {
        "batch_size": 5,
        "delta_timestamps": {"/imu": None},
        "shuffle": False,
        "device": "cpu",
        "task_text": True,
    }
    if entry is None and topic == "/operator":
        with pytest.raises(robocache.ArgumentError, match="task_text: expected a stream of texts that is the task's"):
            loader_by_keywords(robocache.open(tmp_path / "cache"), **options)
    else:
        loader = loader_by_keywords(robocache.open(tmp_path / "cache"), **options)
        assert next(loader)["task"] == ["reach", "reach", "lift", None, None]
