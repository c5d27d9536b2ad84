"""Reads features.json of an RLDS dataset: the meaning and the shape of each list in an Example.

An Example is flat: the list of the feature ``steps/observation/state``, of shape [7], has 7 numbers for each step, step after step.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ...errors import Error
from ..budget import at_once, check_size
from .tfrecord import Values

STEPS = "steps/"
_TEXT = np.dtype(object)
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


@dataclass(frozen=True)
class Feature:
    """A leaf of the tree in features.json.

    key: the list's name in an Example.
    kind: "numbers", "text", or "image", which means JPEG or PNG files.
    dtype, shape: of a step's numbers. The first size is None if it differs between steps or between episodes.
    encoding: "bytes" or "zlib" if each step's tensor is stored as a string of bytes; else "none".
    is_ragged: whether the number of values differs between steps; then a second list has these numbers.
    description: the author's description of the feature.
    is_label: whether its numbers are classes. A file beside features.json has the words for them.
    words: the number of each class, by its word.
    """

    key: str
    kind: Literal["numbers", "text", "image"]
    dtype: np.dtype[Any] = _TEXT
    shape: tuple[int | None, ...] = ()
    encoding: str = "none"
    is_ragged: bool = False
    description: str = ""
    is_label: bool = False
    words: Mapping[str, int] = field(default_factory=dict)

    @property
    def in_steps(self) -> bool:
        return self.key.startswith(STEPS)

    @property
    def name(self) -> str:
        """The name of the stream, or of the column of the episodes table."""
        return self.key.removeprefix(STEPS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of its lists in an Example."""
        return (f"{self.key}/ragged_flat_values", f"{self.key}/ragged_row_lengths_0") if self.is_ragged else (self.key,)

    @property
    def row_size(self) -> int | None:
        """The number of values that a step has in the list; None if the feature's shape does not determine it."""
        if self.is_ragged:
            return None
        if self.kind != "numbers" or self.encoding != "none":
            return 1
        return None if None in self.shape else math.prod(size or 0 for size in self.shape)


def parse_features(tree: Any) -> tuple[list[Feature], dict[str, str]]:
    """Returns the features in a features.json that become streams or columns, and {key: reason} for the others.

    Raises:
        Error: the tree is none that TFDS writes.
    """
    kept: list[Feature] = []
    left_out: dict[str, str] = {}
    for key, node, levels in _find_leaves(tree, "", 0):
        feature = _parse_leaf(key, node, levels - key.startswith(STEPS))
        if isinstance(feature, str):
            left_out[key] = feature
        elif levels and not feature.in_steps:  # a list of the episode
            kept.append(replace(feature, shape=(None, *feature.shape)))
        else:
            kept.append(feature)
    return kept, left_out


def _find_leaves(node: Any, key: str, levels: int) -> Iterator[tuple[str, Mapping[str, Any], int]]:
    """Yields the key and the node of every leaf, and the number of sequences around it."""
    if not isinstance(node, dict) or "pythonClassName" not in node:
        raise Error(f"feature {key!r}: expected an object with pythonClassName, as TFDS 4 writes it, got {node!r:.60}")
    if "featuresDict" in node:
        for name, child in node["featuresDict"].get("features", {}).items():
            yield from _find_leaves(child, f"{key}/{name}" if key else name, levels)
    elif "sequence" in node:
        yield from _find_leaves(node["sequence"].get("feature"), key, levels + 1)
    else:
        yield key, node, levels


def _parse_leaf(key: str, node: Mapping[str, Any], sequences: int) -> Feature | str:
    """Returns the feature, or why it is left out.

    sequences: the number of sequences around it, without that of the steps.
    """
    in_steps = key.startswith(STEPS)
    if sequences > 1:
        return "sequences within sequences"
    is_ragged = in_steps and sequences == 1
    description = node.get("description", "")
    facts: dict[str, Any] = {"is_ragged": is_ragged, "description": description if isinstance(description, str) else ""}
    if "text" in node:
        return "several texts in each step" if is_ragged else Feature(key, "text", **facts)
    if "classLabel" in node:
        return Feature(key, "numbers", np.dtype(np.int64), is_label=True, **facts)
    if "boundingBox" in node:
        return Feature(key, "numbers", np.dtype(np.float32), (4,), **facts)
    content = node.get("tensor", node.get("image"))
    if content is None:
        return f"a feature of type {str(node['pythonClassName']).rpartition('.')[2]}"
    shape = _parse_shape(key, content)
    name = content.get("dtype", "uint8")
    if "image" in node:
        if is_ragged or not in_steps:
            return "images, but not one for each step"
        if name not in ("uint8", "uint16") or (shape and shape[-1] not in (1, 3, None)):
            return f"images of {name} {_format_shape(shape)}"
        return Feature(key, "image", np.dtype(name), shape, **facts)
    if name in ("string", "object", "bytes"):
        if is_ragged or math.prod(size or 0 for size in shape) != 1:
            return f"texts {_format_shape(shape)} a step" if in_steps else f"texts {_format_shape(shape)}"
        return Feature(key, "text", **facts)
    try:
        dtype = np.dtype("float32" if name == "bfloat16" else name)
    except TypeError:
        return f"a tensor of {name}"
    if dtype.kind not in "biuf":
        return f"a tensor of {name}"
    if 0 in shape or None in shape[1:] or (None in shape and is_ragged):
        return f"a tensor {_format_shape(shape)}"
    encoding = content.get("encoding", "none")
    if encoding not in ("none", "bytes", "zlib") or (encoding != "none" and (is_ragged or name == "bfloat16")):
        return f"a tensor of {name} in encoding {encoding}"
    return Feature(key, "numbers", dtype, shape, encoding, **facts)


def _parse_shape(key: str, content: Mapping[str, Any]) -> tuple[int | None, ...]:
    sizes = [int(size) for size in content.get("shape", {}).get("dimensions", [])]
    if any(size < -1 for size in sizes) or math.prod(max(1, size) for size in sizes) > 2**40:
        raise Error(f"feature {key!r}: expected a shape, got {sizes}")
    return tuple(None if size == -1 else size for size in sizes)


def _format_shape(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def infer_features(example: Mapping[str, Values | None]) -> tuple[list[Feature], dict[str, str]]:
    """Infers what :func:`parse_features` returns from an Example, for a dataset without features.json.

    All shapes are flat, and whole numbers are int64.

    Raises:
        Error: the Example does not show the number of steps.
    """
    scalars = (example.get(STEPS + name) for name in ("is_first", "is_last", "is_terminal", "reward", "discount"))
    steps = next((len(values) for values in scalars if values is not None and len(values)), None)
    if steps is None:
        raise Error("expected features.json beside the data, or steps/is_first, which shows the number of steps")
    kept: list[Feature] = []
    left_out: dict[str, str] = {}
    for key, values in example.items():
        if values is None or not len(values):
            left_out[key] = "empty in the first episode, and no features.json says what it is"
        elif isinstance(values, list):
            is_image = holds_files(values)
            if is_image and not key.startswith(STEPS):
                left_out[key] = "images, but not one for each step"
            else:
                kept.append(Feature(key, "image" if is_image else "text"))
        elif not key.startswith(STEPS):
            kept.append(Feature(key, "numbers", values.dtype, (None,) if len(values) > 1 else ()))
        elif len(values) % steps:
            left_out[key] = f"{len(values)} values in {steps} steps, and no features.json says how many belong to each"
        else:
            size = len(values) // steps
            kept.append(Feature(key, "numbers", values.dtype, (size,) if size > 1 else ()))
    return kept, left_out


def holds_files(strings: Values) -> bool:
    """Whether the first string that is not empty begins as a JPEG or PNG file does, and no text in UTF-8."""
    if not isinstance(strings, list):
        return False
    return next((bytes(string[:8]) for string in strings if len(string)), b"").startswith(_MAGIC)


def take_values(feature: Feature, example: Mapping[str, Values | None], key: str | None = None) -> Values:
    """Returns a feature's list in an Example: the one named `key`, by default the first of its `keys`.

    Raises:
        Error: the list is missing, or its type is not the declared one.
    """
    key = key or feature.keys[0]
    if key not in example:
        raise Error(f"{key}: declared in features.json, but not in the record")
    values = example[key]
    is_bytes = feature.kind != "numbers" or feature.encoding != "none"
    expected = list if is_bytes else np.ndarray
    if values is None or len(values) == 0:
        return [] if is_bytes else np.zeros(0, np.int64 if feature.dtype.kind in "biu" else np.float32)
    is_float = not is_bytes and feature.dtype.kind == "f" and key == feature.keys[0]
    if not isinstance(values, expected) or (isinstance(values, np.ndarray) and (values.dtype.kind == "f") != is_float):
        stored = "bytes" if isinstance(values, list) else str(values.dtype)
        raise Error(f"{key}: declared as {feature.kind} of {feature.dtype}, but stored as {stored}")
    return values


def to_dtype(feature: Feature, values: np.ndarray) -> np.ndarray:
    """Converts numbers of an Example, float32 or int64, to the feature's dtype.

    Raises:
        Error: a number is out of the dtype's range.
    """
    if values.dtype.kind == "f" or feature.dtype == np.int64:
        return values.astype(feature.dtype, copy=False)
    if feature.dtype == np.uint64:  # TFDS stores the bits of uint64 as int64
        return values.view(np.uint64)
    lowest, highest = (0, 1) if feature.dtype == np.bool_ else _find_bounds(feature.dtype)
    bad = np.flatnonzero((values < lowest) | (values > highest))
    if len(bad):
        raise Error(f"{feature.key}: value {bad[0]} is {values[bad[0]]}, expected {feature.dtype}")
    return values.astype(feature.dtype)


def _find_bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def decode_tensor(feature: Feature, row: int, content: memoryview) -> np.ndarray:
    """Decodes a step's tensor from bytes into an array of the feature's shape.

    Raises:
        Error: the tensor has another size, or does not decompress.
    """
    # If the first size is None, the bytes are a multiple of this.
    unit = math.prod(size for size in feature.shape if size is not None) * feature.dtype.itemsize
    raw = bytes(content)
    if feature.encoding == "zlib":
        most = at_once() if None in feature.shape else unit
        check_size(feature.key, f"row {row}", unit)
        stream = zlib.decompressobj()
        try:
            raw = stream.decompress(raw, most + 1)
        except zlib.error as error:
            raise Error(f"{feature.key}: row {row}: {error}") from error
        if len(raw) > most or not stream.eof:
            raise Error(f"{feature.key}: row {row}: expected a complete zlib stream of at most {most} bytes")
    if len(raw) % unit or (None not in feature.shape and len(raw) != unit):
        raise Error(
            f"{feature.key}: row {row}: expected {feature.dtype} {_format_shape(feature.shape)}, got {len(raw)} bytes"
        )
    shape = [len(raw) // unit if size is None else size for size in feature.shape]
    return np.frombuffer(raw, feature.dtype.newbyteorder("<")).astype(feature.dtype, copy=False).reshape(shape)
