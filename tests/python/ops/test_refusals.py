"""Rules 15 to 17: each operation refuses invalid arguments by name and by a class of error, before it writes."""

import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from reference.compare import poisoned, to_torch

import robocache

torch = pytest.importorskip("torch")

VALUES, TIMES = np.ones((1, 4, 2), np.float32), np.arange(4.0)[None]
POINTS, FEATURES = np.full((5, 3), 0.25, np.float32), np.ones((5, 2), np.float32)
GRID = {"grid_min": (0, 0, 0), "voxel_size": 0.5, "grid_size": (2, 2, 2)}
POSE = np.eye(4)
SPACE = {"grid_min": (0, 0, 0), "voxel_size": 0.5, "truncation": 0.1}
NAN, INF = float("nan"), float("inf")


def resample(values=VALUES, times=TIMES, target_times=TIMES, **options):
    return robocache.resample_trajectories(values, times, target_times, **options)


def fuse(values=VALUES, times=TIMES, target_times=TIMES, **options):
    return robocache.fuse_multimodal([(values, times)], target_times, **options)


def fuse_two(target_times=TIMES, **options):
    """Fuses the streams 'a' and 'b'; `a_values` and the like replace an array, `streams` all of them."""
    arrays = {name: options.pop(name, array) for name, array in TWO_STREAMS.items()}
    streams = {"a": (arrays["a_values"], arrays["a_times"]), "b": (arrays["b_values"], arrays["b_times"])}
    return robocache.fuse_multimodal(options.pop("streams", streams), target_times, **options)


def voxelize(points=POINTS, features=FEATURES, **options):
    return robocache.voxelize_pointcloud(points, features, **GRID | {"mode": "mean"} | options)


def sparse(points=POINTS, features=FEATURES, **options):
    return robocache.voxelize_sparse(points, features, **{"voxel_size": 0.5} | options).features


def downsample(points=POINTS, features=None, **options):
    return robocache.voxel_downsample(points, features, **{"voxel_size": 0.5} | options)


def tsdf(points=POINTS, pose=POSE, intrinsics=None, grid=None, weights=None, **options):
    grid = np.zeros((2, 2, 2), np.float32) if grid is None else grid
    weights = grid * 0 if weights is None else weights
    return robocache.integrate_tsdf(grid, weights, points, pose, intrinsics, **SPACE | options)[0]


TWO_STREAMS = {"a_values": VALUES, "a_times": TIMES, "b_values": VALUES, "b_times": TIMES}
WHOLE_VALUES, WHOLE_TIMES = np.ones((1, 4, 2), np.int32), np.arange(4)[None]
ROWS, CLOCK = np.ones((4, 5, 2), np.float32), np.zeros((4, 5))
WIDE = np.zeros((3, 10))
WIDE_ARRAYS = {"values": WIDE, "times": np.arange(3.0), "target_times": np.arange(3.0)}
TIMES_IN_NS = {"times": WHOLE_TIMES, "target_times": WHOLE_TIMES}
NO_ARRAYS = (None, "abc", 3, object(), [[1.0], [2.0]])
CLOUDS = np.full((2, 5, 3), 0.25, np.float32)
DEPTH, CAMERA = np.ones((24, 32), np.float32), (20.0, 22.0, 15.5, 11.25)
DEPTH_IMAGE = {"points": DEPTH, "intrinsics": CAMERA}

# For each operation: (the argument that the error names, its wrong value). If a case needs further arguments, the value
# is a dict of all of them.
VALUE_ERRORS = {
    resample: [
        *[("method", {"method": name}) for name in ("cubicle", "")],
        *[("extrapolate", {"extrapolate": "hold"})],
        *[("extrapolate", {"method": step, "extrapolate": "linear"}) for step in ("nearest", "previous", "next")],
        *[("tolerance", {"method": method, "tolerance": 1.0}) for method in ("linear", "pchip", "akima", "cubic", "angle")],
        *[("tolerance", {"values": np.zeros((1, 4, n)), "method": m, "tolerance": 1.0}) for m, n in (("slerp", 4), ("pose", 7))],
        *[("tolerance", {"method": "nearest", "tolerance": bad}) for bad in (-1, -1e-9, NAN)],
        *[("tolerance", {**TIMES_IN_NS, "method": "nearest", "tolerance": bad}) for bad in (-1, 0.5)],
        *[("max_gap", {"max_gap": bad}) for bad in (-1, -1e-9, NAN)],
        *[("max_gap", {**TIMES_IN_NS, "max_gap": bad}) for bad in (-1, 0.5)],
        *[("causal", {"method": "next", "causal": True})],
        *[("bc_type", {"method": "cubic", "bc_type": "clamped"}), ("bc_type", {"method": "pchip", "bc_type": "natural"})],
        *[("method", {"values": np.zeros((1, 4, width)), "method": "slerp"}) for width in (3, 8, 0)],
        *[("method", {"values": np.zeros((1, 4, width)), "method": "pose"}) for width in (6, 14)],
        *[("methods", {**WIDE_ARRAYS, "methods": [(slice(0, 3), "slerp")]})],
        *[("methods", {**WIDE_ARRAYS, "methods": [(slice(0, 6), "pose")]})],
        *[("methods", {**WIDE_ARRAYS, "methods": [(slice(0, 3), "pchip"), (slice(2, 5), "akima")]})],
        *[("methods", {**WIDE_ARRAYS, "methods": [(slice(2, 5), "akima"), (slice(0, 3), "akima")]})],
        *[("methods", {**WIDE_ARRAYS, "methods": [(slice(*bounds), "akima")]}) for bounds in ((8, 11), (-11, 3), (3, 3), (5, 2))],
        *[("methods", {**WIDE_ARRAYS, "methods": [(slice(0, 4, 2), "akima")]})],
        *[("methods", {**WIDE_ARRAYS, "methods": [(slice(0, 4), "spline")]})],
        *[("extrapolate", {**WIDE_ARRAYS, "methods": [(slice(0, 2), "nearest")], "extrapolate": "linear"})],
        *[("extrapolate", {**WIDE_ARRAYS, "method": "nearest", "methods": [(slice(0, 2), "pchip")], "extrapolate": "linear"})],
        *[("tolerance", {**WIDE_ARRAYS, "method": "nearest", "methods": [(slice(0, 2), "pchip")], "tolerance": 1.0})],
        *[("tolerance", {**WIDE_ARRAYS, "method": "previous", "methods": [(slice(0, 2), "nearest")], "tolerance": 1.0})],
        *[("causal", {**WIDE_ARRAYS, "methods": [(slice(0, 2), "next")], "causal": True})],
        *[("values", {"values": np.ones(shape)}) for shape in ((5,), (), (1, 4, 5, 2))],
        *[("times", {"values": ROWS, "times": np.zeros(s)}) for s in ((4, 6), (3, 5), (6,), (), (4, 5, 1), (1, 5))],
        *[("target_times", {"target_times": np.zeros(shape)}) for shape in ((3, 6), (), (4, 6, 1))],
        *[("target_times", {"values": ROWS, "times": CLOCK, "target_times": np.zeros((1, 6))})],
        *[("times", {"values": VALUES[0]}), ("target_times", {"values": VALUES[0], "times": TIMES[0]})],
        *[("lengths", {"lengths": np.ones(shape, np.int64)}) for shape in ((3,), (1, 1))],
        *[("target_lengths", {"target_lengths": np.ones(3, np.int64)})],
        *[("out", {"out": np.ones(s, np.float32)}) for s in ((1, 4, 3), (1, 3, 2), (4, 2), (1, 1, 4, 2))],
    ],
    fuse: [
        ("streams[0].method", {"method": "cubicle"}),
        ("method", {"method": ["linear", "linear"]}),
        ("max_gap", {"max_gap": (1, 2)}),
        ("scale", {"scale": {"a": 2.0}}),
        ("output", {"output": "tuple"}),
        ("target_times", {"target_times": np.zeros(())}),
        ("streams[0].max_gap", {"max_gap": [-1.0]}),
        *[("methods", {"methods": bad}) for bad in (3, "pose", {"hand": "slerp"})],
    ],
    fuse_two: [
        ("streams['b'].method", {"method": {"b": "cubicle"}}),
        ("streams['a'].extrapolate", {"extrapolate": {"a": "hold"}}),
        ("method", {"method": {"c": "linear"}}),
        ("method", {"method": ["linear", "linear"]}),
        ("streams['a'].tolerance", {"tolerance": 1.0}),
        ("streams['b'].causal", {"method": {"b": "next"}, "causal": True}),
        ("streams['b'].extrapolate", {"method": {"b": "next"}, "extrapolate": "linear"}),
        ("streams['b'].methods", {"methods": {"b": [(slice(0, 2), "next"), (slice(1, 2), "nearest")]}}),
        ("streams['b'].methods", {"methods": {"b": [(slice(0, 2), "cubicle")]}}),
        *[(f"streams['b'].{name}", {"method": "previous", name: {"b": bad}})
          for name in ("max_gap", "tolerance", "offset") for bad in (-1, -1e-9, NAN)],
        *[(f"streams['b'].{name}", {"b_times": WHOLE_TIMES, "method": "previous", name: {"b": bad}})
          for name in ("max_gap", "tolerance", "offset") for bad in (-1, 0.5)],
        *[(f"streams['b'].{name}", {name: {"b": bad}}) for name in ("scale", "shift")
          for bad in (np.ones(1, np.float32), np.ones((1, 2), np.float32))],
        *[("streams['b'].lengths", {"lengths": {"b": np.ones(s, np.int64)}}) for s in ((2,), (1, 1))],
        *[("target_lengths", {"target_lengths": np.ones(s, np.int64)}) for s in ((2,), (1, 1))],
        *[("streams['b'].values", {"b_values": np.ones(s, np.float32), "b_times": TIMES[0]}) for s in ((4, 2), (2, 4, 2), (1, 4, 2, 2))],
        ("streams['a'].values", {"a_values": np.ones(4, np.float32)}),
        *[("streams['b'].times", {"b_times": np.zeros(s)}) for s in ((1, 6), (2, 4), (1, 4, 1))],
        *[("target_times", {"target_times": np.zeros(s)}) for s in ((2, 6), ())],
        *[("out", {"out": np.ones(s, np.float32)}) for s in ((1, 4, 3), (4, 4))],
        ("out", {"output": "dict", "out": {"a": VALUES.copy(), "c": VALUES.copy()}}),
        ("out", {"output": "dict", "out": [VALUES.copy(), VALUES.copy()]}),
        ("streams['b'].out", {"output": "dict", "out": {"a": VALUES.copy(), "b": np.ones((1, 4, 3), np.float32)}}),
    ],
    voxelize: [
        *[("grid_size", {"grid_size": bad}) for bad in ((3, -1, 5), (2**40, 2**40, 5), (3, 5))],
        *[("voxel_size", {"voxel_size": bad}) for bad in (0, -0.1, NAN, (0.1, INF, 0.1), 1e-50, (0.1, 0.2))],
        *[("grid_min", {"grid_min": bad}) for bad in ((0, NAN, 0), (0, 1e300, 0), (0, 0))],
        *[("mode", {"mode": bad}) for bad in ("median", ["count", "count"], [])],
        ("features", {"features": None}),
        *[("features", {"features": np.ones(shape)}) for shape in ((6, 1), (5,))],
        *[("points", {"points": np.zeros(shape, np.float32)}) for shape in ((3,), (5, 2))],
        ("lengths", {"lengths": np.array([5])}),
        ("lengths", {"points": CLOUDS, "features": None, "mode": "count", "lengths": np.array([4])}),
        ("batch_offsets", {"points": CLOUDS, "features": None, "mode": "count", "batch_offsets": np.array([0, 5])}),
        *[("batch_offsets", {"batch_offsets": np.array(bad)}) for bad in ([[0, 5]], [0])],
        *[("fill", {"features": FEATURES.astype(dtype), "mode": "max", "fill": bad})
          for dtype, bad in (("int8", 128), ("uint8", -1), ("int32", 0.5), ("int64", NAN), ("bool", 2))],
        ("fill", {"mode": ["count", "sum"], "fill": -1.5}),
        *[("quantum", {"mode": "sum", "quantum": bad}) for bad in (0.0, -1.0, 0.3, 3.0, NAN, INF)],
        *[("quantum", {"mode": mode, "quantum": 0.5}) for mode in ("count", "max")],
        ("quantum", {"features": FEATURES.astype(np.int32), "quantum": 0.5}),
        ("out", {"mode": "count", "out": np.empty((2, 2, 3), np.int32)}),
        *[("out", {"mode": ["count", "occupancy"], "out": bad})
          for bad in (np.empty((2, 2, 2), np.int32), {"count": np.empty((2, 2, 2), np.int32)})],
    ],
    sparse: [
        *[("points", {"points": POINTS[0]}), ("points", {"points": POINTS[:, :2]})],
        *[("voxel_size", {"voxel_size": bad}) for bad in (0.0, -1, NAN, 1e-50, (1, 2))],
        *[("point_range", {"point_range": (0, 0, 0, 1, 1)})],
        *[("point_range", {"point_range": (0, 0, 0, 1, 1, bad)}) for bad in (-1, INF)],
        *[("point_range", {"point_range": bad}) for bad in ((0, 0, 0, 1e12, 1, 1), (1e39, 0, 0, 1e39, 1, 1))],
        *[("max_voxels", {"max_voxels": 0}), ("max_points_per_voxel", {"max_points_per_voxel": -1})],
        *[("capacity", {"capacity": 0}), ("max_points_per_voxel", {"capacity": 8, "reduce": None})],
        *[("reduce", {"reduce": "median"}), ("order", {"order": "hilbert"}), ("coord_order", {"coord_order": "yxz"})],
        *[("features", {"features": np.zeros(shape, np.float32)}) for shape in ((3, 2), (5,))],
        *[("lengths", {"lengths": np.zeros(1, np.int64)})],
    ],
    downsample: [
        ("points", {"points": CLOUDS}),
        ("voxel_size", {"voxel_size": 0}),
        *[("origin", {"origin": bad}) for bad in (INF, 1e39, (0, 0))],
        ("method", {"method": "median"}),
        *[("seed", {"method": "random"}), ("seed", {"seed": 3}), ("seed", {"method": "random", "seed": 2**63})],
        ("features", {"features": np.zeros((3, 1))}),
    ],
    tsdf: [
        *[("points", {"points": np.ones(shape)}) for shape in ((5, 4), (3,))],
        *[("depth", {"points": DEPTH[0], "intrinsics": CAMERA}), ("points", {"points": DEPTH})],
        *[("depth_scale", {"points": DEPTH.astype(np.uint16), "intrinsics": CAMERA}), ("depth_scale", {"depth_scale": 0.1})],
        *[("depth_scale", {**DEPTH_IMAGE, "depth_scale": bad}) for bad in (0.0, NAN)],
        *[("truncation", {"truncation": bad}) for bad in (0.0, -0.1, INF, 1e-39, 1e39)],
        *[("voxel_size", {"voxel_size": bad}) for bad in (0, (0.1, -0.1, 0.1), (0.1, 0.1))],
        *[("grid_min", {"grid_min": (0, NAN, 0)}), ("max_weight", {"max_weight": 0.0}), ("max_weight", {"max_weight": NAN})],
        *[("grid", {"grid": np.ones((4, 4), np.float32)}), ("weights", {"weights": np.ones((2, 2, 3), np.float32)})],
        *[("T_world_sensor", {"pose": bad}) for bad in (np.eye(3), np.stack([POSE] * 2), np.full((4, 4), np.nan))],
        *[("T_world_sensor", {"points": CLOUDS})],
        # A scale, a shear, a mirror, a projection, a transposed pose.
        *[("T_world_sensor", {"pose": np.diag(bad)}) for bad in ([2.0, 2, 2, 1], [1.0, 1, -1, 1])],
        *[("T_world_sensor", {"pose": POSE + np.eye(4, k=1) * [0, 0.1, 0, 0]})],
        *[("T_world_sensor", {"pose": POSE + np.eye(4, k=-3) * bad}) for bad in (1, 0.1)],
        *[("intrinsics", {"points": DEPTH, "intrinsics": bad})
          for bad in ((1, 2, 3), [CAMERA] * 2, (0, 1, 0, 0), (1, 1, NAN, 0), [[1, 0.1, 0], [0, 1, 0], [0, 0, 1]])],
    ],
}  # fmt: skip

TYPE_ERRORS = {
    resample: [
        *[(name, {name: bad}) for name in ("values", "times", "target_times") for bad in NO_ARRAYS],
        *[(name, {name: bad}) for name in ("method", "extrapolate") for bad in (3, None, b"linear")],
        *[("max_gap", {"max_gap": bad}) for bad in ("1", [1.0], 1j, True, 2**64, Decimal("0.1"), np.ones(2))],
        *[("tolerance", {"method": "nearest", "tolerance": bad}) for bad in ("1", [1.0], 1j, Decimal("0.1"))],
        *[("causal", {"causal": bad}) for bad in ("yes", 1)],
        *[("return_valid", {"return_valid": "no"})],
        *[("values", {"values": VALUES.astype(dtype)}) for dtype in ("int8", "int64", "uint8", "bool", "complex64")],
        *[("values", {"values": WHOLE_VALUES, "method": method}) for method in ("pchip", "akima", "cubic", "angle")],
        *[("values", {"values": np.zeros((1, 4, n), np.int64), "method": m}) for m, n in (("slerp", 4), ("pose", 7))],
        *[("values", {"values": np.zeros((1, 4, 2), dtype), "method": "previous"}) for dtype in ("O", "U1", "M8[ns]", "i4,f4")],
        *[("times", {"times": TIMES.astype(dtype)}) for dtype in ("float16", "int32", "uint64", "bool")],
        *[("target_times", {"target_times": TIMES.astype(np.float32)})],
        *[("methods", {**WIDE_ARRAYS, "methods": bad})
          for bad in ([(3, "akima")], ["akima"], [(slice(0, 2), "akima", 1)], [(slice(0, 2), 1)], [(slice(0.5, 2), "akima")])],
        *[("methods", {"methods": bad}) for bad in (3, "pose", {"hand": "slerp"})],
        *[("lengths", {"lengths": np.ones(1, dtype)}) for dtype in ("float32", "bool")],
        *[("target_lengths", {"target_lengths": np.zeros(1)})],
        *[("out", {"out": np.ones((1, 4, 2), dtype)}) for dtype in ("float64", "int32")],
    ],
    fuse: [
        *[("streams[0].values", {"values": bad}) for bad in NO_ARRAYS],
        *[("streams[0].times", {"times": bad}) for bad in NO_ARRAYS],
        *[("target_times", {"target_times": bad}) for bad in NO_ARRAYS],
        *[("streams[0].method", {"method": None}), ("streams[0].max_gap", {"max_gap": "0.1"})],
        *[("methods", {"methods": [(3, "nearest")]}), ("streams[0].causal", {"causal": ["yes"]})],
        *[("return_valid", {"return_valid": "no"}), ("return_age", {"return_age": 1}), ("return_age", {"return_age": None})],
    ],
    fuse_two: [
        *[("streams['b'].times", {"b_times": TIMES.astype(t)}) for t in ("float16", "int32", "uint64", "bool")],
        *[("target_times", {"target_times": TIMES.astype(dtype)}) for dtype in ("float16", "int32", "uint64", "bool")],
        *[(f"streams['b'].{name}", {"method": "previous", name: {"b": "1"}}) for name in ("max_gap", "tolerance", "offset")],
        *[(f"streams['b'].{name}", {name: {"b": bad}}) for name in ("scale", "shift")
          for bad in (np.ones(2), np.ones(2, np.float16), "2", True)],
        ("target_lengths", {"target_lengths": np.ones(1)}),
        *[("streams", {"streams": VALUES}), ("streams[0]", {"streams": [VALUES, TIMES]}), ("streams['a']", {"streams": {"a": TIMES}})],
        *[("out", {"out": np.ones((1, 4, 4), dtype)}) for dtype in ("float64", "int32")],
        ("out", {"out": np.ones((1, 4, 4), np.float32), "dtype": "float16"}),
        ("out", {"output": "dict", "out": {"a": VALUES.copy()}}),
        ("streams['b'].out", {"output": "dict", "out": {"a": VALUES.copy(), "b": np.ones((1, 4, 2), np.float16)}}),
    ],
    voxelize: [
        *[("points", {"points": POINTS.astype(dtype)}) for dtype in ("float16", "int32")],
        *[("features", {"features": FEATURES.astype(dtype)}) for dtype in ("uint64", "complex64")],
        *[("lengths", {"points": CLOUDS, "features": None, "mode": "count", "lengths": np.array([4.0, 4.0])})],
        *[("batch_offsets", {"batch_offsets": np.array([0.0, 5])})],
        *[("mode", {"mode": bad}) for bad in (3, ["count", None])],
        *[("fill", {"fill": bad}) for bad in ("0", True)],
        *[("grid_size", {"grid_size": (2, 2, bad)}) for bad in (0.5, True)],
        *[("grid_min", {"grid_min": bad}) for bad in (np.array(1.5), 1.5)],
        *[("voxel_size", {"voxel_size": bad}) for bad in ("0.1", None)],
        *[("return_dropped", {"return_dropped": 1})],
        *[("out", {"mode": "count", "out": np.empty((2, 2, 2), np.int64)})],
    ],
    sparse: [
        *[("points", {"points": POINTS.astype(np.float16)}), ("points", {"points": [[0, 0, 0]]})],
        *[("voxel_size", {"voxel_size": object()}), ("reduce", {"reduce": 3}), ("order", {"order": None})],
        *[("max_voxels", {"max_voxels": bad}) for bad in (2.5, True, "3")],
        *[("capacity", {"capacity": np.True_}), ("batch_offsets", {"batch_offsets": np.array([0.0, 5.0])})],
    ],
    downsample: [
        ("points", {"points": POINTS.astype(np.int32)}),
        *[("seed", {"method": "random", "seed": bad}) for bad in (0.5, True)],
    ],
    tsdf: [
        *[("points", {"points": POINTS.astype(np.float16)}), ("points", {"points": [[0, 0, 1]]})],
        *[("depth", {**DEPTH_IMAGE, "points": DEPTH.astype(dtype)}) for dtype in ("float64", "int32")],
        *[("truncation", {"truncation": "0.1"}), ("space_carving", {"space_carving": 1}), ("grid_min", {"grid_min": "abc"})],
        *[("grid_min", {"grid_min": 0.0}), ("T_world_sensor", {"pose": "home"})],
        *[("grid", {"grid": np.ones((2, 2, 2))}), ("weights", {"weights": np.ones((2, 2, 2), np.float16)})],
    ],
}  # fmt: skip


def cases(table, error):
    return [
        pytest.param(call, argument, arguments, error, id=f"{call.__name__}-{argument}-{number}")
        for call, refused in table.items()
        for number, (argument, arguments) in enumerate(refused)
    ]


def to_device(device, value):
    """Moves arrays to torch on the device, except for dtypes that torch lacks; other values stay."""
    if isinstance(value, dict):
        return {name: to_device(device, value) for name, value in value.items()}
    if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "biufc":
        return to_torch(value, device)
    return value


@pytest.mark.parametrize(
    ("call", "argument", "arguments", "error"),
    cases(VALUE_ERRORS, robocache.ArgumentError) + cases(TYPE_ERRORS, robocache.ArgumentTypeError),
)
def test_rule_17_invalid_arguments_are_refused_by_name(device, call, argument, arguments, error):
    arrays = {
        resample: {"values": VALUES, "times": TIMES, "target_times": TIMES},
        fuse: {"values": VALUES, "times": TIMES, "target_times": TIMES},
        fuse_two: {**TWO_STREAMS, "target_times": TIMES},
        tsdf: {"points": POINTS, "grid": np.zeros((2, 2, 2), np.float32)},
    }.get(call, {"points": POINTS, "features": FEATURES})
    host = {"pose": arguments["pose"]} if "pose" in arguments else {}  # the values of a pose on a device are not read
    arguments = to_device(device, arrays | arguments) | host
    outputs = {"out", "grid"} & arguments.keys()
    before = {name: arguments[name].clone() for name in outputs if isinstance(arguments[name], torch.Tensor)}
    with pytest.raises(error) as caught:
        call(**arguments)
    assert str(caught.value).startswith(f"{argument}:")
    for name, array in before.items():
        assert torch.equal(arguments[name], array)


def test_rule_17_the_error_classes():
    assert issubclass(robocache.ArgumentError, (robocache.Error, ValueError))
    assert issubclass(robocache.ArgumentTypeError, (robocache.Error, TypeError))


def test_rule_17_a_message_has_the_expected_and_the_actual_value():
    for options, parts in (
        ({"method": "cubicle"}, ["cubicle", "linear", "nearest", "previous", "next"]),
        ({"max_gap": np.ones(2)}, ["a number", "an array [2]"]),
        ({"values": VALUES.astype(np.int32)}, ["float32", "int32", "nearest"]),
        ({"times": np.zeros((1, 6))}, ["4 samples", "6"]),
    ):
        with pytest.raises(robocache.Error) as caught:
            resample(**options)
        for part in parts:
            assert part in str(caught.value)


def test_rule_17_options_are_keywords():
    with pytest.raises(TypeError):
        robocache.resample_trajectories(VALUES, TIMES, TIMES, "linear")
    with pytest.raises(TypeError):
        resample(methd="linear")
    with pytest.raises(TypeError):
        voxelize(determinism="gpu_to_gpu")
    with pytest.raises(TypeError):
        robocache.integrate_tsdf(POINTS, POINTS, POINTS, POSE, None, (0, 0, 0))


def test_rule_17_the_call_after_an_error_works(device):
    arrays = to_device(device, {"values": VALUES, "times": TIMES, "target_times": TIMES})
    for _ in range(3):
        with pytest.raises(robocache.ArgumentError):
            resample(**arrays, method="cubicle")
        assert torch.equal(resample(**arrays), arrays["values"])


def test_rule_17_a_refused_last_stream_writes_nothing(device):
    stream = tuple(to_torch(x, device) for x in (VALUES, TIMES))
    out = poisoned((1, 4, 4), torch.float32, device)
    before = out.clone()
    with pytest.raises(robocache.ArgumentError):
        robocache.fuse_multimodal([stream, stream], stream[1], out=out, max_gap=[1.0, -1.0])
    assert torch.equal(out.view(torch.int32), before.view(torch.int32))


@pytest.mark.parametrize("length", [-1, 5, 2**40])
def test_rule_15_lengths_beyond_the_rows_are_refused_on_the_cpu(length):
    length = np.array([length])
    clouds = {"points": CLOUDS[:1], "features": None, "mode": "count"}
    for call, argument, arguments in (
        (resample, "lengths", {"lengths": length}),
        (resample, "target_lengths", {"target_lengths": length}),
        (fuse_two, "streams['b'].lengths", {"lengths": {"b": length}}),
        (fuse_two, "target_lengths", {"target_lengths": length}),
        (voxelize, "lengths", clouds | {"lengths": length + (length > 0)}),
    ):
        with pytest.raises(robocache.ArgumentError) as caught:
            call(**arguments)
        assert str(caught.value).startswith(f"{argument}:")
    for offsets in ([1, 5], [0, 4], [0, 6], [0, 3, 2, 5], [-1, 5], [1], []):
        for call in (voxelize, sparse):
            with pytest.raises(robocache.ArgumentError, match=r"^batch_offsets"):
                call(batch_offsets=np.array(offsets, np.int64))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        *((resample, name) for name in ("method", "extrapolate", "bc_type")),
        *((fuse, name) for name in ("method", "extrapolate", "bc_type", "dtype")),
        (voxelize, "mode"),
        *((sparse, name) for name in ("reduce", "order", "coord_order")),
        (downsample, "method"),
    ],
)
def test_rule_17_every_name_that_an_error_lists_is_accepted(call, name):
    with pytest.raises(robocache.ArgumentError, match=f"{name}: expected .*, got 'nothing'") as refused:
        call(**{name: "nothing"})
    alternatives = re.split(r", | or ", re.search("expected (one of )?(.*), got", str(refused.value))[2])
    assert len(alternatives) > 1
    for value in (text.strip("'") for text in alternatives):
        try:
            call(**{name: value})
        except robocache.Error as error:  # for example a rotation of two features
            assert not re.search(rf"{name}: expected .*, got '{value}", str(error)), error


# ---- Rule 16: the memory of outputs ----


def fuse_second(values, times, target_times, scale=None, shift=None, lengths=None, first_device=None, **options):
    """Fuses the given stream as the second one; the first is on a device."""
    device = first_device or target_times.device
    first = torch.zeros(1, 4, 1, device=device), torch.arange(4.0, device=device)
    stream_options = ("scale", scale), ("shift", shift), ("lengths", lengths)
    second_options = {name: {"b": x} for name, x in stream_options if x is not None}
    return robocache.fuse_multimodal({"a": first, "b": (values, times)}, target_times, **second_options, **options)


SHAPES = {
    resample: {"values": (1, 4, 2), "times": (4,), "target_times": (4,), "out": (1, 4, 2)},
    fuse_second: {
        "values": (1, 4, 2), "times": (4,), "target_times": (4,), "scale": (2,), "shift": (2,), "out": (1, 4, 3)
    },
    voxelize: {"points": (6, 3), "features": (6, 2), "out": (2, 2, 2, 2)},
}  # fmt: skip


@pytest.mark.parametrize(
    ("call", "name"), [(call, name) for call, shapes in SHAPES.items() for name in shapes if name != "out"]
)
def test_rule_16_out_may_not_overlap_inputs(device, call, name):
    storage = torch.zeros(4096, device=device)
    pieces = {
        part: storage[100 * i :][: np.prod(shape)].view(shape) for i, (part, shape) in enumerate(SHAPES[call].items())
    }
    begin, size = pieces["out"].storage_offset(), pieces["out"].numel()
    length = pieces[name].numel()
    for offset in (begin - length, begin + size):
        call(**pieces | {name: storage[offset : offset + length].view(SHAPES[call][name])})
    for offset in (begin - length + 1, begin, begin + size - 1):
        with pytest.raises(robocache.ArgumentError, match=rf"^out: overlaps .*\b{name}\b"):
            call(**pieces | {name: storage[offset : offset + length].view(SHAPES[call][name])})


def test_rule_16_outs_may_not_overlap_themselves_or_each_other(device):
    arrays = to_device(device, {"values": VALUES, "times": TIMES})
    clouds = to_device(device, {"points": POINTS, "features": np.ones((5, 1), np.int32)})
    out, memory = torch.zeros(1, 4, 2, device=device), torch.empty(12, dtype=torch.int32, device=device)
    outs = {"min": memory[:8].view(2, 2, 2, 1), "max": memory[4:].view(2, 2, 2, 1)}
    gaps = torch.empty(2, 2, 4, dtype=torch.int32, device=device)[..., :2]
    two_streams = {"streams": {name: tuple(arrays.values()) for name in "ab"}, "target_times": arrays["times"]}
    for match, call, arguments in (
        ("^out: ", resample, {**arrays, "target_times": arrays["times"], "out": out[:, :1].expand(1, 4, 2)}),
        ("^out: ", fuse_two, {**two_streams, "out": torch.zeros(1, 4, 1, device=device).expand(1, 4, 4)}),
        (r"^streams\['b'\].out: ", fuse_two, {**two_streams, "output": "dict", "out": {"a": out, "b": out}}),
        ("^out: ", voxelize, {**clouds, "mode": "count", "out": gaps}),
        (r"out\['max'\].*out\['min'\]", voxelize, {**clouds, "mode": ["min", "max"], "out": outs}),
    ):
        with pytest.raises(robocache.ArgumentError, match=match):
            call(**arguments)


def test_rule_16_out_must_be_writable():
    out = VALUES.copy()
    out.flags.writeable = False
    for call, arguments in (
        (resample, {"out": out}),
        (fuse_two, {"output": "dict", "out": {"a": VALUES.copy(), "b": out}}),
    ):
        with pytest.raises(robocache.ArgumentError, match=r"\bout\b.*read-only"):
            call(**arguments)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        *((resample, name) for name in ("times", "target_times", "lengths", "out")),
        *(
            (fuse_second, name)
            for name in ("values", "times", "target_times", "scale", "lengths", "target_lengths", "out")
        ),
        *((voxelize, name) for name in ("features", "out")),
        *((tsdf, name) for name in ("points", "grid", "weights")),
    ],
)
def test_rule_16_all_arrays_must_be_on_one_device(cuda, call, argument):
    shapes = SHAPES | {tsdf: {"points": (6, 3), "grid": (2, 2, 2), "weights": (2, 2, 2)}}
    arrays = {name: torch.zeros(shape, device=cuda) for name, shape in shapes[call].items()}
    if call in (resample, fuse_second):
        arrays |= {name: torch.tensor([4], device=cuda) for name in ("lengths", "target_lengths")}
    arrays[argument] = arrays[argument].cpu()
    if call is fuse_second:
        arrays["first_device"] = cuda
    with pytest.raises(robocache.ArgumentError, match=rf"(?s)(?=.*\b{argument}\b)(?=.*cpu)(?=.*cuda)"):
        call(**arrays)


# ---- Invalid text ----


@pytest.mark.parametrize(
    ("call", "options", "name"),
    [
        (resample, {"method": "lin\ud800"}, "method"),
        (resample, {"extrapolate": "\udcff"}, "extrapolate"),
        (resample, {"bc_type": "\udcff"}, "bc_type"),
        (resample, {"methods": [(slice(0, 1), "\udcff")]}, "methods"),
        (fuse, {"method": "\udcff"}, "method"),
        (fuse, {"dtype": "\udcff"}, "dtype"),
        (fuse, {"method": ["\udcff"]}, "method"),
        (voxelize, {"mode": "\udcff"}, "mode"),
        (voxelize, {"mode": ["count", "\udcff"]}, "mode"),
        (sparse, {"reduce": "\udcff"}, "reduce"),
        (sparse, {"order": "\udcff"}, "order"),
        (sparse, {"coord_order": "\udcff"}, "coord_order"),
        (downsample, {"method": "\udcff"}, "method"),
    ],
)
def test_rule_17_lone_surrogates_are_refused_by_name(call, options, name):
    with pytest.raises(robocache.ArgumentError, match=f"^{name}.*: expected UTF-8, got "):
        call(**options)


def test_rule_17_a_streams_name_must_be_text():
    with pytest.raises(robocache.ArgumentError, match=r"streams: expected UTF-8, got 'imu.*udc80'"):
        robocache.fuse_multimodal({"imu\udc80": (VALUES, TIMES)}, TIMES)


# ---- Masks ----


def add_mask(array):
    array = np.asarray(array)
    return np.ma.masked_array(array, np.zeros(array.shape, bool))


@pytest.mark.parametrize(
    ("call", "argument", "array"),
    [
        (resample, "values", VALUES),
        (resample, "times", TIMES),
        (resample, "target_times", TIMES),
        (resample, "lengths", np.array([4])),
        (resample, "out", VALUES.copy()),
        (fuse, "values", VALUES),
        (fuse, "scale", np.ones(2, np.float32)),
        (voxelize, "points", POINTS),
        (voxelize, "features", FEATURES),
        (sparse, "points", POINTS),
        (sparse, "features", FEATURES),
        (downsample, "points", POINTS),
        (tsdf, "points", POINTS),
        (tsdf, "pose", np.eye(4)),
        (tsdf, "grid", np.zeros((2, 2, 2), np.float32)),
    ],
)
def test_rule_15_a_masked_array_is_refused(call, argument, array):
    name = {"pose": "T_world_sensor"}.get(argument, argument)
    with pytest.raises(robocache.ArgumentTypeError, match=f"{name}: .*expected an array without a mask"):
        call(**{argument: add_mask(array)})


def test_an_array_that_refuses_its_own_export_is_named():
    with pytest.raises(robocache.ArgumentTypeError, match=r"^values: .*nulls"):
        resample(values=pa.array([1.0, None, 3.0]))
    with pytest.raises(robocache.ArgumentTypeError, match=r"^points: .*nulls"):
        voxelize(points=pa.array([1.0, None, 3.0]))


# ---- Forward mode ----

CALLS = {
    "resample": lambda x: resample(x, *times_like(x)),
    "times": lambda x: resample(torch.ones(4, 2, dtype=x.dtype, device=x.device), x[:, 0], x[:, 0].detach()),
    "out": lambda x: resample(x, *times_like(x), out=torch.empty(4, 2, dtype=x.dtype, device=x.device)),
    "fuse": lambda x: fuse(x, *times_like(x)),
    "voxelize": lambda x: voxelize(to_torch(POINTS[:4], x.device), x),
    "sparse": lambda x: sparse(to_torch(POINTS[:4], x.device), x),
    "downsample": lambda x: downsample(to_torch(POINTS[:4], x.device), x)[1],
    "tsdf": lambda x: tsdf(torch.cat([x, x], 1)[:, :3], grid=torch.zeros(2, 2, 2, device=x.device)),
}


def times_like(x):
    return (torch.arange(4.0, dtype=x.dtype, device=x.device),) * 2


FORWARD_MODES = ["dual numbers", "jvp", "jacfwd", "vmap of jvp", "jvp of vmap", "hessian"]
WITHOUT_VMAP = ("sparse", "downsample", "out", "tsdf")  # these have no jvp of vmap, and no hessian


@pytest.mark.parametrize(
    ("operation", "mode"),
    [(op, mode) for op in CALLS for mode in FORWARD_MODES if op not in WITHOUT_VMAP or mode not in FORWARD_MODES[-2:]],
)
def test_rule_19_forward_mode_is_refused(device, operation, mode):
    call = CALLS[operation]
    x = torch.arange(8.0, device=device).reshape(4, 2)
    with pytest.raises(robocache.ArgumentError, match="forward-mode"):
        if mode == "dual numbers":
            with torch.autograd.forward_ad.dual_level():
                call(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
        elif mode == "jvp":
            torch.func.jvp(call, (x,), (x,))
        elif mode == "jacfwd":
            torch.func.jacfwd(call)(x)
        elif mode == "vmap of jvp":
            torch.vmap(lambda y: torch.func.jvp(call, (y,), (y,))[1])(x[None])
        elif mode == "jvp of vmap":
            torch.func.jvp(lambda y: torch.vmap(call)(y[None]), (x,), (x,))
        else:
            torch.func.hessian(lambda y: (call(y) ** 2).sum())(x)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("operation", ["resample", "fuse", "voxelize", "sparse", "downsample"])
@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap"])
def test_rule_18_a_call_on_constants_within_a_transform(device, operation, transform, requires_grad):
    constant = torch.arange(8.0, device=device).reshape(4, 2).requires_grad_(requires_grad)
    expected = CALLS[operation](constant).detach()
    x = torch.ones(3, device=device)

    def loss(y):
        return y.sum() + CALLS[operation](constant).sum()

    if transform == "grad":
        assert torch.equal(torch.func.grad(loss)(x), torch.ones_like(x))
    elif transform == "jvp":
        out, tangent = torch.func.jvp(loss, (x,), (x,))
        assert torch.equal(out.detach(), expected.sum() + 3) and tangent == 3
    else:
        assert torch.equal(torch.vmap(loss)(x).detach(), expected.sum() + x)
