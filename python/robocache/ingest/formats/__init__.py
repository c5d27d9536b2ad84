"""Has the entries of the formats, one module for each. Importing an entry does not import the format's reader and its libraries.

Each module defines `FORMAT`, the format's dataclass of options, and the function that recognises its files; ``hdf5`` does so for
several formats. ``registry`` lists the entries.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, cast

from ...errors import ArgumentError, Error
from ..options import option
from ..recording import Notes, Recording


class Reader(Protocol):
    """A module that reads one format."""

    def read(self, source: Path, options: Any, notes: Notes, /) -> Generator[Recording, None, None]:
        """Yields the recordings in `source`, in order; `options` is the format's dataclass."""


@dataclass(frozen=True)
class Format:
    """A format's entry.

    title: the format's name in help and messages.
    sign: describes in words how the format's files are recognised.
    find_sign: takes the source and all files in it (:func:`robocache.ingest.files.list_files`); returns a file that proves the
        format, or None. It reads only names and the first bytes of files.
    options: a dataclass; see the module `options`.
    reader: the name of the reader's module, which :meth:`load` imports.
    install: the command that installs the libraries which the module imports.
    includes: formats whose files this format contains. If both are recognised, the source has this format.
    """

    name: str
    title: str
    sign: str
    find_sign: Callable[[Path, Sequence[Path]], Path | None]
    options: type[Any]
    reader: str
    install: str
    includes: tuple[str, ...] = ()

    def load(self) -> Reader:
        """Imports the reader.

        Raises:
            Error: a package that the reader needs is missing or broken; the other formats still work.
        """
        try:
            return cast(Reader, importlib.import_module(self.reader))
        except ImportError as error:
            if f"{error.name}.".startswith("robocache."):  # the fault is ours, not a missing package
                raise
            raise Error(f"format {self.name!r}: {error}; {self.install}") from error
        except Exception as error:
            if self.reader.startswith("robocache."):
                raise
            raise Error(f"format {self.name!r}: {self.reader}: {type(error).__name__}: {error}") from error


def has_suffix(file: Path, *suffixes: str) -> bool:
    """Whether a file's name has one of these endings, in letters of any case, and is not hidden."""
    return file.name.lower().endswith(suffixes) and not file.name.startswith(".")


def proved_by_first_file(is_sign: Callable[[Path], bool]) -> Callable[[Path, Sequence[Path]], Path | None]:
    """Returns the `find_sign` of a format that is proved by the first file for which `is_sign` is true."""
    return lambda source, files: next(filter(is_sign, files), None)


# ---- options of several formats ----


@dataclass(frozen=True)
class CameraOptions:
    """The options that every format with cameras has, for storing frames."""

    title: ClassVar[str] = "cameras"

    image_size: str = option("keep", help="resize frames to WIDTHxHEIGHT, such as 224x224, or keep (default)")
    image_fit: Literal["stretch", "pad", "crop"] = option(
        "stretch", help="how: the whole frame stretched or padded with black, or its middle cropped (default stretch)"
    )
    image_codec: str | None = option(
        None, help="raw, png, jpeg or jpeg:QUALITY (default jpeg:95; images that are JPEG or PNG stay as they are)"
    )

    def __post_init__(self) -> None:
        if self.image_size != "keep" and not re.fullmatch(r"[1-9]\d{0,4}x[1-9]\d{0,4}", self.image_size):
            raise ArgumentError(f"image_size: expected WIDTHxHEIGHT, as 224x224, or 'keep', got {self.image_size!r}")
        if self.image_size != "keep" and max(map(int, self.image_size.split("x"))) > 16384:
            raise ArgumentError(f"image_size: expected at most 16384 pixels a side, got {self.image_size!r}")
        if not re.fullmatch(r"raw|png|jpeg(:([1-9]\d?|100))?", self.image_codec or "jpeg"):
            raise ArgumentError(f"image_codec: expected raw, png, jpeg or jpeg:1 to jpeg:100, got {self.image_codec!r}")


@dataclass(frozen=True)
class VideoOptions(CameraOptions):
    """The options of formats whose cameras are video files."""

    title: ClassVar[str] = "video"

    video: bool = option(True, help="leave cameras out")  # the help of --no-video
    jobs: int | None = option(None, help="processes that decode video (default: one a core)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jobs is not None and self.jobs < 1:
            raise ArgumentError(f"jobs: expected at least 1, got {self.jobs}")


CAMERA_OPTIONS = tuple(field.name for field in fields(CameraOptions))


@dataclass(frozen=True)
class RateOptions(CameraOptions):
    """The options of formats whose files have no clock."""

    title: ClassVar[str] = "formats without a clock"

    rate_hz: float | None = option(None, help="rows a second, if the files do not declare it; never guessed")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate_hz is not None and not 1e-3 <= self.rate_hz <= 1e6:
            raise ArgumentError(f"rate_hz: expected 0.001 to 1e6, got {self.rate_hz}")
