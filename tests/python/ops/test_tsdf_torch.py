"""integrate_tsdf inside torch.compile, torch.export and under torch.vmap, on the CPU and on CUDA."""

import numpy as np
import pytest
from reference.compare import assert_same_bits, to_numpy, to_torch
from reference.tsdf import integrate_depth, integrate_points

import robocache

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh_compiler")

CAMERA = (20.0, 22.0, 15.5, 11.25)
OPTIONS = {"grid_min": (-1.0, -0.75, 0.25), "voxel_size": 0.25, "truncation": 0.3}
SHAPE = (7, 6, 5)


def random_case(rng, is_depth):
    grid, weights = rng.standard_normal(SHAPE).astype(np.float32), rng.integers(0, 3, SHAPE).astype(np.float32)
    T = np.eye(4)
    T[:3, 3] = rng.uniform(-0.1, 0.1, 3)
    if is_depth:
        return grid, weights, rng.uniform(0.3, 1.6, (24, 32)).astype(np.float32), T, CAMERA
    return grid, weights, rng.uniform(-1, 1, (90, 3)).astype(np.float32), T


def oracle(grid, weights, measured, *arguments, **options):
    return (integrate_depth if len(arguments) == 2 else integrate_points)(
        grid, weights, measured, *arguments, **options
    )


@pytest.mark.parametrize(
    ("is_depth", "pose_type", "backend"),
    [
        (is_depth, pose_type, backend)
        for is_depth in (False, True)
        for pose_type, backend in (
            ("array", "aot_eager"),
            ("tensor", "aot_eager"),
            ("list", "aot_eager"),
            ("array", "inductor"),
        )
    ],
)
def test_one_graph_gives_the_oracles_bits(rng, device, is_depth, pose_type, backend):
    grid, weights, measured, T, *camera = random_case(rng, is_depth)
    pose = {"array": T, "tensor": torch.from_numpy(T), "list": T.tolist()}[pose_type]

    def model(grid, weights, measured, T):
        result = robocache.integrate_tsdf(grid, weights, measured * 2, T, *camera, max_weight=2.0, **OPTIONS)
        return result[0] + 1

    expected = oracle(grid, weights, measured * np.float32(2), T, *camera, max_weight=2.0, **OPTIONS)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for _ in range(2):
        tensors = [to_torch(x, device) for x in (grid, weights)]
        out = compiled(*tensors, to_torch(measured, device), pose)
        for actual, array in zip(tensors, expected, strict=True):
            assert_same_bits(to_numpy(actual), array)
        assert_same_bits(to_numpy(out), expected[0] + np.float32(1))


@pytest.mark.parametrize("is_depth", [False, True])
def test_a_graph_reads_poses_and_cameras_on_the_device(rng, cuda, is_depth):
    grid, weights, measured, *sensor = random_case(rng, is_depth)
    compiled = torch.compile(
        lambda *x: robocache.integrate_tsdf(*x, **OPTIONS)[0] + 1, fullgraph=True, backend="aot_eager"
    )
    tensors = [to_torch(x, cuda) for x in (grid, weights, measured)]
    out = compiled(*tensors, *(torch.tensor(x, dtype=torch.float64, device=cuda) for x in sensor))
    expected = oracle(grid, weights, measured, *sensor, **OPTIONS)
    assert_same_bits(to_numpy(out), expected[0] + np.float32(1))
    assert_same_bits(to_numpy(tensors[1]), expected[1])


def test_a_graph_refuses_invalid_arguments(rng, device):
    grid, weights, points, T = (
        to_torch(x, device if i < 3 else "cpu") for i, x in enumerate(random_case(rng, is_depth=False))
    )
    compiled = torch.compile(lambda *x: robocache.integrate_tsdf(*x, **OPTIONS), fullgraph=True, backend="aot_eager")
    with pytest.raises(robocache.ArgumentError, match="T_world_sensor: "):
        compiled(grid, weights, points, T * 2)


def test_export(rng, device):
    class Model(torch.nn.Module):
        def forward(self, grid, weights, points, T):
            robocache.integrate_tsdf(grid, weights, points, T, **OPTIONS)
            return grid * 1

    arrays = random_case(rng, is_depth=False)
    tensors = [to_torch(x, device if i < 3 else "cpu") for i, x in enumerate(arrays)]
    program = torch.export.export(Model(), tuple(x.clone() for x in tensors))
    result = program.module()(*tensors)
    expected = oracle(*arrays, **OPTIONS)
    assert_same_bits(to_numpy(result), expected[0])
    assert_same_bits(to_numpy(tensors[1]), expected[1])


def test_vmap_is_refused_with_a_hint(rng, device):
    grid, weights, points, T = (
        to_torch(x, device if i < 3 else "cpu") for i, x in enumerate(random_case(rng, is_depth=False))
    )
    clouds = torch.stack([points] * 3)
    with pytest.raises(robocache.ArgumentError, match=r"torch\.vmap cannot map it"):
        torch.vmap(lambda p: robocache.integrate_tsdf(grid, weights, p, T, **OPTIONS)[0].sum())(clouds)


def test_fake_tensors_are_not_read(rng):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        grid, weights, points = (torch.empty(shape) for shape in (SHAPE, SHAPE, (90, 3)))
        result = robocache.integrate_tsdf(grid, weights, points, np.eye(4), **OPTIONS)
    assert result[0] is grid and result[1] is weights


def test_opcheck(rng, device):
    """torch's checks: the declared outputs are written, and nothing else."""
    from robocache.ops.integrate_tsdf import _integrate

    from robocache import _torch

    grid, weights, depth, T, camera = random_case(rng, is_depth=True)
    tensors = [to_torch(x, device) for x in (grid, weights, depth)]
    sensor = [torch.as_tensor(x, dtype=torch.float64) for x in (T, camera)]
    sizes = {"grid_min": [-1.0, -0.75, 0.25], "voxel_size": [0.25] * 3, "truncation": 0.3}
    fields = {"depth": tensors[2], "T_world_sensor": sensor[0], "intrinsics": sensor[1], **sizes}
    torch.library.opcheck(
        torch.ops.robocache.integrate_tsdf_out.default,
        (*_torch._spread(_integrate, _integrate.call(fields)), [True, True], tensors[:2]),
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_static"),
    )
