"""The cache on disk: :class:`Writer` fills one, :func:`open` gives a :class:`Dataset` of read-only, mapped arrays.

The format is docs/format.md. Time is int64 nanoseconds everywhere.
"""

from __future__ import annotations

import json
import math
import operator
import os
import warnings
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from . import _lib, errors, frames
from .ops._call import number, whole

if TYPE_CHECKING:
    import pyarrow

_writer_open = _lib.function("writer_open")
_writer_check_provenance = _lib.function("writer_check_provenance")
_writer_describe_stream = _lib.function("writer_describe_stream")
_writer_begin_episode = _lib.function("writer_begin_episode")
_writer_describe_frames = _lib.function("writer_describe_frames")
_writer_append = _lib.function("writer_append")
_writer_append_ragged = _lib.function("writer_append_ragged")
_writer_append_frames = _lib.function("writer_append_frames")
_writer_end_episode = _lib.function("writer_end_episode")
_writer_abort_episode = _lib.function("writer_abort_episode")
_writer_close = _lib.function("writer_close")
_writer_provenance = _lib.function("writer_provenance")
_writer_abort = _lib.function("writer_abort")
_dataset_open = _lib.function("dataset_open")
_dataset_verify = _lib.function("dataset_verify")
_dataset_index_of = _lib.function("dataset_index_of")
_dataset_describe = _lib.function("dataset_describe")
_dataset_episodes = _lib.function("dataset_episodes")
_dataset_provenance = _lib.function("dataset_provenance")
_split = _lib.function("split")


def _path(path: str | os.PathLike[str]) -> str:
    """The path as the library takes it: UTF-8 that ends where it ends."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str):
        raise errors.ArgumentTypeError(f"path: expected str or os.PathLike[str], got {type(path).__name__}")
    if "\0" in text:
        raise errors.ArgumentError(f"path: expected UTF-8 without NUL, got {text!r}")
    return _lib.text("path", text)


# ---- writing ---------------------------------------------------------------------------------------------------------


class ReencodedWarning(UserWarning):
    """JPEGs that could not be kept as they were: they were decoded and encoded anew."""


class Writer:
    """Writes a cache directory, episode by episode; the same as robocache::Writer in C++.

    Until the ``with`` block ends everything lies in ``PATH.partial``, locked while this process lives; then the files
    are made durable and the directory gets its name in one step. So whatever `path` names is complete: an exception
    leaves nothing behind, and what a killed process leaves is replaced by the next writer. Several threads may append
    at once; a process forked while a writer is open must not use it.

    With `append` episodes go behind those of a finished cache, in its files. Whoever has it open keeps what was opened; whoever
    opens it has the old episodes until the ``with`` block ends, then all, with statistics of all rows. An exception, or a
    process that is killed, leaves the cache as it was. A stream that the cache has keeps its dtype, shape, names, attributes
    and what is known of its frames; new streams may come.

    Args:
        path: the directory to make; missing parents are made too.
        overwrite: replace the cache that `path` names. It stays as it is until the new one is complete.
        append: add to the cache that `path` names, which is there. One of version 1 cannot grow.

    Attributes:
        provenance: where the data come from: a dict of what is JSON-able, free to edit until the end; with `append` it
            begins as the cache's. It is stored in the cache. What cannot be stored is refused when it is set (ArgumentError, ArgumentTypeError).

    Raises:
        FileError: `path` exists (with `overwrite`: and is no cache), with `append` is no cache or one that cannot grow,
            another writer is at work on it, or a write failed.
        ArgumentError: both `overwrite` and `append`.

    Example:
        >>> with robocache.Writer("cache") as w:
        ...     with w.episode(task="pick the cup", success=True) as ep:
        ...         ep.append("joint.position", time_ns, values)  # int64 [n], [n, ...]
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False, append: bool = False) -> None:
        self.path = _path(path)
        if overwrite and append:
            raise errors.ArgumentError("append: goes without overwrite, got both")
        self._handle = _writer_open(self.path, bool(overwrite), bool(append))
        self._provenance = _Provenance(json.loads(_writer_provenance(self._handle)))
        self._aborted = False

    @property
    def provenance(self) -> _Provenance:
        return self._provenance

    @provenance.setter
    def provenance(self, value: Mapping[str, Any]) -> None:
        self._provenance = _Provenance(value)

    def stream(
        self,
        name: str,
        *,
        clock: str = "recorded",
        names: Sequence[str] | None = None,
        attributes: Mapping[str, Any] | None = None,
        unit_m: float | None = None,
        intrinsics: Any = None,
        resized: Mapping[str, Any] | None = None,
    ) -> None:
        """Tells what the rows of a stream do not; optional, at any time before the end.

        Args:
            name: the stream. If nothing is appended to it, it is left out of the cache.
            clock: ``"nominal"`` where the stamps are only index / rate, because the recording's own clock is lost.
            names: the names of its features, one an element of a row's value.
            attributes: what else is known of it, JSON-able: ``{"units": "rad", "frame_id": "base", ...}``. Of these
                ``"methods"``, ``[[start, stop, method], ...]`` over the features of a row, is how a :class:`Loader` brings
                them to other times where it is told nothing else.
            unit_m: of a depth camera, the metres of one unit: 0.001 for millimetres. Frames of one channel are then depth.
            intrinsics: of a camera, ``[3, 3]`` in pixels of the frames that are appended: fx 0 cx, 0 fy cy, 0 0 1.
            resized: what was done to a camera's frames before, JSON-able, such as
                ``{"size": [224, 224], "fit": "pad", "from": [480, 640]}``.

        Raises:
            ArgumentError: another clock, an empty name, a number of names that the stream's shape does not have, or what no
                camera can have; naming the stream, here or where its first frames are appended.
            ArgumentTypeError: `names` is no list of str, `intrinsics` no matrix, `attributes` or `resized` no dict, or
                something inside these is not JSON-able.
        """
        name = _lib.text("stream", name)
        if names is not None and not isinstance(names, list | tuple):
            raise errors.ArgumentTypeError(f"stream '{name}': names: expected a list of str, got {names!r}")
        features = [_lib.text(f"stream '{name}': names[{i}]", feature) for i, feature in enumerate(names or ())]
        for argument, value in (("attributes", attributes), ("resized", resized)):
            if value is not None and not isinstance(value, Mapping):
                raise errors.ArgumentTypeError(f"stream '{name}': {argument}: expected a dict, got {value!r}")
        known = _json_text(f"stream '{name}': attributes", attributes or {})
        _writer_describe_stream(self._handle, name, _lib.text("clock", clock), json.dumps(features), known)
        if unit_m is None and intrinsics is None and resized is None:
            return
        _writer_describe_frames(
            self._handle,
            name,
            None if unit_m is None else float(number(f"stream '{name}': unit_m", unit_m)),
            json.dumps(_intrinsics(name, intrinsics)),
            "" if resized is None else _json_text(f"stream '{name}': resized", resized),
        )

    def episode(self, /, **metadata: Any) -> EpisodeWriter:
        """An episode to append to, as a context manager. An exception inside drops the episode whole and goes on.

        Args:
            metadata: columns of the episodes table: str, int64, float, bool, None, or lists of str, int64 or float. A
                column keeps its type in all episodes, None aside; ints beside floats become floats.

        Raises:
            ArgumentError, ArgumentTypeError: at the start of the ``with`` block, naming the column.
        """
        return EpisodeWriter(self._handle, metadata)

    def close(self) -> None:
        """Computes statistics and findings, makes all durable and gives the cache its name.

        The ``with`` block does it at its end. Does nothing where it was done.

        Raises:
            FileError: a write failed (then it may be called again), or `path` exists by now.
            ArgumentError, ArgumentTypeError: an episode is open, or something inside `provenance` is not JSON-able.
        """
        _writer_close(self._handle, _json_text("provenance", self._provenance.data))

    def abort(self) -> None:
        """Leaves nothing behind. Does nothing after :meth:`close`."""
        self._aborted = True
        _writer_abort(self._handle)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._aborted:
                self.close()
        finally:
            self.abort()

    def __repr__(self) -> str:
        return f"robocache.Writer({self.path!r})"


class _Provenance(UserDict[str, Any]):
    """A dict that refuses what a cache cannot store: before an hour of recording, not after it."""

    def __setitem__(self, key: str, value: Any) -> None:
        _writer_check_provenance(_json_text("provenance", {key: value}))
        super().__setitem__(key, value)

    def __ior__(self, other: Any) -> _Provenance:  # type: ignore[override, misc]
        # UserDict's own sets nothing key by key.
        self.update(other)
        return self


class EpisodeWriter:
    """One episode on its way into a cache, from :meth:`Writer.episode`."""

    def __init__(self, writer: Any, metadata: dict[str, Any]) -> None:
        self._writer = writer
        self._metadata = metadata
        self._open = False

    def append(
        self,
        stream: str,
        time_ns: Any,
        values: Any,
        *,
        offsets: Any = None,
        codec: str | None = None,
        quality: int = 95,
        subsampling: str = "4:2:0",
    ) -> None:
        """Adds rows of one stream, whose clock is its own; any number of calls.

        Args:
            stream: its name: any text, at most 255 bytes (those outside ``[A-Za-z0-9._-]`` count thrice).
            time_ns: ``[n]`` int64 nanoseconds, not decreasing within the episode.
            values: ``[n, ...]`` on the CPU: float64/32/16, bfloat16, integers or bool. The first call of a stream settles
                dtype and shape. Of a camera frames: ``[n, H, W]`` or ``[n, H, W, C]`` with a `codec`, C 1 or 3; or a list
                of `bytes` that are JPEG or PNG files already, which are decoded once, to know that they can be; or what
                :func:`robocache.frames.encode` or ``take`` made of either. A list of n str is text.
            offsets: ``[n + 1]`` int64, from 0 to the number of elements, where rows have different numbers of them, as clouds
                of points do: row i is ``values[offsets[i]:offsets[i + 1]]`` of `values` ``[elements, ...]``. The first call of
                a stream then settles dtype and shape of an element.
            codec: makes an array frames of a camera: ``"jpeg"`` (uint8), ``"png"`` (uint8, uint16: without loss) or
                ``"raw"`` (uint8, uint16, float32: as they are). One channel of uint16 or float32 is depth, of uint8 where
                the stream has a `unit_m` (:meth:`Writer.stream`). Without a codec an array is numbers, a picture too.
            quality: 1 to 100, of JPEG.
            subsampling: ``"4:2:0"`` or ``"4:4:4"``, of JPEG.

        Times and values may be numpy arrays (read-only and memory-mapped ones too, masked ones not: a cache has no mask),
        torch tensors, lists, or anything with DLPack.

        Raises:
            ArgumentError, ArgumentTypeError: naming the stream, what was expected and what came; nothing was added.
            FrameError: `bytes` that are no frame, or one unlike the first; nothing was added.
            FileError: the write failed; the episode can only be dropped then.

        Warns:
            ReencodedWarning: JPEGs that no restart markers could be added to without loss, such as those that store RGB, and why.
        """
        if not self._open:
            raise errors.ArgumentError(f"stream '{stream}': this episode is not open")
        # The library borrows their memory: both must outlive the call, copies made here too.
        times = _array(stream, "time_ns", time_ns)
        if offsets is not None or _are(str, values):
            if codec is not None:
                raise errors.ArgumentError(f"stream '{stream}': codec: goes with frames, got text or offsets")
            self._append_ragged(_lib.text("stream", stream), times, values, offsets)
            return
        if codec is not None or _are_files(values) or isinstance(values, frames.Encoded):
            self._append_frames(_lib.text("stream", stream), times, values, codec, quality, subsampling)
            return
        rows = _array(stream, "values", values)
        try:
            _writer_append(self._writer, stream, _tensor(stream, "time_ns", times), _tensor(stream, "values", rows))
        except UnicodeEncodeError:
            _lib.text("stream", stream)  # raises
            raise

    def _append_ragged(self, stream: str, times: Any, values: Any, offsets: Any) -> None:
        kind = "array"
        if _are(str, values):
            if offsets is not None:
                raise errors.ArgumentError(f"stream '{stream}': offsets: go with arrays, got them with text")
            kind = "text"
            texts = [_lib.text(f"stream '{stream}': values[{row}]", text).encode() for row, text in enumerate(values)]
            values = np.frombuffer(b"".join(texts), np.uint8)
            offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        values, offsets = _array(stream, "values", values), _array(stream, "offsets", offsets)
        _writer_append_ragged(
            self._writer,
            stream,
            _tensor(stream, "time_ns", times),
            _tensor(stream, "values", values),
            _tensor(stream, "offsets", offsets),
            kind,
        )

    def _append_frames(
        self, stream: str, times: Any, values: Any, codec: str | None, quality: int, subsampling: str
    ) -> None:
        try:
            if isinstance(values, frames.Encoded):
                encoded = values
            elif _are_files(values):
                encoded = frames.take(values)
            else:
                encoded = frames.encode(values, cast(str, codec), quality, subsampling)
        except errors.Error as error:
            raise type(error)(f"stream '{stream}': {error}") from None
        if codec not in (None, encoded.codec):
            raise errors.ArgumentError(
                f"stream '{stream}': codec: expected {encoded.codec!r}, which the bytes are, got {codec!r}"
            )
        for why, count in encoded.reencoded.items():
            warnings.warn(f"stream '{stream}': {count} JPEGs encoded anew: {why}", ReencodedWarning, stacklevel=3)
        _writer_append_frames(
            self._writer,
            stream,
            _tensor(stream, "time_ns", times),
            encoded.codec,
            encoded.color_space,
            encoded.dtype.name,
            json.dumps(encoded.shape),
            _lib.from_numpy(encoded.data),
            _lib.from_numpy(encoded.offsets),
        )

    def __enter__(self) -> EpisodeWriter:
        _writer_begin_episode(self._writer, _json_text("episode metadata", self._metadata))
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open = False
        try:
            if kind is None:
                _writer_end_episode(self._writer)
                return
        except BaseException:
            _writer_abort_episode(self._writer)
            raise
        _writer_abort_episode(self._writer)


def _are(kind: Any, values: Any) -> bool:
    """Whether these are a list, not empty, that begins with one of that kind."""
    listed = isinstance(values, list | tuple) and not isinstance(values, frames.Encoded)
    return listed and len(values) > 0 and isinstance(values[0], kind)


def _are_files(values: Any) -> bool:
    return _are(bytes | bytearray | memoryview, values)


def _intrinsics(stream: str, matrix: Any) -> list[float]:
    """Row by row; nothing of None."""
    if matrix is None:
        return []
    try:
        numbers = np.asarray(matrix, np.float64)
    except (TypeError, ValueError) as error:
        raise errors.ArgumentTypeError(f"stream '{stream}': intrinsics: {error}") from None
    if numbers.shape != (3, 3):
        raise errors.ArgumentError(f"stream '{stream}': intrinsics: expected shape [3, 3], got {list(numbers.shape)}")
    return cast(list[float], _plain(f"stream '{stream}': intrinsics", numbers.ravel()))


def _array(stream: str, argument: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        if hasattr(value, "__dlpack__"):
            return value
        try:
            # Of an empty list numpy would make float64.
            value = np.asarray(value, dtype=np.int64 if argument == "time_ns" and len(value) == 0 else None)
        except (TypeError, ValueError) as error:
            raise errors.ArgumentTypeError(f"stream '{stream}': {argument}: {error}") from None
    if not value.dtype.isnative or any(stride % value.itemsize for stride in value.strides):
        value = value.astype(value.dtype.newbyteorder("="))
    return value


def _tensor(stream: str, argument: str, array: Any) -> Any:
    # numpy's own DLPack, where it exports the array, costs a twentieth: a recorder appends row by row.
    exported = not isinstance(array, np.ndarray) or (
        array.dtype.kind in "iuf" and array.itemsize <= 8 and array.flags.writeable
    )
    try:
        _lib.refuse_mask(array)
        if exported:
            return array
        return _lib.from_numpy(array)
    except errors.Error as error:
        raise type(error)(f"stream '{stream}': {argument}: {error}") from None


def _json_text(what: str, values: Mapping[str, Any]) -> str:
    """A JSON object; what it cannot hold is refused by its key."""
    items = []
    for key, value in values.items():
        place = f"{what} {_lib.text(f'{what}: key', key)!r}"
        try:
            items.append(f"{json.dumps(key)}: {json.dumps(_plain(place, value))}")
        except RecursionError:
            raise errors.ArgumentError(f"{place}: expected JSON of at most 64 levels, got more") from None
    return f"{{{', '.join(items)}}}"


def _plain(place: str, value: Any) -> Any:
    """The value as JSON has it, without losing anything on the way."""
    if isinstance(value, np.generic):
        value = value.item()
    elif isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, dict):
        return {_lib.text(f"{place}: key", key): _plain(place, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(place, item) for item in value]
    if isinstance(value, str):
        return _lib.text(place, value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise errors.ArgumentError(f"{place}: expected integers within int64, got one of {value.bit_length()} bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise errors.ArgumentError(f"{place}: expected finite numbers (None says that there is none), got {value}")
    elif value is not None:
        raise errors.ArgumentTypeError(
            f"{place}: expected str, int, float, bool, None, or lists or dicts of them, got {type(value).__name__}"
        )
    return value


# ---- reading ---------------------------------------------------------------------------------------------------------

_Value = TypeVar("_Value")


class _ByStream(Mapping[str, _Value], Generic[_Value]):
    """A read-only dict by stream name whose misses name the streams there are."""

    def __init__(self, dataset: Any, streams: Mapping[str, Any], value: Callable[[Any], _Value]) -> None:
        self._dataset = dataset
        self._streams = streams
        self._value = value

    def __getitem__(self, name: str) -> _Value:
        if name not in self._streams:
            _dataset_index_of(self._dataset, _lib.text("stream", name))  # raises
            raise errors.ArgumentError(
                f"stream '{name}': expected numbers of one shape a row; a camera, text and ragged rows have no statistics"
            )
        return self._value(self._streams[name])

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


_LACKING: Any = None


class Stats(NamedTuple):
    """Statistics of each feature over all rows, NaN left out: float64 arrays of the shape of one row's value.

    `count` is the number of values that are not NaN; where it is 0 the others are NaN. `std` divides by `count`. The
    quantiles are those of ``numpy.quantile(values.astype(float64), q)``. A dataset's has every field; of statistics from
    elsewhere what they lack is None.
    """

    mean: np.ndarray = _LACKING
    std: np.ndarray = _LACKING
    min: np.ndarray = _LACKING
    max: np.ndarray = _LACKING
    q01: np.ndarray = _LACKING
    q10: np.ndarray = _LACKING
    q50: np.ndarray = _LACKING
    q90: np.ndarray = _LACKING
    q99: np.ndarray = _LACKING
    count: np.ndarray = _LACKING  # type: ignore[assignment]  # not tuple's method of that name


class FrameFormat(NamedTuple):
    """What a camera's frames are, and how they are stored."""

    codec: str  # "jpeg", "png", or "raw": the pixels themselves
    height: int
    width: int
    channels: int
    color_space: str  # "rgb" of 3 channels, "gray" or "depth" of 1
    unit_m: float | None  # of depth: the metres of one unit; None of float32, which is in metres, and where unknown
    intrinsics: np.ndarray | None  # float64 [3, 3], in pixels of frames as stored; None where unknown
    resized: dict[str, Any] | None  # what was done to the frames' size before they were stored


class EncodedFrames:
    """A camera's frames ``[rows, H, W, C]``, each decoded when it is indexed. They behave as a read-only array that is
    indexed by row: by one, by a slice, or by an array of rows or bools. ``np.asarray`` decodes all.

    Attributes:
        data: uint8 ``[bytes]``, all files of the stream, one behind the other: a view of the mapped file.
        offsets: int64 ``[rows of the stream + 1]``: row i of the stream is ``data[offsets[i]:offsets[i + 1]]``.

    Raises:
        FrameError: a frame does not decode, naming its row.
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
        """These rows alone, not decoded."""
        return EncodedFrames(self._stream, self._rows[rows], self.data, self.offsets)

    def file(self, row: int) -> np.ndarray:
        """A frame's file, uint8 ``[bytes]``, not decoded."""
        number = self._rows[operator.index(row)]
        return self.data[self.offsets[number] : self.offsets[number + 1]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
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
    """Rows that each have a number of elements of their own: ``rows[i]`` is an array ``[elements, ...]``, of text a str; of a
    slice, or an array of rows or bools, a list of them.

    Attributes:
        values: all elements of these rows, ``[elements, ...]``, one row's behind the other's; of text uint8 ``[bytes]``.
        offsets: int64 ``[rows + 1]``, from 0: row i is ``values[offsets[i]:offsets[i + 1]]``.

    Raises:
        FileError: text that is no UTF-8, naming its row.
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
        """These rows alone, which are neighbours."""
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

    ``stream[rows]`` gives values by row: one, a slice, or an array of rows; of a camera decoded, of ragged rows and text as
    :class:`RaggedRows` gives them.

    Attributes:
        name: as it was appended.
        shape: of one row's value: ``()`` for scalars, ``(height, width, channels)`` for a camera; of ragged rows of one
            element, such as ``(4,)`` for points of x, y, z and intensity.
        rows: how many, over all episodes.
        rate_hz: the rate of the median period, with the fewest decimals that give it to less than a nanosecond (30.0 for
            33333333 ns); 0.0 where no episode has two rows, or most stamps are repeated.
        clock: ``"recorded"``, or ``"nominal"`` where the stamps are only index / rate.
        names: the names of the features, or an empty list.
        attributes: what else the writer was told, as ``{"units": "rad"}``; a dict.
        frames: of a camera its :class:`FrameFormat`, else None.
        ragged: ``"array"`` where each row has a number of elements of its own, ``"text"`` where each is a str, else None.
        findings: what the writer found: period_ns (the median), jitter_ns (root mean square of period - period_ns, gaps
            aside), min_period_ns, max_period_ns, gaps (periods over 1.5 period_ns), duplicates (periods of 0),
            empty_episodes, nan_values, infinite_values, constant_features (flat indices). Of cameras, ragged rows and
            text only what the clock tells.
    """

    def __init__(self, dataset: Any, episodes: int, description: dict[str, Any]) -> None:
        self._dataset = dataset
        self._episodes = episodes
        self._addresses = {
            key: description[key] for key in ("time_ns", "values", "blob_offsets", "row_offsets", "stats")
        }
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
        """What its rows are: ``"numbers"``, ``"frames"``, ``"arrays"`` that are ragged, or ``"text"``."""
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
        """``[rows, *shape]`` of `dtype`. Of a camera whose frames are encoded :class:`EncodedFrames`, which behave as such
        an array and decode what is indexed. Of ragged rows the elements of all, ``[elements, *shape]``, of text its bytes,
        uint8: see `offsets`."""
        if self.offsets is None:
            return self._array("values", self.dtype, (self.rows, *self.shape))
        size = int(self.offsets[-1])
        if self.ragged is not None:
            return self._array("values", self.dtype, (size, *self.shape))
        data = self._array("values", np.dtype(np.uint8), (size,))
        return cast(np.ndarray, EncodedFrames(self, range(self.rows), data, self.offsets))

    @cached_property
    def offsets(self) -> np.ndarray | None:
        """int64 ``[rows + 1]`` where rows have sizes of their own, else None: row i of ragged rows is
        ``values[offsets[i]:offsets[i + 1]]``, of encoded frames ``values.data[offsets[i]:offsets[i + 1]]``."""
        if self.ragged is None and (self.frames is None or self.frames.codec == "raw"):
            return None
        return self._array("blob_offsets", np.dtype(np.int64), (self.rows + 1,))

    @cached_property
    def row_offsets(self) -> np.ndarray:
        """int64 ``[episodes + 1]``: episode e is rows ``row_offsets[e]:row_offsets[e + 1]``."""
        return self._array("row_offsets", np.dtype(np.int64), (self._episodes + 1,))

    @cached_property
    def _by_row(self) -> Any:
        """What is indexed by row."""
        return self.values if self.ragged is None else RaggedRows(self, self.values, cast(np.ndarray, self.offsets))

    def __getitem__(self, rows: Any) -> Any:
        return self._by_row[rows]

    def frame(self, row: int) -> np.ndarray:
        """A camera's frame, ``[height, width, channels]`` of `dtype`, for people to look at.

        Raises:
            ArgumentError: this is no camera.
            FrameError: the frame does not decode.
        """
        if self.frames is None:
            raise errors.ArgumentError(f"stream '{self.name}': expected a camera, got {self.kind}")
        return cast(np.ndarray, self[operator.index(row)])

    @cached_property
    def _stats(self) -> Stats:
        return Stats(*self._array("stats", np.dtype(np.float64), (len(Stats._fields), *self.shape)))

    def _array(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        return _lib.array_at(self._dataset, self._addresses[name], shape, dtype, read_only=True)

    def _episode(self, episode: int) -> tuple[np.ndarray, Any]:
        rows = slice(*self.row_offsets[episode : episode + 2].tolist())
        values = self._by_row
        return self.time_ns[rows], values[rows] if self.offsets is None else values.within(rows)

    def __repr__(self) -> str:
        shape = ", ".join(map(str, (self.rows, *self.shape)))
        frames = f" {self.frames.codec} {self.frames.color_space}" if self.frames else ""
        kind = f"[{shape}] {self._dtype}{frames}"
        if self.ragged is not None:
            each = ", ".join(map(str, ("n", *self.shape)))
            kind = f"[{self.rows}] text" if self.ragged == "text" else f"{self.rows} x [{each}] {self._dtype}"
        return f"Stream({self.name!r}, {kind}, {self.rate_hz:.6g} Hz)"


class Dataset:
    """A cache, opened by :func:`open`. Immutable; threads may share one. It pickles as its path.

    Attributes:
        path: the absolute path of what was opened.
        streams: by name, each a :class:`Stream`.
        stats: by stream name, each a :class:`Stats`; cameras, ragged rows and text have none.
        bytes: the size of all files together.
    """

    def __init__(self, path: str | os.PathLike[str], *, verify: bool = False) -> None:
        text = _path(path)
        self._handle = _dataset_open(text, bool(verify))
        self.path = os.path.abspath(text)  # what a relative one names changes with the working directory
        description = json.loads(_dataset_describe(self._handle))
        self.bytes: int = description["bytes"]
        self._episodes: int = description["episodes"]
        self._episode_columns: list[dict[str, str]] = description["episode_columns"]
        streams = {stream["name"]: Stream(self._handle, self._episodes, stream) for stream in description["streams"]}
        self.streams: Mapping[str, Stream] = _ByStream(self._handle, streams, lambda stream: stream)
        numbers = {name: stream for name, stream in streams.items() if stream.kind == "numbers"}
        self.stats: Mapping[str, Stats] = _ByStream(self._handle, numbers, lambda stream: stream._stats)

    def __len__(self) -> int:
        """The number of episodes."""
        return self._episodes

    def episode(self, index: int) -> Mapping[str, tuple[np.ndarray, Any]]:
        """One episode's rows: by stream name ``(time_ns [n], values [n, ...])``, views of the mapped files.

        Encoded frames of a camera are :class:`EncodedFrames`, decoded when they are indexed; ragged rows and text are
        :class:`RaggedRows`. A stream without rows in this episode is there, with n = 0. A negative index counts from the end.

        Raises:
            ArgumentError: no such episode; and for the name of a stream that does not exist.

        Example:
            >>> time_ns, values = ds.episode(3)["joint.position"]
        """
        try:
            number = operator.index(index)
        except TypeError:
            raise errors.ArgumentTypeError(f"index: expected the number of an episode, got {index!r}") from None
        if not -self._episodes <= number < self._episodes:
            raise errors.ArgumentError(f"index: expected an episode below {self._episodes}, got {number}")
        number %= self._episodes
        return _ByStream(self._handle, self.streams, lambda stream: stream._episode(number))

    @cached_property
    def episodes(self) -> pyarrow.Table:
        """A row an episode: episode_index, start_ns, end_ns (the earliest and latest stamp of any stream, int64, null
        where there is none), then the metadata the writer was given, null where an episode has none of a column."""
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
            item = column["type"].removeprefix("list<").removesuffix(">")
            fields.append((column["name"], types[item] if item == column["type"] else pa.list_(types[item])))
        schema = pa.schema(fields)
        if not self._episodes:
            return schema.empty_table()
        address, size, longest_line = json.loads(_dataset_episodes(self._handle))
        lines = _lib.array_at(self._handle, address, (size,), np.dtype(np.uint8), read_only=True)
        try:
            return pa_json.read_json(
                pa.BufferReader(lines),
                # A thread of Arrow's that lets go of memory of ours while the interpreter ends takes the process with it.
                pa_json.ReadOptions(use_threads=False, block_size=max(longest_line, 2**20)),
                pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            )
        except pa.ArrowInvalid as error:
            raise errors.FileError(f"{self.path}/episodes.jsonl: {error}") from error

    def select(self, where: pyarrow.compute.Expression | Mapping[str, Any]) -> list[int]:
        """The episodes of which `where` is true, ascending; where it is null it is not. There may be none.

        Args:
            where: an expression that pyarrow evaluates, or ``{column: value}`` for columns that are equal to these values, None
                for null. Columns are those of `episodes`, and with them, where the writer gave no others of these names,
                duration_s (end_ns - start_ns in seconds, float64, null where there is none) and for each stream
                rows.<stream> (how many it has in the episode, int64).

        Raises:
            ArgumentError: a column that there is not, naming those there are, or an expression that is not a bool of each
                episode.
            ArgumentTypeError: `where` is neither.

        Example:
            >>> import pyarrow.compute as pc
            >>> ds.select((pc.field("duration_s") > 2) & ~pc.field("task").isin(["calibrate", "home"]))
            [0, 2, 3]
            >>> ds.select({"success": True})
            [0, 1, 2]
        """
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import acero

        if not isinstance(where, pc.Expression | Mapping):
            raise errors.ArgumentTypeError(
                "where: expected an expression of pyarrow.compute, such as pc.field('success'), or {column: value}, got "
                + type(where).__name__
            )
        table = self._selectable()
        try:
            if isinstance(where, Mapping):
                expression = pc.scalar(True)
                for name, value in where.items():
                    field = pc.field(_lib.text("where", name))
                    expression &= field.is_null() if value is None else field == value
            else:
                expression = where
            # table.filter() by the calling thread alone, for the reason in `episodes`.
            rows = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
            chosen = acero.Declaration("filter", acero.FilterNodeOptions(expression), [rows])
            chosen = chosen.to_table(use_threads=False)["episode_index"]
        except (pa.ArrowException, OverflowError) as error:
            reason = str(error).partition(" in episode_index:")[0]  # before pyarrow lists all columns and their types
            raise errors.ArgumentError(
                f"where: {reason}; expected a bool made of the columns {', '.join(table.column_names)}"
            ) from error
        return cast(list[int], np.sort(chosen.to_numpy()).tolist())

    def _selectable(self) -> pyarrow.Table:
        """`episodes` and what :meth:`select` knows beside it."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = self.episodes
        # An unsigned difference holds any two stamps.
        ns = pc.subtract(table["end_ns"], table["start_ns"]).cast(pa.uint64(), safe=False)
        more = {"duration_s": pc.divide(ns.cast(pa.float64(), safe=False), 1e9)}
        more.update({f"rows.{name}": pa.array(np.diff(stream.row_offsets)) for name, stream in self.streams.items()})
        for name, column in more.items():
            if name not in table.column_names:
                table = table.append_column(name, column)
        return table

    def split(self, shares: Mapping[str, float], *, seed: int = 0, by: str | None = None) -> dict[str, list[int]]:
        """Draws the episodes of training, validation and whatever else is named: ascending lists without a common episode.

        The same on every machine: it depends on the number of episodes, the shares and the seed alone. An episode that is
        recorded later changes the part of few others.

        Args:
            shares: of each part, as floats that add up to at most 1, or as numbers of episodes. Episodes are dealt out by
                largest remainder (of equal ones to the earlier part), what is missing to 1 is in no part.
            seed: another one, other episodes.
            by: a column of `episodes`: those with the same value stay together, and the shares are of the values.

        Raises:
            ArgumentError, ArgumentTypeError: naming the argument, what was expected and what came.

        Example:
            >>> parts = ds.split({"train": 0.9, "val": 0.1})
            >>> train = robocache.Loader(ds, episodes=parts["train"], batch_size=256, delta_timestamps={"action": [0.0]})
        """
        if not isinstance(shares, Mapping):
            raise errors.ArgumentTypeError(f"shares: expected {{name: share}}, got {shares!r}")
        groups = None if by is None else self._groups(by)
        things = self._episodes if groups is None else int(groups.max(initial=-1)) + 1
        counts = _counts(shares, things)
        part = _lib.to_numpy(_split(things, _lib.from_numpy(counts), whole("seed", seed)))
        if groups is not None:
            part = part[groups]
        return {name: np.flatnonzero(part == p).tolist() for p, name in enumerate(shares)}

    def _groups(self, by: str) -> np.ndarray:
        """int64 [episodes]: which value of a column an episode has, numbered in the order of their first episodes."""
        table = self.episodes
        if _lib.text("by", by) not in table.column_names:
            raise errors.ArgumentError(f"by: expected one of {', '.join(table.column_names)}, got {by!r}")
        numbers: dict[Any, int] = {}
        values = (tuple(value) if isinstance(value, list) else value for value in table[by].to_pylist())
        return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """What the writer was told of the data's origin."""
        return cast(dict[str, Any], json.loads(_dataset_provenance(self._handle)))

    def verify(self) -> None:
        """Reads every byte: checks the checksum of every block of every file, and that times do not decrease.

        Raises:
            FileError: naming the file, the byte, what was expected and what came.
        """
        _dataset_verify(self._handle)

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path,)

    def __repr__(self) -> str:
        return f"robocache.Dataset({self.path!r}, {self._episodes} episodes, {len(self.streams)} streams)"


def _counts(shares: Mapping[str, Any], things: int) -> np.ndarray:
    """int64 [shares]: how many of the things each is."""
    values = [number(f"shares['{name}']", value) for name, value in shares.items()]
    if all(isinstance(value, int) for value in values):
        return np.array([whole(f"shares['{name}']", value) for name, value in shares.items()], np.int64)
    for name, value in zip(shares, values, strict=True):
        if isinstance(value, int) or not 0 <= value <= 1:
            raise errors.ArgumentError(
                f"shares['{name}']: expected a float from 0 to 1, or whole numbers of episodes for all parts, got {value!r}"
            )
    parts = [Fraction(repr(value)) for value in values]  # as they were written: 0.7, 0.2 and 0.1 are 1
    total = sum(parts)
    if total > 1 + Fraction(1, 10**9):
        raise errors.ArgumentError(f"shares: expected at most 1 together, got {float(total)}")
    # What is in no part has a share too, which comes last.
    quotas = [things * part / max(total, 1) for part in (*parts, max(1 - total, Fraction(0)))]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda p: counts[p] - quotas[p])
    for p in by_remainder[: things - sum(counts)]:
        counts[p] += 1
    return np.array(counts[:-1], np.int64)


def open(path: str | os.PathLike[str], *, verify: bool = False) -> Dataset:
    """Opens a cache; its files are mapped, not read.

    Always checked: the format's version, the manifest's checksum, every file's size and header against the manifest, and
    the checksums of all files but times and values.

    Args:
        path: the directory.
        verify: check times and values too, which reads every byte (:meth:`Dataset.verify`).

    Raises:
        FileError: a missing, damaged, truncated or half-written cache, or one of another version; naming the file, the
            byte, what was expected and what came.

    Example:
        >>> ds = robocache.open("cache")
        >>> ds.streams["joint.position"].values[:10], ds.stats["joint.position"].mean, ds.episodes["task"]
    """
    return Dataset(path, verify=verify)
