"""Recognises folders of point clouds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ...errors import ArgumentError
from ..options import option
from . import Format, RateOptions, proved_by_first_file

# Suffixes of files that can only be clouds, and of files that are clouds if the user names the format.
_CLOUDS = (".ply", ".pcd", ".las", ".laz", ".pcd.bin")
_ARRAYS = (".bin", ".npy", ".npz")


@dataclass(frozen=True)
class CloudOptions(RateOptions):
    """Options for facts that clouds do not declare."""

    title: ClassVar[str] = "point clouds"

    bin_columns: int | None = option(
        None,
        help="numbers a point of .bin files: 3 (x y z), 4 (and intensity) or 5 (and ring); default: 4 or 5, if the sizes "
        "and numbers of the files leave only one of them",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bin_columns not in (None, 3, 4, 5):
            raise ArgumentError(f"bin_columns: expected 3, 4 or 5, got {self.bin_columns}")


def is_cloud(file: Path, arrays: bool = True) -> bool:
    """Whether a file is a cloud by its name; with `arrays` also files that might hold something else."""
    suffixes = _CLOUDS + _ARRAYS if arrays else _CLOUDS
    name = file.name.lower()
    in_kitti = name.endswith(".bin") and any(parent.startswith("velodyne") for parent in file.parent.parts[-2:])
    return (in_kitti or name.endswith(suffixes)) and not name.startswith(".")


FORMAT = Format(
    name="clouds",
    title="folder of point clouds",
    sign="*.ply, *.pcd, *.las, *.laz, *.pcd.bin, velodyne*/*.bin",
    find_sign=proved_by_first_file(lambda file: is_cloud(file, arrays=False)),
    options=CloudOptions,
    reader="robocache.ingest.clouds",
    install="pip install 'robocache[lidar]'",
)
