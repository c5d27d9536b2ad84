"""Reads TFRecord files, and the tf.train.Example in each record, without TensorFlow.

A record consists of the payload's length as u64, the length's masked crc32c, the payload, and its masked crc32c, all little-endian.
An Example is a map from names to lists of bytes, float32 or int64, in the wire format of Protocol Buffers.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np

from ...errors import Error
from ..recording import SourceError

_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")

# Kinds of fields on the wire.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# The most strings of a feature, which has one for each step. No episode has so many steps, and each string takes 200 bytes of memory.
_MOST_STRINGS = 1 << 20

# The type of a feature's list: numbers are an array, strings are views of the record.
Values = np.ndarray | list[memoryview]


@dataclass(frozen=True)
class Shard:
    """The records of a file.

    offsets, lengths: where in the file each payload begins, and its bytes; int64 ``[n]``.
    damage: why the records after these cannot be read; None if these are all.
    """

    file: Path
    offsets: np.ndarray
    lengths: np.ndarray
    damage: SourceError | None


def scan_shard(file: Path) -> Shard:
    """Finds a file's records by their headers; reads no payload."""
    offsets: list[int] = []
    lengths: list[int] = []
    damage = None
    with file.open("rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        offset = 0
        while offset < size:
            try:
                length = _read_length(stream.fileno(), offset, size)
            except Error as error:
                damage = SourceError(f"{file}: byte {offset}: record {len(offsets)}: {error}")
                break
            offsets.append(offset + _HEADER.size)
            lengths.append(length)
            offset += _HEADER.size + length + _CRC.size
    return Shard(file, np.array(offsets, np.int64), np.array(lengths, np.int64), damage)


def _read_length(file: int, offset: int, size: int) -> int:
    header = os.pread(file, _HEADER.size, offset)
    if len(header) < _HEADER.size:
        raise Error(f"expected a header of {_HEADER.size} bytes, the file ends after {len(header)}")
    length, checksum = _HEADER.unpack(header)
    if _masked_crc(header[:8]) != checksum:
        raise Error("the checksum of its length is wrong: damaged, compressed or no TFRecord")
    rest = size - offset - _HEADER.size - _CRC.size
    if length > rest:
        raise Error(f"expected {length} bytes, the file has {max(0, rest)} more")
    return int(length)


def read_record(shard: Shard, number: int) -> bytes:
    """Reads a record's payload and checks its checksum."""
    offset, length = int(shard.offsets[number]), int(shard.lengths[number])
    with shard.file.open("rb", buffering=0) as stream:
        content = b""
        while len(content) < length + _CRC.size:
            part = os.pread(stream.fileno(), length + _CRC.size - len(content), offset + len(content))
            if not part:
                raise SourceError(f"{shard.file}: byte {offset}: record {number}: the file has become shorter")
            content = content + part if content else part  # pread returns at most 2 GiB at once
    payload = content[:length]
    if _masked_crc(payload) != _CRC.unpack_from(content, length)[0]:
        raise SourceError(f"{shard.file}: byte {offset}: record {number}: the checksum of its {length} bytes is wrong")
    return payload


def _masked_crc(content: bytes) -> int:
    crc: int = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def parse_example(record: bytes) -> dict[str, Values | None]:
    """Returns the features of a serialized tf.train.Example. A feature without a list is None; it may be an empty one.

    Raises:
        Error: the record is damaged; the error names the byte.
    """
    features: dict[str, Values | None] = {}
    view = memoryview(record)
    for start, stop in _find_messages(view, 0, len(record), 1, "Example"):
        for entry, end in _find_messages(view, start, stop, 1, "Features"):
            name, values = _parse_entry(view, entry, end)
            if name in features:
                raise Error(f"byte {entry}: feature {name!r} is there twice")
            features[name] = values
    return features


def _parse_entry(record: memoryview, offset: int, stop: int) -> tuple[str, Values | None]:
    """Parses an entry of the map: field 1 is the name, field 2 the values."""
    name, values = "", None
    for number, kind, start, end in _read_fields(record, offset, stop):
        if kind != _BYTES or number not in (1, 2):
            raise Error(f"byte {start}: expected a feature's name or values, got field {number} of kind {kind}")
        if number == 1:
            name = bytes(record[start:end]).decode()
        else:
            values = _parse_feature(record, start, end)
    return name, values


def _parse_feature(record: memoryview, offset: int, stop: int) -> Values | None:
    values: Values | None = None
    for number, kind, start, end in _read_fields(record, offset, stop):
        if kind != _BYTES or not 1 <= number <= 3 or values is not None:
            raise Error(f"byte {start}: expected one list of bytes, floats or int64s, got field {number}")
        if number == 1:
            values = _parse_bytes(record, start, end)
        else:
            values = _parse_floats(record, start, end) if number == 2 else _parse_ints(record, start, end)
    return values


def _parse_bytes(record: memoryview, offset: int, stop: int) -> list[memoryview]:
    values: list[memoryview] = []
    while offset < stop:
        if record[offset] != 1 << 3 | _BYTES:
            raise Error(
                f"byte {offset}: expected a string of bytes, got field {record[offset] >> 3} of kind {record[offset] & 7}"
            )
        length, start = _read_varint(record, offset + 1, stop)
        offset = start + length
        if offset > stop:
            raise Error(f"byte {start}: expected {length} bytes, {stop - start} are left")
        if len(values) == _MOST_STRINGS:
            raise Error(f"byte {start}: more than {_MOST_STRINGS} strings in one feature")
        values.append(record[start:offset])
    return values


def _parse_floats(record: memoryview, offset: int, stop: int) -> np.ndarray:
    parts = []
    for number, kind, start, end in _read_fields(record, offset, stop):
        if number != 1 or kind not in (_BYTES, _FIXED32) or (end - start) % 4:
            raise Error(f"byte {start}: expected float32s, got field {number} of kind {kind}, {end - start} bytes")
        parts.append(np.frombuffer(record[start:end], "<f4"))
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.float32), *parts])


def _parse_ints(record: memoryview, offset: int, stop: int) -> np.ndarray:
    parts = []
    for number, kind, start, end in _read_fields(record, offset, stop):
        if number != 1 or kind not in (_BYTES, _VARINT):
            raise Error(f"byte {start}: expected int64s, got field {number} of kind {kind}")
        parts.append(_parse_varints(record[start:end], start))
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])


def _parse_varints(packed: memoryview, offset: int) -> np.ndarray:
    """Parses int64s of 7 bits a byte, the lowest first. After a byte of 128 or more, the number continues."""
    content = np.frombuffer(packed, np.uint8)
    ends_number = content < 128
    if ends_number.all():
        return content.astype(np.int64)
    if not ends_number[-1]:
        raise Error(f"byte {offset + len(content)}: a number without its end")
    starts = np.concatenate([[0], np.flatnonzero(ends_number)[:-1] + 1])
    index = np.arange(len(content)) - np.repeat(starts, np.diff(np.append(starts, len(content))))
    if index.max() > 9:
        raise Error(f"byte {offset + int(index.argmax())}: a number of more than 64 bits")
    bits = (content & 127).astype(np.uint64) << (7 * index).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, starts).view(np.int64)


def _find_messages(
    record: memoryview, offset: int, stop: int, expected: int, message: str
) -> Iterator[tuple[int, int]]:
    """Yields the begin and the end of each field of a message, which may only have fields of the number `expected`."""
    for number, kind, start, end in _read_fields(record, offset, stop):
        if number != expected or kind != _BYTES:
            raise Error(f"byte {start}: expected {message} of tf.train.Example, got field {number} of kind {kind}")
        yield start, end


def _read_fields(record: memoryview, offset: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields the number, the kind, and the begin and the end of the content of each field."""
    while offset < stop:
        key, offset = _read_varint(record, offset, stop)
        kind, start = key & 7, offset
        if kind == _BYTES:
            length, start = _read_varint(record, offset, stop)
            offset = start + length
        elif kind == _VARINT:
            _, offset = _read_varint(record, offset, stop)
        elif kind in (_FIXED32, _FIXED64):
            offset += 4 if kind == _FIXED32 else 8
        else:
            raise Error(f"byte {start}: no field is of kind {kind}")
        if offset > stop:
            raise Error(f"byte {start}: expected {offset - start} bytes, {stop - start} are left")
        yield key >> 3, kind, start, offset


def _read_varint(record: memoryview, offset: int, stop: int) -> tuple[int, int]:
    """Reads a number of 7 bits a byte. Returns it and the offset behind it."""
    value = shift = 0
    while offset < stop and shift < 64:
        byte = record[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
        shift += 7
    raise Error(f"byte {offset}: a number without its end")
