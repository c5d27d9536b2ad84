"""Unpacks what rosbag2 compressed: whole files, into a temporary folder while the bag is read, or single messages."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import zstandard

from ..._printable import ranges
from ..._temporary import temporary_folder
from ...errors import FileError
from ..budget import Budget, at_once
from ..files import check_file, without_links_to_others
from ..formats.mcap import PACKED, unpacked_name
from ..recording import Notes, SourceError, naming
from .bags import Bag, Faults, Part, Payload

# The first bytes of zstd.
_MAGIC = b"\x28\xb5\x2f\xfd"
# The bytes that are unpacked at once.
_AT_ONCE = 4 << 20
# A file is taken as damaged if it would become more than _ALWAYS bytes plus _LARGEST_RATIO times its size.
_LARGEST_RATIO, _ALWAYS = 1000, 64 << 20
# The most bytes of zstd's window, which is memory that decompression needs.
_MOST_WINDOW = 1 << 27


class Unpacked:
    """Keeps unpacked files in a temporary folder (TMPDIR) until :meth:`close`."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._folder: Path | None = None
        self._packed: dict[str, str] = {}  # the compressed file, by the unpacked one

    def add(self, packed: Path) -> Path:
        """Unpacks a file; returns the unpacked one.

        Raises:
            SourceError: the file is damaged.
            FileError: the folder has no room for the unpacked file.
        """
        check_file(packed)
        try:
            if self._folder is None:
                self._folder = self._open.enter_context(temporary_folder("robocache-bag-", Path(tempfile.gettempdir())))
            file = self._folder / f"{len(self._packed)}" / unpacked_name(packed)
            file.parent.mkdir()
            with file.open("wb") as opened:
                for content in _unpack_file(packed):
                    opened.write(content)
        except OSError as error:
            if isinstance(error, FileError):
                raise
            folder = tempfile.gettempdir() if self._folder is None else self._folder
            raise FileError(
                f"{folder}: {error.strerror or error}, while {packed} was unpacked to it; TMPDIR selects another folder"
            ) from error
        self._packed[str(file)] = str(packed)
        return file

    def close(self) -> None:
        """Removes the unpacked files."""
        self._open.close()
        self._folder = None

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Makes errors within the block name the user's compressed files instead of the unpacked ones."""
        try:
            yield
        except SourceError as error:
            renamed = self.rename(error)
            if renamed is error:
                raise
            raise renamed from error

    def rename(self, error: SourceError) -> SourceError:
        """Returns the error with the names of the compressed files in place of the unpacked ones."""
        text = str(error)
        for unpacked, packed in self._packed.items():
            text = text.replace(unpacked, packed)
        return SourceError(text) if text != str(error) else error


class UnpackedBag(Bag):
    """A bag whose files may be compressed as a whole.

    make: takes the unpacked files; returns the bag that reads them.
    """

    def __init__(self, path: Path, make: Callable[[list[Path]], Bag]) -> None:
        super().__init__(path)
        self._make = make
        self._inner: Bag | None = None
        self._unpacked = Unpacked()

    def open(self, faults: Faults) -> None:
        self._open([self.path], faults)

    def _open(self, files: list[Path], faults: Faults) -> None:
        unpacked: list[Path] = []
        for file in files:
            with faults.reading(file.name, file) if len(files) > 1 else naming(file):
                unpacked.append(self._unpacked.add(file) if file.suffix.lower() in PACKED else file)
        if not unpacked:
            raise SourceError(f"{self.path}: none of its files can be unpacked")
        inner = self._make(unpacked)
        with self._unpacked.naming():
            inner.open(faults.through(self._unpacked.rename))
        self._inner, self.channels, self.numbers = inner, inner.channels, inner.numbers
        self.spans = inner.spans
        self.out_of_order = inner.out_of_order
        self.columns, self.texts = inner.columns, inner.texts
        self.metadata = self.metadata.or_else(inner.metadata)
        inner.left_out.update(self.left_out)
        self.left_out = inner.left_out

    def parts(self, faults: Faults) -> Iterator[Part]:
        assert self._inner is not None
        with self._unpacked.naming():
            yield from self._inner.parts(faults.through(self._unpacked.rename))

    def close(self) -> None:
        self._unpacked.close()


def without_packed_copies(files: list[Path], root: Path, notes: Notes) -> list[Path]:
    """Returns the files except symlinks to others of them, and compressed ones that are there uncompressed too, so that no recording
    becomes two episodes."""
    files = without_links_to_others(files, root, notes)
    paths = set(files)
    kept = []
    for file in files:
        unpacked = file.with_name(unpacked_name(file))
        if unpacked != file and unpacked in paths:
            notes.leave_out(str(file.relative_to(root)), f"{unpacked.name} beside it is the same file, not compressed")
        else:
            kept.append(file)
    return kept


def messages_of(bag: Bag, faults: Faults) -> Iterator[Part]:
    """Yields the messages of a bag in order. Unpacks messages that were compressed one by one.

    A message in CDR begins with 00. So a message in zstd is recognised even in a single .db3, which does not declare the compression.
    """
    if bag.metadata.compression not in ("", "zstd"):
        raise SourceError(
            f"{bag.path}: its messages are compressed one by one as {bag.metadata.compression!r}, expected 'zstd'; "
            "convert it by `ros2 bag convert`, where that plugin is installed"
        )
    counts: dict[int, int] = {}  # how many messages of each channel came so far
    budget = Budget(bag.path)
    for part in bag.parts(faults):
        packed = {number for number, messages in part.messages.items() if _is_packed(bag, number, messages.payloads[0])}
        if not packed:
            for number, messages in part.messages.items():
                counts[number] = counts.get(number, 0) + len(messages.payloads)
            yield part
            continue
        unpacked = Part(part.run)
        for number, messages in part.messages.items():
            first = counts.get(number, 0)
            counts[number] = first + len(messages.payloads)
            lost: dict[int, str] = {}
            rows = zip(messages.log_ns, messages.publish_ns, messages.payloads, strict=True)
            for row, (log_ns, publish_ns, payload) in enumerate(rows, first):
                if number in packed and payload[:4] == _MAGIC:
                    try:
                        payload = _unpack_message(payload)
                        budget.take("messages", len(payload))
                    except (zstandard.ZstdError, ValueError) as error:
                        lost[row] = str(error)
                        continue
                unpacked.add(number, log_ns, publish_ns, payload)
                if unpacked.size > _AT_ONCE:
                    yield unpacked
                    unpacked = Part(part.run)
            if lost:
                topic = bag.channels[number].topic
                first_error = SourceError(f"{bag.path}: {topic}: message {min(lost)}: {lost[min(lost)]}")
                faults.add(f"{topic}: messages {ranges(sorted(lost))}", first_error)
        if unpacked.messages:
            yield unpacked


def _is_packed(bag: Bag, number: int, first: Payload) -> bool:
    if bag.metadata.compression:
        return True
    return bag.channels[number].encoding == "cdr" and first[:4] == _MAGIC


def _unpack_message(packed: Payload) -> bytes:
    size = zstandard.frame_content_size(packed)
    if not 0 <= size <= at_once():
        raise ValueError("expected zstd that declares its size" if size < 0 else f"zstd that claims to be {size} bytes")
    return zstandard.ZstdDecompressor().decompress(packed)


def _unpack_file(packed: Path) -> Iterator[bytes]:
    with naming(packed), packed.open("rb") as file:
        declared = zstandard.frame_content_size(file.read(18))
        file.seek(0)
        most = packed.stat().st_size * _LARGEST_RATIO + _ALWAYS
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
        size = 0
        with decompressor.stream_reader(file, read_across_frames=True) as reader:
            while content := reader.read(_AT_ONCE):
                size += len(content)
                if max(size, declared) > most:
                    raise SourceError(
                        f"{packed}: {packed.stat().st_size} bytes that claim to unpack to more than {most}: damaged"
                    )
                yield content
        if size < declared:
            raise SourceError(f"{packed}: cut off: got {size} of {declared} bytes")
