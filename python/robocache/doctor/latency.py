"""Finds streams that make the same motion, one later than the other, such as a state after its command.

Stamps alone cannot show a latency inside a recording, but motion can. The rates of change of two streams are correlated at
all lags, piece by piece. The lag at the peak is reported if the peak is clear and the lag is the same in most pieces.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..dataset import Stream
from ..feature_words import words_of
from ..findings import Finding
from .episodes import SHIFT_SHARE, SHIFTS, share_of_equal_rows
from .streams import Clock, Survey

LARGEST_LAG_S = 1.0  # the largest lag compared; a peak beyond 90 % of it counts as none
CORRELATION = 0.5  # the least correlation of the rates of change, at the peak
# The largest correlation of opposite sign allowed, as a share of the peak. Periodic motion exceeds it, and so does a velocity beside its position.
OPPOSITE = 0.7
PIECES, PIECES_LEAST = 24, 5  # the most and the fewest pieces
PIECE_S, PIECE_LEAST_S = 10.0, 4.0  # the longest and the shortest piece
AGREEING = 0.8  # this share of the pieces must have the same lag, within a period or SAME_LAG times the lag
SAME_LAG = 0.2
LATENCY_WARNING_S = 0.1
FEATURES = 12  # the most features compared
# This share of the cache's numbers is read, or NUMBERS if that is more.
SHARE, NUMBERS = 1 / 64, 1 << 18
_RATE_LEAST_HZ = 4.0
_GRID_S, _BASE_S = 0.005, 0.1  # the finest grid; the time over which a rate of change is computed
_ROWS_LEAST = 16  # rows of a piece
_MOTION = 0.2  # the least sum, over all features, of the share of motion
# Words in names of derivatives. They are not compared with their quantities, which move alike, but a quarter of a period apart.
_DERIVED = {
    *("vel", "vels", "velocity", "velocities", "qvel", "xvel", "speed", "speeds", "twist", "twists", "rel", "relative"),
    *("acc", "accel", "acceleration", "accelerations", "qacc", "diff", "diffs", "delta", "deltas", "eff", "effort"),
    *("linvel", "angvel", "jointvel"),
    *("efforts", "torque", "torques", "force", "forces", "wrench", "wrenches", "current", "currents", "temp", "duty"),
    *("temperature", "temperatures", "load", "loads", "volt", "volts", "voltage", "voltages"),
}
_COMMANDS = {"action", "actions", "command", "commands", "cmd", "target", "targets", "goal", "goals", "desired"}


@dataclass(frozen=True)
class Latency:
    """The time by which one stream is behind another.

    lag_s: the lag in seconds; below 0 if the stream is ahead.
    correlation: the correlation of the rates of change at that lag.
    pieces: the number of pieces compared.
    agreeing, low_s, high_s: how many pieces have about this lag, and the least and the largest lag among them.
    """

    lag_s: float
    correlation: float
    pieces: int
    agreeing: int
    low_s: float
    high_s: float


def check_latency(survey: Survey) -> Iterator[Finding]:
    """Compares each stream with those before it in the cache. Finds the same motion at another time."""
    numbers_left = max(SHARE * sum(stream.rows * math.prod(stream.shape) for stream in survey.floats), NUMBERS)
    moving = [stream for stream in survey.floats if _may_move(stream, survey.clocks[stream.name])]
    compared: list[Stream] = []
    for stream in moving:
        for reference in compared:
            features = _common_features(stream, reference)
            if not features:
                continue
            pieces = _find_pieces(survey.clocks[stream.name], survey.clocks[reference.name])
            numbers_left -= sum(a.stop - a.start + b.stop - b.start for a, b in pieces) * len(features)
            if numbers_left < 0:
                return
            latency = _measure(stream, reference, features, pieces)
            if latency is not None:
                yield from _report(survey, stream, reference, features, latency)
                break
        else:
            compared.append(stream)


def _may_move(stream: Stream, clock: Clock) -> bool:
    return clock.steady and clock.true_rate_hz >= _RATE_LEAST_HZ and bool((clock.span_ns >= PIECE_LEAST_S * 1e9).any())


def _common_features(stream: Stream, reference: Stream) -> list[tuple[int, int]]:
    """Returns pairs of features to compare: with the same name, or with the same index if a stream has no names."""
    if _DERIVED.isdisjoint(words_of(stream.name)) != _DERIVED.isdisjoint(words_of(reference.name)):
        return []
    if stream.names and reference.names and list(stream.names) != list(reference.names):
        indices = {name: index for index, name in enumerate(reference.names)}
        shared = [(index, indices[name]) for index, name in enumerate(stream.names) if name in indices]
        return shared[:FEATURES] if len(shared) * 2 >= len(stream.names) else []
    if stream.shape != reference.shape:
        return []
    return [(index, index) for index in range(min(math.prod(stream.shape), FEATURES))]


def _find_pieces(clock: Clock, reference: Clock) -> list[tuple[slice, slice]]:
    """Returns the rows of both streams for some pieces of their common time, spread over all episodes."""
    begins, ends = np.maximum(clock.first_ns, reference.first_ns), np.minimum(clock.last_ns, reference.last_ns)
    spans = np.where((clock.rows > 0) & (reference.rows > 0), ends - begins, 0)
    possible: list[tuple[int, int, int]] = []
    for episode in np.flatnonzero(spans >= PIECE_LEAST_S * 1e9).tolist():
        # No piece begins after 11 hours of an episode.
        piece_count = max(1, int(spans[episode] // int(PIECE_S * 1e9)))
        length = int(spans[episode]) // piece_count
        possible += [(episode, int(begins[episode]) + k * length, length) for k in range(min(piece_count, 4096))]
    chosen: list[int] = np.unique(np.linspace(0, len(possible) - 1, PIECES).astype(int)).tolist() if possible else []
    return [
        (_rows(clock.stream, episode, begin, length), _rows(reference.stream, episode, begin, length))
        for episode, begin, length in (possible[index] for index in chosen)
    ]


def _rows(stream: Stream, episode: int, begin_ns: int, length_ns: int) -> slice:
    first, stop = stream.row_offsets[episode : episode + 2].tolist()
    time_ns = stream.time_ns[first:stop]
    low, high = np.searchsorted(time_ns, [begin_ns, begin_ns + min(length_ns, int(PIECE_S * 1e9))]).tolist()
    return slice(first + low, first + high)


def _measure(
    stream: Stream, reference: Stream, features: list[tuple[int, int]], pieces: list[tuple[slice, slice]]
) -> Latency | None:
    """Returns the latency of a stream, or None if no latency is clear."""
    period_s = max(float(s.findings["period_ns"]) for s in (stream, reference)) / 1e9
    step_s = max(min(float(s.findings["period_ns"]) for s in (stream, reference)) / 1e9, _GRID_S)
    largest_lag = round(LARGEST_LAG_S / step_s)
    curves = []
    for rows, reference_rows in pieces:
        curve = _correlate(stream, rows, reference, reference_rows, features, step_s, largest_lag)
        if curve is not None:
            curves.append(curve)
    if len(curves) < PIECES_LEAST:
        return None
    mean = np.mean(curves, axis=0)
    lag_s, correlation = _peak(mean, step_s)
    if correlation < CORRELATION or -float(mean.min()) > OPPOSITE * correlation or abs(lag_s) > 0.9 * LARGEST_LAG_S:
        return None
    lags = np.array([_peak(curve, step_s)[0] for curve in curves])
    agreeing = lags[np.abs(lags - lag_s) <= max(period_s, SAME_LAG * abs(lag_s))]
    if len(agreeing) < AGREEING * len(lags):
        return None
    return Latency(lag_s, correlation, len(lags), len(agreeing), float(agreeing.min()), float(agreeing.max()))


def _correlate(
    stream: Stream,
    rows: slice,
    reference: Stream,
    reference_rows: slice,
    features: list[tuple[int, int]],
    step_s: float,
    largest_lag: int,
) -> np.ndarray | None:
    """Returns the correlation of the rates of change, -1 to 1, at lags of -`largest_lag` to `largest_lag` steps, float64.

    It is a mean over the features, each weighted by its share of motion, as opposed to noise, in both streams. Returns None if
    no feature moves or the piece is too short.
    """
    if min(rows.stop - rows.start, reference_rows.stop - reference_rows.start) < _ROWS_LEAST:
        return None
    time, reference_time = stream.time_ns[rows], reference.time_ns[reference_rows]
    begin_ns, end_ns = max(int(time[0]), int(reference_time[0])), min(int(time[-1]), int(reference_time[-1]))
    count = int((end_ns - begin_ns) / 1e9 / step_s) + 1
    base = max(1, round(_BASE_S / step_s))
    if count - base < 2 * largest_lag:
        return None
    grid = np.arange(count) * (step_s * 1e9)
    changes, weight = _rates(stream, rows, [feature for feature, _ in features], time - begin_ns, grid, base)
    other_changes, other_weight = _rates(
        reference, reference_rows, [feature for _, feature in features], reference_time - begin_ns, grid, base
    )
    weight *= other_weight
    if weight.sum() < _MOTION:
        return None
    size = 1 << (2 * (count - base) - 1).bit_length()
    spectrum = (np.conj(np.fft.rfft(other_changes, size)) * np.fft.rfft(changes, size) * weight[:, None]).sum(0)
    correlation = np.fft.irfft(spectrum, size) / weight.sum()
    lags = np.arange(-largest_lag, largest_lag + 1)
    # The larger a lag, the fewer steps overlap.
    curve: np.ndarray = correlation[lags] * ((count - base) / (count - base - np.abs(lags)))
    return curve


def _rates(
    stream: Stream, rows: slice, features: list[int], time: np.ndarray, grid: np.ndarray, base: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns float64 ``[features, n]`` changes over `base` steps of the grid, each row of norm 1, and each feature's share of
    motion, 0 to 1: the correlation of one change with the next, which is 0 for noise."""
    values = stream.values[rows]
    values = values.reshape(len(values), -1)[:, features].astype(np.float64)
    times = time.astype(np.float64)
    changes = np.stack([np.interp(grid, times, column) for column in values.T])
    changes = changes[:, base:] - changes[:, :-base]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        changes -= changes.mean(1, keepdims=True)
        changes /= np.sqrt((changes * changes).sum(1, keepdims=True))
    changes[~np.isfinite(changes).all(1)] = 0
    return changes, np.maximum((changes[:, base:] * changes[:, :-base]).sum(1), 0)


def _peak(curve: np.ndarray, step_s: float) -> tuple[float, float]:
    """Returns the lag of the highest point, refined by a parabola through three points, and the point's value."""
    peak = int(np.argmax(curve))
    shift = 0.0
    if 0 < peak < len(curve) - 1:
        before, top, after = curve[peak - 1 : peak + 2].tolist()
        bend = before - 2 * top + after
        shift = 0.5 * (before - after) / bend if bend else 0.0
    return (peak + shift - len(curve) // 2) * step_s, float(curve[peak])


def _report(
    survey: Survey, stream: Stream, reference: Stream, features: list[tuple[int, int]], latency: Latency
) -> Iterator[Finding]:
    period_s = max(float(s.findings["period_ns"]) for s in (stream, reference)) / 1e9
    part = f", over {len(features)} features" if len(features) < math.prod(stream.shape) else ""
    spread = max(abs(latency.high_s - latency.lag_s), abs(latency.low_s - latency.lag_s))
    lag_s = abs(latency.lag_s)
    if lag_s < max(period_s / 2, spread) or _is_copy(survey, stream, reference):
        return
    later, earlier = (stream, reference) if latency.lag_s > 0 else (reference, stream)
    low, high = sorted(abs(bound) for bound in (latency.low_s, latency.high_s))
    is_backwards = _is_command(later) and not _is_command(earlier)
    yield Finding(
        "warning" if is_backwards or lag_s > LATENCY_WARNING_S else "note",
        "latency",
        f"moves {1e3 * lag_s:.3g} ms after {earlier.name}: {1e3 * low:.3g} to {1e3 * high:.3g} ms in {latency.agreeing} of {latency.pieces} "
        f"pieces; their rates of change correlate by {latency.correlation:.2f}{part}"
        + ("; a command should come before the motion that it commands" if is_backwards else ""),
        stream=later.name,
        count=latency.agreeing,
        value=1e3 * lag_s,
        expected=0.0,
        advice="A robot follows its commands with some delay. A longer delay comes from stamps set on arrival or from another clock: "
        "correct it with the loader's offset, or ingest's --offset.",
    )


def _is_command(stream: Stream) -> bool:
    return not _COMMANDS.isdisjoint(words_of(stream.name))


def _is_copy(survey: Survey, stream: Stream, reference: Stream) -> bool:
    """Whether one stream repeats the other's values some rows earlier or later: that is a copy, no latency."""
    if stream.shape != reference.shape:
        return False
    pairs = ((stream, reference), (reference, stream))
    return any(share_of_equal_rows(survey, a, b, shift) >= SHIFT_SHARE for a, b in pairs for shift in range(SHIFTS))


CHECKS = (check_latency,)
