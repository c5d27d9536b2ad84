"""Gives batches in the order of their epochs: loops, also several at once, and the position in the order as a state."""

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

Position = tuple[int, int, int, int, Any]  # seed, epoch, samples, memory, weights


class BatchesInOrder(abc.ABC):
    """Iterates over batches of a drawn order. A subclass makes the batch at a position, and checks fingerprints.

    Attributes:
        batch_size: samples a batch, of each rank.
        rank, world_size: this process among those that share each global batch.
        num_samples: samples an epoch, of all ranks together.
        seed, epoch, samples: the position in the order: `samples` of the epoch's have been given, by all ranks together;
            :meth:`load_state_dict` moves it.
        meter: measures how long loops wait.
    """

    batch_size: int
    rank: int
    world_size: int
    num_samples: int
    _fingerprint: str
    _shards = False  # whether ranks have samples of their own
    _weights: Any = None  # the weights of the order's positions, as the subclass keeps them

    def _begin(self, seed: int, drop_last: bool) -> None:
        """Goes to the beginning of the order, when all of it is known."""
        self.meter = Meter()
        # A handler of a signal that comes while a batch is made may ask for the state.
        self._lock = threading.RLock()
        _living.add(self)
        self._loops: weakref.WeakSet[_Loop] = weakref.WeakSet()
        self._newest: Iteration
        # An epoch ends here: fewer samples are left than make a batch.
        self._end = self.num_samples - drop_last * (self.batch_size * self.world_size - 1)
        self.load_state_dict({"seed": seed, "epoch": 0, "samples": 0})

    @abc.abstractmethod
    def _batch_at(self, position: Position) -> dict[str, Any] | None:
        """The batch at a position; None at the epoch's end."""

    def _completed(self, batch: dict[str, Any], position: Position) -> dict[str, Any]:
        """The batch with what other threads need not wait for."""
        return batch

    def _weights_of(self, seed: int, state: Mapping[str, Any]) -> Any:
        """Returns the weights of a state, for the positions of the order. If it raises, nothing has changed."""
        return None

    @abc.abstractmethod
    def _check_fingerprint(self, fingerprint: Any) -> None:
        """Raises if it is of another order."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._lock:
            thread = threading.get_ident()
            newest, alive = self._newest, self._alive()
            if alive:
                # Threads share an iteration; a loop inside a loop of the same thread is another one.
                last = max(alive, key=lambda loop: loop.iteration.epoch).iteration
                if all(loop.iteration is not last or loop.thread != thread for loop in alive):
                    return self._loop(last, thread)
            ended = newest.samples >= self._end and not newest.loaded
            if newest.begun or ended or any(loop.iteration is newest for loop in alive):
                newest = self._go_on_behind(newest)
            return self._loop(newest, thread)

    def _alive(self) -> list[_Loop]:
        """The loops that somebody holds and that have not ended."""
        return [loop for loop in self._loops if not loop.iteration.over]

    def _loop(self, iteration: Iteration, thread: int) -> _Loop:
        loop = _Loop(self, iteration, thread)
        self._loops.add(loop)
        return loop

    def _go_on_behind(self, last: Iteration) -> Iteration:
        self._newest = Iteration(last.seed, last.epoch + 1, 0, self._free_memory())
        return self._newest

    def _free_memory(self) -> int:
        """The first number that no living iteration has."""
        taken = {loop.iteration.memory for loop in self._alive()}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def __next__(self) -> dict[str, Any]:
        return self._next(None)

    def _next(self, iteration: Iteration | None) -> dict[str, Any]:
        """The next batch of an iteration that a loop draws from, or of the newest."""
        with self._lock:
            of = iteration or self._newest
            if of.over:
                raise StopIteration
            began = time.perf_counter()
            position = of.seed, of.epoch, of.samples, of.memory, self._weights
            batch = self._batch_at(position)
            if batch is None:
                of.over = True
                # The next loop begins where the last one ended: at the start of an epoch.
                if self._newest.over or (self._newest.begun and not self._alive()):
                    self._go_on_behind(self._newest)
                raise StopIteration
            of.samples = self._after(of.samples)
            of.begun = of.begun or iteration is not None
            of.loaded = False
            self.meter._add(began, time.perf_counter())
        return self._completed(batch, position)

    def _after(self, samples: int) -> int:
        return min(samples + self.batch_size * self.world_size, self.num_samples)

    def _stands_at(self) -> Iteration:
        """The oldest iteration that is alive, else the newest."""
        with self._lock:
            return min((loop.iteration for loop in self._alive()), key=lambda of: of.epoch, default=self._newest)

    @property
    def seed(self) -> int:
        return self._stands_at().seed

    @property
    def epoch(self) -> int:
        return self._stands_at().epoch

    @property
    def samples(self) -> int:
        return self._stands_at().samples

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch, as a DistributedSampler of torch does; where a state was loaded whose epoch it is,
        its position stays."""
        at = self._stands_at()
        if not (epoch == at.epoch and at.loaded):
            self.load_state_dict({"seed": at.seed, "epoch": epoch, "samples": 0})

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, as JSON values, with which :meth:`load_state_dict` continues after the last batch given, with any
        batch size and any number of ranks. Among nested loops it is the outermost's: the oldest iterator that is neither at its
        end nor garbage; without one, the newest iterator's. `fingerprint` identifies the dataset and the order."""
        with self._lock:
            at = self._stands_at()
            position = {"seed": at.seed, "epoch": at.epoch, "samples": at.samples}
        return {**position, "fingerprint": self._fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to that position at once, however far it is. The next loop gives the rest of its epoch.

        Raises:
            ArgumentError: the state is of another dataset, selection or order, or is none. One without a fingerprint is not
                asked whose it is.
        """
        if not isinstance(state, Mapping):
            raise errors.ArgumentTypeError(f"state: expected what state_dict() gave, got {state!r}")
        state = dict(state)
        if "fingerprint" in state:
            self._check_fingerprint(state["fingerprint"])
        if "samples" not in state and "step" in state:  # as it was before batches were shared between ranks
            done = whole("step", state["step"]) * self.batch_size * self.world_size
            state["samples"] = min(done, self.num_samples) if done >= 0 else done
        position = {}
        for key, largest in {"seed": 2**63 - 1, "epoch": 2**63 - 1, "samples": self.num_samples}.items():
            position[key] = whole(key, state.get(key))
            if not 0 <= position[key] <= largest:
                raise errors.ArgumentError(f"{key}: expected an int in [0, {largest}], got {position[key]}")
        if self._shards and position["samples"] % self.world_size:
            raise errors.ArgumentError(
                f"samples: expected a multiple of the {self.world_size} ranks that have episodes of their own, "
                f"got {position['samples']}"
            )
        with self._lock:
            self._weights = self._weights_of(position["seed"], state)
            for loop in self._alive():
                loop.iteration.over = True
            self._newest = Iteration(**position, memory=0, loaded=True)


_living: weakref.WeakSet[BatchesInOrder] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """Lets no daemon thread into a loader any more: one that is inside while the interpreter ends would end the process with
    an abort, since it finds no interpreter to come back to."""
    for batches in list(_living):
        batches._lock.acquire(timeout=10)


class Iteration:
    """One pass over an epoch, of all the loops that share it.

    Attributes:
        seed, epoch, samples: the position in the order behind the last batch given.
        memory: with reuse_buffers a number that no other living iteration has: batches of one number take each other's memory.
        begun: whether a loop has had a batch.
        loaded: whether a state says that it begins here, and no batch was given since.
        over: whether its loops have ended.
    """

    def __init__(self, seed: int, epoch: int, samples: int, memory: int, *, loaded: bool = False) -> None:
        self.seed, self.epoch, self.samples, self.memory = seed, epoch, samples, memory
        self.begun, self.loaded, self.over = False, loaded, False


class _Loop(Iterator[dict[str, Any]]):
    """The iterator of a loop over a loader. It ends with its iteration, in every thread that is in it."""

    def __init__(self, batches: BatchesInOrder, iteration: Iteration, thread: int) -> None:
        self._batches = batches
        self.iteration = iteration
        self.thread = thread

    def __next__(self) -> dict[str, Any]:
        return self._batches._next(self.iteration)
