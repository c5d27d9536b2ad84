"""fuse_multimodal of three streams, compared with NumPy, torch, and a copy of the bytes that must move.

python bench/fuse.py --device cuda
python bench/fuse.py --device cpu --threads 2
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from contest import contest, largest_error_over_bound, overhead
from inputs import count_moved_bytes, make_clock, make_targets
from measure import input_sets
from peers import fuse_numpy, fuse_torch
from record import Report, arguments

import robocache

# (samples, features) of each stream in an episode of one second: camera embeddings, joint states, wrenches.
STREAMS = [(30, 512), (100, 64), (200, 12)]
TARGETS = 50
JITTER = "50% jitter"
DTYPE = {"cuda": torch.bfloat16, "cpu": torch.float32}
BATCHES = {"cuda": [4, 64, 512], "cpu": [64]}

# Written before the first measurement.
PREDICTED = {
    "cuda": {
        "B4": {"gpu_us": 4.5},
        "B64": {"times_the_copy": 1.6, "faster_than": {"torch.compile": 2.5, "torch eager": 30}},
        "B512": {"times_the_copy": 1.3},
    },
    "cpu": {"B64": {"faster_than": {"numpy": 6, "torch eager": 5, "torch.compile": 1.5}}},
}
AIMS = {
    "cuda": {
        "B4": {"gpu_us": 5.0, "faster_than": {"torch.compile": 1.0}},
        "B64": {"times_the_copy": 1.5, "faster_than": {"torch.compile": 1.0}},
        "B512": {"times_the_copy": 1.25, "faster_than": {"torch.compile": 1.0}},
        "call overhead": {"beyond_the_launch_us": 6.0},
    },
    "cpu": {},
}


def make_inputs(batch: int, device: str, seed: int) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    generator = torch.Generator(device).manual_seed(seed)
    streams = []
    for samples, features in STREAMS:
        values = torch.randn(batch, samples, features, generator=generator, device=device).to(DTYPE[device])
        streams.append((values, make_clock(JITTER, batch, samples, torch.float32, generator, device)))
    return streams, make_targets(batch, TARGETS, torch.float32, device)


def fused_bytes(streams: list[tuple[torch.Tensor, torch.Tensor]], targets: torch.Tensor) -> int:
    """Returns the bytes that a call must move. All streams share the targets, which are counted once."""
    stream_bytes = [count_moved_bytes(values, times, targets) - targets.nbytes for values, times in streams]
    return sum(stream_bytes) + targets.nbytes


def peers(device: str, quick: bool) -> dict[str, Callable[..., torch.Tensor]]:
    result = {"torch eager": fuse_torch.fuse}
    if not quick:
        result["torch.compile"] = torch.compile(fuse_torch.fuse, dynamic=False)
    if device == "cpu":
        result["numpy"] = fuse_on_numpy
    return result


def fuse_on_numpy(streams: list[tuple[torch.Tensor, torch.Tensor]], targets: torch.Tensor) -> torch.Tensor:
    arrays = [(values.numpy(), times.numpy()) for values, times in streams]
    return torch.from_numpy(fuse_numpy.fuse(arrays, targets.numpy()))


def run_case(batch: int, device: str, quick: bool, case: dict) -> None:
    torch._dynamo.reset()
    inputs = [make_inputs(batch, device, seed=0)]
    case["bytes"] = fused_bytes(*inputs[0])
    inputs += [make_inputs(batch, device, seed) for seed in range(1, input_sets(case["bytes"], device, quick=quick))]
    verify = partial(largest_error_over_bound, largest=max(float(x.abs().max()) for x, _ in inputs[0][0]))
    contest(case, inputs, robocache.fuse_multimodal, peers(device, quick), verify, device, quick)


def small_calls(device: str) -> dict[str, Callable[[], torch.Tensor]]:
    """Returns calls with almost no work."""
    streams, targets = make_inputs(1, device, seed=0)
    call, out = partial(robocache.fuse_multimodal, streams), robocache.fuse_multimodal(streams, targets)
    return {
        "robocache": partial(call, targets),
        "robocache, out=": partial(call, targets, out=out),
        "robocache, no targets": partial(call, targets[:, :0]),
        "torch.lerp": partial(torch.lerp, out, out, out),
        "torch.cat": partial(torch.cat, [out, out, out], -1),
    }


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    device, quick = options.device, options.quick
    report = Report("fuse", options, PREDICTED[device], AIMS[device])
    parameters = {
        "streams": [f"{samples} samples of {features} features" for samples, features in STREAMS],
        "T": TARGETS,
        "dtype": str(DTYPE[device]).removeprefix("torch."),
        "clock": "float32",
        "method": "linear",
        "jitter": JITTER,
    }
    for batch in [2] if quick else BATCHES[device]:
        report.run(f"B{batch}", {"B": batch} | parameters, partial(run_case, batch, device, quick))
    report.run("call overhead", {"B": 1} | parameters, lambda case: overhead(small_calls(device), quick, case))
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
