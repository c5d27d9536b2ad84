"""Finds rotations, angles and units by the words in names of streams and features, in attributes and in units."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from itertools import groupby
from math import prod
from typing import Any

Block = list[Any]  # [start, stop, method]

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# QUATERNION: words for a quaternion. ROTATIONS: words for a rotation, which is a quaternion if it has four numbers.
# _ROTATION_LETTER: r or o directly before the components x, y, z, w. A q may have frames between: q_RS_x. _WITH_ORDER: words for a
# quaternion, some with its order.
QUATERNION = frozenset({"quat", "quats", "quaternion", "quaternions", "xquat"})
_ORIENTATION = frozenset({"orientation", "orientations", "orient", "ori", "orn", "attitude"})
ROTATIONS = QUATERNION | _ORIENTATION | {"rotation", "rotations", "rot", "rots"}
_ROTATION_LETTER = re.compile(r"(?:(?<![A-Za-z])[roRO]|(?<=[a-z])[RO])[ ._/\[-]*\0")
_WITH_ORDER = QUATERNION | {"wxyz", "xyzw", "qwxyz", "qxyzw"}
# Words for a rotation as a matrix. Flattened it has 9 entries (a rotation), or 12 or 16 (a transform).
_FLAT = {"matrix", "matrices", "mat"}
_FLAT_ROTATION = _FLAT | {"rotation", "rot", "orientation", "rotmat", "R", "xmat", "ximat"}
_FLAT_TRANSFORM = _FLAT | {"extrinsic", "extrinsics", "transform", "transforms", "tf", "pose", "T"}
_MATRIX = _FLAT_ROTATION | _FLAT_TRANSFORM | {"rotations", "world", "poses"}
# Words for quantities that are not rotations, although a word for a rotation may stand beside them.
NO_ROTATION = {
    *("vel", "vels", "velocity", "velocities", "speed", "speeds", "rate", "rates", "dot", "dots", "derivative"),
    *("derivatives", "acceleration", "accelerations", "jerk", "cov", "covs", "covariance", "covariances", "std"),
    *("stds", "stddev", "var", "vars", "variance", "variances"),
}
# Words for other quantities, if they stand behind the word for a rotation: quat_torque; but torque_sensor_quat is a rotation.
_OTHER_QUANTITIES = {
    *("torque", "torques", "force", "forces", "effort", "efforts", "weight", "weights", "gain", "gains", "noise"),
    *("norm", "norms", "count", "counts", "counter", "valid", "validity", "flag", "flags", "status", "confidence"),
    *("control", "controls", "loss", "cost", "reward", "rewards", "index", "idx", "id", "ids"),
}
# Words for streams of facts about each feature. Their features may have the names of a rotation's numbers, but are none.
_ABOUT_FEATURES = {
    *("mask", "masks", "valid", "validity", "std", "stds", "stddev", "var", "vars", "variance", "variances", "weights"),
}
# Representations of rotations, as robocache.actions calls them, by a name in snake case.
# A word may have another one before it, as eefquat, but none behind it, as equation; squat and a carrot's vector are no rotations.
_ROT = r"(?<![a-z])rot(?:ation)?"
_KINDS = {
    "rot6d": re.compile(r"(?<![a-z0-9])(?:rot(?:ation)?_?)?6_?d(?:_?rot(?:ation)?)?(?![a-z0-9])"),
    "rotvec": re.compile(
        rf"(?:axis_?(?:angles?|ang)|angle_?axis|(?:rot(?:ation)?|{_ROT}_)vec(?:s|tors?)?|axang(?:les?)?)[xyz]?(?![a-z])"
    ),
    "quat": re.compile(
        r"(?<!(?<![a-z])s)quat(?:s|ernions?)?(?:[wxyzrijk]|xyzw|wxyz)?(?![a-z])"
        r"|(?<![a-z])q_?[wxyzrijk](?![a-z])|(?:xyzw|wxyz)(?![a-z])|scalar_?(?:first|last)(?![a-z])"
    ),
    "matrix": re.compile(rf"(?:(?:rot(?:ation)?|{_ROT}_)mats?|matri(?:x|ces))(?![a-z])"),
    "euler": re.compile(r"euler(?!ian)|(?:rpy|ypr)(?![a-z])"),
}
_6D_ROTATION = re.compile(r"(?<![a-z0-9])(?:rot(?:ation)?_?6_?d|6_?d_?rot(?:ation)?)(?![a-z0-9])")
_RELATIVE = re.compile(r"(?<![a-z])(?:rel|relative|deltas?)(?![a-z])")
# Words for Euler angles, by the axes that they turn about.
_TURN = re.compile(
    r"(?<![a-zA-Z])(?i:(roll)|(pitch)|(yaw|heading))(?![a-z])|(Roll)(?![a-z])|(Pitch)(?![a-z])|(Yaw|Heading)(?![a-z])"
)
# An entry of a matrix: r01, rot_12, R[0,1], T03, 01, xy.
_ENTRY = re.compile(
    r"(?i)((?:.*?[^a-z0-9])??((?:r|rot|rotation|m|mat|matrix|rotmat|rot_mat|rot6d|6d|t|tf|transform|pose)?))[ _.\[(]*"
    r"(?:([0-4])[ ,_.\])(\[]*([0-4])|([xyz])([xyz]))[\])]*"
)
# A component's letter is at the end of a name or of a word in it: qx, q[x], qx1, qx_world, q_x_world.
_COMPONENT = re.compile(r"[ ._/\[-]?([xyzwXYZW])\]?(?=\d*(?:$|[ ._/\[(-]))")
# Components may have other letters: qr, qi, qj, qk, and qs for the scalar.
_OTHER_COMPONENT = re.compile(
    r"(?i)(?<![a-z])(q|quat|quaternion|rot|rotation|ori|orientation)[ ._/\[-]?([rsijk])\]?(?=$|[ ._/\[(-])"
)
_OTHER_LETTERS = {"r": "w", "s": "w", "i": "x", "j": "y", "k": "z"}
# A scalar may have another name than its vector: w beside rx, ry, rz.
_SCALAR = re.compile(r"(?i)((?:.*[ ._/\[])?)w\]?")
_BRACKETS = re.compile(r" *[\[(][^\])]*[\])]")
_GAP = "\0"  # where a component's letter was
# The components of a rotation vector: rotvec_x, axis_angle1; and of Universal Robots' actual_TCP_pose_3.
_VECTOR_PART = re.compile(r"(.*?)[ ._\[]?([xyz0-3])\]?")
# Components after a position's x, y, z: of a rotation vector (LeRobot's ee.wx), or of three numbers of unknown form (rx).
_OF_POSE = re.compile(r"(?i)((?:.*[ ._/\[])?)([wr]|(?:rot|rotation|ori|orientation)[ ._]?)([xyz])\]?")
_UR_PART = re.compile(r"(actual|target)_TCP_pose_[345]")
# Words for other things that may come in fours.
_OTHER_FOURS = {
    *("wheel", "wheels", "joint", "joints", "motor", "motors", "leg", "legs", "caster", "casters", "finger", "fingers"),
    *("speed", "count", "counts", "error", "torque", "weight", "weights"),
}
_MATRIX_SHAPES = {(2, 3), (3, 2), (3, 3), (3, 4), (4, 4)}
# With these words xyzw means homogeneous coordinates.
_POINTS = {"point", "points", "cloud", "clouds", "pointcloud", "pointclouds", "pcd", "vertices", "keypoints"}
# How many numbers each word in a stream's name stands for: xyz_wxyz is a position and a quaternion.
_PARTS = {
    **dict.fromkeys(("xyz", "pos", "position", "point", "points", "trans", "translation", "pose"), 3),
    **dict.fromkeys(_WITH_ORDER, 4),
    "gripper": 1,
}
_NUMBERED = re.compile(r"(.*?)[ ._\[-]?(\d)\]?")  # a name that ends in a digit
# A unit of angles in a name in snake case, alone or a second. "of" behind degrees is that of freedom.
_ANGLE = re.compile(
    r"(?<![a-z])(?<!milli_)(?<!micro_)(?<!centi_)(?:(degs?|degrees?)(?!_of(?![a-z]))|rads?|radians?)(?![a-z])"
    r"(?:_(?:per_)?(s|secs?|seconds?)(_?(?:2|squared|per_s|s))?(?![a-z0-9]))?"
)
# Degrees of a temperature: degC, deg F, deg_c, temp_deg.
_TEMPERATURE = re.compile(
    r"(?i:deg(?:ree)?s?|°)[ _.]?(?:[CF](?![a-z])|(?i:celsius|fahrenheit|centigrade))"
    r"|(?i:temp(?:erature)?s?[ _]*[\[(]?(?:deg|°))"
)
_TEMPERATURE_UNIT = re.compile(r"(?i)(?:deg(?:ree)?s?|°)[ _.]?[cfk]")
# Units of angles other than radians and degrees, in the words of a name; and those that only a unit means.
_OTHER_ANGLES = {
    *("mrad", "mrads", "millirad", "milliradian", "milliradians", "urad", "mdeg", "millideg", "cdeg", "centideg"),
    *("gon", "gons", "gradian", "gradians", "arcmin", "arcsec", "arcminutes", "arcseconds"),
}
_OTHER_UNITS = {"grad", "grads", "rev", "revs", "revolution", "revolutions", "turn", "turns", "tick", "ticks", "cycles"}
# Names of columns and attributes with units, and flags of the unit of angles.
_UNIT_COLUMN = re.compile(
    r"(\w+_)?units?(_\w+)?|(use|is|in|are)_?(deg|degrees?|rad|radians?)|angles?_(mode|type|format)", re.IGNORECASE
)
_UNIT_FLAG = re.compile(r"(?:use|is|in|are)_?(?:(deg)(?:rees?)?|rad(?:ians?)?)", re.IGNORECASE)
# Units by their words in small letters, without a plural's s.
_UNITS = {
    unit.lower(): unit for unit in ("rad", "rad/s", "deg", "deg/s", "m", "m/s", "mm", "cm", "s", "ms", "N", "Nm", "kg")
}
_UNITS |= {"radian": "rad", "degree": "deg", "°": "deg", "second": "s", "sec": "s", "millisecond": "ms", "msec": "ms"}
_UNITS |= {f"{part}{metre}": f"{part[:1]}m" for part in ("", "centi", "milli") for metre in ("meter", "metre")}
_UNITS |= {unit: unit for unit in ("rpm", "g", "inch", "ft", "rev", "turn", "tick")}


def last_part(name: str) -> str:
    """Returns the last part of a name: "dones" of "data/dones", "episode_id" of "log.episode_id"."""
    return re.split(r"[./]", name)[-1]


def words_of(name: str) -> set[str]:
    """Returns the words of a name in lower case: {"anchor", "id"} of "anchorId" and of "anchor_id"."""
    return {word.lower() for word in _WORD.findall(name)}


def in_snake_case(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower())


def says_relative(name: str) -> bool:
    return _RELATIVE.search(in_snake_case(name)) is not None


def kinds_of(name: str) -> list[str]:
    """Returns the representations of rotations that a name has words for, mostly none or one."""
    name = in_snake_case(name)
    return [kind for kind, pattern in _KINDS.items() if pattern.search(name)]


def axes_of_turns(name: str) -> set[str]:
    """Returns the axes x, y, z for the words roll, pitch and yaw in a name."""
    return {"xyz"[i % 3] for groups in _TURN.findall(name) for i, word in enumerate(groups) if word}


def matrix_entry(name: str) -> tuple[str, bool, int, int] | None:
    """Returns for the name of a matrix's entry: its stem, whether the stem has a word for a matrix, its row and its column."""
    match = _ENTRY.fullmatch(name) or _ENTRY.fullmatch(_without_units(name))
    if match is None:
        return None
    stem, word, row, column, *letters = match.groups()
    if row is None:
        row, column = ("xyz".index(letter.lower()) for letter in letters)
    return stem.lower(), bool(word) and match[3] is not None, int(row), int(column)


def _without_units(name: str) -> str:
    """Returns a name without its parts in brackets, except a single letter or digit."""
    return _BRACKETS.sub(lambda brackets: brackets[0] if len(brackets[0].strip()) == 3 else "", name)


def says(name: str, words: Set[str]) -> bool:
    """Whether the last part of a name has one of the words and none of NO_ROTATION. A component's letter may be replaced by
    _GAP."""
    before, _, after = name.partition(_GAP)
    name_words = [word.lower() for word in _WORD.findall(last_part(before) + after)]
    last = max((i for i, word in enumerate(name_words) if word in words), default=None)
    return (
        last is not None and NO_ROTATION.isdisjoint(name_words) and _OTHER_QUANTITIES.isdisjoint(name_words[last + 1 :])
    )


def _says_quaternion(stem: str) -> bool:
    """Whether a name of x, y, z and w, with _GAP instead of the letter, is that of a quaternion's component."""
    is_letter = _ROTATION_LETTER.search(stem) is not None and words_of(stem.replace(_GAP, "")).isdisjoint(NO_ROTATION)
    return is_letter or says(stem, ROTATIONS | {"q"})


def _components_of(names: Sequence[str]) -> list[dict[str, str]]:
    """Returns for each name the letters x, y, z or w that may mark a component, by the rest of the name.

    A name w beside rx, ry, rz is the scalar of their quaternion. Beside h or l it is a width.
    """
    components = [_components(_without_units(name)) for name in names]
    letters: dict[str, set[str]] = {}
    for letter_of in components:
        for stem, letter in letter_of.items():
            letters.setdefault(stem, set()).add(letter)
    lower = {name.lower().rstrip("]") for name in names}
    for name, letter_of in zip(names, components, strict=True):
        match = _SCALAR.fullmatch(_without_units(name))
        if match is None or {f"{match[1]}h".lower(), f"{match[1]}l".lower()} & lower:
            continue
        for stem in letters:
            vector = stem.removeprefix(match[1]).removesuffix(_GAP).rstrip(" ._").lower()
            if letters[stem] == set("xyz") and stem.startswith(match[1]) and vector in ROTATIONS | {"q", "r", "o"}:
                letter_of[stem] = "w"
    return components


def _components(name: str) -> dict[str, str]:
    letters = {
        f"{name[: match.start()]}{_GAP}{name[match.end() :]}": match[1].lower() for match in _COMPONENT.finditer(name)
    }
    for match in _OTHER_COMPONENT.finditer(name):
        letters[f"{name[: match.end(1)]}{_GAP}{name[match.end() :]}"] = _OTHER_LETTERS[match[2].lower()]
    return letters


def letters_of(names: Sequence[str]) -> str:
    """Returns the letters of components, if the names are equal but for one letter that differs in each; else ""."""
    components = _components_of(names)
    for stem in set(components[0]).intersection(*components[1:]) if components else ():
        letters = "".join(letter_of[stem] for letter_of in components)
        if len(set(letters)) == len(letters):
            return letters
    return ""


def rotation_vectors(stream: str, names: Sequence[str], shape: Sequence[int]) -> list[Block]:
    """Returns the rotation vectors and matrices that names declare, with the method "previous", since numbers interpolated
    between two of them are no rotation."""
    last = last_part(stream)
    words = words_of(last) | set(re.findall(r"(?<![A-Za-z])[RT](?![A-Za-z])", last))  # R, T_WC
    group_words = words_of(last_part(stream.removesuffix(last)[:-1]))  # object_poses/cube
    flat = {9: _FLAT_ROTATION, 12: _FLAT_TRANSFORM, 16: _FLAT_TRANSFORM}.get(shape[-1] if shape else 0, set())
    is_matrix = (tuple(shape[-2:]) in ((3, 3), (3, 4), (4, 4)) and (words | group_words) & _MATRIX) or words & flat
    if is_matrix and not words & NO_ROTATION:
        return [[0, prod(shape), "previous"]]
    if shape and shape[-1] == 6 and says_6d(last) and not words & NO_ROTATION:
        return [[0, prod(shape), "previous"]]
    if shape and shape[-1] == 3 and _says_vector(last):
        return [[0, prod(shape), "previous"]]
    if len(names) != prod(shape) or not words_of(last).isdisjoint(_ABOUT_FEATURES):
        return []
    parts = [match[1] if (match := _VECTOR_PART.fullmatch(name)) and _says_vector(match[1]) else "" for name in names]
    pose_features = _rotations_of_poses(names) | _matrices_of(names)
    return runs(
        [
            i
            for i, (name, part) in enumerate(zip(names, parts, strict=True))
            if part or i in pose_features or _UR_PART.fullmatch(name)
        ],
        "previous",
    )


def _rotations_of_poses(names: Sequence[str]) -> set[int]:
    """Returns the features wx, wy, wz or rx, ry, rz beside x, y, z of the same name: the rotation of a pose, as three numbers.

    Beside vx, wx is an angular velocity; beside rw, rx is part of a quaternion.
    """
    axes_of: dict[tuple[str, str], dict[str, int]] = {}
    for index, name in enumerate(names):
        if match := _OF_POSE.fullmatch(name):
            axes_of.setdefault((match[1], match[2].lower()), {})[match[3].lower()] = index
    lower = {name.lower().rstrip("]") for name in names}
    features: set[int] = set()
    for (start, letter), parts in axes_of.items():
        stem = start.lower()
        position_prefixes = ("", "t", "p", "pos_", "pos.", "position_", "position.")
        has_position = any({f"{stem}{word}{axis}" for axis in "xyz"} <= lower for word in position_prefixes)
        is_no_pose = f"{stem}vx" in lower or f"{stem}{letter}w" in lower
        if len(parts) == 3 and has_position and not is_no_pose:
            features |= set(parts.values())
    return features


def _matrices_of(names: Sequence[str]) -> set[int]:
    """Returns the features that are entries of a matrix, or of a rotation's six numbers, by their names."""
    matrices: dict[str, dict[tuple[int, int], int]] = {}
    features: set[int] = set()
    for index, name in enumerate(names):
        if (entry := matrix_entry(name)) and entry[1]:
            matrices.setdefault(entry[0], {})[entry[2:]] = index
        if says_6d(name) and not words_of(name) & NO_ROTATION:
            features.add(index)
    for entries in matrices.values():
        first = min(min(entries))  # the names count from 0 or from 1
        height, width = (max(entry[axis] for entry in entries) - first + 1 for axis in (0, 1))
        if (height, width) in _MATRIX_SHAPES and len(entries) == height * width:
            features |= set(entries.values())
    return features


def _says_vector(name: str) -> bool:
    return "rotvec" in kinds_of(name) and not says_relative(name) and not words_of(name) & NO_ROTATION


def says_6d(name: str) -> bool:
    """Whether a name means a rotation of six numbers. "6d" of a pose may mean six degrees of freedom, with any rotation."""
    is_rotation = _6D_ROTATION.search(in_snake_case(name)) or not words_of(name).isdisjoint(ROTATIONS)
    return "rot6d" in kinds_of(name) and bool(is_rotation)


def rotations_of(stream: str, names: Sequence[str], shape: Sequence[int], words: Set[str] = QUATERNION) -> list[Block]:
    """Returns the quaternions in a row of this shape: [[start, stop, "slerp"], ...].

    words: words for a quaternion in names of four numbers without letters of components.
    """
    features = prod(shape)
    starts = []
    fours_are_rotations = words_of(last_part(stream)).isdisjoint(_OTHER_FOURS) or len(shape) > 1
    is_of_points = len(shape) > 1 and not words_of(stream).isdisjoint(_POINTS)
    is_other = not {"quat"}.issuperset(kinds_of(last_part(stream)))  # four numbers may be an axis and an angle
    if (
        shape
        and shape[-1] == 4
        and not is_other
        and says(stream, ROTATIONS.union(words) if fours_are_rotations else words)
    ):
        starts = list(range(0, features, 4))
    elif len(names) == features and words_of(last_part(stream)).isdisjoint(_ABOUT_FEATURES):
        starts = _quaternions_by_names(names, words, says(stream, ROTATIONS))
    if not starts and shape and says(stream, _WITH_ORDER) and not is_of_points:
        starts = [
            row + start for row in range(0, features, shape[-1] or 1) for start in _quaternions_in(stream, shape[-1])
        ]
    return [[start, start + 4, "slerp"] for start in starts]


def _quaternions_by_names(names: Sequence[str], words: Set[str], is_stream_of_rotations: bool = False) -> list[int]:
    """Returns the first features of quaternions, by the features' names. `is_stream_of_rotations`: the stream's name has a word
    for rotations."""
    components = _components_of(names)
    numbered = [{match[1]: match[2]} if (match := _NUMBERED.fullmatch(name)) else {} for name in names]
    sizes: dict[str, int] = {}
    for numbers in numbered:
        for stem in numbers:
            sizes[stem] = sizes.get(stem, 0) + 1
    starts: list[int] = []
    no_rotation = NO_ROTATION | _OTHER_QUANTITIES
    for start in range(len(names) - 3):
        if starts and start < starts[-1] + 4:
            continue
        for stems_of, letters in ((components, ("wxyz",)), (numbered, ("0123", "1234"))):
            # The names must be equal but for a letter or digit, and their common part must mean a rotation.
            four = stems_of[start : start + 4]
            if any(
                "".join(sorted(stems[stem] for stems in four)) in letters
                and (
                    _says_quaternion(stem) or (is_stream_of_rotations and words_of(stem).isdisjoint(no_rotation))
                    if stems_of is components
                    else sizes[stem] == 4 and _numbers_a_quaternion(stem, words)
                )
                for stem in set(four[0]).intersection(*four[1:])
            ):
                starts.append(start)
                break
    for stem in [] if starts else sizes:
        indices = [index for index, numbers in enumerate(numbered) if stem in numbers]
        digits = [int(numbered[index][stem]) for index in indices]
        ascends = digits == list(range(digits[0], digits[0] + len(digits)))
        if ascends and indices[-1] - indices[0] < len(indices) and says(stem, _WITH_ORDER):
            starts += [indices[0] + start for start in _quaternions_in(stem, len(indices))]
    return sorted(starts)


def _numbers_a_quaternion(stem: str, words: Set[str]) -> bool:
    """Whether a name of four numbered features is that of a quaternion; four orientations of legs or wheels may be angles."""
    return says(stem, words) or (says(stem, _ORIENTATION) and words_of(last_part(stem)).isdisjoint(_OTHER_FOURS))


def scattered(names: Sequence[str]) -> list[list[int]]:
    """Returns the indices of the components of each declared quaternion whose components are not adjacent."""
    components: dict[str, list[tuple[int, str]]] = {}
    for index, letter_of in enumerate(_components_of(names)):
        for stem, letter in letter_of.items():
            if _says_quaternion(stem):
                components.setdefault(stem, []).append((index, letter))
    return [
        [index for index, _ in four]
        for four in components.values()
        if sorted(letter for _, letter in four) == list("wxyz") and four[-1][0] - four[0][0] > 3
    ]


def _quaternions_in(stream: str, width: int) -> list[int]:
    """Returns the first indices of quaternions in a row whose parts are, in order, the words of its stream's name: [3] for
    pos_quat and 7 numbers.

    A row may repeat the parts. Each position with a quaternion may be followed by one more number, a gripper's.
    """
    words = re.findall(r"[a-z]+", in_snake_case(last_part(stream)))
    # pose_xyz and quat_wxyz are one part each.
    parts = [part for part, _ in groupby(_PARTS[word] for word in words if word in _PARTS)]
    if 4 not in parts:
        return []
    row_width = sum(parts)
    # With a position the parts may repeat, each time without or with a gripper's number.
    sizes = [width] * (width == row_width) if 3 not in parts else [row_width] + [row_width + 1] * (1 not in parts)
    size = next((size for size in sizes if width and width % size == 0), 0)
    starts = [sum(parts[:i]) for i, part in enumerate(parts) if part == 4]
    return [first + start for first in range(0, width, size) for start in starts] if size else []


def runs(features: Sequence[int], method: str) -> list[Block]:
    """Returns a block with this method for each run of neighbouring features."""
    blocks: list[Block] = []
    for feature in features:
        if blocks and blocks[-1][1] == feature:
            blocks[-1][1] = feature + 1
        else:
            blocks.append([feature, feature + 1, method])
    return blocks


def known_unit(word: str) -> str | None:
    """Returns the usual spelling of a unit, "m" for "metres"; None for an unknown unit."""
    word = word.strip().lower()
    # Short units have no plural: ns is no newton.
    return _UNITS.get(word) or _UNITS.get(word.removesuffix("s") if len(word) > 3 else word)


def in_one_spelling(unit: str) -> str:
    return known_unit(unit) or unit.strip()


def is_no_radian(text: str, is_unit: bool = False) -> bool:
    """Whether a name, or a unit, means angles in another unit than the radian."""
    words = words_of(text)
    return (
        angle_unit(text).startswith("deg")
        or not words.isdisjoint(_OTHER_ANGLES)
        or (is_unit and not words.isdisjoint(_OTHER_UNITS))
    )


def says_no_radians(units: Any) -> bool:
    """Whether a stream's units, one or a list, have another unit of angles than the radian for any feature."""
    return any(
        is_no_radian(unit, True) for unit in (units if isinstance(units, list) else [units]) if isinstance(unit, str)
    )


def angle_unit(text: str) -> str:
    """Returns "deg" or "rad" if a unit or a name has a word for it, "deg/s" or "rad/s2" for a rate, else ""."""
    if _TEMPERATURE.search(text) or _TEMPERATURE_UNIT.fullmatch(text.strip()):
        return ""
    match = _ANGLE.search(in_snake_case(text.replace("°", " deg ").replace("²", "2")))
    if match is None:
        return ""
    rate = "" if match[2] is None else "/s2" if match[3] else "/s"
    return ("deg" if match[1] else "rad") + rate


def may_say_unit(column: str) -> bool:
    """Whether the last part of a column's name is a word for units."""
    return _UNIT_COLUMN.fullmatch(in_snake_case(last_part(column))) is not None


def as_flag(value: Any) -> bool | None:
    """Returns a flag, which may be a bool, 0 or 1, or a text; None for other values."""
    text = str(value).lower() if isinstance(value, bool | int | str) else ""
    return {"true": True, "1": True, "false": False, "0": False}.get(text)


def angle_unit_by_flag(column: str, value: Any) -> str:
    """Returns "deg" or "rad" by a flag such as use_degrees; "" if the column or the value is none."""
    flag, is_set = _UNIT_FLAG.fullmatch(last_part(column)), as_flag(value)
    return "" if flag is None or is_set is None else "deg" if (flag[1] is not None) == is_set else "rad"
