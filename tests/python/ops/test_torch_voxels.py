"""voxelize_pointcloud in torch: gradients (rules 19 and 29), torch.compile and vmap."""

import numpy as np
import pytest
from reference.compare import assert_same_bits, to_numpy, to_torch
from reference.random_clouds import GRID, random_points
from reference.random_streams import FLOATS, random_values
from reference.voxelize import MODES, OF_FEATURES, cells

import robocache

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh_compiler")


each_float = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)


def voxelize(points, features, **options):
    return robocache.voxelize_pointcloud(points, features, **(GRID | options))


def random_case(rng, dtype, count=150, features=3):
    values = random_values(rng, (count, features), dtype)
    values = np.where(rng.random(values.shape) < 0.4, values[rng.integers(0, count, count)], values)  # ties
    return random_points(rng, count), values


def gradient_rows(column, rows, mode):
    """Returns the rows of one voxel that take a feature's gradient."""
    exact = column[rows].astype(np.float64)
    if mode in ("sum", "mean"):
        return rows
    if mode in ("first", "last"):
        return rows[:1] if mode == "first" else rows[-1:]
    if np.isnan(exact).any():
        return rows[np.isnan(exact)][:1]
    is_extreme = exact == (exact.min() if mode == "min" else exact.max())
    signs = np.signbit(exact[is_extreme])
    sign = signs.any() if mode == "min" else signs.all()  # -0 counts as below +0
    return rows[is_extreme & (np.signbit(exact) == sign)][:1]


def gradient_oracle(points, features, out_gradients):
    """Returns the gradient of the features from {mode: gradient of the output}, summed mode by mode in the work type."""
    work_dtype = np.float64 if features.dtype == np.float64 else np.float32
    result = np.zeros(features.shape, work_dtype)
    voxel, inside = cells(points, **GRID)
    rows_of_voxel = {}
    for row in np.flatnonzero(inside):
        rows_of_voxel.setdefault(tuple(voxel[row]), []).append(row)
    for mode, gradient in out_gradients.items():
        for cell, rows in rows_of_voxel.items():
            for f in range(features.shape[1]):
                share = np.float64(gradient[(*cell, f)])
                if mode == "mean":
                    share = share / len(rows)
                result[gradient_rows(features[:, f], np.array(rows), mode), f] += work_dtype(share)
    return result.astype(features.dtype)


def gradient_of(points, features, modes, out_gradients, device, **options):
    features = to_torch(features, device).requires_grad_()
    out = voxelize(to_torch(points, device), features, mode=modes, **options)
    gradients = [to_torch(out_gradients[mode], device) for mode in modes]
    (gradient,) = torch.autograd.grad([out[mode] for mode in modes], features, gradients)
    assert gradient.dtype == features.dtype and gradient.device == features.device
    return to_numpy(gradient)


def random_gradients(rng, modes, dtype, batch=(), features=3):
    return {mode: rng.standard_normal((*batch, *GRID["grid_size"], features)).astype(dtype) for mode in modes}


# ---- Gradients ----


@each_float
@pytest.mark.parametrize("modes", [*([mode] for mode in OF_FEATURES), OF_FEATURES], ids=" ".join)
def test_rule_29_gradients_go_to_the_points_of_the_result_and_add_up(rng, device, dtype, modes):
    points, features = random_case(rng, dtype)
    out_gradients = random_gradients(rng, modes, dtype)
    gradient = gradient_of(points, features, modes, out_gradients, device)
    assert_same_bits(gradient, gradient_oracle(points, features, out_gradients))


@pytest.mark.parametrize("mode", ["min", "max"])
def test_rule_29_the_first_of_tied_points_takes_the_gradient(device, mode):
    column = torch.tensor([[3.0], [1.0], [3.0], [1.0], [2.0]], device=device, requires_grad=True)
    out = voxelize(
        torch.full((5, 3), 0.5, device=device), column, mode=mode, grid_min=(0, 0, 0), voxel_size=1, grid_size=(1, 1, 1)
    )
    out.sum().backward()
    assert column.grad.ravel().tolist() == ([0, 1, 0, 0, 0] if mode == "min" else [1, 0, 0, 0, 0])


def test_rule_29_gradients_of_clouds_are_separate(rng, device):
    points = random_points(rng, 4 * 50).reshape(4, 50, 3)
    features = random_values(rng, (4, 50, 3), np.dtype(np.float32))
    modes = ["mean", "max", "last"]
    out_gradients = random_gradients(rng, modes, np.float32, (4,))
    lengths = np.array([50, 0, 7, 31])
    result = gradient_of(points, features, modes, out_gradients, device, lengths=to_torch(lengths, device))
    for b, n in enumerate(lengths):
        cloud_gradients = {mode: gradient[b] for mode, gradient in out_gradients.items()}
        assert_same_bits(result[b, :n], gradient_oracle(points[b, :n], features[b, :n], cloud_gradients))
        assert not result[b, n:].any()
    offsets = np.array([0, 20, 20, 150, 200])
    flat, columns = points.reshape(-1, 3), features.reshape(-1, 3)
    result = gradient_of(flat, columns, modes, out_gradients, device, batch_offsets=to_torch(offsets, device))
    for b in range(4):
        rows = slice(offsets[b], offsets[b + 1])
        cloud_gradients = {mode: gradient[b] for mode, gradient in out_gradients.items()}
        assert_same_bits(result[rows], gradient_oracle(flat[rows], columns[rows], cloud_gradients))


def test_rule_29_columns_of_the_points_get_the_gradient(rng, device):
    points, features = random_case(rng, np.dtype(np.float32))
    out_gradients = random_gradients(rng, ["mean"], np.float32)
    columns = to_torch(np.concatenate([points, features], 1), device).requires_grad_()
    out = voxelize(columns, None, mode="mean")
    (gradient,) = torch.autograd.grad(out, columns, to_torch(out_gradients["mean"], device))
    assert not gradient[:, :3].any()
    assert_same_bits(to_numpy(gradient[:, 3:]), gradient_oracle(points, features, out_gradients))


@pytest.mark.parametrize("mode", OF_FEATURES)
def test_rule_29_gradcheck(rng, device, mode):
    points = to_torch(random_points(rng, 40, special=False), device)
    features = to_torch(rng.permutation(80).reshape(40, 2) / 7, device).requires_grad_()  # distinct values: no ties
    options = {"grid_size": (2, 2, 4), "voxel_size": (0.8, 1.4, 1.0)}
    assert torch.autograd.gradcheck(lambda x: voxelize(points, x, mode=mode, **options), features)


@each_float
def test_rule_29_gradients_have_the_same_bits_on_cpu_and_cuda(rng, cuda, dtype):
    points, features = random_case(rng, dtype, 20_000)
    out_gradients = random_gradients(rng, OF_FEATURES, dtype)
    on_cpu = gradient_of(points, features, OF_FEATURES, out_gradients, "cpu")
    assert_same_bits(gradient_of(points, features, OF_FEATURES, out_gradients, cuda), on_cpu)


def test_points_and_modes_without_a_gradient(rng, device):
    points, features = (to_torch(x, device) for x in random_case(rng, np.dtype(np.float32)))
    assert not voxelize(points.requires_grad_(), features, mode="mean").requires_grad
    assert not voxelize(points, features.to(torch.int32), mode="mean").requires_grad
    features.requires_grad_()
    out, dropped = voxelize(points, features, mode=MODES, return_dropped=True)
    assert [mode for mode in MODES if out[mode].requires_grad] == OF_FEATURES
    assert not dropped.requires_grad
    with torch.no_grad():
        assert not voxelize(points, features, mode="mean").requires_grad


def test_gradients_that_are_refused_or_absent(rng, device):
    points, features = (to_torch(x, device) for x in random_case(rng, np.dtype(np.float64)))
    features.requires_grad_()
    (gradient,) = torch.autograd.grad(
        voxelize(points, features, mode="mean").square().nansum(), features, create_graph=True
    )
    with pytest.raises(robocache.ArgumentError, match="first derivatives"):
        gradient.sum().backward()
    out = torch.empty(*GRID["grid_size"], 3, dtype=torch.float64, device=device)
    with pytest.raises(robocache.ArgumentError, match="out: "):
        voxelize(points, features, mode="mean", out=out)
    with torch.no_grad():
        voxelize(points, features, mode="mean", out=out)
    with pytest.raises(robocache.ArgumentTypeError, match=r"points: .*torch"):
        voxelize(points.cpu().numpy(), features, mode="mean")
    result = voxelize(points, features, mode="max")
    with torch.no_grad():
        features += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


# ---- torch.compile ----


def as_arrays(result):
    out, dropped = result if isinstance(result, tuple) else (result, None)
    arrays = list(out.values()) if isinstance(out, dict) else [out]
    return [to_numpy(x) for x in (arrays if dropped is None else [*arrays, dropped])]


def assert_equal(result, expected):
    for array, expected_array in zip(as_arrays(result), as_arrays(expected), strict=True):
        assert_same_bits(array, expected_array)


@pytest.mark.parametrize("layout", ["one", "stacked", "lengths", "ragged", "columns"])
def test_compiled_calls_give_the_same_bits(rng, device, layout):
    points, features = (to_torch(x, device) for x in random_case(rng, np.dtype(np.float32), 60))
    options = {"mode": MODES, "return_dropped": True}
    if layout in ("stacked", "lengths"):
        points, features = points.view(3, 20, 3), features.view(3, 20, 3)
    if layout == "lengths":
        options["lengths"] = torch.tensor([20, 3, 0], device=device)
    if layout == "ragged":
        options["batch_offsets"] = torch.tensor([0, 7, 60], device=device)
    if layout == "columns":
        points, features = torch.cat([points, features], 1), None
    compiled = torch.compile(voxelize, fullgraph=True, backend="aot_eager")
    assert_equal(compiled(points, features, **options), voxelize(points, features, **options))


@each_float
def test_compiled_options_and_out(rng, device, dtype):
    points, features = (to_torch(x, device) for x in random_case(rng, dtype, 60))
    compiled = torch.compile(voxelize, fullgraph=True, backend="aot_eager")
    for options in ({"mode": "mean", "quantum": 0.5, "fill": float("nan")}, {"mode": ["count", "min"], "fill": -3}):
        assert_equal(compiled(points, features, **options), voxelize(points, features, **options))

    def write(points, features, out):
        return voxelize(points, features, mode="sum", out=out) * 2

    out = torch.empty(*GRID["grid_size"], 3, dtype=features.dtype, device=device)
    result = torch.compile(write, fullgraph=True, backend="aot_eager")(points, features, out)
    assert_equal(out, voxelize(points, features, mode="sum"))
    assert_equal(result, out * 2)


def test_compiled_gradients_give_the_same_bits(rng, device):
    points, features = (to_torch(x, device) for x in random_case(rng, np.dtype(np.float32), 60))
    features.requires_grad_()

    def loss(features):
        out = voxelize(points, features, mode=["count", "mean", "max"])
        return (out["mean"].nan_to_num(0, 0, 0) * 3).sum() + out["max"].nan_to_num(0, 0, 0).sum()

    (expected,) = torch.autograd.grad(loss(features), features)
    (result,) = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(features), features)
    assert_same_bits(to_numpy(result), to_numpy(expected))


def test_one_graph_serves_clouds_of_any_size(rng, device):
    compiled = torch.compile(voxelize, fullgraph=True, dynamic=True, backend="aot_eager")
    for count in (30, 57, 84):
        points, features = (to_torch(x, device) for x in random_case(rng, np.dtype(np.float32), count))
        assert_equal(compiled(points, features, mode="mean"), voxelize(points, features, mode="mean"))
    assert_equal(compiled(points, features, mode="mean"), voxelize(points, features, mode="mean"))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck(rng, device, requires_grad):
    from robocache.ops.voxelize import _voxelize

    from robocache import _torch

    points = to_torch(random_points(rng, 40), device)
    features = to_torch(rng.standard_normal((40, 2)).astype(np.float32), device).requires_grad_(requires_grad)
    operators = torch.ops.robocache
    grid = {"grid_min": (-1.5, 0.25, 3.0), "voxel_size": (0.5, 0.7, 0.5), "grid_size": (3, 4, 7)}
    modes = ["mean", "max", "count", "occupancy"]  # opcheck adds all outputs to the first, in its dtype

    def arguments(features, modes):
        fields = {"points": points, "features": features, "mode": modes, **grid}
        return _torch._spread(_voxelize, _voxelize.call(fields))

    torch.library.opcheck(operators.voxelize_pointcloud.default, (*arguments(features, modes), [True] * 5))
    detached = features.detach()
    results = [True] * 4 + [False]
    out = operators.voxelize_pointcloud.default(*arguments(detached, modes), results)
    torch.library.opcheck(operators.voxelize_pointcloud_out.default, (*arguments(detached, modes), results, out))
    if not requires_grad:
        backward = (
            *arguments(detached, ["mean", "max"]),
            [torch.ones_like(array) for array in out[:2]],
            [out[1]],
            [True],
        )
        torch.library.opcheck(operators.voxelize_pointcloud_backward.default, backward)


# ---- vmap ----


@pytest.mark.parametrize("layout", ["one", "stacked", "lengths"])
def test_vmap_equals_a_loop_over_calls(rng, device, layout):
    points = to_torch(random_points(rng, 5 * 60), device)
    features = to_torch(random_values(rng, (300, 2), np.dtype(np.float32)), device)
    shape = (5, 60) if layout == "one" else (5, 3, 20)
    points, features = points.view(*shape, 3), features.view(*shape, 2)
    lengths = torch.randint(0, 21, (5, 3), device=device) if layout == "lengths" else None

    def call(points, features, lengths=None):
        out, dropped = voxelize(points, features, mode=["mean", "count"], lengths=lengths, return_dropped=True)
        return out["mean"], out["count"], dropped

    inputs = (points, features) if lengths is None else (points, features, lengths)
    expected = [torch.stack(x) for x in zip(*(call(*cloud) for cloud in zip(*inputs, strict=True)), strict=True)]
    for result, array in zip(torch.vmap(call)(*inputs), expected, strict=True):
        assert_same_bits(to_numpy(result), to_numpy(array))
    result = torch.vmap(call, (None, 0))(points[0], features)
    for b in range(5):
        for array, expected_array in zip(result, call(points[0], features[b]), strict=True):
            assert_same_bits(to_numpy(array[b]), to_numpy(expected_array))


def test_gradients_of_every_cloud_by_vmap(rng, device):
    points = to_torch(random_points(rng, 4 * 50, special=False), device).view(4, 50, 3)
    features = to_torch(rng.standard_normal((4, 50, 2)), device)

    def loss(features, points):
        out = voxelize(points, features, mode=["mean", "max"])
        return out["mean"].square().sum() + out["max"].sum()

    result = torch.vmap(torch.func.grad(loss))(features, points)
    for b in range(4):
        assert_same_bits(to_numpy(result[b]), to_numpy(torch.func.grad(loss)(features[b], points[b])))


def test_vmap_of_ragged_clouds_is_refused(rng, device):
    points = to_torch(random_points(rng, 40), device).view(2, 20, 3)
    offsets = torch.tensor([[0, 20], [0, 20]], device=device)
    with pytest.raises(robocache.ArgumentError, match=r"batch_offsets.*vmap"):
        torch.vmap(lambda p, o: voxelize(p, None, mode="count", batch_offsets=o))(points, offsets)
