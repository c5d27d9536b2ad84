"""Words by which names of streams and features, attributes and units say rotations, angles and units: one table for all who read names."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# Words of a quaternion; of an orientation; of rotations, which are quaternions if they have four numbers; and of those that are some
# if their components are x, y, z, w.
QUATERNION = frozenset({"quat", "quats", "quaternion", "quaternions", "xquat"})
ORIENTATION = frozenset({"orientation", "orientations", "orient", "ori", "orn", "attitude"})
ROTATIONS = QUATERNION | ORIENTATION | {"rotation", "rotations", "rot", "rots"}
WITH_COMPONENTS = ROTATIONS | {"q", "r", "o"}
WITH_ORDER = QUATERNION | {"wxyz", "xyzw", "qwxyz", "qxyzw"}
# Words for a matrix a row that holds a rotation; written in a line it has 9 entries of a rotation, 12 or 16 of a transform.
_FLAT = {"matrix", "matrices", "mat"}
FLAT_ROTATION = _FLAT | {"rotation", "rot", "orientation", "rotmat", "R", "xmat", "ximat"}
FLAT_TRANSFORM = _FLAT | {"extrinsic", "extrinsics", "transform", "transforms", "tf", "pose", "T"}
MATRIX = FLAT_ROTATION | FLAT_TRANSFORM | {"rotations", "world", "poses"}
# Words for quantities of a rotation that are not rotations themselves.
NO_ROTATION = {"vel", "velocity", "rate", "rates", "dot", "cov", "covariance", "std", "var", "variance"}
# Kinds of rotations by a name in snake case, in the words of actions; the first that matches counts.
_KINDS = {
    "rot6d": re.compile(r"(?<![a-z0-9])(?:rot(?:ation)?_?)?6_?d(?:_?rot(?:ation)?)?(?![a-z0-9])"),
    "rotvec": re.compile(r"axis_?angle|rot(?:ation)?_?vec|axang"),
    "quat": re.compile(r"quat|(?<![a-z])q_?[wxyzrijk](?![a-z])|xyzw|wxyz|scalar_?(?:first|last)"),
    "matrix": re.compile(r"rot_?mat|matrix"),
    "euler": re.compile(r"euler|rpy|ypr"),
}
_RELATIVE = re.compile(r"(?<![a-z])(?:rel|relative|deltas?)(?![a-z])")
# Words for Euler angles, by the axes that they turn about.
_TURN = re.compile(
    r"(?<![a-zA-Z])(?i:(roll)|(pitch)|(yaw|heading))(?![a-z])|(Roll)(?![a-z])|(Pitch)(?![a-z])|(Yaw|Heading)(?![a-z])"
)
# An entry of a matrix: r01, rot_12, R[0,1], T03; of a rotation also 01 and xy.
_ENTRY = re.compile(
    r"(?i)((?:.*?[^a-z0-9])??((?:r|rot|rotation|m|mat|matrix|rotmat|rot_mat|rot6d|6d|t|tf|transform|pose)?))[ _.\[(]*"
    r"(?:([0-4])[ ,_.\])(\[]*([0-4])|([xyz])([xyz]))[\])]*"
)
# A component's letter ends a name, or a word within one: qx, q[x], qx1, qx_world, q_x_world.
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

_DEGREES = re.compile(r"(?i)(?<![a-z])(deg|degrees?)(?![a-z])|°")
_RADIANS = re.compile(r"(?i)(?<![a-z])(rad|radians?)(?![a-z])")
# Units by their words in small letters, without a plural's s.
_UNITS = {
    **dict.fromkeys(("rad", "radian"), "rad"),
    **dict.fromkeys(("deg", "degree", "°"), "deg"),
    **dict.fromkeys(("m", "meter", "metre"), "m"),
    **dict.fromkeys(("mm", "millimeter", "millimetre"), "mm"),
    **dict.fromkeys(("cm", "centimeter", "centimetre"), "cm"),
    **dict.fromkeys(("s", "second", "sec"), "s"),
    **dict.fromkeys(("ms", "millisecond", "msec"), "ms"),
    **{
        unit.lower(): unit
        for unit in ("rad/s", "deg/s", "m/s", "N", "Nm", "inch", "ft", "rpm", "g", "kg", "rev", "turn", "tick")
    },
}


# ---- words ----


def last_part(name: str) -> str:
    """Returns the last part of a name: "dones" of "data/dones", "episode_id" of "log.episode_id"."""
    return re.split(r"[./]", name)[-1]


def words_of(name: str) -> set[str]:
    """Returns the words of a name in lower case: of "anchorId" and of "anchor_id" they are anchor and id."""
    return {word.lower() for word in _WORD.findall(name)}


def in_snake_case(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())


def says_relative(name: str) -> bool:
    return _RELATIVE.search(in_snake_case(name)) is not None


# ---- rotations ----


def kinds_of(name: str) -> list[str]:
    """Returns the kinds of rotations that a name says, most often none or one."""
    name = in_snake_case(name)
    return [kind for kind, pattern in _KINDS.items() if pattern.search(name)]


def axes_of_turns(name: str) -> set[str]:
    """Returns the axes x, y, z that the name of an Euler angle says by roll, pitch and yaw."""
    return {"xyz"[i % 3] for found in _TURN.findall(name) for i, word in enumerate(found) if word}


def matrix_entry(name: str) -> tuple[str, bool, int, int] | None:
    """Returns of the name of a matrix's entry the stem, whether it has a word for a matrix, and the numbers of row and column."""
    match = _ENTRY.fullmatch(name) or _ENTRY.fullmatch(without_units(name))
    if match is None:
        return None
    stem, word, row, column, *letters = match.groups()
    if row is None:
        row, column = ("xyz".index(letter.lower()) for letter in letters)
    return stem.lower(), bool(word) and match[3] is not None, int(row), int(column)


def without_units(name: str) -> str:
    """Returns a name without what stands in brackets, but for one letter or digit."""
    return _BRACKETS.sub(lambda brackets: brackets[0] if len(brackets[0].strip()) == 3 else "", name)


def says(name: str, words: Set[str]) -> bool:
    """Whether the last part of a name, also of one that components have but for their letter, has one of the words and is no rate."""
    before, _, after = name.partition(_GAP)
    said = words_of(last_part(before) + after)
    return not said.isdisjoint(words) and said.isdisjoint(NO_ROTATION)


def components_of(names: Sequence[str]) -> list[dict[str, str]]:
    """Returns for each name the letters x, y, z or w that may be a component's, by the rest of the name.

    A w alone is the scalar of a rotation beside it that has x, y and z, such as rx, ry, rz, but no w. Beside h and l it is a width.
    """
    components = [_components(without_units(name)) for name in names]
    letters: dict[str, set[str]] = {}
    for found in components:
        for stem, letter in found.items():
            letters.setdefault(stem, set()).add(letter)
    lower = {name.lower().rstrip("]") for name in names}
    for name, found in zip(names, components, strict=True):
        match = _SCALAR.fullmatch(without_units(name))
        if match is None or {f"{match[1]}h".lower(), f"{match[1]}l".lower()} & lower:
            continue
        for stem in letters:
            vector = stem.removeprefix(match[1]).removesuffix(_GAP).rstrip(" ._").lower()
            if letters[stem] == set("xyz") and stem.startswith(match[1]) and vector in WITH_COMPONENTS:
                found[stem] = "w"
    return components


def _components(name: str) -> dict[str, str]:
    found = {f"{name[: one.start()]}{_GAP}{name[one.end() :]}": one[1].lower() for one in _COMPONENT.finditer(name)}
    for other in _OTHER_COMPONENT.finditer(name):
        found[f"{name[: other.end(1)]}{_GAP}{name[other.end() :]}"] = _OTHER_LETTERS[other[2].lower()]
    return found


def letters_of(names: Sequence[str]) -> str:
    """Returns the letters, another for each, by which names that else are one say components; "" if they do not."""
    found = components_of(names)
    for stem in set(found[0]).intersection(*found[1:]) if found else ():
        letters = "".join(one[stem] for one in found)
        if len(set(letters)) == len(letters):
            return letters
    return ""


# ---- units ----


def known_unit(word: str) -> str | None:
    """Returns the one spelling of a known unit: m of "metres"."""
    word = word.strip().lower()
    return _UNITS.get(word) or _UNITS.get(word.removesuffix("s"))


def in_one_spelling(unit: str) -> str:
    return known_unit(unit) or unit.strip()


def is_degrees(word: str) -> bool:
    """Whether a unit or a name says degrees."""
    return _DEGREES.search(word) is not None


def angle_unit(word: str) -> str:
    """Returns deg or rad, if a unit or a name says one; else ""."""
    return "deg" if is_degrees(word) else "rad" if _RADIANS.search(word) else ""
