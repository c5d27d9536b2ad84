"""What is known of each format before its reader, and the library that the reader needs, is imported: a module a format.

Each has a `FORMAT`, whose options dataclass and whose sign stand beside it; ``registry`` has the list of them.
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
        """The recordings in `source`, in order; `options` is the format's dataclass."""


@dataclass(frozen=True)
class Format:
    """A format's entry.

    title: what help and messages call it.
    sign: how its files are known, in words.
    find_sign: given the source and all files in it (:func:`robocache.ingest.files.list_files`), the one that shows it to be
        of this format, or None; by names alone, or a file's first bytes.
    options: a dataclass, see `options`.
    reader: the module, imported when it is needed.
    install: the command that brings the libraries which that module imports.
    includes: formats whose files this one is made of: where both find their sign, the source is of this one.
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
        """The reader.

        Raises:
            Error: a package that it needs is missing or broken; the other formats work without.
        """
        try:
            return cast(Reader, importlib.import_module(self.reader))
        except ImportError as error:
            if f"{error.name}.".startswith("robocache."):  # no package of others is to blame
                raise
            raise Error(f"format {self.name!r}: {error}; {self.install}") from error
        except Exception as error:
            if self.reader.startswith("robocache."):
                raise
            raise Error(f"format {self.name!r}: {self.reader}: {type(error).__name__}: {error}") from error


# ---- options that several formats share ----


@dataclass(frozen=True)
class CameraOptions:
    """How frames are stored; of every format that has cameras."""

    title: ClassVar[str] = "cameras"

    image_size: str = option("keep", help="WIDTHxHEIGHT to which frames are brought, as 224x224, or keep (default)")
    image_fit: Literal["stretch", "pad", "crop"] = option(
        "stretch", help="how: all of it, black beside it, or cut from its middle (default stretch)"
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
    """Of formats whose cameras are video files."""

    title: ClassVar[str] = "video"

    video: bool = option(True, help="leave cameras out")
    jobs: int | None = option(None, help="processes that decode video (default: one a core)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jobs is not None and self.jobs < 1:
            raise ArgumentError(f"jobs: expected at least 1, got {self.jobs}")


CAMERA_OPTIONS = tuple(field.name for field in fields(CameraOptions))


@dataclass(frozen=True)
class RateOptions(CameraOptions):
    """Of formats whose files have no clock."""

    title: ClassVar[str] = "formats without a clock"

    rate_hz: float | None = option(None, help="rows a second, where the files do not say it; never guessed")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate_hz is not None and not 1e-3 <= self.rate_hz <= 1e6:
            raise ArgumentError(f"rate_hz: expected 0.001 to 1e6, got {self.rate_hz}")
