"""Reads image files in messages: their size from the header, and the depth of compressed_depth_image_transport."""

from __future__ import annotations

import struct

import numpy as np

from ... import frames
from ...errors import Error
from ..images import decode

_PNG = b"\x89PNG\r\n\x1a\n"
# An image with more pixels counts as damaged.
_MOST_PIXELS = 1 << 26


def describe_size(file: np.ndarray) -> str | None:
    """Describes a file by its header, as "640x480 JPEG of 3 channels". Returns "" if the header is cut off, None if the file is neither
    JPEG nor PNG."""
    start = file[:26].tobytes()
    if start.startswith(_PNG[:4]):
        if len(start) < 26:
            return ""
        width, height, bits, colours = struct.unpack(">IIBB", start[16:26])
        return f"{width}x{height} PNG of {bits} bits, colour type {colours}"
    if not start.startswith(b"\xff\xd8"):
        return None
    offset = 2
    while offset + 10 <= len(file) and file[offset] == 0xFF:
        marker = int(file[offset + 1])
        if marker == 0xFF or 0xD0 <= marker <= 0xD8 or marker == 1:  # fill bytes, and markers without a length
            offset += 1 if marker == 0xFF else 2
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width, components = struct.unpack(">HHB", file[offset + 5 : offset + 10].tobytes())
            return f"{width}x{height} JPEG of {components} channel{'s' * (components != 1)}"
        offset += 2 + int(file[offset + 2]) * 256 + int(file[offset + 3])
    return ""


def has_colours(size: str) -> bool:
    """Whether a file has red and blue, by what :func:`describe_size` returns for it."""
    return size.endswith(("JPEG of 3 channels", "colour type 2", "colour type 3", "colour type 6"))


def read_depth(file: bytes, is_rvl: bool, is_quantised: bool) -> np.ndarray:
    """Returns depth ``[H, W]``: uint16 in the writer's unit, or if `is_quantised` float32 metres, with NaN where there is no depth.

    The header has the format and the numbers a and b of the quantisation: a stored number q means the depth a / (q - b).

    Raises:
        Error: the file is damaged.
    """
    if len(file) < 12:
        raise Error(f"expected a header of 12 bytes, got {len(file)} bytes")
    a, b = struct.unpack("<ff", file[4:12])
    if is_quantised and not a > 0:
        raise Error(f"expected a quantisation a / (q - b) with a above 0, got {a:g} / (q - {b:g})")
    if is_rvl:
        pixels = _read_rvl(file[12:])
    else:
        png = frames.take([file[12:]])
        if png.dtype != np.uint16:
            raise Error(f"expected a PNG of 16 bits, got {png.dtype}")
        pixels = decode(png, range(1))[0, ..., 0]
    if not is_quantised:
        return pixels
    with np.errstate(all="ignore"):
        metres = np.float32(a) / (pixels.astype(np.float32) - np.float32(b))
    depth: np.ndarray = np.where(pixels == 0, np.float32(np.nan), metres).astype(np.float32)
    return depth


def _read_rvl(file: bytes) -> np.ndarray:
    """Returns uint16 ``[H, W]`` from the format of Wilson, "Fast lossless depth image compression" (2017): width and height, then in turn
    the length of a run of zeros, and a count with that many differences. A number is stored in nibbles of 3 bits, the lowest first; the
    fourth bit is set if another nibble follows. A little-endian word has eight nibbles, the highest first."""
    if len(file) < 8:
        raise Error(f"expected the size of RVL in 8 bytes, got {len(file)} bytes")
    width, height = struct.unpack("<II", file[:8])
    size = width * height
    words = np.frombuffer(file, "<u4", (len(file) - 8) // 4, 8)
    # A few bytes can declare a long run of zeros, so the number of pixels is limited, not only by the file's length.
    if not 0 < size <= _MOST_PIXELS:
        raise Error(f"expected up to {_MOST_PIXELS} pixels, got {width}x{height}")
    nibbles = ((words[:, None] >> np.arange(28, -4, -4, dtype=np.uint32)) & 15).reshape(-1)
    ends = np.flatnonzero(nibbles < 8)
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    if len(ends) and np.max(ends - starts) > 10:
        raise Error("RVL with a number of more than 32 bits")
    if not len(ends):
        raise Error("RVL without numbers")
    position = np.arange(ends[-1] + 1) - np.repeat(starts, ends - starts + 1)
    numbers = np.add.reduceat((nibbles[: ends[-1] + 1].astype(np.int64) & 7) << 3 * position, starts)
    pixels = np.zeros(size, np.uint16)
    index = pixel = previous = 0
    while pixel < size:
        if index + 1 >= len(numbers):
            raise Error(f"RVL that ends at pixel {pixel} of {size}")
        pixel += int(numbers[index])
        count = int(numbers[index + 1])
        index += 2
        if pixel + count > size or index + count > len(numbers):
            raise Error(f"RVL that ends in a run at pixel {pixel} of {size}")
        coded = numbers[index : index + count]  # the differences in zigzag code, so that small negative ones are small
        run = previous + np.cumsum(coded >> 1 ^ -(coded & 1))
        pixels[pixel : pixel + count] = run & 0xFFFF
        previous = int(run[-1]) if count else previous
        index, pixel = index + count, pixel + count
    return pixels.reshape(height, width)
