"""Writes a cache as a LeRobot v3.0 dataset: one table of rows at one rate, cameras as columns of JPEG and PNG files.

LeRobot has one clock, ``frame_index / fps``. Streams with other stamps are resampled by the methods that the user names, or
that the streams declare; the export never chooses one. Everything that is missing is found before anything is written, and
reported in one error.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .. import frames
from .._printable import ranges
from ..dataset import Dataset, EncodedFrames, Stream
from ..errors import ArgumentError, ArgumentTypeError, Error, FileError
from ..ingest.mapping import METHODS
from ..ops.resample import resample_trajectories
from ..sources import own_methods
from ..tasks import MomentTexts, task_streams, texts_of_numbers
from .report import ExportReport

# LeRobot closes a data file once it is larger than this, and puts this many files in a chunk.
_FILE_BYTES, _CHUNK_FILES = 100 << 20, 1000
# Stamps may differ by this much from those of a whole rate. LeRobot checks the same.
_TOLERANCE_NS = 100_000
_INDICES = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
_GAP_ROWS = 5  # a gap is longer than this many median periods
# A row and a target that are less than this apart have one stamp, as in a Loader: rounded grids differ by a nanosecond.
_SNAP_NS = 1000
_STEPS = ("previous", "next", "nearest")
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
# The number of frames that a camera's statistics are computed from.
_SAMPLED_FRAMES = 100
# With more rows than this per recorded row, a stamp must be wrong, such as one from another clock's epoch.
_MOST_ROWS = 1000


def write(
    dataset: Dataset,
    streams: Mapping[str, Stream],
    fps: int | None,
    methods: str | Mapping[str, str] | None,
    rename: Mapping[str, str],
    video: bool,
    folder: Path,
    report: ExportReport,
    show_progress: Callable[[int, int, str], None],
) -> None:
    """Writes ``meta/``, ``data/`` and, with `video`, ``videos/`` into `folder`."""
    fps = int(fps) if isinstance(fps, np.integer) else fps
    if fps is not None and (isinstance(fps, bool) or not isinstance(fps, int) or not 1 <= fps <= 10_000):
        raise ArgumentError(f"fps: expected a whole number of rows a second from 1 to 10000, got {fps!r}")
    tasks = _Tasks(dataset)
    exported = dict(_keep(streams, report))
    problems = _Problems()
    for name, stream in [*exported.items()]:
        # GR00T and robocache look up an annotation's numbers in the table of tasks.
        texts = texts_of_numbers(dataset, stream)
        if texts and texts != dict(enumerate(tasks.texts)) and rename.get(name, name).startswith("annotation."):
            reason = "LeRobot's table of tasks has other texts by its numbers"
            if name in rename:
                problems.arguments.append(f"rename: {name}: {reason}, but '{rename[name]}' would be looked up there")
            else:
                report.leave_out(name, reason)
                del exported[name]
    cameras = [name for name, stream in exported.items() if stream.frames is not None]
    video = video and bool(cameras)
    if methods is not None and not isinstance(methods, str | Mapping):
        raise ArgumentTypeError(f"methods: expected a method, or {{stream: method}}, got {methods!r}")
    requested = dict(methods) if isinstance(methods, Mapping) else dict.fromkeys(exported, methods)
    if unknown := requested.keys() - exported.keys():
        raise ArgumentError(f"methods: no stream {', '.join(sorted(map(str, unknown)))} among {', '.join(exported)}")
    for name, method in requested.items():
        if method is not None and method not in METHODS:
            raise ArgumentError(f"methods: stream '{name}': expected one of {', '.join(METHODS)}, got {method!r}")
    features = _group(exported, rename, problems)
    named = [feature for feature, names in features.items() if names[0] in cameras]
    if video and (bad := [name for name in named if "\0" in name or name in (".", "..")]):
        raise ArgumentError(f"video: expected cameras whose names can be folder names, got {bad[0]!r}")
    fps, planned = _plan(dataset, exported, fps, requested, problems)
    for name in cameras if video else ():
        height, width, _ = exported[name].shape
        if frames.is_labels(name, exported[name].attributes):
            problems.arguments.append(
                f"video: {name}: its pixels are labels, which H.264 changes; export without video (--video), or other streams"
            )
        if height % 2 or width % 2:
            problems.arguments.append(
                f"video: {name}: expected frames of even height and width, which H.264 needs, got {height}x{width}"
            )
    problems.check()
    if "task_index" in streams and not texts_of_numbers(dataset, streams["task_index"]):
        report.leave_out("task_index", "the cache has no texts for its numbers")
    if tasks.several:
        reason = f"episodes {ranges(tasks.several, 10)} have several tasks, and no stream says when each one applies: rows have the first"
        report.leave_out("episodes.tasks", reason)
    subtask_streams = features.get("subtask_index", [])
    subtasks = table_of(dataset, exported[subtask_streams[0]]) if len(subtask_streams) == 1 else []
    for name, stream in exported.items():
        texts = texts_of_numbers(dataset, stream)
        if texts and texts != dict(enumerate(subtasks if name in subtask_streams else tasks.texts)):
            reason = "LeRobot only has tables for task_index and subtask_index, with different texts numbered from 0 on"
            report.leave_out(f"{name}: the texts of its numbers", reason)
    files = _Files(folder)
    episodes: list[dict[str, Any]] = []
    columns = dataset.episodes.to_pylist()
    first = 0
    report.rows = dict.fromkeys(exported, 0)
    rounded: dict[str, float] = {}
    filled: dict[str, tuple[int, float]] = {}
    with _Videos(folder, fps) as videos:
        for number in range(len(dataset)):
            title = f"episode {number}"
            show_progress(number, len(dataset), title)
            rows = dataset.episode(number)
            targets = _target_stamps(
                title, {name: rows[name][0] for name in exported}, fps, resampled=planned is not None
            )
            count = len(targets)
            table: dict[str, pa.Array] = {}
            row = {"episode_index": number, "tasks": [], "length": count}
            for key, names in features.items():
                parts = []
                for name in names:
                    stream, where = exported[name], f"{title}: {name}"
                    method = None if planned is None else planned[name]
                    report.rows[name] += count
                    in_gaps, longest_s = _rows_in_gaps(rows[name][0], targets, stream.rate_hz)
                    if in_gaps:
                        before, longest = filled.get(name, (0, 0.0))
                        filled[name] = before + in_gaps, max(longest, longest_s)
                    if stream.frames is None:
                        parts.append(_resample(stream, rows[name], targets, method, where))
                        continue
                    clock, pictures = rows[name]
                    picked_rows = _target_rows(clock, targets, method)
                    if video:
                        row |= videos.write(key, number, pictures, picked_rows)
                    else:
                        table[key] = _image_column(stream, pictures, picked_rows)
                if parts:
                    values = _join(parts, names, rounded, title)
                    table[key] = _number_column(values)
                    row |= {f"stats/{key}/{field}": value for field, value in _stats(values).items()}
            indices = tasks.of_rows(number, targets)
            row["tasks"] = [tasks.texts[index] for index in dict.fromkeys(indices.tolist())]
            table["timestamp"] = pa.array(np.arange(count) / fps, pa.float32())
            table["frame_index"] = pa.array(np.arange(count))
            table["episode_index"] = pa.array(np.full(count, number))
            table["index"] = pa.array(np.arange(first, first + count))
            table["task_index"] = pa.array(indices)
            row |= {"dataset_from_index": first, "dataset_to_index": first + count} | files.append(pa.table(table))
            row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0, "first_stamp_ns": int(targets[0])}
            for key, value in columns[number].items():
                if key not in ("start_ns", "end_ns") and row.setdefault(key, value) != value and value is not None:
                    report.leave_out(f"episodes.{key}", "LeRobot's own column has that name")
            episodes.append(row)
            first += count
    files.close()
    _write_meta(folder, dataset, exported, features, fps, video, episodes, tasks.texts, files)
    if subtasks:
        pq.write_table(_texts_table("subtask", subtasks), folder / "meta/subtasks.parquet")
    for name, (in_gaps, longest_s) in filled.items():
        filler = "its rows" if planned is None else repr(planned[name])
        report.leave_out(
            f"{name}: recorded values of {in_gaps} of {report.rows[name]} rows",
            f"they lie in gaps of up to {longest_s:.4g} s between its rows, which {filler} fills: nothing was recorded there",
        )
    for name, most in rounded.items():
        if most > 0:
            report.leave_out(f"{name}: float64", f"float32, as LeRobot's policies take it: off by up to {most:.3g}")
    if video:
        report.leave_out("frames as they are stored", "encoded again as H.264, with loss")
    report.leave_out(
        "stamps", f"rows are {fps} a second from first_stamp_ns of meta/episodes on; LeRobot has frame_index / fps"
    )
    report.leave_out("attributes, findings and provenance", "LeRobot cannot store them")


def _keep(streams: Mapping[str, Stream], report: ExportReport) -> Iterator[tuple[str, Stream]]:
    """Yields the streams that become features. The report names the others."""
    any_left = False
    for name, stream in streams.items():
        if stream.ragged is not None:
            report.leave_out(name, f"{stream.kind}: LeRobot's rows are of one size")
        elif stream.frames is not None and stream.dtype != np.uint8:
            report.leave_out(name, f"frames of {stream.dtype}: LeRobot's images are of 8 bits")
        elif stream.dtype == np.uint64 and stream.rows and int(stream.values.max()) >= 2**63:
            report.leave_out(name, "uint64 of 2^63 and more: LeRobot's tensors hold int64")
        elif name in _INDICES:
            if name != "task_index":
                report.leave_out(name, "LeRobot counts rows itself")
        elif 0 in stream.shape or len(stream.shape) > 5:
            report.leave_out(name, f"shape {list(stream.shape)}: LeRobot has 1 to 5 dimensions")
        else:
            any_left = True
            yield name, stream
    if not any_left:
        raise ArgumentError(
            "streams: expected at least one that LeRobot can hold, got none"
            + "".join(f"; {o.what}: {o.reason}" for o in report.left_out)
        )


class _Problems:
    """The problems of an export, collected for one error.

    Attributes:
        arguments: problems of arguments that are missing or wrong.
        data: data in the cache that LeRobot cannot hold.
    """

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self.data: list[str] = []

    def check(self) -> None:
        """Raises ArgumentError if arguments have problems, or FileError if only the data have."""
        problems = list(dict.fromkeys([*self.arguments, *self.data]))
        if not problems:
            return
        text = "; ".join(f"({number}) {problem}" for number, problem in enumerate(problems, 1))
        text = text if len(problems) > 1 else problems[0]
        raise ArgumentError(text) if self.arguments else FileError(text)


# ---- features ----


def _group(streams: Mapping[str, Stream], rename: Mapping[str, str], problems: _Problems) -> dict[str, list[str]]:
    """Returns the streams of each feature, in the order in which its rows hold them."""
    for name, feature in rename.items():
        if name not in streams:
            raise ArgumentError(f"rename: expected streams that are exported, {', '.join(streams)}, got {name!r}")
        if feature in _INDICES or not feature or "/" in feature or "\0" in feature:
            raise ArgumentError(
                f"rename: expected a name that LeRobot allows for a feature, without '/', got {feature!r}"
            )
    features: dict[str, list[str]] = {}
    for name in streams:  # the order of features is that of their first streams
        features.setdefault(rename.get(name, name.replace("/", ".")), []).append(name)
    for feature, names in features.items():
        if len(names) == 1:
            continue
        if not_renamed := [name for name in names if name not in rename]:
            others = ", ".join(repr(name) for name in names if name != not_renamed[0])
            reason = ", because LeRobot allows no '/' in names" if any("/" in name for name in not_renamed) else ""
            problems.arguments.append(
                f"streams: {not_renamed[0]!r} and {others} would both become {feature!r}{reason}; "
                "give them other names, or join them into one feature, with rename"
            )
            continue
        names.sort(key=list(rename).index)
        kinds = {name: streams[name].dtype for name in names}
        if cameras := [name for name in names if streams[name].frames is not None]:
            problems.arguments.append(
                f"rename: expected each camera as a feature by itself, got {cameras[0]!r} in {feature!r}"
            )
        elif len(set(kinds.values())) > 1 and (
            wide_integers := [name for name, dtype in kinds.items() if dtype.kind in "iu" and dtype.itemsize > 2]
        ):
            problems.arguments.append(
                f"rename: {feature!r} would be float32, which cannot hold every {kinds[wide_integers[0]]} of {wide_integers[0]!r}"
            )
    return features


def _join(parts: list[np.ndarray], names: list[str], rounded: dict[str, float], what: str) -> np.ndarray:
    """Joins the streams' rows to a feature's rows. Floats become float32; `rounded` gets the largest error by name.

    Raises:
        FileError: finite numbers beyond float32.
    """
    for index, (name, values) in enumerate(zip(names, parts, strict=True)):
        if values.dtype.kind not in "iub":
            with np.errstate(over="ignore"):
                parts[index] = values.astype(np.float32)
            if values.dtype == np.float64:
                finite = np.isfinite(values)
                beyond = values[finite & np.isinf(parts[index])]
                if len(beyond):
                    raise FileError(
                        f"{what}: {name}: expected numbers that float32 holds, as LeRobot's policies take it, got {len(beyond)} "
                        f"beyond it, up to {np.abs(beyond).max():.3g}; leave the stream out with streams (--streams)"
                    )
                error = np.abs(values[finite] - parts[index][finite])
                rounded[name] = max(rounded.get(name, 0.0), float(error.max(initial=0.0)))
    if len(parts) == 1:
        return parts[0]
    dtype = parts[0].dtype if len({values.dtype for values in parts}) == 1 else np.dtype(np.float32)
    return np.concatenate([values.reshape(len(values), -1).astype(dtype) for values in parts], axis=1)


def _feature_names(streams: Mapping[str, Stream], names: list[str]) -> list[str] | None:
    """Returns the names of a feature's numbers. If it has several streams, they begin with the stream's name."""
    if len(names) == 1:
        return list(streams[names[0]].names) or None
    result = []
    for name in names:
        size = int(np.prod(streams[name].shape))
        numbered = list(streams[name].names) or [str(number) for number in range(size)]
        result += [name] if streams[name].shape == () else [f"{name}.{part}" for part in numbered]
    return result


# ---- rows on one clock ----


def _plan(
    dataset: Dataset, streams: Mapping[str, Stream], fps: int | None, requested: dict[str, Any], problems: _Problems
) -> tuple[int, dict[str, str | None] | None]:
    """Returns the rate, and the method of each stream, or None if all streams have the rows' stamps.

    Missing arguments become problems. The rate is then a guess, so that other problems can still be found.
    """
    empty_episodes = {
        name: np.flatnonzero(np.diff(stream.row_offsets) == 0).tolist() for name, stream in streams.items()
    }
    for name, missing_in in empty_episodes.items():
        if missing_in:
            problems.data.append(
                f"{name}: no rows in {len(missing_in)} of {len(dataset)} episodes ({ranges(missing_in, 10)}); LeRobot has all "
                "features in all episodes (leave a stream out with streams)"
            )
    incomplete = {number for missing_in in empty_episodes.values() for number in missing_in}
    numbers = [number for number in range(len(dataset)) if number not in incomplete]
    if fps is None:
        fps, reason = _common_rate(dataset, streams, numbers)
        if reason is None:
            return fps, None
        problems.arguments.append(f"fps: {reason}; give the rows per second with fps (--fps), such as {fps}")
    methods = {name: requested.get(name) or _own_method(stream) for name, stream in streams.items()}
    lacking: dict[str, str] = {}
    for number in numbers:
        rows = dataset.episode(number)
        clocks = {name: rows[name][0] for name in streams}
        try:
            targets = _target_stamps(f"episode {number}", clocks, fps, resampled=True)
        except FileError as error:
            problems.data.append(str(error))
            continue
        for name, clock in clocks.items():
            if name not in lacking and not _has_stamps(clock, targets):
                if methods[name] is None:
                    lacking[name] = _suggest_method(streams[name])
                elif methods[name] not in _methods_of(streams[name]):
                    kind = "a camera" if streams[name].frames is not None else str(streams[name].dtype)
                    expected = " or ".join(_methods_of(streams[name]))
                    lacking[name] = ""
                    problems.arguments.append(f"methods: {name}: expected {expected} for {kind}, got {methods[name]!r}")
    if suggestions := {name: method for name, method in lacking.items() if method}:
        examples = ", ".join(f"{name}={method}" for name, method in suggestions.items())
        problems.arguments.append(
            f"methods: the stamps of {', '.join(suggestions)} differ from those of the rows; give their methods for resampling with "
            f"methods (--method), such as {examples}"
        )
    return fps, methods


def _own_method(stream: Stream) -> str | None:
    """Returns the method for features that the stream's own methods do not name; None if it has no methods."""
    return "linear" if stream.dtype.kind not in "iub" and stream.attributes.get("methods") else None


def _suggest_method(stream: Stream) -> str:
    return "nearest" if stream.frames is not None else "previous" if stream.dtype.kind in "iub" else "linear"


def _methods_of(stream: Stream) -> tuple[str, ...]:
    if stream.frames is not None:
        return "previous", "nearest"
    return _STEPS if stream.dtype.kind in "iub" else METHODS


def _has_stamps(clock: np.ndarray, targets: np.ndarray) -> bool:
    """Whether each target is a stamp of the clock."""
    targets = _snap(clock, targets)
    return np.array_equal(clock[np.searchsorted(clock, targets, side="right") - 1], targets)


def _common_rate(dataset: Dataset, streams: Mapping[str, Stream], numbers: Sequence[int]) -> tuple[int, str | None]:
    """Returns the whole rate that all streams share in these episodes, and None. If there is none, returns a possible rate,
    the slowest camera's or else the slowest stream's, and the reason."""
    rates = {name: stream.rate_hz for name, stream in streams.items()}
    whole_rates = {name: max(1, round(rate)) for name, rate in rates.items() if np.isfinite(rate)}
    cameras = [rate for name, rate in whole_rates.items() if streams[name].frames is not None]
    suggested = min(cameras or whole_rates.values(), default=1)
    fps = whole_rates.get(next(iter(rates)), 0)
    for number in numbers:
        rows = dataset.episode(number)
        clocks = {name: rows[name][0] for name in streams}
        (name, clock), *others = clocks.items()
        for other, stamps in others:
            if not np.array_equal(stamps, clock):
                return suggested, (
                    f"episode {number}: {name!r} ({rates[name]:.6g} Hz, {len(clock)} rows) and {other!r} "
                    f"({rates[other]:.6g} Hz, {len(stamps)} rows) have different stamps"
                )
        if fps < 1 or np.abs(clock - clock[0] - _nominal_stamps(len(clock), fps)).max() > _TOLERANCE_NS:
            return suggested, (
                f"episode {number}: the stamps of {name!r} are not those of a whole number of rows a second "
                f"({rates[name]:.6g} Hz)"
            )
    return fps, None


def _nominal_stamps(count: int, fps: int) -> np.ndarray:
    """Returns the stamps of `count` rows from 0 on, rounded half to even."""
    return np.array([round(row * 10**9 / fps) for row in range(count)], np.int64)


def _target_stamps(what: str, clocks: Mapping[str, np.ndarray], fps: int, resampled: bool) -> np.ndarray:
    """Returns the stamps of an episode's rows."""
    start, end = max(int(clock[0]) for clock in clocks.values()), min(int(clock[-1]) for clock in clocks.values())
    if not resampled and len({clock.tobytes() for clock in clocks.values()}) == 1:
        return next(iter(clocks.values()))
    if end < start:
        raise FileError(f"{what}: no time at which all streams have begun and none has ended")
    count = (end - start + _SNAP_NS - 1) * fps // 10**9 + 1
    recorded = max(len(clock) for clock in clocks.values())
    if count > _MOST_ROWS * recorded:
        raise FileError(
            f"{what}: {fps} rows a second from {start} to {end} ns would be {count} rows for {recorded} recorded "
            f"ones, expected at most {_MOST_ROWS} for each; robocache doctor finds the faults of its clocks"
        )
    return start + _nominal_stamps(count, fps)


def _snap(clock: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns the targets, each moved to the clock's nearest stamp if that is less than `_SNAP_NS` away."""
    after = np.minimum(np.searchsorted(clock, targets), len(clock) - 1)
    before = np.maximum(after - 1, 0)
    nearest = clock[np.where(np.abs(clock[after] - targets) < np.abs(clock[before] - targets), after, before)]
    snapped: np.ndarray = np.where(np.abs(nearest - targets) < _SNAP_NS, nearest, targets)
    return snapped


def _target_rows(clock: np.ndarray, targets: np.ndarray, method: str | None) -> np.ndarray:
    """Returns the row of each target by "previous" or "nearest". Without a method, rows have the targets' stamps."""
    targets = _snap(clock, targets)
    before = np.searchsorted(clock, targets, side="right") - 1
    if method != "nearest" or np.array_equal(clock[before], targets):
        return before
    # If rows share a stamp, the last of them counts, as in resample_trajectories.
    after = np.searchsorted(clock, clock[np.minimum(before + 1, len(clock) - 1)], side="right") - 1
    nearest: np.ndarray = np.where(np.abs(clock[after] - targets) < targets - clock[before], after, before)
    return nearest


def _rows_in_gaps(clock: np.ndarray, targets: np.ndarray, rate_hz: float) -> tuple[int, float]:
    """Returns how many targets lie within gaps of a clock, and the longest of these gaps in seconds."""
    if rate_hz <= 0 or len(clock) < 2:
        return 0, 0.0
    after = np.searchsorted(clock, _snap(clock, targets))
    is_inside = (after > 0) & (after < len(clock))
    after = after[is_inside]
    is_between = clock[after] != _snap(clock, targets)[is_inside]
    gaps_ns = (clock[after] - clock[after - 1])[is_between]
    gaps_ns = gaps_ns[gaps_ns > _GAP_ROWS * 1e9 / rate_hz]
    return len(gaps_ns), float(gaps_ns.max(initial=0)) / 1e9


def _resample(
    stream: Stream, rows: tuple[np.ndarray, Any], targets: np.ndarray, method: str | None, where: str
) -> np.ndarray:
    """Returns a stream's values at the targets, ``[n, *shape]``."""
    clock, values = rows
    values, targets = np.asarray(values), _snap(clock, targets)
    if method is None or np.array_equal(clock, targets):
        recorded: np.ndarray = values[_target_rows(clock, targets, None)]
        return recorded
    indices = range(math.prod(stream.shape))
    # One call for each method, which takes any number of features, and one for each rotation.
    calls = {(method, 0): set(indices)}
    for block, own_method in own_methods(stream.name, [stream]) if method not in _STEPS else ():
        calls[method, 0] -= {*indices[block]}
        start = indices[block].start if own_method in ("slerp", "pose") else 0
        calls.setdefault((own_method, start), set()).update(indices[block])
    flat = values.reshape(1, len(values), -1)
    resampled = np.empty((len(targets), len(indices)), values.dtype)
    try:
        for (name, _), features in calls.items():
            columns = sorted(features)
            if columns:
                result = resample_trajectories(flat[..., columns], clock[None], targets[None], method=name)
                resampled[:, columns] = np.asarray(result)[0]
    except Error as error:
        raise ArgumentError(f"methods: {where}: {error}") from error
    return resampled.reshape(len(targets), *stream.shape)


class _Videos:
    """Writes the cameras' frames, a file for each episode, several files at once."""

    def __init__(self, folder: Path, fps: int) -> None:
        self._folder, self._fps = folder, fps
        self._most_files = os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._most_files)
        self._being_written: deque[Future[None]] = deque()

    def write(self, key: str, number: int, pictures: Any, rows: np.ndarray) -> dict[str, Any]:
        """Begins the file of a camera's frames of one episode, and returns its location as in meta/episodes."""
        from .videos import write_video  # needs PyAV

        if len(self._being_written) >= self._most_files:
            self._being_written.popleft().result()
        chunk, file = divmod(number, _CHUNK_FILES)
        path = self._folder / f"videos/{key}/chunk-{chunk:03d}/file-{file:03d}.mp4"
        self._being_written.append(self._pool.submit(write_video, path, pictures, rows, self._fps))
        seconds = len(rows) / self._fps
        location = {"chunk_index": chunk, "file_index": file, "from_timestamp": 0.0, "to_timestamp": seconds}
        return {f"videos/{key}/{name}": value for name, value in location.items()}

    def __enter__(self) -> _Videos:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown()  # nothing is written any more when an error is passed on
        if failed is None:
            for future in self._being_written:
                future.result()


def _image_column(stream: Stream, pictures: Any, rows: np.ndarray) -> pa.Array:
    """Returns a camera's frames as their stored files; raw frames become PNGs."""
    if isinstance(pictures, EncodedFrames):
        assert stream.frames is not None
        suffix, files = stream.frames.codec, [pictures.file(row).tobytes() for row in rows]
    else:
        suffix, files = "png", []
        for row in rows:
            files.append(frames.encode(np.asarray(pictures[row])[None], codec="png").data.tobytes())
    names = [f"frame-{number:06d}.{suffix}" for number in range(len(files))]
    return pa.StructArray.from_arrays([pa.array(files, pa.binary()), pa.array(names)], ["bytes", "path"])


def _number_column(values: np.ndarray) -> pa.Array:
    """Returns one number per row as a plain column, and more as nested lists of fixed size."""
    if values.ndim == 1 or values.shape[1:] == (1,):
        return pa.array(np.ascontiguousarray(values.reshape(-1)))
    return _list_column(values)


def _list_column(values: np.ndarray) -> pa.Array:
    if values.ndim == 1:
        return pa.array(np.ascontiguousarray(values))
    return pa.FixedSizeListArray.from_arrays(_list_column(values.reshape(-1, *values.shape[2:])), values.shape[1])


# ---- tasks ----


class _Tasks:
    """The texts of the tasks. Texts of a stream of numbers keep their numbers, which other columns may use; others are numbered
    in the order of the rows. Rows without a text get the text "", because every LeRobot row has a task.

    Attributes:
        texts: the texts, by their numbers.
        several: see :class:`MomentTexts`.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._moments = MomentTexts(dataset, snap_ns=_SNAP_NS)
        self.several = self._moments.several
        self.texts = next((table for stream in task_streams(dataset) if (table := table_of(dataset, stream))), [])
        self._numbers = {text: number for number, text in enumerate(self.texts)}

    def of_rows(self, episode: int, targets: np.ndarray) -> np.ndarray:
        """Returns the task of each row of an episode."""
        texts = self._moments.at(np.full(len(targets), episode), targets).tolist()
        return np.array([self._number(text or "") for text in texts], np.int64)

    def _number(self, text: str) -> int:
        number = self._numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number


def table_of(dataset: Dataset, stream: Stream) -> list[str]:
    """Returns the texts of a stream's numbers for LeRobot's tables, if they are numbered from 0 on and all different; else []."""
    by_number = texts_of_numbers(dataset, stream)
    texts = [by_number.get(number) for number in range(len(by_number))]
    return [] if None in texts or len({*texts}) < len(texts) else [text for text in texts if text is not None]


# ---- files ----


class _Files:
    """Writes the Parquet files of rows, one after another.

    Attributes:
        paths: the files written so far.
    """

    def __init__(self, folder: Path) -> None:
        self.paths: list[Path] = []
        self._folder = folder
        self._writer: pq.ParquetWriter | None = None

    def append(self, table: pa.Table) -> dict[str, int]:
        """Writes an episode, and returns its location as in meta/episodes."""
        if self._writer is not None and self.paths[-1].stat().st_size > _FILE_BYTES:
            self.close()
        if self._writer is None:
            chunk, file = divmod(len(self.paths), _CHUNK_FILES)
            self.paths.append(self._folder / f"data/chunk-{chunk:03d}/file-{file:03d}.parquet")
            self.paths[-1].parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self.paths[-1], table.schema)
        self._writer.write_table(table)
        chunk, file = divmod(len(self.paths) - 1, _CHUNK_FILES)
        return {"data/chunk_index": chunk, "data/file_index": file}

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def column(self, name: str) -> np.ndarray:
        """Returns a column of numbers from all files, ``[n, *shape]``."""
        parts = []
        for path in self.paths:
            column = pq.read_table(path, columns=[name])[name].combine_chunks()
            shape = [len(column)]
            while pa.types.is_fixed_size_list(column.type):
                shape.append(column.type.list_size)
                column = column.flatten()
            parts.append(column.to_numpy(zero_copy_only=False).reshape(shape))
        return np.concatenate(parts)


def _stats(values: np.ndarray) -> dict[str, list[Any]]:
    """Returns the statistics as LeRobot stores them: over the rows, ignoring NaN and infinity."""
    table = values.reshape(len(values), -1).astype(np.float64)
    table[np.isinf(table)] = np.nan
    shape = values.shape[1:] or (1,)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # for features without a finite number
        stats = {
            "min": np.nanmin(table, axis=0),
            "max": np.nanmax(table, axis=0),
            "mean": np.nanmean(table, axis=0),
            "std": np.nanstd(table, axis=0),
        }
        stats |= {name: np.nanquantile(table, share, axis=0) for name, share in _QUANTILES.items()}
    return {name: array.reshape(shape).tolist() for name, array in stats.items()} | {"count": [len(values)]}


def _image_stats(stream: Stream, channels: int) -> dict[str, Any]:
    """Returns the statistics of some frames' pixels, scaled to 0..1, ``[channels, 1, 1]``. A grey video has three equal channels."""
    chosen = np.unique(np.linspace(0, stream.rows - 1, _SAMPLED_FRAMES).astype(int))
    pixels = np.concatenate([np.asarray(stream.frame(row)).reshape(-1, stream.shape[2]) for row in chosen.tolist()])
    stats = _stats(np.broadcast_to(pixels.astype(np.float32) / 255, (len(pixels), channels)))
    return {name: np.reshape(value, (-1, 1, 1)).tolist() for name, value in stats.items() if name != "count"} | {
        "count": [len(chosen)]
    }


def _write_meta(
    folder: Path,
    dataset: Dataset,
    streams: Mapping[str, Stream],
    feature_streams: Mapping[str, list[str]],
    fps: int,
    video: bool,
    episodes: list[dict[str, Any]],
    tasks: list[str],
    files: _Files,
) -> None:
    features: dict[str, Any] = {}
    stats: dict[str, Any] = {}
    for key, names in feature_streams.items():
        stream = streams[names[0]]
        if stream.frames is not None:
            height, width, channels = stream.shape
            shape = [height, width, 3 if video else channels]
            features[key] = {
                "dtype": "video" if video else "image",
                "shape": shape,
                "names": ["height", "width", "channels"],
            }
            if video:
                from . import videos

                features[key]["info"] = videos.describe(height, width, fps)
            stats[key] = _image_stats(stream, shape[2])
            continue
        column = files.column(key)
        shape = list(column.shape[1:]) or list(stream.shape) or [1]
        features[key] = {"dtype": str(column.dtype), "shape": shape, "names": _feature_names(streams, names)}
        stats[key] = _stats(column)
    for name, dtype in _INDICES.items():
        features[name] = {"dtype": dtype, "shape": [1], "names": None}
        stats[name] = _stats(files.column(name))
    info = {
        "codebase_version": "v3.0",
        "robot_type": dict(dataset.provenance.get("lerobot", {})).get("robot_type"),
        "total_episodes": len(episodes),
        "total_frames": sum(row["length"] for row in episodes),
        "total_tasks": len(tasks),
        "chunks_size": _CHUNK_FILES,
        "data_files_size_in_mb": _FILE_BYTES >> 20,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": {"train": f"0:{len(episodes)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4" if video else None,
        "features": features,
    }
    meta = folder / "meta"
    (meta / "episodes/chunk-000").mkdir(parents=True)
    (meta / "info.json").write_text(json.dumps(info, indent=4))
    (meta / "stats.json").write_text(json.dumps(stats, indent=4))
    pq.write_table(pa.Table.from_pylist(episodes), meta / "episodes/chunk-000/file-000.parquet")
    pq.write_table(_texts_table("task", tasks), meta / "tasks.parquet")


def _texts_table(column: str, texts: list[str]) -> pa.Table:
    """Returns a table of task_index or subtask_index as pandas writes it, with the text as its index."""
    kinds = ((f"{column}_index", "int64", "int64"), (column, "unicode", "object"))
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
        for name, kind, numpy in kinds
    ]
    pandas = {"index_columns": [column], "column_indexes": [], "columns": columns, "pandas_version": "2.2.0"}
    numbers = pa.array(range(len(texts)), pa.int64())
    table = pa.table({f"{column}_index": numbers, column: pa.array(texts, pa.string())})
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})
