"""The times of a topic's messages: their own stamps, or the times at which they were logged or published."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ..recording import SourceError
from .bags import Messages
from .batches import Batch, Leaf
from .known import Origin, Span

# A header's stamp farther than this from the log time belongs to another clock, or to none.
_SANE_NS = 10_000_000_000
# Fewer delays have no meaningful median: latched messages are older.
_LEAST_DELAYS = 10
# Seconds that fit int64 nanoseconds, as does their difference from a log time.
_EARLIEST_S, _LATEST_S = -4_600_000_000, 9_000_000_000
# The fields that may hold a message's own time.
_STAMPS = ("header.stamp", "stamp", "timestamp")
OF_TRANSFORMS = "transforms.header.stamp"
_SECONDS = ("sec", "secs", "seconds")
_NANOSECONDS = ("nanosec", "nsecs", "nsec", "nanos", "nanoseconds")


class TopicClock:
    """The clock of one topic of one recording.

    Attributes:
        path: the path of the messages' own stamps, or None.
        source: the clock, after the first pass: `path`, "log_time" or "publish_time".
    """

    def __init__(self, origin: Origin) -> None:
        self.path: str | None = None
        self.source = "log_time"
        self._origin = origin
        self._leaves: Sequence[Leaf] = ()
        self._stamps, self._distance = Span(), Span()
        self._insane = 0
        self._delays: list[np.ndarray] = []  # of a sample of the messages

    def look(self, leaves: Sequence[Leaf], of_transforms: bool) -> None:
        """Finds the stamps among the fields of the type."""
        self._leaves = leaves
        self.path = next((path for path in _STAMPS if stamp_leaves(leaves, path)), None)
        if self.path is None and of_transforms:
            self.path = OF_TRANSFORMS

    def survey(self, batch: Batch, log_ns: np.ndarray, transforms: Leaf | None) -> None:
        """Checks the stamps of messages; for messages of `transforms`, the stamp of each transform."""
        stamps = self.stamps(batch)
        if stamps is None and transforms is not None:
            records, offsets = batch.records(transforms)
            stamps = stamps_of_transforms(records, transforms.fields)
            log_ns = np.repeat(log_ns, np.diff(offsets))
        if stamps is None:
            return
        self._stamps.add(stamps)
        self._distance.add(stamps - log_ns)
        self._delays.append((log_ns - stamps)[:: max(1, len(stamps) // 64)])
        self._insane += int((np.abs(stamps - log_ns) > _SANE_NS).sum())

    def absorb(self, other: TopicClock) -> None:
        """Adds the counts of another clock of the same type."""
        self._stamps.join(other._stamps)
        self._distance.join(other._distance)
        self._delays += other._delays
        self._insane += other._insane

    def settle(self, seen: int) -> None:
        """Chooses the clock; `seen` is the number of messages.

        Raises:
            SourceError: an earlier recording has a clock that is not valid here.
        """
        name, what, known, notes = self._origin.name, self._origin.what, self._origin.known, self._origin.notes
        stamp, path = known.options.stamp, self.path
        if self._origin.exported is not None and stamp == "auto":
            stamp = "log"  # the cache's own stamps; a header may not hold them exactly
        clock = "publish_time" if stamp == "publish" else "log_time"
        if path is not None and self._stamps.low is not None and stamp in ("auto", "header"):
            clock = path
            wrong = []
            if self._stamps.zeros:
                wrong.append(
                    f"zero, or not a time (nanoseconds of a second or more, beyond int64), in {self._stamps.zeros}"
                )
            if self._insane - self._stamps.zeros > 0:
                assert self._distance.low is not None and self._distance.high is not None
                wrong.append(
                    f"more than {_SANE_NS // 10**9} s from the log time in {self._insane}, "
                    f"by {self._distance.low / 1e9:.6g} to {self._distance.high / 1e9:.6g} s"
                )
            if wrong and stamp == "auto":
                clock = "log_time"
                notes.leave_out(
                    f"{what}: {name}: {path} as the clock",
                    f"{' and '.join(wrong)} of {seen} messages; log_time is the clock",
                )
        before = known.clocks.setdefault(name, clock)
        if before != clock and clock == "log_time":
            raise SourceError(
                f"{self._origin.where}: {name}: {path} is no clock here, but is the clock in an earlier recording; "
                "stamp='log' (--stamp log) takes the log times of all"
            )
        self.source = before
        notes.see("clocks", name, before)
        if before in (path, OF_TRANSFORMS):
            notes.leave_out("log and publish times", f"of topics whose clock is {_STAMPS[0]} or a similar field")

    @property
    def delay_s(self) -> float | None:
        """The median time from a message's own stamp, if that is the clock, to its log time; None for few messages."""
        return None if (delays := self._delays_by_stamps()) is None else float(np.median(delays)) / 1e9

    @property
    def delays_s(self) -> tuple[float, float] | None:
        """The 5 % and the 95 % quantile of these times. None for few messages, and for transforms, since several nodes publish them,
        some ahead of time."""
        if (delays := self._delays_by_stamps()) is None or self.path == OF_TRANSFORMS:
            return None
        low, high = np.quantile(delays, (0.05, 0.95)) / 1e9
        return float(low), float(high)

    def _delays_by_stamps(self) -> np.ndarray | None:
        if self.source != self.path or sum(map(len, self._delays)) < _LEAST_DELAYS:
            return None
        return np.concatenate(self._delays)

    def stamps(self, batch: Batch) -> np.ndarray | None:
        """Returns the messages' own stamps, int64 nanoseconds; None if there are none."""
        return None if self.path is None else stamps_of(batch, self._leaves, self.path)

    def times(self, batch: Batch, messages: Messages, bad: Collection[int]) -> np.ndarray:
        """Returns int64 nanoseconds of the decoded messages: all but `bad`."""
        stamps = self.stamps(batch)
        if stamps is not None and self.source == self.path:
            return stamps
        logged = messages.publish_ns if self.source == "publish_time" else messages.log_ns
        time_ns = np.array(logged, np.int64)
        return np.delete(time_ns, list(bad)) if bad else time_ns

    def spent(self) -> set[str]:
        """Returns the paths of the leaves that are the stamp."""
        found = next(filter(None, (stamp_leaves(self._leaves, path) for path in _STAMPS)), ())
        return {leaf.path for leaf in found}


def stamp_leaves(leaves: Sequence[Leaf], path: str) -> tuple[Leaf, Leaf] | None:
    """Returns the leaves of seconds and nanoseconds of the stamp at a path; None if there are none."""
    found = {leaf.path: leaf for leaf in leaves if leaf.path.startswith(f"{path}.") and leaf.dtype is not None}
    seconds = next((found[f"{path}.{name}"] for name in _SECONDS if f"{path}.{name}" in found), None)
    nanoseconds = next((found[f"{path}.{name}"] for name in _NANOSECONDS if f"{path}.{name}" in found), None)
    if seconds is None or nanoseconds is None or "f" in seconds.dtype.kind + nanoseconds.dtype.kind:  # type: ignore[union-attr]
        return None
    return seconds, nanoseconds


def stamps_of_transforms(records: Batch, leaves: Sequence[Leaf]) -> np.ndarray | None:
    """Returns each transform's own stamp: ROS has it in a header, Foxglove directly."""
    stamps = stamps_of(records, leaves, "header.stamp")
    return stamps if stamps is not None else stamps_of(records, leaves, "timestamp")


def stamps_of(batch: Batch, leaves: Sequence[Leaf], path: str) -> np.ndarray | None:
    """Returns the stamps as int64 nanoseconds, also before 1970; 0 for those that do not fit."""
    found = stamp_leaves(leaves, path)
    if found is None or found[0].count is not None or found[1].count is not None:
        return None
    seconds, nanoseconds = (batch.numbers(leaf) for leaf in found)
    # A negative number of nanoseconds that was written as unsigned would make the stamp 4.3 s late.
    held = (seconds >= _EARLIEST_S) & (seconds < _LATEST_S) & (nanoseconds > -(10**9)) & (nanoseconds <= 10**9)
    return np.where(held, seconds, 0).astype(np.int64) * 10**9 + np.where(held, nanoseconds, 0).astype(np.int64)
