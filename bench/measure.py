"""How time is taken: medians, on CUDA by graph replay over inputs that do not fit the L2 cache.

On a GPU the contenders of a case take turns, round after round, so that a slow moment of the machine meets all of them
alike; on the CPU they follow one another, since their threads get in each other's way. A floor stands beside each case:
a plain copy that moves the same number of bytes in the same run.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

# The rotation touches this many times the last cache before it comes back to the same bytes.
COLD = 4
LAST_CACHE_BYTES = {"cuda": 60 << 20, "cpu": 64 << 20}


def rotations(bytes_per_call: int, device: str, most: int = 256) -> int:
    """How many sets of inputs make a rotation cold."""
    return max(2, min(most, math.ceil(COLD * LAST_CACHE_BYTES[device] / max(1, bytes_per_call))))


def median_us(timers: dict[str, Callable[[], float]], rounds: int, apart: bool = False) -> dict[str, float]:
    """Median microseconds of each timer; a timer runs its work once and returns the microseconds of one call.

    Contenders take turns, round after round, or with `apart` one after the other, each after a rest and half a second of
    its own work: on the CPU the threads of one contender's runtime go on spinning for a while and would take a core from
    the next, and a core that has rested is slow at first.
    """
    taken: dict[str, list[float]] = {name: [] for name in timers}
    if apart:
        for name, timer in timers.items():
            time.sleep(0.5)
            warm_until = time.perf_counter() + 0.5
            while time.perf_counter() < warm_until:
                timer()
            taken[name] = [timer() for _ in range(rounds)]
        return {name: statistics.median(times) for name, times in taken.items()}
    for timer in timers.values():
        timer()
    for _ in range(rounds):
        for name, timer in timers.items():
            taken[name].append(timer())
    return {name: statistics.median(times) for name, times in taken.items()}


def cpu_timer(calls: Sequence[Callable[[], object]]) -> Callable[[], float]:
    """Wall time of one call, the next of the rotation each time, in a loop without pauses."""
    rotation = itertools.cycle(calls)

    def timer() -> float:
        call = next(rotation)
        start = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - start) / 1e3

    return timer


def graph_timer(calls: Sequence[Callable[[], object]], least_calls: int = 40) -> Callable[[], float]:
    """Device time of one call: a CUDA graph of whole rotations, replayed between two events.

    What the calls return stays alive, so that no call writes where another has just written.
    """
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls[:2]:
            call()
    side.synchronize()
    count = len(calls) * math.ceil(least_calls / len(calls))
    graph, kept = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for call in itertools.islice(itertools.cycle(calls), count):
            kept.append(call())
    graph.replay()
    torch.cuda.synchronize()

    def timer() -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / count

    timer.kept = (graph, kept)  # the graph lives as long as its timer
    return timer


def wall_timer(calls: Sequence[Callable[[], object]], count: int = 100) -> Callable[[], float]:
    """Wall time of one call as a program sees it: many calls in a row, then one wait for the device."""
    return _row_timer(calls, count, wait=True)


def host_timer(calls: Sequence[Callable[[], object]], count: int = 100) -> Callable[[], float]:
    """CPU time of one call that only queues work: many calls in a row, the wait for the device off the clock."""
    return _row_timer(calls, count, wait=False)


def _row_timer(calls: Sequence[Callable[[], object]], count: int, wait: bool) -> Callable[[], float]:
    rotation = itertools.cycle(calls)

    def timer() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for call in itertools.islice(rotation, count):
            call()
        if wait:
            torch.cuda.synchronize()
        return (time.perf_counter_ns() - start) / 1e3 / count

    return timer


def copy_timers(total_bytes: int, device: str, sets: int | None = None) -> dict[str, Callable[[], float]]:
    """Copies that read half of `total_bytes` and write the other half, over `sets` of buffers, by default a cold rotation."""
    half = max(16, total_bytes // 2 // 16 * 16)
    pairs = []
    for _ in range(sets or rotations(2 * half, device)):
        source = torch.randint(0, 255, (half,), dtype=torch.uint8, device=device)
        pairs.append((source, torch.zeros_like(source)))
    if device == "cpu":
        arrays = [(source.numpy(), target.numpy()) for source, target in pairs]  # numpy copies on one thread
        return {"copy by memcpy": cpu_timer([partial(np.copyto, target, source) for source, target in arrays])}
    kinds = {"memcpy": lambda source, target: target.copy_(source), "elementwise": _copy_elementwise}
    triton_copy = _triton_copy()
    if triton_copy is not None:
        for block in (2048, 8192):
            kinds[f"triton {block}"] = lambda source, target, block=block: triton_copy(source, target, block)
    timers = {}
    for name, copy in kinds.items():
        try:
            timers[f"copy by {name}"] = graph_timer([partial(copy, source, target) for source, target in pairs])
        except Exception as error:
            print(f"  no copy by {name}: {error}", flush=True)
    return timers


def _copy_elementwise(source: torch.Tensor, target: torch.Tensor) -> None:
    torch.bitwise_not(source.view(torch.int64), out=target.view(torch.int64))


def _triton_copy() -> Callable[[torch.Tensor, torch.Tensor, int], None] | None:
    try:
        import triton
        import triton.language as tl
    except ImportError:
        return None

    @triton.jit
    def kernel(source, target, count, BLOCK: tl.constexpr):
        offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = offsets < count
        tl.store(target + offsets, tl.load(source + offsets, mask=inside), mask=inside)

    def copy(source: torch.Tensor, target: torch.Tensor, block: int) -> None:
        source, target = source.view(torch.int64), target.view(torch.int64)
        kernel[(triton.cdiv(source.numel(), block),)](source, target, source.numel(), BLOCK=block)

    return copy


def endless(loader) -> Iterator:
    """Batch after batch, epoch after epoch."""
    while True:
        yield from loader
