"""Finds out whether this process is the command ``robocache``."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any


def arguments() -> list[str] | None:
    """Returns the arguments of the command; None if this process is not the command."""
    program, *remaining = getattr(sys, "argv", None) or [""]
    if program == "-m":  # python -m imports the package before it finds the module, whose name is in orig_argv
        program = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    processes = sys.modules.get("multiprocessing")
    if processes is not None and processes.parent_process() is not None:
        return None  # a worker process, which inherits argv
    return remaining if Path(program).name == "robocache" else None


def exit_on_signals() -> None:
    """Makes SIGTERM and SIGHUP raise SystemExit, so that the command removes temporary files and shows the cursor again."""
    if _IS_THE_COMMAND:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
                signal.signal(number, _exit)


def _exit(signum: int, frame: Any) -> None:
    signal.signal(signum, signal.SIG_DFL)  # a second signal ends the process at once
    sys.exit(128 + signum)


# Computed now, since python -m changes sys.argv once the package is imported.
_IS_THE_COMMAND = arguments() is not None and threading.current_thread() is threading.main_thread()
