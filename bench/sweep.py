"""resample_trajectories over planes of shapes, dtypes, clocks and methods: its time divided by the time of a copy, and cliffs.

python bench/sweep.py --device cuda
python bench/sweep.py --device cpu --threads 2

Each plane varies two things around one case. A cliff is a pair of neighbours in a plane whose times over a copy differ by more
than a factor of 2. bench/sweep_picture.py draws the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import torch
from inputs import count_moved_bytes, make_clock, make_targets
from measure import call_timer, copy_timers, graph_timer, input_sets, median_us
from record import Report, arguments

import robocache

CENTRE = {
    "B": 64,
    "S": 1024,
    "T": 512,
    "D": 64,
    "dtype": "bfloat16",
    "clock": "float32",
    "jitter": "30% jitter",
    "method": "linear",
}
CLIFF = 2.0
LARGEST_BYTES = {"cuda": 2 << 30, "cpu": 32 << 20}  # a plane leaves out shapes that move more


@dataclass(frozen=True)
class Axis:
    """An axis of a plane: {tick: changes to CENTRE}. If the ticks are not `alike`, they are not compared with each other."""

    name: str
    ticks: dict[str, dict]
    alike: bool = True


def axis_of_sizes(name: str, values: list[int]) -> Axis:
    return Axis(name, {str(x): {name: x} for x in values})


POWERS = [2**k for k in range(1, 16)]
WIDTHS = [1, 2, 3, 4, 6, 7, 8, 12, 14, 16, 24, 31, 32, 33, 48, 64, 65, 100, 128, 192, 256, 512]
TYPES = Axis(
    "type",
    {
        "bfloat16": {"dtype": "bfloat16"},
        "float16": {"dtype": "float16"},
        "float32": {"dtype": "float32"},
        "float64": {"dtype": "float64", "clock": "float64"},
        "bfloat16, float64 clock": {"clock": "float64"},
        "bfloat16, int64 clock": {"clock": "int64"},
        "float32, int64 clock": {"dtype": "float32", "clock": "int64"},
    },
)
JITTER = Axis("jitter", {name: {"jitter": name} for name in ("uniform", "30% jitter", "bursts", "random")})
SAMPLES = Axis("S, and T half of it", {str(x): {"S": x, "T": x // 2} for x in POWERS})
METHODS = ("linear", "nearest", "previous", "next", "pchip", "akima", "cubic")
METHOD = Axis("method", {name: {"method": name} for name in METHODS}, alike=False)
PLANES = [
    (axis_of_sizes("B", [2**k for k in range(11)]), axis_of_sizes("D", WIDTHS)),
    (axis_of_sizes("S", POWERS), axis_of_sizes("T", POWERS)),
    (TYPES, axis_of_sizes("D", WIDTHS)),
    (JITTER, axis_of_sizes("D", WIDTHS)),
    (JITTER, SAMPLES),
    (METHOD, axis_of_sizes("D", WIDTHS)),
]


def make_inputs(case: dict, device: str, sets: int) -> list[tuple[torch.Tensor, ...]]:
    """Returns the values, times and targets of `sets` calls, as parts of three tensors."""
    generator = torch.Generator(device).manual_seed(0)
    rows, clock = sets * case["B"], getattr(torch, case["clock"])
    values = torch.randn(rows, case["S"], case["D"], generator=generator, device=device)
    values = values.to(getattr(torch, case["dtype"]))
    times = make_clock(case["jitter"], rows, case["S"], clock, generator, device)
    targets = make_targets(rows, case["T"], clock, device)
    return list(zip(*(x.split(case["B"]) for x in (values, times, targets)), strict=True))


def time_of_copies(device: str, quick: bool) -> Callable[[int], float]:
    """Returns a function from bytes to the microseconds of their copy, interpolated between measured copies."""
    largest = math.log2(LARGEST_BYTES[device])
    sizes = [2**20, 2**22] if quick else [int(2**k) for k in np.arange(12, largest + 0.5, 0.5)]
    measured = []
    for size in sizes:
        least_calls = max(4, min(16, math.ceil(2e9 / size)))
        timers = copy_timers(size, device, sets=input_sets(size, device, 64, quick), least_calls=least_calls)
        measured.append(min(median_us(timers, 7).values()))
    print(f"  copies of {sizes[0]:,} to {sizes[-1]:,} bytes: {measured[0]:.2f} to {measured[-1]:.2f} us", flush=True)
    return lambda size: float(np.interp(size, sizes, measured))


def measure_us(case: dict, device: str, sets: list[tuple[torch.Tensor, ...]], size: int) -> float:
    resample = partial(robocache.resample_trajectories, method=case["method"])
    calls = [partial(resample, *x) for x in sets]
    timer = graph_timer(calls, max(4, min(16, math.ceil(2e9 / size)))) if device == "cuda" else call_timer(calls)
    return median_us({"": timer}, 7 if device == "cuda" else 15)[""]


def fill_plane(
    rows: Axis, columns: Axis, device: str, quick: bool, copy_us: Callable[[int], float], plane: dict
) -> None:
    """Fills in a plane: bytes, us and ratios as [rows][columns], None for shapes that were left out or failed; and the
    cliffs."""
    row_ticks, column_ticks = (list(axis.ticks)[: 2 if quick else None] for axis in (rows, columns))
    plane |= {"rows": row_ticks, "columns": column_ticks, "row_axis": rows.name, "column_axis": columns.name}
    plane["failures"] = {}
    for key in ("bytes", "us", "ratios"):
        plane[key] = [[None] * len(column_ticks) for _ in row_ticks]
    for (i, row), (j, column) in product(enumerate(row_ticks), enumerate(column_ticks)):
        case = CENTRE | rows.ticks[row] | columns.ticks[column]
        itemsize = getattr(torch, case["dtype"]).itemsize
        value_bytes = case["B"] * case["D"] * itemsize * (case["S"] + case["T"])
        if value_bytes > LARGEST_BYTES[device]:
            continue
        try:
            first = make_inputs(case, device, sets=1)[0]
            size = count_moved_bytes(*first, case["method"])
            us = measure_us(case, device, make_inputs(case, device, input_sets(value_bytes, device, 64, quick)), size)
            plane["bytes"][i][j], plane["us"][i][j], plane["ratios"][i][j] = size, us, us / copy_us(size)
        except Exception as error:
            plane["failures"][f"{rows.name} {row}, {columns.name} {column}"] = f"{type(error).__name__}: {error}"
    if device == "cuda":
        torch.cuda.empty_cache()
    plane["cliffs"] = find_cliffs(rows, columns, plane)
    measured = [ratio for line in plane["ratios"] for ratio in line if ratio is not None]
    if measured:
        print(f"  {min(measured):.2f} to {max(measured):.2f} times the copy, {len(plane['cliffs'])} cliffs", flush=True)


def find_cliffs(rows: Axis, columns: Axis, plane: dict) -> list[dict]:
    """Returns the neighbours whose ratios differ by more than CLIFF, the worst first: {"at", "beside", "factor"}."""

    def name(i: int, j: int) -> str:
        return f"{rows.name} {plane['rows'][i]}, {columns.name} {plane['columns'][j]}"

    cliffs = []
    for i, j in product(range(len(plane["rows"])), range(len(plane["columns"]))):
        for down, right, axis in ((1, 0, rows), (0, 1, columns)):
            if not axis.alike or i + down == len(plane["rows"]) or j + right == len(plane["columns"]):
                continue
            ratio, neighbour = plane["ratios"][i][j], plane["ratios"][i + down][j + right]
            if ratio is None or neighbour is None or max(ratio, neighbour) <= CLIFF * min(ratio, neighbour):
                continue
            pair = [name(i, j), name(i + down, j + right)]
            slow, fast = pair if ratio > neighbour else reversed(pair)
            cliffs.append({"at": slow, "beside": fast, "factor": max(ratio, neighbour) / min(ratio, neighbour)})
    return sorted(cliffs, key=lambda cliff: -cliff["factor"])


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    device, quick = options.device, options.quick
    report = Report("sweep", options, {})
    copy_us = time_of_copies(device, quick)
    for rows, columns in PLANES:
        varied_keys = {key for axis in (rows, columns) for changes in axis.ticks.values() for key in changes}
        constants = {key: value for key, value in CENTRE.items() if key not in varied_keys}
        work = partial(fill_plane, rows, columns, device, quick, copy_us)
        report.run(f"{rows.name} by {columns.name}", constants, work)
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
