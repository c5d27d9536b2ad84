"""Finds the text of each sample's task: the instruction that applies at its time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from . import errors
from .dataset import Dataset, Stream

# Streams of text and columns of the episodes table with these names are the task if none is declared; the first counts.
NAMES = ("task", "tasks", "language_instruction", "natural_language_instruction", "instruction")


class TaskTexts:
    """Finds the tasks of the samples of batches, for each dataset (rule 47).

    Args:
        stream: the stream whose texts are used; by default the task's, and the episode's column if an episode has no rows of
            it.
        snap_ns: a text already applies at times that are earlier than its stamp by less than this.
        empty: the result if no text, or an empty one, applies; LeRobot's task is always a str.

    Raises:
        ArgumentError: no dataset has tasks, or no dataset has `stream` with texts.

    Attributes:
        notes: warnings about datasets without texts, and episodes with several texts but no stream that says when each applies.
    """

    def __init__(
        self, datasets: Sequence[Dataset], stream: str | None = None, snap_ns: int = 0, empty: str | None = None
    ) -> None:
        self._of = [MomentTexts(dataset, stream, snap_ns) for dataset in datasets]
        self.empty = empty
        self.notes: list[str] = []
        without = [texts.dataset for texts in self._of if not texts.found]
        for dataset in without:
            if stream is None:
                expected = "a stream of texts that is the task's, or a column task or tasks in the episodes"
                got = ", ".join(dataset.episodes.column_names)
            else:
                expected = f"a stream {stream!r} of texts, or of numbers that have texts,"
                got = ", ".join(name for name, x in dataset.streams.items() if _is_text(dataset, x)) or "none"
            message = f"task_text: expected {expected} of {dataset.path}, got {got}"
            if len(without) == len(self._of):
                raise errors.ArgumentError(message)
            self.notes.append(f"{message}; the task of its samples is None")
        for texts in self._of:
            if texts.several:
                self.notes.append(
                    f"task_text: {len(texts.several)} of {len(texts.dataset)} episodes of {texts.dataset.path}, the first of them "
                    f"episode {texts.several[0]}, have several texts, and no stream says when each one applies: the first is used; a "
                    "stream of texts whose attribute task is true would say it"
                )

    def of(self, batch: Mapping[str, Any]) -> list[str | None]:
        """Returns the text of each sample of a batch, or `empty`. On CUDA it waits for the batch."""
        episodes, times = (_numpy(batch[name]) for name in ("episode_index", "time_ns"))
        if len(self._of) == 1:
            found = self._of[0].at(episodes, times)
        else:
            found = np.full(len(episodes), None, object)
            datasets = _numpy(batch["dataset_index"])
            for number in np.unique(datasets).tolist():
                own = datasets == number
                found[own] = self._of[number].at(episodes[own], times[own])
        return [text or self.empty for text in found.tolist()]


def task_streams(dataset: Dataset) -> list[Stream]:
    """Returns the streams whose text is the task, in the cache's order; the first with rows in an episode counts.

    They are those whose attribute ``task`` is true; else LeRobot's ``task_index``, if its numbers have texts; else the first
    text stream of `NAMES`.
    """
    streams = [stream for stream in dataset.streams.values() if _is_text(dataset, stream)]
    if declared := [stream for stream in streams if stream.attributes.get("task") is True]:
        return declared
    named = {
        stream.name: stream for stream in reversed(streams) if stream.ragged is None and stream.name == "task_index"
    }
    named |= {_short(stream.name): stream for stream in reversed(streams) if stream.ragged is not None}
    return [named[name] for name in ("task_index", *NAMES) if name in named][:1]


def table_name(stream: Stream) -> str | None:
    """Returns the table with the texts of a stream's numbers, by its attribute ``texts``: "lerobot.tasks"; or None."""
    if stream.kind != "numbers" or stream.dtype.kind not in "iu" or math.prod(stream.shape) != 1:
        return None
    name = stream.attributes.get("texts", "lerobot.tasks" if stream.name == "task_index" else None)
    return name if isinstance(name, str) else None


def texts_of_numbers(dataset: Dataset, stream: Stream) -> dict[int, str | None]:
    """Returns the texts of a stream's numbers; empty if it has none. Appended sources add theirs."""
    name = table_name(stream)
    texts: dict[int, str | None] = {}
    if name is not None:
        for record in (*dataset.provenance.get("appended", []), dataset.provenance):
            texts |= {int(number): text for number, text in find_table(record, name).items()}
    return texts


def find_table(provenance: Mapping[str, Any], name: str) -> Mapping[str, str | None]:
    """Returns a table of texts: the entry of a provenance at its name, a path with dots, or that of an exported source."""
    exported = provenance.get(str(provenance.get("format")), {})
    table: Any = exported.get("texts", {}).get(name) if isinstance(exported, Mapping) else None
    if table is None:
        table = provenance
        for part in name.split("."):
            table = table.get(part) if isinstance(table, Mapping) else None
    return table if isinstance(table, Mapping) else {}


def episode_texts(dataset: Dataset) -> list[list[str]] | None:
    """Returns the texts of each episode from its columns; None if there is no column of `NAMES`."""
    by_name = {_short(column): column for column in reversed(dataset.episodes.column_names)}
    columns = [dataset.episodes[by_name[name]].to_pylist() for name in NAMES if name in by_name]
    if not columns:
        return None
    return [next(filter(None, map(_as_texts, cells)), []) for cells in zip(*columns, strict=True)]


class MomentTexts:
    """Finds the texts at times of one dataset; the arguments are those of :class:`TaskTexts`.

    Attributes:
        found: whether the dataset has any text.
        several: episodes with several texts in a column. The first is used, because no stream says when each one applies.
    """

    def __init__(self, dataset: Dataset, stream: str | None = None, snap_ns: int = 0) -> None:
        self.dataset = dataset
        self._snap_ns = snap_ns
        if stream is None:
            streams, columns = task_streams(dataset), episode_texts(dataset)
        else:
            named = dataset.streams.get(stream)
            streams, columns = [named] if named is not None and _is_text(dataset, named) else [], None
        self._streams = [(stream, _by_row(dataset, stream)) for stream in streams]
        self.found = bool(streams) or columns is not None
        self._episodes: np.ndarray | None = None
        self.several: list[int] = []
        if columns is not None:
            self._episodes = np.array([texts[0] if texts else None for texts in columns], object)
            has_rows = np.any([np.diff(stream.row_offsets) > 0 for stream in streams], axis=0)
            lasting = np.broadcast_to(~has_rows, len(columns)).tolist()
            self.several = [e for e, texts in enumerate(columns) if lasting[e] and len({*texts}) > 1]

    def at(self, episodes: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Returns the texts at times of episodes, as an array of objects."""
        found = np.full(len(episodes), None, object) if self._episodes is None else self._episodes[episodes]
        for stream, by_row in reversed(self._streams):
            begins, ends = stream.row_offsets[episodes], stream.row_offsets[episodes + 1]
            rows = _last_rows(stream.time_ns, begins, ends, times, self._snap_ns)
            found[begins < ends] = None
            holds = rows >= begins
            if holds.any():
                found[holds] = by_row(rows[holds])
        return found


def _last_rows(
    time_ns: np.ndarray, begins: np.ndarray, ends: np.ndarray, times: np.ndarray, snap_ns: int
) -> np.ndarray:
    """Returns the last row in [begin, end) at or before its time, or later by less than `snap_ns`; begin - 1 if there is none.

    One binary search handles all samples. np.searchsorted cannot, because stamps ascend only within each episode.
    """
    rows: np.ndarray = begins - 1
    for bit in reversed(range(int((ends - begins).max(initial=0)).bit_length())):
        ahead = rows + (1 << bit)
        holds = (ahead < ends) & (time_ns.take(ahead, mode="clip") - times < max(snap_ns, 1))
        rows += holds.astype(np.int64) << bit
    return rows


def _by_row(dataset: Dataset, stream: Stream) -> Any:
    """Returns a function from rows to their texts."""
    if stream.ragged == "text":
        return partial(_decode, stream)
    texts = texts_of_numbers(dataset, stream)
    numbers = np.array(sorted(texts), np.int64)
    values = np.array([texts[number] for number in numbers.tolist()] + [None], object)

    def of_numbers(rows: np.ndarray) -> np.ndarray:
        wanted = stream.values.reshape(-1)[rows].astype(np.int64)
        at = np.searchsorted(numbers, wanted)
        known = numbers[np.minimum(at, len(numbers) - 1)] == wanted
        return values[np.where(known, at, len(numbers))]

    return of_numbers


def _decode(stream: Stream, rows: np.ndarray) -> np.ndarray:
    different, which = np.unique(rows, return_inverse=True)
    offsets, data = cast(np.ndarray, stream.offsets), stream.values.data
    decoded = np.empty(len(different), object)
    bounds = zip(offsets[different].tolist(), offsets[different + 1].tolist(), strict=True)
    try:
        decoded[:] = [str(data[begin:end], "utf-8") for begin, end in bounds]
    except UnicodeDecodeError:
        decoded[:] = [stream[row] for row in different.tolist()]  # raises, naming the row
    return decoded[which]


def _is_text(dataset: Dataset, stream: Stream) -> bool:
    return stream.ragged == "text" or bool(texts_of_numbers(dataset, stream))


def _as_texts(cell: Any) -> list[str]:
    cells = cell if isinstance(cell, list) else [cell]
    return [text for text in cells if isinstance(text, str) and text]


def _short(name: str) -> str:
    """Returns "task" for a topic "/task", and "language_instruction" for "observation/language_instruction"."""
    name = name.removeprefix("/")
    last = name.replace(".", "/").rpartition("/")[2]
    return last if last.endswith("instruction") else name


def _numpy(values: Any) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()
