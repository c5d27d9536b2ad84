"""Messages in JSON: their type is what all of them have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..recording import as_utf8
from .bags import Payload
from .batches import MAX_LEAVES, Leaf, Trees

_NAN = float("nan")
# Levels of objects in objects; deeper ones are left out.
_DEPTH = 16


class JsonDecoder:
    """Of messages of one topic: objects, of which fields that are met later are read from then on.

    A number that is missing or null is NaN, a text that is missing is empty; so what is a whole number in some messages and missing
    in others is float64, and so is what has a point in some.
    """

    is_light = False

    def __init__(self) -> None:
        self.leaves: tuple[Leaf, ...] = ()
        self.left_out: dict[str, str] = {}
        self._kinds: dict[str, str] = {}
        self._seen = 0

    def decode(self, payloads: Sequence[Payload]) -> tuple[Trees, dict[int, str]]:
        """As of :class:`Decoder`."""
        bad: dict[int, str] = {}
        trees: list[dict[str, Any]] = []
        for index, payload in enumerate(payloads):
            try:
                message = json.loads(bytes(payload))
                if not isinstance(message, dict):
                    raise ValueError(f"expected an object, got {type(message).__name__}")
                trees.append(_flatten(message))
            except (ValueError, RecursionError) as error:
                bad[index] = f"no JSON: {error}"
        self._learn(trees)
        return Trees([self._fill(tree) for tree in trees]), bad

    def _learn(self, trees: list[dict[str, Any]]) -> None:
        for tree in trees:
            for path, value in tree.items():
                kind, before = _kind(value), self._kinds.get(path)
                if before is None and len(self._kinds) == MAX_LEAVES:
                    self.left_out["other fields"] = f"behind the first {MAX_LEAVES} that were met"
                elif before is None or before == "none":
                    # What the messages before this one lack is NaN, which whole numbers do not have.
                    self._kinds[path] = "float" if kind in ("int", "bool") and (self._seen or before) else kind
                elif kind != before and kind != "none":
                    self._kinds[path] = _join(before, kind)
            for path, before in self._kinds.items():
                if path not in tree or tree[path] is None:
                    self._kinds[path] = "float" if before in ("int", "bool") else before
            self._seen += 1
        self.leaves = tuple(_leaf(path, kind) for path, kind in self._kinds.items() if kind not in ("none", "mixed"))
        for path, kind in self._kinds.items():
            if kind == "mixed":
                self.left_out[path] = "values of several kinds, or lists of lists or of objects"

    def _fill(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        full: dict[str, Any] = {}
        for leaf in self.leaves:
            value = tree.get(leaf.path)
            if value is None:
                value = {"number": _NAN, "text": ""}.get(leaf.kind, ())
            elif leaf.kind == "numbers":
                value = [_NAN if number is None else number for number in value]
            elif leaf.kind == "text":  # half of a pair of surrogates is no UTF-8
                value = as_utf8(value)
            elif leaf.kind == "texts":
                value = [as_utf8(text) for text in value]
            full[leaf.path] = value
        return full


def _flatten(message: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in message.items():
        if isinstance(value, dict) and depth < _DEPTH:
            flat.update(_flatten(value, f"{prefix}{name}.", depth + 1))
        else:
            flat[as_utf8(prefix + name)] = value
    return flat


def _kind(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "mixed"
    if isinstance(value, float):
        return "float"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        kinds = {_kind(item) for item in value}
        if not kinds:
            return "list"
        if kinds <= {"int", "float", "bool", "none"}:
            return "ints" if kinds == {"int"} else "bools" if kinds == {"bool"} else "floats"
        if kinds == {"text"}:
            return "texts"
    return "mixed"


def _join(one: str, other: str) -> str:
    """A kind that holds both."""
    both = {one, other}
    if both <= {"int", "float", "bool"}:
        return "int" if "float" not in both else "float"
    if "list" in both:
        (kind,) = both - {"list"}
        return kind if kind in ("ints", "floats", "bools", "texts") else "mixed"
    if both <= {"ints", "floats", "bools"}:
        return "floats"
    return "mixed"


def _leaf(path: str, kind: str) -> Leaf:
    dtypes = {"int": np.int64, "float": np.float64, "bool": np.bool_}
    if kind in dtypes:
        return Leaf(path, "number", np.dtype(dtypes[kind]))
    if kind in ("text", "texts"):
        return Leaf(path, "text" if kind == "text" else "texts")
    return Leaf(path, "numbers", np.dtype(dtypes[{"ints": "int", "bools": "bool"}.get(kind, "float")]))
