"""Holds the facts about topics, in all recordings and in one, that are needed before messages become rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..._printable import ranges
from ..formats.mcap import MessageOptions
from ..images import Kinds
from ..recording import Notes, SourceError
from .batches import Batch, Leaf
from .exported import Exported
from .names import ElementNames


@dataclass
class Known:
    """The facts about topics that hold in all recordings. The first recording that has a topic decides them.

    facts: other facts, by the topic's and the fact's name.
    clocks: the clock of each topic.
    streams: the topic of each stream.
    kinds: the kind of each camera's frames.
    """

    options: MessageOptions
    notes: Notes
    facts: dict[tuple[str, str], Any] = field(default_factory=dict)
    clocks: dict[str, str] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)
    kinds: Kinds = field(default_factory=Kinds)


@dataclass
class Origin:
    """A topic of one recording; if its messages are about several subjects, such as motors, one of these.

    topic, schema: the topic's name and type.
    exported: the description of the stream that was exported as this channel; None for other channels.
    what, where: the recording's name, and its file.
    subject: the subject's name; "" if the streams are named by the topic alone.
    is_held: whether rows are held instead of interpolated, because neighbouring rows may belong to different subjects.
    named: the arrays whose elements are found by their names; all subjects of the topic share the list.
    by_index: the paths of arrays whose elements are found by index although the names beside them change. They are held.
    """

    topic: str
    schema: str
    what: str
    where: Path
    known: Known
    exported: Exported | None = None
    subject: str = ""
    is_held: bool = False
    named: list[ElementNames] = field(default_factory=list)
    by_index: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The name of the topic's or subject's stream, or the first part of the names of its streams."""
        return f"{self.topic}/{self.subject}" if self.subject else self.topic

    @property
    def notes(self) -> Notes:
        return self.known.notes

    def lose(self, lost: Mapping[int, object]) -> None:
        """Skips and reports messages. `lost`: the error of each message, by the message's number."""
        if lost:
            first = min(lost)
            error = SourceError(f"{self.where}: {self.name}: message {first}: {lost[first]}")
            self.notes.skip(f"{self.what}: {self.name}: messages {ranges(sorted(lost))}", error)


@dataclass(frozen=True)
class Decoded:
    """Decoded messages of a topic.

    leaves: the fields by their paths.
    time_ns, numbers: each message's stamp, and its number among the topic's messages in the recording.
    attributes: the attributes of the streams that are made of the messages.
    """

    leaves: Mapping[str, Leaf]
    batch: Batch
    time_ns: np.ndarray
    numbers: np.ndarray
    attributes: Mapping[str, Any]


@dataclass
class Span:
    """The least and the greatest of the numbers that were added, and how many of them are 0."""

    low: int | None = None
    high: int | None = None
    zeros: int = 0

    def add(self, numbers: np.ndarray) -> None:
        if len(numbers):
            self.join(Span(int(numbers.min()), int(numbers.max()), int((numbers == 0).sum())))

    def join(self, span: Span) -> None:
        if span.low is not None and span.high is not None:
            self.low = span.low if self.low is None else min(span.low, self.low)
            self.high = span.high if self.high is None else max(span.high, self.high)
            self.zeros += span.zeros
