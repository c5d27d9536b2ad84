"""Exports caches for other programs: :func:`export` writes LeRobot v3.0 datasets and MCAP files.

`lerobot` and `mcap` each write one format. The report names everything that a format cannot hold.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from .. import dataset
from .._check import truth
from .._lib import text
from .._temporary import temporary_folder
from ..errors import ArgumentError, ArgumentTypeError, Error, FileError
from ..ingest.driver import checked_path
from .report import ExportReport

__all__ = ["FORMATS", "ExportReport", "export"]

FORMATS = ("lerobot", "mcap")


def export(
    cache: str | os.PathLike[str] | dataset.Dataset,
    destination: str | os.PathLike[str],
    *,
    to: str,
    streams: Sequence[str] | None = None,
    fps: int | None = None,
    methods: str | Mapping[str, str] | None = None,
    rename: Mapping[str, str] | None = None,
    video: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> ExportReport:
    """Writes a cache as a LeRobot v3.0 dataset or as MCAP files.

    Args:
        cache: the path of a cache, or an open :class:`Dataset`.
        destination: the folder to write; it must not exist, and appears only when it is complete.
        to: "lerobot" (one folder) or "mcap" (one file per episode).
        streams: the streams to export; all by default.
        fps: for LeRobot the rate of its rows. Optional if all streams have the same stamps, at a whole number of rows a second.
            Otherwise every stream is resampled, from the latest first stamp of the streams to the earliest last one.
        methods: for LeRobot the methods for resampling, one for all streams or ``{stream: method}``: a method of
            :func:`robocache.resample_trajectories`; for cameras "previous" or "nearest". A stream that has its own methods
            (``attributes["methods"]``, as rotations have) needs none.
        rename: for LeRobot ``{stream: feature}``, such as "observation.state" and "action". Streams of one feature are
            concatenated in the order of `rename`; the names of their numbers then begin with the stream's name.
        video: for LeRobot, write cameras as lossy H.264 in mp4 instead of columns of JPEG and PNG files; needs PyAV.
        progress: called as ``progress(done, total, what)`` before each episode.

    Raises:
        ArgumentError: a wrong argument, or streams that do not fit into one table of rows; it names everything that is missing.
        FileError: `destination` exists, or the cache has something that the format cannot hold.
        Error: a package that writes this format is missing.

    Example:
        >>> report = robocache.export("cache", "dataset", to="lerobot", fps=25, methods="linear")
        >>> report.rows["action"]
        400
    """
    if text("to", to) not in FORMATS:
        raise ArgumentError(f"to: expected one of {', '.join(FORMATS)}, got {to!r}")
    video = truth("video", video)
    if to == "mcap" and (fps is not None or methods is not None or rename is not None or video):
        raise ArgumentError(
            "fps, methods, rename, video: only for LeRobot; in MCAP every stream keeps its own clock and files"
        )
    opened = cache if isinstance(cache, dataset.Dataset) else dataset.open(checked_path("cache", cache))
    path = checked_path("destination", destination).absolute()
    if os.path.lexists(path):
        raise FileError(f"{path}: exists; remove it first")
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(opened.path)):
        raise ArgumentError(f"destination: expected a folder outside the cache, got {path}")
    if isinstance(streams, str) or not isinstance(streams, Iterable | None):
        raise ArgumentTypeError(f"streams: expected a list of names, got {streams!r}")
    streams = None if streams is None else [text("streams", name) for name in streams]
    for name in streams or ():
        if name not in opened.streams:
            raise ArgumentError(f"streams: no stream {name!r} among {', '.join(opened.streams)}")
    if not isinstance(rename, Mapping | None):
        raise ArgumentTypeError(f"rename: expected {{stream: feature}}, got {rename!r}")
    renamed = {text("rename", name): text(f"rename[{name!r}]", feature) for name, feature in (rename or {}).items()}
    chosen = {name: stream for name, stream in opened.streams.items() if streams is None or name in streams}
    report = ExportReport(opened.path, str(path), to, episodes=len(opened))
    for name in (name for name in opened.streams if name not in chosen):
        report.leave_out(name, "not among the requested streams")
    show_progress = progress or (lambda done, total, what: None)
    opened.verify(list(chosen))  # the output has no checksums, or new ones, which would hide damage
    with _partial_folder(path) as partial:
        try:
            if to == "mcap":
                from . import mcap

                mcap.write(opened, chosen, partial, report, show_progress)
            else:
                from . import lerobot

                lerobot.write(opened, chosen, fps, methods, renamed, video, partial, report, show_progress)
        except ImportError as error:
            extra = "ros" if to == "mcap" else "video"
            raise Error(f"export to {to}: {error}; pip install 'robocache[{extra}]'") from error
    return report


@contextmanager
def _partial_folder(path: Path) -> Iterator[Path]:
    """Yields a folder to write to. At the end of the block it is renamed to `path`; if the block fails, it is removed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(".robocache-export-", path.parent) as folder:
            yield folder
            folder.rename(path)
    except OSError as error:
        raise error if isinstance(error, Error) else FileError(f"{path}: {error.strerror or error}") from error
