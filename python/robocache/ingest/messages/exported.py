"""Channels that ``robocache export`` wrote: their metadata say what a message does not of the stream that it was a row of."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np

from ..._lib import numpy_dtype
from ...errors import Error
from ..recording import Frames, Ragged, Rows, Samples, Texts

PREFIX = "robocache."
# Columns of the episodes table that the writer makes anew.
_AUTOMATIC = ("episode_index", "start_ns", "end_ns")
# Floats that a message has in more bits.
_NARROW = ("float16", "bfloat16")


@dataclass(frozen=True)
class Exported:
    """A stream as an exported cache described it; see :class:`Stream`."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    clock: Literal["recorded", "nominal"]
    names: list[str] | None
    attributes: dict[str, Any]
    unit_m: float | None
    intrinsics: list[list[float]] | None
    resized: dict[str, Any] | None

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Exported | None:
        """None where the metadata are of another program, or not what an export writes."""
        try:
            said = {key.removeprefix(PREFIX): json.loads(text) for key, text in metadata.items() if _is_ours(key)}
            shape, clock, names, attributes = (said[key] for key in ("shape", "clock", "names", "attributes"))
            sizes = isinstance(shape, list) and all(isinstance(size, int) and 0 <= size < 1 << 31 for size in shape)
            texts = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
            if not sizes or not texts or not isinstance(attributes, dict) or clock not in ("recorded", "nominal"):
                return None
            unit_m, intrinsics, resized = (said.get(key) for key in ("unit_m", "intrinsics", "resized"))
            if not isinstance(unit_m, float | None) or not isinstance(resized, dict | None):
                return None
            if intrinsics is not None and np.asarray(intrinsics, np.float64).shape != (3, 3):
                return None
            kind, dtype = str(said["kind"]), str(said["dtype"])
            return cls(kind, dtype, tuple(shape), clock, names or None, attributes, unit_m, intrinsics, resized)
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def restore(self, samples: Samples) -> Samples | None:
        """The rows as the cache had them; None where they are none of that kind, dtype and shape."""
        restored: dict[str, Any] = {"clock": self.clock, "attributes": self.attributes}
        match samples:
            case Rows(values=values) if self.kind == "numbers":
                folded = self._fold(values)
                if folded is not None and len(folded) == len(values):
                    return replace(samples, values=folded, names=self.names, **restored)
            case Ragged(values=values, offsets=offsets) if self.kind == "arrays":
                elements = self._fold(values)
                parts = math.prod(values.shape[1:])
                size = math.prod(self.shape)
                if elements is not None and not np.any(offsets * parts % max(size, 1)):
                    bounds = offsets * parts // max(size, 1)
                    return replace(samples, values=elements, offsets=bounds, names=self.names, **restored)
            case Texts() if self.kind == "text":
                return replace(samples, **restored)
            case Frames(resized=None) if self.kind == "frames":
                restored |= {"unit_m": self.unit_m, "intrinsics": self.intrinsics, "resized": self.resized}
                return replace(samples, **restored)
            case Frames() if self.kind == "frames":  # its size is another now
                return replace(samples, **restored)
        return None

    def _fold(self, values: np.ndarray) -> np.ndarray | None:
        """``[n, ...]`` as ``[m, *shape]`` of the dtype that holds the same numbers."""
        size = math.prod(self.shape)
        if size == 0 or values.size % size:
            return None
        try:
            dtype = numpy_dtype(self.dtype) if self.dtype in _NARROW else values.dtype
        except Error:  # bfloat16 needs a package; float32 holds it
            dtype = values.dtype
        if dtype != values.dtype:
            narrow = values.astype(dtype)
            if values.dtype != np.float32 or not np.array_equal(narrow.astype(np.float32), values, equal_nan=True):
                return None
            values = narrow
        elif str(dtype) != self.dtype and self.dtype not in _NARROW:
            return None
        return values.reshape(-1, *self.shape)


def columns_of(record: Mapping[str, str]) -> dict[str, Any]:
    """The episode's columns that an export keeps in a metadata record; none where it is another program's."""
    try:
        said = json.loads(record["episode"])
    except (ValueError, KeyError, RecursionError):
        return {}
    if not isinstance(said, dict):
        return {}
    return {cast(str, key): value for key, value in said.items() if key not in _AUTOMATIC and value is not None}


def texts_of(record: Mapping[str, str]) -> dict[str, dict[str, str | None]]:
    """The texts of numbers that an export keeps in the same record, by the table's name that streams have in ``texts``."""
    try:
        said = json.loads(record.get("texts", "{}"))
    except (ValueError, RecursionError):
        return {}
    tables = said.items() if isinstance(said, dict) else ()
    return {
        name: table
        for name, table in tables
        if isinstance(table, dict) and all(isinstance(text, str | None) for text in table.values())
    }


def _is_ours(key: str) -> bool:
    return key.startswith(PREFIX)
