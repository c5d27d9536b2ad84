"""Reads Zarr v2 from a folder or a zip file. An array consists of a description, and a file for each chunk.

Since a store may be malicious, nothing may be larger than its array's description says, and objects are never unpickled. A missing
chunk is reported.
"""

from __future__ import annotations

import base64
import bz2
import json
import lzma
import math
import os
import re
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numcodecs.blosc
import numcodecs.lz4
import numcodecs.zstd
import numpy as np

from ..errors import Error, FileError
from .files import check_file, list_files
from .formats.zarr import EPISODE_ENDS
from .recording import SourceError

# The most bytes of a description, of a chunk, which is read whole, and of a chunk that is decoded ahead.
_LARGEST_JSON = 2**24
_LARGEST_CHUNK = 2**28
_LARGEST_AHEAD = 2**24
# The most chunks of a row; each is a file.
_MOST_CHUNKS_PER_ROW = 2**12

# The names of files that describe a store, its groups and its arrays.
_DESCRIPTIONS = {".zarray", ".zattrs", ".zgroup", ".zmetadata"}
_CHUNK = re.compile(r"\d+([./]\d+)*")


# ---- files ----


class Store(Protocol):
    """A tree of files. A key is a path in it, such as ``data/action/.zarray``.

    thread: decodes chunks ahead.
    """

    thread: ThreadPoolExecutor

    def where(self, key: str) -> str:
        """Returns the place of a key, with which error messages begin."""

    def read(self, key: str, most: int) -> bytes | None:
        """Returns a file's bytes; None if there is no such file.

        Raises:
            SourceError: the file cannot be read, or has more than `most` bytes.
        """

    def files(self) -> list[str]:
        """Returns the keys of all files."""

    def close(self) -> None: ...


class Folder:
    """A store in a folder."""

    def __init__(self, root: Path) -> None:
        self.thread = ThreadPoolExecutor(1, "robocache-read")
        self._root = root

    def where(self, key: str) -> str:
        return str(self._root / key)

    def read(self, key: str, most: int) -> bytes | None:
        file = self._root / key
        if not os.path.lexists(file):
            return None
        check_file(file)
        with file.open("rb") as stream:
            # read(most + 1) would allocate that many bytes even for a small file, which doubles the time.
            content = stream.read(min(most, os.fstat(stream.fileno()).st_size) + 1)
        if len(content) > most:
            raise SourceError(f"{file}: expected at most {most} bytes, got {file.stat().st_size}")
        return content

    def files(self) -> list[str]:
        begin = len(os.path.join(self._root, ""))
        return [os.fspath(file)[begin:] for file in list_files(self._root).files]

    def close(self) -> None:
        self.thread.shutdown(cancel_futures=True)


class Zip:
    """A store in a zip file, at its root or in a folder.

    Raises:
        SourceError: the file is no zip file, or a member is a symlink, is encrypted, or has a path outside the archive.
    """

    def __init__(self, file: Path) -> None:
        check_file(file)
        self.thread = ThreadPoolExecutor(1, "robocache-read")
        self._file = file
        try:
            self._archive = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
            raise SourceError(f"{file}: {error}") from error
        self._members = {entry.filename: entry for entry in self._archive.infolist()}
        self.repeated = len(self._archive.infolist()) - len(self._members)
        for name, entry in self._members.items():
            if name.startswith("/") or "\\" in name or ":" in name or ".." in name.split("/"):
                raise SourceError(f"{file}: member {name!r}: expected a path inside the archive")
            if stat.S_ISLNK(entry.external_attr >> 16) or entry.flag_bits & 1:
                raise SourceError(f"{file}: member {name!r}: expected a file, got a symlink or an encrypted one")
        ends = [name for name in self._members if tuple(name.split("/")[-3:]) in EPISODE_ENDS]
        if len(ends) != 1:
            raise SourceError(f"{file}: expected one meta/episode_ends in it, found {len(ends)}")
        self._root = ends[0].rpartition("meta/episode_ends/")[0]

    def where(self, key: str) -> str:
        return f"{self._file}: {self._root}{key}"

    def read(self, key: str, most: int) -> bytes | None:
        entry = self._members.get(self._root + key)
        if entry is None:
            return None
        if entry.file_size > most:
            raise SourceError(f"{self.where(key)}: expected at most {most} bytes, got {entry.file_size}")
        try:
            with self._archive.open(entry) as stream:
                content = stream.read(entry.file_size)
                if len(content) < entry.file_size or stream.read(1):
                    raise SourceError(f"{self.where(key)}: expected {entry.file_size} bytes, it has another size")
        except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error, RuntimeError) as error:
            raise SourceError(f"{self.where(key)}: {error}") from error
        return content

    def files(self) -> list[str]:
        """Returns the keys of all files. The key of a file outside the store's folder, as by a damaged name, is its whole name."""
        return sorted(name.removeprefix(self._root) for name in self._members if not name.endswith("/"))

    def close(self) -> None:
        self.thread.shutdown(cancel_futures=True)
        self._archive.close()


def read_json(store: Store, key: str) -> dict[str, Any] | None:
    """Reads a JSON object; returns None if there is no such file. NaN becomes None, because a cache's metadata hold no NaN.

    Raises:
        SourceError: the file is not a JSON object.
    """
    content = store.read(key, _LARGEST_JSON)
    if content is None:
        return None
    try:
        value = json.loads(content, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{store.where(key)}: {error}") from error
    if not isinstance(value, dict):
        raise SourceError(f"{store.where(key)}: expected an object, got {value!r:.60}")
    return value


# ---- arrays ----


@dataclass(frozen=True)
class Contents:
    """The contents of a store, as the names of its files show them.

    arrays: the keys of all arrays with a description.
    lost: for the key of each array that has no description, but chunks or an entry in .zmetadata, the reason of the loss.
    others: the number of files that belong to no array, by folder.
    """

    arrays: list[str]
    lost: dict[str, str]
    others: dict[str, int]


def find_contents(store: Store, zmetadata: dict[str, Any]) -> Contents:
    """Finds arrays by the names of all files, because a damaged zip or copy may lack any file.

    zmetadata: the content of the store's .zmetadata.
    """
    keys = store.files()
    arrays = {key.removesuffix("/.zarray") for key in keys if key.endswith("/.zarray")}
    lost: dict[str, str] = {}
    others: Counter[str] = Counter()
    for key in keys:
        folder, _, name = key.rpartition("/")
        if name in _DESCRIPTIONS:
            continue
        owner = folder
        while owner and owner not in arrays:
            owner = owner.rpartition("/")[0]
        is_chunk = _CHUNK.fullmatch(key[len(owner) + 1 :] if owner else key.split("/", 2)[-1])
        if owner and is_chunk:
            continue
        parts = key.split("/")
        if is_chunk and len(parts) > 2:
            lost.setdefault("/".join(parts[:2]), "it has chunks, but no .zarray that describes them")
        else:
            others[owner or folder] += 1
    entries = zmetadata.get("metadata")
    for key in entries if isinstance(entries, dict) else ():
        if key.endswith("/.zarray") and key.removesuffix("/.zarray") not in arrays:
            lost.setdefault(key.removesuffix("/.zarray"), ".zmetadata names it, but it has no .zarray")
    return Contents(sorted(arrays), lost, dict(others))


@dataclass
class Array:
    """An array of rows.

    chunks: the shape of a chunk.
    decode: decodes a chunk's bytes into an array of that shape.
    fill: the value of the elements of missing chunks; None if a missing chunk is an error.
    declared_fill: the fill value as the description has it.
    attributes: the attributes whose meaning is known.
    """

    store: Store
    key: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    order: str
    separator: str
    decode: Callable[[bytes, np.ndarray], None]
    fill: Any
    declared_fill: Any
    attributes: dict[str, Any] = field(default_factory=dict)
    _held: tuple[int, np.ndarray] | None = None
    _ahead: tuple[int, Future[np.ndarray]] | None = None

    @property
    def where(self) -> str:
        return self.store.where(self.key)

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Returns rows, ``[stop - start, ...]``, in the machine's byte order. If rows are read in order, each chunk is decoded once, and
        a thread decodes the next chunk ahead unless it is large.

        Raises:
            SourceError: a chunk is missing or does not decode; the error names it.
        """
        length = self.chunks[0]
        if start // length == (stop - 1) // length and start < stop and self.dtype.isnative:
            rows = self._chunk_of_rows(start // length)[start % length : start % length + stop - start]
            if rows.flags.c_contiguous:
                return rows
        out = np.empty((stop - start, *self.shape[1:]), self.dtype.newbyteorder("="))
        for number in range(start // length, -(-stop // length)):
            first, last = max(start, number * length), min(stop, (number + 1) * length)
            inside = slice(first - number * length, last - number * length)
            # The chunk has no name here, so that it does not stay in memory beside the next one.
            out[first - start : last - start] = self._chunk_of_rows(number)[inside]
        return out

    def _chunk_of_rows(self, number: int) -> np.ndarray:
        """Returns the rows of the chunks from row ``number * chunks[0]`` on, and keeps them until other rows are read."""
        if self._held is not None and self._held[0] == number:
            return self._held[1]
        is_next = number == (0 if self._held is None else self._held[0] + 1)
        self._held = None  # frees the old chunk, so that only one is in memory
        ahead, self._ahead = self._ahead, None
        rows = ahead[1].result() if ahead is not None and ahead[0] == number else self._decode_rows(number)
        self._held = number, rows
        # A chunk may be wider than the rows in it.
        size = max(rows.nbytes, math.prod(self.chunks) * self.dtype.itemsize)
        if is_next and size <= _LARGEST_AHEAD and (number + 1) * self.chunks[0] < self.shape[0]:
            with suppress(RuntimeError):  # the system has no thread for it, so the rows are read later
                self._ahead = number + 1, self.store.thread.submit(copy_context().run, self._decode_rows, number + 1)
        return rows

    def _decode_rows(self, number: int) -> np.ndarray:
        """Decodes the chunks that have these rows, ``[chunks[0], ...]``."""
        counts = [-(-size // chunk) for size, chunk in zip(self.shape[1:], self.chunks[1:], strict=True)]
        if all(count == 1 for count in counts):
            inside = (slice(None), *map(slice, self.shape[1:]))
            return self._decode_chunk((number,) + (0,) * len(counts))[inside]
        out = np.empty((self.chunks[0], *self.shape[1:]), self.dtype)
        for index in product(*map(range, counts)):
            sides = zip(index, self.chunks[1:], strict=True)
            block = (slice(None), *(slice(i * size, (i + 1) * size) for i, size in sides))
            part = out[block]
            part[...] = self._decode_chunk((number, *index))[tuple(map(slice, part.shape))]
        return out

    def _decode_chunk(self, index: tuple[int, ...]) -> np.ndarray:
        key = f"{self.key}/{self.separator.join(map(str, index))}"
        size = math.prod(self.chunks) * self.dtype.itemsize
        content = self.store.read(key, 2 * size + 2**16)
        if content is None:
            if self.fill is None:
                raise SourceError(
                    f"{self.store.where(key)}: no such chunk; if the writer left out chunks full of the fill value, "
                    "missing_chunks='fill' (--missing-chunks fill) reads them"
                )
            return np.full(self.chunks, self.fill, self.dtype)
        out = np.empty(self.chunks if self.order == "C" else self.chunks[::-1], self.dtype)
        try:
            self.decode(content, out)
        except Exception as error:  # codecs raise their own types
            cause = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
            raise SourceError(f"{self.store.where(key)}: {cause}") from error
        return out if self.order == "C" else out.T


def open_array(store: Store, key: str, fills: bool) -> Array | str:
    """Opens an array; if it cannot become a stream, returns the reason. With `fills`, missing chunks have the fill value.

    Raises:
        SourceError: its description is not of zarr v2, or its chunks are too large.
    """
    where = store.where(f"{key}/.zarray")
    description = read_json(store, f"{key}/.zarray")
    if description is None:
        raise SourceError(f"{where}: no such file")
    if description.get("zarr_format") != 2:
        raise SourceError(f"{where}: expected zarr_format 2, got {description.get('zarr_format')!r}")
    sides = [description.get(name) for name in ("shape", "chunks")]
    shape, chunks = _parse_sizes(sides[0], 0), _parse_sizes(sides[1], 1)
    if shape is None or chunks is None or len(shape) != len(chunks):
        raise SourceError(f"{where}: expected shape and chunks, got {sides[0]!r:.60}, {sides[1]!r:.60}")
    kind, filters = description.get("dtype"), description.get("filters")
    if not shape:
        return "a single number"
    if not isinstance(kind, str):
        return "a structure"
    try:
        dtype = np.dtype(kind)
    except TypeError as error:
        raise SourceError(f"{where}: dtype: {error}") from error
    if dtype.kind not in "biufUS" or dtype.itemsize == 0 or (dtype.kind == "f" and dtype.itemsize > 8):
        return f"{'objects' if dtype.hasobject else 'not numeric'}: {kind}"
    if dtype.kind in "US" and math.prod(shape[1:]) != 1:
        return f"texts {list(shape[1:])} a row"
    if filters:
        return f"filters: {filters!r:.60}"
    size = max(math.prod(chunks), chunks[0] * math.prod(shape[1:])) * dtype.itemsize
    if size > _LARGEST_CHUNK:
        raise SourceError(f"{where}: expected chunks of at most {_LARGEST_CHUNK} bytes, got {size} in {list(chunks)}")
    count = math.prod(-(-side // chunk) for side, chunk in zip(shape[1:], chunks[1:], strict=True))
    if count > _MOST_CHUNKS_PER_ROW:
        raise SourceError(
            f"{where}: expected rows in at most {_MOST_CHUNKS_PER_ROW} chunks, got {count} of {list(chunks)}"
        )
    order, separator = description.get("order"), description.get("dimension_separator", ".")
    if order not in ("C", "F") or separator not in (".", "/"):
        expected = "order C or F and dimension_separator . or /"
        raise SourceError(f"{where}: expected {expected}, got {order!r}, {separator!r}")
    compressor = description.get("compressor")
    try:
        decode = find_decoder(compressor)
        fill = _parse_fill(description.get("fill_value"), dtype) if fills else None
    except (TypeError, ValueError, OverflowError) as error:
        raise SourceError(f"{where}: {error}") from error
    if decode is None:
        return f"compressor {compressor!r:.60}"
    return Array(store, key, shape, chunks, dtype, order, separator, decode, fill, description.get("fill_value"))


def _parse_fill(value: Any, dtype: np.dtype[Any]) -> Any:
    """Returns a description's fill value as an element of the array; None if there is none. A description has bytes in base64.

    Raises:
        ValueError, TypeError, OverflowError: the array cannot hold the value.
    """
    if value is None:
        return None
    if dtype.kind in "SU" and value == 0:
        value = ""
    if dtype.kind == "S" and isinstance(value, str):
        value = base64.b64decode(value, validate=True)
    fill = np.array(value).astype(dtype)[()]
    if dtype.kind != "f" and fill != value:
        raise ValueError(f"fill_value: expected a value of {dtype}, got {value!r:.60}")
    return fill


def _parse_sizes(sizes: Any, lowest: int) -> tuple[int, ...] | None:
    """Returns the sizes of an array's dimensions; None if they are no list of whole numbers of at least `lowest`."""
    if not isinstance(sizes, list) or len(sizes) > 32 or not all(type(size) is int for size in sizes):
        return None
    return tuple(sizes) if all(lowest <= size < 2**62 for size in sizes) else None


# ---- codecs ----


def find_decoder(compressor: Any) -> Callable[[bytes, np.ndarray], None] | None:
    """Returns the decoder of a compressor; None if the compressor is unknown.

    compressor: as the array's description gives it.

    Raises:
        Error: the package that decodes it is missing.
    """
    if compressor is None:
        return _copy
    name = str(compressor.get("id")) if isinstance(compressor, dict) else ""
    if name in _DECODERS:
        return _DECODERS[name]
    if name in _IMAGE_DECODERS:
        try:
            import imagecodecs
        except ImportError as error:
            raise Error(f"compressor {name}: {error}; pip install imagecodecs") from error
        decode = _decode_jpeg2k if name == "imagecodecs_jpeg2k" else _decode_image
        return partial(decode, getattr(imagecodecs, _IMAGE_DECODERS[name]))
    return None


def _expect(size: int, out: np.ndarray) -> None:
    """Checks a declared size, before memory for it is allocated."""
    if size != out.nbytes:
        raise Error(f"expected {out.nbytes} bytes in the chunk, it says {size}")


def _copy(content: bytes, out: np.ndarray) -> None:
    _expect(len(content), out)
    out.reshape(-1).view(np.uint8)[:] = np.frombuffer(content, np.uint8)


def _decode_blosc(content: bytes, out: np.ndarray) -> None:
    if len(content) < 16:
        raise Error(f"expected a header of Blosc of 16 bytes, got {len(content)}")
    size, _, compressed = struct.unpack_from("<III", content, 4)
    _expect(size, out)
    if compressed != len(content):  # otherwise Blosc would read beyond the end
        raise Error(f"expected {compressed} bytes, as it says, got {len(content)}")
    numcodecs.blosc.decompress(content, out)


def _decode_lz4(content: bytes, out: np.ndarray) -> None:
    if len(content) < 4:
        raise Error(f"expected a header of 4 bytes, got {len(content)}")
    _expect(struct.unpack_from("<i", content)[0], out)
    numcodecs.lz4.decompress(content, out)


def _decode_zstd(content: bytes, out: np.ndarray) -> None:
    """Decodes a frame that declares its size, as numcodecs writes it, and refuses others."""
    if len(content) < 5 or content[:4] != b"\x28\xb5\x2f\xfd":
        raise Error("expected a frame of Zstandard")
    flags = content[4]
    is_single_segment, dictionary_width = flags >> 5 & 1, (0, 1, 2, 4)[flags & 3]
    width = (1 if is_single_segment else 0, 2, 4, 8)[flags >> 6]
    if width == 0:
        raise Error("expected a frame of Zstandard that says its size")
    offset = 5 + (not is_single_segment) + dictionary_width
    size = int.from_bytes(content[offset : offset + width], "little") + (256 if width == 2 else 0)
    _expect(size, out)
    numcodecs.zstd.decompress(content, out)


def _decode_stream(make: Callable[[], Any], content: bytes, out: np.ndarray) -> None:
    stream = make()
    decoded = stream.decompress(content, out.nbytes + 1)
    if not stream.eof:
        raise Error(f"expected {out.nbytes} bytes in the chunk, it has more or lacks its end")
    _copy(decoded, out)


def _decode_image(decode: Callable[..., Any], content: bytes, out: np.ndarray) -> None:
    """Decodes a chunk that is one image."""
    decode(content, out=out.squeeze())


def _decode_jpeg2k(decode: Callable[..., Any], content: bytes, out: np.ndarray) -> None:
    """Decodes a chunk that is a JPEG 2000. Checks its size first, because the decoder allocates memory before it compares the size with
    that of `out`."""
    start = content.find(b"\xff\x4f\xff\x51")
    if start < 0 or len(content) < start + 24:
        raise Error("expected a JPEG 2000")
    right, bottom, left, top = struct.unpack_from(">4I", content, start + 8)
    shape = out.squeeze().shape
    if (bottom - top, right - left) != shape[:2]:
        raise Error(f"expected an image {list(shape)}, got {right - left}x{bottom - top}")
    _decode_image(decode, content, out)


_DECODERS: dict[str, Callable[[bytes, np.ndarray], None]] = {
    "blosc": _decode_blosc,
    "lz4": _decode_lz4,
    "zstd": _decode_zstd,
    "zlib": partial(_decode_stream, zlib.decompressobj),
    "gzip": partial(_decode_stream, partial(zlib.decompressobj, 31)),
    "bz2": partial(_decode_stream, bz2.BZ2Decompressor),
    "lzma": partial(_decode_stream, partial(lzma.LZMADecompressor, memlimit=2**28)),
}
_IMAGE_DECODERS = {f"imagecodecs_{name}": f"{name}_decode" for name in ("jpegxl", "jpeg2k", "png")}


def parts(start: int, stop: int, row_bytes: int, most: int) -> Iterator[tuple[int, int]]:
    """Yields the begin and the end of parts of the rows from `start` to `stop`, of at most `most` bytes or one row."""
    step = max(1, most // max(1, row_bytes))
    for first in range(start, stop, step):
        yield first, min(first + step, stop)


def open_store(source: Path) -> Store:
    """Opens the store in a folder or a zip file.

    Raises:
        FileError: it cannot be opened.
    """
    try:
        return Folder(source) if source.is_dir() else Zip(source)
    except SourceError as error:
        raise FileError(str(error)) from error
