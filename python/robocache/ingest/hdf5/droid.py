"""Reads DROID's raw recordings: each episode is a folder with ``trajectory.h5``, ``metadata_*.json`` and ``recordings/MP4``.

In DROID's repository, droid/trajectory_utils/trajectory_writer.py and misc.py define the schema, robot_env.py and
camera_utils/camera_readers/zed_camera.py the stamps, postprocessing/schema.py the metadata. Stamps are milliseconds of the
recording computer's clock; each part of a step has its own stamp.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ...errors import Error, FileError
from ..files import list_files, natural
from ..formats import VideoOptions
from ..formats.hdf5 import TRAJECTORY
from ..images import Kinds
from ..rate import exact_ns
from ..recording import Frames, Notes, Recording, Samples, SourceError
from .beside import find_stamps, read_json
from .columns import Clock, Column, take_constants
from .datasets import Dataset, Tree, another_layout, attributes, open_file, walk

_STAMPS = "observation/timestamp"
# The stamps for each part of a step, by the beginning of a dataset's path; the first that exist are taken. A state is valid when its
# reading ends, an action when it is sent.
_CLOCKS: dict[str, tuple[str, ...]] = {
    "observation/robot_state/": ("robot_state/read_end", "robot_state/read_start"),
    "observation/camera_extrinsics/": ("robot_state/read_end", "robot_state/read_start"),
    "observation/timestamp/robot_state/": ("robot_state/read_end", "robot_state/read_start"),
    "action/": ("control/control_start", "control/step_start"),
    "": ("control/step_start", "robot_state/read_start", "robot_state/read_end"),
}
# The stamps of a camera's frames; the first that exist are taken.
_CAMERA_CLOCKS = ("estimated_capture", "frame_received", "read_end")
# The years 2001 to 2128, in milliseconds since 1970.
_EPOCH_MS = (1e12, 5e12)
_MOST_ROWS = 1 << 22


def read(source: Path, options: VideoOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every folder with a trajectory."""
    root = source if source.is_dir() else source.parent
    # If `source` is a trajectory, the videos and metadata in its folder are read too.
    listing = list_files(root)
    listing.note(root, notes)
    files = [file for file in listing.files if file == source or (file.name == TRAJECTORY and source.is_dir())]
    if not files:
        raise FileError(f"{source}: expected DROID's episodes ({TRAJECTORY}), found none")
    if source.is_dir():
        listing.leave_out_others(_find_used(files), "not read", notes)
    kinds = Kinds()
    notes.total = len(files)
    has_videos = any(_find_recordings(file.parent) for file in files)
    with open_videos(root, has_videos, options, kinds, notes) as videos:
        for path in sorted(files, key=natural):
            name = path.parent.relative_to(root).as_posix()
            what = os.path.basename(os.path.abspath(root)) if name == "." else name
            metadata: dict[str, Any] = {"name": what, "source_file": str(path.relative_to(root))}
            streams = _read_streams(path, what, metadata, videos, options, kinds, notes)
            yield Recording(what, str(path), metadata, streams)


def open_videos(
    root: Path, has_videos: bool, options: VideoOptions, kinds: Kinds, notes: Notes
) -> AbstractContextManager[Any]:
    """Returns a context manager that yields the decoder of the videos; None if there are no videos, or they are not wanted."""
    if not options.video or not has_videos:
        return nullcontext()
    try:
        from .droid_videos import Videos
    except ImportError as error:
        if (error.name or "").startswith("robocache"):
            raise
        raise Error(f"{root}: {error}; pip install av, or leave cameras out with video=False (--no-video)") from error
    return Videos(options, kinds, notes)


def _find_used(files: list[Path]) -> set[Path]:
    """Returns the trajectories and the files that are read with them."""
    used = set(files)
    for path in files:
        recordings = _find_recordings(path.parent).values()
        used.update(_find_metadata(path), recordings, map(find_stamps, recordings))
    return used


@dataclass
class _Episode:
    """An episode whose file is open.

    clocks: int64 nanoseconds ``[rows]``, by the stamps' paths below observation/timestamp.
    roles: wrist, ext1 or ext2 for each camera, by its serial number.
    """

    path: Path
    what: str
    metadata: dict[str, Any]
    tree: Tree
    rows: int
    clocks: dict[str, np.ndarray] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)

    def clock(self, stamps: str) -> Clock:
        """Returns the clock with the stamps at this path; its attributes name them."""
        time_ns = self.clocks[stamps]
        name = f"{_STAMPS}/{stamps}"
        for serial, role in self.roles.items():
            name = name.replace(serial, role)
        return Clock(self.rows, lambda start, stop: time_ns[start:stop], "recorded", {"clock_source": name})

    def clock_of(self, path: str) -> Clock:
        """Returns the clock of a dataset, by its path."""
        candidates = next(stamps for prefix, stamps in _CLOCKS.items() if path.startswith(prefix))
        for stamps in (*candidates, *_CLOCKS[""]):
            if stamps in self.clocks:
                return self.clock(stamps)
        raise SourceError(f"{self.path}: no stamps for {path}: expected one of {', '.join(candidates)} in {_STAMPS}")

    def stream(self, path: str) -> str:
        """Returns the stream of a dataset: its path, with the roles of cameras in place of their serial numbers, which differ between
        robots."""
        *folders, name = path.split("/")
        serial, _, rest = name.partition("_")
        if serial in self.roles:
            name = "_".join(filter(None, (self.roles[serial], rest)))
        return "/".join((*folders, name))


def _open_episode(path: Path, file: h5py.File, what: str, metadata: dict[str, Any], notes: Notes) -> _Episode:
    """Finds an episode's datasets and clocks, and adds its facts to `metadata`."""
    names = list(file)
    if ("observation" not in names and "action" not in names) or "joint_action" in names:
        raise another_layout(path, file, "droid", "observation and action")
    tree = walk(path, file, what, notes)
    # metadata_*.json comes last, since DROID makes it later, from the file's attributes.
    metadata |= {**attributes(file, notes), **tree.facts, **_read_metadata(path, what, notes), **metadata}
    counts = Counter(int(dataset.shape[0]) for dataset in tree.datasets.values())
    if not counts:
        raise SourceError(f"{path}: no dataset with rows")
    rows = counts.most_common(1)[0][0]
    if rows > _MOST_ROWS:
        raise SourceError(f"{path}: {rows} rows, expected at most {_MOST_ROWS}")
    metadata |= {**take_constants(tree, rows, notes), **metadata}
    declared_rows = metadata.get("trajectory_length")
    if isinstance(declared_rows, int) and declared_rows != rows:
        notes.leave_out(f"{what}: trajectory_length", f"the metadata say {declared_rows}, {TRAJECTORY} has {rows} rows")
    episode = _Episode(path, what, metadata, tree, rows)
    for key, dataset in tree.datasets.items():
        stamps = key.removeprefix(f"{_STAMPS}/")
        if stamps != key and stamps.startswith(("robot_state/read_", "control/", "cameras/")):
            with notes.reading(f"{what}: {key}", tree.where(key)):
                episode.clocks[stamps] = _read_stamps(tree.where(key), dataset, rows)
    episode.roles = _find_roles(tree, metadata, what, notes)
    return episode


def _read_stamps(where: str, dataset: Dataset, rows: int) -> np.ndarray:
    if dataset.shape != (rows,) or dataset.dtype.kind not in "iuf":
        raise SourceError(f"{where}: expected stamps [{rows}], got {list(dataset.shape)} of {dataset.dtype}")
    stamps = np.asarray(dataset[:])
    if rows and not _EPOCH_MS[0] <= np.median(stamps) <= _EPOCH_MS[1]:
        raise SourceError(f"{where}: expected milliseconds since 1970, got {np.median(stamps):.16g}")
    bad = np.flatnonzero(~(np.abs(stamps.astype(np.float64)) < 9e12))
    if len(bad):
        raise SourceError(f"{where}: row {bad[0]} is {stamps[bad[0]]}, expected milliseconds since 1970")
    return exact_ns(stamps, 10**6)


def _find_roles(tree: Tree, metadata: Mapping[str, Any], what: str, notes: Notes) -> dict[str, str]:
    """Returns the role of each camera by its serial number: as the metadata give it, or else by the camera types in the file."""
    roles_by_metadata = {
        str(metadata[f"{role}_cam_serial"]): role
        for role in ("wrist", "ext1", "ext2")
        if f"{role}_cam_serial" in metadata
    }
    if roles_by_metadata:
        return roles_by_metadata
    roles: dict[str, str] = {}
    others = iter(("ext1", "ext2"))
    for key, dataset in sorted(tree.datasets.items()):
        serial = key.removeprefix("observation/camera_type/")
        if serial != key and dataset.shape == (dataset.shape[0],) and dataset.shape[0] > 0:
            with notes.reading(f"{what}: {key}", tree.where(key)):
                role = "wrist" if int(dataset[0]) == 0 else next(others, None)  # DROID's type 0 is a hand camera
                if role is not None and role not in roles.values():
                    roles[serial] = role
    return roles


def _read_streams(
    path: Path, what: str, metadata: dict[str, Any], videos: Any, options: VideoOptions, kinds: Kinds, notes: Notes
) -> Iterator[tuple[str, Samples]]:
    """Yields an episode's streams. Opens its file only when the first stream is read, so that the episodes of other shards stay closed."""
    recordings = _find_recordings(path.parent)
    with open_file(path) as file:
        episode = _open_episode(path, file, what, metadata, notes)
        for key, dataset in episode.tree.datasets.items():
            stream, where = episode.stream(key), episode.tree.where(key)
            with notes.reading(f"{what}: {key}", where):
                column = Column(stream, what, where, dataset, episode.clock_of(key), notes)
                yield from column.samples(options, kinds)
        if not options.video:
            for name in recordings:
                stream = episode.stream(f"observation/image/{name}")
                notes.leave_out(stream, "video; left out with video=False (--no-video)")
        elif videos is not None:
            yield from _read_cameras(episode, recordings, videos, notes)


# ---- metadata ----


def _find_metadata(path: Path) -> list[Path]:
    return sorted(file for file in path.parent.iterdir() if re.fullmatch(r"metadata(_.*)?\.json", file.name))


def _read_metadata(path: Path, what: str, notes: Notes) -> dict[str, Any]:
    """Returns the scalars and lists of metadata_*.json."""
    files = _find_metadata(path)
    if not files:
        notes.leave_out(f"{what}: metadata", "no metadata_*.json, which DROID writes for complete episodes")
        return {}
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise SourceError(f"{path.parent}: expected one metadata_*.json, found {names}")
    facts: dict[str, Any] = {}
    with notes.reading(f"{what}: metadata", files[0]):
        parsed = read_json(files[0])
        if not isinstance(parsed, dict):
            raise SourceError(f"{files[0]}: expected an object, got {parsed!s:.60}")
        for key, value in parsed.items():
            if _is_plain(value) or (isinstance(value, list) and _are_alike(value)):
                facts[key or "_"] = value
            else:
                notes.leave_out(f"metadata: {key}", "neither a scalar nor a list of scalars")
    return facts


def _is_plain(value: Any) -> bool:
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return value is None or isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))


def _are_alike(values: list[Any]) -> bool:
    kinds = {type(value) for value in values}
    return (kinds <= {int, float} or kinds <= {str}) and all(map(_is_plain, values))


# ---- cameras ----


def _find_recordings(folder: Path) -> dict[str, Path]:
    """Returns the video files by their camera's serial number, or SERIAL_stereo if a video shows both eyes side by side."""
    files = list_files(folder / "recordings").files if (folder / "recordings").is_dir() else []
    return {file.stem.replace("-stereo", "_stereo"): file for file in files if file.suffix.lower() == ".mp4"}


def _read_cameras(
    episode: _Episode, recordings: dict[str, Path], videos: Any, notes: Notes
) -> Iterator[tuple[str, Frames]]:
    """Yields each camera's frames with the stamps of their rows."""
    started = []
    for name, path in sorted(recordings.items()):
        serial = name.removesuffix("_stereo")
        stream = episode.stream(f"observation/image/{name}")
        with notes.reading(f"{episode.what}: {stream}", path):
            candidates = [f"cameras/{serial}_{kind}" for kind in _CAMERA_CLOCKS]
            stamps = next(filter(episode.clocks.__contains__, candidates), None)
            if stamps is None:
                raise SourceError(f"{path}: no stamps of camera {serial} in {episode.path}: {_STAMPS}/cameras")
            received_ns = episode.clocks.get(f"cameras/{serial}_frame_received")
            started.append(videos.begin(stream, episode.what, path, received_ns, episode.clock(stamps)))
    yield from videos.streams(started)
