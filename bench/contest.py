"""Runs one case: robocache and its peers on the same inputs, and a copy. Every peer is checked before it is timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial

import torch
from measure import call_timer, copy_timers, graph_timer, launch_us, median_us, queueing_timer, shortest, wall_timer

OURS = "robocache"
# A measure takes at most this many rounds, and after five rounds at most this many seconds.
ROUNDS, SECONDS = {"cuda": 31, "cpu": 101}, 0.4


def contest(
    case: dict,
    inputs: Sequence[tuple],
    ours: Callable[..., torch.Tensor],
    peers: dict[str, Callable[..., torch.Tensor]],
    verify: Callable[[torch.Tensor, torch.Tensor], dict],
    device: str,
    quick: bool,
    waiting: Collection[str] = (),
    count: int = 100,
) -> None:
    """Fills in a case that has case["bytes"]: contenders, failures, floor_us and their ratios.

    inputs: sets of the arguments of a call, as many as input_sets() says, so that no call finds its inputs in the CPU's or the
        GPU's cache.
    verify: compares our output with a peer's on the first set; raises AssertionError, or returns facts about the difference.
    waiting: the contenders that wait for the device or do not run on it, so they cannot be part of a graph.
    count: the calls in a round of a measure without a graph.

    If the case also has case["read_bytes"], read_floor_us is the time of a copy of the inputs alone.
    """
    case["contenders"], case["failures"] = {OURS: {}}, {}
    calls = {OURS: [partial(ours, *x) for x in inputs]}
    reference = ours(*inputs[0])
    for name, peer in peers.items():
        try:
            case["contenders"][name] = verify(reference, peer(*inputs[0]))
            calls[name] = [partial(peer, *x) for x in inputs]
        except Exception as error:
            fail(case, name, error)

    rounds = 3 if quick else ROUNDS[device]
    if device == "cuda":
        count = 10 if quick else count
        # A large case needs fewer calls in a graph, since the result of each is kept.
        least_calls = max(8, min(40, math.ceil(4e9 / case["bytes"])))
        measures = {
            "gpu_us": partial(graph_timer, least_calls=least_calls),
            "wall_us": partial(wall_timer, count=count),
            "host_us": partial(queueing_timer, count=count),
        }
        main = "wall_us" if OURS in waiting else "gpu_us"
        copy_of = partial(copy_timers, device=device, least_calls=least_calls)
    else:
        measures = {"wall_us": lambda calls: call_timer(calls[:1]), "cold_us": call_timer}
        main, copy_of = "wall_us", partial(copy_timers, device=device, sets=1)
    copies = copy_of(case["bytes"])
    for measure, timer_of in measures.items():
        names = [OURS] if measure == "host_us" else calls
        names = [name for name in names if name not in waiting or measure not in ("gpu_us", "host_us")]
        timers = make_timers(case, measure, timer_of, {name: calls[name] for name in names})
        if measure == main:
            timers |= copies
        times_us = median_us(timers, rounds, seconds=SECONDS, apart=device == "cpu" and not quick)
        for name in calls.keys() & times_us.keys():
            case["contenders"][name][measure] = times_us[name]
        case.setdefault("copies_us", {}).update((name, times_us[name]) for name in copies.keys() & times_us.keys())
        del timers
    if "read_bytes" in case:
        case["read_floor_us"] = min(median_us(copy_of(case["read_bytes"]), rounds, seconds=SECONDS).values())
    case["faster_than"] = compute_ratios(case, main)
    if device == "cuda":
        case["in_a_loop_faster_than"] = compute_ratios(case, "wall_us")
        del calls, copies, reference
        torch.cuda.empty_cache()
    compare_with_copies(case, case["contenders"][OURS][main], case["copies_us"])


def make_timers(
    case: dict, measure: str, timer_of: Callable, calls: dict[str, Sequence[Callable]]
) -> dict[str, Callable[[], float]]:
    """Returns a timer for each contender. If one cannot be made, that is a failure of the case."""
    timers = {}
    for name in calls:
        try:
            timers[name] = timer_of(calls[name])
        except Exception as error:
            fail(case, f"{name}, {measure}", error)
    return timers


def compare_with_copies(case: dict, ours_us: float, copies_us: dict[str, float]) -> None:
    """Fills in copies_us, floor_us and times_the_copy, and prints the result with the case's faster_than."""
    case["copies_us"], case["floor_us"] = copies_us, shortest(copies_us, "copy")
    case["times_the_copy"] = ours_us / case["floor_us"]
    print(f"  {case['times_the_copy']:.2f} times the copy; faster than {case['faster_than']}", flush=True)


def compute_ratios(case: dict, measure: str) -> dict[str, float]:
    """Returns {peer: its time divided by ours}. A peer that lacks the measure is compared by wall_us."""
    ours, ratios = case["contenders"][OURS], {}
    for name, theirs in case["contenders"].items():
        used_measure = measure if measure in theirs else "wall_us"
        if name != OURS and used_measure in theirs and used_measure in ours:
            ratios[name] = theirs[used_measure] / ours[used_measure]
    return ratios


def overhead(calls: dict[str, Callable[[], object]], quick: bool, case: dict) -> None:
    """Fills in a case with the host time of a call that queues work, and for ours the part beyond the launch itself."""
    rounds, count = (3, 10) if quick else (201, 100)
    case["contenders"], case["failures"] = {}, {}
    timers = {name: queueing_timer([call], count) for name, call in calls.items()}
    case["contenders"] = {name: {"host_us": us} for name, us in median_us(timers, rounds, apart=not quick).items()}
    if torch.cuda.is_available():
        try:
            launch, ours = launch_us(rounds, count), case["contenders"][OURS]["host_us"]
            if not (quick or 0 < launch < ours):  # a smoke run has too few calls for a difference
                raise RuntimeError(f"took {launch:.3g} us of {ours:.3g}")
            case |= {"launch_us": launch, "beyond_the_launch_us": ours - launch}
        except Exception as error:
            fail(case, "a bare launch", error)


def fail(case: dict, name: str, error: Exception) -> None:
    case["failures"][name] = f"{type(error).__name__}: {error}"
    print(f"  {name} failed: {error}", flush=True)


def largest_error_over_bound(ours: torch.Tensor, theirs: torch.Tensor, largest: float) -> dict:
    """Returns the largest error of a peer of linear interpolation over its bound, and refuses errors above the bound. `largest`
    is the largest absolute value of the inputs.

    A peer rounds in float32 the weight w between the samples a and b (three times if int64 differences become float32 first),
    b - a, 1 - w, the product and the sum. Robocache rounds the weight, b - a and the fma. An error is at most 2^-24 of a number
    that is at most twice `largest`, so all errors together are below 2^-19 of `largest`. The rounding of the output may then differ by one unit in the last place.
    """
    ulp = torch.finfo(ours.dtype).eps
    ours, theirs = ours.double(), theirs.double()
    ratio = float(((ours - theirs).abs() / (ulp * ours.abs() + largest * 2.0**-19)).max())
    if not ratio <= 1:
        raise AssertionError(f"differs from robocache by up to {ratio:.3g} times the bound")
    return {"largest_error_over_bound": ratio}
