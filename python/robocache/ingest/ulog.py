"""PX4's ULog files: a file is an episode, each instance of a topic a stream.

The file is read once, in parts. Its announcements (formats, subscriptions) are kept, and a topic's rows are cut out of each part
together. Formats come from the file: the size of a nested one is checked before its fields are laid out, and no row is longer
than a message.
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
from .files import check_file, look_through
from .formats.ulog import MAGIC, UlogOptions, is_ulog
from .methods import BEYOND_LIMITS, PX4_WORDS, has_limits, px4_angles, px4_of_several, with_held, with_others
from .recording import Notes, Recording, Rows, SourceError, Texts

_SYNC = b"\x2f\x73\x13\x20\x25\x0c\xbb\x12"
# Bytes of a part.
_PART = 1 << 23
# The most bytes of a message, and so of a row.
_LONGEST = 0xFFFF
# The most levels of formats within formats.
_DEEPEST = 32
_HEAD = struct.Struct("<HB")
_ID = struct.Struct("<H")
# A bool is any byte. A topic with a type that float32 does not hold becomes float64; integers of 64 bits are streams of their own.
_TYPES: dict[str, np.dtype[Any]] = {
    **{f"{sign}int{8 * size}_t": np.dtype(f"<{sign or 'i'}{size}") for sign in ("", "u") for size in (1, 2, 4, 8)},
    "float": np.dtype("<f4"),
    "double": np.dtype("<f8"),
    "bool": np.dtype("<u1"),
    "char": np.dtype("S1"),
}
_LEVELS = b"01234567"


def read(source: Path, options: UlogOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every log."""
    root, listing = look_through(source, notes)
    files = [file for file in listing.files if file == source or is_ulog(file)]
    if not files:
        raise FileError(f"{source}: expected ULog files (*.ulg), found none")
    notes.total = len(files)
    listing.leave_out_others(files, "no ULog", notes)
    for file in files:
        what = str(file.relative_to(root))
        yield Recording(what, str(file), {"name": what}, _read_log(file, what, notes))


def finish(source: Path, options: UlogOptions, notes: Notes) -> None:
    """Records the logs' facts in the provenance."""
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


# ---- what a log announces ----


@dataclass(frozen=True)
class _Field:
    """A field of a row: values of one type, one after another.

    names: a name for each value; a text has one.
    """

    names: list[str]
    type: str
    offset: int

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Returns the values ``[n, count]`` of rows, which are bytes ``[n, size]``."""
        dtype = _TYPES[self.type]
        end = self.offset + len(self.names) * dtype.itemsize
        values: np.ndarray = np.ascontiguousarray(rows[:, self.offset : end]).view(dtype)
        return values


@dataclass
class _Topic:
    """An instance of a topic.

    shortest, longest: bytes of a row without and with the padding at its end, which logs may leave out.
    numbers: for each stream its dtype and fields.
    texts: for each stream the begin and the end of its text.
    starts: the offsets of rows in the current part.
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
    """Returns a topic, by its format.

    Raises:
        SourceError: a format is missing, is longer than a message, or has no clock.
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
    narrow = np.dtype(np.float32)
    wide = any(not np.can_cast(_TYPES[f.type], narrow) and f.type not in ("int64_t", "uint64_t") for f in fields)
    for f in fields:
        whole = f.type if f.type in ("int64_t", "uint64_t") else None
        stream, dtype = (f"{name}/{whole[:-2]}", _TYPES[whole]) if whole else (name, np.dtype("f8") if wide else narrow)
        numbers.setdefault(stream, (dtype, []))[1].append(f)
    return _Topic(schema, name, shortest, offset, clock, numbers, texts)


def _flatten(
    schema: str, prefix: str, formats: dict[str, list[tuple[str, int, str]]], sizes: dict[str, int], depth: int = 0
) -> Iterator[tuple[str, str, int]]:
    """Yields (path, type, count) of each field of a basic type; a count of 0 is a single value."""
    if _size(schema, formats, sizes, depth) > _LONGEST:
        raise SourceError(f"format {schema!r}: expected at most {_LONGEST} bytes a row, got {sizes[schema]}")
    for type, count, name in formats[schema]:
        if type in _TYPES:
            yield prefix + name, type, count
        else:
            for part in [f"{name}[{i}]" for i in range(count)] if count else [name]:
                yield from _flatten(type, f"{prefix}{part}.", formats, sizes, depth + 1)


def _size(schema: str, formats: dict[str, list[tuple[str, int, str]]], sizes: dict[str, int], depth: int) -> int:
    """Returns the bytes of a row of that format."""
    if schema in sizes:
        return sizes[schema]
    if schema not in formats:
        raise SourceError(f"format {schema!r}: not in the file")
    if depth > _DEEPEST:
        raise SourceError(f"format {schema!r}: within more than {_DEEPEST} others, or itself")
    size = 0
    for type, count, _ in formats[schema]:
        single = _TYPES[type].itemsize if type in _TYPES else _size(type, formats, sizes, depth + 1)
        size += max(count, 1) * single
    if size == 0:
        raise SourceError(f"format {schema!r}: no fields")
    sizes[schema] = size
    return size


# ---- the messages of a log ----


class _Log:
    """A log that is being read.

    Attributes:
        facts: the log's facts, for the provenance.
        zeros: the number of rows stamped 0, by topic.
        unknown: the number of messages by type, for types that this version of ULog does not have.
    """

    def __init__(self, file: Path, what: str, notes: Notes) -> None:
        self.facts: dict[str, Any] = {
            "information": {},
            "parameters": {},
            "default_parameters": {},
            "changed_parameters": [],  # [microseconds, key, value]
            "dropouts": [],  # [microseconds, milliseconds that were lost]
        }
        self.zeros: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self._file, self._what, self._notes = file, what, notes
        self._formats: dict[str, list[tuple[str, int, str]]] = {}
        self._topics: dict[str, _Topic] = {}
        self._by_id: dict[int, _Topic] = {}
        self._messages: list[tuple[int, int, int, str]] = []
        self._defined = False
        self._last_us = 0
        self._undated: list[tuple[int, list[Any]]] = []
        self._faults = 0
        self._first_fault: SourceError | None = None
        self._lost_from: int | None = None

    def read_header(self, opened: BinaryIO) -> list[int]:
        """Returns the offsets at which data were appended: each is the start of a message, whatever precedes it."""
        header = opened.read(16 + 3 + 40)
        if header[:7] != MAGIC or len(header) < 16:
            raise SourceError(f"{self._file}: expected a ULog file, which begins with {MAGIC!r}, got {header[:16]!r}")
        version, (start_us,) = header[7], struct.unpack_from("<Q", header, 8)
        self.facts |= {"version": version, "start_us": _plain(start_us)}
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
        """Reads the messages from byte `start` to `end`."""
        rest = b""
        while True:
            part = opened.read(_PART if end is None else min(_PART, end - opened.tell()))
            buffer = rest + part
            walked = self._walk(buffer, start)
            yield from self._take(buffer)
            rest, start = buffer[walked:], start + walked
            if not part:
                break
            self._end_part()
        if self._lost_from is not None:
            self._lose(self._lost_from, f"no message up to byte {start + len(rest)}")
            self._lost_from = None
        elif rest and last:
            self._lose(start, f"the file ends in the middle of a message; {len(rest)} bytes of it exist")
        elif rest:
            self._notes.leave_out(
                f"{self._what}: bytes {start} to {start + len(rest) - 1}",
                "a message that was being written when the section after it was appended",
            )
        self._end_part()

    def _walk(self, buffer: bytes, base: int) -> int:
        """Reads the whole messages in `buffer`, whose first byte is at `base` in the file; returns how many bytes they have."""
        offset, end = 0, len(buffer)
        head, read_id, by_id = _HEAD.unpack_from, _ID.unpack_from, self._by_id
        while end - offset >= 3:
            if self._lost_from is not None:
                found = buffer.find(_SYNC, offset)
                if found < 0:
                    return max(offset, end - len(_SYNC) + 1)
                offset = found + len(_SYNC)
                self._lose(self._lost_from, f"no message before byte {base + offset}")
                self._lost_from = None
                continue
            size, kind = head(buffer, offset)
            if kind == 68 and size >= 2 and offset + 3 + size <= end:  # "D": nearly all are
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
                self._lose(base + offset, str(error))
            except Exception as error:
                self._lose(base + offset, f"no message of type {chr(kind)!r}: {type(error).__name__}: {error}")
            offset += 3 + size
        return offset

    def _read_message(self, kind: str, data: bytes, offset: int) -> None:
        """Reads a message that is no row. `offset` is its offset in the part."""
        self._defined |= kind in "ALC"
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
                self._announce(data[0], _ID.unpack_from(data, 1)[0], data[3:].decode())
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
                if self._defined:
                    self.facts["changed_parameters"].append([None, key, value])
                    self._undated.append((offset, self.facts["changed_parameters"][-1]))
                else:
                    self.facts["parameters"][key] = value
            case "Q":
                key, value = _read_information(data[1:])
                for bit, what in enumerate(("system", "setup")):
                    if data[0] >> bit & 1:
                        self.facts["default_parameters"].setdefault(what, {})[key] = value
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
                pass  # nothing to keep: ends of subscriptions, marks for synchronisation, flags that were read already
            case _:
                self.unknown[kind] += 1

    def _announce(self, multi_id: int, id: int, schema: str) -> None:
        name = f"{schema}.{multi_id}" if multi_id else schema
        self._by_id.pop(id, None)  # from here on the id no longer means the topic before
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

    def _take(self, buffer: bytes) -> Iterator[tuple[str, Rows | Texts]]:
        """Yields the contents of the walked messages, stream by stream."""
        raw = np.frombuffer(buffer, np.uint8)
        seen = [(np.zeros(1, np.int64), np.array([self._last_us], np.uint64))]
        for topic in self._topics.values():
            if not topic.starts:
                continue
            starts = np.array(topic.starts)
            topic.starts.clear()
            rows = np.lib.stride_tricks.sliding_window_view(raw, topic.shortest)[starts]
            stamps_us = topic.clock.read(rows)[:, 0]
            time_ns = self._nanoseconds(topic.name, stamps_us)
            seen.append((starts, stamps_us))
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
                described: dict[str, Any] = dict(attributes)
                if dtype.kind == "f":
                    is_whole = [f.type not in ("float", "double") for f in fields for _ in f.names]
                    limited = [has_limits(name, names) for name in names]
                    for name in compress(names, limited):
                        self._notes.leave_out(f"{stream}: {name} between rows", BEYOND_LIMITS)
                    held = [a or b for a, b in zip(is_whole, limited, strict=True)]
                    methods = with_held(rotations_of(stream, names, [len(names)], PX4_WORDS), held)
                    methods = with_others(methods, px4_angles(topic.schema, names))
                    if px4_of_several(topic.schema):
                        methods = [[0, len(names), "previous"]]
                    if methods:
                        described["methods"] = methods
                yield stream, Rows(time_ns, values, names, attributes=described)
            for stream, (start, end) in topic.texts.items():
                cells = (bytes(cell).partition(b"\0")[0] for cell in rows[:, start:end])
                texts = [cell.decode(errors="backslashreplace") for cell in cells]
                yield stream, Texts(time_ns, texts, attributes=attributes)
        self._date(np.concatenate([starts for starts, _ in seen]), np.concatenate([stamps for _, stamps in seen]))
        if self._messages:
            stamps, levels, tags, messages = zip(*self._messages, strict=True)
            self._messages.clear()
            time_ns = self._nanoseconds("logged_messages", np.array(stamps, np.uint64))
            attributes = {"clock_source": "timestamp"}
            yield "logged_messages", Texts(time_ns, messages, attributes=attributes)
            values = np.array([levels, tags], np.int32).T
            yield "logged_messages/level", Rows(time_ns, values, ["level", "tag"], attributes=attributes)

    def _date(self, starts: np.ndarray, stamps_us: np.ndarray) -> None:
        """Gives entries without a stamp that of the latest row before them."""
        order = np.argsort(starts, kind="stable")
        latest = np.maximum.accumulate(stamps_us[order])
        for offset, entry in self._undated:
            entry[0] = _plain(int(latest[max(0, np.searchsorted(starts[order], offset) - 1)]))
        self._undated.clear()
        self._last_us = int(latest[-1])

    def _nanoseconds(self, name: str, stamps_us: np.ndarray) -> np.ndarray:
        latest = int(stamps_us.max())
        if latest > np.iinfo(np.int64).max // 1000:
            raise SourceError(f"{self._file}: {name}: a stamp of {latest} us does not fit int64 nanoseconds")
        return stamps_us.astype(np.int64) * 1000

    def _lose(self, offset: int, why: str) -> None:
        self._first_fault = self._first_fault or SourceError(f"{self._file}: byte {offset}: {why}")
        self._faults += 1

    def _end_part(self) -> None:
        """Stops at messages of a part that could not be read, or skips them by name."""
        count, first = self._faults, self._first_fault
        self._faults, self._first_fault = 0, None
        if first is not None:
            self._notes.skip(f"{self._what}: {count} message{'s' * (count > 1)}", first)


def _read_field(text: str) -> tuple[str, int, str]:
    """Returns the type, the count and the name of a field such as "float[3] q"."""
    found = re.fullmatch(r"([\w/-]+)(?:\[(\d{1,5})\])? (\w+)", text, re.ASCII)
    if found is None or found[2] == "0" * len(found[2] or "-"):
        raise SourceError(f"expected a field as 'float[3] q', got {text!r:.80}")
    return found[1], int(found[2] or 0), found[3]


def _read_information(data: bytes) -> tuple[str, Any]:
    """Returns key and value; None for a value that is neither text nor number."""
    length = data[0]
    type, _, key = data[1 : 1 + length].decode().partition(" ")
    value = data[1 + length :]
    if not key:
        raise SourceError(f"expected a type and a key, got {type!r:.80}")
    if type.startswith("char["):
        return key, value.decode(errors="backslashreplace")
    if type not in _TYPES or type == "char":
        return key, None
    return key, _plain(np.frombuffer(value, _TYPES[type], 1)[0].item())


def _plain(value: float) -> float | str:
    """Returns a number as JSON can hold it."""
    fits = math.isfinite(value) and (isinstance(value, float) or value < 1 << 63)
    return value if fits else str(value)
