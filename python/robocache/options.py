"""The options of a loader: the values in a batch (Window), the moments that are drawn (Anchors), the statistics for normalising
(Normalization), the memory of the rows (Memory), and this process among others (Ranks)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import errors
from ._check import number, real, whole
from .image_options import ImageOptions
from .norm_stats import MIN_SPREAD

if TYPE_CHECKING:
    import torch

    from .actions import Conversion


def copied(value: Any) -> Any:
    """Returns a copy, so that later changes by the caller have no effect. An iterator becomes a list."""
    if isinstance(value, Mapping):
        return {key: copied(x) for key, x in value.items()}
    if isinstance(value, list | Iterator):
        return list(value)
    return value.copy() if isinstance(value, np.ndarray) else value


@dataclass(frozen=True)
class Moment:
    """The moment that replaces the anchor for a goal, made by :meth:`Window.future`, ``last``, ``geometric`` and ``other``."""

    kind: str
    low_s: float = 0.0
    high_s: float = 0.0
    discount: float = 0.0


@dataclass(frozen=True)
class Window:
    """The steps of one key of a batch, and how their values are computed.

    If a field is None, the loader's `default` sets it; if that is None too, the value stated here applies.

    A clock is nominal where its stamps are index / rate. A stream on it is interpolated only if its window has a `method`; the
    stream's own attribute does not count. A step more than 1e-4 s from a row is refused with anchors on the same clock, if it
    (interpolating also with `offset_s`) is no multiple of the period of each drawn episode; with anchors of a rate or on
    another nominal clock, if two rows within the recording would mix. With anchors on a recorded clock a
    :class:`LoaderWarning` counts such steps. Both look at up to 2,048 anchors per source.

    Args:
        offsets: seconds from the sample's anchor for each step, in any order; `<key>` is ``[B, T, ...]``. A step's time is
            rounded to the nearest nanosecond and clamped to int64. None: the value at the anchor, ``[B, ...]``. On a nominal
            clock and without a `method` each step must be a row, since nothing was recorded in between; other offsets are an
            ArgumentError.
        rows: `offsets` are whole numbers of the stream's own rows, counted from the last row at or before the anchor, whatever
            the stream's rate: ``Window(range(16), rows=True)`` is that row and the 15 recorded after it. A row outside the
            episode is padding with the edge row's value; with `causal` there is nothing before the first. `method` and
            `max_gap_s` do not apply. The row at the anchor is the one to which the anchor + `offset_s` snaps, else the last at
            or before it. If there is none, or it is older than `tolerance_s`, all steps are padding. An age is the anchor +
            `offset_s` minus the row's stamp. None: seconds.
        method: ``"linear"`` (floats), ``"previous"`` (integers, bool, cameras), ``"nearest"``, ``"next"``, ``"pchip"``,
            ``"akima"``, ``"angle"`` (radians, the shorter way round), ``"slerp"`` (4 features, a quaternion) or ``"pose"``
            (7: x, y, z and a quaternion), as in :func:`resample_trajectories`. ``[(slice, method), ...]`` sets the methods of
            features of a row, counted row-major. A curve also reads samples outside the window; ``"cubic"`` is refused. None:
            the stream's ``attributes["methods"]``, else ``"linear"`` or ``"previous"``. A :class:`LoaderWarning` names
            attributes that ``"linear"``, ``"pchip"`` or ``"akima"`` for all features replaces.
        offset_s: the sensor's latency in seconds: a row stamped t was taken at t - `offset_s`. Anchors ignore it. Like
            `max_gap_s` and `tolerance_s` it is rounded to the nearest nanosecond. None: 0.
        causal: True: a step uses no sample later than its time (less than `snap_s` later is no later); every method then holds
            the last sample. None: False.
        max_gap_s: a value interpolated across a longer gap, in seconds, is padding. None: no limit.
        tolerance_s: for ``"nearest"``, ``"previous"`` and ``"next"``: a sample farther away, in seconds, is padding;
            :meth:`Loader.check_tolerance` raises instead. None: no limit.
        normalize: ``"mean_std"``; ``"min_max"``, or two quantiles such as ``"q01_q99"``, which become -1 and 1; or ``"none"``.
            Integers and bool are never normalised. Do not normalise unit quaternions: they are scaled feature by feature.
            :class:`Normalization` sets the statistics. None: not normalised.
        dtype: the dtype of a floating key: float32, float64, float16 or bfloat16; frames cannot be float64. Integers and bool
            keep their dtype. None: float32.
        images: for a camera: how its frames are resized, cropped and changed. None: pixels from 0 to 1, channels first, in
            their stored size.
        convert: conversions of :mod:`robocache.actions`, in order, for a key whose rows have one axis:
            ``[actions.Relative("joints")]``. `normalize` comes after them, with the statistics of the converted values that are
            drawn, of all ranks, all steps together, each anchor once, without padding, NaN and infinity, before the rounding to
            `dtype`; unless ``Normalization(norm_stats=...)`` gives others. The batch then also has
            ``<key>_base`` ``[B, D]``, which :meth:`Loader.to_absolute` needs. Where the base is padding, the result is padding,
            for step deltas also where the previous step is; if there are no rows of either, or a rotation is invalid, the
            values are 0 and padding. NaN stays NaN. None: as recorded.
        base: the state that `convert` compares with: the value at the anchor of another key of the batch, by that key's method,
            never normalised; or ``(key, [indices])`` for some of that key's features, in the order of this key's features.
        texts: for a key of texts, their form in the batch. ``"text"``: a list of str, or of lists with `offsets`; None where no
            text applies. ``"indices"``: int64 ``[B]`` or ``[B, T]`` into ``loader.texts[key]``; -1 where none applies.
            ``"drawn_text"``, ``"drawn_indices"``: if several texts apply, from several streams that a :class:`Source` renames
            to this key or from an episode's list, one is drawn for each sample, by a hash of (seed, epoch, the sample's number,
            the key). The text is that at anchor + offset + `offset_s`. Only `offsets` and `offset_s` of the other
            fields apply to texts. None: ``"text"`` for a stream of text, numbers for all others.
        mirror: if the cameras' `images` flip, the features of a floating key whose signs change in the mirrored world, before
            `convert` and `normalize`, to 0 - x: ``[1]``; ``[]``: none. A list holds for the one direction in which the cameras
            flip; for both directions, ``{"horizontal": [1], "vertical": [0]}``. Whole numbers and texts stay as they are. None:
            unknown; a loader with flips raises an ArgumentError.
        stream: another key whose stream fills this key too, such as the state's for a goal. None: the key's own stream.
        moment: the moment that replaces the anchor: :meth:`future`, :meth:`last`, :meth:`geometric` and :meth:`other` set it.
            The batch then has ``<key>_offset_ns`` ``[B]``, from the anchor's time to the moment's. Keys with equal moments
            share the draw, a hash of (seed, epoch, sample's number, the moment's values). ``Anchors(edges="drop")`` and the
            loader's warnings about padding and gaps ignore such windows. Statistics given for a key also serve other windows of
            its stream, unless those have their own or are converted. If there is no such moment, all steps are 0 and padding,
            and the offset is the least int64. The base is at its own key's moment. None: the anchor.

    Example:
        >>> robocache.Window([-0.1, 0.0], method="nearest", normalize="mean_std")
        Window(offsets=[-0.1, 0.0], method='nearest', normalize='mean_std')
    """

    offsets: Sequence[float] | None = None
    method: str | Sequence[tuple[slice, str]] | None = None
    offset_s: float | None = None
    causal: bool | None = None
    max_gap_s: float | None = None
    tolerance_s: float | None = None
    normalize: str | None = None
    dtype: Any = None
    images: ImageOptions | None = None
    convert: Sequence[Conversion] | None = None
    base: str | tuple[str, Sequence[int]] | None = None
    rows: bool | None = None
    stream: str | None = None
    moment: Moment | None = None
    texts: str | None = None
    mirror: Sequence[int] | Mapping[str, Sequence[int]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", copied(self.offsets))
        object.__setattr__(self, "convert", copied(self.convert))
        object.__setattr__(self, "mirror", copied(self.mirror))
        object.__setattr__(self, "method", copied(self.method))

    @classmethod
    def steps(cls, rate_hz: float, *, history: int = 0, horizon: int = 0, **options: Any) -> Window:
        """A window with steps of 1/`rate_hz` seconds: `history` steps that end at the anchor, and `horizon` steps that begin at
        it.

        With both, the anchor occurs once. `options` are the other fields of :class:`Window`.

        Raises:
            ArgumentError: `rate_hz` is not above 0, or there are no steps.

        Example:
            >>> robocache.Window.steps(50, history=2).offsets
            [-0.02, 0.0]
        """
        rate = real("rate_hz", rate_hz)
        if not 0 < rate < float("inf"):
            raise errors.ArgumentError(f"rate_hz: expected a finite rate above 0, got {rate_hz!r}")
        for name, steps in (("history", history), ("horizon", horizon)):
            if whole(name, steps) < 0:
                raise errors.ArgumentError(f"{name}: expected 0 or more steps, got {steps}")
        if not history and not horizon:
            raise errors.ArgumentError("history, horizon: expected at least one step, got none")
        return cls([k / rate for k in range(1 - max(history, 1), max(horizon, 1))], **options)

    @classmethod
    def future(
        cls, where: str, low_s: float, high_s: float, offsets: Sequence[float] | None = None, **options: Any
    ) -> Window:
        """A window around a later moment of the episode: one of the anchors' ticks in (t + `low_s`, t + `high_s`], all equally
        likely.

        It may be any tick up to the episode's end, also one that :class:`Anchors` leaves out.

        Args:
            where: ``"same episode"``.
            low_s, high_s: seconds from the anchor's time t; infinity is the episode's end.
            offsets: seconds, or rows, from that moment instead of the anchor.
            options: the other fields of :class:`Window`.

        Raises:
            ArgumentError: `where` is another value.

        Example:
            >>> robocache.Window.future("same episode", 0.5, 2.0, stream="observation.state").moment
            Moment(kind='future', low_s=0.5, high_s=2.0, discount=0.0)
        """
        if where != "same episode":
            raise errors.ArgumentError(
                f"where: expected 'same episode', got {where!r}; use Window.other() for another episode"
            )
        return cls(offsets, moment=Moment("future", number("low_s", low_s), number("high_s", high_s)), **options)

    @classmethod
    def last(cls, offsets: Sequence[float] | None = None, **options: Any) -> Window:
        """A window around the last moment of the anchor's episode: the last of the anchors' ticks."""
        return cls(offsets, moment=Moment("last"), **options)

    @classmethod
    def geometric(cls, discount: float, offsets: Sequence[float] | None = None, **options: Any) -> Window:
        """A window around a later moment of the episode, as hindsight relabelling draws it.

        The moment is the i-th of the anchors' n ticks that follow in the episode. The probability of i falls as `discount` to
        the power i: (1 - discount) discount^(i - 1) / (1 - discount^n). After the last tick there is no such moment.
        """
        return cls(offsets, moment=Moment("geometric", discount=number("discount", discount)), **options)

    @classmethod
    def other(cls, offsets: Sequence[float] | None = None, **options: Any) -> Window:
        """A window around a moment of another episode of the same task, from the episodes that the source draws from.

        All such episodes (with ``shard_episodes`` of the rank) are equally likely, and so are the anchors' ticks in an episode.
        The task is the first text of the episode, by the rules of `task_text`; in a dataset without texts all episodes have one
        task. The batch has ``<key>_episode_index`` ``[B]`` too, which is -1 if there is no such episode.
        """
        return cls(offsets, moment=Moment("other"), **options)

    def __repr__(self) -> str:
        """Shows the fields that are not None."""
        fields = {name: value for name, value in self.__dict__.items() if value is not None}
        return f"Window({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


@dataclass(frozen=True, kw_only=True)
class Anchors:
    """The moments that can be drawn.

    Args:
        stream: the stream or key whose rows are the moments, also rows of one time. None: the slowest stream of the batch by
            median rate, the first of equals; streams with fewer than two rows per episode only if all are so.
        rate_hz: instead of a stream: ticks of this rate in each episode, from the latest first row to the earliest last row of
            the batch's streams that have rows there, both included. Tick k is k / `rate_hz` after the start, rounded to the
            nearest nanosecond.
        edges: what happens with moments whose window extends beyond an end of the recording. ``"pad"``: they are drawn, and
            steps outside are padding; ``"drop"``: a moment is drawn only if every target of every stream (with `offset_s`) lies
            between the first and the last row of that stream in that episode, or within `snap_s` of them. Gaps, and streams
            that the whole source lacks, do not count. Windows with `rows` count rows.
        drop_n_last: the number of moments at the end of each episode that are not drawn, after `edges`.
        keep, drop: ranges of episodes. With `keep` only moments in them are drawn, with `drop` only others. A table with the
            columns ``episode`` and ``start_s``, ``end_s`` (seconds from the episode's first stamp), ``start_ns``, ``end_ns``
            (stamps), or ``start_row``, ``end_row`` (rows of the anchor stream, from the episode's first). Both ends are part of
            a range, and so are moments less than `snap_s` beyond them. The table is a mapping of columns, a list of mappings,
            or a pyarrow table.
        where: a condition on the columns at the moment, as :meth:`Dataset.select` takes it: ``pc.field("gripper") > 0.5``; null
            is not true. Columns are streams of one feature; features of wider streams, ``"state[0]"``, or ``"state.x"`` if they
            have names; ``"speed(state)"``, the Euclidean length of the change from the row before, per second, in float64, null
            for the first row and between equal stamps; streams of texts (``subtask`` is the text of ``subtask_index``); and the
            episodes' columns, where no stream has the name. The value is that of the last row at or before the moment, or less
            than `snap_s` after it, as recorded; null before the first row.
        first, last: how many moments to draw at the beginning and at the end of each episode: ``first=1`` draws only its start.
        every: n draws the first moment of each episode and every n-th after it.

    The options apply in this order: edges, drop_n_last, keep and drop, where, first and last, every. The moments that they
    leave are numbered from 0.

    Example:
        >>> import pyarrow.compute as pc
        >>> moving = robocache.Anchors(where=pc.field("speed(joint.position)") > 0.01, every=2)
    """

    stream: str | None = None
    rate_hz: float | None = None
    edges: str = "pad"
    drop_n_last: int = 0
    keep: Any = None
    drop: Any = None
    where: Any = None
    first: int | None = None
    last: int | None = None
    every: int = 1

    def __post_init__(self) -> None:
        for name in ("keep", "drop", "where"):
            object.__setattr__(self, name, copied(getattr(self, name)))

    @property
    def filters(self) -> dict[str, Any]:
        """The options that choose among a source's moments, if they are set."""
        options = {name: getattr(self, name) for name in ("keep", "drop", "where", "first", "last")}
        options = {name: value for name, value in options.items() if value is not None}
        return options | ({} if self.every == 1 and self.every is not True else {"every": self.every})


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """The statistics that ``normalize`` uses.

    They are float64, without NaN and infinity; infinite ones are refused. A feature whose statistics are NaN, descend, or give
    a scale that the arithmetic's type cannot hold is only centred (not at all if its centre is not finite), and a
    :class:`LoaderWarning` names it.

    Args:
        norm_stats: ``{key: statistics}``, from :meth:`Dataset.statistics`, :func:`merge_stats` or :func:`load_norm_stats`.
            Other keys use the dataset's. Statistics that say that they describe other values, windows or conversions are an
            ArgumentError; those of a file say nothing, and are accepted. With an axis of steps before the axes of a row,
            ``[steps, ...]``, each step of the window is normalised by its own statistics.
        stats_of: the rows of the dataset's statistics: ``"selection"``: those of the episodes that `episodes` and
            ``missing="drop"`` leave, of all ranks together, each row once, as by ``Dataset.statistics(episodes)``;
            ``"dataset"``: all.
        constant: how a feature that never changes is normalised: ``"center"`` only centres it; ``"lerobot"`` and ``"openpi"``
            give the same numbers as LeRobot and openpi. Rule 38 of docs/rules.md has the formulas.
        min_spread: a feature with a smaller spread (its std, or half the distance of the two ends) is only centred,
            with slope 1: by ``"center"`` its centre becomes 0, by the others its mean 0 or its lower end -1. A
            :class:`LoaderWarning` names such features unless they are constant. 0 scales them.
        clip: whether values that are normalised to -1 and 1 are clamped to [-1, 1], as in GR00T. ``"mean_std"`` is not clipped.
            It acts before the rounding to the dtype; NaN stays NaN; :meth:`Loader.unnormalize` never clips.
    """

    norm_stats: Mapping[str, Any] | None = None
    stats_of: str = "selection"
    constant: str = "center"
    min_spread: float = MIN_SPREAD
    clip: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm_stats", copied(self.norm_stats))


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory that holds rows, and how many batches are made ahead. No option changes a batch.

    Args:
        residency: the memory of the rows. ``"device"``: the device's; ``"pinned"``: the host's, which the same kernel reads
            across the link; ``"mapped"``: the cache's files, read ahead by threads; ``"auto"``: the first of these that
            `budget` has room for, after the clocks (8 bytes a row), tables (32 bytes an episode), for each rank a whole shared
            copy, and the keys with a named tier; the largest streams move down first. In these three memories a camera's frames
            stay encoded. ``"decoded"``: a camera's pixels in the device's memory; ``"auto"`` also chooses it if there is room
            left. One tier for all keys, or ``{key: tier}``. On the CPU ``"device"`` and ``"pinned"`` are the same: one copy in
            memory. :meth:`Loader.explain` shows the choice; its table says "memory" for both there.
        budget: bytes, or a share of the free memory (a float, at most 1), of the device, or on the CPU of the host; or
            ``{"device": ..., "host": ...}``. None: half of each.
        prefetch: the number of batches that a thread prepares ahead: on the CPU whole batches, on CUDA their reads from files.
            0: none.
        reuse_buffers: True: a batch overwrites the memory of the batch before it; copy values that you keep.
        stream: a torch.cuda.Stream that makes each batch one step ahead, beside torch's current stream. None: the current
            stream makes a batch when it is requested.
    """

    residency: str | Mapping[str, str] = "auto"
    budget: float | Mapping[str, float] | None = None
    prefetch: int = 2
    reuse_buffers: bool = False
    stream: torch.cuda.Stream | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "residency", copied(self.residency))
        object.__setattr__(self, "budget", copied(self.budget))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "stream": None}  # a stream belongs to one process


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's rank among the processes that share each global batch of `world_size` * B samples.

    Args:
        rank, world_size: None: torch.distributed's if it is initialised, else torchrun's ``RANK`` and ``WORLD_SIZE``, else 0
            and 1.
        shard_episodes: True: each rank keeps and draws from its own episodes, about as many bytes on each rank, for a dataset
            larger than one device. The order then depends on `world_size`: it is a permutation of the rank's own anchors, as of
            a loader of its episodes alone, and an epoch takes as many of them as the rank with the fewest has. Only the same
            `world_size` resumes a state.

    Rank r's batch is the draws samples + r B to samples + (r + 1) B - 1 of the epoch. Of a rest of R < `world_size` B draws
    each rank has ceil(R / `world_size`), filled up with the epoch's first draws, which do not count; with ``drop_last`` none.
    """

    rank: int | None = None
    world_size: int | None = None
    shard_episodes: bool = False
