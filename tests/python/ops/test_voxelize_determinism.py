"""Voxels have the same bits on every run, for every order of the points, on any number of threads, on CPU and CUDA."""

import copy

import numpy as np
import pytest
from reference.voxel_checks import same

import robocache

torch = pytest.importorskip("torch")

FLOATS = ["float64", "float32", "float16", "bfloat16"]
DTYPES = [*FLOATS, "int64", "int32", "int16", "int8", "uint8", "bool"]
FEATURELESS = ["occupancy", "occupancy_bits", "count"]  # modes that take no features
ORDERLESS = [*FEATURELESS, "sum", "mean", "min", "max"]
MODES = [*ORDERLESS, "first", "last"]
# A quantum of None: each voxel has its own.
DTYPES_AND_QUANTA = [*((dtype, None) for dtype in DTYPES), *((dtype, 2.0**-10) for dtype in FLOATS)]
RUNS = 20


class Cloud:
    """A cloud with many points in few voxels, the rest over all voxels, some outside, some not finite. Its features make
    sums hard: far outliers, cancellation, ties, both zeros, and in some voxels NaN and infinities."""

    def __init__(self, rng, count, dtype, size=(23, 19, 37), features=3):
        extent = np.array(size) * 0.3
        uniform = rng.uniform(-0.05, 1.05, (count, 3)) * extent
        cluster = rng.choice(8, count, p=[0.4, 0.2, 0.1, 0.05, 0.05, 0.05, 0.05, 0.1])
        centres = rng.uniform(0.1, 0.9, (8, 3)) * extent
        clustered = centres[cluster] + rng.normal(scale=0.1, size=(count, 3))
        points = np.where((rng.random(count) < 0.5)[:, None], clustered, uniform).astype(np.float32)
        points[rng.integers(0, count, count // 50), 0] = np.nan
        points[rng.integers(0, count, count // 50), 2] = np.inf
        self.points = torch.from_numpy(points)
        self.features = self._features(rng, (count, features), getattr(torch, dtype))
        self.grid = {"grid_min": (0.0, 0.0, 0.0), "voxel_size": 0.3, "grid_size": size}

    @staticmethod
    def _features(rng, shape, dtype):
        if not dtype.is_floating_point:
            if dtype == torch.bool:
                return torch.from_numpy(rng.random(shape) < 0.5)
            info = torch.iinfo(dtype)
            return torch.from_numpy(rng.integers(info.min, info.max, shape, np.int64, endpoint=True)).to(dtype)
        values = rng.normal(size=shape) * 10.0 ** rng.integers(-4, 5, shape)
        draw = rng.random(shape)
        values[draw < 0.2] = rng.integers(-2, 3, (draw < 0.2).sum())  # ties
        values[draw < 0.05] = -0.0
        for limit, value in ((0.9999, np.nan), (0.9998, np.inf), (0.9997, -np.inf), (0.9990, 2.1e9), (0.9985, 1e-30)):
            values[(draw > limit - 1e-4) & (draw < limit)] = value
        return torch.from_numpy(values).to(dtype)

    def to(self, device):
        self.points, self.features = self.points.to(device), self.features.to(device)
        return self

    def reordered(self, order):
        other = copy.copy(self)
        other.points, other.features = self.points[order], self.features[order]
        return other

    def voxels(self, mode=None, **options):
        return robocache.voxelize_pointcloud(
            self.points, self.features, mode=mode or MODES, return_dropped=True, **self.grid, **options
        )


def point_count(device):
    """Returns a number of points large enough for every path of a backend: more than one block of 65536 rows on the CPU, more than
    2^20 rows on CUDA."""
    return 70_001 if device == "cpu" else 1_100_003


@pytest.mark.parametrize(("dtype", "quantum"), DTYPES_AND_QUANTA)
def test_rule_29_twenty_runs_give_the_same_bits(rng, device, dtype, quantum):
    cloud = Cloud(rng, point_count(device), dtype).to(device)
    first = cloud.voxels(quantum=quantum)
    assert int(first[0]["count"].max()) > point_count(device) // 50  # the clusters
    assert 0 < int(first[1]) < point_count(device)
    for _ in range(RUNS):
        noise = torch.rand(1 << 20, device=device)  # another use of the memory in between
        assert same(cloud.voxels(quantum=quantum), first)
        del noise


@pytest.mark.parametrize(("dtype", "quantum"), DTYPES_AND_QUANTA)
def test_rule_28_the_order_of_the_points_does_not_matter(rng, device, dtype, quantum):
    cloud = Cloud(rng, point_count(device), dtype).to(device)
    count = len(cloud.points)
    first = cloud.voxels(ORDERLESS, quantum=quantum)
    by_x = torch.argsort(cloud.points[:, 0])
    backwards = torch.arange(count - 1, -1, -1, device=device)
    shuffles = [torch.from_numpy(rng.permutation(count)).to(device) for _ in range(5)]
    for order in (by_x, backwards, *shuffles):
        assert same(cloud.reordered(order).voxels(ORDERLESS, quantum=quantum), first)
    forward, backward = cloud.voxels(["first", "last"])[0], cloud.reordered(backwards).voxels(["last", "first"])[0]
    assert same(forward["first"], backward["last"])
    assert same(forward["last"], backward["first"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rule_20_no_bit_depends_on_the_number_of_threads(rng, threads, dtype):
    cloud = Cloud(rng, 140_009, dtype)
    counts = rng.permutation(np.resize([1, 2, 3, 4, 5, 7, 8, 16], RUNS))
    threads(1)
    first = cloud.voxels()
    for count in counts:
        threads(int(count))
        assert same(cloud.voxels(), first), f"{count} threads"


@pytest.mark.parametrize("dtype", DTYPES)
def test_rule_29_a_mode_has_the_same_bits_alone_and_among_others(rng, device, dtype):
    cloud = Cloud(rng, point_count(device), dtype).to(device)
    all_modes, dropped = cloud.voxels()
    for mode in MODES:
        assert same(cloud.voxels(mode), (all_modes[mode], dropped)), mode
    two_modes, _ = cloud.voxels(["max", "mean"])
    assert same(two_modes, {mode: all_modes[mode] for mode in ("max", "mean")})


GRIDS = {
    "few": (3, 2, 5),
    "some": (23, 19, 37),
    "128^3": (128, 128, 128),
    "flat": (700, 900, 1),
    "256^3": (256, 256, 256),
}


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rule_29_cuda_gives_the_bits_of_the_cpu(rng, cuda, dtype, grid):
    for count in (1, 257, 30_011, 700_001):
        cloud = Cloud(rng, count, dtype, GRIDS[grid], features=2)
        modes = MODES if grid != "256^3" else ["count", "mean", "min"]
        requested = [{}, {"fill": 1}, *([{"quantum": 2.0**-10}] if dtype in FLOATS else [])]
        expected = [cloud.voxels(modes, **options) for options in requested]
        cloud.to(cuda)
        for options, expected_result in zip(requested, expected, strict=True):
            assert same(cloud.voxels(modes, **options), expected_result), (count, options)
            if options == {} and count > 30_000:
                for mode in modes:
                    assert same(cloud.voxels(mode)[0], expected_result[0][mode]), (count, mode)


@pytest.mark.parametrize("features", [1, 2, 3, 4, 7, 8, 16, 33])
def test_rule_29_cuda_gives_the_bits_of_the_cpu_for_every_width(rng, cuda, features):
    cloud = Cloud(rng, 100_003, "float32", features=features)
    expected = cloud.voxels()
    assert same(cloud.to(cuda).voxels(), expected)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int32"])
def test_rule_29_cuda_gives_the_bits_of_the_cpu_for_batches(rng, cuda, dtype, ragged):
    cloud = Cloud(rng, 5 * 4001, dtype)
    if ragged:
        options = {"batch_offsets": torch.tensor([0, 17, 17, 9000, 20_005])}
    else:
        cloud.points, cloud.features = cloud.points.view(5, 4001, 3), cloud.features.view(5, 4001, 3)
        options = {"lengths": torch.tensor([4001, 0, 1, 1000, 3999])}
    expected = cloud.voxels(**options)
    cloud.to(cuda)
    assert same(cloud.voxels(**{name: array.to(cuda) for name, array in options.items()}), expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_rule_28_an_outlier_costs_the_other_voxels_no_bit(rng, device, dtype):
    cloud = Cloud(rng, point_count(device), dtype).to(device)
    before, _ = cloud.voxels(["sum", "mean"])
    voxel = torch.floor(cloud.points / 0.3)
    inside = (voxel >= 0).all(1) & (voxel < torch.tensor(cloud.grid["grid_size"], device=device)).all(1)
    row = int(inside.nonzero()[len(inside) // 4])
    info = torch.iinfo(torch.int32) if dtype == "int32" else torch.finfo(getattr(torch, dtype))
    cloud.features[row] = info.max
    after, _ = cloud.voxels(["sum", "mean"])
    x, y, z = voxel[row].long().tolist()
    for mode in ("sum", "mean"):
        after[mode][x, y, z] = before[mode][x, y, z]
    assert same(after, before)


# ---- Sparse voxels: `first`, `last` and kept points depend on the order of the points; sums do not ----

SPARSE = {
    "mean": {"reduce": "mean"},
    "sum, linear": {"reduce": "sum", "order": "linear"},
    "min, morton, capped": {"reduce": "min", "order": "morton", "max_voxels": 700, "max_points_per_voxel": 3},
    "last, a range": {"reduce": "last", "point_range": (1.0, 1.0, 1.0, 5.0, 4.0, 9.0)},
    "gathered": {"reduce": None, "max_points_per_voxel": 5},
    "gathered, zyx": {"reduce": None, "max_points_per_voxel": 2, "max_voxels": 900, "coord_order": "zyx"},
    "capacity": {"reduce": "max", "capacity": 3000},
    "too small a capacity": {"reduce": "mean", "capacity": 300, "order": "morton"},
}
DOWNSAMPLE = {"centroid": {}, "first": {}, "random": {"seed": 7}}


def sparse(cloud, **options):
    return tuple(robocache.voxelize_sparse(cloud.points, cloud.features, voxel_size=0.3, **options))


def downsample(cloud, method):
    options = {"voxel_size": 0.3, "method": method, **DOWNSAMPLE[method]}
    return robocache.voxel_downsample(cloud.points, cloud.features, **options)


@pytest.mark.parametrize("options", SPARSE)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_rule_29_twenty_runs_of_sparse_voxels_give_the_same_bits(rng, device, threads, dtype, options):
    cloud = Cloud(rng, point_count(device), dtype).to(device)
    first = sparse(cloud, **SPARSE[options])
    counts = rng.permutation(np.resize([1, 2, 3, 4, 5, 7, 8, 16], RUNS))
    for count in counts:
        threads(int(count))
        assert same(sparse(cloud, **SPARSE[options]), first), f"{count} threads"


@pytest.mark.parametrize("method", DOWNSAMPLE)
def test_rule_31_twenty_runs_of_downsampling_give_the_same_bits(rng, device, threads, method):
    cloud = Cloud(rng, point_count(device), "float32").to(device)
    first = downsample(cloud, method)
    for count in rng.permutation(np.resize([1, 2, 3, 4, 5, 7, 8, 16], RUNS)):
        threads(int(count))
        assert same(downsample(cloud, method), first), f"{count} threads"


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int64"])
def test_rule_28_sparse_sums_do_not_depend_on_the_order_of_the_points(rng, device, dtype, reduce):
    cloud = Cloud(rng, point_count(device), dtype).to(device)
    options = {"order": "linear", "reduce": reduce}
    coords, features, counts, point_to_voxel, dropped, _ = sparse(cloud, **options)
    for _ in range(5):
        order = torch.from_numpy(rng.permutation(len(cloud.points))).to(device)
        result = sparse(cloud.reordered(order), **options)
        assert same(result[:3] + result[4:5], (coords, features, counts, dropped))
        assert same(result[3], point_to_voxel[order])


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int32", "bool"])
def test_rule_29_cuda_gives_the_bits_of_the_cpu_for_sparse_voxels(rng, cuda, dtype):
    for count in (1, 257, 30_011, 700_001):
        cloud = Cloud(rng, count, dtype)
        expected = {name: sparse(cloud, **options) for name, options in SPARSE.items()}
        expected |= {method: downsample(cloud, method) for method in DOWNSAMPLE}
        cloud.to(cuda)
        for name, options in SPARSE.items():
            assert same(sparse(cloud, **options), expected[name]), (count, name)
        for method in DOWNSAMPLE:
            assert same(downsample(cloud, method), expected[method]), (count, method)
