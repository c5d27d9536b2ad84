"""The columns of a dataset at its anchors, for choosing and weighting anchors (rule 24.12)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _lib, errors
from ._check import real, whole
from .conditions import as_expression, true_rows
from .dataset import Dataset, Stream
from .tasks import MomentTexts, last_rows, task_streams, texts_of_numbers

if TYPE_CHECKING:
    import pyarrow as pa

# A stream with more features than this is one entry in errors.
_MOST_LISTED = 4
# The columns with the ends of a range, by their unit.
_ENDS = {"s": ("start_s", "end_s"), "ns": ("start_ns", "end_ns"), "row": ("start_row", "end_row")}


class AnchorColumns(Mapping[str, Callable[[np.ndarray, np.ndarray], Any]]):
    """The columns by name: functions from episodes and times, int64 [n], to a pyarrow array of n values.

    A stream of numbers with one feature is a column. Each feature of a wider stream is the column ``stream[index]``, and
    ``stream.feature`` if features have names. ``speed(stream)`` is the length of the change from the row before, per second. A
    stream of texts is a column of str, and so is ``subtask``, the texts for which numbers of ``subtask_index`` stand. ``task`` is
    the task's text. Columns of the episodes are those of :meth:`Dataset.select`. The value is that of the last row at or before
    the time, or less than `snap_ns` after it; null before the first row.
    """

    def __init__(self, dataset: Dataset, snap_ns: int) -> None:
        self._dataset, self._snap_ns = dataset, snap_ns
        self._columns: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {}
        self._listed: list[str] = []
        self._features: dict[str, tuple[Stream, int | None]] = {}
        for stream in dataset.streams.values():
            if stream.kind == "numbers":
                self._add_numbers(stream)
            elif stream.kind == "text":
                self._add(stream.name, self._text_column(stream.name))
        for stream in dataset.streams.values():
            if stream.name.endswith("_index") and texts_of_numbers(dataset, stream):
                self._add(stream.name.removesuffix("_index"), self._text_column(stream.name))
        if task_streams(dataset):
            self._add("task", self._text_column(None))
        for name in self._table.column_names:
            self._add(name, self._episode_column(name))

    def __getitem__(self, name: str) -> Callable[[np.ndarray, np.ndarray], Any]:
        return self._columns[name]

    def __iter__(self) -> Any:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def names(self) -> str:
        """The columns' names for errors."""
        return ", ".join(self._listed) + ", speed(stream)"

    def weights(self, argument: str, name: Any) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """Returns a function from episodes and times to the values of a column of numbers, float64.

        Raises:
            ArgumentError: there is no such column, or it has no numbers. The function raises it if a value is null, negative or
                not finite; the message names the argument, the episode and the time.
        """
        import pyarrow as pa

        column = self._column(argument, name)
        empty = np.zeros(0, np.int64)
        kind = column(empty, empty).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise errors.ArgumentError(f"{argument}: expected a column of numbers, got {name!r} of {kind}")

        def values(episodes: np.ndarray, times: np.ndarray) -> np.ndarray:
            array = column(episodes, times)
            weights: np.ndarray = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            for index in np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))[:1].tolist():
                raise errors.ArgumentError(
                    f"{argument}: expected a weight of 0 or more at each anchor, got {array[index]} of {name!r} in episode "
                    f"{episodes[index]} at {times[index]} ns"
                )
            return weights

        return values

    def codes(self, argument: str, name: Any) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """Returns a function from episodes and times to codes of a column's values. Equal values have the same code; null has a
        code too.

        Raises:
            ArgumentError: there is no such column; the message names the argument.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self._column(argument, name)
        code_of: dict[str, int] = {}

        def codes(episodes: np.ndarray, times: np.ndarray) -> np.ndarray:
            array = column(episodes, times)
            if pa.types.is_floating(array.type):
                array = pc.add(array, 0.0)  # -0.0 equals 0.0, and its repr differs
            values = map(repr, array.to_pylist())
            return np.array([code_of.setdefault(value, len(code_of)) for value in values], np.float64)

        return codes

    def _column(self, argument: str, name: Any) -> Callable[[np.ndarray, np.ndarray], Any]:
        column = self.get(_lib.text(argument, name))
        if column is None:
            raise errors.ArgumentError(
                f"{argument}: no column {name!r} in {self._dataset.path}; there are {self.names}"
            )
        return column

    def where(self, argument: str, condition: Any) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """Returns a function from episodes and times to the indices where a condition is true. Null is not true.

        Raises:
            ArgumentError, ArgumentTypeError: the condition is invalid; the message names the argument and the columns.
        """
        import pyarrow as pa

        expression = as_expression(argument, condition)
        text = str(expression)
        names = [name for name in self if name in text]

        def true_anchors(episodes: np.ndarray, times: np.ndarray) -> np.ndarray:
            table = pa.table({name: self[name](episodes, times) for name in names} or {"": pa.nulls(len(times))})
            return true_rows(argument, expression, table, columns=self.names)

        empty = np.zeros(0, np.int64)
        true_anchors(empty, empty)  # raises if the condition is invalid
        return true_anchors

    def features_in(self, argument: str, condition: Any) -> dict[str, tuple[Stream, int | None]]:
        """Returns the columns of numbers that a condition needs, each with its stream and its feature; None for all
        features."""
        import pyarrow as pa

        expression = as_expression(argument, condition)
        text, empty = str(expression), np.zeros(0, np.int64)
        table = pa.table({name: self[name](empty, empty) for name in self if name in text})
        features = {}
        for name in self._features.keys() & set(table.column_names):
            try:
                true_rows(argument, expression, table.drop_columns([name]), columns=self.names)
            except errors.ArgumentError:
                features[name] = self._features[name]
        return features

    def _add(self, name: str, column: Callable[[np.ndarray, np.ndarray], Any], *, listed: bool = True) -> None:
        if name not in self._columns:
            self._columns[name] = column
            self._listed += [name] if listed else []

    def _add_numbers(self, stream: Stream) -> None:
        features = math.prod(stream.shape)
        if features == 1:
            self._add_feature(stream.name, stream, 0)
        elif features:
            names = [f"{stream.name}.{name}" for name in stream.names] if len(stream.names) == features else []
            is_short = features <= _MOST_LISTED
            for index in range(features):
                self._add_feature(f"{stream.name}[{index}]", stream, index, listed=is_short and not names)
            for index, name in enumerate(names):
                self._add_feature(name, stream, index, listed=is_short)
            if not is_short:
                self._listed.append(f"{(names or [stream.name + '[0]'])[0]} to {(names or [f'[{features - 1}]'])[-1]}")
        self._add(f"speed({stream.name})", self._speed_column(stream), listed=False)
        self._features.setdefault(f"speed({stream.name})", (stream, None))

    def _add_feature(self, name: str, stream: Stream, index: int, *, listed: bool = True) -> None:
        self._add(name, self._feature_column(stream, index), listed=listed)
        self._features.setdefault(name, (stream, index))

    def _rows(self, stream: Stream, episodes: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns each anchor's row and the first row of its episode. Without a row, an anchor gets a number below the first
        row."""
        begins, ends = stream.row_offsets[episodes], stream.row_offsets[episodes + 1]
        return last_rows(stream.time_ns, begins, ends, times, self._snap_ns), begins

    def _feature_column(self, stream: Stream, index: int) -> Callable[[np.ndarray, np.ndarray], Any]:
        import pyarrow as pa

        def column(episodes: np.ndarray, times: np.ndarray) -> pa.Array:
            rows, begins = self._rows(stream, episodes, times)
            has_row = rows >= begins
            values = np.zeros(len(rows), _arrow_dtype(stream.dtype))
            values[has_row] = stream.values.reshape(stream.rows, -1)[rows[has_row], index]
            return pa.array(values, mask=~has_row)

        return column

    def _speed_column(self, stream: Stream) -> Callable[[np.ndarray, np.ndarray], Any]:
        import pyarrow as pa

        def column(episodes: np.ndarray, times: np.ndarray) -> pa.Array:
            rows, begins = self._rows(stream, episodes, times)
            has_speed = rows > begins
            has_speed[has_speed] = stream.time_ns[rows[has_speed]] > stream.time_ns[rows[has_speed] - 1]
            rows = rows[has_speed]
            seconds = (stream.time_ns[rows] - stream.time_ns[rows - 1]) / 1e9
            values = stream.values.reshape(stream.rows, -1)
            change = values[rows].astype(np.float64) - values[rows - 1].astype(np.float64)
            speeds = np.zeros(len(has_speed))
            speeds[has_speed] = np.sqrt((change * change).sum(1)) / seconds
            return pa.array(speeds, mask=~has_speed)

        return column

    def _text_column(self, stream: str | None) -> Callable[[np.ndarray, np.ndarray], Any]:
        import pyarrow as pa

        @cache
        def texts() -> MomentTexts:
            return MomentTexts(self._dataset, stream, self._snap_ns)

        def column(episodes: np.ndarray, times: np.ndarray) -> pa.Array:
            codes = texts().codes_at(episodes, times)[0]
            return pa.array([*texts().table], pa.string()).take(pa.array(codes, mask=codes < 0))

        return column

    @cached_property
    def _table(self) -> pa.Table:
        return self._dataset._selectable()

    def _episode_column(self, name: str) -> Callable[[np.ndarray, np.ndarray], Any]:
        def column(episodes: np.ndarray, times: np.ndarray) -> pa.Array:
            return self._table[name].combine_chunks().take(episodes)

        return column


def _arrow_dtype(dtype: np.dtype) -> np.dtype:
    """Returns the dtype that pyarrow computes with. float16 and bfloat16 are widened, which keeps their values."""
    if dtype.kind in "biu":
        return dtype
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def as_ranges(argument: str, table: Any, dataset: Dataset) -> tuple[np.ndarray, bool]:
    """Returns ranges of anchors as int64 [ranges, 3] (episode, first, last), and whether first and last are rows; else they are
    stamps.

    Args:
        table: a column ``episode`` and one pair of `_ENDS`, as a mapping of columns, a list of mappings, or a pyarrow table.

    Raises:
        ArgumentError, ArgumentTypeError: a range is invalid; the message names the argument and the row.
    """
    columns = as_columns(argument, table)
    unit = next((unit for unit, names in _ENDS.items() if {*columns} == {"episode", *names}), None)
    if unit is None:
        pairs = " or ".join(", ".join(names) for names in _ENDS.values())
        raise errors.ArgumentError(
            f"{argument}: expected the columns episode and {pairs}, got {', '.join(map(str, columns)) or 'none'}"
        )
    start, end = _ENDS[unit]
    if len({len(column) for column in columns.values()}) > 1:
        raise errors.ArgumentError(
            f"{argument}: expected columns of one length, got {', '.join(f'{k}: {len(v)}' for k, v in columns.items())}"
        )
    ranges = np.zeros((len(columns["episode"]), 3), np.int64)
    starts = dataset.episodes["start_ns"].to_pylist() if unit == "s" else []
    for row, (episode, first, last) in enumerate(zip(columns["episode"], columns[start], columns[end], strict=True)):
        name = f"{argument}: row {row}: "
        if not 0 <= whole(f"{name}episode", episode) < len(dataset):
            raise errors.ArgumentError(f"{name}episode: expected one of the {len(dataset)} episodes, got {episode}")
        if unit == "s":
            ends = [real(name + column, value) for column, value in ((start, first), (end, last))]
            if not all(math.isfinite(x) and abs(x) < 2**33 for x in ends):
                raise errors.ArgumentError(
                    f"{name}{start}, {end}: expected seconds between -2^33 and 2^33, got {first} and {last}"
                )
            origin = starts[episode] or 0
            ends = [min(max(origin + round(x * 1e9), -(2**63)), 2**63 - 1) for x in ends]
        else:
            ends = [whole(name + column, value) for column, value in ((start, first), (end, last))]
            if unit == "row" and min(ends) < 0:
                raise errors.ArgumentError(f"{name}{start}, {end}: expected row numbers, got {first} and {last}")
        if ends[0] > ends[1]:
            raise errors.ArgumentError(f"{name}expected {start} at or before {end}, got {first} and {last}")
        ranges[row] = episode, *ends
    return ranges, unit == "row"


def as_columns(argument: str, table: Any) -> dict[str, list[Any]]:
    if hasattr(table, "to_pydict"):  # a pyarrow table
        return dict(table.to_pydict())
    if isinstance(table, Sequence) and not isinstance(table, str):
        rows = list(table)
        for row, columns in enumerate(rows):
            if not isinstance(columns, Mapping) or columns.keys() != rows[0].keys():
                raise errors.ArgumentTypeError(
                    f"{argument}: row {row}: expected a mapping with the columns of the first row, got {columns!r}"
                )
        return {name: [columns[name] for columns in rows] for name in (rows[0] if rows else ("episode", *_ENDS["s"]))}
    if isinstance(table, Mapping):
        try:
            return {name: list(column) for name, column in table.items()}
        except TypeError:
            raise errors.ArgumentTypeError(
                f"{argument}: expected a list of values in each column, got {table!r}"
            ) from None
    raise errors.ArgumentTypeError(
        f"{argument}: expected a table of ranges: {{column: values}}, a list of {{column: value}} or a table of pyarrow, got "
        f"{table!r}"
    )
