"""Finds and decodes the frame of each row of an episode in DROID's videos.

The recorder reads a camera once for each row, so frame k belongs to row k. The times in a video are only frame number / rate, but a
hole in them shows a lost frame. No other module of the format needs PyAV.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..._printable import ranges
from ...frames import Encoded
from ..recording import Frames, SourceError
from ..video import Index, Ticket, VideoFrames, cut_up
from .beside import find_stamps, read_json
from .columns import Clock


@dataclass
class _Camera:
    """A camera in one episode.

    rows: the rows that have a frame.
    tickets: the frames that are being decoded.
    """

    stream: str
    what: str
    path: Path
    height: int
    width: int
    rows: np.ndarray
    clock: Clock
    tickets: list[Ticket]


class Videos(VideoFrames):
    """The videos of all episodes. A context manager, which ends the decoding processes at its end."""

    def begin(self, stream: str, what: str, path: Path, received_ns: np.ndarray | None, clock: Clock) -> _Camera:
        """Finds the frame of each row in a video and begins to decode the frames.

        received_ns: int64 ``[rows]``, when each row's frame arrived; None if that is unknown. These stamps are found in the list of stamps
            beside the video, if there is such a list.
        """
        index = self.index(stream, path)
        self._kinds.check(stream, f"{index.width}x{index.height}", path)
        frames = self._match(stream, what, index, received_ns, clock)
        rows = np.flatnonzero(frames >= 0)
        if not len(rows):
            raise SourceError(f"{path}: {clock.rows} rows and {len(index)} frames, but no frame belongs to a row")
        tickets = [self._decoders.ask(cut) for cut in cut_up(index, frames[rows], self._storage(stream))]
        return _Camera(stream, what, path, index.height, index.width, rows, clock, tickets)

    def streams(self, cameras: list[_Camera]) -> Iterator[tuple[str, Frames]]:
        """Yields the streams of cameras that :meth:`begin` returned. At the end, drops the frames that were not taken."""
        try:
            for camera in cameras:
                resized = self._storage(camera.stream).resized(camera.height, camera.width)
                kind, attributes = camera.clock.kind, camera.clock.attributes
                frames = Frames(self._chunks(camera), resized=resized, clock=kind, attributes=attributes)
                yield camera.stream, frames
        finally:
            for camera in cameras:
                for ticket in camera.tickets:
                    self._decoders.drop(ticket)

    def _match(self, stream: str, what: str, index: Index, received_ns: np.ndarray | None, clock: Clock) -> np.ndarray:
        """Returns the frame of each row, or -1, int64 ``[rows]``."""
        path, count, rows = index.path, len(index), clock.rows
        stamps = find_stamps(path)
        if received_ns is not None and stamps.exists():
            listed_ns = np.array(_read_list(stamps), np.int64) * 1_000_000
            listed_frames = np.arange(len(listed_ns))
            if len(listed_ns) > count:  # the video lost frames that the list has
                listed_frames = self.match_by_index(stream, what, index, listed_ns, index.time_ns)
            indices = _find_stamps(received_ns, listed_ns)
            frames = np.where(indices < 0, -1, np.append(listed_frames, -1)[indices])
            matched_by = f"the stamps in {stamps.name}"
        else:
            frames = self.match_by_index(stream, what, index, clock.time_ns(0, rows), index.time_ns)
            matched_by = "their order, and holes in the video's times"
        missing = np.flatnonzero(frames < 0).tolist()
        counts = f"{rows} rows and {count} frames, matched by {matched_by}"
        if missing == [rows - 1]:  # the export to MP4 ends a frame early
            why = "no frame, in episodes whose video has one frame less than the episode has rows"
            self._notes.leave_out(f"{stream}: last rows", why)
        elif missing:
            error = SourceError(f"{path}: no frame: {counts}")
            self._notes.skip(f"{what}: {stream}: rows {ranges(missing)}", error)
        unused = count - len(np.unique(frames[frames >= 0]))
        if unused:
            self._notes.leave_out(f"{what}: {stream}: frames", f"{unused} are no row's: {counts}")
        return frames

    def _chunks(self, camera: _Camera) -> Iterator[tuple[np.ndarray, Encoded]]:
        time_ns = camera.clock.time_ns(0, camera.clock.rows)
        yield from self.chunks(f"{camera.what}: {camera.stream}", camera.path, camera.tickets, time_ns[camera.rows])


def _find_stamps(received_ns: np.ndarray, listed_ns: np.ndarray) -> np.ndarray:
    """Returns the index in the list of each row's stamp; -1 if the list lacks the stamp, or an earlier row has a later one."""
    by_stamp = {stamp: index for index, stamp in reversed(list(enumerate(listed_ns.tolist())))}
    indices = np.array([by_stamp.get(stamp, -1) for stamp in received_ns.tolist()], np.int64)
    latest = np.maximum.accumulate(indices)
    return np.where(indices == latest, indices, -1)


def _read_list(path: Path) -> list[int]:
    stamps = read_json(path)
    if not isinstance(stamps, list) or not all(type(stamp) is int for stamp in stamps):
        raise SourceError(f"{path}: expected a list of whole milliseconds, got {stamps!s:.60}")
    return stamps
