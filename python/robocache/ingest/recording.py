"""Defines the types that a reader yields, recording by recording, and its notes for the report. `driver` writes both.

A reader is a module with a function::

    def read(source: Path, options: Options, notes: Notes) -> Iterator[Recording]:

It opens a recording only when the driver iterates over its rows. Errors are raised inside ``with notes.reading(...)``, which
stops or skips, and turns them into a :class:`SourceError` that names the file. An error outside of it, between two recordings,
ends the ingest, because a generator that has raised cannot go on.

Processes may share the recordings: each process runs `read` as a whole, but iterates only over the streams of the recordings in its
share. A second function reports the facts that are known only after the last recording::

    def finish(source: Path, options: Options, notes: Notes) -> None:

It is called once, with the values that :meth:`Notes.count` and :meth:`Notes.see` gathered in all processes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from .._printable import shortened
from ..errors import Error, FileError

if TYPE_CHECKING:
    from ..frames import Encoded


# The attributes of streams that several formats share.
ATTRIBUTES = {
    "units": "the units of the features: one str for all, or a list with a str for each",
    "methods": "how features are interpolated: [[start, stop, method], ...]",
    "frame_id": "the frame of reference",
    "clock_source": "where the stamps come from, as header.stamp or log_time",
    "schema": "the type that the source gives its messages",
    "subjects": "the column of a CSV log that distinguishes its subjects; values are held between rows",
    "task": "true if the text is the task, valid from the row's stamp on",
    "labels": "for a camera: whether its pixels are labels, if its name does not say so",
    "texts": "for whole numbers: the table in the provenance with their texts, as lerobot.tasks",
    "words": "for whole numbers that have names: {word: number}, or for each feature {name: {word: number}}",
}
# The largest angle that is taken as radians: a turn, and some noise.
MOST_RADIANS = 6.5


class SourceError(FileError):
    """Something in the source cannot be read. ``on_error="skip"`` skips and names it."""


class ShardsError(FileError):
    """Several processes cannot share this source, but a single one can ingest it."""


class WiderError(ShardsError):
    """Rows do not fit the type of the rows before them. The ingest begins anew, with the wider type in `Notes.wider`."""


class _Named:
    """Rows of numbers, whose features have names."""

    names: list[str] | None

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the stream, which are the same in all recordings, as arguments of ``Writer.stream``."""
        return {"names": self.names} | _attributes(cast("Samples", self))


@dataclass(frozen=True)
class Rows(_Named):
    """Rows of one stream in one recording, or a part of them; the parts of a stream follow one another.

    time_ns: int64 ``[n]`` nanoseconds, in the source's order; the driver refuses or repairs steps back (`clocks`).
    values: ``[n, ...]``: floats, integers or bool; dtype and shape of a row are the same in all recordings.
    names: a name for each feature, the same in all recordings; None without names.
    clock: "nominal" if the stamps are only index / rate.
    attributes: other facts of the stream, in values of JSON, the same in all recordings: see :data:`ATTRIBUTES`.
    run: how often the recording's clock was set back before these rows, if the source shows that for all of its streams.
    """

    time_ns: np.ndarray
    values: np.ndarray
    names: list[str] | None = None
    clock: Literal["recorded", "nominal"] = "recorded"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    run: int = 0


@dataclass(frozen=True)
class Ragged(_Named):
    """Rows of varying size: clouds of points, lists of contacts.

    time_ns: int64 ``[n]`` nanoseconds, as in :class:`Rows`.
    values: ``[elements, ...]`` of all rows, concatenated; dtype and shape of an element are the same in all recordings. A cloud's
        points are ``[points, features]``, x, y and z first.
    offsets: int64 ``[n + 1]``: row i is ``values[offsets[i]:offsets[i + 1]]``.
    names: a name for each feature of an element, such as "x", "y", "z", "intensity".
    clock, attributes, run: as in :class:`Rows`.
    """

    time_ns: np.ndarray
    values: np.ndarray
    offsets: np.ndarray
    names: list[str] | None = None
    clock: Literal["recorded", "nominal"] = "recorded"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    run: int = 0


@dataclass(frozen=True)
class Texts:
    """Rows that are text: instructions, prompts, events, log lines.

    time_ns: int64 ``[n]`` nanoseconds, as in :class:`Rows`.
    texts: n str; the reader escapes bytes that are no UTF-8, and reports them.
    clock, attributes, run: as in :class:`Rows`.
    """

    time_ns: np.ndarray
    texts: Sequence[str]
    clock: Literal["recorded", "nominal"] = "recorded"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    run: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the stream, as in :class:`Rows`."""
        return _attributes(self)


@dataclass(frozen=True)
class Frames:
    """A camera's rows in one recording, chunk by chunk, so that they need not fit in memory.

    chunks: pairs ``(time_ns, frames)``, iterated once: int64 ``[n]`` nanoseconds, as in :class:`Rows`, and n frames of one size: an
        array ``[n, H, W]`` or ``[n, H, W, C]`` of uint8 or uint16, a list of bytes (JPEGs or PNGs), or
        :class:`robocache.frames.Encoded`.
    codec, quality: how an array is stored: "jpeg" with that quality, "png" or "raw".
    unit_m: metres per unit of depth.
    intrinsics: the camera matrix ``[3][3]`` in pixels of the stored frames.
    resized: how the reader resized the frames, in values of JSON; None if they have the source's size.
    clock, attributes, run: as in :class:`Rows`.
    """

    chunks: Iterable[tuple[np.ndarray, np.ndarray | list[bytes] | Encoded]]
    codec: Literal["jpeg", "png", "raw"] = "jpeg"
    quality: int = 95
    unit_m: float | None = None
    intrinsics: Sequence[Sequence[float]] | None = None
    resized: dict[str, Any] | None = None
    clock: Literal["recorded", "nominal"] = "recorded"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    run: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the stream, as in :class:`Rows`."""
        return {"unit_m": self.unit_m, "intrinsics": self.intrinsics, "resized": self.resized} | _attributes(self)


Samples = Rows | Ragged | Texts | Frames


def _attributes(samples: Samples) -> dict[str, Any]:
    return {"attributes": dict(samples.attributes)} if samples.attributes else {}


@dataclass(frozen=True)
class Recording:
    """One episode.

    what: the episode's name in notes ("episode 3"), unique in the source.
    where: its file or folder, with which every error about it begins.
    metadata: its columns of the episodes table; the reader may add to them until it yields the first stream.
    streams: pairs (stream, samples), each a part of a stream. The parts of a stream come in the source's order; streams may take turns.
        The pairs are iterated once, when the episode is written, and a camera's chunks before the next pair. So a reader needs to hold
        only one part in memory.
    """

    what: str
    where: str
    metadata: dict[str, Any]
    streams: Iterable[tuple[str, Samples]]


@dataclass(frozen=True)
class Omission:
    """Something that is not in the cache, and why."""

    what: str
    reason: str


@dataclass
class Assumption:
    """A fact that the source does not declare.

    what: what the assumption is about, with its name in the source, such as "clock 'timeMs'".
    reason: the assumption, and why, such as "milliseconds, by its name".
    streams: the streams that it concerns, by their names in the source; empty if it concerns all of them.
    """

    what: str
    reason: str
    streams: list[str] = field(default_factory=list)


class Notes:
    """What a reader reports besides its recordings.

    Args:
        format, provenance: the format's name, and the dict into which :meth:`tell` writes under that name.
        on_error: "stop" or "skip".
        share: the recordings to read, by their numbers from 0 in the order of the source. For other recordings nothing is counted or
            reported as skipped here, since other processes do so.

    Attributes:
        total: the number of recordings that will come, for the progress; the reader sets it before it yields the first.
        position: the number of the recording that is being read, or comes next. A reader adds the recordings that it cannot yield.
        left_out, skipped, assumed: see :class:`IngestReport`.
        counts, seen: the values of :meth:`count` and :meth:`see`, a dict for each table.
        gives_methods: a function of (stream, start, stop): whether the user's mapping has methods for these features of the stream. A
            stop of None means all features from `start` on.
        wider: the wider types that earlier attempts to ingest the source found: see :class:`WiderError`.
    """

    def __init__(
        self,
        format: str,
        provenance: MutableMapping[str, Any],
        on_error: str,
        share: range = range(sys.maxsize),
        wider: dict[str, Any] | None = None,
    ) -> None:
        self.total = 0
        self.position = 0
        self.left_out: list[Omission] = []
        self.skipped: list[Omission] = []
        self.assumed: list[Assumption] = []
        self.counts: dict[str, dict[str, int]] = {}
        self.seen: dict[str, dict[str, Any]] = {}
        self.wider = {} if wider is None else wider
        self.gives_methods: Callable[[str, int, int | None], bool] = lambda stream, start, stop: False
        self.format = format
        self._provenance = provenance
        self._on_error = on_error
        self._share = share
        self._left_out: set[Omission] = set()
        self._assumed: dict[tuple[str, str], Assumption] = {}
        self._streams_of_assumed: set[tuple[str, str, str]] = set()
        self._radians: set[str] = set()  # streams whose angles so far can be radians

    def wants(self, first: int, count: int = 1) -> bool:
        """Whether one of the `count` recordings from `first` on is to be read. A reader that works ahead, or reads several recordings from
        a file at once, can so leave out the others."""
        return first < self._share.stop and self._share.start < first + count

    def tell(self, where: object, /, **facts: Any) -> None:
        """Adds facts about the whole source to the provenance of this format, before the first recording or in ``finish``.

        Raises:
            FileError: the cache cannot hold the facts; the message begins with `where`.
        """
        try:
            self._provenance[self.format] = {**self._provenance.get(self.format, {}), **facts}
        except Error as error:
            raise FileError(f"{where}: {error}") from error

    def count(self, table: str, key: str, count: int = 1) -> None:
        """Adds `count` to the sum of a key in a table, for ``finish``."""
        if self.wants(self.position):
            counts = self.counts.setdefault(table, {})
            counts[key] = counts.get(key, 0) + count

    def see(self, table: str, key: str, value: Any) -> None:
        """Keeps a value of JSON for a key in a table, for ``finish``; the first value of each key stays."""
        if self.wants(self.position):
            self.seen.setdefault(table, {}).setdefault(key, value)

    def leave_out(self, what: str, reason: str) -> None:
        """Reports something that the cache by design does not hold; the same report is made once."""
        omission = Omission(as_utf8(shortened(what)), as_utf8(shortened(reason)))
        if omission not in self._left_out:
            self._left_out.add(omission)
            self.left_out.append(omission)

    def assume(self, what: str, reason: str, *streams: str) -> None:
        """Reports a fact that the source does not declare: see :class:`Assumption`.

        Reasons that differ only in their numbers, such as a clock's steps, are reported once, with the numbers of the first.
        """
        what, reason = as_utf8(shortened(what)), as_utf8(shortened(reason))
        key = what, re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", reason)
        if key not in self._assumed:
            self._assumed[key] = Assumption(what, reason)
            self.assumed.append(self._assumed[key])
        for stream in map(as_utf8, streams):
            if (*key, stream) not in self._streams_of_assumed:
                self._streams_of_assumed.add((*key, stream))
                self._assumed[key].streams.append(stream)

    def skip(self, what: str, error: SourceError) -> None:
        """Raises `error`, or reports `what` as skipped if the user chose so."""
        if self._on_error == "stop":
            raise error
        if self.wants(self.position):
            self.skipped.append(Omission(as_utf8(shortened(what)), as_utf8(str(error))))

    def beyond_a_turn(self, stream: str, angles: np.ndarray) -> float | None:
        """Returns an angle of a stream, in these rows or in earlier ones, that is too large for radians; None if there is none.

        Raises:
            WiderError: these rows have such an angle but earlier rows had none, so the ingest begins anew.
        """
        largest_angles: dict[str, float] = self.wider.setdefault("beyond a turn", {})
        if stream not in largest_angles:
            largest = float(np.fmax.reduce(np.abs(angles), axis=None, initial=0))
            if largest <= MOST_RADIANS:
                self._radians.add(stream)
                return None
            largest_angles[stream] = largest
            if stream in self._radians:
                raise WiderError(
                    f"stream {stream!r}: angles up to {largest:.4g}, but no more than a turn in radians before"
                )
        return largest_angles[stream]

    def count_facts(self) -> tuple[int, str]:
        """Returns values that change with each omission, each assumption and each fact of :meth:`tell`."""
        return len(self.left_out) + len(self.assumed) + len(self._streams_of_assumed), repr(
            self._provenance.get(self.format)
        )

    def reading(self, what: str, where: object) -> AbstractContextManager[None]:
        """Returns a context in which `what` is read. If it cannot be read, the context ends the block and calls :meth:`skip`.

        where: the file, with which the error begins.
        """
        return passing_over(what, where, self.skip)


# These two are classes because in a recording of many small parts, contextmanager's generators take as long as the reading.
class passing_over:
    """A context in which `what` is read. If it cannot be read, the context ends the block and calls `skip`, which may raise."""

    __slots__ = ("_skip", "_what", "_where")

    def __init__(self, what: str, where: object, skip: Callable[[str, SourceError], None]) -> None:
        self._what = what
        self._where = where
        self._skip = skip

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool | None:
        if error is None:
            return None
        named = _named(self._where, error)
        if not isinstance(named, SourceError):
            return None
        self._skip(self._what, named)
        return True


class naming:
    """A context that turns an unforeseen error into a SourceError that begins with `where` and keeps the cause.

    A FileError stays as it is, since it names its file. But a SourceError also gets the beginning `where` if that is a file, and the
    message names neither this file nor another one in its folder.
    """

    __slots__ = ("_where",)

    def __init__(self, where: object) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and (named := _named(self._where, error)) is not error:
            raise named from error


def _named(where: object, error: BaseException) -> BaseException:
    """Returns the error as :class:`naming` raises it: often the same error."""
    if not isinstance(error, Exception) or (isinstance(error, FileError) and not _lacks_file(where, error)):
        return error
    if isinstance(error, Error):
        text = str(error)
    elif isinstance(error, OSError):
        text = str(error.strerror or error)
    else:
        text = f"{type(error).__name__}: {error}"
    named = SourceError(f"{where}: {text}")
    named.__cause__ = error
    return named


def _lacks_file(where: object, error: FileError) -> bool:
    """Whether a SourceError names neither the file with which `where` begins nor its folder."""
    file, text = str(where).split(": ", 1)[0], str(error)
    folder = os.path.dirname(file)
    names_file = file in text or (folder not in ("", os.sep) and folder in text)
    return isinstance(error, SourceError) and not names_file and os.path.lexists(file)


def as_utf8(text: str) -> str:
    """Escapes characters that UTF-8 cannot encode, as in some names of files, for the report and the cache."""
    return text.encode(errors="backslashreplace").decode()
