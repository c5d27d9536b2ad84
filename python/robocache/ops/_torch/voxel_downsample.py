"""voxel_downsample on torch's side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import _lib
from .._call import arrays_of
from ._call import check_tensors, implement, resolved
from ._voxels import mean_gradient, reduced_dtype, refuse_vmap, tensors, to_rows

_call = _lib.function("voxel_downsample")

torch.library.define(
    "robocache::voxel_downsample",
    "(Tensor points, Tensor? features, float[] voxel_size, float[] origin, str method, int? seed)"
    " -> (Tensor points, Tensor features, Tensor counts, Tensor point_to_voxel, Tensor row)",
)

_operator = torch.ops.robocache.voxel_downsample.default


def voxel_downsample(points: Any, features: Any, voxel_size: list[Any], origin: list[Any], *others: Any) -> list[Any]:
    """As robocache.voxel_downsample; `others` in the operator's order."""
    given = {"points": points} if features is None else {"points": points, "features": features}
    check_tensors(given)
    made = _operator(points, features, [float(x) for x in voxel_size], [float(x) for x in origin], *others)
    return [made[0], None if features is None else made[1]]


def _run(
    points: Tensor, features: Tensor | None, voxel_size: list[float], origin: list[float], *others: Any
) -> tuple[Tensor, ...]:
    made = _call(resolved(points), resolved(features), *voxel_size, *origin, *others)
    return tensors(points, arrays_of(made, points, 5))


def _fake(
    points: Tensor, features: Tensor | None, voxel_size: list[float], origin: list[float], method: str, seed: int | None
) -> Any:
    voxels = torch.library.get_ctx().new_dynamic_size()
    centroid = method == "centroid"
    of_features = points.new_empty(0, dtype=torch.int32)
    if features is not None:
        dtype = reduced_dtype("mean" if centroid else "first", features.dtype)
        of_features = features.new_empty((voxels, features.shape[-1]), dtype=dtype)
    return (
        points.new_empty((voxels, points.shape[-1] if features is None else 3)),
        of_features,
        points.new_empty(voxels if centroid else 0, dtype=torch.int32),
        points.new_empty(points.shape[0] if centroid else 0, dtype=torch.int32),
        points.new_empty(0 if centroid else voxels, dtype=torch.int32),
    )


implement("voxel_downsample", _run, _fake)

# ---- Gradients ----


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    points, features, _, _, ctx.method, _ = inputs
    *_, counts, point_to_voxel, row = output
    ctx.has_features = features is not None
    ctx.save_for_backward(points, points if features is None else features, counts, point_to_voxel, row)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, gradient: Tensor | None, features_gradient: Tensor | None, *_others: Any) -> Any:
    points, features, counts, point_to_voxel, row = ctx.saved_tensors

    def of(source: Tensor, gradient: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        if ctx.method == "centroid":
            return mean_gradient(source, counts, point_to_voxel, gradient)
        return to_rows(gradient, row, len(source))

    of_points = of(points[:, : 3 if ctx.has_features else None], gradient)
    if of_points is not None and ctx.has_features:
        of_points = torch.cat([of_points, of_points.new_zeros(len(points), points.shape[1] - 3)], 1)
    of_features = of(features, features_gradient) if ctx.has_features and features.is_floating_point() else None
    return of_points, of_features, None, None, None, None


torch.library.register_autograd("robocache::voxel_downsample", _backward, setup_context=_remember)
torch.library.register_vmap("robocache::voxel_downsample", refuse_vmap)
