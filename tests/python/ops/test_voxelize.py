"""voxelize_pointcloud against the exact oracle, bit for bit, on the CPU and on CUDA; rules 16 to 18; real scans."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.compare import OnlyDLPack, assert_same_bits, to_numpy, to_torch
from reference.random_clouds import GRID, random_points
from reference.random_streams import FLOATS, random_values
from reference.scans import SCANS, read_scan, scan_path, xyz
from reference.voxel_checks import DTYPES, check, each_dtype, each_points_dtype, random_case, voxelize
from reference.voxelize import MODES, cells, nearest
from reference.voxelize import voxelize as oracle

import robocache

torch = pytest.importorskip("torch")


# ---- Against the oracle ----


@each_dtype
@each_points_dtype
def test_every_mode_gives_the_oracles_bits(rng, device, dtype, points_dtype):
    check(*random_case(rng, dtype, points_dtype=points_dtype), device)


@pytest.mark.parametrize("features", [0, 1, 2, 4, 5, 7, 8, 15, 16, 17, 33])
def test_every_feature_count_gives_the_oracles_bits(rng, device, features):
    check(*random_case(rng, count=120, features=features), device)


@pytest.mark.parametrize("count", [0, 1, 2, 31, 32, 33, 255, 256, 257, 1025])
def test_every_point_count_gives_the_oracles_bits(rng, device, count):
    check(*random_case(rng, count=count, features=1), device)


GRIDS = [
    (1, 1, 1),
    (1, 1, 33),
    (5, 1, 32),
    (2, 3, 31),
    (1, 7, 64),
    (40, 1, 1),
    (17, 19, 23),
    (64, 64, 64),
    (2, 2, 5000),
]


@pytest.mark.parametrize("grid_size", GRIDS, ids=str)
def test_every_grid_gives_the_oracles_bits(rng, device, grid_size):
    grid = {"grid_size": grid_size, "grid_min": (0, 0, 0), "voxel_size": 0.25}
    points = random_points(rng, 500, np.float32, **grid)
    check(points, random_values(rng, (500, 2), np.dtype(np.float32)), device, **grid)


@given(data=st.data())
def test_any_small_cloud_gives_the_oracles_bits(device, data):
    dtype = data.draw(st.sampled_from(DTYPES))
    count, columns = data.draw(st.integers(0, 12)), data.draw(st.integers(0, 3))
    coordinate = st.one_of(st.integers(-2, 4).map(float), st.floats(width=32))
    points = np.array(data.draw(st.lists(coordinate, min_size=3 * count, max_size=3 * count)), np.float32).reshape(
        -1, 3
    )
    if dtype in FLOATS:
        element = st.floats(width=64)
    elif dtype.kind == "b":
        element = st.booleans()
    else:
        element = st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    values = data.draw(st.lists(element, min_size=count * columns, max_size=count * columns))
    with np.errstate(over="ignore"):
        features = np.array(values, np.float64 if dtype in FLOATS else dtype).astype(dtype).reshape(count, columns)
    grid = {"grid_min": (0, 0, 0), "voxel_size": 1.0, "grid_size": (2, 1, 3)}
    quantum = data.draw(st.sampled_from([None, 1.0, 2.0**-10])) if dtype in FLOATS else None
    check(points, features, device, quantum=quantum, **grid)


def test_this_is_the_documented_example():
    points = np.array([[0.1, 0.2, 0.3, 10.0], [0.4, 0.1, 0.2, 30.0], [-1.0, 0.0, 0.0, 50.0]])
    out, dropped = robocache.voxelize_pointcloud(
        points, grid_min=(0, 0, 0), voxel_size=0.5, grid_size=(2, 1, 1), mode=["count", "mean"], return_dropped=True
    )
    assert_same_bits(out["count"].ravel(), np.array([2, 0], np.int32))
    assert_same_bits(out["mean"].ravel(), np.array([20.0, 0.0]))
    assert_same_bits(dropped, np.array(1))


# ---- Arguments: rule 18 ----


def test_rule_18_numpy_gives_numpy(rng):
    for dtype in DTYPES:
        points, features = random_case(rng, dtype, count=60)
        points.flags.writeable = features.flags.writeable = False
        out, dropped = robocache.voxelize_pointcloud(points, features, mode=MODES, return_dropped=True, **GRID)
        expected, expected_dropped = oracle(points, features, mode=MODES, **GRID)
        for name in MODES:
            assert type(out[name]) is np.ndarray
            assert_same_bits(out[name], expected[name], name)
            out[name][...] = 0  # the output owns its memory, which is writable
        assert_same_bits(dropped, np.asarray(expected_dropped))


def test_rule_18_only_dlpack(rng, device):
    points, features = random_case(rng, count=60)
    out = robocache.voxelize_pointcloud(
        OnlyDLPack(to_torch(points, device)), OnlyDLPack(to_torch(features, device)), mode=["mean", "count"], **GRID
    )
    expected, _ = oracle(points, features, mode=["mean", "count"], **GRID)
    for name, array in out.items():
        assert not isinstance(array, np.ndarray | torch.Tensor)
        assert_same_bits(to_numpy(torch.from_dlpack(array)), expected[name], name)


def test_rule_18_numbers_of_any_kind(rng):
    points = random_points(rng, 60)
    expected = robocache.voxelize_pointcloud(points, mode="count", **GRID)
    grids = {
        "numpy": {name: np.asarray(value) for name, value in GRID.items()},
        "torch": {
            name: torch.tensor(value, dtype=torch.float64 if name != "grid_size" else None)
            for name, value in GRID.items()
        },
        "list": {name: list(value) for name, value in GRID.items()},
    }
    for name, grid in grids.items():
        assert_same_bits(robocache.voxelize_pointcloud(points, mode="count", **grid), expected, name)
    grid = GRID | {"voxel_size": np.float32(0.5)}
    assert_same_bits(
        robocache.voxelize_pointcloud(points, mode="count", **grid),
        robocache.voxelize_pointcloud(points, mode="count", **(GRID | {"voxel_size": 0.5})),
    )


# ---- Real scans ----


@pytest.fixture(params=SCANS)
def scan(request):
    if scan_path(request.param) is None:
        pytest.skip("ROBOCACHE_TEST_DATA names no folder with this scan")
    return read_scan(request.param)


def test_a_real_scan_gives_numpys_counts_and_exact_means(device, scan):
    points = xyz(scan)
    low, high = np.nanmin(points, 0), np.nanmax(points, 0)
    size = float((high - low).max() / 60)
    grid = {
        "grid_min": tuple(map(float, low)),
        "voxel_size": size,
        "grid_size": tuple(map(int, (high - low) / size * 0.9 + 1)),
    }
    voxel, inside = cells(points, **grid)
    count = np.zeros(grid["grid_size"], np.int32)
    np.add.at(count, tuple(voxel[inside].T), 1)
    mode = ["count", "occupancy", "mean", "min", "last"]
    out, dropped = voxelize(points, points, device, mode=mode, **grid)
    assert_same_bits(out["count"], count)
    assert_same_bits(out["occupancy"], count > 0)
    assert dropped == (~inside).sum()
    assert 0 < dropped < len(points)
    lowest = np.full((*grid["grid_size"], 3), np.inf, np.float32)
    np.minimum.at(lowest, tuple(voxel[inside].T), points[inside])
    np.testing.assert_array_equal(out["min"], np.where(count[..., None] > 0, lowest, 0))  # numpy's -0 is 0
    for cell in np.argwhere(count)[:: max(1, np.count_nonzero(count) // 40)]:
        rows = np.flatnonzero(inside & (voxel == cell).all(1))
        assert_same_bits(out["last"][tuple(cell)], points[rows[-1]])
        for axis in range(3):
            mean = sum(Fraction(float(x)) for x in points[rows, axis]) / len(rows)
            assert_same_bits(out["mean"][(*cell, axis)], nearest(mean, np.float32))
