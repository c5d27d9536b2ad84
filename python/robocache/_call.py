"""Calls an operation.

A call goes to the library, for arrays of any framework. If torch is imported, `_torch` first checks whether torch
differentiates, transforms or traces the call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from ._operation import Operation

_call_eagerly: Callable[[Operation, dict[str, Any], Sequence[Any]], list[Any]] | None = None


def call(operation: Operation, results: Sequence[Any], **arguments: Any) -> list[Any]:
    """Returns the results of a call, as :meth:`Operation.run`."""
    global _call_eagerly
    by_field = operation.call(arguments)
    torch = sys.modules.get("torch")
    if torch is None:
        return operation.run(by_field, results)
    if torch.compiler.is_compiling():
        # Imported here, since importing torch is the caller's choice. torch 2.11 cannot trace `from . import _torch`.
        from ._torch import dispatch

        return dispatch(operation, by_field, results)
    if _call_eagerly is None:  # kept, since importing takes a tenth of a call's time
        from ._torch import call_eagerly

        _call_eagerly = call_eagerly
    return _call_eagerly(operation, by_field, results)


def is_traced() -> bool:
    """Whether torch is tracing the call into a graph."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()
