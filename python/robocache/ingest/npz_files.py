"""Reads NumPy's .npz files that are episodes, such as motions of humanoids (SMPL, AMASS, Isaac Lab): an array is a stream, a row a step.

There is no schema: the number of rows is the first dimension of most arrays, and an array of the file gives the rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileError
from .files import look_through, natural, without_links_to_others
from .formats import RateOptions
from .formats.npz import PERIODS, RATES, is_npz
from .images import is_image_of_16_bits, store_pixels
from .npz import Entry, Npz, open_npz
from .rate import STEPS, find_rate, nominal_time_ns, said_rates
from .recording import Notes, Recording, Rows, Samples, SourceError, Texts, as_utf8, naming

# Arrays without a row for each step become columns of the episodes table, if they have at most this many values.
_MOST_VALUES = 64
# Arrays with a smaller height or width are no camera.
_LEAST_SIDE = 8


def read(source: Path, options: RateOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every file."""
    root, listing = look_through(source, notes)
    files = [file for file in listing.files if file == source or is_npz(file)]
    files = without_links_to_others(files, root, notes)
    if not files:
        raise FileError(f"{source}: expected *.npz, found none")
    listing.leave_out_others(files, "not read", notes)
    notes.total = len(files)
    for path in sorted(files, key=natural):
        name = str(path.relative_to(root))
        metadata: dict[str, Any] = {"name": path.stem, "source_file": name}
        yield Recording(name, str(path), metadata, _read_streams(path, name, metadata, options, notes))


def _read_streams(
    path: Path, what: str, metadata: dict[str, Any], options: RateOptions, notes: Notes
) -> Iterator[tuple[str, Samples]]:
    """Yields an episode's streams. Opens the file only when the first stream is read, and then adds to `metadata`."""
    with naming(path), open_npz(path) as archive:
        for name, error in archive.lost.items():
            with notes.reading(f"{what}: {name}", path):
                raise error
        for name in (*RATES, *PERIODS, *STEPS):
            if f"{name}.npy" in archive.lost and options.rate_hz is None:
                raise SourceError(f"{path}: {name}: the array that gives the rate is damaged")
        why = f"it has no array {RATES[0]} or {PERIODS[0]} (in seconds, at most 1)"
        rate_hz, _ = find_rate(options.rate_hz, path, why, _read_rates(archive), notes)
        rows = _count_rows(path, archive.entries)
        streams = {}
        for name, entry in archive.entries.items():
            if entry.shape[:1] == (rows,):
                streams[name] = entry
            else:
                _add_column(name, entry, rows, archive, metadata, notes)
        metadata["rate_hz"] = rate_hz
        _report_other_axis(rows, streams, notes)
        for name, entry in streams.items():
            with notes.reading(f"{what}: {name}", f"{path}: {name}"):
                yield from _read_stream(name, entry, archive, rate_hz, options, notes)


def _read_rates(archive: Npz) -> dict[str, float]:
    """Returns the rates that arrays give, in rows per second, by the names of the arrays."""
    facts = {}
    for name, entry in archive.entries.items():
        if entry.shape in ((), (1,)) and entry.dtype.kind in "iuf":
            value = facts[name] = float(archive.read(name).reshape(-1)[0])
            if name in (*RATES, *PERIODS) and not 0 < value < 1e9:
                raise SourceError(f"{name}: expected a number above 0, got {value:g}")
    return dict(said_rates(facts, ""))


def _count_rows(path: Path, entries: Mapping[str, Entry]) -> int:
    """Returns the first dimension that most arrays have."""
    counts = Counter(
        entry.shape[0] for name, entry in entries.items() if entry.shape and name not in (*RATES, *PERIODS)
    )
    if not counts:
        raise SourceError(f"{path}: no array with rows")
    (rows, count), *_ = counts.most_common(1)
    if 2 * count <= sum(counts.values()):
        shapes = ", ".join(f"{name} {list(entry.shape)}" for name, entry in list(entries.items())[:5])
        raise SourceError(
            f"{path}: expected most arrays to have the same number of rows, a row for each step; got {shapes}: an "
            "observation of one moment is no recording"
        )
    return rows


def _report_other_axis(rows: int, streams: Mapping[str, Entry], notes: Notes) -> None:
    """Reports that the second dimension may count the steps, if it is the same in several arrays and longer than the first."""
    second_sizes = {entry.shape[1] for entry in streams.values() if len(entry.shape) > 1}
    names = [name for name, entry in streams.items() if len(entry.shape) > 1]
    if len(second_sizes) == 1 and len(names) > 1 and (steps := max(second_sizes)) > rows:
        why = (
            f"the first dimension, {rows}, though the second is {steps} in each of {len(names)} arrays: if the second counts the "
            "steps, exchange the two, or write a file for each episode of a batch"
        )
        notes.assume("rows of arrays", why, *names)


def _read_stream(
    name: str, entry: Entry, archive: Npz, rate_hz: float, options: RateOptions, notes: Notes
) -> Iterator[tuple[str, Samples]]:
    kind = entry.dtype.kind
    is_text = kind in "US" and len(entry.shape) == 1
    is_numeric = kind in "biuf" and entry.dtype.itemsize <= 8
    if not (is_text or is_numeric) or 0 in entry.shape[1:]:
        notes.leave_out(name, f"{entry.dtype} {list(entry.shape[1:])} a row")
        return
    is_camera = False
    if len(entry.shape) == 4 and min(entry.shape[1:3]) >= _LEAST_SIDE:
        pixel = entry.dtype.name, entry.shape[3]
        is_camera = pixel in (("uint8", 3), ("uint8", 1)) or (
            pixel == ("uint16", 1) and is_image_of_16_bits(name, entry.shape[1:3])
        )
    first = 0
    for values in archive.parts(name):
        time_ns = nominal_time_ns(first, first + len(values), rate_hz)
        first += len(values)
        if is_text:
            yield name, Texts(time_ns, _decode_texts(values), "nominal")
        elif is_camera:
            pixels = values.astype(values.dtype.newbyteorder("="))
            yield name, store_pixels(name, time_ns, pixels, options, "nominal", notes)
        else:
            yield name, Rows(time_ns, values.astype(values.dtype.newbyteorder("="), copy=False), None, "nominal")


def _add_column(name: str, entry: Entry, rows: int, archive: Npz, metadata: dict[str, Any], notes: Notes) -> None:
    """Adds an array that has no row for each step as a column of the episodes table, if it is small enough."""
    if name in (*RATES, *PERIODS) or name in metadata:
        return
    size = int(np.prod(entry.shape))
    if len(entry.shape) > 1 or not 0 < size <= _MOST_VALUES or entry.dtype.kind not in "biufUS":
        notes.leave_out(name, f"{entry.dtype} {list(entry.shape)}: neither a row a step nor a few values")
        return
    if size > 1 and abs(size - rows) == 1:
        why = f"{size} values beside {rows} rows: kept as a column, since the step of each is unknown"
        notes.leave_out(f"{name}: rows", why)
    with notes.reading(name, name):
        values = archive.read(name).reshape(-1)
        if entry.dtype.kind == "f":
            cells: list[Any] = [float(value) if np.isfinite(value) else None for value in values]
        else:
            cells = _decode_texts(values) if entry.dtype.kind in "US" else values.tolist()
        metadata[name] = cells[0] if len(cells) == 1 else cells


def _decode_texts(values: np.ndarray) -> list[str]:
    texts = [cell.decode(errors="backslashreplace") if isinstance(cell, bytes) else cell for cell in values.tolist()]
    return [as_utf8(text) for text in texts]
