"""Finds the text of each sample's task: the instruction that applies at its time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, cast

import numpy as np

from .dataset import Dataset, Stream

# Streams of text and columns of the episodes table with these names hold the task, unless another is declared. The first
# of these names counts.
NAMES = ("task", "tasks", "language_instruction", "natural_language_instruction", "instruction")
_INT64_MAX = 2**63 - 1
NO_TEXT = -1  # a stream's number for no text


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
    named |= {_short_name(stream.name): stream for stream in reversed(streams) if stream.ragged is not None}
    return [named[name] for name in ("task_index", *NAMES) if name in named][:1]


def table_name(stream: Stream) -> str | None:
    """Returns the table with the texts of a stream's numbers, by its attribute ``texts``: "lerobot.tasks"; or None."""
    name = stream.attributes.get("texts", "lerobot.tasks" if stream.name == "task_index" else None)
    if not isinstance(name, str) or stream.kind != "numbers":
        return None
    return name if stream.dtype.kind in "iu" and math.prod(stream.shape) == 1 else None


def texts_of_numbers(dataset: Dataset, stream: Stream) -> dict[int, str | None]:
    """Returns the texts of a stream's numbers; empty if it has none. Appended sources add their texts."""
    name = table_name(stream)
    texts: dict[int, str | None] = {}
    if name is not None:
        for record in (*dataset.provenance.get("appended", []), dataset.provenance):
            texts |= {int(number): text for number, text in find_table(record, name).items()}
    return texts


def rows_without_text(dataset: Dataset, stream: Stream) -> np.ndarray:
    """Returns the rows whose number is not in the stream's table, except `NO_TEXT`."""
    values = stream.values.reshape(-1)
    return np.flatnonzero(~np.isin(values, list(texts_of_numbers(dataset, stream))) & (values != NO_TEXT))


def find_table(provenance: Mapping[str, Any], name: str) -> Mapping[str, str | None]:
    """Returns a table of texts by its name: an exported source's table, else the provenance's entry at this dotted path."""
    exported = provenance.get(str(provenance.get("format")), {})
    table: Any = exported.get("texts", {}).get(name) if isinstance(exported, Mapping) else None
    if table is None:
        table = provenance
        for part in name.split("."):
            table = table.get(part) if isinstance(table, Mapping) else None
    return table if isinstance(table, Mapping) else {}


def episode_texts(dataset: Dataset) -> list[list[str]] | None:
    """Returns the texts of each episode from its columns; None if there is no column of `NAMES`."""
    names = dataset.episodes.column_names
    by_name = {_short_name(column): column for column in reversed(names)}
    if by_name.keys().isdisjoint(NAMES):  # RLDS
        by_name = {column.removeprefix("episode_metadata/"): column for column in reversed(names)}
    columns = [dataset.episodes[by_name[name]].to_pylist() for name in NAMES if name in by_name]
    if not columns:
        return None
    return [next(filter(None, map(_as_texts, cells)), []) for cells in zip(*columns, strict=True)]


def episode_tasks(dataset: Dataset) -> np.ndarray:
    """Returns a number for each episode's task, its first text; -1 for none. Without any texts all episodes have the same
    task."""
    texts = MomentTexts(dataset)
    if not texts.has_texts:
        return np.zeros(len(dataset), np.int64)
    return texts.first_codes()


class TextTable(dict[str, int]):
    """Numbers texts in the order of their first use: ``{text: code}``. None and the empty text have the code -1."""

    def code(self, text: str | None) -> int:
        return self.setdefault(text, len(self)) if text else -1

    def codes(self, texts: Iterable[str | None]) -> np.ndarray:
        return np.array([self.code(text) for text in texts], np.int64)


class MomentTexts:
    """Finds the texts at times of one dataset (rule 47).

    Args:
        stream: the stream with the texts; by default the task's, and the episode's column if an episode has no rows in it.
        column: use only the texts of this column.
        snap_ns: a text already applies at times that are earlier than its stamp by less than this.
        table: the numbers of the texts; it is complete after the constructor.

    Attributes:
        has_texts: whether the dataset has any text.
        several: episodes with several texts in a column, because no stream says when each one applies.
        lacking: bool [episodes], whether an episode has neither rows of a stream nor a text in a column.
        streams: the streams with the texts; the first with rows in an episode counts.
    """

    def __init__(
        self,
        dataset: Dataset,
        stream: str | None = None,
        snap_ns: int = 0,
        *,
        column: str | None = None,
        table: TextTable | None = None,
    ) -> None:
        self.dataset = dataset
        self.table = TextTable() if table is None else table
        self._snap_ns = snap_ns
        streams: list[Stream] = []
        columns = None
        if column is not None:
            columns = [_as_texts(cell) for cell in dataset.episodes[column].to_pylist()]
        elif stream is None:
            streams, columns = task_streams(dataset), episode_texts(dataset)
        elif is_text(dataset, stream):
            streams = [dataset.streams[stream]]
        self.streams = streams
        self._by_row = [(stream, _by_row(dataset, stream, self.table)) for stream in streams]
        self.has_texts = bool(streams) or columns is not None
        has_rows = np.zeros(len(dataset), bool)
        for task_stream in streams:
            has_rows |= np.diff(task_stream.row_offsets) > 0
        by_episode: list[list[str]] = [[]] * len(dataset) if columns is None else columns
        self._counts = np.array([len(texts) for texts in by_episode], np.int64)
        self._begins = np.cumsum(self._counts) - self._counts
        self._codes = np.append(self.table.codes(chain.from_iterable(by_episode)), -1)
        self.lacking = ~has_rows & (self._counts == 0)
        self.several = [e for e, texts in enumerate(by_episode) if not has_rows[e] and len({*texts}) > 1]

    def codes_at(self, episodes: np.ndarray, times: np.ndarray, *, every: bool = False) -> np.ndarray:
        """Returns the codes of the texts that apply at times of episodes, [alternatives, times]; -1 is none.

        Args:
            every: return every text of an episode's column, not just the first; a stream has one text at a time.
        """
        counts = self._counts[episodes]
        alternative = np.arange(counts.max(initial=1) if every else 1)[:, None]
        codes = self._codes.take(self._begins[episodes] + alternative, mode="clip")
        result: np.ndarray = np.where(alternative < counts, codes, -1)
        for stream, by_row in reversed(self._by_row):
            begins, ends = stream.row_offsets[episodes], stream.row_offsets[episodes + 1]
            rows = last_rows(stream.time_ns, begins, ends, times, self._snap_ns)
            result[:, begins < ends] = -1
            has_row = rows >= begins
            if has_row.any():
                result[0, has_row] = by_row(rows[has_row])
        return result

    def first_codes(self) -> np.ndarray:
        """Returns the code of the first text of each episode; -1 for none."""
        result: np.ndarray = np.where(self._counts > 0, self._codes.take(self._begins, mode="clip"), -1)
        for stream, by_row in reversed(self._by_row):
            begins, ends = stream.row_offsets[:-1], stream.row_offsets[1:]
            has_rows = begins < ends
            result[has_rows] = -1
            codes = by_row(np.arange(ends[-1] if len(ends) else 0))
            rows = np.flatnonzero(codes >= 0)
            first = np.searchsorted(rows, begins)
            has_text = (
                has_rows & (rows.take(first, mode="clip") < ends) & (first < len(rows))
                if len(rows)
                else has_rows & False
            )
            result[has_text] = codes[rows[first[has_text]]]
        return result

    def at(self, episodes: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Returns the first text that applies at times of episodes, or None, as an array of objects."""
        texts: np.ndarray = np.array([*self.table, None], object)
        return cast(np.ndarray, texts[self.codes_at(episodes, times)[0]])


def add_clamped(times: np.ndarray, by: Any) -> np.ndarray:
    """Returns times + by, clamped to int64."""
    result: np.ndarray = times + by
    result = np.where((by > 0) & (result < times), _INT64_MAX, result)
    result = np.where((by < 0) & (result > times), -_INT64_MAX - 1, result)
    return result


def last_rows(time_ns: np.ndarray, begins: np.ndarray, ends: np.ndarray, times: np.ndarray, snap_ns: int) -> np.ndarray:
    """Returns, for each time, the last row in [begin, end) at or before it, or later by less than `snap_ns`; begin - 1 if there
    is none.

    One binary search handles all samples. np.searchsorted cannot, because stamps ascend only within each episode.
    """
    rows: np.ndarray = begins - 1
    limits = add_clamped(times, np.int64(max(snap_ns, 1)))
    for bit in reversed(range(int((ends - begins).max(initial=0)).bit_length())):
        ahead = rows + (1 << bit)
        is_before = (ahead < ends) & (time_ns.take(ahead, mode="clip") < limits)
        rows += is_before.astype(np.int64) << bit
    return rows


def _by_row(dataset: Dataset, stream: Stream, table: TextTable) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function from rows to the codes of their texts."""
    if stream.ragged == "text":
        return _row_codes(stream, table).take
    texts = texts_of_numbers(dataset, stream)
    numbers = np.array(sorted(texts), np.int64)
    codes = np.append(table.codes(texts[number] for number in numbers.tolist()), -1)

    def codes_of_numbers(rows: np.ndarray) -> np.ndarray:
        row_numbers = stream.values.reshape(-1)[rows].astype(np.int64)
        indices = np.searchsorted(numbers, row_numbers)
        is_known = numbers[np.minimum(indices, len(numbers) - 1)] == row_numbers
        return codes[np.where(is_known, indices, len(numbers))]

    return codes_of_numbers


def _row_codes(stream: Stream, table: TextTable) -> np.ndarray:
    """Returns the code of each row's text. Equal texts are decoded once."""
    import pyarrow as pa

    buffers = [None, pa.py_buffer(cast(np.ndarray, stream.offsets)), pa.py_buffer(stream.values)]
    rows = pa.LargeBinaryArray.from_buffers(pa.large_binary(), stream.rows, buffers).dictionary_encode()
    text_of_row = rows.indices.to_numpy()
    try:
        texts = [str(text, "utf-8") for text in rows.dictionary.to_pylist()]
    except UnicodeDecodeError:
        texts = stream[:]  # raises an error that names the row
    codes: np.ndarray = table.codes(texts).astype(np.int32)[text_of_row]
    return codes


def is_text(dataset: Dataset, stream: str) -> bool:
    """Whether the dataset has this stream, and it holds texts or numbers that have texts."""
    named_stream = dataset.streams.get(stream)
    return named_stream is not None and _is_text(dataset, named_stream)


def _is_text(dataset: Dataset, stream: Stream) -> bool:
    return stream.ragged == "text" or bool(texts_of_numbers(dataset, stream))


def _as_texts(cell: Any) -> list[str]:
    cells = cell if isinstance(cell, list) else [cell]
    return [text for text in cells if isinstance(text, str) and text]


def _short_name(name: str) -> str:
    """Returns "task" for a topic "/task", and "language_instruction" for "observation/language_instruction"."""
    name = name.removeprefix("/")
    last_part = name.replace(".", "/").rpartition("/")[2]
    return last_part if last_part.endswith("instruction") else name
