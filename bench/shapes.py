"""Every operation and the loader at random shapes: the time over a copy's, the ratio to torch.compile, and the slower cases.

python bench/shapes.py --device cuda --seed 3 --shapes 40
python bench/shapes.py --device cuda --append --seed 4    # adds to the cases of other seeds
python bench/shapes.py --device cuda --only fuse          # only operations with "fuse" in their names
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import loader
import torch
import tsdf
import voxelize
from contest import largest_error_over_bound
from fuse import fused_bytes
from inputs import JITTERS, count_moved_bytes, make_clock, make_targets, write_cache
from measure import call_timer, graph_timer, input_sets, median_us
from peers import fuse_torch, loader_numpy, loader_torch, resample_torch
from record import Report, arguments, temporary_folder
from sweep import time_of_copies

import robocache

LARGEST_BYTES = {"cuda": 512 << 20, "cpu": 16 << 20}
COMPILED = "torch.compile"


@dataclass(frozen=True)
class Shape:
    B: int
    T: int
    streams: tuple[tuple[int, int], ...]  # (samples, features) of each stream
    dtype: str
    clock: str
    jitter: str

    def name(self) -> str:
        streams = ", ".join(f"{samples}x{features}" for samples, features in self.streams)
        return f"B{self.B} T{self.T} ({streams}) {self.dtype} by {self.clock}, {self.jitter}"

    def bytes(self) -> int:
        """Returns approximately the bytes that move."""
        rows = sum((samples + self.T) * features for samples, features in self.streams)
        return self.B * rows * getattr(torch, self.dtype).itemsize


def draw_size(generator: random.Random, smallest: int, largest: int) -> int:
    """Draws a size whose logarithm is uniform."""
    return round(math.exp(generator.uniform(math.log(smallest), math.log(largest))))


def draw_shape(generator: random.Random, stream_counts: tuple[int, int], largest: Shape, device: str) -> Shape:
    """Draws a shape with a number of streams from the first to the second of `stream_counts`. No size exceeds `largest`."""
    size = partial(draw_size, generator)
    while True:
        longest, widest = largest.streams[0]
        shape = Shape(
            size(1, largest.B),
            size(8, largest.T),
            tuple((size(8, longest), size(1, widest)) for _ in range(generator.randint(*stream_counts))),
            generator.choice(["bfloat16", "bfloat16", "float16", "float32"]),
            generator.choice(["float32", "float32", "float64", "int64"]),
            generator.choice(list(JITTERS)),
        )
        if shape.bytes() <= LARGEST_BYTES[device]:
            return shape


def make_inputs(shape: Shape, device: str, sets: int) -> list[tuple]:
    """Returns the streams and targets of `sets` calls, as parts of the same tensors."""
    generator = torch.Generator(device).manual_seed(0)
    rows, clock = sets * shape.B, getattr(torch, shape.clock)
    streams = []
    for samples, features in shape.streams:
        values = torch.randn(rows, samples, features, generator=generator, device=device)
        times = make_clock(shape.jitter, rows, samples, clock, generator, device)
        streams.append((values.to(getattr(torch, shape.dtype)).split(shape.B), times.split(shape.B)))
    targets = make_targets(rows, shape.T, clock, device).split(shape.B)
    return [([(v[i], t[i]) for v, t in streams], targets[i]) for i in range(sets)]


def with_one_stream(call: Callable) -> Callable:
    """Makes an operation on one stream take a list of streams."""
    return lambda streams, targets: call(*streams[0], targets)


# {name: (the least and the largest number of streams, the largest shape, our operation, torch's)}.
OPERATIONS = {
    "resample": (
        (1, 1),
        Shape(2048, 2048, ((5000, 512),), "", "", ""),
        with_one_stream(robocache.resample_trajectories),
        with_one_stream(resample_torch.resample),
    ),
    "fuse": ((2, 12), Shape(512, 200, ((500, 768),), "", "", ""), robocache.fuse_multimodal, fuse_torch.fuse),
}


def run_shape(operation: str, shape: Shape, device: str, with_peer: bool, copy_us: Callable[[int], float]) -> dict:
    """Returns {bytes, us, times_the_copy, faster_than}. torch's result is compared with ours before it is timed."""
    ours, theirs = OPERATIONS[operation][2:]
    inputs = make_inputs(shape, device, input_sets(shape.bytes(), device, 64, quick=not with_peer))
    moved_bytes = (
        fused_bytes(*inputs[0]) if len(shape.streams) > 1 else count_moved_bytes(*inputs[0][0][0], inputs[0][1])
    )
    calls: dict[str, Sequence[Callable]] = {"robocache": [partial(ours, *x) for x in inputs]}
    if with_peer:
        torch._dynamo.reset()
        compiled = torch.compile(theirs, dynamic=False)
        largest = max(float(values.abs().max()) for values, _ in inputs[0][0])
        largest_error_over_bound(ours(*inputs[0]), compiled(*inputs[0]), largest)
        calls[COMPILED] = [partial(compiled, *x) for x in inputs]
    least_calls = max(4, min(16, math.ceil(2e9 / moved_bytes)))
    timer_of = partial(graph_timer, least_calls=least_calls) if device == "cuda" else call_timer
    times_us = median_us({name: timer_of(calls_of_contender) for name, calls_of_contender in calls.items()}, 7)
    us = times_us["robocache"]
    result = {"bytes": moved_bytes, "us": us, "times_the_copy": us / copy_us(moved_bytes)}
    return result | ({"faster_than": times_us[COMPILED] / us} if with_peer else {})


# ---- Cases of other benchmarks, at random sizes ----


def run_benchmark(work: Callable[[dict], None]) -> dict:
    """Runs a case of another benchmark; returns what run_shape returns."""
    case: dict = {}
    work(case)
    ours = case["contenders"]["robocache"]
    result = {"bytes": case["bytes"], "us": ours.get("gpu_us", ours["wall_us"])}
    result |= {"times_the_copy": case["times_the_copy"], "failures": case["failures"]}
    return result | ({"faster_than": case["faster_than"][COMPILED]} if COMPILED in case["faster_than"] else {})


def voxelize_cases(generator: random.Random, count: int, device: str, quick: bool) -> Iterator[tuple[str, Callable]]:
    for _ in range(count):
        points = draw_size(generator, 1000, 10_000_000 if device == "cuda" else 100_000)
        edges = tuple(draw_size(generator, 8, 256 if device == "cuda" else 64) for _ in range(3))
        mode, cloud = generator.choice(["count", "occupancy", "mean", "max"]), generator.choice(["uniform", "gaussian"])
        features = draw_size(generator, 1, 16) if mode in ("mean", "max") else 0
        name = f"{mode} of {features}, {points} {cloud} points, {'x'.join(map(str, edges))} voxels"
        case = voxelize.Case(name, "dense", cloud, points, size=edges, mode=mode, features=features)
        yield name, partial(voxelize.run_case, case, device, quick)


def tsdf_cases(generator: random.Random, count: int, device: str, quick: bool) -> Iterator[tuple[str, Callable]]:
    for _ in range(count):
        cells = draw_size(generator, 48, 384 if device == "cuda" else 64)
        name = f"depth carving, {cells}^3"
        yield name, partial(tsdf.run_case, tsdf.Case(name, "depth", cells, 1.28 / cells, True), device, quick)


def loader_cases(generator: random.Random, count: int, device: str, quick: bool) -> Iterator[tuple[str, Callable]]:
    with temporary_folder() as folder:
        write_cache(folder / "cache", loader.STREAMS, 8 if quick else 200, 20.0)
        dataset = robocache.open(folder / "cache")
        peers = loader.peer_arguments(dataset)
        windows, resident = loader_numpy.Windows(*peers), loader_torch.ResidentWindows(*peers, device=device)
        for _ in range(count):
            batch = draw_size(generator, 8, 16384 if device == "cuda" else 1024)
            yield f"batch {batch}", partial(loader.run_case, dataset, windows, resident, batch, [], device, quick)


BENCHMARKS = {"voxelize": voxelize_cases, "tsdf": tsdf_cases, "loader": loader_cases}


def run(jobs: Iterator[tuple[str, Callable[[], dict]]], device: str, case: dict) -> None:
    """Fills in "shapes" and "failures", and prints the slower shapes."""
    case["shapes"], case["failures"] = [], {}
    for name, job in jobs:
        try:
            result = job()
            case["failures"] |= {f"{name}, {part}": reason for part, reason in result.pop("failures", {}).items()}
            case["shapes"].append({"name": name} | result)
        except Exception as error:
            case["failures"][name] = f"{type(error).__name__}: {error}"
        if device == "cuda":
            torch.cuda.empty_cache()
    ratios = sorted(shape["times_the_copy"] for shape in case["shapes"])
    if ratios:
        print(f"  {ratios[len(ratios) // 2]:.2f} times the copy in the median, {ratios[-1]:.2f} at most", flush=True)
    for shape in slower_shapes(case):
        print(f"  {shape['faster_than']:.2f}x {COMPILED}: {shape['name']}: {shape['us']:.1f} us", flush=True)


def slower_shapes(case: dict) -> list[dict]:
    """Returns the shapes at which torch.compile is faster, the slowest first."""
    slower = [shape for shape in case["shapes"] if shape.get("faster_than", 1) < 1]
    return sorted(slower, key=lambda shape: shape["faster_than"])


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="the seed of the shapes")
    parser.add_argument(
        "--shapes", type=int, default=40, help="the number of shapes of resample and of fuse; the others get a tenth"
    )
    options = parser.parse_args()
    device, quick = options.device, options.quick
    report = Report("shapes", options, {})
    copy_us = time_of_copies(device, quick)
    shape_count = 2 if quick else options.shapes
    benchmark_count = 1 if quick else math.ceil(options.shapes / 10)
    for operation in [*OPERATIONS, *BENCHMARKS]:
        generator = random.Random(f"{operation} {options.seed}")
        jobs: Iterator[tuple[str, Callable[[], dict]]]
        if operation in OPERATIONS:
            stream_counts, largest, _, _ = OPERATIONS[operation]
            drawn = [draw_shape(generator, stream_counts, largest, device) for _ in range(shape_count)]
            jobs = ((x.name(), partial(run_shape, operation, x, device, not quick, copy_us)) for x in drawn)
        else:
            named_work = BENCHMARKS[operation](generator, benchmark_count, device, quick)
            jobs = ((name, partial(run_benchmark, work)) for name, work in named_work)
        report.run(f"{operation}, seed {options.seed}", {}, partial(run, jobs, device))
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
