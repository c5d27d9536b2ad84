"""Recognises ROS 1 bags."""

from __future__ import annotations

from pathlib import Path

from . import Format, first, has_suffix
from .mcap import MessageOptions


def is_bag(file: Path) -> bool:
    """Whether a file is named as a bag and is not hidden."""
    return has_suffix(file, ".bag")


FORMAT = Format(
    "rosbag1",
    "ROS 1 bags",
    "*.bag",
    first(is_bag),
    MessageOptions,
    "robocache.ingest.messages.rosbag1",
    "pip install 'robocache[ros]'",
)
