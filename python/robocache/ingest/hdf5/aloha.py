"""Reads the HDF5 files of ALOHA, ACT, Mobile ALOHA and their variants: one file is one episode.

aloha_scripts/record_episodes.py of ALOHA and Mobile ALOHA writes this schema: ``observations/qpos``, ``qvel``, ``effort``,
``images/CAMERA``, ``action``; images are pixels, or JPEGs padded with zeros to one length. The files have no clock.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from ..formats import RateOptions
from ..images import Kinds
from ..rate import tell_rates
from ..recording import Notes, Recording, Samples
from .datasets import another_layout, find_files, hint_of_layout, open_file
from .episodes import read_episode

finish = tell_rates

_LENGTHS = "lengths of the images' files without padding; the files show them"
_LEFT_OUT = {"compress_len": _LENGTHS, "depth_compress_len": _LENGTHS}


def read(source: Path, options: RateOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every file."""
    listing, files = find_files(source, notes)
    listing.leave_out_others(files, "not read", notes)
    kinds = Kinds()
    notes.total = len(files)
    for path, name in files.items():
        metadata: dict[str, Any] = {"name": path.stem, "source_file": name}
        yield Recording(name, str(path), metadata, _read_streams(path, name, metadata, options, kinds, notes))


def _read_streams(
    path: Path, what: str, metadata: dict[str, Any], options: RateOptions, kinds: Kinds, notes: Notes
) -> Iterator[tuple[str, Samples]]:
    """Yields a file's streams. Opens the file only when the first stream is read, so that the files of other shards stay closed. Then adds
    to `metadata`."""
    with open_file(path) as file:
        names = list(file)
        if "observations" not in names and "action" not in names and hint_of_layout(path, file, "aloha"):
            raise another_layout(path, file, "aloha", "observations and action")
        yield from read_episode(
            path,
            file,
            what,
            metadata,
            options,
            kinds,
            notes,
            why="ALOHA's files have no clock, and this one names no rate; its own recorders run at 50 Hz",
            comes_first=lambda key: key in ("action", "observations/qpos"),
            leave_out=_LEFT_OUT,
        )
