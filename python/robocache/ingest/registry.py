"""What is known of each format before its reader, and the library that the reader needs, is imported."""

from __future__ import annotations

import argparse
import importlib
import os
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from ..errors import ArgumentError, Error, FileError
from . import options
from .files import list_files
from .options import option
from .recording import Notes, Recording


class Reader(Protocol):
    """A module that reads one format."""

    def read(self, source: Path, options: Any, notes: Notes, /) -> Generator[Recording, None, None]:
        """The recordings in `source`, in order; `options` is the format's dataclass."""


@dataclass(frozen=True)
class Format:
    """A format's entry.

    title: what help and messages call it.
    sign: how its files are known, in words.
    find_sign: the file that shows a source to be of this format, or None; by names alone, or a file's first bytes.
    options: a dataclass, see `options`.
    reader: the module, imported when it is needed.
    install: the command that brings the libraries which that module imports.
    """

    name: str
    title: str
    sign: str
    find_sign: Callable[[Path], Path | None]
    options: type[Any]
    reader: str
    install: str

    def load(self) -> Reader:
        """The reader.

        Raises:
            Error: a package that it needs is missing or broken; the other formats work without.
        """
        try:
            return cast(Reader, importlib.import_module(self.reader))
        except ImportError as error:
            if (error.name or "").startswith("robocache"):  # no package of others is to blame
                raise
            raise Error(f"format {self.name!r}: {error}; {self.install}") from error


# ---- cameras ----


@dataclass(frozen=True)
class CameraOptions:
    """How frames are stored; of every format that has cameras."""

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


CAMERA_OPTIONS = tuple(field.name for field in fields(CameraOptions))

# ---- LeRobot ----

# The columns that option index_columns keeps, in the types that LeRobot reads them in.
INDEX_COLUMNS = {"timestamp": "float32", "frame_index": "int64", "index": "int64"}


# Where the files lie of which a cache is made.
def read_folders(video: bool) -> tuple[str, ...]:
    return ("meta", "data", *(("videos", "video") if video else ()))


@dataclass(frozen=True)
class LeRobotOptions(CameraOptions):
    """A LeRobot dataset says everything itself, but not what its frames, its rows' numbers and stamps are wanted for."""

    video: bool = option(True, help="leave cameras out")
    frames: Literal["by-time", "by-index"] = option(
        "by-time", help="which frame is a row's: the nearest in time (default), or the one of the same number"
    )
    jobs: int | None = option(None, help="processes that decode video (default: one a core)")
    index_columns: bool = option(False, help="keep the columns timestamp, frame_index and index as streams too")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jobs is not None and self.jobs < 1:
            raise ArgumentError(f"jobs: expected at least 1, got {self.jobs}")


def _find_info(source: Path) -> Path | None:
    path = source / "meta" / "info.json"
    return path if os.path.lexists(path) else None


# ---- CSV ----


@dataclass(frozen=True)
class CsvOptions(CameraOptions):
    """What a CSV file may not say of itself."""

    time_column: str | int = option(0, help="the clock's column, by name or number from 0 (default 0)")
    time_unit: Literal["s", "ms", "us", "ns"] | None = option(None, help="default: found from header and values")
    sort_times: bool = option(False, help="sort rows that are out of time order")


def is_csv(file: Path) -> bool:
    """Whether a file in a folder is taken for a log, by its name."""
    return file.suffix.lower() == ".csv" and not file.name.startswith(".")


def _find_csv(source: Path) -> Path | None:
    return next(filter(is_csv, list_files(source).files), None)


# ---- all of them ----

FORMATS = {
    entry.name: entry
    for entry in (
        Format(
            "lerobot",
            "LeRobot dataset (v2.0, v2.1, v3.0)",
            "meta/info.json",
            _find_info,
            LeRobotOptions,
            f"{__package__}.lerobot",
            "pip install pyarrow",
        ),
        Format(
            "csv",
            "folder of CSV logs",
            "*.csv",
            _find_csv,
            CsvOptions,
            f"{__package__}.csv",
            "pip install pyarrow",
        ),
    )
}


def find_format(source: Path) -> Format:
    """The format whose sign is in `source`.

    Raises:
        FileError: there is none, or several that only the user can choose from.
    """
    found = [(entry, sign) for entry in FORMATS.values() if (sign := entry.find_sign(source)) is not None]
    if not found:
        known = " or ".join(f"a {entry.title} with {entry.sign}" for entry in FORMATS.values())
        raise FileError(f"{source}: expected {known}, found none")
    if len(found) > 1:
        claims = " and ".join(f"{entry.name} ({sign.relative_to(source.parent)})" for entry, sign in found)
        raise FileError(f"{source}: looks like {claims}; say which with format")
    return found[0][0]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every format's options to a command line."""
    options.add_arguments(parser, "cameras", CameraOptions)
    for entry in FORMATS.values():
        options.add_arguments(parser, entry.title, entry.options)


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that were given on that command line, as :func:`ingest` takes them."""
    return {name: value for name, value in vars(arguments).items() if name in option_names()}


def option_names() -> set[str]:
    """Of all formats."""
    return {name for entry in FORMATS.values() for name in entry.options.__dataclass_fields__}
