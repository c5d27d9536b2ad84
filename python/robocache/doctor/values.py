"""Checks of numbers, in one pass over each stream: NaN, limits, stuck sensors, spikes and steps, rotations, statistics."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import _lib
from .._printable import count
from ..dataset import Dataset, Stream
from ..feature_words import rotations_of
from ..findings import Finding
from ..ingest.mapping import toml
from ..norm_stats import MIN_SPREAD
from .streams import Clock, Survey, feature_names, index_of, is_action, rows_move

# src/robocache/cache/scan.hpp has the thresholds of the pass itself.
STUCK_S = 1.0  # a value is stuck if it repeats for this time and for 20 rows
# A column is not reported if it repeats in more than this share of its other rows, or of the episodes: it rests by its nature.
STUCK_ELSEWHERE, STUCK_EPISODES = 0.05, 0.1
JUMPS_AN_EPISODE = 0.5  # a column with more jumps in an episode is not reported: it jumps by its nature
JUMP_RANGE = 0.2  # a jump is at least this share of the column's range
QUATERNION_NORM = 0.01
STATS_TOLERANCE = 1e-5
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_BYTES = 1 << 24  # the bytes scanned in one step
_NUMBERS = 1 << 18  # the numbers compared with the previous row in one step
_scan_open, _scan_add, _scan_found = (_lib.function(f"scan_{name}") for name in ("open", "add", "found"))
_array_of = _lib.function("array_of")


@dataclass
class Scan:
    """The results of a pass over a stream. Except for `still`, `bad` and `outside` they ignore NaN and infinity.

    Attributes:
        centres: float64 ``[features]``, near each feature's mean.
        number, low, high, still: float64 ``[features]``: the number of values, the least, the greatest, and the number of rows
            with the same value as the previous row.
        total, squares: float64 ``[features]``, sums of (value - centre) and of its square.
        ranks: int64 ``[features, 2, 5]``: the number of values below each stored quantile, and the number not above it.
        runs: by feature, (first row, one past the last row) of long repetitions.
        jumps: by feature, (row, kind, size) of spikes, wraps and steps.
        bad: by (episode, "nan" or "infinite"): number, first row, features. Columns of nothing but NaN are left out.
        outside, norms, flips: by feature (for a quaternion its first): number, first row, worst value.
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
    """Reports everything that a pass over the numbers finds."""
    scans = [scan(stream, survey) for stream in survey.numbers if stream.rows]
    for scanned in scans:
        yield from _find_not_finite(scanned)
        yield from _find_constant(scanned)
        yield from _find_near_constant(scanned)
        yield from _find_outside_limits(scanned)
        yield from _find_stuck(scanned, survey)
        vectors = _vectors_past_half_a_turn(scanned, survey)
        yield from _find_jumps(scanned, vectors)
        yield from _report_vectors(scanned, vectors)
        yield from _report_quaternions(scanned)
        yield from _compare_statistics(scanned, survey.dataset)


def check_arrays(survey: Survey) -> Iterator[Finding]:
    """Finds empty ragged rows, if most rows are not empty."""
    for stream in survey.dataset.streams.values():
        if stream.kind != "arrays" or stream.offsets is None:
            continue
        empty = np.flatnonzero(np.diff(stream.offsets) == 0)
        if 0 < len(empty) < stream.rows / 2:
            yield Finding(
                "note",
                "empty-rows",
                f"{len(empty)} of {stream.rows} rows are empty",
                **survey.clocks[stream.name].locate(int(empty[0])),
                count=len(empty),
                value=len(empty) / stream.rows,
                expected=0.0,
                advice="The scan saw nothing, or it was lost. An operation on points returns an empty grid for it.",
            )


# ---- the pass ----


def scan(stream: Stream, survey: Survey) -> Scan:
    """Scans a stream of numbers in one pass, a few MB at a time."""
    bounds = limits(stream)
    pass_handle = _scan_open(
        stream._opened.handle,
        index_of(stream._opened.handle, stream.name),
        None if bounds is None else _lib.from_numpy(np.concatenate(bounds)),
        _lib.from_numpy(np.array(quaternions(stream), np.int64)),
    )
    next_row = 0
    while next_row < stream.rows:
        begin, next_row = next_row, _scan_add(pass_handle, _BYTES)
        survey.forget(stream, slice(begin, next_row))
    results = _scan_found(pass_handle)
    columns, runs, jumps, bad, beyond = (_lib.to_numpy(_array_of(results, None, index)) for index in range(5))
    mean = np.ravel(survey.dataset.stats[stream.name].mean)
    number, total, squares, low, high, still = columns[:, :6].T
    ranks = columns[:, 6:].astype(np.int64).reshape(-1, 2, 5)
    centres = np.where(np.isfinite(mean), mean, 0)
    result = Scan(stream, survey.clocks[stream.name], centres, number, total, squares, low, high, still, ranks)
    for feature, begin, end in runs.astype(np.int64).tolist():
        result.runs[feature].append((begin, end))
    for f, row, kind, size in jumps.tolist():
        result.jumps[int(f)].append((int(row), ("spike", "wrap", "step")[int(kind)], size))
    bad = bad.astype(np.int64)
    has_values = number > 0
    has_values[bad[bad[:, 2] == 0, 0]] = True  # infinite ones
    for feature, episode, is_nan, number, row in bad[has_values[bad[:, 0]]].tolist():
        key = (episode, "nan" if is_nan else "infinite")
        before, first, features = result.bad.get(key, (0, row, set()))
        result.bad[key] = (before + number, min(first, row), features | {feature})
    for f, kind, number, row, worst in beyond.tolist():
        (result.outside, result.norms, result.flips)[int(kind)][int(f)] = (int(number), int(row), worst)
    return result


# ---- facts about a stream ----


def quaternions(stream: Stream) -> list[int]:
    """Returns the first feature of each quaternion in a row, by the source's methods or by the features' names."""
    if stream.dtype.kind in "biu":
        return []
    blocks = set()
    for start, stop, method in methods_of(stream):
        if method == "slerp" and stop - start == 4:
            blocks.add(start)
        elif method == "pose" and stop - start == 7:
            blocks.add(start + 3)
    return sorted(blocks.union(start for start, *_ in rotations_of(stream.name, stream.names, stream.shape)))


def methods_of(stream: Stream) -> Iterator[tuple[int, int, str]]:
    """Yields the valid entries of the attribute `methods`."""
    methods = stream.attributes.get("methods")
    for block in methods if isinstance(methods, list) else []:
        is_valid = isinstance(block, list) and len(block) == 3 and all(isinstance(x, int) for x in block[:2])
        if is_valid and 0 <= block[0] <= block[1] <= math.prod(stream.shape):
            yield block[0], block[1], str(block[2])


def limits(stream: Stream) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the attribute `limits` ([low, high], each a number or a list with one for each feature), as two float64 ``[features]``."""
    declared = stream.attributes.get("limits")
    features = math.prod(stream.shape)
    try:
        low, high = (np.broadcast_to(np.asarray(bound, np.float64).ravel(), features) for bound in declared or ())
    except (TypeError, ValueError):
        return None
    return low, high


# ---- findings ----


def _find_not_finite(scanned: Scan) -> Iterator[Finding]:
    infinite = {f for (_, code), (_, _, features) in scanned.bad.items() if code == "infinite" for f in features}
    empty = set(np.flatnonzero(scanned.number == 0).tolist()) - infinite
    if empty:
        yield Finding(
            "warning",
            "no-values",
            f"nothing but NaN: {feature_names(scanned.stream, sorted(empty))}",
            stream=scanned.stream.name,
            count=len(empty),
            advice="The source has this column but never filled it: leave it out.",
        )
    for (_, code), (number, row, features) in scanned.bad.items():
        what = "NaN" if code == "nan" else "infinite"
        yield Finding(
            "error",
            f"{code}-value" if code == "infinite" else "nan",
            f"{count(number, f'{what} value')} from this row on: {feature_names(scanned.stream, sorted(features))}",
            **scanned.clock.locate(row),
            count=number,
            value=number,
            expected=0,
            advice="One of them in a batch makes the loss NaN: correct it at the source, or leave the episode out with episodes=.",
        )


def _find_near_constant(scanned: Scan) -> Iterator[Finding]:
    """Finds columns whose spread is too small for normalisation to scale."""
    if scanned.stream.dtype.kind in "biu":
        return
    with np.errstate(all="ignore"):
        spread = np.sqrt(np.maximum(scanned.squares / scanned.number - (scanned.total / scanned.number) ** 2, 0))
    features = np.flatnonzero((scanned.number > 1) & (scanned.low < scanned.high) & (spread < MIN_SPREAD)).tolist()
    if features:
        yield Finding(
            "note",
            "near-constant",
            f"a spread of at most {spread[features].max():.3g}: {feature_names(scanned.stream, features)}",
            stream=scanned.stream.name,
            count=len(features),
            value=float(spread[features].max()),
            expected=MIN_SPREAD,
            advice="Usually this is the noise of a sensor at rest, and normalising only centres it. If the unit is just very large, "
            "the loader's Normalization(min_spread=0) scales it.",
        )


def _find_constant(scanned: Scan) -> Iterator[Finding]:
    constant = np.flatnonzero((scanned.number > 1) & (scanned.low == scanned.high)).tolist()
    if not constant:
        return
    all_features = len(constant) == len(scanned.number)
    are_floats = scanned.stream.dtype.kind not in "biu" and not _is_covariance(scanned.stream, 0)
    is_sent_once = int(scanned.clock.rows.max()) <= 1  # such as a camera's parameters or a fixed transform
    where = "" if (scanned.number[constant] == scanned.stream.rows).all() else " where it is finite"
    is_dead = all_features and len(constant) > 1 and are_floats and not is_sent_once
    yield Finding(
        "warning" if is_dead else "note",
        "constant",
        f"one value in all rows{where}" + ("" if all_features else f": {feature_names(scanned.stream, constant)}"),
        stream=scanned.stream.name,
        count=len(constant),
        value=float(scanned.low[constant[0]]),
        advice="A policy learns nothing from it. Normalising only centres it (see the loader's constant=).",
    )


def _is_covariance(stream: Stream, feature: int) -> bool:
    """Whether a feature belongs to a covariance, which may rest or jump as its filter computes it."""
    return "covariance" in f"{stream.name} {' '.join(stream.names[feature : feature + 1])}".lower()


def _find_outside_limits(scanned: Scan) -> Iterator[Finding]:
    bounds = limits(scanned.stream)
    if bounds is None and "limits" in scanned.stream.attributes:
        yield Finding(
            "warning",
            "out-of-limits",
            f"limits of another form: {json.dumps(scanned.stream.attributes['limits']):.60}",
            stream=scanned.stream.name,
            advice=f"Give [low, high], each a number or a list of {math.prod(scanned.stream.shape)}.",
        )
    for f, (number, row, worst) in scanned.outside.items():
        assert bounds is not None
        yield Finding(
            "warning",
            "out-of-limits",
            f"{count(number, 'value')} of {feature_names(scanned.stream, [f])} outside {bounds[0][f]:g} to "
            f"{bounds[1][f]:g} from this row on, by up to {worst:g}",
            **scanned.clock.locate(row),
            count=number,
            value=worst,
            expected=[float(bounds[0][f]), float(bounds[1][f])],
            advice="Either the limits belong to another joint or unit, or the sensor is wrong there.",
        )


def _find_stuck(scanned: Scan, survey: Survey) -> Iterator[Finding]:
    """Finds rows, or some of their columns, that repeat for 20 rows and 1 s.

    It does not report integers, commands, columns that also repeat elsewhere, and single columns at their least or greatest value or at
    the beginning or end of an episode: these rest by their nature.
    """
    stream, offsets = scanned.stream, scanned.stream.row_offsets
    if stream.dtype.kind in "biu" or is_action(stream.name):
        return
    frozen: dict[tuple[int, int], list[int]] = {}
    moving = scanned.low < scanned.high
    for f, runs in sorted(scanned.runs.items()):
        repeated = sum(end - begin - 1 for begin, end in runs)
        elsewhere = stream.rows - repeated
        if (
            not moving[f]
            or _is_covariance(stream, f)
            or len(runs) > max(1, STUCK_EPISODES * np.count_nonzero(scanned.clock.rows))
        ):
            continue
        if repeated > elsewhere or scanned.still[f] - repeated > STUCK_ELSEWHERE * elsewhere:
            continue
        for begin, end in runs:
            if int(stream.time_ns[end - 1]) - int(stream.time_ns[begin]) >= STUCK_S * 1e9:
                frozen.setdefault((begin, end), []).append(f)
    for (begin, end), features in frozen.items():
        is_whole_row = len(features) == np.count_nonzero(moving)
        location = scanned.clock.locate(begin)
        if is_whole_row:
            moves = survey.others_move(scanned.stream, begin, end)
        else:
            at_rest = location["row"] == 0 or end == offsets[location["episode"] + 1]
            row = stream.values[begin].ravel()
            features = [f for f in features if scanned.low[f] < row[f] < scanned.high[f]]
            moves = bool(features) and not at_rest and _columns_move(scanned, begin, end, features)
        if not moves:
            continue
        seconds = (int(stream.time_ns[end - 1]) - int(stream.time_ns[begin])) / 1e9
        yield Finding(
            "warning",
            "stuck",
            f"the same value for {end - begin} rows, {seconds:.3g} s, while others move"
            + ("" if is_whole_row else f": {feature_names(stream, features)}"),
            **location,
            end_row=location["row"] + end - begin,
            value=seconds,
            expected=STUCK_S,
            advice="The sensor or its driver stopped: leave the episode out, or cut it there.",
        )


def _columns_move(scanned: Scan, begin: int, end: int, features: list[int]) -> bool:
    rows = scanned.stream.values[begin:end].reshape(end - begin, -1)
    others = np.delete(rows, features, axis=1)
    return rows_move(others) if others.shape[1] else True


# By the kind of jump: severity, code, message and advice.
_JUMPS: dict[str, tuple[str, str, str, str]] = {
    "spike": (
        "warning",
        "spike",
        "a value far from both its neighbours",
        "The sensor was misread. One such row distorts min, max and every window over it: filter it at the source.",
    ),
    "wrap": (
        "warning",
        "angle-wrap",
        "an angle that wraps by a full turn",
        "Between such rows interpolation takes the long way round. Ingest with --mapping FILE, which contains",
    ),
    "step": (
        "note",
        "step",
        "a jump of over 10 times the 99th percentile of the column's steps",
        "The sensor was reset, the recording was cut, or this is a command: look at it.",
    ),
}


def _find_jumps(scanned: Scan, vectors: dict[int, tuple[int, int]]) -> Iterator[Finding]:
    episodes = max(int(np.count_nonzero(scanned.clock.rows)), 1)
    quaternion_of = {f + k: f for f in quaternions(scanned.stream) for k in range(4)}
    methods = _methods_of_angles(scanned, vectors)
    for kind_of_jump, (severity, code, message, advice) in _JUMPS.items():
        for f, all_jumps in sorted(scanned.jumps.items()):
            least_size = JUMP_RANGE * float(scanned.high[f] - scanned.low[f])
            jumps = [(row, size) for row, kind, size in all_jumps if kind == kind_of_jump and abs(size) >= least_size]
            if _is_covariance(scanned.stream, f) or (
                kind_of_jump == "wrap" and not any(start <= f < stop == start + 1 for start, stop, _ in methods)
            ):
                continue
            if kind_of_jump == "step":
                # These steps are no faults: after a gap or a stuck run, of commands, and of quaternions that change their sign.
                if f in quaternion_of:
                    continue
                stuck = {end for _, end in scanned.runs[f]}
                jumps = [(row, size) for row, size in jumps if row not in stuck and not _is_after_gap(scanned, row)]
                if is_action(scanned.stream.name) or len(jumps) > max(1, JUMPS_AN_EPISODE * episodes):
                    continue
            elif f in quaternion_of:
                jumps = [(row, size) for row, size in jumps if not _changes_sign(scanned.stream, row, quaternion_of[f])]
            if not jumps:
                continue
            row, size = max(jumps, key=lambda jump: abs(jump[1]))
            more = f", {len(jumps)} times" if len(jumps) > 1 else ""
            yield Finding(
                severity,
                code,
                f"{feature_names(scanned.stream, [f])}: {message}, {size:+.4g}{more}",
                **scanned.clock.locate(row),
                count=len(jumps),
                value=size,
                advice=f"{advice}{_mapping_of_angles(scanned.stream, methods)}" if kind_of_jump == "wrap" else advice,
            )


def _methods_of_angles(scanned: Scan, vectors: dict[int, tuple[int, int]]) -> list[list[Any]]:
    """Returns methods for the features that wrap and are interpolated: "angle" for radians. Degrees and rotation vectors have no
    method, so they are held."""
    declared = {
        f for start, stop, method in methods_of(scanned.stream) if method != "linear" for f in range(start, stop)
    }
    methods: list[list[Any]] = [[start, start + 3, "previous"] for start in vectors]
    declared |= {f for start in vectors for f in range(start, start + 3)}
    for f, jumps in sorted(scanned.jumps.items()):
        sizes = [abs(size) for _, kind, size in jumps if kind == "wrap"]
        if sizes and f not in declared and scanned.stream.dtype.kind == "f":
            methods.append([f, f + 1, "angle" if max(sizes) < 10 else "previous"])
    return sorted(methods)


def _vectors_past_half_a_turn(scanned: Scan, survey: Survey) -> dict[int, tuple[int, int]]:
    """Finds rotation vectors v that become v - 2 pi v / |v|, the same rotation, from one row to the next. Returns, by the vector's
    first feature, how often that happens and the first such row. Features with a method are left out, and Euler angles differ:
    they wrap feature by feature."""
    declared = {
        f
        for start, stop, method in methods_of(scanned.stream)
        if method not in ("linear", "angle")
        for f in range(start, stop)
    }
    with np.errstate(invalid="ignore"):
        largest = np.maximum(np.abs(scanned.low), np.abs(scanned.high))
    starts = [
        f
        for f in range(len(largest) - 2)
        if declared.isdisjoint(range(f, f + 3))
        and (largest[f : f + 3] < 2 * np.pi + 0.1).all()
        and (largest[f : f + 3] ** 2).sum() > 9  # long enough for half a turn
    ]
    if not starts or scanned.stream.dtype.kind in "biu":
        return {}
    first, last = starts[0], starts[-1] + 3
    first_columns = np.array(starts) - first
    is_first_row = np.zeros(scanned.stream.rows + 1, bool)
    is_first_row[scanned.stream.row_offsets] = True
    counts = np.zeros((2, len(starts)), np.int64)  # steps longer than 5, and how many of them turn a vector over
    closeness = np.zeros(len(starts))  # over the turns; the larger, the better v - 2 pi v / |v| matches
    first_rows = np.full(len(starts), -1)
    step = max(_NUMBERS // len(largest), 2)
    for row in range(1, scanned.stream.rows, step):
        rows = slice(row - 1, min(row + step, scanned.stream.rows))
        table = scanned.stream.values[rows].reshape(rows.stop - rows.start, -1)[:, first:last]
        with np.errstate(invalid="ignore", over="ignore"):
            steps = table[1:] - table[:-1]
            if steps.max() < 3 and steps.min() > -3:
                survey.forget(scanned.stream, rows)
                continue
            step_rows = np.flatnonzero((np.abs(steps) > 3).any(1) & ~is_first_row[row : rows.stop])
            v, w = (table[step_rows + k][:, first_columns[:, None] + np.arange(3)].astype(np.float64) for k in (0, 1))
            survey.forget(scanned.stream, rows)
            is_long_step = np.linalg.norm(w - v, axis=2) > 5
            length = np.linalg.norm(v, axis=2, keepdims=True)
            deviations = np.linalg.norm(w - v * (1 - 2 * np.pi / np.maximum(length, 1e-9)), axis=2)
            as_angles = np.linalg.norm(np.mod(w - v + np.pi, 2 * np.pi) - np.pi, axis=2)
            turned_over = is_long_step & (deviations < 0.35) & (deviations < as_angles / 2)
        counts += is_long_step.sum(0), turned_over.sum(0)
        closeness += np.where(turned_over, 0.35 - deviations, 0).sum(0)
        for i in np.flatnonzero(turned_over.any(0) & (first_rows < 0)):
            first_rows[i] = step_rows[turned_over[:, i].argmax()] + row
    vectors: dict[int, tuple[int, int]] = {}
    for i in np.argsort(-closeness, kind="stable"):
        start = starts[i]
        if counts[1, i] and 10 * counts[1, i] >= 9 * counts[0, i] and all(abs(start - other) > 2 for other in vectors):
            vectors[start] = (int(counts[1, i]), int(first_rows[i]))
    return dict(sorted(vectors.items()))


def _report_vectors(scanned: Scan, vectors: dict[int, tuple[int, int]]) -> Iterator[Finding]:
    methods = _methods_of_angles(scanned, vectors)
    for start, (number, row) in vectors.items():
        yield Finding(
            "warning",
            "rotation-vector-wrap",
            f"{feature_names(scanned.stream, list(range(start, start + 3)))}: a rotation vector that passes half a turn "
            f"{count(number, 'time')}: v and v - 2 pi v / |v| are one rotation",
            **scanned.clock.locate(row),
            count=number,
            advice="Between such rows interpolation passes through rotations that were never there. Ingest with --mapping FILE, which "
            f"contains{_mapping_of_angles(scanned.stream, methods)}",
        )


def _mapping_of_angles(stream: Stream, methods: list[list[Any]]) -> str:
    has_degrees = any(method == "previous" and stop == start + 1 for start, stop, method in methods)
    return f":\n{mapping_line(stream.name, methods)}" + (
        "\n# degrees have no method: the row before is held" if has_degrees else ""
    )


def mapping_line(stream: str, methods: list[list[Any]]) -> str:
    """Returns a line of a TOML mapping with a stream's interpolation methods."""
    return f"streams.{toml(stream)}.methods = {toml(methods)}"


def _changes_sign(stream: Stream, row: int, first: int) -> bool:
    """Whether a quaternion is close to the negative of the previous one, which is the same rotation."""
    if row == 0:
        return False
    before, now = np.asarray(stream.values[row - 1 : row + 1], np.float64).reshape(2, -1)[:, first : first + 4]
    return bool(before @ now < -0.9 * np.linalg.norm(before) * np.linalg.norm(now))


def _is_after_gap(scanned: Scan, row: int) -> bool:
    time = scanned.stream.time_ns
    return bool(int(time[row]) - int(time[row - 1]) > 1.5 * scanned.clock.period_ns > 0)


def _report_quaternions(scanned: Scan) -> Iterator[Finding]:
    for block, (number, row, worst) in scanned.norms.items():
        if _is_covariance(scanned.stream, block):
            continue
        yield Finding(
            "warning",
            "quaternion-norm",
            f"{count(number, 'quaternion')} whose length is not 1, by up to {worst:.3g}: "
            f"{feature_names(scanned.stream, list(range(block, block + 4)))}",
            **scanned.clock.locate(row),
            count=number,
            value=worst,
            expected=QUATERNION_NORM,
            advice="Slerp normalises its inputs, but a network does not. A length of 0 is not a rotation.",
        )
    for block, (number, row, _) in scanned.flips.items():
        yield Finding(
            "note",
            "quaternion-flip",
            f"all four components change their sign {count(number, 'time')}: "
            f"{feature_names(scanned.stream, list(range(block, block + 4)))}",
            **scanned.clock.locate(row),
            count=number,
            advice="It is the same rotation, but linear interpolation and regression break there: use method='slerp', or one sign.",
        )


def _compare_statistics(scanned: Scan, dataset: Dataset) -> Iterator[Finding]:
    """Compares the cache's statistics with those of this pass: quantiles by the number of values below and not above them."""
    stats = np.array([np.ravel(x) for x in dataset.stats[scanned.stream.name]]).T.tolist()
    sums = np.array(
        [scanned.number, scanned.centres, scanned.total, scanned.squares, scanned.low, scanned.high]
    ).T.tolist()
    for f, (saved, summed, ranks) in enumerate(zip(stats, sums, scanned.ranks.tolist(), strict=True)):
        n, centre, total, squares, low, high = summed  # `saved`: mean, std, min, max, five quantiles, count
        wrong: dict[str, tuple[float, float]] = {}
        if n != int(saved[9]):
            wrong["count"] = (int(saved[9]), int(n))
        if n:
            sums_are_finite = math.isfinite(total) and math.isfinite(squares)  # else the squares exceed float64
            offset = total / n
            std = math.sqrt(max(squares / n - offset * offset, 0.0)) if low < high else 0.0
            tolerance = STATS_TOLERANCE * (std + 1e-6 * max(abs(low), abs(high)))
            expected = {"mean": centre + offset, "std": std, "min": low, "max": high}
            for (name, value), stored in zip(expected.items(), saved[:4], strict=True):
                is_from_sums = name in ("mean", "std")
                if stored != value and not (is_from_sums and (not sums_are_finite or abs(stored - value) <= tolerance)):
                    wrong[name] = (stored, value)
            for (name, share), quantile, below, not_above in zip(QUANTILES.items(), saved[4:9], *ranks, strict=True):
                # The quantile lies between the sorted values k and k + 1; 1e-6 allows for the rounding of (n - 1) * share.
                k = share * (n - 1)
                if below > math.floor(k + 1e-6) + 1 or not_above < math.floor(k - 1e-6) + 1:
                    wrong[name] = (quantile, math.nan)
        if wrong:
            stored, value = next(iter(wrong.values()))
            yield Finding(
                "error",
                "statistics",
                f"stored {', '.join(wrong)} of {feature_names(scanned.stream, [f])} are not those of the values",
                stream=scanned.stream.name,
                count=len(wrong),
                value=stored,
                expected=value,
                advice="Another program changed the files: robocache inspect --verify names them; ingest again.",
            )


CHECKS = (check_values, check_arrays)
