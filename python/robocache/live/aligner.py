"""Rings take rows as they arrive. An aligner makes batches of one sample from them, equal to a Loader's."""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from .. import _lib, errors
from .._check import real, whole
from ..feature_names import are_same
from ..spec import Spec

_ring_open = _lib.function("ring_open")
_ring_push = _lib.function("ring_push")
_ring_take = _lib.function("ring_take")
_array_of = _lib.function("array_of")
_ring_counts = _lib.function("ring_counts")
_ring_newest_ns = _lib.function("ring_newest_ns")
_ring_arrival_ns = _lib.function("ring_arrival_ns")
_ring_unchanged_ns = _lib.function("ring_unchanged_ns")
_aligner_open = _lib.function("aligner_open")
_aligner_describe = _lib.function("aligner_describe")
_aligner_frontier = _lib.function("aligner_frontier")
_aligner_at = _lib.function("aligner_at")
_aligner_latest = _lib.function("aligner_latest")
_aligner_stalest = _lib.function("aligner_stalest")
_aligner_bad_frames = _lib.function("aligner_bad_frames")


class TakenRows(NamedTuple):
    """Rows of a ring, in the order of their stamps."""

    start: int  # the number of the first row; larger than requested if the ring has forgotten rows
    time_ns: np.ndarray  # int64 [n]
    arrival_ns: np.ndarray  # int64 [n]
    rows: Any  # [n, *shape], or a list of n files


class Ring:
    """The last rows of one stream. Threads push rows while aligners read them.

    Rows are kept in the order of their stamps. A row up to `lateness_s` older than the newest row is put in its place in that
    order; an older row is dropped and counted. So all rows that are older than the newest by more than `lateness_s` are final.
    With ``on_duplicate="refuse"`` a row exactly `lateness_s` older is final too, so without lateness the newest row is final.

    Args:
        shape: the shape of a row, ``(7,)``; for a camera ``(height, width, channels)``.
        dtype: the dtype of a row: any that a cache may have.
        span_s: rows up to this much older than the newest are kept, in seconds: at least the longest window plus the lateness.
        lateness_s: the most that a row's stamp may lag behind the newest stamp, in seconds. 0: stamps ascend.
        codec: for a camera: ``"raw"``: rows are pixels; ``"jpeg"`` or ``"png"``: rows are files.
        on_rewind: what happens with a stamp that is older than the newest by more than `span_s`. ``"refuse"``: the row is
            dropped; ``"segment"``: it begins a new segment, and no window extends across its start.
        on_duplicate: what happens with a stamp that another row has. ``"keep"``: both rows are kept, and the last one counts;
            ``"refuse"``: the row is dropped. For a sensor that never gives two rows one stamp, such as a camera.
        most_ahead_s: a stamp that is more than this ahead of its arrival is refused, and so is a stamp of 0 or less.
        names: the features' names, in the order of a row. None: rows are assumed to have the order of the aligner's spec.

    Attributes:
        names: the argument, else the names of the first aligner's spec, or topic, that has names. Later specs and topics must
            have the same names.
        newest_ns: the largest stamp, or None.
        arrival_ns: when a row with that stamp first arrived, or None.
        unchanged_ns: how much later the newest stamp is than that of the first row with the same bytes, counting back from the
            newest row; None before the first row. It grows while a camera's driver sends its last buffer again with new stamps.
        counts: ``{"pushed", "kept", "reordered", "too_late", "refused", "segments", "duplicates", "repeated"}``: the numbers of
            rows. pushed = kept + reordered + too_late + refused + segments. Duplicates have a stamp that another row has: they
            are also counted as kept or reordered, or with ``on_duplicate="refuse"`` as refused. Repeated rows are kept rows with
            the bytes of the newest row before them, and a later stamp.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.

    Example:
        >>> joint = robocache.live.Ring((7,), "float32", span_s=5.0, lateness_s=0.006)
        >>> joint.push(1_000_000_000, np.zeros(7, np.float32), arrival_ns=1_000_400_000)
        'kept'
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        *,
        span_s: float,
        lateness_s: float = 0.0,
        codec: str | None = None,
        on_rewind: str = "refuse",
        on_duplicate: str = "keep",
        most_ahead_s: float = 1.0,
        names: Sequence[str] | None = None,
    ) -> None:
        extents = [whole("shape", extent) for extent in shape]
        self.shape, self.dtype, self.codec = tuple(extents), _lib.dtype_name(dtype), codec
        self._handle = _ring_open(
            self.dtype,
            None if codec is None else _lib.text("codec", codec),
            _ns("span_s", span_s),
            _ns("lateness_s", lateness_s),
            _ns("most_ahead_s", most_ahead_s),
            _lib.text("on_rewind", on_rewind),
            _lib.text("on_duplicate", on_duplicate),
            *extents,
        )
        self._numpy_dtype = _lib.numpy_dtype(self.dtype)
        self.span_s, self.lateness_s, self.on_duplicate = float(span_s), float(lateness_s), on_duplicate
        self.names: list[str] | None = None
        self._set_names("names", names)

    def _set_names(self, where: str, names: Sequence[str] | None) -> None:
        """Sets the features' names, or compares them with the ring's.

        Raises:
            ArgumentError, ArgumentTypeError: the names differ, are in another order, or are not one for each feature.
        """
        if names is None:
            return
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(x, str) for x in names):
            raise errors.ArgumentTypeError(f"{where}: expected a list of names, got {names!r}")
        if not names:
            return
        if len(names) != math.prod(self.shape):
            raise errors.ArgumentError(
                f"{where}: expected one for each of {math.prod(self.shape)} features, got {len(names)}"
            )
        if self.names is not None and not are_same(self.names, names):
            raise errors.ArgumentError(
                f"{where}: expected the features of the ring's rows in their order, {self.names}, got {list(names)}"
            )
        self.names = self.names or list(names)

    def push(self, time_ns: int, row: Any, arrival_ns: int | None = None) -> str:
        """Takes a row.

        Args:
            time_ns: its stamp, int64 nanoseconds.
            row: an array of the ring's shape and dtype; for ``"jpeg"`` and ``"png"`` the file's bytes.
            arrival_ns: when the row arrived. None: now.

        Returns:
            What happened to the row: ``"kept"``, ``"reordered"``, ``"too_late"``, ``"refused"`` or ``"segment"``.

        Raises:
            ArgumentError, ArgumentTypeError: the row has another shape or dtype, or a file another codec. A file with a damaged
                header is no error: its frame is padding.
        """
        if self.codec in (None, "raw"):
            try:
                array = np.asarray(row)
            # A torch tensor raises these if it is on a device, is bfloat16 or needs a gradient.
            except (TypeError, ValueError, RuntimeError) as error:
                raise errors.ArgumentTypeError(
                    f"row: expected an array of numpy, got {type(row).__name__}: {error}"
                ) from None
            if array.shape != self.shape or array.dtype != self._numpy_dtype:
                raise errors.ArgumentError(
                    f"row: expected {list(self.shape)} {self.dtype}, got {list(array.shape)} {array.dtype}"
                )
            array = np.ascontiguousarray(array)
        elif isinstance(row, bytes | bytearray | memoryview) or (
            isinstance(row, np.ndarray) and row.dtype == np.uint8 and row.ndim == 1
        ):
            array = np.frombuffer(bytes(row), np.uint8)  # of strided memory too
        else:
            raise errors.ArgumentTypeError(
                f"row: expected the bytes of a file, since the ring's codec is {self.codec!r}, got {type(row).__name__}"
            )
        arrival = time.time_ns() if arrival_ns is None else arrival_ns
        result: str = _ring_push(self._handle, time_ns, arrival, _lib.from_numpy(array))
        return result

    def take(self, start: int, *, most: int, unsettled: bool = False) -> TakenRows:
        """Returns final rows by their numbers. A row's number counts the rows before it since the ring began.

        Args:
            start: the number of the first row.
            most: the most rows to return.
            unsettled: also return rows that are not final. Their numbers change if a late row comes.
        """
        taken = _ring_take(self._handle, start, most, unsettled)
        first, time_ns, arrival_ns, values, *offsets = (
            _lib.to_numpy(_array_of(taken, None, index)) for index in range(4 if self.codec is None else 5)
        )
        if self.codec in (None, "raw"):
            return TakenRows(
                int(first[0]), time_ns, arrival_ns, values.view(self._numpy_dtype).reshape(len(time_ns), *self.shape)
            )
        files = [values[begin:end].tobytes() for begin, end in itertools.pairwise(offsets[0].tolist())]
        return TakenRows(int(first[0]), time_ns, arrival_ns, files)

    @property
    def newest_ns(self) -> int | None:
        newest: int | None = _ring_newest_ns(self._handle)
        return newest

    @property
    def arrival_ns(self) -> int | None:
        arrival: int | None = _ring_arrival_ns(self._handle)
        return arrival

    @property
    def unchanged_ns(self) -> int | None:
        unchanged: int | None = _ring_unchanged_ns(self._handle)
        return unchanged

    @property
    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = json.loads(_ring_counts(self._handle))
        return counts

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count)
        return f"robocache.live.Ring({list(self.shape)} {self.dtype}, {counts or 'empty'})"


class Aligner:
    """Makes batches of one sample from the rings' rows, bit for bit those of a :class:`Loader` with the same spec.

    A target is settled when no later arrival can change its value. The frontier is the newest moment with all targets settled.
    At the frontier a batch is as in training. At the present moment a batch would repeat or lack rows where training's
    batches do not: an unsettled target is padding. A window whose rows a ring has forgotten is an error, unless they lie before
    a new segment.

    Args:
        spec: ``loader.spec``, or the path of a file that :meth:`Loader.save_spec` wrote.
        rings: ``{key: Ring}``, one for each key of the spec except the outputs.
        outputs: the keys of the policy's output, such as ``["action"]``. The batch lacks them. If their conversions compare
            with a state, the batch has ``<key>_base``, which :meth:`Spec.to_absolute` needs.
        device: ``"cpu"``, or ``"cuda"``/``"cuda:N"``: rows are aligned on the CPU and copied once; JPEG and PNG are decoded on
            the CPU, and frames are resized on the device. The work is queued on torch's current stream.
        framework: ``"torch"`` (default if it is installed) or ``"numpy"``.
        max_age_s: :meth:`latest` raises StaleError if a ring gets no newer row for this many seconds, or if its newest row is
            older than another ring's by more. None: no limit.
        max_unchanged_s: ``{key: seconds}``: :meth:`latest` raises StaleError if a ring's rows keep the same bytes for longer.
            For sensors with noise, such as a camera; a simulator's may rightly repeat rows.

    A batch has the Loader's keys, without goals, which the caller chooses: ``<key>`` ``[1, T, ...]``, ``<key>_is_pad`` ``[1,
    T]``, with `return_age` ``<key>_age``; ``time_ns`` ``[1]``, the moment; and ``anchor_age_ns`` ``[1]`` int64, the newest
    stamp of all rings minus the moment. The next batch overwrites its memory: copy values that you keep. Only one thread may
    use an aligner.

    Raises:
        ArgumentError, ArgumentTypeError: a key has no ring; rows have another shape, dtype or codec than in the spec; features
            have other names or another order; a span is shorter than the window.

    Example:
        >>> aligner = robocache.live.Aligner("spec.json", {"joint": joint})
        >>> batch = aligner.latest()
    """

    def __init__(
        self,
        spec: Spec | str | os.PathLike[str],
        rings: Mapping[str, Ring],
        *,
        outputs: Sequence[str] = (),
        device: str = "cpu",
        framework: str | None = None,
        max_age_s: float | None = None,
        max_unchanged_s: Mapping[str, float] | None = None,
    ) -> None:
        self.spec = spec if isinstance(spec, Spec) else Spec.load(spec)
        if not isinstance(rings, Mapping) or not all(isinstance(ring, Ring) for ring in rings.values()):
            raise errors.ArgumentTypeError(f"rings: expected {{key: Ring}}, got {rings!r}")
        self.rings = dict(rings)
        keys = self.spec.keys
        for key, ring in self.rings.items():
            rows = keys[key]["rows"] if key in keys else None
            names = rows["names"] if rows is not None else None
            if names and math.prod(ring.shape) == len(names):  # rows of another shape are refused below
                ring._set_names(f"rings[{key!r}]: the spec's names", names)
        self._max_age_ns = None if max_age_s is None else _ns("max_age_s", max_age_s)
        self._max_unchanged_ns = _ns_by_key("max_unchanged_s", max_unchanged_s, self.rings)
        if isinstance(outputs, str) or not isinstance(outputs, Sequence):
            raise errors.ArgumentTypeError(f"outputs: expected a list of keys, got {outputs!r}")
        handles = [x for key, ring in rings.items() for x in (_lib.text("rings", key), ring._handle)]
        handles += [x for key in outputs for x in (_lib.text("outputs", key), None)]
        device = str(device)  # it may be a torch.device
        self._torch = _framework(framework, device)
        if self._torch is not None and device == "cuda" and self._torch.cuda.is_available():
            device = f"cuda:{self._torch.cuda.current_device()}"
        self.device = device
        self._handle = _aligner_open(self.spec.to_json(), device, *handles)
        description = json.loads(_aligner_describe(self._handle))
        self._opened_ns = time.time_ns()
        memory: Any  # begins at a multiple of 64 bytes
        if self._torch is None:
            memory = np.zeros(description["bytes"] + 63, np.uint8)
            memory = memory[-memory.ctypes.data % 64 :]
            self._memory: Any = _lib.from_numpy(memory)
        else:
            # Not torch.zeros, which writes on the stream that is current now; latest() writes on the one current at its call.
            memory = self._torch.empty(description["bytes"] + 63, dtype=self._torch.uint8, device=device)
            self._memory = memory = memory[-memory.data_ptr() % 64 :]
        self._batch: dict[str, Any] = {}
        for array in description["arrays"]:
            name, shape, offset = array["name"], [1, *array["shape"]], array["offset"]
            dtype = _lib.numpy_dtype(array["dtype"]) if self._torch is None else getattr(self._torch, array["dtype"])
            size = math.prod(shape) * dtype.itemsize
            self._batch[name] = memory[offset : offset + size].view(dtype).reshape(shape)

    def frontier(self) -> int | None:
        """Returns the newest moment with all targets settled, in ns; None if a stream has none yet."""
        frontier: int | None = _aligner_frontier(self._handle)
        return frontier

    def latest(self, *, now_ns: int | None = None) -> dict[str, Any] | None:
        """Returns the batch at the frontier; None if there is no frontier yet.

        Args:
            now_ns: the time for `max_age_s`, by the clock of the arrivals, for replays. None: now.

        Raises:
            StaleError: a ring is older than `max_age_s` or unchanged for `max_unchanged_s`; or it has forgotten rows that the window needs, because its `span_s` is
                shorter than the window plus the delay of the slowest stream. The message names the ring.
        """
        if self._max_age_ns is not None:
            self._check_age(self._max_age_ns, time.time_ns() if now_ns is None else whole("now_ns", now_ns))
        for key, limit in self._max_unchanged_ns.items():
            if (unchanged_ns := self.rings[key].unchanged_ns or 0) > limit:
                raise errors.StaleError(
                    f"rings[{key!r}]: expected other bytes within {limit / 1e9} s, got the same for {unchanged_ns / 1e9} s; check "
                    "that the sensor's driver does not send its last reading again"
                )
        return dict(self._batch) if _aligner_latest(self._handle, self._memory) else None

    def at(self, time_ns: int, *, settled: bool = False) -> dict[str, Any]:
        """Returns the batch at a moment. Targets that are not settled are padding.

        Args:
            settled: True: raise an error if a target is not settled.

        Raises:
            StaleError: a ring has forgotten rows that the window needs; with `settled`: some targets are not settled.
            ArgumentError: the moment is beyond 2^62 ns.
        """
        unsettled: int = _aligner_at(self._handle, self._memory, whole("time_ns", time_ns))
        if settled and unsettled:
            raise errors.StaleError(
                f"time_ns: expected a moment up to the frontier, {self.frontier()}, got {time_ns}: {unsettled} targets are "
                "not settled"
            )
        return dict(self._batch)

    @property
    def bad_frames(self) -> int:
        """The number of frames so far that did not decode. They are black and padding."""
        frames: int = _aligner_bad_frames(self._handle)
        return frames

    def _check_age(self, limit: int, now_ns: int) -> None:
        for key, ring in self.rings.items():
            arrival_ns = ring.arrival_ns
            silent_ns = now_ns - (self._opened_ns if arrival_ns is None else arrival_ns)
            if silent_ns > limit:
                raise errors.StaleError(
                    f"rings[{key!r}]: expected a newer row within {limit / 1e9} s, got none for {silent_ns / 1e9} s; check "
                    "that the sensor still sends, and look at the ring's counts"
                )
        description = _aligner_stalest(self._handle)
        if description is None:
            return
        stalest = json.loads(description)
        if stalest["behind_ns"] > limit:
            raise errors.StaleError(
                f"rings[{stalest['key']!r}]: expected a row within {limit / 1e9} s of the newest of all rings, got one that is "
                f"{stalest['behind_ns'] / 1e9} s behind; check that the sensor still sends"
            )


def _ns(name: str, seconds: Any) -> int:
    value = real(name, seconds)
    if not 0 <= value <= 1e9:
        raise errors.ArgumentError(f"{name}: expected seconds in [0, 1e9], got {seconds!r}")
    return round(value * 1e9)


def _ns_by_key(name: str, seconds: Any, rings: Mapping[str, Ring]) -> dict[str, int]:
    if not isinstance(seconds or {}, Mapping):
        raise errors.ArgumentTypeError(f"{name}: expected {{key: seconds}}, got {seconds!r}")
    if unknown := [key for key in seconds or {} if key not in rings]:
        raise errors.ArgumentError(f"{name}: expected keys of rings, {', '.join(map(repr, rings))}, got {unknown[0]!r}")
    return {key: _ns(f"{name}[{key!r}]", value) for key, value in (seconds or {}).items()}


def _framework(name: str | None, device: str) -> ModuleType | None:
    """Returns torch, or None for numpy."""
    if name not in (None, "torch", "numpy"):
        raise errors.ArgumentError(f"framework: expected 'torch' or 'numpy', got {name!r}")
    if name == "numpy":
        if device != "cpu":
            raise errors.ArgumentError(f"device: expected 'cpu' with numpy, got {device!r}")
        return None
    try:
        import torch
    except ImportError:
        if name == "torch" or device != "cpu":
            raise errors.ArgumentError("framework: torch is not installed; pip install torch") from None
        return None
    return torch
