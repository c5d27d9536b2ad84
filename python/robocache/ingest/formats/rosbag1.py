"""Recognises ROS 1 bags."""

from __future__ import annotations

from pathlib import Path

from . import Format, has_suffix, proved_by_first_file
from .mcap import MessageOptions


def is_bag(file: Path) -> bool:
    """Whether a file is named as a bag and is not hidden."""
    return has_suffix(file, ".bag")


FORMAT = Format(
    name="rosbag1",
    title="ROS 1 bags",
    sign="*.bag",
    find_sign=proved_by_first_file(is_bag),
    options=MessageOptions,
    reader="robocache.ingest.messages.rosbag1",
    install="pip install 'robocache[ros]'",
)
