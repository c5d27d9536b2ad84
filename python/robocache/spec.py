"""The description of a Loader's batches as one value, which can be written to a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import _lib, errors
from ._operation import Array
from ._temporary import write_whole
from .actions.conversions import as_recorded, conversions_from_json
from .affine import Affine, AffineOf
from .ingest.files import read_whole
from .ingest.recording import naming

_spec_json = _lib.function("spec_json")


class Spec:
    """The description of a :class:`Loader`'s batches: how the rows around a moment become a sample.

    It names no dataset and no file. :attr:`Loader.spec` returns it. Two specs are equal if they make equal batches of the same
    rows. The random steps of `images` are off: crops are in the centre, and colours stay.

    Args:
        text: JSON from :meth:`to_json`. Numbers keep every bit.

    Attributes:
        keys: ``{key: fields}``: for each key of the batch its ``stream``, ``moment`` (None, or how a loader draws goals; the
            user of a spec chooses them), ``dtype``, ``shape``, ``offsets_ns`` (one per step, from the moment) or
            ``offsets_rows`` (one per step, from the last row at or before the moment), ``one_step``, ``offset_ns`` (the
            sensor's latency), ``causal``, ``max_gap_ns``, ``tolerance_ns``, ``convert``, ``images``, ``has_intrinsics``, and
            ``rows``: the stream that fills the key, or None if the source has no such stream.

    Raises:
        ArgumentError, ArgumentTypeError: a field is missing, unknown or repeated, a newer RoboCache wrote the spec, or a value
            cannot come from a Loader. The message names the field.

    Example:
        >>> loader = robocache.Loader(ds, batch_size=32, delta_timestamps={"action": [0.0, 0.1]})
        >>> loader.save_spec("spec.json")
        >>> robocache.Spec.load("spec.json") == loader.spec
        True
    """

    __slots__ = ("_json",)

    def __init__(self, text: str) -> None:
        self._json = str(_spec_json(_lib.text("text", text)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Spec:
        """Reads a file that :meth:`save` wrote.

        Raises:
            FileError: the file is missing or is no spec; the message names file and field.
        """
        file = Path(_lib.path_text(path))
        with naming(file):
            return cls(read_whole(file).decode("utf-8"))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the spec as JSON. The file appears, or replaces an older one, only when it is complete.

        Raises:
            FileError: the file cannot be written.
        """
        file = Path(_lib.path_text(path))
        with naming(file):
            write_whole(file, self._json)

    def to_json(self) -> str:
        """Returns the spec as JSON. Equal specs have the same text."""
        return self._json

    @property
    def keys(self) -> dict[str, dict[str, Any]]:
        return {key.pop("key"): key for key in json.loads(self._json)["keys"]}

    @property
    def snap_ns(self) -> int:
        """A target closer than this to a row's stamp is that row."""
        return int(json.loads(self._json)["snap_ns"])

    def to_absolute(self, key: str, x: Array, batch: Mapping[str, Any]) -> Array:
        """Turns a policy's output back into recorded values, as :meth:`Loader.to_absolute`, without a dataset.

        Args:
            key, x, batch: as for :meth:`Loader.to_absolute`. `batch` needs only ``<key>_base``, the robot's present state.

        Raises:
            ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
        """
        keys = self.keys
        fields = keys.get(_lib.text("key", key))
        if fields is None or fields["convert"] is None or fields["rows"] is None:
            others = ", ".join(repr(name) for name, key in keys.items() if key["convert"] and key["rows"]) or "none"
            raise errors.ArgumentError(f"key: expected one with conversions, which are {others}, got {key!r}")
        convert, rows = fields["convert"], fields["rows"]
        given = x
        if rows["affine"] is not None:
            x = Affine.of_key(fields).unnormalize(x)
        conversions = conversions_from_json(convert["steps"], rows["shape"][0])
        absolute: Array = as_recorded(
            key, given, x, batch, conversions, one_step=fields["one_step"], has_base=bool(convert["base"])
        )
        return absolute

    def unnormalize(self, key: str, x: Array) -> Array:
        """Turns a policy's output into recorded units, as :meth:`Loader.unnormalize`, without a dataset.

        Raises:
            ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
        """
        return AffineOf(lambda _: self.keys, 1)[_lib.text("key", key)].unnormalize(x)

    def __eq__(self, other: object) -> bool:
        return self._json == other._json if isinstance(other, Spec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._json)

    def __reduce__(self) -> tuple[Any, ...]:
        return Spec, (self._json,)

    def __repr__(self) -> str:
        """Shows each key with the shape and dtype of a sample's array."""
        keys = []
        for name, key in self.keys.items():
            steps = len(key["offsets_ns"] or key["offsets_rows"])
            shape = key["shape"] if key["one_step"] else [steps, *key["shape"]]
            keys.append(f"{name} {shape} {key['dtype']}")
        return f"robocache.Spec({', '.join(keys)})"
