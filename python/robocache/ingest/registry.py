"""The formats there are, and which of them a source is of."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import FileError
from . import options
from .files import list_files
from .formats import (
    Format,
    aloha,
    calvin,
    clouds,
    csv,
    droid,
    euroc,
    lerobot,
    mcap,
    rlds,
    robomimic,
    rosbag1,
    rosbag2,
    ulog,
    zarr,
)

_MODULES = (lerobot, robomimic, aloha, droid, rlds, calvin, zarr, rosbag2, mcap, rosbag1, ulog, euroc, clouds, csv)
FORMATS: dict[str, Format] = {module.FORMAT.name: module.FORMAT for module in _MODULES}


def find_format(source: Path) -> Format:
    """The format whose sign is in `source`.

    Raises:
        FileError: there is none, or several that only the user can choose from.
    """
    files = list_files(source).files
    found = [(entry, sign) for entry in FORMATS.values() if (sign := entry.find_sign(source, files)) is not None]
    included = {name for entry, _ in found for name in entry.includes}
    found = [(entry, sign) for entry, sign in found if entry.name not in included]
    if not found:
        known = " or ".join(f"a {entry.title} with {entry.sign}" for entry in FORMATS.values())
        raise FileError(f"{source}: expected {known}, found none")
    if len(found) > 1:
        claims = " and ".join(f"{entry.name} ({sign.relative_to(source.parent)})" for entry, sign in found)
        raise FileError(f"{source}: looks like {claims}; say which with format")
    return found[0][0]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every format's options to a command line."""
    kinds = [kind for entry in FORMATS.values() for kind in reversed(entry.options.__mro__[:-1])]
    for kind in dict.fromkeys(kinds):  # those that several share once
        options.add_arguments(parser, getattr(kind, "title", kind.__name__), kind)


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that were given on that command line, as :func:`ingest` takes them."""
    return {name: value for name, value in vars(arguments).items() if name in option_names()}


def option_names() -> set[str]:
    """Of all formats."""
    return {name for entry in FORMATS.values() for name in entry.options.__dataclass_fields__}
