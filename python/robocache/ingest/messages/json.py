"""Decodes JSON messages. The fields of a topic are inferred from all of its messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..budget import check_decoded
from ..recording import as_utf8
from .bags import Payload
from .batches import MAX_LEAVES, Leaf, Trees

_NAN = float("nan")
# Floats that protobuf's JSON mapping writes as texts, since JSON has no numbers for them.
_SPECIAL = frozenset({"NaN", "Infinity", "-Infinity"})
# Objects nested deeper than this are left out.
_DEPTH = 16
# The most memory of one value: that of an empty list.
_VALUE_BYTES = 100
_COMPONENTS = frozenset("xyzw")
_NUMERIC = frozenset({"int", "ints", "float", "floats", "special"})


class JsonDecoder:
    """Decodes messages of one topic, which are objects. A field that first appears later is read from then on.

    The texts "NaN", "Infinity" and "-Infinity" are floats, unless their field has other texts.

    A missing number or null becomes NaN, a missing text becomes empty. A field is therefore float64 if it is a whole number in
    some messages and missing in others. It is float64 too if it has a fraction in some, or is a number in the schema.

    A field is whole if the schema says integer or boolean or lists whole numbers (enum, const), or if all of its values are
    bools. Where it is float64, it is still held between messages.

    schema: the channel's JSON Schema; other bytes are ignored.
    floats: the paths of fields that are not whole numbers, as other messages have shown.
    """

    is_light = False

    def __init__(self, schema: bytes = b"", floats: Iterable[str] = ()) -> None:
        self.leaves: tuple[Leaf, ...] = ()
        self.left_out: dict[str, str] = {}
        declared = _declared(schema)
        self._fields = _Fields(declared["number"] | set(floats), declared["whole"] - declared["number"])
        self._whole: frozenset[str] = frozenset()

    def decode(self, payloads: Sequence[Payload]) -> tuple[Trees, dict[int, str]]:
        """As in :class:`Decoder`."""
        bad: dict[int, str] = {}
        trees: list[dict[str, Any]] = []
        for index, payload in enumerate(payloads):
            try:
                text = bytes(payload)
                values = sum(map(text.count, b",[{"))
                check_decoded(f"{values} values", values * _VALUE_BYTES + 2 * len(text))
                message = json.loads(text)
                if not isinstance(message, dict):
                    raise ValueError(f"expected an object, got {type(message).__name__}")
                trees.append(_flatten(message))
            except (ValueError, RecursionError) as error:
                bad[index] = f"no JSON: {error}"
        self._fields.learn(trees)
        self.leaves = self._fields.leaves()
        self.left_out |= self._fields.left_out
        return Trees([self._fields.fill(tree, self.leaves) for tree in trees]), bad

    def no_longer_whole(self) -> frozenset[str]:
        """Returns the paths of fields that were whole numbers at the last call but are not any more."""
        before, self._whole = self._whole, frozenset(self._fields.whole(""))
        return before - self._whole


class _Fields:
    """The fields that objects have, and those of the objects in their lists."""

    def __init__(self, floats: frozenset[str], whole: frozenset[str]) -> None:
        self.left_out: dict[str, str] = {}
        self._floats = floats
        self._declared_whole = whole
        self._numbers: set[str] = set()  # fields with a number that is not a bool
        self._kinds: dict[str, str] = {}
        self._inner: dict[str, _Fields] = {}
        self._beyond: set[str] = set()  # fields with whole numbers that float64 does not hold
        self._seen = 0

    def learn(self, trees: Sequence[Mapping[str, Any]]) -> None:
        for tree in trees:
            for path, value in tree.items():
                kind, before = _kind(value), self._kinds.get(path)
                if kind in ("int", "ints", "floats") and path not in self._beyond and _is_beyond(value):
                    self._beyond.add(path)
                if kind in _NUMERIC and path not in self._numbers and _has_number(value):
                    self._numbers.add(path)
                if kind == "int" and (path in self._floats or _is_component(path, tree)):
                    kind = "float"
                elif kind == "ints" and f"{path}[]" in self._floats:
                    kind = "floats"
                if before is None and len(self._kinds) == MAX_LEAVES:
                    self.left_out["other fields"] = f"more than the first {MAX_LEAVES}"
                elif before is None or before == "none":
                    # Earlier messages lack the field. It is NaN there, so it must be a float.
                    self._kinds[path] = "float" if kind in ("int", "bool") and (self._seen or before) else kind
                elif kind != before and kind != "none":
                    self._kinds[path] = _join(before, kind)
            for path, before in self._kinds.items():
                if path not in tree or tree[path] is None:
                    self._kinds[path] = "float" if before in ("int", "bool") else before
            self._seen += 1
        for path in self._beyond:
            if self._kinds.get(path) in ("float", "floats"):
                self.left_out[f"{path}: its last digits"] = "of whole numbers beyond 2^53, as float64"
        for path, kind in self._kinds.items():
            if kind == "mixed":
                self.left_out[path] = "values of several kinds, or lists of lists"
            elif kind == "records":
                if path not in self._inner:
                    start = f"{path}[]."
                    record_paths = (
                        frozenset(name.removeprefix(start) for name in declared if name.startswith(start))
                        for declared in (self._floats, self._declared_whole)
                    )
                    self._inner[path] = _Fields(*record_paths)
                inner = self._inner[path]
                inner.learn([record for tree in trees for record in tree.get(path) or ()])
                self.left_out |= {f"{path}.{name}": why for name, why in inner.left_out.items()}

    def whole(self, prefix: str) -> Iterator[str]:
        """Yields the paths of fields that are whole numbers, in the form of :func:`_declared`."""
        for path, kind in self._kinds.items():
            if kind in ("int", "ints"):
                yield f"{prefix}{path}{'[]' * (kind == 'ints')}"
            elif kind == "records":
                yield from self._inner[path].whole(f"{prefix}{path}[].")

    def leaves(self) -> tuple[Leaf, ...]:
        return tuple(
            Leaf(path, "records", fields=self._inner[path].leaves())
            if kind == "records"
            else _leaf(path, kind, self._is_whole(path))
            for path, kind in self._kinds.items()
            if kind not in ("none", "mixed")
        )

    def _is_whole(self, path: str) -> bool:
        return path not in self._numbers or path in self._declared_whole or f"{path}[]" in self._declared_whole

    def fill(self, tree: Mapping[str, Any], leaves: Sequence[Leaf]) -> dict[str, Any]:
        full: dict[str, Any] = {}
        for leaf in leaves:
            value = tree.get(leaf.path)
            if value is None:
                value = {"number": _NAN, "text": ""}.get(leaf.kind, ())
            elif leaf.kind == "number" and isinstance(value, str):
                value = float(value)
            elif leaf.kind == "numbers":
                value = [
                    _NAN if number is None else float(number) if isinstance(number, str) else number for number in value
                ]
            elif leaf.kind == "text":  # a single surrogate is no UTF-8
                value = as_utf8(value)
            elif leaf.kind == "texts":
                value = [as_utf8(text) for text in value]
            elif leaf.kind == "records":
                value = [self._inner[leaf.path].fill(record, leaf.fields) for record in value]
            full[leaf.path] = value
        return full


def _declared(schema: bytes) -> dict[str, frozenset[str]]:
    """Returns the paths of fields that a JSON Schema declares as "number", and of "whole" ones, which are integers or bools. Examples
    of paths: "pose.x", "points[].x", "ranges[]"."""
    found: dict[str, set[str]] = {"number": set(), "whole": set()}
    with suppress(ValueError, RecursionError):
        root = json.loads(schema)
        for path, kind in _declarations(root, root, "", 0):
            found[kind].add(path)
    return {kind: frozenset(paths) for kind, paths in found.items()}


def _declarations(node: Any, root: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    for _ in range(_DEPTH):
        if not isinstance(node, dict) or not isinstance(node.get("$ref"), str):
            break
        reference, node = node["$ref"], root
        for name in reference.removeprefix("#").split("/")[1:]:
            node = node.get(name) if isinstance(node, dict) else None
    if not isinstance(node, dict) or depth > _DEPTH:
        return
    kinds = node.get("type")
    members = _members(node, depth)
    if members and all(isinstance(member, int) for member in members):
        kinds = "integer"  # also where the type of these members is number
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind in ("number", "integer", "boolean"):
            yield path, "number" if kind == "number" else "whole"
    for several in ("anyOf", "oneOf", "allOf"):
        for choice in node[several] if isinstance(node.get(several), list) else ():
            yield from _declarations(choice, root, path, depth + 1)
    properties = node.get("properties")
    for name, field in properties.items() if isinstance(properties, dict) else ():
        yield from _declarations(field, root, f"{path}.{name}" if path else name, depth + 1)
    if "items" in node:
        yield from _declarations(node["items"], root, f"{path}[]", depth + 1)


def _members(node: Any, depth: int = 0) -> list[Any] | None:
    """Returns the values other than null that a field of a JSON Schema may have; None if the schema lists none."""
    if not isinstance(node, dict) or depth > _DEPTH:
        return None
    if isinstance(node.get("enum"), list):
        return [member for member in node["enum"] if member is not None]
    if "const" in node:
        return [] if node["const"] is None else [node["const"]]
    for several in ("oneOf", "anyOf"):
        if isinstance(node.get(several), list):
            found = [[] if choice == {"type": "null"} else _members(choice, depth + 1) for choice in node[several]]
            return None if None in found else [member for members in found for member in members or ()]
    return None


def _flatten(message: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in message.items():
        if isinstance(value, dict) and depth < _DEPTH:
            inner = _flatten(value, f"{prefix}{name}.", depth + 1)
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            inner = {as_utf8(prefix + name): [_flatten(item, depth=depth + 1) for item in value]}
        else:
            inner = {as_utf8(prefix + name): value}
        if twice := flat.keys() & inner.keys():
            raise ValueError(f"two fields have the name {min(twice)!r}")
        flat |= inner
    return flat


def _is_component(path: str, tree: Mapping[str, Any]) -> bool:
    """Whether a field is one of several among x, y, z and w. Such fields are floats, although JSON may write 1.0 as 1."""
    stem, dot, name = path.rpartition(".")
    return name in _COMPONENTS and any(f"{stem}{dot}{other}" in tree for other in _COMPONENTS - {name})


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
        return "special" if value in _SPECIAL else "text"
    if isinstance(value, list):
        kinds = {"records" if isinstance(item, dict) else _kind(item) for item in value}
        if not kinds or kinds == {"records"}:
            return "records" if kinds else "list"
        if kinds <= {"int", "float", "bool", "none", "special"}:
            return "ints" if kinds == {"int"} else "bools" if kinds == {"bool"} else "floats"
        if kinds <= {"text", "special"}:
            return "texts"
    return "mixed"


def _has_number(value: Any) -> bool:
    return any(type(number) in (int, float, str) for number in (value if isinstance(value, list) else [value]))


def _is_beyond(value: Any) -> bool:
    """Whether float64 cannot hold one of these whole numbers exactly."""
    numbers = value if isinstance(value, list) else [value]
    return any(isinstance(number, int) and abs(number) > 2**53 and int(float(number)) != number for number in numbers)


def _join(one: str, other: str) -> str:
    """Returns a kind that can hold both."""
    both = {one, other}
    if both <= {"int", "float", "bool"}:
        return "int" if "float" not in both else "float"
    if "special" in both:
        (kind,) = both - {"special"}
        return "float" if kind in ("int", "float", "bool") else "text" if kind == "text" else "mixed"
    if "list" in both:
        (kind,) = both - {"list"}
        return kind if kind in ("ints", "floats", "bools", "texts", "records") else "mixed"
    if both <= {"ints", "floats", "bools"}:
        return "floats"
    return "mixed"


def _leaf(path: str, kind: str, is_whole: bool) -> Leaf:
    dtypes = {"int": np.int64, "float": np.float64, "special": np.float64, "bool": np.bool_}
    if kind in dtypes:
        return Leaf(path, "number", np.dtype(dtypes[kind]), whole=is_whole)
    if kind in ("text", "texts"):
        return Leaf(path, "text" if kind == "text" else "texts")
    dtype = np.dtype(dtypes[{"ints": "int", "bools": "bool"}.get(kind, "float")])
    return Leaf(path, "numbers", dtype, whole=is_whole)
