"""Files of a bag that were compressed as a whole: unpacked to a temporary folder while the bag is read, and named by their own names."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zstandard

from ...errors import FileError
from ..recording import SourceError, naming

SUFFIX = ".zstd"
_AT_ONCE = 4 << 20
# Recorded messages do not shrink to less than this part: what does is taken for damage before it fills the disk.
_LARGEST_RATIO, _ANYWAY = 1000, 64 << 20
_WINDOW = 1 << 27


class Unpacked:
    """The unpacked files, until :meth:`close`; their folder is where TMPDIR says."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._packed: dict[str, str] = {}

    def add(self, packed: Path) -> Path:
        """Unpacks a file.

        Raises:
            SourceError: it is damaged.
            FileError: the folder has no room for it.
        """
        try:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="robocache-bag-")
            file = Path(self._folder.name, f"{len(self._packed)}", packed.name.removesuffix(SUFFIX))
            file.parent.mkdir()
            with file.open("wb") as opened:
                for content in _unpack(packed):
                    opened.write(content)
        except OSError as error:
            if isinstance(error, FileError):
                raise
            folder = tempfile.gettempdir() if self._folder is None else self._folder.name
            raise FileError(
                f"{folder}: {error.strerror or error}, as {packed} was unpacked to it; TMPDIR names another folder"
            ) from error
        self._packed[str(file)] = str(packed)
        return file

    def close(self) -> None:
        """Removes them."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Errors name the files that the user has."""
        try:
            yield
        except SourceError as error:
            renamed = self.rename(error)
            if renamed is error:
                raise
            raise renamed from error

    def rename(self, error: SourceError) -> SourceError:
        """The same of one."""
        text = str(error)
        for unpacked, packed in self._packed.items():
            text = text.replace(unpacked, packed)
        return SourceError(text) if text != str(error) else error


def _unpack(packed: Path) -> Iterator[bytes]:
    with naming(packed), packed.open("rb") as file:
        declared = zstandard.frame_content_size(file.read(18))
        file.seek(0)
        most = packed.stat().st_size * _LARGEST_RATIO + _ANYWAY
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        size = 0
        with decompressor.stream_reader(file, read_across_frames=True) as reader:
            while content := reader.read(_AT_ONCE):
                size += len(content)
                if max(size, declared) > most:
                    raise SourceError(
                        f"{packed}: {packed.stat().st_size} bytes that claim to be more than {most}: taken for damage"
                    )
                yield content
        if size < declared:
            raise SourceError(f"{packed}: cut off: {size} of {declared} bytes are in it")
