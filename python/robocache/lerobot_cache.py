"""Opens the cache of a LeRobot dataset, which is made once, and again when the dataset has changed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from . import errors
from ._printable import printable, warn
from .dataset import Dataset
from .dataset import open as open_dataset
from .ingest import ingest
from .ingest.driver import check_source, checked_path
from .ingest.files import fingerprint, is_cache, is_readable, is_source
from .ingest.formats.lerobot import folder_names
from .ingest.recording import SourceError
from .loader import LoaderWarning


def open_cache(
    path: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    on_error: str = "stop",
    frames: str | None = None,
    video: bool = True,
    follow_links: bool = False,
) -> Dataset:
    """Opens the cache of a LeRobot dataset. Makes it if there is none, or again if files that it was made of have changed.

    A cache that this function did not make, for example one by ``robocache ingest``, is never changed: it is used if it fits the dataset and
    the arguments. If several processes open a missing cache, one makes it and the others wait. On a terminal a bar shows the progress.

    Args:
        path, cache, on_error, frames, follow_links: as for :meth:`Loader.from_lerobot`.
        video: whether to read the cameras too, which are decoded once and kept as JPEG.

    Raises:
        FileError: as :func:`robocache.ingest`; no camera has a frame in any episode; or the cache at `cache` does not fit, and this
            function did not make it.
    """
    dataset = find_or_make_cache(path, cache, on_error, frames, video, follow_links)
    cameras = dataset.provenance["lerobot"]["cameras"] if video else ()
    missing = [name for name in cameras if name not in dataset.streams]
    if missing and len(missing) == len(cameras):
        raise errors.FileError(
            f"{path}: no episode has a frame of its camera{'s' * (len(missing) > 1)} {', '.join(missing)} in {dataset.path}; "
            "video=False reads it without cameras"
        )
    if missing:
        warn(f"cameras without frames in the cache are left out, all else is read: {', '.join(missing)}", LoaderWarning)
    return dataset


def find_or_make_cache(
    path: Any,
    cache: Any = None,
    on_error: str = "stop",
    frames: str | None = None,
    video: bool = True,
    follow_links: bool = False,
) -> Dataset:
    """Does what :func:`open_cache` does, without the check that cameras have frames."""
    source = checked_path("path", path)
    check_source(source)
    source = source.resolve()
    if not os.path.lexists(source / "meta" / "info.json"):
        hint = (
            "; this folder is a cache, which robocache.Loader(robocache.open(path), ...) reads"
            if is_cache(source)
            else ""
        )
        raise errors.FileError(f"{source}: expected the folder of a LeRobot dataset, which has meta/info.json{hint}")
    if frames not in (None, "by-time", "by-index"):
        raise errors.ArgumentError(f"frames: expected 'by-time', 'by-index' or None, got {frames!r}")
    cache_path = _default_path(source) if cache is None else checked_path("cache", cache)
    dataset = _find_cache(source, cache_path, on_error, frames, video)
    if dataset is None:
        with _one_at_a_time(cache_path) as lock:
            dataset = _find_cache(source, cache_path, on_error, frames, video)
            if dataset is None:
                dataset = _make_cache(source, cache_path, on_error, frames, video, follow_links)
                lock.truncate(0)
                lock.write(_identity(source, cache_path))
    return dataset


def _default_path(source: Path) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "robocache"
    return root / f"{source.name}-{hashlib.sha256(os.fsencode(source)).hexdigest()[:16]}"


def _lock_of(cache_path: Path) -> Path:
    """Returns the path of the file beside a cache that a process locks while it makes the cache. Afterwards the file holds the cache's
    identity."""
    return cache_path.with_name(f"{cache_path.name}.lock")


def _identity(source: Path, cache_path: Path) -> str:
    """Returns a text that differs for each dataset, and for each cache that was ever written at this path."""
    manifest = os.stat(cache_path / "manifest.json")
    path = hashlib.sha256(os.fsencode(source)).hexdigest()
    return f"{manifest.st_ino} {manifest.st_mtime_ns} {manifest.st_size} {path}\n"


def _is_ours(source: Path, cache_path: Path) -> bool:
    """Whether :func:`open_cache` made the cache that is now at this path."""
    try:
        return is_readable(_lock_of(cache_path)) and _lock_of(cache_path).read_text() == _identity(source, cache_path)
    except OSError:
        return False


def _find_cache(source: Path, cache_path: Path, on_error: str, frames: str | None, video: bool) -> Dataset | None:
    """Returns the cache if it fits, or None if it has to be made.

    Raises:
        FileError: the cache does not open; or it does not fit, and :func:`open_cache` did not make it.
    """
    if not os.path.lexists(cache_path):
        return None
    advice = f"`rm -r {shlex.quote(str(cache_path))}`, and it is made anew"
    try:
        dataset = open_dataset(cache_path)
    except errors.FileError as error:
        if cache_path != _default_path(source):
            raise
        raise errors.FileError(f"{error}; {advice}") from error
    if not (reasons := list(_find_reasons(dataset, source, on_error, frames, video))):
        return dataset
    if _is_ours(source, cache_path):
        return None
    provenance = dataset.provenance
    if "lerobot" not in provenance:
        raise errors.FileError(
            f"{cache_path}: expected a cache made from a LeRobot dataset, got one of other data; pass cache= with another path"
        )
    if "source" in provenance and not is_source(provenance, source):
        raise errors.FileError(
            f"{cache_path}: expected a cache of {source}, got one of another dataset, {provenance['source']!r}; pass cache= with another path"
        )
    if cache_path != _default_path(source):
        command = (
            f"robocache ingest {shlex.quote(str(source))} {shlex.quote(str(cache_path))} --index-columns --overwrite"
        )
        advice = f"`{command}` makes it again, or pass cache= with another path"
    raise errors.FileError(
        f"{cache_path}: {'; '.join(reasons)}; from_lerobot() did not make it, so it stays unchanged: {advice}"
    )


def _find_reasons(dataset: Dataset, source: Path, on_error: str, frames: str | None, video: bool) -> Iterator[str]:
    """Yields the reasons why a cache does not fit the arguments."""
    provenance = dataset.provenance.get("lerobot", {})
    if provenance.get("fingerprint") != fingerprint(source, *folder_names(provenance.get("video", True))):
        yield f"files of {source} have changed since the cache was made"
    if not provenance.get("video", True) and video and provenance.get("cameras"):
        yield "its cameras were left out; video=False needs none"
    if on_error != "skip" and (skipped := dataset.provenance.get("skipped")):
        yield f"{len(skipped)} things were skipped ({skipped[0]['what']}, ...); on_error='skip' accepts that"
    if frames not in (None, provenance.get("frames")) and provenance.get("video", True):
        yield f"it was made with frames={provenance.get('frames')!r}, expected frames={frames!r}"
    numbers = episode_numbers(dataset) if provenance else np.empty(0)
    if len(np.unique(numbers)) < len(numbers):
        yield "several episodes share a number, since it was appended to or its episodes were split"


def _make_cache(
    source: Path, cache_path: Path, on_error: str, frames: str | None, video: bool, follow_links: bool
) -> Dataset:
    if frames is None and cache_path.exists():
        frames = open_dataset(cache_path).provenance["lerobot"]["frames"]  # the option with which the cache was made
    try:
        ingest(
            source,
            cache_path,
            format="lerobot",
            on_error=on_error,
            overwrite=cache_path.exists(),
            index_columns=True,
            video=video,
            frames=frames or "by-time",
            follow_links=follow_links,
        )
    except SourceError as error:
        if on_error == "skip":
            raise
        raise errors.FileError(f"{error}; on_error='skip' leaves out what cannot be read and lists it") from error
    return open_dataset(cache_path)


@contextmanager
def _one_at_a_time(cache_path: Path) -> Iterator[TextIO]:
    """Lets one process at a time run the block; the others wait. Yields the locked file."""
    try:
        cache_path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.fdopen(os.open(_lock_of(cache_path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+")
    except OSError as error:
        raise errors.FileError(f"{cache_path}: {error.strerror}; pass cache= with another path") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(printable(f"robocache: waiting for another process that makes {cache_path}"), file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def episode_numbers(dataset: Dataset) -> np.ndarray:
    """Returns LeRobot's number of each episode of the cache, int64 [episodes]."""
    numbers: np.ndarray = dataset.episodes["source_episode_index"].to_numpy()
    return numbers
