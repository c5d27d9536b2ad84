"""Encodes and decodes cameras' frames, on all threads."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _lib, errors
from ._check import whole
from .feature_words import as_flag

if TYPE_CHECKING:
    import numpy.typing as npt

_encode = _lib.function("encode_frames")
_take = _lib.function("take_frames")
_decode = _lib.function("decode_frames")
_array_of = _lib.function("array_of")


class Encoded(NamedTuple):
    """Frames in the form that a cache stores."""

    codec: str  # "jpeg", "png" or "raw"
    color_space: str  # "rgb" for 3 channels; for 1 channel "gray" if it is uint8, else "depth"
    dtype: np.dtype[Any]  # the dtype of a decoded frame
    shape: tuple[int, int, int]  # height, width, channels
    data: npt.NDArray[np.uint8]  # [bytes]: the files one after another; for raw frames their pixels
    offsets: npt.NDArray[np.int64]  # [n + 1]: frame i is data[offsets[i] : offsets[i + 1]]; empty for raw frames
    reencoded: Mapping[str, int] = {}  # from take: the number of JPEGs that were encoded again, with loss, by reason


def encode(frames: Any, codec: str = "jpeg", quality: int = 95, subsampling: str = "4:2:0") -> Encoded:
    """Encodes pixels to files.

    Args:
        frames: ``[n, H, W]`` or ``[n, H, W, C]`` with C 1 or 3: uint8; for ``"png"`` also uint16; for ``"raw"`` also uint16 and
            float32. An array, or a list of arrays of one shape.
        codec: ``"jpeg"``, ``"png"`` or ``"raw"``, which keeps the pixels.
        quality: 1 to 100, for JPEG.
        subsampling: ``"4:2:0"`` or ``"4:4:4"``, for JPEG.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
    """
    try:
        pixels = np.asarray(frames)
    except (TypeError, ValueError) as error:
        raise errors.ArgumentError(f"frames: expected an array, or a list of arrays of one shape: {error}") from None
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4:
        raise errors.ArgumentError(f"frames: expected [n, H, W] or [n, H, W, C], got {list(pixels.shape)}")
    pixels = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("="))
    if codec == "raw":
        return _as_raw(pixels)
    result = _encode(_lib.from_numpy(pixels), _lib.text("codec", codec), whole("quality", quality), subsampling)
    return _read_result(result)


def take(blobs: Sequence[bytes]) -> Encoded:
    """Takes existing files: at least one, all JPEG or all PNG, of one shape.

    Each file is decoded once, completely. JPEGs get restart markers, without loss if possible. Otherwise they are encoded again,
    and `reencoded` counts them by reason.

    Raises:
        FrameError: a frame does not decode, or differs in codec or shape from the first; the message names it.
        ArgumentError, ArgumentTypeError: there are no blobs, or one is not bytes.
    """
    if isinstance(blobs, (bytes, bytearray, memoryview, str)) or not isinstance(blobs, Sequence):
        raise errors.ArgumentTypeError(f"frames: expected a sequence of bytes, got {type(blobs).__name__}")
    for index, blob in enumerate(blobs):
        if not isinstance(blob, (bytes, bytearray, memoryview)):
            raise errors.ArgumentTypeError(f"frames[{index}]: expected bytes, got {type(blob).__name__}")
    data = np.frombuffer(b"".join(blobs), np.uint8)
    offsets = np.zeros(len(blobs) + 1, np.int64)
    np.cumsum([memoryview(blob).nbytes for blob in blobs], out=offsets[1:])
    return _read_result(_take(_lib.from_numpy(data), _lib.from_numpy(offsets)))


def decode(codec: str, data: Any, offsets: Any, shape: Sequence[int], dtype: Any, rows: Any) -> npt.NDArray[Any]:
    """Decodes the frames `rows` of concatenated files to ``[len(rows), H, W, C]``.

    Args:
        codec: ``"jpeg"``, ``"png"`` or ``"raw"``.
        data: the bytes, which may be memory-mapped; for raw frames their pixels, of any dtype and shape.
        offsets: int64 ``[n + 1]``; empty or None for raw frames.
        shape, dtype: the shape and dtype of each decoded frame.
        rows: whole numbers, in any order, repeats allowed.

    Raises:
        FrameError: a frame does not decode; the message names the first one's row.
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
    """
    indices = np.asarray(rows)
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise errors.ArgumentTypeError(f"rows: expected whole numbers [n], got {list(indices.shape)} {indices.dtype}")
    indices = np.ascontiguousarray(indices, np.int64)
    blob_offsets = np.zeros(0, np.int64) if offsets is None else np.ascontiguousarray(offsets, np.int64)
    stored = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    out = np.empty((len(indices), *(whole("shape", side) for side in shape)), _lib.numpy_dtype(_lib.dtype_name(dtype)))
    arrays = (_lib.from_numpy(array) for array in (stored, blob_offsets, indices, out))
    _decode(_lib.text("codec", codec), *arrays)
    return out


# Words for cameras whose pixels are classes or instances.
_LABELS = {
    *("segmentation", "segmentations", "seg", "segs", "segm", "semseg", "segmap", "segmaps", "segmask", "segmasks"),
    *("panoptic", "semantic", "semantics", "mask", "masks", "label", "labels", "labelmap", "labelmaps"),
}


def is_labels(camera: str, attributes: Mapping[str, Any] | None = None) -> bool:
    """Whether a camera's pixels are labels, by its attribute "labels" or its name: "front_segmentation", "top/mask".

    Labels cannot be averaged, so such frames are stored without loss and resized to the nearest pixel.
    """
    if attributes and "labels" in attributes:
        is_set = as_flag(attributes["labels"])
        return bool(attributes["labels"]) if is_set is None else is_set
    return not _LABELS.isdisjoint(_words(camera))


def has_palette(file: bytes) -> bool:
    """Whether the file is a PNG whose pixels are indices into a list of colours."""
    colour_type = file[25:26]
    return file[:8] == b"\x89PNG\r\n\x1a\n" and colour_type == b"\3"


def indices_of(file: bytes) -> bytes:
    """Converts a PNG with a palette to a grey PNG of 8 bits whose pixels are the indices.

    Raises:
        Error: the file does not decode.
    """
    bits = file[24]
    chunks = [(b"IHDR", file[16:25] + b"\0" + file[26:29])]  # byte 25, the colour type, becomes that of grey
    offset = 8  # of the first chunk
    while offset + 12 <= len(file):
        size, kind = struct.unpack_from(">I4s", file, offset)
        if kind in (b"IDAT", b"IEND", b"eXIf"):
            chunks.append((kind, file[offset + 8 : offset + 8 + size]))
        offset += 12 + size
    grey = file[:8] + b"".join(_chunk(kind, data) for kind, data in chunks)
    if bits == 8:
        return grey
    encoded = take([grey])  # decoding spreads grey of few bits over 0 to 255
    pixels = decode(encoded.codec, encoded.data, encoded.offsets, encoded.shape, encoded.dtype, range(1))
    indices = encode(pixels // (255 // (2**bits - 1)), codec="png").data.tobytes()
    end = 33  # of IHDR
    return indices[:end] + b"".join(_chunk(kind, data) for kind, data in chunks if kind == b"eXIf") + indices[end:]


def _chunk(kind: bytes, data: bytes) -> bytes:
    """Returns a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


# Words for cameras whose pixels are measurements instead of colours.
_MEASURED = {
    *("disparity", "disparities", "normal", "normals", "xyz", "flow", "flows", "tactile", "taxel", "taxels"),
    *("pressure", "pressures", "force", "forces", "heightmap", "heightmaps", "elevation", "thermal", "temperature"),
    "temperatures",
}


def is_measured(camera: str) -> bool:
    """Whether a camera's pixels are measurements, by its name: "front_depth", "normals". Such frames are stored without
    loss."""
    return has_depth_word(camera) or not _MEASURED.isdisjoint(_words(camera))


_DEPTH = {"distance", "distances", "range", "ranges", "tof", "stereo", "rgbd"}
# Words for one of the pictures that a stereo or RGB-D camera takes beside its depth: stereo_left, rgbd/color.
_PICTURES = {"left", "right", "rgb", "color", "colour", "mono", "gray", "grey"}
# A word that means depth: depth, zdepth, depthmap; but not depthwise, nor the depth of bits.
_DEPTH_WORD = re.compile(
    r"(?!(?:in|bit|colou?r)depth)[a-z]*depths?|depth(?:images?|imgs?|maps?|cams?|cameras?|frames?|raw|z)"
)
# Words for images that depth cameras publish beside the depth: /depth/confidence, /stereo/disparity.
_BESIDE_DEPTH = {"disparity", "disparities", "confidence", "amplitude", "intensity", "reflectivity"}
_NO_DEPTH = {"thermal", "temperature", "flir", "lepton", "boson", "ir", "infra", "infrared", "nir", "swir", "lwir"}


def says_depth(camera: str) -> bool | None:
    """Whether a camera measures depth, by its name: True, False for another quantity, None if the name has no such word."""
    words = set(_words(camera))
    if not words.isdisjoint(_BESIDE_DEPTH):
        return False
    has_depth = has_depth_word(camera)
    if has_depth or not words.isdisjoint(_DEPTH - ({"stereo", "rgbd"} if words & _PICTURES else set())):
        return True
    return None if words.isdisjoint(_NO_DEPTH) else False


def has_depth_word(camera: str) -> bool:
    return any(map(_DEPTH_WORD.fullmatch, _words(camera)))


def _words(camera: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", camera)]


def _as_raw(pixels: npt.NDArray[Any]) -> Encoded:
    _, *shape = pixels.shape
    if shape[2] not in (1, 3) or min(shape) < 1:
        raise errors.ArgumentError(f"frames: expected [n, H, W, 1 or 3], got {list(pixels.shape)}")
    if pixels.dtype.name not in ("uint8", "uint16", "float32"):
        raise errors.ArgumentTypeError(f"frames: expected uint8, uint16 or float32 for raw, got {pixels.dtype}")
    height, width, channels = shape
    data = pixels.reshape(-1).view(np.uint8)
    return Encoded(
        "raw",
        _color_space(channels, pixels.dtype),
        pixels.dtype,
        (height, width, channels),
        data,
        np.zeros(0, np.int64),
    )


def _read_result(result: Any) -> Encoded:
    data, offsets, description = (_lib.to_numpy(_array_of(result, None, index)) for index in range(3))
    facts = json.loads(description.tobytes())
    dtype = np.dtype(facts["dtype"])
    height, width, channels = facts["shape"]
    color_space = _color_space(channels, dtype)
    return Encoded(facts["codec"], color_space, dtype, (height, width, channels), data, offsets, facts["reencoded"])


def _color_space(channels: int, dtype: np.dtype[Any]) -> str:
    if channels == 3:
        return "rgb"
    return "gray" if dtype == np.uint8 else "depth"
