"""Rules 25 and 26: the voxel and the cloud of a point."""

import numpy as np
import pytest
from reference.compare import assert_same_bits, to_numpy, to_torch
from reference.random_clouds import GRID, random_points
from reference.random_streams import random_values
from reference.voxel_checks import check, each_points_dtype, random_case, voxelize
from reference.voxelize import MODES, cells
from reference.voxelize import voxelize as oracle

import robocache

pytest.importorskip("torch")


# ---- Which voxel: rule 25 ----


@each_points_dtype
def test_rule_25_points_at_boundaries_get_the_voxels_that_numpy_computes(rng, device, points_dtype):
    for size in (0.1, 0.3, 1 / 3, 0.05, 1e-3, 7.0):
        grid = {"grid_min": (-12.8, 0.0, 100.0), "voxel_size": size, "grid_size": (256, 255, 100)}
        low, step = np.asarray(grid["grid_min"], points_dtype), points_dtype.type(size)
        cell = rng.integers(-2, 259, (3000, 3)).astype(points_dtype)
        points = low + cell * step
        draw = rng.random((3000, 3))
        points = np.where(draw < 0.3, np.nextafter(points, points_dtype.type(np.inf)), points)
        points = np.where(draw > 0.7, np.nextafter(points, points_dtype.type(-np.inf)), points).astype(points_dtype)
        voxel, inside = cells(points, **grid)
        expected = np.zeros(grid["grid_size"], np.int32)
        np.add.at(expected, tuple(voxel[inside].T), 1)
        out, dropped = voxelize(points, None, device, mode=["count"], **grid)
        assert_same_bits(out["count"], expected, f"size {size}")
        assert dropped == (~inside).sum()


def test_rule_25_cells_are_by_true_division(device):
    """Multiplication by the reciprocal would give these points another voxel."""
    size = np.float32(0.3)
    x = size * np.arange(4000, dtype=np.float32)
    by_division = np.floor(x / size)
    differs = by_division != np.floor(x * (1 / size))
    assert differs.sum() > 10
    points = np.stack([x[differs], np.zeros(differs.sum()), np.zeros(differs.sum())], 1).astype(np.float32)
    out, _ = voxelize(points, None, device, mode=["count"], grid_min=(0, 0, 0), voxel_size=0.3, grid_size=(4001, 1, 1))
    expected = np.bincount(by_division[differs].astype(int), minlength=4001).astype(np.int32)
    assert_same_bits(out["count"].ravel(), expected)


def test_rule_25_float64_points_keep_their_digits(rng, device):
    """UTM coordinates: 5.4e6 m with millimetres, where float32 has steps of half a metre."""
    grid = {"grid_min": (513_000.0, 5_403_000.0, 180.0), "voxel_size": 0.01, "grid_size": (50, 50, 10)}
    points = np.asarray(grid["grid_min"]) + rng.uniform(0, (0.5, 0.5, 0.1), (500, 3))
    out, dropped = check(points, None, device, mode=["count", "occupancy_bits"], **grid)
    assert dropped == 0
    assert np.count_nonzero(out["count"]) > 400


def test_rule_25_points_outside_or_not_finite_are_dropped_and_counted(device):
    edge = np.nextafter(np.float32(1), np.float32(0))
    inside = [[0, 0, 0], [edge, edge, edge], [-0.0, 0.5, 0.5]]
    outside = [
        [1, 0, 0],
        [0, -1e-45, 0],
        [0, 0, 1e30],
        [np.nan, 0, 0],
        [0, np.inf, 0],
        [0, 0, -np.inf],
        [-1, 2, np.nan],
    ]
    out, dropped = check(
        np.array(inside + outside, np.float32),
        None,
        device,
        mode=["count"],
        grid_min=(0, 0, 0),
        voxel_size=1,
        grid_size=(1, 1, 1),
    )
    assert out["count"].item() == 3
    assert dropped == 7


def test_rule_25_a_grid_beyond_memory_is_a_typed_error(device):
    points = np.zeros((2, 3), np.float32)
    grid = {"grid_min": (0, 0, 0), "voxel_size": 1, "grid_size": (2**20, 2**20, 2**10)}
    with pytest.raises(robocache.DeviceError):
        robocache.voxelize_pointcloud(to_torch(points, device), mode="count", **grid)
    with pytest.raises(robocache.DeviceError):
        robocache.voxelize_pointcloud(points, mode="count", **grid)


# ---- Points: rule 26 ----


@each_points_dtype
def test_rule_26_further_columns_are_features_by_default(rng, device, points_dtype):
    points, features = random_case(rng, count=200, points_dtype=points_dtype)
    with_columns = np.concatenate([points, random_values(rng, (200, 2), points_dtype)], 1)
    check(with_columns, None, device)
    check(with_columns, features, device)


def test_rule_26_clouds_with_lengths(rng, device):
    points = random_points(rng, 5 * 60).reshape(5, 60, 3)
    features = random_values(rng, (5, 60, 2), np.dtype(np.float32))
    check(points, features, device)
    for dtype in (np.int32, np.int64):
        check(points, features, device, lengths=np.array([60, 0, 1, 59, 33], dtype))


def test_rule_26_ragged_clouds(rng, device):
    points, features = random_case(rng, count=100)
    for offsets in ([0, 100], [0, 0, 40, 40, 41, 100, 100], [0, 1, 2, 3, 100]):
        for dtype in (np.int32, np.int64):
            check(points, features, device, batch_offsets=np.array(offsets, dtype))
    check(points[:0], features[:0], device, batch_offsets=np.array([0]))


def test_rule_26_many_clouds(rng, device):
    points = random_points(rng, 300 * 7).reshape(300, 7, 3)
    features = random_values(rng, (300, 7, 2), np.dtype(np.float16))
    check(points, features, device, grid_size=(2, 3, 5))
    check(points[:0], features[:0], device)
    check(points[:, :0], features[:, :0], device, grid_size=(2, 3, 5))


def test_rule_26_any_stride_from_row_to_row(rng, device):
    points, features = random_case(rng, count=90)
    expected, _ = oracle(points, features, mode=MODES, **GRID)
    wide = to_torch(np.concatenate([points, points[:, ::-1], points], 1), device)
    spread = to_torch(np.repeat(features, 2, axis=0), device)
    out = robocache.voxelize_pointcloud(wide[:, :3], spread[::2], mode=MODES, **GRID)
    for name in MODES:
        assert_same_bits(to_numpy(out[name]), expected[name], name)
    backwards = robocache.voxelize_pointcloud(points[::-1], features[::-1], mode=["first", "mean"], **GRID)
    assert_same_bits(backwards["first"], expected["last"])
    assert_same_bits(backwards["mean"], expected["mean"])


def test_rule_26_stride_0(rng, device):
    points, features = random_case(rng, count=1, special=False)
    points[:] = [-1.4, 0.3, 3.05]
    out = robocache.voxelize_pointcloud(
        to_torch(points, device).expand(77, 3), to_torch(features, device).expand(77, 3), mode=["count", "mean"], **GRID
    )
    assert to_numpy(out["count"])[0, 0, 0] == 77
    assert_same_bits(to_numpy(out["mean"])[0, 0, 0], features[0])
    shared = to_torch(random_points(rng, 50), device).expand(3, 50, 3)
    out = robocache.voxelize_pointcloud(shared, mode="count", **GRID)
    assert (out == out[:1]).all()


def test_rule_26_wrong_lengths_and_offsets_are_cut_on_cuda(rng, cuda):
    points = random_points(rng, 2 * 64).reshape(2, 64, 3)
    out, dropped = voxelize(points, None, cuda, mode=["count"], lengths=np.array([1 << 40, -7]), **GRID)
    expected, expected_dropped = oracle(points, mode=["count"], lengths=[64, 0], **GRID)
    assert_same_bits(out["count"], expected["count"])
    assert_same_bits(dropped, expected_dropped)
    for offsets in ([-5, 1 << 40], [3, 1, 128], [100, 50, 0, -1]):  # any result, but no access outside memory
        voxelize(points.reshape(-1, 3), None, cuda, mode=["count"], batch_offsets=np.array(offsets), **GRID)


def test_rule_26_columns_of_points_must_be_contiguous():
    with pytest.raises(robocache.ArgumentError, match=r"^points: "):
        robocache.voxelize_pointcloud(np.zeros((3, 4), np.float32).T, mode="count", **GRID)
