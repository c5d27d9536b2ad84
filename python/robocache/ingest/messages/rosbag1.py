"""Reads ROS 1 bags: records with a header and data. Messages are in chunks, which may be compressed with bz2 or lz4."""

from __future__ import annotations

import bz2
import os
import struct
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ...errors import Error
from ..budget import Budget, at_once, check_size
from ..files import check_file, look_through, without_links_to_others
from ..formats.mcap import MessageOptions
from ..formats.rosbag1 import is_bag
from ..recording import Notes, Recording, SourceError, naming
from .bags import Bag, Channel, Chunk, Faults, Part, Payload, Table, find_set_back_rows, merge
from .mcap import decompress_lz4
from .passes import finish as finish
from .passes import read_bags

MAGIC = b"#ROSBAG V2.0\n"
# The kinds of records. _BAG is the bag's header, _INFO the index entry of a chunk.
_MESSAGE, _BAG, _CHUNK, _INFO, _CONNECTION = 2, 3, 5, 6, 7
_U32 = struct.Struct("<I")
_PAIR = struct.Struct("<II")
_LARGEST_HEADER = 1 << 20


def read(source: Path, options: MessageOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every bag."""
    root, listing = look_through(source, notes)
    found = [file for file in listing.files if file == source or is_bag(file)]
    found = without_links_to_others(found, root, notes)
    listing.name_others(found, "no bags", root, notes)
    files = []
    for file in found:
        # `rosbag compress`, `decompress` and `reindex` keep NAME.bag as it was as NAME.orig.bag.
        changed = file.with_name(f"{file.name.removesuffix('.orig.bag')}.bag")
        if file.name.endswith(".orig.bag") and changed in found:
            why = f"rosbag's copy of {changed.name} before it was compressed or indexed anew"
            notes.leave_out(str(file.relative_to(root)), why)
        else:
            files.append(file)
    yield from read_bags(source, [(file.relative_to(root).as_posix(), RosBag1(file)) for file in files], options, notes)


@dataclass
class _Chunk:
    """A chunk in the file.

    offset, stored: the offset of its data, and their bytes.
    size: the bytes of its data when they are decompressed.
    first, last: the earliest and the latest log time, as the bag's index declares them.
    set_back_rows: as in :class:`Chunk`.
    """

    offset: int
    stored: int
    compression: str
    size: int
    first: int = 0
    last: int = 0
    set_back_rows: list[int] | None = None


class RosBag1(Bag):
    """A bag of ROS 1, which is one file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._chunks: list[_Chunk] = []
        # The keys of the dicts are the numbers of connections in the file.
        self._connections: dict[int, int] = {}  # the channels
        self._publishers: dict[int, str] = {}
        self._expected: Counter[int] | None = None  # the messages by the index
        self._budget = Budget(path)
        self._counts: Counter[int] = Counter()

    def open(self, faults: Faults) -> None:
        path = self.path
        check_file(path)
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
            if head != MAGIC:
                hint = (
                    ": a bag of another version, `rosbag fix` may bring it up to date"
                    if head.startswith(b"#ROS")
                    else ""
                )
                raise SourceError(f"{path}: expected a bag, which begins with {MAGIC!r}, got {head!r}{hint}")
            self._scan(file, os.fstat(file.fileno()).st_size, faults)

    def _scan(self, file: BinaryIO, size: int, faults: Faults) -> None:
        """Finds the chunks and connections in the file."""
        offset, is_indexed = len(MAGIC), False
        times: dict[int, tuple[int, int]] = {}  # the first and last log time of a chunk, by its offset
        while offset < size:
            where = f"{self.path}: byte {offset}"
            try:
                with naming(where):
                    header, data_offset, data_size = _read_record(file, offset, size)
                    kind = _find_kind(header)
                    if kind == _BAG:
                        is_indexed = struct.unpack("<Q", header["index_pos"])[0] != 0
                        if header.get("encryptor"):
                            raise SourceError(f"{where}: an encrypted bag")
                    elif kind == _CHUNK:
                        compression = header["compression"].decode(errors="backslashreplace")
                        self._chunks.append(_Chunk(data_offset, data_size, compression, _U32.unpack(header["size"])[0]))
                        times.setdefault(offset, (0, 0))
                    elif kind == _CONNECTION:
                        file.seek(data_offset)
                        self._add_connection(header, file.read(min(data_size, at_once())))
                    elif kind == _INFO:
                        (chunk_offset,) = struct.unpack("<Q", header["chunk_pos"])
                        file.seek(data_offset)
                        counts = dict(_PAIR.iter_unpack(file.read(min(data_size - data_size % 8, _LARGEST_HEADER))))
                        times[chunk_offset] = _read_time(header["start_time"]), _read_time(header["end_time"])
                        self._expected = self._expected or Counter()
                        self._expected.update(counts)
            except SourceError as error:
                faults.add(f"from byte {offset}", error)
                is_indexed = True  # the error is reported, so a missing index is not
                break
            offset = data_offset + data_size
        for chunk, (first, last) in zip(self._chunks, [pair for _, pair in sorted(times.items())], strict=False):
            chunk.first, chunk.last = first, last
        if self._expected is None or len(times) != len(self._chunks):
            for number, chunk in enumerate(self._chunks):
                chunk.first, chunk.last = number, 1 << 64  # chunks without log times stay in the order of the file
        if not is_indexed:
            no_index = SourceError(
                f"{self.path}: no index, as after a crash of the recorder: its end may be missing; `rosbag reindex` makes one"
            )
            faults.add("index", no_index)

    def _add_connection(self, header: dict[str, bytes], data: bytes) -> None:
        (number,) = _U32.unpack(header["conn"])
        if number not in self._connections:
            fields = _read_fields(data)
            topic, schema = (text.decode(errors="backslashreplace") for text in (header["topic"], fields["type"]))
            self._publishers[number] = fields.get("callerid", b"").decode(errors="backslashreplace")
            self._connections[number] = self.number(
                Channel(topic, schema, "ros1", "ros1msg", fields.get("message_definition", b""))
            )

    def parts(self, faults: Faults) -> Iterator[Part]:
        with self.path.open("rb") as file:
            if not faults.is_later_pass:
                by_chunk = find_set_back_rows(self._make_chunks(file, Faults("", None)), self.out_of_order)
                for chunk, set_back_rows in zip(self._chunks, by_chunk or [], strict=by_chunk is not None):
                    chunk.set_back_rows = set_back_rows
            self._counts.clear()
            self._budget = Budget(self.path)  # a new one for each pass
            yield from merge(self._make_chunks(file, faults), {} if faults.is_later_pass else self.out_of_order)
        faults.compare(self.path, self._counts, self._expected or {}, self._topic_of, "its index counts")

    def _topic_of(self, number: int) -> str:
        channel = self._connections.get(number)
        return f"connection {number}" if channel is None else self.channels[channel].topic

    def _make_chunks(self, file: BinaryIO, faults: Faults) -> list[Chunk]:
        return [
            Chunk(chunk.first, chunk.last, partial(self._read, file, chunk, faults), chunk.set_back_rows)
            for chunk in self._chunks
        ]

    def _read(self, file: BinaryIO, chunk: _Chunk, faults: Faults) -> Table | None:
        """Returns a chunk's messages; None if it has none or cannot be read."""
        where = f"{self.path}: byte {chunk.offset}"
        try:
            with naming(where):
                check_size(where, "a chunk", max(chunk.size, chunk.stored))
                if chunk.compression != "none":
                    self._budget.take("chunks", chunk.size)
                file.seek(chunk.offset)
                data = file.read(chunk.stored)
                if len(data) == chunk.stored:
                    data = _decompress(chunk.compression, data, chunk.size, where)
                if len(data) != chunk.size:
                    raise SourceError(f"{where}: expected a chunk of {chunk.size} bytes, got {len(data)}")
                return self._walk(memoryview(data), where)
        except SourceError as error:
            faults.add(f"chunk at byte {chunk.offset}", error)
            return None

    def _walk(self, data: memoryview, where: str) -> Table | None:
        logs: list[int] = []
        numbers: list[int] = []
        payloads: list[Payload] = []
        offset, end = 0, len(data)
        while offset < end:
            (size,) = _U32.unpack_from(data, offset)
            start = offset + 4
            after = start + size + 4
            if size > _LARGEST_HEADER or after > end:
                raise SourceError(f"{where}: a record's header of {size} bytes at {offset} of {end}")
            header = _read_fields(data[start : start + size])
            (length,) = _U32.unpack_from(data, after - 4)
            offset = after + length
            if offset > end:
                raise SourceError(f"{where}: a record of {length} bytes at {start} of {end}")
            kind = _find_kind(header)
            if kind == _MESSAGE:
                numbers.append(_U32.unpack(header["conn"])[0])
                logs.append(_read_time(header["time"]))
                payloads.append(data[after:offset])
            elif kind == _CONNECTION:
                self._add_connection(header, bytes(data[after:offset]))
        if not logs:
            return None
        self._counts.update(numbers)
        try:
            channels = [self._connections[number] for number in numbers]
        except KeyError as error:
            raise SourceError(f"{where}: a message of connection {error}, which has no record") from error
        self.note_publishers(logs, numbers, self._connections, self._publishers)
        return logs, channels, logs, payloads


def _read_record(file: BinaryIO, offset: int, size: int) -> tuple[dict[str, bytes], int, int]:
    """Returns a record's header, the offset of its data, and the number of their bytes. `size`: the bytes of the file."""
    file.seek(offset)
    head = file.read(4)
    length = _U32.unpack(head)[0] if len(head) == 4 else 0
    if len(head) < 4 or length > _LARGEST_HEADER or offset + 8 + length > size:
        raise SourceError(
            f"{file.name}: byte {offset}: expected a record, got a header of {length} bytes {size - offset} before the end"
        )
    rest = file.read(length + 4)
    (data_size,) = _U32.unpack_from(rest, length)
    if offset + 8 + length + data_size > size:
        raise SourceError(
            f"{file.name}: byte {offset}: a record of {data_size} bytes is cut off {size - offset} bytes after its beginning"
        )
    return _read_fields(memoryview(rest)[:length]), offset + 8 + length, data_size


def _read_fields(data: bytes | memoryview) -> dict[str, bytes]:
    """Returns the fields of a header. Each is stored as its length and "name=value"."""
    fields: dict[str, bytes] = {}
    offset = 0
    while offset < len(data):
        (size,) = _U32.unpack_from(data, offset)
        if size > len(data) - offset - 4:
            raise Error(f"a header's field of {size} bytes in {len(data)}")
        name, _, value = bytes(data[offset + 4 : offset + 4 + size]).partition(b"=")
        fields[name.decode(errors="backslashreplace")] = value
        offset += 4 + size
    return fields


def _read_time(stamp: bytes) -> int:
    """Returns a stamp in nanoseconds."""
    seconds, nanoseconds = _PAIR.unpack(stamp)
    return int(seconds) * 10**9 + int(nanoseconds)


def _decompress(compression: str, data: bytes, size: int, where: str) -> bytes:
    """Decompresses to at most `size` + 1 bytes."""
    if compression == "none":
        return data
    if compression == "bz2":
        return bz2.BZ2Decompressor().decompress(data, size + 1)
    if compression == "lz4":
        return bytes(decompress_lz4(data, size))
    raise SourceError(f"{where}: compression {compression!r}, expected none, bz2 or lz4")


def _find_kind(header: dict[str, bytes]) -> int:
    """Returns the kind of a record, by its header."""
    if len(header.get("op", b"")) != 1:
        raise ValueError(f"expected a record with its kind in op, got {', '.join(header) or 'nothing'}")
    return header["op"][0]
