"""What is known of each format before its reader, and the library that the reader needs, is imported."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from ..errors import Error, FileError
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


# ---- LeRobot ----

# The columns that option index_columns keeps, in the types that LeRobot reads them in.
INDEX_COLUMNS = {"timestamp": "float32", "frame_index": "int64", "index": "int64"}
# Where the files lie of which a cache is made.
READ_FOLDERS = ("meta", "data")


@dataclass(frozen=True)
class LeRobotOptions:
    """A LeRobot dataset says everything itself, but not what its rows' numbers and stamps are wanted for."""

    index_columns: bool = option(False, help="keep the columns timestamp, frame_index and index as streams too")


def _find_info(source: Path) -> Path | None:
    path = source / "meta" / "info.json"
    return path if os.path.lexists(path) else None


# ---- CSV ----


@dataclass(frozen=True)
class CsvOptions:
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
    for entry in FORMATS.values():
        options.add_arguments(parser, entry.title, entry.options)


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that were given on that command line, as :func:`ingest` takes them."""
    names = {name for entry in FORMATS.values() for name in entry.options.__dataclass_fields__}
    return {name: value for name, value in vars(arguments).items() if name in names}
