"""resample_trajectories: computes the values of samples at other times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from .. import _lib, errors
from .._call import call
from .._check import flag
from .._operation import argument, optional
from ._streams import StreamsOperation

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._operation import Array

_resample = StreamsOperation("resample_trajectories")
_check_times = _lib.function("check_times")


class _Options(TypedDict, total=False):
    method: str
    methods: Sequence[tuple[slice, str]] | None
    extrapolate: str
    lengths: Any
    target_lengths: Any
    max_gap: float | None
    causal: bool
    tolerance: float | None
    bc_type: str


@overload
def resample_trajectories(
    values: Array,
    times: Any,
    target_times: Any,
    *,
    return_valid: Literal[False] = ...,
    out: Any = ...,
    **options: Unpack[_Options],
) -> Array: ...
@overload
def resample_trajectories(
    values: Array,
    times: Any,
    target_times: Any,
    *,
    return_valid: Literal[True],
    out: Any = ...,
    **options: Unpack[_Options],
) -> tuple[Array, Array]: ...
@overload
def resample_trajectories(
    values: Any, times: Any, target_times: Any, *, return_valid: bool = ..., out: Any = ..., **options: Unpack[_Options]
) -> Any: ...
@_resample.documents
def resample_trajectories(
    values: Any,
    times: Any,
    target_times: Any,
    *,
    return_valid: bool = False,
    out: Any = None,
    **options: Unpack[_Options],
) -> Any:
    """Computes the values of samples at other times, in one launch.

    Args:
        values: ``[B, S, D]`` or ``[S, D]``, float64/32/16 or bfloat16; integers and bool with the step methods.
        times: ``[B, S]`` or ``[S]`` (one clock for every row): float32 or float64 seconds, or int64 nanoseconds.
            Ascending; of samples with equal times only the last counts.
        target_times: ``[B, T]`` or ``[T]``, the dtype of `times`, in any order.
        method: ``"linear"``, ``"nearest"`` (the earlier of two equally near), ``"previous"`` or ``"next"``; the curves
            ``"pchip"`` (no overshoot), ``"akima"`` (local, smooth) and ``"cubic"`` (C2 spline of the whole row), as in scipy;
            ``"angle"`` for radians, the shorter way round, in [-pi, pi); ``"slerp"`` for the 4 components of a quaternion, in
            any order; ``"pose"`` for ``[x, y, z, qx, qy, qz, qw]``.
        methods: ``[(slice, method), ...]`` for features with other methods: ``[(slice(3, 7), "slerp")]``. The slices must not
            overlap. At most 112 runs of neighbouring features with one method; each run of 4 with ``"slerp"`` is a
            quaternion, each of 7 with ``"pose"`` a pose. An option that one of the methods refuses is refused.
        extrapolate: outside the samples ``"clamp"`` holds the end sample and ``"nan"`` gives NaN, for integers and bool 0.
            ``"linear"`` continues the line through the last two samples, a curve by its end slope, a rotation or angle at its
            rate; the step methods refuse it. A row of one time holds its sample. Values outside the samples, also at infinity,
            are never valid.
        lengths: ``[B]`` int32/int64, the number of valid samples in each row; later ones are never read. The CPU refuses a
            length outside ``[0, S]``, CUDA clamps it.
        target_lengths: ``[B]`` int32/int64, the number of valid targets in each row; the others have no value.
        max_gap: between two samples farther apart than this, in the clock's unit, values are invalid, except on a sample. Like
            `tolerance` it is first rounded to the clock's type (int64 refuses 0.5); infinity is no limit; negative values and
            NaN are refused.
        causal: True: no sample later than the target is used; every method holds the last sample, whose age `max_gap` and
            `tolerance` limit. After the last sample it is invalid, also with ``extrapolate="linear"``. ``"next"`` is refused.
        tolerance: for one step method of all features: a sample farther than this is invalid.
        bc_type: the condition at a cubic's ends, ``"not-a-knot"`` or ``"natural"``.
        return_valid: True: return ``(out, valid)``; valid is bool ``[B, T]``.
        out: the array to write to, ``[B, T, D]`` of values' dtype.

    Returns:
        ``[B, T, D]`` (``[T, D]`` for values ``[S, D]``) of values' dtype, framework and device. A target at a sample's time is
        that sample bit for bit; -0.0 is on 0.0. Any dimension may be 0. A target without a value is NaN, or 0 for integers and
        bool: if there are no samples, if it is NaN or beyond `target_lengths`, or with `causal` before the first sample. The
        formula of linear is ``fma(w, b - a, a)`` with ``w = (t - ta) / (tb - ta)``; the whole contract is
        src/robocache/ops/resample/resample.hpp. Gradients go to values, times and target_times (rule 19 of docs/rules.md);
        torch.compile, torch.export, torch.vmap and CUDA graphs support the call.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
        DeviceError: the device failed.

    Example:
        >>> values, times = np.array([[0.0], [10.0]]), np.array([0.0, 1.0])
        >>> robocache.resample_trajectories(values, times, np.array([0.25]))
        array([[2.5]])
    """
    valid_out = None if flag("return_valid", return_valid) else False
    result, valid = call(_resample, [out, valid_out], values=values, times=times, target_times=target_times, **options)
    return (result, valid) if return_valid else result


def check_times(times: Any, lengths: Any = None) -> None:
    """Raises ArgumentError with the row and index of the first time that is NaN or earlier than the time before it.

    Args:
        times: ``[B, S]`` or ``[S]``, float32, float64 or int64. On CUDA this waits for the device.
        lengths: ``[B]`` int32/int64, the number of valid samples in each row.
    """
    arguments = argument("times", times), optional("lengths", lengths)
    try:
        _check_times(*arguments)
    except errors.Error:
        raise
    except Exception as error:  # torch refuses access to the tensor's memory
        raise errors.ArgumentError(
            f"times: expected a dense array of times, got {type(times).__name__}: {error}"
        ) from None
