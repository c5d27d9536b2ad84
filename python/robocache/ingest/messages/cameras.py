"""Images in messages, raw ones and files, and the intrinsics that other messages have of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ... import frames
from ...errors import Error
from ..images import Images, Storage, encode
from ..recording import Frames, Samples
from .batches import Batch, Leaf
from .known import Decoded, Origin

if TYPE_CHECKING:
    from .videos import TopicVideo

# A batch of images that are encoded at once.
_IMAGE_BYTES = 16 << 20

# What an encoding's pixels are: dtype, channels in the message, those that are kept and in which order.
_ENCODINGS: dict[str, tuple[Any, int, list[int]]] = {
    "rgb8": (np.uint8, 3, [0, 1, 2]),
    "bgr8": (np.uint8, 3, [2, 1, 0]),
    "rgba8": (np.uint8, 4, [0, 1, 2]),
    "bgra8": (np.uint8, 4, [2, 1, 0]),
    "mono8": (np.uint8, 1, [0]),
    "8UC1": (np.uint8, 1, [0]),
    "mono16": (np.uint16, 1, [0]),
    "16UC1": (np.uint16, 1, [0]),
    "32FC1": (np.float32, 1, [0]),
    **{f"bayer_{mosaic}8": (np.uint8, 1, [0]) for mosaic in ("rggb", "bggr", "gbrg", "grbg")},
}
# Video, by what a message's format or encoding says: of libx264, h264_nvenc and the like too.
_VIDEO = {"[hx]264": "h264", "[hx]265|hevc": "hevc", "av1": "av1", "vp9": "vp9", "vp8": "vp8"}
_UNITS_M = {"uint16": 0.001, "float32": 1.0}


@dataclass(frozen=True)
class Intrinsics:
    """What a CameraInfo says: the matrix ``[3, 3]``, in pixels of images of that size.

    topic: its name.
    """

    topic: str
    matrix: list[list[float]]
    height: int
    width: int

    @classmethod
    def of(cls, topic: str, leaves: Mapping[str, Leaf], batch: Batch) -> Intrinsics | None:
        """Those of the first message, if its type has them."""
        matrix = _number(leaves, "k") or _number(leaves, "K")
        height, width = _number(leaves, "height"), _number(leaves, "width")
        if not matrix or matrix.count != 9 or not height or not width:
            return None
        values = batch.numbers(matrix)[0].reshape(3, 3).tolist()
        return cls(topic, values, int(batch.numbers(height)[0]), int(batch.numbers(width)[0]))


class Camera:
    """A topic of images of one recording."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._intrinsics: Intrinsics | None = None
        self._video: TopicVideo | None = None
        self._attributes: Mapping[str, Any] = {}

    def find_intrinsics(self, known: Sequence[Intrinsics]) -> None:
        """Takes those of this topic's namespace."""
        place = self._origin.name.split("/")
        if place[-1] in ("compressed", "compressedDepth"):
            place.pop()
        wanted = place[:-1]
        if place[-2:] == ["image", "data"]:  # librealsense's
            wanted = [*place[:-2], "info"]
        near = [intrinsics for intrinsics in known if intrinsics.topic.split("/")[:-1] == wanted]
        if len(near) == 1:
            self._intrinsics = near[0]

    def raw(self, messages: Decoded) -> Iterator[tuple[str, Samples]]:
        """Images that are pixels."""
        origin, leaves, batch, time_ns = self._origin, messages.leaves, messages.batch, messages.time_ns
        data, starts = batch.sequences(leaves["data"])
        said = [batch.numbers(leaves[path]).tolist() for path in ("height", "width", "step")]
        endian = batch.numbers(leaves["is_bigendian"]).tolist() if "is_bigendian" in leaves else [0] * len(batch)
        kinds = list(zip(*said, endian, batch.texts(leaves["encoding"]), np.diff(starts).tolist(), strict=True))
        storage = Storage.of(origin.known.options)
        if origin.exported is not None and origin.known.options.image_codec is None:
            storage = replace(storage, codec="raw")  # as the cache had them
        lost: dict[int, Error] = {}
        row = 0
        while row < len(batch):
            height, width, step, big, encoding, size = kinds[row]
            most = max(1, _IMAGE_BYTES // max(1, size))
            stop = row + 1
            while stop < len(batch) and stop - row < most and kinds[stop] == kinds[row]:
                stop += 1
            if encoding not in _ENCODINGS:
                origin.notes.leave_out(origin.name, f"images in {encoding!r}: only {', '.join(_ENCODINGS)} are read")
                row = stop
                continue
            try:
                pixels = _pixels(
                    data[starts[row] : starts[stop]].reshape(stop - row, size), height, width, step, bool(big), encoding
                )
                origin.known.kinds.check(
                    origin.name,
                    f"{width}x{height} {encoding}",
                    f"{origin.where}: {origin.name}: message {messages.numbers[row]}",
                )
            except Error as error:
                lost |= dict.fromkeys(messages.numbers[row:stop].tolist(), error)
                row = stop
                continue
            if encoding in ("rgba8", "bgra8"):
                origin.notes.leave_out(f"{origin.name}: alpha", f"of {encoding}")
            if encoding.startswith("bayer_"):
                origin.notes.leave_out(
                    f"{origin.name}: the mosaic",
                    f"of {encoding}: the colours that a pixel lacks are its neighbours' mean",
                )
                pixels = _demosaic(pixels[..., 0], encoding[6:10])
            unit = _UNITS_M.get(pixels.dtype.name)
            if unit is None:
                stored, resized = encode(pixels, storage), storage.resized(height, width)
            elif storage.size is not None:
                origin.notes.leave_out(origin.name, "depth is not resized; image_size='keep' takes it as it is")
                row = stop
                continue
            else:
                raw = storage.codec == "raw" or pixels.dtype == np.float32
                stored, resized = frames.encode(pixels, codec="raw" if raw else "png"), None
            matrix = self._matrix(height, width, resized)
            yield (
                origin.name,
                Frames(
                    [(time_ns[row:stop], stored)],
                    unit_m=unit,
                    intrinsics=matrix,
                    resized=resized,
                    attributes=messages.attributes,
                ),
            )
            row = stop
        origin.lose(lost)

    def compressed(self, messages: Decoded) -> Iterator[tuple[str, Samples]]:
        """Images that are JPEG or PNG files, or frames of a video."""
        origin, leaves, batch, time_ns = self._origin, messages.leaves, messages.batch, messages.time_ns
        formats = batch.texts(leaves["format"] if "format" in leaves else leaves["encoding"])
        data, starts = batch.sequences(leaves["data"])
        codec = next((codec for pattern, codec in _VIDEO.items() if re.search(pattern, formats[0].lower())), None)
        if codec is not None:
            self._attributes = messages.attributes
            files = [bytes(data[start:stop]) for start, stop in pairwise(starts.tolist())]
            yield from self._frames(codec, files, messages.numbers.tolist(), time_ns)
            return
        depth = "compressedDepth" in formats[0]
        first = bytes(data[starts[0] : starts[1]][12 * depth :][:8])
        if not first.startswith((b"\xff\xd8", b"\x89PNG")) or (depth and "32FC1" in formats[0]):
            origin.notes.leave_out(origin.name, f"images in {formats[0]!r}: only JPEG, PNG and video are read")
            return

        def file(row: int) -> bytes:
            return bytes(data[starts[row] : starts[row + 1]][12 * depth :])

        numbers = messages.numbers.tolist()
        images = Images(origin.name, origin.what, origin.where, time_ns, "recorded", file, numbers)
        made = images.stored(origin.known.options, origin.known.kinds, origin.notes)
        if made is None:
            return
        chunks = iter(made.chunks)
        time_of_first, stored = next(chunks)
        height, width = stored.shape[:2] if isinstance(stored, frames.Encoded) else (0, 0)
        if made.resized is not None:
            height, width = made.resized["from"]
        unit = 0.001 if isinstance(stored, frames.Encoded) and stored.dtype == np.uint16 else None
        yield (
            origin.name,
            replace(
                made,
                chunks=chain([(time_of_first, stored)], chunks),
                unit_m=unit,
                intrinsics=self._matrix(height, width, made.resized),
                attributes=messages.attributes,
            ),
        )

    def rest(self) -> Iterator[tuple[str, Samples]]:
        """The frames of a video that its decoder held back."""
        if self._video is not None:
            yield from self._told(self._video.rest())

    def _frames(
        self, codec: str, files: Sequence[bytes], rows: Sequence[int], time_ns: np.ndarray
    ) -> Iterator[tuple[str, Samples]]:
        origin = self._origin
        if self._video is None:
            try:
                from .videos import TopicVideo
            except ImportError as error:
                if (error.name or "").startswith("robocache"):
                    raise
                origin.notes.leave_out(origin.name, f"video in {codec}: {error}; pip install av")
                return
            try:
                self._video = TopicVideo(origin, codec)
            except Error as error:
                origin.notes.leave_out(origin.name, str(error))
                return
        yield from self._told(self._video.read(files, rows, time_ns))

    def _told(
        self, pieces: Iterator[tuple[np.ndarray, frames.Encoded, tuple[int, int]]]
    ) -> Iterator[tuple[str, Samples]]:
        for time_ns, stored, (height, width) in pieces:
            resized = Storage.of(self._origin.known.options).resized(height, width)
            matrix = self._matrix(height, width, resized)
            yield (
                self._origin.name,
                Frames([(time_ns, stored)], intrinsics=matrix, resized=resized, attributes=self._attributes),
            )

    def _matrix(self, height: int, width: int, resized: dict[str, Any] | None) -> list[list[float]] | None:
        """The intrinsics of images of that size, which are the same in all recordings."""
        origin, found = self._origin, self._intrinsics
        facts, key = origin.known.facts, (origin.name, "intrinsics")
        if found is None:
            return cast("list[list[float]] | None", facts.setdefault(key, None))
        matrix: list[list[float]] | None = found.matrix
        why = None
        if (found.height, found.width) != (height, width):
            why = f"are of {found.width}x{found.height}, frames of {width}x{height}"
        elif resized is not None:
            why = "are of frames that were not resized"
        elif not np.isfinite(found.matrix).all() or not np.any(found.matrix):
            why = "are not calibrated"
        if why is not None:
            origin.notes.leave_out(f"{origin.name}: intrinsics", f"those of {found.topic} {why}")
            matrix = None
        known = facts.setdefault(key, matrix)
        if known != matrix:
            origin.notes.leave_out(f"{origin.what}: {origin.name}: intrinsics", f"{matrix}, but {known} before")
        return cast("list[list[float]] | None", known)


def _number(leaves: Mapping[str, Leaf], path: str) -> Leaf | None:
    leaf = leaves.get(path)
    return leaf if leaf is not None and leaf.kind == "number" else None


def _pixels(data: np.ndarray, height: int, width: int, step: int, big: bool, encoding: str) -> np.ndarray:
    """``[n, H, W, C]`` of bytes ``[n, size]``, without what is behind each row."""
    kind, channels, kept = _ENCODINGS[encoding]
    dtype = np.dtype(kind)
    used = width * channels * dtype.itemsize
    if not height or not width or step < used or data.shape[1] < height * step - (step - used):
        raise Error(f"expected {width}x{height} {encoding} in rows of {step} bytes, got {data.shape[1]} bytes")
    if height == 1:  # nothing lies behind it, however long it says that it is
        step = used
    if data.shape[1] < height * step:
        data = np.pad(data, ((0, 0), (0, height * step - data.shape[1])))
    rows = data[:, : height * step].reshape(len(data), height, step)[:, :, :used]
    pixels = np.ascontiguousarray(rows).view(dtype.newbyteorder(">" if big else "<"))
    pixels = pixels.astype(dtype, copy=False).reshape(len(data), height, width, channels)
    return pixels if kept == list(range(channels)) else np.ascontiguousarray(pixels[..., kept])


def _demosaic(mosaic: np.ndarray, pattern: str) -> np.ndarray:
    """RGB ``[n, H, W, 3]`` of pixels ``[n, H, W]`` of one colour each, as `pattern` says of each four: what a pixel lacks is the mean of
    those of its eight neighbours that have it, mirrored at the edges."""
    padded = np.pad(mosaic, ((0, 0), (1, 1), (1, 1)), "reflect").astype(np.uint16)
    made = np.empty((*mosaic.shape, 3), np.uint8)
    for channel, colour in enumerate("rgb"):
        plane = np.zeros_like(padded)
        for place in (place for place, at in enumerate(pattern) if at == colour):
            cells = (slice(None), slice(1 - place // 2, None, 2), slice(1 - place % 2, None, 2))
            plane[cells] = padded[cells]
        upright = plane[:, :-2] + plane[:, 2:]
        sides = upright[:, :, 1:-1] + plane[:, 1:-1, :-2] + plane[:, 1:-1, 2:]
        total = 4 * plane[:, 1:-1, 1:-1] + sides
        if (
            colour != "g"
        ):  # half of the pixels are green: the others have two neighbours of a colour, or four at the corners
            total += sides + upright[:, :, :-2] + upright[:, :, 2:]
        made[..., channel] = (total + 2) >> 2
    return made
