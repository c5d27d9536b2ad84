"""Reads ROS 2 bags: a folder with metadata.yaml and SQLite or MCAP files, which follow each other, or a single .db3."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from ..budget import at_once
from ..files import check_file, look_through, natural
from ..formats.mcap import PACKED, MessageOptions, is_mcap, unpacked_name
from ..formats.rosbag2 import is_database, is_metadata
from ..recording import Notes, Recording, SourceError, naming
from ..yaml import read_yaml
from .bags import Bag, Channel, Faults, LogClock, Part
from .mcap import McapBag
from .metadata import BagMetadata
from .packed import UnpackedBag, without_packed_copies
from .passes import finish as finish
from .passes import read_bags

# The bytes of messages that make a part.
_AT_ONCE = 4 << 20
# The bytes of rows that are fetched together; a row counts for _ROW_BYTES more than its message.
_FETCHED = 1 << 17
_ROW_BYTES = 64
# How many messages' log times are compared together.
_TIMES_AT_ONCE = 1 << 16
# The most bytes of a message that stays bytes; larger messages become views.
_SMALL = 4096


def read(source: Path, options: MessageOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every bag: each folder with metadata.yaml, and each bag file outside of such folders."""
    root, listing = look_through(source, notes)
    folders = {file.parent: file for file in listing.files if is_metadata(file)}
    if source.name == "metadata.yaml":
        folders[root] = source
    bags: dict[Path, Bag] = {folder: RosBag(folder, metadata) for folder, metadata in folders.items()}
    in_folders = [file for file in listing.files if file.parent in folders]
    bag_files = [file for file in listing.files if is_mcap(file) or is_database(file) or file == source]
    listing.name_others([*bag_files, *in_folders], "not in a bag", root, notes)
    for file in without_packed_copies([file for file in bag_files if file.parent not in folders], root, notes):
        bags[file] = UnpackedBag(file, _make_bag)
    named = [
        (path.relative_to(root).as_posix() if path != root else os.path.basename(os.path.abspath(root)), bag)
        for path, bag in bags.items()
    ]
    yield from read_bags(source, named, options, notes)


class RosBag(UnpackedBag):
    """A folder with metadata.yaml."""

    def __init__(self, folder: Path, metadata: Path) -> None:
        super().__init__(folder, _make_bag)
        self._metadata = metadata

    def open(self, faults: Faults) -> None:
        present = [file for file in sorted(self.path.iterdir(), key=natural) if is_database(file) or is_mcap(file)]
        files: list[Path] = []
        with faults.reading("metadata.yaml", self._metadata):
            metadata = _read_metadata(self._metadata)
            self.metadata = BagMetadata.of(metadata)
            for name in metadata["relative_file_paths"]:
                with faults.reading(str(name), self._metadata):
                    files.append(self._find_file(str(name)))
            if not files:
                raise SourceError(
                    f"{self._metadata}: none of the files that it names exists: {metadata['relative_file_paths']}"
                )
            for file in present:
                if file not in files:
                    self.left_out[file.name] = "metadata.yaml does not name it"
        self._open(files or present, faults)

    def _find_file(self, name: str) -> Path:
        """Returns the file that metadata.yaml names. Old versions of rosbag2 wrote the folder before the name. After a crash, the last file
        may be compressed or not, whatever its name in metadata.yaml says."""
        path = Path(name)
        if path.is_absolute() or ".." in path.parts:
            raise SourceError(f"{self._metadata}: expected files beside it, got {name!r}")
        for file in (self.path / path, self.path / path.name):
            for candidate in (
                file,
                file.with_name(unpacked_name(file)),
                *(Path(f"{file}{suffix}") for suffix in PACKED),
            ):
                if os.path.lexists(candidate):
                    check_file(candidate)
                    return candidate
        raise SourceError(f"{self._metadata}: {name} does not exist")

    def parts(self, faults: Faults) -> Iterator[Part]:
        counts: Counter[str] = Counter()
        for part in super().parts(faults):
            for number, messages in part.messages.items():
                counts[self.channels[number].topic] += len(messages.payloads)
            yield part
        faults.compare(self.path, counts, self.metadata.counts, str, "metadata.yaml counts")


def _make_bag(files: list[Path]) -> Bag:
    return McapBag(files) if all(is_mcap(file) for file in files) else _Database(files)


def _read_metadata(path: Path) -> dict[str, Any]:
    metadata = read_yaml(path).get("rosbag2_bagfile_information")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("relative_file_paths"), list):
        raise SourceError(f"{path}: expected rosbag2_bagfile_information with relative_file_paths")
    return metadata


class _Database(Bag):
    """A bag in SQLite files, which follow each other."""

    def __init__(self, paths: list[Path]) -> None:
        super().__init__(paths[0])
        self._paths = paths
        self._files: list[tuple[Path, dict[int, int]]] = []  # each file, and the channel of each topic's id in it
        # For each file, the ids of messages at which the log clock was set back.
        self._set_back_ids: list[list[int]] | None = None

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
                    self._files.append((path, self._read_topics(path, database, faults)))

    def _read_topics(self, path: Path, database: apsw.Connection, faults: Faults) -> dict[int, int]:
        """Returns the channel of each topic's id. Refuses tables whose rows are not stored in the file."""
        definitions: dict[str, tuple[str, bytes]] = {}
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if missing := {"topics", "messages"} - tables:  # a view instead of a table may have endless rows
            raise SourceError(f"{path}: expected tables of topics and messages, found no {min(missing)}")
        for table in ("topics", "messages"):  # the value of a generated column may have any size
            generated = [row[1] for row in database.execute(f"PRAGMA table_xinfo({table})") if row[6] not in (0, 1)]
            if generated:
                raise SourceError(f"{path}: {table}: expected columns that are stored, {generated[0]!r} is generated")
        self._take_metadata(path, database, tables)
        if "message_definitions" in tables:
            rows = database.execute("SELECT topic_type, encoding, encoded_message_definition FROM message_definitions")
            definitions = {name: (encoding, str(text).encode()) for name, encoding, text in rows}
        topics = {}
        for number, name, schema, serialization in database.execute(
            "SELECT id, name, type, serialization_format FROM topics ORDER BY id"
        ):
            if not isinstance(name, str) or not isinstance(schema, str):
                error = SourceError(
                    f"{path}: topic {number}: expected texts as name and type, got {type(name).__name__}, {type(schema).__name__}"
                )
                faults.add(f"{path.name}: topic {number}", error)
                continue
            encoding, text = definitions.get(schema, ("", b""))
            topics[number] = self.number(Channel(name, schema, str(serialization), str(encoding) if text else "", text))
        return topics

    def _take_metadata(self, path: Path, database: apsw.Connection, tables: set[str]) -> None:
        """Reads the bag's metadata, which rosbag2 stores since Humble: at first only the distribution, later all of metadata.yaml."""
        try:
            if "metadata" in tables:
                rows = database.execute("SELECT metadata FROM metadata ORDER BY id DESC LIMIT 1")
                for (text,) in rows:
                    self.metadata = self.metadata.or_else(BagMetadata.of_text(str(text), path))
            if "schema" in tables:
                for (distro,) in database.execute("SELECT ros_distro FROM schema LIMIT 1"):
                    self.metadata = self.metadata.or_else(BagMetadata(distro=str(distro).lower()))
        except (apsw.Error, SourceError) as error:
            self.left_out[f"{path.name}: its metadata of the bag"] = str(error)

    def parts(self, faults: Faults) -> Iterator[Part]:
        if self._set_back_ids is None:
            self._set_back_ids = self._find_set_back_ids()
        run = 0
        for (path, topics), set_back_ids in zip(self._files, self._set_back_ids, strict=True):
            for number, (first, end) in enumerate(pairwise([None, *set_back_ids, None])):
                run += number > 0
                yield from self._read_run(path, topics, _make_condition(first, end), run, faults)

    def _find_set_back_ids(self) -> list[list[int]]:
        """Returns for each file the ids of messages at which the log clock was set back. Ids rise in the order of writing."""
        clock = LogClock(self.out_of_order)
        by_file: list[list[int]] = []
        for path, topics in self._files:
            set_back_ids: list[int] = []
            # Damage is reported when the messages are read.
            with suppress(apsw.Error), closing(_connect(path)) as database:
                rows = database.execute(
                    "SELECT id, topic_id, timestamp FROM messages WHERE typeof(id) = 'integer' AND typeof(timestamp) = 'integer' "
                    "AND topic_id IN (SELECT id FROM topics) ORDER BY id"
                )
                known = (row for row in rows if row[1] in topics)  # a topic with a fault is not
                while batch := list(islice(known, _TIMES_AT_ONCE)):
                    ids, numbers, times_ns = zip(*batch, strict=True)
                    set_back_ids += [ids[row] for row in clock.add(times_ns, [topics[number] for number in numbers])]
            by_file.append(set_back_ids)
        return by_file

    def _read_run(self, path: Path, topics: dict[int, int], condition: str, run: int, faults: Faults) -> Iterator[Part]:
        """Yields the messages of one run, which the SQL condition selects."""
        part = Part(run)
        with faults.reading(f"{path.name}: messages", path), closing(_connect(path)) as database:
            identities = _list_ids(database, condition)
            for first, rows in _fetch(database, condition):
                if _add_same_topic(part, rows, topics):
                    rows = []
                for row, (topic, time_ns, data) in enumerate(rows, first):
                    if not isinstance(time_ns, int) or not isinstance(data, bytes) or topic not in topics:
                        identity = _find_id(identities, row)
                        error = SourceError(
                            f"{path}: message {identity}: of topic {topic!r:.40} at {time_ns!r:.40}: "
                            f"{'bytes' if isinstance(data, bytes) else data}"
                        )
                        faults.add(f"{path.name}: message {identity}", error)
                        continue
                    part.add(topics[topic], time_ns, time_ns, memoryview(data) if len(data) > _SMALL else data)
                    if part.size > _AT_ONCE:
                        yield part
                        part = Part(run)
                if part.size > _AT_ONCE:
                    yield part
                    part = Part(run)
        yield part


# A row of the table of messages: topic id, log time, message. In a damaged file they may have any types.
_Row = tuple[Any, Any, Any]
# Selects the word 'text' in place of a text, since a text that is no UTF-8 would end the reading.
_SELECT = """
SELECT CASE typeof(topic_id) WHEN 'text' THEN 'text' ELSE topic_id END,
       CASE typeof(timestamp) WHEN 'text' THEN 'text' ELSE timestamp END,
       CASE typeof(data) WHEN 'blob' THEN data ELSE typeof(data) END
FROM messages {condition} ORDER BY messages.timestamp, messages.id
"""


def _make_condition(first: int | None, end: int | None) -> str:
    """Returns the SQL condition for messages with ids in [first, end)."""
    bounds = [f"messages.id >= {first}"] * (first is not None) + [f"messages.id < {end}"] * (end is not None)
    return "WHERE " + " AND ".join(bounds) if bounds else ""


def _fetch(database: apsw.Connection, condition: str) -> Iterator[tuple[int, list[_Row]]]:
    """Yields the selected messages in order, several at a time, with the number of messages before them. If an error ends the reading,
    first yields the messages before it."""
    rows: list[_Row] = []
    before = size = 0
    try:
        for row in database.execute(_SELECT.format(condition=condition)):
            rows.append(row)
            size += _ROW_BYTES + len(row[2])
            if size > _FETCHED:
                yield before, rows
                before, rows, size = before + len(rows), [], 0
    except Exception:
        yield before, rows
        raise
    yield before, rows


def _list_ids(database: apsw.Connection, condition: str) -> Iterator[tuple[int, Any]]:
    """Yields the number of each selected message in order, and its id."""
    for row, (identity,) in enumerate(database.execute(f"SELECT id FROM messages {condition} ORDER BY timestamp, id")):
        yield row, identity


def _find_id(identities: Iterator[tuple[int, Any]], wanted: int) -> Any:
    """Returns the id of the message with the number `wanted`. The iterator goes on from call to call, so numbers must rise."""
    return next((identity for row, identity in identities if row == wanted), None)


def _add_same_topic(part: Part, rows: list[_Row], topics: dict[int, int]) -> bool:
    """Adds messages to a part at once if they are small and of one topic. Else adds none and returns False."""
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
    """Opens a database read-only, so that nothing is written beside it."""
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    database = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    # No stored value is longer than the file.
    database.limit(apsw.SQLITE_LIMIT_LENGTH, min(at_once(), path.stat().st_size))
    return database
