"""x * factor + summand, rounded once, with gradients to x."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...affine import fma
from ._call import Function


class _MultiplyAdd(Function):
    generate_vmap_rule = True

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


def multiply_add(x: Tensor, factor: Tensor, summand: Tensor) -> Tensor:
    made: Tensor = _MultiplyAdd.apply(x, factor, summand)
    return made
