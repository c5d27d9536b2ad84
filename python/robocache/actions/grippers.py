"""Converts grippers' actions between conventions, which have different numbers for open."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import errors
from .._check import number
from ._arrays import cast, check_chunk, in_work_type, quietly

AT_END = ("nan", "hold", "last_value")


def binarize_gripper(g: Any, *, low: float, high: float, at_end: str = "nan") -> Any:
    """Returns 0 or 1 for each step. A step between `low` and `high` is undecided and takes the value of the next decided step.

    Args:
        g: ``[..., T, D]``, features of grippers, float64, float32, float16 or bfloat16, numpy or torch.
        low, high: a step below `low` is 0, a step above `high` is 1. OpenVLA and Octo use 0.05 and 0.95.
        at_end: the value of undecided steps that no decided step follows: ``"nan"``; ``"hold"``, the last decided step's value
            (NaN if there is none); ``"last_value"``, the last step's own number, as in OpenVLA and Octo.

    Returns:
        ``[..., T, D]`` in g's dtype, framework and device, without gradients. NaN stays NaN and decides nothing.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.

    Example:
        >>> binarize_gripper(np.array([[0.0], [0.4], [1.0]]), low=0.05, high=0.95)
        array([[0.],
               [1.],
               [1.]])
    """
    xp, (values,) = in_work_type(g=g)
    check_chunk("g", g)
    low, high = number("low", low), number("high", high)
    if not low <= high:
        raise errors.ArgumentError(f"low: expected at most high={high}, got {low}")
    if at_end not in AT_END:
        raise errors.ArgumentError(f"at_end: expected {', '.join(map(repr, AT_END))}, got {at_end!r}")
    if xp is not np:
        values = values.detach()
    steps = g.shape[-2]
    result = xp.zeros_like(values)
    below, above = values < low, values > high
    last = values[..., steps - 1, :] if steps else None
    following = None if last is None else (last if at_end == "last_value" else xp.full_like(last, math.nan))
    results: list[Any] = [None] * steps
    for t in reversed(range(steps)):
        following = xp.where(above[..., t, :], 1.0, xp.where(below[..., t, :], 0.0, following))
        results[t] = following
    if at_end == "hold":
        held = following
        for t in range(steps):
            held = xp.where(xp.isnan(results[t]), held, results[t])
            results[t] = held
    if steps:
        result = xp.stack(results, -2)
    return cast(xp.where(xp.isnan(values), math.nan, result), g.dtype)


def rescale(x: Any, source: tuple[float, float], target: tuple[float, float], *, clip: bool = False) -> Any:
    """Maps one range to another: source[0] becomes target[0], source[1] becomes target[1].

    ``rescale(g, (0, 1), (1, 0))`` is 1 - g, and ``rescale(g, (0, 1), (-1, 1))`` is 2 g - 1. For the inverse exchange source and
    target.

    Args:
        x: any shape, float64, float32, float16 or bfloat16, numpy or torch.
        source, target: two numbers each; those of source must differ.
        clip: whether x is first clamped to source.

    Returns:
        target[0] + (x - source[0]) * ((target[1] - target[0]) / (source[1] - source[0])) in x's dtype, shape, framework and
        device, on torch with gradients. Computed in float64 for float64, else in float32, and rounded once.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
    """
    a, b = number_pair("source", source)
    c, d = number_pair("target", target)
    if a == b:
        raise errors.ArgumentError(f"source: expected two different numbers, got {source!r}")
    xp, (values,) = in_work_type(x=x)
    with quietly(xp):
        if clip:
            values = xp.clip(values, min(a, b), max(a, b))
        return cast(c + (values - a) * ((d - c) / (b - a)), x.dtype)


def number_pair(name: str, pair: Any) -> tuple[float, float]:
    """Returns the two finite numbers of a pair."""
    try:
        a, b = pair
    except (TypeError, ValueError):
        raise errors.ArgumentTypeError(f"{name}: expected two numbers, got {pair!r}") from None
    a, b = number(name, a), number(name, b)
    if not (math.isfinite(a) and math.isfinite(b)):
        raise errors.ArgumentError(f"{name}: expected finite numbers, got {pair!r}")
    return a, b
