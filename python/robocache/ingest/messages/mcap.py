"""Reads MCAP files: records with an opcode and a length, and messages in chunks that may be compressed.

Every record is read, without the index, since a recorder that crashed wrote none. The summary is compared with the records. Messages
come in the order of their log time, as the format demands; overlapping chunks are merged.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

import lz4.frame
import zstandard

from ...errors import Error
from ..budget import Budget, at_once, check_size
from ..files import check_file, look_through
from ..formats.mcap import MessageOptions, is_mcap
from ..recording import Notes, Recording, SourceError, naming
from .bags import Bag, Channel, Chunk, Faults, Part, Payload, Table, find_set_back_rows, merge
from .exported import Exported, columns_of, texts_of
from .metadata import BagMetadata
from .packed import UnpackedBag, without_packed_copies
from .passes import finish as finish
from .passes import read_bags

MAGIC = b"\x89MCAP0\r\n"
# The opcodes of records, and the head of every record: its opcode and length.
_SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _ATTACHMENT, _STATISTICS, _METADATA, _DATA_END = 3, 4, 5, 6, 9, 11, 12, 15
_RECORD = struct.Struct("<BQ")
# The head of a message: opcode, length, channel, sequence, log and publish time.
_MESSAGE_HEAD = struct.Struct("<BQHIQQ")
# The head of a chunk: first and last log time, size when decompressed, and checksum.
_CHUNK_HEAD = struct.Struct("<QQQI")
_CHUNK_TIMES = struct.Struct("<QQ")
# The least bytes of a record without its head. After its own head a chunk has a text, its compression, and a length.
_LEAST = {_MESSAGE: _MESSAGE_HEAD.size - _RECORD.size, _CHUNK: _CHUNK_HEAD.size + 4 + 8}
# The most bytes of messages outside of chunks that are read together.
_LOOSE_BYTES = 8 << 20


def read(source: Path, options: MessageOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every MCAP file."""
    root, listing = look_through(source, notes)
    files = [file for file in listing.files if file == source or is_mcap(file)]
    listing.name_others([*files, *(file.with_suffix(".mp4") for file in files)], "no MCAP", root, notes)
    files = without_packed_copies(files, root, notes)
    bags = [(file.relative_to(root).as_posix(), UnpackedBag(file, McapBag)) for file in files]
    yield from read_bags(source, bags, options, notes)


@dataclass
class _Segment:
    """Messages that are read together: those of a chunk, or neighbouring ones outside of chunks.

    offset, size: the offset and the bytes of the chunk's record without its head, or of the neighbouring messages.
    is_chunk: whether the messages are in a chunk.
    first, last: the earliest and the latest log time.
    set_back_rows: as in :class:`Chunk`.
    """

    offset: int
    size: int
    is_chunk: bool
    first: int
    last: int
    set_back_rows: list[int] | None = None


@dataclass
class _File:
    """The contents of a file. Channels are keyed by their numbers in the file.

    schemas: the name, encoding and definition of each schema, by its number.
    channels: the number of each channel in the bag.
    publishers: the publisher of each channel.
    counts: the messages of each channel that a pass read.
    expected: the messages of each channel by the file's statistics; None if it has no statistics.
    """

    path: Path
    segments: list[_Segment] = field(default_factory=list)
    schemas: dict[int, tuple[str, str, bytes]] = field(default_factory=dict)
    channels: dict[int, int] = field(default_factory=dict)
    publishers: dict[int, str] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)
    expected: dict[int, int] | None = None


class McapBag(Bag):
    """A recording in one MCAP file, or in several that follow each other.

    counts: the messages of each channel that the last pass read.
    """

    def __init__(self, paths: list[Path]) -> None:
        super().__init__(paths[0])
        self.counts: Counter[int] = Counter()
        self._paths = paths
        self._files: list[_File] = []
        self._budget = Budget(paths[0])

    def open(self, faults: Faults) -> None:
        """Finds the chunks of all files."""
        for path in self._paths:
            with faults.reading(path.name, path) if len(self._paths) > 1 else naming(path):
                check_file(path)
                with path.open("rb") as file:
                    contents = _File(path)
                    self._scan(file, contents, faults)
                    self._files.append(contents)

    def parts(self, faults: Faults) -> Iterator[Part]:
        """Yields the messages, in each file in the order of log time."""
        if not faults.is_later_pass:
            self._find_set_back_rows()
        self.counts.clear()
        run = 0  # how often the log clock was set back so far
        for contents in self._files:
            contents.counts.clear()
            self._budget = Budget(contents.path)  # a new one for each pass
            with contents.path.open("rb") as file:
                out_of_order = {} if faults.is_later_pass else self.out_of_order
                for part in merge(self._chunks(file, contents, faults), out_of_order, run):
                    run = part.run
                    yield part
            for number, count in contents.counts.items():
                self.counts[contents.channels[number]] += count
            if contents.expected is not None:
                topic_of = partial(self._topic_of, contents)
                faults.compare(contents.path, contents.counts, contents.expected, topic_of, "its statistics count")
        video = self.path.with_suffix(".mp4")
        if len(self._paths) == 1 and video.is_file() and not faults.is_later_pass:
            self.left_out[video.name] = self._describe_video(video)

    def _topic_of(self, contents: _File, number: int) -> str:
        bag_number = contents.channels.get(number)
        return f"channel {number}" if bag_number is None else self.channels[bag_number].topic

    def _chunks(self, file: BinaryIO, contents: _File, faults: Faults) -> list[Chunk]:
        return [
            Chunk(
                segment.first, segment.last, partial(self._read, file, contents, segment, faults), segment.set_back_rows
            )
            for segment in contents.segments
        ]

    def _find_set_back_rows(self) -> None:
        """Finds the rows at which the log clock was set back between chunks, in all files."""
        with ExitStack() as files:
            chunks = []
            for contents in self._files:
                file = files.enter_context(contents.path.open("rb"))
                chunks += self._chunks(file, contents, Faults("", None))
            rows_by_chunk = find_set_back_rows(chunks, self.out_of_order)
        segments = [segment for contents in self._files for segment in contents.segments]
        for segment, set_back_rows in zip(segments, rows_by_chunk or [], strict=rows_by_chunk is not None):
            segment.set_back_rows = set_back_rows

    def _describe_video(self, video: Path) -> str:
        """Describes a video with the file's name, whose messages may be the stamps of its frames."""
        topics = ", ".join(f"{self.channels[number].topic} {count}" for number, count in sorted(self.counts.items()))
        try:
            from ..video import index_video

            frames = f"{len(index_video(video))} frames"
        except (ImportError, Error) as error:
            frames = f"frames that cannot be counted: {error}"
        return (
            f"a video beside {self.path.name}, not read; it has {frames}, the topics have messages: {topics or 'none'}"
        )

    # ---- the file's records ----

    def _scan(self, file: BinaryIO, contents: _File, faults: Faults) -> None:
        """Finds the segments and the definitions in a file."""
        path, size = contents.path, os.fstat(file.fileno()).st_size
        _check_magic(path, file.read(8))
        offset, in_summary, has_ended = 8, False, False
        while offset < size:
            file.seek(offset)
            head = file.read(_MESSAGE_HEAD.size)
            if len(head) < _RECORD.size:
                has_ended = head == MAGIC
                break
            if head[:8] == MAGIC and offset == size - 8:
                has_ended = True
                break
            opcode, length = _RECORD.unpack_from(head)
            body = offset + _RECORD.size
            # No record has the opcode 0: zeros mean that the file system lost data.
            if length > size - body or opcode == 0:
                break
            where = f"{path}: byte {offset}"
            with naming(where):
                least = _LEAST.get(opcode)
                if least is not None and not least <= length <= at_once():
                    kind = "message" if opcode == _MESSAGE else "chunk"
                    error = SourceError(f"{where}: expected a {kind} of {least} to {at_once()} bytes, got {length}")
                    faults.add(f"{self._prefix(path)}{kind} at byte {offset}", error)
                elif opcode == _MESSAGE:
                    self._add_loose(contents, offset, _RECORD.size + length, _MESSAGE_HEAD.unpack(head)[4])
                elif opcode == _CHUNK:
                    first, last = _CHUNK_TIMES.unpack_from(head, _RECORD.size)
                    contents.segments.append(_Segment(body, length, is_chunk=True, first=first, last=last))
                elif opcode in (_SCHEMA, _CHANNEL, _STATISTICS, _METADATA) and length <= at_once():
                    file.seek(body)
                    self._read_definition(opcode, file.read(length), contents)
                elif opcode == _ATTACHMENT:
                    file.seek(body)
                    name, _ = _text(file.read(min(length, 1 << 16)), 16)
                    self.left_out[f"attachment {name!r}"] = f"{length} bytes; attachments are not read"
                elif opcode == _DATA_END:
                    in_summary = True
            offset = body + length
        if not has_ended:
            ending = (
                "ends in its summary"
                if in_summary
                else "ends early and has no summary, as after a crash of the recorder"
            )
            faults.add(
                f"{self._prefix(path)}from byte {offset}",
                SourceError(
                    f"{path}: byte {offset}: expected a whole record or the magic at the end, got {size - offset} bytes: the file {ending}"
                ),
            )

    def _prefix(self, path: Path) -> str:
        return f"{path.name}: " if len(self._paths) > 1 else ""

    def _add_loose(self, contents: _File, offset: int, size: int, log_ns: int) -> None:
        """Adds a message outside of chunks to the last segment, or to a new one."""
        last = contents.segments[-1] if contents.segments else None
        if last and not last.is_chunk and last.offset + last.size == offset and last.size + size <= _LOOSE_BYTES:
            last.size += size
            last.first, last.last = min(last.first, log_ns), max(last.last, log_ns)
        else:
            contents.segments.append(_Segment(offset, size, is_chunk=False, first=log_ns, last=log_ns))

    def _read_definition(self, opcode: int, body: bytes, contents: _File) -> None:
        """Reads a record that is no message."""
        if opcode == _SCHEMA:
            (number,) = struct.unpack_from("<H", body)
            name, offset = _text(body, 2)
            encoding, offset = _text(body, offset)
            contents.schemas[number] = name, encoding, body[offset + 4 : offset + 4 + _u32(body, offset)]
        elif opcode == _CHANNEL:
            number, schema = struct.unpack_from("<HH", body)
            topic, offset = _text(body, 4)
            encoding, offset = _text(body, offset)
            if number not in contents.channels:
                name, definition_encoding, definition = contents.schemas.get(schema, ("", "", b""))
                metadata = _texts(body, offset)
                exported = Exported.of(metadata) if b"robocache." in body else None
                channel = Channel(topic, name, encoding, definition_encoding, definition, exported)
                bag_number = self.number(channel)
                # The file may repeat a channel for each publisher.
                earlier = list(contents.channels.values()).count(bag_number)
                contents.channels[number] = bag_number
                contents.publishers[number] = metadata.get("callerid") or f"channel {earlier + 1}"
        elif opcode == _STATISTICS:
            (size,) = struct.unpack_from("<I", body, 42)  # the bytes of the map of counts, before it
            contents.expected = dict(struct.iter_unpack("<HQ", body[46 : 46 + size - size % 10]))
        elif opcode == _METADATA:
            name, offset = _text(body, 0)
            if name == "robocache" and not self.columns:
                record = _texts(body, offset)
                self.columns, self.texts = columns_of(record), texts_of(record)
                return
            if name == "rosbag2":
                self._take_metadata(contents.path, _texts(body, offset))
                return
            self.left_out[f"metadata {name!r}"] = f"{len(body)} bytes; metadata records are not read"

    def _take_metadata(self, path: Path, record: dict[str, str]) -> None:
        """Takes the metadata that rosbag2 wrote. Versions before Iron wrote only the distribution, as ROS_DISTRO."""
        metadata = BagMetadata(distro=record.get("ROS_DISTRO", "").lower())
        if text := record.get("serialized_metadata"):
            try:
                metadata = BagMetadata.of_text(text, path).or_else(metadata)
            except SourceError as error:
                self.left_out["metadata 'rosbag2'"] = str(error)
        self.metadata = metadata.or_else(self.metadata)

    # ---- messages ----

    def _read(self, file: BinaryIO, contents: _File, segment: _Segment, faults: Faults) -> Table | None:
        """Returns a segment's messages; None if it has none or cannot be read."""
        kind, start = ("chunk", segment.offset - _RECORD.size) if segment.is_chunk else ("messages", segment.offset)
        where = f"{contents.path}: byte {start}"
        file.seek(segment.offset)
        data = memoryview(file.read(segment.size))
        try:
            with naming(where):
                if len(data) != segment.size:
                    raise SourceError(
                        f"{where}: expected {segment.size} bytes, got {len(data)}: the file has become shorter"
                    )
                if segment.is_chunk:
                    data = self._decompress(data, where, check=not faults.is_later_pass)
                return self._walk(data, contents, where, faults)
        except SourceError as error:
            faults.add(f"{self._prefix(contents.path)}{kind} at byte {start}", error)
            return None

    def _decompress(self, body: memoryview, where: str, check: bool) -> memoryview:
        _, _, size, crc = _CHUNK_HEAD.unpack_from(body)
        compression, offset = _text(body, _CHUNK_HEAD.size)
        (stored,) = struct.unpack_from("<Q", body, offset)
        packed = body[offset + 8 : offset + 8 + stored]
        if len(packed) != stored:
            raise SourceError(
                f"{where}: a chunk of {stored} bytes, {size} when it is decompressed, in a record of {len(body)}"
            )
        check_size(where, "a chunk", size)
        if compression:
            self._budget.take("chunks", size)
        data = decompress(compression, packed, size, where)
        if len(data) != size:
            raise SourceError(f"{where}: expected a chunk of {size} bytes, got {len(data)}")
        if check and crc and (got := zlib.crc32(data)) != crc:
            raise SourceError(f"{where}: the chunk's checksum is {got:08x}, expected {crc:08x}: damaged")
        return memoryview(data)

    def _walk(self, data: memoryview, contents: _File, where: str, faults: Faults) -> Table | None:
        """Returns the messages in records one after another; None if there are none. Reports messages that cannot be used."""
        offset, end = 0, len(data)
        logs: list[int] = []
        numbers: list[int] = []
        publishes: list[int] = []
        payloads: list[Payload] = []
        unpack = _MESSAGE_HEAD.unpack_from
        record_head, message_head, least = _RECORD.size, _MESSAGE_HEAD.size, _LEAST[_MESSAGE]
        while offset < end:
            if end - offset < record_head:
                raise SourceError(f"{where}: a record is cut off at {offset} of {end}")
            if data[offset] == _MESSAGE and end - offset >= message_head:
                _, length, number, _, log, publish = unpack(data, offset)
                after = offset + record_head + length
                if after > end or length < least:
                    raise SourceError(f"{where}: a message of {length} bytes at {offset} of {end}")
                logs.append(log)
                numbers.append(number)
                publishes.append(publish)
                payloads.append(data[offset + message_head : after])
            else:
                opcode, length = _RECORD.unpack_from(data, offset)
                after = offset + record_head + length
                if after > end or opcode == 0:
                    raise SourceError(f"{where}: a record of kind {opcode}, {length} bytes at {offset} of {end}")
                if opcode in (_SCHEMA, _CHANNEL):
                    self._read_definition(opcode, bytes(data[offset + record_head : after]), contents)
            offset = after
        if not logs:
            return None
        bad_rows: dict[str, list[int]] = {}  # by the reason
        if unknown := set(numbers) - contents.channels.keys():
            for row, number in enumerate(numbers):
                if number in unknown:
                    bad_rows.setdefault(f"of channel {number}, which has no record", []).append(row)
        if max(logs) >= 1 << 63 or max(publishes) >= 1 << 63:
            late = [row for row, times in enumerate(zip(logs, publishes, strict=True)) if max(times) >= 1 << 63]
            bad_rows["with a log or publish time of 2^63 ns and more"] = late
        if bad_rows:
            for why, rows in bad_rows.items():
                error = SourceError(f"{where}: {len(rows)} message{'s' * (len(rows) > 1)} {why}")
                faults.add(f"{self._prefix(contents.path)}{where.rpartition(': ')[2]}: messages {why}", error)
            bad = {row for rows in bad_rows.values() for row in rows}
            kept = [row for row in range(len(logs)) if row not in bad]
            logs, numbers, publishes = ([column[row] for row in kept] for column in (logs, numbers, publishes))
            payloads = [payloads[row] for row in kept]
            if not kept:
                return None
        channels = [contents.channels[number] for number in numbers]
        contents.counts.update(numbers)
        self.note_publishers(logs, numbers, contents.channels, contents.publishers)
        return logs, channels, publishes, payloads


def decompress(compression: str, packed: memoryview, size: int, where: str) -> memoryview | bytes:
    """Decompresses data that declare to be `size` bytes then; never allocates much more than that.

    Raises:
        SourceError: the compression is unknown, or zstd's frame declares another size.
    """
    if compression == "":
        return packed
    if compression == "zstd":
        if zstandard.frame_content_size(packed) not in (size, -1):
            raise SourceError(
                f"{where}: expected zstd of {size} bytes, its frame says {zstandard.frame_content_size(packed)}"
            )
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=size) if size else b""
    if compression == "lz4":
        return decompress_lz4(packed, size)
    raise SourceError(f"{where}: compression {compression!r}, expected '', 'lz4' or 'zstd'")


def decompress_lz4(packed: bytes | memoryview, size: int) -> bytes:
    """Returns at most `size` + 1 bytes. lz4.frame.decompress() would allocate all that the data become, even if that is far more."""
    context = lz4.frame.create_decompression_context()
    return bytes(lz4.frame.decompress_chunk(context, packed, max_length=size + 1)[0])


def _check_magic(path: Path, head: bytes) -> None:
    if head == MAGIC:
        return
    if head[:7] == b"\x89MCAP0\n":
        raise SourceError(
            f"{path}: its first bytes lack the CR of {MAGIC!r}: line ends were converted as in a text file, as git does, also among the "
            "data; copy it anew as a binary file"
        )
    raise SourceError(f"{path}: expected MCAP, which begins with {MAGIC!r}, got {head!r}")


def _u32(body: bytes | memoryview, offset: int) -> int:
    return int(struct.unpack_from("<I", body, offset)[0])


def _text(body: bytes | memoryview, offset: int) -> tuple[str, int]:
    """Returns a string, and the offset after it."""
    end = offset + 4 + _u32(body, offset)
    if end > len(body):
        raise ValueError(f"a text that ends at {end} of {len(body)}")
    return bytes(body[offset + 4 : end]).decode(errors="backslashreplace"), end


def _texts(body: bytes | memoryview, offset: int) -> dict[str, str]:
    """Returns a map of texts; if the map is damaged, the part before the damage."""
    texts: dict[str, str] = {}
    try:
        end = offset + 4 + _u32(body, offset)
        offset += 4
        while offset < end:
            key, offset = _text(body, offset)
            texts[key], offset = _text(body, offset)
    except (ValueError, struct.error):
        pass
    return texts
