"""ALOHA's and ACT's HDF5, an episode a file, and what Mobile ALOHA and other recorders made of it.

The schema is what aloha_scripts/record_episodes.py of ALOHA and Mobile ALOHA writes: ``observations/qpos``, ``qvel``, ``effort``,
``images/CAMERA``, ``action``; images are pixels, or JPEGs with zeros behind them to a common length. There is no clock.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import h5py

from ..files import natural
from ..formats import RateOptions
from ..images import Kinds
from ..rate import find_rate
from ..recording import Notes, Recording, Samples, SourceError
from .columns import Column, nominal
from .datasets import Tree, attributes, describe, find_files, open_file, walk

_LENGTHS = "lengths of the images' files, which say them themselves"
_LEFT_OUT = {"compress_len": _LENGTHS, "depth_compress_len": _LENGTHS}


def read(source: Path, options: RateOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every file."""
    root, listing, files = find_files(source, notes)
    why = "ALOHA's files have no clock and name no rate; its own recorders run at 50 Hz"
    rate_hz, _ = find_rate(options.rate_hz, source, why)
    listing.leave_out_others(files, "not read", notes)
    kinds = Kinds()
    notes.total = len(files)
    notes.tell(source, rate_hz=rate_hz, rate_from="rate_hz")
    for path in sorted(files, key=natural):
        name = str(path.relative_to(root))
        metadata: dict[str, Any] = {"name": path.stem, "source_file": name}
        yield Recording(name, str(path), metadata, _read_streams(path, name, metadata, rate_hz, options, kinds, notes))


def _check_layout(path: Path, file: h5py.File) -> None:
    names = list(file)
    if "observations" not in names and "action" not in names:
        other = "robomimic" if "data" in names else "droid" if "observation" in names else None
        hint = f"; format={other!r} reads that" if other else ""
        raise SourceError(f"{path}: expected observations and action, found {describe(file)}{hint}")


def _count_rows(path: Path, tree: Tree) -> int:
    """How many rows an episode has: as many as actions, or else as the joints' positions, or whatever comes first."""
    counted = [key for key in ("action", "observations/qpos", *tree.datasets) if key in tree.datasets]
    if not counted:
        raise SourceError(f"{path}: no dataset with rows")
    return int(tree.datasets[counted[0]].shape[0])


def _read_streams(
    path: Path, what: str, metadata: dict[str, Any], rate_hz: float, options: RateOptions, kinds: Kinds, notes: Notes
) -> Iterator[tuple[str, Samples]]:
    """Opens the episode when the first is asked for, so that those of other shards are not; adds to the metadata."""
    with open_file(path) as file:
        _check_layout(path, file)
        tree = walk(path, file, "", notes, _LEFT_OUT)
        metadata |= {**attributes(file, notes), **tree.facts}
        clock = nominal(_count_rows(path, tree), rate_hz)
        for stream, dataset in tree.datasets.items():
            yield from Column(stream, what, tree.where(stream), dataset, clock, notes).samples(options, kinds)
