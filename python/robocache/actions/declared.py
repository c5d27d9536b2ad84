"""Holds conversions against what a stream declares of its rotations: by names and units of features, attributes and methods."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import errors, feature_words
from ._arrays import feature_mask
from .conversions import Relative, Rescale, Rotate, StepDelta
from .rotations import MATRIX_ENTRIES, rotation_width

# Attributes that say what a stream's rotations are.
_ATTRIBUTE = re.compile(
    r"(?i)(?:quaternion|quat|euler|rotation|rot|orientation)(?:_(?:type|format|order|representation))?"
)
_ORDERS = {"scalar_first": "quat_wxyz", "wxyz": "quat_wxyz", "scalar_last": "quat_xyzw", "xyzw": "quat_xyzw"}
_TAKES_ROTATION = {"slerp": "quat", "angle": "euler"}
# Attributes that say whether a stream's numbers are relative: GR00T's absolute, robosuite's control_delta, ManiSkill's control_mode.
_ABSOLUTE = re.compile(r"(?i)(?:is_)?absolute")
_IS_RELATIVE = re.compile(r"(?i)(?:(?:is|use|control|action)_)*(?:delta|relative)s?(?:_(?:actions?|control))?")
_MODE = re.compile(r"(?i)(?:(?:action|control|controller)_)?(?:type|mode|space|rep|representation)")


@dataclass(frozen=True)
class FeatureFacts:
    """Facts that a stream declares, for each feature; a list without entries says nothing.

    Args:
        names: of features.
        units: of features, "" where there is none.
        attributes: the stream's own, with its methods.
        stream: its name.
    """

    names: Sequence[str] = ()
    units: Sequence[str] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    stream: str = ""

    def of(self, features: Sequence[int]) -> FeatureFacts:
        """Returns the facts of these features alone, in this order. Methods are those of whole rotations within them."""
        index = {feature: i for i, feature in enumerate(features)}
        names, units = (
            [said[f] if f < len(said) else "" for f in features] if said else [] for said in (self.names, self.units)
        )
        kept = [
            [index[start], index[start] + stop - start, method]
            for start, stop, method in _blocks(self.attributes)
            if [index.get(f, -1) - index.get(start, 0) for f in range(start, stop)] == list(range(stop - start))
        ]
        return FeatureFacts(names, units, {**self.attributes, "methods": kept}, self.stream)


def check_declared(name: str, conversions: Any, declared: FeatureFacts) -> None:
    """Checks what conversions say of rotations against what their stream declares; a stream without names and units passes.

    Raises:
        ArgumentError: a rotation is declared another kind, its components are in another order, angles turn about other axes or
            are in degrees, or a rotation begins at another feature.
    """
    features: list[int | None] = list(range(max(len(declared.names), len(declared.units))))  # None: computed
    known: dict[int, str] = {}  # the rotations that the conversions so far name, each by the feature where it begins
    for conversion in conversions:
        if isinstance(conversion, Relative | StepDelta):
            _check_radians(name, conversion, declared, features)
        for rotation, start, block in _rotations(conversion, features):
            if (before := known.get(start, rotation)) != rotation:
                raise errors.ArgumentError(
                    f"{name}: expected {before!r} from feature {start} on, as the conversion before it, got {rotation!r}"
                )
            known[start] = rotation
            own = [feature for feature in block if feature is not None]
            if len(own) == rotation_width("rotation", rotation):
                _check_rotation(name, rotation, own, declared)
        if isinstance(conversion, Relative) and conversion.kind != "joints":
            _check_positions(name, conversion, declared, features)
        elif isinstance(conversion, Rescale):
            features[conversion.features] = [None] * len(features[conversion.features])
        elif isinstance(conversion, Rotate):
            end = conversion.start + rotation_width("source", conversion.source)
            width = rotation_width("target", conversion.target)
            features[conversion.start : end] = [None] * width
            more = width - (end - conversion.start)
            known = {at + more * (at > conversion.start): rotation for at, rotation in known.items()}
            known[conversion.start] = conversion.target


def check_absolute(name: str, conversions: Any, declared: FeatureFacts) -> None:
    """Checks that conversions make nothing relative that its stream's attributes declare relative already.

    Raises:
        ArgumentError: it would be relative twice.
    """
    said = declared_relative(declared.attributes)
    for conversion in conversions if said else ():
        if isinstance(conversion, Relative | StepDelta) and (conversion.mask is None or any(conversion.mask)):
            raise errors.ArgumentError(
                f"{name}: expected values that are absolute, which {type(conversion).__name__} makes relative, got stream "
                f"'{declared.stream}', which is relative already as its attribute {said} says; leave the conversion out, or correct "
                "the attribute by a mapping at ingest"
            )


def relative_names(conversions: Any, declared: FeatureFacts, features: int) -> list[str]:
    """Returns the names, of the stream or of its features, that say relative where conversions make them so once more."""
    if any(_ABSOLUTE.fullmatch(key) and value is True for key, value in declared.attributes.items()):
        return []
    found: dict[str, None] = {}
    for conversion in conversions:
        if isinstance(conversion, Relative | StepDelta):
            taken = [f for f, is_taken in enumerate(feature_mask("mask", conversion.mask, features)) if is_taken]
            names = [declared.stream] * bool(taken) + [declared.names[f] for f in taken if f < len(declared.names)]
            found |= dict.fromkeys(each for each in names if feature_words.says_relative(each))
    return list(found)


def declared_relative(attributes: Mapping[str, Any]) -> str:
    """Returns the attribute that declares a stream's numbers relative; "" if none does."""
    return next((f"{key} = {value!r}" for key, value in attributes.items() if _declares_relative(key, value)), "")


def declared_absolute(attributes: Mapping[str, Any]) -> str:
    """Returns the attribute that declares them absolute; "" if none does."""
    return next(
        (
            f"{key} = {value!r}"
            for key, value in attributes.items()
            if (value is True and _ABSOLUTE.fullmatch(key)) or (value is False and _IS_RELATIVE.fullmatch(key))
        ),
        "",
    )


def is_absolute(attributes: Mapping[str, Any]) -> bool | None:
    """Returns whether attributes declare a stream's numbers absolute; None if they do not say it."""
    return False if declared_relative(attributes) else True if declared_absolute(attributes) else None


def _declares_relative(key: str, value: Any) -> bool:
    if isinstance(value, str):
        return bool(_MODE.fullmatch(key) and feature_words.says_relative(value))
    return (value is False and bool(_ABSOLUTE.fullmatch(key))) or (value is True and bool(_IS_RELATIVE.fullmatch(key)))


def check_alike(name: str, conversions: Any, declared: FeatureFacts, base: FeatureFacts) -> None:
    """Checks that a stream and the base that its conversions compare it with have the same units.

    Raises:
        ArgumentError: the units of a feature differ.
    """
    for conversion in conversions:
        if not isinstance(conversion, Relative | StepDelta):
            continue
        width = max(len(declared.units), len(base.units))
        for feature, is_taken in enumerate(feature_mask("mask", conversion.mask, width) if width else ()):
            own, other = (_unit_of(facts, feature) for facts in (declared, base))
            if is_taken and own and other and own != other:
                raise errors.ArgumentError(
                    f"{name}: expected one unit, since {type(conversion).__name__} subtracts feature by feature, got {own!r} of the key "
                    f"and {other!r} of the base for {_feature(declared, feature)}; convert one of them before it is stored"
                )


def misplaced(
    conversions: Any, declared: FeatureFacts, base: FeatureFacts, read: Sequence[int], features: int
) -> list[tuple[str, str]]:
    """Returns the names of features that are compared with another one of the base, which has theirs too, and the others' names.

    Args:
        base: of all the base's features; `read` are the indices of those that are compared.
    """
    found: dict[str, str] = {}
    for conversion in conversions:
        if isinstance(conversion, Relative | StepDelta):
            mask = feature_mask("mask", conversion.mask, features)
            for own, at, is_taken in zip(declared.names, read, mask, strict=False):
                other = base.names[at] if 0 <= at < len(base.names) else own
                if is_taken and own and other and own != other and list(base.names).count(own) == 1:
                    found[own] = other
    return list(found.items())


def straight_angles(conversions: Any, methods: Sequence[Any], features: int) -> list[int]:
    """Returns the features that a stream's own methods call angles and that conversions subtract without the shorter way."""
    angles = {feature for start, stop, method in methods if method == "angle" for feature in range(start, stop)}
    found: set[int] = set()
    for conversion in conversions:
        if isinstance(conversion, StepDelta) or (isinstance(conversion, Relative) and conversion.kind == "joints"):
            shorter = (
                [False] * features if conversion.angles is None else feature_mask("angles", conversion.angles, features)
            )
            taken = feature_mask("mask", conversion.mask, features)
            found |= {f for f in angles if taken[f] and not shorter[f]}
    return sorted(found)


def subtracted_rotations(conversions: Any, declared: FeatureFacts, features: int) -> list[int]:
    """Returns the features that are a rotation's by a stream's methods or names, and that conversions subtract one by one."""
    turning = {
        f for start, stop, method in _blocks(declared.attributes) if method == "slerp" for f in range(start, stop)
    }
    turning |= {f for f, name in enumerate(declared.names) if _kind_of(name) not in ("", "euler")}
    found: set[int] = set()
    for conversion in conversions:
        if isinstance(conversion, StepDelta) or (isinstance(conversion, Relative) and conversion.kind == "joints"):
            found |= {
                f
                for f, is_taken in enumerate(feature_mask("mask", conversion.mask, features))
                if is_taken and f in turning
            }
    return sorted(found)


def _rotations(conversion: Any, features: Sequence[int | None]) -> Iterator[tuple[str, int, list[int | None]]]:
    """Yields of each rotation of a conversion its name, the index in a row where it begins, and the stream's features that it reads."""
    if isinstance(conversion, Rotate):
        width = rotation_width("source", conversion.source)
        yield conversion.source, conversion.start, list(features[conversion.start : conversion.start + width])
    elif isinstance(conversion, Relative) and conversion.kind != "joints":
        width = rotation_width("rotation", conversion.rotation)
        taken = _taken(conversion, features)
        for begin in range(3, len(taken), 3 + width):
            block = taken[begin : begin + width]
            if block:
                yield conversion.rotation, block[0], [features[i] for i in block]


def _taken(conversion: Relative, features: Sequence[int | None]) -> list[int]:
    return [i for i, is_taken in enumerate(feature_mask("mask", conversion.mask, len(features))) if is_taken]


def _check_rotation(name: str, rotation: str, own: Sequence[int], declared: FeatureFacts) -> None:
    names = [declared.names[f] for f in own if f < len(declared.names)]
    expected = _expected_by_names(rotation, names)
    if expected:
        raise errors.ArgumentError(f"{name}: expected {expected}, as the features' names {names} say, got {rotation!r}")
    kind = rotation.partition("_")[0]
    stated = rotations_said(declared.attributes)
    said = "" if stated else _said_by_stream(declared.stream)
    if said and said not in (rotation.lower(), kind):
        raise errors.ArgumentError(
            f"{name}: expected {_written(said)}, as the name of stream '{declared.stream}' says, got {rotation!r}; a mapping at ingest "
            "says otherwise by the attribute rotation"
        )
    for attribute, said in stated.items():
        order = re.match(r"(?i)quat|euler", attribute)  # the order of quaternions says nothing of angles
        if said not in (rotation.lower(), kind) and (order is None or kind.startswith(order[0].lower())):
            value = declared.attributes[attribute]
            raise errors.ArgumentError(
                f"{name}: expected {_written(said)}, as the attribute {attribute} = {value!r} says, got {rotation!r}"
            )
    for start, stop, method in _blocks(declared.attributes):
        shared = [f for f in own if start <= f < stop]
        said = _TAKES_ROTATION.get(method, kind)
        if shared and (said != kind or (method == "slerp" and (own[0] - start) % 4)):
            where = f"features {start} to {stop}"
            raise errors.ArgumentError(
                f"{name}: expected {_written(said)} in {where}, as the stream's method {method!r} says, got {rotation!r} in features "
                f"{own[0]} to {own[-1] + 1}"
            )
    if (kind == "euler" or rotation == "rotvec") and (degrees := degrees_of(declared, own)):
        raise errors.ArgumentError(
            f"{name}: expected angles in radians, got {degrees!r} by the stream's units or names; a Rescale before the Rotate "
            "converts them, or the recording before it is stored"
        )


def _expected_by_names(rotation: str, names: Sequence[str]) -> str:
    """Returns the rotation that the features' names say, if it is another one than `rotation`; else ""."""
    kind = rotation.partition("_")[0]
    turns = [feature_words.axes_of_turns(each) for each in names]
    turning = bool(turns) and all(len(turn) == 1 for turn in turns)
    said = "".join(map(min, turns)) if turning else feature_words.letters_of(names)
    if entries := _entries(names):
        if kind not in ("rot6d", "matrix"):
            return "'matrix' or a 6D rotation"
        if entries == [divmod(i, 3) for i in MATRIX_ENTRIES[rotation]]:
            return ""
        same = [other for other, order in MATRIX_ENTRIES.items() if entries == [divmod(i, 3) for i in order]]
        return (
            repr(same[0]) if same else "the entries row after row" if kind == "matrix" else "entries in another order"
        )
    orders = {_order_of(each) for each in names}
    if kind == "quat" and len(orders) == 1 and not orders & {"", rotation}:
        return f"rotation {min(orders)!r}"
    kinds = {_kind_of(each) for each in names}
    by_word = "euler" if turning else min(kinds) if len(kinds) == 1 else ""
    if kind == "quat" and sorted(said) == list("wxyz"):
        if said == rotation.removeprefix("quat_"):
            return ""
        return f"rotation 'quat_{said}'" if said in ("xyzw", "wxyz") else "the components in one of these orders"
    if by_word and by_word != kind:
        return _written(by_word)
    if kind == "euler" and sorted(said) == list("xyz") and said != rotation.removeprefix("euler_").lower():
        return f"angles about the axes {said} ('euler_{said}' or 'euler_{said.upper()}')"
    return ""


def _check_positions(name: str, conversion: Relative, declared: FeatureFacts, features: Sequence[int | None]) -> None:
    """Refuses a pose whose position is a rotation by the names or methods of its features."""
    taken = _taken(conversion, features)
    turning = {
        f
        for start, stop, method in _blocks(declared.attributes)
        if method in _TAKES_ROTATION
        for f in range(start, stop)
    }
    for begin in range(0, len(taken), 3 + rotation_width("rotation", conversion.rotation)):
        position = taken[begin : begin + 3]
        names = [declared.names[f] for f in position if f < len(declared.names)]
        if turning.intersection(position) or any(_kind_of(each) or feature_words.axes_of_turns(each) for each in names):
            raise errors.ArgumentError(
                f"{name}: expected x, y, z and then the rotation, got {names or position} instead of the position; a mapping at ingest "
                "puts features in another order"
            )


def _check_radians(
    name: str, conversion: Relative | StepDelta, declared: FeatureFacts, features: Sequence[int | None]
) -> None:
    """Refuses the shorter way round, which is in radians, for angles in degrees."""
    if conversion.angles is None or not features:
        return
    around = [f for f, is_angle in enumerate(feature_mask("angles", conversion.angles, len(features))) if is_angle]
    if degrees := degrees_of(declared, around):
        raise errors.ArgumentError(
            f"{name}: expected radians, in which angles= goes the shorter way round, got {degrees!r} by the stream's units or names; "
            "convert the recording before it is stored"
        )


def degrees_of(declared: FeatureFacts, features: Sequence[int]) -> str:
    """Returns the unit or the name that says degrees for one of the features, or ""."""
    said = [facts[f] for facts in (declared.units, declared.names) for f in features if f < len(facts)]
    said += [value for key, value in declared.attributes.items() if "angle_unit" in key and isinstance(value, str)]
    return next((word for word in said if feature_words.is_degrees(word)), "")


def _unit_of(declared: FeatureFacts, feature: int) -> str:
    """Returns a feature's unit in one spelling: its own, or degrees or radians by its name; "" if nothing says one."""
    said = [facts[feature] for facts in (declared.units, declared.names) if feature < len(facts)]
    angle = next(filter(None, map(feature_words.angle_unit, said)), "")
    return angle or (feature_words.in_one_spelling(declared.units[feature]) if feature < len(declared.units) else "")


def _feature(declared: FeatureFacts, feature: int) -> str:
    return repr(declared.names[feature]) if feature < len(declared.names) else f"feature {feature}"


def _blocks(attributes: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    """Returns a stream's own methods, a pose as its rotation."""
    said = attributes.get("methods", [])
    blocks = (
        [tuple(block) for block in said if isinstance(block, list | tuple) and len(block) == 3]
        if isinstance(said, list)
        else []
    )
    return [(start + 3, stop, "slerp") if method == "pose" else (start, stop, method) for start, stop, method in blocks]


def rotations_said(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Returns by attribute the rotation that it says: its kind, or its name where its order is said, too."""
    said = {
        key: _said(value) for key, value in attributes.items() if isinstance(value, str) and _ATTRIBUTE.fullmatch(key)
    }
    return {key: rotation for key, rotation in said.items() if rotation}


def _kind_of(name: str) -> str:
    return next(iter(feature_words.kinds_of(name)), "")


def _entries(names: Sequence[str]) -> list[tuple[int, int]]:
    """Returns the row and the column, from 0, that each name says of a matrix; nothing unless all names say different ones."""
    pairs = [entry[2:] for entry in map(feature_words.matrix_entry, names) if entry]
    if len(pairs) != len(names) or len(names) < 6:
        return []
    first = 1 if any(3 in pair for pair in pairs) else 0
    pairs = [(row - first, column - first) for row, column in pairs]
    return pairs if len(set(pairs)) == len(pairs) and all(0 <= min(pair) <= max(pair) < 3 for pair in pairs) else []


def _said_by_stream(stream: str) -> str:
    """Returns the kind of rotation, or its name where it has an order, that a stream's name says; "" if it says none or several."""
    last = feature_words.in_snake_case(feature_words.last_part(stream))
    kinds = feature_words.kinds_of(last)
    if kinds == ["quat"]:
        return _order_of(last) or "quat"
    # A pose in six dimensions may have any rotation.
    return _said(last) if len(kinds) == 1 and (kinds != ["rot6d"] or "rot" in last) else ""


def _order_of(name: str) -> str:
    """Returns the rotation of the one order of components that a name says as a word, wxyz or xyzw; else ""."""
    found = {
        f"quat_{order}" for order in re.findall(r"(?<![a-z])q?(wxyz|xyzw)(?![a-z])", feature_words.in_snake_case(name))
    }
    return min(found) if len(found) == 1 else ""


def _said(value: str) -> str:
    """Returns the kind of rotation, or its name where it has an order, that an attribute's value says; "" if it says none."""
    said = feature_words.in_snake_case(value)
    for order, rotation in _ORDERS.items():
        if order in said:
            return rotation
    kind = _kind_of(said)
    if kind == "euler":
        axes = "xyz" if "rpy" in said else "zyx" if "ypr" in said else ""
        if match := re.search(r"(?:^|_)([xyz]{3})(?:_|$)", said):
            axes = match[1]
        return f"euler_{axes}" if axes else kind
    if kind == "rot6d":
        return next((f"rot6d_{word}s" for word in ("row", "column") if word in said), kind)
    return kind


def _written(rotation: str) -> str:
    """Returns how a conversion writes a kind of rotation."""
    kinds = {
        "quat": "'quat_xyzw' or 'quat_wxyz'",
        "euler": "Euler angles ('euler_xyz' or others)",
        "rot6d": ", ".join(repr(one) for one in MATRIX_ENTRIES if one != "matrix"),
    }
    return kinds.get(rotation, repr(rotation))
