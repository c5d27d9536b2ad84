"""The texts of a batch: the text that applies at each step of a window, as str or as an index into a table (rule 47)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from . import errors
from ._check import listed, real
from ._printable import ranges
from .dataset import Dataset, Stream
from .options import Window
from .sources import Source, streams_of
from .tasks import MomentTexts, TextTable, add_clamped, is_text, rows_without_text

_FORMS = ("text", "indices", "drawn_text", "drawn_indices")
_FIELDS = ("offsets", "offset_s", "texts")  # the fields of a Window that apply to texts
_LIMIT_NS = 2**62


class SampleAnchors(NamedTuple):
    """The moments of a batch's samples, int64 [samples] each. `number` is a sample's position in the order, or its anchor's
    index."""

    source: np.ndarray
    episode: np.ndarray
    time_ns: np.ndarray
    number: np.ndarray


class TextKey:
    """Finds the texts of one key of the batch.

    Args:
        argument: the argument with the key, for errors.
        by_source: for each source the texts that may apply. If there are several, one is drawn.
        table: the numbers of the texts of all sources.

    Attributes:
        empty: the result if no text applies: None, or a str that LeRobot's batches set.
        texts: the table of the indices.
        as_indices: whether the batch has indices instead of str.
        notes: warnings about sources without texts, episodes with several texts of which the first is used, and rows whose
            number has no text.
    """

    def __init__(
        self,
        name: str,
        argument: str,
        window: Window,
        by_source: Sequence[Sequence[MomentTexts]],
        table: TextTable,
    ) -> None:
        form = window.texts or "text"
        self.name = name
        self.as_indices, self._draws = form.endswith("indices"), form.startswith("drawn")
        self.texts = tuple(table)
        self.empty: str | None = None
        self._offsets_ns = _offsets_ns(argument, window)
        self._has_steps = window.offsets is not None
        self._by_source = by_source
        self.notes = [
            f"{argument}: {len(texts.several)} of {len(texts.lacking)} episodes of {texts.dataset.path}, the first of them "
            f"episode {texts.several[0]}, have several texts, and no stream says when each one applies: the first is used; a "
            f"stream of texts whose attribute task is true would say it, and {{'{name}': Window(texts='drawn_text')}} draws one"
            for source_texts in by_source
            for texts in source_texts
            if texts.several and not self._draws
        ]
        for texts in (texts for source_texts in by_source for texts in source_texts):
            for stream in (stream for stream in texts.streams if stream.ragged is None):
                if len(rows := rows_without_text(texts.dataset, stream)):
                    numbers = ranges(np.unique(stream.values.reshape(-1)[rows]).tolist(), 10)
                    self.notes.append(
                        f"{argument}: {len(rows)} rows of {stream.name} of {texts.dataset.path} have no text, since its table lacks {numbers}"
                    )

    @cached_property
    def _values(self) -> np.ndarray:
        return np.array([*self.texts, self.empty], object)

    def lacking(self, source: int) -> np.ndarray | None:
        """Returns whether each episode of a source has no text at all; None if no stream or column of the source has texts."""
        lacking = [texts.lacking for texts in self._by_source[source]]
        return np.logical_and.reduce(lacking) if lacking else None

    def at(self, anchors: SampleAnchors, seed: int, epoch: int) -> Any:
        """Returns the texts of each sample: indices as int64, else lists of str. The seed and the epoch decide what is drawn."""
        times = add_clamped(anchors.time_ns[:, None], self._offsets_ns)
        codes = np.full(times.shape, -1)
        hashed = hashes(seed, epoch, anchors.number, zlib.crc32(self.name.encode())) if self._draws else None
        for source, source_texts in enumerate(self._by_source):
            rows = np.flatnonzero(anchors.source == source)
            if not source_texts or not len(rows):
                continue
            steps = len(self._offsets_ns)
            episodes = np.repeat(anchors.episode[rows], steps)
            codes_by_text = [texts.codes_at(episodes, times[rows].ravel(), every=self._draws) for texts in source_texts]
            alternatives = np.concatenate(codes_by_text)
            chosen = alternatives[0] if hashed is None else _draw(alternatives, np.repeat(hashed[rows], steps))
            codes[rows] = chosen.reshape(-1, steps)
        if not self._has_steps:
            codes = codes[:, 0]
        return codes if self.as_indices else self._values[codes].tolist()


def text_keys(
    sources: Sequence[Source], names: Sequence[str], windows: Mapping[str, Window], default: Window, snap_ns: int
) -> dict[str, TextKey]:
    """Returns the keys of the batch that are texts: keys of streams of text, and keys whose window has `texts`.

    Args:
        names: a prefix of the errors about each source.
        default: has the latency of windows without their own.

    Raises:
        ArgumentError: no source has texts for a key, a source has several streams for a key that does not draw, or a window has a
            field that does not apply to texts.
    """
    keys = {}
    for key, window in windows.items():
        streams = [streams_of(source, key) for source in sources]
        if window.texts is not None or any(x.ragged == "text" for source_streams in streams for x in source_streams):
            keys[key] = _make_text_key(key, window, default, sources, names, streams, snap_ns)
    return keys


def _make_text_key(
    key: str,
    window: Window,
    default: Window,
    sources: Sequence[Source],
    names: Sequence[str],
    streams: Sequence[Sequence[Stream]],
    snap_ns: int,
) -> TextKey:
    argument = f"delta_timestamps['{key}']"
    if window.texts not in (None, *_FORMS):
        raise errors.ArgumentError(
            f"{argument}.texts: expected one of {', '.join(map(repr, _FORMS))}, got {window.texts!r}"
        )
    for field in fields(window):
        if field.name not in _FIELDS and getattr(window, field.name) != field.default:
            raise errors.ArgumentError(
                f"{argument}.{field.name}: goes with numbers or frames, and this is a key of texts, got "
                f"{getattr(window, field.name)!r}"
            )
    table = TextTable()
    by_source: list[list[MomentTexts]] = []
    for source, name, source_streams in zip(sources, names, streams, strict=True):
        names_of_source = [stream.name for stream in source_streams]
        if len(names_of_source) > 1 and not (window.texts or "").startswith("drawn"):
            raise errors.ArgumentError(
                f"{name}rename: expected one stream for {key!r}, got {', '.join(names_of_source)}; Window(texts='drawn_text') draws one of "
                "their texts"
            )
        by_source.append(_find_texts(source.dataset, key, names_of_source, snap_ns, table))
    if window.offset_s is None:
        window = replace(window, offset_s=default.offset_s)
    result = TextKey(key, argument, window, by_source, table)
    expected = "a stream of texts, a stream of numbers that have texts, or a column of texts in the episodes"
    _check_sources(result, argument, sources, by_source, expected)
    return result


def task_key(sources: Sequence[Source], stream: str | None, snap_ns: int, name: str = "task") -> TextKey:
    """Returns the key for `task_text`: the texts of the task, or of this stream.

    Raises:
        ArgumentError: no source has such texts.
    """
    table = TextTable()
    texts_of_sources = [MomentTexts(source.dataset, stream, snap_ns, table=table) for source in sources]
    by_source = [[texts] if texts.has_texts else [] for texts in texts_of_sources]
    key = TextKey(name, "task_text", Window(), by_source, table)
    expected = f"a stream {stream!r} of texts, or of numbers that have texts,"
    if stream is None:
        expected = "a stream of texts that is the task's, or a column task or tasks in the episodes"
    _check_sources(key, "task_text", sources, by_source, expected, stream is None)
    return key


def without_missing(
    sources: Sequence[Source], names: Sequence[str], keys: Mapping[str, TextKey], missing: Any
) -> list[Source]:
    """Returns the sources without the episodes that `missing` drops because they have no text (rule 48). A note counts the
    remaining episodes without a text.

    Raises:
        ArgumentError: an episode has no text and `missing` is ``"error"``, or no episode is left to draw.
    """
    result = []
    for index, (source, name) in enumerate(zip(sources, names, strict=True)):
        count = len(source.dataset)
        episodes = np.arange(count) if source.episodes is None else source.episodes
        is_complete = np.ones(len(episodes), bool)
        are_known = ((episodes >= 0) & (episodes < count)).all()  # the library refuses other indices
        for key in keys.values() if are_known else ():
            lacking = key.lacking(index)
            lacks = is_complete[:0] if lacking is None else lacking[episodes]
            if not lacks.any():
                continue
            note = f"{name}missing: {int(lacks.sum())} of {len(episodes)} episodes have no text of {key.name!r}"
            if missing == "error":
                raise errors.ArgumentError(
                    f"{note}; the first is episode {episodes[lacks.argmax()]}; expected one in every episode that is drawn from, "
                    "or missing='pad' or 'drop'"
                )
            if missing == "drop":
                is_complete &= ~lacks
            else:
                filler = -1 if key.as_indices else None
                key.notes.append(f"{note}: it is {filler} there; missing='drop' leaves these episodes out")
        if not is_complete.any() and len(episodes):
            raise errors.ArgumentError(
                f"{name}missing: expected an episode that has texts of all keys, got none to draw from"
            )
        result.append(source if is_complete.all() else replace(source, episodes=episodes[is_complete]))
    return result


def _find_texts(
    dataset: Dataset, key: str, streams: Sequence[str], snap_ns: int, table: TextTable
) -> list[MomentTexts]:
    """Returns a dataset's texts for a key: from its streams, else from the task, else from a column of the episodes."""
    if streams:
        return [MomentTexts(dataset, name, snap_ns, table=table) for name in streams if is_text(dataset, name)]
    if key == "task":
        texts = MomentTexts(dataset, None, snap_ns, table=table)
        return [texts] if texts.has_texts else []
    if key not in dataset.episodes.column_names:
        return []
    texts = MomentTexts(dataset, column=key, table=table)
    return [] if texts.lacking.all() else [texts]


def _check_sources(
    key: TextKey,
    argument: str,
    sources: Sequence[Source],
    by_source: Sequence[Sequence[MomentTexts]],
    expected: str,
    names_columns: bool = False,
) -> None:
    """Raises an error if no source has texts for a key, else notes the sources without texts."""
    lacking = [source.dataset for source, source_texts in zip(sources, by_source, strict=True) if not source_texts]
    notes = []
    for dataset in lacking:
        got = ", ".join(name for name in dataset.streams if is_text(dataset, name)) or "none"
        if names_columns:
            got = ", ".join(dataset.episodes.column_names)
        message = f"{argument}: expected {expected} of {dataset.path}, got {got}"
        if len(lacking) == len(sources):
            raise errors.ArgumentError(message)
        notes.append(f"{message}; the {key.name} of its samples is {-1 if key.as_indices else None}")
    key.notes[:0] = notes


def _offsets_ns(argument: str, window: Window) -> np.ndarray:
    """Returns the steps' offsets from the anchor, with the latency, in ns."""
    offsets: Any = [0.0] if window.offsets is None else window.offsets
    seconds = listed(real, argument, offsets, np.float64)
    if not len(seconds):
        raise errors.ArgumentError(f"{argument}: expected at least one step, got none")
    latency = real(f"{argument}.offset_s", window.offset_s or 0.0)
    shifted: np.ndarray = np.rint(seconds * 1e9) + np.rint(latency * 1e9)
    if not (np.abs(shifted) < _LIMIT_NS).all():
        raise errors.ArgumentError(f"{argument}: expected finite offsets of less than 146 years, got {offsets!r}")
    return shifted.astype(np.int64)


def hashes(seed: int, epoch: int, numbers: np.ndarray, key: int) -> np.ndarray:
    """Returns a hash of each number and the key: splitmix64's finalizer over the parts, as for the draws of frames (rule 42)."""
    state = np.zeros(len(numbers), np.uint64)
    for part in (np.uint64(seed), np.uint64(epoch), numbers.astype(np.uint64), np.uint64(key)):
        state = (state ^ part) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state


def _draw(alternatives: np.ndarray, sample_hashes: np.ndarray) -> np.ndarray:
    """Draws a code for each moment from its `alternatives` [alternatives, moments], evenly; -1, no text, only if all are -1."""
    has_code = alternatives >= 0
    counts = has_code.sum(0)
    choices = (sample_hashes >> np.uint64(32)) * counts.astype(np.uint64) >> np.uint64(32)
    is_chosen = has_code & (np.cumsum(has_code, 0) - 1 == choices.astype(np.int64))
    codes: np.ndarray = np.where(is_chosen, alternatives, -1).max(0)
    return codes
