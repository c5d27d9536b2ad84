"""Recognises ROS 2 bags."""

from __future__ import annotations

from pathlib import Path

from . import Format, has_suffix, proved_by_first_file
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
    name="rosbag2",
    title="ROS 2 bags",
    sign="metadata.yaml, *.db3 or *.db3.zstd",
    find_sign=proved_by_first_file(lambda file: is_database(file) or is_metadata(file)),
    options=MessageOptions,
    reader="robocache.ingest.messages.rosbag2",
    install="pip install 'robocache[ros]'",
    includes=("mcap",),
)
