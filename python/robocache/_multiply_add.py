"""x * factor + summand, rounded once, with gradients to x."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._fma import fma


class _MultiplyAdd(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, factor: Tensor, summand: Tensor) -> Tensor:
        made: Tensor = fma(torch, x, factor, summand)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, factor, _ = inputs
        ctx.save_for_backward(factor)
        ctx.save_for_forward(factor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (factor,) = ctx.saved_tensors
        return (gradient * factor).to(gradient.dtype), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        (factor,) = ctx.saved_tensors
        made: Tensor = (tangent * factor).to(tangent.dtype)
        return made

    @staticmethod
    def vmap(info: Any, in_dims: Any, *operands: Tensor) -> Any:
        """Element by element: the new axis goes to the front, and operands that lack axes behind it get them."""
        axes = max(operand.ndim - (dim is not None) for operand, dim in zip(operands, in_dims, strict=True))
        moved = []
        for operand, dim in zip(operands, in_dims, strict=True):
            whole = operand.unsqueeze(0) if dim is None else operand.movedim(dim, 0)
            moved.append(whole.reshape(len(whole), *[1] * (axes + 1 - whole.ndim), *whole.shape[1:]))
        x, factor, summand = moved
        return multiply_add(x.expand(info.batch_size, *x.shape[1:]), factor, summand), 0


def multiply_add(x: Tensor, factor: Tensor, summand: Tensor) -> Tensor:
    made: Tensor = _MultiplyAdd.apply(x, factor, summand)  # type: ignore[no-untyped-call]
    return made
