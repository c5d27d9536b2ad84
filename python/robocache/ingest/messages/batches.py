"""Gives access to batches of messages of one type, field by field, for all serialisations.

A type is a list of :class:`Leaf`. A :class:`Batch` returns the values of a leaf in all its messages as arrays.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from .bags import Payload

# The most leaves of a type. No robot's type has so many, but a type that contains itself would, or one with arrays of arrays of messages.
MAX_LEAVES = 20_000


@dataclass(frozen=True)
class Leaf:
    """A field of a message that is itself no message.

    path: the field's name, after the names of the messages that contain it, such as "pose.position.x".
    kind: its content: "number" is a number, or an array of `count` numbers; "numbers" has any count; "records" are messages.
    dtype: the native dtype of numbers; None for other kinds.
    count: the length of an array; None for a single number, and for other kinds.
    fields: the leaves of the messages in "records".
    of: the type of the message that has the field; "" if types have no names.
    whole: whether floats stand for whole numbers or bools. They are floats because a message may lack the field.
    words: an enumeration's words, with their numbers.
    """

    path: str
    kind: Literal["number", "numbers", "text", "texts", "records"]
    dtype: np.dtype[Any] | None = None
    count: int | None = None
    fields: tuple[Leaf, ...] = ()
    of: str = ""
    whole: bool = False
    words: tuple[tuple[str, int], ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the field's type is bool, enum or integer."""
        return self.whole or (self.dtype is not None and self.dtype.kind in "biu")


class Batch(Protocol):
    """n messages of one type."""

    def __len__(self) -> int: ...

    def numbers(self, leaf: Leaf) -> np.ndarray:
        """Returns the number of each message, ``[n]``, or its array, ``[n, count]``."""

    def counts(self, leaf: Leaf) -> np.ndarray:
        """Returns how many numbers or records each message has, int64 ``[n]``."""

    def sequences(self, leaf: Leaf) -> tuple[np.ndarray, np.ndarray]:
        """Returns the numbers of all messages, concatenated, and the offsets ``[n + 1]`` at which each message's numbers begin."""

    def texts(self, leaf: Leaf) -> list[str]:
        """Returns the text of each message; bytes that are no UTF-8 are escaped."""

    def text_lists(self, leaf: Leaf) -> list[tuple[str, ...]]:
        """Returns the texts of each message."""

    def records(self, leaf: Leaf) -> tuple[Batch, np.ndarray]:
        """Returns the records of all messages, concatenated, and the offsets ``[n + 1]`` at which each message's records begin."""


class Decoder(Protocol):
    """Decodes messages of one type.

    Attributes:
        leaves: the fields of the type.
        may_keep_decoded: whether the decoded messages may be kept for the second pass: they take no more memory than their bytes, and later
            messages do not change their leaves.
        left_out: the fields that are not decoded, with the reasons.
    """

    leaves: tuple[Leaf, ...]
    may_keep_decoded: bool
    left_out: dict[str, str]

    def decode(self, payloads: Sequence[Payload]) -> tuple[Batch, dict[int, str]]:
        """Returns the messages that can be decoded, in order, and by index the reasons why the others cannot."""


def bytes_of(batch: Batch, leaf: Leaf) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """Returns the bytes of a field, and their offsets, as :meth:`Batch.sequences` does. A text, as in JSON, is decoded as base64; also
    returns the messages in which it is none, with the reasons."""
    if leaf.kind != "text":
        return *batch.sequences(leaf), {}
    blobs, bad = [], {}
    for row, text in enumerate(batch.texts(leaf)):
        try:
            blobs.append(base64.b64decode(text, validate=True))
        except ValueError as error:
            blobs.append(b"")
            bad[row] = f"{leaf.path} is no base64: {error}"
    return np.frombuffer(b"".join(blobs), np.uint8), offsets_of(np.array([len(blob) for blob in blobs], np.int64)), bad


def offsets_of(counts: np.ndarray) -> np.ndarray:
    """Returns the offsets of items with these counts, int64 ``[n + 1]``."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


@dataclass(frozen=True)
class Trees:
    """A batch of messages that are Python dicts, as in JSON.

    trees: a dict for each message, which has every leaf by its path.
    """

    trees: Sequence[Mapping[str, Any]]

    def __len__(self) -> int:
        return len(self.trees)

    def _values(self, leaf: Leaf) -> list[Any]:
        return [tree[leaf.path] for tree in self.trees]

    def numbers(self, leaf: Leaf) -> np.ndarray:
        return np.array(self._values(leaf), leaf.dtype).reshape(
            len(self), *(() if leaf.count is None else (leaf.count,))
        )

    def counts(self, leaf: Leaf) -> np.ndarray:
        return np.array([len(values) for values in self._values(leaf)], np.int64)

    def sequences(self, leaf: Leaf) -> tuple[np.ndarray, np.ndarray]:
        values = self._values(leaf)
        parts = [
            np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.array(value, leaf.dtype)
            for value in values
        ]
        return np.concatenate(parts) if parts else np.empty(0, leaf.dtype), offsets_of(self.counts(leaf))

    def texts(self, leaf: Leaf) -> list[str]:
        return self._values(leaf)

    def text_lists(self, leaf: Leaf) -> list[tuple[str, ...]]:
        return [tuple(texts) for texts in self._values(leaf)]

    def records(self, leaf: Leaf) -> tuple[Batch, np.ndarray]:
        values = self._values(leaf)
        return Trees([record for records in values for record in records]), offsets_of(self.counts(leaf))
