"""Finds the methods of interpolation that a source declares: names declare rotations, types declare whole numbers.

Values are not examined, because four numbers of length 1 may be anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from .recording import Notes, Ragged, Rows, Samples

Block = list[Any]  # [start, stop, method]

# A word that means a quaternion of four numbers, and a word that means a rotation, a quaternion if its components are x, y, z, w.
_QUATERNION = frozenset({"quat", "quats", "quaternion", "quaternions", "xquat"})
_ROTATION = _QUATERNION | {"q", "orientation", "orient", "ori", "orn", "rotation", "rot", "attitude"}
# PX4 calls a quaternion q. Elsewhere q is as often joint positions.
PX4_WORDS = _QUATERNION | {"q"}
# Words for quantities of a rotation that are not rotations themselves.
_OTHER = {"vel", "velocity", "rate", "rates", "dot", "cov", "covariance", "std", "var", "variance"}
# A component's letter ends a name, or a word within one: qx, q[x], qx_world, q_x_world.
_COMPONENT = re.compile(r"[ ._/\[-]?([xyzwXYZW])\]?(?=$|[ ._/\[(-])")
_BRACKETS = re.compile(r" *[\[(][^\])]*[\])]")
_GAP = "\0"  # where a component's letter was
_NUMBERED = re.compile(r"(.*?)[ ._\[-]?(\d)\]?")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def with_rotations(streams: Iterable[tuple[str, Samples]], notes: Notes) -> Iterator[tuple[str, Samples]]:
    """Yields the streams, with ``attributes["methods"]`` for the rotations that their names declare among features without a method."""
    known: dict[tuple[str, tuple[str, ...], tuple[int, ...]], list[Block]] = {}
    for stream, samples in streams:
        if isinstance(samples, Rows | Ragged) and samples.values.dtype.kind not in "biu":
            key = stream, tuple(samples.names or ()), samples.values.shape[1:]
            if key not in known:
                known[key] = rotations_of(*key)
                for four in scattered(samples.names or ()):
                    features = ", ".join(f"{samples.names[i]} [{i}]" for i in four)  # type: ignore[index]
                    why = f"{features} are not adjacent: they are interpolated number by number"
                    notes.leave_out(f"{stream}: a rotation", why)
            if methods := with_others(samples.attributes.get("methods", []), known[key]):
                samples = replace(samples, attributes={**samples.attributes, "methods": methods})
        yield stream, samples


def rotations_of(
    stream: str, names: Sequence[str], shape: Sequence[int], words: Iterable[str] = _QUATERNION
) -> list[Block]:
    """Returns the quaternions in a row of that shape: [[start, stop, "slerp"], ...].

    words: the words that declare four numbers without names of components.
    """
    features = prod(shape)
    starts = []
    if shape and shape[-1] == 4 and _says(stream, words):
        starts = list(range(0, features, 4))
    elif len(names) == features:
        starts = _by_names(names, words)
    return [[start, start + 4, "slerp"] for start in starts]


def _by_names(names: Sequence[str], words: Iterable[str]) -> list[int]:
    components = [_components(name) for name in names]
    numbered = [{match[1]: match[2]} if (match := _NUMBERED.fullmatch(name)) else {} for name in names]
    sizes: dict[str, int] = {}
    for numbers in numbered:
        for stem in numbers:
            sizes[stem] = sizes.get(stem, 0) + 1
    starts: list[int] = []
    for start in range(len(names) - 3):
        if starts and start < starts[-1] + 4:
            continue
        for found, letters, of in ((components, ("wxyz",), _ROTATION), (numbered, ("0123", "1234"), words)):
            four = found[start : start + 4]
            if any(
                "".join(sorted(one[stem] for one in four)) in letters
                and _says(stem, of)
                and (found is components or sizes[stem] == 4)
                for stem in set(four[0]).intersection(*four[1:])
            ):
                starts.append(start)
                break
    return starts


def scattered(names: Sequence[str]) -> list[list[int]]:
    """Returns the indices of the components of each declared quaternion whose components are not adjacent."""
    components: dict[str, list[tuple[int, str]]] = {}
    for number, name in enumerate(names):
        for stem, letter in _components(name).items():
            if _says(stem, _ROTATION):
                components.setdefault(stem, []).append((number, letter))
    return [
        [number for number, _ in four]
        for four in components.values()
        if sorted(letter for _, letter in four) == list("wxyz") and four[-1][0] - four[0][0] > 3
    ]


def _components(name: str) -> dict[str, str]:
    """Returns each letter x, y, z or w that may name a component, by the name without it."""
    name = _BRACKETS.sub(lambda brackets: brackets[0] if len(brackets[0].strip()) == 3 else "", name)
    found = _COMPONENT.finditer(name)
    return {f"{name[: match.start()]}{_GAP}{name[match.end() :]}": match[1].lower() for match in found}


def with_held(methods: Sequence[Block], is_whole: Sequence[bool]) -> list[Block]:
    """Returns the methods of a stream of floats, with "previous" for the other features that are whole numbers by their types.

    Nothing lies between two modes, flags or counts. Streams of integers are held as they are.

    is_whole: of each feature, whether its type is bool, enum or integer.
    """
    return with_others(methods, _runs([feature for feature, whole in enumerate(is_whole) if whole], "previous"))


def with_others(methods: Sequence[Block], others: Sequence[Block]) -> list[Block]:
    """Returns the blocks of `methods`, and `others` for the features that these do not name. A rotation is not cut."""
    taken = {feature for start, stop, _ in methods for feature in range(start, stop)}
    blocks = list(methods)
    for start, stop, method in others:
        free = [feature for feature in range(start, stop) if feature not in taken]
        if len(free) == stop - start:
            blocks.append([start, stop, method])
        elif method not in ("slerp", "pose"):
            blocks += _runs(free, method)
    return sorted(blocks)


def _runs(features: Sequence[int], method: str) -> list[Block]:
    blocks: list[Block] = []
    for feature in features:
        if blocks and blocks[-1][1] == feature:
            blocks[-1][1] = feature + 1
        else:
            blocks.append([feature, feature + 1, method])
    return blocks


def declares_whole(dtype: object) -> bool:
    """Whether a file's word for a dtype says bool or integer."""
    return str(dtype).startswith(("bool", "int", "uint"))


def says_quaternion(name: str) -> bool:
    """Whether the last part of a type's or field's name has a word for a quaternion."""
    return _says(name, _QUATERNION)


def _says(name: str, words: Iterable[str]) -> bool:
    before, _, after = name.partition(_GAP)
    said = {word.lower() for word in _WORD.findall(re.split(r"[./]", before)[-1] + after)}
    return not said.isdisjoint(words) and said.isdisjoint(_OTHER)
