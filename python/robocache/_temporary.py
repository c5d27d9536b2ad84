"""Temporary files and folders. Those of a killed process are removed by the next process that creates one."""

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
    """Writes a text file that appears only when it is complete; until then an older file of that name stays.

    The text goes into ``NAME.random.partial``, which stays locked while this process lives. Partial files without a lock are
    removed first.

    Raises:
        OSError: the file cannot be written.
    """
    for leftover in path.parent.glob(f"{glob.escape(path.name)}.*.partial"):
        if re.fullmatch(r"[0-9a-f]{16}", leftover.name[len(path.name) + 1 : -len(".partial")]):
            with suppress(OSError), _lock_leftover(leftover, leftover):
                leftover.unlink()
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    with partial.open("x", encoding="utf-8") as file:
        try:
            _lock(file.fileno())
            if not partial.exists():  # another process removed it before it was locked
                return write_whole(path, text)
            file.write(text)
            file.flush()
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def temporary_folder(prefix: str, where: Path) -> Iterator[Path]:
    """Creates a folder in ``where/PREFIXrandom``, with the mode of the umask, and removes both at the end of the block.

    A file beside it stays locked while this process lives. Folders of that prefix without a lock are removed first.

    Raises:
        OSError: the folder cannot be created.
    """
    for leftover in where.glob(f"{glob.escape(prefix)}*/{_LOCK}"):
        with suppress(OSError), _lock_leftover(leftover, leftover.parent):
            shutil.rmtree(leftover.parent, ignore_errors=True)
    home = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
    try:
        with (home / _LOCK).open("x") as lock:
            _lock(lock.fileno())
            if not home.exists():  # another process removed it before it was locked
                with temporary_folder(prefix, where) as folder:
                    yield folder
                return
            folder = home / "folder"
            folder.mkdir()  # other users cannot read mkdtemp's folder, whatever the umask
            yield folder
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _lock(file: int) -> None:
    with suppress(OSError):  # on a file system without locks nothing is ever removed
        fcntl.flock(file, fcntl.LOCK_EX)


@contextmanager
def _lock_leftover(lock: Path, leftover: Path) -> Iterator[None]:
    """Locks the file or folder that a dead process left behind. Raises OSError if the process is alive, or was another user's."""
    if leftover.lstat().st_uid != os.geteuid() or not stat.S_ISREG(lock.lstat().st_mode):
        raise PermissionError(lock)
    with lock.open("r+") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
