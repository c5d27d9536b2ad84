"""Decodes depth maps in the forms in which LeRobot stores them: codes of 12 bits in video, and TIFF images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import Error

# LeRobot's defaults for facts that info.json lacks (src/lerobot/configs/video.py).
_DEFAULTS = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5, "use_log": True}
_MOST_PIXELS = 1 << 26


@dataclass(frozen=True)
class DepthCodes:
    """The scale of a video of depth, whose luma has codes of 12 bits.

    depth_min, depth_max: metres; code 0 means `depth_min` or less, the largest code `depth_max` or more.
    shift: metres added to the depth before its logarithm is taken.
    use_log: whether the scale is logarithmic; else linear.
    """

    depth_min: float
    depth_max: float
    shift: float
    use_log: bool

    BITS: ClassVar[int] = 12

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> tuple[DepthCodes, list[str]]:
        """Returns the scale that a feature's info declares, and the names of facts that it lacks: they have LeRobot's defaults.

        Raises:
            Error: the facts are impossible, or their depth exceeds what uint16 millimetres hold.
        """
        declared = {name: info.get(f"video.{name}", info.get(name)) for name in _DEFAULTS}
        missing = [name for name, value in declared.items() if value is None]
        values = {name: _DEFAULTS[name] if value is None else value for name, value in declared.items()}
        use_log = values.pop("use_log")
        if not isinstance(use_log, bool):
            raise Error(f"use_log: expected true or false, got {use_log!r:.60}")
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise Error(f"{name}: expected metres, got {value!r:.60}")
        low, high, shift = values["depth_min"], values["depth_max"], values["shift"]
        if not 0 <= low < high <= 65.535:
            raise Error(
                f"depth_min, depth_max: expected 0 <= depth_min < depth_max <= 65.535 m, got {low!r} and {high!r}"
            )
        if use_log and not low + shift > 0:
            raise Error(f"shift: expected depth_min + shift above 0, whose logarithm is taken, got {low!r} + {shift!r}")
        return cls(low, high, shift, use_log), missing

    def millimetres(self) -> np.ndarray:
        """Returns the depth of each code in millimetres, uint16. Code 0 becomes 0, which means no measurement.

        The formula is LeRobot's (dequantize_depth of src/lerobot/datasets/depth_utils.py): a code is a share of the distance from
        log(depth_min + shift) to log(depth_max + shift), or from depth_min to depth_max. In LeRobot code 0 becomes depth_min. Here it
        becomes 0, since pixels without a measurement have this code, and sensors measure nothing as near as depth_min.
        """
        share = np.arange(1 << self.BITS) / ((1 << self.BITS) - 1)
        if self.use_log:
            low, high = math.log(self.depth_min + self.shift), math.log(self.depth_max + self.shift)
            metres = np.exp(low + share * (high - low)) - self.shift
        else:
            metres = self.depth_min + share * (self.depth_max - self.depth_min)
        by_code: np.ndarray = np.rint(np.clip(metres, self.depth_min, self.depth_max) * 1000).astype(np.uint16)
        by_code[0] = 0
        return by_code


def is_tiff(data: bytes) -> bool:
    return data[:4] in (b"II*\0", b"MM\0*")


def read_tiff(data: bytes) -> np.ndarray:
    """Returns uint16 or float32 ``[H, W]`` from an uncompressed TIFF of one channel, as LeRobot writes depth.

    Sections 2, 3 and 19 of TIFF 6.0 define the layout.

    Raises:
        Error: the TIFF is of another kind, or damaged.
    """
    order = "<" if data[:2] == b"II" else ">"
    types = {3: ("u2", 2), 4: ("u4", 4)}  # TIFF's SHORT and LONG, and their bytes

    def number(offset: int, kind: str) -> int:
        if offset + int(kind[1]) > len(data):
            raise Error("a TIFF that is cut short")
        return int(np.frombuffer(data, order + kind, 1, offset)[0])

    start = number(4, "u4")
    tags: dict[int, np.ndarray] = {}
    for entry in range(start + 2, start + 2 + 12 * number(start, "u2"), 12):
        tag, kind, count = number(entry, "u2"), number(entry + 2, "u2"), number(entry + 4, "u4")
        if kind not in types or count > len(data):
            continue
        number_type, size = types[kind]
        offset = entry + 8 if count * size <= 4 else number(entry + 8, "u4")
        if offset + count * size > len(data):
            raise Error("a TIFF that is cut short")
        tags[tag] = np.frombuffer(data, order + number_type, count, offset).astype(np.int64)

    def single(tag: int, default: int | None = None) -> int:
        numbers = tags.get(tag)
        if numbers is None or len(numbers) != 1:
            if default is None or numbers is not None:
                raise Error(f"a TIFF without one number as tag {tag}")
            return default
        return int(numbers[0])

    width, height, bits = single(256), single(257), single(258, 1)
    dtypes = {(16, 1): "u2", (32, 3): "f4"}
    compression, channels, format = single(259, 1), single(277, 1), single(339, 1)
    if (compression, channels) != (1, 1) or (bits, format) not in dtypes:
        raise Error(
            f"a TIFF of compression {compression}, {channels} channels, {bits} bits and sample format {format}: expected one "
            "channel of uint16 or float32, not compressed"
        )
    dtype: np.dtype[Any] = np.dtype(order + dtypes[bits, format])
    offsets, counts = tags.get(273, np.empty(0, np.int64)), tags.get(279, np.empty(0, np.int64))
    strips = [data[start : start + size] for start, size in zip(offsets.tolist(), counts.tolist(), strict=False)]
    pixels = b"".join(strips)
    if not 0 < width * height <= _MOST_PIXELS or len(pixels) != width * height * dtype.itemsize:
        raise Error(f"a TIFF of {width}x{height} pixels with {len(pixels)} bytes")
    return np.frombuffer(pixels, dtype).reshape(height, width).astype(dtype.newbyteorder("="))
