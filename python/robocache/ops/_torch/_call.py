"""What the operations on torch's side have in common: which memory torch hides, and how calls fold under vmap.

Each operation is here twice: as an operator, which a traced graph holds, and as an autograd.Function around the library,
which costs a tenth of an operator's dispatch and which torch.func can look into. (The sparse ones, whose sizes are data,
are operators alone.) Calls that need none of this go straight to the library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import errors

# ---- Which tensors the library can take ----


def memory_is_hidden(*arrays: Any) -> bool:
    """Whether torch keeps some array's memory from the library: tensors in a transform, fake and meta tensors."""
    return any(isinstance(array, Tensor) and (is_shape_alone(array) or _is_wrapped(array)) for array in arrays)


def needs_torch_func(*arrays: Any) -> bool:
    """Whether a Function must be one that torch.func can look into."""
    return torch._C._are_functorch_transforms_active() or memory_is_hidden(*arrays)


def is_shape_alone(tensor: Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor)


def _is_wrapped(tensor: Tensor) -> bool:
    try:
        tensor.data_ptr()
    except RuntimeError:
        return True
    return False


def check_memory(arrays: Mapping[str, Any]) -> None:
    """Raises where no way leads to a tensor's memory, or where only some of the call's tensors have any."""
    tensors = {name: array for name, array in arrays.items() if isinstance(array, Tensor)}
    on_meta = [name for name, tensor in tensors.items() if tensor.device.type == "meta"]
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
            kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else tensor.layout
            raise errors.ArgumentTypeError(f"{name}: expected a dense tensor, got {kind}")
        if on_meta and tensor.device.type != "meta":
            raise errors.ArgumentError(f"{name}: expected on meta like {on_meta[0]}, got on {tensor.device}")


def check_tensors(arrays: Mapping[str, Any]) -> None:
    for name, array in arrays.items():
        if not isinstance(array, Tensor):
            raise errors.ArgumentTypeError(
                f"{name}: expected a torch tensor, as gradients and torch.compile need, got {type(array).__name__}"
            )


def resolved(array: Tensor | None) -> Tensor | None:
    """With its sign applied, since DLPack cannot tell that this is still to come."""
    return None if array is None else array.resolve_neg()


# ---- Registration ----


class Function(torch.autograd.Function):
    """torch's, but for a type of `apply`."""

    if TYPE_CHECKING:

        @classmethod
        def apply(cls, *arguments: Any) -> Any: ...


def implement(operator: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """What the operator does, on the CPU and on CUDA, and the shapes that come of it."""
    torch.library.impl(f"robocache::{operator}", ("cpu", "cuda"), run)
    torch.library.register_fake(f"robocache::{operator}", fake)


# ---- Gradients ----


def refuse_tangents(arrays: Mapping[str, Any]) -> None:
    if torch.compiler.is_compiling():
        return  # the graph's operators have no forward mode, and torch says so
    for name, array in arrays.items():
        if isinstance(array, Tensor) and _has_tangent(array):
            raise no_forward_mode(name)


def no_forward_mode(name: str) -> errors.ArgumentError:
    return errors.ArgumentError(
        f"{name}: expected reverse mode (backward, torch.func.grad, vjp, jacrev), got forward-mode differentiation"
    )


def _has_tangent(tensor: Tensor) -> bool:
    functorch = torch._C._functorch
    tangent_of: Callable[..., Any] = torch.autograd.forward_ad.unpack_dual
    while True:
        # vmap knows nothing of tangents, so they are looked for below it.
        if not functorch.is_batchedtensor(tensor) and tangent_of(tensor).tangent is not None:
            return True
        if not functorch.is_functorch_wrapped_tensor(tensor):
            return False
        tensor = functorch.get_unwrapped(tensor)


def refuse_second_derivative(operation: str) -> Callable[..., Any]:
    """The derivative of a gradient."""

    def refuse(ctx: Any, *gradients: Any) -> Any:
        raise errors.ArgumentError(f"{operation}: carries first derivatives only, got a second backward pass")

    return refuse


def remember_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    pass


def without_torch_func(function: Any) -> Any:
    """The same Function where no transform of torch.func is at work: a third of the cost of a call."""

    class Plain(Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = function.forward(*inputs)
            function.setup_context(ctx, inputs, output)
            return output

        backward = staticmethod(function.backward)

    return Plain


def gradient_of(array: Tensor, rows: Tensor) -> Tensor:
    """Of row gradients: [S, D], or a clock that serves every row, takes the sum over the rows."""
    return (rows.sum(0) if array.ndim < rows.ndim else rows).to(array.dtype)


# ---- vmap: one more batch dimension, folded into the rows ----


def in_front(array: Tensor, dim: int | None, size: int) -> Tensor:
    return array.expand(size, *array.shape) if dim is None else array.movedim(dim, 0)


def fold_values(array: Tensor, dim: int | None, size: int) -> Tensor:
    array = in_front(array, dim, size)
    return array.reshape(-1, *array.shape[-2:])


def fold_clock(array: Tensor, dim: int | None, size: int, batch: int) -> Tensor:
    if dim is None and array.ndim == 1:
        return array  # serves every row of every call
    array = in_front(array, dim, size)
    if array.ndim == 2:
        array = array[:, None].expand(size, batch, -1)
    return array.reshape(size * batch, array.shape[-1])


def fold_lengths(array: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    return None if array is None else in_front(array, dim, size).reshape(-1)


def unfold(array: Tensor, size: int, batched: bool = True) -> Tensor:
    array = array.reshape(size, array.shape[0] // size, *array.shape[1:])
    return array if batched else array[:, 0]


def unfold_rows(rows: Sequence[Tensor | None], wanted: Sequence[bool], size: int) -> tuple[Any, Any]:
    """Gradients row by row of folded calls, and the dimension of the calls in each."""
    unfolded = (
        unfold(row, size) if asked and row is not None else row for row, asked in zip(rows, wanted, strict=True)
    )
    return tuple(unfolded), tuple(0 if asked else None for asked in wanted)
