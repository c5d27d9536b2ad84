"""Recognises folders of CSV logs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ..options import option
from . import CameraOptions, Format, has_suffix, proved_by_first_file


@dataclass(frozen=True)
class CsvOptions(CameraOptions):
    """Facts that a CSV file may lack."""

    title: ClassVar[str] = "folder of CSV logs"

    time_column: str | int | None = option(
        None, help="the clock's column, by name or number from 0 (default: the first, or the one that is named a time)"
    )
    time_unit: Literal["s", "ms", "us", "ns"] | None = option(None, help="default: found from header and values")


SUFFIXES = (".csv", ".tsv")


def is_csv(file: Path) -> bool:
    """Whether a file is named as a log and is not hidden."""
    return has_suffix(file, *SUFFIXES)


FORMAT = Format(
    name="csv",
    title="folder of CSV logs",
    sign="*.csv, *.tsv",
    find_sign=proved_by_first_file(is_csv),
    options=CsvOptions,
    reader="robocache.ingest.csv",
    install="pip install pyarrow",
)
