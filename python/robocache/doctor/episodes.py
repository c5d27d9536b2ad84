"""Checks of episodes: lengths, repeated episodes, splits that share episodes, actions equal to the state, texts of tasks."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from .._printable import count
from ..dataset import Dataset, EncodedFrames, Stream
from ..findings import Finding
from ..tasks import MomentTexts, rows_without_text, task_streams, texts_of_numbers
from .streams import Survey, is_action, ranges

LENGTH_FACTOR, LENGTH_MADS, LENGTH_EPISODES = 4.0, 5.0, 8
_BYTES = 1 << 24  # bytes of two episodes that are compared at once
SHIFTS, SHIFT_SHARE, SHIFT_EPISODES = 3, 0.99, 20  # compared shifts of rows, the share of equal rows, compared episodes


def check_lengths(survey: Survey) -> Iterator[Finding]:
    """Finds episodes 4 times longer or shorter than the median. The logarithm of their length must also differ from the
    median's by 5 scaled median absolute deviations."""
    if not survey.sensors or len(survey.dataset) < LENGTH_EPISODES:
        return
    spans = np.max([clock.span_ns for clock in survey.sensors.values()], axis=0) / 1e9
    present = np.flatnonzero(spans > 0)
    if len(present) < LENGTH_EPISODES:
        return
    logs = np.log(spans[present])
    median_log = float(np.median(logs))
    spread = 1.4826 * float(np.median(np.abs(logs - median_log)))
    is_far = np.abs(logs - median_log) > max(math.log(LENGTH_FACTOR), LENGTH_MADS * spread)
    for episode in present[is_far].tolist():
        yield Finding(
            "note",
            "episode-length",
            f"{spans[episode]:.4g} s; the median episode has {math.exp(median_log):.4g} s",
            episode=episode,
            value=float(spans[episode]),
            expected=math.exp(median_log),
            advice="The recording was cut off or left running: look at it. A condition on duration_s as episodes= draws from the others.",
        )


def check_boundaries(survey: Survey) -> Iterator[Finding]:
    """Finds rows within an episode that the recording marks as the first or last row of an episode."""
    for stream in survey.numbers:
        last_part = re.split(r"[/.]", stream.name)[-1]
        if last_part not in ("is_first", "is_last") or int(np.prod(stream.shape)) != 1:
            continue
        rows = np.flatnonzero(stream.values[:].reshape(-1))
        starts = stream.row_offsets.astype(np.int64)
        episodes = np.searchsorted(starts, rows, side="right") - 1
        boundary_rows = starts[episodes] if last_part == "is_first" else starts[episodes + 1] - 1
        inside = np.flatnonzero(rows != boundary_rows)
        if len(inside):
            episode, row = int(episodes[inside[0]]), int(rows[inside[0]])
            yield Finding(
                "error",
                "episode-within",
                f"{count(len(inside), 'row')} in {count(len({*episodes[inside].tolist()}), 'episode')}: by this stream the "
                f"{last_part.removeprefix('is_')} of an episode, but inside one",
                episode=episode,
                stream=stream.name,
                row=row - int(starts[episode]),
                count=len(inside),
                advice="A window crosses from one episode into the next there: split them at the source.",
            )


def check_repeated_episodes(survey: Survey) -> Iterator[Finding]:
    """Finds episodes with the same values, whatever their clocks; an error if they are in two splits.

    Candidates have the same numbers of rows and a few equal rows. They are then compared byte for byte.
    """
    streams = [s for s in survey.floats if s.rows]
    by_samples: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for episode, key in enumerate(zip(*(_sample_keys(stream) for stream in streams), strict=True)):
        if any(key):
            by_samples[key].append(episode)
    repeats = [
        group
        for candidates in by_samples.values()
        if len(candidates) > 1
        for group in _group_equal(survey, streams, candidates)
    ]
    split_of = {episode: name for name, episodes in splits(survey).items() for episode in episodes}
    for group in sorted(repeats):
        parts = {split_of[episode] for episode in group if episode in split_of}
        if len(parts) > 1:
            yield Finding(
                "error",
                "split-leak",
                f"the same values in splits {', '.join(sorted(parts))}: episodes {ranges(group)}",
                episode=group[0],
                count=len(group) - 1,
                advice="Validation data was used in training: keep one of them with the loader's episodes=.",
            )
        else:
            yield Finding(
                "warning",
                "repeated-episode",
                f"episodes {ranges(group)} have the same values",
                episode=group[0],
                count=len(group) - 1,
                advice="Training sees it that many times, and a split may put it on both sides: keep one, or split by your own column.",
            )


def check_splits(survey: Survey) -> Iterator[Finding]:
    """Finds splits that share episodes."""
    episodes_of = splits(survey)
    for first, second in combinations(episodes_of, 2):
        shared = sorted({*episodes_of[first]} & {*episodes_of[second]})
        if shared:
            yield Finding(
                "error",
                "split-leak",
                f"in both splits {first} and {second}: episodes {ranges(shared)}",
                episode=shared[0],
                count=len(shared),
                advice="Validation data was used in training: Dataset.split() returns lists without a common episode.",
            )


def check_actions(survey: Survey) -> Iterator[Finding]:
    """Finds actions that equal the state of the same row, or of one of the next rows, in 99 of 100 rows."""
    for action in survey.floats:
        if not is_action(action.name):
            continue
        for state in survey.floats:
            if "state" not in state.name or state.shape != action.shape:
                continue
            for shift in range(SHIFTS):
                share = share_of_equal_rows(survey, action, state, shift)
                if share >= SHIFT_SHARE:
                    relation = "the same row" if shift == 0 else f"{count(shift, 'row')} later"
                    yield Finding(
                        "note",
                        "action-is-state",
                        f"{share:.1%} of its rows are {state.name} of {relation}",
                        stream=action.name,
                        count=1,
                        value=shift,
                        advice="This is not a command but a measurement"
                        + (
                            ": a policy that sees the state only has to copy it."
                            if shift == 0
                            else ". If that is intended it is right, but a window that reaches that row contains the answer."
                        ),
                    )
                    break


def splits(survey: Survey) -> dict[str, list[int]]:
    """Returns the episodes of each split: from the caller, from the column `split`, or from LeRobot's "0:37"."""
    if survey.splits:
        return survey.splits
    dataset, episodes_of = survey.dataset, defaultdict[str, list[int]](list)
    if "split" in dataset.episodes.column_names:
        for episode, name in enumerate(dataset.episodes["split"].to_pylist()):
            if name is not None:
                episodes_of[str(name)].append(episode)
        return dict(episodes_of)
    lerobot = dataset.provenance.get("lerobot")
    declared = lerobot.get("splits") if isinstance(lerobot, dict) else None
    for name, span in declared.items() if isinstance(declared, dict) else ():
        bounds = re.fullmatch(r"(\d{1,18}):(\d{1,18})", span) if isinstance(span, str) else None
        if bounds:
            begin, end = int(bounds[1]), int(bounds[2])
            episodes_of[name] = sorted(
                episode for number, episode in source_episodes(dataset).items() if begin <= number < end
            )
    return dict(episodes_of)


def source_episodes(dataset: Dataset) -> dict[int, int]:
    """Returns {number in the source: episode}, if ingest kept those numbers."""
    if "source_episode_index" not in dataset.episodes.column_names:
        return {}
    numbers = dataset.episodes["source_episode_index"].to_pylist()
    return {number: episode for episode, number in enumerate(numbers) if isinstance(number, int)}


def _rows(stream: Stream, episode: int) -> slice:
    return slice(*stream.row_offsets[episode : episode + 2].tolist())


def _sample_keys(stream: Stream) -> Iterator[tuple[int, int] | None]:
    """Yields a key for each episode. Equal episodes have equal keys. None: the rows that the key is made of are all equal."""
    lengths = np.diff(stream.row_offsets)
    rows = stream.row_offsets[:-1, None] + np.arange(8) * np.maximum(lengths - 1, 0)[:, None] // 7
    rows = np.minimum(rows, stream.rows - 1)  # the last episodes may have no rows
    step = max(_BYTES // max(8 * stream.dtype.itemsize * math.prod(stream.shape), 1), 1)
    for start in range(0, len(rows), step):
        samples = stream.values[rows[start : start + step]]
        changes = (samples != samples[:, :1]).reshape(len(samples), -1).any(1) & (lengths[start : start + step] > 1)
        for length, row, moves in zip(lengths[start : start + step].tolist(), samples, changes.tolist(), strict=True):
            yield (length, hash(row.tobytes())) if moves else None


def _group_equal(survey: Survey, streams: list[Stream], candidates: list[int]) -> list[list[int]]:
    """Returns groups of two or more equal episodes."""
    groups: list[list[int]] = []
    for episode in candidates:
        for group in groups:
            if all(_same_values(survey, stream, group[0], episode) for stream in streams) and all(
                _same_frames(camera, group[0], episode) for camera in survey.cameras
            ):
                group.append(episode)
                break
        else:
            groups.append([episode])
    return [group for group in groups if len(group) > 1]


def _same_values(survey: Survey, stream: Stream, first: int, second: int) -> bool:
    a, b = _rows(stream, first), _rows(stream, second)
    if a.stop - a.start != b.stop - b.start:
        return False
    step = max(_BYTES // max(stream.dtype.itemsize * math.prod(stream.shape), 1), 1)
    for start in range(0, a.stop - a.start, step):
        parts = [slice(rows.start + start, min(rows.start + start + step, rows.stop)) for rows in (a, b)]
        is_same = stream.values[parts[0]].tobytes() == stream.values[parts[1]].tobytes()
        for part in parts:
            survey.forget(stream, part)
        if not is_same:
            return False
    return True


def _same_frames(camera: Stream, first: int, second: int) -> bool:
    """Compares the sizes of all files, and the bytes of three; for raw frames three frames. True if an episode has no frames."""
    a, b = _rows(camera, first), _rows(camera, second)
    if a.start == a.stop or b.start == b.stop:
        return True
    if a.stop - a.start != b.stop - b.start:
        return False
    values, compared = camera.values, (np.arange(3) * (a.stop - a.start - 1) // 2).tolist()
    if not isinstance(values, EncodedFrames):
        return all(values[a.start + row].tobytes() == values[b.start + row].tobytes() for row in compared)
    offsets = values.offsets
    if not np.array_equal(np.diff(offsets[a.start : a.stop + 1]), np.diff(offsets[b.start : b.stop + 1])):
        return False
    files = [
        [values.data[slice(*offsets[start + row : start + row + 2])] for row in compared]
        for start in (a.start, b.start)
    ]
    return all(np.array_equal(first, second) for first, second in zip(*files, strict=True))


def share_of_equal_rows(survey: Survey, action: Stream, state: Stream, shift: int) -> float:
    """Returns the share of an action's rows, in some episodes, that equal the state's `shift` rows later."""
    comparable = np.flatnonzero(
        (survey.clocks[action.name].rows == survey.clocks[state.name].rows) & (survey.clocks[action.name].rows > SHIFTS)
    )
    equal_rows = rows = 0
    compared = np.unique(np.linspace(0, len(comparable) - 1, min(len(comparable), SHIFT_EPISODES)).astype(int))
    for episode in comparable[compared].tolist():
        a, s = (stream.values[_rows(stream, episode)][:4096].astype(np.float64) for stream in (action, state))
        a, s = a[: len(a) - shift].reshape(len(a) - shift, -1), s[shift:].reshape(len(s) - shift, -1)
        changes = (np.diff(s, axis=0) != 0).any(1)
        if not changes.any():
            continue
        equal_rows += int(np.isclose(a, s, rtol=1e-6, atol=1e-9).all(1).sum())
        rows += len(a)
    return equal_rows / rows if rows else 0.0


def check_texts(survey: Survey) -> Iterator[Finding]:
    """Finds numbers that have no text in the table, and episodes with several texts at unknown times."""
    tasks = {stream.name for stream in task_streams(survey.dataset)}
    for stream in survey.numbers:
        if not texts_of_numbers(survey.dataset, stream) or not len(rows := rows_without_text(survey.dataset, stream)):
            continue
        values = stream.values.reshape(-1)
        episodes_of_rows = np.searchsorted(stream.row_offsets, rows, side="right") - 1
        numbers, episodes = (np.unique(array).tolist() for array in (values[rows], episodes_of_rows))
        yield Finding(
            "error" if stream.name in tasks else "warning",
            "unknown-task",
            f"{ranges(numbers)} {'have' if len(numbers) > 1 else 'has'} no text: {count(len(rows), 'row')} of "
            f"{count(len(episodes), 'episode')}, {ranges(episodes)}",
            episode=episodes[0],
            stream=stream.name,
            row=int(rows[0] - stream.row_offsets[episodes_of_rows[0]]),
            count=len(rows),
            advice="The table of texts in the source lacks them: add them there and ingest again. The loader's text of these rows is "
            "None.",
        )
    if several := MomentTexts(survey.dataset).several:
        yield Finding(
            "warning",
            "task-without-time",
            f"{len(several)} episodes have several texts in a column, and no stream says when each one applies: {ranges(several)}",
            episode=several[0],
            count=len(several),
            advice="task_text and exports give the first for the whole episode. A stream of texts with the attribute task says when "
            "each holds.",
        )


CHECKS = (check_lengths, check_boundaries, check_repeated_episodes, check_splits, check_actions, check_texts)
