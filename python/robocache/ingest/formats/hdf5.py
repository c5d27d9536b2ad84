"""Recognises the layouts of HDF5 files by name and first bytes, before h5py is imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..files import is_readable
from . import Format, RateOptions, VideoOptions, has_suffix

SUFFIXES = (".hdf5", ".h5", ".hdf")
TRAJECTORY = "trajectory.h5"  # the name of DROID's files; also of ManiSkill's, which have a JSON file beside them
PROPRIO = "proprio_stats.h5"  # the name of AgiBot's files

_MAGIC = b"\x89HDF\r\n\x1a\n"
# A file may begin with a user block of 512 bytes times a power of two.
_MAGIC_OFFSETS = (0, 512, 1024, 2048, 4096)
_HEAD = 8192  # the first bytes of a file that are read
# At most this many files are opened. A folder holds one layout, so a few are enough.
_OPENED = 16


def is_hdf5(file: Path) -> bool:
    """Whether a file is named as HDF5 and is not hidden."""
    return has_suffix(file, *SUFFIXES)


def _finder(layout: str) -> Callable[[Path, Sequence[Path]], Path | None]:
    """Returns the `find_sign` of a layout."""

    def find(source: Path, files: Sequence[Path]) -> Path | None:
        candidates = [file for file in files if file == source or is_hdf5(file)]
        # All files named TRAJECTORY have one layout, and so have all named PROPRIO: one of each is enough.
        by_name: dict[str, list[Path]] = {TRAJECTORY: [], PROPRIO: []}
        others: list[Path] = []
        for file in candidates:
            by_name.get(file.name, others).append(file)
        opened = [*others[:_OPENED], *(files[0] for files in by_name.values() if files)]
        return next((file for file in opened if _guess(file) == layout), None)

    return find


def _guess(file: Path) -> str | None:
    """Guesses the layout of a file from its name, from a JSON file beside it, or from the names of its first groups, which are usually
    in its first bytes. Returns None if it is no HDF5 file."""
    if file.name == PROPRIO:
        return "agibot"
    if _says_maniskill(file.with_suffix(".json")):
        return "maniskill"
    if file.name == TRAJECTORY:
        return "droid"
    head = b""
    if is_readable(file):
        with file.open("rb") as opened:
            head = opened.read(_HEAD)
    if not is_hdf5(file) and not any(head.startswith(_MAGIC, offset) for offset in _MAGIC_OFFSETS):
        return None
    if b"\0data\0" in head or b"demo_" in head:
        return "robomimic"
    if re.search(rb"\0traj_\d+\0", head):
        return "maniskill"
    if b"joint_action" in head:
        return "robotwin"
    if b"observations" in head or re.match(r"episode_?\d+", file.name):
        return "aloha"
    return "robomimic"


def _says_maniskill(json_file: Path) -> bool:
    """Whether the JSON file beside a file of trajectories describes a ManiSkill environment."""
    if not is_readable(json_file):
        return False
    with json_file.open("rb") as opened:
        return b'"env_info"' in opened.read(_HEAD)


@dataclass(frozen=True)
class AgibotOptions(VideoOptions, RateOptions):
    """Takes a rate, since simulated episodes may have no stamps."""

    title: ClassVar[str] = "AgiBot World"


def _entry(name: str, title: str, sign: str, options: type[Any] = RateOptions) -> Format:
    reader, install = f"robocache.ingest.hdf5.{name}", "pip install 'robocache[hdf5]'"
    return Format(name, title, sign, _finder(name), options, reader, install)


FORMATS = (
    _entry("robomimic", "robomimic dataset (MimicGen's and Isaac Lab's too)", "*.hdf5 of demos"),
    _entry("aloha", "folder of ALOHA or ACT episodes", "episode_*.hdf5"),
    _entry("robotwin", "folder of RoboTwin episodes", "episode*.hdf5 with joint_action"),
    _entry("droid", "folder of raw DROID episodes", TRAJECTORY, VideoOptions),
    _entry("agibot", "AgiBot World", PROPRIO, AgibotOptions),
    _entry("maniskill", "ManiSkill trajectories", "*.h5 with traj_*, *.json beside it"),
)
