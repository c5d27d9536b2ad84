"""Calls an operation.

A call goes to the library, for arrays of any framework. If torch is imported, `_torch` first checks whether torch
differentiates, transforms or traces the call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from ._operation import Operation, objects

_call_beside_torch: Callable[[Operation, dict[str, Any], Sequence[Any]], list[Any]] | None = None


def call(operation: Operation, results: Sequence[Any], **given: Any) -> list[Any]:
    """Returns the results of a call, None for those not asked for.

    `results` has for each result an array to write to, None for a new array, or False if it is not asked for.
    """
    global _call_beside_torch
    arguments = operation.call(given)
    torch = sys.modules.get("torch")
    if torch is None:
        flat = operation.flat(arguments, results)
        return operation.by_library(arguments, flat, results, objects(flat))
    if torch.compiler.is_compiling():
        # Imported here, since importing torch is the caller's choice. torch 2.11 cannot trace the import of the whole package.
        from ._torch import dispatch

        return dispatch(operation, arguments, results)
    if _call_beside_torch is None:  # kept, since importing takes a tenth of a call's time
        from ._torch import call as call_beside_torch

        _call_beside_torch = call_beside_torch
    return _call_beside_torch(operation, arguments, results)


def is_traced() -> bool:
    """Whether torch is tracing the call into a graph."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()
