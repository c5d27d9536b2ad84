"""decode_jpeg: decodes JPEG files."""

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
    """Decodes JPEG files of one shape: on all threads of the CPU, or on the GPU whose memory holds them.

    On CUDA each file must be baseline, in one scan, as from :func:`robocache.frames.take`; restart markers make decoding fast.
    The host reads the headers, so the call copies the files to the host and back, and waits for the device.
    :class:`ResidentJpegs` does that only once, for frames that are decoded many times.

    Args:
        blobs: uint8 ``[bytes]``: the files, concatenated.
        offsets: int64 ``[N + 1]``: frame i is ``blobs[offsets[i] : offsets[i + 1]]``.
        out: uint8 ``[N, H, W, C]`` to write to, C 1 (grey) or 3 (RGB); None: a new array, of the first frame's shape.

    Returns:
        uint8 ``[N, H, W, C]``: `out`, or a new array in blobs' framework. The pixels are libjpeg-turbo's, bit for bit
        ("islow" inverse DCT, "fancy" upsampling); an Exif orientation is not applied.

    Raises:
        FrameError: a frame is damaged, no JPEG, CMYK, or of another shape; the message names the first one.
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
        DeviceError: the device failed.

    Example:
        >>> files = [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]
        >>> blobs = np.frombuffer(b"".join(files), np.uint8)
        >>> offsets = np.cumsum([0, *map(len, files)])
        >>> robocache.decode_jpeg(blobs, offsets).shape
        (10, 480, 640, 3)
    """
    files, frame_offsets = argument("blobs", blobs), argument("offsets", offsets)
    if out is not None:
        _decode(files, frame_offsets, writable("out", out))
        return out
    return _lib.in_framework_of(blobs, _decode(files, frame_offsets, None))


class ResidentJpegs:
    """JPEG files in memory that a CUDA device can read, prepared so that it decodes them without the host.

    Args:
        blobs: uint8 ``[bytes]`` in host memory: the files, concatenated, each as from :func:`robocache.frames.take`, all of one
            shape.
        offsets: int64 ``[N + 1]``: frame i is ``blobs[offsets[i] : offsets[i + 1]]``.
        device: a CUDA device: ``"cuda"``, ``"cuda:1"``.
        tier: the files' memory: ``"device"``, or ``"pinned"`` for pinned memory of the host, read across the link.

    Raises:
        FrameError: a frame is damaged, of another kind, or of another shape; the message names the first one.
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
        DeviceError: the device failed, or has too little memory.
    """

    def __init__(self, blobs: Any, offsets: Any, *, device: str = "cuda", tier: str = "device") -> None:
        files, frame_offsets = argument("blobs", blobs), argument("offsets", offsets)
        self._frames = _resident(files, frame_offsets, _lib.text("device", device), _lib.text("tier", tier))
        self._count, *size = (int(_resident_size(self._frames, index)) for index in range(4))
        self._shape = size[0], size[1], size[2]

    def __len__(self) -> int:
        return self._count

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels of each frame."""
        return self._shape

    def decode(self, rows: Any, out: Any, status: Any) -> None:
        """Queues the decoding of some frames on the current stream, without waiting.

        Args:
            rows: int64 ``[n]``, the indices of the frames, in any order; -1, or an index without a frame, gives a black frame.
            out: uint8 ``[n, H, W, C]`` to write to.
            status: int32 ``[n]`` to write to: 1 if the frame's data is damaged (the frame is then black), else 0.

            All three are dense arrays on the device.

        Raises:
            ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
            DeviceError: the device failed.
        """
        _decode_resident(self._frames, argument("rows", rows), argument("out", out), argument("status", status))
