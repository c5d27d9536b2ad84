"""Functions for numpy's arrays and torch's tensors, so that each formula of this package is written once."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _lib, errors

_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def framework_of(name: str, x: Any) -> Any:
    """Returns the framework of an array of floats: numpy or torch."""
    torch = _lib.torch_module()
    if torch is not None and isinstance(x, torch.Tensor):
        xp = torch
    elif isinstance(x, np.ndarray):
        xp = np
        _lib.refuse_mask(x)
    else:
        raise errors.ArgumentTypeError(f"{name}: expected a numpy array or a torch tensor, got {type(x).__name__}")
    if _lib.dtype_name(x.dtype) not in _ROUNDOFF:
        raise errors.ArgumentTypeError(f"{name}: expected float64, float32, float16 or bfloat16, got {x.dtype}")
    return xp


def roundoff(x: Any) -> float:
    """Returns the largest relative error of one rounding to x's type."""
    return _ROUNDOFF[_lib.dtype_name(x.dtype)]


def in_work_type(**arrays: Any) -> tuple[Any, list[Any]]:
    """Returns numpy or torch, and the arrays in the dtype of the arithmetic: float64 if one of them is, else float32."""
    (first, x), *others = arrays.items()
    xp = framework_of(first, x)
    for name, other in others:
        if framework_of(name, other) is not xp:
            raise errors.ArgumentTypeError(
                f"{name}: expected an array of {xp.__name__} like {first}, got {type(other).__name__}"
            )
        if xp is not np and other.device != x.device:
            raise errors.ArgumentError(f"{name}: expected on {x.device} like {first}, got on {other.device}")
    has_float64 = any(_lib.dtype_name(array.dtype) == "float64" for array in arrays.values())
    return xp, [cast(array, xp.float64 if has_float64 else xp.float32) for array in arrays.values()]


def cast(x: Any, dtype: Any) -> Any:
    return x.astype(dtype, copy=False) if isinstance(x, np.ndarray) else x.to(dtype)


def quietly(xp: Any) -> contextlib.AbstractContextManager[Any]:
    """Turns off numpy's warnings about NaN and infinity; torch does not warn."""
    return np.errstate(all="ignore") if xp is np else contextlib.nullcontext()


def shape_text(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def check_chunk(name: str, x: Any) -> None:
    """Raises unless x is [..., T, D]."""
    if x.ndim < 2 or x.shape[-1] == 0:
        raise errors.ArgumentError(f"{name}: expected [..., T, D], got {shape_text(x.shape)}")


def check_row(name: str, row: Any, x_name: str, x: Any) -> None:
    """Raises unless `row` has one row for each chunk of x: [..., D] for [..., T, D]."""
    expected = (*x.shape[:-2], x.shape[-1])
    if tuple(row.shape) != expected:
        raise errors.ArgumentError(
            f"{name}: expected {shape_text(expected)}, one row for each chunk of {x_name}, got {shape_text(row.shape)};"
            f" take its features in the order of {x_name}'s"
        )


def feature_mask(name: str, mask: Any, features: int) -> list[bool]:
    """Returns one bool for each feature, from a list or an array of bools; all True for None."""
    if mask is None:
        return [True] * features
    if isinstance(mask, str) or not hasattr(mask, "__len__"):
        raise errors.ArgumentTypeError(f"{name}: expected {features} bools, got {mask!r}")
    values = mask.tolist() if hasattr(mask, "tolist") else list(mask)
    for value in values:
        if not isinstance(value, bool | np.bool_):
            raise errors.ArgumentTypeError(f"{name}: expected bools, got {value!r}")
    if len(values) != features:
        raise errors.ArgumentError(f"{name}: expected {features} bools, one for each feature, got {len(values)}")
    return [bool(value) for value in values]


def where_features(xp: Any, mask: list[bool], yes: Any, no: Any) -> Any:
    """Returns `yes` for features in `mask`, and `no` for the others."""
    if all(mask):
        return yes
    chosen = np.array(mask) if xp is np else xp.tensor(mask, device=yes.device)
    return xp.where(chosen, yes, no)


def values_are_readable(xp: Any, x: Any) -> bool:
    """Whether values can be read: not while torch compiles, transforms or captures a graph."""
    if xp is np:
        return True
    if xp.compiler.is_compiling() or x.is_meta:
        return False
    from .._torch import _functorch_is_active

    return not (_functorch_is_active() or (x.is_cuda and xp.cuda.is_current_stream_capturing()))


def row_text(index: int, shape: Sequence[int]) -> str:
    """Returns the row of a flat index as text for errors."""
    if not math.prod(shape) or not len(shape):
        return "the one row"
    indices = tuple(int(i) for i in np.unravel_index(index, tuple(shape)))
    return f"row {indices[0] if len(indices) == 1 else indices}"
