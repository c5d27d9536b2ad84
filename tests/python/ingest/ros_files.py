"""Writes bags with the formats' own libraries, of {topic: (type, [(time, message)])}, and reads them with robocache's
readers."""

import json
import sqlite3
from dataclasses import dataclass

import numpy as np
from mcap.writer import CompressionType, Writer
from robocache.ingest.recording import Frames, Notes
from rosbags.rosbag1 import Writer as Writer1
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from yields import NoteReasons, Yields, pixels

ROS2 = get_typestore(Stores.ROS2_HUMBLE)
ROS1 = get_typestore(Stores.ROS1_NOETIC)
START = 1_700_000_000_123_456_789
MS = 1_000_000


def message(name, store=ROS2, /, **fields):
    """A message of type `name`. Missing numbers and arrays are 0, missing texts and sequences empty."""
    kind = store.types[name]
    _, described = store.fielddefs[name]
    values = {}
    for field, (node, details) in described:
        value = fields.pop(field, None)
        if node.name == "NAME":
            values[field] = value if value is not None else message(details, store)
        elif node.name == "BASE":
            values[field] = value if value is not None else {"string": "", "bool": False}.get(details[0], 0)
        elif details[0][0].name == "BASE" and details[0][1][0] != "string":
            dtype = details[0][1][0].replace("byte", "uint8").replace("char", "uint8").replace("octet", "uint8")
            count = details[1] if node.name == "ARRAY" else 0
            values[field] = np.asarray(np.zeros(count) if value is None else value, dtype)
        else:
            values[field] = [] if value is None else value
    assert not fields, fields
    return kind(**values)


def header(time_ns, frame="base", store=ROS2):
    stamp = message("builtin_interfaces/msg/Time", store, sec=time_ns // 10**9, nanosec=time_ns % 10**9)
    return message("std_msgs/msg/Header", store, stamp=stamp, frame_id=frame)


def definition(name, ros=2):
    store = ROS2 if ros == 2 else ROS1
    return store.generate_msgdef(name, ros_version=ros)[0]


def serialize(name, msg, big_endian=False):
    return bytes(ROS2.serialize_cdr(msg, name, little_endian=not big_endian))


def write_mcap(path, topics, compression="none", big_endian=False, chunk_size=1 << 20, order=None, **options):
    """topics: {topic: (type's name, [(log time, message)])}. `order`: the messages' indices by log time, as the file has them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = {"none": CompressionType.NONE, "lz4": CompressionType.LZ4, "zstd": CompressionType.ZSTD}
    with path.open("wb") as file:
        writer = Writer(file, compression=kinds[compression], chunk_size=chunk_size, **options)
        writer.start(profile="ros2")
        rows = []
        for topic, (name, messages) in topics.items():
            schema = writer.register_schema(name=name, encoding="ros2msg", data=definition(name).encode())
            channel = writer.register_channel(topic=topic, message_encoding="cdr", schema_id=schema)
            rows += [(time_ns, channel, serialize(name, msg, big_endian)) for time_ns, msg in messages]
        rows.sort(key=lambda row: row[0])
        for number in range(len(rows)) if order is None else order:
            time_ns, channel, data = rows[number]
            writer.add_message(channel, time_ns, data, time_ns - 5)
        writer.finish()
    return path


def write_channel(path, encoding, schema, payloads, **options):
    """Writes an MCAP file of one channel "data": schema is (name, encoding, bytes), payloads [(log time, bytes)]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = Writer(file, **options)
        writer.start()
        schema_id = writer.register_schema(*schema)
        channel = writer.register_channel("data", encoding, schema_id)
        for time_ns, data in payloads:
            writer.add_message(channel, time_ns, data, time_ns)
        writer.finish()
    return path


def write_json(path, messages, name="thing", schema=None, step=1):
    """Writes an MCAP file of the channel "data" in JSON. A message is an object, or bytes; messages are `step` ns apart."""
    payloads = [
        (START + k * step, msg if isinstance(msg, bytes) else json.dumps(msg).encode())
        for k, msg in enumerate(messages)
    ]
    return write_channel(path, "json", (name, "jsonschema", json.dumps(schema or {}).encode()), payloads)


class CustomType:
    """The type `name` with the definition `text`; `inner` are the definitions of the types in it: {name: text}."""

    def __init__(self, name, text, inner=None):
        self.name = name
        self.text = text + "".join(f"{'=' * 80}\nMSG: {other}\n{body}" for other, body in (inner or {}).items())
        self.store = get_typestore(Stores.EMPTY)
        self.store.register(get_types_from_msg(self.text, name))
        self._kinds = {name.rpartition("/")[2]: kind for name, kind in self.store.types.items()}

    def __getattr__(self, name):
        """The class of the messages of type `name`, which is without the package."""
        return self._kinds[name]

    def write(self, path, messages, step=1, big_endian=False):
        """Writes an MCAP file of the channel "data" with these messages, `step` ns apart."""
        payloads = [
            (START + k * step, bytes(self.store.serialize_cdr(msg, self.name, little_endian=not big_endian)))
            for k, msg in enumerate(messages)
        ]
        return write_channel(path, "cdr", (self.name, "ros2msg", self.text.encode()), payloads)


HEADER = {
    "std_msgs/Header": "builtin_interfaces/Time stamp\nstring frame_id\n",
    "builtin_interfaces/Time": "int32 sec\nuint32 nanosec\n",
}


def write_database(path, topics, definitions=True, order=None):
    """Writes a .db3 like rosbag2's, written by hand. Without `definitions` it has the old schema. Messages are topic by topic, or
    in `order`, a list of their indices by time."""
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
    rows = []
    for number, (topic, (name, messages)) in enumerate(topics.items(), 1):
        database.execute("INSERT INTO topics VALUES (?, ?, ?, 'cdr')", (number, topic, name))
        if definitions:
            row = (number, name, "ros2msg", definition(name), "")
            database.execute("INSERT INTO message_definitions VALUES (?, ?, ?, ?, ?)", row)
        rows += [(number, time_ns, serialize(name, msg)) for time_ns, msg in messages]
    if order is not None:
        rows.sort(key=lambda row: row[1])
        rows = [rows[number] for number in order]
    database.executemany("INSERT INTO messages (topic_id, timestamp, data) VALUES (?, ?, ?)", rows)
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


def write_bag1(path, topics, compression=None, order=None, chunk_size=1 << 20):
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = Writer1(path)
    writer.chunk_threshold = chunk_size
    if compression:
        writer.set_compression(Writer1.CompressionFormat[compression.upper()])
    with writer:
        rows = []
        for topic, (name, messages) in topics.items():
            connection = writer.add_connection(topic, name, typestore=ROS1)
            rows += [(time_ns, connection, bytes(ROS1.serialize_ros1(msg, name))) for time_ns, msg in messages]
        rows.sort(key=lambda row: row[0])
        for number in range(len(rows)) if order is None else order:
            time_ns, connection, data = rows[number]
            writer.write(connection, time_ns, data)
    return path


@dataclass
class Stream:
    """All parts of a recording's stream, concatenated. Ragged rows are a list of arrays, frames are pixels."""

    time_ns: list
    rows: list
    names: list | None
    attributes: dict
    part: object


@dataclass
class Readout(NoteReasons):
    recordings: dict
    metadata: dict
    notes: Notes
    provenance: dict

    @property
    def only(self):
        ((_, streams),) = self.recordings.items()
        return streams


def read(source, format=None, on_error="stop", **options):
    """The rows that the reader yields, without a cache."""
    yields = Yields(format, source, on_error, **options)
    recordings = {
        recording: {
            name: Stream(
                time_ns.tolist(),
                list(pixels(rows) if isinstance(yields.first[name], Frames) else rows),
                yields.facts[name].get("names"),
                yields.facts[name]["attributes"],
                yields.first[name],
            )
            for name, (time_ns, rows) in streams.items()
        }
        for recording, streams in yields.episodes.items()
    }
    return Readout(recordings, yields.metadata, yields.notes, yields.provenance)


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


def joints(k, names=("a", "b", "c"), velocity=True, n=None):
    values = [10.0 * k + "abcdef".index(name) for name in names[: n or len(names)]]
    name = "sensor_msgs/msg/JointState"
    return message(
        name, header=header(START + k), name=list(names), position=values, velocity=values if velocity else []
    )


def cloud(points, height=1, row_padding=0, big_endian=False, time_ns=START):
    """points: a structured array [n]."""
    order = ">" if big_endian else "<"
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
        header=header(time_ns), height=height, width=width, fields=fields, is_bigendian=big_endian, point_step=step,
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


def random_points(rng, dtype, n):
    raw = np.frombuffer(rng.bytes(n * dtype.itemsize), np.uint8).copy()
    points = raw.view(dtype)
    if n:
        points["x"][0] = np.nan
    return points


def image(pixels, encoding, padding=0, big_endian=False, time_ns=START):
    height, width = pixels.shape[:2]
    rows = pixels.astype(pixels.dtype.newbyteorder(">" if big_endian else "<")).reshape(height, -1).view(np.uint8)
    data = np.pad(rows, ((0, 0), (0, padding)), constant_values=7)
    return message(
        "sensor_msgs/msg/Image", header=header(time_ns, "cam"), height=height, width=width, encoding=encoding, is_bigendian=int(big_endian),
        step=data.shape[1], data=data.reshape(-1),
    )  # fmt: skip
