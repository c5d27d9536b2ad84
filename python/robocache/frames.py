"""Frames of cameras between their files and their pixels, on all threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _lib

if TYPE_CHECKING:
    import numpy.typing as npt

_encode = _lib.function("encode_frames")
_take = _lib.function("take_frames")
_decode = _lib.function("decode_frames")


class Encoded(NamedTuple):
    """Frames as a cache holds them."""

    codec: str  # "jpeg", "png" or "raw"
    color_space: str  # "rgb" of 3 channels, "gray" of 1
    dtype: np.dtype[Any]  # of a decoded frame
    shape: tuple[int, int, int]  # height, width, channels
    data: npt.NDArray[np.uint8]  # [bytes]: the files one after the other; of raw frames their pixels
    offsets: npt.NDArray[np.int64]  # [n + 1]: frame i is data[offsets[i] : offsets[i + 1]]; empty of raw frames
    reencoded: Mapping[str, int] = {}  # of take: why JPEGs went through JPEG's loss once more, and how many


def encode(frames: Any, codec: str = "jpeg", quality: int = 95, subsampling: str = "4:2:0") -> Encoded:
    """Pixels to files.

    Args:
        frames: ``[n, H, W]`` or ``[n, H, W, C]`` with C 1 or 3: uint8; for ``"png"`` also uint16; for ``"raw"`` also
            uint16 and float32. An array, or a list of arrays of one shape.
        codec: ``"jpeg"``, ``"png"`` or ``"raw"``, the pixels as they are.
        quality: 1 to 100, of JPEG.
        subsampling: ``"4:2:0"`` or ``"4:4:4"``, of JPEG.

    Raises:
        ArgumentError, ArgumentTypeError: naming the argument, what was expected and what came.
    """
    raise NotImplementedError


def take(blobs: Sequence[bytes]) -> Encoded:
    """Files as somebody else made them, all JPEG or all PNG, all of one shape; at least one.

    Each is decoded once, completely. JPEGs are given restart markers, without loss where that can be; of the others
    `reencoded` says why not.

    Raises:
        FrameError: naming the first frame that does not decode, or is of another codec or shape than the first.
        ArgumentError, ArgumentTypeError: for no blobs, and for what is no bytes.
    """
    raise NotImplementedError


def decode(codec: str, data: Any, offsets: Any, shape: Sequence[int], dtype: Any, rows: Any) -> npt.NDArray[Any]:
    """The frames `rows` of files one after the other, ``[len(rows), H, W, C]``.

    Args:
        codec: ``"jpeg"``, ``"png"`` or ``"raw"``.
        data: the bytes: an array, memory-mapped ones too; of raw frames their pixels, of any dtype and shape.
        offsets: int64 ``[n + 1]``; empty or None of raw frames.
        shape, dtype: what each frame is, decoded.
        rows: whole numbers, in any order, also again and again.

    Raises:
        FrameError: naming the row of the first frame that does not decode.
        ArgumentError, ArgumentTypeError: naming the argument, what was expected and what came.
    """
    raise NotImplementedError
