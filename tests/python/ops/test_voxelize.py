"""voxelize_pointcloud, rule by rule, bit for bit against the exact oracle, on the CPU and on CUDA."""

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.compare import OnlyDLPack, assert_same_bits, poisoned, to_numpy, to_torch
from reference.random_clouds import GRID, random_points
from reference.random_streams import FLOATS, WHOLE, random_values
from reference.scans import SCANS, read_scan, scan_path, xyz
from reference.voxelize import MODES, cells, nearest
from reference.voxelize import voxelize as oracle

import robocache

torch = pytest.importorskip("torch")

DTYPES = FLOATS + [dtype for dtype in WHOLE if dtype != np.uint64]
POINTS = [np.dtype(np.float32), np.dtype(np.float64)]


def name_of(parameter):
    return parameter.name if isinstance(parameter, np.dtype) else None


each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
each_float = pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
each_points = pytest.mark.parametrize("points_dtype", POINTS, ids=name_of)


def voxelize(points, features=None, device="cpu", *, mode, **options):
    """(dict by mode, dropped) as NumPy arrays, of NumPy arrays that go through torch on `device`."""
    for name in ("lengths", "batch_offsets"):
        if options.get(name) is not None:
            options[name] = to_torch(np.asarray(options[name]), device)
    points = to_torch(points, device)
    features = None if features is None else to_torch(features, device)
    out, dropped = robocache.voxelize_pointcloud(points, features, mode=mode, return_dropped=True, **options)
    assert list(out) == list(mode)
    assert all(array.device.type == device for array in (*out.values(), dropped))
    poison = {name: poisoned(array.shape, array.dtype, device) for name, array in out.items()}
    again = robocache.voxelize_pointcloud(points, features, mode=mode, out=poison, **options)
    assert again is poison
    for name in mode:
        assert_same_bits(to_numpy(poison[name]), to_numpy(out[name]), f"out= of {name}")
    return {name: to_numpy(array) for name, array in out.items()}, to_numpy(dropped)


def check(points, features=None, device="cpu", *, mode=MODES, **options):
    """Compares every mode with the oracle, by bits. Returns what came."""
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
    """(points, features, grid) of points that all lie in the one voxel of a grid."""
    features = np.asarray(features)
    return (
        np.full((len(features), 3), 0.5, np.float32),
        features,
        {"grid_min": (0, 0, 0), "voxel_size": 1.0, "grid_size": (1, 1, 1)},
    )


# ---- The whole of it against the oracle ----


@each_dtype
@each_points
def test_every_mode_gives_the_oracles_bits(rng, device, dtype, points_dtype):
    check(*random_case(rng, dtype, points_dtype=points_dtype), device)


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_alone_gives_the_same_bits(rng, device, mode):
    points, features = random_case(rng)
    alone = robocache.voxelize_pointcloud(to_torch(points, device), to_torch(features, device), mode=mode, **GRID)
    assert_same_bits(to_numpy(alone), oracle(points, features, mode=[mode], **GRID)[0][mode])


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


# ---- Which voxel: rule 25 ----


@each_points
def test_rule_25_boundaries_lie_where_numpy_puts_them(rng, device, points_dtype):
    for size in (0.1, 0.3, 1 / 3, 0.05, 1e-3, 7.0):
        grid = {"grid_min": (-12.8, 0.0, 100.0), "voxel_size": size, "grid_size": (256, 255, 100)}
        low, step = np.asarray(grid["grid_min"], points_dtype), points_dtype.type(size)
        at = rng.integers(-2, 259, (3000, 3)).astype(points_dtype)
        points = low + at * step
        up = rng.random((3000, 3))
        points = np.where(up < 0.3, np.nextafter(points, points_dtype.type(np.inf)), points)
        points = np.where(up > 0.7, np.nextafter(points, points_dtype.type(-np.inf)), points).astype(points_dtype)
        where, inside = cells(points, **grid)
        expected = np.zeros(grid["grid_size"], np.int32)
        np.add.at(expected, tuple(where[inside].T), 1)
        out, dropped = voxelize(points, None, device, mode=["count"], **grid)
        assert_same_bits(out["count"], expected, f"size {size}")
        assert dropped == (~inside).sum()


def test_rule_25_a_reciprocal_would_put_points_elsewhere(device):
    """The points whose voxel by multiplication is another one: true division is what counts."""
    size = np.float32(0.3)
    x = size * np.arange(4000, dtype=np.float32)
    by_division = np.floor(x / size)
    differ = by_division != np.floor(x * (1 / size))
    assert differ.sum() > 10
    points = np.stack([x[differ], np.zeros(differ.sum()), np.zeros(differ.sum())], 1).astype(np.float32)
    out, _ = voxelize(points, None, device, mode=["count"], grid_min=(0, 0, 0), voxel_size=0.3, grid_size=(4001, 1, 1))
    expected = np.bincount(by_division[differ].astype(int), minlength=4001).astype(np.int32)
    assert_same_bits(out["count"].ravel(), expected)


def test_rule_25_float64_points_keep_their_digits(rng, device):
    """UTM coordinates: 5.4e6 m with millimetres, which float32 steps over by half a metre."""
    grid = {"grid_min": (513_000.0, 5_403_000.0, 180.0), "voxel_size": 0.01, "grid_size": (50, 50, 10)}
    points = np.asarray(grid["grid_min"]) + rng.uniform(0, (0.5, 0.5, 0.1), (500, 3))
    out, dropped = check(points, None, device, mode=["count", "occupancy_bits"], **grid)
    assert dropped == 0
    assert np.count_nonzero(out["count"]) > 400


def test_rule_25_points_outside_or_not_finite_are_dropped_and_counted(device):
    edge = np.nextafter(np.float32(1), np.float32(0))
    good = [[0, 0, 0], [edge, edge, edge], [-0.0, 0.5, 0.5]]
    bad = [[1, 0, 0], [0, -1e-45, 0], [0, 0, 1e30], [np.nan, 0, 0], [0, np.inf, 0], [0, 0, -np.inf], [-1, 2, np.nan]]
    out, dropped = check(
        np.array(good + bad, np.float32),
        None,
        device,
        mode=["count"],
        grid_min=(0, 0, 0),
        voxel_size=1,
        grid_size=(1, 1, 1),
    )
    assert out["count"].item() == 3
    assert dropped == 7


def test_rule_25_grids_of_no_voxels_are_legal(rng, device):
    points, features = random_case(rng, count=30)
    for grid_size in ((0, 4, 5), (3, 0, 5), (3, 4, 0), (0, 0, 0)):
        _, dropped = check(points, features, device, grid_size=grid_size)
        assert dropped == 30


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"grid_size": (3, -1, 5)}, "grid_size.*-1"),
        ({"grid_size": (2**40, 2**40, 5)}, "grid_size"),
        ({"grid_size": (3, 5)}, "grid_size.*2"),
        ({"voxel_size": 0}, "voxel_size"),
        ({"voxel_size": -0.1}, "voxel_size.*-0.1"),
        ({"voxel_size": float("nan")}, "voxel_size.*nan"),
        ({"voxel_size": (0.1, float("inf"), 0.1)}, "voxel_size.*inf"),
        ({"voxel_size": 1e-50}, "voxel_size.*float32"),
        ({"voxel_size": (0.1, 0.2)}, "voxel_size.*2"),
        ({"grid_min": (0, float("nan"), 0)}, "grid_min.*nan"),
        ({"grid_min": (0, 1e300, 0)}, "grid_min.*float32"),
    ],
    ids=str,
)
def test_rule_25_other_grids_are_refused(device, options, part):
    with pytest.raises(robocache.ArgumentError, match=part):
        voxelize(np.zeros((2, 3), np.float32), None, device, mode=["count"], **(GRID | options))


def test_rule_25_a_grid_beyond_memory_is_a_typed_error(device):
    points = np.zeros((2, 3), np.float32)
    grid = {"grid_min": (0, 0, 0), "voxel_size": 1, "grid_size": (2**20, 2**20, 2**10)}
    with pytest.raises(robocache.DeviceError):
        robocache.voxelize_pointcloud(to_torch(points, device), mode="count", **grid)
    with pytest.raises(robocache.DeviceError):
        robocache.voxelize_pointcloud(points, mode="count", **grid)


# ---- Points: rule 26 ----


@each_points
def test_rule_26_further_columns_are_features_unless_some_are_given(rng, device, points_dtype):
    points, features = random_case(rng, count=200, points_dtype=points_dtype)
    more = np.concatenate([points, random_values(rng, (200, 2), points_dtype)], 1)
    check(more, None, device)
    check(more, features, device)


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


def test_rule_26_stride_0_is_taken_as_it_is(rng, device):
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


@pytest.mark.parametrize(
    ("points", "options", "error", "part"),
    [
        (np.zeros((4, 3), np.float16), {}, robocache.ArgumentTypeError, "points.*float16"),
        (np.zeros((4, 3), np.int32), {}, robocache.ArgumentTypeError, "points.*int32"),
        (np.zeros(3, np.float32), {}, robocache.ArgumentError, r"points.*\[3\]"),
        (np.zeros((4, 2), np.float32), {}, robocache.ArgumentError, r"points.*\[4, 2\]"),
        (np.zeros((3, 4), np.float32).T, {}, robocache.ArgumentError, "points.*side by side"),
        (np.zeros((4, 3), np.float32), {"lengths": np.array([4])}, robocache.ArgumentError, "lengths"),
        (np.zeros((2, 4, 3), np.float32), {"batch_offsets": np.array([0, 4])}, robocache.ArgumentError, "batch_offsets"),
        (np.zeros((2, 4, 3), np.float32), {"lengths": np.array([4])}, robocache.ArgumentError, r"lengths.*\[2\]"),
        (np.zeros((2, 4, 3), np.float32), {"lengths": np.array([4.0, 4.0])}, robocache.ArgumentTypeError, "lengths"),
        (np.zeros((4, 3), np.float32), {"batch_offsets": np.array([[0, 4]])}, robocache.ArgumentError, "batch_offsets"),
        (np.zeros((4, 3), np.float32), {"batch_offsets": np.array([0.0, 4])}, robocache.ArgumentTypeError, "batch_offsets"),
        (np.zeros((4, 3), np.float32), {"features": np.zeros((5, 1))}, robocache.ArgumentError, r"features.*\[4, F\]"),
        (np.zeros((4, 3), np.float32), {"features": np.zeros(4)}, robocache.ArgumentError, "features"),
        (np.zeros((4, 3), np.float32), {"features": np.zeros((4, 1), np.uint64)}, robocache.ArgumentTypeError, "uint64"),
        (np.zeros((4, 3), np.float32), {"features": np.zeros((4, 1), complex)}, robocache.ArgumentTypeError, "features"),
    ],
)  # fmt: skip
def test_rule_26_other_points_are_refused(points, options, error, part):
    with pytest.raises(error, match=rf"(?s){part}"):
        robocache.voxelize_pointcloud(points, mode="count", **options, **GRID)


@pytest.mark.parametrize("lengths", [[4, 5], [-1, 4]])
def test_rule_26_wrong_lengths_are_refused_on_the_cpu(lengths):
    with pytest.raises(robocache.ArgumentError, match="lengths"):
        robocache.voxelize_pointcloud(np.zeros((2, 4, 3), np.float32), lengths=np.array(lengths), **GRID)


@pytest.mark.parametrize("offsets", [[1, 4], [0, 3], [0, 5], [0, 3, 2, 4], [-1, 4], [1], []])
def test_rule_26_wrong_offsets_are_refused_on_the_cpu(offsets):
    with pytest.raises(robocache.ArgumentError, match="batch_offsets"):
        robocache.voxelize_pointcloud(np.zeros((4, 3), np.float32), batch_offsets=np.array(offsets, np.int64), **GRID)


def test_rule_26_points_of_no_cloud_are_refused(device):
    with pytest.raises(robocache.ArgumentError, match="batch_offsets"):
        voxelize(np.zeros((4, 3), np.float32), None, device, mode=["count"], batch_offsets=np.array([0]), **GRID)


def test_rule_26_wrong_lengths_and_offsets_are_cut_on_cuda(rng, cuda):
    points = random_points(rng, 2 * 64).reshape(2, 64, 3)
    out, dropped = voxelize(points, None, cuda, mode=["count"], lengths=np.array([1 << 40, -7]), **GRID)
    expected, expected_dropped = oracle(points, mode=["count"], lengths=[64, 0], **GRID)
    assert_same_bits(out["count"], expected["count"])
    assert_same_bits(dropped, expected_dropped)
    for offsets in ([-5, 1 << 40], [3, 1, 128], [100, 50, 0, -1]):  # what comes is free, and inside memory
        voxelize(points.reshape(-1, 3), None, cuda, mode=["count"], batch_offsets=np.array(offsets), **GRID)


# ---- What the modes hold: rule 27 ----


@each_dtype
def test_rule_27_dtypes(rng, device, dtype):
    out, _ = voxelize(*random_case(rng, dtype, count=40), device, mode=MODES, **GRID)
    floating = dtype in FLOATS
    expected = {
        "occupancy": np.bool_,
        "occupancy_bits": np.uint32,
        "count": np.int32,
        "sum": dtype if floating else np.int64,
        "mean": dtype if floating else np.float32,
    }
    for name, array in out.items():
        assert array.dtype == expected.get(name, dtype), name


def test_rule_27_negative_features_win_max_and_min(device):
    points, features, grid = in_one_voxel(np.array([[-3, -7], [-5, -2]], np.float32))
    out, _ = check(points, features, device, mode=["min", "max"], **grid)
    assert out["max"].ravel().tolist() == [-3, -2]
    assert out["min"].ravel().tolist() == [-5, -7]


@each_float
def test_rule_27_minus_zero_is_below_zero(device, dtype):
    points, features, grid = in_one_voxel(np.array([[0.0, -0.0], [-0.0, 0.0]], dtype))
    out, _ = check(points, features, device, **grid)
    assert np.signbit(out["min"].astype(np.float64)).all()
    assert not np.signbit(out["max"].astype(np.float64)).any()
    assert not np.signbit(out["sum"].astype(np.float64)).any()


def test_rule_27_bits_beyond_z_are_0_and_z_is_the_lowest_bit_first(device):
    points = np.array([[0.5, 0.5, z + 0.5] for z in (0, 5, 31, 32, 36)], np.float32)
    grid = {"grid_min": (0, 0, 0), "voxel_size": 1, "grid_size": (1, 1, 37)}
    out, _ = check(points, None, device, mode=["occupancy_bits", "occupancy"], **grid)
    assert out["occupancy_bits"].ravel().tolist() == [1 | 1 << 5 | 1 << 31, 1 | 1 << 4]


@each_dtype
def test_rule_27_fill(rng, device, dtype):
    points, features = random_case(rng, dtype, count=40)
    fills = (
        [-7.3, float("nan"), float("inf"), 1e-7, 70_000.0]
        if dtype in FLOATS
        else [1]
        if dtype.kind == "b"
        else [0, 100]
    )
    for fill in fills:
        check(points, features, device, fill=fill)
    if dtype == np.int64:
        check(points, features, device, fill=2**63 - 1, mode=["min", "first"])
        check(points, features, device, fill=-(2**63), mode=["max", "last"])


@pytest.mark.parametrize(
    ("dtype", "fill"), [("int8", 128), ("uint8", -1), ("int32", 0.5), ("int64", float("nan")), ("bool", 2)]
)
def test_rule_27_a_fill_that_integers_cannot_hold_is_refused(device, dtype, fill):
    features = np.zeros((4, 1), dtype)
    points = np.zeros((4, 3), np.float32)
    with pytest.raises(robocache.ArgumentError, match=rf"fill.*{dtype}"):
        voxelize(points, features, device, mode=["max"], fill=fill, **GRID)
    voxelize(points, features, device, mode=["mean"], fill=fill, **GRID)  # float32
    with pytest.raises(robocache.ArgumentError, match="fill"):
        voxelize(points, features, device, mode=["sum", "count"], fill=3, **GRID)


def test_rule_27_several_modes_come_in_the_order_asked(rng, device):
    points, features = random_case(rng, count=50)
    for modes in (["max", "count", "mean"], ["count"], ("last", "occupancy"), MODES[::-1]):
        out, _ = voxelize(points, features, device, mode=modes, **GRID)
        assert list(out) == list(modes)


@pytest.mark.parametrize(
    ("mode", "error", "part"),
    [
        ("median", robocache.ArgumentError, "mode.*occupancy.*last.*median"),
        (["count", "count"], robocache.ArgumentError, "mode.*count"),
        ([], robocache.ArgumentError, "mode"),
        (3, robocache.ArgumentTypeError, "mode"),
        (["count", None], robocache.ArgumentTypeError, "mode"),
        ("mean", robocache.ArgumentError, "features.*mean"),
    ],
)
def test_rule_27_other_modes_are_refused(mode, error, part):
    with pytest.raises(error, match=rf"(?s){part}"):
        robocache.voxelize_pointcloud(np.zeros((4, 3), np.float32), mode=mode, **GRID)


def test_rule_27_counts_beyond_2_to_24(device):
    """float32 counts stop at 2^24; sums and means of as many points are right too."""
    n = (1 << 24) + 3
    one = torch.full((1, 3), 0.5, device=device).expand(n, 3)
    features = torch.ones((n, 1), dtype=torch.int8, device=device)
    out = robocache.voxelize_pointcloud(
        one, features, grid_min=(0, 0, 0), voxel_size=1, grid_size=(1, 1, 1), mode=["count", "sum", "mean"]
    )
    assert [out[name].item() for name in ("count", "sum", "mean")] == [n, n, 1.0]
    floats = features.to(torch.float16)
    out = robocache.voxelize_pointcloud(one, floats, grid_min=(0, 0, 0), voxel_size=1, grid_size=(1, 1, 1), mode="mean")
    assert out.item() == 1.0


def test_rule_27_grids_beyond_2_to_31_elements(device):
    """X * Y * Z * F beyond 2^31, and the last element is written."""
    shape, features = (1, 1, (1 << 31) // 16 + 5), 16
    needed = shape[2] * features
    if device == "cuda":
        free = torch.cuda.mem_get_info()[0]
    else:
        with open("/proc/meminfo") as file:
            free = 1024 * int(next(line for line in file if line.startswith("MemAvailable")).split()[1])
    if free < 3 * needed:
        pytest.skip(f"{3 * needed / 2**30:.0f} GiB of free memory are needed")
    points = torch.tensor([[0.5, 0.5, shape[2] - 0.5], [0.5, 0.5, 0.5]], dtype=torch.float64, device=device)
    values = torch.arange(32, dtype=torch.int8, device=device).reshape(2, 16)
    out = robocache.voxelize_pointcloud(points, values, grid_min=(0, 0, 0), voxel_size=1, grid_size=shape, mode="max")
    assert out[0, 0, -1].tolist() == list(range(16))
    assert out[0, 0, 0].tolist() == list(range(16, 32))
    assert not out[0, 0, 1:-1].any()


# ---- Sums: rule 28 ----


@each_float
@pytest.mark.parametrize("quantum", [1.0, 2.0**-7, 2.0**10])
def test_rule_28_a_given_quantum(rng, device, dtype, quantum):
    points, features = random_case(rng, dtype, count=200)
    check(points, features, device, quantum=quantum, mode=["sum", "mean", "count"])


@each_float
def test_rule_28_quanta_at_the_ends_of_the_dtype(rng, device, dtype):
    least, greatest = {"float64": (-1074, 1023), "float32": (-149, 127), "float16": (-24, 15), "bfloat16": (-133, 127)}[
        dtype.name
    ]
    points, features = random_case(rng, dtype, count=100)
    for exponent in (least, greatest):
        check(points, features, device, quantum=2.0**exponent, mode=["sum", "mean"])
    for quantum in (2.0 ** (least - 1), 2.0**greatest * 2 if dtype != np.float64 else float("inf")):
        with pytest.raises(robocache.ArgumentError, match="quantum"):
            voxelize(points, features, device, quantum=quantum, mode=["sum"], **GRID)


@pytest.mark.parametrize("quantum", [0.0, -1.0, 0.3, 3.0, float("nan"), float("inf")])
def test_rule_28_other_quanta_are_refused(rng, quantum):
    points, features = random_case(rng, count=4)
    with pytest.raises(robocache.ArgumentError, match="quantum"):
        robocache.voxelize_pointcloud(points, features, mode="sum", quantum=quantum, **GRID)


@pytest.mark.parametrize("mode", ["count", "max"])
def test_rule_28_a_quantum_goes_with_sums_of_floats(rng, mode):
    points, features = random_case(rng, count=4, special=False)
    with pytest.raises(robocache.ArgumentError, match="quantum"):
        robocache.voxelize_pointcloud(points, features, mode=mode, quantum=1.0, **GRID)
    with pytest.raises(robocache.ArgumentError, match="quantum"):
        robocache.voxelize_pointcloud(points, features.astype(np.int64), mode="sum", quantum=1.0, **GRID)


def test_rule_28_overflow_of_a_given_quantum_is_that_of_the_true_sum(rng, device):
    """In any order: 2^62 quanta and as many again are beyond int64, unless something takes them back."""
    big = 2.0**62
    for column, expected in [
        ([big, big], np.nan),
        ([big, big, -big], big),
        ([-big, -big], -2 * big),  # the least int64
        ([-big, -big, -1.0], np.nan),
        ([big, big, -big, -big, big], big),
        ([2 * big], np.nan),
        ([2 * big, -2 * big], np.nan),
        ([-2 * big], -2 * big),
    ]:
        for order in itertools.islice(itertools.permutations(column), 6):
            points, features, grid = in_one_voxel(np.array(order)[:, None])
            out, _ = check(points, features, device, mode=["sum", "mean"], quantum=1.0, **grid)
            np.testing.assert_array_equal(out["sum"].ravel(), [expected])


def test_rule_28_sums_of_int64_wrap_and_their_mean_says_so(device):
    points, features, grid = in_one_voxel(np.array([[2**62, 1], [2**62, 2], [2**62, 4]]))
    out, _ = check(points, features, device, mode=["sum", "mean"], **grid)
    assert out["sum"].ravel().tolist() == [3 * 2**62 - 2**64, 7]
    assert np.isnan(out["mean"].ravel()[0])


@pytest.mark.parametrize("outlier", [2.1e9, 1e15, 1e30, np.inf, np.nan])
def test_rule_28_an_outlier_stays_in_its_voxel(rng, device, outlier):
    points, features = random_case(rng, count=300, special=False)
    where, inside = cells(points, **GRID)
    row = np.flatnonzero(inside)[0]
    spoilt = features.copy()
    spoilt[row, 1] = outlier
    before, _ = voxelize(points, features, device, mode=["sum", "mean", "max"], **GRID)
    after, _ = voxelize(points, spoilt, device, mode=["sum", "mean", "max"], **GRID)
    for name in before:
        same = np.ones(before[name].shape, bool)
        same[(*where[row], 1)] = False
        assert_same_bits(after[name][same], before[name][same], name)
    check(points, spoilt, device)


def test_rule_28_a_voxel_does_not_know_the_rest_of_the_batch(rng, device):
    points = random_points(rng, 4 * 100).reshape(4, 100, 3)
    features = random_values(rng, (4, 100, 2), np.dtype(np.float32), special=False)
    features *= np.float32(1e6) ** np.arange(4, dtype=np.float32)[:, None, None]
    together, _ = voxelize(points, features, device, mode=MODES, **GRID)
    for b in range(4):
        alone, _ = voxelize(points[b], features[b], device, mode=MODES, **GRID)
        for name in MODES:
            assert_same_bits(together[name][b], alone[name], name)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_rule_28_each_value_is_within_2_to_minus_31_of_the_largest(rng, device, dtype):
    """Before the last rounding the sum is off by at most n * 2^(k - 62) of the voxel's largest, which is n * 2^-31 or less."""
    for count in (1, 2, 3, 1000):
        spread = np.exp2(rng.uniform(-90, 0, (count, 4)))
        points, features, grid = in_one_voxel((rng.standard_normal((count, 4)) * spread).astype(dtype))
        out, _ = voxelize(points, features, device, mode=["sum", "mean"], **grid)
        for f in range(4):
            exact = [Fraction(float(x)) for x in features[:, f]]
            largest, k = max(map(abs, exact)), (count - 1).bit_length()
            bound = count * largest * Fraction(2) ** (k - 62)
            assert bound <= count * largest / 2**31
            # Rounding is monotonic: a sum within the bound rounds to between the rounded ends.
            total = sum(exact)
            low, high = nearest(total - bound, dtype), nearest(total + bound, dtype)
            assert low <= out["sum"].ravel()[f] <= high
            low, high = nearest((total - bound) / count, dtype), nearest((total + bound) / count, dtype)
            assert low <= out["mean"].ravel()[f] <= high


def test_rule_28_float16_sums_are_exact(rng, device):
    points, features, grid = in_one_voxel(random_values(rng, (3000, 3), np.dtype(np.float16), special=False))
    features[::7] = np.float16(6e-8)
    out, _ = voxelize(points, features, device, mode=["sum", "mean"], **grid)
    for f in range(3):
        total = sum(Fraction(float(x)) for x in features[:, f])
        assert_same_bits(out["sum"].ravel()[f], nearest(total, np.float16))
        assert_same_bits(out["mean"].ravel()[f], nearest(total / 3000, np.float16))


@each_float
def test_rule_28_nan_wins_inf_stays(device, dtype):
    inf, nan = np.inf, np.nan
    columns = [[inf, 1], [-inf, 1], [inf, inf], [inf, -inf], [nan, inf], [nan, 1], [1, 2]]
    points, features, grid = in_one_voxel(np.array(columns, np.float64).T.astype(dtype))
    out, _ = check(points, features, device, **grid)
    sums = out["sum"].ravel().astype(np.float64)
    np.testing.assert_array_equal(sums, [inf, -inf, inf, nan, nan, nan, 3])


@each_float
def test_rule_28_sums_beyond_the_dtype_are_infinite_and_their_means_are_not(device, dtype):
    largest = float(ml_dtypes.finfo(dtype).max)
    points, features, grid = in_one_voxel(np.full((3, 1), largest).astype(dtype))
    out, _ = check(points, features, device, **grid)
    assert np.isinf(out["sum"].astype(np.float64)).all()
    assert_same_bits(out["mean"].ravel(), features[0])


# ---- Bits: rule 29 ----


@pytest.mark.parametrize("word", ["gpu_to_gpu", "run_to_run", "not_guaranteed"])
def test_rule_29_every_word_gets_the_same_bits(rng, device, word):
    points, features = random_case(rng, count=100)
    check(points, features, device, mode=["count", "mean"])
    out = robocache.voxelize_pointcloud(
        to_torch(points, device), to_torch(features, device), mode="mean", determinism=word, **GRID
    )
    assert_same_bits(to_numpy(out), oracle(points, features, mode=["mean"], **GRID)[0]["mean"])


def test_rule_29_other_words_are_refused():
    with pytest.raises(robocache.ArgumentError, match=r"determinism.*gpu_to_gpu.*run_to_run.*not_guaranteed.*always"):
        robocache.voxelize_pointcloud(np.zeros((4, 3), np.float32), determinism="always", **GRID)


@pytest.fixture
def threads():
    before = robocache.num_threads()
    yield robocache.set_num_threads
    robocache.set_num_threads(before)


@pytest.mark.parametrize("points_dtype", POINTS, ids=name_of)
def test_rule_29_neither_runs_nor_order_nor_threads_change_a_bit(rng, device, threads, points_dtype):
    grid = {"grid_min": (0, 0, 0), "voxel_size": 0.25, "grid_size": (40, 30, 50)}
    points = random_points(rng, 200_000, points_dtype, **grid)
    features = random_values(rng, (200_000, 5), np.dtype(np.float32))
    unordered = [mode for mode in MODES if mode not in ("first", "last")]
    kept, kept_dropped = voxelize(points, features, device, mode=MODES, **grid)
    for run in range(20):
        threads(1 + run % 5)
        out, dropped = voxelize(points, features, device, mode=MODES, **grid)
        for name in MODES:
            assert_same_bits(out[name], kept[name], f"{name}, run {run}")
        assert_same_bits(dropped, kept_dropped)
        order = rng.permutation(len(points))
        out, dropped = voxelize(points[order], features[order], device, mode=unordered, **grid)
        for name in unordered:
            assert_same_bits(out[name], kept[name], f"{name}, shuffled, run {run}")


@each_dtype
def test_rule_29_cpu_and_cuda_give_the_same_bits(rng, cuda, dtype):
    grid = {"grid_min": (0, 0, 0), "voxel_size": 0.25, "grid_size": (40, 30, 50)}
    points = random_points(rng, 100_000, **grid)
    features = random_values(rng, (100_000, 6), dtype)
    for quantum in (None, 2.0**-12) if dtype in FLOATS else (None,):
        mode = MODES if quantum is None else ["sum", "mean"]
        on_cpu, dropped = voxelize(points, features, "cpu", mode=mode, quantum=quantum, **grid)
        on_cuda, dropped_on_cuda = voxelize(points, features, cuda, mode=mode, quantum=quantum, **grid)
        for name in mode:
            assert_same_bits(on_cuda[name], on_cpu[name], name)
        assert_same_bits(dropped_on_cuda, dropped)


@pytest.mark.parametrize("count", [70_000, 300_000])
def test_rule_29_many_blocks_of_rows_keep_their_order(rng, device, count):
    """First and last of points that come far apart, counts of a crowd in one voxel beside an empty rest."""
    grid = {"grid_min": (0, 0, 0), "voxel_size": 1, "grid_size": (3, 2, 2)}
    points = rng.uniform(0, (3, 2, 2), (count, 3)).astype(np.float32)
    points[count // 2 :] = 0.5
    features = np.arange(count, dtype=np.int32)[:, None]
    out, _ = voxelize(points, features, device, mode=["first", "last", "count"], **grid)
    where, _ = cells(points, **grid)
    flat = np.ravel_multi_index(tuple(where.T), (3, 2, 2))
    first = np.full(12, count, np.int32)
    np.minimum.at(first, flat, features[:, 0])
    last = np.zeros(12, np.int32)
    np.maximum.at(last, flat, features[:, 0])
    assert_same_bits(out["first"].ravel(), first)
    assert_same_bits(out["last"].ravel(), last)
    assert_same_bits(out["count"].ravel(), np.bincount(flat, minlength=12).astype(np.int32))


# ---- Arguments: rules 16 to 18 ----


def test_rule_16_another_out_is_refused(device):
    points = torch.rand(10, 3, device=device)
    with pytest.raises(robocache.ArgumentTypeError, match=r"out.*int32.*int64"):
        robocache.voxelize_pointcloud(
            points, mode="count", out=torch.empty(3, 4, 37, dtype=torch.int64, device=device), **GRID
        )
    with pytest.raises(robocache.ArgumentError, match=r"out.*\[3, 4, 37\].*\[3, 4, 36\]"):
        robocache.voxelize_pointcloud(
            points, mode="count", out=torch.empty(3, 4, 36, dtype=torch.int32, device=device), **GRID
        )
    gaps = torch.empty(3, 4, 40, dtype=torch.int32, device=device)[..., :37]
    with pytest.raises(robocache.ArgumentError, match=r"out.*dense"):
        robocache.voxelize_pointcloud(points, mode="count", out=gaps, **GRID)
    one = torch.empty(3, 4, 37, dtype=torch.int32, device=device)
    for wrong in (one, {"count": one}, {"count": one, "max": one}):
        with pytest.raises(robocache.ArgumentError, match="out"):
            robocache.voxelize_pointcloud(points, mode=["count", "occupancy"], out=wrong, **GRID)


def test_rule_16_out_overlaps_nothing_that_is_read(device):
    memory = torch.zeros(3 * 1000, device=device)
    points = memory.view(1000, 3)
    grid = {"grid_min": (0, 0, 0), "voxel_size": 1, "grid_size": (10, 10, 10)}
    with pytest.raises(robocache.ArgumentError, match=r"out.*points"):
        robocache.voxelize_pointcloud(
            points, mode="count", out=memory.view(torch.int32)[:1000].view(10, 10, 10), **grid
        )
    both = torch.empty(1500, dtype=torch.int32, device=device)
    outs = {"min": both[:1000].view(10, 10, 10, 1), "max": both[500:].view(10, 10, 10, 1)}
    with pytest.raises(robocache.ArgumentError, match=r"out\['max'\].*out\['min'\]"):
        robocache.voxelize_pointcloud(
            points, torch.zeros(1000, 1, dtype=torch.int32, device=device), mode=["min", "max"], out=outs, **grid
        )


def test_rule_16_everything_lies_on_one_device(cuda):
    points = torch.zeros(4, 3, device=cuda)
    with pytest.raises(robocache.ArgumentError, match=r"features.*cuda:0.*cpu"):
        robocache.voxelize_pointcloud(points, torch.zeros(4, 1), mode="sum", **GRID)
    with pytest.raises(robocache.ArgumentError, match=r"out.*cuda:0.*cpu"):
        robocache.voxelize_pointcloud(points, mode="count", out=torch.empty(3, 4, 37, dtype=torch.int32), **GRID)


def test_rule_18_numpy_in_numpy_out(rng):
    for dtype in DTYPES:
        points, features = random_case(rng, dtype, count=60)
        points.flags.writeable = features.flags.writeable = False
        out, dropped = robocache.voxelize_pointcloud(points, features, mode=MODES, return_dropped=True, **GRID)
        expected, expected_dropped = oracle(points, features, mode=MODES, **GRID)
        for name in MODES:
            assert type(out[name]) is np.ndarray
            assert_same_bits(out[name], expected[name], name)
            out[name][...] = 0  # its own, writable memory
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
    kinds = {
        "numpy": {name: np.asarray(value) for name, value in GRID.items()},
        "torch": {
            name: torch.tensor(value, dtype=torch.float64 if name != "grid_size" else None)
            for name, value in GRID.items()
        },
        "list": {name: list(value) for name, value in GRID.items()},
    }
    for name, grid in kinds.items():
        assert_same_bits(robocache.voxelize_pointcloud(points, mode="count", **grid), expected, name)
    grid = GRID | {"voxel_size": np.float32(0.5)}
    assert_same_bits(
        robocache.voxelize_pointcloud(points, mode="count", **grid),
        robocache.voxelize_pointcloud(points, mode="count", **(GRID | {"voxel_size": 0.5})),
    )
    for wrong in (
        {"voxel_size": "0.1"},
        {"grid_min": 3},
        {"grid_size": (1.5, 2, 3)},
        {"fill": "x"},
        {"voxel_size": None},
    ):
        with pytest.raises(robocache.ArgumentTypeError, match=next(iter(wrong))):
            robocache.voxelize_pointcloud(points, mode="count", **(GRID | wrong))


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
    where, inside = cells(points, **grid)
    count = np.zeros(grid["grid_size"], np.int32)
    np.add.at(count, tuple(where[inside].T), 1)
    mode = ["count", "occupancy", "mean", "min", "last"]
    out, dropped = voxelize(points, points, device, mode=mode, **grid)
    assert_same_bits(out["count"], count)
    assert_same_bits(out["occupancy"], count > 0)
    assert dropped == (~inside).sum()
    assert 0 < dropped < len(points)
    lowest = np.full((*grid["grid_size"], 3), np.inf, np.float32)
    np.minimum.at(lowest, tuple(where[inside].T), points[inside])
    np.testing.assert_array_equal(out["min"], np.where(count[..., None] > 0, lowest, 0))  # numpy's -0 is 0
    for cell in np.argwhere(count)[:: max(1, np.count_nonzero(count) // 40)]:
        rows = np.flatnonzero(inside & (where == cell).all(1))
        assert_same_bits(out["last"][tuple(cell)], points[rows[-1]])
        for axis in range(3):
            mean = sum(Fraction(float(x)) for x in points[rows, axis]) / len(rows)
            assert_same_bits(out["mean"][(*cell, axis)], nearest(mean, np.float32))
