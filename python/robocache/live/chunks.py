"""A policy's action chunks become the action at a moment: by the stamps of their steps, never by counting calls."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import errors
from .._check import number, whole
from ..spec import Spec

_MODES = ("newest", "ensemble", "cross-fade")


class _Chunk(NamedTuple):
    time_ns: np.ndarray  # [T], ascending
    actions: np.ndarray  # [T, D]
    end_ns: int  # a step's length behind the last one

    def at(self, time_ns: int) -> np.ndarray | None:
        """The last step at or before a moment."""
        step = int(np.searchsorted(self.time_ns, time_ns, "right")) - 1
        return None if step < 0 or time_ns >= self.end_ns else self.actions[step]


class Chunks:
    """The chunks that a policy has put out, and the action at a moment.

    Each step of a chunk has a stamp: its anchor's plus its offset. A step counts from its stamp to the next one's, the last for
    as long as the one before it. So steps that were over when the chunk came are passed over by time.

    Args:
        mode: ``"newest"``: the action is that of the newest chunk that has one at the moment. ``"ensemble"``: the mean of all that have
            one, weighted by exp(-`decay` i), i = 0 for the oldest (ACT, Zhao et al., 2023). ``"cross-fade"``: from the chunk before
            to the newest, in a straight line over `fade_s` seconds from the first moment asked for after it came.
        decay: ACT's m.
        fade_s: seconds.
        spec: a :class:`robocache.Spec`: with `key`, :meth:`put` takes the policy's output as it is, and the spec's offsets.
        key: the key of the spec whose values the policy puts out.

    Attributes:
        starved: moments asked for at which no chunk had an action.
        covered_until_ns: the moment from which on no chunk has an action; None before the first chunk.

    Raises:
        ArgumentError, ArgumentTypeError: naming the argument, what was expected and what came.

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
        if mode not in _MODES:
            raise errors.ArgumentError(f"mode: expected one of {', '.join(map(repr, _MODES))}, got {mode!r}")
        self._mode, self._decay, self._fade_ns = (
            mode,
            float(number("decay", decay)),
            1e9 * float(number("fade_s", fade_s)),
        )
        if not self._fade_ns > 0 or not math.isfinite(self._decay):
            raise errors.ArgumentError(f"fade_s, decay: expected above 0, and finite, got {fade_s!r} and {decay!r}")
        if (spec is None) != (key is None):
            raise errors.ArgumentError("spec, key: expected both or none")
        if spec is not None and key not in spec.keys:
            raise errors.ArgumentError(f"key: expected one of the spec's, {', '.join(spec.keys)}, got {key!r}")
        self._spec, self._key = spec, key
        self._chunks: deque[_Chunk] = deque()  # by the anchors' stamps, the newest last
        self._fades_from: int | None = None
        self.starved = 0

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
            offsets_s: ``[T]`` ascending seconds from it, a step each; None: those of the spec's key.
            actions: ``[T, D]``, or ``[1, T, D]``.
            batch: with a spec, the batch that the policy saw: `actions` are then its output, which is unnormalised and converted
                back as :meth:`Spec.to_absolute` does it. None: they are as recorded.
        """
        anchor = whole("anchor_ns", anchor_ns)
        if offsets_s is None:
            if self._spec is None:
                raise errors.ArgumentError("offsets_s: expected seconds, since there is no spec")
            offsets = np.array(self._spec.keys[self._key or ""]["offsets_ns"], np.int64)
        else:
            offsets = np.round(np.asarray(offsets_s, np.float64) * 1e9).astype(np.int64)
        if batch is not None:
            actions = self._as_recorded(actions, batch)
        values = np.array(
            actions.detach().cpu().double().numpy() if hasattr(actions, "detach") else actions, np.float64
        )
        values = values[0] if values.ndim == 3 and len(values) == 1 else values
        if values.ndim != 2 or len(values) != len(offsets) or not len(offsets):
            raise errors.ArgumentError(f"actions: expected [{len(offsets)}, D], got {list(values.shape)}")
        if (np.diff(offsets) <= 0).any():
            raise errors.ArgumentError("offsets_s: expected ascending seconds")
        if not np.isfinite(values).all():
            raise errors.ArgumentError("actions: expected finite numbers")
        if self._chunks and values.shape[1] != self._chunks[-1].actions.shape[1]:
            raise errors.ArgumentError(
                f"actions: expected {self._chunks[-1].actions.shape[1]} features, got {values.shape[1]}"
            )
        time_ns = anchor + offsets
        length = int(time_ns[-1] - time_ns[-2]) if len(time_ns) > 1 else 1
        chunk = _Chunk(time_ns, values, int(time_ns[-1]) + length)
        index = sum(int(one.time_ns[0]) <= int(time_ns[0]) for one in self._chunks)  # an older one may come late
        self._fades_from = None if index == len(self._chunks) else self._fades_from
        self._chunks.insert(index, chunk)

    def at(self, time_ns: int) -> np.ndarray | None:
        """The action ``[D]`` float64 at a moment; None, which :attr:`starved` counts, where no chunk has one.

        Moments are asked for in ascending order: chunks that have no action at or after one are forgotten.
        """
        moment = whole("time_ns", time_ns)
        while self._chunks and self._chunks[0].end_ns <= moment and len(self._chunks) > 1:
            self._chunks.popleft()
        found = [action for chunk in self._chunks if (action := chunk.at(moment)) is not None]
        if not found:
            self.starved += 1
            return None
        if self._mode == "ensemble":
            weights = np.exp(-self._decay * np.arange(len(found)))
            return np.asarray(weights @ np.array(found) / weights.sum())
        if self._mode == "cross-fade" and len(found) > 1:
            self._fades_from = moment if self._fades_from is None else self._fades_from
            share = min(1.0, (moment - self._fades_from) / self._fade_ns)
            return np.asarray(found[-2] + share * (found[-1] - found[-2]))
        return np.array(found[-1])

    def leftover(self, time_ns: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rest of the newest chunk behind a moment: stamps ``[n]`` and actions ``[n, D]``, which real-time chunking
        begins its next chunk with."""
        if not self._chunks:
            return np.zeros(0, np.int64), np.zeros((0, 0))
        chunk = self._chunks[-1]
        step = int(np.searchsorted(chunk.time_ns, whole("time_ns", time_ns), "right"))
        return chunk.time_ns[step:].copy(), chunk.actions[step:].copy()

    def frozen(self, time_ns: int) -> int:
        """How many steps of the newest chunk begin at or before a moment: until then they are carried out, whatever comes.

        Of what :meth:`leftover` gives at the moment t, ``frozen(u) - frozen(t)`` are carried out before u.
        """
        if not self._chunks:
            return 0
        return int(np.searchsorted(self._chunks[-1].time_ns, whole("time_ns", time_ns), "right"))

    @property
    def covered_until_ns(self) -> int | None:
        return max((chunk.end_ns for chunk in self._chunks), default=None)

    def _as_recorded(self, output: Any, batch: Mapping[str, Any]) -> Any:
        if self._spec is None or self._key is None:
            raise errors.ArgumentError("batch: goes with a spec, got none")
        fields = self._spec.keys[self._key]
        if fields["convert"] is not None:
            return self._spec.to_absolute(self._key, output, batch)
        return self._spec.unnormalize(self._key, output)
