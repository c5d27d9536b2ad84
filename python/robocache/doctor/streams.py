"""The base of the checks: the streams of a cache, their clocks and periods, and the locations of rows."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .. import _lib, _printable
from ..dataset import Dataset, Stream

# A clock is steady if at least this share of its periods is within half a median period of the median.
_STEADY = 0.8
_MOVING = 0.5  # a stream moves if at least this share of its rows changes
_KEPT_BYTES = 1 << 28  # the most bytes that stay mapped
# The edges of histograms of periods, in median periods. Gaps begin at an edge, 1.5, and so do long gaps, at 10.
EDGES = 1.5 * (10 / 1.5) ** (np.arange(-29, 23) / 16)

_scan_clock, _array_of = _lib.function("scan_clock"), _lib.function("array_of")
index_of = _lib.function("dataset_index_of")


class Periods:
    """The periods of a stream: the time from each row to the next row of its episode. P is their median.

    Attributes:
        moving: the number of periods over 0.
        lost_ns: the sum of (period - P) over all periods above 1.5 P.
        first_zero_row: the first row with the same stamp as the previous row.
        bursts: runs of 3 or more periods below P / 4: the number of runs, the periods in all of them, the periods in the
            longest, and the first row of the longest.
        regular: for each episode, the number of periods within P / 2 of P, and their sum.
        parts: float64 ``[240, 4]``: the number, minimum, maximum and sum of the periods in each of 240 parts of the rows.
        histogram: the number of periods over 0 between `EDGES`; the outer bins include all periods beyond.
        zeros: the number of periods of 0.
        long_gap_rows: the rows after the first 400 periods over 10 P.
    """

    def __init__(self, stream: Stream) -> None:
        handle = stream._opened.handle
        scan = _scan_clock(handle, index_of(handle, stream.name), _lib.from_numpy(EDGES))
        facts, episodes, self.parts, histogram, rows = (
            _lib.to_numpy(_array_of(scan, None, index)) for index in range(5)
        )
        numbers = [int(x) for x in facts[0].tolist()]
        self.moving, self.zeros, self.first_zero_row = numbers[0], numbers[2], numbers[3]
        self.lost_ns = float(facts[0, 1])
        self.bursts = numbers[4], numbers[5], numbers[6], numbers[7]
        self.regular = episodes[:, 0].astype(np.int64), episodes[:, 1]
        self.histogram = histogram[:, 0].astype(np.int64)
        self.long_gap_rows = rows[:, 0].astype(np.int64)


@dataclass
class Clock:
    """The stamps of one stream.

    Attributes:
        stream: the stream.
        like: the clock of an earlier stream with the same stamps, if any.
        period_ns: the median period; 0 if there is none.
    """

    stream: Stream
    like: Clock | None = None

    @cached_property
    def period_ns(self) -> float:
        return float(self.stream.findings["period_ns"])

    @cached_property
    def rows(self) -> np.ndarray:
        """The number of rows, int64 ``[episodes]``."""
        rows: np.ndarray = np.diff(self.stream.row_offsets)
        return rows

    @cached_property
    def first_ns(self) -> np.ndarray:
        """The first stamps, int64 ``[episodes]``; 0 for an episode without rows. `last_ns` has the last stamps."""
        return self._stamps_of(self.stream.row_offsets[:-1])

    @cached_property
    def last_ns(self) -> np.ndarray:
        return self._stamps_of(self.stream.row_offsets[1:] - 1)

    def _stamps_of(self, rows: np.ndarray) -> np.ndarray:
        stamps = np.zeros(len(rows), np.int64)
        has_rows = self.rows > 0
        stamps[has_rows] = self.stream.time_ns[rows[has_rows]]
        return stamps

    @cached_property
    def span_ns(self) -> np.ndarray:
        """The time from the first to the last row, float64 ``[episodes]``."""
        span: np.ndarray = (self.last_ns - self.first_ns).view(np.uint64).astype(np.float64)  # may exceed int64
        return span

    @cached_property
    def periods(self) -> Periods:
        """The periods of the stamps, computed once for all streams that share them."""
        return self.like.periods if self.like else Periods(self.stream)

    @cached_property
    def steady(self) -> bool:
        """Whether the clock has one rate, so that a long period is a gap."""
        moving = self.periods.moving
        return self.period_ns > 0 and moving >= 2 and bool(self.periods.regular[0].sum() >= _STEADY * moving)

    @property
    def true_rate_hz(self) -> float:
        """Rows per second, without gaps and bursts; 0.0 without rows. With coarse stamps it is more exact than 1 / P."""
        number, total = self.periods.regular
        return float(1e9 * number.sum() / total.sum()) if total.sum() > 0 else 0.0

    def episode_of(self, rows: Any) -> np.ndarray:
        """Returns the episodes of these rows of the stream."""
        episodes: np.ndarray = np.searchsorted(self.stream.row_offsets, rows, side="right") - 1
        return episodes

    def locate(self, row: int) -> dict[str, Any]:
        """Returns stream, episode and row in the episode, as fields of a finding."""
        episode = int(self.episode_of(row))
        row_in_episode = int(row - self.stream.row_offsets[episode])
        return {"stream": self.stream.name, "episode": episode, "row": row_in_episode}


@dataclass
class Survey:
    """A cache that is being checked.

    Attributes:
        dataset: the cache.
        splits: lists of episodes by name; no episode may be in two of them.
        source: the source that the cache was just made of; None if the cache itself was given.
        blank: cameras whose first and last frames show one colour, once checked.
    """

    dataset: Dataset
    splits: dict[str, list[int]]
    source: Path | None = None
    blank: set[str] = field(default_factory=set)

    @cached_property
    def clocks(self) -> dict[str, Clock]:
        clocks: dict[str, Clock] = {}
        for name, stream in self.dataset.streams.items():
            like = next(
                (clock for clock in clocks.values() if not clock.like and _same_clock(clock.stream, stream)), None
            )
            clocks[name] = Clock(stream, like)
        return clocks

    @cached_property
    def sensors(self) -> dict[str, Clock]:
        """Streams with a rate: numbers, clouds and frames, but not text."""
        return {name: clock for name, clock in self.clocks.items() if clock.stream.kind != "text"}

    @cached_property
    def distinct(self) -> dict[str, Clock]:
        """For each clock, the first sensor on it, so that a fault of the clock is reported once."""
        return {name: self.sensors[name] for name in self._shared}

    @cached_property
    def _shared(self) -> dict[str, list[str]]:
        """For the first sensor on each clock, the other sensors on it."""
        alike: dict[int, list[str]] = {}
        for name, clock in self.sensors.items():
            alike.setdefault(id(clock.like or clock), []).append(name)
        return {first: others for first, *others in alike.values()}

    def also(self, name: str) -> str:
        """Returns the end of a message: the other streams on the clock."""
        others = self._shared[name]
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        return f"; {', '.join(others[:4])}{more} on the same clock" if others else ""

    @cached_property
    def numbers(self) -> list[Stream]:
        """Streams with a fixed number of values in each row."""
        return [stream for stream in self.dataset.streams.values() if stream.kind == "numbers"]

    @cached_property
    def floats(self) -> list[Stream]:
        return [stream for stream in self.numbers if stream.dtype.kind not in "biu"]

    @cached_property
    def cameras(self) -> list[Stream]:
        return [stream for stream in self.dataset.streams.values() if stream.kind == "frames"]

    @cached_property
    def _kept(self) -> set[str]:
        """The names of streams that may stay in memory after they are read."""
        sizes = np.cumsum([stream.values.nbytes for stream in self.numbers]).tolist()
        return {stream.name for stream, total in zip(self.numbers, sizes, strict=True) if total <= _KEPT_BYTES}

    def others_move(self, stream: Stream, begin: int, end: int) -> bool:
        """Whether another stream of numbers changes while `stream` is at its rows [begin, end); true if the episode has no other."""
        episode = int(self.clocks[stream.name].episode_of(begin))
        has_others = False
        for other in self.floats:
            rows = slice(*other.row_offsets[episode : episode + 2].tolist())
            if other is stream or rows.stop - rows.start < 2:
                continue
            has_others = True
            low, high = np.searchsorted(other.time_ns[rows], stream.time_ns[[begin, end - 1]]) + rows.start
            values = other.values[low:high].reshape(int(high - low), -1)
            if len(values) > 2 and rows_move(values):
                return True
        return not has_others

    def forget(self, stream: Stream, rows: slice) -> None:
        """Frees the memory of rows that were read from the mapped file."""
        if stream.name not in self._kept:
            _forget(stream.values[rows])

    def declared_rate_hz(self, stream: Stream) -> float | None:
        """Returns the rate that the source declares for the stream, or None."""
        source = self.dataset.provenance.get(str(self.dataset.provenance.get("format")))
        fps = source.get("fps") if isinstance(source, dict) else None
        attributes = stream.attributes
        for rate in (attributes.get("rate_hz"), attributes.get("fps"), fps):
            if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < 1e9:
                return float(rate)
        return None


def _same_clock(first: Stream, second: Stream) -> bool:
    return (
        first.rows == second.rows
        and first.findings["period_ns"] == second.findings["period_ns"]
        and np.array_equal(first.row_offsets, second.row_offsets)
        and np.array_equal(first.time_ns, second.time_ns)
    )


def rows_move(values: np.ndarray) -> bool:
    """Whether enough rows ``[n, features]`` differ from the row before them. NaN after NaN is no difference."""
    before, after = values[:-1], values[1:]
    differs = (before != after) & ((before == before) | (after == after))
    return bool(differs.any(1).mean() >= _MOVING)


def is_action(name: str) -> bool:
    """Whether a stream holds commands, by the first part of its name. The loader's `horizon` uses the same rule."""
    return name.partition(".")[0] in ("action", "actions")


def feature_names(stream: Stream, features: list[int], limit: int = 6) -> str:
    """Returns a list such as "wrist, feature 3 and 2 more"."""
    named = [stream.names[f] if f < len(stream.names) else f"feature {f}" for f in features[:limit]]
    more = f" and {len(features) - limit} more" if len(features) > limit else ""
    return ", ".join(named) + more


def ranges(numbers: list[int]) -> str:
    """Returns the first 12 ranges, such as "1-3, 7"."""
    return _printable.ranges(numbers, limit=12)


_libc = ctypes.CDLL(None, use_errno=True)


def _forget(array: np.ndarray) -> None:
    page = mmap.PAGESIZE
    begin = -(-array.ctypes.data // page) * page
    end = (array.ctypes.data + array.nbytes) // page * page
    if end > begin:
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), 4)  # MADV_DONTNEED
