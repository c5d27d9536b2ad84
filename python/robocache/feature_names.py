"""Finds the features' names and units that a recording declares in columns or attributes, and compares orders of names."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import errors
from .feature_words import ROTATIONS, angle_unit_by_flag, in_snake_case, known_unit, last_part, may_say_unit, words_of

if TYPE_CHECKING:
    from .dataset import Dataset, Stream

_SUBJECTS = "joint|dof|motor|actuator|servo|qpos|state|obs|observation|action|command|body|link|marker|keypoint|bone"
_NAMES_SUBJECTS = re.compile(
    rf"((?:\w+_)?(?:{_SUBJECTS})s?)_?(?:names?|order|labels?|keys|columns|fields|list)|(joint|dof|motor|actuator|servo|bone)s",
    re.IGNORECASE,
)
# Words for columns whose texts may name features or other things. A list with one text for each feature has the features' names.
_NAMES_ANYTHING = re.compile(
    r"names|labels|columns|keys|fields|features|channels|legend"
    r"|(?:feature|column|field|channel|axis|data|header)s?_?(?:names?|labels?|columns|keys|fields|order)",
    re.IGNORECASE,
)
_JOINTS = re.compile(r"(\w+_)?(joint|dof|motor|actuator|servo)s?", re.IGNORECASE)
# Parts of a body, each with several numbers in a row.
_BODIES = re.compile(r"(\w+_)?(joint|dof|body|link|marker|keypoint|bone)s?", re.IGNORECASE)
# Words that begin or end with a subject's letters but have another meaning.
_OTHER_WORDS = re.compile(r"obstacle.*|.*(fr|tr|re|inter)action", re.IGNORECASE)
# Words in names of streams whose features are not joints, and names of such features.
_CARTESIAN = re.compile(
    r"ee|eef|tcp|poses?|cart(esian)?|grippers?|xyz|wrench|forces?|ft|imu|gyro|acc|rewards?|images?|objects?|obj|goals?|tasks?|base|root"
    r"|cam(era)?s?|scene|points?|tactile|" + "|".join(ROTATIONS)
)
_COMPONENTS = re.compile(
    r"(.*[ ._/\[-])?(p|q|pos_?|t|r|w|v|d)?[xyzw]\]?(_.*)?|(.*[ ._/-])?(roll|pitch|yaw|gripper|grip)(_.*)?",
    re.IGNORECASE,
)
_NAME = re.compile(r"[^\s,;|]{1,128}")
_LONGEST = 1 << 16  # characters; a longer text is not searched for names


def names_in(value: Any) -> list[str] | None:
    """Returns the names in a value: a list of texts, a text with commas or spaces between names, or JSON; None if there are
    none."""
    if isinstance(value, list | tuple) and len(value) == 1:
        (value,) = value
    if isinstance(value, str) and len(value) <= _LONGEST:
        value = value.strip()
        if value.startswith("["):
            try:
                value = json.loads(value.replace("'", '"'))
            except (ValueError, RecursionError):
                value = value.strip("[]()")
        elif value.startswith("(") and value.endswith(")"):
            value = value[1:-1]
        if isinstance(value, str):
            separator = next((separator for separator in (",", ";", "|", "\t", "\n") if separator in value), None)
            value = [part.strip().strip("'\"") for part in value.split(separator)]
            value = value[:-1] if value and not value[-1] else value
            if not all(_NAME.fullmatch(name) or (separator and name and len(name) <= 128) for name in value):
                return None
    if not isinstance(value, list | tuple) or len(value) < 2 or not all(isinstance(name, str) for name in value):
        return None
    return list(value) if all(value) else None


def declared_names(columns: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the features' names in columns or attributes, by column. The members of an object in JSON count as columns."""
    declared: dict[str, list[str]] = {}
    for column, value in columns.items():
        if isinstance(value, str) and value.lstrip().startswith("{") and len(value) <= _LONGEST:
            declared |= {f"{column}.{name}": names for name, names in declared_names(read_object(value)).items()}
        elif (
            may_name(column)
            and (names := names_in(value))
            # A text for one name, such as action_name "open drawer", is no list.
            and (names == value or not last_part(column).lower().endswith(("name", "label")))
        ):
            declared[column] = names
    return declared


def read_object(text: str) -> dict[str, Any]:
    """Returns the JSON object in a text; an empty dict if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def may_name(column: str) -> bool:
    """Whether the last part of a column's name is a word for names of features."""
    word = last_part(column)
    return bool(_NAMES_SUBJECTS.fullmatch(word) or _NAMES_ANYTHING.fullmatch(word))


def names_joints(column: str) -> bool:
    """Whether the last part of a column's name is a word for names of joints or other subjects. Such names may fit any stream."""
    return _NAMES_SUBJECTS.fullmatch(last_part(column)) is not None


def names_for(stream: str, shape: Sequence[int], declared: Mapping[str, Sequence[str]]) -> str | None:
    """Returns the column with the names of a stream's features, or of the bodies in the first dimension of its rows; None if
    none fits.

    A column whose subject is in the stream's name is preferred, then a column of joints, then any other column.
    """
    features, word = math.prod(shape), last_part(stream)
    ranked: list[tuple[int, str]] = []
    for column, names in declared.items():
        match = _NAMES_SUBJECTS.fullmatch(last_part(column))
        subject = (match[1] or match[2]).lower().removesuffix("s") if match else ""
        if len(shape) > 1 and len(names) != features:
            if len(names) == shape[0] and subject and _BODIES.fullmatch(subject):
                ranked.append((0, column))
            continue
        if len(names) != features or features < 2:
            continue
        is_cartesian = any(map(_CARTESIAN.fullmatch, words_of(word)))
        if subject and _begins_or_ends_with(word, subject):
            ranked.append((0, column))
        elif subject and _JOINTS.fullmatch(subject):
            ranked += [(1, column)] if not is_cartesian else []
        elif not match and (not is_cartesian or any(map(_COMPONENTS.fullmatch, names))):
            ranked.append((2, column))
    return min(ranked)[1] if ranked else None


def _begins_or_ends_with(word: str, subject: str) -> bool:
    """Whether a stream's name begins with a subject or ends with it: robot_state, jointstate, actions; but not statement."""
    subjects = "obs|observation" if subject in ("obs", "ob", "observation") else subject
    begins = re.match(rf"(?i:{subjects})(?:s?(?![a-z])|(?=vec|pos|vel|buf|data))", word)
    return begins is not None or (word.endswith(subject) and not _OTHER_WORDS.fullmatch(word))


def own_names(
    stream: str, shape: Sequence[int], attributes: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
) -> list[str] | None:
    """Returns the names of a stream's features from its attributes, else from the attributes of the groups around it, the innermost group
    first."""
    features = math.prod(shape)
    for names in declared_names(attributes).values():
        if len(names) == features:
            return names
    for group in groups:
        declared = declared_names(group)
        column = names_for(stream, shape, declared)
        if column and len(declared[column]) == features:
            return declared[column]
    return None


def _names_of(stream: Stream, dataset: Dataset, episodes: Sequence[int] | None) -> list[list[str]]:
    """Returns the names of a stream's features, else each different list of names in the columns of these episodes."""
    if stream.names:
        return [stream.names]
    distinct: dict[tuple[str, ...], None] = {}
    for row in _rows_of(dataset, episodes, may_name):
        declared = declared_names(row)
        if column := names_for(stream.name, stream.shape, declared):
            distinct[tuple(declared[column])] = None
    return [list(names) for names in distinct]


def note_of_units(sources: Sequence[tuple[str, Dataset, Any]]) -> str | None:
    """Returns a note if a column of the episodes names different units in two sources or episodes, whose rows a batch would mix.

    Args:
        sources: for each source its name, its dataset, and the episodes that are drawn; None for all.
    """
    first: dict[str, tuple[str, str]] = {}
    for source, dataset, episodes in sources:
        for row in _rows_of(dataset, episodes, may_say_unit):
            for where, unit in declared_units(row).items():
                origin = f"{source}{dataset.path}"
                first_unit, first_origin = first.setdefault(where, (unit, origin))
                if unit != first_unit:
                    return (
                        f"episodes: column {where!r} says {first_unit!r} in {first_origin} and {unit!r} in {origin}: batches mix these units; "
                        "convert one, or episodes= draws those of one unit"
                    )
    return None


def _rows_of(dataset: Dataset, episodes: Sequence[int] | None, wanted: Callable[[str], bool]) -> list[dict[str, Any]]:
    """Returns the wanted columns of these episodes, or of all."""
    columns = [column["name"] for column in dataset._episode_columns if wanted(column["name"])]
    if not columns:
        return []
    table = dataset.episodes.select(columns)
    if episodes is not None:
        table = table.take(np.array([e for e in episodes if 0 <= e < len(table)], np.int64))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def compare(first: Sequence[str], second: Sequence[str]) -> str:
    """Returns "" for equal names, "order" if one name is at another index in a list of the same length, else "others".

    A common prefix or suffix of all names in a list, up to a separator, is ignored: ``action.x, action.y`` have another order
    than ``state.y, state.x``.
    """
    if all(a == b for a, b in zip(first, second, strict=False)):
        return ""
    indices = {name: i for i, name in enumerate(first) if first.count(name) == second.count(name) == 1}
    is_moved = len(first) == len(second) and any(indices.get(name, i) != i for i, name in enumerate(second))
    first, second = _strip_common(first), _strip_common(second)
    return "order" if is_moved or (first != second and sorted(first) == sorted(second)) else "others"


def are_same(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether two lists have equal names in the same order, without the common prefix and suffix of each list."""
    return list(first) == list(second) or (len(first) == len(second) and _strip_common(first) == _strip_common(second))


def _strip_common(names: Sequence[str]) -> list[str]:
    begin, end = (_common(names), _common([name[::-1] for name in names])) if names else (0, 0)
    return [name[begin : max(begin, len(name) - end)] for name in names]


def _common(names: Sequence[str]) -> int:
    """Returns the length of the names' common prefix, up to its last separator."""
    least, greatest = min(names), max(names)
    common = next(
        (i for i, (a, b) in enumerate(zip(least, greatest, strict=False)) if a != b), min(len(least), len(greatest))
    )
    return 1 + max(least[:common].rfind(separator) for separator in "./_ -")


def check_orders(key: str, streams: Sequence[tuple[str, Stream, Dataset, Any]]) -> str | None:
    """Compares the features' names of the streams that fill a key. Returns a note if the names differ.

    Args:
        streams: for each stream its source's name, the stream itself, its dataset, and the episodes that are drawn; None for all.

    Raises:
        ArgumentError: the orders differ, so a column of the batch would hold several quantities.
    """
    first: tuple[str, Sequence[str], bool] | None = None  # the stream's location, its names, whether they are its own
    note = None
    for source, stream, dataset, episodes in streams:
        for names in _names_of(stream, dataset, episodes):
            where = f"{source}stream '{stream.name}' of {dataset.path}"
            first = first or (where, names, bool(stream.names))
            difference = compare(first[1], names)
            if not difference:
                continue
            index = next(i for i, (a, b) in enumerate(zip(first[1], names, strict=False)) if a != b)
            if difference == "order":
                raise errors.ArgumentError(
                    f"delta_timestamps['{key}']: expected features in one order in all sources, got {list(first[1])} in "
                    f"{first[0]} and {names} in {where}: feature {index} is {first[1][index]!r} and {names[index]!r}; rename= "
                    "of a Source gives it a key of its own; episodes= draws those of one order; to put them together, ingest again "
                    "with a mapping whose slices give each part of the row its own stream"
                )
            if note is None and not (first[2] and stream.names):  # the library compares the streams' own names
                note = (
                    f"delta_timestamps['{key}']: other features in its sources: [{index}] is {first[1][index]!r} in "
                    f"{first[0]}, and {names[index]!r} in {where}; rename= of a Source gives one a key of its own"
                )
    return note


# ---- units ----


def declared_units(columns: Mapping[str, Any]) -> dict[str, str]:
    """Returns the units in columns or attributes, by column. The members of an object in JSON count as columns."""
    declared: dict[str, str] = {}
    for column, value in columns.items():
        if may_say_unit(column):
            declared |= units_in(column, value)
        elif isinstance(value, str) and value.lstrip().startswith("{") and len(value) <= _LONGEST:
            declared |= {f"{column}.{where}": unit for where, unit in declared_units(read_object(value)).items()}
    return declared


def units_in(column: str, value: Any) -> dict[str, str]:
    """Returns the known units in a column in one spelling, by their origin in the column, such as "units[2]"."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = read_object(value)
    if isinstance(value, dict):
        return {k: unit for name, item in value.items() for k, unit in units_in(f"{column}.{name}", item).items()}
    if unit_by_flag := angle_unit_by_flag(column, value):
        return {column: unit_by_flag}
    if isinstance(value, str) and (names := names_in(value)):
        value = names
    if isinstance(value, list | tuple):
        return {k: unit for i, item in enumerate(value) for k, unit in units_in(f"{column}[{i}]", item).items()}
    unit = known_unit(value) if isinstance(value, str) else None
    return {column: unit} if unit else {}


_UNIT_IN_BRACKETS = re.compile(r".*\S\s*[\[(]\s*([^\])\[(]+?)\s*[\])]")


def units_of_names(names: Sequence[str]) -> list[str]:
    """Returns the known units in brackets after names of features, as written: "deg" of "yaw (deg)", "" of "q[0]"; [] if no
    name has one."""
    matches = [_UNIT_IN_BRACKETS.fullmatch(name) for name in names]
    units = [match[1] if match and known_unit(match[1]) else "" for match in matches]
    return units if any(units) else []


def own_units(attributes: Mapping[str, Any], features: int) -> dict[str, Any]:
    """Returns the attribute `units` from a stream's attributes, which have one unit, or one for each feature."""
    by_lower_name = {name.lower(): value for name, value in attributes.items()}
    for name in ("units", "unit"):
        value = by_lower_name.get(name)
        if isinstance(value, str) and (parts := names_in(value)) and len(parts) == features:
            value = parts
        if (isinstance(value, str) and value.strip()) or (
            isinstance(value, list) and len(value) == features and all(isinstance(unit, str) for unit in value)
        ):
            return {"units": value}
    return {}


def declaring(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns or attributes that :func:`declares` accepts."""
    return {column: value for column, value in columns.items() if declares(column)}


def declares(column: str) -> bool:
    """Whether a column's or attribute's name has a word for names of features, for units or for the unit of depth."""
    return may_name(column) or may_say_unit(column) or depth_unit_of(column) is not None


_DEPTH_UNIT = re.compile(r"(?:(\w+?)_?)?depth_?(?:units?|scale|factor)", re.IGNORECASE)


def depth_unit_of(column: str) -> str | None:
    """Returns the camera whose unit of depth a column or attribute declares, by its name: "wrist" for wrist_depth_scale, "" for
    depth_units; None for other names."""
    match = _DEPTH_UNIT.fullmatch(in_snake_case(last_part(column)))
    return None if match is None else match[1] or ""
