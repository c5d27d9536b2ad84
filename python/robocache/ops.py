"""The operations as plain functions: tensors in, tensors of the same framework out, on the CPU and on CUDA."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from . import _lib, errors

_resample = _lib.function("resample_trajectories")
_valid = _lib.function("resample_valid")
_fuse = _lib.function("fuse_multimodal")
_array_of = _lib.function("array_of")
_check_times = _lib.function("check_times")
_LISTS = list, tuple


def _argument(name: str, value: Any) -> Any:
    """What the library takes for an array: numpy by its memory, everything else through DLPack."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if torch.compiler.is_compiling() or not value.is_neg():
            return value
        raise errors.ArgumentError(
            f"{name}: a view whose sign torch has not applied yet, which DLPack cannot tell; pass {name}.resolve_neg()"
        )
    if isinstance(value, np.ndarray):
        try:
            return _lib.from_numpy(value)
        except errors.Error as error:
            raise type(error)(f"{name}: {error}") from None
    if hasattr(value, "__dlpack__"):
        return value
    raise errors.ArgumentTypeError(
        f"{name}: expected an array (torch, numpy or anything with DLPack), got {type(value).__name__}"
    )


def _optional(name: str, value: Any) -> Any:
    return None if value is None else _argument(name, value)


def _feature_blocks(methods: Any) -> Iterator[Any]:
    """start, stop, method of each block, one after the other; the library knows how many features there are."""
    if methods is not None and not isinstance(methods, _LISTS):
        raise errors.ArgumentTypeError(f"methods: expected a list of (slice, method), got {type(methods).__name__}")
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
    torch = sys.modules.get("torch")
    if torch is not None and (
        torch.compiler.is_compiling()
        or torch.autograd.forward_ad._current_level >= 0
        or (torch.is_grad_enabled() and _requires_gradient(values, times, target_times))
    ):
        hidden = True
    else:
        tensor = None if torch is None else torch.Tensor
        # What most calls are made of takes the short way.
        if (
            type(values) is tensor
            and type(times) is tensor
            and type(target_times) is tensor
            and not (values.is_neg() or times.is_neg() or target_times.is_neg())
        ):
            arrays = values, times, target_times
        else:
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
                None if lengths is None else _argument("lengths", lengths),
                None if out is None else _writable("out", out),
                valid,
                None if target_lengths is None else _argument("target_lengths", target_lengths),
                bc_type,
                *(() if methods is None else _feature_blocks(methods)),
            )
            hidden = False
        except Exception:
            if torch is None or not _memory_is_hidden(
                _named(values, times, target_times, lengths, target_lengths, out)
            ):
                raise
            hidden = True
    if hidden:
        return _by_dispatcher(
            "resample_trajectories",
            lambda: _named(values, times, target_times, lengths, target_lengths, out),
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
    if out is not None:
        made = out
    elif torch is None or type(values) is not torch.Tensor:  # torch's tensors come as such
        made = _lib.in_framework_of(values, made)
    return (made, _lib.in_framework_of(values, valid)) if return_valid else made


def _named(*arrays: Any) -> dict[str, Any]:
    names = "values", "times", "target_times", "lengths", "target_lengths", "out"
    return dict(zip(names, arrays, strict=True))


def _requires_gradient(values: Any, times: Any, target_times: Any) -> bool:
    try:  # nearly always of tensors, where asking for what may not be there takes twice as long
        return values.requires_grad or times.requires_grad or target_times.requires_grad
    except AttributeError:
        return any(getattr(array, "requires_grad", False) for array in (values, times, target_times))


def _by_dispatcher(operation: str, named: Callable[[], dict[str, Any]], *arguments: Any, **options: Any) -> Any:
    from . import torch_ops  # defines torch's operators, so not before torch is there and they are wanted

    call = getattr(torch_ops, operation)
    if torch_ops.torch.compiler.is_compiling():
        return call(*arguments, **options)
    try:
        return call(*arguments, **options)
    except Exception:
        torch_ops.check_memory(named())
        raise


def _memory_is_hidden(named: dict[str, Any]) -> bool:
    from . import torch_ops

    torch_ops.check_memory(named)
    return torch_ops.memory_is_hidden(*named.values())


# The options that each stream may have for itself, in the library's order, and what a stream has that is not named.
STREAM_OPTIONS = {
    "method": "linear",
    "extrapolate": "clamp",
    "causal": False,
    "max_gap": None,
    "tolerance": None,
    "bc_type": "not-a-knot",
    "lengths": None,
    "offset": None,
    "scale": None,
    "shift": None,
    "dtype": None,
}
_METHODS = len(STREAM_OPTIONS)  # counts after them
_PLAIN = frozenset((type(None), bool, int, float, str))  # what the library takes as it is, for all streams


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
    if isinstance(streams, _LISTS):
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

    torch = _lib.torch_module()
    tensor = None if torch is None else torch.Tensor
    traced = torch is not None and torch.compiler.is_compiling()
    recorded = torch is not None and torch.is_grad_enabled()
    hidden = traced or (torch is not None and torch.autograd.forward_ad._current_level >= 0)
    if recorded and getattr(target_times, "requires_grad", False):
        hidden = True
    arrays = []
    for place, pair in enumerate(pairs):
        key = place if keys is None else keys[place]
        if not isinstance(pair, _LISTS) or len(pair) != 2:
            raise errors.ArgumentTypeError(f"streams[{key!r}]: expected (values, times), got {type(pair).__name__}")
        values, times = pair
        # What most calls are made of takes the short way.
        if type(values) is tensor and type(times) is tensor and not (traced or values.is_neg() or times.is_neg()):
            if recorded and (values.requires_grad or times.requires_grad):
                hidden = True
        else:
            values = _stream_array(key, "values", values)
            times = _stream_array(key, "times", times)
            if recorded and (getattr(values, "requires_grad", False) or getattr(times, "requires_grad", False)):
                hidden = True
        arrays += None if keys is None else str(key), values, times

    given = method, extrapolate, causal, max_gap, tolerance, bc_type, lengths, offset, scale, shift, dtype
    shared, own = given, []
    if traced or not _PLAIN.issuperset(map(type, given)):
        shared = []
        for option, (name, default) in enumerate(STREAM_OPTIONS.items()):
            value = given[option]
            if isinstance(value, (*_LISTS, Mapping)):
                for place, its in _one_a_stream(name, value, keys, len(pairs)):
                    if its is not None:
                        own += place, option, _stream_option(name, its)
                value = default
            shared.append(_stream_option(name, value))
    if methods is not None:
        own += _methods_of_streams(methods, keys, len(pairs))

    if out is None:
        outs = []
    elif separate:
        by_place = dict(_one_a_stream("out", out, keys, len(pairs)))
        outs = [_writable("out", by_place.get(place)) for place in range(len(pairs))]
    else:
        outs = [_writable("out", out)]
    arguments = (
        len(pairs),
        _argument("target_times", target_times),
        _optional("target_lengths", target_lengths),
        separate,
        return_valid,
        return_age,
        len(outs),
        *shared,
        *arrays,
        *outs,
        *own,
    )
    if not hidden:
        try:
            made = _fuse(*arguments)
        except Exception:
            if torch is None or not _memory_is_hidden(_named_of_streams(arguments, keys)):
                raise
            hidden = True
    extra = return_valid + return_age
    count = (0 if outs else len(pairs) if separate else 1) + extra
    if hidden:
        made = _by_dispatcher("fuse_multimodal", lambda: _named_of_streams(arguments, keys), *arguments)
    else:
        made = [made] if count == 1 else [_array_of(made, arrays[1], place) for place in range(count)]
        if type(pairs[0][0]) is not tensor:  # torch's tensors come as such
            made = [_lib.in_framework_of(pairs[0][0], array) for array in made]
    if out is not None:
        fused = out
    elif not separate:
        fused = made[0]
    else:
        fused = made[: len(pairs)] if keys is None else dict(zip(keys, made, strict=False))
    return (fused, *made[count - extra :]) if extra else fused


def _named_of_streams(arguments: tuple, keys: list | None) -> dict[str, Any]:
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


def _one_a_stream(name: str, given: Any, keys: list | None, count: int) -> Any:
    """(place, value) of each stream that a list or a dict of one option names."""
    if keys is None:
        if isinstance(given, Mapping) or not isinstance(given, _LISTS) or len(given) != count:
            got = f"{len(given)}" if isinstance(given, _LISTS) else type(given).__name__
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
        return _argument(name, array)
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
        return _argument(name, value)
    return value.item() if isinstance(value, np.number) else value


def _methods_of_streams(methods: Any, keys: list | None, count: int) -> Iterator[Any]:
    """Blocks of features for all streams, ``[(slice, method), ...]``, or such a list for one stream and another."""
    if not isinstance(methods, _LISTS) or not all(isinstance(block, tuple) for block in methods):
        of_streams = _one_a_stream("methods", methods, keys, count)
    else:
        of_streams = [(place, methods) for place in range(count)]
    for place, blocks in of_streams:
        flat = list(_feature_blocks(blocks))
        for start in range(0, len(flat), 3):
            yield from (place, _METHODS, *flat[start : start + 3])


def _writable(name: str, out: Any) -> Any:
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise errors.ArgumentError(f"{name}: expected an array that can be written, got a read-only one")
    return _argument(name, out)


def check_times(times: Any, lengths: Any = None) -> None:
    """Raises ArgumentError with row and index of the first time that is NaN or earlier than the one before it.

    Args:
        times: ``[B, S]`` or ``[S]``, float32, float64 or int64. On CUDA this waits for the device.
        lengths: ``[B]`` int32/int64, the samples of each row that exist.
    """
    try:
        _check_times(_argument("times", times), _optional("lengths", lengths))
    except Exception:
        if _lib.torch_module() is None or not _memory_is_hidden({"times": times, "lengths": lengths}):
            raise
        raise errors.ArgumentError("times: expected times to look at, got a tensor whose memory torch hides") from None
