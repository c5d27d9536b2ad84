"""Reads HDF5 files that hold one episode each and have no clock. Most datasets have a row for each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py

from ..formats import RateOptions
from ..images import Kinds
from ..rate import find_rate, said_rates
from ..recording import Notes, Samples, SourceError
from .columns import Column, count_rows, nominal, take_constants
from .datasets import attributes, walk


def read_episode(
    path: Path,
    file: h5py.File,
    what: str,
    metadata: dict[str, Any],
    options: RateOptions,
    kinds: Kinds,
    notes: Notes,
    *,
    why: str,
    comes_first: Callable[[str], bool],
    leave_out: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, Samples]]:
    """Yields all datasets of an open file as streams. Adds to `metadata`.

    why: the text of the error if neither the file nor the user gives a rate.
    comes_first: as in :func:`count_rows`.
    leave_out: as in :func:`walk`.
    """
    tree = walk(path, file, "", notes, leave_out)
    facts = {**attributes(file, notes), **tree.facts}
    if not tree.datasets:
        raise SourceError(f"{path}: no dataset with rows")
    rows, _ = count_rows(tree, comes_first)
    facts |= take_constants(tree, rows, notes)
    rate_hz, rate_from = find_rate(options.rate_hz, path, why, dict(said_rates(facts, "")), notes)
    notes.count("rates", f"{rate_hz:g} Hz, {rate_from}")
    metadata |= {**facts, **metadata}
    clock = nominal(rows, rate_hz)
    for stream, dataset in tree.datasets.items():
        yield from Column(stream, what, tree.where(stream), dataset, clock, notes).samples(options, kinds)


def tell_files(source: Path, options: RateOptions, notes: Notes) -> None:
    """Adds the facts of all files to the provenance. It is the `finish` of some readers."""
    notes.tell(source, files=notes.seen.get("files", {}))
