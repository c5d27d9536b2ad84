"""Robot files in, a cache out: :func:`ingest` finds the format and hands the files to that format's reader."""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .. import dataset
from ..errors import ArgumentError, ArgumentTypeError, FileError

FORMATS = ("lerobot", "csv")


class SourceError(FileError):
    """Something in the source that cannot be read as it stands; ``on_error="skip"`` passes over it by name."""


@dataclass(frozen=True)
class Omission:
    """A thing that is not in the cache, and why."""

    what: str
    reason: str


@dataclass
class IngestReport:
    """What an ingest did.

    `rows` counts the rows of each stream that the cache holds. `left_out` names what a cache of this format does not
    hold by design (video, text columns), `skipped` what ``on_error="skip"`` passed over because it could not be read.
    """

    source: str
    cache: str
    format: str
    episodes: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    left_out: list[Omission] = field(default_factory=list)
    skipped: list[Omission] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-able values."""
        return asdict(self)


class Job:
    """What a reader is given: the writer to fill, and where to tell of progress, omissions and errors."""

    def __init__(
        self,
        writer: dataset.Writer,
        report: IngestReport,
        on_error: str,
        progress: Callable[[int, int, str], None] | None,
    ) -> None:
        self.writer = writer
        self.episodes = 0
        self._report = report
        self._on_error = on_error
        self._progress = progress

    def advance(self, done: int, total: int, what: str) -> None:
        """Tells that `done` of `total` files or episodes are through and `what` comes next."""
        if self._progress is not None:
            self._progress(done, total, what)

    def leave_out(self, what: str, reason: str) -> None:
        """Names a thing that the cache does not hold by design; once, however often it is met."""
        omission = Omission(what, reason)
        if omission not in self._report.left_out:
            self._report.left_out.append(omission)

    def skip(self, what: str, error: SourceError) -> None:
        """Raises `error`, or passes over `what` by name where the user chose so."""
        if self._on_error == "stop":
            raise error
        self._report.skipped.append(Omission(what, str(error)))

    @contextmanager
    def episode(self, what: str, where: str, /, **metadata: Any) -> Iterator[Any]:
        """An episode of the writer; where its rows cannot be read or written, it is skipped whole as `what`.

        `where` begins the message of what the writer refuses.
        """
        try:
            with self.writer.episode(**metadata) as episode:
                yield episode
        except SourceError as error:
            self.skip(what, error)
        except (ArgumentError, ArgumentTypeError) as error:
            self.skip(what, SourceError(f"{where}: {error}"))
        else:
            self.episodes += 1


class Reader(Protocol):
    """A module of this package that reads one format."""

    def recognises(self, source: Path) -> bool:
        """Whether the files look like this format."""

    def read(self, source: Path, job: Job, **options: Any) -> dict[str, Any]:
        """Writes every episode to ``job.writer``; returns what the provenance says of this format, JSON-able."""


def ingest(
    source: str | Path,
    cache: str | Path,
    *,
    format: str | None = None,
    on_error: str = "stop",
    overwrite: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> IngestReport:
    """Reads a robot dataset and writes it as a cache, every stream on its own clock; nothing is resampled.

    Args:
        source: a LeRobot dataset (v2.0, v2.1, v3.0), or a folder of CSV logs.
        cache: the directory to write; it appears whole when everything has been read, or not at all.
        format: "lerobot" or "csv"; found from the files when None.
        on_error: "stop" raises at the first thing that cannot be read; "skip" passes over it and names it in the report.
        overwrite: replaces a cache that is there; otherwise an existing `cache` is refused.
        progress: called as ``progress(done, total, what)`` while episodes or files go through.
        options: for CSV `time_column` (name or number of the clock's column, default 0), `time_unit` ("s", "ms", "us",
            "ns"; found from header and values when None) and `sort_times` (True sorts rows that are out of order).

    Returns:
        An :class:`IngestReport`.

    Raises:
        FileError: a file is missing, damaged or not the data (named, with the row where there is one); or nothing was
            left to keep.
        ArgumentError: an argument or option that does not exist or has another value than those above.

    Example:
        >>> report = robocache.ingest("logs/", "cache", time_unit="ms")
        >>> report.episodes, report.rows
        (1, {'imu': 13312, 'joints': 33280})
    """
    source = Path(source)
    if format not in (None, *FORMATS):
        raise ArgumentError(f"format: expected one of {', '.join(FORMATS)} or None, got {format!r}")
    if on_error not in ("stop", "skip"):
        raise ArgumentError(f"on_error: expected 'stop' or 'skip', got {on_error!r}")
    if not source.exists():
        raise FileError(f"{source}: no such file or directory")
    started = time.perf_counter()
    name, reader = _find_reader(source, format)
    unknown = options.keys() - inspect.signature(reader.read).parameters.keys()
    if unknown:
        raise ArgumentError(f"{min(unknown)}: not an option of format {name!r}")
    report = IngestReport(str(source), str(cache), name)
    with dataset.Writer(cache, overwrite=overwrite) as writer:
        job = Job(writer, report, on_error, progress)
        provenance = reader.read(source, job, **options)
        if job.episodes == 0:
            reasons = [omission.reason for omission in (report.skipped or report.left_out)[:1]]
            raise FileError(f"{source}: nothing to keep; {' '.join(reasons)}")
        writer.provenance.update(
            source=str(source.resolve()),
            format=report.format,
            left_out=[asdict(omission) for omission in report.left_out],
            skipped=[asdict(omission) for omission in report.skipped],
            **provenance,
        )
    written = dataset.open(cache)
    report.episodes = len(written)
    report.rows = {name: stream.rows for name, stream in written.streams.items()}
    report.seconds = time.perf_counter() - started
    return report


def _find_reader(source: Path, format: str | None) -> tuple[str, Reader]:
    for name in FORMATS if format is None else (format,):
        reader = importlib.import_module(f".{name}", __name__)
        if reader.recognises(source):
            return name, reader
    raise FileError(f"{source}: expected a LeRobot dataset (with meta/info.json) or CSV logs (*.csv), found neither")


def is_git_lfs_pointer(path: Path) -> bool:
    """Whether the file is only Git LFS's note of where the data would be."""
    with path.open("rb") as file:
        return file.read(40).startswith(b"version https://git-lfs")


def refuse_git_lfs_pointer(path: Path) -> None:
    """Raises where :func:`is_git_lfs_pointer` holds."""
    if is_git_lfs_pointer(path):
        raise SourceError(f"{path}: a Git LFS pointer, not the data; run `git lfs pull` in its repository first")
