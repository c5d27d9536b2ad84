"""What the batches of a Loader hold, as one value that is written to a file and read back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from . import _lib
from ._temporary import write_whole
from .ingest.files import check_file
from .ingest.recording import naming

_spec_json = _lib.function("spec_json")


class Spec:
    """What the batches of a :class:`Loader` hold: what becomes of rows around a moment on their way into a batch.

    It names no dataset and no file. :attr:`Loader.spec` gives it, and two specs are equal if batches of the same rows are. What
    is random in `images` is off: crops are in the centre, and colours stay.

    Args:
        text: the JSON that :meth:`to_json` gives. Numbers come back bit for bit.

    Attributes:
        keys: ``{key: fields}``: for each key of the batch its ``dtype``, ``shape``, ``offsets_ns`` (a step each, from the moment),
            ``one_step``, ``offset_ns`` (the sensor's latency), ``causal``, ``max_gap_ns``, ``tolerance_ns``,
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
            shape = key["shape"] if key["one_step"] else [len(key["offsets_ns"]), *key["shape"]]
            keys.append(f"{name} {shape} {key['dtype']}")
        return f"robocache.Spec({', '.join(keys)})"
