"""Reads a cache: :func:`open` gives a :class:`Dataset` of read-only, mapped arrays.

The format is docs/format.md. Time is int64 nanoseconds everywhere.
"""

from __future__ import annotations

import json
import math
import operator
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import numpy as np

from . import _lib, errors, frames
from ._check import listed, number, truth, whole, wholes
from ._printable import count
from .actions.declared import is_absolute
from .conditions import as_expression, true_rows
from .notebook import ROWS, table_html, title_html

if TYPE_CHECKING:
    import pyarrow

    from .loader import Loader
    from .spec import Spec

_dataset_open = _lib.function("dataset_open")
_dataset_verify = _lib.function("dataset_verify")
_dataset_index_of = _lib.function("dataset_index_of")
_dataset_describe = _lib.function("dataset_describe")
_dataset_episodes = _lib.function("dataset_episodes")
_dataset_provenance = _lib.function("dataset_provenance")
_dataset_statistics = _lib.function("dataset_statistics")
_split = _lib.function("split")

_Value = TypeVar("_Value")


class _Opened:
    """The open cache, which a dataset and its streams share until it is closed."""

    def __init__(self, path: str, verify: bool) -> None:
        self._path = path
        self._handle = _dataset_open(path, verify)

    @property
    def handle(self) -> Any:
        if self._handle is None:
            raise errors.ArgumentError(
                f"{self._path}: expected an open dataset, got one that was closed; open it again"
            )
        return self._handle

    def close(self) -> None:
        self._handle = None


class _ByStream(Mapping[str, _Value], Generic[_Value]):
    """A read-only dict by stream name. The error for an unknown name lists the streams."""

    def __init__(self, opened: _Opened, streams: Mapping[str, Any], value_of: Callable[[Any], _Value]) -> None:
        self._opened = opened
        self._streams = streams
        self._value_of = value_of

    def __getitem__(self, name: str) -> _Value:
        if name not in self._streams:
            text = _lib.text("stream", name)
            try:
                _dataset_index_of(self._opened.handle, text)  # raises if there is none
            except errors.ArgumentError as error:
                raise errors.MissingStreamError(str(error)) from None
            raise errors.ArgumentError(
                f"stream '{name}': expected rows of numbers of one shape; cameras, text and ragged rows have no statistics"
            )
        return self._value_of(self._streams[name])

    def __contains__(self, name: object) -> bool:
        return name in self._streams

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self._streams else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name!r}: {value!r}' for name, value in self.items())}}}"


_MISSING: Any = None  # the value of a missing field
RECORDED = "recorded values"
_FACTS = ("of", "names", "units", "absolute")  # attributes of Stats that are no statistics


class _Fields(NamedTuple):
    mean: np.ndarray = _MISSING
    std: np.ndarray = _MISSING
    min: np.ndarray = _MISSING
    max: np.ndarray = _MISSING
    q01: np.ndarray = _MISSING
    q10: np.ndarray = _MISSING
    q50: np.ndarray = _MISSING
    q90: np.ndarray = _MISSING
    q99: np.ndarray = _MISSING
    count: np.ndarray = _MISSING  # type: ignore[assignment]  # not tuple's method of that name


class Stats(_Fields):
    """Statistics of each feature over all rows, without NaN and infinity: float64 arrays of the shape of a row's value, or
    ``[steps, ...]`` with ``per_step``.

    `count` is the number of finite values; where it is 0 the others are NaN. `std` divides by `count`. Quantiles are
    those of ``numpy.quantile(values.astype(float64), q)``. A dataset's statistics have every field. In other statistics a
    field may be None. Other quantiles are attributes too, by their percent: ``stats.q02``, ``getattr(stats, "q99.5")``.

    Attributes:
        of: a description of the values; None if unknown.
        names: the features' names; None if unknown.
        units: the units of recorded values, from the stream's attributes; None if unknown.
        absolute: whether the stream's attributes declare the values absolute, or relative (False); None if neither.
    """

    of: str | None = None
    names: list[str] | None = None
    units: str | list[str] | None = None
    absolute: bool | None = None

    def __new__(
        cls,
        *fields: Any,
        of: str | None = None,
        names: Sequence[str] | None = None,
        units: str | list[str] | None = None,
        absolute: bool | None = None,
        **named: Any,
    ) -> Stats:
        stats = super().__new__(cls, *fields, **{name: x for name, x in named.items() if name in cls._fields})
        vars(stats).update({name: x for name, x in named.items() if name not in cls._fields})
        facts = {"of": of, "names": list(names or ()) or None, "units": units or None, "absolute": absolute}
        vars(stats).update({name: x for name, x in facts.items() if x is not None})
        return stats

    def _asdict(self) -> dict[str, Any]:
        return super()._asdict() | {name: x for name, x in vars(self).items() if name not in _FACTS}


def _facts_of(stream: Stream) -> dict[str, Any]:
    declared = stream.attributes
    return {"of": RECORDED, "names": stream.names, "units": declared.get("units"), "absolute": is_absolute(declared)}


def quantile_fields(quantiles: Sequence[float]) -> tuple[np.ndarray, list[str]]:
    """Returns these quantiles and the default ones, ascending, and the names of the statistics' fields."""
    levels = {0.01, 0.1, 0.5, 0.9, 0.99}
    for quantile in listed(number, "quantiles", quantiles, np.float64).tolist():
        if not 0 <= quantile <= 1:
            raise errors.ArgumentError(f"quantiles: expected numbers from 0 to 1, got {quantile!r}")
        levels.add(quantile)
    names = []
    for quantile in sorted(levels):
        percent, _, decimals = f"{quantile * 100:.4f}".partition(".")
        decimals = decimals.rstrip("0")
        names.append(f"q{percent.zfill(2)}" + (f".{decimals}" if decimals else ""))
    if len(set(names)) < len(levels):
        raise errors.ArgumentError("quantiles: expected percents of at most 4 decimals")
    return np.array(sorted(levels)), ["mean", "std", "min", "max", *names, "count"]


class FrameFormat(NamedTuple):
    """The format of a camera's frames."""

    codec: str  # "jpeg", "png", or "raw": the pixels themselves
    height: int
    width: int
    channels: int
    color_space: str  # "rgb" of 3 channels, "gray" or "depth" of 1
    unit_m: float | None  # metres of one unit of depth; None if unknown, and for float32, which is in metres
    intrinsics: np.ndarray | None  # float64 [3, 3], in pixels of the stored frames; None if unknown
    resized: dict[str, Any] | None  # how the frames were resized before they were stored; None if they were not


class EncodedFrames:
    """A camera's frames ``[rows, H, W, C]``, decoded when indexed by a row, a slice, or an array of rows or bools. They behave as a
    read-only array; ``np.asarray`` decodes all.

    Attributes:
        data: uint8 ``[bytes]``, all files of the stream, concatenated: a view of the mapped file.
        offsets: int64 ``[rows of the stream + 1]``: row i of the stream is ``data[offsets[i]:offsets[i + 1]]``.

    Raises:
        FrameError: a frame does not decode; the message names its row.
    """

    def __init__(self, stream: Stream, rows: range, data: np.ndarray, offsets: np.ndarray) -> None:
        self._stream = stream
        self._rows = rows
        self.data = data
        self.offsets = offsets
        self.dtype = stream.dtype
        self.shape = (len(rows), *stream.shape)
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Any) -> np.ndarray:
        if isinstance(rows, slice):
            return self._decode(self._rows[rows])
        if hasattr(rows, "__index__") and not isinstance(rows, bool | np.ndarray):
            return cast(np.ndarray, self._decode([self._rows[rows]])[0])
        return self._decode(np.arange(self._rows.start, self._rows.stop)[rows])

    def within(self, rows: slice) -> EncodedFrames:
        """Returns some of the rows, not decoded."""
        return EncodedFrames(self._stream, self._rows[rows], self.data, self.offsets)

    def file(self, row: int) -> np.ndarray:
        """Returns a frame's file, uint8 ``[bytes]``, not decoded."""
        number = self._rows[operator.index(row)]
        return self.data[self.offsets[number] : self.offsets[number + 1]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise errors.ArgumentError("copy: expected True or None, since decoding makes a new array, got False")
        return self[:] if dtype is None else self[:].astype(dtype)

    def _decode(self, rows: Any) -> np.ndarray:
        stream = self._stream
        numbers = np.asarray(rows, np.int64)
        try:
            return frames.decode(
                cast(FrameFormat, stream.frames).codec, self.data, self.offsets, stream.shape, self.dtype, numbers
            )
        except errors.Error as error:
            raise type(error)(f"stream '{stream.name}': {error}") from None

    def __repr__(self) -> str:
        return f"EncodedFrames([{', '.join(map(str, self.shape))}] {self.dtype}, {self._stream.name!r})"


class RaggedRows(Sequence[Any]):
    """Rows of varying size: ``rows[i]`` is an array ``[elements, ...]``, or for text a str; a slice or an array of rows or bools gives
    a list of them.

    Attributes:
        values: all elements of these rows, ``[elements, ...]``, concatenated; for text uint8 ``[bytes]``.
        offsets: int64 ``[rows + 1]``, from 0: row i is ``values[offsets[i]:offsets[i + 1]]``.

    Raises:
        FileError: a text is not UTF-8; the message names its row.
    """

    def __init__(self, stream: Stream, values: np.ndarray, offsets: np.ndarray) -> None:
        self._stream = stream
        self.values = values
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: Any) -> Any:
        if hasattr(rows, "__index__") and not isinstance(rows, bool | np.ndarray):
            return self._row(range(len(self))[rows])
        return [self._row(row) for row in np.arange(len(self))[rows].tolist()]

    def within(self, rows: slice) -> RaggedRows:
        """Returns some neighbouring rows."""
        offsets = self.offsets[rows.start : rows.stop + 1]
        return RaggedRows(self._stream, self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    def _row(self, row: int) -> Any:
        elements = self.values[self.offsets[row] : self.offsets[row + 1]]
        if self._stream.ragged == "array":
            return elements
        try:
            return elements.tobytes().decode()
        except UnicodeDecodeError as error:
            raise errors.FileError(f"stream '{self._stream.name}': row {row}: {error}") from None

    def __repr__(self) -> str:
        return f"RaggedRows({len(self)} rows of {self._stream.kind}, {self._stream.name!r})"


class Stream:
    """One sensor's rows over all episodes, on its own clock. The arrays are read-only views of the mapped files.

    ``stream[rows]`` gives the values of a row, a slice, or an array of rows: frames of a camera are decoded, ragged rows
    and text are those of :class:`RaggedRows`.

    Attributes:
        name: the stream's name.
        shape: the shape of one row's value: ``()`` for scalars, ``(height, width, channels)`` for a camera; for ragged rows
            the shape of an element, such as ``(4,)`` for points of x, y, z and intensity.
        rows: the number of rows in all episodes.
        rate_hz: 1 / the median period, rounded to the fewest decimals that keep the period within a nanosecond (30.0 for
            33333333 ns); 0.0 if no episode has two rows or most stamps are repeated.
        clock: ``"recorded"``, or ``"nominal"`` if the stamps are only index / rate.
        names: the features' names, or an empty list.
        attributes: the writer's other facts, such as ``{"units": "rad"}``.
        frames: a camera's :class:`FrameFormat`, else None.
        ragged: ``"array"`` for rows of varying size, ``"text"`` for str, else None.
        findings: period_ns (the median), jitter_ns (root mean square of period - period_ns, without gaps), min_period_ns,
            max_period_ns, gaps (periods over 1.5 period_ns), duplicates (periods of 0), empty_episodes, nan_values,
            infinite_values, constant_features (flat indices). Cameras, ragged rows and text have only the findings about
            the clock.
    """

    _ADDRESSES: ClassVar = ("time_ns", "values", "blob_offsets", "row_offsets", "stats")  # keys of a description

    def __init__(self, opened: _Opened, episodes: int, description: dict[str, Any]) -> None:
        self._opened = opened
        self._episodes = episodes
        self._addresses = {key: description[key] for key in self._ADDRESSES}
        self._dtype: str = description["dtype"]
        self.name: str = description["name"]
        self.shape: tuple[int, ...] = tuple(description["shape"])
        self.rows: int = description["rows"]
        self.rate_hz: float = description["rate_hz"]
        self.clock: str = description["clock"]
        self.names: list[str] = description["names"]
        self.attributes: dict[str, Any] = description["attributes"]
        self.ragged: str | None = description["ragged"]
        self.findings: dict[str, Any] = description["findings"]
        self.frames: FrameFormat | None = None
        if description["frames"] is not None:
            frames = {**description["frames"]}
            matrix = frames.pop("intrinsics")
            intrinsics = np.array(matrix).reshape(3, 3) if matrix else None
            height, width, channels = self.shape
            self.frames = FrameFormat(height=height, width=width, channels=channels, intrinsics=intrinsics, **frames)

    @property
    def kind(self) -> str:
        """The kind of the rows: ``"numbers"``, ``"frames"``, ``"arrays"`` (ragged) or ``"text"``."""
        if self.frames is not None:
            return "frames"
        return {None: "numbers", "array": "arrays", "text": "text"}[self.ragged]

    @property
    def dtype(self) -> np.dtype:
        """The dtype of `values`. bfloat16 needs the package ml_dtypes (ArgumentTypeError without it)."""
        return _lib.numpy_dtype(self._dtype)

    @cached_property
    def time_ns(self) -> np.ndarray:
        """int64 ``[rows]``, nanoseconds, not decreasing within an episode."""
        return self._array("time_ns", np.dtype(np.int64), (self.rows,))

    @cached_property
    def values(self) -> np.ndarray:
        """``[rows, *shape]`` of `dtype`. Encoded frames of a camera are :class:`EncodedFrames`, which decode when indexed.
        For ragged rows all elements, ``[elements, *shape]``; for text its bytes, uint8: see `offsets`.
        """
        if self.offsets is None:
            return self._array("values", self.dtype, (self.rows, *self.shape))
        size = int(self.offsets[-1])
        if self.ragged is not None:
            return self._array("values", self.dtype, (size, *self.shape))
        data = self._array("values", np.dtype(np.uint8), (size,))
        return cast(np.ndarray, EncodedFrames(self, range(self.rows), data, self.offsets))

    @cached_property
    def offsets(self) -> np.ndarray | None:
        """int64 ``[rows + 1]`` if rows vary in size, else None. Row i is ``values[offsets[i]:offsets[i + 1]]``; the file of
        an encoded frame is ``values.data[offsets[i]:offsets[i + 1]]``."""
        if self.ragged is None and (self.frames is None or self.frames.codec == "raw"):
            return None
        return self._array("blob_offsets", np.dtype(np.int64), (self.rows + 1,))

    @cached_property
    def row_offsets(self) -> np.ndarray:
        """int64 ``[episodes + 1]``: episode e is rows ``row_offsets[e]:row_offsets[e + 1]``."""
        return self._array("row_offsets", np.dtype(np.int64), (self._episodes + 1,))

    @cached_property
    def _by_row(self) -> Any:
        """The array, or the object, that gives a row by its index."""
        return self.values if self.ragged is None else RaggedRows(self, self.values, cast(np.ndarray, self.offsets))

    def __getitem__(self, rows: Any) -> Any:
        return self._by_row[rows]

    def frame(self, row: int) -> np.ndarray:
        """Returns a camera's frame, decoded: ``[height, width, channels]`` of `dtype`.

        Raises:
            ArgumentError: the stream is no camera.
            FrameError: the frame does not decode.
        """
        if self.frames is None:
            raise errors.ArgumentError(f"stream '{self.name}': expected a camera, got {self.kind}")
        return cast(np.ndarray, self[operator.index(row)])

    @cached_property
    def _stats(self) -> Stats:
        table = self._stored_stats
        least, largest = table[2:4]
        if np.isinf([least, largest]).any():  # an older version counted infinities, so the library computes these anew
            quantiles, _ = quantile_fields(())
            statistics = _dataset_statistics(
                self._opened.handle,
                _dataset_index_of(self._opened.handle, self.name),
                _lib.from_numpy(np.arange(self._episodes)),
                _lib.from_numpy(quantiles),
            )
            table = _lib.to_numpy(statistics).reshape(table.shape)
            table.flags.writeable = False
        return Stats(*table, **_facts_of(self))

    @property
    def _stored_stats(self) -> np.ndarray:
        return self._array("stats", np.dtype(np.float64), (len(Stats._fields), *self.shape))

    def _array(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        return _lib.array_at(self._opened.handle, self._addresses[name], shape, dtype, read_only=True)

    def _drop_arrays(self) -> None:
        """Drops the arrays, which keep the files mapped."""
        for name in ("time_ns", "values", "offsets", "row_offsets", "_by_row", "_stats"):
            vars(self).pop(name, None)

    def _episode(self, episode: int) -> tuple[np.ndarray, Any]:
        rows = slice(*self.row_offsets[episode : episode + 2].tolist())
        values = self._by_row
        return self.time_ns[rows], values[rows] if self.offsets is None else values.within(rows)

    def __repr__(self) -> str:
        shape = ", ".join(map(str, (self.rows, *self.shape)))
        frames = f" {self.frames.codec} {self.frames.color_space}" if self.frames else ""
        kind = f"[{shape}] {self._dtype}{frames}"
        if self.ragged is not None:
            element_shape = ", ".join(map(str, ("n", *self.shape)))
            kind = f"[{self.rows}] text" if self.ragged == "text" else f"{self.rows} x [{element_shape}] {self._dtype}"
        return f"Stream({self.name!r}, {kind}, {self.rate_hz:.6g} Hz)"


def row_of(stream: Stream) -> str:
    """Describes a row in a few words, such as "jpeg 640x480 rgb"."""
    if stream.frames is not None:
        format = stream.frames
        return f"{format.codec} {format.width}x{format.height} {format.color_space}"
    if stream.kind == "text":
        return "text"
    return f"{'n x ' if stream.ragged else ''}{stream.dtype} {list(stream.shape) or ''}".rstrip()


class Dataset:
    """A cache, opened by :func:`open`. ``ds["action"]`` is a :class:`Stream`, ``"action" in ds`` whether there is one,
    ``len(ds)`` the number of episodes. Iterate over ``ds.streams`` or ``map(ds.episode, range(len(ds)))``, not over the
    dataset.

    A dataset is immutable, threads may share it, and a copy is the same object. It pickles as its path. Unpickling opens
    the path, and raises FileError if the cache there has changed. ``with robocache.open(path) as ds:`` closes the dataset at
    the end.

    Attributes:
        path: the cache's absolute path.
        streams: each :class:`Stream` by its name.
        stats: each stream's :class:`Stats` by its name; cameras, ragged rows and text have none.
        bytes: the size of all files together.
    """

    def __init__(self, path: str | os.PathLike[str], *, verify: bool = False) -> None:
        text = _lib.path_text(path)
        try:
            self._opened = _Opened(text, truth("verify", verify))
        except errors.FileError as error:  # if the path is no cache, it is most often a source
            if not os.path.isdir(text) or os.path.lexists(os.path.join(text, "manifest.json")):
                raise
            raise errors.FileError(
                f"{text}: no cache: it has no manifest.json; `robocache ingest` makes a cache of a dataset"
            ) from error
        self.path = os.path.abspath(text)  # a relative path would change its meaning with the working directory
        description = json.loads(_dataset_describe(self._handle))
        self.bytes: int = description["bytes"]
        self._episodes: int = description["episodes"]
        self._episode_columns: list[dict[str, str]] = description["episode_columns"]
        streams = {stream["name"]: Stream(self._opened, self._episodes, stream) for stream in description["streams"]}
        self.streams: Mapping[str, Stream] = _ByStream(self._opened, streams, lambda stream: stream)
        numbers = {name: stream for name, stream in streams.items() if stream.kind == "numbers"}
        self.stats: Mapping[str, Stats] = _ByStream(self._opened, numbers, lambda stream: stream._stats)

    @property
    def _handle(self) -> Any:
        return self._opened.handle

    def close(self) -> None:
        """Releases the mapped files, once no array of this dataset and no Loader is left that uses them. Every other use of the
        dataset and its streams then raises ArgumentError. Closing again does nothing."""
        self._opened.close()
        for stream in self.streams.values():
            stream._drop_arrays()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __getitem__(self, stream: str) -> Stream:
        """The stream of this name.

        Raises:
            MissingStreamError: there is no such stream; the message lists the streams.
        """
        if not isinstance(stream, str):
            raise errors.ArgumentTypeError(
                f"stream: expected a name, got {stream!r}; ds.episode({stream!r}) gives an episode"
                if isinstance(stream, int)
                else f"stream: expected a name, got {type(stream).__name__}"
            )
        return self.streams[stream]

    def __contains__(self, stream: object) -> bool:
        return stream in self.streams

    # Python would iterate by __getitem__ and integers, and it would be unclear whether that gives streams or episodes.
    __iter__ = None
    __reversed__ = None

    def __len__(self) -> int:
        """The number of episodes."""
        return self._episodes

    def episode(self, index: int) -> Mapping[str, tuple[np.ndarray, Any]]:
        """Returns an episode's rows: ``(time_ns [n], values [n, ...])`` by stream name, views of the mapped files.

        A camera's encoded frames are :class:`EncodedFrames`, ragged rows and text :class:`RaggedRows`. A stream without rows in this
        episode has n = 0. A negative index counts from the end.

        Raises:
            ArgumentError: there is no such episode; later, when the result is indexed, there is no such stream.

        Example:
            >>> time_ns, values = ds.episode(3)["joint.position"]
        """
        try:
            number = operator.index(index)
        except TypeError:
            raise errors.ArgumentTypeError(f"index: expected the number of an episode, got {index!r}") from None
        if not -self._episodes <= number < self._episodes:
            raise errors.ArgumentError(
                f"index: expected an episode in [-{self._episodes}, {self._episodes}), got {number}"
            )
        number %= self._episodes
        return _ByStream(self._opened, self.streams, lambda stream: stream._episode(number))

    @cached_property
    def episodes(self) -> pyarrow.Table:
        """One row for each episode: episode_index, start_ns and end_ns (the earliest and latest stamp of any stream, int64,
        null if no stream has rows), then the writer's metadata, null where an episode has no value.
        """
        import pyarrow as pa
        from pyarrow import json as pa_json

        types = {
            "bool": pa.bool_(),
            "int64": pa.int64(),
            "float64": pa.float64(),
            "string": pa.string(),
            "null": pa.null(),
        }
        fields = []
        for column in self._episode_columns:
            element = column["type"].removeprefix("list<").removesuffix(">")
            fields.append((column["name"], types[element] if element == column["type"] else pa.list_(types[element])))
        schema = pa.schema(fields)
        if not self._episodes:
            return schema.empty_table()
        address, size, longest_line = json.loads(_dataset_episodes(self._handle))
        lines = _lib.array_at(self._handle, address, (size,), np.dtype(np.uint8), read_only=True)
        try:
            return pa_json.read_json(
                pa.BufferReader(lines),
                # An Arrow thread that frees our memory while the interpreter ends would crash the process.
                pa_json.ReadOptions(use_threads=False, block_size=max(longest_line, 2**20)),
                pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            )
        except pa.ArrowInvalid as error:
            raise errors.FileError(f"{self.path}/episodes.jsonl: {error}") from error
        except pa.ArrowException as error:  # pyarrow could not start its own thread
            raise errors.Error(f"{self.path}/episodes.jsonl: pyarrow: {error}") from error

    def select(self, where: pyarrow.compute.Expression | Mapping[str, Any]) -> list[int]:
        """Returns the indices of the episodes where `where` is true, ascending. Null is not true. The list may be empty.

        Args:
            where: an expression that pyarrow evaluates, or ``{column: value}`` for equality, None for null. Columns are those of
                `episodes` and, unless the writer used these names, duration_s (end_ns - start_ns in seconds, float64, null without
                rows) and for each stream rows.<stream> (its rows in the episode, int64).

        Raises:
            ArgumentError: a column is unknown (the message lists the columns), or the expression does not give a bool for
                each episode.
            ArgumentTypeError: `where` is neither an expression nor a dict.

        Example:
            >>> import pyarrow.compute as pc
            >>> ds.select((pc.field("duration_s") > 2) & ~pc.field("task").isin(["calibrate", "home"]))
            [0, 2, 3]
            >>> ds.select({"success": True})
            [0, 1, 2]
        """
        expression = as_expression("where", where)
        table = self._selectable()
        rows = true_rows("where", expression, table, columns=", ".join(table.column_names))
        return cast(list[int], rows.tolist())

    def statistics(
        self,
        of: Loader | Spec | Sequence[int] | None = None,
        *,
        episodes: Sequence[int] | None = None,
        where: Any = None,
        per_step: bool = False,
        quantiles: Sequence[float] = (),
    ) -> Mapping[str, Stats]:
        """Returns statistics of the values in a loader's batches, by key; or of the rows of episodes, by stream.

        With a loader or a spec they describe the values that :class:`Normalization` normalises: after windows, methods and
        conversions, for every moment that can be drawn, each once, without padding, NaN and infinity. They are computed on
        the loader's device, in float32 or float64 whatever the batch's dtype. Without a loader or spec they equal the
        statistics of a cache of these episodes alone. All are exact, quantiles as ``numpy.quantile`` of float64. They are
        computed once and kept in the cache's folder ``statistics``, if that can be written.

        Args:
            of: a :class:`Loader` that draws from this dataset: statistics of its numeric keys, over its episodes and
                anchors. A :class:`Spec`: statistics of its keys, at the ticks of its slowest stream. Or a list of episodes.
            episodes: the indices of episodes, each counted once; default all, or the loader's.
            where: a condition as :meth:`select` takes it; with `episodes`, both must hold.
            per_step: separate statistics for each step of a window, ``[steps, ...]``; with a loader or a spec.
            quantiles: quantiles beside 0.01, 0.1, 0.5, 0.9 and 0.99: ``(0.02, 0.98)`` adds ``q02`` and ``q98``.

        Raises:
            ArgumentError, ArgumentTypeError: an episode does not exist, or an argument is invalid, which the message names;
                or as :meth:`select`.

        Example:
            >>> parts = ds.split({"train": 0.5, "val": 0.5})
            >>> stats = ds.statistics(parts["train"])
            >>> windows = {"action": robocache.Window([0.0], normalize="mean_std")}
            >>> validation = robocache.Loader(ds, episodes=parts["val"], delta_timestamps=windows, batch_size=4,
            ...                               normalization=robocache.Normalization(norm_stats=stats))
            >>> ds.statistics(validation, per_step=True)["action"].mean.shape
            (1, 7)
        """
        if hasattr(of, "spec_of") or hasattr(of, "to_absolute"):  # a Loader or a Spec
            from .window_statistics import window_statistics

            chosen = None if episodes is None and where is None else self._choose_episodes(episodes, where)
            return window_statistics(self, of, episodes=chosen, per_step=per_step, quantiles=quantiles)
        if per_step:
            raise errors.ArgumentError("per_step: goes with a Loader or a Spec, got none")
        if of is not None and episodes is not None:
            raise errors.ArgumentError("episodes: expected them once, got two lists")
        chosen = self._choose_episodes(episodes if of is None else of, where)
        numbers = {name: stream for name, stream in self.streams.items() if stream.kind == "numbers"}
        levels, fields = quantile_fields(quantiles)
        return _ByStream(self._opened, numbers, lambda stream: self._statistics_of(stream, chosen, levels, fields))

    def _choose_episodes(self, episodes: Any, where: Any) -> np.ndarray:
        chosen = np.arange(self._episodes) if episodes is None else wholes("episodes", episodes)
        for episode in chosen[(chosen < 0) | (chosen >= self._episodes)].tolist():
            raise errors.ArgumentError(f"episodes: expected indices in [0, {self._episodes}), got {episode}")
        if where is not None:
            chosen = np.intersect1d(chosen, self.select(where))
        return chosen

    def _statistics_of(self, stream: Stream, episodes: np.ndarray, quantiles: np.ndarray, fields: list[str]) -> Stats:
        index = _dataset_index_of(self._handle, stream.name)
        statistics = _dataset_statistics(self._handle, index, _lib.from_numpy(episodes), _lib.from_numpy(quantiles))
        arrays = _lib.to_numpy(statistics).reshape(-1, *stream.shape)
        return Stats(**dict(zip(fields, arrays, strict=True)), **_facts_of(stream))

    def _selectable(self) -> pyarrow.Table:
        """Returns `episodes` with the further columns of :meth:`select`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = self.episodes
        # Unsigned, so that the difference of any two stamps fits.
        duration_ns = pc.subtract(table["end_ns"], table["start_ns"]).cast(pa.uint64(), safe=False)
        columns = {"duration_s": pc.divide(duration_ns.cast(pa.float64(), safe=False), 1e9)}
        columns.update({f"rows.{name}": pa.array(np.diff(stream.row_offsets)) for name, stream in self.streams.items()})
        for name, column in columns.items():
            if name not in table.column_names:
                table = table.append_column(name, column)
        return table

    def split(self, shares: Mapping[str, float], *, seed: int = 0, by: str | None = None) -> dict[str, list[int]]:
        """Splits the episodes at random into parts, such as training and validation: ascending lists without a common
        episode.

        The result depends only on the number of episodes, the shares and the seed, on every machine; with `by` also on
        which episodes have the same value. New episodes move few old ones to another part.

        Args:
            shares: the share of each part: floats that add up to at most 1, read as decimals (0.7 + 0.2 + 0.1 is 1), or whole
                numbers of episodes. Parts by floats are rounded to whole episodes by the largest remainder (if equal, the
                earlier part gets one more). Episodes beyond the shares are in no part.
            seed: the seed of the draw.
            by: a column of `episodes`: episodes with the same value stay together, and the shares count values.

        Raises:
            ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.

        Example:
            >>> parts = ds.split({"train": 0.9, "val": 0.1})
            >>> train = robocache.Loader(ds, episodes=parts["train"], batch_size=256, delta_timestamps={"action": [0.0]})
        """
        if not isinstance(shares, Mapping):
            raise errors.ArgumentTypeError(f"shares: expected {{name: share}}, got {shares!r}")
        groups = np.arange(self._episodes) if by is None else self._groups(by)
        count_of_groups = int(groups.max(initial=-1)) + 1
        counts = _counts(shares, count_of_groups)
        part = _lib.to_numpy(_split(count_of_groups, _lib.from_numpy(counts), whole("seed", seed)))[groups]
        return {name: np.flatnonzero(part == p).tolist() for p, name in enumerate(shares)}

    def _groups(self, by: str) -> np.ndarray:
        """Returns int64 [episodes]: the number of each episode's value in a column. Values are numbered as they first
        appear."""
        table = self.episodes
        if _lib.text("by", by) not in table.column_names:
            raise errors.ArgumentError(f"by: expected one of {', '.join(table.column_names)}, got {by!r}")
        numbers: dict[Any, int] = {}
        values = (tuple(value) if isinstance(value, list) else value for value in table[by].to_pylist())
        return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """The writer's facts about the origin of the data."""
        return cast(dict[str, Any], json.loads(_dataset_provenance(self._handle)))

    def verify(self, streams: Sequence[str] | None = None) -> None:
        """Reads every byte. Checks the checksums of every block of every file, and that times do not decrease.

        Args:
            streams: the names of the streams to check; all by default.

        Raises:
            ArgumentError: there is no such stream.
            FileError: the cache is damaged; the message names the file and the byte, with the expected and the actual
                value.
        """
        if streams is None:
            _dataset_verify(self._handle, "")
        else:
            indices = [_dataset_index_of(self._handle, _lib.text("streams", name)) for name in streams]
            _dataset_verify(self._handle, json.dumps(indices))

    def __copy__(self) -> Dataset:
        return self

    def __deepcopy__(self, memo: Any) -> Dataset:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (self.path, self._episodes, self._fingerprint)

    @property
    def _fingerprint(self) -> int:
        """A hash of the contents. Values are hashed by their statistics alone."""
        described = json.loads(_dataset_describe(self._handle))
        del described["bytes"]  # it counts the manifest too, whose provenance may differ
        for stream in described["streams"]:
            for address in Stream._ADDRESSES:
                del stream[address]
        fingerprint = zlib.crc32(json.dumps(described).encode())
        for name in self.stats:
            fingerprint = zlib.crc32(self.streams[name]._stored_stats.tobytes(), fingerprint)
        return fingerprint

    def _repr_html_(self) -> str:
        rows = [
            (name, row_of(stream), f"{stream.rows:,}", f"{stream.rate_hz:.4g}" if stream.rate_hz else "", stream.clock)
            for name, stream in list(self.streams.items())[:ROWS]
        ]
        title = title_html(f"{count(len(self), 'episode')}, {count(len(self.streams), 'stream')}", self.path)
        return title + table_html(
            ("stream", "a row", "rows", "Hz", "clock"), rows, count=len(self.streams), numbers=(2, 3)
        )

    def __repr__(self) -> str:
        return f"robocache.Dataset({self.path!r}, {self._episodes} episodes, {len(self.streams)} streams)"


def _open_again(path: str, episodes: int, fingerprint: int) -> Dataset:
    dataset = Dataset(path)
    if dataset._fingerprint != fingerprint:
        raise errors.FileError(
            f"{path}: expected the cache as it was pickled, of {episodes} episodes, got one that has changed since, of "
            f"{len(dataset)}; open it again (if it was only appended to, episodes=range({episodes}) are the earlier ones)"
        )
    return dataset


def _counts(shares: Mapping[str, Any], total_count: int) -> np.ndarray:
    """Returns int64 [shares]: how many of `total_count` are in each part."""
    values = [number(f"shares['{name}']", value) for name, value in shares.items()]
    if all(isinstance(value, int) for value in values):
        return np.array([whole(f"shares['{name}']", value) for name, value in shares.items()], np.int64)
    for name, value in zip(shares, values, strict=True):
        if isinstance(value, int) or not 0 <= value <= 1:
            raise errors.ArgumentError(
                f"shares['{name}']: expected a float from 0 to 1, or whole numbers of episodes for all parts, got {value!r}"
            )
    parts = [Fraction(repr(value)) for value in values]  # exact decimals: 0.7 + 0.2 + 0.1 is 1
    total = sum(parts)
    if total > 1 + Fraction(1, 10**9):
        raise errors.ArgumentError(f"shares: expected at most 1 together, got {float(total)}")
    # The last quota is that of the episodes in no part.
    quotas = [total_count * part / max(total, 1) for part in (*parts, max(1 - total, Fraction(0)))]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda p: counts[p] - quotas[p])
    for p in by_remainder[: total_count - sum(counts)]:
        counts[p] += 1
    return np.array(counts[:-1], np.int64)


def open(path: str | os.PathLike[str], *, verify: bool = False) -> Dataset:
    """Opens a cache; its files are mapped, not read.

    It always checks the format's version, the manifest's checksum, every file's size and header against the manifest, and
    the checksums of all files except times and values.

    Args:
        path: the directory.
        verify: check times and values too, which reads every byte (:meth:`Dataset.verify`).

    Raises:
        FileError: the cache is missing, damaged, truncated, half-written or of another version; the message names the file
            and the byte, with the expected and the actual value.

    Example:
        >>> ds = robocache.open("cache")
        >>> ds.streams["joint.position"].values[:10], ds.stats["joint.position"].mean, ds.episodes["task"]
    """
    return Dataset(path, verify=verify)
