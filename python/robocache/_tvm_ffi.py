"""tvm_ffi, which imports torch where it is installed: a second that the command ``robocache`` spares, which needs none."""

from __future__ import annotations

import sys
from pathlib import Path


def _runs_without_torch() -> bool:
    """Whether this process is the command at work on files, or telling its help."""
    program, *arguments = getattr(sys, "argv", None) or [""]
    if program == "-m":  # the package is imported before python -m has found the module
        program = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    return Path(program).name == "robocache" and arguments[:1] not in (["bench"], ["demo"], ["info"])


if _runs_without_torch() and "torch" not in sys.modules:
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        from tvm_ffi import load_module, register_error
    finally:
        del sys.modules["torch"]  # a reader of the user's own may want it
else:
    from tvm_ffi import load_module, register_error

__all__ = ["load_module", "register_error"]
