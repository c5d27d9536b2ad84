"""Lists the formats of this package and of other packages, and finds the format of a source.

Another package adds a format by an entry point in the group ``robocache.formats``.
"""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import is_dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, Error, FileError
from . import options
from .files import POINTER, is_cache, is_pointer, list_files
from .formats import Format, calvin, clouds, csv, euroc, hdf5, lerobot, mcap, npz, rlds, rosbag1, rosbag2, ulog, zarr
from .recording import SourceError

GROUP = "robocache.formats"
# How many files are checked for Git LFS pointers if no format fits.
_CHECKED_FOR_POINTERS = 100
_MODULES = (rlds, calvin, zarr, npz, rosbag2, mcap, rosbag1, ulog, euroc, clouds, csv)
FORMATS: dict[str, Format] = {
    entry.name: entry for entry in (lerobot.FORMAT, *hdf5.FORMATS, *(module.FORMAT for module in _MODULES))
}
# Why formats of other packages do not load, by the names of their entry points.
BROKEN: dict[str, str] = {}


@cache
def _load_others() -> None:
    """Adds the formats of other packages. A package that fails does not stop the others."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            entry = point.load()
            if not isinstance(entry, Format) or not is_dataclass(entry.options):
                raise TypeError(f"expected a robocache.ingest.Format whose options are a dataclass, got {entry!r:.80}")
            if entry.name in FORMATS:
                raise ValueError(f"another format has the name {entry.name!r}")
            # The parser raises if another format's option has the same name but another meaning.
            options.add_arguments(_make_parser(), entry.title, entry.options)
        except Exception as error:  # another package may raise anything
            package = "" if point.dist is None else f" of {point.dist.name}"
            why = f"{type(error).__name__}: {error}"
            BROKEN[point.name] = f"its entry point {point.value}{package} does not load: {why}"
        else:
            FORMATS[entry.name] = entry


def _make_parser() -> argparse.ArgumentParser:
    """Returns a parser of the options of all known formats."""
    parser = argparse.ArgumentParser(add_help=False)
    _add_arguments(parser)
    return parser


def format_of(name: Any) -> Format:
    """Returns the format of that name.

    Raises:
        ArgumentError: there is no such format.
        Error: the format is that of another package, and does not load.
    """
    _load_others()
    if isinstance(name, str) and name in FORMATS:
        return FORMATS[name]
    if isinstance(name, str) and name in BROKEN:
        raise Error(f"format {name!r}: {BROKEN[name]}")
    raise ArgumentError(f"format: expected one of {', '.join(FORMATS)} or None, got {name!r}")


def find_format(source: Path) -> Format:
    """Returns the format whose sign is in `source`.

    Raises:
        FileError: the source has the sign of no format, or of several, of which the user must choose one.
    """
    _load_others()
    listing = list_files(source)
    files = listing.files
    broken = dict(BROKEN)
    signs = []
    for entry in FORMATS.values():
        try:
            sign = entry.find_sign(source, files)
        except Exception as error:
            if entry.reader.startswith("robocache."):
                raise
            broken[entry.name] = f"its find_sign: {type(error).__name__}: {error}"
        else:
            signs += [] if sign is None else [(entry, sign)]
    included = {name for entry, _ in signs for name in entry.includes}
    signs = [(entry, sign) for entry, sign in signs if entry.name not in included]
    if not signs:
        hints = "".join(f"; format {name!r}: {why}" for name, why in broken.items())
        if listing.outside:
            hints = f"; {listing.outside[0]}: a symlink out of the source (--follow-links){hints}"
        if not files:
            where = f"beside a cache, {listing.caches[0]}" if listing.caches else "in an empty folder"
            raise FileError(f"{source}: expected recordings of a known format, found none {where}{hints}")
        if is_cache(source):
            raise FileError(
                f"{source}: expected recordings, got a cache; robocache inspect and Loader take it as it is"
            )
        if pointer := next(filter(is_pointer, files[:_CHECKED_FOR_POINTERS]), None):
            raise SourceError(f"{pointer}: {POINTER}")
        names = ", ".join([*(str(file.relative_to(source)) for file in files[:3]), *["..."] * (len(files) > 3)])
        where = f" among {len(files)} file{'s' * (len(files) != 1)} ({names})" if files != [source] else ""
        raise FileError(
            f"{source}: expected recordings of a known format, found none{where}; `robocache ingest --help` shows how each "
            f"looks; if files have other names, name the format with format (--format): {', '.join(FORMATS)}{hints}"
        )
    if len(signs) > 1:
        claims = " and ".join(f"{entry.name} ({sign.relative_to(source.parent)})" for entry, sign in signs)
        raise FileError(f"{source}: looks like {claims}; say which with format (--format)")
    return signs[0][0]


def describe_formats() -> list[str]:
    """Returns each format's name, title and sign, in lines of at most 78 columns."""
    _load_others()
    entries = (f"{entry.name:10s} {entry.title}: {entry.sign}" for entry in FORMATS.values())
    return [line for entry in entries for line in textwrap.wrap(entry, 78, subsequent_indent=" " * 11)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every format's options to a command line."""
    _load_others()
    _add_arguments(parser)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = [kind for entry in FORMATS.values() for kind in reversed(entry.options.__mro__[:-1])]
    for kind in dict.fromkeys(kinds):  # a class of options that several formats have is added once
        options.add_arguments(parser, getattr(kind, "title", kind.__name__), kind)


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the options that a command line gave, as :func:`ingest` takes them."""
    return {name: value for name, value in vars(arguments).items() if name in option_names()}


def option_names() -> set[str]:
    """Returns the names of all formats' options."""
    return {name for entry in FORMATS.values() for name in entry.options.__dataclass_fields__}
