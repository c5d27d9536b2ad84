"""Checks the recordings that a reader yields, repairs them on request, and writes them to a cache."""

from __future__ import annotations

import math
import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from .. import _lib, dataset
from .._check import truth, whole
from ..episode_rates import differ, median_period_ns
from ..errors import ArgumentError, ArgumentTypeError, Error, FileError
from ..frames import is_labels, says_depth
from ..writer import EpisodeWriter, Writer
from .append import check_appendable, check_like_cache, find_exchanged, merge_provenance
from .budget import Budget, limited
from .clocks import POLICIES, RUN_COLUMN, Order, Policy, add_counts, offset_ns, shift, split_chunks
from .declared import (
    EpisodeFacts,
    Features,
    say_depth_numbers,
    say_files,
    say_frames,
    say_no_metres,
    say_wraps,
    with_unit,
)
from .files import bounded, identity_of, name_of, without_folders
from .formats import Format
from .mapping import Found, Mapper, StreamMapping, draft, find_streams, load_mapping
from .methods import with_rotations
from .options import make_options
from .reader_process import reader_processes
from .recording import (
    Assumption,
    Frames,
    Notes,
    Omission,
    Ragged,
    Recording,
    Rows,
    Samples,
    ShardsError,
    SourceError,
    Texts,
    WiderError,
    as_utf8,
    naming,
)
from .registry import find_format, format_of

Progress = Callable[[int, int, str], None]
_NOTHING = "nothing in it to keep"
_REPORT_EVERY_S = 1.0
# The bytes that the statistics of a feature take while a cache is finished. They are counted for rows of more features than _WIDE.
_STATISTICS_BYTES, _WIDE = 160, 4096
# The bytes counted for each stream, and the most streams, since making a stream's files takes a millisecond.
_STREAM_BYTES, _MOST_STREAMS = 16 << 10, 1 << 13


@dataclass
class IngestReport:
    """The result of an ingest.

    `rows` counts each stream's rows in the cache. `cameras` has for each camera ``frames``, ``width``, ``height``, ``color_space``,
    ``codec``, ``bytes_per_frame``, and this ingest's ``frames_per_second``. `left_out` names what a cache does not hold by
    design, `skipped` what ``on_error="skip"`` passed over. `assumed` names what the files do not declare, such as a clock's unit, and
    the assumption. `repaired` counts for each stream what ``repair`` did: ``backward_steps``, and ``rows_moved``, ``rows_dropped``
    (among them those with ``stamps_unset``), or the resulting ``episodes``.
    """

    source: str
    cache: str
    format: str
    episodes: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    cameras: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: list[Omission] = field(default_factory=list)
    skipped: list[Omission] = field(default_factory=list)
    assumed: list[Assumption] = field(default_factory=list)
    repaired: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: float = 0.0

    def _repr_html_(self) -> str:
        from ..overview import report_html

        return report_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as values of JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Work:
    """A checked request: the source, and how to read it.

    offsets_ns: for each stream by name, the nanoseconds to add to its stamps.
    """

    source: Path
    format: Format
    options: Any
    on_error: str = "stop"
    repair: Policy | None = None
    offsets_ns: Mapping[str, int] = field(default_factory=dict)
    mapping: StreamMapping | None = None
    memory_limit: int | None = None
    follow_links: bool = False

    @classmethod
    def of(
        cls,
        source: Any,
        *,
        format: str | None = None,
        on_error: str = "stop",
        repair: str | None = None,
        offsets: Mapping[str, Any] | None = None,
        mapping: Any = None,
        memory_limit: int | None = None,
        follow_links: bool = False,
        **options: Any,
    ) -> Work:
        """Checks the arguments of :func:`ingest`; raises as it does."""
        source = checked_path("source", source)
        forced = None if format is None else format_of(format)
        if on_error not in ("stop", "skip"):
            raise ArgumentError(f"on_error: expected 'stop' or 'skip', got {on_error!r}")
        if repair is not None and repair not in POLICIES:
            raise ArgumentError(f"repair: expected one of {', '.join(POLICIES)} or None, got {repair!r}")
        if offsets is not None and not isinstance(offsets, Mapping):
            raise ArgumentTypeError(f"offsets: expected {{stream: seconds}}, got {offsets!r}")
        offsets_ns = {name: offset_ns(name, seconds) for name, seconds in (offsets or {}).items()}
        streams = None if mapping is None else load_mapping(mapping)
        if memory_limit is not None and (memory_limit := whole("memory_limit", memory_limit)) < 1:
            raise ArgumentError(f"memory_limit: expected a number of bytes above 0, got {memory_limit}")
        follow_links = truth("follow_links", follow_links)
        check_source(source)
        with bounded(source, follow_links):
            chosen = forced or find_format(source)
        settings = make_options(chosen.options, chosen.name, options)
        return cls(source, chosen, settings, on_error, repair, offsets_ns, streams, memory_limit, follow_links)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "format": self.format.name}  # a format's `find_sign` may be a lambda

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, format=format_of(state["format"]))

    @contextmanager
    def limits(self) -> Iterator[None]:
        """Limits the memory for reading within the block, follows only links that the request allows, and uses reader processes
        again."""
        with limited(self.memory_limit), bounded(self.source, self.follow_links), reader_processes():
            yield

    @property
    def resolved(self) -> str:
        """The source's path as the cache stores it."""
        return as_utf8(str(self.source.resolve()))


def ingest(
    source: str | os.PathLike[str],
    cache: str | os.PathLike[str],
    *,
    format: str | None = None,
    on_error: str = "stop",
    repair: str | None = None,
    offsets: Mapping[str, Any] | None = None,
    mapping: Any = None,
    overwrite: bool = False,
    append: bool = False,
    workers: int | None = None,
    memory_limit: int | None = None,
    follow_links: bool = False,
    progress: Progress | bool | None = True,
    **options: Any,
) -> IngestReport:
    """Reads a robot dataset and writes it as a cache, every stream on its own clock; nothing is resampled.

    Args:
        source: a file or folder of recordings of any format of docs/formats.md.
        cache: the directory to write; it appears only when it is complete.
        format: the format's name, such as "lerobot" or "mcap"; None finds it from the files, which must look like one format only.
        on_error: "stop" raises at the first thing that cannot be read; "skip" leaves it out and names it in the report.
        repair: how to repair stamps that step back; None refuses them. "sort" sorts rows by time; equal stamps keep their
            order. "drop" leaves out rows before the latest stamp so far, and unset stamps (0 among stamps of today). "split"
            begins an episode at each step back, numbered from 0 in the column ``clock_run``. The report counts it.
        offsets: ``{stream: seconds}`` added to all stamps of streams, in whole nanoseconds.
        mapping: a TOML, YAML or JSON file, or a dict of the same form, that selects, renames, cuts and describes streams
            (docs/ingest.md); GR00T's ``meta/modality.json`` too.
        overwrite: replaces an existing cache, which is otherwise refused.
        append: adds to an existing cache, whole or not at all: see :class:`Writer`. This source's provenance goes into the
            list ``provenance["appended"]``.
        workers: processes that share the recordings. Finished parts lie in ``CACHE.shards`` until the cache is complete; after a
            kill the same call resumes. The cache is the same as with one process. A source that cannot be shared is read by one.
        memory_limit: the most bytes of memory for an item of a file, and for a whole file. By default 256 MiB for an item, and
            128 MiB plus 100 times its size for a file. An error names the file that needs more.
        follow_links: follow symlinks that lead out of the source. By default they are left out by name, and refused if the
            source is incomplete without them.
        progress: True shows a bar on a terminal and in a notebook; False or None none. A function is called as
            ``progress(done, total, what)`` before each episode and while it is read; `what` then has frames or rows a second.
        options: the format's own, named as on the command line: `image_size`, `rate_hz`, `time_unit`, ...: ``robocache ingest --help``.

    Returns:
        An :class:`IngestReport`.

    Raises:
        FileError: a file is missing, damaged or not the data (the message names it and the row), or there is nothing to keep.
            Its ``__cause__`` is the error of the library that read the file.
        ArgumentError, ArgumentTypeError: an argument or option that does not exist, or has a wrong value or type.
        Error: a package that reads this format is missing; the message has the command that installs it.

    Example:
        >>> report = robocache.ingest("logs/", "cache", time_unit="ms")
        >>> report.episodes, report.rows
        (1, {'imu': 13312, 'joints': 33280})
    """
    if not (callable(progress) or progress is None or isinstance(progress, bool)):
        raise ArgumentTypeError(f"progress: expected a function, True, False or None, got {progress!r}")
    started = time.perf_counter()
    work = Work.of(
        source,
        format=format,
        on_error=on_error,
        repair=repair,
        offsets=offsets,
        mapping=mapping,
        memory_limit=memory_limit,
        follow_links=follow_links,
        **options,
    )
    cache = checked_cache(cache)
    work.format.load()  # raises if a package is missing
    overwrite, append = truth("overwrite", overwrite), truth("append", append)
    if workers is not None and not 1 <= (workers := whole("workers", workers)) <= 1024:
        raise ArgumentError(f"workers: expected 1 to 1024, got {workers}")
    if append and (workers or 1) > 1:
        raise ArgumentError(f"append: expected no workers, got {workers}")
    with ExitStack() as bars:
        if progress is True:
            from ..view import progress_bar  # imported only here, because that takes long

            progress = bars.enter_context(progress_bar())
        return _ingest(work, cache, overwrite, append, workers or 1, progress or None, started)


def _ingest(
    work: Work, cache: Path, overwrite: bool, append: bool, workers: int, progress: Progress | None, started: float
) -> IngestReport:
    if workers > 1:
        from .workers import ingest_with_workers  # imported here, because it imports this module

        with suppress(ShardsError):
            return ingest_with_workers(work, cache, workers, overwrite=overwrite, progress=progress)
    wider: dict[str, Any] = {}
    while True:  # a WiderError begins the ingest anew, with the wider types that `wider` has then
        with suppress(WiderError), Writer(cache, overwrite=overwrite, append=append) as writer:
            existing = dataset.open(cache) if append else None
            if existing is not None:
                check_appendable(existing, work.options)
                writer.provenance = {}
            notes = Notes(work.format.name, writer.provenance, work.on_error, wider=wider)
            driver = Driver(writer, work, notes, existing)
            driver.run(work.format.load(), progress)
            driver.end()
            finish(work, writer, notes, driver.kept, driver.streams.keys(), driver.repaired)
            if existing is not None:
                writer.provenance = merge_provenance(work.source, existing, writer.provenance)
            break
    return report(work, cache, notes, driver.repaired, time.perf_counter() - started, existing)


# A note on intrinsics that differ has at most so many matrices, with so many recordings each.
_MOST_MATRICES, _MOST_NAMED = 4, 10


@dataclass
class Preview:
    """The result of a preview: what an ingest would find.

    recordings: the number of recordings.
    streams: the streams of the first recording that has any, by their names after the mapping. Rows are counted in that
        recording, those of a camera only in its first chunk.
    columns: that recording's metadata.
    mapping: TOML, ready to edit; unedited it changes nothing.
    """

    source: str
    format: str
    recordings: int
    streams: dict[str, Found]
    columns: dict[str, Any]
    mapping: str

    def to_dict(self) -> dict[str, Any]:
        """Returns the preview as values of JSON."""
        return asdict(self)


def preview(
    source: str | os.PathLike[str],
    *,
    format: str | None = None,
    on_error: str = "stop",
    mapping: Any = None,
    **options: Any,
) -> Preview:
    """Finds what an ingest would write, from the first recording of a source, or with ``on_error="skip"`` from the first that can be
    read. Writes nothing.

    Args, Raises: as for :func:`ingest`.
    """
    work = Work.of(source, format=format, on_error=on_error, mapping=mapping, **options)
    wider: dict[str, Any] = {}
    while True:
        with suppress(WiderError):
            return _preview(work, Notes(work.format.name, {}, work.on_error, wider=wider))


def _preview(work: Work, notes: Notes) -> Preview:
    mapper = None if work.mapping is None else Mapper(work.mapping, notes)
    if mapper is not None:
        notes.gives_methods = mapper.gives_methods
    streams: dict[str, Found] = {}
    columns: dict[str, Any] = {}
    what = ""
    reader = work.format.load()
    with work.limits(), closing(reader.read(work.source, work.options, notes)) as recordings:
        while not streams:
            with naming(work.source):
                recording = next(recordings, None)
            if recording is None:
                skipped = "".join(f"; {omission.reason}" for omission in notes.skipped[:1])
                raise FileError(f"{work.source}: nothing to keep in any of {notes.position} recordings{skipped}")
            what = recording.what
            with notes.reading(what, recording.where):
                recording = replace(recording, streams=with_rotations(recording.streams, notes))
                mapped_streams = find_streams(iter(recording.streams if mapper is None else mapper.streams(recording)))
                columns = dict(recording.metadata if mapper is None else mapper.columns(recording.metadata))
                streams = mapped_streams
            notes.position += 1
    count = max(notes.total, notes.position)
    title = [
        f"robocache ingest {shlex.quote(str(work.source))} CACHE --mapping THIS_FILE",
        f"{work.format.title}, {count} recording{'s' * (count != 1)}; these are the streams of {what}",
        *(f"left out: {omission.what}: {omission.reason}" for omission in notes.left_out),
        *(f"assumed: {fact.what}: {fact.reason}" for fact in notes.assumed),
    ]
    return Preview(
        str(work.source),
        work.format.name,
        count,
        streams,
        columns,
        draft(streams, columns, title),
    )


def finish(
    work: Work,
    writer: Writer,
    notes: Notes,
    kept: int,
    streams: Any,
    repaired: Mapping[str, Mapping[str, int]],
) -> None:
    """Writes the provenance, after all recordings were read.

    kept: the number of recordings that were written.
    streams: the names of the written streams.

    Raises:
        FileError: nothing was kept.
        ArgumentError: an option names a stream that does not exist.
    """
    reader = work.format.load()
    if hasattr(reader, "finish"):
        with work.limits(), naming(work.source):
            reader.finish(work.source, work.options, notes)
    if work.mapping is not None and (kept or (notes.seen.get("mapping: streams of the source") and not notes.skipped)):
        Mapper(work.mapping, notes).end()
        writer.provenance["mapping"] = dict(work.mapping.given)
    if kept == 0:
        first_left_out = {omission.reason: omission.what for omission in reversed(notes.left_out)}
        often_left_out = Counter(
            omission.reason for omission in notes.left_out if omission.reason != _NOTHING
        ).most_common(3)
        # Errors that differ only in their numbers are of one kind.
        first_error = {re.sub(r"\d+", "#", omission.reason): omission.reason for omission in reversed(notes.skipped)}
        most_skipped = Counter(re.sub(r"\d+", "#", omission.reason) for omission in notes.skipped).most_common(1)
        reasons = [first_error[kind] for kind, _ in most_skipped]
        reasons += [f"{first_left_out[reason]}: {reason}" for reason, _ in often_left_out]
        raise FileError("; ".join([f"{work.source}: nothing to keep", *reasons]))
    missing = ", ".join(map(repr, sorted(work.offsets_ns.keys() - set(streams))))
    if missing:
        raise ArgumentError(f"offsets: no stream {missing} among {', '.join(map(repr, streams))}")
    source = work.source
    writer.provenance.update(source=as_utf8(name_of(source)), source_id=identity_of(source), format=work.format.name)
    if work.repair is not None:
        writer.provenance["repair"] = {"policy": work.repair, "streams": repaired}
    if work.offsets_ns:
        writer.provenance["offsets_ns"] = dict(work.offsets_ns)
    writer.provenance.update(
        left_out=_without_folders(notes.left_out, source), skipped=_without_folders(notes.skipped, source)
    )
    if notes.assumed:
        writer.provenance["assumed"] = [asdict(assumption) for assumption in notes.assumed]


def _without_folders(omissions: list[Omission], source: Path) -> list[dict[str, str]]:
    """Returns omissions without the folders above the source, which are private: a cache is passed on to others."""
    return [{key: without_folders(text, source) for key, text in asdict(omission).items()} for omission in omissions]


def report(
    work: Work,
    cache: Path,
    notes: Notes,
    repaired: dict[str, dict[str, int]],
    seconds: float,
    existing: dataset.Dataset | None = None,
) -> IngestReport:
    """Returns the report on a written cache; after an append to `existing`, on the appended rows and episodes only."""
    written = dataset.open(cache)
    rows = {name: stream.rows for name, stream in written.streams.items()}
    for name, stream in {} if existing is None else existing.streams.items():
        new_ns = median_period_ns(written.streams[name].time_ns[stream.rows :])
        if stream.rate_hz > 0 and differ(stream.rate_hz, 1e9 / new_ns):
            rates = f"{1e9 / new_ns:.4g} Hz in the appended rows, {stream.rate_hz:.4g} Hz in the cache (medians)"
            notes.assume(f"rate of {name}", f"{rates}: windows of rows span different times", name)
        rows[name] -= stream.rows
    say_frames(written, notes)
    for stream in written.streams.values():
        say_wraps(stream, notes)
    return IngestReport(
        str(work.source),
        str(cache),
        work.format.name,
        episodes=len(written) - (0 if existing is None else len(existing)),
        rows=rows,
        cameras={
            name: _camera(stream, rows[name], seconds)
            for name, stream in written.streams.items()
            if stream.frames is not None
        },
        left_out=notes.left_out,
        skipped=notes.skipped,
        assumed=notes.assumed,
        repaired=repaired,
        seconds=seconds,
    )


def _camera(stream: dataset.Stream, frames: int, seconds: float) -> dict[str, Any]:
    """Returns the facts of a camera for the report. `frames`: how many frames this ingest wrote."""
    assert stream.frames is not None
    values = stream.values
    size = int(values.offsets[-1]) if isinstance(values, dataset.EncodedFrames) else values.nbytes
    return {
        "frames": frames,
        "width": stream.frames.width,
        "height": stream.frames.height,
        "color_space": stream.frames.color_space,
        "codec": stream.frames.codec,
        "bytes_per_frame": size / stream.rows,
        "frames_per_second": frames / seconds,
    }


def checked_path(argument: str, path: Any) -> Path:
    """Returns the given path. Errors name the argument."""
    return Path(_lib.path_text(path, argument))


def checked_cache(path: Any) -> Path:
    """Returns the path of a cache to write. Errors name the argument."""
    cache = checked_path("cache", path)
    # The path "missing/.." cannot be opened before the writer has made the folder "missing".
    return cache.resolve() if ".." in cache.parts else cache


def check_source(source: Path) -> None:
    """Refuses a source that does not exist or does not open."""
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
    """What the episodes written so far declare about a stream.

    facts: its arguments of `Writer.stream`.
    where: the recording that declared it first.
    """

    facts: dict[str, Any]
    clock: str
    where: str


class Driver:
    """Writes recordings, and collects what they declare about streams.

    Attributes:
        kept: the number of recordings that were written.
        frames, rows: the numbers of rows that were written, of cameras and of other streams.
        streams: the written streams, by name.
        repaired: see :class:`IngestReport`.
    """

    def __init__(self, writer: Writer, work: Work, notes: Notes, existing: dataset.Dataset | None = None) -> None:
        self.kept = self.frames = self.rows = 0
        self.streams: dict[str, _Stream] = {}
        self.repaired: dict[str, dict[str, int]] = {}
        self._writer = writer
        self._work = work
        self._notes = notes
        self._mapper = None if work.mapping is None else Mapper(work.mapping, notes)
        if self._mapper is not None:
            notes.gives_methods = self._mapper.gives_methods
        self._cached = {} if existing is None else existing.streams
        self._exchanges = {} if work.mapping is None else work.mapping.exchanges
        self._cached_exchanged = set() if existing is None else find_exchanged(existing)
        first_episode = None if existing is None else existing.episodes.slice(0, 1).to_pylist()
        names = {} if self._mapper else {name: stream.names for name, stream in self._cached.items()}
        self._features = Features(notes, next(iter(first_episode or ()), None), names)
        self._cached_dtypes = {name: np.dtype(stream.dtype) for name, stream in self._cached.items()}
        self._dtypes = {**notes.wider.setdefault("dtypes", {}), **self._cached_dtypes}
        # For each camera, the recordings of each matrix in words; None: those without intrinsics.
        self._recordings_of: dict[str, dict[str | None, dict[str, None]]] = {}
        # For each stream, the recordings from which its dtype is, or for which a wider one was chosen.
        self._sources: dict[str, list[str]] = {
            **notes.wider.setdefault("sources of dtypes", {}),
            **{name: ["the cache"] for name in self._cached},
        }

    def run(self, reader: Any, progress: Progress | None, share: range | None = None) -> None:
        """Writes the recordings, or only those whose numbers are in `share`, and reports progress. An exception that `progress`
        raises ends the ingest and reaches the caller."""
        report = progress or (lambda done, total, what: None)
        notes, work = self._notes, self._work
        started = time.perf_counter()
        with work.limits(), closing(reader.read(work.source, work.options, notes)) as recordings:
            while share is None or notes.position < share.stop:
                facts_before = None if share is None else notes.count_facts()
                with naming(work.source):
                    recording = next(recordings, None)
                if recording is None:
                    if share is not None and notes.position and notes.count_facts() != facts_before:
                        name = work.format.name
                        raise ShardsError(
                            f"format {name!r} reports facts of all recordings at its end, which no shard knows"
                        )
                    break
                if notes.wants(notes.position):
                    report(notes.position, notes.total, recording.what)
                    shown_s = time.perf_counter()
                    with closing(self._write(recording)) as chunks:
                        for counted in chunks:
                            now_s = time.perf_counter()
                            if counted == "rows" and now_s - shown_s < _REPORT_EVERY_S:
                                continue
                            shown_s, count = now_s, self.frames if counted == "frames" else self.rows
                            rate = f"{count / (now_s - started):,.0f} {counted}/s"
                            report(notes.position, notes.total, f"{recording.what}, {rate}")
                notes.position += 1

    def end(self) -> None:
        """Declares the streams again, since later recordings may have changed their clocks. Reports intrinsics that differ."""
        for name, stream in self.streams.items():
            self._writer.stream(name, clock=stream.clock, **stream.facts)
            if name in self._notes.wider.get("intrinsics", ()):
                self._notes.leave_out(f"{name}: intrinsics", describe_differing(self._recordings_of[name]))

    def _write(self, recording: Recording) -> Generator[str, None, None]:
        """Writes a recording whole, or skips it if it cannot be read and the request says so. Yields as :meth:`_append`."""
        with self._notes.reading(recording.what, recording.where):
            declarations: dict[str, _Stream] = {}
            parts = self._parts(recording, declarations)
            first = next(parts, None)
            if first is None:
                self._notes.leave_out(recording.what, _NOTHING)
                return
            order = Order(self._work.repair)
            later_episodes: dict[int, list[tuple[str, Samples]]] = {}  # those after a step back of the clock
            metadata = dict(recording.metadata) if self._mapper is None else self._mapper.columns(recording.metadata)
            if self._work.repair == "split":
                if RUN_COLUMN in metadata:
                    raise ArgumentError(
                        f"repair='split' (--repair split) writes a column {RUN_COLUMN!r}, which the recording has already; rename it by a mapping"
                    )
                metadata[RUN_COLUMN] = 0
            with self._writer.episode(**metadata) as episode:
                for name, number, samples in _put_in_order(order, chain([first], parts)):
                    if number:
                        later_episodes.setdefault(number, []).append((name, order.hold(name, samples)))
                    else:
                        yield from self._append(episode, name, samples, recording.where)
            for number in sorted(later_episodes):
                try:
                    with self._writer.episode(**{**metadata, RUN_COLUMN: number}) as episode:
                        for name, samples in later_episodes.pop(number):
                            yield from self._append(episode, name, samples, recording.where)
                except Error as error:
                    # A SourceError would skip the recording, whose first episode is written already.
                    raise FileError(f"{recording.where}: after step back {number} of its clock: {error}") from error
            self.streams.update(declarations)
            add_counts(self.repaired, order.repaired)
            self.kept += 1

    def _parts(self, recording: Recording, declarations: dict[str, _Stream]) -> Iterator[tuple[str, Samples]]:
        """Yields the parts of a recording's streams, frames chunk by chunk, and declares each stream in `declarations`."""
        budget = Budget(recording.where)
        facts = EpisodeFacts(recording.what, self._notes)
        named = self._features.named(recording, dict if self._mapper is None else self._mapper.columns)
        recording = replace(recording, streams=with_rotations(named, self._notes))
        for name, samples in recording.streams if self._mapper is None else self._mapper.streams(recording):
            offset = self._work.offsets_ns.get(name)
            if offset is not None:
                samples = replace(samples, attributes={**samples.attributes, "offset_ns": offset})
            is_new = name not in declarations and name not in self.streams
            if is_new and (count := max(len(declarations), len(self.streams))) >= _MOST_STREAMS:
                raise SourceError(f"{recording.where}: more than {count} streams; select some by a mapping")
            _charge(budget, name, samples, is_new)
            facts.see(name, samples)
            if isinstance(samples, Frames):
                samples = with_unit(name, samples, recording.metadata, self._notes)
                samples = self._with_shared_intrinsics(name, samples, declarations, recording.what)
            elif isinstance(samples, Rows):
                say_depth_numbers(name, samples, self._notes)
            samples = self._with_first_attributes(name, samples, declarations)
            self._declare(name, samples, declarations, recording.where)
            for part in split_chunks(samples):
                yield name, part
        facts.say(recording.metadata, recording.where, getattr(self._work.options, "rate_hz", None))

    def _with_first_attributes(self, name: str, samples: Samples, declarations: dict[str, _Stream]) -> Samples:
        """Returns the samples with attributes of the stream's first samples: their methods, since a stream has one list of methods, and
        their units and words, if these samples have none. Reports the differences."""
        earlier = declarations.get(name) or self.streams.get(name)
        if earlier is not None:
            others_have, first = "the recordings before it have", earlier.facts.get("attributes", {})
        elif name in self._cached:
            check_like_cache(
                self._cached[name], samples, self._exchanges.get(name), name in self._cached_exchanged, self._notes
            )
            others_have, first = "the cache has", dict(self._cached[name].attributes)
        else:
            return samples
        attributes = dict(samples.attributes)
        for fact in ("units", "words"):
            if fact in first and fact not in attributes:
                attributes[fact] = first[fact]
                why = f"some recordings declare none: taken as {first[fact]} there, as {others_have}"
                self._notes.assume(f"{name}: its {fact}", why, name)
            elif fact in attributes and fact not in first:
                self._notes.leave_out(f"{name}: its {fact} {attributes.pop(fact)}", f"{others_have} none")
        differ_in_methods = attributes.get("methods") != first.get("methods")
        if differ_in_methods and {**attributes, "methods": None} == {**first, "methods": None}:
            with_first = replace(samples, attributes=first)
            if earlier is None or with_first.facts == earlier.facts:
                why = f"{others_have} {first.get('methods')}, which are kept; to change them, ingest all sources anew or declare methods in a mapping"
                self._notes.leave_out(f"{name}: its methods {attributes.get('methods')}", why)
                return with_first
        return samples if attributes == samples.attributes else replace(samples, attributes=attributes)

    def _with_shared_intrinsics(
        self, name: str, samples: Frames, declarations: Mapping[str, _Stream], what: str
    ) -> Frames:
        """Returns frames without intrinsics if those of other recordings differ, since a stream has one matrix. Reports the difference.

        what: the name of the recording.

        Raises:
            WiderError: earlier frames have other intrinsics; the ingest begins anew without any.
        """
        differing: set[str] = self._notes.wider.setdefault("intrinsics", set())
        earlier = declarations.get(name) or self.streams.get(name)
        if name in self._cached:  # check_like_cache refuses others than the cache's
            frames = self._cached[name].frames
            if frames is None or frames.intrinsics is not None or samples.intrinsics is None:
                return samples
            why = f"{samples.intrinsics}, but none in the cache; a cache of its own, in a list of Sources, keeps them"
            self._notes.leave_out(f"{name}: intrinsics", why)
            return replace(samples, intrinsics=None)
        recordings_of = self._recordings_of.setdefault(name, {})
        recordings_of.setdefault(None if samples.intrinsics is None else str(samples.intrinsics), {})[what] = None
        if name not in differing:
            if earlier is None or earlier.facts.get("intrinsics") == samples.intrinsics:
                return samples
            differing.add(name)
            if earlier.facts.get("intrinsics") is not None:
                raise WiderError(f"{self._work.source}: stream {name!r}: {describe_differing(recordings_of)}")
        return replace(samples, intrinsics=None)

    def _declare(self, name: str, samples: Samples, declarations: dict[str, _Stream], where: str) -> None:
        """Declares the stream to the cache, or compares it with an earlier declaration. `declarations` are those of the recording in
        `where`."""
        earlier = declarations.get(name) or self.streams.get(name)
        facts = samples.facts
        if earlier is None:
            self._writer.stream(name, **facts)  # here and not only in end(), so that the error names the file
        elif _given(earlier.facts) != _given(facts):
            now_has, had = describe_difference(facts, earlier.facts), describe_difference(earlier.facts, facts)
            raise ArgumentError(
                f"stream {name!r}: {now_has}, but in {earlier.where} {had}; ingest this recording into a cache of its own, for a list of Sources"
            )
        elif earlier.clock in ("recorded", samples.clock):
            declarations[name] = earlier
            return
        declarations[name] = _Stream(facts, samples.clock, where if earlier is None else earlier.where)

    def _append(self, episode: EpisodeWriter, name: str, samples: Samples, where: str) -> Iterator[str]:
        """Writes a part of the recording in `where`. Yields "frames" after each chunk of frames, or "rows" once after other samples."""
        if name in self._work.offsets_ns:
            samples = shift(name, samples, self._work.offsets_ns[name])
        if not isinstance(samples, Frames) and 2 * np.count_nonzero(np.diff(samples.time_ns) == 0) > len(
            samples.time_ns
        ):
            why = "most rows of a recording repeat the stamp of the row before: a batch has only the last row of each stamp"
            self._notes.leave_out(f"{name}: a separate time for each row", why)
        match samples:
            case Rows(time_ns=time_ns, values=values):
                say_files(name, samples, self._notes)
                episode.append(name, time_ns, self._cast(name, values, where))
            case Ragged(time_ns=time_ns, values=values, offsets=offsets):
                say_files(name, samples, self._notes)
                episode.append(name, time_ns, self._cast(name, values, where), offsets=offsets)
            case Texts(time_ns=time_ns, texts=texts):
                if len(texts):  # the writer could not see that an empty list is text
                    episode.append(name, time_ns, list(texts))
            case Frames(chunks=chunks):
                for time_ns, frames in chunks:
                    if getattr(frames, "dtype", None) == np.uint16 and samples.unit_m is None and not is_labels(name):
                        kind = "depth by its name, without a known unit" if says_depth(name) else "an image, not depth"
                        self._notes.assume(
                            name, f"{kind}: its 16 bits a pixel are kept, but a batch refuses them", name
                        )
                    say_no_metres(name, frames, self._notes)
                    codec = samples.codec if isinstance(frames, np.ndarray) else None  # encoded frames have their codec
                    episode.append(name, time_ns, frames, codec=codec, quality=samples.quality)
                    self.frames += len(time_ns)
                    yield "frames"
                return
        self.rows += len(samples.time_ns)
        yield "rows"

    def _cast(self, name: str, values: Any, where: str) -> Any:
        """Returns values in the dtype of the stream's first rows.

        Raises:
            WiderError: a wider dtype holds all rows; the ingest begins anew with it.
            ArgumentError: no dtype holds all rows, or the cache that is appended to has another one.
        """
        if not isinstance(values, np.ndarray):
            return values
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        first = self._dtypes.setdefault(name, values.dtype)
        sources = self._sources.setdefault(name, [where])
        if values.dtype == first:
            return values
        cast = cast_exactly(first, values)
        if cast is not None:
            report_cast(name, values.dtype, first, self._notes)
            return cast
        wide = wider_dtype(first, values.dtype)
        if name not in self._cached_dtypes and wide is not None:
            self._notes.wider["dtypes"][name] = wide
            self._notes.wider["sources of dtypes"][name] = [*sources, where]
            raise WiderError(
                f"{self._work.source}: stream {name!r}: {values.dtype}, but {first} before it; {wide} holds both"
            )
        reason = f"as in {sources[0]}" if len(sources) == 1 else f"chosen for {' and '.join(sources)}"
        raise ArgumentError(
            f"stream {name!r}: {values.dtype}, but {first}, {reason}, cannot hold all values; ingest recordings of this type into a "
            "cache of their own, for a list of Sources"
        )


def cast_exactly(dtype: np.dtype[Any], values: np.ndarray) -> np.ndarray | None:
    """Returns the values in `dtype`; None if it does not hold all of them."""
    with np.errstate(invalid="ignore", over="ignore"):
        cast = values.astype(dtype)
        back = cast.astype(values.dtype)
    # A negative number and an unsigned one may have the same bits, and so survive the way there and back.
    is_equal = np.array_equal(back, values, equal_nan=values.dtype.kind == "f") and np.array_equal(cast < 0, values < 0)
    return cast if is_equal else None


def wider_dtype(dtype: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any] | None:
    """Returns a dtype for numbers of both; None if that is `dtype`, or cannot hold all numbers of `dtype`."""
    try:
        wide = np.result_type(dtype, other)
    except TypeError:  # bfloat16 beside some types
        return None
    return wide if wide != dtype and np.can_cast(dtype, wide) else None


def report_cast(name: str, dtype: np.dtype[Any], kept: np.dtype[Any], notes: Notes) -> None:
    """Reports rows of a stream that are kept in another dtype than their own."""
    notes.leave_out(f"{name}: its own type", f"{dtype} in some recordings, kept as {kept}, which holds them")


def describe_differing(recordings_of: Mapping[str | None, Iterable[str]]) -> str:
    """Describes a camera's intrinsics that differ between recordings or shards.

    recordings_of: for each matrix in words, and for None if some have no intrinsics, the names of those that have it.
    """
    groups = [
        (matrix, list(names)) for matrix, names in sorted(recordings_of.items(), key=lambda item: item[0] is not None)
    ]
    parts = [
        f"{matrix or 'none'} in {', '.join(names[:_MOST_NAMED])}"
        + (f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else "")
        for matrix, names in groups[:_MOST_MATRICES]
    ]
    if len(groups) > _MOST_MATRICES:
        parts.append(f"{len(groups) - _MOST_MATRICES} other matrices")
    return f"differ between recordings: {'; '.join(parts)}. A cache for each matrix, in a list of Sources, keeps them"


def _charge(budget: Budget, name: str, samples: Samples, is_new: bool) -> None:
    """Charges to the budget the values of a part, and the files and statistics of a new stream. Frames are not charged: only a chunk of
    them is in memory."""
    if is_new:
        budget.take(f"{name}: one more stream", _STREAM_BYTES)
    match samples:
        case Rows(values=values):
            features = math.prod(values.shape[1:])
            if is_new and features > _WIDE:
                budget.take(f"{name}: statistics of {features} features a row", _STATISTICS_BYTES * features)
            budget.take(f"{name}: rows", values.nbytes)
        case Ragged(values=values):
            budget.take(f"{name}: rows", values.nbytes)
        case Texts(texts=texts):
            budget.take(f"{name}: text", sum(map(len, texts)))


def _put_in_order(order: Order, parts: Iterator[tuple[str, Samples]]) -> Iterator[tuple[str, int, Samples]]:
    """Yields parts in the order in which they can be written, each with the number of its episode."""
    for name, samples in parts:
        for number, ready in order.take(name, samples):
            yield name, number, ready
    yield from order.end()


def _given(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts that are not None. Text has no names at all: that numbers are no text is refused when they are written."""
    return {fact: value for fact, value in facts.items() if value is not None}


def describe_difference(facts: Mapping[str, Any], others: Mapping[str, Any]) -> str:
    """Describes the facts that differ from `others`. Of the names of features, which may be many, it gives the number and the first name
    that differs."""
    differences = []
    for fact, value in facts.items():
        other = others.get(fact)
        if value == other:
            continue
        if fact == "names" and value is not None and other is not None:
            index = next(
                (i for i, (first, second) in enumerate(zip(value, other, strict=False)) if first != second), len(other)
            )
            differences.append(
                f"{len(value)} {fact}" + "".join(f", [{index}] {item!r}" for item in value[index : index + 1])
            )
        else:
            differences.append(f"{fact} {value}")
    return ", ".join(differences) or "without these facts"
