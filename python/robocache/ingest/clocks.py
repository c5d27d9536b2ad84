"""Finds stamps that step back or are unset, in every recording, and repairs them only by a policy.

A stream's rows come part by part in the source's order. :class:`Order` checks each recording's streams before they are
written; :func:`shift` adds the user's offset to all stamps of a stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np

from .. import frames
from ..errors import ArgumentError, ArgumentTypeError
from .recording import Frames, Ragged, Rows, Samples, Texts

Policy = Literal["sort", "drop", "split"]
POLICIES = ("sort", "drop", "split")
# The column of the episodes table in which the policy "split" numbers the runs of a recording. It is not named `split`, because
# datasets have a column of that name.
RUN_COLUMN = "clock_run"
# The most bytes of a recording that are held in memory, if its rows cannot be written as they come.
HELD_BYTES = 512 << 20
# Sorted rows are written in pieces of this many bytes.
_PIECE_BYTES = 8 << 20

_INT64_MIN, _INT64_MAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max
# Stamps that recorders write for "no time". The ends of int64 always mean that; 0 and -1 mean it in a stream with stamps since 2001.
_NEVER = {_INT64_MIN: "-2^63", _INT64_MAX: "2^63-1"}
_UNSET = {0: "0", -1: "-1"}
_SINCE_2001_NS = 10**18

_WAYS_OUT = (
    "repair='sort' (--repair sort) sorts its rows by time, 'drop' leaves out rows before the latest stamp, "
    "'split' begins an episode at the step"
)


def offset_ns(stream: str, seconds: Any) -> int:
    """Converts seconds by their decimal digits to whole nanoseconds, so 0.1 is 100000000."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | str | Decimal):
        raise ArgumentTypeError(f"offsets[{stream!r}]: expected seconds, got {seconds!r}")
    try:
        ns = Decimal(str(seconds)).scaleb(9)
        if ns == ns.to_integral_value() and abs(ns) <= _INT64_MAX:
            return int(ns)
    except InvalidOperation:
        pass
    raise ArgumentError(f"offsets[{stream!r}]: expected seconds in whole nanoseconds within int64, got {seconds!r}")


def shift(name: str, samples: Samples, ns: int) -> Samples:
    """Returns the samples with `ns` added to every stamp."""
    time_ns = stamps(samples)
    if len(time_ns) and not _INT64_MIN <= int(time_ns.min()) + ns <= int(time_ns.max()) + ns <= _INT64_MAX:
        raise ArgumentError(f"stream {name!r}: an offset of {ns} ns leads out of int64 nanoseconds")
    return _replace_stamps(samples, time_ns + ns)


# ---- parts ----


def split_chunks(samples: Samples) -> Iterator[Samples]:
    """Yields frames chunk by chunk, each as Frames of one chunk. Yields frames without a chunk, and other samples, as they are."""
    if not isinstance(samples, Frames):
        yield samples
        return
    is_empty = True
    for chunk in samples.chunks:
        is_empty = False
        yield replace(samples, chunks=[chunk])
    if is_empty:
        yield replace(samples, chunks=[])


def stamps(samples: Samples) -> np.ndarray:
    """Returns the stamps of a part, int64 ``[n]``. They are empty if the part has another type of stamps: the writer then refuses it."""
    if isinstance(samples, Frames):
        time_ns = next(iter(samples.chunks), (np.empty(0, np.int64), None))[0]
    else:
        time_ns = samples.time_ns
    if isinstance(time_ns, np.ndarray) and time_ns.dtype == np.int64 and time_ns.ndim == 1:
        return time_ns
    return np.empty(0, np.int64)


def _replace_stamps(samples: Samples, time_ns: np.ndarray) -> Samples:
    if isinstance(samples, Frames):
        return replace(samples, chunks=[(time_ns, images) for _, images in samples.chunks])
    return replace(samples, time_ns=time_ns)


def _take(samples: Samples, rows: np.ndarray) -> Samples:
    """Returns the given rows of a part; `rows` is int64 ``[m]``."""
    match samples:
        case Rows(time_ns=time_ns, values=values):
            return replace(samples, time_ns=time_ns[rows], values=values[rows])
        case Texts(time_ns=time_ns, texts=texts):
            return replace(samples, time_ns=time_ns[rows], texts=[texts[row] for row in rows])
        case Ragged(time_ns=time_ns, values=values, offsets=offsets):
            elements, new_offsets = _gather(offsets, rows)
            return replace(samples, time_ns=time_ns[rows], values=values[elements], offsets=new_offsets)
        case Frames():
            ((time_ns, images),) = samples.chunks
            return replace(samples, chunks=[(time_ns[rows], _take_images(images, rows))])


def _take_images(images: Any, rows: np.ndarray) -> Any:
    if isinstance(images, list):
        return [images[row] for row in rows]
    if not isinstance(images, frames.Encoded):
        return images[rows]
    if len(images.offsets) == 0:  # raw
        size = int(np.prod(images.shape)) * images.dtype.itemsize
        return images._replace(data=images.data.reshape(-1, size)[rows].reshape(-1))
    elements, offsets = _gather(images.offsets, rows)
    return images._replace(data=images.data[elements], offsets=offsets)


def _gather(offsets: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices of the elements of the given rows, and the offsets of these rows when the elements are taken."""
    lengths = np.diff(offsets)[rows]
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    elements = np.arange(ends[-1]) + np.repeat(np.asarray(offsets)[rows] - ends[:-1], lengths)
    return elements, ends


def _encode(samples: Samples) -> Samples:
    """Encodes frames in their codec, which makes them small, and leaves other samples as they are."""
    if not isinstance(samples, Frames) or not samples.chunks:
        return samples
    ((time_ns, images),) = samples.chunks
    if isinstance(images, list):
        images = frames.take(images)
    elif isinstance(images, np.ndarray):
        images = frames.encode(images, samples.codec, samples.quality)
    return replace(samples, chunks=[(time_ns, images)])


def _join(parts: list[Samples]) -> Samples:
    """Joins parts of one stream. :func:`_kind` must be equal for all."""
    first = parts[0]
    if len(parts) == 1:
        return first
    time_ns = np.concatenate([stamps(part) for part in parts])
    match first:
        case Rows():
            return replace(first, time_ns=time_ns, values=np.concatenate([cast(Rows, part).values for part in parts]))
        case Texts():
            return replace(first, time_ns=time_ns, texts=[text for part in parts for text in cast(Texts, part).texts])
        case Ragged():
            clouds = [cast(Ragged, part) for part in parts]
            return replace(
                first,
                time_ns=time_ns,
                values=np.concatenate([cloud.values for cloud in clouds]),
                offsets=_join_offsets([cloud.offsets for cloud in clouds]),
            )
        case Frames():
            images = [cast(frames.Encoded, next(iter(cast(Frames, part).chunks))[1]) for part in parts]
            data = np.concatenate([encoded.data for encoded in images])
            offsets = images[0].offsets
            if len(offsets):
                offsets = _join_offsets([encoded.offsets for encoded in images])
            return replace(first, chunks=[(time_ns, images[0]._replace(data=data, offsets=offsets))])


def _join_offsets(offsets: list[np.ndarray]) -> np.ndarray:
    lengths = np.concatenate([np.diff(part) for part in offsets])
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _kind(samples: Samples) -> tuple[Any, ...]:
    """Returns the properties that parts of a stream must have in common to be joined."""
    match samples:
        case Rows(values=values) | Ragged(values=values):
            return type(samples).__name__, values.dtype, values.shape[1:]
        case Frames():
            images = cast(frames.Encoded, next(iter(samples.chunks))[1])
            return "Frames", images.codec, images.dtype, images.shape
        case Texts():
            return ("Texts",)


def _size(samples: Samples) -> int:
    match samples:
        case Rows(time_ns=time_ns, values=values) | Ragged(time_ns=time_ns, values=values):
            return time_ns.nbytes + values.nbytes
        case Texts(texts=texts):
            return sum(map(len, texts)) + 64 * len(texts)
        case Frames():
            return sum(_size_of_images(images) for _, images in samples.chunks)


def _size_of_images(images: Any) -> int:
    if isinstance(images, list):
        return sum(map(len, images))
    return int(images.data.nbytes if isinstance(images, frames.Encoded) else images.nbytes)


# ---- order ----


@dataclass
class _Clock:
    """The clock of a stream of the recording, up to the current part.

    rows: the number of rows so far.
    last: the stamp of the last row; with the policy "drop", the latest stamp of all rows.
    real: the first stamp that is surely a time; None until one came.
    run: the number of the current run, from 0; each step back begins another run.
    source_run: the number that the source gives the current run; 0 if it gives none.
    doubtful: stamps at the beginning that may be unset.
    waiting: the parts at the beginning whose stamps may be unset, with the policy "drop", which then drops their rows.
    held: the parts that are sorted at the end, with the policy "sort".
    """

    rows: int = 0
    last: int = _INT64_MIN
    real: int | None = None
    run: int = 0
    source_run: int = 0
    doubtful: list[np.ndarray] = field(default_factory=list)
    waiting: list[Samples] = field(default_factory=list)
    held: list[Samples] = field(default_factory=list)


class Order:
    """Checks the order of the stamps in the streams of one recording, and repairs it by the policy.

    Attributes:
        repaired: for each repaired stream, the counts of ``backward_steps``, and of ``rows_moved`` (sort), of ``rows_dropped``, among
            them those with ``stamps_unset`` (drop), or of ``episodes`` (split).
    """

    def __init__(self, repair: Policy | None) -> None:
        self.repaired: dict[str, dict[str, int]] = {}
        self._repair = repair
        self._clocks: dict[str, _Clock] = {}
        self._bytes = 0

    def take(self, name: str, samples: Samples) -> Iterator[tuple[int, Samples]]:
        """Takes the next part of a stream; frames come as one chunk. Yields the parts that can be written now, each with the
        number of its episode.

        Raises:
            ArgumentError: the policy does not repair a step back or an unset stamp, or the held rows need too much memory.
        """
        clock = self._clocks.setdefault(name, _Clock())
        time_ns = stamps(samples)
        if len(time_ns) == 0:
            yield 0, samples
            return
        if self._repair == "split" and samples.run != clock.source_run:
            self._count(name, backward_steps=int(time_ns[0] < clock.last))
            clock.run += samples.run - clock.source_run
            clock.source_run, clock.last = samples.run, _INT64_MIN
        if self._repair != "sort" and _is_in_order(clock, time_ns):
            clock.last = int(time_ns[-1])
            clock.rows += len(time_ns)
            yield clock.run, samples
            return
        if clock.real is None:
            real = time_ns[~_equals_any(time_ns, (*_NEVER, *_UNSET))]
            if len(real):
                clock.real = int(real[0])
                self._refuse_unset(name, np.concatenate([*clock.doubtful, time_ns]), 0, clock.real)
            elif self._repair == "drop":
                clock.waiting.append(self.hold(name, samples))
                return
            else:
                clock.doubtful.append(time_ns)
        waiting, clock.waiting = clock.waiting, []
        for part in (*waiting, samples):
            yield from self._repair_part(name, part, clock)

    def end(self) -> Iterator[tuple[str, int, Samples]]:
        """Yields the rows that were held back.

        Raises:
            ArgumentError: the streams were split into unequal numbers of episodes.
        """
        for name, clock in self._clocks.items():
            for part in clock.waiting:
                for episode, ready in self._repair_part(name, part, clock):
                    yield name, episode, ready
        runs = {name: clock.run + 1 for name, clock in self._clocks.items() if clock.rows}
        steps_back = {clock.run - clock.source_run for clock in self._clocks.values() if clock.rows}
        if len(steps_back) > 1 or (any(steps_back) and any(clock.source_run for clock in self._clocks.values())):
            counts = ", ".join(f"{name!r} {count}" for name, count in runs.items())
            raise ArgumentError(
                f"repair='split' (--repair split) expects all streams of a recording to step back equally often, got these numbers of runs: {counts}"
            )
        for name, count in runs.items():
            if count > 1:
                self._count(name, episodes=count)
        for name, clock in self._clocks.items():
            if clock.held:
                for part in self._sort(name, clock):
                    yield name, 0, part

    def hold(self, name: str, samples: Samples) -> Samples:
        """Encodes the frames of a part that is held in memory, and counts its bytes.

        Raises:
            ArgumentError: the held parts of the recording need too much memory.
        """
        samples = _encode(samples)
        self._bytes += _size(samples)
        if self._bytes > HELD_BYTES:
            raise ArgumentError(
                f"stream {name!r}: more than {HELD_BYTES >> 20} MiB of the recording would have to be held in memory"
                f"{f' for repair={self._repair!r}' if self._repair else ''}"
            )
        return samples

    def _repair_part(self, name: str, samples: Samples, clock: _Clock) -> Iterator[tuple[int, Samples]]:
        time_ns = stamps(samples)
        first_row, last = clock.rows, clock.last
        self._refuse_unset(name, time_ns, first_row, clock.real)
        clock.rows, clock.last = first_row + len(time_ns), int(time_ns[-1])
        before = np.concatenate([[last], time_ns[:-1]])
        steps = np.flatnonzero(time_ns < before)
        if self._repair == "sort":
            self._count(name, backward_steps=len(steps))
            held = self.hold(name, samples)
            if clock.held and _kind(held) != _kind(clock.held[0]):
                raise ArgumentError(f"stream {name!r}: rows of {_kind(held)}, but before it {_kind(clock.held[0])}")
            clock.held.append(held)
            return
        if self._repair == "drop":
            unset = _find_unset(time_ns, clock.real)
            latest = np.maximum.accumulate(np.concatenate([[last], np.where(unset, _INT64_MIN, time_ns)]))
            late = time_ns < latest[:-1]
            clock.last = int(latest[-1])
            if not (late | unset).any():
                yield 0, samples
                return
            self._count(
                name,
                backward_steps=len(steps),
                rows_dropped=int(np.count_nonzero(late | unset)),
                stamps_unset=int(np.count_nonzero(unset)),
            )
            rows = np.flatnonzero(~(late | unset))
            if len(rows):
                yield 0, _take(samples, rows)
            return
        if len(steps) and self._repair is None:
            row, later, earlier = first_row + int(steps[0]), int(time_ns[steps[0]]), int(before[steps[0]])
            raise ArgumentError(
                f"stream {name!r}: row {row} is at {later} ns, the row before it at {earlier} ns: "
                f"a step back of {(earlier - later) / 1e9:.9g} s; {_WAYS_OUT}"
            )
        self._count(name, backward_steps=len(steps))
        bounds = [0, *steps.tolist(), len(time_ns)]
        for number, (begin, end) in enumerate(pairwise(bounds)):
            clock.run += number > 0
            if begin < end:
                is_whole = end - begin == len(time_ns)
                yield clock.run, samples if is_whole else _take(samples, np.arange(begin, end))

    def _refuse_unset(self, name: str, time_ns: np.ndarray, first_row: int, real: int | None) -> None:
        unset = _find_unset(time_ns, real)
        if self._repair == "drop" or not unset.any():
            return
        row = int(np.flatnonzero(unset)[0])
        labels = {**_NEVER, **_UNSET}
        values, counts = np.unique(time_ns[unset], return_counts=True)
        all_unset = ", ".join(
            f"{labels[int(value)]} in {count} rows" for value, count in zip(values, counts, strict=True)
        )
        raise ArgumentError(
            f"stream {name!r}: row {first_row + row} is at {labels[int(time_ns[row])]} ns, which is no time beside stamps such as "
            f"{real} ns ({all_unset}); repair='drop' (--repair drop) leaves out such rows"
        )

    def _sort(self, name: str, clock: _Clock) -> Iterator[Samples]:
        parts, clock.held = clock.held, []
        joined = _join(parts)
        time_ns = stamps(joined)
        size = _size(joined)
        self._bytes -= size
        parts.clear()
        order = np.argsort(time_ns, kind="stable")
        self._count(name, rows_moved=int(np.count_nonzero(order != np.arange(len(order)))))
        step = max(1, _PIECE_BYTES * len(order) // max(1, size))
        for begin in range(0, len(order), step):
            yield _take(joined, order[begin : begin + step])

    def _count(self, name: str, **counts: int) -> None:
        if any(counts.values()):
            add_counts(self.repaired, {name: counts})


def _is_in_order(clock: _Clock, time_ns: np.ndarray) -> bool:
    """Whether all stamps of a part are set and none steps back. Sets `clock.real` if so. Most parts need no more than this quick check.

    time_ns: at least one stamp.
    """
    first, last = int(time_ns[0]), int(time_ns[-1])
    if clock.waiting or clock.doubtful or not max(0, clock.last) <= first or not 0 < last < _INT64_MAX:
        return False
    if np.count_nonzero(time_ns[1:] < time_ns[:-1]):
        return False
    real = clock.real
    if real is None:
        real = first or int(time_ns[time_ns.searchsorted(1)])  # 0 may be unset: the first stamp above it is a time
    if first == 0 and real >= _SINCE_2001_NS:
        return False
    clock.real = real
    return True


def _find_unset(time_ns: np.ndarray, real: int | None) -> np.ndarray:
    """Returns which stamps are unset, bool ``[n]``, given `real`, a stamp that is set."""
    if real is None:
        return np.zeros(len(time_ns), bool)
    return _equals_any(time_ns, (*_NEVER, *(_UNSET if real >= _SINCE_2001_NS else ())))


def _equals_any(time_ns: np.ndarray, values: Sequence[int]) -> np.ndarray:
    """Returns which stamps equal one of the values, bool ``[n]``. numpy.isin takes ten times as long for so few values."""
    is_equal: np.ndarray = time_ns == values[0]
    for value in values[1:]:
        is_equal |= time_ns == value
    return is_equal


def add_counts(total: dict[str, dict[str, int]], counts: Mapping[str, Mapping[str, int]]) -> None:
    """Adds the repairs of a recording to a total."""
    for name, repairs in counts.items():
        sums = total.setdefault(name, {})
        for repair, count in repairs.items():
            if count:
                sums[repair] = sums.get(repair, 0) + count
