"""Encodes a camera's frames for the cache, and reads frames that are JPEG or PNG files in the source.

`CameraOptions` are the user's options. :class:`Storage`, made of them, says how frames are stored.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, cast

import numpy as np

from .. import frames
from .._printable import ranges
from ..errors import Error, FileError
from ..feature_words import known_unit
from ..ops.image_batch import image_batch
from ..turns import turn_file, turn_of_file
from .budget import check_size
from .depth import is_tiff, read_tiff
from .formats import CameraOptions
from .recording import Frames, Notes, SourceError, naming

# Images are read, checked and written in chunks of this many.
_AT_ONCE = 64
# Arrays with a side below this are probably values of a sensor and no pictures.
_SMALL = 32
# A chunk ends earlier if its decoded images exceed this many bytes.
_PIXELS_AT_ONCE = 128 << 20


@dataclass(frozen=True)
class Storage:
    """How frames are stored.

    codec, quality: "jpeg" with a quality, "png" or "raw".
    size: (height, width), or None to keep the size.
    fit: how frames are resized to `size`.
    has_labels: whether pixels are labels; a resized frame then has the label of the nearest pixel.
    """

    codec: Literal["jpeg", "png", "raw"]
    quality: int
    size: tuple[int, int] | None
    fit: str
    has_labels: bool = False

    @classmethod
    def of(cls, options: CameraOptions, camera: str) -> Storage:
        """Returns the storage of a camera. Without a codec of the user, its name decides whether pixels must stay exact."""
        has_labels = frames.is_labels(camera)
        must_be_exact = has_labels or frames.is_measured(camera)
        codec, _, quality = (options.image_codec or ("png" if must_be_exact else "jpeg")).partition(":")
        size = None
        if options.image_size != "keep":
            width, height = map(int, options.image_size.split("x"))
            size = height, width
        return cls(cast(Any, codec), int(quality or 95), size, options.image_fit, has_labels)

    def report_loss(self, camera: str, notes: Notes) -> None:
        """Reports that pixels which are exact in the source are stored with a loss."""
        why = f"stored as JPEG of quality {self.quality}; --image-codec png keeps them exact"
        notes.assume("pixels", why, camera)

    @classmethod
    def of_pixels(cls, options: CameraOptions, camera: str, height: int, width: int, notes: Notes) -> Storage:
        """Returns the storage of uint8 frames that are arrays in the source. By default small ones stay exact; others become JPEGs, and
        the loss is reported."""
        storage = cls.of(options, camera)
        if options.image_codec is None and storage.codec == "jpeg":
            if min(height, width) < _SMALL:
                return replace(storage, codec="png")
            storage.report_loss(camera, notes)
        return storage

    @property
    def for_depth(self) -> Storage:
        """This storage for depth: lossless and never resized."""
        return replace(self, codec="raw" if self.codec == "raw" else "png", size=None)

    def resized(self, height: int, width: int) -> dict[str, Any] | None:
        """Returns the stream's attribute `resized` for frames of this original size; None if they keep the size."""
        if self.size is None:
            return None
        return {"size": list(self.size), "fit": self.fit, "from": [height, width]}

    def frame_bytes(self, height: int, width: int) -> int:
        """Returns an upper bound of a stored frame's bytes. A JPEG of quality 95 is smaller than a quarter of the pixels' bytes."""
        height, width = self.size or (height, width)
        return max(1, height * width * 3 // (4 if self.codec == "jpeg" else 1))


def encode(images: np.ndarray, storage: Storage) -> frames.Encoded:
    """Encodes frames ``[n, H, W, C]`` for storage. Frames that are resized must be uint8."""
    if storage.size is not None:
        if images.dtype != np.uint8:
            raise Error(
                f"frames of {images.dtype} are not resized; image_size='keep' (--image-size keep) takes them as they are"
            )
        interpolation = "nearest" if storage.has_labels else "bilinear"
        images = image_batch(
            images, size=storage.size, fit=storage.fit, interpolation=interpolation, dtype="uint8", layout="hwc"
        )
    return frames.encode(images, codec=storage.codec, quality=storage.quality)


def decode(encoded: frames.Encoded, rows: Sequence[int]) -> np.ndarray:
    """Returns the pixels of the given rows, ``[rows, H, W, C]``."""
    return frames.decode(encoded.codec, encoded.data, encoded.offsets, encoded.shape, encoded.dtype, rows)


def exchange_red_and_blue(camera: Frames, where: str) -> Iterator[tuple[np.ndarray, np.ndarray | frames.Encoded]]:
    """Yields a camera's chunks with red and blue exchanged. JPEGs and PNGs are decoded and encoded again."""
    for time_ns, images in camera.chunks:
        encoded = frames.take(images) if isinstance(images, list) else images
        is_plane = isinstance(encoded, np.ndarray) and encoded.ndim == 3  # [n, H, W]
        channels = 1 if is_plane else encoded.shape[-1]
        if channels != 3:
            raise FileError(f"{where}: channels: expected frames of three, got {channels}")
        if isinstance(encoded, np.ndarray):
            yield time_ns, np.ascontiguousarray(encoded[..., ::-1])
            continue
        pixels = decode(encoded, range(len(time_ns)))
        exchanged = np.ascontiguousarray(pixels[..., ::-1])
        yield time_ns, frames.encode(exchanged, codec=encoded.codec, quality=camera.quality)


def with_16_bits(camera: Frames) -> Iterator[tuple[np.ndarray, np.ndarray | frames.Encoded]]:
    """Yields the chunks of a camera of one channel of 8 bits as uint16. JPEGs and PNGs are decoded, and become PNGs."""
    for time_ns, images in camera.chunks:
        encoded = frames.take(images) if isinstance(images, list) else images
        if isinstance(encoded, np.ndarray):
            yield time_ns, encoded.astype(np.uint16)
            continue
        pixels = decode(encoded, range(len(time_ns))).astype(np.uint16)
        yield time_ns, frames.encode(pixels, codec="raw" if encoded.codec == "raw" else "png")


class Kinds:
    """The kind of each camera's frames, such as their size. All frames of a camera must have the kind of its first frame."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, object]] = {}

    def check(self, camera: str, kind: str, where: object) -> None:
        """Raises SourceError, which names both kinds, if `kind` differs from that of the camera's first frame.

        where: the place of the frame in the source, for errors.
        """
        first_kind, first_where = self._first.setdefault(camera, (kind, where))
        if kind != first_kind:
            raise SourceError(
                f"{where}: frames of {kind}, but of {first_kind} in {first_where}; a cache of their own, in a list of Sources, takes these"
            )


@dataclass(frozen=True)
class Images:
    """A camera's rows in one recording, each a JPEG or PNG file.

    camera, what, where: the camera's name, the recording's name, and the beginning of error messages.
    time_ns, clock: as in :class:`Rows`.
    read: takes the index of a row, and returns its file; if it raises, the row is skipped and named.
    numbers: the rows' numbers in the source, for errors, if these rows are only a part of the source's rows.
    """

    camera: str
    what: str
    where: object
    time_ns: np.ndarray
    clock: Literal["recorded", "nominal"]
    read: Callable[[int], bytes]
    numbers: Sequence[int] | None = None

    def stored(self, options: CameraOptions, kinds: Kinds, notes: Notes) -> Frames | None:
        """Returns the frames in their stored form; None if no row can be read."""
        chunks = self._chunks(options, kinds, notes)
        first = next(chunks, None)
        if first is None:
            return None
        _, _, resized = first
        pairs = ((time_ns, images) for time_ns, images, _ in chain([first], chunks))
        return Frames(pairs, resized=resized, clock=self.clock)

    def _chunks(
        self, options: CameraOptions, kinds: Kinds, notes: Notes
    ) -> Iterator[tuple[np.ndarray, frames.Encoded, dict[str, Any] | None]]:
        """Yields for each chunk its stamps, its frames, and their attribute `resized`."""
        storage = Storage.of(options, self.camera)
        start = 0
        while start < len(self.time_ns):
            lost: dict[int, SourceError] = {}
            chunk = range(start, min(start + _AT_ONCE, len(self.time_ns)))
            rows, encoded, start = self._read_rows(chunk, kinds, notes, lost)
            if lost:
                notes.skip(
                    f"{self.what}: {self.camera}: rows {ranges(list(map(self._number, sorted(lost))))}", lost[min(lost)]
                )
            if encoded is None:
                continue
            for why in encoded.reencoded:
                notes.leave_out(f"{self.camera}: JPEGs as they were", f"encoded anew: {why}")
            height, width, _ = encoded.shape
            if storage.size is not None or options.image_codec is not None:
                pixels = decode(encoded, range(len(rows)))
                has_codec = storage.has_labels or options.image_codec is not None
                new_storage = storage if has_codec else replace(storage, codec=cast(Any, encoded.codec))
                encoded = encode(pixels, new_storage)
            yield self.time_ns[rows], encoded, storage.resized(height, width)

    def _read_rows(
        self, rows: range, kinds: Kinds, notes: Notes, lost: dict[int, SourceError]
    ) -> tuple[list[int], frames.Encoded | None, int]:
        """Returns the readable rows, their frames (None without such rows), and the next row to read. Adds the other rows to `lost`. A
        chunk of large frames ends early."""
        files: dict[int, bytes] = {}
        decoded_bytes, stop = 0, rows.stop
        for row in rows:
            if decoded_bytes > _PIXELS_AT_ONCE:
                stop = row
                break
            with self._collect_error(row, lost):
                file = self.read(row)
                height, width, size = _read_size(file)
                check_size(self._location(row), f"a frame of {width}x{height}", size)
                if frames.has_palette(file):
                    file = self._without_palette(file, notes)
                if turn := turn_of_file(file):
                    file = turn_file(file, turn)
                    notes.leave_out(f"{self.camera}: images as stored in the files", f"{turn}, as EXIF says")
                files[row] = file
                decoded_bytes += size
        try:
            encoded = frames.take(list(files.values()))
            kinds.check(self.camera, _kind(encoded), self.where)
        except Error:  # the files are checked one by one, to find those with an error
            readable: dict[int, bytes] = {}
            for row, file in files.items():
                with self._collect_error(row, lost):
                    kinds.check(self.camera, _kind(frames.take([file])), self._location(row))
                    readable[row] = file
            return list(readable), frames.take(list(readable.values())) if readable else None, stop
        return list(files), encoded, stop

    def _without_palette(self, file: bytes, notes: Notes) -> bytes:
        """Returns a PNG with a palette: if it has labels, as a PNG of its indices; else unchanged, since it is decoded to colours."""
        if frames.is_labels(self.camera):
            notes.leave_out(f"{self.camera}: colours of a palette", "the indices, which are the labels, are kept")
            return frames.indices_of(file)
        why = (
            "the colours of PNGs with a palette are kept, not its indices: if these are the classes of a mask, write them as grey "
            "PNGs, or name the camera with mask, label or segmentation"
        )
        notes.assume(self.camera, why, self.camera)
        return file

    @contextmanager
    def _collect_error(self, row: int, lost: dict[int, SourceError]) -> Iterator[None]:
        """Adds the row to `lost` if the block raises SourceError."""
        try:
            with naming(self._location(row)):
                yield
        except SourceError as error:
            lost[row] = error

    def _location(self, row: int) -> str:
        return f"{self.where}: {self.camera}: row {self._number(row)}"

    def _number(self, row: int) -> int:
        return row if self.numbers is None else self.numbers[row]


def _read_size(file: bytes) -> tuple[int, int, int]:
    """Returns the height, the width and the bytes of the decoded image from the header of a PNG or JPEG; zeros for other files, which
    decoding refuses."""
    if file[:8] == b"\x89PNG\r\n\x1a\n" and len(file) > 25:
        width, height, depth, color = struct.unpack_from(">IIBB", file, 16)
        channels = {0: 1, 4: 2, 6: 4}.get(color, 3)  # by PNG's colour types
        return height, width, height * width * channels * (1 + (depth > 8))
    offset = 2
    while file[:2] == b"\xff\xd8" and offset + 9 < len(file) and file[offset] == 0xFF:
        marker = file[offset + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a start of frame, SOF0 to SOF15
            height, width, channels = struct.unpack_from(">HHB", file, offset + 5)
            return height, width, height * width * channels
        offset += 1 if marker == 0xFF else 2 + int.from_bytes(file[offset + 2 : offset + 4], "big")
    return 0, 0, 0


def _kind(encoded: frames.Encoded) -> str:
    height, width, _ = encoded.shape
    return f"{width}x{height} {encoded.color_space} {encoded.dtype} in {encoded.codec}"


@dataclass(frozen=True)
class DepthImages:
    """A depth camera's rows in one recording, each a TIFF or PNG file.

    camera, what, where, time_ns, clock, read: as in :class:`Images`.
    facts: the source's attributes of the camera. Their ``depth_unit`` is "mm" or "m"; without it, uint16 is taken as millimetres and
        float32 as metres.
    """

    camera: str
    what: str
    where: object
    time_ns: np.ndarray
    clock: Literal["recorded", "nominal"]
    read: Callable[[int], bytes]
    facts: Mapping[str, Any]

    def stored(self, kinds: Kinds, notes: Notes) -> Frames | None:
        """Returns uint16 frames as PNGs with their unit, float32 frames in metres; None if no row can be read."""
        declared = self.facts.get("depth_unit")
        unit = known_unit(declared) if isinstance(declared, str) else declared
        if (unit is None) != (declared is None) or unit not in (None, "m", "mm"):
            notes.leave_out(self.camera, f"depth in depth_unit {declared!r}: expected m or mm")
            return None
        chunks = self._chunks(unit, kinds, notes)
        first = next(chunks, None)
        if first is None:
            return None
        _, images = first
        unit_m = None if images.dtype == np.float32 else 1.0 if unit == "m" else 0.001
        if unit is None:
            assumption = "metres, since it is float32" if unit_m is None else "millimetres, since it has 16 bits"
            notes.assume(f"{self.camera}: depth without a depth_unit", assumption, self.camera)
        return Frames(chain([first], chunks), unit_m=unit_m, clock=self.clock)

    def _chunks(self, unit: Any, kinds: Kinds, notes: Notes) -> Iterator[tuple[np.ndarray, frames.Encoded]]:
        for start in range(0, len(self.time_ns), _AT_ONCE):
            rows, images, lost = list[int](), list[np.ndarray](), dict[int, SourceError]()
            for row in range(start, min(start + _AT_ONCE, len(self.time_ns))):
                try:
                    with naming(f"{self.where}: {self.camera}: row {row}"):
                        image = self._read(row)
                        kinds.check(self.camera, f"{image.shape[1]}x{image.shape[0]} {image.dtype}", self.where)
                except SourceError as error:
                    lost[row] = error
                else:
                    rows.append(row)
                    images.append(image)
            if lost:
                notes.skip(f"{self.what}: {self.camera}: rows {ranges(sorted(lost))}", lost[min(lost)])
            if not rows:
                continue
            pixels = np.stack(images)[..., None]
            if pixels.dtype == np.float32 and unit == "mm":
                pixels = pixels / np.float32(1000)
            codec = "raw" if pixels.dtype == np.float32 else "png"
            yield self.time_ns[rows], frames.encode(pixels, codec=codec)

    def _read(self, row: int) -> np.ndarray:
        """Reads a row as uint16 or float32 ``[H, W]``."""
        data = self.read(row)
        if is_tiff(data):
            return read_tiff(data)
        encoded = frames.take([data])
        if encoded.shape[2] != 1 or encoded.dtype != np.uint16:
            raise Error(f"{_kind(encoded)}: expected depth, uint16 or float32 of one channel")
        return decode(encoded, range(1))[0, ..., 0]


def is_image_of_16_bits(name: str, sides: Sequence[int]) -> bool:
    """Whether arrays of 16 bits and one channel are images: their name has a word for depth or labels, or they are at least
    32x32. Smaller arrays are numbers, such as those of a tactile sensor."""
    return min(sides) >= _SMALL or frames.says_depth(name) is True or frames.is_labels(name)


def store_pixels(
    camera: str,
    time_ns: np.ndarray,
    pixels: np.ndarray,
    options: CameraOptions,
    clock: Literal["recorded", "nominal"],
    notes: Notes,
) -> Frames:
    """Encodes frames that are arrays ``[n, H, W]`` or ``[n, H, W, C]`` in the source.

    uint8 is stored as the options say. uint16 and float32 are depth, which is never resized: uint16 becomes PNG, float32 stays raw.
    """
    if pixels.dtype == np.uint8:
        storage = Storage.of_pixels(options, camera, pixels.shape[1], pixels.shape[2], notes)
    else:
        codec: Literal["png", "raw"] = "png" if pixels.dtype == np.uint16 else "raw"
        storage = replace(Storage.of(options, camera), codec=codec, size=None)
    images = pixels[..., None] if pixels.ndim == 3 else pixels
    resized = storage.resized(*images.shape[1:3])
    return Frames([(time_ns, encode(images, storage))], resized=resized, clock=clock)
