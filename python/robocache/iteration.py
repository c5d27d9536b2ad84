"""Iterates over batches, epoch after epoch. Several loops may run at once. A state saves the position in the order."""

from __future__ import annotations

import abc
import atexit
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from . import errors
from ._check import whole
from .meter import Meter

Position = tuple[int, int, int, int, Any]  # seed, epoch, samples, buffer_set, weights


class BatchesInOrder(abc.ABC):
    """Iterates over batches of samples, in an order that the seed and the epoch determine. A subclass makes the batch at a position, and
    checks fingerprints.

    Attributes:
        batch_size: the samples in a batch of each rank.
        rank, world_size: this process among the processes that share each global batch.
        num_samples: the samples in an epoch, of all ranks together.
        seed, epoch, samples: the position in the order: all ranks together have returned the first `samples` samples of this epoch.
            :meth:`load_state_dict` changes the position.
        meter: measures how long loops wait for batches.
    """

    batch_size: int
    rank: int
    world_size: int
    num_samples: int
    _fingerprint: str
    _shards_episodes = False  # whether each rank has its own samples
    _weights: Any = None  # the weights by which the order is drawn, as the subclass keeps them

    def _begin(self, seed: int, drop_last: bool) -> None:
        """Moves to the beginning of the order. A subclass calls it once it has set everything else."""
        self.meter = Meter()
        # Reentrant, since a signal's handler may ask for the state while a batch is made.
        self._lock = threading.RLock()
        _living.add(self)
        self._loops: weakref.WeakSet[_Loop] = weakref.WeakSet()
        self._newest: Iteration
        # With drop_last an epoch ends as soon as the samples that are left are too few for a batch.
        self._end = self.num_samples - drop_last * (self.batch_size * self.world_size - 1)
        self.load_state_dict({"seed": seed, "epoch": 0, "samples": 0})

    @abc.abstractmethod
    def _batch_at(self, position: Position) -> dict[str, Any] | None:
        """Returns the batch at a position; None at the epoch's end."""

    def _complete(self, batch: dict[str, Any], position: Position) -> dict[str, Any]:
        """Returns the batch after the steps that need no lock, such as a caller's transforms."""
        return batch

    def _weights_of(self, seed: int, state: Mapping[str, Any]) -> Any:
        """Returns the weights of a state, by which the order is drawn. A subclass that raises an error must not have changed
        anything."""
        return None

    @abc.abstractmethod
    def _check_fingerprint(self, fingerprint: Any) -> None:
        """Raises ArgumentError if the fingerprint of a state is not that of this order."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._lock:
            thread = threading.get_ident()
            newest, loops = self._newest, self._living_loops()
            if loops:
                # Threads share an iteration. A loop inside a loop of the same thread gets an iteration of its own.
                last = max(loops, key=lambda loop: loop.iteration.epoch).iteration
                if all(loop.iteration is not last or loop.thread != thread for loop in loops):
                    return self._make_loop(last, thread)
            has_ended = newest.samples >= self._end and not newest.loaded
            if newest.begun or has_ended or any(loop.iteration is newest for loop in loops):
                newest = self._continue_after(newest)
            return self._make_loop(newest, thread)

    def _living_loops(self) -> list[_Loop]:
        """Returns the loops that are still referenced and have not ended."""
        return [loop for loop in self._loops if not loop.iteration.over]

    def _make_loop(self, iteration: Iteration, thread: int) -> _Loop:
        loop = _Loop(self, iteration, thread)
        self._loops.add(loop)
        return loop

    def _continue_after(self, last: Iteration) -> Iteration:
        """Begins the epoch after an iteration's, and returns the new iteration."""
        self._newest = Iteration(last.seed, last.epoch + 1, 0, self._unused_buffer_set())
        return self._newest

    def _unused_buffer_set(self) -> int:
        """Returns the least number that is no living iteration's `buffer_set`."""
        numbers = {loop.iteration.buffer_set for loop in self._living_loops()}
        return next(number for number in range(len(numbers) + 1) if number not in numbers)

    def __next__(self) -> dict[str, Any]:
        return self._next(None)

    def _next(self, iteration: Iteration | None) -> dict[str, Any]:
        """Returns the next batch of an iteration; None means the newest iteration."""
        began = time.perf_counter()
        with self._lock:
            current = iteration or self._newest
            if current.over:
                raise StopIteration
            position = current.seed, current.epoch, current.samples, current.buffer_set, self._weights
            batch = self._batch_at(position)
            if batch is None:
                current.over = True
                # The next loop begins at the start of the next epoch.
                if self._newest.over or (self._newest.begun and not self._living_loops()):
                    self._continue_after(self._newest)
                raise StopIteration
            current.samples = self._samples_after_batch(current.samples)
            current.begun = current.begun or iteration is not None
            current.loaded = False
        batch = self._complete(batch, position)
        with self._lock:
            self.meter._add(began, time.perf_counter())
        return batch

    def _samples_after_batch(self, samples: int) -> int:
        return min(samples + self.batch_size * self.world_size, self.num_samples)

    def _current(self) -> Iteration:
        """Returns the oldest living iteration, else the newest."""
        with self._lock:
            return min((loop.iteration for loop in self._living_loops()), key=lambda x: x.epoch, default=self._newest)

    @property
    def seed(self) -> int:
        return self._current().seed

    @property
    def epoch(self) -> int:
        return self._current().epoch

    @property
    def samples(self) -> int:
        return self._current().samples

    def set_epoch(self, epoch: int) -> None:
        """Moves to the beginning of an epoch, as torch's DistributedSampler does. If a state of this epoch was just loaded, its
        position stays."""
        with self._lock:
            current = self._current()
            if not (epoch == current.epoch and current.loaded):
                self.load_state_dict({"seed": current.seed, "epoch": epoch, "samples": 0})

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as JSON values. After :meth:`load_state_dict` of this state, the next batch is the one after the last
        batch returned. The batch size may differ; so may the number of ranks, unless each rank has its own episodes
        (``shard_episodes``). With nested loops it is the state of the outermost loop that still runs; if none runs, of the loop
        that began last. `fingerprint` identifies the dataset and the order: a checksum of the anchors, of rows of some drawn
        episodes and of what the order depends on."""
        with self._lock:
            current = self._current()
            position = {"seed": current.seed, "epoch": current.epoch, "samples": current.samples}
        return {**position, "fingerprint": self._fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves to the state's position, without reading the samples before it. The next loop returns the rest of its epoch.

        Raises:
            ArgumentError: the state is invalid, or its fingerprint is that of another dataset, selection or order. A state may
                have no fingerprint, and ``step``, global batches, instead of ``samples``.
        """
        if not isinstance(state, Mapping):
            raise errors.ArgumentTypeError(f"state: expected a result of state_dict(), got {state!r}")
        state = dict(state)
        if "fingerprint" in state:
            self._check_fingerprint(state["fingerprint"])
        if "samples" not in state and "step" in state:  # the format of older states
            samples = whole("step", state["step"]) * self.batch_size * self.world_size
            state["samples"] = min(samples, self.num_samples) if samples >= 0 else samples
        position = {}
        for key, largest in {"seed": 2**63 - 1, "epoch": 2**63 - 1, "samples": self.num_samples}.items():
            position[key] = whole(key, state.get(key))
            if not 0 <= position[key] <= largest:
                raise errors.ArgumentError(f"{key}: expected an int in [0, {largest}], got {position[key]}")
        if self._shards_episodes and position["samples"] % self.world_size:
            raise errors.ArgumentError(
                f"samples: expected a multiple of {self.world_size}, the number of ranks, since each has its own episodes; "
                f"got {position['samples']}"
            )
        with self._lock:
            self._weights = self._weights_of(position["seed"], state)
            for loop in self._living_loops():
                loop.iteration.over = True
            self._newest = Iteration(**position, buffer_set=0, loaded=True)


_living: weakref.WeakSet[BatchesInOrder] = weakref.WeakSet()


@atexit.register
def _hold_locks() -> None:
    """Takes the lock of each loader and keeps it, so that no daemon thread enters the library any more: a thread that returned
    from the library after the interpreter's end would abort the process."""
    for batches in list(_living):
        batches._lock.acquire(timeout=10)


class Iteration:
    """One pass over an epoch. Several loops may share it.

    Attributes:
        seed, epoch, samples: the position in the order after the last batch returned.
        buffer_set: the number of the set of buffers that its batches use with reuse_buffers. No other living iteration has it.
        begun: whether a loop has taken a batch.
        loaded: whether a loaded state set the position, and no batch was taken since.
        over: whether it has ended, so that its loops end too.
    """

    def __init__(self, seed: int, epoch: int, samples: int, buffer_set: int, *, loaded: bool = False) -> None:
        self.seed, self.epoch, self.samples, self.buffer_set = seed, epoch, samples, buffer_set
        self.begun, self.loaded, self.over = False, loaded, False


class _Loop(Iterator[dict[str, Any]]):
    """The iterator of a loop over a loader. It ends with its iteration, in all threads."""

    def __init__(self, batches: BatchesInOrder, iteration: Iteration, thread: int) -> None:
        self._batches = batches
        self.iteration = iteration
        self.thread = thread

    def __next__(self) -> dict[str, Any]:
        return self._batches._next(self.iteration)
