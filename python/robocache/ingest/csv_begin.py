"""Finds in the beginning of a CSV file its header, its separator, the columns of its clock, and the type of each column."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from .files import check_file
from .formats.csv import CsvOptions
from .recording import SourceError
from .stamps import (
    DATE,
    DAY,
    IN_A_SECOND,
    NUMBER,
    TIME_OF_DAY,
    ZONE,
    counts_rows,
    find_clock,
    is_unit,
    measures,
    says_time,
    split_unit,
)

_DECIMAL_COMMA = r"[+-]?(\d*|\d{1,3}(\.\d{3})+),\d+([eE][+-]?\d{1,5})?"
_VALUE = f"{NUMBER}|{DATE}{ZONE}?|{DAY}|{_DECIMAL_COMMA}"
# The longest line that is read: Arrow reads blocks of this size.
LONGEST_LINE = 1 << 20
# Cells that mean no value, in lower case. pyarrow takes the first ones so in every column. Spreadsheets, Python and others write the
# second ones, which mean no value only in a column of numbers.
_ABSENT = {text.lower() for text in pa_csv.ConvertOptions().null_values}
_ABSENT_NUMBERS = {
    *("-", "--", "---", "?", ".", "\\n", "none", "nil", "n.a.", "n.a", "<na>", "<null>", "nat", "undefined", "missing"),
    *("#div/0!", "#value!", "#ref!", "#num!", "#name?", "#null!"),
}


@dataclass
class Alike:
    """The files of one stream, and the types of their columns, which :func:`find_kinds` fills in under the lock."""

    files: list[Path] = field(default_factory=list)
    kinds: dict[str, Any] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)


def find_alike(files: list[Path], stream: Callable[[Path], str]) -> dict[str, Alike]:
    """Groups files by the name of their stream, which `stream` returns for a file."""
    alike: dict[str, Alike] = defaultdict(Alike)
    for file in files:
        alike[stream(file)].files.append(file)
    return alike


@dataclass
class Begin:
    """The beginning of a file.

    names: the columns' names; a column without a name, as after a comma at the end of each line, is named by its index.
    clock: the indices of the clock's columns: one, or two for days and times of day, or for seconds and their fraction.
    fraction: the unit of the seconds' fraction; "" if the clock has no such column.
    header: whether the file has a header.
    skipped: the number of lines before the rows.
    units: the unit of each column, from the line below the header; empty without such a line. The clock's unit is also part of its name.
    lost: receives the lines that have another number of cells than the first, with the reason; if None, such a line raises.
    why: why `clock` is the clock, if neither its name nor the user says so.
    block: the first rows. Columns are named by index, since two names in a header may be equal.
    """

    file: Path
    names: list[str]
    clock: list[int]
    header: bool
    skipped: int
    separator: str
    units: list[str] = field(default_factory=list)
    lost: dict[int, str] | None = None
    fraction: str = ""
    why: str = ""
    block: pa.RecordBatch = field(init=False)

    @property
    def comments(self) -> bool:
        return self.skipped > self.header + bool(self.units)

    def units_of(self, numbers: Sequence[str]) -> dict[str, list[str]]:
        """Returns the attribute `units` of these columns, if the file has units for them."""
        units = [self.units[int(number)] for number in numbers] if self.units else []
        return {"units": units} if any(units) else {}

    @property
    def numbers(self) -> list[str]:
        """Returns the columns' names in parsed tables: their indices as text."""
        return [str(number) for number in range(len(self.names))]

    @property
    def keys(self) -> list[str]:
        """Returns the names by which a column is the same in all files of a stream: its name, or its index if names are not unique."""
        are_unique = self.header and len({*self.names}) == len(self.names)
        return self.names if are_unique else self.numbers

    def name(self, number: str) -> str:
        """Returns a column's name, or its index if the file has no header."""
        return self.names[int(number)] if self.header else number

    def label(self, number: str) -> str:
        """Returns the name of a column for messages."""
        return self.names[int(number)] if self.header else f"column {number}"

    def read(self, convert: pa_csv.ConvertOptions, *, use_threads: bool = False) -> pa.Table:
        """Reads the rows."""
        return pa_csv.read_csv(self.file, *self.options(use_threads), convert)

    def options(self, use_threads: bool = False) -> tuple[pa_csv.ReadOptions, pa_csv.ParseOptions]:
        """Returns Arrow's options for reading and parsing the rows."""
        reading = pa_csv.ReadOptions(column_names=self.numbers, skip_rows=self.skipped, use_threads=use_threads)
        handler = None if self.lost is None else self._skip_row
        return reading, pa_csv.ParseOptions(delimiter=self.separator, invalid_row_handler=handler)

    def _skip_row(self, row: Any) -> str:
        assert self.lost is not None
        self.lost[int(row.number)] = f"expected {row.expected_columns} cells, got {row.actual_columns}"
        return "skip"


def read_begin(file: Path, options: CsvOptions, lost: dict[int, str] | None = None) -> Begin:
    """Reads the beginning of a file. Its header may follow comments, or be the last comment.

    lost: the attribute of :class:`Begin` becomes None if this is None, else an empty dict.
    """
    check_file(file)
    time_column = options.time_column
    comment: tuple[int, str] | None = None
    rows: list[tuple[int, str]] = []
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as content:
        for number, line in enumerate(iter(partial(content.readline, LONGEST_LINE), ""), 1):
            if line.startswith("#") and not rows:
                comment = number, line
            elif line.strip() or comment is None or rows:
                rows.append((number, line))
            if len(rows) == 2:
                break
    if comment is not None and not rows:
        rows, comment = [comment], None
    number = rows[0][0] if rows else 1
    try:
        separator = _find_separator([line for _, line in rows if line.strip()])
        cells = _split_cells(rows[0][1], separator) if rows else []
        # If the first line that is no comment is a row, the comment before it may be the header.
        if comment and any(map(_is_value, cells)):
            commented = _split_cells(comment[1], separator)
            if len(commented) > 1 or len(cells) == 1:
                number, cells = comment[0], commented
    except csv.Error as error:
        raise SourceError(f"{file}: line {number}: {error}") from error
    if not cells:
        raise SourceError(f"{file}: the file is empty, or its first line is empty")
    text = separator.join(cells)
    if "\0" in text or text.encode(errors="ignore").decode() != text:
        raw = text.encode(errors="surrogateescape")
        hint = "`iconv -t UTF-8 -f ...` converts a file"
        raise SourceError(f"{file}: line {number}: expected UTF-8, got {raw!r:.60}; {hint}")
    names = [cells[0].lstrip("#% "), *cells[1:]]
    why = ""
    if time_column is None:
        following = _split_cells(rows[1][1], separator) if len(rows) == 2 and rows[1][0] > number else []
        time_column, why = _find_column(file, names, following, options)
    clocks = [i for i in range(len(names)) if time_column in (i, names[i], cells[i])]
    if not clocks:
        raise SourceError(f"{file}: no column {time_column!r} for the clock among {', '.join(names)}")
    header = not re.fullmatch(_VALUE, cells[clocks[0]])
    names = [name or str(i) for i, name in enumerate(names)]
    below = _split_cells(rows[1][1], separator) if header and len(rows) == 2 and rows[1][0] == number + 1 else []
    is_like_header = len(below) == len(names) and not any(re.fullmatch(_VALUE, cell) for cell in below)
    has_units = is_like_header and is_unit(below[clocks[0]])
    if has_units:
        names[clocks[0]] += f" [{below[clocks[0]].strip('[]()')}]"
    skipped = number - 1 + header + has_units
    units = [cell.strip().strip("[]()").strip() for cell in below] if has_units else []
    begin = Begin(file, names, clocks[:1], header, skipped, separator, units, None if lost is None else {}, why=why)
    convert = pa_csv.ConvertOptions(column_types={begin.numbers[clocks[0]]: pa.string()})
    with pa_csv.open_csv(file, *begin.options(), convert) as blocks:
        begin.block = blocks.read_next_batch()
    if _has_day_and_time(begin.block, clocks[0]):
        begin.clock = [clocks[0], clocks[0] + 1]
    elif header and options.time_unit in (None, "s"):
        _find_pair(begin, asked=options.time_column is not None)
    return begin


def _find_column(file: Path, names: list[str], following: list[str], options: CsvOptions) -> tuple[int, str]:
    """Returns the index of the clock's column, and why this column is the clock; "" if its name says so. following: the cells of the line
    after the names.

    Raises:
        SourceError: by its name the first column counts rows or measures something else, and none or several others are named a time.
    """
    if re.fullmatch(_VALUE, names[0]) or says_time(names[0], following[0] if following else ""):
        return 0, ""
    times = find_clock(names)
    if len(times) == 1:
        return times[0], f"the column that is named a time; the first, {names[0]!r}, is not"
    if (counts_rows(names[0]) or measures(names[0])) and options.time_unit is None:
        others = f"{', '.join(names[i] for i in times)} are all" if times else "no other is"
        what = "counts rows" if counts_rows(names[0]) else "is no time"
        raise SourceError(
            f"{file}: the first column, {names[0]!r}, {what} by its name, and {others} named a time; name the clock's column "
            "with time_column (--time-column), or give the unit of the first column with time_unit (--time-unit)"
        )
    return 0, "the first column, by default"


def _find_pair(begin: Begin, asked: bool) -> None:
    """Sets two columns as the clock if its stamps lie in two, whole seconds and the rest, such as `stamp.sec` and `stamp.nanosec`.

    asked: whether the user named the clock's column.

    Raises:
        SourceError: only the user can say which column is the clock.
    """
    index = begin.clock[0]
    stem, unit = split_unit(begin.names[index])
    pairs = []
    for number, (other_stem, other) in enumerate(map(split_unit, begin.names)):
        if number != index and other_stem == stem and unit and other and "s" in (unit, other):
            pairs.append((index, number) if unit == "s" else (number, index))
    fitting = []
    for pair in pairs:
        seconds, fraction = (_as_whole(begin.block[begin.numbers[number]]) for number in pair)
        if seconds is None or fraction is None:  # seconds with decimals are a whole stamp
            continue
        in_a_second = IN_A_SECOND[split_unit(begin.names[pair[1]])[1]]
        if (fraction >= 0).all() and (fraction < in_a_second).all():
            fitting.append(pair)
        elif index == pair[0] and not asked and not np.array_equal(seconds * in_a_second, fraction):
            names = " and ".join(repr(begin.names[number]) for number in pair)
            low, high = fraction.min(), fraction.max()
            what = f"{low:.0f}, below 0" if low < 0 else f"{high:.0f}, more than a second"
            raise SourceError(
                f"{begin.file}: {names} look like one stamp, but the latter has {what}; say which is the clock with time_column (--time-column)"
            )
    if len(fitting) > 1:
        names = ", ".join(sorted({begin.names[number] for pair in fitting for number in pair}))
        raise SourceError(f"{begin.file}: {names} could be one stamp in several ways; keep two of these columns")
    if fitting:
        begin.clock = [*fitting[0]]
        begin.fraction = split_unit(begin.names[fitting[0][1]])[1]


def _as_whole(column: pa.Array) -> np.ndarray | None:
    """Returns a column of whole numbers as float64, which may round large ones; None if a cell is no whole number."""
    try:
        numbers = np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid:
        return None
    finite = numbers[np.isfinite(numbers)]
    return finite if len(finite) == len(numbers) and (finite == np.floor(finite)).all() else None


def _has_day_and_time(block: pa.RecordBatch, index: int) -> bool:
    """Whether this column begins with a day, and the next one with a time of day."""
    first = [str(column[0].as_py()).strip() for column in block.columns[index : index + 2] if len(column)]
    return len(first) == 2 and all(map(re.fullmatch, (DAY, f"{TIME_OF_DAY}{ZONE}?"), first))


def _split_cells(line: str, separator: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]


def _is_value(cell: str) -> bool:
    """Whether a cell belongs to a row of values, and not to a header."""
    return cell.lower() in {*_ABSENT, *_ABSENT_NUMBERS} or bool(re.fullmatch(_VALUE, cell))


def _find_separator(lines: list[str]) -> str:
    """Returns the separator that splits the first lines into equally many cells. If several separators do, it is the comma, unless
    another one splits the last line into values only: these may then have decimal commas."""
    by_separator = {separator: [_split_cells(line, separator) for line in lines] for separator in ",;\t"}
    candidates = [separator for separator, rows in by_separator.items() if rows and len(rows[0]) > 1]
    candidates = [separator for separator in candidates if len({*map(len, by_separator[separator])}) == 1] or candidates
    between_values = [
        separator for separator in candidates if separator != "," and all(map(_is_value, by_separator[separator][-1]))
    ]
    return (between_values or candidates or [","])[0]


def find_kinds(begin: Begin, options: CsvOptions, alike: Alike) -> dict[str, Any]:
    """Returns the type of each column: its type in the first file of the stream where a row has a value for it; float64 if all files
    have none. Reads each file once, for all columns together."""
    missing = {*begin.keys} - alike.kinds.keys()
    texts: set[str] = set()
    for file in alike.files if missing else ():
        with suppress(SourceError, OSError, pa.ArrowInvalid, StopIteration):  # reported when the file is read
            other = read_begin(file, options)
            columns = {key: number for key, number in zip(other.keys, other.numbers, strict=True) if key in missing}
            kinds = {key: type_or_why_not(other.block[number]) for key, number in columns.items()}
            if empty_in_block := {key: columns[key] for key, kind in kinds.items() if kind is None}:
                cells = read_cells(other, [*empty_in_block.values()])
                kinds |= {key: type_or_why_not(cells[number]) for key, number in empty_in_block.items()}
                for key, number in empty_in_block.items():
                    if kinds[key] is None and not pc.all(is_empty(cells[number])).as_py():
                        texts.add(key)
            alike.kinds |= {key: kind for key, kind in kinds.items() if kind is not None}
            missing -= alike.kinds.keys()
        if not missing:
            break
    alike.kinds |= {key: "text" if key in texts else pa.float64() for key in missing}
    return alike.kinds


def refuse_decimal_commas(begin: Begin, number: str) -> None:
    """Raises if most cells of a column are numbers, and some have a decimal comma or a comma between thousands."""
    column = begin.block[number]
    if not pa.types.is_string(column.type):
        return
    cells = pc.utf8_trim_whitespace(column)
    filled = cells.filter(pc.invert(is_absent(cells)))
    commas = filled.filter(pc.match_substring_regex(filled, f"^{_DECIMAL_COMMA}$"))
    numbers = pc.sum(pc.match_substring_regex(filled, f"^{NUMBER}$")).as_py() or 0
    if len(commas) and 2 * (len(commas) + numbers) >= len(filled):
        hint = "write numbers without commas"
        if begin.separator != ",":
            hint = "`tr , . < in.csv > out.csv` turns all commas of a file into points"
        raise SourceError(
            f"{begin.file}: {begin.label(number)}: expected decimal points, got {commas[0].as_py()!r}; {hint}"
        )


def is_empty(cells: pa.Array) -> pa.Array:
    """Whether each cell is empty or one of pyarrow's words for no value. Blanks around cells are not stripped."""
    return pc.is_in(pc.utf8_lower(cells), pa.array([*_ABSENT]))


def is_absent(cells: pa.Array) -> pa.Array:
    """Whether each cell means no value in a column of numbers. Blanks around cells are not stripped."""
    return pc.is_in(pc.utf8_lower(cells), pa.array([*_ABSENT, *_ABSENT_NUMBERS]))


def type_or_why_not(column: pa.Array) -> Any:
    """Returns the type of a column, float64 or bool; or the reason why it cannot be numbers, such as "text"; None if it is empty."""
    if pa.types.is_null(column.type):
        return None
    if pa.types.is_boolean(column.type):
        return pa.bool_()
    if pa.types.is_integer(column.type):
        bounds = pc.min_max(column).as_py()
        if max(-bounds["min"], bounds["max"]) > 2**53:
            return "whole numbers beyond 2^53 do not fit float64"
    elif pa.types.is_string(column.type):
        # A column of numbers with a few bad cells is not text: reading it will stop at the first bad cell.
        cells = pc.utf8_trim_whitespace(column)
        filled = cells.filter(pc.invert(is_absent(cells)))
        if not len(filled):
            return None
        for pattern, kind in ((f"{NUMBER}|[+-]?inf", pa.float64()), ("true|false", pa.bool_())):
            count = pc.sum(pc.match_substring_regex(filled, f"^({pattern})$", ignore_case=True)).as_py()
            if count and 2 * count >= len(filled):
                return kind
        return "text"
    elif not pa.types.is_floating(column.type):
        return "text"
    return pa.float64()


def read_cells(begin: Begin, numbers: list[str]) -> pa.Table:
    """Returns all cells of these columns as text."""
    types = dict.fromkeys(numbers, pa.string())
    return begin.read(pa_csv.ConvertOptions(column_types=types, include_columns=numbers)).combine_chunks()


def refuse_rounded_numbers(begin: Begin, number: str) -> None:
    """Raises if a column of whole numbers has some that float64 does not hold. Reads the column's cells anew, as text."""
    cells = pc.utf8_trim_whitespace(read_cells(begin, [number])[number])
    absent = is_absent(cells)
    if not pc.all(pc.match_substring_regex(cells.filter(pc.invert(absent)), r"^[+-]?\d+$")).as_py():
        return
    for row, (cell, no_value) in enumerate(zip(cells.to_pylist(), absent.to_pylist(), strict=True)):
        if not no_value and Decimal(cell) != Decimal(float(cell)):
            raise SourceError(
                f"{begin.file}: line {row + 1 + begin.skipped}: column {begin.name(number)}: whole numbers beyond 2^53 do not fit "
                f"float64, got {cell}"
            )
