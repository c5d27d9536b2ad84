"""tvm_ffi, which imports torch where it is installed: a second that the command ``robocache`` spares, which needs none."""

from __future__ import annotations

import sys

from ._command import arguments

_given = arguments()

if _given is not None and _given[:1] not in (["bench"], ["demo"], ["info"]) and "torch" not in sys.modules:
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        from tvm_ffi import load_module, register_error
    finally:
        del sys.modules["torch"]  # a reader of the user's own may want it
else:
    from tvm_ffi import load_module, register_error

__all__ = ["load_module", "register_error"]
