"""fuse_multimodal: sensors that tick on their own clocks to one row of features per target time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, overload

import numpy as np

from .. import _lib, errors
from ._call import (
    LISTS,
    STREAM_OPTIONS,
    argument,
    arrays_of,
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

_fuse, _fuse_directly = _lib.function("fuse_multimodal"), _lib.direct("fuse_multimodal")
_METHODS = len(STREAM_OPTIONS)  # counts after them
_PLAIN = frozenset((type(None), bool, int, float, str))  # what the library takes as it is, for all streams

_Name = TypeVar("_Name")


class _Options(TypedDict, total=False):
    """What fuse_multimodal takes beside `output`, `return_valid` and `return_age`, for its overloads."""

    method: Any
    methods: Any
    extrapolate: Any
    lengths: Any
    target_lengths: Any
    max_gap: Any
    causal: Any
    tolerance: Any
    bc_type: Any
    offset: Any
    scale: Any
    shift: Any
    dtype: Any
    out: Any


@overload
def fuse_multimodal(
    streams: Mapping[_Name, tuple[Array, Any]] | Sequence[tuple[Array, Any]],
    target_times: Any,
    *,
    output: Literal["concat"] = ...,
    return_valid: Literal[False] = ...,
    return_age: Literal[False] = ...,
    **options: Unpack[_Options],
) -> Array: ...
@overload
def fuse_multimodal(
    streams: Mapping[_Name, tuple[Array, Any]] | Sequence[tuple[Array, Any]],
    target_times: Any,
    *,
    output: Literal["concat"] = ...,
    return_valid: Literal[True],
    return_age: Literal[False] = ...,
    **options: Unpack[_Options],
) -> tuple[Array, Array]: ...
@overload
def fuse_multimodal(
    streams: Mapping[_Name, tuple[Array, Any]] | Sequence[tuple[Array, Any]],
    target_times: Any,
    *,
    output: Literal["concat"] = ...,
    return_valid: Literal[False] = ...,
    return_age: Literal[True],
    **options: Unpack[_Options],
) -> tuple[Array, Array]: ...
@overload
def fuse_multimodal(
    streams: Mapping[_Name, tuple[Array, Any]] | Sequence[tuple[Array, Any]],
    target_times: Any,
    *,
    output: Literal["concat"] = ...,
    return_valid: Literal[True],
    return_age: Literal[True],
    **options: Unpack[_Options],
) -> tuple[Array, Array, Array]: ...
@overload
def fuse_multimodal(
    streams: Mapping[_Name, tuple[Array, Any]],
    target_times: Any,
    *,
    output: Literal["dict"],
    return_valid: Literal[False] = ...,
    return_age: Literal[False] = ...,
    **options: Unpack[_Options],
) -> dict[_Name, Array]: ...
@overload
def fuse_multimodal(
    streams: Sequence[tuple[Array, Any]],
    target_times: Any,
    *,
    output: Literal["dict"],
    return_valid: Literal[False] = ...,
    return_age: Literal[False] = ...,
    **options: Unpack[_Options],
) -> list[Array]: ...
@overload
def fuse_multimodal(
    streams: Any,
    target_times: Any,
    *three: Any,
    output: str = ...,
    return_valid: bool = ...,
    return_age: bool = ...,
    **options: Unpack[_Options],
) -> Any: ...
def fuse_multimodal(
    streams: Any,
    target_times: Any,
    *three: Any,
    method: Any = "linear",
    methods: Any = None,
    extrapolate: Any = "clamp",
    lengths: Any = None,
    target_lengths: Any = None,
    max_gap: Any = None,
    causal: Any = False,
    tolerance: Any = None,
    bc_type: Any = "not-a-knot",
    offset: Any = None,
    scale: Any = None,
    shift: Any = None,
    dtype: Any = None,
    output: str = "concat",
    return_valid: bool = False,
    return_age: bool = False,
    out: Any = None,
) -> Any:
    """Sensors that tick on their own clocks to one row of features per target time, in one launch.

    Every option up to `dtype` is one value for all streams, or one a stream: a list with an entry for each stream of a
    list, a dict by name for a dict of streams. None in the list and a name missing in the dict mean the default.

    Args:
        streams: a list of ``(values, times)``, or a dict ``name -> (values, times)``, up to 112 of them (a stream
            counts for each run of features that `methods` gives a method of its own). Values ``[B, S,
            D]`` or ``[S, D]``, times ``[B, S]`` or ``[S]``, as of :func:`resample_trajectories`; S, D, both dtypes are
            each stream's own. Also taken: ``fuse_multimodal(v1, t1, v2, t2, v3, t3, target_times)``.
        target_times: ``[B, T]`` or ``[T]``, float32 or float64 seconds or int64 nanoseconds, in any order. Turned into
            the type of each stream's clock; from seconds to the nearest nanosecond.
        method, methods, extrapolate, lengths, max_gap, causal, tolerance, bc_type: as of
            :func:`resample_trajectories`, durations in the unit of the stream's own clock.
        target_lengths: ``[B]`` int32/int64, the targets of each row that exist.
        offset: the sensor's latency in the unit of its clock: the sample stamped t was taken at t - offset.
        scale, shift: what is written is ``x * scale + shift``, one fma before the only rounding: a number, or an array
            ``[D]`` on the values' device of the type that arithmetic runs in (float64 for float64 values and integers of
            32 and 64 bits, else float32).
        dtype: of the output, float64, float32, float16 or bfloat16; integer streams may also stay what they are. None:
            the dtype that all values share, for ``output="dict"`` each stream's own.
        output: ``"concat"``: one array, the streams side by side in their order. ``"dict"``: an array for each stream,
            in a dict for a dict of streams, in a list for a list.
        return_valid: also return bool ``[B, T, streams]``.
        return_age: also return target minus the sample used, ``[B, T, streams]`` of target_times' dtype and unit; of a
            mixture from the earlier sample, below 0 for a later one; where there is none NaN, or the least int64.
        out: where to write: an array ``[B, T, sum of D]``, or for ``output="dict"`` one for each stream.

    Returns:
        ``[B, T, sum of D]``, or an array ``[B, T, D]`` for each stream; with valid and age, if asked for, a tuple ``(out,
        valid, age)`` in that order. Framework of the first stream's values. Without B for values ``[S, D]``. Where there
        is nothing: NaN, 0 for integer streams whatever they are scaled by. The whole contract is
        src/robocache/ops/fuse/fuse.hpp. Gradients go to values and times of the streams and to target_times.

    Raises:
        ArgumentError, ArgumentTypeError: naming stream and argument: ``streams['imu'].times: expected ...``.
        DeviceError: the device refused.

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
    separate = output == "dict"

    arrays: list[Any] = []  # name, values and times of each stream
    for place, pair in enumerate(pairs):
        if not isinstance(pair, LISTS) or len(pair) != 2:
            key = place if keys is None else keys[place]
            raise errors.ArgumentTypeError(f"streams[{key!r}]: expected (values, times), got {type(pair).__name__}")
        values, times = pair
        arrays += None if keys is None else str(keys[place]), values, times
    given = method, extrapolate, causal, max_gap, tolerance, bc_type, lengths, offset, scale, shift, dtype
    asked = separate, return_valid, return_age
    extra = flag("return_valid", return_valid) + flag("return_age", return_age)
    count = extra if out is not None else extra + (len(pairs) if separate else 1)
    made: Any = NotImplemented
    if methods is None and (out is None or not separate) and not is_traced():
        outs = () if out is None else (out,)
        try:
            made = _fuse_directly(len(pairs), target_times, target_lengths, *asked, len(outs), *given, *arrays, *outs)
        except errors.DeviceError:
            if not hides_what_is_allocated():
                raise
    if made is NotImplemented:
        made = _in_general(keys, arrays, target_times, target_lengths, asked, given, methods, out, count)
    elif count == 1:
        made = [made]
    if out is not None:
        fused = out
    elif not separate:
        fused = made[0]
    else:
        fused = made[: len(pairs)] if keys is None else dict(zip(keys, made, strict=False))
    return (fused, *made[count - extra :]) if extra else fused


def _in_general(
    keys: list[Any] | None,
    arrays: list[Any],
    target_times: Any,
    target_lengths: Any,
    asked: tuple[bool, bool, bool],
    given: tuple[Any, ...],
    methods: Any,
    out: Any,
    count: int,
) -> list[Any]:
    """The `count` arrays that a call makes, whatever its arrays are and torch has to do with them."""
    streams = len(arrays) // 3
    like = arrays[1] if arrays else None
    taken: list[Any] = []
    for place in range(streams):
        name, values, times = arrays[3 * place : 3 * place + 3]
        key = place if keys is None else keys[place]
        taken += name, _stream_array(key, "values", values), _stream_array(key, "times", times)
    shared: list[Any] = list(given)
    own: list[Any] = []
    if is_traced() or not _PLAIN.issuperset(map(type, given)):
        for option, (name, default) in enumerate(STREAM_OPTIONS.items()):
            value = given[option]
            if isinstance(value, (*LISTS, Mapping)):
                for place, its in _one_a_stream(name, value, keys, streams):
                    if its is not None:
                        own += place, option, _stream_option(name, its)
                value = default
            shared[option] = _stream_option(name, value)
    if methods is not None:
        own += _methods_of_streams(methods, keys, streams)
    outs: list[Any] = []
    if out is not None and asked[0]:
        by_place = dict(_one_a_stream("out", out, keys, streams))
        outs = [writable("out", by_place.get(place)) for place in range(streams)]
    elif out is not None:
        outs = [writable("out", out)]
    arguments = (
        streams,
        argument("target_times", target_times),
        optional("target_lengths", target_lengths),
        *asked,
        len(outs),
        *shared,
        *taken,
        *outs,
        *own,
    )
    named = partial(_named_of_streams, arguments, keys)
    refuse_tangents(named)
    if not goes_by_torch(target_times, *arrays):
        try:
            made = _fuse(*arguments)
            made = [made] if count == 1 else arrays_of(made, taken[1], count)
            return [_lib.in_framework_of(like, array) for array in made]
        except Exception as error:
            if not has_hidden_memory(error, named()):
                raise
    from ._torch import fuse as of_torch  # defines torch's operators, so not before they are wanted

    return by_dispatcher(of_torch.fuse_multimodal, named, *arguments)  # type: ignore[no-any-return]


def _named_of_streams(arguments: tuple[Any, ...], keys: list[Any] | None) -> dict[str, Any]:
    """What a call of the library was given, by names for errors."""
    count, outs = arguments[0], arguments[6]
    named = {"target_times": arguments[1], "target_lengths": arguments[2]}
    first = 7 + len(STREAM_OPTIONS)
    named |= zip(STREAM_OPTIONS, arguments[7:first], strict=True)
    for place in range(count):
        stream = f"streams[{place if keys is None else keys[place]!r}]"
        named |= {
            f"{stream}.values": arguments[first + 3 * place + 1],
            f"{stream}.times": arguments[first + 3 * place + 2],
        }
    rest = arguments[first + 3 * count :]
    named |= {f"out[{place}]": array for place, array in enumerate(rest[:outs])}
    return named | {f"option {place} of a stream": value for place, value in enumerate(rest[outs:])}


def _one_a_stream(name: str, given: Any, keys: list[Any] | None, count: int) -> Iterable[tuple[int, Any]]:
    """(place, value) of each stream that a list or a dict of one option names."""
    if keys is None:
        if isinstance(given, Mapping) or not isinstance(given, LISTS) or len(given) != count:
            got = f"{len(given)}" if isinstance(given, LISTS) else type(given).__name__
            raise errors.ArgumentError(f"{name}: expected one for each of the {count} streams, in a list, got {got}")
        return enumerate(given)
    if not isinstance(given, Mapping):
        raise errors.ArgumentError(f"{name}: expected a dict by the streams' names, got {type(given).__name__}")
    for key in given:
        if key not in keys:
            raise errors.ArgumentError(f"{name}: expected names of streams ({', '.join(map(repr, keys))}), got {key!r}")
    return [(keys.index(key), value) for key, value in given.items()]


def _stream_array(key: Any, name: str, array: Any) -> Any:
    try:
        return argument(name, array)
    except errors.Error as error:
        raise type(error)(f"streams[{key!r}].{error}") from None


def _stream_option(name: str, value: Any) -> Any:
    """What the library takes for the value of an option."""
    if value is None or name not in ("lengths", "scale", "shift", "dtype"):
        return value
    if name == "dtype":
        return _lib.dtype_name(value)
    if name == "lengths" or not isinstance(value, int | float | np.number):
        torch = _lib.torch_module()
        if torch is not None and torch.is_grad_enabled() and getattr(value, "requires_grad", False):
            raise errors.ArgumentError(f"{name}: carries no gradients; pass {name}.detach()")
        return argument(name, value)
    return value.item() if isinstance(value, np.number) else value


def _methods_of_streams(methods: Any, keys: list[Any] | None, count: int) -> Iterator[Any]:
    """Blocks of features for all streams, ``[(slice, method), ...]``, or such a list for one stream and another."""
    if not isinstance(methods, LISTS) or not all(isinstance(block, tuple) for block in methods):
        of_streams = _one_a_stream("methods", methods, keys, count)
    else:
        of_streams = [(place, methods) for place in range(count)]
    for place, blocks in of_streams:
        flat = list(feature_blocks(blocks))
        for start in range(0, len(flat), 3):
            yield from (place, _METHODS, *flat[start : start + 3])
