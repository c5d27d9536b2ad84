"""Robot files in, a cache out: :func:`ingest` finds the format, and writes what that format's reader yields.

`registry` knows the formats, `recording` says what a reader yields and notes, each format's module reads its files.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from .. import dataset
from ..errors import ArgumentError, ArgumentTypeError, FileError
from .options import make_options
from .recording import Frames, Notes, Omission, Ragged, Recording, Rows, Samples, SourceError, Texts, naming
from .registry import FORMATS, find_format

__all__ = ["FORMATS", "IngestReport", "Omission", "SourceError", "ingest"]


@dataclass
class IngestReport:
    """What an ingest did.

    `rows` counts the rows of each stream that the cache holds. `cameras` has those that are frames: ``frames``, ``width``,
    ``height``, ``color_space``, ``codec``, ``bytes_per_frame``, and ``frames_per_second`` of this ingest. `left_out` names
    what a cache of this format does not hold by design (text columns), `skipped` what ``on_error="skip"`` passed over
    because it could not be read.
    """

    source: str
    cache: str
    format: str
    episodes: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    cameras: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: list[Omission] = field(default_factory=list)
    skipped: list[Omission] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-able values."""
        return asdict(self)


def ingest(
    source: str | os.PathLike[str],
    cache: str | os.PathLike[str],
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
        format: "lerobot" or "csv"; found from the files when None, which must then look like one of them alone.
        on_error: "stop" raises at the first thing that cannot be read; "skip" passes over it and names it in the report.
        overwrite: replaces a cache that is there; otherwise an existing `cache` is refused.
        progress: called as ``progress(done, total, what)`` before each episode is read, and behind each chunk of its frames,
            when `what` tells how many a second.
        options: for LeRobot `video` (False leaves cameras out), `image_size` ("224x224" is width x height; default "keep"),
            `image_fit` ("stretch", "pad", "crop"), `image_codec` ("jpeg:95", "png", "raw"), `frames` ("by-time",
            "by-index"), `jobs` (processes that decode; default one a core) and `index_columns`; for CSV `time_column` (name
            or number of the clock's column, default 0), `time_unit` ("s", "ms", "us", "ns"; found from header and values
            when None) and `sort_times` (True sorts rows that are out of order).

    Returns:
        An :class:`IngestReport`.

    Raises:
        FileError: a file is missing, damaged or not the data (named, with the row where there is one); or nothing was
            left to keep. Its ``__cause__`` is what a library said, where one did.
        ArgumentError, ArgumentTypeError: an argument or option that does not exist or has another value or type than
            those above.
        Error: a package that reads this format is missing; the message has the command that installs it.

    Example:
        >>> report = robocache.ingest("logs/", "cache", time_unit="ms")
        >>> report.episodes, report.rows
        (1, {'imu': 13312, 'joints': 33280})
    """
    source, cache = checked_path("source", source), checked_path("cache", cache)
    if format is not None and not (isinstance(format, str) and format in FORMATS):
        raise ArgumentError(f"format: expected one of {', '.join(FORMATS)} or None, got {format!r}")
    if on_error not in ("stop", "skip"):
        raise ArgumentError(f"on_error: expected 'stop' or 'skip', got {on_error!r}")
    if ".." in cache.parts:
        cache = cache.resolve()  # the writer makes folders that are missing; before, "missing/.." leads nowhere
    check_source(source)
    started = time.perf_counter()
    chosen = find_format(source) if format is None else FORMATS[format]
    settings = make_options(chosen.options, chosen.name, options)
    reader = chosen.load()
    with dataset.Writer(cache, overwrite=overwrite) as writer:
        notes = Notes(chosen.name, writer.provenance, on_error)
        driver = _Driver(writer, notes)
        with closing(reader.read(source, settings, notes)) as recordings:
            _write(driver, source, recordings, notes, progress)
        if driver.kept == 0:
            reasons = [omission.reason for omission in (notes.skipped or notes.left_out)[:1]]
            raise FileError(f"{source}: nothing to keep; {' '.join(reasons)}")
        writer.provenance.update(
            source=str(source.resolve()).encode(errors="backslashreplace").decode(),
            format=chosen.name,
            left_out=[asdict(omission) for omission in notes.left_out],
            skipped=[asdict(omission) for omission in notes.skipped],
        )
    written, seconds = dataset.open(cache), time.perf_counter() - started
    return IngestReport(
        str(source),
        str(cache),
        chosen.name,
        episodes=len(written),
        rows={name: stream.rows for name, stream in written.streams.items()},
        cameras={
            name: _camera(stream, seconds) for name, stream in written.streams.items() if stream.frames is not None
        },
        left_out=notes.left_out,
        skipped=notes.skipped,
        seconds=seconds,
    )


def _camera(stream: dataset.Stream, seconds: float) -> dict[str, Any]:
    """What the report says of a camera."""
    assert stream.frames is not None
    values = stream.values
    size = int(values.offsets[-1]) if isinstance(values, dataset.EncodedFrames) else values.nbytes
    return {
        "frames": stream.rows,
        "width": stream.frames.width,
        "height": stream.frames.height,
        "color_space": stream.frames.color_space,
        "codec": stream.frames.codec,
        "bytes_per_frame": size / stream.rows,
        "frames_per_second": stream.rows / seconds,
    }


def checked_path(argument: str, path: Any) -> Path:
    """The path that was given, or an error that names the argument."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise ArgumentTypeError(f"{argument}: expected str or os.PathLike[str], got {path!r}")
    if not text or "\0" in text or text.encode(errors="ignore").decode() != text:
        raise ArgumentError(f"{argument}: expected a path in UTF-8 that is not empty and has no NUL, got {text!r}")
    return Path(text)


def check_source(source: Path) -> None:
    """Refuses what is not there or does not open."""
    try:
        if source.is_dir():
            os.scandir(source).close()
        else:
            source.stat()
    except FileNotFoundError:
        hint = ""
        if re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
            hint = (
                f"; nothing is downloaded: for a dataset of the Hugging Face Hub run `hf download {source} "
                f"--repo-type dataset --local-dir {source.name}` and ingest {source.name}"
            )
        raise FileError(f"{source}: no such file or directory{hint}") from None
    except OSError as error:
        raise FileError(f"{source}: {error.strerror}") from error


@dataclass
class _Stream:
    """What the episodes that were written say of a stream."""

    facts: dict[str, Any]
    clock: str


class _Driver:
    """Writes recordings, and keeps what they say together of the streams.

    Attributes:
        kept: recordings that were written.
        frames: rows of cameras that were written.
    """

    def __init__(self, writer: dataset.Writer, notes: Notes) -> None:
        self.kept = self.frames = 0
        self._writer = writer
        self._notes = notes
        self._streams: dict[str, _Stream] = {}

    def write(self, recording: Recording) -> Generator[None, None, None]:
        """Writes a recording, whole or not at all, or passes over it; yields behind each chunk of frames."""
        with self._notes.reading(recording.what, recording.where):
            streams = iter(recording.streams)
            first = next(streams, None)
            if first is None:
                self._notes.leave_out(recording.what, "nothing in it to keep")
                return
            now: dict[str, _Stream] = {}
            with self._writer.episode(**recording.metadata) as episode:
                for name, samples in chain([first], streams):
                    self._describe(name, samples, now)
                    for frames in _append(episode, name, samples):
                        self.frames += frames
                        yield
            self._streams.update(now)
            self.kept += 1

    def _describe(self, name: str, samples: Samples, now: dict[str, _Stream]) -> None:
        """Tells the cache of the stream, or holds it against what was told; `now` is what this recording says."""
        before = now.get(name) or self._streams.get(name)
        if before is None:
            self._writer.stream(name, **samples.facts)  # here, where the message can name the file, not at the end
        elif before.facts != samples.facts:
            raise ArgumentError(f"stream {name!r}: {_told(samples.facts)}, but before it {_told(before.facts)}")
        recorded = "recorded" in (samples.clock, before.clock if before else samples.clock)
        now[name] = _Stream(samples.facts, "recorded" if recorded else "nominal")

    def end(self) -> None:
        """Tells of the clocks, which later recordings may change."""
        for name, stream in self._streams.items():
            self._writer.stream(name, clock=stream.clock, **stream.facts)


def _append(episode: dataset.EpisodeWriter, name: str, samples: Samples) -> Iterator[int]:
    """Writes them; yields the number of frames behind each chunk of a camera's."""
    match samples:
        case Rows(time_ns=time_ns, values=values):
            episode.append(name, time_ns, values)
        case Ragged(time_ns=time_ns, values=values, offsets=offsets):
            episode.append(name, time_ns, values, offsets=offsets)
        case Texts(time_ns=time_ns, texts=texts):
            episode.append(name, time_ns, texts)
        case Frames(chunks=chunks):
            for time_ns, frames in chunks:
                codec = samples.codec if isinstance(frames, np.ndarray) else None  # files say theirs
                episode.append(name, time_ns, frames, codec=codec, quality=samples.quality)
                yield len(time_ns)


def _told(facts: dict[str, Any]) -> str:
    return ", ".join(f"{fact} {value}" for fact, value in facts.items())


def _write(
    driver: _Driver,
    source: Path,
    recordings: Iterator[Recording],
    notes: Notes,
    progress: Callable[[int, int, str], None] | None,
) -> None:
    """Writes every recording, and tells how far it is; what `progress` raises is its caller's and ends the ingest."""
    tell = progress or (lambda done, total, what: None)
    started = time.perf_counter()
    for done in count():
        with naming(source):
            recording = next(recordings, None)
        if recording is None:
            break
        tell(done, notes.total, recording.what)
        with closing(driver.write(recording)) as chunks:
            for _ in chunks:
                rate = driver.frames / (time.perf_counter() - started)
                tell(done, notes.total, f"{recording.what}, {rate:.0f} frames/s")
    driver.end()
