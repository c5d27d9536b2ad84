"""Checks of numbers, in one pass over each stream: NaN, limits, stuck sensors, spikes and steps, rotations, statistics."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..dataset import Dataset, Stream
from .report import Finding
from .streams import Clock, Survey, feature_names, forget

# Elements that are looked at together, and rows at most.
_ELEMENTS, _ROWS, _BLOCK, _DOT = 1 << 22, 1 << 15, 1 << 8, 1 << 13
STUCK_ROWS, STUCK_S = 20, 1.0  # a value that is repeated for both
STUCK_ELSEWHERE, STUCK_EPISODES = (
    0.05,
    0.1,
)  # in a column that repeats in no more of its other rows, nor in more episodes
MOVING = 0.5  # of the rows in which what counts as moving changes
# A jump is against the 99th percentile of the column's steps; in a column that has more of them than this they are its nature.
JUMP, JUMPS_AN_EPISODE, JUMP_ROWS = 10.0, 0.5, 100
JUMP_RANGE = 0.2  # and against all that the column spans
SPIKE_RETURN = 0.2  # of a spike, how near to where it was the next row is
QUATERNION_NORM, QUATERNION_FLIP = 0.01, -0.5
STATS_TOLERANCE = 1e-5
_RUNS = 1000
_QUATERNION = re.compile(r"(?i)^(.*?)(?:quat(?:ernion)?|q|rotation|orientation|rot)?[._]?q?([wxyz])$")


@dataclass
class Column:
    """What a pass over one feature of a stream adds up.

    Attributes:
        still: rows with the value of the row before.
        runs: (first row, one behind the last row) of long repetitions.
        jumps: (row, what) of steps and spikes.
    """

    thresholds: list[tuple[Any, Any]]
    floating: bool
    number: int = 0
    total: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    ranks: list[list[int]] = field(default_factory=lambda: [[0, 0] for _ in range(5)])
    still: int = 0
    run: int = 0
    runs: list[tuple[int, int]] = field(default_factory=list)
    jumps: list[tuple[int, str, float]] = field(default_factory=list)


@dataclass
class Scan:
    """What a pass over a stream found.

    Attributes:
        bad: by (episode, "nan" or "infinite"): number, first row, features.
        centres: about each feature's mean; sums are of what is left.
        outside: by feature: number, first row of those outside of the limits, the worst value.
        norms, flips: of each block of a quaternion: number, first row, worst value.
    """

    stream: Stream
    clock: Clock
    columns: list[Column]
    centres: np.ndarray
    bad: dict[tuple[int, str], tuple[int, int, set[int]]] = field(default_factory=dict)
    outside: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    norms: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    flips: dict[int, tuple[int, int, float]] = field(default_factory=dict)


def check_values(survey: Survey) -> Iterator[Finding]:
    """Everything that a pass over the numbers finds."""
    scans = [scan(stream, survey) for stream in survey.numbers if stream.rows]
    for of_stream in scans:
        yield from _not_finite(of_stream)
        yield from _constant(of_stream)
        yield from _outside(of_stream)
        yield from _stuck(of_stream, survey)
        yield from _jumps(of_stream)
        yield from _rotations(of_stream)
        yield from _statistics(of_stream, survey.dataset)


def check_arrays(survey: Survey) -> Iterator[Finding]:
    """Ragged rows without an element, where most have some."""
    for stream in survey.dataset.streams.values():
        if stream.kind != "arrays" or stream.offsets is None:
            continue
        empty = np.flatnonzero(np.diff(stream.offsets) == 0)
        if 0 < len(empty) < stream.rows / 2:
            yield Finding(
                "note",
                "empty-rows",
                f"{len(empty)} of {stream.rows} rows hold nothing",
                **survey.clocks[stream.name].place(int(empty[0])),
                count=len(empty),
                value=len(empty) / stream.rows,
                expected=0.0,
                advice="A scan that saw nothing, or one that was lost: an operation on points gives an empty grid of it.",
            )


# ---- the pass ----


def scan(stream: Stream, survey: Survey) -> Scan:
    """One pass over a stream of numbers, a few MB at a time."""
    features = math.prod(stream.shape)
    stats = [np.ravel(x) for x in survey.dataset.stats[stream.name]]
    of_dtype = stream.dtype
    floating = of_dtype.kind not in "biu"
    work = of_dtype if of_dtype in (np.float32, np.float64) else np.dtype(np.float32 if floating else np.float64)
    columns = [Column([_threshold(stats[4 + q][f], work) for q in range(5)], floating) for f in range(features)]
    centres = np.nan_to_num(stats[0], posinf=0, neginf=0).astype(work)
    found = Scan(stream, survey.clocks[stream.name], columns, centres)
    blocks, bounds = quaternions(stream) if floating else [], limits(stream)
    rows = min(max(_ELEMENTS // max(features, 1), 1), _ROWS)
    for begin in range(0, stream.rows, rows):
        end = min(begin + rows, stream.rows)
        ahead = min(begin, 1)  # the row before is there for what is between rows
        part = stream.values[begin - ahead : end]
        table = _columns(part.reshape(len(part), features), work)
        forget(part)
        low, high = np.searchsorted(stream.row_offsets, [begin, end])
        cuts = np.unique(stream.row_offsets[low:high]) - begin  # rows of this part that begin an episode
        for f, column in enumerate(columns):
            with np.errstate(over="ignore", invalid="ignore"):  # what is no number or too large is found, not warned of
                finite = _add(column, table[f], ahead, begin, cuts, centres[f])
            if not finite:
                _add_bad(found, table[f, ahead:], begin, f)
        for block in blocks:
            _add_rotations(found, block, table[block : block + 4], ahead, begin, cuts)
        if bounds is not None:
            _add_outside(found, table[:, ahead:], begin, bounds)
    for column in columns:
        _end_run(column, stream.rows)
    return found


def _columns(rows: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """``[features, rows]``, each feature's values side by side; by blocks that stay in the processor's cache."""
    table = np.empty(rows.shape[::-1], dtype)
    for at in range(0, len(rows), _BLOCK):
        table[:, at : at + _BLOCK] = rows[at : at + _BLOCK].T
    return table


def _threshold(value: float, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The least number of the dtype that is not below, and the largest that is not above: to compare without float64."""
    near = dtype.type(value)
    up = near if near >= value else np.nextafter(near, dtype.type(np.inf))
    down = near if near <= value else np.nextafter(near, dtype.type(-np.inf))
    return up, down


def _add(column: Column, x: np.ndarray, ahead: int, begin: int, cuts: np.ndarray, centre: Any) -> bool:
    """Returns whether all values are finite numbers."""
    new = x[ahead:]
    centred = new - centre
    total = float(centred.sum())
    finite = math.isfinite(total)
    if not finite:
        new = new[~np.isnan(new)]
        centred = new - centre
        total = float(centred.sum())
    if len(new):
        column.number += len(new)
        column.total += total
        # In parts of which a BLAS makes no work for threads: they would cost more than they save.
        for at in range(0, len(centred), _DOT):
            column.squares += float(np.dot(centred[at : at + _DOT], centred[at : at + _DOT]))
        column.low, column.high = min(column.low, float(new.min())), max(column.high, float(new.max()))
        for rank, (up, down) in zip(column.ranks, column.thresholds, strict=True):
            below = int(np.count_nonzero(new < up))
            rank[0] += below
            rank[1] += below if down < up else int(np.count_nonzero(new <= down))  # there is nothing between them
    with np.errstate(invalid="ignore", over="ignore"):
        step = np.diff(x)
    first = begin - ahead + 1  # the row that step[0] leads to
    inside = cuts - 1 + ahead
    inside = inside[inside >= 0]
    changed = step != 0
    changed[inside] = True
    _add_still(column, changed, first)
    if column.floating and len(step) >= JUMP_ROWS:
        step[inside] = 0
        _add_jumps(column, step, first)
    return finite


def _add_still(column: Column, changed: np.ndarray, first: int) -> None:
    still = len(changed) - int(np.count_nonzero(changed))
    column.still += still
    if still == 0:
        if len(changed):
            _end_run(column, first)
            column.run = first + len(changed) - 1
        return
    at = np.flatnonzero(changed) + first
    if len(at):
        _end_run(column, int(at[0]))
        for place in np.flatnonzero(np.diff(at) >= STUCK_ROWS).tolist():
            column.run = int(at[place])
            _end_run(column, int(at[place + 1]))
        column.run = int(at[-1])


def _end_run(column: Column, end: int) -> None:
    if end - column.run >= STUCK_ROWS and len(column.runs) <= _RUNS:
        column.runs.append((column.run, end))


def _add_jumps(column: Column, step: np.ndarray, first: int) -> None:
    size = np.abs(step)
    total = float(size.sum())
    if not math.isfinite(total):
        step = np.nan_to_num(step, nan=0, posinf=0, neginf=0)
        size = np.abs(step)
        total = float(size.sum(dtype=np.float64))
    # Where the largest is JUMP times the 99th percentile, the mean is at most this part of it: a look that costs little.
    if float(size.max()) * (0.99 / JUMP + 0.01) * len(size) < total or len(column.jumps) > _RUNS:
        return
    moved = size[size > 0]
    if len(moved) < JUMP_ROWS or len(moved) < MOVING * len(size):
        return
    bound = JUMP * float(np.partition(moved, int(0.99 * (len(moved) - 1)))[int(0.99 * (len(moved) - 1))])
    at = np.flatnonzero(size > bound)
    spiked = -1
    for place in at.tolist():
        if place == spiked + 1 and spiked >= 0:
            continue  # the way back
        there = float(step[place])
        back = float(step[place + 1]) if place + 1 < len(step) else 0.0
        if abs(back) > bound and abs(there + back) < SPIKE_RETURN * abs(there):
            column.jumps.append((first + place, "spike", there))
            spiked = place
        elif any(abs(abs(there) / turn - 1) < 0.05 for turn in (2 * math.pi, 360.0)):
            column.jumps.append((first + place, "wrap", there))
        else:
            column.jumps.append((first + place, "step", there))


def _add_bad(found: Scan, new: np.ndarray, begin: int, feature: int) -> None:
    for code, mask in (("nan", np.isnan(new)), ("infinite", np.isinf(new))):
        rows = np.flatnonzero(mask) + begin
        for episode, number in zip(*np.unique(found.clock.episode_of(rows), return_counts=True), strict=True):
            within = rows[rows >= found.stream.row_offsets[episode]][0]
            before, first, features = found.bad.get((int(episode), code), (0, int(within), set()))
            found.bad[int(episode), code] = (before + int(number), min(first, int(within)), features | {feature})


def _add_rotations(found: Scan, block: int, q: np.ndarray, ahead: int, begin: int, cuts: np.ndarray) -> None:
    wide = q.astype(np.float64)
    off = np.abs(np.sqrt((wide[:, ahead:] ** 2).sum(0)) - 1)
    _tell(found.norms, block, off > QUATERNION_NORM, off, begin)
    dots = (wide[:, 1:] * wide[:, :-1]).sum(0)
    first = begin - ahead + 1
    starts = cuts + begin - first
    dots[starts[starts >= 0]] = 1
    _tell(found.flips, block, dots < QUATERNION_FLIP, -dots, first)


def _add_outside(found: Scan, table: np.ndarray, begin: int, bounds: tuple[np.ndarray, np.ndarray]) -> None:
    for f, (low, high) in enumerate(zip(*bounds, strict=True)):
        beyond = np.maximum(low - table[f], table[f] - high)
        _tell(found.outside, f, beyond > 0, beyond, begin)


def _tell(into: dict[int, tuple[int, int, float]], key: int, mask: np.ndarray, size: np.ndarray, begin: int) -> None:
    number = int(np.count_nonzero(mask))
    if number:
        before, first, worst = into.get(key, (0, begin + int(np.argmax(mask)), 0.0))
        into[key] = (before + number, first, max(worst, float(size[mask].max())))


# ---- what it says of a stream ----


def quaternions(stream: Stream) -> list[int]:
    """The first features of the quaternions in a row: by the methods that the source names, or by features' names."""
    blocks = set()
    for start, stop, method in _methods(stream):
        if method == "slerp" and stop - start == 4:
            blocks.add(start)
        elif method == "pose" and stop - start == 7:
            blocks.add(start + 3)
    for f in range(len(stream.names) - 3):
        parts = [_QUATERNION.match(name) for name in stream.names[f : f + 4]]
        if all(parts):
            letters = "".join(part[2].lower() for part in parts if part)
            stems = {part[1] for part in parts if part}
            if letters in ("wxyz", "xyzw") and len(stems) == 1:
                blocks.add(f)
    return sorted(blocks)


def _methods(stream: Stream) -> Iterator[tuple[int, int, str]]:
    """What the attribute `methods` says, as far as it is of the form that it should have."""
    told = stream.attributes.get("methods")
    for block in told if isinstance(told, list) else []:
        whole = isinstance(block, list) and len(block) == 3 and all(isinstance(x, int) for x in block[:2])
        if whole and 0 <= block[0] <= block[1] <= math.prod(stream.shape):
            yield block[0], block[1], str(block[2])


def limits(stream: Stream) -> tuple[np.ndarray, np.ndarray] | None:
    """float64 ``[features]`` twice: what the attribute `limits` says: [low, high], each a number or a list of one a feature."""
    told = stream.attributes.get("limits")
    features = math.prod(stream.shape)
    try:
        low, high = (np.broadcast_to(np.asarray(bound, np.float64).ravel(), features) for bound in told or ())
    except (TypeError, ValueError):
        return None
    return low, high


# ---- findings ----


def _not_finite(of: Scan) -> Iterator[Finding]:
    empty = {f for f, column in enumerate(of.columns) if not column.number}
    if empty:
        yield Finding(
            "warning",
            "no-values",
            f"nothing but NaN: {feature_names(of.stream, sorted(empty))}",
            stream=of.stream.name,
            count=len(empty),
            advice="The source has the column and never filled it: leave it out.",
        )
    for (_, code), (number, row, features) in of.bad.items():
        if features <= empty:
            continue
        told = sorted(features - empty)
        what = "NaN" if code == "nan" else "infinite"
        yield Finding(
            "error",
            f"{code}-value" if code == "infinite" else "nan",
            f"{number} {what} value{'s' * (number != 1)} from this row on: {feature_names(of.stream, told)}",
            **of.clock.place(row),
            count=number,
            value=number,
            expected=0,
            advice="One of them in a batch makes the loss NaN: mend it at the source, or leave the episode out with episodes=.",
        )


def _constant(of: Scan) -> Iterator[Finding]:
    constant = [f for f, c in enumerate(of.columns) if c.number > 1 and c.low == c.high]
    if not constant or of.stream.rows < 2:
        return
    every = len(constant) == len(of.columns)
    floats = of.stream.dtype.kind not in "biu" and "covariance" not in of.stream.name
    dead = every and len(of.columns) > 1 and floats
    yield Finding(
        "warning" if dead else "note",
        "constant",
        "one value in all rows" + ("" if every else f": {feature_names(of.stream, constant)}"),
        stream=of.stream.name,
        count=len(constant),
        value=of.columns[constant[0]].low,
        advice="It tells a policy nothing; normalising only centres it (the loader's constant= says how).",
    )


def _outside(of: Scan) -> Iterator[Finding]:
    bounds = limits(of.stream)
    if bounds is None and "limits" in of.stream.attributes:
        yield Finding(
            "warning",
            "out-of-limits",
            f"limits that say nothing: {json.dumps(of.stream.attributes['limits']):.60}",
            stream=of.stream.name,
            advice=f"Give [low, high], each a number or a list of {math.prod(of.stream.shape)}.",
        )
    for f, (number, row, worst) in of.outside.items():
        assert bounds is not None
        yield Finding(
            "warning",
            "out-of-limits",
            f"{number} value{'s' * (number != 1)} of {feature_names(of.stream, [f])} outside of {bounds[0][f]:g} to "
            f"{bounds[1][f]:g} from this row on, by up to {worst:g}",
            **of.clock.place(row),
            count=number,
            value=worst,
            expected=[float(bounds[0][f]), float(bounds[1][f])],
            advice="Either the limits are of another joint or unit, or the sensor is wrong there.",
        )


def _stuck(of: Scan, survey: Survey) -> Iterator[Finding]:
    """Whole rows that stand still, or some columns of them, for 20 rows and 1 s.

    What rests by nature is not stuck: integers and commands; columns that also repeat elsewhere; of single columns those that
    rest at their least or largest value, or where an episode begins or ends.
    """
    stream, offsets = of.stream, of.stream.row_offsets
    if stream.dtype.kind in "biu" or stream.name.partition(".")[0] == "action":
        return
    frozen: dict[tuple[int, int], list[int]] = {}
    moving = [f for f, c in enumerate(of.columns) if c.low < c.high]
    for f in moving:
        column = of.columns[f]
        repeated = sum(end - begin - 1 for begin, end in column.runs)
        elsewhere = stream.rows - repeated
        if not 0 < len(column.runs) <= max(1, STUCK_EPISODES * np.count_nonzero(of.clock.rows)):
            continue
        if repeated > elsewhere or column.still - repeated > STUCK_ELSEWHERE * elsewhere:
            continue
        for begin, end in column.runs:
            if int(stream.time_ns[end - 1]) - int(stream.time_ns[begin]) >= STUCK_S * 1e9:
                frozen.setdefault((begin, end), []).append(f)
    for (begin, end), features in frozen.items():
        whole = len(features) == len(moving)
        place = of.clock.place(begin)
        if whole:
            moves = _others_move(of, begin, end, survey)
        else:
            at_rest = place["row"] == 0 or end == offsets[place["episode"] + 1]
            row = stream.values[begin].ravel()
            features = [f for f in features if of.columns[f].low < row[f] < of.columns[f].high]
            moves = bool(features) and not at_rest and _columns_move(of, begin, end, features)
        if not moves:
            continue
        seconds = (int(stream.time_ns[end - 1]) - int(stream.time_ns[begin])) / 1e9
        yield Finding(
            "warning",
            "stuck",
            f"the same value for {end - begin} rows, {seconds:.3g} s, while others move"
            + ("" if whole else f": {feature_names(stream, features)}"),
            **place,
            end_row=place["row"] + end - begin,
            value=seconds,
            expected=STUCK_S,
            advice="The sensor or its driver stood still: leave the episode out, or cut it there.",
        )


def _columns_move(of: Scan, begin: int, end: int, features: list[int]) -> bool:
    rows = of.stream.values[begin:end].reshape(end - begin, -1)
    others = np.delete(rows, features, axis=1)
    return bool((np.diff(others, axis=0) != 0).any(1).mean() >= MOVING) if others.shape[1] else True


def _others_move(of: Scan, begin: int, end: int, survey: Survey) -> bool:
    """Whether another stream of numbers changes in that time; true where there is none that could tell."""
    episode = int(of.clock.episode_of(begin))
    told = False
    for stream in survey.floats:
        rows = slice(*stream.row_offsets[episode : episode + 2].tolist())
        if stream is of.stream or rows.stop - rows.start < 2:
            continue
        told = True
        low, high = np.searchsorted(stream.time_ns[rows], of.stream.time_ns[[begin, end - 1]]) + rows.start
        values = stream.values[low:high].reshape(int(high - low), -1)
        if len(values) > 2 and (np.diff(values, axis=0) != 0).any(1).mean() >= MOVING:
            return True
    return not told


_JUMPS: dict[str, tuple[str, str, str, str]] = {
    "spike": (
        "warning",
        "spike",
        "a value far from both its neighbours",
        "A misread sensor: one such row bends min, max and every window over it. Filter it at the source.",
    ),
    "wrap": (
        "note",
        "angle-wrap",
        "an angle that goes once around",
        "Interpolating goes the long way there: give the loader methods={...: 'angle'}.",
    ),
    "step": (
        "note",
        "step",
        "a jump of over 10 times the 99th percentile of the column's steps",
        "A sensor that was set to zero anew, a cut recording, or a command: look at it.",
    ),
}


def _jumps(of: Scan) -> Iterator[Finding]:
    episodes = max(int(np.count_nonzero(of.clock.rows)), 1)
    turning = {f + place for f in quaternions(of.stream) for place in range(4)}
    for what, (severity, code, message, advice) in _JUMPS.items():
        for f, column in enumerate(of.columns):
            least = JUMP_RANGE * (column.high - column.low)
            jumps = [(row, size) for row, kind, size in column.jumps if kind == what and abs(size) >= least]
            if what == "step":
                # What moves on while nothing is recorded jumps, or while it is stuck; commands do, and quaternions that change
                # their sign.
                if f in turning:
                    continue
                stuck = {end for _, end in column.runs}
                jumps = [(row, size) for row, size in jumps if row not in stuck and not _behind_gap(of, row)]
                if of.stream.name.partition(".")[0] == "action" or len(jumps) > max(1, JUMPS_AN_EPISODE * episodes):
                    continue
            if not jumps:
                continue
            row, size = max(jumps, key=lambda jump: abs(jump[1]))
            more = f", {len(jumps)} times" if len(jumps) > 1 else ""
            yield Finding(
                severity,
                code,
                f"{feature_names(of.stream, [f])}: {message}, {size:+.4g}{more}",
                **of.clock.place(row),
                count=len(jumps),
                value=size,
                advice=advice,
            )


def _behind_gap(of: Scan, row: int) -> bool:
    time = of.stream.time_ns
    return bool(int(time[row]) - int(time[row - 1]) > 1.5 * of.clock.period_ns > 0)


def _rotations(of: Scan) -> Iterator[Finding]:
    for block, (number, row, worst) in of.norms.items():
        yield Finding(
            "warning",
            "quaternion-norm",
            f"{number} quaternion{'s' * (number != 1)} whose length is not 1, by up to {worst:.3g}: "
            f"{feature_names(of.stream, list(range(block, block + 4)))}",
            **of.clock.place(row),
            count=number,
            value=worst,
            expected=QUATERNION_NORM,
            advice="Slerp normalises its inputs, a network does not; a length of 0 is no rotation at all.",
        )
    for block, (number, row, _) in of.flips.items():
        yield Finding(
            "note",
            "quaternion-flip",
            f"the sign of all four components turns {number} time{'s' * (number != 1)}: "
            f"{feature_names(of.stream, list(range(block, block + 4)))}",
            **of.clock.place(row),
            count=number,
            advice="The same rotation, but linear interpolation and regression break there: methods={...: 'slerp'}, or one sign.",
        )


def _statistics(of: Scan, dataset: Dataset) -> Iterator[Finding]:
    """The cache's statistics against those of this pass. Quantiles by rank: how many values lie below and at them."""
    stats = [np.ravel(x) for x in dataset.stats[of.stream.name]]
    for f, column in enumerate(of.columns):
        mean, std, low, high = (float(x[f]) for x in stats[:4])
        n, count = column.number, int(stats[9][f])
        wrong: dict[str, tuple[float, float]] = {}
        if n != count:
            wrong["count"] = (count, n)
        if n and math.isfinite(column.total):
            offset = column.total / n
            centre = float(of.centres[f])
            deviation = math.sqrt(max(column.squares / n - offset * offset, 0.0))
            scale = max(abs(column.low), abs(column.high))
            tolerance = STATS_TOLERANCE * (deviation + 1e-6 * scale)
            for name, value, expected in (("mean", mean, centre + offset), ("std", std, deviation)):
                if not abs(value - expected) <= tolerance:
                    wrong[name] = (value, expected)
            for name, value, expected in (("min", low, column.low), ("max", high, column.high)):
                if value != expected:
                    wrong[name] = (value, expected)
            for name, share, quantile, (below, at) in zip(
                ("q01", "q10", "q50", "q90", "q99"), (0.01, 0.1, 0.5, 0.9, 0.99), stats[4:9], column.ranks, strict=True
            ):
                # It lies from the k-th of the sorted values to the next; (n - 1) share may be rounded across a whole number.
                k = share * (n - 1)
                if below > math.floor(k + 1e-6) + 1 or at < math.floor(k - 1e-6) + 1:
                    wrong[name] = (float(quantile[f]), math.nan)
        if wrong:
            name, (value, expected) = next(iter(wrong.items()))
            yield Finding(
                "error",
                "statistics",
                f"stored {', '.join(wrong)} of {feature_names(of.stream, [f])} are not those of the values",
                stream=of.stream.name,
                count=len(wrong),
                value=value,
                expected=expected,
                advice="The files were changed by another program: robocache inspect --verify says which; ingest anew.",
            )


CHECKS = (check_values, check_arrays)
