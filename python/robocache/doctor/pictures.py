"""What a report's page draws, as numbers: of a recording of any length a few hundred of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .streams import Clock, Survey

EPISODES, FEATURES, STREAMS = 300, 24, 64


@dataclass
class StreamPicture:
    """One stream.

    Attributes:
        name: whose.
        period_ns: the median period.
        low, mean, high: of the periods in each of 240 parts of the rows, in ns; NaN where there is none.
        histogram: how many periods lie between `EDGES`, those beyond in the outer ones.
        zeros: periods of 0.
        features: name, min, q01, q50, q99 and max of the first 24 that change.
        more: how many that change there are beyond.
        constant: how many do not change.
        spans: where it has rows, from 0 to 1 of all episodes' time, one behind the other.
        gaps: where it has long gaps, as `spans`.
    """

    name: str
    period_ns: float
    low: np.ndarray
    mean: np.ndarray
    high: np.ndarray
    histogram: np.ndarray
    zeros: int = 0
    features: list[tuple[str, float, float, float, float, float]] = field(default_factory=list)
    more: int = 0
    constant: int = 0
    spans: list[tuple[float, float]] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)


@dataclass
class Pictures:
    """All of a report's.

    Attributes:
        streams: at most 64.
        borders: where the episodes begin and the last one ends, from 0 to 1; at most 300 episodes.
        seconds: how long these are together.
        episodes: how many these are.
    """

    streams: list[StreamPicture]
    borders: list[float]
    seconds: float
    episodes: int


def draw(survey: Survey) -> Pictures:
    """The pictures of a cache."""
    clocks = list(survey.clocks.values())[:STREAMS]
    episodes = min(len(survey.dataset), EPISODES)
    begins, lengths = np.zeros(episodes, np.int64), np.zeros(episodes)
    for episode in range(episodes):
        there = [clock for clock in clocks if clock.rows[episode]]
        if there:
            begins[episode] = min(int(clock.first_ns[episode]) for clock in there)
            lengths[episode] = max(int(clock.last_ns[episode]) for clock in there) - int(begins[episode])
    borders = np.concatenate([[0.0], np.cumsum(lengths)])
    whole = max(float(borders[-1]), 1.0)

    def place(time_ns: int, episode: int) -> float:
        return (float(borders[episode]) + float(time_ns - int(begins[episode]))) / whole

    streams = []
    for clock in clocks:
        picture = _stream(clock, survey)
        for episode in np.flatnonzero(clock.rows[:episodes]).tolist():
            ends = (int(clock.first_ns[episode]), int(clock.last_ns[episode]))
            picture.spans.append((place(ends[0], episode), place(ends[1], episode)))
        gaps = clock.steady and clock.stream.kind != "text"
        rows = clock.periods.long_gap_rows if gaps else np.empty(0, np.int64)
        for row, episode in zip(rows.tolist(), clock.episode_of(rows).tolist(), strict=True):
            if episode < episodes:
                picture.gaps.append(place(int(clock.stream.time_ns[row]), episode))
        streams.append(picture)
    return Pictures(streams, (borders / whole).tolist(), whole / 1e9, episodes)


def _stream(clock: Clock, survey: Survey) -> StreamPicture:
    stream, periods = clock.stream, clock.periods
    number, low, high, total = periods.parts.T
    none = number == 0
    low, high, mean = (np.where(none, np.nan, x) for x in (low, high, total / np.maximum(number, 1)))
    picture = StreamPicture(stream.name, clock.period_ns, low, mean, high, periods.histogram, periods.zeros)
    if stream.kind == "numbers":
        stats = survey.dataset.stats[stream.name]
        columns = [np.ravel(getattr(stats, key)) for key in ("min", "q01", "q50", "q99", "max")]
        moving = np.flatnonzero(columns[0] < columns[4]).tolist()
        for f in moving[:FEATURES]:
            values = [float(column[f]) for column in columns]
            name = stream.names[f] if f < len(stream.names) else f"feature {f}"
            picture.features.append((name, values[0], values[1], values[2], values[3], values[4]))
        picture.more = max(len(moving) - FEATURES, 0)
        picture.constant = len(columns[0]) - len(moving)
    return picture
