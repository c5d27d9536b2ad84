"""The operations as operators of torch: with gradients, torch.compile and torch.func.

An operator is made from the fields of its call. A call that torch neither traces nor transforms skips the operators, whose
dispatch takes several times as long as a launch. It goes to the library, or to one autograd.Function if it needs a gradient.
All private names of torch are in this file.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import errors
from ._check import LISTS
from ._operation import OPERATIONS, Operation, objects

# torch caches compiled graphs on disk, with the traced code of the operations. This tag keeps graphs of other code out.
_SOURCES = [Path(__file__), *sorted(Path(__file__).parent.glob("ops/*.py"))]
torch.compiler.config.cache_key_tag += f" robocache {zlib.crc32(b''.join(path.read_bytes() for path in _SOURCES)):08x}"

_functorch_is_active = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack


# ---- Calls ----


def call_eagerly(operation: Operation, call: dict[str, Any], results: Sequence[Any]) -> list[Any]:
    """Returns the results of a call that torch does not trace (else `_call.call` calls `dispatch`)."""
    flat = operation.flat(call, results)
    arrays = objects(flat)
    role = _role(arrays)
    if role == _TRANSFORMS or (
        role == _DIFFERENTIATES and any(out is not None and out is not False for out in results)
    ):
        return _call_transformed(operation, call, results)
    try:
        if role == _DIFFERENTIATES:
            return _call_recorded(operation, call, results)
        return operation.by_library(call, flat, results, arrays)
    except errors.Error:
        raise
    except Exception:
        _check_memory(_arrays_by_name(operation, call, results))
        raise


_NOTHING, _DIFFERENTIATES, _TRANSFORMS = range(3)


def _role(arguments: Sequence[Any]) -> int:
    """Returns whether torch does nothing in a call, differentiates it, or must dispatch it.

    Torch dispatches calls that it transforms or traces, and calls whose tensors hide their memory. A call that mixes arrays of
    other frameworks with tensors that require a gradient is dispatched too, and refused there.
    """
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    if not tensors:
        return _NOTHING
    if _functorch_is_active() or _dispatch_modes() or forward_ad._current_level >= 0:
        return _TRANSFORMS
    role = _NOTHING
    records = torch.is_grad_enabled()
    for x in tensors:
        if x.is_meta or x.is_neg():
            return _TRANSFORMS
        if type(x) is not Tensor and type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            return _TRANSFORMS
        if records and x.requires_grad:
            role = _DIFFERENTIATES
    return _TRANSFORMS if role and len(tensors) < len(arguments) else role


def _call_transformed(operation: Operation, call: dict[str, Any], results: Sequence[Any]) -> list[Any]:
    named = _arrays_by_name(operation, call, results)
    _check_memory(named)
    _check_tensors(operation, operation.for_torch(call))
    _refuse_tangents(named)
    try:
        return dispatch(operation, call, results)
    except NotImplementedError:
        if forward_ad._current_level < 0:
            raise
        raise _no_forward_mode(operation.name) from None


def _call_recorded(operation: Operation, call: dict[str, Any], results: Sequence[Any]) -> list[Any]:
    call = operation.for_torch(call)
    tensors: list[Tensor] = []
    slots = _with_slots([call[name] for name in operation.gradients_of], tensors)
    operator = _operators[operation.name]
    return list(_Recorded.apply(operator, slots, call, results, *tensors))  # type: ignore[no-untyped-call]


def dispatch(operation: Operation, call: dict[str, Any], results: Sequence[Any]) -> list[Any]:
    """Returns the results of a call by torch's operators."""
    call = operation.for_torch(call)
    wanted = [out is not False for out in results]
    returned: Sequence[Tensor]
    if all(out is None or out is False for out in results):
        returned = _operators[operation.name](*_spread(operation, call), wanted)
    else:
        tensors = [x for x in (*_tensors_of(operation, call), *results) if isinstance(x, Tensor)]
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            raise errors.ArgumentError("out: has no gradients here; leave it out, or call under torch.no_grad()")
        returned = [out for out in results if out is not False]
        if any(out is None for out in returned):
            shapes = operation.shapes(call, len(results))
            returned = [
                tensors[0].new_empty(shape, dtype=_dtype(dtype)) if out is None else out
                for out, (shape, dtype) in zip(results, shapes, strict=True)
                if out is not False
            ]
        _operators[operation.name].write(*_spread(operation, call), wanted, returned)
    if operation.has_backward and returned:  # other float results, such as ages, have no gradient
        count = sum(wanted[: operation.count_of_outs(call, len(results))])
        returned = [*returned[:count], *(x.detach() for x in returned[count:])]
    return _by_result(wanted, returned)


def _by_result(wanted: Sequence[bool], values: Any, absent: Any = None) -> list[Any]:
    """Returns an entry for each result: the next of the values if the result is wanted, else `absent`."""
    remaining = iter(values)
    return [next(remaining) if is_wanted else absent for is_wanted in wanted]


# ---- Tensors that the library cannot read ----


def _arrays_by_name(operation: Operation, call: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Any]:
    named = dict(operation.named_arrays(call))
    return named | {"out" if i == 0 else f"out[{i}]": out for i, out in enumerate(results) if isinstance(out, Tensor)}


def _check_memory(arrays: Mapping[str, Any]) -> None:
    """Raises an error if a tensor is not dense, or if only some of the call's tensors are on meta."""
    tensors = {name: array for name, array in arrays.items() if isinstance(array, Tensor)}
    on_meta = [name for name, tensor in tensors.items() if tensor.device.type == "meta"]
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
            kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else tensor.layout
            raise errors.ArgumentTypeError(f"{name}: expected a dense tensor, got {kind}")
        if on_meta and tensor.device.type != "meta":
            raise errors.ArgumentError(f"{name}: expected on meta like {on_meta[0]}, got on {tensor.device}")


def _check_tensors(operation: Operation, call: Mapping[str, Any]) -> None:
    for name, array in operation.named_arrays(call):
        if not isinstance(array, Tensor):
            raise errors.ArgumentTypeError(
                f"{name}: expected a torch tensor, for gradients and torch.compile, got {type(array).__name__}"
            )


def _refuse_tangents(arrays: Mapping[str, Any]) -> None:
    if forward_ad._current_level < 0:
        return
    for name, array in arrays.items():
        if isinstance(array, Tensor) and _has_tangent(array):
            raise _no_forward_mode(name)


def _no_forward_mode(name: str) -> errors.ArgumentError:
    return errors.ArgumentError(
        f"{name}: expected reverse mode (backward, torch.func.grad, vjp, jacrev), got forward-mode differentiation"
    )


def _has_tangent(tensor: Tensor) -> bool:
    functorch = torch._C._functorch
    tangent_of: Callable[..., Any] = forward_ad.unpack_dual
    while True:
        # vmap's wrapper has no tangents; the tensor inside may have one.
        if not functorch.is_batchedtensor(tensor) and tangent_of(tensor).tangent is not None:
            return True
        if not functorch.is_functorch_wrapped_tensor(tensor):
            return False
        tensor = functorch.get_unwrapped(tensor)


# ---- A call's fields as an operator's arguments ----


def _torch_type(kind: str) -> str:
    for field_type, torch_name in (("tensor", "Tensor"), ("int", "SymInt"), ("number", "Scalar")):
        kind = kind.replace(field_type, torch_name)
    return re.sub(r"\[\d\]", "[]", kind)


def _arguments(operation: Operation) -> str:
    """Returns the operator's arguments for torch.library.define."""
    arguments = []
    for field, kind, _ in operation.fields:
        name = "modes" if field == "mode" else field  # torch's own calls have a `mode`
        if kind.startswith("block"):
            arguments.append(f"SymInt[] {name}_bounds, str[] {name}, int[] {name}_of_stream")
        elif kind == "numbers?[]":
            arguments.append(f"Scalar?[] {name}, Tensor?[] {name}_of_features")
        else:
            arguments.append(f"{_torch_type(kind)} {name}")
    return ", ".join(arguments)


def _spread(operation: Operation, call: Mapping[str, Any]) -> list[Any]:
    """Returns the operator's arguments for a call."""
    arguments: list[Any] = []
    for name, kind, _ in operation.fields:
        value = call[name]
        if kind.startswith("block"):
            lists = value if kind == "block[][]" else [value]
            blocks = [block for blocks in lists for block in blocks]
            arguments.append([bound for start, stop, _ in blocks for bound in _bounds(start, stop)])
            arguments.append([method for _, _, method in blocks])
            arguments.append([len(blocks) for blocks in lists])
        elif kind == "numbers?[]":
            arguments.append([None if isinstance(x, Tensor) else x for x in value])
            arguments.append([x if isinstance(x, Tensor) else None for x in value])
        elif kind.startswith("float["):
            arguments.append(None if value is None else [float(x) for x in value])
        else:
            arguments.append(value)
    return arguments


def _bounds(start: int | None, stop: int | None) -> tuple[int, int]:
    return 0 if start is None else start, 2**63 - 1 if stop is None else stop


def _gather(operation: Operation, arguments: Sequence[Any]) -> dict[str, Any]:
    """Returns the call of an operator's arguments: the inverse of `_spread`."""
    remaining = iter(arguments)
    call = {}
    for name, kind, _ in operation.fields:
        value = next(remaining)
        if kind.startswith("block"):
            blocks = iter([(*value[2 * i : 2 * i + 2], method) for i, method in enumerate(next(remaining))])
            lists = [[next(blocks) for _ in range(count)] for count in next(remaining)]
            value = lists if kind == "block[][]" else lists[0]
        elif kind == "numbers?[]":
            value = [x if array is None else array for x, array in zip(value, next(remaining), strict=True)]
        call[name] = value
    return call


# How many arguments of an operator a field becomes, if more than one.
_COUNT = {"block[]": 3, "block[][]": 3, "numbers?[]": 2}


def _indices(operation: Operation) -> dict[str, int]:
    """Returns, for each field, the index of the operator's argument with its tensors."""
    indices, count = {}, 0
    for name, kind, _ in operation.fields:
        count += _COUNT.get(kind, 1)
        indices[name] = count - 1
    return indices


def _dims(operation: Operation, dims: Sequence[Any]) -> dict[str, Any]:
    """Returns the axis of each field's tensors that vmap maps; None for a list without tensors."""
    return {name: dims[index] for name, index in _indices(operation).items()}


def _dtype(dtype: Any) -> torch.dtype:
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype  # type: ignore[no-any-return]


def _tensors_of(operation: Operation, call: Mapping[str, Any]) -> Iterator[Any]:
    return (array for _, array in operation.named_arrays(call))


# ---- Operators ----


class _Operator:
    """The base of the operators of an operation and of its gradient. They support torch's transforms.

    `run`, `fake`, `remember` and `backward` are the functions that torch.library takes. `vmap` makes one call of all mapped
    calls, with more rows, and passes it to `apply`: `dispatched`, or under torch.func this object. `gradients` returns a
    gradient for each argument, or a list of gradients for a list of tensors.
    """

    run: Callable[..., Any]
    fake: Callable[..., Any]
    remember: Callable[..., None]
    backward: Callable[..., Any]
    gradients: Callable[..., list[Any]]
    vmap: Callable[..., Any]

    def define(self, name: str, schema: str) -> None:
        torch.library.define(f"robocache::{name}", schema)
        torch.library.impl(f"robocache::{name}", ("cpu", "cuda"), self.run)
        torch.library.register_fake(f"robocache::{name}", self.fake)
        torch.library.register_autograd(f"robocache::{name}", self.backward, setup_context=self.remember)
        self.dispatched = getattr(torch.ops.robocache, name).default
        torch.library.register_vmap(f"robocache::{name}", partial(self.vmap, self.dispatched))

    def __call__(self, *arguments: Any) -> list[Tensor]:
        if _functorch_is_active() and not torch.compiler.is_compiling():
            tensors: list[Tensor] = []
            slots = _with_slots(list(arguments), tensors)
            return list(_Transformed.apply(self, slots, *tensors))  # type: ignore[no-untyped-call]
        results: list[Tensor] = self.dispatched(*arguments)
        return results


class _Slot(int):
    """Replaces a tensor in nested lists: its index among all tensors."""


def _with_slots(values: Any, tensors: list[Tensor]) -> Any:
    """Returns the nested lists with a slot for each tensor, and appends the tensors to `tensors`."""
    if isinstance(values, Tensor):
        tensors.append(values)
        return _Slot(len(tensors) - 1)
    return [_with_slots(x, tensors) for x in values] if type(values) is list else values


def _with_values(slots: Any, values: Sequence[Any]) -> Any:
    """Returns the nested lists with a value for each slot."""
    if type(slots) is _Slot:
        return values[slots]
    return [_with_values(x, values) for x in slots] if type(slots) is list else slots


def _at_slots(slots: Any, values: Any, result: list[Any]) -> list[Any]:
    """Puts the values of nested lists into `result` at their slots. None instead of a list leaves its slots unchanged."""
    if type(slots) is _Slot:
        result[slots] = values
    elif type(slots) is list and values is not None:
        for pair in zip(slots, values, strict=True):
            _at_slots(*pair, result)
    return result


class _Transformed(torch.autograd.Function):
    """An operator for torch.func, which cannot differentiate operators of torch.library: (operator, slots, tensors...)."""

    @staticmethod
    def forward(operator: _Operator, slots: list[Any], *tensors: Any) -> Any:
        return tuple(operator.dispatched(*_with_values(slots, tensors)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.operator, ctx.slots, *tensors = inputs
        ctx.operator.remember(ctx, _with_values(ctx.slots, tensors), list(output))
        ctx.mark_non_differentiable(*(x for x in output if not x.is_floating_point()))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        needs = ctx.needs_input_grad[2:]
        results = ctx.operator.gradients(ctx, _with_values(ctx.slots, needs), gradients)
        return None, None, *_at_slots(ctx.slots, results, [None] * len(needs))

    @staticmethod
    def vmap(info: Any, in_dims: Any, operator: _Operator, slots: list[Any], *tensors: Any) -> Any:
        dims = _with_values(slots, in_dims[2:])
        results, out_dims = operator.vmap(operator, info, dims, *_with_values(slots, tensors))
        return tuple(results), tuple(out_dims)


class _Recorded(torch.autograd.Function):
    """A call that skips torch's dispatcher, recorded for a backward pass: (operator, slots, call, results, tensors...)."""

    @staticmethod
    def forward(
        ctx: Any, operator: _Forward, slots: list[Any], call: dict[str, Any], results: Sequence[Any], *tensors: Any
    ) -> Any:
        operation = operator.operation
        outputs = operation.run(call, results)
        ctx.operator, ctx.slots = operator, slots
        operator.keep(ctx, call, outputs)
        if operation.has_backward:
            count = operation.count_of_outs(call, len(results))
            ctx.mark_non_differentiable(*[x for x in outputs[count:] if x is not None])
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        needs, names = ctx.needs_input_grad[4:], ctx.operator.operation.gradients_of
        needed = dict(zip(names, _with_values(ctx.slots, needs), strict=True))
        results = ctx.operator.gradients_of(ctx, needed, gradients)
        return None, None, None, None, *_at_slots(ctx.slots, [results.get(name) for name in names], [None] * len(needs))


class _Forward(_Operator):
    """(the call's arguments, a bool for each result) -> the results whose bool is True."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        arguments = _arguments(operation)
        if not operation.writes_in_place:
            self.define(operation.name, f"({arguments}, bool[] results) -> Tensor[]")
        writing = f"robocache::{operation.name}_out"
        torch.library.define(writing, f"({arguments}, bool[] results, Tensor(a!)[] out) -> ()")
        torch.library.impl(writing, ("cpu", "cuda"), self._write)
        torch.library.register_fake(writing, lambda *arguments: None)
        torch.library.register_vmap(writing, self._refuse_vmap)
        self.write = getattr(torch.ops.robocache, f"{operation.name}_out").default
        self.gradient = _Backward(operation, arguments) if operation.has_backward else None

    def run(self, *arguments: Any) -> list[Tensor]:
        *spread, wanted = arguments
        results = [None if is_wanted else False for is_wanted in wanted]
        return [x for x in self.operation.run(_gather(self.operation, spread), results) if x is not None]

    def _refuse_vmap(self, *arguments: Any) -> Any:
        raise errors.ArgumentError(
            f"{self.operation.name}: writes in place, so torch.vmap cannot map it; pass all rows in one call"
        )

    def _write(self, *arguments: Any) -> None:
        *spread, wanted, out = arguments
        self.operation.run(_gather(self.operation, spread), _by_result(wanted, out, absent=False))

    def fake(self, *arguments: Any) -> list[Tensor]:
        *spread, wanted = arguments
        call = _gather(self.operation, spread)
        like = next(_tensors_of(self.operation, call))
        shapes = zip(self.operation.shapes(call, len(wanted)), wanted, strict=True)
        return [like.new_empty(shape, dtype=_dtype(dtype)) for (shape, dtype), is_wanted in shapes if is_wanted]

    def remember(self, ctx: Any, inputs: Any, output: Any) -> None:
        *spread, ctx.wanted = inputs
        self.keep(ctx, _gather(self.operation, spread), _by_result(ctx.wanted, output))
        ctx.lengths = [  # for each argument the number of gradients if it is a list of tensors, else None
            len(x) if isinstance(x, LISTS) and all(isinstance(item, Tensor) for item in x) else None for x in inputs
        ]

    def keep(self, ctx: Any, call: dict[str, Any], results: list[Any]) -> None:
        """Saves the values that gradients depend on. Tensors are saved by torch, which detects later changes of them."""
        tensors: list[Tensor] = []
        ctx.kept = _with_slots([*call.values(), self.operation.results_to_keep(call, results)], tensors)
        ctx.save_for_backward(*tensors)

    def backward(self, ctx: Any, gradients: Any) -> Any:
        return tuple(self.gradients(ctx, ctx.needs_input_grad, gradients))

    def gradients(self, ctx: Any, needs: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Returns each argument's gradient, or a list of them."""
        indices = _indices(self.operation)
        needs_of = {name: needs[indices[name]] for name in self.operation.gradients_of}
        result: list[Any] = [None if length is None else [None] * length for length in ctx.lengths]
        for name, gradient in self.gradients_of(ctx, needs_of, _by_result(ctx.wanted, gradients)).items():
            result[indices[name]] = gradient
        return result

    def gradients_of(self, ctx: Any, needs_of: Mapping[str, Any], gradients: Sequence[Any]) -> dict[str, Any]:
        """Returns the gradient of each array, or a list of gradients for a list of arrays, by the array's name.

        `needs_of` says whether each array needs its gradient. `gradients` has one for each result, or None.
        """
        *values, results = _with_values(ctx.kept, ctx.saved_tensors)
        call = {field.name: value for field, value in zip(self.operation.fields, values, strict=True)}
        if self.gradient is None:
            return self.operation.gradients(call, results, gradients)
        out_gradients = list(gradients[: self.operation.count_of_outs(call, len(gradients))])
        if any(gradient is None for gradient in out_gradients):  # the loss does not depend on this result
            like = next(_tensors_of(self.operation, call))
            shapes = self.operation.shapes(call, len(gradients))
            out_gradients = [
                like.new_zeros(shape, dtype=_dtype(dtype)) if gradient is None else gradient
                for gradient, (shape, dtype) in zip(out_gradients, shapes, strict=False)
            ]
        needed = [bool(x) for needs in needs_of.values() for x in (needs if isinstance(needs, LISTS) else [needs])]
        rows = iter(self.gradient.rows(call, out_gradients, results, needed))

        def gradient_of(array: Tensor, needs: bool) -> Tensor | None:
            row = next(rows)
            if not needs or row is None:
                return None
            # An array that all rows share gets the sum of its gradients in the rows.
            return (row.sum(0) if array.ndim < row.ndim else row).to(array.dtype)

        return {
            name: [gradient_of(*pair) for pair in zip(call[name], needs, strict=True)]
            if isinstance(needs, LISTS)
            else gradient_of(call[name], needs)
            for name, needs in needs_of.items()
        }

    def vmap(self, apply: Callable[..., Any], info: Any, in_dims: Any, *arguments: Any) -> Any:
        *spread, wanted = arguments
        call, dims = _gather(self.operation, spread), _dims(self.operation, in_dims[:-1])
        folded, unfold = self.operation.fold(call, dims, info.batch_size)
        results = apply(*_spread(self.operation, folded), wanted)
        return [unfold(x) for x in results], [0] * len(results)


class _Backward(_Operator):
    """(the call's arguments, gradients of results, a bool for each array) -> the arrays' gradients row by row, before they are
    rounded and summed over clocks that all rows share. A gradient is empty if its bool is False.

    For an operation with one result, arguments and results are tensors instead of lists, since torch.autograd.functional
    batches only tensors.
    """

    def __init__(self, operation: Operation, arguments: str) -> None:
        self.operation = operation
        gradients, results = "Tensor[] out_gradients, Tensor[] results", "Tensor[]"
        if operation.has_one_result:
            gradients, results = "Tensor out_gradient", f"({', '.join(['Tensor'] * len(operation.gradients_of))})"
        self.define(f"{operation.name}_backward", f"({arguments}, {gradients}, bool[] wanted) -> {results}")

    def _apply(
        self,
        apply: Callable[..., Any],
        spread: Sequence[Any],
        out_gradients: list[Tensor],
        results: list[Tensor],
        wanted: list[bool],
    ) -> Sequence[Tensor]:
        if self.operation.has_one_result:
            return apply(*spread, out_gradients[0], wanted)  # type: ignore[no-any-return]
        return apply(*spread, out_gradients, results, wanted)  # type: ignore[no-any-return]

    def rows(
        self, call: dict[str, Any], out_gradients: list[Tensor], results: list[Tensor], wanted: list[bool]
    ) -> Sequence[Tensor | None]:
        is_batched = torch._C._functorch.is_legacy_batchedtensor  # torch.autograd.functional batches in this way
        if (
            torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or _role(out_gradients) != _NOTHING
            or any(is_batched(x) for x in out_gradients)
        ):
            return self._apply(self, _spread(self.operation, call), out_gradients, results, wanted)
        buffers = self._buffers(call, wanted)
        self.operation.add_gradients(call, out_gradients, results, buffers)
        return buffers

    def _parts(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the call's arguments, the gradients of results, the saved results, and the bools of the wanted gradients."""
        if self.operation.has_one_result:
            *spread, out_gradient, wanted = arguments
            return spread, [out_gradient], [], wanted
        *spread, out_gradients, results, wanted = arguments
        return spread, out_gradients, results, wanted

    def _buffers(self, call: dict[str, Any], wanted: Sequence[bool]) -> list[Tensor | None]:
        like = next(_tensors_of(self.operation, call))
        return [
            like.new_zeros(shape, dtype=_dtype(dtype)) if is_wanted else None
            for (shape, dtype), is_wanted in zip(self.operation.gradient_shapes(call), wanted, strict=True)
        ]

    def _outputs(self, rows: Sequence[Tensor | None], like: Tensor) -> Any:
        outputs = [like.new_empty(0) if row is None else row for row in rows]
        return tuple(outputs) if self.operation.has_one_result else outputs

    def run(self, *arguments: Any) -> Any:
        spread, out_gradients, results, wanted = self._parts(arguments)
        call = _gather(self.operation, spread)
        buffers = self._buffers(call, wanted)
        self.operation.add_gradients(call, out_gradients, results, buffers)
        return self._outputs(buffers, out_gradients[0])

    def fake(self, *arguments: Any) -> Any:
        spread, out_gradients, _, wanted = self._parts(arguments)
        return self._outputs(self._buffers(_gather(self.operation, spread), wanted), out_gradients[0])

    def remember(self, ctx: Any, inputs: Any, output: Any) -> None:
        pass

    def backward(self, ctx: Any, *gradients: Any) -> Any:
        raise errors.ArgumentError(
            f"{self.operation.name}: expected first derivatives only, got a second backward pass"
        )

    def gradients(self, ctx: Any, needs: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        return self.backward(ctx)  # type: ignore[no-any-return]

    def vmap(self, apply: Callable[..., Any], info: Any, in_dims: Any, *arguments: Any) -> Any:
        spread, out_gradients, results, wanted = self._parts(arguments)
        dims, out_dims, result_dims, _ = self._parts(in_dims)
        size = info.batch_size
        call = _gather(self.operation, spread)
        folded, _ = self.operation.fold(call, _dims(self.operation, dims), size)

        def fold(arrays: list[Tensor], axes: Sequence[int | None] | None) -> list[Tensor]:
            pairs = zip(arrays, axes or [None] * len(arrays), strict=True)
            return [self.operation.fold_result(call, array, axis, size) for array, axis in pairs]

        rows = self._apply(
            apply, _spread(self.operation, folded), fold(out_gradients, out_dims), fold(results, result_dims), wanted
        )
        unfolded = [
            x.reshape(size, x.shape[0] // size, *x.shape[1:]) if is_wanted else x
            for x, is_wanted in zip(rows, wanted, strict=True)
        ]
        axes = [0 if is_wanted else None for is_wanted in wanted]
        return (tuple(unfolded), tuple(axes)) if self.operation.has_one_result else (unfolded, axes)


# A compiled graph from torch's cache may call an operation before the operation's module is otherwise imported.
for _path in _SOURCES[1:]:
    import_module(f"{__package__}.ops.{_path.stem}")
_operators = {operation.name: _Forward(operation) for operation in OPERATIONS}
