"""What a cache holds, for people (tables, a picture) and for programs (JSON-able values).

Every figure is one that the cache stores or Dataset gives; nothing is judged here.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.compute as pc
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from .dataset import Dataset, EncodedFrames, FrameFormat, RaggedRows, Stats, Stream
from .doctor.report import printable
from .errors import ArgumentError, Error

_FEATURES_SHOWN = 6  # in a table, of each stream
_STREAMS_DRAWN, _CLOCKS_DRAWN, _LINES_DRAWN, _POINTS_DRAWN, _TEXTS_DRAWN = 8, 10, 4, 20_000, 12
_FRAME_POINTS, _STRIP_POINTS = 75, 530  # how high a frame is, how wide all of a strip, in points of 1/72 inch


def describe(dataset: Dataset) -> dict[str, Any]:
    """All that `robocache inspect` knows of a cache, JSON-able: NaN and infinity become None."""
    streams = {}
    for name, stream in dataset.streams.items():
        stats = dataset.stats.get(name)
        streams[name] = {
            "dtype": str(stream.dtype),
            "shape": list(stream.shape),
            "rows": stream.rows,
            "rate_hz": stream.rate_hz,
            "clock": stream.clock,
            "names": stream.names,
            "attributes": stream.attributes,
            "frames": stream.frames and _frames_described(stream),
            "ragged": stream.ragged,
            "elements": len(stream.values) if stream.ragged else None,
            "findings": stream.findings,
            "stats": stats and {key: np.asarray(getattr(stats, key)).tolist() for key in Stats._fields},
        }
    return {
        "path": dataset.path,
        "episodes": _jsonable(dataset.episodes.to_pylist()),
        "streams": _jsonable(streams),
        "provenance": dataset.provenance,
    }


def _frames_described(stream: Stream) -> dict[str, Any]:
    format = cast(FrameFormat, stream.frames)
    matrix = None if format.intrinsics is None else format.intrinsics.tolist()
    return {**format._asdict(), "intrinsics": matrix, "bytes": _frame_bytes(stream)}


def _frame_bytes(stream: Stream) -> int:
    """Of all frames, as they are stored."""
    values = stream.values
    return len(values.data) if isinstance(values, EncodedFrames) else values.nbytes


@contextmanager
def ingest_progress() -> Iterator[Callable[[int, int, str], None]]:
    """What :func:`robocache.ingest` takes as `progress`: a bar on the terminal, where standard error is one."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("ingesting", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=escape(what))


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show(dataset: Dataset, console: Console, *, every_feature: bool = False) -> None:
    """Prints a cache's streams, episodes, statistics and provenance as tables."""
    _say(console, dataset.path, "bold")
    show_streams(dataset, console)
    _say(console, _episodes_line(dataset))
    if dataset.stats:
        console.print(_stats_table(dataset, every_feature))
    if "source" in dataset.provenance:
        _say(console, f"made from {dataset.provenance['source']}")
    for told in dataset.provenance.get("appended", []):
        _say(console, f"appended {told['source']}")
    for told in (dataset.provenance, *dataset.provenance.get("appended", [])):
        show_repairs(told.get("repair", {}).get("streams", {}), console)
    show_omissions(dataset.provenance, console)


def _say(console: Console, text: str, style: str = "") -> None:
    """Prints a text as it is, but for what would move the cursor."""
    console.print(printable(text), style=style, highlight=False, markup=False)


def show_repairs(repaired: Mapping[str, Mapping[str, int]], console: Console) -> None:
    """Prints what an ingest repaired, from its report or a cache's provenance."""
    for name, counts in repaired.items():
        done = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in counts.items())
        _say(console, f"repaired {name}: {done}", "yellow")


def show_omissions(of: Mapping[str, Any], console: Console) -> None:
    """Prints what an ingest left out and skipped, from its report or a cache's provenance."""
    for told in (of, *of.get("appended", [])):
        for omission in told.get("left_out", []):
            _say(console, f"left out {omission['what']}: {omission['reason']}", "dim")
        for omission in told.get("skipped", []):
            reason = omission["reason"]  # most often it begins with what was skipped
            line = f"skipped {reason}" if omission["what"] in reason else f"skipped {omission['what']}: {reason}"
            _say(console, line, "yellow")


def show_streams(dataset: Dataset, console: Console) -> None:
    """Prints a row a stream: what it is and how fast; then which clocks were recorded, and whatever is odd."""
    units = {name: _units(stream) for name, stream in dataset.streams.items()}
    table = _table("stream", "values", *["units"] * any(units.values()), ">rows", ">Hz", ">jitter ms", ">longest ms")
    for name, stream in dataset.streams.items():
        found = stream.findings
        ticks = (
            f"{stream.rate_hz:.4g}",
            f"{found['jitter_ns'] / 1e6:.3f}",
            f"{found['max_period_ns'] / 1e6:.2f}",
        )
        table.add_row(
            Name(name),
            _values(stream),
            *[Name(units[name])] * any(units.values()),
            str(stream.rows),
            *(ticks if stream.kind != "text" else ()),  # text comes when it comes
        )
    console.print(table)
    cameras = {name: stream for name, stream in dataset.streams.items() if stream.frames}
    if cameras:
        _show_cameras(cameras, console)
    for clock, meaning in (("recorded", "the stamps are a clock's"), ("nominal", "the stamps are only index / rate")):
        names = [name for name, stream in dataset.streams.items() if stream.clock == clock]
        if names:
            listed = "all streams" if len(names) == len(dataset.streams) else ", ".join(names)
            console.print(Name(f"{clock} clock, {meaning}: {listed}"))
    for name, stream in dataset.streams.items():
        found = stream.findings
        counts = {
            "gap": found["gaps"] * (stream.kind != "text"),
            "repeated stamp": found["duplicates"],
            "NaN value": found["nan_values"],
            "infinite value": found["infinite_values"],
            "constant feature": len(found["constant_features"]),
            "empty episode": found["empty_episodes"],
        }
        odd = ", ".join(count(number, what) for what, number in counts.items() if number)
        if odd:
            console.print(Name(f"{name}: {odd}"))


def _values(stream: Stream) -> str:
    """What a row is."""
    if stream.ragged is None:
        return f"{stream.dtype} {list(stream.shape)}"
    each = len(stream.values) / max(stream.rows, 1)
    if stream.ragged == "text":
        return f"text, mean {each:.4g} bytes"
    return f"ragged {stream.dtype} {list(stream.shape)}, mean {each:.4g} a row"


def _units(stream: Stream) -> str:
    """Each once, of those the stream's attributes say."""
    said = stream.attributes.get("units")
    return ", ".join(dict.fromkeys(map(str, said))) if isinstance(said, list) else str(said or "")


def _show_cameras(cameras: Mapping[str, Stream], console: Console) -> None:
    table = _table("camera", "frames", ">width", ">height", ">bytes a frame")
    known = []
    for name, stream in cameras.items():
        format = cast(FrameFormat, stream.frames)
        each = f"{_frame_bytes(stream) / stream.rows:,.0f}" if stream.rows else ""
        table.add_row(Name(name), f"{format.codec} {format.color_space}", str(format.width), str(format.height), each)
        facts = [f"a unit is {format.unit_m:g} m"] if format.unit_m else []
        if format.intrinsics is not None:
            facts.append("intrinsics")
        facts += [f"{key} {value}" for key, value in (format.resized or {}).items()]
        if facts:
            known.append(f"{name}: {', '.join(facts)}")
    console.print(table)
    for line in known:
        console.print(Name(line))


def count(number: int, what: str) -> str:
    """ "1 episode", "3 episodes"."""
    return f"{number} {what}{'s' * (number != 1)}"


def _episodes_line(dataset: Dataset) -> str:
    seconds = episode_seconds(dataset)
    lengths = "none"
    if len(seconds) == 1:
        lengths = f"{seconds[0]:.2f} s"
    elif len(seconds):
        lengths = (
            f"{seconds.min():.2f} to {seconds.max():.2f} s, median {np.median(seconds):.2f}, {seconds.sum():.2f} in all"
        )
    return f"{count(len(dataset), 'episode')}: {lengths}; columns {', '.join(dataset.episodes.column_names)}"


def _stats_table(dataset: Dataset, every_feature: bool) -> Table:
    shown = ("mean", "std", "min", "q01", "q50", "q99", "max")
    table = _table("statistics", *(f">{heading}" for heading in shown))
    for name, stats in dataset.stats.items():
        stream = dataset.streams[name]
        columns = [np.ravel(getattr(stats, key)) for key in shown]
        width = len(columns[0])
        rows = width if every_feature else min(width, _FEATURES_SHOWN)
        values = [[f"{column[feature] + 0.0:.3g}" for column in columns] for feature in range(rows)]
        if stream.shape == () and not stream.names:
            table.add_row(Name(name, "bold"), *values[0])
            continue
        table.add_row(Name(name, "bold"))
        for feature in range(rows):
            table.add_row(Name(f"  {_feature_name(stream, feature)}"), *values[feature])
        if rows < width:
            table.add_row(Text(f"  and {width - rows} more", style="dim"))
            table.caption = "--all: every feature"
    return table


def _feature_name(stream: Stream, feature: int) -> str:
    return stream.names[feature] if stream.names else f"[{feature}]"


class Name:
    """Text that breaks at spaces; words longer than a line behind dots, dashes, slashes and underscores, before it breaks
    inside of them."""

    def __init__(self, text: str, style: str = "") -> None:
        words = re.findall(r"[^ ]* +|[^ ]+", printable(text))
        self._words = [re.findall(r"[^ ._/-]*[ ._/-]+|[^ ._/-]+", word) for word in words]
        self._style = style

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widths = [cell_len(part) for word in self._words for part in word]
        return Measurement(max(widths, default=0), sum(widths)).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]

        def fits(more: str) -> bool:
            return cell_len((lines[-1] + more).rstrip()) <= options.max_width

        for word in self._words:
            for part in ["".join(word)] if cell_len("".join(word).rstrip()) <= options.max_width else word:
                if lines[-1] and not fits(part):
                    lines.append("")
                lines[-1] += part
        yield Text("\n".join(lines), style=self._style, overflow="fold")


def _table(*headings: str) -> Table:
    """An empty table; a heading that begins with > is of a column of numbers."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption_justify="left")
    for place, heading in enumerate(headings):
        number = heading.startswith(">")
        # Numbers stay whole; of the texts names give way first, but not to a letter a line.
        table.add_column(
            heading.lstrip(">"),
            justify="right" if number else "left",
            no_wrap=number,
            overflow="fold",
            min_width=None if place else 8,
        )
    return table


def episode_seconds(dataset: Dataset) -> np.ndarray:
    """The time from each episode's first sample to its last, of any stream, 0 without a sample: float64 [episodes]."""
    nanoseconds = pc.subtract(dataset.episodes["end_ns"], dataset.episodes["start_ns"])
    return np.asarray(pc.fill_null(nanoseconds, 0)) / 1e9


def plot(dataset: Dataset, path: str | Path, *, episode: int = 0) -> None:
    """Saves a picture: values of one episode over time, of a camera a strip of its frames, the episodes' lengths, and where
    clocks were recorded how they ran.

    Raises:
        Error: matplotlib is not installed.
        ArgumentError: no such episode, or a file name whose ending is no format of matplotlib's.
    """
    plt = pyplot()
    if not -len(dataset) <= episode < len(dataset):
        raise ArgumentError(f"episode: expected one below {len(dataset)}, got {episode}")
    rows = dict(dataset.episode(episode))
    shown = list(rows)[:_STREAMS_DRAWN]
    # A nominal clock ticks evenly by definition, and one row makes no period.
    ticking = [name for name in rows if dataset.streams[name].clock == "recorded" and len(rows[name][0]) > 1]
    busiest = sorted(ticking, key=lambda name: -len(rows[name][0]))[:_CLOCKS_DRAWN]
    clocks = [name for name in ticking if name in busiest]
    beside = 3 if clocks else 1
    figure = plt.figure(figsize=(14, max(1.7 * len(shown), 2.8 * beside) + 0.6), layout="constrained")
    figure.suptitle(f"{dataset.path}: {count(len(dataset), 'episode')}")
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
    lengths, *clock_axes = right.subplots(beside, 1, squeeze=False)[:, 0]
    _draw_lengths(lengths, episode_seconds(dataset))
    if clocks:
        _draw_periods(clock_axes[0], {name: rows[name][0] for name in clocks}, start_ns)
        told = f"{len(clocks)} of {len(ticking)} recorded clocks" if len(clocks) < len(ticking) else "recorded clocks"
        clock_axes[0].set_title(f"{told}: time from one sample to the next, episode {episode}", fontsize=9)
        _draw_jitter(clock_axes[1], [dataset.streams[name] for name in clocks])
        right.legend(*clock_axes[0].get_legend_handles_labels(), loc="outside lower center", fontsize=8, markerscale=4)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # of names in letters that the font lacks
            figure.savefig(path, dpi=110)
    except ValueError as error:  # the name's ending is no format of matplotlib's
        raise ArgumentError(f"{path}: {error}") from error
    finally:
        plt.close(figure)


def _draw_frames(axis: Any, stream: Stream, seconds: np.ndarray, frames: np.ndarray) -> None:
    """A strip of frames, each at its time; below it a tick for every frame there is."""
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    format = cast(FrameFormat, stream.frames)
    _title(axis, stream, len(seconds), f", {format.codec} {format.width} x {format.height}")
    axis.set_yticks([])
    if not len(seconds):
        return
    on_clock = axis.get_xaxis_transform()
    axis.plot(seconds, np.full(len(seconds), 0.02), "|", markersize=4, color="0.6", transform=on_clock)
    zoom = _FRAME_POINTS / format.height  # a pixel of a picture is a point wide
    drawn = max(1, min(len(seconds), int(_STRIP_POINTS / (zoom * format.width))))
    length = seconds[-1] - seconds[0]
    aims = seconds[0] + length * (np.arange(drawn) + 0.5) / drawn
    for row in np.unique(np.searchsorted(seconds, aims, side="right") - 1):
        picture = OffsetImage(_picture(format.color_space, frames[row]), zoom=zoom)
        axis.add_artist(AnnotationBbox(picture, (seconds[row], 0.55), xycoords=on_clock, frameon=False))


def _draw_ragged(axis: Any, stream: Stream, seconds: np.ndarray, rows: RaggedRows) -> None:
    """How many elements each row has; of text a tick for each and some of them to read."""
    if stream.ragged == "array":
        _title(axis, stream, len(seconds), ", elements of each row")
        axis.plot(seconds, np.diff(rows.offsets), linewidth=0.9, marker="." if len(seconds) < 50 else "")
        return
    _title(axis, stream, len(seconds), ", text")
    axis.set_yticks([])
    axis.set_ylim(0, 1)
    axis.plot(seconds, np.full(len(seconds), 0.02), "|", markersize=4, color="0.6")
    for row in range(0, len(seconds), -(-len(seconds) // _TEXTS_DRAWN) or 1):
        shown = " ".join(rows[row].split())[:30]
        axis.text(seconds[row], 0.1, shown, fontsize=7, rotation=20, clip_on=True, parse_math=False)


def _picture(color_space: str, frame: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] for people: depth from dark to bright between its least and its most, black where there is none."""
    if color_space == "depth":
        measured = np.isfinite(frame) & (frame > 0)
        least, most = (frame[measured].min(), frame[measured].max()) if measured.any() else (0, 1)
        scaled = 55 + 200 * (frame.astype(np.float64) - least) / max(float(most) - float(least), 1e-12)
        frame = np.where(measured, scaled, 0).astype(np.uint8)
    elif frame.dtype == np.uint16:
        frame = (frame >> 8).astype(np.uint8)
    elif frame.dtype == np.float32:
        frame = (255 * np.clip(np.nan_to_num(frame), 0, 1)).astype(np.uint8)
    return np.broadcast_to(frame, (*frame.shape[:2], 3))


def _title(axis: Any, stream: Stream, rows: int, more: str) -> None:
    rate = f", {stream.rate_hz:.4g} Hz" if stream.rate_hz else ""
    axis.set_title(
        f"{_short(stream.name)}{rate}{more}" if rows else f"{_short(stream.name)}: no rows", loc="left", fontsize=9
    )


def _draw_values(axis: Any, stream: Stream, stats: Stats, seconds: np.ndarray, values: np.ndarray) -> None:
    """A few features over time: those that vary most in the whole cache."""
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
            label=_feature_name(stream, feature) if width > 1 else None,
        )
    count = f", the {len(features)} of {width} features that vary most" if len(features) < width else ""
    _title(axis, stream, len(seconds), count)
    if width > 1 and len(seconds):
        axis.legend(loc="upper right", fontsize=7, ncols=_LINES_DRAWN)


def _short(name: str) -> str:
    """The end of a long name, which tells more of it than its start."""
    name = printable(name)
    return name if len(name) <= 40 else f"...{name[-37:]}"


def _draw_lengths(axis: Any, seconds: np.ndarray) -> None:
    if len(seconds) <= 60:
        axis.bar(range(len(seconds)), seconds, width=0.9, color="0.6")
        axis.set(xlabel="episode", ylabel="s")
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    else:
        axis.hist(seconds, bins=40, color="0.6")
        axis.set(xlabel="s", ylabel="episodes")
    axis.set_title("episode lengths", fontsize=9)


def _draw_periods(axis: Any, clocks: Mapping[str, np.ndarray], start_ns: int) -> None:
    every = []
    for name, times in clocks.items():
        periods = np.diff(times) / 1e6
        step = -(-len(periods) // _POINTS_DRAWN) or 1
        axis.plot((times[1:][::step] - start_ns) / 1e9, periods[::step], ".", markersize=3, label=_short(name))
        every.append(periods[periods > 0])
    drawn = np.concatenate(every)
    _plain_log_axis(axis)
    if len(drawn):
        axis.set_ylim(drawn.min() / 2, drawn.max() * 2)
    axis.set(xlabel="s", ylabel="ms")


def _draw_jitter(axis: Any, streams: list[Stream]) -> None:
    """Of all episodes, how far periods are from their median."""
    for stream in streams:
        within = np.ones(stream.rows, bool)
        within[stream.row_offsets[:-1][stream.row_offsets[:-1] < stream.rows]] = False
        relative = np.diff(stream.time_ns)[within[1:]] / (stream.findings["period_ns"] or 1)
        axis.hist(np.clip(relative, 0, 4), bins=np.linspace(0, 4, 161), histtype="step")
    _plain_log_axis(axis)
    axis.set(xlabel="period / its median (4: and more)", ylabel="samples, all episodes")
    axis.set_ylim(bottom=0.7)


def _plain_log_axis(axis: Any) -> None:
    """A logarithmic axis whose labels are 20, 50, 100, not powers of ten."""
    from matplotlib import ticker

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5), numticks=8))
    axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.yaxis.set_minor_formatter(ticker.NullFormatter())


def show_installation(found: dict[str, Any], console: Console) -> None:
    """Prints what :func:`robocache.check_installation` found."""
    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")  # a path is of no use without its end
    for name, version in found["versions"].items():
        table.add_row(name, version or "not installed")
    table.add_row("library", escape(found["library"]))
    table.add_row("CUDA plugin", escape(found["cuda_library"] or "not in this installation"))
    cpu, cuda = found["cpu"], found["cuda"]
    table.add_row("CPU", f"{cpu['threads']} threads, {cpu['memory_total'] / 2**30:.1f} GiB")
    table.add_row("CUDA", escape(cuda["reason"] or f"runtime {cuda['runtime']}, driver {cuda['driver']}"))
    for device in cuda["devices"]:
        memory = f"{device['memory_free'] / 2**30:.1f} of {device['memory_total'] / 2**30:.1f} GiB free"
        table.add_row(f"cuda:{device['index']}", f"{device['name']}, sm {device['compute_capability']}, {memory}")
        if device["failure"]:
            table.add_row("", escape(f"does not work: {device['failure']}"))
    table.add_row("works", "yes" if found["ok"] else "no")
    console.print(table)


def pyplot() -> Any:
    """matplotlib.pyplot, drawing to files; raises Error with the way to install it."""
    try:
        import matplotlib
    except ImportError as error:
        raise Error("a picture needs matplotlib; pip install 'robocache[plot]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
