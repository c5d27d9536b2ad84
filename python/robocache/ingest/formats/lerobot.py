"""LeRobot datasets v2.0, v2.1 and v3.0: the sign and the options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ..options import option
from . import Format, VideoOptions

# The columns that option index_columns keeps, in the types that LeRobot reads them in.
INDEX_COLUMNS = {"timestamp": "float32", "frame_index": "int64", "index": "int64"}


# The paths of the files that a cache is made of. Images that lie beside the tables are in a folder of this name.
def read_folders(video: bool) -> tuple[str, ...]:
    return ("meta", "data", *(("videos", "video", "images") if video else ()))


@dataclass(frozen=True)
class LeRobotOptions(VideoOptions):
    """A LeRobot dataset says everything itself, but not what its frames, its rows' numbers and stamps are wanted for."""

    title: ClassVar[str] = "LeRobot dataset"

    frames: Literal["by-time", "by-index"] = option(
        "by-time", help="which frame is a row's: the nearest in time (default), or the one of the same number"
    )
    index_columns: bool = option(False, help="keep the columns timestamp, frame_index and index as streams too")


def _find_info(source: Path, files: Sequence[Path]) -> Path | None:
    path = source / "meta" / "info.json"
    return path if os.path.lexists(path) else None


FORMAT = Format(
    "lerobot",
    "LeRobot dataset (v2.0, v2.1, v3.0)",
    "meta/info.json",
    _find_info,
    LeRobotOptions,
    "robocache.ingest.lerobot",
    "pip install pyarrow",
)
