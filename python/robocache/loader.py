"""Makes training batches from a cache: by one kernel launch each on a GPU, else by threads on the CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import textwrap
import zlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import takewhile
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from . import _lib, errors
from ._check import real, whole, wholes
from ._operation import Array
from ._printable import printable, warn
from .actions.conversions import as_recorded
from .affine import AffineOf
from .dataset import Dataset
from .explanation import Explanation, Placement
from .findings import enforce
from .former_options import takes_former_options
from .installation import lacks_kernels
from .iteration import BatchesInOrder, Position
from .loader_options import as_window, chosen_by, of_type, open_loader
from .options import Anchors, Memory, Normalization, Ranks, Window, copied
from .sources import Mixture, Source, as_sources
from .spec import Spec
from .text_keys import SampleAnchors, hashes

if TYPE_CHECKING:
    import torch

_describe = _lib.function("loader_describe")
_spec = _lib.function("loader_spec")
_next = _lib.function("loader_next")
_slot = _lib.function("loader_slot")
_gather = _lib.function("loader_gather")
_anchors = _lib.function("loader_anchors")
_change_weights = _lib.function("loader_change_weights")
_bad_frames = _lib.function("loader_bad_frames")
_check_tolerance = _lib.function("loader_check_tolerance")
_memory = _lib.function("batch_memory")
_array = _lib.function("batch_array")
_arrays = _lib.function("batch_arrays")
_cuda_unavailable = _lib.function("cuda_unavailable_reason")
_cuda_devices = _lib.function("cuda_device_count")
_compute_capability = _lib.function("cuda_device_compute_capability")
# _arrays needs the GIL. The others are so short that releasing it would take longer.
_memory.release_gil = _array.release_gil = _arrays.release_gil = False


_TRANSFORM = zlib.crc32(b"transform")  # keeps these hashes apart from others of the same anchor


def _rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Returns rank and world size: the arguments, else torch.distributed's, else those in torchrun's environment."""
    if (rank is None) != (world_size is None):
        raise errors.ArgumentError(
            f"ranks: expected both rank and world_size or neither, got {rank!r} and {world_size!r}"
        )
    if rank is not None:
        return whole("ranks.rank", rank), whole("ranks.world_size", world_size)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _int_in_environment("RANK"), _int_in_environment("WORLD_SIZE")
    return 0, 1


def _int_in_environment(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise errors.ArgumentError(
            f"{name}: expected an int in the environment, got {os.environ[name]!r}; ranks=Ranks(rank=, world_size=) "
            "overrides it"
        ) from None


class _Change(NamedTuple):
    """A change of the sources' weights, for one seed.

    described: the epoch, the samples drawn in it before the change, and the weights.
    handle: the library's handle of the weights, for the positions from then on.
    """

    seed: int
    described: tuple[int, int, dict[str, float]]
    handle: Any


def _check_weights(weights: Any) -> dict[str, float]:
    if not isinstance(weights, Mapping):
        raise errors.ArgumentTypeError(f"weights: expected {{name of a source: weight}}, got {weights!r}")
    return {_lib.text("weights", name): real(f"weights[{name!r}]", x) for name, x in weights.items()}


class LoaderWarning(UserWarning):
    """A loader's batches may not hold what you expect. The message gives the numbers, and how to change it."""


class Loader(BatchesInOrder):
    """Batches of time-aligned windows around moments drawn from datasets.

    A loader is an iterator: ``for batch in loader`` is an epoch, or after :meth:`load_state_dict` the rest of it. The order is
    a pure function of (seed, epoch, position), made of keyed permutations: the samples and their order do not depend on the
    batch size, the number of ranks and threads, or the device. Neither do their bytes, except for curves and rotations, which
    agree between CPU and CUDA within the bounds of docs/rules.md. docs/loader.md shows batches.

    Args:
        dataset: a :class:`Dataset`, the path of a cache, or a :class:`Mixture` (or a list of :class:`Source`).
        batch_size: B, the samples in a batch of each rank.
        delta_timestamps: ``{key: Window}``: the keys of the batch and the values of each. A list of offsets, in seconds from
            the sample's anchor, stands for ``Window(offsets)``; None for ``Window()``, the value at the anchor. A key is a
            stream's name, or the name that its source gives the stream.
        default: a :class:`Window` without offsets. Its fields hold where a key's own window has None.
        anchors: the moments that are drawn: an :class:`Anchors`, or the name of the stream whose ticks they are.
        episodes: the episodes to draw from: their indices, or a condition as :meth:`Dataset.select` takes it. None: all. An
            episode listed twice comes twice.
        missing: what happens with episodes that have no row of a key, although the source has the stream. ``"pad"``: they are
            drawn, the values are 0 and padding, and a :class:`LoaderWarning` counts them; ``"drop"``: they are not drawn;
            ``"error"``: an ArgumentError. Episodes without the anchor stream, or by anchors of a rate without any row, are
            never drawn. ``Anchors(edges="drop")`` leaves out those without a key, and does not warn.
        normalization: a :class:`Normalization`: the statistics for the windows' ``normalize``. :meth:`normalize` does the same
            to any array, and :meth:`unnormalize` undoes it.
        return_age: whether batches have ``<key>_age`` too.
        snap_s: a target closer than this to a sample is the nearest sample, of two the earlier, in seconds.
        task_text: True: batches have ``task`` too, a list of str: the text of the task at the sample's anchor, from the
            first that there is: the stream whose attribute ``task`` is true (of several, the first with rows in the
            episode); LeRobot's ``task_index``; the first text stream called ``task``, ``tasks``, ``language_instruction``,
            ``natural_language_instruction`` or ``instruction``; in an episode without a row of these, its columns of these
            names, of a list the first text. Whole numbers have the texts of the table that the stream's attribute ``texts``
            names. None where there is no task. A name: the same from another stream, of texts or of numbers with a table of
            texts, such as ``"subtask_index"``. A stream of text may also be a key of `delta_timestamps`: see `texts` of
            :class:`Window`. :attr:`texts` has the table.
        on_bad_frame: ``"error"``: a frame that does not decode is a :class:`FrameError`, on CUDA at one of the next batches;
            ``"pad"``: it is black and padding, and :attr:`bad_frames` counts it.
        findings: what happens with errors that the doctor found earlier (:func:`robocache.doctor`; the loader does not run it).
            ``"warn"``: they are a :class:`DoctorWarning`; ``"strict"``: they are a FileError, and so is a cache that the doctor
            has not seen in its present state; None: they are ignored.
        device: ``"cpu"`` or ``"cuda"``/``"cuda:N"``. None: torch's current CUDA device if robocache and torch can both use it,
            else the CPU.
        framework: ``"torch"`` (default if it is installed) or ``"numpy"`` (CPU only).
        seed, shuffle: the order; without `shuffle` that of `episodes`.
        drop_last: whether an epoch leaves out its last samples if they are too few for a batch on every rank.
        memory: a :class:`Memory`: where the rows are held, and how far ahead batches are made.
        ranks: a :class:`Ranks`: this process among those that share each global batch.

    The former options (``methods=``, ``anchor_hz=``, ``prefetch=``, ...) work too, with a DeprecationWarning that names the new
    form.

    Each batch is a dict: ``<key>`` ``[B, T, ...]``, ``<key>_is_pad`` ``[B, T]`` bool (outside the recording, in a gap
    beyond `max_gap_s`, beyond `tolerance_s`, or missing), with `return_age` ``<key>_age`` ``[B, T]`` int64 ns (the target
    time, before it snaps, minus the stamp of the sample used, or of the earlier one of two; outside, of the edge sample; of
    equal stamps any may count; the least int64 if there is none), ``time_ns`` ``[B]`` int64 (the anchor), ``episode_index``
    ``[B]`` int64 in its dataset, ``anchor_index`` ``[B]`` int64 (the anchor's index for :meth:`gather`; batches of
    :meth:`from_lerobot` lack it, as LeRobot's do). With a list of sources there is also ``dataset_index`` ``[B]`` int64,
    the index in that list, and with `pad_features` ``<key>_feature_is_pad`` ``[B, D]`` bool. Outside the recording a value
    is the edge sample's, in a gap and beyond `tolerance_s` the method's; if an episode or a source lacks the stream it is
    0, also after normalisation. A camera's ``<key>`` is ``[B, T, C, H, W]``, unless its `images` set another layout; a
    missing frame is black. If the camera has an intrinsic matrix there is ``<key>_intrinsics`` ``[B, 3, 3]`` float32 (``[B,
    T, 3, 3]`` with `per_frame`), adapted to crops and resizing. A key of texts is a list of str or int64 indices, without a
    mask and an age.

    :class:`Mixture` says how several sources are drawn.

    After a loop that ends by ``break``, the next loop is the next epoch. Loops may be nested, such as ``next(iter(loader))`` or
    an evaluation in a training loop: each ``iter()`` is a whole epoch, and the outer loop then continues. ``next(loader)``
    continues the newest loop. Several threads may loop over one loader: each batch of the epoch goes to one of them, and all
    their loops end with the epoch. A loader pickles as its datasets' paths, its arguments and its position, so the copy
    continues with the next batch. If the device, rank and world size are the defaults, they are chosen again on unpickling.
    The `stream` of :class:`Memory` is dropped. If a cache was appended to or replaced since, unpickling is a FileError.

    Attributes:
        device: the device of the batches: ``"cpu"`` or ``"cuda:N"``.
        num_anchors: the number of moments that can be drawn.
        num_samples: the samples in an epoch, of all ranks together.
        anchor: the stream whose ticks are the anchors, or None with a rate or several sources.
        batch_size, dataset, rank, world_size: the arguments, or the values found for them.
        seed, epoch, samples: the position in the order. All ranks together have returned `samples` samples of the epoch.
            :meth:`load_state_dict` changes the position.

    Warns:
        LoaderWarning: drawn episodes lack a key; by up to 2,048 anchors per source, more than half of a key's steps are
            padding, windows without `max_gap_s` interpolate gaps of over 0.5 s and 10 periods, or rows store angles beyond
            [-pi, pi); a stream of nominal clock is interpolated between its rows, because the anchors are of a recorded clock;
            features are not scaled, because of `min_spread` or because their statistics give no scale; the dtype makes numbers
            infinite, or float64 becomes float32 unasked and a feature loses more than 2^-12 of its std; with `task_text` or a
            key of texts, a source has no texts, or an episode has several and nothing says when each one applies.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
        DeviceError: no such device, or the streams do not fit its memory.
        FileError: ``findings="strict"`` refuses the cache.

    Example:
        >>> from robocache import Window
        >>> windows = {"observation.state": Window.steps(50, history=2), "action": Window.steps(50, horizon=16)}
        >>> loader = robocache.Loader(ds, batch_size=256, delta_timestamps=windows, default=Window(normalize="mean_std"))
        >>> next(loader)["action"].shape
        torch.Size([256, 16, 7])
    """

    _unpickled = False  # an unpickled copy does not repeat the loader's warnings

    @takes_former_options
    def __init__(
        self,
        dataset: Dataset | str | os.PathLike[str] | Source | Sequence[Source] | Mixture,
        *,
        batch_size: int,
        delta_timestamps: Mapping[str, Window | Sequence[float] | None],
        default: Window | None = None,
        anchors: Anchors | str | None = None,
        episodes: Any = None,
        missing: str = "pad",
        normalization: Normalization | None = None,
        return_age: bool = False,
        snap_s: float = 1e-6,
        task_text: bool | str = False,
        on_bad_frame: str = "error",
        findings: str | None = "warn",
        device: str | torch.device | None = None,
        framework: str | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        memory: Memory | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        own_arguments = {name: value for name, value in locals().items() if name not in ("self", "dataset")}
        # Copies, so that later changes by the caller have no effect.
        self._arguments = {name: copied(x) for name, x in own_arguments.items()}
        sources, mixture = as_sources(dataset)
        self.dataset = sources[0].dataset if mixture is None else mixture
        enforce((source.dataset.path for source in sources), findings)
        self._torch = self._framework(framework)
        self.device = self._device_name(device)
        self._memory, ranks = of_type("memory", memory, Memory), of_type("ranks", ranks, Ranks)
        self._shards_episodes = ranks.shard_episodes
        self.rank, self.world_size = _rank_and_world_size(ranks.rank, ranks.world_size)
        self._handle, self._texts, own_notes = open_loader(
            sources, mixture, self._arguments, device=self.device, rank=self.rank, world_size=self.world_size
        )
        described = json.loads(_describe(self._handle))
        self.batch_size = whole("batch_size", batch_size)
        self.num_anchors: int = described["anchors"]
        self.num_samples: int = described["samples"]
        self.anchor: str | None = described["anchor"] or None
        self._steps: int = described["steps_per_epoch"]
        self._is_weighted: bool = described["weighted"]
        self._changes: list[_Change] = []
        self._fingerprint: str = described["fingerprint"]
        self._names = tuple(array["name"] for array in described["arrays"])
        self._chosen_by = chosen_by(
            sources, self._arguments["anchors"], self.num_anchors, described["anchors_before_filter"]
        )
        notes = [*described["notes"], *own_notes, *(note for key in self._texts.values() for note in key.notes)]
        for note in notes if self.rank == 0 and not self._unpickled else ():
            warn(note, LoaderWarning)
        handle = self._handle  # not self: in a reference cycle the loader's memory would wait for the garbage collector
        self._affine_of = AffineOf(lambda source: Spec(_spec(handle, source)).keys, len(sources))
        self._windows = {key: as_window(key, given) for key, given in self._arguments["delta_timestamps"].items()}
        self._transforms = self._image_transforms(default or Window())
        self._placements = [Placement(**placement) for placement in described["placements"]]
        self._reused: dict[tuple[int, int], dict[str, Any]] | None = {} if self._memory.reuse_buffers else None
        self._stream = self._check_stream(self._memory.stream)
        self._ahead: tuple[Any, ...] | None = None  # the position, the batch, and the CUDA event after its work
        if self._stream is not None and self._memory.reuse_buffers:
            raise errors.ArgumentError(
                "memory.stream: goes without reuse_buffers, since each batch is made while the one before is used"
            )
        self._begin(seed, drop_last)
        # An empty array for each call: the library allocates in its framework and on its device.
        self._like: Any = None
        # torch's exchange API: with it the library makes tensors itself, and puts them in the list whose id is passed.
        self._exchange: int | None = None
        if self._torch is not None:
            self._exchange = _lib.exchange_api(self._torch.Tensor) or None
            self._like = self._torch.empty(0, dtype=self._torch.uint8, device=self.device)
        else:
            self._views = [
                (array["name"], _lib.numpy_dtype(array["dtype"]), array["shape"], array["offset"])
                for array in described["arrays"]
            ]

    @classmethod
    def from_lerobot(
        cls,
        path: str | os.PathLike[str],
        *,
        delta_timestamps: Mapping[str, Window | Sequence[float]] | None = None,
        episodes: Any = None,
        cache: str | os.PathLike[str] | None = None,
        on_error: str = "stop",
        frames: str | None = None,
        video: bool = True,
        follow_links: bool = False,
        **options: Any,
    ) -> Loader:
        """Returns a loader of LeRobot's batches: values, masks, keys and types are as from its dataset in a DataLoader.

        The dataset is read once, into a cache that is rebuilt when one of the dataset's files changes. Of several processes one
        builds the cache and the others wait.

        Args:
            path: the dataset's folder (v2.0, v2.1 or v3.0).
            delta_timestamps: for each key with a window, its offsets in seconds from the frame, or a :class:`Window`. Without a
                method the offsets must be frames (within 1e-4 s), as in LeRobot. ``Window(dtype=...)`` without offsets is the
                frame's own value.
            episodes: LeRobot's numbers of the episodes to draw from, or a condition as :meth:`Dataset.select` takes it; default all.
            cache: the cache's folder; by default a folder for each path, in ``robocache/`` in the user's cache folder
                ($XDG_CACHE_HOME, else ~/.cache).
            on_error: ``"stop"`` or ``"skip"``, as for :func:`robocache.ingest`: what happens with an episode that cannot be
                read. An episode without the video of a camera is not drawn.
            frames: how a row's frame is found in a video, as for :func:`robocache.ingest`: ``"by-time"`` or ``"by-index"``.
                None: as in the cache if there is one, else by time.
            video: whether batches have the cameras too, as LeRobot's do: float32 from 0 to 1, channels first, unless a window's
                `images` differ.
            follow_links: follow symlinks that lead out of the folder, as for :func:`robocache.ingest`. Those of a snapshot of
                the Hugging Face Hub are followed anyway.
            options: `batch_size` and all others of :class:`Loader`. `default` does not apply to LeRobot's index columns.

        Each batch is a dict. A key in `delta_timestamps` has ``<key>`` ``[B, T, ...]`` and ``<key>_is_pad`` ``[B, T]`` bool.
        Every other key has ``<key>`` ``[B, ...]``, the frame's own value; a camera that lacks frames of some rows also has
        ``<key>_is_pad`` ``[B]``. These keys include ``timestamp`` ``[B]`` float32, ``frame_index``, ``index``,
        ``episode_index`` and ``task_index`` ``[B]`` int64. Floats are float32, integers int64.

        Raises:
            FileError: as :func:`robocache.ingest`; or `cache` is of another dataset.
            ArgumentError, ArgumentTypeError: as :class:`Loader`.

        Example:
            >>> loader = robocache.Loader.from_lerobot("pusht", cache="pusht.cache", batch_size=64,
            ...                                        delta_timestamps={"action": [i / 10 for i in range(16)]})
            >>> batch = next(loader)
            >>> batch["action"].shape, batch["index"].shape
            (torch.Size([64, 16, 2]), torch.Size([64]))
        """
        from .lerobot import LeRobotLoader, open_cache

        return LeRobotLoader(
            open_cache(path, cache=cache, on_error=on_error, frames=frames, video=video, follow_links=follow_links),
            video=video,
            delta_timestamps=delta_timestamps,
            episodes=episodes,
            **options,
        )

    @property
    def bad_frames(self) -> int:
        """The number of frames that did not decode, with ``on_bad_frame="pad"``, in the batches returned so far. A frame
        that a CUDA device decodes counts when the device has tried it. With the `stream` of :class:`Memory` the frames of the
        next batch count too."""
        return int(_bad_frames(self._handle))

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
            if torch is None or _cuda_unavailable() or not torch.cuda.is_available():
                return "cpu"
            device = "cpu" if lacks_kernels(_compute_capability(torch.cuda.current_device())) else "cuda"
        # The CPU may have an index in torch: Accelerate sets one on several ranks.
        name = "cpu" if getattr(device, "type", None) == "cpu" else _lib.text("device", str(device))
        if not name.startswith("cuda"):
            return name  # "cpu", or a name that the library refuses
        if torch is None:
            raise errors.ArgumentError(
                f"device: framework 'numpy' is on the CPU, got {name!r}; CUDA batches need torch"
            )
        if reason := _cuda_unavailable():
            raise errors.DeviceError(f"device: {name!r} cannot be used: {reason}")
        name = f"cuda:{torch.cuda.current_device()}" if name == "cuda" else name
        index = name.removeprefix("cuda:")
        is_here = index.isdecimal() and int(index) < _cuda_devices()
        if is_here and (reason := lacks_kernels(_compute_capability(int(index)))):
            raise errors.DeviceError(f"device: {name!r} cannot be used: {reason}")
        return name

    def _image_transforms(self, default: Window) -> dict[str, Any]:
        """Returns the `transform` of each camera that has one."""
        images = {key: window.images or default.images for key, window in self._windows.items()}
        transforms = {key: x.transform for key, x in images.items() if x is not None and x.transform is not None}
        cameras = self.spec_of(0).keys if transforms else {}
        return {key: transform for key, transform in transforms.items() if cameras.get(key, {}).get("images")}

    def _check_stream(self, stream: Any) -> Any:
        if stream is None:
            return None
        if self._torch is None or not isinstance(stream, self._torch.cuda.Stream):
            raise errors.ArgumentTypeError(f"memory.stream: expected a torch.cuda.Stream, got {stream!r}")
        if str(stream.device) != self.device:
            raise errors.ArgumentError(f"memory.stream: expected one of {self.device}, got one of {stream.device}")
        return stream

    def _complete(
        self,
        batch: dict[str, Any],
        position: Position,
        indices: np.ndarray | None = None,
        draws: np.ndarray | None = None,
    ) -> dict[str, Any]:
        """Adds the texts to a batch and applies each `transform`. The batch is at a position, or of the anchors `indices`. The
        host computes the anchors itself, so this does not wait for the device."""
        if self._texts or self._transforms:
            seed, epoch, samples, _, weights = position
            anchor_indices = None if indices is None else _lib.from_numpy(indices)
            anchors = SampleAnchors(
                *_lib.to_numpy(_anchors(self._handle, seed, epoch, samples, weights, anchor_indices)).T
            )
            if draws is not None:
                anchors = anchors._replace(number=draws)
            for key in self._texts.values():
                texts = key.at(anchors, seed, epoch)
                batch[key.name] = self._on_device(texts) if key.as_indices else texts
            if self._transforms:
                hash_values = hashes(seed % 2**64, epoch, anchors.number, _TRANSFORM) >> np.uint64(1)
                seeds = self._on_device(hash_values.astype(np.int64))
                for name, transform in self._transforms.items():
                    batch[name] = self._check_images(name, transform(batch[name], seeds), len(seeds))
        return batch

    def _check_images(self, key: str, images: Any, samples: int) -> Any:
        """Checks and returns the images that a `transform` returned."""
        kind = np.ndarray if self._torch is None else self._torch.Tensor
        device = str(getattr(images, "device", "")) if self._torch is not None else self.device
        if isinstance(images, kind) and images.ndim > 0 and len(images) == samples and device == self.device:
            return images
        raise errors.ArgumentError(
            f"delta_timestamps['{key}'].images.transform: expected a {kind.__name__} of {samples} samples on {self.device} "
            f"as its result, got {f'{tuple(images.shape)} on {device}' if isinstance(images, kind) else repr(images)}"
        )

    def _on_device(self, array: np.ndarray) -> Any:
        if self._torch is None:
            return array
        tensor = self._torch.from_numpy(array)
        return tensor if self.device == "cpu" else tensor.pin_memory().to(self.device, non_blocking=True)

    def _batch_at(self, position: Position) -> dict[str, Any] | None:
        return self._batch(position) if self._stream is None else self._batch_ahead(position)

    def _batch(self, position: Position, stream: int | None = None) -> dict[str, Any] | None:
        """Returns the batch at a position, made on a CUDA stream, by default the current one; None at the epoch's end."""
        arrays = [None] * len(self._names)
        batch = _next(self._handle, self._like, *position, stream, self._exchange, id(arrays))
        if batch is None:
            return None
        if batch is True:
            return dict(zip(self._names, arrays, strict=True))
        samples = min(-(-(self.num_samples - position[2]) // self.world_size), self.batch_size)
        if self._reused is None:
            return self._as_dict(batch, samples)
        key = batch, samples
        if key not in self._reused:
            self._reused[key] = self._as_dict(_slot(self._handle, *key), samples)
        return dict(self._reused[key])

    def _batch_ahead(self, position: Position) -> dict[str, Any] | None:
        """Returns the batch at a position, whose work on the loader's own stream began one batch ago. The batch's
        memory is allocated on the current stream, so the loader's stream first waits for the work queued there, which may still
        read the former contents."""
        current = self._torch.cuda.current_stream(self.device)  # type: ignore[union-attr]

        def queue_batch(position: Position) -> tuple[Any, ...]:
            self._stream.wait_stream(current)
            return position, self._batch(position, self._stream.cuda_stream), self._stream.record_event()

        if self._ahead is not None and self._ahead[0] != position:
            # The batch is still being written, and the allocator may give its memory to the current stream's next work.
            current.wait_event(self._ahead[2])
            self._ahead = None
        if self._ahead is None:
            self._ahead = queue_batch(position)
        batch: dict[str, Any] | None
        _, batch, made_event = self._ahead
        if batch is None:
            return None
        seed, epoch, samples, *rest = position
        samples = self._samples_after_batch(samples)
        try:
            self._ahead = queue_batch(
                (seed, epoch + 1, 0, *rest) if samples == self.num_samples else (seed, epoch, samples, *rest)
            )
        except errors.Error:
            self._ahead = None  # the call for that batch raises the error again
            current.wait_stream(self._stream)  # work queued for that batch writes to memory that is freed now
        current.wait_event(made_event)
        return batch

    def _as_dict(self, batch: Any, samples: int) -> dict[str, Any]:
        if self._exchange:
            arrays = [None] * len(self._names)
            _arrays(self._handle, batch, self._exchange, id(arrays))
            return dict(zip(self._names, arrays, strict=True))
        if self._torch is not None:
            return {name: _array(batch, self._like, index) for index, name in enumerate(self._names)}
        memory = _lib.to_numpy(_memory(batch))
        return {
            name: np.ndarray((samples, *shape), dtype, memory, offset) for name, dtype, shape, offset in self._views
        }

    def __del__(self) -> None:
        if getattr(self, "_ahead", None) is not None:
            self._ahead[2].synchronize()  # type: ignore[index]  # the batch is still being written, and its memory is freed now

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return self._steps

    def __getitem__(self, index: Any) -> NoReturn:
        """Refuses torch's DataLoader, which calls this: a loader has no items."""
        raise errors.ArgumentTypeError(
            "a Loader gives whole batches and needs no DataLoader: use `for batch in loader`, or loader.gather(indices) for "
            "samples by index; LeRobotDataset is a dataset for a DataLoader"
        )

    def gather(self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> dict[str, Any]:
        """Returns the batch of these anchors, in this order: at most `batch_size` of them, numbered over all sources from 0 to
        `num_anchors`. The position in the order does not change. Random crops and colours of frames depend on its seed and
        epoch, and on the anchor. On CUDA it waits for the batch.

        Args:
            indices: a list, or an array or tensor of one axis, of any integer dtype and on any device.

        Raises:
            ArgumentError, ArgumentTypeError: an index is no anchor; the message names it.
        """
        return self._gather_batch(indices, self.seed, self.epoch)

    def _gather_batch(self, indices: Any, seed: int, epoch: int, draws: np.ndarray | None = None) -> dict[str, Any]:
        """Does the work of :meth:`gather`. Random crops and the like of sample i come from (seed, epoch, draws[i]); without
        `draws`, from the anchor's index."""
        if indices is None:
            raise errors.ArgumentTypeError("indices: expected a list of ints, got None")
        anchors = wholes("indices", indices)
        draw_numbers = None if draws is None else _lib.from_numpy(draws)
        batch = _gather(self._handle, self._like, _lib.from_numpy(anchors), seed, epoch, draw_numbers)
        return self._complete(self._as_dict(batch, len(anchors)), (seed, epoch, 0, 0, None), anchors, draws)

    def set_weights(self, weights: Mapping[str, float], *, epoch: int | None = None) -> None:
        """Changes the weights of a mixture's sources, from the next batch on, or from the start of a later epoch.

        Each source and class continues with its next anchor: none is skipped or repeated. A batch, also with draws that fill it
        up, has the weights of its first draw. A state holds all changes, also for later epochs. All ranks must set the same
        weights between the same two batches, since no rank sees the weights of the others. Otherwise some samples may be drawn
        twice and others never.

        Args:
            weights: ``{name: weight}`` with every source, by its :attr:`Source.name`. A source of weight 0 is not drawn.
            epoch: the first epoch with these weights, which hold until the next change; it must not have begun. None: they hold
                from the next batch on, the position that :meth:`state_dict` returns.

        Raises:
            ArgumentError, ArgumentTypeError: the loader was made without weights; a name is missing or unknown; a weight is
                negative, not finite, or too small for one draw of 65,536, or all are 0. The message names the argument.

        Example:
            >>> sources = [robocache.Source(kitchen, 1, name="kitchen"), robocache.Source(garage, 1, name="garage")]
            >>> loader = robocache.Loader(sources, batch_size=64, delta_timestamps={"action": None})
            >>> for epoch, weights in {0: {"kitchen": 3, "garage": 1}, 5: {"kitchen": 0, "garage": 1}}.items():
            ...     loader.set_weights(weights, epoch=epoch)
            >>> int((next(loader)["dataset_index"] == 0).sum())
            48
        """
        checked = _check_weights(weights)
        with self._lock:
            current = self._current()
            first_epoch = current.epoch + (current.samples > 0)
            if epoch is not None and not first_epoch <= whole("epoch", epoch) < 2**63:
                raise errors.ArgumentError(
                    f"epoch: expected one that has not begun, {first_epoch} or later, got {epoch}"
                )
            start = (current.epoch, current.samples) if epoch is None else (whole("epoch", epoch), 0)
            index = bisect_left(self._changes, start, key=lambda change: change.described[:2])
            later_changes = [change.described for change in self._changes[index:] if change.described[:2] != start]
            self._weights = self._replace_changes(
                current.seed, self._changes[:index], [(*start, checked), *later_changes]
            )

    def _replace_changes(
        self, seed: int, changes: list[_Change], new_changes: Sequence[tuple[int, int, dict[str, float]]]
    ) -> Any:
        """Replaces all changes of the weights by `changes` and then `new_changes`. Returns the handle of the last change."""
        for epoch, samples, weights in new_changes:
            last = changes[-1].handle if changes else None
            pairs = (x for pair in weights.items() for x in pair)
            handle = _change_weights(self._handle, last, seed, epoch, samples, *pairs)
            changes.append(_Change(seed, (epoch, samples, weights), handle))
        self._changes = changes
        return changes[-1].handle if changes else None

    def _weights_of(self, seed: int, state: Mapping[str, Any]) -> Any:
        if "weights" in state:
            listed = state["weights"]
            if not isinstance(listed, list | tuple) or not all(
                isinstance(x, Mapping) and {*x} == {"epoch", "samples", "weights"} for x in listed
            ):
                raise errors.ArgumentTypeError(f"weights: expected a result of state_dict(), got {listed!r}")
            changes_of_state = [
                (whole("epoch", x["epoch"]), whole("samples", x["samples"]), _check_weights(x["weights"]))
                for x in listed
            ]
        else:
            changes_of_state = [change.described for change in self._changes]
        unchanged = takewhile(
            lambda pair: pair[0][:2] == (seed, pair[1]), zip(self._changes, changes_of_state, strict=False)
        )
        changes = [change for change, _ in unchanged]
        return self._replace_changes(seed, changes, changes_of_state[len(changes) :])

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the order. If sources have weights, it also holds all changes by :meth:`set_weights`."""
        with self._lock:
            state = super().state_dict()
            if self._is_weighted:
                state["weights"] = [
                    {"epoch": epoch, "samples": samples, "weights": dict(weights)}
                    for epoch, samples, weights in (change.described for change in self._changes)
                ]
        return state

    def normalize(self, key: str, x: Array, dataset_index: Any = None) -> Array:
        """Normalises an array as the batch normalises a key's recorded values, such as for a policy's input.

        Args:
            key: one of the batch's floating keys. The values of a key that is not normalised stay as they are.
            x: ``[..., *shape]`` with the shape of the key's rows: numpy, or torch on any device; float64, float32, float16 or
                bfloat16.
            dataset_index: for a mixture, the source of each entry of the first axis: int64 ``[B]``, or one number for all. May
                be left out if all sources are normalised alike.

        Returns:
            An array of x's dtype, shape, framework and device, with gradients to x of any order. Rule 38 of docs/rules.md
            bounds its error.

        Raises:
            ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
        """
        return self._affine_of[_lib.text("key", key)].normalize(x, dataset_index)

    def unnormalize(self, key: str, x: Array, dataset_index: Any = None) -> Array:
        """The inverse of :meth:`normalize`, with the same arguments: a policy's output in the recording's units."""
        return self._affine_of[_lib.text("key", key)].unnormalize(x, dataset_index)

    def to_absolute(self, key: str, x: Array, batch: Mapping[str, Any], dataset_index: Any = None) -> Array:
        """Turns a policy's output for a key with ``Window(convert=...)`` back into recorded values: undoes the normalisation
        and each conversion.

        Args:
            key: one of the batch's keys with conversions.
            x: the policy's output, in the shape that the batch has: ``[B, T, E]``, or ``[B, E]`` for a window without offsets.
            batch: the batch, or a dict with ``<key>_base`` ``[B, D]``: on a robot its present state, in recorded units, with
                the features in the key's order. It may be empty if no conversion is relative to a state. With
                ``<key>_is_pad``, as a batch has it, samples without rows of the key or of the state, and steps of invalid
                rotations, are NaN; without it a quaternion, matrix or 6D of 0 is an error that names the row.
            dataset_index: as for :meth:`unnormalize`.

        Returns:
            ``[B, T, D]``, of x's dtype, framework and device, with gradients to x.

        Raises:
            ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.

        Example:
            >>> from robocache import Window, actions
            >>> windows = {"observation.state": Window(), "action": Window.steps(
            ...     50, horizon=16, convert=[actions.Relative("joints")], base="observation.state")}
            >>> loader = robocache.Loader(ds, batch_size=256, delta_timestamps=windows)
            >>> batch = next(loader)
            >>> loader.to_absolute("action", batch["action"], batch).shape
            torch.Size([256, 16, 7])
        """
        window = self._windows.get(_lib.text("key", key))
        if window is None or window.convert is None:
            keys = ", ".join(repr(name) for name, other in self._windows.items() if other.convert) or "none"
            raise errors.ArgumentError(f"key: expected one with conversions, which are {keys}, got {key!r}")
        given, x = x, self.unnormalize(key, x, dataset_index)
        one_step, has_base = window.offsets is None, window.base is not None
        absolute: Array = as_recorded(key, given, x, batch, window.convert, one_step=one_step, has_base=has_base)
        return absolute

    def __repr__(self) -> str:
        source = f"{len(as_sources(self.dataset)[0])} sources"
        if isinstance(self.dataset, Dataset):
            source = repr(self.dataset.path)
        arrays = textwrap.shorten(printable(", ".join((*self._names, *self._texts))), 160, placeholder=" ...")
        return f"robocache.Loader({source}, {self.num_samples} samples in batches of {self.batch_size} on {self.device}: {arrays})"

    def explain(self) -> Explanation:
        """Returns where each key's rows are held, why, and how large they are, with the options that chose the anchors. Prints
        as a table. Keys of texts are left out: their rows stay in the cache's files."""
        return Explanation(self._placements, self._chosen_by, on_cpu=self.device == "cpu")

    @property
    def texts(self) -> dict[str, tuple[str, ...]]:
        """For each key of texts all texts of the loader's sources, in a fixed order. The indices of ``Window(texts="indices")``
        are indices into this tuple. Tokenise them once, and take a batch's rows by index; -1 is no text."""
        return {name: key.texts for name, key in self._texts.items()}

    @property
    def spec(self) -> Spec:
        """The description of the batches as one value. It does not hold the `memory` options, the order and the tasks' texts.

        Raises:
            ArgumentError: there are several sources, each with its own spec: use :meth:`spec_of`.
        """
        if (sources := len(as_sources(self.dataset)[0])) > 1:
            raise errors.ArgumentError(
                f"spec: each of the {sources} sources has its own rows and normalisation; use spec_of(source)"
            )
        return self.spec_of(0)

    def spec_of(self, source: int) -> Spec:
        """Returns the spec of a source's samples, by its index in the mixture.

        Raises:
            ArgumentError: there is no such source.
        """
        if whole("source", source) < 0:
            raise errors.ArgumentError(f"source: expected 0 or more, got {source}")
        return Spec(_spec(self._handle, source))

    def save_spec(self, path: str | os.PathLike[str]) -> None:
        """Writes :attr:`spec` for :meth:`Spec.load`. ``loader.spec_of(source).save(path)`` writes the spec of one source."""
        self.spec.save(path)

    def check_tolerance(self) -> None:
        """Checks that no anchor has a target within the recording whose sample is farther than `tolerance_s`.

        Raises:
            ArgumentError: there is such an anchor; the message names the stream, the episode, the time and the distance.
        """
        _check_tolerance(self._handle)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the datasets' paths, the arguments and :meth:`state_dict`, so that the copy continues this loader's order."""
        return {"dataset": self.dataset, "arguments": self._arguments, "state": self.state_dict()}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        self._unpickled = True
        Loader.__init__(self, pickled["dataset"], **pickled["arguments"])
        self.load_state_dict(pickled["state"])

    def _check_fingerprint(self, fingerprint: Any) -> None:
        if fingerprint == self._fingerprint:
            return
        then, now = fingerprint.split("-") if isinstance(fingerprint, str) else [], self._fingerprint.split("-")
        if len(then) == len(now) + 1:  # EpisodeLoader adds one part
            raise errors.ArgumentError(f"state: expected one of a Loader, got one of an EpisodeLoader, {fingerprint!r}")
        if len(then) != len(now):
            raise errors.ArgumentError(f"fingerprint: expected a result of state_dict(), got {fingerprint!r}")
        same_anchors, same_data, same_selection, same_order = (x == y for x, y in zip(then, now, strict=True))
        if not same_anchors:
            what = f"of another dataset or selection: {then[0]} anchors then, {now[0]} now"
        elif not same_selection:
            what = f"of another dataset or selection, though both have {now[0]} anchors"
        elif not same_data:
            what = f"of another dataset, whose {now[0]} anchors lie at the same times and whose values differ"
        else:
            what = f"of another order of the same {now[0]} anchors"
        tips = []
        if not (same_anchors and same_selection):
            tips.append("episodes (if `robocache append` was run since, pass the indices of the earlier ones), anchors")
        if not same_order:
            tips.append("shuffle, weights, weight_by, balance, temperature, samples_per_epoch, shard_episodes")
        if not same_order and self._is_weighted:
            tips.append("or use the earlier weights and call set_weights after the state is loaded")
        raise errors.ArgumentError(
            f"state: expected one of this dataset, selection and order, got one {what}"
            + (f"; compare {', '.join(tips)}" if tips else "")
            + "; without its 'fingerprint' a state loads unchecked"
        )
