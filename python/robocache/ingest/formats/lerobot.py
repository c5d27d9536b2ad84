"""LeRobot datasets v2.0, v2.1 and v3.0: the sign and the options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ...errors import ArgumentError
from ..options import option
from . import CameraOptions, Format

# The columns that option index_columns keeps, in the types that LeRobot reads them in.
INDEX_COLUMNS = {"timestamp": "float32", "frame_index": "int64", "index": "int64"}


# Where the files lie of which a cache is made.
def read_folders(video: bool) -> tuple[str, ...]:
    return ("meta", "data", *(("videos", "video") if video else ()))


@dataclass(frozen=True)
class LeRobotOptions(CameraOptions):
    """A LeRobot dataset says everything itself, but not what its frames, its rows' numbers and stamps are wanted for."""

    title: ClassVar = "LeRobot dataset"

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
