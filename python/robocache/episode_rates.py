"""Makes notes for users whose episodes have different rates. Equal numbers of rows then span different times, and offsets fall
between rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .dataset import Stream
from .sources import streams_of

if TYPE_CHECKING:
    from .options import Anchors, Window
    from .sources import Source

# Rates differ if their ratio exceeds this.
_OTHER_RATE = 1.5
# The median period is computed from this many rows.
_MOST_ROWS = 65_536
_ON_GRID_S = 1e-4  # an offset that is closer to a row than this is at the row


def median_period_ns(time_ns: np.ndarray) -> float:
    """Returns the median positive period; NaN if there is none."""
    steps = np.diff(time_ns[:_MOST_ROWS])
    steps = steps[steps > 0]
    return float(np.median(steps)) if len(steps) else float("nan")


def differ(first: float, second: float) -> bool:
    """Whether two rates or periods differ much. NaN never differs."""
    return max(first, second) > _OTHER_RATE * min(first, second)


def rates_of_stamps(
    values: np.ndarray, time_ns: np.ndarray, unit_ns: float | None = None
) -> tuple[float, float, float] | None:
    """Reads the values as stamps. Returns three rates in Hz: by their mean step, by their median step, and the clock's.
    Returns None if the values are no stamps (they step back, are few, or count rows) or the clock does not advance.

    unit_ns: the values' unit. None: seconds, milliseconds, microseconds or nanoseconds, whichever is nearest to the clock.
    """
    steps = np.diff(values.astype(np.int64 if values.dtype.kind in "iu" else np.float64)).astype(np.float64)
    if len(steps) < 3 or not (np.isfinite(steps).all() and (steps >= 0).all() and np.median(steps) > 0):
        return None
    if (steps == 1).all():
        return None
    # The mean, because stamps may be rounded to whole units.
    clock_ns = float(np.diff(time_ns).mean())
    if not clock_ns:
        return None
    ratio = clock_ns / float(steps.mean())
    unit = unit_ns or min((1.0, 1e3, 1e6, 1e9), key=lambda ns: abs(np.log(ns / ratio)))
    return 1e9 / (float(steps.mean()) * unit), 1e9 / (float(np.median(steps)) * unit), 1e9 / clock_ns


def notes_of_rates(
    windows: Mapping[str, Window], default: Window, anchors: Anchors, sources: Sequence[Source]
) -> Iterator[str]:
    """Yields a note for each window in rows whose episodes have different rates, and for each window in seconds whose offsets
    fall between the rows of some episodes with a nominal clock."""
    for key, window in windows.items():
        streams = [(x, source.episodes) for source in sources for x in streams_of(source, window.stream or key)]
        periods = np.concatenate([_periods_ns(*pair) for pair in streams]) if streams else np.empty(0)
        periods = periods[periods > 0]
        if not len(periods):
            continue
        if window.rows:
            if differ(periods.min(), periods.max()) and _medians_differ(streams):
                slow = periods[periods > periods.min() * _OTHER_RATE]
                yield (
                    f"delta_timestamps['{key}'].rows: a row is not the same time in all episodes: {len(slow)} of {len(periods)} "
                    f"episodes have at most {1e9 / slow.min():.4g} rows a second, the fastest {1e9 / periods.min():.4g}; offsets "
                    "in seconds, without rows=True, are the same times in all"
                )
        elif (
            window.method is None
            and default.method is None
            and anchors.rate_hz is None
            and all(stream.clock == "nominal" for stream, _ in streams)
        ):
            offsets = np.array([0.0] if window.offsets is None else list(window.offsets), np.float64)
            rows = offsets[:, None] / (periods * 1e-9)
            is_between = (np.abs(rows - np.rint(rows)) * periods * 1e-9 > _ON_GRID_S).any(axis=0)
            if 0 < is_between.sum() < len(periods):
                rates = ", ".join(f"{rate:.4g}" for rate in np.unique(np.round(1e9 / periods[is_between], 3))[:4])
                yield (
                    f"delta_timestamps['{key}']: in {is_between.sum()} of {len(periods)} episodes, of {rates} rows a second, "
                    "offsets lie between rows of a nominal clock, so values are interpolated there; method= chooses how, and "
                    "ends this warning"
                )


def _periods_ns(stream: Stream, episodes: Any) -> np.ndarray:
    """Returns the mean period of each episode; 0 if it has fewer than two rows."""
    offsets = stream.row_offsets
    chosen = np.arange(len(offsets) - 1) if episodes is None else np.asarray(episodes, np.int64)
    starts, stops = offsets[chosen], offsets[chosen + 1]
    counts = stops - starts
    measurable = np.flatnonzero(counts > 1)
    periods = np.zeros(len(counts))
    time_ns = stream.time_ns
    periods[measurable] = (time_ns[stops[measurable] - 1] - time_ns[starts[measurable]]) / (counts[measurable] - 1)
    return periods


def _medians_differ(streams: Sequence[tuple[Stream, Any]]) -> bool:
    """Whether the median periods of the fastest and the slowest episode differ much. Gaps do not change a median."""
    medians = []
    for stream, episodes in streams:
        periods = _periods_ns(stream, episodes)
        chosen = np.arange(len(periods)) if episodes is None else np.asarray(episodes, np.int64)
        positive = np.flatnonzero(periods > 0)
        for index in {positive[extreme(periods[positive])] for extreme in (np.argmin, np.argmax) if len(positive)}:
            rows = slice(*stream.row_offsets[chosen[index] : chosen[index] + 2].tolist())
            medians.append(median_period_ns(stream.time_ns[rows]))
    return differ(min(medians), max(medians))
