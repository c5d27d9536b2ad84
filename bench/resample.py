"""resample_trajectories, compared with NumPy, SciPy and torch, and with a copy of the bytes that must move.

python bench/resample.py --device cuda
python bench/resample.py --device cpu --threads 2
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
from contest import contest, largest_error_over_bound, overhead
from inputs import count_moved_bytes, make_clock, make_targets
from measure import input_sets
from peers import resample_numpy, resample_torch
from record import Report, arguments

import robocache

JITTER = "50% jitter"


@dataclass(frozen=True)
class Case:
    B: int  # episodes
    S: int  # samples
    T: int  # targets
    D: int  # features
    dtype: str
    clock: str = "float32"
    method: str = "linear"

    def name(self, usual_dtype: str) -> str:
        name = f"B{self.B} S{self.S} T{self.T} D{self.D}"
        name += f", {self.dtype} values" if self.dtype != usual_dtype else ""
        name += f", {self.clock} clocks" if self.clock != "float32" else ""
        return name + (f", {self.method}" if self.method != "linear" else "")


USUAL_DTYPE = {"cuda": "bfloat16", "cpu": "float32"}
SHAPES = [
    Case(32, 500, 250, 256, "bfloat16"),
    Case(256, 500, 250, 32, "bfloat16"),
    Case(64, 4096, 1024, 32, "bfloat16"),
    Case(64, 1000, 512, 512, "bfloat16"),
    Case(1024, 2048, 1024, 64, "bfloat16"),
]
METHODS = ("pchip", "akima", "slerp", "cubic")
CASES = {
    "cuda": [
        *SHAPES,
        *(replace(shape, clock="int64") for shape in SHAPES),
        *(replace(shape, dtype="float32") for shape in SHAPES),
        *(replace(shape, D=7) for shape in SHAPES),
        *(replace(shape, D=14) for shape in SHAPES),
        *(replace(SHAPES[-1], method=method) for method in METHODS),
    ],
    "cpu": [
        *(Case(32, 500, 250, 256, dtype) for dtype in ("float32", "float16", "bfloat16")),
        *(Case(32, 500, 250, 256, "float32", method=method) for method in METHODS),
    ],
}

# Written before the first measurement: the time divided by the time of a copy, and on the CPU the ratio to each peer.
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

AIMED_TIMES_THE_COPY = {SHAPES[0]: 1.3, SHAPES[1]: 1.2, SHAPES[2]: 1.25, SHAPES[3]: 1.05, SHAPES[4]: 1.03}
HOST_BOUND_BYTES = 20e6  # up to this size the kernel takes less than 10 us, and in a loop the host is slower
EARLIER = "an earlier public kernel"
# Microseconds of an earlier public library's kernel on the same kind of GPU, measured before this library was written.
EARLIER_US = {SHAPES[0]: 27.5, SHAPES[1]: 26.8, SHAPES[2]: 37.5, SHAPES[3]: 202.0, SHAPES[4]: 946.0}


def aims(device: str) -> dict[str, dict]:
    if device == "cpu":
        ratios = {"numpy": 5.0, "scipy interp1d": 10.0, "torch eager": 6.0, "torch.compile": 1.4}
        return {
            "B32 S500 T250 D256": {"times_the_copy": 1 / 0.6, "faster_than": ratios},
            "B32 S500 T250 D256, float16 values": {"times_float32": 1.0},
        }
    result = {"call overhead": {"beyond_the_launch_us": 4.0}}
    for case in CASES["cuda"]:
        if case.method == "cubic":
            continue
        aim: dict = {"times_the_copy": AIMED_TIMES_THE_COPY.get(case, 1.3 if case.method != "linear" else 1.4)}
        if case.method == "linear":
            aim["faster_than"] = {"torch.compile": 1.0} | ({EARLIER: 4.0} if case in EARLIER_US else {})
            if case.B * (case.S + case.T) * case.D * getattr(torch, case.dtype).itemsize < HOST_BOUND_BYTES:
                aim["in_a_loop_faster_than"] = {"torch.compile": 5.0, "torch eager": 12.0}
        result[case.name("bfloat16")] = aim
    return result


def make_inputs(case: Case, device: str, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(device).manual_seed(seed)
    dtype, clock = getattr(torch, case.dtype), getattr(torch, case.clock)
    values = torch.randn(case.B, case.S, case.D, generator=generator, device=device)
    if case.method == "slerp":
        values = torch.nn.functional.normalize(values.view(case.B, case.S, -1, 4), dim=-1).view_as(values)
    times = make_clock(JITTER, case.B, case.S, clock, generator, device)
    return values.to(dtype), times, make_targets(case.B, case.T, clock, device)


def make_our_call(case: Case) -> Callable[..., torch.Tensor]:
    if case.method == "slerp":  # every four features are a quaternion
        methods = [(slice(k, k + 4), "slerp") for k in range(0, case.D, 4)]
        return partial(robocache.resample_trajectories, methods=methods)
    return partial(robocache.resample_trajectories, method=case.method)


def peers(case: Case, device: str, quick: bool) -> dict[str, Callable[..., torch.Tensor]]:
    if case.method != "linear":
        return {}
    calls = {"torch eager": resample_torch.resample}
    if not quick:
        calls["torch.compile"] = torch.compile(resample_torch.resample, dynamic=False)
    if device == "cpu" and case.dtype == "float32":
        calls["numpy"] = lambda *tensors: torch.from_numpy(resample_numpy.resample(*(x.numpy() for x in tensors)))
        calls["scipy interp1d"] = scipy_interp1d
    return calls


def scipy_interp1d(*tensors: torch.Tensor) -> torch.Tensor:
    from peers import resample_scipy  # without SciPy only this peer fails

    return torch.from_numpy(resample_scipy.resample(*(x.numpy() for x in tensors)))


def run_case(case: Case, device: str, quick: bool, float32_case: dict, result: dict) -> None:
    """`float32_case` is the result of the same case with float32 values, or empty. On the CPU, the time of 16-bit values is
    divided by its time."""
    torch._dynamo.reset()
    inputs = [make_inputs(case, device, seed=0)]
    result["bytes"] = count_moved_bytes(*inputs[0], case.method)
    inputs += [make_inputs(case, device, seed) for seed in range(1, input_sets(result["bytes"], device, quick=quick))]
    verify = partial(largest_error_over_bound, largest=float(inputs[0][0].abs().max()))
    contest(result, inputs, make_our_call(case), peers(case, device, quick), verify, device, quick)
    if case in EARLIER_US and device == "cuda":
        result["contenders"][EARLIER] = {"gpu_us": EARLIER_US[case], "measured_before": True}
        result["faster_than"][EARLIER] = EARLIER_US[case] / result["contenders"]["robocache"]["gpu_us"]
    if device == "cpu" and case.dtype != "float32" and "contenders" in float32_case:
        result["times_float32"] = (
            result["contenders"]["robocache"]["wall_us"] / float32_case["contenders"]["robocache"]["wall_us"]
        )


def small_calls(device: str) -> dict[str, Callable[[], torch.Tensor]]:
    """Returns calls with almost no work."""
    case = Case(8, 64, 32, 16, "float32")
    values, times, targets = make_inputs(case, device, seed=0)
    call, out = partial(robocache.resample_trajectories, values, times), torch.empty(8, 32, 16, device=device)
    return {
        "robocache": partial(call, targets),
        "robocache, out=": partial(call, targets, out=out),
        "robocache, no targets": partial(call, targets[:, :0]),
        "torch.lerp": partial(torch.lerp, out, out, out),
        "torch.empty": partial(torch.empty, (8, 32, 16), device=device),
    }


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    device, quick = options.device, options.quick
    report = Report("resample", options, PREDICTED[device], aims(device))
    parameters = {"B": 8, "S": 64, "T": 32, "D": 16, "dtype": "float32", "clock": "float32", "method": "linear"}
    report.run("call overhead", parameters, lambda case: overhead(small_calls(device), quick, case))
    usual = USUAL_DTYPE[device]
    cases = [Case(3, 50, 20, 16, usual)] if quick else CASES[device]
    for case in cases:
        work = partial(run_case, case, device, quick, report.case(replace(case, dtype="float32").name(usual)))
        report.run(case.name(usual), asdict(case) | {"jitter": JITTER}, work)
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
