"""fuse_multimodal: fuses sensors with their own clocks into one row of features per target time."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, overload

import numpy as np

from .. import _lib, errors
from .._call import call
from .._check import LISTS, feature_blocks, flag
from ._streams import FuseOperation

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._operation import Array

_fuse = FuseOperation("fuse_multimodal")
_STREAM_OPTIONS = {
    name: default
    for name, kind, default in _fuse.fields
    if kind.endswith("[]") and name not in ("streams", "values", "times")
}

_Name = TypeVar("_Name")


class _Options(TypedDict, total=False):
    method: Any
    methods: Any
    extrapolate: Any
    lengths: Any
    max_gap: Any
    causal: Any
    tolerance: Any
    bc_type: Any
    offset: Any
    scale: Any
    shift: Any
    dtype: Any


class _Call(_Options, total=False):
    target_lengths: Any
    out: Any


@overload
def fuse_multimodal(
    streams: Mapping[_Name, tuple[Array, Any]] | Sequence[tuple[Array, Any]],
    target_times: Any,
    *,
    output: Literal["concat"] = ...,
    return_valid: Literal[False] = ...,
    return_age: Literal[False] = ...,
    **options: Unpack[_Call],
) -> Array: ...
@overload
def fuse_multimodal(
    streams: Mapping[_Name, tuple[Array, Any]] | Sequence[tuple[Array, Any]],
    target_times: Any,
    *,
    output: Literal["concat"] = ...,
    return_valid: Literal[True],
    return_age: Literal[False] = ...,
    **options: Unpack[_Call],
) -> tuple[Array, Array]: ...
@overload
def fuse_multimodal(
    streams: Mapping[_Name, tuple[Array, Any]] | Sequence[tuple[Array, Any]],
    target_times: Any,
    *,
    output: Literal["concat"] = ...,
    return_valid: Literal[False] = ...,
    return_age: Literal[True],
    **options: Unpack[_Call],
) -> tuple[Array, Array]: ...
@overload
def fuse_multimodal(
    streams: Mapping[_Name, tuple[Array, Any]] | Sequence[tuple[Array, Any]],
    target_times: Any,
    *,
    output: Literal["concat"] = ...,
    return_valid: Literal[True],
    return_age: Literal[True],
    **options: Unpack[_Call],
) -> tuple[Array, Array, Array]: ...
@overload
def fuse_multimodal(
    streams: Mapping[_Name, tuple[Array, Any]],
    target_times: Any,
    *,
    output: Literal["dict"],
    return_valid: Literal[False] = ...,
    return_age: Literal[False] = ...,
    **options: Unpack[_Call],
) -> dict[_Name, Array]: ...
@overload
def fuse_multimodal(
    streams: Sequence[tuple[Array, Any]],
    target_times: Any,
    *,
    output: Literal["dict"],
    return_valid: Literal[False] = ...,
    return_age: Literal[False] = ...,
    **options: Unpack[_Call],
) -> list[Array]: ...
@overload
def fuse_multimodal(
    streams: Any,
    target_times: Any,
    *three: Any,
    output: str = ...,
    return_valid: bool = ...,
    return_age: bool = ...,
    **options: Unpack[_Call],
) -> Any: ...
@_fuse.documents
def fuse_multimodal(
    streams: Any,
    target_times: Any,
    *three: Any,
    output: str = "concat",
    return_valid: bool = False,
    return_age: bool = False,
    out: Any = None,
    target_lengths: Any = None,
    **options: Unpack[_Options],
) -> Any:
    """Fuses sensors with their own clocks into one row of features per target time, in one launch.

    Every option up to `dtype` is one value for all streams, or one value per stream: a list for a list of streams, a dict by
    name for a dict of streams. None in the list, or a missing name in the dict, means the default.

    Args:
        streams: a list of ``(values, times)``, or a dict ``name -> (values, times)``, of at most 112 streams (a stream counts
            once for each run of features with its own method in `methods`). Values ``[B, S, D]`` or ``[S, D]``, times ``[B,
            S]`` or ``[S]``, as in :func:`resample_trajectories`. S, D and both dtypes may differ between streams. Another form
            is ``fuse_multimodal(v1, t1, v2, t2, v3, t3, target_times)``.
        target_times: ``[B, T]`` or ``[T]``, float32 or float64 seconds or int64 nanoseconds, in any order. They are converted
            to the dtype of each stream's clock, seconds to the nearest nanosecond.
        method, methods, extrapolate, lengths, max_gap, causal, tolerance, bc_type: as in :func:`resample_trajectories`;
        durations are in the unit of the stream's clock.
        target_lengths: ``[B]`` int32/int64, the number of valid targets in each row.
        offset: the sensor's latency in the unit of its clock: the sample stamped t was taken at t - offset. It is
            0 or more, rounded to the clock's type (int64 refuses 0.5), and added to the targets, clamped to int64.
        scale, shift: the result is ``x * scale + shift``, one fma before the only rounding: a number, or an array ``[D]`` on
            the values' device, in the dtype of the arithmetic (float64 for float64 values and integers of 32 and 64 bits, else
            float32).
        dtype: the output's dtype: float64, float32, float16 or bfloat16; integer streams may also keep theirs. None: the dtype
            that all values share; for ``output="dict"`` each stream's own.
        output: ``"concat"``: one array with the streams side by side in their order. ``"dict"``: an array for each stream, in a
            dict for a dict of streams, in a list for a list.
        return_valid: also return bool ``[B, T, streams]``.
        return_age: also return the target time minus the time of the sample used, ``[B, T, streams]`` in target_times' dtype
            and unit. If two samples are mixed, also beyond an end, the earlier one counts; the age of a later sample is
            negative; without a sample it is NaN, or the least int64, as also outside with ``extrapolate="nan"``.
        out: the array to write to, ``[B, T, sum of D]``; for ``output="dict"`` an array for each stream.

    Returns:
        ``[B, T, sum of D]``, or an array ``[B, T, D]`` for each stream, without B for values ``[S, D]``, in the framework of
        the first stream's values. With return_valid or return_age a tuple: out, then valid and age as requested. Without a
        sample the value is NaN, or 0 for integer streams, before and after scaling. The whole contract is
        src/robocache/ops/fuse/fuse.hpp. Gradients go to values and times of the streams and to target_times.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names stream and argument: ``streams['imu'].times:
            expected ...``.
        DeviceError: the device failed.

    Example:
        >>> imu = np.array([[0.0], [10.0]]), np.array([0.0, 1.0])
        >>> gripper = np.array([[1.0], [0.0]]), np.array([0, 250_000_000])
        >>> robocache.fuse_multimodal({"imu": imu, "gripper": gripper}, np.array([0.125, 0.5]),
        ...                           method={"gripper": "previous"})
        array([[1.25, 1.  ],
               [5.  , 0.  ]])
    """
    if three:
        if len(three) != 5:
            raise errors.ArgumentTypeError(
                "fuse_multimodal: expected (streams, target_times), or values and times of three streams and "
                f"target_times, got {2 + len(three)} positional arguments"
            )
        streams, target_times = [(streams, target_times), three[:2], three[2:4]], three[4]
    if isinstance(streams, LISTS):
        keys, pairs = None, streams
    elif isinstance(streams, Mapping):
        keys, pairs = list(streams), list(streams.values())
    else:
        raise errors.ArgumentTypeError(
            f"streams: expected a list of (values, times) or a dict of them, got {type(streams).__name__}"
        )
    if output != "concat" and output != "dict":
        raise errors.ArgumentError(f"output: expected 'concat' or 'dict', got {output!r}")
    values: list[Any] = []
    times: list[Any] = []
    for index, pair in enumerate(pairs):
        if not isinstance(pair, LISTS) or len(pair) != 2:
            key = index if keys is None else keys[index]
            raise errors.ArgumentTypeError(f"streams[{key!r}]: expected (values, times), got {type(pair).__name__}")
        values.append(pair[0])
        times.append(pair[1])
    count, as_dict = len(pairs), output == "dict"
    outs = [None] * (count if as_dict else 1) if out is None else [out]
    if as_dict and out is not None:
        outs = _one_per_stream("out", out, None, keys, count)
        if any(x is None for x in outs):
            raise errors.ArgumentTypeError("out: expected an array for each stream, got NoneType for one of them")
    valid = None if flag("return_valid", return_valid) else False
    age = None if flag("return_age", return_age) else False
    results = call(
        _fuse,
        [*outs, valid, age],
        streams=[None] * count if keys is None else [str(key) for key in keys],
        values=values,
        times=times,
        target_times=target_times,
        target_lengths=target_lengths,
        **_by_stream(options, keys, count, as_dict),
    )
    if out is not None or not as_dict:
        fused = results[0] if out is None else out
    else:
        fused = results[:count] if keys is None else dict(zip(keys, results, strict=False))
    extra = [array for array in results[-2:] if array is not None]
    return (fused, *extra) if extra else fused


def _by_stream(options: Mapping[str, Any], keys: list[Any] | None, count: int, as_dict: bool) -> dict[str, list[Any]]:
    """Returns a list with an entry for each stream, for each option that is set."""
    lists: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _STREAM_OPTIONS:
            lists[name] = value  # the call refuses it
        elif name == "methods":
            lists[name] = _methods_of_streams(value, keys, count)
        elif type(value) in LISTS or isinstance(value, Mapping):
            if name == "dtype" and not as_dict:
                raise errors.ArgumentError("dtype: expected one for all streams, since output is 'concat'")
            default = _STREAM_OPTIONS[name]
            lists[name] = [_convert_option(name, x) for x in _one_per_stream(name, value, default, keys, count)]
        else:
            lists[name] = [_convert_option(name, value)] * count
    return lists


def _one_per_stream(name: str, option: Any, default: Any, keys: list[Any] | None, count: int) -> list[Any]:
    """Returns each stream's entry in an option's list or dict; the default if it has none."""
    if keys is None:
        if not isinstance(option, LISTS) or len(option) != count:
            got = f"{len(option)}" if isinstance(option, LISTS) else type(option).__name__
            raise errors.ArgumentError(f"{name}: expected one for each of the {count} streams, in a list, got {got}")
        return [default if entry is None else entry for entry in option]
    if not isinstance(option, Mapping):
        raise errors.ArgumentError(f"{name}: expected a dict by the streams' names, got {type(option).__name__}")
    for key in option:
        if key not in keys:
            raise errors.ArgumentError(f"{name}: expected names of streams ({', '.join(map(repr, keys))}), got {key!r}")
    return [default if option.get(key) is None else option[key] for key in keys]


def _convert_option(name: str, value: Any) -> Any:
    """Converts an option of one stream for the library."""
    if value is None or name not in ("lengths", "scale", "shift", "dtype"):
        return value
    if name == "dtype":
        return _lib.dtype_name(value)
    torch = sys.modules.get("torch")
    if torch is not None and getattr(value, "requires_grad", False) and torch.is_grad_enabled():
        raise errors.ArgumentError(f"{name}: has no gradients here; pass {name}.detach()")
    return value.item() if isinstance(value, np.number) else value


def _methods_of_streams(methods: Any, keys: list[Any] | None, count: int) -> list[list[Any]]:
    """Returns the blocks of each stream, from one list ``[(slice, method), ...]`` for all streams or a list for each."""
    if methods is None or (isinstance(methods, LISTS) and all(isinstance(block, tuple) for block in methods)):
        return [feature_blocks("methods", methods)] * count
    return [feature_blocks("methods", blocks) for blocks in _one_per_stream("methods", methods, None, keys, count)]
