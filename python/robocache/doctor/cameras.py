"""Checks of cameras: a few frames of each are decoded; that frames repeat shows in the files' bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..dataset import EncodedFrames, Stream
from ..errors import FrameError
from .report import Finding
from .streams import Clock, Survey

SAMPLED = 48  # frames of each camera that are decoded
BLANK_RANGE = 4  # of the values 0 to 255: a frame that spans no more has no picture in it
FROZEN_ROWS, FROZEN_S = 10, 1.0
MOVING = 0.5


def check_frames(survey: Survey) -> Iterator[Finding]:
    """Frames that do not decode, or show nothing, among 48 that lie evenly over all episodes."""
    for camera in survey.cameras:
        if not camera.rows:
            continue
        clock = survey.clocks[camera.name]
        rows = np.unique(np.linspace(0, camera.rows - 1, SAMPLED).astype(np.int64)).tolist()
        blank: list[tuple[int, float]] = []
        for row in rows:
            try:
                pixels = camera.frame(row)
            except FrameError as error:
                yield Finding(
                    "error",
                    "undecodable-frame",
                    str(error),
                    **clock.place(row),
                    advice="The file was changed after ingest: robocache inspect --verify says where; ingest anew.",
                )
                continue
            seen = pixels[np.isfinite(pixels)] if pixels.dtype.kind == "f" else pixels
            spread = float(seen.max()) - float(seen.min()) if seen.size else 0.0
            if spread <= (BLANK_RANGE if pixels.dtype == np.uint8 else 0):
                blank.append((row, float(seen.mean()) if seen.size else 0.0))
        if blank:
            row, level = blank[0]
            yield Finding(
                "warning",
                "blank-frames",
                f"{len(blank)} of {len(rows)} frames looked at show {'black' if level < 16 else 'one colour'} and nothing else",
                **clock.place(row),
                count=len(blank),
                value=len(blank) / len(rows),
                expected=0.0,
                advice="A covered or absent camera, or a placeholder: leave it out, or draw from the episodes that have one.",
            )


def check_frozen_frames(survey: Survey) -> Iterator[Finding]:
    """Frames that repeat for 10 rows and 1 s while numbers of the episode change."""
    for camera in survey.cameras:
        clock = survey.clocks[camera.name]
        if _is_blank(camera):
            continue  # check_frames tells of it
        for begin, end in _repeats(camera, clock):
            time = camera.time_ns
            seconds = int(time[end - 1] - time[begin]) / 1e9
            if seconds < FROZEN_S or not _moves(survey, clock, begin, end):
                continue
            place = clock.place(begin)
            yield Finding(
                "warning",
                "frozen-frames",
                f"the same picture in {end - begin} frames, {seconds:.3g} s, while the robot moves",
                **place,
                end_row=place["row"] + end - begin,
                value=seconds,
                expected=FROZEN_S,
                advice="The camera or its driver stood still: leave the episode out, or cut it there.",
            )


def _is_blank(camera: Stream) -> bool:
    """Whether it shows one colour from end to end."""
    try:
        return camera.rows > 0 and bool(camera.frame(0).min() == camera.frame(camera.rows - 1).max())
    except FrameError:
        return False


def _repeats(camera: Stream, clock: Clock) -> Iterator[tuple[int, int]]:
    """First row and one behind the last of each run of equal frames within an episode."""
    values, run, end = camera.values, 0, camera.rows
    starts = set(camera.row_offsets.tolist())
    if isinstance(values, EncodedFrames):
        sizes = np.diff(values.offsets)
        # Files of one size are rare, so that few are held against each other.
        alike = np.concatenate(([False], sizes[1:] == sizes[:-1], [False]))
    else:
        alike = np.concatenate(([False], np.ones(max(end - 1, 0), bool), [False]))
    for row in range(1, end + 1):
        if row < end and alike[row] and row not in starts and _equal(values, row):
            continue
        if row - run >= FROZEN_ROWS:
            yield run, row
        run = row


def _equal(values: np.ndarray | EncodedFrames, row: int) -> bool:
    """Whether a frame is the one before; of raw frames every 16th pixel of every 16th line."""
    if isinstance(values, EncodedFrames):
        before, begin, end = values.offsets[row - 1 : row + 2].tolist()
        return bool(np.array_equal(values.data[before:begin], values.data[begin:end]))
    return bool(np.array_equal(values[row, ::16, ::16], values[row - 1, ::16, ::16]))


def _moves(survey: Survey, clock: Clock, begin: int, end: int) -> bool:
    """Whether a stream of numbers changes in that time; true where there is none that could tell."""
    episode, time = int(clock.episode_of(begin)), clock.stream.time_ns
    told = False
    for stream in survey.floats:
        rows = slice(*stream.row_offsets[episode : episode + 2].tolist())
        if rows.stop - rows.start < 2:
            continue
        told = True
        low, high = np.searchsorted(stream.time_ns[rows], time[[begin, end - 1]]) + rows.start
        values = stream.values[low:high].reshape(int(high - low), -1)
        if len(values) > 2 and (np.diff(values, axis=0) != 0).any(1).mean() >= MOVING:
            return True
    return not told


CHECKS = (check_frames, check_frozen_frames)
