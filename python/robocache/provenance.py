"""Reads the part of a cache's provenance that ingests write. Other parts are ignored, since a Writer accepts any provenance."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ._printable import ranges


class Ingested(NamedTuple):
    """The record of one ingest, which made the cache or appended to it.

    source: the source; empty if unknown.
    left_out, skipped: (what, reason) of each omission. assumed: the assumptions, one line for each kind. repaired: the number
        of rows or steps that `repair` changed, by stream and kind.
    policy: the policy of `repair`.
    """

    source: str
    left_out: list[tuple[str, str]]
    skipped: list[tuple[str, str]]
    assumed: list[str]
    repaired: dict[str, dict[str, int]]
    policy: str


def ingests(provenance: Any) -> Iterator[Ingested]:
    """Yields the ingests into a cache, the first one first."""
    first = _table(provenance)
    for ingest in (first, *_items(first.get("appended"))):
        repair = _table(ingest.get("repair"))
        repaired = {name: _counts(counts) for name, counts in _table(repair.get("streams")).items()}
        yield Ingested(
            str(ingest.get("source") or ""),
            _omissions(ingest.get("left_out")),
            _omissions(ingest.get("skipped")),
            _assumptions(ingest.get("assumed")),
            {name: counts for name, counts in repaired.items() if counts},
            str(repair.get("policy")),
        )


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _omissions(value: Any) -> list[tuple[str, str]]:
    return [(str(item["what"]), str(item["reason"])) for item in _items(value) if {"what", "reason"} <= item.keys()]


def _assumptions(value: Any) -> list[str]:
    return assumed_lines(
        (str(item["what"]), str(item["reason"]), [str(name) for name in item["streams"]])
        for item in _items(value)
        if {"what", "reason", "streams"} <= item.keys() and isinstance(item["streams"], list)
    )


def _counts(value: Any) -> dict[str, int]:
    return {str(kind): number for kind, number in _table(value).items() if type(number) is int}


def group_alike(omissions: Iterable[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Groups omissions (what, reason) whose reasons differ only in numbers and in the omitted thing's name."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for what, reason in omissions:
        groups.setdefault(re.sub(r"\d+", "#", reason.replace(what, "@")), []).append((what, reason))
    return list(groups.values())


def assumed_lines(assumed: Iterable[tuple[str, str, Sequence[str]]]) -> list[str]:
    """Returns assumptions (what, reason, streams) as lines: "yaw (3 streams): an angle, by its name". Reasons that differ only in
    numbers share a line."""
    groups: dict[str, list[tuple[str, str, Sequence[str]]]] = {}
    for what, reason, streams in assumed:
        groups.setdefault(re.sub(r"\d+", "#", reason), []).append((what, reason, streams))
    lines = []
    for group in groups.values():
        things = list(dict.fromkeys(what for what, _, _ in group))
        listed = ", ".join(things[:3]) + (f" and {len(things) - 3} more" if len(things) > 3 else "")
        number = len({name for *_, names in group for name in names})
        lines.append(f"{listed}{f' ({number} streams)' if number > 1 else ''}: {group[0][1]}")
    return lines


def describe_group(group: list[tuple[str, str]]) -> str:
    """Returns the things in a group and the reason of the first: "episodes 0-11, 13: no file"."""
    what, reason = group[0]
    if len(group) == 1:
        return reason if what in reason else f"{what}: {reason}"
    # Numbers with zeros before them are parts of names, such as a file's.
    matches = [x for thing, _ in group if (x := re.fullmatch(r"(\D*)(0|[1-9]\d{0,17})(\D.*)?", thing))]
    affixes = {(numbered[1], numbered[3]) for numbered in matches}
    if len(matches) == len(group) and len(affixes) == 1:
        ((before, after),) = affixes
        numbers = ranges(sorted({int(numbered[2]) for numbered in matches}), limit=12)
        listed = f"{re.sub('(?<=[a-z]) $', 's ', before)}{numbers}{after or ''}"
    else:
        listed = ", ".join(thing for thing, _ in group[:3]) + (f" and {len(group) - 3} more" if len(group) > 3 else "")
    return f"{listed}: {reason.removeprefix(f'{what}: ')}"
