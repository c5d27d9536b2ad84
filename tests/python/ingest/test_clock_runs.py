"""`repair="split"` in each format: an episode begins where a recorder's clock was reset; columns of the source stay."""

import struct

import numpy as np
import pytest
from ros_files import (
    ROS1,
    ROS2,
    START,
    header,
    message,
    read,
    strings,
    write_bag1,
    write_database,
    write_mcap,
    write_metadata,
)
from test_calvin import write_calvin
from test_rlds import toy_example, write_toy
from test_ulog import announce, format_message
from test_ulog import header as ulog_header
from test_ulog import message as ulog_message

import robocache

MS = 1_000_000
# The rows' stamps in milliseconds after START, and the rows between the resets.
STAMPS = [100, 110, 50, 60, 0, 0, 10]
RUNS = [[0, 1], [2, 3], [4, 5, 6]]


def imus(store, phase):
    """Rows logged in order, with headers whose clock is reset."""
    rows = [
        message(
            "sensor_msgs/msg/Imu",
            store,
            header=header(START + (stamp + phase) * MS, store=store),
            angular_velocity=message("geometry_msgs/msg/Vector3", store, x=float(row)),
        )
        for row, stamp in enumerate(STAMPS)
    ]
    return "sensor_msgs/msg/Imu", [(START + row * 10 * MS, msg) for row, msg in enumerate(rows)]


def write_mcap_bag(folder):
    return write_mcap(folder / "bag.mcap", {name: imus(ROS2, phase) for name, phase in (("/a", 0), ("/b", 3))})


def write_ros2_bag(folder):
    return write_database(folder / "bag.db3", {name: imus(ROS2, phase) for name, phase in (("/a", 0), ("/b", 3))})


def write_ros1_bag(folder):
    return write_bag1(folder / "bag.bag", {name: imus(ROS1, phase) for name, phase in (("/a", 0), ("/b", 3))})


def write_ulog(folder):
    fields = "uint64_t timestamp;float[3] angular_velocity;"
    rows = [
        ulog_message("D", struct.pack("<HQ3f", topic, (START + (stamp + phase) * MS) // 1000, row, 0, 0))
        for row, stamp in enumerate(STAMPS)
        for topic, phase in ((0, 0), (1, 3))
    ]
    messages = [
        ulog_header(),
        format_message(f"/a:{fields}"),
        format_message(f"/b:{fields}"),
        announce(0, "/a"),
        announce(1, "/b"),
        *rows,
    ]
    path = folder / "log.ulg"
    path.write_bytes(b"".join(messages))
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
            episode_rows = slice(*stream.row_offsets[episode : episode + 2])
            expected = [(START + (STAMPS[row] + phase) * MS) // 1000 for row in rows]
            assert (stream.time_ns[episode_rows] // 1000).tolist() == expected
            assert stream.values[episode_rows][:, column].tolist() == rows


def test_a_column_named_split_of_the_source_stays(tmp_path):
    """RLDS and CALVIN have a column "split". Their clocks are made of row numbers and never step back."""
    robocache.ingest(
        write_toy(tmp_path / "toy", toy_example(1), toy_example(2)), tmp_path / "a", repair="split", rate_hz=5
    )
    write_calvin(tmp_path / "calvin" / "training", [[0, 2], [7, 9]])
    robocache.ingest(tmp_path / "calvin", tmp_path / "b", repair="split")
    for cache, split in (("a", "train"), ("b", "training")):
        episodes = robocache.open(tmp_path / cache).episodes
        assert (episodes["split"].to_pylist(), episodes["clock_run"].to_pylist()) == ([split] * 2, [0, 0])


def test_a_column_named_clock_run_is_refused_and_can_be_renamed(toy, tmp_path):
    from robocache.ingest.recording import Recording, Rows

    def read(options, notes):
        rows = Rows(np.array([1, 2, 0]), np.zeros(3))
        yield Recording("one", "FILE", {"clock_run": "mine"}, [("imu", rows)])

    with pytest.raises(robocache.FileError, match="'clock_run', which the recording has already"):
        toy(read, repair="split")
    toy(read, repair="split", mapping={"episodes": {"rename": {"clock_run": "run"}}})
    episodes = robocache.open(tmp_path / "cache").episodes
    assert (episodes["run"].to_pylist(), episodes["clock_run"].to_pylist()) == (["mine"] * 2, [0, 1])


# ---- the log clock of a bag -----------------------------------------------------------------------------------------------

# A simulation restarts after 10 s and sets back its clock, by which topics are logged. The values of a message are its run's number.
SECOND = 10**9
LATCHED = "std_msgs/msg/String"


def simulate(store):
    """Returns the messages of both runs as a recorder writes them: (run, time_ns, topic, type, message)."""

    def make_imu(run, time_ns):
        vector = message("geometry_msgs/msg/Vector3", store, x=float(run))
        return message("sensor_msgs/msg/Imu", store, header=header(time_ns, store=store), angular_velocity=vector)

    def make_float(run, time_ns):
        return message("std_msgs/msg/Float64", store, data=float(run))

    rows = [
        (run, time_ns + SECOND, topic, name, make(run, time_ns + SECOND))
        for run, end in enumerate((10, 8))
        for topic, name, make, step in (
            ("/imu", "sensor_msgs/msg/Imu", make_imu, 50 * MS),  # stamped by the header
            ("/force", "std_msgs/msg/Float64", make_float, 70 * MS),  # stamped by the log time
        )
        for time_ns in range(0, end * SECOND, step)
    ]
    rows.append((0, SECOND, "/latched", LATCHED, message(LATCHED, store, data="once")))
    rows.append((1, 2 * SECOND, "/late", LATCHED, message(LATCHED, store, data="of the second run")))
    return sorted(rows, key=lambda row: row[:3])


def make_topics(rows):
    topics = {}
    for _, time_ns, topic, name, msg in rows:
        topics.setdefault(topic, (name, []))[1].append((time_ns, msg))
    return topics


def find_file_order(rows):
    """Returns the order in the file, as indices of the rows by time."""
    rows_by_topic = [row for topic in make_topics(rows) for row in rows if row[2] == topic]
    by_time = sorted(range(len(rows_by_topic)), key=lambda number: rows_by_topic[number][1])
    index = {id(rows_by_topic[number]): rank for rank, number in enumerate(by_time)}
    return [index[id(row)] for row in rows]


def mcap_of_one_chunk(folder, rows):
    return write_mcap(folder / "bag.mcap", make_topics(rows), order=find_file_order(rows))


def mcap_of_chunks(folder, rows):
    return write_mcap(folder / "bag.mcap", make_topics(rows), chunk_size=3000, order=find_file_order(rows))


def mcap_without_chunks(folder, rows):
    return write_mcap(folder / "bag.mcap", make_topics(rows), order=find_file_order(rows), use_chunking=False)


def bag_of_files(folder, rows, write=write_database, suffix=".db3"):
    """Writes the bag of a recorder that was restarted and writes to the same folder."""
    files = [f"bag_{run}{suffix}" for run in (0, 1)]
    for run, file in enumerate(files):
        write(folder / f"bag/{file}", make_topics([row for row in rows if row[0] == run]))
    write_metadata(folder / "bag", files, {topic: len(msg) for topic, (_, msg) in make_topics(rows).items()})
    return folder / "bag"


def bag_of_mcaps(folder, rows):
    return bag_of_files(folder, rows, write_mcap, ".mcap")


def database(folder, rows):
    return write_database(folder / "bag.db3", make_topics(rows), order=find_file_order(rows))


def bag1_of_one_chunk(folder, rows):
    return write_bag1(folder / "bag.bag", make_topics(rows), order=find_file_order(rows))


def bag1_of_chunks(folder, rows):
    return write_bag1(folder / "bag.bag", make_topics(rows), "bz2", order=find_file_order(rows), chunk_size=3000)


def bag1_without_index(folder, rows):
    """Writes a file like that of a recorder that was killed."""
    path = bag1_of_chunks(folder, rows)
    data = bytearray(path.read_bytes())
    offset = data.index(b"index_pos=") + len(b"index_pos=")
    end = struct.unpack_from("<Q", data, offset)[0]
    data[offset : offset + 8] = bytes(8)
    path.write_bytes(data[:end])
    return path


LOGGED = [
    (mcap_of_one_chunk, ROS2),
    (mcap_of_chunks, ROS2),
    (mcap_without_chunks, ROS2),
    (database, ROS2),
    (bag_of_files, ROS2),
    (bag_of_mcaps, ROS2),
    (bag1_of_one_chunk, ROS1),
    (bag1_of_chunks, ROS1),
    (bag1_without_index, ROS1),
]


@pytest.mark.parametrize(("write", "store"), LOGGED)
def test_runs_of_a_log_clock_set_back_are_never_mixed(write, store, tmp_path):
    rows = simulate(store)
    source = write(tmp_path, rows)
    on_error = "skip" if write is bag1_without_index else "stop"
    expected = r"bag.*: stream '/(imu|force)': row \d+ is at \d+ ns, .*: a step back of (8|9|10)\.?\d* s; .*'split' begins an episode"
    if on_error == "stop":
        with pytest.raises(robocache.FileError, match=expected):
            robocache.ingest(source, tmp_path / "cache")
    report = robocache.ingest(source, tmp_path / "cache", repair="split", on_error=on_error)
    assert report.repaired["/imu"] == report.repaired["/force"] == {"backward_steps": 1, "episodes": 2}
    cache = robocache.open(tmp_path / "cache")
    assert cache.episodes["clock_run"].to_pylist() == [0, 1]
    for topic in ("/imu", "/force", "/latched", "/late"):
        stream = cache.streams[topic]
        for run in (0, 1):
            run_rows = slice(*stream.row_offsets[run : run + 2])
            expected_rows = [row for row in rows if row[0] == run and row[2] == topic]
            assert stream.time_ns[run_rows].tolist() == [time_ns for _, time_ns, *_ in expected_rows]
            if topic == "/imu":
                assert set(stream.values[run_rows][:, 4].tolist()) == {run}
            if topic == "/force":
                assert set(stream.values[run_rows].reshape(-1).tolist()) == {run}


@pytest.mark.parametrize(("write", "store"), LOGGED[:4] + LOGGED[6:8])
def test_topics_one_after_another_in_the_file_are_one_run(write, store, tmp_path):
    rows = [row for row in simulate(store) if row[0] == 0]
    rows = sorted(rows, key=lambda row: (row[2], row[1]))
    robocache.ingest(write(tmp_path, rows), tmp_path / "cache")
    assert robocache.open(tmp_path / "cache").streams["/force"].rows == sum(row[2] == "/force" for row in rows)


@pytest.mark.parametrize("step_ms", [61, 99, 101, 161])
def test_a_log_clock_set_back_by_up_to_100_ms_is_noted(step_ms, tmp_path):
    """Threads of a recorder swap messages within some milliseconds; NTP sets a clock back by 128 ms or more."""
    offsets_ms = [0, 50, 100, 150, 200, 200 - step_ms, 250 - step_ms, 300]
    rows = [
        (0, START + k * MS, "/a", LATCHED, message(LATCHED, ROS2, data=str(row))) for row, k in enumerate(offsets_ms)
    ]
    source = mcap_of_one_chunk(tmp_path, rows)
    if step_ms > 100:
        with pytest.raises(robocache.FileError, match=rf"'/a': row 5 .*a step back of 0.{step_ms} s"):
            robocache.ingest(source, tmp_path / "cache")
        return
    readout = read(source)
    assert readout.only["/a"].time_ns == sorted(START + k * MS for k in offsets_ms)
    reason = readout.left_out["bag.mcap: /a: the order in the file"]
    assert reason.startswith(
        f"{sum(k < 200 for k in offsets_ms[5:])} messages were logged up to 0.{step_ms:03} s before an earlier message"
    )


def test_a_rising_log_clock_has_no_note(tmp_path):
    path = write_mcap(tmp_path / "a.mcap", {"/imu": imus(ROS2, 0), "/text": strings("a", "b")}, chunk_size=300)
    assert not [what for what in read(path).left_out if "order" in what]
