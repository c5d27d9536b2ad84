"""Splits an ingest into shards: a plan, shards that any process on any machine converts, and their merge into one cache.

A shard is a range of the source's recordings, converted to its own cache, whose provenance holds the notes. The merged cache
is byte for byte the one that a single process writes. A finished shard is never converted again, so a killed ingest resumes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import dataset, frames
from .._check import whole
from .._temporary import write_whole
from ..errors import ArgumentError, ArgumentTypeError, FileError
from ..writer import EpisodeWriter, Writer
from .clocks import POLICIES, add_counts
from .declared import Features
from .driver import Driver, IngestReport, Progress, Work, checked_cache, checked_path, finish, report
from .files import check_file, list_files
from .mapping import parse_mapping
from .options import make_options
from .recording import Notes, Omission, ShardsError, SourceError, naming
from .registry import format_of

PLAN = "plan.json"
# Shards for each process: a few, so that no process waits long for the last one, and a killed one repeats little.
_SHARDS_PER_WORKER = 4
_MOST_SHARDS = 100_000
_COPIED_AT_ONCE = 16 << 20


@dataclass(frozen=True)
class Plan:
    """A source, cut into shards.

    folder: the folder of the plan and its shards.
    recordings: how many the source has.
    files: size and modification time of each file in the source.
    """

    folder: Path
    work: Work
    recordings: int
    shards: int
    files: Mapping[str, Sequence[int]]

    @property
    def described(self) -> dict[str, Any]:
        """Returns the plan as JSON values, which every shard stores."""
        mapping = self.work.mapping
        return {
            "source": str(self.work.source),
            "resolved": self.work.resolved,
            "format": self.work.format.name,
            "options": asdict(self.work.options),
            "on_error": self.work.on_error,
            "repair": self.work.repair,
            "offsets_ns": dict(self.work.offsets_ns),
            "memory_limit": self.work.memory_limit,
            "follow_links": self.work.follow_links,
            "mapping": None if mapping is None else {"where": mapping.where, "given": dict(mapping.given)},
            "recordings": self.recordings,
            "shards": self.shards,
            "files": hashlib.sha256(json.dumps(self.files).encode()).hexdigest(),
        }

    def share(self, shard: int) -> range:
        """Returns the recordings of a shard; the last shard has no end."""
        begin, end = (number * self.recordings // self.shards for number in (shard, shard + 1))
        return range(begin, end if shard + 1 < self.shards else sys.maxsize)

    def count(self, shard: int) -> int:
        """Returns the number of a shard's recordings, as the plan counted them."""
        share = self.share(shard)
        return max(0, min(share.stop, self.recordings) - share.start)

    def path(self, shard: int) -> Path:
        """Returns the path of a shard's cache."""
        return self.folder / f"shard-{shard:03d}"

    def check_source(self) -> None:
        """Raises FileError if a file has changed since the plan was made; the error names the first such file."""
        with self.work.limits():
            now = _list(self.work.source)
        for name in sorted({*self.files, *now}):
            if list(self.files.get(name, ())) != now.get(name, []):
                what = "gone" if name not in now else "new" if name not in self.files else "changed"
                raise FileError(
                    f"{self.work.source / name}: {what} since {self.folder / PLAN} was made; plan the source anew"
                )


def plan(source: Any, folder: Any, *, shards: int, **arguments: Any) -> Plan:
    """Cuts the recordings of a source into shards.

    Args:
        folder: the directory to make: ``plan.json``, and later the shards.
        shards: how many; some are empty if there are fewer recordings.
        arguments: as for :func:`ingest`: `format`, `on_error`, `repair`, `offsets`, `mapping` and the format's options.

    Raises:
        FileError: `folder` exists, or :func:`ingest` would raise it before reading a recording.
    """
    if not 1 <= (shards := whole("shards", shards)) <= _MOST_SHARDS:
        raise ArgumentError(f"shards: expected 1 to {_MOST_SHARDS}, got {shards}")
    work = Work.of(source, **arguments)
    work = replace(work, source=Path(os.path.abspath(work.source)))
    folder = checked_path("folder", folder)
    result = survey(work, folder, shards)
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise FileError(f"{folder}: it exists already; expected a new folder for the plan") from error
    except OSError as error:
        raise FileError(f"{folder}: {error.strerror}") from error
    try:
        save(result)
    except FileError:
        remove(folder)
        raise
    return result


def survey(work: Work, folder: Path, shards: int | None, workers: int = 1) -> Plan:
    notes = Notes(work.format.name, {}, work.on_error, range(0))
    reader = work.format.load()
    with work.limits():
        files = _list(work.source)
        with closing(reader.read(work.source, work.options, notes)) as recordings, naming(work.source):
            for _ in recordings:  # their streams are not read
                notes.position += 1
    return Plan(
        folder, work, notes.position, shards or min(_SHARDS_PER_WORKER * workers, max(1, notes.position)), files
    )


def _list(source: Path) -> dict[str, list[int]]:
    found = {}
    for file in list_files(source).files:
        name = str(file.relative_to(source)) if file != source else "."
        try:
            status = file.stat()
            found[name] = [status.st_size, status.st_mtime_ns]
        except OSError as error:  # a reader of the file names it in an error
            found[name] = [-(error.errno or 1)]
    return found


def save(made: Plan) -> None:
    text = json.dumps({"robocache_plan": 1, **made.described, "file_states": made.files}, indent=1)
    try:
        write_whole(made.folder / PLAN, text)
    except OSError as error:
        raise FileError(f"{made.folder / PLAN}: {error.strerror}") from error


def remove(path: Path) -> None:
    """Removes an unfinished cache, or a folder of shards; the mark that they were merged is removed last."""
    try:
        if path.is_dir() and not path.is_symlink():
            for entry in sorted(path.iterdir(), key=lambda entry: (entry.name in ("lock", "merged"), entry.name)):
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            path.rmdir()
        else:
            path.unlink()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error


def load_plan(folder: Any) -> Plan:
    """Reads the plan in a folder.

    Raises:
        FileError: there is no plan, or it is of another version.
    """
    folder = checked_path("folder", folder)
    try:
        check_file(folder / PLAN)
        given = json.loads((folder / PLAN).read_text())
        if given["robocache_plan"] != 1:
            raise ValueError(f"version {given['robocache_plan']}")
        work, recordings, shards, files = (
            _work_of(given),
            given["recordings"],
            given["shards"],
            given["file_states"],
        )
        if not (isinstance(recordings, int) and isinstance(shards, int) and 1 <= shards <= _MOST_SHARDS):
            raise ValueError(f"{recordings!r} recordings in {shards!r} shards")
        if not (isinstance(files, dict) and all(isinstance(state, list) for state in files.values())):
            raise ValueError(f"files {files!r:.60}")
        return Plan(folder, work, recordings, shards, files)
    except SourceError as error:  # a plan is no file of the source, so it is not skipped
        raise FileError(str(error)) from error
    except OSError as error:
        raise FileError(f"{folder / PLAN}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(f"{folder / PLAN}: expected a plan of this version, got {error!r}") from error
    except (ArgumentError, ArgumentTypeError) as error:
        raise FileError(f"{folder / PLAN}: {error}") from error


def _work_of(given: Mapping[str, Any]) -> Work:
    format = format_of(given["format"])
    mapping = given["mapping"] and parse_mapping(given["mapping"]["given"], given["mapping"]["where"])
    options = make_options(format.options, format.name, given["options"])
    if given["on_error"] not in ("stop", "skip") or given["repair"] not in (None, *POLICIES):
        raise ValueError(f"on_error {given['on_error']!r}, repair {given['repair']!r}")
    offsets_ns = {str(stream): int(ns) for stream, ns in given["offsets_ns"].items()}
    limit = given.get("memory_limit")
    if limit is not None and not (isinstance(limit, int) and limit > 0):
        raise ValueError(f"memory_limit {limit!r}")
    links = given.get("follow_links", False)
    if not isinstance(links, bool):
        raise ValueError(f"follow_links {links!r}")
    source = Path(given["source"])
    return Work(source, format, options, given["on_error"], given["repair"], offsets_ns, mapping, limit, links)


# ---- convert ----


def convert(made: Plan, shard: int, *, progress: Progress | None = None, jobs: int | None = None) -> Path:
    """Converts one shard, unless it was converted before; returns its path.

    Args:
        progress: as for :func:`ingest`; it counts the shard's recordings by their numbers in the source.
        jobs: the processes that decode video, if the format has them and the plan does not say how many.

    Raises:
        FileError: the source has changed since the plan was made, another process converts the shard, or an error of
            :func:`ingest`.
    """
    if not isinstance(made, Plan):
        raise ArgumentTypeError(f"made: expected the result of plan() or load_plan(), got {made!r}")
    if not 0 <= (shard := whole("shard", shard)) < made.shards:
        raise ArgumentError(f"shard: expected 0 to {made.shards - 1}, got {shard}")
    path = made.path(shard)
    if os.path.lexists(path):
        _check_shard(dataset.open(path), made.described, shard)
        return path
    made.check_source()
    work = made.work
    if jobs is not None and getattr(work.options, "jobs", 0) is None:
        work = replace(work, options=replace(work.options, jobs=jobs))
    share = made.share(shard)
    with Writer(path) as writer:
        notes = Notes(work.format.name, writer.provenance, work.on_error, share)
        driver = Driver(writer, work, notes)
        driver.run(work.format.load(), progress, share)
        driver.end()
        made.check_source()
        writer.provenance["shard"] = {
            "plan": made.described,
            "number": shard,
            "kept": driver.kept,
            "streams": list(driver.streams),
            "repaired": driver.repaired,
            "left_out": [asdict(omission) for omission in notes.left_out],
            "skipped": [asdict(omission) for omission in notes.skipped],
            "assumed": [asdict(assumption) for assumption in notes.assumed],
            "counts": notes.counts,
            "seen": notes.seen,
        }
    return path


def _check_shard(opened: dataset.Dataset, described: Mapping[str, Any] | None, number: int | None) -> dict[str, Any]:
    """Checks that a cache is the expected shard, and returns its provenance."""
    shard_provenance: dict[str, Any] | None = opened.provenance.get("shard")
    if shard_provenance is None:
        raise FileError(f"{opened.path}: expected a shard of an ingest, got another cache")
    if described is not None and shard_provenance["plan"] != described:
        raise FileError(f"{opened.path}: a shard of another plan; remove it to convert it anew")
    if number is not None and shard_provenance["number"] != number:
        raise FileError(f"{opened.path}: expected shard {number}, got {shard_provenance['number']}")
    return shard_provenance


# ---- merge ----


def merge(shards: Any, cache: Any, *, overwrite: bool = False, progress: Progress | None = None) -> IngestReport:
    """Merges all shards of a plan into the cache that :func:`ingest` writes of the source.

    Args:
        shards: the folder of a plan, or all its shards in any order.
        cache, overwrite: as for :func:`ingest`.
        progress: called as ``progress(done, total, what)`` before each episode.

    Raises:
        FileError: a shard is missing (named, with the command that converts it), damaged or of another plan, or the source
            has changed.
    """
    cache = checked_cache(cache)
    if isinstance(shards, str | os.PathLike):
        return merge_plan(load_plan(shards), None, cache, overwrite, progress)
    if not isinstance(shards, Iterable):
        raise ArgumentTypeError(f"shards: expected the folder of a plan, or a list of shards, got {shards!r}")
    return merge_plan(None, [checked_path("shards", shard) for shard in shards], cache, overwrite, progress)


def merge_plan(
    made: Plan | None,
    paths: list[Path] | None,
    cache: Path,
    overwrite: bool,
    progress: Progress | None,
    marker: Path | None = None,
) -> IngestReport:
    started = time.perf_counter()
    if made is not None:
        made.check_source()
        paths = [made.path(shard) for shard in range(made.shards)]
        for shard, path in enumerate(paths):
            if not path.exists():
                raise FileError(f"{path}: not converted yet; robocache convert {made.folder} --shard {shard}")
    opened = [dataset.open(path) for path in paths or ()]
    if not opened:
        raise ArgumentError("shards: expected at least one")
    described = made.described if made is not None else _check_shard(opened[0], None, None)["plan"]
    by_number = {part["number"]: (part, cache) for cache in opened for part in [_check_shard(cache, described, None)]}
    missing = [str(number) for number in range(described["shards"]) if number not in by_number]
    if missing:
        raise FileError(f"{opened[0].path}: shards {', '.join(missing)} of its plan are missing")
    work = made.work if made is not None else _work_of(described)
    with Writer(cache, overwrite=overwrite) as writer:
        merger = _Merger(writer, work, progress, sum(map(len, opened)))
        for number in range(described["shards"]):
            merger.add(*by_number[number])
        merger.end()
        if marker is not None:
            # A directory keeps its inode when it is renamed: marker and cache together prove that this merge finished.
            marker.write_text(str(os.stat(f"{cache}.partial").st_ino))
    return report(work, cache, merger.notes, merger.repaired, time.perf_counter() - started)


class _Merger:
    """Appends shards to a cache, one after another."""

    def __init__(self, writer: Writer, work: Work, progress: Progress | None, total: int) -> None:
        self.notes = Notes(work.format.name, writer.provenance, work.on_error)
        self.repaired: dict[str, dict[str, int]] = {}
        self._writer = writer
        self._work = work
        self._kept = self._done = 0
        self._total = total
        self._report = progress or (lambda done, total, what: None)
        self._known: dict[str, None] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._clocks: dict[str, str] = {}
        self._appended: set[str] = set()
        self._features = Features(self.notes, None, {})

    def add(self, provenance: Mapping[str, Any], shard: dataset.Dataset) -> None:
        try:
            shard.verify()  # the merged cache has its own checksums, which would hide damage
        except FileError as error:
            raise FileError(f"{error}; remove {shard.path} to convert it anew") from error
        self._note(provenance, shard)
        for name, stream in shard.streams.items():
            facts = _facts(stream)
            if name not in self._facts:
                self._writer.stream(name, **facts)
            elif facts != self._facts[name]:
                raise ShardsError(f"{shard.path}: stream {name!r} differs from the shards before it")
            self._facts[name] = facts
            if self._clocks.get(name) != "recorded":
                self._clocks[name] = stream.clock
        lines = (Path(shard.path) / "episodes.jsonl").read_bytes().splitlines()
        try:
            for number, line in enumerate(lines):
                self._report(self._done, self._total, "merging")
                metadata = json.loads(line)
                for column in ("episode_index", "start_ns", "end_ns"):
                    del metadata[column]
                self._check_features(shard, metadata)
                with self._writer.episode(**metadata) as episode:
                    self._copy(shard, number, episode)
                self._done += 1
        except (ArgumentError, ArgumentTypeError) as error:
            raise ShardsError(f"{shard.path}: does not fit the shards before it: {error}") from error

    def _check_features(self, shard: dataset.Dataset, metadata: Mapping[str, Any]) -> None:
        """Compares the features that columns declare with those of earlier shards, as one process does."""
        try:
            self._features.check(str(shard.path), metadata)
        except SourceError as error:
            raise ShardsError(str(error)) from error

    def end(self) -> None:
        for name, facts in self._facts.items():
            self._writer.stream(name, clock=self._clocks[name], **facts)
        finish(self._work, self._writer, self.notes, self._kept, self._known.keys(), self.repaired)

    def _note(self, provenance: Mapping[str, Any], shard: dataset.Dataset) -> None:
        format, notes = self._work.format.name, self.notes
        before = self._writer.provenance.get(format, {})
        for fact, value in shard.provenance.get(format, {}).items():
            if before.get(fact, value) != value:
                raise ShardsError(f"{shard.path}: {fact} of its provenance differs from that of the shards before it")
            notes.tell(shard.path, **{fact: value})
        for omission in provenance["left_out"]:
            notes.leave_out(**omission)
        for assumption in provenance.get("assumed", ()):  # shards of earlier versions have none
            notes.assume(assumption["what"], assumption["reason"], *assumption["streams"])
        notes.skipped += [Omission(**omission) for omission in provenance["skipped"]]
        for table, counts in provenance["counts"].items():
            for key, number in counts.items():
                notes.count(table, key, number)
        for table, values in provenance["seen"].items():
            for key, value in values.items():
                notes.see(table, key, value)
                if notes.seen[table][key] != value:
                    raise ShardsError(
                        f"{shard.path}: {table} {key!r} is {value}, but before it {notes.seen[table][key]}"
                    )
        add_counts(self.repaired, provenance["repaired"])
        self._known.update(dict.fromkeys(provenance["streams"]))
        self._kept += provenance["kept"]

    def _copy(self, shard: dataset.Dataset, number: int, episode: EpisodeWriter) -> None:
        streams = list(shard.streams.values())
        rows = [range(*stream.row_offsets[number : number + 2].tolist()) for stream in streams]
        last = number + 1 == len(shard)
        end = len(streams) if last else max((index + 1 for index, part in enumerate(rows) if part), default=0)
        for stream, rows_of_stream in zip(streams[:end], rows, strict=False):
            # A stream's first part is appended even without rows, so that the streams keep their order.
            if rows_of_stream or stream.name not in self._appended:
                self._append(stream, rows_of_stream, episode)

    def _append(self, stream: dataset.Stream, rows: range, episode: EpisodeWriter) -> None:
        self._appended.add(stream.name)
        for begin, end in _pieces(stream, rows):
            time_ns = stream.time_ns[begin:end]
            if stream.ragged == "text":
                if begin < end:
                    episode.append(stream.name, time_ns, stream[begin:end])
            elif stream.ragged is not None or isinstance(stream.values, dataset.EncodedFrames):
                assert stream.offsets is not None
                first, stop = int(stream.offsets[begin]), int(stream.offsets[end])
                offsets = stream.offsets[begin : end + 1] - first
                if stream.ragged is not None:
                    episode.append(stream.name, time_ns, stream.values[first:stop], offsets=offsets)
                else:
                    episode.append(stream.name, time_ns, _encoded(stream, stream.values.data[first:stop], offsets))
            elif stream.frames is not None:
                episode.append(stream.name, time_ns, stream.values[begin:end], codec="raw")
            else:
                episode.append(stream.name, time_ns, stream.values[begin:end])


def _facts(stream: dataset.Stream) -> dict[str, Any]:
    """Returns a cache's description of a stream, as arguments of ``Writer.stream``."""
    facts: dict[str, Any] = {"names": stream.names or None, "attributes": stream.attributes or None}
    if stream.frames is not None:
        matrix = stream.frames.intrinsics
        facts["unit_m"] = stream.frames.unit_m
        facts["intrinsics"] = None if matrix is None else matrix.tolist()
        facts["resized"] = stream.frames.resized
    return facts


def _encoded(stream: dataset.Stream, data: np.ndarray, offsets: np.ndarray) -> frames.Encoded:
    assert stream.frames is not None
    height, width, channels = stream.shape
    color_space = "rgb" if channels == 3 else "gray" if stream.dtype == np.uint8 else "depth"
    return frames.Encoded(stream.frames.codec, color_space, stream.dtype, (height, width, channels), data, offsets)


def _pieces(stream: dataset.Stream, rows: range) -> Iterator[tuple[int, int]]:
    """Yields the row ranges of pieces of some megabytes; one empty range if there are no rows."""
    if not rows:
        yield rows.start, rows.start
        return
    size = int(np.prod(stream.shape)) * stream.dtype.itemsize
    if stream.offsets is not None:
        each = 1 if stream.ragged == "text" or stream.frames is not None else max(1, size)
        size = int(stream.offsets[rows.stop] - stream.offsets[rows.start]) * each // len(rows)
    step = max(1, _COPIED_AT_ONCE // (size + 8))
    for begin in range(rows.start, rows.stop, step):
        yield begin, min(begin + step, rows.stop)
