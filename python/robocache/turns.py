"""Rotates pictures as their files declare: by EXIF's orientation or a video's display matrix."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from . import frames
from .errors import Error

_PNG = b"\x89PNG\r\n\x1a\n"
_ORIENTATION = 0x0112
# TIFF's type for a number of 16 bits.
_SHORT = 3


@dataclass(frozen=True)
class Turn:
    """A rotation or mirroring from stored pixels to the picture shown. Rows and columns are exchanged before they are reversed."""

    exchanged: bool
    rows_reversed: bool
    columns_reversed: bool

    def apply(self, pixels: np.ndarray) -> np.ndarray:
        """Returns the turned ``[H, W, C]``, as a view."""
        turned = pixels.swapaxes(0, 1) if self.exchanged else pixels
        return turned[:: -1 if self.rows_reversed else 1, :: -1 if self.columns_reversed else 1]

    def __str__(self) -> str:
        if self.exchanged != (self.rows_reversed == self.columns_reversed):
            quarters = 2 if not self.exchanged else 1 if self.columns_reversed else 3
            return f"turned by {90 * quarters} degrees clockwise"
        return "mirrored and turned" if self.exchanged else "mirrored"


# EXIF 2.3, 4.6.4: orientations 2 to 8.
_EXIF = {
    2: Turn(False, False, True),
    3: Turn(False, True, True),
    4: Turn(False, True, False),
    5: Turn(True, False, False),
    6: Turn(True, False, True),
    7: Turn(True, True, True),
    8: Turn(True, True, False),
}


def turn_of_matrix(matrix: bytes) -> Turn | None:
    """Returns the turn of a display matrix; None if it changes nothing.

    The matrix is FFmpeg's (libavutil/display.h): x' = m[0] x + m[3] y and y' = m[1] x + m[4] y.

    Raises:
        Error: the matrix is no multiple of a quarter turn.
    """
    m = np.frombuffer(matrix, np.int32)
    a, b, c, d = (int(m[i]) for i in (0, 1, 3, 4))
    if (a or d) and (b or c):
        raise Error(f"a display matrix of {a}, {b}, {c}, {d}: expected a multiple of a quarter turn")
    turn = Turn(bool(b or c), (b or d) < 0, (c or a) < 0)
    return turn if turn != Turn(False, False, False) else None


def turn_of_file(file: bytes) -> Turn | None:
    """Returns the turn in the EXIF data of a JPEG or PNG; None if there is no data or it is damaged."""
    try:
        return _EXIF.get(_find_orientation(_find_exif(file)))
    except struct.error:  # the data is truncated
        return None


def turn_file(file: bytes, turn: Turn) -> bytes:
    """Returns a JPEG or PNG with its pixels turned. A JPEG is encoded again, with quality 95.

    Raises:
        Error: the file does not decode.
    """
    encoded = frames.take([file])
    pixels = frames.decode(encoded.codec, encoded.data, encoded.offsets, encoded.shape, encoded.dtype, range(1))
    return frames.encode(np.ascontiguousarray(turn.apply(pixels[0])[None]), codec=encoded.codec).data.tobytes()


def _find_exif(file: bytes) -> bytes:
    """Returns the EXIF data as TIFF; empty if there is none before the pixels."""
    if file.startswith(_PNG):
        offset = len(_PNG)
        while offset < len(file):
            size, kind = struct.unpack_from(">I4s", file, offset)
            if kind in (b"eXIf", b"IDAT"):
                return file[offset + 8 : offset + 8 + size] if kind == b"eXIf" else b""
            offset += 12 + size
    offset = 2
    while file[:2] == b"\xff\xd8" and offset < len(file):
        prefix, marker, size = struct.unpack_from(">BBH", file, offset)
        if prefix != 0xFF or marker == 0xDA:
            break
        if marker == 0xE1 and file[offset + 4 : offset + 10] == b"Exif\0\0":
            return file[offset + 10 : offset + 2 + size]
        offset += 1 if marker == 0xFF else 2 + size
    return b""


def _find_orientation(tiff: bytes) -> int:
    """Returns the orientation in the first directory; 1 if it has none."""
    if tiff[:4] not in (b"II*\0", b"MM\0*"):
        return 1
    order = "<" if tiff[:1] == b"I" else ">"
    (offset,) = struct.unpack_from(f"{order}I", tiff, 4)
    (count,) = struct.unpack_from(f"{order}H", tiff, offset)
    for entry in range(offset + 2, offset + 2 + 12 * count, 12):
        tag, kind, _, value = struct.unpack_from(f"{order}HHIH", tiff, entry)
        if tag == _ORIENTATION and kind == _SHORT:
            return int(value)
    return 1
