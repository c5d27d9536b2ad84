"""voxelize_sparse: the reduction of a voxel's features, its gradients, and its use with torch."""

import numpy as np
import pytest
from reference.compare import assert_same_bits, to_numpy, to_torch
from reference.random_streams import FLOATS, WHOLE, random_values
from reference.sparse_clouds import check, random_points, voxelize
from reference.voxelize_sparse import voxelize_sparse as oracle

import robocache

torch = pytest.importorskip("torch")

REDUCES = ["mean", "sum", "min", "max", "first", "last"]
each_reduce = pytest.mark.parametrize("reduce", REDUCES)
INT_TYPES = [dtype for dtype in WHOLE if dtype.name not in ("uint64", "uint32", "uint16")]


@each_reduce
@pytest.mark.parametrize("dtype", [*FLOATS, *INT_TYPES], ids=lambda dtype: dtype.name)
def test_rule_27_every_type_gives_the_oracles_bits(rng, device, reduce, dtype):
    points = random_points(rng, (300,))
    features = random_values(rng, (300, 3), dtype)
    check(points, features, device, voxel_size=0.5, reduce=reduce)
    check(points, features, device, voxel_size=0.5, reduce=reduce, max_points_per_voxel=2, order="linear")
    check(points, features, device, voxel_size=0.5, reduce=reduce, max_points_per_voxel=40, order="morton")


@each_reduce
def test_rule_30_caps_apply_before_reduce(rng, device, reduce):
    points = np.concatenate([random_points(rng, (4, 90)), rng.standard_normal((4, 90, 2))], -1).astype(np.float32)
    for max_points in (1, 3, 33):
        for capacity in (None, 20, 400):
            options = {"max_points_per_voxel": max_points, "max_voxels": 9, "capacity": capacity, "order": "linear"}
            result = check(points, device=device, voxel_size=0.7, reduce=reduce, **options)
            assert result.counts.max() <= max_points
    check(points, device=device, voxel_size=0.7, reduce=reduce, capacity=50)


@each_reduce
def test_rule_26_columns_after_z_are_the_features(rng, device, reduce):
    points = random_points(rng, (200,), np.float64)
    result = check(points, device=device, voxel_size=0.5, reduce=reduce)
    assert result.features.shape == (len(result.coords), 0) and result.features.dtype == np.float64
    result = check(points, points, device, voxel_size=0.5, reduce=reduce)  # like MeanVFE
    assert result.features.shape == (len(result.coords), 3)
    check(np.zeros((0, 5), np.float32), device=device, voxel_size=0.5, reduce=reduce)


def test_rule_30_order_linear_equals_mmcvs_dynamic_scatter(rng, device):
    points = random_points(rng, (3000,), special=False)
    features = rng.standard_normal((3000, 4))
    for reduce in ("mean", "max"):
        result = voxelize(points, features, device, voxel_size=0.5, reduce=reduce, order="linear")
        # Voxels have the order of torch.unique.
        cells, cell_of_row = np.unique(np.floor(points / np.float32(0.5)), axis=0, return_inverse=True)
        assert_same_bits(result.coords, cells.astype(np.int32))
        assert_same_bits(result.point_to_voxel, cell_of_row.ravel().astype(np.int32))
        for voxel in range(len(cells)):
            members = features[cell_of_row.ravel() == voxel]
            if reduce == "max":
                assert_same_bits(result.features[voxel], members.max(0))
            else:  # numpy rounds n times, by half an ulp of at most the sum of magnitudes; ours is off by rule 28
                bound = (len(members) + 2) * 2.0**-53 * np.abs(members).mean(0) + np.abs(members).max(0) * 2.0**-31
                assert (np.abs(result.features[voxel] - members.mean(0)) <= bound).all()


# ---- Gradients ----


def expected_gradient(points, features, reduce, weights, options):
    """Returns the gradient of sum(weights * result) for features [N, F], from the oracle's rows alone."""
    expected = oracle(points, features, **{**options, "reduce": reduce})
    gradient = np.zeros(features.shape)
    for voxel, rows in enumerate(expected.rows):
        for f in range(features.shape[1] if rows else 0):
            column = features[rows, f]
            if reduce is None:
                gradient[rows, f] = weights[voxel, : len(rows), f]
            elif reduce in ("sum", "mean"):
                gradient[rows, f] = weights[voxel, f] / (len(rows) if reduce == "mean" else 1)
            else:
                out = expected.features[voxel, f]
                tied = np.flatnonzero(
                    (column == out) & (np.signbit(column) == np.signbit(out)) | np.isnan(column) & np.isnan(out)
                )
                row = {"first": rows[0], "last": rows[-1]}.get(reduce)
                gradient[rows[tied[0]] if row is None else row, f] = weights[voxel, f]
    return gradient


@pytest.mark.parametrize("reduce", [*REDUCES, None])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_rule_19_gradients_of_features(rng, device, reduce, dtype):
    points = random_points(rng, (250,))
    # Integers tie often; sums, means of 1, 2, 4, .. and weights are exact in every type.
    features = rng.integers(-3, 4, (250, 3)).astype(np.float64)
    features[rng.random(features.shape) < 0.1] = -0.0
    for options in (
        {"voxel_size": 0.5, "max_points_per_voxel": 4, "order": "morton"},
        {"voxel_size": 0.5},
        {"voxel_size": 0.5, "capacity": 30, "max_points_per_voxel": 2, "max_voxels": 20},
    ):
        tensor = to_torch(features, device).to(dtype).requires_grad_()
        result = robocache.voxelize_sparse(to_torch(points, device), tensor, reduce=reduce, **options)
        assert result.features.requires_grad and not result.counts.requires_grad
        weights = rng.integers(-4, 5, result.features.shape).astype(np.float64)
        result.features.backward(to_torch(weights, device).to(dtype))
        expected = to_numpy(
            torch.from_numpy(expected_gradient(points, features, reduce, weights, options)).to(dtype).float()
        )
        assert_same_bits(to_numpy(tensor.grad.float()), expected + 0.0)  # -0.0 becomes 0.0


@pytest.mark.parametrize("reduce", ["mean", "max", None])
def test_rule_19_gradients_of_columns_of_points(rng, device, reduce):
    cloud = np.concatenate([random_points(rng, (2, 80)), rng.standard_normal((2, 80, 2))], -1)
    points = to_torch(cloud, device).requires_grad_()
    options = {"voxel_size": 0.5, "max_points_per_voxel": 3, "reduce": reduce}
    result = robocache.voxelize_sparse(points, **options)
    weights = rng.standard_normal(result.features.shape)
    result.features.backward(to_torch(weights, device))
    features = cloud if reduce is None else cloud[..., 3:]
    expected = expected_gradient(cloud, features.reshape(160, -1), reduce, weights, options)
    expected = expected.reshape(features.shape)
    if reduce is not None:
        expected = np.concatenate([np.zeros((2, 80, 3)), expected], -1)
    assert_same_bits(to_numpy(points.grad), expected + 0.0)  # -0.0 becomes 0.0


def test_rule_19_min_and_max_of_nan_go_to_the_first_nan(device):
    points = torch.zeros(4, 3, device=device)
    for reduce in ("min", "max"):
        features = torch.tensor([[1.0], [float("nan")], [2.0], [float("nan")]], device=device, requires_grad=True)
        robocache.voxelize_sparse(points, features, voxel_size=1.0, reduce=reduce).features.backward(
            torch.ones(1, 1, device=device)
        )
        assert features.grad.ravel().tolist() == [0, 1, 0, 0]


def test_rule_19_without_voxels_gradients_are_0(device):
    points = torch.full((5, 3), float("nan"), device=device)
    for reduce in (*REDUCES, None):
        features = torch.ones(5, 2, device=device, requires_grad=True)
        result = robocache.voxelize_sparse(points, features, voxel_size=1.0, reduce=reduce)
        assert len(result.coords) == 0
        result.features.sum().backward()
        assert not features.grad.any()


# ---- torch ----


def call_sparse(points, features, **options):
    return robocache.voxelize_sparse(points, features, voxel_size=0.5, **options)


def test_rule_18_torch_compile_makes_one_graph_with_capacity(rng, device):
    compiled = torch.compile(call_sparse, fullgraph=True, backend="aot_eager")
    for options in ({"capacity": 64, "max_points_per_voxel": 3, "reduce": None}, {"capacity": 50, "reduce": "max"}):
        for rows in (200, 333):
            points = to_torch(random_points(rng, (rows,)), device)
            features = torch.randn(rows, 4, device=device, requires_grad=True)
            result = compiled(points, features, **options)
            expected = call_sparse(points, features, **options)
            for name, a, b in zip(result._fields, result, expected, strict=True):
                assert_same_bits(to_numpy(a), to_numpy(b), name)
            weights = torch.randn_like(expected.features)
            (gradient,) = torch.autograd.grad((result.features * weights).sum(), features)
            (expected_grad,) = torch.autograd.grad((expected.features * weights).sum(), features)
            assert_same_bits(to_numpy(gradient), to_numpy(expected_grad))


def test_rule_18_torch_compile_breaks_the_graph_without_capacity(rng, device):
    compiled = torch.compile(
        lambda points: call_sparse(points, None, reduce=None).features.sum((0, 1)) * 2, backend="eager"
    )
    points = to_torch(random_points(rng, (200,), special=False), device)
    expected = call_sparse(points, None, reduce=None).features.sum((0, 1)) * 2
    assert_same_bits(to_numpy(compiled(points)), to_numpy(expected))


def test_rule_18_opcheck(rng, device):
    from robocache import _torch  # defines the operators
    from robocache.ops import voxel_downsample, voxelize_sparse

    def arguments(operation, **fields):
        return _torch._spread(operation, operation.call(fields))

    points = to_torch(random_points(rng, (60,)), device)
    features = torch.randn(60, 2, device=device, requires_grad=True)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for reduce, max_points, capacity in ((None, 3, 40), ("mean", None, 40), ("min", 2, None), (None, None, None)):
        fields = {"points": points, "features": features, "voxel_size": [0.5] * 3, "reduce": reduce}
        inputs = arguments(voxelize_sparse._voxelize, **fields, max_points_per_voxel=max_points, capacity=capacity)
        results = [True] * 5 + [capacity is not None, bool(reduce and max_points), reduce is None]
        torch.library.opcheck(torch.ops.robocache.voxelize_sparse.default, (*inputs, results), test_utils=tests)
    for method, seed in (("centroid", None), ("first", None), ("random", 3)):
        fields = {"points": points, "features": features, "voxel_size": [0.5] * 3, "method": method, "seed": seed}
        inputs = arguments(voxel_downsample._downsample, **fields)
        centroid = method == "centroid"
        results = [True, True, centroid, centroid, not centroid]
        torch.library.opcheck(torch.ops.robocache.voxel_downsample.default, (*inputs, results), test_utils=tests)


def test_rule_18_vmap_is_refused_with_a_hint(device):
    points = torch.zeros(2, 5, 3, device=device)
    with pytest.raises(robocache.ArgumentError, match="no vmap"):
        torch.vmap(lambda p: robocache.voxelize_sparse(p, voxel_size=1.0, capacity=4).coords)(points)
    with pytest.raises(robocache.ArgumentError, match="no vmap"):
        torch.vmap(lambda p: robocache.voxel_downsample(p, voxel_size=1.0))(points)


def test_rule_19_arrays_beside_a_gradient_must_be_torchs(device):
    points = torch.zeros(2, 5, device=device, requires_grad=True)
    with pytest.raises(robocache.ArgumentTypeError, match="features: "):
        robocache.voxelize_sparse(points, np.zeros((2, 1), np.float32), voxel_size=1.0)
