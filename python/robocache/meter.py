"""Measures how long a training loop waits for its data."""

from __future__ import annotations


class Meter:
    """Measures how long training loops wait for their data: the time inside ``next(loader)``, with a caller's transforms. The
    times of loops in several threads add up.

    Attributes:
        batches: the number of batches since the beginning, or since :meth:`reset`.
        waited_s: seconds inside the loader. On CUDA a batch's time ends when its kernel is queued, not when it has run.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.batches = 0
        self.waited_s = 0.0
        self._first: float | None = None
        self._last = 0.0

    def _add(self, began: float, ended: float) -> None:
        self._first = began if self._first is None else min(self._first, began)
        self.batches += 1
        self.waited_s += ended - began
        self._last = max(self._last, ended)

    @property
    def elapsed_s(self) -> float:
        """Seconds from the first batch's start to the last batch's end."""
        return 0.0 if self._first is None else self._last - self._first

    @property
    def share(self) -> float:
        """The share of :attr:`elapsed_s` spent waiting: from 0 to 1 with one loop, up to the number of threads with several."""
        return self.waited_s / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def __repr__(self) -> str:
        return f"robocache.Meter({self})"

    def __str__(self) -> str:
        batches = f"{self.batches:,} batch{'es' * (self.batches != 1)}"
        return f"{batches}: {self.waited_s:.3f} of {self.elapsed_s:.3f} s waited for data ({self.share:.1%})"
