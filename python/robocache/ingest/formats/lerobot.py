"""Recognises LeRobot datasets v2.0, v2.1 and v3.0."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ..options import option
from . import Format, VideoOptions

# The columns that the option index_columns keeps, and the types in which LeRobot reads them.
INDEX_COLUMNS = {"timestamp": "float32", "frame_index": "int64", "index": "int64"}


def folder_names(video: bool) -> tuple[str, ...]:
    """Returns the names of the folders whose files a cache is made of, with `video` also those of cameras' files."""
    return ("meta", "data", *(("videos", "video", "images") if video else ()))


@dataclass(frozen=True)
class LeRobotOptions(VideoOptions):
    """How the frame of a row is chosen, and which columns are kept."""

    title: ClassVar[str] = "LeRobot dataset"

    frames: Literal["by-time", "by-index"] = option(
        "by-time", help="the frame of a row: the nearest in time (default), or the one with the row's number"
    )
    index_columns: bool = option(False, help="keep the columns timestamp, frame_index and index as streams too")


def _find_info(source: Path, files: Sequence[Path]) -> Path | None:
    path = source / "meta" / "info.json"
    return path if os.path.lexists(path) else None


FORMAT = Format(
    name="lerobot",
    title="LeRobot dataset (v2.0, v2.1, v3.0)",
    sign="meta/info.json",
    find_sign=_find_info,
    options=LeRobotOptions,
    reader="robocache.ingest.lerobot",
    install="pip install pyarrow",
)
