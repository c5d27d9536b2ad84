"""resample_trajectories, linear, against NumPy and torch, and against a copy of the bytes it must move.

python bench/resample.py --device cuda
python bench/resample.py --device cpu --threads 2
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from measure import copy_timers, cpu_timer, graph_timer, host_timer, median_us, rotations, wall_timer
from peers import resample_numpy, resample_torch
from record import Report, arguments

import robocache

# (B, S, T, D): episodes, samples, targets, features
CASES = {
    "cuda": [
        (64, 4096, 1024, 32),
        (32, 500, 250, 256),
        (64, 1000, 512, 512),
        (256, 500, 250, 32),
        (1024, 2048, 1024, 64),
    ],
    "cpu": [(32, 500, 250, 256)],
}
DTYPE = {"cuda": torch.bfloat16, "cpu": torch.float32}

# Written before the first measurement: time over the copy's, and on the CPU how many times faster than each peer.
PREDICTED = {
    "cuda": {
        "B64 S4096 T1024 D32": {"times_the_copy": 1.4},
        "B32 S500 T250 D256": {"times_the_copy": 1.6},
        "B64 S1000 T512 D512": {"times_the_copy": 1.12},
        "B256 S500 T250 D32": {"times_the_copy": 1.3},
        "B1024 S2048 T1024 D64": {"times_the_copy": 1.05},
    },
    "cpu": {"B32 S500 T250 D256": {"times_the_copy": 1.1, "faster_than": {"numpy": 6.0, "torch.compile": 1.8}}},
}


def make_inputs(shape: tuple[int, int, int, int], device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Normal values, jittered float32 clocks in [0, 1], evenly spaced targets over the same span."""
    batch, samples, targets, features = shape
    generator = torch.Generator(device).manual_seed(seed)
    values = torch.randn(batch, samples, features, generator=generator, device=device).to(DTYPE[device])
    ticks = (torch.rand(batch, samples, generator=generator, device=device, dtype=torch.float64) + 0.5).cumsum(1)
    times = ((ticks - ticks[:, :1]) / (ticks[:, -1:] - ticks[:, :1])).float()
    grid = torch.linspace(0, 1, targets, device=device)
    return values, times, grid.repeat(batch, 1)


def bytes_moved(values: torch.Tensor, times: torch.Tensor, targets: torch.Tensor) -> int:
    """At least: every sample row that lies beside a target, every clock and the output, each once."""
    samples = values.shape[1]
    right = torch.searchsorted(times, targets, right=True).clamp(1, samples - 1)
    first = torch.arange(values.shape[0], device=values.device)[:, None] * samples
    touched = torch.unique(torch.cat([right - 1 + first, right + first], 1)).numel()
    row_bytes = values.shape[2] * values.element_size()
    out_bytes = targets.numel() * row_bytes
    return touched * row_bytes + times.nbytes + targets.nbytes + out_bytes


def verify(ours: torch.Tensor, theirs: torch.Tensor, largest: float) -> dict:
    """Peers round elsewhere: w, b - a, the product and the sum each by half a float32 ulp, then once to the output.

    Four roundings of numbers of at most twice the largest value stay below 2^-21 of it; the output's rounding can then
    fall to either side, which is one ulp: 2^-7 of the value in bfloat16, 2^-23 in float32.
    """
    ulp = 2.0**-7 if ours.dtype == torch.bfloat16 else 2.0**-23
    ours, theirs = ours.double(), theirs.double()
    bound = ulp * ours.abs() + largest * 2.0**-21
    error = (ours - theirs).abs()
    if not (error <= bound).all():
        raise AssertionError(f"differs from robocache by up to {float((error / bound).max()):.3g} times the bound")
    return {"largest_error_over_bound": float((error / bound).max())}


def contenders(device: str, quick: bool) -> dict[str, Callable[..., torch.Tensor]]:
    peers = {"torch eager": resample_torch.resample}
    if not quick:
        peers["torch.compile"] = torch.compile(resample_torch.resample, dynamic=False)
    if device == "cpu":
        peers["numpy"] = lambda *tensors: torch.from_numpy(resample_numpy.resample(*(x.numpy() for x in tensors)))
    return peers


def run_case(shape: tuple[int, int, int, int], device: str, quick: bool, case: dict) -> None:
    torch._dynamo.reset()
    inputs = [make_inputs(shape, device, seed=0)]
    case["bytes"] = bytes_moved(*inputs[0])
    inputs += [make_inputs(shape, device, seed) for seed in range(1, rotations(case["bytes"], device))]
    case["contenders"], case["failures"] = {"robocache": {}}, {}
    calls = {"robocache": [partial(robocache.resample_trajectories, *x) for x in inputs]}
    reference = robocache.resample_trajectories(*inputs[0])
    largest = float(inputs[0][0].abs().max())
    for name, peer in contenders(device, quick).items():
        try:
            case["contenders"][name] = verify(reference, peer(*inputs[0]), largest)
            calls[name] = [partial(peer, *x) for x in inputs]
        except Exception as error:
            case["failures"][name] = f"{type(error).__name__}: {error}"
            print(f"  {name} failed: {error}", flush=True)

    rounds = 3 if quick else 101
    if device == "cuda":
        count = 10 if quick else 100
        measures = {
            "gpu_us": graph_timer,
            "wall_us": partial(wall_timer, count=count),
            "host_us": partial(host_timer, count=count),
        }
        main_measure, copies = "gpu_us", copy_timers(case["bytes"], device)
    else:
        measures = {"wall_us": lambda calls: cpu_timer(calls[:1]), "cold_us": cpu_timer}
        main_measure, copies = "wall_us", copy_timers(case["bytes"], device, sets=1)
    for measure, timer_of in measures.items():
        timers = {}
        for name in ["robocache"] if measure == "host_us" else calls:
            try:
                timers[name] = timer_of(calls[name])
            except Exception as error:
                case["failures"][f"{name}, {measure}"] = f"{type(error).__name__}: {error}"
                print(f"  {name}, {measure} failed: {error}", flush=True)
        if measure == main_measure:
            timers |= copies
        taken = median_us(timers, rounds, apart=device == "cpu")
        for name in calls.keys() & taken.keys():
            case["contenders"][name][measure] = taken[name]
        case.setdefault("copies_us", {}).update((name, taken[name]) for name in copies.keys() & taken.keys())
        del timers
    case["floor_us"] = min(case["copies_us"].values())

    ours = case["contenders"]["robocache"]
    case["times_the_copy"] = ours[main_measure] / case["floor_us"]
    case["faster_than"] = {
        name: measures[main_measure] / ours[main_measure]
        for name, measures in case["contenders"].items()
        if name != "robocache" and main_measure in measures
    }
    print(f"  {case['times_the_copy']:.2f} times the copy; faster than {case['faster_than']}", flush=True)


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    report = Report("resample", options, PREDICTED[options.device])
    cases = [(3, 50, 20, 16)] if options.quick else CASES[options.device]
    for shape in cases:
        name = "B{} S{} T{} D{}".format(*shape)
        dtype = str(DTYPE[options.device]).removeprefix("torch.")
        parameters = {**dict(zip("BSTD", shape, strict=True)), "dtype": dtype, "clock": "float32", "method": "linear"}
        report.run(name, parameters, partial(run_case, shape, options.device, options.quick))
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
