"""integrate_tsdf of a depth camera's views and of a spinning lidar's scans, compared with torch, Open3D and a copy.

python bench/tsdf.py --device cuda
python bench/tsdf.py --device cpu --threads 2
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from contest import contest, overhead
from measure import input_sets
from peers import tsdf_torch
from record import Report, arguments

import robocache

CAMERA = (525.0, 525.0, 319.5, 239.5)  # fx, fy, cx, cy for images [480, 640]


@dataclass(frozen=True)
class Case:
    name: str
    measured: str  # "depth", "camera points" or "lidar points"
    cells: int
    voxel_m: float
    carving: bool

    @property
    def truncation_m(self) -> float:
        return 4 * self.voxel_m

    @property
    def corner(self) -> tuple[float, float, float]:
        half = -self.cells * self.voxel_m / 2
        return (half, half, half) if self.measured == "lidar points" else (half, half, 0.5)

    @property
    def options(self) -> dict:
        return {"grid_min": self.corner, "voxel_size": self.voxel_m, "truncation": self.truncation_m}

    def parameters(self) -> dict:
        return {
            "measured": {
                "depth": "a depth image of 640 x 480",
                "camera points": "its 307,200 points",
                "lidar points": "131,072 points of a lidar of 128 beams",
            }[self.measured],
            "grid": [self.cells] * 3,
            "voxel_m": self.voxel_m,
            "truncation_m": self.truncation_m,
            "space_carving": self.carving,
        }


CASES = [
    Case("depth, 256^3", "depth", 256, 0.005, False),
    Case("depth carving, 256^3", "depth", 256, 0.005, True),
    Case("depth, 512^3", "depth", 512, 0.0025, False),
    Case("depth carving, 512^3", "depth", 512, 0.0025, True),
    Case("camera points, 256^3", "camera points", 256, 0.005, False),
    Case("camera points carving, 256^3", "camera points", 256, 0.005, True),
    Case("lidar points, 512^3", "lidar points", 512, 0.1, False),
    Case("lidar points carving, 512^3", "lidar points", 512, 0.1, True),
]
QUICK = [Case("depth carving, 48^3", "depth", 48, 0.025, True)]

# Written before the first measurement.
PREDICTED = {
    "cuda": {
        "depth, 256^3": {"times_the_copy": 1.5},
        "depth carving, 256^3": {"times_the_copy": 1.6, "faster_than": {"torch eager": 20, "torch.compile": 1.5}},
        "depth carving, 512^3": {"times_the_copy": 1.5},
        "camera points, 256^3": {"times_the_copy": 0.7},
        "camera points carving, 256^3": {"times_the_copy": 8},
        "lidar points, 512^3": {"times_the_copy": 0.1},
        "lidar points carving, 512^3": {"times_the_copy": 2},
    },
    "cpu": {"depth carving, 256^3": {"times_the_copy": 3, "faster_than": {"torch eager": 10, "open3d": 3}}},
}


class Scene:
    """A sensor's measurements, and a grid for each contender, since a call adds to its grid."""

    def __init__(self, case: Case, device: str, seed: int) -> None:
        self.case, self.device, self.volumes = case, device, {}
        self.pose = np.eye(4)
        self.pose[:3, 3] = np.random.default_rng(seed).uniform(-0.01, 0.01, 3)
        measured = make_lidar_round(seed) if case.measured == "lidar points" else make_depth_view(seed)
        if case.measured == "camera points":
            v, u = np.mgrid[:480, :640]
            x, y = (u - CAMERA[2]) / CAMERA[0] * measured, (v - CAMERA[3]) / CAMERA[1] * measured
            measured = np.stack([x, y, measured], -1).reshape(-1, 3)
        self.array = measured.astype(np.float32)
        self.measured = torch.from_numpy(self.array).to(device)
        self.pose_on_device = torch.from_numpy(self.pose).float().to(device)

    def volume(self, contender: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (grid, weights) of the contender."""
        if contender not in self.volumes:
            shape = (self.case.cells,) * 3
            self.volumes[contender] = tuple(torch.zeros(shape, device=self.device) for _ in range(2))
        return self.volumes[contender]


def make_depth_view(seed: int) -> np.ndarray:
    """Returns the depths of a wavy wall with a box before it, where one pixel in ten has no depth."""
    rng = np.random.default_rng(seed)
    v, u = np.mgrid[:480, :640]
    depth = 1.3 + 0.1 * np.sin(u / 60 + seed) * np.cos(v / 45)
    depth[180:330, 240:420] = 0.9
    depth[rng.random(depth.shape) < 0.1] = 0
    return depth


def make_lidar_round(seed: int) -> np.ndarray:
    """Returns the points of 128 beams at 1024 azimuths in a yard 40 m wide, the ground 2 m below, in the order of the scan."""
    turn, beam = (x.ravel() for x in np.meshgrid(np.arange(1024), np.arange(128), indexing="ij"))
    azimuth, elevation = turn * (2 * np.pi / 1024), np.deg2rad(-25 + 40 * beam / 127)
    direction = np.stack(
        [np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)], axis=1
    )
    with np.errstate(divide="ignore"):
        wall = 20 / np.abs(direction[:, :2]).max(1)
        ground = np.where(direction[:, 2] < 0, -2 / direction[:, 2], np.inf)
    noise = np.random.default_rng(seed).normal(0, 0.02, len(direction))
    return direction * (np.minimum(wall, ground) + noise)[:, None]


def integrate_ours(scene: Scene) -> torch.Tensor:
    case = scene.case
    camera = CAMERA if case.measured == "depth" else None
    return robocache.integrate_tsdf(
        *scene.volume("robocache"), scene.measured, scene.pose, camera, space_carving=case.carving, **case.options
    )[0]


def integrate_by_torch(name: str, call: Callable, scene: Scene) -> torch.Tensor:
    case = scene.case
    return call(*scene.volume(name), scene.measured, scene.pose_on_device, CAMERA, case.carving, *case.options.values())


def integrate_by_open3d(scene: Scene) -> torch.Tensor:
    """Integrates by Open3D. Its grid is only read for the verification, since reading copies the whole grid."""
    from peers import tsdf_open3d

    case = scene.case
    if "open3d" not in scene.volumes:
        scene.volumes["open3d"] = (
            tsdf_open3d.make_volume(case.cells, case.voxel_m, case.corner, case.truncation_m),
            tsdf_open3d.make_images(scene.array),
            tsdf_open3d.make_camera(scene.array.shape, CAMERA),
            np.linalg.inv(scene.pose),
        )
    volume, *view = scene.volumes["open3d"]
    volume.integrate(*view)
    return volume


def peers(case: Case, device: str, quick: bool) -> dict[str, Callable[[Scene], torch.Tensor]]:
    """Returns the peers that can do a case. No peer integrates points along their rays, and Open3D always carves."""
    if case.measured != "depth" or (device == "cpu" and case.cells > 256):
        return {}
    calls = {"torch eager": partial(integrate_by_torch, "torch eager", tsdf_torch.integrate)}
    if not quick:
        compiled = torch.compile(tsdf_torch.integrate, dynamic=False)
        calls["torch.compile"] = partial(integrate_by_torch, "torch.compile", compiled)
    if device == "cpu" and case.carving and importlib.util.find_spec("open3d"):
        calls["open3d"] = integrate_by_open3d
    return calls


def check_errors(case: Case, ours: torch.Tensor, theirs: object) -> dict:
    """Refuses a peer that is off by more than 1/500 of the truncation in more than one voxel in 200.

    Peers work in float32, with errors of 2^-22 of 2 m in a depth. Open3D uses the length of the ray at the centre of the pixel,
    half a pixel from the voxel, so its distance is off by 1/1000 here. If the centre of a voxel lies midway between two pixels,
    float32 may take the other pixel and its depth. Only such voxels may be off by more.
    """
    if not isinstance(theirs, torch.Tensor):
        from peers import tsdf_open3d

        theirs = torch.from_numpy(tsdf_open3d.read_distances(theirs, case.cells, case.truncation_m))
    error = (ours.double() - theirs.double()).abs() / case.truncation_m
    seen_voxels = int(((ours != 0) | (theirs != 0)).sum())
    share_off = int((error > 1 / 500).sum()) / seen_voxels
    if not share_off < 1 / 200:
        raise AssertionError(
            f"{share_off:.3g} of the voxels differ from robocache by more than 1/500 of the truncation"
        )
    return {"voxels_off": share_off, "largest_error_over_bound": share_off * 200}


def run_case(case: Case, device: str, quick: bool, result: dict) -> None:
    torch._dynamo.reset()
    scenes = [Scene(case, device, seed=0)]
    # All voxels of the grid and the weights count as read and written, although most unseen voxels need neither.
    result["bytes"] = 4 * 4 * case.cells**3
    scenes += [Scene(case, device, seed) for seed in range(1, input_sets(result["bytes"], device, quick=quick))]
    verify, peer_calls = partial(check_errors, case), peers(case, device, quick)
    for scene in scenes:  # every timed replay would clear volumes that were created within a graph
        for name in {"robocache", *peer_calls} - {"open3d"}:
            scene.volume(name)
    contest(result, [(scene,) for scene in scenes], integrate_ours, peer_calls, verify, device, quick)


def small_calls(device: str) -> dict[str, Callable[[], object]]:
    """Returns calls with almost no work."""
    grid, weights = (torch.zeros(8, 8, 8, device=device) for _ in range(2))
    points, depth, pose = torch.ones(64, 3, device=device), torch.ones(8, 8, device=device), np.eye(4)
    call = partial(robocache.integrate_tsdf, grid, weights, grid_min=(0.0, 0.0, 0.0), voxel_size=0.25, truncation=0.5)
    return {
        "robocache": partial(call, points, pose),
        "robocache, depth": partial(call, depth, pose, (8.0, 8.0, 3.5, 3.5)),
        "torch.lerp": partial(torch.lerp, points, points, points),
    }


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    device, quick = options.device, options.quick
    report = Report("tsdf", options, PREDICTED[device])
    for case in QUICK if quick else CASES:
        report.run(case.name, case.parameters(), partial(run_case, case, device, quick))
    small = {"measured": "64 points", "grid": [8, 8, 8]}
    report.run("call overhead", small, lambda filled: overhead(small_calls(device), quick, filled))
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
