"""Reads CALVIN, where a folder is a split: each step in it is a .npz, and a table lists the first and last steps of episodes.

The rate is control_freq of the simulation's settings, which are beside the data, or the user's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .._printable import ranges
from ..errors import FileError
from .files import check_file
from .formats.calvin import EPISODES, CalvinOptions
from .images import store_pixels
from .npz import read_npz
from .rate import find_rate, nominal_time_ns
from .recording import Notes, Recording, Rows, Samples, SourceError, Texts, naming

_STEP = re.compile(r"episode_(\d{1,18})\.npz")
_SETTINGS = Path(".hydra") / "merged_config.yaml"
_SCENES = "scene_info.npy"
_LANGUAGE = Path("lang_annotations") / "auto_lang_ann.npy"
_RATE = re.compile(r"^\s*control_freq:\s*([0-9.]+)\s*$", re.MULTILINE)
# The most steps and bytes that are read and written at once.
_STEPS, _BYTES = 64, 2**25
# All steps must have the layout that is most frequent among this many of them.
_COMPARED = 5
# The most bytes of a pickle; CALVIN's are smaller.
_LARGEST_PICKLE = 2**29


def read(source: Path, options: CalvinOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every episode of every split."""
    subfolders = sorted(path for path in source.iterdir() if path.is_dir()) if source.is_dir() else []
    folders = [folder for folder in [source, *subfolders] if os.path.lexists(folder / EPISODES)]
    if not folders:
        raise FileError(f"{source}: expected {EPISODES} in it, or in its folders training and validation")
    splits: list[_Split] = []
    for folder in folders:
        rate_hz, rate_from = _find_rate(folder, options, notes)
        with notes.reading(_name(folder), folder):
            splits.append(_read_split(folder, rate_hz, options, notes))
            notes.tell(folder, **{_name(folder): {"rate_hz": rate_hz, "rate_from": rate_from}})
    notes.total = sum(len(split.episodes) for split in splits)
    layout = _Layout.of(splits)
    for split in splits:
        for number, (start, stop) in enumerate(split.episodes):
            what, where = f"{split.name}: episode {number}", f"{split.folder}: episode {number}"
            metadata = {"split": split.name, "source_episode_index": number, "first_step": start, "last_step": stop - 1}
            metadata |= split.metadata(start, stop)
            yield Recording(what, where, metadata, _read_episode(split, what, start, stop, layout, options, notes))


# ---- a split ----


@dataclass(frozen=True)
class _Language:
    """The annotations of spans of steps, sorted by their starts.

    starts, stops: int64 ``[n]``: the first step, and the step after the last.
    """

    starts: np.ndarray
    stops: np.ndarray
    texts: list[str]
    tasks: list[str]
    embeddings: np.ndarray

    def texts_in(self, start: int, stop: int) -> tuple[np.ndarray, list[str]]:
        """Returns the steps in [start, stop), counted from `start`, at which the valid text changes, and the text from each of them on:
        "" where no annotation is valid. Where several are valid, the text is that of the last to begin."""
        valid = np.full(stop - start, -1)
        for number in np.flatnonzero((self.starts < stop) & (self.stops > start)).tolist():
            valid[max(self.starts[number] - start, 0) : self.stops[number] - start] = number
        steps = np.flatnonzero(np.diff(valid, prepend=-1))
        return steps, [self.texts[number] if number >= 0 else "" for number in valid[steps].tolist()]

    def within(self, start: int, stop: int) -> slice:
        """Returns the annotations that begin in [start, stop)."""
        first, last = np.searchsorted(self.starts, [start, stop]).tolist()
        return slice(first, last)


@dataclass(frozen=True)
class _Split:
    """A folder of steps.

    episodes: each episode's first step, and the step after its last.
    digits: how many digits a step's number has in its file's name.
    scenes: each scene's name, its first step, and the step after its last.
    """

    folder: Path
    rate_hz: float
    episodes: list[tuple[int, int]]
    digits: int
    scenes: list[tuple[str, int, int]]
    language: _Language | None

    @property
    def name(self) -> str:
        return _name(self.folder)

    def file(self, step: int) -> Path:
        return self.folder / f"episode_{step:0{self.digits}d}.npz"

    def metadata(self, start: int, stop: int) -> dict[str, Any]:
        """Returns the metadata of an episode that the pickles hold."""
        columns: dict[str, Any] = {}
        if self.scenes:
            columns["scene"] = next((name for name, first, last in self.scenes if first <= start < last), None)
        if self.language is not None:
            columns["tasks"] = list(dict.fromkeys(self.language.texts[self.language.within(start, stop)]))
        return columns


def _name(folder: Path) -> str:
    """Returns the name of a split, such as "training", also if the folder is "."."""
    return os.path.basename(os.path.abspath(folder))


def _find_rate(folder: Path, options: CalvinOptions, notes: Notes) -> tuple[float, str]:
    """Returns the steps per second, and where that rate comes from."""
    file = folder / _SETTINGS
    numbers: list[float] = []
    if os.path.lexists(file):
        try:
            check_file(file)
            numbers = sorted({float(number) for number in _RATE.findall(file.read_text(errors="replace"))})
        except (SourceError, ValueError) as error:
            raise FileError(str(error)) from error
    setting = f"control_freq in {_SETTINGS}"
    rates = {setting if len(numbers) == 1 else f"{setting} (number {k})": rate for k, rate in enumerate(numbers, 1)}
    return find_rate(options.rate_hz, folder, f"no {setting} says at what rate it was recorded", rates, notes)


def _read_split(folder: Path, rate_hz: float, options: CalvinOptions, notes: Notes) -> _Split:
    table = folder / EPISODES
    with naming(table):
        check_file(table)
        ids = np.load(table, mmap_mode="r", allow_pickle=False)
        if ids.ndim != 2 or ids.shape[1] != 2 or ids.dtype.kind not in "iu" or not len(ids):
            raise SourceError(f"{table}: expected whole numbers [episodes, 2], got {ids.dtype} {list(ids.shape)}")
        spans = ids.astype(np.int64)
        bad = np.flatnonzero((spans[:, 0] < 0) | (spans[:, 1] < spans[:, 0]) | (spans[:, 1] > 10**18))
        if len(bad):
            raise SourceError(f"{table}: row {bad[0]}: expected a first and a last step, got {spans[bad[0]].tolist()}")
    episodes = [(first, last + 1) for first, last in spans.tolist()]
    ordered = spans[np.argsort(spans[:, 0], kind="stable")]
    overlaps = np.flatnonzero(ordered[1:, 0] <= ordered[:-1, 1])
    if len(overlaps):
        row = int(overlaps[0])
        error = SourceError(f"{table}: steps {ordered[row].tolist()} and {ordered[row + 1].tolist()} overlap")
        notes.skip(f"{_name(folder)}: that episodes share no steps", error)
    digits = _count_digits(folder, ordered, notes)
    scenes: list[tuple[str, int, int]] = []
    language = None
    pickles = [name for name in (_SCENES, str(_LANGUAGE)) if os.path.lexists(folder / name)]
    for name in pickles:
        if not options.trust_pickle:
            notes.leave_out(name, "a pickle, which runs whatever code is in it; trust_pickle loads it")
            continue
        with notes.reading(f"{_name(folder)}/{name}", folder / name):
            if name == _SCENES:
                content = _unpickle(folder / name)
                scenes = [(str(scene), int(first), int(last) + 1) for scene, (first, last) in content.items()]
                continue
            language = _read_language(folder / name)
            bounds = np.searchsorted(language.starts, [spans[:, 0], spans[:, 1] + 1])  # of each episode's annotations
            outside = len(language.starts) - int(np.diff(bounds, axis=0).sum())
            if outside > 0:
                notes.leave_out(f"{_name(folder)}: {outside} annotations", "they begin in no episode")
    return _Split(folder, rate_hz, episodes, digits, scenes, language)


def _count_digits(folder: Path, spans: np.ndarray, notes: Notes) -> int:
    """Returns how many digits a step's number has in file names. Reports steps outside all episodes, and files that are no step."""
    steps: list[int] = []
    digits: set[int] = set()
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _STEP.fullmatch(entry.name)
            if match is not None:
                steps.append(int(match[1]))
                digits.add(len(match[1]))
            elif entry.name not in (EPISODES, _SCENES, _LANGUAGE.parent.name, _SETTINGS.parent.name):
                notes.leave_out(f"{_name(folder)}/{entry.name}", "no step")
    if not steps:
        raise SourceError(f"{folder}: expected a file a step (episode_0000000.npz), found none")
    numbers = np.array(steps)
    index = np.searchsorted(spans[:, 0], numbers, side="right") - 1
    orphans = int(np.count_nonzero((index < 0) | (numbers > spans[np.maximum(index, 0), 1])))
    if orphans:
        notes.leave_out(f"{_name(folder)}: {orphans} steps", f"in no episode of {EPISODES}")
    return min(digits)


def _unpickle(file: Path) -> dict[str, Any]:
    """Reads a pickle that the user trusts."""
    check_file(file)
    if file.stat().st_size > _LARGEST_PICKLE:
        raise SourceError(f"{file}: expected at most {_LARGEST_PICKLE} bytes")
    array = np.load(file, allow_pickle=True)
    content = array.item() if array.ndim == 0 else array
    if not isinstance(content, dict):
        raise SourceError(f"{file}: expected a dict, got {type(content).__name__}")
    return content


def _read_language(file: Path) -> _Language:
    content = _unpickle(file)
    spans = np.array(content["info"]["indx"], np.int64).reshape(-1, 2)
    texts, tasks = ([str(text) for text in content["language"][key]] for key in ("ann", "task"))
    embeddings = np.asarray(content["language"]["emb"], np.float32).reshape(len(spans), -1)
    if not len(spans) == len(texts) == len(tasks):
        raise SourceError(f"{file}: expected as many texts as spans, got {len(texts)}, {len(tasks)} and {len(spans)}")
    order = np.argsort(spans[:, 0], kind="stable")
    return _Language(
        spans[order, 0],
        spans[order, 1] + 1,
        [texts[index] for index in order],
        [tasks[index] for index in order],
        embeddings[order],
    )


# ---- an episode ----


@dataclass
class _Layout:
    """The arrays that all steps must have.

    arrays: each array's dtype and shape.
    file: the file of a step that has these arrays.
    """

    arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = field(default_factory=dict)
    file: Path | None = None

    @classmethod
    def of(cls, splits: list[_Split]) -> _Layout:
        """Returns the most frequent layout of a few steps from all over the splits, since the first step may be odd or damaged."""
        by_arrays: dict[str, list[_Layout]] = {}
        episodes = [(split, start, stop) for split in splits for start, stop in split.episodes]
        for part in range(_COMPARED):
            split, start, stop = episodes[len(episodes) * part // _COMPARED]
            file = split.file(start + (stop - start) * part // _COMPARED)
            with suppress(SourceError), naming(file):  # reported when the step is read
                layout = cls({name: (array.dtype, array.shape) for name, array in read_npz(file).items()}, file)
                by_arrays.setdefault(str(layout.arrays), []).append(layout)
        return max(by_arrays.values(), key=len)[0] if by_arrays else cls()

    def compare(self, arrays: dict[str, np.ndarray], file: Path) -> dict[str, SourceError]:
        """Returns an error for each array of a step that differs from this layout, or is missing. A layout without a file takes the
        step's arrays."""
        step = {name: (array.dtype, array.shape) for name, array in arrays.items()}
        if self.file is None:
            self.arrays, self.file = step, file
        return {
            name: SourceError(
                f"{file}: {name}: {_describe(step.get(name))}, but {_describe(self.arrays.get(name))} in {self.file}"
            )
            for name in step | self.arrays
            if step.get(name) != self.arrays.get(name)
        }


def _describe(array: tuple[np.dtype[Any], tuple[int, ...]] | None) -> str:
    return f"{array[0]} {list(array[1])}" if array else "not there"


def _read_episode(
    split: _Split, what: str, start: int, stop: int, layout: _Layout, options: CalvinOptions, notes: Notes
) -> Iterator[tuple[str, Samples]]:
    """Yields an episode's streams. Each step keeps its stamp, even if steps before it cannot be read."""
    yield from _language_streams(split, start, stop)
    chunk: dict[int, dict[str, np.ndarray]] = {}
    lost: dict[str, dict[int, SourceError]] = {}  # by array; "" for steps that cannot be read at all
    size = 0
    for step in range(start, stop):
        file = split.file(step)
        try:
            with naming(file):
                arrays = read_npz(file)
        except SourceError as error:
            lost.setdefault("", {})[step] = error
        else:
            for name, mismatch in layout.compare(arrays, file).items():
                lost.setdefault(name, {})[step] = mismatch
                arrays.pop(name, None)
            chunk[step - start] = arrays
            size += sum(array.nbytes for array in arrays.values())
        if (step - start) % _STEPS == _STEPS - 1 or size >= _BYTES or step == stop - 1:
            for name, errors in lost.items():
                steps = ranges(sorted(errors))
                notes.skip(f"{what}: steps {steps}{name and f': {name}'}", errors[min(errors)])
            for name in layout.arrays:
                rows = [row for row, arrays in chunk.items() if name in arrays]
                if rows:
                    time_ns = nominal_time_ns(rows[0], rows[-1] + 1, split.rate_hz)[np.array(rows) - rows[0]]
                    yield from _streams(name, time_ns, np.stack([chunk[row][name] for row in rows]), options, notes)
            size, chunk, lost = 0, {}, {}


def _streams(
    name: str, time_ns: np.ndarray, rows: np.ndarray, options: CalvinOptions, notes: Notes
) -> Iterator[tuple[str, Samples]]:
    """Yields an array of several steps as streams: numbers, one camera, or a camera for each sensor whose pictures the array holds."""
    channels = {"rgb": 3, "dep": 1}.get(name[:3])
    pixels = np.uint8 if channels == 3 else np.float32
    if channels is not None and rows.dtype == pixels and rows.ndim >= 3:
        images = rows[..., None] if rows.ndim == 3 else rows
        if images.ndim == 4 and images.shape[3] and images.shape[3] % channels == 0:
            parts = images.shape[3] // channels
            for part in range(parts):
                part_of_images = images[..., part * channels : (part + 1) * channels]
                camera = f"{name}/{part}" if parts > 1 else name
                yield camera, store_pixels(camera, time_ns, part_of_images, options, "nominal", notes)
            return
    if rows.dtype.kind not in "biuf":
        notes.leave_out(name, f"not numeric: {rows.dtype}")
        return
    # CALVIN describes rel_actions as relative to the state before the step, and scaled to [-1, 1].
    attributes = {"absolute": False} if name == "rel_actions" else {}
    yield name, Rows(time_ns, rows, None, "nominal", attributes)


def _language_streams(split: _Split, start: int, stop: int) -> Iterator[tuple[str, Samples]]:
    """Yields the stream of the valid text as the task, and streams with a row for each annotation, at the step where it begins."""
    language = split.language
    if language is None:
        return
    clock = nominal_time_ns(0, stop - start, split.rate_hz)
    steps, texts = language.texts_in(start, stop)
    if len(steps):
        yield "task", Texts(clock[steps], texts, "nominal", {"task": True})
    annotations = language.within(start, stop)
    starts = language.starts[annotations]
    if not len(starts):
        return
    time_ns = clock[starts - start]
    yield "language", Texts(time_ns, language.texts[annotations], "nominal")
    yield "language/task", Texts(time_ns, language.tasks[annotations], "nominal")
    yield "language/steps", Rows(time_ns, language.stops[annotations] - starts, None, "nominal", {"units": "steps"})
    yield "language/embedding", Rows(time_ns, language.embeddings[annotations], None, "nominal")
