"""What a cache tells of sources that were appended to it, and when one does not go behind what is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..dataset import Dataset
from ..errors import ArgumentError, FileError


def check_appendable(cache: Dataset, settings: Any) -> None:
    """Refuses LeRobot's index columns, which number frames and episodes within one dataset.

    Args:
        settings: the format's options for the source.

    Raises:
        ArgumentError: in the cache, or asked for.
    """
    if cache.provenance.get("lerobot", {}).get("index_columns"):
        raise ArgumentError(f"append: {cache.path} has the index columns of one LeRobot dataset, expected none")
    if getattr(settings, "index_columns", False):
        raise ArgumentError("append: goes without index_columns=True, which count within one dataset")


def joined_provenance(source: Path, provenance: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """The cache's, with what was told of a source at the end of its list ``appended``. Tasks of LeRobot, which rows name by
    their number, become one table with the cache's.

    Raises:
        FileError: a task's number means another one in the cache.
    """
    appended = provenance.get("appended", [])
    known: dict[str, Any] = {}
    for before in (provenance, *appended):
        known |= before.get("lerobot", {}).get("tasks", {})
    tasks = told.get("lerobot", {}).get("tasks", {})
    for number, task in tasks.items():
        if known.get(number, task) != task:
            raise FileError(
                f"{source}: task_index {number} is {task!r}, but {known[number]!r} in the cache: expected the same numbers"
            )
    joined = {**provenance, "appended": [*appended, dict(told)]}
    if "lerobot" in provenance:
        joined["lerobot"] = {**provenance["lerobot"], "tasks": known | tasks}
    return joined
