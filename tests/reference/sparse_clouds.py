"""Calls of voxelize_sparse, and random points with many edge cases of voxels."""

import numpy as np

import robocache

from .compare import assert_same_bits, to_numpy, to_torch
from .voxelize_sparse import voxelize_sparse as oracle


def voxelize(points, features=None, device="cpu", **options):
    """Calls voxelize_sparse through torch on `device`, with NumPy arrays in and out."""
    for name in ("lengths", "batch_offsets"):
        if isinstance(options.get(name), np.ndarray):
            options[name] = to_torch(options[name], device)
    result = robocache.voxelize_sparse(
        to_torch(points, device), None if features is None else to_torch(features, device), **options
    )
    assert all(array is None or array.device.type == device for array in result)
    return robocache.SparseVoxels(*(None if array is None else to_numpy(array) for array in result))


def check(points, features=None, device="cpu", **options):
    """Compares with the oracle, by bits. Returns the result."""
    result = voxelize(points, features, device, **options)
    expected = oracle(points, features, **options)
    for name in ("coords", "counts", "point_to_voxel", "dropped", "features"):
        assert_same_bits(getattr(result, name), getattr(expected, name), f"{name}, {options}")
    if options.get("capacity") is None:
        assert result.num_voxels is None
    else:
        assert_same_bits(result.num_voxels, np.array(expected.num_voxels, np.int64), f"num_voxels, {options}")
    return result


def random_points(rng, shape, dtype=np.float32, *, spread=3.0, voxel_size=0.5, special=True):
    """Returns [..., 3]: a few clusters, points on faces of cells of `voxel_size`, repeats, and points in no cell."""
    count = int(np.prod(shape))
    centres = rng.uniform(-spread, spread, (5, 3))
    points = centres[rng.integers(0, 5, count)] + rng.standard_normal((count, 3)) * rng.choice([0.05, 0.5, 2.0])
    size = np.broadcast_to(np.asarray(voxel_size, np.float64), 3)
    faces = rng.random(count) < 0.2
    points[faces] = np.round(points[faces] / size) * size
    if count:
        is_repeated = rng.random(count) < 0.1
        points[is_repeated] = points[rng.integers(0, count, is_repeated.sum())]
    if special:
        extreme = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, -0.0, 1e-40, 2.1e9])
        is_special = rng.random((count, 3)) < 0.03
        points[is_special] = rng.choice(extreme, is_special.sum())
    with np.errstate(over="ignore"):
        return points.astype(dtype).reshape(*shape, 3)


def random_offsets(rng, rows, clouds, dtype=np.int64):
    """Offsets [clouds + 1] from 0 to rows; some clouds are empty."""
    inner = np.sort(
        rng.choice(rng.integers(0, rows + 1, 3), clouds - 1)
        if rng.random() < 0.3
        else rng.integers(0, rows + 1, clouds - 1)
    )
    return np.array([0, *inner, rows], dtype)
