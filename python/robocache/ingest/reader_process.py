"""A process of its own for libraries that damage, or a file made to do harm, could hang, kill or fill: `untrusted` is its program.

Each request has a limit of CPU time and of memory. A process that dies costs its request, whose error names the file.
"""

from __future__ import annotations

import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from . import untrusted
from .budget import at_once
from .recording import SourceError

# The limits of a request: CPU time (a thousand requests usually take a second), and memory for so many items beside the libraries.
_CPU_S = 10
_ITEMS = 4


class ReaderProcess:
    """A process, and the one file that it reads: after a request of which the process died, all others are refused at once."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self._stream = ours.makefile("rwb")
            self._process = subprocess.Popen(
                [sys.executable, "-I", untrusted.__file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self.died = ""
        self._send(([path for path in sys.path if isinstance(path, str)], _CPU_S))

    def _send(self, request: Any) -> None:
        pickle.dump(request, self._stream, 5)
        self._stream.flush()

    def ask(self, where: object, function: str, *arguments: Any) -> Any:
        """Calls a function of `untrusted` in the process, and returns its result or raises its error.

        Raises:
            SourceError: the process died, or would take too much memory; begins with `where`.
        """
        memory = _ITEMS * at_once()
        try:
            if self.died:
                raise EOFError
            self._send((function, memory, arguments))
            is_answer, answer = pickle.load(self._stream)
        except (EOFError, OSError, pickle.UnpicklingError):
            self.died = self.died or self._how_it_died()
            raise SourceError(f"{where}: {self.died}") from None
        if is_answer:
            return answer
        if isinstance(answer, MemoryError) or "memory allocation failed" in str(answer):  # as HDF5 says it
            raise SourceError(f"{where}: more than {memory} bytes in memory; memory_limit (--memory-limit) lifts that")
        raise answer

    def _how_it_died(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGXCPU:
            return f"damaged: its library did not come to an end within {_CPU_S} s"
        return (
            f"damaged: its library died of {signal.strsignal(-code)}" if code < 0 else f"damaged: it ended with {code}"
        )

    def close(self) -> None:
        """Ends the process."""
        with suppress(OSError):  # it has died
            self._stream.close()
        self._process.kill()
        self._process.wait()


class _Idle:
    """Processes that wait for their next file."""

    def __init__(self) -> None:
        self.processes: list[ReaderProcess] = []
        self.ended = False


_idle: ContextVar[_Idle | None] = ContextVar("idle_reader_processes", default=None)


@contextmanager
def reader_processes() -> Iterator[None]:
    """Within the block, a process that has read a file reads the next one."""
    idle = _Idle()
    token = _idle.set(idle)
    try:
        yield
    finally:
        _idle.reset(token)
        idle.ended = True
        while idle.processes:
            idle.processes.pop().close()


@contextmanager
def reader_process() -> Iterator[ReaderProcess]:
    """A process for one file."""
    idle = _idle.get()
    process = idle.processes.pop() if idle is not None and idle.processes else ReaderProcess()
    try:
        yield process
    finally:
        if idle is None or idle.ended or process.died:
            process.close()
        else:
            idle.processes.append(process)
