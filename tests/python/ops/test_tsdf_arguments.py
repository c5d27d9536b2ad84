"""integrate_tsdf's arguments: memory of every layout, frameworks, refusals and threads."""

import warnings

import numpy as np
import pytest
from reference.compare import OnlyDLPack, assert_same_bits, to_numpy, to_torch
from reference.tsdf import integrate_depth, integrate_points

import robocache

torch = pytest.importorskip("torch")

CAMERA = (20.0, 22.0, 15.5, 11.25)
OPTIONS = {"grid_min": (-1.0, -0.75, 0.25), "voxel_size": 0.25, "truncation": 0.3}
SHAPE = (7, 6, 5)


@pytest.fixture
def case(rng):
    """grid, weights, points, depth, T_world_sensor."""
    grid, weights = rng.standard_normal(SHAPE).astype(np.float32), rng.integers(0, 3, SHAPE).astype(np.float32)
    points = rng.uniform(-1, 1, (90, 3)).astype(np.float32) + np.float32([0, 0, 1])
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = np.diag([-1.0, -1, 1]), [0.1, 0.2, 0.03]
    return grid, weights, points, rng.uniform(0.3, 1.6, (24, 32)).astype(np.float32), T


def points_and_depth(case):
    """Returns (arguments, expected (grid, weights)) for points and for a depth image."""
    grid, weights, points, depth, T = case
    return [
        ((points, T), integrate_points(grid, weights, points, T, **OPTIONS)),
        ((depth, T, CAMERA), integrate_depth(grid, weights, depth, T, CAMERA, **OPTIONS)),
    ]


def layouts(array, device):
    """Yields (name, a tensor with these values): dense, with gaps, transposed, with an offset, in another order."""
    tensor = to_torch(array, device)
    yield "dense", tensor.clone()
    wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 3), 7, dtype=torch.float32, device=device).to(
        tensor.dtype
    )
    wide[..., 2:-1] = tensor
    yield "gaps", wide[..., 2:-1]
    spaced = torch.zeros(tuple(2 * n for n in tensor.shape), dtype=tensor.dtype, device=device)
    spaced[tuple(slice(1, None, 2) for _ in tensor.shape)] = tensor
    yield "every second", spaced[tuple(slice(1, None, 2) for _ in tensor.shape)]
    yield (
        "last first",
        tensor.permute(*reversed(range(tensor.ndim))).contiguous().permute(*reversed(range(tensor.ndim))),
    )


def test_rule_15_strides_change_nothing(case, device):
    for (measured, *rest), expected in points_and_depth(case):
        for index in range(3):
            arrays = [case[0], case[1], measured]
            for name, form in layouts(arrays[index], device):
                tensors = [to_torch(x, device) for x in arrays]
                tensors[index] = form
                robocache.integrate_tsdf(*tensors, *rest, **OPTIONS)
                assert_same_bits(to_numpy(tensors[0]), expected[0], f"{index} {name}")
                assert_same_bits(to_numpy(tensors[1]), expected[1], f"{index} {name}")


def test_rule_15_gaps_stay_untouched(case, device):
    for arguments, expected in points_and_depth(case):
        memory = [torch.full((7, 6, 2, 9), 7.0, device=device) for _ in range(2)]
        views = [x[:, :, 1, 2:7] for x in memory]
        for view, array in zip(views, case[:2], strict=True):
            view.copy_(to_torch(array, device))
        robocache.integrate_tsdf(*views, to_torch(arguments[0], device), *arguments[1:], **OPTIONS)
        for x, array in zip(memory, expected, strict=True):
            assert_same_bits(to_numpy(x[:, :, 1, 2:7]), array)
            x[:, :, 1, 2:7] = 7
            assert (x == 7).all()


def test_rule_15_negative_strides(case):
    for (measured, *rest), expected in points_and_depth(case):
        grid, weights = (x[::-1, :, ::-1].copy()[::-1, :, ::-1] for x in case[:2])
        robocache.integrate_tsdf(grid, weights, measured[::-1].copy()[::-1], *rest, **OPTIONS)
        assert_same_bits(grid, expected[0])
        assert_same_bits(weights, expected[1])


def test_rule_15_stride_0_of_inputs(case, device):
    grid, weights, points, depth, T = case
    for arguments, expected in [
        ((points[:1], T), integrate_points(grid, weights, np.repeat(points[:1], 5, 0), T, **OPTIONS)),
        ((depth[:1], T, CAMERA), integrate_depth(grid, weights, np.repeat(depth[:1], 5, 0), T, CAMERA, **OPTIONS)),
    ]:
        tensors = [to_torch(x, device) for x in (grid, weights)]
        measured = to_torch(arguments[0], device).expand(5, -1)
        robocache.integrate_tsdf(*tensors, measured, *arguments[1:], **OPTIONS)
        for actual, array in zip(tensors, expected, strict=True):
            assert_same_bits(to_numpy(actual), array)


def test_rule_15_offsets_pass_2_31_elements(case, tmp_path):
    """The grid's strides are far beyond 32 bits."""
    elements = 2**31 + 1000
    for number, (arguments, expected) in enumerate(points_and_depth(case)):
        arrays = []
        for name, array in zip(("grid", "weights"), case[:2], strict=True):
            path = tmp_path / f"{name}{number}"
            with open(path, "wb") as file:
                file.truncate(4 * elements)
            memory = np.memmap(path, np.float32, "r+")
            step = (elements - 30) // 6
            assert 6 * step > 2**31 - 40
            arrays.append(np.lib.stride_tricks.as_strided(memory, SHAPE, (4 * step, 20, 4)))
            arrays[-1][:] = array
        robocache.integrate_tsdf(*arrays, *arguments, **OPTIONS)
        for actual, array in zip(arrays, expected, strict=True):
            assert_same_bits(np.array(actual), array)


@pytest.mark.parametrize("as_tensors", [False, True])
def test_measurements_that_miss_the_grid_are_warned_of(case, as_tensors):
    grid, weights, points, depth, T = case
    far_pose = T.copy()
    far_pose[:3, 3] = [0, 0, -4.0]  # the grid is 4.25 m and more ahead
    nothing = np.where(np.arange(depth.size).reshape(depth.shape) % 2 == 0, np.float32(np.nan), np.float32(0))
    cases = [
        (
            (points * 1000, T),
            {},
            r"points: no measurement reaches the grid: they lie .* m from the sensor, the grid 0.22 to",
        ),
        ((depth * 1000, T, CAMERA), {}, r"depth: no measurement reaches the grid: they lie 3\d\d"),
        (((depth * 1000).astype(np.uint16), T, CAMERA), {"depth_scale": 1.0}, "with depth_scale 1, the grid"),
        ((depth * 4, far_pose, CAMERA), {"depth_scale": 0.001}, "with depth_scale 0.001, the grid 4.25 to"),
        ((nothing, T, CAMERA), {}, "depth: none of the 768 numbers is finite and above 0"),
    ]
    for (measured, pose, *camera), options, message in cases:
        arrays = [grid.copy(), weights.copy(), measured]
        if as_tensors:
            arrays = [torch.from_numpy(x) for x in arrays]
        with pytest.warns(UserWarning, match=message):
            robocache.integrate_tsdf(*arrays, pose, *camera, **OPTIONS, **options)
        assert_same_bits(np.asarray(arrays[1]), weights, "nothing was measured, as the warning says")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for arguments in ((points, T), (depth, T, CAMERA), (depth + 3, far_pose, CAMERA)):
            robocache.integrate_tsdf(grid.copy(), weights.copy(), *arguments, **OPTIONS)
        robocache.integrate_tsdf(grid.copy(), weights.copy(), depth * 1000, T, CAMERA, **OPTIONS, space_carving=True)


@pytest.mark.parametrize("pose", ["one", "another number"])
def test_rule_17_a_depth_image_with_an_axis_of_one_channel_is_named(case, device, pose):
    grid, weights, _, depth, T = case
    tensors = [to_torch(x, device) for x in (grid, weights, depth[..., None])]
    poses = T if pose == "one" else np.stack([T, T])
    with pytest.raises(ValueError, match=r"^depth: "):
        robocache.integrate_tsdf(*tensors, poses, CAMERA, **OPTIONS)
    with pytest.raises(ValueError, match=r"^depth: "):
        robocache.integrate_tsdf(*tensors[:2], tensors[2][None], T, CAMERA, **OPTIONS)
    columns = to_torch(np.ascontiguousarray(depth[:, :1][None].repeat(3, 0)), device)  # images one pixel wide
    robocache.integrate_tsdf(*tensors[:2], columns, np.stack([T] * 3), CAMERA, **OPTIONS)


def test_rule_15_more_than_2_31_voxels(cuda):
    """The grid and its sums have 53 GB; only voxels on the rays are touched. No distance is a tie."""
    if torch.cuda.mem_get_info()[0] < 60e9:
        pytest.skip("needs 60 GB of GPU memory")
    shape = (1300, 1300, 1300)
    grid, weights = (torch.zeros(shape, device=cuda) for _ in range(2))
    points = torch.tensor([[0, 0, 1.2995], [0.0005, 0, 0.5], [1.2982, 1.2969, 1.2977]], device=cuda)
    T = np.eye(4)
    T[:3, 3] = 0.0005
    options = {"grid_min": (0, 0, 0), "voxel_size": 0.001, "truncation": 0.0023}
    robocache.integrate_tsdf(grid, weights, points, T, **options)
    small = [np.zeros((20, 20, 20), np.float32) for _ in range(2)]
    corner = {"grid_min": (1.28, 1.28, 1.28), "voxel_size": 0.001, "truncation": 0.0023}
    robocache.integrate_tsdf(*small, to_numpy(points), T, **corner)
    assert (to_numpy(weights[-20:, -20:, -20:]) == small[1]).all() and small[1].sum() > 0
    assert weights[0, 0, -1] == 1 and weights[0, 0, 500] > 0
    # In the depth image only the corner is in view.
    T[:3, 3] = [1.29, 1.29, 1.2]
    depth = torch.full((8, 8), 0.09, device=cuda)
    robocache.integrate_tsdf(grid.zero_(), weights.zero_(), depth, T, (80, 80, 3.5, 3.5), **options)
    small = [np.zeros_like(x) for x in small]
    robocache.integrate_tsdf(*small, to_numpy(depth), T, (80, 80, 3.5, 3.5), **corner)
    assert_same_bits(to_numpy(weights[-20:, -20:, -20:]), small[1])
    # The centres round differently in the small grid.
    np.testing.assert_allclose(to_numpy(grid[-20:, -20:, -20:]), small[0], atol=1e-8)
    assert small[1].sum() > 0


# ---- Refusals ----

POINTS, DEPTH = np.ones((4, 3), np.float32), np.ones((24, 32), np.float32)


def test_rule_16_outputs_may_not_overlap(device):
    base = torch.ones(SHAPE, device=device)
    for match, arrays in {
        "weights: overlaps grid": (base, base, to_torch(POINTS, device)),
        "points: overlaps grid": (base, base.clone(), base.view(-1)[3:9].view(2, 3)),
        "points: overlaps weights": (base.clone(), base, base.view(-1)[3:9].view(2, 3)),
        "grid: expected memory of its own": (base[:1].expand(SHAPE), base, to_torch(POINTS, device)),
        "weights: expected memory of its own": (base, base[:, :, :1].clone().expand(SHAPE), to_torch(POINTS, device)),
    }.items():
        with pytest.raises(robocache.ArgumentError, match=match):
            robocache.integrate_tsdf(*arrays, np.eye(4), **OPTIONS)
    grid, weights = np.ones(SHAPE, np.float32), np.ones(SHAPE, np.float32)
    weights.flags.writeable = False
    with pytest.raises(robocache.ArgumentError, match="weights: "):
        robocache.integrate_tsdf(grid, weights, POINTS, np.eye(4), **OPTIONS)


# ---- Poses and cameras on the device ----


def stack_sensors(case, count):
    """Returns (depth, points, poses, cameras) of `count` sensors."""
    _, _, points, depth, T = case
    T = np.stack([T] * count)
    T[:, 0, 3] += 0.05 * np.arange(count)
    return np.stack([depth] * count), np.stack([points] * count), T, np.array(CAMERA) + 0.1 * np.arange(count)[:, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_poses_and_cameras_on_the_device_give_the_same_bits(case, cuda, count, dtype):
    grid, weights, *_ = case
    depth, points, T, cameras = stack_sensors(case, count)
    T, cameras = (torch.from_numpy(x).to(dtype) for x in (T, cameras))
    matrices = torch.zeros(count, 3, 3, dtype=dtype)
    matrices[:, [0, 1, 0, 1], [0, 1, 2, 2]], matrices[:, 2, 2] = cameras, 1
    permuted = torch.empty(4, 4, count, dtype=dtype).permute(2, 1, 0).copy_(T)
    expected = integrate_points(grid, weights, points, T.double().numpy(), **OPTIONS)
    for pose in (T.to(cuda), permuted.to(cuda)):
        result = [to_torch(x, cuda) for x in (grid, weights, points)]
        robocache.integrate_tsdf(*result, pose, **OPTIONS)
        for actual, array in zip(result, expected, strict=False):
            assert_same_bits(to_numpy(actual), array)
    for camera in (cameras, matrices, cameras[0], matrices[0]):
        # One camera, [4] or [3, 3], serves all sensors.
        oracle_cameras = cameras[0] if camera.ndim == (2 if camera.shape[-1] == 3 else 1) else cameras
        expected = integrate_depth(grid, weights, depth, T.double().numpy(), oracle_cameras.double().numpy(), **OPTIONS)
        for pose, intrinsics in ((T.to(cuda), camera.to(cuda)), (T, camera.to(cuda)), (T.to(cuda), camera)):
            result = [to_torch(x, cuda) for x in (grid, weights, depth)]
            robocache.integrate_tsdf(*result, pose, intrinsics, **OPTIONS)
            for actual, array in zip(result, expected, strict=False):
                assert_same_bits(to_numpy(actual), array)


def test_rule_32_a_sensor_with_an_invalid_pose_on_the_device_is_ignored(case, cuda):
    """Poses have every fault that the host refuses; the other sensors of the call still count."""
    grid, weights, *_ = case
    depth, points, T, cameras = stack_sensors(case, 18)
    pose_faults = {0: ((0, 0), np.nan), 3: ((3, 0), 0.5), 5: ((1, 1), 1.1), 8: ((0, 0), 1.0), 17: ((2, 3), np.inf)}
    camera_faults = {1: (0, 0.0), 6: (1, -20.0), 9: (2, np.nan), 16: (0, np.inf)}
    invalid_poses, invalid_cameras = T.copy(), cameras.copy()
    for sensor, (index, value) in pose_faults.items():
        invalid_poses[sensor][index] = value  # (0, 0) is -1, so 1 there makes a mirror image
    for sensor, (index, value) in camera_faults.items():
        invalid_cameras[sensor, index] = value
    for faults, (measured, pose, *camera) in (
        (pose_faults, (points, invalid_poses)),
        (pose_faults, (depth, invalid_poses, cameras)),
        (camera_faults, (depth, T, invalid_cameras)),
        (pose_faults | camera_faults, (depth, invalid_poses, invalid_cameras)),
    ):
        valid_sensors = [i for i in range(18) if i not in faults]
        oracle = integrate_depth if camera else integrate_points
        expected = oracle(
            grid, weights, measured[valid_sensors], T[valid_sensors], *[cameras[valid_sensors]] * len(camera), **OPTIONS
        )
        result = [to_torch(x, cuda) for x in (grid, weights, measured)]
        robocache.integrate_tsdf(*result, *(torch.from_numpy(x).to(cuda) for x in (pose, *camera)), **OPTIONS)
        for actual, array in zip(result, expected, strict=False):
            assert_same_bits(to_numpy(actual), array)


def test_a_pose_on_a_device_needs_a_grid_there(case, cuda):
    grid, weights, points, depth, T = (torch.from_numpy(x) for x in case)
    with pytest.raises(robocache.ArgumentError, match="T_world_sensor: "):
        robocache.integrate_tsdf(grid, weights, points, T.to(cuda), **OPTIONS)
    with pytest.raises(robocache.ArgumentError, match="intrinsics: "):
        robocache.integrate_tsdf(grid, weights, depth, T, torch.tensor(CAMERA, device=cuda), **OPTIONS)
    tensors = [x.to(cuda) for x in (grid, weights, points)]
    with pytest.raises(robocache.ArgumentTypeError, match="T_world_sensor: "):
        robocache.integrate_tsdf(*tensors, T.to(cuda).half(), **OPTIONS)
    with pytest.raises(robocache.ArgumentError, match="T_world_sensor: "):
        robocache.integrate_tsdf(*tensors, T.to(cuda)[:3], **OPTIONS)
    with pytest.raises(robocache.ArgumentError, match=r"^T_world_sensor: "):
        robocache.integrate_tsdf(*tensors, T.to(cuda).requires_grad_(), **OPTIONS)


# ---- Frameworks ----


def test_rule_18_every_framework_in_place(case):
    for arguments, expected in points_and_depth(case):
        forms = [lambda x: x.copy(), to_torch, lambda x: OnlyDLPack(x.copy()), lambda x: np.asfortranarray(x)]
        for form in forms:
            grid, weights = (form(x) for x in case[:2])
            measured = form(arguments[0])
            result = robocache.integrate_tsdf(grid, weights, measured, *arguments[1:], **OPTIONS)
            assert result[0] is grid and result[1] is weights
            for actual, array in zip(result, expected, strict=True):
                actual = actual.array if isinstance(actual, OnlyDLPack) else to_numpy(actual)
                assert_same_bits(actual, array)


def test_rule_18_poses_and_cameras_of_any_kind(case):
    grid, weights, _, depth, T = case
    matrix = np.array([[20, 0, 15.5], [0, 22, 11.25], [0, 0, 1]])
    expected = integrate_depth(grid, weights, depth, T.astype(np.float32), CAMERA, **OPTIONS)
    for pose in (np.asfortranarray(T.astype(np.float32)), torch.from_numpy(T).float(), T.astype(np.float32).tolist()):
        for camera in (
            CAMERA,
            list(CAMERA),
            matrix,
            matrix.astype(np.float32),
            torch.from_numpy(matrix),
            matrix.tolist(),
        ):
            result = [x.copy() for x in (grid, weights)]
            robocache.integrate_tsdf(*result, depth, pose, camera, **OPTIONS)
            assert_same_bits(result[0], expected[0])
            assert_same_bits(result[1], expected[1])


def test_poses_may_be_rounded(case):
    """A rotation may be float32, or have four digits, as in files."""
    grid, weights, points, _, T = case
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(1), -np.sin(1)], [np.sin(1), np.cos(1)]]
    for pose in ((T @ turn).astype(np.float32), (T @ turn).round(4)):
        expected = integrate_points(grid, weights, points, pose, **OPTIONS)
        result = robocache.integrate_tsdf(grid.copy(), weights.copy(), points, pose, **OPTIONS)
        assert_same_bits(result[0], expected[0])


def test_gradients_are_refused(case, device):
    grid, weights, points, depth, T = case
    for index, name in enumerate(("grid", "weights", "points", "depth")):
        arrays = [to_torch(x, device) for x in (grid, weights, depth if name == "depth" else points)]
        arrays[min(index, 2)].requires_grad_()
        camera = [CAMERA] if name == "depth" else []
        with pytest.raises(robocache.ArgumentError, match=rf"^{name}: has no gradients here; pass {name}\.detach"):
            robocache.integrate_tsdf(*arrays, T, *camera, **OPTIONS)
        with torch.no_grad():
            robocache.integrate_tsdf(*arrays, T, *camera, **OPTIONS)


# ---- Threads ----


@pytest.mark.parametrize(("carving", "cells"), [(False, 60), (True, 60), (False, 16)])
def test_rule_20_no_result_depends_on_the_number_of_threads(rng, threads, carving, cells):
    """Rays of one sensor share voxels, whichever thread follows them."""
    points = rng.uniform(-1, 1, (20_000, 3)) + np.array([0, 0, 1])
    options = {"grid_min": (-1, -1, 0), "voxel_size": 2 / cells, "truncation": 0.1, "space_carving": carving}
    results = set()
    for n in (1, 2, 3, 8, 8):
        threads(n)
        grid, weights = np.zeros((cells,) * 3, np.float32), np.zeros((cells,) * 3, np.float32)
        robocache.integrate_tsdf(grid, weights, points, np.eye(4), **options)
        assert weights.sum() > 20_000
        results.add(grid.tobytes() + weights.tobytes())
    assert len(results) == 1
