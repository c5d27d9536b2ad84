"""integrate_tsdf on torch's side: what a traced graph holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import _lib, errors
from ._call import check_tensors, implement

_call = _lib.function("integrate_tsdf")

torch.library.define(
    "robocache::integrate_tsdf",
    "(Tensor(a!) grid, Tensor(b!) weights, Tensor measured, Tensor T_world_sensor, Tensor? intrinsics, float truncation, "
    "float? depth_scale, float? max_weight, bool space_carving, float[] grid_min, float[] voxel_size) -> ()",
)
_operator = torch.ops.robocache.integrate_tsdf.default


def integrate_tsdf(grid: Any, weights: Any, measured: Any, T_world_sensor: Any, intrinsics: Any, *options: Any) -> None:
    """As robocache.integrate_tsdf; `options` in the operator's order."""
    check_tensors({"grid": grid, "weights": weights, "points" if intrinsics is None else "depth": measured})
    camera = None if intrinsics is None else _numbers(intrinsics)
    _operator(grid, weights, measured, _numbers(T_world_sensor), camera, *options)


def _numbers(value: Any) -> Tensor:
    if isinstance(value, torch.Tensor):
        return value.to(torch.float64)
    return torch.as_tensor(value, dtype=torch.float64, device="cpu")


def _run(
    grid: Tensor, weights: Tensor, measured: Tensor, T_world_sensor: Tensor, intrinsics: Tensor | None, *options: Any
) -> None:
    *others, grid_min, voxel_size = options
    pose, camera = T_world_sensor.resolve_neg(), None if intrinsics is None else intrinsics.resolve_neg()
    _call(grid, weights, measured.resolve_neg(), pose, camera, *others, *grid_min, *voxel_size)


def _fake(grid: Tensor, weights: Tensor, *rest: Any) -> None:
    return None


# For CUDA too where the pose lies on the CPU: the dispatcher goes by any tensor that lies on the device.
implement("integrate_tsdf", _run, _fake)


def _refuse_vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
    raise errors.ArgumentError(
        "integrate_tsdf: writes in place, so torch.vmap cannot map it; pass the measurements of several sensors, "
        "[K, N, 3] or [K, H, W], in one call"
    )


torch.library.register_vmap("robocache::integrate_tsdf", _refuse_vmap)
