"""Files of point clouds: a folder is an episode, each file a row of the stream ``points``. The stamps are in the files' names, in a
file beside them, or follow from the user's rate.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import FileError
from .cloud_files import Columns, read_cloud
from .files import check_file, look_through, natural, without_links_to_others
from .formats.clouds import CloudOptions, is_cloud
from .recording import Notes, Ragged, Recording, SourceError

# Files of stamps, in the folder of the clouds or in its parent.
_STAMP_FILES = ("timestamps.txt", "times.txt")
_MOST_STAMP_BYTES = 1 << 26
# All clouds must have the layout that is most frequent among this many of them.
_COMPARED = 5
# The possible widths of a .bin: how many float32 a point has.
_BIN_COLUMNS = range(3, 9)
# How many numbers of a .bin are read to find its width: a multiple of every possible width.
_DECIDING_NUMBERS = 840 * 256
# Two widths are compared by at least _ENOUGH rows.
_ENOUGH = 100
# Coordinates in float32 are not larger than _HUGE or, but for 0, smaller than _TINY. A share of up to _FEW numbers may be.
_HUGE, _TINY, _FEW = 1e20, 1e-30, 0.01
# The points whose columns are joined at once, so that the processor's cache holds them.
_AT_ONCE = 4096
# Stamps since 1970, in the years 2001 to 2128: seconds with decimals, or whole milli-, micro- and nanoseconds.
_STAMP = re.compile(r"(?<!\d)(?:([1-4]\d{9})([._])(\d{1,9})|([1-4]\d{12}|[1-4]\d{15}|[1-4]\d{18}))(?!\d)")
_DATE = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?")
_NUMBER = re.compile(r"\d{1,15}(?!.*\d)")


def read(source: Path, options: CloudOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every folder with clouds."""
    root, listing = look_through(source, notes)
    files = without_links_to_others([file for file in listing.files if is_cloud(file)], root, notes)
    if not files:
        raise FileError(
            f"{source}: expected point clouds (*.ply, *.pcd, *.las, *.laz, *.bin, *.npy, *.npz), found none"
        )
    files.sort(key=lambda file: (natural(file.parent), file.parent, natural(file)))
    folders = [(folder, list(clouds)) for folder, clouds in groupby(files, key=lambda file: file.parent)]
    notes.total = len(folders)
    stamps = {parent / name for folder, _ in folders for parent in (folder, folder.parent) for name in _STAMP_FILES}
    listing.leave_out_others({*files, *stamps}, "no clouds", notes)
    seen = _Seen()
    for folder, clouds in folders:
        name = folder.relative_to(root).as_posix() if folder != root else os.path.basename(os.path.abspath(source))
        yield Recording(name, str(folder), {"name": name}, _read_folder(folder, clouds, options, seen, notes))


def finish(source: Path, options: CloudOptions, notes: Notes) -> None:
    """Reports for each kind of clock how many folders have it."""
    notes.tell(source, clocks=notes.counts.get("clocks", {}))


@dataclass
class _Seen:
    """The layout of the source's clouds: each stream's dtype and columns; None until it is found."""

    layout: dict[str, tuple[str, list[str]]] | None = None

    def find_layout(self, clouds: list[Path], columns: int) -> None:
        """Sets the layout to the most frequent one of a few clouds from all over the folder, since the first may be odd or damaged."""
        if self.layout is not None:
            return
        layouts: dict[str, list[dict[str, tuple[str, list[str]]]]] = {}
        silent = Notes("clouds", {}, "skip")  # errors are reported when the cloud is read
        for file in dict.fromkeys(clouds[len(clouds) * part // _COMPARED] for part in range(_COMPARED)):
            with silent.reading(file.name, file):
                check_file(file)
                layout = _layout(_streams(file, read_cloud(file, columns, silent)))
                layouts.setdefault(str(layout), []).append(layout)
        if layouts:
            self.layout = max(layouts.values(), key=len)[0]


def _layout(streams: dict[str, tuple[np.ndarray, list[str]]]) -> dict[str, tuple[str, list[str]]]:
    return {name: (values.dtype.name, names) for name, (values, names) in streams.items()}


def _read_folder(
    folder: Path, clouds: list[Path], options: CloudOptions, seen: _Seen, notes: Notes
) -> Iterator[tuple[str, Ragged]]:
    clouds, time_ns, source = _read_clock(folder, clouds, options, notes)
    notes.count("clocks", source)
    clock: Literal["recorded", "nominal"] = "nominal" if source == "rate_hz" else "recorded"
    columns = _find_bin_columns(folder, clouds, options)
    seen.find_layout(clouds, columns)
    for stamp, file in zip(time_ns, clouds, strict=True):
        with notes.reading(_cloud_name(folder, file), file):
            check_file(file)
            streams = _streams(file, read_cloud(file, columns, notes))
            layout = _layout(streams)
            seen.layout = seen.layout or layout
            if layout != seen.layout:
                raise SourceError(f"{file}: {_describe(layout)}, but others are {_describe(seen.layout)}")
            for name, (values, names) in streams.items():
                offsets = np.array([0, len(values)])
                yield name, Ragged(stamp[None], values, offsets, names, clock, {"clock_source": source})


def _cloud_name(folder: Path, file: Path) -> str:
    return file.name if folder == file.parent else str(file)


def _describe(layout: dict[str, tuple[str, list[str]]]) -> str:
    return "; ".join(f"{stream} of {dtype} {' '.join(names)}" for stream, (dtype, names) in layout.items())


# ---- points ----


def _streams(file: Path, columns: Columns) -> dict[str, tuple[np.ndarray, list[str]]]:
    """Returns the streams of a cloud. ``points`` is float32 if that holds x, y and z exactly, else float64, and has all columns that its
    type holds exactly. Packed colours become a stream of bytes, every other column a stream in its own type."""
    missing = [axis for axis in "xyz" if axis not in columns]
    if missing:
        raise SourceError(f"{file}: expected points with x, y and z, got {', '.join(columns)}")
    dtype = np.dtype(np.float32 if all(_fits(columns[axis], np.dtype(np.float32)) for axis in "xyz") else np.float64)
    for axis in "xyz":
        if columns[axis].ndim > 1 or not _fits(columns[axis], dtype):
            raise SourceError(f"{file}: expected {axis} of a type that float64 holds, got {columns[axis].dtype}")
    points: list[np.ndarray] = []
    names: list[str] = []
    streams: dict[str, tuple[np.ndarray, list[str]]] = {}
    for name in ["x", "y", "z", *(name for name in columns if name not in "xyz")]:
        column = columns[name]
        if column.dtype.kind not in "fiub":
            raise SourceError(f"{file}: expected numbers, got {name} of {column.dtype}")
        table = column.reshape(len(column), int(np.prod(column.shape[1:])))
        labels = [name] if column.ndim == 1 else [f"{name}[{i}]" for i in range(table.shape[1])]
        if name in ("rgb", "rgba") and column.ndim == 1 and column.dtype.itemsize == 4:
            packed = np.ascontiguousarray(column).view(np.uint8).reshape(-1, 4)
            streams[f"points/{name}"] = np.ascontiguousarray(packed[:, [2, 1, 0, 3]]), ["r", "g", "b", "a"]
        elif _fits(column, dtype):
            points.append(table)
            names += labels
        else:
            streams[f"points/{name}"] = np.ascontiguousarray(table), labels
    values = np.empty((len(columns["x"]), len(names)), dtype)
    for begin in range(0, len(values), _AT_ONCE):
        rows = slice(begin, begin + _AT_ONCE)
        np.concatenate([table[rows] for table in points], axis=1, out=values[rows], casting="safe")
    return {"points": (values, names)} | streams


def _fits(column: np.ndarray, dtype: np.dtype[Any]) -> bool:
    """Whether floats of that type hold every value of the column's type: float32 holds integers of 16 bits, float64 those of 32."""
    kind, size = column.dtype.kind, column.dtype.itemsize
    if kind == "f":
        return size <= dtype.itemsize
    return kind == "b" or (kind in "iu" and 2 * size <= dtype.itemsize)


def _find_bin_columns(folder: Path, clouds: list[Path], options: CloudOptions) -> int:
    """Returns how many numbers a point has in the folder's ``.bin`` files; 4 if it has none.

    Raises:
        SourceError: the files do not show it, and the user does not say it.
    """
    files = [file for file in clouds if file.suffix.lower() == ".bin"]
    if options.bin_columns is not None or not files:
        return options.bin_columns or 4
    likely = [4, 5]
    if all(file.name.lower().endswith(".pcd.bin") for file in files):  # as nuScenes names them
        likely = [5]
    elif any(part.startswith("velodyne") for part in folder.parts[-2:]):  # as KITTI names folders
        likely = [4]
    sizes = {file: file.stat().st_size for file in files if file.is_file()}
    by_width = {columns: [file for file in sizes if sizes[file] % (4 * columns) == 0] for columns in _BIN_COLUMNS}
    # A file that was cut off has the size of no width; reading it raises the error that names it.
    most = max(len(by_width[columns]) for columns in likely)
    fitting = [columns for columns in likely if len(by_width[columns]) == most and 2 * most > len(sizes)]
    if len(fitting) == 1:
        # nuScenes' points come ring by ring, so neighbouring points differ with the right width too.
        matched = by_width[fitting[0]]
        others = [columns for columns in _BIN_COLUMNS if set(by_width[columns]) >= set(matched) and likely != [5]]
        fitting = sorted(fitting + _check_bins(matched, fitting[0], others))
    if len(fitting) == 1:
        return fitting[0]
    widths = " or ".join(map(str, fitting)) or "neither " + " nor ".join(map(str, likely))
    raise SourceError(
        f"{files[0]}: points of {widths} float32, by the sizes of the files and their numbers; "
        "say which with bin_columns (--bin-columns 3 to 5), or write wider ones as .npy"
    )


def _check_bins(files: list[Path], columns: int, others: list[int]) -> list[int]:
    """Raises if the files are not float32. Returns the widths in `others` that are as likely as the width `columns`.

    If points are read with a wrong width, their columns repeat only every second row, or every third; the rows between differ.
    """
    points = np.concatenate([np.fromfile(file, "<f4", _DECIDING_NUMBERS) for file in files[:_COMPARED]])
    magnitudes = np.abs(points[np.isfinite(points)])
    implausible = magnitudes[((magnitudes > _HUGE) | (magnitudes < _TINY)) & (magnitudes > 0)]
    if implausible.size > _FEW * points.size:
        raise SourceError(
            f"{files[0]}: expected points of float32, got numbers such as {implausible[0]}, as other types have; "
            "write the points as .npy, with a type for each field"
        )
    return [width for width in others if _differ(points.reshape(-1, columns), math.lcm(columns, width) // columns)]


def _differ(points: np.ndarray, cycle: int) -> bool:
    """Whether rows at different positions in a cycle of rows differ in mean or spread, in any column."""
    rows = points[: len(points) // cycle * cycle].reshape(-1, cycle, points.shape[1]).astype(np.float64)
    if cycle == 1 or len(rows) < _ENOUGH:
        return False
    mean, spread = rows.mean(axis=0), rows.std(axis=0)
    widest, narrowest = spread.max(axis=0), spread.min(axis=0)
    return bool(((np.ptp(mean, axis=0) > widest / 2) | (widest > 2 * narrowest)).any())


# ---- clock ----


def _read_clock(
    folder: Path, clouds: list[Path], options: CloudOptions, notes: Notes
) -> tuple[list[Path], np.ndarray, str]:
    """Returns the clouds that have a stamp, their stamps in int64 nanoseconds, and where the stamps come from."""
    for file in (parent / name for parent in (folder, folder.parent) for name in _STAMP_FILES):
        if file.is_file():
            check_file(file)
            if file.stat().st_size > _MOST_STAMP_BYTES:
                raise SourceError(
                    f"{file}: expected stamps in at most {_MOST_STAMP_BYTES} bytes, got {file.stat().st_size}"
                )
            lines = [(row, line) for row, line in enumerate(file.read_text().split("\n"), 1) if line.strip()]
            if len(lines) != len(clouds):
                raise SourceError(f"{file}: expected {len(clouds)} stamps, one for each cloud, got {len(lines)}")
            _check_blank_lines(file, [row for row, _ in lines], clouds)
            stamps: dict[Path, int] = {}
            for cloud, (row, line) in zip(clouds, lines, strict=True):
                with notes.reading(_cloud_name(folder, cloud), file):
                    stamps[cloud] = _parse_stamp(line, file, row)
            if not stamps:
                raise SourceError(f"{file}: expected dates or seconds, got none")
            if not _DATE.match(lines[0][1].strip()):
                notes.assume(f"clock {file.name!r}", "seconds, as of KITTI")
            return list(stamps), _nanoseconds([*stamps.values()], file), file.name
    named = {cloud: matches[-1] for cloud in clouds if (matches := _STAMP.findall(cloud.name))}
    if len(named) == len(clouds) or (options.rate_hz is None and 2 * len(named) > len(clouds)):
        for cloud in (cloud for cloud in clouds if cloud not in named):
            notes.skip(_cloud_name(folder, cloud), SourceError(f"{cloud}: no stamp in its name, as most others have"))
        notes.assume("clock 'names of files'", "times since 1970, by their numbers of digits")
        return list(named), _nanoseconds(_stamps_of_names([*named.values()], folder), folder), "names of files"
    if options.rate_hz is not None:
        period = Decimal(10**9) / Decimal(options.rate_hz)
        nominal = [int((period * row).to_integral_value()) for row in _number_rows(clouds, notes)]
        return clouds, _nanoseconds(nominal, folder), "rate_hz"
    if len(clouds) == 1:
        return clouds, np.zeros(1, np.int64), "none"
    raise SourceError(
        f"{folder}: {len(clouds)} clouds without a clock: there is no {' or '.join(_STAMP_FILES)}, and not all names have a stamp; "
        "give the clouds a second with rate_hz (--rate-hz)"
    )


def _check_blank_lines(file: Path, rows: list[int], clouds: list[Path]) -> None:
    """Raises if a line between others is blank, but the numbers in the clouds' names do not leave out that line's number."""
    matches = [_NUMBER.search(cloud.name.split(".")[0]) for cloud in clouds]
    numbers = [int(match[0]) for match in matches if match]
    if rows[-1] - rows[0] >= len(rows) and len(numbers) == len(rows):
        for cloud, row, number in zip(clouds, rows, numbers, strict=True):
            if row - number != rows[0] - numbers[0]:
                raise SourceError(
                    f"{file}: lines are blank, and {cloud.name} does not belong to line {row}; expected a line for each cloud, and blank "
                    "lines only for numbers that the names of the clouds leave out"
                )


def _number_rows(clouds: list[Path], notes: Notes) -> list[int]:
    """Returns a row number for each cloud, from 0. If the numbers in the clouds' names rise, rows are numbered by them, so a missing
    cloud leaves a gap."""
    matches = [_NUMBER.search(cloud.name.split(".")[0]) for cloud in clouds]
    numbers = [int(match[0]) for match in matches if match]
    if len(numbers) < len(clouds) or any(later <= earlier for earlier, later in pairwise(numbers)):
        return list(range(len(clouds)))
    rows = [number - numbers[0] for number in numbers]
    if rows[-1] >= len(rows):
        notes.assume(
            "times of clouds", f"the numbers in their names / rate_hz: {len(rows)} of {rows[-1] + 1} numbers exist"
        )
    return rows


def _stamps_of_names(matches: list[tuple[str, str, str, str]], folder: Path) -> list[int]:
    """Returns the stamps that `_STAMP` found in nanoseconds. The digits after the seconds are a decimal fraction, or a whole number
    of milli-, micro- or nanoseconds that lacks leading zeros, as "%d_%d" writes it. How many digits there are shows which.

    Raises:
        SourceError: the digits do not show it.
    """
    parts = [(separator, digits) for _, separator, digits, whole in matches if not whole]
    lengths = {len(digits) for _, digits in parts}
    most = max(lengths, default=9)
    # In fractions of varying length, the zeros at the end were left out.
    may_be_fraction = len(lengths) == 1 or not any(digits.endswith("0") for _, digits in parts if len(digits) < most)
    is_decimal = may_be_fraction and all(separator == "." for separator, _ in parts)
    if not is_decimal and most not in (3, 6, 9):
        raise SourceError(
            f"{folder}: names have {most} digits after the seconds, which could be a fraction or nanoseconds; "
            f"write the stamps to a file {_STAMP_FILES[0]}, a line for each cloud"
        )
    padded_length = 0 if is_decimal or len(lengths) == 1 else most
    return [
        int(whole.ljust(19, "0")) if whole else int(seconds) * 10**9 + int(digits.zfill(padded_length).ljust(9, "0"))
        for seconds, _, digits, whole in matches
    ]


def _parse_stamp(line: str, file: Path, number: int) -> int:
    """Returns a date as KITTI writes it, or seconds, in nanoseconds; digits beyond them are rounded."""
    text = line.strip()
    if date := _DATE.fullmatch(text):
        seconds = int(datetime.fromisoformat(date[1]).replace(tzinfo=timezone.utc).timestamp())
        return seconds * 10**9 + int((date[2] or "").ljust(9, "0"))
    if re.fullmatch(r"[+-]?\d{1,12}(\.\d{1,30})?([eE][+-]?\d{1,2})?", text):
        return int((Decimal(text) * 10**9).to_integral_value())
    raise SourceError(f"{file}: line {number}: expected a date or seconds, got {text!r:.60}")


def _nanoseconds(stamps: list[int], where: Path) -> np.ndarray:
    try:
        return np.array(stamps, np.int64)
    except OverflowError as error:
        raise SourceError(f"{where}: a time does not fit int64 nanoseconds: {error}") from error
