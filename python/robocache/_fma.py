"""x * y + z, rounded once, where there is no instruction for it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def fma(xp: Any, x: Any, y: Any, z: Any) -> Any:
    """In the type of y and z, float32 or float64 (float64 where x is), then rounded to that of x. xp is numpy or torch.

    A sum of two float64 is rounded to odd here: the even neighbour gives way to the odd one, so that what is then rounded
    again, to fewer digits, ends where one rounding would have (Boldo and Melquiond, 2008). Exact but for float64 products
    of less than 2^-960 in magnitude, which have lost their last digits.
    """
    narrow = y.dtype == xp.float32 and x.dtype != xp.float64
    x64, y64, z64 = (_as(part, xp.float64) for part in (x, y, z))
    if narrow:
        y32 = _as(_sum_to_odd(xp, x64 * y64, z64), xp.float32)  # the product is exact
        return _as(y32, x.dtype)
    product, rest = _two_product(x64, y64)
    high, low = _two_sum(z64, rest)
    high, carried = _two_sum(product, high)
    result = high + _sum_to_odd(xp, carried, low)
    plain = x64 * y64 + z64  # has the signs of zeros and infinities
    return _as(xp.where(xp.isfinite(result) & (result != 0), result, plain), x.dtype)


def _as(array: Any, dtype: Any) -> Any:
    return array.astype(dtype) if isinstance(array, np.ndarray | np.generic) else array.to(dtype)


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """The rounded sum and what the rounding took."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _two_product(a: Any, b: Any) -> tuple[Any, Any]:
    """The rounded product and what the rounding took, by halves of 26 digits."""
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    product = a * b
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(a: Any) -> tuple[Any, Any]:
    shifted = a * (2.0**27 + 1)
    high = shifted - (shifted - a)
    return high, a - high


def _sum_to_odd(xp: Any, a: Any, b: Any) -> Any:
    total, rest = _two_sum(a, b)
    even = (total.view(xp.int64) & 1) == 0
    return xp.where(even & (rest != 0) & xp.isfinite(rest), xp.nextafter(total, rest * math.inf), total)
