"""ROS 2 bags: a folder with metadata.yaml and its SQLite or MCAP files, one behind the other, or a bare .db3."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw
import zstandard

from ..files import check_file, look_through
from ..formats.mcap import MessageOptions, is_mcap
from ..formats.rosbag2 import is_database, is_metadata
from ..recording import Notes, Recording, SourceError, naming
from ..yaml import read_yaml
from .bags import Bag, Channel, Faults, Part
from .mcap import McapBag
from .packed import SUFFIX, Unpacked
from .passes import finish as finish
from .passes import read_bags

# Rows of a database that are read together.
_AT_ONCE = 4 << 20
# Of these, what is looked at together; a message counts for so many bytes more than it has.
_FETCHED = 1 << 17
_ROW_BYTES = 64
# Messages of no more than this stay bytes.
_SMALL = 4096
# A larger message is taken for damage.
_LARGEST = 256 << 20


def read(source: Path, options: MessageOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every bag: each folder with metadata.yaml, and each file that none of these names."""
    root, listing = look_through(source, notes)
    folders = {file.parent: file for file in listing.files if is_metadata(file)}
    if source.name == "metadata.yaml":
        folders[root] = source
    bags: dict[Path, Bag] = {folder: RosBag(folder, metadata) for folder, metadata in folders.items()}
    for file in listing.files:
        if file.parent in folders:
            continue
        if is_mcap(file):
            bags[file] = McapBag([file])
        elif is_database(file) or file == source:
            bags[file] = _Database([file])
    in_folders = [file for file in listing.files if file.parent in folders]
    listing.name_others([*bags, *in_folders], "of no bag", root, notes)
    named = [
        (path.relative_to(root).as_posix() if path != root else os.path.basename(os.path.abspath(root)), bag)
        for path, bag in sorted(bags.items())
    ]
    yield from read_bags(source, named, options, notes)


class RosBag(Bag):
    """A folder with metadata.yaml."""

    def __init__(self, folder: Path, metadata: Path) -> None:
        super().__init__(folder)
        self._metadata = metadata
        self._inner: Bag | None = None
        self._expected: dict[str, int] = {}
        self._unpacked = Unpacked()

    def close(self) -> None:
        self._unpacked.close()

    def open(self, faults: Faults) -> None:
        said = _read_metadata(self._metadata)
        mode = said.get("compression_mode") or ""
        files: list[Path] = []
        for name in said["relative_file_paths"]:
            with faults.reading(str(name), self._metadata):
                files.append(self._file(str(name)))
        if not files:
            raise SourceError(
                f"{self._metadata}: none of the files that it names is there: {said['relative_file_paths']}"
            )
        for file in sorted(self.path.iterdir()):
            if file not in files and (is_database(file) or is_mcap(file)):
                self.left_out[file.name] = "metadata.yaml does not name it"
        for topic in said.get("topics_with_message_count") or []:
            self._expected[str(topic["topic_metadata"]["name"])] = int(topic["message_count"])
        unpacked: list[Path] = []
        for file in files:
            with faults.reading(file.name, file):
                unpacked.append(self._unpacked.add(file) if file.suffix == SUFFIX else file)
        if not unpacked:
            raise SourceError(f"{self._metadata}: none of the files that it names can be unpacked")
        if all(is_mcap(file) for file in unpacked):
            inner: Bag = McapBag(unpacked)
        else:
            inner = _Database(unpacked, compressed=mode.upper() == "MESSAGE")
        with self._unpacked.naming():
            inner.open(faults.through(self._unpacked.rename))
        self._inner, self.channels, self.numbers = inner, inner.channels, inner.numbers
        inner.left_out.update(self.left_out)
        self.left_out = inner.left_out

    def _file(self, name: str) -> Path:
        """Old versions named the folder too."""
        place = Path(name)
        if place.is_absolute() or ".." in place.parts:
            raise SourceError(f"{self._metadata}: expected files beside it, got {name!r}")
        for file in (self.path / place, self.path / place.name):
            if os.path.lexists(file):
                check_file(file)
                return file
        raise SourceError(f"{self._metadata}: {name} is not there")

    def parts(self, faults: Faults) -> Iterator[Part]:
        assert self._inner is not None
        counts: Counter[str] = Counter()
        with self._unpacked.naming():
            for part in self._inner.parts(faults.through(self._unpacked.rename)):
                for number, messages in part.messages.items():
                    counts[self.channels[number].topic] += len(messages.payloads)
                yield part
        for topic, count in self._expected.items():
            if counts[topic] != count:
                faults.add(
                    f"{topic}: messages",
                    SourceError(f"{self.path}: {topic}: {counts[topic]} messages, but metadata.yaml counts {count}"),
                )


def _read_metadata(path: Path) -> dict[str, Any]:
    said = read_yaml(path).get("rosbag2_bagfile_information")
    if not isinstance(said, dict) or not isinstance(said.get("relative_file_paths"), list):
        raise SourceError(f"{path}: expected rosbag2_bagfile_information with relative_file_paths")
    return said


class _Database(Bag):
    """SQLite files, one behind the other."""

    def __init__(self, paths: list[Path], compressed: bool = False) -> None:
        super().__init__(paths[0])
        self._paths = paths
        self._compressed = compressed
        self._open: list[tuple[Path, dict[int, int]]] = []

    def open(self, faults: Faults) -> None:
        for path in self._paths:
            with faults.reading(path.name, path) if len(self._paths) > 1 else naming(path):
                check_file(path)
                with path.open("rb") as file:
                    magic = file.read(16)
                if magic != b"SQLite format 3\0":
                    raise SourceError(
                        f"{path}: expected an SQLite database, which begins with 'SQLite format 3', got {magic!r}"
                    )
                log = path.with_name(f"{path.name}-wal")
                if log.is_file() and log.stat().st_size:
                    faults.add(
                        f"{log.name}",
                        SourceError(
                            f"{log}: {log.stat().st_size} bytes of rows that are not in the database yet; "
                            f"`sqlite3 {path.name} 'PRAGMA wal_checkpoint(TRUNCATE)'` puts them there"
                        ),
                    )
                with closing(_connect(path)) as database:
                    self._open.append((path, self._topics(path, database)))

    def _topics(self, path: Path, database: apsw.Connection) -> dict[int, int]:
        """The channel of each topic's id."""
        definitions: dict[str, tuple[str, bytes]] = {}
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if missing := {"topics", "messages"} - tables:  # of a view rows may never end
            raise SourceError(f"{path}: expected tables of topics and messages, there is none of {min(missing)}")
        if "message_definitions" in tables:
            rows = database.execute("SELECT topic_type, encoding, encoded_message_definition FROM message_definitions")
            definitions = {name: (encoding, str(text).encode()) for name, encoding, text in rows}
        topics = {}
        for number, name, kind, serialization in database.execute(
            "SELECT id, name, type, serialization_format FROM topics ORDER BY id"
        ):
            encoding, text = definitions.get(kind, ("", b""))
            topics[number] = self.number(
                Channel(str(name), str(kind), str(serialization), str(encoding) if text else "", text)
            )
        return topics

    def parts(self, faults: Faults) -> Iterator[Part]:
        decompressor = zstandard.ZstdDecompressor() if self._compressed else None
        for path, topics in self._open:
            part = Part()
            with faults.reading(f"{path.name}: messages", path), closing(_connect(path)) as database:
                identities = _identities(database)
                for first, rows in _fetch(database):
                    if decompressor is None and _add_alike(part, rows, topics):
                        rows = []
                    for row, (topic, time_ns, data) in enumerate(rows, first):
                        if not isinstance(time_ns, int) or not isinstance(data, bytes) or topic not in topics:
                            identity = _identity(identities, row)
                            error = SourceError(
                                f"{path}: message {identity}: of topic {topic!r:.40} at {time_ns!r:.40}: {type(data).__name__}"
                            )
                            faults.add(f"{path.name}: message {identity}", error)
                            continue
                        if decompressor is not None:
                            if not 0 <= zstandard.frame_content_size(data) <= _LARGEST:
                                identity = _identity(identities, row)
                                raise SourceError(f"{path}: message {identity}: expected zstd that says its size")
                            data = decompressor.decompress(data)
                        part.add(topics[topic], time_ns, time_ns, memoryview(data) if len(data) > _SMALL else data)
                        if part.size > _AT_ONCE:
                            yield part
                            part = Part()
                    if part.size > _AT_ONCE:
                        yield part
                        part = Part()
            yield part


# Of a message: its topic's number, when it was received, and itself; each of any type.
_Row = tuple[Any, Any, Any]


def _fetch(database: apsw.Connection) -> Iterator[tuple[int, list[_Row]]]:
    """All messages in order, some at a time, and how many come before these; those before damage, too."""
    rows: list[_Row] = []
    done = size = 0
    try:
        for row in database.execute("SELECT topic_id, timestamp, data FROM messages ORDER BY timestamp, id"):
            rows.append(row)
            try:
                size += _ROW_BYTES + len(row[2])
            except TypeError:  # a number, or nothing
                size += _ROW_BYTES
            if size > _FETCHED:
                yield done, rows
                done, rows, size = done + len(rows), [], 0
    except Exception:
        yield done, rows
        raise
    yield done, rows


def _identities(database: apsw.Connection) -> Iterator[tuple[int, Any]]:
    """The place of each message in order and the number that it has: gone through once, however many are asked for."""
    for row, (identity,) in enumerate(database.execute("SELECT id FROM messages ORDER BY timestamp, id")):
        yield row, identity


def _identity(identities: Iterator[tuple[int, Any]], wanted: int) -> Any:
    """Of the message in that place, which is behind those that were asked for before."""
    return next((identity for row, identity in identities if row == wanted), None)


def _add_alike(part: Part, rows: list[_Row], topics: dict[int, int]) -> bool:
    """Adds small messages of one topic together; False, and nothing is added, where they are others."""
    if not rows:
        return True
    numbers, times_ns, payloads = zip(*rows, strict=True)
    if set(map(type, times_ns)) != {int} or set(map(type, payloads)) != {bytes} or max(map(len, payloads)) > _SMALL:
        return False
    if numbers[0] not in topics or numbers.count(numbers[0]) < len(numbers):
        return False
    part.add_all(topics[numbers[0]], times_ns, payloads)
    return True


def _connect(path: Path) -> apsw.Connection:
    """Read-only, and so that nothing is written beside it."""
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    database = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    database.limit(apsw.SQLITE_LIMIT_LENGTH, _LARGEST)
    return database
