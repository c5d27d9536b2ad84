"""What the checks share: which streams there are, where a row is, and periods and rows a part at a time."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from .. import _lib
from ..dataset import Dataset, Stream
from ..ingest import recording

# Of a steady clock, at least this share of the periods is within half of the median.
_STEADY = 0.8
_KEPT_BYTES = 1 << 28
EDGES = np.geomspace(0.05, 20, 53)  # of a histogram of periods, in median periods

_scan_clock, _array_of = _lib.function("scan_clock"), _lib.function("array_of")
index_of = _lib.function("dataset_index_of")


class Periods:
    """The result of a pass over a stream's stamps: the periods from each row to the next of its episode, P their median.

    Attributes:
        moving: how many are over 0.
        lost_ns: the sum of what those over 1.5 P exceed P by.
        first_zero_row: the first row with the stamp of the row before.
        short_gaps: how many are of 1.5 to 10 P, the longest, and the row after it.
        bursts: how often 3 or more are below P / 4 in a row, how many these are together and in the longest, and its first row.
        regular: by episode how many are within P / 2 of P, and their sum.
        long_gaps: by episode how many are over 10 P, the longest, and the row after it.
        parts: float64 ``[240, 4]``: number, least, largest and sum in as many parts of the rows.
        histogram: how many over 0 lie between `EDGES`, those beyond in the outer ones; zeros the others.
        long_gap_rows: the rows after the first 400 that are over 10 P.
    """

    def __init__(self, stream: Stream) -> None:
        handle = stream._dataset
        made = _scan_clock(handle, index_of(handle, stream.name), _lib.from_numpy(EDGES))
        facts, episodes, self.parts, histogram, rows = (_lib.to_numpy(_array_of(made, None, at)) for at in range(5))
        told = [int(x) for x in facts[0].tolist()]
        self.moving, self.zeros, self.first_zero_row = told[0], told[2], told[3]
        self.lost_ns = float(facts[0, 1])
        self.short_gaps = told[4], float(facts[0, 5]), told[6]
        self.bursts = told[7], told[8], told[9], told[10]
        self.regular = episodes[:, 0].astype(np.int64), episodes[:, 1]
        self.long_gaps = episodes[:, 2:].tolist()
        self.histogram = histogram[:, 0].astype(np.int64)
        self.long_gap_rows = rows[:, 0].astype(np.int64)


@dataclass
class Clock:
    """The stamps of one stream.

    Attributes:
        stream: whose.
        like: the clock of a stream with the same stamps, where there is one before this.
        period_ns: the median period; 0 where there is none.
    """

    stream: Stream
    like: Clock | None = None

    @cached_property
    def period_ns(self) -> float:
        return float(self.stream.findings["period_ns"])

    @cached_property
    def rows(self) -> np.ndarray:
        """int64 ``[episodes]``."""
        rows: np.ndarray = np.diff(self.stream.row_offsets)
        return rows

    @cached_property
    def first_ns(self) -> np.ndarray:
        """int64 ``[episodes]``; 0 where there are no rows, as of `last_ns`."""
        return self._at(self.stream.row_offsets[:-1])

    @cached_property
    def last_ns(self) -> np.ndarray:
        return self._at(self.stream.row_offsets[1:] - 1)

    def _at(self, rows: np.ndarray) -> np.ndarray:
        found = np.zeros(len(rows), np.int64)
        there = self.rows > 0
        found[there] = self.stream.time_ns[rows[there]]
        return found

    @cached_property
    def span_ns(self) -> np.ndarray:
        """float64 ``[episodes]``: from the first to the last row."""
        span: np.ndarray = (self.last_ns - self.first_ns).astype(np.float64)
        return span

    @cached_property
    def periods(self) -> Periods:
        """The periods of its stamps, computed once for all streams that share them."""
        return self.like.periods if self.like else Periods(self.stream)

    @cached_property
    def steady(self) -> bool:
        """Whether it ticks at one rate, so that a gap is one."""
        moving = self.periods.moving
        return self.period_ns > 0 and moving >= 2 and bool(self.periods.regular[0].sum() >= _STEADY * moving)

    @property
    def true_rate_hz(self) -> float:
        """Rows a second, without gaps and bursts; 0.0 without rows. With coarse stamps it is more exact than the median's."""
        number, total = self.periods.regular
        return float(1e9 * number.sum() / total.sum()) if total.sum() > 0 else 0.0

    def episode_of(self, rows: Any) -> np.ndarray:
        """The episodes of these rows of the stream."""
        episodes: np.ndarray = np.searchsorted(self.stream.row_offsets, rows, side="right") - 1
        return episodes

    def place(self, row: int) -> dict[str, Any]:
        """Where a row of the stream is, in the words of a finding."""
        episode = int(self.episode_of(row))
        row_in_episode = int(row - self.stream.row_offsets[episode])
        return {"stream": self.stream.name, "episode": episode, "row": row_in_episode}


@dataclass
class Survey:
    """A cache on its way through the checks.

    Attributes:
        dataset: the cache.
        splits: lists of episodes that must have nothing in common, by name.
        blank: cameras that show one colour at their beginning and end, as far as that was looked at.
    """

    dataset: Dataset
    splits: dict[str, list[int]]
    blank: set[str] = field(default_factory=set)

    @cached_property
    def clocks(self) -> dict[str, Clock]:
        found: dict[str, Clock] = {}
        for name, stream in self.dataset.streams.items():
            like = next((one for one in found.values() if not one.like and _same_clock(one.stream, stream)), None)
            found[name] = Clock(stream, like)
        return found

    @cached_property
    def sensors(self) -> dict[str, Clock]:
        """Streams that are sampled: numbers, clouds and frames; text comes when it comes."""
        return {name: clock for name, clock in self.clocks.items() if clock.stream.kind != "text"}

    @cached_property
    def distinct(self) -> dict[str, Clock]:
        """The first of the sensors that share one clock, so that a fault of the clock is reported once."""
        return {name: self.sensors[name] for name in self._shared}

    @cached_property
    def _shared(self) -> dict[str, list[str]]:
        """By the first sensor on a clock, the others on it."""
        alike: dict[int, list[str]] = {}
        for name, clock in self.sensors.items():
            alike.setdefault(id(clock.like or clock), []).append(name)
        return {first: others for first, *others in alike.values()}

    def also(self, name: str) -> str:
        """An addition to a message about a clock that several streams share."""
        others = self._shared[name]
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        return f"; {', '.join(others[:4])}{more} on the same clock" if others else ""

    @cached_property
    def numbers(self) -> list[Stream]:
        """Streams of numbers, as many in each row."""
        return [stream for stream in self.dataset.streams.values() if stream.kind == "numbers"]

    @cached_property
    def floats(self) -> list[Stream]:
        return [stream for stream in self.numbers if stream.dtype.kind not in "biu"]

    @cached_property
    def cameras(self) -> list[Stream]:
        return [stream for stream in self.dataset.streams.values() if stream.kind == "frames"]

    @cached_property
    def _kept(self) -> set[str]:
        """Streams of numbers that may stay in memory once they were read."""
        sizes = np.cumsum([stream.values.nbytes for stream in self.numbers]).tolist()
        return {stream.name for stream, together in zip(self.numbers, sizes, strict=True) if together <= _KEPT_BYTES}

    def forget(self, stream: Stream, rows: slice) -> None:
        """Lets go of the memory that rows of numbers took when they were read; the file has them."""
        if stream.name not in self._kept:
            _forget(stream.values[rows])

    def declared_rate_hz(self, stream: Stream) -> float | None:
        """The rate that the source declares for the stream."""
        source = self.dataset.provenance.get(str(self.dataset.provenance.get("format")))
        of_source = source.get("fps") if isinstance(source, dict) else None
        told = stream.attributes
        for rate in (told.get("rate_hz"), told.get("fps"), of_source):
            if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < 1e9:
                return float(rate)
        return None


def _same_clock(one: Stream, other: Stream) -> bool:
    return (
        one.rows == other.rows
        and one.findings["period_ns"] == other.findings["period_ns"]
        and np.array_equal(one.row_offsets, other.row_offsets)
        and np.array_equal(one.time_ns, other.time_ns)
    )


def is_action(name: str) -> bool:
    """Whether a stream holds commands, by the first part of its name; the loader's `horizon` knows them by the same."""
    return name.partition(".")[0] in ("action", "actions")


def feature_names(stream: Stream, features: list[int], limit: int = 6) -> str:
    """ "wrist, feature 3 and 2 more"."""
    named = [stream.names[f] if f < len(stream.names) else f"feature {f}" for f in features[:limit]]
    more = f" and {len(features) - limit} more" if len(features) > limit else ""
    return ", ".join(named) + more


def ranges(numbers: list[int]) -> str:
    """The first of them, as "1-3, 7"."""
    return recording.ranges(numbers, limit=12)


_libc = ctypes.CDLL(None, use_errno=True)


def _forget(array: np.ndarray) -> None:
    page = mmap.PAGESIZE
    begin = -(-array.ctypes.data // page) * page
    end = (array.ctypes.data + array.nbytes) // page * page
    if end > begin:
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), 4)  # MADV_DONTNEED
