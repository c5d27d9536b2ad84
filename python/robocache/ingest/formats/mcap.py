"""Recognises MCAP files, and has the options of all formats of recorded messages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ...errors import ArgumentError
from ..options import option
from . import CameraOptions, Format, has_suffix, proved_by_first_file


@dataclass(frozen=True)
class MessageOptions(CameraOptions):
    """Options of recorded messages."""

    title: ClassVar[str] = "recorded messages (MCAP, rosbag2, rosbag1)"

    stamp: Literal["auto", "header", "log", "publish"] = option(
        "auto",
        help="a message's time: its header's if all of the topic are plausible, else its log time (default auto)",
    )
    definitions: str | None = option(None, help="a folder of .msg and .idl files, for bags without their definitions")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.definitions is not None and not Path(self.definitions).is_dir():
            raise ArgumentError(f"definitions: expected a folder of .msg and .idl files, got {self.definitions!r}")


# Suffixes of files that are compressed as a whole: rosbag2's suffix, and that of the command zstd.
PACKED = (".zstd", ".zst")


def packed(suffix: str) -> list[str]:
    """Returns a suffix, and the suffixes of such files that are compressed as a whole."""
    return [suffix, *(suffix + ending for ending in PACKED)]


def unpacked_name(file: Path) -> str:
    """Returns the name that a file has when it is not compressed as a whole."""
    return file.stem if file.suffix.lower() in PACKED else file.name


def is_mcap(file: Path) -> bool:
    """Whether a file is MCAP by its name, perhaps compressed as a whole."""
    return has_suffix(file, *packed(".mcap"))


FORMAT = Format(
    name="mcap",
    title="MCAP files",
    sign="*.mcap, *.mcap.zstd",
    find_sign=proved_by_first_file(is_mcap),
    options=MessageOptions,
    reader="robocache.ingest.messages.mcap",
    install="pip install 'robocache[ros]'",
)
