"""integrate_tsdf on a real depth camera's view: an organised cloud, so also a depth image."""

import numpy as np
import pytest
from reference.compare import assert_same_bits, to_numpy, to_torch
from reference.scans import read_scan, scan_path, xyz
from reference.tsdf import integrate_depth, integrate_points

import robocache

torch = pytest.importorskip("torch")

CAMERA = (525.0, 525.0, 319.5, 239.5)
# Covers a box on the table.
GRID = {"grid_min": (-0.09, -0.03, 0.6), "voxel_size": 0.01, "truncation": 0.03}
SHAPE = (16, 14, 15)


@pytest.fixture(scope="module")
def scan():
    if scan_path("kinect") is None:
        pytest.skip("ROBOCACHE_TEST_DATA names no folder with the scan")
    return xyz(read_scan("kinect")).reshape(480, 640, 3)


def zeros():
    return [np.zeros(SHAPE, np.float32) for _ in range(2)]


@pytest.mark.parametrize("space_carving", [False, True])
def test_rule_32_a_real_view_gives_the_oracles_bits(scan, device, space_carving):
    options = GRID | {"space_carving": space_carving}
    subset = scan[::3, ::3].reshape(-1, 3)
    for measured, camera, oracle in ((subset, [], integrate_points), (scan[..., 2], [CAMERA], integrate_depth)):
        expected = oracle(*zeros(), measured, np.eye(4), *camera, **options)
        assert (expected[1] > 0).sum() > 100
        result = robocache.integrate_tsdf(
            *(to_torch(x, device) for x in zeros()), to_torch(measured, device), np.eye(4), *camera, **options
        )
        for actual, expected_array in zip(result, expected, strict=True):
            assert_same_bits(to_numpy(actual), expected_array)


def test_points_and_depth_see_the_same_surface(scan, device):
    """Points and depth are compared in voxels that both measured. A ray passes a voxel's centre within half a diagonal; a depth is that of the pixel's centre."""
    options = GRID | {"voxel_size": 0.005, "truncation": 0.02}
    shape = (32, 28, 30)
    grids = []
    for measured, camera in ((scan.reshape(-1, 3), []), (scan[..., 2], [CAMERA])):
        arrays = [torch.zeros(shape, device=device) for _ in range(2)]
        grids.append(
            [
                to_numpy(x)
                for x in robocache.integrate_tsdf(*arrays, to_torch(measured, device), np.eye(4), *camera, **options)
            ]
        )
    (by_points, point_weights), (by_depth, depth_weights) = grids
    in_both = (point_weights > 0) & (depth_weights > 0)
    assert in_both.sum() > 2000
    # Only at steep sides and edges of the box does one voxel mix near and far points.
    assert np.median(np.abs(by_points - by_depth)[in_both]) < 0.005 * np.sqrt(3) / 2
