"""Converts stamps in text, decimal numbers or ISO 8601, to int64 nanoseconds without passing through float64."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import Error
from .recording import SourceError

# A unit is 10 to this power of nanoseconds.
UNITS = {"s": 9, "ms": 6, "us": 3, "ns": 0}
# How often a unit is in a second.
IN_A_SECOND = {"ms": 10**3, "us": 10**6, "ns": 10**9}
# Matches a word for a unit in a column's name. The sign of micro is U+03BC here, see `_normalize`.
_UNIT = r"(?P<ns>ns|nsecs?|nano\w*)|(?P<us>[uμ]s|[uμ]secs?|micro\w*)|(?P<ms>ms|msecs?|milli\w*)|(?P<s>s|secs?|seconds?)"
# Matches such a word at the end of a name: "timestamp [ns]", "t_rel_s", "time (msec)".
_UNIT_IN_NAME = re.compile(rf"(?<![a-zμ])(?:{_UNIT})[\])]?$")
_UNIT_WORD = re.compile(_UNIT)
# Matches units that are not supported, and multiples as in "time_100ns".
_OTHER_UNIT = re.compile(
    r"(?<![a-z])(?:ps|pico\w*|mins?|minutes?|h|hrs?|hours?|days?|weeks?|years?|ticks?|\d+ ?(?:[num]?s|μs))[\])]?$"
)
# Matches brackets at the end of a name; a unit in them is declared.
_DECLARED = re.compile(r"[\[(][^\])]*[\])]$")
# The next four patterns split a name into words. "timeMs" and "TimeMS" give time and ms; "bootTimeuS" and "time_mSec" keep their
# units whole, too.
_PREFIXED = re.compile(r"(?<=[a-z])(?=[num]S(?:ecs?)?(?![a-zA-Z]))")
_CAMEL = re.compile(r"(?<=[a-z])(?<!(?<![A-Za-z])[nmu])(?=[A-Z])")
_WORD = re.compile(r"[num]S(?:ecs?)?(?![a-zA-Z])|[A-Z]?[a-zμ]+|[A-Z]+(?![a-zμ])")
_TWO_WORDS = re.compile(r"(milli|micro|nano|[mnuμ])[ _-]?(secs?|seconds?)")
# Matches a time and its unit in one word: "timems", "timestampus".
_TIME_AND_UNIT = re.compile(
    r"(?:time|timestamp|stamp|ts?|elapsed|uptime|clock)([nmuμ]s|[nmuμ]?secs?)|([nmuμ]s|[nmuμ]?secs?)(?:time|timestamp|stamp|elapsed)"
)
# Matches words for units that are not supported, anywhere in a name.
_LONG_UNIT = re.compile(r"minutes?|hours?|hrs|days?|weeks?|years?|ticks?|pico\w*|jiffies")
# A unit that only a name shows must give rows at 1 Hz to 10 kHz; decimal numbers may have steps of up to 10 s.
_SHORTEST_STEP_S, _LONGEST_STEP_S, _LONGEST_DECIMAL_STEP_S = 0.9e-4, 1.5, 10.0
_SINCE_2001_NS = 10**18
_EXACT = Context(prec=1000, rounding=ROUND_HALF_EVEN)
# Matches a decimal number. Five digits are enough for any exponent.
NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,5})?"
DAY = r"\d{4}-\d\d-\d\d"
TIME_OF_DAY = r"\d\d:\d\d(:\d\d([.,]\d{1,9})?)?"
DATE = f"{DAY}[T ]{TIME_OF_DAY}"
ZONE = r"(Z|[+-]\d\d(:?\d\d)?)"
_TIME = (
    "a decimal number or all in ISO 8601 as 2024-05-31T13:45:00.123Z, its time in the next column or behind its date"
)
# Arrow reads decimal numbers of up to this many characters correctly. It silently overflows its 128 bits with 40 digits, and the
# number of its digits with an exponent.
_EXACT_CHARACTERS = 36


def join_day_and_time(days: pa.ChunkedArray, times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Joins a column of days and a column of times into a column of ISO 8601."""
    return pc.binary_join_element_wise(pc.utf8_trim_whitespace(days), pc.utf8_trim_whitespace(times), "T")


def read_stamps(
    column: pa.ChunkedArray, name: str, unit: str | None, file: Path, first_line: int
) -> tuple[np.ndarray, str]:
    """Returns a column's stamps as int64 nanoseconds, rounded half to even, and their unit.

    unit: as the user gave it; None to find it by the column's name and values.
    """
    numbers = _parse_whole_numbers(column.combine_chunks())
    if numbers is not None:
        unit = unit or _find_unit(name, numbers.astype(np.float64), file, is_whole=True)
        exact = _multiply(numbers, 10 ** UNITS[unit])
        if exact is not None:
            return exact, unit
    text = pc.utf8_trim_whitespace(column.combine_chunks())
    if re.fullmatch(f"{DATE}{ZONE}?", text[0].as_py()):
        return _read_dates(text, file, first_line)
    bad = np.flatnonzero(~pc.match_substring_regex(text, f"^{NUMBER}$").to_numpy(zero_copy_only=False))
    if len(bad):
        cell = text[bad[0]].as_py()
        raise SourceError(f"{file}: line {bad[0] + first_line}: expected a time, {_TIME}, got {cell!r}")
    rounded = text.cast(pa.float64()).to_numpy()
    if unit is None:
        has_fractions = pc.any(pc.match_substring_regex(text, "[.eE]")).as_py()
        unit = _find_unit(name, rounded, file, is_whole=not has_fractions)
    largest = float(np.abs(rounded).max())  # a Python float, because numpy would warn of an overflow
    if largest * 10.0 ** UNITS[unit] > 1e19:
        raise SourceError(
            f"{file}: a time of {rounded[np.abs(rounded).argmax()]:g} {unit} does not fit int64 nanoseconds"
        )
    exact = _parse_whole_ns(text, UNITS[unit])
    if exact is not None:
        return exact, unit
    stamps = [int(_EXACT.to_integral_value(_EXACT.scaleb(Decimal(cell), UNITS[unit]))) for cell in text.to_pylist()]
    try:
        return np.array(stamps, np.int64), unit
    except OverflowError as error:
        raise SourceError(f"{file}: a time does not fit int64 nanoseconds: {error}") from error


# Words for a time, and those of them that only a clock has.
_TIMES = {"t", "time", "timestamp", "stamp", "ts"}
_STAMPS = {"timestamp", "timestamps", "stamp", "stamps", "ts", "datetime"}
# Matches words of times that are no clock.
_NO_CLOCK = re.compile(
    "cpu|user|sys|system|flight|compute|processing|exec|execution|step|offset|delta|duration|exposure|integration"
    "|shutter|moving|running|active|idle|lap|goal|target|left|remaining|total|elapsed|latency|delay|lag|period"
    "|travel|response|settling"
)
# Matches words of durations, which are no clock even in the first column. An exposure_timestamp is a time.
_DURATIONS = re.compile(
    "lifetime|runtime|downtime|overtime|timeout|cpu|comput(e|ing)|processing|exec|execution|exposure|integration|shutter"
    "|latency|delay|lag|jitter|duration|response|settling|travel|remaining|dwell|tof"
)
# Matches words that make a fact about a time of the name before them: timestamp_valid, time_constant. A valid_timestamp is a time.
_FACTS = re.compile(
    "valid|validity|invalid|ok|count|counter|status|state|source|type|quality|error|err|jitter|drift|flags?|id|constants?"
    "|zone|accuracy|precision|resolution|uncertainty|std|var|variance|age|diff|difference|interval|synced|gap|scale|factor|ratio"
)
# Matches words for quantities that a recording without a clock may have in its first column.
_QUANTITIES = re.compile(
    "[xyzw]|q[xyzw]|pos|position|dist|distance|lat|latitude|lon|longitude|alt|altitude|roll|pitch|yaw|angle|joints?|vel|velocity"
    "|speed|acc|accel|acceleration|force|torque|temperature|voltage|current"
)
# Units of other quantities than time, before a unit of time: speed_m_s, wheel_rad_s.
_RATES = {
    *("m", "mm", "cm", "km", "meter", "meters", "metre", "metres", "rad", "radian", "radians", "deg", "degree"),
    *("degrees", "rev", "revs", "rot", "n", "nm", "kg", "per", "px", "pixels"),
}
# Matches a word for a time, and words that end with one: "rostime", "unixtime".
_TIME_WORD = re.compile(r".*(time|stamps?)|ts?|times|dates?|clock|epoch|utc|elapsed|uptime|tow|since|zeit")
# Matches words that tell one clock from another.
_KIND_OF_CLOCK = re.compile(
    "the|unix|ros|log|host|utc|epoch|sim|wall|gps|boot|mono|monotonic|rel|relative|abs|absolute|header|rec|recv"
)
# Matches words for columns that count rows.
_COUNTERS = re.compile(
    "frame|frames|index|idx|step|steps|sample|samples|row|rows|count|counter|cnt|tick|seq|sequence|number|num|no"
    "|nr|iteration|iter|id|line|record|packet|scan|cycle|loop|episode|unnamed"
)
_BRACKETS = re.compile(r"[\[(].*[\])]")


def split_unit(name: str) -> tuple[str, str]:
    """Splits a column's name into its begin, in lower case, and the unit at its end; the unit is "" if there is none."""
    name = _normalize(_CAMEL.sub("_", _PREFIXED.sub("_", name)))
    match = _UNIT_IN_NAME.search(name)
    return (name, "") if match is None else (name[: match.start()], str(match.lastgroup))


def unit_in_name(name: str) -> str:
    """Returns the unit anywhere in a clock's name, as in "timeMs", "ms_since_boot", "millis()"; "" if there is none.

    Raises:
        Error: the name has several units.
    """
    if declares_unit(name):
        return split_unit(name)[1]
    words = _split_words(name)
    units: dict[str, str] = {}
    for number, word in enumerate(words):
        joined = _TIME_AND_UNIT.fullmatch(word)
        match = _UNIT_WORD.fullmatch(joined[1] or joined[2] if joined else word)
        if match and (match.lastgroup != "s" or len(word) > 1 or number == len(words) - 1):
            units[str(match.lastgroup)] = word
    if len(units) > 1:
        raise Error(f"the clock's column {name!r} names several units: {', '.join(units.values())}")
    return next(iter(units), "")


def why_unit(name: str, unit: str, time_ns: np.ndarray) -> str:
    """Returns a phrase with the unit that stamps without an option were read in, and the evidence: the column's name or the numbers."""
    word = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}[unit]
    if unit_in_name(name):
        return f"{word}, by its name"
    if _SINCE_2001_NS <= int(time_ns[0]) < 5 * _SINCE_2001_NS:
        return f"{word}, as they are dates"
    steps = np.diff(time_ns)
    period = float(np.median(steps[steps > 0])) / 10 ** UNITS[unit] if (steps > 0).any() else 0.0
    return f"{word}, by its steps of {period:.4g}"


def declares_unit(name: str) -> bool:
    """Whether a column's name ends with the unit in brackets, as "timestamp [ns]"."""
    return bool(split_unit(name)[1]) and bool(_DECLARED.search(name))


def _split_words(name: str) -> list[str]:
    """Returns the words of a name, in lower case."""
    name = _PREFIXED.sub("_", name.replace("\u00b5", "μ"))
    words = [word.lower() for word in _WORD.findall(name)]
    return _TWO_WORDS.sub(lambda match: match[1] + "sec", " ".join(words)).split(" ")


def _words_without_unit(name: str) -> list[str]:
    return [word for word in _split_words(_BRACKETS.sub("", name)) if word and not _UNIT_WORD.fullmatch(word)]


def _states_a_fact(name: str) -> bool:
    """Whether a name is that of a fact about a time, as timestamp_valid."""
    words = _split_words(_BRACKETS.sub("", name))
    times = [i for i, word in enumerate(words) if _TIME_WORD.fullmatch(word)]
    return bool(times) and any(map(_FACTS.fullmatch, words[times[0] + 1 :]))


def names_a_time(name: str) -> bool:
    """Whether a column is named as a time: t_acc, time_gyro [s], pose.timestamp; but t_x, t_y and t_z are translations."""
    stem, unit = split_unit(name)
    if not unit and _BRACKETS.search(stem):  # another unit
        return False
    words = re.split(r"[^a-z0-9]+", _BRACKETS.sub("", stem).strip(" _.-"))
    if any(map(_NO_CLOCK.fullmatch, words)) or _states_a_fact(name):
        return False
    return (words[0] in _TIMES and words[1:] not in ([letter] for letter in "xyzw")) or words[-1] in _TIMES - {"t"}


def says_time(name: str, cell: str) -> bool:
    """Whether a column has times by its name, or by its first cell, which is a date or can be the stamp of a date since 2001."""
    try:
        number = float(cell)
    except ValueError:
        number = 1e9 if re.match(DAY, cell) else 0.0
    words = _split_words(_BRACKETS.sub("", name))
    if number >= 1e9:
        return True
    if (any(map(_DURATIONS.fullmatch, words)) and _STAMPS.isdisjoint(words)) or _states_a_fact(name):
        return False
    if any(pattern.fullmatch(word) for word in words for pattern in (_TIME_WORD, _TIME_AND_UNIT)):
        return True
    measured = not _RATES.isdisjoint(words) or any(map(_QUANTITIES.fullmatch, set(words) - {"current"}))
    return any(map(_UNIT_WORD.fullmatch, words)) and not measured


def counts_rows(name: str) -> bool:
    """Whether a column is named as a counter of rows: frame_id, index, sampleNumber. Call :func:`says_time` first."""
    return any(map(_COUNTERS.fullmatch, _split_words(name)))


def measures(name: str) -> bool:
    """Whether a column is named as a quantity other than time: root_x, distance_m. Call :func:`says_time` first."""
    return any(map(_QUANTITIES.fullmatch, _split_words(name)))


def find_clock(names: list[str]) -> list[int]:
    """Returns the columns that are named as the rows' clock; of a stamp in two columns, that of the seconds."""
    exact: dict[str, list[int]] = {}
    stamps: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        stem, unit = split_unit(name)
        if _BRACKETS.search(stem) and not unit:
            continue
        words = set(_words_without_unit(name))
        others = {word for word in words if not _KIND_OF_CLOCK.fullmatch(word)}
        if others <= _TIMES | _STAMPS and (others or (unit and not words)):
            exact.setdefault(stem, []).append(number)
        elif words & _STAMPS and not any(map(_NO_CLOCK.fullmatch, words)) and not _states_a_fact(name):
            stamps.setdefault(stem, []).append(number)
    groups = [*exact.values()] or [*stamps.values()]
    return [next((number for number in group if split_unit(names[number])[1] == "s"), group[0]) for group in groups]


def names_a_sensor_s_clock(name: str, main: str, columns: Sequence[str]) -> bool:
    """Whether a column is named as a sensor's clock, as t_acc or imu.timestamp: if one of `columns` is named acc_x or imu_x, or the
    main clock is named t_gyro."""
    words = _words_without_unit(name)
    if not words or (words[0] not in _TIMES and words[-1] not in _STAMPS):
        return False
    sensor = [word for word in words if word not in _TIMES | _STAMPS and len(word) > 1]
    first, *others = _words_without_unit(main) or [""]
    if sensor and others and first == words[0]:
        return True
    words_of_columns = [word for column in columns for word in _split_words(column) if len(word) > 1]
    return any(word.startswith(other) or other.startswith(word) for word in sensor for other in words_of_columns)


def is_unit(cell: str) -> bool:
    """Whether a cell has only a unit of time, as in a line of units below a header."""
    match = _UNIT_IN_NAME.search(_normalize(cell)) or _OTHER_UNIT.search(_normalize(cell))
    return match is not None and cell[: match.start()] in ("", "[", "(")


def _normalize(name: str) -> str:
    """Returns the name in lower case, with the Greek U+03BC as the sign of micro, for which many write U+00B5."""
    return name.lower().replace("\u00b5", "μ")


def join_seconds(
    seconds: pa.ChunkedArray, fractions: pa.ChunkedArray, unit: str, file: Path, first_line: int
) -> tuple[np.ndarray, str]:
    """Adds a column of whole seconds and a column of the rest in `unit`. Returns int64 nanoseconds, and a phrase with the units."""
    seconds_ns, _ = read_stamps(seconds, "", "s", file, first_line)
    fractions_ns, _ = read_stamps(fractions, "", unit, file, first_line)
    bad = np.flatnonzero((seconds_ns % 10**9 != 0) | (fractions_ns < 0) | (fractions_ns >= 10**9))
    if len(bad):
        row = int(bad[0])
        raise SourceError(
            f"{file}: line {row + first_line}: expected whole seconds and less than one in {unit}, "
            f"got {seconds[row].as_py()!r} and {fractions[row].as_py()!r}"
        )
    return seconds_ns + fractions_ns, f"s and {unit}"


def _read_dates(text: pa.StringArray, file: Path, first_line: int) -> tuple[np.ndarray, str]:
    """Returns stamps in ISO 8601 as int64 nanoseconds, and a phrase with the format. Either all stamps have a zone or none has."""
    has_zone = re.search(f"{ZONE}$", text[0].as_py()[len("2024-05-31") :]) is not None
    pattern = f"^{DATE}{ZONE if has_zone else ''}$"
    kind = pa.timestamp("ns", "UTC" if has_zone else None)
    text_with_points = pc.replace_substring(text, ",", ".")
    bad = np.flatnonzero(~pc.match_substring_regex(text, pattern).to_numpy(zero_copy_only=False))
    expected = f"in ISO 8601 {'with' if has_zone else 'without'} a zone as the first row's"
    try:
        if not len(bad):
            stamps: np.ndarray = text_with_points.cast(kind).cast(pa.int64()).to_numpy()
            return stamps, "ISO 8601" if has_zone else "ISO 8601 without a zone, read as UTC"
    except pa.ArrowInvalid:
        bad = np.array([next(row for row, cell in enumerate(text_with_points) if not _can_cast(cell, kind))])
        fits = 1678 <= int(text[bad[0]].as_py()[:4]) <= 2261
        expected = (
            "that calendar and clock have (no 24:00, no leap second)"
            if fits
            else "of the years 1678 to 2261, which fit int64"
        )
    cell = text[bad[0]].as_py()
    raise SourceError(f"{file}: line {bad[0] + first_line}: expected a time {expected}, got {cell!r}")


def _can_cast(cell: pa.StringScalar, kind: pa.DataType) -> bool:
    try:
        cell.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _parse_whole_numbers(text: pa.Array) -> np.ndarray | None:
    """Converts texts of digits to int64; returns None if a text has other characters, or its number does not fit."""
    if not len(text) or not pc.all(pc.ascii_is_decimal(text)).as_py():
        return None
    try:
        numbers: np.ndarray = text.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        return None
    return numbers


def _multiply(numbers: np.ndarray, factor: int) -> np.ndarray | None:
    """Multiplies numbers of at least 0 by a factor; returns None if a product does not fit int64."""
    return numbers * factor if int(numbers.max()) <= np.iinfo(np.int64).max // factor else None


def _parse_whole_ns(text: pa.Array, digits: int) -> np.ndarray | None:
    """Converts decimal numbers in units of 10^digits ns to int64 nanoseconds; returns None if one is long, has an exponent or a
    fraction of a nanosecond, or does not fit."""
    if pc.max(pc.binary_length(text)).as_py() > _EXACT_CHARACTERS:
        return None
    if pc.any(pc.match_substring(text, "e", ignore_case=True)).as_py():
        return None
    try:
        decimals = text.cast(pa.decimal128(38, digits))
    except pa.ArrowInvalid:
        return None
    # A decimal has 128 bits: two int64, the lower one first.
    pairs = np.frombuffer(decimals.buffers()[1], np.int64)[2 * decimals.offset :][: 2 * len(decimals)].reshape(-1, 2)
    low, high = pairs.T
    return low.copy() if np.array_equal(high, low >> 63) else None


def _find_unit(name: str, stamps: np.ndarray, file: Path, is_whole: bool) -> str:
    """Returns the unit in the column's name, or else the only unit that the stamps can have.

    is_whole: whether all stamps are written as whole numbers.
    """
    steps = np.diff(stamps)
    period = float(np.median(steps[steps > 0])) if np.any(steps > 0) else 0.0
    is_whole = is_whole or (period > 0 and bool((stamps == np.floor(stamps)).all()))  # 5.0 counts as 5
    seconds = {unit: 10.0 ** (digits - 9) for unit, digits in UNITS.items()}
    by_epoch = next((unit for unit in UNITS if 1e9 <= stamps[0] * seconds[unit] < 5e9), None)  # years 2001 to 2128
    ask = "say which with time_unit (--time-unit): s, ms, us or ns"
    try:
        named = unit_in_name(name)
    except Error as error:
        raise SourceError(f"{file}: {error}; {ask}") from None
    if other := _other_unit(name, named):
        raise SourceError(
            f"{file}: the clock's column {name!r} is in {other!r}: expected s, ms, us or ns; "
            "convert it, or say with time_unit (--time-unit) what its numbers are"
        )
    if named:
        longest = _LONGEST_STEP_S if is_whole else _LONGEST_DECIMAL_STEP_S
        is_likely = not period or _SHORTEST_STEP_S <= period * seconds[named] <= longest
        if is_likely or by_epoch == named or declares_unit(name):
            return named
        raise SourceError(
            f"{file}: the clock's column {name!r} names {named}, but in steps of {period:.6g} {named} there are "
            f"{1 / (period * seconds[named]):.3g} rows a second; {ask}"
        )
    if not is_whole:
        # Numbers with shorter steps are more likely days: MATLAB's datenum, Excel's serial dates.
        by_period = "s" if period == 0 or 2e-5 <= period <= _LONGEST_DECIMAL_STEP_S else None
    else:  # rows at 1 Hz to 1 kHz; shorter steps than 1000 could be of seconds as well as milliseconds
        by_period = "ns" if period >= 1e6 else "us" if period >= 1e3 else None
    if by_epoch and period * seconds[by_epoch] <= 1.5:
        return by_epoch
    if by_period and (by_epoch in (None, by_period) or period * seconds[by_epoch] > 1000):
        return by_period
    raise SourceError(
        f"{file}: {stamps[0]:.16g} and on in steps of {period:.6g} could be of several units; {ask}; "
        "convert days (datenum, Excel) to seconds"
    )


def _other_unit(name: str, named: str) -> str:
    """Returns the unit in a name that is not supported, such as "min" in "time [min]"; "" if there is none."""
    if match := _OTHER_UNIT.search(_normalize(name)):
        return _normalize(name)[match.start() :].rstrip("])")
    if named:
        return ""
    words = _split_words(name)
    return next((word for word in words if _LONG_UNIT.fullmatch(word)), "min" if words[-1] in ("min", "mins") else "")
