"""Voxels in NumPy: the whole job by its fastest plain functions. Every other contender is compared with its results."""

import numpy as np


def coordinates(points: np.ndarray, grid_min: tuple, voxel_size: tuple) -> np.ndarray:
    """Returns floor((p - origin) / size) in the points' dtype: [N, 3], NaN where the point is NaN."""
    origin, size = np.asarray(grid_min, points.dtype), np.asarray(voxel_size, points.dtype)
    return np.floor((points[:, :3] - origin) / size)


def cells(points: np.ndarray, grid_min: tuple, voxel_size: tuple, grid_size: tuple) -> np.ndarray:
    """Returns the index of each point's voxel, int64 [N]; the number of voxels for a point outside the grid."""
    coords = coordinates(points, grid_min, voxel_size)
    is_inside = ((coords >= 0) & (coords < np.asarray(grid_size))).all(1)
    x, y, z = np.where(is_inside[:, None], coords, 0).astype(np.int64).T
    return np.where(is_inside, (x * grid_size[1] + y) * grid_size[2] + z, np.prod(grid_size))


def count_by_add_at(cell: np.ndarray, grid_size: tuple) -> np.ndarray:
    grid = np.zeros(np.prod(grid_size) + 1, np.int32)
    np.add.at(grid, cell, np.int32(1))
    return grid[:-1].reshape(grid_size)


def count(cell: np.ndarray, grid_size: tuple) -> np.ndarray:
    return np.bincount(cell, minlength=np.prod(grid_size) + 1)[:-1].astype(np.int32).reshape(grid_size)


def occupancy(cell: np.ndarray, grid_size: tuple) -> np.ndarray:
    grid = np.zeros(np.prod(grid_size) + 1, bool)
    grid[cell] = True
    return grid[:-1].reshape(grid_size)


def mean(cell: np.ndarray, features: np.ndarray, grid_size: tuple) -> np.ndarray:
    """Returns float64 [X, Y, Z, F], 0 in voxels without points."""
    voxels = np.prod(grid_size) + 1
    points = np.maximum(np.bincount(cell, minlength=voxels), 1)
    sums = [np.bincount(cell, column, voxels) / points for column in features.T]
    return np.stack(sums, 1)[:-1].reshape(*grid_size, -1)


def maximum(cell: np.ndarray, features: np.ndarray, grid_size: tuple) -> np.ndarray:
    """Returns [X, Y, Z, F] of the features' dtype, 0 in voxels without points."""
    order = np.argsort(cell, kind="stable")
    occupied, first = np.unique(cell[order], return_index=True)
    grid = np.zeros((np.prod(grid_size) + 1, features.shape[1]), features.dtype)
    grid[occupied] = np.maximum.reduceat(features[order], first)
    return grid[:-1].reshape(*grid_size, -1)


def hard(
    points: np.ndarray, grid_min: tuple, voxel_size: tuple, grid_size: tuple, max_points: int
) -> tuple[np.ndarray, ...]:
    """Returns the voxels in the order of their first points, with at most `max_points` points of each: coords [M, 3] as x, y, z,
    points [M, max_points, 3 + F] padded with zeros, counts [M]."""
    cell = cells(points, grid_min, voxel_size, grid_size)
    row = np.flatnonzero(cell < np.prod(grid_size))
    occupied, first, voxel = np.unique(cell[row], return_index=True, return_inverse=True)
    rank = np.empty(len(occupied), np.int64)
    rank[np.argsort(first)] = np.arange(len(occupied))
    voxel, occupied = rank[voxel], occupied[np.argsort(first)]
    order = np.argsort(voxel, kind="stable")
    counts = np.bincount(voxel, minlength=len(occupied))
    number_in_voxel = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_kept = number_in_voxel < max_points
    gathered = np.zeros((len(occupied), max_points, points.shape[1]), points.dtype)
    gathered[voxel[order][is_kept], number_in_voxel[is_kept]] = points[row[order][is_kept]]
    coords = np.stack(np.unravel_index(occupied, grid_size), 1)
    return coords.astype(np.int32), gathered, np.minimum(counts, max_points)


def centroids(points: np.ndarray, origin: tuple, voxel_size: float) -> np.ndarray:
    """Returns the mean of each voxel's points, float64 [M, 3], in the order of their first points. All points must be
    finite."""
    coords = coordinates(points, origin, (voxel_size,) * 3).astype(np.int64)
    coords -= coords.min(0)
    _, ny, nz = coords.max(0) + 1
    _, first, voxel, counts = np.unique(
        (coords[:, 0] * ny + coords[:, 1]) * nz + coords[:, 2],
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    sums = np.stack([np.bincount(voxel, axis) for axis in points.T], 1)
    return (sums / counts[:, None])[np.argsort(first)]
