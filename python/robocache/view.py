"""What a cache holds, for people (tables, a picture) and for programs (JSON-able values).

Every figure is one that the cache stores or Dataset gives; nothing is judged here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .dataset import Dataset, Stats
from .errors import ArgumentError, Error

_FEATURES_SHOWN = 6


def describe(dataset: Dataset) -> dict[str, Any]:
    """All that `robocache inspect` knows of a cache, JSON-able: NaN and infinity become None."""
    streams = {}
    for name, stream in dataset.streams.items():
        stats = dataset.stats[name]
        streams[name] = {
            "dtype": str(stream.dtype),
            "shape": list(stream.shape),
            "rows": stream.rows,
            "rate_hz": stream.rate_hz,
            "clock": stream.clock,
            "names": stream.names,
            "findings": stream.findings,
            "stats": {key: np.asarray(getattr(stats, key)).tolist() for key in Stats._fields},
        }
    return _jsonable(
        {
            "path": str(dataset.path),
            "episodes": dataset.episodes.to_pylist(),
            "streams": streams,
            "provenance": dataset.provenance,
        }
    )


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show(dataset: Dataset, console: Console, *, every_feature: bool = False) -> None:
    """Prints a cache's streams, episodes, statistics and provenance as tables."""
    console.print(str(dataset.path), style="bold", highlight=False, markup=False)
    console.print(streams_table(dataset))
    console.print(_episodes_line(dataset), highlight=False, markup=False)
    for name in dataset.streams:
        console.print(_stats_table(dataset, name, every_feature))
    if "source" in dataset.provenance:
        console.print(f"made from {dataset.provenance['source']}", highlight=False, markup=False)
    show_omissions(dataset.provenance, console)


def show_omissions(of: Mapping[str, Any], console: Console) -> None:
    """Prints what an ingest left out and skipped, from its report or a cache's provenance."""
    for omission in of.get("left_out", []):
        console.print(f"left out {omission['what']}: {omission['reason']}", style="dim", highlight=False, markup=False)
    for omission in of.get("skipped", []):
        console.print(f"skipped {omission['reason']}", style="yellow", highlight=False, markup=False)


def streams_table(dataset: Dataset) -> Table:
    """A row a stream: what it is, how fast, and whatever is odd about it."""
    table = _table("streams", "stream", "values", ">rows", ">Hz", ">jitter ms", ">longest ms", "found")
    for name, stream in dataset.streams.items():
        found = stream.findings
        counts = {
            "gaps": found["gaps"],
            "stamps repeated": found["duplicates"],
            "NaN": found["nan_values"],
            "infinite": found["infinite_values"],
            "constant features": len(found["constant_features"]),
            "episodes without it": found["empty_episodes"],
        }
        odd = [f"{stream.clock} clock", *(f"{count} {what}" for what, count in counts.items() if count)]
        table.add_row(
            escape(name),
            f"{stream.dtype} {list(stream.shape)}",
            str(stream.rows),
            f"{stream.rate_hz:.4g}",
            f"{found['jitter_ns'] / 1e6:.3f}",
            f"{found['max_period_ns'] / 1e6:.2f}",
            "\n".join(odd),
        )
    return table


def _episodes_line(dataset: Dataset) -> str:
    seconds = episode_seconds(dataset)
    lengths = "none"
    if len(seconds):
        lengths = (
            f"{seconds.min():.2f} to {seconds.max():.2f} s, median {np.median(seconds):.2f}, {seconds.sum():.2f} in all"
        )
    return f"{len(dataset)} episodes: {lengths}; columns {', '.join(dataset.episodes.column_names)}"


def _stats_table(dataset: Dataset, name: str, every_feature: bool) -> Table:
    shown = ("mean", "std", "min", "q01", "q50", "q99", "max")
    table = _table(f"statistics of {escape(name)}", "feature", *(f">{heading}" for heading in shown))
    columns = [np.ravel(getattr(dataset.stats[name], key)) for key in shown]
    width = len(columns[0])
    rows = width if every_feature else min(width, _FEATURES_SHOWN)
    labels = dataset.streams[name].names or range(width)
    for feature in range(rows):
        table.add_row(escape(str(labels[feature])), *(f"{column[feature]:.3g}" for column in columns))
    if rows < width:
        table.caption = f"and {width - rows} more (--all)"
    return table


def _table(title: str, *headings: str) -> Table:
    """An empty table; a heading that begins with > is of a column of numbers."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in headings:
        number = heading.startswith(">")
        table.add_column(heading.lstrip(">"), justify="right" if number else "left", no_wrap=number, overflow="fold")
    return table


def episode_seconds(dataset: Dataset) -> np.ndarray:
    """The time from each episode's first sample to its last, of any stream, 0 without a sample: float64 [episodes]."""
    nanoseconds = pc.subtract(dataset.episodes["end_ns"], dataset.episodes["start_ns"])
    return pc.fill_null(nanoseconds, 0).to_numpy() / 1e9


def plot(dataset: Dataset, path: str | Path, *, episode: int = 0) -> None:
    """Saves a picture: one episode's ticks and periods, every stream's periods, the episodes' lengths.

    Raises:
        Error: matplotlib is not installed.
        ArgumentError: no such episode, or a file name whose ending is no format of matplotlib's.
    """
    plt = pyplot()
    figure, ((ticks, jitter), (periods, lengths)) = plt.subplots(2, 2, figsize=(14, 8), layout="constrained")
    figure.suptitle(f"{dataset.path}: {len(dataset)} episodes")
    rows = dataset.episode(episode)
    rows = {name: times for name, (times, _) in rows.items() if len(times) > 1}
    start = max((int(times[0]) for times in rows.values()), default=0)
    slowest = max((dataset.streams[name].findings["period_ns"] for name in rows), default=1e9)
    for place, (name, times) in enumerate(rows.items()):
        color = f"C{place}"
        since = (times - start) / 1e9
        early = since[(since >= 0) & (since <= 12 * slowest / 1e9)]
        ticks.plot(early, np.full(len(early), place), "|", color=color, markersize=16)
        periods.plot(since[1:], np.diff(times) / 1e6, ".", color=color, markersize=3, label=name)
    ticks.set(title=f"ticks where all streams of episode {episode} have begun", xlabel="s")
    ticks.set(yticks=range(len(rows)), yticklabels=rows, ylim=(max(1, len(rows)) - 0.5, -0.5))
    periods.set(title=f"time from one sample to the next, episode {episode}", xlabel="s", ylabel="ms", yscale="log")
    for place, name in enumerate(rows):
        stream = dataset.streams[name]
        within = np.ones(len(stream.time_ns), bool)
        within[stream.row_offsets[:-1][stream.row_offsets[:-1] < len(within)]] = False
        relative = np.diff(stream.time_ns)[within[1:]] / stream.findings["period_ns"]
        jitter.hist(np.clip(relative, 0, 4), bins=np.linspace(0, 4, 161), histtype="step", log=True, color=f"C{place}")
    jitter.set(
        title="all episodes: period over its median (4 and more at the right)", xlabel="periods", ylabel="samples"
    )
    lengths.bar(range(len(dataset)), episode_seconds(dataset), width=1.0, color="0.6", edgecolor="white")
    lengths.set(title="episode lengths", xlabel="episode", ylabel="s")
    lengths.xaxis.get_major_locator().set_params(integer=True)
    if rows:
        figure.legend(*periods.get_legend_handles_labels(), loc="outside lower center", ncols=4, markerscale=4)
    try:
        figure.savefig(path, dpi=110)
    except ValueError as error:  # the name's ending is no format of matplotlib's
        raise ArgumentError(f"{path}: {error}") from error
    finally:
        plt.close(figure)


def show_installation(found: dict[str, Any], console: Console) -> None:
    """Prints what :func:`robocache.check_installation` found."""
    table = Table(show_header=False, box=None)
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
