"""Recognises PX4's ULog files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..files import is_readable
from . import Format, has_suffix

MAGIC = b"ULog\x01\x12\x35"


@dataclass(frozen=True)
class UlogOptions:
    """There are no options: a ULog describes itself."""

    title: ClassVar[str] = "PX4 ULog"


def is_ulog(file: Path) -> bool:
    """Whether a file is named as a log and is not hidden."""
    return has_suffix(file, ".ulg", ".ulog")


def _find_ulog(source: Path, files: Sequence[Path]) -> Path | None:
    if files == [source] and is_readable(source):
        with source.open("rb") as opened:
            if opened.read(len(MAGIC)) == MAGIC:
                return source
    return next(filter(is_ulog, files), None)


FORMAT = Format(
    name="ulog",
    title="PX4 log",
    sign="*.ulg",
    find_sign=_find_ulog,
    options=UlogOptions,
    reader="robocache.ingest.ulog",
    install="pip install robocache",
)
