"""resample_trajectories: samples on their own clock to values at the times asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from .. import _lib, errors
from ._call import (
    argument,
    by_dispatcher,
    feature_blocks,
    flag,
    goes_by_torch,
    has_hidden_memory,
    hides_what_is_allocated,
    is_traced,
    optional,
    refuse_tangents,
    writable,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._call import Array

_resample, _resample_directly = _lib.function("resample_trajectories"), _lib.direct("resample_trajectories")
_valid, _valid_directly = _lib.function("resample_valid"), _lib.direct("resample_valid")
_check_times = _lib.function("check_times")


class _Options(TypedDict, total=False):
    """What resample_trajectories takes beside `return_valid`, for its overloads."""

    method: str
    methods: Sequence[tuple[slice, str]] | None
    extrapolate: str
    lengths: Any
    target_lengths: Any
    max_gap: float | None
    causal: bool
    tolerance: float | None
    bc_type: str
    out: Any


@overload
def resample_trajectories(
    values: Array, times: Any, target_times: Any, *, return_valid: Literal[False] = ..., **options: Unpack[_Options]
) -> Array: ...
@overload
def resample_trajectories(
    values: Array, times: Any, target_times: Any, *, return_valid: Literal[True], **options: Unpack[_Options]
) -> tuple[Array, Array]: ...
@overload
def resample_trajectories(
    values: Any, times: Any, target_times: Any, *, return_valid: bool = ..., **options: Unpack[_Options]
) -> Any: ...
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
            ``"angle"`` for radians, the shorter way round, in [-pi, pi); ``"slerp"`` for the 4 components of a
            quaternion, in any order; ``"pose"`` for ``[x, y, z, qx, qy, qz, qw]``.
        methods: ``[(slice, method), ...]`` for features of other methods: ``[(slice(3, 7), "slerp")]``. No overlaps.
        extrapolate: outside the samples ``"clamp"`` holds the end sample, ``"nan"`` gives NaN, ``"linear"`` goes
            straight on: with the end bracket, a curve with its end slope, a rotation or angle at its rate (no step).
            Never valid.
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
        time is that sample bit for bit. Where there is nothing (no samples, a NaN target or one past `target_lengths`,
        causal before the first):
        NaN, or 0 for integers and bool. The formula of linear is ``fma(w, b - a, a)`` with ``w = (t - ta) / (tb - ta)``;
        the whole contract is src/robocache/ops/resample/resample.hpp. Gradients go to values, times and target_times
        (rule 19 of docs/rules.md); torch.compile, torch.export, torch.vmap and CUDA graphs take the call as it is.

    Raises:
        ArgumentError, ArgumentTypeError: naming the argument, what was expected and what came.
        DeviceError: the device refused.

    Example:
        >>> values, times = np.array([[0.0], [10.0]]), np.array([0.0, 1.0])
        >>> robocache.resample_trajectories(values, times, np.array([0.25]))
        array([[2.5]])
    """
    flag("return_valid", return_valid)
    if methods is None and not is_traced():
        try:
            valid = _valid_directly(values, times, target_times) if return_valid else None
            made = _resample_directly(
                values,
                times,
                target_times,
                method,
                extrapolate,
                causal,
                max_gap,
                tolerance,
                lengths,
                out,
                valid,
                target_lengths,
                bc_type,
            )
            if made is not NotImplemented:
                made = made if out is None else out
                return (made, valid) if return_valid else made
        except errors.DeviceError:
            if not hides_what_is_allocated():
                raise
    refuse_tangents(partial(_named, values, times, target_times))
    hidden = goes_by_torch(values, times, target_times)
    if not hidden:
        arrays = argument("values", values), argument("times", times), argument("target_times", target_times)
        try:
            valid = _valid(*arrays) if return_valid else None
            made = _resample(
                *arrays,
                method,
                extrapolate,
                causal,
                max_gap,
                tolerance,
                optional("lengths", lengths),
                None if out is None else writable("out", out),
                valid,
                optional("target_lengths", target_lengths),
                bc_type,
                *feature_blocks(methods),
            )
        except Exception as error:
            named = _named(values, times, target_times, lengths, target_lengths, out)
            options = {"method": method, "extrapolate": extrapolate, "bc_type": bc_type, "methods": methods}
            if not has_hidden_memory(error, named | options):
                raise
            hidden = True
    if hidden:
        from ._torch import resample as of_torch  # defines torch's operators, so not before they are wanted

        return by_dispatcher(
            of_torch.resample_trajectories,
            partial(_named, values, times, target_times, lengths, target_lengths, out),
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
            blocks=tuple(feature_blocks(methods)),
            return_valid=return_valid,
            out=out,
        )
    made = _lib.in_framework_of(values, made) if out is None else out
    return (made, _lib.in_framework_of(values, valid)) if return_valid else made


def _named(*arrays: Any) -> dict[str, Any]:
    names = "values", "times", "target_times", "lengths", "target_lengths", "out"
    return dict(zip(names, arrays, strict=False))


def check_times(times: Any, lengths: Any = None) -> None:
    """Raises ArgumentError with row and index of the first time that is NaN or earlier than the one before it.

    Args:
        times: ``[B, S]`` or ``[S]``, float32, float64 or int64. On CUDA this waits for the device.
        lengths: ``[B]`` int32/int64, the samples of each row that exist.
    """
    try:
        _check_times(argument("times", times), optional("lengths", lengths))
    except Exception as error:
        if not has_hidden_memory(error, {"times": times, "lengths": lengths}):
            raise
        raise errors.ArgumentError("times: expected times to look at, got a tensor whose memory torch hides") from None
