"""LeRobot's batches, its map-style dataset, and a dataset for its trainer, made by the same engine.

A LeRobot dataset becomes a cache once (:func:`open_cache`). Only :func:`make_dataset`, which LeRobot's trainer calls, needs
LeRobot itself.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
import re
import shlex
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from . import _lib, errors
from ._check import wholes
from ._printable import ranges, warn
from .anchor_columns import as_columns
from .conditions import as_expression
from .dataset import Dataset, Stream
from .former_options import takes_former_options
from .ingest.files import read_whole
from .ingest.formats.lerobot import INDEX_COLUMNS
from .iteration import Iteration
from .lerobot_cache import episode_numbers, find_or_make_cache, open_cache
from .loader import Loader, LoaderWarning
from .loader_options import as_anchors, as_window, of_type
from .norm_stats import beyond_pixels, misfits, warn_of_misfits
from .options import Anchors, Memory, Ranks, Window, copied
from .sources import Source, select_episodes
from .text_keys import task_key

if TYPE_CHECKING:
    from torch.utils.data import Dataset as _Torchs

    _MapStyle = _Torchs[dict[str, Any]]  # the declared type of a DataLoader's dataset
else:
    _MapStyle = object

__all__ = ["LeRobotDataset", "LeRobotEpisodes", "LeRobotLoader", "LeRobotMetadata", "make_dataset", "open_cache"]

# The largest difference of an offset from a frame that LeRobot allows.
_TOLERANCE_S = 1e-4
# Fields of a window that can turn the frame's own value into padding.
_MAKES_PADDING = ("tolerance_s", "max_gap_s", "offset_s")
# Items of a map-style dataset in one call of the engine; fewer with images, which are large.
_ITEMS_AT_ONCE, _ITEMS_WITH_FRAMES_AT_ONCE = 256, 8
# The number of runs of episodes that a warning names.
_RUNS_NAMED = 5
# Columns that count rows and episodes, which are never normalised.
_COUNTED = {*INDEX_COLUMNS, "episode_index", "task_index", "subtask_index"}


# ---- LeRobot's batches ----


class LeRobotLoader(Loader):
    """A loader of LeRobot's batches, from a cache of :func:`open_cache`: the result of :meth:`Loader.from_lerobot`."""

    @takes_former_options
    def __init__(
        self,
        dataset: Dataset,
        *,
        delta_timestamps: Mapping[str, Window | Sequence[float]] | None = None,
        episodes: Any = None,
        video: bool = True,
        **options: Any,
    ) -> None:
        delta_timestamps, episodes = copied(delta_timestamps), copied(episodes)
        arguments = {"delta_timestamps": delta_timestamps, "episodes": episodes, "video": video, **options}
        if not isinstance(delta_timestamps, Mapping | None):
            raise errors.ArgumentTypeError(f"delta_timestamps: expected {{key: seconds}}, got {delta_timestamps!r}")
        facts = dataset.provenance.get("lerobot", {})
        if not facts:
            raise errors.ArgumentError(f"dataset: expected a result of open_cache(), got {dataset.path}")
        if not facts.get("index_columns"):
            warn(
                f"{dataset.path}: made without the columns {', '.join(INDEX_COLUMNS)}, so batches lack them; "
                "`robocache ingest --index-columns` keeps them",
                LoaderWarning,
            )
        streams = {
            name: stream
            for name, stream in dataset.streams.items()
            if stream.ragged is None and (video or stream.frames is None)
        }
        features = {name: stream for name, stream in streams.items() if name not in INDEX_COLUMNS}
        cameras = [name for name, stream in features.items() if stream.frames is not None]
        dtypes = {name: stream.dtype for name, stream in features.items() if name not in cameras}
        default = of_type("default", options.pop("default", None), Window)
        windows = {name: _window_from_default(name, stream, default) for name, stream in streams.items()}
        requested = []
        for name, window in (delta_timestamps or {}).items():
            if name in facts["cameras"] and not video:
                raise errors.ArgumentError(
                    f"delta_timestamps: expected no camera with video=False, got {name!r}; leave it out, or pass video=True"
                )
            if name in facts["cameras"] and name not in streams:
                raise errors.ArgumentError(
                    f"delta_timestamps: expected keys of {dataset.path}, got the camera {name!r}, which has no file there"
                )
            window = as_window(name, window)
            if window.offsets is not None or name not in streams:
                requested.append(name)
            windows[name] = _fill_from(window, windows.get(name, Window()))
        nominal = [name for name, x in streams.items() if x.clock == "nominal" and windows[name].method is None]
        for name in requested:
            if name in nominal:
                windows[name] = dataclasses.replace(
                    windows[name], offsets=_to_frames(windows[name].offsets, facts["fps"])
                )
        _refuse_indices(dataset, "episodes", episodes)
        chosen: Sequence[int] = range(len(dataset))
        if episodes is not None:
            chosen = select_episodes(dataset, "episodes", episodes)  # the indices, if episodes is a condition
            chosen = _cache_indices(dataset, episodes) if chosen is episodes else chosen
        options.setdefault("missing", "drop")
        complete = _with_every_key(dataset, chosen, list(streams)) if options["missing"] == "drop" else list(chosen)
        masked = _lacking_frames(dataset, complete, cameras)
        self._warn_of_masks(dataset, masked)
        can_pad = [name for name in features if any(getattr(windows[name], x) is not None for x in _MAKES_PADDING)]
        can_pad += [name for name, x in features.items() if (np.diff(x.row_offsets)[complete] == 0).any()]
        for name in masked:  # so that a row does not get another row's frame
            if windows[name].tolerance_s is None and (name in nominal or name not in requested):
                windows[name] = dataclasses.replace(windows[name], tolerance_s=0.5 / facts["fps"])
        if options.get("on_bad_frame") == "pad":
            masked |= {name: {} for name in cameras}
        masked |= {name: {} for name in can_pad}
        anchors = _with_cache_indices(dataset, as_anchors(options.pop("anchors", None)))
        if anchors.rate_hz is None and anchors.stream is None:
            # Every row is drawn, with or without a frame of each camera.
            first = next((name for name, stream in streams.items() if stream.frames is None), None)
            anchors = dataclasses.replace(anchors, stream=first)
        self._warn_of_repeats(dataset, anchors.stream, complete)
        super().__init__(
            dataset,
            delta_timestamps=windows,
            anchors=anchors,
            episodes=None if len(complete) == len(dataset) and episodes is None else complete,
            **options,
        )
        self._arguments = {name: copied(x) for name, x in arguments.items()}
        if options.get("task_text") and "subtasks" in facts and "subtask_index" in dataset.streams:
            self._texts["subtask"] = task_key([Source(dataset)], "subtask_index", 0, "subtask")
            for note in self._texts["subtask"].notes if self.rank == 0 and not self._unpickled else ():
                warn(note, LoaderWarning)
        for key in self._texts.values():
            key.empty = ""  # default collation refuses None
        one_step = [name for name in streams if name not in requested]
        self._dropped_keys = ["time_ns", "anchor_index", *(f"{name}_age" for name in one_step)]
        self._dropped_keys += [f"{name}_is_pad" for name in one_step if name not in masked]
        numbers_alone = [name for name in dtypes if name not in self._texts]
        self._other_episode_keys = [
            f"{name}_episode_index" for name, x in windows.items() if x.moment and x.moment.kind == "other"
        ]
        self._int64_keys = [name for name in numbers_alone if dtypes[name].kind in "iu" and _fits_int64(streams[name])]
        numbers = episode_numbers(dataset)
        self._numbers: Any = None  # LeRobot's numbers of the cache's episodes, unless they are 0, 1, 2, ...
        if not _are_indices(numbers):
            self._numbers = numbers if self._torch is None else self._torch.tensor(numbers, device=self.device)

    @staticmethod
    def _warn_of_masks(dataset: Dataset, lacking: Mapping[str, Mapping[int, int]]) -> None:
        for name, counts in lacking.items():
            numbers = sorted(episode_numbers(dataset)[list(counts)].tolist())
            warn(
                f"{name}: {sum(counts.values())} rows of episodes {ranges(numbers, _RUNS_NAMED)} have no frame; "
                f"{name}_is_pad in the batch marks them",
                LoaderWarning,
            )

    @staticmethod
    def _warn_of_repeats(dataset: Dataset, name: str | None, episodes: Sequence[int]) -> None:
        stream = dataset.streams.get(name or "")
        if stream is None or stream.clock == "nominal":
            return
        starts = stream.row_offsets.tolist()
        counts = {i: int((np.diff(stream.time_ns[starts[i] : starts[i + 1]]) == 0).sum()) for i in {*episodes}}
        repeated = [i for i, count in counts.items() if count]
        if repeated:
            numbers = ranges(sorted(episode_numbers(dataset)[repeated].tolist()), _RUNS_NAMED)
            warn(
                f"timestamp: {sum(counts.values())} rows of episodes {numbers} have the next row's stamp, and a batch has "
                "the next row in their place; correct the stamps, or leave these episodes out",
                LoaderWarning,
            )

    def _next(self, iteration: Iteration | None) -> dict[str, Any]:
        return self._as_lerobot(super()._next(iteration))

    def _gather_batch(self, indices: Any, seed: int, epoch: int, draws: np.ndarray | None = None) -> dict[str, Any]:
        return self._as_lerobot(super()._gather_batch(indices, seed, epoch, draws))

    def _as_lerobot(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """Returns the engine's batch with LeRobot's keys and dtypes."""
        for name in self._dropped_keys:
            arrays.pop(name, None)
        for name in self._int64_keys:
            arrays[name] = arrays[name].astype(np.int64) if self._torch is None else arrays[name].long()
        if self._numbers is not None:
            arrays["episode_index"] = self._numbers[arrays["episode_index"]]
            for name in self._other_episode_keys:
                is_known = arrays[name] >= 0
                arrays[name][is_known] = self._numbers[arrays[name][is_known]]
        return arrays

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        self._unpickled = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LoaderWarning)  # the pickled loader has warned already
            LeRobotLoader.__init__(self, pickled["dataset"], **pickled["arguments"])
        self.load_state_dict(pickled["state"])


def _fits_int64(stream: Stream) -> bool:
    return stream.dtype != np.uint64 or int(np.max(stream.values, initial=0)) < 2**63


def _to_frames(seconds: Any, fps: float) -> Any:
    """Returns the offsets, each moved to the frame that LeRobot takes for it. An offset without a frame is unchanged, and the
    loader refuses it."""

    def on_frame(x: Any) -> Any:
        if not isinstance(x, Real) or isinstance(x, bool) or not math.isfinite(x):
            return x
        frame = round(float(x) * fps)
        return frame / fps if abs(float(x) * fps - frame) / fps <= _TOLERANCE_S else x

    seconds = seconds.tolist() if hasattr(seconds, "tolist") else seconds
    return [on_frame(x) for x in seconds] if isinstance(seconds, list | tuple) else seconds


def _cache_indices(dataset: Dataset, episodes: Sequence[int], argument: str = "episodes") -> list[int]:
    """Returns the cache's indices of the episodes with these numbers in LeRobot."""
    indices = {number: index for index, number in enumerate(episode_numbers(dataset).tolist())}
    numbers = wholes(argument, episodes).tolist()
    for number in numbers:
        if number not in indices:
            raise errors.ArgumentError(f"{argument}: expected numbers of episodes in {dataset.path}, got {number}")
    return [indices[number] for number in numbers]


def _are_indices(numbers: np.ndarray) -> bool:
    """Whether LeRobot's numbers are the cache's indices of the episodes."""
    return np.array_equal(numbers, np.arange(len(numbers)))


def _with_cache_indices(dataset: Dataset, anchors: Anchors) -> Anchors:
    """Returns the anchors with the cache's indices of episodes in place of LeRobot's numbers."""
    if _are_indices(episode_numbers(dataset)):
        return anchors
    _refuse_indices(dataset, "anchors.where", anchors.where)
    chosen: dict[str, Any] = {}
    for name in ("keep", "drop"):
        if getattr(anchors, name) is not None:
            columns = as_columns(f"anchors.{name}", getattr(anchors, name))
            if "episode" in columns:
                columns["episode"] = _cache_indices(dataset, columns["episode"], f"anchors.{name}: episode")
            chosen[name] = columns
    return dataclasses.replace(anchors, **chosen)


def _refuse_indices(dataset: Dataset, argument: str, condition: Any) -> None:
    """Refuses a condition on the cache's indices of episodes if they are not LeRobot's numbers."""
    if condition is None or not (isinstance(condition, Mapping) or type(condition).__module__.startswith("pyarrow")):
        return
    if re.search(r"(?<!\w)episode_index\b", str(as_expression(argument, condition))) and not _are_indices(
        episode_numbers(dataset)
    ):
        raise errors.ArgumentError(
            f"{argument}: expected source_episode_index, LeRobot's numbers of the episodes, got episode_index, which counts "
            f"the episodes of {dataset.path}"
        )


def _with_every_key(dataset: Dataset, episodes: Sequence[int], keys: Sequence[str]) -> list[int]:
    """Returns the episodes that have rows of every key; a warning counts the others.

    Raises:
        ArgumentError: no episode has rows of every key.
    """
    empty = {name: np.diff(dataset.streams[name].row_offsets) == 0 for name in keys}
    lacking = {name: [index for index in episodes if is_empty[index]] for name, is_empty in empty.items()}
    lacking = {name: indices for name, indices in lacking.items() if indices}
    left_out = set().union(*lacking.values())
    if not left_out:
        return list(episodes)
    numbers = episode_numbers(dataset)
    reasons = "; ".join(
        f"{name} has none in {len(indices)}: {ranges(sorted(numbers[indices].tolist()), _RUNS_NAMED)}"
        for name, indices in lacking.items()
    )
    advice = ""
    if any(dataset.streams[name].frames is not None for name in lacking):
        advice = "; video=False draws them without cameras"
    if len(left_out) == len(set(episodes)):
        raise errors.ArgumentError(
            f"episodes: expected some with rows of every key in {dataset.path}, got none among {len(left_out)}: "
            f"{reasons}{advice}"
        )
    warn(
        f"{len(left_out)} of {len(set(episodes))} episodes lack rows of a key and are left out: {reasons}{advice}",
        LoaderWarning,
    )
    return [index for index in episodes if index not in left_out]


def _lacking_frames(dataset: Dataset, episodes: Sequence[int], cameras: Sequence[str]) -> dict[str, dict[int, int]]:
    """Returns, for each camera without frames for some rows of these episodes, the number of such rows by episode."""
    lengths = [np.diff(stream.row_offsets) for name, stream in dataset.streams.items() if stream.kind == "numbers"]
    rows = np.max(lengths, axis=0, initial=0) if lengths else np.zeros(len(dataset), np.int64)
    lacking = {}
    for name in cameras:
        missing = rows - np.diff(dataset.streams[name].row_offsets)
        counts = {index: int(missing[index]) for index in episodes if missing[index] > 0}
        if counts:
            lacking[name] = counts
    return lacking


def _window_from_default(name: str, stream: Any, default: Window) -> Window:
    """Returns the window of a stream that has no window of its own. LeRobot's index columns stay unchanged, integers ignore options
    for floats, and frames are never float64."""
    if name in INDEX_COLUMNS:
        return Window(mirror=[])
    window = dataclasses.replace(default, images=default.images if stream.frames is not None else None)
    if stream.frames is None and stream.dtype.kind != "f":
        window = dataclasses.replace(window, method=None, normalize=None, dtype=None)
    if stream.frames is not None:
        dtype = None if default.dtype is None or _lib.dtype_name(default.dtype) == "float64" else default.dtype
        window = dataclasses.replace(window, method=None, normalize=None, dtype=dtype)
    return window


def _fill_from(window: Window, default: Window) -> Window:
    """Returns the window with the default's value in each field that is None."""
    return dataclasses.replace(default, **{name: x for name, x in vars(window).items() if x is not None})


# ---- LeRobot's dataset ----


class LeRobotEpisodes(Sequence[dict[str, Any]]):
    """The episodes by LeRobot's numbers: ``episodes["dataset_from_index"]`` is a column, ``episodes[3]`` a row.

    The columns are episode_index, tasks (list of str), length, and dataset_from_index and dataset_to_index: the ``index`` of
    the first frame, and the ``index`` of the last frame plus 1. An episode that is not in the cache has no frames.
    """

    def __init__(self, dataset: Dataset) -> None:
        numbers, index = episode_numbers(dataset), dataset.streams["index"]
        count = int(numbers.max()) + 1
        begin, length = np.zeros((2, count), np.int64)
        begin[numbers] = index.values[index.row_offsets[:-1]]
        length[numbers] = np.diff(index.row_offsets)
        _check_index(dataset, numbers)
        tasks: list[list[str]] = [[] for _ in range(count)]
        if "tasks" in dataset.episodes.column_names:
            for number, texts in zip(numbers, dataset.episodes["tasks"].to_pylist(), strict=True):
                tasks[number] = texts
        self._columns: dict[str, list[Any]] = {
            "episode_index": list(range(count)),
            "tasks": tasks,
            "length": length.tolist(),
            "dataset_from_index": begin.tolist(),
            "dataset_to_index": (begin + length).tolist(),
        }

    @property
    def column_names(self) -> list[str]:
        return list(self._columns)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._columns[key]
        return {name: column[key] for name, column in self._columns.items()}

    def __len__(self) -> int:
        return len(self._columns["episode_index"])

    def __repr__(self) -> str:
        return f"robocache.lerobot.LeRobotEpisodes({len(self)} episodes: {', '.join(self._columns)})"


def _check_index(dataset: Dataset, numbers: np.ndarray) -> None:
    """Refuses rows whose `index` does not rise by 1, since a sampler finds an episode's rows by the first and the last."""
    index = dataset.streams["index"]
    values, offsets = np.asarray(index.values), index.row_offsets
    for number, begin, end in zip(numbers.tolist(), offsets, offsets[1:], strict=False):
        if not np.array_equal(values[begin:end], values[begin] + np.arange(end - begin)):
            raise errors.FileError(
                f"{dataset.path}: episode {number}: expected an index that rises by 1 from row to row"
            )
    order = np.argsort(values[offsets[:-1]])
    first, stop = values[offsets[:-1]][order], values[offsets[1:] - 1][order] + 1
    if len(overlaps := np.flatnonzero(first[1:] < stop[:-1])):
        first_episode, second_episode = numbers[order][overlaps[0]], numbers[order][overlaps[0] + 1]
        raise errors.FileError(
            f"{dataset.path}: episodes {first_episode} and {second_episode}: expected different values of index, got {first[overlaps[0] + 1]} in both"
        )


class LeRobotMetadata:
    """The part of a dataset's ``meta`` that LeRobot's trainer and policies use, for the keys of a batch, without text columns.

    Attributes:
        root, repo_id, revision: the folder; the repository and its revision, by default the folder's name and the format's
            version.
        info: ``meta/info.json``, with fps and robot_type.
        features: ``{key: {"dtype", "shape": tuple, "names"}}`` for the keys of a batch.
        camera_keys, image_keys, video_keys: all cameras, those stored as images, and those stored as video.
        depth_keys: the cameras of depth, in metres.
        has_language_columns: False.
        total_episodes, total_frames, total_tasks: the counts.
    """

    has_language_columns = False

    def __init__(
        self,
        dataset: Dataset,
        root: Path,
        repo_id: str | None = None,
        revision: str | None = None,
        *,
        video: bool = True,
    ) -> None:
        self._dataset = dataset
        self.root = root
        self.info: dict[str, Any] = json.loads(read_whole(root / "meta" / "info.json").decode("utf-8-sig"))
        self.repo_id = repo_id or root.name
        self.revision = revision or self.info["codebase_version"]
        self.fps = self.info["fps"]
        self.robot_type = self.info.get("robot_type")
        streams = {name for name, x in dataset.streams.items() if x.ragged is None and (video or x.frames is None)}
        self.features = {
            name: {**feature, "shape": tuple(feature["shape"])}
            for name, feature in self.info["features"].items()
            if name in {"episode_index", *streams}
        }
        dtypes = {name: self.features[name]["dtype"] for name in self.features}
        self.image_keys = [name for name, dtype in dtypes.items() if dtype == "image"]
        self.video_keys = [name for name, dtype in dtypes.items() if dtype == "video"]
        self.camera_keys = [*self.image_keys, *self.video_keys]
        for name in self.camera_keys:  # the cache's sizes, since ingest may have resized the frames
            height, width, channels = dataset.streams[name].shape
            channels_first = self.features[name]["shape"][0] == channels
            self.features[name]["shape"] = (channels, height, width) if channels_first else (height, width, channels)
        formats = {name: dataset.streams[name].frames for name in self.camera_keys}
        self.depth_keys = [name for name, x in formats.items() if x is not None and x.color_space == "depth"]
        self.total_episodes = len(self.episodes)
        self.total_frames = dataset.streams["index"].rows
        self.total_tasks = len(dataset.provenance["lerobot"]["tasks"])

    @cached_property
    def episodes(self) -> LeRobotEpisodes:
        """A table with one row for each episode."""
        return LeRobotEpisodes(self._dataset)

    @cached_property
    def stats(self) -> dict[str, dict[str, np.ndarray]]:
        """The dataset's statistics, of cameras too, as LeRobot loads them: from ``meta/stats.json``, or merged from
        the statistics of all episodes.

        Quantiles cannot be merged. The cache's quantiles, over every row, take their place. If the dataset has no statistics, all
        are the cache's.
        Statistics of depth are in metres, and are left out if info.json does not name their unit.
        """
        stats = self._stored_stats()
        self._check_rows(stats)
        for key in stats.keys() & set(self.depth_keys):
            infos = [self.features[key].get(name) for name in ("video_info", "info")]
            units = [info["depth_unit"] for info in infos if isinstance(info, dict) and info.get("depth_unit")]
            scale = {"m": 1.0, "mm": 0.001}.get(units[-1]) if units else None
            if scale is None:
                warn(
                    f"meta.stats: {key} has none, since info.json does not say the set's depth_unit: metres or mm",
                    LoaderWarning,
                )
                del stats[key]
            else:
                stats[key] = {name: x if name == "count" else x * scale for name, x in stats[key].items()}
        return stats

    def _check_rows(self, stats: dict[str, dict[str, np.ndarray]]) -> None:
        """Warns of statistics that do not describe the dataset's rows, if the cache has all its episodes."""
        if self.total_frames < self.info.get("total_frames", 0):
            return
        messages = [
            f"{key}: {misfit}"
            for key, key_stats in stats.items()
            if key in self._dataset.stats and key not in {*self.camera_keys, *_COUNTED}
            for misfit in misfits(key_stats, self._dataset.stats[key], beyond=0.01, off=0.1)
        ]
        rows = self.total_frames
        messages += [
            f"{key}: they are of {count} rows, the set has {rows}"
            for key, key_stats in stats.items()
            if key in self._dataset.stats and key not in {*self.camera_keys, *_COUNTED} and "count" in key_stats
            if (count := int(np.ravel(key_stats["count"])[0])) != rows
        ]
        messages += [
            f"{key}: they go to {most:.6g}, and the pixels of a batch from 0 to 1"
            for key in stats.keys() & {*self.camera_keys} - {*self.depth_keys}
            if (most := beyond_pixels(stats[key])) is not None
        ]
        advice = "lerobot-train normalises by them: compute them anew first"
        warn_of_misfits(str(self.root / "meta"), messages, advice)

    def _stored_stats(self) -> dict[str, dict[str, np.ndarray]]:
        """Returns the dataset's stored statistics. Where these are missing or were merged, the cache's statistics fill in."""
        from .ingest.lerobot_tables import load_stats  # imports pyarrow

        stats, merged = load_stats(self.root, str(self.info["codebase_version"]))
        if stats and not merged:
            return stats
        cached = {
            name: {**stats._asdict(), "count": self._dataset.streams[name].rows}
            for name, stats in self._dataset.stats.items()
        }
        cache_stats = {
            key: {name: np.atleast_1d(np.array(x)) for name, x in fields.items()} for key, fields in cached.items()
        }
        return {key: {**cache_stats.get(key, {}), **fields} for key, fields in stats.items()} or cache_stats

    @cached_property
    def tasks(self) -> Any:
        """A pandas DataFrame like LeRobot's: one row for each task, with its text as the index and its number in the column
        task_index."""
        try:
            import pandas as pd
        except ImportError as error:
            raise errors.Error("meta.tasks: a DataFrame needs pandas; pip install pandas") from error
        tasks = {int(number): text for number, text in self._dataset.provenance["lerobot"]["tasks"].items()}
        return pd.DataFrame({"task_index": list(tasks)}, index=pd.Index(list(tasks.values()), name="task"))

    @property
    def names(self) -> dict[str, Any]:
        """The names of each key's features."""
        return {key: feature.get("names") for key, feature in self.features.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each key's row."""
        return {key: feature["shape"] for key, feature in self.features.items()}

    def __repr__(self) -> str:
        frames = f"{self.total_episodes} episodes, {self.total_frames} frames at {self.fps:g} fps"
        return f"robocache.lerobot.LeRobotMetadata({str(self.root)!r}, {frames})"


class LeRobotDataset(_MapStyle):
    """A map-style dataset like LeRobot's: item i is the i-th frame, with the windows around it and the text of its task.

    Use it in place of LeRobot's: in a DataLoader, with forked or spawned workers, and in LeRobot's trainer
    (:func:`robocache.lerobot.make_dataset`). A DataLoader's batch is one call of the engine, but the DataLoader splits it into
    samples and collates them again. :meth:`Loader.from_lerobot` is much faster if you do not need a map-style dataset.

    Random crops and colours of `images` are drawn anew each time an item is read, in every epoch of a DataLoader, also with
    persistent workers; in workers they depend on torch.manual_seed. A key with a window has ``<key>_is_pad``. A key without a
    window has ``<key>_is_pad`` if its frames may be missing (``on_bad_frame="pad"``, rows of a video without a frame) or if it
    has `tolerance_s`, `max_gap_s` or `offset_s`. Errors such as :class:`FrameError` keep their type through workers.

    Args:
        path, cache, on_error, frames, video, follow_links: as for :meth:`Loader.from_lerobot`.
        delta_timestamps: for each key with a window, its offsets in seconds from the frame.
        episodes: LeRobot's numbers of the episodes to use; their frames stay in the order of the files.
        repo_id, revision: the values of these names in ``meta``.
        device: the device of the tensors; a DataLoader's workers need ``"cpu"``.
        options: further options of :class:`Loader`, such as `default`.

    Attributes:
        meta: a :class:`LeRobotMetadata`.
        episodes: the argument. If it was None and ``on_error="skip"`` left some episodes out: the episodes in the cache.
        num_frames, num_episodes: the numbers of frames and episodes used.
        fps, features: the same as in `meta`. There is no `hf_dataset`: the frames are in a cache.

    Raises:
        ArgumentError, ArgumentTypeError, FileError: as :meth:`Loader.from_lerobot`.

    Example:
        >>> dataset = robocache.LeRobotDataset("pusht", {"action": [i / 10 for i in range(16)]}, cache="pusht.cache")
        >>> dataset[0]["action"].shape
        torch.Size([16, 2])
    """

    @takes_former_options
    def __init__(
        self,
        path: str | os.PathLike[str],
        delta_timestamps: Mapping[str, Window | Sequence[float]] | None = None,
        episodes: Sequence[int] | None = None,
        *,
        cache: str | os.PathLike[str] | None = None,
        on_error: str = "stop",
        frames: str | None = None,
        video: bool = True,
        follow_links: bool = False,
        repo_id: str | None = None,
        revision: str | None = None,
        device: str = "cpu",
        **options: Any,
    ) -> None:
        for name in ("anchors", "shuffle", "batch_size"):
            if name in options:
                raise errors.ArgumentError(
                    f"{name}: expected none, since every frame is an item; Loader.from_lerobot takes it"
                )
        for name in ("task_text", "framework", "ranks"):
            if name in options:
                raise errors.ArgumentError(
                    f"{name}: expected none, since items are torch tensors with their task, got {options[name]!r}"
                )
        self._dataset = open_cache(
            path, cache=cache, on_error=on_error, frames=frames, video=video, follow_links=follow_links
        )
        if not self._dataset.provenance["lerobot"].get("index_columns"):
            raise errors.FileError(
                f"{self._dataset.path}: made without the columns {', '.join(INDEX_COLUMNS)}, which number the items; "
                f"`robocache ingest {shlex.quote(str(path))} CACHE --index-columns` keeps them, or pass cache= with a new "
                "folder"
            )
        if "index" not in self._dataset.streams:
            raise errors.FileError(f"{path}/data: expected a column index, the number of each row, got none")
        self.meta = LeRobotMetadata(self._dataset, Path(path).resolve(), repo_id, revision, video=video)
        self.episodes = None if episodes is None else wholes("episodes", episodes).tolist()
        index_is_row = np.array_equal(self._dataset.streams["index"].values, np.arange(self.meta.total_frames))
        if episodes is None and not (index_is_row and len(self._dataset) == len(self.meta.episodes)):
            self.episodes = episode_numbers(self._dataset).tolist()  # here a row's position differs from its `index`
        numbers = range(len(self.meta.episodes)) if self.episodes is None else self.episodes
        streams = self._dataset.streams
        indices = sorted(set(_cache_indices(self._dataset, numbers)))
        self._indices = indices
        if options.get("missing", "drop") == "drop":
            self._indices = _with_every_key(
                self._dataset, indices, [key for key in self.meta.features if key in streams]
            )
        if len(self._indices) < len(indices):
            complete = set(episode_numbers(self._dataset)[self._indices].tolist())
            self.episodes = [number for number in numbers if number in complete]
        self._items_at_once = _ITEMS_WITH_FRAMES_AT_ONCE if self.meta.camera_keys else _ITEMS_AT_ONCE
        self._loader = LeRobotLoader(
            self._dataset,
            batch_size=self._items_at_once,
            delta_timestamps=delta_timestamps,
            episodes=episode_numbers(self._dataset)[self._indices].tolist(),
            task_text=True,
            shuffle=False,
            framework="torch",
            device=device,
            ranks=Ranks(rank=0, world_size=1),  # every rank may ask for any item
            video=video,
            # In memory, each of a DataLoader's workers would have its own copy of the frames.
            **{"memory": Memory(prefetch=0, residency=dict.fromkeys(self.meta.camera_keys, "mapped")), **options},
        )
        self._calls = 0  # calls of __getitems__ since set_epoch
        self.num_frames = self._loader.num_anchors
        self.num_episodes = len(self._indices)

    @property
    def fps(self) -> float:
        """The number of rows per second."""
        return self.meta.fps  # type: ignore[no-any-return]

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """The columns by name: dtype, shape and names, as in ``meta/info.json``."""
        return self.meta.features

    @property
    def hf_dataset(self) -> NoReturn:
        """Raises AttributeError, since a cache has no table of frames."""
        raise AttributeError(
            "hf_dataset: there is none, since the frames are in a cache; dataset[i] gives a frame, dataset.meta.episodes the episodes, "
            f"and robocache.open({self._dataset.path!r}).streams whole columns"
        )

    def __repr__(self) -> str:
        return (
            f"robocache.LeRobotDataset({str(self.meta.root)!r}, {self.num_episodes} episodes, {self.num_frames} frames at "
            f"{self.fps:g} fps, {len(self.features)} features)"
        )

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch for random crops and colours of `images`: the same calls after the same epoch give the same draws. It
        has no effect on running workers; their draws do not repeat either."""
        self._loader.set_epoch(epoch)
        self._calls = 0

    def _next_draws(self) -> tuple[int, int]:
        """Returns a seed and an epoch for the random draws of one call, different in each call, since a DataLoader does not
        tell its epoch. In a worker the worker's own seed is added, which is new each time that workers start."""
        import torch.utils.data

        worker = torch.utils.data.get_worker_info()
        seed = self._loader.seed + (0 if worker is None else worker.seed)
        epoch = self._loader.epoch * 2**32 + self._calls
        self._calls += 1
        return seed % 2**63, epoch % 2**63

    def __len__(self) -> int:
        return self.num_frames

    def __getitem__(self, index: int | slice) -> Any:
        items = range(len(self))[index]  # raises IndexError beyond the end, which ends a loop over the dataset
        return self.__getitems__(items) if isinstance(items, range) else self.__getitems__([items])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Returns the items at these indices, in this order; a negative index counts from the end."""
        numbers = range(len(self))
        anchors = [numbers[index] for index in indices]
        draws = self._next_draws()
        items: list[dict[str, Any]] = []
        for begin in range(0, len(anchors), self._items_at_once):
            batch = self._loader._gather_batch(anchors[begin : begin + self._items_at_once], *draws)
            # A copy of each column, so that an item's value keeps this column in memory, not the whole batch.
            columns = [values if isinstance(values, list) else values.clone().unbind() for values in batch.values()]
            items += (dict(zip(batch, item, strict=True)) for item in zip(*columns, strict=True))
        return items

    @cached_property
    def absolute_to_relative_idx(self) -> dict[int, int] | None:
        """The item number of each frame's ``index``; None if all episodes are used."""
        if self.episodes is None:
            return None
        index = self._dataset.streams["index"]
        rows = [index.values[slice(*index.row_offsets[episode : episode + 2])] for episode in self._indices]
        return {number: item for item, number in enumerate(np.concatenate(rows).tolist())}


# Fields of LeRobot's DatasetConfig (0.4 to 0.6 and its main branch of August 2026). make_dataset honours the fields in
# _HONOURED. The fields in _WITHOUT_EFFECT change no number here. The fields in _REQUIRED must have these values.
_HONOURED = {"repo_id", "root", "episodes", "exclude_episodes", "revision", "use_imagenet_stats"}
_HONOURED |= {"image_transforms", "depth_output_unit"}  # or refuses their values
_WITHOUT_EFFECT = {"video_backend", "return_uint8"}
_REQUIRED = {"repo_type": "dataset", "streaming": False, "eval_split": 0.0}
# LeRobot's IMAGENET_STATS (src/lerobot/utils/constants.py), one number per channel.
_IMAGENET_STATS = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def make_dataset(cfg: Any) -> LeRobotDataset:
    """Replaces LeRobot's function of this name in its trainer. Set it before the trainer is imported::

        import lerobot.datasets.factory, robocache.lerobot
        lerobot.datasets.factory.make_dataset = robocache.lerobot.make_dataset

    Args:
        cfg: LeRobot's TrainPipelineConfig. Its dataset is in `dataset.root`, or in LeRobot's folder for `dataset.repo_id`.
            `dataset.episodes`, `exclude_episodes` and `use_imagenet_stats` work as in LeRobot. `video_backend` and
            `return_uint8` have no effect, since frames were decoded at ingest and are floats. `tolerance_s` has no effect,
            since a row's frame is always within half a period.

    Raises:
        ArgumentError: the configuration has an unsupported option: streaming, an `eval_split`, LeRobot's image_transforms
            (:class:`LeRobotDataset` takes ImageOptions), depth in another unit than metres, or an unknown option.
        FileError: the dataset's folder does not exist; nothing is downloaded. Or as :meth:`Loader.from_lerobot`.
    """
    from lerobot.datasets.factory import resolve_delta_timestamps
    from lerobot.utils.constants import HF_LEROBOT_HOME

    config = cfg.dataset
    _refuse_unknown(config)
    root = Path(config.root or Path(HF_LEROBOT_HOME) / config.repo_id)
    meta = LeRobotMetadata(find_or_make_cache(root), root)
    trained_config = getattr(cfg, "trainable_config", None) or cfg.policy  # cfg.policy before LeRobot 0.5
    rename_option = {}
    if "rename_map" in inspect.signature(resolve_delta_timestamps).parameters:  # after LeRobot 0.6.1
        rename_option["rename_map"] = getattr(cfg, "rename_map", None)
    dataset = LeRobotDataset(
        root,
        resolve_delta_timestamps(trained_config, meta, **rename_option),
        _episodes_to_train(config, meta),
        repo_id=config.repo_id,
        revision=config.revision,
    )
    if dataset.meta.depth_keys and (unit := getattr(config, "depth_output_unit", "m")) != "m":
        raise errors.ArgumentError(
            f"dataset.depth_output_unit: expected 'm', since depth is in metres ({', '.join(dataset.meta.depth_keys)}), got "
            f"{unit!r}"
        )
    if getattr(config, "use_imagenet_stats", False):
        for key in set(dataset.meta.camera_keys) - set(dataset.meta.depth_keys):
            imagenet = {name: np.array(x, np.float32).reshape(3, 1, 1) for name, x in _IMAGENET_STATS.items()}
            dataset.meta.stats.setdefault(key, {}).update(imagenet)
    return dataset


def _refuse_unknown(config: Any) -> None:
    """Raises ArgumentError if a DatasetConfig has an unsupported option at another value than its default."""
    if getattr(getattr(config, "image_transforms", None), "enable", False):
        raise errors.ArgumentError("dataset.image_transforms: expected none, got them enabled")
    defaults = {}
    for option in dataclasses.fields(config) if dataclasses.is_dataclass(config) else ():
        if option.default_factory is not dataclasses.MISSING:
            defaults[option.name] = option.default_factory()
        elif option.default is not dataclasses.MISSING:
            defaults[option.name] = option.default
    defaults |= _REQUIRED
    for name, value in vars(config).items():
        if name in _HONOURED | _WITHOUT_EFFECT or (value == defaults[name] if name in defaults else not value):
            continue
        hint = "" if name in _REQUIRED else ", an option that robocache does not know; leave it at its default"
        raise errors.ArgumentError(f"dataset.{name}: expected {defaults.get(name) or 'none'}, got {value!r}{hint}")


def _episodes_to_train(config: Any, meta: LeRobotMetadata) -> list[int] | None:
    """Returns the episodes to train on; None for all."""
    numbers = getattr(config, "exclude_episodes", None)
    excluded = set() if numbers is None else set(wholes("dataset.exclude_episodes", numbers).tolist())
    if not excluded:
        return config.episodes  # type: ignore[no-any-return]
    known = [number for number, length in enumerate(meta.episodes["length"]) if length]
    if unknown := sorted(excluded - set(known)):
        warn(f"dataset.exclude_episodes: the set has {len(known)} episodes; there are no {unknown}", LoaderWarning)
    numbers = known if config.episodes is None else config.episodes
    remaining = [number for number in numbers if number not in excluded]
    if not remaining:
        raise errors.ArgumentError(
            "dataset.exclude_episodes: expected at least one episode to be left, got all excluded"
        )
    return remaining
