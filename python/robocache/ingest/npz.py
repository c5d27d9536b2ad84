"""Reads NumPy's .npz files. A file may be made to do harm, so nothing is unpickled, and an array that differs in size from its header is
refused."""

from __future__ import annotations

import io
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from ..errors import Error
from .budget import check_size
from .files import check_file

# The bytes of rows that are read at once.
_AT_ONCE = 2**24
# The most bytes of a compressed array that is held in memory, and of all held arrays of a file. A file of at most _HELD bytes is read
# whole, and its uncompressed arrays of any size are held.
_SMALL, _HELD = 2**22, 2**25
# For each version of .npy: how many bytes the header's length has, and the function that reads the header. The length is checked before
# that, since NumPy refuses a header that is too long only after reading it.
_HEADERS = {(1, 0): (2, np.lib.format.read_array_header_1_0), (2, 0): (4, np.lib.format.read_array_header_2_0)}
_LONGEST_HEADER = 10_000
# The most bytes before the header: magic, version and the header's length.
_PREFIX = 12
# The header before a zip file's member: signature, flags, and the lengths of the name and of the extra field. Only members with these
# flags at most are read without zipfile: sizes follow the member (8), the name is in UTF-8 (0x800).
_LOCAL_HEADER = struct.Struct("<4s2xH18xHH")
_PLAIN_FLAGS = 0x808
# Matches the header of plain numbers as NumPy writes it. NumPy's own parser takes as long as reading a small array.
_SIDE = rb"(?:0|[1-9]\d{0,17})"
_PLAIN_HEADER = re.compile(
    rb"\{'descr': '([<>][fiu][248]|\|[iub]1)', 'fortran_order': (False|True), 'shape': \((|%b,|%b(?:, %b)+)\), \} *\n"
    % (_SIDE, _SIDE, _SIDE)
)


def read_npz(file: Path) -> dict[str, np.ndarray]:
    """Returns all arrays of a file, in the order of their names.

    Raises:
        Error: an array has objects, is larger than :mod:`budget` allows, or differs in size from its header.
        OSError, zipfile.BadZipFile, zlib.error, ValueError: the file does not exist or is damaged.
    """
    with open_npz(file) as archive:
        for error in archive.lost.values():
            raise error
        return {name: archive.read(name) for name in archive.entries}


@dataclass(frozen=True)
class Entry:
    """The header of an array. What it claims is checked when the array is read.

    is_fortran: whether the values are in Fortran order.
    header_bytes: the length of everything before the values.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    header_bytes: int


class Npz:
    """An open file.

    entries: the arrays by name, in the order of their names.
    lost: the error of each member that is no array, or is damaged before its first value.
    """

    def __init__(self, archive: zipfile.ZipFile, content: bytes | None) -> None:
        self._archive = archive
        self._content = content
        self._members: dict[str, zipfile.ZipInfo] = {}
        self._held: dict[str, bytes | memoryview] = {}  # arrays that are held in memory
        self._held_bytes = 0
        self.entries: dict[str, Entry] = {}
        self.lost: dict[str, Exception] = {}
        for member in sorted(archive.infolist(), key=lambda member: member.filename):
            try:
                self._add(member)
            except Exception as error:  # zipfile, zlib and NumPy raise many types
                self.lost[member.filename] = error

    def _add(self, member: zipfile.ZipInfo) -> None:
        name = member.filename.removesuffix(".npy")
        if name == member.filename or name in self.entries:
            raise Error(f"{member.filename!r}: expected arrays (*.npy), each once")
        self._members[name] = member
        self._hold(name)
        held = self._held.get(name)
        with self._open(name) if held is None else io.BytesIO(held[: _LONGEST_HEADER + _PREFIX]) as stream:
            self.entries[name] = _read_header(stream, member.filename)

    def _hold(self, name: str) -> None:
        """Holds an array in memory, so that it is opened once, if it is small or _find_stored() returns it. An array that cannot be read
        is not held; reading its rows raises the error."""
        member = self._members[name]
        size = member.file_size
        if self._held_bytes + size > _HELD:
            return
        held: bytes | memoryview | None = _find_stored(self._content, member) if self._content is not None else None
        if held is None and size <= _SMALL:
            with suppress(Exception), self._open(name) as stream:
                held = stream.read(size + 1)
        if held is not None and len(held) == size:
            self._held[name] = held
            self._held_bytes += size

    def _open(self, name: str) -> BinaryIO:
        return cast(BinaryIO, self._archive.open(self._members[name]))

    def read(self, name: str) -> np.ndarray:
        """Returns a whole array.

        Raises:
            Error: the array is larger than :mod:`budget` allows, or differs in size from its header.
        """
        entry = self.entries[name]
        size = math.prod(entry.shape) * entry.dtype.itemsize
        check_size(name, f"{entry.dtype} {list(entry.shape)}", size)
        (array,) = self.parts(name, size)
        return array if array.flags.aligned else array.copy()

    def parts(self, name: str, at_once: int = _AT_ONCE) -> Iterator[np.ndarray]:
        """Yields an array in parts of about `at_once` bytes, at least one part. A part of an array in C order may be a view of the file's
        bytes, and then unaligned. An array in Fortran order is one part.

        Raises:
            Error: the array differs in size from its header, or a part is larger than :mod:`budget` allows.
        """
        entry = self.entries[name]
        rows = entry.shape[0] if entry.shape else 1
        row_bytes = math.prod(entry.shape[1:]) * entry.dtype.itemsize
        step = max(1, rows if entry.is_fortran or not row_bytes else at_once // row_bytes)
        check_size(name, f"{entry.dtype} {list(entry.shape)}", min(step, rows) * row_bytes)
        with self._reader(name) as read:
            read(entry.header_bytes)
            for first in range(0, max(rows, 1), step):
                count = min(step, rows - first)
                content = read(count * row_bytes)
                if len(content) < count * row_bytes:
                    raise Error(f"{name}: expected {entry.dtype} {list(entry.shape)}, it ends in row {first}")
                shape = (count, *entry.shape[1:]) if entry.shape else ()
                array = np.frombuffer(content, entry.dtype).reshape(shape, order="F" if entry.is_fortran else "C")
                yield array.copy() if entry.is_fortran and not array.flags.aligned else array
            if len(read(1)):
                raise Error(f"{name}: expected {entry.dtype} {list(entry.shape)}, there is more")

    @contextmanager
    def _reader(self, name: str) -> Iterator[Callable[[int], bytes | memoryview]]:
        """Yields a function that returns the next bytes of an array's file, as many as it is asked for; without a copy if the file is
        held in memory."""
        held = self._held.get(name)
        if held is None:
            with self._open(name) as stream:
                yield stream.read
            return
        view, offset = memoryview(held), 0

        def read(size: int) -> memoryview:
            nonlocal offset
            offset += size
            return view[offset - size : offset]

        yield read


@contextmanager
def open_npz(file: Path) -> Iterator[Npz]:
    """Opens a file. Its arrays are read when they are asked for.

    Raises:
        OSError, zipfile.BadZipFile: the file does not exist or is damaged.
    """
    check_file(file)
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        content = opened.read(size) if size <= _HELD else None
        with zipfile.ZipFile(opened if content is None else io.BytesIO(content)) as archive:
            yield Npz(archive, content)


def _find_stored(content: bytes, member: zipfile.ZipInfo) -> memoryview | None:
    """Returns the bytes of a member of an archive that is in memory, if the member is not compressed and its checksum is right; else None:
    :mod:`zipfile` then reads the member, or raises its error."""
    offset = member.header_offset
    head = content[offset : offset + _LOCAL_HEADER.size]
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & ~_PLAIN_FLAGS or len(head) < _LOCAL_HEADER.size:
        return None
    signature, flags, name_size, extra_size = _LOCAL_HEADER.unpack(head)
    offset += _LOCAL_HEADER.size
    name = content[offset : offset + name_size]
    if signature != b"PK\3\4" or flags & ~_PLAIN_FLAGS or name != member.orig_filename.encode(errors="replace"):
        return None
    offset += name_size + extra_size
    stored = memoryview(content)[offset : offset + member.file_size]
    is_intact = len(stored) == member.file_size == member.compress_size and zlib.crc32(stored) == member.CRC
    return stored if is_intact else None


def _read_header(stream: BinaryIO, name: str) -> Entry:
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise Error(f"{name}: expected .npy of version 1.0 or 2.0, got {version}")
    length_bytes, parse = _HEADERS[version]
    length = stream.read(length_bytes)
    size = int.from_bytes(length, "little")
    if size > _LONGEST_HEADER:
        raise Error(f"{name}: expected a header of at most {_LONGEST_HEADER} bytes, got {size}")
    text = stream.read(size)
    plain = _PLAIN_HEADER.fullmatch(text)
    if plain is not None and len(text) == size:
        descr, order, sides = plain.groups()
        shape = tuple(int(side) for side in sides.split(b",") if side)
        return Entry(shape, np.dtype(descr.decode()), order == b"True", stream.tell())
    shape, is_fortran, dtype = parse(io.BytesIO(length + text))
    if dtype.hasobject:
        raise Error(f"{name}: expected numbers, got objects, which are pickled")
    if min(shape, default=1) < 0:
        raise Error(f"{name}: expected a shape, got {shape}")
    return Entry(shape, dtype, is_fortran, stream.tell())
