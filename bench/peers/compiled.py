"""Compiles a peer in C. Needs a C compiler and the headers that the peer includes."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path


def compile_peer(name: str, *libraries: str) -> ctypes.CDLL:
    """Returns the library compiled from peers/NAME.c."""
    source = Path(__file__).with_name(f"{name}.c")
    with tempfile.TemporaryDirectory(prefix="robocache-bench-") as folder:
        library = Path(folder) / f"{name}.so"
        command = ["cc", "-O2", "-shared", "-fPIC", str(source), *(f"-l{x}" for x in libraries), "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        return ctypes.CDLL(str(library))
