"""integrate_tsdf: adds depth images and point clouds to a grid of truncated signed distances."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from .. import _lib, errors
from .._call import call, is_traced
from .._check import three
from ._points import TsdfOperation

_Grid = TypeVar("_Grid")
_Weights = TypeVar("_Weights")

_integrate = TsdfOperation("integrate_tsdf")


def integrate_tsdf(
    grid: _Grid,
    weights: _Weights,
    points_or_depth: Any,
    T_world_sensor: Any,
    intrinsics: Any = None,
    *,
    grid_min: Sequence[float],
    voxel_size: float | Sequence[float],
    truncation: float,
    depth_scale: float | None = None,
    max_weight: float | None = None,
    space_carving: bool = False,
) -> tuple[_Grid, _Weights]:
    """Adds measurements of range sensors to a grid of truncated signed distances, in place.

    All rays of a call are averaged at once, so their order does not matter. The result has the same bits on every run, on the
    CPU and on CUDA.

    Args:
        grid: ``[X, Y, Z]`` float32, metres along the ray to the surface, positive in front of it. Updated.
        weights: ``[X, Y, Z]`` float32, the number of rays through each voxel. A voxel with 0 is unseen, and its value in `grid`
            does not count. Updated.
        points_or_depth: without `intrinsics` points ``[N, 3]`` float32 or float64 in the sensor's frame; with them a depth
            image ``[H, W]``, float32 metres or uint16. ``[K, N, 3]`` or ``[K, H, W]`` for K sensors. Points that are not
            finite, and depths that are not finite or not above 0, are ignored.
        T_world_sensor: ``[4, 4]`` or ``[K, 4, 4]``, the rigid transform from the sensor's frame to the grid's. Numbers of any
            kind on the host: a transform that is not rigid is an ArgumentError. Or a float32 or float64 array on `grid`'s
            device: the call does not wait for it, and a sensor whose transform is not rigid adds nothing.
        intrinsics: the camera's 3x3 matrix or ``(fx, fy, cx, cy)``; ``[K, 3, 3]`` or ``[K, 4]`` for K cameras. On the host or
            the device, like `T_world_sensor`. The camera looks along +z, with x to the right and y down; centres of pixels are whole
            numbers.
        grid_min: x, y, z of the grid's lower corner. Voxel (i, j, k) has its centre at grid_min + (i + 1/2, j + 1/2, k + 1/2) *
            voxel_size.
        voxel_size: metres, one number or three.
        truncation: metres. Voxels farther behind the surface are not updated; voxels farther in front only with
            `space_carving`.
        depth_scale: metres per unit of the depth image: 0.001 for uint16 millimetres. If the measurements are on the host and
            none reaches the grid, a warning gives their distances and the grid's.
        max_weight: the limit of weights, so that the grid can follow a changing scene.
        space_carving: voxels farther in front of a surface than `truncation` are updated too, with +truncation.

    Returns:
        ``(grid, weights)``, the arrays given. The whole contract is src/robocache/points/integrate_tsdf/integrate_tsdf.hpp.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid, and nothing is written; the message names it.
        DeviceError: the device failed.

    Example:
        >>> grid, weights = np.zeros((1, 1, 4), np.float32), np.zeros((1, 1, 4), np.float32)
        >>> pose = np.eye(4)  # the sensor is at the origin and looks along z
        >>> robocache.integrate_tsdf(grid, weights, np.array([[0.0, 0.0, 2.0]]), pose,
        ...                          grid_min=(-0.5, -0.5, 0.0), voxel_size=1.0, truncation=1.0)[0]
        array([[[ 0. ,  0.5, -0.5,  0. ]]], dtype=float32)
    """
    argument = "points" if intrinsics is None else "depth"
    is_tracing = is_traced()
    torch = sys.modules.get("torch")
    if torch is not None and torch.is_grad_enabled():
        for name, array in (("grid", grid), ("weights", weights), (argument, points_or_depth)):
            if getattr(array, "requires_grad", False):
                raise _no_gradients(name)
    corner, size = three("grid_min", grid_min), three("voxel_size", voxel_size, scalar=True)
    pose, camera = T_world_sensor, intrinsics
    if not is_tracing:
        pose = _numbers("T_world_sensor", pose)
        camera = None if camera is None else _numbers("intrinsics", camera)
    call(
        _integrate,
        [grid, weights],
        **{argument: points_or_depth},
        T_world_sensor=pose,
        intrinsics=camera,
        grid_min=corner,
        voxel_size=size,
        truncation=truncation,
        depth_scale=depth_scale,
        max_weight=max_weight,
        space_carving=space_carving,
    )
    if not is_tracing:
        _warn_if_nothing_is_measured(
            argument, grid, points_or_depth, pose, corner, size, truncation, depth_scale, space_carving
        )
    return grid, weights


def _warn_if_nothing_is_measured(
    name: str,
    grid: Any,
    measured: Any,
    pose: Any,
    corner: Sequence[float],
    size: Sequence[float],
    truncation: float,
    depth_scale: float | None,
    space_carving: bool,
) -> None:
    """Warns if no measurement on the host can reach a voxel, most often because its unit is not metres."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(measured, torch.Tensor):
        try:
            measured = None if measured.is_cuda else measured.resolve_neg().numpy()
        except RuntimeError:  # torch refuses access to its memory
            return
    if (
        not isinstance(measured, np.ndarray)
        or not isinstance(pose, np.ndarray)
        or 0 in (measured.size, math.prod(grid.shape))
    ):
        return
    unit = 1.0 if depth_scale is None else float(depth_scale)
    if name == "depth":
        ranges, longest = measured, 10.0  # at the edge of a view of 168 degrees a ray is ten times as long as its depth
    else:
        ranges, longest = np.sqrt(np.square(measured, dtype=np.float64).sum(axis=-1)), 1.0
    ranges = ranges[np.isfinite(ranges) & (ranges > 0)]
    if not ranges.size:
        warnings.warn(
            f"{name}: none of the {measured.size} numbers is finite and above 0, so nothing is measured", stacklevel=3
        )
        return
    lower = np.asarray(corner, np.float64)
    upper = lower + np.asarray(size) * grid.shape
    sensors = pose.reshape(-1, 4, 4)[:, :3, 3]
    farthest = np.linalg.norm(np.maximum(np.abs(sensors - lower), np.abs(sensors - upper)), axis=1).max()
    nearest = np.linalg.norm(np.maximum(0, np.maximum(lower - sensors, sensors - upper)), axis=1).min()
    least, most = float(ranges.min()) * unit, float(ranges.max()) * unit
    if (least - truncation > farthest and not space_carving) or longest * most + truncation < nearest:
        scale = "" if depth_scale is None else f" with depth_scale {depth_scale:g}"
        warnings.warn(
            f"{name}: no measurement reaches the grid: they lie {least:g} to {most:g} m from the sensor{scale}, the grid "
            f"{nearest:g} to {farthest:g} m; are they in metres?",
            stacklevel=3,
        )


def _numbers(name: str, value: Any) -> Any:
    """Returns float64 on the host; an array on a device stays unchanged."""
    if type(value) is not np.ndarray and _is_on_cuda(value):
        torch = _lib.torch_module()
        if torch is not None and torch.is_grad_enabled() and getattr(value, "requires_grad", False):
            raise _no_gradients(name)
        return value
    try:
        _lib.refuse_mask(value)
        return np.asarray(value, np.float64, order="C")
    except (TypeError, ValueError, RuntimeError) as error:
        raise errors.ArgumentTypeError(f"{name}: expected numbers, got {type(value).__name__}: {error}") from None


def _no_gradients(name: str) -> errors.ArgumentError:
    return errors.ArgumentError(f"{name}: has no gradients here; pass {name}.detach(), or call under torch.no_grad()")


def _is_on_cuda(value: Any) -> bool:
    is_cuda = getattr(value, "is_cuda", None)  # torch's; a torch tensor without memory has no DLPack device
    if is_cuda is None and hasattr(value, "__dlpack_device__"):
        is_cuda = value.__dlpack_device__()[0] in (2, 13)  # CUDA memory, and CUDA managed memory
    return bool(is_cuda)
