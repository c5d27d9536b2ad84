"""Calls an operation.

A call goes to the library, whatever framework its arrays are of. Only where torch is imported does `_torch` look whether torch
differentiates, transforms or traces the call.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ._operation import Operation, objects


def call(operation: Operation, results: Sequence[Any], **given: Any) -> list[Any]:
    """The results of a call, None where there is none.

    `results` has for each an array to write to, None for a new one, or False where it is not asked for.
    """
    arguments = operation.call(given)
    if sys.modules.get("torch") is None:
        flat = operation.flat(arguments, results)
        return operation.by_library(arguments, flat, results, objects(flat))
    from . import _torch  # not before the caller has imported torch

    return _torch.call(operation, arguments, results)


def is_traced() -> bool:
    """Whether torch makes a graph of what is called."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()
