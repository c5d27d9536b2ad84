"""Draws a picture of a cache: values of one episode, a camera's frames, the lengths of episodes, the timing of clocks."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np

from ._printable import count, printable
from .dataset import Dataset, FrameFormat, RaggedRows, Stats, Stream
from .errors import ArgumentError, Error
from .view import episode_seconds, feature_name

_STREAMS_DRAWN, _CLOCKS_DRAWN, _LINES_DRAWN, _POINTS_DRAWN, _TEXTS_DRAWN = 8, 10, 4, 20_000, 12
_FRAME_POINTS, _STRIP_POINTS = 75, 420  # the height of a frame and the width of a strip, in points of 1/72 inch


def plot(dataset: Dataset, path: str | Path, *, episode: int = 0) -> None:
    """Saves a picture: values of one episode over time, a strip of a camera's frames, the episodes' lengths, and the periods of
    recorded clocks.

    Raises:
        Error: matplotlib is not installed.
        ArgumentError: the episode does not exist, or matplotlib does not know the file name's ending.
    """
    plt = pyplot()
    with plt.rc_context({"text.parse_math": False}):  # a $ in a name is no formula
        _plot(plt, dataset, path, episode)


def _plot(plt: Any, dataset: Dataset, path: str | Path, episode: int) -> None:
    if not -len(dataset) <= episode < len(dataset):
        raise ArgumentError(f"episode: expected one from {-len(dataset)} to {len(dataset) - 1}, got {episode}")
    episode %= len(dataset)
    rows = dict(dataset.episode(episode))
    shown = sorted(rows, key=lambda name: _rank(dataset.streams[name], rows[name][1]))[:_STREAMS_DRAWN]
    # A nominal clock ticks evenly by definition, and a single row has no period.
    names_by_stamps: dict[bytes, list[str]] = {}  # streams with the same stamps
    for name in rows:
        if dataset.streams[name].clock == "recorded" and len(rows[name][0]) > 1:
            names_by_stamps.setdefault(rows[name][0].tobytes(), []).append(name)
    # The first stream on each clock, with the number of other streams on it.
    ticking = {names[0]: len(names) - 1 for names in names_by_stamps.values()}
    busiest = sorted(ticking, key=lambda name: -len(rows[name][0]))[:_CLOCKS_DRAWN]
    clocks = {name: more for name, more in ticking.items() if name in busiest}
    right_count = 3 if clocks else 1  # lengths of episodes, periods, jitter
    figure = plt.figure(figsize=(14, max(1.7 * len(shown), 2.8 * right_count) + 0.6), layout="constrained")
    figure.suptitle(f"{printable(dataset.path)}: {count(len(dataset), 'episode')}")
    left, right = figure.subfigures(1, 2, width_ratios=(3, 2))
    start_ns = min((int(times[0]) for times, _ in rows.values() if len(times)), default=0)
    left.suptitle(
        f"values of episode {episode}" + (f", {len(shown)} of {len(rows)} streams" if len(shown) < len(rows) else "")
    )
    axes = left.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0] if shown else []
    for axis, name in zip(axes, shown, strict=True):
        stream, (times, values) = dataset.streams[name], rows[name]
        seconds = (times - start_ns) / 1e9
        if stream.frames:
            _draw_frames(axis, stream, seconds, values)
        elif stream.ragged:
            _draw_ragged(axis, stream, seconds, values)
        else:
            _draw_values(axis, stream, dataset.stats[name], seconds, values)
    if shown:
        axes[-1].set_xlabel("s")
    lengths, *clock_axes = right.subplots(right_count, 1, squeeze=False)[:, 0]
    _draw_lengths(lengths, episode_seconds(dataset))
    if clocks:
        labels = [_shorten(name) + (f" and {more} more" if more else "") for name, more in clocks.items()]
        _draw_periods(clock_axes[0], labels, [rows[name][0] for name in clocks], start_ns)
        shown_clocks = (
            f"{len(clocks)} of {len(ticking)} recorded clocks" if len(clocks) < len(ticking) else "recorded clocks"
        )
        clock_axes[0].set_title(f"{shown_clocks}: time from one sample to the next, episode {episode}", fontsize=9)
        _draw_jitter(clock_axes[1], [dataset.streams[name] for name in clocks])
        right.legend(*clock_axes[0].get_legend_handles_labels(), loc="outside lower center", fontsize=8, markerscale=4)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # for names in letters that the font lacks
            figure.savefig(path, dpi=110)
    except ValueError as error:  # matplotlib does not know the name's ending
        raise ArgumentError(f"{path}: {error}") from error
    finally:
        plt.close(figure)


def _rank(stream: Stream, values: Any) -> int:
    """Returns the rank of a stream for drawing: cameras, clouds, changing numbers, text, then constant or empty streams."""
    if not len(values):
        return 5
    if stream.kind != "numbers":
        return {"frames": 0, "arrays": 1, "text": 3}[stream.kind]
    sample = np.nan_to_num(values[:: -(-len(values) // _POINTS_DRAWN)].astype(np.float64))
    is_still = not np.any(sample[1:] != sample[:1])
    return 5 if is_still else 4 if "covariance" in stream.name.lower() else 2


def _draw_frames(axis: Any, stream: Stream, seconds: np.ndarray, frames: np.ndarray) -> None:
    """Draws a strip of frames, each at its time, with a tick below for every frame."""
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    format = cast(FrameFormat, stream.frames)
    _set_title(axis, stream, len(seconds), f", {format.codec} {format.width} x {format.height}")
    axis.set_yticks([])
    if not len(seconds):
        return
    by_time = axis.get_xaxis_transform()
    axis.plot(seconds, np.full(len(seconds), 0.02), "|", markersize=4, color="0.6", transform=by_time)
    zoom = _FRAME_POINTS / format.height  # a pixel of a picture is a point wide
    drawn = max(1, min(len(seconds), int(_STRIP_POINTS / (zoom * format.width))))
    length = seconds[-1] - seconds[0]
    target_seconds = seconds[0] + length * (np.arange(drawn) + 0.5) / drawn
    for row in np.unique(np.searchsorted(seconds, target_seconds, side="right") - 1):
        picture = OffsetImage(as_picture(format.color_space, frames[row]), zoom=zoom)
        axis.add_artist(AnnotationBbox(picture, (seconds[row], 0.55), xycoords=by_time, frameon=False))


def _draw_ragged(axis: Any, stream: Stream, seconds: np.ndarray, rows: RaggedRows) -> None:
    """Draws the number of elements of each row; for text a tick for each row, and some of the texts."""
    if stream.ragged == "array":
        _set_title(axis, stream, len(seconds), ", elements of each row")
        axis.plot(seconds, np.diff(rows.offsets), linewidth=0.9, marker="." if len(seconds) < 50 else "")
        return
    _set_title(axis, stream, len(seconds), ", text")
    axis.set_yticks([])
    axis.set_ylim(0, 1)
    axis.plot(seconds, np.full(len(seconds), 0.02), "|", markersize=4, color="0.6")
    for row in range(0, len(seconds), -(-len(seconds) // _TEXTS_DRAWN) or 1):
        shown = " ".join(rows[row].split())[:30]
        axis.text(seconds[row], 0.1, shown, fontsize=7, rotation=20, clip_on=True, parse_math=False)


def as_picture(color_space: str, frame: np.ndarray) -> np.ndarray:
    """Returns uint8 [H, W, 3] for display: depth from dark to bright between its least and greatest value, else black."""
    if color_space == "depth":
        is_measured = np.isfinite(frame) & (frame > 0)
        least, most = (frame[is_measured].min(), frame[is_measured].max()) if is_measured.any() else (0, 1)
        scaled = 55 + 200 * (frame.astype(np.float64) - least) / max(float(most) - float(least), 1e-12)
        frame = np.where(is_measured, scaled, 0).astype(np.uint8)
    elif frame.dtype == np.uint16:
        frame = (frame >> 8).astype(np.uint8)
    elif frame.dtype == np.float32:
        frame = (255 * np.clip(np.nan_to_num(frame), 0, 1)).astype(np.uint8)
    return np.broadcast_to(frame, (*frame.shape[:2], 3))


def _set_title(axis: Any, stream: Stream, rows: int, more: str) -> None:
    rate = f", {stream.rate_hz:.4g} Hz" if stream.rate_hz else ""
    axis.set_title(
        f"{_shorten(stream.name)}{rate}{more}" if rows else f"{_shorten(stream.name)}: no rows", loc="left", fontsize=9
    )


def _draw_values(axis: Any, stream: Stream, stats: Stats, seconds: np.ndarray, values: np.ndarray) -> None:
    """Draws over time the few features that vary most in the whole cache."""
    width = math.prod(stream.shape)
    features = np.sort(np.argsort(-np.nan_to_num(np.ravel(stats.std)), kind="stable")[:_LINES_DRAWN])
    step = -(-len(seconds) // _POINTS_DRAWN) or 1
    lines = values.reshape(len(seconds), width)[::step, features].astype(np.float64)
    style = "default" if stream.dtype.kind not in "iub" else "steps-post"
    for feature, line in zip(features, lines.T, strict=True):
        axis.plot(
            seconds[::step],
            line,
            linewidth=0.9,
            drawstyle=style,
            marker="." if len(seconds) < 50 else "",
            label=_label(_shorten(feature_name(stream, feature), 24)) if width > 1 else None,
        )
    shown = f", the {len(features)} of {width} features that vary most" if len(features) < width else ""
    _set_title(axis, stream, len(seconds), shown)
    if width > 1 and len(seconds):
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=7, frameon=False)  # beside the lines


def _shorten(name: str, most: int = 40) -> str:
    """Returns the end of a long name, which says more than its beginning."""
    name = printable(name)
    return name if len(name) <= most else f"...{name[3 - most :]}"


def _label(name: str) -> str:
    """Returns a name for a legend. Legends hide names that begin with an underscore."""
    name = printable(name)
    return f" {name}" if name.startswith("_") else name


def _draw_lengths(axis: Any, seconds: np.ndarray) -> None:
    if len(seconds) <= 60:
        axis.bar(range(len(seconds)), seconds, width=0.9, color="0.6")
        axis.set(xlabel="episode", ylabel="s")
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    else:
        axis.hist(seconds, bins=40, color="0.6")
        axis.set(xlabel="s", ylabel="episodes")
    axis.set_title("episode lengths", fontsize=9)


def _draw_periods(axis: Any, labels: list[str], clocks: list[np.ndarray], start_ns: int) -> None:
    all_periods = []
    for label, times in zip(labels, clocks, strict=True):
        periods = np.diff(times) / 1e6
        step = -(-len(periods) // _POINTS_DRAWN) or 1
        axis.plot((times[1:][::step] - start_ns) / 1e9, periods[::step], ".", markersize=3, label=_label(label))
        all_periods.append(periods[periods > 0])
    drawn = np.concatenate(all_periods)
    _plain_log_axis(axis)
    if len(drawn):
        axis.set_ylim(drawn.min() / 2, drawn.max() * 2)
    axis.set(xlabel="s", ylabel="ms")


def _draw_jitter(axis: Any, streams: list[Stream]) -> None:
    """Draws the distribution of periods around their median, for all episodes."""
    for stream in streams:
        has_period = np.ones(stream.rows, bool)
        has_period[stream.row_offsets[:-1][stream.row_offsets[:-1] < stream.rows]] = False
        relative = np.diff(stream.time_ns)[has_period[1:]] / (stream.findings["period_ns"] or 1)
        axis.hist(np.clip(relative, 0, 4), bins=np.linspace(0, 4, 161), histtype="step")
    _plain_log_axis(axis)
    axis.set(xlabel="period / its median (4: and more)", ylabel="samples, all episodes")
    axis.set_ylim(bottom=0.7)


def _plain_log_axis(axis: Any) -> None:
    """Sets a logarithmic axis with labels such as 20, 50, 100 instead of powers of ten."""
    from matplotlib import ticker

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5), numticks=8))
    axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.yaxis.set_minor_formatter(ticker.NullFormatter())


def pyplot() -> Any:
    """Returns matplotlib.pyplot for drawing to files. If it is missing, raises an Error with the command that installs it."""
    try:
        import matplotlib
    except ImportError as error:
        raise Error("a picture needs matplotlib; pip install 'robocache[plot]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
