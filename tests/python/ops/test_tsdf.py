"""integrate_tsdf: rule 32, bit for bit against the NumPy oracle, on the CPU and on CUDA."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.compare import assert_same_bits, to_numpy, to_torch
from reference.tsdf import integrate_depth, integrate_points

import robocache

torch = pytest.importorskip("torch")

CAMERA = (20.0, 22.0, 15.5, 11.25)  # of images [24, 32]


def rotation(rng):
    q, r = np.linalg.qr(rng.standard_normal((3, 3)))
    q *= np.sign(np.diag(r))
    return q if np.linalg.det(q) > 0 else -q


def pose(rng, reach=1.0):
    result = np.eye(4)
    result[:3, :3], result[:3, 3] = rotation(rng), rng.uniform(-reach, reach, 3)
    return result


def poses(rng, count, reach=1.0):
    return np.array([pose(rng, reach) for _ in range(count)]).reshape(count, 4, 4)


def volume(rng, shape):
    """Returns a grid and weights; some voxels are unseen, and their values are arbitrary."""
    grid = rng.standard_normal(shape).astype(np.float32)
    weights = rng.integers(0, 4, shape).astype(np.float32) * np.float32(0.75)
    grid[weights == 0] = rng.choice(np.float32([np.nan, np.inf, 0, 7]), int((weights == 0).sum()))
    return grid, weights


def spoil(rng, measured, invalid=(np.nan, np.inf, -np.inf, 0.0)):
    """Returns the measurements, one in ten replaced by a value that is no measurement."""
    is_invalid = rng.random(measured.shape) < 0.1
    return np.where(is_invalid, rng.choice(invalid, measured.shape), measured).astype(measured.dtype)


def integrate(grid, weights, measured, *arguments, device="cpu", **options):
    """Calls integrate_tsdf with torch tensors on `device`. Returns the new (grid, weights) as NumPy arrays."""
    arrays = [to_torch(x, device) for x in (grid, weights)]
    result = robocache.integrate_tsdf(*arrays, to_torch(measured, device), *arguments, **options)
    assert result[0] is arrays[0] and result[1] is arrays[1]
    return [to_numpy(x) for x in result]


def check(grid, weights, measured, *arguments, device="cpu", **options):
    """Compares with the oracle, bit for bit. Returns how many voxels changed weight; one at max_weight is
    updated and does not count."""
    oracle = integrate_depth if len(arguments) == 2 else integrate_points
    expected = oracle(grid, weights, measured, *arguments, **options)
    actual = integrate(grid, weights, measured, *arguments, device=device, **options)
    assert_same_bits(actual[1], expected[1], "weights")
    assert_same_bits(actual[0], expected[0], "grid")
    return int((expected[1] != weights).sum())


def random_options(rng, **fixed):
    return {
        "grid_min": rng.uniform(-1.2, -0.4, 3),
        "voxel_size": rng.uniform(0.07, 0.3, 3) if rng.random() < 0.5 else float(rng.uniform(0.07, 0.3)),
        "truncation": float(rng.uniform(0.03, 0.6)),
    } | fixed


each_carving = pytest.mark.parametrize("space_carving", [False, True])


# ---- Against the oracle ----


@each_carving
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 1, 4), (5, 13, 7), (12, 12, 12), (2, 3, 33)])
def test_rule_32_points_give_the_oracles_bits(rng, device, shape, dtype, space_carving):
    updated = 0
    for max_weight in (None, 2.5):
        points = spoil(rng, rng.standard_normal((211, 3)).astype(dtype))
        options = random_options(rng, max_weight=max_weight, space_carving=space_carving)
        updated += check(*volume(rng, shape), points, pose(rng), device=device, **options)
    assert updated > 0 or min(shape) < 5  # a camera may miss a thin grid


@each_carving
def test_rule_32_rays_along_planes_edges_and_corners(rng, device, space_carving):
    """Sensors and points on corners of voxels: rays lie in planes, cross edges and corners, start and end on them."""
    permutations = [np.eye(3)[list(order)] for order in itertools.permutations(range(3))]
    for permutation in permutations:
        points = rng.integers(-8, 9, (150, 3)) / 8
        T = np.eye(4)
        T[:3, :3] = permutation if np.linalg.det(permutation) > 0 else -permutation
        T[:3, 3] = rng.integers(-8, 9, 3) / 8
        options = {"grid_min": (-0.75, -0.5, -1.0), "voxel_size": (0.125, 0.25, 0.125)}
        for truncation in (0.125, 0.3):
            updated = check(
                *volume(rng, (11, 5, 12)),
                points,
                T,
                device=device,
                truncation=truncation,
                space_carving=space_carving,
                **options,
            )
            assert updated > 0


@each_carving
def test_rule_32_far_from_the_origin(rng, device, space_carving):
    """5000 km from the origin, float64 has six digits left below a millimetre."""
    position = np.array([4_500_000.0, -500_000.0, 90.0])
    T = pose(rng, 0.02)
    T[:3, 3] += position
    points = rng.standard_normal((120, 3)) * 0.02
    options = {"grid_min": position - 0.006, "voxel_size": 1e-3, "truncation": 0.004, "space_carving": space_carving}
    assert check(*volume(rng, (12, 12, 12)), points, T, device=device, **options) > 0


@each_carving
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 40, 2), (7, 5, 70), (16, 16, 16)])
def test_rule_32_depth_gives_the_oracles_bits(rng, device, shape, dtype, space_carving):
    updated = 0
    for max_weight in [None, 2.5, 1.0, 3.0] * 3:
        options = random_options(rng, max_weight=max_weight, space_carving=space_carving)
        if dtype == np.uint16:
            depth = rng.integers(0, 2500, (24, 32)).astype(dtype)
            depth[rng.random(depth.shape) < 0.1] = 0
            options["depth_scale"] = 0.001
        else:
            depth = spoil(rng, rng.uniform(0.1, 2.5, (24, 32)).astype(dtype), (np.nan, np.inf, -np.inf, 0.0, -1.0))
        updated += check(*volume(rng, shape), depth, pose(rng), CAMERA, device=device, **options)
    assert updated > 0 or min(shape) < 5  # a camera may miss a thin grid


@pytest.mark.parametrize("count", [0, 1, 3, 16, 17, 40])
def test_rule_32_several_sensors_at_once(rng, device, count):
    """Some calls have more sensors than fit into a kernel's parameters."""
    T = poses(rng, count)
    options = random_options(rng)
    check(*volume(rng, (8, 7, 9)), spoil(rng, rng.standard_normal((count, 23, 3))), T, device=device, **options)
    depth = spoil(rng, rng.uniform(0.1, 2.5, (count, 24, 32)).astype(np.float32))
    cameras = np.array(CAMERA) + rng.uniform(-1, 1, (count, 4))
    matrices = np.zeros((count, 3, 3))
    matrices[:, [0, 1, 0, 1], [0, 1, 2, 2]] = cameras
    matrices[:, 2, 2] = 1
    for camera in (CAMERA, cameras, matrices):
        check(*volume(rng, (8, 7, 9)), depth, T, camera, device=device, **options)


@given(data=st.data())
def test_rule_32_any_small_call_gives_the_oracles_bits(device, data):
    eighths = st.integers(-9, 9).map(lambda x: x / 8)
    points = np.array(data.draw(st.lists(st.tuples(eighths, eighths, eighths), max_size=12))).reshape(-1, 3)
    T = np.eye(4)
    T[:3, 3] = data.draw(st.tuples(eighths, eighths, eighths))
    shape = data.draw(st.tuples(*[st.integers(0, 5)] * 3))
    grid, weights = np.full(shape, 0.5, np.float32), np.ones(shape, np.float32)
    options = {
        "grid_min": data.draw(st.tuples(eighths, eighths, eighths)),
        "truncation": data.draw(st.sampled_from([0.1, 0.25])),
    }
    options |= {"voxel_size": data.draw(st.sampled_from([0.25, 0.3])), "space_carving": data.draw(st.booleans())}
    check(grid, weights, points, T, device=device, **options)


def test_cpu_and_cuda_give_the_same_bits(rng, cuda):
    """Many rays see each voxel of a wall, in a grid of many blocks. Calls with points clear all sums, or only those along rays
    (integrate_tsdf.cpp): both run. The last shape has rows that are not aligned."""
    options = {"grid_min": (-0.64, -0.64, 0.6), "truncation": 0.04, "max_weight": 50.0}
    v, u = np.mgrid[:240, :320]
    depth = (1.1 + 0.1 * np.sin(u / 20) + rng.normal(0, 0.004, u.shape)).astype(np.float32)
    points = np.stack([(u - 160) / 260 * depth, (v - 120) / 260 * depth, depth], -1).reshape(-1, 3)
    camera, sensor_poses = (260, 260, 160, 120), np.stack([np.eye(4)] * 3)
    sensor_poses[:, 0, 3] = 0, 0.1, -0.3
    depths = np.stack([depth, np.where(u < 100, 0, 0.7 * depth), depth[:, ::-1]])
    for size, shape in ((0.01, (128, 128, 100)), (0.04, (32, 32, 25)), (0.005, (251, 253, 199))):
        for arguments in ((points, np.eye(4)), (depth, np.eye(4), camera), (depths, sensor_poses, camera)):
            for space_carving in (False, True):
                call_options = {"voxel_size": size, "space_carving": space_carving} | options
                start = volume(rng, shape)
                on_cpu = integrate(*start, *arguments, **call_options)
                on_cuda = integrate(*start, *arguments, device=cuda, **call_options)
                assert (on_cpu[1] != start[1]).sum() > 100
                for actual, expected in zip(on_cuda, on_cpu, strict=True):
                    assert_same_bits(actual, expected, str(call_options))


# ---- The rule, worked out by hand ----


def looking_along_z(cells=12, size=0.25):
    """Returns (grid, weights, a pose at (0, 0, 0), options): a column of voxels along the z axis."""
    grid, weights = np.zeros((1, 1, cells), np.float32), np.zeros((1, 1, cells), np.float32)
    return grid, weights, np.eye(4), {"grid_min": (-size / 2, -size / 2, 0), "voxel_size": size}


def test_rule_32_positive_in_front_and_not_beyond_the_truncation(device):
    grid, weights, T, options = looking_along_z()
    grid, weights = integrate(grid, weights, np.array([[0, 0, 1.5]]), T, device=device, truncation=0.5, **options)
    assert grid[0, 0].tolist() == [0, 0, 0, 0, 0.375, 0.125, -0.125, -0.375, 0, 0, 0, 0]
    assert weights[0, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]


def test_rule_32_a_distance_equal_to_the_truncation_counts(device):
    grid, weights, T, options = looking_along_z()
    _, seen = integrate(grid, weights, np.array([[0, 0, 1.5]]), T, device=device, truncation=0.375, **options)
    assert seen[0, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]
    below = math.nextafter(0.375, 0)
    _, seen = integrate(grid, weights, np.array([[0, 0, 1.5]]), T, device=device, truncation=below, **options)
    assert seen[0, 0].tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]


def test_rule_32_carving_reaches_from_the_sensor_and_never_behind(device):
    grid, weights, T, options = looking_along_z()
    T[2, 3] = 0.25  # the first voxel is behind the sensor
    call_options = {"truncation": 0.25, "space_carving": True, "device": device} | options
    for measured in ((np.array([[0, 0, 1.25]]), T), (np.full((1, 1), 1.25, np.float32), T, (1, 1, 0, 0))):
        result, seen = integrate(grid, weights, *measured, **call_options)
        assert result[0, 0].tolist() == [0, 0.25, 0.25, 0.25, 0.25, 0.125, -0.125, 0, 0, 0, 0, 0]
        assert seen[0, 0].tolist() == [0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0]


def test_rule_32_distances_are_along_the_ray(device):
    """Off the axis a distance along z is longer along the ray: 6 m are 6.5 m here."""
    grid, weights = np.zeros((1, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    options = {"grid_min": (2.5, 3.5, 11.5), "voxel_size": 1, "truncation": 10, "device": device}  # centre (3, 4, 12)
    depth = np.zeros((3, 3), np.float32)
    depth[1, 1] = 18
    result, _ = integrate(grid, weights, depth, np.eye(4), (4, 3, 0, 0), **options)
    assert result.item() == 6.5  # (18 - 12) * 13 / 12
    result, _ = integrate(grid, weights, np.array([[4.5, 6, 18]]), np.eye(4), **options)
    assert result.item() == 6.5


@pytest.mark.parametrize(
    ("cx", "column"), [(0.5, 0), (1.5, 2), (1.25, 1), (-0.5, 0), (2.5, 2), (2.51, None), (-0.51, None)]
)
def test_rule_32_pixels_are_rounded_midway_to_even(device, cx, column):
    grid, weights, T, options = looking_along_z(cells=4)
    for image in (np.array([[1, 2, 3]], np.float32), np.array([[1], [2], [3]], np.float32)):
        camera = (5, 5, cx, 0) if image.shape[0] == 1 else (5, 5, 0, cx)
        result, seen = integrate(grid, weights, image, T, camera, device=device, truncation=10, **options)
        assert seen.tolist() == np.full((1, 1, 4), column is not None).tolist()
        if column is not None:
            assert result[0, 0].tolist() == [1 + column - z for z in (0.125, 0.375, 0.625, 0.875)]


@each_carving
@pytest.mark.parametrize("shift", [0.0, 1e-13, -1e-13, 1e-9, -1e-9, 1e-7, -1e-7, 3e-6, -3e-6])
def test_rule_32_voxels_within_float32s_error_of_two_pixels(rng, device, shift, space_carving):
    """Every centre lies almost midway between columns and rows: float32 cannot decide between them, nor on which side of
    the image's border the centre is."""
    far_position = rng.integers(-3, 4, 3) * 1000.0
    for position in (0.0, far_position):
        T = np.eye(4)
        T[:3, 3] = position
        # The centres of the layer are (n + 1/2) / 64 from the axis, and 1 or 2 m from the camera.
        depth = rng.uniform(0.4, 2.5, (24, 40)).astype(np.float32)
        for z in (1, 2):
            camera = (64 * z, 64 * z, 20 + shift, 12 - shift)
            corner = position + np.array([-0.25, -0.125, z - 0.25])
            options = {"grid_min": corner, "voxel_size": (1 / 64, 1 / 64, 0.5)}
            updated = check(
                *volume(rng, (40, 20, 1)),
                depth,
                T,
                camera,
                device=device,
                truncation=0.4,
                space_carving=space_carving,
                **options,
            )
            assert updated > 50


@each_carving
@pytest.mark.parametrize("ulps", [0, 1, -1, 8, -8, 1000, -1000])
def test_rule_32_distances_within_float32s_error_of_the_truncation(rng, device, ulps, space_carving):
    """The surface is a truncation before or behind voxel 20, within the last bits of a float32."""
    z = (np.arange(40) + 0.5) / 8
    for sign in (1, -1):
        for truncation in (0.25, 0.3):
            depth = np.array([[np.float32(z[20] + sign * truncation)]])
            depth = (depth.view(np.int32) + np.int32(ulps)).view(np.float32)
            T = np.eye(4)
            options = {"grid_min": (-1 / 16, -1 / 16, 0), "voxel_size": 1 / 8, "truncation": truncation}
            check(
                *volume(rng, (1, 1, 40)), depth, T, (3, 3, 0, 0), device=device, space_carving=space_carving, **options
            )


def test_rule_32_points_behind_the_camera_are_not_seen(device):
    grid, weights, T, options = looking_along_z(cells=6)
    T[2, 3] = 0.625  # the camera lies in the plane of a centre
    _, seen = integrate(
        grid, weights, np.full((1, 1), 0.1, np.float32), T, (1, 1, 0, 0), device=device, truncation=9, **options
    )
    assert seen[0, 0].tolist() == [0, 0, 0, 1, 1, 1]


def test_rule_32_a_voxel_is_the_mean_of_all_rays_and_counts_at_most_max_weight_of_earlier_ones(device):
    grid, weights, T, options = looking_along_z(cells=4)
    call_options = {"truncation": 2, "device": device} | options
    grid, weights = integrate(grid, weights, np.array([[0, 0, 1.0], [0, 0, 1.5], [0, 0, 2.0]]), T, **call_options)
    assert grid[0, 0].tolist() == [1.375, 1.125, 0.875, 0.625]
    assert weights[0, 0].tolist() == [3, 3, 3, 3]
    grid, weights = integrate(grid, weights, np.array([[0, 0, 0.5]]), T, max_weight=3.5, **call_options)
    assert grid[0, 0].tolist() == [1.125, 0.875, 0.625, 0.375]
    assert weights[0, 0].tolist() == [3.5] * 4
    grid, weights = integrate(grid, weights, np.array([[0, 0, 2.0]] * 3), T, max_weight=3.5, **call_options)
    sums = 3.5 * np.array([1.125, 0.875, 0.625, 0.375]) + 3 * np.array([1.875, 1.625, 1.375, 1.125])
    assert grid[0, 0].tolist() == (sums / 6.5).astype(np.float32).tolist()
    assert weights[0, 0].tolist() == [3.5] * 4


@pytest.mark.parametrize("unseen", [0.0, -0.0, -3.0, -np.inf, np.nan])
def test_rule_32_values_of_unseen_voxels_do_not_count(device, unseen):
    grid, weights, T, options = looking_along_z(cells=2)
    grid[:], weights[:] = [np.nan, np.inf], unseen
    result, seen = integrate(grid, weights, np.array([[0, 0, 0.5]]), T, truncation=1, device=device, **options)
    assert result[0, 0].tolist() == [0.375, 0.125]
    assert seen[0, 0].tolist() == [1, 1]


def test_rule_32_voxels_without_a_measurement_keep_their_bits(rng, device):
    grid, weights = (np.frombuffer(rng.bytes(4 * 500), np.float32).reshape(5, 10, 10) for _ in range(2))
    T = pose(rng)
    T[:3, 3] = 100
    for carving in (False, True):
        options = random_options(rng, space_carving=carving)
        for measured in ((rng.standard_normal((50, 3)), T), (np.ones((24, 32), np.float32), T, CAMERA)):
            for actual, before in zip(
                integrate(grid, weights, *measured, device=device, **options), (grid, weights), strict=True
            ):
                assert actual.tobytes() == before.tobytes()


def test_rule_32_the_order_of_points_and_sensors_does_not_matter(rng, device):
    points, T = rng.standard_normal((4, 500, 3)) * 0.5, poses(rng, 4, 0.5)
    options = random_options(rng, truncation=0.4, space_carving=True)
    start = volume(rng, (9, 9, 9))
    first = integrate(*start, points, T, device=device, **options)
    for _ in range(5):
        shuffled = points[:, rng.permutation(500)]
        order = rng.permutation(4)
        for actual, expected in zip(
            integrate(*start, shuffled[order], T[order], device=device, **options), first, strict=True
        ):
            assert_same_bits(actual, expected)


@pytest.mark.parametrize("truncation", [0.1, 0.125, 0.126, 1e-6, 1e6])
def test_rule_32_the_mean_is_exact_to_half_a_quantum(rng, device, truncation):
    """The oracle computes with fractions; distances are exact, because every number has few digits."""
    unit = 2.0 ** math.floor(math.log2(truncation))
    grid, weights, T, options = looking_along_z(cells=3, size=unit / 4)
    ranges = unit + rng.integers(-256, 257, 1001) * (unit / 1024)
    points = np.zeros((1001, 3))
    points[:, 2] = ranges
    result, seen = integrate(grid, weights, points, T, truncation=truncation, device=device, **options)
    for cell in range(3):
        centre = Fraction(unit) / 4 * (2 * cell + 1) / 2
        sdf = [Fraction(r) - centre for r in ranges]
        measured = [x for x in sdf if abs(x) <= Fraction(truncation)]
        assert seen[0, 0, cell] == len(measured)
        if not measured:
            continue
        mean = sum(measured) / len(measured)
        # Errors are half a quantum, truncation / 2^32, a rounding to float32, and two far smaller roundings in float64.
        bound = Fraction(truncation) / 2**32 + abs(mean) * (Fraction(1, 2**24) + Fraction(1, 2**50))
        assert abs(Fraction(float(result[0, 0, cell])) - mean) <= bound


def test_rule_32_a_plane_is_reconstructed(rng, device):
    """A camera looks at a plane: every distance is within half a voxel's diagonal of the true one."""
    v, u = np.mgrid[:120, :160]
    camera = (130.0, 130.0, 79.5, 59.5)
    T = pose(rng, 0.1)
    rays = np.stack([(u - camera[2]) / camera[0], (v - camera[3]) / camera[1], np.ones(u.shape)], -1)
    normal, offset = np.array([0.1, -0.2, 1.0]), 1.0
    depth = offset / (rays @ normal)
    shape, size, truncation = (40, 40, 40), 0.02, 0.08
    grid_min = (T @ [0, 0, 1.0, 1])[:3] - 0.4
    grid, weights = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    options = {"grid_min": grid_min, "voxel_size": size, "truncation": truncation, "device": device}
    centres = (np.moveaxis(np.indices(shape), 0, -1) + 0.5) * size + grid_min
    in_camera = (centres - T[:3, 3]) @ T[:3, :3]
    # Distance to the plane along the ray through the centre.
    distance = np.linalg.norm(in_camera, axis=-1) * (offset / (in_camera @ normal) - 1)
    points = (rays * depth[..., None]).reshape(-1, 3)
    result, seen = integrate(grid, weights, points, T, **options)
    # A ray passes a voxel's centre within half_diagonal. So its hit on the plane moves by up to half_diagonal times the tangent of
    # the angle between ray and normal. The same holds for the mean of rays, unless the band excludes some.
    half_diagonal = size * math.sqrt(3) / 2
    cosine = in_camera @ normal / np.linalg.norm(in_camera, axis=-1) / np.linalg.norm(normal)
    checked = (seen > 0) & (np.abs(distance) < truncation - 2 * half_diagonal)
    assert checked.sum() > 2000
    assert cosine[checked].min() > math.sqrt(0.5)  # the tangent is below 1
    assert np.abs(result - distance)[checked].max() <= half_diagonal
    result, seen = integrate(grid, weights, depth.astype(np.float32), T, camera, **options)
    checked = seen > 0
    assert checked.sum() > 2000
    # A depth is measured at the centre of its pixel, up to half a pixel away in u and in v: together at most one gradient of z,
    # times the ray's length over its z, below 1.3 here.
    gradient = np.abs(np.gradient(depth)).max()
    assert np.abs(result - distance)[checked].max() <= 1.3 * gradient
