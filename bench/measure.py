"""Measures time: medians, on CUDA by graph replay, over inputs that are mostly not in the last cache (see COLD below).

The contenders of a case take turns, so that a slow moment of the machine affects all of them. On a GPU a contender runs once,
then the next one. On the CPU it runs many times before the next one does, since the contenders' threads would disturb each
other (see `apart` in median_us). Each case has a floor: a plain copy of the same
number of bytes in the same run.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

# Calls use sets of inputs in turn. Together the sets have COLD times LAST_CACHE_BYTES, so that a set is no longer cached when
# its turn comes again. Inputs stay cached if the processor's last cache is much larger than that, or if the calls are so small
# that even `most` sets (see input_sets) have fewer bytes than the cache.
COLD = 4
LAST_CACHE_BYTES = {"cuda": 60 << 20, "cpu": 64 << 20}  # an H200's L2 cache; a CPU's L3 cache
TURNS = 5  # the turns of each contender if they are timed apart
_QUEUEING_CYCLES = 400_000  # GPU cycles, about 0.2 ms: the time in which the CPU queues a graph and its events


def input_sets(bytes_per_call: int, device: str, most: int = 256, quick: bool = False) -> int:
    """Returns how many sets of inputs a call needs by COLD, from 2 to `most`; 2 if `quick`, whose times do not count."""
    return max(2, min(2 if quick else most, math.ceil(COLD * LAST_CACHE_BYTES[device] / max(1, bytes_per_call))))


def median_us(
    timers: dict[str, Callable[[], float]], rounds: int, apart: bool = False, seconds: float = math.inf
) -> dict[str, float]:
    """Returns the median microseconds of each contender. A contender's timer runs its work once and returns the microseconds of
    one call.

    Each contender runs `rounds` times; they take turns, one run each. After `seconds` measuring ends, but not before each has
    run five times.

    With `apart` a contender runs a fifth of its `rounds` times in a row, after a rest and a warm-up, then the next contender
    does, until each has had five such turns. `seconds` is then the limit of each contender, not of all together: a turn ends
    after a fifth of it, but not before the contender has run once. On the CPU the threads of a contender's runtime spin for a while and would take a
    core from the next contender, hence the rest; after a rest a core is slow at first, hence the warm-up. There are five turns,
    since other programs on the host may slow down a whole turn.
    """
    times_us: dict[str, list[float]] = {name: [] for name in timers}
    if apart:
        for turn, (name, timer) in itertools.product(range(1, TURNS + 1), timers.items()):
            time.sleep(0.3)
            warm_until = time.perf_counter() + 0.3
            while time.perf_counter() < warm_until:
                timer()
            stop_at = time.perf_counter() + seconds / TURNS
            while len(times_us[name]) * TURNS < rounds * turn:
                if time.perf_counter() >= stop_at and len(times_us[name]) >= turn:
                    break
                times_us[name].append(timer())
        return {name: statistics.median(times) for name, times in times_us.items()}
    for timer in timers.values():
        timer()
    stop_at = time.perf_counter() + seconds
    for rounds_done in range(rounds):
        if rounds_done >= 5 and time.perf_counter() > stop_at:
            break
        for name, timer in timers.items():
            times_us[name].append(timer())
    return {name: statistics.median(times) for name, times in times_us.items()}


def call_timer(calls: Sequence[Callable[[], object]]) -> Callable[[], float]:
    """Returns a timer of the wall time of one call. It makes the next of the calls each time it runs."""
    turns = itertools.cycle(calls)

    def timer() -> float:
        call = next(turns)
        start = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - start) / 1e3

    return timer


def graph_timer(calls: Sequence[Callable[[], object]], least_calls: int = 40) -> Callable[[], float]:
    """Returns a timer of the device time of one call: a CUDA graph, replayed between two events. The graph makes each of the
    calls equally often.

    The calls' results stay alive, so that no call writes where another has just written. The device is kept busy until the
    graph and both events are queued; otherwise the graph's launch would be timed too.
    """
    torch.cuda.synchronize()
    side_stream = torch.cuda.Stream()
    with torch.cuda.stream(side_stream):  # a warm-up on another stream, which must precede a capture
        for call in calls[:2]:
            call()
    side_stream.synchronize()
    count = len(calls) * math.ceil(least_calls / len(calls))
    graph, results = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for call in itertools.islice(itertools.cycle(calls), count):
            results.append(call())
    graph.replay()
    torch.cuda.synchronize()

    def timer() -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(_QUEUEING_CYCLES)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / count

    timer.kept = (graph, results, calls)  # the graph, its inputs and its outputs live as long as the timer
    return timer


def wall_timer(calls: Sequence[Callable[[], object]], count: int = 100) -> Callable[[], float]:
    """Returns a timer of the wall time of one call in a program: many calls in a row, then one wait for the device."""
    return _loop_timer(calls, count, wait=True)


def queueing_timer(calls: Sequence[Callable[[], object]], count: int = 100) -> Callable[[], float]:
    """Returns a timer of the wall time that the CPU takes to queue one call: many calls in a row, without the wait for the
    device."""
    return _loop_timer(calls, count, wait=False)


def wait_for_device() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _loop_timer(calls: Sequence[Callable[[], object]], count: int, wait: bool) -> Callable[[], float]:
    turns = itertools.cycle(calls)

    def timer() -> float:
        wait_for_device()
        start = time.perf_counter_ns()
        for call in itertools.islice(turns, count):
            call()
        if wait:
            wait_for_device()
        return (time.perf_counter_ns() - start) / 1e3 / count

    return timer


_EMPTY_KERNEL = b".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry empty() { ret; }\n"


def launch_us(rounds: int, count: int) -> float:
    """Returns the CPU's time for one bare launch in microseconds: the time of the driver's call for an empty kernel, less that of
    the same call with an empty grid, which the driver refuses. Both are timed directly after each other, since the time of a call drifts by more
    than a launch takes."""
    torch.cuda.synchronize()
    driver, module, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    for status in (
        driver.cuModuleLoadData(ctypes.byref(module), _EMPTY_KERNEL),
        driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"empty"),
    ):
        if status != 0:
            raise RuntimeError(f"the driver refused an empty kernel: error {status}")
    launch = driver.cuLaunchKernel
    launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
    timers = []
    for blocks in (1, 0):
        call = partial(launch, kernel, blocks, 1, 1, 32, 1, 1, 0, torch.cuda.current_stream().cuda_stream, None, None)
        if (call() == 0) != (blocks > 0):
            raise RuntimeError(f"a launch of {blocks} blocks was {'refused' if blocks else 'accepted'}")
        timers.append(queueing_timer([call], count))
    launched, refused = timers
    return statistics.median(launched() - refused() for _ in range(rounds))


def copy_timers(
    total_bytes: int, device: str, sets: int | None = None, least_calls: int = 40
) -> dict[str, Callable[[], float]]:
    """Returns timers of copies that read half of `total_bytes` and write the other half. The copies use `sets` pairs of buffers in
    turn, by default as many as input_sets() returns."""
    half = max(16, total_bytes // 2 // 16 * 16)
    pairs = []
    for _ in range(sets or input_sets(2 * half, device)):
        source = torch.randint(0, 255, (half,), dtype=torch.uint8, device=device)
        pairs.append((source, torch.zeros_like(source)))
    if device == "cpu":
        arrays = [(source.numpy(), target.numpy()) for source, target in pairs]  # numpy copies on one thread
        return {"copy by memcpy": call_timer([partial(np.copyto, target, source) for source, target in arrays])}
    kinds = {"copy by memcpy": lambda source, target: target.copy_(source), "copy by elementwise": _copy_elementwise}
    return _copy_timers(kinds | _triton_copies("copy"), pairs, partial(graph_timer, least_calls=least_calls))


def link_timers(total_bytes: int) -> dict[str, Callable[[], float]]:
    """Returns timers of the link from pinned host memory to the device: of a copy of `total_bytes`, and of kernels that read as
    many bytes."""
    size = max(16, total_bytes // 16 * 16)
    pairs = []
    for _ in range(input_sets(size, "cuda", most=32)):
        source = torch.randint(0, 255, (size,), dtype=torch.uint8).pin_memory()
        pairs.append((source, torch.empty(size, dtype=torch.uint8, device="cuda")))
    kinds = {"copy by memcpy": lambda source, target: target.copy_(source, non_blocking=True)}
    return _copy_timers(kinds | _triton_copies("read"), pairs, queued_timer)


def _copy_timers(
    kinds: dict[str, Callable[[torch.Tensor, torch.Tensor], object]],
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    timer_of: Callable[[Sequence[Callable[[], object]]], Callable[[], float]],
) -> dict[str, Callable[[], float]]:
    """Returns a timer over all pairs (source, target) for each kind of copy. For a kind that does not work here it prints the reason
    instead."""
    timers = {}
    for name, copy in kinds.items():
        try:
            timers[name] = timer_of([partial(copy, *pair) for pair in pairs])
        except Exception as error:
            print(f"  no {name}: {error}", flush=True)
    return timers


def queued_timer(calls: Sequence[Callable[[], object]]) -> Callable[[], float]:
    """Returns a timer of the device time of one call, without a graph: for calls that run far longer than it takes to queue them."""
    for call in calls:
        call()

    def timer() -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(_QUEUEING_CYCLES)
        start.record()
        for call in calls:
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / len(calls)

    return timer


def _copy_elementwise(source: torch.Tensor, target: torch.Tensor) -> None:
    # bitwise_not moves as many bytes as a copy, in an elementwise kernel; Tensor.copy_ would use memcpy.
    torch.bitwise_not(source.view(torch.int64), out=target.view(torch.int64))


def _triton_copies(verb: str) -> dict[str, Callable[[torch.Tensor, torch.Tensor], None]]:
    copy = _triton_copy()
    return {} if copy is None else {f"{verb} by triton {block}": partial(copy, block=block) for block in (2048, 8192)}


def _triton_copy() -> Callable[..., None] | None:
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
    """Yields batches, epoch after epoch."""
    while True:
        yield from loader


def batch_us(batches: Iterator, ahead: int, max_batches: int, seconds: float, device: str) -> float:
    """Returns the wall time per batch in microseconds, with its copy to the device. The first `ahead` batches, which may have been
    made in advance, do not count. Measuring ends after `max_batches`, or after `seconds` and five batches."""

    def move_batch() -> None:
        for x in next(batches).values():
            x.to(device, non_blocking=True)

    for _ in range(ahead):
        move_batch()
    wait_for_device()
    start, count = time.perf_counter(), 0
    while count < max_batches and (count < 5 or time.perf_counter() - start < seconds):
        move_batch()
        count += 1
    wait_for_device()
    return (time.perf_counter() - start) / count * 1e6


def shortest(times_us: dict[str, float], kind: str) -> float:
    """Returns the least time of the timers of a kind, "copy" or "read": their names begin with it."""
    matching = [us for name, us in times_us.items() if name.startswith(kind)]
    if not matching:
        raise ValueError(f"no timer of a {kind} works here; the reasons are printed above")
    return min(matching)
