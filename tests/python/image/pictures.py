"""Makes pictures to encode, and PNG and JPEG files of them, by Pillow and by writers of its own."""

import io
import itertools
import struct
import zlib

import numpy as np
from PIL import Image

SIZES = [(1, 1), (1, 65), (7, 9), (8, 8), (17, 33), (100, 75), (224, 224)]


def picture(rng, height, width, channels=3, dtype=np.uint8):
    """Returns [H, W, C] that is smooth from pixel to pixel, like a camera's frame."""
    steps = rng.normal(size=(2, height, width, channels)) * 5
    values = np.cumsum(steps[0], axis=0) + np.cumsum(steps[1], axis=1) + 128
    return (np.clip(values, 0, 255) * (np.iinfo(dtype).max / 255)).astype(dtype)


def pillow_file(pixels, format, mode=None, **options):
    """Returns the file that Pillow writes of `pixels`, [H, W] or [H, W, C]."""
    image = Image.fromarray(pixels.squeeze(-1) if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)
    file = io.BytesIO()
    (image.convert(mode) if mode else image).save(file, format, **options)
    return file.getvalue()


def pillow_pixels(file):
    """Returns the pixels [H, W, C] that Pillow decodes."""
    pixels = np.asarray(Image.open(io.BytesIO(file)))
    return pixels.reshape(*pixels.shape[:2], -1)


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_file(samples, depth, color, *, interlaced=False, palette=None, kinds=(0, 1, 2, 3, 4), more=b"", splits=1):
    """Returns a PNG of `samples` [H, W, S] by the specification: `depth` bits, colour type `color`, the filters of `kinds` in turn.

    Pillow writes neither interlaced PNGs nor grey of few bits.
    """
    height, width, count = samples.shape
    step = max(1, depth * count // 8)
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    data, line_number = b"", 0
    for x, y, dx, dy in passes:
        pass_samples = samples[y::dy, x::dx]
        row_above = None
        for line in pass_samples if pass_samples.size else []:
            if depth == 16:
                row = line.astype(">u2").tobytes()
            elif depth == 8:
                row = line.astype(np.uint8).tobytes()
            else:
                bits = (line.reshape(-1, 1).astype(int) >> np.arange(depth)[::-1]) & 1
                row = np.packbits(bits.astype(np.uint8).reshape(-1)).tobytes()
            row_above = row_above or bytes(len(row))
            kind = kinds[line_number % len(kinds)]
            data += bytes([kind]) + _filter(kind, row, row_above, step)
            row_above, line_number = row, line_number + 1
    packed = zlib.compress(data)
    cuts = np.linspace(0, len(packed), splits + 1).astype(int)
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    file = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + more
    if palette is not None:
        file += png_chunk(b"PLTE", np.asarray(palette, np.uint8).tobytes())
    for begin, end in itertools.pairwise(cuts):
        file += png_chunk(b"IDAT", packed[begin:end])
    return file + png_chunk(b"IEND", b"")


def _filter(kind, row, above, step):
    output = bytearray()
    for i, value in enumerate(row):
        left = row[i - step] if i >= step else 0
        corner = above[i - step] if i >= step else 0
        guess = left + above[i] - corner
        paeth = min((left, above[i], corner), key=lambda neighbour: abs(guess - neighbour))
        output.append((value - [0, left, above[i], (left + above[i]) // 2, paeth][kind]) % 256)
    return bytes(output)


# Row-major indices of an 8 x 8 block in zigzag order.
ZIGZAG = sorted(range(64), key=lambda k: (k // 8 + k % 8, (k // 8 if (k // 8 + k % 8) % 2 else k % 8)))


def jpeg_file(blocks, steps):
    """Returns a grey baseline JPEG of row-major quantised coefficients [rows, columns, 64] and quantisation steps [64]."""
    rows, columns, _ = blocks.shape
    dc_symbols, ac_symbols = (
        list(range(12)),
        [run << 4 | size for run in range(16) for size in range(1, 11)] + [0x00, 0xF0],
    )
    bits = []

    def put_symbol(symbol, symbols, width, value=0):
        size = abs(value).bit_length()
        bits.append(f"{symbols.index(symbol):0{width}b}")
        bits.append(f"{value if value >= 0 else value + (1 << size) - 1:0{size}b}" if size else "")

    last_dc = 0
    for block in blocks.reshape(-1, 64):
        coefficients = [int(block[k]) for k in ZIGZAG]
        put_symbol(abs(coefficients[0] - last_dc).bit_length(), dc_symbols, 4, coefficients[0] - last_dc)
        last_dc, zeros = coefficients[0], 0
        for value in coefficients[1:]:
            if value == 0:
                zeros += 1
                continue
            for _ in range(zeros // 16):
                put_symbol(0xF0, ac_symbols, 8)
            put_symbol(zeros % 16 << 4 | abs(value).bit_length(), ac_symbols, 8, value)
            zeros = 0
        if zeros:
            put_symbol(0x00, ac_symbols, 8)
    coded = "".join(bits)
    coded += "1" * (-len(coded) % 8)
    data = int(coded, 2).to_bytes(len(coded) // 8, "big").replace(b"\xff", b"\xff\x00")

    def segment(marker, body):
        return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body

    return (
        b"\xff\xd8"
        + segment(0xDB, bytes([0, *(int(steps[k]) for k in ZIGZAG)]))
        + segment(0xC0, struct.pack(">BHHB3B", 8, 8 * rows, 8 * columns, 1, 1, 0x11, 0))
        + segment(0xC4, bytes([0x00, *(12 if length == 4 else 0 for length in range(1, 17)), *dc_symbols]))
        + segment(0xC4, bytes([0x10, *(162 if length == 8 else 0 for length in range(1, 17)), *ac_symbols]))
        + segment(0xDA, bytes([1, 1, 0x00, 0, 63, 0]))
        + data
        + b"\xff\xd9"
    )
