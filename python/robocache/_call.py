"""Calls an operation.

A call goes to the library, whatever framework its arrays are of. Only where torch is imported does `_torch` look whether torch
differentiates, transforms or traces the call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from ._operation import Operation, objects

_call_beside_torch: Callable[[Operation, dict[str, Any], Sequence[Any]], list[Any]] | None = None


def call(operation: Operation, results: Sequence[Any], **given: Any) -> list[Any]:
    """The results of a call, None where there is none.

    `results` has for each an array to write to, None for a new one, or False where it is not asked for.
    """
    global _call_beside_torch
    arguments = operation.call(given)
    torch = sys.modules.get("torch")
    if torch is None:
        flat = operation.flat(arguments, results)
        return operation.by_library(arguments, flat, results, objects(flat))
    if torch.compiler.is_compiling():
        # Not before the caller has imported torch; and torch 2.11 traces no import of a package with a class of its own.
        from ._torch import dispatch

        return dispatch(operation, arguments, results)
    if _call_beside_torch is None:  # kept, since an import takes a tenth of a call
        from ._torch import call as call_beside_torch

        _call_beside_torch = call_beside_torch
    return _call_beside_torch(operation, arguments, results)


def is_traced() -> bool:
    """Whether torch makes a graph of what is called."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()
