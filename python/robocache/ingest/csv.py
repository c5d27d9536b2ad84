"""Logs in CSV: a folder with CSV files is an episode, each file a stream named by its stem, one column its clock.

Stamps are read as decimal numbers and become int64 nanoseconds without passing through float64.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import asdict, dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from ..errors import ArgumentError
from ..ops import check_times
from . import Job, SourceError, refuse_git_lfs_pointer

# How many decimal digits of a stamp in that unit lie above one nanosecond.
_UNITS = {"s": 9, "ms": 6, "us": 3, "ns": 0}
# A unit that ends a column's name: "timestamp [ns]", "t_rel_s", "time (msec)".
_UNIT_IN_NAME = re.compile(
    r"(?<![a-zµ])(?:(?P<ns>ns|nsecs?|nano\w*)|(?P<us>[uµ]s|[uµ]secs?|micro\w*)|(?P<ms>ms|msecs?|milli\w*)"
    r"|(?P<s>s|secs?|seconds?))[\])]?$"
)
_EXACT = Context(prec=1000, rounding=ROUND_HALF_EVEN)
_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"


def recognises(source: Path) -> bool:
    """Whether `source` is a CSV file or has one anywhere below it."""
    return bool(_find_files(source))


def read(
    source: Path, job: Job, *, time_column: str | int = 0, time_unit: str | None = None, sort_times: bool = False
) -> dict[str, Any]:
    """Writes every folder as an episode; returns what the provenance says of each stream's file."""
    if time_unit not in (None, *_UNITS):
        raise ArgumentError(f"time_unit: expected one of {', '.join(_UNITS)} or None, got {time_unit!r}")
    root = source if source.is_dir() else source.parent
    files = _find_files(source)
    streams: dict[str, _Layout] = {}
    done = 0
    for folder, files_of_folder in groupby(files, key=lambda file: file.parent):
        logs = []
        for file in files_of_folder:
            job.advance(done, len(files), str(file.relative_to(root)))
            done += 1
            try:
                log = _read_log(file, job, time_column, time_unit, sort_times)
                if log is None:
                    continue
                known = streams.setdefault(log.stream, log.layout)
                if log.layout != known:
                    raise SourceError(f"{file}: {log.layout}, but before it {known}")
                logs.append(log)
            except SourceError as error:
                job.skip(str(file.relative_to(root)), error)
        if logs:
            name = folder.relative_to(root).as_posix() if folder != root else source.name
            with job.episode(name, str(folder), name=name) as episode:
                for log in logs:
                    episode.append(log.stream, log.time_ns, log.values)
    for stream, layout in streams.items():
        job.writer.stream(stream, names=layout.columns)
    if source.is_dir():
        others = Counter(file.suffix or file.name for file in source.rglob("*") if file.is_file())
        others.subtract(Counter(file.suffix for file in files))
        for suffix, count in sorted((+others).items()):
            job.leave_out(f"*{suffix}", f"not CSV: {count} file{'s' * (count > 1)}")
    return {
        "csv": {"streams": {stream: asdict(layout) for stream, layout in streams.items()}, "sort_times": sort_times}
    }


def _find_files(source: Path) -> list[Path]:
    files = [source] if source.is_file() else source.rglob("*")
    found = [file for file in files if file.suffix.lower() == ".csv" and file.is_file() and file.name[0] != "."]
    return sorted(found, key=lambda file: (_natural(file.parent), file.parent, _natural(file)))


def _natural(path: Path) -> list[str | int]:
    """Sorts run_2 before run_10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.as_posix())]


@dataclass(frozen=True)
class _Layout:
    """What the files of one stream have in common; `columns` are the kept ones, None without a header."""

    header: bool
    time_column: str | int
    time_unit: str
    columns: list[str] | None

    def __str__(self) -> str:
        names = f"columns {self.columns}" if self.header else "no header"
        return f"{names}, clock {self.time_column!r} in {self.time_unit}"


@dataclass(frozen=True)
class _Log:
    """One file: time_ns int64 [rows], values float64 [rows, columns]."""

    stream: str
    layout: _Layout
    time_ns: np.ndarray
    values: np.ndarray


def _read_log(file: Path, job: Job, time_column: str | int, time_unit: str | None, sort_times: bool) -> _Log | None:
    """Reads a file; None where it has nothing that is numeric beside the clock."""
    refuse_git_lfs_pointer(file)
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        try:
            cells = [cell.strip() for cell in next(csv.reader(lines), [])]
        except csv.Error as error:
            raise SourceError(f"{file}: line 1: {error}") from error
    if not cells:
        raise SourceError(f"{file}: empty, or its first line is")
    names = [cells[0].lstrip("#% "), *cells[1:]]
    clock = next((at for at, pair in enumerate(zip(names, cells, strict=True)) if time_column in pair), time_column)
    if clock not in range(len(names)):
        raise SourceError(f"{file}: no column {time_column!r} for the clock among {', '.join(names)}")
    header = not re.fullmatch(_NUMBER, cells[clock])

    # Columns go by number here: a header may name two alike.
    numbers = [str(number) for number in range(len(names))]
    options = pa_csv.ReadOptions(column_names=numbers, skip_rows=int(header), use_threads=False)
    as_text = {numbers[clock]: pa.string()}
    try:
        with pa_csv.open_csv(file, options, convert_options=pa_csv.ConvertOptions(column_types=as_text)) as blocks:
            block = blocks.read_next_batch()
        types = {}
        for number in numbers[:clock] + numbers[clock + 1 :]:
            left_out = _why_not(block[number])
            if left_out:
                column = names[int(number)] if header else f"column {number}"
                job.leave_out(f"{file.stem}: {column}", left_out)
            else:
                types[number] = pa.bool_() if pa.types.is_boolean(block[number].type) else pa.float64()
        convert = pa_csv.ConvertOptions(column_types={**as_text, **types}, include_columns=[numbers[clock], *types])
        table = pa_csv.read_csv(file, options, convert_options=convert)
    except (pa.ArrowInvalid, StopIteration) as error:
        raise SourceError(f"{file}: {str(error) or 'no rows'}") from error
    if len(table) == 0:
        raise SourceError(f"{file}: no rows")
    if not types:
        job.leave_out(file.stem, "no numeric column beside the clock")
        return None

    time_ns, unit = _read_clock(table[numbers[clock]], names[clock] if header else "", time_unit, file, 1 + header)
    values = np.stack([table[number].cast(pa.float64()).to_numpy() for number in types], axis=1)
    if sort_times:
        order = np.argsort(time_ns, kind="stable")
        time_ns, values = time_ns[order], values[order]
    try:
        check_times(time_ns)
    except ArgumentError as error:
        raise SourceError(f"{file}: {error}; sort_times sorts the rows") from error
    columns = [names[int(number)] for number in types] if header else None
    return _Log(file.stem, _Layout(header, time_column, unit, columns), time_ns, values)


def _why_not(column: pa.Array) -> str | None:
    """Why a column cannot be float64 values; None where it can."""
    if pa.types.is_integer(column.type):
        bounds = pc.min_max(column).as_py()
        if max(-bounds["min"], bounds["max"]) > 2**53:
            return "whole numbers beyond 2^53 do not fit float64"
    elif not (pa.types.is_floating(column.type) or pa.types.is_boolean(column.type) or pa.types.is_null(column.type)):
        return "text"
    return None


def _read_clock(
    column: pa.ChunkedArray, name: str, unit: str | None, file: Path, first_line: int
) -> tuple[np.ndarray, str]:
    """The stamps as int64 nanoseconds, rounded half to even, and their unit."""
    text = pc.utf8_trim_whitespace(column.combine_chunks())
    bad = np.flatnonzero(~pc.match_substring_regex(text, f"^{_NUMBER}$").to_numpy(zero_copy_only=False))
    if len(bad):
        raise SourceError(f"{file}: line {bad[0] + first_line}: {text[bad[0]].as_py()!r} is no time")
    about = text.cast(pa.float64()).to_numpy()
    if unit is None:
        whole = not pc.any(pc.match_substring_regex(text, "[.eE]")).as_py()
        unit = _find_unit(name, about, whole, file)
    if np.abs(about).max() * 10.0 ** _UNITS[unit] > 1e19:
        raise SourceError(f"{file}: a time of {about[np.abs(about).argmax()]:g} {unit} does not fit int64 nanoseconds")
    stamps = [int(_EXACT.to_integral_value(_EXACT.scaleb(Decimal(t), _UNITS[unit]))) for t in text.to_pylist()]
    try:
        return np.array(stamps, np.int64), unit
    except OverflowError as error:
        raise SourceError(f"{file}: a time does not fit int64 nanoseconds: {error}") from error


def _find_unit(name: str, stamps: np.ndarray, whole: bool, file: Path) -> str:
    """The unit that the column's name ends in, or else the one that the values can only mean."""
    named = _UNIT_IN_NAME.search(name.lower())
    if named:
        return str(named.lastgroup)
    steps = np.diff(stamps)
    period = float(np.median(steps[steps > 0])) if np.any(steps > 0) else 0.0
    seconds = {unit: 10.0 ** (digits - 9) for unit, digits in _UNITS.items()}
    by_epoch = next((unit for unit in _UNITS if 1e9 <= stamps[0] * seconds[unit] < 5e9), None)  # years 2001 to 2128
    if not whole:
        by_period = "s" if period <= 10 else None
    else:  # 1 Hz to 1 kHz; below 1000 it could be seconds as well as milliseconds
        by_period = "ns" if period >= 1e6 else "us" if period >= 1e3 else None
    if by_epoch and period * seconds[by_epoch] <= 1.5:
        return by_epoch
    if by_period and (by_epoch in (None, by_period) or period * seconds[by_epoch] > 1000):
        return by_period
    raise SourceError(
        f"{file}: {stamps[0]:.16g} and on in steps of {period:.6g} could be of several units; "
        "say which with time_unit (s, ms, us or ns)"
    )
