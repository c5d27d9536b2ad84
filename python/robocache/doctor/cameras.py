"""Checks of cameras. Some frames of each are decoded; repeated frames are found by the bytes of their files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ..dataset import EncodedFrames, Stream
from ..errors import FrameError
from ..findings import Finding
from ..frames import is_labels
from .streams import Survey

SAMPLED = 24  # decoded frames per camera
BLANK_RANGE = 4  # a frame is blank if its values (0 to 255) have at most this range
BLACK = 16  # a blank frame of uint8 is black if the mean of its values is below this
FROZEN_ROWS, FROZEN_S = 10, 1.0  # frames are frozen if they repeat for this many rows and seconds
SMALLEST = 16  # pixels per side
_BYTES = 1 << 24  # frames are decoded and compared in parts of about this size


def check_frames(survey: Survey) -> Iterator[Finding]:
    """Finds frames that do not decode or are blank, among 24 frames spread evenly over all episodes."""
    for camera in survey.cameras:
        if not camera.rows:
            continue
        clock = survey.clocks[camera.name]
        rows = np.unique(np.linspace(0, camera.rows - 1, SAMPLED).astype(np.int64))
        blank: list[tuple[int, float]] = []
        decoded_count = 0
        end_values: list[float] = []
        for row, pixels in _decode(camera, rows):
            if isinstance(pixels, FrameError):
                yield Finding(
                    "error",
                    "undecodable-frame",
                    str(pixels),
                    **clock.locate(row),
                    advice="The file was changed after ingest: robocache inspect --verify says where. Ingest again.",
                )
                continue
            decoded_count += 1
            if row in (0, camera.rows - 1):
                end_values += [float(pixels.min()), float(pixels.max())]
            finite = pixels[np.isfinite(pixels)] if pixels.dtype.kind == "f" else pixels
            spread = float(finite.max()) - float(finite.min()) if finite.size else 0.0
            if spread <= (BLANK_RANGE if pixels.dtype == np.uint8 else 0):
                blank.append((row, float(finite.mean()) if finite.size else 0.0))
        if len(end_values) == 2 * len({0, camera.rows - 1}) and min(end_values) == max(end_values):
            survey.blank.add(camera.name)
        if blank and not is_labels(camera.name, camera.attributes):  # a valid empty mask has one label
            row, level = blank[0]
            is_black = level < BLACK if camera.dtype == np.uint8 else level == 0
            yield Finding(
                "warning",
                "blank-frames",
                f"{len(blank)} of {decoded_count} decoded frames show only {'black' if is_black else 'one colour'}",
                **clock.locate(row),
                count=len(blank),
                value=len(blank) / decoded_count,
                expected=0.0,
                advice="The camera was covered or absent, or it is a placeholder: leave it out, or draw from episodes with its pictures.",
            )


def check_frozen_frames(survey: Survey) -> Iterator[Finding]:
    """Finds frames that repeat for at least 10 rows and 1 s while numbers of the episode change."""
    for camera in survey.cameras:
        clock = survey.clocks[camera.name]
        if camera.name in survey.blank or is_labels(camera.name, camera.attributes):
            continue  # check_frames reports blank frames; labels may stay the same while the robot moves
        for begin, end in _repeats(camera):
            time = camera.time_ns
            seconds = int(time[end - 1] - time[begin]) / 1e9
            if seconds < FROZEN_S or not survey.others_move(camera, begin, end):
                continue
            location = clock.locate(begin)
            yield Finding(
                "warning",
                "frozen-frames",
                f"the same picture in {end - begin} frames, {seconds:.3g} s, while the robot moves",
                **location,
                end_row=location["row"] + end - begin,
                value=seconds,
                expected=FROZEN_S,
                advice="The camera or its driver stopped: leave the episode out, or cut it there.",
            )


def check_pictures(survey: Survey) -> Iterator[Finding]:
    """Finds streams of numbers that look like pictures: uint8 of at least 16 x 16 with 1 or 3 channels."""
    for stream in survey.numbers:
        shape = stream.shape
        if stream.dtype == np.uint8 and len(shape) == 3 and min(shape[:2]) >= SMALLEST and shape[2] in (1, 3):
            yield Finding(
                "note",
                "pictures-as-numbers",
                f"uint8 {list(shape)}: not a camera, so batches hold whole numbers, channels last",
                stream=stream.name,
                advice="Append them as frames with codec='jpeg' or 'png': they are then decoded, resized and normalised like a camera's.",
            )


def _decode(camera: Stream, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray | FrameError]]:
    """Decodes frames, many at once, so that threads share the work."""
    step = max(_BYTES // max(math.prod(camera.shape) * camera.dtype.itemsize, 1), 1)
    for part in np.split(rows, range(step, len(rows), step)):
        frames: Sequence[np.ndarray | FrameError]
        try:
            frames = camera[part]
        except FrameError:
            frames = [_decode_one(camera, row) for row in part.tolist()]
        yield from zip(part.tolist(), frames, strict=True)


def _decode_one(camera: Stream, row: int) -> np.ndarray | FrameError:
    try:
        return camera.frame(row)
    except FrameError as error:
        return error


def _repeats(camera: Stream) -> Iterator[tuple[int, int]]:
    """Yields [begin, end) of each run of equal frames in an episode. For raw frames, every 16th pixel of every 16th line
    is compared."""
    values = camera.values
    is_repeat = np.ones(camera.rows + 1, bool)
    is_repeat[camera.row_offsets] = False
    if not isinstance(values, EncodedFrames):
        sampled = values[:, ::16, ::16]
        step = max(_BYTES // max(sampled[:1].nbytes, 1), 1)
        for start in range(1, camera.rows, step):
            part = sampled[start - 1 : start + step].reshape(-1, sampled[0].size)
            is_repeat[start : start + step][: len(part) - 1] &= (part[1:] == part[:-1]).all(1)
        yield from _runs(is_repeat)
        return
    sizes = np.diff(values.offsets)
    is_repeat[1 : camera.rows] &= sizes[1:] == sizes[:-1]
    # Only files of one size are compared, because long runs of one size are rare.
    for begin, end in _runs(is_repeat):
        files = [values.file(row) for row in range(begin, end)]
        is_repeated = [np.array_equal(file, following) for file, following in pairwise(files)]
        yield from ((begin + first, begin + last) for first, last in _runs(np.array([False, *is_repeated, False])))


def _runs(is_repeated: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields [begin, end) of long runs. ``is_repeated[i]``: whether row i equals row i - 1; the first and last entries are false."""
    edges = np.flatnonzero(is_repeated[1:] != is_repeated[:-1])
    ends = zip(edges[::2].tolist(), (edges[1::2] + 1).tolist(), strict=True)
    yield from ((begin, end) for begin, end in ends if end - begin >= FROZEN_ROWS)


CHECKS = (check_frames, check_frozen_frames, check_pictures)
