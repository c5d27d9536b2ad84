"""Computes and draws docs/clocks.png, for docs/pictures.py: the stamps of a recorded and of a nominal clock, from a cache."""

from __future__ import annotations

import tempfile

import numpy as np

import robocache

RATE_HZ, ROWS = 20, 30


def compute_numbers() -> list[np.ndarray]:
    """Returns the stamps of both streams, in seconds."""
    rng = np.random.default_rng(6)
    even_times = np.arange(ROWS) / RATE_HZ
    recorded_times = (even_times + rng.normal(0, 0.007, ROWS).clip(-0.02, 0.02))[
        (even_times < 0.7) | (even_times > 0.9)
    ]
    with tempfile.TemporaryDirectory() as folder:
        with robocache.Writer(f"{folder}/cache") as writer, writer.episode() as episode:
            writer.stream("nominal", clock="nominal")
            for name, seconds in (("recorded", recorded_times), ("nominal", even_times)):
                time_ns = np.rint(seconds * 1e9).astype(np.int64)
                episode.append(name, time_ns, np.zeros(len(time_ns)))
        dataset = robocache.open(f"{folder}/cache")
        return [np.asarray(dataset.streams[name].time_ns) / 1e9 for name in ("recorded", "nominal")]


def draw(plt, numbers: list[np.ndarray]):
    figure, axes = plt.subplots(2, 1, figsize=(11, 2.6), sharex=True, layout="constrained")
    titles = ("recorded: the sensor's stamps, with jitter and a gap", "nominal: row number / rate")
    for axis, title, seconds, colour in zip(axes, titles, numbers, ("C0", "C1"), strict=True):
        for stamp in numbers[1]:
            axis.axvline(stamp, color="0.9", linewidth=1, zorder=0)
        axis.plot(seconds, np.zeros(len(seconds)), "|", markersize=26, color=colour, markeredgewidth=2)
        for row in np.flatnonzero(np.diff(seconds) > 2 / RATE_HZ):
            axis.annotate("", (seconds[row], 0), (seconds[row + 1], 0), arrowprops={"arrowstyle": "<->", "color": "C3"})
            axis.text(seconds[row : row + 2].mean(), 0.25, "a gap", color="C3", ha="center", fontsize=9)
        axis.set_title(title, fontsize=10, loc="left")
        axis.set(yticks=[], ylim=(-0.6, 0.7))
    axes[1].set_xlabel("s")
    return figure
