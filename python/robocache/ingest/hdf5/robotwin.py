"""Reads RoboTwin's HDF5: each file is an episode.

The schema is that of RoboTwin 2.0 (envs/utils/pkl2hdf5.py): ``joint_action/...``, ``endpose/...``, ``observation/CAMERA/rgb`` as JPEGs
padded with zeros to one length, ``pointcloud``. Files are in ``data/``. Beside that, a folder ``instructions/`` has JSON files of the
same names. There is no clock.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from ..formats import RateOptions
from ..images import Kinds
from ..rate import tell_rates
from ..recording import Notes, Recording, Samples, SourceError, as_utf8
from .beside import read_json
from .datasets import another_layout, find_files, open_file
from .episodes import read_episode

finish = tell_rates

_WHY = (
    "RoboTwin's files have no clock, and this one names no rate; it follows from save_freq in the task's configuration"
)


def read(source: Path, options: RateOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every file."""
    listing, files = find_files(source, notes)
    instructions = {path: _find_instructions(path) for path in files}
    listing.leave_out_others([*files, *filter(None, instructions.values())], "not read", notes)
    kinds = Kinds()
    notes.total = len(files)
    for path, name in files.items():
        metadata: dict[str, Any] = {"name": path.stem, "source_file": name}
        folders = path.resolve().parts[:-1]
        if len(folders) > 3 and folders[-1] == "data":
            metadata |= {"task_config": as_utf8(folders[-2]), "task_name": as_utf8(folders[-3])}
        streams = _read_streams(path, name, instructions[path], metadata, options, kinds, notes)
        yield Recording(name, str(path), metadata, streams)


def _read_streams(
    path: Path,
    what: str,
    instructions: Path | None,
    metadata: dict[str, Any],
    options: RateOptions,
    kinds: Kinds,
    notes: Notes,
) -> Iterator[tuple[str, Samples]]:
    """Yields an episode's streams. Opens its file only when the first stream is read, and then adds to `metadata`."""
    with open_file(path) as file:
        if "joint_action" not in file and "observation" not in file:
            raise another_layout(path, file, "robotwin", "joint_action and observation")
        if instructions is None:
            notes.leave_out(f"{what}: instructions", "no JSON file of the same name in a folder instructions")
        else:
            with notes.reading(f"{what}: instructions", instructions):
                metadata |= _read_instructions(instructions)
        notes.leave_out(
            "red and blue",
            "as in the files: RoboTwin's own writer exchanges them, its loaders exchange them back; "
            'channels = "bgr" in a mapping exchanges them back too',
        )
        yield from read_episode(
            path,
            file,
            what,
            metadata,
            options,
            kinds,
            notes,
            why=_WHY,
            comes_first=lambda key: key.startswith("joint_action/"),
        )


def _find_instructions(path: Path) -> Path | None:
    """Returns the file of an episode's instructions; None if there is none. The folder ``instructions`` may lie beside the folder of the
    episode or in it."""
    folders = (path.parent.parent / "instructions", path.parent / "instructions")
    return next((file for folder in folders if (file := folder / f"{path.stem}.json").exists()), None)


def _read_instructions(path: Path) -> dict[str, Any]:
    """Returns the instructions of an episode as columns. The column ``task`` is the first one, if possible of those for training."""
    content = read_json(path)
    content = {"seen": content} if isinstance(content, list) else content
    if not isinstance(content, dict):
        raise SourceError(f"{path}: expected lists of instructions, got {content!s:.60}")
    columns: dict[str, Any] = {}
    for kind in ("seen", "unseen"):
        texts = content.get(kind) or []
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise SourceError(f"{path}: {kind}: expected texts, got {texts!s:.60}")
        if texts:
            columns[f"instructions_{kind}"] = [as_utf8(text) for text in texts]
    texts = columns.get("instructions_seen") or columns.get("instructions_unseen")
    return columns | ({"task": texts[0]} if texts else {})
