"""Finds the methods of interpolation that a source declares: names and schemas declare rotations and angles, dtypes whole numbers.

Rotations are not recognised by their values, because four numbers with the norm of a quaternion may be anything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from ..feature_words import (
    NO_ROTATION,
    QUATERNION,
    Block,
    is_no_radian,
    kinds_of,
    rotation_vectors,
    rotations_of,
    runs,
    scattered,
    words_of,
)
from .recording import Notes, Ragged, Rows, Samples

# The words for a quaternion in PX4, where q names a quaternion. Elsewhere q as often names joint positions.
PX4_WORDS = QUATERNION | {"q"}
# PX4's words for angles. Their unit is the radian, unless the name ends with another unit.
_PX4_ANGLE = {"yaw", "heading", "cog", "course", "bearing", "azimuth", "roll", "pitch", "euler"}
_PX4_OTHER = {
    *NO_ROTATION,
    *("deg", "degrees", "speed", "accuracy", "acc", "scale", "torque", "thrust", "body_rate", "ratio"),
    *("ratios", "variances", "innov", "innovation", "innovations", "test", "integ", "integral", "gain", "weight"),
    *("accel", "time", "timeout", "age", "valid", "validity", "counter"),
    *("count", "flag", "flags", "error", "quality", "confidence", "trim", "offset", "control", "input", "stick"),
}
# PX4's topics whose rows belong to several subjects in turn, distinguished by a key, an index or an address.
_PX4_SEVERAL_SUBJECTS = {
    *("collisionreport", "debugkeyvalue", "debugvalue", "debugvect", "rangingbeacon", "transponderreport"),
}
# Fields of ROS messages that are angles in radians, as the descriptions of their types say.
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
# Matches a field that is a part of a stamp, such as sec or nanosec in /imu/header/stamp. Its groups: the stem, then the word for seconds
# or the word for a fraction.
_STAMP_PART = re.compile(r"(?i)(.*?)(?:(secs?|seconds)|((?:n|nano|u|micro)_?(?:secs?|seconds)))")
# Fields of distances, and the fields beside them with the limits of what the sensor measures: of LaserScan, Range and PX4's
# distance_sensor.
_LIMITS = {
    "ranges": ("range_min", "range_max"),
    "range": ("min_range", "max_range"),
    "current_distance": ("min_distance", "max_distance"),
}
BEYOND_LIMITS = "held: values beyond the limits in the same message are no measurements"
HELD = "rotations as vectors or matrices have no method between rows: the row before is held"

# Methods of a pose: a position, and Euler angles, a quaternion or a rotation vector.
_EULER_POSE = [[3, 6, "angle"]]
_POSE = [[3, 7, "slerp"]]
VECTOR_POSE = [[3, 6, "previous"]]
_CALVIN = (
    (r"(.*/)?robot_obs", (15,), _EULER_POSE),
    (r"(.*/)?scene_obs", (24,), [[9, 12, "angle"], [15, 18, "angle"], [21, 24, "angle"]]),
)
_DROID = (r"(.*[/.])?(target_)?cartesian_position", (6,), _EULER_POSE)
# The rotations and angles that the schemas of formats declare: for each format, patterns of streams, each with the shape of a row (() for
# any with 7 features or more) and the methods.
_SCHEMAS: dict[str, tuple[tuple[str, tuple[int, ...], list[Block]], ...]] = {
    "agibot": (
        (r"(state|action)/.*orientation", (4,), [[0, 4, "slerp"]]),
        (r"(state|action)/.*orientation", (2, 4), [[0, 4, "slerp"], [4, 8, "slerp"]]),
    ),
    "calvin": (*_CALVIN, (r"actions", (7,), _EULER_POSE)),
    "droid": (_DROID, (r"observation/camera_extrinsics/.*", (6,), _EULER_POSE)),
    "lerobot": (_DROID,),
    "maniskill": (
        (r"obs/(extra|agent)/(.*[_/])?(pose|[a-z]*_tcp)", (7,), _POSE),
        # Hands have three or four fingers.
        (r"obs/(extra|agent)/tip_poses", (21,), [*_POSE, [10, 14, "slerp"], [17, 21, "slerp"]]),
        (r"obs/(extra|agent)/tip_poses", (28,), [*_POSE, [10, 14, "slerp"], [17, 21, "slerp"], [24, 28, "slerp"]]),
        (r"env_states/actors/.*", (13,), _POSE),
        (r"env_states/articulations/.*", (), _POSE),
    ),
    "npz": (
        (r"(root|global)_(rot|rotation|orient|orientation)", (4,), [[0, 4, "slerp"]]),
        *(  # AMASS and SMPL have a rotation vector for each joint
            (names, shape, [[0, prod(shape), "previous"]])
            for names, shape in (
                (r"poses|pose_aa|fullpose|smpl_poses?|thetas?", (66,)),
                (r"poses|pose_aa|fullpose|smpl_poses?|thetas?", (72,)),
                (r"poses|pose_aa|fullpose|smpl_poses?", (156,)),
                (r"poses|pose_aa|fullpose|smpl_poses?", (165,)),
                (r"poses|pose_aa", (24, 3)),
                (r"body_pose", (69,)),
                (r"body_pose|pose_body", (63,)),
                (r"body_pose", (23, 3)),
                (r"body_pose", (21, 3)),
                (r"global_orient|root_orient|pose_jaw", (3,)),
                (r"global_orient", (1, 3)),
                (r"pose_hand", (90,)),
                (r"pose_eye", (6,)),
            )
        ),
    ),
    "rlds": (_DROID, *_CALVIN, (r"(.*[/.])?base_pose_tool_reached", (7,), _POSE)),  # RT-1: position, quaternion
    "robomimic": (
        (r".*/root_pose", (7,), _POSE),  # Isaac Lab
        (r"robot_states", (9,), [[5, 9, "slerp"]]),  # LIBERO: gripper, position, quaternion
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


# A field with more distinct values than this does not name subjects, since some drivers count rows in such a field.
MOST_SUBJECTS = 32
# A field with one of WORDS_OF_IDS in its name is the id of a row's subject. A field with one of WORDS_OF_SUBJECTS may be such an id, if its
# values take turns. NO_SUBJECT matches words in the names of ids that are not those of a row's subject.
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
    """The values of a field that may be the id of a row's subject, in the order of a recording's rows.

    seen: how many rows have each value.
    changes: how many rows have another value than the row before.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.changes = 0
        self._last: str | None = None

    @classmethod
    def of(cls, codes: np.ndarray) -> Ids:
        """Returns the ids of all rows at once. `codes` has for each row the index of its value among the distinct ones."""
        ids = cls()
        ids.seen = Counter({str(code): int(count) for code, count in enumerate(np.bincount(codes))})
        ids.changes = int(np.count_nonzero(np.diff(codes)))
        return ids

    def add(self, values: Sequence[str]) -> None:
        self.seen.update(values)
        self.changes += sum(
            previous != value for previous, value in zip([self._last or values[0], *values], values, strict=False)
        )
        self._last = values[-1]

    @property
    def is_few(self) -> bool:
        """Whether there are several values, but too few for a counter, and each value has on average two rows or more."""
        return 2 <= len(self.seen) <= MOST_SUBJECTS and 2 * len(self.seen) <= self.seen.total()

    @property
    def take_turns(self) -> bool:
        """Whether the values change often: in a quarter of the rows or more."""
        return self.is_few and 4 * self.changes >= self.seen.total()

    @property
    def take_strict_turns(self) -> bool:
        """Whether nearly every row has another value than the row before, and all values are about equally frequent. The values of a state
        are not."""
        counts = self.seen.values()
        return self.take_turns and 10 * self.changes >= 9 * self.seen.total() and 10 * min(counts) >= 9 * max(counts)

    @property
    def recur(self) -> bool:
        """Whether some values come again after other values. The values of a counter of phases do not."""
        return self.is_few and self.changes >= len(self.seen)


def with_rotations(streams: Iterable[tuple[str, Samples]], notes: Notes) -> Iterator[tuple[str, Samples]]:
    """Yields the streams, with ``attributes["methods"]`` for rotations and angles that the format's schema or feature names declare.
    Features that already have a method keep it."""
    declared: dict[tuple[str, tuple[str, ...], tuple[int, ...]], list[Block]] = {}
    for stream, samples in streams:
        if isinstance(samples, Rows | Ragged) and samples.values.dtype.kind not in "biu":
            names = samples.names or []
            key = stream, tuple(names), samples.values.shape[1:]
            by_schema = _find_by_schema(stream, samples, notes)  # for every part, since its values may exclude angles
            if key not in declared:
                by_names = with_others(rotations_of(*key), rotation_vectors(*key))
                declared[key] = with_others(by_schema, by_names)
                _report_assumed(stream, samples, [block for block in by_names if block in declared[key]], notes)
                if any(
                    method == "previous" and not notes.gives_methods(stream, start, stop)
                    for start, stop, method in declared[key]
                ):
                    notes.leave_out(f"{stream}: values between rows", HELD)
                for quaternion in scattered(names):
                    features = ", ".join(f"{names[i]} [{i}]" for i in quaternion)
                    why = f"{features} are not adjacent: they are interpolated number by number"
                    notes.leave_out(f"{stream}: a rotation", why)
                declared[key] = with_others(declared[key], _find_stamp_parts(names))
            if declared[key]:
                methods = with_others(samples.attributes.get("methods", []), declared[key])
                samples = replace(samples, attributes={**samples.attributes, "methods": methods})
        yield stream, samples


def _find_by_schema(stream: str, samples: Rows | Ragged, notes: Notes) -> list[Block]:
    """Returns the methods that the format's schema has for a stream. Datasets of other robots also use DROID's name of a pose, so its
    methods are reported, and values beyond a turn are not taken as angles."""
    shape = samples.values.shape[1:]
    methods: list[Block] = []
    for pattern, row_shape, pattern_methods in reversed(_SCHEMAS.get(notes.format, ())):
        if re.fullmatch(pattern, stream) and (shape == row_shape or (not row_shape and prod(shape) >= 7)):
            methods = pattern_methods
    has_droid_name = notes.format in ("lerobot", "rlds") and re.fullmatch(_DROID[0], stream)
    if not methods or not has_droid_name or notes.gives_methods(stream, 3, 6):
        return methods
    if (largest := notes.beyond_a_turn(stream, samples.values.reshape(-1, 6)[:, 3:])) is not None:
        why = f"values up to {largest:.4g} are no Euler angles in radians, as DROID's stream of this name has: interpolated as numbers"
        notes.assume(f"{stream}: rotation", why, stream)
        return []
    notes.assume(f"{stream}: rotation", "Euler angles in radians, as DROID's stream of this name has", stream)
    return methods


def _report_assumed(stream: str, samples: Rows | Ragged, by_names: list[Block], notes: Notes) -> None:
    """Reports rotations and angles that are declared only by a name, not by a ROS type or a schema.

    by_names: the blocks of methods that follow from names.
    """
    attributes = samples.attributes
    existing = attributes.get("methods", [])
    blocks = [block for block in by_names if block in with_others(existing, by_names) and block not in existing]
    if notes.format == "ulog" or str(attributes.get("schema")).startswith("px4_msgs/"):
        blocks += [block for block in existing if block[2] == "angle"]
    names = samples.names or []
    for start, stop, method in blocks:
        if notes.gives_methods(stream, start, stop):
            continue
        features = stream
        if len(names) >= stop:
            features = names[start] if stop - start == 1 else f"{names[start]} to {names[stop - 1]}"
        meaning = {
            "slerp": "a quaternion",
            "angle": "an angle in radians",
            "previous": "a rotation vector, Euler angles or a matrix, which is held",
        }[method]
        notes.assume(features, f"{meaning}, by name", stream)


def _find_stamp_parts(names: Sequence[str]) -> list[Block]:
    """Returns "previous" blocks for features that are the seconds and the fraction of a stamp, such as sec and nanosec. They cannot be
    interpolated, since between two stamps the fraction may begin at 0 again."""
    parts = [match.groups() if (match := _STAMP_PART.fullmatch(name)) else ("", None, None) for name in names]
    seconds, fractions = ({stem for stem, *part in parts if part[i]} for i in (0, 1))
    return runs([i for i, (stem, *_) in enumerate(parts) if stem in seconds & fractions], "previous")


def has_limits(path: str, paths: Container[str]) -> bool:
    """Whether the field `path` has distances, and fields beside it have the limits of what the sensor measures. `paths`: all fields."""
    stem, dot, name = path.rpartition(".")
    return name in _LIMITS and all(f"{stem}{dot}{limit}" in paths for limit in _LIMITS[name])


def ros_angles(type: str, field: str) -> bool:
    """Whether a ROS type declares its field to be an angle in radians."""
    package, _, name = type.partition("/")
    name = name.removeprefix("msg/")
    if package == "px4_msgs":
        return bool(px4_angles(name, [field]))
    return field in _ROS_ANGLES.get(f"{package}/{name}", ())


def px4_of_several(topic: str) -> bool:
    """Whether rows of a PX4 topic belong to several subjects, so that they must not be mixed. `topic`: its name in a log, or a ROS type."""
    return topic.replace("_", "").lower() in _PX4_SEVERAL_SUBJECTS


def px4_angles(topic: str, names: Sequence[str]) -> list[Block]:
    """Returns "angle" blocks for the features of a PX4 topic that are angles by their names."""
    if words_of(topic) & _PX4_OTHER:
        return []
    angles = []
    for i, name in enumerate(re.sub(r"\[\d+\]", "", name.rpartition(".")[2]) for name in names):
        words = words_of(name)
        if words & _PX4_ANGLE and not words & _PX4_OTHER and not is_no_radian(name):
            angles.append(i)
    return runs(angles, "angle")


def method_of_rotation(word: str) -> str:
    """Returns the method for the word that names a kind of rotation, such as rotation_type in GR00T's modality.json. Euler angles are taken
    as radians. Rotation vectors, matrices and unknown words have no method between rows, so the row before is held."""
    return {"quat": "slerp", "euler": "angle"}.get(next(iter(kinds_of(word)), ""), "previous")


def why_held(word: str) -> str:
    """Returns why a rotation whose kind has this word is held."""
    if kinds_of(word):
        return HELD
    known = "quaternion, euler_angles_rpy, axis_angle, rotation_6d, matrix"
    return f"rotation_type {word!r} is none of {known}: the row before is held"


def with_held(methods: Sequence[Block], is_whole: Sequence[bool]) -> list[Block]:
    """Returns `methods`, and "previous" for the other features whose types are whole numbers, since there is no value between two
    modes, flags or counts. The stream has floats; a stream of integers is held without a method.

    is_whole: for each feature, whether its type is bool, enum or integer.
    """
    return with_others(methods, runs([i for i, is_whole_number in enumerate(is_whole) if is_whole_number], "previous"))


def with_others(methods: Sequence[Block], others: Sequence[Block]) -> list[Block]:
    """Returns `methods`, and `others` for features that `methods` does not name. A rotation is taken whole or not at all."""
    taken = {feature for start, stop, _ in methods for feature in range(start, stop)}
    blocks = list(methods)
    for start, stop, method in others:
        free = [feature for feature in range(start, stop) if feature not in taken]
        if len(free) == stop - start:
            blocks.append([start, stop, method])
        elif method not in ("slerp", "pose"):
            blocks += runs(free, method)
    return sorted(blocks)


def declares_whole(dtype: object) -> bool:
    """Whether a dtype, as a file names it, is bool or integer."""
    return str(dtype).lower().startswith(("bool", "int", "uint"))
