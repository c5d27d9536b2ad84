"""Whether this process is the command ``robocache``."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any


def arguments() -> list[str] | None:
    """The arguments of the command, where this process is it."""
    program, *given = getattr(sys, "argv", None) or [""]
    if program == "-m":  # the package is imported before python -m has found the module
        program = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    processes = sys.modules.get("multiprocessing")
    if processes is not None and processes.parent_process() is not None:
        return None  # one of its workers, which has its argv
    return given if Path(program).name == "robocache" else None


def begin() -> None:
    """From now on SIGTERM and SIGHUP let the command remove its temporaries and show the terminal's cursor before it ends."""
    if _IS_THE_COMMAND:
        for asked in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(asked) is signal.SIG_DFL:  # SIGHUP is ignored behind nohup
                signal.signal(asked, _exit)


def _exit(signum: int, frame: Any) -> None:
    signal.signal(signum, signal.SIG_DFL)  # a second one does not wait for the clean-up
    sys.exit(128 + signum)


# python -m changes sys.argv once the package is imported.
_IS_THE_COMMAND = arguments() is not None and threading.current_thread() is threading.main_thread()
