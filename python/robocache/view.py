"""Shows the content of a cache: tables for people, JSON values for programs.

Every number comes from the cache or from Dataset.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ._printable import count, printable, to_json_value
from .dataset import Dataset, EncodedFrames, FrameFormat, Stats, Stream
from .notebook import notebook_bar
from .provenance import describe_group, ingests

_FEATURES_SHOWN = 6  # a short table shows at most this many of each stream


def describe(dataset: Dataset) -> dict[str, Any]:
    """Returns everything that `robocache inspect` shows, as values for JSON: NaN and infinity become None."""
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
            "frames": stream.frames and _describe_frames(stream),
            "ragged": stream.ragged,
            "elements": len(stream.values) if stream.ragged else None,
            "findings": stream.findings,
            "stats": stats and {key: np.asarray(getattr(stats, key)).tolist() for key in Stats._fields},
        }
    return {
        "path": dataset.path,
        "episodes": to_json_value(dataset.episodes.to_pylist()),
        "streams": to_json_value(streams),
        "provenance": dataset.provenance,
    }


def _describe_frames(stream: Stream) -> dict[str, Any]:
    format = cast(FrameFormat, stream.frames)
    matrix = None if format.intrinsics is None else format.intrinsics.tolist()
    return {**format._asdict(), "intrinsics": matrix, "bytes": _frame_bytes(stream)}


def _frame_bytes(stream: Stream) -> int:
    values = stream.values
    return len(values.data) if isinstance(values, EncodedFrames) else values.nbytes


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int, str], None]]:
    """Shows a progress bar on the terminal, if standard error is one, or below a notebook's cell. Yields the callback."""
    console = Console(stderr=True)
    if console.is_jupyter:
        yield notebook_bar()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, what: bar.update(
            task, completed=done, total=total, description=escape(printable(what))
        )


def show(dataset: Dataset, console: Console) -> None:
    """Prints streams, episodes, statistics of every feature, and provenance of a cache."""
    _print_line(console, dataset.path, "bold")
    _show_streams(dataset, console)
    _print_line(console, _episodes_line(dataset))
    show_stats(dataset, console, every_feature=True)
    records = list(ingests(dataset.provenance))
    for index, record in enumerate(records):
        if record.source:
            _print_line(console, f"{'appended' if index else 'made from'} {record.source}")
    for record in records:
        for name, counts in record.repaired.items():
            changes = ", ".join(f"{number} {what.replace('_', ' ')}" for what, number in counts.items())
            _print_line(console, f"repaired {name}: {changes}", "yellow")
    for record in records:
        for line in record.assumed:
            _print_line(console, f"assumed {line}")
        show_left_out(record.left_out, console)
        for omission in record.skipped:
            _print_line(console, f"skipped {describe_group([omission])}", "yellow")


def show_stats(dataset: Dataset, console: Console, *, every_feature: bool) -> None:
    """Prints the statistics of the first features of each stream, or of all."""
    if dataset.stats:
        console.print(_stats_table(dataset, every_feature))


def show_left_out(omissions: Iterable[tuple[str, str]], console: Console) -> None:
    """Prints what was left out by design, as pairs (what, reason)."""
    for what, reason in omissions:
        _print_line(console, f"left out {what}: {reason}", "dim")


def _print_line(console: Console, text: str, style: str = "") -> None:
    console.print(printable(text), style=style, highlight=False, markup=False)


def _show_streams(dataset: Dataset, console: Console) -> None:
    """Prints a table row for each stream, then the kinds of clocks, and anything odd."""
    units = {name: _units(stream) for name, stream in dataset.streams.items()}
    table = _table("stream", "values", *["units"] * any(units.values()), ">rows", ">Hz", ">jitter ms", ">longest ms")
    for name, stream in dataset.streams.items():
        findings = stream.findings
        clock_cells = (
            f"{stream.rate_hz:.4g}",
            f"{findings['jitter_ns'] / 1e6:.3f}",
            f"{findings['max_period_ns'] / 1e6:.2f}",
        )
        table.add_row(
            WrappedText(name),
            _values(stream),
            *[WrappedText(units[name])] * any(units.values()),
            str(stream.rows),
            *(clock_cells if stream.kind != "text" else ()),  # text has no rate
        )
    console.print(table)
    cameras = {name: stream for name, stream in dataset.streams.items() if stream.frames}
    if cameras:
        _show_cameras(cameras, console)
    for clock, meaning in (("recorded", "the stamps are a clock's"), ("nominal", "the stamps are only index / rate")):
        names = [name for name, stream in dataset.streams.items() if stream.clock == clock]
        if names:
            listed = "all streams" if len(names) == len(dataset.streams) else ", ".join(names)
            console.print(WrappedText(f"{clock} clock, {meaning}: {listed}"))
    for name, stream in dataset.streams.items():
        if odd := ", ".join(count(number, what) for what, number in oddities(stream).items() if number):
            console.print(WrappedText(f"{name}: {odd}"))


def oddities(stream: Stream) -> dict[str, int]:
    """Returns the number of each kind of oddity, by its name in singular."""
    findings = stream.findings
    return {
        "gap": findings["gaps"] * (stream.kind != "text"),
        "repeated stamp": findings["duplicates"],
        "NaN value": findings["nan_values"],
        "infinite value": findings["infinite_values"],
        "constant feature": len(findings["constant_features"]),
        "empty episode": findings["empty_episodes"],
    }


def _values(stream: Stream) -> str:
    """Describes a row of the stream."""
    if stream.ragged is None:
        return f"{stream.dtype} {list(stream.shape)}"
    per_row = len(stream.values) / max(stream.rows, 1)
    if stream.ragged == "text":
        return f"text, mean {per_row:.4g} bytes"
    return f"ragged {stream.dtype} {list(stream.shape)}, mean {per_row:.4g} a row"


def _units(stream: Stream) -> str:
    units = stream.attributes.get("units")
    return ", ".join(dict.fromkeys(map(str, units))) if isinstance(units, list) else str(units or "")


def _show_cameras(cameras: Mapping[str, Stream], console: Console) -> None:
    table = _table("camera", "frames", ">width", ">height", ">bytes a frame")
    facts_lines = []
    for name, stream in cameras.items():
        format = cast(FrameFormat, stream.frames)
        size = f"{_frame_bytes(stream) / stream.rows:,.0f}" if stream.rows else ""
        table.add_row(
            WrappedText(name), f"{format.codec} {format.color_space}", str(format.width), str(format.height), size
        )
        facts = [f"a unit is {format.unit_m:g} m"] if format.unit_m else []
        if format.intrinsics is not None:
            facts.append("intrinsics")
        facts += [f"{key} {value}" for key, value in (format.resized or {}).items()]
        if facts:
            facts_lines.append(f"{name}: {', '.join(facts)}")
    console.print(table)
    for line in facts_lines:
        console.print(WrappedText(line))


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
            table.add_row(WrappedText(name, "bold"), *values[0])
            continue
        table.add_row(WrappedText(name, "bold"))
        for feature in range(rows):
            table.add_row(WrappedText(f"  {feature_name(stream, feature)}"), *values[feature])
        if rows < width:
            table.add_row(Text(f"  and {width - rows} more", style="dim"))
            table.caption = "--all: every feature"
    return table


def feature_name(stream: Stream, feature: int) -> str:
    return stream.names[feature] if stream.names else f"[{feature}]"


class WrappedText:
    """Text that breaks at spaces. A word longer than a line breaks after dots, dashes, slashes and underscores if it can."""

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
    """Creates an empty table. A heading that begins with > belongs to a column of numbers."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption_justify="left")
    for index, heading in enumerate(headings):
        is_numeric = heading.startswith(">")
        # Numbers do not wrap. Names wrap first, to at least 8 characters per line.
        table.add_column(
            heading.lstrip(">"),
            justify="right" if is_numeric else "left",
            no_wrap=is_numeric,
            overflow="fold",
            min_width=None if index else 8,
        )
    return table


def episode_seconds(dataset: Dataset) -> np.ndarray:
    """Returns the seconds from each episode's first sample to its last, in any stream: float64 [episodes], 0 without samples."""
    import pyarrow.compute as pc  # imported here, so that `import robocache` does not need pyarrow

    nanoseconds = pc.subtract(dataset.episodes["end_ns"], dataset.episodes["start_ns"])
    return np.asarray(pc.fill_null(nanoseconds, 0)).view(np.uint64) / 1e9  # a difference may exceed int64


def show_installation(facts: dict[str, Any], console: Console) -> None:
    """Prints the result of :func:`robocache.check_installation`."""
    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")  # a path must not be cut
    for name, version in facts["versions"].items():
        absence = "not installed; batches are numpy arrays, on the CPU" if name == "torch" else "not installed"
        table.add_row(name, version or absence)
    table.add_row("library", escape(facts["library"]))
    table.add_row("CUDA plugin", escape(facts["cuda_library"] or "not in this installation"))
    cpu, cuda = facts["cpu"], facts["cuda"]
    table.add_row("CPU", f"{cpu['threads']} threads, {cpu['memory_total'] / 2**30:.1f} GiB")
    table.add_row("CUDA", escape(cuda["reason"] or f"runtime {cuda['runtime']}, driver {cuda['driver']}"))
    for device in cuda["devices"]:
        memory = f"{device['memory_free'] / 2**30:.1f} of {device['memory_total'] / 2**30:.1f} GiB free"
        table.add_row(f"cuda:{device['index']}", f"{device['name']}, sm {device['compute_capability']}, {memory}")
        if device["failure"]:
            table.add_row("", escape(f"does not work: {device['failure']}"))
    table.add_row("works", "yes" if facts["ok"] else "no")
    console.print(table)
