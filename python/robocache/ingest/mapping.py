"""Reads and applies mappings, which select, rename, cut and describe the streams of a source.

A mapping is a TOML, YAML or JSON file, or a dict of the same form; GR00T's ``meta/modality.json`` is also a mapping. What can be
checked without the source is checked before a recording is read, the rest as the streams are read.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .. import frames
from .._printable import printable
from ..errors import ArgumentError, ArgumentTypeError, Error, FileError
from ..feature_words import is_no_radian, says_no_radians
from .clocks import split_chunks, stamps
from .files import read_whole
from .images import exchange_red_and_blue
from .methods import declares_whole, method_of_rotation, why_held, with_others
from .recording import Frames, Notes, Ragged, Recording, Rows, Samples, SourceError, Texts

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# A Loader's methods of interpolation.
METHODS = ("linear", "nearest", "previous", "next", "pchip", "akima", "angle", "slerp", "pose")
# How many features a method takes: those of a quaternion, and of a position with a quaternion. Other methods take any number.
_TAKES = {"slerp": 4, "pose": 7}
# GR00T's modalities, each with the stream that it cuts by default; None means the stream "<modality>.<key>".
_MODALITIES = {"state": "observation.state", "action": "action", "video": None, "annotation": None}


@dataclass(frozen=True)
class Part:
    """A part of a source's stream that becomes a stream of the cache.

    names: the names of the streams that it becomes.
    start, stop: the features [start, stop) of the source's stream; all if `stop` is None.
    attributes: units, methods, norm_group and others of :data:`~.recording.ATTRIBUTES`.
    is_bgr: whether to exchange a camera's red and blue; None if the mapping does not declare their order.
    """

    names: tuple[str, ...]
    start: int = 0
    stop: int | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    is_bgr: bool | None = None


@dataclass(frozen=True)
class StreamMapping:
    """A checked mapping.

    where: the mapping's file, or another word with which errors begin.
    given: the mapping as the user wrote it, in values of JSON.
    streams: the parts of each stream, by the stream's name in the source; other streams stay unchanged.
    include, exclude: patterns of names; a stream is kept if one of `include` and none of `exclude` matches it.
    rename, constants, without: the columns of the episodes table that get a new name, that are added, and that are left out.
    complete: whether a stream or a column that the source lacks is an error.
    """

    where: str
    given: Mapping[str, Any]
    streams: Mapping[str, tuple[Part, ...]]
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    complete: bool = True

    @property
    def exchanges(self) -> dict[str, bool]:
        """Whether red and blue are exchanged, for each camera whose channels the mapping declares, by the camera's new name."""
        parts = [part for parts in self.streams.values() for part in parts]
        return {name: part.is_bgr for part in parts if part.is_bgr is not None for name in part.names}


def load_mapping(mapping: Any) -> StreamMapping:
    """Reads and checks a mapping: a file, or a dict of the same form.

    Raises:
        FileError: the file cannot be read.
        ArgumentError, ArgumentTypeError: an entry is wrong; the message names it.
        Error: the mapping is YAML, and the package for YAML is missing.
    """
    if isinstance(mapping, Mapping):
        return parse_mapping(dict(mapping), "mapping")
    if not isinstance(mapping, str | os.PathLike):
        raise ArgumentTypeError(f"mapping: expected a path or a dict, got {mapping!r}")
    path = Path(os.fspath(mapping))
    suffix = path.suffix.lower()
    if suffix in (".yaml", ".yml"):
        return parse_mapping(_read_yaml(path), str(path))
    try:
        text = read_whole(path).decode("utf-8-sig")
        content = json.loads(text, object_pairs_hook=_make_unique) if suffix == ".json" else tomllib.loads(text)
    except SourceError as error:  # on_error="skip" would skip a SourceError; the user's mapping must not be skipped
        raise FileError(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: expected {'JSON' if suffix == '.json' else 'TOML'}: {error}") from error
    if not isinstance(content, dict):
        raise FileError(f"{path}: expected an object, got {content!r:.60}")
    return parse_mapping(content, str(path))


def _make_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object as a dict. Refuses a key that occurs twice, because one value would be lost."""
    repeated = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if repeated:
        raise ValueError(f"two entries {repeated[0]!r}")
    return dict(pairs)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        from .yaml import read_yaml
    except ImportError as error:
        raise Error(
            f"{path}: {error}; a mapping in YAML needs: pip install 'robocache[yaml]'; TOML needs nothing"
        ) from error
    try:
        return read_yaml(path)
    except SourceError as error:  # the user's mapping must not be skipped
        raise FileError(str(error)) from error


# ---- checks ----


def parse_mapping(given: Mapping[str, Any], where: str) -> StreamMapping:
    """Checks the content of a mapping; raises as :func:`load_mapping`. `where`: the mapping's file, with which errors begin."""
    try:
        json.dumps(given, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:  # for example a date of TOML
        raise ArgumentTypeError(f"{where}: expected only values that JSON has: {error}") from None
    if given.keys() & _MODALITIES.keys():
        return StreamMapping(where, given, _parse_modality(given, where), complete=False)
    _check_keys(given, {"include", "exclude", "streams", "episodes"}, where)
    include = _check_texts(given.get("include", ["*"]), f"{where}: include")
    exclude = _check_texts(given.get("exclude", []), f"{where}: exclude")
    streams = {}
    for name, entry in _check_table(given.get("streams", {}), f"{where}: streams").items():
        path = f"{where}: streams.{name}"
        if not _is_kept(name, include, exclude):
            raise ArgumentError(f"{path}: include and exclude leave this stream out")
        streams[name] = _parse_stream(name, _check_table(entry, path), path)
    _check_unique([name for parts in streams.values() for part in parts for name in part.names], where)
    episodes = _check_table(given.get("episodes", {}), f"{where}: episodes")
    _check_keys(episodes, {"rename", "constants", "exclude"}, f"{where}: episodes")
    rename = _check_table(episodes.get("rename", {}), f"{where}: episodes.rename")
    for column, name in rename.items():
        _check_text(name, f"{where}: episodes.rename.{column}")
    constants = _check_table(episodes.get("constants", {}), f"{where}: episodes.constants")
    _check_unique([*rename.values(), *constants], f"{where}: episodes")
    without = _check_texts(episodes.get("exclude", []), f"{where}: episodes.exclude")
    return StreamMapping(where, given, streams, include, exclude, rename, constants, without)


def _parse_stream(stream: str, entry: Mapping[str, Any], where: str) -> tuple[Part, ...]:
    attribute_keys = {"units", "methods", "norm_group", "attributes"}
    if "slices" not in entry:
        _check_keys(entry, {"name", "slices", "channels", *attribute_keys}, where)
        names = entry.get("name", stream)
        names = (
            _check_texts(names, f"{where}: name")
            if isinstance(names, list)
            else (_check_text(names, f"{where}: name"),)
        )
        if not names:
            raise ArgumentError(f"{where}: name: expected one at least; exclude leaves a stream out")
        channels = entry.get("channels")
        if channels not in ("rgb", "bgr", None):
            raise ArgumentError(f"{where}: channels: expected 'rgb' or 'bgr', got {channels!r}")
        return (Part(names, attributes=_parse_attributes(entry, where), is_bgr=channels and channels == "bgr"),)
    _check_keys(entry, {"slices"}, where)
    slices = entry["slices"]
    if not isinstance(slices, list) or not slices:
        raise ArgumentTypeError(f"{where}: slices: expected a list of tables, got {slices!r:.60}")
    parts = []
    for number, cut in enumerate(slices):
        path = f"{where}: slices[{number}]"
        _check_keys(_check_table(cut, path), {"name", "start", "stop", *attribute_keys}, path)
        missing = {"name", "start", "stop"} - cut.keys()
        if missing:
            raise ArgumentError(f"{path}: expected {', '.join(sorted(missing))} too")
        start, stop = _parse_bounds(cut["start"], cut["stop"], path)
        part = Part((_check_text(cut["name"], f"{path}: name"),), start, stop, _parse_attributes(cut, path))
        _check_attributes(part.attributes, stop - start, path)
        parts.append(part)
    _check_overlaps([(part.start, part.stop or 0, part.names[0]) for part in parts], f"{where}: slices")
    return tuple(parts)


def _parse_attributes(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    attributes = {**_check_table(entry.get("attributes", {}), f"{where}: attributes")}
    entry = {**attributes, **entry}
    units = entry.get("units")
    if units is not None:
        attributes["units"] = list(_check_texts(units, f"{where}: units")) if isinstance(units, list) else units
        if not isinstance(units, str | list):
            raise ArgumentTypeError(f"{where}: units: expected text, or a list of it, got {units!r}")
    if "norm_group" in entry:
        attributes["norm_group"] = _check_text(entry["norm_group"], f"{where}: norm_group")
    methods = entry.get("methods")
    if isinstance(methods, str):
        attributes["methods"] = _parse_method(methods, f"{where}: methods")
    elif methods is not None:
        attributes["methods"] = _parse_methods(methods, f"{where}: methods")
    return attributes


def _parse_methods(methods: Any, where: str) -> list[list[Any]]:
    if not isinstance(methods, list):
        raise ArgumentTypeError(f"{where}: expected a method or [[start, stop, method], ...], got {methods!r:.60}")
    parsed = []
    for block in methods:
        if not isinstance(block, list) or len(block) != 3:
            raise ArgumentTypeError(f"{where}: expected [start, stop, method], got {block!r:.60}")
        start, stop = _parse_bounds(block[0], block[1], where)
        method = _parse_method(block[2], where)
        if stop - start != _TAKES.get(method, stop - start):
            raise ArgumentError(f"{where}: {method} takes {_TAKES[method]} features, got {start} to {stop}")
        parsed.append([start, stop, method])
    _check_overlaps([tuple(block) for block in parsed], where)
    return parsed


def _parse_modality(given: Mapping[str, Any], where: str) -> dict[str, tuple[Part, ...]]:
    """Parses GR00T's modality.json: slices of the state and the action, new names for cameras and annotations."""
    _check_keys(given, _MODALITIES.keys(), where)
    slices: dict[str, list[Part]] = {}
    unsliced: dict[str, list[Part]] = {}
    for modality, default in _MODALITIES.items():
        for key, entry in _check_table(given.get(modality, {}), f"{where}: {modality}").items():
            path, name = f"{where}: {modality}.{key}", f"{modality}.{key}"
            stream = _check_text(
                _check_table(entry, path).get("original_key") or default or name, f"{path}: original_key"
            )
            facts = {fact: value for fact, value in entry.items() if fact not in ("original_key", "start", "end")}
            if facts.get("rotation_type", "") is None:
                del facts["rotation_type"]
            if "rotation_type" in facts:
                facts["methods"] = method_of_rotation(str(facts["rotation_type"]))
            elif modality in ("state", "action") and declares_whole(entry.get("dtype")):
                facts["methods"] = "previous"
            facts = _parse_attributes({"attributes": facts}, path)
            if "start" in entry or "end" in entry:
                start, stop = _parse_bounds(entry.get("start"), entry.get("end"), path)
                slices.setdefault(stream, []).append(Part((name,), start, stop, facts))
            else:
                unsliced.setdefault(stream, []).append(Part((name,), attributes=facts))
    for stream, parts in slices.items():
        if stream in unsliced:
            raise ArgumentError(f"{where}: {stream}: expected slices of it or all of it, got both")
        _check_overlaps([(part.start, part.stop or 0, part.names[0]) for part in parts], f"{where}: {stream}")
    return {stream: tuple(parts) for stream, parts in {**slices, **unsliced}.items()}


def _check_keys(table: Mapping[str, Any], known: Any, where: str) -> None:
    for key in table:
        if key not in known:
            raise ArgumentError(f"{where}: {key}: expected one of {', '.join(sorted(known))}")


def _check_unique(names: list[str], where: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ArgumentError(f"{where}: the new name {name!r} occurs twice")


def _check_overlaps(blocks: list[Any], where: str) -> None:
    ordered = sorted(blocks, key=lambda block: block[:2])
    for (start, stop, name), (other_start, other_stop, other) in pairwise(ordered):
        if other_start < stop:
            raise ArgumentError(
                f"{where}: {other} from {other_start} to {other_stop} overlaps {name} from {start} to {stop}"
            )


def _parse_bounds(start: Any, stop: Any, where: str) -> tuple[int, int]:
    for number in (start, stop):
        if isinstance(number, bool) or not isinstance(number, int):
            raise ArgumentTypeError(f"{where}: expected start and stop as whole numbers, got {start!r} and {stop!r}")
    if not 0 <= start < stop:
        raise ArgumentError(f"{where}: expected 0 <= start < stop, got {start} to {stop}")
    return start, stop


def _parse_method(name: Any, where: str) -> str:
    if name not in METHODS:
        raise ArgumentError(f"{where}: expected one of {', '.join(METHODS)}, got {name!r}")
    return str(name)


def _check_table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ArgumentTypeError(f"{where}: expected a table, got {value!r:.60}")
    return value


def _check_text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ArgumentTypeError(f"{where}: expected text that is not empty, got {value!r:.60}")
    return value


def _check_texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ArgumentTypeError(f"{where}: expected a list of text, got {value!r:.60}")
    return tuple(_check_text(item, where) for item in value)


def _is_kept(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    matched = any(fnmatchcase(name, pattern) for pattern in include)
    return matched and not any(fnmatchcase(name, pattern) for pattern in exclude)


# ---- recordings ----


class Mapper:
    """Applies a mapping to recordings, one after another."""

    def __init__(self, mapping: StreamMapping, notes: Notes) -> None:
        self._mapping = mapping
        self._notes = notes

    def gives_methods(self, stream: str, start: int, stop: int | None) -> bool:
        """Whether the mapping gives methods for features [start, stop) of a source's stream, in every part that has some of them.

        stop: None for all features from `start` on.
        """
        overlapping = [
            part
            for part in self._mapping.streams.get(stream, ())
            if part.stop is None or (part.start < (part.stop if stop is None else stop) and start < part.stop)
        ]
        return bool(overlapping) and all("methods" in part.attributes for part in overlapping)

    def columns(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the recording's columns of the episodes table, as the mapping changes them."""
        mapping = self._mapping
        mapped: dict[str, Any] = {}
        for column, value in metadata.items():
            if column in mapping.rename or column in mapping.without:
                self._notes.see("mapping: columns", column, True)
            if column in mapping.without:
                self._notes.leave_out(f"episodes.{column}", "the mapping excludes it")
                continue
            name = mapping.rename.get(column, column)
            if name in mapped or name in mapping.constants:
                raise FileError(f"{mapping.where}: episodes: two columns have the new name {name!r}")
            mapped[name] = value
        return {**mapped, **mapping.constants}

    def streams(self, recording: Recording) -> Iterator[tuple[str, Samples]]:
        """Yields the recording's streams by their new names."""
        for name, samples in recording.streams:
            yield from self.apply(name, samples)

    def apply(self, name: str, samples: Samples) -> Iterator[tuple[str, Samples]]:
        """Yields the streams that the mapping makes of a source's stream. Frames for several streams come chunk by chunk.

        Raises:
            FileError: the mapping does not fit the stream.
        """
        mapping = self._mapping
        self._notes.see("mapping: streams of the source", name, True)
        for pattern in (*mapping.include, *mapping.exclude):
            if fnmatchcase(name, pattern):
                self._notes.see("mapping: patterns", pattern, True)
        if not _is_kept(name, mapping.include, mapping.exclude):
            self._notes.leave_out(name, "the mapping excludes it")
            return
        parts = mapping.streams.get(name)
        self._notes.see("mapping: streams", name, True)
        if parts is None:
            self._claim_name(name, name)
            yield name, samples
            return
        if any(part.stop is not None for part in parts):
            self._check_slices(name, parts, samples)
        makes_several = sum(len(part.names) for part in parts) > 1
        for chunk in split_chunks(samples) if makes_several else [samples]:
            for part in parts:
                for new_name in part.names:
                    self._claim_name(new_name, name)
                    yield new_name, self._cut(chunk, part, name)

    def end(self) -> None:
        """Reports or refuses a mapping that names something that the source lacks.

        Raises:
            ArgumentError: the source has no such stream or column, or no stream that matches a pattern, and no such stream was left
                out either. A stream that is missing from a mapping that is not `complete` is only reported.
        """
        mapping, seen = self._mapping, self._notes.seen
        streams = seen.get("mapping: streams", {})
        left_out = {omission.what for omission in self._notes.left_out}  # such as cameras with video=False
        for stream in (name for name in mapping.streams if name not in streams):
            if not mapping.complete:
                self._notes.leave_out(stream, f"in {mapping.where}, but the source has no such stream")
            elif stream not in left_out:
                known = ", ".join(map(repr, streams))
                raise ArgumentError(f"{mapping.where}: streams.{stream}: no such stream among {known}")
        patterns = seen.get("mapping: patterns", {})
        for pattern in (*mapping.include, *mapping.exclude):
            if pattern not in patterns and not any(fnmatchcase(name, pattern) for name in left_out):
                raise ArgumentError(f"{mapping.where}: {pattern!r} matches no stream")
        columns = seen.get("mapping: columns", {})
        for column in (*mapping.rename, *mapping.without):
            if column not in columns:
                raise ArgumentError(f"{mapping.where}: episodes: no column {column!r}")

    def _claim_name(self, new_name: str, stream: str) -> None:
        """Raises if another stream of the source has the new name already."""
        self._notes.see("mapping: names", new_name, stream)
        owner = self._notes.seen["mapping: names"][new_name]
        if owner != stream:
            raise FileError(
                f"{self._mapping.where}: streams {owner!r} and {stream!r} both have the new name {new_name!r}"
            )

    def _check_slices(self, name: str, parts: Sequence[Part], samples: Samples) -> None:
        where = f"{self._mapping.where}: streams.{name}"
        if not isinstance(samples, Rows) or samples.values.ndim != 2:
            got = list(samples.values.shape[1:]) if isinstance(samples, Rows) else type(samples).__name__.lower()
            raise FileError(f"{where}: slices: expected rows of features along one axis, got {got}")
        features = samples.values.shape[1]
        is_covered = np.zeros(features, bool)
        for part in parts:
            assert part.stop is not None
            if part.stop > features:
                raise FileError(
                    f"{where}: {part.names[0]} from {part.start} to {part.stop}, but a row has {features} features"
                )
            is_covered[part.start : part.stop] = True
        edges = np.flatnonzero(np.diff(np.concatenate([[True], is_covered, [True]])))  # of the uncovered stretches
        for start, stop in edges.reshape(-1, 2).tolist():
            self._notes.leave_out(f"{name}[{start}:{stop}]", "in no slice of the mapping")

    def _cut(self, samples: Samples, part: Part, name: str) -> Samples:
        """Returns the samples of a part of the source's stream `name`, with the attributes that the mapping gives it."""
        start = part.start
        if part.is_bgr:
            where = f"{self._mapping.where}: streams.{name}"
            if not isinstance(samples, Frames):
                raise FileError(f"{where}: channels: expected a camera, got {type(samples).__name__.lower()}")
            samples = replace(samples, chunks=exchange_red_and_blue(samples, where))
        if part.stop is None:
            features = None
            if isinstance(samples, Rows | Ragged):
                features = int(np.prod(samples.values.shape[1:]))
            source_attributes = dict(samples.attributes)
        else:
            assert isinstance(samples, Rows)
            features = part.stop - start
            names = None if samples.names is None else samples.names[start : part.stop]
            samples = replace(samples, values=samples.values[:, start : part.stop], names=names)
            source_attributes = _cut_attributes(samples.attributes, start, part.stop)
            for first, end, method in samples.attributes.get("methods", ()) if "methods" not in part.attributes else ():
                is_cut = first < part.stop and start < end and not start <= first < end <= part.stop
                if method in _TAKES and is_cut:
                    why = f"the mapping cuts features {start} to {part.stop} out of it: they are interpolated number by number"
                    self._notes.leave_out(f"{part.names[0]}: {method} of features {first} to {end} of {name}", why)
        added = dict(part.attributes)
        if "rotation_type" in added and added.get("methods") == "angle" and isinstance(samples, Rows):
            texts = [str(added["rotation_type"]), part.names[0], *(samples.names or ())]
            other_unit = says_no_radians(added.get("units", source_attributes.get("units"))) or any(
                map(is_no_radian, texts)
            )
            largest = None if other_unit else self._notes.beyond_a_turn(part.names[0], samples.values)
            if other_unit or largest is not None:
                why = (
                    "not in radians"
                    if largest is None
                    else f"{added['rotation_type']} up to {largest:.4g}, more than a turn in radians"
                )
                self._notes.assume(part.names[0], f"{why}: degrees have no method, so the row before is held", name)
                added["methods"] = "previous"
        elif "rotation_type" in added and added.get("methods") == "previous":
            self._notes.leave_out(f"{part.names[0]}: values between rows", why_held(str(added["rotation_type"])))
        if isinstance(added.get("methods"), str) and features is not None:
            added["methods"] = [[0, features, added["methods"]]]
        if "methods" in added and not isinstance(samples, Rows):
            raise FileError(f"{self._mapping.where}: streams.{name}: methods: expected numbers of one shape a row")
        try:
            if features is not None:
                units = {"units": source_attributes["units"]} if "units" in source_attributes else {}
                _check_attributes({**units, **added}, features, f"{self._mapping.where}: streams.{name}")
        except ArgumentError as error:
            raise FileError(str(error)) from error
        if isinstance(added.get("methods"), list):  # features that the mapping does not name keep the source's methods
            added["methods"] = with_others(added["methods"], source_attributes.get("methods", []))
        attributes = {**source_attributes, **added}
        return replace(samples, attributes=attributes) if attributes else samples


def _check_attributes(attributes: Mapping[str, Any], features: int, where: str) -> None:
    """Refuses units and methods that do not fit the number of features."""
    units, methods = attributes.get("units"), attributes.get("methods")
    if isinstance(units, list) and len(units) != features:
        raise ArgumentError(f"{where}: units: expected {features}, got {len(units)}")
    if isinstance(methods, str):
        methods = [[0, features, methods]]
    for start, stop, method in methods if isinstance(methods, list) else []:
        if stop > features:
            raise ArgumentError(f"{where}: methods: {method} from {start} to {stop}, but there are {features} features")
        if stop - start != _TAKES.get(method, stop - start):
            raise ArgumentError(f"{where}: methods: {method} takes {_TAKES[method]} features, got {stop - start}")
        if method == "angle" and says_no_radians(units[start:stop] if isinstance(units, list) else units):
            raise ArgumentError(f"{where}: methods: angle takes radians, got units {units!r}; 'previous' holds degrees")


def _cut_attributes(attributes: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
    """Returns the attributes of features [start, stop) of a source's stream, whose attributes are `attributes`."""
    cut = dict(attributes)
    if isinstance(cut.get("units"), list):
        cut["units"] = cut["units"][start:stop]
    if isinstance(cut.get("methods"), list):
        blocks = [
            [max(first, start) - start, min(end, stop) - start, method]
            for first, end, method in cut["methods"]
            if first < stop and end > start
        ]
        cut["methods"] = [
            [first, end, method] for first, end, method in blocks if end - first == _TAKES.get(method, end - first)
        ]
    return cut


# ---- a draft ----


@dataclass
class Found:
    """A stream that a preview found.

    kind: "numbers", "frames", "arrays" (ragged ones), or "text".
    shape: the shape of a row; of ragged rows, that of an element.
    rate_hz: the rate of the median period; None for fewer than two stamps.
    """

    kind: str
    dtype: str
    shape: list[int]
    names: list[str] | None
    clock: str
    attributes: dict[str, Any]
    rows: int = 0
    rate_hz: float | None = None


# A stream's rate is computed from about this many stamps.
_MOST_STAMPS = 65536


def find_streams(streams: Iterator[tuple[str, Samples]]) -> dict[str, Found]:
    """Finds a recording's streams. Reads of each camera only the first frames."""
    found: dict[str, Found] = {}
    times: dict[str, list[np.ndarray]] = {}
    for name, samples in streams:
        first = next(split_chunks(samples))
        time_ns = stamps(first)
        if name not in found and (len(time_ns) or not isinstance(samples, Frames)):
            found[name] = _describe(first)
        if name in found:
            found[name].rows += len(time_ns)
            if sum(map(len, times.setdefault(name, []))) < _MOST_STAMPS:
                times[name].append(time_ns)
    for name, parts in times.items():
        steps = np.diff(np.concatenate(parts))
        period = float(np.median(steps)) if len(steps) else 0.0
        found[name].rate_hz = float(f"{1e9 / period:.6g}") if period > 0 else None
    return found


def _describe(samples: Samples) -> Found:
    clock_and_attributes: tuple[Any, ...] = (samples.clock, dict(samples.attributes))
    match samples:
        case Rows(values=values, names=names):
            return Found("numbers", str(values.dtype), list(values.shape[1:]), names, *clock_and_attributes)
        case Ragged(values=values, names=names):
            return Found("arrays", str(values.dtype), list(values.shape[1:]), names, *clock_and_attributes)
        case Texts():
            return Found("text", "str", [], None, *clock_and_attributes)
        case Frames(chunks=chunks):
            ((_, images),) = chunks
            encoded = frames.take(images) if isinstance(images, list) else images
            return Found("frames", str(encoded.dtype), list(encoded.shape[-3:]), None, *clock_and_attributes)


def draft(streams: Mapping[str, Found], columns: Mapping[str, Any], title: Sequence[str]) -> str:
    """Returns a mapping of these streams and columns as TOML, ready to edit. Unedited it changes nothing."""
    lines = [f"# {printable(line)}" for line in title]
    lines += ["", 'include = ["*"]', "exclude = []"]
    for name, found in streams.items():
        rate = "" if found.rate_hz is None or found.kind == "text" else f", {found.rate_hz:g} Hz"
        row = f"{found.dtype} {found.shape}{'' if found.kind == 'numbers' else f' {found.kind}'}"
        lines += [
            "",
            f"[streams.{toml(name)}]  # {'text' if found.kind == 'text' else row}{rate}, {found.clock} clock",
            f"name = {toml(name)}",
        ]
        if "clock_source" in found.attributes:
            lines.append(f"# clock_source: {toml(found.attributes['clock_source'])}")
        if found.names:
            lines.append(f"# features: {toml(found.names)}")
        lines += [f"{key} = {toml(found.attributes[key])}" for key in ("units", "methods") if key in found.attributes]
        if found.kind == "numbers" and len(found.shape) == 1:
            if "units" not in found.attributes:
                lines.append('# units = ""  # such as "rad" or "m", or a list, one a feature')
            if "methods" not in found.attributes:
                lines.append(f'# methods = [[0, {found.shape[0]}, "linear"]]')
            lines += [
                f"# slices = [{{ name = {toml(f'{name}.part')}, start = 0, stop = {found.shape[0]} }}]  # without name",
            ]
    lines += ["", "[episodes]", "exclude = []", "", "[episodes.rename]"]
    lines += [f"# {toml(column)} = {toml(column)}" for column in columns]
    lines += ["", "[episodes.constants]", '# robot = "arm 1"']
    return "\n".join(lines) + "\n"


def toml(value: Any) -> str:
    """Returns a value as TOML. A text is quoted, so it may also be a key."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    text = json.dumps(value, ensure_ascii=False)
    return "".join(character if character.isprintable() else f"\\U{ord(character):08x}" for character in text)
