"""voxelize_pointcloud, voxelize_sparse and voxel_downsample, compared with NumPy, torch, Open3D and copies.

python bench/voxelize.py --device cuda
python bench/voxelize.py --device cpu --threads 2

Real scans take part if ROBOCACHE_TEST_DATA is a folder with them (bench/scans.py).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import scans
import torch
from contest import contest, overhead
from inputs import CLOUDS, make_cloud
from measure import input_sets
from peers import voxelize_numpy, voxelize_torch
from record import Report, arguments
from voxelize_check import DenseCheck, check_centroids, check_hard

import robocache

EARLIER = "an earlier public kernel"  # its authors measured its numbers on the same model of GPU
GIVEN_CELLS = "torch scatter_add_ of given cells"  # without finding the voxel of each point


@dataclass(frozen=True)
class Case:
    name: str
    job: str  # "dense" (voxelize_pointcloud), "hard" (voxelize_sparse with each voxel's points) or "downsample"
    cloud: str  # a name in CLOUDS or in scans.SCANS
    points: int = 0  # 0 for a scan, since its file determines the number
    size: tuple[int, int, int] = (128, 128, 128)  # voxels
    voxel_m: tuple[float, float, float] = (0.05, 0.05, 0.05)
    corner: tuple[float, float, float] = (-3.2, -3.2, -3.2)
    mode: str | tuple[str, ...] = "count"
    features: int = 0
    quantum: float | None = None
    max_points: int = 5  # the largest number of points of a hard voxel
    dtype: str = "float32"

    @property
    def modes(self) -> tuple[str, ...]:
        return (self.mode,) if isinstance(self.mode, str) else self.mode

    @property
    def grid(self) -> dict:
        return {"grid_min": self.corner, "voxel_size": self.voxel_m, "grid_size": self.size}

    @property
    def extent(self) -> tuple[float, ...]:
        return tuple(n * s for n, s in zip(self.size, self.voxel_m, strict=True))

    def parameters(self, points: int) -> dict:
        result = {"cloud": self.cloud, "points": points, "dtype": self.dtype, "voxel_m": self.voxel_m}
        if self.job != "downsample":
            result["grid"] = self.size
        if self.job == "dense":
            result |= {"modes": self.modes, "features": self.features, "quantum": self.quantum}
        if self.job == "hard":
            result |= {"points a voxel": self.max_points, "features": self.features}
        return result


TEN_MILLION = 10_000_000
LARGE = {"size": (256, 256, 256), "corner": (-6.4, -6.4, -6.4)}
# Contains the yard of inputs.py.
YARD = {
    "cloud": "lidar",
    "corner": (-32.6, -32.6, -0.5),
    "voxel_m": (0.51, 0.51, 0.1),
}
QUANTUM = 2.0**-20
MEAN = {"job": "dense", "mode": "mean", "features": 8}
HARD = Case(
    "hard voxels, 250k lidar, 5 points each",
    "hard",
    "lidar",
    250_000,
    (640, 640, 64),
    (0.1, 0.1, 0.2),
    (-32.0, -32.0, -0.5),
    features=1,
)
SCAN_CASES = [
    Case("count, outdoor lidar", "dense", "outdoor lidar", 0, (172, 232, 52), (0.26, 0.26, 0.26), (-24.0, -52.5, -3.2)),
    Case(
        "count, airborne laser, float64",
        "dense",
        "airborne laser",
        0,
        (224, 256, 76),
        (2.3, 2.3, 2.3),
        (513118.0, 5403185.0, 186.0),
        dtype="float64",
    ),
    Case("count, depth camera", "dense", "depth camera", 0, (104, 72, 88), (0.01, 0.01, 0.01), (-0.56, -0.42, 0.5)),
    Case("downsample, outdoor lidar, 0.2 m", "downsample", "outdoor lidar", voxel_m=(0.2, 0.2, 0.2)),
]
CASES = {
    "cuda": [
        Case("count, 10M uniform, 128^3", "dense", "uniform", TEN_MILLION),
        Case("count, 10M gaussian, 256^3", "dense", "gaussian", TEN_MILLION, **LARGE),
        Case("count, 10M lidar, 128^3", "dense", points=TEN_MILLION, **YARD),
        Case("occupancy, 10M uniform, 128^3", "dense", "uniform", TEN_MILLION, mode="occupancy"),
        Case("occupancy, 10M uniform, 256^3", "dense", "uniform", TEN_MILLION, mode="occupancy", **LARGE),
        Case("occupancy, 10M gaussian, 256^3", "dense", "gaussian", TEN_MILLION, mode="occupancy", **LARGE),
        Case("mean of 8, 10M uniform, 128^3, quantum", cloud="uniform", points=TEN_MILLION, quantum=QUANTUM, **MEAN),
        Case("mean of 8, 10M uniform, 128^3", cloud="uniform", points=TEN_MILLION, **MEAN),
        Case("mean of 8, 10M lidar, 128^3, quantum", points=TEN_MILLION, quantum=QUANTUM, **MEAN, **YARD),
        Case("mean of 8, 10M lidar, 128^3", points=TEN_MILLION, **MEAN, **YARD),
        Case(
            "count, mean and max of 8, 10M lidar, 128^3",
            "dense",
            points=TEN_MILLION,
            mode=("count", "mean", "max"),
            features=8,
            **YARD,
        ),
        Case("occupancy, 500k uniform, 128^3", "dense", "uniform", 500_000, mode="occupancy"),
        Case("count, 500k uniform, 128^3", "dense", "uniform", 500_000),
        Case("occupancy, 500k spread, 128^3", "dense", "spread", 500_000, mode="occupancy"),
        Case("count, 500k spread, 128^3", "dense", "spread", 500_000),
        HARD,
        Case("downsample, 1M lidar, 0.1 m", "downsample", "lidar", 1_000_000, voxel_m=(0.1, 0.1, 0.1)),
        *SCAN_CASES,
    ],
    "cpu": [
        Case("count, 1M uniform, 128^3", "dense", "uniform", 1_000_000),
        Case("count, 10M uniform, 128^3", "dense", "uniform", TEN_MILLION),
        Case("count, 1M lidar, 128^3", "dense", points=1_000_000, **YARD),
        Case("occupancy, 1M uniform, 128^3", "dense", "uniform", 1_000_000, mode="occupancy"),
        Case("mean of 8, 1M lidar, 128^3, quantum", points=1_000_000, quantum=QUANTUM, **MEAN, **YARD),
        Case("mean of 8, 1M lidar, 128^3", points=1_000_000, **MEAN, **YARD),
        HARD,
        Case("downsample, 1M lidar, 0.1 m", "downsample", "lidar", 1_000_000, voxel_m=(0.1, 0.1, 0.1)),
        *SCAN_CASES,
    ],
}
SMALL = {"points": 5000, "size": (20, 17, 13), "corner": (-0.5, -0.4, -0.3)}
YARD_SMALL = YARD | {"size": (13, 13, 13), "voxel_m": (5.0, 5.0, 1.0)}
QUICK = [
    Case("count", "dense", "uniform", **SMALL),
    Case("occupancy", "dense", "spread", mode="occupancy", **SMALL),
    Case("mean, quantum", points=5000, quantum=QUANTUM, **MEAN, **YARD_SMALL),
    Case("mean", points=5000, **MEAN, **YARD_SMALL),
    Case("several", "dense", points=5000, mode=("count", "mean", "max"), features=3, **YARD_SMALL),
    Case("hard", "hard", "lidar", 5000, (64, 64, 13), (1.0, 1.0, 1.0), (-32.0, -32.0, -0.5), features=1, max_points=3),
    Case("downsample", "downsample", "lidar", 5000, voxel_m=(0.5, 0.5, 0.5)),
]

# Written before the first measurement.
PREDICTED = {
    "cuda": {
        "count, 10M uniform, 128^3": {"gpu_points_per_s": 150e9},
        "count, 10M gaussian, 256^3": {"gpu_points_per_s": 120e9},
        "occupancy, 10M uniform, 128^3": {"gpu_points_per_s": 160e9},
        "occupancy, 10M uniform, 256^3": {"gpu_points_per_s": 120e9},
        "mean of 8, 10M uniform, 128^3, quantum": {"gpu_points_per_s": 18e9},
        "mean of 8, 10M lidar, 128^3, quantum": {"gpu_points_per_s": 35e9},
        "count, 500k uniform, 128^3": {"gpu_us": 8.0},
        HARD.name: {"gpu_us": 90.0},
    },
    "cpu": {
        "count, 1M uniform, 128^3": {"faster_than": {"numpy add.at": 6.0}},
        "downsample, 1M lidar, 0.1 m": {"faster_than": {"Open3D": 3.0}},
    },
}
# Microseconds of the kernels of an earlier public library, which its authors measured on the same model of GPU.
EARLIER_US = {"count, 500k spread, 128^3": 7.0, "occupancy, 500k spread, 128^3": 7.5}


def aims(device: str) -> dict[str, dict]:
    if device == "cpu":
        peer_ratios = {"dense": {"numpy add.at": 4.0}, "downsample": {"Open3D": 1.0}}
        cases = [case for case in CASES["cpu"] if case.job in peer_ratios and case.mode == "count"]
        return {case.name: {"faster_than": peer_ratios[case.job]} for case in cases}
    billions = {
        "count, 10M uniform, 128^3": 150,
        "count, 10M gaussian, 256^3": 150,
        "occupancy, 10M uniform, 128^3": 180,
        "occupancy, 10M uniform, 256^3": 130,
        "occupancy, 10M gaussian, 256^3": 200,
        "mean of 8, 10M uniform, 128^3, quantum": 20,
        "mean of 8, 10M uniform, 128^3": 14,
        "mean of 8, 10M lidar, 128^3, quantum": 40,
        "mean of 8, 10M lidar, 128^3": 25,
    }
    us = {"occupancy, 500k uniform, 128^3": 7.0, "count, 500k uniform, 128^3": 8.0, HARD.name: 100.0}
    result = {}
    for case in CASES["cuda"]:
        aim = {"gpu_points_per_s": billions[case.name] * 1e9} if case.name in billions else {}
        aim |= {"gpu_us": us[case.name]} if case.name in us else {}
        if case.job == "dense":
            aim["faster_than"] = {"torch eager": 5.0, "torch.compile": 5.0}
            aim["faster_than"] |= {EARLIER: 1.0} if case.name in EARLIER_US else {}
        else:
            aim["faster_than"] = {"torch eager": 5.0}
        result[case.name] = aim
    return result


class Cloud:
    """The arguments of a call, and further inputs of peers, made before anything is timed."""

    def __init__(self, case: Case, device: str, seed: int) -> None:
        generator = torch.Generator(device).manual_seed(seed)
        if case.cloud in CLOUDS:
            points = make_cloud(case.cloud, case.points, case.corner, case.extent, generator, device)
        else:
            points = torch.from_numpy(scans.load(case.cloud)).to(device)
        self.case = case
        self.points = points.to(getattr(torch, case.dtype))
        self.features = torch.randn(len(points), case.features, generator=generator, device=device)
        if case.job == "hard":  # in the form that detectors read: x, y, z, intensity
            self.points = torch.cat([self.points, self.features], 1)
        if case.job != "downsample":
            self.grid = voxelize_torch.make_grid(self.points, case.corner, case.voxel_m, case.size)
        if case.job == "dense":
            self.cell = voxelize_torch.compute_cells(self.points, self.grid)
        if case.job == "downsample":  # Open3D's voxels have this corner
            low = self.points.amin(0).double() - case.voxel_m[0] / 2
            self.origin = tuple(low.tolist())
            self.bounds = self.points.new_tensor(self.origin), self.points.new_tensor(case.voxel_m)

    @property
    def read_bytes(self) -> int:
        return self.points.nbytes + (self.features.nbytes if self.case.job == "dense" else 0)

    @cached_property
    def array(self) -> np.ndarray:
        return self.points.cpu().numpy()

    @cached_property
    def open3d(self) -> object:
        from peers import voxelize_open3d

        return voxelize_open3d.make_cloud(self.array)

    @property
    def points_near_faces(self) -> int:
        """Returns the number of points within 8 ulp of a face, which an approximate division may put into the next voxel."""
        case = self.case
        size = self.points.new_tensor(case.voxel_m)
        origin = self.points.new_tensor(case.corner if case.job != "downsample" else self.origin)
        position = (self.points[:, :3] - origin) / size
        ulps = 2.0**-20 if case.dtype == "float32" else 2.0**-49
        is_near = (position - position.round()).abs() <= ulps * (position.abs() + (origin / size).abs())
        return int(is_near.any(1).sum())


# ---- The jobs: robocache's call, the peers' calls, and the checks ----


def make_our_call(case: Case) -> Callable[[Cloud], object]:
    if case.job == "dense":
        mode = case.mode if isinstance(case.mode, str) else list(case.mode)
        quantum = {"quantum": case.quantum} if case.quantum else {}
        call = partial(robocache.voxelize_pointcloud, mode=mode, **case.grid, **quantum)
        return lambda cloud: call(cloud.points, cloud.features if case.features else None)
    if case.job == "hard":
        high = tuple(low + length for low, length in zip(case.corner, case.extent, strict=True))
        return lambda cloud: robocache.voxelize_sparse(
            cloud.points,
            voxel_size=case.voxel_m,
            point_range=case.corner + high,
            max_points_per_voxel=case.max_points,
            capacity=len(cloud.points),
            reduce=None,
        )
    return lambda cloud: robocache.voxel_downsample(cloud.points, voxel_size=case.voxel_m[0], origin=cloud.origin)


def peers(case: Case, device: str, quick: bool) -> dict[str, Callable[[Cloud], object]]:
    if case.job == "hard":
        calls = {
            "torch eager": lambda cloud: voxelize_torch.gather_hard_voxels(cloud.points, cloud.grid, case.max_points)
        }
        if device == "cpu":
            calls["numpy"] = lambda cloud: voxelize_numpy.hard(cloud.array, *case.grid.values(), case.max_points)
        return calls
    if case.job == "downsample":
        calls = {"torch eager": lambda cloud: voxelize_torch.compute_centroids(cloud.points, *cloud.bounds)}
        if device == "cpu":
            calls["numpy"] = lambda cloud: voxelize_numpy.centroids(cloud.array, cloud.origin, case.voxel_m[0])
            if importlib.util.find_spec("open3d"):
                calls["Open3D"] = open3d_centroids
            else:
                print("  OPEN3D IS NOT INSTALLED (pip install open3d), so it is not compared", flush=True)
        return calls

    def reduce_by_modes(
        points: torch.Tensor, features: torch.Tensor, grid: voxelize_torch.Grid
    ) -> dict[str, torch.Tensor]:
        cell = voxelize_torch.compute_cells(points, grid)
        return {mode: TORCH[mode](cell, features, grid.shape) for mode in case.modes}

    calls = {"torch eager": lambda cloud: reduce_by_modes(cloud.points, cloud.features, cloud.grid)}
    if not quick:
        compiled = torch.compile(reduce_by_modes, dynamic=False)
        calls["torch.compile"] = lambda cloud: compiled(cloud.points, cloud.features, cloud.grid)
    if case.modes == ("count",):
        calls[GIVEN_CELLS] = lambda cloud: voxelize_torch.count_points(cloud.cell, case.size)
    if device == "cpu":
        calls |= {name: partial(run_numpy, case, reduce) for name, reduce in NUMPY.get(case.mode, {}).items()}
    return calls


# For each mode: (cells, features, grid's size) -> grid.
TORCH = {
    "count": lambda cell, features, size: voxelize_torch.count_points(cell, size),
    "occupancy": lambda cell, features, size: voxelize_torch.fill_occupancy(cell, size),
    "mean": voxelize_torch.compute_mean,
    "max": voxelize_torch.compute_maximum,
}
NUMPY = {
    "count": {
        "numpy add.at": lambda cell, features, size: voxelize_numpy.count_by_add_at(cell, size),
        "numpy bincount": lambda cell, features, size: voxelize_numpy.count(cell, size),
    },
    "occupancy": {"numpy": lambda cell, features, size: voxelize_numpy.occupancy(cell, size)},
    "mean": {"numpy bincount": voxelize_numpy.mean},
}


def run_numpy(case: Case, reduce: Callable, cloud: Cloud) -> dict[str, np.ndarray]:
    cell = voxelize_numpy.cells(cloud.array, *case.grid.values())
    return {case.mode: reduce(cell, cloud.features.numpy(), case.size)}


def open3d_centroids(cloud: Cloud) -> np.ndarray:
    from peers import voxelize_open3d

    return voxelize_open3d.compute_centroids(cloud.open3d, cloud.case.voxel_m[0])


def make_checks(case: Case, cloud: Cloud) -> tuple[Callable[[object], dict], Callable[[object, object], dict]]:
    """Returns two checks: of our output against NumPy's, and of a peer's output against ours."""
    if case.job == "dense":
        check = DenseCheck(case.grid, case.modes, cloud.array, cloud.features, case.quantum)
        return check.compare_with_numpy, partial(check.compare_with_peer, max_wrong=2 * cloud.points_near_faces)
    if case.job == "hard":
        expected = voxelize_numpy.hard(cloud.array, *case.grid.values(), case.max_points)
        return partial(check_hard, theirs=expected), check_hard
    expected = voxelize_numpy.centroids(cloud.array, cloud.origin, case.voxel_m[0])
    check = partial(
        check_centroids,
        origin=cloud.origin,
        voxel_m=case.voxel_m[0],
        max_wrong=2 * cloud.points_near_faces,
        points=cloud.points,
    )
    return partial(check, theirs=expected), check


def run_case(case: Case, device: str, quick: bool, result: dict) -> None:
    torch._dynamo.reset()
    clouds = [Cloud(case, device, seed=0)]
    first = clouds[0]
    result["parameters"] = case.parameters(len(first.points))
    call = make_our_call(case)
    output = call(first)
    result["read_bytes"] = first.read_bytes
    result["bytes"] = result["read_bytes"] + count_written_bytes(case, output)
    check, verify = make_checks(case, first)
    result["check"] = check(output)
    del output
    clouds += [Cloud(case, device, seed) for seed in range(1, input_sets(result["bytes"], device, quick=quick))]
    # These calls wait for the device, because they read the number of voxels from it.
    waiting_calls = {"dense": set(), "hard": {"torch eager"}, "downsample": {"torch eager", "robocache"}}[case.job]
    contest(
        result, [(cloud,) for cloud in clouds], call, peers(case, device, quick), verify, device, quick, waiting_calls
    )
    measured = result["contenders"]["robocache"]
    if case.name in EARLIER_US and device == "cuda":
        result["contenders"][EARLIER] = {"gpu_us": EARLIER_US[case.name], "measured_before": True}
        result["faster_than"][EARLIER] = EARLIER_US[case.name] / measured["gpu_us"]
    for contender in result["contenders"].values():
        for measure, speed in (("wall_us", "points_per_s"), ("gpu_us", "gpu_points_per_s")):
            if measure in contender:
                contender[speed] = len(first.points) / contender[measure] * 1e6
    result["times_the_read"] = measured.get("gpu_us", measured["wall_us"]) / result["read_floor_us"]


def count_written_bytes(case: Case, output: object) -> int:
    """Returns the bytes of all arrays of a result; for hard voxels, only the rows in use."""
    if case.job == "hard":
        rows = int(output.num_voxels)
        return output.point_to_voxel.nbytes + sum(
            x[:rows].nbytes for x in (output.coords, output.features, output.counts)
        )
    arrays = output.values() if isinstance(output, dict) else output if isinstance(output, tuple) else (output,)
    return sum(array.nbytes for array in arrays)


def small_calls(device: str) -> dict[str, Callable[[], object]]:
    """Returns calls with almost no work."""
    cloud = Cloud(Case("", "dense", "uniform", 64, size=(16, 16, 16)), device, seed=0)
    call = partial(robocache.voxelize_pointcloud, **cloud.case.grid, mode="count")
    out = call(cloud.points)
    return {
        "robocache": partial(call, cloud.points),
        "robocache, out=": partial(call, cloud.points, out=out),
        "robocache, no points": partial(call, cloud.points[:0]),
        "torch.lerp": partial(torch.lerp, *[cloud.points] * 3),
        "torch.empty": partial(torch.empty, (16, 16, 16), device=device),
    }


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    device, quick = options.device, options.quick
    report = Report("voxelize", options, PREDICTED[device], aims(device))
    available = scans.find_available()
    if len(available) < len(scans.SCANS):
        print(f"  real scans here: {', '.join(available) or 'none'}; see ROBOCACHE_TEST_DATA", flush=True)
    cases = QUICK if quick else CASES[device]
    for case in (case for case in cases if case.cloud in CLOUDS or case.cloud in available):
        report.run(case.name, case.parameters(case.points), partial(run_case, case, device, quick))
    small = {"points": 64, "grid": (16, 16, 16), "modes": ("count",), "features": 0}
    report.run("call overhead", small, lambda case: overhead(small_calls(device), quick, case))
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
