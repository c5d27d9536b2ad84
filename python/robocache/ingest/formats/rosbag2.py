"""Recognises ROS 2 bags."""

from __future__ import annotations

from pathlib import Path

from . import Format, first, has_suffix
from .mcap import MessageOptions, packed


def is_database(file: Path) -> bool:
    """Whether a file is a bag's database by its name, perhaps compressed as a whole."""
    return has_suffix(file, *packed(".db3"))


def is_metadata(file: Path) -> bool:
    """Whether a file is a bag's metadata, by its name and first bytes."""
    if file.name != "metadata.yaml" or not file.is_file():
        return False
    try:
        with file.open("rb") as opened:
            return b"rosbag2_bagfile_information" in opened.read(4096)
    except OSError:
        return False


FORMAT = Format(
    "rosbag2",
    "ROS 2 bags",
    "metadata.yaml, *.db3 or *.db3.zstd",
    first(lambda file: is_database(file) or is_metadata(file)),
    MessageOptions,
    "robocache.ingest.messages.rosbag2",
    "pip install 'robocache[ros]'",
    includes=("mcap",),
)
