"""Folders of CSV logs: the sign and the options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ..options import option
from . import CameraOptions, Format


@dataclass(frozen=True)
class CsvOptions(CameraOptions):
    """What a CSV file may not say of itself."""

    title: ClassVar[str] = "folder of CSV logs"

    time_column: str | int = option(0, help="the clock's column, by name or number from 0 (default 0)")
    time_unit: Literal["s", "ms", "us", "ns"] | None = option(None, help="default: found from header and values")


SUFFIXES = (".csv", ".tsv")


def is_csv(file: Path) -> bool:
    """Whether a file in a folder is taken for a log, by its name."""
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".")


def _find_csv(source: Path, files: Sequence[Path]) -> Path | None:
    return next(filter(is_csv, files), None)


FORMAT = Format(
    "csv",
    "folder of CSV logs",
    "*.csv, *.tsv",
    _find_csv,
    CsvOptions,
    "robocache.ingest.csv",
    "pip install pyarrow",
)
