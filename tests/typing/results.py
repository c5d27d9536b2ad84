"""Results of operations have the types of their arguments: torch for torch, numpy for numpy. `./dev lint` checks it by mypy."""

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from typing_extensions import assert_type

import robocache
from robocache import SparseVoxels

Numpy = npt.NDArray[Any]


def resample(tensor: Tensor, array: npt.NDArray[np.float32], parameter: nn.Parameter, other: Any, valid: bool) -> None:
    call = robocache.resample_trajectories
    assert_type(call(tensor, tensor, tensor), Tensor)
    assert_type(call(tensor, array, array, method="pchip"), Tensor)
    assert_type(call(parameter, tensor, tensor), Tensor)
    assert_type(call(tensor, tensor, tensor, return_valid=True), tuple[Tensor, Tensor])
    assert_type(call(array, array, array), Numpy)
    assert_type(call(array, array, array, return_valid=True, max_gap=0.1), tuple[Numpy, Numpy])
    assert_type(call(tensor, tensor, tensor, return_valid=valid), Any)
    assert_type(call(other, other, other), Any)
    call(tensor, tensor, tensor, max_gap="0.1")  # type: ignore[call-overload]
    call(tensor, tensor, tensor, maxgap=0.1)  # type: ignore[call-overload]


def fuse(tensor: Tensor, array: npt.NDArray[np.float64], other: Any) -> None:
    call = robocache.fuse_multimodal
    named, listed = {"a": (tensor, tensor)}, [(array, array)]
    assert_type(call(named, tensor), Tensor)
    assert_type(call(listed, array, method=["linear"]), Numpy)
    assert_type(call(named, tensor, return_valid=True), tuple[Tensor, Tensor])
    assert_type(call(named, tensor, return_age=True), tuple[Tensor, Tensor])
    assert_type(call(listed, array, return_valid=True, return_age=True), tuple[Numpy, Numpy, Numpy])
    assert_type(call(named, tensor, output="dict"), dict[str, Tensor])
    assert_type(call(listed, array, output="dict"), list[Numpy])
    assert_type(call(other, other, other, other, other, other, other), Any)


def decode(tensor: Tensor, array: npt.NDArray[np.uint8], other: Any) -> None:
    assert_type(robocache.decode_jpeg(tensor, tensor), Tensor)
    assert_type(robocache.decode_jpeg(array, array, array), Numpy)
    assert_type(robocache.decode_jpeg(other, other), Any)


def voxelize(tensor: Tensor, array: npt.NDArray[np.float32], other: Any) -> None:
    call = robocache.voxelize_pointcloud
    assert_type(call(tensor, grid_min=(0, 0, 0), voxel_size=0.5, grid_size=(8, 8, 8), mode="count"), Tensor)
    assert_type(
        call(array, grid_min=(0, 0, 0), voxel_size=0.5, grid_size=(8, 8, 8), return_dropped=True), tuple[Numpy, Numpy]
    )
    assert_type(
        call(tensor, tensor, grid_min=(0, 0, 0), voxel_size=0.5, grid_size=(8, 8, 8), mode=["count", "mean"]),
        dict[str, Tensor],
    )
    assert_type(
        call(array, grid_min=(0, 0, 0), voxel_size=1, grid_size=(8, 8, 8), mode=["count"], return_dropped=True),
        tuple[dict[str, Numpy], Numpy],
    )
    assert_type(call(other, grid_min=(0, 0, 0), voxel_size=0.5, grid_size=(8, 8, 8)), Any)


def sparse(tensor: Tensor, array: npt.NDArray[np.float32], other: Any) -> None:
    assert_type(robocache.voxelize_sparse(tensor, voxel_size=0.5), SparseVoxels[Tensor])
    assert_type(robocache.voxelize_sparse(tensor, voxel_size=0.5).coords, Tensor)
    assert_type(robocache.voxelize_sparse(array, voxel_size=0.5).num_voxels, Numpy | None)
    assert_type(robocache.voxelize_sparse(other, voxel_size=0.5), SparseVoxels[Any])
    assert_type(robocache.voxel_downsample(tensor, voxel_size=0.5), Tensor)
    assert_type(robocache.voxel_downsample(array, array, voxel_size=0.5), tuple[Numpy, Numpy])


def tsdf(tensor: Tensor, array: npt.NDArray[np.float32]) -> None:
    call = robocache.integrate_tsdf
    grid: dict[str, Any] = {"grid_min": (0, 0, 0), "voxel_size": 0.01, "truncation": 0.04}
    assert_type(call(tensor, tensor, tensor, array, **grid), tuple[Tensor, Tensor])
    assert_type(call(array, array, array, array, **grid), tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]])
