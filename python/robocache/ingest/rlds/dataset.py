"""Reads RLDS datasets, such as those of Open X-Embodiment: shards in TFRecord that TFDS wrote, where each record is an episode.

features.json describes an Example, and dataset_info.json has the number of records. The rate is the user's or, without one, the
episode's own.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..._printable import ranges
from ...errors import Error, FileError
from ..files import check_file, list_files, read_whole
from ..formats.rlds import SHARD, RldsOptions
from ..images import Images, Kinds, store_pixels
from ..rate import find_rate, nominal_time_ns, said_rates, tell_rates
from ..recording import Notes, Ragged, Recording, Rows, Samples, SourceError, Texts, naming
from .features import STEPS, Feature, decode_tensor, holds_files, infer_features, parse_features, take_values, to_dtype
from .tfrecord import Shard, Values, parse_example, read_record, scan_shard

# Decoded tensors are written in chunks of about this many bytes.
_CHUNK_BYTES = 2**25
# The most numbers in a cell of the episodes table.
_LARGEST_CELL = 4096
# Without features.json, the features are those that most of this many records have.
_SAMPLED = 5
# Features of steps whose text instructs the robot. The first that exists becomes the stream of the task.
_INSTRUCTIONS = ("language_instruction", "natural_language_instruction")

# The columns that the reader and the cache add to the episodes table.
_COLUMNS = {"tasks", "split", "source_file", "source_record", "episode_index", "start_ns", "end_ns"}


def read(source: Path, options: RldsOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every record of every shard, split by split."""
    files = list_files(source)
    files.note(source if source.is_dir() else source.parent, notes)
    shard_files = [file for file in files.files if SHARD.fullmatch(file.name)]
    folders = sorted({file.parent for file in shard_files})
    if len(folders) != 1:
        advice = "; ingest one of them: " + ", ".join(map(str, folders)) if folders else ""
        raise FileError(f"{source}: expected the shards (*.tfrecord-00000-of-00001) of one dataset{advice}")
    info = _read_info(folders[0], notes)
    shards = [shard for file in shard_files if (shard := _scan(file, notes)) is not None]
    if source.is_dir():
        _check_shards(folders[0], shard_files, info, notes)
    _check_counts(shards, info, notes)
    notes.total = sum(len(shard.offsets) for shard in shards)
    records: Counter[str] = Counter()
    for shard in shards:
        records[_split_name(shard.file)["split"]] += len(shard.offsets)
    notes.tell(source, **info.facts, splits=dict(records))
    features = _read_features(folders[0], shards, notes)
    used = {"features.json", "dataset_info.json", *(_labels_name(feature) for feature in features if feature.words)}
    for file in files.files:
        if file not in shard_files and file.name not in used:
            notes.leave_out(file.name, "not a shard of the dataset")
    dataset = _Dataset(options, notes, features)
    for shard in shards:
        for number in range(len(shard.offsets)):
            what, where = f"{shard.file.name}: record {number}", f"{shard.file}: record {number}"
            recording = None if notes.wants(notes.position) else Recording(what, where, {}, ())
            with notes.reading(what, where):
                recording = recording or _read_record(shard, number, dataset, what, where)
            if recording is None:
                notes.position += 1
            else:
                yield recording


finish = tell_rates


def _read_record(shard: Shard, number: int, dataset: _Dataset, what: str, where: str) -> Recording:
    example = parse_example(read_record(shard, number))
    metadata = dataset.metadata(example, what, where)
    rate_hz = dataset.rate_hz(metadata, where)
    facts = {"split": _split_name(shard.file)["split"], "source_file": shard.file.name, "source_record": number}
    return Recording(what, where, metadata | facts, dataset.streams(example, what, where, rate_hz))


def _split_name(shard: Path) -> re.Match[str]:
    """Returns a match with the parts of a shard's file name: name, split, number, count."""
    parts = SHARD.fullmatch(shard.name)
    assert parts is not None
    return parts


# ---- the files ----


@dataclass(frozen=True)
class _Info:
    """The content of dataset_info.json.

    facts: the texts that become provenance.
    lengths: the number of records in each shard, by split.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    lengths: dict[str, list[int]] = field(default_factory=dict)


def _read_info(folder: Path, notes: Notes) -> _Info:
    """Reads dataset_info.json. Returns an empty _Info if the file is missing or skipped."""
    file = folder / "dataset_info.json"
    if not os.path.lexists(file):
        notes.leave_out("dataset_info.json", "not there: the number of records is not checked")
        return _Info()
    with notes.reading(file.name, file):
        content = json.loads(read_whole(file))
        if not isinstance(content, dict):
            raise SourceError(f"{file}: expected an object, got {content!r:.60}")
        texts = ("name", "version", "description", "citation", "moduleName")
        facts = {key: content[key] for key in texts if isinstance(content.get(key), str)}
        json.dumps(facts, ensure_ascii=False).encode()
        splits = {split["name"]: split for split in content.get("splits", [])}
        return _Info(facts, {name: [int(length) for length in split["shardLengths"]] for name, split in splits.items()})
    return _Info()


def _read_features(folder: Path, shards: list[Shard], notes: Notes) -> list[Feature]:
    """Reads the features from features.json, or infers them from a few records if there is no such file."""
    file = folder / "features.json"
    try:
        if os.path.lexists(file):
            with naming(file):
                features, left_out = parse_features(json.loads(read_whole(file)))
        else:
            notes.leave_out("features.json", "not there: shapes are flat, and whole numbers int64")
            features, left_out = _infer_features(folder, shards)
    except SourceError as error:
        raise FileError(str(error)) from error
    for key, why in left_out.items():
        notes.leave_out(key, why)
    return [_read_words(feature, folder / _labels_name(feature), notes) for feature in features]


def _labels_name(feature: Feature) -> str:
    return f"{feature.key.replace('/', '-')}.labels.txt"


def _read_words(feature: Feature, file: Path, notes: Notes) -> Feature:
    """Returns the feature; if its numbers are classes, with the classes' words, which TFDS writes to a file, one a line."""
    if feature.is_label and os.path.lexists(file):
        with notes.reading(file.name, file):
            words = read_whole(file).decode(errors="backslashreplace").splitlines()
            if not feature.in_steps:
                shown = [f"{number} {word}" for number, word in enumerate(words[:32])] + ["..."] * (len(words) > 32)
                notes.leave_out(f"{feature.name}: words", f"its number is kept: {', '.join(shown)}")
            return replace(feature, words={word: number for number, word in enumerate(words)})
    return feature


def _infer_features(folder: Path, shards: list[Shard]) -> tuple[list[Feature], dict[str, str]]:
    """Returns the features that most of a few records have; these are spread evenly, because the first may be odd or damaged."""
    records = [(shard, number) for shard in shards for number in range(len(shard.offsets))]
    if not records:
        raise FileError(f"{folder}: no records")
    candidates: dict[str, list[tuple[list[Feature], dict[str, str]]]] = {}
    errors: list[SourceError] = []
    for index in dict.fromkeys(len(records) * part // _SAMPLED for part in range(_SAMPLED)):
        shard, number = records[index]
        try:
            with naming(f"{shard.file}: record {number}"):
                features, left_out = infer_features(parse_example(read_record(shard, number)))
        except SourceError as error:
            errors.append(error)
        else:
            candidates.setdefault(str(features), []).append((features, left_out))
    if not candidates:
        raise errors[0]
    return max(candidates.values(), key=len)[0]


def _scan(file: Path, notes: Notes) -> Shard | None:
    shard = None
    with notes.reading(file.name, file):
        check_file(file)
        shard = scan_shard(file)
    if shard is not None and shard.damage is not None:
        notes.skip(f"{file.name}: record {len(shard.offsets)} and all after it", shard.damage)
    return shard


def _check_shards(folder: Path, files: list[Path], info: _Info, notes: Notes) -> None:
    """Reports missing shards."""
    numbers: defaultdict[tuple[str, str, int], set[int]] = defaultdict(set)
    for file in files:
        parts = _split_name(file)
        numbers[parts["name"], parts["split"], int(parts["count"])].add(int(parts["number"]))
    for (name, split, count), present in numbers.items():
        if len(present) != count or max(present) >= count:
            missing = _gaps(sorted(present), count)
            what = f"{name}-{split}.tfrecord-*-of-{count:05d}: shards {missing}"
            notes.skip(what, SourceError(f"{folder}: {name}-{split}: expected {count} shards, {missing} are not there"))
    for split, lengths in info.lengths.items():
        if sum(lengths) and not any(split == name_of_split for _, name_of_split, _ in numbers):
            error = SourceError(f"{folder}: split {split!r} of {sum(lengths)} records has no shards here")
            notes.skip(f"split {split}", error)


def _gaps(present: list[int], count: int) -> str:
    """Returns the numbers below `count` that are missing, such as "3-5, 7"; if none is, the numbers of `count` or more."""
    bounds = [-1, *(number for number in present if number < count), count]
    runs = [(low + 1, high - 1) for low, high in pairwise(bounds) if high - low > 1]
    gaps = ", ".join(f"{low}-{high}" if low < high else str(low) for low, high in runs)
    return gaps or ranges([number for number in present if number >= count])


def _check_counts(shards: list[Shard], info: _Info, notes: Notes) -> None:
    """Compares the number of records with that in dataset_info.json."""
    for shard in shards:
        parts = _split_name(shard.file)
        lengths = info.lengths.get(parts["split"], [])
        number, count = int(parts["number"]), len(shard.offsets)
        if shard.damage is None and len(lengths) == int(parts["count"]) > number and lengths[number] != count:
            message = f"{shard.file}: expected {lengths[number]} records, by dataset_info.json, got {count}"
            notes.skip(f"{shard.file.name}: number of records", SourceError(message))


# ---- an episode ----


def _count_steps(feature: Feature, values: Values) -> int | None:
    """Returns how many steps have these values; None if the feature's shape does not determine it."""
    size = feature.row_size
    if size is None:
        return None
    if len(values) % size:
        raise Error(f"{feature.key}: {len(values)} values are no rows of {list(feature.shape)}")
    return len(values) // size


class _Dataset:
    """Turns Examples into metadata and streams."""

    def __init__(self, options: RldsOptions, notes: Notes, features: list[Feature]) -> None:
        self._options = options
        self._notes = notes
        self._features = features
        self._kinds = Kinds()
        self._files: set[str] = set()  # text features that are cameras
        texts = [feature for feature in features if feature.in_steps and feature.kind == "text"]
        by_name = {feature.key.rpartition("/")[2]: feature for feature in texts}
        self._task = next((by_name[name] for name in _INSTRUCTIONS if name in by_name), None)
        self._instructions = [feature for feature in texts if feature.key.endswith(_INSTRUCTIONS)]

    def metadata(self, example: Mapping[str, Values | None], what: str, where: str) -> dict[str, Any]:
        """Returns the columns of the episodes table: the features outside the steps, and `tasks`, the steps' instructions."""
        known = {key for feature in self._features for key in feature.keys}
        reported = {omission.what for omission in self._notes.left_out}
        for key in example:
            if key not in known and not any(key == part or key.startswith(f"{part}/") for part in reported):
                self._notes.leave_out(key, "in no features.json")
        columns: dict[str, Any] = {}
        tasks: dict[str, None] = {}
        for feature in self._features:
            if feature.name in _COLUMNS and not feature.in_steps:
                self._notes.leave_out(feature.key, "the episodes table has a column of that name")
            elif not feature.in_steps:
                with self._notes.reading(f"{what}: {feature.key}", where):
                    cell = self._make_cell(feature, example)
                    if cell is not ...:
                        columns[feature.name] = cell
        for feature in self._instructions:
            with contextlib.suppress(Error):  # streams() reports it
                tasks.update(dict.fromkeys(self._decode_texts(feature, take_values(feature, example))))
        if self._instructions:
            columns["tasks"] = [task for task in tasks if task]
        return columns

    def _make_cell(self, feature: Feature, example: Mapping[str, Values | None]) -> Any:
        """Returns the feature's value as a cell of the episodes table; `...` if the table cannot hold it."""
        values = take_values(feature, example)
        if feature.encoding != "none" or len(values) > _LARGEST_CELL:
            self._notes.leave_out(feature.key, "too large for the episodes table")
            return ...
        if holds_files(values):
            self._notes.leave_out(feature.key, "images, but not one for each step")
            return ...
        if isinstance(values, list):
            cells: list[Any] = self._decode_texts(feature, values)
        else:
            cells = to_dtype(feature, values).tolist()
            if feature.dtype == np.bool_ and feature.shape:
                cells = [int(cell) for cell in cells]
        if len(cells) == 1 and not feature.shape:
            return None if isinstance(cells[0], float) and not math.isfinite(cells[0]) else cells[0]
        if not all(math.isfinite(cell) for cell in cells if isinstance(cell, float)):
            self._notes.leave_out(feature.key, "a list that has NaN or infinity")
            return ...
        return cells

    def rate_hz(self, metadata: Mapping[str, Any], where: str) -> float:
        """Returns the steps per second: the user's rate or, without one, the episode's own. If both exist, they must agree."""
        rates, why = dict(said_rates(metadata, "")), "it does not say at what rate it was recorded"
        rate_hz, origin = find_rate(self._options.rate_hz, where, why, rates, self._notes)
        self._notes.count("rates", f"{rate_hz:g} Hz, {origin}")
        return rate_hz

    def streams(
        self, example: Mapping[str, Values | None], what: str, where: str, rate_hz: float
    ) -> Iterator[tuple[str, Samples]]:
        """Yields an episode's streams. Cameras and large tensors come in parts."""
        counts: dict[str, int] = {}
        values: dict[str, Values] = {}
        errors: dict[str, SourceError] = {}
        for feature in (feature for feature in self._features if feature.in_steps):
            try:
                with naming(where):
                    feature_values = take_values(feature, example)
                    if (steps := _count_steps(feature, feature_values)) is not None:
                        counts[feature.key] = steps
                    values[feature.key] = feature_values
            except SourceError as error:
                errors[feature.key] = error
        if not counts:
            unknown = Error("expected a feature of known shape, which shows the number of steps")
            raise next(iter(errors.values()), unknown)
        for key, cause in errors.items():
            self._notes.skip(f"{what}: {key}", cause)
        steps = Counter(counts.values()).most_common(1)[0][0]
        time_ns = nominal_time_ns(0, steps, rate_hz)
        self._report_last_actions(values, steps)
        for feature in (feature for feature in self._features if feature.key in values):
            with self._notes.reading(f"{what}: {feature.key}", where):
                if counts.get(feature.key, steps) != steps:
                    raise Error(f"{feature.key}: {counts[feature.key]} steps, but {steps} in most others")
                if steps == 0:
                    continue
                if feature.kind == "text" and holds_files(values[feature.key]) and feature.key not in self._files:
                    self._files.add(feature.key)
                    why = "a camera: its strings are JPEG or PNG files, though features.json says text"
                    self._notes.assume(feature.name, why, feature.name)
                if feature.kind == "image" or feature.key in self._files:
                    yield from self._yield_images(feature, values[feature.key], time_ns, what, where)
                elif feature.kind == "text":
                    texts = self._decode_texts(feature, values[feature.key])
                    task = {"task": True} if feature is self._task else {}
                    yield feature.name, Texts(time_ns, texts, "nominal", _attributes(feature) | task)
                else:
                    yield from self._yield_numbers(feature, example, values[feature.key], time_ns)

    def _report_last_actions(self, values: Mapping[str, Values], steps: int) -> None:
        """Reports actions that are 0 only in the step that is_last marks: by RLDS, that step's action does not count."""
        marks = values.get(f"{STEPS}is_last")
        if not isinstance(marks, np.ndarray) or len(marks) != steps or steps < 2 or not marks[-1]:
            return
        for feature in self._features:
            action = values.get(feature.key)
            if feature.name.split("/")[0] != "action" or not isinstance(action, np.ndarray) or len(action) % steps:
                continue
            rows = action.reshape(steps, -1)
            if not rows[-1].any() and rows[:-1].any(axis=1).all():
                what = f"{feature.name}: a valid action in the row that is_last marks"
                self._notes.leave_out(what, "0 there alone, and RLDS says it does not count; the row is kept")

    def _decode_texts(self, feature: Feature, values: Values) -> list[str]:
        try:
            return [str(value, "utf-8") for value in values]
        except UnicodeDecodeError:
            self._notes.leave_out(f"{feature.key}: bytes that are no UTF-8", "escaped, as \\xff")
            return [str(value, "utf-8", "backslashreplace") for value in values]

    def _yield_images(
        self, feature: Feature, values: Values, time_ns: np.ndarray, what: str, where: str
    ) -> Iterator[tuple[str, Samples]]:
        """Yields a camera's images; leaves out empty ones, which TFDS writes for a step without an image."""
        rows = [row for row, value in enumerate(values) if len(value)]
        if len(rows) < len(values):
            self._notes.leave_out(
                f"{feature.name}: rows whose image is empty", "TFDS writes these if there is no image"
            )
        images = [values[row] for row in rows]
        camera = Images(feature.name, what, where, time_ns[rows], "nominal", lambda row: bytes(images[row]), rows)
        frames = camera.stored(self._options, self._kinds, self._notes)
        if frames is not None:
            yield feature.name, frames

    def _yield_numbers(
        self, feature: Feature, example: Mapping[str, Values | None], values: Values, time_ns: np.ndarray
    ) -> Iterator[tuple[str, Samples]]:
        steps = len(time_ns)
        attributes = _attributes(feature)
        if isinstance(values, list):
            yield from self._yield_tensors(feature, values, time_ns)
            return
        numbers = to_dtype(feature, values)
        if feature.is_ragged or None in feature.shape:
            sides = [side for side in feature.shape if side is not None]
            size = math.prod(sides)
            elements, excess = divmod(len(numbers), size)
            if feature.is_ragged:
                lengths = np.asarray(take_values(feature, example, feature.keys[1]))
            else:
                lengths = np.full(steps, elements // steps)
            if excess or len(lengths) != steps or (lengths < 0).any() or lengths.sum() != elements:
                raise Error(
                    f"{feature.key}: {len(numbers)} values in {len(lengths)} lists of {int(lengths.sum())} elements of "
                    f"{size}, expected {steps} lists"
                )
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            rows = numbers.reshape(elements, *sides)
            yield feature.name, Ragged(time_ns, rows, offsets, None, "nominal", attributes)
            return
        rows = numbers.reshape(steps, *(size or 0 for size in feature.shape))
        if feature.dtype == np.uint8 and rows.ndim == 4 and rows.shape[3] == 3:
            yield feature.name, store_pixels(feature.name, time_ns, rows, self._options, "nominal", self._notes)
        else:
            yield feature.name, Rows(time_ns, rows, None, "nominal", attributes)

    def _yield_tensors(
        self, feature: Feature, values: list[memoryview], time_ns: np.ndarray
    ) -> Iterator[tuple[str, Samples]]:
        """Yields rows of tensors that are stored as strings of bytes, in parts."""
        is_picture = feature.dtype == np.uint8 and len(feature.shape) == 3 and feature.shape[2] == 3
        tensors: list[np.ndarray] = []
        start = size = 0
        for row, value in enumerate(values, 1):
            tensors.append(decode_tensor(feature, row - 1, value))
            size += tensors[-1].nbytes
            if size < _CHUNK_BYTES and row < len(values):
                continue
            part = time_ns[start:row]
            if None in feature.shape:
                offsets = np.concatenate([[0], np.cumsum([len(tensor) for tensor in tensors])]).astype(np.int64)
                elements = np.concatenate(tensors)
                yield feature.name, Ragged(part, elements, offsets, None, "nominal", _attributes(feature))
            elif is_picture:
                pixels = np.stack(tensors)
                yield feature.name, store_pixels(feature.name, part, pixels, self._options, "nominal", self._notes)
            else:
                yield feature.name, Rows(part, np.stack(tensors), None, "nominal", _attributes(feature))
            tensors, start, size = [], row, 0


def _attributes(feature: Feature) -> dict[str, Any]:
    attributes: dict[str, Any] = {"description": feature.description} if feature.description else {}
    attributes |= {"words": dict(feature.words)} if feature.words else {}
    is_relative = feature.name.rpartition("/")[2].startswith("rel_actions")  # as CALVIN describes actions of this name
    return {**attributes, "absolute": False} if is_relative else attributes
