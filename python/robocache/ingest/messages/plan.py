"""Makes the plan by which C++ turns a topic's messages into rows while a robot runs, by the rules of :mod:`.streams`.

A plan is made from the type's definition alone. So it can fill only streams whose rows follow from the definition: numbers, arrays,
sequences of one length, joints by name, and images.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..._printable import warn
from ...errors import ArgumentError, Error
from ..formats.mcap import MessageOptions
from ..recording import Notes
from .batches import Leaf
from .cameras import ENCODINGS
from .clocks import stamp_leaves
from .known import Known, Origin
from .names import ElementNames, find_names
from .ros import RosDecoder, known_definitions, leaves_of, parse_definition
from .streams import FRAMES, Topic, says_absent

_READ_LIVE = "numbers, arrays, sequences of one length, joints and images are read while a robot runs"


@dataclass(frozen=True)
class LiveStream:
    """A stream that a plan can fill.

    kind: what a row has. "vector": one feature for each of several fields; "array", "sequence": the numbers of a field; "joints": one
        number for each joint; "image": an image.
    paths: the paths of the fields.
    dtype: the dtype of a row; None for an image, whose dtype is in each message.
    width: how many numbers a row has; None for as many as the ring's rows have.
    """

    kind: Literal["vector", "array", "sequence", "joints", "image"]
    paths: Sequence[str]
    dtype: np.dtype[Any] | None = None
    width: int | None = None


def make_plan(
    topic: str,
    schema: str,
    rings: Mapping[str, tuple[Sequence[int], str, str | None]],
    names: Mapping[str, Sequence[str]],
    *,
    definition: str | None,
    stamp: str,
    quality: int,
) -> dict[str, Any]:
    """Returns the plan of a topic (``live/topic.hpp``).

    Args:
        rings: the shape, dtype and codec of a row, by the stream's name.
        names: the names of a row's features, by the stream's name.
        definition: the definitions of the type and of the types in it, as a bag holds them; None for the definitions that ROS has.
        stamp: the stamp of a row. "auto" takes the message's own stamp, if the type has one; "log" takes the time of arrival.
        quality: the quality of the JPEGs to which pixels are encoded.

    Raises:
        ArgumentError: the topic has no such stream, or its rows differ from the ring's.
    """
    try:
        leaves = _find_leaves(schema, definition)
    except Error as error:
        raise ArgumentError(f"schema: {error}") from error
    origin = Origin(topic, schema, topic, Path(), Known(MessageOptions(), Notes("live", {}, "stop")))
    rules = Topic(origin, RosDecoder(leaves, cdr=True))
    fillable = dict(live_streams(topic, rules, leaves))
    absent = says_absent({leaf.path: leaf for leaf in leaves})
    targets: dict[str, dict[str, list[list[int]]]] = {leaf.path: {} for leaf in leaves}  # [row, feature] for each field
    rows = []
    for row, (name, (shape, dtype, codec)) in enumerate(rings.items()):
        stream = fillable.get(name)
        if stream is None:
            raise ArgumentError(
                f"rings: expected streams of {topic} ({schema}), which are {', '.join(map(repr, fillable)) or 'none'}, "
                f"got {name!r}; {_READ_LIVE}"
            )
        if stream.kind == "joints" and "joint_names" not in targets and rules.form != "joints" and not names.get(name):
            stream = replace(stream, kind="sequence")  # no names were given, since ingest was not sure of them
        features = _find_features(name, stream, shape, dtype, codec, names.get(name))
        rows.append({"names": features if stream.kind == "joints" else []})
        if stream.kind == "vector":
            for feature, path in enumerate(features):
                targets[path].setdefault("to", []).append([row, feature])
                for flag, (_, prefixes) in absent.items():
                    if path.startswith(tuple(prefixes)) and dtype.startswith("float"):
                        targets[flag].setdefault("absent", []).append([row, feature])
        elif stream.kind != "image":
            targets[stream.paths[0]].setdefault("to", []).append([row, -1 if stream.kind == "joints" else 0])
    uses = _find_uses(rules, leaves, stamp, any(row["names"] for row in rows))
    _warn_of_indices(topic, leaves, {path for path, target in targets.items() if "to" in target})
    pixels = {
        name: layout for name, layout in ENCODINGS.items() if rules.form == "image" and not name.startswith("bayer_")
    }
    return {
        "fields": [_describe_field(leaf) | uses.get(leaf.path, {}) | targets[leaf.path] for leaf in leaves],
        "rows": rows,
        "encodings": {
            name: {"dtype": np.dtype(dtype).name, "channels": channels, "kept": kept}
            for name, (dtype, channels, kept) in pixels.items()
        },
        "quality": quality,
    }


def live_streams(topic: str, rules: Topic, leaves: Sequence[Leaf]) -> Iterator[tuple[str, LiveStream]]:
    """Yields the streams that a plan can fill, by the names that ingest gives them."""
    if rules.form in ("image", "compressed"):
        yield topic, LiveStream("image", ["data"])
    elif rules.form == "joints":
        for path in ("position", "velocity", "effort"):
            yield f"{topic}/{path}", LiveStream("joints", [path], np.dtype(np.float64))
    elif rules.form in ("array", "other"):
        for name, group, dtype in rules.vectors():
            yield name, LiveStream("vector", [leaf.path for leaf in group], dtype, len(group))
        by_path = {leaf.path: leaf for leaf in leaves}
        has_joints = "joint_names" in by_path and by_path["joint_names"].kind == "texts"
        named = _find_names(leaves)
        for name, leaf in rules.others():
            if leaf.kind == "number" and leaf.count:
                yield name, LiveStream("array", [leaf.path], leaf.dtype, leaf.count)
            elif leaf.kind == "numbers" and leaf.dtype != np.uint8:  # bytes have no fixed length
                yield (
                    name,
                    LiveStream(
                        "joints" if has_joints or (named and named.has_array(leaf)) else "sequence",
                        [leaf.path],
                        leaf.dtype,
                    ),
                )


def _find_names(leaves: Sequence[Leaf]) -> ElementNames | None:
    """Returns the list of texts that names the elements of sequences, if there is exactly one such list."""
    lists = [named for named in find_names(leaves) if named.names[0].kind == "texts" and named.arrays]
    if len(lists) != 1 or any(array[0].kind != "numbers" for array in lists[0].arrays):
        return None
    return lists[0]


def _warn_of_indices(topic: str, leaves: Sequence[Leaf], read: set[str]) -> None:
    """Warns of elements that ingest finds by their names, but a plan by their indices. `read`: the paths of fields that the plan reads."""
    names_path = None if (named := _find_names(leaves)) is None else named.path
    for named in find_names(leaves):
        plan_finds_names = named.names[0].kind == "texts" and named.path in ("name", "joint_names", names_path)
        arrays = [array for array in named.arrays if not (plan_finds_names and array[0].kind == "numbers")]
        if read_by_index := [leaf.path for array in arrays for leaf in array if leaf.path in read]:
            paths = ", ".join(read_by_index[:4]) + ", ..." * (len(read_by_index) > 4)
            warn(
                f"{topic}: elements of {paths} are taken by their indices: {named.path} must have the values and the order of "
                "the first message of the recording",
            )


def _find_leaves(schema: str, definition: str | None) -> tuple[Leaf, ...]:
    """Returns the leaves of a type by its definition, and for types that it lacks by those of ROS_DISTRO, or else of the newest ROS 2."""
    package, _, rest = schema.partition("/")
    name = schema if "/" in rest else f"{package}/msg/{rest}"
    known = known_definitions(2)
    distro = os.environ.get("ROS_DISTRO", "")
    definitions = {} if definition is None else parse_definition(name, definition, "ros2msg")
    return leaves_of(name, known.get(distro, next(iter(known.values()))) | definitions, 2)


def _find_features(
    name: str, stream: LiveStream, shape: Sequence[int], dtype: str, codec: str | None, names: Sequence[str] | None
) -> list[str]:
    """Returns the fields or joints that are the features of a ring's row; none for other kinds of rows.

    Raises:
        ArgumentError: the ring or the names do not fit the stream.
    """
    if stream.kind == "image":
        if codec is None or len(shape) != 3:
            raise ArgumentError(f"rings[{name!r}]: expected [height, width, channels] with a codec, got {list(shape)}")
        return []
    width = stream.width
    features = list(names or (stream.paths if stream.kind == "vector" else ()))
    if stream.kind == "joints" and not features:
        raise ArgumentError(f"names[{name!r}]: expected the joints of a row, in order, got none; a spec has them")
    if stream.kind in ("joints", "vector"):
        width = len(features)
        unknown = [feature for feature in features if stream.kind == "vector" and feature not in stream.paths]
        if unknown or len(set(features)) < width:
            raise ArgumentError(
                f"names[{name!r}]: expected {', '.join(stream.paths) if unknown else 'each once'}, got {features}"
            )
    elif features and len(shape) == 1:
        width = len(features) if width is None else width
    assert stream.dtype is not None
    expected = [shape[0] if width is None and len(shape) == 1 else width]
    if codec is not None or list(shape) != expected or dtype != stream.dtype.name:
        got = f"{list(shape)} {dtype}{f' {codec}' if codec else ''}"
        raise ArgumentError(f"rings[{name!r}]: expected rows of {expected} {stream.dtype.name}, got {got}")
    return features


def _describe_field(leaf: Leaf) -> dict[str, Any]:
    field: dict[str, Any] = {"path": leaf.path, "kind": leaf.kind}
    if leaf.dtype is not None:
        field["dtype"] = leaf.dtype.name
    if leaf.kind == "number":
        field["count"] = 1 if leaf.count is None else leaf.count
    if leaf.kind == "records":
        field["fields"] = [_describe_field(inner) for inner in leaf.fields]
    return field


def _find_uses(rules: Topic, leaves: Sequence[Leaf], stamp: str, has_names: bool) -> dict[str, dict[str, str]]:
    """Returns how fields are used that are no values of a row: as the stamp, the joints' names, an image's size and the like.

    has_names: whether elements of rows are found by their names.
    """
    uses: dict[str, str] = {}
    stamps = next(filter(None, (stamp_leaves(leaves, path) for path in ("header.stamp", "stamp", "timestamp"))), None)
    if stamps is not None and stamp == "auto":
        uses = {stamps[0].path: "seconds", stamps[1].path: "nanoseconds"}
    if rules.form in ("image", "compressed"):
        uses |= {path: path for path in ("height", "width", "step", "is_bigendian", "encoding", "format", "data")}
    joints = "name" if rules.form == "joints" else "joint_names"
    if any(leaf.path == joints and leaf.kind == "texts" for leaf in leaves):
        uses[joints] = "joints"
    else:
        named = _find_names(leaves)
        uses |= {named.path: "joints"} if named is not None and has_names else {}
        uses |= {leaf.path: "frame" for leaf in leaves if leaf.path in FRAMES and leaf.kind == "text"}
    return {path: {"use": use} for path, use in uses.items()}
