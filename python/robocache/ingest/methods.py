"""Finds the methods of interpolation that a source declares: names and schemas declare rotations and angles, types whole numbers.

Values are not examined, because four numbers of length 1 may be anything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from ..feature_words import (
    FLAT_ROTATION,
    FLAT_TRANSFORM,
    MATRIX,
    NO_ROTATION,
    ORIENTATION,
    QUATERNION,
    ROTATIONS,
    WITH_COMPONENTS,
    WITH_ORDER,
    components_of,
    in_snake_case,
    is_degrees,
    kinds_of,
    last_part,
    matrix_entry,
    says,
    says_relative,
    words_of,
)
from .recording import Notes, Ragged, Rows, Samples

Block = list[Any]  # [start, stop, method]

# Words of things of which there are four.
_OF_PARTS = {
    *("wheel", "wheels", "joint", "joints", "motor", "motors", "leg", "legs", "caster", "casters", "finger", "fingers"),
    *("speed", "count", "counts", "error", "torque", "weight", "weights"),
}
_GRIDS = {(2, 3), (3, 2), (3, 3), (3, 4), (4, 4)}
# PX4 calls a quaternion q. Elsewhere q is as often joint positions.
PX4_WORDS = QUATERNION | {"q"}
# PX4's words for angles. Its unit is the radian, where a name does not end with another one.
_PX4_ANGLE = {"yaw", "heading", "cog", "course", "bearing", "azimuth", "roll", "pitch", "euler"}
_PX4_OTHER = {
    *NO_ROTATION,
    *("deg", "degrees", "speed", "delta", "accuracy", "acc", "scale", "torque", "thrust", "body_rate", "ratio"),
    *("ratios", "variances", "innov", "innovation", "innovations", "test", "integ", "integral", "gain", "weight"),
    *("count", "flag", "flags", "error", "quality", "confidence", "trim", "offset", "control", "input", "stick"),
}
# PX4's topics whose rows are of several subjects in turn, which a key, an index or an address tells apart.
_PX4_OF_SEVERAL = {
    "collisionreport",
    "debugkeyvalue",
    "debugvalue",
    "debugvect",
    "rangingbeacon",
    "transponderreport",
}
# Fields of ROS messages that are angles in radians by their types' descriptions.
_ROS_ANGLES = {
    "geometry_msgs/Pose2D": {"theta"},
    "mav_msgs/RollPitchYawrateThrust": {"roll", "pitch"},
    "mavros_msgs/GlobalPositionTarget": {"yaw"},
    "mavros_msgs/PositionTarget": {"yaw"},
    "nav_2d_msgs/Pose2D32": {"theta"},
    "turtlesim/Pose": {"theta"},
    "unitree_go/IMUState": {"rpy"},
    "unitree_hg/IMUState": {"rpy"},
    "unitree_legged_msgs/IMU": {"rpy"},
    "vision_msgs/Pose2D": {"theta"},
}
# The components of one: rotvec_x, axis_angle1; and of Universal Robots' actual_TCP_pose_3.
_VECTOR_PART = re.compile(r"(.*?)[ ._\[]?([xyz0-3])\]?")
# Components behind a position's x, y and z: of a rotation vector (LeRobot's ee.wx), of that or of three angles (rx).
_OF_POSE = re.compile(r"(?i)((?:.*[ ._/\[])?)([wr]|(?:rot|rotation|ori|orientation)[ ._]?)([xyz])\]?")
_UR_PART = re.compile(r"(actual|target)_TCP_pose_[345]")
# A stamp's parts: /imu/header/stamp/sec and nanosec.
_STAMP_PART = re.compile(r"(?i)(.*?)(?:(secs?|seconds)|((?:n|nano|u|micro)_?(?:secs?|seconds)))")
HELD = "rotations as vectors or matrices have no method between rows: the row before is held"

# Rotations and angles that formats declare by their schemas: by format a pattern of streams, the shape of a row, and methods.
# "orientation" is quaternions along the last axis.
_EULER_POSE = [[3, 6, "angle"]]
_POSE = [[3, 7, "slerp"]]
VECTOR_POSE = [[3, 6, "previous"]]
_CALVIN = (
    (r"(.*/)?robot_obs", (15,), _EULER_POSE),
    (r"(.*/)?scene_obs", (24,), [[9, 12, "angle"], [15, 18, "angle"], [21, 24, "angle"]]),
)
_DROID = (r"(.*[/.])?(target_)?cartesian_position", (6,), _EULER_POSE)
_SCHEMAS: dict[str, tuple[tuple[str, tuple[int, ...], list[Block]], ...]] = {
    "agibot": (
        (r"(state|action)/.*orientation", (4,), [[0, 4, "slerp"]]),
        (r"(state|action)/.*orientation", (2, 4), [[0, 4, "slerp"], [4, 8, "slerp"]]),
    ),
    "calvin": (*_CALVIN, (r"actions", (7,), _EULER_POSE)),
    "droid": (_DROID, (r"observation/camera_extrinsics/.*", (6,), _EULER_POSE)),
    "lerobot": (_DROID,),
    "maniskill": (
        (r"obs/(extra|agent)/.*pose", (7,), _POSE),
        (r"env_states/actors/.*", (13,), _POSE),
        (r"env_states/articulations/.*", (), _POSE),
    ),
    "npz": (  # AMASS: a rotation vector a joint
        (r"poses", (72,), [[0, 72, "previous"]]),  # SMPL's
        (r"poses|pose_aa", (24, 3), [[0, 72, "previous"]]),
        (r"body_pose", (69,), [[0, 69, "previous"]]),
        (r"body_pose", (63,), [[0, 63, "previous"]]),
        (r"body_pose", (23, 3), [[0, 69, "previous"]]),
        (r"body_pose", (21, 3), [[0, 63, "previous"]]),
        (r"poses|pose_aa|fullpose|smpl_poses?|thetas?", (66,), [[0, 66, "previous"]]),
        (r"pose_aa|fullpose|smpl_poses?|thetas?", (72,), [[0, 72, "previous"]]),
        (r"pose_aa|fullpose|smpl_poses?", (156,), [[0, 156, "previous"]]),
        (r"pose_aa|fullpose|smpl_poses?", (165,), [[0, 165, "previous"]]),
        (r"(root|global)_(rot|rotation|orient|orientation)", (4,), [[0, 4, "slerp"]]),
        (r"global_orient", (3,), [[0, 3, "previous"]]),
        (r"global_orient", (1, 3), [[0, 3, "previous"]]),
        (r"poses", (156,), [[0, 156, "previous"]]),
        (r"poses", (165,), [[0, 165, "previous"]]),
        (r"pose_body", (63,), [[0, 63, "previous"]]),
        (r"pose_hand", (90,), [[0, 90, "previous"]]),
        (r"pose_eye", (6,), [[0, 6, "previous"]]),
        (r"root_orient|pose_jaw", (3,), [[0, 3, "previous"]]),
    ),
    "rlds": (_DROID, *_CALVIN, (r"(.*[/.])?base_pose_tool_reached", (7,), _POSE)),  # RT-1's: position, quaternion
    "robomimic": (
        (r".*/root_pose", (7,), _POSE),  # Isaac Lab's
        (r"robot_states", (9,), [[5, 9, "slerp"]]),  # LIBERO's: gripper, position, quaternion
        (r"(obs/)?ee_states", (6,), VECTOR_POSE),
        (r"(obs/)?ee_ori", (3,), [[0, 3, "previous"]]),
        (r"actions_abs", (7,), VECTOR_POSE),
        (r"actions_abs", (14,), [[3, 6, "previous"], [10, 13, "previous"]]),
    ),
    "robotwin": ((r"endpose/(left|right)_endpose", (7,), _POSE),),
    "zarr": (
        (r"robot_eef_pose", (6,), VECTOR_POSE),
        (r"robot\d+_demo_(start|end)_pose", (6,), VECTOR_POSE),
    ),
}
# Parts of a row by the words of its stream's name: xyz_wxyz is a position and a quaternion. By each part its numbers.
_PARTS = {
    **dict.fromkeys(("xyz", "pos", "position", "point", "points", "trans", "translation", "pose"), 3),
    **dict.fromkeys(WITH_ORDER, 4),
    "gripper": 1,
}
_NUMBERED = re.compile(r"(.*?)[ ._\[-]?(\d)\]?")


# More values than this name no subjects: counters, as some drivers write them there.
MOST_SUBJECTS = 32
# A field with one of WORDS_OF_IDS in its name is an id. One with WORDS_OF_SUBJECTS may be one, if its values take turns. NO_SUBJECT
# matches words of ids that do not name a row's subject.
WORDS_OF_IDS = {"id", "index", "idx"}
WORDS_OF_SUBJECTS = {
    *("address", "addr", "anchor", "beacon", "channel", "chan", "node", "sensor", "device", "motor", "tag", "slot"),
    *("key", "marker", "tracker", "drone", "robot", "vehicle", "leg", "wheel", "port"),
}
NO_SUBJECT = re.compile(
    "seq|sequence|frame|msg|message|packet|request|goal|trace|span|session|event|sample|scan|cycle|row|step|lap|mode|status|state|type"
    "|error|fault|class|category|command|cmd|version|vendor|product|firmware|header|file|topic|function|task|map|array"
)


class Ids:
    """The values of a field that may be an id, in the order of a recording's rows.

    changes: how often a row has another one than the row before.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.changes = 0
        self._last: str | None = None

    @classmethod
    def of(cls, codes: np.ndarray) -> Ids:
        """Returns the ids of all rows at once. `codes` has the number of each row's value."""
        ids = cls()
        ids.seen = Counter({str(code): int(count) for code, count in enumerate(np.bincount(codes))})
        ids.changes = int(np.count_nonzero(np.diff(codes)))
        return ids

    def add(self, values: Sequence[str]) -> None:
        self.seen.update(values)
        self.changes += sum(a != b for a, b in zip([self._last or values[0], *values], values, strict=False))
        self._last = values[-1]

    @property
    def is_few(self) -> bool:
        """Whether there are several, not so many that they count something, each for more than a row."""
        return 2 <= len(self.seen) <= MOST_SUBJECTS and 2 * len(self.seen) <= self.seen.total()

    @property
    def take_turns(self) -> bool:
        return self.is_few and 4 * self.changes >= self.seen.total()

    @property
    def take_strict_turns(self) -> bool:
        """Whether nearly every row differs from the one before and all values are equally frequent. A state's text is not like that."""
        counts = self.seen.values()
        return self.take_turns and 10 * self.changes >= 9 * self.seen.total() and 10 * min(counts) >= 9 * max(counts)

    @property
    def return_(self) -> bool:
        """Whether an id comes again after another one, which a counter of phases does not."""
        return self.is_few and self.changes >= len(self.seen)


def with_rotations(streams: Iterable[tuple[str, Samples]], notes: Notes) -> Iterator[tuple[str, Samples]]:
    """Yields the streams, with ``attributes["methods"]`` for the rotations and angles that the format's schema or their names declare
    among features without a method."""
    known: dict[tuple[str, tuple[str, ...], tuple[int, ...]], list[Block]] = {}
    for stream, samples in streams:
        if isinstance(samples, Rows | Ragged) and samples.values.dtype.kind not in "biu":
            key = stream, tuple(samples.names or ()), samples.values.shape[1:]
            of_schema = _of_schema(stream, samples, notes)  # of each part, whose values may be no angles
            if key not in known:
                by_names = with_others(rotations_of(*key), _rotation_vectors(*key))
                known[key] = with_others(of_schema, by_names)
                _say_assumed(stream, samples, [block for block in by_names if block in known[key]], notes)
                if any(how == "previous" and not notes.gives_methods(stream, a, b) for a, b, how in known[key]):
                    notes.leave_out(f"{stream}: values between rows", HELD)
                for four in scattered(samples.names or ()):
                    features = ", ".join(f"{samples.names[i]} [{i}]" for i in four)  # type: ignore[index]
                    why = f"{features} are not adjacent: they are interpolated number by number"
                    notes.leave_out(f"{stream}: a rotation", why)
                known[key] = with_others(known[key], _stamps_in_parts(samples.names or ()))
            if known[key]:
                methods = with_others(samples.attributes.get("methods", []), known[key])
                samples = replace(samples, attributes={**samples.attributes, "methods": methods})
        yield stream, samples


def _of_schema(stream: str, samples: Rows | Ragged, notes: Notes) -> list[Block]:
    """Returns the methods that the format's schema has for a stream. DROID's name for a pose is also that of other robots' sets, so it
    is said there, and it is no angle in radians where values are beyond a turn."""
    methods = _by_schema(notes.format, stream, samples.values.shape[1:])
    if not methods or notes.format not in ("lerobot", "rlds") or not re.fullmatch(_DROID[0], stream):
        return methods
    if notes.gives_methods(stream, 3, 6):
        return methods
    if (most := notes.beyond_a_turn(stream, samples.values.reshape(-1, 6)[:, 3:])) is not None:
        why = f"values up to {most:.4g} are no Euler angles in radians, as DROID's stream of this name has: interpolated as numbers"
        notes.assume(f"{stream}: rotation", why, stream)
        return []
    notes.assume(f"{stream}: rotation", "Euler angles in radians, as DROID's stream of this name has", stream)
    return methods


def _say_assumed(stream: str, samples: Rows | Ragged, by_names: list[Block], notes: Notes) -> None:
    """Reports rotations and angles that only a name declares, not a ROS type or a format's schema."""
    attributes = samples.attributes
    given = attributes.get("methods", [])
    found = [block for block in by_names if block in with_others(given, by_names) and block not in given]
    if notes.format == "ulog" or str(attributes.get("schema")).startswith("px4_msgs/"):
        found += [block for block in given if block[2] == "angle"]
    names = samples.names or []
    found = [block for block in found if not notes.gives_methods(stream, block[0], block[1])]
    for start, stop, method in found:
        what = stream
        if len(names) >= stop:
            what = names[start] if stop - start == 1 else f"{names[start]} to {names[stop - 1]}"
        meaning = {
            "slerp": "a quaternion",
            "angle": "an angle in radians",
            "previous": "a rotation vector, Euler angles or a matrix, which is held",
        }[method]
        notes.assume(what, f"{meaning}, by name", stream)


def _by_schema(format: str, stream: str, shape: Sequence[int]) -> list[Block]:
    for pattern, row, methods in _SCHEMAS.get(format, ()):
        if re.fullmatch(pattern, stream) and (tuple(shape) == row or (not row and prod(shape) >= 7)):
            return methods
    return []


def _rotation_vectors(stream: str, names: Sequence[str], shape: Sequence[int]) -> list[Block]:
    """Returns the rotation vectors and matrices that names declare, which are held: numbers between two are no rotation between."""
    last = last_part(stream)
    words = words_of(last) | set(re.findall(r"(?<![A-Za-z])[RT](?![A-Za-z])", last))  # R, T_WC
    flat = {9: FLAT_ROTATION, 12: FLAT_TRANSFORM, 16: FLAT_TRANSFORM}.get(shape[-1] if shape else 0, set())
    is_matrix = (tuple(shape[-2:]) in ((3, 3), (3, 4), (4, 4)) and words & MATRIX) or words & flat
    if is_matrix and not words & NO_ROTATION:
        return [[0, prod(shape), "previous"]]
    if shape and shape[-1] == 6 and _says_six(last) and not words & NO_ROTATION:
        return [[0, prod(shape), "previous"]]
    if shape and shape[-1] == 3 and _says_vector(last):
        return [[0, prod(shape), "previous"]]
    if len(names) != prod(shape):
        return []
    parts = [match[1] if (match := _VECTOR_PART.fullmatch(name)) and _says_vector(match[1]) else "" for name in names]
    of_poses = _rotations_of_poses(names) | _matrices_of(names)
    return _runs(
        [
            i
            for i, (name, part) in enumerate(zip(names, parts, strict=True))
            if part or i in of_poses or _UR_PART.fullmatch(name)
        ],
        "previous",
    )


def _rotations_of_poses(names: Sequence[str]) -> set[int]:
    """Returns the features wx, wy, wz or rx, ry, rz that follow x, y, z of the same name: a pose whose rotation is three numbers.

    Beside a velocity vx, wx is the speed of turning; beside rw, rx is a quaternion's.
    """
    found: dict[tuple[str, str], dict[str, int]] = {}
    for index, name in enumerate(names):
        if match := _OF_POSE.fullmatch(name):
            found.setdefault((match[1], match[2].lower()), {})[match[3].lower()] = index
    lower = {name.lower().rstrip("]") for name in names}
    rows: set[int] = set()
    for (start, letter), parts in found.items():
        stem = start.lower()
        of_position = ("", "t", "p", "pos_", "pos.", "position_", "position.")
        has_position = any({f"{stem}{word}{axis}" for axis in "xyz"} <= lower for word in of_position)
        is_other = f"{stem}vx" in lower or f"{stem}{letter}w" in lower
        if len(parts) == 3 and has_position and not is_other:
            rows |= set(parts.values())
    return rows


def _matrices_of(names: Sequence[str]) -> set[int]:
    """Returns the features whose names say that they are entries of a matrix, or of a rotation's six numbers."""
    found: dict[str, dict[tuple[int, int], int]] = {}
    rows: set[int] = set()
    for index, name in enumerate(names):
        if (entry := matrix_entry(name)) and entry[1]:
            found.setdefault(entry[0], {})[entry[2:]] = index
        if _says_six(name) and not words_of(name) & NO_ROTATION:
            rows.add(index)
    for entries in found.values():
        first = min(min(entries))
        height, width = (max(entry[axis] for entry in entries) - first + 1 for axis in (0, 1))
        if (height, width) in _GRIDS and len(entries) == height * width:
            rows |= set(entries.values())
    return rows


def _stamps_in_parts(names: Sequence[str]) -> list[Block]:
    """Returns the features that are a stamp's seconds and what is beyond them, sec and nanosec, which are held: between two stamps the
    second part may begin at 0 again."""
    parts = [match.groups() if (match := _STAMP_PART.fullmatch(name)) else ("", None, None) for name in names]
    seconds, beyond = ({stem for stem, *part in parts if part[i]} for i in (0, 1))
    return _runs([i for i, (stem, *_) in enumerate(parts) if stem in seconds & beyond], "previous")


def _says_vector(name: str) -> bool:
    return "rotvec" in kinds_of(name) and not says_relative(name) and not words_of(name) & NO_ROTATION


def _says_six(name: str) -> bool:
    return "rot6d" in kinds_of(name) and "rot" in name.lower()


def ros_angles(type: str, field: str) -> bool:
    """Whether a ROS type declares its field an angle in radians."""
    package, _, name = type.partition("/")
    name = name.removeprefix("msg/")
    if package == "px4_msgs":
        return bool(px4_angles(name, [field]))
    return field in _ROS_ANGLES.get(f"{package}/{name}", ())


def px4_of_several(topic: str) -> bool:
    """Whether a PX4 topic's rows are of several subjects, by its name in a log or as a ROS type: nothing lies between two of them."""
    return topic.replace("_", "").lower() in _PX4_OF_SEVERAL


def px4_angles(topic: str, names: Sequence[str]) -> list[Block]:
    """Returns the features of a PX4 topic that are angles by their names."""
    if words_of(topic) & _PX4_OTHER:
        return []
    said = [words_of(re.sub(r"\[\d+\]", "", name.rpartition(".")[2])) for name in names]
    return _runs([i for i, words in enumerate(said) if words & _PX4_ANGLE and not words & _PX4_OTHER], "angle")


def method_of_rotation(kind: str) -> str:
    """Returns the method for a rotation of that kind, in the words of GR00T's modality.json: Euler angles are in radians; rotation
    vectors and matrices have no method between rows, so they are held."""
    return "slerp" if kind == "quaternion" else "angle" if kind.startswith("euler") else "previous"


def says_degrees(units: Any) -> bool:
    """Whether a stream's units, one or a list of them, say degrees of a feature."""
    return any(is_degrees(unit) for unit in (units if isinstance(units, list) else [units]) if isinstance(unit, str))


def rotations_of(stream: str, names: Sequence[str], shape: Sequence[int], words: Set[str] = QUATERNION) -> list[Block]:
    """Returns the quaternions in a row of that shape: [[start, stop, "slerp"], ...].

    words: the words that declare four numbers without names of components.
    """
    features = prod(shape)
    starts = []
    of_four = words_of(last_part(stream)).isdisjoint(_OF_PARTS) or len(shape) > 1
    if shape and shape[-1] == 4 and says(stream, ROTATIONS.union(words) if of_four else words):
        starts = list(range(0, features, 4))
    elif len(names) == features:
        starts = _by_names(names, words)
    if not starts and shape and says(stream, WITH_ORDER):
        starts = [
            row + start for row in range(0, features, shape[-1] or 1) for start in _quaternions_in(stream, shape[-1])
        ]
    return [[start, start + 4, "slerp"] for start in starts]


def _by_names(names: Sequence[str], words: Set[str]) -> list[int]:
    components = components_of(names)
    numbered = [{match[1]: match[2]} if (match := _NUMBERED.fullmatch(name)) else {} for name in names]
    sizes: dict[str, int] = {}
    for numbers in numbered:
        for stem in numbers:
            sizes[stem] = sizes.get(stem, 0) + 1
    starts: list[int] = []
    for start in range(len(names) - 3):
        if starts and start < starts[-1] + 4:
            continue
        for found, letters, of in (
            (components, ("wxyz",), WITH_COMPONENTS),
            (numbered, ("0123", "1234"), ORIENTATION.union(words)),
        ):
            four = found[start : start + 4]
            if any(
                "".join(sorted(one[stem] for one in four)) in letters
                and says(stem, of)
                and (found is components or sizes[stem] == 4)
                for stem in set(four[0]).intersection(*four[1:])
            ):
                starts.append(start)
                break
    for stem in [] if starts else sizes:
        at = [index for index, numbers in enumerate(numbered) if stem in numbers]
        in_turn = [int(numbered[index][stem]) - int(numbered[at[0]][stem]) for index in at] == list(range(len(at)))
        if in_turn and at[-1] - at[0] < len(at) and says(stem, WITH_ORDER):
            starts += [at[0] + start for start in _quaternions_in(stem, len(at))]
    return sorted(starts)


def scattered(names: Sequence[str]) -> list[list[int]]:
    """Returns the indices of the components of each declared quaternion whose components are not adjacent."""
    components: dict[str, list[tuple[int, str]]] = {}
    for number, found in enumerate(components_of(names)):
        for stem, letter in found.items():
            if says(stem, WITH_COMPONENTS):
                components.setdefault(stem, []).append((number, letter))
    return [
        [number for number, _ in four]
        for four in components.values()
        if sorted(letter for _, letter in four) == list("wxyz") and four[-1][0] - four[0][0] > 3
    ]


def _quaternions_in(stream: str, width: int) -> list[int]:
    """Returns where quaternions begin in a row of that width whose parts the stream's name says in turn: 3 in a row of 7 for pos_quat.

    Rows may repeat the parts, and each time have one number more, a gripper's, behind a position and a quaternion.
    """
    words = re.findall(r"[a-z]+", in_snake_case(last_part(stream)))
    parts = [
        part for part, _ in groupby(_PARTS[word] for word in words if word in _PARTS)
    ]  # pose_xyz, quat_wxyz: one part
    if 4 not in parts:
        return []
    row = sum(parts)
    sizes = [width] * (width == row) if 3 not in parts else [row] + [row + 1] * (1 not in parts)
    size = next((size for size in sizes if width and width % size == 0), 0)
    starts = [sum(parts[:i]) for i, part in enumerate(parts) if part == 4]
    return [first + start for first in range(0, width, size) for start in starts] if size else []


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
