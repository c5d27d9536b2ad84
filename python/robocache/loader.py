"""Training batches out of a cache: one kernel launch each on a GPU, the same bytes from threads without one."""

from __future__ import annotations

import importlib.util
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from . import _lib, errors
from .dataset import Dataset
from .ops._call import number, whole

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

_options = _lib.function("loader_options")
_add_stream = _lib.function("loader_add_stream")
_add_method = _lib.function("loader_add_method")
_open = _lib.function("loader_open")
_describe = _lib.function("loader_describe")
_fill = _lib.function("loader_fill")
_array = _lib.function("batch_array")
_arrays = _lib.function("batch_arrays")
_cuda_unavailable = _lib.function("cuda_unavailable_reason")
_array.release_gil = _arrays.release_gil = False  # _arrays needs the lock; _array is shorter than to let go of it

_Value = TypeVar("_Value")


# ---- Arguments as the library takes them ----


def _number(name: str, value: Any) -> float:
    try:
        return float(number(name, value))
    except OverflowError:
        raise errors.ArgumentError(f"{name}: expected a number that float64 holds, got {value!r}") from None


def _dtype(name: str, value: Any) -> str:
    try:
        return _lib.dtype_name(value)
    except errors.ArgumentTypeError:
        raise errors.ArgumentTypeError(f"{name}: expected a dtype or its name, got {value!r}") from None


def _given(convert: Callable[[str, Any], _Value], name: str, value: Any) -> _Value | None:
    return None if value is None else convert(name, value)


def _listed(convert: Callable[[str, Any], Any], name: str, values: Any, dtype: type) -> npt.NDArray[Any]:
    try:
        each = None if isinstance(values, str) else list(values)
    except TypeError:
        each = None
    if each is None:
        raise errors.ArgumentTypeError(f"{name}: expected a list of numbers, got {values!r}")
    return np.array([convert(name, value) for value in each], dtype)


def _seconds(name: str, values: Any) -> npt.NDArray[Any]:
    return _listed(_number, name, values, np.float64)


class _PerStream:
    """An option that is one value for all streams, or ``{stream: value}``."""

    def __init__(self, dataset: Dataset, name: str, given: Any, convert: Callable[[str, Any], Any]) -> None:
        self._name, self._convert = name, convert
        self.named: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        for stream in self.named:
            if stream not in dataset.streams:
                raise errors.ArgumentError(
                    f"{name}: no stream {stream!r} in {dataset.path}; there are {', '.join(dataset.streams)}"
                )
        self.of_all = None if isinstance(given, Mapping) else _given(convert, name, given)

    def of(self, stream: str) -> Any:
        return _given(self._convert, f"{self._name}['{stream}']", self.named.get(stream))


def _slices(name: str, blocks: Any, features: int) -> Iterator[tuple[int, int, str]]:
    """begin, end and method of each of ``[(slice, method), ...]``."""
    for block in blocks:
        try:
            part, method = block
        except (TypeError, ValueError):
            part = method = None
        if not isinstance(part, slice):
            raise errors.ArgumentTypeError(f"{name}: expected a method or [(slice, method), ...], got {block!r}")
        if part.step not in (None, 1):
            raise errors.ArgumentError(f"{name}: expected slices of step 1, got {part!r}")
        begin, end = _given(whole, name, part.start), _given(whole, name, part.stop)
        yield 0 if begin is None else begin, features if end is None else end, _lib.text(name, method)


# ---- The loader ----


class Loader:
    """Batches of time-aligned windows around moments drawn from a dataset.

    An iterator: ``for batch in loader`` gives the rest of the epoch; the next loop is the next epoch. The order is a
    keyed permutation, a pure function of (seed, epoch, step): the same bytes on every run and thread count, and on every
    device but for curves and rotations, which agree within the bounds of docs/rules.md.

    Args:
        dataset: from :func:`robocache.open`.
        batch_size: samples a batch, B.
        delta_timestamps: for each stream wanted, the offsets in seconds from the sample's anchor, T of them. Any
            offsets: they need not lie on the recording's grid.
        rate_hz, history, horizon: a second way to say `delta_timestamps`: steps of 1/`rate_hz` seconds, `history` of
            them ending at the anchor, `horizon` of them starting at it; ``{stream: steps}``, or an int: `horizon` then
            is for the streams whose first name part is ``action``, `history` for all others.
        anchor: the stream whose ticks are the anchors; by default the slowest one asked for.
        anchor_hz: or anchors at this rate over the span that all streams asked for cover in an episode.
        methods: ``"linear"`` (default for floats), ``"nearest"``, ``"previous"`` (default for integers and bool),
            ``"next"``, ``"pchip"``, ``"akima"``, ``"angle"`` (radians, the shorter way round), ``"slerp"`` (4 features, a
            quaternion) or ``"pose"`` (7, x, y, z and a quaternion), as in :func:`resample_trajectories`: one for all
            streams, or ``{stream: method}``, where ``[(slice, method), ...]`` names features of a row, counted
            row-major, and leaves the others the default: ``{"arm": [(slice(3, 7), "slerp")]}``.
        normalize: ``"mean_std"``, ``"min_max"`` or ``"q01_q99"`` (the last two to [-1, 1]) by the cache's statistics: one
            for all floating streams, or ``{stream: mode}``. A feature that never changes is only centred.
        max_gap_s: values interpolated across a longer gap are marked in ``is_pad``; one for all, or ``{stream: s}``.
        dtype: of the floating streams: float32, float64, float16 or bfloat16; or ``{stream: dtype}``. Integers and bool
            keep theirs.
        device: ``"cpu"`` or ``"cuda"``/``"cuda:N"``; by default torch's current CUDA device where robocache and torch can
            both use it, else the CPU. The streams asked for are copied there once, whole; a clock that several of them
            share is copied once.
        episodes: indices of the episodes to draw from; default all.
        snap_s: a target closer than this to a sample is that sample.
        seed, shuffle, drop_last: the order, and whether a last batch of fewer samples is left out.
        framework: ``"torch"`` (default where it is installed) or ``"numpy"`` (CPU only).

    Each batch is a dict: ``<stream>`` ``[B, T, ...]``, ``<stream>_is_pad`` ``[B, T]`` bool (outside the recording, in a
    gap beyond `max_gap_s`, or missing), ``time_ns`` ``[B]`` int64 (the anchor), ``episode_index`` ``[B]`` int64. Outside the
    recording a value is the edge sample's; where an episode lacks the stream it is 0.

    Several threads may loop over one loader: each batch of the epoch goes to one of them, and all their loops end with it.
    A loader pickles as its dataset's path, its arguments and its place, so the copy goes on with the batch that would have
    come next; a device left to the default is chosen anew where it is unpickled.

    Attributes:
        device: where the batches are: ``"cpu"`` or ``"cuda:N"``.
        num_samples: samples an epoch: the anchors there are.
        anchor: the stream whose ticks are the anchors, or None under `anchor_hz`.
        batch_size, dataset: as they were given.
        seed, epoch, step: the place in the order; :meth:`load_state_dict` moves it.

    Raises:
        ArgumentError, ArgumentTypeError: naming the argument, what was expected and what came.
        DeviceError: no such device, or the streams do not fit its memory.

    Example:
        >>> loader = robocache.Loader(ds, batch_size=256, rate_hz=50, history={"observation.state": 2}, horizon={"action": 16})
        >>> next(loader)["action"].shape
        torch.Size([256, 16, 7])
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        rate_hz: float | None = None,
        history: int | Mapping[str, int] | None = None,
        horizon: int | Mapping[str, int] | None = None,
        anchor: str | None = None,
        anchor_hz: float | None = None,
        methods: str | Mapping[str, str | Sequence[tuple[slice, str]]] | None = None,
        normalize: str | Mapping[str, str] | None = None,
        max_gap_s: float | Mapping[str, float] | None = None,
        dtype: Any = "float32",
        device: str | torch.device | None = None,
        episodes: Sequence[int] | None = None,
        snap_s: float = 1e-6,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        framework: str | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "dataset")}
        # Copies: what the caller changes later is not what this loader was asked for.
        self._arguments = {name: dict(x) if isinstance(x, Mapping) else x for name, x in given.items()}
        if not isinstance(dataset, Dataset):
            raise errors.ArgumentTypeError(
                f"dataset: expected what robocache.open() gave, got {type(dataset).__name__}"
            )
        if (delta_timestamps is None) == (rate_hz is None):
            raise errors.ArgumentError(
                "delta_timestamps: expected either delta_timestamps or rate_hz with history or horizon, got "
                + ("neither" if rate_hz is None else f"both, rate_hz={rate_hz!r}")
            )
        if rate_hz is None and not (history is None and horizon is None):
            raise errors.ArgumentError("history, horizon: go with rate_hz, got delta_timestamps")
        if delta_timestamps is not None and not isinstance(delta_timestamps, Mapping):
            raise errors.ArgumentTypeError(f"delta_timestamps: expected {{stream: seconds}}, got {delta_timestamps!r}")
        self._torch = self._framework(framework)
        self.device = self._device_name(device)

        plain: Any = methods
        slices: dict[str, Any] = {}
        if isinstance(methods, Mapping):
            slices = {stream: by for stream, by in methods.items() if isinstance(by, list | tuple)}
            plain = {stream: None if stream in slices else by for stream, by in methods.items()}
        histories = _PerStream(dataset, "history", history, whole)
        horizons = _PerStream(dataset, "horizon", horizon, whole)
        names = _PerStream(dataset, "methods", plain, _lib.text)
        modes = _PerStream(dataset, "normalize", normalize, _lib.text)
        gaps = _PerStream(dataset, "max_gap_s", max_gap_s, _number)
        dtypes = _PerStream(dataset, "dtype", dtype, _dtype)
        # The library borrows the memory of arrays during a call.
        chosen = None if episodes is None else _listed(whole, "episodes", episodes, np.int64)
        options = _options(
            whole("batch_size", batch_size),
            _given(_lib.text, "anchor", anchor),
            _given(_number, "anchor_hz", anchor_hz),
            None if chosen is None else _lib.from_numpy(chosen),
            _number("snap_s", snap_s),
            shuffle,
            drop_last,
            self.device,
            _given(_number, "rate_hz", rate_hz),
            histories.of_all,
            horizons.of_all,
            names.of_all,
            modes.of_all,
            gaps.of_all,
            dtypes.of_all,
        )
        windows: Mapping[str, Any] = (
            dict.fromkeys([*histories.named, *horizons.named, *dataset.streams])
            if delta_timestamps is None
            else delta_timestamps
        )
        for stream, offsets in windows.items():
            seconds = _given(_seconds, f"delta_timestamps['{stream}']", offsets)
            _add_stream(
                options,
                _lib.text("delta_timestamps", stream),
                None if seconds is None else _lib.from_numpy(seconds),
                histories.of(stream),
                horizons.of(stream),
                names.of(stream),
                modes.of(stream),
                gaps.of(stream),
                dtypes.of(stream),
            )
            if stream in slices:
                argument, features = f"methods['{stream}']", math.prod(dataset.streams[stream].shape)
                for begin, end, method in _slices(argument, slices[stream], features):
                    _add_method(options, begin, end, method)

        self._handle = _open(dataset._handle, options)
        described = json.loads(_describe(self._handle))
        self.dataset = dataset
        self.batch_size = batch_size
        self.num_samples: int = described["anchors"]
        self.anchor: str | None = described["anchor"] or None
        self._steps: int = described["steps_per_epoch"]
        self._names = [array["name"] for array in described["arrays"]]
        self._lock = threading.Lock()  # of the place in the order
        self.seed: int
        self.epoch: int
        self.step: int
        self.load_state_dict({"seed": seed, "epoch": 0, "step": 0})
        # An array of the framework among a call's arguments is what makes the library allocate and answer in it.
        self._like: Any = None
        self._exchange = 0
        if self._torch is not None:
            self._exchange = _lib.exchange_api(self._torch.Tensor)
            self._like = self._torch.empty(0, dtype=self._torch.uint8, device=self.device)
        else:
            for array in described["arrays"]:
                _lib.numpy_dtype(array["dtype"])  # refuses what numpy cannot hold

    @staticmethod
    def _framework(name: str | None) -> ModuleType | None:
        if name not in (None, "torch", "numpy"):
            raise errors.ArgumentError(f"framework: expected 'torch' or 'numpy', got {name!r}")
        if name == "numpy" or (name is None and importlib.util.find_spec("torch") is None):
            return None
        import torch

        return torch

    def _device_name(self, device: Any) -> str:
        torch = self._torch
        if device is None:
            device = "cpu" if torch is None or _cuda_unavailable() or not torch.cuda.is_available() else "cuda"
        name = _lib.text("device", str(device))
        if not name.startswith("cuda"):
            return name  # "cpu", or what the library refuses
        if torch is None:
            raise errors.ArgumentError(
                f"device: framework 'numpy' is on the CPU, got {name!r}; CUDA batches need torch"
            )
        if reason := _cuda_unavailable():
            raise errors.DeviceError(f"device: {name!r} cannot be used: {reason}")
        return f"cuda:{torch.cuda.current_device()}" if name == "cuda" else name

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return _Epoch(self, self.epoch)

    def __next__(self) -> dict[str, Any]:
        return self._next(None)

    def _next(self, epoch: int | None) -> dict[str, Any]:
        """The next batch, where this epoch is still on."""
        with self._lock:
            step = self.step
            if epoch is not None and epoch != self.epoch:
                raise StopIteration
            if step >= self._steps:
                self.epoch += 1
                self.step = 0
                raise StopIteration
            batch = _fill(self._handle, self._like, self.seed, self.epoch, step)
            self.step = step + 1
        if self._exchange:
            arrays: list[Any] = [None] * len(self._names)
            _arrays(batch, self._exchange, id(arrays))
            return dict(zip(self._names, arrays, strict=True))
        arrays = [_array(batch, self._like, index) for index in range(len(self._names))]
        return dict(zip(self._names, arrays if self._torch else map(_lib.to_numpy, arrays), strict=True))

    def __len__(self) -> int:
        """Batches an epoch."""
        return self._steps

    def __getstate__(self) -> dict[str, Any]:
        """The dataset's path, the arguments and :meth:`state_dict`: the copy gives the batches that this one would."""
        return {"dataset": self.dataset, "arguments": self._arguments, "state": self.state_dict()}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        Loader.__init__(self, pickled["dataset"], **pickled["arguments"])
        self.load_state_dict(pickled["state"])

    def state_dict(self) -> dict[str, int]:
        """What :meth:`load_state_dict` needs to go on with the batch after the last one given; JSON-able."""
        with self._lock:
            return {"seed": self.seed, "epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes to that place at once, whatever its distance."""
        if not isinstance(state, Mapping):
            raise errors.ArgumentTypeError(f"state: expected what state_dict() gave, got {state!r}")
        place = {}
        for key in ("seed", "epoch", "step"):
            place[key] = whole(key, state.get(key))
            largest = self._steps if key == "step" else 2**63 - 1
            if not 0 <= place[key] <= largest:
                raise errors.ArgumentError(f"{key}: expected an int in [0, {largest}], got {place[key]}")
        with self._lock:
            self.seed, self.epoch, self.step = place["seed"], place["epoch"], place["step"]


class _Epoch(Iterator[dict[str, Any]]):
    """What a loop over a loader draws from: it ends with the epoch, in every thread that is in it."""

    def __init__(self, loader: Loader, epoch: int) -> None:
        self._loader = loader
        self._epoch = epoch

    def __next__(self) -> dict[str, Any]:
        return self._loader._next(self._epoch)
