"""Runs libraries on untrusted files in a separate process, since a file could make them hang, crash or fill the memory.

The process runs the module `untrusted`. Each request has limits of CPU time and memory. If the process dies, its request fails with an
error that names the file.
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

# The most CPU seconds of a request. A thousand requests usually take one second.
_CPU_S = 10
# The most memory of a request, beyond that of the libraries: this many items of the largest size that the budget allows.
_ITEMS = 4


class ReaderProcess:
    """A process that reads one file at a time.

    died: why the process died; "" while it lives. Later requests are refused with this reason.
    """

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
            SourceError: the process died, or needs too much memory; the message begins with `where`, the file.
        """
        memory = _ITEMS * at_once()
        try:
            if self.died:
                raise EOFError
            self._send((function, memory, arguments))
            is_answer, answer = pickle.load(self._stream)
        except (EOFError, OSError, pickle.UnpicklingError):
            self.died = self.died or self._find_cause_of_death()
            raise SourceError(f"{where}: {self.died}") from None
        if is_answer:
            return answer
        if isinstance(answer, MemoryError) or "memory allocation failed" in str(answer):  # the latter is HDF5's message
            raise SourceError(f"{where}: more than {memory} bytes in memory; memory_limit (--memory-limit) lifts that")
        raise answer

    def _find_cause_of_death(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGXCPU:
            return f"damaged: its library did not come to an end within {_CPU_S} s"
        return (
            f"damaged: its library died of {signal.strsignal(-code)}" if code < 0 else f"damaged: it ended with {code}"
        )

    def close(self) -> None:
        """Ends the process."""
        with suppress(OSError):  # as when the process has died
            self._stream.close()
        self._process.kill()
        self._process.wait()


class _Idle:
    """Processes that wait for another file, until the block of :func:`reader_processes` has ended."""

    def __init__(self) -> None:
        self.processes: list[ReaderProcess] = []
        self.ended = False


_idle: ContextVar[_Idle | None] = ContextVar("idle_reader_processes", default=None)


@contextmanager
def reader_processes() -> Iterator[None]:
    """Uses a process that has read a file again for the next file, within the outermost such block."""
    if _idle.get() is not None:
        yield
        return
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
    """Yields a process for one file."""
    idle = _idle.get()
    process = idle.processes.pop() if idle is not None and idle.processes else ReaderProcess()
    try:
        yield process
    except BaseException as error:
        if not isinstance(error, (Exception, GeneratorExit)):  # Ctrl-C may come amid an answer
            idle = None
        raise
    finally:
        if idle is not None and not idle.ended:
            with suppress(SourceError):  # it has died
                process.ask("", "close")
        if idle is None or idle.ended or process.died:
            process.close()
        else:
            idle.processes.append(process)
