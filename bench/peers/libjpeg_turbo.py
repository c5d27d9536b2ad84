"""libjpeg-turbo alone: its own decoder, called from several threads."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from .compiled import compile_peer


class Decoder:
    """Decodes frames on `threads` threads, a few frames at a time, so that a busy core does not delay the others."""

    def __init__(self, threads: int) -> None:
        self._decode = compile_peer("libjpeg_turbo", "jpeg").decode
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self._decode.argtypes = [pointer, pointer, integer, integer, ctypes.c_int32, ctypes.c_int32, pointer]
        self._decode.restype = integer
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)

    def __call__(self, blobs: torch.Tensor, offsets: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        out = torch.empty(shape, dtype=torch.uint8)
        shares = np.linspace(0, shape[0], min(shape[0], 16 * self._threads) + 1).astype(int)

        def decode_share(i: int) -> int:
            begin, end = int(shares[i]), int(shares[i + 1])
            pointers = blobs.data_ptr(), offsets.data_ptr()
            return self._decode(*pointers, begin, end, shape[1], shape[2], out.data_ptr())

        if sum(self._pool.map(decode_share, range(len(shares) - 1))) != shape[0]:
            raise ValueError(f"expected frames of {shape[1]} x {shape[2]}")
        return out
