"""Occupancy alone, of large clouds, against NumPy. The CUDA backend marks bits in shared memory. In some grids
a block holds all bits, in others a part; a grid with too many voxels for its points is done by tiles."""

import itertools

import numpy as np
import pytest
from reference.compare import to_numpy
from reference.voxelize import cells

import robocache

torch = pytest.importorskip("torch")

ROWS = (1 << 20) + 4099
SIZE = 0.25


def occupied(points, shape, lengths=None):
    """Returns (occupied bool [B, X, Y, Z], outside int64 [B]) of points [B, N, 3] in a grid that begins at 0."""
    out, dropped = [], []
    for b, cloud in enumerate(points):
        cloud = cloud[: None if lengths is None else lengths[b]]
        voxel, inside = cells(cloud, grid_min=(0, 0, 0), voxel_size=SIZE, grid_size=shape)
        grid = np.zeros(shape, bool)
        grid[tuple(voxel[inside].T)] = True
        out.append(grid)
        dropped.append(np.count_nonzero(~inside))
    return np.stack(out), np.array(dropped)


def pack_words(occupancy):
    """Packs occupancy into words along z; bit 0 is the lowest z."""
    depth = occupancy.shape[-1]
    padded = np.pad(occupancy, [(0, 0)] * (occupancy.ndim - 1) + [(0, -depth % 32)])
    return np.packbits(padded, axis=-1, bitorder="little").view(np.uint32)


def cloud_of(rng, kind, shape, rows, dtype=np.float32):
    """Returns points [rows, 3]; some of every hundred are outside or not finite."""
    high = np.array(shape) * SIZE
    if kind == "anywhere":
        points = rng.random((rows, 3)) * high
        points[rng.random(rows) < 0.01] *= 2
        points[rng.random(rows) < 0.01, 2] = rng.choice([np.nan, np.inf, -np.inf])
    elif kind == "one voxel":
        points = np.broadcast_to(high - SIZE / 2, (rows, 3)).copy()
    else:  # along a curve, there and back
        t = np.abs(np.linspace(-1, 1, rows))[:, None]
        points = (0.5 + 0.49 * np.sin(t * [5, 7, 11])) * high
    return points.astype(dtype)


def voxels(points, shape, device, mode, **options):
    points = torch.from_numpy(points).to(device)
    options = {name: torch.as_tensor(option).to(device) for name, option in options.items()}
    result, dropped = robocache.voxelize_pointcloud(
        points, grid_min=(0, 0, 0), voxel_size=SIZE, grid_size=shape, mode=mode, return_dropped=True, **options
    )
    return {name: to_numpy(array) for name, array in result.items()}, to_numpy(dropped)


MODES = [["occupancy"], ["occupancy_bits"], ["occupancy", "occupancy_bits"]]


@pytest.mark.parametrize("mode", MODES, ids="-".join)
@pytest.mark.parametrize("kind", ["anywhere", "one voxel", "curve"])
@pytest.mark.parametrize("shape", [(5, 3, 2), (61, 37, 31), (63, 65, 96), (128, 128, 128)], ids=str)
def test_rule_27_occupancy_of_a_large_cloud(rng, device, shape, kind, mode):
    points = cloud_of(rng, kind, shape, ROWS)
    result, dropped = voxels(points, shape, device, mode)
    (expected,), (outside,) = occupied(points[None], shape)
    if "occupancy" in mode:
        assert np.array_equal(result["occupancy"], expected)
    if "occupancy_bits" in mode:
        assert np.array_equal(result["occupancy_bits"], pack_words(expected))
    assert dropped == outside


@pytest.mark.parametrize("kind", ["anywhere", "one voxel", "curve"])
@pytest.mark.parametrize("shape", [(128, 128, 128), (127, 129, 126)], ids=str)
def test_rule_27_occupancy_in_a_grid_of_two_blocks(rng, cuda, shape, kind):
    points = cloud_of(rng, kind, shape, 4_200_003)
    result, dropped = voxels(points, shape, cuda, ["occupancy"])
    (expected,), (outside,) = occupied(points[None], shape)
    assert np.array_equal(result["occupancy"], expected)
    assert dropped == outside


@pytest.mark.parametrize("layout", ["columns", "float64", "lengths", "ragged"])
def test_rule_27_occupancy_of_a_large_cloud_in_other_layouts(rng, device, layout):
    shape = (63, 31, 32)
    points = cloud_of(rng, "anywhere", shape, ROWS, np.float64 if layout == "float64" else np.float32)
    mode = ["occupancy", "occupancy_bits"]
    if layout in ("columns", "float64"):
        wide = np.concatenate([points, np.ones((ROWS, 2), points.dtype)], axis=1)
        result, dropped = voxels(wide, shape, device, mode)
        expected, outside = occupied(points[None], shape)
        expected, outside = expected[0], outside[0]
    elif layout == "lengths":
        points = points[: ROWS // 3 * 3].reshape(3, -1, 3)
        lengths = np.array([points.shape[1], 0, 200_001])
        result, dropped = voxels(points, shape, device, mode, lengths=lengths)
        expected, outside = occupied(points, shape, lengths)
    else:
        offsets = np.array([0, 300_000, 300_000, ROWS])
        result, dropped = voxels(points, shape, device, mode, batch_offsets=offsets)
        clouds = [occupied(points[None, a:b], shape) for a, b in itertools.pairwise(offsets)]
        expected, outside = (np.concatenate(parts) for parts in zip(*clouds, strict=True))
    assert np.array_equal(result["occupancy"], expected)
    assert np.array_equal(result["occupancy_bits"], pack_words(expected))
    assert np.array_equal(dropped, outside)


def test_rule_29_twenty_runs_of_occupancy_are_the_same(rng, cuda):
    shape = (128, 128, 128)
    points = cloud_of(rng, "anywhere", shape, 4_200_003)
    (expected,), _ = occupied(points[None], shape)
    for _ in range(20):
        noise = torch.rand(1 << 24, device=cuda)  # another use of the memory in between
        result, _ = voxels(points, shape, cuda, ["occupancy"])
        assert np.array_equal(result["occupancy"], expected)
        del noise
