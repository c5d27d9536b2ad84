"""Bags of recorded messages, whatever their files are: channels, parts of messages, and what cannot be read."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..recording import SourceError, passing_over
from .exported import Exported
from .metadata import BagMetadata

if TYPE_CHECKING:
    from .batches import Batch


@dataclass(frozen=True)
class Channel:
    """Messages of one type on one topic.

    topic, schema: its name, and its type's.
    encoding: what messages are serialised in: "cdr", "ros1", "json", "protobuf".
    definition_encoding, definition: of the type: "ros2msg", "ros2idl", "ros1msg", "jsonschema", "protobuf"; "" where there is none.
    exported: what the cache said of the stream that it was exported from.
    """

    topic: str
    schema: str
    encoding: str
    definition_encoding: str
    definition: bytes
    exported: Exported | None = field(default=None, compare=False)


# A message's bytes: a view where they are part of what was read, and of large ones. Small ones of their own stay bytes: Python's
# garbage collector goes through all views again and again.
Payload = bytes | memoryview


class Alike(Sequence[Payload]):
    """Payloads of one size, of which nothing is kept but one array: to hold each by itself takes twice the time.

    size: of each, in bytes.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._bytes = np.empty(0, np.uint8)
        self._used = 0

    @property
    def rows(self) -> np.ndarray:
        """uint8 ``[n, size]``."""
        return self._bytes[: self._used].reshape(-1, self.size)

    def add(self, payloads: Iterable[bytes]) -> None:
        """Those that come behind these."""
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
        found = self.rows[index]
        return found.tobytes() if found.ndim == 1 else [row.tobytes() for row in found]


# Characters of a topic's or a type's name.
_MOST_NAME = 1 << 12

# Of a channel: a number of messages, and nanoseconds.
Behind = dict[int, tuple[int, int]]


@dataclass
class Messages:
    """Of one channel, in order: when they were logged and published, int64 nanoseconds, and themselves.

    decoded: what their decoder made of them, where it was kept.
    """

    log_ns: list[int] = field(default_factory=list)
    publish_ns: list[int] = field(default_factory=list)
    payloads: list[Payload] | Alike = field(default_factory=list)
    decoded: tuple[Batch, dict[int, str]] | None = None

    def listed(self) -> list[Payload]:
        """The payloads, to which others can be added."""
        if isinstance(self.payloads, Alike):
            self.payloads = list(self.payloads)
        return self.payloads


class Part:
    """Messages that were read together, by their channel's number.

    run: how often the log clock was set back before them.
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
        messages.listed().append(payload)
        self.size += len(payload)

    def add_all(self, channel: int, logged_ns: Sequence[int], payloads: Sequence[bytes]) -> None:
        """Messages of one channel, which say no other time."""
        messages = self.messages.setdefault(channel, Messages())
        messages.log_ns += logged_ns
        messages.publish_ns += logged_ns
        size = len(payloads[0])
        alike = size > 0 and set(map(len, payloads)) == {size}
        if alike and not messages.payloads:
            messages.payloads = Alike(size)
        if alike and isinstance(messages.payloads, Alike) and messages.payloads.size == size:
            messages.payloads.add(payloads)
        else:
            messages.listed().extend(payloads)
        self.size += sum(map(len, payloads))

    def extend(self, part: Part) -> None:
        for channel, more in part.messages.items():
            messages = self.messages.setdefault(channel, Messages())
            messages.log_ns += more.log_ns
            messages.publish_ns += more.publish_ns
            messages.listed().extend(more.payloads)
        self.size += part.size


class Faults:
    """Where a pass tells of what it cannot read: the first passes it on, the second has been through it already."""

    def __init__(self, what: str, skip: Callable[[str, SourceError], None] | None) -> None:
        self._what = what
        self._skip = skip

    @property
    def told(self) -> bool:
        """Whether all was looked at before."""
        return self._skip is None

    def add(self, what: str, error: SourceError) -> None:
        """Raises the error, or passes over what it is about."""
        if self._skip is not None:
            self._skip(f"{self._what}: {what}", error)

    def reading(self, what: str, where: object) -> AbstractContextManager[None]:
        """As of :class:`Notes`."""
        return passing_over(what, where, self.add)

    def through(self, change: Callable[[SourceError], SourceError]) -> Faults:
        """The same, of errors that are changed on the way."""
        skip = self._skip
        return Faults(self._what, None if skip is None else lambda what, error: skip(what, change(error)))


class Bag(ABC):
    """A recording that is read.

    channels, numbers: what was met, and the number of each.
    left_out: what is in it and not read, and why.
    columns: of the episode that it was exported from.
    texts: of numbers in the cache that it was exported from, by the table's name.
    metadata: what it says of itself.
    behind: how many messages of each channel were logged shortly before one in front of them in the file, and by how many ns at most;
        those that one pass found.
    """

    def __init__(self, path: Path) -> None:
        self.columns: dict[str, Any] = {}
        self.texts: dict[str, dict[str, str | None]] = {}
        self.metadata = BagMetadata()
        self.path = path
        self.channels: list[Channel] = []
        self.numbers: dict[Channel, int] = {}
        self.left_out: dict[str, str] = {}
        self.behind: Behind = {}

    @abstractmethod
    def open(self, faults: Faults) -> None:
        """Looks at it."""

    @abstractmethod
    def parts(self, faults: Faults) -> Iterator[Part]:
        """Its messages, in order; called twice."""

    def close(self) -> None:  # noqa: B027  most have nothing to let go of
        """When it was read."""

    def number(self, channel: Channel) -> int:
        """The number of a channel, which is met. A name longer than any recorder writes is shortened, and its hash added."""
        if max(len(channel.topic), len(channel.schema)) > _MOST_NAME:
            channel = replace(channel, topic=_short(channel.topic), schema=_short(channel.schema))
            self.left_out[f"name of {channel.topic}"] = f"more than {_MOST_NAME} characters: it is shortened"
        if channel not in self.numbers:
            self.numbers[channel] = len(self.channels)
            self.channels.append(channel)
        return self.numbers[channel]


def _short(name: str) -> str:
    if len(name) <= _MOST_NAME:
        return name
    return f"{name[:64]}...{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:16]}"


# ---- the order of messages ----

# Log times, channels, publish times, payloads of messages, in the order of the file.
Table = tuple[list[int], list[int], list[int], list[Payload]]
# Recorders write the messages of one channel in the order of their log times, but for some milliseconds. A message that lies farther
# behind one in front of it in the file says that the clock was set back: ntpd does so by 128 ms and more, a simulation begins anew.
STEP_NS = 100_000_000
_NEVER = 1 << 64
# What is held back of chunks that overlap; beyond it the order is given up, and where it shows in stamps the driver says so.
_HELD = 256 << 20
# A message that is held takes so many bytes more than it has.
_HELD_MESSAGE = 300


class LogClock:
    """The log times of messages, which are added in the order of the file.

    behind: as of :class:`Bag`; is written.
    """

    def __init__(self, behind: Behind) -> None:
        self._behind = behind
        self._latest: dict[int, int] = {}  # of each channel
        self._top: int | None = None

    def add(self, logs: Sequence[int], channels: Sequence[int]) -> list[int]:
        """The rows at which the clock was set back."""
        top = logs[0] if self._top is None else self._top
        if logs[0] >= top and not any(map(int.__gt__, logs, logs[1:])):
            self._latest.update(zip(channels, logs, strict=True))
            self._top = logs[-1]
            return []
        steps: list[int] = []
        start = 0
        while (step := self._next_step(logs, channels, start)) is not None:
            steps.append(step)
            self._latest, self._top, start = {}, None, step
        return steps

    def _next_step(self, logs: Sequence[int], channels: Sequence[int], start: int) -> int | None:
        """The first row behind a step; other channels' rows before the one that shows it may be behind it too."""
        top = logs[start] if self._top is None else self._top
        far_back: int | None = None  # the first of the last rows that are all far behind `top`
        for row in range(start, len(logs)):
            log, channel = logs[row], channels[row]
            far_back = None if log >= top - STEP_NS else row if far_back is None else far_back
            latest = self._latest.get(channel, log)
            if log < latest - STEP_NS:
                return far_back
            if log < latest:
                count, most = self._behind.get(channel, (0, 0))
                self._behind[channel] = count + 1, max(most, latest - log)
            self._latest[channel] = max(log, latest)
            top = max(log, top)
        self._top = top
        return None


@dataclass
class Chunk:
    """Messages that lie together in a file.

    first, last: log times, as the file says.
    read: reads them; None where they cannot be read.
    steps: the rows at which the log clock was set back; None where that is not known.
    """

    first: int
    last: int
    read: Callable[[], Table | None]
    steps: list[int] | None = None


def find_steps(chunks: Sequence[Chunk], behind: Behind) -> list[list[int]] | None:
    """Of each chunk the rows at which the log clock was set back. None, without a look into the chunks, where each begins behind those
    in front of it: the clock may then have been set back within a chunk alone."""
    top = chunks[0].first if chunks else 0
    for chunk in chunks:
        if chunk.first < top - STEP_NS:
            break
        top = max(top, chunk.last)
    else:
        return None
    clock = LogClock(behind)
    tables = (chunk.read() for chunk in chunks)
    return [[] if table is None else clock.add(table[0], table[1]) for table in tables]


def merge(chunks: Sequence[Chunk], behind: Behind, run: int = 0) -> Iterator[Part]:
    """The messages of chunks in the order of log time, of one time in the order of the chunks. Those behind a step back of the log
    clock come behind all that is before it in the file, as the next run; the first has the number `run`."""
    held = _Held()
    read: dict[int, Table | None] = {}  # chunks with a step in them
    for pieces in _runs(chunks):
        for place, (number, start, stop) in enumerate(pieces):
            chunk = chunks[number]
            table = read.pop(number) if number in read else chunk.read()
            if stop is not None:
                read[number] = table
            following = chunks[pieces[place + 1][0]].first if place + 1 < len(pieces) else _NEVER
            if table is not None:
                steps = LogClock(behind).add(table[0], table[1]) if chunk.steps is None else []
                for number_of_steps, begin in enumerate([start, *steps]):
                    if number_of_steps:
                        yield from held.parts(_NEVER, run)
                        run += 1
                    end = [*steps, stop][number_of_steps]
                    ordered = _in_order(table, begin, end)
                    if not held and ordered[0][-1] < following and end is None:
                        yield _part(run, ordered)
                    else:
                        held.add(number, ordered)
            yield from held.parts(following, run)
        run += 1


# A chunk's number, and which of its rows.
_Piece = tuple[int, int, int | None]


def _runs(chunks: Sequence[Chunk]) -> list[list[_Piece]]:
    """The pieces of each run, by their chunks' log times."""
    runs: list[list[_Piece]] = [[]]
    for number, chunk in enumerate(chunks):
        for step, (start, stop) in enumerate(pairwise([0, *(chunk.steps or ()), None])):
            if step:
                runs.append([])
            if start != stop:
                runs[-1].append((number, start, stop))
    for pieces in runs:
        pieces.sort(key=lambda piece: chunks[piece[0]].first)
    return runs


def _in_order(table: Table, begin: int, end: int | None) -> Table:
    """These rows in the order of log time; messages of one time stay as they are."""
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
        # A heap: of log time, chunk, row in it, channel, publish time, payload.
        self._messages: list[tuple[int, int, int, int, int, bytes]] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, chunk: int, table: Table) -> None:
        for row, (log, channel, publish, payload) in enumerate(zip(*table, strict=True)):
            heappush(self._messages, (log, chunk, row, channel, publish, bytes(payload)))
            self._size += _HELD_MESSAGE + len(payload)

    def parts(self, following: int, run: int) -> Iterator[Part]:
        """Those before that log time, and where more are held than may be, others too."""
        most = _HELD // 2 if self._size > _HELD else self._size
        part = Part(run)
        while self._messages and (self._messages[0][0] < following or self._size > most):
            log, _, _, channel, publish, payload = heappop(self._messages)
            self._size -= _HELD_MESSAGE + len(payload)
            part.add(channel, log, publish, memoryview(payload))
        if part.messages:
            yield part


def _part(run: int, table: Table) -> Part:
    part = Part(run)
    for log, channel, publish, payload in zip(*table, strict=True):
        part.add(channel, log, publish, payload)
    return part
