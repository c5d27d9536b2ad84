"""Sums of large clouds in scan order, where neighbouring points share voxels. The CUDA backend handles them in another
way than points in random order; the bits are the same for all features and layouts."""

import numpy as np
import pytest
from reference.voxel_checks import bits, same

import robocache

torch = pytest.importorskip("torch")

GRID = {"grid_min": (0.0, 0.0, 0.0), "voxel_size": 0.5, "grid_size": (64, 60, 32)}
MODES = ["count", "occupancy", "occupancy_bits", "sum", "mean"]
BEAMS = 128
POINTS = (1 << 20) + 4321


def scan(rng, count=POINTS):
    """Returns points of a turning sensor in a room, column by column; some of every hundred are outside or not finite."""
    column, beam = np.divmod(np.arange(count), BEAMS)
    angle = column * (2 * np.pi / 2048)
    slope = np.linspace(-0.4, 0.4, BEAMS)[beam]
    distance = np.minimum(14 / np.maximum(np.abs(np.cos(angle)), np.abs(np.sin(angle))), 3.5 / np.maximum(-slope, 1e-9))
    distance += rng.normal(scale=0.02, size=count)
    points = np.stack((16 + distance * np.cos(angle), 16 + distance * np.sin(angle), 6 + distance * slope), axis=1)
    points[rng.random(count) < 0.01] += 100
    points[rng.random(count) < 0.01, 1] = np.nan
    return points.astype(np.float32)


def values(rng, shape, dtype):
    """Returns values of many magnitudes, with ties of a quantum of 2^-10, both zeros, and a feature that is zero throughout."""
    result = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3, shape)
    draw = rng.random(shape)
    result[draw < 0.1] = rng.integers(-9, 10, (draw < 0.1).sum()) * 2.0**-11
    result[draw < 0.02] = -0.0
    result[..., 1] = 0
    return torch.from_numpy(result).to(dtype)


def voxels(points, features, device, quantum=None, mode=MODES, grid=GRID, **options):
    options = {name: option.to(device) for name, option in options.items()}
    return robocache.voxelize_pointcloud(
        points.to(device), features.to(device), mode=mode, quantum=quantum, return_dropped=True, **options, **grid
    )


@pytest.mark.parametrize("quantum", [None, 2.0**-10], ids=["own", "given"])
def test_rule_28_means_of_a_scan(rng, device, quantum):
    points, features = torch.from_numpy(scan(rng)), values(rng, (POINTS, 8), torch.float32)
    result, dropped = voxels(points, features, device, quantum)

    cells = np.floor(points.numpy() / 0.5)
    inside = np.isfinite(cells).all(axis=1) & (cells >= 0).all(axis=1) & (cells < GRID["grid_size"]).all(axis=1)
    assert int(dropped) == POINTS - inside.sum() > POINTS // 100
    voxel_index = np.ravel_multi_index(cells[inside].astype(np.int64).T, GRID["grid_size"])
    voxel_count = np.prod(GRID["grid_size"])
    count = np.bincount(voxel_index, minlength=voxel_count)
    assert np.array_equal(result["count"].cpu().numpy().ravel(), count)
    occupied = count > 0
    assert count.max() > 100
    for f in range(8):
        feature = features[:, f].numpy()[inside].astype(np.float64)
        largest = np.zeros(voxel_count)
        np.maximum.at(largest, voxel_index, np.abs(feature))
        # Each value, so also the mean, has an error of half a quantum; rounding to float32 and float64's sum add theirs.
        error = 2.0**-11 if quantum else largest * 2.0**-31
        mean = np.bincount(voxel_index, feature, voxel_count)[occupied] / count[occupied]
        bound = np.broadcast_to(error, voxel_count)[occupied] + np.abs(mean) * 2.0**-24
        bound += largest[occupied] * count[occupied] * 2.0**-52
        assert (np.abs(result["mean"].cpu().numpy().reshape(voxel_count, 8)[occupied, f] - mean) <= bound).all()


@pytest.mark.parametrize("quantum", [None, 2.0**-10], ids=["own", "given"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("count", [4, 8, 12, 20])
def test_rule_29_a_scan_has_the_bits_of_the_cpu(rng, cuda, count, dtype, quantum):
    points, features = torch.from_numpy(scan(rng)), values(rng, (POINTS, count), getattr(torch, dtype))
    assert same(voxels(points, features, cuda, quantum), voxels(points, features, "cpu", quantum))


@pytest.mark.parametrize("quantum", [None, 2.0**-10], ids=["own", "given"])
def test_rule_29_a_scan_of_128_features(rng, cuda, quantum):
    points, base = torch.from_numpy(scan(rng)), values(rng, (POINTS, 8), torch.float32)
    features = torch.cat([base * 2.0**k for k in range(-8, 8)], dim=1)
    assert same(voxels(points, features, cuda, quantum), voxels(points, features, "cpu", quantum))


@pytest.mark.parametrize("quantum", [None, 2.0**-10], ids=["own", "given"])
@pytest.mark.parametrize("mode", [["mean"], ["sum"], ["count", "occupancy", "sum", "mean"]], ids="-".join)
def test_rule_29_a_scan_in_a_grid_of_odd_sides(rng, cuda, mode, quantum):
    points, features = torch.from_numpy(scan(rng)), values(rng, (POINTS, 8), torch.float32)
    grid = {**GRID, "grid_size": (63, 61, 31), "fill": -3.0 if "mean" in mode else 0}
    on_cuda, on_cpu = (voxels(points, features, device, quantum, mode, grid) for device in (cuda, "cpu"))
    assert same(on_cuda, on_cpu)


@pytest.mark.parametrize("power", [126, 127, -126, -127])
def test_rule_28_the_largest_and_smallest_quanta_of_a_scan(rng, cuda, power):
    points = torch.from_numpy(scan(rng))
    features = torch.from_numpy(rng.integers(-1, 2, (POINTS, 4)) * 2.0**power).float()
    on_cuda, on_cpu = (voxels(points, features, device, 2.0**power) for device in (cuda, "cpu"))
    assert same(on_cuda, on_cpu)
    assert (on_cpu[0]["sum"] != 0).any()


@pytest.mark.parametrize("capacity", [None, 40_000])
def test_rule_29_sparse_voxels_of_a_scan(rng, cuda, capacity):
    points, features = torch.from_numpy(scan(rng)), values(rng, (POINTS, 8), torch.float32)
    results = [
        robocache.voxelize_sparse(
            points.to(device), features.to(device), voxel_size=0.5, point_range=(0, 0, 0, 32, 30, 16), capacity=capacity
        )
        for device in (cuda, "cpu")
    ]
    assert 1000 < len(np.unique(results[1].point_to_voxel)) < 40_000
    for name in ("coords", "features", "counts", "point_to_voxel", "dropped"):
        assert torch.equal(bits(getattr(results[0], name)), bits(getattr(results[1], name))), name


@pytest.mark.parametrize("quantum", [None, 2.0**-10], ids=["own", "given"])
def test_rule_29_twenty_runs_and_a_shuffled_scan_give_the_same_bits(rng, cuda, quantum):
    points, features = torch.from_numpy(scan(rng)), values(rng, (POINTS, 8), torch.float32)
    first = voxels(points, features, cuda, quantum)
    for _ in range(20):
        noise = torch.rand(1 << 24, device=cuda)  # another use of the memory in between
        assert same(voxels(points, features, cuda, quantum), first)
        del noise
    order = torch.from_numpy(rng.permutation(POINTS))
    assert same(voxels(points[order], features[order], cuda, quantum), first)


@pytest.mark.parametrize("quantum", [None, 2.0**-10], ids=["own", "given"])
@pytest.mark.parametrize("rare", [np.nan, np.inf, 1.7e38, 2.1e9, 1.1e-19, 5.4e-20, 1e-38], ids=str)
def test_rule_28_a_rare_feature_in_a_scan(rng, cuda, rare, quantum):
    points, features = torch.from_numpy(scan(rng)), values(rng, (POINTS, 8), torch.float32)
    features[:, 1] = 0
    features[rng.integers(0, POINTS, 5), torch.tensor([0, 1, 1, 5, 7])] = rare
    assert same(voxels(points, features, cuda, quantum), voxels(points, features, "cpu", quantum))


@pytest.mark.parametrize("quantum", [None, 2.0**-10], ids=["own", "given"])
@pytest.mark.parametrize("layout", ["columns", "lengths", "ragged", "float64"])
def test_rule_29_a_scan_in_other_layouts(rng, cuda, layout, quantum):
    count = POINTS * 3 // 2  # a ragged cloud has three grids
    points, features = torch.from_numpy(scan(rng, count)), values(rng, (count, 8), torch.float32)
    options = {}
    if layout == "columns":
        table = torch.cat((points, torch.zeros(count, 1), features), dim=1)
        expected = voxels(table[:, :3], table[:, 4:], "cpu", quantum)
        table = table.to(cuda)
        assert same(voxels(table[:, :3], table[:, 4:], cuda, quantum), expected)
        return
    if layout == "lengths":
        length = count // 2 + 300_000
        points, features = (
            torch.stack((points[:length], points[-length:])),
            torch.stack((features[:length], features[-length:])),
        )
        options = {"lengths": torch.tensor([length - 70_001, length])}
    elif layout == "ragged":
        options = {"batch_offsets": torch.tensor([0, 400_000, 400_000, count])}
    else:
        points = points.double()
    expected = voxels(points, features, "cpu", quantum, **options)
    assert same(voxels(points, features, cuda, quantum, **options), expected)


def test_rule_28_a_scan_of_one_voxel(rng, cuda):
    points, features = torch.full((POINTS, 3), 0.25), values(rng, (POINTS, 4), torch.float32)
    assert same(voxels(points, features, cuda), voxels(points, features, "cpu"))
