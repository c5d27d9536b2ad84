"""Checks arguments that do not reach the library, or whose names the library does not know."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import errors

if TYPE_CHECKING:
    import numpy.typing as npt

LISTS = list, tuple
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_NUMBERS = int, float


def flag(name: str, value: Any) -> bool:
    """Returns True or False. Refuses every other value, as the library does."""
    if value is not True and value is not False:
        raise errors.ArgumentTypeError(f"{name}: expected True or False, got {value!r}")
    return value is True


def truth(name: str, value: Any) -> bool:
    """Returns True or False, also for numpy's bools."""
    if not isinstance(value, bool | np.bool_):
        raise errors.ArgumentTypeError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def number(name: str, value: Any) -> float:
    """Returns a Python number: whole numbers as int, others as float."""
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


def real(name: str, value: Any) -> float:
    """Returns a number as float."""
    try:
        return float(number(name, value))
    except OverflowError:
        raise errors.ArgumentError(f"{name}: expected a number that float64 holds, got {value!r}") from None


def whole(name: str, value: Any) -> int:
    """Returns a whole number as int, within int64."""
    result = value
    if type(value) is not int:
        try:
            if isinstance(value, (bool, np.bool_)):
                raise TypeError
            result = operator.index(value)
        except TypeError:
            raise errors.ArgumentTypeError(f"{name}: expected a whole number, got {value!r}") from None
    if not _INT64_MIN <= result <= _INT64_MAX:
        raise errors.ArgumentError(f"{name}: expected a whole number of 64 bits, got {result}")
    return result  # type: ignore[no-any-return]


def three(name: str, value: Any, *, scalar: bool = False, convert: Callable[[str, Any], Any] = number) -> list[Any]:
    """Returns x, y and z of an argument as Python's numbers. `scalar`: the argument may be one number for all three."""
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
    """Converts a list of numbers to an array."""
    try:
        if isinstance(values, str):
            raise TypeError
        numbers = list(values)
    except TypeError:
        raise errors.ArgumentTypeError(f"{name}: expected a list of numbers, got {values!r}") from None
    return np.array([convert(name, value) for value in numbers], dtype)


def wholes(name: str, values: Any) -> npt.NDArray[np.int64]:
    """Returns whole numbers within int64 as an array, from a list, a numpy array or a torch tensor on any device.

    It converts all elements at once. If that fails, it converts them one by one, for the error.
    """
    if hasattr(values, "detach"):  # a torch tensor
        is_whole = not (values.is_floating_point() or values.is_complex() or values.is_quantized)
        values = values.detach().cpu().numpy() if is_whole else values.tolist()
    if isinstance(values, np.ndarray) and not isinstance(values, np.ma.MaskedArray):
        if (
            values.ndim == 1
            and values.dtype.kind in "iu"
            and (values.dtype != np.uint64 or values.max(initial=0) <= _INT64_MAX)
        ):
            return np.ascontiguousarray(values, np.int64)
        values = values.tolist()
    elif isinstance(values, LISTS) and set(map(type, values)) <= {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass
    return listed(whole, name, values, np.int64)


def feature_blocks(name: str, methods: Sequence[tuple[slice, str]] | None) -> list[tuple[Any, Any, str]]:
    """Returns (start, stop, method) of each block. The library checks them against the number of features."""
    if methods is not None and not isinstance(methods, LISTS):
        raise errors.ArgumentTypeError(f"{name}: expected a list of (slice, method), got {type(methods).__name__}")
    blocks = []
    for block in methods or ():
        try:
            features, method = block
        except (TypeError, ValueError):
            raise errors.ArgumentTypeError(f"{name}: expected (slice, method), got {block!r}") from None
        if not isinstance(features, slice):
            raise errors.ArgumentTypeError(f"{name}: expected a slice of features, got {features!r}")
        if features.step not in (None, 1):
            raise errors.ArgumentError(f"{name}: expected slices of step 1, got {features!r}")
        blocks.append((features.start, features.stop, method))
    return blocks
