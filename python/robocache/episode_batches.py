"""Batches of whole episodes, or of their parts, of unequal lengths: padded, or packed one after the other."""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from . import _lib, errors
from ._check import truth, whole
from ._printable import warn
from .dataset import Dataset
from .iteration import BatchesInOrder, Position
from .loader import Loader, LoaderWarning
from .loader_options import as_window
from .options import Memory, Ranks, Window, copied
from .sources import Mixture, Source, as_sources
from .text_keys import hashes

_episodes = _lib.function("loader_episodes")

_FORMS = ("padded", "packed")
# The arrays with one value for each segment, and their columns in the table of episodes.
_COLUMNS = {"dataset_index": 0, "episode_index": 1}
_RESERVED = ("lengths", "offsets", "is_pad")
# A different salt for each kind of hash.
_ORDER, _BATCHES, _CUTS = (zlib.crc32(name) for name in (b"order", b"batches", b"cuts"))
_INT64_MIN = -(2**63)


class EpisodeLoader(BatchesInOrder):
    """Batches of segments: whole episodes, or parts of them of `min_steps` to `max_steps` steps. A step is an anchor.

    Each segment is drawn once per epoch. With `max_steps` an epoch cuts each episode into segments that together hold each of
    its steps once; they are about equally long, near the mean of `min_steps` and `max_steps`. With `shuffle` the cuts differ in
    each epoch. Order and cuts are a pure function of (seed, epoch, position).

    Args:
        dataset: as for :class:`Loader`, with sources without weights.
        batch_size: B, the segments in a batch of each rank.
        delta_timestamps: ``{key: Window}``: the keys of the batch and their values at each step. ``Window()`` is the step's own
            value.
        form: ``"padded"``: ``<key>`` is ``[B, T, ...]``, T the longest length of the batch; ``"packed"``: ``[sum of lengths,
            ...]``, segment after segment, as for ``torch.nested.nested_tensor_from_jagged(batch[key], batch["offsets"])``.
        min_steps: shorter episodes are not drawn; a :class:`LoaderWarning` counts them.
        max_steps: the most steps of a segment, at least 2 * `min_steps` - 1, so that an episode of any length can be cut into
            segments of allowed lengths. None: segments are whole episodes.
        bucket: the number of batches whose segments are sorted by length together, so that a batch has similar lengths. The
            order of the batches is still drawn. None: no sorting.
        seed, shuffle, drop_last, ranks: as for :class:`Loader`.
        options: further options of :class:`Loader`, such as `anchors`, `episodes` and `device`.

    Each batch is a dict with the arrays of :class:`Loader`, for steps instead of samples, and int64 ``lengths`` ``[B]``.
    ``episode_index`` and ``dataset_index`` are ``[B]``. A packed batch has int64 ``offsets`` ``[B + 1]``: segment i is rows
    ``offsets[i]:offsets[i + 1]``. A padded batch has ``is_pad`` ``[B, T]``, true after a segment's end. In those steps values
    are 0, masks true, texts None, ages and goals' offsets the least int64, and indices of texts, anchors and goals' episodes -1.
    All steps of a segment share the random draws of crops, flips and colours of frames, and of texts. Rank r has each
    `world_size`-th segment of a global batch from r on.

    Loops, states and pickling work as in :class:`Loader`. A batch is made when it is requested, never ahead. With `bucket` the
    order depends on the batch size and the number of ranks. On CUDA the loop waits until the device has gathered a batch. Every
    batch takes as much memory as the `batch_size` longest segments would need.

    Attributes:
        loader: the :class:`Loader` that gathers the steps. Its `normalize`, `texts`, `spec` and `explain` apply to these
            batches. Its `to_absolute` takes one step a row, as in a packed batch: of a padded batch pass
            ``array[~batch["is_pad"]]``, since the base of padding is 0, which as a quaternion is an error that names the row.
        num_samples: the segments in an epoch, of all ranks together.
        batch_size, rank, world_size, seed: the arguments, or the values found for them.
        epoch, samples: the position in the order: all ranks together have returned `samples` segments of the epoch.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.

    Example:
        >>> loader = robocache.EpisodeLoader(ds, batch_size=2, delta_timestamps={"action": None}, max_steps=50, form="packed")
        >>> batch = next(loader)
        >>> batch["lengths"].shape, batch["offsets"].shape
        (torch.Size([2]), torch.Size([3]))
        >>> bool(len(batch["action"]) == batch["offsets"][-1])
        True
    """

    def __init__(
        self,
        dataset: Dataset | str | os.PathLike[str] | Source | Sequence[Source] | Mixture,
        *,
        batch_size: int,
        delta_timestamps: Mapping[str, Window | Sequence[float] | None],
        form: str = "padded",
        min_steps: int = 1,
        max_steps: int | None = None,
        bucket: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        ranks: Ranks | None = None,
        **options: Any,
    ) -> None:
        own_arguments = {name: value for name, value in locals().items() if name not in ("self", "dataset", "options")}
        options = {name: copied(value) for name, value in options.items()}
        self._arguments = {name: copied(value) for name, value in own_arguments.items()} | options
        delta_timestamps = self._arguments["delta_timestamps"]
        if form not in _FORMS:
            raise errors.ArgumentError(f"form: expected 'padded' or 'packed', got {form!r}")
        self._packed = form == "packed"
        self._shuffle, self._drop_last = truth("shuffle", shuffle), truth("drop_last", drop_last)
        self.batch_size, self._min_steps = _above_0("batch_size", batch_size), _above_0("min_steps", min_steps)
        self._bucket = None if bucket is None else _above_0("bucket", bucket)
        self._max_steps = None if max_steps is None else _above_0("max_steps", max_steps)
        if self._max_steps is not None and self._max_steps < 2 * self._min_steps - 1:
            raise errors.ArgumentError(
                f"max_steps: expected at least 2 * min_steps - 1, {2 * self._min_steps - 1}, got {max_steps}"
            )
        self._dataset = opened = _open_without_weights(dataset)
        if isinstance(ranks, Ranks) and ranks.shard_episodes:
            raise errors.ArgumentError("ranks.shard_episodes: goes with Loader; here ranks share the episodes")
        loader_options = {"delta_timestamps": delta_timestamps, "shuffle": False, **options}
        self._episodes = _episodes_of(opened, loader_options)
        note = self._cut_into_segments()
        most = np.sort(self._most_steps())[-self.batch_size :]
        rows = int(most.sum() if self._packed else most.max() * self.batch_size)
        self.loader = Loader(opened, batch_size=rows, ranks=ranks, **loader_options)
        for name in (*self.loader._names, *self.loader._texts):
            if name in _RESERVED:
                raise errors.ArgumentError(
                    f"delta_timestamps: the batch's key {name!r} is reserved for this loader's own array; rename it"
                )
        self.rank, self.world_size = self.loader.rank, self.loader.world_size
        if note and self.rank == 0:
            warn(f"{note} and are not drawn", LoaderWarning)
        if self._drop_last and self.num_samples < self.batch_size * self.world_size:
            raise errors.ArgumentError(
                f"batch_size: with drop_last expected at most {self.num_samples // self.world_size}, the segments of each rank, "
                f"got {batch_size}"
            )
        self._order: tuple[Any, np.ndarray] | None = None
        self._fills = {"anchor_index": -1} | dict.fromkeys(self.loader._texts, -1)
        for key in self.loader._arguments["delta_timestamps"]:
            self._fills |= {f"{key}_is_pad": True, f"{key}_feature_is_pad": True, f"{key}_age": _INT64_MIN}
            self._fills |= {f"{key}_offset_ns": _INT64_MIN, f"{key}_episode_index": -1}  # arrays of goals
        order_options: tuple[Any, ...] = (self._min_steps, self._max_steps, self._shuffle)
        if self._bucket is not None:
            order_options += (self._bucket, self.batch_size * self.world_size)
        self._fingerprint = f"{self.loader._fingerprint}-{zlib.crc32(repr(order_options).encode()):08x}"
        self._begin(seed, self._drop_last)

    # ---- segments ----

    def _cut_into_segments(self) -> str:
        """Sets the number of segments of each episode. Returns a note about episodes that are too short, or ""."""
        lengths = self._episodes[:, 2]
        self._firsts = np.cumsum(lengths) - lengths
        counts = np.ones(len(lengths), np.int64)
        if self._max_steps is not None:
            # So many segments that their mean length is about the middle of min_steps and max_steps.
            counts = np.rint(2 * lengths / (self._min_steps + self._max_steps)).astype(np.int64)
            counts = np.clip(counts, -(-lengths // self._max_steps), lengths // self._min_steps)
        is_short = lengths < self._min_steps
        counts[is_short] = 0
        note = f"min_steps: {is_short.sum()} of {len(lengths)} episodes have fewer than {self._min_steps} steps"
        if is_short.all():
            raise errors.ArgumentError(f"{note}; expected an episode to draw")
        self._segments_of_episode = counts
        self._episode_of = np.repeat(np.arange(len(lengths)), counts)
        self._index_in_episode = np.arange(len(self._episode_of)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.num_samples = len(self._episode_of)
        return note if is_short.any() else ""

    def _most_steps(self) -> np.ndarray:
        """Returns the most steps that each segment can have in any epoch."""
        lengths = self._episodes[self._episode_of, 2]
        most: np.ndarray = np.where(self._segments_of_episode[self._episode_of] == 1, lengths, self._max_steps or 0)
        return most

    def _spans(self, segments: np.ndarray, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the number of each segment's first anchor, and its number of steps."""
        episodes = self._episode_of[segments]
        steps, counts = self._episodes[episodes, 2], self._segments_of_episode[episodes]
        index = self._index_in_episode[segments]

        def cut(cut_id: np.ndarray, index: np.ndarray) -> np.ndarray:
            # Both segments at a cut give the cut the same id, so they draw the same row.
            row: np.ndarray = index * steps // counts
            if self._max_steps is None or not self._shuffle:
                return row
            # Before the cuts move, a segment has steps / counts steps, rounded down or up. `room` is half of what a segment may lose
            # (down to min_steps) or gain (up to max_steps), because both its ends may move.
            room = np.minimum(steps // counts - self._min_steps, self._max_steps + -steps // counts) // 2
            room[(index == 0) | (index == counts)] = 0
            drawn = hashes(seed, epoch, cut_id, _CUTS) % (2 * room + 1).astype(np.uint64)
            row += drawn.astype(np.int64) - room
            return row

        begins = cut(segments, index)
        return self._firsts[episodes] + begins, cut(segments + 1, index + 1) - begins

    def _draw_order(self, seed: int, epoch: int) -> np.ndarray:
        if self._order is not None and self._order[0] == (seed, epoch):
            return self._order[1]
        order = np.arange(self.num_samples)
        if self._shuffle:
            order = np.argsort(hashes(seed, epoch, order, _ORDER), kind="stable")
        global_batch = self.batch_size * self.world_size
        if self._bucket is not None:
            buckets = np.arange(self.num_samples) // (self._bucket * global_batch)
            order = order[np.lexsort((self._spans(order, seed, epoch)[1], buckets))]
            if self._shuffle:  # an incomplete batch stays the last
                batches = np.arange(self.num_samples // global_batch)
                drawn = np.argsort(hashes(seed, epoch, batches, _BATCHES), kind="stable")
                whole_batches = order[: len(batches) * global_batch].reshape(-1, global_batch)[drawn]
                order = np.concatenate([whole_batches.ravel(), order[len(batches) * global_batch :]])
        self._order = (seed, epoch), order
        return order

    # ---- batches ----

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        global_batch = self.batch_size * self.world_size
        return self.num_samples // global_batch if self._drop_last else -(-self.num_samples // global_batch)

    def _batch_at(self, position: Position) -> dict[str, Any] | None:
        seed, epoch, samples, *_ = position
        remaining, global_batch = self.num_samples - samples, self.batch_size * self.world_size
        if remaining <= 0 or (remaining < global_batch and self._drop_last):
            return None
        if remaining < global_batch:  # filled up with the epoch's first segments, so that all ranks have equally many
            global_batch = -(-remaining // self.world_size) * self.world_size
        drawn = self._draw_order(seed, epoch).take(range(samples, samples + global_batch), mode="wrap")
        return self._batch(drawn[self.rank :: self.world_size], seed, epoch)

    def _batch(self, segments: np.ndarray, seed: int, epoch: int) -> dict[str, Any]:
        firsts, lengths = self._spans(segments, seed, epoch)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        to_device = self.loader._on_device
        if self._packed:
            rows = np.repeat(firsts - offsets[:-1], lengths) + np.arange(offsets[-1])
            batch = self.loader._gather_batch(rows, seed, epoch, np.repeat(firsts, lengths))
            batch["offsets"] = to_device(offsets)
        else:
            steps = np.arange(lengths.max())
            rows = firsts[:, None] + np.minimum(steps, lengths[:, None] - 1)
            batch = self.loader._gather_batch(rows.ravel(), seed, epoch, np.repeat(firsts, len(steps)))
            is_pad = to_device(steps >= lengths[:, None])
            batch = {name: self._pad(name, values, lengths, is_pad) for name, values in batch.items()}
            batch["is_pad"] = is_pad
        table = self._episodes[self._episode_of[segments]]
        batch |= {name: to_device(table[:, column].copy()) for name, column in _COLUMNS.items() if name in batch}
        batch["lengths"] = to_device(lengths)
        return batch

    def _pad(self, name: str, values: Any, lengths: np.ndarray, is_pad: Any) -> Any:
        """Returns the values of all steps as [B, T, ...], with fill values after a segment's end."""
        segments, steps = is_pad.shape
        if isinstance(values, list):
            rows = [values[begin : begin + steps] for begin in range(0, len(values), steps)]
            empty = [self.loader._texts[name].empty] * steps
            return [row[:length] + empty[length:] for row, length in zip(rows, lengths.tolist(), strict=True)]
        if name in self.loader._transforms:  # the caller's own array, whose elements may share memory
            values = values.copy() if isinstance(values, np.ndarray) else values.clone()
        values, fill = values.reshape(segments, steps, *values.shape[1:]), self._fills.get(name, 0)
        if self.loader.device != "cpu":
            return values.masked_fill_(is_pad.reshape(segments, steps, *[1] * (values.ndim - 2)), fill)
        for row, length in zip(values, lengths.tolist(), strict=True):  # faster than a mask on the CPU
            row[length:] = fill
        return values

    def _check_fingerprint(self, fingerprint: Any) -> None:
        # A Loader's fingerprint lacks this loader's last part.
        if isinstance(fingerprint, str) and fingerprint.count("-") + 1 == self._fingerprint.count("-"):
            raise errors.ArgumentError(f"state: expected one of an EpisodeLoader, got one of a Loader, {fingerprint!r}")
        if fingerprint != self._fingerprint:
            raise errors.ArgumentError(
                f"fingerprint: expected {self._fingerprint}, got {fingerprint!r}: the state is of another dataset, selection "
                "or order; compare episodes, anchors, min_steps, max_steps, shuffle and bucket; with bucket compare "
                "batch_size and ranks too"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Returns the datasets' paths, the arguments and :meth:`state_dict`, so that the copy continues this loader's order."""
        return {"dataset": self._dataset, "arguments": self._arguments, "state": self.state_dict()}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LoaderWarning)  # the pickled loader has warned already
            EpisodeLoader.__init__(self, pickled["dataset"], **pickled["arguments"])
        self.load_state_dict(pickled["state"])

    def __repr__(self) -> str:
        return f"robocache.EpisodeLoader({self.num_samples} segments in batches of {self.batch_size}: {self.loader!r})"


def _above_0(name: str, value: Any) -> int:
    number = whole(name, value)
    if number < 1:
        raise errors.ArgumentError(f"{name}: expected 1 or more, got {number}")
    return number


def _open_without_weights(dataset: Any) -> Dataset | Mixture:
    """Opens the sources once, for the loader that counts anchors and the loader that gathers. Refuses options that weigh anchors."""
    sources, mixture = as_sources(dataset)
    options = {
        f"sources[{index}].{name}": getattr(source, name)
        for index, source in enumerate(sources)
        for name in ("weight", "weight_by", "balance")
    }
    if mixture is None:
        return sources[0].dataset
    options |= {name: getattr(mixture, name) for name in ("temperature", "samples_per_epoch")}
    for name, value in options.items():
        if value is not None:
            raise errors.ArgumentError(
                f"{name}: expected none, since each episode is drawn once an epoch, got {value!r}"
            )
    return mixture


def _episodes_of(dataset: Dataset | Mixture, options: Mapping[str, Any]) -> np.ndarray:
    """Returns the table [episodes with anchors, 3]: source, index in the source, number of anchors. A loader that reads no values
    counts them."""
    options = {**options, "device": "cpu", "memory": Memory(residency="mapped", prefetch=0), "normalization": None}
    if isinstance(windows := options["delta_timestamps"], Mapping):
        options["delta_timestamps"] = {
            key: _without_statistics(as_window(key, window)) for key, window in windows.items()
        }
    if isinstance(default := options.get("default"), Window):
        options["default"] = _without_statistics(default)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the loader that reads values warns
        loader = Loader(dataset, batch_size=1, ranks=Ranks(rank=0, world_size=1), **options)
    table: np.ndarray = _lib.to_numpy(_episodes(loader._handle)).copy()
    return table


def _without_statistics(window: Window) -> Window:
    """Returns the window without the fields that need statistics, which are also those of converted values. No anchor depends on
    them."""
    return replace(window, normalize=None, convert=None, base=None)
