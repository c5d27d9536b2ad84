"""Messages read from a database or decoded in groups equal those read one by one."""

import sqlite3
import time
import tracemalloc
from collections import defaultdict
from contextlib import closing

import h5py
import numpy as np
import pytest
from robocache.ingest.hdf5.datasets import attributes
from robocache.ingest.messages.bags import Faults
from robocache.ingest.messages.batches import Leaf
from robocache.ingest.messages.ros import RosDecoder
from robocache.ingest.messages.rosbag2 import _Database
from robocache.ingest.recording import Notes, SourceError


def write_database(path, rows):
    """Writes a database with two topics and these messages."""
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT, serialization_format TEXT)"
        )
        connection.execute(
            "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB)"
        )
        connection.execute("CREATE INDEX timestamp_idx ON messages (timestamp ASC)")
        connection.executemany("INSERT INTO topics VALUES (?, ?, 'std_msgs/msg/String', 'cdr')", [(1, "/a"), (2, "/b")])
        connection.executemany("INSERT INTO messages (topic_id, timestamp, data) VALUES (?, ?, ?)", rows)
    connection.close()
    return path


def read_database(path, cut=None):
    """Returns ({topic: messages}, reported errors, number of parts)."""
    errors, messages_read, parts = [], defaultdict(list), 0
    faults = Faults("bag", lambda what, error: errors.append(str(error)))
    bag = _Database([path])
    bag.open(faults)
    if cut is not None:
        path.write_bytes(cut(path.read_bytes()))
    for part in bag.parts(faults):
        parts += 1
        for number, messages in part.messages.items():
            assert messages.log_ns == messages.publish_ns
            messages_read[bag.channels[number].topic] += zip(
                messages.log_ns, map(bytes, messages.payloads), strict=True
            )
    return dict(messages_read), errors, parts


@pytest.mark.parametrize(
    "invalid_row",
    [
        None,
        (1, "soon", b"x"),
        (1, 7_000, "text"),
        (1, 7_000, 5),
        (1, 7_000, None),
        (3, 7_000, b"x"),
        (None, 7_000, b"x"),
    ],
)
@pytest.mark.parametrize("topics", [[1], [1, 2]])
@pytest.mark.parametrize("size", [40, 6_000])
def test_all_messages_of_a_database_are_read(invalid_row, topics, size, tmp_path):
    rows = [(topics[row % len(topics)], row, bytes([row % 251]) * size) for row in range(10_000 if size < 100 else 900)]
    stored_rows = rows if invalid_row is None else [*rows[:800], invalid_row, *rows[800:]]
    messages_read, faults, parts = read_database(write_database(tmp_path / "a.db3", stored_rows))
    expected = {f"/{'ab'[topic - 1]}": [row[1:] for row in rows if row[0] == topic] for topic in topics}
    assert messages_read == expected
    assert len(faults) == (1 if invalid_row is not None else 0) and all(
        "message 801: of topic" in fault for fault in faults
    )
    assert parts == (1 if size < 100 else 2)


# Large messages have their own pages.
@pytest.mark.parametrize("size", [40, 3_000, 6_000])
def test_messages_before_the_damage_are_kept(size, tmp_path):
    rows = [(1, row, bytes([1 + row % 251]) * size) for row in range(max(1_000, 600_000 // size))]
    path = write_database(tmp_path / "a.db3", rows)
    pages = len(path.read_bytes()) // 4096
    hole = slice(pages * 6 // 10 * 4096, pages * 7 // 10 * 4096)
    messages_read, faults, _ = read_database(
        path, lambda content: content[: hole.start] + bytes(hole.stop - hole.start) + content[hole.stop :]
    )
    with closing(sqlite3.connect(path)) as damaged:
        readable = 0
        with pytest.raises(sqlite3.DatabaseError):
            while damaged.execute("SELECT data FROM messages WHERE id = ?", (readable + 1,)).fetchone():
                readable += 1
    assert len(faults) == 1 and 0 < readable < len(rows)
    assert messages_read["/a"] == [row[1:] for row in rows[:readable]]


def test_messages_of_several_sizes_and_topics_are_read(tmp_path):
    """Messages of one size, of other sizes, and of two topics. The reader takes 128 KiB at once; the second size begins at such a limit."""
    first = (1 << 17) // (400 + 64) + 1
    sizes = (
        [400] * first
        + [800] * 500
        + [400] * 500
        + [401] * 400
        + [400] * 300
        + [0] * 3_000
        + [5, 6] * 2_000
        + [4_097] * 50
        + [400] * 300
    )
    rows = [(1, row, bytes([row % 251]) * size) for row, size in enumerate(sizes)]
    rows[2_000:2_000] = [(2, 2_000, b"other")]
    messages_read, faults, _ = read_database(write_database(tmp_path / "a.db3", rows))
    assert not faults
    assert messages_read == {f"/{'ab'[topic - 1]}": [row[1:] for row in rows if row[0] == topic] for topic in (1, 2)}


def test_large_messages_are_read_one_at_a_time(tmp_path):
    rows = [(1, row, b"x") for row in range(100)] + [(1, row, bytes(4 << 20)) for row in range(100, 124)]
    path = write_database(tmp_path / "a.db3", rows)
    bag = _Database([path])
    bag.open(Faults("bag", None))
    tracemalloc.start()
    for part in bag.parts(Faults("bag", None)):
        del part
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_messages_without_a_topic_are_each_reported(tmp_path):
    started = time.process_time()
    messages_read, faults, _ = read_database(
        write_database(tmp_path / "a.db3", [(3, row // 2, b"x") for row in range(30_000)])
    )
    assert time.process_time() - started < 5  # counting up to each message would take a minute
    assert not messages_read and [int(fault.split("message ")[1].split(":")[0]) for fault in faults] == [
        *range(1, 30_001)
    ]


def test_messages_of_one_size_may_differ_in_their_byte_order():
    numbers = RosDecoder((Leaf("data", "number", np.dtype("i4")),), cdr=True)
    payloads = [b"\0\1\0\0" + np.int32(row).tobytes() for row in range(3)]
    payloads += [b"\0\0\0\0" + np.array(row, ">i4").tobytes() for row in range(3, 6)]
    for batch_payloads in (payloads[:3], payloads[3:], payloads, [*payloads[:3], b"\1\1\0\0" + payloads[0][4:]]):
        batch, faults = numbers.decode(batch_payloads)
        expected = [payloads.index(payload) for payload in batch_payloads if payload in payloads]
        assert batch.numbers(numbers.leaves[0]).tolist() == expected
        assert len(faults) == len(batch_payloads) - len(expected)


def test_hdf5_attributes_equal_those_of_h5py(tmp_path):
    attributes_written = {
        "one": np.int32(3),
        "big": np.array(2.5, ">f8"),
        "list": np.arange(3),
        "row": np.ones(1),
        "yes": np.True_,
    }
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.attrs.update(attributes_written)
        assert attributes(file, Notes("hdf5", {}, "stop")) == {
            "one": 3,
            "big": 2.5,
            "list": [0, 1, 2],
            "row": [1.0],
            "yes": True,
        }


def test_invalid_messages_take_linear_time():
    numbers = RosDecoder((Leaf("data", "number", np.dtype("i4")),), cdr=True)
    started = time.process_time()
    batch, faults = numbers.decode([b"\1\1\0\0none"] * 100_000 + [b"\0\1\0\0\7\0\0\0"])
    assert time.process_time() - started < 5  # copying the remaining messages for each would take half a minute
    assert batch.numbers(numbers.leaves[0]).tolist() == [7] and len(faults) == 100_000


def test_a_view_named_messages_is_refused(tmp_path):
    path = write_database(tmp_path / "a.db3", [])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE messages")
        connection.execute(
            "CREATE VIEW messages AS WITH RECURSIVE endless(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM endless) "
            "SELECT id, 1 AS topic_id, id AS timestamp, zeroblob(100) AS data FROM endless"
        )
    with pytest.raises(SourceError, match=r"a\.db3: expected tables of topics and messages, found no messages"):
        read_database(path)
