"""Random calls of voxelize_pointcloud, and checks of every mode against the oracle, by bits."""

import numpy as np
import pytest

import robocache
from reference.compare import assert_same_bits, name_of, poisoned, to_numpy, to_torch
from reference.random_clouds import GRID, random_points
from reference.random_streams import FLOATS, WHOLE, random_values
from reference.voxelize import MODES
from reference.voxelize import voxelize as oracle

DTYPES = FLOATS + [dtype for dtype in WHOLE if dtype != np.uint64]
POINTS = [np.dtype(np.float32), np.dtype(np.float64)]


each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
each_float = pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
each_points_dtype = pytest.mark.parametrize("points_dtype", POINTS, ids=name_of)


def voxelize(points, features=None, device="cpu", *, mode, **options):
    """Calls voxelize_pointcloud through torch on `device`. Returns ({mode: array}, dropped) as NumPy arrays."""
    for name in ("lengths", "batch_offsets"):
        if options.get(name) is not None:
            options[name] = to_torch(np.asarray(options[name]), device)
    points = to_torch(points, device)
    features = None if features is None else to_torch(features, device)
    out, dropped = robocache.voxelize_pointcloud(points, features, mode=mode, return_dropped=True, **options)
    assert list(out) == list(mode)
    assert all(array.device.type == device for array in (*out.values(), dropped))
    poison = {name: poisoned(array.shape, array.dtype, device) for name, array in out.items()}
    second_out = robocache.voxelize_pointcloud(points, features, mode=mode, out=poison, **options)
    assert second_out is poison
    for name in mode:
        assert_same_bits(to_numpy(poison[name]), to_numpy(out[name]), f"out= of {name}")
    return {name: to_numpy(array) for name, array in out.items()}, to_numpy(dropped)


def check(points, features=None, device="cpu", *, mode=MODES, **options):
    """Compares every mode with the oracle, by bits. Returns the result."""
    options = GRID | options
    out, dropped = voxelize(points, features, device, mode=mode, **options)
    expected, expected_dropped = oracle(points, features, mode=mode, **options)
    for name in mode:
        assert_same_bits(out[name], expected[name], name)
    assert_same_bits(dropped, np.asarray(expected_dropped), "dropped")
    return out, dropped


def random_case(rng, dtype=POINTS[0], count=400, features=3, points_dtype=np.float32, special=True):
    return random_points(rng, count, points_dtype, special), random_values(rng, (count, features), dtype, special)


def in_one_voxel(features):
    """Returns (points, features, grid) with all points in a grid's only voxel."""
    features = np.asarray(features)
    return (
        np.full((len(features), 3), 0.5, np.float32),
        features,
        {"grid_min": (0, 0, 0), "voxel_size": 1.0, "grid_size": (1, 1, 1)},
    )


def bits(array):
    """Returns the bits as integers on the CPU; all NaN are made equal, because their sign and payload are free."""
    import torch

    array = torch.as_tensor(array).cpu()
    if array.dtype.is_floating_point:
        integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[array.itemsize]
        return torch.where(array.isnan(), torch.iinfo(integers).min + 1, array.view(integers))
    return array.view(torch.int32) if array.dtype == torch.uint32 else array


def same(a, b):
    """Returns whether two results, arrays or dicts or tuples of arrays, are equal bit for bit."""
    import torch

    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and torch.equal(bits(a), bits(b))
