"""Says it where a recording declares other episodes, another length or other joints than the cache takes it to have.

Files may hold several rollouts one behind the other, and mark their ends. Nothing here changes rows: the report names what was declared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from .recording import Notes, Rows, Samples, SourceError, Texts

# The last words of streams and features, in small letters.
_ENDS = {"terminal", "terminals", "timeout", "timeouts", "done", "dones", "terminated", "truncated", "terminations"} | {
    *("truncations", "is_last", "is_terminal", "episode_end", "end_of_episode", "episode_done", "dones_float"),
}
_STARTS = {"is_first", "is_init", "reset", "episode_start", "episode_starts"}
_EPISODE = re.compile(r"episode(_?(index|idx|id|number|no))?|(traj|trajectory|demo|rollout)_?(index|idx|id|number|no)")
_PADDING = re.compile(
    r"(\w+_)?((is_)?(valid|pad|padding)|valids|validity|(attention|loss|action|pad|padding|valid)_?mask|masks?)"
)
# Columns of an episode.
_LENGTH = re.compile(
    r"(length|(episode|traj|trajectory|ep|demo)_?(len|length)|n(um)?_?(steps|samples|frames|timesteps))"
)
_LENGTHS = re.compile(r"(\w+_)?(lengths|lens)")
_CUTS = re.compile(r"(\w+_)?ends")
_JOINTS = re.compile(
    r"((\w+_)?(joint|dof|motor|actuator|qpos|state|action|body|link|marker|keypoint|feature)s?_?(names?|order)|joints|dofs|actuators)",
    re.IGNORECASE,
)
_MOST_FEATURES = 256

_CUT = "windows run across them; an episode for each needs a source that is cut there"


class Declared:
    """What the streams of one recording declare, part by part."""

    def __init__(self, what: str, notes: Notes) -> None:
        self._what = what
        self._notes = notes
        self._found: dict[tuple[str, str], list[np.ndarray]] = {}
        self._rows: dict[str, int] = {}

    def see(self, stream: str, samples: Samples) -> None:
        """Takes in a part of a stream."""
        if isinstance(samples, Rows):
            self._rows[stream] = self._rows.get(stream, 0) + len(samples.time_ns)
            flat = samples.values.reshape(len(samples.values), -1) if len(samples.values) else samples.values
            names = samples.names or []
            if flat.ndim == 2 and flat.shape[1] == 1 and _says(stream):
                self._found.setdefault((stream, stream), []).append(flat[:, 0])
            elif flat.ndim == 2 and len(names) == flat.shape[1] <= _MOST_FEATURES:
                for feature, name in enumerate(names):
                    if _says(name):
                        self._found.setdefault((stream, name), []).append(flat[:, feature])
        elif isinstance(samples, Texts) and len(samples.texts) and _EPISODE.fullmatch(_word(stream)):
            self._found.setdefault((stream, stream), []).append(np.array(samples.texts, object))

    def say(self, metadata: Mapping[str, Any]) -> None:
        """Reports what the whole recording declares; `metadata` is its columns."""
        for (stream, name), parts in self._found.items():
            if why := _why(_word(name), np.concatenate(parts)):
                self._notes.assume(f"episodes of {name!r}", f"{self._what} as one: {why}", stream)
        rows = max(self._rows.values(), default=0)
        for column, value in metadata.items():
            word = _word(column)
            if isinstance(value, int | np.integer) and not isinstance(value, bool):
                if _LENGTH.fullmatch(word) and 2 <= value < min(self._rows.values(), default=0):
                    why = f"says {value}, but {self._what} has {rows} rows: those behind may be padding, and are read"
                    self._notes.assume(f"length {column!r}", why)
            elif isinstance(value, list | tuple | np.ndarray) and len(value) > 1 and np.array(value).dtype.kind in "iu":
                last = (
                    int(np.sum(value)) if _LENGTHS.fullmatch(word) else int(value[-1]) if _CUTS.fullmatch(word) else 0
                )
                if last == rows > 0:
                    why = f"{self._what} as one, but it tells of {len(value)}: {_CUT}"
                    self._notes.assume(f"episodes of {column!r}", why)


def check_joints(known: dict[str, list[str]], where: str, metadata: Mapping[str, Any]) -> None:
    """Compares the names of joints in the columns of an episode with those of the first episode, in `known`.

    Raises:
        SourceError: they differ, so the features of the streams have another meaning or order.
    """
    for column, value in metadata.items():
        if not _JOINTS.fullmatch(_word(column)) or not isinstance(value, list | tuple | np.ndarray):
            continue
        names = list(value)
        if not names or not all(isinstance(name, str) for name in names):
            continue
        before = known.setdefault(column, names)
        if names != before:
            order = "another order" if sorted(names) == sorted(before) else "other features"
            raise SourceError(
                f"{where}: {column} is {names}, but {before} in the recordings before it: its rows have {order}; "
                "put its features in the order before, or give it a cache of its own"
            )


def _word(name: str) -> str:
    """Returns the last part of a name, in small letters: "dones" of "data/dones", "episode_id" of "log.episode_id"."""
    return re.split(r"[./]", name.lower())[-1]


def _says(name: str) -> bool:
    word = _word(name)
    return word in _ENDS | _STARTS or any(pattern.fullmatch(word) for pattern in (_PADDING, _EPISODE))


def _why(word: str, values: np.ndarray) -> str | None:
    """Returns what a column declares that is not so in one whole episode."""
    if _EPISODE.fullmatch(word):
        changes = np.flatnonzero(values[1:] != values[:-1]) + 1
        if len(changes) > 0 and len(np.unique(values.astype(str))) == len(changes) + 1 <= len(values) / 2:
            return f"it has {len(changes) + 1} values, and changes first at row {changes[0]}: {_CUT}"
        return None
    if (
        values.dtype.kind not in "biuf"
        or not np.isin(values, (0, values.max(initial=0) if _PADDING.fullmatch(word) else 1)).all()
    ):
        return None
    flags = values.astype(bool)
    if _PADDING.fullmatch(word):
        changes = np.flatnonzero(flags[1:] != flags[:-1]) + 1
        if len(changes) != 1:
            return None
        return f"it changes once, at row {changes[0]} of {len(flags)}: the rows on one side are padding by it, and are read"
    if word in _STARTS:
        rows = np.flatnonzero(flags[1:]) + 1
        return f"it is set in {len(rows)} rows behind the first (row {rows[0]}): {_CUT}" if len(rows) else None
    rows = np.flatnonzero(flags[:-1] & ~flags[1:])
    return f"it is set in {len(rows)} rows before others (row {rows[0]}): {_CUT}" if len(rows) else None
