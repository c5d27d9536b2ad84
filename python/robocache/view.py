"""What a cache holds, for people (tables, a picture) and for programs (JSON-able values).

Every figure is one that the cache stores or Dataset gives; nothing is judged here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from .dataset import Dataset
from .errors import Error

_STATS = ("mean", "std", "min", "q01", "q10", "q50", "q90", "q99", "max", "count")
_FEATURES_SHOWN = 6


def describe(dataset: Dataset) -> dict[str, Any]:
    """All that `robocache inspect` knows of a cache, JSON-able: NaN and infinity become None."""
    streams = {}
    for name, stream in dataset.streams.items():
        stats = dataset.stats[name]
        streams[name] = {
            "dtype": str(stream.dtype),
            "shape": list(stream.shape),
            "rows": len(stream.time_ns),
            "rate_hz": stream.rate_hz,
            "clock": stream.clock,
            "names": stream.names,
            "findings": stream.findings,
            "stats": {key: np.asarray(getattr(stats, key)).tolist() for key in _STATS},
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
    console.print(_episodes_table(dataset))
    console.print(_stats_table(dataset, every_feature))
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
    """A row a stream: its clock, rate and whatever is odd about it."""
    table = Table(title="Streams", title_justify="left")
    for heading in ("stream", "dtype", "shape", "clock"):
        table.add_column(heading)
    for heading in ("rows", "rate Hz", "jitter ms", "longest ms", "gaps", "same time", "NaN", "inf", "constant"):
        table.add_column(heading, justify="right")
    for name, stream in dataset.streams.items():
        found = stream.findings
        table.add_row(
            name,
            str(stream.dtype),
            "x".join(map(str, stream.shape)) or "scalar",
            stream.clock,
            str(len(stream.time_ns)),
            f"{stream.rate_hz:.4g}",
            f"{found['jitter_ns'] / 1e6:.3g}",
            f"{found['max_period_ns'] / 1e6:.4g}",
            *(_count(found[key]) for key in ("gaps", "duplicates", "nan_values", "infinite_values")),
            _count(len(found["constant_features"])),
        )
    return table


def _count(number: int) -> str:
    return str(number) if number else "-"


def _episodes_table(dataset: Dataset) -> Table:
    seconds = episode_seconds(dataset)
    table = Table(title="Episodes", title_justify="left")
    for heading in ("episodes", "total s", "shortest s", "median s", "longest s"):
        table.add_column(heading, justify="right")
    table.add_column("columns")
    summary = (seconds.sum(), seconds.min(), np.median(seconds), seconds.max()) if len(seconds) else ()
    table.add_row(str(len(dataset)), *(f"{s:.2f}" for s in summary), ", ".join(dataset.episodes.column_names))
    return table


def _stats_table(dataset: Dataset, every_feature: bool) -> Table:
    table = Table(title="Statistics", title_justify="left")
    table.add_column("feature")
    for heading in _STATS:
        table.add_column(heading, justify="right")
    for name, stream in dataset.streams.items():
        stats = dataset.stats[name]
        columns = [np.ravel(getattr(stats, key)) for key in _STATS]
        shown = len(columns[0]) if every_feature else min(len(columns[0]), _FEATURES_SHOWN)
        for feature in range(shown):
            label = stream.names[feature] if stream.names else str(feature) if len(columns[0]) > 1 else ""
            table.add_row(f"{name} {label}".strip(), *(f"{column[feature]:.4g}" for column in columns))
        if shown < len(columns[0]):
            table.add_row(f"{name} and {len(columns[0]) - shown} more (--all shows them)", style="dim")
    return table


def episode_seconds(dataset: Dataset) -> np.ndarray:
    """The time from each episode's first sample to its last, of any stream: float64 [episodes]."""
    start, end = (dataset.episodes[column].to_numpy() for column in ("start_ns", "end_ns"))
    return (end - start) / 1e9


def plot(dataset: Dataset, path: str | Path, *, episode: int = 0) -> None:
    """Saves a picture: one episode's ticks and periods, every stream's periods, the episodes' lengths.

    Raises:
        Error: matplotlib is not installed.
    """
    plt = pyplot()
    figure, ((ticks, jitter), (periods, lengths)) = plt.subplots(2, 2, figsize=(14, 8), layout="constrained")
    figure.suptitle(f"{dataset.path}: {len(dataset)} episodes")
    rows = dataset.episode(episode)
    rows = {name: times for name, (times, _) in rows.items() if len(times) > 1}
    start = min((int(times[0]) for times in rows.values()), default=0)
    slowest = max((dataset.streams[name].findings["period_ns"] for name in rows), default=1e9)
    for place, (name, times) in enumerate(rows.items()):
        color = f"C{place}"
        since = (times - start) / 1e9
        early = since[since <= 12 * slowest / 1e9]
        ticks.plot(early, np.full(len(early), place), "|", color=color, markersize=16)
        periods.plot(since[1:], np.diff(times) / 1e6, ".", color=color, markersize=3, label=name)
    ticks.set(title=f"ticks at the start of episode {episode}", xlabel="s", yticks=range(len(rows)), yticklabels=rows)
    ticks.set_ylim(len(rows) - 0.5, -0.5)
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
    if rows:
        figure.legend(*periods.get_legend_handles_labels(), loc="outside lower center", ncols=4, markerscale=4)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def show_installation(found: dict[str, Any], console: Console) -> None:
    """Prints what :func:`robocache.check_installation` found."""
    table = Table(show_header=False, box=None)
    for name, version in found["versions"].items():
        table.add_row(name, version or "not installed")
    table.add_row("library", found["library"])
    table.add_row("CUDA plugin", found["cuda_library"] or "not in this installation")
    cpu, cuda = found["cpu"], found["cuda"]
    table.add_row("CPU", f"{cpu['threads']} threads, {cpu['memory_total'] / 2**30:.1f} GiB")
    table.add_row("CUDA", cuda["reason"] or f"runtime {cuda['runtime']}, driver {cuda['driver']}")
    for device in cuda["devices"]:
        memory = f"{device['memory_free'] / 2**30:.1f} of {device['memory_total'] / 2**30:.1f} GiB free"
        table.add_row(f"cuda:{device['index']}", f"{device['name']}, sm {device['compute_capability']}, {memory}")
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
