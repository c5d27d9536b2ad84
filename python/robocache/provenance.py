"""The part of a cache's provenance that ingests write; a Writer takes any provenance, so what has another form is passed over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ._printable import ranges


class Ingested(NamedTuple):
    """The account of one ingest: the one that made the cache, or one that appended to it.

    source: what was read; empty where it is not said.
    left_out, skipped: (what, reason) of each.
    assumed: the assumptions, one line for each kind.
    repaired: how many rows or steps of which stream `repair` changed, by kind; policy: which one it was.
    """

    source: str
    left_out: list[tuple[str, str]]
    skipped: list[tuple[str, str]]
    assumed: list[str]
    repaired: dict[str, dict[str, int]]
    policy: str


def ingests(provenance: Any) -> Iterator[Ingested]:
    """The ingests into a cache, the first one first."""
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


def alike(omissions: Iterable[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Omissions (what, reason) in groups that have one reason, but for its numbers and the name of what it is about."""
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
        whats = list(dict.fromkeys(what for what, _, _ in group))
        which = ", ".join(whats[:3]) + (f" and {len(whats) - 3} more" if len(whats) > 3 else "")
        number = len({name for *_, names in group for name in names})
        lines.append(f"{which}{f' ({number} streams)' if number > 1 else ''}: {group[0][1]}")
    return lines


def named(group: list[tuple[str, str]]) -> str:
    """The things that a group is about, and the reason of its first: "episodes 0-11, 13: no file"."""
    what, reason = group[0]
    if len(group) == 1:
        return reason if what in reason else f"{what}: {reason}"
    counted = [numbered for each, _ in group if (numbered := re.fullmatch(r"(\D*)(\d{1,18})(.*)", each))]
    around = {(numbered[1], numbered[3]) for numbered in counted}
    if len(counted) == len(group) and len(around) == 1:
        ((before, behind),) = around
        numbers = ranges(sorted(int(numbered[2]) for numbered in counted), limit=12)
        which = f"{re.sub('(?<=[a-z]) $', 's ', before)}{numbers}{behind}"
    else:
        which = ", ".join(each for each, _ in group[:3]) + (f" and {len(group) - 3} more" if len(group) > 3 else "")
    return f"{which}: {reason.removeprefix(f'{what}: ')}"
