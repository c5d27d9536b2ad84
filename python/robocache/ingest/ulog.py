"""Reads PX4's ULog files: a file is an episode, and each instance of a topic a stream.

A file is read once, in parts. Formats and subscriptions are kept, and all rows of a topic in a part are converted together. Since a
file may declare any format, the size of a nested one is checked before its fields are laid out: no row is longer than a message.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import FileError
from ..feature_words import rotations_of
from .files import check_file, look_through, without_links_to_others
from .formats.ulog import MAGIC, UlogOptions, is_ulog
from .methods import BEYOND_LIMITS, PX4_WORDS, has_limits, px4_angles, px4_of_several, with_held, with_others
from .recording import Notes, Recording, Rows, SourceError, Texts

_SYNC = b"\x2f\x73\x13\x20\x25\x0c\xbb\x12"
_BYTES_PER_PART = 1 << 23
# The most bytes of a message, and so of a row.
_MOST_BYTES = 0xFFFF
# The most levels of formats within formats.
_MOST_LEVELS = 32
_HEAD = struct.Struct("<HB")
_ID = struct.Struct("<H")
# A bool may be any byte. A topic becomes float64 if float32 does not hold one of its types; integers of 64 bits become streams of
# their own.
_TYPES: dict[str, np.dtype[Any]] = {
    **{f"{sign}int{8 * size}_t": np.dtype(f"<{sign or 'i'}{size}") for sign in ("", "u") for size in (1, 2, 4, 8)},
    "float": np.dtype("<f4"),
    "double": np.dtype("<f8"),
    "bool": np.dtype("<u1"),
    "char": np.dtype("S1"),
}
_LEVELS = b"01234567"


def read(source: Path, options: UlogOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields a recording of every log."""
    root, listing = look_through(source, notes)
    files = [file for file in listing.files if file == source or is_ulog(file)]
    files = without_links_to_others(files, root, notes)
    if not files:
        raise FileError(f"{source}: expected ULog files (*.ulg), found none")
    notes.total = len(files)
    listing.leave_out_others(files, "no ULog", notes)
    for file in files:
        what = str(file.relative_to(root))
        yield Recording(what, str(file), {"name": what}, _read_log(file, what, notes))


def finish(source: Path, options: UlogOptions, notes: Notes) -> None:
    """Adds the logs' facts to the provenance."""
    notes.tell(source, logs=notes.seen.get("logs", {}))


def _read_log(file: Path, what: str, notes: Notes) -> Iterator[tuple[str, Rows | Texts]]:
    check_file(file)
    with file.open("rb") as opened:
        log = _Log(file, what, notes)
        appended = log.read_header(opened)
        for number, (start, end) in enumerate(zip([16, *appended], [*appended, None], strict=True)):
            opened.seek(start)
            yield from log.read_section(opened, start, end, last=number == len(appended))
    log.facts["appended_sections"] = len(appended)
    notes.see("logs", what, log.facts | {"rows_stamped_0": dict(sorted(log.zeros.items()))})
    for stream, rows in sorted(log.zeros.items()):
        notes.leave_out(
            f"{what}: {stream}: the time of {rows} row{'s' * (rows > 1)}",
            "stamped 0, before the log began; the rows are at time 0 unless --repair dropped them",
        )
    for kind, count in sorted(log.unknown.items()):
        notes.leave_out(f"{what}: messages of type {kind!r}", f"not of ULog version 1: {count}")


# ---- the topics of a log ----


@dataclass(frozen=True)
class _Field:
    """A field of a row: values of one type, one after another.

    names: a name for each value.
    offset: of the first value in a row, in bytes.
    """

    names: list[str]
    type: str
    offset: int

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Returns the values, ``[n, names]``, of rows, which are bytes ``[n, size]``."""
        dtype = _TYPES[self.type]
        end = self.offset + len(self.names) * dtype.itemsize
        values: np.ndarray = np.ascontiguousarray(rows[:, self.offset : end]).view(dtype)
        return values


@dataclass
class _Topic:
    """An instance of a topic.

    schema: the name of its format.
    shortest, longest: the bytes of a row without and with the padding at its end, which logs may leave out.
    numbers: the dtype and the fields of each stream of numbers.
    texts: the begin and the end, in a row, of the text of each stream.
    starts: the offsets of the topic's rows in the current part.
    """

    schema: str
    name: str
    shortest: int
    longest: int
    clock: _Field
    numbers: dict[str, tuple[np.dtype[Any], list[_Field]]]
    texts: dict[str, tuple[int, int]]
    starts: list[int] = field(default_factory=list)


def _lay_out(name: str, schema: str, formats: dict[str, list[tuple[str, int, str]]]) -> _Topic:
    """Returns the topic `name` of a format.

    Raises:
        SourceError: the format, or one in it, is missing, is longer than a message, or has no clock.
    """
    fields: list[_Field] = []
    texts: dict[str, tuple[int, int]] = {}
    numbers: dict[str, tuple[np.dtype[Any], list[_Field]]] = {}
    padding: list[tuple[int, int]] = []
    clock = None
    offset = 0
    for path, type, count in _flatten(schema, "", formats, {}):
        size = max(count, 1) * _TYPES[type].itemsize
        if path.rpartition(".")[2].startswith("_padding"):
            padding.append((offset, offset + size))
        elif type == "char" and count:
            texts[f"{name}/{path}"] = offset, offset + size
        elif path == "timestamp" and type == "uint64_t" and not count:
            clock = _Field([path], type, offset)
        else:
            names = [f"{path}[{i}]" for i in range(count)] if count else [path]
            fields.append(_Field(names, "int8_t" if type == "char" else type, offset))
        offset += size
    if clock is None:
        raise SourceError(f"format {schema!r}: expected a field uint64_t timestamp, found none")
    shortest = offset
    while padding and padding[-1][1] == shortest:
        shortest = padding.pop()[0]
    long_types = ("int64_t", "uint64_t")
    fits_float32 = all(f.type in long_types or np.can_cast(_TYPES[f.type], np.dtype(np.float32)) for f in fields)
    for f in fields:
        if f.type in long_types:
            stream, dtype = f"{name}/{f.type[:-2]}", _TYPES[f.type]
        else:
            stream, dtype = name, np.dtype(np.float32 if fits_float32 else np.float64)
        numbers.setdefault(stream, (dtype, []))[1].append(f)
    return _Topic(schema, name, shortest, offset, clock, numbers, texts)


def _flatten(
    schema: str, prefix: str, formats: dict[str, list[tuple[str, int, str]]], sizes: dict[str, int], depth: int = 0
) -> Iterator[tuple[str, str, int]]:
    """Yields the path, the type and the count of each field of a basic type. The count of a field that is no array is 0."""
    if _measure(schema, formats, sizes, depth) > _MOST_BYTES:
        raise SourceError(f"format {schema!r}: expected at most {_MOST_BYTES} bytes a row, got {sizes[schema]}")
    for type, count, name in formats[schema]:
        if type in _TYPES:
            yield prefix + name, type, count
        else:
            for part in [f"{name}[{i}]" for i in range(count)] if count else [name]:
                yield from _flatten(type, f"{prefix}{part}.", formats, sizes, depth + 1)


def _measure(schema: str, formats: dict[str, list[tuple[str, int, str]]], sizes: dict[str, int], depth: int) -> int:
    """Returns the bytes of a row of this format, and keeps them in `sizes`."""
    if schema in sizes:
        return sizes[schema]
    if schema not in formats:
        raise SourceError(f"format {schema!r}: not in the file")
    if depth > _MOST_LEVELS:
        raise SourceError(f"format {schema!r}: within more than {_MOST_LEVELS} others, or itself")
    size = 0
    for type, count, _ in formats[schema]:
        value_size = _TYPES[type].itemsize if type in _TYPES else _measure(type, formats, sizes, depth + 1)
        size += max(count, 1) * value_size
    if size == 0:
        raise SourceError(f"format {schema!r}: no fields")
    sizes[schema] = size
    return size


# ---- the messages of a log ----


class _Log:
    """A log that is being read.

    Attributes:
        facts: what the log says about itself, for the provenance.
        zeros: the number of rows stamped 0, by topic.
        unknown: the number of messages of each type that this version of ULog does not have.
    """

    def __init__(self, file: Path, what: str, notes: Notes) -> None:
        self.facts: dict[str, Any] = {
            "information": {},
            "parameters": {},
            "default_parameters": {},
            "changed_parameters": [],  # [stamp in us, key, value]
            "dropouts": [],  # [stamp in us, lost ms]
        }
        self.zeros: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self._file, self._what, self._notes = file, what, notes
        self._formats: dict[str, list[tuple[str, int, str]]] = {}
        self._topics: dict[str, _Topic] = {}
        self._by_id: dict[int, _Topic] = {}
        self._messages: list[tuple[int, int, int, str]] = []
        self._has_data_section = False
        self._last_us = 0
        self._undated: list[tuple[int, list[Any]]] = []
        self._faults = 0
        self._first_fault: SourceError | None = None
        self._lost_from: int | None = None

    def read_header(self, opened: BinaryIO) -> list[int]:
        """Returns the offsets at which data were appended. At each, a message begins, even if the one before it has no end."""
        header = opened.read(16 + 3 + 40)  # and the message of flags behind it: its head and its content
        if header[:7] != MAGIC or len(header) < 16:
            raise SourceError(f"{self._file}: expected a ULog file, which begins with {MAGIC!r}, got {header[:16]!r}")
        version, (start_us,) = header[7], struct.unpack_from("<Q", header, 8)
        self.facts |= {"version": version, "start_us": _to_json(start_us)}
        self._last_us = start_us
        if len(header) < 59 or header[18:19] != b"B":
            return []
        incompatible = header[27:35]
        if incompatible[0] & ~1 or any(incompatible[1:]):
            raise SourceError(f"{self._file}: byte 27: an unknown kind of ULog, with flags {incompatible.hex()}")
        size = os.fstat(opened.fileno()).st_size
        appended = [offset for offset in struct.unpack_from("<3Q", header, 35) if offset] if incompatible[0] else []
        if appended != sorted(set(appended)) or not all(16 < offset <= size for offset in appended):
            raise SourceError(
                f"{self._file}: byte 35: expected data appended at rising offsets up to {size}, got {appended}"
            )
        return appended

    def read_section(
        self, opened: BinaryIO, start: int, end: int | None, last: bool
    ) -> Iterator[tuple[str, Rows | Texts]]:
        """Reads the messages from byte `start` to byte `end`, by default the file's end, and yields their rows and texts."""
        rest = b""
        while True:
            part = opened.read(_BYTES_PER_PART if end is None else min(_BYTES_PER_PART, end - opened.tell()))
            buffer = rest + part
            read_bytes = self._read_messages(buffer, start)
            yield from self._yield_samples(buffer)
            rest, start = buffer[read_bytes:], start + read_bytes
            if not part:
                break
            self._end_part()
        if self._lost_from is not None:
            self._count_fault(self._lost_from, f"no message up to byte {start + len(rest)}")
            self._lost_from = None
        elif rest and last:
            self._count_fault(start, f"the file ends in the middle of a message; {len(rest)} bytes of it exist")
        elif rest:
            self._notes.leave_out(
                f"{self._what}: bytes {start} to {start + len(rest) - 1}",
                "a message that was being written when the section after it was appended",
            )
        self._end_part()

    def _read_messages(self, buffer: bytes, base: int) -> int:
        """Reads the complete messages in `buffer`, which begins at byte `base` of the file. Returns the number of their bytes."""
        offset, end = 0, len(buffer)
        head, read_id, by_id = _HEAD.unpack_from, _ID.unpack_from, self._by_id
        while end - offset >= 3:
            if self._lost_from is not None:
                sync = buffer.find(_SYNC, offset)
                if sync < 0:
                    return max(offset, end - len(_SYNC) + 1)
                offset = sync + len(_SYNC)
                self._count_fault(self._lost_from, f"no message before byte {base + offset}")
                self._lost_from = None
                continue
            size, kind = head(buffer, offset)
            if kind == 68 and size >= 2 and offset + 3 + size <= end:  # "D", as nearly all messages
                topic = by_id.get(read_id(buffer, offset + 3)[0])
                if topic is not None and topic.shortest <= size - 2 <= topic.longest:
                    topic.starts.append(offset + 5)
                    offset += 3 + size
                    continue
            elif kind not in b"FDIMPQARSOLCB" and (size == 0 or size > 10000 or not 65 <= kind <= 90):
                self._lost_from = base + offset
                continue
            if offset + 3 + size > end:
                break
            try:
                self._read_message(chr(kind), buffer[offset + 3 : offset + 3 + size], offset)
            except SourceError as error:
                self._count_fault(base + offset, str(error))
            except Exception as error:
                self._count_fault(base + offset, f"no message of type {chr(kind)!r}: {type(error).__name__}: {error}")
            offset += 3 + size
        return offset

    def _read_message(self, kind: str, data: bytes, offset: int) -> None:
        """Reads a message that is no row of a topic. It begins at `offset` in the part."""
        self._has_data_section |= kind in "ALC"
        match kind:
            case "D":
                topic = self._by_id.get(_ID.unpack_from(data)[0])
                if topic is None:
                    raise SourceError(f"data of message {_ID.unpack_from(data)[0]}, which nothing announced")
                raise SourceError(
                    f"data of {topic.name}: expected {topic.shortest} to {topic.longest} bytes, got {len(data) - 2}"
                )
            case "F":
                name, _, fields = data.decode().partition(":")
                self._formats[name] = [_read_field(text) for text in fields.split(";") if text]
            case "A":
                self._subscribe(data[0], _ID.unpack_from(data, 1)[0], data[3:].decode())
            case "I":
                key, value = _read_information(data)
                self._note_information(key, value)
            case "M":
                key, value = _read_information(data[1:])
                known = self.facts["information"].get(key)
                if value is None or not isinstance(known, list):
                    self._note_information(key, value if value is None else [value])
                elif data[0]:
                    known[-1] += value
                else:
                    known.append(value)
            case "P":
                key, value = _read_information(data)
                if self._has_data_section:
                    self.facts["changed_parameters"].append([None, key, value])
                    self._undated.append((offset, self.facts["changed_parameters"][-1]))
                else:
                    self.facts["parameters"][key] = value
            case "Q":
                key, value = _read_information(data[1:])
                for bit, default in enumerate(("system", "setup")):
                    if data[0] >> bit & 1:
                        self.facts["default_parameters"].setdefault(default, {})[key] = value
            case "O":
                self.facts["dropouts"].append([None, _ID.unpack(data)[0]])
                self._undated.append((offset, self.facts["dropouts"][-1]))
            case "L" | "C":
                tag = -1 if kind == "L" else _ID.unpack_from(data, 1)[0]
                start = 1 if kind == "L" else 3
                level = _LEVELS.index(data[:1])
                (stamp,) = struct.unpack_from("<Q", data, start)
                self._messages.append((stamp, level, tag, data[start + 8 :].decode(errors="backslashreplace")))
            case "R" | "S" | "B":
                pass  # ends of subscriptions, marks for synchronisation, and flags, which were read before
            case _:
                self.unknown[kind] += 1

    def _subscribe(self, multi_id: int, id: int, schema: str) -> None:
        """Adds a topic, whose rows have the number `id` from here on."""
        name = f"{schema}.{multi_id}" if multi_id else schema
        self._by_id.pop(id, None)  # the topic that had this number before
        topic, known = _lay_out(name, schema, self._formats), self._topics.get(name)
        if known is not None and known.numbers | known.texts != topic.numbers | topic.texts:
            raise SourceError(f"{name}: announced again, with other fields")
        if not topic.numbers and not topic.texts:
            self._notes.leave_out(name, "no field beside its clock")
        self._by_id[id] = self._topics.setdefault(name, topic)

    def _note_information(self, key: str, value: Any) -> None:
        if value is None:
            self._notes.leave_out(f"information {key}", "neither text nor number")
        else:
            self.facts["information"][key] = value

    def _yield_samples(self, buffer: bytes) -> Iterator[tuple[str, Rows | Texts]]:
        """Yields the content of the messages that were read, stream by stream."""
        raw = np.frombuffer(buffer, np.uint8)
        dated = [(np.zeros(1, np.int64), np.array([self._last_us], np.uint64))]  # the rows' offsets and stamps
        for topic in self._topics.values():
            if not topic.starts:
                continue
            starts = np.array(topic.starts)
            topic.starts.clear()
            rows = np.lib.stride_tricks.sliding_window_view(raw, topic.shortest)[starts]
            stamps_us = topic.clock.read(rows)[:, 0]
            time_ns = self._to_ns(topic.name, stamps_us)
            dated.append((starts, stamps_us))
            zeros = int(np.count_nonzero(stamps_us == 0))
            if zeros and self.facts["start_us"]:
                self.zeros[topic.name] += zeros
            attributes = {"clock_source": "timestamp", "schema": topic.schema}
            for stream, (dtype, fields) in topic.numbers.items():
                names = [name for f in fields for name in f.names]
                values = np.empty((len(rows), len(names)), dtype)
                column = 0
                for f in fields:
                    values[:, column : column + len(f.names)] = f.read(rows)
                    column += len(f.names)
                stream_attributes: dict[str, Any] = dict(attributes)
                if dtype.kind == "f":
                    is_whole = [f.type not in ("float", "double") for f in fields for _ in f.names]
                    is_limited = [has_limits(name, names) for name in names]
                    for name in compress(names, is_limited):
                        self._notes.leave_out(f"{stream}: {name} between rows", BEYOND_LIMITS)
                    is_held = [whole or limited for whole, limited in zip(is_whole, is_limited, strict=True)]
                    methods = with_held(rotations_of(stream, names, [len(names)], PX4_WORDS), is_held)
                    methods = with_others(methods, px4_angles(topic.schema, names))
                    if px4_of_several(topic.schema):
                        methods = [[0, len(names), "previous"]]
                    if methods:
                        stream_attributes["methods"] = methods
                yield stream, Rows(time_ns, values, names, attributes=stream_attributes)
            for stream, (start, end) in topic.texts.items():
                cells = (bytes(cell).partition(b"\0")[0] for cell in rows[:, start:end])
                texts = [cell.decode(errors="backslashreplace") for cell in cells]
                yield stream, Texts(time_ns, texts, attributes=attributes)
        self._date(np.concatenate([starts for starts, _ in dated]), np.concatenate([stamps for _, stamps in dated]))
        if self._messages:
            stamps, levels, tags, messages = zip(*self._messages, strict=True)
            self._messages.clear()
            time_ns = self._to_ns("logged_messages", np.array(stamps, np.uint64))
            attributes = {"clock_source": "timestamp"}
            yield "logged_messages", Texts(time_ns, messages, attributes=attributes)
            values = np.array([levels, tags], np.int32).T
            yield "logged_messages/level", Rows(time_ns, values, ["level", "tag"], attributes=attributes)

    def _date(self, starts: np.ndarray, stamps_us: np.ndarray) -> None:
        """Gives each entry without a stamp the latest stamp before it."""
        order = np.argsort(starts, kind="stable")
        latest = np.maximum.accumulate(stamps_us[order])
        for offset, entry in self._undated:
            entry[0] = _to_json(int(latest[max(0, np.searchsorted(starts[order], offset) - 1)]))
        self._undated.clear()
        self._last_us = int(latest[-1])

    def _to_ns(self, name: str, stamps_us: np.ndarray) -> np.ndarray:
        latest = int(stamps_us.max())
        if latest > np.iinfo(np.int64).max // 1000:
            raise SourceError(f"{self._file}: {name}: a stamp of {latest} us does not fit int64 nanoseconds")
        return stamps_us.astype(np.int64) * 1000

    def _count_fault(self, offset: int, why: str) -> None:
        self._first_fault = self._first_fault or SourceError(f"{self._file}: byte {offset}: {why}")
        self._faults += 1

    def _end_part(self) -> None:
        """Reports the messages of a part that could not be read."""
        count, first = self._faults, self._first_fault
        self._faults, self._first_fault = 0, None
        if first is not None:
            self._notes.skip(f"{self._what}: {count} message{'s' * (count > 1)}", first)


def _read_field(text: str) -> tuple[str, int, str]:
    """Returns the type, the count and the name of a field, such as "float[3] q". The count of a field that is no array is 0."""
    match = re.fullmatch(r"([\w/-]+)(?:\[(\d{1,5})\])? (\w+)", text, re.ASCII)
    if match is None or match[2] == "0" * len(match[2] or "-"):
        raise SourceError(f"expected a field as 'float[3] q', got {text!r:.80}")
    return match[1], int(match[2] or 0), match[3]


def _read_information(data: bytes) -> tuple[str, Any]:
    """Returns the key and the value; the value is None if it is neither text nor number."""
    length = data[0]
    type, _, key = data[1 : 1 + length].decode().partition(" ")
    value = data[1 + length :]
    if not key:
        raise SourceError(f"expected a type and a key, got {type!r:.80}")
    if type.startswith("char["):
        return key, value.decode(errors="backslashreplace")
    if type not in _TYPES or type == "char":
        return key, None
    return key, _to_json(np.frombuffer(value, _TYPES[type], 1)[0].item())


def _to_json(value: float) -> float | str:
    """Returns the number, or its text if JSON does not hold the number."""
    fits = math.isfinite(value) and (isinstance(value, float) or value < 1 << 63)
    return value if fits else str(value)
