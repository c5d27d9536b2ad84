"""The operations as torch operators: gradients, torch.compile, vmap and all else that goes through torch's dispatcher.

`robocache.ops` imports this where one of these is at work; calls without them go straight to the library. Each operation
is here twice: as an operator, which a traced graph holds, and as an autograd.Function around the library, which costs a
tenth of an operator's dispatch and which torch.func can look into.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from . import _lib, errors, ops

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


def memory_is_hidden(*arrays: Any) -> bool:
    """Whether torch keeps some array's memory from the library: tensors in a transform, fake and meta tensors."""
    return any(isinstance(array, torch.Tensor) and (_is_shape_alone(array) or _is_wrapped(array)) for array in arrays)


def check_memory(arrays: Mapping[str, Any]) -> None:
    """Raises where no way leads to a tensor's memory, or where only some of the call's tensors have any."""
    tensors = {name: array for name, array in arrays.items() if isinstance(array, torch.Tensor)}
    on_meta = [name for name, tensor in tensors.items() if tensor.device.type == "meta"]
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
            kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else tensor.layout
            raise errors.ArgumentTypeError(f"{name}: expected a dense tensor, got {kind}")
        if on_meta and tensor.device.type != "meta":
            raise errors.ArgumentError(f"{name}: expected on meta like {on_meta[0]}, got on {tensor.device}")


def _is_shape_alone(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor)


def _is_wrapped(tensor: torch.Tensor) -> bool:
    try:
        tensor.data_ptr()
    except RuntimeError:
        return True
    return False


def resample_trajectories(
    values: Any, times: Any, target_times: Any, *options: Any, blocks: tuple, return_valid: bool, out: Any
) -> Any:
    """As robocache.resample_trajectories; `options` in the operators' order, `blocks` a flat run of (start, stop, method)."""
    arrays = {"values": values, "times": times, "target_times": target_times}
    given = {"lengths": options[5], "target_lengths": options[6], "out": out}
    arrays |= {name: array for name, array in given.items() if array is not None}
    _check_tensors(arrays)
    bounds = []
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


def _check_tensors(arrays: Mapping[str, Any]) -> None:
    for name, array in arrays.items():
        if not isinstance(array, torch.Tensor):
            raise errors.ArgumentTypeError(
                f"{name}: expected a torch tensor, as gradients and torch.compile need, got {type(array).__name__}"
            )


def _recorded(*arguments):
    """By the operator where a graph is traced, else by a Function."""
    if torch.compiler.is_compiling() or _is_shape_alone(arguments[0]):
        return _resample(*arguments)
    return (_Resample if memory_is_hidden(*arguments) else _PlainResample).apply(*arguments)


# ---- By the library ----


def _blocks(bounds, methods):
    return [x for i, method in enumerate(methods) for x in (bounds[2 * i], bounds[2 * i + 1], method)]


def _write(values, times, target_times, *rest):
    """(out, valid): `out` made where it is None, `valid` None where it is not asked for."""
    *options, lengths, target_lengths, bc_type, bounds, methods, return_valid, out = rest
    # DLPack cannot tell that a sign is still to be applied.
    arrays = values.resolve_neg(), times.resolve_neg(), target_times.resolve_neg()
    valid = _call_valid(*arrays) if return_valid else None
    blocks = _blocks(bounds, methods)
    return _call(*arrays, *options, lengths, out, valid, target_lengths, bc_type, *blocks), valid


def _run(*arguments):
    return _write(*arguments, None)


def _run_backward(values, times, target_times, *rest):
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


def _gradient_buffers(values, times, target_times, wanted):
    batch, samples, features = (1, *values.shape)[-3:]
    work = torch.float64 if values.dtype == torch.float64 else torch.float32
    shapes = (batch, samples, features), (batch, samples), (batch, target_times.shape[-1])
    dtypes = work, torch.float64, torch.float64
    return tuple(
        values.new_zeros(shape, dtype=dtype) if asked else None
        for shape, dtype, asked in zip(shapes, dtypes, wanted, strict=True)
    )


# ---- Operators ----


def _tensors(values, *results):
    return tuple(values.new_empty(0) if result is None else result for result in results)


def _implement(values, *rest):
    out, valid = _run(values, *rest)
    return out, values.new_empty(0, dtype=torch.bool) if valid is None else valid


def _implement_out(values, *rest):
    _, valid = _write(values, *rest)
    return values.new_empty(0, dtype=torch.bool) if valid is None else valid


def _implement_backward(values, *rest):
    return _tensors(values, *_run_backward(values, *rest))


for _name, _implementation in (
    ("resample_trajectories", _implement),
    ("resample_trajectories_out", _implement_out),
    ("resample_trajectories_backward", _implement_backward),
):
    torch.library.impl(f"robocache::{_name}", ("cpu", "cuda"), _implementation)


def _fake_valid(values, target_times, return_valid):
    shape = (*values.shape[:-2], target_times.shape[-1]) if return_valid else 0
    return values.new_empty(shape, dtype=torch.bool)


@torch.library.register_fake("robocache::resample_trajectories")
def _fake(values, times, target_times, *rest):
    out = values.new_empty((*values.shape[:-2], target_times.shape[-1], values.shape[-1]))
    return out, _fake_valid(values, target_times, rest[-1])


@torch.library.register_fake("robocache::resample_trajectories_out")
def _fake_out(values, times, target_times, *rest):
    return _fake_valid(values, target_times, rest[-2])


@torch.library.register_fake("robocache::resample_trajectories_backward")
def _fake_backward(values, times, target_times, *rest):
    return _tensors(values, *_gradient_buffers(values, times, target_times, rest[-1]))


# ---- Gradients ----


def _remember(ctx, inputs, output):
    *arrays_and_options, lengths, target_lengths, bc_type, bounds, methods, _return_valid = inputs
    ctx.save_for_backward(*arrays_and_options[:3], lengths, target_lengths)
    ctx.options = arrays_and_options[3:], (bc_type, bounds, methods)


def _backward_by(gradient_rows):
    """The formula, with the operator where it is the operator's own, else with the Function."""

    def backward(ctx, out_gradient, _valid_gradient):
        *arrays, lengths, target_lengths = ctx.saved_tensors
        before, after = ctx.options
        wanted = list(ctx.needs_input_grad[:3])
        rows = gradient_rows(*arrays, *before, lengths, target_lengths, *after, out_gradient, wanted)
        gradients = [None] * len(ctx.needs_input_grad)
        for i, (array, gradient) in enumerate(zip(arrays, rows, strict=True)):
            if wanted[i]:
                # [S, D], or a clock that serves every row, takes the sum over the rows.
                gradients[i] = (gradient.sum(0) if array.ndim < gradient.ndim else gradient).to(array.dtype)
        return tuple(gradients)

    return backward


def _remember_nothing(ctx, inputs, output):
    pass


def _refuse_second_derivative(ctx, *gradients):
    raise errors.ArgumentError("resample_trajectories: carries first derivatives only, got a second backward pass")


# ---- vmap: one more batch dimension, folded into the rows ----


def _in_front(array, dim, size):
    return array.expand(size, *array.shape) if dim is None else array.movedim(dim, 0)


def _fold_values(array, dim, size):
    array = _in_front(array, dim, size)
    return array.reshape(-1, *array.shape[-2:])


def _fold_clock(array, dim, size, batch):
    if dim is None and array.ndim == 1:
        return array  # serves every row of every call
    array = _in_front(array, dim, size)
    if array.ndim == 2:
        array = array[:, None].expand(size, batch, -1)
    return array.reshape(size * batch, array.shape[-1])


def _fold_lengths(array, dim, size):
    return None if array is None else _in_front(array, dim, size).reshape(-1)


def _fold(size, dims, arguments):
    """The arguments of `size` calls as those of one, and whether each call has batch rows of its own."""
    values, times, target_times, *rest = arguments
    batched = values.ndim == (3 if dims[0] is None else 4)
    made = [_fold_values(values, dims[0], size)]
    batch = made[0].shape[0] // size
    made += (_fold_clock(clock, dim, size, batch) for clock, dim in ((times, dims[1]), (target_times, dims[2])))
    rest[5:7] = (_fold_lengths(lengths, dim, size) for lengths, dim in zip(rest[5:7], dims[8:10], strict=True))
    return [*made, *rest], batched


def _unfold(array, size, batched=True):
    array = array.reshape(size, array.shape[0] // size, *array.shape[1:])
    return array if batched else array[:, 0]


def _vmap_by(call):
    def vmap(info, in_dims, *arguments):
        arguments, batched = _fold(info.batch_size, in_dims, arguments)
        out, valid = call(*arguments)
        out = _unfold(out, info.batch_size, batched)
        return_valid = arguments[-1]
        if return_valid:
            return (out, _unfold(valid, info.batch_size, batched)), (0, 0)
        return (out, valid), (0, None)

    return vmap


def _vmap_backward_by(gradient_rows):
    def vmap(info, in_dims, *arguments):
        out_gradient = _in_front(arguments[-2], in_dims[-2], info.batch_size)
        arguments, _ = _fold(info.batch_size, in_dims, arguments)
        arguments[-2] = out_gradient.reshape(arguments[0].shape[0], *out_gradient.shape[-2:])
        rows, wanted = gradient_rows(*arguments), arguments[-1]
        unfolded = (_unfold(row, info.batch_size) if asked else row for row, asked in zip(rows, wanted, strict=True))
        return tuple(unfolded), tuple(0 if asked else None for asked in wanted)

    return vmap


# ---- How torch finds these ----

torch.library.register_autograd(
    "robocache::resample_trajectories", _backward_by(_resample_backward), setup_context=_remember
)
torch.library.register_autograd("robocache::resample_trajectories_backward", _refuse_second_derivative)
torch.library.register_vmap("robocache::resample_trajectories", _vmap_by(_resample))
torch.library.register_vmap("robocache::resample_trajectories_backward", _vmap_backward_by(_resample_backward))


def _without_torch_func(function):
    """The same Function where no transform of torch.func is at work: a third of the cost of a call."""

    class Plain(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            output = function.forward(*inputs)
            function.setup_context(ctx, inputs, output)
            return output

        backward = staticmethod(function.backward)

    return Plain


def _gradient_rows(*arguments):
    """Recorded where a second derivative may be asked for, which is refused; by the operator where gradients are batched."""
    *_, out_gradient, _wanted = arguments
    if torch.is_grad_enabled():
        return _ResampleBackward.apply(*arguments)
    return (_resample_backward if memory_is_hidden(out_gradient) else _run_backward)(*arguments)


class _ResampleBackward(torch.autograd.Function):
    forward = staticmethod(_run_backward)
    setup_context = staticmethod(_remember_nothing)
    backward = staticmethod(_refuse_second_derivative)


class _Resample(torch.autograd.Function):
    forward = staticmethod(_run)
    setup_context = staticmethod(_remember)
    backward = staticmethod(_backward_by(_gradient_rows))


_PlainResample = _without_torch_func(_Resample)
_ResampleBackward.vmap = staticmethod(_vmap_backward_by(_ResampleBackward.apply))
_Resample.vmap = staticmethod(_vmap_by(_Resample.apply))


# ---- fuse_multimodal ---------------------------------------------------------------------------------------------------
# An operator has no list of anything, so what the library takes for the streams' options is taken apart by type.

_call_fuse = _lib.function("fuse_multimodal")
_call_fuse_backward = _lib.function("fuse_multimodal_backward")
_array_of = _lib.function("array_of")

_NONE, _FALSE, _TRUE, _TEXT, _NUMBER, _ARRAY = range(6)
_SHARED = len(ops.STREAM_OPTIONS)  # options for all streams come before those of single ones
_DTYPE = list(ops.STREAM_OPTIONS).index("dtype")

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


def _packed(options):
    kinds, texts, numbers, arrays = [], [], [], []
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


def _unpacked(kinds, texts, numbers, arrays):
    sources = {
        _NONE: itertools.repeat(None),
        _FALSE: itertools.repeat(False),
        _TRUE: itertools.repeat(True),
        _TEXT: iter(texts),
        _NUMBER: iter(numbers),
        _ARRAY: iter(arrays),
    }
    return [next(sources[kind]) for kind in kinds]


def fuse_multimodal(count, target_times, target_lengths, separate, return_valid, return_age, outs, *rest):
    """What the library's function takes -> what it makes, in a list."""
    shared, rest = rest[:_SHARED], rest[_SHARED:]
    streams, rest = rest[: 3 * count], rest[3 * count :]
    outs, own = list(rest[:outs]), rest[outs:]
    names, values, times = (list(streams[i::3]) for i in range(3))
    if not all(isinstance(array, torch.Tensor) for array in (*values, *times, target_times)):
        arrays = {"target_times": target_times}
        for place, name in enumerate(names):
            stream = f"streams[{place if name is None else name!r}]"
            arrays |= {f"{stream}.values": values[place], f"{stream}.times": times[place]}
        _check_tensors(arrays)
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
    if torch.compiler.is_compiling() or _is_shape_alone(target_times):
        made = _fuse(*arguments)
    else:
        hidden = memory_is_hidden(*values, *times, target_times, target_lengths, *arguments[9])
        made = list((_Fuse if hidden else _PlainFuse).apply(count, *values, *times, *arguments[2:]))
    if return_age:
        made = [*made[:-1], made[-1].detach()]
    return made


def _fuse_arguments(values, times, target_times, target_lengths, separate, names, *packed, extra, outs):
    options = _unpacked(*packed)
    names = names or [None] * len(values)
    streams = zip(names, (x.resolve_neg() for x in values), (x.resolve_neg() for x in times), strict=True)
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


def _run_fuse(values, *rest, outs=()):
    *streams, return_valid, return_age = rest
    arguments, own = _fuse_arguments(values, *streams, extra=(return_valid, return_age), outs=outs)
    made = _call_fuse(*arguments, *own)
    separate = streams[3]
    count = (0 if outs else len(values) if separate else 1) + return_valid + return_age
    if count == 0:
        return []
    return [made] if count == 1 else [_array_of(made, values[0], place) for place in range(count)]


def _run_fuse_out(values, *arguments):
    *rest, return_valid, return_age, outs = arguments
    made = iter(_run_fuse(values, *rest, return_valid, return_age, outs=outs))
    return tuple(next(made) if asked else values[0].new_empty(0) for asked in (return_valid, return_age))


def _run_fuse_backward(values, times, target_times, *rest):
    *streams, out_gradients, wanted = rest
    batch = (1, *values[0].shape)[-3]
    buffers = _fuse_buffers(values, times, target_times, wanted, batch)
    gradients = [gradient.resolve_neg() for gradient in out_gradients]
    arguments, own = _fuse_arguments(values, times, target_times, *streams, extra=(False, False), outs=gradients)
    _call_fuse_backward(*arguments, *buffers, *own)
    return [values[0].new_empty(0) if buffer is None else buffer for buffer in buffers]


def _fuse_buffers(values, times, target_times, wanted, batch):
    shapes = []
    for value, time in zip(values, times, strict=True):
        work = torch.float64 if value.dtype == torch.float64 else torch.float32
        shapes += ((batch, *value.shape[-2:]), work), ((batch, time.shape[-1]), torch.float64)
    shapes.append(((batch, target_times.shape[-1]), torch.float64))
    return [
        target_times.new_zeros(shape, dtype=dtype) if asked else None
        for (shape, dtype), asked in zip(shapes, wanted, strict=True)
    ]


torch.library.impl("robocache::fuse_multimodal", ("cpu", "cuda"), _run_fuse)
torch.library.impl("robocache::fuse_multimodal_out", ("cpu", "cuda"), _run_fuse_out)
torch.library.impl("robocache::fuse_multimodal_backward", ("cpu", "cuda"), _run_fuse_backward)


def _fake_extra(values, target_times, return_valid, return_age):
    shape = (*values[0].shape[:-2], target_times.shape[-1], len(values))
    made = [values[0].new_empty(shape, dtype=torch.bool)] if return_valid else []
    return [*made, values[0].new_empty(shape, dtype=target_times.dtype)] if return_age else made


@torch.library.register_fake("robocache::fuse_multimodal")
def _fake_fuse(values, times, target_times, target_lengths, separate, names, *rest):
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


@torch.library.register_fake("robocache::fuse_multimodal_out")
def _fake_fuse_out(values, times, target_times, *rest):
    *_, return_valid, return_age, _outs = rest
    made = iter(_fake_extra(values, target_times, return_valid, return_age))
    return tuple(next(made) if asked else values[0].new_empty(0) for asked in (return_valid, return_age))


@torch.library.register_fake("robocache::fuse_multimodal_backward")
def _fake_fuse_backward(values, times, target_times, *rest):
    batch = (1, *values[0].shape)[-3]
    buffers = _fuse_buffers(values, times, target_times, rest[-1], batch)
    return [values[0].new_empty(0) if buffer is None else buffer for buffer in buffers]


def _remember_fuse(ctx, inputs, output):
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


def _fuse_gradients(ctx, out_gradients, wanted, gradient_rows):
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
        (gradient.sum(0) if array.ndim < gradient.ndim else gradient).to(array.dtype) if asked else None
        for array, gradient, asked in zip(inputs, rows, wanted, strict=True)
    ]


def _fuse_operator_backward(ctx, out_gradients):
    of_values, of_times, of_targets = ctx.needs_input_grad[:3]
    pairs = zip(of_values, of_times, strict=True)
    wanted = [bool(asked) for asked in (*itertools.chain.from_iterable(pairs), of_targets)]
    gradients = _fuse_gradients(ctx, out_gradients, wanted, _fuse_backward)
    return gradients[:-1:2], gradients[1:-1:2], gradients[-1], *ctx.no_gradients


def _refuse_second_fuse_derivative(ctx, *gradients):
    raise errors.ArgumentError("fuse_multimodal: carries first derivatives only, got a second backward pass")


torch.library.register_autograd("robocache::fuse_multimodal", _fuse_operator_backward, setup_context=_remember_fuse)
torch.library.register_autograd("robocache::fuse_multimodal_backward", _refuse_second_fuse_derivative)


class _FuseBackward(torch.autograd.Function):
    """(count, values..., times..., target_times, ..., out_gradients..., wanted), for a Function sees no list's tensors."""

    @staticmethod
    def forward(count, outs, *flat):
        values, times, rest = flat[:count], flat[count : 2 * count], flat[2 * count :]
        *streams, wanted = rest[: len(rest) - outs]
        return tuple(_run_fuse_backward(values, times, *streams, rest[len(rest) - outs :], wanted))

    setup_context = staticmethod(_remember_nothing)
    backward = staticmethod(_refuse_second_fuse_derivative)

    @staticmethod
    def vmap(info, in_dims, count, outs, *flat):
        size = info.batch_size
        flat, dims, _ = _fold_streams(size, count, in_dims[2:], flat)
        first = len(flat) - outs
        flat[first:] = (_fold_values(x, dim, size) for x, dim in zip(flat[first:], dims[first:], strict=True))
        rows = _FuseBackward.apply(count, outs, *flat)
        wanted = flat[first - 1]
        unfolded = (_unfold(row, size) if asked else row for row, asked in zip(rows, wanted, strict=True))
        return tuple(unfolded), tuple(0 if asked else None for asked in wanted)


def _fuse_backward_rows(values, times, *rest):
    *streams, out_gradients, wanted = rest
    if not torch.is_grad_enabled() and not memory_is_hidden(*out_gradients):
        return _run_fuse_backward(values, times, *rest)
    return _FuseBackward.apply(len(values), len(out_gradients), *values, *times, *streams, wanted, *out_gradients)


def _fold_streams(size, count, dims, flat):
    """values..., times..., target_times, target_lengths, separate, names, kinds, texts, numbers, arrays, ... of `size`
    calls as those of one."""
    made = list(flat)
    batched = made[0].ndim == (3 if dims[0] is None else 4)
    made[:count] = (_fold_values(x, dim, size) for x, dim in zip(made[:count], dims[:count], strict=True))
    batch = made[0].shape[0] // size
    for place in range(count, 2 * count + 1):
        made[place] = _fold_clock(flat[place], dims[place], size, batch)
    made[2 * count + 1] = _fold_lengths(flat[2 * count + 1], dims[2 * count + 1], size)
    place = 2 * count + 7
    made[place] = [
        _fold_option(array, dim, size)
        for array, dim in zip(flat[place], dims[place] or [None] * len(flat[place]), strict=True)
    ]
    return made, dims, batched


def _fold_option(array, dim, size):
    if array.dtype in (torch.int32, torch.int64):  # lengths
        return _fold_lengths(array, dim, size)
    if dim is not None:
        raise errors.ArgumentError("scale, shift: expected the same for every call under vmap")
    return array


class _Fuse(torch.autograd.Function):
    """(count, values..., times..., target_times, ...), for a Function sees no list's tensors."""

    @staticmethod
    def forward(count, *flat):
        return tuple(_run_fuse(flat[:count], flat[count : 2 * count], *flat[2 * count :]))

    @staticmethod
    def setup_context(ctx, inputs, output):
        count, flat = inputs[0], inputs[1:]
        _remember_fuse(ctx, (flat[:count], flat[count : 2 * count], *flat[2 * count :]), output)
        return_age = inputs[-1]
        if return_age:
            ctx.mark_non_differentiable(output[-1])

    @staticmethod
    def backward(ctx, *out_gradients):
        count, needs = ctx.streams, ctx.needs_input_grad
        pairs = zip(needs[1 : count + 1], needs[count + 1 : 2 * count + 1], strict=True)
        wanted = [*itertools.chain.from_iterable(pairs), needs[2 * count + 1]]
        gradients = _fuse_gradients(ctx, out_gradients, wanted, _fuse_backward_rows)
        rest = [None] * (len(needs) - 2 * count - 2)
        return None, *gradients[:-1:2], *gradients[1:-1:2], gradients[-1], *rest

    @staticmethod
    def vmap(info, in_dims, count, *flat):
        flat, _, batched = _fold_streams(info.batch_size, count, in_dims[1:], flat)
        made = _Fuse.apply(count, *flat)
        return tuple(_unfold(array, info.batch_size, batched) for array in made), (0,) * len(made)


_PlainFuse = _without_torch_func(_Fuse)


def _vmap_fuse(info, in_dims, values, times, *rest):
    count = len(values)
    dims = [dim for of_list in in_dims[:2] for dim in (of_list or [None] * count)]
    flat, _, batched = _fold_streams(info.batch_size, count, [*dims, *in_dims[2:]], [*values, *times, *rest])
    made = _fuse(flat[:count], flat[count : 2 * count], *flat[2 * count :])
    return [_unfold(array, info.batch_size, batched) for array in made], [0] * len(made)


torch.library.register_vmap("robocache::fuse_multimodal", _vmap_fuse)
