"""voxel_downsample, rule 31, bit for bit against the NumPy oracle, on the CPU and on CUDA."""

import numpy as np
import pytest
from reference.compare import OnlyDLPack, assert_same_bits, to_numpy, to_torch
from reference.random_streams import FLOATS, random_values
from reference.scans import SCANS, read_scan, scan_path, xyz
from reference.sparse_clouds import random_points
from reference.voxelize_sparse import cells_of
from reference.voxelize_sparse import voxel_downsample as oracle

import robocache

torch = pytest.importorskip("torch")

METHODS = [("centroid", None), ("first", None), ("random", 0), ("random", -(2**63)), ("random", 2**63 - 1)]
each_method = pytest.mark.parametrize(("method", "seed"), METHODS)


def downsample(points, features=None, device="cpu", **options):
    result = robocache.voxel_downsample(
        to_torch(points, device), None if features is None else to_torch(features, device), **options
    )
    return to_numpy(result) if features is None else tuple(map(to_numpy, result))


def check(points, features=None, device="cpu", **options):
    result = downsample(points, features, device, **options)
    expected, expected_features, _ = oracle(points, features, **options)
    assert_same_bits(result if features is None else result[0], expected, f"points, {options}")
    if features is not None:
        assert_same_bits(result[1], expected_features, f"features, {options}")
    return result


@each_method
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rule_31_points_with_columns(rng, device, method, seed, dtype):
    for rows in (0, 1, 33, 500):
        points = np.concatenate([random_points(rng, (rows,), dtype), random_values(rng, (rows, 2), np.dtype(dtype))], 1)
        for origin in (0, (0.1, -7.0, 0.3)):
            check(points, device=device, voxel_size=(0.5, 0.4, 1.0), method=method, seed=seed, origin=origin)


@each_method
@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.int32), np.dtype(np.uint8)], ids=lambda dtype: dtype.name)
def test_rule_31_features_of_any_type(rng, device, method, seed, dtype):
    points = np.concatenate([random_points(rng, (300,)), rng.random((300, 1), np.float32)], 1)
    result = check(points, random_values(rng, (300, 3), dtype), device, voxel_size=0.5, method=method, seed=seed)
    assert result[0].shape[1] == 3


def test_rule_31_far_coordinates_keep_their_digits(rng, device):
    """UTM coordinates: the mean has rule 28's error, a small part of a millimetre."""
    points = rng.uniform(0, 30, (3000, 3)) + np.array([443_000.0, 5_360_000.0, 300.0])
    result = check(points, device=device, voxel_size=2.0)
    cells = cells_of(points, 2.0)
    _, first, cell_of_row, counts = np.unique(cells, axis=0, return_index=True, return_inverse=True, return_counts=True)
    sums = np.stack([np.bincount(cell_of_row.ravel(), points[:, k] - points[0, k]) for k in range(3)], 1)
    means = sums / counts[:, None]
    assert np.abs(result - (means + points[0])[np.argsort(first)]).max() < 1e-8


@each_method
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rule_31_cells_beyond_int32(rng, device, method, seed, dtype):
    """A survey in UTM metres has cells of 1 or 2 mm; cells of distant points have equal low halves."""
    points = rng.uniform(0, 0.02, (3000, 3)) + np.array([443_000.0, 5_360_000.0, 300.0])
    for size in (0.0024, 0.001, (0.001, 0.5, 1e-6)):
        result = check(points.astype(dtype), device=device, voxel_size=size, method=method, seed=seed)
        assert len(result) == len(np.unique(cells_of(points.astype(dtype), size), axis=0))
    wraps = np.array([0, 1, 2.0**31, -(2.0**31), 2.0**32, 2.0**32 + 512, 2.0**33, -(2.0**40), 2.0**61, np.nan, 1e30])
    points = rng.choice(wraps, (2000, 3)).astype(dtype)
    result = check(np.repeat(points, 2, axis=0), device=device, voxel_size=1.0, method=method, seed=seed)
    assert len(result) == len(np.unique(points[(np.abs(points) < 2.0**62).all(axis=1)], axis=0))
    with_many_zeros = np.concatenate([points[:5], np.zeros((40_000, 3), dtype)])
    check(with_many_zeros, device=device, voxel_size=1.0, method=method, seed=seed)


@pytest.mark.parametrize(("method", "seed"), METHODS[:3])
@pytest.mark.parametrize("name", SCANS)
def test_rule_31_real_scans(device, method, seed, name):
    if scan_path(name) is None:
        pytest.skip("ROBOCACHE_TEST_DATA names no folder with this scan")
    points, size = xyz(read_scan(name), np.float64), {"small_gicp": 0.25, "terrain": 5.0, "kinect": 0.02}[name]
    result = downsample(points, device=device, voxel_size=size, method=method, seed=seed)
    points = points[np.isfinite(points).all(axis=1)]
    cells = cells_of(points, size)
    unique_cells, first, cell_of_row, counts = np.unique(
        cells, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    first_rows = np.sort(first)
    assert result.shape == unique_cells.shape
    if method == "first":
        assert_same_bits(result, points[first_rows])
    elif method == "random":
        assert_same_bits(cells_of(result, size).astype(np.int64), cells[first_rows].astype(np.int64))
        assert {tuple(p) for p in result} <= {tuple(p) for p in points}
    else:
        # The means are relative to the scan's first point, so that numpy's sums keep their digits. The bound has n additions, each
        # rounded by half an ulp of the sum of distances, and half an ulp of the result with rule 28's error for n points.
        relative = points - points[0]
        means = np.stack([np.bincount(cell_of_row.ravel(), relative[:, k]) for k in range(3)], 1) / counts[:, None]
        bound = np.abs(relative).max() * counts.max() * 2.0**-52 + np.abs(points).max() * 2.0**-50
        assert np.abs(result - (means + points[0])[np.argsort(first)]).max() <= bound


def test_rule_31_random_depends_on_seed_and_row_alone(rng, device):
    points = rng.uniform(0, 3, (4000, 3)).astype(np.float32)
    options = {"voxel_size": 1.0, "method": "random"}
    result = downsample(points, device=device, seed=1, **options)
    assert_same_bits(result, downsample(points, device=device, seed=1, **options))
    assert (result != downsample(points, device=device, seed=2, **options)).any()
    # Rows of other voxels may change.
    moved = points.copy()
    outside = np.floor(points[:, 0]) != 1
    moved[outside] = rng.uniform(5, 6, (outside.sum(), 3))
    moved_result = downsample(moved, device=device, seed=1, **options)
    kept = {tuple(p) for p in result[np.floor(result[:, 0]) == 1]}
    assert len(kept) == 9 and kept == {tuple(p) for p in moved_result[np.floor(moved_result[:, 0]) == 1]}


def test_rule_31_random_is_uniform(device):
    """8 points in one voxel, 4000 seeds: chi-squared with 7 degrees of freedom exceeds 29.9 once in 10^4."""
    points = torch.arange(8.0, device=device)[:, None].expand(8, 3) / 8
    taken = torch.cat(
        [robocache.voxel_downsample(points, voxel_size=1.0, method="random", seed=s) for s in range(4000)]
    )
    counts = np.bincount((to_numpy(taken)[:, 0] * 8).astype(int), minlength=8)
    assert ((counts - 500) ** 2 / 500).sum() < 29.9


def test_rule_31_equals_open3d(rng, device):
    """Open3D's voxel_down_sample gives the mean of each cell; cells begin half a voxel below the least coordinates."""
    points = rng.uniform(-4, 4, (2000, 3))
    origin = points.min(0) - 0.5 / 2
    cells = {}
    for p in points:
        cells.setdefault(tuple(np.floor((p - origin) / 0.5)), []).append(p)
    result = downsample(points, device=device, voxel_size=0.5, origin=tuple(origin))
    expected = np.array([np.mean(cell_points, axis=0) for cell_points in cells.values()])
    assert result.shape == expected.shape
    # numpy rounds a sum of n values at most n times, by half an ulp of at most 4 n.
    assert np.abs(result - expected).max() <= max(map(len, cells.values())) * 4 * 2.0**-52


@pytest.mark.parametrize("method", ["centroid", "first", "random"])
@pytest.mark.parametrize("with_features", [False, True])
def test_rule_19_gradients(rng, device, method, with_features):
    cloud = rng.uniform(0, 3, (200, 5))
    points = to_torch(cloud, device).requires_grad_()
    features = to_torch(rng.standard_normal((200, 2)), device).requires_grad_() if with_features else None
    options = {"voxel_size": 1.0, "method": method, "seed": 5 if method == "random" else None}
    result = robocache.voxel_downsample(points, features, **options)
    result = result if with_features else (result,)
    weights = [rng.standard_normal(x.shape) for x in result]
    torch.autograd.backward(result, [to_torch(w, device) for w in weights])
    inputs = [to_numpy(x) for x in (points, features) if x is not None]
    taken, _, rows = oracle(*inputs, **options)
    for index, source in enumerate(x for x in (points, features) if x is not None):
        expected = np.zeros(source.shape)
        width = weights[index].shape[1]
        for voxel, voxel_rows in enumerate(rows):
            if method == "centroid":
                expected[voxel_rows, :width] = weights[index][voxel] / len(voxel_rows)
            else:
                (row,) = (r for r in voxel_rows if (cloud[r, :3] == taken[voxel, :3]).all())
                expected[row, :width] = weights[index][voxel]
        assert_same_bits(to_numpy(source.grad), expected)


def test_rule_18_frameworks(rng):
    points = random_points(rng, (100,))
    expected, _, _ = oracle(points, voxel_size=0.5)
    assert_same_bits(robocache.voxel_downsample(points, voxel_size=0.5), expected)
    assert_same_bits(to_numpy(robocache.voxel_downsample(OnlyDLPack(to_torch(points)), voxel_size=0.5)), expected)
