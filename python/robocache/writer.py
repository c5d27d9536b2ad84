"""Writes caches: :class:`Writer` writes a directory, :class:`EpisodeWriter` one episode of it."""

from __future__ import annotations

import json
import math
import os
from collections import UserDict
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, cast

import numpy as np

from . import _lib, errors, frames
from ._check import real, truth
from ._printable import warn
from .turns import turn_of_file

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
_writer_commit = _lib.function("writer_commit")
_writer_close = _lib.function("writer_close")
_writer_provenance = _lib.function("writer_provenance")
_writer_abort = _lib.function("writer_abort")


class ReencodedWarning(UserWarning):
    """JPEGs were decoded and encoded again, because they could not be stored unchanged."""


class Writer:
    """Writes a cache directory, episode by episode; the same as robocache::Writer in C++.

    The cache appears only when the ``with`` block ends. Until then everything is in ``PATH.partial``, locked by this process.
    At the end the files are made durable and the directory is renamed. After an exception nothing remains. The next writer
    replaces the files that a killed process leaves. Several threads may append at once. A process forked while a writer is open
    must not use it. Unless `set_num_threads` is 1, the writer's own thread writes appended rows to disk; up to 32 MiB may wait.

    :meth:`commit` makes the cache appear earlier, for a recording that must outlive a crash.

    With `append`, episodes are added to a finished cache. Open readers keep what they opened. Later readers see the old episodes
    until the ``with`` block ends, then all episodes, with new statistics. An exception or a kill leaves the cache unchanged. A
    stream keeps its dtype, shape, names, attributes and frame properties; new streams may be added.

    Args:
        path: the directory to create, with missing parents.
        overwrite: replace the cache at `path`. It stays until the new one is complete.
        append: add to the cache at `path`. A cache of version 1 cannot grow.

    Attributes:
        provenance: the origin of the data: a JSON-able dict, stored in the cache; with `append` it begins as the cache's dict. It
            may be edited until the end, and at once refuses values that cannot be stored (ArgumentError, ArgumentTypeError).

    Raises:
        FileError: `path` exists (with `overwrite`: and is not a cache) or is inside a cache; with `append` it is not a cache or
            cannot grow; another writer uses it; or a write failed.
        ArgumentError: both `overwrite` and `append`.

    Example:
        >>> with robocache.Writer("cache") as w:
        ...     with w.episode(task="pick the cup", success=True) as ep:
        ...         ep.append("joint.position", time_ns, values)  # int64 [n], [n, ...]
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False, append: bool = False) -> None:
        self.path = _lib.path_text(path)
        overwrite, append = truth("overwrite", overwrite), truth("append", append)
        if overwrite and append:
            raise errors.ArgumentError("append: goes without overwrite, got both")
        self._handle = _writer_open(self.path, overwrite, append)
        self._provenance = _Provenance(json.loads(_writer_provenance(self._handle)))
        self._is_aborted = False

    @property
    def provenance(self) -> _Provenance:
        return self._provenance

    @provenance.setter
    def provenance(self, value: Mapping[str, Any]) -> None:
        if not isinstance(value, Mapping):
            raise errors.ArgumentTypeError(f"provenance: expected a dict, got {value!r}")
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
        """Describes a stream. The call is optional, and may come at any time before the end. Once rows are
        appended, names and attributes that the stream has stay.

        Args:
            name: the stream. If nothing is appended to it, it is left out of the cache.
            clock: ``"nominal"`` if the stamps are only index / rate.
            names: the names of its features, one per element of a row's value.
            attributes: other facts, JSON-able: ``{"units": "rad", "frame_id": "base", ...}``. ``"methods"``, ``[[start, stop,
                method], ...]`` over the features of a row, are the default methods of a :class:`Loader`. ``"task": True`` makes
                the stream's texts the task (`task_text`). ``"texts"`` names the table of the provenance that has the texts of
                numbers.
            unit_m: for a depth camera, the metres per unit: 0.001 for millimetres. Frames of one channel are then depth.
            intrinsics: for a camera ``[3, 3]`` in pixels of the appended frames: fx 0 cx, 0 fy cy, 0 0 1.
            resized: an earlier resize of a camera's frames, JSON-able, such as
                ``{"size": [224, 224], "fit": "pad", "from": [480, 640]}``.

        Raises:
            ArgumentError: the clock is another one, a name is empty, the number of names does not fit the shape, no camera can
                have the values, or appended rows have other names or attributes, or frames others. The message names the
                stream. The error may be raised when the first frames are appended.
            ArgumentTypeError: `names` is no list of str, `intrinsics` no matrix, `attributes` or `resized` no dict, or one of
                their values is not JSON-able.
        """
        name = _lib.text("stream", name)
        if names is not None and not isinstance(names, list | tuple):
            raise errors.ArgumentTypeError(f"stream '{name}': names: expected a list of str, got {names!r}")
        features = [_lib.text(f"stream '{name}': names[{i}]", feature) for i, feature in enumerate(names or ())]
        for argument, value in (("attributes", attributes), ("resized", resized)):
            if value is not None and not isinstance(value, Mapping):
                raise errors.ArgumentTypeError(f"stream '{name}': {argument}: expected a dict, got {value!r}")
        attributes_json = _json_text(f"stream '{name}': attributes", attributes or {})
        _writer_describe_stream(self._handle, name, _lib.text("clock", clock), json.dumps(features), attributes_json)
        if unit_m is None and intrinsics is None and resized is None:
            return
        _writer_describe_frames(
            self._handle,
            name,
            None if unit_m is None else real(f"stream '{name}': unit_m", unit_m),
            json.dumps(_check_intrinsics(name, intrinsics)),
            "" if resized is None else _json_text(f"stream '{name}': resized", resized),
        )

    def episode(self, /, **metadata: Any) -> EpisodeWriter:
        """Opens an episode, as a context manager. An exception inside drops this episode only.

        Args:
            metadata: columns of the episodes table: str, int64, float, bool, None, or lists of str, int64 or float. A column has
                one type in all episodes, except None; ints beside floats become floats. An int beside floats that float64 does not
                hold (most beyond 2^53) is refused.

        Raises:
            ArgumentError, ArgumentTypeError: a value cannot be stored; the message names the column. Raised at the start of the
                ``with`` block.
        """
        return EpisodeWriter(self._handle, metadata)

    def close(self) -> None:
        """Computes statistics and findings, makes all files durable and renames the directory to `path`.

        The ``with`` block calls it at its end. A second call does nothing.

        Raises:
            FileError: a write failed (then it may be called again), or `path` exists by now.
            ArgumentError, ArgumentTypeError: an episode is open, or a value in `provenance` is not JSON-able.
        """
        _writer_close(self._handle, _json_text("provenance", self._provenance.data))

    def commit(self) -> None:
        """Publishes all rows so far, as :meth:`close` does, and keeps the writer open. From then on it appends.

        An open episode is published with its rows so far; the next commit, or its end, publishes the rest. An exception inside
        the episode then no longer drops it. A commit computes the statistics of the whole cache, so its time grows with the cache.

        Raises:
            FileError: a write failed. The open episode has ended; only close or abort is possible.
            ArgumentError, ArgumentTypeError: a value in `provenance` is not JSON-able.
        """
        _writer_commit(self._handle, _json_text("provenance", self._provenance.data))

    def abort(self) -> None:
        """Removes everything that was written since the last :meth:`commit`. After :meth:`close` it does nothing."""
        self._is_aborted = True
        _writer_abort(self._handle)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._is_aborted:
                self.close()
        finally:
            self.abort()

    def __repr__(self) -> str:
        return f"robocache.Writer({self.path!r})"


class _Provenance(UserDict[str, Any]):
    """A dict that at once refuses values that a cache cannot store, so an hour of recording is not lost."""

    def __setitem__(self, key: str, value: Any) -> None:
        _writer_check_provenance(_json_text("provenance", {key: value}))
        super().__setitem__(key, value)

    def __ior__(self, other: Any) -> _Provenance:  # type: ignore[override, misc]
        # UserDict's own method would bypass __setitem__.
        self.update(other)
        return self


class EpisodeWriter:
    """Writes one episode of a cache; returned by :meth:`Writer.episode`."""

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
        """Adds rows of one stream. May be called any number of times.

        Args:
            stream: any text of at most 255 bytes (a byte outside ``[A-Za-z0-9._-]`` counts as three).
            time_ns: ``[n]`` int64 nanoseconds, not decreasing within the episode.
            values: ``[n, ...]`` on the CPU: float64/32/16, bfloat16, integers or bool. The first call fixes dtype and shape. For a
                camera: frames ``[n, H, W]`` or ``[n, H, W, C]`` with a `codec`, C 1 or 3; or a list of JPEG or PNG files as `bytes`,
                each decoded once to check it; or the result of :func:`robocache.frames.encode` or ``take``. A PNG with a
                palette is stored as its indices if the stream's name has a word for labels, else as its colours. For text: a
                list of str. An empty list adds nothing.
            offsets: ``[n + 1]`` int64, from 0 to the number of elements, for rows of varying size such as clouds: row i is
                ``values[offsets[i]:offsets[i + 1]]`` of `values` ``[elements, ...]``. The first call fixes the shape of an
                element.
            codec: makes an array camera frames: ``"jpeg"`` (uint8), ``"png"`` (uint8, uint16, lossless) or ``"raw"`` (uint8, uint16,
                float32). One channel of uint16 or float32 is depth; one of uint8 is depth if the stream has a `unit_m`
                (:meth:`Writer.stream`). Without a codec any array is numbers, even a picture.
            quality: 1 to 100, for JPEG.
            subsampling: ``"4:2:0"`` or ``"4:4:4"``, for JPEG.

        Times and values may be numpy arrays (read-only and memory-mapped ones too, masked ones not), torch tensors, lists, or
        anything with DLPack.

        Raises:
            ArgumentError, ArgumentTypeError: an argument is invalid, and nothing is added; the message names the stream.
            FrameError: `bytes` are no frame, or differ in kind from the first; nothing is added.
            FileError: a write failed, for these or earlier rows; this episode can only be dropped. Later calls try again to write
                rows of finished episodes.

        Warns:
            UserWarning: the Exif data of files say that they are rotated; they are stored without rotation.
            ReencodedWarning: some JPEGs could not get restart markers without loss, such as those that store RGB. The message
                gives the reason.
        """
        if not self._open:
            raise errors.ArgumentError(f"stream '{stream}': this episode is not open")
        times = _as_array(stream, "time_ns", time_ns)
        if isinstance(values, list | tuple) and not values and getattr(times, "shape", None) == (0,):
            return  # an empty list may be of numbers, of texts or of frames
        is_plain = type(values) is np.ndarray and codec is None and offsets is None
        if not is_plain and (offsets is not None or _is_list_of(str, values)):
            if codec is not None:
                raise errors.ArgumentError(f"stream '{stream}': codec: expected frames, got text or offsets")
            self._append_ragged(_lib.text("stream", stream), times, values, offsets)
            return
        if not is_plain and (codec is not None or _are_files(values) or isinstance(values, frames.Encoded)):
            self._append_frames(_lib.text("stream", stream), times, values, codec, quality, subsampling)
            return
        rows = _as_array(stream, "values", values)
        try:
            _writer_append(self._writer, stream, _tensor(stream, "time_ns", times), _tensor(stream, "values", rows))
        except UnicodeEncodeError:
            _lib.text("stream", stream)  # raises
            raise
        except errors.Error:
            raise
        except (TypeError, BufferError) as error:  # the array refuses its own export, as pyarrow's does with nulls
            raise errors.ArgumentTypeError(f"stream '{stream}': {error}") from error

    def end(self, /, **metadata: Any) -> None:
        """Ends the episode before the end of the ``with`` block.

        Args:
            metadata: further columns, or new values for columns that the episode has: ``success=True``.

        Raises:
            ArgumentError, ArgumentTypeError: a value cannot be stored (the message names the column), or the episode is not
                open.
            FileError: a write failed.
        """
        if not self._open:
            raise errors.ArgumentError("this episode is not open")
        _writer_end_episode(self._writer, _json_text("episode metadata", self._metadata | metadata))
        self._open = False

    def _append_ragged(self, stream: str, times: Any, values: Any, offsets: Any) -> None:
        kind = "array"
        if _is_list_of(str, values):
            if offsets is not None:
                raise errors.ArgumentError(f"stream '{stream}': offsets: expected none with text, got them")
            kind = "text"
            texts = [_lib.text(f"stream '{stream}': values[{row}]", text).encode() for row, text in enumerate(values)]
            values = np.frombuffer(b"".join(texts), np.uint8)
            offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        values, offsets = _as_array(stream, "values", values), _as_array(stream, "offsets", offsets)
        try:
            _writer_append_ragged(
                self._writer,
                stream,
                _tensor(stream, "time_ns", times),
                _tensor(stream, "values", values),
                _tensor(stream, "offsets", offsets),
                kind,
            )
        except errors.Error:
            raise
        except (TypeError, BufferError) as error:
            raise errors.ArgumentTypeError(f"stream '{stream}': {error}") from error

    def _append_frames(
        self, stream: str, times: Any, values: Any, codec: str | None, quality: int, subsampling: str
    ) -> None:
        try:
            if isinstance(values, frames.Encoded):
                encoded = values
            elif _are_files(values):
                encoded = frames.take(_without_palettes(stream, values))
                _warn_of_rotated(stream, values)
            else:
                encoded = frames.encode(values, cast(str, codec), quality, subsampling)
        except errors.Error as error:
            raise type(error)(f"stream '{stream}': {error}") from None
        if codec not in (None, encoded.codec):
            raise errors.ArgumentError(
                f"stream '{stream}': codec: expected {encoded.codec!r}, the codec of the bytes, got {codec!r}"
            )
        for reason, count in encoded.reencoded.items():
            warn(f"stream '{stream}': {count} JPEGs encoded again: {reason}", ReencodedWarning)
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
        if not self._open:
            return
        self._open = False
        try:
            if kind is None:
                _writer_end_episode(self._writer, None)
                return
        except BaseException:
            _writer_abort_episode(self._writer)
            raise
        _writer_abort_episode(self._writer)


def _is_list_of(kind: Any, values: Any) -> bool:
    """Whether the values are a non-empty list whose first element is of that kind."""
    is_list = isinstance(values, list | tuple) and not isinstance(values, frames.Encoded)
    return is_list and len(values) > 0 and isinstance(values[0], kind)


def _are_files(values: Any) -> bool:
    return _is_list_of(bytes | bytearray | memoryview, values)


def _without_palettes(stream: str, files: Any) -> Any:
    """Returns files with the indices of PNGs that have a palette, if the stream's name says labels."""
    if not frames.is_labels(stream):
        return files
    return [frames.indices_of(bytes(file)) if frames.has_palette(file) else file for file in files]


def _warn_of_rotated(stream: str, files: Any) -> None:
    turns = [turn for file in files if (turn := turn_of_file(bytes(file))) is not None]
    if turns:
        warn(
            f"stream '{stream}': {len(turns)} files are {turns[0]}, as their Exif data say, and are stored without rotation; "
            "robocache.ingest stores them upright",
            UserWarning,
        )


def _check_intrinsics(stream: str, matrix: Any) -> list[float]:
    """Returns the matrix row by row; an empty list for None."""
    if matrix is None:
        return []
    try:
        numbers = np.asarray(matrix, np.float64)
    except (TypeError, ValueError) as error:
        raise errors.ArgumentTypeError(f"stream '{stream}': intrinsics: {error}") from None
    if numbers.shape != (3, 3):
        raise errors.ArgumentError(f"stream '{stream}': intrinsics: expected shape [3, 3], got {list(numbers.shape)}")
    return cast(list[float], _to_json_value(f"stream '{stream}': intrinsics", numbers.ravel()))


def _as_array(stream: str, argument: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        if hasattr(value, "__dlpack__"):
            return value
        try:
            # numpy would convert an empty list to float64.
            empty = isinstance(value, list | tuple) and not value
            array = np.asarray(value, dtype=np.int64 if argument == "time_ns" and empty else None)
        except (TypeError, ValueError) as error:
            raise errors.ArgumentTypeError(f"stream '{stream}': {argument}: {_shape_error(value) or error}") from None
        # numpy makes float64 of whole numbers beside floats, and of signed ones beside unsigned ones.
        if array.dtype == np.float64 and np.fmax.reduce(np.abs(array), axis=None, initial=0) >= 2**53:
            numbers = (x for x in np.asarray(value, object).ravel() if isinstance(x, int | np.integer))
            if (rounded := next((x for x in numbers if int(float(x)) != x), None)) is not None:
                raise errors.ArgumentTypeError(
                    f"stream '{stream}': {argument}: expected whole numbers that a list's one type holds, here float64, got {rounded}; "
                    "pass an array of int64 or uint64"
                )
        value = array
    itemsize, has_whole_elements = value.itemsize, value.dtype.isnative and value.flags.aligned
    for stride in value.strides:
        has_whole_elements = has_whole_elements and stride % itemsize == 0
    return value if has_whole_elements else value.astype(value.dtype.newbyteorder("="))


def _shape_error(rows: Any) -> str | None:
    """Returns an error text if the rows have different sizes, else None."""
    shapes = {row.shape for row in rows if isinstance(row, np.ndarray)} if isinstance(rows, list | tuple) else set()
    if len(shapes) < 2:
        return None
    return f"expected rows of one shape, got {len(shapes)}; pass rows such as clouds as one array of all elements, with offsets="


def _tensor(stream: str, argument: str, array: Any) -> Any:
    try:
        return _lib.from_numpy(array) if isinstance(array, np.ndarray) else array
    except errors.Error as error:
        raise type(error)(f"stream '{stream}': {argument}: {error}") from None


def _json_text(what: str, values: Mapping[str, Any]) -> str:
    """Returns a JSON object; refuses values that JSON cannot hold, and names their key."""
    plain = {}
    for key, value in values.items():
        where = f"{what} {_lib.text(f'{what}: key', key)!r}"
        try:
            plain[key] = _to_json_value(where, value)
        except RecursionError:
            raise errors.ArgumentError(f"{where}: expected JSON of at most 64 levels, got more") from None
    try:
        return json.dumps(plain)
    except RecursionError:
        raise errors.ArgumentError(f"{what}: expected JSON of at most 64 levels, got more") from None


def _to_json_value(where: str, value: Any) -> Any:
    """Returns the value in JSON's types, without any loss."""
    if isinstance(value, np.generic):
        value = value.item()
    elif isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, dict):
        return {_lib.text(f"{where}: key", key): _to_json_value(where, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_value(where, item) for item in value]
    if isinstance(value, str):
        return _lib.text(where, value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise errors.ArgumentError(f"{where}: expected integers within int64, got one of {value.bit_length()} bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise errors.ArgumentError(f"{where}: expected finite numbers, or None for no number, got {value}")
    elif value is not None:
        raise errors.ArgumentTypeError(
            f"{where}: expected str, int, float, bool, None, or lists or dicts of them, got {type(value).__name__}"
        )
    return value
