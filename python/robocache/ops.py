"""The operations as plain functions: tensors in, tensors of the same framework out, on the CPU and on CUDA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from . import _lib, errors

_resample = _lib.function("resample_trajectories")
_valid = _lib.function("resample_valid")
_check_times = _lib.function("check_times")


def _argument(name: str, value: Any) -> Any:
    """What the library takes for an array: numpy by its memory, everything else through DLPack."""
    if isinstance(value, np.ndarray):
        try:
            return _lib.from_numpy(value)
        except errors.Error as error:
            raise type(error)(f"{name}: {error}") from None
    if hasattr(value, "__dlpack__"):
        torch = _lib.torch_module()
        if torch is not None and isinstance(value, torch.Tensor) and value.is_neg():
            raise errors.ArgumentError(
                f"{name}: a view whose sign torch has not applied yet, which DLPack cannot tell; pass {name}.resolve_neg()"
            )
        return value
    raise errors.ArgumentTypeError(
        f"{name}: expected an array (torch, numpy or anything with DLPack), got {type(value).__name__}"
    )


def _optional(name: str, value: Any) -> Any:
    return None if value is None else _argument(name, value)


def _feature_blocks(methods: Any) -> Iterator[Any]:
    """start, stop, method of each block, one after the other; the library knows how many features there are."""
    for block in methods or ():
        try:
            features, method = block
        except (TypeError, ValueError):
            raise errors.ArgumentTypeError(f"methods: expected (slice, method), got {block!r}") from None
        if not isinstance(features, slice):
            raise errors.ArgumentTypeError(f"methods: expected a slice of features, got {features!r}")
        if features.step not in (None, 1):
            raise errors.ArgumentError(f"methods: expected slices of step 1, got {features!r}")
        yield from (features.start, features.stop, method)


def resample_trajectories(
    values: Any,
    times: Any,
    target_times: Any,
    *,
    method: str = "linear",
    methods: Sequence[tuple[slice, str]] | None = None,
    extrapolate: str = "clamp",
    lengths: Any = None,
    target_lengths: Any = None,
    max_gap: float | None = None,
    causal: bool = False,
    tolerance: float | None = None,
    bc_type: str = "not-a-knot",
    return_valid: bool = False,
    out: Any = None,
) -> Any:
    """Samples on their own clock to values at the times you ask for, in one launch.

    Args:
        values: ``[B, S, D]`` or ``[S, D]``, float64/32/16 or bfloat16; integers and bool with the step methods.
        times: ``[B, S]`` or ``[S]`` (one clock for every row): float32 or float64 seconds, or int64 nanoseconds.
            Ascending; of samples with one time only the last counts.
        target_times: ``[B, T]`` or ``[T]``, the dtype of `times`, in any order.
        method: ``"linear"``, ``"nearest"`` (midway: the earlier), ``"previous"`` or ``"next"``; the curves ``"pchip"``
            (no overshoot), ``"akima"`` (local, smooth) and ``"cubic"`` (C2 spline of the whole row), as scipy has them;
            ``"slerp"`` for the 4 components of a quaternion, in any order; ``"pose"`` for ``[x, y, z, qx, qy, qz, qw]``.
        methods: ``[(slice, method), ...]`` for features of other methods: ``[(slice(3, 7), "slerp")]``. No overlaps.
        extrapolate: outside the samples ``"clamp"`` holds the end sample, ``"nan"`` gives NaN, ``"linear"`` goes
            straight on: with the end bracket, a curve with its end slope, a rotation at its rate (no step). Never valid.
        lengths: ``[B]`` int32/int64, the samples of each row that exist.
        target_lengths: ``[B]`` int32/int64, the targets of each row that exist; past them there is nothing.
        max_gap: a bracket longer than this, in the clock's unit, is invalid.
        causal: never use a sample later than the target: every method holds the one before.
        tolerance: for the step methods: a sample farther than this is invalid.
        bc_type: what a cubic's ends obey, ``"not-a-knot"`` or ``"natural"``.
        return_valid: return ``(out, valid)``, valid being bool ``[B, T]``.
        out: where to write, ``[B, T, D]`` of values' dtype.

    Returns:
        ``[B, T, D]`` (``[T, D]`` for values ``[S, D]``) of values' dtype, framework and device. A target on a sample's
        time is that sample bit for bit. Where there is nothing (no samples, a NaN target, causal before the first):
        NaN, or 0 for integers and bool. The formula of linear is ``fma(w, b - a, a)`` with ``w = (t - ta) / (tb - ta)``;
        the whole contract is src/robocache/ops/resample/resample.hpp.

    Raises:
        ArgumentError, ArgumentTypeError: naming the argument, what was expected and what came.
        DeviceError: the device refused.

    Example:
        >>> values, times = np.array([[0.0], [10.0]]), np.array([0.0, 1.0])
        >>> robocache.resample_trajectories(values, times, np.array([0.25]))
        array([[2.5]])
    """
    torch = _lib.torch_module()
    if torch is not None and (
        torch.compiler.is_compiling()
        or torch.autograd.forward_ad._current_level >= 0
        or (torch.is_grad_enabled() and _requires_gradient(values, times, target_times))
    ):
        hidden = True
    else:
        if isinstance(out, np.ndarray) and not out.flags.writeable:
            raise errors.ArgumentError("out: expected an array that can be written, got a read-only one")
        arrays = _argument("values", values), _argument("times", times), _argument("target_times", target_times)
        try:
            valid = _valid(*arrays) if return_valid else None
            made = _resample(
                *arrays,
                method,
                extrapolate,
                causal,
                max_gap,
                tolerance,
                _optional("lengths", lengths),
                _optional("out", out),
                valid,
                _optional("target_lengths", target_lengths),
                bc_type,
                *_feature_blocks(methods),
            )
            hidden = False
        except Exception:
            if torch is None or not _memory_is_hidden(values, times, target_times, lengths, target_lengths, out):
                raise
            hidden = True
    if hidden:
        return _by_dispatcher(
            values,
            times,
            target_times,
            method,
            extrapolate,
            causal,
            max_gap,
            tolerance,
            lengths,
            target_lengths,
            bc_type,
            blocks=tuple(_feature_blocks(methods)),
            return_valid=return_valid,
            out=out,
        )
    made = _lib.in_framework_of(values, made) if out is None else out
    return (made, _lib.in_framework_of(values, valid)) if return_valid else made


def _requires_gradient(values: Any, times: Any, target_times: Any) -> bool:
    return (
        getattr(values, "requires_grad", False)
        or getattr(times, "requires_grad", False)
        or getattr(target_times, "requires_grad", False)
    )


def _by_dispatcher(*arguments: Any, **options: Any) -> Any:
    from . import torch_ops  # defines torch's operators, so not before torch is there and they are wanted

    return torch_ops.resample_trajectories(*arguments, **options)


def _memory_is_hidden(*arrays: Any) -> bool:
    from . import torch_ops

    return torch_ops.memory_is_hidden(*arrays)


def check_times(times: Any, lengths: Any = None) -> None:
    """Raises ArgumentError with row and index of the first time that is NaN or earlier than the one before it.

    Args:
        times: ``[B, S]`` or ``[S]``, float32, float64 or int64. On CUDA this waits for the device.
        lengths: ``[B]`` int32/int64, the samples of each row that exist.
    """
    _check_times(_argument("times", times), _optional("lengths", lengths))
