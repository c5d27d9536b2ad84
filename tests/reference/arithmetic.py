"""Arithmetic that NumPy lacks: a fused multiply-add, one rounding to bfloat16, and splitmix64's finalizer."""

import ctypes
import ctypes.util

import numpy as np

try:
    import ml_dtypes

    bfloat16 = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    bfloat16 = None

_libm = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
_libm.fma.argtypes, _libm.fma.restype = [ctypes.c_double] * 3, ctypes.c_double
_libm.fmaf.argtypes, _libm.fmaf.restype = [ctypes.c_float] * 3, ctypes.c_float
_SCALAR_FMA = {
    np.dtype(np.float64): np.frompyfunc(_libm.fma, 3, 1),
    np.dtype(np.float32): np.frompyfunc(_libm.fmaf, 3, 1),
}


def fma(x, y, z, dtype):
    """Returns x * y + z with one rounding, elementwise, all three of `dtype` (float32 or float64)."""
    dtype = np.dtype(dtype)
    x, y, z = np.broadcast_arrays(*(np.asarray(v) for v in (x, y, z)))
    assert x.dtype == y.dtype == z.dtype == dtype, (x.dtype, y.dtype, z.dtype, dtype)
    with np.errstate(all="ignore"):
        return np.asarray(_SCALAR_FMA[dtype](x, y, z)).astype(dtype)


def is_floating(dtype):
    dtype = np.dtype(dtype)
    return dtype.kind == "f" or dtype == bfloat16


def work_type(dtype):
    """Returns the type of the arithmetic: float64 for float64 values, else float32."""
    return np.dtype(np.float64) if np.dtype(dtype) == np.float64 else np.dtype(np.float32)


def round_to(x, dtype):
    """Returns `x` (float32 or float64) rounded once to `dtype`, to nearest, ties to even."""
    dtype, x = np.dtype(dtype), np.asarray(x)
    with np.errstate(all="ignore"):
        if dtype == bfloat16 and x.dtype == np.float64:
            x = _round_to_odd_float32(x)
        return x.astype(dtype)


def _round_to_odd_float32(x):
    # Rounding to odd with two spare bits, then to nearest, gives the same as one rounding of the exact value.
    nearest = x.astype(np.float32)
    inexact = (nearest.astype(np.float64) != x) & ~np.isnan(x)
    too_far = inexact & (np.abs(nearest.astype(np.float64)) > np.abs(x))
    toward_zero = np.where(too_far, np.nextafter(nearest, np.float32(0)), nearest).astype(np.float32)
    odd = (toward_zero.view(np.uint32) | np.uint32(1)).view(np.float32)
    return np.where(inexact, odd, toward_zero).astype(np.float32)


def mix_bits(x):
    """splitmix64's finalizer."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
    return x ^ (x >> 31)
