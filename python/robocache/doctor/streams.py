"""What the checks share: which streams there are, where a row is, and periods and rows a part at a time."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..dataset import Dataset, Stream
from ..ingest import recording

# Rows of a clock that are looked at together.
_STAMPS = 1 << 20
# Of a steady clock, at least this share of the periods is within half of the median.
_STEADY = 0.8
_GAP = 1.5


@dataclass
class Clock:
    """The stamps of one stream.

    Attributes:
        stream: whose.
        period_ns: the median period; 0 where there is none.
    """

    stream: Stream

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
    def _tempo(self) -> tuple[bool, float, np.ndarray, np.ndarray]:
        """Whether it is steady, the lost time, and by episode the number and the sum of periods near the median."""
        episodes = len(self.rows)
        number, total = np.zeros(episodes, np.int64), np.zeros(episodes)
        moving, lost = 0, 0.0
        for first, periods in self.periods():
            gap = periods > _GAP * self.period_ns
            lost += float((periods[gap] - self.period_ns).sum())
            moving += int(np.count_nonzero(periods > 0))
            near = np.flatnonzero(np.abs(periods - self.period_ns) <= 0.5 * self.period_ns)
            episode = self.episode_of(first + near)
            number += np.bincount(episode, minlength=episodes)
            total += np.bincount(episode, periods[near], minlength=episodes)
        steady = self.period_ns > 0 and moving >= 2 and bool(number.sum() >= _STEADY * moving)
        return steady, lost, number, total

    @property
    def steady(self) -> bool:
        """Whether it ticks at one rate, so that a gap is one."""
        return self._tempo[0]

    @property
    def lost_ns(self) -> float:
        """What gaps are longer than a period, together."""
        return self._tempo[1]

    @property
    def regular(self) -> tuple[np.ndarray, np.ndarray]:
        """By episode the number of periods within half of the median, and their sum in ns."""
        return self._tempo[2], self._tempo[3]

    @property
    def true_rate_hz(self) -> float:
        """Rows a second, gaps and bursts aside; 0.0 where there is none. Of coarse stamps it is nearer than the median's."""
        number, total = self.regular
        return float(1e9 * number.sum() / total.sum()) if total.sum() > 0 else 0.0

    def periods(self) -> Iterator[tuple[int, np.ndarray]]:
        """The first row and float64 ``[n]`` periods, each from its row to the next; NaN from one episode to the next."""
        time, offsets = self.stream.time_ns, self.stream.row_offsets
        for first in range(0, self.stream.rows - 1, _STAMPS):
            # The difference in integers: stamps since 1970 are beyond what float64 tells apart.
            periods = np.diff(time[first : first + _STAMPS + 1]).astype(np.float64)
            low, high = np.searchsorted(offsets, [first + 1, first + len(periods) + 1])
            periods[offsets[low:high] - first - 1] = np.nan
            yield first, periods

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
    """

    dataset: Dataset
    splits: dict[str, list[int]]

    @cached_property
    def clocks(self) -> dict[str, Clock]:
        return {name: Clock(stream) for name, stream in self.dataset.streams.items()}

    @cached_property
    def sensors(self) -> dict[str, Clock]:
        """Streams that are sampled: numbers, clouds and frames; text comes when it comes."""
        return {name: clock for name, clock in self.clocks.items() if clock.stream.kind != "text"}

    @cached_property
    def distinct(self) -> dict[str, Clock]:
        """Of sensors that share one clock the first: what is wrong with it is told once."""
        return {name: self.sensors[name] for name in self._shared}

    @cached_property
    def _shared(self) -> dict[str, list[str]]:
        """By the first sensor on a clock, the others on it."""
        found: dict[str, list[str]] = {}
        for name, clock in self.sensors.items():
            one = next((one for one in found if _same_clock(self.sensors[one].stream, clock.stream)), None)
            if one is None:
                found[name] = []
            else:
                found[one].append(name)
        return found

    def also(self, name: str) -> str:
        """What is added to a message about a clock that several streams share."""
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

    def declared_rate_hz(self, stream: Stream) -> float | None:
        """What the source says that the stream's rate is."""
        source = self.dataset.provenance.get(self.dataset.provenance.get("format") or "", {})
        of_source = source.get("fps") if isinstance(source, dict) else None
        told = stream.attributes
        for rate in (told.get("rate_hz"), told.get("fps"), of_source):
            if isinstance(rate, int | float) and rate > 0:
                return float(rate)
        return None


def _same_clock(one: Stream, other: Stream) -> bool:
    return (
        one.rows == other.rows
        and one.findings["period_ns"] == other.findings["period_ns"]
        and np.array_equal(one.row_offsets, other.row_offsets)
        and np.array_equal(one.time_ns, other.time_ns)
    )


def feature_names(stream: Stream, features: list[int], limit: int = 6) -> str:
    """ "wrist, feature 3 and 2 more"."""
    named = [stream.names[f] if f < len(stream.names) else f"feature {f}" for f in features[:limit]]
    more = f" and {len(features) - limit} more" if len(features) > limit else ""
    return ", ".join(named) + more


def ranges(numbers: list[int]) -> str:
    """The first of them, as "1-3, 7"."""
    return recording.ranges(numbers, limit=12)


_libc = ctypes.CDLL(None, use_errno=True)


def forget(array: np.ndarray) -> None:
    """Lets go of the memory that a mapped, contiguous array took when it was read; the file has it."""
    page = mmap.PAGESIZE
    begin = -(-array.ctypes.data // page) * page
    end = (array.ctypes.data + array.nbytes) // page * page
    if end > begin:
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), 4)  # MADV_DONTNEED
