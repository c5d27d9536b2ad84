"""Checks of numbers, in one pass over each stream: NaN, limits, stuck sensors, spikes and steps, rotations, statistics."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from .. import _lib
from ..dataset import Dataset, Stream
from ..findings import Finding
from ..norm_stats import MIN_SPREAD
from .streams import Clock, Survey, feature_names, index_of, is_action

# Those that the pass itself holds numbers against stand in src/robocache/cache/scan.hpp.
STUCK_S = 1.0  # for which a value is repeated, as well as for 20 rows,
# in a column that repeats in no more of its other rows, nor in more episodes
STUCK_ELSEWHERE, STUCK_EPISODES = 0.05, 0.1
MOVING = 0.5  # of the rows in which what counts as moving changes
JUMPS_AN_EPISODE = 0.5  # in a column that has more of them they are its nature
JUMP_RANGE = 0.2  # a jump is also against all that the column spans
QUATERNION_NORM = 0.01
STATS_TOLERANCE = 1e-5
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_BYTES = 1 << 24  # that are looked at together
_scan_open, _scan_add, _scan_found = (_lib.function(f"scan_{name}") for name in ("open", "add", "found"))
_array_of = _lib.function("array_of")
_QUATERNION = re.compile(r"(?i)^(.*?)(?:quat(?:ernion)?|q|rotation|orientation|rot)?[._]?q?([wxyz])$")


@dataclass
class Scan:
    """What a pass over a stream found; NaN aside, but for `still`.

    Attributes:
        centres: float64 ``[features]``, about each feature's mean.
        number, low, high, still: float64 ``[features]``: how many values, the least, the largest, and in how many rows the value
            of the row before.
        total, squares: float64 ``[features]``, of what is left of the values without the centres.
        ranks: int64 ``[features, 2, 5]``: how many values lie below each stored quantile, and how many not above.
        runs: by feature, (first row, one behind the last row) of long repetitions.
        jumps: by feature, (row, what, how far) of steps and spikes.
        bad: by (episode, "nan" or "infinite"): number, first row, features.
        outside, norms, flips: by feature, of a quaternion the first: number, first row, worst value.
    """

    stream: Stream
    clock: Clock
    centres: np.ndarray
    number: np.ndarray
    total: np.ndarray
    squares: np.ndarray
    low: np.ndarray
    high: np.ndarray
    still: np.ndarray
    ranks: np.ndarray
    runs: defaultdict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    jumps: defaultdict[int, list[tuple[int, str, float]]] = field(default_factory=lambda: defaultdict(list))
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
        yield from _near_constant(of_stream)
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
                **survey.clocks[stream.name].locate(int(empty[0])),
                count=len(empty),
                value=len(empty) / stream.rows,
                expected=0.0,
                advice="A scan that saw nothing, or one that was lost: an operation on points gives an empty grid of it.",
            )


# ---- the pass ----


def scan(stream: Stream, survey: Survey) -> Scan:
    """One pass over a stream of numbers, some MB at a time."""
    bounds, blocks = limits(stream), np.array(quaternions(stream), np.int64)
    opened = _scan_open(
        stream._dataset,
        index_of(stream._dataset, stream.name),
        None if bounds is None else _lib.from_numpy(np.concatenate(bounds)),
        _lib.from_numpy(blocks),
    )
    done = 0
    while done < stream.rows:
        begin, done = done, _scan_add(opened, _BYTES)
        survey.forget(stream, slice(begin, done))
    made = _scan_found(opened)
    columns, runs, jumps, bad, beyond = (_lib.to_numpy(_array_of(made, None, place)) for place in range(5))
    mean = np.ravel(survey.dataset.stats[stream.name].mean)
    number, total, squares, low, high, still = columns[:, :6].T
    ranks = columns[:, 6:].astype(np.int64).reshape(-1, 2, 5)
    centres = np.where(np.isfinite(mean), mean, 0)
    found = Scan(stream, survey.clocks[stream.name], centres, number, total, squares, low, high, still, ranks)
    for feature, begin, end in runs.astype(np.int64).tolist():
        found.runs[feature].append((begin, end))
    for f, row, what, size in jumps.tolist():
        found.jumps[int(f)].append((int(row), ("spike", "wrap", "step")[int(what)], size))
    for feature, episode, is_nan, number, row in bad.astype(np.int64).tolist():
        key = (episode, "nan" if is_nan else "infinite")
        before, first, features = found.bad.get(key, (0, row, set()))
        found.bad[key] = (before + number, min(first, row), features | {feature})
    for f, what, number, row, worst in beyond.tolist():
        (found.outside, found.norms, found.flips)[int(what)][int(f)] = (int(number), int(row), worst)
    return found


# ---- what it says of a stream ----


def quaternions(stream: Stream) -> list[int]:
    """The first features of the quaternions in a row: by the methods that the source names, or by features' names."""
    if stream.dtype.kind in "biu":
        return []
    blocks = set()
    for start, stop, method in methods_of(stream):
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


def methods_of(stream: Stream) -> Iterator[tuple[int, int, str]]:
    """The attribute `methods`, as far as it has the right form."""
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
    empty = set(np.flatnonzero(of.number == 0).tolist())
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
            **of.clock.locate(row),
            count=number,
            value=number,
            expected=0,
            advice="One of them in a batch makes the loss NaN: mend it at the source, or leave the episode out with episodes=.",
        )


def _near_constant(of: Scan) -> Iterator[Finding]:
    """Columns that change by less than normalising takes for a spread."""
    if of.stream.dtype.kind in "biu":
        return
    with np.errstate(all="ignore"):
        spread = np.sqrt(np.maximum(of.squares / of.number - (of.total / of.number) ** 2, 0))
    features = np.flatnonzero((of.number > 1) & (of.low < of.high) & (spread < MIN_SPREAD)).tolist()
    if features:
        yield Finding(
            "note",
            "near-constant",
            f"a spread of at most {spread[features].max():.3g}: {feature_names(of.stream, features)}",
            stream=of.stream.name,
            count=len(features),
            value=float(spread[features].max()),
            expected=MIN_SPREAD,
            advice="Flicker of a sensor at rest, which normalising only centres; of data in so large a unit, the loader's "
            "Normalization(min_spread=0) scales it.",
        )


def _constant(of: Scan) -> Iterator[Finding]:
    constant = np.flatnonzero((of.number > 1) & (of.low == of.high)).tolist()
    if not constant:
        return
    every = len(constant) == len(of.number)
    floats = of.stream.dtype.kind not in "biu" and not _covariance(of.stream, 0)
    once = int(of.clock.rows.max()) <= 1  # of a description, as of a camera or of a fixed transform
    dead = every and len(constant) > 1 and floats and not once
    yield Finding(
        "warning" if dead else "note",
        "constant",
        "one value in all rows" + ("" if every else f": {feature_names(of.stream, constant)}"),
        stream=of.stream.name,
        count=len(constant),
        value=float(of.low[constant[0]]),
        advice="It tells a policy nothing; normalising only centres it (the loader's constant= says how).",
    )


def _covariance(stream: Stream, feature: int) -> bool:
    """Whether a feature is of a covariance, which rests, or jumps with the filter that makes it."""
    return "covariance" in f"{stream.name} {' '.join(stream.names[feature : feature + 1])}".lower()


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
            **of.clock.locate(row),
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
    if stream.dtype.kind in "biu" or is_action(stream.name):
        return
    frozen: dict[tuple[int, int], list[int]] = {}
    moving = of.low < of.high
    for f, runs in sorted(of.runs.items()):
        repeated = sum(end - begin - 1 for begin, end in runs)
        elsewhere = stream.rows - repeated
        if (
            not moving[f]
            or _covariance(stream, f)
            or len(runs) > max(1, STUCK_EPISODES * np.count_nonzero(of.clock.rows))
        ):
            continue
        if repeated > elsewhere or of.still[f] - repeated > STUCK_ELSEWHERE * elsewhere:
            continue
        for begin, end in runs:
            if int(stream.time_ns[end - 1]) - int(stream.time_ns[begin]) >= STUCK_S * 1e9:
                frozen.setdefault((begin, end), []).append(f)
    for (begin, end), features in frozen.items():
        whole = len(features) == np.count_nonzero(moving)
        place = of.clock.locate(begin)
        if whole:
            moves = _others_move(of, begin, end, survey)
        else:
            at_rest = place["row"] == 0 or end == offsets[place["episode"] + 1]
            row = stream.values[begin].ravel()
            features = [f for f in features if of.low[f] < row[f] < of.high[f]]
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
        "Interpolating goes the long way there: give its Window method='angle'.",
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
    turning = {f + place: f for f in quaternions(of.stream) for place in range(4)}
    for what, (severity, code, message, advice) in _JUMPS.items():
        for f, told in sorted(of.jumps.items()):
            least = JUMP_RANGE * float(of.high[f] - of.low[f])
            jumps = [(row, size) for row, kind, size in told if kind == what and abs(size) >= least]
            if _covariance(of.stream, f):
                continue
            if what == "step":
                # What moves on while nothing is recorded jumps, or while it is stuck; commands do, and quaternions that change
                # their sign.
                if f in turning:
                    continue
                stuck = {end for _, end in of.runs[f]}
                jumps = [(row, size) for row, size in jumps if row not in stuck and not _behind_gap(of, row)]
                if is_action(of.stream.name) or len(jumps) > max(1, JUMPS_AN_EPISODE * episodes):
                    continue
            elif f in turning:
                jumps = [(row, size) for row, size in jumps if not _changes_sign(of.stream, row, turning[f])]
            if not jumps:
                continue
            row, size = max(jumps, key=lambda jump: abs(jump[1]))
            more = f", {len(jumps)} times" if len(jumps) > 1 else ""
            yield Finding(
                severity,
                code,
                f"{feature_names(of.stream, [f])}: {message}, {size:+.4g}{more}",
                **of.clock.locate(row),
                count=len(jumps),
                value=size,
                advice=advice,
            )


def _changes_sign(stream: Stream, row: int, first: int) -> bool:
    """Whether a quaternion is near to the one before it with all signs turned: both signs are the same rotation."""
    if row == 0:
        return False
    before, now = np.asarray(stream.values[row - 1 : row + 1], np.float64).reshape(2, -1)[:, first : first + 4]
    return bool(before @ now < -0.9 * np.linalg.norm(before) * np.linalg.norm(now))


def _behind_gap(of: Scan, row: int) -> bool:
    time = of.stream.time_ns
    return bool(int(time[row]) - int(time[row - 1]) > 1.5 * of.clock.period_ns > 0)


def _rotations(of: Scan) -> Iterator[Finding]:
    for block, (number, row, worst) in of.norms.items():
        if _covariance(of.stream, block):
            continue
        yield Finding(
            "warning",
            "quaternion-norm",
            f"{number} quaternion{'s' * (number != 1)} whose length is not 1, by up to {worst:.3g}: "
            f"{feature_names(of.stream, list(range(block, block + 4)))}",
            **of.clock.locate(row),
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
            **of.clock.locate(row),
            count=number,
            advice="The same rotation, but linear interpolation and regression break there: method='slerp', or one sign.",
        )


def _statistics(of: Scan, dataset: Dataset) -> Iterator[Finding]:
    """The cache's statistics against those of this pass. Quantiles by rank: how many values lie below and at them."""
    stats = np.array([np.ravel(x) for x in dataset.stats[of.stream.name]]).T.tolist()
    sums = np.array([of.number, of.centres, of.total, of.squares, of.low, of.high]).T.tolist()
    for f, (told, summed, ranks) in enumerate(zip(stats, sums, of.ranks.tolist(), strict=True)):
        n, centre, total, squares, low, high = summed
        wrong: dict[str, tuple[float, float]] = {}
        if n != int(told[9]):
            wrong["count"] = (int(told[9]), int(n))
        if n and math.isfinite(total):
            offset = total / n
            std = math.sqrt(max(squares / n - offset * offset, 0.0)) if low < high else 0.0
            tolerance = STATS_TOLERANCE * (std + 1e-6 * max(abs(low), abs(high)))
            expected = {"mean": centre + offset, "std": std, "min": low, "max": high}
            for (name, value), stored in zip(expected.items(), told[:4], strict=True):
                if stored != value and not (name in ("mean", "std") and abs(stored - value) <= tolerance):
                    wrong[name] = (stored, value)
            for (name, share), quantile, below, at in zip(QUANTILES.items(), told[4:9], *ranks, strict=True):
                # It lies from the k-th of the sorted values to the next; (n - 1) share may be rounded across a whole number.
                k = share * (n - 1)
                if below > math.floor(k + 1e-6) + 1 or at < math.floor(k - 1e-6) + 1:
                    wrong[name] = (quantile, math.nan)
        if wrong:
            stored, value = next(iter(wrong.values()))
            yield Finding(
                "error",
                "statistics",
                f"stored {', '.join(wrong)} of {feature_names(of.stream, [f])} are not those of the values",
                stream=of.stream.name,
                count=len(wrong),
                value=stored,
                expected=value,
                advice="The files were changed by another program: robocache inspect --verify says which; ingest anew.",
            )


CHECKS = (check_values, check_arrays)
