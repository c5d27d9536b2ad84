"""The options of a loader, as values: what a batch holds (Window), which moments are drawn (Anchors), how values are normalised
(Normalization), where rows lie (Memory) and which process this is (Ranks)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import errors
from ._check import number, whole
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
    """The moment that replaces the anchor for a goal: see :meth:`Window.future` and the ones after it."""

    kind: str
    low_s: float = 0.0
    high_s: float = 0.0
    discount: float = 0.0


@dataclass(frozen=True)
class Window:
    """The steps of one key of a batch, and how values are found for them.

    A field that is None takes that of the loader's `default`; if that is None too, the meaning stated here.

    Args:
        offsets: seconds from the sample's anchor, one a step, in any order; `<key>` is ``[B, T, ...]``. None: the value at the
            anchor, ``[B, ...]``. On a nominal clock and without a `method` each step must be a row, since nothing was
            recorded in between; other offsets are refused.
        rows: `offsets` are whole numbers of the stream's own rows, counted from the last row at or before the anchor, whatever
            the stream's rate: ``Window(range(16), rows=True)`` is that row and the 15 recorded after it. A row outside the
            episode is padding with the edge row's value. `method` and `max_gap_s` do not apply; `tolerance_s` limits the age
            of the row at the anchor, and where that is older all steps are padding. None: seconds.
        method: ``"linear"`` (floats), ``"previous"`` (integers, bool, cameras), ``"nearest"``, ``"next"``, ``"pchip"``,
            ``"akima"``, ``"angle"`` (radians, the shorter way round), ``"slerp"`` (4 features, a quaternion) or ``"pose"``
            (7: x, y, z and a quaternion), as in :func:`resample_trajectories`. ``[(slice, method), ...]`` gives some features
            of a row, counted row-major, their own method. None: the stream's own ``attributes["methods"]``, else the first two.
        offset_s: the sensor's latency in seconds: what is stamped t was taken at t - `offset_s`. Anchors ignore it. None: 0.
        causal: never use a sample later than the moment asked for: every method then holds the last one. None: False.
        max_gap_s: a value interpolated across a longer gap, in seconds, is padding. None: no limit.
        tolerance_s: for ``"nearest"``, ``"previous"`` and ``"next"``: a sample farther away, in seconds, is padding;
            :meth:`Loader.check_tolerance` raises instead. None: no limit.
        normalize: ``"mean_std"``; ``"min_max"``, or any two quantiles such as ``"q01_q99"``, to -1 and 1; or ``"none"``.
            :class:`Normalization` says by which statistics. None: not normalised.
        dtype: of a floating key: float32, float64, float16 or bfloat16, of frames all but float64. Integers and bool keep
            theirs. None: float32.
        images: of a camera: how its frames are resized, cropped and changed. None: pixels from 0 to 1, channels first, in
            their stored size.
        convert: conversions of :mod:`robocache.actions`, in order, for a key whose rows have one axis:
            ``[actions.Relative("joints")]``. `normalize` comes after them, by the statistics of the converted values that are
            drawn, all steps together, unless ``Normalization(norm_stats=...)`` gives others. The batch then has ``<key>_base``
            ``[B, D]`` too, which :meth:`Loader.to_absolute` needs. Padding of the base is padding of the result; if there is
            no base, or a rotation is none, the values are 0 and padding. None: as recorded.
        base: the state that `convert` compares with: one of the batch's keys, whose value at the anchor it is; or ``(key,
            [indices])`` for those of its features that are this key's, in this key's order.
        texts: of a key of texts: what the batch holds. ``"text"``: list of str, of lists with `offsets`; None where no text
            applies. ``"indices"``: int64 ``[B]`` or ``[B, T]`` into ``loader.texts[key]``; -1 where none applies.
            ``"drawn_text"``, ``"drawn_indices"``: where several texts apply, of several streams that a :class:`Source` renames
            to this key or of an episode's list, one is drawn for each sample. Of the other fields only `offsets` and
            `offset_s` go with texts. None: ``"text"`` of a stream of text, numbers of all others.
        mirror: where cameras' `images` flip, the features of a key of floats whose signs change in the mirrored world, before
            `convert` and `normalize`: ``[1]``; ``[]``: none. A list is for the flips of one direction that the cameras make;
            of both, ``{"horizontal": [1], "vertical": [0]}``. Whole numbers and texts stay as they are. None: unknown,
            which a loader with flips refuses.

        stream: the key whose stream fills this one, so that a goal can be of the stream that the state is of. None: its own.
        moment: the moment that replaces the anchor: :meth:`future`, :meth:`last`, :meth:`geometric` and :meth:`other` set it. The
            batch has ``<key>_offset_ns`` ``[B]``, from the anchor's time to the moment's. Keys with equal moments share the
            draw. Where there is no such moment all steps are 0 and padding, and the offset is the least int64. `base` is at
            the moment of its own key. None: the anchor.

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
        """Steps of 1/`rate_hz` seconds: `history` of them that end at the anchor, and `horizon` that begin at it.

        With both the anchor is there once. `options` are the others of :class:`Window`.

        Raises:
            ArgumentError: `rate_hz` is not above 0, or there are no steps.

        Example:
            >>> robocache.Window.steps(50, history=2).offsets
            [-0.02, 0.0]
        """
        rate = float(number("rate_hz", rate_hz))
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
        """A window around a later moment of the episode: one of the anchors' ticks in (t + `low_s`, t + `high_s`], each as likely.

        There are ticks for it up to the episode's end, whatever :class:`Anchors` leaves out.

        Args:
            where: ``"same episode"``.
            low_s, high_s: seconds from the anchor's time t; infinity is the episode's end.
            offsets: seconds, or rows, from that moment, as :class:`Window` takes them from the anchor.
            options: the others of :class:`Window`.

        Raises:
            ArgumentError: `where` is something else.

        Example:
            >>> robocache.Window.future("same episode", 0.5, 2.0, stream="observation.state").moment
            Moment(kind='future', low_s=0.5, high_s=2.0, discount=0.0)
        """
        if where != "same episode":
            raise errors.ArgumentError(
                f"where: expected 'same episode', got {where!r}; Window.other() is of another one"
            )
        return cls(offsets, moment=Moment("future", number("low_s", low_s), number("high_s", high_s)), **options)

    @classmethod
    def last(cls, offsets: Sequence[float] | None = None, **options: Any) -> Window:
        """A window around the last moment of the anchor's episode: the last of the anchors' ticks."""
        return cls(offsets, moment=Moment("last"), **options)

    @classmethod
    def geometric(cls, discount: float, offsets: Sequence[float] | None = None, **options: Any) -> Window:
        """A window around a later moment of the episode, as hindsight relabelling draws it.

        It is the i-th of the anchors' ticks after the anchor, where i from 1 to the n that are left in the episode is as likely as
        `discount` to the power i: (1 - discount) discount^(i - 1) / (1 - discount^n). After the last tick there is none.
        """
        return cls(offsets, moment=Moment("geometric", discount=number("discount", discount)), **options)

    @classmethod
    def other(cls, offsets: Sequence[float] | None = None, **options: Any) -> Window:
        """A window around a moment of another episode of the same task, among those that the source draws from.

        Each such episode is as likely, and in it each of the anchors' ticks. The task is the first text of the episode, by the
        rules of `task_text`; in a dataset without any all episodes are of one task. The batch has ``<key>_episode_index`` ``[B]``
        too, which is -1 where there is no such episode.
        """
        return cls(offsets, moment=Moment("other"), **options)

    def __repr__(self) -> str:
        """Leaves out fields that are None."""
        given = {name: value for name, value in self.__dict__.items() if value is not None}
        return f"Window({', '.join(f'{name}={value!r}' for name, value in given.items())})"


@dataclass(frozen=True, kw_only=True)
class Anchors:
    """The moments that can be drawn.

    Args:
        stream: the stream or key whose rows are the moments. None: the batch's slowest with more than one row an episode.
        rate_hz: instead of a stream: ticks of this rate over the span that all streams asked for cover in an episode.
        edges: moments whose window reaches over an end of the recording: ``"pad"``: they are drawn, and what lies outside is
            padding; ``"drop"``: they are not drawn.
        drop_n_last: moments at the end of each episode that are not drawn, after `edges`.
        keep, drop: ranges of episodes: only moments in them are drawn, or only others: a table with the columns ``episode`` and
            ``start_s``, ``end_s`` (seconds from the episode's first stamp), ``start_ns``, ``end_ns`` (stamps), or ``start_row``,
            ``end_row`` (rows of the anchor stream, from the episode's first). Both ends count. A mapping of columns, a list
            of mappings, or a table of pyarrow.
        where: a condition on the columns at the moment, as :meth:`Dataset.select` takes it: ``pc.field("gripper") > 0.5``; null
            is not true. Columns are streams of one feature; features of wider streams, ``"state.x"`` where they have names and
            ``"state[0]"``; ``"speed(state)"``, the length of the change from the row before, per second; streams of texts; and
            the episodes' columns. The row is the last at or before the moment; null before the first.
        first, last: how many moments to draw at the beginning and at the end of each episode: ``first=1`` draws only its start.
        every: n: draw the first moment of each episode and every n-th after it.

    They apply in this order: edges, drop_n_last, keep and drop, where, first and last, every.

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
        """The options, where set, that choose among a source's moments."""
        given = {name: getattr(self, name) for name in ("keep", "drop", "where", "first", "last")}
        given = {name: value for name, value in given.items() if value is not None}
        return given | ({} if self.every == 1 and self.every is not True else {"every": self.every})


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """The statistics that ``normalize`` uses.

    Args:
        norm_stats: ``{key: statistics}``, such as :meth:`Dataset.statistics`, :func:`merge_stats` and :func:`load_norm_stats`
            give. Keys that it lacks keep their own. Statistics that describe other values are refused. With an
            axis of steps before those of a row, ``[steps, ...]``, each step of the window is normalised by its own.
        stats_of: where none are given, the rows to describe: ``"selection"``: those of the episodes drawn from;
            ``"dataset"``: all.
        constant: what becomes of a feature that never changes: ``"center"`` only centres it; ``"lerobot"`` and ``"openpi"`` give
            LeRobot's and openpi's numbers.
        min_spread: a feature whose spread (its std, or half the distance of the two ends) is less is only centred; a
            :class:`LoaderWarning` names those that do change. 0 scales them.
        clip: clamp values that are normalised by two ends to [-1, 1], as GR00T does. ``"mean_std"`` is not clipped.
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
        residency: ``"device"``: in the device's memory; ``"pinned"``: in the host's, which the same kernel reads across the
            link; ``"mapped"``: in the cache's files, read ahead by threads; ``"auto"``: the first of these that `budget` has
            room for, the largest streams moving down first. A camera's frames lie there as they are stored; ``"decoded"``:
            as pixels in the device's memory, which ``"auto"`` takes too where there is room left. One for all keys, or
            ``{key: tier}``. On the CPU the first two are one copy in memory. :meth:`Loader.explain` says what was chosen.
        budget: bytes, or a share of what is free (a float, at most 1): of the device's memory, on the CPU of the host's; or
            ``{"device": ..., "host": ...}``. None: half of each.
        prefetch: batches that a thread makes ahead: on the CPU whole, on CUDA what is read from files. 0: none.
        reuse_buffers: a batch takes the memory of the one before it; copy what you keep.
        stream: a torch.cuda.Stream that makes batches one ahead, beside torch's current one. None: the current one makes them
            when they are asked for.
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
        return {**self.__dict__, "stream": None}  # which is of one process


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among those that share each global batch of `world_size` * B samples.

    Args:
        rank, world_size: None: as torch.distributed has been initialised, else torchrun's ``RANK`` and ``WORLD_SIZE``, else 0
            of 1.
        shard_episodes: each rank keeps and draws from episodes of its own, about as many bytes as any other: for a dataset
            larger than one device. The order then depends on `world_size`: a permutation of the rank's own anchors, of which
            an epoch takes as many as the rank with the fewest has.
    """

    rank: int | None = None
    world_size: int | None = None
    shard_episodes: bool = False
