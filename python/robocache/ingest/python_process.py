"""Starts processes of an ingest. Each one is a new Python, because a fork would lack this process's threads but keep their locks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from .._tvm_ffi import WITHOUT_TORCH


def start(function: Callable[..., Any], *arguments: Any, **options: Any) -> subprocess.Popen[Any]:
    """Starts a process that calls a function of this package with these arguments, which must be literals; `options` are those of Popen.

    The new process has its own session, so that Ctrl-C reaches only this process, which then ends the new one.
    """
    paths = [path for path in sys.path if isinstance(path, str)]
    name = function.__name__
    call = f"{name}({', '.join(map(repr, arguments))})"
    program = f"import sys; sys.path[:] = {paths!r}; from {function.__module__} import {name}; {call}"
    environment = {**os.environ, WITHOUT_TORCH: "1"}
    return subprocess.Popen([sys.executable, "-c", program], env=environment, start_new_session=True, **options)
