"""Computes the action at a moment from a policy's action chunks, by the stamps of their steps instead of by counting calls."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import _lib, errors
from .._check import real, whole
from ..actions.rotations import rotation_width
from ..spec import Spec

_chunks_open = _lib.function("chunks_open")
_chunks_put = _lib.function("chunks_put")
_chunks_at = _lib.function("chunks_at")
_chunks_leftover = _lib.function("chunks_leftover")
_chunks_frozen = _lib.function("chunks_frozen")
_chunks_covered_until_ns = _lib.function("chunks_covered_until_ns")
_chunks_starved = _lib.function("chunks_starved")
_array_of = _lib.function("array_of")


class Chunks:
    """The chunks of a policy, and the action at a moment.

    Each step of a chunk has a stamp: the anchor's plus its offset. A step holds from its stamp to the next step's. The last
    step holds for as long as the step before it. Steps that ended before the chunk arrived are skipped. One thread may put
    chunks while another asks for actions. Of more than 1,024 chunks the earliest is forgotten.

    Args:
        mode: ``"newest"``: the action of the newest chunk that has one at the moment. ``"ensemble"``: the mean over all chunks
            that have one, weighted by exp(-`decay` i), i = 0 for the oldest (ACT, Zhao et al., 2023). ``"cross-fade"``: a
            straight line from the earlier action to the newest chunk's, over `fade_s` seconds from the first moment asked for
            after the chunk arrived. The last two modes mix numbers; angles and rotations, which the spec's methods or
            conversions name, go the shorter way round, so that a mixture of rotations is a rotation.
        decay: how much less a newer chunk weighs, the m of ACT; negative: how much more.
        fade_s: the duration of a cross-fade, in seconds.
        spec: a :class:`robocache.Spec`: with `key`, :meth:`put` takes the policy's raw output and uses the spec's offsets.
        key: the spec's key of the policy's output.

    Attributes:
        starved: the number of moments asked for without an action.
        covered_until_ns: from this moment on no chunk has an action; None before the first chunk.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.

    Example:
        >>> chunks = robocache.live.Chunks()
        >>> chunks.put(1_000_000_000, [0.0, 0.02, 0.04], np.array([[0.0], [0.1], [0.2]]))
        >>> chunks.at(1_030_000_000)
        array([0.1])
    """

    def __init__(
        self,
        mode: str = "newest",
        *,
        decay: float = 0.01,
        fade_s: float = 0.1,
        spec: Spec | None = None,
        key: str | None = None,
    ) -> None:
        if (spec is None) != (key is None):
            raise errors.ArgumentError("spec, key: expected both or none")
        if spec is not None and key not in spec.keys:
            raise errors.ArgumentError(f"key: expected a key of the spec, {', '.join(spec.keys)}, got {key!r}")
        self._spec, self._key = spec, key
        turns = [] if spec is None else _turns(spec.keys[key or ""])
        self._handle = _chunks_open(
            _lib.text("mode", mode),
            real("decay", decay),
            real("fade_s", fade_s),
            *itertools.chain.from_iterable(turns),
        )

    def put(
        self,
        anchor_ns: int,
        offsets_s: Sequence[float] | None,
        actions: Any,
        *,
        batch: Mapping[str, Any] | None = None,
    ) -> None:
        """Takes a chunk.

        Args:
            anchor_ns: the moment of the observation that the policy saw: ``batch["time_ns"]``.
            offsets_s: ``[T]``, the ascending offsets of the steps from the anchor, in seconds. None: the offsets of the spec's
                key.
            actions: ``[T, D]``, or ``[1, T, D]``.
            batch: with a spec, the batch that the policy saw. `actions` are then the policy's raw output, which is unnormalised
                and converted back as by :meth:`Spec.to_absolute`. None: `actions` are in recorded units.

        Raises:
            ArgumentError: the batch's moment is not `anchor_ns`, for example because the aligner's next batch overwrote it.
        """
        anchor = whole("anchor_ns", anchor_ns)
        if offsets_s is None:
            fields = {} if self._spec is None else self._spec.keys[self._key or ""]
            if not fields.get("offsets_ns"):
                reason = f"the steps of '{self._key}' are rows" if fields else "there is no spec"
                raise errors.ArgumentError(f"offsets_s: expected seconds, since {reason}")
            offsets = np.array(fields["offsets_ns"], np.int64)
        else:
            seconds = _floats("offsets_s", offsets_s)
            if seconds.ndim != 1 or not (np.abs(seconds) <= 1e9).all():
                raise errors.ArgumentError(f"offsets_s: expected [T] seconds within +-1e9, got {offsets_s!r}")
            offsets = np.round(seconds * 1e9).astype(np.int64)
        if batch is not None:
            moment = int(batch["time_ns"][0]) if "time_ns" in batch else anchor
            if moment != anchor:
                raise errors.ArgumentError(
                    f"batch: expected the one of the moment {anchor}, got that of {moment}; an aligner's next batch overwrites "
                    "the memory: copy values that you keep"
                )
            actions = self._as_recorded(actions, batch)
        values = _floats("actions", actions.detach().cpu().double() if hasattr(actions, "detach") else actions)
        values = values[0] if values.ndim == 3 and len(values) == 1 else values
        if values.ndim != 2 or len(values) != len(offsets) or not len(offsets):
            raise errors.ArgumentError(f"actions: expected [{len(offsets)}, D], got {list(values.shape)}")
        if (np.diff(offsets) <= 0).any():
            raise errors.ArgumentError("offsets_s: expected ascending seconds")
        _chunks_put(self._handle, _lib.from_numpy(anchor + offsets), _lib.from_numpy(np.ascontiguousarray(values)))

    def at(self, time_ns: int) -> np.ndarray | None:
        """Returns the action at a moment, ``[D]`` float64. If no chunk has one, returns None, and :attr:`starved` counts it.

        Ask for moments in ascending order: chunks without an action at or after the moment are dropped.
        """
        action = _chunks_at(self._handle, whole("time_ns", time_ns))
        return None if action is None else _lib.to_numpy(action)

    def leftover(self, time_ns: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rest of the newest chunk after a moment: stamps ``[n]`` and actions ``[n, D]``. Real-time chunking begins
        its next chunk with them."""
        rest = _chunks_leftover(self._handle, whole("time_ns", time_ns))
        stamps, actions = (_lib.to_numpy(_array_of(rest, None, index)) for index in range(2))
        return stamps, actions.reshape(len(stamps), -1 if len(stamps) else 0)

    def frozen(self, time_ns: int) -> int:
        """Returns the number of steps of the newest chunk that begin at or before a moment. A chunk that arrives at the moment
        cannot replace these steps.

        ``frozen(u) - frozen(t)`` of the steps that :meth:`leftover` returns at t are executed before u.
        """
        frozen: int = _chunks_frozen(self._handle, whole("time_ns", time_ns))
        return frozen

    @property
    def covered_until_ns(self) -> int | None:
        until: int | None = _chunks_covered_until_ns(self._handle)
        return until

    @property
    def starved(self) -> int:
        starved: int = _chunks_starved(self._handle)
        return starved

    def _as_recorded(self, output: Any, batch: Mapping[str, Any]) -> Any:
        if self._spec is None or self._key is None:
            raise errors.ArgumentError("batch: expected a spec with it, got none")
        fields = self._spec.keys[self._key]
        if fields["convert"] is not None:
            return self._spec.to_absolute(self._key, output, batch)
        return self._spec.unnormalize(self._key, output)


def _floats(name: str, value: Any) -> np.ndarray:
    """Returns a copy of numbers as float64."""
    try:
        return np.array(value, np.float64)
    except (TypeError, ValueError) as error:
        raise errors.ArgumentTypeError(f"{name}: expected an array of numbers, got {value!r:.80}") from error


def _turns(fields: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Returns the angles and rotations in recorded rows: for each its first feature, and ``"angle"`` or its rotation form."""
    turns: dict[int, str] = {}
    for begin, end, method in fields["rows"]["methods"] if fields["rows"] else ():
        width, form = {"angle": (1, "angle"), "slerp": (4, "quat_xyzw")}.get(method, (0, ""))
        if form:
            turns |= dict.fromkeys(range(begin, end, width), form)
    steps = fields["convert"]["steps"] if fields["convert"] else ()
    for step in steps[:1]:  # later conversions count converted features
        turns |= dict.fromkeys(step["angles"], "angle")
        width = rotation_width("rotation", step["rotation"])
        begins = [step["begin"]] if step["step"] == "rotate" else []
        if step["step"] in ("se3", "mixed", "base_frame"):
            begins = step["features"][3 :: 3 + width]
        for begin in begins:  # one rotation replaces three angles
            turns = {feature: form for feature, form in turns.items() if not begin <= feature < begin + width}
            turns[begin] = step["rotation"]
    return sorted(turns.items())
