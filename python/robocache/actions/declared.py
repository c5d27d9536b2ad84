"""Compares conversions with a stream's declarations of its rotations: names and units of features, attributes and methods."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import errors, feature_words
from ..feature_words import angle_unit_by_flag, as_flag, in_snake_case, may_say_unit
from ._arrays import feature_mask
from .conversions import Relative, Rescale, Rotate, StepDelta
from .rotations import MATRIX_ENTRIES, rotation_width

# Attributes with the representation of a stream's rotations. The patterns match names in snake case.
_ATTRIBUTE = re.compile(
    r"(?:quaternion|quat|euler|rotation|rot|orientation)(?:_(?:type|format|order|representation|convention))?"
)
_ORDERS = {"scalar_first": "quat_wxyz", "wxyz": "quat_wxyz", "scalar_last": "quat_xyzw", "xyzw": "quat_xyzw"}
# Words of attributes whose unit is that of angles.
_OF_ANGLES = {
    *("angle", "angles", "angular", "rotation", "rotations", "orientation", "euler", "rpy", "joint", "joints"),
    *("deg", "degree", "degrees", "rad", "radian", "radians"),
}
# The kind of rotation that an interpolation method is for.
_ROTATION_OF_METHOD = {"slerp": "quat", "angle": "euler"}
# Attributes that say whether a stream's numbers are relative: GR00T's absolute, robosuite's control_delta, ManiSkill's control_mode.
_ABSOLUTE = re.compile(r"(?:is_)?absolute")
_IS_RELATIVE = re.compile(r"(?:(?:is|use|control|action)_)*(?:delta|relative)s?(?:_(?:actions?|control))?")
_MODE = re.compile(r"(?:(?:action|control|controller)_)?(?:type|mode|space|rep|representation)")


@dataclass(frozen=True)
class FeatureFacts:
    """The facts that a stream declares about its features. An empty list declares nothing.

    Args:
        names: the features' names.
        units: the features' units, "" for an unknown unit.
        attributes: the stream's attributes, with its methods.
        stream: the stream's name.
    """

    names: Sequence[str] = ()
    units: Sequence[str] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    stream: str = ""

    def select(self, features: Sequence[int]) -> FeatureFacts:
        """Returns the facts of these features, in this order, with the methods of rotations that lie completely within them."""
        index = {feature: i for i, feature in enumerate(features)}
        names, units = (
            [facts[f] if f < len(facts) else "" for f in features] if facts else []
            for facts in (self.names, self.units)
        )
        methods = [
            [index[start], index[start] + stop - start, method]
            for start, stop, method in _blocks(self.attributes)
            if [index.get(f, -1) - index.get(start, 0) for f in range(start, stop)] == list(range(stop - start))
        ]
        return FeatureFacts(names, units, {**self.attributes, "methods": methods}, self.stream)


def check_declared(name: str, conversions: Any, declared: FeatureFacts) -> None:
    """Compares the rotations in conversions with their stream's declarations. A stream without names and units passes.

    Raises:
        ArgumentError: the stream declares another representation, another order of components, other axes of angles, angles in
            degrees, or a rotation that begins at another feature.
    """
    features: list[int | None] = list(range(max(len(declared.names), len(declared.units))))  # None: a computed feature
    known: dict[int, str] = {}  # the rotations of the conversions so far, by the index of their first feature in a row
    for conversion in conversions:
        if isinstance(conversion, Relative | StepDelta):
            _check_radians(name, conversion, declared, features)
        for rotation, start, block in _rotations(conversion, features):
            if (before := known.get(start, rotation)) != rotation:
                raise errors.ArgumentError(
                    f"{name}: expected {before!r} from feature {start} on, as in the conversion before it, got {rotation!r}"
                )
            known[start] = rotation
            stream_features = [feature for feature in block if feature is not None]
            if len(stream_features) == rotation_width("rotation", rotation):
                _check_rotation(name, rotation, stream_features, declared)
        if isinstance(conversion, Relative) and conversion.kind != "joints":
            _check_positions(name, conversion, declared, features)
        elif isinstance(conversion, Rescale):
            features[conversion.features] = [None] * len(features[conversion.features])
        elif isinstance(conversion, Rotate):
            end = conversion.start + rotation_width("source", conversion.source)
            width = rotation_width("target", conversion.target)
            features[conversion.start : end] = [None] * width
            growth = width - (end - conversion.start)
            known = {begin + growth * (begin > conversion.start): rotation for begin, rotation in known.items()}
            known[conversion.start] = conversion.target


def check_absolute(name: str, conversions: Any, declared: FeatureFacts) -> None:
    """Checks that conversions do not make values relative that the stream's attributes already declare relative.

    Raises:
        ArgumentError: the values would be relative twice.
    """
    attribute = declared_relative(declared.attributes)
    for conversion in conversions if attribute else ():
        if isinstance(conversion, Relative | StepDelta) and (conversion.mask is None or any(conversion.mask)):
            raise errors.ArgumentError(
                f"{name}: expected values that are absolute, which {type(conversion).__name__} makes relative, got stream "
                f"'{declared.stream}', which is relative already as its attribute {attribute} says; leave the conversion "
                "out, or correct the attribute by a mapping at ingest"
            )


def relative_names(conversions: Any, declared: FeatureFacts, features: int) -> list[str]:
    """Returns the names of the stream and of its features to convert that already have a word for relative."""
    if any(_ABSOLUTE.fullmatch(in_snake_case(key)) and as_flag(value) for key, value in declared.attributes.items()):
        return []
    names: dict[str, None] = {}
    for _, converted in _comparisons(conversions, features):
        names |= dict.fromkeys([declared.stream] * bool(converted))
        names |= dict.fromkeys(declared.names[f] for f in converted if f < len(declared.names))
    return [name for name in names if feature_words.says_relative(name)]


def declared_relative(attributes: Mapping[str, Any]) -> str:
    """Returns the attribute that declares a stream's numbers relative; "" if none does."""
    return next((f"{key} = {value!r}" for key, value in attributes.items() if _relative_by(key, value)), "")


def declared_absolute(attributes: Mapping[str, Any]) -> str:
    """Returns the attribute that declares a stream's numbers absolute; "" if none does."""
    return next((f"{key} = {value!r}" for key, value in attributes.items() if _relative_by(key, value) is False), "")


def is_absolute(attributes: Mapping[str, Any]) -> bool | None:
    """Returns whether attributes declare a stream's numbers absolute; None if they declare neither."""
    if declared_relative(attributes):
        return False
    return True if declared_absolute(attributes) else None


def _relative_by(attribute: str, value: Any) -> bool | None:
    """Returns whether an attribute declares numbers relative, or absolute; None if it declares neither."""
    name, flag = in_snake_case(attribute), as_flag(value)
    if isinstance(value, str) and _MODE.fullmatch(name) and feature_words.says_relative(value):
        return True
    if flag is None or not (_ABSOLUTE.fullmatch(name) or _IS_RELATIVE.fullmatch(name)):
        return None
    return flag != bool(_ABSOLUTE.fullmatch(name))


def check_alike(name: str, conversions: Any, declared: FeatureFacts, base: FeatureFacts) -> None:
    """Checks that a stream and the base of its conversions have the same units.

    Raises:
        ArgumentError: the units of a feature differ.
    """
    width = max(len(declared.units), len(base.units))
    for conversion, converted in _comparisons(conversions, width) if width else ():
        for feature in converted:
            unit, base_unit = (_unit_of(facts, feature) for facts in (declared, base))
            if unit and base_unit and unit != base_unit:
                raise errors.ArgumentError(
                    f"{name}: expected one unit, since {type(conversion).__name__} subtracts feature by feature, got {unit!r} "
                    f"of the key and {base_unit!r} of the base for {_feature_text(declared, feature)}; convert one of them before it "
                    "is stored"
                )


def misplaced_features(
    conversions: Any, declared: FeatureFacts, base: FeatureFacts, read: Sequence[int], features: int
) -> list[tuple[str, str]]:
    """Returns (name, base's name) of compared features whose names differ, if the base has the first name at another feature.

    Args:
        base: the facts of all the base's features; feature f of the key is compared with feature `read[f]` of the base.
    """
    pairs: dict[str, str] = {}
    for _, converted in _comparisons(conversions, features):
        for feature in converted:
            if feature < min(len(declared.names), len(read)) and 0 <= read[feature] < len(base.names):
                name, base_name = declared.names[feature], base.names[read[feature]]
                if name and base_name and name != base_name and list(base.names).count(name) == 1:
                    pairs[name] = base_name
    return list(pairs.items())


def straight_angles(conversions: Any, methods: Sequence[Any], features: int) -> list[int]:
    """Returns the features that are angles by the stream's methods, but that conversions subtract the long way round."""
    angles = {feature for start, stop, method in methods if method == "angle" for feature in range(start, stop)}
    straight: set[int] = set()
    for conversion, converted in _subtractions(conversions, features):
        shorter = [] if conversion.angles is None else _selected_features("angles", conversion.angles, features)
        straight |= angles.intersection(converted).difference(shorter)
    return sorted(straight)


def subtracted_rotations(conversions: Any, declared: FeatureFacts, features: int) -> list[int]:
    """Returns the features that are part of a rotation by the stream's methods or names, but that conversions subtract one by
    one."""
    rotations = _features_with(("slerp",), declared.attributes)
    rotations |= {f for f, name in enumerate(declared.names) if _kind_of(name) not in ("", "euler")}
    return sorted(
        {f for _, converted in _subtractions(conversions, features) for f in rotations.intersection(converted)}
    )


def _comparisons(conversions: Any, features: int) -> Iterator[tuple[Relative | StepDelta, list[int]]]:
    """Yields each conversion that compares with the state, and the features that it changes."""
    for conversion in conversions:
        if isinstance(conversion, Relative | StepDelta):
            yield conversion, _selected_features("mask", conversion.mask, features)


def _subtractions(conversions: Any, features: int) -> Iterator[tuple[Relative | StepDelta, list[int]]]:
    """Yields the same as `_comparisons`, without conversions of poses."""
    for conversion, converted in _comparisons(conversions, features):
        if isinstance(conversion, StepDelta) or conversion.kind == "joints":
            yield conversion, converted


def _selected_features(name: str, mask: Any, features: int) -> list[int]:
    return [f for f, is_chosen in enumerate(feature_mask(name, mask, features)) if is_chosen]


def _features_with(methods: Collection[str], attributes: Mapping[str, Any]) -> set[int]:
    return {f for start, stop, method in _blocks(attributes) if method in methods for f in range(start, stop)}


def _rotations(conversion: Any, features: Sequence[int | None]) -> Iterator[tuple[str, int, list[int | None]]]:
    """Yields each rotation of a conversion: its name, its first index in a row, and the stream's features that it reads."""
    if isinstance(conversion, Rotate):
        width = rotation_width("source", conversion.source)
        yield conversion.source, conversion.start, list(features[conversion.start : conversion.start + width])
    elif isinstance(conversion, Relative) and conversion.kind != "joints":
        width = rotation_width("rotation", conversion.rotation)
        chosen = _selected_features("mask", conversion.mask, len(features))
        for begin in range(3, len(chosen), 3 + width):
            block = chosen[begin : begin + width]
            if block:
                yield conversion.rotation, block[0], [features[i] for i in block]


def _check_rotation(name: str, rotation: str, features: Sequence[int], declared: FeatureFacts) -> None:
    names = [declared.names[f] for f in features if f < len(declared.names)]
    expected = _expected_by_names(rotation, names)
    if expected:
        raise errors.ArgumentError(f"{name}: expected {expected}, as the features' names {names} say, got {rotation!r}")
    kind = rotation.partition("_")[0]
    by_attribute = declared_rotations(declared.attributes)
    by_stream = "" if by_attribute else _rotation_in_stream_name(declared.stream)
    if by_stream and by_stream not in (rotation.lower(), kind):
        raise errors.ArgumentError(
            f"{name}: expected {_names_of_kind(by_stream)}, as the name of stream '{declared.stream}' says, got {rotation!r}; a "
            "mapping at ingest may correct it by the attribute rotation"
        )
    for attribute, stated in by_attribute.items():
        kind_word = re.match(r"(?i)quat|euler", attribute)  # an attribute for quaternions does not apply to angles
        if stated not in (rotation.lower(), kind) and (kind_word is None or kind.startswith(kind_word[0].lower())):
            value = declared.attributes[attribute]
            raise errors.ArgumentError(
                f"{name}: expected {_names_of_kind(stated)}, as the attribute {attribute} = {value!r} says, got {rotation!r}"
            )
    for start, stop, method in _blocks(declared.attributes):
        shared = [f for f in features if start <= f < stop]
        method_kind = _ROTATION_OF_METHOD.get(method, kind)
        if shared and (method_kind != kind or (method == "slerp" and (features[0] - start) % 4)):
            where = f"features {start} to {stop}"
            raise errors.ArgumentError(
                f"{name}: expected {_names_of_kind(method_kind)} in {where}, as the stream's method {method!r} says, got {rotation!r} in "
                f"features {features[0]} to {features[-1] + 1}"
            )
    if (kind == "euler" or rotation == "rotvec") and (degrees := degrees_of(declared, features)):
        raise errors.ArgumentError(
            f"{name}: expected angles in radians, got {degrees!r} by the stream's units or names; a Rescale before the Rotate "
            "converts them, or the recording before it is stored"
        )


def _expected_by_names(rotation: str, names: Sequence[str]) -> str:
    """Returns the representation by the features' names, if it is not `rotation`; else ""."""
    kind = rotation.partition("_")[0]
    turns = [feature_words.axes_of_turns(name) for name in names]
    are_turns = bool(turns) and all(len(turn) == 1 for turn in turns)
    letters = "".join(map(min, turns)) if are_turns else feature_words.letters_of(names)
    if entries := _entries(names):
        if kind not in ("rot6d", "matrix"):
            return "'matrix' or a 6D rotation"
        if entries == [divmod(i, 3) for i in MATRIX_ENTRIES[rotation]]:
            return ""
        matching = [other for other, order in MATRIX_ENTRIES.items() if entries == [divmod(i, 3) for i in order]]
        if matching:
            return repr(matching[0])
        return "the entries row after row" if kind == "matrix" else "entries in another order"
    orders = {_order_of(name) for name in names}
    if kind == "quat" and len(orders) == 1 and not orders & {"", rotation}:
        return f"rotation {min(orders)!r}"
    kinds = {_kind_of(name) for name in names}
    kind_by_names = "euler" if are_turns else min(kinds) if len(kinds) == 1 else ""
    if kind == "quat" and sorted(letters) == list("wxyz"):
        if letters == rotation.removeprefix("quat_"):
            return ""
        return f"rotation 'quat_{letters}'" if letters in ("xyzw", "wxyz") else "the components in one of these orders"
    if kind_by_names and kind_by_names != kind:
        return _names_of_kind(kind_by_names)
    if kind == "euler" and sorted(letters) == list("xyz") and letters != rotation.removeprefix("euler_").lower():
        return f"angles about the axes {letters} ('euler_{letters}' or 'euler_{letters.upper()}')"
    return ""


def _check_positions(name: str, conversion: Relative, declared: FeatureFacts, features: Sequence[int | None]) -> None:
    """Refuses a pose whose position is part of a rotation by the names or methods of its features."""
    chosen = _selected_features("mask", conversion.mask, len(features))
    turning = _features_with(_ROTATION_OF_METHOD, declared.attributes)
    for begin in range(0, len(chosen), 3 + rotation_width("rotation", conversion.rotation)):
        position = chosen[begin : begin + 3]
        names = [declared.names[f] for f in position if f < len(declared.names)]
        if turning.intersection(position) or any(map(_kind_of, names)) or any(map(feature_words.axes_of_turns, names)):
            raise errors.ArgumentError(
                f"{name}: expected x, y, z and then the rotation, got {names or position} instead of the position; a mapping "
                "at ingest puts features in another order"
            )


def _check_radians(
    name: str, conversion: Relative | StepDelta, declared: FeatureFacts, features: Sequence[int | None]
) -> None:
    """Refuses angles in degrees for the shorter way round, which needs radians."""
    if conversion.angles is None or not features:
        return
    angle_features = _selected_features("angles", conversion.angles, len(features))
    if degrees := degrees_of(declared, angle_features):
        raise errors.ArgumentError(
            f"{name}: expected radians, in which angles= goes the shorter way round, got {degrees!r} by the stream's units "
            "or names; convert the recording before it is stored"
        )


def degrees_of(declared: FeatureFacts, features: Sequence[int]) -> str:
    """Returns the first unit, name or attribute that declares these features in degrees, or another unit than the radian; "" if
    none does."""
    for facts, are_units in ((declared.units, True), (declared.names, False)):
        for text in (facts[f] for f in features if f < len(facts)):
            if feature_words.is_no_radian(text, are_units):
                return text
    return next(filter(None, map(_other_angle_unit, declared.attributes, declared.attributes.values())), "")


def _other_angle_unit(attribute: str, value: Any) -> str:
    """Returns the unit of angles that an attribute declares, if it is not the radian; else ""."""
    words = feature_words.words_of(attribute)
    if not may_say_unit(attribute) or (words.isdisjoint(_OF_ANGLES) and words not in ({"unit"}, {"units"})):
        return ""
    if isinstance(value, str) and feature_words.is_no_radian(value, True):
        return value
    return attribute if angle_unit_by_flag(attribute, value) == "deg" else ""


def _unit_of(declared: FeatureFacts, feature: int) -> str:
    """Returns a feature's unit in one spelling: degrees or radians by its unit or its name, else its unit; "" if unknown."""
    texts = [facts[feature] for facts in (declared.units, declared.names) if feature < len(facts)]
    angle = next(filter(None, map(feature_words.angle_unit, texts)), "")
    return angle or (feature_words.in_one_spelling(declared.units[feature]) if feature < len(declared.units) else "")


def _feature_text(declared: FeatureFacts, feature: int) -> str:
    return repr(declared.names[feature]) if feature < len(declared.names) else f"feature {feature}"


def _blocks(attributes: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    """Returns (start, stop, method) of the methods in a stream's attributes. A pose is reduced to its rotation."""
    methods = attributes.get("methods", [])
    blocks = (
        [tuple(block) for block in methods if isinstance(block, list | tuple) and len(block) == 3]
        if isinstance(methods, list)
        else []
    )
    return [(start + 3, stop, "slerp") if method == "pose" else (start, stop, method) for start, stop, method in blocks]


def declared_rotations(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Returns the rotation that each attribute names: its kind, or its representation if the order is known too."""
    rotations = {
        key: _rotation_in(value)
        for key, value in attributes.items()
        if isinstance(value, str) and _ATTRIBUTE.fullmatch(in_snake_case(key))
    }
    return {key: rotation for key, rotation in rotations.items() if rotation}


def _kind_of(name: str) -> str:
    return next(iter(feature_words.kinds_of(name)), "")


def _entries(names: Sequence[str]) -> list[tuple[int, int]]:
    """Returns the row and the column, from 0, of the matrix's entry that each name means; empty unless all mean different
    entries."""
    pairs = [entry[2:] for entry in map(feature_words.matrix_entry, names) if entry]
    if len(pairs) != len(names) or len(names) < 6:
        return []
    first = 1 if any(3 in pair for pair in pairs) else 0  # names may count from 1
    pairs = [(row - first, column - first) for row, column in pairs]
    return pairs if len(set(pairs)) == len(pairs) and all(0 <= min(pair) <= max(pair) < 3 for pair in pairs) else []


def _rotation_in_stream_name(stream: str) -> str:
    """Returns the rotation in a stream's name: its kind, or its representation if the order is known; "" for none or
    several."""
    last_words = feature_words.in_snake_case(feature_words.last_part(stream))
    kinds = feature_words.kinds_of(last_words)
    if kinds == ["quat"]:
        return _order_of(last_words) or "quat"
    is_known = len(kinds) == 1 and (kinds != ["rot6d"] or feature_words.says_6d(last_words))
    return _rotation_in(last_words) if is_known else ""


def _order_of(name: str) -> str:
    """Returns the quaternion's representation if a name has exactly one of the words wxyz and xyzw; else ""."""
    orders = {
        f"quat_{order}" for order in re.findall(r"(?<![a-z])q?(wxyz|xyzw)(?![a-z])", feature_words.in_snake_case(name))
    }
    return min(orders) if len(orders) == 1 else ""


def _rotation_in(value: str) -> str:
    """Returns the rotation in an attribute's value: its kind, or its representation if the order is known; "" for none."""
    text = feature_words.in_snake_case(value)
    for order, rotation in _ORDERS.items():
        if order in text:
            return rotation
    kind = _kind_of(text)
    if kind == "euler":
        axes = "xyz" if "rpy" in text else "zyx" if "ypr" in text else ""
        if match := re.search(r"(?:^|_)([xyz]{3})(?:_|$)", text):
            axes = match[1]
        return f"euler_{axes}" if axes else kind
    if kind == "rot6d":
        return next((f"rot6d_{word}s" for word in ("row", "column") if word in text), kind)
    return kind


def _names_of_kind(rotation: str) -> str:
    """Returns the names of a kind of rotation in conversions."""
    kinds = {
        "quat": "'quat_xyzw' or 'quat_wxyz'",
        "euler": "Euler angles ('euler_xyz' or others)",
        "rot6d": ", ".join(repr(name) for name in MATRIX_ENTRIES if name != "matrix"),
    }
    return kinds.get(rotation, repr(rotation))
