"""Temporary files and folders that outlive no process: the next process that makes one removes what a killed process left."""

from __future__ import annotations

import fcntl
import glob
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = "robocache.lock"


def write_whole(path: Path, text: str) -> None:
    """Writes a text file that appears only when it is complete; until then a file of that name stays as it is.

    The text goes into ``NAME.random.partial``, which is locked while this process lives. Such files whose lock is free are
    removed first.

    Raises:
        OSError: the file cannot be written.
    """
    for left in path.parent.glob(f"{glob.escape(path.name)}.*.partial"):
        if re.fullmatch(r"[0-9a-f]{16}", left.name[len(path.name) + 1 : -len(".partial")]):
            with suppress(OSError), _free(left, left):
                left.unlink()
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    with partial.open("x", encoding="utf-8") as file:
        try:
            _lock(file.fileno())
            if not partial.exists():  # another process took it for a dead one's before it was locked
                return write_whole(path, text)
            file.write(text)
            file.flush()
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def temporary_folder(prefix: str, where: Path) -> Iterator[Path]:
    """A new folder ``where/PREFIXrandom`` with the modes that the umask gives, removed at the end of the block.

    It holds a file that is locked while this process lives. Folders of that prefix whose lock is free are removed first.

    Raises:
        OSError: the folder cannot be made.
    """
    for left in where.glob(f"{glob.escape(prefix)}*/{_LOCK}"):
        with suppress(OSError), _free(left, left.parent):
            shutil.rmtree(left.parent, ignore_errors=True)
    home = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
    try:
        with (home / _LOCK).open("x") as lock:
            _lock(lock.fileno())
            folder = home / "folder"
            folder.mkdir()  # mkdtemp's own folder is closed to other users, whatever the umask
            yield folder
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _lock(file: int) -> None:
    with suppress(OSError):  # a file system without locks: then no process removes what is left, either
        fcntl.flock(file, fcntl.LOCK_EX)


@contextmanager
def _free(lock: Path, left: Path) -> Iterator[None]:
    """Holds a dead process's lock on what it left. Raises OSError where the process lives, or another user's did."""
    if left.lstat().st_uid != os.geteuid() or not stat.S_ISREG(lock.lstat().st_mode):
        raise PermissionError(lock)
    with lock.open("r+") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
