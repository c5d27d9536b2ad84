"""Rule 17 in all operations: what a refusal says of what came; and which arguments it is that each refuses."""

import re
from decimal import Decimal

import numpy as np
import pytest
from reference.compare import to_torch

import robocache

torch = pytest.importorskip("torch")

VALUES, TIMES = np.ones((1, 4, 2), np.float32), np.arange(4.0)[None]
POINTS, FEATURES = np.full((5, 3), 0.25, np.float32), np.ones((5, 2), np.float32)
GRID = {"grid_min": (0, 0, 0), "voxel_size": 0.5, "grid_size": (2, 2, 2)}
POSE = np.eye(4)
SPACE = {"grid_min": (0, 0, 0), "voxel_size": 0.5, "truncation": 0.1}


def resample(values=VALUES, times=TIMES, target_times=TIMES, **options):
    return robocache.resample_trajectories(values, times, target_times, **options)


def fuse(values=VALUES, times=TIMES, target_times=TIMES, **options):
    return robocache.fuse_multimodal([(values, times)], target_times, **options)


def voxelize(points=POINTS, features=FEATURES, **options):
    return robocache.voxelize_pointcloud(points, features, **GRID | {"mode": "mean"} | options)


def sparse(points=POINTS, features=FEATURES, **options):
    return robocache.voxelize_sparse(points, features, **{"voxel_size": 0.5} | options).features


def downsample(points=POINTS, features=None, **options):
    return robocache.voxel_downsample(points, features, **{"voxel_size": 0.5} | options)


def tsdf(points=POINTS, pose=POSE, grid=None, **options):
    grid = np.zeros((2, 2, 2), np.float32) if grid is None else grid
    return robocache.integrate_tsdf(grid, grid * 0, points, pose, **SPACE | options)[0]


# ---- What came ----

REFUSED = {
    "text for a duration": (resample, {"max_gap": "0.1"}, "max_gap: expected a number, got '0.1'"),
    "a bool for a duration": (resample, {"max_gap": True}, "max_gap: expected a number, got True"),
    "an int of 65 bits": (resample, {"max_gap": 2**64}, "max_gap: expected a number, got "),
    "another number": (resample, {"tolerance": Decimal("0.1")}, r"tolerance: expected a number, got Decimal\('0.1'\)"),
    "an array for a number": (resample, {"max_gap": np.ones(2)}, r"max_gap: expected a number, got an array \[2\]"),
    "text for a bool": (resample, {"causal": "yes"}, "causal: expected True or False, got 'yes'"),
    "a number for a bool": (resample, {"causal": 1}, "causal: expected True or False, got 1"),
    "no method": (resample, {"method": None}, "method: expected a str, got None"),
    "a number for a method": (resample, {"method": 0.5}, "method: expected a str, got 0.5"),
    "text for what is asked": (resample, {"return_valid": "no"}, "return_valid: expected True or False, got 'no'"),
    "text asked of streams": (fuse, {"return_valid": "no"}, "return_valid: expected True or False, got 'no'"),
    "none asked of streams": (fuse, {"return_age": None}, "return_age: expected True or False, got None"),
    "a number asked of points": (voxelize, {"return_dropped": 1}, "return_dropped: expected True or False, got 1"),
    "no mode": (voxelize, {"mode": []}, "mode: expected one or more, got none"),
    "of a stream": (fuse, {"causal": ["yes"]}, r"streams\[0\].causal: expected True or False, got 'yes'"),
    "of all streams": (fuse, {"max_gap": "0.1"}, "max_gap: expected a number, got '0.1'"),
    "text for a fill": (voxelize, {"fill": "0"}, "fill: expected a number, got '0'"),
    "a bool for a fill": (voxelize, {"fill": True}, "fill: expected a number, got True"),
    "half a voxel": (voxelize, {"grid_size": (2, 2, 0.5)}, "grid_size: expected a whole number, got 0.5"),
    "a bool for a size": (voxelize, {"grid_size": (2, 2, True)}, "grid_size: expected a whole number, got True"),
    "two numbers": (voxelize, {"grid_min": (0, 0)}, "grid_min: expected three numbers, for x, y, z, got 2"),
    "no dimension": (
        voxelize,
        {"grid_min": np.array(1.5)},
        "grid_min: expected three numbers, for x, y, z, got ndarray",
    ),
    "one number": (voxelize, {"grid_min": 1.5}, "grid_min: expected three numbers, for x, y, z, got float"),
    "a fill of counts": (
        voxelize,
        {"mode": ["count", "sum"], "fill": -1.5},
        "fill: goes with .*, got -1.5 with 'count' and 'sum'",
    ),
    "a quantum of counts": (voxelize, {"mode": "count", "quantum": 0.5}, "quantum: goes with .*, got 0.5 with 'count'"),
    "a quantum of whole numbers": (
        voxelize,
        {"features": FEATURES.astype(np.int32), "quantum": 0.5},
        "quantum: goes with .*, got 0.5 with 'mean' of int32",
    ),
    "a bool for max_voxels": (sparse, {"max_voxels": True}, "max_voxels: expected a whole number, got True"),
    "a bool of numpy": (sparse, {"capacity": np.True_}, "capacity: expected a whole number, got .*True"),
    "text for a limit": (sparse, {"max_voxels": "3"}, "max_voxels: expected a whole number, got '3'"),
    "no order": (sparse, {"order": None}, "order: expected a str, got None"),
    "a seed of 64 bits": (
        downsample,
        {"method": "random", "seed": 2**63},
        "seed: expected a whole number of 64 bits, got 9223372036854775808",
    ),
    "a bool for a seed": (downsample, {"method": "random", "seed": True}, "seed: expected a whole number, got True"),
    "a seed of a mean": (downsample, {"seed": 3}, "seed: goes with method 'random', got 3 with 'centroid'"),
    "text for a bool of tsdf": (tsdf, {"space_carving": "yes"}, "space_carving: expected True or False, got 'yes'"),
    "text for metres": (tsdf, {"truncation": "0.1"}, "truncation: expected a number, got '0.1'"),
    "voxelize has no determinism": (voxelize, {"determinism": "gpu_to_gpu"}, None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rule_17_a_refusal_says_what_came(case):
    call, options, message = REFUSED[case]
    with pytest.raises(TypeError if message is None else robocache.Error, match=message):
        call(**options)


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
def test_rule_17_every_name_that_a_refusal_lists_is_taken(call, name):
    with pytest.raises(robocache.ArgumentError, match=f"{name}: expected .*, got 'nothing'") as refused:
        call(**{name: "nothing"})
    listed = re.split(r", | or ", re.search("expected (one of )?(.*), got", str(refused.value))[2])
    assert len(listed) > 1
    for one in (text.strip("'") for text in listed):
        try:
            call(**{name: one})
        except robocache.Error as error:  # a rotation of two features, say
            assert not re.search(rf"{name}: expected .*, got '{one}", str(error)), error


# ---- Text that is none ----


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


def test_rule_17_a_streams_name_is_text():
    with pytest.raises(robocache.ArgumentError, match=r"streams: expected UTF-8, got 'imu.*udc80'"):
        robocache.fuse_multimodal({"imu\udc80": (VALUES, TIMES)}, TIMES)


# ---- Masks ----


def masked(array):
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
        call(**{argument: masked(array)})


# ---- Forward mode ----

ADS = {
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


HOWS = ["dual numbers", "jvp", "jacfwd", "vmap of jvp", "jvp of vmap", "hessian"]
NEITHER_VMAP_NOR_FUNC = ("sparse", "downsample", "out", "tsdf")  # so no jvp of their vmap, and no hessian


@pytest.mark.parametrize(
    ("operation", "how"),
    [(op, how) for op in ADS for how in HOWS if op not in NEITHER_VMAP_NOR_FUNC or how not in HOWS[-2:]],
)
def test_rule_19_forward_mode_is_refused(device, operation, how):
    call = ADS[operation]
    x = torch.arange(8.0, device=device).reshape(4, 2)
    with pytest.raises(robocache.ArgumentError, match="forward-mode"):
        if how == "dual numbers":
            with torch.autograd.forward_ad.dual_level():
                call(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
        elif how == "jvp":
            torch.func.jvp(call, (x,), (x,))
        elif how == "jacfwd":
            torch.func.jacfwd(call)(x)
        elif how == "vmap of jvp":
            torch.vmap(lambda y: torch.func.jvp(call, (y,), (y,))[1])(x[None])
        elif how == "jvp of vmap":
            torch.func.jvp(lambda y: torch.vmap(call)(y[None]), (x,), (x,))
        else:
            torch.func.hessian(lambda y: (call(y) ** 2).sum())(x)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("operation", ["resample", "fuse", "voxelize", "sparse", "downsample"])
@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap"])
def test_rule_18_a_call_on_constants_within_a_transform(device, operation, transform, recorded):
    constant = torch.arange(8.0, device=device).reshape(4, 2).requires_grad_(recorded)
    expected = ADS[operation](constant).detach()
    x = torch.ones(3, device=device)

    def loss(y):
        return y.sum() + ADS[operation](constant).sum()

    if transform == "grad":
        assert torch.equal(torch.func.grad(loss)(x), torch.ones_like(x))
    elif transform == "jvp":
        out, tangent = torch.func.jvp(loss, (x,), (x,))
        assert torch.equal(out.detach(), expected.sum() + 3) and tangent == 3
    else:
        assert torch.equal(torch.vmap(loss)(x).detach(), expected.sum() + x)
