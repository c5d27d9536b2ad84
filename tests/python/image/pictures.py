"""Pictures to encode, and the files that Pillow and a writer of this project's tests make of them."""

import io
import itertools
import struct
import zlib

import numpy as np
from PIL import Image

SIZES = [(1, 1), (1, 65), (7, 9), (8, 8), (17, 33), (100, 75), (224, 224)]


def picture(rng, height, width, channels=3, dtype=np.uint8):
    """[H, W, C]: smooth from pixel to pixel, as cameras have it."""
    steps = rng.normal(size=(2, height, width, channels)) * 5
    values = np.cumsum(steps[0], axis=0) + np.cumsum(steps[1], axis=1) + 128
    return (np.clip(values, 0, 255) * (np.iinfo(dtype).max / 255)).astype(dtype)


def pillow_file(pixels, format, mode=None, **options):
    """`pixels` [H, W] or [H, W, C] as a file that Pillow writes."""
    image = Image.fromarray(pixels.squeeze(-1) if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)
    file = io.BytesIO()
    (image.convert(mode) if mode else image).save(file, format, **options)
    return file.getvalue()


def pillow_pixels(file):
    """[H, W, C] as Pillow decodes it."""
    pixels = np.asarray(Image.open(io.BytesIO(file)))
    return pixels.reshape(*pixels.shape[:2], -1)


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_file(samples, depth, color, *, interlaced=False, palette=None, kinds=(0, 1, 2, 3, 4), more=b"", splits=1):
    """A PNG of `samples` [H, W, S], as the specification has it: bits `depth`, colour type `color`, filters in turn.

    Pillow writes neither interlaced ones nor few bits of grey.
    """
    height, width, count = samples.shape
    step = max(1, depth * count // 8)
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    data, turn = b"", 0
    for x, y, dx, dy in passes:
        part = samples[y::dy, x::dx]
        above = None
        for line in part if part.size else []:
            if depth == 16:
                row = line.astype(">u2").tobytes()
            elif depth == 8:
                row = line.astype(np.uint8).tobytes()
            else:
                bits = (line.reshape(-1, 1).astype(int) >> np.arange(depth)[::-1]) & 1
                row = np.packbits(bits.astype(np.uint8).reshape(-1)).tobytes()
            above = above or bytes(len(row))
            kind = kinds[turn % len(kinds)]
            data += bytes([kind]) + _filtered(kind, row, above, step)
            above, turn = row, turn + 1
    packed = zlib.compress(data)
    cuts = np.linspace(0, len(packed), splits + 1).astype(int)
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    file = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + more
    if palette is not None:
        file += png_chunk(b"PLTE", np.asarray(palette, np.uint8).tobytes())
    for begin, end in itertools.pairwise(cuts):
        file += png_chunk(b"IDAT", packed[begin:end])
    return file + png_chunk(b"IEND", b"")


def _filtered(kind, row, above, step):
    made = bytearray()
    for i, value in enumerate(row):
        left = row[i - step] if i >= step else 0
        corner = above[i - step] if i >= step else 0
        guess = left + above[i] - corner
        paeth = min((left, above[i], corner), key=lambda neighbour: abs(guess - neighbour))
        made.append((value - [0, left, above[i], (left + above[i]) // 2, paeth][kind]) % 256)
    return bytes(made)
