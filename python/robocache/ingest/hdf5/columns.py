"""Turns HDF5's datasets into streams of rows, texts and frames, with their clocks, for the readers of all layouts.

A dataset's declared size is believed only if the file has that many bytes. Everything that is not read is reported.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Literal

import h5py
import numpy as np

from ...feature_names import own_units
from ...frames import has_depth_word, says_depth
from ..declared import Depth, features_of, say_colors, say_unapplied, unpacked, with_unit
from ..formats import CameraOptions
from ..images import Images, Kinds, Storage, encode, is_image_of_16_bits
from ..rate import nominal_time_ns
from ..recording import Frames, Notes, Ragged, Rows, Samples, SourceError, Texts
from .datasets import Dataset, Tree, enum_words, memory_type, plain, report_words

# The bytes that are read at once.
_PART_BYTES = 32 << 20
# How many rows of varying size are read at once.
_ROWS_AT_ONCE = 64
# The largest chunks that are read, in a small file and in any file. HDF5 decodes a chunk as a whole.
_CHUNK_BYTES = 64 << 20
_MOST_CHUNK_BYTES = 512 << 20
# The most numbers of a row, since a cache keeps statistics of each number.
_MOST_FEATURES = 1 << 14
# The most numbers of a dataset without rows that becomes a column of the episodes table.
_MOST_VALUES = 64
# The most images of a camera in a recording.
_MOST_IMAGES = 1 << 22
# How many rows are examined, to decide whether a dataset has images.
_EXAMINED = 8
_IMAGE_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


# ---- clocks ----


@dataclass(frozen=True)
class Clock:
    """The stamps of a recording's rows.

    rows: the number of rows.
    time_ns: returns the stamps of rows [start, stop), int64.
    kind, attributes: as `clock` and `attributes` of :class:`Rows`.
    """

    rows: int
    time_ns: Callable[[int, int], np.ndarray]
    kind: Literal["recorded", "nominal"]
    attributes: Mapping[str, Any] = field(default_factory=dict)


def nominal(rows: int, rate_hz: float) -> Clock:
    """Returns the clock with row k at k / `rate_hz`."""
    return Clock(rows, partial(nominal_time_ns, rate_hz=rate_hz), "nominal")


# ---- the number of rows ----


def count_rows(tree: Tree, comes_first: Callable[[str], bool], beside: Sequence[str] = ()) -> tuple[int, str]:
    """Returns the number of rows that most datasets of a recording have, and the name of a dataset that has it.

    comes_first: takes a dataset's name; returns whether its number of rows is taken where several are equally frequent.
    beside: groups whose datasets have other numbers of rows, and do not count.
    """
    counted = {key: dataset.shape[0] for key, dataset in tree.datasets.items() if key.split("/")[0] not in beside}
    counts = Counter(counted.values())
    if not counts:
        return 0, ""
    most = max(counts.values())
    frequent = {key: rows for key, rows in counted.items() if counts[rows] == most}
    first = next((key for key in frequent if comes_first(key)), max(frequent, key=frequent.__getitem__))
    return frequent[first], first


def take_constants(tree: Tree, rows: int, notes: Notes, beside: Sequence[str] = ()) -> dict[str, Any]:
    """Removes from the tree the datasets that have no row for each step. Returns those of a few values as columns; reports the others.

    A dataset with nearly as many rows as the recording is damaged: it stays in the tree, and is refused later.

    rows: the number of the recording's rows.
    beside: groups whose datasets stay.
    """
    columns: dict[str, Any] = {}
    for key, dataset in list(tree.datasets.items()):
        shape = dataset.shape
        if key.split("/")[0] in beside or rows == 0 or not _is_constant(shape, rows):
            continue
        del tree.datasets[key]
        size, kind = math.prod(shape), dataset.dtype.kind
        is_text = h5py.check_string_dtype(dataset.dtype) is not None
        if 0 < size <= _MOST_VALUES and max(shape) == size and (kind in "biuf" or is_text):
            with notes.reading(f"{tree.base}: {key}", tree.where(key)):
                cells, _ = unpacked(key, np.asarray(dataset[:]), dataset.attributes, notes)
                values = [plain(cell) for cell in cells.reshape(-1).tolist()]
                columns[key] = values[0] if len(values) == 1 else values
                report_words(key, dataset.dtype, notes)
        else:
            notes.leave_out(key, f"{_type_name(dataset.dtype)} {list(shape)}: neither a row a step nor a few values")
    return columns


def _is_constant(shape: tuple[int, ...], rows: int) -> bool:
    """Whether a dataset holds for the whole recording, by its shape: it has far fewer or far more rows than the recording."""
    count = shape[0]
    if count == rows or (abs(count - rows) <= 1 and count != 1):
        return False
    if count == 1 or 2 * count <= rows:
        return True
    return count > rows if len(shape) == 1 else count >= 2 * rows


# ---- columns ----


class Column:
    """A dataset whose first dimension counts rows, as a stream.

    Args:
        stream, what: the names of the stream and of its recording.
        where: the file and the dataset's path in it, with which errors begin.
    """

    def __init__(self, stream: str, what: str, where: str, dataset: Dataset, clock: Clock, notes: Notes) -> None:
        self.stream = stream
        self.what = what
        self.where = where
        self.dataset = dataset
        self.clock = clock
        self.notes = notes
        self._type = dataset.dtype
        element, element_shape = self._type.subdtype or (self._type, ())
        self._dtype: np.dtype[Any] = element.newbyteorder("=")  # the dtype of an element
        self._shape = (*dataset.shape[1:], *element_shape)  # the shape of a row

    def samples(self, options: CameraOptions, kinds: Kinds) -> Iterator[tuple[str, Samples]]:
        """Yields the dataset in parts, and reads a part only when it is asked for. Yields nothing if the dataset is left out, skipped,
        or has no rows."""
        with self.notes.reading(f"{self.what}: {self.stream}", self.where):
            rows = self.dataset.shape[0]
            if rows != self.clock.rows:
                raise SourceError(f"{self.where}: {rows} rows, expected {self.clock.rows}")
            if rows == 0:
                return
            if not self._is_written():
                self.notes.leave_out(self.stream, "declared, never written")
                return
            words = enum_words(self._type)
            for stream, samples in self._samples(options, kinds):
                if isinstance(samples, Frames):
                    for attributes in (self.dataset.attributes, *self.dataset.above):
                        say_colors([stream], attributes, self.notes)
                if words:
                    samples = replace(samples, attributes={**samples.attributes, "words": words})
                yield stream, samples

    def _read(self, start: int, stop: int) -> np.ndarray:
        """Returns the rows [start, stop) as h5py does. Reads all rows of plain numbers without h5py's indexing, which is slower."""
        dtype, dataset = self._type, self.dataset
        if start > 0 or stop < dataset.shape[0] or dtype.kind not in "iuf" or dtype.metadata:
            rows: np.ndarray = dataset[start:stop]
            return rows
        values = np.empty(dataset.shape, dtype)
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, values, memory_type(dtype))
        return values

    def _is_written(self) -> bool:
        """Whether the file has the dataset's bytes.

        Raises:
            SourceError: the file has only some of the bytes, or a chunk is too large.
        """
        dataset = self.dataset
        stored = dataset.id.get_storage_size()
        if self.dataset.chunks is None:
            expected = math.prod(dataset.shape) * self._type.itemsize
            if 0 < stored < expected and not h5py.check_string_dtype(self._type):
                raise SourceError(f"{self.where}: expected {expected} bytes by its shape, got {stored}")
            return bool(stored or not expected)
        expected = math.prod(-(-side // chunk) for side, chunk in zip(dataset.shape, self.dataset.chunks, strict=True))
        if not expected:
            return True
        chunk_bytes = math.prod(self.dataset.chunks) * self._type.itemsize
        if stored and chunk_bytes > _CHUNK_BYTES:
            most = min(_MOST_CHUNK_BYTES, max(_CHUNK_BYTES, 8 * dataset.opened.file.id.get_filesize()))
            if chunk_bytes > most:
                raise SourceError(f"{self.where}: chunks of {chunk_bytes} bytes, expected at most {most}")
        written = dataset.id.get_num_chunks() if stored else 0
        if 0 < written < expected:
            raise SourceError(f"{self.where}: {written} of {expected} chunks were written")
        return bool(written)

    def _samples(self, options: CameraOptions, kinds: Kinds) -> Iterator[tuple[str, Samples]]:
        dtype, shape = self._dtype, self._shape
        if self._has_images():
            yield from self._images(options, kinds)
        elif h5py.check_string_dtype(self._type) and shape == ():
            yield from self._texts()
        elif h5py.check_vlen_dtype(self._type) and shape == ():
            yield from self._ragged()
        elif dtype.kind not in "biuf" or dtype.itemsize > 8:
            self.notes.leave_out(self.stream, f"of type {_type_name(self._type)}")
        elif 0 in shape:
            self.notes.leave_out(self.stream, f"rows of no values: {list(shape)} {dtype}")
        elif (layout := _layout_of_frames(dtype, shape, self.stream)) is not None:
            frames = self._frames(*layout, options, kinds)
            if frames is not None:
                yield self.stream, frames
        elif math.prod(shape) > _MOST_FEATURES:
            rows = f"rows of {list(shape)} {dtype}"
            self.notes.leave_out(self.stream, f"{rows}: neither frames nor at most {_MOST_FEATURES} numbers")
        else:
            own, above = self.dataset.attributes, self.dataset.above
            names, units = features_of(self.stream, shape, own, above, self.notes)
            attributes = {**self.clock.attributes, **units}
            for start, stop, stored in self._parts():
                values, added = unpacked(self.stream, stored, self.dataset.attributes, self.notes)
                time_ns = self.clock.time_ns(start, stop)
                yield self.stream, Rows(time_ns, values, names, self.clock.kind, {**attributes, **added})

    def _parts(self, most: int = 1 << 62) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yields for each part its first row, the row after its last, and its values. If a part cannot be read, skips and names its rows.

        most: the most rows of a part.
        """
        row_bytes = max(1, math.prod(self._shape) * self._dtype.itemsize)
        if row_bytes > 8 * _PART_BYTES:
            raise SourceError(f"{self.where}: rows of {row_bytes} bytes")
        step = max(1, min(most, _PART_BYTES // row_bytes))
        if self.dataset.chunks and self.dataset.chunks[0] < step:
            step -= step % self.dataset.chunks[0]  # a chunk in two parts would be decoded twice
        rows = self.clock.rows
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            values = None
            span = f"rows {start}-{stop - 1}" if stop > start + 1 else f"row {start}"
            with self.notes.reading(f"{self.what}: {self.stream}: {span}", f"{self.where}: {span}"):
                values = self._read(start, stop)
            if values is None:
                continue
            if values.dtype == bool:
                values = values.view(np.uint8) != 0  # a stored bool may be any byte
            yield start, stop, values.astype(values.dtype.newbyteorder("="), copy=False)

    def _texts(self) -> Iterator[tuple[str, Samples]]:
        for start, stop, values in self._parts(_ROWS_AT_ONCE):
            encoded = [
                text if isinstance(text, bytes) else str(text).encode(errors="surrogateescape") for text in values
            ]
            decoded = [text.decode(errors="backslashreplace") for text in encoded]
            if any(text.encode() != raw for text, raw in zip(decoded, encoded, strict=True)):
                self.notes.leave_out(f"{self.stream}: bytes that are no UTF-8", "shown escaped")
            yield self.stream, Texts(self.clock.time_ns(start, stop), decoded, self.clock.kind, self.clock.attributes)

    def _ragged(self) -> Iterator[tuple[str, Samples]]:
        element = np.dtype(h5py.check_vlen_dtype(self._type))
        if element.kind not in "biuf" or element.itemsize > 8:
            self.notes.leave_out(self.stream, f"rows of any length of type {_type_name(element)}")
            return
        if not element.isnative:  # h5py 3.16 does not swap the bytes of such rows
            self.notes.leave_out(self.stream, f"rows of any length of {element.str}, big-endian")
            return
        own = self.dataset.attributes
        _, units = features_of(self.stream, (), own, self.dataset.above, self.notes)
        for start, stop, values in self._parts(_ROWS_AT_ONCE):
            rows = [np.asarray(row, element) for row in values]
            offsets = np.zeros(len(rows) + 1, np.int64)
            np.cumsum([len(row) for row in rows], out=offsets[1:])
            elements, added = unpacked(self.stream, np.concatenate(rows), own, self.notes)
            attributes = {**self.clock.attributes, **units, **added}
            time_ns = self.clock.time_ns(start, stop)
            yield self.stream, Ragged(time_ns, elements, offsets, None, self.clock.kind, attributes)

    # ---- cameras ----

    def _has_images(self) -> bool:
        """Whether rows are JPEG or PNG files, perhaps padded with zeros to one length. Examines several rows, since the first may be empty
        or damaged."""
        if self._shape:
            can_be_files = len(self._shape) == 1 and self._shape[0] > len(_IMAGE_MAGIC[1]) and self._dtype == np.uint8
        else:
            can_be_files = self._dtype.kind in "OSV" and not self._dtype.names and not h5py.check_ref_dtype(self._type)
        if not can_be_files or math.prod(self._shape) * self._dtype.itemsize > _PART_BYTES:
            return False
        rows = self.dataset.shape[0]
        examined = sorted({rows * part // _EXAMINED for part in range(_EXAMINED)})
        return any(_to_bytes(self.dataset[row]).startswith(_IMAGE_MAGIC) for row in examined)

    def _images(self, options: CameraOptions, kinds: Kinds) -> Iterator[tuple[str, Samples]]:
        if self.clock.rows > _MOST_IMAGES:
            raise SourceError(f"{self.where}: {self.clock.rows} images, expected at most {_MOST_IMAGES}")
        time_ns = self.clock.time_ns(0, self.clock.rows)
        say_unapplied(self.stream, self.dataset.attributes, "image files", self.notes)
        images = Images(self.stream, self.what, self.where, time_ns, self.clock.kind, _Blobs(self.dataset).read)
        frames = images.stored(options, kinds, self.notes)
        if frames is None:
            return
        own = self.dataset.attributes
        units = own_units(own, 1) if says_depth(self.stream) else {}
        for attributes in (own | {"depth_units": units["units"]} if units else own, *self.dataset.above):
            frames = with_unit(self.stream, frames, attributes, self.notes)
        yield self.stream, replace(frames, attributes=self.clock.attributes)

    def _frames(self, is_depth: bool, channels_first: bool, options: CameraOptions, kinds: Kinds) -> Frames | None:
        """Returns the frames in their stored form; None if no frame can be read."""
        height, width, channels = (*self._shape, 1)[:3]
        if channels_first:
            channels, height, width = height, width, channels
        kinds.check(self.stream, f"{width}x{height} {channels} {self._dtype}", self.where)
        declared = None
        # One channel of 8 bits is depth only where a unit is declared; many pictures of depth have none.
        if is_depth or (channels == 1 and says_depth(self.stream)):
            declared = Depth.of(
                self.stream, self._dtype, self.dataset.attributes, self.dataset.above, self.where, self.notes
            )
            if not is_depth and not declared.is_declared:
                declared = None
            is_depth = declared is not None
        # Masks and depth must keep the exact value of every pixel.
        if is_depth or (channels == 1 and options.image_codec is None):
            storage = replace(Storage.of(options, self.stream), codec="png")
        else:
            storage = Storage.of_pixels(options, self.stream, height, width, self.notes)
        if declared is not None:
            storage = replace(storage, codec="raw" if declared.to_metres else "png")
        else:
            say_unapplied(self.stream, self.dataset.attributes, "images of 8 bits a channel", self.notes)
        if is_depth and storage.size is not None:
            self.notes.leave_out(f"{self.stream}: image_size", "depth keeps its size")
            storage = replace(storage, size=None)

        def chunks() -> Iterator[tuple[np.ndarray, Any]]:
            for start, stop, values in self._parts():
                pixels = np.moveaxis(values, 1, -1) if channels_first else values
                pixels = pixels.reshape(stop - start, height, width, channels)
                if pixels.dtype == np.int16:
                    pixels = pixels.view(np.uint16)
                    if (pixels >= 1 << 15).any():
                        span = f"rows {start}-{stop - 1}"
                        why = f"{self.where}: {span}: expected pixels of 0 and more, got negative ones"
                        self.notes.skip(f"{self.what}: {self.stream}: {span}", SourceError(why))
                        continue
                if declared is not None and pixels.dtype == np.uint8:
                    pixels = pixels.astype(np.uint16)  # a batch refuses depth of 8 bits
                if declared is not None:
                    pixels = declared.pixels(self.stream, pixels, self.notes)
                yield self.clock.time_ns(start, stop), encode(np.ascontiguousarray(pixels), storage)

        encoded = chunks()
        first = next(encoded, None)
        if first is None:
            return None
        return Frames(
            chain([first], encoded),
            unit_m=None if declared is None or declared.to_metres else declared.unit_m,
            resized=storage.resized(height, width),
            clock=self.clock.kind,
            attributes=self.clock.attributes,
        )


def _layout_of_frames(dtype: np.dtype[Any], shape: tuple[int, ...], stream: str) -> tuple[bool, bool] | None:
    """Returns whether rows of this dtype and shape are depth, and whether their channels come first; None if they are no frames."""
    if len(shape) == 3 and min(shape[:2]) >= 8 and shape[2] in (1, 3):
        channels, channels_first = shape[2], False
    elif len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 8:
        channels, channels_first = shape[0], True
    elif len(shape) == 2 and min(shape) >= 32:
        channels, channels_first = 1, False
    else:
        return None
    if dtype == np.uint8:
        return False, channels_first
    if channels != 1:
        return None
    if dtype.kind == "f":
        is_depth = has_depth_word(stream) and says_depth(stream) is not False  # not depth/confidence
        return (True, channels_first) if is_depth else None
    if dtype not in (np.uint16, np.int16) or (dtype == np.int16 and len(shape) == 2):
        return None
    # ManiSkill's depth and masks have these types. Other small arrays are numbers, such as those of a tactile sensor.
    height_and_width = shape[1:] if channels_first else shape[:2]
    return (True, channels_first) if is_image_of_16_bits(stream, height_and_width) else None


def _type_name(dtype: np.dtype[Any]) -> str:
    if h5py.check_ref_dtype(dtype):
        return "references to other objects"
    if dtype.names:
        return f"compounds of {', '.join(dtype.names)}"
    return str(dtype)


def _to_bytes(row: Any) -> bytes:
    """Returns an image's file without its padding of zeros; no JPEG or PNG file ends with a zero."""
    if isinstance(row, str):
        row = row.encode(errors="surrogateescape")
    return bytes(row if isinstance(row, bytes) else np.asarray(row).tobytes()).rstrip(b"\0")


class _Blobs:
    """Reads rows that are files, several rows at once."""

    _AT_ONCE = 16

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._start = 0
        self._rows: list[bytes] = []

    def read(self, row: int) -> bytes:
        if not self._start <= row < self._start + len(self._rows):
            self._start, self._rows = row, []
            try:
                self._rows = [_to_bytes(blob) for blob in self._dataset[row : row + self._AT_ONCE]]
            except OSError:  # one of the rows is damaged: reading this row alone shows whether it is this one
                return _to_bytes(self._dataset[row])
        return self._rows[row - self._start]
