"""Splits an ingest into shards: makes a plan, converts shards, in any process on any machine, and merges them into one cache.

A shard is a range of the source's recordings, converted to a cache of its own, whose provenance holds the notes. The merged cache
equals, byte for byte, the one that a single process writes; only notes on types or intrinsics that differ between shards may have
another place in the report. A finished shard is never converted again, so a killed ingest resumes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
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
from .driver import (
    Driver,
    IngestReport,
    Progress,
    Work,
    cast_exactly,
    checked_cache,
    checked_path,
    describe_difference,
    describe_differing,
    finish,
    report,
    report_cast,
    wider_dtype,
)
from .files import check_file, list_files
from .mapping import parse_mapping
from .options import make_options
from .recording import Notes, Omission, ShardsError, SourceError, WiderError, naming
from .registry import format_of

PLAN = "plan.json"
# Several, so that processes end at nearly the same time, and little is repeated after a kill.
_SHARDS_PER_WORKER = 4
_MOST_SHARDS = 100_000
_BYTES_AT_ONCE = 16 << 20
# Errors name this command, since one process knows the recordings that differ.
_ALONE = "robocache ingest without --workers reads the source in one process, which accepts some differences and names the recordings of others"


@dataclass(frozen=True)
class Plan:
    """How a source is divided into shards.

    folder: the folder of the plan and its shards.
    recordings: the number of recordings in the source.
    shards: the number of shards.
    files: for each file of the source, its size and its modification time in ns; for a file without these, minus the error number.
    """

    folder: Path
    work: Work
    recordings: int
    shards: int
    files: Mapping[str, Sequence[int]]

    @property
    def described(self) -> dict[str, Any]:
        """The plan as JSON values, which every shard stores."""
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
        """Returns the range of a shard's recordings; that of the last shard has no end."""
        begin, end = (number * self.recordings // self.shards for number in (shard, shard + 1))
        return range(begin, end if shard + 1 < self.shards else sys.maxsize)

    def count(self, shard: int) -> int:
        """Returns the number of a shard's recordings when the plan was made."""
        share = self.share(shard)
        return max(0, min(share.stop, self.recordings) - share.start)

    def path(self, shard: int) -> Path:
        """Returns the path of a shard's cache."""
        return self.folder / f"shard-{shard:03d}"

    def check_source(self) -> None:
        """Raises FileError if a file has changed since the plan was made; the error names the first such file."""
        with self.work.limits():
            now = _find_states(self.work.source)
        for name in sorted({*self.files, *now}):
            if list(self.files.get(name, ())) != now.get(name, []):
                change = "gone" if name not in now else "new" if name not in self.files else "changed"
                raise FileError(
                    f"{self.work.source / name}: {change} since {self.folder / PLAN} was made; plan the source anew"
                )


def plan(source: Any, folder: Any, *, shards: int, **arguments: Any) -> Plan:
    """Divides the recordings of a source into shards.

    Args:
        folder: the directory to make, for ``plan.json`` and later the shards.
        shards: the number of shards. Some are empty if there are fewer recordings.
        arguments: as for :func:`ingest`: `format`, `on_error`, `repair`, `offsets`, `mapping` and the format's options.

    Raises:
        FileError: `folder` exists, or :func:`ingest` would raise this error before it reads a recording.
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
    """Counts the recordings of a source, and returns the plan. Without `shards`, their number follows from that of the workers."""
    notes = Notes(work.format.name, {}, work.on_error, range(0))
    reader = work.format.load()
    with work.limits():
        files = _find_states(work.source)
        with closing(reader.read(work.source, work.options, notes)) as recordings, naming(work.source):
            for _ in recordings:  # their streams are not read
                notes.position += 1
    return Plan(
        folder, work, notes.position, shards or min(_SHARDS_PER_WORKER * workers, max(1, notes.position)), files
    )


def _find_states(source: Path) -> dict[str, list[int]]:
    """Returns the `files` of a plan."""
    states = {}
    for file in list_files(source).files:
        name = str(file.relative_to(source)) if file != source else "."
        try:
            status = file.stat()
            states[name] = [status.st_size, status.st_mtime_ns]
        except OSError as error:  # the reader, which opens the file too, reports it
            states[name] = [-(error.errno or 1)]
    return states


def save(made: Plan) -> None:
    """Writes a plan to its folder."""
    text = json.dumps({"robocache_plan": 1, **made.described, "file_states": made.files}, indent=1)
    try:
        write_whole(made.folder / PLAN, text)
    except OSError as error:
        raise FileError(f"{made.folder / PLAN}: {error.strerror}") from error


def remove(path: Path) -> None:
    """Removes an unfinished cache, or a folder of shards. Its lock, and the marker that they were merged, are removed last."""
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
        FileError: the folder has no plan of this version.
    """
    folder = checked_path("folder", folder)
    try:
        check_file(folder / PLAN)
        content = json.loads((folder / PLAN).read_text())
        if content["robocache_plan"] != 1:
            raise ValueError(f"version {content['robocache_plan']}")
        work = _parse_work(content)
        recordings, shards, files = content["recordings"], content["shards"], content["file_states"]
        if not (isinstance(recordings, int) and isinstance(shards, int) and 1 <= shards <= _MOST_SHARDS):
            raise ValueError(f"{recordings!r} recordings in {shards!r} shards")
        if not (isinstance(files, dict) and all(isinstance(state, list) for state in files.values())):
            raise ValueError(f"files {files!r:.60}")
        return Plan(folder, work, recordings, shards, files)
    except SourceError as error:  # on_error="skip" skips files of the source, but not the plan
        raise FileError(str(error)) from error
    except OSError as error:
        raise FileError(f"{folder / PLAN}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(f"{folder / PLAN}: expected a plan of this version, got {error!r}") from error
    except (ArgumentError, ArgumentTypeError) as error:
        raise FileError(f"{folder / PLAN}: {error}") from error


def _parse_work(description: Mapping[str, Any]) -> Work:
    """Returns the work that the description of a plan holds."""
    format = format_of(description["format"])
    mapping = description["mapping"] and parse_mapping(description["mapping"]["given"], description["mapping"]["where"])
    options = make_options(format.options, format.name, description["options"])
    on_error, repair = description["on_error"], description["repair"]
    if on_error not in ("stop", "skip") or repair not in (None, *POLICIES):
        raise ValueError(f"on_error {on_error!r}, repair {repair!r}")
    offsets_ns = {str(stream): int(ns) for stream, ns in description["offsets_ns"].items()}
    memory_limit = description.get("memory_limit")
    if memory_limit is not None and not (isinstance(memory_limit, int) and memory_limit > 0):
        raise ValueError(f"memory_limit {memory_limit!r}")
    follow_links = description.get("follow_links", False)
    if not isinstance(follow_links, bool):
        raise ValueError(f"follow_links {follow_links!r}")
    source = Path(description["source"])
    return Work(source, format, options, on_error, repair, offsets_ns, mapping, memory_limit, follow_links)


# ---- convert ----


def convert(made: Plan, shard: int, *, progress: Progress | None = None, jobs: int | None = None) -> Path:
    """Converts a shard, unless it was converted before, and returns its path.

    Args:
        progress: as for :func:`ingest`; recordings have their numbers in the source.
        jobs: the number of processes that decode video, if the plan leaves it open; other formats ignore it.

    Raises:
        FileError: the source has changed since the plan was made, another process is converting the shard, or :func:`ingest` would
            raise this error.
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
    wider: dict[str, Any] = {}
    while not _convert(made, work, shard, path, progress, wider):
        pass  # a WiderError begins the shard anew, with the wider types that `wider` has then
    return path


def _convert(made: Plan, work: Work, shard: int, path: Path, progress: Progress | None, wider: dict[str, Any]) -> bool:
    """Writes a shard. Returns False, and writes nothing, if rows do not fit the types of `wider`, which then has wider ones."""
    share = made.share(shard)
    with suppress(WiderError), Writer(path) as writer:
        notes = Notes(work.format.name, writer.provenance, work.on_error, share, wider)
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
        return True
    return False


def _check_shard(opened: dataset.Dataset, description: Mapping[str, Any] | None, number: int | None) -> dict[str, Any]:
    """Checks that a cache is a shard, and of the plan described and this number if they are given. Returns the shard's provenance."""
    shard_provenance: dict[str, Any] | None = opened.provenance.get("shard")
    if shard_provenance is None:
        raise FileError(f"{opened.path}: expected a shard of an ingest, got another cache")
    if description is not None and shard_provenance["plan"] != description:
        raise FileError(f"{opened.path}: a shard of another plan; remove it to convert it anew")
    if number is not None and shard_provenance["number"] != number:
        raise FileError(f"{opened.path}: expected shard {number}, got {shard_provenance['number']}")
    return shard_provenance


# ---- merge ----


def merge(shards: Any, cache: Any, *, overwrite: bool = False, progress: Progress | None = None) -> IngestReport:
    """Merges all shards of a plan into the cache that :func:`ingest` would write.

    Args:
        shards: the folder of a plan, or all its shards in any order.
        cache, overwrite: as for :func:`ingest`.
        progress: called as ``progress(done, total, what)`` before each episode.

    Raises:
        FileError: a shard is missing (the error has the command that converts it), damaged or of another plan, or the source has
            changed.
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
    """Merges the shards of a plan, or those in `paths`. Writes to `marker` the inode of the finished cache."""
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
    description = made.described if made is not None else _check_shard(opened[0], None, None)["plan"]
    by_number: dict[int, tuple[dict[str, Any], dataset.Dataset]] = {}
    for shard_cache in opened:
        provenance = _check_shard(shard_cache, description, None)
        by_number[provenance["number"]] = provenance, shard_cache
    missing = [str(number) for number in range(description["shards"]) if number not in by_number]
    if missing:
        raise FileError(f"{opened[0].path}: shards {', '.join(missing)} of its plan are missing")
    work = made.work if made is not None else _parse_work(description)
    in_order = [by_number[number][1] for number in range(description["shards"])]
    # Workers leave differences to a single process, whose notes are in the source's order.
    dtypes, differing = ({}, {}) if marker is not None else (_find_dtypes(in_order), _find_differing(in_order))
    with Writer(cache, overwrite=overwrite) as writer:
        merger = _Merger(writer, work, progress, sum(map(len, opened)), dtypes, differing)
        for number in range(description["shards"]):
            merger.add(*by_number[number])
        merger.end()
        if marker is not None:
            # A directory keeps its inode when it is renamed, so a cache with the marker's inode proves that this merge finished.
            marker.write_text(str(os.stat(f"{cache}.partial").st_ino))
    return report(work, cache, merger.notes, merger.repaired, time.perf_counter() - started)


def _find_dtypes(shards: Sequence[dataset.Dataset]) -> dict[str, np.dtype[Any]]:
    """Returns the dtypes of streams of numbers as a single process would choose them: that of the first shard if it holds all values,
    else a wider one."""
    dtypes: dict[str, np.dtype[Any]] = {}
    sources: dict[str, str] = {}  # for each stream, the shard that its dtype is from or was chosen for
    for shard in shards:
        for name, stream in shard.streams.items():
            if stream.frames is not None or stream.ragged == "text":
                continue
            first = dtypes.setdefault(name, np.dtype(stream.dtype))
            source = sources.setdefault(name, Path(shard.path).name)
            if first == stream.dtype or all(cast_exactly(first, values) is not None for values in _cut_values(stream)):
                continue
            wide = wider_dtype(first, np.dtype(stream.dtype))
            if wide is None:
                raise ShardsError(
                    f"{shard.path}: stream {name!r}: {stream.dtype}, but {first} because of {source}, and no type holds all values; {_ALONE}"
                )
            dtypes[name], sources[name] = wide, Path(shard.path).name
    return dtypes


def _cut_values(stream: dataset.Stream) -> Iterator[np.ndarray]:
    """Yields the values of all rows in pieces of some megabytes."""
    for begin, end in _cut_rows(stream, range(stream.rows)):
        if stream.ragged is None:
            yield stream.values[begin:end]
        else:
            assert stream.offsets is not None
            yield stream.values[int(stream.offsets[begin]) : int(stream.offsets[end])]


def _find_differing(shards: Sequence[dataset.Dataset]) -> dict[str, str]:
    """Returns the cameras whose intrinsics differ between shards, with the difference in words: a stream has one matrix."""
    shards_of: dict[str, dict[str | None, list[str]]] = {}
    for shard in shards:
        for name, stream in shard.streams.items():
            if stream.frames is not None:
                matrix = _facts(stream)["intrinsics"]
                shards_of.setdefault(name, {}).setdefault(None if matrix is None else str(matrix), []).append(
                    Path(shard.path).name
                )
    return {name: describe_differing(groups) for name, groups in shards_of.items() if len(groups) > 1}


class _Merger:
    """Appends shards to a cache, in order.

    dtypes: the dtypes of streams, if they may differ between shards.
    differing: the cameras that get no intrinsics, with the reasons.
    """

    def __init__(
        self,
        writer: Writer,
        work: Work,
        progress: Progress | None,
        total: int,
        dtypes: Mapping[str, np.dtype[Any]],
        differing: Mapping[str, str],
    ) -> None:
        self._dtypes = dtypes
        self._differing = differing
        self.notes = Notes(work.format.name, writer.provenance, work.on_error)
        self.repaired: dict[str, dict[str, int]] = {}
        self._writer = writer
        self._work = work
        self._kept = self._done = 0
        self._total = total
        self._report = progress or (lambda done, total, what: None)
        self._streams: dict[str, None] = {}  # the names of all streams that were converted, in order
        self._facts: dict[str, dict[str, Any]] = {}
        self._first_shards: dict[str, str] = {}  # for each stream, the shard that declared it first
        self._clocks: dict[str, str] = {}
        self._appended: set[str] = set()
        self._features = Features(self.notes, None, {})

    def add(self, provenance: Mapping[str, Any], shard: dataset.Dataset) -> None:
        """Appends a shard, with its notes."""
        try:
            shard.verify()  # damage would get correct checksums in the merged cache
        except FileError as error:
            raise FileError(f"{error}; remove {shard.path} to convert it anew") from error
        self._add_notes(provenance, shard)
        for name, stream in shard.streams.items():
            facts = _facts(stream)
            if name in self._differing:
                facts["intrinsics"] = None
                self.notes.leave_out(f"{name}: intrinsics", self._differing[name])
            if name not in self._facts:
                self._writer.stream(name, **facts)
            elif facts != self._facts[name]:
                change, before = (
                    describe_difference(facts, self._facts[name]),
                    describe_difference(self._facts[name], facts),
                )
                raise ShardsError(
                    f"{shard.path}: stream {name!r}: {change}, but in {self._first_shards[name]} {before}; {_ALONE}"
                )
            self._facts[name] = facts
            self._first_shards.setdefault(name, Path(shard.path).name)
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
                    self._copy_episode(shard, number, episode)
                self._done += 1
        except (ArgumentError, ArgumentTypeError) as error:
            raise ShardsError(f"{shard.path}: does not fit the other shards: {error}; {_ALONE}") from error

    def _check_features(self, shard: dataset.Dataset, metadata: Mapping[str, Any]) -> None:
        """Compares the features that columns declare with those of earlier shards, as a single process would."""
        try:
            self._features.check(str(shard.path), metadata)
        except SourceError as error:
            raise ShardsError(f"{error}; {_ALONE}") from error

    def end(self) -> None:
        """Writes what is known only after the last shard."""
        for name, facts in self._facts.items():
            self._writer.stream(name, clock=self._clocks[name], **facts)
        finish(self._work, self._writer, self.notes, self._kept, self._streams.keys(), self.repaired)

    def _add_notes(self, provenance: Mapping[str, Any], shard: dataset.Dataset) -> None:
        """Adds a shard's notes, in the same way as a single process would have made them."""
        format, notes = self._work.format.name, self.notes
        before = self._writer.provenance.get(format, {})
        for fact, value in shard.provenance.get(format, {}).items():
            if before.get(fact, value) != value:
                raise ShardsError(
                    f"{shard.path}: {fact} of its provenance differs from that of the shards before it; {_ALONE}"
                )
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
                        f"{shard.path}: {table} {key!r} is {value}, but before it {notes.seen[table][key]}; {_ALONE}"
                    )
        add_counts(self.repaired, provenance["repaired"])
        self._streams.update(dict.fromkeys(provenance["streams"]))
        self._kept += provenance["kept"]

    def _copy_episode(self, shard: dataset.Dataset, number: int, episode: EpisodeWriter) -> None:
        streams = list(shard.streams.values())
        rows = [range(*stream.row_offsets[number : number + 2].tolist()) for stream in streams]
        is_last = number + 1 == len(shard)
        end = len(streams) if is_last else max((index + 1 for index, part in enumerate(rows) if part), default=0)
        for stream, part in zip(streams[:end], rows, strict=False):
            # A stream is appended once even without rows, so that the streams keep their order.
            if part or stream.name not in self._appended:
                self._append(stream, part, episode)

    def _append(self, stream: dataset.Stream, rows: range, episode: EpisodeWriter) -> None:
        self._appended.add(stream.name)
        for begin, end in _cut_rows(stream, rows):
            time_ns = stream.time_ns[begin:end]
            if stream.ragged == "text":
                if begin < end:
                    episode.append(stream.name, time_ns, stream[begin:end])
            elif stream.ragged is not None or isinstance(stream.values, dataset.EncodedFrames):
                assert stream.offsets is not None
                first, stop = int(stream.offsets[begin]), int(stream.offsets[end])
                offsets = stream.offsets[begin : end + 1] - first
                if stream.ragged is not None:
                    values = self._cast(stream, stream.values[first:stop])
                    episode.append(stream.name, time_ns, values, offsets=offsets)
                else:
                    encoded = _make_encoded(stream, stream.values.data[first:stop], offsets)
                    episode.append(stream.name, time_ns, encoded)
            elif stream.frames is not None:
                episode.append(stream.name, time_ns, stream.values[begin:end], codec="raw")
            else:
                episode.append(stream.name, time_ns, self._cast(stream, stream.values[begin:end]))

    def _cast(self, stream: dataset.Stream, values: np.ndarray) -> np.ndarray:
        """Returns values in the dtype that all shards share."""
        dtype = self._dtypes.get(stream.name, values.dtype)
        if dtype == values.dtype:
            return values
        if (cast := cast_exactly(dtype, values)) is None:
            raise ArgumentError(f"stream {stream.name!r}: {values.dtype}, which {dtype} of other shards cannot hold")
        report_cast(stream.name, values.dtype, dtype, self.notes)
        return cast


def _facts(stream: dataset.Stream) -> dict[str, Any]:
    """Returns what a cache says about a stream, as arguments of ``Writer.stream``."""
    facts: dict[str, Any] = {"names": stream.names or None, "attributes": stream.attributes or None}
    if stream.frames is not None:
        matrix = stream.frames.intrinsics
        facts["unit_m"] = stream.frames.unit_m
        facts["intrinsics"] = None if matrix is None else matrix.tolist()
        facts["resized"] = stream.frames.resized
    return facts


def _make_encoded(stream: dataset.Stream, data: np.ndarray, offsets: np.ndarray) -> frames.Encoded:
    assert stream.frames is not None
    height, width, channels = stream.shape
    color_space = "rgb" if channels == 3 else "gray" if stream.dtype == np.uint8 else "depth"
    return frames.Encoded(stream.frames.codec, color_space, stream.dtype, (height, width, channels), data, offsets)


def _cut_rows(stream: dataset.Stream, rows: range) -> Iterator[tuple[int, int]]:
    """Yields the begin and the end of pieces of these rows, of some megabytes each; of an empty piece if there are no rows."""
    if not rows:
        yield rows.start, rows.start
        return
    size = int(np.prod(stream.shape)) * stream.dtype.itemsize
    if stream.offsets is not None:
        element_size = 1 if stream.ragged == "text" or stream.frames is not None else max(1, size)
        size = int(stream.offsets[rows.stop] - stream.offsets[rows.start]) * element_size // len(rows)
    step = max(1, _BYTES_AT_ONCE // (size + 8))
    for begin in range(rows.start, rows.stop, step):
        yield begin, min(begin + step, rows.stop)
