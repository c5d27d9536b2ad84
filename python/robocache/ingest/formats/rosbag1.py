"""Recognises ROS 1 bags."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import Format
from .mcap import MessageOptions


def is_bag(file: Path) -> bool:
    """Whether the name of a file is that of a bag that is not hidden."""
    return file.suffix.lower() == ".bag" and not file.name.startswith(".")


def _find_bag(source: Path, files: Sequence[Path]) -> Path | None:
    return next(filter(is_bag, files), None)


FORMAT = Format(
    "rosbag1",
    "ROS 1 bags",
    "*.bag",
    _find_bag,
    MessageOptions,
    "robocache.ingest.messages.rosbag1",
    "pip install 'robocache[ros]'",
)
