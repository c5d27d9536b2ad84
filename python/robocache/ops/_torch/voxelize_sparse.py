"""voxelize_sparse on torch's side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import _lib
from .._call import arrays_of
from ._call import check_tensors, implement, resolved
from ._voxels import reduce_gradient, reduced_dtype, refuse_vmap, tensors, to_rows

_call = _lib.function("voxelize_sparse")

torch.library.define(
    "robocache::voxelize_sparse",
    "(Tensor points, Tensor? features, Tensor? lengths, Tensor? batch_offsets, float[] voxel_size, int? max_voxels, "
    "SymInt? max_points_per_voxel, SymInt? capacity, str? reduce, str order, str coord_order, float[] point_range)"
    " -> (Tensor coords, Tensor features, Tensor counts, Tensor point_to_voxel, Tensor dropped, Tensor num_voxels, "
    "Tensor kept, Tensor rows_of_voxel)",
)
_operator = torch.ops.robocache.voxelize_sparse.default


def voxelize_sparse(
    points: Any, features: Any, lengths: Any, batch_offsets: Any, voxel_size: list[Any], *others: Any
) -> list[Any]:
    """As robocache.voxelize_sparse; `others` in the operator's order."""
    given = {"points": points, "features": features, "lengths": lengths, "batch_offsets": batch_offsets}
    check_tensors({name: array for name, array in given.items() if array is not None})
    *others_, point_range = others
    made = _operator(*given.values(), [float(x) for x in voxel_size], *others_, [float(x) for x in point_range])
    capacity = others[2]
    return [*made[:5], None if capacity is None else made[5]]


def _run(
    points: Tensor, features: Tensor | None, lengths: Any, batch_offsets: Any, voxel_size: list[float], *others: Any
) -> tuple[Tensor, ...]:
    *others_, point_range = others
    arrays = resolved(points), resolved(features), lengths, batch_offsets
    return tensors(points, arrays_of(_call(*arrays, *voxel_size, *others_, *point_range), points, 8))


def _fake(
    points: Tensor,
    features: Tensor | None,
    lengths: Tensor | None,
    batch_offsets: Tensor | None,
    voxel_size: list[float],
    max_voxels: int | None,
    most: int | None,
    capacity: int | None,
    reduce: str | None,
    order: str,
    coord_order: str,
    range_: list[float],
) -> tuple[Tensor, ...]:
    voxels = torch.library.get_ctx().new_dynamic_size() if capacity is None else capacity
    clouds: tuple[int, ...] = points.shape[:-2] if batch_offsets is None else (batch_offsets.shape[0] - 1,)

    def whole(*shape: Any, dtype: torch.dtype = torch.int32) -> Tensor:
        return points.new_empty(shape, dtype=dtype)

    rows = whole(0)
    if reduce is None:
        gathered = torch.library.get_ctx().new_dynamic_size() if most is None else most
        source = points if features is None else features
        made = source.new_empty((voxels, gathered, source.shape[-1]))
        rows = whole(voxels, gathered)
    else:
        count = points.shape[-1] - 3 if features is None else features.shape[-1]
        dtype = points.dtype if features is None else features.dtype
        made = points.new_empty((voxels, count), dtype=reduced_dtype(reduce, dtype))
    return (
        whole(voxels, 3 + len(clouds)),
        made,
        whole(voxels),
        whole(*points.shape[:-1]),
        whole(*clouds, dtype=torch.int64),
        whole(0) if capacity is None else whole(dtype=torch.int64),
        whole(0) if reduce is None or most is None else whole(*points.shape[:-1]),
        rows,
    )


implement("voxelize_sparse", _run, _fake)

# ---- Gradients ----


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    points, features, *_ = inputs
    _, out, counts, point_to_voxel, _, _, kept, rows = output
    ctx.reduce = reduce = inputs[8]
    limited = inputs[6] is not None
    ctx.has_features = features is not None
    source = points if features is None else features
    ctx.save_for_backward(source, out, counts, kept if limited and reduce is not None else point_to_voxel, rows)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, _coords: Any, gradient: Tensor | None, *_others: Any) -> Any:
    nothing: list[Tensor | None] = [None] * 12
    if gradient is None:
        return tuple(nothing)
    source, out, counts, kept, rows = ctx.saved_tensors
    flat = source.reshape(-1, source.shape[-1])
    if ctx.reduce is None:
        made = to_rows(gradient.reshape(-1, flat.shape[1]), rows.reshape(-1), len(flat))
    elif ctx.has_features:
        made = reduce_gradient(ctx.reduce, flat, out, counts, kept.reshape(-1), gradient)
    else:
        made = reduce_gradient(ctx.reduce, flat[:, 3:], out, counts, kept.reshape(-1), gradient)
        made = torch.cat([made.new_zeros(len(made), 3), made], 1)
    nothing[1 if ctx.has_features else 0] = made.reshape(source.shape)
    return tuple(nothing)


torch.library.register_autograd("robocache::voxelize_sparse", _backward, setup_context=_remember)
torch.library.register_vmap("robocache::voxelize_sparse", refuse_vmap)
