"""Reads CSV logs: a folder with CSV files is an episode, and each file a stream, which has the name of its stem. One column is its
clock.

Stamps are decimal numbers or ISO 8601 and become int64 nanoseconds without passing through float64. A column that names
images beside the file, as EuRoC's logs do, is a camera.
"""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from .._printable import ranges
from ..errors import FileError
from ..feature_words import scattered, words_of
from .csv_begin import (
    LONGEST_LINE,
    Alike,
    Begin,
    find_alike,
    find_kinds,
    is_absent,
    is_empty,
    read_begin,
    read_cells,
    refuse_decimal_commas,
    refuse_rounded_numbers,
    type_or_why_not,
)
from .files import Ahead, check_file, look_through, natural, read_whole
from .formats.csv import SUFFIXES, CsvOptions, is_csv
from .images import Images, Kinds
from .methods import MOST_SUBJECTS, NO_SUBJECT, WORDS_OF_IDS, WORDS_OF_SUBJECTS, Ids, with_held
from .recording import Frames, Notes, Recording, Rows, SourceError, Texts, as_utf8, naming
from .stamps import (
    DATE,
    DAY,
    IN_A_SECOND,
    NUMBER,
    TIME_OF_DAY,
    UNITS,
    ZONE,
    declares_unit,
    join_day_and_time,
    join_seconds,
    names_a_sensor_s_clock,
    names_a_time,
    read_stamps,
    why_unit,
)

_STAMP = f"{NUMBER}|{DATE}{ZONE}?|{DAY}|{TIME_OF_DAY}{ZONE}?"
# Matches a line in which each cell is either wholly in quotes or has no quotes.
_WHOLE_LINE = re.compile(rb'(?:"[^"\r\n]*"|[^",\r\n]*)(?:,(?:"[^"\r\n]*"|[^",\r\n]*))*\r?\n')
# The names of columns that declare the zone of another column's times, and names of clocks that include a zone.
_ZONE_COLUMN = re.compile(r"((time|utc|gmt|tz)[ _-]?)?(zone|off(set)?)|tz(info)?", re.IGNORECASE)
_ZONE_IN_NAME = re.compile(r"(utc|gmt) ?[+-] ?\d|(^|[^a-z])(local|cest|cet|[ecmp][sd]t|jst)([^a-z]|$)", re.IGNORECASE)
# How many rows of all columns are copied at once, so that the processor's cache holds them.
_ROWS_AT_ONCE = 2048
# Between rows of different subjects, a column must jump by this many times its step between rows of one subject.
_JUMP = 5
# How many first rows are examined, to rule out columns with too many values for subjects before all rows are.
_FIRST_ROWS = 4096


def read(source: Path, options: CsvOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every folder with CSV files."""
    root, listing = look_through(source, notes)
    files = [file for file in listing.files if file == source or is_csv(file)]
    if not files:
        raise FileError(f"{source}: expected CSV logs (*.csv, *.tsv), found none")
    files.sort(key=lambda file: (natural(file.parent), file.parent, natural(file)))
    for file in {*listing.files} - {*files}:
        notes.count("others", file.suffix or file.name)
    seen = _Seen()
    folders = [(folder, list(logs)) for folder, logs in groupby(files, key=lambda file: file.parent)]
    notes.total = len(folders)
    alike = find_alike(files, lambda file: file.stem)
    with Ahead(lambda file: read_log(file, options, alike[file.stem]), files) as read_logs:
        for folder, logs in folders:
            name = folder.relative_to(root).as_posix() if folder != root else os.path.basename(os.path.abspath(source))
            streams = _read_folder(logs, root, read_logs, options, alike, seen, notes)
            yield Recording(name, str(folder), {"name": name}, streams)


def finish(source: Path, options: CsvOptions, notes: Notes) -> None:
    """Reports the streams, and the files that were not read."""
    notes.tell(source, streams=notes.seen.get("streams", {}))
    report_files(notes, lambda suffix: "hidden" if suffix.lower() in SUFFIXES else "not CSV")


@dataclass
class _Seen:
    """The facts of earlier files: the layout of each stream, and the kind of each camera's frames."""

    layouts: dict[str, _Layout] = field(default_factory=dict)
    kinds: Kinds = field(default_factory=Kinds)


def _read_folder(
    files: list[Path],
    root: Path,
    read_logs: Ahead[_Log],
    options: CsvOptions,
    alike: dict[str, Alike],
    seen: _Seen,
    notes: Notes,
) -> Iterator[tuple[str, Rows | Texts | Frames]]:
    stems: dict[str, Path] = {}
    for file in files:
        what = str(file.relative_to(root))
        with notes.reading(what, file):
            if (first := stems.setdefault(file.stem, file)) != file:
                raise SourceError(
                    f"{file}: its stream {file.stem!r} has the name of {first.name}'s; rename one of the files"
                )
            layout, rows, time_ns, images, others, assumed = try_log(
                read_logs.read, file, options, alike[file.stem], what, file.stem, notes
            )
            for subject, reason in assumed:
                notes.assume(subject, reason, file.stem)
            known = seen.layouts.setdefault(file.stem, layout)
            notes.see("streams", file.stem, asdict(known))
            if layout != known:
                raise SourceError(
                    f"{file}: {layout}, but before it {known}; a cache of its own, in a list of Sources, takes the file"
                )
            for column, reason in layout.left_out.items():
                notes.leave_out(f"{file.stem}: {column}", reason)
            if layout.comments:
                notes.leave_out(
                    f"{file.stem}: comments", "lines that begin with '#', before the header or the first row"
                )
            attributes = layout.attributes
            streams: dict[str, Rows | Texts] = {}
            if rows is not None:
                streams[file.stem] = replace(rows, attributes={**rows.attributes, **attributes})
            for column, other in others.items():
                streams[f"{file.stem}.{column}"] = replace(other, attributes={**attributes, **other.attributes})
            for name, samples in streams.items():
                subjects = samples.attributes.get("subjects")
                if subjects is not None and not notes.gives_methods(name, 0, None):
                    why = (
                        f"{subjects} says that rows are of several subjects, so values are held between rows; write a file for "
                        "each subject to get a stream for each"
                    )
                    notes.leave_out(f"{name}: values between rows", why)
                    notes.assume(f"column {subjects!r}", "the subject of each row, by its name and its turns", name)
            yield from streams.items()
            if images:
                see_images(images, notes)
                camera = f"{file.stem}.{layout.images}"
                read = partial(read_image, images)
                frames = Images(camera, what, file, time_ns, "recorded", read).stored(options, seen.kinds, notes)
                if frames is not None:
                    yield camera, replace(frames, attributes=attributes)
            elif not streams:
                notes.leave_out(file.stem, "no column beside the clock")


def see_images(images: list[Image], notes: Notes) -> None:
    """Records the files of a camera, so that they are not reported as unread."""
    for image in images:
        if isinstance(image, Path) and os.path.lexists(image):
            notes.see("images", as_utf8(str(image)), image.suffix)


def read_image(images: list[Image], row: int) -> bytes:
    """Returns the file of a row's image.

    Raises:
        SourceError: the file cannot be read, or the row names none.
    """
    image = images[row]
    if isinstance(image, SourceError):
        raise image
    return read_whole(image)


@dataclass(frozen=True)
class _Layout:
    """The properties that all files of a stream share.

    columns: the names of the columns of numbers, or their indices if the file has no header.
    texts: the names of the columns of text.
    left_out: the columns that are not kept, and why.
    images: the name of the column that names images.
    clock: the label of the clock's columns.
    further: for each further clock, the names of its columns.
    comments: whether comments precede the header or the first row; it may differ between the files of a stream.
    """

    header: bool
    time_column: str | int
    time_unit: str
    columns: list[str]
    left_out: dict[str, str]
    images: str | None = None
    texts: list[str] = field(default_factory=list)
    clock: str = ""
    further: dict[str, list[str]] = field(default_factory=dict)
    comments: bool = field(default=False, compare=False)

    @property
    def attributes(self) -> dict[str, Any]:
        """Returns the attributes that the streams of the file share."""
        return {"clock_source": f"{self.clock}, {self.time_unit}"}

    def __str__(self) -> str:
        header = "" if self.header else "no header, "
        left_out = f", left out {self.left_out}" if self.left_out else ""
        images = f", images {self.images}" if self.images else ""
        images += f", texts {self.texts}" if self.texts else ""
        return f"{header}columns {self.columns}{left_out}{images}, clock {self.time_column!r} in {self.time_unit}"


# The file of a row's image, or the error if the row names none.
Image = Path | SourceError
# The result of read_log. Each assumption, in the last item, is a pair: its subject, and the reason.
_Log = tuple[_Layout, Rows | None, np.ndarray, list[Image], dict[str, Texts | Rows], list[tuple[str, str]]]


def try_log(
    read: Callable[[Path], _Log],
    file: Path,
    options: CsvOptions,
    alike: Alike,
    what: str,
    stream: str,
    notes: Notes,
) -> _Log:
    """Reads a file by `read`. If that fails only because of some rows, skips them and reports their lines."""
    lost: dict[int, str] = {}
    try:
        log = read(file)
    except SourceError as error:
        try:
            _check_utf8(file)
            log = read_log(file, options, alike, lost)
        except SourceError:
            raise error from None
        if not lost:
            raise
        notes.skip(f"{what}: line{'s' * (len(lost) > 1)} {ranges(sorted(lost), 5)}", error)
    if _is_cut(file):
        notes.count("cut", stream)
        notes.see("cut", stream, what)
    return log


def _check_utf8(file: Path) -> None:
    """Refuses bytes that are no UTF-8. It must be called before pyarrow passes bad rows to Python as texts: an error there is lost."""
    check_file(file)
    decode = codecs.getincrementaldecoder("utf-8")().decode
    with naming(file), file.open("rb") as content:
        while chunk := content.read(1 << 20):
            decode(chunk)
        decode(b"", True)


def _is_cut(file: Path) -> bool:
    """Whether the file has several lines and no line end after the last: its last number may then lack digits."""
    with file.open("rb") as content:
        lines = content.read(LONGEST_LINE)
        content.seek(-1, os.SEEK_END)
        return content.read(1) not in b"\r\n" and b"\n" in lines


def report_files(notes: Notes, why: Callable[[str], str]) -> None:
    """Reports files that may have been cut off, and files that were not read, with the reason by their suffix."""
    for stream, count in sorted(notes.counts.get("cut", {}).items()):
        first = notes.seen["cut"][stream]
        files = f"{first} ends" if count == 1 else f"{count} files end ({first} is the first)"
        notes.leave_out(
            f"{stream}: rows that may follow the end",
            f"{files} without a line end, as a file that was cut off: the last number may lack digits",
        )
    others = Counter(notes.counts.get("others", {}))
    others.subtract(Counter(notes.seen.get("images", {}).values()))
    for suffix, count in sorted((+others).items()):
        notes.leave_out(f"*{suffix}", f"{why(suffix)}: {count} file{'s' * (count > 1)}")


def read_log(file: Path, options: CsvOptions, alike: Alike, lost: dict[int, str] | None = None) -> _Log:
    """Reads a file. Returns its layout; its rows, float64 [rows, columns], or None if only the clock is numeric; its stamps; the
    images that a column names; streams of texts, without empty cells, and of further clocks; and the assumptions.

    lost: receives the lines that cannot be read, with reasons, if they are at most half of all; if None, such a line raises.
    """
    kept: list[str] = []  # the columns of numbers, by index as text, as `begin.numbers` has them
    texts: list[str] = []
    left_out: dict[str, str] = {}
    images, folder = None, None
    try:
        begin = read_begin(file, options, lost)
        header, numbers = begin.header, begin.numbers
        clock = [numbers[number] for number in begin.clock]
        types: dict[str, Any] = dict.fromkeys(clock, pa.string())
        for number in numbers:
            if number in clock:
                continue
            cells = begin.block[number]
            kind = type_or_why_not(cells)
            if kind is None:
                with alike.lock:
                    kind = find_kinds(begin, options, alike)[begin.keys[int(number)]]
            refuse_decimal_commas(begin, number)
            if kind == "text":
                types[number] = pa.string()
                if folder is None and (folder := _find_image_folder(file, cells)):
                    images = number
                else:
                    texts.append(number)
            elif isinstance(kind, str):
                left_out[begin.label(number)] = kind
            else:
                types[number] = kind
                kept.append(number)
        assumed: list[tuple[str, str]] = []
        table = _read_table(begin, types, assumed) if lost is None else _read_good_rows(begin, types, lost, assumed)
    except (pa.ArrowInvalid, StopIteration) as error:
        raise SourceError(f"{file}: {str(error) or 'no rows'}") from error
    if header:
        kept = _join_rotations(kept, begin, left_out)
    if len(table) == 0:
        raise SourceError(f"{file}: no rows")
    if lost is None:
        _check_quotes(begin, len(table))

    further = _find_further_clocks(begin, table, [*kept, *texts], options, assumed)
    if further and lost is not None:
        raise SourceError(f"{file}: lines that cannot be read, in a file of several clocks")
    others: dict[str, Texts | Rows] = {}
    main = min(clock, key=int)
    if further:
        clock_of = {number: _find_clock(number, main, further) for number in (*kept, *texts) if number not in further}
        for other, stamps in further.items():
            clock_numbers, clock_texts = (
                [number for number in columns if clock_of.get(number) == other] for columns in (kept, texts)
            )
            others |= _read_further(begin, table, stamps, other, clock_numbers, clock_texts, types)
        kept, texts = ([number for number in columns if clock_of.get(number) == main] for columns in (kept, texts))
        table = table.filter(pc.not_equal(pc.utf8_trim_whitespace(table[main]), ""))
    time_ns, unit = _read_clock(begin, table, options)
    assumed += _assume_clock(begin, time_ns, unit, options)
    text_names = [begin.name(number) for number in texts]
    if len({*text_names}) < len(text_names):
        text_names = texts
    layout = _Layout(
        header,
        begin.clock[0] if options.time_column is None else options.time_column,
        unit,
        [begin.name(number) for number in kept],
        left_out,
        None if images is None else begin.name(images),
        text_names,
        " and ".join(map(begin.label, clock)),
        {name: rows.names or [] for name, rows in others.items() if isinstance(rows, Rows)},
        begin.comments,
    )
    texts_of_main = {name: _read_texts(table[number], time_ns) for name, number in zip(text_names, texts, strict=True)}
    paths = [_find_image(file, folder, cell) for cell in table[images].to_pylist()] if folder and images else []
    rows = None
    if kept:
        rows = _read_rows(begin, table, time_ns, kept, texts, types)
        if unit == "s" and options.time_unit is None:
            _refuse_seconds_alone(begin, kept, time_ns, rows.values)
    return layout, rows, time_ns, paths, {**texts_of_main, **others}, assumed


def _read_rows(
    begin: Begin, table: pa.Table, time_ns: np.ndarray, numbers: list[str], texts: list[str], types: dict[str, Any]
) -> Rows:
    """Returns the columns `numbers` as float64 rows. The columns `texts` have the same clock; one of them may name each row's subject."""
    values = np.empty((len(table), len(numbers)))
    columns = [table[number].cast(pa.float64()).to_numpy() for number in numbers]
    for first in range(0, len(values), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        for feature, column in enumerate(columns):
            values[part, feature] = column[part]
    for number, column in zip(numbers, columns, strict=True):
        if max(np.fmax.reduce(column), -np.fmin.reduce(column)) >= 2**53:
            refuse_rounded_numbers(begin, number)
    attributes = _choose_methods(
        values,
        [begin.label(number) for number in numbers],
        [types[number] for number in numbers],
        {begin.label(number): table[number] for number in texts},
    )
    names = [begin.name(number) for number in numbers] if begin.header else None
    return Rows(time_ns, values, names, attributes=attributes | begin.units_of(numbers))


def _choose_methods(
    values: np.ndarray, names: list[str], types: list[Any], texts: Mapping[str, pa.ChunkedArray]
) -> dict[str, Any]:
    """Returns the attributes `methods` and `subjects`. Columns of bools are held between rows instead of interpolated. If a column of
    `names` or `texts` distinguishes several subjects, all columns are held, and `subjects` is its name."""
    columns = dict(zip(names, values.T, strict=True))
    is_bool = [pa.types.is_boolean(type) for type in types]
    candidates: dict[str, np.ndarray] = {name: _number_texts(column) for name, column in texts.items()}
    if len(names) > 1:
        numbers = zip(columns.items(), is_bool, strict=False)
        candidates |= {name: _number_whole_values(column) for (name, column), holds_bools in numbers if not holds_bools}
    for name, codes in sorted(candidates.items(), key=lambda item: words_of(item[0]).isdisjoint(WORDS_OF_IDS)):
        ids, words = Ids.of(codes), words_of(name)
        names_no_subject = any(map(NO_SUBJECT.fullmatch, words))
        if ids.recur and not names_no_subject and not words.isdisjoint(WORDS_OF_IDS):
            return {"methods": [[0, len(names), "previous"]], "subjects": name}
        if name in texts:
            takes_turns = ids.take_strict_turns or (
                not names_no_subject and ids.is_few and 10 * ids.changes >= len(codes)
            )
        else:  # a measurement may have a few whole values too
            takes_turns = not names_no_subject and (
                ids.take_strict_turns or (ids.take_turns and bool(words) and words <= WORDS_OF_SUBJECTS)
            )
        if takes_turns:
            others = [column for other, column in columns.items() if other != name and np.ptp(column) > 0]
            if others and 2 * sum(_jumps(column, codes) for column in others) >= len(others):
                return {"methods": [[0, len(names), "previous"]], "subjects": name}
    methods = with_held([], is_bool)
    return {"methods": methods} if methods else {}


def _number_texts(column: pa.ChunkedArray) -> np.ndarray:
    """Returns for each row the index of its text among the column's distinct texts; empty if these are too many for subjects."""
    if len(pc.unique(column.slice(0, _FIRST_ROWS))) > MOST_SUBJECTS:
        return np.empty(0, np.int64)
    encoded = column.combine_chunks().dictionary_encode()
    has_codes = len(encoded.dictionary) <= MOST_SUBJECTS and not encoded.null_count
    return np.asarray(encoded.indices) if has_codes else np.empty(0, np.int64)


def _number_whole_values(column: np.ndarray) -> np.ndarray:
    """Returns for each row the index of its number among the column's distinct numbers; empty if some number is not whole, or these are
    too many for subjects."""
    for part in (column[:_FIRST_ROWS], column):
        if not (np.isfinite(part).all() and (part == np.floor(part)).all()):
            return np.empty(0, np.int64)
        distinct, codes = np.unique(part, return_inverse=True)
        if len(distinct) > MOST_SUBJECTS:
            return np.empty(0, np.int64)
    return codes


def _jumps(column: np.ndarray, subjects: np.ndarray) -> bool:
    """Whether a column jumps between rows of different subjects, compared with its steps between rows of one subject."""
    order = np.argsort(subjects, kind="stable")
    has_same_subject = np.diff(subjects[order]) == 0
    within = np.abs(np.diff(column[order]))[has_same_subject]
    across = np.abs(np.diff(column))[np.diff(subjects) != 0]
    within, across = within[np.isfinite(within)], across[np.isfinite(across)]
    return len(within) > 1 and len(across) > 1 and bool(np.median(across) > _JUMP * np.median(within))


# ---- several clocks ----


def _find_further_clocks(
    begin: Begin, table: pa.Table, numbers: list[str], options: CsvOptions, assumed: list[tuple[str, str]]
) -> dict[str, tuple[pa.Array, np.ndarray, str]]:
    """Returns for each column that is a further clock: which rows have a stamp of it, the stamps, and their unit.

    A further clock has the name of a time, and its stamps do not step back. Either it fills other rows than the first clock, or it
    has another rate than the first clock, and its name says that it is the clock of the columns after it.

    assumed: receives a note for each column that is a further clock, and for each that could be one but is taken as a value.
    """
    times = [number for number in numbers if begin.header and names_a_time(begin.names[int(number)])]
    if not times:
        return {}
    first = begin.numbers[min(begin.clock)]
    cells = read_cells(begin, [first, *times])
    filled = {number: ~is_absent(pc.utf8_trim_whitespace(cells[number])).to_numpy() for number in cells.column_names}
    clocks = {}
    for index, number in enumerate(times):
        rows, name = filled[number], begin.names[int(number)]
        if len(cells) != len(table) or rows.sum() < 2:
            continue
        with suppress(SourceError):  # a column that is no time is no clock
            time_ns, unit = _read_filled_stamps(begin, cells, number, rows, options)
            if (np.diff(time_ns) < 0).any() or time_ns[-1] == time_ns[0]:
                continue
            end = times[index + 1] if index + 1 < len(times) else begin.numbers[-1]
            followers = [begin.names[int(other)] for other in numbers if int(number) < int(other) <= int(end)]
            if not np.array_equal(rows, filled[first]):
                is_clock = _has_own_rows(begin, table, rows, filled[first], time_ns, options)
            elif _has_another_rate(time_ns, _read_clock(begin, table, options)[0]):
                is_clock = names_a_sensor_s_clock(name, begin.names[int(first)], followers)
            else:
                continue
            if is_clock:
                clocks[number] = pa.array(rows), time_ns, unit
                assumed.append((f"clock {name!r}", f"of the columns behind it, by its name and its times, in {unit}"))
            else:
                assumed.append((f"column {name!r}", "a value, not a clock of the columns behind it"))
    return clocks


def _has_own_rows(
    begin: Begin, table: pa.Table, rows: np.ndarray, main: np.ndarray, time_ns: np.ndarray, options: CsvOptions
) -> bool:
    """Whether a column of times is a clock, by the rows that it fills: some rows without the main clock, or only the first rows of the
    file, or any rows in which its delay to the main clock is nearly constant.

    rows, main: which rows the column and the main clock fill, bool [rows]. time_ns: the column's stamps.
    """
    fills_first_rows_only = rows[: int(rows.sum())].all()
    if (rows & ~main).any() or fills_first_rows_only:
        return True
    main_ns, _ = _read_clock(begin, table.filter(pa.array(rows)), options)
    delays = time_ns - main_ns
    return bool(np.ptp(delays) <= 0.05 * np.ptp(main_ns))


def _read_filled_stamps(
    begin: Begin, cells: pa.Table, number: str, rows: np.ndarray, options: CsvOptions
) -> tuple[np.ndarray, str]:
    name, line = begin.names[int(number)], 1 + begin.skipped
    return read_stamps(cells[number].filter(pa.array(rows)), name, options.time_unit, begin.file, line)


def _has_another_rate(time_ns: np.ndarray, first_ns: np.ndarray) -> bool:
    """Whether stamps begin near those of the first clock and continue at another rate."""
    span, first_span = int(time_ns[-1] - time_ns[0]), int(first_ns[-1] - first_ns[0])
    begins_near = abs(int(time_ns[0]) - int(first_ns[0])) < max(span, first_span)
    return begins_near and bool((np.diff(time_ns) > 0).all()) and abs(span - first_span) > 0.05 * first_span


def _find_clock(number: str, main: str, further: Iterable[str]) -> str:
    """Returns the clock of a column: the last clock before it; the main clock if there is none before it."""
    earlier = [clock for clock in (main, *further) if int(clock) < int(number)]
    return max(earlier, key=int, default=main)


def _read_further(
    begin: Begin,
    table: pa.Table,
    clock: tuple[pa.Array, np.ndarray, str],
    column: str,
    numbers: list[str],
    texts: list[str],
    types: dict[str, Any],
) -> dict[str, Texts | Rows]:
    """Returns the streams of the further clock in `column`, from the columns between it and the next clock. The columns of numbers
    become one stream with the clock's name."""
    filled, time_ns, unit = clock
    table = table.filter(filled)
    source = {"clock_source": f"{begin.label(column)}, {unit}"}
    streams: dict[str, Texts | Rows] = {
        begin.name(number): replace(_read_texts(table[number], time_ns), attributes=source) for number in texts
    }
    if numbers:
        rows = _read_rows(begin, table, time_ns, numbers, texts, types)
        streams[begin.name(column)] = replace(rows, attributes=source | dict(rows.attributes))
    return streams


def _join_rotations(kept: list[str], begin: Begin, left_out: dict[str, str]) -> list[str]:
    """Returns the columns in an order in which the four of a quaternion are neighbours, so that it is interpolated as a rotation."""
    labels = [begin.label(number) for number in kept]
    followers: dict[int, list[int]] = {}
    for quaternion in scattered(labels):
        followers[quaternion[0]] = quaternion[1:]
        left_out["the order of columns"] = (
            f"{', '.join(labels[i] for i in quaternion)} are one rotation, and are put side by side"
        )
    moved = {number for numbers in followers.values() for number in numbers}
    order = [i for first in range(len(kept)) if first not in moved for i in (first, *followers.get(first, ()))]
    return [kept[i] for i in order]


def _read_clock(begin: Begin, table: pa.Table, options: CsvOptions) -> tuple[np.ndarray, str]:
    """Returns the stamps as int64 nanoseconds, and their unit."""
    first_line = 1 + begin.skipped
    columns = [table[begin.numbers[number]] for number in begin.clock]
    if begin.fraction:
        return join_seconds(columns[0], columns[1], begin.fraction, begin.file, first_line)
    stamps = columns[0] if len(columns) == 1 else join_day_and_time(*columns)
    return read_stamps(
        stamps, begin.names[begin.clock[0]] if begin.header else "", options.time_unit, begin.file, first_line
    )


def _assume_clock(begin: Begin, time_ns: np.ndarray, unit: str, options: CsvOptions) -> Iterator[tuple[str, str]]:
    """Yields the assumptions about the clock's column, unit and zone, where the file does not declare them."""
    name = begin.names[begin.clock[0]] if begin.header else ""
    what = f"clock {' and '.join(repr(begin.label(begin.numbers[number])) for number in begin.clock)}"
    if begin.why:
        yield what, begin.why
    if begin.fraction:
        yield what, f"one stamp of seconds and {unit.rpartition(' ')[2]}, by their names"
    elif unit.endswith("read as UTC"):
        columns = (
            [name]
            if _ZONE_IN_NAME.search(name)
            else [column for column in begin.names if _ZONE_COLUMN.fullmatch(column.strip())]
        )
        why = "since it says no zone"
        if begin.header and columns:
            why = f"though {columns[0]!r} may say another zone: write it behind each time, as in 13:45:00+02:00"
        yield what, f"UTC, {why}"
    elif options.time_unit is None and unit in UNITS and not declares_unit(name):
        yield what, why_unit(name, unit, time_ns)


def _refuse_seconds_alone(begin: Begin, kept: list[str], time_ns: np.ndarray, values: np.ndarray) -> None:
    """Raises if stamps are whole seconds that repeat, and another column counts through each second as their fraction would."""
    steps = np.diff(time_ns)
    if (time_ns % 10**9).any() or (steps > 0).all() or not (steps > 0).any():
        return
    for number, column in zip(kept, values.T, strict=True):
        if not (np.isfinite(column).all() and (column >= 0).all() and (column == np.floor(column)).all()):
            continue
        most = column.max()
        unit = next((unit for unit, limit in IN_A_SECOND.items() if limit / 2 <= most < limit), None)
        if unit is None:
            continue
        within = column.astype(np.int64) * (10**9 // IN_A_SECOND[unit])
        if (np.diff(time_ns + within) > 0).all() and (np.diff(within) < 0).any():
            raise SourceError(
                f"{begin.file}: {begin.label(begin.numbers[begin.clock[0]])} is whole seconds that repeat, and "
                f"{begin.label(number)} looks like the {unit} within them; a header that calls them stamp_s and stamp_{unit} "
                "makes them one clock, time_unit s takes the seconds alone"
            )


def _read_texts(column: pa.ChunkedArray, time_ns: np.ndarray) -> Texts:
    filled = pc.not_equal(column, "")
    return Texts(time_ns[filled.to_numpy()], column.filter(filled).to_pylist())


def _read_table(begin: Begin, types: dict[str, Any], assumed: list[tuple[str, str]]) -> pa.Table:
    """Reads the whole file with all threads. If that fails, reads it as texts, and takes some words in columns of numbers as NaN. If
    that fails too, reads it with one thread, so that the error names the row."""
    convert = pa_csv.ConvertOptions(column_types=types, include_columns=list(types))
    with suppress(pa.ArrowInvalid):
        return begin.read(convert, use_threads=True)
    cells = read_cells(begin, list(types))
    columns = {number: cells[number] for number in types}
    notes: list[tuple[str, str]] = []
    for number, kind in types.items():
        if kind != pa.string():
            trimmed = pc.utf8_trim_whitespace(cells[number])
            absent = is_absent(trimmed)
            notes += _note_absent_words(begin, number, trimmed.filter(absent))
            convert.null_values += pc.unique(cells[number].filter(absent)).to_pylist()
            columns[number] = pc.if_else(absent, pa.scalar(None, pa.string()), trimmed)
    with suppress(pa.ArrowInvalid):
        table = pa.table({number: column.cast(types[number]) for number, column in columns.items()})
        assumed += notes
        return table
    return begin.read(convert)


def _note_absent_words(begin: Begin, number: str, cells: pa.ChunkedArray) -> Iterator[tuple[str, str]]:
    """Yields a note on the words in a column that are taken as NaN, except those that pyarrow itself takes as no value."""
    words = cells.filter(pc.invert(is_empty(cells)))
    if len(words):
        counts = sorted(pc.value_counts(words).to_pylist(), key=lambda count: -count["counts"])
        examples = [f"{count['values']!r} ({count['counts']})" for count in counts[:4]] + ["..."] * (len(counts) > 4)
        yield f"column {begin.label(number)!r}", f"NaN in {len(words)} rows: {', '.join(examples)}"


def _read_good_rows(
    begin: Begin, types: dict[str, Any], lost: dict[int, str], assumed: list[tuple[str, str]]
) -> pa.Table:
    """Returns the rows that have as many cells as the first row, and in which each cell has its column's type."""
    assert begin.lost is not None
    begin.lost.clear()
    cells = read_cells(begin, list(types))
    _check_quotes(begin, len(cells) + len(begin.lost))
    lost |= begin.lost
    rows = np.arange(len(cells))
    kept_before_lost = np.sort([*lost]).astype(np.int64) - 1 - begin.skipped - np.arange(len(lost))
    lines = 1 + begin.skipped + rows + np.searchsorted(kept_before_lost, rows, "right")
    good = np.ones(len(cells), bool)
    columns: dict[str, Any] = {}
    for number, kind in types.items():
        column = cells[number].combine_chunks()
        trimmed = pc.utf8_trim_whitespace(column)
        if kind == pa.string():
            columns[number] = column
            pattern = _STAMP if int(number) in begin.clock else ".*"
            fits = pc.match_substring_regex(trimmed, f"^({pattern})$")
        else:
            absent = is_absent(trimmed)
            assumed += _note_absent_words(begin, number, trimmed.filter(absent))
            columns[number] = pc.if_else(absent, pa.scalar(None, pa.string()), trimmed)
            pattern = "true|false|0|1" if kind == pa.bool_() else f"{NUMBER}|[+-]?inf(inity)?"
            fits = pc.or_(absent, pc.match_substring_regex(trimmed, f"^({pattern})$", ignore_case=True))
        good &= fits.to_numpy(zero_copy_only=False)
    lost.update(dict.fromkeys(lines[~good].tolist(), "a cell of another type than its column"))
    if not good.any() or len(lost) > good.sum():
        raise SourceError(f"{begin.file}: {len(lost)} of {len(lost) + good.sum()} rows cannot be read")
    return pa.table({number: column.filter(pa.array(good)).cast(types[number]) for number, column in columns.items()})


def _check_quotes(begin: Begin, rows: int) -> None:
    """Raises if an unclosed quote has joined several lines to one row."""
    file = begin.file
    with file.open("rb") as content:
        # Often only the names have quotes: the search for quotes begins behind a first line that is whole.
        if not _WHOLE_LINE.fullmatch(content.readline(1 << 16)):
            content.seek(0)
        chunks = iter(partial(content.read, 1 << 20), b"")
        if not any(b'"' in chunk for chunk in chunks):
            return
        content.seek(0)
        lines, last = 0, b""
        for chunk in iter(partial(content.read, 1 << 20), b""):
            lines, last = lines + chunk.count(b"\n"), chunk[-1:]
    if rows + begin.skipped >= lines + (last != b"\n"):
        return
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        lines_before = begin.skipped - begin.header - bool(begin.units)
        for _ in range(lines_before):
            text.readline()
        reader = csv.reader(text, strict=True, delimiter=begin.separator)
        line = 1 + lines_before
        try:
            for _ in reader:
                line = 1 + lines_before + reader.line_num
        except csv.Error as error:
            raise SourceError(f"{file}: line {line}: expected a quote to be closed behind its cell: {error}") from error


def _find_image_folder(file: Path, cells: pa.Array) -> Path | None:
    """Returns the folder of the images that the first cells name: the file's folder, or the folder beside it that has its stem; None if
    no cell names an image there."""
    if not pa.types.is_string(cells.type):  # dates, or no UTF-8
        return None
    names = [Path(cell.strip()) for cell in cells.slice(0, 1000).to_pylist() if cell]
    if not names or names[0].suffix.lower() not in (".png", ".jpg", ".jpeg"):
        return None
    names_below = [name for name in names if not name.is_absolute() and ".." not in name.parts]
    folders = (file.parent, file.parent / file.stem)
    return next((folder for name in names_below for folder in folders if os.path.lexists(folder / name)), None)


def _find_image(file: Path, folder: Path, cell: str | None) -> Image:
    """Returns the image of a row by the cell that names it; a log may only name images below `folder`."""
    name = Path((cell or "").strip())  # a space may follow the comma
    if name == Path() or name.is_absolute() or ".." in name.parts:
        return SourceError(f"{file}: expected the name of an image in {folder}, got {cell!r}")
    return folder / name
