"""Limits the memory that a file of a source may take: a few KB that become gigabytes are damage, or an attack.

:func:`limited` sets one limit. :func:`check_size` compares a single item with it. A :class:`Budget` compares everything that a
file becomes; without a limit of the user, that may also be a multiple of the file's own size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from .recording import SourceError

# The default limit of a single item, in bytes.
_ITEM_BYTES = 256 << 20
# The default limit of a whole file: FILE_BYTES, and _TIMES_ITS_SIZE bytes for each byte of the file.
FILE_BYTES, _TIMES_ITS_SIZE = 128 << 20, 100

_limit: ContextVar[int | None] = ContextVar("memory_limit", default=None)


@contextmanager
def limited(limit: int | None) -> Iterator[None]:
    """Sets the limit for the block, in bytes; None is the default."""
    token = _limit.set(limit)
    try:
        yield
    finally:
        _limit.reset(token)


def at_once() -> int:
    """Returns the most bytes that a single item may take."""
    limit = _limit.get()
    return _ITEM_BYTES if limit is None else limit


def check_size(where: object, what: str, size: int) -> None:
    """Refuses an item that would take `size` bytes.

    Raises:
        SourceError: the item is too large; the message begins with `where` and names the limit and the option that raises it.
    """
    if size > at_once():
        raise _refusal(where, what, size, at_once())


def check_decoded(what: str, size: int) -> None:
    """Refuses a message whose decoded form would take `size` bytes; the caller adds the message's name.

    Raises:
        ValueError: it is too large.
    """
    if size > at_once():
        raise ValueError(_too_much(what, size, at_once()))


class Budget:
    """Counts the bytes that a file, or all files of a folder, have become so far.

    Args:
        path: the file or folder; errors begin with it.
    """

    __slots__ = ("_limit", "_path", "_used")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._used = 0
        self._limit: int | None = None

    def take(self, what: str, size: int) -> None:
        """Counts bytes that were allocated, or are about to be.

        Raises:
            SourceError: the sum of all calls is too large.
        """
        self._used += size
        fixed = FILE_BYTES if (limit := _limit.get()) is None else limit
        if self._used <= fixed:  # within any limit, so the file's size need not be looked up
            return
        if self._limit is None:
            self._limit = fixed if limit is not None else FILE_BYTES + _TIMES_ITS_SIZE * _bytes_of(self._path)
        if self._used > self._limit:
            raise _refusal(self._path, what, self._used, self._limit)


def _bytes_of(path: Path) -> int:
    """Returns the bytes of the file, or of all files below the folder."""
    if not path.is_dir():
        return path.stat().st_size if path.exists() else 0
    total = 0
    for folder, _, files in os.walk(path):
        for file in files:
            try:
                total += os.stat(os.path.join(folder, file)).st_size
            except OSError:  # a symlink to nothing
                continue
    return total


def _refusal(where: object, what: str, size: int, limit: int) -> SourceError:
    return SourceError(f"{where}: {_too_much(what, size, limit)}")


def _too_much(what: str, size: int, limit: int) -> str:
    return (
        f"{what}: {size} bytes in memory, expected at most {limit}; if the data really are so large, "
        f"memory_limit={size} (--memory-limit {size}) or more allows them"
    )
