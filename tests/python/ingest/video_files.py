"""Writes videos whose frames show a number, and reads them with PyAV."""

import io
import os
from contextlib import contextmanager
from fractions import Fraction

import av
import numpy as np
from PIL import Image

HEIGHT, WIDTH, BLOCK = 48, 64, 16


def picture(number, height=HEIGHT, width=WIDTH):
    """Returns uint8 [H, W, 3] whose blocks of 16 x 16 show the bits of `number`; they survive any codec."""
    bits = np.array([number >> bit & 1 for bit in range((height // BLOCK) * (width // BLOCK))], np.uint8)
    grey = np.kron(40 + 170 * bits.reshape(height // BLOCK, width // BLOCK), np.ones((BLOCK, BLOCK), np.uint8))
    shade = np.arange(width, dtype=np.uint8) // 8  # many shades, so that codecs give different pixels
    return np.stack([grey, grey + shade, 255 - grey], axis=-1).astype(np.uint8)


def number_of(image):
    """Returns the number that a picture of any size shows."""
    height, width = image.shape[:2]
    rows, columns = HEIGHT // BLOCK, WIDTH // BLOCK
    cells = image[..., 0].reshape(rows, height // rows, columns, width // columns).mean(axis=(1, 3))
    return int(sum(int(bit) << index for index, bit in enumerate((cells > 125).ravel())))


@contextmanager
def restored_scheduling():
    """SVT-AV1 makes the calling thread a real-time one where it may, and such a thread leaves other processes no time."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


@restored_scheduling()
def write_video(
    path, numbers, fps=30, codec="mpeg4", times=None, size=(HEIGHT, WIDTH), options=None, gop=12, pixels="yuv420p"
):
    """Writes an mp4 with :func:`picture` of each number, at k / fps or at `times` in seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unit = Fraction(1, 60_000)  # the finest time base that mpeg4 accepts
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=fps, options=options or {})
        stream.height, stream.width, stream.pix_fmt = *size, pixels
        stream.codec_context.time_base = stream.time_base = unit
        stream.codec_context.gop_size = gop
        for k, number in enumerate(numbers):
            frame = av.VideoFrame.from_ndarray(picture(number, *size), format="rgb24")
            frame.pts = round((k / fps if times is None else times[k]) / unit)
            frame.time_base = unit
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def read_video(path):
    """Returns the exact stamps in seconds and the frames [n, H, W, 3] of a file, in presentation order."""
    with av.open(str(path)) as container:
        frames = {frame.pts * frame.time_base: frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)}
    times = sorted(frames)
    return times, np.stack([frames[time] for time in times])


def image_bytes(image, format="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(image).save(file, format, **options)
    return file.getvalue()
