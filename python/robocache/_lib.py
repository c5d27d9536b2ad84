"""Loads librobocache and passes arrays to it. Nothing is compiled and no framework is imported here."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import errors
from ._tvm_ffi import load_module, register_global_func

if TYPE_CHECKING:
    import numpy.typing as npt

path = Path(os.environ.get("ROBOCACHE_LIBRARY") or Path(__file__).parent / "lib" / "librobocache.so")
if not path.exists():
    raise errors.Error(f"{path}: the compiled library is missing from this installation; reinstall robocache")
_module = load_module(str(path))
register_global_func("robocache.repr", repr, override=True)  # for errors that show a Python object


def function(name: str) -> Any:
    """Returns the C++ function registered as `name`."""
    return _module[name]


def text(argument: str, value: Any) -> str:
    """Returns `value` after checking that it is valid text for the library."""
    if not isinstance(value, str):
        raise errors.ArgumentTypeError(f"{argument}: expected a str, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate, which os.fsdecode makes from a file name that is not UTF-8
        raise errors.ArgumentError(f"{argument}: expected UTF-8, got {value!r}") from None
    return value


def path_text(path: str | os.PathLike[str], argument: str = "path") -> str:
    """Returns the path as text for the library: UTF-8, not empty, without NUL."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(name, str):
        raise errors.ArgumentTypeError(f"{argument}: expected str or os.PathLike[str], got {type(path).__name__}")
    if not name or "\0" in name:
        raise errors.ArgumentError(f"{argument}: expected UTF-8 that is not empty and without NUL, got {name!r}")
    # pathlib turns two slashes into one, and a folder may have a name like "http:".
    if (url := re.match(r"[A-Za-z][A-Za-z0-9+.-]+:(?=/)", name)) and not os.path.lexists(url[0]):
        raise errors.ArgumentError(
            f"{argument}: expected a path of this machine, got the URL {name}; mount it, or copy it "
            f"(`aws s3 sync`, `fsspec.filesystem({url[0][:-1]!r}).get(..., recursive=True)`) and give the copy's path"
        )
    return text(argument, name)


_tensor_over = function("tensor_over")
_NAMES = {char: np.dtype(char).name for char in "?bhilqBHILQefd"}  # by dtype.char, since dtype.name is slow
_tensor_address = function("tensor_address")
_synchronize = function("synchronize")


def refuse_mask(array: Any) -> None:
    """Raises for a masked array of numpy, since its masked values would count."""
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        raise errors.ArgumentTypeError(
            "expected an array without a mask, got a masked array; pass .filled() with a neutral value, or .data"
        )


class _Owner:
    """Wraps an array, so that the library takes it as an opaque object. A bare array would be converted by numpy's DLPack, which
    refuses some arrays."""

    __slots__ = ("_array",)

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array


def from_numpy(array: npt.NDArray[Any]) -> Any:
    """Makes a tensor of the library from a numpy array, without a copy. The tensor keeps the array alive.

    An array that numpy's own DLPack accepts is returned as it is, since DLPack is ten times as fast. numpy's DLPack refuses
    bfloat16, and in some versions arrays that are read-only or bool.
    """
    refuse_mask(array)
    dtype, itemsize = array.dtype, array.itemsize
    if array.flags.carray and dtype.kind in "iuf" and itemsize <= 8 and dtype.isnative:
        return array
    name = _NAMES.get(dtype.char) or dtype.name
    if dtype.kind not in "biuf" and name != "bfloat16":
        raise errors.ArgumentTypeError(f"expected a dtype of numbers or bool, got {dtype}")
    if any(stride % itemsize for stride in array.strides) or not dtype.isnative:
        raise errors.ArgumentError(
            f"expected whole elements in native byte order, got strides of {array.strides} bytes and {dtype.str}"
        )
    strides = (stride // itemsize for stride in array.strides)
    return _tensor_over(_Owner(array), array.__array_interface__["data"][0], name, array.ndim, *array.shape, *strides)


class _Memory:
    """Lets numpy view memory, and keeps the memory's owner alive."""

    def __init__(self, owner: Any, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], read_only: bool) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (address, read_only),
            "shape": shape,
            "typestr": f"<u{dtype.itemsize}" if dtype.kind == "V" else dtype.str,
            "version": 3,
        }


def array_at(
    owner: Any, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], *, read_only: bool
) -> npt.NDArray[Any]:
    """Returns a numpy view of contiguous memory that `owner` keeps alive."""
    if address == 0:  # an empty array, for which NumPy before 2.3 refuses a null address
        return np.empty(shape, dtype)
    # numpy has no typestr for bfloat16, so the memory is an array of plain bits first.
    return np.asarray(_Memory(owner, address, shape, dtype, read_only)).view(dtype)


def to_numpy(tensor: Any) -> npt.NDArray[Any]:
    """Returns a writable numpy view of a contiguous CPU tensor from the library."""
    dtype = numpy_dtype(str(tensor.dtype).removeprefix("torch."))  # a torch dtype if another argument was torch's
    return array_at(tensor, _tensor_address(tensor), tuple(tensor.shape), dtype, read_only=False)


def in_framework_of(array: Any, tensor: Any) -> Any:
    """Converts a tensor from the library to `array`'s framework.

    For torch the library has already made a torch tensor. For jax, cupy and others the tensor is converted through DLPack, once
    all work on a CUDA tensor is done, since they read it on their own streams. If `array` only supports DLPack, the library's
    tensor is returned.
    """
    if type(array) is type(tensor):
        return tensor
    if isinstance(array, np.ndarray):
        return to_numpy(tensor)
    torch = torch_module()
    if torch is not None and isinstance(array, torch.Tensor):
        return tensor
    if hasattr(array, "__array_namespace__"):
        framework = array.__array_namespace__()
    else:  # cupy before version 14
        framework = sys.modules.get(type(array).__module__.partition(".")[0])
    if not hasattr(framework, "from_dlpack"):
        return tensor
    _synchronize(tensor)
    return framework.from_dlpack(tensor)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Returns the numpy dtype of this name; bfloat16 needs ml_dtypes, which registers it."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise errors.ArgumentTypeError(
            "numpy holds bfloat16 only with the package ml_dtypes; pip install ml_dtypes, or pass float32"
        ) from error
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def dtype_name(dtype: Any) -> str:
    """Returns a dtype's name, such as 'bfloat16' for 'bfloat16', torch.bfloat16, or a numpy dtype or type."""
    name = str(dtype)
    if isinstance(dtype, str) or name.startswith("torch."):
        return text("dtype", name.removeprefix("torch."))
    try:
        name = str(np.dtype(dtype).name)
    except (TypeError, ValueError):
        raise errors.ArgumentTypeError(f"dtype: expected a dtype or its name, got {dtype!r}") from None
    return name


def torch_module() -> Any | None:
    """Returns torch if the caller has already imported it, else None."""
    return sys.modules.get("torch")


def exchange_api(tensor_type: type) -> int:
    """Returns the address of a framework's DLPackExchangeAPI (dlpack.h), by which C code makes its tensors; 0 if it has none."""
    capsule = getattr(tensor_type, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return 0
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address: int = get_pointer(capsule, b"dlpack_exchange_api")
    return address
