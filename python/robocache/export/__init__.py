"""A cache out, as what others read: :func:`export` writes LeRobot v3.0 datasets and MCAP files.

`lerobot` and `mcap` each write one; what the format cannot hold is in the report by name, never lost in silence.
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
        cache: its path, or the opened one.
        destination: the folder to write; it must not exist, and appears only when it is complete.
        to: "lerobot" (one folder) or "mcap" (a file an episode).
        streams: the streams to export; all by default.
        fps: for LeRobot the rate of its rows. Optional if all streams have the same stamps, at a whole number of rows a second;
            else every stream is resampled to rows from the latest first stamp of the streams to the earliest last one.
        methods: for LeRobot how streams are resampled, one for all or one a stream: a method of
            :func:`robocache.resample_trajectories`; for cameras "previous" or "nearest". A stream with its own
            (``attributes["methods"]``, as rotations have) needs none.
        rename: for LeRobot ``{stream: feature}``, such as "observation.state" and "action". Streams of one feature are
            concatenated in this order; names of their numbers begin with the stream's.
        video: for LeRobot cameras as H.264 in mp4, lossy, in place of columns of JPEG and PNG files; needs PyAV.
        progress: called as ``progress(done, total, what)`` before each episode.

    Raises:
        ArgumentError: a wrong argument, or streams that do not fit into one table of rows: all that is missing.
        FileError: `destination` exists, or something that the format cannot hold.
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
            "fps, methods, rename, video: for LeRobot alone; in MCAP every stream keeps its own clock and files"
        )
    opened = cache if isinstance(cache, dataset.Dataset) else dataset.open(checked_path("cache", cache))
    place = checked_path("destination", destination).absolute()
    if os.path.lexists(place):
        raise FileError(f"{place}: exists; remove it first")
    if Path(os.path.realpath(place)).is_relative_to(os.path.realpath(opened.path)):
        raise ArgumentError(f"destination: expected a folder outside the cache, got {place}")
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
    report = ExportReport(opened.path, str(place), to, episodes=len(opened))
    for name in (name for name in opened.streams if name not in chosen):
        report.leave_out(name, "not among the streams that were asked for")
    tell = progress or (lambda done, total, what: None)
    opened.verify(list(chosen))  # other formats have no checksums, or their own, which would make damage look whole
    with _unfinished(place) as partial:
        try:
            if to == "mcap":
                from . import mcap

                mcap.write(opened, chosen, partial, report, tell)
            else:
                from . import lerobot

                lerobot.write(opened, chosen, fps, methods, renamed, video, partial, report, tell)
        except ImportError as error:
            extra = "ros" if to == "mcap" else "video"
            raise Error(f"export to {to}: {error}; pip install 'robocache[{extra}]'") from error
    return report


@contextmanager
def _unfinished(place: Path) -> Iterator[Path]:
    """A folder to write, which gets the name `place` at the end of the block, or goes where the block fails."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(f".{place.name}.", place.parent) as folder:
            yield folder
            folder.rename(place)
    except OSError as error:
        raise error if isinstance(error, Error) else FileError(f"{place}: {error.strerror or error}") from error
