"""fuse_multimodal on torch's side.

An operator has no list of anything, so what the library takes for the streams' options is taken apart by type.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ... import _lib, errors
from .._call import STREAM_OPTIONS, arrays_of
from ._call import (
    Function,
    check_tensors,
    fold_clock,
    fold_lengths,
    fold_values,
    gradient_of,
    implement,
    is_shape_alone,
    memory_is_hidden,
    needs_torch_func,
    refuse_second_derivative,
    remember_nothing,
    unfold,
    unfold_rows,
    without_torch_func,
)

_call = _lib.function("fuse_multimodal")
_call_backward = _lib.function("fuse_multimodal_backward")

_NONE, _FALSE, _TRUE, _TEXT, _NUMBER, _ARRAY = range(6)
_SHARED = len(STREAM_OPTIONS)  # options for all streams come before those of single ones
_DTYPE = list(STREAM_OPTIONS).index("dtype")

_STREAMS = (
    "Tensor[] values, Tensor[] times, Tensor target_times, Tensor? target_lengths, bool separate, str[] names, "
    "int[] kinds, str[] texts, Scalar[] numbers, Tensor[] arrays"
)
torch.library.define(
    "robocache::fuse_multimodal", f"({_STREAMS}, bool return_valid, bool return_age) -> Tensor[] out_valid_age"
)
torch.library.define(
    "robocache::fuse_multimodal_out",
    f"({_STREAMS}, bool return_valid, bool return_age, Tensor(a!)[] out) -> (Tensor valid, Tensor age)",
)
# Of values and times of each stream, then of target_times: row by row, empty where not wanted.
torch.library.define(
    "robocache::fuse_multimodal_backward",
    f"({_STREAMS}, Tensor[] out_gradients, bool[] wanted) -> Tensor[] gradients",
)
_fuse = torch.ops.robocache.fuse_multimodal.default
_fuse_out = torch.ops.robocache.fuse_multimodal_out.default
_fuse_backward = torch.ops.robocache.fuse_multimodal_backward.default


def _packed(options: Sequence[Any]) -> tuple[list[int], list[str], list[Any], list[Tensor]]:
    kinds: list[int] = []
    texts: list[str] = []
    numbers: list[Any] = []
    arrays: list[Tensor] = []
    for option in options:
        if option is None:
            kinds.append(_NONE)
        elif isinstance(option, bool):
            kinds.append(_TRUE if option else _FALSE)
        elif isinstance(option, str):
            kinds.append(_TEXT)
            texts.append(option)
        elif isinstance(option, torch.Tensor):
            kinds.append(_ARRAY)
            arrays.append(option)
        else:
            kinds.append(_NUMBER)
            numbers.append(option)
    return kinds, texts, numbers, arrays


def _unpacked(
    kinds: Sequence[int], texts: Sequence[str], numbers: Sequence[Any], arrays: Sequence[Tensor]
) -> list[Any]:
    sources: dict[int, Iterator[Any]] = {
        _NONE: itertools.repeat(None),
        _FALSE: itertools.repeat(False),
        _TRUE: itertools.repeat(True),
        _TEXT: iter(texts),
        _NUMBER: iter(numbers),
        _ARRAY: iter(arrays),
    }
    return [next(sources[kind]) for kind in kinds]


def fuse_multimodal(
    count: int,
    target_times: Tensor,
    target_lengths: Tensor | None,
    separate: bool,
    return_valid: bool,
    return_age: bool,
    out_count: int,
    *rest: Any,
) -> list[Any]:
    """What the library's function takes -> what it makes, in a list."""
    shared, rest = rest[:_SHARED], rest[_SHARED:]
    streams, rest = rest[: 3 * count], rest[3 * count :]
    outs, own = list(rest[:out_count]), rest[out_count:]
    names, values, times = (list(streams[i::3]) for i in range(3))
    if not all(isinstance(array, torch.Tensor) for array in (*values, *times, target_times)):
        arrays = {"target_times": target_times}
        for place, name in enumerate(names):
            stream = f"streams[{place if name is None else name!r}]"
            arrays |= {f"{stream}.values": values[place], f"{stream}.times": times[place]}
        check_tensors(arrays)
    arguments = (
        values,
        times,
        target_times,
        target_lengths,
        separate,
        [name for name in names if name is not None],
        *_packed((*shared, *own)),
        return_valid,
        return_age,
    )
    if outs:
        if torch.is_grad_enabled() and any(x.requires_grad for x in (*values, *times, target_times, *outs)):
            raise errors.ArgumentError("out: carries no gradients; leave it out, or call under torch.no_grad()")
        extra = _fuse_out(*arguments, outs)  # both, empty where not asked for
        return [array for array, asked in zip(extra, (return_valid, return_age), strict=True) if asked]
    if torch.compiler.is_compiling() or is_shape_alone(target_times):
        made = list(_fuse(*arguments))
    else:
        hidden = needs_torch_func(*values, *times, target_times, target_lengths, *arguments[9])
        made = list((_Fuse if hidden else _PlainFuse).apply(count, *values, *times, *arguments[2:]))
    if return_age:
        made = [*made[:-1], made[-1].detach()]
    return made


def _library_arguments(
    values: Sequence[Tensor],
    times: Sequence[Tensor],
    target_times: Tensor,
    target_lengths: Tensor | None,
    separate: bool,
    names: Sequence[str],
    *packed: Any,
    extra: tuple[bool, bool],
    outs: Sequence[Tensor],
) -> tuple[tuple[Any, ...], list[Any]]:
    options = _unpacked(*packed)
    names_or_none = names or itertools.repeat(None, len(values))
    streams = zip(names_or_none, (x.resolve_neg() for x in values), (x.resolve_neg() for x in times), strict=True)
    return (
        len(values),
        target_times.resolve_neg(),
        target_lengths,
        separate,
        *extra,
        len(outs),
        *options[:_SHARED],
        *itertools.chain.from_iterable(streams),
        *outs,
    ), options[_SHARED:]


def _run(values: Sequence[Tensor], *rest: Any, outs: Sequence[Tensor] = ()) -> list[Any]:
    *streams, return_valid, return_age = rest
    arguments, own = _library_arguments(values, *streams, extra=(return_valid, return_age), outs=outs)
    made = _call(*arguments, *own)
    separate = streams[3]
    count = (0 if outs else len(values) if separate else 1) + return_valid + return_age
    if count == 0:
        return []
    return [made] if count == 1 else arrays_of(made, values[0], count)


def _run_out(values: Sequence[Tensor], *arguments: Any) -> tuple[Tensor, ...]:
    *rest, return_valid, return_age, outs = arguments
    made = iter(_run(values, *rest, return_valid, return_age, outs=outs))
    return tuple(next(made) if asked else values[0].new_empty(0) for asked in (return_valid, return_age))


def _run_backward(values: Sequence[Tensor], times: Sequence[Tensor], target_times: Tensor, *rest: Any) -> list[Tensor]:
    *streams, out_gradients, wanted = rest
    batch = (1, *values[0].shape)[-3]
    buffers = _gradient_buffers(values, times, target_times, wanted, batch)
    gradients = [gradient.resolve_neg() for gradient in out_gradients]
    arguments, own = _library_arguments(values, times, target_times, *streams, extra=(False, False), outs=gradients)
    _call_backward(*arguments, *buffers, *own)
    return [values[0].new_empty(0) if buffer is None else buffer for buffer in buffers]


def _gradient_buffers(
    values: Sequence[Tensor], times: Sequence[Tensor], target_times: Tensor, wanted: Sequence[bool], batch: int
) -> list[Tensor | None]:
    shapes: list[tuple[tuple[int, ...], torch.dtype]] = []
    for value, time in zip(values, times, strict=True):
        work = torch.float64 if value.dtype == torch.float64 else torch.float32
        shapes += ((batch, *value.shape[-2:]), work), ((batch, time.shape[-1]), torch.float64)
    shapes.append(((batch, target_times.shape[-1]), torch.float64))
    return [
        target_times.new_zeros(shape, dtype=dtype) if asked else None
        for (shape, dtype), asked in zip(shapes, wanted, strict=True)
    ]


def _fake_extra(values: Sequence[Tensor], target_times: Tensor, return_valid: bool, return_age: bool) -> list[Tensor]:
    shape = (*values[0].shape[:-2], target_times.shape[-1], len(values))
    made = [values[0].new_empty(shape, dtype=torch.bool)] if return_valid else []
    return [*made, values[0].new_empty(shape, dtype=target_times.dtype)] if return_age else made


def _fake(
    values: Sequence[Tensor],
    times: Sequence[Tensor],
    target_times: Tensor,
    target_lengths: Tensor | None,
    separate: bool,
    names: Sequence[str],
    *rest: Any,
) -> list[Tensor]:
    *packed, return_valid, return_age = rest
    options = _unpacked(*packed)
    dtypes = [options[_DTYPE]] * len(values)
    own = options[_SHARED:]
    while own:
        if own[1] == _DTYPE:
            dtypes[own[0]] = own[2]
        del own[: 5 if own[1] == _SHARED else 3]  # a block of methods has three values
    dtypes = [
        value.dtype if dtype is None else getattr(torch, dtype) for value, dtype in zip(values, dtypes, strict=True)
    ]
    shape = *values[0].shape[:-2], target_times.shape[-1]
    widths = [value.shape[-1] for value in values]
    if not separate:
        widths, dtypes = [sum(widths)], dtypes[:1]
    out = [values[0].new_empty((*shape, width), dtype=dtype) for width, dtype in zip(widths, dtypes, strict=True)]
    return out + _fake_extra(values, target_times, return_valid, return_age)


def _fake_out(
    values: Sequence[Tensor], times: Sequence[Tensor], target_times: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    *_, return_valid, return_age, _outs = rest
    made = iter(_fake_extra(values, target_times, return_valid, return_age))
    return tuple(next(made) if asked else values[0].new_empty(0) for asked in (return_valid, return_age))


def _fake_backward(values: Sequence[Tensor], times: Sequence[Tensor], target_times: Tensor, *rest: Any) -> list[Tensor]:
    batch = (1, *values[0].shape)[-3]
    buffers = _gradient_buffers(values, times, target_times, rest[-1], batch)
    return [values[0].new_empty(0) if buffer is None else buffer for buffer in buffers]


implement("fuse_multimodal", _run, _fake)
implement("fuse_multimodal_out", _run_out, _fake_out)
implement("fuse_multimodal_backward", _run_backward, _fake_backward)

# ---- Gradients ----


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    values, times, target_times, target_lengths, separate, names, *packed, arrays, return_valid, return_age = inputs
    ctx.save_for_backward(*values, *times, target_times, target_lengths, *arrays)
    ctx.streams = len(values)
    ctx.options = separate, names, *packed
    outs = output[: len(output) - return_valid - return_age]
    ctx.outs = [(out.shape, out.dtype) for out in outs]
    # The operator answers a list of tensors, which an empty list might be, with a list.
    ctx.no_gradients = [
        [None] * len(value) if isinstance(value, list) and all(isinstance(x, torch.Tensor) for x in value) else None
        for value in inputs[3:]
    ]


def _gradients(
    ctx: Any, out_gradients: Sequence[Tensor | None], wanted: Sequence[bool], gradient_rows: Callable[..., Any]
) -> list[Tensor | None]:
    count = ctx.streams
    values, times = ctx.saved_tensors[:count], ctx.saved_tensors[count : 2 * count]
    target_times, target_lengths, *arrays = ctx.saved_tensors[2 * count :]
    out_gradients = [  # an output that the loss does not see has none
        target_times.new_zeros(shape, dtype=dtype) if gradient is None else gradient
        for gradient, (shape, dtype) in zip(out_gradients, ctx.outs, strict=False)
    ]
    rows = gradient_rows(
        list(values), list(times), target_times, target_lengths, *ctx.options, list(arrays), out_gradients, wanted
    )
    inputs = [*itertools.chain.from_iterable(zip(values, times, strict=True)), target_times]
    return [
        gradient_of(array, gradient) if asked else None
        for array, gradient, asked in zip(inputs, rows, wanted, strict=True)
    ]


def _operator_backward(ctx: Any, out_gradients: Sequence[Tensor | None]) -> Any:
    of_values, of_times, of_targets = ctx.needs_input_grad[:3]
    pairs = zip(of_values, of_times, strict=True)
    wanted = [bool(asked) for asked in (*itertools.chain.from_iterable(pairs), of_targets)]
    gradients = _gradients(ctx, out_gradients, wanted, _fuse_backward)
    return gradients[:-1:2], gradients[1:-1:2], gradients[-1], *ctx.no_gradients


torch.library.register_autograd("robocache::fuse_multimodal", _operator_backward, setup_context=_remember)
torch.library.register_autograd("robocache::fuse_multimodal_backward", refuse_second_derivative("fuse_multimodal"))


class _FuseBackward(Function):
    """(count, values..., times..., target_times, ..., out_gradients..., wanted), for a Function sees no list's tensors."""

    @staticmethod
    def forward(count: int, outs: int, *flat: Any) -> Any:
        values, times, rest = flat[:count], flat[count : 2 * count], flat[2 * count :]
        *streams, wanted = rest[: len(rest) - outs]
        return tuple(_run_backward(values, times, *streams, rest[len(rest) - outs :], wanted))

    setup_context = staticmethod(remember_nothing)
    backward = staticmethod(refuse_second_derivative("fuse_multimodal"))

    @staticmethod
    def vmap(info: Any, in_dims: Any, count: int, outs: int, *flat: Any) -> Any:
        size = info.batch_size
        dims = in_dims[2:]
        folded, _ = _fold_streams(size, count, dims, flat)
        first = len(folded) - outs
        folded[first:] = (fold_values(x, dim, size) for x, dim in zip(folded[first:], dims[first:], strict=True))
        rows = _FuseBackward.apply(count, outs, *folded)
        return unfold_rows(rows, folded[first - 1], size)


def _gradient_rows(values: Sequence[Tensor], times: Sequence[Tensor], *rest: Any) -> Any:
    *streams, out_gradients, wanted = rest
    if not torch.is_grad_enabled() and not memory_is_hidden(*out_gradients):
        return _run_backward(values, times, *rest)
    return _FuseBackward.apply(len(values), len(out_gradients), *values, *times, *streams, wanted, *out_gradients)


def _fold_streams(size: int, count: int, dims: Sequence[Any], flat: Sequence[Any]) -> tuple[list[Any], bool]:
    """values..., times..., target_times, target_lengths, separate, names, kinds, texts, numbers, arrays, ... of `size`
    calls as those of one."""
    made = list(flat)
    batched = made[0].ndim == (3 if dims[0] is None else 4)
    made[:count] = (fold_values(x, dim, size) for x, dim in zip(made[:count], dims[:count], strict=True))
    batch = made[0].shape[0] // size
    for place in range(count, 2 * count + 1):
        made[place] = fold_clock(flat[place], dims[place], size, batch)
    made[2 * count + 1] = fold_lengths(flat[2 * count + 1], dims[2 * count + 1], size)
    place = 2 * count + 7
    made[place] = [
        _fold_option(array, dim, size)
        for array, dim in zip(flat[place], dims[place] or [None] * len(flat[place]), strict=True)
    ]
    return made, batched


def _fold_option(array: Tensor, dim: int | None, size: int) -> Tensor | None:
    if array.dtype in (torch.int32, torch.int64):  # lengths
        return fold_lengths(array, dim, size)
    if dim is not None:
        raise errors.ArgumentError("scale, shift: expected the same for every call under vmap")
    return array


class _Fuse(Function):
    """(count, values..., times..., target_times, ...), for a Function sees no list's tensors."""

    @staticmethod
    def forward(count: int, *flat: Any) -> Any:
        return tuple(_run(flat[:count], flat[count : 2 * count], *flat[2 * count :]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        count, flat = inputs[0], inputs[1:]
        _remember(ctx, (flat[:count], flat[count : 2 * count], *flat[2 * count :]), output)
        return_age = inputs[-1]
        if return_age:
            ctx.mark_non_differentiable(output[-1])

    @staticmethod
    def backward(ctx: Any, *out_gradients: Any) -> Any:
        count, needs = ctx.streams, ctx.needs_input_grad
        pairs = zip(needs[1 : count + 1], needs[count + 1 : 2 * count + 1], strict=True)
        wanted = [*itertools.chain.from_iterable(pairs), needs[2 * count + 1]]
        gradients = _gradients(ctx, out_gradients, wanted, _gradient_rows)
        rest = [None] * (len(needs) - 2 * count - 2)
        return None, *gradients[:-1:2], *gradients[1:-1:2], gradients[-1], *rest

    @staticmethod
    def vmap(info: Any, in_dims: Any, count: int, *flat: Any) -> Any:
        folded, batched = _fold_streams(info.batch_size, count, in_dims[1:], flat)
        made = _Fuse.apply(count, *folded)
        return tuple(unfold(array, info.batch_size, batched) for array in made), (0,) * len(made)


_PlainFuse = without_torch_func(_Fuse)


def _vmap(info: Any, in_dims: Any, values: Sequence[Tensor], times: Sequence[Tensor], *rest: Any) -> Any:
    count = len(values)
    dims = [dim for of_list in in_dims[:2] for dim in (of_list or [None] * count)]
    flat, batched = _fold_streams(info.batch_size, count, [*dims, *in_dims[2:]], [*values, *times, *rest])
    made = _fuse(flat[:count], flat[count : 2 * count], *flat[2 * count :])
    return [unfold(array, info.batch_size, batched) for array in made], [0] * len(made)


torch.library.register_vmap("robocache::fuse_multimodal", _vmap)
