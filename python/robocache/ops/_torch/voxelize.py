"""voxelize_pointcloud on torch's side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ... import _lib, errors
from .._call import arrays_of
from ._call import (
    Function,
    check_tensors,
    implement,
    in_front,
    is_shape_alone,
    memory_is_hidden,
    needs_torch_func,
    refuse_second_derivative,
    remember_nothing,
    resolved,
    without_torch_func,
)

_call = _lib.function("voxelize_pointcloud")
_call_backward = _lib.function("voxelize_pointcloud_backward")
_dtype_of = _lib.function("voxel_mode_dtype")

_WITHOUT_FEATURES = "occupancy", "occupancy_bits", "count"
_CALL = (
    "Tensor points, Tensor? features, Tensor? lengths, Tensor? batch_offsets, float[] grid_min, float[] voxel_size, "
    "SymInt[] grid_size, Scalar fill, float? quantum, str[] modes"
)

# Lists end with what was dropped, where that is asked for.
torch.library.define("robocache::voxelize_pointcloud", f"({_CALL}, bool return_dropped) -> Tensor[] out_dropped")
torch.library.define(
    "robocache::voxelize_pointcloud_out", f"({_CALL}, bool return_dropped, Tensor(a!)[] out) -> Tensor dropped"
)
# `made` of min and max is the call's out, else empty. The gradient is float64 for float64 features, else float32.
torch.library.define(
    "robocache::voxelize_pointcloud_backward",
    f"({_CALL}, Tensor[] made, Tensor[] out_gradients) -> Tensor features_gradient",
)
_voxelize = torch.ops.robocache.voxelize_pointcloud.default
_voxelize_out = torch.ops.robocache.voxelize_pointcloud_out.default
_voxelize_backward = torch.ops.robocache.voxelize_pointcloud_backward.default


def voxelize_pointcloud(
    points: Any,
    features: Any,
    lengths: Any,
    batch_offsets: Any,
    options: tuple[Any, ...],
    modes: tuple[str, ...],
    return_dropped: bool,
    outs: list[Any],
) -> list[Any]:
    """What the library's function makes, in a list; `options` in its order."""
    given = {"features": features, "lengths": lengths, "batch_offsets": batch_offsets}
    check_tensors({"points": points} | {name: array for name, array in given.items() if array is not None})
    if features is None and points.ndim > 0 and points.shape[-1] > 3:
        features = points[..., 3:]  # a view of its own, so that the gradient finds its columns
    *_, fill, quantum = options
    grid_min, voxel_size = [float(x) for x in options[:3]], [float(x) for x in options[3:6]]
    quantum = None if quantum is None else float(quantum)
    grid = grid_min, voxel_size, list(options[6:9]), fill, quantum
    arguments = points, features, lengths, batch_offsets, *grid, list(modes), return_dropped
    if outs:
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (features, *outs)):
            raise errors.ArgumentError("out: carries no gradients; leave it out, or call under torch.no_grad()")
        dropped = _voxelize_out(*arguments, outs)
        return [dropped] if return_dropped else []
    if torch.compiler.is_compiling() or is_shape_alone(points):
        return list(_voxelize(*arguments))
    hidden = needs_torch_func(points, features, lengths, batch_offsets)
    return list((_Voxelize if hidden else _PlainVoxelize).apply(*arguments))


# ---- By the library ----


def _library_arguments(
    points: Tensor,
    features: Tensor | None,
    lengths: Tensor | None,
    batch_offsets: Tensor | None,
    grid_min: list[float],
    voxel_size: list[float],
    grid_size: list[int],
    *options: Any,
) -> tuple[Any, ...]:
    return resolved(points), resolved(features), lengths, batch_offsets, *grid_min, *voxel_size, *grid_size, *options


def _run(*arguments: Any, outs: Sequence[Tensor] = ()) -> list[Any]:
    *call, modes, return_dropped = arguments
    made = _call(*_library_arguments(*call), return_dropped, len(modes), len(outs), *modes, *outs)
    count = (0 if outs else len(modes)) + return_dropped
    return [made] if count == 1 else arrays_of(made, call[0], count)


def _run_out(*arguments: Any) -> Tensor:
    *call, outs = arguments
    made = _run(*call, outs=outs)
    nothing: Tensor = call[0].new_empty(0, dtype=torch.int64)
    return made[0] if made else nothing


def _run_backward(*arguments: Any) -> Any:
    *call, modes, made, out_gradients = arguments
    call[7:9] = 0, None  # the gradient depends on neither fill nor quantum
    features = call[1]
    gradient = features.new_zeros(features.shape, dtype=_work_type(features))
    counts = _run(*call, ["count"], False)[0] if "mean" in modes else None
    for mode, result, out_gradient in zip(modes, made, out_gradients, strict=True):
        result = counts if mode == "mean" else result if mode in ("min", "max") else None
        dense = out_gradient.resolve_neg().contiguous()
        _call_backward(*_library_arguments(*call), mode, dense, result, gradient)
    return gradient


def _work_type(features: Tensor) -> torch.dtype:
    return torch.float64 if features.dtype == torch.float64 else torch.float32


def _fake_dropped(points: Tensor, batch_offsets: Tensor | None) -> Tensor:
    shape = points.shape[:-2] if batch_offsets is None else (batch_offsets.shape[0] - 1,)
    return points.new_empty(shape, dtype=torch.int64)


def _fake(
    points: Tensor,
    features: Tensor | None,
    _lengths: Tensor | None,
    batch_offsets: Tensor | None,
    _grid_min: list[float],
    _voxel_size: list[float],
    grid_size: list[int],
    *rest: Any,
) -> Any:
    modes, return_dropped = rest[-2:]
    dropped = _fake_dropped(points, batch_offsets)
    made = []
    for mode in modes:
        dtype = getattr(torch, _dtype_of(mode, None if features is None else _lib.dtype_name(features.dtype)))
        x, y, z = grid_size
        grid = (x, y, (z + 31) // 32) if mode == "occupancy_bits" else (x, y, z)
        columns = () if mode in _WITHOUT_FEATURES or features is None else features.shape[-1:]
        made.append(points.new_empty((*dropped.shape, *grid, *columns), dtype=dtype))
    return [*made, dropped] if return_dropped else made


def _fake_out(
    points: Tensor, _features: Tensor | None, _lengths: Tensor | None, batch_offsets: Tensor | None, *rest: Any
) -> Tensor:
    return_dropped = rest[-2]
    return _fake_dropped(points, batch_offsets) if return_dropped else points.new_empty(0, dtype=torch.int64)


def _fake_backward(_points: Tensor, features: Tensor, *rest: Any) -> Any:
    return features.new_empty(features.shape, dtype=_work_type(features))


implement("voxelize_pointcloud", _run, _fake)
implement("voxelize_pointcloud_out", _run_out, _fake_out)
implement("voxelize_pointcloud_backward", _run_backward, _fake_backward)

# ---- Gradients ----


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    *call, modes, _return_dropped = inputs
    points, features, lengths, batch_offsets, *ctx.options = call
    ctx.modes, ctx.inputs = modes, len(inputs)
    made = [array for mode, array in zip(modes, output, strict=False) if mode in ("min", "max")]
    ctx.save_for_backward(points, features, lengths, batch_offsets, *made)


def _backward_by(gradient_rows: Callable[..., Any]) -> Callable[..., Any]:
    def backward(ctx: Any, *out_gradients: Any) -> Any:
        if len(out_gradients) == 1 and isinstance(out_gradients[0], list | tuple):
            out_gradients = tuple(out_gradients[0])  # the operator's, whose output is a list
        nothing = [None] * ctx.inputs
        if not ctx.needs_input_grad[1]:
            return tuple(nothing)
        points, features, lengths, batch_offsets, *kept = ctx.saved_tensors
        kept = iter(kept)
        modes, made, gradients = [], [], []
        for mode, gradient in zip(ctx.modes, out_gradients, strict=False):
            result = next(kept) if mode in ("min", "max") else None
            if gradient is None or mode in _WITHOUT_FEATURES:
                continue
            modes.append(mode)
            made.append(points.new_empty(0) if result is None else result)
            gradients.append(gradient)
        if modes:
            call = points, features, lengths, batch_offsets, *ctx.options, modes
            nothing[1] = gradient_rows(*call, made, gradients).to(features.dtype)
        return tuple(nothing)

    return backward


# ---- vmap: one more dimension of clouds in front ----


def _fold(size: int, dims: Sequence[Any], call: Sequence[Any]) -> tuple[Any, Any]:
    """The arguments of `size` calls as those of one, and whether each has several clouds."""
    points, features, lengths, batch_offsets, *rest = call
    if batch_offsets is not None:
        raise errors.ArgumentError("batch_offsets: expected none under vmap; pass points [B, N, 3] with lengths")
    points = in_front(points, dims[0], size)
    batched = points.ndim == 4
    rows = points.shape[1:-1]
    if lengths is not None:
        lengths = in_front(lengths, dims[2], size).reshape(-1)
    if features is not None:
        features = _fold_clouds(in_front(features, dims[1], size), batched)
    return (_fold_clouds(points, batched), features, lengths, None, *rest), rows[0] if batched else None


def _fold_clouds(array: Tensor, batched: bool) -> Tensor:
    return array.flatten(0, 1) if batched else array


def _unfold(array: Tensor, size: int, clouds: int | None) -> Tensor:
    return array if clouds is None else array.reshape(size, clouds, *array.shape[1:])


def _vmap_by(call: Callable[..., Any]) -> Callable[..., Any]:
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        folded, clouds = _fold(info.batch_size, in_dims, arguments)
        made = call(*folded)
        unfolded = [_unfold(array, info.batch_size, clouds) for array in made]
        return type(made)(unfolded), type(made)([0] * len(unfolded))

    return vmap


def _fold_backward(
    size: int,
    dims: Sequence[Any],
    of_made: Sequence[Any],
    of_gradients: Sequence[Any],
    call: Sequence[Any],
    made: Sequence[Tensor],
    gradients: Sequence[Tensor],
) -> Any:
    folded, clouds = _fold(size, dims, call)
    lists = []
    for arrays, of_arrays in ((made, of_made), (gradients, of_gradients)):
        pairs = zip(arrays, of_arrays, strict=True)
        stacked = [array if array.ndim == 1 else in_front(array, dim, size) for array, dim in pairs]
        lists.append([array if array.ndim == 1 else _fold_clouds(array, clouds is not None) for array in stacked])
    return (*folded, *lists), clouds


def _vmap_backward(info: Any, in_dims: Any, *arguments: Any) -> Any:
    *call, made, gradients = arguments
    *dims, of_made, of_gradients = in_dims
    nowhere = [None] * len(made)
    folded, clouds = _fold_backward(
        info.batch_size, dims, of_made or nowhere, of_gradients or nowhere, call, made, gradients
    )
    return _unfold(_voxelize_backward(*folded), info.batch_size, clouds), 0


# ---- How torch finds these ----

torch.library.register_autograd(
    "robocache::voxelize_pointcloud", _backward_by(_voxelize_backward), setup_context=_remember
)
torch.library.register_autograd(
    "robocache::voxelize_pointcloud_backward", refuse_second_derivative("voxelize_pointcloud")
)
torch.library.register_vmap("robocache::voxelize_pointcloud", _vmap_by(_voxelize))
torch.library.register_vmap("robocache::voxelize_pointcloud_backward", _vmap_backward)


class _VoxelizeBackward(Function):
    """(modes, the call, made..., out_gradients...), for a Function sees no list's tensors."""

    @staticmethod
    def forward(modes: Sequence[str], *flat: Any) -> Any:
        call, made, gradients = _taken_apart(modes, flat)
        return _run_backward(*call, modes, made, gradients)

    setup_context = staticmethod(remember_nothing)
    backward = staticmethod(refuse_second_derivative("voxelize_pointcloud"))

    @staticmethod
    def vmap(info: Any, in_dims: Any, modes: Sequence[str], *flat: Any) -> Any:
        call, made, gradients = _taken_apart(modes, flat)
        dims, of_made, of_gradients = _taken_apart(modes, in_dims[1:])
        arguments, clouds = _fold_backward(info.batch_size, dims, of_made, of_gradients, call, made, gradients)
        *call, made, gradients = arguments
        return _unfold(_VoxelizeBackward.apply(modes, *call, *made, *gradients), info.batch_size, clouds), 0


def _taken_apart(modes: Sequence[str], flat: Sequence[Any]) -> tuple[Sequence[Any], list[Any], list[Any]]:
    first = len(flat) - 2 * len(modes)
    return flat[:first], list(flat[first : first + len(modes)]), list(flat[first + len(modes) :])


def _gradient_rows(*arguments: Any) -> Any:
    """Recorded where a second derivative may be asked for, which is refused, and where torch hides memory."""
    *call, modes, made, gradients = arguments
    if not torch.is_grad_enabled() and not memory_is_hidden(*made, *gradients, *call[:3]):
        return _run_backward(*arguments)
    return _VoxelizeBackward.apply(modes, *call, *made, *gradients)


class _Voxelize(Function):
    @staticmethod
    def forward(*arguments: Any) -> Any:
        return tuple(_run(*arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _remember(ctx, inputs, output)
        ctx.mark_non_differentiable(*(array for array in output if not array.is_floating_point()))
        ctx.set_materialize_grads(False)

    backward = staticmethod(_backward_by(_gradient_rows))
    vmap = staticmethod(_vmap_by(lambda *arguments: _Voxelize.apply(*arguments)))


_PlainVoxelize = without_torch_func(_Voxelize)
