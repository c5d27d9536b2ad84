"""What is known of topics before their messages become rows: over all recordings, and where one is from."""

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


@dataclass
class Known:
    """What holds for a topic in all recordings, by the first that has it.

    facts: by topic and what it is about.
    clocks: of each topic.
    streams: which topic each belongs to.
    """

    options: MessageOptions
    notes: Notes
    facts: dict[tuple[str, str], Any] = field(default_factory=dict)
    clocks: dict[str, str] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)
    kinds: Kinds = field(default_factory=Kinds)


@dataclass
class Origin:
    """A topic of one recording, or one of several subjects that its messages are about.

    topic, schema: the topic's name and type.
    exported: of its channel.
    what, where: the recording, and its file.
    subject: which of several it is; "" of the one that has the topic's name.
    is_held: whether a row is held until the next, since rows are of several subjects.
    """

    topic: str
    schema: str
    what: str
    where: Path
    known: Known
    exported: Exported | None = None
    subject: str = ""
    is_held: bool = False

    @property
    def name(self) -> str:
        """What its streams are called, or begin with."""
        return f"{self.topic}/{self.subject}" if self.subject else self.topic

    @property
    def notes(self) -> Notes:
        return self.known.notes

    def lose(self, lost: Mapping[int, object]) -> None:
        """Passes over messages by their numbers, with what is wrong with each."""
        if lost:
            first = min(lost)
            error = SourceError(f"{self.where}: {self.name}: message {first}: {lost[first]}")
            self.notes.skip(f"{self.what}: {self.name}: messages {ranges(sorted(lost))}", error)


@dataclass(frozen=True)
class Decoded:
    """Messages of a topic.

    leaves: its fields by their paths.
    time_ns, numbers: of each message when it was, and its number among all of the topic in the recording.
    attributes: of the streams that become of them.
    """

    leaves: Mapping[str, Leaf]
    batch: Batch
    time_ns: np.ndarray
    numbers: np.ndarray
    attributes: Mapping[str, Any]


@dataclass
class Span:
    """The least and the greatest of what was met."""

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
