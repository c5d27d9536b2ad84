"""Lists and checks the files of a source. Only regular files are opened, and every folder that is skipped is named."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

from .budget import check_size
from .recording import Notes, SourceError, naming

# A file larger than this is not read ahead, so that memory holds only one such file.
_AHEAD_BYTES = 64 << 20

# By files of these names, folders that this package writes are recognised.
_MARKS = {"manifest.json", "writer.lock", "lock", "plan.json"}

_OUTSIDE = "a symlink out of the source (--follow-links)"
# Matches a folder of the Hugging Face Hub's cache: its files are links to the folder blobs/ beside snapshots/.
_SNAPSHOT = re.compile(r"(.*/(?:datasets|models|spaces)--[^/]+)/snapshots/[^/]+(?:/|$)")

_T = TypeVar("_T")

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


POINTER = "a Git LFS pointer, not the data; run `git lfs pull` in its repository first"
_LFS = b"version https://git-lfs"
# The beginning of files ._NAME, in which macOS keeps attributes of the file NAME on disks of other systems.
_APPLE_DOUBLE = b"\0\5\x16\7"
# The beginnings of names of folders with what was deleted or with old copies: .Trash-1000, .ipynb_checkpoints, .snapshot.
_HIDDEN = (".", "$RECYCLE.BIN")


@dataclass(frozen=True)
class _Bounds:
    """The folders that links of a source may lead to.

    source: the source's absolute path.
    folder: the folder of the source, as the user named it.
    resolved: the same folder, with its links resolved.
    blobs: the folder to which the links of a Hugging Face Hub snapshot lead; None for other sources.
    """

    source: str
    folder: str
    resolved: str
    blobs: str | None


_bounds: ContextVar[_Bounds | None] = ContextVar("source_bounds", default=None)


@contextmanager
def bounded(source: Path, follow_links: bool) -> Iterator[None]:
    """Refuses links out of the source within the block, unless `follow_links` is true."""
    bounds = None
    if not follow_links:
        name = str(source.absolute())
        folder = name if os.path.isdir(name) else os.path.dirname(name)
        resolved = os.path.realpath(folder)
        snapshot = _SNAPSHOT.match(resolved)
        bounds = _Bounds(name, folder, resolved, None if snapshot is None else os.path.join(snapshot[1], "blobs"))
    token = _bounds.set(bounds)
    try:
        yield
    finally:
        _bounds.reset(token)


def _leads_out(path: Path | str) -> bool:
    """Whether a path in the source leads out of it by links that must not be followed."""
    bounds = _bounds.get()
    name = os.path.join(os.getcwd(), path) if bounds is not None else ""
    # Allowed are the source itself, since the user chose it, and files outside its folder: an option named them, or they are temporary.
    if bounds is None or name == bounds.source or not _is_below(name, bounds.folder):
        return False
    resolved = os.path.realpath(name)
    return not (_is_below(resolved, bounds.resolved) or (bounds.blobs and _is_below(resolved, bounds.blobs)))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def check_file(path: Path) -> None:
    """Refuses a file that must not or cannot be read. Opening a FIFO, for example, would wait for ever.

    Symlinks are followed within the source, and from a snapshot of the Hugging Face Hub to its blobs; see :func:`bounded`.

    Raises:
        SourceError: the file is not regular, not readable, a symlink out of the source, a Git LFS pointer, or its name is not
            UTF-8.
    """
    with naming(path):
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise SourceError(f"{os.fsencode(path)!r}: expected a name in UTF-8") from None
        try:
            kind = stat.S_IFMT(path.stat().st_mode)
        except FileNotFoundError:
            if path.is_symlink():
                raise SourceError(f"{path}: a symlink to {os.readlink(path)}, which does not exist") from None
            raise
        if kind != stat.S_IFREG:
            raise SourceError(f"{path}: expected a regular file, got {_KINDS.get(kind, 'something else')}")
        if _leads_out(path):
            raise SourceError(f"{path}: {_OUTSIDE}")
        with path.open("rb") as file:
            if file.read(40).startswith(_LFS):
                raise SourceError(f"{path}: {POINTER}")


def read_whole(path: Path) -> bytes:
    """Returns the content of a file that :func:`check_file` and :func:`check_size` accept."""
    check_file(path)
    check_size(path, "the file", path.stat().st_size)
    return path.read_bytes()


def is_pointer(path: Path) -> bool:
    """Whether a file is a Git LFS pointer instead of the data."""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(40).startswith(_LFS)
    return False


def is_readable(path: Path) -> bool:
    """Whether :func:`check_file` accepts the file."""
    try:
        check_file(path)
    except SourceError:
        return False
    return True


@dataclass
class Listing:
    """The content of a folder and its subfolders.

    files: everything that is not a folder, sorted; also dangling symlinks and FIFOs, which :func:`check_file` refuses.
    caches: folders that are caches; their files do not belong to the source. Unfinished caches and shards are left out too, but
        not listed, because they come and go.
    unreadable: folders that cannot be opened, and why.
    repeated: symlinks to folders that are listed by another path: {symlink: other path}.
    outside: symlinks to files and folders outside the source, which are not followed; see :func:`bounded`.
    hidden: hidden folders, whose files are not listed.
    apple: the number of files ._NAME that macOS made beside others. They are not listed.
    """

    files: list[Path] = field(default_factory=list)
    caches: list[Path] = field(default_factory=list)
    unreadable: dict[Path, OSError] = field(default_factory=dict)
    repeated: dict[Path, Path] = field(default_factory=dict)
    outside: list[Path] = field(default_factory=list)
    hidden: list[Path] = field(default_factory=list)
    apple: int = 0

    def note(self, root: Path, notes: Notes) -> None:
        """Reports everything that was listed but is not in `files`."""
        for folder in self.caches:
            notes.leave_out(str(folder.relative_to(root)), "a cache")
        for folder, error in self.unreadable.items():
            with notes.reading(str(folder.relative_to(root)), folder):
                raise error
        for folder in self.hidden:
            notes.leave_out(str(folder.relative_to(root)), "a hidden folder")
        if self.apple:
            notes.leave_out("._*", f"attributes of files, which macOS keeps there: {self.apple}")
        for link, folder in self.repeated.items():
            notes.leave_out(str(link.relative_to(root)), f"the same folder as {folder.relative_to(root)}")
        if not self.files:
            self.refuse_outside(root, notes)
        for link in self.outside:
            notes.leave_out(str(link.relative_to(root)), _OUTSIDE)

    def refuse_outside(self, root: Path, notes: Notes) -> None:
        """Refuses the links in `outside`, or skips and names them, for a source that is incomplete without their files."""
        for link in self.outside:
            with notes.reading(str(link.relative_to(root)), link):
                raise SourceError(f"{link}: {_OUTSIDE}")

    def name_others(self, used: Iterable[Path], why: str, root: Path, notes: Notes) -> None:
        """Names the first files that are not in `used`."""
        used_files = set(used)
        names = [str(file.relative_to(root)) for file in self.files if file not in used_files]
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            notes.leave_out("other files", f"{why}: {', '.join(names[:5])}{more}")

    def leave_out_others(self, used: Iterable[Path], why: str, notes: Notes) -> None:
        """Counts the files that are not in `used`, by suffix."""
        others = Counter(file.suffix or file.name for file in set(self.files) - set(used))
        for suffix, count in sorted(others.items()):
            notes.leave_out(f"*{suffix}", f"{why}: {count} file{'s' * (count > 1)}")


def list_files(source: Path) -> Listing:
    """Lists everything below `source`, each folder once. Follows the symlinks that :func:`bounded` allows. If `source` is a file, lists
    that file."""
    listing = Listing()
    if os.path.isdir(source) and _leads_out(source):
        listing.outside.append(source)
        return listing
    if not os.path.isdir(source):
        listing.files.append(source)
        return listing
    seen: dict[tuple[int, int], Path] = {}
    folders, links = [source], deque[Path]()
    # Links come last, so that a folder in the source is listed by its own path and not by a link's.
    while folders or links:
        folder = folders.pop() if folders else links.popleft()
        try:
            status = folder.stat()
            first_path = seen.setdefault((status.st_dev, status.st_ino), folder)
            if first_path is not folder:
                listing.repeated[folder] = first_path
                continue
            with os.scandir(folder) as scan:
                entries = list(scan)
        except OSError as error:
            listing.unreadable[folder] = error
            continue
        names = _MARKS.intersection(entry.name for entry in entries)
        if folder is not source and "manifest.json" in names and is_cache(folder):
            listing.caches.append(folder)
            continue
        if folder is not source and _is_unfinished(folder, names):
            continue
        for entry in entries:
            if entry.name.startswith(_HIDDEN) and _is_folder(entry):
                listing.hidden.append(folder / entry.name)
            elif entry.is_symlink() and _is_data(entry) and _leads_out(entry.path):
                listing.outside.append(folder / entry.name)
            elif entry.name.startswith("._") and _head_has(folder / entry.name, _APPLE_DOUBLE):
                listing.apple += 1
            elif not _is_folder(entry):
                listing.files.append(folder / entry.name)
            elif entry.is_symlink():
                links.append(folder / entry.name)
            else:
                folders.append(folder / entry.name)
    listing.files.sort()
    listing.caches.sort()
    listing.outside.sort()
    listing.hidden.sort()
    return listing


def is_cache(folder: Path) -> bool:
    """Whether a folder is a cache, by its manifest."""
    return _head_has(folder / "manifest.json", b'"format": "robocache"')


def _is_unfinished(folder: Path, names: set[str]) -> bool:
    """Whether a folder is a cache that is being written, a folder that workers share, or a plan with its shards."""
    if (folder.suffix == ".partial" and "writer.lock" in names) or (folder.suffix == ".shards" and "lock" in names):
        return True
    return "plan.json" in names and _head_has(folder / "plan.json", b'"robocache_plan"')


def _head_has(file: Path, word: bytes) -> bool:
    """Whether a word is in the first 32 bytes of a readable file."""
    if not is_readable(file):
        return False
    with file.open("rb") as opened:
        return word in opened.read(32)


def look_through(source: Path, notes: Notes) -> tuple[Path, Listing]:
    """Returns the folder to which names are relative, and the listing of a source. Reports what the listing leaves out."""
    root = source if source.is_dir() else source.parent
    listing = list_files(source)
    listing.note(root, notes)
    return root, listing


def without_links_to_others(files: Sequence[Path], root: Path, notes: Notes) -> list[Path]:
    """Returns the files except symlinks to others of them, such as latest.bag, so that no recording becomes two episodes."""
    paths = {os.path.realpath(file): file for file in files if not file.is_symlink()}
    kept = []
    for file in files:
        other = paths.get(os.path.realpath(file), file)
        if other is file:
            kept.append(file)
        else:
            notes.leave_out(str(file.relative_to(root)), f"the same file as {other.relative_to(root)}")
    return kept


def natural(name: Path | str) -> list[str | int]:
    """Returns a key that sorts run_2 before run_10."""
    text = name.as_posix() if isinstance(name, Path) else name
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


def fingerprint(source: Path, *folders: str) -> str:
    """Returns a hash of the names, sizes and modification times of all files in these folders of `source`."""
    hashed = hashlib.sha256()
    with bounded(source, follow_links=True):  # the hash must be the same with and without the option follow_links
        files = [file for folder in folders for file in list_files(source / folder).files]
    for file in files:
        try:
            status = file.stat()
            state = f"{status.st_size} {status.st_mtime_ns}"
        except OSError as error:  # for example a dangling symlink, which the reader reports
            state = str(error.errno)
        hashed.update(os.fsencode(file.relative_to(source)) + f"\0{state}\n".encode())
    return hashed.hexdigest()


def name_of(source: Path) -> str:
    """Returns the name by which a cache stores a source, without the parent folders, which are private."""
    return os.path.basename(source.resolve()) or os.sep


def identity_of(source: Path) -> str:
    """Returns a hash of the source's path, which identifies the source without showing the path."""
    return hashlib.sha256(os.fsencode(source.resolve())).hexdigest()[:16]


def is_source(provenance: Mapping[str, Any], source: Path) -> bool:
    """Whether a cache came from this source, by its provenance. The provenance of older caches has the path itself."""
    if "source_id" in provenance:
        return bool(provenance["source_id"] == identity_of(source))
    return provenance.get("source") == str(source.resolve())


def without_folders(text: str, source: Path) -> str:
    """Returns a message with the source's name in place of its path."""
    for path in (source, source.resolve()):
        text = text.replace(f"{path}{os.sep}", f"{name_of(source)}{os.sep}").replace(f"{path}:", f"{name_of(source)}:")
    return text


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a symlink to itself
        return False


def _is_data(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a file or a folder. :func:`check_file` refuses anything else."""
    try:
        return entry.is_dir() or entry.is_file()
    except OSError:  # a symlink to itself
        return False


class Ahead(Generic[_T]):
    """Reads files one after another. While the caller uses a file, a thread reads the next one, unless that is large.

    A context manager, which waits for the thread at its end.
    """

    def __init__(self, read: Callable[[Path], _T], files: Sequence[Path]) -> None:
        self._read = read
        self._next = dict(pairwise(files))
        self._pending: tuple[Path, Future[_T]] | None = None
        self._thread = ThreadPoolExecutor(1, "robocache-read")

    def read(self, file: Path) -> _T:
        """Returns the result of reading this file, or raises its error."""
        pending, self._pending = self._pending, None
        following = self._next.get(file)
        if following is not None and _size(following) <= _AHEAD_BYTES:
            with suppress(RuntimeError):  # the system gives no thread: the file is read later
                self._pending = following, self._thread.submit(copy_context().run, self._read, following)
        return pending[1].result() if pending is not None and pending[0] == file else self._read(file)

    def __enter__(self) -> Ahead[_T]:
        return self

    def __exit__(self, *raised: object) -> None:
        self._thread.shutdown(cancel_futures=True)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # reading the file will raise it
        return 0
