"""decode_jpeg: JPEG files to pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from .. import _lib
from ._call import argument, writable

if TYPE_CHECKING:
    from ._call import Array

_decode = _lib.function("decode_jpeg")


@overload
def decode_jpeg(blobs: Array, offsets: Array, out: Array | None = ...) -> Array: ...
@overload
def decode_jpeg(blobs: Any, offsets: Any, out: Any = ...) -> Any: ...
def decode_jpeg(blobs: Any, offsets: Any, out: Any = None) -> Any:
    """The pixels of JPEG files, all of one shape, on all threads.

    Args:
        blobs: uint8 ``[bytes]``: the files one after the other.
        offsets: int64 ``[N + 1]``: frame i is ``blobs[offsets[i] : offsets[i + 1]]``.
        out: uint8 ``[N, H, W, C]`` to write to, C 1 (grey) or 3 (RGB); None: a new one, of the first frame's shape.

    Returns:
        uint8 ``[N, H, W, C]``, `out` where it is given; else of blobs' framework. The pixels are libjpeg-turbo's to the bit
        ("islow" inverse DCT, "fancy" upsampling); an Exif orientation is not applied.

    Raises:
        FrameError: naming the first frame that is damaged, none, CMYK, or not of the others' shape.
        ArgumentError, ArgumentTypeError: naming the argument, what was expected and what came.

    Example:
        >>> files = [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]
        >>> blobs = np.frombuffer(b"".join(files), np.uint8)
        >>> offsets = np.cumsum([0, *map(len, files)])
        >>> robocache.decode_jpeg(blobs, offsets).shape
        (10, 480, 640, 3)
    """
    files, places = argument("blobs", blobs), argument("offsets", offsets)
    if out is not None:
        _decode(files, places, writable("out", out))
        return out
    return _lib.in_framework_of(blobs, _decode(files, places, None))
