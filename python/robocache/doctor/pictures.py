"""The numbers and small pictures that a report's page draws. However long the recording, they are few."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from .. import frames
from ..dataset import FrameFormat
from ..errors import FrameError
from ..picture import as_picture
from .streams import Clock, Survey

EPISODES, FEATURES, STREAMS = 300, 24, 64  # the most that are drawn
_STRIPS, _FRAMES, _HIGH, _WIDE = 16, 6, 120, 160  # the most cameras, frames of each, rows and columns of a frame


@dataclass
class StreamPicture:
    """The picture of one stream.

    Attributes:
        name: the stream's name.
        period_ns: the median period.
        low, mean, high: the least, mean and largest period in each of 240 parts of the rows, in ns; NaN without periods.
        histogram: the number of periods over 0 between the `EDGES` of streams.py; the outer bins include all periods beyond.
        zeros: the number of periods of 0.
        features: name, min, q01, q50, q99 and max of the first 24 features that change.
        more: the number of further features that change.
        constant: the number of features that do not change.
        spans: the intervals that have rows, on an axis from 0 to 1 along which the episodes lie one after another.
        gaps: the ends of long gaps, on the same axis.
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
class Strip:
    """Some frames of a camera, spread evenly over its rows: episode, row and a small base64 JPEG of each that decodes."""

    name: str
    frames: list[tuple[int, int, str]]


@dataclass
class Pictures:
    """All pictures of a report.

    Attributes:
        streams: the pictures of at most 64 streams.
        borders: where each episode begins and the last one ends, on the same axis; at most 300 episodes.
        seconds: the duration of these episodes together.
        episodes: the number of these episodes.
        strips: the strips of the first 16 cameras.
    """

    streams: list[StreamPicture]
    borders: list[float]
    seconds: float
    episodes: int
    strips: list[Strip]


def draw(survey: Survey) -> Pictures:
    """Returns the pictures of a cache."""
    clocks = list(survey.clocks.values())[:STREAMS]
    episodes = min(len(survey.dataset), EPISODES)
    begins_ns, lengths_ns = np.zeros(episodes, np.int64), np.zeros(episodes)
    for episode in range(episodes):
        present = [clock for clock in clocks if clock.rows[episode]]
        if present:
            begins_ns[episode] = min(int(clock.first_ns[episode]) for clock in present)
            lengths_ns[episode] = max(int(clock.last_ns[episode]) for clock in present) - int(begins_ns[episode])
    borders = np.concatenate([[0.0], np.cumsum(lengths_ns)])
    total = max(float(borders[-1]), 1.0)

    def position(time_ns: int, episode: int) -> float:
        return (float(borders[episode]) + float(time_ns - int(begins_ns[episode]))) / total

    streams = []
    for clock in clocks:
        picture = _make_picture(clock, survey)
        for episode in np.flatnonzero(clock.rows[:episodes]).tolist():
            bounds_ns = (int(clock.first_ns[episode]), int(clock.last_ns[episode]))
            picture.spans.append((position(bounds_ns[0], episode), position(bounds_ns[1], episode)))
        shows_gaps = clock.steady and clock.stream.kind != "text"
        rows = clock.periods.long_gap_rows if shows_gaps else np.empty(0, np.int64)
        for row, episode in zip(rows.tolist(), clock.episode_of(rows).tolist(), strict=True):
            if episode < episodes:
                picture.gaps.append(position(int(clock.stream.time_ns[row]), episode))
        streams.append(picture)
    strips = [_make_strip(survey.clocks[camera.name]) for camera in survey.cameras[:_STRIPS] if camera.rows]
    return Pictures(streams, (borders / total).tolist(), total / 1e9, episodes, strips)


def _make_strip(clock: Clock) -> Strip:
    camera, shown = clock.stream, []
    for row in np.unique(np.linspace(0, camera.rows - 1, _FRAMES).round().astype(np.int64)).tolist():
        try:
            frame = camera.frame(row)
        except FrameError:
            continue  # a finding reports it
        small = as_picture(cast(FrameFormat, camera.frames).color_space, _shrink(frame))
        encoded = frames.encode(small[None], "jpeg", 80).data
        location = clock.locate(row)
        shown.append((location["episode"], location["row"], base64.b64encode(encoded.tobytes()).decode()))
    return Strip(camera.name, shown)


def _shrink(frame: np.ndarray) -> np.ndarray:
    """Returns a frame of at most 160 by 120 pixels: the mean of each block, or one pixel of it for depth."""
    step = max(-(-frame.shape[0] // _HIGH), -(-frame.shape[1] // _WIDE))
    if step == 1 or frame.dtype != np.uint8 or min(frame.shape[:2]) < step:
        return frame[::step, ::step]
    height, width = frame.shape[0] // step, frame.shape[1] // step
    blocks = frame[: height * step, : width * step].reshape(height, step, width, step, frame.shape[2])
    smaller: np.ndarray = blocks.mean((1, 3)).round().astype(np.uint8)
    return smaller


def _make_picture(clock: Clock, survey: Survey) -> StreamPicture:
    stream, periods = clock.stream, clock.periods
    counts, low, high, total = periods.parts.T
    is_empty = counts == 0
    low, high, mean = (np.where(is_empty, np.nan, x) for x in (low, high, total / np.maximum(counts, 1)))
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
