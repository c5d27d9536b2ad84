"""voxelize_sparse, rule by rule, bit for bit against the NumPy oracle, on the CPU and on CUDA."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from reference.compare import OnlyDLPack, assert_same_bits, to_numpy, to_torch
from reference.random_streams import FLOATS, WHOLE, random_values
from reference.sparse_clouds import check, random_offsets, random_points, voxelize
from reference.voxelize_sparse import cells_of, morton_code
from reference.voxelize_sparse import voxelize_sparse as oracle

import robocache

torch = pytest.importorskip("torch")

ORDERS = ["first", "linear", "morton"]
REAL = [np.dtype(np.float32), np.dtype(np.float64)]
each_real = pytest.mark.parametrize("dtype", REAL, ids=lambda dtype: dtype.name)
each_order = pytest.mark.parametrize("order", ORDERS)


@pytest.fixture(autouse=True)
def poisoned_allocator():
    """Fills the memory that torch's CUDA allocator hands out next with 0xA5."""
    if torch.cuda.is_available():
        blocks = [torch.full((size,), 0xA5, dtype=torch.uint8, device="cuda") for size in (1 << 12, 1 << 16, 1 << 22)]
        del blocks


def random_case(rng, dtype, rows=700):
    """Returns (points, the arguments that divide them into clouds), of a random kind."""
    kind = rng.choice(["one cloud", "offsets", "batch", "lengths"])
    size = rng.choice([0.25, 0.5, 0.37]) * np.array([1.0, 1.0, rng.choice([1.0, 2.0])])
    extra = rng.integers(0, 4)
    shape, options = (rows,), {"voxel_size": tuple(size)}
    if kind == "offsets":
        options["batch_offsets"] = random_offsets(rng, rows, 5, rng.choice([np.int32, np.int64]))
    elif kind != "one cloud":
        shape = (4, rows // 4)
        if kind == "lengths":
            options["lengths"] = rng.integers(0, rows // 4 + 1, 4).astype(rng.choice([np.int32, np.int64]))
    points = random_points(rng, shape, dtype, voxel_size=size)
    columns = random_values(rng, (*shape, extra), np.dtype(dtype))
    if rng.random() < 0.5:
        low = np.round(rng.uniform(-3, -1, 3) / size) * size
        options["point_range"] = (*low, *(low + size * rng.integers(0, 9, 3)))
    return np.concatenate([points, columns], axis=-1), options


# ---- Against the oracle ----


@each_real
@pytest.mark.parametrize("repetition", range(6))
def test_rule_30_every_option_gives_the_oracles_bits(rng, device, dtype, repetition):
    for max_voxels, max_points, capacity, order in itertools.product(
        [None, 1, 9], [None, 1, 3, 40], [None, 1, 25, 900], ORDERS
    ):
        points, options = random_case(rng, dtype, int(rng.integers(0, 300)))
        if capacity is not None and max_points is None:
            continue  # refused: the call does not wait for the largest count
        check(
            points,
            device=device,
            max_voxels=max_voxels,
            max_points_per_voxel=max_points,
            capacity=capacity,
            reduce=None,
            order=order,
            coord_order=rng.choice(["xyz", "zyx"]),
            **options,
        )


@pytest.mark.parametrize("rows", [0, 1, 2, 31, 32, 33, 1023, 1024, 1025, 5000, 33_001])
def test_rule_30_any_number_of_rows(rng, device, rows):
    points = random_points(rng, (rows,), voxel_size=0.2)
    check(points, device=device, voxel_size=0.2, max_points_per_voxel=5, reduce=None)
    check(points, device=device, voxel_size=0.2, order="morton", capacity=rows + 1, max_points_per_voxel=2, reduce=None)


def test_rule_30_clouds_of_several_blocks_on_any_number_of_threads(rng, device, threads):
    points = random_points(rng, (40_001,), voxel_size=0.2)
    offsets = np.array([0, 17_011, 17_011, 40_001])
    for count in (1, 2, 3):
        threads(count)
        check(points, device=device, voxel_size=0.2, batch_offsets=offsets, max_voxels=3000, reduce=None)


def test_rule_30_more_rows_than_one_wave_of_threads(rng, device):
    points = random_points(rng, (300_000,), voxel_size=0.05)
    features = rng.standard_normal((300_000, 4)).astype(np.float32)
    result = voxelize(points, features, device, voxel_size=0.05, max_points_per_voxel=5, reduce=None)
    cells = cells_of(points, 0.05)
    inside = (np.abs(cells) < 2**31).all(axis=1)
    _, first, cell_of_row = np.unique(cells[inside], axis=0, return_index=True, return_inverse=True)
    voxel_of_cell = np.argsort(np.argsort(first))  # numbers voxels in the order of their first rows
    expected = np.full(len(points), -1, np.int32)
    expected[inside] = voxel_of_cell[cell_of_row.ravel()]
    assert_same_bits(result.point_to_voxel, expected)
    assert_same_bits(result.coords, cells[inside][np.sort(first)].astype(np.int32))
    assert_same_bits(result.counts, np.minimum(np.bincount(expected[inside]), 5).astype(np.int32))
    index = np.zeros(len(points), np.int64)  # each row's index within its voxel
    order = np.argsort(expected, kind="stable")
    starts = np.searchsorted(expected[order], expected[order])
    index[order] = np.arange(len(points)) - starts
    gathered = np.zeros((len(first), 5, 4), np.float32)
    is_kept = inside & (index < 5)
    gathered[expected[is_kept], index[is_kept]] = features[is_kept]
    assert_same_bits(result.features, gathered)


def test_rule_30_rows_in_the_voxel_of_the_row_before(rng, device):
    points = random_points(rng, (250_000,), voxel_size=0.05)
    options = {"voxel_size": 0.05, "max_points_per_voxel": 1, "reduce": None, "max_voxels": 50_000}
    single, repeated = (voxelize(np.repeat(points, times, axis=0), device=device, **options) for times in (1, 5))
    assert_same_bits(repeated.point_to_voxel, np.repeat(single.point_to_voxel, 5))
    for name in ("coords", "counts", "features"):
        assert_same_bits(getattr(repeated, name), getattr(single, name), name)
    assert repeated.dropped == 5 * single.dropped


def test_rule_30_all_rows_in_one_voxel(rng, device):
    points = rng.uniform(0, 1, (20_000, 3)).astype(np.float32)
    for max_points in (None, 1, 7, 33, 200, 30_000):
        if max_points == 30_000:
            result = check(points[:2000], device=device, voxel_size=1.0, max_points_per_voxel=max_points, reduce=None)
            assert result.features.shape == (1, max_points, 3)
        else:
            check(points, device=device, voxel_size=1.0, max_points_per_voxel=max_points, reduce=None)


def test_rule_30_a_few_crowded_voxels_among_many(rng, device):
    points = np.where(rng.random((40_000, 1)) < 0.7, rng.uniform(0, 1, (40_000, 3)), rng.uniform(-9, 9, (40_000, 3)))
    points = points.astype(np.float32)
    for max_points in (5, 32, 33, 100, None):
        if max_points is None:  # room for as many points in each voxel as in the fullest
            points = points[:6000]
        check(points, device=device, voxel_size=1.0, max_points_per_voxel=max_points, reduce=None)


def test_rule_30_each_row_in_its_own_voxel(rng, device):
    points = rng.permutation(np.stack(np.meshgrid(*[np.arange(-8.0, 8)] * 3), -1).reshape(-1, 3)).astype(np.float32)
    for order in ORDERS:
        result = check(points, device=device, voxel_size=1.0, max_points_per_voxel=2, reduce=None, order=order)
        assert (result.counts == 1).all()


# ---- Cells ----


@each_real
@each_order
def test_rule_30_cells_at_the_ends_of_int32(rng, device, dtype, order):
    coordinates = np.array(
        [-(2.0**31), -(2.0**31) - 1024, 2.0**31 - 1024, 2.0**31 - 128, 2.0**31, 0, -1, 5e8, -7.5e8, 1, 1e19]
    )
    points = rng.choice(coordinates, (900, 3)).astype(dtype)
    result = check(points, device=device, voxel_size=1.0, order=order, reduce=None)
    assert result.coords.min() == -(2**31) and result.coords.max() > 2**31 - 1025 and result.dropped > 0


def test_rule_25_faces_follow_numpys_floor(rng, device):
    k = np.arange(-3000, 3000)
    for size in (0.1, 0.05, 0.3, 1 / 3):
        for dtype in REAL:
            faces = (k * np.asarray(size, dtype)).astype(dtype)
            points = np.stack([faces, np.nextafter(faces, dtype.type(0)), np.nextafter(faces, dtype.type(np.inf))], 1)
            result = voxelize(points, device=device, voxel_size=size, reduce=None)
            assert_same_bits(result.coords[result.point_to_voxel], cells_of(points, size).astype(np.int32), f"{size}")


def test_rule_30_the_range_has_the_rounded_number_of_cells(device):
    x = np.linspace(-1, 72, 4001, dtype=np.float32)
    points = np.stack([x, np.zeros_like(x), np.zeros_like(x)], 1)
    result = check(
        points, device=device, voxel_size=(0.05, 0.05, 0.1), point_range=(0, -40, -3, 70.4, 40, 1), reduce=None
    )
    assert result.coords[:, 0].min() == 0 and result.coords[:, 0].max() == 1407
    check(points, device=device, voxel_size=3.0, point_range=(0, -40, -3, 70, 40, 1), reduce=None)  # 23.33 cells: 23
    result = check(points, device=device, voxel_size=3.0, point_range=(0, 0, 0, 0, 40, 1), reduce=None)
    assert result.coords.shape == (0, 3) and result.dropped == len(points)


@each_real
def test_rule_30_no_point_outside_the_range_is_in_a_voxel(device, dtype):
    """Rounded cells may reach beyond the range, or end before it does."""
    for size, upper in ((0.1, 10.06), (0.1, 10.04), (0.16, 40.0), (3.0, 71.5), (0.1, 10.0)):
        x = np.concatenate([np.linspace(upper - 2 * size, upper + 2 * size, 401), [upper]])
        for axis in range(3):
            points = np.full((len(x), 3), 0.05)
            points[:, axis] = x
            points = points.astype(dtype)
            upper_corner = [3 * size] * 3
            upper_corner[axis] = upper
            result = check(points, device=device, voxel_size=size, point_range=(0, 0, 0, *upper_corner), reduce=None)
            outside = points[:, axis] >= dtype.type(upper)
            assert (result.point_to_voxel[outside] == -1).all() and result.dropped >= outside.sum()
            well_inside = points[:, axis] < upper - size / 2 - 1e-5
            assert (result.point_to_voxel[well_inside] >= 0).all()


@pytest.mark.parametrize("count", [3, 1000])
def test_rule_30_morton_interleaves_x_lowest(rng, device, count):
    cells = rng.integers(-(2**31), 2**31, (count, 3))
    points = cells.astype(np.float64) + 0.5
    result = voxelize(points, device=device, voxel_size=1.0, order="morton")
    codes = [morton_code(*map(int, cell)) for cell in result.coords]
    assert codes == sorted(codes) and len(codes) == count
    corners = np.array(
        [[1, 1, 1], [0, 1, 1], [1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]], np.float32
    )
    result = voxelize(corners, device=device, voxel_size=1.0, order="morton")
    assert result.coords.tolist() == corners[::-1].tolist()


# ---- Arguments ----


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 8, 17])
def test_rule_26_features_of_any_type_are_gathered_unchanged(rng, device, dtype, count):
    if dtype == np.uint64 or (device == "cuda" and dtype in (np.uint16, np.uint32)):
        pytest.skip("the library refuses uint64, and torch has no uint16 and uint32 on CUDA")
    points = random_points(rng, (257,))
    features = random_values(rng, (257, count), dtype)
    check(points, features, device, voxel_size=0.5, max_points_per_voxel=3, reduce=None)


@each_real
def test_rule_26_any_outer_stride(rng, device, dtype):
    wide = to_torch(
        np.concatenate([random_points(rng, (3, 400), dtype), rng.standard_normal((3, 400, 6)).astype(dtype)], -1),
        device,
    )
    options = {"voxel_size": 0.5, "max_points_per_voxel": 3, "reduce": None}
    for points, features in (
        (wide[..., :3], wide[..., 4:]),
        (wide[:, ::3, :5], None),
        (wide.flip(1).transpose(0, 1).contiguous().transpose(0, 1)[..., :4], None),
        (wide[:1].expand(3, -1, -1), wide[0, :1].expand(3, 400, -1)),
        (wide[1, :, 1:], None),
        (wide[2, 100:, 3:7], wide[1, :300, :2]),
    ):
        result = robocache.voxelize_sparse(points, features, **options)
        expected = oracle(to_numpy(points), None if features is None else to_numpy(features), **options)
        assert_same_bits(to_numpy(result.features), expected.features)
        assert_same_bits(to_numpy(result.point_to_voxel), expected.point_to_voxel)


def test_rule_26_rows_past_a_length_are_ignored(rng, device):
    points = random_points(rng, (3, 50))
    lengths = np.array([50, 0, 7])
    result = check(points, device=device, voxel_size=0.5, lengths=lengths, reduce=None)
    assert (result.point_to_voxel[2, 7:] == -1).all() and result.dropped[1] == 0
    assert result.coords[:, 0].max() == 2


def test_rule_26_offsets_and_lengths_on_cuda_are_cut_to_the_rows(rng, cuda):
    points = random_points(rng, (200,))
    offsets, cut = np.array([-5, 60, 40, 300, 120]), np.array([0, 60, 60, 200, 200])
    options = {"voxel_size": 0.5, "reduce": None}
    result = voxelize(points, device=cuda, batch_offsets=offsets, **options)
    assert_same_bits(result.point_to_voxel, oracle(points, batch_offsets=cut, **options).point_to_voxel)
    clouds = points.reshape(4, 50, 3)
    result = voxelize(clouds, device=cuda, lengths=np.array([-1, 51, 2**40, 3]), **options)
    expected = oracle(clouds, lengths=np.array([0, 50, 50, 3]), **options)
    assert_same_bits(result.point_to_voxel, expected.point_to_voxel)
    assert_same_bits(result.dropped, expected.dropped)
    partial = voxelize(points, device=cuda, batch_offsets=np.array([20, 60, 150]), **options)
    assert (partial.point_to_voxel[:20] == -1).all() and (partial.point_to_voxel[150:] == -1).all()
    expected = oracle(points[20:150], batch_offsets=np.array([0, 40, 130]), **options)
    assert_same_bits(partial.point_to_voxel[20:150], expected.point_to_voxel)
    assert_same_bits(partial.dropped, expected.dropped)


def test_rule_18_frameworks(rng):
    points = random_points(rng, (100,))
    expected = oracle(points, voxel_size=0.5, reduce=None)
    result = robocache.voxelize_sparse(points, voxel_size=0.5, reduce=None)
    assert isinstance(result, robocache.SparseVoxels) and all(type(a) is np.ndarray for a in result[:5])
    assert_same_bits(result.features, expected.features)
    result = robocache.voxelize_sparse(OnlyDLPack(to_torch(points)), voxel_size=0.5, reduce=None)
    assert_same_bits(to_numpy(result.features), expected.features)
    read_only = points.copy()
    read_only.flags.writeable = False
    assert_same_bits(robocache.voxelize_sparse(read_only, voxel_size=0.5, reduce=None).features, expected.features)
    result = robocache.voxelize_sparse(
        points, np.zeros((100, 2), ml_dtypes.bfloat16), voxel_size=np.float32(0.5), reduce=None, max_voxels=np.int64(3)
    )
    assert result.features.dtype == ml_dtypes.bfloat16 and len(result.coords) == 3


# ---- Determinism ----


def test_rule_30_with_capacity_only_padding_rows_are_added(rng, device):
    points = random_points(rng, (5000,), voxel_size=0.3)
    for order in ORDERS:
        options = {"voxel_size": 0.3, "max_points_per_voxel": 3, "reduce": None, "order": order}
        exact = voxelize(points, device=device, **options)
        size = len(exact.coords)
        result = voxelize(points, device=device, capacity=size + 11, **options)
        assert result.num_voxels == size
        for name in ("coords", "features", "counts"):
            assert_same_bits(getattr(result, name)[:size], getattr(exact, name), name)
        assert (
            (result.coords[size:] == -1).all() and not result.counts[size:].any() and not result.features[size:].any()
        )
        assert_same_bits(result.point_to_voxel, exact.point_to_voxel)


# ---- Other libraries ----


def spconv_point_to_voxel(points, voxel_size, point_range, max_voxels, max_points):
    """Returns the result of spconv's PointToVoxel with voxel ids."""
    size, (low, high) = np.asarray(voxel_size, np.float32), np.reshape(point_range, (2, 3)).astype(np.float32)
    grid = np.round((high - low) / size).astype(np.int64)
    voxels = np.zeros((max_voxels, max_points, points.shape[1]), points.dtype)
    indices = np.zeros((max_voxels, 3), np.int32)
    counts = np.zeros(max_voxels, np.int32)
    ids = np.full(len(points), -1, np.int64)
    table = {}
    for i, point in enumerate(points):
        cell = np.floor((point[:3] - low) / size)
        if not ((cell >= 0) & (cell < grid)).all():
            continue
        key = tuple(cell.astype(int)[::-1])
        if key not in table:
            if len(table) >= max_voxels:
                continue
            table[key] = len(table)
            indices[table[key]] = key
        ids[i] = voxel = table[key]
        if counts[voxel] < max_points:
            voxels[voxel, counts[voxel]] = point
            counts[voxel] += 1
    return voxels[: len(table)], indices[: len(table)], counts[: len(table)], ids


def mmcv_dynamic_voxelize(points, voxel_size, point_range):
    """Returns the result of mmcv's dynamic voxelization: z, y, x of each point, or -1 outside."""
    size, (low, high) = np.asarray(voxel_size, np.float32), np.reshape(point_range, (2, 3)).astype(np.float32)
    cells = np.floor((points[:, :3] - low) / size)
    inside = ((cells >= 0) & (cells < np.round((high - low) / size))).all(axis=1)
    return np.where(inside[:, None], cells[:, ::-1], -1).astype(np.int32)


@pytest.mark.parametrize("max_voxels", [200, 20_000])
def test_rule_30_equals_spconv_and_mmcv(rng, device, max_voxels):
    points = np.concatenate([rng.normal(0, 12, (4000, 3)), rng.random((4000, 1))], 1).astype(np.float32)
    size, point_range = (0.5, 0.5, 1.0), (-20.0, -20.0, -3.0, 20.0, 20.0, 5.0)
    options = {"voxel_size": size, "point_range": point_range, "coord_order": "zyx"}
    result = voxelize(points, device=device, max_voxels=max_voxels, max_points_per_voxel=5, reduce=None, **options)
    voxels, indices, counts, ids = spconv_point_to_voxel(points, size, point_range, max_voxels, 5)
    assert_same_bits(result.features, voxels)
    assert_same_bits(result.coords, indices)
    assert_same_bits(result.counts, counts)
    assert_same_bits(result.point_to_voxel.astype(np.int64), ids)
    result = voxelize(points, device=device, **options)
    dynamic = np.where(result.point_to_voxel[:, None] < 0, -1, result.coords[result.point_to_voxel])
    assert_same_bits(dynamic.astype(np.int32), mmcv_dynamic_voxelize(points, size, point_range))
