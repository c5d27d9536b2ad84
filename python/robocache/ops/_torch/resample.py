"""resample_trajectories on torch's side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ... import _lib, errors
from ._call import (
    Function,
    check_tensors,
    fold_clock,
    fold_lengths,
    fold_values,
    gradient_of,
    implement,
    in_front,
    is_shape_alone,
    memory_is_hidden,
    needs_torch_func,
    refuse_second_derivative,
    remember_nothing,
    unfold,
    unfold_rows,
    without_torch_func,
)

_call = _lib.function("resample_trajectories")
_call_backward = _lib.function("resample_trajectories_backward")
_call_valid = _lib.function("resample_valid")

_ARRAYS = "Tensor values, Tensor times, Tensor target_times"
_OPTIONS = (
    "str method, str extrapolate, bool causal, Scalar? max_gap, Scalar? tolerance, Tensor? lengths, "
    "Tensor? target_lengths, str bc_type, SymInt[] block_bounds, str[] block_methods"
)

# What is not asked for is an empty tensor: an operator returns no None.
torch.library.define(
    "robocache::resample_trajectories",
    f"({_ARRAYS}, {_OPTIONS}, bool return_valid) -> (Tensor out, Tensor valid)",
)
torch.library.define(
    "robocache::resample_trajectories_out",
    f"({_ARRAYS}, {_OPTIONS}, bool return_valid, Tensor(a!) out) -> Tensor valid",
)
# Gradients row by row, [B, S, D], [B, S] and [B, T], before they are summed over shared clocks and rounded.
torch.library.define(
    "robocache::resample_trajectories_backward",
    f"({_ARRAYS}, {_OPTIONS}, Tensor out_gradient, bool[3] wanted)"
    " -> (Tensor values_gradient, Tensor times_gradient, Tensor targets_gradient)",
)
_resample = torch.ops.robocache.resample_trajectories.default
_resample_out = torch.ops.robocache.resample_trajectories_out.default
_resample_backward = torch.ops.robocache.resample_trajectories_backward.default


def resample_trajectories(
    values: Any, times: Any, target_times: Any, *options: Any, blocks: tuple[Any, ...], return_valid: bool, out: Any
) -> Any:
    """As robocache.resample_trajectories; `options` in the operators' order, `blocks` a flat run of (start, stop, method)."""
    arrays = {"values": values, "times": times, "target_times": target_times}
    given = {"lengths": options[5], "target_lengths": options[6], "out": out}
    arrays |= {name: array for name, array in given.items() if array is not None}
    check_tensors(arrays)
    bounds: list[Any] = []
    for start, stop in zip(blocks[::3], blocks[1::3], strict=True):
        bounds += 0 if start is None else start, values.shape[-1] if stop is None else stop
    arguments = values, times, target_times, *options, bounds, list(blocks[2::3])
    if out is None:
        out, valid = _recorded(*arguments, return_valid)
    else:
        if torch.is_grad_enabled() and any(x.requires_grad for x in (values, times, target_times, out)):
            raise errors.ArgumentError("out: carries no gradients; leave it out, or call under torch.no_grad()")
        valid = _resample_out(*arguments, return_valid, out)
    return (out, valid) if return_valid else out


def _recorded(*arguments: Any) -> Any:
    """By the operator where a graph is traced, else by a Function."""
    if torch.compiler.is_compiling() or is_shape_alone(arguments[0]):
        return _resample(*arguments)
    return (_Resample if needs_torch_func(*arguments) else _PlainResample).apply(*arguments)


# ---- By the library ----


def _blocks(bounds: Sequence[int], methods: Sequence[str]) -> list[Any]:
    return [x for i, method in enumerate(methods) for x in (bounds[2 * i], bounds[2 * i + 1], method)]


def _write(values: Tensor, times: Tensor, target_times: Tensor, *rest: Any) -> tuple[Any, Any]:
    """(out, valid): `out` made where it is None, `valid` None where it is not asked for."""
    *options, lengths, target_lengths, bc_type, bounds, methods, return_valid, out = rest
    # DLPack cannot tell that a sign is still to be applied.
    arrays = values.resolve_neg(), times.resolve_neg(), target_times.resolve_neg()
    valid = _call_valid(*arrays) if return_valid else None
    blocks = _blocks(bounds, methods)
    return _call(*arrays, *options, lengths, out, valid, target_lengths, bc_type, *blocks), valid


def _run(*arguments: Any) -> Any:
    return _write(*arguments, None)


def _run_backward(values: Tensor, times: Tensor, target_times: Tensor, *rest: Any) -> Any:
    *options, lengths, target_lengths, bc_type, bounds, methods, out_gradient, wanted = rest
    buffers = _gradient_buffers(values, times, target_times, wanted)
    _call_backward(
        values.resolve_neg(),
        times.resolve_neg(),
        target_times.resolve_neg(),
        *options,
        lengths,
        out_gradient.resolve_neg(),
        buffers[0],
        target_lengths,
        bc_type,
        *buffers[1:],
        *_blocks(bounds, methods),
    )
    return buffers


def _gradient_buffers(
    values: Tensor, times: Tensor, target_times: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    batch, samples, features = (1, *values.shape)[-3:]
    work = torch.float64 if values.dtype == torch.float64 else torch.float32
    shapes = (batch, samples, features), (batch, samples), (batch, target_times.shape[-1])
    dtypes = work, torch.float64, torch.float64
    return tuple(
        values.new_zeros(shape, dtype=dtype) if asked else None
        for shape, dtype, asked in zip(shapes, dtypes, wanted, strict=True)
    )


# ---- Operators ----


def _tensors(values: Tensor, *results: Any) -> tuple[Tensor, ...]:
    return tuple(values.new_empty(0) if result is None else result for result in results)


def _implement(values: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    out, valid = _run(values, *rest)
    return out, values.new_empty(0, dtype=torch.bool) if valid is None else valid


def _implement_out(values: Tensor, *rest: Any) -> Tensor:
    _, valid = _write(values, *rest)
    return values.new_empty(0, dtype=torch.bool) if valid is None else valid


def _implement_backward(values: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _tensors(values, *_run_backward(values, *rest))


def _fake_valid(values: Tensor, target_times: Tensor, return_valid: bool) -> Tensor:
    shape = (*values.shape[:-2], target_times.shape[-1]) if return_valid else 0
    return values.new_empty(shape, dtype=torch.bool)


def _fake(values: Tensor, times: Tensor, target_times: Tensor, *rest: Any) -> Any:
    out = values.new_empty((*values.shape[:-2], target_times.shape[-1], values.shape[-1]))
    return out, _fake_valid(values, target_times, rest[-1])


def _fake_out(values: Tensor, times: Tensor, target_times: Tensor, *rest: Any) -> Tensor:
    return _fake_valid(values, target_times, rest[-2])


def _fake_backward(values: Tensor, times: Tensor, target_times: Tensor, *rest: Any) -> Any:
    return _tensors(values, *_gradient_buffers(values, times, target_times, rest[-1]))


implement("resample_trajectories", _implement, _fake)
implement("resample_trajectories_out", _implement_out, _fake_out)
implement("resample_trajectories_backward", _implement_backward, _fake_backward)

# ---- Gradients ----


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    *arrays_and_options, lengths, target_lengths, bc_type, bounds, methods, _return_valid = inputs
    ctx.save_for_backward(*arrays_and_options[:3], lengths, target_lengths)
    ctx.options = arrays_and_options[3:], (bc_type, bounds, methods)


def _backward_by(gradient_rows: Callable[..., Any]) -> Callable[..., Any]:
    """The formula, with the operator where it is the operator's own, else with the Function."""

    def backward(ctx: Any, out_gradient: Tensor, _valid_gradient: Any) -> Any:
        *arrays, lengths, target_lengths = ctx.saved_tensors
        before, after = ctx.options
        wanted = list(ctx.needs_input_grad[:3])
        rows = gradient_rows(*arrays, *before, lengths, target_lengths, *after, out_gradient, wanted)
        gradients: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
        for i, (array, gradient) in enumerate(zip(arrays, rows, strict=True)):
            if wanted[i]:
                gradients[i] = gradient_of(array, gradient)
        return tuple(gradients)

    return backward


# ---- vmap: one more batch dimension, folded into the rows ----


def _fold(size: int, dims: Sequence[Any], arguments: Any) -> tuple[Any, Any]:
    """The arguments of `size` calls as those of one, and whether each call has batch rows of its own."""
    values, times, target_times, *rest = arguments
    batched = values.ndim == (3 if dims[0] is None else 4)
    made = [fold_values(values, dims[0], size)]
    batch = made[0].shape[0] // size
    made += (fold_clock(clock, dim, size, batch) for clock, dim in ((times, dims[1]), (target_times, dims[2])))
    rest[5:7] = (fold_lengths(lengths, dim, size) for lengths, dim in zip(rest[5:7], dims[8:10], strict=True))
    return [*made, *rest], batched


def _vmap_by(call: Callable[..., Any]) -> Callable[..., Any]:
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        folded, batched = _fold(info.batch_size, in_dims, arguments)
        out, valid = call(*folded)
        out = unfold(out, info.batch_size, batched)
        return_valid = arguments[-1]
        if return_valid:
            return (out, unfold(valid, info.batch_size, batched)), (0, 0)
        return (out, valid), (0, None)

    return vmap


def _vmap_backward_by(gradient_rows: Callable[..., Any]) -> Callable[..., Any]:
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        out_gradient = in_front(arguments[-2], in_dims[-2], info.batch_size)
        folded, _ = _fold(info.batch_size, in_dims, arguments)
        folded[-2] = out_gradient.reshape(folded[0].shape[0], *out_gradient.shape[-2:])
        return unfold_rows(gradient_rows(*folded), folded[-1], info.batch_size)

    return vmap


# ---- How torch finds these ----

torch.library.register_autograd(
    "robocache::resample_trajectories", _backward_by(_resample_backward), setup_context=_remember
)
torch.library.register_autograd(
    "robocache::resample_trajectories_backward", refuse_second_derivative("resample_trajectories")
)
torch.library.register_vmap("robocache::resample_trajectories", _vmap_by(_resample))
torch.library.register_vmap("robocache::resample_trajectories_backward", _vmap_backward_by(_resample_backward))


def _gradient_rows(*arguments: Any) -> Any:
    """Recorded where a second derivative may be asked for, which is refused; by the operator where gradients are batched."""
    *_, out_gradient, _wanted = arguments
    if torch.is_grad_enabled():
        return _ResampleBackward.apply(*arguments)
    return (_resample_backward if memory_is_hidden(out_gradient) else _run_backward)(*arguments)


class _ResampleBackward(Function):
    forward = staticmethod(_run_backward)
    setup_context = staticmethod(remember_nothing)
    backward = staticmethod(refuse_second_derivative("resample_trajectories"))
    vmap = staticmethod(_vmap_backward_by(lambda *arguments: _ResampleBackward.apply(*arguments)))


class _Resample(Function):
    forward = staticmethod(_run)
    setup_context = staticmethod(_remember)
    backward = staticmethod(_backward_by(_gradient_rows))
    vmap = staticmethod(_vmap_by(lambda *arguments: _Resample.apply(*arguments)))


_PlainResample = without_torch_func(_Resample)
