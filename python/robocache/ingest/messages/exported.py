"""Reads the metadata of channels that ``robocache export`` wrote. They describe the cache's stream whose rows are the messages."""

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
# Columns of the episodes table that the writer adds itself.
_AUTOMATIC = ("episode_index", "start_ns", "end_ns")
# Dtypes of floats that messages lack: they hold these numbers in a wider type.
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
        """Returns the description in a channel's metadata; None if another program wrote them, or they are invalid."""
        try:
            facts = {
                key.removeprefix(PREFIX): json.loads(text) for key, text in metadata.items() if key.startswith(PREFIX)
            }
            shape, clock, names, attributes = (facts[key] for key in ("shape", "clock", "names", "attributes"))
            is_shape = isinstance(shape, list) and all(isinstance(size, int) and 0 <= size < 1 << 31 for size in shape)
            are_names = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
            if (
                not is_shape
                or not are_names
                or not isinstance(attributes, dict)
                or clock not in ("recorded", "nominal")
            ):
                return None
            unit_m, intrinsics, resized = (facts.get(key) for key in ("unit_m", "intrinsics", "resized"))
            if not isinstance(unit_m, float | None) or not isinstance(resized, dict | None):
                return None
            if intrinsics is not None and np.asarray(intrinsics, np.float64).shape != (3, 3):
                return None
            kind, dtype = str(facts["kind"]), str(facts["dtype"])
            return cls(kind, dtype, tuple(shape), clock, names or None, attributes, unit_m, intrinsics, resized)
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def restore(self, samples: Samples) -> Samples | None:
        """Returns the rows as the exported cache had them; None if their kind, dtype or shape does not fit the description."""
        restored: dict[str, Any] = {"clock": self.clock, "attributes": self.attributes}
        match samples:
            case Rows(values=values) if self.kind == "numbers":
                folded = self._fold(values)
                if folded is not None and len(folded) == len(values):
                    return replace(samples, values=folded, names=self.names, **restored)
            case Ragged(values=values, offsets=offsets) if self.kind == "arrays":
                elements = self._fold(values)
                message_size = math.prod(values.shape[1:])
                size = math.prod(self.shape)
                if elements is not None and not np.any(offsets * message_size % max(size, 1)):
                    new_offsets = offsets * message_size // max(size, 1)
                    return replace(samples, values=elements, offsets=new_offsets, names=self.names, **restored)
            case Texts() if self.kind == "text":
                return replace(samples, **restored)
            case Frames(resized=None) if self.kind == "frames":
                restored |= {"unit_m": self.unit_m, "intrinsics": self.intrinsics, "resized": self.resized}
                return replace(samples, **restored)
            case Frames() if self.kind == "frames":  # this ingest resized the frames, so the exported facts do not fit
                return replace(samples, **restored)
        return None

    def _fold(self, values: np.ndarray) -> np.ndarray | None:
        """Returns values ``[n, ...]`` as ``[m, *shape]``, in the exported dtype if it can be had; None if they do not fit."""
        size = math.prod(self.shape)
        if size == 0 or values.size % size:
            return None
        try:
            dtype = numpy_dtype(self.dtype) if self.dtype in _NARROW else values.dtype
        except Error:  # the package for bfloat16 is missing; float32 holds the numbers
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
    """Returns the episode's columns from the metadata record of an export; none if another program wrote the record."""
    try:
        columns = json.loads(record["episode"])
    except (ValueError, KeyError, RecursionError):
        return {}
    if not isinstance(columns, dict):
        return {}
    return {cast(str, key): value for key, value in columns.items() if key not in _AUTOMATIC and value is not None}


def texts_of(record: Mapping[str, str]) -> dict[str, dict[str, str | None]]:
    """Returns the tables of texts in the same record, by their names. The attribute ``texts`` of a stream names its table."""
    try:
        tables = json.loads(record.get("texts", "{}"))
    except (ValueError, RecursionError):
        return {}
    return {
        name: table
        for name, table in (tables.items() if isinstance(tables, dict) else ())
        if isinstance(table, dict) and all(isinstance(text, str | None) for text in table.values())
    }
