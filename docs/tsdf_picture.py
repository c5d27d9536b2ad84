"""Computes and draws docs/tsdf.png, for docs/pictures.py: a depth camera's view of a table in a grid of distances."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import robocache

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests"))
from reference.scans import read_scan, scan_path, xyz  # noqa: E402

CAMERA = (525.0, 525.0, 319.5, 239.5)
SHAPE, VOXEL_M, TRUNCATION_M = (250, 210, 230), 0.004, 0.016
MIDDLE = np.array([-0.05, 0.05, 0.78])  # the table's middle, in the camera's frame
ROW = 112  # the row of the slice


def grid_from_camera() -> np.ndarray:
    """Returns T_grid_camera. The grid lies at the table, and its z axis points down to the table."""
    tilt, turn = np.deg2rad(30), np.deg2rad(15)
    about_x = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    about_y = np.array([[np.cos(turn), 0, np.sin(turn)], [0, 1, 0], [-np.sin(turn), 0, np.cos(turn)]])
    transform = np.eye(4)
    transform[:3, :3] = about_x @ about_y
    transform[:3, 3] = -transform[:3, :3] @ MIDDLE
    return transform


def integrate(measured: np.ndarray, *intrinsics: tuple, **options: bool) -> tuple[np.ndarray, np.ndarray]:
    grid, weights = np.zeros(SHAPE, np.float32), np.zeros(SHAPE, np.float32)
    corner = -np.array(SHAPE) * VOXEL_M / 2
    arguments = {"grid_min": corner, "voxel_size": VOXEL_M, "truncation": TRUNCATION_M} | options
    return robocache.integrate_tsdf(grid, weights, measured, grid_from_camera(), *intrinsics, **arguments)


def shade(grid: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the brightness of the first surface along z, as [X, Y]; NaN without a surface."""
    is_seen = (weights[:, :, 1:] > 0) & (weights[:, :, :-1] > 0)
    crosses = is_seen & (grid[:, :, :-1] > 0) & (grid[:, :, 1:] <= 0)
    depth = crosses.argmax(2)[..., None]
    slopes = [np.take_along_axis(slope, depth, 2)[..., 0] for slope in np.gradient(grid)]
    length = np.sqrt(sum(slope**2 for slope in slopes)) + 1e-12
    light = np.array([-0.3, 0.35, -0.89])
    brightness = sum(slope * side for slope, side in zip(slopes, light, strict=True)) / length
    return np.where(crosses.any(2), np.clip(brightness, 0, 1), np.nan)


def compute_numbers() -> list[np.ndarray] | None:
    """Returns the camera's view, and one slice of the distances in millimetres from points and from the depth image, NaN where
    unseen. None without ROBOCACHE_TEST_DATA."""
    if scan_path("kinect") is None:
        return None
    points = xyz(read_scan("kinect"))
    from_points = integrate(points)
    depth = points[:, 2].reshape(480, 640)
    from_depth = integrate(depth, CAMERA, space_carving=True)
    slices = [np.where(weights > 0, grid * 1e3, np.nan)[:, ROW] for grid, weights in (from_points, from_depth)]
    return [shade(*from_points), *slices]


def draw(plt, numbers: list[np.ndarray]):
    view, *slices = numbers
    figure, panels = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained", width_ratios=[1.05, 1, 1])
    extent_x, extent_y, extent_z = (n * VOXEL_M / 2 for n in SHAPE)
    panels[0].imshow(view.T, cmap="bone", vmin=-0.1, vmax=1.05, extent=(-extent_x, extent_x, extent_y, -extent_y))
    panels[0].axhline((ROW + 0.5) * VOXEL_M - extent_y, color="C1", linewidth=0.8)
    panels[0].set_title("points: the zero crossing, seen along z", fontsize=10)
    for panel, distances, title in zip(
        panels[1:], slices, ("points: the row of the line", "depth image, space_carving=True"), strict=True
    ):
        image = panel.imshow(
            distances.T,
            cmap="RdBu",
            vmin=-1e3 * TRUNCATION_M,
            vmax=1e3 * TRUNCATION_M,
            extent=(-extent_x, extent_x, extent_z, -extent_z),
            interpolation="nearest",
        )
        panel.set_title(title, fontsize=10)
    figure.colorbar(image, ax=panels[1:], label="mm along the ray", shrink=0.85)
    for panel in panels:
        panel.set_facecolor("0.85")
        panel.set_xlabel("x, m")
    panels[0].set_ylabel("y, m")
    panels[1].set_ylabel("z, m")
    return figure
