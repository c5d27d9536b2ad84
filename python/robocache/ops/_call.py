"""How a call of an operation reaches the library: arrays, numbers and options, and when torch's dispatcher has it instead."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .. import _lib, errors

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

# What comes out is of the framework that went in; arrays of other frameworks are Any.
Array = TypeVar("Array", "torch.Tensor", "npt.NDArray[Any]")

LISTS = list, tuple
_LEAST, _MOST = -(2**63), 2**63 - 1

array_of = _lib.function("array_of")

# The options that each stream of a fusion may have for itself, in the library's order, and what a stream has that is not
# named.
STREAM_OPTIONS: dict[str, Any] = {
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


# ---- Arrays ----


def argument(name: str, value: Any) -> Any:
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


def optional(name: str, value: Any) -> Any:
    return None if value is None else argument(name, value)


def flag(name: str, value: Any) -> bool:
    """True or False as given; anything else is refused, as the library refuses it where it sees it."""
    if value is not True and value is not False:
        raise errors.ArgumentTypeError(f"{name}: expected True or False, got {value!r}")
    return value is True


def truth(name: str, value: Any) -> bool:
    """True or False, numpy's too."""
    if not isinstance(value, bool | np.bool_):
        raise errors.ArgumentTypeError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def writable(name: str, out: Any) -> Any:
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise errors.ArgumentError(f"{name}: expected an array that can be written, got a read-only one")
    return argument(name, out)


def arrays_of(made: Any, like: Any, count: int) -> list[Any]:
    """The first `count` arrays that the library made in one call, None where there is none; of `like`'s framework."""
    return [array_of(made, like, place) for place in range(count)]


# ---- Numbers and options ----


_NUMBERS = int, float


def number(name: str, value: Any) -> float:
    """A number as Python has it: whole ones stay whole."""
    if type(value) in _NUMBERS:
        return value  # type: ignore[no-any-return]
    if isinstance(value, (str, bool, np.bool_)):
        raise errors.ArgumentTypeError(f"{name}: expected a number, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        return float(value)
    except (TypeError, ValueError):
        raise errors.ArgumentTypeError(f"{name}: expected a number, got {value!r}") from None


def whole(name: str, value: Any) -> int:
    """A whole number that int64 holds."""
    made = value
    if type(value) is not int:
        try:
            if isinstance(value, (bool, np.bool_)):
                raise TypeError
            made = operator.index(value)
        except TypeError:
            raise errors.ArgumentTypeError(f"{name}: expected a whole number, got {value!r}") from None
    if not _LEAST <= made <= _MOST:
        raise errors.ArgumentError(f"{name}: expected a whole number of 64 bits, got {made}")
    return made  # type: ignore[no-any-return]


def three(name: str, value: Any, *, scalar: bool = False, convert: Callable[[str, Any], Any] = number) -> Sequence[Any]:
    """x, y and z of an argument, as Python's numbers."""
    # What most calls are made of takes the short way.
    if type(value) in LISTS and len(value) == 3:
        x, y, z = value
        if convert is number:
            if type(x) in _NUMBERS and type(y) in _NUMBERS and type(z) in _NUMBERS:
                return value  # type: ignore[no-any-return]
        elif type(x) is type(y) is type(z) is int and 0 <= x | y | z <= _MOST:  # none of them is negative or beyond
            return value  # type: ignore[no-any-return]
    elif scalar and type(value) is float:
        return value, value, value
    if scalar and (isinstance(value, (int, float, np.number)) or getattr(value, "ndim", None) == 0):
        return [convert(name, value)] * 3
    try:
        x, y, z = value
    except (TypeError, ValueError):
        expected = "a number, or three for x, y, z" if scalar else "three numbers, for x, y, z"
        try:
            count = len(value)
        except TypeError:  # an array without dimensions, too
            raise errors.ArgumentTypeError(f"{name}: expected {expected}, got {type(value).__name__}") from None
        raise errors.ArgumentError(f"{name}: expected {expected}, got {count}") from None
    return [convert(name, x), convert(name, y), convert(name, z)]


def listed(convert: Callable[[str, Any], Any], name: str, values: Any, dtype: type) -> npt.NDArray[Any]:
    """Numbers of any list of them as an array."""
    try:
        each = None if isinstance(values, str) else list(values)
    except TypeError:
        each = None
    if each is None:
        raise errors.ArgumentTypeError(f"{name}: expected a list of numbers, got {values!r}")
    return np.array([convert(name, value) for value in each], dtype)


def feature_blocks(methods: Sequence[tuple[slice, str]] | None) -> Iterator[Any]:
    """start, stop, method of each block, one after the other; the library knows how many features there are."""
    if methods is not None and not isinstance(methods, LISTS):
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


# ---- Where the library cannot go: by torch's dispatcher ----


def is_traced() -> bool:
    """Whether torch makes a graph of what is called."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def hides_what_is_allocated() -> bool:
    """Whether a transform of torch.func is at work."""
    torch = _lib.torch_module()
    return torch is not None and torch._C._are_functorch_transforms_active()


def goes_by_torch(*arrays: Any) -> bool:
    """Whether torch traces a graph, or records gradients of these arrays."""
    torch = _lib.torch_module()
    if torch is None:
        return False
    if torch.compiler.is_compiling():
        return True
    return torch.is_grad_enabled() and any(getattr(array, "requires_grad", False) for array in arrays)


def refuse_tangents(named: Callable[[], Mapping[str, Any]]) -> None:
    """Raises where forward-mode differentiation is at work on one of the arrays, whose tangent would be lost."""
    torch = _lib.torch_module()
    if torch is None or torch.autograd.forward_ad._current_level < 0:
        return
    from ._torch import _call as torch_call

    torch_call.refuse_tangents(named())


def has_hidden_memory(error: Exception, named: Mapping[str, Any]) -> bool:
    """After the library refused a call with `error`: whether it was for memory that torch hides, so that the dispatcher
    must have the call. Raises what says more than `error`. `named` are the call's arguments."""
    if isinstance(error, UnicodeEncodeError):
        _lib.text(
            next((name for name, value in named.items() if _contains(value, error.object)), "streams"), error.object
        )
    torch = _lib.torch_module()
    if torch is None:
        return False
    from ._torch import _call as torch_call

    torch_call.check_memory(named)
    allocated = isinstance(error, errors.DeviceError) and hides_what_is_allocated()
    return allocated or torch_call.memory_is_hidden(*named.values())


def _contains(value: Any, text: str) -> bool:
    if isinstance(value, str):
        return value == text
    return isinstance(value, LISTS) and any(_contains(part, text) for part in value)


def by_dispatcher(
    operation: Callable[..., Any], named: Callable[[], Mapping[str, Any]], *arguments: Any, **options: Any
) -> Any:
    """An operation of `_torch`; where torch refuses it for what one of the arrays is, that is said instead."""
    import torch

    from ._torch import _call as torch_call

    if torch.compiler.is_compiling():
        return operation(*arguments, **options)
    try:
        return operation(*arguments, **options)
    except Exception as error:
        torch_call.check_memory(named())
        if isinstance(error, NotImplementedError) and torch.autograd.forward_ad._current_level >= 0:
            raise torch_call.no_forward_mode(operation.__name__) from None
        raise
