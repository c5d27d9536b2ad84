"""How a camera's frames are stored, and frames that lie in the source as images, one by one: JPEGs and PNGs.

`CameraOptions` says what the user asked for, :class:`Storage` what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, cast

import numpy as np

from .. import frames
from ..errors import Error
from ..ops.image_batch import image_batch
from .recording import Frames, Notes, SourceError, naming, ranges
from .registry import CameraOptions

# Images that are read, checked and written at once.
_AT_ONCE = 64


@dataclass(frozen=True)
class Storage:
    """How frames are stored.

    codec, quality: "jpeg" of that quality, "png" or "raw".
    size: (height, width), or None as they are.
    fit: how they are brought to `size`.
    """

    codec: Literal["jpeg", "png", "raw"]
    quality: int
    size: tuple[int, int] | None
    fit: str

    @classmethod
    def of(cls, options: CameraOptions) -> Storage:
        codec, _, quality = (options.image_codec or "jpeg").partition(":")
        size = None
        if options.image_size != "keep":
            width, height = map(int, options.image_size.split("x"))
            size = height, width
        return cls(cast(Any, codec), int(quality or 95), size, options.image_fit)

    def resized(self, height: int, width: int) -> dict[str, Any] | None:
        """What the cache is told of frames that were of this size."""
        if self.size is None:
            return None
        return {"size": list(self.size), "fit": self.fit, "from": [height, width]}

    def frame_bytes(self, height: int, width: int) -> int:
        """More than a frame of that size takes when it is stored: a JPEG of quality 95 takes less than a quarter of it."""
        height, width = self.size or (height, width)
        return height * width * 3 // (4 if self.codec == "jpeg" else 1)


def encode(images: np.ndarray, storage: Storage) -> frames.Encoded:
    """Frames ``[n, H, W, C]`` as they are stored; uint8 where they are to be resized."""
    if storage.size is not None:
        if images.dtype != np.uint8:
            raise Error(f"frames of {images.dtype} are not resized; image_size='keep' takes them as they are")
        images = image_batch(images, size=storage.size, fit=storage.fit, dtype="uint8", layout="hwc")
    return frames.encode(images, codec=storage.codec, quality=storage.quality)


class Kinds:
    """What the frames of each camera are, by the first that was met: all others must be the same."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, object]] = {}

    def check(self, camera: str, kind: str, where: object) -> None:
        """Raises SourceError where it is another than before, which it names too."""
        first, there = self._first.setdefault(camera, (kind, where))
        if kind != first:
            raise SourceError(f"{where}: frames of {kind}, but of {first} in {there}")


def image_frames(
    camera: str,
    what: str,
    where: object,
    time_ns: np.ndarray,
    read: Callable[[int], bytes],
    options: CameraOptions,
    clock: Literal["recorded", "nominal"],
    kinds: Kinds,
    notes: Notes,
) -> Frames | None:
    """A camera's rows that are images; None where there is none that can be read.

    Args:
        camera, what, where: its name, the recording's, and what begins the message of what is wrong with it.
        time_ns: int64 ``[rows]``.
        read: gives a row's image; what it raises skips that row by name.
    """
    chunks = _read_chunks(camera, what, where, time_ns, read, options, kinds, notes)
    first = next(chunks, None)
    if first is None:
        return None
    _, _, resized = first
    return Frames(((times, images) for times, images, _ in chain([first], chunks)), resized=resized, clock=clock)


def _read_chunks(
    camera: str,
    what: str,
    where: object,
    time_ns: np.ndarray,
    read: Callable[[int], bytes],
    options: CameraOptions,
    kinds: Kinds,
    notes: Notes,
) -> Iterator[tuple[np.ndarray, frames.Encoded, dict[str, Any] | None]]:
    """Stamps and frames, and what was done to their size."""
    storage = Storage.of(options)
    for start in range(0, len(time_ns), _AT_ONCE):
        blobs: dict[int, bytes] = {}
        lost: dict[int, SourceError] = {}
        for row in range(start, min(start + _AT_ONCE, len(time_ns))):
            try:
                with naming(f"{where}: {camera}: row {row}"):
                    blobs[row] = read(row)
            except SourceError as error:
                lost[row] = error
        taken = None
        try:
            taken = frames.take(list(blobs.values()))
            kinds.check(camera, _kind(taken), where)
        except Error:  # of which, one by one says
            for row, blob in list(blobs.items()):
                try:
                    with naming(f"{where}: {camera}: row {row}"):
                        kinds.check(camera, _kind(frames.take([blob])), f"{where}: {camera}: row {row}")
                except SourceError as error:
                    lost[row] = error
                    del blobs[row]
            taken = frames.take(list(blobs.values())) if blobs else None
        if lost:
            notes.skip(f"{what}: {camera}: rows {ranges(sorted(lost))}", lost[min(lost)])
        if taken is None:
            continue
        for why in taken.reencoded:
            notes.leave_out(f"{camera}: JPEGs as they were", f"encoded anew: {why}")
        height, width, _ = taken.shape
        if storage.size is not None or options.image_codec is not None:
            pixels = frames.decode(taken.codec, taken.data, taken.offsets, taken.shape, taken.dtype, range(len(blobs)))
            asked = storage if options.image_codec is not None else replace(storage, codec=cast(Any, taken.codec))
            taken = encode(pixels, asked)
        yield time_ns[list(blobs)], taken, storage.resized(height, width)


def _kind(encoded: frames.Encoded) -> str:
    height, width, _ = encoded.shape
    return f"{width}x{height} {encoded.color_space} {encoded.dtype} in {encoded.codec}"
