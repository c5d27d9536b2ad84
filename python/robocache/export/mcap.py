"""Writes a cache as MCAP: one file for each episode, one channel for each stream, ROS 2 messages in CDR with definitions.

CDR keeps every number bit for bit, NaN too. JSON has no NaN and needs three times the space; protobuf has no integers of 8
and 16 bits. The metadata of a channel hold what the message definition cannot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from mcap.writer import CompressionType, Writer

from ..dataset import Dataset, EncodedFrames, Stream
from ..errors import FileError
from ..tasks import table_name, texts_of_numbers
from .report import ExportReport

# The ROS names of dtypes. 16-bit floats become float32, which holds all their values.
_TYPES = {
    **{name: name for name in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")},
    "float32": "float32",
    "float64": "float64",
    "float16": "float32",
    "bfloat16": "float32",
}
_POINT_FIELDS = {"int8": 1, "uint8": 2, "int16": 3, "uint16": 4, "int32": 5, "uint32": 6, "float32": 7, "float64": 8}
_ENCODINGS = {
    ("uint8", 1): "mono8",
    ("uint8", 3): "rgb8",
    ("uint16", 1): "mono16",
    ("uint16", 3): "rgb16",
    ("float32", 1): "32FC1",
}

_RULE = "=" * 80
_HEADER = (
    f"{_RULE}\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n"
    f"{_RULE}\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
)
_COMPRESSED_IMAGE = f"std_msgs/Header header\nstring format\nuint8[] data\n{_HEADER}"
_IMAGE = (
    "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\nuint8[] data\n"
    + _HEADER
)
_POINT_CLOUD = (
    "std_msgs/Header header\nuint32 height\nuint32 width\nsensor_msgs/PointField[] fields\nbool is_bigendian\n"
    "uint32 point_step\nuint32 row_step\nuint8[] data\nbool is_dense\n"
    f"{_RULE}\nMSG: sensor_msgs/PointField\nstring name\nuint32 offset\nuint8 datatype\nuint32 count\n{_HEADER}"
)

# Encodes a row: (stamp, frame of reference, value) -> message. Types without a header ignore the first two.
_Encode = Callable[[int, str, Any], bytes]


def write(
    dataset: Dataset,
    streams: Mapping[str, Stream],
    folder: Path,
    report: ExportReport,
    show_progress: Callable[[int, int, str], None],
) -> None:
    """Writes ``episode_000000.mcap`` and so on into `folder`."""
    for name, stream in streams.items():
        if why := _find_obstacle(stream):
            report.leave_out(name, why)
    streams = {name: stream for name, stream in streams.items() if not _find_obstacle(stream)}
    types = {name: _message_type(stream) for name, stream in streams.items()}
    report.rows = dict.fromkeys(streams, 0)
    if streams:
        report.leave_out("statistics and findings", "robocache ingest computes them again")
    columns = dataset.episodes.to_pylist()
    tables = {
        table: texts_of_numbers(dataset, stream)
        for stream in streams.values()
        if (table := table_name(stream)) is not None
    }
    record = {"provenance": json.dumps(dict(dataset.provenance))}
    if any(tables.values()):
        record["texts"] = json.dumps({table: texts for table, texts in tables.items() if texts})
    for number in range(len(dataset)):
        file_name = f"episode_{number:06d}.mcap"
        show_progress(number, len(dataset), file_name)
        episode = dataset.episode(number)
        rows = {name: episode[name] for name in streams}
        with (folder / file_name).open("wb") as opened:
            writer: Any = Writer(opened, compression=CompressionType.ZSTD)
            writer.start(profile="ros2", library="robocache")
            writer.add_metadata("robocache", {"episode": json.dumps(columns[number]), **record})
            _write_messages(writer, streams, types, rows, _frame_ids(streams, columns[number]), f"{file_name}: ")
            writer.finish()
        for name, (time_ns, _) in rows.items():
            report.rows[name] += len(time_ns)


def _write_messages(
    writer: Any,
    streams: Mapping[str, Stream],
    types: Mapping[str, tuple[str, str, _Encode]],
    rows: Mapping[str, tuple[np.ndarray, Any]],
    frame_ids: Mapping[str, str],
    where: str,
) -> None:
    """Writes all rows of an episode, in the order of time."""
    channels, schemas = [], {}
    for name, stream in streams.items():
        schema, definition, _ = types[name]
        if schema not in schemas:
            schemas[schema] = writer.register_schema(schema, "ros2msg", definition.encode())
        channels.append(writer.register_channel(name, "cdr", schemas[schema], _metadata(stream)))
    clocks = [rows[name][0] for name in streams]
    for name, clock in zip(streams, clocks, strict=True):
        if len(clock) and clock[0] < 0:
            raise FileError(f"{where}{name}: a stamp of {clock[0]} ns; MCAP holds none before 0")
    times = np.concatenate(clocks) if clocks else np.zeros(0, np.int64)
    channel_indices = np.repeat(np.arange(len(clocks)), [len(clock) for clock in clocks])
    row_indices = np.concatenate([np.arange(len(clock)) for clock in clocks]) if clocks else times
    encoders = [types[name][2] for name in streams]
    frames = [frame_ids[name] for name in streams]
    values = [values.file if isinstance(values, EncodedFrames) else values.__getitem__ for _, values in rows.values()]
    for index in np.argsort(times, kind="stable").tolist():
        channel, row, stamp = int(channel_indices[index]), int(row_indices[index]), int(times[index])
        data = encoders[channel](stamp, frames[channel], values[channel](row))
        writer.add_message(channels[channel], log_time=stamp, publish_time=stamp, data=data, sequence=row)


def _frame_ids(streams: Mapping[str, Stream], episode: Mapping[str, Any]) -> dict[str, str]:
    """Returns the frame of reference of each stream: from its attributes, or from the episode's frame_ids; otherwise ""."""
    try:
        declared = json.loads(episode.get("frame_ids") or "{}")
    except (TypeError, ValueError):  # another program's column of that name
        declared = {}
    declared = declared if isinstance(declared, dict) else {}
    frame_ids = {}
    for name, stream in streams.items():
        keys = (f"{name}/{path}" for path in ("header.frame_id", "frame_id"))
        frame = stream.attributes.get("frame_id") or next((declared[key] for key in keys if key in declared), "")
        frame_ids[name] = str(frame)
    return frame_ids


def _metadata(stream: Stream) -> dict[str, str]:
    facts: dict[str, Any] = {
        "kind": stream.kind,
        "dtype": str(stream.dtype),
        "shape": list(stream.shape),
        "clock": stream.clock,
        "names": list(stream.names),
        "attributes": stream.attributes,
    }
    if stream.frames is not None:
        facts["unit_m"] = stream.frames.unit_m
        facts["intrinsics"] = None if stream.frames.intrinsics is None else stream.frames.intrinsics.tolist()
        facts["resized"] = stream.frames.resized
    return {f"robocache.{key}": json.dumps(value) for key, value in facts.items()}


# ---- messages ----


def _find_obstacle(stream: Stream) -> str | None:
    """Returns why no message holds the stream's rows; None if one does."""
    if stream.ragged is None and 0 in stream.shape:
        return "its rows have no numbers, and ROS has no arrays of length 0"
    frames = stream.frames
    if frames is not None and frames.codec == "raw" and (str(stream.dtype), frames.channels) not in _ENCODINGS:
        return f"raw frames of {frames.channels} channels of {stream.dtype}, for which messages have no encoding"
    return None


def _message_type(stream: Stream) -> tuple[str, str, _Encode]:
    """Returns the schema's name and text, and the function that encodes a row."""
    dtype = str(stream.dtype)
    if stream.frames is not None:
        if stream.frames.codec != "raw":
            return "sensor_msgs/msg/CompressedImage", _COMPRESSED_IMAGE, _encode_compressed_image(stream)
        return "sensor_msgs/msg/Image", _IMAGE, _encode_image(stream)
    if stream.ragged == "text":
        return "std_msgs/msg/String", "string data\n", lambda stamp, frame_id, text: bytes(_Cdr().text(text).data)
    ros_type, written_dtype = _TYPES[dtype], np.dtype(_TYPES[dtype])
    if stream.ragged is not None:
        if stream.names[:3] == ["x", "y", "z"] and len(stream.shape) == 1 and dtype in _POINT_FIELDS:
            return "sensor_msgs/msg/PointCloud2", _POINT_CLOUD, _encode_point_cloud(stream)
        return (
            f"robocache/msg/{ros_type.capitalize()}Array",
            f"{ros_type}[] values\n",
            lambda stamp, frame_id, values: bytes(_Cdr().sequence(values.astype(written_dtype)).data),
        )
    size = int(np.prod(stream.shape, dtype=int))
    return (
        f"robocache/msg/{ros_type.capitalize()}{f'x{size}' if stream.shape else ''}",
        f"{ros_type}[{size}] values\n" if stream.shape else f"{ros_type} value\n",
        lambda stamp, frame_id, values: bytes(_Cdr().numbers(np.asarray(values).astype(written_dtype)).data),
    )


def _encode_compressed_image(stream: Stream) -> _Encode:
    assert stream.frames is not None
    codec = stream.frames.codec
    return lambda stamp, frame_id, file: bytes(_Cdr().header(stamp, frame_id).text(codec).sequence(file).data)


def _encode_image(stream: Stream) -> _Encode:
    assert stream.frames is not None
    height, width, channels = stream.shape
    encoding = _ENCODINGS[str(stream.dtype), channels]
    step = width * channels * stream.dtype.itemsize

    def encode(stamp: int, frame_id: str, pixels: np.ndarray) -> bytes:
        message = _Cdr().header(stamp, frame_id).unsigned(height, width).text(encoding).byte(0).unsigned(step)
        return bytes(message.sequence(np.ascontiguousarray(pixels).reshape(-1).view(np.uint8)).data)

    return encode


def _encode_point_cloud(stream: Stream) -> _Encode:
    dtype = stream.dtype
    step = dtype.itemsize * stream.shape[0]

    def encode(stamp: int, frame_id: str, points: np.ndarray) -> bytes:
        message = _Cdr().header(stamp, frame_id).unsigned(1, len(points), len(stream.names))
        for column, name in enumerate(stream.names):
            message.text(name).unsigned(column * dtype.itemsize).byte(_POINT_FIELDS[str(dtype)]).unsigned(1)
        message.byte(0).unsigned(step, step * len(points))
        message.sequence(np.ascontiguousarray(points).reshape(-1).view(np.uint8))
        return bytes(message.byte(int(np.isfinite(points).all())).data)

    return encode


class _Cdr:
    """A message in little-endian CDR: numbers are aligned to their size, counted from byte 4."""

    def __init__(self) -> None:
        self.data = bytearray(b"\0\1\0\0")

    def _align(self, size: int) -> None:
        self.data += bytes(-(len(self.data) - 4) % size)

    def byte(self, value: int) -> _Cdr:
        self.data.append(value)
        return self

    def unsigned(self, *values: int) -> _Cdr:
        self._align(4)
        for value in values:
            self.data += value.to_bytes(4, "little")
        return self

    def text(self, value: str) -> _Cdr:
        encoded = value.encode()
        self.unsigned(len(encoded) + 1)
        self.data += encoded + b"\0"
        return self

    def numbers(self, values: np.ndarray) -> _Cdr:
        """Adds an array of fixed size, or one number."""
        self._align(values.dtype.itemsize)
        self.data += values.tobytes()
        return self

    def sequence(self, values: np.ndarray) -> _Cdr:
        self.unsigned(values.size)
        return self.numbers(values) if values.size else self

    def header(self, stamp: int, frame_id: str) -> _Cdr:
        """Adds the header. A stamp beyond int32 seconds is written as 0, for unknown; the message's log time still has it."""
        seconds, nanoseconds = divmod(stamp, 10**9)
        self.unsigned(*((seconds, nanoseconds) if seconds < 1 << 31 else (0, 0)))
        return self.text(frame_id)
