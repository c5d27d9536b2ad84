"""decode_jpeg: JPEG files to pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from .. import _lib
from .._operation import argument, writable

if TYPE_CHECKING:
    from .._operation import Array

_decode = _lib.function("decode_jpeg")
_resident = _lib.function("resident_jpegs")
_resident_size = _lib.function("resident_jpegs_size")
_decode_resident = _lib.function("decode_resident_jpegs")


@overload
def decode_jpeg(blobs: Array, offsets: Array, out: Array | None = ...) -> Array: ...
@overload
def decode_jpeg(blobs: Any, offsets: Any, out: Any = ...) -> Any: ...
def decode_jpeg(blobs: Any, offsets: Any, out: Any = None) -> Any:
    """The pixels of JPEG files, all of one shape: on all threads of the CPU, or on the GPU that they lie on.

    On CUDA each is baseline, in one scan, as :func:`robocache.frames.take` makes them; restart markers are what makes it
    fast. Their headers are read by the host, so the files go there and back and the call waits for the device:
    :class:`ResidentJpegs` does that once for frames that are decoded again and again.

    Args:
        blobs: uint8 ``[bytes]``: the files one after the other.
        offsets: int64 ``[N + 1]``: frame i is ``blobs[offsets[i] : offsets[i + 1]]``.
        out: uint8 ``[N, H, W, C]`` to write to, C 1 (grey) or 3 (RGB); None: a new one, of the first frame's shape.

    Returns:
        uint8 ``[N, H, W, C]``, `out` where it is given; else of blobs' framework. The pixels are libjpeg-turbo's to the bit
        ("islow" inverse DCT, "fancy" upsampling); an Exif orientation is not applied.

    Raises:
        FrameError: naming the first frame that is damaged, none, CMYK, or not of the others' shape.
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
        DeviceError: the device refused.

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


class ResidentJpegs:
    """JPEG files made ready and kept where a CUDA device reaches them, to be decoded there at any time without the host.

    Args:
        blobs: uint8 ``[bytes]`` in host memory: the files one after the other, each as :func:`robocache.frames.take` makes
            them, all of one shape.
        offsets: int64 ``[N + 1]``: frame i is ``blobs[offsets[i] : offsets[i + 1]]``.
        device: a CUDA device: ``"cuda"``, ``"cuda:1"``.
        tier: ``"device"``: in its memory; ``"pinned"``: in pinned memory of the host, read across the link.

    Raises:
        FrameError: naming the first frame that is damaged, not of that kind, or not of the others' shape.
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
        DeviceError: the device refused, or its memory does not suffice.
    """

    def __init__(self, blobs: Any, offsets: Any, *, device: str = "cuda", tier: str = "device") -> None:
        files, places = argument("blobs", blobs), argument("offsets", offsets)
        self._frames = _resident(files, places, _lib.text("device", device), _lib.text("tier", tier))
        self._count, *size = (int(_resident_size(self._frames, place)) for place in range(4))
        self._shape = size[0], size[1], size[2]

    def __len__(self) -> int:
        return self._count

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels of each frame."""
        return self._shape

    def decode(self, rows: Any, out: Any, status: Any) -> None:
        """Queues the decoding of some frames on the current stream; nothing waits.

        Args:
            rows: int64 ``[n]``, which frames, in any order; -1, and whatever is no frame, is black.
            out: uint8 ``[n, H, W, C]`` to write to.
            status: int32 ``[n]`` to write to: 1 where the frame's data is damaged, which is then black; else 0.

            All are arrays of the device, dense.

        Raises:
            ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
            DeviceError: the device refused.
        """
        _decode_resident(self._frames, argument("rows", rows), argument("out", out), argument("status", status))
