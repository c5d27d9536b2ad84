"""Training batches out of a cache: one kernel launch each on a GPU, the same bytes from threads without one."""

from __future__ import annotations

import importlib.util
import json
import math
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from . import _lib, errors
from .dataset import Dataset

_open = _lib.function("loader_open")
_describe = _lib.function("loader_describe")
_fill = _lib.function("loader_fill")
_array = _lib.function("batch_array")
_arrays = _lib.function("batch_arrays")
_array.release_gil = _arrays.release_gil = False  # _arrays needs the lock; _array is shorter than to let go of it


def _window_offsets(
    rate_hz: float,
    history: int | Mapping[str, int] | None,
    horizon: int | Mapping[str, int] | None,
    streams: Collection[str],
) -> dict[str, list[float]]:
    """The second way to say `delta_timestamps`, as the first."""
    if not isinstance(rate_hz, int | float):
        raise errors.ArgumentTypeError(f"rate_hz: expected a number, got {rate_hz!r}")
    if not 0 < rate_hz < math.inf:
        raise errors.ArgumentError(f"rate_hz: expected a finite rate above 0, got {rate_hz}")

    if history is None and horizon is None:
        raise errors.ArgumentError("history, horizon: expected at least one of them beside rate_hz, got none")

    def steps(name: str, given: int | Mapping[str, int] | None, takes: Any) -> dict[str, int]:
        if not isinstance(given, int | Mapping | None):
            raise errors.ArgumentTypeError(f"{name}: expected an int or {{stream: int}}, got {given!r}")
        counts = {s: given for s in streams if takes(s)} if isinstance(given, int) else dict(given or {})
        for stream, count in counts.items():
            if stream not in streams:
                raise errors.ArgumentError(f"{name}: expected one of {', '.join(streams)}, got '{stream}'")
            if not isinstance(count, int) or count < 1:
                raise errors.ArgumentError(f"{name}['{stream}']: expected at least 1 step, got {count!r}")
        return counts

    is_action = lambda stream: stream.split(".")[0] == "action"  # noqa: E731
    past = steps("history", history, lambda s: not is_action(s))
    future = steps("horizon", horizon, is_action)
    named = dict.fromkeys([*past, *future])
    return {s: [k / rate_hz for k in range(1 - past.get(s, 1), future.get(s, 1))] for s in named}


def _finite(name: str, value: Any) -> Any:
    """JSON, which carries the options to the library, has no other numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        raise errors.ArgumentError(f"{name}: expected a finite number, got {value}")
    return value


def _plain(value: Any) -> Any:
    """What JSON has no form for: numpy's numbers as Python's."""
    if not isinstance(value, np.generic):
        raise errors.ArgumentTypeError(f"expected numbers, names and mappings of them as options, got {value!r}")
    return _finite("options", value.item())


def _offsets(stream: str, offsets: Any) -> list[float]:
    name = f"delta_timestamps['{stream}']"
    try:
        return [_finite(name, float(offset)) for offset in offsets]
    except (TypeError, ValueError) as error:
        if isinstance(error, errors.Error):
            raise
        raise errors.ArgumentTypeError(f"{name}: expected seconds in a list, got {offsets!r}") from None


def _indices(episodes: Any) -> list[int]:
    try:
        return [operator.index(episode) for episode in episodes]
    except TypeError:
        raise errors.ArgumentTypeError(f"episodes: expected a list of ints, got {episodes!r}") from None


class Loader:
    """Batches of time-aligned windows around moments drawn from a dataset.

    An iterator: ``for batch in loader`` gives the rest of the epoch; the next loop is the next epoch. The order is a
    keyed permutation, a pure function of (seed, epoch, step): the same bytes on every run, device and thread count.

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
        methods: ``"linear"`` (default for floats), ``"nearest"``, ``"previous"`` (default for integers and bool) or
            ``"next"``: one for all streams, or ``{stream: method}``.
        normalize: ``"mean_std"``, ``"min_max"`` or ``"q01_q99"`` (the last two to [-1, 1]) by the cache's statistics: one
            for all floating streams, or ``{stream: mode}``. A feature that never changes is only centred.
        max_gap_s: values interpolated across a longer gap are marked in ``is_pad``; one for all, or ``{stream: s}``.
        dtype: of the floating streams: float32, float64, float16 or bfloat16; or ``{stream: dtype}``. Integers and bool
            keep theirs.
        device: ``"cpu"`` or ``"cuda"``/``"cuda:N"``. The streams asked for are copied there once, whole.
        episodes: indices of the episodes to draw from; default all.
        snap_s: a target closer than this to a sample is that sample.
        seed, shuffle, drop_last: the order, and whether a last batch of fewer samples is left out.
        framework: ``"torch"`` (default where it is installed) or ``"numpy"`` (CPU only).

    Each batch is a dict: ``<stream>`` ``[B, T, ...]``, ``<stream>_is_pad`` ``[B, T]`` bool (outside the recording, in a
    gap beyond `max_gap_s`, or missing), ``time_ns`` ``[B]`` int64 (the anchor), ``episode_index`` ``[B]`` int64. Outside the
    recording a value is the edge sample's; where an episode lacks the stream it is 0.

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
        methods: str | Mapping[str, str] | None = None,
        normalize: str | Mapping[str, str] | None = None,
        max_gap_s: float | Mapping[str, float] | None = None,
        dtype: Any = "float32",
        device: Any = "cpu",
        episodes: Sequence[int] | None = None,
        snap_s: float = 1e-6,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        framework: str | None = None,
    ) -> None:
        if not isinstance(dataset, Dataset):
            raise errors.ArgumentTypeError(
                f"dataset: expected what robocache.open() gave, got {type(dataset).__name__}"
            )
        if (delta_timestamps is None) == (rate_hz is None):
            raise errors.ArgumentError(
                "delta_timestamps: expected either delta_timestamps or rate_hz with history or horizon"
            )
        if delta_timestamps is None:
            delta_timestamps = _window_offsets(rate_hz, history, horizon, dataset.streams)
        elif history is not None or horizon is not None:
            raise errors.ArgumentError("history, horizon: go with rate_hz, not with delta_timestamps")
        elif not isinstance(delta_timestamps, Mapping):
            raise errors.ArgumentTypeError(f"delta_timestamps: expected {{stream: seconds}}, got {delta_timestamps!r}")
        if not isinstance(batch_size, int) or isinstance(batch_size, bool):
            raise errors.ArgumentTypeError(f"batch_size: expected an int, got {batch_size!r}")
        self._torch = self._framework(framework)
        self._device = self._device_name(device)

        def of_stream(name: str, given: Any, stream: str, floats_only: bool = False) -> Any:
            if isinstance(given, Mapping):
                for key in given:
                    if key not in dataset.streams:
                        raise errors.ArgumentError(
                            f"{name}: no stream '{key}' in {dataset.path}; there are {', '.join(dataset.streams)}"
                        )
                return given.get(stream)
            # By its name: the dtype itself needs ml_dtypes where it is bfloat16, which torch does not.
            floating = stream not in dataset.streams or "float" in dataset.streams[stream]._dtype
            return given if floating or not floats_only else None

        options = {
            "streams": [
                {
                    "stream": stream,
                    "delta_timestamps": _offsets(stream, offsets),
                    "method": of_stream("methods", methods, stream),
                    "normalize": of_stream("normalize", normalize, stream, floats_only=True),
                    "max_gap_s": _finite("max_gap_s", of_stream("max_gap_s", max_gap_s, stream)),
                    "dtype": _lib.dtype_name(of_stream("dtype", dtype, stream))
                    if isinstance(dtype, Mapping) and stream in dtype
                    else None,
                }
                for stream, offsets in delta_timestamps.items()
            ],
            "batch_size": batch_size,
            "anchor": anchor,
            "anchor_hz": _finite("anchor_hz", anchor_hz),
            "episodes": None if episodes is None else _indices(episodes),
            "snap_s": _finite("snap_s", snap_s),
            "shuffle": shuffle,
            "drop_last": drop_last,
            "dtype": "float32" if isinstance(dtype, Mapping) else _lib.dtype_name(dtype),
            "device": self._device,
        }
        self._handle = _open(dataset._handle, json.dumps(options, default=_plain))
        described = json.loads(_describe(self._handle))
        self.dataset = dataset
        self.batch_size = batch_size
        self.num_samples: int = described["anchors"]
        """Samples an epoch: the anchors there are."""
        self.anchor: str | None = described["anchor"] or None
        self._steps: int = described["steps_per_epoch"]
        self._names = [array["name"] for array in described["arrays"]]
        self.load_state_dict({"seed": seed, "epoch": 0, "step": 0})
        # An array of the framework among a call's arguments is what makes the library allocate and answer in it.
        self._like, self._exchange = None, 0
        if self._torch is not None:
            self._exchange = _lib.exchange_api(self._torch.Tensor)
            self._like = self._torch.empty(0, dtype=self._torch.uint8, device=self._device)
        else:
            for array in described["arrays"]:
                _lib.numpy_dtype(array["dtype"])  # refuses what numpy cannot hold

    @staticmethod
    def _framework(name: str | None) -> Any | None:
        if name not in (None, "torch", "numpy"):
            raise errors.ArgumentError(f"framework: expected 'torch' or 'numpy', got {name!r}")
        if name == "numpy" or (name is None and importlib.util.find_spec("torch") is None):
            return None
        import torch

        return torch

    def _device_name(self, device: Any) -> str:
        name = str(device)
        if name == "cpu" or not name.startswith("cuda"):
            return name
        if self._torch is None:
            raise errors.ArgumentError(
                f"device: framework 'numpy' is on the CPU, got {name!r}; CUDA batches need torch"
            )
        if reason := _lib.function("cuda_unavailable_reason")():
            raise errors.DeviceError(f"device: {name!r} cannot be used: {reason}")
        return f"cuda:{self._torch.cuda.current_device()}" if name == "cuda" else name

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> dict[str, Any]:
        step = self.step
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

    def state_dict(self) -> dict[str, int]:
        """What :meth:`load_state_dict` needs to go on with the batch after the last one given; JSON-able."""
        return {"seed": self.seed, "epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes to that place at once, whatever its distance."""
        if not isinstance(state, Mapping):
            raise errors.ArgumentTypeError(f"state: expected what state_dict() gave, got {type(state).__name__}")
        for key in ("seed", "epoch", "step"):
            value = state.get(key)
            if not isinstance(value, int) or isinstance(value, bool):
                raise errors.ArgumentTypeError(f"{key}: expected an int, got {value!r}")
            largest = self._steps if key == "step" else 2**63 - 1
            if not 0 <= value <= largest:
                raise errors.ArgumentError(f"{key}: expected an int in [0, {largest}], got {value}")
        self.seed, self.epoch, self.step = state["seed"], state["epoch"], state["step"]
