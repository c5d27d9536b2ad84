"""Decodes JSON messages. The fields of a topic are inferred from all of its messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import numpy as np

from ..budget import check_decoded
from ..recording import as_utf8
from .bags import Payload
from .batches import MAX_LEAVES, Leaf, Trees
from .clocks import NANOSECONDS, SECONDS, STAMPS

_NAN = float("nan")
# Floats that protobuf's JSON mapping writes as texts, since JSON has no numbers for them.
_SPECIAL = frozenset({"NaN", "Infinity", "-Infinity"})
# Objects nested deeper than this are left out.
_DEPTH = 16
# The most memory of one value: that of an empty list.
_VALUE_BYTES = 100
_COMPONENTS = frozenset("xyzw")
# The paths of the two numbers of a message's own stamp.
_STAMP_NUMBERS = frozenset(f"{stamp}.{name}" for stamp in STAMPS for name in (*SECONDS, *NANOSECONDS))
# Matches a stamp as protobuf's JSON mapping writes it. The groups: date and time, digits of the fraction, zone.
_TEXT_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
# The kinds of values, as :func:`_kind` returns them, that have numbers.
_NUMERIC = frozenset({"int", "ints", "float", "floats", "special"})


class JsonDecoder:
    """Decodes the messages of one topic, which are JSON objects. A field that first appears in a later message is read from then on.

    The texts "NaN", "Infinity" and "-Infinity" are floats, unless their field has other texts.

    A stamp may be an object of two numbers, or a text with a zone ("2024-05-31T13:45:00.123Z"). A message without it has the stamp 0.

    Any other missing number or null becomes NaN, a missing text becomes "". A field is therefore float64 if it is a whole number in some
    messages and missing in others. It is also float64 if it has a fraction in some message, or if the schema calls it a number.

    A field is whole if the schema calls it integer or boolean or lists whole numbers for it (enum, const), or if all of its values
    are bools. A whole field is held between messages even if it is float64.

    schema: the channel's JSON Schema; bytes that are none are ignored.
    floats: the paths of fields that are not whole numbers, as the messages of other recordings have shown.
    """

    may_keep_decoded = False

    def __init__(self, schema: bytes = b"", floats: Iterable[str] = ()) -> None:
        self.leaves: tuple[Leaf, ...] = ()
        self.left_out: dict[str, str] = {}
        declared = _read_schema(schema)
        self._fields = _Fields(declared["number"] | set(floats), declared["whole"] - declared["number"])
        self._whole_before: frozenset[str] = frozenset()

    def decode(self, payloads: Sequence[Payload]) -> tuple[Trees, dict[int, str]]:
        """Implements :class:`Decoder`."""
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
        """Returns the paths of fields that were whole numbers at the last call but are not now."""
        before, self._whole_before = self._whole_before, frozenset(self._fields.whole(""))
        return before - self._whole_before


class _Fields:
    """The fields that objects have, and the fields of the objects in their lists.

    floats: the paths of fields that are floats, although their values may all be whole.
    declared_whole: the paths of fields that the schema declares as whole numbers.
    """

    def __init__(self, floats: frozenset[str], declared_whole: frozenset[str]) -> None:
        self.left_out: dict[str, str] = {}
        self._floats = floats
        self._declared_whole = declared_whole
        self._numbers: set[str] = set()  # fields with a number that is not a bool
        self._kinds: dict[str, str] = {}
        self._inner: dict[str, _Fields] = {}  # the fields of the objects in lists
        self._beyond: set[str] = set()  # fields with whole numbers that float64 does not hold
        self._seen = 0

    def learn(self, trees: Sequence[Mapping[str, Any]]) -> None:
        """Adds the fields of these objects, and decides for each field on a kind that holds all its values."""
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
                    # If earlier messages lack the field, it is NaN in them, so it must be a float.
                    is_missing = (self._seen or before) and path not in _STAMP_NUMBERS
                    self._kinds[path] = "float" if kind in ("int", "bool") and is_missing else kind
                elif kind != before and kind != "none":
                    self._kinds[path] = _join(before, kind)
            for path, before in self._kinds.items():
                if (path not in tree or tree[path] is None) and path not in _STAMP_NUMBERS:
                    self._kinds[path] = "float" if before in ("int", "bool") else before
            self._seen += 1
        for stamp in self._kinds.keys() & {*STAMPS}:
            is_given = self._kinds[stamp] != "none"
            if is_given and any(path.startswith(f"{stamp}.") for path in self._kinds):
                self._kinds[stamp] = "mixed"  # an object in some messages, a text in others
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
        """Yields the paths of fields that are whole numbers, in the form of :func:`_read_schema`, after `prefix`."""
        for path, kind in self._kinds.items():
            if kind in ("int", "ints"):
                yield f"{prefix}{path}{'[]' * (kind == 'ints')}"
            elif kind == "records":
                yield from self._inner[path].whole(f"{prefix}{path}[].")

    def leaves(self) -> tuple[Leaf, ...]:
        return tuple(
            Leaf(path, "records", fields=self._inner[path].leaves())
            if kind == "records"
            else _make_leaf(path, kind, self._is_whole(path))
            for path, kind in self._kinds.items()
            if kind not in ("none", "mixed")
        )

    def _is_whole(self, path: str) -> bool:
        return path not in self._numbers or path in self._declared_whole or f"{path}[]" in self._declared_whole

    def fill(self, tree: Mapping[str, Any], leaves: Sequence[Leaf]) -> dict[str, Any]:
        """Returns an object with a value for each leaf, of the leaf's kind."""
        full: dict[str, Any] = {}
        for leaf in leaves:
            value = tree.get(leaf.path)
            if value is None:
                number = 0 if leaf.path in _STAMP_NUMBERS else _NAN
                value = {"number": number, "text": ""}.get(leaf.kind, ())
            elif leaf.kind == "number" and isinstance(value, str):
                value = float(value)
            elif leaf.kind == "numbers":
                value = [
                    _NAN if number is None else float(number) if isinstance(number, str) else number for number in value
                ]
            elif leaf.kind == "text":
                value = as_utf8(value)  # since half a surrogate pair is no UTF-8
            elif leaf.kind == "texts":
                value = [as_utf8(text) for text in value]
            elif leaf.kind == "records":
                value = [self._inner[leaf.path].fill(record, leaf.fields) for record in value]
            full[leaf.path] = value
        return full


def _read_schema(schema: bytes) -> dict[str, frozenset[str]]:
    """Returns the paths of fields that a JSON Schema declares as "number", and as "whole": integers or bools. Examples of paths: "pose.x",
    "points[].x", "ranges[]"."""
    paths_by_kind: dict[str, set[str]] = {"number": set(), "whole": set()}
    with suppress(ValueError, RecursionError):
        root = json.loads(schema)
        for path, kind in _declarations(root, root, "", 0):
            paths_by_kind[kind].add(path)
    return {kind: frozenset(paths) for kind, paths in paths_by_kind.items()}


def _declarations(node: Any, root: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yields the path and the kind, "number" or "whole", of each field that a part of the schema declares so."""
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
        kinds = "integer"  # even if the declared type is number
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind in ("number", "integer", "boolean"):
            yield path, "number" if kind == "number" else "whole"
    for keyword in ("anyOf", "oneOf", "allOf"):
        for choice in node[keyword] if isinstance(node.get(keyword), list) else ():
            yield from _declarations(choice, root, path, depth + 1)
    properties = node.get("properties")
    for name, field in properties.items() if isinstance(properties, dict) else ():
        yield from _declarations(field, root, f"{path}.{name}" if path else name, depth + 1)
    if "items" in node:
        yield from _declarations(node["items"], root, f"{path}[]", depth + 1)


def _members(node: Any, depth: int = 0) -> list[Any] | None:
    """Returns the values except null that a JSON Schema lists for a field; None if it lists none."""
    if not isinstance(node, dict) or depth > _DEPTH:
        return None
    if isinstance(node.get("enum"), list):
        return [member for member in node["enum"] if member is not None]
    if "const" in node:
        return [] if node["const"] is None else [node["const"]]
    for keyword in ("oneOf", "anyOf"):
        if isinstance(node.get(keyword), list):
            lists = [[] if choice == {"type": "null"} else _members(choice, depth + 1) for choice in node[keyword]]
            return None if None in lists else [member for members in lists for member in members or ()]
    return None


def _flatten(message: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Returns the values of an object by their paths, such as "pose.x". A list of objects stays a list, of flat objects."""
    flat: dict[str, Any] = {}
    for name, value in message.items():
        if prefix + name in STAMPS:
            value = _read_stamp(value)
        if isinstance(value, dict) and depth < _DEPTH:
            inner = _flatten(value, f"{prefix}{name}.", depth + 1)
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            inner = {as_utf8(prefix + name): [_flatten(item, depth=depth + 1) for item in value]}
        else:
            inner = {as_utf8(prefix + name): value}
        if repeated := flat.keys() & inner.keys():
            raise ValueError(f"two fields have the name {min(repeated)!r}")
        flat |= inner
    return flat


def _read_stamp(value: Any) -> Any:
    """Returns a stamp as an object of whole numbers; any other value unchanged."""
    if isinstance(value, str) and (match := _TEXT_STAMP.fullmatch(value)):
        moment, fraction, zone = match.groups()
        with suppress(ValueError):  # the calendar has no such time, or it is a leap second
            seconds = int(datetime.fromisoformat(moment + zone.replace("Z", "+00:00")).timestamp())
            return {"sec": seconds, "nsec": int((fraction or "").ljust(9, "0"))}
    if isinstance(value, dict):
        return {name: _as_whole(part) if name in (*SECONDS, *NANOSECONDS) else part for name, part in value.items()}
    return value


def _as_whole(value: Any) -> Any:
    """Returns a whole number that JSON has as a float, or as a text of digits, as an int; any other value unchanged."""
    is_whole = isinstance(value, float) and value.is_integer()
    return int(value) if is_whole or (isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value)) else value


def _is_component(path: str, tree: Mapping[str, Any]) -> bool:
    """Whether a field is named x, y, z or w and has another one of these beside it. Such fields are floats: JSON may write 1.0 as 1."""
    stem, dot, name = path.rpartition(".")
    return name in _COMPONENTS and any(f"{stem}{dot}{other}" in tree for other in _COMPONENTS - {name})


def _kind(value: Any) -> str:
    """Returns the kind of a value; "list" is an empty list, "mixed" has no leaf."""
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
    """Whether a value of a numeric kind has a number that is neither bool nor null; a text in it is "NaN" or the like."""
    return any(type(number) in (int, float, str) for number in (value if isinstance(value, list) else [value]))


def _is_beyond(value: Any) -> bool:
    """Whether a value has a whole number that float64 cannot hold exactly."""
    numbers = value if isinstance(value, list) else [value]
    return any(isinstance(number, int) and abs(number) > 2**53 and int(float(number)) != number for number in numbers)


def _join(kind: str, other_kind: str) -> str:
    """Returns a kind that can hold the values of two different kinds."""
    kinds = {kind, other_kind}
    if kinds <= {"int", "float", "bool"}:
        return "int" if "float" not in kinds else "float"
    if "special" in kinds:
        (kind,) = kinds - {"special"}
        return "float" if kind in ("int", "float", "bool") else "text" if kind == "text" else "mixed"
    if "list" in kinds:
        (kind,) = kinds - {"list"}
        return kind if kind in ("ints", "floats", "bools", "texts", "records") else "mixed"
    if kinds <= {"ints", "floats", "bools"}:
        return "floats"
    return "mixed"


def _make_leaf(path: str, kind: str, is_whole: bool) -> Leaf:
    dtypes = {"int": np.int64, "float": np.float64, "special": np.float64, "bool": np.bool_}
    if kind in dtypes:
        return Leaf(path, "number", np.dtype(dtypes[kind]), whole=is_whole)
    if kind in ("text", "texts"):
        return Leaf(path, "text" if kind == "text" else "texts")
    dtype = np.dtype(dtypes[{"ints": "int", "bools": "bool"}.get(kind, "float")])
    return Leaf(path, "numbers", dtype, whole=is_whole)
