"""Imports tvm_ffi, which imports torch if that is installed. Processes that need no torch prevent this, and start seconds
sooner: the command ``robocache`` where it reads and writes files, and the processes of an ingest."""

from __future__ import annotations

import os
import sys

from ._command import arguments

# An environment variable that an ingest sets for the processes that it starts.
WITHOUT_TORCH = "ROBOCACHE_WITHOUT_TORCH"

_arguments = arguments()
_needs_no_torch = _arguments is not None and _arguments[:1] not in (["bench"], ["demo"], ["info"])

if (_needs_no_torch or WITHOUT_TORCH in os.environ) and "torch" not in sys.modules:
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        from tvm_ffi import load_module, register_error, register_global_func
    finally:
        del sys.modules["torch"]  # a user's own reader may import it
else:
    from tvm_ffi import load_module, register_error, register_global_func

__all__ = ["WITHOUT_TORCH", "load_module", "register_error", "register_global_func"]
