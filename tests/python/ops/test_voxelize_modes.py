"""Rule 27: the values and dtypes of each mode, and the fill of empty voxels."""

import numpy as np
import pytest
from reference.random_streams import FLOATS
from reference.voxel_checks import check, each_dtype, each_float, in_one_voxel, random_case

import robocache

torch = pytest.importorskip("torch")


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
    of_floats = [-7.3, float("nan"), float("inf"), 1e-7, 70_000.0]
    for fill in of_floats if dtype in FLOATS else [1] if dtype.kind == "b" else [0, 100]:
        check(points, features, device, fill=fill)
    if dtype == np.int64:
        check(points, features, device, fill=2**63 - 1, mode=["min", "first"])
        check(points, features, device, fill=-(2**63), mode=["max", "last"])


def test_rule_27_counts_beyond_2_to_24(device):
    """A count in float32 would stop at 2^24; sums and means of as many points are correct too."""
    n = (1 << 24) + 3
    points = torch.full((1, 3), 0.5, device=device).expand(n, 3)
    features = torch.ones((n, 1), dtype=torch.int8, device=device)
    out = robocache.voxelize_pointcloud(
        points, features, grid_min=(0, 0, 0), voxel_size=1, grid_size=(1, 1, 1), mode=["count", "sum", "mean"]
    )
    assert [out[name].item() for name in ("count", "sum", "mean")] == [n, n, 1.0]
    floats = features.to(torch.float16)
    out = robocache.voxelize_pointcloud(
        points, floats, grid_min=(0, 0, 0), voxel_size=1, grid_size=(1, 1, 1), mode="mean"
    )
    assert out.item() == 1.0


def test_rule_27_grids_beyond_2_to_31_elements(device):
    """X * Y * Z * F is beyond 2^31, and the last element is written."""
    shape, features = (1, 1, (1 << 31) // 16 + 5), 16
    elements = shape[2] * features
    if device == "cuda":
        free, needed = torch.cuda.mem_get_info()[0], 10 * elements  # the kernel's workspace is 8.25 times the output
    else:
        with open("/proc/meminfo") as file:
            free = 1024 * int(next(line for line in file if line.startswith("MemAvailable")).split()[1])
        needed = 3 * elements
    if free < needed:
        pytest.skip(f"{needed / 2**30:.0f} GiB of free memory are needed")
    points = torch.tensor([[0.5, 0.5, shape[2] - 0.5], [0.5, 0.5, 0.5]], dtype=torch.float64, device=device)
    values = torch.arange(32, dtype=torch.int8, device=device).reshape(2, 16)
    out = robocache.voxelize_pointcloud(points, values, grid_min=(0, 0, 0), voxel_size=1, grid_size=shape, mode="max")
    assert out[0, 0, -1].tolist() == list(range(16))
    assert out[0, 0, 0].tolist() == list(range(16, 32))
    assert not out[0, 0, 1:-1].view(torch.int64).any()  # compared as int64: eight elements at once
