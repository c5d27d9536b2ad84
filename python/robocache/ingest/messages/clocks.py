"""Finds the clock of a topic: the messages' own stamps, or the times at which they were logged or published."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ..recording import SourceError
from .bags import Messages
from .batches import Batch, Leaf
from .known import Origin, Span

# A stamp that is farther than this from the log time belongs to another clock, or is no time.
_SANE_NS = 10_000_000_000
# The least number of delays from which a median is taken: latched messages, which are logged late, would decide that of fewer.
_LEAST_DELAYS = 10
# Seconds that fit int64 nanoseconds, as does their difference from a log time.
_EARLIEST_S, _LATEST_S = -4_600_000_000, 9_000_000_000
# The fields that may hold a message's own time.
STAMPS = ("header.stamp", "stamp", "timestamp")
# The path for messages that list transforms, each with its own stamp.
OF_TRANSFORMS = "transforms.header.stamp"
# The names of a stamp's two numbers.
SECONDS = ("sec", "secs", "seconds")
NANOSECONDS = ("nanosec", "nsecs", "nsec", "nanos", "nanoseconds")


class TopicClock:
    """The clock of one topic of one recording.

    Attributes:
        path: the path of the messages' own stamps; None if they have none.
        source: after the first pass, the clock: `path`, "log_time" or "publish_time".
    """

    def __init__(self, origin: Origin) -> None:
        self.path: str | None = None
        self.source = "log_time"
        self._origin = origin
        self._leaves: Sequence[Leaf] = ()
        self._stamps, self._distance = Span(), Span()
        self._insane = 0
        self._delays: list[np.ndarray] = []  # of a sample of the messages

    def look(self, leaves: Sequence[Leaf], has_transforms: bool) -> None:
        """Finds the stamps among the fields of the type."""
        self._leaves = leaves
        self.path = next((path for path in STAMPS if stamp_leaves(leaves, path)), None)
        if self.path is None and has_transforms:
            self.path = OF_TRANSFORMS

    def survey(self, batch: Batch, log_ns: np.ndarray, transforms: Leaf | None) -> None:
        """Examines, in the first pass, the stamps of messages, or of the transforms that they list in the field `transforms`."""
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
        """Adds the counts of another clock, whose messages become part of this stream."""
        self._stamps.join(other._stamps)
        self._distance.join(other._distance)
        self._delays += other._delays
        self._insane += other._insane

    def settle(self, seen: int) -> None:
        """Chooses the clock after the first pass. `seen` is the number of messages.

        Raises:
            SourceError: an earlier recording has a clock that is not valid here.
        """
        name, what, known, notes = self._origin.name, self._origin.what, self._origin.known, self._origin.notes
        stamp, path = known.options.stamp, self.path
        if self._origin.exported is not None and stamp == "auto":
            stamp = "log"  # the log times are the cache's stamps, which a header may not hold exactly
        clock = "publish_time" if stamp == "publish" else "log_time"
        if path is not None and self._stamps.low is not None and stamp in ("auto", "header"):
            clock = path
            reasons = []
            if self._stamps.zeros:
                reasons.append(
                    f"zero, or not a time (nanoseconds of a second or more, beyond int64), in {self._stamps.zeros}"
                )
            if self._insane - self._stamps.zeros > 0:
                assert self._distance.low is not None and self._distance.high is not None
                reasons.append(
                    f"more than {_SANE_NS // 10**9} s from the log time in {self._insane}, "
                    f"by {self._distance.low / 1e9:.6g} to {self._distance.high / 1e9:.6g} s"
                )
            if reasons and stamp == "auto":
                clock = "log_time"
                notes.leave_out(
                    f"{what}: {name}: {path} as the clock",
                    f"{' and '.join(reasons)} of {seen} messages; log_time is the clock",
                )
        first = known.clocks.setdefault(name, clock)
        if first != clock and clock == "log_time":
            raise SourceError(
                f"{self._origin.where}: {name}: {path} is no clock here, but is the clock in an earlier recording; "
                "stamp='log' (--stamp log) takes the log times of all"
            )
        self.source = first
        notes.see("clocks", name, first)
        if first in (path, OF_TRANSFORMS):
            notes.leave_out("log and publish times", f"of topics whose clock is {STAMPS[0]} or a similar field")

    @property
    def delay_s(self) -> float | None:
        """The median time from a message's own stamp to its log time; None if the stamp is not the clock, or for few messages."""
        return None if (delays := self._delays_by_stamps()) is None else float(np.median(delays)) / 1e9

    @property
    def delays_s(self) -> tuple[float, float] | None:
        """The 5 % and the 95 % quantile of the times from a message's own stamp to its log time. None if the stamp is not the clock, for
        few messages, and for transforms, since several nodes publish them, some ahead of time."""
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
        """Returns the times of the decoded messages, int64 nanoseconds. `bad`: the indices in `messages` that are not decoded."""
        stamps = self.stamps(batch)
        if stamps is not None and self.source == self.path:
            return stamps
        logged = messages.publish_ns if self.source == "publish_time" else messages.log_ns
        time_ns = np.array(logged, np.int64)
        return np.delete(time_ns, list(bad)) if bad else time_ns

    def spent(self) -> set[str]:
        """Returns the paths of the leaves that are the stamp, and so become no stream."""
        leaves = next(filter(None, (stamp_leaves(self._leaves, path) for path in STAMPS)), ())
        return {leaf.path for leaf in leaves}


def stamp_leaves(leaves: Sequence[Leaf], path: str) -> tuple[Leaf, Leaf] | None:
    """Returns the leaves with the seconds and the nanoseconds of the stamp at a path; None if there is no such stamp."""
    by_path = {leaf.path: leaf for leaf in leaves if leaf.path.startswith(f"{path}.") and leaf.dtype is not None}
    seconds = next((by_path[f"{path}.{name}"] for name in SECONDS if f"{path}.{name}" in by_path), None)
    nanoseconds = next((by_path[f"{path}.{name}"] for name in NANOSECONDS if f"{path}.{name}" in by_path), None)
    if seconds is None or nanoseconds is None or "f" in seconds.dtype.kind + nanoseconds.dtype.kind:  # type: ignore[union-attr]
        return None
    return seconds, nanoseconds


def stamps_of_transforms(records: Batch, leaves: Sequence[Leaf]) -> np.ndarray | None:
    """Returns each transform's stamp: ROS has it in the transform's header, Foxglove in the transform itself."""
    stamps = stamps_of(records, leaves, "header.stamp")
    return stamps if stamps is not None else stamps_of(records, leaves, "timestamp")


def stamps_of(batch: Batch, leaves: Sequence[Leaf], path: str) -> np.ndarray | None:
    """Returns the stamps at a path as int64 nanoseconds, also those before 1970; 0 for stamps that do not fit int64 or have a second or
    more of nanoseconds. Returns None if there is no such stamp."""
    pair = stamp_leaves(leaves, path)
    if pair is None or pair[0].count is not None or pair[1].count is not None:
        return None
    seconds, nanoseconds = (batch.numbers(leaf) for leaf in pair)
    # A negative number of nanoseconds that was written as unsigned would make the stamp 4.3 s late.
    is_valid = (seconds >= _EARLIEST_S) & (seconds < _LATEST_S) & (nanoseconds > -(10**9)) & (nanoseconds <= 10**9)
    return np.where(is_valid, seconds, 0).astype(np.int64) * 10**9 + np.where(is_valid, nanoseconds, 0).astype(np.int64)
