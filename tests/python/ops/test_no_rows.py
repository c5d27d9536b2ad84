"""Every operation with empty inputs: no batch, samples, targets, streams, points, clouds, features or grid.

The output must still be completely written. So the memory that each allocator hands out next is poisoned before
every call: an unwritten byte shows.
"""

import itertools

import numpy as np
import pytest
from reference import fuse as fuse_oracle
from reference import resample as resample_oracle
from reference import voxelize as voxelize_oracle
from reference import voxelize_sparse as sparse_oracle
from reference.compare import assert_same_bits, to_numpy, to_torch
from reference.voxelize import MODES

import robocache

torch = pytest.importorskip("torch")

GRID = {"grid_min": (0, 0, 0), "voxel_size": 0.5, "grid_size": (3, 2, 4)}
DTYPES = [np.dtype(name) for name in ("float32", "float64", "float16", "int32", "uint8", "bool")]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
CURVES = "pchip", "akima", "cubic", "slerp", "pose"


def poison(device):
    """Fills the memory that the allocators of torch, numpy and the library hand out next with 0xA5."""
    sizes = [1 << k for k in range(3, 17)]
    blocks = [torch.full((size,), 0xA5, dtype=torch.uint8, device=device) for size in sizes for _ in range(8)]
    blocks += [np.full(size, 0xA5, np.uint8) for size in sizes for _ in range(8)]
    del blocks


def forms(device):
    """Returns functions from a NumPy array to the argument of a call: a torch tensor, and on the CPU also the array itself."""

    def as_tensor(array):
        return None if array is None else to_torch(array, device)

    return [as_tensor] if device == "cuda" else [as_tensor, lambda array: array]


def assert_all(result, expected, framework, context):
    for name, array in expected.items():
        if array is None:
            assert result[name] is None, f"{name}, {context}"
            continue
        assert isinstance(result[name], framework), f"{name}, {context}: {type(result[name])}"
        assert_same_bits(to_numpy(result[name]), np.asarray(array), f"{name}, {context}")


# ---- Streams ----


@pytest.mark.parametrize("method", ["linear", "nearest", "previous", "next", *CURVES])
@pytest.mark.parametrize(
    ("batch", "samples", "targets", "features"),
    [(0, 4, 5, 2), (3, 0, 5, 2), (3, 4, 0, 2), (3, 4, 5, 0), (0, 0, 0, 0), (None, 0, 5, 2), (None, 4, 0, 2)],
)
def test_resample(device, method, batch, samples, targets, features):
    rows = () if batch is None else (batch,)
    features = {"slerp": 4, "pose": 7}.get(method, features)
    is_step = method in ("nearest", "previous", "next")
    for dtype, extrapolate in itertools.product(
        [np.float32, np.float64, *([np.int32] if is_step else [])], ["clamp", "nan"]
    ):
        values = np.ones((*rows, samples, features), dtype)
        times, target_times = np.arange(float(samples)), np.arange(float(targets))
        expected = resample_oracle.resample(values, times, target_times, method=method, extrapolate=extrapolate)
        if method in CURVES:  # the oracle gives a curve with its bound
            expected = expected[0].out if hasattr(expected[0], "out") else expected[0], expected[1]
        for form in forms(device):
            poison(device)
            result = robocache.resample_trajectories(
                *map(form, (values, times, target_times)), method=method, extrapolate=extrapolate, return_valid=True
            )
            by_name = dict(zip(("out", "valid"), expected, strict=True))
            framework = type(form(values))
            assert_all(dict(zip(by_name, result, strict=True)), by_name, framework, f"{dtype}, {extrapolate}")


def test_resample_without_a_length(device):
    """Rows of length 0 are written as absent."""
    values, times, target_times = np.ones((3, 4, 2), np.float32), np.arange(4.0), np.arange(5.0)
    lengths = np.zeros(3, np.int64)
    for form in forms(device):
        poison(device)
        arguments = map(form, (values, times, target_times))
        out, valid = robocache.resample_trajectories(*arguments, lengths=form(lengths), return_valid=True)
        assert np.isnan(to_numpy(out)).all() and not to_numpy(valid).any()


@pytest.mark.parametrize("samples", [(0, 4), (4, 0), (0, 0)])
@pytest.mark.parametrize(("batch", "targets", "features"), [(2, 5, 3), (0, 5, 3), (2, 0, 3), (2, 5, 0), (None, 5, 3)])
def test_fuse(device, samples, batch, targets, features):
    rows = () if batch is None else (batch,)
    streams = [(np.ones((*rows, s, features), np.float32), np.arange(float(s))) for s in samples]
    target_times = np.arange(float(targets))
    expected = dict(zip(("out", "valid", "age"), fuse_oracle.fuse(streams, target_times), strict=True))
    for form in forms(device):
        poison(device)
        arguments = [tuple(map(form, stream)) for stream in streams]
        result = robocache.fuse_multimodal(arguments, form(target_times), return_valid=True, return_age=True)
        assert_all(dict(zip(expected, result, strict=True)), expected, type(arguments[0][0]), f"{samples}")


# ---- Points ----

# name: (points, other arguments)
NO_POINTS = {
    "no points": (np.zeros((0, 3), np.float32), {}),
    "no points of float64": (np.zeros((0, 3), np.float64), {}),
    "no clouds": (np.zeros((0, 5, 3), np.float32), {}),
    "clouds of no points": (np.zeros((2, 0, 3), np.float32), {}),
    "lengths of 0": (np.ones((2, 4, 3), np.float32), {"lengths": np.zeros(2, np.int64)}),
    "no ragged clouds": (np.zeros((0, 3), np.float32), {"batch_offsets": np.zeros(1, np.int64)}),
    "ragged clouds of no points": (np.zeros((0, 3), np.float32), {"batch_offsets": np.zeros(3, np.int64)}),
    "points that are nowhere": (np.full((4, 3), np.nan, np.float32), {}),
}
each_points = pytest.mark.parametrize("case", NO_POINTS)


def features_of(points, count, dtype):
    return np.ones((*points.shape[:-1], count), dtype)


@each_points
@each_dtype
@pytest.mark.parametrize("count", [0, 2])
def test_voxelize(device, case, dtype, count):
    points, clouds = NO_POINTS[case]
    features = features_of(points, count, dtype)
    out, dropped = voxelize_oracle.voxelize(points, features, mode=MODES, **GRID, **clouds)
    expected = out | {"dropped": dropped}
    for form in forms(device):
        poison(device)
        arguments = {name: form(array) for name, array in clouds.items()}
        result, result_dropped = robocache.voxelize_pointcloud(
            form(points), form(features), mode=list(MODES), return_dropped=True, **GRID, **arguments
        )
        assert_all(result | {"dropped": result_dropped}, expected, type(form(points)), case)


@pytest.mark.parametrize("grid_size", [(0, 2, 3), (2, 0, 3), (2, 3, 0), (0, 0, 0)])
def test_voxelize_without_a_grid(device, grid_size):
    points, features = np.full((5, 3), 0.25, np.float32), np.ones((5, 2), np.float32)
    options = GRID | {"grid_size": grid_size}
    out, dropped = voxelize_oracle.voxelize(points, features, mode=MODES, **options)
    for form in forms(device):
        poison(device)
        result, result_dropped = robocache.voxelize_pointcloud(
            form(points), form(features), mode=list(MODES), return_dropped=True, **options
        )
        assert_all(result | {"dropped": result_dropped}, out | {"dropped": dropped}, type(form(points)), f"{grid_size}")


@each_points
@each_dtype
@pytest.mark.parametrize("reduce", ["mean", "sum", "min", "max", "first", "last", None])
def test_voxelize_sparse(device, case, dtype, reduce):
    points, clouds = NO_POINTS[case]
    for count, capacity in itertools.product((0, 2), (None, 1, 10)):
        features = features_of(points, count, dtype)
        options = {"voxel_size": 1.0, "reduce": reduce, "capacity": capacity}
        if reduce is None:
            options["max_points_per_voxel"] = 3
        oracle = sparse_oracle.voxelize_sparse(points, features, **options, **clouds)
        expected = {name: getattr(oracle, name) for name in robocache.SparseVoxels._fields}
        expected["num_voxels"] = None if capacity is None else np.array(oracle.num_voxels, np.int64)
        for form in forms(device):
            poison(device)
            arguments = {name: form(array) for name, array in clouds.items()}
            result = robocache.voxelize_sparse(form(points), form(features), **options, **arguments)
            assert_all(result._asdict(), expected, type(form(points)), f"{case}, {options}")


@each_dtype
@pytest.mark.parametrize("method", ["centroid", "first", "random"])
@pytest.mark.parametrize("case", ["no points", "no points of float64", "points that are nowhere"])
def test_voxel_downsample(device, dtype, method, case):
    points, _ = NO_POINTS[case]
    options = {"voxel_size": 1.0, "method": method, "seed": 3 if method == "random" else None}
    for features in (None, features_of(points, 0, dtype), features_of(points, 2, dtype)):
        expected = dict(
            zip(("points", "features"), sparse_oracle.voxel_downsample(points, features, **options)[:2], strict=True)
        )
        for form in forms(device):
            poison(device)
            result = robocache.voxel_downsample(form(points), form(features), **options)
            result = (result, None) if features is None else result
            assert_all(dict(zip(expected, result, strict=True)), expected, type(form(points)), case)


# ---- Distances ----


@pytest.mark.parametrize(
    ("shape", "measured", "camera"),
    [
        ((3, 2, 4), (0, 3), None),
        ((3, 2, 4), (0, 5, 3), None),
        ((3, 2, 4), (2, 0, 3), None),
        ((3, 2, 4), (0, 4), (1.0, 1.0, 0.0, 0.0)),
        ((3, 2, 4), (2, 4, 0), (1.0, 1.0, 0.0, 0.0)),
        ((0, 2, 4), (5, 3), None),
        ((3, 0, 4), (6, 4), (1.0, 1.0, 0.0, 0.0)),
        ((3, 2, 0), (5, 3), None),
    ],
)
def test_integrate_tsdf_leaves_the_grid_as_it_is(rng, device, shape, measured, camera):
    grid, weights = rng.standard_normal((2, *shape)).astype(np.float32)
    points = np.ones(measured, np.float32)
    is_stacked = points.ndim == 3
    pose = np.broadcast_to(np.eye(4), (measured[0], 4, 4)) if is_stacked else np.eye(4)
    for form in forms(device):
        poison(device)
        outputs = form(grid.copy()), form(weights.copy())
        result = robocache.integrate_tsdf(
            *outputs, form(points), pose, camera, grid_min=(0, 0, 0), voxel_size=0.5, truncation=1.0
        )
        assert all(a is b for a, b in zip(result, outputs, strict=True))
        assert_same_bits(to_numpy(outputs[0]), grid, "grid")
        assert_same_bits(to_numpy(outputs[1]), weights, "weights")
