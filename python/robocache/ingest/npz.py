"""NumPy's .npz files, which come from anybody: nothing is unpickled, and nothing is larger than its header says."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np

from ..errors import Error
from .files import check_file

# Larger than an array of one step is.
_LARGEST = 2**28


def read_npz(file: Path) -> dict[str, np.ndarray]:
    """All arrays of a file, in the order of their names.

    Raises:
        Error: an array of objects, one of more than 256 MiB, or one that has another size than it says.
        OSError, zipfile.BadZipFile, zlib.error, ValueError: no such file, or a damaged one.
    """
    check_file(file)
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(file) as archive:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
            name = entry.filename.removesuffix(".npy")
            if name == entry.filename or name in arrays:
                raise Error(f"{entry.filename!r}: expected arrays (*.npy), each once")
            arrays[name] = _read_entry(archive, entry)
    return arrays


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise Error(f"{entry.filename}: expected .npy of version 1.0 or 2.0, got {version}")
        if dtype.hasobject:
            raise Error(f"{entry.filename}: expected numbers, got objects, which are pickled")
        # A header may say anything; so may the archive's directory.
        size = math.prod(shape) * dtype.itemsize
        if size > _LARGEST or min(shape, default=1) < 0:
            raise Error(f"{entry.filename}: expected at most {_LARGEST} bytes, got {dtype} {list(shape)}")
        content = stream.read(size)
        if len(content) < size or stream.read(1):
            raise Error(f"{entry.filename}: expected {size} bytes of {dtype} {list(shape)}, it has another size")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
