"""Finds and decodes the frames of a LeRobot dataset's rows in its video files.

No other module of the format needs PyAV.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._printable import ranges
from .declared import is_number
from .depth import DepthCodes
from .formats.lerobot import LeRobotOptions
from .images import Kinds
from .lerobot_tables import Lost, find_videos, video_name
from .recording import Frames, Notes, SourceError, naming
from .video import Cut, Index, Ticket, VideoFrames, cut_up, index_video, match

if TYPE_CHECKING:
    from .lerobot import Episode

# Episodes are read ahead up to this many frames, enough for the processes of a large machine. The number is constant, so that the
# report does not depend on the number of processes.
_FRAMES_AHEAD = 8192


@dataclass
class _Shared:
    """The episodes in one file of v3.0, in the order of their frames, without episodes that have no rows.

    starts: each episode's start, in seconds.
    rows: the number of rows before each episode, then of all episodes; empty if an episode does not declare its length.
    closest: the least time between two starts, and the earlier one of these starts, in seconds.
    """

    starts: list[float]
    rows: list[int]
    closest: tuple[float, float] = (np.inf, 0.0)


def _find_shared(camera: str, episodes: Mapping[int, Mapping[str, Any]]) -> dict[str | None, _Shared]:
    """Returns the episodes in each of a camera's files of v3.0, by the file's name."""
    by_file: dict[str | None, list[tuple[float, int]]] = {}
    for number, metadata in episodes.items():
        start_s, length = metadata.get(f"videos/{camera}/from_timestamp"), metadata.get("length")
        if is_number(start_s) and length != 0:
            name = video_name(camera, number, metadata)
            by_file.setdefault(name, []).append((start_s, length if isinstance(length, int) else -1))
    shared = {}
    for name, spans in by_file.items():
        spans.sort()
        starts, lengths = [start_s for start_s, _ in spans], [length for _, length in spans]
        closest = min(((later - start_s, start_s) for start_s, later in pairwise(starts)), default=(np.inf, 0.0))
        shared[name] = _Shared(starts, [0, *accumulate(lengths)] if min(lengths) > 0 else [], closest)
    return shared


def _count_rows(episode: Episode | Lost) -> int:
    return len(episode) if not isinstance(episode, Lost) else 0


@dataclass
class _View:
    """A camera in one episode.

    error: why the camera has no frames at all.
    path: the camera's file.
    frames, used: the number of frames in the file, and how many of them belong to this episode's rows.
    rows: int64 ``[n]``: the rows that have a frame.
    missing: the rows without a frame in words, and the reason; None if all have one.
    tickets: the frames that are being decoded.
    """

    camera: str
    error: SourceError | None = None
    path: Path | None = None
    frames: int = 0
    used: int = 0
    height: int = 0
    width: int = 0
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    missing: tuple[str, SourceError] | None = None
    tickets: list[Ticket] = field(default_factory=list)


def find_pixels(source: Path, camera: str) -> tuple[str, int] | None:
    """Returns the pixel format of a camera's first readable file, and its bits; None if no file is readable."""
    for path, *_ in find_videos(source, camera).values():
        with suppress(SourceError):
            index = index_video(path, deep_gray=True)
            return index.pixels, index.bits
    return None


class Videos(VideoFrames):
    """Reads the videos of a dataset. As a context manager, it ends the decoding processes."""

    def __init__(
        self,
        source: Path,
        cameras: Mapping[str, DepthCodes | None],
        episodes: Mapping[int, Mapping[str, Any]],
        fps: float,
        options: LeRobotOptions,
        kinds: Kinds,
        notes: Notes,
    ) -> None:
        super().__init__(options, kinds, notes)
        self._source = source
        self._shared = {camera: _find_shared(camera, episodes) for camera in cameras}
        self._depth = dict(cameras)
        self._files = {camera: find_videos(source, camera) for camera in cameras}
        self._period_ns = 1e9 / fps
        self._by_index = options.frames == "by-index"
        self._indices: dict[str, Index] = {}  # of each camera's last file, because a file of v3.0 has many episodes
        self._views: dict[int, list[_View]] = {}

    def ahead(self, episodes: Iterator[Episode | Lost]) -> Iterator[Episode | Lost]:
        """Yields the episodes. Begins to decode an episode's frames before it is yielded; afterwards drops frames that were not taken."""
        started: deque[Episode | Lost] = deque()
        frames = 0
        for episode in episodes:
            started.append(episode)
            frames += _count_rows(episode)
            if not isinstance(episode, Lost) and self._notes.wants(episode.position):
                self._views[episode.number] = [self._begin(camera, episode) for camera in self._files]
            while frames > _FRAMES_AHEAD:
                frames -= _count_rows(started[0])
                yield from self._yield_episode(started.popleft())
        for episode in started:
            yield from self._yield_episode(episode)

    def _yield_episode(self, episode: Episode | Lost) -> Iterator[Episode | Lost]:
        views = self._views.get(episode.number, []) if not isinstance(episode, Lost) else []
        for view in views:
            if view.path is not None:
                self._notes.see("video files", str(view.path.relative_to(self._source)), [view.camera, view.frames])
                self._notes.count("frames used", view.camera, view.used)
        yield episode
        if not isinstance(episode, Lost):
            self._views.pop(episode.number, None)
        for view in views:
            for ticket in view.tickets:
                self._decoders.drop(ticket)

    def streams(self, episode: Episode) -> Iterator[tuple[str, Frames]]:
        """Yields an episode's cameras."""
        for view in self._views[episode.number]:
            with self._notes.reading(f"{episode.what}: {view.camera}", episode.where):
                if view.error is not None:
                    raise view.error
                if view.missing is not None:
                    self._notes.skip(*view.missing)
                storage = self._storage(view.camera)
                if self._depth[view.camera] is None:
                    unit_m, resized = None, storage.resized(view.height, view.width)
                else:
                    unit_m, resized = 0.001, None
                    if storage.size is not None:
                        why = "depth is not resized; image_size='keep' (--image-size keep) takes it as it is"
                        self._notes.leave_out(view.camera, why)
                chunks: Iterable[Any] = []
                if view.path is not None:
                    time_ns = episode.time_ns[view.rows]
                    chunks = self.chunks(f"{episode.what}: {view.camera}", view.path, view.tickets, time_ns)
                yield view.camera, Frames(chunks, unit_m=unit_m, resized=resized, clock=episode.clock)

    def _begin(self, camera: str, episode: Episode) -> _View:
        view = _View(camera)
        try:
            with naming(episode.where):
                self._find_frames(view, episode, episode.time_ns)
        except SourceError as error:
            view.error = error
        return view

    def _find_frames(self, view: _View, episode: Episode, time_ns: np.ndarray) -> None:
        camera, metadata = view.camera, episode.metadata
        name = video_name(camera, episode.number, metadata)
        if name is None:
            raise SourceError(f"{episode.where}: {self._source}/meta does not say which file of {camera} has it")
        if name not in self._files[camera]:
            hint = "video=False (--no-video) leaves cameras out"
            raise SourceError(f"{self._source}: no {name}.mp4 of {camera} in videos/; {hint}")
        path, *others = self._files[camera][name]
        if others:
            files = ", ".join(str(file.relative_to(self._source)) for file in (path, *others))
            raise SourceError(
                f"{episode.where}: expected one file {name}.mp4 of {camera} in {self._source}, got {files}; move the others out of videos/"
            )
        index = self._index(camera, path)
        view.path, view.frames = index.path, len(index)
        self._kinds.check(camera, f"{index.width}x{index.height}", index.path)
        depth = self._depth[camera]
        if depth is not None and index.bits != depth.BITS:
            bits = f"expected depth in {depth.BITS} bits, as info.json says"
            raise SourceError(f"{index.path}: frames in {index.pixels}: {bits}")
        if depth is None and index.bits > 8:
            why = f"8 of {index.bits} of {index.pixels} are kept: info.json does not say that it is depth"
            self._notes.leave_out(f"{camera}: bits", why)
        view.height, view.width = index.height, index.width

        # The episode's frames are [begin, end): all of the file, or in v3.0 those from its start to the next episode's start.
        begin, end = 0, len(index)
        if f"videos/{camera}/file_index" in metadata:
            start_s = metadata.get(f"videos/{camera}/from_timestamp")
            if not is_number(start_s):
                raise SourceError(f"{episode.where}: {self._source}/meta does not say when it begins in {camera}")
            # to_timestamp is not used, since some converters write the time of the last frame itself.
            half_s = self._period_ns / 2e9
            shared = self._shared[camera].get(name, _Shared([], []))
            starts = shared.starts
            later_starts = starts[bisect_right(starts, start_s + half_s) :]
            self._check_shared(camera, index, shared)
            bounds = (np.array([start_s, later_starts[0] if later_starts else np.inf]) - half_s) * 1e9
            begin, end = np.searchsorted(index.time_ns, bounds).tolist()
            time_ns = time_ns + round(start_s * 1e9)
            # If there are as many frames as rows, frame k of the file belongs to row k.
            if shared.rows and shared.rows[-1] == len(index):
                episode_in_file = bisect_left(starts, start_s)
                first_row, end_row = shared.rows[episode_in_file : episode_in_file + 2]
                if begin != first_row and not self._by_index:
                    drift_s = index.time_ns[first_row] / 1e9 - start_s
                    raise SourceError(
                        f"{index.path}: {len(index)} rows and as many frames that drift: its frames begin {drift_s:+.4f} s off "
                        f"videos/{camera}/from_timestamp in {self._source}/meta, so that those of another episode are nearer; "
                        "frames='by-index' (--frames by-index) gives row k frame k"
                    )
                begin, end = first_row, end_row
        if self._by_index:
            first_ns = int(time_ns[0]) if len(time_ns) else 0
            frames = self.match_by_index(camera, episode.what, index, time_ns, index.time_ns[begin:end], first_ns)
        else:
            if episode.kind_of_clock == "nominal_from_1" and end - begin > len(time_ns):
                # With more frames than rows, stamps that begin at 1 / fps are right: the row of frame 0 was cut off.
                time_ns = time_ns + round(self._period_ns)
            frames = match(time_ns, index.time_ns[begin:end], self._period_ns / 2)  # excludes the next episode's frames
        frames[frames >= 0] += begin
        missing = np.flatnonzero(frames < 0)
        if len(missing):
            error = self._explain(index, time_ns, missing, begin, end)
            if end - begin == len(time_ns):
                raise error
            view.missing = f"{episode.what}: {camera}: rows {ranges(missing.tolist())}", error
        view.rows = np.flatnonzero(frames >= 0)
        view.used = len(np.unique(frames[view.rows]))
        view.tickets = [self._decoders.ask(cut) for cut in self._cut_up(camera, index, frames[view.rows])]

    def _check_shared(self, camera: str, index: Index, shared: _Shared) -> None:
        """Refuses a file for all its episodes if one of them cannot be in it: after a faulty merge the episodes of several files may point
        to this one."""
        starts, half_s = shared.starts, self._period_ns / 2e9
        gap_s, start_s = shared.closest
        by_meta = f"by videos/{camera}/from_timestamp in {self._source}/meta"
        advice = "so any episode may have frames of another; video=False (--no-video) leaves cameras out"
        if gap_s <= half_s:
            count = bisect_right(starts, start_s + half_s) - bisect_left(starts, start_s - half_s)
            raise SourceError(f"{index.path}: {count} episodes begin at {start_s:g} s {by_meta}: {advice}")
        if not shared.rows or shared.rows[-1] == len(index) or index.declared > len(index):
            return  # the frames drift, or the file was cut off: _find_frames reports it
        last_rows = shared.rows[-1] - shared.rows[-2]  # those of the last episode
        last_frames = len(index) - int(np.searchsorted(index.time_ns, (starts[-1] - half_s) * 1e9))
        last_row_s = starts[-1] + (last_rows - 1) * self._period_ns / 1e9
        last_frame_s = index.time_ns[-1] / 1e9
        if last_frames < last_rows and last_row_s > last_frame_s + half_s:
            raise SourceError(
                f"{index.path}: its last frame is at {last_frame_s:.4f} s, the last row of its episodes at {last_row_s:.4f} s {by_meta}: {advice}"
            )

    def _cut_up(self, camera: str, index: Index, frames: np.ndarray) -> list[Cut]:
        depth = self._depth[camera]
        storage = self._storage(camera)
        return cut_up(index, frames, storage if depth is None else storage.for_depth, depth)

    def _explain(self, index: Index, time_ns: np.ndarray, missing: np.ndarray, begin: int, end: int) -> SourceError:
        """Returns the error that explains why the rows `missing` have no frame among the file's frames [begin, end)."""
        counts = f"{len(time_ns)} rows and {end - begin} frames"
        if end - begin == len(time_ns):
            first, last = (index.time_ns[[begin, end - 1]] - time_ns[[0, -1]]) / 1e9
            return SourceError(
                f"{index.path}: {counts} that drift: the first frame is {first:+.4f} s off its row, the last {last:+.4f} s; "
                f"frames='by-index' (--frames by-index) gives row k frame k"
            )
        if index.declared > len(index):
            counts += f", of {index.declared} that the file's header declares"
        if self._by_index:
            why = "by the frames' order and holes in their times"
            return SourceError(f"{index.path}: {counts}: none for {len(missing)} of the rows, {why}")
        return SourceError(
            f"{index.path}: {counts}: no frame within {self._period_ns / 2e6:.4g} ms of {len(missing)} of the rows, "
            f"the first row {missing[0]} at {time_ns[missing[0]] / 1e9:.4f} s"
        )

    def _index(self, camera: str, path: Path) -> Index:
        index = self._indices.get(camera)
        if index is None or index.path != path:
            index = self._indices[camera] = self.index(camera, path, deep_gray=True)
        return index
