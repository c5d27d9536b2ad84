"""Reads AgiBot World: ``proprio_stats/TASK/EPISODE/proprio_stats.h5``, ``observations/TASK/EPISODE`` with videos and depth,
and ``task_info/task_TASK.json``.

The schema follows AgiBot World's description of its data and its converters. Each dataset in ``state/...`` and ``action/...`` has
one row for each stamp of ``timestamp``, which is int64 nanoseconds, or seconds in simulated episodes. ``action/.../index`` lists
the rows at which commands were sent. Frame k of a video belongs to row k.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import FileError
from ...feature_names import own_units
from ..files import list_files, look_through, natural, read_whole
from ..formats.hdf5 import PROPRIO, AgibotOptions
from ..images import Images, Kinds
from ..rate import SECONDS, exact_ns, find_rate, refuse_no_seconds, said_rates
from ..recording import Frames, Notes, Recording, Samples, SourceError, Texts, as_utf8
from .beside import read_json
from .columns import Clock, Column, count_rows, nominal, take_constants
from .datasets import Dataset, Tree, another_layout, attributes, open_file, walk
from .droid import open_videos

_MOST_ROWS = 1 << 22
# Whole numbers between these, the years 2001 to 2128, are taken as nanoseconds since 1970.
_EPOCH_NS = (1e18, 5e18)
_NANOSECONDS = re.compile(r"(?i)\W*(ns|nsecs?|nanosec(ond)?s?)\b")
_DEPTH = re.compile(r"(.+?)_?(\d+)\.png")


def read(source: Path, options: AgibotOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every episode."""
    root, listing = look_through(source, notes)
    files = [file for file in listing.files if file == source or file.name == PROPRIO]
    if not files:
        raise FileError(f"{source}: expected AgiBot's episodes ({PROPRIO}), found none")
    episodes = [_Episode.of(path) for path in sorted(files, key=natural)]
    used = [file for episode in episodes for file in (episode.path, *episode.videos.values(), *episode.depth)]
    listing.leave_out_others([*used, *(episode.info for episode in episodes if episode.info)], "not read", notes)
    kinds, infos = Kinds(), _Infos(notes)
    notes.total = len(episodes)
    with open_videos(root, any(episode.videos for episode in episodes), options, kinds, notes) as videos:
        for episode in episodes:
            name = str(episode.path.relative_to(root))
            what = f"{episode.task}/{episode.number}"
            metadata: dict[str, Any] = {"name": what, "source_file": name}
            metadata |= {"task_id": as_utf8(episode.task), "episode_id": as_utf8(episode.number)}
            streams = _read_streams(episode, what, metadata, infos, videos, options, kinds, notes)
            yield Recording(what, str(episode.path), metadata, streams)


@dataclass
class _Episode:
    """The paths of an episode's files.

    path: the file with the rows.
    task, number: the names of the folders of the task and of the episode.
    info: the file that describes the task's episodes; None if there is none.
    videos: the video of each camera, by the camera's name.
    depth: the images of all depth cameras.
    """

    path: Path
    task: str
    number: str
    info: Path | None
    videos: dict[str, Path]
    depth: list[Path]

    @classmethod
    def of(cls, path: Path) -> _Episode:
        *_, task, number = ("", "", *path.resolve().parts[:-1])
        # Some copies of the data keep all files of an episode in one folder.
        folders = [path.parent]
        infos = [path.parent / "task_info.json", path.parent.parent / f"task_info_{task}.json"]
        if len(path.parents) > 3:
            dataset = path.parents[3]
            folders.insert(0, dataset / "observations" / task / number)
            infos.insert(0, dataset / "task_info" / f"task_{task}.json")
        folder = next(
            (folder for folder in folders if (folder / "videos").is_dir() or (folder / "depth").is_dir()), path.parent
        )
        videos = {file.stem: file for file in _list_folder(folder / "videos") if file.suffix.lower() == ".mp4"}
        depth = [file for file in _list_folder(folder / "depth") if _DEPTH.fullmatch(file.name)]
        return cls(path, task, number, next(filter(Path.exists, infos), None), videos, depth)


def _list_folder(folder: Path) -> list[Path]:
    return list_files(folder).files if folder.is_dir() else []


class _Infos:
    """The entries that describe episodes, in the files of their tasks. Each file is read once."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._read: dict[Path, dict[str, dict[str, Any]]] = {}

    def of(self, episode: _Episode, what: str) -> Mapping[str, Any]:
        """Returns the entry of an episode; empty if there is none, which is reported."""
        if episode.info is None:
            self._notes.leave_out(f"{what}: task_info", "its task has no file")
            return {}
        if episode.info not in self._read:
            self._read[episode.info] = {}
            with self._notes.reading(f"task_info of {episode.task}", episode.info):
                self._read[episode.info] = _read_info(episode.info)
        entry = self._read[episode.info].get(episode.number)
        if entry is None:
            self._notes.leave_out(f"{what}: task_info", f"{episode.info.name} has no episode of that number")
        return entry or {}


def _read_info(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the entries of a task's file by the numbers of their episodes."""
    content = read_json(path)
    entries = [content] if isinstance(content, dict) else content
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SourceError(f"{path}: expected a list of episodes, got {content!s:.60}")
    return {str(entry.get("episode_id")): entry for entry in entries}


# ---- an episode ----


def _read_streams(
    episode: _Episode,
    what: str,
    metadata: dict[str, Any],
    infos: _Infos,
    videos: Any,
    options: AgibotOptions,
    kinds: Kinds,
    notes: Notes,
) -> Iterator[tuple[str, Samples]]:
    """Yields an episode's streams. Opens its file when the first stream is read, and then adds to `metadata`."""
    path = episode.path
    with open_file(path) as file:
        if "state" not in file and "action" not in file:
            raise another_layout(path, file, "agibot", "state, action and timestamp")
        tree = walk(path, file, what, notes)
        facts = {**attributes(file, notes), **tree.facts}
        stamps = tree.datasets.pop("timestamp", None)
        sent_rows = {key: dataset for key, dataset in tree.datasets.items() if key.endswith("/index")}
        for key in sent_rows:
            del tree.datasets[key]
        rows = count_rows(tree, lambda key: key.startswith("state/"))[0] if stamps is None else int(stamps.shape[0])
        if rows > _MOST_ROWS:
            raise SourceError(f"{path}: {rows} rows, expected at most {_MOST_ROWS}")
        clock = _find_clock(path, stamps, rows, facts, options, notes)
        info = infos.of(episode, what)
        metadata |= {**facts, **take_constants(tree, rows, notes), **_make_columns(info, notes), **metadata}
        yield from _read_actions(info, clock, what, episode, notes)
        for key, dataset in tree.datasets.items():
            yield from Column(key, what, tree.where(key), dataset, clock, notes).samples(options, kinds)
        for key, dataset in sent_rows.items():
            with notes.reading(f"{what}: {key}", tree.where(key)):
                command_clock = _find_command_clock(tree, key, dataset, clock)
                yield from Column(key, what, tree.where(key), dataset, command_clock, notes).samples(options, kinds)
    if not options.video:
        for camera in episode.videos:
            notes.leave_out(f"videos/{camera}", "video; left out with video=False (--no-video)")
    elif videos is not None:
        started = []
        for camera, video in sorted(episode.videos.items()):
            with notes.reading(f"{what}: videos/{camera}", video):
                started.append(videos.begin(f"videos/{camera}", what, video, None, clock))
        yield from videos.streams(started)
    yield from _read_depth(episode, what, clock, options, kinds, notes)


def _find_clock(
    path: Path, stamps: Dataset | None, rows: int, facts: Mapping[str, Any], options: AgibotOptions, notes: Notes
) -> Clock:
    """Returns the file's clock. It is nominal if the file has no stamps, or if the user gives a rate."""
    if stamps is not None and options.rate_hz is None:
        where = f"{path}: /timestamp"
        if stamps.shape != (rows,) or stamps.dtype.kind not in "iuf":
            raise SourceError(f"{where}: expected stamps [{rows}], got {list(stamps.shape)} of {stamps.dtype}")
        values = np.asarray(stamps[:])
        if values.dtype.kind in "iu" and rows and _EPOCH_NS[0] <= np.median(values) <= _EPOCH_NS[1]:
            time_ns, unit = values.astype(np.int64), "ns"
        elif values.dtype.kind == "f" and np.isfinite(values).all() and (not rows or np.abs(values).max() < 5e9):
            time_ns, unit = exact_ns(values.astype(np.float64), 10**9), "s"
            refuse_no_seconds(values.astype(np.float64), where)
        else:
            raise SourceError(
                f"{where}: expected nanoseconds since 1970 or seconds, got {values[:1].tolist()} of {values.dtype}; "
                "rate_hz takes rows at a rate instead"
            )
        units = own_units(stamps.attributes, 1).get("units")
        if units and not (SECONDS if unit == "s" else _NANOSECONDS).match(str(units)):
            raise SourceError(
                f"{where}: attribute units: expected {unit}, by the numbers, got {units!r}; rate_hz (--rate-hz) takes rows at a rate instead"
            )
        notes.assume("clock 'timestamp'", f"{'nanoseconds since 1970' if unit == 'ns' else 'seconds'}, by its numbers")
        return Clock(rows, lambda start, stop: time_ns[start:stop], "recorded", {"clock_source": f"timestamp, {unit}"})
    why = "it has no timestamp, and names no rate"
    rate_hz, _ = find_rate(options.rate_hz, path, why, dict(said_rates(facts, "")), notes)
    return nominal(rows, rate_hz)


def _find_command_clock(tree: Tree, key: str, dataset: Dataset, clock: Clock) -> Clock:
    """Returns the clock of a dataset that lists the rows at which commands were sent: the stamps of these rows."""
    where = tree.where(key)
    if len(dataset.shape) != 1 or dataset.dtype.kind not in "iu" or dataset.shape[0] > _MOST_ROWS:
        raise SourceError(f"{where}: expected numbers of rows, got {list(dataset.shape)} of {dataset.dtype}")
    numbers = np.asarray(dataset[:]).astype(np.int64)
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < clock.rows):
        raise SourceError(f"{where}: expected rows 0 to {clock.rows - 1}, got {numbers.min()} to {numbers.max()}")
    time_ns = clock.time_ns(0, clock.rows)[numbers]
    return Clock(len(numbers), lambda start, stop: time_ns[start:stop], clock.kind, clock.attributes)


# ---- the file of the task ----


def _make_columns(info: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for key, value in info.items():
        if key in ("episode_id", "label_info"):
            continue
        if isinstance(value, str | int | float | bool) and (not isinstance(value, int) or abs(value) < 2**63):
            columns[as_utf8(key)] = as_utf8(value) if isinstance(value, str) else value
        else:
            notes.leave_out(f"task_info: {key}", "no scalar")
    if isinstance(info.get("task_name"), str):
        columns["task"] = as_utf8(info["task_name"])
    return columns


def _read_actions(
    info: Mapping[str, Any], clock: Clock, what: str, episode: _Episode, notes: Notes
) -> Iterator[tuple[str, Samples]]:
    """Yields the texts that describe the steps of the task: a step's text at its first frame, and "" after its last frame."""
    label = info.get("label_info")
    steps = label.get("action_config") if isinstance(label, dict) else None
    for key, stream in (("action_text", "task"), ("skill", "skill")):
        texts = [""] * clock.rows
        spans: list[tuple[int, int, str]] = []
        with notes.reading(f"{what}: {stream}", episode.info):
            for number, step in enumerate(steps if isinstance(steps, list) else []):
                start, stop, text = (step.get(name) for name in ("start_frame", "end_frame", key))
                if text is None:
                    continue
                is_span = isinstance(start, int) and isinstance(stop, int) and 0 <= start < stop
                if not is_span or not isinstance(text, str):
                    raise SourceError(f"{episode.info}: episode {episode.number}: step {number}: {step!s:.80}")
                spans.append((start, stop, as_utf8(text)))
            spans.sort(key=lambda span: span[0])  # where steps overlap, the text is that of the last to begin
            for start, stop, text in spans:
                texts[start:stop] = [text] * len(texts[start:stop])
            begins = [row for row, text in enumerate(texts) if text != (texts[row - 1] if row else "")]
            if begins:
                time_ns = clock.time_ns(0, clock.rows)[begins]
                attributes = {**clock.attributes, **({"task": True} if stream == "task" else {})}
                yield stream, Texts(time_ns, [texts[row] for row in begins], clock.kind, attributes)


# ---- cameras ----


def _read_depth(
    episode: _Episode, what: str, clock: Clock, options: AgibotOptions, kinds: Kinds, notes: Notes
) -> Iterator[tuple[str, Frames]]:
    """Yields the depth cameras. The number in the name of a PNG file is the row that it belongs to."""
    cameras: dict[str, dict[int, Path]] = {}
    for file in episode.depth:
        if match := _DEPTH.fullmatch(file.name):
            cameras.setdefault(f"depth/{match[1]}", {})[int(match[2])] = file
    for camera, files in sorted(cameras.items()):
        with notes.reading(f"{what}: {camera}", episode.path):
            rows = sorted(files)
            if rows[-1] >= clock.rows:
                raise SourceError(f"{files[rows[-1]]}: expected a row number below {clock.rows} in the name")
            time_ns = clock.time_ns(0, clock.rows)[rows]
            read = partial(_read_file, [files[row] for row in rows])
            images = Images(camera, what, episode.path, time_ns, clock.kind, read, rows)
            frames = images.stored(options, kinds, notes)
            if frames is not None:
                yield camera, frames


def _read_file(files: list[Path], index: int) -> bytes:
    return read_whole(files[index])
