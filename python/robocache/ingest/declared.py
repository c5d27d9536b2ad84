"""Reports where a recording declares other episodes, another length or other joints than the cache will have.

A file may hold several rollouts one after another and mark their ends. No rows are cut here: the report names the declarations.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, TypeGuard

import numpy as np

from .. import _lib, frames
from ..dataset import Dataset, Stream
from ..episode_rates import median_period_ns, rates_of_stamps
from ..feature_names import (
    declared_names,
    declared_units,
    depth_unit_of,
    names_for,
    names_joints,
    own_names,
    own_units,
    units_of_names,
)
from ..feature_words import in_snake_case, known_unit, last_part, may_say_unit
from ..frames import is_labels, says_depth
from .images import with_16_bits
from .mapping import toml
from .rate import CONTRADICTION, OTHER_RATE, said_rates
from .recording import Frames, Notes, Ragged, Recording, Rows, Samples, SourceError, Texts

_index_of, _find_wraps, _array_of = map(_lib.function, ("dataset_index_of", "find_wraps", "array_of"))

# The names of flags that mark an episode's end or start: the last part of a stream's or feature's name, in lower case.
_ENDS = {"terminal", "terminals", "timeout", "timeouts", "done", "dones", "terminated", "truncated", "terminations"} | {
    *("truncations", "is_last", "is_terminal", "episode_end", "end_of_episode", "episode_done", "dones_float"),
}
_STARTS = {"is_first", "is_init", "reset", "episode_start", "episode_starts"}
_EPISODE = re.compile(
    r"(episode|ep|trial|traj|trajectory|demo|demonstration|rollout)_?(index|idx|ids?|number|num|no|nr)"
    r"|episodes?|trials?|trajectory|rollout|demo"
)
# Counts of the rows within an episode.
_COUNTER = re.compile(
    r"((time|env|episode|ep|sim|control|traj)_?)?(steps?|ticks?)(_?(index|idx|id|count|counter|num|number))?"
    r"|((episode|ep|traj)_)?(frame|row|sample)_?(index|idx|id|count|counter|num|number|no)|frame|index|counter|idx|t|times?_?idx"
)
_PADDING = re.compile(
    r"(\w+_)?((is_)?(valid|pad|padding)|valids|validity|(attention|loss|action|pad|padding|valid)_?mask|masks?)"
)
_TIME = re.compile(
    r"((sim|simulation|elapsed|episode|ep|relative|rel|ros|unix|host|system)_?)?(times?|time_?stamps?|stamps?)"
    r"(_?(s|sec|secs|seconds|ms|us|ns|nsec|nanoseconds))?|t"
)
_UNITS_NS = {"s": 1e9, "sec": 1e9, "secs": 1e9, "seconds": 1e9, "ms": 1e6, "us": 1e3}
_UNITS_NS |= dict.fromkeys(("ns", "nsec", "nanoseconds"), 1.0)
# Names of columns of the episodes table: an episode's number of rows, a list of such numbers, and a list of the rows where episodes
# begin or end.
_LENGTH = re.compile(
    r"((true|real|valid|actual|orig|original|unpadded)_?)?((episode|traj|trajectory|ep|demo|seq|sequence)_?)?(len|length)"
    r"|n(um)?_?(valid_?)?(steps|samples|frames|timesteps|rows)|(valid|true|real|actual)_?(steps|samples|frames|rows)|t|horizon"
)
_LENGTHS = re.compile(r"(\w+_)?(lengths|lens)")
_CUTS = re.compile(
    r"(\w+_)?ends|((starts|begins|ends)|(episode|ep|traj|trajectory|demo|trial|rollout|seq|sequence)_?"
    r"(ends?|starts?|begins?|firsts|boundaries|splits|offsets))(_?(idxs?|index|indices|rows|steps|frames))?"
)
# Names of columns that give the order of colours.
_COLORS = re.compile(
    r"((image|img|camera|cam|rgb|pixel|frame|video)s?_?)?(colou?rs?|channels?|pixels?|image|img|rgb)?_?(space|order|format|mode|encoding|layout|convention)"
    r"|encoding|colou?r|channels?|bgr"
)
# Values of such columns that mean no RGB: other colour spaces, and pictures whose width precedes their height.
_NO_RGB = re.compile(
    r"(cie)?[ _-]?(hs[vli]|hls|l[*]?a[*]?b[*]?|luv|yuv|ycc|ycbcr|ycrcb|xyz|cmyk)[ _-]?(\d{2,4}p?)?|[ntb]?whc"
)
_MOST_FEATURES = 256
# Nearly all pixels of a simulator's depth buffer are above this.
_BUFFER = 0.9
# A median depth above this, in metres, is not that of an indoor camera.
_FAR_M = 100
# The least height and width of rows that may be images.
_LEAST_SIDE = 8

_CUT = "windows run across them; to make each an episode, cut the source there"


class EpisodeFacts:
    """Collects what the streams of one recording declare, part by part."""

    def __init__(self, what: str, notes: Notes) -> None:
        self._what = what
        self._notes = notes
        self._markers: dict[tuple[str, str], list[np.ndarray]] = {}  # the parts of (stream, feature)
        self._rows: dict[str, int] = {}
        self._nominal_ns: dict[tuple[str, str], list[np.ndarray]] = {}
        self._periods_ns: dict[str, float] = {}
        self._cameras: list[str] = []

    def see(self, stream: str, samples: Samples) -> None:
        """Collects a part of a stream."""
        if samples.clock == "recorded" and not isinstance(samples, Frames) and stream not in self._periods_ns:
            self._periods_ns[stream] = median_period_ns(samples.time_ns)
        if isinstance(samples, Rows):
            self._rows[stream] = self._rows.get(stream, 0) + len(samples.time_ns)
            flat = samples.values.reshape(len(samples.values), -1) if len(samples.values) else samples.values
            names = samples.names or []
            if flat.ndim == 2 and flat.shape[1] == 1 and _is_marker(stream):
                self._take((stream, stream), flat[:, 0], samples)
            elif flat.ndim == 2 and len(names) == flat.shape[1] <= _MOST_FEATURES:
                for feature, name in enumerate(names):
                    if _is_marker(name):
                        self._take((stream, name), flat[:, feature], samples)
        elif isinstance(samples, Frames):
            self._cameras += [stream] if stream not in self._cameras else []
        elif isinstance(samples, Texts) and len(samples.texts) and _EPISODE.fullmatch(_last_word(stream)):
            self._markers.setdefault((stream, stream), []).append(np.array(samples.texts, object))

    def _take(self, key: tuple[str, str], values: np.ndarray, samples: Rows) -> None:
        self._markers.setdefault(key, []).append(values)
        if samples.clock == "nominal" and _TIME.fullmatch(_last_word(key[1])):
            self._nominal_ns.setdefault(key, []).append(samples.time_ns)

    def say(self, metadata: Mapping[str, Any], where: str, asked_hz: float | None) -> None:
        """Reports what the whole recording declares.

        metadata: the recording's columns.
        asked_hz: the user's rate.

        Raises:
            SourceError: stamps among the values contradict the rate of the rows.
        """
        for (stream, name), parts in self._markers.items():
            values = np.concatenate(parts)
            if why := _find_contradiction(_last_word(name), values):
                self._notes.assume(f"episodes of {name!r}", f"{self._what} as one: {why}", stream)
            elif (stream, name) in self._nominal_ns and values.dtype.kind in "iuf":
                self._compare_rates(name, values, np.concatenate(self._nominal_ns[stream, name]), where, asked_hz)
        if self._cameras:
            say_colors(self._cameras, metadata, self._notes)
        self._say_rates(metadata)
        rows = max(self._rows.values(), default=0)
        for column, value in metadata.items():
            word = _last_word(column)
            values = np.array(value) if isinstance(value, int | float | list | tuple | np.ndarray) else np.array("")
            if values.dtype.kind not in "iuf" or not (values == np.rint(values)).all():
                continue
            if values.ndim == 0 and _LENGTH.fullmatch(word) and 2 <= values < min(self._rows.values(), default=0):
                doubt = "may be padding"
                if word == "horizon":
                    doubt = "are padding if it is a length and no setting of a policy or simulator"
                why = f"says {value:g}, but {self._what} has {rows} rows: those behind {doubt}, and are read"
                self._notes.assume(f"length {column!r}", why)
            elif values.ndim == 1 and (count := _count_episodes(word, values, rows)) > 1:
                self._notes.assume(f"episodes of {column!r}", f"{self._what} as one, but it tells of {count}: {_CUT}")

    def _say_rates(self, metadata: Mapping[str, Any]) -> None:
        """Reports each rate that a column declares, if no stream with recorded stamps has it."""
        rates = {stream: 1e9 / ns for stream, ns in self._periods_ns.items() if ns == ns}
        for column, rate_hz in said_rates(metadata, "column "):
            if rates and all(abs(rows_hz / rate_hz - 1) > OTHER_RATE for rows_hz in rates.values()):
                stream, rows_hz = min(rates.items(), key=lambda item: abs(math.log(item[1] / rate_hz)))
                why = f"{rate_hz:g}, but no stream comes at it; the nearest, {stream}, has {rows_hz:.4g} rows a second (median)"
                self._notes.assume(f"rate by {column}", why)

    def _compare_rates(
        self, name: str, values: np.ndarray, time_ns: np.ndarray, where: str, asked_hz: float | None
    ) -> None:
        """Compares the rate of the rows with that of `values`, if these are stamps. `time_ns` are the rows' nominal stamps."""
        match = _TIME.fullmatch(_last_word(name))
        rates = rates_of_stamps(values, time_ns, _UNITS_NS.get(match[5] or "") if match else None)
        # The name "t" (without match[3], a word for a time) with whole numbers may count steps.
        if rates is None or (match and match[3] is None and (values == np.rint(values)).all()):
            return
        mean_hz, median_hz, clock_hz = rates
        contrast = (
            f"{median_hz:.4g} rows a second by {name!r} (median; mean {mean_hz:.4g}), and {clock_hz:.4g} by the rate"
        )
        if asked_hz is None and max(median_hz, clock_hz) > CONTRADICTION * min(median_hz, clock_hz):
            raise SourceError(
                f"{where}: {contrast}: they contradict each other; correct the wrong one in the file, or rate_hz (--rate-hz) "
                f"{clock_hz:.6g} takes the rate"
            )
        if max(abs(mean_hz / clock_hz - 1), abs(median_hz / clock_hz - 1)) > OTHER_RATE:
            self._notes.assume(f"clock beside {name!r}", f"index / rate: {contrast}", name)


class Features:
    """Compares the feature names and units of recordings with those of the first recording, or of the cache that is appended to.

    cached: the columns of the cache's first episode; None without such a cache.
    names: the feature names of each stream in the cache.
    """

    def __init__(self, notes: Notes, cached: Mapping[str, Any] | None, names: Mapping[str, list[str]]) -> None:
        self._notes = notes
        self._earlier = "the recordings before it" if cached is None else "the cache"
        self._names = {column: names for column, names in declared_names(cached or {}).items() if names_joints(column)}
        self._units = declared_units(cached or {})
        # For each stream its first names, or None, and how many features they name.
        self._first: dict[str, tuple[list[str] | None, int]] = {
            stream: (features or None, len(features)) for stream, features in names.items()
        }

    def check(self, where: str, metadata: Mapping[str, Any]) -> None:
        """Compares the columns of an episode.

        Raises:
            SourceError: they differ from those of earlier episodes, so the features have another meaning, order or unit.
        """
        for column, names in declared_names(metadata).items():
            before = self._names.setdefault(column, names) if names_joints(column) else names
            if names != before:
                order = "another order" if sorted(names) == sorted(before) else "other features"
                raise SourceError(
                    f"{where}: {column} is {names}, but {before} in {self._earlier}: its rows have {order}; "
                    "put its features in the order before, or give it a cache of its own; a mapping that excludes the column takes them as one"
                )
        for column, unit in declared_units(metadata).items():
            before_unit = self._units.setdefault(column, unit)
            if unit != before_unit:
                raise SourceError(
                    f"{where}: {column} is {unit!r}, but {before_unit!r} in {self._earlier}: its rows have another unit; convert them, "
                    "or give it a cache of its own, whose stream a Source renames"
                )

    def named(
        self, recording: Recording, columns: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Iterator[tuple[str, Samples]]:
        """Yields the streams of a recording. If a stream has no feature names, it takes those that columns declare for it. If it has no
        units, it takes those that its feature names declare.

        columns: turns the recording's columns into those of the episodes table.

        Raises:
            SourceError: columns differ from those of earlier recordings, so the features have another meaning, order or unit.
        """
        declared: dict[str, list[str]] | None = None
        known: dict[str, list[str] | None] = {}
        units: dict[str, list[str]] = {}
        for stream, samples in recording.streams:
            if declared is None:  # once a reader yields its first stream, the columns are complete
                table = columns(recording.metadata)
                self.check(recording.where, table)
                declared = declared_names(table)
            if isinstance(samples, Rows) and len(samples.values.shape) > 1:
                if stream not in known:
                    known[stream] = self._choose_names(stream, samples, declared)
                if known[stream] != samples.names:
                    samples = replace(samples, names=known[stream])
            if isinstance(samples, Rows) and samples.names and "units" not in samples.attributes:
                if stream not in units:
                    units[stream] = units_of_names(samples.names)
                if units[stream]:
                    samples = replace(samples, attributes={**samples.attributes, "units": units[stream]})
            yield stream, samples

    def _choose_names(self, stream: str, samples: Rows, declared: Mapping[str, list[str]]) -> list[str] | None:
        shape, names = samples.values.shape[1:], samples.names
        column = None if names else names_for(stream, shape, declared)
        if column and len(declared[column]) == math.prod(shape):
            names = declared[column]
            why = "their names are those that it lists, as they are as many and its name is no other's"
            self._notes.assume(f"features by {column!r}", why, stream)
        first, count = self._first.setdefault(stream, (names, len(names or ())))
        if first is None and names and (column or not count):
            self._notes.leave_out(f"{stream}: names of its features", f"there are none in {self._earlier}")
            return None
        return first if names is None and count == math.prod(shape) else names


def _last_word(name: str) -> str:
    """Returns the last part of a name, in lower case: "dones" of "data/dones", "episode_id" of "log.episode_id"."""
    return last_part(name).lower()


def _count_episodes(word: str, values: np.ndarray, rows: int) -> int:
    """Returns the number of episodes in a list of their lengths, or of the rows where they begin or end; 0 if `values` is no such list.

    word: the last part of the list's name. rows: the number of rows of the recording.
    """
    if _LENGTHS.fullmatch(word):
        return len(values) if values.sum() == rows and values.min(initial=1) > 0 else 0
    rises = (np.diff(values) > 0).all() and values.min(initial=0) >= 0
    if not _CUTS.fullmatch(word) or not len(values) or not rises or values[-1] > rows:
        return 0
    # Such a list has an end of the recording in it: row 0, the last row, or the row behind that.
    if rows - 1 not in values[-1:] and not {0, rows}.intersection(values[[0, -1]]):
        return 0
    return 1 + int(np.count_nonzero((values > 0) & (values < rows - 1)))


def _is_marker(name: str) -> bool:
    word = _last_word(name)
    return word in _ENDS | _STARTS or any(pattern.fullmatch(word) for pattern in (_PADDING, _EPISODE, _COUNTER, _TIME))


def _find_contradiction(word: str, values: np.ndarray) -> str | None:
    """Returns in words how a column contradicts that the rows are one whole episode; None if it does not."""
    if _EPISODE.fullmatch(word):
        changes = np.flatnonzero(values[1:] != values[:-1]) + 1
        if len(changes) > 0 and len(np.unique(values.astype(str))) == len(changes) + 1 <= len(values) / 2:
            return f"it has {len(changes) + 1} values, and changes first at row {changes[0]}: {_CUT}"
        return None
    if _COUNTER.fullmatch(word) or _TIME.fullmatch(word):
        rows = _find_restarts(values, bool(_TIME.fullmatch(word)))
        return f"it begins again in {len(rows)} rows (row {rows[0]}): {_CUT}" if len(rows) else None
    is_padding = _PADDING.fullmatch(word) is not None
    if values.dtype.kind not in "biuf" or not np.isin(values, (0, values.max(initial=0) if is_padding else 1)).all():
        return None
    flags = values.astype(bool)
    if is_padding:
        changes = np.flatnonzero(flags[1:] != flags[:-1]) + 1
        if len(changes) != 1:
            return None
        return f"it changes once, at row {changes[0]} of {len(flags)}: the rows on one side are padding by it, and are read"
    if word in _STARTS:
        rows = np.flatnonzero(flags[1:]) + 1
        return f"it is set in {len(rows)} rows behind the first (row {rows[0]}): {_CUT}" if len(rows) else None
    rows = np.flatnonzero(flags[:-1] & ~flags[1:])
    return f"it is set in {len(rows)} rows before others (row {rows[0]}): {_CUT}" if len(rows) else None


def _find_restarts(values: np.ndarray, is_time: bool) -> np.ndarray:
    """Returns the rows in which a count of rows, or a time, goes back to its first value."""
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        return np.empty(0, np.int64)
    values = values.astype(np.float64)
    steps = np.diff(values)
    rises, falls = steps[steps > 0], np.flatnonzero(steps < 0) + 1
    if not len(rises) or not len(falls) or len(values) < 3 * (len(falls) + 1):
        return falls[:0]
    step = float(np.median(rises))
    if (values[falls] > values[0] + step).any() or (values[falls] < values[0] - step).any():
        return falls[:0]
    # A counter of 8 or 16 bits begins again when it overflows.
    if not is_time and ((np.log2(values[falls - 1] + 1) % 8 == 0).all() or rises.max() > 1.5 * step):
        return falls[:0]
    return falls


# ---- names and units of one stream ----


def features_of(
    stream: str, shape: Sequence[int], own: Mapping[str, Any], above: Sequence[Mapping[str, Any]], notes: Notes
) -> tuple[list[str] | None, dict[str, Any]]:
    """Returns the names of a stream's features, or None, and its attributes, with `units` if they are known.

    Reports a wrong number of names, and units that cannot be matched to features.

    own: the stream's own attributes. above: the attributes of the groups above it, the nearest first.
    """
    features = math.prod(shape)
    names, units = own_names(stream, shape, own, above), own_units(own, features)
    for name, listed in declared_names(own).items() if names is None else ():
        notes.leave_out(f"{stream}: attribute {name}", f"{len(listed)} names, but a row has {features} features")
    for name, value in own.items():
        if _says_unit(name) and not (units and name.lower() in ("units", "unit")):
            notes.leave_out(f"{stream}: attribute {name}", _say_no_units(value, f"its {features} features"))
    for attributes in () if units else above:
        for name, value in attributes.items():
            if _says_unit(name):
                notes.leave_out(f"attribute {name} of a group", _say_no_units(value, "the streams in it"))
    return names, units


def _say_no_units(value: Any, features: str) -> str:
    return f"{value!r:.60}: not taken for units of {features}; a mapping's units can declare them"


def _says_unit(name: str) -> bool:
    return may_say_unit(name) and depth_unit_of(name) is None


# ---- packed numbers ----

# Attributes of the CF conventions, which netCDF and xarray write: value = stored * scale_factor + add_offset. A stored value that
# equals a fill value or is beyond the limits is missing.
_FILLS = ("_FillValue", "missing_value")
_LIMITS = ("valid_min", "valid_max", "valid_range")
PACKING = ("scale_factor", "add_offset", *_FILLS, *_LIMITS)
# The names of CF's attributes that list the values of a status, and the word for each value, separated by blanks.
FLAGS = ("flag_values", "flag_meanings")
# netCDF's attribute, "true" if signed integers mean unsigned ones, which its older types lack.
UNSIGNED = "_Unsigned"


def unpacked(
    stream: str, values: np.ndarray, attributes: Mapping[str, Any], notes: Notes
) -> tuple[np.ndarray, dict[str, Any]]:
    """Returns the values that stored numbers mean by the attributes :data:`PACKING`, with NaN for missing ones, and attributes to add.
    Whole numbers that are not scaled but may be missing become float64. They are held between rows, as are floats with :data:`FLAGS`."""
    if values.dtype.kind == "i" and str(attributes.get(UNSIGNED, "")).strip().lower() == "true":
        values, attributes = values.astype(f"u{values.dtype.itemsize}"), _as_unsigned(attributes, values.dtype)
    values, added = _apply_packing(stream, values, attributes, notes)
    if not any(name in attributes for name in FLAGS):
        return values, added
    if values.dtype.kind == "f":
        added["methods"] = [[0, math.prod(values.shape[1:]), "previous"]]
    numbers, meanings = _as_list(attributes.get(FLAGS[0])), attributes.get(FLAGS[1])
    words = str(meanings or "").split()
    is_whole = all(is_number(number) and float(number).is_integer() for number in numbers)
    if len(numbers) != len({*words}) or not is_whole:
        why = f"expected a word for each whole number, got {attributes.get(FLAGS[0])!r:.60}, {meanings!r:.60}"
        notes.leave_out(f"{stream}: {', '.join(FLAGS)}", why)
        return values, added
    return values, added | {"words": dict(zip(words, map(int, numbers), strict=True))}


def _as_unsigned(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Returns the attributes with their fill values and limits replaced by the unsigned numbers that have the same bits."""
    unsigned = dict(attributes)
    for name in (*_FILLS, *_LIMITS):
        numbers = _as_list(attributes.get(name))
        if all(isinstance(number, int) for number in numbers):
            unsigned[name] = [number % 2 ** (8 * dtype.itemsize) for number in numbers]
    return unsigned


def _apply_packing(
    stream: str, values: np.ndarray, attributes: Mapping[str, Any], notes: Notes
) -> tuple[np.ndarray, dict[str, Any]]:
    packing = _Packing.of(values.dtype, attributes)
    packing.say_odd(stream, attributes, notes)
    notes.see("scaled", stream, packing.is_scaled)
    if notes.seen.get("scaled", {}).get(stream, packing.is_scaled) != packing.is_scaled:
        why = "scale_factor or add_offset in some recordings and none in others, whose numbers are kept as they are stored"
        notes.assume(f"values of {stream}", why, stream)
    # A stream has one dtype: if a recording may have missing values, whole numbers of all recordings become floats.
    float_streams: dict[str, bool] = notes.wider.setdefault("held as floats", {})
    is_whole = values.dtype.kind in "iu" and not packing.is_scaled
    if packing.has_missing and is_whole:
        float_streams[stream] = True
    is_packed = packing.has_missing or packing.is_scaled or (is_whole and stream in float_streams)
    if values.dtype.kind not in "iuf":
        say_unapplied(stream, attributes, f"{values.dtype}", notes)
        return values, {}
    if not is_packed:
        return values, {}
    absent = packing.absent(values)
    if is_whole:
        floats = values.astype(np.float64)
        if not np.array_equal(floats.astype(values.dtype), values):
            missing = packing.description or "the fill value of other recordings"
            raise SourceError(
                f"{stream}: expected whole numbers that float64 holds beside {missing}, which is NaN there"
            )
        if packing.has_missing:
            notes.assume(f"values of {stream}", f"{packing.description}: NaN, so float64", stream)
        methods = [[0, math.prod(values.shape[1:]), "previous"]]
        return np.where(absent, np.nan, floats), {"methods": methods}
    notes.assume(f"values of {stream}", packing.description, stream)
    values = packing.scaled(values)
    return np.where(absent, values.dtype.type(np.nan), values) if absent.any() else values, {}


def say_unapplied(stream: str, attributes: Mapping[str, Any], content: str, notes: Notes) -> None:
    """Reports attributes of :data:`PACKING` that do not apply to a stream's content."""
    if names := [name for name in PACKING if name in attributes]:
        notes.leave_out(f"{stream}: {', '.join(names)}", f"not applied to {content}")


@dataclass(frozen=True)
class _Packing:
    """The attributes :data:`PACKING` of a stream, as numbers.

    description: the attributes in words.
    scale, offset: None if not declared.
    fills: stored values that mean that a value is missing.
    low, high: the least and the greatest valid value; -inf and inf without limits.
    limits_scaled: whether the limits apply to the scaled numbers, as when they are floats but the stored numbers are integers.
    odd: the attributes that are no numbers, or not as many as CF says.
    """

    description: str
    scale: float | None
    offset: float | None
    fills: list[Any]
    low: float
    high: float
    limits_scaled: bool
    odd: list[str]

    @classmethod
    def of(cls, dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> _Packing:
        declared: dict[str, list[float]] = {}
        for name in PACKING:
            numbers = _as_list(attributes.get(name))
            count = {"valid_range": 2, "missing_value": len(numbers)}.get(name, 1)
            if len(numbers) == count and all(map(is_number, numbers)):
                declared[name] = numbers
        limits = {name: declared[name] for name in _LIMITS if name in declared}
        low, high = limits.get("valid_range", [-math.inf, math.inf])
        low, high = limits.get("valid_min", [low])[0], limits.get("valid_max", [high])[0]
        if dtype.kind in "iu" and low <= np.iinfo(dtype).min and high >= np.iinfo(dtype).max:
            low, high = -math.inf, math.inf
        scale, offset = (declared[name][0] if name in declared else None for name in ("scale_factor", "add_offset"))
        is_scaled = scale is not None or offset is not None
        has_float_limits = any(isinstance(number, float) for numbers in limits.values() for number in numbers)
        return cls(
            ", ".join(f"{name} {' '.join(f'{number:g}' for number in numbers)}" for name, numbers in declared.items()),
            scale,
            offset,
            [dtype.type(number) for name in _FILLS for number in declared.get(name, ()) if _holds(dtype, number)],
            low,
            high,
            is_scaled and dtype.kind in "iu" and has_float_limits,
            [name for name in PACKING if name in attributes and name not in declared],
        )

    def say_odd(self, stream: str, attributes: Mapping[str, Any], notes: Notes) -> None:
        for name in self.odd:
            expected = {"valid_range": "two numbers", "missing_value": "numbers"}.get(name, "a number")
            notes.leave_out(f"{stream}: {name}", f"not applied: expected {expected}, got {attributes[name]!r:.60}")

    @property
    def is_scaled(self) -> bool:
        return self.scale is not None or self.offset is not None

    @property
    def has_missing(self) -> bool:
        """Whether the attributes declare that some stored values mean missing ones."""
        return bool(self.fills) or math.isfinite(self.low) or math.isfinite(self.high)

    def scaled(self, stored: np.ndarray) -> np.ndarray:
        if not self.is_scaled:
            return stored
        if stored.dtype == np.float16:  # scaled numbers may be beyond it
            stored = stored.astype(np.float32)
        return stored * float(1 if self.scale is None else self.scale) + float(self.offset or 0)

    def absent(self, stored: np.ndarray) -> np.ndarray:
        """Returns which stored values are missing."""
        limited = self.scaled(stored) if self.limits_scaled else stored
        with np.errstate(invalid="ignore"):
            beyond = (limited < self.low) | (limited > self.high)
        absent: np.ndarray = np.isin(stored, self.fills) | beyond
        return absent


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    if dtype.kind not in "iu":
        return dtype.kind == "f"
    info = np.iinfo(dtype)
    return math.isfinite(value) and value == int(value) and int(info.min) <= value <= int(info.max)


# ---- colours ----


def may_say_colors(column: str) -> bool:
    """Whether the name of a column or an attribute is one that gives the order of colours."""
    return _COLORS.fullmatch(_last_word(column)) is not None


def say_colors(cameras: Sequence[str], attributes: Mapping[str, Any], notes: Notes) -> None:
    """Reports columns or attributes that declare pictures as BGR or another colour space than RGB: pixels are stored unchanged."""
    for name, value in attributes.items():
        if not isinstance(value, str) or not may_say_colors(name):
            continue
        if "bgr" in value.lower():
            how = 'channels = "bgr" in a mapping exchanges red and blue'
            notes.assume(f"pictures beside {name!r}", f"as they lie, though it says {value!r}; {how}", *cameras)
        elif _NO_RGB.fullmatch(value.strip().lower()):
            why = f"as they lie, as RGB of rows of pixels, though it says {value!r}; convert them in the source"
            notes.assume(f"pictures beside {name!r}", why, *cameras)


# ---- depth ----

# Units of depth, in metres.
_METRES = {"m": 1.0, "cm": 0.01, "mm": 0.001}
# A number above this is not taken as metres per unit: it may be units per metre (1000, 5000), or millimetres per unit.
_MOST_METRES = 0.01


def depth_unit_m(camera: str, declared: Mapping[str, Any], notes: Notes) -> float | None:
    """Returns the metres per unit of a camera's depth that columns or attributes declare, as a word (mm) or a number (0.001).

    A column that begins with another camera's name does not count. One with more of this camera's name comes before others.
    Other words and numbers are reported.
    """
    unit_m = None
    columns = {name: prefix for name in declared if (prefix := depth_unit_of(name)) is not None}
    for name in sorted(columns, key=lambda name: -len(columns[name])):
        value = declared[name]
        if not _is_part_of_name(columns[name], camera):
            continue
        (value,) = value if isinstance(value, list) and len(value) == 1 else (value,)
        metres = _METRES.get(known_unit(value) or "") if isinstance(value, str) else value
        if is_number(metres) and (0 < metres <= _MOST_METRES or isinstance(value, str)):
            unit_m = unit_m or float(metres)
        else:
            why = f"not applied, as it is {value!r}: expected metres a unit, such as 0.001, or m, cm or mm; a mapping's units can declare it"
            notes.assume(f"depth beside {name!r}", why, camera)
    return unit_m


def _is_part_of_name(part: str, camera: str) -> bool:
    """Whether words of a camera's name are `part`, so that "top" is none of "laptop/depth". A number may follow, as in "wrist1"."""
    end = r"(?![a-z0-9])|(?=depth|cam|im(?:age|g))" + (r"|(?=\d)" if part[-1:].isalpha() else "")
    end += "|(?=era)" * part.endswith("cam")
    return not part or bool(re.search(rf"(?<![a-z0-9]){re.escape(part)}(?:{end})", in_snake_case(camera)))


@dataclass(frozen=True)
class Depth:
    """The declarations about depth in the attributes of an array.

    unit_m: metres per unit; None if not declared.
    packing: the attributes of :data:`PACKING` that apply.
    to_metres: whether pixels become float32 metres; else they stay integers.
    """

    unit_m: float | None
    packing: Mapping[str, Any]
    to_metres: bool

    @classmethod
    def of(
        cls,
        camera: str,
        dtype: np.dtype[Any],
        own: Mapping[str, Any],
        above: Sequence[Mapping[str, Any]],
        where: str,
        notes: Notes,
    ) -> Depth:
        """Reads the array's own attributes, then those of the groups above it, the nearest first.

        Raises:
            SourceError: the array's attribute `units` is no length.
        """
        packing = {name: own[name] for name in PACKING if name in own}
        is_scaled = _Packing.of(dtype, packing).is_scaled
        is_depth = says_depth(camera)  # None if the name does not show it
        unit_m = None
        if is_depth is not False and not is_labels(camera):
            units = str(own_units(own, 1).get("units", "")).strip()
            if units and (unit_m := _METRES.get(known_unit(units) or "")) is None:
                raise SourceError(f"{where}: attribute units: expected m, cm or mm of depth, got {units!r}")
            for attributes in (own, *above) if is_depth else (own,):
                unit_m = depth_unit_m(camera, attributes, notes) if unit_m is None else unit_m
        if is_scaled and unit_m is None and not is_depth:
            say_unapplied(camera, packing, "images that may be no depth", notes)
            return cls(None, {}, False)
        to_metres = is_scaled or dtype.kind == "f"
        if to_metres and unit_m is None:
            why = "taken as metres, since no attribute units says another unit; a simulator's normalised depth buffer is not in metres"
            notes.assume(f"{camera}: depth in {'scaled numbers' if is_scaled else dtype}", why, camera)
        return cls(unit_m, packing if is_depth or to_metres else {}, to_metres)

    @property
    def is_declared(self) -> bool:
        """Whether pixels are distances of a known unit."""
        return self.to_metres or self.unit_m is not None

    def pixels(self, camera: str, stored: np.ndarray, notes: Notes) -> np.ndarray:
        """Returns stored pixels as float32 metres, NaN where missing, or unchanged as integers, 0 where missing."""
        if not self.to_metres:
            packing = _Packing.of(stored.dtype, self.packing)
            packing.say_odd(camera, self.packing, notes)
            if not packing.has_missing:
                return stored
            notes.assume(f"depth of {camera}", f"{packing.description}: 0, no measurement", camera)
            return np.where(packing.absent(stored), stored.dtype.type(0), stored)
        values, _ = unpacked(camera, stored, self.packing, notes)
        unit_m = self.unit_m or 1.0
        return (values if unit_m == 1 else values * np.float64(unit_m)).astype(np.float32)


def with_unit(name: str, samples: Frames, metadata: Mapping[str, Any], notes: Notes) -> Frames:
    """Returns the frames, with the unit of depth that the columns or a mapping declare, if they have one channel of 8 or 16 bits and no
    unit. Those of 8 bits become 16, since a batch refuses depth of 8."""
    units = samples.attributes.get("units")
    declared = {**({"depth_units": units} if units else {}), **metadata}
    if samples.unit_m is not None or all(depth_unit_of(column) is None for column in declared):
        return samples
    if is_labels(name, samples.attributes) or (not units and not says_depth(name)):
        return samples
    chunks = iter(samples.chunks)
    first = list(islice(chunks, 1))
    samples = replace(samples, chunks=chain(first, chunks))
    bits = _bits_of_distances(first[0][1]) if first else 0
    if not bits or (unit_m := depth_unit_m(name, declared, notes)) is None:
        return samples
    if bits == 16:
        return replace(samples, unit_m=unit_m)
    if samples.resized is not None:
        notes.assume(name, "brightness, not depth: its 8 bits were resized; image_size='keep' keeps distances", name)
        return samples
    if getattr(first[0][1], "codec", None) == "jpeg":
        why = "depth from JPEGs, which change distances; image_codec='png' (--image-codec png) keeps those that a source has as pixels"
        notes.assume(name, why, name)
    return replace(samples, chunks=with_16_bits(samples), codec="png", unit_m=unit_m)


def _bits_of_distances(images: Any) -> int:
    """Returns the bits of a pixel if frames have one channel of whole numbers, else 0."""
    if isinstance(images, list):
        if not images:
            return 0
        images = frames.take([bytes(images[0])])
    shape = images.shape[1:] if isinstance(images, np.ndarray) else images.shape
    channels = shape[2] if len(shape) == 3 else 1
    return {np.dtype(np.uint8): 8, np.dtype(np.uint16): 16}.get(images.dtype, 0) if channels == 1 else 0


def say_depth_numbers(name: str, samples: Rows, notes: Notes) -> None:
    """Reports rows of numbers that are images of depth by name and shape, and declare no unit."""
    values = samples.values
    is_image = values.ndim > 2 and min(values.shape[1:3]) >= _LEAST_SIDE and values.dtype.kind in "iuf"
    if not is_image or not says_depth(name) or "units" in samples.attributes:
        return
    measured = values[np.isfinite(values) & (values != 0)]
    if len(measured):
        middle, largest = np.median(measured), measured.max()
        why = f"numbers, no camera, in no declared unit: the middle one is {middle:.4g}, the largest {largest:.4g}"
        notes.assume(f"{name}: depth by its name", f"{why}; a mapping's units can declare it", name)


# ---- values that contradict their names ----

# The beginnings of image files.
_FILES = (
    ("JPEG", b"\xff\xd8\xff"),
    ("PNG", b"\x89PNG\r\n\x1a\n"),
    ("GIF", b"GIF8[79]a"),
    ("WebP", b"RIFF.{4}WEBP"),
    ("TIFF", b"II\\*\0|MM\0\\*"),
    ("BMP", b"BM.{4}\0{4}"),
    ("JPEG 2000", b"\0\0\0\x0cjP  |\xff\x4f\xff\x51"),
    ("JPEG XL", b"\0\0\0\x0cJXL "),
    ("AVIF or MP4", b".{4}ftyp"),
)


def say_files(stream: str, samples: Rows | Ragged, notes: Notes) -> None:
    """Reports rows of bytes that begin like image files: they do not become a camera."""
    if samples.values.dtype != np.uint8 or samples.values.size < 32:
        return
    begin = samples.values.reshape(-1)[:32].tobytes()
    for kind, mark in _FILES:
        if re.match(mark, begin, re.DOTALL):
            why = f"files of {kind}, kept as bytes and no camera; store pixels, or JPEG or PNG where the format has cameras of files"
            notes.assume(stream, why, stream)


def say_no_metres(camera: str, chunk: Any, notes: Notes) -> None:
    """Reports float32 depth that cannot be in metres: negative, too far, or as in OpenGL's depth buffer."""
    if isinstance(chunk, list):  # files, which have 8 bits a channel
        return
    if isinstance(chunk, np.ndarray):
        data, is_depth = chunk, chunk.ndim == 3 or chunk.shape[3] == 1
    else:
        data, is_depth = chunk.data, chunk.color_space == "depth"
    if chunk.dtype != np.float32 or not is_depth:
        return
    pixels = data.reshape(-1).view(np.float32)
    if (pixels < 0).any():
        notes.assume(camera, "depth in metres, but pixels are negative, as along a camera's -z: they are kept", camera)
    measured = pixels[np.isfinite(pixels) & (pixels != 0)]
    if len(measured) and (middle := float(np.median(measured))) > _FAR_M:
        why = f"depth in metres, but the middle pixel is at {middle:.4g}, as in millimetres: they are kept"
        notes.assume(camera, f"{why}; a source that declares its unit is converted", camera)
    if len(measured) and measured.min() > _BUFFER and measured.max() <= 1:
        why = (
            f"depth in metres, but all pixels are in ({_BUFFER}, 1], as in OpenGL's depth buffer, which is no distance: they are kept; "
            "near and far of the simulator's camera make it metres"
        )
        notes.assume(camera, why, camera)


def say_frames(written: Dataset, notes: Notes) -> None:
    """Reports streams whose frame of reference differs between episodes, by the column `frame_ids` of recorded messages."""
    # Only these formats have the column. For others the episodes are not read, since that starts a thread.
    if notes.format not in ("mcap", "rosbag1", "rosbag2") or "frame_ids" not in written.episodes.column_names:
        return
    frames_of: dict[str, set[str]] = {}
    for text in set(written.episodes["frame_ids"].to_pylist()) - {None}:
        for path, frame in json.loads(text).items():
            frames_of.setdefault(path.rpartition("/")[0], set()).add(frame.strip("/"))
    differ = {stream: frames for stream, frames in frames_of.items() if len(frames) > 1}
    if differ:
        lines = [f"{stream} {' and '.join(sorted(frames)[:3])}" for stream, frames in sorted(differ.items())]
        first = "; ".join(lines[:3]) + f"; {len(lines) - 3} more" * (len(lines) > 3)
        notes.assume("frames of reference", f"differ between episodes, as the column frame_ids says: {first}", *differ)


def say_wraps(stream: Stream, notes: Notes) -> None:
    """Reports features of a written stream that jump by a turn between rows but are interpolated as numbers."""
    if stream.dtype.kind != "f":
        return
    handle = stream._opened.handle
    table = _lib.to_numpy(_array_of(_find_wraps(handle, _index_of(handle, stream.name)), None, 0))
    methods = stream.attributes.get("methods", [])
    with_method = {feature for start, stop, _ in methods for feature in range(start, stop)}
    wraps = [row for row in table.tolist() if row[0] not in with_method]
    if not wraps:
        return
    names = [stream.names[int(feature)] if stream.names else f"[{feature:.0f}]" for feature, *_ in wraps]
    blocks = [[int(feature), int(feature) + 1, "previous" if turn == 360 else "angle"] for feature, *_, turn in wraps]
    _feature, _count, episode, row, before, after, _turn = wraps[0]
    why = (
        f"{names[0]} goes from {before:.4g} to {after:.4g} at row {row:.0f} of episode {episode:.0f}: interpolated as numbers, "
        f"through all angles between, unless a mapping has streams.{toml(stream.name)}.methods = {toml(sorted([*methods, *blocks]))}"
    )
    notes.assume(f"{stream.name}: {', '.join(names)}", why, stream.name)
