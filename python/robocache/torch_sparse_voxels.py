"""The sparse operations as torch operators: gradients and torch.compile.

`robocache.sparse_voxels` imports this where one of these is at work. How many voxels there are is data, unless `capacity`
says how many rows there shall be: without it, torch.compile breaks its graph at the call, or takes it in where
`torch._dynamo.config.capture_dynamic_output_shape_ops` is set.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _lib, errors
from .sparse_voxels import call_downsample, call_voxelize
from .torch_ops import _check_tensors

_dtype_of = _lib.function("voxel_mode_dtype")

# What is not there is an empty tensor: an operator returns no None.
torch.library.define(
    "robocache::voxelize_sparse",
    "(Tensor points, Tensor? features, Tensor? lengths, Tensor? batch_offsets, float[] voxel_size, int? max_voxels, "
    "SymInt? max_points_per_voxel, SymInt? capacity, str? reduce, str order, str coord_order, float[] point_range)"
    " -> (Tensor coords, Tensor features, Tensor counts, Tensor point_to_voxel, Tensor dropped, Tensor num_voxels, "
    "Tensor kept, Tensor rows_of_voxel)",
)
torch.library.define(
    "robocache::voxel_downsample",
    "(Tensor points, Tensor? features, float[] voxel_size, float[] origin, str method, int? seed)"
    " -> (Tensor points, Tensor features, Tensor counts, Tensor point_to_voxel, Tensor row)",
)


def voxelize_sparse(arrays: dict[str, Any], *options: Any) -> list[Any]:
    """As robocache.voxelize_sparse; `options` in the operator's order."""
    _check_tensors({name: array for name, array in arrays.items() if array is not None})
    voxel_size, *others, point_range = options
    made = torch.ops.robocache.voxelize_sparse(*arrays.values(), _floats(voxel_size), *others, _floats(point_range))
    capacity = others[2]
    return [*made[:5], None if capacity is None else made[5]]


def voxel_downsample(arrays: dict[str, Any], voxel_size: list, origin: list, *others: Any) -> list[Any]:
    """As robocache.voxel_downsample."""
    _check_tensors({name: array for name, array in arrays.items() if array is not None})
    made = torch.ops.robocache.voxel_downsample(*arrays.values(), _floats(voxel_size), _floats(origin), *others)
    return [made[0], None if arrays["features"] is None else made[1]]


def _floats(numbers):
    return [float(number) for number in numbers]


def _tensors(points, made):
    return tuple(points.new_empty(0, dtype=torch.int32) if array is None else array for array in made)


def _resolved(*arrays):
    return (None if array is None else array.resolve_neg() for array in arrays)


def _run_voxelize(points, features, *rest):
    points, features = _resolved(points, features)
    return _tensors(points, call_voxelize(points, features, *rest))


def _run_downsample(points, features, *rest):
    points, features = _resolved(points, features)
    return _tensors(points, call_downsample(points, features, *rest))


torch.library.impl("robocache::voxelize_sparse", ("cpu", "cuda"), _run_voxelize)
torch.library.impl("robocache::voxel_downsample", ("cpu", "cuda"), _run_downsample)


# ---- Shapes ----


def _reduced_dtype(reduce, dtype):
    return getattr(torch, _dtype_of(reduce, _lib.dtype_name(dtype)))


@torch.library.register_fake("robocache::voxelize_sparse")
def _fake_voxelize(
    points, features, lengths, batch_offsets, voxel_size, max_voxels, most, capacity, reduce, order, coord_order, range_
):
    batched = points.ndim == 3 or batch_offsets is not None
    voxels = torch.library.get_ctx().new_dynamic_size() if capacity is None else capacity
    clouds = points.shape[0] if points.ndim == 3 else batch_offsets.shape[0] - 1 if batched else None

    def whole(*shape, dtype=torch.int32):
        return points.new_empty(shape, dtype=dtype)

    rows = whole(0)
    if reduce is None:
        most = torch.library.get_ctx().new_dynamic_size() if most is None else most
        source = points if features is None else features
        made = source.new_empty((voxels, most, source.shape[-1]))
        rows = whole(voxels, most)
    else:
        count = points.shape[-1] - 3 if features is None else features.shape[-1]
        dtype = points.dtype if features is None else features.dtype
        made = points.new_empty((voxels, count), dtype=_reduced_dtype(reduce, dtype))
    return (
        whole(voxels, 4 if batched else 3),
        made,
        whole(voxels),
        whole(*points.shape[:-1]),
        whole(clouds, dtype=torch.int64) if batched else whole(dtype=torch.int64),
        whole(0) if capacity is None else whole(dtype=torch.int64),
        whole(0) if reduce is None or most is None else whole(*points.shape[:-1]),
        rows,
    )


@torch.library.register_fake("robocache::voxel_downsample")
def _fake_downsample(points, features, voxel_size, origin, method, seed):
    voxels = torch.library.get_ctx().new_dynamic_size()
    centroid = method == "centroid"
    of_features = points.new_empty(0, dtype=torch.int32)
    if features is not None:
        dtype = _reduced_dtype("mean" if centroid else "first", features.dtype)
        of_features = features.new_empty((voxels, features.shape[-1]), dtype=dtype)
    return (
        points.new_empty((voxels, points.shape[-1] if features is None else 3)),
        of_features,
        points.new_empty(voxels if centroid else 0, dtype=torch.int32),
        points.new_empty(points.shape[0] if centroid else 0, dtype=torch.int32),
        points.new_empty(0 if centroid else voxels, dtype=torch.int32),
    )


# ---- Gradients ----
# Each row takes what it gave; all of it is gathered, or put to rows of which no two are the same, but for the least row of
# those that tie: so it is the same on every run.


def _of_voxels(array, voxel, absent=0):
    """array[voxel], and `absent` for -1."""
    padded = torch.cat([array, array.new_full((1, *array.shape[1:]), absent)])
    return padded.index_select(0, torch.where(voxel < 0, len(array), voxel))


def _to_rows(gradient, row, count):
    """[count, F], row row[i] being gradient[i]; -1 goes nowhere."""
    row = torch.where(row < 0, count, row).long()
    return gradient.new_zeros(count + 1, gradient.shape[-1]).index_copy(0, row, gradient)[:count]


def _least_row(candidates, voxel, voxels, largest=False):
    """[voxels, F]: of the rows that are candidates [N, F] the least of each voxel, or the largest."""
    count = len(voxel)
    rows = torch.arange(count, device=voxel.device)[:, None].expand_as(candidates)
    nobody = -1 if largest else count
    voxel = torch.where(voxel < 0, voxels, voxel).long()[:, None].expand_as(candidates)
    made = rows.new_full((voxels + 1, candidates.shape[1]), nobody)
    return made.scatter_reduce(0, voxel, torch.where(candidates, rows, nobody), "amax" if largest else "amin")[:voxels]


def _reduce_gradient(reduce, source, out, counts, kept, gradient):
    """Of source [N, F], kept [N] naming the row of out [M, F] that each row went into, or -1."""
    at_row = _of_voxels(gradient, kept)
    if reduce == "sum":
        return at_row.to(source.dtype)
    if reduce == "mean":
        wide = at_row.double() if source.dtype == torch.float64 else at_row.float()
        return (wide / _of_voxels(counts, kept, absent=1)[:, None]).to(source.dtype)
    candidates = (kept >= 0)[:, None].expand_as(source)
    if reduce in ("min", "max"):
        of_row = _of_voxels(out, kept)
        same = (source == of_row) & (source.signbit() == of_row.signbit())  # -0 is below +0
        candidates = candidates & (same | (source.isnan() & of_row.isnan()))
    chosen = _least_row(candidates, kept, len(out), largest=reduce == "last")
    rows = torch.arange(len(source), device=source.device)[:, None]
    return torch.where(rows == _of_voxels(chosen, kept, absent=-1), at_row, 0).to(source.dtype)


def _remember_voxelize(ctx, inputs, output):
    points, features, *_ = inputs
    _, out, counts, point_to_voxel, _, _, kept, rows = output
    ctx.reduce = reduce = inputs[8]
    limited = inputs[6] is not None
    ctx.has_features = features is not None
    source = points if features is None else features
    ctx.save_for_backward(source, out, counts, kept if limited and reduce is not None else point_to_voxel, rows)
    ctx.set_materialize_grads(False)


def _voxelize_backward(ctx, _coords, gradient, *_others):
    nothing = [None] * 12
    if gradient is None:
        return tuple(nothing)
    source, out, counts, kept, rows = ctx.saved_tensors
    flat = source.reshape(-1, source.shape[-1])
    if ctx.reduce is None:
        made = _to_rows(gradient.reshape(-1, flat.shape[1]), rows.reshape(-1), len(flat))
    elif ctx.has_features:
        made = _reduce_gradient(ctx.reduce, flat, out, counts, kept.reshape(-1), gradient)
    else:
        made = _reduce_gradient(ctx.reduce, flat[:, 3:], out, counts, kept.reshape(-1), gradient)
        made = torch.cat([made.new_zeros(len(made), 3), made], 1)
    nothing[1 if ctx.has_features else 0] = made.reshape(source.shape)
    return tuple(nothing)


def _remember_downsample(ctx, inputs, output):
    points, features, _, _, ctx.method, _ = inputs
    *_, counts, point_to_voxel, row = output
    ctx.has_features = features is not None
    ctx.save_for_backward(points, points if features is None else features, counts, point_to_voxel, row)
    ctx.set_materialize_grads(False)


def _downsample_backward(ctx, gradient, features_gradient, *_others):
    points, features, counts, point_to_voxel, row = ctx.saved_tensors

    def of(source, gradient):
        if gradient is None:
            return None
        if ctx.method == "centroid":
            return _reduce_gradient("mean", source, None, counts, point_to_voxel, gradient)
        return _to_rows(gradient, row, len(source))

    of_points = of(points[:, : 3 if ctx.has_features else None], gradient)
    if of_points is not None and ctx.has_features:
        of_points = torch.cat([of_points, of_points.new_zeros(len(points), points.shape[1] - 3)], 1)
    of_features = of(features, features_gradient) if ctx.has_features and features.is_floating_point() else None
    return of_points, of_features, None, None, None, None


def _refuse_vmap(info, in_dims, *arguments):
    raise errors.ArgumentError(
        "points: expected no vmap, since each call has voxels of its own number; pass the clouds as [B, N, 3]"
    )


torch.library.register_autograd("robocache::voxelize_sparse", _voxelize_backward, setup_context=_remember_voxelize)
torch.library.register_autograd("robocache::voxel_downsample", _downsample_backward, setup_context=_remember_downsample)
torch.library.register_vmap("robocache::voxelize_sparse", _refuse_vmap)
torch.library.register_vmap("robocache::voxel_downsample", _refuse_vmap)
