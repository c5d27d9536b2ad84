"""Comparison by bits, and the same array in each framework."""

import numpy as np

from .arithmetic import bfloat16, is_floating


def name_of(dtype):
    """Returns the test id of a parameter that is a dtype."""
    return dtype.name if isinstance(dtype, np.dtype) else None


def assert_same_bits(actual, expected, what=""):
    """Asserts equal dtype, shape and bits; all NaN are equal, whatever their sign and payload."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype, f"{what}: dtype {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    same = _bits(actual) == _bits(expected)
    if is_floating(actual.dtype):
        same |= np.isnan(actual) & np.isnan(expected)
    if not same.all():
        differing = np.argwhere(~same)
        first = tuple(int(i) for i in differing[0])
        raise AssertionError(
            f"{what}: {len(differing)} of {same.size} elements differ; the first at {first}: "
            f"{actual[first]!r}, expected {expected[first]!r}"
        )


def assert_within(actual, expected, what=""):
    """Asserts that `actual` is within an `Expected` of the oracle."""
    exact = expected.bound == 0
    assert_same_bits(
        np.where(exact, actual, 0).astype(actual.dtype), np.where(exact, expected.out, 0).astype(actual.dtype), what
    )
    with np.errstate(invalid="ignore"):
        difference = np.abs(actual.astype(np.float64) - expected.exact)
        is_within = (
            exact
            | (expected.bound == np.inf)
            | (difference <= expected.bound)
            | (np.isnan(actual) & np.isnan(expected.exact))
        )
    if not is_within.all():
        outside = np.argwhere(~is_within)
        first = tuple(int(i) for i in outside[0])
        raise AssertionError(
            f"{what}: {len(outside)} of {is_within.size} elements are off; the first at {first}: {actual[first]!r}, "
            f"expected {expected.exact[first]!r} give or take {expected.bound[first]!r}"
        )


def _bits(array):
    array = np.ascontiguousarray(array)
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def to_torch(array, device="cpu"):
    """Returns a new tensor with the values of a NumPy array, also bfloat16."""
    import torch

    array = np.array(array, order="C")
    if array.dtype == bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


def to_numpy(array):
    """Returns the values of a NumPy array, a torch tensor on any device or a DLPack object as a NumPy array."""
    import torch

    if isinstance(array, np.ndarray):
        return array
    tensor = array if isinstance(array, torch.Tensor) else torch.from_dlpack(array)
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(bfloat16)
    return tensor.numpy()


def poisoned(shape, dtype, device="cpu"):
    """Returns a torch tensor with 0xA5 in every byte, for outputs."""
    import torch

    tensor = torch.empty(shape, dtype=dtype, device=device)
    if tensor.numel():
        tensor.view(torch.uint8).fill_(0xA5)
    return tensor


class OnlyDLPack:
    """An array with only the DLPack protocol."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()
