"""Random clouds with many edge cases."""

import numpy as np

GRID = {"grid_min": (-1.5, 0.25, 3.0), "voxel_size": (0.5, 0.7, 0.1), "grid_size": (3, 4, 37)}


def random_points(rng, count, dtype=np.float32, special=True, **grid):
    """Returns [count, 3]: several points in a voxel, on boundaries, outside, NaN and infinite."""
    grid = GRID | grid
    low = np.asarray(grid["grid_min"], dtype)
    size = np.broadcast_to(np.asarray(grid["voxel_size"], dtype), 3)
    shape = np.asarray(grid["grid_size"])
    spread = rng.uniform(-0.1, 1.1, (count, 3)) * shape
    clustered = rng.integers(0, np.maximum(shape, 1), (max(count // 8, 1), 3)) + rng.random((max(count // 8, 1), 3))
    cell = np.where(rng.random((count, 1)) < 0.5, spread, clustered[rng.integers(0, len(clustered), count)])
    on_boundary = rng.random((count, 3)) < 0.2
    cell = np.where(on_boundary, np.round(cell), cell)
    points = (low + cell.astype(dtype) * size).astype(dtype)
    if special:
        is_special = rng.random((count, 3)) < 0.02
        points[is_special] = rng.choice(np.array([np.nan, np.inf, -np.inf, 2.1e9, -0.0, 1e30], dtype), is_special.sum())
    return points
