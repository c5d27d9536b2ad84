"""Bags of recorded messages, made by the formats' own libraries: what a topic holds is a list of (time, message)."""

import sqlite3

import numpy as np
from mcap.writer import CompressionType, Writer
from rosbags.rosbag1 import Writer as Writer1
from rosbags.typesys import Stores, get_typestore

ROS2 = get_typestore(Stores.ROS2_HUMBLE)
ROS1 = get_typestore(Stores.ROS1_NOETIC)
START = 1_700_000_000_123_456_789


def message(name, store=ROS2, /, **fields):
    """A message of that type; numbers and arrays that are not given are 0, texts and sequences empty."""
    kind = store.types[name]
    _, described = store.fielddefs[name]
    values = {}
    for field, (node, what) in described:
        given = fields.pop(field, None)
        if node.name == "NAME":
            values[field] = given if given is not None else message(what, store)
        elif node.name == "BASE":
            values[field] = given if given is not None else {"string": "", "bool": False}.get(what[0], 0)
        elif what[0][0].name == "BASE" and what[0][1][0] != "string":
            kind_of = what[0][1][0].replace("byte", "uint8").replace("char", "uint8").replace("octet", "uint8")
            count = what[1] if node.name == "ARRAY" else 0
            values[field] = np.asarray(np.zeros(count) if given is None else given, kind_of)
        else:
            values[field] = [] if given is None else given
    assert not fields, fields
    return kind(**values)


def header(time_ns, frame="base", store=ROS2):
    stamp = message("builtin_interfaces/msg/Time", store, sec=time_ns // 10**9, nanosec=time_ns % 10**9)
    return message("std_msgs/msg/Header", store, stamp=stamp, frame_id=frame)


def definition(name, ros=2):
    store = ROS2 if ros == 2 else ROS1
    return store.generate_msgdef(name, ros_version=ros)[0]


def serialize(name, made, big=False):
    return bytes(ROS2.serialize_cdr(made, name, little_endian=not big))


def write_mcap(path, topics, compression="none", big=False, chunk_size=1 << 20, order=None, **options):
    """topics: {topic: (type's name, [(log time, message)])}; messages are written in the order of log time, or as `order` says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = {"none": CompressionType.NONE, "lz4": CompressionType.LZ4, "zstd": CompressionType.ZSTD}
    with path.open("wb") as file:
        writer = Writer(file, compression=kinds[compression], chunk_size=chunk_size, **options)
        writer.start(profile="ros2")
        rows = []
        for topic, (name, messages) in topics.items():
            schema = writer.register_schema(name=name, encoding="ros2msg", data=definition(name).encode())
            channel = writer.register_channel(topic=topic, message_encoding="cdr", schema_id=schema)
            rows += [(time_ns, channel, serialize(name, made, big)) for time_ns, made in messages]
        rows.sort(key=lambda row: row[0])
        for number in range(len(rows)) if order is None else order:
            time_ns, channel, data = rows[number]
            writer.add_message(channel, time_ns, data, time_ns - 5)
        writer.finish()
    return path


def write_channel(path, encoding, schema, payloads, **options):
    """An MCAP file of one channel "data": schema is (name, encoding, bytes), payloads [(log time, bytes)]."""
    with path.open("wb") as file:
        writer = Writer(file, **options)
        writer.start()
        number = writer.register_schema(*schema)
        channel = writer.register_channel("data", encoding, number)
        for time_ns, data in payloads:
            writer.add_message(channel, time_ns, data, time_ns)
        writer.finish()
    return path


def write_database(path, topics, definitions=True):
    """A .db3 as rosbag2 writes it, by hand: of the old schema without `definitions`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT, serialization_format TEXT)")
    database.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB)")
    database.execute("CREATE INDEX timestamp_idx ON messages (timestamp ASC)")
    if definitions:
        database.execute(
            "CREATE TABLE message_definitions(id INTEGER PRIMARY KEY, topic_type TEXT, encoding TEXT, "
            "encoded_message_definition TEXT, type_description_hash TEXT)"
        )
    for number, (topic, (name, messages)) in enumerate(topics.items(), 1):
        database.execute("INSERT INTO topics VALUES (?, ?, ?, 'cdr')", (number, topic, name))
        if definitions:
            row = (number, name, "ros2msg", definition(name), "")
            database.execute("INSERT INTO message_definitions VALUES (?, ?, ?, ?, ?)", row)
        for time_ns, made in messages:
            row = (number, time_ns, serialize(name, made))
            database.execute("INSERT INTO messages (topic_id, timestamp, data) VALUES (?, ?, ?)", row)
    database.commit()
    database.close()
    return path


def write_metadata(folder, files, counts, mode=""):
    topics = "".join(
        f"    - topic_metadata:\n        name: {topic}\n        type: x\n        serialization_format: cdr\n"
        f"      message_count: {count}\n"
        for topic, count in counts.items()
    )
    paths = "".join(f"    - {file}\n" for file in files)
    (folder / "metadata.yaml").write_text(
        f"rosbag2_bagfile_information:\n  version: 5\n  storage_identifier: sqlite3\n  topics_with_message_count:\n{topics}"
        f"  compression_mode: '{mode}'\n  relative_file_paths:\n{paths}"
    )


def write_bag1(path, topics, compression=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = Writer1(path)
    if compression:
        writer.set_compression(Writer1.CompressionFormat[compression.upper()])
    with writer:
        rows = []
        for topic, (name, messages) in topics.items():
            connection = writer.add_connection(topic, name, typestore=ROS1)
            rows += [(time_ns, connection, bytes(ROS1.serialize_ros1(made, name))) for time_ns, made in messages]
        for time_ns, connection, data in sorted(rows, key=lambda row: row[0]):
            writer.write(connection, time_ns, data)
    return path
