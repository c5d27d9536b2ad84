"""The description of a Loader's batches, as one value that is written to a file and read back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import _lib, errors
from ._operation import Array
from ._temporary import write_whole
from .actions.conversions import as_recorded, from_a_batch
from .affine import Affine, AffineOf
from .ingest.files import check_file
from .ingest.recording import naming

_spec_json = _lib.function("spec_json")


class Spec:
    """The description of a :class:`Loader`'s batches: what becomes of rows around a moment on their way into a batch.

    It names no dataset and no file. :attr:`Loader.spec` gives it, and two specs are equal if batches of the same rows are. What
    is random in `images` is off: crops are in the centre, and colours stay.

    Args:
        text: the JSON that :meth:`to_json` gives. Numbers come back bit for bit.

    Attributes:
        keys: ``{key: fields}``: for each key of the batch its ``stream``, ``moment`` (None, or how goals were drawn: they
            are given elsewhere), ``dtype``, ``shape``, ``offsets_ns`` (a step each, from the moment),
            or instead ``offsets_rows`` (a step each, from the last row at or before the moment), ``one_step``, ``offset_ns`` (the sensor's latency), ``causal``, ``max_gap_ns``, ``tolerance_ns``,
            ``convert``, ``images``, ``has_intrinsics``, and ``rows``: the stream that fills it, or None where the source has no such stream.

    Raises:
        ArgumentError, ArgumentTypeError: naming the field: one that is missing, unknown or repeated, a version that a newer
            RoboCache wrote, or a value that no Loader gives.

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
            FileError: the file is missing or is no spec; the error names file and field.
        """
        file = Path(_lib.path_text(path))
        with naming(file):
            check_file(file)
            return cls(file.read_bytes().decode("utf-8"))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the spec as JSON. The file appears only when it is complete; until then an older one stays.

        Raises:
            FileError: the file cannot be written.
        """
        file = Path(_lib.path_text(path))
        with naming(file):
            write_whole(file, self._json)

    def to_json(self) -> str:
        """One text for one value."""
        return self._json

    @property
    def keys(self) -> dict[str, dict[str, Any]]:
        return {key.pop("key"): key for key in json.loads(self._json)["keys"]}

    @property
    def snap_ns(self) -> int:
        """A moment closer than this to a row's stamp is that row."""
        return int(json.loads(self._json)["snap_ns"])

    def to_absolute(self, key: str, x: Array, batch: Mapping[str, Any]) -> Array:
        """A policy's output as it was recorded, as :meth:`Loader.to_absolute` does it, without a dataset.

        Args:
            key: one with ``convert``.
            x: ``[B, T, E]``, or ``[B, E]`` for a window without offsets: what the policy puts out.
            batch: a dict with ``<key>_base`` ``[B, D]``: the robot's state now, as it was recorded, its features in the key's
                order. Not needed where no conversion compares with a state.

        Returns:
            ``[B, T, D]``, of x's dtype, framework and device, with gradients to x.

        Raises:
            ArgumentError, ArgumentTypeError: naming the argument, what was expected and what came.
        """
        keys = self.keys
        fields = keys.get(key)
        if fields is None or fields["convert"] is None or fields["rows"] is None:
            of = ", ".join(repr(name) for name, of in keys.items() if of["convert"] and of["rows"]) or "none"
            raise errors.ArgumentError(f"key: expected one with conversions, which are {of}, got {key!r}")
        asked, rows = fields["convert"], fields["rows"]
        if rows["affine"] is not None:
            x = Affine.of_key(fields).unnormalize(x)
        conversions = from_a_batch(asked["steps"], rows["shape"][0])
        made: Array = as_recorded(key, x, batch, conversions, one_step=fields["one_step"], has_base=bool(asked["base"]))
        return made

    def unnormalize(self, key: str, x: Array) -> Array:
        """A policy's output in recorded units, as :meth:`Loader.unnormalize` does it, without a dataset.

        Raises:
            ArgumentError, ArgumentTypeError: naming the argument, what was expected and what came.
        """
        return AffineOf(lambda _: self.keys, 1)[key].unnormalize(x)

    def __eq__(self, other: object) -> bool:
        return self._json == other._json if isinstance(other, Spec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._json)

    def __reduce__(self) -> tuple[Any, ...]:
        return Spec, (self._json,)

    def __repr__(self) -> str:
        """The keys with the shape and the dtype of a sample's array."""
        keys = []
        for name, key in self.keys.items():
            steps = len(key["offsets_ns"] or key["offsets_rows"])
            shape = key["shape"] if key["one_step"] else [steps, *key["shape"]]
            keys.append(f"{name} {shape} {key['dtype']}")
        return f"robocache.Spec({', '.join(keys)})"
