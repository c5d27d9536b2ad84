"""Writes a camera's frames as mp4 files for LeRobot datasets."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

# Frames are decoded and encoded in parts of this many.
_AT_ONCE = 32
# Every decoder reads H.264. Every second frame is a keyframe, because rows are drawn at random.
CODEC, PIXELS = "h264", "yuv420p"
_OPTIONS = {"crf": "18", "g": "2", "bf": "0"}


def write_video(path: Path, pictures: Any, rows: np.ndarray, fps: int) -> None:
    """Writes ``pictures[rows[k]]`` as the frame at k / fps. Pictures are uint8 ``[H, W, 1 or 3]`` of even height and width."""
    _, height, width, _ = pictures.shape
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream(CODEC, rate=fps, options=_OPTIONS)
        stream.width, stream.height, stream.pix_fmt = width, height, PIXELS
        stream.codec_context.time_base = stream.time_base = Fraction(1, fps)
        for start in range(0, len(rows), _AT_ONCE):
            pixels = np.asarray(pictures[rows[start : start + _AT_ONCE]])
            for number, picture in enumerate(np.broadcast_to(pixels, (*pixels.shape[:3], 3)), start):
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
                frame.pts, frame.time_base = number, Fraction(1, fps)
                container.mux(stream.encode(frame))
        container.mux(stream.encode())


def describe(height: int, width: int, fps: int) -> dict[str, Any]:
    """Returns the description of such a video in info.json."""
    return {
        "video.height": height,
        "video.width": width,
        "video.codec": CODEC,
        "video.pix_fmt": PIXELS,
        "video.is_depth_map": False,
        "video.fps": fps,
        "video.channels": 3,
        "has_audio": False,
    }
