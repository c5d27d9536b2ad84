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
register_global_func("robocache.repr", repr, override=True)  # an error says what came, if only Python can say it


def function(name: str) -> Any:
    """The C++ function that Python calls `name`."""
    return _module[name]


def text(argument: str, value: Any) -> str:
    """`value`, which the library takes for text."""
    if not isinstance(value, str):
        raise errors.ArgumentTypeError(f"{argument}: expected a str, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate, as os.fsdecode makes of a file's name that is no UTF-8
        raise errors.ArgumentError(f"{argument}: expected UTF-8, got {value!r}") from None
    return value


def path_text(path: str | os.PathLike[str], argument: str = "path") -> str:
    """The path as the library takes it: UTF-8 that ends where it ends."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(name, str):
        raise errors.ArgumentTypeError(f"{argument}: expected str or os.PathLike[str], got {type(path).__name__}")
    if not name or "\0" in name:
        raise errors.ArgumentError(f"{argument}: expected UTF-8 that is not empty and without NUL, got {name!r}")
    # pathlib makes one slash of two; and a folder may have such a name.
    if (url := re.match(r"[A-Za-z][A-Za-z0-9+.-]+:(?=/)", name)) and not os.path.lexists(url[0]):
        raise errors.ArgumentError(
            f"{argument}: expected a path of this machine, got the URL {name}; mount it, or copy it "
            f"(`aws s3 sync`, `fsspec.filesystem({url[0][:-1]!r}).get(..., recursive=True)`) and give the copy's path"
        )
    return text(argument, name)


_tensor_over = function("tensor_over")
_NAMES = {char: np.dtype(char).name for char in "?bhilqBHILQefd"}  # by dtype.char, since dtype.name takes its time
_tensor_address = function("tensor_address")
_synchronize = function("synchronize")


def refuse_mask(array: Any) -> None:
    """Raises for a masked array of numpy: what it masks would count."""
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        raise errors.ArgumentTypeError(
            "expected an array without a mask, got a masked array; pass .filled() with what counts for nothing, or .data"
        )


class _Owner:
    """Passes an array to the library as an object; as an argument of its own numpy's DLPack would refuse some."""

    __slots__ = ("_array",)

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array


def from_numpy(array: npt.NDArray[Any]) -> Any:
    """Makes the library's tensor of a numpy array, without a copy; it keeps the array alive.

    numpy's own DLPack is ten times as fast, but refuses arrays that are read-only, bool or bfloat16.
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
    """Lets numpy view memory, and keeps alive what owns it."""

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
    """A numpy view of contiguous memory that `owner` keeps alive."""
    # numpy knows the bits of bfloat16, not its name, before the view.
    return np.asarray(_Memory(owner, address, shape, dtype, read_only)).view(dtype)


def to_numpy(tensor: Any) -> npt.NDArray[Any]:
    """A writable numpy view of a contiguous CPU tensor that the library returned."""
    dtype = numpy_dtype(str(tensor.dtype).removeprefix("torch."))  # torch's where another argument was torch's
    return array_at(tensor, _tensor_address(tensor), tuple(tensor.shape), dtype, read_only=False)


def in_framework_of(array: Any, tensor: Any) -> Any:
    """A tensor that the library returned, as `array`'s framework has it.

    The library gives torch its own tensors. jax, cupy and others get theirs through DLPack, once the work on a CUDA tensor
    is done: they read it on streams of their own. What speaks DLPack alone keeps the library's tensor.
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
    """The numpy dtype of that name; bfloat16 needs ml_dtypes, which registers it."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise errors.ArgumentTypeError(
            "numpy holds bfloat16 only with the package ml_dtypes; pip install ml_dtypes, or ask for float32"
        ) from error
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def dtype_name(dtype: Any) -> str:
    """'bfloat16' from 'bfloat16', torch.bfloat16, or a numpy dtype or type."""
    name = str(dtype)
    if isinstance(dtype, str) or name.startswith("torch."):
        return text("dtype", name.removeprefix("torch."))
    try:
        name = str(np.dtype(dtype).name)
    except (TypeError, ValueError):
        raise errors.ArgumentTypeError(f"dtype: expected a dtype or its name, got {dtype!r}") from None
    return name


def torch_module() -> Any | None:
    """torch where the caller has already imported it; never imports it."""
    return sys.modules.get("torch")


def exchange_api(tensor_type: type) -> int:
    """The address of a framework's DLPackExchangeAPI (dlpack.h), by which C makes its tensors; 0 where it has none."""
    capsule = getattr(tensor_type, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return 0
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address: int = get_pointer(capsule, b"dlpack_exchange_api")
    return address
