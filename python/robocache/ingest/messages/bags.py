"""Has what the readers of bags share: channels, parts of messages, the order of messages, and faults, the errors of a pass."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..recording import SourceError, passing_over
from .exported import Exported
from .metadata import BagMetadata

if TYPE_CHECKING:
    from .batches import Batch


@dataclass(frozen=True)
class Channel:
    """Messages of one type on one topic.

    topic, schema: the names of the topic and of the type.
    encoding: how messages are serialised: "cdr", "ros1", "json", "protobuf".
    definition: the type's definition; empty if there is none.
    definition_encoding: its language: "ros2msg", "ros2idl", "ros1msg", "jsonschema", "protobuf"; "" if there is none.
    exported: the description of the cache's stream that was exported as this channel; None for other channels.
    """

    topic: str
    schema: str
    encoding: str
    definition_encoding: str
    definition: bytes
    exported: Exported | None = field(default=None, compare=False)


# A message's bytes. Large messages, and messages inside a larger buffer, are views. Small messages that are copied stay bytes, because
# Python's garbage collector visits all views again and again.
Payload = bytes | memoryview


class SameSize(Sequence[Payload]):
    """Payloads of one size in a single array, which takes half the time of an object for each payload.

    size: the bytes of each payload.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._bytes = np.empty(0, np.uint8)
        self._used = 0

    @property
    def rows(self) -> np.ndarray:
        """All payloads, uint8 ``[n, size]``."""
        return self._bytes[: self._used].reshape(-1, self.size)

    def add(self, payloads: Iterable[bytes]) -> None:
        """Appends payloads."""
        joined = np.frombuffer(b"".join(payloads), np.uint8)
        start, self._used = self._used, self._used + len(joined)
        if self._used > len(self._bytes):
            grown = np.empty(2 * self._used, np.uint8)
            grown[:start] = self._bytes[:start]
            self._bytes = grown
        self._bytes[start : self._used] = joined

    def __len__(self) -> int:
        return self._used // self.size

    def __getitem__(self, index: Any) -> Any:
        selected = self.rows[index]
        return selected.tobytes() if selected.ndim == 1 else [row.tobytes() for row in selected]


_Key = TypeVar("_Key")
# The most characters of a topic's or a type's name.
_MOST_NAME = 1 << 12

# For each channel, how many messages have an earlier log time than a message before them in the file, and by how many ns at most.
OutOfOrder = dict[int, tuple[int, int]]


@dataclass
class Messages:
    """The messages of one channel, in order: their log and publish times in ns, and their payloads.

    decoded: the decoder's result, if the first pass kept it for the second.
    """

    log_ns: list[int] = field(default_factory=list)
    publish_ns: list[int] = field(default_factory=list)
    payloads: list[Payload] | SameSize = field(default_factory=list)
    decoded: tuple[Batch, dict[int, str]] | None = None

    def as_list(self) -> list[Payload]:
        """Makes the payloads a list, to which payloads of any size can be added, and returns it."""
        if isinstance(self.payloads, SameSize):
            self.payloads = list(self.payloads)
        return self.payloads


class Part:
    """Messages that were read together, by the number of their channel.

    run: how often the log clock was set back before these messages.
    size: the bytes of their payloads.
    """

    def __init__(self, run: int = 0) -> None:
        self.messages: dict[int, Messages] = {}
        self.run = run
        self.size = 0

    def add(self, channel: int, log_ns: int, publish_ns: int, payload: Payload) -> None:
        messages = self.messages.get(channel)
        if messages is None:
            messages = self.messages[channel] = Messages()
        messages.log_ns.append(log_ns)
        messages.publish_ns.append(publish_ns)
        messages.as_list().append(payload)
        self.size += len(payload)

    def add_all(self, channel: int, logged_ns: Sequence[int], payloads: Sequence[bytes]) -> None:
        """Adds messages of one channel. Their publish times are their log times."""
        messages = self.messages.setdefault(channel, Messages())
        messages.log_ns += logged_ns
        messages.publish_ns += logged_ns
        size = len(payloads[0])
        have_same_size = size > 0 and set(map(len, payloads)) == {size}
        if have_same_size and not messages.payloads:
            messages.payloads = SameSize(size)
        if have_same_size and isinstance(messages.payloads, SameSize) and messages.payloads.size == size:
            messages.payloads.add(payloads)
        else:
            messages.as_list().extend(payloads)
        self.size += sum(map(len, payloads))

    def extend(self, part: Part) -> None:
        for channel, added in part.messages.items():
            messages = self.messages.setdefault(channel, Messages())
            messages.log_ns += added.log_ns
            messages.publish_ns += added.publish_ns
            messages.as_list().extend(added.payloads)
        self.size += part.size


class Faults:
    """Takes the errors of a pass over a bag. The first pass reports them, the second one, whose `skip` is None, does not."""

    def __init__(self, what: str, skip: Callable[[str, SourceError], None] | None) -> None:
        self._what = what
        self._skip = skip

    @property
    def is_later_pass(self) -> bool:
        """Whether an earlier pass reported the faults."""
        return self._skip is None

    def add(self, what: str, error: SourceError) -> None:
        """Reports an error, unless an earlier pass did. Raises it if the user did not ask to skip errors."""
        if self._skip is not None:
            self._skip(f"{self._what}: {what}", error)

    def reading(self, what: str, where: object) -> AbstractContextManager[None]:
        """Returns a context, as :meth:`Notes.reading` does, which reports errors here."""
        return passing_over(what, where, self.add)

    def compare(
        self,
        path: Path,
        counts: Mapping[_Key, int],
        expected: Mapping[_Key, int],
        topic_of: Callable[[_Key], str],
        by: str,
    ) -> None:
        """Reports the topics with another number of messages than `expected`.

        by: the source of the expected numbers, such as "metadata.yaml counts".
        """
        for key, expected_count in expected.items():
            if (count := counts[key]) != expected_count:
                topic = topic_of(key)
                error = SourceError(f"{path}: {topic}: {count} messages, but {by} {expected_count}")
                self.add(f"{topic}: messages", error)

    def through(self, change: Callable[[SourceError], SourceError]) -> Faults:
        """Returns faults that report each error as `change` returns it."""
        skip = self._skip
        return Faults(self._what, None if skip is None else lambda what, error: skip(what, change(error)))


class Bag(ABC):
    """A recording that can be read.

    channels, numbers: the channels found so far, and the number of each channel, which is its index.
    left_out: the content that is not read, with the reasons.
    columns: the episode's columns, if the bag was exported from a cache.
    texts: the tables of texts by their names, if the bag was exported from a cache.
    metadata: rosbag2's metadata of the bag.
    out_of_order: for each channel, the messages slightly out of order; only one pass counts them.
    spans: for each channel with several declared publishers, the first and last log time of each publisher.
    """

    def __init__(self, path: Path) -> None:
        self.columns: dict[str, Any] = {}
        self.texts: dict[str, dict[str, str | None]] = {}
        self.metadata = BagMetadata()
        self.path = path
        self.channels: list[Channel] = []
        self.numbers: dict[Channel, int] = {}
        self.left_out: dict[str, str] = {}
        self.out_of_order: OutOfOrder = {}
        self.spans: dict[int, dict[str, tuple[int, int]]] = {}

    @abstractmethod
    def open(self, faults: Faults) -> None:
        """Opens the bag and reads its metadata."""

    @abstractmethod
    def parts(self, faults: Faults) -> Iterator[Part]:
        """Yields the messages in order. It is called once for each of the two passes."""

    def close(self) -> None:  # noqa: B027  most bags have nothing to close
        """Closes the bag after it was read."""

    def note_publishers(
        self, logs: Sequence[int], numbers: Sequence[int], channels: Mapping[int, int], publishers: Mapping[int, str]
    ) -> None:
        """Records when publishers published, for channels with several publishers.

        logs, numbers: the log time and the file's channel number of each message.
        channels, publishers: the bag's channel and the publisher, by the file's channel number.
        """
        by_channel: dict[int, set[str]] = {}
        for number, channel in channels.items():
            by_channel.setdefault(channel, set()).add(publishers[number])
        shared = {number for number, channel in channels.items() if len(by_channel[channel]) > 1}
        for log_ns, number in zip(logs, numbers, strict=True) if shared.intersection(numbers) else ():
            if number in shared:
                spans = self.spans.setdefault(channels[number], {})
                first, last = spans.get(publishers[number], (log_ns, log_ns))
                spans[publishers[number]] = min(first, log_ns), max(last, log_ns)

    def publishers_at_once(self, channel: int) -> list[str]:
        """Returns a channel's publishers if some of them published in the same time span, and [] if one followed the other, as after a
        restart."""
        spans = sorted(self.spans.get(channel, {}).items(), key=lambda item: item[1])
        overlap = any(next_first < last for (_, (_, last)), (_, (next_first, _)) in pairwise(spans))
        return [publisher for publisher, _ in spans] if overlap else []

    def number(self, channel: Channel) -> int:
        """Returns the number of a channel; a new channel gets a new number. Overlong names are shortened and end with a hash."""
        if max(len(channel.topic), len(channel.schema)) > _MOST_NAME:
            channel = replace(channel, topic=_shorten(channel.topic), schema=_shorten(channel.schema))
            self.left_out[f"name of {channel.topic}"] = f"more than {_MOST_NAME} characters: it is shortened"
        if channel not in self.numbers:
            self.numbers[channel] = len(self.channels)
            self.channels.append(channel)
        return self.numbers[channel]


def _shorten(name: str) -> str:
    if len(name) <= _MOST_NAME:
        return name
    return f"{name[:64]}...{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:16]}"


# ---- the order of messages ----

# The log times, channels, publish times and payloads of messages, in the order of the file.
Table = tuple[list[int], list[int], list[int], list[Payload]]
# Recorders write the messages of one channel in the order of their log times, give or take some milliseconds. If a message is older
# than an earlier one by more than this, the clock was set back: ntpd steps by 128 ms or more, and a simulation may restart.
STEP_NS = 100_000_000
# A log time after all others.
_NEVER = 1 << 64
# Overlapping chunks are held in up to this many bytes of memory. Beyond that, messages come out of order, and the driver reports
# stamps that step back.
_HELD_BYTES = 256 << 20
# The bytes that a held message takes beyond its payload.
_HELD_MESSAGE = 300


class LogClock:
    """Finds the messages at which the log clock was set back. Messages are added in the order of the file.

    out_of_order: the attribute of :class:`Bag`, which is updated.
    """

    def __init__(self, out_of_order: OutOfOrder) -> None:
        self._out_of_order = out_of_order
        self._latest: dict[int, int] = {}  # the latest log time of each channel, since the clock was set back
        self._latest_of_all: int | None = None

    def add(self, logs: Sequence[int], channels: Sequence[int]) -> list[int]:
        """Returns the rows at which the clock was set back, among these messages."""
        latest_of_all = logs[0] if self._latest_of_all is None else self._latest_of_all
        if logs[0] >= latest_of_all and not any(map(int.__gt__, logs, logs[1:])):
            self._latest.update(zip(channels, logs, strict=True))
            self._latest_of_all = logs[-1]
            return []
        set_back_rows: list[int] = []
        start = 0
        while (row := self._find_set_back(logs, channels, start)) is not None:
            set_back_rows.append(row)
            self._latest, self._latest_of_all, start = {}, None, row
        return set_back_rows

    def _find_set_back(self, logs: Sequence[int], channels: Sequence[int], start: int) -> int | None:
        """Returns the first row after the clock was set back; None if it was not. A message shows this if one of its
        channel came before it; messages of other channels just before it may have been logged after the clock was set back, too."""
        latest_of_all = logs[start] if self._latest_of_all is None else self._latest_of_all
        far_back: int | None = None  # the first of the last rows, if all of these are far older than `latest_of_all`
        for row in range(start, len(logs)):
            log, channel = logs[row], channels[row]
            if log >= latest_of_all - STEP_NS:
                far_back = None
            elif far_back is None:
                far_back = row
            latest = self._latest.get(channel, log)
            if log < latest - STEP_NS:
                return far_back
            if log < latest:
                count, most = self._out_of_order.get(channel, (0, 0))
                self._out_of_order[channel] = count + 1, max(most, latest - log)
            self._latest[channel] = max(log, latest)
            latest_of_all = max(log, latest_of_all)
        self._latest_of_all = latest_of_all
        return None


@dataclass
class Chunk:
    """Messages that are stored together in a file.

    first, last: the earliest and the latest log time, as the file declares them.
    read: reads the messages; returns None if they cannot be read.
    set_back_rows: the rows at which the log clock was set back; None if they are not known yet.
    """

    first: int
    last: int
    read: Callable[[], Table | None]
    set_back_rows: list[int] | None = None


def find_set_back_rows(chunks: Sequence[Chunk], out_of_order: OutOfOrder) -> list[list[int]] | None:
    """Returns for each chunk the rows at which the log clock was set back. Returns None, without reading the chunks, if every chunk
    begins after the chunks before it: the clock can then only have been set back inside a chunk."""
    latest = chunks[0].first if chunks else 0
    for chunk in chunks:
        if chunk.first < latest - STEP_NS:
            break
        latest = max(latest, chunk.last)
    else:
        return None
    clock = LogClock(out_of_order)
    tables = (chunk.read() for chunk in chunks)
    return [[] if table is None else clock.add(table[0], table[1]) for table in tables]


def merge(chunks: Sequence[Chunk], out_of_order: OutOfOrder, run: int = 0) -> Iterator[Part]:
    """Yields the messages of chunks in the order of log time; messages of one time stay in the order of the chunks. Where the log clock
    was set back, a new run begins, which follows all messages before. The first run has the number `run`."""
    held = _Held()
    read: dict[int, Table | None] = {}  # chunks in which the clock was set back: the next run needs them too
    for pieces in _split_runs(chunks):
        for index, (number, start, stop) in enumerate(pieces):
            chunk = chunks[number]
            table = read.pop(number) if number in read else chunk.read()
            if stop is not None:
                read[number] = table
            next_first = chunks[pieces[index + 1][0]].first if index + 1 < len(pieces) else _NEVER
            if table is not None:
                set_back_rows = LogClock(out_of_order).add(table[0], table[1]) if chunk.set_back_rows is None else []
                for times_set_back, begin in enumerate([start, *set_back_rows]):
                    if times_set_back:
                        yield from held.parts(_NEVER, run)
                        run += 1
                    end = [*set_back_rows, stop][times_set_back]
                    ordered = _sort_by_time(table, begin, end)
                    if not held and ordered[0][-1] < next_first and end is None:
                        yield _make_part(run, ordered)
                    else:
                        held.add(number, ordered)
            yield from held.parts(next_first, run)
        run += 1


# A chunk's number, and the start and stop of rows in it.
_Piece = tuple[int, int, int | None]


def _split_runs(chunks: Sequence[Chunk]) -> list[list[_Piece]]:
    """Returns the pieces of chunks in each run, sorted by their chunks' log times."""
    runs: list[list[_Piece]] = [[]]
    for number, chunk in enumerate(chunks):
        for times_set_back, (start, stop) in enumerate(pairwise([0, *(chunk.set_back_rows or ()), None])):
            if times_set_back:
                runs.append([])
            if start != stop:
                runs[-1].append((number, start, stop))
    for pieces in runs:
        pieces.sort(key=lambda piece: chunks[piece[0]].first)
    return runs


def _sort_by_time(table: Table, begin: int, end: int | None) -> Table:
    """Returns rows [begin, end) sorted by log time; messages of one time keep their order."""
    logs, channels, publishes, payloads = table
    if begin or end is not None:
        logs, channels, publishes = logs[begin:end], channels[begin:end], publishes[begin:end]
        payloads = payloads[begin:end]
    if any(map(int.__gt__, logs, logs[1:])):
        order = sorted(range(len(logs)), key=logs.__getitem__)
        logs, channels, publishes = ([column[row] for row in order] for column in (logs, channels, publishes))
        payloads = [payloads[row] for row in order]
    return logs, channels, publishes, payloads


class _Held:
    """Messages that are held back until those of other chunks are read."""

    def __init__(self) -> None:
        # A heap of (log time, chunk, row in the chunk, channel, publish time, payload).
        self._messages: list[tuple[int, int, int, int, int, bytes]] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, chunk: int, table: Table) -> None:
        for row, (log, channel, publish, payload) in enumerate(zip(*table, strict=True)):
            heappush(self._messages, (log, chunk, row, channel, publish, bytes(payload)))
            self._size += _HELD_MESSAGE + len(payload)

    def parts(self, end_ns: int, run: int) -> Iterator[Part]:
        """Yields the messages before the log time `end_ns`, and more if too much memory is held."""
        most = _HELD_BYTES // 2 if self._size > _HELD_BYTES else self._size
        part = Part(run)
        while self._messages and (self._messages[0][0] < end_ns or self._size > most):
            log, _, _, channel, publish, payload = heappop(self._messages)
            self._size -= _HELD_MESSAGE + len(payload)
            part.add(channel, log, publish, memoryview(payload))
        if part.messages:
            yield part


def _make_part(run: int, table: Table) -> Part:
    part = Part(run)
    for log, channel, publish, payload in zip(*table, strict=True):
        part.add(channel, log, publish, payload)
    return part
